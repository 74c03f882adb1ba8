//! Failures at a site: one line that names the object, the reason and if possible the remedy; everything else
//! delivered; the right exit code.

mod common;

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use common::{
    Agent, CommandOutcome, RunningCommand, TestEnv, assert_no_leftovers, assert_same, fails,
    fixed_address, is_root, parts, penstock, run, seeded, wait_until, write_file, write_private,
};
use penstock_protocol::PROTOCOL_VERSION;

/// A file system of a few MiB, unmounted when dropped.
struct Small(PathBuf);

impl Small {
    fn mount(at: &Path, options: &str) -> Option<Self> {
        if !is_root() {
            penstock_testkit::skip(
                penstock_testkit::Requirement::Root,
                "only root mounts a small file system",
            );
            return None;
        }
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "tmpfs"])
            .arg(at)
            .status()
            .is_ok_and(|status| status.success());
        if !mounted {
            penstock_testkit::skip(
                penstock_testkit::Requirement::Kernel,
                "a small file system cannot be mounted here",
            );
        }
        mounted.then(|| Self(at.to_owned()))
    }

    /// Mounts an ext4 of `bytes` at the export, through a loop device.
    fn mount_ext4(env: &TestEnv, bytes: u64) -> Option<Self> {
        if !is_root() {
            penstock_testkit::skip(
                penstock_testkit::Requirement::Root,
                "only root mounts a small file system",
            );
            return None;
        }
        let image = env.path("image");
        fs::File::create(&image).unwrap().set_len(bytes).unwrap();
        let succeeds =
            |command: &mut Command| command.status().is_ok_and(|status| status.success());
        let mounted = succeeds(Command::new("mkfs.ext4").args(["-q", "-m", "0"]).arg(&image))
            && succeeds(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&env.root));
        if !mounted {
            penstock_testkit::skip(
                penstock_testkit::Requirement::Kernel,
                "an ext4 in a file cannot be mounted here",
            );
        }
        mounted.then(|| Self(env.root.clone()))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Asserts that one line about `path` contains `words`; returns the number of lines.
#[track_caller]
fn one_line(done: &CommandOutcome, path: &str, words: &str) -> usize {
    let about: Vec<_> = done.lines().into_iter().filter(|line| line.contains(path)).collect();
    assert_eq!(about.len(), 1, "{path}: {done:?}");
    assert!(about[0].starts_with("penstock: ") && about[0].contains(words), "{about:?}");
    done.lines().len()
}

fn dataset(env: &TestEnv, files: &[(&str, usize)]) -> PathBuf {
    let mut random = seeded(11);
    let data = env.source.join("data");
    for (name, bytes) in files {
        fs::create_dir_all(data.join(name).parent().unwrap()).unwrap();
        write_file(&mut random, &data.join(name), *bytes);
    }
    data
}

fn push(env: &TestEnv, agent: &Agent, data: &Path, more: &[&str]) -> Command {
    let mut command = env.cp(&["-r"]);
    command.args(more).arg(data).arg(agent.url(""));
    command
}

#[test]
fn full_disk_delivers_files_that_fit() {
    let env = TestEnv::new();
    let Some(_small) = Small::mount(&env.root, "size=8m") else { return };
    let data =
        dataset(&env, &[("big", 16 << 20), ("small", 9000), ("other", 70_000), ("mid", 2 << 20)]);
    let agent = env.agent();
    let done = run(&mut push(&env, &agent, &data, &[]));
    assert_eq!(done.code, 3, "{done:?}");
    assert_eq!(one_line(&done, "data/big", "no space left"), 1, "{done:?}");
    assert_eq!(done.json["errors"].as_array().unwrap().len(), 1);
    for name in ["small", "other", "mid"] {
        assert_eq!(
            fs::read(data.join(name)).unwrap(),
            fs::read(env.root.join("data").join(name)).unwrap()
        );
    }
    assert_eq!(parts(&env.root), Vec::<PathBuf>::new());
}

