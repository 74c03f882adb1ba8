//! `penstock lab` as people use it: labs come up, are changed while traffic runs, and leave nothing.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

mod common;
use common::{PENSTOCK, until};

const NETWORK: &str = r#"
    name = "two"
    [[host]]
    name = "a"
    interface = [{ name = "eth0", rate = "1G", mtu = 9000 }]
    [[host]]
    name = "b"
    interface = [{ name = "eth0", rate = "1G", mtu = 9000 }, { name = "eth1", rate = "1G", mtu = 9000 }]
    [[switch]]
    name = "s"
    [[switch]]
    name = "t"
    [[link]]
    name = "near"
    ends = ["a:eth0", "s"]
    [[link]]
    name = "wan"
    ends = ["s", "t"]
    rate = "1G"
    delay = "5ms"
    vlan = 2026
    [[link]]
    name = "detour"
    ends = ["s", "t"]
    rate = "1G"
    delay = "20ms"
    [[link]]
    name = "far"
    ends = ["t", "b:eth0"]
    [[link]]
    name = "far-too"
    ends = ["t", "b:eth1"]
"#;

/// A state directory with a topology in it; labs that are up in it end with it.
struct House(tempfile::TempDir);

impl House {
    /// None, and a word about it, where labs are not possible.
    fn new(test: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: {test}: needs root for network namespaces");
            return None;
        }
        let house = Self(tempfile::tempdir().unwrap());
        std::fs::write(house.file("two.toml"), NETWORK).unwrap();
        Some(house)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn penstock(&self, verb: &str) -> Command {
        let mut command = Command::new(PENSTOCK);
        command.env("PENSTOCK_STATE", self.0.path().join("state")).arg(verb).stdin(Stdio::null());
        command
    }

    fn lab(&self, words: &[&str]) -> Command {
        let mut command = self.penstock("lab");
        command.args(words);
        command
    }

    fn ok(&self, words: &[&str]) -> String {
        let output = self.lab(words).output().unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, words: &[&str]) -> Value {
        serde_json::from_str(&self.ok(&[words, &["--json"]].concat())).unwrap()
    }

    #[track_caller]
    fn refused(&self, words: &[&str], code: i32, why: &str) {
        let output = self.lab(words).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {error}");
        assert!(error.contains(why), "{words:?}: {error}");
        assert!(error.trim_end().lines().count() <= 2, "{error}");
    }

    fn up(&self) -> Value {
        self.up_by("nfqueue")
    }

    fn up_by(&self, backend: &str) -> Value {
        let file = self.file("two.toml");
        let file = file.to_str().unwrap();
        self.json(&["up", file, "--no-calibration", "--backend", backend])["lab"].clone()
    }

    /// Milliseconds of a round trip from `a`, by the time of arrival that the kernel noted (SO_TIMESTAMPNS).
    fn told_round_trip_ms(&self, to: &str) -> f64 {
        let script = "
import socket, struct, sys, time
SO_TIMESTAMPNS = 35
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM, socket.IPPROTO_ICMPV6); s.settimeout(5)
s.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
address = socket.getaddrinfo(sys.argv[1], 9, socket.AF_INET6)[0][4][0]
best = 1e9
for number in range(20):
    begin = time.time(); s.sendto(struct.pack('!BBHHH', 128, 0, 0, 0, number), (address, 0))
    _, words, _, _ = s.recvmsg(99, 99)
    seconds, nanoseconds = struct.unpack('qq', words[0][2])
    best = min(best, seconds + nanoseconds / 1e9 - begin)
print(best * 1000)";
        let inside = ["sysctl", "-qw", "net.ipv4.ping_group_range=0 0"];
        self.ok(&[&["exec", "a", "--"], &inside[..]].concat());
        let said = self.ok(&["exec", "a", "--", "python3", "-c", script, to]);
        said.trim().parse().unwrap()
    }

    /// Milliseconds of a round trip from one host to an address of another.
    fn round_trip_ms(&self, from: &str, to: &str, address: &str) -> f64 {
        let script = "
import socket, sys, time
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); s.settimeout(5)
address = socket.getaddrinfo(sys.argv[1], 9, socket.AF_INET6)[0][4][0]
best = 1e9
for _ in range(20):
    begin = time.perf_counter(); s.sendto(b'x', (address, 7)); s.recv(9)
    best = min(best, time.perf_counter() - begin)
