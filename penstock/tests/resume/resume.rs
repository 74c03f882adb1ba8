//! Resumption of a killed copy: by any equivalent command, and only after the partial files were checked.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::common::{
    Agent, RunningCommand, TestEnv, assert_no_leftovers, assert_same, parts, run, seeded,
    wait_until,
};

const BYTES_PER_MIB: usize = 1 << 20;

/// A copy of `data/f` into the agent's root, killed with the agent after a seeded share of the file, at least half.
struct Killed {
    env: TestEnv,
    agent: Agent,
}

impl Killed {
    fn new(bytes: usize, seed: u64) -> Self {
        let env = TestEnv::new();
        std::fs::create_dir(env.source.join("data")).unwrap();
        let file = env.source.join("data/f");
        let mut random = seeded(seed);
        crate::common::write_file(&mut random, &file, bytes);
        let killed_at = bytes as u64 / 100 * random.between(50, 65);
        let mut agent = env.agent();
        let url = agent.url("");
        let source = env.source.join("data");
        let arguments =
            ["-r", "--block", "256KiB", "--rate", "40M", source.to_str().unwrap(), &url];
        let client = RunningCommand::start(&mut env.cp(&arguments));
        wait_until("a part of the file", Duration::from_secs(30), || {
            let transfers = agent.transfers(&env.state);
            let moved = transfers.first()?["moved_bytes"].as_u64()?;
            (moved >= killed_at).then_some(())
        });
        agent.kill();
        client.kill();
        let agent = Agent::start(&env.state, &env.root, "127.0.0.1:0", &[]);
        Self { env, agent }
    }

    fn partial(&self) -> PathBuf {
        let found = parts(&self.env.root);
        assert_eq!(found.len(), 1, "{found:?}");
        self.env.root.join(&found[0])
    }

    fn source(&self) -> PathBuf {
        self.env.source.join("data/f")
    }

    /// Asserts that the file arrived with its attributes and left no partial files.
    fn assert_whole(&self) {
        assert_same(&self.env.source.join("data"), &self.env.root.join("data"));
        assert_no_leftovers(&self.env.root, &self.env.state);
    }
}

/// Offset of a page that is equal in partial file and source.
fn written_page(partial: &Path, source: &Path) -> u64 {
    let (partial, source) = (std::fs::read(partial).unwrap(), std::fs::read(source).unwrap());
    let same = |page: &usize| {
        let range = page * 4096..(page + 1) * 4096;
        partial.get(range.clone()).is_some_and(|bytes| *bytes == source[range])
    };
    let page = (0..source.len() / 4096).find(same).expect("something was written");
    page as u64 * 4096
}

/// A copy on one machine is killed at seeded moments; pushes and pulls are in `tests/faults.rs`.
#[test]
fn killed_local_copy_ends_equal() {
    let env = TestEnv::new();
    let data = env.source.join("data");
    std::fs::create_dir(&data).unwrap();
    let mut random = seeded(1);
    for number in 0..60 {
        crate::common::write_file(&mut random, &data.join(number.to_string()), 1_500_001);
    }
    let (from, copy) = (data.to_str().unwrap(), env.path("local"));
    let to = format!("{}/", copy.display());
    for _ in 0..4 {
        let client = RunningCommand::start(&mut env.cp(&["-r", "--rate", "4G", from, &to]));
        std::thread::sleep(Duration::from_millis(random.between(20, 250)));
        client.kill();
    }
    run(env.cp(&["-r", from, &to])).good();
    assert_same(&data, &copy.join("data"));
    assert_no_leftovers(&copy, &env.state);
}

#[test]
fn changed_partial_bytes_are_sent_again() {
    let killed = Killed::new(24 * BYTES_PER_MIB, 2);
    let partial = killed.partial();
    let offset = written_page(&partial, &killed.source());
    let file = std::fs::File::options().write(true).read(true).open(&partial).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset + 77).unwrap();
    file.write_all_at(&[byte[0] ^ 1], offset + 77).unwrap();
    drop(file);
    let data = killed.env.source.join("data");
    let done = run(killed.env.cp(&["-r", data.to_str().unwrap(), &killed.agent.url("")])).good();
    assert!(done.number("rejected_bytes") > 0, "{done:?}");
    assert!(done.number("verified_bytes") > 0, "{done:?}");
    assert_eq!(
        done.number("verified_bytes") + done.number("moved_bytes"),
        24 * BYTES_PER_MIB as u64
    );
    killed.assert_whole();
}

