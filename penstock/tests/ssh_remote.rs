//! The remote process that ssh starts, with a stand-in for ssh that runs its command on this machine: home directories,
//! addresses, and remotes that end too early or too late.

mod common;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{PENSTOCK, RunningCommand, TestEnv, run, wait_until};

/// Skips options, records the host, and leaves the command in `$*` for its last line.
const SSH: &str = r#"#!/bin/sh
while [ "$1" != -- ]; do shift; done
echo "$2" > "$(dirname "$0")/login"
shift 2
"#;

struct Far {
    env: TestEnv,
    ssh: PathBuf,
    home: PathBuf,
}

impl Far {
    /// Installs the stand-in; its line `last` runs the command in `$*`.
    fn new(last: &str) -> Self {
        let env = TestEnv::new();
        let (ssh, home) = (env.path("ssh"), env.path("home"));
        fs::create_dir(&home).unwrap();
        let text = env.path("ssh.text");
        fs::write(&text, format!("{SSH}{last}\n")).unwrap();
        // Another program writes it: a process that a parallel test starts may hold what this one has open for writing,
        // and the kernel does not execute such a file (ETXTBSY).
        let mut install = Command::new("install");
        assert!(install.args(["-m", "755"]).args([&text, &ssh]).status().unwrap().success());
        fs::write(env.source.join("file"), b"of the user").unwrap();
        Self { env, ssh, home }
    }

    fn cp(&self, arguments: &[&str]) -> Command {
        let mut command = self.env.cp(&["--remote-command", PENSTOCK, "--ssh"]);
        command.arg(&self.ssh).args(arguments).env("HOME", &self.home);
        command.current_dir(&self.env.source);
        command
    }

    fn login(&self) -> String {
        fs::read_to_string(self.env.path("login")).unwrap()
    }
}

const RUNS: &str = r#"exec sh -c "$*""#;

#[test]
fn a_tilde_is_the_users_home() {
    let far = Far::new(RUNS);
    run(far.cp(&["file", "127.0.0.1:~/new/"])).good();
    assert_eq!(fs::read(far.home.join("new/file")).unwrap(), b"of the user");
    let back = far.env.path("back");
    run(far.cp(&["-r", "127.0.0.1:~", back.to_str().unwrap()])).good();
    assert_eq!(fs::read(back.join("home/new/file")).unwrap(), b"of the user");
    let other = run(far.cp(&["file", "127.0.0.1:~other/file"]));
    assert_eq!(other.code, 1, "{other:?}");
    assert!(other.error.contains("write the whole path"), "{other:?}");
}

#[test]
fn an_address_in_brackets_is_reached() {
    let far = Far::new(RUNS);
    for (host, login) in [("[::1]", "::1\n"), ("me@[::1]", "me@::1\n")] {
        if std::net::TcpListener::bind("[::1]:0").is_err() {
            return penstock_testkit::skip(
                penstock_testkit::Requirement::Machine,
                "this machine has no IPv6",
            );
        }
        run(far.cp(&["file", &format!("{host}:~/")])).good();
        assert_eq!(far.login(), login);
    }
}

#[test]
fn dead_remote_is_not_awaited() {
    let far = Far::new(
        r#"exec 3<&0
sh -c "exec $*" <&3 &
until [ -e "$HOME/die" ]; do sleep 0.01; done
kill -9 $!
exit 7"#,
    );
    fs::write(far.env.source.join("file"), vec![7; 8 << 20]).unwrap();
    let slow = ["--rate", "4M", "--block", "64KiB", "--memory", "512KiB"];
    let client = RunningCommand::start(far.cp(&slow).args(["file", "127.0.0.1:~/new/"]));
    wait_until("it moves", Duration::from_secs(60), || {
        let listed = run(far.env.penstock().args(["transfers", "--json"]));
        let moved = listed.json["copies"][0]["moved_bytes"].as_u64();
        (moved > Some(0)).then_some(())
    });
    let begun = Instant::now();
    fs::write(far.home.join("die"), b"").unwrap();
    let done = client.wait();
    assert_eq!(done.code, 1, "{done:?}");
    assert!(done.error.contains("penstock on 127.0.0.1 ended: exit status: 7"), "{done:?}");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

#[test]
fn hanging_ssh_is_terminated() {
    let far = Far::new("sh -c \"$*\"\nexec sleep 60");
    let begun = Instant::now();
    run(far.cp(&["file", "127.0.0.1:~/new/"])).good();
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}