#[test]
fn full_disk_reports_each_small_file() {
    let env = TestEnv::new();
    let Some(_small) = Small::mount(&env.root, "size=1m") else { return };
    let names: Vec<String> = (0..60).map(|number| format!("f{number}")).collect();
    let files: Vec<_> = names.iter().map(|name| (name.as_str(), 40_000)).collect();
    let data = dataset(&env, &files);
    let agent = env.agent();
    let done = run(&mut push(&env, &agent, &data, &[]));
    assert_eq!(done.code, 3, "{done:?}");
    let failed = done.number("failed") as usize;
    assert!(failed > 30 && done.lines().len() == failed, "{done:?}");
    assert!(done.lines().iter().all(|line| line.contains("no space left")), "{done:?}");
    assert_eq!(done.number("files") as usize + failed, 60);
    assert_eq!(parts(&env.root), Vec::<PathBuf>::new());
}

/// The same on ext4 behind a loop device, where large files use direct I/O.
#[test]
fn direct_io_delivers_files_that_fit() {
    let env = TestEnv::new();
    let Some(_small) = Small::mount_ext4(&env, 24 << 20) else { return };
    let data = dataset(
        &env,
        &[("big", 30 << 20), ("bigger", 40 << 20), ("fits", 3 << 20), ("small", 9000)],
    );
    let agent = env.agent();
    let done = run(push(&env, &agent, &data, &["--block", "256KiB"]));
    assert_eq!(done.code, 3, "{done:?}");
    one_line(&done, "data/big: ", "no space left");
    assert_eq!(one_line(&done, "data/bigger: ", "no space left"), 2, "{done:?}");
    for name in ["fits", "small"] {
        let copy = env.root.join("data").join(name);
        assert_eq!(fs::read(data.join(name)).unwrap(), fs::read(copy).unwrap());
    }
    assert_eq!(parts(&env.root), Vec::<PathBuf>::new());
}

/// The device returns another byte than was written: only readback detects it. The test plays the failing device and
/// changes a byte in the image of the file system.
#[test]
fn readback_detects_corrupt_device() {
    let env = TestEnv::new();
    let Some(mounted) = Small::mount_ext4(&env, 48 << 20) else { return };
    let data = dataset(&env, &[("damaged", 4 << 20), ("good", 300_000), ("deep/good", 3 << 20)]);
    let agent = env.agent();
    let mark = fs::read(data.join("damaged")).unwrap()[..1024].to_vec();
    let options = ["--verify", "readback", "--rate", "16M", "--block", "64KiB"];
    let mut client = RunningCommand::start(&mut push(&env, &agent, &data, &options));
    let image = fs::File::options().read(true).write(true).open(env.path("image")).unwrap();
    let at = wait_until("its first block", Duration::from_secs(20), || {
        let mut all = vec![0; 48 << 20];
        image.read_exact_at(&mut all, 0).unwrap();
        // A small ext4 has blocks of 1 KiB.
        all.chunks(1024).position(|block| block == mark).map(|number| number as u64 * 1024)
    });
    assert!(!client.is_over(), "it is whole already");
    image.write_all_at(&[!mark[100]], at + 100).unwrap();
    let done = client.wait();
    assert_eq!((done.code, done.number("failed")), (4, 1), "{done:?}");
    assert_eq!(done.json["errors"][0]["kind"], "integrity", "{done:?}");
    one_line(&done, "data/damaged", "differs from what was read at the source");
    assert!(!env.root.join("data/damaged").exists());
    for name in ["good", "deep/good"] {
        let (wanted, got) = (data.join(name), env.root.join("data").join(name));
        assert_eq!(fs::read(wanted).unwrap(), fs::read(got).unwrap());
    }
    assert_eq!(parts(&env.root), Vec::<PathBuf>::new());
    // Copied again, it arrives.
    run(push(&env, &agent, &data, &options[..2])).good();
    assert_eq!(
        fs::read(data.join("damaged")).unwrap(),
        fs::read(env.root.join("data/damaged")).unwrap()
    );
    drop((agent, mounted));
}

