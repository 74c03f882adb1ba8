//! Lowers the arguments into a running transfer.

use std::net::{IpAddr, SocketAddr};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use penstock_host::placement::NumaPlacement;
use penstock_identity::{Fingerprint, tls_client_config};
use penstock_mover::{
    CleartextNetworks, ClientTransfer, CopyError, Dial, Endpoint, MakeEnd, PeerConnector,
    ResumeJournal, SenderControl, Session, SessionBuilder, SessionOrigin, StreamDscp, StreamTuning,
    TcpDial, ThirdPartyTransfer, TransferConfig, TransferTarget, TransportChoice, check_options,
    default_streams, target_at,
};
use penstock_protocol::control::Settings;
use penstock_protocol::digest::Algorithm;
use penstock_protocol::list::PathList;
use penstock_protocol::manifest::display_path;
use penstock_protocol::open::{
    Existing, Mark, Opened, Options, PacketLabel, Protection, Pull, Push, Request,
};
use penstock_protocol::proof::SessionKey;
use penstock_protocol::wire::Bytes;
use penstock_sys::fs::Dir;
use penstock_units::Dscp;

use super::list;
use super::local::{self, LocalCopy, UserGate};
use super::location::{self, Location};
use super::sources::Sources;
use super::ssh_remote::{self, RemoteProcess};
use super::third_party as third_party_copy;
use super::tuning;
use super::{CopyTransport, CpArgs, Labels, Protect, Streams};
use crate::credentials::{self, AgentAddress, Service};
use crate::exit::{chain_line, say};

/// Reason why a copy did not start.
#[derive(Debug)]
pub(crate) enum StartError {
    /// Contradictory or invalid arguments.
    Usage(String),
    /// No credentials for the agent.
    Identity(String),
    /// The list of files is empty.
    Nothing,
    /// The copy failed to start.
    Copy(CopyError),
}

impl From<CopyError> for StartError {
    fn from(error: CopyError) -> Self {
        Self::Copy(error)
    }
}

impl From<StartError> for CopyError {
    fn from(error: StartError) -> Self {
        match error {
            StartError::Copy(error) => error,
            StartError::Usage(text) | StartError::Identity(text) => Self::caller(text),
            StartError::Nothing => Self::caller("there is nothing to copy"),
        }
    }
}

pub(crate) fn usage(text: impl Into<String>) -> StartError {
    StartError::Usage(text.into())
}

pub(crate) fn failed(text: impl Into<String>) -> StartError {
    StartError::Copy(CopyError::caller(text.into() as String))
}

/// A running copy, by the place of its ends.
pub(crate) enum RunningCopy {
    /// This process is one end.
    Remote {
        /// Session with the other end.
        transfer: ClientTransfer,
        /// Remote process that ssh started.
        remote: Option<RemoteProcess>,
    },
    /// Third-party copy between two agents.
    ThirdParty {
        /// Monitoring connection to the source's agent.
        transfer: ThirdPartyTransfer,
        /// Remote processes that ssh started.
        remotes: [Option<RemoteProcess>; 2],
    },
    /// Both ends are in this process.
    Local(LocalCopy),
}

/// Starts the copy that the arguments describe.
///
/// # Errors
/// When arguments are invalid, or the other end cannot be reached.
pub(crate) fn start(
    args: &CpArgs,
    homes: Option<NumaPlacement>,
) -> Result<RunningCopy, StartError> {
    let Some((to, from @ [_, ..])) = args.paths.split_last() else {
        return Err(usage("a copy needs a source and a destination"));
    };
    let to_text = to.as_bytes().to_vec();
    let to = location::parse(to).map_err(|error| usage(error.to_string()))?;
    let texts = from;
    let from = from
        .iter()
        .map(|source| location::parse(source).map_err(|error| usage(error.to_string())))
        .collect::<Result<Vec<_>, _>>()?;
    location::refuse_same_names(&from, texts).map_err(|error| usage(error.to_string()))?;
    let options = options(args)?;
    let many = from.len() > 1 || args.recursive || args.files_from.is_some();
    let into_directory = many || to_text.ends_with(b"/");
    let local: Vec<_> = from
        .iter()
        .map_while(|place| match place {
            Location::Local(path) => Some(path.clone()),
            _ => None,
        })
        .collect();
    refuse_list_over_copy(args, &from, &to, into_directory)?;
    refuse_impossible_rdma(args, local.len() == from.len(), &to)?;
    refuse_impossible_dscp(args, local.len() == from.len(), &to)?;
    match (local.len() == from.len(), &to) {
        (true, Location::Local(target)) => {
            refuse_into_itself(&local, target)?;
            let list = list::read(args, from.len())?;
            let key = transfer_key(args, list.as_ref());
            let list = list.map(|list| list::for_here(args, list)).transpose()?;
            let sources = Sources::find(&local, list)?;
            let target = || local_target(target, into_directory, key);
            Ok(RunningCopy::Local(local::start(args, options, sources, &target, homes)?))
        }
        (true, remote) => push(args, options, homes, &local, remote, into_directory),
        (false, Location::Local(target)) => {
            pull(args, options, homes, &from, target, into_directory)
        }
        (false, remote) => third_party_copy::start(args, options, &from, remote, into_directory),
    }
}

