//! The agent by its command line: start, status, changes of transfers, reload, stop.

mod common;

use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{
    Agent, CommandOutcome, ReadyProcess, RunningCommand, penstock, run, wait_until, write_private,
};
use penstock_testkit::certificates::HostCertificate;
use penstock_testkit::http::TestRequest;
use penstock_testkit::raw::uninterrupted;
use serde_json::Value;

fn output(command: &mut Command) -> (i32, String, String) {
    let CommandOutcome { code, output, error, .. } = run(command);
    (code, output, error)
}

fn start(state: &Path, root: &Path) -> Agent {
    Agent::start(state, root, "127.0.0.1:0", &[])
}

/// Starts an agent of the configuration in `file`.
fn start_configured(state: &Path, file: &Path) -> Agent {
    let mut command = penstock(state);
    command.args(["serve", "--json", "--config"]).arg(file);
    Agent::spawn(command)
}

#[test]
fn an_agent_is_asked_and_stopped() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let mut agent = start(&state, directory.path());
    assert!(agent.listen.starts_with("127.0.0.1:"));
    assert!(agent.fingerprint.starts_with("SHA256:"));

    let http = agent.http.clone();
    let transfers =
        |extra: &[&str]| output(penstock(&state).args(["transfers", "--http", &http]).args(extra));
    assert_eq!(transfers(&[]), (0, "no transfers\n".into(), String::new()));
    assert_eq!(
        transfers(&["--json"]),
        (0, "{\"transfers\":[],\"copies\":[]}\n".into(), String::new())
    );
    let (code, _, error) = transfers(&["set", "7", "--rate", "2G"]);
    assert_eq!(code, 1);
    assert!(error.contains("no transfer 7"), "{error}");
    assert_eq!(transfers(&["set", "7"]).0, 2);
    assert_eq!(transfers(&["set", "7", "--rate", "fast"]).0, 2);
    assert_eq!(transfers(&["cancel", "7", "--json"]).0, 1);

    // Another user of this machine has another state directory and no token.
    let other = directory.path().join("other");
    let (code, _, error) =
        output(penstock(&other).args(["transfers", "--http", agent.http.as_str()]));
    assert_eq!(code, 5);
    assert!(error.contains("penstock login") && error.contains("PENSTOCK_STATE"), "{error}");
    let token = "a".repeat(64);
    let fingerprint = agent.fingerprint.as_str();
    // A stored login with an outdated token.
    let host = format!(
        "[[host]]\naddress = \"{}\"\ntoken = \"{token}\"\nfingerprint = \"{fingerprint}\"\n",
        agent.http.as_str()
    );
    std::fs::create_dir_all(&other).unwrap();
    write_private(&other.join("hosts.toml"), host);
    let (code, _, error) =
        output(penstock(&other).args(["transfers", "--http", agent.http.as_str()]));
    assert_eq!(code, 5);
    assert!(error.contains("refuses: the token is not this agent's"), "{error}");
    assert!(!error.contains(&token), "{error}");

    agent.signal("TERM");
    assert_eq!(agent.wait(), 0);
    let (code, _, error) = transfers(&[]);
    assert_eq!(code, 1);
    assert!(error.contains("no agent answers at"), "{error}");
}

#[test]
fn redirected_output_never_has_the_token() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let mut seen = Vec::new();
    for _ in 0..2 {
        let mut command = penstock(&state);
        command.args(["serve", "--listen", "0.0.0.0:0", "--http", "none", "--root", "."]);
        let agent = ReadyProcess::start_until(command, "penstock login");
        seen.push(agent.fact(""));
        let log = agent.end_by("INT");
        let token = std::fs::read_to_string(state.join("token")).unwrap();
        assert!(!log.contains(token.trim()), "the token is in the log: {log}");
    }
    let token = std::fs::read_to_string(state.join("token")).unwrap();
    for line in seen {
        assert!(line.contains("--token TOKEN") && !line.contains(token.trim()), "{line}");
    }
}

#[test]
fn state_directory_admits_one_agent() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let one = start(&state, directory.path());
    let mut second = penstock(&state);
    second.args(["serve", "--listen", "127.0.0.1:0", "--http", "none", "--root"]);
    let (code, _, error) = output(second.arg(directory.path()));
    assert_eq!((code, error.lines().count()), (1, 1), "{error}");
    let process = format!("(process {})", one.child.id());
    assert!(error.contains(&process) && error.contains("--state DIR"), "{error}");
    // A killed agent leaves no lock.
    let fingerprint = one.facts["fingerprint"].clone();
    drop(one);
    assert_eq!(start(&state, directory.path()).facts["fingerprint"], fingerprint);
}

