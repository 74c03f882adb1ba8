//! An agent with a gateway, and the means to talk to it.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::common::{self, Agent, TestEnv, seeded, write_file};

pub(crate) const TOKEN: &str = "the-token-of-alice-is-long";

/// A response with its body.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// An agent with a gateway without TLS, and its export `/data`.
pub(crate) struct Site {
    pub(crate) env: TestEnv,
    pub(crate) agent: Agent,
    pub(crate) data: PathBuf,
}

/// An authority, and a host certificate that it signed, for `localhost` and 127.0.0.1.
pub(crate) struct HostCertificate {
    directory: tempfile::TempDir,
}

impl HostCertificate {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, pem: String| {
            let path = directory.path().join(name);
            fs::write(&path, pem).unwrap();
            let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            fs::set_permissions(path, private).unwrap();
        };
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign];
        params.distinguished_name.push(rcgen::DnType::CommonName, "authority of a test");
        let key = rcgen::KeyPair::generate().unwrap();
        write("ca.pem", params.self_signed(&key).unwrap().pem());
        let authority = rcgen::Issuer::new(params, key);
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let mut params = rcgen::CertificateParams::new(names).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, "localhost");
        let key = rcgen::KeyPair::generate().unwrap();
        write("host.pem", params.signed_by(&key, &authority).unwrap().pem());
        write("host.key", key.serialize_pem());
        Self { directory }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A directory with the authority under its hashed name, as clients with OpenSSL want it; needs `openssl`.
    pub(crate) fn hashed_authorities(&self) -> PathBuf {
        let hashed = self.path("authorities");
        fs::create_dir(&hashed).unwrap();
        fs::copy(self.path("ca.pem"), hashed.join("ca.pem")).unwrap();
        let output = Command::new("openssl").arg("rehash").arg(&hashed).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        hashed
    }

    /// Keys of the table `[gateway]` that use it.
    pub(crate) fn config(&self) -> String {
        let [certificate, key, ca] = ["host.pem", "host.key", "ca.pem"].map(|name| self.path(name));
        format!("certificate = {certificate:?}\nkey = {key:?}\nauthorities = {ca:?}\n")
    }
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
        fs::write(&tokens, format!("alice {TOKEN}\n")).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(&tokens, mode).unwrap();
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
        let stream = TcpStream::connect(self.authority()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    /// Sends one request of alice and reads the response.
    pub(crate) fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Response {
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
    ) -> Response {
        let mut stream = self.connect();
        let mut head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n",
            self.authority()
        );
        if !credentials.is_empty() {
            head += &format!("Authorization: {credentials}\r\n");
        }
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        if !body.is_empty() {
            head += &format!("Content-Length: {}\r\n", body.len());
        }
        stream.write_all(format!("{head}\r\n").as_bytes()).unwrap();
        // The server may refuse and close before it has read the body.
        let _ = stream.write_all(body);
        read_response(&mut BufReader::new(stream), method == "HEAD")
    }

    pub(crate) fn transfers(&self) -> Vec<serde_json::Value> {
        self.agent.transfers(&self.env.state)
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.data).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

pub(crate) fn read_response(reader: &mut impl BufRead, is_head: bool) -> Response {
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let status = line.split(' ').nth(1).unwrap_or_else(|| panic!("a status: {line:?}"));
    let status = status.parse().unwrap();
    let mut headers = Vec::new();
    loop {
        line.clear();
        reader.read_line(&mut line).unwrap();
        match line.trim_end().split_once(':') {
            Some((name, value)) => headers.push((name.to_owned(), value.trim().to_owned())),
            None => break,
        }
    }
    let mut response = Response { status, headers, body: Vec::new() };
    if is_head || status == 204 || status == 304 || status == 100 {
        return response;
    }
    if response.header("transfer-encoding").is_some() {
        loop {
            line.clear();
            reader.read_line(&mut line).unwrap();
            let count = usize::from_str_radix(line.trim(), 16).expect("a chunk's length");
            let mut chunk = vec![0; count + 2];
            reader.read_exact(&mut chunk).unwrap();
            response.body.extend_from_slice(&chunk[..count]);
            if count == 0 {
                return response;
            }
        }
    }
    let count = response.header("content-length").map_or(0, |text| text.parse().unwrap());
    response.body = vec![0; count];
    reader.read_exact(&mut response.body).unwrap();
    response
}

/// True if `program` is installed; reports the test as skipped otherwise.
pub(crate) fn is_installed(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    let found = path.split(':').any(|directory| Path::new(directory).join(program).is_file());
    if !found {
        penstock_testkit::skip(penstock_testkit::Requirement::Program, program);
    }
    found
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
