//! Threads that receive datagrams from the kernel and pass them to the intake.
//!
//! Each thread has one socket and never ends on errors: malformed datagrams are counted, and errors
//! of the socket are logged once a minute.
//!
//! A datagram belongs to the second in which the kernel received it, no matter how long it waited
//! in the socket. Each thread publishes the time up to which its socket is drained; a second is
//! closed when all sockets are drained beyond its end.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use penstock_flows::exporter::Exporter;
use penstock_flows::intake::Sink;
use penstock_flows::interface::CounterInterval;
use penstock_flows::observe::Observation;
use penstock_flows::scitag::ScitagVerdict;
use penstock_flows::sequence::Arrival;
use penstock_flows::sflow::{CounterRecord, Source};
use penstock_sys::net::DatagramReceiver;

use crate::archive::{Recorder, SampleRecord};
use crate::config::Config;
use crate::error::SocketError;
use crate::live::CountedInterval;
use crate::shared::{Shared, unix_now};
use crate::timeline::ClockTimeline;

/// Longest wait for datagrams, after which a thread publishes its drained time and checks for the
/// end of the service.
const RECEIVE_TIMEOUT: Duration = Duration::from_millis(50);

/// Pause after an error of the socket.
const ERROR_PAUSE: Duration = Duration::from_millis(200);

/// Shortest time between two log lines about the same error.
pub(crate) const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Telemetry that a socket receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputFormat {
    /// sFlow version 5 datagrams.
    Sflow,
    /// IPFIX and NetFlow datagrams.
    Ipfix,
    /// Firefly datagrams (scitags).
    Fireflies,
}

impl InputFormat {
    /// Name in the configuration, the API and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sflow => "sflow",
            Self::Ipfix => "ipfix",
            Self::Fireflies => "fireflies",
        }
    }
}

/// A socket with its counters.
#[derive(Debug)]
pub struct InputSocket {
    /// Telemetry that it receives.
    pub format: InputFormat,
    /// Local address and port.
    pub address: SocketAddr,
    /// Receive buffer of the kernel in bytes.
    pub buffer_bytes: usize,
    /// Count of received datagrams.
    pub datagrams: AtomicU64,
    /// Bytes of the received datagrams.
    pub bytes: AtomicU64,
    /// Datagrams that the kernel dropped.
    pub kernel_drops: AtomicU64,
    /// Malformed datagrams, and fireflies that are not trusted.
    pub refused: AtomicU64,
    /// Errors of the socket.
    pub errors: AtomicU64,
    /// All datagrams received before this time were processed, in nanoseconds since the collector's
    /// start.
    drained_ns: AtomicU64,
}

impl InputSocket {
    /// Time up to which all received datagrams were processed.
    pub(crate) fn drained(&self) -> Duration {
        Duration::from_nanos(self.drained_ns.load(Ordering::Acquire))
    }

    fn set_drained(&self, until: Duration) {
        let nanos = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
        self.drained_ns.fetch_max(nanos, Ordering::Release);
    }

    /// Returns true for sockets of traffic telemetry.
    fn is_of_traffic(&self) -> bool {
        matches!(self.format, InputFormat::Sflow | InputFormat::Ipfix)
    }
}

/// Open sockets, and a line for each that failed.
pub(crate) type OpenSockets = (Vec<(DatagramReceiver, Arc<InputSocket>)>, Vec<String>);

/// Opens the configured sockets.
///
/// # Errors
/// When a required socket fails.
pub(crate) fn open(config: &Config) -> Result<OpenSockets, SocketError> {
    let (mut sockets, mut missing) = (Vec::new(), Vec::new());
    for (format, addresses) in [
        (InputFormat::Sflow, &config.sflow),
        (InputFormat::Ipfix, &config.ipfix),
        (InputFormat::Fireflies, &config.fireflies),
    ] {
        for address in addresses {
            match bind(format, *address, config.receive_buffer_bytes) {
                Ok(socket) => sockets.push(socket),
                Err(source) => {
                    let format = format.as_str();
                    let error = SocketError { format, address: *address, source };
                    if config.required {
                        return Err(error);
                    }
                    tracing::warn!("{error}; going on without it");
                    missing.push(error.to_string());
                }
            }
        }
    }
    Ok((sockets, missing))
}

