//! Disks that an agent exports: those of its configuration, and those of clients of its API.

use std::fs;
use std::io::Write as _;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use penstock_testkit::http::TestRequest;
use penstock_testkit::roce::RocePair;
use serde_json::{Value, json};

use super::common::{self, CommandOutcome, ReadyProcess, run, wait_until};
use super::{
    HOST, MIB_BYTES, Machine, OTHER_HOST, TARGET, assert_clean, device_bytes, fails, read_directly,
};

/// `[[disk]]` of the agent's configuration, as `run-7` on loopback.
fn agent_config(machine: &Machine, images: &[(&str, &Path)]) -> PathBuf {
    let file = machine.env.path("penstock.toml");
    let mut text = "[agent]\nlisten = \"127.0.0.1:0\"\nhttp = \"127.0.0.1:0\"\n".to_owned();
    for (name, image) in images {
        let (port, image) = (machine.port, image.display());
        text += &format!(
            "[[disk]]\nname = \"{name}\"\npath = \"{image}\"\nto = \"{HOST}\"\naddress = \"127.0.0.1\"\nport = {port}\n"
        );
    }
    fs::write(&file, text).unwrap();
    file
}

#[test]
fn agent_states_address_and_secret() {
    let Some(machine) = Machine::start() else { return };
    let image = machine.image("image", MIB_BYTES);
    let file = agent_config(&machine, &[("run-7", &image)]);
    if machine.has_secrets() {
        let secret = machine.secret("secret");
        let text = fs::read_to_string(&file).unwrap() + &format!("secret_file = \"{secret}\"\n");
        fs::write(&file, text).unwrap();
    }
    let mut command = machine.env.penstock();
    command.args(["serve", "--json", "--config"]).arg(&file).arg("--root").arg(&machine.env.root);
    let agent = ReadyProcess::start(command);
    let (http, fingerprint) = (agent.fact("/http/0"), agent.fact("/fingerprint"));
    // Another machine's state directory, with a token for this disk alone.
    let state = machine.env.path("host");
    let there = |words: &[&str]| run(common::penstock(&state).args(words));
    let create = ["token", "create", "dtn2", "--json", "--scope", "disk:run-7"];
    let created = run(machine.env.penstock().args(create)).good().json;
    let token = created["token"].as_str().unwrap();
    let login = ["login", &http, "--token", token, "--fingerprint", &fingerprint];
    there(&login).good();
    let location = format!("{http}/run-7");
    let copy = machine.env.path("copy");
    let stream =
        ["disk", "stream", &location, copy.to_str().unwrap(), "--agent", "--host-nqn", HOST];
    there(&stream).good();
    assert!(fs::read(&copy).unwrap() == fs::read(&image).unwrap());
    let connect = ["disk", "connect", &location, "--agent", "--host-nqn", HOST, "--json"];
    assert_eq!(there(&connect).good().json["state"], "live");
    there(&["disk", "disconnect", "run-7"]).good();
    let other = ["disk", "connect", &location, "--agent", "--host-nqn", OTHER_HOST];
    fails(&there(&other), 5, "does not admit the host");
    agent.end();
    assert_clean();
}

/// Has the capability that the drop-in `disks.conf` gives to the user of the shipped unit, or none.
fn unprivileged(machine: &Machine, capabilities: &str, config: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--no-new-privs"]);
    for set in ["--bounding-set", "--inh-caps", "--ambient-caps"] {
        command.args([set, capabilities]);
    }
    command.arg(common::PENSTOCK).env("PENSTOCK_STATE", machine.env.path("unprivileged"));
    command.args(["serve", "--json", "--config"]).arg(config);
    command.arg("--root").arg(&machine.env.root);
    command
}