/// Refuses a copy of a directory into itself, which would not end.
fn refuse_into_itself(sources: &[PathBuf], target: &Path) -> Result<(), StartError> {
    let absolute = std::path::absolute(target).unwrap_or_else(|_| target.to_owned());
    let existing = absolute.ancestors().find_map(|path| path.canonicalize().ok());
    let inside = |source: &&PathBuf| {
        let source = source.canonicalize().ok().filter(|source| source.is_dir());
        source.zip(existing.as_ref()).is_some_and(|(source, target)| target.starts_with(source))
    };
    match sources.iter().find(inside) {
        None => Ok(()),
        Some(source) => Err(usage(format!(
            "{} lies inside {}: a directory cannot be copied into itself",
            display_path(target.as_os_str().as_bytes()),
            display_path(source.as_os_str().as_bytes()),
        ))),
    }
}

/// Refuses a `--checksum-file` that would replace a source or a file of the copy.
fn refuse_list_over_copy(
    args: &CpArgs,
    from: &[Location],
    to: &Location,
    into_directory: bool,
) -> Result<(), StartError> {
    let Some(list) = &args.checksum_file else { return Ok(()) };
    let whole = |path: &Path| {
        path.canonicalize()
            .or_else(|_| std::path::absolute(path))
            .unwrap_or_else(|_| path.to_owned())
    };
    let shown = || display_path(list.as_os_str().as_bytes());
    let list_path = whole(list);
    for place in from {
        if let Location::Local(source) = place
            && whole(source) == list_path
        {
            return Err(usage(format!(
                "--checksum-file {} is a source: name another file",
                shown()
            )));
        }
    }
    let Location::Local(target) = to else { return Ok(()) };
    let target = whole(target);
    let arrivals = from.iter().map(|place| match into_directory || target.is_dir() {
        true => match location::arrives_as(place) {
            Some(name) => (target.join(name), place),
            None => (target.clone(), place),
        },
        false => (target.clone(), place),
    });
    for (arrival, place) in arrivals {
        let is_of_source = |below: &Path| match place {
            Location::Local(source) => source.join(below).exists(),
            _ => false,
        };
        let below = list_path.strip_prefix(&arrival).ok();
        if below.is_some_and(|below| below.as_os_str().is_empty() || is_of_source(below)) {
            return Err(usage(format!(
                "--checksum-file {} is where a file of the copy arrives: name another file",
                shown()
            )));
        }
    }
    Ok(())
}

fn options(args: &CpArgs) -> Result<Options, StartError> {
    refuse_digests_of_none(args)?;
    let block_bytes = u32::try_from(args.block.0).unwrap_or(u32::MAX);
    let Streams(streams) = args.streams;
    let options = Options {
        block_bytes,
        algorithm: args.checksum,
        protection: protection(args),
        inplace: args.inplace,
        xattrs: args.xattrs,
        compare_digest: args.compare.is_some(),
        readback: args.verify.is_some(),
        existing: Existing::Replace,
        mark: mark(args)?,
        settings: Settings {
            rate_bps: args.rate.map(|rate| rate.0),
            streams: Some(streams.unwrap_or_else(|| default_streams(args.checksum))),
            readers: args.readers.map(Into::into),
            writers: args.writers.map(Into::into),
        },
    };
    check_options(&options).map_err(|refusal| usage(format!("--block: {}", refusal.text)))?;
    if args.memory.0 < 4 * args.block.0 {
        return Err(usage(format!(
            "--memory {} holds fewer than four blocks of {}",
            args.memory, args.block
        )));
    }
    Ok(options)
}

