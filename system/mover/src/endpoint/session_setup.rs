//! Session setup: builds the endpoint for a granted request, at an agent or for a local copy.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_host::placement::NumaPlacement;
use penstock_protocol::block::{BLOCK_BYTES_MIN, PAYLOAD_BYTES_MAX};
use penstock_protocol::journal::TargetDirectory;
use penstock_protocol::manifest::display_path;
use penstock_protocol::open::{Options, Pull, Push, Refusal, RefusalKind, Request, SessionId};
use penstock_protocol::proof::SessionKey;
use penstock_protocol::wire::Bytes;
use penstock_scitags::Scitag;
use penstock_scopes::PathAccess;
use penstock_sys::fs::{self, Dir};

use super::end::Endpoint;
use super::receiver::{ReceiverControl, ReceiverEnd};
use super::sender::{SenderControl, SenderEnd};
use crate::base::engine::Engine;
use crate::net::firefly::FireflyCounters;
use crate::net::handshake::random;
use crate::session::gatekeeper::{Caller, Gatekeeper};
use crate::session::rate_limit::SharedPacer;
use crate::session::state::Session;
use crate::sink::destination::{Destination, OpenTarget, ReleasePartial, TransferTarget};
use crate::sink::file_locks::FileLocks;
use crate::sink::resume_journal::{JournalName, ResumeJournal, ResumeJournalError};
use crate::sink::storage::JournalStore;
use crate::source::scan::{Missing, ScanRoot};

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
pub(crate) fn block_bytes(request: &Request) -> u32 {
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
            Request::Push(push) => self.receive(push, &push.options, None, release),
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

    /// Builds the sending end of a copy, for the session `given` or a new one.
    ///
    /// # Errors
    /// If the caller may not read any of the sources, or the request is refused.
    pub(crate) fn send(
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
            let place = match self.keeper.place(self.caller, &path.0, PathAccess::Read) {
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

    /// Builds the receiving end of a copy, for the session `given` or a new one.
    ///
    /// # Errors
    /// If the caller may not write to the target, or the request is refused.
    pub(crate) fn receive(
        &self,
        push: &Push,
        options: &Options,
        given: Option<(SessionId, SessionKey)>,
        release: &dyn Fn(&JournalName) -> bool,
    ) -> Result<BuiltSession, Refusal> {
        let place = self.keeper.place(self.caller, &push.target.0, PathAccess::Replace)?;
        let at = target_at(place.root, &place.path, push.into_directory)
            .map_err(|error| refuse(&place.shown, &error))?;
        let trusted = self.keeper.trusts_owners();
        let target = TransferTarget::new(at, push.transfer_key, trusted);
        let options = self.with_mark(options, &push.target.0)?;
        let (end, journal) = self.receiver(target, &options, given, release)?;
        Ok(BuiltSession { end, path: place.shown, journal: Some(journal) })
    }

    /// Builds a receiving end with its journal, for the session `given` or a new one.
    ///
    /// # Errors
    /// If the same transfer is running or the state directory cannot be used.
    pub fn receiver(
        &self,
        target: TransferTarget,
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
            let Some(state) = self.state else { break ResumeJournal::none() };
            let failed =
                |error: ResumeJournalError| Refusal::new(RefusalKind::Agent, error.to_string());
            let store = JournalStore::open(state).map_err(|error| {
                failed(ResumeJournalError::State(state.join("transfers"), error))
            })?;
            // The session of a lost client would keep the journal from the client's next attempt.
            if !release(&name) {
                return Err(Refusal::new(RefusalKind::Busy, "its client is gone"));
            }
            match ResumeJournal::open(&store, &name, at.clone(), options) {
                Ok(journal) => break journal,
                Err(ResumeJournalError::Running) if start.elapsed() < JOURNAL_RELEASE_TIMEOUT => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(error @ ResumeJournalError::Running) => {
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
pub(crate) fn source_at(root: Dir, path: &[u8], shown: &str) -> Result<ScanRoot, Refusal> {
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

/// Opens the target directory, with the name of a single file if it differs from the source's.
///
/// # Errors
/// If the directory does not exist and cannot be created.
pub fn target_at(root: Dir, path: &[u8], into_directory: bool) -> io::Result<OpenTarget> {
    let path = Path::new(std::ffi::OsStr::from_bytes(path));
    if path.as_os_str().is_empty() {
        return Ok(OpenTarget { base: root, rename: None, is_new: false });
    }
    let is_directory = match root.stat_follow(path) {
        Ok(stat) => stat.kind == fs::Kind::Directory,
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        Err(error) => return Err(error),
    };
    if is_directory {
        return Ok(OpenTarget { base: root.open_dir(path)?, rename: None, is_new: false });
    }
    if into_directory {
        let is_link = |stat: fs::Stat| stat.kind == fs::Kind::Symlink;
        if root.stat(path).is_ok_and(is_link) {
            let text =
                "it is a link that leads to no directory: name another place, or move it away";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        root.create_dir_all(path, 0o777)?;
        return Ok(OpenTarget { base: root.open_dir(path)?, rename: None, is_new: true });
    }
    let mut is_new = false;
    if let Some(above) = path.parent().filter(|above| !above.as_os_str().is_empty()) {
        is_new = root.stat_follow(above).is_err();
        root.create_dir_all(above, 0o777)?;
    }
    let (base, name) = root.parent(path)?;
    Ok(OpenTarget { base, rename: Some(name), is_new })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::test_options::plain_options;

    #[test]
    fn block_size_outside_limits_is_refused() {
        let answer = |block_bytes| check_options(&Options { block_bytes, ..plain_options() });
        for good in [64 << 10, 4 << 20, 64 << 20] {
            answer(good).expect("a block size");
        }
        for bad in [0, 1, 32 << 10, (64 << 10) + 1, 3 << 20, 128 << 20, u32::MAX] {
            let refusal = answer(bad).expect_err("no block size");
            assert_eq!(refusal.kind, RefusalKind::Request, "{bad}: {}", refusal.text);
        }
    }
}
