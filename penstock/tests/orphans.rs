//! Orphaned partial files of abandoned transfers: their own agent removes them, and nothing else.

mod common;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use common::{
    Agent, RunningCommand, TestEnv, assert_no_leftovers, assert_same, parts, seeded, wait_until,
    write_tree,
};

fn start(env: &TestEnv, agent: &Agent) -> RunningCommand {
    let options = ["-r", "--rate", "12M", "--block", "64KiB", "--memory", "512KiB"];
    RunningCommand::start(env.cp(&options).arg(env.source.join("data")).arg(agent.url("")))
}

/// Kills a copy and its agent half way. Returns the agent's address and a file named like a partial small file of the
/// copy.
fn died(env: &TestEnv) -> (String, PathBuf) {
    let mut agent = env.restartable_agent();
    write_tree(&mut seeded(71), &env.source.join("data"), 3, 40);
    let client = start(env, &agent);
    wait_until("the middle", Duration::from_secs(20), || {
        let running = agent.transfers(&env.state);
        let moved = running.first()?["moved_bytes"].as_u64()?;
        (moved > 2 << 20 && env.root.join("data/deep/small1").exists()).then_some(())
    });
    agent.kill();
    client.kill();
    // Names of partial small files contain the second half of the journal's name.
    let journals = fs::read_dir(env.state.join("transfers")).unwrap();
    let journal = journals
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .find(|name| name.ends_with(".journal"))
        .unwrap();
    let command = &journal[16..32];
    let small = env.root.join(format!("data/deep/.penstock-{command}-00112233445566778899.part"));
    fs::write(&small, "half of it").unwrap();
    (agent.listen.clone(), small)
}

#[test]
fn retention_removes_abandoned_files_only() {
    let env = TestEnv::new();
    let (_, small) = died(&env);
    let foreign = [
        env.root.join("data/deep/.penstock-0123456789abcdef-00112233445566778899.part"),
        env.root.join("data/deep/notes.part"),
    ];
    foreign.iter().for_each(|path| fs::write(path, "not its own").unwrap());
    let names = || fs::read_dir(env.root.join("data/deep")).unwrap().count();
    let before = names();
    let _agent = Agent::start(&env.state, &env.root, "127.0.0.1:0", &["--keep-unfinished", "1s"]);
    wait_until("it is removed", Duration::from_secs(20), || {
        fs::read_dir(env.state.join("transfers")).unwrap().next().is_none().then_some(())
    });
    assert_eq!(parts(&env.root), [foreign[0].strip_prefix(&env.root).unwrap()]);
    assert!(!small.exists() && foreign[1].exists());
    assert_eq!(names(), before - 1);
}

/// The repeated command resumes and leaves no partial files of either run.
#[test]
fn rerun_reuses_its_partial_files() {
    let env = TestEnv::new();
    let (listen, small) = died(&env);
    let agent = Agent::start(&env.state, &env.root, &listen, &[]);
    let done = start(&env, &agent).wait().good();
    assert!(done.number("resumed_bytes") > 0, "{done:?}");
    assert!(!small.exists());
    assert_same(&env.source, &env.root);
    assert_no_leftovers(&env.root, &env.state);
}
