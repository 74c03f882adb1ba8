//! Terminal behaviour of `penstock cp` and related verbs: progress, waiting, giving up, exit codes.

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::site::Operations;
use common::{
    Agent, PENSTOCK, RunningCommand, TestEnv, assert_same, is_root, penstock, run, seeded,
    wait_until, write_file, write_private,
};

fn signal(name: &str, process: u32) {
    let kill = Command::new("kill").args([name, &process.to_string()]).status();
    assert!(kill.unwrap().success());
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Writes a file of `bytes` into the source directory.
fn source(env: &TestEnv, bytes: usize) -> PathBuf {
    let file = env.source.join("file");
    write_file(&mut seeded(41), &file, bytes);
    file
}

/// Output of a command on a pseudo-terminal of `columns` columns.
fn on_terminal(env: &TestEnv, columns: u16, words: &str) -> String {
    let line = format!("stty cols {columns} rows 24; exec {PENSTOCK} {words}");
    let output = Command::new("script")
        .args(["-qec", &line, "/dev/null"])
        .env("PENSTOCK_STATE", &env.state)
        .env("PENSTOCK_ROLES", "agent")
        .env_remove("JOURNAL_STREAM")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    text(&output.stdout)
}

#[test]
fn progress_line_fits_the_terminal() {
    let env = TestEnv::new();
    let file = source(&env, 3 << 20);
    for columns in [12, 33, 60, 500] {
        let to = env.path(&format!("to{columns}"));
        let words = format!("cp --rate 16M --block 64KiB {} {}", file.display(), to.display());
        let seen = on_terminal(&env, columns, &words);
        let (progress, summary) = seen.rsplit_once("\r\x1b[K").expect("a progress line");
        let frames: Vec<&str> = progress.split('\r').filter(|frame| !frame.is_empty()).collect();
        assert!(frames.len() > 3, "{seen:?}");
        for frame in frames {
            let line = frame.trim_end_matches("\x1b[K");
            assert!(
                line.len() < usize::from(columns) && !line.contains('\n'),
                "{columns}: {line:?}"
            );
            assert!(columns < 500 || line.contains("bound by"), "{line:?}");
        }
        assert!(summary.starts_with("copied 3.00 MiB in 1 file in "), "{summary:?}");
    }
}

#[test]
fn repeated_copy_has_nothing_to_do() {
    let env = TestEnv::new();
    let agent = env.agent();
    let file = source(&env, 3 << 20);
    let copy = || {
        let mut command = env.penstock();
        let output = command.arg("cp").arg(&file).arg(agent.url("")).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        text(&output.stdout)
    };
    assert!(copy().starts_with("copied 3.00 MiB in 1 file in "));
    assert_eq!(copy(), "nothing to do: 1 file (3.00 MiB) is already there\n");
}

/// Changes without data are said.
#[test]
fn repeated_copy_names_changed_attributes() {
    let env = TestEnv::new();
    let agent = env.agent();
    let data = env.source.join("data");
    fs::create_dir(&data).unwrap();
    write_file(&mut seeded(44), &data.join("file"), 9000);
    std::os::unix::fs::symlink("file", data.join("link")).unwrap();
    let copy = || {
        let mut command = env.penstock();
        command.args(["cp", "-r", "--compare", "digest"]).arg(&data).arg(agent.url(""));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        text(&output.stdout)
    };
    copy();
    fs::set_permissions(data.join("file"), fs::Permissions::from_mode(0o640)).unwrap();
    let said = copy();
    let first = "nothing to send: 1 file (8.79 KiB) is already there\n";
    assert!(said.starts_with(first), "{said}");
    assert!(said.contains("1 file and 1 directory have the mode, times"), "{said}");
    assert!(said.contains("1 link has the target and time"), "{said}");
    let mode = fs::metadata(env.root.join("data/file")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
}

#[test]
fn giving_up_says_the_command_resumes() {
    let env = TestEnv::new();
    let mut agent = env.agent();
    let file = source(&env, 8 << 20);
    let options = ["--rate", "8M", "--block", "64KiB", "--give-up-after", "1s"];
    let client = RunningCommand::start(env.cp(&options).arg(&file).arg(agent.url("")));
    wait_until("first bytes", Duration::from_secs(20), || {
        let transfers = agent.transfers(&env.state);
        transfers.iter().any(|one| one["moved_bytes"].as_u64() > Some(0)).then_some(())
    });
    agent.kill();
    let done = client.wait();
    assert_eq!((done.code, done.lines().len()), (1, 1), "{done:?}");
    let words = "; gave up after 1.0s: run the same command again to resume";
    assert!(done.error.contains(&format!("cannot reach {}: ", agent.listen)), "{done:?}");
    assert!(done.error.trim_end().ends_with(words), "{done:?}");
}

#[test]
fn unreachable_name_names_each_address() {
    let env = TestEnv::new();
    let file = source(&env, 1000);
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let agent = env.agent();
    drop(agent);
    let to = format!("penstock://localhost:{}/", free.port());
    let done = run(env.penstock().arg("cp").arg(&file).arg(&to));
    assert_eq!((done.code, done.lines().len()), (1, 1), "{done:?}");
    assert!(done.error.contains(&format!("cannot reach localhost:{}: ", free.port())), "{done:?}");
    assert!(done.error.contains(&format!("{free}: Connection refused")), "{done:?}");
    assert!(done.error.contains("start an agent there"), "{done:?}");
}

#[test]
fn hangup_ends_a_copy_resumably() {
    let env = TestEnv::new();
    let agent = env.agent();
    let file = source(&env, 8 << 20);
    let options = ["--rate", "8M", "--block", "64KiB"];
    for (name, number) in [("-HUP", 1), ("-TERM", 15)] {
        let mut client = RunningCommand::start(env.cp(&options).arg(&file).arg(agent.url("")));
        wait_until("its first bytes", Duration::from_secs(20), || {
            assert!(!client.is_over());
            let running = agent.transfers(&env.state);
            let moves = |one: &serde_json::Value| {
                one["state"] == "running" && one["moved_bytes"].as_u64() > Some(0)
            };
            running.iter().any(moves).then_some(())
        });
        client.await_handler(number);
        signal(name, client.child.id());
        let done = client.wait();
        assert_eq!((done.code, done.lines().len()), (1, 1), "{name}: {done:?}");
        assert!(done.error.contains("run the same command again to resume"), "{name}: {done:?}");
        agent.ended_transfers(&env.state);
    }
    let done = run(env.cp(&["--block", "64KiB"]).arg(&file).arg(agent.url(""))).good();
    assert!(done.number("resumed_bytes") > 0, "{done:?}");
    assert_same(&env.source, &env.root);
}

#[test]
fn nohup_copy_survives_a_hangup() {
    let env = TestEnv::new();
    let file = source(&env, 2 << 20);
    let to = env.path("to");
    let mut command = Command::new("nohup");
    command.args([PENSTOCK, "cp", "--json", "--rate", "8M", "--block", "64KiB"]);
    command.arg(&file).arg(&to).env("PENSTOCK_STATE", &env.state);
    let mut client = RunningCommand::start(&mut command);
    wait_until("it is listed", Duration::from_secs(20), || {
        assert!(!client.is_over());
        let listed = run(env.penstock().args(["transfers", "--json"]));
        (!listed.json["copies"].as_array()?.is_empty()).then_some(())
    });
    signal("-HUP", client.child.id());
    client.wait().good();
    assert_eq!(fs::read(&file).unwrap(), fs::read(&to).unwrap());
}

/// A copy that delivers no file fails as a whole (exit code 1, not 3), for a file as for a directory.
#[test]
fn nothing_arrived_is_a_failure() {
    let env = TestEnv::new();
    let agent = env.agent();
    let data = env.source.join("data");
    fs::create_dir(&data).unwrap();
    write_file(&mut seeded(42), &data.join("one"), 9000);
    fs::create_dir_all(env.root.join("data/one/full")).unwrap();
    fs::create_dir_all(env.root.join("one/full")).unwrap();
    for from in [&data, &data.join("one")] {
        for to in [agent.url(""), env.root.to_str().unwrap().to_owned()] {
            let mut command = env.penstock();
            let Output { status, stdout, stderr } =
                command.args(["cp", "-r"]).arg(from).arg(&to).output().unwrap();
            let (out, error) = (text(&stdout), text(&stderr));
            assert_eq!(status.code(), Some(1), "{from:?} {to}: {out}{error}");
            assert!(out.starts_with("nothing was copied: 1 failed in "), "{out}");
        }
    }
    let states = agent.ended_transfers(&env.state);
    assert_eq!(states.len(), 2, "{states:?}");
    assert!(states.iter().all(|one| one["state"] == "failed"), "{states:?}");
    // With one delivered file the copy has exit code 3, and the transfer is partial.
    write_file(&mut seeded(43), &data.join("two"), 9000);
    let done = run(env.cp(&["-r"]).arg(&data).arg(agent.url("")));
    assert_eq!(done.code, 3, "{done:?}");
    let states = agent.ended_transfers(&env.state);
    assert!(states.len() == 3 && states[2]["state"] == "partial", "{states:?}");
}

/// Destination of a directory and its contents, special mode bits and hard links, as documented in
/// `docs/operations.md`.
#[test]
fn trees_arrive_as_documented() {
    let env = TestEnv::new();
    let agent = env.agent();
    let data = env.source.join("d");
    fs::create_dir(&data).unwrap();
    fs::write(data.join("one"), "of two names").unwrap();
    fs::hard_link(data.join("one"), data.join("two")).unwrap();
    fs::write(data.join("program"), "runs").unwrap();
    let set =
        |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    set(&data.join("program"), 0o6755);
    set(&data, 0o1770);
    let [data, contents] = [data.display().to_string(), format!("{}/.", data.display())];
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
    for (to, root, special) in [
        (env.path("").display().to_string(), env.path(""), 0o6755),
        (agent.url(""), env.root.clone(), 0o755),
    ] {
        for name in ["new", "new2/"] {
            run(env.cp(&["-r", &data, &format!("{to}{name}")])).good();
            let there = root.join(name).join("d");
            assert_eq!(
                (mode(&there), mode(&there.join("program"))),
                (0o1770, special),
                "{there:?}"
            );
            for name in ["one", "two"] {
                assert_eq!(fs::metadata(there.join(name)).unwrap().nlink(), 1);
                assert_eq!(fs::read(there.join(name)).unwrap(), b"of two names");
            }
        }
        run(env.cp(&["-r", &contents, &format!("{to}new3/")])).good();
        let there = root.join("new3");
        assert!(there.join("one").is_file() && !there.join("d").exists());
        assert_ne!(mode(&there), 0o1770);
    }
}

#[test]
fn set_and_cp_share_limits() {
    let env = TestEnv::new();
    for (name, value, limit) in
        [("--streams", "257", "256"), ("--readers", "65", "64"), ("--writers", "65", "64")]
    {
        let words = format!("use a number from 1 to {limit}");
        for before in [&["cp"][..], &["transfers", "set", "7"]] {
            for value in [value, "0", "x"] {
                let mut command = env.penstock();
                command.args(before).args([name, value]);
                if before == ["cp"] {
                    command.args(["a", "b"]);
                }
                let done = run(command);
                assert_eq!((done.code, done.lines().len()), (2, 1), "{done:?}");
                assert!(done.error.contains(&words), "{done:?}");
            }
        }
    }
}

#[test]
fn set_takes_the_listed_id() {
    let env = TestEnv::new();
    let agent = env.agent();
    let file = source(&env, 8 << 20);
    let to = env.path("to");
    let options = ["--rate", "4M", "--block", "64KiB"];
    let mut client = RunningCommand::start(env.cp(&options).arg(&file).arg(&to));
    let transfers = |words: &[&str]| {
        let mut command = env.penstock();
        run(command.args(["transfers", "--json", "--http", &agent.http]).args(words))
    };
    let id = wait_until("it is listed", Duration::from_secs(20), || {
        assert!(!client.is_over());
        Some(transfers(&[]).json["copies"].get(0)?["id"].as_str()?.to_owned())
    });
    let process = client.child.id().to_string();
    assert_eq!(id, format!("cp{process}"));
    // A bare number that is no transfer of the agent selects the local copy.
    for id in [&id, &process] {
        let set = transfers(&["set", id, "--rate", "5M"]).good();
        assert_eq!(
            (set.json["id"].as_str(), set.number("rate_bps")),
            (Some(&*format!("cp{process}")), 5_000_000)
        );
    }
    assert_eq!(transfers(&["cancel", &process]).code, 0);
    assert_eq!(client.wait().code, 1);
    let gone = transfers(&["cancel", &process]);
    assert!(gone.code == 1 && gone.error.contains("no transfer"), "{gone:?}");
}

/// Storage that blocks writes: a file system frozen (FIFREEZE) until this is dropped.
struct Frozen(PathBuf);

impl Frozen {
    fn freeze(at: &Path) -> Option<Self> {
        let status = Command::new("fsfreeze").arg("-f").arg(at).status();
        status.is_ok_and(|status| status.success()).then(|| Self(at.to_owned()))
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = Command::new("fsfreeze").arg("-u").arg(&self.0).status();
    }
}

struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// The agent restarts while writes of the first session still hang. The next session waits for them, longer than the
/// 5 s of the journal lock.
#[test]
fn pull_waits_for_its_own_writes() {
    if !is_root() {
        return penstock_testkit::skip(
            penstock_testkit::Requirement::Root,
            "only root freezes a file system",
        );
    }
    let env = TestEnv::new();
    let file = env.root.join("file");
    write_file(&mut seeded(44), &file, 24 << 20);
    let to = env.path("to");
    fs::create_dir(&to).unwrap();
    let image = env.path("image");
    fs::File::create(&image).unwrap().set_len(128 << 20).unwrap();
    let succeeds = |command: &mut Command| command.status().is_ok_and(|status| status.success());
    if !succeeds(Command::new("mkfs.ext4").args(["-q", "-m", "0"]).arg(&image))
        || !succeeds(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&to))
    {
        return penstock_testkit::skip(
            penstock_testkit::Requirement::Kernel,
            "an ext4 in a file cannot be mounted here",
        );
    }
    let _mounted = Mounted(to.clone());
    let mut agent = env.restartable_agent();
    let mut command = env.cp(&["--rate", "40M", "--block", "256KiB"]);
    let mut client = RunningCommand::start(command.arg(agent.url("file")).arg(&to));
    wait_until("first bytes", Duration::from_secs(20), || {
        assert!(!client.is_over());
        let copies = run(env.penstock().args(["transfers", "--json"])).json["copies"].take();
        (copies.get(0)?["moved_bytes"].as_u64() > Some(1 << 20)).then_some(())
    });
    let Some(frozen) = Frozen::freeze(&to) else {
        return penstock_testkit::skip(
            penstock_testkit::Requirement::Kernel,
            "fsfreeze does not work here",
        );
    };
    let begun = Instant::now();
    agent.kill();
    let agent = Agent::start(&env.state, &env.root, &agent.listen, &[]);
    // Longer than the wait for a journal and than the reconnection attempts.
    wait_until("time has passed", Duration::from_secs(20), || {
        assert!(!client.is_over(), "{:?}", begun.elapsed());
        (begun.elapsed() > Duration::from_secs(8)).then_some(())
    });
    drop(frozen);
    let done = client.wait().good();
    assert_eq!(done.number("sessions"), 2, "{done:?}");
    assert_eq!(fs::read(&file).unwrap(), fs::read(to.join("file")).unwrap());
    drop(agent);
}

/// Two equal copies at once: the second waits for the first and then finds every file in place.
#[test]
fn same_copy_waits_for_the_first() {
    let env = TestEnv::new();
    let agent = env.agent();
    write_file(&mut seeded(45), &env.root.join("file"), 4 << 20);
    let to = env.path("to");
    fs::create_dir(&to).unwrap();
    let local = env.root.join("file");
    for (number, from) in [agent.url("file"), local.to_str().unwrap().to_owned()].iter().enumerate()
    {
        let to = to.join(number.to_string());
        fs::create_dir(&to).unwrap();
        // The rate is not part of a command's identity; 7 s exceed the wait for a journal.
        let copy = |rate: &str| {
            let mut command = env.cp(&["--block", "64KiB", "--rate", rate, from]);
            RunningCommand::start(command.arg(format!("{}/", to.display())))
        };
        let mut first = copy("4700k");
        wait_until("first bytes", Duration::from_secs(20), || {
            assert!(!first.is_over());
            let copies = run(env.penstock().args(["transfers", "--json"])).json["copies"].take();
            (copies.get(0)?["moved_bytes"].as_u64() > Some(0)).then_some(())
        });
        // That the second waited shows in what it found: the whole file. The process of the first may end later.
        let second = copy("1G").wait().good();
        first.wait().good();
        assert!(
            second.error.contains("waiting: ") && second.number("skipped_files") == 1,
            "{second:?}"
        );
    }
}

#[test]
fn token_is_for_terminals_alone() {
    let env = TestEnv::new();
    let root = env.root.display().to_string();
    let line = format!("exec {PENSTOCK} serve --listen 0.0.0.0:0 --http none --root {root}");
    let mut terminal = Command::new("script")
        .args(["-qec", &line, "/dev/null"])
        .env("PENSTOCK_STATE", &env.state)
        .env("PENSTOCK_ROLES", "agent")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(terminal.stdout.take().unwrap()).lines().map(Result::unwrap);
    let login = lines.into_iter().find(|line| line.contains("penstock login ")).expect("a line");
    let process = fs::read_to_string(env.state.join("agent.lock")).unwrap();
    signal("-TERM", process.trim().parse().unwrap());
    terminal.wait().unwrap();
    let token = fs::read_to_string(env.state.join("token")).unwrap();
    assert!(login.contains(&format!("--token {} ", token.trim())), "{login}");
}

#[test]
fn unknown_request_is_a_failure() {
    let operations = Operations::start(
        "[[controller.class]]\nname = \"production\"\nlabel = \"cms/data-consolidation\"\nweight = 1\n",
    );
    for words in [&["show", "99"][..], &["cancel", "99"], &["set", "99", "--priority", "2"]] {
        let done = run(operations.ask(words));
        assert_eq!((done.code, done.lines().len()), (1, 1), "{words:?}: {done:?}");
    }
}

/// AGE is the time since the submission, for ended requests too.
#[test]
fn age_of_ended_requests_grows() {
    let operations = Operations::start(
        "[[controller.class]]\nname = \"production\"\nlabel = \"cms/data-consolidation\"\nweight = 1\n",
    );
    let id = operations.submit("a:/data/x", "b:/data/y", "k", &["--class", "production"]);
    run(operations.ask(&["cancel", &id.to_string()]));
    wait_until("it has ended", Duration::from_secs(20), || {
        (!operations.facts(id)["ended_unix_seconds"].is_null()).then_some(())
    });
    let age = || {
        let output = operations.ask(&["list"]).output().unwrap();
        let text = text(&output.stdout);
        assert!(text.starts_with("ID "), "{text}");
        text.lines().nth(1).unwrap().split_whitespace().last().unwrap().to_owned()
    };
    let first = age();
    wait_until("it is older", Duration::from_secs(30), || (age() != first).then_some(()));
}

#[test]
fn login_holds_for_other_names() {
    let env = TestEnv::new();
    let agent = env.agent();
    let (port, other) = (agent.listen.rsplit_once(':').unwrap().1, env.path("other"));
    let file = source(&env, 9000);
    let copy = |to: &str| {
        run(penstock(&other).args(["cp", "-q"]).arg(&file).arg(format!("penstock://{to}/")))
    };
    let login = |to: &str, token: &str| {
        let mut command = penstock(&other);
        run(command.args(["login", to, "--token", token, "--fingerprint", &agent.fingerprint]))
    };
    let alias = format!("localhost:{port}");
    let stranger = copy(&alias);
    assert_eq!(stranger.code, 5, "{stranger:?}");
    let token = fs::read_to_string(env.state.join("token")).unwrap().trim().to_owned();
    login(&agent.listen, &token).good();
    copy(&alias).good();
    // An agent with another certificate gets no token.
    let elsewhere = TestEnv::new();
    let second = elsewhere.agent();
    let refused = copy(&second.listen);
    assert!(refused.code == 5 && refused.error.contains("no token for"), "{refused:?}");
}

#[test]
fn login_to_http_port_is_verified() {
    let env = TestEnv::new();
    let agent = env.agent();
    let other = env.path("other");
    let login = |token: &str| {
        let mut command = penstock(&other);
        let fingerprint = agent.fingerprint.as_str();
        command.args(["login", &agent.http, "--token", token, "--fingerprint", fingerprint]);
        let Output { status, stdout, stderr } = command.output().unwrap();
        (status.code(), text(&stdout), text(&stderr))
    };
    let (code, _, error) = login(&"x".repeat(64));
    assert!(code == Some(5) && error.contains("nothing is kept"), "{error}");
    assert!(!other.join("hosts.toml").exists());
    let token = fs::read_to_string(env.state.join("token")).unwrap().trim().to_owned();
    let (code, out, error) = login(&token);
    assert_eq!((code, error.as_str()), (Some(0), ""), "{out}");
    assert!(out.contains("HTTP API of an agent, which knows you as owner"), "{out}");
    assert!(!out.contains("penstock cp"), "{out}");
}

#[test]
fn login_to_a_controller_is_checked() {
    let more = format!(
        "[[controller.token]]\nname = \"robot\"\nsha256 = \"{}\"\nscopes = [\"submit:production\"]\n\
         [[controller.token]]\nname = \"watcher\"\nsha256 = \"{}\"\nscopes = [\"read\"]\n\
         [[controller.class]]\nname = \"production\"\nlabel = \"cms/data-consolidation\"\nweight = 1\n",
        sha256("the-token-of-the-robot"),
        sha256("the-token-of-the-watcher")
    );
    let operations = Operations::start(&more);
    let dir = tempfile::tempdir().unwrap();
    let fingerprint = operations.serve.as_ref().unwrap().fingerprint.clone();
    let login = |token: &str| {
        let mut command = penstock(dir.path());
        command.args([
            "login",
            &operations.listen,
            "--token",
            token,
            "--fingerprint",
            &fingerprint,
        ]);
        let Output { status, stdout, stderr } = command.output().unwrap();
        (status.code(), text(&stdout), text(&stderr))
    };
    let (code, _, error) = login("a-token-of-nobody-at-all");
    assert!(code == Some(5) && error.contains("nothing is kept"), "{error}");
    for token in ["the-token-of-the-watcher", "the-token-of-the-robot"] {
        let (code, out, error) = login(token);
        assert_eq!((code, error.as_str()), (Some(0), ""), "{out}");
        assert!(out.contains("HTTP API of a controller, which takes your token"), "{out}");
    }
    let mut list = penstock(dir.path());
    run(list.args(["list", "--controller", &operations.listen])).good();
}

/// SHA-256 as computed by sha256sum.
fn sha256(text: &str) -> String {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), text).unwrap();
    let sum = Command::new("sha256sum").arg(file.path()).output().unwrap();
    String::from_utf8_lossy(&sum.stdout).split_whitespace().next().unwrap().to_owned()
}

