//! `penstock disk` by its command line, against a target in this process; `tests/nvmeof` has the kernel's.

mod common;
#[allow(dead_code, reason = "the tests of system/disk use the rest")]
#[path = "../../system/disk/tests/target/mod.rs"]
mod target;

use std::fs;
use std::path::Path;

use common::{Agent, CommandOutcome, TestEnv, run};
use penstock_testkit::http::TestRequest;
use serde_json::{Value, json};
use target::{TargetBehaviour, TargetFault, TestTarget, pattern};

const DISK_BYTES: usize = 2 << 20;
const HOST: &str = "nqn.2020-01.org.example:h";

fn disk(env: &TestEnv, arguments: &[&str]) -> CommandOutcome {
    run(env.penstock().arg("disk").args(arguments))
}

/// Asserts a failure with this exit code and one line that contains `words`.
#[track_caller]
fn fails(done: &CommandOutcome, code: i32, words: &str) {
    assert_eq!(done.code, code, "{done:?}");
    assert_eq!(done.lines().len(), 1, "{done:?}");
    assert!(done.error.contains(words), "{words}: {done:?}");
}

fn start(behaviour: TargetBehaviour) -> TestTarget {
    TestTarget::start("127.0.0.1:0", pattern(DISK_BYTES), behaviour).unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn stream_writes_an_equal_file() {
    let env = TestEnv::new();
    let target = start(TargetBehaviour::default());
    let file = env.path("copy");
    let done =
        disk(&env, &["stream", &target.location(), text(&file), "--size", "64KiB", "--json"]);
    let report = done.good().json;
    assert!(fs::read(&file).unwrap() == pattern(DISK_BYTES));
    assert_eq!(report["bytes"], DISK_BYTES as u64);
    assert_eq!(report["digest_algorithm"], "crc32c");
    let law = report["law_bits_per_second"].as_u64().unwrap();
    let flight = report["in_flight_bytes"].as_u64().unwrap();
    let rtt_us = report["rtt_us"].as_u64().unwrap();
    assert_eq!(law, flight * 8_000_000 / rtt_us);
}

#[test]
fn standard_output_is_in_order() {
    let env = TestEnv::new();
    let target = start(TargetBehaviour { is_reversed: true, ..TargetBehaviour::default() });
    let arguments = ["disk", "stream", &target.location(), "-", "--size", "16KiB", "--depth", "16"];
    let output = env.penstock().args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stdout == pattern(DISK_BYTES));
}

#[test]
fn existing_file_survives_a_failure() {
    let env = TestEnv::new();
    let fault = TargetFault::TruncatedData(3);
    let target = start(TargetBehaviour { fault, ..TargetBehaviour::default() });
    let file = env.path("copy");
    fs::write(&file, "before").unwrap();
    let done = disk(&env, &["stream", &target.location(), text(&file), "--size", "64KiB"]);
    fails(&done, 1, "closed the connection");
    assert_eq!(fs::read(&file).unwrap(), b"before");
}

#[test]
fn character_device_is_no_destination() {
    let env = TestEnv::new();
    let target = start(TargetBehaviour::default());
    // The link leads to a character device, and its directory would take what is wrongly written.
    let link = env.path("null");
    std::os::unix::fs::symlink("/dev/null", &link).unwrap();
    let done = disk(&env, &["stream", &target.location(), text(&link), "--size", "64KiB"]);
    fails(&done, 1, "neither a file nor a block device");
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
}

#[test]
fn secrets_are_made_and_needed() {
    let env = TestEnv::new();
    let (file, other) = (env.path("secret"), env.path("other"));
    disk(&env, &["secret", text(&file)]).good();
    fails(&disk(&env, &["secret", text(&file)]), 1, "exists");
    disk(&env, &["secret", text(&other)]).good();
    let secret = penstock_disk::nvme::auth::HostSecret::parse(&fs::read_to_string(&file).unwrap());
    assert_ne!(secret.unwrap().text(), fs::read_to_string(&other).unwrap().trim());
    let key = [7; 32];
    let target = start(TargetBehaviour { key: Some(key), ..TargetBehaviour::default() });
    let location = target.location();
    let stream = ["stream", location.as_str(), "/dev/null", "--host-nqn", HOST];
    fails(&disk(&env, &stream), 5, "--secret-file");
    let with = |path: &Path| disk(&env, &[&stream[..], &["--secret-file", text(path)]].concat());
    fails(&with(&other), 5, "the secret is wrong");
    fs::write(&file, penstock_disk::nvme::auth::HostSecret::of_key(key).text()).unwrap();
    with(&file).good();
    fs::write(&file, "password").unwrap();
    fails(&with(&file), 2, "DHHC-1:00:BASE64:");
}

