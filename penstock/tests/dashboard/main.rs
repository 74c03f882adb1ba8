//! The dashboard in a real browser: a real `penstock serve`, fed with real sFlow where figures are needed.
//!
//! Screenshots are left in `target/screenshots`.

#[path = "../common/mod.rs"]
mod common;

mod alerts;
mod browser;
mod federation;
mod feed;
mod frame;
mod hostile;
mod operations;
mod pictures;
mod scale;
mod speed;
mod traffic;
mod transfers;

use std::fs;
use std::net::SocketAddr;

use common::{Agent, TestEnv, penstock};

/// A node with a state directory, export and configuration of this test.
pub(crate) struct Node {
    pub(crate) env: TestEnv,
    pub(crate) agent: Agent,
    pub(crate) sflow: SocketAddr,
}

/// The network of the exhibition at SC25 as our experiment describes it.
pub(crate) const TOPOLOGY: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../experiments/topologies/sc25-scitags.toml");

impl Node {
    /// Starts a node with `more` appended to the table `[collector]`.
    pub(crate) fn start(more: &str) -> Self {
        Self::start_with_marking("2001:db8:1::/48", more)
    }

    /// Starts a node that trusts labels of the network `marking`.
    pub(crate) fn start_with_marking(marking: &str, more: &str) -> Self {
        let env = TestEnv::new();
        let config = env.path("penstock.toml");
        let text = format!(
            "[agent]\nlisten = [\"127.0.0.1:0\"]\nhttp = [\"127.0.0.1:0\"]\n\
             [[export]]\nname = \"/data\"\npath = {root:?}\nmode = \"read-write\"\nwho = [\"*\"]\n\
             [collector]\nsflow = [\"127.0.0.1:0\"]\nipfix = []\nfireflies = []\nmarking = [\"{marking}\"]\n{more}",
            root = env.root,
        );
        fs::write(&config, text).unwrap();
        let mut command = penstock(&env.state);
        command.args(["serve", "--json", "--roles", "agent,collector", "--config"]).arg(&config);
        let agent = Agent::spawn(command);
        let sflow = agent.facts["telemetry"]["sflow"][0].as_str().unwrap().parse().unwrap();
        Self { env, agent, sflow }
    }

    /// URL of a page of the dashboard.
    pub(crate) fn page(&self, page: &str) -> String {
        format!("http://{}/#/{page}", self.agent.http)
    }

    /// Token of the agent from its state directory.
    pub(crate) fn token(&self) -> String {
        fs::read_to_string(self.env.state.join("token")).unwrap().trim().to_owned()
    }
}
