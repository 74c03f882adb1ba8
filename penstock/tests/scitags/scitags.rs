//! Scitags of the mover: flow labels or destination options on sent packets, fireflies about its streams.
//!
//! tshark reads labels from a capture. Tests that need their own addresses use a network namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::veth::{FAR, NEAR, NamespacePair, ip};
use crate::common::{
    Agent, CommandOutcome, TestEnv, assert_same, run, seeded, wait_until, write_file,
};
use penstock_testkit::http::TestRequest;
use serde_json::Value;

/// rev9(3) << 9 | 14 << 2, the label of cms/analysis-input without entropy.
const CMS_ANALYSIS_INPUT: u32 = 0x30038;

/// The same as an option: owner 3, activity 14.
const CMS_OPTION: &str = "00030e";

/// All bits of a label but those that spread streams over paths.
const LABEL_PAYLOAD_MASK: u32 = 0x3FEFC;

/// A UDP socket that receives fireflies.
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

    /// Receives the fireflies of `streams` streams from start to end, as JSON.
    fn take(&self, streams: usize) -> Vec<Value> {
        let mut all: Vec<Value> = Vec::new();
        let mut buffer = [0; 2048];
        let count = |all: &[Value], state: &str| {
            all.iter().filter(|one| one["flow-lifecycle"]["state"] == state).count()
        };
        wait_until("fireflies of all streams", Duration::from_secs(30), || {
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
            // Fields that are not read from the kernel.
            let unread = ["rttvar", "pmtu", "snd_ssthresh", "lost", "pacing_rate"];
            assert!(unread.iter().all(|name| one["netlink"].get(name).is_none()), "{one}");
        }
    }
    assert!(sent >= bytes, "{sent} of {bytes} bytes in {fireflies:?}");
}

#[test]
fn fireflies_name_owner_both_directions() {
    let mut random = seeded(91);
    let env = TestEnv::new();
    let data = env.source.join("data");
    fs::create_dir(&data).unwrap();
    write_file(&mut random, &data.join("one"), 3 << 20);
    let agent_collector = Collector::new("127.0.0.1:0");
    let config = env.path("penstock.toml");
    let text = format!(
        "[scitags]\ncollectors = [\"{}\"]\n[[export]]\nname = \"/ruled\"\npath = \"{}\"\nmode = \"read-write\"\n\
         who = [\"*\"]\nscitag = \"atlas/data-challenge\"\nforce_scitag = true\n\
         [[export]]\nname = \"/free\"\npath = \"{}\"\nmode = \"read-write\"\nwho = [\"*\"]\n",
        agent_collector.place(),
        env.root.display(),
        env.root.display(),
    );
    fs::write(&config, text).unwrap();
    let mut command = env.penstock();
    command.args(["serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--json"]);
    command.arg("--config");
    command.arg(&config);
    let agent = Agent::spawn(command);
    let ours = Collector::new("127.0.0.1:0");
    let tagged = |arguments: &[&str]| {
        let mut command = env.cp(&["-r", "--streams", "2", "--scitag", "cms/analysis-input"]);
        run(command.args(["--collector", &ours.place()]).args(arguments)).good()
    };
    // A push: the client sends data and fireflies.
    let done = tagged(&[data.to_str().unwrap(), &agent.url("free/")]);
    assert_eq!(done.json["scitag"], 206);
    assert_eq!(done.json["label"], "none");
    assert!(done.json["label_note"].as_str().unwrap().contains("IPv4"), "{done:?}");
    check(&ours.take(2), 3, 14, 3 << 20);
    // The operator's forced scitag overrides the client's.
    fs::remove_dir_all(env.root.join("data")).unwrap();
    let done = tagged(&[data.to_str().unwrap(), &agent.url("ruled/")]);
    assert_eq!(done.json["scitag"], 2 << 6 | 26);
    check(&ours.take(2), 2, 26, 3 << 20);
    // A pull: the agent sends data and fireflies.
    let back = env.path("back");
    fs::create_dir(&back).unwrap();
    let done = tagged(&[&agent.url("free/data"), back.to_str().unwrap()]);
    assert_eq!(done.json["label"], "none");
    assert_same(&data, &back.join("data"));
    check(&agent_collector.take(2), 3, 14, 3 << 20);
    // Counted twice: each went to the collector and to the peer.
    wait_until("the agent's counters", Duration::from_secs(30), || {
        let text = metrics(&agent.http);
        let has = |state: &str| {
            let line = format!("penstock_mover_fireflies_sent_total{{state=\"{state}\"}} 4");
            text.lines().any(|got| got == line)
        };
        (has("start") && has("end")).then_some(())
    });
}

