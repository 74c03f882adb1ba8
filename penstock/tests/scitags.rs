//! The mover says whose data it moves: flow labels on what it sends, fireflies about its streams.
//!
//! Labels are read from a capture by tshark, which knows nothing of this project. Where the network
//! needs its own addresses it is a namespace that ends with the test.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::net::UdpSocket;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{Agent, House, Random, assert_same, is_root, run, skip, until, write_file};
use serde_json::Value;

/// rev9(3) << 9 | 14 << 2, the label of cms/analysis-input without entropy.
const CMS_ANALYSIS_INPUT: u32 = 0x30038;

/// All bits of a label but those that spread streams over paths.
const PAYLOAD: u32 = 0x3FEFC;

/// Listens for fireflies; what came, as JSON.
struct Collector(UdpSocket);

impl Collector {
    fn new(address: &str) -> Self {
        let socket = UdpSocket::bind(address).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        Self(socket)
    }

    fn place(&self) -> String {
        self.0.local_addr().unwrap().to_string()
    }

    /// Fireflies of so many streams, from start to end.
    fn take(&self, streams: usize) -> Vec<Value> {
        let mut all: Vec<Value> = Vec::new();
        let mut buffer = [0; 2048];
        let count = |all: &[Value], state: &str| {
            all.iter().filter(|one| one["flow-lifecycle"]["state"] == state).count()
        };
        until("fireflies of all streams", Duration::from_secs(10), || {
            while let Ok(length) = self.0.recv(&mut buffer) {
                let line = std::str::from_utf8(&buffer[..length]).unwrap();
                assert!(line.starts_with("<134>1 "), "{line}");
                let (head, json) = line.split_once(" - firefly-json - ").expect(line);
                assert!(head.contains("+00:00 "), "{line}");
                all.push(serde_json::from_str(json).unwrap());
            }
            (count(&all, "start") == streams && count(&all, "end") == streams).then_some(())
        });
        all
    }
}

fn check(fireflies: &[Value], owner: u64, activity: u64, bytes: u64) {
    let mut sent = 0;
    for one in fireflies {
        assert_eq!(one["context"]["experiment-id"], owner);
        assert_eq!(one["context"]["activity-id"], activity);
        assert_eq!(one["flow-id"]["protocol"], "tcp");
        if one["flow-lifecycle"]["state"] == "end" {
            sent += one["usage"]["sent"].as_u64().unwrap();
            assert!(one["flow-lifecycle"]["end-time"].is_string(), "{one}");
            assert!(one["netlink"]["rtt"].is_number(), "{one}");
        }
    }
    assert!(sent >= bytes, "{sent} of {bytes} bytes in {fireflies:?}");
}

#[test]
fn fireflies_tell_whose_data_goes_either_way() {
    let mut random = Random::seeded(91);
    let house = House::new();
    let data = house.source.join("data");
    fs::create_dir(&data).unwrap();
    write_file(&mut random, &data.join("one"), 3 << 20);
    let agent_collector = Collector::new("127.0.0.1:0");
    let config = house.path("penstock.toml");
    let text = format!(
        "[scitags]\ncollectors = [\"{}\"]\n[[export]]\nname = \"/ruled\"\npath = \"{}\"\nmode = \"read-write\"\n\
         who = [\"*\"]\nscitag = \"atlas/data-challenge\"\nforce_scitag = true\n\
         [[export]]\nname = \"/free\"\npath = \"{}\"\nmode = \"read-write\"\nwho = [\"*\"]\n",
        agent_collector.place(),
        house.root.display(),
        house.root.display(),
    );
    fs::write(&config, text).unwrap();
    let mut command = house.penstock();
    command.args(["serve", "--listen", "127.0.0.1:0", "--http", "none", "--json", "--config"]);
    command.arg(&config);
    let agent = Agent::spawn(command);
    let ours = Collector::new("127.0.0.1:0");
    let tagged = |arguments: &[&str]| {
        let mut command = house.cp(&["-r", "--streams", "2", "--scitag", "cms/analysis-input"]);
        run(command.args(["--collector", &ours.place()]).args(arguments)).good()
    };
    // A push: this end sends and tells.
    let done = tagged(&[data.to_str().unwrap(), &agent.url("free/")]);
    assert_eq!(done.json["scitag"], 206);
    assert_eq!(done.json["label"], "none");
    assert!(done.json["label_note"].as_str().unwrap().contains("IPv4"), "{done:?}");
    check(&ours.take(2), 3, 14, 3 << 20);
    // Where the operator rules, the client obeys.
    fs::remove_dir_all(house.root.join("data")).unwrap();
    let done = tagged(&[data.to_str().unwrap(), &agent.url("ruled/")]);
    assert_eq!(done.json["scitag"], 2 << 6 | 26);
    check(&ours.take(2), 2, 26, 3 << 20);
    // A pull: the agent sends and tells.
    let back = house.path("back");
    fs::create_dir(&back).unwrap();
    let done = tagged(&[&agent.url("free/data"), back.to_str().unwrap()]);
    assert_eq!(done.json["label"], "none");
    assert_same(&data, &back.join("data"));
    check(&agent_collector.take(2), 3, 14, 3 << 20);
}

