//! The HTTP API over real sockets, with a mover that records its calls.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use penstock_agent::authorizer::{AccessRules, Authorizer};
use penstock_agent::client::{AgentClient, ClientError};
use penstock_agent::config::{AccessMode, Export, MetricsAccess, Principal};
use penstock_agent::destinations::DestinationRules;
use penstock_agent::disks::{
    DiskConfig, DiskExportPolicy, DiskOrigin, DiskSecrets, ExportTarget, ExportedDisks,
    TargetExport,
};
use penstock_agent::http::api::TransferChange;
use penstock_agent::http::{self, AgentApi, MoverControl, TransferControlError};
use penstock_agent::running_forecast::RateForecaster;
use penstock_agent::submitted::TransferStatus;
use penstock_agent::tokens::{TokenSource, Tokens};
use penstock_daemon::api::{self, DaemonApi};
use penstock_daemon::state::StateDir;
use penstock_disk::export::{AdmittedHost, ExportRequest};
use penstock_disk::nvme::auth::HostSecret;
use penstock_disk::{DiskError, FabricsTransport};
use penstock_http::PROBLEM_JSON;
use penstock_http::access::ReadPolicy;
use penstock_http::server::{self, ConnectionTracker};
use penstock_http::{BODY_BYTES_MAX, CONNECTIONS_MAX, HEAD_BYTES_MAX};
use penstock_identity::{Fingerprint, Identity};
use penstock_mover::{
    AgentCounters, AgentLimits, ListedTransfer, TuningChangeError, TuningMode, TuningReport,
    UnknownTransfer,
};
use penstock_protocol::control::Settings;
use penstock_testkit::http::TestRequest;
use penstock_testkit::raw;
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::sync::watch;

const TOKEN: &str = "the-token-of-the-owner";
const ALICE: &str = "alice-has-a-long-token";
const HOST_NQN: &str = "nqn.2020-01.org.example:h";

#[derive(Debug, Default)]
struct RecordingMover(Mutex<Vec<(u64, Settings)>>);

impl MoverControl for RecordingMover {
    fn transfers(&self) -> Vec<ListedTransfer> {
        let cancelled = |id| self.0.lock().unwrap().iter().any(|call| call.0 == id + 1000);
        [2, 1]
            .into_iter()
            .map(|id| transfer(id, if cancelled(id) { "cancelled" } else { "running" }))
            .collect()
    }
    fn set(&self, id: u64, settings: Settings) -> Result<(), TransferControlError> {
        if id == 2 {
            return Err(TransferControlError::Unknown(UnknownTransfer(2)));
        }
        self.0.lock().unwrap().push((id, settings));
        Ok(())
    }
    fn cancel(&self, id: u64, _reason: &str) -> Result<(), TransferControlError> {
        self.0.lock().unwrap().push((id + 1000, Settings::default()));
        Ok(())
    }
    fn set_tuning(&self, id: u64, _: TuningMode) -> Result<(), TransferControlError> {
        Err(TuningChangeError::Kept(id, "this end receives").into())
    }
    fn tuning(&self, id: u64) -> Option<TuningReport> {
        (id == 1).then(|| TuningReport::kept("its client chooses the streams"))
    }
    fn counters(&self) -> AgentCounters {
        AgentCounters {
            received_bytes: 12_345,
            connections: 7,
            fireflies_sent: [4, 3, 2],
            fireflies_failed: [0, 0, 1],
            ..AgentCounters::default()
        }
    }
}

fn transfer(id: u64, state: &'static str) -> ListedTransfer {
    ListedTransfer {
        id,
        caller: "alice".into(),
        peer: "[::1]:5".into(),
        direction: "receive",
        path: "/store/x".into(),
        state,
        started: SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000),
        seconds: 1.5,
        bytes: 1,
        moved_bytes: 2,
        resumed_bytes: 3,
        announced_bytes: 4,
        files: 5,
        failed: 0,
        streams: 4,
        readers: 0,
        writers: 1,
        rate_bps: None,
        bits_per_second: 1_000_000,
        bound_by: "network".into(),
        engine: "buffered".into(),
        retransmits: 0,
        scitag: Some(206),
        transport: "tcp",
        transport_reason: String::new(),
    }
}

struct Running {
    runtime: Runtime,
    address: SocketAddr,
    fingerprint: Fingerprint,
    mover: Arc<RecordingMover>,
    stop: watch::Sender<bool>,
    serving: tokio::task::JoinHandle<()>,
}

