//! From a granted request to an end that carries it out, at an agent or for a local copy.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use penstock_host::placement::Homes;
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
use crate::bound::{Share, bound_by};
use crate::channel::Channel;
use crate::control::End;
use crate::engine::Engine;
use crate::exchange::random;
use crate::firefly::Sent;
use crate::scan::{Missing, Source};
use crate::sending::{SenderControl, SenderEnd};
use crate::session::{Pace, Session};
use crate::sink::{
    Destination, FileLocks, Journal, JournalError, JournalName, JournalStore, ReceiverControl,
    ReceiverEnd, ReleasePartial, Target,
};

/// Memory for blocks of one end when nobody says how much: 16 blocks of 4 MiB.
pub const MEMORY_BYTES: u64 = 64 << 20;

/// Either end of a session.
#[derive(Debug, Clone)]
pub enum AnyEnd {
    /// It sends.
    Send(SenderControl),
    /// It receives.
    Receive(ReceiverControl),
}

impl AnyEnd {
    /// What both ends share.
    #[must_use]
    pub fn session(&self) -> &Session {
        match self {
            Self::Send(end) => &end.0.session,
            Self::Receive(end) => &end.0.session,
        }
    }

    /// The end as its control connection sees it.
    #[must_use]
    pub fn control(&self) -> &dyn End {
        match self {
            Self::Send(end) => end,
            Self::Receive(end) => end,
        }
    }

    /// Starts its threads.
    pub fn start(&self) {
        match self {
            Self::Send(end) => end.0.start(),
            Self::Receive(end) => end.0.start(),
        }
    }

    /// What was done so far.
    #[must_use]
    pub fn tally(&self) -> TransferTally {
        match self {
            Self::Send(end) => end.0.tally(),
            Self::Receive(end) => end.0.tally(),
        }
    }

    /// Wants these paths of a sender that waits for a list; a sending end wants nothing.
    pub fn want(&self, list: Arc<PathList>) {
        if let Self::Receive(end) = self {
            end.0.with_machine(|machine| machine.request_paths(list));
        }
    }

    /// Keeps the files that come into place for [`AnyEnd::take_placed`]; with `digest_skipped` those
    /// that were there already are read for their digest.
    pub fn keep_placed(&self, digest_skipped: bool) {
        match self {
            Self::Send(end) => end.0.keep_placed(digest_skipped),
            Self::Receive(end) => end.0.keep_placed(digest_skipped),
        }
    }

    /// Files that came into place since the last call.
    #[must_use]
    pub fn take_placed(&self) -> Vec<Placed> {
        match self {
            Self::Send(end) => end.0.take_placed(),
            Self::Receive(end) => end.0.take_placed(),
        }
    }

    /// What became of everything since the last call, where a sending end keeps an account.
    #[must_use]
    pub fn take_settled(&self) -> Vec<Settled> {
        match self {
            Self::Send(end) => end.0.take_settled(),
            Self::Receive(_) => Vec::new(),
        }
    }

    /// Whether it receives a file with this partial name that is not in place yet.
    #[must_use]
    pub fn has_partial(&self, name: &std::ffi::OsStr) -> bool {
        match self {
            Self::Send(_) => false,
            Self::Receive(end) => end.0.has_partial(name),
        }
    }

    /// `send` or `receive`.
    #[must_use]
    pub fn direction(&self) -> &'static str {
        match self {
            Self::Send(_) => "send",
            Self::Receive(_) => "receive",
        }
    }

    /// Reader and writer threads per device; zero where this end has none.
    #[must_use]
    pub fn threads(&self) -> (u16, u16) {
        match self {
            Self::Send(end) => (end.0.readers.wanted(), 0),
            Self::Receive(end) => (0, end.0.writers.wanted()),
        }
    }

    /// Stops the transfer at both ends.
    pub fn cancel(&self, reason: &str) {
        match self {
            Self::Send(end) => end.0.cancel(reason),
            Self::Receive(end) => end.0.cancel(reason),
        }
    }

    /// Changes both ends.
    pub fn change(&self, settings: Settings) {
        match self {
            Self::Send(end) => end.0.apply(&settings),
            Self::Receive(end) => end.0.apply(&settings),
        }
        self.session().change(settings);
    }

    /// TCP segments sent again by the sending end.
    #[must_use]
    pub fn retransmits(&self) -> u64 {
        match self {
            Self::Send(end) => end.0.session.retransmits(),
            Self::Receive(end) => end.0.session.peer().retransmits,
        }
    }

    /// Carries blocks on a connected stream until it ends.
    ///
    /// # Errors
    /// When the stream broke.
    pub fn run_stream(
        &self,
        stream: StreamId,
        channel: Channel,
        nonces: &Nonces,
    ) -> io::Result<()> {
        self.run_stream_while(stream, channel, nonces, || true)
    }

    /// As [`AnyEnd::run_stream`], until the stream is not wanted any more.
    ///
    /// # Errors
    /// When the stream broke.
    pub fn run_stream_while(
        &self,
        stream: StreamId,
        channel: Channel,
        nonces: &Nonces,
        wanted: impl Fn() -> bool,
    ) -> io::Result<()> {
        let session = self.session();
        session.settle_near(channel.transport());
        let authenticator = match session.options.protection {
            Protection::Full => None,
            Protection::Integrity => Some(session.authenticator(stream, nonces)),
        };
        match self {
            Self::Send(end) => end.0.run_stream(stream, channel, authenticator, wanted),
            Self::Receive(end) => end.0.run_stream(stream, channel, authenticator),
        }
    }

    /// Adds what the session did to an agent's counters.
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

