//! Fault injection: both ends are killed, connections are broken, bytes are changed in transit; the copies are whole.

mod common;

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use common::{
    Agent, FaultProxy, RunningCommand, TestEnv, assert_no_leftovers, assert_same, run, seeded,
    stop_and_continue, tree, wait_until, write_file, write_tree,
};

/// Bytes of committed files under `root`: same name, size and time as in `source`.
fn in_place(source: &Path, root: &Path) -> u64 {
    if !root.exists() {
        return 0;
    }
    let there = tree(root);
    let same = tree(source).into_iter().filter(|(path, thing)| there.get(path) == Some(thing));
    same.filter_map(|(path, _)| source.join(path).symlink_metadata().ok())
        .filter(std::fs::Metadata::is_file)
        .map(|meta| meta.len())
        .sum()
}

/// Copies one dataset through `kills` kills: of the client, of the agent (the client waits for its successor or is
/// killed too), of single sockets. A low rate keeps the copy running until the last kill.
fn survive(kills: u32, pull: bool, seed: u64) {
    let mut random = seeded(seed);
    let env = TestEnv::new();
    let data = if pull { env.root.join("data") } else { env.source.join("data") };
    let copies = if pull { env.path("copies") } else { env.root.clone() };
    if pull {
        std::fs::create_dir(&copies).unwrap();
    }
    std::fs::create_dir(&data).unwrap();
    let total = write_tree(&mut random, &data, 4, 400);
    let mut agent = env.restartable_agent();
    let proxy = FaultProxy::start(&agent.listen, random.fork(), 0, 1);
    let (from, to) = if pull {
        (proxy.url("data"), copies.to_str().unwrap().to_owned())
    } else {
        (data.to_str().unwrap().to_owned(), proxy.url(""))
    };
    let start = |rate: Option<&str>| {
        let mut command = env.cp(&["-r", "--block", "64KiB", "--streams", "3", &from, &to]);
        if let Some(rate) = rate {
            command.args(["--rate", rate]);
        }
        RunningCommand::start(&mut command)
    };
    let begun = Instant::now();
    let mut count = [0; 3];
    let mut client = start(Some("6M"));
    for _ in 0..kills {
        let moment = Instant::now() + Duration::from_millis(random.between(20, 350));
        while Instant::now() < moment {
            if client.is_over() {
                // A connection that breaks before the first answer ends the client at once, and the test runs the
                // command again. Nothing else may end it.
                let done = client.wait();
                assert_eq!((done.code, done.number("sessions")), (1, 0), "{count:?}: {done:?}");
                client = start(Some("6M"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let what = random.between(0, 3) as usize;
        count[what] += 1;
        match what {
            0 => {
                client.kill();
                client = start(Some("6M"));
            }
            1 => {
                agent.kill();
                let listen = agent.listen.clone();
                agent = Agent::start(&env.state, &env.root, &listen, &[]);
            }
            _ => {
                proxy.reset_one(&mut random);
            }
        }
    }
    // The last run must not send committed files again.
    client.kill();
    let there = in_place(&data, &copies.join("data"));
    let done = start(None).wait().good();
    println!(
        "{count:?} kills of client, agent, socket in {:?}; {} of {total} bytes were there",
        begun.elapsed(),
        done.number("resumed_bytes")
    );
    assert_same(&data, &copies.join("data"));
    assert_eq!(done.number("bytes"), total);
    assert!(done.number("resumed_bytes") * 100 >= there * 95, "{there}: {done:?}");
    assert_no_leftovers(&copies, &env.state);
}

/// Kills of each of these copies; every crash point of the receiver is in `mover::sink::simulation`.
const KILL_COUNT: u32 = 6;

#[test]
fn push_survives_kills() {
    survive(KILL_COUNT, false, 1);
}

#[test]
fn pull_survives_kills() {
    survive(KILL_COUNT, true, 2);
}

/// Before each kill `moved + resumed` of the agent are the bytes that it has written and journalled (or committed). The
/// next run of the command must resume at least 95 % of them (`resumed_bytes`). Client and agent are killed in turn.
#[test]
fn durable_bytes_are_not_resent() {
    let mut random = seeded(3);
    let env = TestEnv::new();
    let source = env.source.join("one");
    let bytes = 24 << 20;
    write_file(&mut random, &source, bytes);
    let mut agent = env.restartable_agent();
    let start = |agent: &Agent, rate: &str| {
        let source = source.to_str().unwrap();
        RunningCommand::start(&mut env.cp(&[
            "--block",
            "256KiB",
            "--rate",
            rate,
            source,
            &agent.url(""),
        ]))
    };
    let known = |agent: &Agent| {
        let transfers = agent.transfers(&env.state);
        let one = transfers.iter().find(|one| one["state"] == "running")?;
        Some((one["moved_bytes"].as_u64()?, one["resumed_bytes"].as_u64()?))
    };
    let mut before = 0;
    for kill in 1..5_u64 {
        let client = start(&agent, "32M");
        let share = kill * 18 + random.between(0, 10);
        let (moved, resumed) = wait_until("progress", Duration::from_secs(30), || {
            known(&agent).filter(|(moved, resumed)| (moved + resumed) * 100 >= share * bytes as u64)
        });
        println!("kill {kill}: {before} bytes known, {resumed} found again, {moved} moved since");
        assert!(resumed * 100 >= before * 95, "{resumed} of {before}");
        before = moved + resumed;
        if kill % 2 == 0 {
            client.kill();
        } else {
            agent.kill();
            client.kill();
            let listen = agent.listen.clone();
            agent = Agent::start(&env.state, &env.root, &listen, &[]);
        }
    }
    let done = start(&agent, "1G").wait().good();
    let resumed = done.number("resumed_bytes");
    println!("end: {before} bytes known, {resumed} found again");
    assert!(resumed * 100 >= before * 95, "{resumed} of {before}");
    assert!(
        done.number("network_bytes") * 100 <= (bytes as u64 - before) * 100 + 5 * before,
        "{done:?}"
    );
    assert_same(&env.source, &env.root);
    assert_no_leftovers(&env.root, &env.state);
}

/// Allocated bytes of the files below a directory, while some appear and vanish.
fn allocated(directory: &Path) -> u64 {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let bytes = |path: &Path| match path.symlink_metadata() {
        Ok(meta) if meta.is_dir() => allocated(path),
        Ok(meta) if meta.is_file() => meta.blocks() * 512,
        _ => 0,
    };
    entries.map(|entry| bytes(&entry.path())).sum()
}

/// The agent is killed twice; the result covers the whole command and counts each byte once.
fn totals_over_restarts(pull: bool, seed: u64) {
    let mut random = seeded(seed);
    let env = TestEnv::new();
    let data = if pull { env.root.join("data") } else { env.source.join("data") };
    let copies = if pull { env.path("copies") } else { env.root.clone() };
    if pull {
        std::fs::create_dir(&copies).unwrap();
    }
    std::fs::create_dir(&data).unwrap();
    let total = write_tree(&mut random, &data, 3, 200);
    let mut agent = env.restartable_agent();
    let sums = env.path("sums");
    let mut command = env.cp(&["-r", "--block", "64KiB", "--rate", "24M", "--checksum-file"]);
    command.arg(&sums);
    if pull {
        command.arg(agent.url("data")).arg(&copies);
    } else {
        command.arg(&data).arg(agent.url(""));
    }
    let mut client = RunningCommand::start(&mut command);
    for part in 1..3 {
        let share = part * random.between(26, 38);
        wait_until("progress", Duration::from_secs(30), || {
            assert!(!client.is_over(), "it ended too early");
            let running = agent.transfers(&env.state);
            let one = running.iter().find(|one| one["state"] == "running")?;
            let done = one["moved_bytes"].as_u64()? + one["resumed_bytes"].as_u64()?;
            (done * 100 >= share * total && allocated(&copies) >= part * total / 4).then_some(())
        });
        agent.kill();
        let listen = agent.listen.clone();
        agent = Agent::start(&env.state, &env.root, &listen, &[]);
    }
    let done = client.wait().good();
    assert_same(&data, &copies.join("data"));
    let files = tree(&data)
        .into_keys()
        .filter(|path| data.join(path).symlink_metadata().is_ok_and(|meta| meta.is_file()));
    let files = files.count() as u64;
    assert_eq!(done.number("sessions"), 3, "{done:?}");
    assert_eq!((done.number("bytes"), done.number("files")), (total, files), "{done:?}");
    assert_eq!(done.number("moved_bytes") + done.number("resumed_bytes"), total, "{done:?}");
    assert_eq!((done.number("resumed_bytes"), done.number("skipped_files")), (0, 0), "{done:?}");
    assert!(done.number("network_bytes") >= total, "{done:?}");
    assert_eq!(std::fs::read_to_string(&sums).unwrap().lines().count() as u64, files);
}

#[test]
fn push_totals_span_agent_restarts() {
    totals_over_restarts(false, 9);
}

#[test]
fn pull_totals_span_agent_restarts() {
    totals_over_restarts(true, 10);
}

/// Injects 40 faults in both directions: flipped bits, truncation, stalls, resets.
fn bad_network(protect: &str, pull: bool, seed: u64) {
    let mut random = seeded(seed);
    let env = TestEnv::new();
    let agent = env.agent();
    let proxy = FaultProxy::start(&agent.listen, random.fork(), 40, 300 << 10);
    let data = if pull { env.root.join("data") } else { env.source.join("data") };
    let copies = if pull { env.path("copies") } else { env.root.clone() };
    std::fs::create_dir(&data).unwrap();
    if pull {
        std::fs::create_dir(&copies).unwrap();
    }
    write_tree(&mut random, &data, 6, 300);
    let (from, to) = if pull {
        (proxy.url("data"), copies.to_str().unwrap().to_owned())
    } else {
        (data.to_str().unwrap().to_owned(), proxy.url(""))
    };
    let options = ["-r", "--protect", protect, "--block", "128KiB", "--streams", "4"];
    let mut command = env.cp(&options);
    let done = run(command.args(["--rate", "200M", &from, &to])).good();
    println!("{:?}; {}", proxy.done(), done.json);
    assert!(done.number("streams_lost") > 0, "{done:?}");
    assert!(proxy.done().len() > 5, "{:?}", proxy.done());
    assert_same(&data, &copies.join("data"));
    assert_no_leftovers(&copies, &env.state);
}

#[test]
fn network_faults_are_repaired_with_encryption() {
    bad_network("full", false, 4);
}

#[test]
fn network_faults_are_repaired_without_encryption() {
    bad_network("integrity", false, 5);
}

#[test]
fn network_faults_are_repaired_in_pulls() {
    bad_network("integrity", true, 6);
    bad_network("full", true, 7);
}

/// Twenty connections break one after another, control connections among them; the client continues its session.
#[test]
fn copy_survives_twenty_connection_losses() {
    let mut random = seeded(8);
    let env = TestEnv::new();
    let agent = env.agent();
    let proxy = FaultProxy::start(&agent.listen, random.fork(), 0, 1);
    write_file(&mut random, &env.source.join("one"), 20 << 20);
    let source = env.source.join("one");
    let options = ["--block", "128KiB", "--streams", "4", "--rate", "40M"];
    let mut command = env.cp(&options);
    let mut client = RunningCommand::start(command.arg(&source).arg(proxy.url("")));
    let mut next = 1 << 20;
    for _ in 0..20 {
        wait_until("bytes pass", Duration::from_secs(20), || {
            (client.is_over() || proxy.passed() >= next).then_some(())
        });
        if client.is_over() {
            panic!("it ended too early: {:?}", client.wait());
        }
        next = proxy.passed() + random.between(100 << 10, 700 << 10);
        wait_until("a connection", Duration::from_secs(20), || {
            proxy.reset_one(&mut random).then_some(())
        });
    }
    let done = client.wait().good();
    println!("{}", done.json);
    assert!(done.number("streams_lost") >= 5, "{done:?}");
    assert_eq!(done.number("sessions"), 1, "{done:?}");
    assert_same(&env.source, &env.root);
    assert_no_leftovers(&env.root, &env.state);
}

/// Both ends are stopped and continued while all their threads wait, some of them in system calls with a timeout.
#[test]
fn stopped_ends_continue_without_loss() {
    let env = TestEnv::new();
    let agent = env.agent();
    let source = env.source.join("one");
    write_file(&mut seeded(7), &source, 24 << 20);
    for protect in ["full", "integrity"] {
        let mut command = env.cp(&["--rate", "60M", "--protect", protect]);
        let copy = RunningCommand::start(command.arg(&source).arg(agent.url(protect)));
        wait_until("the copy runs", Duration::from_secs(30), || {
            agent.transfers(&env.state).iter().any(|one| one["state"] == "running").then_some(())
        });
        for process in [copy.child.id(), agent.child.id(), copy.child.id()] {
            stop_and_continue(process);
        }
        let done = copy.wait().good();
        assert_eq!((done.number("bytes"), done.number("sessions")), (24 << 20, 1), "{done:?}");
        let copied = std::fs::read(env.root.join(protect)).unwrap();
        assert!(copied == std::fs::read(&source).unwrap(), "{protect}");
    }
}
