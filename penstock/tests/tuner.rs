//! The tuner of the streams of copies and of an agent's own transfers, over connections that a proxy caps one by one.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use common::{
    Agent, CommandOutcome, FaultProxy, RunningCommand, TestEnv, assert_same, is_root, run, seeded,
    wait_until, write_file,
};
use penstock_testkit::http::TestRequest;
use penstock_testkit::process::ReadyProcess;
use penstock_testkit::{Requirement, skip};
use serde_json::{Value, json};

/// Rate of each connection: low, so that the processors of a busy machine do not limit the copy.
const CONNECTION_BYTES_PER_SECOND: u64 = 1 << 20;

const REASON_TIMEOUT: Duration = Duration::from_secs(60);

/// An agent behind a proxy that caps each connection, and a file to send.
struct CappedPath {
    env: TestEnv,
    _agent: Agent,
    proxy: FaultProxy,
}

impl CappedPath {
    /// `stream_mib` is the share of each stream of the default. The send buffers take 4 MiB of it at once, and where they
    /// hold all that is left of the file, nothing is left to tune.
    fn new(seed: u64, stream_mib: u64) -> Self {
        let env = TestEnv::new();
        let file_bytes = (stream_mib * default_streams()) as usize * (1 << 20);
        write_file(&mut seeded(seed), &env.source.join("file"), file_bytes);
        let agent = env.agent();
        let proxy = FaultProxy::paced(&agent.listen, CONNECTION_BYTES_PER_SECOND);
        Self { env, _agent: agent, proxy }
    }

    fn command(&self, options: &[&str]) -> Command {
        // From the page cache: a disk that others use would bind the copy at times.
        let mut command = self.env.cp(&["--block", "64KiB", "--engine", "buffered"]);
        command.args(options).arg(self.env.source.join("file")).arg(self.proxy.url(""));
        command
    }

    /// Starts a copy and returns its id, too.
    fn start(&self, options: &[&str]) -> (RunningCommand, String) {
        let client = RunningCommand::start(&mut self.command(options));
        let id = format!("cp{}", client.child.id());
        (client, id)
    }

    fn copy(&self, options: &[&str]) -> CommandOutcome {
        let done = run(&mut self.command(options)).good();
        assert_same(&self.env.source, &self.env.root);
        done
    }

    /// Changes the running copy, once it can be found.
    fn set(&self, client: &mut RunningCommand, id: &str, words: &[&str]) {
        wait_until("it is changed", REASON_TIMEOUT, || {
            assert!(!client.is_over(), "the copy ends before it is changed");
            let set = run(self.env.penstock().args(["transfers", "set", id]).args(words));
            (set.code == 0).then_some(())
        });
    }

    /// Waits until the running copy gives a reason that contains `words`.
    fn wait_for_reason(&self, client: &mut RunningCommand, id: &str, words: &str) {
        wait_until("a reason is shown", REASON_TIMEOUT, || {
            assert!(!client.is_over(), "the copy ends before {words:?}");
            self.why(id, &[]).output.contains(words).then_some(())
        });
    }

    fn why(&self, id: &str, options: &[&str]) -> CommandOutcome {
        run(self.env.penstock().args(["transfers", "show", id, "--why"]).args(options))
    }
}

fn decisions(tuning: &Value) -> &Vec<Value> {
    tuning["decisions"].as_array().expect("a list of decisions")
}

/// Decisions, or none before the first sample.
fn decisions_of(tuning: &Value) -> impl Iterator<Item = &Value> {
    tuning["decisions"].as_array().into_iter().flatten()
}

fn number(decision: &Value, field: &str) -> u64 {
    decision[field].as_u64().unwrap_or_else(|| panic!("{field} in {decision}"))
}

/// Streams of `--streams auto`.
fn default_streams() -> u64 {
    let processors = std::thread::available_parallelism().unwrap().get() as u64;
    processors.clamp(2, 8)
}

