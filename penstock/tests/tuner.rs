//! The tuner of a copy's streams, over connections that a proxy caps one by one.

mod common;

use std::time::Duration;

use common::{
    Agent, CommandOutcome, FaultProxy, RunningCommand, TestEnv, assert_same, run, seeded,
    wait_until, write_file,
};
use serde_json::Value;

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

    fn command(&self, options: &[&str]) -> std::process::Command {
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

fn number(decision: &Value, field: &str) -> u64 {
    decision[field].as_u64().unwrap_or_else(|| panic!("{field} in {decision}"))
}

/// Streams of `--streams auto`.
fn default_streams() -> u64 {
    let processors = std::thread::available_parallelism().unwrap().get() as u64;
    processors.clamp(2, 8)
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
    let path = CappedPath::new(302, 10);
    let (client, id) = path.start(&[]);
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
    wait_until("it is shown", REASON_TIMEOUT, || {
        assert!(!client.is_over(), "the copy ends before it is changed");
        let set = run(path.env.penstock().args(["transfers", "set", &id, "--streams", "5"]));
        (set.code == 0).then_some(())
    });
    let done = client.wait().good();
    let tuning = &done.json["tuning"];
    assert_eq!(tuning["ended"], "the streams were changed by hand", "{tuning}");
}

#[test]
fn stalled_path_keeps_streams() {
    let path = CappedPath::new(308, 32);
    let (mut client, id) = path.start(&[]);
    path.wait_for_reason(&mut client, &id, "Tries streams");
    path.proxy.freeze();
    path.wait_for_reason(&mut client, &id, "no data has arrived");
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