print(best * 1000)";
        let echo = "
import socket, sys
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); s.bind((sys.argv[1], 7)); print('ready', flush=True)
while True:
    data, peer = s.recvfrom(9); s.sendto(data, peer)";
        let mut server = self.lab(&["exec", to, "--", "python3", "-c", echo, address]);
        let mut server = server.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut out = std::io::BufReader::new(server.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut out, &mut line).unwrap();
        let said = self.ok(&["exec", from, "--", "python3", "-c", script, address]);
        server.kill().unwrap();
        server.wait().unwrap();
        said.trim().parse().unwrap()
    }
}

impl Drop for House {
    fn drop(&mut self) {
        for state in [self.file("state"), self.file("theirs")] {
            let labs = std::fs::read_dir(state.join("labs")).into_iter().flatten().flatten();
            for lab in labs {
                let name = lab.file_name().into_string().unwrap();
                let mut down = self.lab(&["down", "--lab", &name]);
                let _ = down.env("PENSTOCK_STATE", &state).output();
            }
        }
    }
}

/// Kills what holds a lab, so that it can do nothing about it.
fn kill_holder(status: &Value) {
    let pid = status["pid"].as_u64().unwrap();
    Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap();
    until("the holder is gone", Duration::from_secs(10), || (!exists(pid)).then_some(()));
}

fn exists(pid: u64) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// Processes in a network namespace.
fn inside(inode: u64) -> usize {
    use std::os::unix::fs::MetadataExt;
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    all.filter(|entry| entry.path().join("ns/net").metadata().is_ok_and(|meta| meta.ino() == inode))
        .count()
}

fn inode_of(status: &Value, node: usize) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let file = status["nodes"][node]["namespace"].as_str().unwrap();
    std::fs::metadata(file).unwrap().ino()
}

#[test]
fn hosts_know_each_other_by_name_and_links_change_while_it_runs() {
    let Some(house) = House::new("links_change") else { return };
    let status = house.up();
    assert_eq!(
        (status["name"].as_str(), status["backend"].as_str()),
        (Some("two"), Some("nfqueue"))
    );
    let direct = house.round_trip_ms("a", "b", "b");
    assert!((10.0..20.0).contains(&direct), "{direct}");
    let changed = house.json(&["set", "wan", "delay=15ms", "--way", "forward"]);
    assert_eq!(changed["directions"][0]["delay_seconds"], 0.015);
    assert_eq!(changed["directions"][1]["delay_seconds"], 0.005);
    let longer = house.round_trip_ms("a", "b", "b");
    assert!((20.0..30.0).contains(&longer), "{longer}");
    house.ok(&["route", "a", "b-eth0", "near", "detour", "far"]);
    let detour = house.round_trip_ms("a", "b", "b");
    assert!((40.0..55.0).contains(&detour), "{detour}");
    // The other interface is reached as before.
    let other = house.round_trip_ms("a", "b", "b-eth1");
    assert!((20.0..30.0).contains(&other), "{other}");
    // Whatever address they use.
    house.ok(&["route", "a", "b", "near", "detour", "far-too"]);
    for name in ["b", "b-eth1"] {
        let all = house.round_trip_ms("a", "b", name);
        assert!((40.0..55.0).contains(&all), "{name}: {all}");
    }
    // As the kernel tells it: a packet that waited for its delay did not arrive before.
    let told = house.told_round_trip_ms("b");
    assert!((40.0..55.0).contains(&told), "{told}");
    let hosts = house.ok(&[
        "exec",
        "b",
        "--",
        "sh",
        "-c",
        "cat /etc/hosts; ls /sys/class/net; echo $PENSTOCK_LAB_HOST",
    ]);
    assert!(
        hosts.contains("a-eth0 a\n") && hosts.contains("eth1\n") && hosts.ends_with("b\n"),
        "{hosts}"
    );
    house.ok(&["cut", "detour"]);
    let said = house.json(&["status"]);
    let cut = &said["links"][2];
    assert_eq!(
        (cut["name"].as_str(), cut["directions"][1]["is_cut"].as_bool()),
        (Some("detour"), Some(true))
    );
    house.ok(&["mend", "detour"]);
    assert!(house.ok(&["status"]).contains("detour"));
}

