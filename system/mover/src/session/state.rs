//! State shared by all threads of one session: keys, options, buffers, pacing, streams and
//! measurements.
//!
//! Sources and sinks handle the files of an end. Locks are held briefly, never
//! across I/O.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use penstock_host::placement::NumaPlacement;
use penstock_protocol::block::PayloadChecks;
use penstock_protocol::control::{Report, Settings};
use penstock_protocol::open::{Options, Protection, SessionId};
use penstock_protocol::proof::{Authenticator, Nonces, PayloadHash, PayloadKey, SessionKey};
use penstock_protocol::sender::StreamId;
use penstock_sys::buffer::BufferPool;
use penstock_sys::event::EventFd;
use penstock_sys::machine;
use penstock_sys::net::TcpInfo;

use super::close::CloseOnEnd;
use super::meter::{Meter, TcpTotals, add_since};
use super::outcome::SessionOutcome;
use super::placement::pin_to;
use super::rate_limit::SharedPacer;
use super::streams::{DataStream, StreamProgress, find_silent};
use crate::base::limits::{BLOCKS_MIN, STREAMS_DEFAULT, STREAMS_MAX};
use crate::base::lock::lock;
use crate::net::channel::Channel;
use crate::net::firefly::{Fireflies, FireflyCounters};
use crate::net::transport::Transport;