fn start(listen: &str, metrics: MetricsAccess) -> Running {
    let disk = DiskConfig {
        name: "run-7".into(),
        path: "/no/such/image".into(),
        hosts: vec![HOST_NQN.into()],
        transport: FabricsTransport::Tcp,
        listens: vec!["127.0.0.1:4420".parse().unwrap()],
        secrets: DiskSecrets::None,
        origin: DiskOrigin::Configuration,
    };
    let folder = tempfile::tempdir().unwrap();
    let state = StateDir::open(&folder.path().join("state")).unwrap();
    let disks = ExportedDisks::start(&state, vec![disk], DiskExportPolicy::default());
    start_with_disks(listen, metrics, disks)
}

fn start_with_disks(listen: &str, metrics: MetricsAccess, disks: ExportedDisks) -> Running {
    let runtime = Runtime::new().unwrap();
    let listen = [listen.parse().unwrap()];
    let listeners = runtime.block_on(server::bind(&listen)).unwrap();
    let address = listeners[0].socket.local_addr().unwrap();
    let identity = Arc::new(Identity::generate().unwrap());
    let sha256 = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, ALICE.as_bytes());
    let sha256 = sha256.as_ref().try_into().unwrap();
    let tokens =
        Tokens::open(TOKEN, &[TokenSource::Hashed { name: "alice".into(), sha256 }]).unwrap();
    let export = Export {
        name: "/store".parse().unwrap(),
        path: "/tmp".into(),
        mode: AccessMode::Read,
        principals: vec![Principal::Anyone],
        scitag: None,
    };
    let mover = Arc::new(RecordingMover::default());
    let traffic = Arc::new(ConnectionTracker::default());
    let authorizer = Arc::new(Authorizer::new(AccessRules {
        tokens,
        exports: vec![export],
        token_tags: HashMap::new(),
        destinations: DestinationRules::default(),
        cleartext: penstock_mover::CleartextNetworks::default(),
        issuers: penstock_tokens::IssuerRegistry::default(),
        quotas: Vec::new(),
    }));
    let state = tempfile::tempdir().unwrap();
    let agent = AgentApi {
        mover: Arc::clone(&mover) as _,
        submitted: None,
        authorizer: Arc::clone(&authorizer),
        state: "/nonexistent".into(),
        forecaster: Arc::new(RateForecaster::new(state.path())),
        listen: vec!["[::1]:8620".parse().unwrap()],
        http: vec![address],
        webdav: vec!["https://[::]:8443/".to_owned()],
        disks: Arc::new(Mutex::new(disks)),
        identity: Arc::clone(&identity),
        limits: Arc::new(Mutex::new(AgentLimits::default())),
        controller: None,
        started: SystemTime::now(),
        traffic: Arc::clone(&traffic),
    };
    let api = DaemonApi {
        roles: vec![Arc::new(agent)],
        bearers: authorizer,
        reading: ReadPolicy::default(),
        metrics: metrics.into(),
        traffic: Arc::clone(&traffic),
    };
    let (stop, stopped) = watch::channel(false);
    let (router, fingerprint) = (api::router(Arc::new(api)), identity.fingerprint());
    let serving = runtime.spawn(async move {
        server::serve(listeners, router, &identity.tls_server_config(), traffic, stopped).await
    });
    Running { runtime, address, fingerprint, mover, stop, serving }
}

impl Running {
    fn client(&self, token: &str) -> AgentClient {
        AgentClient::new(&self.address.to_string(), token, Some(self.fingerprint)).unwrap()
    }

    fn request(&self, method: &str, path: &str, token: Option<&str>, body: &str) -> (u16, String) {
        self.request_as("x", method, path, token, body)
    }

    /// Scrapes the metrics under a local host name, without a token.
    fn metrics(&self) -> (u16, String) {
        self.request_as("127.0.0.1:8621", "GET", "/metrics", None, "")
    }

    fn request_as(
        &self,
        host: &str,
        method: &str,
        path: &str,
        token: Option<&str>,
        body: &str,
    ) -> (u16, String) {
        let request = TestRequest::new(self.address, method, path).host(host);
        let response = request.token(token.unwrap_or_default()).body(body.as_bytes()).send();
        (response.status, response.text())
    }
}

