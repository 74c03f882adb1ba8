//! The real controller over real agents: submitted requests complete, also when both are killed. All orders of kills are
//! in `testing/simulation`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use penstock_testkit::http::TestRequest;
use serde_json::Value;

use crate::common::site::{HOSTS, Operations};
use crate::common::{Random, RunningCommand, seeded, wait_until, write_file};

fn write_set(random: &mut Random, root: &Path, small: usize, large: usize) {
    for number in 0..small + large {
        let directory = root.join(format!("d {}", number % 5));
        fs::create_dir_all(&directory).unwrap();
        let bytes = if number < large { 3 << 20 } else { random.between(1, 20_000) as usize };
        write_file(random, &directory.join(format!("f\u{e9}{number}")), bytes);
    }
}

/// Waits until a request is done.
fn await_done(operations: &Operations, request: u64) -> Value {
    let begun = Instant::now();
    loop {
        let facts = operations.facts(request);
        if !facts["ended_unix_seconds"].is_null() {
            return facts;
        }
        assert!(begun.elapsed() < Duration::from_secs(180), "{facts}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn a_directory_that_is_submitted_arrives() {
    let mut random = seeded(7_300);
    let operations = Operations::start("");
    let (a, b) = (operations.node("dtn-a"), operations.node("dtn-b"));
    write_set(&mut random, &a.path("set"), 120, 4);
    let mut watching =
        operations.ask(&["submit", "a:/data/set", "b:/data/in", "--watch", "--json"]);
    let done = RunningCommand::start(&mut watching).wait().good();
    assert_eq!(done.number("files_done"), 124, "{done:?}");
    let copied = |path: &str| files_below(&b.path(path));
    assert_eq!(copied("in"), files_below(&a.path("set")));
}

#[test]
fn request_states_its_transport() {
    let operations = Operations::start("");
    let (a, _b) = (operations.node("dtn-a"), operations.node("dtn-b"));
    write_file(&mut seeded(7_310), &a.path("file"), 1 << 20);
    let auto = ["--transport", "auto"];
    let request = operations.submit("a:/data/file", "b:/data/in", "auto", &auto);
    let done = await_done(&operations, request);
    // Loopback has no RDMA device.
    assert_eq!((&done["state"], &done["transport"]), (&"done".into(), &"tcp".into()), "{done}");
    assert!(done["transport_reason"].as_str().is_some_and(|why| why.contains("RDMA")), "{done}");
}

#[test]
fn read_scope_covers_every_role() {
    let reader = "the-token-of-a-reader";
    let sha256 = penstock_http::tokens::hex(&penstock_http::tokens::hash(reader));
    let operations = Operations::start(&format!(
        "[[controller.token]]\nname = \"reader\"\nsha256 = \"{sha256}\"\nscopes = [\"read\"]\n\
         [http]\nread = \"token\"\n"
    ));
    let ask = |path: &str, token: &str| {
        let response = TestRequest::new(&operations.listen, "GET", path).token(token).send();
        (response.status, response.text())
    };
    for path in ["/api/v1/transfers", "/api/v1/agent", "/api/v1/requests", "/api/v1/openapi.json"] {
        let (status, body) = ask(path, reader);
        assert_eq!(status, 200, "{path}: {body}");
        assert_eq!(ask(path, "a-token-nobody-knows").0, 401, "{path}");
        // A host's token may report and not read.
        assert_ne!(ask(path, &crate::common::site::token("dtn-a")).0, 200, "{path}");
    }
    // Failures are problem documents (RFC 9457).
    for (path, wanted) in [
        ("/api/v1/nothing", 404),
        ("/api/v1/transfers/7", 404),
        ("/api/v1/requests/%ff", 400),
        ("/api/v1/requests?limit=x", 422),
    ] {
        let (status, body) = ask(path, reader);
        assert_eq!(status, wanted, "{path}: {body}");
        let problem: Value =
            serde_json::from_str(&body).unwrap_or_else(|_| panic!("{path}: {body}"));
        assert_eq!(problem["status"], wanted, "{path}: {body}");
        assert!(problem["detail"].is_string() && problem["title"].is_string(), "{path}: {body}");
    }
}

fn files_below(root: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    let mut left = vec![root.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => left.push(path),
                false => {
                    let bytes = fs::read(&path).unwrap();
                    all.push((path.strip_prefix(root).unwrap().to_owned(), bytes));
                }
            }
        }
    }
    all.sort();
    all
}

#[test]
fn submitted_request_survives_kills() {
    let mut random = seeded(7_301);
    let mut operations = Operations::start("");
    let mut nodes = HOSTS.map(|host| operations.node(host));
    write_set(&mut random, &nodes[0].path("set"), 100, 6);
    let request = operations.submit("a:/data/set", "c:/data/from-a", "first", &[]);
    // An agent, then the controller: the source or the destination, by the seed.
    let victim = [0, 2][random.below(2) as usize];
    for kill in 0..2 {
        let pause = Duration::from_millis(random.between(200, 1_500));
        let begun = Instant::now();
        wait_until("a moment", Duration::from_secs(10), || (begun.elapsed() > pause).then_some(()));
        if kill == 0 {
            println!("{} is killed", nodes[victim].name);
            nodes[victim].agent.kill();
            nodes[victim].restart();
        } else {
            println!("the controller is killed");
            operations.serve.take().unwrap().kill();
            operations.restart();
        }
    }
    let facts = await_done(&operations, request);
    assert_eq!(
        (facts["state"].as_str(), facts["files_done"].as_u64()),
        (Some("done"), Some(106)),
        "{facts}"
    );
    assert_eq!(files_below(&nodes[2].path("from-a")), files_below(&nodes[0].path("set")));
}
