//! Session setup: builds the endpoint for a granted request, at an agent or for a local copy.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use penstock_host::placement::NumaPlacement;
use penstock_protocol::block::{BLOCK_BYTES_MIN, PAYLOAD_BYTES_MAX};
use penstock_protocol::control::{Placed, Report, Settings, Settled, TransferTally};
use penstock_protocol::journal::TargetDirectory;
use penstock_protocol::list::PathList;
use penstock_protocol::manifest::display_path;
use penstock_protocol::open::{
    Options, Protection, Pull, Push, Refusal, RefusalKind, Request, SessionId,
};
use penstock_protocol::proof::{Nonces, SessionKey};
use penstock_protocol::sender::StreamId;
use penstock_protocol::wire::Bytes;
use penstock_scitags::Scitag;
use penstock_sys::fs::{self, Dir};

use crate::agent::{Caller, Counters, Gatekeeper};
use crate::bottleneck::{WaitShares, bottleneck};
use crate::channel::Channel;
use crate::control::ControlEndpoint;
use crate::engine::Engine;
use crate::firefly::FireflyCounters;
use crate::handshake::random;
use crate::scan::{Missing, ScanRoot};
use crate::sender::{SenderControl, SenderEnd};
use crate::session::{Session, SharedPacer};
use crate::sink::{
    Destination, FileLocks, Journal, JournalError, JournalName, JournalStore, ReceiverControl,
    ReceiverEnd, ReleasePartial, Target,
};

/// Default memory for blocks of one end: 16 blocks of 4 MiB.
pub const MEMORY_BYTES: u64 = 64 << 20;

/// Sending or receiving end of a session.
#[derive(Debug, Clone)]
pub enum Endpoint {
    /// Sending end of a session.
    Send(SenderControl),
    /// Receiving end of a session.
    Receive(ReceiverControl),
}

impl Endpoint {
    /// State common to both kinds of end.
    #[must_use]
    pub fn session(&self) -> &Session {
        match self {
            Self::Send(end) => &end.0.session,
            Self::Receive(end) => &end.0.session,
        }
    }

    /// Endpoint for the control connection.
    #[must_use]
    pub fn control(&self) -> &dyn ControlEndpoint {
        match self {
            Self::Send(end) => end,
            Self::Receive(end) => end,
        }
    }

    /// Starts its scanner or planner threads.
    pub fn start(&self) {
        match self {
            Self::Send(end) => end.0.start(),
            Self::Receive(end) => end.0.start(),
        }
    }

    /// Counters of the session so far.
    #[must_use]
    pub fn tally(&self) -> TransferTally {
        match self {
            Self::Send(end) => end.0.tally(),
            Self::Receive(end) => end.0.tally(),
        }
    }

    /// Requests these paths from a sender that waits for a list; no-op for a sending end.
    pub fn request_paths(&self, list: Arc<PathList>) {
        if let Self::Receive(end) = self {
            end.0.with_machine(|machine| machine.request_paths(list));
        }
    }

    /// Collects committed files for [`Endpoint::take_placed`]; with `digest_skipped`, skipped files are
    /// read for their digest.
    pub fn keep_placed(&self, digest_skipped: bool) {
        match self {
            Self::Send(end) => end.0.keep_placed(digest_skipped),
            Self::Receive(end) => end.0.keep_placed(digest_skipped),
        }
    }

    /// Returns the files committed since the last call.
    #[must_use]
    pub fn take_placed(&self) -> Vec<Placed> {
        match self {
            Self::Send(end) => end.0.take_placed(),
            Self::Receive(end) => end.0.take_placed(),
        }
    }

    /// Returns the final results since the last call, if a sending end collects them.
    #[must_use]
    pub fn take_settled(&self) -> Vec<Settled> {
        match self {
            Self::Send(end) => end.0.take_settled(),
            Self::Receive(_) => Vec::new(),
        }
    }

    /// True if it receives a file with this partial name that is not committed yet.
    #[must_use]
    pub fn has_partial(&self, name: &std::ffi::OsStr) -> bool {
        match self {
            Self::Send(_) => false,
            Self::Receive(end) => end.0.has_partial(name),
        }
    }

