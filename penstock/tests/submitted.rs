//! Copies submitted to one agent over HTTP, without a controller: between two agents, within one, by clients with tokens
//! of their own, and over a restart.

mod common;

use std::fs;
use std::path::Path;
use std::time::Duration;

use common::{
    Agent, RunningCommand, TestEnv, assert_same, run, seeded, wait_until, write_file,
    write_private, write_tree,
};
use penstock_testkit::http::{EventFeed, FeedEvent, TestRequest, TestResponse};
use serde_json::{Value, json};

const TRANSFERS: &str = "/api/v1/transfers";
const ALICE: &str = "alice-has-a-long-token";
const BOB: &str = "bob-has-another-long-token";
const END_TIMEOUT: Duration = Duration::from_secs(60);

fn owner(env: &TestEnv) -> String {
    fs::read_to_string(env.state.join("token")).unwrap().trim().to_owned()
}

fn call(agent: &Agent, method: &str, path: &str, token: &str) -> TestResponse {
    TestRequest::new(&agent.http, method, path).token(token).send()
}

fn submit(agent: &Agent, token: &str, body: &Value) -> TestResponse {
    TestRequest::new(&agent.http, "POST", TRANSFERS).token(token).json(body).send()
}

/// Submits a copy that is accepted; returns its path.
#[track_caller]
fn accept(agent: &Agent, token: &str, body: &Value) -> String {
    let response = submit(agent, token, body);
    assert_eq!(response.status, 201, "{}", response.text());
    let path = format!("{TRANSFERS}/{}", response.json()["id"]);
    assert_eq!(response.header("location"), Some(path.as_str()));
    path
}

/// Waits for the end of a transfer.
fn end(agent: &Agent, token: &str, path: &str) -> Value {
    wait_until("it ends", END_TIMEOUT, || {
        let one = call(agent, "GET", path, token).json();
        let is_running = ["waiting", "running"].contains(&one["state"].as_str()?);
        (!is_running).then_some(one)
    })
}

fn remote(env: &TestEnv, agent: &Agent) -> Value {
    json!({"token": owner(env), "fingerprint": agent.fingerprint})
}

#[test]
fn directory_is_sent_and_fetched() {
    let [near, far] = [(); 2].map(|()| TestEnv::new());
    let (agent, other) = (near.agent(), far.agent());
    let total = write_tree(&mut seeded(301), &near.root.join("data"), 2, 20);
    let body = json!({"source": "/data", "destination": other.url("in"), "recursive": true,
        "remote": remote(&far, &other), "scitag": 206, "rate_bps": 10_000_000_000u64});
    let path = accept(&agent, &owner(&near), &body);
    let done = end(&agent, &owner(&near), &path);
    assert_eq!((&done["state"], &done["direction"]), (&json!("done"), &json!("send")), "{done}");
    assert_eq!((done["bytes"].as_u64(), done["scitag"].as_u64()), (Some(total), Some(206)));
    assert_eq!(done["submitted"]["attempts"], 1, "{done}");
    assert!(done["submitted"]["ended_unix_seconds"].is_f64(), "{done}");
    assert_same(&near.root.join("data"), &far.root.join("in/data"));
    // The record does not keep the token of the other agent.
    for entry in fs::read_dir(near.state.join("submitted")).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap();
        assert!(!text.contains(&owner(&far)), "{text}");
    }

    let body = json!({"source": other.url("in/data"), "destination": "/back/", "recursive": true,
        "remote": remote(&far, &other), "verify": "readback", "encrypt": false});
    let path = accept(&agent, &owner(&near), &body);
    let done = end(&agent, &owner(&near), &path);
    assert_eq!((&done["state"], &done["direction"]), (&json!("done"), &json!("receive")), "{done}");
    assert_same(&near.root.join("data"), &near.root.join("back/data"));
}

