//! State shared by all threads of one session: keys, options, buffers, pacing, streams and
//! measurements.
//!
//! [`crate::sender`] and [`crate::sink`] handle the files of an end. Locks are held briefly, never
//! across I/O.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use penstock_host::placement::{self, NumaPlacement, Placement};
use penstock_protocol::control::{Report, Settings};
use penstock_protocol::open::{Options, SessionId};
use penstock_protocol::pace::{PaceTicket, Pacer};
use penstock_protocol::proof::{Authenticator, Nonces, SessionKey};
use penstock_protocol::sender::StreamId;
use penstock_sys::buffer::BufferPool;
use penstock_sys::event::Event;
use penstock_sys::machine;
use penstock_sys::net::TcpInfo;

use crate::channel::Channel;
use crate::firefly::{Fireflies, FireflyCounters};
use crate::transport::Transport;

/// Default number of data streams.
pub const STREAMS_DEFAULT: u16 = 4;

/// Smallest pool, in blocks, with which a session makes progress.
pub const BLOCKS_MIN: u64 = 4;

/// Limit of data streams of one session.
pub const STREAMS_MAX: u16 = 256;

/// Limit of reader or writer threads of one session per device.
pub const THREADS_PER_DEVICE_MAX: u16 = 64;

/// Time after which a connection whose peer neither answers nor acknowledges is dead.
pub const PEER_TIMEOUT: Duration = Duration::from_secs(15);

/// Time without acknowledgement after which a stream has lost its path, if others of its session are
/// answered.
const SILENT_TIMEOUT_MS: u32 = 3_000;

/// Margin over the other streams: streams on one shared path fall silent together.
const SILENT_MARGIN_MS: u32 = 1_000;

/// Locks a mutex and ignores poisoning: the guarded state is valid at every step.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn pin_to(home: &Placement) {
    // The processors are unknown on a machine with too many of them.
    if !home.cpus.is_empty()
        && let Err(error) = placement::pin(&home.cpus)
    {
        tracing::warn!("a thread stays where it is: {error}");
    }
}

/// Final state of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionOutcome {
    /// Every file that could be copied is durable.
    Finished,
    /// Stopped by a user or operator, for this reason.
    Cancelled(String),
    /// Failed, for this reason.
    Failed(String),
}

/// Rate limit that several sessions may share.
#[derive(Debug)]
pub struct SharedPacer {
    pacer: Mutex<Pacer>,
    clock: Instant,
}

impl SharedPacer {
    /// Creates a limit in bits per second, or none.
    #[must_use]
    pub fn new(rate_bps: Option<u64>) -> Self {
        Self { pacer: Mutex::new(Pacer::new(rate_bps, Duration::ZERO)), clock: Instant::now() }
    }

    /// Sets the limit in bits per second; `None` for unlimited.
    pub fn set(&self, rate_bps: Option<u64>) {
        lock(&self.pacer).set_rate(rate_bps, self.clock.elapsed());
    }

    /// Limit in bits per second; `None` if unlimited.
    #[must_use]
    pub fn rate_bps(&self) -> Option<u64> {
        lock(&self.pacer).rate_bps()
    }

    fn reserve(&self, bytes: usize) -> PaceTicket {
        lock(&self.pacer).reserve(bytes as u64, self.clock.elapsed())
    }

    fn refund(&self, bytes: usize) {
        lock(&self.pacer).refund(bytes as u64);
    }

    fn remaining(&self, ticket: PaceTicket) -> Duration {
        lock(&self.pacer).wait(ticket, self.clock.elapsed())
    }
}

/// Measurements of one end.
#[derive(Debug, Default)]
pub struct Meter {
    /// Stream time spent waiting for blocks to send or buffers to receive into.
    pub waited_storage_us: AtomicU64,
    /// Stream time spent in the socket.
    pub waited_network_us: AtomicU64,
    /// Stream time spent waiting for the rate limit.
    pub waited_rate_us: AtomicU64,
    /// Payload bytes sent or received.
    pub network_bytes: AtomicU64,
    /// Number of blocks sent again.
    pub repeated: AtomicU64,
    /// Number of lost streams.
    pub streams_lost: AtomicU64,
    ended: Mutex<TcpTotals>,
}

/// Sum of the kernel's measurements over connections.
#[derive(Debug, Clone, Copy, Default)]
struct TcpTotals {
    retransmits: u64,
    window_us: u64,
    buffer_us: u64,
    /// Minimum over the connections, not a sum.
    rtt_us: Option<u32>,
}

