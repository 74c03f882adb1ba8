//! `--cpu` and `--numa`: CPU affinity of the threads of a copy, as the kernel reports it.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use common::{Agent, RunningCommand, TestEnv, seeded, wait_until, write_file};

/// `0-3,8` as numbers.
fn numbers(list: &str) -> BTreeSet<u32> {
    list.trim()
        .split(',')
        .flat_map(|part| {
            let (low, high) = part.split_once('-').unwrap_or((part, part));
            low.parse::<u32>().unwrap()..=high.parse().unwrap()
        })
        .collect()
}

/// `Cpus_allowed_list` of a `/proc` status file.
fn allowed(status: &str) -> BTreeSet<u32> {
    numbers(status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap())
}

/// Name and processors of each thread of a process.
fn threads(process: u32) -> Vec<(String, BTreeSet<u32>)> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    // The thread may have ended meanwhile.
    let status =
        tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("status")).ok());
    status
        .map(|status| {
            let name = status.lines().next().unwrap().trim_start_matches("Name:").trim();
            (name.to_owned(), allowed(&status))
        })
        .collect()
}

#[test]
fn copy_threads_run_on_given_cpus() {
    let own = allowed(&fs::read_to_string("/proc/self/status").unwrap());
    let last = own.last().copied().unwrap();
    if own.len() < 2 {
        return penstock_testkit::skip(
            penstock_testkit::Requirement::Machine,
            "one processor leaves nothing to choose",
        );
    }
    let env = TestEnv::new();
    let agent = env.agent();
    let file = env.source.join("file");
    write_file(&mut seeded(81), &file, 8 << 20);
    let local = env.path("local");
    fs::create_dir(&local).unwrap();
    let mut cases = vec![(vec!["--cpu".to_owned(), last.to_string()], BTreeSet::from([last]))];
    if !std::path::Path::new("/sys/devices/system/node/node1").exists() {
        // On one NUMA node all processors are equally near to loopback and disk.
        for option in ["--numa", "--cpu"] {
            cases.push((vec![option.to_owned(), "auto".to_owned()], own.clone()));
        }
    }
    if let Ok(list) = fs::read_to_string("/sys/devices/system/node/node0/cpulist") {
        let node: BTreeSet<u32> = numbers(&list).intersection(&own).copied().collect();
        if !node.is_empty() {
            cases.push((vec!["--numa".to_owned(), "0".to_owned()], node));
        }
    }
    for (arguments, wanted) in cases {
        for to in [agent.url("remote/"), local.to_str().unwrap().to_owned()] {
            let options = ["--rate", "16M", "--block", "64KiB", "--memory", "512KiB"];
            let mut client =
                RunningCommand::start(env.cp(&options).args(&arguments).arg(&file).arg(&to));
            let found = wait_until("all kinds of threads", Duration::from_secs(20), || {
                assert!(!client.is_over());
                let threads = threads(client.child.id());
                let there = |name: &str| threads.iter().any(|(thread, _)| thread == name);
                (there("read") && there("stream")).then_some(threads)
            });
            for (name, processors) in &found {
                assert_eq!(processors, &wanted, "{arguments:?} to {to}: {name}");
            }
            client.kill();
        }
    }
}

#[test]
fn agent_threads_run_on_given_cpus() {
    let own = allowed(&fs::read_to_string("/proc/self/status").unwrap());
    let last = own.last().copied().unwrap();
    let env = TestEnv::new();
    let cpu = last.to_string();
    let agent = Agent::start(&env.state, &env.root, "127.0.0.1:0", &["--cpu", &cpu]);
    for (name, processors) in threads(agent.child.id()) {
        assert_eq!(processors, BTreeSet::from([last]), "{name}");
    }
}

#[test]
fn missing_processors_are_refused() {
    let env = TestEnv::new();
    for arguments in [["--cpu", "x"], ["--cpu", "4000"], ["--numa", "99"], ["--numa", "near"]] {
        let to = env.path("to");
        let done = common::run(env.cp(&arguments).arg("/etc/hostname").arg(&to));
        assert_eq!((done.code, done.lines().len()), (2, 1), "{arguments:?}: {done:?}");
        assert!(!to.exists());
        if arguments[0] == "--cpu" {
            let mut serve = env.penstock();
            serve.args(["serve", "--listen", "127.0.0.1:0", "--http", "none", "--root"]);
            let done = common::run(serve.arg(&env.root).args(arguments));
            let code = if arguments[1] == "x" { 2 } else { 1 };
            assert_eq!((done.code, done.lines().len()), (code, 1), "{arguments:?}: {done:?}");
            assert!(done.error.contains("processors: "), "{done:?}");
        }
    }
}
