//! Circuits of a controller in a running lab: created on loaded links, measured by counters, restored after a link
//! failure, released. Real agents and traffic; needs root.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

mod common;
use common::{
    Agent, PENSTOCK, RunningCommand, fixed_address, run, seeded, wait_until, write_file,
    write_private,
};

/// Limit of each wait, generous for busy machines.
const CIRCUIT_TIMEOUT: Duration = Duration::from_secs(120);

/// Two sites, two paths of 40 Mb/s between them, and two hosts that send background traffic.
const NETWORK: &str = r#"
name = "two-ways"
[[site]]
name = "cern"
[[site]]
name = "caltech"
[[host]]
name = "dtn-cern"
site = "cern"
interface = [{ name = "eth0", rate = "1G", mtu = 9000 }]
[[host]]
name = "dtn-caltech"
site = "caltech"
interface = [{ name = "eth0", rate = "1G", mtu = 9000 }]
[[host]]
name = "ops"
interface = [{ name = "eth0", rate = "1G", mtu = 9000 }]
[[host]]
name = "noise-a"
interface = [{ name = "eth0", rate = "1G", mtu = 9000 }]
[[host]]
name = "noise-b"
interface = [{ name = "eth0", rate = "1G", mtu = 9000 }]
[[switch]]
name = "geneva"
[[switch]]
name = "pasadena"
[[switch]]
name = "chicago"
[[link]]
name = "at-cern"
ends = ["dtn-cern:eth0", "geneva"]
[[link]]
name = "at-caltech"
ends = ["dtn-caltech:eth0", "pasadena"]
[[link]]
name = "room"
ends = ["ops:eth0", "geneva"]
[[link]]
name = "loud-a"
ends = ["noise-a:eth0", "geneva"]
[[link]]
name = "loud-b"
ends = ["noise-b:eth0", "pasadena"]
[[link]]
name = "direct"
ends = ["geneva", "pasadena"]
rate = "40M"
delay = "5ms"
[[link]]
name = "round-1"
ends = ["geneva", "chicago"]
rate = "40M"
delay = "4ms"
[[link]]
name = "round-2"
ends = ["chicago", "pasadena"]
rate = "40M"
delay = "4ms"
"#;

const CIRCUIT_RATE_BPS: u64 = 20_000_000;
/// Least rate that shows the reservation: half of a link is the circuit's; one of nine equal streams would get 4.4 Mb/s.
const MOVED_BPS: i64 = 12_000_000;

struct TestEnv {
    dir: tempfile::TempDir,
    noise: Vec<Child>,
}

impl TestEnv {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn penstock(&self) -> Command {
        let mut command = Command::new(PENSTOCK);
        command.env("PENSTOCK_STATE", self.path("state")).env_remove("PENSTOCK_ROLES");
        command.stdin(Stdio::null());
        command
    }

    fn lab(&self, words: &[&str]) -> Value {
        let mut command = self.penstock();
        run(command.arg("lab").args(words).arg("--json")).good().json
    }

    /// A program inside the namespace of a lab host.
    fn on(&self, host: &str, words: &[&str]) -> Command {
        let mut command = self.penstock();
        command.args(["lab", "exec", "--state", host, "--", PENSTOCK]).args(words);
        command
    }

    /// JSON output of a controller verb, run on the controller's host.
    fn ask(&self, words: &[&str]) -> Value {
        let mut command = self.on("ops", words);
        run(command.args(["--json", "--controller", "127.0.0.1:8622"])).good().json
    }

    fn reservation(&self) -> Value {
        self.ask(&["reserve"])["reservations"][0].clone()
    }