#[test]
fn a_pipe_of_that_name_stays() {
    let env = TestEnv::new();
    let data = dataset(&env, &[("pipe", 9000), ("file", 70_000)]);
    fs::create_dir(env.root.join("data")).unwrap();
    let pipe = env.root.join("data/pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let agent = env.agent();
    for more in [&[][..], &["--inplace"]] {
        let done = run(push(&env, &agent, &data, more));
        assert_eq!(done.code, 3, "{done:?}");
        assert_eq!(
            one_line(&done, "data/pipe", "a fifo of that name is in the way"),
            1,
            "{done:?}"
        );
        assert!(!fs::metadata(&pipe).unwrap().is_file());
    }
}

#[test]
fn sigterm_during_connect_ends_copy() {
    let env = TestEnv::new();
    let data = dataset(&env, &[("one", 9000)]);
    let agent = env.agent();
    let pid = agent.child.id().to_string();
    let signal = |name: &str, pid: &str| {
        assert!(Command::new("kill").args([name, pid]).status().unwrap().success());
    };
    signal("-STOP", &pid);
    let mut copy = RunningCommand::start(&mut push(&env, &agent, &data, &[]));
    let ours = copy.child.id().to_string();
    // The copy catches SIGTERM once it is connected and waits for an answer.
    copy.await_handler(15);
    signal("-TERM", &ours);
    signal("-CONT", &pid);
    wait_until("it has ended", Duration::from_secs(20), || copy.is_over().then_some(()));
    let done = copy.wait();
    assert_eq!(done.code, 1, "{done:?}");
    assert!(done.error.contains("run the same command again"), "{done:?}");
    assert!(!env.root.join("data/one").exists());
}

#[test]
fn read_only_file_system_is_reported() {
    let env = TestEnv::new();
    let Some(_small) = Small::mount(&env.root, "ro,size=8m") else { return };
    let data = dataset(&env, &[("one", 9000)]);
    let agent = env.agent();
    let done = run(env.cp(&[data.join("one").to_str().unwrap(), &agent.url("")]).arg("--quiet"));
    fails(&done, 1, "one: file system is read-only");
}

/// The command as user nobody.
fn as_nobody(command: &Command) -> Command {
    let mut other = Command::new("setpriv");
    other.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    other.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => other.env(name, value),
            None => other.env_remove(name),
        };
    }
    other
}

