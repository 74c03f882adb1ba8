//! Third-party copies: a client requests a copy between two agents. Each machine has its own state directory, and no data
//! passes the client.

mod common;

use std::fs;
use std::process::Command;
use std::time::Duration;

use common::{
    Agent, RunningCommand, TestEnv, assert_no_leftovers, assert_same, run, seeded, wait_until,
    write_file, write_tree,
};

/// Agents of source and destination, and the state directory of the requesting client.
struct Sites {
    source: TestEnv,
    destination: TestEnv,
    asking: TestEnv,
    from: Agent,
    to: Agent,
}

fn login(asking: &TestEnv, site: &TestEnv, agent: &Agent) {
    let token = fs::read_to_string(site.state.join("token")).unwrap();
    let mut command = asking.penstock();
    command.args(["login", &agent.listen, "--token", token.trim()]);
    run(command.args(["--fingerprint", &agent.fingerprint])).good();
}

impl Sites {
    fn new() -> Self {
        let [source, destination, asking] = [(); 3].map(|()| TestEnv::new());
        let (from, to) = (source.restartable_agent(), destination.restartable_agent());
        for (site, agent) in [(&source, &from), (&destination, &to)] {
            login(&asking, site, agent);
        }
        Self { source, destination, asking, from, to }
    }

    fn copy(&self, more: &[&str]) -> Command {
        let mut command = self.asking.cp(&["-r"]);
        command.args(more).args([self.from.url("data"), self.to.url("in/")]);
        command
    }
}

#[test]
fn dataset_copies_between_agents() {
    let mut random = seeded(71);
    let sites = Sites::new();
    let data = sites.source.root.join("data");
    let total = write_tree(&mut random, &data, 3, 60);
    let sums = sites.asking.path("sums");
    let done = run(sites.copy(&["--checksum-file", sums.to_str().unwrap()])).good();
    assert_same(&data, &sites.destination.root.join("in/data"));
    assert_eq!(done.number("bytes"), total);
    assert_eq!(done.number("files"), 64);
    assert_eq!(done.json["digests"].as_object().unwrap().len(), 64);
    assert_eq!(fs::read_to_string(sums).unwrap().lines().count(), 64);
    // Both agents list the transfer.
    for (agent, site, direction) in
        [(&sites.from, &sites.source, "send"), (&sites.to, &sites.destination, "receive")]
    {
        let transfers = agent.ended_transfers(&site.state);
        assert_eq!(transfers.len(), 1, "{transfers:?}");
        assert_eq!(transfers[0]["direction"], direction);
        assert_eq!(transfers[0]["state"], "done");
    }
    let again = run(sites.copy(&[])).good();
    assert_eq!((again.number("resumed_bytes"), again.number("moved_bytes")), (total, 0));
    assert_no_leftovers(&sites.destination.root, &sites.destination.state);
}

#[test]
fn one_agent_may_be_both() {
    let mut random = seeded(72);
    let env = TestEnv::new();
    let data = env.root.join("data");
    write_tree(&mut random, &data, 1, 20);
    let agent = env.agent();
    run(env.cp(&["-r", &agent.url("data"), &agent.url("copy/")])).good();
    assert_same(&data, &env.root.join("copy/data"));
    // Source and destination are the same, by different names.
    let port = agent.listen.rsplit(':').next().unwrap();
    for to in [agent.url("/./data//in"), format!("penstock://localhost:{port}/data/in/")] {
        let done = run(env.penstock().args(["cp", "-r", &agent.url("data/"), &to]));
        assert_eq!((done.code, done.lines().len()), (2, 1), "{to}: {done:?}");
        assert!(done.error.contains("lies inside"), "{done:?}");
    }
}

#[test]
fn requester_receives_failures() {
    let mut random = seeded(73);
    let sites = Sites::new();
    let data = sites.source.root.join("data");
    write_tree(&mut random, &data, 1, 5);
    // A directory is in the way of one file.
    fs::create_dir_all(sites.destination.root.join("in/data/large0/x")).unwrap();
    let done = run(sites.copy(&[]));
    assert_eq!(done.code, 3, "{done:?}");
    assert_eq!(done.lines().len(), 1, "{done:?}");
    assert!(done.lines()[0].contains("large0: a directory"), "{done:?}");
    // The source has no such file.
    let missing = [sites.from.url("none"), sites.to.url("in/")];
    let done = run(sites.asking.cp(&missing));
    assert_eq!((done.code, done.lines().len()), (1, 1), "{done:?}");
    assert!(done.error.contains("none"), "{done:?}");
    // The source cannot reach the destination: the error names both.
    let Sites { source, asking, from, mut to, .. } = sites;
    let (url, in_the_way) = (to.url("in/"), to.listen.clone());
    to.kill();
    let done = run(asking.cp(&["-r", &from.url("data"), &url]));
    assert_eq!((done.code, done.lines().len()), (1, 1), "{done:?}");
    assert!(done.error.contains(&in_the_way), "{done:?}");
    drop(source);
}