#[test]
fn packets_of_a_vlan_carry_its_tag() {
    let Some(house) = House::new("packets_of_a_vlan_carry_its_tag") else { return };
    for backend in ["nfqueue", "tap"] {
        house.up_by(backend);
        tags_are_where_they_belong(&house);
        house.ok(&["down"]);
    }
}

fn tags_are_where_they_belong(house: &House) {
    for (link, end, tag) in [("wan", "s", true), ("wan", "t", true), ("near", "s", false)] {
        let words = ["capture", link, "--at", end, "--", "-e", "-n", "-l", "-c", "2"];
        let mut capture = house.lab(&words);
        let mut capture = capture.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = std::io::BufReader::new(capture.stderr.take().unwrap());
        let mut line = String::new();
        while !line.starts_with("listening") {
            line.clear();
            assert!(std::io::BufRead::read_line(&mut said, &mut line).unwrap() > 0, "no tcpdump?");
        }
        // There and back, with payload that arrives.
        house.round_trip_ms("a", "b", "b");
        let seen = capture.wait_with_output().unwrap().stdout;
        let seen = String::from_utf8_lossy(&seen);
        assert_eq!(seen.lines().count(), 2, "{seen}");
        for packet in seen.lines() {
            assert_eq!(packet.contains("802.1Q") && packet.contains("vlan 2026,"), tag, "{packet}");
        }
    }
}

#[test]
fn every_link_is_measured_when_asked() {
    let Some(house) = House::new("measured") else { return };
    house.up();
    let measured = house.json(&["calibrate", "wan", "far"]);
    let wan = &measured["links"][0];
    assert_eq!(wan["rtt_wanted_seconds"], 0.01);
    let (rtt, rate) = (wan["rtt_seconds"].as_f64().unwrap(), wan["rate_bps"].as_f64().unwrap());
    assert!((0.01..0.02).contains(&rtt), "{rtt}");
    assert!((0.9..1.03).contains(&(rate / 1e9)), "{rate}");
    // Nobody else sent anything.
    let counted = &house.json(&["status"])["links"][1]["directions"][0];
    assert!(counted["overflowed"] == 0 && counted["packets"].as_u64().unwrap() < 50, "{counted}");
    assert!(house.ok(&["calibrate", "far"]).contains("round trip"));
}

#[test]
fn a_lab_that_died_can_be_ended() {
    let Some(house) = House::new("died") else { return };
    let status = house.up();
    let inode = inode_of(&status, 0);
    let mut sleeper = house.lab(&["exec", "a", "--", "sleep", "1000"]).spawn().unwrap();
    until("the program runs", Duration::from_secs(10), || (inside(inode) > 0).then_some(()));
    kill_holder(&status);
    assert!(house.ok(&["status"]).contains("lab two died: penstock lab down --lab two"));
    for arguments in [
        &["status", "--lab", "two"][..],
        &["exec", "a", "--lab", "two", "--", "true"],
        &["set", "wan", "delay=1ms"],
    ] {
        house.refused(arguments, 1, "lab two died: penstock lab down --lab two");
    }
    let removed = house.ok(&["down"]);
    assert!(removed.starts_with("lab two had died: 1 process that still ran"), "{removed}");
    assert!(!sleeper.wait().unwrap().success());
    assert_eq!(house.ok(&["status"]), "no lab is up: penstock lab up FILE\n");
}

