//! Options of `penstock cp`, checked against other programs and plain code: digests, comparison, readback, in-place
//! writes, sparse files, attributes, lists, names, directions, ssh.

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use common::{
    Agent, CommandOutcome, PENSTOCK, RunningCommand, TestEnv, assert_no_leftovers, assert_same,
    run, seeded, wait_until, write_file, write_tree,
};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn dataset(env: &TestEnv, seed: u64) -> PathBuf {
    let data = env.source.join("data");
    fs::create_dir(&data).unwrap();
    write_tree(&mut seeded(seed), &data, 2, 60);
    data
}

fn push(env: &TestEnv, agent: &Agent, data: &Path, more: &[&str]) -> CommandOutcome {
    run(env.cp(&["-r"]).args(more).arg(data).arg(agent.url("")))
}

/// RFC 1950, section 8.2.
fn adler32(bytes: &[u8]) -> u32 {
    let (mut a, mut b) = (1_u32, 0_u32);
    for byte in bytes {
        a = (a + u32::from(*byte)) % 65_521;
        b = (b + a) % 65_521;
    }
    b << 16 | a
}

/// RFC 3720, appendix B.4: polynomial 0x1edc6f41, reflected.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0_u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 }
        })
    })
}

fn digest_of(algorithm: &str, path: &Path) -> String {
    let bytes = fs::read(path).unwrap();
    match algorithm {
        "adler32" => format!("{:08x}", adler32(&bytes)),
        "crc32c" => format!("{:08x}", crc32c(&bytes)),
        "blake3" => blake3::hash(&bytes).to_hex().to_string(),
        program => {
            let output = Command::new(format!("{program}sum")).arg(path).output().unwrap();
            let output = String::from_utf8_lossy(&output.stdout).into_owned();
            output.split_whitespace().next().unwrap().trim_start_matches('\\').to_owned()
        }
    }
}

#[test]
fn digests_match_other_programs() {
    let env = TestEnv::new();
    let data = dataset(&env, 31);
    let agent = env.agent();
    let files: Vec<_> = common::tree(&data)
        .into_keys()
        .filter(|path| data.join(path).symlink_metadata().unwrap().is_file())
        .collect();
    let wanted = |algorithm: &str| -> Vec<(String, String)> {
        let one = |path: &PathBuf| {
            (format!("data/{}", path.display()), digest_of(algorithm, &data.join(path)))
        };
        files.iter().map(one).collect()
    };
    for algorithm in ["adler32", "crc32c", "blake3", "sha256", "md5"] {
        for pull in [false, true] {
            let to = env.path(&format!("{algorithm}{pull}"));
            fs::create_dir(&to).unwrap();
            let sums = env.path("sums");
            let mut command = env.cp(&["-r", "--checksum", algorithm, "--block", "256KiB"]);
            command.args(["--checksum-file", text(&sums)]);
            let done = if pull {
                run(command.arg(agent.url(&format!("{algorithm}/data"))).arg(&to)).good()
            } else {
                run(command.arg(&data).arg(agent.url(&format!("{algorithm}/")))).good()
            };
            let root = if pull { to } else { env.root.join(algorithm) };
            assert_same(&data, &root.join("data"));
            let listed = done.json["digests"].as_object().unwrap();
            assert_eq!(listed.len(), files.len(), "{algorithm}");
            for (path, digest) in wanted(algorithm) {
                assert_eq!(listed[&path], digest, "{algorithm} {path}");
            }
            if matches!(algorithm, "sha256" | "md5") {
                let check = Command::new(format!("{algorithm}sum"))
                    .args(["--check", "--strict", "--quiet"])
                    .arg(&sums)
                    .current_dir(&root)
                    .output()
                    .unwrap();
                assert!(check.status.success(), "{check:?}");
            }
            assert_eq!(fs::read_to_string(&sums).unwrap().lines().count(), files.len());
        }
    }
    let done = push(&env, &agent, &data, &["--checksum", "none"]).good();
    assert!(done.json["digests"].as_object().unwrap().is_empty(), "{done:?}");
    assert_same(&data, &env.root.join("data"));
}