#[test]
fn check_names_the_missing_part() {
    let env = TestEnv::new();
    for (fault, part) in [
        (TargetFault::None, ""),
        (TargetFault::HostNotAllowed, "host"),
        (TargetFault::UnknownDisk, "name"),
        (TargetFault::OtherProtocol, "protocol"),
    ] {
        let target = start(TargetBehaviour { fault, ..TargetBehaviour::default() });
        let done = disk(&env, &["check", &target.location(), "--rate", "1G", "--json"]);
        assert_eq!(done.code, i32::from(!part.is_empty()), "{done:?}");
        let parts = done.json["parts"].as_array().unwrap().clone();
        let missing: Vec<&Value> = parts.iter().filter(|one| one["ok"] == false).collect();
        let names: Vec<&str> = missing.iter().map(|one| one["part"].as_str().unwrap()).collect();
        assert_eq!(names, if part.is_empty() { vec![] } else { vec![part] }, "{done:?}");
    }
}

#[test]
fn missing_kernel_parts_have_remedies() {
    let env = TestEnv::new();
    let done = disk(&env, &["check", "--json"]);
    let parts = done.json["parts"].as_array().unwrap();
    let faults = parts.iter().filter(|one| one["ok"] == false);
    assert!(faults.clone().all(|one| !one["detail"].as_str().unwrap().is_empty()), "{done:?}");
    if Path::new("/sys/kernel/config/nvmet").exists() {
        return;
    }
    assert_eq!(done.code, 1);
    // A kernel without a target does not tell whether its target has secrets.
    assert!(!done.output.contains("CONFIG_NVME_TARGET_AUTH"), "{done:?}");
    let rdma = disk(&env, &["check", "--transport", "rdma"]);
    assert!(rdma.code == 1 && rdma.output.contains("nvmet-rdma"), "{rdma:?}");
    assert!(rdma.output.contains("nvme-rdma") && !rdma.output.contains("-tcp"), "{rdma:?}");
    let image = env.path("image");
    fs::write(&image, vec![0; 8192]).unwrap();
    fails(&disk(&env, &["export", text(&image), "--to", HOST]), 1, "nvmet");
    let mut kept = fs::read_dir(env.state.join("disks")).unwrap().flatten();
    assert!(kept.all(|entry| entry.path().extension().is_none_or(|end| end != "json")));
}

#[test]
fn mistakes_are_usage_errors() {
    let env = TestEnv::new();
    for (arguments, words) in [
        (&["stream", "dtn1", "x"][..], "names no disk"),
        (&["stream", "dtn1/a b", "x"], "no name of a disk"),
        (&["stream", "dtn1/a", "x", "--digest", "sha256"], "any order"),
        (&["export", "x"], "--to"),
        (&["export", "x", "--to", HOST, "--at", "dtn1", "--port", "4421"], "--port"),
        (&["export", "x", "--to", "nqn.2020-01.org.example:h", "--transport", "roce"], "roce"),
        (&["export", "x", "--to", "h"], "no NVMe qualified name"),
        (&["export", "x", "--to", "nqn.2014-08.org.nvmexpress:uuid:0f14"], "no UUID"),
        (&["export", "a b", "--to", "nqn.2020-01.org.example:h"], "no name of a disk"),
        (&["check", "dtn1/a", "--transport", "rdma"], "over TCP alone"),
        (&["check", "dtn1/a", "--host-nqn", "host"], "qualified name"),
    ] {
        fails(&disk(&env, arguments), 2, words);
    }
    fails(&disk(&env, &["disconnect", "run-7"]), 1, "penstock disk list");
    let listed = disk(&env, &["list", "--json"]).good().json;
    assert!(listed["host_nqn"].as_str().unwrap().starts_with("nqn."));
}

/// An agent whose configuration has a disk of a missing file, and which clients may let export files in `images`.
fn agent_with_disk(env: &TestEnv) -> Agent {
    let config = env.path("penstock.toml");
    let disk = format!(
        "[disks]\nallow = \"images\"\n[[disk]]\nname = \"run-7\"\npath = \"/no/such/image\"\nto = \"{HOST}\"\n"
    );
    fs::write(&config, disk).unwrap();
    let config = config.to_str().unwrap();
    Agent::start(&env.state, &env.root, "127.0.0.1:0", &["--config", config])
}