/// Storage that lost its cache while the machine stayed up: written ranges read as zeros.
#[test]
fn zeroed_partial_ranges_are_sent_again() {
    let killed = Killed::new(16 * BYTES_PER_MIB, 3);
    let file = std::fs::File::options().write(true).open(killed.partial()).unwrap();
    file.write_all_at(&vec![0; 16 * BYTES_PER_MIB], 0).unwrap();
    drop(file);
    let data = killed.env.source.join("data");
    let done = run(killed.env.cp(&["-r", data.to_str().unwrap(), &killed.agent.url("")])).good();
    assert_eq!(done.number("verified_bytes"), 0, "{done:?}");
    killed.assert_whole();
}

#[test]
fn replaced_source_is_copied_whole() {
    let killed = Killed::new(16 * BYTES_PER_MIB, 4);
    let source = killed.source();
    let before = std::fs::metadata(&source).unwrap();
    crate::common::write_file(&mut seeded(5), &source, 16 * BYTES_PER_MIB);
    let file = std::fs::File::options().write(true).open(&source).unwrap();
    file.set_modified(before.modified().unwrap()).unwrap();
    drop(file);
    assert_eq!(std::fs::metadata(&source).unwrap().modified().unwrap(), before.modified().unwrap());
    let data = killed.env.source.join("data");
    let done = run(killed.env.cp(&["-r", data.to_str().unwrap(), &killed.agent.url("")])).good();
    assert_eq!(done.number("resumed_bytes"), 0, "{done:?}");
    killed.assert_whole();
}

/// Resumes `killed` with another command and asserts that most of the file is not sent again.
fn continue_by(killed: Killed, command: &mut Command) {
    let done = run(command).good();
    let resumed = done.number("verified_bytes");
    assert!(resumed >= 6 * BYTES_PER_MIB as u64, "{resumed} bytes were kept: {done:?}");
    killed.assert_whole();
}

#[test]
fn another_address_and_port_continue() {
    let killed = Killed::new(16 * BYTES_PER_MIB, 6);
    // Another port and another name of the host.
    let port = killed.agent.listen.rsplit(':').next().unwrap();
    let url = format!("penstock://localhost:{port}/");
    let login = ["login", &format!("localhost:{port}"), "--json"];
    let mut command = killed.env.penstock();
    let token = std::fs::read_to_string(killed.env.state.join("token")).unwrap_or_default();
    command.args(login).args(["--fingerprint", &killed.agent.fingerprint]);
    command.args(["--token", token.trim()]);
    let logged_in = run(command);
    let data = killed.env.source.join("data");
    let url = if logged_in.code == 0 { url } else { killed.agent.url("") };
    let mut command = killed.env.cp(&["-r", data.to_str().unwrap(), &url]);
    continue_by(killed, &mut command);
}

#[test]
fn another_directory_and_spelling_continue() {
    let killed = Killed::new(16 * BYTES_PER_MIB, 7);
    let mut command = killed.env.cp(&["-r", "./data/.", &killed.agent.url("data")]);
    command.current_dir(&killed.env.source);
    continue_by(killed, &mut command);
}

#[test]
fn explicit_target_name_continues() {
    let killed = Killed::new(16 * BYTES_PER_MIB, 8);
    let source = killed.source();
    let url = killed.agent.url("data/f");
    let mut command = killed.env.cp(&[source.to_str().unwrap(), &url]);
    continue_by(killed, &mut command);
}

#[test]
fn single_file_into_its_directory_continues() {
    let killed = Killed::new(16 * BYTES_PER_MIB, 9);
    let mut command = killed.env.cp(&["f", &killed.agent.url("data/")]);
    command.current_dir(killed.env.source.join("data"));
    continue_by(killed, &mut command);
}

/// The session of a killed client ends when the same user runs another command, though the agent keeps running.
#[test]
fn session_without_client_is_released() {
    let env = TestEnv::new();
    let file = env.source.join("f");
    crate::common::write_file(&mut seeded(10), &file, 16 * BYTES_PER_MIB);
    let agent = env.agent();
    let arguments = ["--block", "256KiB", "--rate", "25M", file.to_str().unwrap(), &agent.url("")];
    let client = RunningCommand::start(&mut env.cp(&arguments));
    wait_until("half of the file", Duration::from_secs(30), || {
        let transfers = agent.transfers(&env.state);
        let moved = transfers.first()?["moved_bytes"].as_u64()?;
        (moved >= 8 * BYTES_PER_MIB as u64).then_some(())
    });
    client.kill();
    let mut command = env.cp(&["./f", &agent.url("f")]);
    command.current_dir(&env.source);
    let done = run(command).good();
    assert!(done.number("verified_bytes") >= 6 * BYTES_PER_MIB as u64, "{done:?}");
    assert_no_leftovers(&env.root, &env.state);
}