#[test]
fn a_tag_that_cannot_be_is_one_line() {
    let house = House::new();
    let agent = house.agent();
    for (arguments, words) in [
        (vec!["--scitag", "cms/analyis-input"], "did you mean"),
        (vec!["--scitag", "1024/1"], "1023"),
        (vec!["--label", "none"], "--scitag"),
        (vec!["--scitag", "3/14", "--collector", "a b"], "HOST:PORT"),
    ] {
        let done = run(house
            .penstock()
            .arg("cp")
            .args(&arguments)
            .args(["/etc/hostname", &agent.url("")]));
        assert_eq!((done.code, done.lines().len()), (2, 1), "{arguments:?}: {done:?}");
        assert!(done.error.contains(words), "{words}: {done:?}");
    }
}

/// A namespace with two ends of a veth pair, ours and the far one in another namespace; both gone with
/// the value.
struct Pair {
    near: String,
    far: String,
}

impl Pair {
    fn new() -> Option<Self> {
        if !is_root() {
            skip("only root makes network namespaces");
            return None;
        }
        let id = std::process::id();
        let pair = Self { near: format!("pst-near-{id}"), far: format!("pst-far-{id}") };
        let ip = |arguments: &str| {
            let output = Command::new("ip").args(arguments.split_whitespace()).output();
            output.is_ok_and(|output| output.status.success())
        };
        let (near, far) = (&pair.near, &pair.far);
        let made = ip(&format!("netns add {near}"))
            && ip(&format!("netns add {far}"))
            && ip(&format!("-n {near} link add pst0 type veth peer name pst1 netns {far}"))
            && ip(&format!("-n {near} addr add fd00:91::1/64 dev pst0 nodad"))
            && ip(&format!("-n {far} addr add fd00:91::2/64 dev pst1 nodad"))
            && [(near, "pst0"), (near, "lo"), (far, "pst1"), (far, "lo")]
                .iter()
                .all(|(space, device)| ip(&format!("-n {space} link set {device} up")));
        if !made {
            skip("network namespaces cannot be made here");
        }
        made.then_some(pair)
    }

    fn inside(space: &str, command: &Command) -> Command {
        let mut inside = Command::new("ip");
        inside.args(["netns", "exec", space]).arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        inside
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for space in [&self.near, &self.far] {
            let _ = Command::new("ip").args(["netns", "del", space]).status();
        }
    }
}

/// A capture that runs.
struct Capture(Child);