/// Model that forecasts the rate of the last second for the next one, give or take a tenth, from two samples.
fn last_value_model() -> Vec<u8> {
    let described = json!({
        "format": "penstock-sequence", "version": 1, "kind": "last", "target": "rate_by_window_mean",
        "quantiles": [0.1, 0.5, 0.9], "interval_s": 1, "window": 2, "horizons_s": [1],
        "features": [{
            "name": "rate_bps", "unit": "bit/s", "offset": 1.0, "scale": 1.0, "low": 0.0, "high": 1e12,
        }],
        "training": {
            "traces": 1, "synthetic_traces": 1, "windows": 1, "sha256": "", "seed": 1, "jax": "",
        },
    });
    let header = json!({
        "__metadata__": {"penstock": described.to_string()},
        "head.bias": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]},
        "golden.input": {"dtype": "F32", "shape": [1, 2, 1], "data_offsets": [12, 20]},
        "golden.output": {"dtype": "F64", "shape": [1, 3], "data_offsets": [20, 44]},
    });
    let header = header.to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.bytes());
    [-0.1_f32, 0.0, 0.1, 1.0, 1.0].iter().for_each(|value| bytes.extend(value.to_le_bytes()));
    [0.9_f64, 1.0, 1.1].iter().for_each(|value| bytes.extend(value.to_le_bytes()));
    bytes
}

/// Forecast of the next second, once there is one.
fn next_second(tuning: &Value) -> Option<[u64; 3]> {
    let first = tuning["forecasts"].as_array()?.first()?;
    assert_eq!(first["seconds"], 1, "{tuning}");
    Some(["p10_bps", "p50_bps", "p90_bps"].map(|field| number(first, field)))
}

#[test]
fn running_copy_has_forecast() {
    let path = CappedPath::new(321, 48);
    let model = path.env.state.join("sequence-model.safetensors");
    let (mut client, id) = path.start(&[]);
    path.wait_for_reason(&mut client, &id, "Tries streams");
    let before = path.why(&id, &["--json"]).good().json;
    assert_eq!((next_second(&before), &before["forecast_refusal"]), (None, &Value::Null));
    std::fs::write(&model, last_value_model()).unwrap();
    let [p10, p50, p90] = wait_until("the next second is forecast", REASON_TIMEOUT, || {
        assert!(!client.is_over());
        next_second(&path.why(&id, &["--json"]).json)
    });
    assert!(p10 < p50 && p50 < p90, "{p10} {p50} {p90}");
    let shown = path.why(&id, &[]).good();
    assert!(shown.output.contains("next 1 s: ") && shown.output.contains("synthetic"), "{shown:?}");
    std::fs::write(&model, "damaged").unwrap();
    let shown = path.why(&id, &[]).good();
    assert!(shown.output.contains("no forecast of the next seconds: "), "{shown:?}");
    client.kill();
}

/// A folder through FUSE, whose reads and writes have a rate one by one.
struct SlowFiles {
    mountpoint: PathBuf,
    _server: ReadyProcess,
}

impl SlowFiles {
    fn new(folder: &Path, mountpoint: PathBuf, mbps: u32) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../experiments/tuner-lab/slow_files.py");
        std::fs::create_dir(&mountpoint).unwrap();
        let mut command = Command::new("python3");
        command.arg(script).args([folder, &mountpoint]).arg(mbps.to_string());
        Self { mountpoint, _server: ReadyProcess::start_until(command, "is ready") }
    }
}

impl Drop for SlowFiles {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.mountpoint).status();
    }
}