#[test]
fn copy_within_agent_takes_new_name() {
    let env = TestEnv::new();
    write_file(&mut seeded(302), &env.root.join("file"), 3 << 20);
    let agent = env.agent();
    let body = json!({"source": "/file", "destination": "/new/name", "checksum": "sha256"});
    let done = end(&agent, &owner(&env), &accept(&agent, &owner(&env), &body));
    assert_eq!((&done["state"], &done["files"]), (&json!("done"), &json!(1)), "{done}");
    assert_eq!(
        fs::read(env.root.join("file")).unwrap(),
        fs::read(env.root.join("new/name")).unwrap()
    );
    // Existing files that differ are kept where the client says so.
    write_file(&mut seeded(303), &env.root.join("file"), 2 << 20);
    let body = json!({"source": "/file", "destination": "/new/name", "overwrite": "never"});
    let failed = end(&agent, &owner(&env), &accept(&agent, &owner(&env), &body));
    assert_eq!(failed["state"], "failed", "{failed}");
    assert_eq!(failed["submitted"]["failures"].as_array().map(Vec::len), Some(1), "{failed}");
    assert_eq!(fs::metadata(env.root.join("new/name")).unwrap().len(), 3 << 20);
}

#[test]
fn failed_transfer_shows_reason_and_file() {
    let env = TestEnv::new();
    let (name, text) = ("mesure d'\u{e9}t\u{e9} \u{30c7}.dat", "new/name");
    write_file(&mut seeded(304), &env.root.join(name), 3 << 20);
    let agent = env.agent();
    let body = json!({"source": format!("/{name}"), "destination": format!("/{text}")});
    let done = end(&agent, &owner(&env), &accept(&agent, &owner(&env), &body));
    // Letters of any language stay letters, and the streams of an ended transfer are those that it had.
    assert_eq!(done["path"], format!("/{name}"), "{done}");
    assert!(done["streams"].as_u64() > Some(0), "{done}");
    write_file(&mut seeded(305), &env.root.join(name), 2 << 20);
    let body = json!({
        "source": format!("/{name}"), "destination": format!("/{text}"), "overwrite": "never",
    });
    let failed = end(&agent, &owner(&env), &accept(&agent, &owner(&env), &body));
    let id = failed["id"].to_string();
    let show = ["transfers", "show", &id, "--http", &agent.http];
    let shown = run(env.penstock().args(show)).good();
    let failure = &failed["submitted"]["failures"][0];
    for part in [&failure["path"], &failure["error"]] {
        assert!(shown.output.contains(part.as_str().unwrap()), "{shown:?} {failed}");
    }
}

#[test]
fn key_makes_one_transfer() {
    let env = TestEnv::new();
    write_file(&mut seeded(304), &env.root.join("file"), 1000);
    let agent = env.agent();
    let body = |to: &str| json!({"source": "/file", "destination": to, "key": "k1"});
    let path = accept(&agent, &owner(&env), &body("/a"));
    let same = submit(&agent, &owner(&env), &body("/a"));
    assert_eq!(same.status, 200);
    assert_eq!(same.header("location"), Some(path.as_str()));
    let other = submit(&agent, &owner(&env), &body("/b"));
    assert_eq!((other.status, &other.json()["errors"][0]["pointer"]), (409, &json!("/key")));
    end(&agent, &owner(&env), &path);
    assert_eq!(call(&agent, "DELETE", &path, &owner(&env)).status, 409);
}

#[test]
fn faulty_submissions_are_refused() {
    let env = TestEnv::new();
    let agent = env.agent();
    let far = json!({"token": "a-token-of-another-agent", "fingerprint": agent.fingerprint});
    for (body, status, words) in [
        (json!({"source": "/none", "destination": "/x"}), 404, "none"),
        (json!({"source": "x", "destination": "/x"}), 422, "/source"),
        (json!({"source": "/x", "destination": "penstock://h/x"}), 422, "/remote"),
        (json!({"source": "/x"}), 400, "destination"),
        (json!({"source": "/", "destination": "/x", "speed": 1}), 400, "speed"),
        (json!({"source": "/../etc", "destination": "/x"}), 403, ".."),
        // Cloud metadata is no destination, for the owner either.
        (
            json!({"source": "/", "recursive": true, "destination": "penstock://169.254.169.254:80/x", "remote": far}),
            403,
            "third_party.to",
        ),
    ] {
        let response = submit(&agent, &owner(&env), &body);
        assert_eq!(response.status, status, "{body}: {}", response.text());
        assert!(response.text().contains(words), "{body}: {}", response.text());
    }
    let without = TestRequest::new(&agent.http, "POST", TRANSFERS).json(&json!({})).send();
    assert_eq!(without.status, 401);
}