#[test]
fn scope_limits_clients_of_disks() {
    let env = TestEnv::new();
    let agent = agent_with_disk(&env);
    let token = |scope: &str| {
        let mut command = env.penstock();
        command.args(["token", "create", "dtn2", "--json", "--scope", scope]);
        let created = run(&mut command).good().json;
        created["token"].as_str().unwrap().to_owned()
    };
    let call = |token: &str, method: &str, path: &str| {
        let request = TestRequest::new(&agent.http, method, path).token(token);
        match method {
            "POST" => request.json(&json!({"host_nqn": HOST})).send(),
            _ => request.send(),
        }
    };
    let connection = "/api/v1/disks/run-7/connection";
    // The disk of a missing file is known, and not exported: 409.
    for (scope, disks, status) in [
        ("disk:run-7", Some(1), 409),
        ("disk:*", Some(1), 409),
        ("disk:run-8", Some(0), 404),
        ("disk:run-7@nqn.2020-01.org.example:h", Some(1), 409),
        ("disk:run-7@nqn.2020-01.org.example:other", Some(1), 403),
        ("operate", Some(1), 409),
        ("read", Some(1), 403),
        ("storage.read:/", None, 403),
    ] {
        let token = token(scope);
        let listed = call(&token, "GET", "/api/v1/disks").json();
        assert_eq!(listed["disks"].as_array().map(Vec::len), disks, "{scope}: {listed}");
        let answer = call(&token, "POST", connection);
        assert_eq!(answer.status, status, "{scope}: {}", answer.text());
    }
}

/// Logs `here` in to an agent with a token of this scope.
fn login(here: &TestEnv, there: &TestEnv, agent: &Agent, scope: &str) {
    let created =
        run(there.penstock().args(["token", "create", "dtn2", "--json", "--scope", scope]));
    let token = created.good().json["token"].as_str().unwrap().to_owned();
    let mut login = here.penstock();
    login.args(["login", &agent.http, "--token", &token, "--fingerprint", &agent.fingerprint]);
    run(&mut login).good();
}

#[test]
fn export_at_agent_needs_scope() {
    let [here, there] = [(); 2].map(|()| TestEnv::new());
    let agent = agent_with_disk(&there);
    fs::create_dir(there.path("images")).unwrap();
    let (image, other) = (there.path("images/run-8.img"), there.path("other.img"));
    for path in [&image, &other] {
        fs::write(path, vec![0; 8192]).unwrap();
    }
    let export_to = |host: &str, path: &Path| {
        disk(&here, &["export", text(path), "--to", host, "--at", &agent.http])
    };
    let export = |path: &Path| export_to("nqn.2020-01.org.example:i", path);
    let remove = |name: &str| disk(&here, &["remove", &format!("{}/{name}", agent.http)]);
    fails(&export(&image), 5, "penstock login");
    login(&here, &there, &agent, "disk:*");
    fails(&export(&image), 5, "--scope disk.export");
    fails(&remove("run-7"), 5, "--scope disk.export");
    login(&here, &there, &agent, "disk.export");
    fails(&export(&other), 5, "[disks] allow");
    fails(&export_to(HOST, &image), 1, "one of disk run-7 of the configuration");
    fails(&remove("run-7"), 1, "of the configuration");
    fails(&remove("run-8"), 1, "no disk is called");
    if !Path::new("/sys/kernel/config/nvmet").exists() {
        fails(&export(&image), 1, "nvmet");
    }
}

#[test]
fn connect_asks_the_agent() {
    let [here, there] = [(); 2].map(|()| TestEnv::new());
    let agent = agent_with_disk(&there);
    let location = format!("{}/run-7", agent.http);
    let connect = |host: &str| disk(&here, &["connect", &location, "--agent", "--host-nqn", host]);
    let unknown = connect(HOST);
    fails(&unknown, 5, "penstock login");
    login(&here, &there, &agent, "disk:*");
    fails(&connect(HOST), 1, "disk run-7 is not exported: ");
    fails(&connect("nqn.2020-01.org.example:other"), 5, "does not admit the host");
    let stream = ["stream", &location, "/dev/null", "--agent", "--host-nqn", HOST];
    fails(&disk(&here, &stream), 1, "disk run-7 is not exported: ");
}