#[test]
fn slow_reads_get_more_readers() {
    if !is_root() {
        return skip(Requirement::Root, "a mount of FUSE needs root");
    }
    let env = TestEnv::new();
    let file = std::fs::File::create(env.source.join("file")).unwrap();
    file.set_len(2 << 30).unwrap();
    let slow = SlowFiles::new(&env.source, env.dir.path().join("slow"), 16);
    let agent = env.agent();
    let mut command = env.cp(&["--block", "64KiB"]);
    command.arg(slow.mountpoint.join("file")).arg(agent.url(""));
    let mut client = RunningCommand::start(&mut command);
    let id = format!("cp{}", client.child.id());
    let show =
        |options: &[&str]| run(env.penstock().args(["transfers", "show", &id]).args(options));
    let tuning = wait_until("four times the readers are kept", REASON_TIMEOUT, || {
        assert!(!client.is_over(), "the copy ends before");
        let tuning = show(&["--why", "--json"]).json;
        let of = |one: &Value| (number(one, "readers"), number(one, "target_readers"));
        let is_there = decisions_of(&tuning).any(|one| of(one).0 >= 8 && of(one).1 >= 8);
        is_there.then_some(tuning)
    });
    let all = decisions(&tuning);
    assert_eq!((number(&all[0], "readers"), number(&all[0], "target_readers")), (2, 4), "{tuning}");
    assert_eq!(all[0]["bound_by"], "the source's storage", "{tuning}");
    let rates = all.iter().map(|one| number(one, "bits_per_second"));
    assert!(rates.max().unwrap() >= 2 * number(&all[0], "bits_per_second"), "{tuning}");
    assert!(show(&["--why"]).good().output.contains("  2 -> 4   readers"), "{tuning}");
    run(env.penstock().args(["transfers", "set", &id, "--readers", "3"])).good();
    wait_until("the tuner ends", REASON_TIMEOUT, || {
        let ended = show(&["--why", "--json"]).json["ended"].clone();
        (ended == "the readers were changed by hand").then_some(())
    });
    client.kill();
}

#[test]
fn slow_writes_get_more_writers() {
    if !is_root() {
        return skip(Requirement::Root, "a mount of FUSE needs root");
    }
    let env = TestEnv::new();
    write_file(&mut seeded(323), &env.source.join("file"), 192 << 20);
    let slow = SlowFiles::new(&env.root, env.path("slow"), 4);
    // The agent takes what its memory holds at once: then its writers bind.
    let agent = Agent::start(&env.state, &slow.mountpoint, "127.0.0.1:0", &["--memory", "16MiB"]);
    let mut command = env.cp(&["--block", "64KiB", "--protect", "integrity"]);
    command.arg(env.source.join("file")).arg(agent.url(""));
    let mut client = RunningCommand::start(&mut command);
    let id = format!("cp{}", client.child.id());
    let show =
        |options: &[&str]| run(env.penstock().args(["transfers", "show", &id]).args(options));
    let of = |one: &Value| (number(one, "writers"), number(one, "target_writers"));
    let rate_of = |one: &Value| number(one, "bits_per_second");
    let tuning = wait_until("twice the writers are faster, and kept", REASON_TIMEOUT, || {
        assert!(!client.is_over(), "the copy ends before");
        let tuning = show(&["--why", "--json"]).json;
        let first = decisions_of(&tuning).find(|one| of(one).0 != of(one).1)?;
        let is_kept = decisions_of(&tuning).any(|one| of(one).0 >= 16 && of(one).1 >= 16);
        let after = |point: &&Value| point["seconds"].as_f64() > first["seconds"].as_f64();
        let best = tuning["series"].as_array()?.iter().filter(after).map(rate_of).max()?;
        (is_kept && 2 * best >= 3 * rate_of(first)).then_some(tuning)
    });
    let first = decisions(&tuning).iter().find(|one| of(one).0 != of(one).1).unwrap();
    assert_eq!(of(first).0, 8, "{tuning}");
    assert_eq!(first["bound_by"], "the destination's storage", "{tuning}");
    assert!(show(&["--why"]).good().output.contains("writers  "), "{tuning}");
    let at_agent = || agent.transfers(&env.state).remove(0);
    assert!(number(&at_agent(), "writers") > 8, "{tuning}");
    // The operator of the agent knows better.
    let set = ["transfers", "--http", &agent.http, "set", &at_agent()["id"].to_string()];
    run(env.penstock().args(set).args(["--writers", "64"])).good();
    let done = client.wait().good();
    assert_eq!(done.json["tuning"]["ended"], "the writers were changed by hand", "{done:?}");
    assert_eq!(at_agent()["writers"], 64, "{done:?}");
    assert_eq!(done.number("blocks_repeated"), 0, "{done:?}");
    assert_same(&env.source, &env.root);
}