impl Capture {
    fn start(space: &str, file: &std::path::Path) -> Self {
        let mut command = Command::new("tcpdump");
        command.args([
            "-i",
            "pst1",
            "-n",
            "-s",
            "128",
            "-B",
            "65536",
            "--immediate-mode",
            "-U",
            "-w",
        ]);
        command.arg(file).arg("ip6");
        let mut child = Pair::inside(space, &command).stderr(Stdio::piped()).spawn().unwrap();
        // It says so when it listens.
        let mut line = String::new();
        let mut stderr = std::io::BufReader::new(child.stderr.take().unwrap());
        std::io::BufRead::read_line(&mut stderr, &mut line).unwrap();
        std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
        Self(child)
    }

    /// Stops it; how many packets with data came from the near end to the mover's port, by label.
    fn labels(mut self, file: &std::path::Path, port: &str) -> BTreeMap<u32, usize> {
        let pid = self.0.id().to_string();
        assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
        self.0.wait().unwrap();
        let output = Command::new("tshark")
            .args(["-r", file.to_str().unwrap(), "-Y"])
            .arg(format!("ipv6.src == fd00:91::1 && tcp.dstport == {port} && tcp.len > 0"))
            .args(["-T", "fields", "-e", "ipv6.flow", "-e", "tcp.stream", "-e", "tcp.len"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let mut labels = BTreeMap::new();
        // Streams that carry files are those with much data; the control connection has no label of ours.
        let mut streams: BTreeMap<String, (u64, Vec<u32>)> = BTreeMap::new();
        for line in String::from_utf8(output.stdout).unwrap().lines() {
            let fields: Vec<_> = line.split('\t').collect();
            let label = u32::from_str_radix(fields[0].trim_start_matches("0x"), 16).unwrap();
            let stream = streams.entry(fields[1].to_owned()).or_default();
            stream.0 += fields[2].parse::<u64>().unwrap();
            stream.1.push(label);
        }
        for (_, (bytes, seen)) in streams {
            if bytes > 100_000 {
                seen.into_iter().for_each(|label| *labels.entry(label).or_default() += 1);
            }
        }
        labels
    }
}

#[test]
fn every_packet_of_a_push_carries_the_label() {
    let Some(pair) = Pair::new() else { return };
    if Command::new("tshark").arg("-v").output().is_err()
        || Command::new("tcpdump").arg("--version").output().is_err()
    {
        return skip("tshark and tcpdump are not installed");
    }
    let mut random = Random::seeded(92);
    let house = House::new();
    let data = house.source.join("data");
    fs::create_dir(&data).unwrap();
    write_file(&mut random, &data.join("one"), 6 << 20);
    let mut serve = house.penstock();
    serve.args(["serve", "--listen", "[fd00:91::2]:0", "--http", "none", "--json", "--root"]);
    serve.arg(&house.root);
    let agent = Agent::spawn(Pair::inside(&pair.far, &serve));
    let token = fs::read_to_string(house.state.join("token")).unwrap();
    let port = agent.listen.rsplit_once(':').unwrap().1.to_owned();
    let state = house.path("asking");
    let mut login = common::penstock(&state);
    login.args([
        "login",
        &agent.listen,
        "--token",
        token.trim(),
        "--fingerprint",
        &agent.fingerprint,
    ]);
    run(Pair::inside(&pair.near, &login)).good();
    let collector_at = house.path("capture.pcap");
    let capture = Capture::start(&pair.far, &collector_at);
    let mut copy = common::penstock(&state);
    copy.args(["cp", "--json", "-r", "--streams", "3", "--block", "256KiB"]);
    copy.args(["--scitag", "cms/analysis-input"]).arg(&data).arg(agent.url(""));
    let done = run(Pair::inside(&pair.near, &copy)).good();
    assert_eq!(done.json["label"], "flow", "{done:?}");
    assert_same(&data, &house.root.join("data"));
    let labels = capture.labels(&collector_at, &port);
    println!("labels of packets with data: {labels:x?}");
    assert!(labels.values().sum::<usize>() > 20, "{labels:?}");
    assert!(labels.keys().all(|label| label & PAYLOAD == CMS_ANALYSIS_INPUT), "{labels:x?}");
    assert!(labels.len() > 1, "streams differ in the bits that spread them: {labels:x?}");
}
