//! Copies within this machine: both ends in this process, joined by sockets.

use std::io;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use penstock_host::placement::NumaPlacement;
use penstock_identity::Fingerprint;
use penstock_mover::{
    Backoff, Caller, CopyError, Endpoint, Gatekeeper, RateMeter, ResolvedPath, SenderControl,
    Session, SessionBuilder, SessionOutcome, TransferSnapshot, TransferTarget, join_locally,
};
use penstock_protocol::open::{Options, Protection, Refusal, RefusalKind};
use penstock_scopes::PathAccess;
use penstock_sys::fs::Dir;

use super::CpArgs;
use super::plan::StartError;
use super::sources::Sources;
use crate::exit::say;

/// The user of this process; the kernel decides about access.
pub(crate) fn caller() -> Caller {
    Caller { name: "local user".to_owned(), pass: None, token: None, grant: None }
}

/// Grants the user of this process all that the kernel permits, in local copies and at remote ends of ssh.
#[derive(Debug)]
pub(crate) struct UserGate;

impl Gatekeeper for UserGate {
    fn authenticate(
        &self,
        _token: &str,
        _certificate: Option<&Fingerprint>,
        _peer: &str,
    ) -> Result<Caller, Refusal> {
        Err(Refusal::new(RefusalKind::Identity, "a local copy accepts no connection"))
    }

    fn place(
        &self,
        _caller: &Caller,
        path: &[u8],
        _access: PathAccess,
    ) -> Result<ResolvedPath, Refusal> {
        place_of_user(path)
    }

    fn trusts_owners(&self) -> bool {
        true
    }
}

/// Resolves an absolute path, or one relative to the current directory.
pub(crate) fn place_of_user(path: &[u8]) -> Result<ResolvedPath, Refusal> {
    use std::os::unix::ffi::OsStrExt;
    let refuse = |text: String| Refusal::new(RefusalKind::NotFound, text);
    let shown = penstock_protocol::manifest::display_path(path);
    let path = std::path::Path::new(std::ffi::OsStr::from_bytes(path));
    let path = if path.as_os_str().is_empty() { std::path::Path::new(".") } else { path };
    let absolute =
        std::path::absolute(path).map_err(|error| refuse(format!("{shown}: {error}")))?;
    // The user's links may lead anywhere, so the deepest existing directory is opened by name.
    let parent = absolute.parent().unwrap_or(&absolute);
    let existing =
        parent.ancestors().find(|path| path.is_dir()).unwrap_or(std::path::Path::new("/"));
    let root = Dir::open(existing)
        .map_err(|error| refuse(format!("{shown}: {}", penstock_sys::fs::describe(&error))))?;
    let rest = absolute.strip_prefix(existing).unwrap_or(std::path::Path::new(""));
    Ok(ResolvedPath { root, path: rest.as_os_str().as_bytes().to_vec(), shown })
}

/// A copy within this process.
pub(crate) struct LocalCopy {
    send: Endpoint,
    receive: Endpoint,
    rate: std::sync::Mutex<RateMeter>,
}