    fn noise(&mut self) {
        let quiet = |mut command: Command| {
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
        };
        let server = quiet(self.on("noise-b", &["nettest", "--listen", "[::]:5201"]));
        self.noise.push(server);
        let words = ["nettest", "[noise-b]:5201", "--time", "600", "--streams", "8"];
        // The server may not listen yet.
        let mut script = self.penstock();
        script.args(["lab", "exec", "--state", "noise-a", "--", "sh", "-c"]);
        script.arg(format!("until {PENSTOCK} {}; do sleep 0.2; done", words.join(" ")));
        self.noise.push(quiet(script));
    }

    fn link(&self, name: &str) -> Value {
        let status = self.lab(&["status"]);
        let links = status["links"].as_array().unwrap();
        links.iter().find(|link| link["name"] == name).unwrap()["directions"][0].clone()
    }
}

impl Drop for TestEnv {
    fn drop(&mut self) {
        let _ = self.penstock().args(["lab", "down"]).output();
        for child in &mut self.noise {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn controller(env: &TestEnv) -> Agent {
    let directory = env.path("ops");
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("network.toml"), NETWORK).unwrap();
    let lab = env.path("state/labs/two-ways");
    let mut text = format!(
        "roles = [\"controller\"]\n[agent]\nhttp = [\"[::]:8621\", \"127.0.0.1:8622\"]\n[controller]\n\
         topology = \"network.toml\"\nround = \"500ms\"\n\
         [controller.circuits]\nprovider = \"lab\"\nlab = \"{}\"\n\
         [[controller.class]]\nname = \"production\"\n",
        lab.display()
    );
    for host in ["dtn-cern", "dtn-caltech"] {
        write_private(&directory.join(host), format!("the-token-of-{host}"));
        text += &format!(
            "[[controller.token]]\nname = \"{host}\"\nfile = \"{host}\"\nscopes = [\"agent:{host}\"]\n"
        );
    }
    fs::write(directory.join("penstock.toml"), text).unwrap();
    let mut command = env.on("ops", &["serve", "--json", "--config"]);
    command.arg(directory.join("penstock.toml"));
    Agent::spawn(command)
}

fn node(env: &TestEnv, host: &str, fingerprint: &str) -> Agent {
    let directory = env.path(host);
    fs::create_dir_all(directory.join("data")).unwrap();
    write_private(&directory.join("token"), format!("the-token-of-{host}"));
    let text = format!(
        "roles = [\"agent\"]\n[agent]\nlisten = [\"[::]:8620\"]\nhttp = [\"127.0.0.1:8621\"]\n\
         [agent.controller]\nurl = \"https://ops:8621\"\ntoken = \"token\"\n\
         fingerprint = \"{fingerprint}\"\nhost = \"{host}\"\ninterfaces = [\"eth0\"]\n\
         [third_party]\nto = \"any\"\n\
         [[export]]\nname = \"/data\"\npath = \"data\"\nmode = \"read-write\"\nwho = [\"controller\"]\n"
    );
    fs::write(directory.join("penstock.toml"), text).unwrap();
    let mut command = env.on(host, &["serve", "--json", "--config"]);
    command.arg(directory.join("penstock.toml"));
    Agent::spawn(command)
}

/// Waits until the circuit is active over these links and reports its rate.
fn carried(env: &TestEnv, over: &[&str]) -> Value {
    let mut last = Value::Null;
    let begun = std::time::Instant::now();
    loop {
        last = match env.reservation() {
            Value::Null => last,
            one => one,
        };
        let path: Vec<&str> =
            last["path"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        let circuit = &last["circuit"];
        let moves = circuit["measured_bps"].as_i64().unwrap_or(0) >= MOVED_BPS;
        if path == over && circuit["state"] == "up" && circuit["verified"] == true && moves {
            return last;
        }
        assert!(begun.elapsed() < CIRCUIT_TIMEOUT, "{last:#} never carried it over {over:?}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn circuit_keeps_rate_across_link_failure() {
    if !common::is_root() {
        return penstock_testkit::skip(
            penstock_testkit::Requirement::Root,
            "circuits in a lab need root",
        );
    }
    let mut random = seeded(7_700);
    let mut env = TestEnv { dir: tempfile::tempdir().unwrap(), noise: Vec::new() };
    fs::write(env.path("two-ways.toml"), NETWORK).unwrap();
    let file = env.path("two-ways.toml");
    env.lab(&["up", file.to_str().unwrap(), "--no-calibration"]);
    let ops = controller(&env);
    let nodes = ["dtn-cern", "dtn-caltech"].map(|host| node(&env, host, &ops.fingerprint));
    let (from, to) = (env.path("dtn-cern/data"), env.path("dtn-caltech/data"));
    fs::create_dir(from.join("set")).unwrap();
    for number in 0..25 {
        write_file(&mut random, &from.join(format!("set/{number}")), 4 << 20);
    }
    env.noise();
    wait_until("the links are full", CIRCUIT_TIMEOUT, || {
        (env.link("direct")["overflowed"].as_u64().unwrap() > 0).then_some(())
    });

    // A request above the reservable capacity is refused with the free rate.
    let mut asks = env.on("ops", &["reserve", "cern", "caltech", "39M", "--for", "10m"]);
    let refused = run(asks.args(["--circuit", "--controller", "127.0.0.1:8622"]));
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.error.contains("30.1 Mb/s"), "{refused:?}");

    let words = ["reserve", "cern", "caltech", "20M", "--for", "10m", "--circuit"];
    let made = env.ask(&words);
    assert_eq!(made["rate_bps"], CIRCUIT_RATE_BPS, "{made}");
    assert_eq!(made["path"], serde_json::json!(["direct"]));
    let submit = ["submit", "cern:/data/set", "caltech:/data/in", "--no-encrypt"];
    let request = env.ask(&submit)["id"].as_u64().unwrap();
    carried(&env, &["direct"]);
    let circuits = env.lab(&["status"])["circuits"].clone();
    assert_eq!(circuits.as_array().map(Vec::len), Some(1), "{circuits}");
    // Only orders that use the circuit contain its addresses.
    let hosts = env.ask(&["drain"]).to_string();
    assert!(hosts.contains("fd70:6e73:1::1") && !hosts.contains("fd70:6e73:8"), "{hosts}");
    let why = env.ask(&["show", &request.to_string()]);
    assert!(why.to_string().contains("over a circuit of its own"), "{why}");

    // The direct link is cut, and background traffic fills the detour.
    env.lab(&["cut", "direct"]);
    let words = ["route", "noise-a", "noise-b", "loud-a", "round-1", "round-2", "loud-b"];
    run(env.penstock().arg("lab").args(words)).good();
    carried(&env, &["round-1", "round-2"]);

    let shown = || env.ask(&["show", &request.to_string()])["request"].clone();
    let done = wait_until("its end", CIRCUIT_TIMEOUT, || {
        Some(shown()).filter(|one| !one["ended_unix_seconds"].is_null())
    });
    assert_eq!(
        (done["state"].as_str(), done["files_done"].as_u64()),
        (Some("done"), Some(25)),
        "{done}"
    );
    common::assert_same(&from.join("set"), &to.join("in"));

    // Release removes all state of the circuit.
    let id = made["id"].to_string();
    env.ask(&["reserve", "--cancel", &id]);
    wait_until("it is released", CIRCUIT_TIMEOUT, || {
        let lab = env.lab(&["status"]);
        lab["circuits"].as_array().is_some_and(Vec::is_empty).then_some(())
    });
    wait_until("it is not listed", CIRCUIT_TIMEOUT, || env.reservation().is_null().then_some(()));
    let rate = env.link("round-1")["rate_bps"].as_u64();
    assert_eq!(rate, Some(40_000_000));
    drop(nodes);
    drop(ops);
}

#[test]
fn circuit_waits_for_start_and_provider() {
    if !common::is_root() {
        return penstock_testkit::skip(
            penstock_testkit::Requirement::Root,
            "circuits in a lab need root",
        );
    }
    let env = TestEnv { dir: tempfile::tempdir().unwrap(), noise: Vec::new() };
    fs::write(env.path("two-ways.toml"), NETWORK).unwrap();
    let file = env.path("two-ways.toml");
    // The controller runs outside; its lab is not there yet.
    let directory = env.path("ops");
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("network.toml"), NETWORK).unwrap();
    let text = format!(
        "roles = [\"controller\"]\n[controller]\ntopology = \"network.toml\"\nround = \"200ms\"\n\
         [controller.circuits]\nprovider = \"lab\"\nlab = \"{}\"\n",
        env.path("state/labs/two-ways").display()
    );
    fs::write(directory.join("penstock.toml"), text).unwrap();
    let serve = |http: &str| {
        let mut command = env.penstock();
        command.args(["serve", "--json", "--http", http, "--config"]);
        command.arg(directory.join("penstock.toml"));
        Agent::spawn(command)
    };
    let mut ops = serve(&fixed_address());
    let http = ops.http.clone();
    let ask = |words: &[&str]| {
        let mut command = env.penstock();
        run(command.args(words).args(["--json", "--controller", &http])).good().json
    };
    let listed = |id: &Value| {
        let all = ask(&["reserve"]);
        all["reservations"].as_array().unwrap().iter().find(|one| one["id"] == *id).cloned()
    };
    let state =
        |id: &Value| listed(id).map(|one| one["circuit"]["state"].as_str().unwrap().to_owned());
    let reserve = |more: &[&str]| {
        ask(&[&["reserve", "cern", "caltech", "10M", "--circuit", "--class", "default"], more]
            .concat())["id"]
            .clone()
    };
    let later = reserve(&["--at", "1h", "--for", "1h"]);
    let now = reserve(&["--for", "1h"]);
    wait_until("it says why it is broken", CIRCUIT_TIMEOUT, || {
        listed(&now).filter(|one| {
            let circuit = &one["circuit"];
            circuit["state"] == "broken"
                && circuit["reason"].as_str().unwrap_or_default().contains("lab two-ways is not up")
        })
    });
    assert_eq!(state(&later).as_deref(), Some("booked"));
    env.lab(&["up", file.to_str().unwrap(), "--no-calibration"]);
    wait_until("it stands", CIRCUIT_TIMEOUT, || state(&now).filter(|state| state == "up"));

    // Kills of either side leave one circuit, which the release removes.
    ops.kill();
    ops = serve(&http);
    let circuits = || env.lab(&["status"])["circuits"].clone();
    assert_eq!(circuits().as_array().map(Vec::len), Some(1));
    env.lab(&["release", &format!("reservation-{now}")]);
    wait_until("it is made again", CIRCUIT_TIMEOUT, || {
        (circuits().as_array()?.len() == 1).then_some(())
    });
    ops.kill();
    env.lab(&["down"]);
    env.lab(&["up", file.to_str().unwrap(), "--no-calibration"]);
    ops = serve(&http);
    wait_until("it is made anew", CIRCUIT_TIMEOUT, || {
        (circuits().as_array()?.len() == 1).then_some(())
    });
    ask(&["reserve", "--cancel", &now.to_string()]);
    wait_until("it is released", CIRCUIT_TIMEOUT, || {
        circuits().as_array()?.is_empty().then_some(())
    });
    let again = run(env.penstock().args(["lab", "release", &format!("reservation-{now}")]));
    assert_eq!(again.code, 1, "{again:?}");
    assert!(again.error.contains("no circuit is called"), "{again:?}");
    assert_eq!(state(&later).as_deref(), Some("booked"));
    let log = RunningCommand::start(env.penstock().args([
        "reserve",
        "--cancel",
        "77",
        "--controller",
        &http,
    ]))
    .wait();
    assert_eq!(log.code, 1, "{log:?}");
    drop(ops);
}