#[test]
fn capped_connections_get_more_streams() {
    let path = CappedPath::new(301, 32);
    let (mut client, id) = path.start(&[]);
    path.wait_for_reason(&mut client, &id, "Tries streams");
    let done = client.wait().good();
    assert_same(&path.env.source, &path.env.root);
    let tuning = &done.json["tuning"];
    assert_eq!(tuning["mode"], "auto", "{tuning}");
    assert!(tuning["ended"].is_null(), "{tuning}");
    let all = decisions(tuning);
    assert_eq!(number(&all[0], "streams"), default_streams(), "{tuning}");
    assert!(done.number("streams") >= 4 * default_streams(), "{done:?}");
    let rates = all.iter().map(|one| number(one, "bits_per_second"));
    assert!(rates.max().unwrap() >= 2 * number(&all[0], "bits_per_second"), "{tuning}");
    let texts = ["reason", "bound_by"].map(|field| all.iter().map(move |one| &one[field]));
    assert!(texts.into_iter().flatten().all(|text| !text.as_str().unwrap().is_empty()), "{tuning}");
    assert_eq!(done.number("streams_lost"), 0, "{done:?}");
    assert_eq!(done.number("blocks_repeated"), 0, "{done:?}");
}

#[test]
fn ended_copy_shows_decisions() {
    let path = CappedPath::new(302, 16);
    let (mut client, id) = path.start(&[]);
    // A busy machine may take long to the first decision.
    path.wait_for_reason(&mut client, &id, "Tries streams");
    let done = client.wait().good();
    let shown = path.why(&id, &["--json"]).good();
    assert!(!decisions(&shown.json).is_empty(), "{shown:?}");
    assert_eq!(shown.json, done.json["tuning"]);
    assert!(path.why(&id, &[]).good().output.contains("Tries streams"));
}

#[test]
fn observed_streams_stay() {
    let path = CappedPath::new(303, 16);
    let streams = default_streams();
    let done = path.copy(&["--tune", "observe"]);
    assert_eq!(done.number("streams"), streams, "{done:?}");
    let tuning = &done.json["tuning"];
    assert_eq!(tuning["mode"], "observe", "{tuning}");
    assert!(decisions(tuning).iter().any(|one| one["target_streams"] == 2 * streams), "{tuning}");
}

#[test]
fn tuner_off_keeps_streams() {
    let path = CappedPath::new(304, 2);
    let cases = [
        (["--tune", "off"], default_streams(), "--tune off"),
        (["--streams", "4"], 4, "--streams names a number"),
    ];
    for (options, streams, reason) in cases {
        let done = path.copy(&options);
        assert_eq!(done.number("streams"), streams, "{done:?}");
        assert_eq!(done.json["tuning"]["mode"], "off", "{done:?}");
        assert_eq!(done.json["tuning"]["ended"], reason, "{done:?}");
        std::fs::remove_file(path.env.root.join("file")).unwrap();
    }
}

#[test]
fn short_copy_keeps_default_streams() {
    let path = CappedPath::new(305, 0);
    write_file(&mut seeded(305), &path.env.source.join("file"), 100_000);
    let (client, id) = path.start(&[]);
    let done = client.wait().good();
    assert_eq!(done.number("streams"), default_streams(), "{done:?}");
    assert!(decisions(&done.json["tuning"]).is_empty(), "{done:?}");
    let shown = path.why(&id, &[]);
    assert_ne!(shown.code, 0, "{shown:?}");
}

#[test]
fn received_copy_keeps_streams() {
    let path = CappedPath::new(306, 2);
    std::fs::rename(path.env.source.join("file"), path.env.root.join("file")).unwrap();
    let mut command = path.env.cp(&[path.proxy.url("file")]);
    let done = run(command.arg(path.env.source.join("file"))).good();
    assert_eq!(done.number("streams"), default_streams(), "{done:?}");
    let reason = done.json["tuning"]["ended"].as_str().unwrap();
    assert!(reason.contains("the agent sends"), "{done:?}");
}

#[test]
fn streams_set_by_hand_stay() {
    let path = CappedPath::new(307, 8);
    let (mut client, id) = path.start(&[]);
    path.set(&mut client, &id, &["--streams", "5"]);
    let done = client.wait().good();
    let tuning = &done.json["tuning"];
    assert_eq!(tuning["ended"], "the streams were changed by hand", "{tuning}");
}

