//! A node under a controller: an agent with a configuration of its own.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use penstock_operations::orders::{File, Overwrite, Send, Task, Verify};
use tempfile::TempDir;

use crate::common::{Agent, penstock};
use crate::controller::{Controller, TOKEN};

pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) dir: TempDir,
    /// What it exports to the controller as `/data`.
    pub(crate) data: PathBuf,
    pub(crate) state: PathBuf,
    pub(crate) agent: Agent,
    config: PathBuf,
    listen: String,
}

impl Node {
    pub(crate) fn start(controller: &Controller, name: &str) -> Self {
        Self::start_at(controller, name, "127.0.0.1:0", "")
    }

    /// With more lines of `[agent.controller]`.
    pub(crate) fn start_at(controller: &Controller, name: &str, listen: &str, more: &str) -> Self {
        let node = Self::under(&controller.address.to_string(), TOKEN, name, listen, more);
        controller.await_report(name);
        node
    }

    /// Under any controller.
    pub(crate) fn under(
        controller: &str,
        token: &str,
        name: &str,
        listen: &str,
        more: &str,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let [data, other, state] = ["data", "other", "state"].map(|name| dir.path().join(name));
        for path in [&data, &other] {
            fs::create_dir(path).unwrap();
        }
        let file = dir.path().join("token");
        fs::write(&file, format!("{token}\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
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

    /// The same agent again, after it was killed.
    pub(crate) fn restart(&mut self) {
        self.agent = spawn(&self.config, &self.state, &self.listen);
    }

    /// The file system's path of one of its exports.
    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.data.join(below)
    }

    /// Files of `from` below `below` for this node.
    pub(crate) fn files_to(&self, below: &str, ticket: &str, files: &[&str]) -> Send {
        let file = |path: &&str| File { path: (*path).to_owned(), digest: None };
        Send {
            from: "/data".into(),
            to: below.into(),
            files: files.iter().map(file).collect(),
            addresses: vec![self.listen.clone()],
            fingerprint: self.agent.fingerprint.replace("SHA256:", ""),
            ticket: ticket.into(),
            batch: None,
            scitag: None,
            overwrite: Overwrite::Changed,
            verify: Verify::Transfer,
            encrypt: false,
        }
    }

    /// A ticket to write here.
    pub(crate) fn receive(below: &str, ticket: &str) -> Task {
        Task::Receive { ticket: ticket.into(), below: below.into() }
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
