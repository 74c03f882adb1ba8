//! What both ends of one session share: its keys, options, buffers, pace, streams and measurements.
//!
//! For: state that many threads of one session look at. Not for: what an end does with files; that is
//! [`crate::sending`] and [`crate::receiving`]. Locks here are held for moments, never across I/O.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use penstock_host::placement::{self, Homes, Placement};
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
use crate::firefly::{Fireflies, Sent};
use crate::transport::Transport;

/// Data streams when nobody says how many.
pub const STREAMS_DEFAULT: u16 = 4;

/// Fewest blocks with which a session gets on.
pub const BLOCKS_MIN: u64 = 4;

/// Most data streams of one session.
pub const STREAMS_MAX: u16 = 256;

/// Most reader or writer threads of one session for each device.
pub const THREADS_PER_DEVICE_MAX: u16 = 64;

/// A connection whose peer neither answers nor acknowledges for this long is dead.
pub const DEAD_AFTER: Duration = Duration::from_secs(15);

/// A stream on which nothing is acknowledged for this long, while others of its session are answered, has lost its path.
const SILENT_AFTER_MS: u32 = 3_000;

/// By how much longer than the others: where one path carries them all, they fall silent together.
const SILENT_LONGER_MS: u32 = 1_000;

/// A lock that a panic of another thread does not take away: its state is valid at every step.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn settle(home: &Placement) {
    // Of a machine with too many processors nothing is known.
    if !home.cpus.is_empty()
        && let Err(error) = placement::pin(&home.cpus)
    {
        tracing::warn!("a thread stays where it is: {error}");
    }
}

/// How a session ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// Everything that could be copied is durable.
    Finished,
    /// Somebody stopped it, for this reason.
    Cancelled(String),
    /// It cannot go on, for this reason.
    Failed(String),
}

/// A rate limit that several sessions may share.
#[derive(Debug)]
pub struct Pace {
    pacer: Mutex<Pacer>,
    clock: Instant,
}

impl Pace {
    /// A limit in bits per second, or none.
    #[must_use]
    pub fn new(rate_bps: Option<u64>) -> Self {
        Self { pacer: Mutex::new(Pacer::new(rate_bps, Duration::ZERO)), clock: Instant::now() }
    }

    /// Changes the limit.
    pub fn set(&self, rate_bps: Option<u64>) {
        lock(&self.pacer).set_rate(rate_bps, self.clock.elapsed());
    }

    /// The limit in bits per second.
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

    fn left(&self, place: PaceTicket) -> Duration {
        lock(&self.pacer).wait(place, self.clock.elapsed())
    }
}

/// Measurements of one end, in microseconds where they are times.
#[derive(Debug, Default)]
pub struct Meter {
    /// Streams waited for blocks to send, or for buffers to receive into.
    pub waited_storage_us: AtomicU64,
    /// Streams waited in the socket.
    pub waited_network_us: AtomicU64,
    /// Streams waited for the rate limit.
    pub waited_rate_us: AtomicU64,
    /// Payload bytes over the network.
    pub network_bytes: AtomicU64,
    /// Blocks that were sent again.
    pub repeated: AtomicU64,
    /// Streams that broke.
    pub streams_lost: AtomicU64,
    ended: Mutex<Tcp>,
}

/// What the kernel measured of connections, all together.
#[derive(Debug, Clone, Copy, Default)]
struct Tcp {
    retransmits: u64,
    window_us: u64,
    buffer_us: u64,
    /// The smallest.
    rtt_us: Option<u32>,
}

impl Tcp {
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

/// Adds the time since `start` to a measurement.
pub fn add_since(counter: &AtomicU64, start: Instant) {
    let elapsed = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
    counter.fetch_add(elapsed, Ordering::Relaxed);
}

/// How far a stream is.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// Bytes that its peer has.
    pub arrived: u64,
    /// There are others on their way to it.
    pub is_under_way: bool,
    /// No others will follow.
    pub is_finished: bool,
}

/// A data stream that is connected.
#[derive(Debug)]
struct Stream {
    transport: Transport,
    /// What it carries is to be sent again.
    broken: bool,
    /// It has sent all that it will.
    finished: bool,
}

impl Stream {
    fn break_up(&mut self) {
        self.broken = true;
        self.transport.abort();
    }
}