#[test]
fn owner_lists_changes_and_cancels_transfers() {
    let running = start("127.0.0.1:0", MetricsAccess::Loopback);
    let client = running.client(TOKEN);
    let facts = client.agent().unwrap();
    assert_eq!(facts.fingerprint, running.fingerprint.to_string());
    assert_eq!((facts.listen[0].as_str(), facts.exports[0].who[0].as_str()), ("[::1]:8620", "*"));

    let transfers = client.transfers().unwrap().transfers;
    assert_eq!(transfers.iter().map(|transfer| transfer.id).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(transfers[0].started_unix_seconds, 1.7e9);
    let whose =
        (transfers[0].scitag, transfers[0].owner.as_deref(), transfers[0].activity.as_deref());
    assert_eq!(whose, (Some(206), Some("cms"), Some("analysis-input")));

    let change = TransferChange {
        rate_bps: Some(2_000_000_000),
        streams: Some(8.try_into().unwrap()),
        ..TransferChange::default()
    };
    let switched = TransferChange { tune: Some(TuningMode::Auto), ..change };
    assert_eq!(client.change(1, &change).unwrap().id, 1);
    let expected =
        Settings { rate_bps: Some(2_000_000_000), streams: Some(8), ..Settings::default() };
    assert_eq!(*running.mover.0.lock().unwrap(), [(1, expected)]);
    assert_eq!(client.cancel(1).unwrap().state, TransferStatus::Cancelled);

    for (result, status) in [
        (client.change(2, &change), 409),
        (client.change(3, &change), 404),
        (client.change(1, &switched), 409),
        (client.cancel(3), 404),
        (client.change(1, &TransferChange::default()), 400),
    ] {
        match result.unwrap_err() {
            ClientError::Failed { status: got, .. } => assert_eq!(got, status),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn statuses_match_documentation() {
    let running = start("127.0.0.1:0", MetricsAccess::Loopback);
    let large = format!("{{\"rate_bps\": \"{}\"}}", "1".repeat(BODY_BYTES_MAX));
    // More than the buffers of a connection hold.
    let huge = large.repeat(160);
    let one = "/api/v1/transfers/1";
    for (method, path, token, body, status, words) in [
        ("GET", "/healthz", None, "", 200, "ok"),
        ("GET", "/readyz", None, "", 200, "ok"),
        ("GET", "/metrics", Some(TOKEN), "", 200, "# EOF"),
        ("GET", "/metrics", None, "", 401, "'x' is not known as a name of this machine"),
        ("GET", "/api/v1/openapi.json", Some(TOKEN), "", 200, "\"openapi\""),
        ("PATCH", one, Some(TOKEN), "{\"rate_bps\": 400000000, \"writers\": 2}", 200, "\"id\":1"),
        ("PATCH", one, Some(TOKEN), "{\"rate_bps\": 0}", 200, "\"id\":1"),
        ("GET", "/api/v1/transfers", None, "", 401, "Bearer TOKEN"),
        ("GET", "/api/v1/transfers", Some("wrong"), "", 401, "not this agent's"),
        ("GET", "/api/v1/openapi.json", None, "", 401, "token"),
        ("GET", "/nothing", None, "", 401, "token"),
        ("GET", "/api/v1/agent", Some(ALICE), "", 403, "token of 'alice'"),
        ("GET", "/api/v1/transfers", Some(ALICE), "", 200, "\"caller\":\"alice\""),
        ("POST", "/api/v1/transfers", Some("wrong"), "{}", 401, "not this agent's"),
        ("POST", "/api/v1/transfers", Some(ALICE), "{}", 400, "cannot read the submission"),
        ("GET", "/nothing", Some(TOKEN), "", 404, "no such path"),
        ("GET", "/api/v1/transfers/7", Some(TOKEN), "", 404, "no transfer 7"),
        ("GET", "/api/v1/transfers/7/tuning", Some(TOKEN), "", 404, "no transfer 7"),
        ("GET", "/api/v1/transfers/1/tuning", Some(TOKEN), "", 200, "its client chooses"),
        ("GET", "/api/v1/transfers/2/tuning", Some(TOKEN), "", 200, "\"mode\":\"off\""),
        ("GET", "/api/v1/transfers/x", Some(TOKEN), "", 400, "whole number"),
        ("POST", one, Some(TOKEN), "", 405, "does not take POST"),
        ("PATCH", one, Some(TOKEN), "{\"rate\": 1}", 400, "unknown field `rate`"),
        ("PATCH", one, Some(TOKEN), "{\"rate_bps\": \"2G\"}", 400, "expected u64"),
        ("PATCH", one, Some(TOKEN), "{\"streams\": 0}", 400, "nonzero"),
        ("PATCH", one, Some(TOKEN), "{\"streams\": 257}", 400, "from 1 to 256"),
        ("PATCH", one, Some(TOKEN), "{\"readers\": 65}", 400, "from 1 to 64"),
        ("PATCH", one, Some(TOKEN), "{\"writers\": 65535}", 400, "from 1 to 64"),
        ("PATCH", one, Some(TOKEN), "{", 400, "cannot read the change"),
        ("PATCH", one, Some(TOKEN), &large, 413, "error"),
        ("PATCH", one, Some(TOKEN), &huge, 413, "error"),
        ("PATCH", one, Some("wrong"), &huge, 401, "not this agent's"),
        (
            "PATCH",
            "/api/v1/transfers/2",
            Some(TOKEN),
            "{\"streams\": 1}",
            409,
            "no transfer 2 is running",
        ),
    ] {
        let (got, text) = running.request(method, path, token, body);
        assert_eq!(got, status, "{method} {path}: {text}");
        assert!(text.contains(words), "{method} {path}: {text}");
        assert!(status == 200 || text.starts_with("{\"type\":\"about:blank\""), "{text}");
        let instance = format!("\"instance\":\"{path}\"");
        assert!(status == 200 || text.contains(&instance), "{text}");
    }
    let head = raw::exchange(
        running.address,
        b"GET /api/v1/agent HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    );
    assert!(head.to_ascii_lowercase().contains("www-authenticate: bearer"), "{head}");
}

#[test]
fn scheme_without_token_gets_401() {
    let running = start("127.0.0.1:0", MetricsAccess::Loopback);
    for (credentials, status) in [("", "200"), ("Authorization: Bearer\r\n", "401")] {
        let request = format!(
            "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:8621\r\n{credentials}Connection: close\r\n\r\n"
        );
        let answer = raw::exchange(running.address, request.as_bytes());
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        assert_eq!(answer.contains("the credentials have no token"), status == "401", "{answer}");
    }
}

#[test]
fn disks_are_listed_with_reasons() {
    let running = start("127.0.0.1:0", MetricsAccess::Loopback);
    let connection = "/api/v1/disks/run-7/connection";
    let of_host = |host: &str| format!("{{\"host_nqn\": \"{host}\"}}");
    let (own, other) = (of_host(HOST_NQN), of_host("nqn.2020-01.org.example:other"));
    for (method, path, token, body, status, words) in [
        ("GET", "/api/v1/disks", Some(TOKEN), "", 200, "\"state\":\"failed\""),
        ("GET", "/api/v1/disks", None, "", 401, "Bearer TOKEN"),
        ("GET", "/api/v1/disks", Some(ALICE), "", 403, "--scope disk:NAME"),
        ("GET", "/api/v1/disks?x=1", Some(TOKEN), "", 422, "no parameter"),
        ("DELETE", "/api/v1/disks/run-7", Some(TOKEN), "", 409, "of the configuration"),
        ("POST", connection, Some(TOKEN), own.as_str(), 409, "is not exported: "),
        ("POST", connection, Some(TOKEN), &other, 403, "does not admit the host"),
        ("POST", connection, Some(ALICE), &own, 403, "--scope disk:NAME"),
        ("POST", connection, None, &own, 401, "Bearer TOKEN"),
        ("POST", connection, Some(TOKEN), "{}", 400, "host_nqn"),
        ("POST", "/api/v1/disks/run-8/connection", Some(TOKEN), &own, 404, "'run-8'"),
        ("GET", connection, Some(TOKEN), "", 405, "does not take GET"),
    ] {
        let (got, text) = running.request(method, path, token, body);
        assert_eq!(got, status, "{method} {path}: {text}");
        assert!(text.contains(words), "{method} {path}: {text}");
    }
}

/// Target that notes the hosts of each export, by the name of the disk.
#[derive(Debug, Clone, Default)]
struct RecordingTarget(Arc<Mutex<BTreeMap<String, Vec<AdmittedHost>>>>);

#[derive(Debug)]
struct RecordedExport {
    target: RecordingTarget,
    name: String,
}

impl RecordingTarget {
    fn exports(&self) -> Vec<(String, usize)> {
        let exports = self.0.lock().unwrap();
        exports.iter().map(|(name, hosts)| (name.clone(), hosts.len())).collect()
    }

    /// Secret of a host at a disk; `None` where it is not admitted.
    fn secret(&self, name: &str, host: &str) -> Option<String> {
        let exports = self.0.lock().unwrap();
        let admitted = exports.get(name)?.iter().find(|one| one.nqn == host)?;
        Some(admitted.secret.as_ref().map_or_else(String::new, HostSecret::text))
    }
}

impl ExportTarget for RecordingTarget {
    fn remove_ended(&self) -> Result<Vec<String>, DiskError> {
        Ok(Vec::new())
    }

    fn export(&self, request: &ExportRequest) -> Result<Box<dyn TargetExport>, DiskError> {
        if request.path.ends_with("mounted.img") {
            let path = request.path.display().to_string();
            return Err(DiskError::Local { path, reason: "it is mounted on /mnt".to_owned() });
        }
        self.0.lock().unwrap().insert(request.name.clone(), request.hosts.clone());
        Ok(Box::new(RecordedExport { target: self.clone(), name: request.name.clone() }))
    }
}

impl TargetExport for RecordedExport {
    fn admit(&mut self, host: &AdmittedHost) -> Result<(), DiskError> {
        self.target.0.lock().unwrap().get_mut(&self.name).unwrap().push(host.clone());
        Ok(())
    }

    fn remove(self: Box<Self>) -> Result<(), DiskError> {
        self.target.0.lock().unwrap().remove(&self.name);
        Ok(())
    }
}

#[test]
fn clients_export_allowed_disks() {
    let folder = tempfile::tempdir().unwrap();
    let state = StateDir::open(&folder.path().join("state")).unwrap();
    let images = folder.path().join("images");
    std::fs::create_dir(&images).unwrap();
    for name in ["run-8.img", "mounted.img"] {
        std::fs::write(images.join(name), [0; 4096]).unwrap();
    }
    std::fs::write(folder.path().join("other.img"), [0; 4096]).unwrap();
    let policy = DiskExportPolicy { allow: vec![images.clone()], ..DiskExportPolicy::default() };
    let target = RecordingTarget::default();
    let start = |policy: DiskExportPolicy| {
        let disks = ExportedDisks::start_with(Box::new(target.clone()), &state, Vec::new(), policy);
        start_with_disks("127.0.0.1:0", MetricsAccess::Loopback, disks)
    };
    let body = |path: &std::path::Path, host: &str| {
        format!("{{\"path\": \"{}\", \"hosts\": [\"{host}\"]}}", path.display())
    };
    let image = body(&images.join("run-8.img"), HOST_NQN);
    let no_name = body(&images.join("run-8.img"), "dtn2");
    let mounted = body(&images.join("mounted.img"), HOST_NQN);
    let outside = body(&folder.path().join("other.img"), HOST_NQN);
    let missing = body(&images.join("none.img"), HOST_NQN);
    let disk = "/api/v1/disks/run-8";
    let own_host = format!("{disk}/hosts/{HOST_NQN}");
    let other_host = format!("{disk}/hosts/nqn.2020-01.org.example:other");
    let running = start(policy.clone());
    for (method, path, token, body, status, words) in [
        ("PUT", disk, ALICE, image.as_str(), 403, "--scope disk:NAME"),
        ("PUT", disk, "wrong", &image, 401, "token"),
        ("PUT", disk, TOKEN, "{\"path\": \"/x\"}", 400, "hosts"),
        ("PUT", disk, TOKEN, "{\"path\": \"/x\", \"hosts\": []}", 422, "/hosts"),
        ("PUT", disk, TOKEN, &no_name, 422, "/hosts/0"),
        ("PUT", "/api/v1/disks/a%20b", TOKEN, &image, 400, "no name of a disk"),
        ("PUT", disk, TOKEN, &outside, 403, "[disks] allow"),
        ("PUT", disk, TOKEN, &missing, 403, "[disks] allow"),
        ("PUT", disk, TOKEN, &mounted, 409, "mounted on /mnt"),
        ("GET", disk, TOKEN, "", 404, "'run-8'"),
        ("PUT", disk, TOKEN, &image, 201, "\"origin\":\"api\""),
        ("PUT", disk, TOKEN, &image, 200, "\"state\":\"exported\""),
        ("PUT", disk, TOKEN, &mounted, 409, "another disk"),
        ("GET", disk, TOKEN, "", 200, "\"bytes\":4096"),
        ("DELETE", &own_host, TOKEN, "", 409, "end its export"),
        ("DELETE", &other_host, TOKEN, "", 404, "does not admit"),
        ("PUT", &other_host, TOKEN, "", 200, ":other"),
        ("PUT", &other_host, TOKEN, "", 200, ":other"),
        ("DELETE", &own_host, TOKEN, "", 200, ":other"),
        ("PUT", &own_host, TOKEN, "", 200, HOST_NQN),
        ("PUT", "/api/v1/disks/run-9/hosts/nqn.x", TOKEN, "", 404, "'run-9'"),
        ("DELETE", "/api/v1/disks/run-9", TOKEN, "", 404, "'run-9'"),
    ] {
        let (got, text) = running.request(method, path, Some(token), body);
        assert_eq!(got, status, "{method} {path}: {text}");
        assert!(text.contains(words), "{method} {path}: {text}");
    }
    assert_eq!(target.exports(), [("run-8".to_owned(), 2)]);
    drop(running);

    // After a restart it is exported again, unless the operator allows it no more.
    target.0.lock().unwrap().clear();
    let running = start(policy);
    assert_eq!(target.exports(), [("run-8".to_owned(), 2)]);
    drop(running);
    let running = start(DiskExportPolicy::default());
    let (_, text) = running.request("GET", disk, Some(TOKEN), "");
    assert!(text.contains("\"state\":\"failed\"") && text.contains("[disks] allow"), "{text}");
    assert_eq!(running.request("DELETE", disk, Some(TOKEN), "").0, 200);
    assert_eq!(running.request("GET", disk, Some(TOKEN), "").0, 404);
    drop(running);
    assert_eq!(start(DiskExportPolicy::default()).request("GET", disk, Some(TOKEN), "").0, 404);
}

const OTHER_NQN: &str = "nqn.2020-01.org.example:other";

/// An agent that exports two images by its API, and its target.
struct DiskExportingAgent {
    folder: tempfile::TempDir,
    target: RecordingTarget,
    running: Option<Running>,
}

impl DiskExportingAgent {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["run-8.img", "run-9.img"] {
            std::fs::write(folder.path().join(name), [0; 4096]).unwrap();
        }
        let mut agent = Self { folder, target: RecordingTarget::default(), running: None };
        agent.restart(Vec::new());
        agent
    }

    /// Kills the agent, of which nothing but its state stays, and starts another one.
    fn restart(&mut self, configs: Vec<DiskConfig>) {
        self.running = None;
        self.target.0.lock().unwrap().clear();
        let allow = vec![self.folder.path().to_owned()];
        let policy = DiskExportPolicy { allow, ..DiskExportPolicy::default() };
        let state = StateDir::open(&self.folder.path().join("state")).unwrap();
        let target = Box::new(self.target.clone());
        let disks = ExportedDisks::start_with(target, &state, configs, policy);
        self.running = Some(start_with_disks("127.0.0.1:0", MetricsAccess::Loopback, disks));
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let path = format!("/api/v1/disks/{path}");
        self.running.as_ref().unwrap().request(method, &path, Some(TOKEN), body)
    }

    #[track_caller]
    fn export(&self, name: &str, hosts: &[&str]) {
        let image = self.folder.path().join(format!("{name}.img"));
        let body = serde_json::json!({"path": image, "hosts": hosts}).to_string();
        let (status, text) = self.ask("PUT", name, &body);
        assert_eq!(status, 201, "{text}");
    }

    /// Secret that the API states to a host, which is the one of the target.
    #[track_caller]
    fn secret(&self, name: &str, host: &str) -> String {
        let body = serde_json::json!({"host_nqn": host}).to_string();
        let (status, text) = self.ask("POST", &format!("{name}/connection"), &body);
        assert_eq!(status, 200, "{text}");
        let answer: Value = serde_json::from_str(&text).unwrap();
        let secret = answer["secret"].as_str().unwrap_or_default().to_owned();
        assert!(secret.starts_with("DHHC-1:00:"), "{answer}");
        assert_eq!(self.target.secret(name, host).as_ref(), Some(&secret));
        secret
    }
}

#[test]
fn each_host_has_own_secret() {
    let mut agent = DiskExportingAgent::new();
    agent.export("run-8", &[HOST_NQN, OTHER_NQN]);
    let [own, other] = [HOST_NQN, OTHER_NQN].map(|host| agent.secret("run-8", host));
    assert_ne!(own, other);
    // Without the other host, and after a crash, the secret of the first one stays.
    let of_other = format!("run-8/hosts/{OTHER_NQN}");
    assert_eq!(agent.ask("DELETE", &of_other, "").0, 200);
    assert_eq!(agent.target.secret("run-8", OTHER_NQN), None);
    let list = agent.folder.path().join("state/requested-disks.json");
    let stored = || std::fs::read_to_string(&list).unwrap();
    assert!(stored().contains(&own) && !stored().contains(&other));
    agent.restart(Vec::new());
    assert_eq!(agent.secret("run-8", HOST_NQN), own);
    // A host that comes again has another secret.
    assert_eq!(agent.ask("PUT", &of_other, "").0, 200);
    assert_ne!(agent.secret("run-8", OTHER_NQN), other);
    assert_eq!(agent.secret("run-8", HOST_NQN), own);
    // The kernel has one secret for each host: it lasts until the last disk of the host.
    agent.export("run-9", &[HOST_NQN]);
    assert_eq!(agent.secret("run-9", HOST_NQN), own);
    assert_eq!(agent.ask("DELETE", "run-8", "").0, 200);
    assert_eq!(agent.secret("run-9", HOST_NQN), own);
    assert_eq!(agent.ask("DELETE", "run-9", "").0, 200);
    assert!(!stored().contains("DHHC"), "{}", stored());
    agent.export("run-9", &[HOST_NQN]);
    assert_ne!(agent.secret("run-9", HOST_NQN), own);
}

#[test]
fn configured_hosts_keep_their_secrets() {
    let mut agent = DiskExportingAgent::new();
    let configured = DiskConfig {
        name: "run-7".into(),
        path: agent.folder.path().join("run-8.img"),
        hosts: vec![HOST_NQN.into()],
        transport: FabricsTransport::Tcp,
        listens: vec!["127.0.0.1:4420".parse().unwrap()],
        secrets: DiskSecrets::None,
        origin: DiskOrigin::Configuration,
    };
    agent.export("run-9", &[HOST_NQN, OTHER_NQN]);
    agent.restart(vec![configured]);
    assert_eq!(agent.target.secret("run-7", HOST_NQN), Some(String::new()));
    let words = "one of disk run-7 of the configuration";
    let (_, text) = agent.ask("GET", "run-9", "");
    assert!(text.contains("\"failed\"") && text.contains(words), "{text}");
    // Without the host of the configuration the disk is exported; it is not admitted again.
    let of_host = format!("run-9/hosts/{HOST_NQN}");
    assert!(agent.ask("DELETE", &of_host, "").1.contains("\"exported\""));
    agent.secret("run-9", OTHER_NQN);
    let (status, text) = agent.ask("PUT", &of_host, "");
    assert!(status == 409 && text.contains(words), "{text}");
    assert!(agent.ask("GET", "run-9", "").1.contains("\"exported\""));
}

#[test]
fn metrics_name_component_and_unit() {
    let running = start("127.0.0.1:0", MetricsAccess::Loopback);
    let (_, text) = running.metrics();
    for line in [
        "penstock_mover_received_bytes_total 12345",
        "penstock_mover_connections_total 7",
        "penstock_mover_transfers_running 2",
        "penstock_mover_receive_rate_bits_per_second 2000000",
        "penstock_agent_http_connections 1",
        "penstock_mover_fireflies_sent_total{state=\"start\"} 4",
        "penstock_mover_fireflies_sent_total{state=\"end\"} 2",
        "penstock_mover_fireflies_failed_total{state=\"end\"} 1",
        "penstock_agent_scitags_info{source=\"https://www.scitags.org/api.json\",builtin=\"true\"} 1",
    ] {
        assert!(text.lines().any(|got| got.split(".0").next() == Some(line)), "{line} in\n{text}");
    }
    assert!(text.contains("penstock_agent_info{version="), "{text}");
    // The built-in registry has a date and was never compared.
    assert!(text.contains("penstock_agent_scitags_modified_time_seconds 1"), "{text}");
    assert!(!text.contains("penstock_agent_scitags_checked_time_seconds"), "{text}");
    let closed = start("127.0.0.1:0", MetricsAccess::Token);
    assert_eq!(closed.metrics().0, 401);
    assert_eq!(closed.request("GET", "/metrics", Some(TOKEN), "").0, 200);
}

/// A web page that rebinds its name to this host must not read metrics (DNS rebinding).
#[test]
fn foreign_host_names_read_no_metrics() {
    for access in [MetricsAccess::Loopback, MetricsAccess::Open] {
        let running = start("127.0.0.1:0", access);
        let ask = |host: &str| running.request_as(host, "GET", "/metrics", None, "");
        for host in ["127.0.0.1:8621", "localhost", "[::1]:8621"] {
            assert_eq!(ask(host).0, 200, "{access:?} {host}");
        }
        for host in ["evil.example.com:8621", "localhost.evil.example", "127.0.0.1.evil:80"] {
            let (status, text) = ask(host);
            assert_eq!(status, 401, "{access:?} {host}");
            assert!(text.contains("[http] names"), "{text}");
        }
        let (status, _) =
            running.request_as("evil.example.com", "GET", "/metrics", Some(TOKEN), "");
        assert_eq!(status, 200);
    }
}

#[test]
fn remote_traffic_is_pinned_tls() {
    // An address that is not loopback, yet on every machine.
    let running = start("0.0.0.0:0", MetricsAccess::Loopback);
    let Some(address) = own_address() else {
        penstock_testkit::skip(
            penstock_testkit::Requirement::Machine,
            "this machine has no address but loopback",
        );
        return;
    };
    let address = format!("{address}:{}", running.address.port());
    let client = |fingerprint| AgentClient::new(&address, TOKEN, fingerprint).unwrap();
    assert_eq!(client(Some(running.fingerprint)).transfers().unwrap().transfers.len(), 2);
    for (fingerprint, words) in
        [(Some(Fingerprint([0; 32])), "log in again"), (None, "fingerprint is not known")]
    {
        let error = client(fingerprint).transfers().unwrap_err().to_string();
        assert!(error.contains("not the agent that it should be"), "{error}");
        assert!(error.contains(words), "{error}");
    }
}

/// Source address towards the Internet, or none; sends nothing.
fn own_address() -> Option<std::net::IpAddr> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|ip| !ip.is_loopback())
}

#[test]
fn garbage_and_large_headers_are_refused() {
    let running = start("127.0.0.1:0", MetricsAccess::Loopback);
    let answer = raw::exchange(running.address, b"\x16\x03\x01 PENSTOCK\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains(PROBLEM_JSON), "{answer}");
    let large = "x".repeat(2 * HEAD_BYTES_MAX);
    let answer = raw::exchange(
        running.address,
        format!("GET / HTTP/1.1\r\nHost: x\r\nX: {large}\r\n\r\n").as_bytes(),
    );
    let is_problem = answer.starts_with("HTTP/1.1 431") && answer.contains(PROBLEM_JSON);
    assert!(answer.is_empty() || is_problem, "{answer}");
    assert_eq!(running.request("GET", "/healthz", None, "").0, 200);
}

#[test]
fn idle_connections_bounded_at_shutdown() {
    let running = start("127.0.0.1:0", MetricsAccess::Loopback);
    let idle: Vec<TcpStream> =
        (0..CONNECTIONS_MAX).map(|_| TcpStream::connect(running.address).unwrap()).collect();
    // The oldest of them gives way.
    assert_eq!(running.request("GET", "/healthz", None, "").0, 200);
    idle[0].set_read_timeout(Some(Duration::from_secs(8))).unwrap();
    assert_eq!(raw::uninterrupted(|| (&idle[0]).read(&mut [0])).unwrap(), 0);
    drop(idle);
    // So does one with a valid token that is idle.
    let proven: Vec<TcpStream> = (0..CONNECTIONS_MAX)
        .map(|_| {
            let mut stream = TcpStream::connect(running.address).unwrap();
            let head = format!(
                "GET /api/v1/agent HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
            );
            stream.write_all(head.as_bytes()).unwrap();
            let mut status = [0; 12];
            stream.read_exact(&mut status).unwrap();
            assert_eq!(&status, b"HTTP/1.1 200");
            stream
        })
        .collect();
    assert_eq!(running.request("GET", "/healthz", None, "").0, 200);
    drop(proven);

    let _idle = TcpStream::connect(running.address).unwrap();
    running.stop.send(true).unwrap();
    let ended = async { tokio::time::timeout(Duration::from_secs(8), running.serving).await };
    running.runtime.block_on(ended).expect("the API ends").unwrap();
    assert!(TcpStream::connect(running.address).is_err());
}

#[test]
fn openapi_document_is_committed() {
    let path = "../../docs/openapi.json";
    let now = api::document([
        http::api::document(),
        penstock_collector::document(),
        penstock_controller::document(),
    ]);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(path, &now).unwrap();
    }
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        committed == now,
        "the API differs from docs/openapi.json: look at the change and run this test with UPDATE_GOLDEN=1"
    );
}

/// Generators of clients need an id for each operation, and a description of each response.
#[test]
fn operations_are_described() {
    let document: Value =
        serde_json::from_str(&std::fs::read_to_string("../../docs/openapi.json").unwrap()).unwrap();
    let mut ids = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let id = operation["operationId"].as_str().unwrap();
            assert!(ids.insert(id), "{id} names two operations: {method} {path}");
            assert!(operation["summary"].as_str().is_some_and(|text| !text.is_empty()), "{id}");
            for (status, response) in operation["responses"].as_object().unwrap() {
                let text = response["description"].as_str().unwrap_or_default();
                assert!(!text.is_empty(), "{id}, {status}");
                let schema = response["content"].pointer("/application~1problem+json/schema/$ref");
                let is_failure = !status.starts_with('2');
                assert_eq!(schema.is_some(), is_failure, "{id}, {status}");
            }
        }
    }
    assert!(document["components"]["schemas"]["Problem"].is_object());
}
