//! The real controller over real agents: what is asked for arrives, whoever is killed on the way.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::common::{Agent, Random, Run, penstock, run, until, write_file};
use crate::node::Node;

const HOSTS: [&str; 3] = ["dtn-a", "dtn-b", "dtn-c"];

/// The controller of three sites with one host each.
struct Operations {
    dir: TempDir,
    state: PathBuf,
    serve: Option<Agent>,
    listen: String,
}

fn topology() -> String {
    let mut text = "name = \"three\"\n[[switch]]\nname = \"wan\"\n".to_owned();
    for host in HOSTS {
        let site = host.trim_start_matches("dtn-");
        text += &format!(
            "[[site]]\nname = \"{site}\"\n\
             [[host]]\nname = \"{host}\"\nsite = \"{site}\"\n\
             interface = [{{ name = \"eth0\", rate = \"10G\" }}]\n\
             [[link]]\nname = \"at-{site}\"\nends = [\"{host}:eth0\", \"wan\"]\nrate = \"10G\"\n"
        );
    }
    text
}

fn token(host: &str) -> String {
    format!("the-token-of-{host}")
}

impl Operations {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("topology.toml"), topology()).unwrap();
        let mut text = "roles = [\"controller\"]\n[controller]\ntopology = \"topology.toml\"\n\
                        lost_after = \"5s\"\nbatch_files = 40\ntransfers_per_pair = 2\n"
            .to_owned();
        for host in HOSTS {
            let file = path(host);
            fs::write(&file, token(host)).unwrap();
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            fs::set_permissions(&file, mode).unwrap();
            text += &format!(
                "[[controller.token]]\nname = \"{host}\"\nfile = \"{host}\"\nscopes = [\"agent:{host}\"]\n"
            );
        }
        fs::write(path("penstock.toml"), text).unwrap();
        let state = path("state");
        let mut operations = Self { dir, state, serve: None, listen: "127.0.0.1:0".into() };
        operations.restart();
        operations
    }

    fn restart(&mut self) {
        let mut command = penstock(&self.state);
        command.env_remove("PENSTOCK_ROLES");
        command.args(["serve", "--json", "--http", &self.listen, "--config"]);
        let serve = Agent::spawn(command_with(command, &self.dir.path().join("penstock.toml")));
        self.listen = serve.http.clone();
        self.serve = Some(serve);
    }

    fn ask(&self, words: &[&str]) -> Command {
        let mut command = penstock(&self.state);
        command.args(words).args(["--controller", &self.listen]);
        command
    }

    fn submit(&self, from: &str, to: &str, key: &str) -> u64 {
        let done =
            run(self.ask(&["submit", from, to, "--key", key, "--no-encrypt", "--json"])).good();
        done.number("id")
    }

    fn facts(&self, request: u64) -> Value {
        let done = run(self.ask(&["show", &request.to_string(), "--json"]));
        done.json["request"].clone()
    }
}

fn command_with(mut command: Command, file: &Path) -> Command {
    command.arg(file);
    command
}

fn write_set(random: &mut Random, root: &Path, small: usize, large: usize) {
    for number in 0..small + large {
        let directory = root.join(format!("d {}", number % 5));
        fs::create_dir_all(&directory).unwrap();
        let bytes = if number < large { 3 << 20 } else { random.between(1, 20_000) as usize };
        write_file(random, &directory.join(format!("f\u{e9}{number}")), bytes);
    }
}

/// Waits for the end of a request.
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
    let mut random = Random::seeded(7_300);
    let operations = Operations::start();
    let node = |host: &str| Node::under(&operations.listen, &token(host), host, "127.0.0.1:0", "");
    let (a, b) = (node("dtn-a"), node("dtn-b"));
    write_set(&mut random, &a.path("set"), 120, 4);
    let mut watching =
        operations.ask(&["submit", "a:/data/set", "b:/data/in", "--watch", "--json"]);
    let done = Run::start(&mut watching).wait().good();
    assert_eq!(done.number("files_done"), 124, "{done:?}");
    let copied = |path: &str| files_below(&b.path(path));
    assert_eq!(copied("in"), files_below(&a.path("set")));
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
fn whoever_is_killed_what_was_submitted_arrives() {
    let mut random = Random::seeded(7_301);
    let mut operations = Operations::start();
    let mut nodes =
        HOSTS.map(|host| Node::under(&operations.listen, &token(host), host, "127.0.0.1:0", ""));
    for node in &nodes[..2] {
        write_set(&mut random, &node.path("set"), 200, 8);
    }
    let first = operations.submit("a:/data/set", "c:/data/from-a", "first");
    let second = operations.submit("b:/data/set", "c:/data/from-b", "second");
    for round in 0..4 {
        let victim = if round < 4 { round } else { random.between(0, 4) as usize };
        let pause = Duration::from_millis(random.between(200, 1_500));
        let begun = Instant::now();
        until("a moment", Duration::from_secs(10), || (begun.elapsed() > pause).then_some(()));
        match nodes.get_mut(victim) {
            Some(node) => {
                println!("round {round}: {} is killed", node.name);
                node.agent.kill();
                node.restart();
            }
            None => {
                println!("round {round}: the controller is killed");
                operations.serve.take().unwrap().kill();
                operations.restart();
            }
        }
    }
    for (request, node, to) in [(first, 0, "from-a"), (second, 1, "from-b")] {
        let facts = await_done(&operations, request);
        assert_eq!(
            (facts["state"].as_str(), facts["files_done"].as_u64()),
            (Some("done"), Some(208)),
            "{facts}"
        );
        assert_eq!(files_below(&nodes[2].path(to)), files_below(&nodes[node].path("set")));
    }
}
