//! What an agent gives at most holds for all its transfers together, and who comes late waits and gets
//! its part.

mod common;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

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

#[test]
fn transfers_are_counted() {
    let house = House::new();
    let agent = Agent::start(&house.state, &house.root, "127.0.0.1:0", &["--transfers", "2"]);
    let files = files(&house, 3, 1 << 20);
    let slow = ["--rate", "4M", "--block", "64KiB"];
    let first: Vec<_> = files[..2].iter().map(|file| start(&house, &agent, file, &slow)).collect();
    until("both run", Duration::from_secs(20), || {
        let transfers = agent.transfers(&house.state);
        (transfers.iter().filter(|one| one["state"] == "running").count() == 2).then_some(())
    });
    let third = start(&house, &agent, &files[2], &[]).wait().good();
    assert!(third.error.contains("2 transfers are running, which is the limit"), "{third:?}");
    first.into_iter().for_each(|one| drop(one.wait().good()));
    assert_same(&house.source, &house.root);
}

/// Two transfers have one rate between them, which is listed when they have ended.
#[test]
fn the_rate_is_for_all_transfers_together() {
    let house = House::new();
    let agent = Agent::start(&house.state, &house.root, "127.0.0.1:0", &["--rate", "16M"]);
    let files = files(&house, 2, 2 << 20);
    let begun = Instant::now();
    let both: Vec<_> =
        files.iter().map(|file| start(&house, &agent, file, &["--block", "64KiB"])).collect();
    both.into_iter().for_each(|one| drop(one.wait().good()));
    // 4 MiB at 16 Mb/s are 2.1 s.
    assert!(begun.elapsed() > Duration::from_millis(1900), "{:?}", begun.elapsed());
    let ended = agent.transfers(&house.state);
    assert_eq!(ended.len(), 2, "{ended:?}");
    for one in &ended {
        let rate = one["bits_per_second"].as_u64().unwrap();
        assert!((1_000_000..17_000_000).contains(&rate), "{one}");
        assert_eq!(one["bound_by"], "rate limit", "{one}");
    }
    // Where nothing moves there is neither.
    start(&house, &agent, &files[0], &[]).wait().good();
    let last = agent.transfers(&house.state).pop().unwrap();
    assert_eq!((&last["bits_per_second"], &last["bound_by"]), (&0.into(), &"-".into()), "{last}");
}

/// A file of 1 MiB is in the journal while it is copied, a smaller one is not.
#[test]
fn files_from_one_mebibyte_on_are_journalled() {
    let house = House::new();
    let agent = house.agent();
    let mut random = Random::seeded(62);
    write_file(&mut random, &house.source.join("at-the-limit"), 1 << 20);
    write_file(&mut random, &house.source.join("below-the-limit"), (1 << 20) - 1);
    let mut copy = house.cp(&["-r", "--rate", "8M", "--block", "64KiB"]);
    let mut copy = Run::start(copy.arg(house.source.join(".")).arg(agent.url("")));
    let mut seen = Vec::new();
    while !copy.is_over() {
        let journals = fs::read_dir(house.state.join("transfers")).into_iter().flatten();
        for journal in journals.flatten().map(|entry| entry.path()) {
            if journal.extension().is_some_and(|kind| kind == "journal") {
                // It may be gone by now.
                seen.extend(fs::read(journal).unwrap_or_default());
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    copy.wait().good();
    let seen = String::from_utf8_lossy(&seen);
    assert!(seen.contains("at-the-limit") && !seen.contains("below-the-limit"));
}

#[test]
fn blocks_and_memory_have_their_limits() {
    let house = House::new();
    let file = &files(&house, 1, 3 << 20)[0];
    let to = house.path("to");
    let copy = |options: &[&str]| run(house.cp(options).arg(file).arg(&to));
    for block in ["32KiB", "3MiB", "128MiB"] {
        let done = copy(&["--block", block, "--memory", "1GiB"]);
        assert_eq!((done.code, done.lines().len()), (2, 1), "{done:?}");
        assert!(done.error.contains("power of two from 64KiB to 64MiB"), "{done:?}");
    }
    let done = copy(&["--block", "4MiB", "--memory", "15MiB"]);
    assert_eq!((done.code, done.lines().len()), (2, 1), "{done:?}");
    assert!(done.error.contains("fewer than four blocks"), "{done:?}");
    for block in ["64KiB", "64MiB"] {
        copy(&["--block", block, "--memory", "256MiB"]).good();
        assert_eq!(fs::read(file).unwrap(), fs::read(&to).unwrap());
        fs::remove_file(&to).unwrap();
    }
}

/// An agent that is told to end gives its transfers time, and its successor need not wait for that.
#[test]
fn a_restart_may_overlap_the_end_of_the_former() {
    let house = House::new();
    let mut former = house.agent();
    let files = files(&house, 1, 2 << 20);
    let slow = ["--rate", "4M", "--block", "64KiB"];
    let copy = start(&house, &former, &files[0], &slow);
    until("it runs", Duration::from_secs(20), || {
        (!former.transfers(&house.state).is_empty()).then_some(())
    });
    let pid = former.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    let next = house.agent();
    assert!(former.child.try_wait().unwrap().is_none(), "it was to have 10 s for its transfer");
    copy.wait().good();
    assert_same(&house.source, &house.root);
    assert_eq!(former.child.wait().unwrap().code(), Some(0));
    assert!(next.transfers(&house.state).is_empty());
}

#[test]
fn a_client_gives_up_in_the_time_it_was_given() {
    let house = House::new();
    let mut agent = house.agent();
    let files = files(&house, 1, 4 << 20);
    let options = ["--rate", "4M", "--block", "64KiB", "--give-up-after", "1s"];
    let copy = start(&house, &agent, &files[0], &options);
    until("it runs", Duration::from_secs(20), || {
        let transfers = agent.transfers(&house.state);
        transfers.iter().any(|one| one["moved_bytes"].as_u64() > Some(0)).then_some(())
    });
    agent.kill();
    let begun = Instant::now();
    let done = copy.wait();
    assert_eq!((done.code, done.lines().len()), (1, 1), "{done:?}");
    assert!(done.error.contains("cannot reach"), "{done:?}");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}