    /// Direction: `send` or `receive`.
    #[must_use]
    pub fn direction(&self) -> &'static str {
        match self {
            Self::Send(_) => "send",
            Self::Receive(_) => "receive",
        }
    }

    /// Reader and writer threads per device; zero for the kind this end lacks.
    #[must_use]
    pub fn threads(&self) -> (u16, u16) {
        match self {
            Self::Send(end) => (end.0.readers.size(), 0),
            Self::Receive(end) => (0, end.0.writers.size()),
        }
    }

    /// Cancels the transfer at both ends.
    pub fn cancel(&self, reason: &str) {
        match self {
            Self::Send(end) => end.0.cancel(reason),
            Self::Receive(end) => end.0.cancel(reason),
        }
    }

    /// Changes the settings of both ends.
    pub fn change(&self, settings: Settings) {
        match self {
            Self::Send(end) => end.0.apply(&settings),
            Self::Receive(end) => end.0.apply(&settings),
        }
        self.session().change(settings);
    }

    /// TCP segments retransmitted by the sending end.
    #[must_use]
    pub fn retransmits(&self) -> u64 {
        match self {
            Self::Send(end) => end.0.session.retransmits(),
            Self::Receive(end) => end.0.session.peer().retransmits,
        }
    }

    /// Transfers blocks on a connected stream until it ends.
    ///
    /// # Errors
    /// If the stream broke.
    pub fn run_stream(
        &self,
        stream: StreamId,
        channel: Channel,
        nonces: &Nonces,
    ) -> io::Result<()> {
        self.run_stream_while(stream, channel, nonces, || true)
    }

    /// As [`Endpoint::run_stream`], while `wanted` returns true.
    ///
    /// # Errors
    /// If the stream broke.
    pub fn run_stream_while(
        &self,
        stream: StreamId,
        channel: Channel,
        nonces: &Nonces,
        wanted: impl Fn() -> bool,
    ) -> io::Result<()> {
        let session = self.session();
        session.pin_near_nic(channel.transport());
        let authenticator = match session.options.protection {
            Protection::Full => None,
            Protection::Integrity => Some(session.authenticator(stream, nonces)),
        };
        match self {
            Self::Send(end) => end.0.run_stream(stream, channel, authenticator, wanted),
            Self::Receive(end) => end.0.run_stream(stream, channel, authenticator),
        }
    }

    /// Adds the session's counts to an agent's counters.
    pub fn count(&self, counters: &mut Counters) {
        let meter = &self.session().meter;
        let bytes = meter.network_bytes.load(Ordering::Relaxed);
        match self {
            Self::Send(_) => counters.sent_bytes += bytes,
            Self::Receive(_) => counters.received_bytes += bytes,
        }
        counters.blocks_repeated += meter.repeated.load(Ordering::Relaxed);
        counters.streams_lost += meter.streams_lost.load(Ordering::Relaxed);
    }
}

/// Rate and bottleneck of a session, sampled.
#[derive(Debug)]
pub struct RateMeter {
    /// Mean rate between the last two samples.
    pub bits_per_second: u64,
    /// Bottleneck between the last two samples.
    pub bound_by: &'static str,
    /// Session of `last`: counters of another session start at zero.
    session: Option<SessionId>,
    last: Option<(Instant, u64, u64, Report, Report)>,
    /// Microseconds by bottleneck.
    bounded_us: HashMap<&'static str, u64>,
}

impl Default for RateMeter {
    fn default() -> Self {
        Self {
            bits_per_second: 0,
            bound_by: "starting",
            session: None,
            last: None,
            bounded_us: HashMap::new(),
        }
    }
}

