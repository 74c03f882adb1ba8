//! `penstock transfers` with copies without a local agent: local ones, and clients of a remote agent.

mod common;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use common::{
    CommandOutcome, RunningCommand, TestEnv, assert_same, run, seeded, wait_until, write_file,
};
use serde_json::Value;

fn transfers(env: &TestEnv, arguments: &[&str]) -> CommandOutcome {
    run(env.penstock().arg("transfers").args(arguments))
}

fn slow(env: &TestEnv, file: &Path, to: &str) -> RunningCommand {
    let options = ["--rate", "4M", "--block", "64KiB", "--memory", "512KiB"];
    RunningCommand::start(env.cp(&options).arg(file).arg(to))
}

/// Waits until the running copy has moved bytes, and returns it.
fn copy(env: &TestEnv, client: &mut RunningCommand) -> Value {
    wait_until("it is listed", Duration::from_secs(20), || {
        assert!(!client.is_over());
        let listed = transfers(env, &["--json"]);
        let one = listed.json["copies"].as_array()?.first()?.clone();
        (one["moved_bytes"].as_u64() > Some(0)).then_some(one)
    })
}

#[test]
fn copy_is_listed_changed_and_cancelled() {
    let env = TestEnv::new();
    let file = env.source.join("file");
    write_file(&mut seeded(91), &file, 12 << 20);
    let agent = env.agent();
    let local = env.path("local");
    fs::create_dir(&local).unwrap();
    for (to, root, is_local) in
        [(local.to_str().unwrap().to_owned(), &local, true), (agent.url(""), &env.root, false)]
    {
        let mut client = slow(&env, &file, &to);
        let one = copy(&env, &mut client);
        let process = client.child.id();
        assert_eq!(one["id"], format!("cp{process}"), "{one}");
        assert_eq!(one["rate_bps"], 4_000_000, "{one}");
        assert!(one["path"].as_str().unwrap().ends_with(&to), "{one}");
        let id = format!("cp{process}");
        let cancelled = transfers(&env, &["cancel", &id]);
        assert_eq!(cancelled.code, 0, "{cancelled:?}");
        let done = client.wait();
        assert_eq!(done.code, 1, "{done:?}");
        assert!(done.error.contains("cancelled by penstock transfers"), "{done:?}");
        let gone = transfers(&env, &["set", &id, "--rate", "1G"]);
        assert!(gone.code == 1 && gone.error.contains("no copy cp"), "{gone:?}");

        let mut client = slow(&env, &file, &to);
        copy(&env, &mut client);
        let id = format!("cp{}", client.child.id());
        let streams = transfers(&env, &["set", &id, "--streams", "2"]);
        assert_eq!(streams.code == 0, !is_local, "{streams:?}");
        let begun = Instant::now();
        let set = transfers(&env, &["set", &id, "--rate", "none", "--json"]);
        assert!(set.code == 0 && set.json["rate_bps"].is_null(), "{set:?}");
        let done = client.wait().good();
        // At the first rate it would have taken 20 seconds.
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        assert!(done.number("resumed_bytes") > 0, "{done:?}");
        assert_same(&env.source, root);
    }
    assert_eq!(fs::read_dir(env.state.join("copies")).unwrap().count(), 0);
}

/// A killed copy leaves its control socket, which is recognised as stale.
#[test]
fn killed_copy_is_not_listed() {
    let env = TestEnv::new();
    let file = env.source.join("file");
    write_file(&mut seeded(92), &file, 4 << 20);
    let to = env.path("local");
    let mut client = slow(&env, &file, to.to_str().unwrap());
    copy(&env, &mut client);
    // An unreachable agent adds one line to the listed copies.
    let listed = transfers(&env, &["--json", "--http", "127.0.0.1:1"]);
    assert_eq!((listed.code, listed.lines().len()), (0, 1), "{listed:?}");
    assert!(listed.error.starts_with("penstock: warning: no token for 127.0.0.1:1"), "{listed:?}");
    assert_eq!(listed.json["copies"].as_array().map(Vec::len), Some(1), "{listed:?}");
    client.kill();
    let listed = transfers(&env, &[]);
    // Without copies the missing agent is the error.
    assert!(listed.code == 5 && listed.lines().len() == 1, "{listed:?}");
    assert_eq!(fs::read_dir(env.state.join("copies")).unwrap().count(), 0);
}
