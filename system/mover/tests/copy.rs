//! An agent and clients in one process, over real sockets and files.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use penstock_host::facts::cpu::NumaNode;
use penstock_host::facts::disks::disk_of;
use penstock_host::facts::{Disk, Facts, Nic};
use penstock_host::placement::NumaPlacement;
use penstock_identity::{Fingerprint, Identity, tls_client_config};
use penstock_mover::{
    Agent, AgentConfig, AgentLimits, Caller, CleartextNetworks, ClientTransfer, CopyError,
    EndedTransfer, EndedTransferLog, Endpoint, Engine, Gatekeeper, OpenTarget, PeerConnector,
    ResolvedPath, ScanRoot, SenderControl, SenderEnd, Session, SessionBuilder, SessionOrigin,
    StreamDscp, StreamTuning, TcpDial, TransferConfig, TransferSnapshot, TransferTarget,
    TransportChoice,
};
use penstock_protocol::control::Settings;
use penstock_protocol::digest::Algorithm;
use penstock_protocol::open::{
    Existing, Options, Protection, Pull, Push, Refusal, RefusalKind, Request,
};
use penstock_protocol::proof::SessionKey;
use penstock_protocol::wire::Bytes;
use penstock_scopes::PathAccess;
use penstock_sys::fs::Dir;
use penstock_sys::machine::{allowed_cpus, parse_cpus};

struct OneExport(PathBuf);

impl Gatekeeper for OneExport {
    fn authenticate(
        &self,
        token: &str,
        _certificate: Option<&Fingerprint>,
        _peer: &str,
    ) -> Result<Caller, Refusal> {
        if token == "secret" {
            Ok(Caller { name: "test".to_owned(), pass: None, token: None, grant: None })
        } else {
            Err(Refusal::new(RefusalKind::Identity, "no"))
        }
    }

    fn place(
        &self,
        _caller: &Caller,
        path: &[u8],
        _access: PathAccess,
    ) -> Result<ResolvedPath, Refusal> {
        let root = Dir::open(&self.0).expect("the export is there");
        let path = path.strip_prefix(b"/").unwrap_or(path).to_vec();
        Ok(ResolvedPath { root, shown: String::from_utf8_lossy(&path).into_owned(), path })
    }
}

/// Lists of the agent as each transfer ends: true if it has the transfer.
#[derive(Debug, Default)]
struct ListsAtEnd {
    agent: OnceLock<Agent>,
    has_ended: Mutex<Vec<bool>>,
}

impl EndedTransferLog for ListsAtEnd {
    fn record(&self, ended: EndedTransfer) {
        let Some(agent) = self.agent.get() else { return };
        let has = agent.transfers().iter().any(|one| one.id == ended.listed.id);
        self.has_ended.lock().expect("no panic").push(has);
    }
}

struct Site {
    _temporary: tempfile::TempDir,
    source: PathBuf,
    export: PathBuf,
    state: PathBuf,
    agent: Agent,
    lists: Arc<ListsAtEnd>,
    identity: Arc<Identity>,
    homes: Option<NumaPlacement>,
}

fn options(algorithm: Algorithm, protection: Protection) -> Options {
    Options {
        block_bytes: 256 << 10,
        algorithm,
        protection,
        inplace: false,
        xattrs: false,
        compare_digest: false,
        readback: false,
        existing: Existing::Replace,
        mark: None,
        settings: Settings { streams: Some(3), ..Settings::default() },
    }
}

impl Site {
    fn new() -> Self {
        Self::with(None)
    }

    /// Pins the threads of both ends to these homes.
    fn with(homes: Option<NumaPlacement>) -> Self {
        let temporary = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
        let path = |name: &str| {
            let path = temporary.path().join(name);
            fs::create_dir(&path).expect("a fresh directory");
            path
        };
        let (source, export, state) = (path("source"), path("export"), path("state"));
        let identity = Arc::new(Identity::generate().expect("randomness"));
        let lists = Arc::new(ListsAtEnd::default());
        let agent = Agent::start(AgentConfig {
            listen: vec!["127.0.0.1:0".parse().expect("an address")],
            identity: Arc::clone(&identity),
            gatekeeper: Arc::new(OneExport(export.clone())),
            state: state.clone(),
            limits: AgentLimits::default(),
            collectors: Vec::new(),
            marker: PathBuf::from("/nonexistent"),
            homes: homes.clone(),
            ended_log: Some(Arc::clone(&lists) as Arc<dyn EndedTransferLog>),
            decline_nettest: |_| Err(std::io::ErrorKind::Unsupported.into()),
        })
        .expect("a port");
        Self { _temporary: temporary, source, export, state, agent, lists, identity, homes }
    }

    fn plan(
        &self,
        request: Request,
        options: &Options,
        make_end: Box<penstock_mover::MakeEnd>,
    ) -> TransferConfig {
        let address = self.agent.addresses()[0];
        let dial = TcpDial::new("127.0.0.1", address.port(), &[], &[], None).expect("loopback");
        let contact = PeerConnector {
            dial: Arc::new(dial),
            tls: tls_client_config(self.identity.fingerprint(), None).expect("a configuration"),
            token: "secret".to_owned(),
            protection: options.protection,
            transport: TransportChoice::Tcp,
            cleartext: CleartextNetworks::default(),
            dscp: StreamDscp::default(),
            give_up_after: Duration::from_secs(20),
        };
        let begin = SessionOrigin::Requested(request);
        TransferConfig { contact, begin, make_end, tuning: StreamTuning::Kept("a test") }
    }