fn for_nobody(env: &TestEnv) -> bool {
    let works = || {
        let mut command = Command::new(common::PENSTOCK);
        command.arg("--version");
        as_nobody(&command).output().is_ok_and(|output| output.status.success())
    };
    if !is_root() || !works() {
        penstock_testkit::skip(
            penstock_testkit::Requirement::Root,
            "only root becomes another user, and needs setpriv",
        );
        return false;
    }
    fs::set_permissions(env.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(&env.state).unwrap();
    for path in [&env.state, &env.root] {
        std::os::unix::fs::chown(path, Some(65534), Some(65534)).unwrap();
    }
    true
}

#[test]
fn permission_denied_is_reported_per_file() {
    let env = TestEnv::new();
    if !for_nobody(&env) {
        return;
    }
    let data = dataset(
        &env,
        &[("locked/a", 9000), ("open/b", 9000), ("open/large", 3 << 20), ("secret", 100)],
    );
    for name in ["open/b", "open/large", "locked/a"] {
        fs::set_permissions(data.join(name), fs::Permissions::from_mode(0o644)).unwrap();
    }
    fs::set_permissions(data.join("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::create_dir_all(env.root.join("data/locked")).unwrap();
    std::os::unix::fs::chown(env.root.join("data"), Some(65534), Some(65534)).unwrap();
    let mut serve = env.penstock();
    serve.args(["serve", "--listen", "127.0.0.1:0", "--http", "none", "--json", "--root"]);
    let agent = Agent::spawn(as_nobody(serve.arg(&env.root)));
    let done = run(&mut as_nobody(&push(&env, &agent, &data, &[])));
    assert_eq!(done.code, 3, "{done:?}");
    one_line(&done, "data/locked/a: ", "permission denied");
    one_line(&done, "data/secret: ", "permission denied");
    for name in ["open/b", "open/large"] {
        assert_eq!(
            fs::read(data.join(name)).unwrap(),
            fs::read(env.root.join("data").join(name)).unwrap()
        );
    }
    assert_eq!(parts(&env.root), Vec::<PathBuf>::new());
}

/// Linux allows setting xattrs only on writable files: the mover sets them before the file becomes read-only.
#[test]
fn read_only_entries_receive_xattrs() {
    let env = TestEnv::new();
    if !for_nobody(&env) {
        return;
    }
    let data = dataset(&env, &[("shelf/small", 100), ("shelf/large", 3 << 20)]);
    let things = ["data/shelf", "data/shelf/small", "data/shelf/large"];
    let source = penstock_sys::fs::Dir::open(&env.source).unwrap();
    for name in things {
        if let Err(error) = source.set_xattr(name, OsStr::new("user.x"), name.as_bytes()) {
            return penstock_testkit::skip(
                penstock_testkit::Requirement::Kernel,
                &format!("no extended attributes here: {error}"),
            );
        }
        fs::set_permissions(env.source.join(name), fs::Permissions::from_mode(0o555)).unwrap();
    }
    for _ in 0..2 {
        let mut command = env.cp(&["-r", "--xattrs", "--compare", "digest"]);
        let done = run(&mut as_nobody(command.arg(&data).arg(&env.root))).good();
        assert_eq!(done.number("warnings"), 0, "{done:?}");
        let copy = penstock_sys::fs::Dir::open(&env.root).unwrap();
        for name in things {
            assert_eq!(copy.xattrs(name).unwrap(), source.xattrs(name).unwrap());
        }
        assert_same(&env.source, &env.root);
    }
}

/// Starts a slow copy of `data` and waits until its first bytes have arrived.
fn slow(env: &TestEnv, agent: &Agent, data: &Path) -> RunningCommand {
    let options = ["--rate", "24M", "--memory", "512KiB", "--block", "64KiB"];
    let client = RunningCommand::start(&mut push(env, agent, data, &options));
    wait_until("first bytes", Duration::from_secs(20), || {
        let transfers = agent.transfers(&env.state);
        transfers.iter().any(|one| one["moved_bytes"].as_u64() > Some(0)).then_some(())
    });
    client
}

#[test]
fn vanished_source_is_reported() {
    let env = TestEnv::new();
    let data = dataset(&env, &[("first", 6 << 20), ("second", 5 << 20), ("gone", 4 << 20)]);
    let agent = env.agent();
    let client = slow(&env, &agent, &data);
    fs::remove_file(data.join("gone")).unwrap();
    let done = client.wait();
    assert_eq!(done.code, 3, "{done:?}");
    assert_eq!(one_line(&done, "data/gone", "no such file"), 1, "{done:?}");
    assert!(!env.root.join("data/gone").exists());
    for name in ["first", "second"] {
        assert_eq!(
            fs::read(data.join(name)).unwrap(),
            fs::read(env.root.join("data").join(name)).unwrap()
        );
    }
    assert_no_leftovers(&env.root, &env.state);
}

/// Directories get mode and times at the end of a copy; the pushing client reports a failure there.
#[test]
fn directory_metadata_failure_is_reported() {
    let env = TestEnv::new();
    let agent = env.agent();
    let data = dataset(&env, &[("big", 2 << 20), ("gone/x", 0)]);
    fs::remove_file(data.join("gone/x")).unwrap();
    let client = slow(&env, &agent, &data);
    wait_until("the directory", Duration::from_secs(20), || {
        fs::remove_dir(env.root.join("data/gone")).ok()
    });
    let done = client.wait();
    assert_eq!((done.code, done.number("failed")), (3, 1), "{done:?}");
    assert_eq!(one_line(&done, "data/gone", "its mode, owner or times cannot be set"), 1);
    assert_eq!(done.json["errors"][0]["kind"], "destination", "{done:?}");
    assert_eq!(fs::read(data.join("big")).unwrap(), fs::read(env.root.join("data/big")).unwrap());
    assert_no_leftovers(&env.root, &env.state);
}

#[test]
fn source_growing_once_causes_retry() {
    let env = TestEnv::new();
    let data = dataset(&env, &[("grows", 6 << 20), ("other", 1 << 20)]);
    fs::set_permissions(data.join("grows"), fs::Permissions::from_mode(0o644)).unwrap();
    let agent = env.agent();
    let client = slow(&env, &agent, &data);
    let mut file = fs::File::options().append(true).open(data.join("grows")).unwrap();
    file.write_all(&[7; 100_000]).unwrap();
    drop(file);
    client.wait().good();
    assert_same(&data, &env.root.join("data"));
    assert_no_leftovers(&env.root, &env.state);
}

#[test]
fn source_growing_continuously_is_reported() {
    let env = TestEnv::new();
    let data = dataset(&env, &[("grows", 6 << 20), ("other", 1 << 20)]);
    fs::set_permissions(data.join("grows"), fs::Permissions::from_mode(0o644)).unwrap();
    let agent = env.agent();
    let mut client = slow(&env, &agent, &data);
    let mut file = fs::File::options().append(true).open(data.join("grows")).unwrap();
    while !client.is_over() {
        file.write_all(&[7; 1000]).unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
    let done = client.wait();
    assert_eq!(done.code, 3, "{done:?}");
    assert_eq!(one_line(&done, "data/grows", "changed while it was being copied"), 1, "{done:?}");
    assert_eq!(
        fs::read(data.join("other")).unwrap(),
        fs::read(env.root.join("data/other")).unwrap()
    );
    assert!(!env.root.join("data/grows").exists());
    assert_no_leftovers(&env.root, &env.state);
}

#[test]
fn growing_small_file_spares_its_pack() {
    let env = TestEnv::new();
    let names: Vec<_> = (0..60).map(|n| format!("{n:02}")).collect();
    let sizes = names.iter().enumerate().map(|(n, name)| (name.as_str(), 9000 + n * 701));
    let data = dataset(&env, &sizes.collect::<Vec<_>>());
    let agent = env.agent();
    let mut file = fs::File::options().append(true).open(data.join("20")).unwrap();
    let over = std::sync::atomic::AtomicBool::new(false);
    let done = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                file.write_all(&[7]).unwrap();
            }
        });
        let done = run(&mut push(&env, &agent, &data, &[]));
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        done
    });
    assert_eq!(done.code, 3, "{done:?}");
    assert_eq!(one_line(&done, "data/20", "changed while it was being copied"), 1, "{done:?}");
    for name in names.iter().filter(|name| *name != "20") {
        let arrived = fs::read(env.root.join("data").join(name)).unwrap();
        assert!(arrived == fs::read(data.join(name)).unwrap(), "{name} differs");
    }
}