/// State that the threads of one session share.
#[derive(Debug)]
pub struct Session {
    /// Its name.
    pub id: SessionId,
    /// How files are copied.
    pub options: Options,
    /// Buffers of one block each.
    pub pool: BufferPool,
    /// The session's own rate.
    pub pace: Pace,
    /// The rate that it shares with others of the same process.
    pub shared_pace: Option<Arc<Pace>>,
    /// Measurements.
    pub meter: Meter,
    /// Wakes the control connection.
    pub wake: Event,
    /// Told about its streams, where this end sends them.
    pub fireflies: Option<Fireflies>,
    /// Where its threads run, if that was asked for.
    homes: Option<Homes>,
    /// When it began.
    pub started: Instant,
    /// How many streams there should be.
    pub wanted_streams: AtomicU16,
    streams_peak: AtomicU16,
    key: SessionKey,
    streams: Mutex<BTreeMap<StreamId, Stream>>,
    ending: Mutex<Option<Ending>>,
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
    /// A session of which nothing is connected yet. Its pool holds `memory_bytes` of blocks.
    ///
    /// # Errors
    /// When the process has no more descriptors.
    pub fn new(
        id: SessionId,
        key: SessionKey,
        options: Options,
        memory_bytes: u64,
        shared_pace: Option<Arc<Pace>>,
    ) -> std::io::Result<Self> {
        let block = options.block_bytes as usize;
        let count = (memory_bytes / block as u64).max(BLOCKS_MIN);
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let rate = options.settings.rate_bps.filter(|rate| *rate > 0);
        let streams = options.settings.streams.unwrap_or(STREAMS_DEFAULT);
        Ok(Self {
            id,
            pool: BufferPool::new(count, block),
            pace: Pace::new(rate),
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

    /// Fireflies go to these collectors too, and count here.
    #[must_use]
    pub fn with_collectors(mut self, collectors: &[SocketAddr], counts: &Arc<Sent>) -> Self {
        self.fireflies = Fireflies::new(self.options.mark, collectors, Arc::clone(counts));
        self
    }

    /// Its threads run near the devices that they work with.
    #[must_use]
    pub fn with_homes(mut self, homes: Option<Homes>) -> Self {
        self.homes = homes;
        self
    }

    /// Moves the calling thread, which works with files of this device (`st_dev`), near the transfer's interface, else near
    /// their disk.
    pub fn settle_near_files(&self, device: u64) {
        if let Some(homes) = &self.homes {
            settle(&homes.of_files(Some(device)));
        }
    }

    /// Moves the calling thread near the interface that its connection uses.
    pub fn settle_near(&self, transport: &Transport) {
        if let (Some(homes), Some(address)) = (&self.homes, transport.own_address()) {
            settle(&homes.of_address(address));
        }
    }

    /// Says how the packets of its streams are labelled, or why they are not.
    pub fn name_label(&self, label: String) {
        *lock(&self.label) = label;
    }

    /// Its key.
    #[must_use]
    pub fn key(&self) -> &SessionKey {
        &self.key
    }

    /// The authenticator of a stream in the clear.
    #[must_use]
    pub fn authenticator(&self, stream: StreamId, nonces: &Nonces) -> Authenticator {
        self.key.authenticator(&self.id, stream, nonces)
    }

    /// Wakes the control connection's thread.
    pub fn wake_control(&self) {
        // It looks again after a while even if this fails.
        let _ = self.wake.signal();
    }

    /// Ends the session, unless it has ended already, and with it every stream.
    pub fn end(&self, ending: Ending) {
        let abrupt = ending != Ending::Finished;
        lock(&self.ending).get_or_insert(ending);
        self.over.store(true, Ordering::SeqCst);
        if abrupt {
            self.pool.close();
            lock(&self.streams).values().for_each(|stream| stream.transport.shut_down());
        }
        self.wake_control();
    }

    /// Whether it has ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// How it ended.
    #[must_use]
    pub fn ending(&self) -> Option<Ending> {
        lock(&self.ending).clone()
    }

    /// A stream is connected. `false` when the session is over or has a stream of that number.
    ///
    /// # Errors
    /// When the process has no more descriptors.
    pub fn add_stream(&self, stream: StreamId, transport: &Transport) -> std::io::Result<bool> {
        let handle = transport.try_clone()?;
        let mut streams = lock(&self.streams);
        if self.is_over() || streams.contains_key(&stream) {
            return Ok(false);
        }
        streams.insert(stream, Stream { transport: handle, broken: false, finished: false });
        let count = u16::try_from(streams.len()).unwrap_or(u16::MAX);
        self.streams_peak.fetch_max(count, Ordering::Relaxed);
        Ok(true)
    }

    /// A stream is gone.
    pub fn remove_stream(&self, stream: StreamId) {
        let mut streams = lock(&self.streams);
        let removed = streams.remove(&stream);
        if let Some(Ok(info)) = removed.map(|stream| TcpInfo::of(&stream.transport)) {
            let mut ended = lock(&self.meter.ended);
            *ended = ended.and(&info);
        }
    }

    /// Breaks every stream, as a test or an operator may want.
    pub fn break_streams(&self) {
        lock(&self.streams).values_mut().for_each(Stream::break_up);
    }

    /// Breaks the stream that came last, for others; what it carried is sent again on another.
    pub fn break_a_stream(&self) {
        if let Some(mut last) = lock(&self.streams).last_entry() {
            last.get_mut().break_up();
        }
    }

    /// How far a stream is, by what TCP knows of it.
    #[must_use]
    pub fn progress_of(&self, stream: StreamId) -> Option<Progress> {
        let streams = lock(&self.streams);
        let stream = streams.get(&stream)?;
        let info = TcpInfo::of(&stream.transport).ok()?;
        Some(Progress {
            arrived: info.bytes_acked,
            is_under_way: info.unacked_segments > 0 || info.notsent_bytes > 0,
            is_finished: stream.finished,
        })
    }

    /// Breaks streams whose path is gone while that of others is not, so that what they carried is sent again there
    /// and does not wait until [`DEAD_AFTER`].
    pub fn break_silent_streams(&self) {
        let mut streams = lock(&self.streams);
        let of = |stream: &Stream| TcpInfo::of(&stream.transport).unwrap_or_default();
        let infos: Vec<_> = streams.values().map(of).collect();
        for (silent, stream) in silent(&infos).into_iter().zip(streams.values_mut()) {
            if silent && !stream.broken {
                let peer = stream.transport.peer();
                tracing::info!("nothing is acknowledged by {peer}: its stream ends");
                stream.break_up();
            }
        }
    }

    /// Most streams that were connected at a time.
    #[must_use]
    pub fn streams_peak(&self) -> u16 {
        self.streams_peak.load(Ordering::Relaxed)
    }

    /// How many streams are connected.
    #[must_use]
    pub fn stream_count(&self) -> u16 {
        u16::try_from(lock(&self.streams).len()).unwrap_or(u16::MAX)
    }

    /// Waits until `bytes` may be sent or taken over this channel, by both rates, or the session is over.
    ///
    /// # Errors
    /// When the channel was broken meanwhile.
    pub fn wait_for_pace(&self, bytes: usize, channel: &Channel) -> io::Result<()> {
        let own = self.pace.reserve(bytes);
        let shared = self.shared_pace.as_ref().map(|pace| (pace, pace.reserve(bytes)));
        let left = || {
            let shared = shared.as_ref().map_or(Duration::ZERO, |(pace, place)| pace.left(*place));
            self.pace.left(own).max(shared)
        };
        let mut wait = left();
        if wait.is_zero() {
            return Ok(());
        }
        let start = Instant::now();
        let mut broken = false;
        while !wait.is_zero() && !self.is_over() {
            // Short steps, so that another rate, the end of the session or of the stream is noticed.
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

    /// How many bytes to ask [`Session::wait_for_pace`] for at a time: little where the rate is low, so that they
    /// leave evenly.
    #[must_use]
    pub fn part_bytes(&self) -> usize {
        const PART_BYTES: std::ops::RangeInclusive<u64> = 64 << 10..=1 << 20;
        const PARTS_PER_SECOND: u64 = 50;
        let shared = self.shared_pace.as_ref().and_then(|pace| pace.rate_bps());
        let rate_bps = self.pace.rate_bps().into_iter().chain(shared).min().unwrap_or(u64::MAX);
        let bytes = rate_bps / 8 / PARTS_PER_SECOND;
        usize::try_from(bytes.clamp(*PART_BYTES.start(), *PART_BYTES.end())).unwrap_or(usize::MAX)
    }

    /// How long a stream may have to wait for its turn at this rate.
    #[must_use]
    pub fn turn(&self) -> Duration {
        let rate_bps = self.pace.rate_bps().map_or(u64::MAX, |rate| rate.max(1));
        let bytes = self.part_bytes() as u64 * u64::from(self.stream_count());
        Duration::from_secs(bytes.saturating_mul(8) / rate_bps)
    }

    /// A stream has sent all that it will; what is left is to hear of it.
    pub fn finish_stream(&self, stream: StreamId) {
        if let Some(stream) = lock(&self.streams).get_mut(&stream) {
            stream.finished = true;
        }
    }

    /// Breaks this stream; what it carried is sent again on another.
    pub fn break_stream(&self, stream: StreamId) {
        if let Some(stream) = lock(&self.streams).get_mut(&stream) {
            stream.break_up();
        }
    }

    /// Whether a stream was broken here: nothing is to be heard of what it carries any more.
    #[must_use]
    pub fn is_broken(&self, stream: StreamId) -> bool {
        lock(&self.streams).get(&stream).is_some_and(|stream| stream.broken)
    }

    /// Names the storage engine, or adds one where files lie on several file systems.
    pub fn name_engine(&self, name: &str) {
        let mut engine = lock(&self.engine);
        if engine.is_empty() {
            name.clone_into(&mut engine);
        } else if !engine.split(", ").any(|known| known == name) {
            engine.push_str(", ");
            engine.push_str(name);
        }
    }

    /// The storage engines of this end.
    #[must_use]
    pub fn engine(&self) -> String {
        lock(&self.engine).clone()
    }

    /// Keeps what the peer measures.
    pub fn set_peer(&self, report: Report) {
        *lock(&self.peer) = report;
    }

    /// What the peer measured last.
    #[must_use]
    pub fn peer(&self) -> Report {
        lock(&self.peer).clone()
    }

    /// Changes this end; what concerns the other end is sent by the control connection.
    pub fn apply(&self, settings: &Settings) {
        if let Some(rate) = settings.rate_bps {
            self.pace.set(Some(rate).filter(|rate| *rate > 0));
        }
        if let Some(streams) = settings.streams {
            self.wanted_streams.store(streams.clamp(1, STREAMS_MAX), Ordering::SeqCst);
        }
        self.wake_control();
    }

    /// Changes both ends.
    pub fn change(&self, settings: Settings) {
        self.apply(&settings);
        *lock(&self.settings_for_peer) = Some(settings);
        self.wake_control();
    }

    /// Settings that are to be sent to the peer.
    pub fn take_settings_for_peer(&self) -> Option<Settings> {
        lock(&self.settings_for_peer).take()
    }

    /// TCP segments sent again, by this end's kernel.
    #[must_use]
    pub fn retransmits(&self) -> u64 {
        self.tcp().retransmits
    }

    fn tcp(&self) -> Tcp {
        // In this order everywhere: streams, then what has ended.
        let streams = lock(&self.streams);
        let ended = *lock(&self.meter.ended);
        let live = streams.values().filter_map(|stream| TcpInfo::of(&stream.transport).ok());
        live.fold(ended, |sum, info| sum.and(&info))
    }

    /// What this end measures.
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
        // A few ticks say nothing; keep what was known.
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

/// Which of these connections have something to be acknowledged and hear nothing, while others hear.
fn silent(infos: &[TcpInfo]) -> Vec<bool> {
    let heard = infos.iter().map(|info| info.last_acknowledged_ms).min().unwrap_or(0);
    let limit = SILENT_AFTER_MS.max(heard.saturating_add(SILENT_LONGER_MS));
    let is_silent = |i: &TcpInfo| i.unacked_segments > 0 && i.last_acknowledged_ms > limit;
    infos.iter().map(is_silent).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_silent_when_others_hear_and_it_waits() {
        let info = |unacked_segments, last_acknowledged_ms| TcpInfo {
            unacked_segments,
            last_acknowledged_ms,
            ..TcpInfo::default()
        };
        let of = |infos: &[(u32, u32)]| {
            silent(&infos.iter().map(|(unacked, ms)| info(*unacked, *ms)).collect::<Vec<_>>())
        };
        assert_eq!(of(&[(9, 3_001), (9, 10), (0, 9_000)]), [true, false, false]);
        // The others have nothing left to do, and heard later.
        assert_eq!(of(&[(9, 5_000), (0, 3_500)]), [true, false]);
        // All at once: the one path that they share is gone for a while.
        assert_eq!(of(&[(9, 8_000), (9, 7_900), (1, 8_200)]), [false; 3]);
        assert_eq!(of(&[(9, 60_000)]), [false]);
        assert_eq!(of(&[]), [false; 0]);
    }
}