    fn push(&self, options: &Options) -> Result<TransferSnapshot, CopyError> {
        self.start_push(options).wait()
    }

    fn start_push(&self, options: &Options) -> ClientTransfer {
        let push = Push {
            target: Bytes(b"/in".to_vec()),
            into_directory: true,
            transfer_key: [5; 16],
            options: options.clone(),
        };
        let (source, options2) = (self.source.clone(), options.clone());
        let homes = self.homes.clone();
        let make = move |opened: &penstock_protocol::open::Opened| {
            let dir = Dir::open(&source).expect("the source is there");
            let sources = vec![ScanRoot { dir: Arc::new(dir), path: PathBuf::new() }];
            let key = SessionKey(opened.key);
            let session = Session::new(opened.session, key, options2.clone(), 16 << 20, None)
                .expect("descriptors")
                .with_homes(homes.clone());
            let end = SenderEnd::new(session, Engine::probe(), sources, true);
            Ok(Endpoint::Send(SenderControl(Arc::new(end))))
        };
        ClientTransfer::start(self.plan(Request::Push(push), options, Box::new(make)))
            .expect("descriptors")
    }

    fn pull(
        &self,
        options: &Options,
        from: &str,
        to: &Path,
    ) -> Result<TransferSnapshot, CopyError> {
        let pull = Pull {
            sources: vec![Bytes(from.as_bytes().to_vec())],
            recursive: true,
            listed: false,
            options: options.clone(),
        };
        let (to, state, options2) = (to.to_owned(), self.state.clone(), options.clone());
        let keeper = OneExport(self.export.clone());
        let make = move |opened: &penstock_protocol::open::Opened| {
            let base = Dir::open(&to).expect("the target is there");
            let at = OpenTarget { base, rename: None, is_new: false };
            let target = TransferTarget::new(at, [6; 16], true);
            let caller = Caller { name: "local".to_owned(), pass: None, token: None, grant: None };
            let grant = SessionBuilder {
                keeper: &keeper,
                caller: &caller,
                engine: Engine::probe(),
                state: Some(&state),
                memory_bytes: 16 << 20,
                homes: None,
                pace: None,
                collectors: &[],
                fireflies: &Arc::default(),
                locks: None,
                release_partial: None,
            };
            let identity = (opened.session, SessionKey(opened.key));
            grant
                .receiver(target, &options2, Some(identity), &|_| true)
                .map(|(end, _)| end)
                .map_err(CopyError::RefusedHere)
        };
        ClientTransfer::start(self.plan(Request::Pull(pull), options, Box::new(make)))
            .expect("descriptors")
            .wait()
    }
}

fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    (0..bytes)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 24) as u8
        })
        .collect()
}

fn fill(dir: &Path) {
    fs::create_dir_all(dir.join("deep/er/still")).expect("directories");
    fs::write(dir.join("empty"), b"").expect("a file");
    fs::write(dir.join("deep/big"), noise(5 << 20, 1)).expect("a file");
    fs::write(dir.join("deep/er/odd"), noise(1_234_567, 2)).expect("a file");
    fs::write(dir.join("exact"), noise(1 << 20, 9)).expect("a file");
    for number in 0..300 {
        let name = dir.join(format!("deep/er/still/{number}"));
        fs::write(name, noise(number * 37, number as u64 + 3)).expect("a file");
    }
    for number in 0..40 {
        let name = dir.join(format!("deep/er/{number}"));
        fs::write(name, noise(14_000 + number * 1_111, number as u64 + 303)).expect("a file");
    }
    std::os::unix::fs::symlink("deep/big", dir.join("link")).expect("a link");
    fs::write(dir.join("odd\nname"), b"newline").expect("a file");
    fs::set_permissions(dir.join("exact"), fs::Permissions::from_mode(0o640)).expect("its mode");
}

type Tree = BTreeMap<PathBuf, (Vec<u8>, u32, i64)>;

fn tree(root: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut todo = vec![root.to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(&dir).expect("a directory") {
            let path = entry.expect("an entry").path();
            let meta = path.symlink_metadata().expect("it is there");
            let content = if meta.is_symlink() {
                fs::read_link(&path).expect("a link").into_os_string().into_encoded_bytes()
            } else if meta.is_dir() {
                todo.push(path.clone());
                Vec::new()
            } else {
                fs::read(&path).expect("a file")
            };
            let name = path.strip_prefix(root).expect("below").to_owned();
            tree.insert(name, (content, meta.mode(), meta.mtime_nsec()));
        }
    }
    tree
}

fn same(left: &Path, right: &Path) {
    let (left, right) = (tree(left), tree(right));
    assert_eq!(left.keys().collect::<Vec<_>>(), right.keys().collect::<Vec<_>>());
    for (path, value) in &left {
        assert!(right[path] == *value, "{} differs", path.display());
    }
}