#[test]
fn a_link_too_slow_to_be_measured_holds_nothing_up() {
    let Some(house) = House::new("slow") else { return };
    let network = NETWORK.replacen("delay = \"5ms\"", "delay = \"5s\"", 1);
    let network = network.replacen("rate = \"1G\"\n    delay = \"20ms\"", "rate = \"1k\"", 1);
    std::fs::write(house.file("two.toml"), network).unwrap();
    let status = house.up();
    let slow = &house.json(&["calibrate", "detour"])["links"][0];
    assert_eq!((&slow["rtt_seconds"], &slow["too_slow"]), (&Value::Null, &json!(true)));
    house.ok(&["cut", "near"]);
    assert!(house.ok(&["calibrate", "near"]).contains("nothing arrived"));
    house.ok(&["mend", "near"]);
    // Twenty round trips of ten seconds: the lab is asked other things, and ended.
    let mut measuring = house.lab(&["calibrate", "wan"]);
    let mut measuring = measuring.stderr(Stdio::piped()).spawn().unwrap();
    let threads = format!("/proc/{}/task", status["pid"]);
    until("the measurement has begun", Duration::from_secs(10), || {
        let names = std::fs::read_dir(&threads).unwrap().flatten();
        let mut names = names.flat_map(|one| std::fs::read_to_string(one.path().join("comm")));
        names.any(|name| name == "measure\n").then_some(())
    });
    house.refused(&["calibrate", "near"], 2, "being measured already");
    house.ok(&["status"]);
    house.ok(&["down"]);
    assert!(!measuring.wait().unwrap().success());
}

#[test]
fn what_contradicts_itself_is_not_set() {
    let Some(house) = House::new("contradicts") else { return };
    house.up();
    for (settings, why) in [
        (&["loss=90%", "loss_burst=3"][..], "at most 75.0 %"),
        (&["jitter=6ms"], "at most the delay, which is 5.00 ms"),
        (&["queue=0"], "room for a packet"),
        (&["delay=7"], "write the unit too"),
    ] {
        house.refused(&[&["set", "wan"], settings].concat(), 2, why);
    }
    let wan = &house.json(&["status"])["links"][1]["directions"][0];
    assert_eq!((&wan["delay_seconds"], &wan["loss"]), (&json!(0.005), &json!(0.0)));
    house.refused(&["route", "a", "s", "near"], 2, "s is a switch");
}

#[test]
fn a_lab_that_ends_takes_all_with_it() {
    let Some(house) = House::new("ends") else { return };
    let status = house.up();
    let inode = inode_of(&status, 0);
    let mut sleeper = house.lab(&["exec", "a", "--", "sleep", "1000"]).spawn().unwrap();
    until("the program runs", Duration::from_secs(10), || (inside(inode) > 0).then_some(()));
    let removed = house.ok(&["down"]);
    assert_eq!(
        removed,
        "lab two is down: 2 hosts, 2 switches and 5 links removed, 1 process that ran in it ended\n"
    );
    assert!(!sleeper.wait().unwrap().success());
    until("the holder is gone", Duration::from_secs(10), || {
        (!exists(status["pid"].as_u64().unwrap())).then_some(())
    });
    assert_eq!(inside(inode), 0);
    assert_eq!(house.ok(&["status"]), "no lab is up: penstock lab up FILE\n");
}