impl TcpTotals {
    fn and(self, info: &TcpInfo) -> Self {
        let rtt_us = Some(info.rtt_min_us).filter(|rtt| *rtt > 0);
        Self {
            retransmits: self.retransmits + u64::from(info.retransmits),
            window_us: self.window_us + info.rwnd_limited_us,
            buffer_us: self.buffer_us + info.sndbuf_limited_us,
            rtt_us: self.rtt_us.into_iter().chain(rtt_us).min(),
        }
    }
}

/// Adds the time since `start` to `counter`, in microseconds.
pub fn add_since(counter: &AtomicU64, start: Instant) {
    let elapsed = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
    counter.fetch_add(elapsed, Ordering::Relaxed);
}

/// Progress of a stream.
#[derive(Debug, Clone, Copy)]
pub struct StreamProgress {
    /// Bytes acknowledged by the peer.
    pub arrived: u64,
    /// Set when bytes are in flight or queued.
    pub is_under_way: bool,
    /// Set when the stream will send no more.
    pub is_finished: bool,
}

/// Connected data stream.
#[derive(Debug)]
struct DataStream {
    transport: Transport,
    /// Set when its data must be sent again.
    broken: bool,
    /// Set when it will send no more.
    finished: bool,
}

impl DataStream {
    fn abort(&mut self) {
        self.broken = true;
        self.transport.abort();
    }
}

/// State shared by the threads of one session.
#[derive(Debug)]
pub struct Session {
    /// Identifier of the session.
    pub id: SessionId,
    /// Options of the copy.
    pub options: Options,
    /// Buffers of one block each.
    pub pool: BufferPool,
    /// Rate limit of the session.
    pub pace: SharedPacer,
    /// Rate limit shared with other sessions of this process.
    pub shared_pace: Option<Arc<SharedPacer>>,
    /// Measurements of this end.
    pub meter: Meter,
    /// Wakes the control connection's thread.
    pub wake: Event,
    /// Reporter of its streams, if this end sends with a scitag.
    pub fireflies: Option<Fireflies>,
    /// Placement of its threads, if configured.
    homes: Option<NumaPlacement>,
    /// Time of the session's start.
    pub started: Instant,
    /// Requested number of streams.
    pub wanted_streams: AtomicU16,
    streams_peak: AtomicU16,
    key: SessionKey,
    streams: Mutex<BTreeMap<StreamId, DataStream>>,
    ending: Mutex<Option<SessionOutcome>>,
    over: AtomicBool,
    peer: Mutex<Report>,
    engine: Mutex<String>,
    label: Mutex<String>,
    settings_for_peer: Mutex<Option<Settings>>,
    cpu_at_start: Duration,
    busy: Mutex<Busy>,
}

#[derive(Debug, Default)]
struct Busy {
    last: Option<(u64, u64)>,
    permille: u16,
}

impl Session {
    /// Creates a session without connections. Its pool holds `memory_bytes` of blocks.
    ///
    /// # Errors
    /// If the process is out of file descriptors.
    pub fn new(
        id: SessionId,
        key: SessionKey,
        options: Options,
        memory_bytes: u64,
        shared_pace: Option<Arc<SharedPacer>>,
    ) -> std::io::Result<Self> {
        let block = options.block_bytes as usize;
        let count = (memory_bytes / block as u64).max(BLOCKS_MIN);
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let rate = options.settings.rate_bps.filter(|rate| *rate > 0);
        let streams = options.settings.streams.unwrap_or(STREAMS_DEFAULT);
        Ok(Self {
            id,
            pool: BufferPool::new(count, block),
            pace: SharedPacer::new(rate),
            shared_pace,
            meter: Meter::default(),
            wake: Event::new()?,
            fireflies: Fireflies::new(options.mark, &[], Arc::default()),
            homes: None,
            started: Instant::now(),
            wanted_streams: AtomicU16::new(streams.clamp(1, STREAMS_MAX)),
            streams_peak: AtomicU16::new(0),
            options,
            key,
            streams: Mutex::default(),
            ending: Mutex::default(),
            over: AtomicBool::new(false),
            peer: Mutex::default(),
            engine: Mutex::default(),
            label: Mutex::default(),
            settings_for_peer: Mutex::default(),
            cpu_at_start: machine::process_cpu(),
            busy: Mutex::default(),
        })
    }