fn metrics(http: &str) -> String {
    TestRequest::new(http, "GET", "/metrics").send().text()
}

#[test]
fn invalid_tag_prints_one_line() {
    let env = TestEnv::new();
    let agent = env.agent();
    for (arguments, words) in [
        (vec!["--scitag", "cms/analyis-input"], "did you mean"),
        (vec!["--scitag", "1024/1"], "1023"),
        (vec!["--label", "none"], "--scitag"),
        (vec!["--scitag", "3/14", "--collector", "a b"], "HOST:PORT"),
    ] {
        let done =
            run(env.penstock().arg("cp").args(&arguments).args(["/etc/hostname", &agent.url("")]));
        assert_eq!((done.code, done.lines().len()), (2, 1), "{arguments:?}: {done:?}");
        assert!(done.error.contains(words), "{words}: {done:?}");
    }
}

/// An agent in the far namespace, and a client with its login in the near one.
struct Site {
    agent: Agent,
    env: TestEnv,
    data: PathBuf,
    state: PathBuf,
    pair: NamespacePair,
}

impl Site {
    fn new(seed: u64) -> Option<Self> {
        let pair = NamespacePair::new(&["tshark", "tcpdump", "ethtool", "setpriv"])?;
        let mut random = seeded(seed);
        let env = TestEnv::new();
        let data = env.source.join("data");
        fs::create_dir(&data).unwrap();
        write_file(&mut random, &data.join("one"), 6 << 20);
        let mut serve = env.penstock();
        serve.args(["serve", "--http", "none", "--json", "--listen"]).arg(format!("[{FAR}]:0"));
        serve.arg("--root").arg(&env.root);
        let agent = Agent::spawn(NamespacePair::inside(&pair.far, &serve));
        let state = env.path("asking");
        let site = Self { agent, env, data, state, pair };
        site.login(&site.agent, &site.env);
        Some(site)
    }

    /// Stores the login of an agent at the client.
    fn login(&self, agent: &Agent, env: &TestEnv) {
        let token = fs::read_to_string(env.state.join("token")).unwrap();
        let mut login = crate::common::penstock(&self.state);
        login.args(["login", &agent.listen, "--token", token.trim()]);
        login.args(["--fingerprint", &agent.fingerprint]);
        run(NamespacePair::inside(&self.pair.near, &login)).good();
    }

    /// Runs a copy in the near namespace, through the program `through` if given.
    fn copy(&self, through: &[&str], label: &str, from: &str, to: &str) -> CommandOutcome {
        let copy = crate::common::penstock(&self.state);
        let mut command = Command::new(through.first().unwrap_or(&"env"));
        command.args(through.get(1..).unwrap_or_default()).arg(copy.get_program());
        command.args(["cp", "--json", "-r", "--streams", "3", "--block", "256KiB"]);
        // Slow enough that all streams carry data.
        command.args(["--rate", "200M"]);
        command.args(["--scitag", "cms/analysis-input", "--label", label, from, to]);
        command.env("PENSTOCK_STATE", &self.state);
        run(NamespacePair::inside(&self.pair.near, &command)).good()
    }

    fn push(&self, through: &[&str], label: &str) -> CommandOutcome {
        let _ = fs::remove_dir_all(self.env.root.join("data"));
        self.copy(through, label, self.data.to_str().unwrap(), &self.agent.url(""))
    }

    fn pull(&self, label: &str) -> CommandOutcome {
        let back = self.env.path("back");
        let _ = fs::remove_dir_all(&back);
        fs::create_dir(&back).unwrap();
        self.copy(&[], label, &self.agent.url("data"), back.to_str().unwrap())
    }

    /// Captures packets in the far namespace while `work` runs.
    fn capture<T>(&self, work: impl FnOnce() -> T) -> (T, Vec<Packet>) {
        let file = self.env.path("capture.pcap");
        let done = self.pair.capture("ip6", &file, work);
        (done, read(&file))
    }
}