impl RateMeter {
    /// Takes a sample, if the last one is old enough.
    pub fn observe(&mut self, end: &Endpoint) {
        const SAMPLE_INTERVAL: Duration = Duration::from_millis(450);
        let session = end.session();
        let now = Instant::now();
        if self.session.replace(session.id) != Some(session.id) {
            self.last = None;
        }
        if self.last.as_ref().is_some_and(|(at, ..)| at.elapsed() < SAMPLE_INTERVAL) {
            return;
        }
        let bytes = session.meter.network_bytes.load(Ordering::Relaxed);
        let rate_us = session.meter.waited_rate_us.load(Ordering::Relaxed);
        let (own, peer) = (session.report(), session.peer());
        if let Some((at, bytes_before, rate_before, own_before, peer_before)) = &self.last {
            let elapsed_us = u64::try_from(at.elapsed().as_micros()).unwrap_or(u64::MAX).max(1);
            let bits = (bytes - bytes_before) as f64 * 8.0;
            self.bits_per_second = (bits * 1e6 / elapsed_us as f64) as u64;
            let own_share = WaitShares::between(own_before, &own, elapsed_us);
            let peer_share = WaitShares::between(peer_before, &peer, elapsed_us);
            let rate = rate_share(rate_us - rate_before, elapsed_us, &own);
            self.bound_by = bottleneck_of(end, own_share, peer_share, rate);
            *self.bounded_us.entry(self.bound_by).or_default() += elapsed_us;
        }
        self.last = Some((now, bytes, rate_us, own, peer));
    }

    /// Mean rate of a session since its start, and its most frequent bottleneck; `-` if nothing was
    /// sent.
    #[must_use]
    pub fn overall(&self, end: &Endpoint) -> (u64, &'static str) {
        let session = end.session();
        let elapsed_us = u64::try_from(session.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        let bits = session.meter.network_bytes.load(Ordering::Relaxed) as f64 * 8.0;
        let mean = (bits * 1e6 / elapsed_us.max(1) as f64) as u64;
        if mean == 0 {
            return (0, "-");
        }
        if let Some((bound, _)) = self.bounded_us.iter().max_by_key(|(_, time)| **time) {
            return (mean, bound);
        }
        // Too short for two samples; the processor load is unknown.
        let share = |report: &Report| WaitShares {
            cpu: 0.0,
            ..WaitShares::between(&Report::default(), report, elapsed_us)
        };
        let (own, peer) = (session.report(), session.peer());
        let rate_us = session.meter.waited_rate_us.load(Ordering::Relaxed);
        let rate = rate_share(rate_us, elapsed_us, &own);
        (mean, bottleneck_of(end, share(&own), share(&peer), rate))
    }
}

/// Fraction of its streams' time that an end waited for its rate limit.
fn rate_share(waited_us: u64, elapsed_us: u64, report: &Report) -> f64 {
    waited_us as f64 / (elapsed_us.max(1) as f64 * f64::from(report.streams.max(1)))
}

fn bottleneck_of(end: &Endpoint, own: WaitShares, peer: WaitShares, rate: f64) -> &'static str {
    match end {
        Endpoint::Send(_) => bottleneck(own, peer, rate),
        Endpoint::Receive(_) => bottleneck(peer, own, rate),
    }
}

/// Validates options from a peer.
///
/// # Errors
/// If they are outside of the protocol's limits.
pub fn check_options(options: &Options) -> Result<(), Refusal> {
    let block = options.block_bytes;
    if let Some(mark) = options.mark
        && let Err(error) = Scitag::from_number(u64::from(mark.scitag))
    {
        return Err(Refusal::new(RefusalKind::Request, error.to_string()));
    }
    if !block.is_power_of_two() || !(BLOCK_BYTES_MIN..=PAYLOAD_BYTES_MAX).contains(&block) {
        let text = format!("a block of {block} bytes is not a power of two from 64KiB to 64MiB");
        return Err(Refusal::new(RefusalKind::Request, text));
    }
    Ok(())
}

/// Block size of a request; zero if it opens no session.
#[must_use]
pub fn block_bytes(request: &Request) -> u32 {
    match request {
        Request::Push(push) => push.options.block_bytes,
        Request::Pull(pull) => pull.options.block_bytes,
        Request::ThirdParty(both) => both.pull.options.block_bytes,
        Request::Reconnect(_) | Request::Check(()) => 0,
    }
}