    /// Sends fireflies to these collectors too, and counts them in `counts`.
    #[must_use]
    pub fn with_collectors(
        mut self,
        collectors: &[SocketAddr],
        counts: &Arc<FireflyCounters>,
    ) -> Self {
        self.fireflies = Fireflies::new(self.options.mark, collectors, Arc::clone(counts));
        self
    }

    /// Sets the placement of its threads.
    #[must_use]
    pub fn with_homes(mut self, homes: Option<NumaPlacement>) -> Self {
        self.homes = homes;
        self
    }

    /// Pins the calling thread, which works with files of this device (`st_dev`), near the transfer's
    /// interface, else near the disk.
    pub fn pin_near_disk(&self, device: u64) {
        if let Some(homes) = &self.homes {
            pin_to(&homes.of_files(Some(device)));
        }
    }

    /// Pins the calling thread near the interface of its connection.
    pub fn pin_near_nic(&self, transport: &Transport) {
        if let (Some(homes), Some(address)) = (&self.homes, transport.own_address()) {
            pin_to(&homes.of_address(address));
        }
    }

    /// Records how this end labels its packets, or why it does not.
    pub fn set_label(&self, label: String) {
        *lock(&self.label) = label;
    }

    /// Secret key of the session.
    #[must_use]
    pub fn key(&self) -> &SessionKey {
        &self.key
    }

    /// Returns the authenticator of a stream in integrity mode.
    #[must_use]
    pub fn authenticator(&self, stream: StreamId, nonces: &Nonces) -> Authenticator {
        self.key.authenticator(&self.id, stream, nonces)
    }

    /// Wakes the control connection's thread.
    pub fn wake_control(&self) {
        // The thread polls again after a while even if this fails.
        let _ = self.wake.signal();
    }

    /// Ends the session and its streams, unless it has already ended.
    pub fn end(&self, ending: SessionOutcome) {
        let abrupt = ending != SessionOutcome::Finished;
        lock(&self.ending).get_or_insert(ending);
        self.over.store(true, Ordering::SeqCst);
        if abrupt {
            self.pool.close();
            lock(&self.streams).values().for_each(|stream| stream.transport.shut_down());
        }
        self.wake_control();
    }

    /// True once the session has ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Final state, once it has ended.
    #[must_use]
    pub fn ending(&self) -> Option<SessionOutcome> {
        lock(&self.ending).clone()
    }

    /// Adds a connected stream. Returns false if the session is over or has a stream of that number.
    ///
    /// # Errors
    /// If the process is out of file descriptors.
    pub fn add_stream(&self, stream: StreamId, transport: &Transport) -> std::io::Result<bool> {
        let handle = transport.try_clone()?;
        let mut streams = lock(&self.streams);
        if self.is_over() || streams.contains_key(&stream) {
            return Ok(false);
        }
        streams.insert(stream, DataStream { transport: handle, broken: false, finished: false });
        let count = u16::try_from(streams.len()).unwrap_or(u16::MAX);
        self.streams_peak.fetch_max(count, Ordering::Relaxed);
        Ok(true)
    }

    /// Removes a stream and keeps its kernel measurements.
    pub fn remove_stream(&self, stream: StreamId) {
        let mut streams = lock(&self.streams);
        let removed = streams.remove(&stream);
        if let Some(Ok(info)) = removed.map(|stream| TcpInfo::of(&stream.transport)) {
            let mut ended = lock(&self.meter.ended);
            *ended = ended.and(&info);
        }
    }

    /// Breaks every stream of the session.
    pub fn break_streams(&self) {
        lock(&self.streams).values_mut().for_each(DataStream::abort);
    }

    /// Breaks the newest stream in favour of another transfer; its data is sent again on another.
    pub fn break_newest_stream(&self) {
        if let Some(mut last) = lock(&self.streams).last_entry() {
            last.get_mut().abort();
        }
    }

    /// Progress of a stream according to TCP.
    #[must_use]
    pub fn progress_of(&self, stream: StreamId) -> Option<StreamProgress> {
        let streams = lock(&self.streams);
        let stream = streams.get(&stream)?;
        let info = TcpInfo::of(&stream.transport).ok()?;
        Some(StreamProgress {
            arrived: info.bytes_acked,
            is_under_way: info.unacked_segments > 0 || info.notsent_bytes > 0,
            is_finished: stream.finished,
        })
    }