#[test]
fn a_lab_that_is_killed_leaves_nothing_once_another_comes() {
    let Some(house) = House::new("killed") else { return };
    let status = house.up();
    let inode = inode_of(&status, 0);
    // The second forgets who started it.
    let programs: [&[&str]; 2] =
        [&["exec", "a", "--", "sleep", "1000"], &["exec", "a", "--", "env", "-i", "sleep", "1000"]];
    let mut sleepers = programs.map(|program| house.lab(program).spawn().unwrap());
    until("the programs run", Duration::from_secs(10), || (inside(inode) > 1).then_some(()));
    kill_holder(&status);
    let said = house.json(&["status"]);
    assert_eq!((&said["labs"], &said["died"]), (&json!([]), &json!(["two"])));
    house.up();
    for sleeper in &mut sleepers {
        assert!(!sleeper.wait().unwrap().success());
    }
    assert_eq!(inside(inode), 0);
    // Two of one name there are not; two of different names there are.
    let file = house.file("two.toml");
    let file = file.to_str().unwrap();
    house.refused(&["up", file], 1, "up already: penstock lab down --lab two");
    house.ok(&["up", file, "--lab", "other", "--no-calibration"]);
    house.refused(&["status", "--lab", "third"], 1, "not up");
    house.refused(&["exec", "a", "--", "true"], 2, "say which with --lab: other, two");
    assert_eq!(house.ok(&["status"]), "other\ntwo\n");
    house.ok(&["down", "--lab", "other"]);
}

#[test]
fn mistakes_are_one_line() {
    let Some(house) = House::new("mistakes") else { return };
    house.refused(&["down"], 1, "no lab is up");
    house.refused(&["up", "/no/such/file"], 2, "/no/such/file");
    std::fs::write(house.file("bad.toml"), "name = \"x\"\n[[link]]\nends = [\"a\", \"b\"]\n")
        .unwrap();
    house.refused(&["up", house.file("bad.toml").to_str().unwrap()], 2, "bad.toml:3:");
    let file = house.file("two.toml");
    house.refused(&["up", file.to_str().unwrap(), "--lab", "../x"], 2, "no name of a lab");
    house.up();
    house.refused(&["set", "won", "delay=1ms"], 2, "there are near, wan");
    house.refused(&["set", "wan", "delay=fast"], 2, "'delay=fast'");
    house.refused(&["exec", "c", "--", "true"], 2, "there are a, b, s, t");
    house.refused(&["exec", "a", "--", "/no/such/program"], 127, "/no/such/program");
    house.refused(&["route", "a", "b", "near", "far"], 2, "does not touch s");
    house.refused(&["capture", "won"], 2, "there are near, wan");
}

fn play(house: &House, more: &[&str]) -> Output {
    house
        .lab(&[&["run", house.file("play.toml").to_str().unwrap(), "--json"], more].concat())
        .output()
        .unwrap()
}