/// The rate and bound of a session, between two looks at it.
#[derive(Debug)]
pub struct RateMeter {
    /// Mean rate between the looks.
    pub bits_per_second: u64,
    /// What bounded it.
    pub bound_by: &'static str,
    /// Whose counters `last` holds: those of another session begin at zero.
    session: Option<SessionId>,
    last: Option<(Instant, u64, u64, Report, Report)>,
    /// For how many microseconds it was bounded by what.
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
    /// Looks, if some time has passed since the last look.
    pub fn observe(&mut self, end: &AnyEnd) {
        const BETWEEN: Duration = Duration::from_millis(450);
        let session = end.session();
        let now = Instant::now();
        if self.session.replace(session.id) != Some(session.id) {
            self.last = None;
        }
        if self.last.as_ref().is_some_and(|(at, ..)| at.elapsed() < BETWEEN) {
            return;
        }
        let bytes = session.meter.network_bytes.load(Ordering::Relaxed);
        let rate_us = session.meter.waited_rate_us.load(Ordering::Relaxed);
        let (own, peer) = (session.report(), session.peer());
        if let Some((at, bytes_before, rate_before, own_before, peer_before)) = &self.last {
            let elapsed_us = u64::try_from(at.elapsed().as_micros()).unwrap_or(u64::MAX).max(1);
            let bits = (bytes - bytes_before) as f64 * 8.0;
            self.bits_per_second = (bits * 1e6 / elapsed_us as f64) as u64;
            let own_share = Share::between(own_before, &own, elapsed_us);
            let peer_share = Share::between(peer_before, &peer, elapsed_us);
            let rate = rate_share(rate_us - rate_before, elapsed_us, &own);
            self.bound_by = bound_of(end, own_share, peer_share, rate);
            *self.bounded_us.entry(self.bound_by).or_default() += elapsed_us;
        }
        self.last = Some((now, bytes, rate_us, own, peer));
    }

    /// The mean rate of a session from its start to now, and what bounded it most of that time; `-` where
    /// nothing moved.
    #[must_use]
    pub fn of_all(&self, end: &AnyEnd) -> (u64, &'static str) {
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
        // It was too short to be looked at twice; how busy its processors were is not known.
        let share = |report: &Report| Share {
            cpu: 0.0,
            ..Share::between(&Report::default(), report, elapsed_us)
        };
        let (own, peer) = (session.report(), session.peer());
        let rate_us = session.meter.waited_rate_us.load(Ordering::Relaxed);
        let rate = rate_share(rate_us, elapsed_us, &own);
        (mean, bound_of(end, share(&own), share(&peer), rate))
    }
}

/// The part of its streams' time that an end waited for its rate limit.
fn rate_share(waited_us: u64, elapsed_us: u64, report: &Report) -> f64 {
    waited_us as f64 / (elapsed_us.max(1) as f64 * f64::from(report.streams.max(1)))
}

fn bound_of(end: &AnyEnd, own: Share, peer: Share, rate: f64) -> &'static str {
    match end {
        AnyEnd::Send(_) => bound_by(own, peer, rate),
        AnyEnd::Receive(_) => bound_by(peer, own, rate),
    }
}

/// Checks options that come from a peer.
///
/// # Errors
/// When they are outside of what the protocol allows.
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

/// The block size that a request asks for; zero where it asks for no session.
#[must_use]
pub fn block_bytes(request: &Request) -> u32 {
    match request {
        Request::Push(push) => push.options.block_bytes,
        Request::Pull(pull) => pull.options.block_bytes,
        Request::ThirdParty(both) => both.pull.options.block_bytes,
        Request::Reconnect(_) | Request::Check(()) => 0,
    }
}

/// What a request is granted with.
pub struct Grant<'a> {
    /// Who may do what.
    pub keeper: &'a dyn Gatekeeper,
    /// Who asks.
    pub caller: &'a Caller,
    /// How files are read and written.
    pub engine: Engine,
    /// Where journals are kept; without it no transfer that breaks off resumes.
    pub state: Option<&'a Path>,
    /// Memory for blocks.
    pub memory_bytes: u64,
    /// Where threads run.
    pub homes: Option<Homes>,
    /// A rate shared with other sessions.
    pub pace: Option<Arc<Pace>>,
    /// Where fireflies go, besides to the peers of what is sent.
    pub collectors: &'a [SocketAddr],
    /// Where they count.
    pub fireflies: &'a Arc<Sent>,
    /// Files that are being written, for callers with a pass.
    pub locks: Option<&'a FileLocks>,
    /// Ends sessions of the caller that have lost their client and have a partial file open.
    pub release_partial: Option<Arc<ReleasePartial>>,
}