/// Refuses options that need digests together with `--checksum none`.
fn refuse_digests_of_none(args: &CpArgs) -> Result<(), StartError> {
    let needs = [
        ("--verify readback", args.verify.is_some()),
        ("--compare digest", args.compare.is_some()),
        ("--checksum-file", args.checksum_file.is_some()),
    ];
    match needs.iter().find(|(_, given)| *given) {
        Some((option, _)) if args.checksum == Algorithm::None => Err(usage(format!(
            "{option} needs digests and --checksum none makes none: name one, such as crc32c, or \
             leave --checksum out"
        ))),
        _ => Ok(()),
    }
}

/// Scitag of the arguments, if given.
fn mark(args: &CpArgs) -> Result<Option<Mark>, StartError> {
    let Some(name) = &args.scitag else { return Ok(None) };
    let tag = crate::tag::lookup(name)
        .map_err(|error| usage(format!("--scitag {}", chain_line(&error))))?;
    let label = match args.label {
        Labels::Flow => PacketLabel::Flow,
        Labels::Destination => PacketLabel::Destination,
        Labels::None => PacketLabel::None,
    };
    let scitag = u16::try_from(tag.number()).unwrap_or(u16::MAX);
    Ok(Some(Mark { scitag, label }))
}

/// Firefly collectors besides the peers.
fn collectors(args: &CpArgs) -> Result<Vec<SocketAddr>, StartError> {
    let resolve = |place: &String| {
        penstock_agent::fireflies::resolve(place)
            .map_err(|error| usage(format!("--collector {error}")))
    };
    args.collector.iter().map(resolve).collect()
}

fn protection(args: &CpArgs) -> Protection {
    match args.protect {
        Protect::Full => Protection::Full,
        Protect::Integrity => Protection::Integrity,
    }
}

fn transport(args: &CpArgs) -> TransportChoice {
    match args.transport {
        CopyTransport::Tcp => TransportChoice::Tcp,
        CopyTransport::Rdma => TransportChoice::Rdma,
        CopyTransport::Auto => TransportChoice::Auto,
    }
}

/// Refuses `--transport rdma` where RDMA is out of the question; `auto` copies there by TCP.
fn refuse_impossible_rdma(args: &CpArgs, from_here: bool, to: &Location) -> Result<(), StartError> {
    let to_here = matches!(to, Location::Local(_));
    let why = match (args.transport, args.protect) {
        (CopyTransport::Tcp | CopyTransport::Auto, _) => return Ok(()),
        (_, Protect::Full) => {
            "does not encrypt: add --protect integrity, with which blocks keep checksum and \
             authentication, or use TCP"
        }
        _ if from_here && to_here => "needs another host: a copy within this one has no streams",
        _ if args.via_ssh => "needs a network between the hosts: leave out --via-ssh, or use TCP",
        _ => return Ok(()),
    };
    Err(usage(format!("--transport rdma {why}")))
}

/// Refuses `--dscp` where no packets of this command carry the data.
fn refuse_impossible_dscp(args: &CpArgs, from_here: bool, to: &Location) -> Result<(), StartError> {
    let why = match args.dscp {
        None => return Ok(()),
        Some(_) if from_here && matches!(to, Location::Local(_)) => {
            "needs another host: a copy within this one has no packets"
        }
        Some(_) if args.via_ssh => {
            "is not for packets of ssh: leave out --via-ssh, or set IPQoS of ssh (ssh_config(5))"
        }
        Some(_) => return Ok(()),
    };
    Err(usage(format!("--dscp {why}")))
}