/// A second copy sends nothing and still lists the digest of every file.
#[test]
fn sums_list_what_was_there_already() {
    let env = TestEnv::new();
    let data = dataset(&env, 45);
    let agent = env.agent();
    let to = env.path("to");
    fs::create_dir(&to).unwrap();
    let (pushed, pulled, local) = (agent.url(""), agent.url("data"), env.path("local"));
    fs::create_dir(&local).unwrap();
    for (from, into, root) in [
        (text(&data), pushed.as_str(), &env.root),
        (&pulled, text(&to), &to),
        (text(&data), text(&local), &local),
    ] {
        let copy = || {
            let sums = env.path("sums");
            let mut command = env.cp(&["-r", "--checksum", "sha256"]);
            let done = run(command.args(["--checksum-file", text(&sums), from, into])).good();
            let list = fs::read_to_string(&sums).unwrap();
            let mut lines: Vec<_> = list.lines().map(str::to_owned).collect();
            lines.sort();
            (done, lines)
        };
        let (first, once) = copy();
        let (second, twice) = copy();
        assert_eq!(second.number("skipped_files"), first.number("files"), "{second:?}");
        assert_eq!(once.len() as u64, first.number("files"), "{first:?}");
        assert_eq!(once, twice);
        assert_same(&data, &root.join("data"));
    }
    assert_no_leftovers(&env.root, &env.state);
}

/// A copy is killed half way; the digests are correct though another process sent the rest.
#[test]
fn resumed_file_has_correct_digest() {
    let env = TestEnv::new();
    let mut random = seeded(32);
    let one = env.source.join("one");
    write_file(&mut random, &one, 6 << 20);
    let agent = env.agent();
    for algorithm in ["adler32", "crc32c", "blake3", "sha256", "md5", "none"] {
        let start = |rate: &str| {
            let mut command =
                env.cp(&["--checksum", algorithm, "--block", "64KiB", "--rate", rate]);
            RunningCommand::start(command.arg(&one).arg(agent.url(algorithm)))
        };
        let client = start("24M");
        let known = env.agent_bytes(&agent, algorithm, 2 << 20);
        client.kill();
        let done = start("1G").wait().good();
        assert!(done.number("resumed_bytes") * 100 >= known * 95, "{algorithm}: {known} {done:?}");
        assert_eq!(fs::read(&one).unwrap(), fs::read(env.root.join(algorithm)).unwrap());
        if algorithm != "none" {
            let digests = done.json["digests"].as_object().unwrap();
            let digest = digests.values().next().unwrap();
            assert_eq!(digest, &digest_of(algorithm, &one), "{algorithm}");
        }
    }
    assert_no_leftovers(&env.root, &env.state);
}

trait AgentBytes {
    /// Waits until the running transfer to `name` has moved `least` bytes, and returns how many it has moved.
    fn agent_bytes(&self, agent: &Agent, name: &str, least: u64) -> u64;
}

impl AgentBytes for TestEnv {
    fn agent_bytes(&self, agent: &Agent, name: &str, least: u64) -> u64 {
        wait_until("progress", Duration::from_secs(20), || {
            let transfers = agent.transfers(&self.state);
            // An earlier one may be listed as running for a moment after its end.
            let is_ours =
                |one: &serde_json::Value| one["path"].as_str().is_some_and(|it| it.ends_with(name));
            let mut running = transfers.iter().filter(|one| one["state"] == "running");
            let running = running.find(|one| is_ours(one))?;
            running["moved_bytes"].as_u64().filter(|moved| *moved >= least)
        })
    }
}

