//! `penstock transfers` with copies that have no agent: within this machine, and as the client of another.

mod common;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use common::{Done, House, Random, Run, assert_same, run, until, write_file};
use serde_json::Value;

fn transfers(house: &House, arguments: &[&str]) -> Done {
    run(house.penstock().arg("transfers").args(arguments))
}

fn slow(house: &House, file: &Path, to: &str) -> Run {
    let options = ["--rate", "4M", "--block", "64KiB", "--memory", "512KiB"];
    Run::start(house.cp(&options).arg(file).arg(to))
}

/// The copy that runs, once it has moved something.
fn copy(house: &House, client: &mut Run) -> Value {
    until("it is listed", Duration::from_secs(20), || {
        assert!(!client.is_over());
        let listed = transfers(house, &["--json"]);
        let one = listed.json["copies"].as_array()?.first()?.clone();
        (one["moved_bytes"].as_u64() > Some(0)).then_some(one)
    })
}

#[test]
fn a_copy_is_listed_changed_and_cancelled() {
    let house = House::new();
    let file = house.source.join("file");
    write_file(&mut Random::seeded(91), &file, 12 << 20);
    let agent = house.agent();
    let local = house.path("local");
    fs::create_dir(&local).unwrap();
    for (to, root, is_local) in
        [(local.to_str().unwrap().to_owned(), &local, true), (agent.url(""), &house.root, false)]
    {
        let mut client = slow(&house, &file, &to);
        let one = copy(&house, &mut client);
        let process = client.child.id();
        assert_eq!(one["id"], format!("cp{process}"), "{one}");
        assert_eq!(one["rate_bps"], 4_000_000, "{one}");
        assert!(one["path"].as_str().unwrap().ends_with(&to), "{one}");
        let id = format!("cp{process}");
        let cancelled = transfers(&house, &["cancel", &id]);
        assert_eq!(cancelled.code, 0, "{cancelled:?}");
        let done = client.wait();
        assert_eq!(done.code, 1, "{done:?}");
        assert!(done.error.contains("cancelled by penstock transfers"), "{done:?}");
        let gone = transfers(&house, &["set", &id, "--rate", "1G"]);
        assert!(gone.code == 1 && gone.error.contains("no copy cp"), "{gone:?}");

        let mut client = slow(&house, &file, &to);
        copy(&house, &mut client);
        let id = format!("cp{}", client.child.id());
        let streams = transfers(&house, &["set", &id, "--streams", "2"]);
        assert_eq!(streams.code == 0, !is_local, "{streams:?}");
        let begun = Instant::now();
        let set = transfers(&house, &["set", &id, "--rate", "none", "--json"]);
        assert!(set.code == 0 && set.json["rate_bps"].is_null(), "{set:?}");
        let done = client.wait().good();
        // At the first rate it would have taken 20 seconds.
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        assert!(done.number("resumed_bytes") > 0, "{done:?}");
        assert_same(&house.source, root);
    }
    assert_eq!(fs::read_dir(house.state.join("copies")).unwrap().count(), 0);
}

/// A copy that was killed leaves a socket, which is found to be nobody's.
#[test]
fn what_was_killed_is_not_listed() {
    let house = House::new();
    let file = house.source.join("file");
    write_file(&mut Random::seeded(92), &file, 4 << 20);
    let to = house.path("local");
    let mut client = slow(&house, &file, to.to_str().unwrap());
    copy(&house, &mut client);
    // An agent that is asked and does not answer is a line beside them.
    let listed = transfers(&house, &["--json", "--http", "127.0.0.1:1"]);
    assert_eq!((listed.code, listed.lines().len()), (0, 1), "{listed:?}");
    assert!(listed.error.starts_with("penstock: warning: no token for 127.0.0.1:1"), "{listed:?}");
    assert_eq!(listed.json["copies"].as_array().map(Vec::len), Some(1), "{listed:?}");
    client.kill();
    let listed = transfers(&house, &[]);
    // No agent and no copies: what is wrong is that there is no agent.
    assert!(listed.code == 5 && listed.lines().len() == 1, "{listed:?}");
    assert_eq!(fs::read_dir(house.state.join("copies")).unwrap().count(), 0);
}