#[test]
fn capability_suffices_for_exports() {
    let Some(machine) = Machine::start() else { return };
    let image = machine.image("image", MIB_BYTES);
    fs::set_permissions(&image, fs::Permissions::from_mode(0o600)).unwrap();
    let config = agent_config(&machine, &[("run-7", &image)]);
    // The image belongs to root.
    let state = machine.env.path("unprivileged");
    fs::create_dir(&state).unwrap();
    for path in [machine.env.dir.path(), &state, &machine.env.root] {
        std::os::unix::fs::chown(path, Some(65534), None).unwrap();
    }
    let disk = |agent: &ReadyProcess| {
        let token = fs::read_to_string(state.join("token")).unwrap();
        let request = TestRequest::new(agent.fact("/http/0"), "GET", "/api/v1/disks/run-7");
        request.token(token.trim()).send().json()
    };
    let agent = ReadyProcess::start(unprivileged(&machine, "-all", &config));
    let refused = disk(&agent);
    assert_eq!(refused["state"], "failed", "{refused}");
    assert!(refused["error"].as_str().unwrap().contains("CAP_DAC_OVERRIDE"), "{refused}");
    agent.end();
    let mut agent = ReadyProcess::start(unprivileged(&machine, "-all,+dac_override", &config));
    assert_eq!(disk(&agent)["state"], "exported");
    machine.stream(&[]).good();
    agent.kill();
    let agent = ReadyProcess::start(unprivileged(&machine, "-all,+dac_override", &config));
    assert_eq!(disk(&agent)["state"], "exported");
    agent.end();
    assert_clean();
}

/// Agent whose clients may export the file `image`, as `run-7`.
struct ExportingAgent<'a> {
    machine: &'a Machine,
    image: PathBuf,
    config: PathBuf,
    process: ReadyProcess,
    token: String,
}

impl<'a> ExportingAgent<'a> {
    fn start(machine: &'a Machine, address: &str) -> Self {
        let image = machine.image("image", MIB_BYTES);
        let config = agent_config(machine, &[]);
        let (port, secrets) = (machine.port, machine.has_secrets());
        let allowed = format!(
            "[disks]\nallow = \"image\"\naddress = \"{address}\"\nport = {port}\nsecrets = {secrets}\n"
        );
        fs::write(&config, fs::read_to_string(&config).unwrap() + &allowed).unwrap();
        let process = Self::process(machine, &config);
        let token = fs::read_to_string(machine.env.state.join("token")).unwrap();
        Self { machine, image, config, process, token: token.trim().to_owned() }
    }

    fn process(machine: &Machine, config: &Path) -> ReadyProcess {
        let mut command = machine.env.penstock();
        command.args(["serve", "--json", "--config"]).arg(config);
        command.arg("--root").arg(&machine.env.root);
        ReadyProcess::start(command)
    }

    fn kill_and_restart(&mut self) {
        self.process.kill();
        self.process = Self::process(self.machine, &self.config);
    }

    fn http(&self) -> String {
        self.process.fact("/http/0")
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        let path = format!("/api/v1/disks/run-7{path}");
        let request = TestRequest::new(self.http(), method, &path).token(&self.token);
        match body {
            Value::Null => request.send().json(),
            body => request.json(body).send().json(),
        }
    }

    /// Exports the image by the command line.
    fn export(&self, more: &[&str]) -> CommandOutcome {
        let (http, fingerprint) = (self.http(), self.process.fact("/fingerprint"));
        let login = ["login", &http, "--token", &self.token, "--fingerprint", &fingerprint];
        run(self.machine.env.penstock().args(login)).good();
        let export = ["export", self.image.to_str().unwrap(), "--name", "run-7", "--at", &http];
        self.machine.disk(&[&export[..], &["--to", HOST, "--json"], more].concat()).good()
    }

    /// File with the secret of a host as the agent states it; `None` where the kernel has none.
    fn secret(&self, host: &str) -> Option<String> {
        let answer = self.ask("POST", "/connection", &json!({"host_nqn": host}));
        let Some(secret) = answer["secret"].as_str() else {
            assert!(answer["secret"].is_null() && !self.machine.has_secrets(), "{answer}");
            return None;
        };
        let short: String = secret.chars().filter(char::is_ascii_alphanumeric).take(20).collect();
        let file = self.machine.env.path(&short);
        fs::write(&file, secret).unwrap();
        Some(file.to_str().unwrap().to_owned())
    }