#[test]
fn dataset_round_trips_through_agent() {
    for (algorithm, protection) in [
        (Algorithm::Crc32c, Protection::Integrity),
        (Algorithm::Crc32c, Protection::Full),
        (Algorithm::Blake3, Protection::Integrity),
        (Algorithm::Sha256, Protection::Full),
        (Algorithm::None, Protection::Integrity),
    ] {
        let site = Site::new();
        fill(&site.source);
        let options = options(algorithm, protection);
        let done = site.push(&options).expect("a copy");
        assert_eq!(done.tally.failed, 0, "{:?}", done.tally.errors);
        same(&site.source, &site.export.join("in"));
        let again = site.push(&options).expect("a copy");
        assert_eq!(again.tally.skipped_files, done.tally.files);
        assert_eq!(again.network_bytes, 0, "nothing is sent twice");
        let back = site.source.with_file_name("back");
        fs::create_dir(&back).expect("a directory");
        let pulled = site.pull(&options, "/in", &back).expect("a copy");
        assert_eq!(pulled.tally.failed, 0, "{:?}", pulled.tally.errors);
        same(&site.source, &back.join("in"));
        assert_eq!(fs::read_dir(site.state.join("transfers")).expect("journals").count(), 0);
        site.agent.shut_down(Duration::from_secs(5));
    }
}

#[test]
fn ended_transfers_are_listed_within_limit() {
    let site = Site::new();
    let options = options(Algorithm::None, Protection::Integrity);
    // The source is empty.
    for _ in 0..203 {
        site.push(&options).expect("a copy");
    }
    let start = std::time::Instant::now();
    let listed =
        || -> Vec<_> { site.agent.transfers().iter().map(|one| (one.id, one.state)).collect() };
    let expected: Vec<_> = (4..=203).map(|id| (id, "done")).collect();
    // The state of the last one is that of its end shortly before it joins the ended ones.
    while listed() != expected {
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", listed());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn ending_transfer_stays_listed() {
    let site = Site::new();
    site.lists.agent.set(site.agent.clone()).expect("the first");
    site.push(&options(Algorithm::None, Protection::Integrity)).expect("a copy");
    let start = std::time::Instant::now();
    while site.lists.has_ended.lock().expect("no panic").is_empty() {
        assert!(start.elapsed() < Duration::from_secs(20), "it has not ended");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(*site.lists.has_ended.lock().expect("no panic"), [true]);
}

/// Names of this process's threads that are restricted to these processors.
fn threads_on(cpus: &[usize]) -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").expect("this process");
    // A thread may have ended meanwhile.
    let status = tasks.flatten().filter_map(|t| fs::read_to_string(t.path().join("status")).ok());
    status
        .filter_map(|status| {
            let word = |key: &str| Some(status.lines().find_map(|l| l.strip_prefix(key))?.trim());
            let on = parse_cpus(word("Cpus_allowed_list:")?)?;
            (on == cpus).then(|| word("Name:").unwrap_or_default().to_owned())
        })
        .collect()
}

#[test]
fn threads_run_near_their_devices() {
    let allowed = allowed_cpus().expect("processors");
    let device = fs::metadata(env!("CARGO_TARGET_TMPDIR")).expect("a directory").dev();
    let (Some(disk), [first, .., last]) = (disk_of(device), allowed.as_slice()) else {
        penstock_testkit::skip(
            penstock_testkit::Requirement::Machine,
            "needs a disk and two processors",
        );
        return;
    };
    // Loopback is on one processor, the disk on another.
    let mut facts = Facts::default();
    facts.cpu.nodes = [(0, first), (1, last)]
        .map(|(number, cpu)| NumaNode { number, cpus: cpu.to_string() })
        .to_vec();
    facts.nics = vec![Nic { name: "lo".to_owned(), numa_node: Some(0), ..Nic::default() }];
    facts.disks = vec![Disk { name: disk, numa_node: Some(1), ..Disk::default() }];
    let site = Site::with(Some(NumaPlacement::new(facts, &allowed)));
    fill(&site.source);
    let mut options = options(Algorithm::Crc32c, Protection::Integrity);
    options.settings.rate_bps = Some(8_000_000);
    let mut transfer = site.start_push(&options);
    let begin = std::time::Instant::now();
    loop {
        let (near_network, near_disk) = (threads_on(&[*first]), threads_on(&[*last]));
        let has = |threads: &[String], name: &str| threads.iter().any(|thread| thread == name);
        // The agent's streams are threads that serve connections. The agent knows the interface of its
        // client; this client has none configured.
        let all =
            ["stream", "serve", "write", "commit"].iter().all(|name| has(&near_network, name));
        if all && has(&near_disk, "read") {
            break;
        }
        let seen = format!("near the network: {near_network:?}, near the disk: {near_disk:?}");
        assert!(begin.elapsed() < Duration::from_secs(20) && !transfer.is_over(), "{seen}");
        std::thread::sleep(Duration::from_millis(2));
    }
    transfer.cancel("seen");
    assert!(transfer.wait().is_err());
}
