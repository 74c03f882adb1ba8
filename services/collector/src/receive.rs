//! Threads that take datagrams from the kernel and bring them to the intake.
//!
//! A thread has one socket. Whatever comes, it goes on: what cannot be read is counted, and an error of the socket is
//! told once a minute.
//!
//! A datagram belongs to the second in which the kernel received it, however long it waited in the socket. Each thread
//! publishes until when its socket is drained; a second is closed when all are drained beyond its end.

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

use crate::archive::{Record, Recorder};
use crate::config::Config;
use crate::live::CountedInterval;
use crate::shared::{Shared, unix_now};
use crate::timeline::Timeline;

/// How long a thread waits before it publishes that its socket is drained, and looks whether the service ends.
const WAIT: Duration = Duration::from_millis(50);

/// After an error of the socket.
const ERROR_PAUSE: Duration = Duration::from_millis(200);

/// Between two lines about the same trouble.
pub(crate) const TELL_EVERY: Duration = Duration::from_secs(60);

/// What a socket takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// sFlow.
    Sflow,
    /// IPFIX and NetFlow.
    Ipfix,
    /// Fireflies.
    Fireflies,
}

impl Format {
    /// The word for it, in the configuration, too.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sflow => "sflow",
            Self::Ipfix => "ipfix",
            Self::Fireflies => "fireflies",
        }
    }
}

/// A socket as others see it.
#[derive(Debug)]
pub struct Input {
    /// What it takes.
    pub format: Format,
    /// Where.
    pub address: SocketAddr,
    /// What the kernel keeps for it.
    pub buffer_bytes: usize,
    /// Datagrams taken.
    pub datagrams: AtomicU64,
    /// Their bytes.
    pub bytes: AtomicU64,
    /// Datagrams that the kernel dropped.
    pub kernel_drops: AtomicU64,
    /// Datagrams that could not be read, or fireflies that are not believed.
    pub refused: AtomicU64,
    /// Errors of the socket.
    pub errors: AtomicU64,
    /// What the kernel received before this was taken, in nanoseconds since the collector's start.
    drained_ns: AtomicU64,
}

impl Input {
    /// What the kernel received before this moment was taken.
    pub(crate) fn drained(&self) -> Duration {
        Duration::from_nanos(self.drained_ns.load(Ordering::Acquire))
    }

    fn set_drained(&self, until: Duration) {
        let nanos = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
        self.drained_ns.fetch_max(nanos, Ordering::Release);
    }

    /// Whether it takes what exporters send of traffic.
    fn is_of_traffic(&self) -> bool {
        matches!(self.format, Format::Sflow | Format::Ipfix)
    }
}

/// Sockets that were opened, and a line for each that could not be.
pub(crate) type Opened = (Vec<(DatagramReceiver, Arc<Input>)>, Vec<String>);

/// Opens what the configuration says.
///
/// # Errors
/// With one line, where an input that cannot be had is an error.
pub(crate) fn open(config: &Config) -> Result<Opened, String> {
    let (mut sockets, mut missing) = (Vec::new(), Vec::new());
    for (format, addresses) in [
        (Format::Sflow, &config.sflow),
        (Format::Ipfix, &config.ipfix),
        (Format::Fireflies, &config.fireflies),
    ] {
        for address in addresses {
            match bind(format, *address, config.receive_buffer_bytes) {
                Ok(socket) => sockets.push(socket),
                Err(error) => {
                    let word = format.as_str();
                    let line = format!(
                        "cannot take {word} on UDP {address}: {error}: give another address in [collector] {word}, or [] for none"
                    );
                    if config.required {
                        return Err(line);
                    }
                    tracing::warn!("{line}; going on without it");
                    missing.push(line);
                }
            }
        }
    }
    Ok((sockets, missing))
}