    fn stream(&self, host: &str, secret: Option<&String>) -> CommandOutcome {
        let location = self.machine.location();
        let stream = ["stream", &location, "/dev/null", "--host-nqn", host, "--json"];
        let secret = secret.map(|file| ["--secret-file", file]);
        self.machine.disk(&[&stream[..], secret.as_ref().map_or(&[], |words| &words[..])].concat())
    }

    /// Asserts that a secret of a host admits it no more.
    #[track_caller]
    fn refuses(&self, host: &str, secret: Option<&String>) {
        if secret.is_some() {
            fails(&self.stream(host, secret), 5, "the secret is wrong");
        }
    }

    /// Asserts that the kernel has the hosts and secrets that the agent states, or nothing.
    #[track_caller]
    fn assert_consistent(&self) -> bool {
        let disk = self.ask("GET", "", &Value::Null);
        if disk["status"] == 404 {
            assert_clean();
            return false;
        }
        assert_eq!(disk["state"], "exported", "{disk}");
        let names = |directory: PathBuf| -> Vec<String> {
            let entries = fs::read_dir(directory).unwrap().flatten();
            let mut names: Vec<String> =
                entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
            names.sort();
            names
        };
        let target = Path::new(TARGET);
        let nqn = disk["nqn"].as_str().unwrap();
        let allowed = names(target.join("subsystems").join(nqn).join("allowed_hosts"));
        assert_eq!(disk["hosts"], json!(allowed));
        assert_eq!(names(target.join("hosts")), allowed);
        for host in &allowed {
            let secret = self.secret(host).map(|file| fs::read_to_string(file).unwrap());
            let key = fs::read_to_string(target.join("hosts").join(host).join("dhchap_key"));
            assert_eq!(key.unwrap_or_default().trim(), secret.unwrap_or_default());
        }
        true
    }

    /// Sends a request, and kills the agent after `delay`, whether it has answered or not.
    fn kill_during(&mut self, method: &str, path: &str, body: &str, delay: Duration) {
        let mut connection = TcpStream::connect(self.http()).unwrap();
        let (token, length) = (&self.token, body.len());
        let head = format!("{method} /api/v1/disks/run-7{path} HTTP/1.1\r\nHost: localhost");
        let fields = format!("Authorization: Bearer {token}\r\nContent-Length: {length}");
        write!(connection, "{head}\r\n{fields}\r\n\r\n{body}").unwrap();
        // The moment of the fault, which nothing waits for.
        std::thread::sleep(delay);
        self.kill_and_restart();
    }
}

