//! `penstock lab` by its command line: labs start, change while traffic runs, and leave nothing behind.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

mod common;
use common::{PENSTOCK, wait_until};

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

/// A state directory with a topology; its labs end when it is dropped.
struct TestEnv(tempfile::TempDir);

impl TestEnv {
    /// Returns none, and prints why, where labs are not possible.
    fn new(test: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            penstock_testkit::skip(
                penstock_testkit::Requirement::Root,
                &format!("{test}: needs root for network namespaces"),
            );
            return None;
        }
        let env = Self(tempfile::tempdir().unwrap());
        std::fs::write(env.file("two.toml"), NETWORK).unwrap();
        Some(env)
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
        assert_eq!(error.trim_end().lines().count(), 1, "{error}");
    }

    fn up(&self) -> Value {
        self.up_by("nfqueue")
    }

    fn up_by(&self, backend: &str) -> Value {
        let file = self.file("two.toml");
        let file = file.to_str().unwrap();
        self.json(&["up", file, "--no-calibration", "--backend", backend])["lab"].clone()
    }

    /// Round-trip time from `a` in milliseconds, by the kernel's receive timestamps (SO_TIMESTAMPNS).
    fn kernel_round_trip_ms(&self, to: &str) -> f64 {
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

    /// Round-trip time from one host to an address of another in milliseconds.
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

impl Drop for TestEnv {
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

/// Sends SIGKILL to the supervisor of a lab.
fn kill_holder(status: &Value) {
    let pid = status["pid"].as_u64().unwrap();
    Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap();
    wait_until("the holder is gone", Duration::from_secs(30), || (!exists(pid)).then_some(()));
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
fn hosts_resolve_names_and_links_change() {
    let Some(env) = TestEnv::new("links_change") else { return };
    let status = env.up();
    assert_eq!(
        (status["name"].as_str(), status["backend"].as_str()),
        (Some("two"), Some("nfqueue"))
    );
    let direct = env.round_trip_ms("a", "b", "b");
    assert!((10.0..20.0).contains(&direct), "{direct}");
    let changed = env.json(&["set", "wan", "delay=15ms", "--way", "forward"]);
    assert_eq!(changed["directions"][0]["delay_seconds"], 0.015);
    assert_eq!(changed["directions"][1]["delay_seconds"], 0.005);
    let longer = env.round_trip_ms("a", "b", "b");
    assert!((20.0..30.0).contains(&longer), "{longer}");
    env.ok(&["route", "a", "b-eth0", "near", "detour", "far"]);
    let detour = env.round_trip_ms("a", "b", "b");
    assert!((40.0..55.0).contains(&detour), "{detour}");
    // The path to the other interface is unchanged.
    let other = env.round_trip_ms("a", "b", "b-eth1");
    assert!((20.0..30.0).contains(&other), "{other}");
    // A route between hosts applies to all their addresses.
    env.ok(&["route", "a", "b", "near", "detour", "far-too"]);
    for name in ["b", "b-eth1"] {
        let all = env.round_trip_ms("a", "b", name);
        assert!((40.0..55.0).contains(&all), "{name}: {all}");
    }
    // By kernel timestamps: a delayed packet does not arrive earlier.
    let measured = env.kernel_round_trip_ms("b");
    assert!((40.0..55.0).contains(&measured), "{measured}");
    let hosts = env.ok(&[
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
    env.ok(&["cut", "detour"]);
    let said = env.json(&["status"]);
    let cut = &said["links"][2];
    assert_eq!(
        (cut["name"].as_str(), cut["directions"][1]["is_cut"].as_bool()),
        (Some("detour"), Some(true))
    );
    env.ok(&["mend", "detour"]);
    assert!(env.ok(&["status"]).contains("detour"));
}

#[test]
fn vlan_packets_carry_their_tag() {
    let Some(env) = TestEnv::new("vlan_packets_carry_their_tag") else { return };
    for backend in ["nfqueue", "tap"] {
        env.up_by(backend);
        tags_are_where_they_belong(&env);
        env.ok(&["down"]);
    }
}

fn tags_are_where_they_belong(env: &TestEnv) {
    for (link, end, tag) in [("wan", "s", true), ("wan", "t", true), ("near", "s", false)] {
        let words = ["capture", link, "--at", end, "--", "-e", "-n", "-l", "-c", "2"];
        let mut capture = env.lab(&words);
        let mut capture = capture.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = std::io::BufReader::new(capture.stderr.take().unwrap());
        let mut line = String::new();
        while !line.starts_with("listening") {
            line.clear();
            assert!(std::io::BufRead::read_line(&mut said, &mut line).unwrap() > 0, "no tcpdump?");
        }
        // A round trip with payload.
        env.round_trip_ms("a", "b", "b");
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
    let Some(env) = TestEnv::new("measured") else { return };
    env.up();
    let measured = env.json(&["calibrate", "wan", "far"]);
    let wan = &measured["links"][0];
    assert_eq!(wan["rtt_wanted_seconds"], 0.01);
    let (rtt, rate) = (wan["rtt_seconds"].as_f64().unwrap(), wan["rate_bps"].as_f64().unwrap());
    assert!((0.01..0.02).contains(&rtt), "{rtt}");
    assert!((0.9..1.03).contains(&(rate / 1e9)), "{rate}");
    // There is no other traffic.
    let counted = &env.json(&["status"])["links"][1]["directions"][0];
    assert!(counted["overflowed"] == 0 && counted["packets"].as_u64().unwrap() < 50, "{counted}");
    assert!(env.ok(&["calibrate", "far"]).contains("round trip"));
}

#[test]
fn crashed_lab_can_be_removed() {
    let Some(env) = TestEnv::new("died") else { return };
    let status = env.up();
    let inode = inode_of(&status, 0);
    let mut sleeper = env.lab(&["exec", "a", "--", "sleep", "1000"]).spawn().unwrap();
    wait_until("the program runs", Duration::from_secs(10), || (inside(inode) > 0).then_some(()));
    kill_holder(&status);
    assert!(env.ok(&["status"]).contains("lab two died: penstock lab down --lab two"));
    for arguments in [
        &["status", "--lab", "two"][..],
        &["exec", "a", "--lab", "two", "--", "true"],
        &["set", "wan", "delay=1ms"],
    ] {
        env.refused(arguments, 1, "lab two died: penstock lab down --lab two");
    }
    let removed = env.ok(&["down"]);
    assert!(removed.starts_with("lab two had died: 1 process that still ran"), "{removed}");
    assert!(!sleeper.wait().unwrap().success());
    assert_eq!(env.ok(&["status"]), "no lab is up: penstock lab up FILE\n");
}

#[test]
fn slow_link_calibration_blocks_nothing() {
    let Some(env) = TestEnv::new("slow") else { return };
    let network = NETWORK.replacen("delay = \"5ms\"", "delay = \"5s\"", 1);
    let network = network.replacen("rate = \"1G\"\n    delay = \"20ms\"", "rate = \"1k\"", 1);
    std::fs::write(env.file("two.toml"), network).unwrap();
    let status = env.up();
    let slow = &env.json(&["calibrate", "detour"])["links"][0];
    assert_eq!((&slow["rtt_seconds"], &slow["too_slow"]), (&Value::Null, &json!(true)));
    env.ok(&["cut", "near"]);
    assert!(env.ok(&["calibrate", "near"]).contains("nothing arrived"));
    env.ok(&["mend", "near"]);
    // During twenty round trips of 10 s the lab answers requests and can be ended.
    let mut measuring = env.lab(&["calibrate", "wan"]);
    let mut measuring = measuring.stderr(Stdio::piped()).spawn().unwrap();
    let threads = format!("/proc/{}/task", status["pid"]);
    wait_until("the measurement has begun", Duration::from_secs(10), || {
        let names = std::fs::read_dir(&threads).unwrap().flatten();
        let mut names = names.flat_map(|one| std::fs::read_to_string(one.path().join("comm")));
        names.any(|name| name == "measure\n").then_some(())
    });
    env.refused(&["calibrate", "near"], 2, "being measured already");
    env.ok(&["status"]);
    env.ok(&["down"]);
    assert!(!measuring.wait().unwrap().success());
}

#[test]
fn invalid_link_settings_are_refused() {
    let Some(env) = TestEnv::new("contradicts") else { return };
    env.up();
    for (settings, why) in [
        (&["loss=90%", "loss_burst=3"][..], "at most 75.0 %"),
        (&["jitter=6ms"], "at most the delay, which is 5.00 ms"),
        (&["queue=0"], "room for a packet"),
        (&["delay=7"], "write the unit too"),
    ] {
        env.refused(&[&["set", "wan"], settings].concat(), 2, why);
    }
    let wan = &env.json(&["status"])["links"][1]["directions"][0];
    assert_eq!((&wan["delay_seconds"], &wan["loss"]), (&json!(0.005), &json!(0.0)));
    env.refused(&["route", "a", "s", "near"], 2, "s is a switch");
}

#[test]
fn lab_down_leaves_nothing() {
    let Some(env) = TestEnv::new("ends") else { return };
    let status = env.up();
    let inode = inode_of(&status, 0);
    let mut sleeper = env.lab(&["exec", "a", "--", "sleep", "1000"]).spawn().unwrap();
    wait_until("the program runs", Duration::from_secs(10), || (inside(inode) > 0).then_some(()));
    let removed = env.ok(&["down"]);
    assert_eq!(
        removed,
        "lab two is down: 2 hosts, 2 switches and 5 links removed, 1 process that ran in it ended\n"
    );
    assert!(!sleeper.wait().unwrap().success());
    wait_until("the holder is gone", Duration::from_secs(30), || {
        (!exists(status["pid"].as_u64().unwrap())).then_some(())
    });
    assert_eq!(inside(inode), 0);
    assert_eq!(env.ok(&["status"]), "no lab is up: penstock lab up FILE\n");
}

#[test]
fn killed_lab_is_cleaned_by_next() {
    let Some(env) = TestEnv::new("killed") else { return };
    let status = env.up();
    let inode = inode_of(&status, 0);
    // The second has an empty environment, without the lab's variables.
    let programs: [&[&str]; 2] =
        [&["exec", "a", "--", "sleep", "1000"], &["exec", "a", "--", "env", "-i", "sleep", "1000"]];
    let mut sleepers = programs.map(|program| env.lab(program).spawn().unwrap());
    wait_until("the programs run", Duration::from_secs(10), || (inside(inode) > 1).then_some(()));
    kill_holder(&status);
    let said = env.json(&["status"]);
    assert_eq!((&said["labs"], &said["died"]), (&json!([]), &json!(["two"])));
    env.up();
    for sleeper in &mut sleepers {
        assert!(!sleeper.wait().unwrap().success());
    }
    assert_eq!(inside(inode), 0);
    // Names of labs are unique.
    let file = env.file("two.toml");
    let file = file.to_str().unwrap();
    env.refused(&["up", file], 1, "up already: penstock lab down --lab two");
    env.ok(&["up", file, "--lab", "other", "--no-calibration"]);
    env.refused(&["status", "--lab", "third"], 1, "not up");
    env.refused(&["exec", "a", "--", "true"], 2, "say which with --lab: other, two");
    assert_eq!(env.ok(&["status"]), "other\ntwo\n");
    env.ok(&["down", "--lab", "other"]);
}

#[test]
fn mistakes_are_one_line() {
    let Some(env) = TestEnv::new("mistakes") else { return };
    env.refused(&["down"], 1, "no lab is up");
    env.refused(&["up", "/no/such/file"], 2, "/no/such/file");
    std::fs::write(env.file("bad.toml"), "name = \"x\"\n[[link]]\nends = [\"a\", \"b\"]\n")
        .unwrap();
    env.refused(&["up", env.file("bad.toml").to_str().unwrap()], 2, "bad.toml:3:");
    let file = env.file("two.toml");
    env.refused(&["up", file.to_str().unwrap(), "--lab", "../x"], 2, "no name of a lab");
    env.up();
    env.refused(&["set", "won", "delay=1ms"], 2, "there are near, wan");
    env.refused(&["set", "wan", "delay=fast"], 2, "'delay=fast'");
    env.refused(&["exec", "c", "--", "true"], 2, "there are a, b, s, t");
    env.refused(&["exec", "a", "--", "/no/such/program"], 127, "/no/such/program");
    env.refused(&["route", "a", "b", "near", "far"], 2, "does not touch s");
    env.refused(&["capture", "won"], 2, "there are near, wan");
}

fn play(env: &TestEnv, more: &[&str]) -> Output {
    env.lab(&[&["run", env.file("play.toml").to_str().unwrap(), "--json"], more].concat())
        .output()
        .unwrap()
}

#[test]
fn a_scenario_is_played_and_reported() {
    let Some(env) = TestEnv::new("scenario") else { return };
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
    std::fs::write(env.file("play.toml"), text).unwrap();
    let output = play(&env, &[]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let program = |number: usize| &report["programs"][number];
    assert_eq!(program(1)["exit"], 0, "{report}");
    assert!(program(1)["output"]["bits_per_second"].as_f64().unwrap() > 0.0, "{report}");
    assert_eq!(program(2)["output"], "4096\t16384\t16777216\n");
    assert_eq!(program(2)["exit"], 3);
    assert!(report["samples"].as_array().unwrap().len() > 5);
    assert_eq!(report["links"][1]["directions"][0]["delay_seconds"], 0.006);
    assert_eq!(env.ok(&["status"]), "no lab is up: penstock lab up FILE\n");
    env.refused(&["run", env.file("play.toml").to_str().unwrap(), "--with", "x"], 2, "NAME=VALUE");
    std::fs::write(
        env.file("play.toml"),
        text.replace("until = \"listening\"", "until = \"never\"").replace("--listen", "--lisn"),
    )
    .unwrap();
    env.refused(&["run", env.file("play.toml").to_str().unwrap()], 1, "server ended");
}

#[test]
fn experiment_tabulates_its_plays() {
    let Some(env) = TestEnv::new("experiment") else { return };
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
    std::fs::write(env.file("play.toml"), scenario).unwrap();
    std::fs::write(env.file("experiment.toml"), experiment).unwrap();
    let output = |more: &[&str]| {
        let mut command = env.penstock("experiment");
        command.arg("run").arg(env.0.path()).args(more).output().unwrap()
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
    std::fs::write(env.file("experiment.toml"), experiment.replace("\"wan\"", "\"van\"")).unwrap();
    let refused = output(&[]);
    let why = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(2) && why.contains("\"van\": the topology"), "{why}");
    std::fs::write(env.file("experiment.toml"), experiment).unwrap();
    let text = run(&["--case", "as it is"]);
    assert!(text.contains("| as it is | 0.25 | 0.30 | 0.25 |"), "{text}");
    let part = output(&["--case", "as"]);
    let why = String::from_utf8(part.stderr).unwrap();
    assert_eq!(part.status.code(), Some(2));
    assert!(why.contains("no case \"as\": there are as it is, half as fast"), "{why}");
    // Bounds and expected figures have their own columns.
    let bounded = experiment
        .replace("published = { \"Gb/s\" = 0.3 }", "bounds = { \"Gb/s\" = 0.2 }\ntitle = \"what\"")
        .replace("with = {", "expected = { \"share\" = 0.4 }\nwith = {")
        .replace("source = \"nobody\"", "");
    std::fs::write(env.file("experiment.toml"), bounded).unwrap();
    let above = output(&[]);
    let text = String::from_utf8(above.stdout).unwrap();
    assert_eq!(above.status.code(), Some(3), "{text}");
    assert!(
        text.contains("| case | what | Gb/s | Gb/s at most | share | share expected | valid |"),
        "{text}"
    );
    assert!(text.contains("| as it is | what | **0.25** | 0.20 | 0.25 | - |"), "{text}");
    assert!(!text.contains("ublished"), "{text}");
    std::fs::write(env.file("experiment.toml"), experiment.replace("source", "note")).unwrap();
    let refused = output(&[]);
    assert!(String::from_utf8(refused.stderr).unwrap().contains("who published"));
}

/// Experiments run by name without the source tree, and write pictures to the current directory.
#[test]
fn embedded_experiments_run_anywhere() {
    let Some(env) = TestEnv::new("embedded") else { return };
    let run = |arguments: &[&str]| {
        let mut command = env.penstock("experiment");
        command.current_dir(env.0.path()).args(arguments).output().unwrap()
    };
    let listed = String::from_utf8(run(&["list"]).stdout).unwrap();
    assert!(listed.contains("buffers: ") && listed.contains("ten-sites: "), "{listed}");
    let none = run(&["list", "."]);
    assert!(none.status.success() && none.stdout.is_empty(), "{none:?}");
    assert!(String::from_utf8_lossy(&none.stderr).contains("experiment.toml"), "{none:?}");
    let one = run(&["run", "heps-fabric", "--case", "dcqcn-latency", "--json"]);
    assert!(one.status.success(), "{one:?}");
    let table: Value = serde_json::from_slice(&one.stdout).unwrap();
    assert_eq!(table["rows"].as_array().unwrap().len(), 1);
    assert!((table["rows"][0]["measured"][1].as_f64().unwrap() - 3.72).abs() < 0.05, "{table}");
    let unknown = run(&["run", "no-such"]);
    let why = String::from_utf8(unknown.stderr).unwrap();
    assert_eq!(unknown.status.code(), Some(2));
    assert!(why.contains("there are aidtn, buffers, "), "{why}");
    let nowhere = run(&["run", "heps-fabric", "--output", "no/such"]);
    assert_eq!(nowhere.status.code(), Some(2));
}

/// Programs of a play write to the directory in which it was started.
#[test]
fn plays_write_to_the_current_directory() {
    let Some(env) = TestEnv::new("output") else { return };
    let text = r#"
        name = "play"
        topology = "two.toml"
        [[step]]
        name = "write"
        host = "a"
        run = ["sh", "-c", "pwd; echo drawn >\"$PENSTOCK_OUTPUT/picture\""]
    "#;
    std::fs::write(env.file("play.toml"), text).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let scenario = env.file("play.toml");
    let mut run = env.lab(&["run", scenario.to_str().unwrap(), "--json"]);
    let output = run.current_dir(elsewhere.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(std::fs::read_to_string(elsewhere.path().join("picture")).unwrap(), "drawn\n");
}

/// Busy loops outside the lab take the processors while links stay on time.
#[test]
fn foreign_load_makes_a_play_invalid() {
    let Some(env) = TestEnv::new("load") else { return };
    let text = r#"
        name = "play"
        topology = "two.toml"
        [[step]]
        name = "wait"
        host = "a"
        run = ["sleep", "2"]
    "#;
    std::fs::write(env.file("play.toml"), text).unwrap();
    let cores = std::thread::available_parallelism().unwrap().get();
    let spin = || Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
    let mut loops: Vec<_> = (0..2 * cores).map(|_| spin()).collect();
    let output = play(&env, &[]);
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
fn socket_buffer_bottleneck_is_reported() {
    let Some(env) = TestEnv::new("buffers") else { return };
    let text = r#"
        name = "play"
        topology = "two.toml"
        [sysctl]
        # Linux fills a segment of 64 KiB whenever less than the buffer is queued: smaller buffers hardly limit a flow.
        "net.ipv4.tcp_wmem" = "4096 16384 262144"
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
    std::fs::write(env.file("play.toml"), text).unwrap();
    // On a busy machine a flow may wait for its process rather than for its buffer.
    let verdicts = (0..3).map(|_| buffer_verdict(&play(&env, &[])));
    let failed: Vec<String> = verdicts.map_while(Result::err).collect();
    assert!(failed.len() < 3, "{failed:#?}");
}

/// Checks that a run of [`socket_buffer_bottleneck_is_reported`] names the buffer of host a.
fn buffer_verdict(output: &Output) -> Result<(), String> {
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let flow = text(&report["programs"][1]["output"]);
    let [four, back] = [2, 3].map(|program| &report["programs"][program]["output"]);
    let is_named = flow.contains("bound by send buffer")
        && flow.contains("buffers as this host has them carry")
        && four["flows"][0]["bound_by"] == "send buffer"
        && text(&four["advice"]).contains("this host")
        && back["flows"][0]["bound_by"] == "send buffer"
        && text(&back["advice"]).contains("is the other end's");
    if is_named { Ok(()) } else { Err(report["programs"].to_string()) }
}

#[test]
fn copy_abandons_a_dead_path() {
    let Some(env) = TestEnv::new("paths") else { return };
    let scenario = concat!(env!("CARGO_MANIFEST_DIR"), "/../experiments/lossy-path/scenario.toml");
    let mut run = env.lab(&["run", scenario, "--json"]);
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
    // The scenario compares the bytes.
    assert!(output.status.success(), "{report:#}");
    let programs = report["programs"].as_array().unwrap();
    let copy = programs.iter().find(|program| program["name"] == "copy").unwrap();
    let measured = copy["errors"].as_str().unwrap();
    assert!(measured.contains("nothing is acknowledged by"), "{measured}");
}

/// User nobody.
const NOBODY_UID: u32 = 65_534;

#[test]
fn unprivileged_user_runs_a_lab() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    let Some(env) = TestEnv::new("without privileges") else { return };
    let probe =
        Command::new("unshare").args(["-Urn", "true"]).uid(NOBODY_UID).gid(NOBODY_UID).output();
    if !probe.is_ok_and(|probe| probe.status.success()) {
        penstock_testkit::skip(
            penstock_testkit::Requirement::Kernel,
            "user namespaces are not for everyone here",
        );
        return;
    }
    // Other users cannot read the build directory.
    let program = env.file("penstock");
    std::fs::copy(PENSTOCK, &program).unwrap();
    let state = env.file("theirs");
    std::fs::create_dir(&state).unwrap();
    std::os::unix::fs::chown(&state, Some(NOBODY_UID), Some(NOBODY_UID)).unwrap();
    std::fs::set_permissions(env.0.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let run = |words: &[&str]| {
        let mut command = Command::new(&program);
        command
            .uid(NOBODY_UID)
            .gid(NOBODY_UID)
            .env("PENSTOCK_STATE", &state)
            .arg("lab")
            .args(words);
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let file = env.file("two.toml");
    assert!(run(&["up", file.to_str().unwrap(), "--no-calibration"]).starts_with("lab two is up"));
    run(&["set", "wan", "loss=100%"]);
    run(&["set", "wan", "loss=0"]);
    let said = run(&["exec", "a", "--", "sh", "-c", "cat /proc/sys/net/ipv6/conf/eth0/mtu; id -u"]);
    assert_eq!(said, "9000\n0\n");
    run(&["down"]);
}