#[test]
fn special_files_are_skipped() {
    let env = TestEnv::new();
    let data = dataset(&env, &[("one", 9000), ("two", 2 << 20)]);
    assert!(Command::new("mkfifo").arg(data.join("pipe")).status().unwrap().success());
    let _socket = std::os::unix::net::UnixListener::bind(data.join("socket")).unwrap();
    let agent = env.agent();
    let done = run(&mut push(&env, &agent, &data, &[]));
    assert_eq!(done.code, 3, "{done:?}");
    one_line(&done, "data/pipe", "not copied");
    assert_eq!(one_line(&done, "data/socket", "not copied"), 2, "{done:?}");
    assert_eq!(done.number("files"), 2);
    // A special file alone: nothing is delivered.
    let done = run(&mut push(&env, &agent, &data.join("pipe"), &[]));
    fails(&done, 1, "not copied");
}

#[test]
fn existing_entries_of_other_type_stay() {
    let env = TestEnv::new();
    let data = dataset(&env, &[("one", 9000), ("dir/two", 90)]);
    fs::create_dir_all(env.root.join("data/one/full")).unwrap();
    fs::write(env.root.join("data/dir"), "a file").unwrap();
    let agent = env.agent();
    let done = run(&mut push(&env, &agent, &data, &[]));
    one_line(&done, "data/one: ", "directory of that name is in the way");
    one_line(&done, "data/dir: ", "in the way");
    one_line(&done, "data/dir/two", "not a directory");
    assert_eq!(fs::read(env.root.join("data/dir")).unwrap(), b"a file");
    let done = run(env.cp(&[data.to_str().unwrap(), &agent.url("")]).arg("-q"));
    fails(&done, 1, "add -r");
}