#[test]
fn clients_export_disks_of_agents() {
    let Some(machine) = Machine::start() else { return };
    let mut agent = ExportingAgent::start(&machine, "127.0.0.1");
    let exported = agent.export(&[]).json;
    assert_eq!(exported["has_secret"], machine.has_secrets());
    let own = agent.secret(HOST);
    agent.stream(HOST, own.as_ref()).good();
    fails(&agent.stream(OTHER_HOST, own.as_ref()), 5, "does not allow this host");
    let location = machine.location();
    let connect = ["connect", &location, "--host-nqn", HOST, "--json"];
    let secret = own.as_ref().map(|file| ["--secret-file", file]);
    let secret = secret.as_ref().map_or(&[][..], |words| &words[..]);
    let connected = machine.disk(&[&connect[..], secret].concat()).good().json;
    let live = || (machine.connected().first()?["state"] == "live").then_some(());
    // A further host has its own secret and leaves the first one connected; without it the first one connects again.
    let other_host = format!("/hosts/{OTHER_HOST}");
    agent.ask("PUT", &other_host, &Value::Null);
    assert!(live().is_some(), "{:?}", machine.connected());
    let other = agent.secret(OTHER_HOST);
    agent.stream(OTHER_HOST, other.as_ref()).good();
    agent.refuses(HOST, other.as_ref());
    agent.refuses(OTHER_HOST, own.as_ref());
    let left = agent.ask("DELETE", &other_host, &Value::Null);
    assert_eq!(left["state"], "exported", "{left}");
    fails(&agent.stream(OTHER_HOST, other.as_ref()), 5, "does not allow this host");
    wait_until("the kernel reconnects", Duration::from_secs(60), live);
    assert!(device_bytes(&connected) == fs::read(&agent.image).unwrap());
    // The host that comes again has another secret, and the first one still its own.
    agent.ask("PUT", &other_host, &Value::Null);
    agent.refuses(OTHER_HOST, other.as_ref());
    agent.stream(OTHER_HOST, agent.secret(OTHER_HOST).as_ref()).good();
    // The next agent exports it again, with the same secrets.
    agent.kill_and_restart();
    assert!(agent.assert_consistent());
    wait_until("the kernel reconnects", Duration::from_secs(60), live);
    agent.stream(HOST, own.as_ref()).good();
    machine.disk(&["disconnect", "run-7"]).good();
    machine.wait_disconnected();
    agent.ask("DELETE", "", &Value::Null);
    assert_clean();
    agent.export(&[]);
    agent.refuses(HOST, own.as_ref());
    agent.stream(HOST, agent.secret(HOST).as_ref()).good();
    agent.process.end();
    assert_clean();
}

#[test]
fn clients_export_disks_over_rdma() {
    let Some(machine) = Machine::start() else { return };
    let Some(_pair) = RocePair::new() else { return };
    let mut agent = ExportingAgent::start(&machine, RocePair::SECOND_ADDRESS);
    let exported = agent.export(&["--transport", "rdma"]).json;
    assert_eq!(exported["transport"], "rdma");
    let source = format!("{}/run-7", agent.http());
    let of_host = ["--agent", "--host-nqn", HOST];
    let stream = ["stream", &source, "/dev/null"];
    fails(&machine.disk(&[&stream[..], &of_host].concat()), 1, "disk connect alone");
    let connect = ["connect", &source, "--bind", RocePair::FIRST_ADDRESS, "--json"];
    let begun = Instant::now();
    let connected = machine.disk(&[&connect[..], &of_host].concat()).good().json;
    println!("NVMe/RDMA by the agent: connected after {:?}", begun.elapsed());
    assert_eq!((&connected["transport"], &connected["state"]), (&json!("rdma"), &json!("live")));
    let device = connected["devices"][0].as_str().unwrap().to_owned();
    let bytes = fs::read(&agent.image).unwrap();
    assert!(read_directly(&machine, &device) == bytes);
    // A host is admitted and removed, and the agent killed: the first host connects again.
    let live = || (machine.connected().first()?["state"] == "live").then_some(());
    let other_host = format!("/hosts/{OTHER_HOST}");
    agent.ask("PUT", &other_host, &Value::Null);
    assert!(live().is_some(), "{:?}", machine.connected());
    let left = agent.ask("DELETE", &other_host, &Value::Null);
    assert_eq!(left["state"], "exported", "{left}");
    wait_until("the kernel reconnects by RDMA", Duration::from_secs(90), live);
    agent.kill_and_restart();
    assert!(agent.assert_consistent());
    wait_until("the kernel reconnects by RDMA", Duration::from_secs(90), live);
    assert!(read_directly(&machine, &device) == bytes);
    machine.disk(&["disconnect", "run-7"]).good();
    machine.wait_disconnected();
    agent.ask("DELETE", "", &Value::Null);
    assert_clean();
    agent.process.end();
}