#[test]
fn running_copy_switches_tuner() {
    let path = CappedPath::new(323, 8);
    let (mut client, id) = path.start(&[]);
    path.set(&mut client, &id, &["--tune", "off"]);
    let done = client.wait().good();
    let ended = done.json["tuning"]["ended"].as_str().unwrap();
    assert!(ended.contains("switched off by hand"), "{ended}");
    // A number that the command names is kept, and the request says so.
    let path = CappedPath::new(324, 8);
    let (mut client, id) = path.start(&["--streams", "2"]);
    wait_until("it is refused", REASON_TIMEOUT, || {
        assert!(!client.is_over(), "the copy ends before it is changed");
        let set = run(path.env.penstock().args(["transfers", "set", &id, "--tune", "auto"]));
        set.error.contains("--streams names a number").then_some(())
    });
    client.wait().good();
}

#[test]
fn untuned_copy_switches_tuner_on() {
    let path = CappedPath::new(326, 24);
    let (mut client, id) = path.start(&["--tune", "off"]);
    path.set(&mut client, &id, &["--tune", "auto"]);
    path.wait_for_reason(&mut client, &id, "Tries streams");
    let done = client.wait().good();
    assert_same(&path.env.source, &path.env.root);
    assert!(done.number("streams") > default_streams(), "{done:?}");
}

#[test]
fn stalled_path_keeps_streams() {
    let path = CappedPath::new(308, 32);
    let (mut client, id) = path.start(&[]);
    path.wait_for_reason(&mut client, &id, "Tries streams");
    path.proxy.freeze();
    // As a decision: the latest line has it one interval earlier.
    path.wait_for_reason(&mut client, &id, "streams  Keeps the settings: no data");
    path.proxy.thaw();
    let done = client.wait().good();
    let all = decisions(&done.json["tuning"]);
    let says = |one: &Value, words| one["reason"].as_str().unwrap().contains(words);
    let stall = all.iter().position(|one| says(one, "Keeps the settings: no data")).unwrap();
    let resumed = all.iter().position(|one| says(one, "Measures again: data")).unwrap();
    assert!(stall < resumed, "{all:?}");
    // A step may be taken back where the stall lasts, and none is blamed for the rate.
    let blamed = all[stall..resumed].iter().any(|one| says(one, "the rate changed"));
    assert!(!blamed, "{all:?}");
    // The search goes on.
    assert!(done.number("streams") >= 4 * default_streams(), "{done:?}");
}

/// An agent that sends a file to another one behind a proxy that caps each connection.
struct SendingAgent {
    near: TestEnv,
    far: TestEnv,
    agent: Agent,
    other: Agent,
    proxy: FaultProxy,
}

impl SendingAgent {
    /// `configuration` is added to that of the sending agent.
    fn new(seed: u64, mib: usize, configuration: &str) -> Self {
        let [near, far] = [(); 2].map(|()| TestEnv::new());
        write_file(&mut seeded(seed), &near.root.join("file"), mib << 20);
        let file = near.path("penstock.toml");
        std::fs::write(&file, configuration).unwrap();
        let more = ["--config", file.to_str().unwrap()];
        let agent = Agent::start(&near.state, &near.root, "127.0.0.1:0", &more);
        let other = far.agent();
        let proxy = FaultProxy::paced(&other.listen, CONNECTION_BYTES_PER_SECOND);
        Self { near, far, agent, other, proxy }
    }

    /// Submits a copy of the file with these fields, too; returns its number.
    fn submit(&self, fields: Value) -> u64 {
        let token = |env: &TestEnv| std::fs::read_to_string(env.state.join("token")).unwrap();
        let mut body = json!({
            "source": "/file", "destination": self.proxy.url("file"), "encrypt": false,
            "remote": {"token": token(&self.far).trim(), "fingerprint": self.other.fingerprint},
        });
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let request = TestRequest::new(&self.agent.http, "POST", "/api/v1/transfers");
        let answer = request.token(token(&self.near).trim()).json(&body).send();
        assert_eq!(answer.status, 201, "{}", answer.text());
        answer.json()["id"].as_u64().unwrap()
    }