/// Standard error may be closed without effect on the exit code; a result that cannot be written is a failure.
#[test]
fn closed_output_keeps_exit_code() {
    let env = TestEnv::new();
    let data = dataset(&env, &[("dir/one", 9000), ("two", 9000)]);
    let data = data.to_str().unwrap();
    let to = env.path("to");
    fs::create_dir_all(to.join("data")).unwrap();
    fs::write(to.join("data/dir"), b"a file").unwrap();
    let to = to.to_str().unwrap();
    let closed = || std::io::pipe().unwrap().1;
    for (arguments, code) in [
        (&["cp", "-r", data, to][..], 3),
        (&["cp", "/nonexistent", to], 1),
        (&["cp", "--frobnicate"], 2),
    ] {
        let status = env.penstock().args(arguments).stdout(closed()).stderr(closed()).status();
        assert_eq!(status.unwrap().code(), Some(code), "{arguments:?}");
    }
    let two = format!("{data}/two");
    let full = || -> std::process::Stdio {
        fs::OpenOptions::new().write(true).open("/dev/full").unwrap().into()
    };
    for (output, words) in [(full(), "No space left"), (closed().into(), "Broken pipe")] {
        let mut command = env.cp(&[two.as_str(), to]);
        let done = command.stdout(output).output().unwrap();
        let error = String::from_utf8(done.stderr).unwrap();
        assert_eq!((done.status.code(), error.lines().count()), (Some(1), 1), "{error}");
        assert!(
            error.contains("JSON") && error.to_lowercase().contains(&words.to_lowercase()),
            "{error}"
        );
    }
    let mut human = env.penstock();
    let human = human.args(["cp", &two, to]).stdout(closed()).output().unwrap();
    assert!(human.status.success() && human.stderr.is_empty(), "{human:?}");
}

#[test]
fn unknown_client_is_refused() {
    let env = TestEnv::new();
    let data = dataset(&env, &[("one", 9000)]);
    let agent = env.agent();
    let one = data.join("one");
    let copy = |state: &Path, to: &str| run(penstock(state).arg("cp").arg(&one).arg(to));
    let other = env.path("other");
    fails(&copy(&other, &agent.url("")), 5, "penstock login");
    // Stored credentials may have become invalid since the login.
    let login = |token: &str, fingerprint: &str| {
        let listen = &agent.listen;
        let host = format!(
            "[[host]]\naddress = \"{listen}\"\ntoken = \"{token}\"\nfingerprint = \"{fingerprint}\"\n"
        );
        fs::create_dir_all(&other).unwrap();
        write_private(&other.join("hosts.toml"), host);
    };
    login(&"a".repeat(64), &agent.fingerprint);
    fails(&copy(&other, &agent.url("")), 5, "token");
    let token = fs::read_to_string(env.state.join("token")).unwrap();
    login(token.trim(), &format!("SHA256:{}", "ab".repeat(32)));
    fails(&copy(&other, &agent.url("")), 5, "another certificate");
    login(token.trim(), &agent.fingerprint);
    assert_eq!(copy(&other, &agent.url("")).code, 0);

    let free = fixed_address();
    fails(&copy(&env.state, &format!("penstock://{free}/")), 1, &format!("cannot reach {free}"));
    fails(
        &run(penstock(&env.state).args(["cp", "/nonexistent"]).arg(agent.url(""))),
        1,
        "/nonexistent",
    );
    fails(
        &run(penstock(&env.state).arg("cp").arg(agent.url("nothing")).arg(env.path("x"))),
        1,
        "nothing",
    );
}

#[test]
fn invalid_arguments_exit_with_usage() {
    let env = TestEnv::new();
    let agent = env.agent();
    let url = agent.url("");
    for arguments in [
        vec!["/etc/hostname"],
        vec!["--block", "5000", "/etc/hostname", &url],
        vec!["--streams", "0", "/etc/hostname", &url],
        vec!["--streams", "257", "/etc/hostname", &url],
        vec!["--rate", "quick", "/etc/hostname", &url],
        vec!["--rate", "0", "/etc/hostname", &url],
        vec!["--checksum", "none", "--verify", "readback", "/etc/hostname", &url],
        vec!["--checksum", "none", "--compare", "digest", "/etc/hostname", &url],
        vec!["--checksum", "none", "--checksum-file", "/dev/null", "/etc/hostname", &url],
        vec!["--checksum", "crc16", "/etc/hostname", &url],
        vec!["--protect", "none", "/etc/hostname", &url],
        vec!["--memory", "1MiB", "/etc/hostname", &url],
        vec!["--frobnicate", "/etc/hostname", &url],
        vec!["/etc/hostname", "ftp://x/"],
        vec!["/etc/hostname", "penstock://h:0/"],
        vec!["/etc/hostname", "penstock://me@h/"],
        vec!["-r", &url, &url],
    ] {
        let done = run(env.penstock().arg("cp").args(&arguments));
        assert_eq!((done.code, done.lines().len()), (2, 1), "{arguments:?}: {done:?}");
    }
    for (arguments, words) in [
        (&["transfers", "set", "7", "--rate", "0"][..], "write none"),
        (&["transfers", "set", "7", "--streams", "257"], "from 1 to 256"),
    ] {
        fails(&run(env.penstock().args(arguments)), 2, words);
    }
}