/// Of two clients the one whose token is removed loses its transfer; the other continues.
#[test]
fn removed_token_ends_its_transfer() {
    let env = TestEnv::new();
    let tokens = env.path("tokens");
    let (alice, bob) = ("alice-has-a-long-token", "bob-has-a-long-token-too");
    let list = |text: String| {
        let beside = env.path("tokens.new");
        write_private(&beside, text);
        fs::rename(&beside, &tokens).unwrap();
    };
    list(format!("alice {alice}\nbob {bob}\n"));
    let agent =
        Agent::start(&env.state, &env.root, "127.0.0.1:0", &["--tokens", tokens.to_str().unwrap()]);
    let file = source(&env, 8 << 20);
    let mut copies = Vec::new();
    for (name, token) in [("alice", alice), ("bob", bob)] {
        let state = env.path(name);
        let mut login = penstock(&state);
        login.args(["login", &agent.listen, "--token", token]);
        run(login.args(["--fingerprint", &agent.fingerprint])).good();
        let mut copy = penstock(&state);
        copy.args(["cp", "--json", "--rate", "16M", "--block", "64KiB"]).arg(&file);
        copies.push(RunningCommand::start(copy.arg(agent.url(name))));
    }
    wait_until("both move", Duration::from_secs(20), || {
        let transfers = agent.transfers(&env.state);
        let moves = |one: &&serde_json::Value| one["moved_bytes"].as_u64() > Some(0);
        (transfers.iter().filter(moves).count() == 2).then_some(())
    });
    // An invalid token file revokes no client.
    list(format!("alice {alice}\nbob {bob}\nbroken\n"));
    list(format!("alice {bob}-and-another\nbob {bob}\n"));
    let [first, second] = copies.try_into().ok().unwrap();
    let first = first.wait();
    assert_eq!(first.code, 5, "{first:?}");
    assert!(first.error.contains("the token is not one of this agent's"), "{first:?}");
    second.wait().good();
    let ended = agent.transfers(&env.state);
    let of_alice = ended.iter().find(|one| one["caller"] == "alice").unwrap();
    assert_eq!(of_alice["state"], "failed", "{of_alice}");
    assert!(!env.root.join("alice").exists());
}