    /// A client that knows both agents, the other one behind the proxy.
    fn asking_client(&self) -> TestEnv {
        let asking = TestEnv::new();
        let proxy = self.proxy.url("");
        let proxy = proxy.trim_start_matches("penstock://").trim_end_matches('/');
        for (site, address, fingerprint) in [
            (&self.near, self.agent.listen.as_str(), &self.agent.fingerprint),
            (&self.far, proxy, &self.other.fingerprint),
        ] {
            let token = std::fs::read_to_string(site.state.join("token")).unwrap();
            let mut command = asking.penstock();
            command.args(["login", address, "--token", token.trim(), "--fingerprint", fingerprint]);
            run(&mut command).good();
        }
        asking
    }

    /// A copy of the file between the two agents, which a third host asks for.
    fn third_party(&self, asking: &TestEnv, to: &str, options: &[&str]) -> Command {
        let mut command = asking.cp(&["--block", "256KiB"]);
        command.args(options).args([self.agent.url("file"), self.proxy.url(to)]);
        command
    }

    fn transfers(&self, arguments: &[&str]) -> CommandOutcome {
        let mut command = self.near.penstock();
        command.args(["transfers", "--http", &self.agent.http]).args(arguments);
        run(&mut command)
    }

    fn why(&self, id: u64) -> String {
        self.transfers(&["show", &id.to_string(), "--why"]).good().output
    }

    fn tuning(&self, id: u64) -> Value {
        self.transfers(&["show", &id.to_string(), "--why", "--json"]).good().json
    }

    fn show(&self, id: u64) -> Value {
        self.transfers(&["show", &id.to_string(), "--json"]).good().json
    }

    fn wait_for_reason(&self, id: u64, words: &str) {
        wait_until("a reason is shown", REASON_TIMEOUT, || {
            let (state, why) = (self.show(id)["state"].clone(), self.why(id));
            assert!(state == "waiting" || state == "running", "{state}: {why}");
            why.contains(words).then_some(())
        });
    }

    fn wait_for_end(&self, id: u64) {
        wait_until("it ends", REASON_TIMEOUT, || (self.show(id)["state"] == "done").then_some(()));
        assert_same(&self.near.root, &self.far.root);
    }
}

#[test]
fn submitted_copy_gets_more_streams() {
    let path = SendingAgent::new(311, 96, "");
    let id = path.submit(json!({}));
    path.wait_for_reason(id, "Tries streams");
    path.wait_for_end(id);
    let tuning = path.tuning(id);
    assert_eq!(tuning["mode"], "auto", "{tuning}");
    let all = decisions(&tuning);
    assert_eq!(number(&all[0], "streams"), default_streams(), "{tuning}");
    let points = tuning["series"].as_array().unwrap();
    let most = |field| points.iter().map(|one| number(one, field)).max().unwrap();
    assert!(most("streams") >= 4 * default_streams(), "{tuning}");
    assert!(most("bits_per_second") >= 2 * number(&all[0], "bits_per_second"), "{tuning}");
    // Blocks that were sent twice would count here, too.
    assert_eq!(path.show(id)["moved_bytes"], 96 << 20);
}

#[test]
fn submitted_copy_names_rate_limit() {
    let path = SendingAgent::new(312, 32, "");
    let model = path.near.state.join("sequence-model.safetensors");
    std::fs::write(model, last_value_model()).unwrap();
    let id = path.submit(json!({"rate_bps": 8_000_000}));
    path.wait_for_reason(id, "Keeps the settings: the rate limit binds");
    // One connection carries it.
    path.wait_for_reason(id, "streams 2 -> 1");
    assert!(next_second(&path.tuning(id)).is_some(), "{}", path.tuning(id));
    path.transfers(&["cancel", &id.to_string()]).good();
}

/// Jain's fairness index.
fn jain(rates: &[f64]) -> f64 {
    let sum: f64 = rates.iter().sum();
    sum * sum / (rates.len() as f64 * rates.iter().map(|rate| rate * rate).sum::<f64>())
}