/// Starts an agent with the tokens of two clients, of whom Bob only reads.
fn shared_agent(env: &TestEnv, more: &str) -> Agent {
    configure_shared(env, more);
    let mut command = env.penstock();
    command.args(["serve", "--json", "--config"]).arg(env.path("config.toml"));
    Agent::spawn(command)
}

/// Writes the configuration of a shared agent.
fn configure_shared(env: &TestEnv, more: &str) {
    let (tokens, config) = (env.path("tokens"), env.path("config.toml"));
    write_private(&tokens, format!("alice {ALICE}\nbob {BOB}\n"));
    let root = env.root.display();
    let text = format!(
        "tokens = \"tokens\"\n[agent]\nlisten = \"127.0.0.1:0\"\nhttp = \"127.0.0.1:0\"\n\
         [[export]]\nname = \"/data\"\npath = \"{root}\"\nmode = \"read-write\"\nwho = [\"alice\", \"owner\"]\n\
         [[export]]\nname = \"/pub\"\npath = \"{root}\"\nmode = \"read\"\nwho = [\"*\"]\n{more}"
    );
    fs::write(config, text).unwrap();
}

/// Refused for its quota.
#[track_caller]
fn assert_over_quota(response: &TestResponse, quota: &str) {
    assert_eq!(response.status, 429, "{}", response.text());
    assert_eq!(response.header("retry-after"), Some("10"));
    let detail = response.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains(&format!("its quota is {quota}")), "{detail}");
}

fn quota(client: &str, bytes: &str) -> String {
    format!("[[quota]]\nclient = \"{client}\"\nbytes = \"{bytes}\"\n")
}

#[test]
fn bytes_beyond_quota_are_refused() {
    let env = TestEnv::new();
    write_file(&mut seeded(313), &env.root.join("file"), 24 << 20);
    let agent = shared_agent(&env, &[quota("ali*", "24MiB"), quota("*", "1")].concat());
    let body = |to: &str| json!({"source": "/data/file", "destination": to, "rate_bps": 1_000_000, "key": to});
    let path = accept(&agent, ALICE, &body("/data/a"));
    assert_over_quota(&submit(&agent, ALICE, &body("/data/b")), "24.0 MiB");
    // A retry adds nothing, and other clients have their own quota.
    assert_eq!(submit(&agent, ALICE, &body("/data/a")).status, 200);
    assert_over_quota(&submit(&agent, &owner(&env), &body("/data/c")), "1 B");
    assert_eq!(call(&agent, "DELETE", &path, ALICE).status, 200);
    end(&agent, ALICE, &path);
    accept(&agent, ALICE, &body("/data/b"));
    // A reload changes the quotas.
    configure_shared(&env, &quota("alice", "1G"));
    agent.signal("HUP");
    wait_until("the new quota counts", END_TIMEOUT, || {
        (submit(&agent, ALICE, &body("/data/d")).status == 201).then_some(())
    });
    accept(&agent, &owner(&env), &body("/data/c"));
}

#[test]
fn listed_directory_counts_for_quota() {
    let env = TestEnv::new();
    fs::create_dir(env.root.join("tree")).unwrap();
    for name in ["a", "b"] {
        write_file(&mut seeded(314), &env.root.join("tree").join(name), 12 << 20);
    }
    let agent = shared_agent(&env, &quota("alice", "24MiB"));
    let tree = json!({"source": "/data/tree", "destination": "/data/copy/", "recursive": true,
        "rate_bps": 1_000_000});
    let path = accept(&agent, ALICE, &tree);
    wait_until("its files are listed", END_TIMEOUT, || {
        let one = call(&agent, "GET", &path, ALICE).json();
        (one["announced_bytes"] == 24 << 20).then_some(())
    });
    write_file(&mut seeded(315), &env.root.join("file"), 24 << 20);
    let file = json!({"source": "/data/file", "destination": "/data/other"});
    assert_over_quota(&submit(&agent, ALICE, &file), "24.0 MiB");
}