/// A packet with data, as tshark reads it.
struct Packet {
    source: String,
    label: u32,
    /// Data of option 0x1E; empty without one.
    option: String,
    class: u32,
    data_bytes: u64,
}

/// Packets with data of bulk streams, without the unlabelled control connection.
fn read(file: &std::path::Path) -> Vec<Packet> {
    let fields =
        ["tcp.stream", "ipv6.src", "ipv6.flow", "ipv6.opt.experimental", "ipv6.tclass", "tcp.len"];
    let mut command = Command::new("tshark");
    command.arg("-r").arg(file).args(["-Y", "ipv6 && tcp.len > 0", "-T", "fields"]);
    for field in fields {
        command.args(["-e", field]);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let hex = |text: &str| u32::from_str_radix(text.trim_start_matches("0x"), 16).unwrap();
    let mut streams: BTreeMap<(String, String), Vec<Packet>> = BTreeMap::new();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let [stream, source, label, option, class, bytes] =
            line.split('\t').collect::<Vec<_>>().try_into().unwrap();
        let packet = Packet {
            source: source.to_owned(),
            label: hex(label),
            option: option.replace(':', ""),
            class: hex(class),
            data_bytes: bytes.parse().unwrap(),
        };
        streams.entry((stream.to_owned(), packet.source.clone())).or_default().push(packet);
    }
    let is_much =
        |packets: &Vec<Packet>| packets.iter().map(|one| one.data_bytes).sum::<u64>() > 100_000;
    streams.into_values().filter(is_much).flatten().collect()
}

/// Asserts that every packet carries the option and segments leave room for it.
#[track_caller]
fn assert_option(packets: &[Packet], source: &str) {
    let from: Vec<_> = packets.iter().filter(|one| one.source == source).collect();
    assert!(from.len() > 20, "{} packets", from.len());
    let options: BTreeSet<_> = from.iter().map(|one| one.option.as_str()).collect();
    assert_eq!(options, BTreeSet::from([CMS_OPTION]));
    // Of 1500: the headers of IPv6 and TCP, its timestamps, and the option.
    let longest = from.iter().map(|one| one.data_bytes).max();
    assert_eq!(longest, Some(1500 - 40 - 20 - 12 - 8));
    // ECT(0), which TCP leaves off what it sends again (RFC 3168, 6.1.5).
    assert!(from.iter().all(|one| one.class == 2 || one.class == 0));
    assert!(from.iter().filter(|one| one.class == 2).count() > from.len() * 9 / 10);
}

/// Asserts that every packet carries the flow label and no option; returns the labels.
#[track_caller]
fn assert_label(packets: &[Packet], source: &str) -> BTreeSet<u32> {
    let from: Vec<_> = packets.iter().filter(|one| one.source == source).collect();
    assert!(from.len() > 20, "{} packets", from.len());
    assert!(from.iter().all(|one| one.option.is_empty()));
    let labels: BTreeSet<_> = from.iter().map(|one| one.label).collect();
    assert!(
        labels.iter().all(|label| label & LABEL_PAYLOAD_MASK == CMS_ANALYSIS_INPUT),
        "{labels:x?}"
    );
    labels
}

#[track_caller]
fn assert_note(done: &Value, label: &str, words: &[&str]) {
    assert_eq!(done["label"], label, "{done}");
    let note = done["label_note"].as_str().unwrap_or_default();
    assert!(words.iter().all(|word| note.contains(word)) && !note.contains('\n'), "{done}");
}

#[test]
fn push_packets_carry_flow_label() {
    let Some(site) = Site::new(92) else { return };
    let (done, packets) = site.capture(|| site.push(&[], "flow"));
    assert_note(&done.json, "flow", &[]);
    assert_same(&site.data, &site.env.root.join("data"));
    let labels = assert_label(&packets, NEAR);
    assert!(labels.len() > 1, "streams differ in the bits that spread them: {labels:x?}");
}

