//! `penstock token`: issued tokens at an agent and at a controller, their scopes, end and revocation.

mod common;
#[path = "gateway/issuer.rs"]
mod issuer;

use std::fs;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use common::site::Operations;
use common::{Agent, TestEnv, fails, penstock, run, seeded, wait_until, write_file};
use issuer::{AUDIENCE, TestIssuer, TestKey, now_s, with, wlcg};
use penstock_testkit::http::{EventFeed, TestRequest, TestResponse};
use serde_json::{Value, json};

const TRANSFERS: &str = "/api/v1/transfers";
const END_TIMEOUT: Duration = Duration::from_secs(60);

/// Creates a token; returns its id and the token.
fn create(state: &Path, name: &str, scopes: &[&str], more: &[&str]) -> (String, String) {
    let mut command = penstock(state);
    command.args(["token", "create", name, "--json"]).args(more);
    for scope in scopes {
        command.args(["--scope", scope]);
    }
    let created = run(&mut command).good().json;
    let text = |pointer: &str| created.pointer(pointer).unwrap().as_str().unwrap().to_owned();
    (text("/issued/id"), text("/token"))
}

fn call(address: &str, method: &str, path: &str, token: &str) -> TestResponse {
    TestRequest::new(address, method, path).token(token).send()
}

fn submit(agent: &Agent, token: &str, source: &str, to: &str, rate: u64) -> TestResponse {
    let body = json!({"source": source, "destination": to, "rate_bps": rate});
    TestRequest::new(&agent.http, "POST", TRANSFERS).token(token).json(&body).send()
}

#[test]
fn scopes_limit_an_issued_token() {
    let env = TestEnv::new();
    fs::create_dir_all(env.root.join("data")).unwrap();
    write_file(&mut seeded(401), &env.root.join("data/file"), 1000);
    let agent = env.agent();
    // The running agent reads the new tokens.
    let mover = ["storage.read:/data", "storage.modify:/data/out"];
    let (_, alice) = create(&env.state, "alice", &mover, &[]);
    let (_, reader) = create(&env.state, "bob", &["read"], &[]);
    let (_, operator) = create(&env.state, "carol", &["operate"], &[]);
    let accepted = submit(&agent, &alice, "/data/file", "/data/out/copy", 1_000_000_000);
    assert_eq!(accepted.status, 201, "{}", accepted.text());
    assert_eq!(accepted.json()["caller"], "alice");
    let outside = submit(&agent, &alice, "/data/file", "/data/copy", 1_000_000_000);
    assert_eq!(outside.status, 403, "{}", outside.text());
    // The same rights at the mover.
    let login = |token: &str| {
        let mut command = env.penstock();
        command.args(["login", &agent.listen, "--token", token, "--fingerprint"]);
        run(command.arg(&agent.fingerprint))
    };
    login(&alice).good();
    let to = env.path("fetched");
    run(env.cp(&[&agent.url("data/file"), to.to_str().unwrap()])).good();
    let refused = run(env.cp(&[to.to_str().unwrap(), &agent.url("other")]));
    assert_eq!(refused.code, 5, "{refused:?}");
    assert_eq!(login(&reader).code, 5);

    for (token, agent_status, change_status) in
        [(&alice, 403, 404), (&reader, 200, 403), (&operator, 200, 404)]
    {
        assert_eq!(call(&agent.http, "GET", "/api/v1/agent", token).status, agent_status);
        assert_eq!(
            call(&agent.http, "DELETE", &format!("{TRANSFERS}/999"), token).status,
            change_status
        );
    }
    assert!(
        !call(&agent.http, "GET", TRANSFERS, &reader).json()["transfers"]
            .as_array()
            .unwrap()
            .is_empty()
    );
    assert_eq!(submit(&agent, &reader, "/data/file", "/data/x", 1).status, 403);
}

#[test]
fn login_names_bearer_and_scopes() {
    let env = TestEnv::new();
    let agent = env.agent();
    for (name, scopes) in [("bob", &["read"][..]), ("carol", &["operate", "read"])] {
        let (_, token) = create(&env.state, name, scopes, &[]);
        let mut login = penstock(&env.path("client"));
        login.args(["login", &agent.http, "--token", &token, "--fingerprint", &agent.fingerprint]);
        let done = login.output().unwrap();
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        let words = format!("knows you as {name} with {};", scopes.join(", "));
        assert!(done.status.success() && text.contains(&words), "{text}");
    }
}