#[test]
fn failed_start_prints_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let config = directory.path().join("penstock.toml");
    std::fs::write(&config, "[agent]\nlisten = \"127.0.0.1:0\"\nhtpp = \"x\"\n").unwrap();
    let config = config.to_str().unwrap();
    let empty = directory.path().join("empty.toml");
    std::fs::write(&empty, "").unwrap();
    let empty = empty.to_str().unwrap();
    let here = ["--root", ".", "--http", "none"];
    for (arguments, code, words) in [
        (vec!["--http", "none"], 2, "give --root DIR"),
        (vec!["--root", "/nonexistent"], 2, "is not a directory"),
        (vec!["--config", empty], 2, &format!("[[export]] in {empty}")),
        (vec!["--root", ".", "--transfers", "0"], 2, "at least 1"),
        (vec!["--root", ".", "--keep-unfinished", "0"], 2, "forever"),
        (vec!["--config", config], 2, "penstock.toml:3: unknown field `htpp`"),
        (vec!["--root", ".", "--http", &taken, "--listen", "127.0.0.1:0"], 1, "--http ADDR:PORT"),
        ([&here[..], &["--listen", &taken]].concat(), 1, "--listen ADDR:PORT"),
        ([&here[..], &["--memory", "1k"]].concat(), 2, "at least"),
    ] {
        let (got, _, error) = output(penstock(&state).arg("serve").args(&arguments));
        assert_eq!(got, code, "{arguments:?}: {error}");
        assert!(error.contains(words), "{arguments:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn malformed_login_is_not_stored() {
    let directory = tempfile::tempdir().unwrap();
    let good = format!("SHA256:{}", "ab".repeat(32));
    let token = "a".repeat(64);
    for (arguments, words) in [
        (["a b", "--token", &token, "--fingerprint", &good], "no address of an agent"),
        (["localhost:1", "--token", "short", "--fingerprint", &good], "shorter than 16"),
        (["localhost:1", "--token", &token, "--fingerprint", "SHA256:12"], "fingerprint"),
        (["localhost:1", "--token-file", "/nonexistent", "--fingerprint", &good], "cannot read"),
    ] {
        let (code, _, error) = output(penstock(directory.path()).arg("login").args(arguments));
        assert_eq!(code, if words == "cannot read" { 1 } else { 2 }, "{error}");
        assert!(error.contains(words), "{error}");
    }
    assert!(!directory.path().join("hosts.toml").exists());
}

/// SIGHUP reloads the configuration; running transfers continue, and an invalid file changes nothing.
#[test]
fn sighup_reloads_limits_exports_and_tokens() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    ["one", "two"].into_iter().for_each(|name| std::fs::create_dir(at(name)).unwrap());
    let file = at("penstock.toml");
    let configure = |rest: &str| {
        let listen = "[agent]\nlisten = \"127.0.0.1:0\"\nhttp = \"127.0.0.1:0\"\n";
        std::fs::write(&file, format!("{listen}{rest}")).unwrap();
    };
    let export = |name: &str| {
        format!(
            "[[export]]\nname = \"/{name}\"\npath = \"{name}\"\nmode = \"read-write\"\nwho = [\"*\"]\n"
        )
    };
    configure(&format!("[limits]\nrate = \"4M\"\n{}", export("one")));
    let agent = start_configured(&at("state"), &file);
    let logged = |words: &str| {
        wait_until(words, Duration::from_secs(20), || {
            let log = agent.log();
            log.lines().find(|line| line.contains(words)).map(str::to_owned)
        })
    };
    std::fs::write(at("file"), vec![7; 20 << 20]).unwrap();
    let listen = agent.listen.clone();
    let copy = |state: &str, to: &str| {
        let mut command = penstock(&at(state));
        command.args(["cp", "-q", "--block", "64KiB"]).arg(at("file"));
        command.arg(format!("penstock://{listen}{to}"));
        command
    };
    let mut slow = copy("state", "/one/").spawn().unwrap();
    logged("transfer 1: ");
    assert_eq!(output(&mut copy("state", "/two/")).0, 1);

    configure("[limits]\nratio = 3\n");
    agent.signal("HUP");
    let line = logged("the configuration stays");
    assert!(line.contains("penstock.toml:5: "), "{line}");
    assert_eq!(output(&mut copy("state", "/two/")).0, 1);
    assert!(slow.try_wait().unwrap().is_none(), "42 s at this rate are not over");

    let token = "a-token-that-came-later";
    let hash = sha256(token);
    configure(&format!(
        "[limits]\nrate = \"10G\"\n{}[[token]]\nname = \"late\"\nsha256 = \"{hash}\"\n",
        export("two")
    ));
    agent.signal("HUP");
    logged("tokens are applied");
    // The running transfer continues at the new limit, though its export is removed.
    let begun = Instant::now();
    assert!(slow.wait().unwrap().success());
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert_eq!(std::fs::metadata(at("one/file")).unwrap().len(), 20 << 20);
    assert_eq!(output(&mut copy("state", "/two/")).0, 0);
    assert_ne!(output(&mut copy("state", "/one/again")).0, 0);
    let fingerprint = agent.fingerprint.as_str();
    let login = ["login", &listen, "--token", token, "--fingerprint", fingerprint];
    let (code, text, error) = output(penstock(&at("late")).args(login));
    assert!(code == 0 && text.contains("as late"), "{text}{error}");
}