/// The agent is killed at moments over the whole time of an export, a further host, its removal and the end.
#[test]
fn killed_agent_settles_requested_exports() {
    const KILL_COUNT: u32 = 4;
    let Some(machine) = Machine::start() else { return };
    let mut agent = ExportingAgent::start(&machine, "127.0.0.1");
    let body = json!({"path": agent.image, "hosts": [HOST]});
    let other_host = format!("/hosts/{OTHER_HOST}");
    let steps = [("PUT", "", &body), ("PUT", &*other_host, &Value::Null)];
    let undo = [("DELETE", &*other_host, &Value::Null), ("DELETE", "", &Value::Null)];
    for (at, (method, path, body)) in steps.into_iter().chain(undo).enumerate() {
        let is_present = at > 0;
        let begun = Instant::now();
        agent.ask(method, path, body);
        let whole = begun.elapsed();
        let text = if body.is_null() { String::new() } else { body.to_string() };
        let mut done = 0;
        for kill in 0..KILL_COUNT {
            // As before the request.
            match (method, path) {
                ("PUT", "") => agent.ask("DELETE", "", &Value::Null),
                ("DELETE", "") => {
                    agent.ask("PUT", "", &json!({"path": agent.image, "hosts": [HOST]}))
                }
                ("PUT", path) => agent.ask("DELETE", path, &Value::Null),
                (_, path) => agent.ask("PUT", path, &Value::Null),
            };
            agent.kill_during(method, path, &text, whole * kill / (KILL_COUNT - 1));
            let is_exported = agent.assert_consistent();
            assert!(is_exported || !is_present || (method, path) == ("DELETE", ""));
            let hosts = agent.ask("GET", "", &Value::Null)["hosts"].as_array().map_or(0, Vec::len);
            done += u32::from(hosts == [1, 2, 1, 0][at]);
        }
        agent.ask(method, path, body);
        println!(
            "kills: {method} {path} of {whole:?}: {done} of {KILL_COUNT} are done after the restart"
        );
    }
    assert_clean();
    agent.process.end();
}

#[test]
fn agent_exports_configured_disks() {
    let Some(machine) = Machine::start() else { return };
    let (first, second) = (machine.image("first", MIB_BYTES), machine.image("second", MIB_BYTES));
    let data = machine.env.path("data");
    fs::create_dir(&data).unwrap();
    let start = |file: &Path| {
        let mut command = machine.env.penstock();
        command.args(["serve", "--json", "--config"]).arg(file).arg("--root").arg(&data);
        ReadyProcess::start(command)
    };
    let names = |wanted: &[&str]| {
        let listed = machine.disk(&["list", "--json"]).good().json;
        let exports = listed["exports"].as_array().unwrap();
        let found: Vec<&str> = exports
            .iter()
            .filter(|one| one["running"] == true)
            .filter_map(|one| one["nqn"].as_str()?.rsplit(':').next())
            .collect();
        (found == wanted).then_some(())
    };
    let wait_for = |wanted: &[&str]| {
        wait_until(&format!("exports {wanted:?}"), Duration::from_secs(60), || names(wanted));
    };
    let file = agent_config(&machine, &[("run-7", &first)]);
    let agent = start(&file);
    wait_for(&["run-7"]);
    machine.stream(&[]).good();
    // A disk of a missing file is logged, and the others follow the reload.
    let missing = machine.env.path("missing");
    agent_config(&machine, &[("run-8", &second), ("run-9", &missing)]);
    agent.signal("HUP");
    wait_for(&["run-8"]);
    assert!(agent.log().contains("disk run-9: not exported"), "{}", agent.log());
    fails(&machine.stream(&[]), 1, "no disk");
    agent.end();
    assert_clean();
    // After SIGKILL the next start removes what is left.
    agent_config(&machine, &[("run-7", &first)]);
    let mut killed = start(&file);
    wait_for(&["run-7"]);
    killed.kill();
    agent_config(&machine, &[]);
    let agent = start(&file);
    assert_clean();
    agent.end();
}