#[test]
fn sources_with_equal_names_are_refused() {
    let env = TestEnv::new();
    let agent = env.agent();
    for name in ["a/x", "b/x", "c/y"] {
        fs::create_dir_all(env.source.join(name).parent().unwrap()).unwrap();
        fs::write(env.source.join(name), name).unwrap();
    }
    let at = |name: &str| env.source.join(name).to_str().unwrap().to_owned();
    let (url, far) = (agent.url(""), |path: &str| agent.url(path));
    for (one, two, to) in [
        (at("a/x"), at("b/x"), url.clone()),
        (at("a/x"), at("b/x/"), env.path("to").to_str().unwrap().to_owned()),
        (far("a/x"), far("b/./x/"), env.path("to").to_str().unwrap().to_owned()),
    ] {
        let done = run(env.penstock().args(["cp", "-r", &one, &at("c/y"), &two, &to]));
        fails(&done, 2, "would both arrive as x");
        assert!(done.error.contains(&one) && done.error.contains(&two), "{done:?}");
        assert_eq!(fs::read_dir(&env.root).unwrap().count(), 0);
    }
    // `a/.` copies the contents under no name of its own.
    run(env.cp(&["-r", &at("a/."), &at("b"), &far("d/")])).good();
    run(env.cp(&["-r", &at("a/x"), &at("c/y"), &url])).good();
}

#[test]
fn version_mismatch_is_reported() {
    let env = TestEnv::new();
    let agent = env.agent();
    let mut preamble = *b"PENSTOCK\0\x09\x01\x01\0\0\0\0";
    let mut socket = TcpStream::connect(&agent.listen).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket.write_all(&preamble).unwrap();
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).unwrap();
    assert_eq!((&answer[..8], answer.len()), (&b"PENSTOCK"[..], 16), "{answer:?}");
    assert_eq!(u16::from_be_bytes([answer[8], answer[9]]), PROTOCOL_VERSION);

    // The client's side: an agent of another version, and a server that is no agent.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        preamble[10] = 1;
        for answer in [&preamble[..], b"HTTP/1.1 400 Bad Request\r\n\r\n"] {
            let (mut socket, _) = listener.accept().unwrap();
            let _ = socket.read_exact(&mut [0; 16]);
            let _ = socket.write_all(answer);
            let _ = socket.shutdown(std::net::Shutdown::Write);
            let _ = socket.read_to_end(&mut Vec::new());
        }
    });
    let one = dataset(&env, &[("one", 9000)]).join("one");
    let copy = || run(env.penstock().arg("cp").arg(&one).arg(format!("penstock://{address}/")));
    fails(&copy(), 1, &format!("speaks protocol version 9 and this penstock {PROTOCOL_VERSION}"));
    fails(&copy(), 1, "does not speak Penstock's protocol");
}

#[test]
fn names_of_any_bytes_arrive() {
    let mut random = seeded(12);
    let env = TestEnv::new();
    let data = env.source.join("data");
    fs::create_dir(&data).unwrap();
    let longest = "x".repeat(255);
    let names: [&[u8]; 7] = [
        b"new\nline",
        b"\xff\xfe not text",
        b" ",
        b"-rf",
        b"a\\b\"c'",
        longest.as_bytes(),
        b"tab\t\x1b[31m",
    ];
    for name in names {
        let name = OsStr::from_bytes(name);
        fs::create_dir_all(data.join("in")).unwrap();
        write_file(&mut random, &data.join(name), 5000);
        write_file(&mut random, &data.join("in").join(name), 2 << 20);
    }
    let agent = env.agent();
    let sums = env.path("sums");
    let checked = ["--checksum", "sha256", "--checksum-file", sums.to_str().unwrap()];
    run(&mut push(&env, &agent, &data, &checked)).good();
    assert_same(&data, &env.root.join("data"));
    let mut check = Command::new("sha256sum");
    check.args(["--check", "--strict"]).arg(&sums).current_dir(&env.root);
    let check = check.output().unwrap();
    assert!(check.status.success(), "{check:?}");
    let back = env.path("back");
    fs::create_dir(&back).unwrap();
    run(env.cp(&["-r", &agent.url("data")]).arg(&back)).good();
    assert_same(&data, &back.join("data"));
}