/// Clients pin the fingerprint, so that those of the former certificate log in again.
#[test]
fn sighup_renews_the_certificate() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let put = |certificate: &HostCertificate, names: &[&str]| {
        for name in names {
            std::fs::copy(certificate.path(name), at(name)).unwrap();
        }
    };
    let [first, second, third] = [(); 3].map(|()| HostCertificate::new());
    put(&first, &["host.pem", "host.key"]);
    let text = "[agent]\nlisten = \"127.0.0.1:0\"\nhttp = \"127.0.0.1:0\"\ncertificate = \"host.pem\"\nkey = \"host.key\"\n\
                [[export]]\nname = \"/data\"\npath = \".\"\nmode = \"read\"\nwho = [\"owner\"]\n";
    std::fs::write(at("penstock.toml"), text).unwrap();
    let agent = start_configured(&at("state"), &at("penstock.toml"));
    let token = std::fs::read_to_string(at("state/token")).unwrap();
    let facts = || {
        let request = TestRequest::new(&agent.http, "GET", "/api/v1/agent");
        request.token(token.trim()).send().json()
    };
    let login = |fingerprint: &str| {
        let mut command = penstock(&at("client"));
        command.args(["login", &agent.listen, "--token", token.trim()]);
        output(command.args(["--fingerprint", fingerprint])).0
    };
    assert_eq!(login(&agent.fingerprint), 0);
    put(&second, &["host.pem", "host.key"]);
    agent.signal("HUP");
    let renewed = wait_until("another fingerprint", Duration::from_secs(20), || {
        let shown = facts()["fingerprint"].as_str().unwrap().to_owned();
        (shown != agent.fingerprint).then_some(shown)
    });
    assert_eq!(login(&renewed), 0);
    assert_eq!(login(&agent.fingerprint), 5);
    put(&third, &["host.pem"]);
    agent.signal("HUP");
    wait_until("an error in the log", Duration::from_secs(20), || {
        agent.log().contains("the certificate of [agent] stays").then_some(())
    });
    assert_eq!(login(&renewed), 0);
}

#[test]
fn sighup_renews_the_agents_own_certificate() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let agent = start(&state, directory.path());
    let token = std::fs::read_to_string(state.join("token")).unwrap();
    let shown = || {
        let request = TestRequest::new(&agent.http, "GET", "/api/v1/agent");
        request.token(token.trim()).send().json()["fingerprint"].as_str().unwrap().to_owned()
    };
    let renewed = |before: &str| {
        agent.signal("HUP");
        wait_until("another fingerprint", Duration::from_secs(20), || {
            Some(shown()).filter(|now| now != before)
        })
    };
    for name in ["agent.crt", "agent.key"] {
        std::fs::remove_file(state.join(name)).unwrap();
    }
    let made = renewed(&agent.fingerprint);
    let replaced = HostCertificate::new();
    write_private(&state.join("agent.key"), std::fs::read(replaced.path("host.key")).unwrap());
    std::fs::copy(replaced.path("host.pem"), state.join("agent.crt")).unwrap();
    let second = renewed(&made);
    std::fs::remove_file(state.join("agent.key")).unwrap();
    agent.signal("HUP");
    wait_until("an error in the log", Duration::from_secs(20), || {
        agent.log().contains("agent.key is gone").then_some(())
    });
    assert_eq!(shown(), second);
}

/// The SHA-256 of a text in hexadecimal digits, by another program.
fn sha256(text: &str) -> String {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let (_, sum, _) = output(Command::new("sha256sum").arg(file.path()));
    sum.split_whitespace().next().unwrap().to_owned()
}

