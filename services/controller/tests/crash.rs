//! Controllers and databases killed (SIGKILL) at seeded moments under load: every request reaches its final state once.
//!
//! The controller is this test's own program, restarted with [`serve_until_killed`]. `PENSTOCK_SEED` repeats a run.

mod common;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::node::{Node, Shared};
use common::{Client, Running, Store, TEST_TIMEOUT, config, directory, on_both, token};
use penstock_control::orders::FaultKind;
use penstock_testkit::postgres::PostgresServer;
use penstock_testkit::seeded;
use serde_json::{Value, json};

/// Kills in a run; crashes at every moment are in `testing/simulation`.
const KILL_COUNT: usize = 2;

/// Not a test: the controller of the other tests, in its own process.
#[test]
#[ignore = "started by the other tests"]
fn serve_until_killed() {
    let Ok(directory) = std::env::var("PENSTOCK_TEST_DIRECTORY") else { return };
    let directory = PathBuf::from(directory);
    let more = std::fs::read_to_string(directory.join("more")).unwrap();
    let running = Running::start(config(&directory, &more), &directory);
    std::fs::write(directory.join("address.new"), running.address.to_string()).unwrap();
    std::fs::rename(directory.join("address.new"), directory.join("address")).unwrap();
    let parent = std::os::unix::process::parent_id();
    while std::os::unix::process::parent_id() == parent {
        let leads = if running.leads() { "yes" } else { "no" };
        std::fs::write(directory.join("leads.new"), leads).unwrap();
        std::fs::rename(directory.join("leads.new"), directory.join("leads")).unwrap();
        std::thread::sleep(Duration::from_millis(50));
    }
    std::process::exit(0);
}

/// A controller process that a test kills.
struct Killable {
    directory: PathBuf,
    child: Child,
    address: SocketAddr,
}

impl Killable {
    fn start(directory: &Path) -> Self {
        let (child, address) = Self::spawn(directory);
        Self { directory: directory.to_owned(), child, address }
    }