fn bind(
    format: InputFormat,
    address: SocketAddr,
    buffer_bytes: usize,
) -> io::Result<(DatagramReceiver, Arc<InputSocket>)> {
    let receiver = DatagramReceiver::bind(address, buffer_bytes, RECEIVE_TIMEOUT)?;
    if receiver.buffer_bytes() < buffer_bytes {
        tracing::warn!(
            "the kernel keeps {} bytes for {} instead of {buffer_bytes}: raise net.core.rmem_max",
            receiver.buffer_bytes(),
            format.as_str()
        );
    }
    let input = Arc::new(InputSocket {
        format,
        address: receiver.local_addr()?,
        buffer_bytes: receiver.buffer_bytes(),
        datagrams: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
        kernel_drops: AtomicU64::new(0),
        refused: AtomicU64::new(0),
        errors: AtomicU64::new(0),
        drained_ns: AtomicU64::new(0),
    });
    Ok((receiver, input))
}

/// Receives datagrams until the service ends.
pub(crate) fn run(
    mut receiver: DatagramReceiver,
    input: &InputSocket,
    shared: &Shared,
    mut recorder: Option<Recorder>,
) {
    let mut last_log: Option<Instant> = None;
    let mut log = |line: String| {
        if last_log.is_none_or(|last_log| last_log.elapsed() >= LOG_INTERVAL) {
            tracing::warn!("{line}");
            last_log = Some(Instant::now());
        }
    };
    while !shared.stopping.load(Ordering::Relaxed) {
        let begun = shared.now();
        match receiver.receive() {
            Ok(_) => {
                let last = receive_datagrams(&receiver, input, shared, recorder.as_mut());
                if receiver.is_drained() {
                    let since = last.unwrap_or_else(|| input.drained());
                    // Until now: this thread may have been stopped within the call.
                    note_drops(&mut receiver, input, shared, (since, shared.now()));
                    input.set_drained(begun);
                } else if let Some(last) = last {
                    input.set_drained(last);
                }
            }
            Err(error) => {
                input.errors.fetch_add(1, Ordering::Relaxed);
                log(format!("{} on {}: {error}", input.format.as_str(), input.address));
                // No second waits for a socket with errors.
                input.set_drained(begun);
                std::thread::sleep(ERROR_PAUSE);
            }
        }
        recorder.iter_mut().for_each(Recorder::flush_stale);
        let drops = receiver.dropped();
        if drops > input.kernel_drops.swap(drops, Ordering::Relaxed) {
            log(format!(
                "{} on {}: the kernel has dropped {drops} datagrams because they came faster than they were taken",
                input.format.as_str(),
                input.address
            ));
        }
    }
    input.set_drained(Duration::MAX);
}

/// Records the datagrams dropped after the last received one.
fn note_drops(
    receiver: &mut DatagramReceiver,
    input: &InputSocket,
    shared: &Shared,
    (from, to): (Duration, Duration),
) {
    let dropped = receiver.dropped_since().unwrap_or(0);
    if dropped > 0 && input.is_of_traffic() {
        let line = shared.timeline();
        shared.arrivals().note_drops(&line, from, to, dropped);
    }
}

/// Time in which the kernel received a datagram, by the age of its timestamp, clamped between
/// `drained`, when the socket was empty, and `now`. The bounds hold if the wall clock was set
/// meanwhile.
fn received(stamp: Option<Duration>, wall: Duration, now: Duration, drained: Duration) -> Duration {
    let age = stamp.map_or(Duration::ZERO, |stamp| wall.saturating_sub(stamp));
    now.saturating_sub(age).clamp(drained.min(now), now)
}

/// Passes datagrams to the intake and returns the time of the last one.
fn receive_datagrams(
    receiver: &DatagramReceiver,
    input: &InputSocket,
    shared: &Shared,
    recorder: Option<&mut Recorder>,
) -> Option<Duration> {
    let (mut datagrams, mut bytes, mut refused) = (0, 0, 0);
    let (now, wall) = (shared.now(), Duration::from_secs_f64(unix_now()));
    let line = shared.timeline();
    let mut last = input.drained();
    let mut sink = IntakeSink { shared, line: &line, at: now, number: 0, wall_s: 0.0, recorder };
    let mut intake = shared.intake();
    let open_from = shared.open_from.load(Ordering::Relaxed);
    for datagram in receiver.datagrams() {
        let at = received(datagram.received_at, wall, now, last);
        if datagram.dropped_before > 0 && input.is_of_traffic() {
            shared.arrivals().note_drops(&line, last, at, datagram.dropped_before);
        }
        last = at;
        datagrams += 1;
        bytes += datagram.bytes.len() as u64;
        let number = line.number(at);
        if number < open_from {
            shared.late_datagrams.fetch_add(1, Ordering::Relaxed);
        }
        sink.at = at;
        sink.number = number.max(open_from);
        sink.wall_s = line.wall_s(at);
        intake.aggregator.select(sink.number);
        let good = match input.format {
            InputFormat::Sflow => {
                intake.sflow(at, datagram.from, datagram.bytes, &mut sink).is_ok()
            }
            InputFormat::Ipfix => {
                intake.export(at, datagram.from, datagram.bytes, &mut sink).is_ok()
            }
            InputFormat::Fireflies => {
                intake.firefly(at, datagram.from, datagram.bytes, &mut sink).is_ok()
            }
        };
        refused += u64::from(!good);
    }
    drop(intake);
    input.datagrams.fetch_add(datagrams, Ordering::Relaxed);
    input.bytes.fetch_add(bytes, Ordering::Relaxed);
    input.refused.fetch_add(refused, Ordering::Relaxed);
    (datagrams > 0).then_some(last)
}