#[test]
fn nettest_to_agent_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let agent = start(&directory.path().join("state"), directory.path());
    let listen = agent.listen.as_str();
    for more in [&[][..], &["--sweep"]] {
        let mut command = penstock(directory.path());
        let (code, _, error) = output(command.args(["nettest", listen]).args(more));
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(code != 0 && error.contains("an agent listens there"), "{code} {error}");
        assert!(error.contains("`penstock nettest --listen`"), "{error}");
    }
}

/// Outcomes of a login: accepted, certificate mismatch, wrong token, unreachable.
#[test]
fn login_is_verified_with_agent() {
    let directory = tempfile::tempdir().unwrap();
    let (state, root) = (directory.path().join("state"), directory.path().join("root"));
    std::fs::create_dir(&root).unwrap();
    let agent = start(&state, &root);
    let token = std::fs::read_to_string(state.join("token")).unwrap().trim().to_owned();
    let other = format!("SHA256:{}", "ab".repeat(32));
    let listen = agent.listen.clone();
    let fingerprint = agent.fingerprint.clone();
    let client = directory.path().join("client");
    let login = |to: &str, token: &str, fingerprint: &str| {
        let mut command = penstock(&client);
        command.args(["login", to, "--json", "--token", token, "--fingerprint", fingerprint]);
        let (code, text, error) = output(&mut command);
        (code, serde_json::from_str::<serde_json::Value>(&text).unwrap(), error)
    };
    let (code, json, error) = login(&listen, &token, &other);
    assert!(code == 5 && error.contains("has not the certificate"), "{error}");
    assert!(json["error"].is_string() && json["known_as"].is_null(), "{json}");
    let (code, _, error) = login(&listen, &"x".repeat(64), &fingerprint);
    assert!(code == 5 && error.contains("not one of this agent's"), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    let other_program = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let there = other_program.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut socket in other_program.incoming().flatten() {
            let _ = socket.read_exact(&mut [0; 16]);
            let _ = socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let (code, json, error) = login(&there, &token, &fingerprint);
    assert!(code == 1 && error.contains("not as an agent does"), "{error}");
    assert!(json["error"].is_string() && error.lines().count() == 1, "{json} {error}");
    assert!(!client.join("hosts.toml").exists());

    let (code, json, error) = login(&listen, &token, &fingerprint);
    assert_eq!((code, json["known_as"].as_str(), error.as_str()), (0, Some("owner"), ""));
    drop(agent);
    let (code, json, _) = login("127.0.0.1:1", &token, &fingerprint);
    assert_eq!((code, json["address"].as_str()), (0, Some("127.0.0.1:1")), "{json}");
    assert!(json["known_as"].is_null() && json["error"].is_string(), "{json}");
    let kept = std::fs::read_to_string(client.join("hosts.toml")).unwrap();
    assert!(kept.contains(&listen) && kept.contains("127.0.0.1:1"), "{kept}");
}

/// The export names the fingerprint of a certificate that the site's CA signed.
#[test]
fn client_certificate_grants_matching_export() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let authority_key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority = rcgen::Issuer::new(params, authority_key);
    let make = |name: &str| {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &authority).unwrap();
        std::fs::write(at(&format!("{name}.crt")), certificate.pem()).unwrap();
        write_private(&at(&format!("{name}.key")), key.serialize_pem());
        let (certificate, key) = (certificate.pem(), key.serialize_pem());
        let identity = penstock_identity::Identity::from_pem(&certificate, &key).unwrap();
        identity.fingerprint().to_string()
    };
    let (alice, mallory) = (make("alice"), make("mallory"));
    std::fs::create_dir(at("store")).unwrap();
    let config = format!(
        "[agent]\nlisten = \"127.0.0.1:0\"\nhttp = \"127.0.0.1:0\"\n[[export]]\nname = \"/store\"\npath = \"store\"\nmode = \"read-write\"\nwho = [\"cert:{alice}\"]\n"
    );
    std::fs::write(at("penstock.toml"), config).unwrap();
    let agent = start_configured(&at("state"), &at("penstock.toml"));
    let listen = agent.listen.clone();
    let fingerprint = agent.fingerprint.as_str();
    let login = |name: &str| {
        let mut command = penstock(&at(&format!("home-{name}")));
        command.args(["login", &listen, "--fingerprint", fingerprint]);
        command.arg("--certificate").arg(at(&format!("{name}.crt")));
        output(command.arg("--key").arg(at(&format!("{name}.key"))))
    };
    let (code, _, error) = login("mallory");
    assert!(code == 5 && error.contains(&mallory), "{error}");
    let (code, text, error) = login("alice");
    assert!(code == 0 && text.contains(&format!("cert:{alice}")), "{text}{error}");
    std::fs::write(at("file"), "of alice").unwrap();
    let copy = |from: &str, to: &str| {
        output(
            penstock(&at("home-alice")).args(["cp", "-q", from, to]).current_dir(directory.path()),
        )
    };
    let url = format!("penstock://{listen}/store/file");
    assert_eq!(copy("file", &url), (0, String::new(), String::new()));
    assert_eq!(copy(&url, "back"), (0, String::new(), String::new()));
    assert_eq!(std::fs::read(at("back")).unwrap(), b"of alice");

    // A key file that other users can read is refused.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(at("alice.key"), open).unwrap();
    let (code, _, error) = copy(&url, "again");
    assert!(code == 5 && error.contains("chmod 600"), "{error}");
}