/// Identifies transfers of the same sources and list from the same host, however they are spelled: two of them into one
/// directory are the same transfer.
pub(super) fn transfer_key(args: &CpArgs, list: Option<&PathList>) -> [u8; 16] {
    let mut hasher = penstock_mover::key_hasher();
    let machine = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    let sources = args.paths.split_last().map_or(&[][..], |(_, sources)| sources);
    let sources = sources.iter().map(|source| match location::parse(source) {
        Ok(Location::Local(path)) => {
            let contents_alone = source.as_bytes().ends_with(b"/.") || source == ".";
            let path = path.canonicalize().unwrap_or(path).into_os_string();
            (path.into_vec(), contents_alone)
        }
        Ok(remote) => (remote_path(&remote), false),
        Err(_) => (source.as_bytes().to_vec(), false),
    });
    let sources: Vec<_> = sources.collect();
    let parts = sources
        .iter()
        .flat_map(|(path, contents)| [path.as_slice(), if *contents { b"/." } else { b"" }]);
    let listed = list.into_iter().flat_map(PathList::iter);
    for part in std::iter::once(machine.as_bytes()).chain(parts).chain(listed) {
        hasher.update(&(part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
    hasher.finalize().as_bytes()[..16].try_into().expect("a hash has 32 bytes")
}

/// State directory, which holds the journals.
///
/// # Errors
/// When the directory cannot be created.
pub(crate) fn state_directory() -> anyhow::Result<PathBuf> {
    Ok(credentials::state()?.path().to_owned())
}

/// Directory for journals of copies to this machine; if it cannot be written, prints that copies cannot be resumed.
pub(super) fn journals() -> Option<PathBuf> {
    let found = state_directory().and_then(|state| {
        ResumeJournal::can_be_kept(&state)?;
        Ok(state)
    });
    found
        .inspect_err(|why| {
            say(format_args!(
                "warning: {}: this copy cannot be resumed (PENSTOCK_STATE names another directory)",
                chain_line(why)
            ));
        })
        .ok()
}

fn local_target(
    path: &Path,
    into_directory: bool,
    key: [u8; 16],
) -> Result<TransferTarget, StartError> {
    let shown = display_path(path.as_os_str().as_bytes());
    let absolute =
        std::path::absolute(path).map_err(|error| failed(format!("{shown}: {error}")))?;
    let relative = absolute.strip_prefix("/").unwrap_or(&absolute);
    let resolve = || -> std::io::Result<TransferTarget> {
        // The user's own links may lead anywhere, so the deepest directory that exists is opened by name.
        let existing = absolute.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/"));
        let rest = absolute.strip_prefix(existing).unwrap_or(relative);
        let root = Dir::open(existing)?;
        let at = target_at(root, rest.as_os_str().as_bytes(), into_directory)?;
        Ok(TransferTarget::new(at, key, true))
    };
    resolve().map_err(|error| failed(format!("{shown}: {}", penstock_sys::fs::describe(&error))))
}

/// Route and credentials to a remote end.
pub(super) struct Reach {
    /// Opens connections to the remote end.
    pub contact: PeerConnector,
    /// Fingerprint of the remote end's certificate.
    pub fingerprint: Fingerprint,
    /// Host and port by which another agent can reach it.
    pub address: (String, u16),
    /// Remote process that ssh started, if any.
    pub remote: Option<RemoteProcess>,
}

/// Resolves how to reach a location; over the chosen addresses if it carries data.
pub(super) fn reach(
    args: &CpArgs,
    place: &Location,
    carries_data: bool,
) -> Result<Reach, StartError> {
    let (to, from): (&[IpAddr], &[IpAddr]) =
        if carries_data { (&args.to, &args.from) } else { (&[], &[]) };
    let tcp = |(host, port): &(String, u16)| {
        TcpDial::new(host, *port, to, from, args.congestion.clone())
            .map(|dial| Arc::new(dial) as Arc<dyn Dial>)
            .map_err(|error| failed(error.to_string()))
    };
    let (dial, address, token, fingerprint, tls, remote) = match place {
        Location::Agent { host, port, .. } => {
            let address = (host.clone(), *port);
            let dial = tcp(&address)?;
            let known_as = AgentAddress { host: host.to_ascii_lowercase(), port: *port };
            let known = credentials::state()
                .and_then(|state| credentials::find_agent(&state, &known_as))
                .and_then(|known| {
                    known.ok_or_else(|| credentials::unknown(Service::Mover, &known_as))
                });
            let identity = |error: anyhow::Error| StartError::Identity(chain_line(&error));
            let known = known.map_err(identity)?;
            let tls = known.tls().map_err(identity)?;
            (dial, address, known.token, known.fingerprint, tls, None)
        }
        Location::Ssh { login, host, .. } => {
            let started =
                ssh_remote::start(args, login).map_err(|error| failed(chain_line(&error)))?;
            let address = (host.clone(), started.port());
            let dial = if args.via_ssh { started.dial(args, login) } else { tcp(&address)? };
            let (token, fingerprint) = (started.token().to_owned(), started.fingerprint());
            let tls =
                tls_client_config(fingerprint, None).map_err(|error| failed(error.to_string()))?;
            (dial, address, token, fingerprint, tls, Some(started))
        }
        Location::Local(_) => return Err(usage("a local place needs no way to it")),
    };
    let protection = protection(args);
    let give_up_after = args.give_up_after;
    let transport = transport(args);
    let cleartext = CleartextNetworks::default();
    let dscp = StreamDscp { requested: args.dscp, own: Dscp::DEFAULT };
    let contact =
        PeerConnector { dial, tls, token, protection, transport, cleartext, dscp, give_up_after };
    Ok(Reach { contact, fingerprint, address, remote })
}

fn begin(
    reach: Reach,
    request: Request,
    make_end: Box<MakeEnd>,
    tuning: StreamTuning,
) -> Result<RunningCopy, StartError> {
    let plan = TransferConfig {
        contact: reach.contact,
        begin: SessionOrigin::Requested(request),
        make_end,
        tuning,
    };
    let transfer =
        ClientTransfer::start(plan).map_err(|error| failed(penstock_sys::fs::describe(&error)))?;
    Ok(RunningCopy::Remote { transfer, remote: reach.remote })
}

pub(super) fn remote_path(place: &Location) -> Vec<u8> {
    match place {
        Location::Agent { path, .. } | Location::Ssh { path, .. } => path.clone(),
        Location::Local(path) => path.as_os_str().as_bytes().to_vec(),
    }
}

fn push(
    args: &CpArgs,
    options: Options,
    homes: Option<NumaPlacement>,
    local: &[PathBuf],
    remote: &Location,
    into_directory: bool,
) -> Result<RunningCopy, StartError> {
    // Check for missing sources before connecting. The list is read once, as it may be standard input.
    let list = list::read(args, local.len())?;
    let key = transfer_key(args, list.as_ref());
    let list = list.map(|list| list::for_here(args, list)).transpose()?;
    Sources::find(local, list.clone())?;
    let reach = reach(args, remote, true)?;
    let push = Push {
        target: Bytes(remote_path(remote)),
        into_directory,
        transfer_key: key,
        options: options.clone(),
    };
    let (engine, memory, recursive) = (args.engine, args.memory.0, args.recursive);
    let collectors = collectors(args)?;
    let local = local.to_vec();
    let sums = args.checksum_file.is_some();
    let keep = args.json || sums;
    let make_end = move |opened: &Opened| -> Result<Endpoint, CopyError> {
        let sources = Sources::find(&local, list.clone())?;
        let key = SessionKey(opened.key);
        let options = Options { mark: opened.mark, ..options.clone() };
        let session = Session::new(opened.session, key, options, memory, None)
            .map(|session| session.with_collectors(&collectors, &Arc::default()))
            .map(|session| session.with_homes(homes.clone()))
            .map_err(CopyError::from)?;
        let end = sources.sender(session, engine, recursive);
        let end = Endpoint::Send(SenderControl(Arc::new(end)));
        if keep {
            end.keep_placed(sums);
        }
        Ok(end)
    };
    begin(reach, Request::Push(push), Box::new(make_end), tuning::of_sender(args))
}

/// Returns the first of some remote locations, which must be on one host.
pub(super) fn one_host(places: &[Location]) -> Result<&Location, StartError> {
    let Some(first) = places.first() else { return Err(usage("a copy needs a source")) };
    if places.iter().all(|place| place.has_host_of(first)) {
        Ok(first)
    } else {
        Err(usage("sources lie on different hosts: copy from one host at a time"))
    }
}

fn pull(
    args: &CpArgs,
    options: Options,
    homes: Option<NumaPlacement>,
    from: &[Location],
    target: &Path,
    into_directory: bool,
) -> Result<RunningCopy, StartError> {
    let first = one_host(from)?;
    let list = list::read(args, from.len())?;
    let key = transfer_key(args, list.as_ref());
    let list = list.map(list::for_there).transpose()?;
    local_target(target, into_directory, key)?;
    let reach = reach(args, first, true)?;
    let pull = Pull {
        sources: from.iter().map(|place| Bytes(remote_path(place))).collect(),
        recursive: args.recursive,
        listed: list.is_some(),
        options: options.clone(),
    };
    let state = journals();
    let (engine, memory_bytes, target) = (args.engine, args.memory.0, target.to_owned());
    let sums = args.checksum_file.is_some();
    let keep = args.json || sums;
    let make_end = move |opened: &Opened| -> Result<Endpoint, CopyError> {
        let base = local_target(&target, into_directory, key)?;
        let caller = local::caller();
        let grant = SessionBuilder {
            keeper: &UserGate,
            caller: &caller,
            engine,
            state: state.as_deref(),
            memory_bytes,
            homes: homes.clone(),
            pace: None,
            collectors: &[],
            fireflies: &Arc::default(),
            locks: None,
            release_partial: None,
        };
        let given = (opened.session, SessionKey(opened.key));
        let end = grant
            .receiver(base, &options, Some(given), &|_| true)
            .map(|(end, _)| end)
            .map_err(local::refused)?;
        if let Some(list) = &list {
            end.request_paths(Arc::clone(list));
        }
        if keep {
            end.keep_placed(sums);
        }
        Ok(end)
    };
    begin(reach, Request::Pull(pull), Box::new(make_end), tuning::of_receiver(args))
}
