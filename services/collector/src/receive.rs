//! Threads that take datagrams from the kernel and bring them to the intake.
//!
//! A thread has one socket. Whatever comes, it goes on: what cannot be read is counted, and an error of the socket is
//! told once a minute.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use penstock_flows::exporter::Exporter;
use penstock_flows::intake::Sink;
use penstock_flows::interface::Interval;
use penstock_flows::observe::Observation;
use penstock_flows::scitag::Verdict;
use penstock_flows::sflow::{CounterRecord, Source};
use penstock_sys::net::DatagramReceiver;

use crate::archive::{Record, Recorder};
use crate::config::Config;
use crate::shared::{Shared, unix_now};

/// How long a thread waits before it looks whether the service ends.
const WAIT: Duration = Duration::from_millis(200);

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
        match receiver.receive() {
            Ok(0) => {}
            Ok(_) => take(&receiver, input, shared, recorder.as_mut()),
            Err(error) => {
                input.errors.fetch_add(1, Ordering::Relaxed);
                tell(format!("{} on {}: {error}", input.format.as_str(), input.address));
                std::thread::sleep(WAIT);
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
}

fn take(
    receiver: &DatagramReceiver,
    input: &Input,
    shared: &Shared,
    recorder: Option<&mut Recorder>,
) {
    let (mut datagrams, mut bytes, mut refused) = (0, 0, 0);
    let now = shared.now();
    let mut notes = Notes { shared, wall_s: None, recorder };
    let mut intake = shared.intake();
    for (from, datagram) in receiver.datagrams() {
        datagrams += 1;
        bytes += datagram.len() as u64;
        let good = match input.format {
            Format::Sflow => intake.sflow(now, from, datagram, &mut notes).is_ok(),
            Format::Ipfix => intake.export(now, from, datagram, &mut notes).is_ok(),
            Format::Fireflies => intake.firefly(now, from, datagram, &mut notes).is_ok(),
        };
        refused += u64::from(!good);
    }
    drop(intake);
    input.datagrams.fetch_add(datagrams, Ordering::Relaxed);
    input.bytes.fetch_add(bytes, Ordering::Relaxed);
    input.refused.fetch_add(refused, Ordering::Relaxed);
}

/// Takes names and counters on the way.
struct Notes<'a> {
    shared: &'a Shared,
    wall_s: Option<f64>,
    recorder: Option<&'a mut Recorder>,
}

impl Notes<'_> {
    fn wall_s(&mut self) -> f64 {
        *self.wall_s.get_or_insert_with(unix_now)
    }

    fn record(&mut self, exporter: &Exporter, seen: &Observation, verdict: Verdict) {
        let time_us = (self.wall_s() * 1e6) as i64;
        if let Some(recorder) = &mut self.recorder {
            recorder.put(Record::new(time_us, exporter, seen, verdict));
        }
    }
}

impl Sink for Notes<'_> {
    #[inline]
    fn observation(&mut self, exporter: &Exporter, seen: &Observation, verdict: Verdict) {
        if self.recorder.is_some() {
            self.record(exporter, seen, verdict);
        }
    }

    fn discarded(&mut self, exporter: &Exporter, seen: &Observation, verdict: Verdict) {
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

    fn interval(&mut self, exporter: &Exporter, index: u32, interval: &Interval) {
        // Octets of what is not sampled would make a total of other traffic than that of the samples.
        let sampled = exporter.interface(index).map(|state| state.sampled);
        if sampled.is_none_or(|(input, output)| input.samples + output.samples == 0) {
            return;
        }
        let now_s = self.wall_s();
        let octets = (interval.input.octets, interval.output.octets);
        let length_s = interval.length.as_secs_f64();
        self.shared.live_mut().count(now_s, length_s, exporter.id, index, octets);
    }
}
