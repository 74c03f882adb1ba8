//! Names in figures: AS numbers from a file, owners of flows, unregistered scitags, links between switches.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::common::{RunningCommand, wait_until};
use crate::site::{
    CONFIG, Collector, Exporter, Mark, POLL_TIMEOUT, command, packet, second_ended, taken, test_dir,
};

fn send(collector: &Collector, exporter: &mut Exporter, header: &[u8; 128], count: u32) {
    let socket = collector.socket("sflow");
    for datagram in exporter.samples(header, count) {
        socket.send(&datagram).unwrap();
    }
}

fn names(answer: &Value) -> Vec<&str> {
    let series = answer["series"].as_array().unwrap();
    series.iter().map(|line| line["name"].as_str().unwrap()).collect()
}

#[test]
fn as_file_is_reloaded_on_sighup() {
    let dir = test_dir();
    let file = dir.path().join("systems.txt");
    fs::write(&file, "2001:db8::/32 64500 Everyone\n2001:db8:1::/48 AS64501 University\n").unwrap();
    let config = CONFIG.replace("[collector]", "[collector]\nprefixes = \"systems.txt\"");
    let collector = Collector::start(dir.path(), &config);
    let mut exporter = Exporter::new(1, 1000);
    send(&collector, &mut exporter, &packet(1, 2, Mark::Label(3, 14), 3001), 50);
    taken(&collector, 50);
    second_ended(&collector);
    let path = "/api/v1/telemetry/series?by=as&from=-30";
    assert_eq!(names(&collector.get(path)), ["AS64501 University"]);
    assert_eq!(names(&collector.get(&format!("{path}&direction=in"))), ["AS64500 Everyone"]);
    // A host's prefix is that of its AS.
    let prefixes = collector.get("/api/v1/telemetry/series?by=prefix&from=-30");
    assert_eq!(prefixes["series"][0]["key"], "2001:db8:1::/48");

    let hang_up = || {
        let id = collector.agent.child.id().to_string();
        assert!(Command::new("kill").args(["-HUP", &id]).status().unwrap().success());
    };
    // An invalid file changes nothing; the next valid one does.
    fs::write(&file, "2001:db8::/32 64500 Nobody\nnonsense\n").unwrap();
    hang_up();
    fs::write(&file, "2001:db8::/32 64502 Somebody\n").unwrap();
    wait_until("the newer file counts", POLL_TIMEOUT, || {
        hang_up();
        send(&collector, &mut exporter, &packet(1, 2, Mark::None, 3001), 5);
        second_ended(&collector);
        names(&collector.get(path)).contains(&"AS64502 Somebody").then_some(())
    });
    let all = collector.get(path);
    assert!(!names(&all).iter().any(|name| name.contains("Nobody")), "{all}");
    drop(collector);

    for (text, wanted) in [
        ("::/0 1\nnonsense\n", "systems.txt:2: 'nonsense' is no prefix"),
        ("192.0.2.0/24 x\n", "systems.txt:1: 'x' is no AS number"),
    ] {
        fs::write(&file, text).unwrap();
        let done = RunningCommand::start(&mut command(dir.path(), &config)).wait();
        assert!(done.error.contains(wanted) && done.error.lines().count() == 1, "{}", done.error);
    }
    fs::remove_file(&file).unwrap();
    let done = RunningCommand::start(&mut command(dir.path(), &config)).wait();
    assert!(done.error.contains("systems.txt: No such file"), "{}", done.error);
}

/// A packet with a scitag in its Destination Options header.
fn option(owner: u16, activity: u8) -> [u8; 128] {
    let mut bytes = packet(2, 1, Mark::None, 1).to_vec();
    let (network, transport) = (18, 18 + 40);
    bytes[network + 6] = 60;
    let mark = (u32::from(owner) << 8 | u32::from(activity)).to_be_bytes();
    let header = [6, 0, 0x1E, 3, mark[1], mark[2], mark[3], 0];
    bytes.splice(transport..transport, header);
    bytes.truncate(128);
    bytes.try_into().unwrap()
}