#[test]
fn clients_have_own_transfers_and_rights() {
    let env = TestEnv::new();
    write_file(&mut seeded(305), &env.root.join("file"), 1000);
    let agent = shared_agent(&env, "");
    let body = json!({"source": "/pub/file", "destination": "/data/copy"});
    let refused = submit(&agent, BOB, &body);
    assert!([403, 404].contains(&refused.status), "{}", refused.text());
    let path = accept(&agent, ALICE, &body);
    let done = end(&agent, ALICE, &path);
    assert_eq!((&done["state"], &done["caller"]), (&json!("done"), &json!("alice")), "{done}");
    assert_eq!(call(&agent, "GET", &path, BOB).status, 404);
    assert_eq!(call(&agent, "DELETE", &path, BOB).status, 404);
    let list =
        |token| call(&agent, "GET", TRANSFERS, token).json()["transfers"].as_array().unwrap().len();
    assert!(list(ALICE) > 0 && list(BOB) == 0 && list(&owner(&env)) > 0);
    for path in ["/api/v1/agent", "/metrics", "/api/v1/transfersx"] {
        assert_eq!(call(&agent, "GET", path, ALICE).status, 403, "{path}");
    }
    assert_eq!(submit(&agent, "no-such-token-at-all", &body).status, 401);
}

#[test]
fn running_transfer_is_cancelled_and_resumed() {
    let env = TestEnv::new();
    write_file(&mut seeded(306), &env.root.join("file"), 24 << 20);
    let agent = env.agent();
    let body = |rate: u64| json!({"source": "/file", "destination": "/copy", "rate_bps": rate, "scitag": 206});
    let path = accept(&agent, &owner(&env), &body(8_000_000));
    wait_until("it moves", END_TIMEOUT, || {
        let one = call(&agent, "GET", &path, &owner(&env)).json();
        (one["state"] == "running" && one["moved_bytes"].as_u64() > Some(8 << 20)).then_some(())
    });
    let deleted = call(&agent, "DELETE", &path, &owner(&env));
    assert_eq!((deleted.status, &deleted.json()["owner"]), (200, &json!("cms")));
    let cancelled = end(&agent, &owner(&env), &path);
    assert_eq!(cancelled["state"], "cancelled", "{cancelled}");
    assert!(cancelled["submitted"]["error"].as_str().unwrap().contains("operator"), "{cancelled}");
    let done = end(&agent, &owner(&env), &accept(&agent, &owner(&env), &body(80_000_000_000)));
    assert_eq!(done["state"], "done", "{done}");
    assert!(done["resumed_bytes"].as_u64() > Some(0), "{done}");
}

#[test]
fn transfer_goes_on_after_restart() {
    let [near, far] = [(); 2].map(|()| TestEnv::new());
    write_file(&mut seeded(307), &near.root.join("file"), 24 << 20);
    let (mut agent, other) = (near.agent(), far.agent());
    let body = json!({"source": "/file", "destination": other.url("file"), "key": "once",
        "remote": remote(&far, &other), "rate_bps": 40_000_000});
    let path = accept(&agent, &owner(&near), &body);
    wait_until("it moves", END_TIMEOUT, || {
        let one = call(&agent, "GET", &path, &owner(&near)).json();
        (one["moved_bytes"].as_u64() > Some(4 << 20)).then_some(())
    });
    agent.kill();
    drop(agent);
    agent = near.agent();
    let done = end(&agent, &owner(&near), &path);
    assert_eq!(
        (&done["state"], &done["submitted"]["attempts"]),
        (&json!("done"), &json!(2)),
        "{done}"
    );
    assert_eq!(fs::read(near.root.join("file")).unwrap(), fs::read(far.root.join("file")).unwrap());
    // The key still names it, and no later transfer has its number.
    assert_eq!(submit(&agent, &owner(&near), &body).status, 200);
    let later = json!({"source": "/file", "destination": "/other"});
    assert_ne!(accept(&agent, &owner(&near), &later), path);
}

