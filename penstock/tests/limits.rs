//! Limits of an agent apply to the sum of its transfers; a later transfer waits and gets its share.

mod common;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{
    Agent, RunningCommand, TestEnv, assert_no_leftovers, assert_same, run, seeded, wait_until,
    write_file,
};

/// Files of `bytes`, each in a directory of its own so that the copies are different commands.
fn files(env: &TestEnv, count: usize, bytes: usize) -> Vec<PathBuf> {
    let mut random = seeded(61);
    let write = |number| {
        let path = env.source.join(format!("file{number}"));
        write_file(&mut random, &path, bytes);
        path
    };
    (0..count).map(write).collect()
}

fn start(env: &TestEnv, agent: &Agent, file: &PathBuf, more: &[&str]) -> RunningCommand {
    RunningCommand::start(env.cp(more).arg(file).arg(agent.url("")))
}

#[test]
fn memory_limit_spans_all_transfers() {
    let env = TestEnv::new();
    let agent = Agent::start(&env.state, &env.root, "127.0.0.1:0", &["--memory", "16MiB"]);
    let files = files(&env, 2, 9 << 20);
    // The pool has four blocks of 4 MiB.
    let first = start(&env, &agent, &files[0], &["--rate", "12M"]);
    wait_until("the first runs", Duration::from_secs(20), || {
        (!agent.transfers(&env.state).is_empty()).then_some(())
    });
    let second = start(&env, &agent, &files[1], &[]).wait().good();
    assert!(second.error.contains("penstock: waiting: "), "{second:?}");
    assert!(second.error.contains("memory for blocks (16.0 MiB) is all in use"), "{second:?}");
    first.wait().good();
    assert_same(&env.source, &env.root);
    assert_no_leftovers(&env.root, &env.state);

    let done = run(env.cp(&["--block", "8MiB"]).arg(&files[0]).arg(agent.url("x")));
    assert_eq!((done.code, done.lines().len()), (1, 1), "{done:?}");
    assert!(done.error.contains("use a smaller --block"), "{done:?}");
}

#[test]
fn stream_limit_spans_all_transfers() {
    let env = TestEnv::new();
    let agent = Agent::start(&env.state, &env.root, "127.0.0.1:0", &["--streams", "4"]);
    let files = files(&env, 3, 8 << 20);
    // 34 s for each.
    let options = ["--rate", "2M", "--streams", "4", "--block", "64KiB"];
    let streams = || -> Vec<u64> {
        let running = agent.transfers(&env.state);
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
        clients.push(start(&env, &agent, file, &options));
        wait_until("each has its part", Duration::from_secs(20), || {
            let mut now = streams();
            now.sort_unstable();
            (now == wanted).then_some(())
        });
    }
    for one in agent.transfers(&env.state) {
        let mut set = env.penstock();
        set.args(["transfers", "set", &one["id"].to_string(), "--rate", "none"]);
        run(set.args(["--http", &agent.http])).good();
    }
    for client in clients {
        client.wait().good();
    }
    assert_same(&env.source, &env.root);
    assert_no_leftovers(&env.root, &env.state);
}

#[test]
fn transfers_are_counted() {
    let env = TestEnv::new();
    let agent = Agent::start(&env.state, &env.root, "127.0.0.1:0", &["--transfers", "2"]);
    let files = files(&env, 3, 4 << 20);
    let slow = ["--rate", "4M", "--block", "64KiB"];
    let first: Vec<_> = files[..2].iter().map(|file| start(&env, &agent, file, &slow)).collect();
    wait_until("both run", Duration::from_secs(20), || {
        let transfers = agent.transfers(&env.state);
        (transfers.iter().filter(|one| one["state"] == "running").count() == 2).then_some(())
    });
    let third = start(&env, &agent, &files[2], &[]).wait().good();
    assert!(third.error.contains("2 transfers are running, which is the limit"), "{third:?}");
    first.into_iter().for_each(|one| drop(one.wait().good()));
    assert_same(&env.source, &env.root);
}