#[test]
fn transfers_of_agent_share_streams() {
    const AGENT_STREAMS: u64 = 12;
    /// Latest points of the rate that count: three seconds.
    const LATEST_POINTS: usize = 6;
    let path = SendingAgent::new(317, 1, &format!("[limits]\nstreams = {AGENT_STREAMS}\n"));
    let submit = |name: &str, mib: usize| {
        write_file(&mut seeded(318), &path.near.root.join(name), mib << 20);
        let to = path.proxy.url(name);
        path.submit(json!({"source": format!("/{name}"), "destination": to}))
    };
    // Streams at the end of the latest points, and mean rate over them.
    let latest = |id: u64| -> Option<(u64, f64)> {
        let tuning = path.tuning(id);
        let points = tuning["series"].as_array()?;
        let points = &points[points.len().checked_sub(LATEST_POINTS)?..];
        let rates = points.iter().map(|one| number(one, "bits_per_second") as f64);
        Some((number(points.last()?, "streams"), rates.sum::<f64>() / LATEST_POINTS as f64))
    };
    let mut ids = vec![submit("one", 320)];
    path.wait_for_reason(ids[0], "Tries streams 4 -> 8");
    for joining in [&[("two", 224)][..], &[("three", 128), ("four", 128)]] {
        ids.extend(joining.iter().map(|(name, mib)| submit(name, *mib)));
        wait_until("all have equal streams and rates", REASON_TIMEOUT, || {
            let all = path.agent.transfers(&path.near.state);
            assert!(all.iter().all(|one| one["state"] != "done"), "{all:?}");
            let running = all.iter().filter(|one| one["state"] == "running");
            let streams: u64 = running.map(|one| number(one, "streams")).sum();
            // A transfer that joins has a stream in any case.
            assert!(streams < AGENT_STREAMS + ids.len() as u64, "{all:?}");
            let latest: Option<Vec<_>> = ids.iter().map(|id| latest(*id)).collect();
            let (streams, rates): (Vec<u64>, Vec<f64>) = latest?.into_iter().unzip();
            let is_equal = streams.iter().all(|one| *one == streams[0]);
            (is_equal && jain(&rates) >= 0.95).then_some(())
        });
    }
    assert!(path.why(ids[0]).contains("4 transfers to this host together"), "{}", path.why(ids[0]));
    for id in ids {
        path.transfers(&["cancel", &id.to_string()]).good();
    }
}

#[test]
fn operator_switches_tuner_off() {
    let path = SendingAgent::new(313, 256, "");
    let id = path.submit(json!({}));
    path.wait_for_reason(id, "Tries streams");
    let file = path.near.path("penstock.toml");
    std::fs::write(&file, "[tuning]\nmode = \"off\"\n").unwrap();
    path.agent.signal("HUP");
    path.wait_for_reason(id, "the operator has switched the tuner off");
    wait_until("the default is restored", REASON_TIMEOUT, || {
        (path.show(id)["streams"] == default_streams()).then_some(())
    });
    std::fs::write(&file, "[tuning]\nmode = \"auto\"\n").unwrap();
    path.agent.signal("HUP");
    wait_until("the running transfer is tuned again", REASON_TIMEOUT, || {
        (path.show(id)["streams"].as_u64() > Some(default_streams())).then_some(())
    });
    path.transfers(&["cancel", &id.to_string()]).good();
    std::fs::write(&file, "[tuning]\nmode = \"off\"\n").unwrap();
    path.agent.signal("HUP");
    let later = path.submit(json!({"rate_bps": 1_000_000}));
    path.wait_for_reason(later, "the operator has switched the tuner off");
    assert_eq!(path.tuning(later)["mode"], "off");
    path.transfers(&["cancel", &later.to_string()]).good();
}

#[test]
fn transfer_switches_tuner_on_again() {
    let path = SendingAgent::new(325, 256, "");
    let id = path.submit(json!({}));
    path.wait_for_reason(id, "Tries streams");
    let name = id.to_string();
    let set = |words: &[&str]| path.transfers(&[&["set", &name][..], words].concat());
    set(&["--streams", "1"]).good();
    path.wait_for_reason(id, "the streams were changed by hand");
    wait_until("the others end", REASON_TIMEOUT, || (path.show(id)["streams"] == 1).then_some(()));
    set(&["--tune", "off"]).good();
    assert_eq!(path.show(id)["streams"], 1);
    set(&["--tune", "auto"]).good();
    wait_until("the search goes on", REASON_TIMEOUT, || {
        (path.show(id)["streams"].as_u64() > Some(default_streams())).then_some(())
    });
    set(&["--tune", "off"]).good();
    path.wait_for_reason(id, "switched off by hand");
    wait_until("the default is restored", REASON_TIMEOUT, || {
        (path.show(id)["streams"] == default_streams()).then_some(())
    });
    path.transfers(&["cancel", &id.to_string()]).good();
}