#[test]
fn existing_files_are_not_resent() {
    let env = TestEnv::new();
    let data = dataset(&env, 33);
    let agent = env.agent();
    let first = push(&env, &agent, &data, &["--verify", "readback"]).good();
    let again = push(&env, &agent, &data, &[]).good();
    assert_eq!(again.number("skipped_files"), again.number("files"));
    assert_eq!(again.number("resumed_bytes"), first.number("bytes"));
    assert_eq!(again.number("moved_bytes"), 0);

    // Other bytes with the same size and time: only a digest shows the difference.
    let there = env.root.join("data/large0");
    let modified = there.metadata().unwrap().modified().unwrap();
    fs::set_permissions(&there, fs::Permissions::from_mode(0o600)).unwrap();
    let mut bytes = fs::read(&there).unwrap();
    bytes[1 << 20] ^= 1;
    fs::write(&there, bytes).unwrap();
    fs::File::options().write(true).open(&there).unwrap().set_modified(modified).unwrap();
    // The same bytes with another time: only a digest shows that they are equal.
    let touched = env.root.join("data/large1");
    fs::set_permissions(&touched, fs::Permissions::from_mode(0o600)).unwrap();
    fs::File::options()
        .write(true)
        .open(&touched)
        .unwrap()
        .set_modified(SystemTime::UNIX_EPOCH)
        .unwrap();
    let size = |name: &str| data.join(name).metadata().unwrap().len();
    let done = push(&env, &agent, &data, &["--compare", "digest"]).good();
    assert_eq!(done.number("moved_bytes"), size("large0"), "{done:?}");
    assert_same(&data, &env.root.join("data"));
    assert_no_leftovers(&env.root, &env.state);
}

#[test]
fn inplace_writes_under_final_name() {
    let env = TestEnv::new();
    let data = dataset(&env, 34);
    let agent = env.agent();
    fs::create_dir(env.root.join("data")).unwrap();
    let there = env.root.join("data/large0");
    fs::write(&there, vec![1; 9 << 20]).unwrap();
    let inode = there.metadata().unwrap().ino();
    push(&env, &agent, &data, &["--inplace"]).good();
    assert_same(&data, &env.root.join("data"));
    assert_eq!(there.metadata().unwrap().ino(), inode, "it is another file now");
    assert_no_leftovers(&env.root, &env.state);
}

#[test]
fn sparse_files_stay_sparse() {
    let env = TestEnv::new();
    let data = env.source.join("data");
    fs::create_dir(&data).unwrap();
    let mut random = seeded(35);
    for (name, bytes, islands) in
        [("large", 64 << 20, 3_u64), ("empty", 16 << 20, 0), ("tail", 5 << 20, 1)]
    {
        let file = fs::File::create(data.join(name)).unwrap();
        file.set_len(bytes).unwrap();
        for island in 0..islands {
            use std::os::unix::fs::FileExt;
            file.write_all_at(&random.bytes(100_000), ((island * 17) << 20) + 12_345).unwrap();
        }
    }
    let agent = env.agent();
    // Four islands, each in one block of 4 MiB.
    let moved = |done: CommandOutcome| (done.number("moved_bytes"), done.number("bytes"));
    assert_eq!(moved(push(&env, &agent, &data, &[]).good()), (16 << 20, 85 << 20));
    let copy = env.root.join("data");
    assert_same(&data, &copy);
    let back = env.path("back");
    fs::create_dir(&back).unwrap();
    let pulled = run(env.cp(&["-r", &agent.url("data")]).arg(&back)).good();
    assert_eq!(moved(pulled), (16 << 20, 85 << 20));
    assert_same(&data, &back.join("data"));
    for name in ["large", "empty", "tail"] {
        let blocks = |root: &Path| root.join(name).metadata().unwrap().blocks();
        let source = blocks(&data);
        for root in [&copy, &back.join("data")] {
            let got = blocks(root);
            assert!(
                got <= source + 512,
                "{name}: {got} blocks of 512 bytes, the source has {source}"
            );
        }
    }
}