#[test]
fn a_scenario_is_played_and_reported() {
    let Some(house) = House::new("scenario") else { return };
    let text = r#"
        name = "play"
        topology = "two.toml"
        sample = "100ms"
        [with]
        seconds = "1"
        [sysctl]
        "net.ipv4.tcp_wmem" = "4096 16384 16777216"
        [[step]]
        name = "server"
        host = "b"
        run = ["penstock", "nettest", "--listen", "[::]:5201"]
        until = "listening"
        [[step]]
        name = "flow"
        host = "a"
        run = ["penstock", "nettest", "[b]:5201", "--time", "${seconds}", "--json"]
        [[step]]
        at = "200ms"
        set = "wan"
        to = ["delay=6ms"]
        [[step]]
        name = "after"
        after = "flow"
        host = "a"
        run = ["sh", "-c", "cat /proc/sys/net/ipv4/tcp_wmem; exit 3"]
    "#;
    std::fs::write(house.file("play.toml"), text).unwrap();
    let output = play(&house, &[]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let program = |number: usize| &report["programs"][number];
    assert_eq!(program(1)["exit"], 0, "{report}");
    assert!(program(1)["output"]["bits_per_second"].as_f64().unwrap() > 0.0, "{report}");
    assert_eq!(program(2)["output"], "4096\t16384\t16777216\n");
    assert_eq!(program(2)["exit"], 3);
    assert!(report["samples"].as_array().unwrap().len() > 5);
    assert_eq!(report["links"][1]["directions"][0]["delay_seconds"], 0.006);
    assert_eq!(house.ok(&["status"]), "no lab is up: penstock lab up FILE\n");
    house.refused(
        &["run", house.file("play.toml").to_str().unwrap(), "--with", "x"],
        2,
        "NAME=VALUE",
    );
    std::fs::write(
        house.file("play.toml"),
        text.replace("until = \"listening\"", "until = \"never\"").replace("--listen", "--lisn"),
    )
    .unwrap();
    house.refused(&["run", house.file("play.toml").to_str().unwrap()], 1, "server ended");
}

#[test]
fn an_experiment_is_a_table_of_plays() {
    let Some(house) = House::new("experiment") else { return };
    let scenario = r#"
        name = "play"
        topology = "two.toml"
        [with]
        rate = "1G"
        [[step]]
        set = "wan"
        to = ["rate=${rate}"]
        [[step]]
        name = "flow"
        host = "a"
        run = ["echo", "{\"bits\": 250000000}"]
    "#;
    let experiment = r#"
        title = "A table"
        source = "nobody"
        scenario = "play.toml"
        [[column]]
        name = "Gb/s"
        program = "flow"
        value = "/bits"
        scale = 1e-9
        [[column]]
        name = "share"
        program = "flow"
        value = "/bits"
        share_of = "wan"
        [[case]]
        name = "as it is"
        published = { "Gb/s" = 0.3 }
        [[case]]
        name = "half as fast"
        with = { rate = "500M" }
    "#;
    std::fs::write(house.file("play.toml"), scenario).unwrap();
    std::fs::write(house.file("experiment.toml"), experiment).unwrap();
    let output = |more: &[&str]| {
        let mut command = house.penstock("experiment");
        command.arg("run").arg(house.0.path()).args(more).output().unwrap()
    };
    let run = |more: &[&str]| {
        let output = output(more);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let table: Value = serde_json::from_str(&run(&["--json"])).unwrap();
    let measured: Vec<&Value> =
        table["rows"].as_array().unwrap().iter().map(|row| &row["measured"]).collect();
    assert_eq!(measured, [&serde_json::json!([0.25, 0.25]), &serde_json::json!([0.25, 0.5])]);
    std::fs::write(house.file("experiment.toml"), experiment.replace("\"wan\"", "\"van\""))
        .unwrap();
    let refused = output(&[]);
    let why = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(2) && why.contains("\"van\": the topology"), "{why}");
    std::fs::write(house.file("experiment.toml"), experiment).unwrap();
    let text = run(&["--case", "as it is"]);
    assert!(text.contains("| as it is | 0.25 | 0.30 | 0.25 |"), "{text}");
    let part = output(&["--case", "as"]);
    let why = String::from_utf8(part.stderr).unwrap();
    assert_eq!(part.status.code(), Some(2));
    assert!(why.contains("no case \"as\": there are as it is, half as fast"), "{why}");
    // Bounds and expected figures stand in columns of their own.
    let bounded = experiment
        .replace("published = { \"Gb/s\" = 0.3 }", "bounds = { \"Gb/s\" = 0.2 }\ntitle = \"what\"")
        .replace("with = {", "expected = { \"share\" = 0.4 }\nwith = {")
        .replace("source = \"nobody\"", "");
    std::fs::write(house.file("experiment.toml"), bounded).unwrap();
    let above = output(&[]);
    let text = String::from_utf8(above.stdout).unwrap();
    assert_eq!(above.status.code(), Some(3), "{text}");
    assert!(
        text.contains("| case | what | Gb/s | Gb/s at most | share | share expected | valid |"),
        "{text}"
    );
    assert!(text.contains("| as it is | what | **0.25** | 0.20 | 0.25 | - |"), "{text}");
    assert!(!text.contains("ublished"), "{text}");
    std::fs::write(house.file("experiment.toml"), experiment.replace("source", "note")).unwrap();
    let refused = output(&[]);
    assert!(String::from_utf8(refused.stderr).unwrap().contains("who published"));
}

/// Without the source tree: by name, with pictures in the current directory.
#[test]
fn embedded_experiments_run_anywhere() {
    let Some(house) = House::new("embedded") else { return };
    let run = |arguments: &[&str]| {
        let mut command = house.penstock("experiment");
        command.current_dir(house.0.path()).args(arguments).output().unwrap()
    };
    let listed = String::from_utf8(run(&["list"]).stdout).unwrap();
    assert!(listed.contains("buffers: ") && listed.contains("ten-sites: "), "{listed}");
    let one = run(&["run", "heps-fabric", "--case", "dcqcn-latency", "--json"]);
    assert!(one.status.success(), "{one:?}");
    let table: Value = serde_json::from_slice(&one.stdout).unwrap();
    assert_eq!(table["rows"].as_array().unwrap().len(), 1);
    assert!((table["rows"][0]["measured"][1].as_f64().unwrap() - 3.72).abs() < 0.05, "{table}");
    let unknown = run(&["run", "no-such"]);
    let why = String::from_utf8(unknown.stderr).unwrap();
    assert_eq!(unknown.status.code(), Some(2));
    assert!(why.contains("there are buffers, "), "{why}");
    let nowhere = run(&["run", "heps-fabric", "--output", "no/such"]);
    assert_eq!(nowhere.status.code(), Some(2));
}

/// Programs of a play write where it was started.
#[test]
fn plays_write_to_the_current_directory() {
    let Some(house) = House::new("output") else { return };
    let text = r#"
        name = "play"
        topology = "two.toml"
        [[step]]
        name = "write"
        host = "a"
        run = ["sh", "-c", "pwd; echo drawn >\"$PENSTOCK_OUTPUT/picture\""]
    "#;
    std::fs::write(house.file("play.toml"), text).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let scenario = house.file("play.toml");
    let mut run = house.lab(&["run", scenario.to_str().unwrap(), "--json"]);
    let output = run.current_dir(elsewhere.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(std::fs::read_to_string(elsewhere.path().join("picture")).unwrap(), "drawn\n");
}

/// Loops outside the lab take the processors while links are on time.
#[test]
fn foreign_load_makes_a_play_invalid() {
    let Some(house) = House::new("load") else { return };
    let text = r#"
        name = "play"
        topology = "two.toml"
        [[step]]
        name = "wait"
        host = "a"
        run = ["sleep", "2"]
    "#;
    std::fs::write(house.file("play.toml"), text).unwrap();
    let cores = std::thread::available_parallelism().unwrap().get();
    let spin = || Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
    let mut loops: Vec<_> = (0..2 * cores).map(|_| spin()).collect();
    let output = play(&house, &[]);
    for one in &mut loops {
        one.kill().unwrap();
        one.wait().unwrap();
    }
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let processors = &report["processors"];
    assert_eq!(
        (&report["valid"], &processors["disturbed"]),
        (&json!(false), &json!(true)),
        "{processors}"
    );
    assert!(processors["foreign_share"].as_f64() > Some(0.5), "{processors}");
}

#[test]
fn what_buffers_let_through_is_named() {
    let Some(house) = House::new("buffers") else { return };
    let text = r#"
        name = "play"
        topology = "two.toml"
        [sysctl]
        "net.ipv4.tcp_wmem" = "4096 16384 32768"
        [[step]]
        set = "wan"
        to = ["delay=50ms"]
        [[step]]
        name = "server"
        host = "b"
        run = ["penstock", "nettest", "--listen", "[::]:5201"]
        until = "listening"
        [[step]]
        name = "flow"
        host = "a"
        run = ["penstock", "nettest", "[b]:5201", "--time", "2", "--congestion", "cubic"]
        [[step]]
        name = "four"
        after = "flow"
        host = "a"
        run = ["penstock", "nettest", "[b]:5201", "--time", "2", "--congestion", "cubic", "--json", "--streams", "4"]
        [[step]]
        name = "back"
        after = "four"
        host = "a"
        run = ["penstock", "nettest", "[b]:5201", "--time", "2", "--congestion", "cubic", "--json", "--reverse"]
    "#;
    std::fs::write(house.file("play.toml"), text).unwrap();
    let output = play(&house, &[]);
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let told = report["programs"][1]["output"].as_str().unwrap();
    assert!(told.contains("bound by send buffer"), "{told}");
    assert!(told.contains("buffers as this host has them carry"), "{told}");
    let four = &report["programs"][2]["output"];
    assert_eq!(four["flows"][0]["bound_by"], "send buffer", "{report}");
    assert!(four["advice"].as_str().unwrap().contains("this host"), "{four}");
    let back = &report["programs"][3]["output"];
    assert_eq!(back["flows"][0]["bound_by"], "send buffer", "{report}");
    assert!(back["advice"].as_str().unwrap().contains("is the other end's"), "{back}");
}

#[test]
fn a_copy_leaves_a_path_that_goes_for_good() {
    let Some(house) = House::new("paths") else { return };
    let scenario = concat!(env!("CARGO_MANIFEST_DIR"), "/../experiments/lossy-path/scenario.toml");
    let mut run = house.lab(&["run", scenario, "--json"]);
    for value in [
        "size=500000000",
        "from=source-eth0,source-eth1",
        "to=target-eth0,target-eth1",
        "congestion=cubic",
        "cut_at=1500ms",
    ] {
        run.args(["--with", value]);
    }
    let output = run.env("PENSTOCK_LOG", "info").output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    // Bytes are compared by the scenario.
    assert!(output.status.success(), "{report:#}");
    let programs = report["programs"].as_array().unwrap();
    let copy = programs.iter().find(|program| program["name"] == "copy").unwrap();
    let told = copy["errors"].as_str().unwrap();
    assert!(told.contains("nothing is acknowledged by"), "{told}");
}

/// Of a user who has nothing: nobody.
const NOBODY: u32 = 65_534;

#[test]
fn a_user_without_privileges_has_labs_too() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    let Some(house) = House::new("without privileges") else { return };
    let probe = Command::new("unshare").args(["-Urn", "true"]).uid(NOBODY).gid(NOBODY).output();
    if !probe.is_ok_and(|probe| probe.status.success()) {
        println!("skipped: user namespaces are not for everyone here");
        return;
    }
    // Where the binary was built nobody else may look.
    let program = house.file("penstock");
    std::fs::copy(PENSTOCK, &program).unwrap();
    let state = house.file("theirs");
    std::fs::create_dir(&state).unwrap();
    std::os::unix::fs::chown(&state, Some(NOBODY), Some(NOBODY)).unwrap();
    std::fs::set_permissions(house.0.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let run = |words: &[&str]| {
        let mut command = Command::new(&program);
        command.uid(NOBODY).gid(NOBODY).env("PENSTOCK_STATE", &state).arg("lab").args(words);
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let file = house.file("two.toml");
    assert!(run(&["up", file.to_str().unwrap(), "--no-calibration"]).starts_with("lab two is up"));
    run(&["set", "wan", "loss=100%"]);
    run(&["set", "wan", "loss=0"]);
    let said = run(&["exec", "a", "--", "sh", "-c", "cat /proc/sys/net/ipv6/conf/eth0/mtu; id -u"]);
    assert_eq!(said, "9000\n0\n");
    run(&["down"]);
}