/// A path above PATH_MAX (4096 bytes) is opened component by component.
#[test]
fn path_beyond_path_max_arrives() {
    use penstock_sys::fs::{Dir, Open};
    let env = TestEnv::new();
    let data = env.source.join("data");
    fs::create_dir(&data).unwrap();
    let piece = "d".repeat(200);
    let below: PathBuf = std::iter::repeat_n(piece.as_str(), 25).collect();
    let dir = Dir::open(&data).unwrap();
    dir.create_dir_all(&below, 0o755).unwrap();
    let name = below.join("file");
    assert!(name.as_os_str().len() > 4096);
    dir.open_file(&name, &Open::creating(0o644)).unwrap().write_all(b"deep down").unwrap();
    let agent = env.agent();
    let done = run(&mut push(&env, &agent, &data, &[])).good();
    assert_eq!(done.number("files"), 1);
    let mut text = String::new();
    let root = Dir::open(env.root.join("data")).unwrap();
    root.open_file(&name, &Open::reading()).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "deep down");
}

/// Neither names nor links lead out of the export.
#[test]
fn links_cannot_leave_the_export() {
    let env = TestEnv::new();
    let outside = env.path("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("secret"), "secret").unwrap();
    std::os::unix::fs::symlink(&outside, env.root.join("out")).unwrap();
    std::os::unix::fs::symlink("../outside", env.root.join("up")).unwrap();
    std::os::unix::fs::symlink("../outside/secret", env.root.join("file")).unwrap();
    let agent = env.agent();
    let into = env.path("into");
    fs::create_dir(&into).unwrap();
    for path in [
        "../outside/secret",
        "x/../../outside/secret",
        "out/secret",
        "up/secret",
        outside.join("secret").to_str().unwrap(),
        "..",
        "%2e%2e/outside/secret",
    ] {
        let done = run(env.penstock().args(["cp", "-r", &agent.url(path)]).arg(&into));
        println!("{path}: {} {}", done.code, done.error.trim());
        assert!([1, 5].contains(&done.code) && done.lines().len() == 1, "{path}: {done:?}");
        assert!(
            !done.error.contains(outside.to_str().unwrap()) || path.starts_with('/'),
            "{done:?}"
        );
        assert_eq!(fs::read_dir(&into).unwrap().count(), 0, "{path}");
    }
    // A link is copied as a link, without its target.
    for link in ["file", "out/"] {
        run(env.cp(&["-r", &agent.url(link)]).arg(&into)).good();
        assert!(into.join(link.trim_end_matches('/')).is_symlink());
    }

    let data = dataset(&env, &[("evil", 9000), ("up/evil", 9000)]);
    let evil = data.join("evil");
    for path in ["../outside/", "out/", "up/evil", "out/deep/er/", "x/../../outside/evil"] {
        let done = run(env.penstock().arg("cp").arg(&evil).arg(agent.url(path)));
        println!("{path}: {} {}", done.code, done.error.trim());
        assert!([1, 5].contains(&done.code) && done.lines().len() == 1, "{path}: {done:?}");
    }
    // A link in place of a directory.
    fs::create_dir(env.root.join("data")).unwrap();
    std::os::unix::fs::symlink("../../outside", env.root.join("data/up")).unwrap();
    let done = run(&mut push(&env, &agent, &data, &[]));
    assert_eq!(done.code, 3, "{done:?}");
    one_line(&done, "data/up/evil", "");
    assert!(env.root.join("data/evil").is_file());
    // A file replaces a link.
    fs::write(data.join("file"), "mine").unwrap();
    run(env.cp(&[data.join("file").to_str().unwrap(), &agent.url("")]).arg("-q")).good();
    assert_eq!(fs::read(env.root.join("file")).unwrap(), b"mine");

    let left: Vec<_> =
        fs::read_dir(&outside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["secret"]);
    assert_eq!(fs::read(outside.join("secret")).unwrap(), b"secret");
    assert!(parts(&env.root).is_empty());
}