/// Receives the events of the intake: names, counters and samples.
struct IntakeSink<'a> {
    shared: &'a Shared,
    line: &'a ClockTimeline,
    /// Time in which the datagram was received, its second, and the same by the wall clock.
    at: Duration,
    number: u64,
    wall_s: f64,
    recorder: Option<&'a mut Recorder>,
}

impl IntakeSink<'_> {
    fn record(&mut self, exporter: &Exporter, seen: &Observation, verdict: ScitagVerdict) {
        let time_us = (self.wall_s * 1e6) as i64;
        if let Some(recorder) = &mut self.recorder {
            recorder.put(SampleRecord::new(time_us, exporter, seen, verdict));
        }
    }
}

impl Sink for IntakeSink<'_> {
    fn datagram(&mut self, _: &Exporter, arrival: Arrival) {
        // A late datagram is not missing, and a restarted agent was away.
        let missing = match arrival {
            Arrival::Start => true,
            Arrival::Next { missing } => missing > 0,
            Arrival::Late | Arrival::Duplicate => false,
        };
        self.shared.arrivals().record(self.at, self.number, missing);
    }

    #[inline]
    fn observation(&mut self, exporter: &Exporter, seen: &Observation, verdict: ScitagVerdict) {
        if self.recorder.is_some() {
            self.record(exporter, seen, verdict);
        }
    }

    fn discarded(&mut self, exporter: &Exporter, seen: &Observation, verdict: ScitagVerdict) {
        if self.recorder.is_some() {
            self.record(exporter, seen, verdict);
        }
    }

    fn counters(&mut self, exporter: &Exporter, source: Source, record: &CounterRecord<'_>) {
        match record {
            CounterRecord::HostId(host) => {
                let known = self.shared.directory().get(exporter.id).is_some_and(|e| e.host);
                if !known {
                    let name = host.hostname.to_string();
                    self.shared.change_directory(|directory| directory.host(exporter, &name));
                }
            }
            CounterRecord::PortName(port) if source.class == 0 => {
                let name = port.name.to_string();
                let known = self.shared.directory();
                if !known.has_interface(exporter.id, source.index, &name) {
                    drop(known);
                    self.shared.change_directory(|directory| {
                        directory.interface(exporter, source.index, &name);
                    });
                }
            }
            _ => {}
        }
    }

    fn interval(&mut self, exporter: &Exporter, index: u32, interval: &CounterInterval) {
        let Some(state) = exporter.interface(index) else { return };
        let octets = [interval.input.octets, interval.output.octets];
        let rate = exporter.sampling_rate;
        // Octets of a direction that is not sampled would add other traffic to the total than that
        // of the samples.
        let sampled = [state.is_sampled(true, rate), state.is_sampled(false, rate)];
        let counted = CountedInterval::new(
            (exporter.id, index),
            self.line.wall_s(self.at),
            interval.length.as_secs_f64(),
            octets,
            sampled,
        );
        self.shared.live_mut().count(counted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_datagram_keeps_its_time() {
        let seconds = Duration::from_secs;
        // Stopped for 12 s: the kernel's timestamps count.
        assert_eq!(
            received(Some(seconds(1_003)), seconds(1_012), seconds(42), seconds(30)),
            seconds(33)
        );
        // The wall clock was set by an hour meanwhile, either way.
        assert_eq!(
            received(Some(seconds(1_003)), seconds(4_612), seconds(42), seconds(30)),
            seconds(30)
        );
        assert_eq!(
            received(Some(seconds(5_003)), seconds(1_012), seconds(42), seconds(30)),
            seconds(42)
        );
        assert_eq!(received(None, seconds(1_012), seconds(42), seconds(30)), seconds(42));
    }
}
