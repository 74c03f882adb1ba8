//! What an agent gives at most holds for all its transfers together, and who comes late waits and gets
//! its part.

mod common;

use std::path::PathBuf;
use std::time::Duration;

use common::{Agent, House, Random, Run, assert_no_leftovers, assert_same, run, until, write_file};

/// Files of `bytes`, each in a directory of its own so that the copies are different commands.
fn files(house: &House, count: usize, bytes: usize) -> Vec<PathBuf> {
    let mut random = Random::seeded(61);
    let write = |number| {
        let path = house.source.join(format!("file{number}"));
        write_file(&mut random, &path, bytes);
        path
    };
    (0..count).map(write).collect()
}

fn start(house: &House, agent: &Agent, file: &PathBuf, more: &[&str]) -> Run {
    Run::start(house.cp(more).arg(file).arg(agent.url("")))
}

#[test]
fn memory_is_for_all_transfers_together() {
    let house = House::new();
    let agent = Agent::start(&house.state, &house.root, "127.0.0.1:0", &["--memory", "16MiB"]);
    let files = files(&house, 2, 9 << 20);
    // Four blocks of 4 MiB are all there is.
    let first = start(&house, &agent, &files[0], &["--rate", "24M"]);
    until("the first runs", Duration::from_secs(20), || {
        (!agent.transfers(&house.state).is_empty()).then_some(())
    });
    let second = start(&house, &agent, &files[1], &[]).wait().good();
    assert!(second.error.contains("penstock: waiting: "), "{second:?}");
    assert!(second.error.contains("memory for blocks (16.0 MiB) is all in use"), "{second:?}");
    first.wait().good();
    assert_same(&house.source, &house.root);
    assert_no_leftovers(&house.root, &house.state);

    let done = run(house.cp(&["--block", "8MiB"]).arg(&files[0]).arg(agent.url("x")));
    assert_eq!((done.code, done.lines().len()), (1, 1), "{done:?}");
    assert!(done.error.contains("use a smaller --block"), "{done:?}");
}

#[test]
fn streams_are_for_all_transfers_together() {
    let house = House::new();
    let agent = Agent::start(&house.state, &house.root, "127.0.0.1:0", &["--streams", "4"]);
    let files = files(&house, 3, 8 << 20);
    let options = ["--rate", "12M", "--streams", "4", "--block", "64KiB"];
    let streams = || -> Vec<u64> {
        let running = agent.transfers(&house.state);
        let streams: Vec<_> = running
            .iter()
            .filter(|one| one["state"] == "running")
            .map(|one| one["streams"].as_u64().unwrap())
            .collect();
        assert!(streams.iter().sum::<u64>() <= 4, "{streams:?}");
        streams
    };
    let mut clients = Vec::new();
    for (file, wanted) in files.iter().zip([&[4][..], &[2, 2], &[1, 1, 2]]) {
        clients.push(start(&house, &agent, file, &options));
        until("each has its part", Duration::from_secs(20), || {
            let mut now = streams();
            now.sort_unstable();
            (now == wanted).then_some(())
        });
    }
    for client in clients {
        client.wait().good();
    }
    assert_same(&house.source, &house.root);
    assert_no_leftovers(&house.root, &house.state);
}