#[test]
fn revoked_token_ends_its_transfers() {
    let env = TestEnv::new();
    write_file(&mut seeded(402), &env.root.join("file"), 24 << 20);
    let agent = env.agent();
    let scopes = ["storage.read:/", "storage.modify:/"];
    let (id, alice) = create(&env.state, "alice", &scopes, &["--transfers", "1"]);
    let running = submit(&agent, &alice, "/file", "/a", 8_000_000).json()["id"].clone();
    let waiting = submit(&agent, &alice, "/file", "/b", 8_000_000).json()["id"].clone();
    let owner = fs::read_to_string(env.state.join("token")).unwrap().trim().to_owned();
    let get = |id: &Value| call(&agent.http, "GET", &format!("{TRANSFERS}/{id}"), &owner).json();
    wait_until("one runs, the other waits for the quota", END_TIMEOUT, || {
        let why = get(&waiting)["submitted"]["error"].as_str()?.to_owned();
        (get(&running)["state"] == "running" && why.contains("quota")).then_some(())
    });
    let revoked = run(env.penstock().args(["token", "revoke", &id, "--json"])).good();
    assert_eq!(revoked.json["tokens"][0]["id"], id.as_str());
    for transfer in [&running, &waiting] {
        let ended = wait_until("it ends", END_TIMEOUT, || {
            Some(get(transfer)).filter(|one| one["state"] == "failed")
        });
        let why = ended["submitted"]["error"].as_str().unwrap();
        // The receiving end of a copy within the agent may notice it first.
        assert!(why.contains("no longer valid") || why.contains("withdrawn"), "{ended}");
    }
    assert_eq!(call(&agent.http, "GET", TRANSFERS, &alice).status, 401);
    let list = run(env.penstock().args(["token", "list", "--json"])).good();
    assert_eq!(list.json["tokens"], json!([]));
    // A token that leaked is revoked as it was found, and its secret is not repeated.
    let (id, bob) = create(&env.state, "bob", &scopes, &[]);
    let revoked = run(env.penstock().args(["token", "revoke", &bob])).good();
    assert_eq!(revoked.output, format!("token {id} of bob is revoked\n"));
    let again = run(env.penstock().args(["token", "revoke", &bob]));
    fails(&again, 1, "no valid token");
    assert!(!again.error.contains(bob.rsplit('_').next().unwrap()), "{again:?}");
}

#[test]
fn expired_token_is_refused() {
    let env = TestEnv::new();
    let agent = env.agent();
    let (_, token) = create(&env.state, "alice", &["read"], &["--for", "2s"]);
    wait_until("it expires", END_TIMEOUT, || {
        (call(&agent.http, "GET", TRANSFERS, &token).status == 401).then_some(())
    });
    // Neither the file nor the list shows a token.
    let (id, token) = create(&env.state, "alice", &["read"], &[]);
    let file = fs::read_to_string(env.state.join("issued-tokens.json")).unwrap();
    let list = run(env.penstock().args(["token", "list"])).good();
    assert!(list.output.contains(&id) && !list.output.contains(&token), "{list:?}");
    assert!(file.contains(&id) && !file.contains(&token), "{file}");
    for words in [
        &["alice", "--scope", "write"][..],
        &["owner", "--scope", "read"],
        &["a", "--scope", "read", "--for", "367d"],
    ] {
        let done = run(env.penstock().args(["token", "create"]).args(words));
        assert_eq!((done.code, done.lines().len()), (2, 1), "{done:?}");
    }
}

#[test]
fn event_streams_end_with_their_token() {
    let operations = Operations::start("[[controller.class]]\nname = \"analysis\"\n");
    let env = TestEnv::new();
    let agent = env.agent();
    let (controller, submitted) = ("/api/v1/events", "/api/v1/transfers/events");
    for (state, address, path, scope) in [
        (&operations.state, &operations.listen, controller, "submit:analysis"),
        (&env.state, &agent.http, submitted, "storage.read:/"),
        (&env.state, &agent.http, submitted, "read"),
    ] {
        let (id, token) = create(state, "alice", &[scope], &[]);
        let feed = EventFeed::open_as(address, path, &token);
        let (end, ended) = mpsc::channel();
        thread::spawn(move || end.send(feed.count()));
        run(penstock(state).args(["token", "revoke", &id])).good();
        let events = ended.recv_timeout(END_TIMEOUT).unwrap_or_else(|_| panic!("{path} goes on"));
        assert_eq!((events, call(address, "GET", path, &token).status), (0, 401), "{scope}");
    }
}

#[test]
fn token_needs_a_state_directory() {
    let env = TestEnv::new();
    let done = run(env.penstock().args(["token", "create", "alice", "--scope", "read"]));
    fails(&done, 1, "no such directory: give --state");
    assert!(!env.state.exists());
}

