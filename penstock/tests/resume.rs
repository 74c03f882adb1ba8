//! What a killed copy leaves is continued by the next one, whatever its command looks like, and only after it was checked.

mod common;

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use common::{Agent, House, Random, Run, assert_no_leftovers, assert_same, parts, run, until};

const MIB: usize = 1 << 20;

/// A directory `data` with one file `f`, pushed into the agent's root until at least half of it is there, then killed
/// with the agent.
struct Killed {
    house: House,
    agent: Agent,
}

impl Killed {
    fn new(bytes: usize, seed: u64) -> Self {
        let house = House::new();
        std::fs::create_dir(house.source.join("data")).unwrap();
        let file = house.source.join("data/f");
        common::write_file(&mut Random::seeded(seed), &file, bytes);
        let mut agent = house.agent();
        let url = agent.url("");
        let source = house.source.join("data");
        let arguments =
            ["-r", "--block", "256KiB", "--rate", "100M", source.to_str().unwrap(), &url];
        let client = Run::start(&mut house.cp(&arguments));
        until("half of the file", Duration::from_secs(30), || {
            let transfers = agent.transfers(&house.state);
            let moved = transfers.first()?["moved_bytes"].as_u64()?;
            (moved >= bytes as u64 / 2).then_some(())
        });
        agent.kill();
        client.kill();
        let agent = Agent::start(&house.state, &house.root, "127.0.0.1:0", &[]);
        Self { house, agent }
    }

    fn partial(&self) -> PathBuf {
        let found = parts(&self.house.root);
        assert_eq!(found.len(), 1, "{found:?}");
        self.house.root.join(&found[0])
    }

    fn source(&self) -> PathBuf {
        self.house.source.join("data/f")
    }

    /// The file arrived with its attributes, and nothing is left.
    fn assert_whole(&self) {
        assert_same(&self.house.source.join("data"), &self.house.root.join("data"));
        assert_no_leftovers(&self.house.root, &self.house.state);
    }
}

/// An offset of a page that the partial file has and the source has, too.
fn written_page(partial: &Path, source: &Path) -> u64 {
    let (partial, source) = (std::fs::read(partial).unwrap(), std::fs::read(source).unwrap());
    let same = |page: &usize| {
        let range = page * 4096..(page + 1) * 4096;
        partial.get(range.clone()).is_some_and(|bytes| *bytes == source[range])
    };
    let page = (0..source.len() / 4096).find(same).expect("something was written");
    page as u64 * 4096
}

/// Many files of some blocks are killed at moments that differ; local, pushed and pulled.
#[test]
fn killed_datasets_end_equal() {
    let house = House::new();
    let data = house.root.join("data");
    std::fs::create_dir(&data).unwrap();
    let mut random = Random::seeded(1);
    for number in 0..60 {
        common::write_file(&mut random, &data.join(number.to_string()), 1_500_001);
    }
    let agent = house.agent();
    let (local, remote) = (data.to_str().unwrap().to_owned(), agent.url("data"));
    let target = |name: &str| house.path(name).to_str().unwrap().to_owned();
    std::fs::create_dir(house.root.join("in")).unwrap();
    let plans = [
        (local.clone(), target("local/"), house.path("local")),
        (remote, target("pulled/"), house.path("pulled")),
        (local, agent.url("in/"), house.root.join("in")),
    ];
    for (from, to, copy) in &plans {
        for _ in 0..4 {
            let client = Run::start(&mut house.cp(&["-r", "--rate", "4G", from, to]));
            std::thread::sleep(Duration::from_millis(random.between(20, 250)));
            client.kill();
        }
        run(house.cp(&["-r", from, to])).good();
        assert_same(&data, &copy.join("data"));
        assert_no_leftovers(copy, &house.state);
    }
}

#[test]
fn changed_partial_bytes_are_sent_again() {
    let killed = Killed::new(24 * MIB, 2);
    let partial = killed.partial();
    let offset = written_page(&partial, &killed.source());
    let file = std::fs::File::options().write(true).read(true).open(&partial).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset + 77).unwrap();
    file.write_all_at(&[byte[0] ^ 1], offset + 77).unwrap();
    drop(file);
    let data = killed.house.source.join("data");
    let done = run(killed.house.cp(&["-r", data.to_str().unwrap(), &killed.agent.url("")])).good();
    assert!(done.number("rejected_bytes") > 0, "{done:?}");
    assert!(done.number("verified_bytes") > 0, "{done:?}");
    assert_eq!(done.number("verified_bytes") + done.number("moved_bytes"), 24 * MIB as u64);
    killed.assert_whole();
}