#[test]
fn talkers_show_registered_and_unknown_labels() {
    let dir = test_dir();
    let collector = Collector::start(dir.path(), CONFIG);
    let mut exporter = Exporter::new(1, 1000);
    send(&collector, &mut exporter, &packet(1, 2, Mark::Label(3, 14), 3001), 60);
    send(&collector, &mut exporter, &option(500, 61), 30);
    send(&collector, &mut exporter, &packet(2, 3, Mark::None, 3001), 10);
    taken(&collector, 100);
    second_ended(&collector);
    let talkers = collector.get("/api/v1/telemetry/talkers");
    let named: Vec<_> = talkers["talkers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| {
            (one["label"].as_str().unwrap(), one["scitag"].as_u64(), one["activity"].as_str())
        })
        .collect();
    assert_eq!(
        named,
        [
            ("labelled", Some(206), Some("cms/analysis-input")),
            ("untrusted", Some(500 << 6 | 61), Some("500/61")),
            ("unlabelled", None, None),
        ]
    );
    let labels = collector.get("/api/v1/telemetry/labels?from=-30");
    let unknown = labels["unknown"].as_array().unwrap();
    assert_eq!(unknown.len(), 1, "{labels}");
    assert_eq!((&unknown[0]["owner"], &unknown[0]["activity"]), (&500.into(), &61.into()));
    let share = unknown[0]["bps"].as_f64().unwrap() / labels["untrusted"]["bps"].as_f64().unwrap();
    assert!((share - 1.0).abs() < 0.01, "{labels}");
    assert!(unknown[0]["error_bps"].as_f64() > Some(0.0));
}

const NETWORK: &str = "
name = \"two\"
[[site]]
name = \"a\"
[[switch]]
name = \"left\"
site = \"a\"
[[switch]]
name = \"right\"
site = \"a\"
[[link]]
ends = [\"left\", \"right\"]
name = \"trunk\"
rate = \"400G\"
[[link]]
ends = [\"left\", \"right\"]
name = \"other\"
rate = \"100G\"
";

#[test]
fn link_series_from_one_ends_counters() {
    let dir = test_dir();
    fs::write(dir.path().join("network.toml"), NETWORK).unwrap();
    let with = |name: &str, links: &str| {
        CONFIG
            .replace("[collector]", "[collector]\ntopology = \"network.toml\"")
            .replace("name = \"dtn1\"", &format!("name = \"{name}\"\nlinks = {links}"))
    };
    let collector = Collector::start(dir.path(), &with("left", "{ 1 = \"trunk\" }"));
    let socket = collector.socket("sflow");
    let mut exporter = Exporter::new(1, 1000);
    // Counters one second apart by the exporter's clock: 40 Gb/s into interface 1.
    socket.send(&exporter.counters(1_000, 0)).unwrap();
    socket.send(&exporter.counters(2_000, 5_000_000_000)).unwrap();
    let links = collector.until("/api/v1/telemetry/links", |links| {
        links["links"][0]["b_to_a"]["bps"].is_f64().then(|| links.clone())
    });
    let trunk = &links["links"][0];
    assert_eq!(trunk["name"], "trunk");
    assert_eq!(trunk["b_to_a"]["bps"], 40e9);
    assert_eq!(
        (&trunk["b_to_a"]["from"], &trunk["b_to_a"]["share"]),
        (&"counters".into(), &0.1.into())
    );
    assert_eq!(trunk["a_to_b"]["bps"], 0.0);
    assert_eq!(links["links"][1]["a_to_b"]["bps"], Value::Null);
    drop(collector);
    for (config, wanted) in [
        (with("left", "{ 1 = \"none\" }"), "the topology has no link 'none'"),
        (with("middle", "{ 1 = \"trunk\" }"), "'trunk' does not end at 'middle'"),
    ] {
        let done = RunningCommand::start(&mut command(dir.path(), &config)).wait();
        assert!(done.error.contains(wanted) && done.error.lines().count() == 1, "{}", done.error);
    }
}
