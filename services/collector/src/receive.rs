//! Threads that receive datagrams from the kernel and pass them to their shard of the intake.
//!
//! Each listening address has a socket for every thread, and the kernel gives each datagram to the
//! thread of its exporter ([`crate::steering`]). Fireflies are few: the first thread receives them.
//! A thread never ends on errors: malformed datagrams are counted, and errors of a socket are
//! logged once a minute.
//!
//! A datagram belongs to the second in which the kernel received it, no matter how long it waited
//! in the socket. Each thread publishes the time up to which its sockets are drained; a second is
//! closed when all sockets are drained beyond its end.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use penstock_flows::shard::SteeringKind;
use penstock_sys::event::{Interest, Readiness, poll};
use penstock_sys::net::DatagramReceiver;

use crate::archive::Recorder;
use crate::config::Config;
use crate::error::SocketError;
use crate::shard::{DatagramOutcome, Shard, TimedDatagram};
use crate::shared::{Shared, unix_now};
use crate::steering;

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

    /// Address by which datagrams are given to threads; `None` if the first thread receives all.
    pub(crate) fn steering(self) -> Option<SteeringKind> {
        match self {
            Self::Sflow => Some(SteeringKind::Agent),
            Self::Ipfix => Some(SteeringKind::Source),
            Self::Fireflies => None,
        }
    }
}

/// A listening address with the counters of its sockets.
#[derive(Debug)]
pub struct ListeningAddress {
    /// Telemetry that it receives.
    pub format: InputFormat,
    /// Local address and port.
    pub address: SocketAddr,
    /// Receive buffer of the kernel in bytes, of each socket.
    pub buffer_bytes: usize,
    /// Counters of each socket, by the number of its thread.
    pub sockets: Box<[SocketCounters]>,
}

/// Counters of one socket. Aligned, so that no two threads write to the same cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct SocketCounters {
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

impl SocketCounters {
    fn drained(&self) -> Duration {
        Duration::from_nanos(self.drained_ns.load(Ordering::Acquire))
    }

    fn set_drained(&self, until: Duration) {
        let nanos = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
        self.drained_ns.fetch_max(nanos, Ordering::Release);
    }
}

impl ListeningAddress {
    /// Sum of a counter over the sockets.
    #[must_use]
    pub fn sum(&self, of: impl Fn(&SocketCounters) -> &AtomicU64) -> u64 {
        self.sockets.iter().map(|socket| of(socket).load(Ordering::Relaxed)).sum()
    }

    /// Time up to which all received datagrams were processed.
    pub(crate) fn drained(&self) -> Duration {
        self.sockets.iter().map(SocketCounters::drained).min().unwrap_or(Duration::MAX)
    }
}

/// A socket of a thread.
#[derive(Debug)]
pub(crate) struct ThreadSocket {
    receiver: DatagramReceiver,
    input: Arc<ListeningAddress>,
    /// Position of its counters.
    number: usize,
    last_log: Option<Instant>,
}

/// Sockets that are open, by thread, and addresses that failed.
#[derive(Debug)]
pub(crate) struct OpenSockets {
    /// Listening addresses, in the order of the configuration.
    pub(crate) inputs: Vec<Arc<ListeningAddress>>,
    /// Sockets of each thread.
    pub(crate) threads: Vec<Vec<ThreadSocket>>,
    /// A line for each address that cannot be used.
    pub(crate) missing: Vec<String>,
}