impl std::fmt::Debug for Grant<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grant").field("caller", &self.caller).finish_non_exhaustive()
    }
}

/// An end that was made.
#[derive(Debug)]
pub struct Granted {
    /// The end.
    pub end: AnyEnd,
    /// What it is about.
    pub path: String,
    /// Name of its journal.
    pub journal: Option<JournalName>,
}

impl Grant<'_> {
    /// Makes the end that a request asks for. `release` ends a session that still uses a journal, if it has lost its
    /// client, and says whether the client that asks now is still connected.
    ///
    /// # Errors
    /// When the request cannot be granted.
    pub fn make(
        &self,
        request: &Request,
        release: &dyn Fn(&JournalName) -> bool,
    ) -> Result<Granted, Refusal> {
        match request {
            Request::Push(push) => self.receive(push, release),
            Request::Pull(pull) => self.send(pull, &pull.options, None),
            Request::ThirdParty(request) => {
                let session = &request.session;
                // The destination has said whose data it takes it for.
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

    /// The options, with the mark that the operator has for a path.
    fn marked(&self, options: &Options, path: &[u8]) -> Result<Options, Refusal> {
        let mark = self.keeper.mark(self.caller, path, options.mark)?;
        Ok(Options { mark, ..options.clone() })
    }

    fn send(
        &self,
        pull: &Pull,
        options: &Options,
        given: Option<(SessionId, SessionKey)>,
    ) -> Result<Granted, Refusal> {
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
                sources.push(Source { dir, path: PathBuf::new() });
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
        // One that is not there does not keep the others.
        if sources.is_empty() && !missing.is_empty() {
            return Err(missing.swap_remove(0).1);
        }
        let path = pull.sources.first().map_or(&[][..], |path| &path.0);
        let session = self.session(&self.marked(options, path)?, given)?;
        let missing = missing.into_iter().map(|(path, refusal)| missing_source(path, refusal));
        let end = SenderEnd::new(session, self.engine, sources, pull.recursive);
        let end = end.missing(missing.collect());
        let end = if pull.listed { end.listed() } else { end };
        let more = match shown.len() {
            0 | 1 => String::new(),
            count => format!(" and {} more", count - 1),
        };
        let path = shown.first().map_or_else(String::new, |first| format!("{first}{more}"));
        let end = AnyEnd::Send(SenderControl(Arc::new(end)));
        Ok(Granted { end, path, journal: None })
    }

    fn receive(
        &self,
        push: &Push,
        release: &dyn Fn(&JournalName) -> bool,
    ) -> Result<Granted, Refusal> {
        let place = self.keeper.place(self.caller, &push.target.0, true)?;
        let (base, rename) = target_at(place.root, &place.path, push.into_directory)
            .map_err(|error| refuse(&place.shown, &error))?;
        let trusted = self.keeper.trusts_owners();
        let target = Target::new(base, rename, push.transfer_key, trusted);
        let options = self.marked(&push.options, &push.target.0)?;
        let (end, journal) = self.receiver(target, &options, None, release)?;
        Ok(Granted { end, path: place.shown, journal: Some(journal) })
    }

    /// Makes a receiving end with its journal, of the session `given` or a new one.
    ///
    /// # Errors
    /// When the same transfer is running, or the state directory cannot be used.
    pub fn receiver(
        &self,
        target: Target,
        options: &Options,
        given: Option<(SessionId, SessionKey)>,
        release: &dyn Fn(&JournalName) -> bool,
    ) -> Result<(AnyEnd, JournalName), Refusal> {
        /// How long the threads of a session that ended may take to let go of its journal.
        const LET_GO_WITHIN: Duration = Duration::from_secs(5);
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
            // A client that is gone would keep the journal from its own next attempt.
            if !release(&name) {
                return Err(Refusal::new(RefusalKind::Busy, "its client is gone"));
            }
            match Journal::open(&store, &name, at.clone(), options) {
                Ok(journal) => break journal,
                Err(JournalError::Running) if start.elapsed() < LET_GO_WITHIN => {
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
            // Nothing keeps the same command from running twice: each has names of its own.
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
        Ok((AnyEnd::Receive(ReceiverControl(Arc::new(end))), name))
    }
}

/// A refusal names the path too.
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

/// The source at `path` below `root`, found from the directory that holds it.
///
/// # Errors
/// When there is nothing.
pub fn source_at(root: Dir, path: &[u8], shown: &str) -> Result<Source, Refusal> {
    let path = PathBuf::from(OsString::from_vec(path.to_vec()));
    let find = || -> io::Result<Source> {
        if path.as_os_str().is_empty() {
            return Ok(Source { dir: Arc::new(root), path: PathBuf::new() });
        }
        root.stat(&path)?;
        let (dir, name) = root.parent(&path)?;
        Ok(Source { dir: Arc::new(dir), path: PathBuf::from(name) })
    };
    find().map_err(|error| refuse(shown, &error))
}

/// The directory that files go into, and the name of a single file if it takes another.
///
/// # Errors
/// When it is not there and cannot be made.
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
    fn a_block_is_a_power_of_two_within_its_limits() {
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
