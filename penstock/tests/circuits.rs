//! Circuits of a controller in a lab that runs: made while others fill the links, seen by the counters, restored when a
//! link is cut, released. Real agents and bytes; needs root.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

mod common;
use common::{Agent, PENSTOCK, Random, Run, run, until, write_file};

/// Generous: the machine may be busy.
const LONG: Duration = Duration::from_secs(120);

/// Two sites, two ways of 40 Mb/s between them, and two hosts of nobody that fill them.
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

const RATE: u64 = 20_000_000;
/// Half of a link is the circuit's; with eight streams beside one it would have a ninth.
const MOVED_BPS: i64 = 12_000_000;

struct House {
    dir: tempfile::TempDir,
    noise: Vec<Child>,
}

impl House {
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

    /// A program on a host of the lab.
    fn on(&self, host: &str, words: &[&str]) -> Command {
        let mut command = self.penstock();
        command.args(["lab", "exec", "--state", host, "--", PENSTOCK]).args(words);
        command
    }

    /// A verb that talks to the controller, in its own room.
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
        // The other one may not listen yet.
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

impl Drop for House {
    fn drop(&mut self) {
        let _ = self.penstock().args(["lab", "down"]).output();
        for child in &mut self.noise {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn private(file: &Path, text: &str) {
    fs::write(file, text).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
}

fn controller(house: &House) -> Agent {
    let directory = house.path("ops");
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("network.toml"), NETWORK).unwrap();
    let lab = house.path("state/labs/two-ways");
    let mut text = format!(
        "roles = [\"controller\"]\n[agent]\nhttp = [\"[::]:8621\", \"127.0.0.1:8622\"]\n[controller]\n\
         topology = \"network.toml\"\nround = \"500ms\"\n\
         [controller.circuits]\nprovider = \"lab\"\nlab = \"{}\"\n\
         [[controller.class]]\nname = \"production\"\n",
        lab.display()
    );
    for host in ["dtn-cern", "dtn-caltech"] {
        private(&directory.join(host), &format!("the-token-of-{host}"));
        text += &format!(
            "[[controller.token]]\nname = \"{host}\"\nfile = \"{host}\"\nscopes = [\"agent:{host}\"]\n"
        );
    }
    fs::write(directory.join("penstock.toml"), text).unwrap();
    let mut command = house.on("ops", &["serve", "--json", "--config"]);
    command.arg(directory.join("penstock.toml"));
    Agent::spawn(command)
}

fn node(house: &House, host: &str, fingerprint: &str) -> Agent {
    let directory = house.path(host);
    fs::create_dir_all(directory.join("data")).unwrap();
    private(&directory.join("token"), &format!("the-token-of-{host}"));
    let text = format!(
        "roles = [\"agent\"]\n[agent]\nlisten = [\"[::]:8620\"]\nhttp = [\"127.0.0.1:8621\"]\n\
         [agent.controller]\nurl = \"https://ops:8621\"\ntoken = \"token\"\n\
         fingerprint = \"{fingerprint}\"\nhost = \"{host}\"\ninterfaces = [\"eth0\"]\n\
         [third_party]\nto = \"any\"\n\
         [[export]]\nname = \"/data\"\npath = \"data\"\nmode = \"read-write\"\nwho = [\"controller\"]\n"
    );
    fs::write(directory.join("penstock.toml"), text).unwrap();
    let mut command = house.on(host, &["serve", "--json", "--config"]);
    command.arg(directory.join("penstock.toml"));
    Agent::spawn(command)
}

/// Waits until the circuit stands over these links and shows what is moved.
fn carried(house: &House, over: &[&str]) -> Value {
    let mut last = Value::Null;
    let begun = std::time::Instant::now();
    loop {
        last = match house.reservation() {
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
        assert!(begun.elapsed() < LONG, "{last:#} never carried it over {over:?}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn a_circuit_keeps_its_rate_among_others_and_when_a_link_is_cut() {
    if !common::is_root() {
        return common::skip("circuits in a lab need root");
    }
    let mut random = Random::seeded(7_700);
    let mut house = House { dir: tempfile::tempdir().unwrap(), noise: Vec::new() };
    fs::write(house.path("two-ways.toml"), NETWORK).unwrap();
    let file = house.path("two-ways.toml");
    house.lab(&["up", file.to_str().unwrap(), "--no-calibration"]);
    let ops = controller(&house);
    let nodes = ["dtn-cern", "dtn-caltech"].map(|host| node(&house, host, &ops.fingerprint));
    let (from, to) = (house.path("dtn-cern/data"), house.path("dtn-caltech/data"));
    fs::create_dir(from.join("set")).unwrap();
    for number in 0..25 {
        write_file(&mut random, &from.join(format!("set/{number}")), 4 << 20);
    }
    house.noise();
    until("the links are full", LONG, || {
        (house.link("direct")["overflowed"].as_u64().unwrap() > 0).then_some(())
    });

    // More than links have for reservations is refused, with what is free.
    let mut asks = house.on("ops", &["reserve", "cern", "caltech", "39M", "--for", "10m"]);
    let refused = run(asks.args(["--circuit", "--controller", "127.0.0.1:8622"]));
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.error.contains("30.1 Mb/s"), "{refused:?}");

    let words = ["reserve", "cern", "caltech", "20M", "--for", "10m", "--circuit"];
    let made = house.ask(&words);
    assert_eq!(made["rate_bps"], RATE, "{made}");
    assert_eq!(made["path"], serde_json::json!(["direct"]));
    let submit = ["submit", "cern:/data/set", "caltech:/data/in", "--no-encrypt"];
    let request = house.ask(&submit)["id"].as_u64().unwrap();
    carried(&house, &["direct"]);
    let circuits = house.lab(&["status"])["circuits"].clone();
    assert_eq!(circuits.as_array().map(Vec::len), Some(1), "{circuits}");
    // Nobody hears of the circuit's addresses but whose orders go over it.
    let hosts = house.ask(&["drain"]).to_string();
    assert!(hosts.contains("fd70:6e73:1::1") && !hosts.contains("fd70:6e73:8"), "{hosts}");
    let why = house.ask(&["show", &request.to_string()]);
    assert!(why.to_string().contains("over a circuit of its own"), "{why}");

    // The direct link is cut, and others fill the way around.
    house.lab(&["cut", "direct"]);
    let words = ["route", "noise-a", "noise-b", "loud-a", "round-1", "round-2", "loud-b"];
    run(house.penstock().arg("lab").args(words)).good();
    carried(&house, &["round-1", "round-2"]);

    let shown = || house.ask(&["show", &request.to_string()])["request"].clone();
    let done =
        until("its end", LONG, || Some(shown()).filter(|one| !one["ended_unix_seconds"].is_null()));
    assert_eq!(
        (done["state"].as_str(), done["files_done"].as_u64()),
        (Some("done"), Some(25)),
        "{done}"
    );
    common::assert_same(&from.join("set"), &to.join("in"));

    // Given back, nothing is left of it.
    let id = made["id"].to_string();
    house.ask(&["reserve", "--cancel", &id]);
    until("it is released", LONG, || {
        let lab = house.lab(&["status"]);
        lab["circuits"].as_array().is_some_and(Vec::is_empty).then_some(())
    });
    until("it is not listed", LONG, || house.reservation().is_null().then_some(()));
    let rate = house.link("round-1")["rate_bps"].as_u64();
    assert_eq!(rate, Some(40_000_000));
    drop(nodes);
    drop(ops);
}

#[test]
fn a_circuit_waits_for_its_time_and_for_a_lab_that_is_away() {
    if !common::is_root() {
        return common::skip("circuits in a lab need root");
    }
    let house = House { dir: tempfile::tempdir().unwrap(), noise: Vec::new() };
    fs::write(house.path("two-ways.toml"), NETWORK).unwrap();
    let file = house.path("two-ways.toml");
    // The controller runs outside; its lab is not there yet.
    let directory = house.path("ops");
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("network.toml"), NETWORK).unwrap();
    let text = format!(
        "roles = [\"controller\"]\n[controller]\ntopology = \"network.toml\"\nround = \"200ms\"\n\
         [controller.circuits]\nprovider = \"lab\"\nlab = \"{}\"\n",
        house.path("state/labs/two-ways").display()
    );
    fs::write(directory.join("penstock.toml"), text).unwrap();
    let serve = |http: &str| {
        let mut command = house.penstock();
        command.args(["serve", "--json", "--http", http, "--config"]);
        command.arg(directory.join("penstock.toml"));
        Agent::spawn(command)
    };
    let mut ops = serve("127.0.0.1:0");
    let http = ops.http.clone();
    let ask = |words: &[&str]| {
        let mut command = house.penstock();
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
    until("it says why it is broken", LONG, || {
        listed(&now).filter(|one| {
            let circuit = &one["circuit"];
            circuit["state"] == "broken"
                && circuit["reason"].as_str().unwrap_or_default().contains("lab two-ways is not up")
        })
    });
    assert_eq!(state(&later).as_deref(), Some("booked"));
    house.lab(&["up", file.to_str().unwrap(), "--no-calibration"]);
    until("it stands", LONG, || state(&now).filter(|state| state == "up"));

    // Whoever is killed: the circuit stands once, and goes when it is given back.
    ops.kill();
    ops = serve(&http);
    let circuits = || house.lab(&["status"])["circuits"].clone();
    assert_eq!(circuits().as_array().map(Vec::len), Some(1));
    house.lab(&["release", &format!("reservation-{now}")]);
    until("it is made again", LONG, || (circuits().as_array()?.len() == 1).then_some(()));
    ops.kill();
    house.lab(&["down"]);
    house.lab(&["up", file.to_str().unwrap(), "--no-calibration"]);
    ops = serve(&http);
    until("it is made anew", LONG, || (circuits().as_array()?.len() == 1).then_some(()));
    ask(&["reserve", "--cancel", &now.to_string()]);
    until("it is released", LONG, || circuits().as_array()?.is_empty().then_some(()));
    assert_eq!(state(&later).as_deref(), Some("booked"));
    let log =
        Run::start(house.penstock().args(["reserve", "--cancel", "77", "--controller", &http]))
            .wait();
    assert_eq!(log.code, 1, "{log:?}");
    drop(ops);
}