/// Builder of the endpoint of a granted request.
pub struct SessionBuilder<'a> {
    /// Policy that authorises the caller.
    pub keeper: &'a dyn Gatekeeper,
    /// Authenticated caller of the request.
    pub caller: &'a Caller,
    /// Storage engine of the endpoint.
    pub engine: Engine,
    /// State directory for journals; without it no interrupted transfer resumes.
    pub state: Option<&'a Path>,
    /// Memory for blocks, in bytes.
    pub memory_bytes: u64,
    /// Placement of threads; `None` for any processor.
    pub homes: Option<NumaPlacement>,
    /// Rate limit shared with other sessions.
    pub pace: Option<Arc<SharedPacer>>,
    /// Firefly collectors, in addition to the peers of data streams.
    pub collectors: &'a [SocketAddr],
    /// Counters of fireflies, shared by sessions.
    pub fireflies: &'a Arc<FireflyCounters>,
    /// Locks of files being written, for callers with a pass.
    pub locks: Option<&'a FileLocks>,
    /// Ends sessions of the caller that have lost their client and hold a partial file.
    pub release_partial: Option<Arc<ReleasePartial>>,
}

impl std::fmt::Debug for SessionBuilder<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grant").field("caller", &self.caller).finish_non_exhaustive()
    }
}

/// Endpoint built for a request.
#[derive(Debug)]
pub struct BuiltSession {
    /// The endpoint, not started.
    pub end: Endpoint,
    /// Path of the source or target, as shown to users.
    pub path: String,
    /// Name of its journal; `None` for a sending end.
    pub journal: Option<JournalName>,
}