#[test]
fn packagers_get_man_pages_and_completions() {
    let directory = tempfile::tempdir().unwrap();
    let man = directory.path().join("man1");
    assert_eq!(output(penstock(directory.path()).args(["generate", "man"]).arg(&man)).0, 0);
    for page in ["penstock.1", "penstock-serve.1", "penstock-transfers-set.1"] {
        assert!(man.join(page).is_file(), "{page}");
    }
    let shell = ["generate", "completions", "bash"];
    let (code, text, _) = output(penstock(directory.path()).args(shell));
    assert!(code == 0 && text.contains("transfers"));
    let (code, json, _) = output(penstock(directory.path()).args(shell).arg("--json"));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (code, json["shell"].as_str(), json["text"].as_str()),
        (0, Some("bash"), Some(&*text))
    );
    let pages = ["generate", "--json", "man"];
    let (code, json, _) = output(penstock(directory.path()).args(pages).arg(&man));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(code == 0 && json["files"].as_array().unwrap().len() > 5, "{json}");
}

#[test]
fn service_manager_receives_notifications() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("notify");
    let manager = std::os::unix::net::UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut command = penstock(&directory.path().join("state"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--http", "none", "--json", "--root", "."]);
    command.env("NOTIFY_SOCKET", &socket).env("WATCHDOG_USEC", "400000");
    let mut agent = Agent::spawn(command);
    let next = || {
        let mut bytes = [0; 512];
        let count = uninterrupted(|| manager.recv(&mut bytes)).unwrap();
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    };
    assert_eq!(next().trim(), "READY=1");
    assert!(next().contains("WATCHDOG=1") && next().contains("STATUS=0 transfers running"));
    agent.signal("TERM");
    while next().trim() != "STOPPING=1" {}
    assert_eq!(agent.wait(), 0);
}

/// A slow copy is listed and gets a higher rate; another is cancelled.
#[test]
fn running_transfer_is_changed_and_cancelled() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let root = directory.path().join("root");
    std::fs::create_dir(&root).unwrap();
    let source = directory.path().join("source");
    std::fs::write(&source, vec![7; 32 << 20]).unwrap();
    let agent = start(&state, &root);
    let to = format!("penstock://{}/", agent.listen.as_str());
    let copy = |name: &str| {
        let mut command = penstock(&state);
        command.args(["cp", "--json", "--rate", "4M", "--block", "64KiB"]).arg(&source);
        RunningCommand::start(command.arg(format!("{to}{name}")))
    };
    let transfers = |extra: &[&str]| -> Value {
        let arguments = ["transfers", "--json", "--http", agent.http.as_str()];
        let (code, text, error) = output(penstock(&state).args(arguments).args(extra));
        assert_eq!(code, 0, "{error}");
        serde_json::from_str(&text).unwrap()
    };
    let running = || {
        wait_until("a transfer runs", Duration::from_secs(20), || {
            let list = transfers(&[])["transfers"].take();
            let mut list = list.as_array().unwrap().iter();
            list.find(|one| one["state"] == "running" && one["moved_bytes"] != 0).cloned()
        })
    };

    let first = copy("one");
    let seen = running();
    assert_eq!((&seen["direction"], &seen["caller"]), (&"receive".into(), &"owner".into()));
    let id = seen["id"].to_string();
    let changed = transfers(&["set", &id, "--rate", "none", "--streams", "2"]);
    assert_eq!(changed["id"], seen["id"]);
    assert_eq!(first.wait().code, 0, "the copy ends soon after its limit is gone");
    agent.ended_transfers(&state);
    assert_eq!(std::fs::metadata(root.join("one")).unwrap().len(), 32 << 20);

    let second = copy("two");
    let id = running()["id"].to_string();
    assert_eq!(transfers(&["cancel", &id])["id"].to_string(), id);
    let second = second.wait();
    assert_eq!(second.code, 1);
    assert!(second.error.contains("cancelled by the agent's operator"), "{second:?}");
    assert!(!root.join("two").exists());
}