#[test]
fn attributes_travel_when_asked() {
    let env = TestEnv::new();
    let data = dataset(&env, 36);
    let agent = env.agent();
    let names = ["large0", "small0"];
    for name in names {
        let file = fs::File::open(data.join(name)).unwrap();
        if let Err(error) =
            penstock_sys::fs::set_xattr(&file, "user.origin".as_ref(), b"tier\0zero")
        {
            return penstock_testkit::skip(
                penstock_testkit::Requirement::Kernel,
                &format!("no extended attributes here: {error}"),
            );
        }
    }
    let get = |root: &Path, name: &str| {
        let file = fs::File::open(root.join("data").join(name)).unwrap();
        penstock_sys::fs::get_xattr(&file, "user.origin".as_ref()).unwrap()
    };
    push(&env, &agent, &data, &[]).good();
    assert!(names.iter().all(|name| get(&env.root, name).is_none()));
    run(env.cp(&["-r", "--xattrs"]).arg(&data).arg(agent.url("with/"))).good();
    for name in names {
        assert_eq!(
            get(&env.root.join("with"), name).as_deref(),
            Some(&b"tier\0zero"[..]),
            "{name}"
        );
    }
}

/// Directories, read-only files and links keep their xattrs too; refusals of the destination are reported.
#[test]
fn xattrs_travel_or_are_reported() {
    let env = TestEnv::new();
    let data = env.source.join("data");
    fs::create_dir_all(data.join("shelf")).unwrap();
    write_file(&mut seeded(46), &data.join("small"), 100);
    write_file(&mut seeded(47), &data.join("large"), 3 << 20);
    std::os::unix::fs::symlink("small", data.join("link")).unwrap();
    let dir = penstock_sys::fs::Dir::open(&data).unwrap();
    for name in ["shelf", "small", "large"] {
        if let Err(error) = dir.set_xattr(name, "user.origin".as_ref(), name.as_bytes()) {
            return penstock_testkit::skip(
                penstock_testkit::Requirement::Kernel,
                &format!("no extended attributes here: {error}"),
            );
        }
    }
    for name in ["shelf", "small"] {
        fs::set_permissions(data.join(name), fs::Permissions::from_mode(0o555)).unwrap();
    }
    let on_link = dir.set_xattr("link", "trusted.origin".as_ref(), b"link").is_ok();
    let all = |root: &Path| {
        let dir = penstock_sys::fs::Dir::open(root.join("data")).unwrap();
        ["shelf", "small", "large"].map(|name| dir.xattrs(name).unwrap())
    };
    let agent = env.agent();
    for url in [agent.url(""), agent.url("")] {
        // Files that are in place get their attributes too.
        let done = run(env.cp(&["-r", "--xattrs", "--compare", "digest"]).arg(&data).arg(&url));
        // Attributes in `trusted.` give rights.
        assert!(done.good().number("warnings") <= u64::from(on_link));
        assert_eq!(all(&env.source), all(&env.root));
        assert_same(&data, &env.root.join("data"));
    }
    let ram = env.path("ram");
    fs::create_dir(&ram).unwrap();
    let mount = Command::new("mount").args(["-t", "ramfs", "ramfs"]).arg(&ram).status();
    if !mount.is_ok_and(|status| status.success()) {
        return penstock_testkit::skip(
            penstock_testkit::Requirement::Kernel,
            "a file system without attributes cannot be mounted here",
        );
    }
    let done = run(env.cp(&["-r", "--xattrs"]).arg(&data).arg(&ram));
    drop(agent);
    let agent = Agent::start(&env.state, &ram, "127.0.0.1:0", &[]);
    let pushed = run(env.cp(&["-r", "--xattrs"]).arg(&data).arg(agent.url("pushed/")));
    let same = common::tree(&data) == common::tree(&ram.join("data"));
    drop(agent);
    let _ = Command::new("umount").arg("-l").arg(&ram).status();
    for done in [done, pushed] {
        let done = done.good();
        assert_eq!(done.number("warnings"), 3 + u64::from(on_link), "{done:?}");
        for name in ["shelf", "small", "large"] {
            let line = format!(
                "penstock: warning: data/{name}: it arrived without the attributes user.origin: not supported"
            );
            assert!(done.error.contains(&line), "{line}: {done:?}");
        }
    }
    assert!(same);
}

