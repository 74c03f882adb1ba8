//! Firefly reports of a session's data streams.
//!
//! The sending end reports, regardless of which end connected. A firefly is sent at the start of a
//! stream, every minute and at its end, to the stream's peer and the site's collectors. It is one
//! unacknowledged datagram; its loss does not affect the data.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use penstock_protocol::open::Mark;
use penstock_protocol::sender::StreamId;
use penstock_scitags::Scitag;
use penstock_scitags::firefly::{
    DirectionCounts, FIREFLY_PORT, Firefly, FireflyFlow, FlowPhase, TcpStats, TransportProtocol,
};
use penstock_scitags::time::UtcTime;
use penstock_sys::net;

use crate::base::lock::lock;
use crate::base::software::software;
use crate::net::transport::Transport;

/// Interval of reports on a running stream.
const ONGOING_INTERVAL: Duration = Duration::from_secs(60);

/// Longest wait for the acknowledgement of a stream's last data.
const LAST_ACKNOWLEDGEMENT_TIMEOUT: Duration = Duration::from_millis(100);

/// Interval at which that acknowledgement is looked for.
const ACKNOWLEDGEMENT_CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// States of a flow in fireflies, in the order of the counters.
pub const STATES: [&str; 3] = ["start", "ongoing", "end"];

/// Counters of datagrams sent and failed, by [`STATES`], shared by sessions. Loss after sending is
/// unknown.
#[derive(Debug, Default)]
pub struct FireflyCounters {
    sent: [AtomicU64; 3],
    failed: [AtomicU64; 3],
}

impl FireflyCounters {
    /// Sent and failed datagrams, in the order of [`STATES`].
    #[must_use]
    pub fn counts(&self) -> ([u64; 3], [u64; 3]) {
        let load = |counts: &[AtomicU64; 3]| counts.each_ref().map(|one| one.load(Relaxed));
        (load(&self.sent), load(&self.failed))
    }
}

/// Firefly reporter of one sending end.
#[derive(Debug)]
pub struct Fireflies {
    tag: Scitag,
    collectors: Vec<SocketAddr>,
    counts: Arc<FireflyCounters>,
    host: String,
    streams: Mutex<BTreeMap<StreamId, ReportedStream>>,
}

/// Reported stream.
#[derive(Debug)]
struct ReportedStream {
    flow: FireflyFlow,
    started: UtcTime,
    last_report: Instant,
    transport: Transport,
}

fn now() -> UtcTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UtcTime::new(since.as_secs(), since.subsec_micros())
}

/// Waits until the peer has acknowledged what was sent, so that the counts at the end of a stream are whole.
fn await_acknowledgements(transport: &Transport) {
    let start = Instant::now();
    while start.elapsed() < LAST_ACKNOWLEDGEMENT_TIMEOUT {
        match net::TcpInfo::of(transport) {
            Ok(info) if info.notsent_bytes > 0 || info.unacked_segments > 0 => {
                std::thread::sleep(ACKNOWLEDGEMENT_CHECK_INTERVAL);
            }
            _ => return,
        }
    }
}

impl Fireflies {
    /// Creates the reporter of a session with this mark; `None` without one.
    #[must_use]
    pub fn new(
        mark: Option<Mark>,
        collectors: &[SocketAddr],
        counts: Arc<FireflyCounters>,
    ) -> Option<Self> {
        let tag = Scitag::from_number(u64::from(mark?.scitag)).ok()?;
        Some(Self {
            tag,
            collectors: collectors.to_vec(),
            counts,
            host: penstock_sys::machine::host_name(),
            streams: Mutex::default(),
        })
    }

