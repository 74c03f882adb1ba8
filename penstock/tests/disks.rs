//! Disk failures: an exhausted quota, and power loss.
//!
//! Power loss is a snapshot of a file system's image without the kernel's dirty pages: the image lies on btrfs, where a
//! reflink copies it between two writes. A volatile device cache is not modelled: writes are durable in the order in
//! which the kernel issued them. The restarted agent sees another boot id.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use common::{
    Agent, RunningCommand, TestEnv, assert_no_leftovers, assert_same, fixed_address, is_root,
    parts, penstock, run, seeded, tree, wait_until, write_file, write_tree,
};

fn succeeds(program: &str, arguments: &[&str]) -> bool {
    let output = Command::new(program).args(arguments).output();
    output.is_ok_and(|output| {
        if !output.status.success() {
            eprint!("{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
        output.status.success()
    })
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A file system in a file, unmounted when dropped.
struct Disk(PathBuf);

impl Disk {
    /// Mounts `image` at `at`.
    fn mount(image: &Path, at: &Path) -> Option<Self> {
        let mounted = succeeds("mount", &["-o", "loop", text(image), text(at)]);
        mounted.then(|| Self(at.to_owned()))
    }

    /// Makes a file system of `bytes` in `image` with a command and mounts it at `at`.
    fn make(image: &Path, at: &Path, bytes: u64, command: &[&str]) -> Option<Self> {
        if !is_root() {
            penstock_testkit::skip(
                penstock_testkit::Requirement::Root,
                "only root mounts a file system",
            );
            return None;
        }
        fs::create_dir_all(at).unwrap();
        fs::File::create(image).unwrap().set_len(bytes).unwrap();
        let mut arguments = command[1..].to_vec();
        arguments.push(text(image));
        let made = succeeds(command[0], &arguments).then(|| Self::mount(image, at)).flatten();
        if made.is_none() {
            penstock_testkit::skip(
                penstock_testkit::Requirement::Kernel,
                &format!("{} in a file cannot be mounted here", command[0]),
            );
        }
        made
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn exhausted_quota_is_reported() {
    let env = TestEnv::new();
    let image = env.path("image");
    let Some(_disk) = Disk::make(&image, &env.root, 256 << 20, &["mkfs.btrfs", "-q"]) else {
        return;
    };
    let root = text(&env.root);
    let limited = succeeds("btrfs", &["quota", "enable", root])
        && succeeds("btrfs", &["subvolume", "create", text(&env.root.join("in"))])
        && succeeds("btrfs", &["qgroup", "limit", "4M", text(&env.root.join("in"))]);
    if !limited {
        return penstock_testkit::skip(
            penstock_testkit::Requirement::Kernel,
            "this btrfs has no quota",
        );
    }
    let data = env.source.join("data");
    fs::create_dir(&data).unwrap();
    let mut random = seeded(81);
    for (name, bytes) in [("big", 16 << 20), ("small", 9000), ("other", 70_000)] {
        write_file(&mut random, &data.join(name), bytes);
    }
    let agent = env.agent();
    let done = run(env.cp(&["-r", text(&data), &agent.url("in/")]));
    assert_eq!((done.code, done.lines().len()), (3, 1), "{done:?}");
    assert!(done.lines()[0].contains("data/big: disk quota exceeded"), "{done:?}");
    for name in ["small", "other"] {
        let copy = env.root.join("in/data").join(name);
        assert_eq!(fs::read(data.join(name)).unwrap(), fs::read(copy).unwrap());
    }
    assert_eq!(parts(&env.root), Vec::<PathBuf>::new());
}

/// Starts an agent in a mount namespace with another boot id.
fn agent_after_boot(env: &TestEnv, state: &Path, root: &Path, listen: &str) -> Agent {
    let boot = env.path("boot_id");
    fs::write(&boot, "00000000-0000-4000-8000-000000000001\n").unwrap();
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-c"]);
    command.arg("mount --bind \"$1\" /proc/sys/kernel/random/boot_id && shift && exec \"$@\"");
    command.arg("sh").arg(&boot).arg(common::PENSTOCK);
    command.args(["serve", "--listen", listen, "--http", "127.0.0.1:0", "--json"]);
    command.arg("--root").arg(root).env("PENSTOCK_STATE", state).env_remove("PENSTOCK_HTTP");
    Agent::spawn(command)
}

/// Age at which a written byte survives power loss: journals and files are synced every second, and a slow sync may
/// take another.
const DURABLE_AFTER: Duration = Duration::from_millis(2500);

/// After power loss files under their final name are whole, bytes older than `DURABLE_AFTER` are not sent again, and the
/// same command delivers the rest.
#[test]
fn power_failure_tears_no_file() {
    let mut random = seeded(82);
    let env = TestEnv::new();
    let host = env.path("host");
    let made = Disk::make(&env.path("host.img"), &host, 1 << 30, &["mkfs.btrfs", "-q"]);
    let Some(_host) = made else { return };
    let disk = env.path("disk");
    let ext4 = ["mkfs.ext4", "-q", "-m", "0"];
    let Some(_disk) = Disk::make(&host.join("disk.img"), &disk, 128 << 20, &ext4) else { return };
    let (state, root) = (disk.join("state"), disk.join("root"));
    fs::create_dir(&root).unwrap();
    let data = env.source.join("data");
    let total = write_tree(&mut random, &data, 6, 500);
    // The same address, so that all runs are one command with one journal.
    let listen = fixed_address();
    for cut in 0..2 {
        let _ = fs::remove_dir_all(root.join("data"));
        let mut agent = Agent::start(&state, &root, &listen, &[]);
        let copy = |agent: &Agent, rate: &str| {
            let mut command = penstock(&state);
            command.args(["cp", "--json", "-r", "--rate", rate, "--block", "64KiB"]);
            command.arg(&data).arg(agent.url(""));
            command
        };
        let running = RunningCommand::start(&mut copy(&agent, "40M"));
        let wanted = total * random.between(5, 40) / 100;
        let written = || agent.transfers(&state).first()?["moved_bytes"].as_u64();
        let written = wait_until("it has come that far", Duration::from_secs(60), || {
            written().filter(|bytes| *bytes >= wanted)
        });
        let seen = Instant::now();
        wait_until("that is durable", 2 * DURABLE_AFTER, || {
            (seen.elapsed() >= DURABLE_AFTER).then_some(())
        });
        let image = host.join(format!("cut{cut}.img"));
        let from = host.join("disk.img");
        assert!(succeeds("cp", &["--reflink=always", text(&from), text(&image)]));
        running.kill();
        agent.kill();
        let after = env.path(&format!("after{cut}"));
        fs::create_dir(&after).unwrap();
        let after_cut = Disk::mount(&image, &after).expect("ext4 recovers");
        let (state_after, root_after) = (after.join("state"), after.join("root"));
        // Files under their final name are whole.
        let source: BTreeMap<_, _> = tree(&data);
        let mut whole = 0;
        for (path, thing) in tree(&root_after) {
            let Ok(path) = path.strip_prefix("data") else { continue };
            let is_file = root_after.join("data").join(path).symlink_metadata().unwrap().is_file();
            let is_part = path.to_string_lossy().contains(".penstock-");
            if is_file && !is_part {
                assert_eq!(Some(&thing), source.get(path), "{}", path.display());
                whole += 1;
            }
        }
        let agent = agent_after_boot(&env, &state_after, &root_after, &listen);
        let mut command = penstock(&state_after);
        command.args(["cp", "--json", "-r", "--block", "64KiB"]).arg(&data).arg(agent.url(""));
        let done = run(command).good();
        assert_same(&data, &root_after.join("data"));
        let resumed = done.number("resumed_bytes");
        println!(
            "cut {cut}: {written} of {total} bytes written, {whole} files whole, {resumed} kept"
        );
        assert!(resumed * 100 >= written * 95, "{written}: {done:?}");
        assert_no_leftovers(&root_after, &state_after);
        drop((agent, after_cut));
    }
}