/// Storage that lost its cache while the machine stayed up: what was written reads as zeros.
#[test]
fn zeroed_partial_ranges_are_sent_again() {
    let killed = Killed::new(16 * MIB, 3);
    let file = std::fs::File::options().write(true).open(killed.partial()).unwrap();
    file.write_all_at(&vec![0; 16 * MIB], 0).unwrap();
    drop(file);
    let data = killed.house.source.join("data");
    let done = run(killed.house.cp(&["-r", data.to_str().unwrap(), &killed.agent.url("")])).good();
    assert_eq!(done.number("verified_bytes"), 0, "{done:?}");
    killed.assert_whole();
}

#[test]
fn replaced_source_is_copied_whole() {
    let killed = Killed::new(16 * MIB, 4);
    let source = killed.source();
    let before = std::fs::metadata(&source).unwrap();
    common::write_file(&mut Random::seeded(5), &source, 16 * MIB);
    let file = std::fs::File::options().write(true).open(&source).unwrap();
    file.set_modified(before.modified().unwrap()).unwrap();
    drop(file);
    assert_eq!(std::fs::metadata(&source).unwrap().modified().unwrap(), before.modified().unwrap());
    let data = killed.house.source.join("data");
    let done = run(killed.house.cp(&["-r", data.to_str().unwrap(), &killed.agent.url("")])).good();
    assert_eq!(done.number("resumed_bytes"), 0, "{done:?}");
    killed.assert_whole();
}

/// Continues `killed` by another command and checks that most of the file was not sent again.
fn continue_by(killed: Killed, command: &mut Command) {
    let done = run(command).good();
    let resumed = done.number("verified_bytes");
    assert!(resumed >= 6 * MIB as u64, "{resumed} bytes were kept: {done:?}");
    killed.assert_whole();
}

#[test]
fn another_address_and_port_continue() {
    let killed = Killed::new(16 * MIB, 6);
    // Not the port of the first agent, and another name of the host.
    let port = killed.agent.listen.rsplit(':').next().unwrap();
    let url = format!("penstock://localhost:{port}/");
    let login = ["login", &format!("localhost:{port}"), "--json"];
    let mut command = killed.house.penstock();
    let token = std::fs::read_to_string(killed.house.state.join("token")).unwrap_or_default();
    command.args(login).args(["--fingerprint", &killed.agent.fingerprint]);
    command.args(["--token", token.trim()]);
    let logged_in = run(command);
    let data = killed.house.source.join("data");
    let url = if logged_in.code == 0 { url } else { killed.agent.url("") };
    let mut command = killed.house.cp(&["-r", data.to_str().unwrap(), &url]);
    continue_by(killed, &mut command);
}

#[test]
fn another_directory_and_spelling_continue() {
    let killed = Killed::new(16 * MIB, 7);
    let mut command = killed.house.cp(&["-r", "./data/.", &killed.agent.url("data")]);
    command.current_dir(&killed.house.source);
    continue_by(killed, &mut command);
}

#[test]
fn explicit_target_name_continues() {
    let killed = Killed::new(16 * MIB, 8);
    let source = killed.source();
    let url = killed.agent.url("data/f");
    let mut command = killed.house.cp(&[source.to_str().unwrap(), &url]);
    continue_by(killed, &mut command);
}

#[test]
fn single_file_into_its_directory_continues() {
    let killed = Killed::new(16 * MIB, 9);
    let mut command = killed.house.cp(&["f", &killed.agent.url("data/")]);
    command.current_dir(killed.house.source.join("data"));
    continue_by(killed, &mut command);
}

/// A client that is killed while its agent lives on leaves a session that another command of the same user ends.
#[test]
fn session_without_client_is_released() {
    let house = House::new();
    let file = house.source.join("f");
    common::write_file(&mut Random::seeded(10), &file, 16 * MIB);
    let agent = house.agent();
    let arguments = ["--block", "256KiB", "--rate", "50M", file.to_str().unwrap(), &agent.url("")];
    let client = Run::start(&mut house.cp(&arguments));
    until("half of the file", Duration::from_secs(30), || {
        let transfers = agent.transfers(&house.state);
        let moved = transfers.first()?["moved_bytes"].as_u64()?;
        (moved >= 8 * MIB as u64).then_some(())
    });
    client.kill();
    let mut command = house.cp(&["./f", &agent.url("f")]);
    command.current_dir(&house.source);
    let done = run(command).good();
    assert!(done.number("verified_bytes") >= 6 * MIB as u64, "{done:?}");
    assert_no_leftovers(&house.root, &house.state);
}