#[test]
fn connecting_sender_adds_destination_option() {
    let Some(site) = Site::new(93) else { return };
    // Segments as on the wire, and ECN on.
    site.pair.on_both(|device| format!("ethtool -K {device} tso off gso off gro off"));
    site.pair.on_both(|_| "sysctl -q -w net.ipv4.tcp_ecn=1".to_owned());
    let (done, packets) = site.capture(|| site.push(&[], "destination"));
    assert_note(&done.json, "destination", &[]);
    assert_same(&site.data, &site.env.root.join("data"));
    assert_option(&packets, NEAR);
    let listener = Listener::start(&site.pair);
    let (done, packets) = site.capture(|| listener.test(&[], &["--label", "destination"]));
    assert_note(&done.json["flows"][0], "destination", &[]);
    assert_option(&packets, NEAR);
    // Between two agents the source's agent connects.
    let source = TestEnv::new();
    let mut serve = source.penstock();
    serve.args(["serve", "--http", "none", "--json", "--listen"]).arg(format!("[{NEAR}]:0"));
    serve.arg("--root").arg(&site.env.source);
    let near = Agent::spawn(NamespacePair::inside(&site.pair.near, &serve));
    site.login(&near, &source);
    fs::remove_dir_all(site.env.root.join("data")).unwrap();
    let (done, packets) =
        site.capture(|| site.copy(&[], "destination", &near.url("data"), &site.agent.url("")));
    assert_note(&done.json, "destination", &[]);
    assert_same(&site.data, &site.env.root.join("data"));
    assert_option(&packets, NEAR);
}

#[test]
fn accepting_sender_omits_option_with_reason() {
    let Some(site) = Site::new(95) else { return };
    site.push(&[], "none");
    let why = ["no destination option: Linux makes no room", "no flow label", "tag run"];
    assert_note(&site.pull("destination").json, "none", &why);
    let listener = Listener::start(&site.pair);
    let done = listener.test(&[], &["--label", "destination", "--bidir"]);
    let flows = done.json["flows"].as_array().unwrap();
    assert_note(&flows[0], "destination", &[]);
    assert_note(&flows[1], "none", &why);
}

#[test]
fn unsafe_option_falls_back_to_label() {
    let Some(site) = Site::new(94) else { return };
    let without = ["setpriv", "--bounding-set", "-net_raw"];
    let (done, packets) = site.capture(|| site.push(&without, "destination"));
    let instead = "flow label instead of destination option: ";
    assert_note(&done.json, "flow", &[instead, "CAP_NET_RAW"]);
    assert_label(&packets, NEAR);
    let listener = Listener::start(&site.pair);
    let done = listener.test(&without, &["--label", "destination"]);
    assert_note(&done.json["flows"][0], "flow", &[instead, "CAP_NET_RAW"]);

    assert!(ip(&format!("-n {} link set pst0 gso_max_size 100000", site.pair.near)));
    let (done, packets) = site.capture(|| site.push(&[], "destination"));
    assert_note(&done.json, "flow", &[instead, "BIG TCP is on at pst0 (gso_max_size 100000)"]);
    assert_label(&packets, NEAR);
    // Without a label there is no other note.
    let done = listener.test(&[], &["--label", "none"]);
    assert_note(&done.json["flows"][0], "none", &["asked for"]);
}

/// A `nettest --listen` in the far namespace.
struct Listener<'a> {
    child: Child,
    address: String,
    pair: &'a NamespacePair,
}

impl<'a> Listener<'a> {
    fn start(pair: &'a NamespacePair) -> Self {
        let mut command = Command::new(crate::common::PENSTOCK);
        command.args(["nettest", "--json", "--listen"]).arg(format!("[{FAR}]:0"));
        let mut command = NamespacePair::inside(&pair.far, &command);
        let command = command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let facts: Value = serde_json::from_str(&line).unwrap();
        Self { child, address: facts["listening"].as_str().unwrap().to_owned(), pair }
    }

    fn test(&self, through: &[&str], more: &[&str]) -> CommandOutcome {
        let mut command = Command::new(through.first().unwrap_or(&"env"));
        command.args(through.get(1..).unwrap_or_default()).arg(crate::common::PENSTOCK);
        command.args(["nettest", &self.address, "-J", "-n", "2MiB"]);
        command.args(["--scitag", "cms/analysis-input"]).args(more);
        run(NamespacePair::inside(&self.pair.near, &command)).good()
    }
}

impl Drop for Listener<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