    /// Breaks streams whose path is dead while others live, so that their data is sent again before
    /// [`PEER_TIMEOUT`].
    pub fn break_silent_streams(&self) {
        let mut streams = lock(&self.streams);
        let of = |stream: &DataStream| TcpInfo::of(&stream.transport).unwrap_or_default();
        let infos: Vec<_> = streams.values().map(of).collect();
        for (silent, stream) in find_silent(&infos).into_iter().zip(streams.values_mut()) {
            if silent && !stream.broken {
                let peer = stream.transport.peer();
                tracing::info!("nothing is acknowledged by {peer}: its stream ends");
                stream.abort();
            }
        }
    }

    /// Peak number of connected streams.
    #[must_use]
    pub fn streams_peak(&self) -> u16 {
        self.streams_peak.load(Ordering::Relaxed)
    }

    /// Number of connected streams.
    #[must_use]
    pub fn stream_count(&self) -> u16 {
        u16::try_from(lock(&self.streams).len()).unwrap_or(u16::MAX)
    }

    /// Waits until both rate limits allow `bytes` on this channel, or the session is over.
    ///
    /// # Errors
    /// If the channel breaks meanwhile.
    pub fn wait_for_pace(&self, bytes: usize, channel: &Channel) -> io::Result<()> {
        let own = self.pace.reserve(bytes);
        let shared = self.shared_pace.as_ref().map(|pace| (pace, pace.reserve(bytes)));
        let left = || {
            let shared =
                shared.as_ref().map_or(Duration::ZERO, |(pace, ticket)| pace.remaining(*ticket));
            self.pace.remaining(own).max(shared)
        };
        let mut wait = left();
        if wait.is_zero() {
            return Ok(());
        }
        let start = Instant::now();
        let mut broken = false;
        while !wait.is_zero() && !self.is_over() {
            // Short steps, to notice a new rate and the end of session or stream.
            std::thread::sleep(wait.min(Duration::from_millis(100)));
            if channel.is_broken()? {
                self.pace.refund(bytes);
                self.shared_pace.iter().for_each(|pace| pace.refund(bytes));
                broken = true;
                break;
            }
            wait = left();
        }
        add_since(&self.meter.waited_rate_us, start);
        if broken { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(()) }
    }

    /// Bytes per call of [`Session::wait_for_pace`]: small at a low rate, so that they are spaced
    /// evenly.
    #[must_use]
    pub fn part_bytes(&self) -> usize {
        const PART_BYTES: std::ops::RangeInclusive<u64> = 64 << 10..=1 << 20;
        const PARTS_PER_SECOND: u64 = 50;
        let shared = self.shared_pace.as_ref().and_then(|pace| pace.rate_bps());
        let rate_bps = self.pace.rate_bps().into_iter().chain(shared).min().unwrap_or(u64::MAX);
        let bytes = rate_bps / 8 / PARTS_PER_SECOND;
        usize::try_from(bytes.clamp(*PART_BYTES.start(), *PART_BYTES.end())).unwrap_or(usize::MAX)
    }

    /// Longest wait between two parts of one stream at this rate.
    #[must_use]
    pub fn part_interval(&self) -> Duration {
        let rate_bps = self.pace.rate_bps().map_or(u64::MAX, |rate| rate.max(1));
        let bytes = self.part_bytes() as u64 * u64::from(self.stream_count());
        Duration::from_secs(bytes.saturating_mul(8) / rate_bps)
    }

    /// Records that a stream has sent all its data and waits for acknowledgement.
    pub fn finish_stream(&self, stream: StreamId) {
        if let Some(stream) = lock(&self.streams).get_mut(&stream) {
            stream.finished = true;
        }
    }

    /// Breaks a stream; its data is sent again on another.
    pub fn break_stream(&self, stream: StreamId) {
        if let Some(stream) = lock(&self.streams).get_mut(&stream) {
            stream.abort();
        }
    }

    /// True if a stream was broken here: acknowledgements for it are not expected.
    #[must_use]
    pub fn is_broken(&self, stream: StreamId) -> bool {
        lock(&self.streams).get(&stream).is_some_and(|stream| stream.broken)
    }

    /// Records a storage engine; adds it if files lie on several file systems.
    pub fn record_engine(&self, name: &str) {
        let mut engine = lock(&self.engine);
        if engine.is_empty() {
            name.clone_into(&mut engine);
        } else if !engine.split(", ").any(|known| known == name) {
            engine.push_str(", ");
            engine.push_str(name);
        }
    }

    /// Storage engines of this end, separated by commas.
    #[must_use]
    pub fn engine(&self) -> String {
        lock(&self.engine).clone()
    }

    /// Stores a report of the peer.
    pub fn set_peer(&self, report: Report) {
        *lock(&self.peer) = report;
    }