/// Opens the configured sockets.
///
/// # Errors
/// When a required address cannot be used.
pub(crate) fn open(config: &Config) -> Result<OpenSockets, SocketError> {
    let (mut inputs, mut missing) = (Vec::new(), Vec::new());
    let mut threads: Vec<Vec<ThreadSocket>> = Vec::new();
    threads.resize_with(config.threads.max(1), Vec::new);
    for (format, addresses) in [
        (InputFormat::Sflow, &config.sflow),
        (InputFormat::Ipfix, &config.ipfix),
        (InputFormat::Fireflies, &config.fireflies),
    ] {
        for address in addresses {
            match bind(format, *address, config.receive_buffer_bytes, threads.len()) {
                Ok((sockets, input)) => {
                    for (number, receiver) in sockets.into_iter().enumerate() {
                        let input = Arc::clone(&input);
                        let socket = ThreadSocket { receiver, input, number, last_log: None };
                        threads[number].push(socket);
                    }
                    inputs.push(input);
                }
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
    Ok(OpenSockets { inputs, threads, missing })
}

/// Binds an address with a socket for each thread.
fn bind(
    format: InputFormat,
    address: SocketAddr,
    buffer_bytes: usize,
    threads: usize,
) -> io::Result<(Vec<DatagramReceiver>, Arc<ListeningAddress>)> {
    let first = DatagramReceiver::bind(address, buffer_bytes, RECEIVE_TIMEOUT)?;
    let mut sockets = vec![first];
    if let Some(kind) = format.steering().filter(|_| threads > 1) {
        // Without it the threads hand datagrams over to each other.
        if let Err(error) = share(&mut sockets, kind, buffer_bytes, threads) {
            tracing::warn!(
                "{} on {address}: the kernel does not steer datagrams to threads: {error}; they are handed over, which costs more processor time",
                format.as_str()
            );
        }
    }
    let kept = sockets.iter().map(DatagramReceiver::buffer_bytes).min().unwrap_or_default();
    if kept < buffer_bytes {
        tracing::warn!(
            "the kernel keeps {kept} bytes for {} instead of {buffer_bytes}: raise net.core.rmem_max",
            format.as_str()
        );
    }
    let input = Arc::new(ListeningAddress {
        format,
        address: sockets[0].local_addr()?,
        buffer_bytes: kept,
        sockets: sockets.iter().map(|_| SocketCounters::default()).collect(),
    });
    Ok((sockets, input))
}

/// Opens the sockets of the other threads. Datagrams that arrive before the program is attached are
/// handed over.
fn share(
    sockets: &mut Vec<DatagramReceiver>,
    kind: SteeringKind,
    buffer_bytes: usize,
    threads: usize,
) -> io::Result<()> {
    for _ in 1..threads {
        sockets.push(sockets[0].join(buffer_bytes, RECEIVE_TIMEOUT)?);
    }
    sockets[0].steer(&steering::program(kind, threads))
}

/// Receives datagrams until the service ends.
pub(crate) fn run(
    shard: &Shard,
    mut sockets: Vec<ThreadSocket>,
    shared: &Shared,
    recorder: Option<Recorder>,
) {
    shard.state().output.recorder = recorder;
    while !shared.stopping.load(Ordering::Relaxed) {
        let begun = shared.now();
        match &mut sockets[..] {
            [] => std::thread::sleep(RECEIVE_TIMEOUT),
            [only] => only.receive(shard, shared, begun, true),
            several => {
                let readable = wait(several);
                // Sockets without datagrams at the poll are drained up to its begin.
                for (socket, readiness) in several.iter_mut().zip(readable) {
                    if readiness.any() {
                        socket.receive(shard, shared, begun, false);
                    } else {
                        socket.counters().set_drained(begun);
                    }
                }
            }
        }
        let mut state = shard.state();
        shard.empty_inbox(shared, &mut state);
        state.output.recorder.iter_mut().for_each(Recorder::flush_stale);
    }
    sockets.iter().for_each(|socket| socket.counters().set_drained(Duration::MAX));
    // The writer of the archive ends when no recorder is left.
    shard.state().output.recorder = None;
}

/// Waits until a socket has datagrams. After an error each socket is tried.
fn wait(sockets: &[ThreadSocket]) -> Vec<Readiness> {
    let polled: Vec<_> =
        sockets.iter().map(|socket| (socket.receiver.as_fd(), Interest::READ)).collect();
    poll(&polled, Some(RECEIVE_TIMEOUT)).unwrap_or_else(|_| {
        std::thread::sleep(ERROR_PAUSE);
        vec![Readiness { readable: true, ..Readiness::default() }; sockets.len()]
    })
}

impl ThreadSocket {
    fn counters(&self) -> &SocketCounters {
        &self.input.sockets[self.number]
    }

    /// Logs a line, at most once in [`LOG_INTERVAL`].
    fn log(&mut self, event: impl std::fmt::Display) {
        if self.last_log.is_none_or(|last_log| last_log.elapsed() >= LOG_INTERVAL) {
            tracing::warn!("{} on {}: {event}", self.input.format.as_str(), self.input.address);
            self.last_log = Some(Instant::now());
        }
    }

    /// Receives and processes the datagrams of one system call; `begun` is a time before it.
    fn receive(&mut self, shard: &Shard, shared: &Shared, begun: Duration, blocks: bool) {
        let received =
            if blocks { self.receiver.receive() } else { self.receiver.receive_queued() };
        match received {
            Ok(_) => {
                let last = self.process(shard, shared);
                if self.receiver.is_drained() {
                    let since = last.unwrap_or_else(|| self.counters().drained());
                    // Until now: this thread may have been stopped within the call.
                    self.note_drops(shard, (since, shared.now()));
                    self.counters().set_drained(begun);
                } else if let Some(last) = last {
                    self.counters().set_drained(last);
                }
            }
            Err(error) => {
                self.counters().errors.fetch_add(1, Ordering::Relaxed);
                self.log(error);
                // No second waits for a socket with errors.
                self.counters().set_drained(begun);
                std::thread::sleep(ERROR_PAUSE);
            }
        }
        let (drops, thread) = (self.receiver.dropped(), self.number);
        if drops > self.counters().kernel_drops.swap(drops, Ordering::Relaxed) {
            self.log(format_args!(
                "the kernel has dropped {drops} datagrams of thread {thread} because they came faster than they were taken"
            ));
        }
    }

    /// Records the datagrams dropped after the last received one.
    fn note_drops(&mut self, shard: &Shard, (from, to): (Duration, Duration)) {
        let dropped = self.receiver.dropped_since().unwrap_or(0);
        if dropped > 0 && self.input.format.steering().is_some() {
            shard.state().note_drops(from, to, dropped);
        }
    }

    /// Passes datagrams to the shard and returns the time of the last one.
    fn process(&self, shard: &Shard, shared: &Shared) -> Option<Duration> {
        let (mut datagrams, mut bytes, mut refused) = (0, 0, 0);
        let (now, wall) = (shared.now(), Duration::from_secs_f64(unix_now()));
        let (format, counters) = (self.input.format, self.counters());
        let is_of_traffic = format.steering().is_some();
        let mut last = counters.drained();
        let mut state = shard.state();
        state.update_timeline(shared);
        // Fireflies of flows before their samples.
        shard.empty_inbox(shared, &mut state);
        for datagram in self.receiver.datagrams() {
            let at = received(datagram.received_at, wall, now, last);
            if datagram.dropped_before > 0 && is_of_traffic {
                state.note_drops(last, at, datagram.dropped_before);
            }
            datagrams += 1;
            bytes += datagram.bytes.len() as u64;
            let (from, content) = (datagram.from, datagram.bytes);
            let datagram = TimedDatagram { format, at, from, bytes: content };
            match shard.receive(shared, &mut state, datagram) {
                DatagramOutcome::Accepted => {}
                DatagramOutcome::Refused => refused += 1,
                DatagramOutcome::Dropped => state.note_drops(last, at, 1),
            }
            last = at;
        }
        drop(state);
        counters.datagrams.fetch_add(datagrams, Ordering::Relaxed);
        counters.bytes.fetch_add(bytes, Ordering::Relaxed);
        counters.refused.fetch_add(refused, Ordering::Relaxed);
        (datagrams > 0).then_some(last)
    }
}

/// Time in which the kernel received a datagram, by the age of its timestamp, clamped between
/// `drained`, when the socket was empty, and `now`. The bounds hold if the wall clock was set
/// meanwhile.
fn received(stamp: Option<Duration>, wall: Duration, now: Duration, drained: Duration) -> Duration {
    let age = stamp.map_or(Duration::ZERO, |stamp| wall.saturating_sub(stamp));
    now.saturating_sub(age).clamp(drained.min(now), now)
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