#[test]
fn lists_names_and_directions() {
    let env = TestEnv::new();
    let data = dataset(&env, 37);
    let agent = env.agent();

    // A list from a file and from standard input.
    let list = env.path("list");
    fs::write(&list, "large0\n./deep/small1\ndeep/er/small2\n").unwrap();
    let done =
        run(env.cp(&["--files-from", text(&list), text(&data), &agent.url("listed/")])).good();
    assert_eq!(done.number("files"), 3);
    let mut command = env.penstock();
    command.args(["cp", "-q", "--files-from", "-", text(&data), &agent.url("piped/")]);
    let status = command.stdin(Stdio::from(fs::File::open(&list).unwrap())).status().unwrap();
    assert!(status.success());
    for root in ["listed", "piped"] {
        for name in ["large0", "deep/small1", "deep/er/small2"] {
            let copy = env.root.join(root).join(name);
            assert_eq!(
                fs::read(data.join(name)).unwrap(),
                fs::read(copy).unwrap(),
                "{root}/{name}"
            );
        }
    }

    // An empty list succeeds at once in both directions.
    fs::write(&list, "\n").unwrap();
    for (from, to) in [(text(&data), agent.url("none/")), (&agent.url("listed"), "none".into())] {
        let done = run(env.cp(&["--files-from", text(&list), from, &to])).good();
        assert!(done.json["ok"] == true && done.number("files") == 0, "{done:?}");
    }

    // A file under another name, into a directory, and several at once.
    let one = data.join("large0");
    let bytes = fs::read(&one).unwrap();
    fs::create_dir(env.root.join("dir")).unwrap();
    for (to, arrives) in [
        ("b", "b"),
        ("new/deep/c", "new/deep/c"),
        ("dir", "dir/large0"),
        ("other/", "other/large0"),
        ("", "large0"),
    ] {
        run(env.cp(&[text(&one), &agent.url(to)])).good();
        assert_eq!(fs::read(env.root.join(arrives)).unwrap(), bytes, "{to}");
    }
    run(env.cp(&[text(&one), text(&data.join("small0")), &agent.url("two")])).good();
    assert_eq!(fs::read_dir(env.root.join("two")).unwrap().count(), 2);

    // Pulls under another name and under its own.
    let back = env.path("back");
    fs::create_dir(&back).unwrap();
    run(env.cp(&[&agent.url("b"), text(&back.join("a"))])).good();
    assert_eq!(fs::read(back.join("a")).unwrap(), bytes);
    run(env.cp(&[&agent.url("b"), &agent.url("new/deep/c"), text(&back)])).good();
    assert_eq!(fs::read(back.join("c")).unwrap(), bytes);
    push(&env, &agent, &data, &[]).good();
    run(env.cp(&["-r", &agent.url("data"), text(&back)])).good();
    assert_same(&data, &back.join("data"));

    // Within this machine, without an agent.
    let here = env.path("here");
    fs::create_dir(&here).unwrap();
    for options in [&["-r"][..], &["-r", "--checksum", "sha256", "--engine", "buffered"]] {
        let _ = fs::remove_dir_all(here.join("data"));
        let done = run(env.cp(options).args([&data, &here])).good();
        assert_same(&data, &here.join("data"));
        assert_eq!(done.number("moved_bytes"), done.number("bytes"), "{done:?}");
    }
    run(env.cp(&[&one, &here.join("renamed")])).good();
    assert_eq!(fs::read(here.join("renamed")).unwrap(), bytes);
    // A final dot copies only the contents.
    for (number, from) in
        [format!("{}/.", data.display()), format!("{}/", data.display())].iter().enumerate()
    {
        let to = env.path(&format!("contents{number}"));
        fs::create_dir(&to).unwrap();
        run(env.cp(&["-r"]).arg(from).arg(&to)).good();
        let name = if number == 0 { "" } else { "data" };
        assert!(to.join(name).join("large0").is_file(), "{from:?}");
    }
    // Streams of both address families.
    drop(agent);
    let six = Agent::start(&env.state, &env.root, "[::1]:0", &[]);
    run(env.cp(&[text(&one), &six.url("six")])).good();
    assert_eq!(fs::read(env.root.join("six")).unwrap(), bytes);
    assert_no_leftovers(&env.root, &env.state);
    assert_no_leftovers(&here, &env.state);
}

