//! A controller of three sites as a process, and agents that take its orders.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use super::{Agent, fixed_address, penstock, run, write_private};

pub const HOSTS: [&str; 3] = ["dtn-a", "dtn-b", "dtn-c"];

/// The controller of three sites with one host each.
pub struct Operations {
    dir: TempDir,
    pub state: PathBuf,
    pub serve: Option<Agent>,
    pub listen: String,
    /// Set to log at level debug after the next start.
    pub verbose: bool,
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

/// Bearer token of a host.
pub fn token(host: &str) -> String {
    format!("the-token-of-{host}")
}

impl Operations {
    /// Appends `more` to the last table of its configuration.
    pub fn start(more: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("topology.toml"), topology()).unwrap();
        let mut text = "roles = [\"controller\"]\n[controller]\ntopology = \"topology.toml\"\n\
                        lost_after = \"5s\"\nbatch_files = 40\ntransfers_per_pair = 2\n"
            .to_owned();
        for host in HOSTS {
            write_private(&path(host), token(host));
            text += &format!(
                "[[controller.token]]\nname = \"{host}\"\nfile = \"{host}\"\nscopes = [\"agent:{host}\"]\n"
            );
        }
        text += more;
        fs::write(path("penstock.toml"), text).unwrap();
        let state = path("state");
        let mut operations =
            Self { dir, state, serve: None, listen: fixed_address(), verbose: false };
        operations.restart();
        operations
    }

    /// Appends to its configuration, and starts it again.
    pub fn append(&mut self, more: &str) {
        let file = self.dir.path().join("penstock.toml");
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, text + more).unwrap();
        self.serve.take().unwrap().kill();
        self.restart();
    }

    pub fn restart(&mut self) {
        let mut command = penstock(&self.state);
        command.env_remove("PENSTOCK_ROLES");
        if self.verbose {
            command.env("PENSTOCK_LOG", "debug");
        }
        command.args(["serve", "--json", "--http", &self.listen, "--config"]);
        command.arg(self.dir.path().join("penstock.toml"));
        let serve = Agent::spawn(command);
        self.listen = serve.http.clone();
        self.serve = Some(serve);
    }

    pub fn ask(&self, words: &[&str]) -> Command {
        let mut command = penstock(&self.state);
        command.args(words).args(["--controller", &self.listen]);
        command
    }

    pub fn submit(&self, from: &str, to: &str, key: &str, more: &[&str]) -> u64 {
        let words = ["submit", from, to, "--key", key, "--no-encrypt", "--json"];
        run(self.ask(&[&words, more].concat())).good().number("id")
    }

    /// Starts the agent of one of the hosts.
    pub fn node(&self, host: &str) -> Node {
        Node::under(&self.listen, &token(host), host, &fixed_address(), "")
    }

    pub fn facts(&self, request: u64) -> Value {
        let done = run(self.ask(&["show", &request.to_string(), "--json"]));
        done.json["request"].clone()
    }
}

/// An agent with a configuration file that names its controller.
pub struct Node {
    pub name: String,
    pub dir: TempDir,
    /// Directory that the agent exports to the controller as `/data`.
    pub data: PathBuf,
    pub state: PathBuf,
    pub agent: Agent,
    config: PathBuf,
    pub listen: String,
}

impl Node {
    /// Starts an agent that takes orders from the controller at URL `controller`.
    pub fn under(controller: &str, token: &str, name: &str, listen: &str, more: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let [data, other, state] = ["data", "other", "state"].map(|name| dir.path().join(name));
        for path in [&data, &other] {
            fs::create_dir(path).unwrap();
        }
        write_private(&dir.path().join("token"), format!("{token}\n"));
        let config = dir.path().join("penstock.toml");
        let text = format!(
            "[agent.controller]\nurl = \"http://{controller}\"\ntoken = \"token\"\nhost = \"{name}\"\n{more}\n\
             [third_party]\nto = \"any\"\n\
             [[export]]\nname = \"/data\"\npath = \"data\"\nmode = \"read-write\"\nwho = [\"controller\"]\n\
             [[export]]\nname = \"/other\"\npath = \"other\"\nmode = \"read-write\"\nwho = [\"*\"]\n",
        );
        fs::write(&config, text).unwrap();
        let agent = spawn(&config, &state, listen);
        let listen = agent.listen.clone();
        Self { name: name.to_owned(), dir, data, state, agent, config, listen }
    }

    /// Starts the agent again, after it was killed.
    pub fn restart(&mut self) {
        self.agent = spawn(&self.config, &self.state, &self.listen);
    }

    /// File system path of `below` in the export `/data`.
    pub fn path(&self, below: &str) -> PathBuf {
        self.data.join(below)
    }
}

fn spawn(config: &Path, state: &Path, listen: &str) -> Agent {
    let mut command = penstock(state);
    command.args(["serve", "--json", "--http", "127.0.0.1:0", "--listen", listen, "--config"]);
    command.arg(config);
    if std::env::var_os("PENSTOCK_TEST_LOG").is_some() {
        command.env("PENSTOCK_LOG", "debug");
    }
    Agent::spawn(command)
}