#[test]
fn requester_changes_and_cancels_copy() {
    let mut random = seeded(74);
    let sites = Sites::new();
    let data = sites.source.root.join("data");
    fs::create_dir(&data).unwrap();
    write_file(&mut random, &data.join("big"), 8 << 20);
    // 67 s at this rate.
    let mut copy = RunningCommand::start(&mut sites.copy(&["--rate", "1M", "--block", "64KiB"]));
    let running = || {
        let transfers = sites.from.transfers(&sites.source.state);
        transfers.into_iter().find(|transfer| transfer["state"] == "running")
    };
    let id = wait_until("it runs", Duration::from_secs(20), running)["id"].to_string();
    // The source's operator raises the rate.
    let mut set = sites.source.penstock();
    set.args(["transfers", "set", &id, "--rate", "1T", "--http", &sites.from.http]);
    run(set).good();
    wait_until("it is fast", Duration::from_secs(30), || copy.is_over().then_some(()));
    copy.wait().good();
    sites.from.ended_transfers(&sites.source.state);
    // The requester cancels the next copy.
    fs::remove_dir_all(sites.destination.root.join("in")).unwrap();
    let copy = RunningCommand::start(&mut sites.copy(&["--rate", "4M", "--block", "64KiB"]));
    wait_until("it runs", Duration::from_secs(20), running);
    copy.await_handler(2);
    let pid = copy.child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let done = copy.wait();
    assert_eq!(done.code, 1, "{done:?}");
    assert!(done.error.contains("run the same command again"), "{done:?}");
    wait_until("the source has stopped", Duration::from_secs(30), || {
        running().is_none().then_some(())
    });
}

/// The operator restricts the source to some destination addresses; SIGHUP reloads the list.
#[test]
fn operator_restricts_copy_destinations() {
    let mut random = seeded(76);
    let mut sites = Sites::new();
    let data = sites.source.root.join("data");
    write_tree(&mut random, &data, 1, 5);
    let file = sites.source.path("penstock.toml");
    let rule = |to: &str| fs::write(&file, format!("[third_party]\nto = {to}\n")).unwrap();
    rule("[\"192.0.2.0/24\", \"127.0.0.0/8:1\"]");
    sites.from.kill();
    let listen = sites.from.listen.clone();
    let more = ["--config", file.to_str().unwrap()];
    sites.from = Agent::start(&sites.source.state, &sites.source.root, &listen, &more);
    let done = run(sites.copy(&[]));
    assert_eq!((done.code, done.lines().len()), (5, 1), "{done:?}");
    for words in [&*sites.to.listen, "third_party.to", "ask its operator to add"] {
        assert!(done.error.contains(words), "{done:?}");
    }
    assert!(!sites.destination.root.join("in/data").exists());
    // The check applies to the resolved address, not to the host name.
    let port = sites.to.listen.rsplit(':').next().unwrap();
    rule(&format!("[\"127.0.0.0/24:{port}\"]"));
    let hang_up = || {
        let pid = sites.from.child.id().to_string();
        assert!(Command::new("kill").args(["-HUP", &pid]).status().unwrap().success());
    };
    hang_up();
    wait_until("the list is read", Duration::from_secs(20), || {
        (run(sites.copy(&[])).code == 0).then_some(())
    });
    assert_same(&data, &sites.destination.root.join("in/data"));
    let done = run(sites.copy(&["--to", "127.0.1.1"]));
    assert_eq!(done.code, 5, "{done:?}");
    assert!(done.error.contains("127.0.1.1"), "{done:?}");
}

/// Kills client and agents in turn at seeded moments; the same command completes the copy.
#[test]
fn third_party_copy_survives_kills() {
    let mut random = seeded(75);
    let mut sites = Sites::new();
    let data = sites.source.root.join("data");
    let total = write_tree(&mut random, &data, 3, 100);
    let slow = ["--rate", "10M", "--block", "64KiB", "--streams", "2"];
    let mut copy = RunningCommand::start(&mut sites.copy(&slow));
    for kill in 0..3 {
        let moment = std::time::Instant::now() + Duration::from_millis(random.between(50, 400));
        wait_until("a moment", Duration::from_secs(5), || {
            (std::time::Instant::now() >= moment).then_some(())
        });
        let restart = |agent: &mut Agent, env: &TestEnv| {
            agent.kill();
            let listen = agent.listen.clone();
            *agent = Agent::start(&env.state, &env.root, &listen, &[]);
        };
        match kill % 3 {
            0 => restart(&mut sites.from, &sites.source),
            1 => restart(&mut sites.to, &sites.destination),
            _ => {
                copy.kill();
                copy = RunningCommand::start(&mut sites.copy(&slow));
            }
        }
    }
    let moved = || sites.to.transfers(&sites.destination.state).last()?["moved_bytes"].as_u64();
    wait_until("something has moved", Duration::from_secs(30), || {
        moved().filter(|bytes| *bytes > 0)
    });
    copy.kill();
    let done = run(sites.copy(&[])).good();
    assert_same(&data, &sites.destination.root.join("in/data"));
    assert_eq!(done.number("bytes"), total);
    assert!(done.number("resumed_bytes") > 0, "{done:?}");
    assert_no_leftovers(&sites.destination.root, &sites.destination.state);
}