#[test]
fn controller_audit_names_the_token() {
    let operations = Operations::start(
        "[[controller.class]]\nname = \"analysis\"\n[[controller.class]]\nname = \"other\"\n",
    );
    let (id, token) = create(&operations.state, "alice", &["submit:analysis"], &[]);
    let submit = |class: &str| {
        let body = json!({"class": class, "source": "a", "destination": "b", "from": "/x", "to": "/y", "directory": true});
        TestRequest::new(&operations.listen, "POST", "/api/v1/requests")
            .token(&token)
            .json(&body)
            .send()
    };
    let accepted = submit("analysis");
    assert_eq!(accepted.status, 201, "{}", accepted.text());
    assert_eq!(submit("other").status, 403);
    let owner = fs::read_to_string(operations.state.join("token")).unwrap();
    let audit = call(&operations.listen, "GET", "/api/v1/audit", owner.trim()).json();
    let text = audit.to_string();
    assert!(text.contains("alice") && text.contains(&format!("token {id}")), "{audit}");
    run(penstock(&operations.state).args(["token", "revoke", "alice"])).good();
    assert_eq!(submit("analysis").status, 401);
}

#[test]
fn listing_creates_no_state() {
    let env = TestEnv::new();
    let wrong = env.path("mistyped");
    for words in [&["token", "list"][..], &["token", "revoke", "alice"]] {
        let refused = run(penstock(&wrong).args(words).arg("--state").arg(&wrong));
        fails(&refused, 1, "no such directory: give --state");
        assert!(!wrong.exists());
    }
}

#[test]
fn issuer_grants_scopes_at_the_controller() {
    let key = TestKey::es256("one");
    let server = TestIssuer::new(&[&key]);
    let table = format!(
        "[[controller.class]]\nname = \"analysis\"\n[[controller.class]]\nname = \"other\"\n\
         [[controller.issuer]]\nname = \"cms\"\nurl = {:?}\naudience = {AUDIENCE:?}\nauthorities = {:?}\ngrant = [\n\
         {{ group = \"/cms/analysis\", scopes = [\"submit:analysis\"] }},\n\
         {{ subject = \"user-2\", scopes = [\"operate\"] }} ]\n",
        server.url(),
        server.authority()
    );
    let operations = Operations::start(&table);
    let token = |changes: &Value| key.token(&with(wlcg(server.url(), "openid"), changes));
    let submit = |token: &str, class: &str| {
        let body = json!({"class": class, "source": "a", "destination": "b", "from": "/x", "to": "/y", "directory": true});
        TestRequest::new(&operations.listen, "POST", "/api/v1/requests")
            .token(token)
            .json(&body)
            .send()
    };
    let list = |token: &str| call(&operations.listen, "GET", "/api/v1/requests", token);
    let analyst = token(&json!({"wlcg.groups": ["/cms", "/cms/analysis"]}));
    let accepted = submit(&analyst, "analysis");
    assert_eq!(accepted.status, 201, "{}", accepted.text());
    assert_eq!(accepted.json()["client"], "issuer:cms:user-1");
    assert_eq!(submit(&analyst, "other").status, 403);
    assert_eq!(list(&analyst).status, 200);
    let audit = |token: &str| call(&operations.listen, "GET", "/api/v1/audit", token);
    assert_eq!(audit(&analyst).status, 403);
    let operator = token(&json!({"sub": "user-2"}));
    assert!(audit(&operator).text().contains("issuer:cms:user-1"));
    // Groups of other names, and the storage scopes of the token itself, grant nothing.
    for changes in [
        json!({}),
        json!({"wlcg.groups": ["/cms/analysis2", "/CMS/analysis"]}),
        json!({"scope": "storage.read:/ submit:analysis operate"}),
        json!({"sub": null}),
    ] {
        let refused = list(&token(&changes));
        assert_eq!(refused.status, 403, "{changes}: {}", refused.text());
        assert!(refused.text().contains("grant of [[controller.issuer]] cms"), "{changes}");
    }
    let group = json!(["/cms/analysis"]);
    let other = TestKey::es256("one");
    let claims = with(wlcg(server.url(), ""), &json!({"wlcg.groups": group}));
    for (refused, reason) in [
        (token(&json!({"wlcg.groups": group, "exp": now_s() - 61})), "61 s ago"),
        (token(&json!({"wlcg.groups": group, "aud": "https://other.example.org"})), "aud"),
        (token(&json!({"wlcg.groups": group, "iss": "https://other.example.org"})), "iss"),
        (other.token(&claims), "signature"),
        (key.sign(&json!({"alg": "none"}), &claims), "none"),
        ("eyJ.a.b".to_owned(), "form"),
    ] {
        let answer = list(&refused);
        assert_eq!(answer.status, 401, "{reason}: {}", answer.text());
        assert!(answer.text().to_lowercase().contains(reason), "{reason}: {}", answer.text());
    }
    assert_eq!(server.fetches(), (1, 1));
}