    /// Last report of the peer.
    #[must_use]
    pub fn peer(&self) -> Report {
        lock(&self.peer).clone()
    }

    /// Applies settings to this end; the control connection sends them to the other.
    pub fn apply(&self, settings: &Settings) {
        if let Some(rate) = settings.rate_bps {
            self.pace.set(Some(rate).filter(|rate| *rate > 0));
        }
        if let Some(streams) = settings.streams {
            self.wanted_streams.store(streams.clamp(1, STREAMS_MAX), Ordering::SeqCst);
        }
        self.wake_control();
    }

    /// Applies settings to this end and queues them for the other.
    pub fn change(&self, settings: Settings) {
        self.apply(&settings);
        *lock(&self.settings_for_peer) = Some(settings);
        self.wake_control();
    }

    /// Takes the settings to send to the peer.
    pub fn take_settings_for_peer(&self) -> Option<Settings> {
        lock(&self.settings_for_peer).take()
    }

    /// TCP segments retransmitted by this host.
    #[must_use]
    pub fn retransmits(&self) -> u64 {
        self.tcp().retransmits
    }

    fn tcp(&self) -> TcpTotals {
        // Lock order: streams, then ended.
        let streams = lock(&self.streams);
        let ended = *lock(&self.meter.ended);
        let live = streams.values().filter_map(|stream| TcpInfo::of(&stream.transport).ok());
        live.fold(ended, |sum, info| sum.and(&info))
    }

    /// Current measurements of this end.
    #[must_use]
    pub fn report(&self) -> Report {
        let cpu = machine::process_cpu().saturating_sub(self.cpu_at_start);
        let tcp = self.tcp();
        Report {
            cpu_us: u64::try_from(cpu.as_micros()).unwrap_or(u64::MAX),
            machine_busy_permille: self.machine_busy_permille(),
            retransmits: tcp.retransmits,
            streams: self.stream_count(),
            engine: self.engine(),
            label: lock(&self.label).clone(),
            waited_storage_us: self.meter.waited_storage_us.load(Ordering::Relaxed),
            waited_network_us: self.meter.waited_network_us.load(Ordering::Relaxed),
            waited_window_us: tcp.window_us,
            waited_buffer_us: tcp.buffer_us,
            rtt_us: tcp.rtt_us.unwrap_or(0),
        }
    }

    fn machine_busy_permille(&self) -> u16 {
        let mut busy = lock(&self.busy);
        let Some(now) = machine::machine_busy() else { return 0 };
        let last = busy.last.unwrap_or(now);
        let total = now.1.saturating_sub(last.1);
        // A few clock ticks say nothing; keep the previous value.
        if busy.last.is_none() || total >= 20 {
            let share = (now.0.saturating_sub(last.0) * 1000).checked_div(total);
            if let Some(share) = share {
                busy.permille = u16::try_from(share).unwrap_or(1000).min(1000);
            }
            busy.last = Some(now);
        }
        busy.permille
    }
}

/// For each connection, true if it waits for acknowledgements in vain while others receive them.
fn find_silent(infos: &[TcpInfo]) -> Vec<bool> {
    let last_heard_ms = infos.iter().map(|info| info.last_acknowledged_ms).min().unwrap_or(0);
    let limit = SILENT_TIMEOUT_MS.max(last_heard_ms.saturating_add(SILENT_MARGIN_MS));
    let is_silent = |i: &TcpInfo| i.unacked_segments > 0 && i.last_acknowledged_ms > limit;
    infos.iter().map(is_silent).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unacknowledged_stream_silent_beside_live_ones() {
        let info = |unacked_segments, last_acknowledged_ms| TcpInfo {
            unacked_segments,
            last_acknowledged_ms,
            ..TcpInfo::default()
        };
        let of = |infos: &[(u32, u32)]| {
            find_silent(&infos.iter().map(|(unacked, ms)| info(*unacked, *ms)).collect::<Vec<_>>())
        };
        assert_eq!(of(&[(9, 3_001), (9, 10), (0, 9_000)]), [true, false, false]);
        // The others have nothing left to send, and were answered later.
        assert_eq!(of(&[(9, 5_000), (0, 3_500)]), [true, false]);
        // All at once: the shared path is interrupted.
        assert_eq!(of(&[(9, 8_000), (9, 7_900), (1, 8_200)]), [false; 3]);
        assert_eq!(of(&[(9, 60_000)]), [false]);
        assert_eq!(of(&[]), [false; 0]);
    }
}