#[test]
fn untuned_transfers_say_why() {
    let path = SendingAgent::new(314, 1, "");
    let cases = [
        (json!({"streams": 3}), "the submission names a number of streams"),
        (json!({"tune": "off"}), "the submission switches the tuner off"),
        (json!({"checksum": "md5"}), "the digest needs the order of the file"),
        (json!({"destination": "/copy", "remote": null, "encrypt": null}), "both ends are at this"),
    ];
    for (fields, reason) in cases {
        let id = path.submit(fields);
        wait_until(reason, REASON_TIMEOUT, || path.why(id).contains(reason).then_some(()));
    }
}

#[test]
fn observed_submission_keeps_streams() {
    let path = SendingAgent::new(319, 32, "");
    let id = path.submit(json!({"tune": "observe"}));
    path.wait_for_reason(id, "Tries streams");
    assert_eq!(path.tuning(id)["mode"], "observe");
    assert_eq!(path.show(id)["streams"], default_streams());
    path.transfers(&["cancel", &id.to_string()]).good();
}

#[test]
fn submission_obeys_operator_of_tuner() {
    let path = SendingAgent::new(320, 32, "[tuning]\nmode = \"observe\"\n");
    let id = path.submit(json!({"tune": "auto"}));
    path.wait_for_reason(id, "Tries streams");
    assert_eq!(path.tuning(id)["mode"], "observe");
    path.transfers(&["cancel", &id.to_string()]).good();
}

#[test]
fn unknown_path_keeps_default_streams() {
    let path = SendingAgent::new(321, 32, "");
    let id = path.submit(json!({"tune": "history"}));
    path.wait_for_reason(id, "earlier transfers to this host are too few");
    let tuning = path.tuning(id);
    assert_eq!(tuning["mode"], "history", "{tuning}");
    assert!(decisions(&tuning).is_empty(), "{tuning}");
    assert_eq!(path.show(id)["streams"], default_streams());
    path.transfers(&["cancel", &id.to_string()]).good();
}

#[test]
fn third_party_copy_is_observed() {
    let path = SendingAgent::new(322, 48, "");
    let asking = path.asking_client();
    let options = ["--streams", "3", "--tune", "observe"];
    let done = run(&mut path.third_party(&asking, "file", &options)).good();
    assert_same(&path.near.root, &path.far.root);
    assert_eq!(done.number("streams"), 3, "{done:?}");
    let sending = path.agent.transfers(&path.near.state);
    let tuning = path.tuning(sending.last().unwrap()["id"].as_u64().unwrap());
    assert_eq!(tuning["mode"], "observe", "{tuning}");
    assert!(decisions(&tuning).iter().any(|one| one["target_streams"] == 6), "{tuning}");
}

#[test]
fn third_party_copy_gets_more_streams() {
    let path = SendingAgent::new(315, 96, "");
    let asking = path.asking_client();
    let copy = |name: &str, options: &[&str]| path.third_party(&asking, name, options);
    let done = run(&mut copy("file", &[])).good();
    assert_same(&path.near.root, &path.far.root);
    assert!(done.number("streams") >= 4 * default_streams(), "{done:?}");
    assert_eq!(done.number("blocks_repeated"), 0, "{done:?}");
    let sending = path.agent.transfers(&path.near.state);
    let id = sending.last().unwrap()["id"].as_u64().unwrap();
    assert!(path.why(id).contains("Tries streams"), "{}", path.why(id));
    // The client decides, and the agent says so.
    write_file(&mut seeded(316), &path.near.root.join("file"), 2 << 20);
    let kept = run(&mut copy("kept", &["--tune", "off"])).good();
    assert_eq!(kept.number("streams"), default_streams(), "{kept:?}");
    let why = path.why(id + 1);
    assert!(why.contains("--tune off"), "{why}");
}