impl SessionBuilder<'_> {
    /// Builds the endpoint for a request. `release` ends a session that still holds the journal but has
    /// lost its client; it returns whether the requesting client is still connected.
    ///
    /// # Errors
    /// If the request is refused.
    pub fn build(
        &self,
        request: &Request,
        release: &dyn Fn(&JournalName) -> bool,
    ) -> Result<BuiltSession, Refusal> {
        match request {
            Request::Push(push) => self.receive(push, release),
            Request::Pull(pull) => self.send(pull, &pull.options, None),
            Request::ThirdParty(request) => {
                let session = &request.session;
                // The destination has decided the scitag.
                let options = Options { mark: session.mark, ..request.pull.options.clone() };
                let given = (session.session, SessionKey(session.key));
                self.send(&request.pull, &options, Some(given))
            }
            Request::Reconnect(_) | Request::Check(()) => {
                Err(Refusal::new(RefusalKind::Request, "that is no new session"))
            }
        }
    }

    fn session(
        &self,
        options: &Options,
        given: Option<(SessionId, SessionKey)>,
    ) -> Result<Session, Refusal> {
        check_options(options)?;
        let (id, key) = given.unwrap_or_else(|| (random(), SessionKey(random())));
        Session::new(id, key, options.clone(), self.memory_bytes, self.pace.clone())
            .map(|session| session.with_collectors(self.collectors, self.fireflies))
            .map(|session| session.with_homes(self.homes.clone()))
            .map_err(|error| Refusal::new(RefusalKind::Agent, fs::describe(&error)))
    }

    /// Returns the options with the scitag that the operator sets for a path.
    fn with_mark(&self, options: &Options, path: &[u8]) -> Result<Options, Refusal> {
        let mark = self.keeper.mark(self.caller, path, options.mark)?;
        Ok(Options { mark, ..options.clone() })
    }

    fn send(
        &self,
        pull: &Pull,
        options: &Options,
        given: Option<(SessionId, SessionKey)>,
    ) -> Result<BuiltSession, Refusal> {
        let mut sources = Vec::with_capacity(pull.sources.len());
        let mut shown = Vec::new();
        if pull.listed && pull.sources.len() != 1 {
            let text = "a list names what is below one source";
            return Err(Refusal::new(RefusalKind::Request, text));
        }
        let mut missing = Vec::new();
        for path in &pull.sources {
            let place = match self.keeper.place(self.caller, &path.0, false) {
                Err(refusal) if refusal.kind == RefusalKind::NotFound => {
                    missing.push((display_path(&path.0), refusal));
                    continue;
                }
                place => place?,
            };
            if pull.listed {
                let path = PathBuf::from(OsString::from_vec(place.path));
                let dir = if path.as_os_str().is_empty() {
                    Ok(place.root)
                } else {
                    place.root.open_dir(path)
                };
                let dir = Arc::new(dir.map_err(|error| refuse(&place.shown, &error))?);
                sources.push(ScanRoot { dir, path: PathBuf::new() });
                shown.push(place.shown);
                continue;
            }
            match source_at(place.root, &place.path, &place.shown) {
                Ok(source) => {
                    sources.push(source);
                    shown.push(place.shown);
                }
                Err(refusal) => missing.push((place.shown, refusal)),
            }
        }
        // A missing source does not prevent copying the others.
        if sources.is_empty() && !missing.is_empty() {
            return Err(missing.swap_remove(0).1);
        }
        let path = pull.sources.first().map_or(&[][..], |path| &path.0);
        let session = self.session(&self.with_mark(options, path)?, given)?;
        let missing = missing.into_iter().map(|(path, refusal)| missing_source(path, refusal));
        let end = SenderEnd::new(session, self.engine, sources, pull.recursive);
        let end = end.missing(missing.collect());
        let end = if pull.listed { end.listed() } else { end };
        let more = match shown.len() {
            0 | 1 => String::new(),
            count => format!(" and {} more", count - 1),
        };
        let path = shown.first().map_or_else(String::new, |first| format!("{first}{more}"));
        let end = Endpoint::Send(SenderControl(Arc::new(end)));
        Ok(BuiltSession { end, path, journal: None })
    }

    fn receive(
        &self,
        push: &Push,
        release: &dyn Fn(&JournalName) -> bool,
    ) -> Result<BuiltSession, Refusal> {
        let place = self.keeper.place(self.caller, &push.target.0, true)?;
        let (base, rename) = target_at(place.root, &place.path, push.into_directory)
            .map_err(|error| refuse(&place.shown, &error))?;
        let trusted = self.keeper.trusts_owners();
        let target = Target::new(base, rename, push.transfer_key, trusted);
        let options = self.with_mark(&push.options, &push.target.0)?;
        let (end, journal) = self.receiver(target, &options, None, release)?;
        Ok(BuiltSession { end, path: place.shown, journal: Some(journal) })
    }

    /// Builds a receiving end with its journal, for the session `given` or a new one.
    ///
    /// # Errors
    /// If the same transfer is running or the state directory cannot be used.
    pub fn receiver(
        &self,
        target: Target,
        options: &Options,
        given: Option<(SessionId, SessionKey)>,
        release: &dyn Fn(&JournalName) -> bool,
    ) -> Result<(Endpoint, JournalName), Refusal> {
        /// Time for the threads of an ended session to release its journal.
        const JOURNAL_RELEASE_TIMEOUT: Duration = Duration::from_secs(5);
        let start = Instant::now();
        let agent = |error: io::Error| Refusal::new(RefusalKind::Agent, fs::describe(&error));
        let path = target.base.real_path().map_err(agent)?;
        let file_system = target.base.file_system_id().map_err(agent)?;
        let inode = target.base.stat_self().map_err(agent)?.inode;
        let directory = (file_system, inode);
        let name =
            JournalName::new(&self.caller.name, directory, target.rename.as_deref(), &target.key);
        let at = TargetDirectory {
            path: Bytes(path.into_os_string().into_vec()),
            file_system,
            inode,
            mark: name.mark(),
        };
        let journal = loop {
            let Some(state) = self.state else { break Journal::none() };
            let failed = |error: JournalError| Refusal::new(RefusalKind::Agent, error.to_string());
            let store = JournalStore::open(state).map_err(|error| {
                failed(JournalError::State(state.join("transfers"), fs::describe(&error)))
            })?;
            // The session of a lost client would keep the journal from the client's next attempt.
            if !release(&name) {
                return Err(Refusal::new(RefusalKind::Busy, "its client is gone"));
            }
            match Journal::open(&store, &name, at.clone(), options) {
                Ok(journal) => break journal,
                Err(JournalError::Running) if start.elapsed() < JOURNAL_RELEASE_TIMEOUT => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(error @ JournalError::Running) => {
                    return Err(Refusal::new(RefusalKind::Busy, error.to_string()));
                }
                Err(error) => return Err(failed(error)),
            }
        };
        let mark = match self.state {
            Some(_) => at.mark,
            // Without a journal the same command may run twice: each gets names of its own.
            None => JournalName::new(&self.caller.name, directory, None, &random()).mark(),
        };
        let session = self.session(options, given)?;
        let caller = &self.caller.name;
        let destination =
            Destination::new(target, caller, mark, options.clone(), self.engine, journal)
                .map_err(|error| Refusal::new(RefusalKind::Agent, fs::describe(&error)))?
                .with_locks(self.locks.filter(|_| self.caller.pass.is_some()).cloned())
                .with_release(self.release_partial.clone());
        let end = ReceiverEnd::new(session, self.engine, destination);
        Ok((Endpoint::Receive(ReceiverControl(Arc::new(end))), name))
    }
}

