//! It keeps working: both ends are killed, connections are broken, bytes are changed on their way, and
//! what arrives is whole.

mod common;

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use common::proxy::Proxy;
use common::{
    Agent, House, Random, Run, assert_no_leftovers, assert_same, run, tree, until, write_file,
    write_tree,
};

/// Bytes of the files that are in place under `root`: same name, size and time as in `source`.
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

/// One dataset, `kills` kills: of the client, of the agent (the client waits for its successor or is
/// killed too), of single sockets. A low rate keeps it going until they are done; then it may finish.
fn survive(kills: u32, pull: bool, seed: u64) {
    let mut random = Random::seeded(seed);
    let house = House::new();
    let data = if pull { house.root.join("data") } else { house.source.join("data") };
    let copies = if pull { house.path("copies") } else { house.root.clone() };
    if pull {
        std::fs::create_dir(&copies).unwrap();
    }
    std::fs::create_dir(&data).unwrap();
    let total = write_tree(&mut random, &data, 4, 400);
    let mut agent = house.agent();
    let proxy = Proxy::start(&agent.listen, random.fork(), 0, 1);
    let (from, to) = if pull {
        (proxy.url("data"), copies.to_str().unwrap().to_owned())
    } else {
        (data.to_str().unwrap().to_owned(), proxy.url(""))
    };
    let start = |rate: Option<&str>| {
        let mut command = house.cp(&["-r", "--block", "64KiB", "--streams", "3", &from, &to]);
        if let Some(rate) = rate {
            command.args(["--rate", rate]);
        }
        Run::start(&mut command)
    };
    let begun = Instant::now();
    let mut count = [0; 3];
    let mut client = start(Some("6M"));
    for _ in 0..kills {
        let moment = Instant::now() + Duration::from_millis(random.between(20, 350));
        while Instant::now() < moment {
            if client.is_over() {
                // Broken before its first request was answered, which is reported at once: then the same
                // command is run again. Nothing else may end it.
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
                agent = Agent::start(&house.state, &house.root, &listen, &[]);
            }
            _ => {
                proxy.reset_one(&mut random);
            }
        }
    }
    // Whatever is in place now must not be sent again by the run that finishes.
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
    assert_no_leftovers(&copies, &house.state);
}

#[test]
fn fifty_kills_of_a_push() {
    survive(50, false, 1);
}

#[test]
fn fifty_kills_of_a_pull() {
    survive(50, true, 2);
}