    fn spawn(directory: &Path) -> (Child, SocketAddr) {
        let file = directory.join("address");
        let _ = std::fs::remove_file(&file);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "serve_until_killed"])
            .env("PENSTOCK_TEST_DIRECTORY", directory)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let begun = Instant::now();
        loop {
            if let Ok(text) = std::fs::read_to_string(&file) {
                return (child, text.parse().unwrap());
            }
            if let Some(status) = child.try_wait().unwrap() {
                // Its database may be down at this moment.
                assert!(begun.elapsed() < TEST_TIMEOUT, "the controller does not start: {status}");
                return Self::spawn(directory);
            }
            assert!(begun.elapsed() < TEST_TIMEOUT, "the controller does not start");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// True if its metrics report it as leader.
    fn leads(&self) -> bool {
        std::fs::read_to_string(self.directory.join("leads")).is_ok_and(|text| text == "yes")
    }

    fn kill(&mut self) {
        let _ = std::fs::remove_file(self.directory.join("leads"));
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn again(&mut self) {
        (self.child, self.address) = Self::spawn(&self.directory);
    }
}

impl Drop for Killable {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Load {
    clients: Vec<Client>,
    /// Key, id once known, number of files, and true to cancel it.
    requests: Vec<(String, Option<i64>, usize, bool)>,
}

fn body(key: &str, files: usize) -> Value {
    let file = |n: usize| json!({ "path": format!("{n}"), "size": 1000 });
    json!({
        "key": key, "class": "production", "source": "cern", "destination": "caltech", "from": "/data",
        "to": format!("/in/{key}"), "files": (0..files).map(file).collect::<Vec<_>>(), "attempts": 3,
    })
}

impl Load {
    /// Submits requests without a response; repeats those whose response was lost.
    async fn submit(&mut self, at: usize) {
        let (key, id, files, cancel) = &mut self.requests[at];
        if id.is_some() {
            return;
        }
        let text = serde_json::to_vec(&body(key, *files)).unwrap();
        match self.clients[0].try_ask("POST", "/api/v1/requests", &text).await {
            Ok((200 | 201, made)) => {
                *id = made["id"].as_i64();
                if *cancel {
                    let path = format!("/api/v1/requests/{}", made["id"]);
                    // If this is lost the request merely completes.
                    let _ = self.clients[0].try_ask("DELETE", &path, b"").await;
                }
            }
            Ok((503, _)) | Err(_) => {}
            Ok(other) => panic!("{key}: {other:?}"),
        }
    }

    async fn all_over(&mut self) -> bool {
        for at in 0..self.requests.len() {
            self.submit(at).await;
            let Some(id) = self.requests[at].1 else { return false };
            let path = format!("/api/v1/requests/{id}");
            match self.clients[0].try_ask("GET", &path, b"").await {
                Ok((200, request)) if !request["ended_unix_seconds"].is_null() => {}
                Ok((200 | 503, _)) | Err(_) => return false,
                Ok(other) => panic!("{other:?}"),
            }
        }
        true
    }
}

fn killed(store: &Store, database: Option<&PostgresServer>) {
    let mut random = seeded(1);
    let (_keep, path) = directory();
    std::fs::write(path.join("more"), store.line()).unwrap();
    let mut controller = Killable::start(&path);
    let world = Shared::default();
    for n in 0..20 {
        let kind = [FaultKind::Transient, FaultKind::Integrity][n % 2];
        world.lock().unwrap().faults.insert(format!("{}", n * 7), (kind, 1));
    }
    let mut nodes: Vec<Node> =
        ["c1", "c2", "t1", "t2"].map(|name| Node::new(name, controller.address, &world)).into();
    nodes.iter_mut().for_each(|node| node.speed = 10);
    let requests =
        (0..12).map(|n| (format!("r{n}"), None, 20 + 20 * (n % 4), n % 5 == 4)).collect();
    let mut load =
        Load { clients: vec![Client::new(controller.address, &token("producer"))], requests };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let begun = Instant::now();
    let mut kills = 0;
    let mut until = Instant::now() + Duration::from_millis(random.below(800));
    let mut next = 0;
    loop {
        runtime.block_on(async {
            load.submit(next % 12).await;
            next += 1;
            for node in &mut nodes {
                node.turn().await;
            }
        });
        if kills < KILL_COUNT && Instant::now() >= until {
            match database {
                Some(database) if random.below(2) == 0 => {
                    database.kill();
                    database.again();
                }
                _ => {
                    controller.kill();
                    // Nodes continue meanwhile, and one of them may lose its memory.
                    let crashed = random.below(8) as usize;
                    nodes
                        .iter_mut()
                        .enumerate()
                        .filter(|(at, _)| *at == crashed)
                        .for_each(|(_, node)| node.crash());
                    controller.again();
                    nodes.iter_mut().for_each(|node| node.client.move_to(controller.address));
                    load.clients[0].move_to(controller.address);
                }
            }
            kills += 1;
            until = Instant::now() + Duration::from_millis(random.below(1500));
        }
        if kills == KILL_COUNT && runtime.block_on(load.all_over()) {
            break;
        }
        assert!(begun.elapsed() < 3 * TEST_TIMEOUT, "{:?}", load.requests);
        std::thread::sleep(Duration::from_millis(10));
    }
    runtime.block_on(async {
        let list = load.clients[0].get("/api/v1/requests?limit=1000").await;
        assert_eq!(list["requests"].as_array().unwrap().len(), 12, "each was taken once");
        for request in list["requests"].as_array().unwrap() {
            let count = |name: &str| request[name].as_u64().unwrap();
            assert_eq!(count("files_active"), 0, "{request}");
            assert_eq!(
                count("files_done") + count("files_failed") + count("files_cancelled"),
                count("files"),
                "{request}"
            );
            let state = request["state"].as_str().unwrap();
            match state {
                "done" => assert_eq!(count("files_done"), count("files"), "{request}"),
                "cancelled" => assert!(count("files_cancelled") > 0, "{request}"),
                // A fault that a node's crash repeated.
                "partial" => assert!(count("files_failed") > 0, "{request}"),
                _ => panic!("{request}"),
            }
            let path = format!("/api/v1/requests/{}/files", request["id"]);
            let files = load.clients[0].get(&path).await;
            let world = world.lock().unwrap();
            for file in
                files["files"].as_array().unwrap().iter().filter(|file| file["state"] == "done")
            {
                let place = format!(
                    "{}/{}",
                    request["to"].as_str().unwrap(),
                    file["path"].as_str().unwrap()
                );
                assert_eq!(world.written.get(&place), Some(&1), "{place}");
            }
        }
    });
}

#[test]
fn killed_controller_loses_nothing() {
    on_both(|store| killed(store, None));
}

#[test]
fn killed_database_loses_nothing() {
    match PostgresServer::start() {
        Ok(server) => {
            let server = std::sync::Arc::new(server);
            killed(&Store::Postgres(std::sync::Arc::clone(&server)), Some(&server));
        }
        Err(why) => {
            penstock_testkit::skip(penstock_testkit::Requirement::Program, &why.to_string())
        }
    }
}

/// Waits until exactly one controller leads, and returns its index.
fn leader(controllers: &[Killable]) -> usize {
    let begun = Instant::now();
    loop {
        let leading: Vec<usize> =
            (0..controllers.len()).filter(|at| controllers[*at].leads()).collect();
        if let [one] = leading.as_slice() {
            return *one;
        }
        assert!(begun.elapsed() < TEST_TIMEOUT, "{leading:?} lead");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn leadership_lease_passes_to_second_controller() {
    let store = match PostgresServer::shared() {
        // The server stops with its last user.
        Ok(server) => Store::Postgres(server),
        Err(why) => {
            return penstock_testkit::skip(
                penstock_testkit::Requirement::Program,
                &why.to_string(),
            );
        }
    };
    let line = store.line();
    let keep = [directory(), directory()];
    let mut controllers: Vec<Killable> = keep
        .iter()
        .map(|(_, path)| {
            std::fs::write(path.join("more"), &line).unwrap();
            Killable::start(path)
        })
        .collect();
    let world = Shared::default();
    // Half of the nodes and clients use each controller.
    let at = |n: usize| controllers[n % 2].address;
    let mut nodes: Vec<Node> = ["c1", "t1", "c2", "t2"]
        .iter()
        .enumerate()
        .map(|(n, name)| Node::new(name, at(n), &world))
        .collect();
    nodes.iter_mut().for_each(|node| node.speed = 4);
    let mut clients = [0, 1].map(|n| Client::new(at(n), &token("producer")));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let ids: Vec<i64> = runtime.block_on(async {
        let mut ids = Vec::new();
        for n in 0..8 {
            let key = format!("r{n}");
            // The same key at both is one request.
            let (status, made) =
                clients[n % 2].ask("POST", "/api/v1/requests", &body(&key, 150)).await;
            let (again, same) =
                clients[(n + 1) % 2].ask("POST", "/api/v1/requests", &body(&key, 150)).await;
            assert_eq!((status, again, &made["id"]), (201, 200, &same["id"]), "{made} {same}");
            ids.push(made["id"].as_i64().unwrap());
        }
        ids
    });
    let first = leader(&controllers);
    let moved = || world.lock().unwrap().written.len();
    let turn = |nodes: &mut Vec<Node>| {
        runtime.block_on(async {
            for node in nodes.iter_mut() {
                node.turn().await;
            }
        });
        std::thread::sleep(Duration::from_millis(5));
    };
    let begun = Instant::now();
    while moved() < 200 {
        turn(&mut nodes);
        assert!(begun.elapsed() < TEST_TIMEOUT, "{} files", moved());
    }
    assert_eq!(leader(&controllers), first, "who leads goes on leading");
    controllers[first].kill();
    let other = 1 - first;
    let address = controllers[other].address;
    nodes.iter_mut().for_each(|node| node.client.move_to(address));
    clients.iter_mut().for_each(|client| client.move_to(address));
    let done = |client: &mut Client| {
        runtime.block_on(async {
            let list = client.get("/api/v1/requests?limit=100").await;
            list["requests"].as_array().unwrap().iter().filter(|one| one["state"] == "done").count()
        })
    };
    while done(&mut clients[0]) < ids.len() {
        turn(&mut nodes);
        assert!(begun.elapsed() < 3 * TEST_TIMEOUT, "{} files", moved());
    }
    assert!(controllers[other].leads());
    assert_eq!(moved(), 8 * 150);
    assert!(world.lock().unwrap().written.values().all(|times| *times == 1));
    // Restarted, it follows and responds.
    controllers[first].again();
    clients[0].move_to(controllers[first].address);
    assert_eq!(done(&mut clients[0]), 8);
    assert_eq!(leader(&controllers), other);
}
