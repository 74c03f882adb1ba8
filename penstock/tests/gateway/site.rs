//! An agent with a gateway, and the means to talk to it.

use std::fs;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

pub(crate) use penstock_testkit::certificates::HostCertificate;
pub(crate) use penstock_testkit::http::{TestRequest, TestResponse};
pub(crate) use penstock_testkit::missing_program;
use penstock_testkit::raw;

use crate::common::{self, Agent, TestEnv, seeded, write_file, write_private};

pub(crate) const TOKEN: &str = "the-token-of-alice-is-long";

/// An agent with a gateway without TLS, and its export `/data`.
pub(crate) struct Site {
    pub(crate) env: TestEnv,
    pub(crate) agent: Agent,
    pub(crate) data: PathBuf,
}

impl Site {
    pub(crate) fn new() -> Self {
        Self::with("", "")
    }

    /// Starts an agent with further lines in the table `[gateway]`, and further tables.
    pub(crate) fn with(gateway: &str, tables: &str) -> Self {
        Self::admitting("\"alice\", \"owner\"", gateway, tables)
    }

    /// Starts an agent whose export admits these principals, a list of TOML.
    pub(crate) fn admitting(who: &str, gateway: &str, tables: &str) -> Self {
        let env = TestEnv::new();
        let data = env.path("data");
        fs::create_dir_all(&data).unwrap();
        let tokens = env.path("tokens");
        write_private(&tokens, format!("alice {TOKEN}\n"));
        let config = env.path("penstock.toml");
        let text = format!(
            "tokens = {tokens:?}\n[agent]\nlisten = \"127.0.0.1:0\"\nhttp = \"127.0.0.1:0\"\n\
             [gateway]\nlisten = [\"127.0.0.1:0\"]\nplaintext = [\"127.0.0.1:0\"]\n{gateway}{tables}\
             [[export]]\nname = \"/store/data\"\npath = {data:?}\nmode = \"read-write\"\nwho = [{who}]\n"
        );
        fs::write(&config, text).unwrap();
        let agent = Self::serve(&env);
        Self { env, agent, data }
    }

    /// Starts the agent of the configuration in `env`.
    pub(crate) fn serve(env: &TestEnv) -> Agent {
        let mut command = common::penstock(&env.state);
        command.args(["serve", "--json", "--roles", "agent", "--config"]);
        command.arg(env.path("penstock.toml"));
        Agent::spawn(command)
    }

    /// Kills the agent and starts it again.
    pub(crate) fn restart(&mut self) {
        self.agent.kill();
        self.agent = Self::serve(&self.env);
    }

    /// URL of the gateway with this scheme.
    pub(crate) fn url(&self, scheme: &str) -> String {
        let urls = self.agent.facts["webdav"].as_array().unwrap();
        let mut urls = urls.iter().map(|url| url.as_str().unwrap());
        urls.find(|url| url.starts_with(&format!("{scheme}://"))).unwrap().to_owned()
    }

    pub(crate) fn authority(&self) -> String {
        self.url("http")["http://".len()..].trim_end_matches('/').to_owned()
    }

    pub(crate) fn connect(&self) -> TcpStream {
        raw::connect(self.authority())
    }

    /// Sends one request of alice and reads the response.
    pub(crate) fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> TestResponse {
        self.ask_as(&format!("Bearer {TOKEN}"), method, path, headers, body)
    }

    /// Sends one request with these credentials, if any.
    pub(crate) fn ask_as(
        &self,
        credentials: &str,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> TestResponse {
        let mut request = TestRequest::new(self.authority(), method, path).body(body);
        if !credentials.is_empty() {
            request = request.header("authorization", credentials);
        }
        for (name, value) in headers {
            request = request.header(name, value);
        }
        request.send()
    }

    /// Resident memory of the agent, in bytes.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let path = format!("/proc/{}/status", self.agent.child.id());
        let status = fs::read_to_string(path).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    }

    pub(crate) fn transfers(&self) -> Vec<serde_json::Value> {
        self.agent.transfers(&self.env.state)
    }

    /// True while the agent has the file `name` open.
    pub(crate) fn reads(&self, name: &str) -> bool {
        let path = fs::canonicalize(self.data.join(name)).unwrap();
        let open = fs::read_dir(format!("/proc/{}/fd", self.agent.child.id())).unwrap();
        open.flatten().any(|entry| fs::read_link(entry.path()).is_ok_and(|file| file == path))
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.data).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

/// Runs a client in the directory of `site`, and returns its output; fails unless it exits with 0.
pub(crate) fn client(site: &Site, program: &str, arguments: &[&str]) -> String {
    let output = client_with(site, &[("BEARER_TOKEN", TOKEN)], program, arguments);
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a client with these variables in the directory of `site`.
pub(crate) fn client_with(
    site: &Site,
    variables: &[(&str, &str)],
    program: &str,
    arguments: &[&str],
) -> Output {
    Command::new(program)
        .args(arguments)
        .current_dir(site.env.path(""))
        .env("HOME", site.env.path(""))
        .env_remove("BEARER_TOKEN")
        .envs(variables.iter().copied())
        // Its scripts name no interpreter of their own on Debian.
        .env("GFAL_PYTHONBIN", "/usr/bin/python3")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// A site with a file to upload, and its content.
pub(crate) fn site_with_upload() -> (Site, PathBuf, Vec<u8>) {
    let site = Site::new();
    let source = site.env.path("upload.bin");
    write_file(&mut seeded(1703), &source, 300_000);
    let content = fs::read(&source).unwrap();
    (site, source, content)
}
