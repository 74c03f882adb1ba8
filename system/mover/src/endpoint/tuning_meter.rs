//! Samples of a sending end for its tuner.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use penstock_protocol::control::Report;
use penstock_protocol::open::SessionId;
use penstock_tuner::{Parallelism, QueueShares, TcpDifferences, TunerSample};

use super::sender::SenderEnd;
use crate::session::meter::TcpTotals;

/// Length of an interval.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);

/// Processors that an end's process uses at least where processors can limit it. Below, a busy host is busy with other
/// programs, and the scheduler still serves threads that hardly run.
const OWN_PROCESSORS_MIN: f64 = 0.3;

/// Counters of a session at one moment.
#[derive(Debug)]
struct SessionReading {
    session: SessionId,
    at: Instant,
    waited_storage_us: u64,
    waited_rate_us: u64,
    /// Processor time of this process.
    cpu_us: u64,
    tcp: TcpTotals,
}

/// Report of the peer, which arrives each second, and what it shows.
#[derive(Debug)]
struct PeerReading {
    at: Instant,
    report: Report,
    destination_full: f64,
    cpu: f64,
}

/// Takes differences between the counters of a sending end.
#[derive(Debug, Default)]
pub(crate) struct TuningMeter {
    last: Option<SessionReading>,
    peer: Option<PeerReading>,
    /// Session of the last sample.
    sampled: Option<SessionId>,
}

impl TuningMeter {
    /// True unless an interval of this session is under way.
    pub(crate) fn is_due(&self, session: SessionId) -> bool {
        let last = self.last.as_ref().filter(|last| last.session == session);
        last.is_none_or(|last| last.at.elapsed() >= SAMPLE_INTERVAL)
    }

    /// Returns a sample of the interval since the last one; none for the first of a session.
    pub(crate) fn sample(&mut self, end: &SenderEnd) -> Option<TunerSample> {
        let session = &end.work.session;
        let last = self.last.take().filter(|last| last.session == session.id);
        let now = Instant::now();
        let meter = &session.meter;
        let (report, tcp) = session.measure();
        let reading = SessionReading {
            session: session.id,
            at: now,
            waited_storage_us: meter.waited_storage_us.load(Ordering::Relaxed),
            waited_rate_us: meter.waited_rate_us.load(Ordering::Relaxed),
            cpu_us: report.cpu_us,
            tcp,
        };
        let Some(last) = last else {
            (self.last, self.peer) = (Some(reading), None);
            return None;
        };
        let (destination_full, receiver_cpu) = self.peer_shares(now, session.peer());
        let interval_us = u64::try_from((now - last.at).as_micros()).unwrap_or(u64::MAX);
        let streams = report.streams.max(1);
        let share = |later: u64, earlier: u64| {
            share_of(later.saturating_sub(earlier), interval_us, streams)
        };
        let since = |later: u64, earlier: u64| later.saturating_sub(earlier);
        let before = last.tcp;
        let sample = TunerSample {
            interval_us,
            // Not the bytes written: a new stream would count what its send buffer takes.
            bytes: since(tcp.acked_bytes, before.acked_bytes),
            active: Parallelism { streams: report.streams, ..end.work.workers() },
            tcp: TcpDifferences {
                delivery_rate_bps: None,
                busy_us: Some(since(tcp.busy_us, before.busy_us)),
                rwnd_limited_us: since(tcp.window_us, before.window_us),
                sndbuf_limited_us: since(tcp.buffer_us, before.buffer_us),
                sent_segments: Some(since(tcp.sent_segments, before.sent_segments)),
                retransmitted_segments: since(tcp.retransmits, before.retransmits),
                rtt_us: tcp.mean_rtt_us(),
                rtt_min_us: tcp.rtt_min_us,
                delivered_ce: since(tcp.marked_segments, before.marked_segments),
            },
            queues: QueueShares {
                source_empty: share(reading.waited_storage_us, last.waited_storage_us),
                destination_full,
                rate_limit: share(reading.waited_rate_us, last.waited_rate_us),
            },
            sender_cpu: cpu_share(&report, since(reading.cpu_us, last.cpu_us), interval_us),
            receiver_cpu,
        };
        self.sampled = Some(reading.session);
        self.last = Some(reading);
        Some(sample)
    }

    /// True once it has given a sample of this session: its settings are in place.
    pub(crate) fn has_sampled(&self, session: SessionId) -> bool {
        self.sampled == Some(session)
    }

    /// Share of time that the receiver's streams waited for buffers, and busy share of its processors.
    fn peer_shares(&mut self, now: Instant, report: Report) -> (f64, f64) {
        let (destination_full, cpu) = match &self.peer {
            Some(last) if last.report == report => return (last.destination_full, last.cpu),
            Some(last) => {
                let us = u64::try_from((now - last.at).as_micros()).unwrap_or(u64::MAX);
                let waited = report.waited_storage_us.saturating_sub(last.report.waited_storage_us);
                let used_us = report.cpu_us.saturating_sub(last.report.cpu_us);
                (share_of(waited, us, report.streams.max(1)), cpu_share(&report, used_us, us))
            }
            None => (0.0, 0.0),
        };
        self.peer = Some(PeerReading { at: now, report, destination_full, cpu });
        (destination_full, cpu)
    }
}

fn share_of(waited_us: u64, interval_us: u64, streams: u16) -> f64 {
    let whole = interval_us.max(1) as f64 * f64::from(streams);
    (waited_us as f64 / whole).clamp(0.0, 1.0)
}

/// Busy share of a host's processors; zero where its end used `used_us` of them, which is too little to be limited.
fn cpu_share(report: &Report, used_us: u64, interval_us: u64) -> f64 {
    if (used_us as f64) < interval_us as f64 * OWN_PROCESSORS_MIN {
        return 0.0;
    }
    f64::from(report.machine_busy_permille) / 1000.0
}