fn bind(
    format: Format,
    address: SocketAddr,
    buffer_bytes: usize,
) -> io::Result<(DatagramReceiver, Arc<Input>)> {
    let receiver = DatagramReceiver::bind(address, buffer_bytes, WAIT)?;
    if receiver.buffer_bytes() < buffer_bytes {
        tracing::warn!(
            "the kernel keeps {} bytes for {} instead of {buffer_bytes}: raise net.core.rmem_max",
            receiver.buffer_bytes(),
            format.as_str()
        );
    }
    let input = Arc::new(Input {
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

/// Takes datagrams until the service ends.
pub(crate) fn run(
    mut receiver: DatagramReceiver,
    input: &Input,
    shared: &Shared,
    mut recorder: Option<Recorder>,
) {
    let mut told: Option<Instant> = None;
    let mut tell = |line: String| {
        if told.is_none_or(|told| told.elapsed() >= TELL_EVERY) {
            tracing::warn!("{line}");
            told = Some(Instant::now());
        }
    };
    while !shared.stopping.load(Ordering::Relaxed) {
        let begun = shared.now();
        match receiver.receive() {
            Ok(_) => {
                let last = take(&receiver, input, shared, recorder.as_mut());
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
                tell(format!("{} on {}: {error}", input.format.as_str(), input.address));
                // No second waits for a socket that gives nothing.
                input.set_drained(begun);
                std::thread::sleep(ERROR_PAUSE);
            }
        }
        recorder.iter_mut().for_each(Recorder::settle);
        let drops = receiver.dropped();
        if drops > input.kernel_drops.swap(drops, Ordering::Relaxed) {
            tell(format!(
                "{} on {}: the kernel has dropped {drops} datagrams because they came faster than they were taken",
                input.format.as_str(),
                input.address
            ));
        }
    }
    input.set_drained(Duration::MAX);
}

/// Notes what the kernel dropped after the last datagram that was taken.
fn note_drops(
    receiver: &mut DatagramReceiver,
    input: &Input,
    shared: &Shared,
    (from, to): (Duration, Duration),
) {
    let dropped = receiver.dropped_since().unwrap_or(0);
    if dropped > 0 && input.is_of_traffic() {
        let line = shared.timeline();
        shared.arrivals().note_drops(&line, from, to, dropped);
    }
}

/// The moment in which the kernel received a datagram: as long ago as its clock says, not before `drained`, when the socket
/// was empty, and not after `now`. The bounds hold where the wall clock was set meanwhile.
fn received(stamp: Option<Duration>, wall: Duration, now: Duration, drained: Duration) -> Duration {
    let age = stamp.map_or(Duration::ZERO, |stamp| wall.saturating_sub(stamp));
    now.saturating_sub(age).clamp(drained.min(now), now)
}

/// Brings datagrams to the intake; when the last one was received.
fn take(
    receiver: &DatagramReceiver,
    input: &Input,
    shared: &Shared,
    recorder: Option<&mut Recorder>,
) -> Option<Duration> {
    let (mut datagrams, mut bytes, mut refused) = (0, 0, 0);
    let (now, wall) = (shared.now(), Duration::from_secs_f64(unix_now()));
    let line = shared.timeline();
    let mut last = input.drained();
    let mut notes = Notes { shared, line: &line, at: now, number: 0, wall_s: 0.0, recorder };
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
        notes.at = at;
        notes.number = number.max(open_from);
        notes.wall_s = line.wall_s(at);
        intake.aggregator.select(notes.number);
        let good = match input.format {
            Format::Sflow => intake.sflow(at, datagram.from, datagram.bytes, &mut notes).is_ok(),
            Format::Ipfix => intake.export(at, datagram.from, datagram.bytes, &mut notes).is_ok(),
            Format::Fireflies => {
                intake.firefly(at, datagram.from, datagram.bytes, &mut notes).is_ok()
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

/// Takes names and counters on the way.
struct Notes<'a> {
    shared: &'a Shared,
    line: &'a Timeline,
    /// When the datagram was received, the second it belongs to, and what the wall clock calls that moment.
    at: Duration,
    number: u64,
    wall_s: f64,
    recorder: Option<&'a mut Recorder>,
}

impl Notes<'_> {
    fn record(&mut self, exporter: &Exporter, seen: &Observation, verdict: ScitagVerdict) {
        let time_us = (self.wall_s * 1e6) as i64;
        if let Some(recorder) = &mut self.recorder {
            recorder.put(Record::new(time_us, exporter, seen, verdict));
        }
    }
}

impl Sink for Notes<'_> {
    fn datagram(&mut self, _: &Exporter, arrival: Arrival) {
        // What comes late has come after all, and an agent that has started over was away.
        let missing = match arrival {
            Arrival::Start => true,
            Arrival::Next { missing } => missing > 0,
            Arrival::Late | Arrival::Duplicate => false,
        };
        self.shared.arrivals().take(self.at, self.number, missing);
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
        // Octets of what is not sampled would make a total of other traffic than that of the samples.
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
        // Stopped for 12 s: what waited came when the kernel says.
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