#[test]
fn follower_resumes_after_last_event() {
    let env = TestEnv::new();
    write_file(&mut seeded(308), &env.root.join("file"), 1 << 20);
    let agent = env.agent();
    let body = json!({"source": "/file", "destination": "/copy", "scitag": 206});
    let path = accept(&agent, &owner(&env), &body);
    let id = path.rsplit('/').next().unwrap();
    let feed = format!("{TRANSFERS}/events?transfer={id}");
    let mut events = EventFeed::open_as(&agent.http, &feed, &owner(&env));
    let first = events.next().unwrap();
    let last =
        std::iter::once(first.clone()).chain(events).find(|event| event.data["state"] == "done");
    let last = last.expect("the end");
    assert_eq!((last.kind.as_str(), &last.data["bytes"]), ("state", &json!(1 << 20)));
    assert_eq!(last.data["activity"], "analysis-input");
    // A follower that returns misses nothing, and one that was there to the end gets nothing twice.
    let credentials = format!("Bearer {}", owner(&env));
    let headers = |id| [("authorization", credentials.as_str()), ("last-event-id", id)];
    if first.id != last.id {
        let mut again = EventFeed::open(&agent.http, &feed, &headers(&first.id));
        assert!(again.next().unwrap().id > first.id);
    }
    let mut after =
        EventFeed::open(&agent.http, &format!("{TRANSFERS}/events"), &headers(&last.id));
    let next = accept(&agent, &owner(&env), &json!({"source": "/file", "destination": "/b"}));
    // The other end of a copy within the agent is a transfer of its own, whose events may come first.
    let is_next = |event: &FeedEvent| next.ends_with(&format!("/{}", event.data["id"]));
    assert!(after.any(|event| is_next(&event)));
}

#[test]
fn native_copies_have_events() {
    let env = TestEnv::new();
    let agent = env.agent();
    let [slow, quick] = ["slow", "quick"].map(|name| env.source.join(name));
    write_file(&mut seeded(309), &slow, 6 << 20);
    write_file(&mut seeded(310), &quick, 1000);
    let mut events = EventFeed::open_as(&agent.http, &format!("{TRANSFERS}/events"), &owner(&env));
    let mut followed = |options: &[&str], file: &Path| {
        let copy = RunningCommand::start(env.cp(options).arg(file).arg(agent.url("")));
        let mut seen = Vec::new();
        while seen.last().is_none_or(|event: &FeedEvent| event.data["state"] != "done") {
            seen.push(events.next().expect("the end of the copy"));
        }
        assert_eq!(copy.wait().code, 0);
        seen
    };
    // Three seconds.
    let seen = followed(&["--rate", "16M"], &slow);
    assert_eq!((seen[0].kind.as_str(), &seen[0].data["state"]), ("state", &json!("running")));
    assert!(seen.iter().any(|event| event.kind == "progress"), "{seen:?}");
    assert!(seen.iter().all(|event| event.data["id"] == seen[0].data["id"]), "{seen:?}");
    let last = seen.last().unwrap();
    assert_eq!((last.kind.as_str(), &last.data["bytes"]), ("state", &json!(6 << 20)));
    assert_eq!(last.data["submitted"], Value::Null);
    // Also one that ended before it was seen running.
    let seen = followed(&[], &quick);
    assert_eq!(seen.last().unwrap().data["files"], 1);
}

/// Without a follower nothing looks at a copy until its end, which the next follower gets.
#[test]
fn returning_follower_gets_missed_ends() {
    let env = TestEnv::new();
    let agent = env.agent();
    let [first, second] = ["first", "second"].map(|name| env.source.join(name));
    write_file(&mut seeded(311), &first, 1000);
    write_file(&mut seeded(312), &second, 6 << 20);
    let feed = format!("{TRANSFERS}/events");
    let mut events = EventFeed::open_as(&agent.http, &feed, &owner(&env));
    run(env.cp(&[&first]).arg(agent.url(""))).good();
    let last = events.find(|event| event.data["state"] == "done").expect("the end");
    drop(events);
    wait_until("the follower is gone", END_TIMEOUT, || {
        let metrics = call(&agent, "GET", "/metrics", &owner(&env)).text();
        // This request has one of its own.
        let open =
            |line: &str| line.strip_prefix("penstock_agent_http_connections ")?.parse::<f64>().ok();
        (metrics.lines().find_map(open) == Some(1.0)).then_some(())
    });
    // Three seconds.
    run(env.cp(&["--rate", "16M"]).arg(&second).arg(agent.url(""))).good();
    let credentials = format!("Bearer {}", owner(&env));
    let headers = [("authorization", credentials.as_str()), ("last-event-id", last.id.as_str())];
    let next = EventFeed::open(&agent.http, &feed, &headers).next().unwrap();
    assert_eq!((next.kind.as_str(), &next.data["state"]), ("state", &json!("done")));
    assert_eq!(next.data["bytes"], 6 << 20);
}