/// Blocks of one file in memory are written by all writers at once.
#[test]
fn copies_arrive_in_memory() {
    let env = TestEnv::new();
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let root = memory.path().join("root");
    fs::create_dir(&root).unwrap();
    let agent = Agent::start(&env.state, &root, "127.0.0.1:0", &[]);
    let source = env.path("sizes");
    fs::create_dir(&source).unwrap();
    let mut random = seeded(51);
    for (name, bytes) in [("a", 4_194_303), ("b", 4_194_304), ("c", 12_345_679), ("d", 40 << 20)] {
        write_file(&mut random, &source.join(name), bytes);
    }
    for more in [&[][..], &["--protect", "full"], &["--inplace"], &["--checksum", "sha256"]] {
        let mut command = env.cp(&["-r", "--block", "1MiB", "--streams", "8"]);
        let done = run(command.args(more).arg(&source).arg(agent.url(""))).good();
        assert_same(&source, &root.join("sizes"));
        assert_eq!(done.json["engine_remote"], "mapped", "{done:?}");
        fs::remove_dir_all(root.join("sizes")).unwrap();
    }
    assert_no_leftovers(&root, &env.state);
}

/// A list of paths at an agent, with names of any bytes, directories, and missing files.
#[test]
fn files_from_selects_pulled_paths() {
    let env = TestEnv::new();
    let data = dataset(&env, 48);
    fs::write(data.join("deep/new\nline"), "odd name").unwrap();
    fs::rename(&data, env.root.join("data")).unwrap();
    let data = env.root.join("data");
    let agent = env.agent();
    let to = env.path("to");
    let list = env.path("list");
    let pull = |more: &[&str]| {
        let mut command = env.cp(&["--files-from", text(&list)]);
        run(command.args(more).arg(agent.url("data")).arg(&to))
    };
    let same = |name: &str| {
        assert_eq!(fs::read(data.join(name)).unwrap(), fs::read(to.join(name)).unwrap())
    };

    fs::write(&list, b"large0\0./deep/small1\0deep/new\nline\0large0\0").unwrap();
    let done = pull(&["-0"]).good();
    assert_eq!(done.number("files"), 3, "{done:?}");
    ["large0", "deep/small1", "deep/new\nline"].into_iter().for_each(same);
    assert!(!to.join("small0").exists());

    fs::write(&list, "large1\nno/such\n../agent\ndeep/er\n").unwrap();
    let done = pull(&[]);
    assert_eq!((done.code, done.number("files"), done.number("failed")), (3, 1, 3), "{done:?}");
    assert!(done.error.contains("no/such: no such file"), "{done:?}");
    assert!(done.error.contains("deep/er: it is a directory"), "{done:?}");
    assert!(done.error.contains("../agent"), "{done:?}");

    fs::write(&list, "deep/er\n").unwrap();
    let done = pull(&["-r"]).good();
    assert_eq!(done.number("files"), 30, "{done:?}");
    same("deep/er/est/small3");

    // More paths than one message carries.
    let many = data.join("many");
    fs::create_dir(&many).unwrap();
    let names: Vec<_> =
        (0..4000).map(|number| format!("many/a file of many, number {number}")).collect();
    names.iter().for_each(|name| fs::write(data.join(name), name).unwrap());
    fs::write(&list, names.join("\n")).unwrap();
    let done = pull(&[]).good();
    assert_eq!(done.number("files"), 4000, "{done:?}");
    assert_same(&many, &to.join("many"));
    // NUL bytes without `--from0`.
    fs::write(&list, b"large0\0large1").unwrap();
    let done = pull(&[]);
    assert_eq!((done.code, done.lines().len()), (2, 1), "{done:?}");
    assert_no_leftovers(&to, &env.state);
}

#[test]
fn a_file_onto_itself_is_kept() {
    let env = TestEnv::new();
    let one = env.source.join("one");
    write_file(&mut seeded(38), &one, 3 << 20);
    let bytes = fs::read(&one).unwrap();
    for options in
        [&[][..], &["--inplace"], &["--compare", "digest"], &["--inplace", "--compare", "digest"]]
    {
        let done = run(env.cp(options).args([&one, &one]));
        println!("{options:?}: {} {}", done.code, done.error);
        assert_eq!(fs::read(&one).unwrap(), bytes, "{options:?}");
    }
}