/// Removes the path from the refusal's text, which names it too.
fn missing_source(path: String, refusal: Refusal) -> Missing {
    let why = refusal.text.strip_prefix(&path).map(|why| why.trim_start_matches([':', ' ']));
    Missing { why: why.unwrap_or(&refusal.text).to_owned(), path }
}

fn refuse(shown: &str, error: &io::Error) -> Refusal {
    let kind = match error.kind() {
        io::ErrorKind::NotFound => RefusalKind::NotFound,
        io::ErrorKind::PermissionDenied => RefusalKind::Permission,
        _ => RefusalKind::Request,
    };
    Refusal::new(kind, format!("{shown}: {}", fs::describe(error)))
}

/// Opens the directory that contains the source at `path` below `root`.
///
/// # Errors
/// If the source does not exist.
pub fn source_at(root: Dir, path: &[u8], shown: &str) -> Result<ScanRoot, Refusal> {
    let path = PathBuf::from(OsString::from_vec(path.to_vec()));
    let find = || -> io::Result<ScanRoot> {
        if path.as_os_str().is_empty() {
            return Ok(ScanRoot { dir: Arc::new(root), path: PathBuf::new() });
        }
        root.stat(&path)?;
        let (dir, name) = root.parent(&path)?;
        Ok(ScanRoot { dir: Arc::new(dir), path: PathBuf::from(name) })
    };
    find().map_err(|error| refuse(shown, &error))
}

/// Opens the target directory; returns the name of a single file if it differs from the source's.
///
/// # Errors
/// If the directory does not exist and cannot be created.
pub fn target_at(
    root: Dir,
    path: &[u8],
    into_directory: bool,
) -> io::Result<(Dir, Option<OsString>)> {
    let path = Path::new(std::ffi::OsStr::from_bytes(path));
    if path.as_os_str().is_empty() {
        return Ok((root, None));
    }
    let is_directory = match root.stat_follow(path) {
        Ok(stat) => stat.kind == fs::Kind::Directory,
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        Err(error) => return Err(error),
    };
    if is_directory {
        return Ok((root.open_dir(path)?, None));
    }
    if into_directory {
        let is_link = |stat: fs::Stat| stat.kind == fs::Kind::Symlink;
        if root.stat(path).is_ok_and(is_link) {
            let text =
                "it is a link that leads to no directory: name another place, or move it away";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        root.create_dir_all(path, 0o777)?;
        return Ok((root.open_dir(path)?, None));
    }
    if let Some(above) = path.parent().filter(|above| !above.as_os_str().is_empty()) {
        root.create_dir_all(above, 0o777)?;
    }
    let (dir, name) = root.parent(path)?;
    Ok((dir, Some(name)))
}

#[cfg(test)]
mod tests {
    use penstock_protocol::digest::Algorithm;
    use penstock_protocol::open::Existing;

    use super::*;

    #[test]
    fn block_size_outside_limits_is_refused() {
        let answer = |block_bytes| {
            check_options(&Options {
                block_bytes,
                algorithm: Algorithm::Crc32c,
                protection: Protection::Full,
                inplace: false,
                xattrs: false,
                compare_digest: false,
                readback: false,
                existing: Existing::Replace,
                mark: None,
                settings: Settings::default(),
            })
        };
        for good in [64 << 10, 4 << 20, 64 << 20] {
            answer(good).expect("a block size");
        }
        for bad in [0, 1, 32 << 10, (64 << 10) + 1, 3 << 20, 128 << 20, u32::MAX] {
            let refusal = answer(bad).expect_err("no block size");
            assert_eq!(refusal.kind, RefusalKind::Request, "{bad}: {}", refusal.text);
        }
    }
}