/// Starts a copy from `sources` to `target`.
///
/// # Errors
/// When the target cannot be used.
pub(crate) fn start(
    args: &CpArgs,
    mut options: Options,
    sources: Sources,
    target: &dyn Fn() -> Result<TransferTarget, StartError>,
    homes: Option<NumaPlacement>,
) -> Result<LocalCopy, StartError> {
    let failed = |error: io::Error| StartError::Copy(error.into());
    // A socket pair of one process needs no encryption.
    options.protection = Protection::Integrity;
    // More do not help within one machine, and each has a block.
    let streams = options.settings.streams.unwrap_or(1).min(2);
    options.settings.streams = Some(streams);
    let state = super::plan::journals();
    let caller = caller();
    let grant = SessionBuilder {
        keeper: &UserGate,
        caller: &caller,
        engine: args.engine,
        state: state.as_deref(),
        memory_bytes: args.memory.0 / 2,
        homes: homes.clone(),
        pace: None,
        collectors: &[],
        fireflies: &Arc::default(),
        locks: None,
        release_partial: None,
    };
    let receive = receiver(args, &grant, &options, target)?;
    let session = receive.session();
    let session = Session::new(session.id, session.key().clone(), options, args.memory.0 / 2, None)
        .map(|session| session.with_homes(homes))
        .map_err(failed)?;
    let end = sources.sender(session, args.engine, args.recursive);
    let send = Endpoint::Send(SenderControl(Arc::new(end)));
    if args.json || args.checksum_file.is_some() {
        send.keep_placed(args.checksum_file.is_some());
    }
    join_locally(&send, &receive, streams).map_err(failed)?;
    Ok(LocalCopy { send, receive, rate: std::sync::Mutex::default() })
}

/// Opens the receiving end. Retries while another process runs the same copy, as with a busy agent.
fn receiver(
    args: &CpArgs,
    grant: &SessionBuilder<'_>,
    options: &Options,
    target: &dyn Fn() -> Result<TransferTarget, StartError>,
) -> Result<Endpoint, StartError> {
    let start = Instant::now();
    let mut backoff = Backoff::default();
    let mut warned = false;
    loop {
        let target = target()?;
        let refusal = match grant.receiver(target, options, None, &|_| true) {
            Ok((end, _)) => return Ok(end),
            Err(refusal) => refusal,
        };
        if refusal.kind != RefusalKind::Busy || start.elapsed() > args.give_up_after {
            return Err(StartError::Copy(refused(refusal)));
        }
        if !std::mem::replace(&mut warned, true) && !args.quiet {
            say(format_args!("waiting: {}", refusal.text));
        }
        backoff.pause();
    }
}

/// Converts a refusal of this end; a busy one can be retried.
pub(super) fn refused(refusal: Refusal) -> CopyError {
    match refusal.kind {
        RefusalKind::Busy => CopyError::Refused("this machine".to_owned(), refusal),
        _ => CopyError::RefusedHere(refusal),
    }
}

impl LocalCopy {
    /// Sending end of the copy.
    pub(crate) fn sender(&self) -> &Endpoint {
        &self.send
    }

    /// True if the copy has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.send.session().is_over()
    }

    /// Current counters and settings.
    pub(crate) fn snapshot(&self) -> TransferSnapshot {
        let mut rate = self.rate.lock().unwrap_or_else(PoisonError::into_inner);
        rate.observe(&self.send);
        let report = self.send.session().report();
        let meter = &self.send.session().meter;
        TransferSnapshot {
            tally: self.send.tally(),
            streams: report.streams,
            readers: self.send.threads().0,
            writers: self.receive.threads().1,
            rate_bps: self.send.session().pace.rate_bps(),
            streams_peak: self.send.session().streams_peak(),
            bits_per_second: rate.bits_per_second,
            bound_by: rate.bound_by,
            engines: (report.engine, self.receive.session().engine()),
            network_bytes: meter.network_bytes.load(std::sync::atomic::Ordering::Relaxed),
            cpu_us: (report.cpu_us, 0),
            sessions: 1,
            ..TransferSnapshot::default()
        }
    }

    /// Waits until both ends have finished.
    pub(crate) fn wait(&self) -> Result<TransferSnapshot, CopyError> {
        while !self.is_over() {
            std::thread::sleep(Duration::from_millis(20));
        }
        let ending = self.send.session().ending();
        match (ending, self.receive.session().ending()) {
            (Some(SessionOutcome::Failed(why)), _) | (_, Some(SessionOutcome::Failed(why))) => {
                Err(CopyError::Session(why))
            }
            (Some(SessionOutcome::Cancelled(why)), _) => Err(CopyError::Cancelled(why)),
            _ => Ok(self.snapshot()),
        }
    }
}