    /// Reports the start of a stream.
    pub fn begin(&self, stream: StreamId, transport: &Transport) {
        let Transport::Tcp(tcp) = transport else { return };
        let (Ok(ours), Ok(theirs)) = (tcp.local_addr(), tcp.peer_addr()) else { return };
        let Ok(flow) = FireflyFlow::new(ours, theirs, TransportProtocol::Tcp) else { return };
        let Ok(transport) = transport.try_clone() else { return };
        let stream_report =
            ReportedStream { flow, started: now(), last_report: Instant::now(), transport };
        self.send_report(&stream_report, FlowPhase::Start);
        lock(&self.streams).insert(stream, stream_report);
    }

    /// Reports streams whose last report is older than [`ONGOING_INTERVAL`].
    pub fn tick(&self) {
        for stream_report in lock(&self.streams).values_mut() {
            if stream_report.last_report.elapsed() >= ONGOING_INTERVAL {
                self.send_report(stream_report, FlowPhase::Ongoing);
                stream_report.last_report = Instant::now();
            }
        }
    }

    /// Reports the end of a stream.
    pub fn end(&self, stream: StreamId) {
        let Some(stream_report) = lock(&self.streams).remove(&stream) else { return };
        await_acknowledgements(&stream_report.transport);
        self.send_report(&stream_report, FlowPhase::End(now()));
    }

    fn send_report(&self, stream_report: &ReportedStream, phase: FlowPhase) {
        // Without kernel counters the counts are absent: 0 would be a measurement.
        let info = net::TcpInfo::of(&stream_report.transport).ok();
        let firefly = Firefly {
            phase,
            started: stream_report.started,
            now: match phase {
                FlowPhase::End(at) => at,
                FlowPhase::Start | FlowPhase::Ongoing => now(),
            },
            flow: stream_report.flow,
            tag: self.tag,
            application: software().replace(' ', " v"),
            bytes: info.map(|info| DirectionCounts {
                received: info.bytes_received,
                sent: info.bytes_acked,
            }),
            packets: info.map(|info| DirectionCounts {
                received: u64::from(info.segments_received),
                sent: u64::from(info.segments_sent),
            }),
            tcp: info.as_ref().map(facts),
        };
        let datagram = firefly.datagram(&self.host, "penstock");
        let destination = SocketAddr::new(stream_report.flow.destination().ip(), FIREFLY_PORT);
        for to in self.collectors.iter().copied().chain([destination]) {
            let state = match phase {
                FlowPhase::Start => 0,
                FlowPhase::Ongoing => 1,
                FlowPhase::End(_) => 2,
            };
            match send(&datagram, to) {
                Ok(()) => self.counts.sent[state].fetch_add(1, Relaxed),
                Err(error) => {
                    tracing::debug!("firefly to {to}: {error}");
                    self.counts.failed[state].fetch_add(1, Relaxed)
                }
            };
        }
    }
}

fn send(datagram: &[u8], to: SocketAddr) -> std::io::Result<()> {
    let any: IpAddr = match to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.set_nonblocking(true)?;
    socket.send_to(datagram, to).map(|_| ())
}

/// Converts kernel measurements. Round-trip times and delivery rates of 0 mean not measured.
fn facts(info: &net::TcpInfo) -> TcpStats {
    let measured = |value: u32| (value != 0).then_some(value);
    TcpStats {
        rtt_us: measured(info.rtt_us),
        min_rtt_us: measured(info.rtt_min_us),
        snd_mss: Some(info.snd_mss),
        rcv_mss: Some(info.rcv_mss),
        snd_cwnd: Some(info.snd_cwnd),
        total_retrans: Some(info.retransmits),
        segs_in: Some(info.segments_received),
        segs_out: Some(info.segments_sent),
        bytes_acked: Some(info.bytes_acked),
        bytes_received: Some(info.bytes_received),
        delivery_rate: (info.delivery_rate_bps != 0).then_some(info.delivery_rate_bps / 8),
        busy_time_us: Some(info.busy_us),
        rwnd_limited_us: Some(info.rwnd_limited_us),
        sndbuf_limited_us: Some(info.sndbuf_limited_us),
        ..TcpStats::default()
    }
}