/// Two transfers share one rate; ended transfers are listed with their mean rate.
#[test]
fn rate_limit_spans_all_transfers() {
    let env = TestEnv::new();
    let agent = Agent::start(&env.state, &env.root, "127.0.0.1:0", &["--rate", "16M"]);
    let files = files(&env, 2, 2 << 20);
    let begun = Instant::now();
    let both: Vec<_> =
        files.iter().map(|file| start(&env, &agent, file, &["--block", "64KiB"])).collect();
    both.into_iter().for_each(|one| drop(one.wait().good()));
    // 4 MiB at 16 Mb/s are 2.1 s.
    assert!(begun.elapsed() > Duration::from_millis(1900), "{:?}", begun.elapsed());
    let ended = agent.ended_transfers(&env.state);
    assert_eq!(ended.len(), 2, "{ended:?}");
    for one in &ended {
        let rate = one["bits_per_second"].as_u64().unwrap();
        assert!((1_000_000..17_000_000).contains(&rate), "{one}");
        assert_eq!(one["bound_by"], "rate limit", "{one}");
    }
    // A transfer that moves no bytes has neither rate nor bottleneck.
    start(&env, &agent, &files[0], &[]).wait().good();
    let last = agent.ended_transfers(&env.state).pop().unwrap();
    assert_eq!((&last["bits_per_second"], &last["bound_by"]), (&0.into(), &"-".into()), "{last}");
}

/// A file of 1 MiB is in the journal while it is copied, a smaller one is not.
#[test]
fn files_from_1_mib_are_journalled() {
    let env = TestEnv::new();
    let agent = env.agent();
    let mut random = seeded(62);
    write_file(&mut random, &env.source.join("at-the-limit"), 1 << 20);
    write_file(&mut random, &env.source.join("below-the-limit"), (1 << 20) - 1);
    let mut copy = env.cp(&["-r", "--rate", "8M", "--block", "64KiB"]);
    let mut copy = RunningCommand::start(copy.arg(env.source.join(".")).arg(agent.url("")));
    let mut seen = Vec::new();
    while !copy.is_over() {
        let journals = fs::read_dir(env.state.join("transfers")).into_iter().flatten();
        for journal in journals.flatten().map(|entry| entry.path()) {
            if journal.extension().is_some_and(|kind| kind == "journal") {
                // The journal may have been removed by now.
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
    let env = TestEnv::new();
    let file = &files(&env, 1, 3 << 20)[0];
    let to = env.path("to");
    let copy = |options: &[&str]| run(env.cp(options).arg(file).arg(&to));
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

/// After SIGTERM an agent gives its transfers 10 s; its successor can start meanwhile.
#[test]
fn restart_may_overlap_predecessors_shutdown() {
    let env = TestEnv::new();
    let mut former = env.agent();
    let files = files(&env, 1, 2 << 20);
    let slow = ["--rate", "4M", "--block", "64KiB"];
    let copy = start(&env, &former, &files[0], &slow);
    wait_until("it runs", Duration::from_secs(20), || {
        (!former.transfers(&env.state).is_empty()).then_some(())
    });
    let pid = former.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    let next = env.agent();
    assert!(former.child.try_wait().unwrap().is_none(), "it was to have 10 s for its transfer");
    copy.wait().good();
    assert_same(&env.source, &env.root);
    assert_eq!(former.child.wait().unwrap().code(), Some(0));
    assert!(next.transfers(&env.state).is_empty());
}

#[test]
fn client_gives_up_after_given_time() {
    let env = TestEnv::new();
    let mut agent = env.agent();
    let files = files(&env, 1, 4 << 20);
    let options = ["--rate", "4M", "--block", "64KiB", "--give-up-after", "1s"];
    let copy = start(&env, &agent, &files[0], &options);
    wait_until("it runs", Duration::from_secs(20), || {
        let transfers = agent.transfers(&env.state);
        transfers.iter().any(|one| one["moved_bytes"].as_u64() > Some(0)).then_some(())
    });
    agent.kill();
    let begun = Instant::now();
    let done = copy.wait();
    assert_eq!((done.code, done.lines().len()), (1, 1), "{done:?}");
    assert!(done.error.contains("cannot reach"), "{done:?}");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

/// At a low rate a block takes longer than the time after which a silent connection counts as dead.
#[test]
fn slow_block_keeps_its_stream() {
    let env = TestEnv::new();
    let file = env.source.join("file");
    write_file(&mut seeded(107), &file, 1_300_000);
    let agent = env.agent();
    // 17 s.
    let slow = ["--rate", "600K", "--streams", "1"];
    let done = run(env.cp(&slow).arg(&file).arg(agent.url(""))).good();
    assert_eq!((done.number("streams_lost"), done.number("blocks_repeated")), (0, 0), "{done:?}");
    assert_eq!(fs::read(&file).unwrap(), fs::read(env.root.join("file")).unwrap());
}