/// A server of OpenSSH for this user alone; killed when dropped.
struct Sshd {
    child: std::process::Child,
    options: String,
}

impl Sshd {
    fn start(env: &TestEnv) -> Option<Self> {
        let program = Path::new("/usr/sbin/sshd");
        if !program.exists() {
            penstock_testkit::skip(
                penstock_testkit::Requirement::Program,
                "no sshd is installed (openssh-server)",
            );
            return None;
        }
        let at = env.path("ssh");
        fs::create_dir(&at).unwrap();
        fs::set_permissions(env.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        // As root sshd needs this directory, which a packaged service creates.
        let _ = fs::create_dir("/run/sshd");
        for key in ["host", "user"] {
            let made = Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(at.join(key))
                .status()
                .unwrap();
            assert!(made.success());
        }
        fs::copy(at.join("user.pub"), at.join("authorized_keys")).unwrap();
        let port = penstock_testkit::raw::free_port();
        let config = format!(
            "ListenAddress 127.0.0.1\nPort {port}\nHostKey {0}/host\nPidFile none\nUsePAM no\n\
             AuthorizedKeysFile {0}/authorized_keys\nStrictModes no\nPasswordAuthentication no\n\
             PermitRootLogin yes\nMaxStartups 100\nMaxSessions 100\n",
            at.display()
        );
        fs::write(at.join("config"), config).unwrap();
        let child = Command::new(program)
            .args(["-D", "-e", "-f"])
            .arg(at.join("config"))
            .stderr(fs::File::create(at.join("log")).unwrap())
            .spawn()
            .unwrap();
        let options = format!(
            "ssh -p {port} -i {}/user -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null \
             -o LogLevel=ERROR -o BatchMode=yes -o IdentitiesOnly=yes -F none",
            at.display()
        );
        let sshd = Self { child, options };
        let begun = std::time::Instant::now();
        while begun.elapsed() < Duration::from_secs(30) {
            let words: Vec<_> = sshd.options.split_whitespace().collect();
            let try_it =
                Command::new(words[0]).args(&words[1..]).args(["127.0.0.1", "true"]).output();
            if try_it.is_ok_and(|output| output.status.success()) {
                return Some(sshd);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        penstock_testkit::skip(
            penstock_testkit::Requirement::Kernel,
            &format!(
                "sshd does not let this user in: {}",
                fs::read_to_string(at.join("log")).unwrap_or_default()
            ),
        );
        None
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn by_ssh_without_an_agent() {
    let env = TestEnv::new();
    let Some(sshd) = Sshd::start(&env) else { return };
    let data = dataset(&env, 39);
    let far_state = env.path("far-state");
    let remote = format!("env PENSTOCK_STATE={} {PENSTOCK}", far_state.display());
    let cp = |options: &[&str]| {
        let mut command = env.cp(&["-r", "--ssh", &sshd.options, "--remote-command", &remote]);
        command.args(options);
        command
    };
    for (name, options) in [("direct", &[][..]), ("inside", &["--via-ssh"])] {
        let to = env.root.join(name);
        fs::create_dir(&to).unwrap();
        let done = run(cp(options).arg(&data).arg(format!("127.0.0.1:{}/", to.display()))).good();
        println!("{name}: {}", done.json);
        assert_same(&data, &to.join("data"));
        assert_no_leftovers(&to, &far_state);
        let back = env.path(&format!("back-{name}"));
        fs::create_dir(&back).unwrap();
        run(cp(options).arg(format!("127.0.0.1:{}/data", to.display())).arg(&back)).good();
        assert_same(&data, &back.join("data"));
    }
    // Between two hosts, each with its own remote process.
    let (from, to) = (env.root.join("direct/data"), env.path("between"));
    fs::create_dir(&to).unwrap();
    let place = |path: &Path| format!("127.0.0.1:{}", path.display());
    run(cp(&[]).arg(place(&from)).arg(place(&to))).good();
    assert_same(&data, &to.join("data"));
    let inside = run(cp(&["--via-ssh"]).arg(place(&from)).arg(place(&to)));
    assert_eq!((inside.code, inside.lines().len()), (2, 1), "{inside:?}");
    let mut wrong = env.penstock();
    wrong.args(["cp", "-r", "--ssh", &sshd.options, "--remote-command", "/nonexistent/penstock"]);
    let wrong = run(wrong.arg(&data).arg("127.0.0.1:/tmp/"));
    assert_eq!(wrong.code, 1, "{wrong:?}");
    assert!(wrong.error.contains("penstock did not start there"), "{wrong:?}");
    // Remote processes end with the command.
    wait_until("far ends are gone", Duration::from_secs(30), || {
        let list = Command::new("ps").args(["-eo", "args"]).output().unwrap();
        let list = String::from_utf8_lossy(&list.stdout).into_owned();
        let mine = |line: &&str| line.contains("far-end") && line.contains(text(&far_state));
        (list.lines().filter(mine).count() == 0).then_some(())
    });
}

/// A list of digests replaces neither a source nor a file of the copy, and appears when it is complete.
#[test]
fn list_of_digests_spares_copied_files() {
    let env = TestEnv::new();
    let source = env.source.join("a");
    fs::write(&source, "important").unwrap();
    let out = env.path("out");
    fs::create_dir(&out).unwrap();
    let from = source.clone().into_os_string();
    for (list, to) in
        [(&source, out.clone()), (&out.join("a"), out.clone()), (&out.join("b"), out.join("b"))]
    {
        let mut command = env.cp(&["--checksum-file"]);
        let done = run(command.arg(list).arg(&from).arg(to));
        assert_eq!(done.code, 2, "{done:?}");
        assert!(done.error.contains("name another file"), "{done:?}");
    }
    assert_eq!(fs::read_to_string(&source).unwrap(), "important");
    let list = out.join("sums");
    fs::write(&list, "an older list").unwrap();
    let mut command = env.cp(&["--checksum-file"]);
    run(command.arg(&list).arg(&from).arg(&out)).good();
    assert!(fs::read_to_string(&list).unwrap().ends_with("  a\n"));
    assert_eq!(fs::read_dir(&out).unwrap().count(), 2, "the copy and the list");
    assert_eq!(fs::metadata(&list).unwrap().permissions().mode() & 0o444, 0o444);
}

/// An agent sets no attribute that gives rights, such as a file capability.
#[test]
fn agent_sets_no_attributes_with_rights() {
    let env = TestEnv::new();
    let data = env.source.join("data");
    fs::create_dir(&data).unwrap();
    fs::write(data.join("program"), "text").unwrap();
    let dir = penstock_sys::fs::Dir::open(&data).unwrap();
    // cap_setuid=ep
    let capability = [1, 0, 0, 2, 128, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let set = |name: &str, value: &[u8]| dir.set_xattr("program", name.as_ref(), value).is_ok();
    if !set("user.origin", b"x")
        || !set("trusted.origin", b"y")
        || !set("security.capability", &capability)
    {
        return penstock_testkit::skip(penstock_testkit::Requirement::Root, "such attributes");
    }
    let agent = env.agent();
    let copy = |to: std::ffi::OsString| run(env.cp(&["-r", "--xattrs"]).arg(&data).arg(to)).good();
    let names = |root: &Path| {
        let there = penstock_sys::fs::Dir::open(root.join("data")).unwrap();
        let mut names: Vec<_> =
            there.xattrs("program").unwrap().into_iter().map(|one| one.0).collect();
        names.sort();
        names
    };
    let done = copy(agent.url("in/").into());
    assert_eq!(done.number("warnings"), 1, "{done:?}");
    assert!(done.error.contains("without the attributes"), "{done:?}");
    assert_eq!(names(&env.root.join("in")), ["user.origin"]);
    // On the machine of the user they stay.
    fs::create_dir(env.path("here")).unwrap();
    assert_eq!(copy(env.path("here").into()).number("warnings"), 0);
    assert_eq!(names(&env.path("here")), ["security.capability", "trusted.origin", "user.origin"]);
}