/// What is measured: `moved + resumed`, as the agent tells them just before a kill, are the bytes that
/// it has written and recorded in its journal (or has in place). The next run of the same command has
/// to find at least 95 % of them (`resumed_bytes`), so that less than 5 % of what was durable is sent
/// again. Client and agent are killed in turn.
#[test]
fn what_was_written_is_not_sent_again() {
    let mut random = Random::seeded(3);
    let house = House::new();
    let source = house.source.join("one");
    let bytes = 24 << 20;
    write_file(&mut random, &source, bytes);
    let mut agent = house.agent();
    let start = |agent: &Agent, rate: &str| {
        let source = source.to_str().unwrap();
        Run::start(&mut house.cp(&["--block", "256KiB", "--rate", rate, source, &agent.url("")]))
    };
    let known = |agent: &Agent| {
        let transfers = agent.transfers(&house.state);
        let one = transfers.iter().find(|one| one["state"] == "running")?;
        Some((one["moved_bytes"].as_u64()?, one["resumed_bytes"].as_u64()?))
    };
    let mut before = 0;
    for kill in 1..5_u64 {
        let client = start(&agent, "32M");
        let (moved, resumed) = until("progress", Duration::from_secs(30), || {
            known(&agent).filter(|(moved, resumed)| moved + resumed >= kill * bytes as u64 / 5)
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
            agent = Agent::start(&house.state, &house.root, &listen, &[]);
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
    assert_same(&house.source, &house.root);
    assert_no_leftovers(&house.root, &house.state);
}

/// Bytes that files below a directory take, while some come and go.
fn allocated(directory: &Path) -> u64 {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let bytes = |path: &Path| match path.symlink_metadata() {
        Ok(meta) if meta.is_dir() => allocated(path),
        Ok(meta) if meta.is_file() => meta.blocks() * 512,
        _ => 0,
    };
    entries.map(|entry| bytes(&entry.path())).sum()
}

/// The agent is killed twice in the middle; the result is of the whole command, and each byte counts once.
fn totals_over_restarts(pull: bool, seed: u64) {
    let mut random = Random::seeded(seed);
    let house = House::new();
    let data = if pull { house.root.join("data") } else { house.source.join("data") };
    let copies = if pull { house.path("copies") } else { house.root.clone() };
    if pull {
        std::fs::create_dir(&copies).unwrap();
    }
    std::fs::create_dir(&data).unwrap();
    let total = write_tree(&mut random, &data, 3, 200);
    let mut agent = house.agent();
    let sums = house.path("sums");
    let mut command = house.cp(&["-r", "--block", "64KiB", "--rate", "24M", "--checksum-file"]);
    command.arg(&sums);
    if pull {
        command.arg(agent.url("data")).arg(&copies);
    } else {
        command.arg(&data).arg(agent.url(""));
    }
    let mut client = Run::start(&mut command);
    for part in 1..3 {
        until("progress", Duration::from_secs(30), || {
            assert!(!client.is_over(), "it ended too early");
            let running = agent.transfers(&house.state);
            let one = running.iter().find(|one| one["state"] == "running")?;
            let done = one["moved_bytes"].as_u64()? + one["resumed_bytes"].as_u64()?;
            (done >= part * total / 3 && allocated(&copies) >= part * total / 4).then_some(())
        });
        agent.kill();
        let listen = agent.listen.clone();
        agent = Agent::start(&house.state, &house.root, &listen, &[]);
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
fn the_result_of_a_push_counts_what_was_before_a_restart() {
    totals_over_restarts(false, 9);
}

#[test]
fn the_result_of_a_pull_counts_what_was_before_a_restart() {
    totals_over_restarts(true, 10);
}

/// Bits flip, streams end early, stall and are reset, in both directions, 40 times.
fn bad_network(protect: &str, pull: bool, seed: u64) {
    let mut random = Random::seeded(seed);
    let house = House::new();
    let agent = house.agent();
    let proxy = Proxy::start(&agent.listen, random.fork(), 40, 300 << 10);
    let data = if pull { house.root.join("data") } else { house.source.join("data") };
    let copies = if pull { house.path("copies") } else { house.root.clone() };
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
    let mut command = house.cp(&options);
    let done = run(command.args(["--rate", "200M", &from, &to])).good();
    println!("{:?}; {}", proxy.done(), done.json);
    assert!(done.number("streams_lost") > 0, "{done:?}");
    assert!(proxy.done().len() > 5, "{:?}", proxy.done());
    assert_same(&data, &copies.join("data"));
    assert_no_leftovers(&copies, &house.state);
}

#[test]
fn a_bad_network_is_repaired_under_encryption() {
    bad_network("full", false, 4);
}

#[test]
fn a_bad_network_is_repaired_in_the_clear() {
    bad_network("integrity", false, 5);
}

#[test]
fn a_bad_network_is_repaired_in_pulls() {
    bad_network("integrity", true, 6);
    bad_network("full", true, 7);
}

/// Twenty connections die one after another, of which some carry control; the one process that copies
/// goes on within its one session.
#[test]
fn twenty_sockets_die_and_the_same_process_finishes() {
    let mut random = Random::seeded(8);
    let house = House::new();
    let agent = house.agent();
    let proxy = Proxy::start(&agent.listen, random.fork(), 0, 1);
    write_file(&mut random, &house.source.join("one"), 20 << 20);
    let source = house.source.join("one");
    let options = ["--block", "128KiB", "--streams", "4", "--rate", "40M"];
    let mut command = house.cp(&options);
    let mut client = Run::start(command.arg(&source).arg(proxy.url("")));
    let mut next = 1 << 20;
    for _ in 0..20 {
        until("bytes pass", Duration::from_secs(20), || {
            (client.is_over() || proxy.passed() >= next).then_some(())
        });
        if client.is_over() {
            panic!("it ended too early: {:?}", client.wait());
        }
        next = proxy.passed() + random.between(100 << 10, 700 << 10);
        until("a connection", Duration::from_secs(20), || {
            proxy.reset_one(&mut random).then_some(())
        });
    }
    let done = client.wait().good();
    println!("{}", done.json);
    assert!(done.number("streams_lost") >= 5, "{done:?}");
    assert_eq!(done.number("sessions"), 1, "{done:?}");
    assert_same(&house.source, &house.root);
    assert_no_leftovers(&house.root, &house.state);
}