/// Shortest round trip of a long path, in microseconds: longer than within a site. At 10 Gb/s 1.25 MB are under way
/// in that time.
const LONG_PATH_RTT_US_MIN: u32 = 1_000;

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
    pub wake: EventFd,
    /// Reporter of its streams, if this end sends with a scitag.
    pub fireflies: Option<Fireflies>,
    /// Placement of its threads, if configured.
    homes: Option<NumaPlacement>,
    /// Time of the session's start.
    pub started: Instant,
    /// Requested number of streams.
    pub wanted_streams: AtomicU16,
    streams_peak: AtomicU16,
    /// Most bits per second of each stream, by the kernel's pacing; 0 without.
    stream_pace_bps: AtomicU64,
    /// Shortest round trip of a new connection in microseconds; 0 before the first.
    rtt_min_us: AtomicU32,
    key: SessionKey,
    /// Set in integrity mode.
    payload_key: Option<PayloadKey>,
    streams: Mutex<BTreeMap<StreamId, DataStream>>,
    /// Closed at the end; at an abrupt one after the pool.
    closed_at_end: Mutex<Vec<Arc<dyn CloseOnEnd>>>,
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
            wake: EventFd::new()?,
            fireflies: Fireflies::new(options.mark, &[], Arc::default()),
            homes: None,
            started: Instant::now(),
            wanted_streams: AtomicU16::new(streams.clamp(1, STREAMS_MAX)),
            streams_peak: AtomicU16::new(0),
            stream_pace_bps: AtomicU64::new(0),
            rtt_min_us: AtomicU32::new(0),
            payload_key: (options.protection == Protection::Integrity)
                .then(|| key.payload_key(&id)),
            options,
            key,
            streams: Mutex::default(),
            closed_at_end: Mutex::default(),
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

    /// Computes CRC-32C and, in integrity mode, keyed hash of a payload that this end sends.
    pub(crate) fn check_payload(&self, payload: &[u8]) -> (u32, Option<PayloadHash>) {
        let mut checks = PayloadChecks::new(self.payload_key.as_ref());
        checks.update(payload);
        checks.finish()
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

    /// Closes `structure` when the session ends.
    pub(crate) fn close_at_end(&self, structure: Arc<dyn CloseOnEnd>) {
        lock(&self.closed_at_end).push(structure);
    }

    /// Ends the session and its streams, unless it has already ended.
    pub fn end(&self, ending: SessionOutcome) {
        let abrupt = ending != SessionOutcome::Finished;
        lock(&self.ending).get_or_insert(ending);
        self.over.store(true, Ordering::SeqCst);
        if abrupt {
            self.pool.close();
        }
        lock(&self.closed_at_end).iter().for_each(|one| one.close());
        if abrupt {
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
        if let Some(pace_bps) = self.stream_pace() {
            handle.set_pace(Some(pace_bps))?;
        }
        if let Ok(info) = TcpInfo::of(&handle) {
            self.note_round_trip(info.rtt_min_us);
        }
        streams.insert(stream, DataStream { transport: handle, broken: false, finished: false });
        let count = u16::try_from(streams.len()).unwrap_or(u16::MAX);
        self.streams_peak.fetch_max(count, Ordering::Relaxed);
        Ok(true)
    }

    /// Notes the round trip of a new connection. The shortest counts: others may have waited in the transfer's own queue.
    pub(crate) fn note_round_trip(&self, rtt_us: u32) {
        let shorter = |min_us| (rtt_us > 0 && (min_us == 0 || rtt_us < min_us)).then_some(rtt_us);
        // Fails if it is not shorter.
        let _ = self.rtt_min_us.fetch_update(Ordering::Relaxed, Ordering::Relaxed, shorter);
    }

    /// True if all round trips were longer than within a site: data stay unacknowledged for long.
    #[must_use]
    pub(crate) fn has_long_path(&self) -> bool {
        self.rtt_min_us.load(Ordering::Relaxed) >= LONG_PATH_RTT_US_MIN
    }

    /// Most bits per second that the kernel sends on each stream; none without pacing.
    #[must_use]
    pub fn stream_pace(&self) -> Option<u64> {
        Some(self.stream_pace_bps.load(Ordering::Relaxed)).filter(|rate| *rate > 0)
    }

    /// Paces each stream to `rate_bps`, or none.
    pub fn pace_streams(&self, rate_bps: Option<u64>) {
        let rate_bps = rate_bps.map(|rate| rate.max(1));
        if self.stream_pace() == rate_bps {
            return;
        }
        let streams = lock(&self.streams);
        self.stream_pace_bps.store(rate_bps.unwrap_or(0), Ordering::Relaxed);
        for stream in streams.values() {
            // A stream that has just broken needs no pace.
            let _ = stream.transport.set_pace(rate_bps);
        }
    }

    /// Removes a stream and keeps its kernel measurements.
    pub fn remove_stream(&self, stream: StreamId) {
        let mut streams = lock(&self.streams);
        let removed = streams.remove(&stream);
        if let Some(Ok(info)) = removed.map(|stream| TcpInfo::of(&stream.transport)) {
            let mut ended = lock(&self.meter.ended);
            *ended = ended.and_ended(&info);
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
    /// [`PEER_TIMEOUT`](crate::base::timeouts::PEER_TIMEOUT).
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
        let mut broken = false;
        while !wait.is_zero() && !self.is_over() {
            // Short steps, to notice a new rate and the end of session or stream. Each counts at once: at a low rate one
            // wait takes longer than the interval between two samples.
            let start = Instant::now();
            std::thread::sleep(wait.min(Duration::from_millis(100)));
            add_since(&self.meter.waited_rate_us, start);
            if channel.is_broken()? {
                self.pace.refund(bytes);
                self.shared_pace.iter().for_each(|pace| pace.refund(bytes));
                broken = true;
                break;
            }
            wait = left();
        }
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

    /// Applies settings to this end and queues them for the other, beside those that still wait.
    pub fn change(&self, settings: Settings) {
        self.apply(&settings);
        lock(&self.settings_for_peer).get_or_insert_default().merge(&settings);
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

    pub(crate) fn tcp(&self) -> TcpTotals {
        // Lock order: streams, then ended.
        let streams = lock(&self.streams);
        let ended = *lock(&self.meter.ended);
        let live = streams.values().filter_map(|stream| TcpInfo::of(&stream.transport).ok());
        live.fold(ended, |sum, info| sum.and(&info))
    }

    /// Current measurements of this end.
    #[must_use]
    pub fn report(&self) -> Report {
        self.measure().0
    }

    /// Current measurements of this end, with the sums over its connections; asks the kernel once for each.
    pub(crate) fn measure(&self) -> (Report, TcpTotals) {
        let cpu = machine::process_cpu().saturating_sub(self.cpu_at_start);
        let tcp = self.tcp();
        let report = Report {
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
            rtt_us: tcp.rtt_min_us.unwrap_or(0),
        };
        (report, tcp)
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

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::base::test_options::plain_options;
    use crate::net::transport::Transport;

    #[derive(Debug, Default)]
    struct Closed(AtomicBool);

    impl CloseOnEnd for Closed {
        fn close(&self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    /// Threads that wait for more blocks would end by their time limits only.
    #[test]
    fn finished_session_closes_queues() {
        let options = plain_options();
        let session = Session::new([1; 16], SessionKey([7; 32]), options, 1 << 20, None).unwrap();
        let closed = Arc::new(Closed::default());
        session.close_at_end(Arc::<Closed>::clone(&closed));
        assert!(!closed.0.load(Ordering::SeqCst));
        session.end(SessionOutcome::Finished);
        assert!(closed.0.load(Ordering::SeqCst));
    }

    /// The rate meter and the tuner take samples while a stream waits.
    #[test]
    fn long_rate_wait_counts_meanwhile() {
        let mut options = plain_options();
        options.settings.rate_bps = Some(1_000);
        let session = Session::new([1; 16], SessionKey([7; 32]), options, 1 << 20, None).unwrap();
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let channel = Channel::clear(Transport::Local(ours));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                // The second part waits for minutes.
                session.wait_for_pace(64 << 10, &channel).unwrap();
                session.wait_for_pace(64 << 10, &channel).unwrap();
            });
            let begun = Instant::now();
            let waited_us = || session.meter.waited_rate_us.load(Ordering::Relaxed);
            while waited_us() == 0 && begun.elapsed() < Duration::from_secs(20) {
                std::thread::yield_now();
            }
            let is_waiting = !waiting.is_finished();
            session.end(SessionOutcome::Finished);
            assert!(is_waiting && begun.elapsed() < Duration::from_secs(20));
        });
    }
}
