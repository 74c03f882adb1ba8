//! A head node in front of two agents that export the same directory.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use penstock_testkit::raw::free_port;
use penstock_testkit::{Requirement, is_installed};
use penstock_tokens::{RedirectGrant, RedirectKey, RedirectedClient};

use crate::common::{TestEnv, seeded, wait_until, write_file};
use crate::root::raw::RootClient;
use crate::root::{AUTHZ, root_authority};
use crate::site::{HostCertificate, Site, TOKEN};
use crate::third_party::{ANYWHERE, assert_success, bearer, copy, site, url_at};

mod peers;

const SECRET: &str = "f00dfeedf00dfeedf00dfeedf00dfeed";

/// Time for the head node to notice that an agent came or went.
const NOTICED_WITHIN: Duration = Duration::from_secs(20);

/// A head node, which knows the token of alice, and two agents, which do not.
struct HeadSite {
    head: Site,
    agents: Vec<Site>,
    data: PathBuf,
    certificate: HostCertificate,
    _shared: tempfile::TempDir,
}

/// Writes a file that only its owner may read.
fn write_secret(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
}

/// Starts an agent over `data` with this token of `name`, and these lines in `[gateway]`.
fn start(data: &Path, token: &str, gateway: &str, tables: &str) -> Site {
    let env = TestEnv::new();
    let (tokens, key) = (env.path("tokens"), env.path("redirect.key"));
    write_secret(&tokens, token);
    write_secret(&key, SECRET);
    let text = format!(
        "tokens = {tokens:?}\n[agent]\nlisten = \"127.0.0.1:0\"\nhttp = \"127.0.0.1:0\"\n\
         [gateway]\n{gateway}{ANYWHERE}{tables}\
         [[export]]\nname = \"/store/data\"\npath = {data:?}\nmode = \"read-write\"\nwho = [\"alice\"]\n"
    );
    fs::write(env.path("penstock.toml"), text).unwrap();
    let agent = Site::serve(&env);
    Site { env, agent, data: data.to_owned() }
}

/// Starts a head node in front of the agents at `urls`, with further lines in `[gateway.head]`; waits until it knows two.
fn start_head(data: &Path, certificate: &HostCertificate, urls: &[String], head: &str) -> Site {
    let gateway = format!(
        "listen = [\"127.0.0.1:0\"]\nplaintext = [\"127.0.0.1:0\"]\nroot = [\"127.0.0.1:0\"]\n{}[gateway.head]\nkey = \"redirect.key\"\nagents = {urls:?}\n{head}",
        certificate.config()
    );
    let head = start(data, &format!("alice {TOKEN}\n"), &gateway, "");
    wait_until("both agents get clients", NOTICED_WITHIN, || {
        let hosts: BTreeSet<_> = (0..2).filter_map(|_| redirect_of(&head, "probe")).collect();
        (hosts.len() == 2).then_some(())
    });
    head
}

/// Host and port to which a head node redirects a `GET` of the file.
fn redirect_of(head: &Site, name: &str) -> Option<String> {
    // Where the head node answers by itself, it moves no data.
    let known = [("If-None-Match", "*")];
    let answer = head.ask("GET", &format!("/store/data/{name}"), &known, b"");
    let location = answer.header("location").filter(|_| answer.status == 307)?;
    Some(location.split('/').nth(2)?.to_owned())
}

/// URL at a head node.
fn url_of(head: &Site, name: &str) -> String {
    format!("{}store/data/{name}", head.url("https").replace("127.0.0.1", "localhost"))
}

impl HeadSite {
    fn new(head: &str) -> Self {
        Self::with(head, "")
    }

    /// Starts all, with further lines in `[gateway.head]`, and tables of the agents; waits until the head node knows both.
    fn with(head: &str, tables: &str) -> Self {
        let certificate = HostCertificate::new();
        let shared = tempfile::tempdir().unwrap();
        let data = shared.path().to_owned();
        let mut urls = Vec::new();
        let mut agents = Vec::new();
        for _ in 0..2 {
            let port = free_port();
            let url = format!("https://localhost:{port}");
            let gateway = format!(
                "listen = [\"127.0.0.1:{port}\"]\nroot = [\"127.0.0.1:0\"]\n{}[gateway.redirected]\nkey = \"redirect.key\"\nurl = {url:?}\n",
                certificate.config()
            );
            agents.push(start(&data, "bob another-token-of-bob\n", &gateway, tables));
            urls.push(url);
        }
        fs::write(data.join("probe"), b"probe").unwrap();
        let head = start_head(&data, &certificate, &urls, head);
        Self { head, agents, data, certificate, _shared: shared }
    }

    /// Host and port to which a `GET` of the file is redirected.
    fn redirect(&self, name: &str) -> Option<String> {
        redirect_of(&self.head, name)
    }

    /// URL at the head node.
    fn url(&self, name: &str) -> String {
        url_of(&self.head, name)
    }

    /// Number of files that each agent moved, the head node first.
    fn moved(&self) -> Vec<u64> {
        let files = |site: &Site| {
            let transfers = site.transfers();
            transfers.iter().map(|one| one["files"].as_u64().unwrap_or(0)).sum()
        };
        [&self.head].into_iter().chain(&self.agents).map(files).collect()
    }

    /// Waits until head node and agents have moved this many files together.
    #[track_caller]
    fn assert_moved_behind(&self, files: u64) {
        let mut seen = Vec::new();
        wait_until(&format!("{files} files at the agents"), NOTICED_WITHIN, || {
            seen = self.moved();
            (seen.iter().sum::<u64>() >= files).then_some(())
        });
        assert_eq!((seen[0], seen[1] + seen[2]), (0, files), "{seen:?}");
    }

    fn curl(&self, arguments: &[&str]) -> Output {
        Command::new("curl")
            .args(["--silent", "--show-error", "--fail", "-L", "--cacert"])
            .arg(self.certificate.path("ca.pem"))
            .args(["-H", &format!("Authorization: {}", bearer())])
            .args(arguments)
            .output()
            .unwrap()
    }

    /// Runs a client that trusts the authority; fails unless it exits with 0.
    fn client(&self, program: &str, arguments: &[&str]) {
        let hashed = self.certificate.hashed_authorities();
        let mut command = Command::new(program);
        // With it, xrdcp 5.5.3 talks to roots:// in the clear.
        if arguments.iter().any(|argument| argument.starts_with("http")) {
            command.env("XRDCP_ALLOW_HTTP", "1");
        }
        let output = command
            .args(arguments)
            .current_dir(self.head.env.path(""))
            .env("HOME", self.head.env.path(""))
            .env("BEARER_TOKEN", TOKEN)
            .env("X509_CERT_DIR", &hashed)
            .env("GFAL_PYTHONBIN", "/usr/bin/python3")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    }

    /// No token is in a log.
    fn assert_logs_without_tokens(&self) {
        for site in [&self.head].into_iter().chain(&self.agents) {
            let log = site.agent.log();
            assert!(!log.contains("pr1.") && !log.contains(TOKEN), "{log}");
        }
    }

    /// File to upload, with its content.
    fn upload(&self, seed: u64, bytes: usize) -> (String, Vec<u8>) {
        let path = self.head.env.path(&format!("upload-{seed}"));
        write_file(&mut seeded(seed), &path, bytes);
        let content = fs::read(&path).unwrap();
        (path.to_str().unwrap().to_owned(), content)
    }
}

/// Sends a request of curl to an agent, without a token of the client's own; returns the status.
fn status_at(site: &HeadSite, arguments: &[&str]) -> String {
    let output = Command::new("curl")
        .args(["--silent", "-o", "/dev/null", "-w", "%{http_code}", "--cacert"])
        .arg(site.certificate.path("ca.pem"))
        .args(arguments)
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn curl_uploads_once_to_agents() {
    if !is_installed("curl") {
        return;
    }
    let site = HeadSite::new("");
    let (source, content) = site.upload(1741, 3_000_000);
    for number in 0..4 {
        let (name, facts) =
            (format!("f%20{number}"), "%{num_redirects} %{size_upload} %{http_code}");
        let put = site.curl(&["-T", &source, "-w", facts, &site.url(&name)]);
        let text = String::from_utf8_lossy(&put.stdout);
        assert_eq!(text, format!("1 {} 201", content.len()), "{put:?}");
        assert!(fs::read(site.data.join(format!("f {number}"))).unwrap() == content);
        let got = site.curl(&["-w", "%{stderr}%{num_redirects}", &site.url(&name)]);
        assert!(got.stdout == content && got.stderr == b"1", "{:?}", got.stderr);
        let tail = site.curl(&["-r", "1000-1999", &site.url(&name)]);
        assert!(tail.stdout == content[1000..2000]);
    }
    // A client that does not wait for 100 has begun to send: the head node takes the file.
    let eager = site.curl(&["-H", "Expect:", "-T", &source, &site.url("eager")]);
    assert!(eager.status.success(), "{eager:?}");
    wait_until("all are counted", NOTICED_WITHIN, || {
        let moved = site.moved();
        (moved[0] == 1 && moved[1] + moved[2] == 8 && moved[1] > 0 && moved[2] > 0).then_some(())
    });
    // HTTP/1.0 knows no 307.
    let mut stream = site.head.connect();
    let head = format!("GET /store/data/probe HTTP/1.0\r\nAuthorization: {}\r\n\r\n", bearer());
    stream.write_all(head.as_bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    assert!(line.contains(" 302 "), "{line}");
    site.assert_logs_without_tokens();
}

#[test]
fn davix_and_gfal_follow() {
    for program in ["davix-put", "gfal-copy", "openssl"] {
        if !is_installed(program) {
            return;
        }
    }
    let site = HeadSite::new("");
    let (source, content) = site.upload(1742, 1_000_003);
    let header = format!("Authorization: {}", bearer());
    site.client("openssl", &["version"]);
    let hashed = site.certificate.path("authorities");
    let davix = ["--capath", hashed.to_str().unwrap(), "-H", &header];
    let copied = site.head.env.path("copied");
    let copied = copied.to_str().unwrap();
    site.client("davix-put", &[&davix[..], &[&source, &site.url("davix")]].concat());
    assert!(fs::read(site.data.join("davix")).unwrap() == content);
    site.client("davix-get", &[&davix[..], &[&site.url("davix"), copied]].concat());
    assert!(fs::read(copied).unwrap() == content);
    site.assert_moved_behind(2);
    let url = site.url("d/gfal").replace("https://", "davs://");
    let gfal = ["-f", "-p", "-K", "ADLER32"];
    site.client("gfal-copy", &[&gfal[..], &[&format!("file://{source}"), &url]].concat());
    assert!(fs::read(site.data.join("d/gfal")).unwrap() == content);
    site.client("gfal-copy", &["-f", &url, &format!("file://{copied}")]);
    assert!(fs::read(copied).unwrap() == content);
    site.assert_moved_behind(4);
    site.client("gfal-rm", &["-r", &site.url("d").replace("https://", "davs://")]);
    assert!(!site.data.join("d").exists());
    site.assert_logs_without_tokens();
}

#[test]
fn xrdcp_and_rclone_follow() {
    for program in ["xrdcp", "rclone", "openssl"] {
        if !is_installed(program) {
            return;
        }
    }
    let site = HeadSite::new("");
    let (source, content) = site.upload(1743, 1_000_003);
    let copied = site.head.env.path("copied");
    let copied = copied.to_str().unwrap();
    if Path::new("/etc/xrootd/client.plugins.d/xrdcl-http-plugin.conf").exists() {
        let url = format!("{}?authz=Bearer%20{TOKEN}", site.url("xrdcp"));
        site.client("xrdcp", &["-f", &source, &url]);
        assert!(fs::read(site.data.join("xrdcp")).unwrap() == content);
        site.client("xrdcp", &["-f", &url, copied]);
        assert!(fs::read(copied).unwrap() == content);
    } else {
        penstock_testkit::skip(Requirement::Program, "xrootd-client-http-plugins");
    }
    let config = format!(
        "[p]\ntype = webdav\nurl = {}\nvendor = other\nbearer_token = {TOKEN}\n",
        site.url("")
    );
    fs::write(site.head.env.path("rclone.conf"), config).unwrap();
    let ca = site.certificate.path("ca.pem");
    let rclone = ["--config", "rclone.conf", "--ca-cert", ca.to_str().unwrap()];
    // It sends without waiting, so that the head node takes uploads itself.
    site.client("rclone", &[&rclone[..], &["copyto", &source, "p:rclone"]].concat());
    assert!(fs::read(site.data.join("rclone")).unwrap() == content);
    site.client("rclone", &[&rclone[..], &["copyto", "p:rclone", copied]].concat());
    assert!(fs::read(copied).unwrap() == content);
    wait_until("the download is counted at an agent", NOTICED_WITHIN, || {
        let moved = site.moved();
        (moved[0] >= 1 && moved[1] + moved[2] >= 1).then_some(())
    });
    site.assert_logs_without_tokens();
}

#[test]
fn third_party_copies_are_redirected() {
    if !is_installed("curl") {
        return;
    }
    let behind = HeadSite::new("");
    let other = site(&behind.certificate);
    let (_, content) = behind.upload(1744, 20_000_003);
    fs::write(other.data.join("f"), &content).unwrap();
    let transfer = format!("TransferHeaderAuthorization: {}", bearer());
    for (name, header, remote) in [("pulled", "Source", "f"), ("pulled", "Destination", "pushed")] {
        let url = format!("{header}: {}", url_at(&other, remote));
        let copied = behind.curl(&["-X", "COPY", "-H", &transfer, "-H", &url, &behind.url(name)]);
        let text = String::from_utf8_lossy(&copied.stdout);
        assert!(text.ends_with("success: Created\n"), "{copied:?}");
    }
    assert!(fs::read(behind.data.join("pulled")).unwrap() == content);
    assert!(fs::read(other.data.join("pushed")).unwrap() == content);
    behind.assert_moved_behind(2);
    // As the passive side: each range is asked for at the head node.
    let verify = ("RequireChecksumVerification", "true");
    let back = copy(&other, "back", &[("Source", &behind.url("pulled")), verify]);
    assert_success(&back);
    assert!(fs::read(other.data.join("back")).unwrap() == content);
    let put = copy(&other, "f", &[("Destination", &behind.url("put")), verify]);
    assert_success(&put);
    assert!(fs::read(behind.data.join("put")).unwrap() == content);
    behind.assert_logs_without_tokens();
}

#[test]
fn gfal_copies_through_head_nodes() {
    for program in ["gfal-copy", "openssl"] {
        if !is_installed(program) {
            return;
        }
    }
    let behind = HeadSite::new("");
    let other = site(&behind.certificate);
    let (_, content) = behind.upload(1745, 300_000);
    fs::write(other.data.join("f"), &content).unwrap();
    let own = |name: &str| url_at(&other, name).replace("127.0.0.1", "localhost");
    for mode in ["pull", "push"] {
        let name = format!("by-{mode}");
        let gfal = ["-f", "-p", "-K", "ADLER32", "--copy-mode", mode];
        behind.client("gfal-copy", &[&gfal[..], &[&own("f"), &behind.url(&name)]].concat());
        assert!(fs::read(behind.data.join(&name)).unwrap() == content);
        behind.client("gfal-copy", &[&gfal[..], &[&behind.url(&name), &own(&name)]].concat());
        assert!(fs::read(other.data.join(&name)).unwrap() == content);
    }
    // Some of them in ranges, which count by their bytes alone.
    let bytes = |site: &Site| -> u64 {
        site.transfers().iter().map(|one| one["moved_bytes"].as_u64().unwrap()).sum()
    };
    wait_until("all bytes are counted at the agents", NOTICED_WITHIN, || {
        let moved: u64 = behind.agents.iter().map(bytes).sum();
        (moved == 4 * content.len() as u64).then_some(())
    });
    assert_eq!(bytes(&behind.head), 0);
    behind.assert_logs_without_tokens();
}

#[test]
fn killed_agents_are_skipped() {
    if !is_installed("curl") {
        return;
    }
    let slow = "[limits]\nrate = \"16Mbps\"\n";
    let mut site = HeadSite::with("", slow);
    let (source, content) = site.upload(1746, 8_000_000);
    // The agent dies in the middle of an upload; the client tries again. The agents, which do not know its token, check
    // their clients each second meanwhile.
    let child = Command::new("curl")
        .args(["--silent", "--fail", "-L", "--cacert"])
        .arg(site.certificate.path("ca.pem"))
        .args(["-H", &format!("Authorization: {}", bearer()), "-T", &source])
        .args([&site.url("f")])
        .stdout(Stdio::null())
        .spawn();
    let mut child = child.unwrap();
    let busy = wait_until("an agent receives", NOTICED_WITHIN, || {
        site.agents.iter().position(|agent| {
            let running = |one: &serde_json::Value| {
                one["state"] == "running" && one["moved_bytes"].as_u64() > Some(0)
            };
            agent.transfers().iter().any(running)
        })
    });
    site.agents[busy].agent.kill();
    assert!(!child.wait().unwrap().success());
    assert!(!site.data.join("f").exists());
    let left = site.agents[1 - busy].url("https").replace("127.0.0.1", "localhost");
    let left = left.trim_start_matches("https://").trim_end_matches('/').to_owned();
    wait_until("all clients go to the other agent", NOTICED_WITHIN, || {
        let hosts: BTreeSet<_> = (0..3).filter_map(|_| site.redirect("probe")).collect();
        (hosts == BTreeSet::from([left.clone()])).then_some(())
    });
    let again = site.curl(&["-T", &source, &site.url("f")]);
    assert!(again.status.success(), "{again:?}");
    assert!(fs::read(site.data.join("f")).unwrap() == content);
    // Without agents the head node serves.
    site.agents[1 - busy].agent.kill();
    wait_until("the head node serves", NOTICED_WITHIN, || {
        (site.head.ask("GET", "/store/data/probe", &[], b"").status == 200).then_some(())
    });
    let put = site.curl(&["-T", &source, &site.url("g")]);
    assert!(put.status.success() && fs::read(site.data.join("g")).unwrap() == content, "{put:?}");
    // An agent that returns gets clients again.
    site.agents[busy].restart();
    wait_until("the agent gets clients again", NOTICED_WITHIN, || site.redirect("probe"));
}

#[test]
fn head_node_without_room_refuses() {
    let mut site = HeadSite::new("serves = false\n");
    let length = (u64::MAX / 4).to_string();
    let head = [("Expect", "100-continue"), ("Content-Length", length.as_str())];
    let refused = site.head.ask("PUT", "/store/data/huge", &head, b"");
    assert_eq!(refused.status, 507, "{}", refused.text());
    // Metadata stays.
    assert_eq!(site.head.ask("MKCOL", "/store/data/d", &[], b"").status, 201);
    assert_eq!(site.head.ask("HEAD", "/store/data/probe", &[], b"").status, 200);
    assert_eq!(site.head.ask("GET", "/store/data/none", &[], b"").status, 404);
    let other =
        site.head.ask_as("Bearer wrong-token-of-alice", "GET", "/store/data/probe", &[], b"");
    assert_eq!(other.status, 401);
    site.agents.iter_mut().for_each(|agent| agent.agent.kill());
    let answer = wait_until("both agents are missed", NOTICED_WITHIN, || {
        let answer = site.head.ask("GET", "/store/data/probe", &[], b"");
        // Clients that did not follow take their slots until the next report.
        (answer.status == 503 && !answer.text().contains("taken")).then_some(answer)
    });
    assert_eq!(answer.header("retry-after"), Some("5"));
    assert!(answer.text().contains("0 of 2 agents answer"), "{}", answer.text());
}

#[test]
fn tokens_are_for_one_request() {
    if !is_installed("curl") {
        return;
    }
    let site = HeadSite::new("");
    fs::write(site.data.join("other"), b"other").unwrap();
    let answer = site.head.ask("GET", "/store/data/probe", &[], b"");
    let url = answer.header("location").unwrap().to_owned();
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    assert_eq!(status_at(&site, &[&url]), "200");
    // Again, within a minute.
    assert_eq!(status_at(&site, &[&url]), "200");
    let own = url.split('/').nth(2).unwrap();
    let hosts = site.agents.iter().map(|agent| {
        let url = agent.url("https").replace("127.0.0.1", "localhost");
        url.trim_start_matches("https://").trim_end_matches('/').to_owned()
    });
    let other_host = hosts.clone().find(|host| host != own).unwrap();
    let damaged = format!("{}A", &url[..url.len() - 1]);
    let damaged = if damaged == url { format!("{}B", &url[..url.len() - 1]) } else { damaged };
    let forged_host = format!("Host: {own}");
    for arguments in [
        &[url.replace("/probe", "/other").as_str()][..],
        &["-X", "DELETE", &url],
        &["-X", "HEAD", "-I", &url],
        &["-X", "PROPFIND", &url],
        &["-T", "/etc/hostname", &url],
        &[&url.replace(own, &other_host)],
        &["-H", &forged_host, &url.replace(own, &other_host)],
        &[&damaged],
        &[&url.replace("pr1.", "pr1.e30.")],
        &[&url.replace("/store/data/probe", "/.well-known/penstock-room")],
    ] {
        assert_eq!(status_at(&site, arguments), "401", "{arguments:?}");
    }
    // Not at the head node, which accepts no redirects.
    assert_eq!(
        status_at(&site, &[&url.replace(own, site.url("").split('/').nth(2).unwrap())]),
        "401"
    );
    assert!(site.data.join("probe").exists());
    // Of the site's key, but expired, too long, for the controller, and for a client that no export admits.
    let key = RedirectKey::new(SECRET.as_bytes());
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    for (name, expires_s, status) in [
        ("alice", now_s + 60, "200"),
        ("alice", now_s - 1, "401"),
        ("alice", now_s + 3600, "401"),
        ("controller", now_s + 60, "401"),
        ("", now_s + 60, "401"),
        ("bob", now_s + 60, "404"),
    ] {
        let token = key.seal(&RedirectGrant {
            method: "GET".to_owned(),
            path: b"/store/data/probe".to_vec(),
            host: own.to_owned(),
            client: Some(RedirectedClient { name: name.to_owned(), grant: None }),
            expires_s,
        });
        let url = format!("https://{own}/store/data/probe?authz=Bearer%20{}", token.unwrap());
        assert_eq!(status_at(&site, &[&url]), status, "{name} {expires_s}");
    }
    // The room of an agent is for head nodes only.
    let room = format!("https://{own}/.well-known/penstock-room");
    assert_eq!(status_at(&site, &[&room]), "401");
    assert_eq!(status_at(&site, &["-H", &format!("Authorization: {}", bearer()), &room]), "401");
    site.assert_logs_without_tokens();
}

/// Token of a redirect of the head node for opening a file over `root://`, and the port of its agent.
fn root_redirect(site: &HeadSite, name: &str) -> (String, u16) {
    let mut client = RootClient::logged_in(&site.head);
    let path = format!("/store/data/{name}?{AUTHZ}");
    let answer = client.ask(3010, [0; 16], path.as_bytes()).unwrap();
    assert_eq!(answer.status, 4004, "{answer:?}");
    let port = u32::from_be_bytes(answer.body[..4].try_into().unwrap());
    let target = String::from_utf8(answer.body[4..].to_vec()).unwrap();
    let token = target.strip_prefix("localhost?authz=Bearer%20").unwrap().to_owned();
    (token, port.try_into().unwrap())
}

#[test]
fn xrootd_clients_follow() {
    for program in ["xrdcp", "xrdfs", "openssl"] {
        if !is_installed(program) {
            return;
        }
    }
    let site = HeadSite::new("");
    let content = seeded(1750).bytes(3_000_001);
    fs::write(site.data.join("f"), &content).unwrap();
    let copied = site.head.env.path("copied");
    let authority = root_authority(&site.head);
    let url = format!("root://{authority}//store/data/f?{AUTHZ}");
    site.client("xrdcp", &["-f", "-C", "adler32", &url, copied.to_str().unwrap()]);
    assert!(fs::read(&copied).unwrap() == content);
    site.assert_moved_behind(1);
    let head = format!("roots://{}", authority.replace("127.0.0.1", "localhost"));
    site.client(
        "xrdcp",
        &["-f", "-C", "adler32", &format!("{head}//store/data/f"), copied.to_str().unwrap()],
    );
    assert!(fs::read(&copied).unwrap() == content);
    site.assert_moved_behind(2);
    for command in [&["cat", "/store/data/probe"][..], &["ls", "-l", "/store/data"]] {
        site.client("xrdfs", &[&[head.as_str()], command].concat());
    }
    site.client("xrdfs", &[&head, "query", "checksum", "/store/data/f"]);
    site.assert_logs_without_tokens();
}

#[test]
fn root_tokens_are_for_one_open() {
    let site = HeadSite::new("");
    fs::write(site.data.join("other"), b"other").unwrap();
    let (token, port) = root_redirect(&site, "probe");
    let chosen = |agent: &&Site| root_authority(agent).ends_with(&format!(":{port}"));
    let own = site.agents.iter().find(chosen).unwrap();
    let other = site.agents.iter().find(|agent| !chosen(agent)).unwrap();
    let open = |site: &Site, path: &str, token: &str| {
        let path = format!("{path}?authz=Bearer%20{token}");
        RootClient::logged_in(site).open_raw(path.as_bytes())
    };
    let probe = "/store/data/probe";
    // Twice, within a minute.
    assert!(open(own, probe, &token).is_ok() && open(own, probe, &token).is_ok());
    const AUTH_FAILED: u32 = 3030;
    assert_eq!(open(own, "/store/data/other", &token), Err(AUTH_FAILED));
    assert_eq!(open(other, probe, &token), Err(AUTH_FAILED));
    assert_eq!(open(&site.head, probe, &token), Err(AUTH_FAILED));
    assert_eq!(open(own, probe, &format!("{token}A")), Err(AUTH_FAILED));
    let url = own.url("https").replace("127.0.0.1", "localhost");
    let url = format!("{url}store/data/probe?authz=Bearer%20{token}");
    assert_eq!(status_at(&site, &[&url]), "401");
    let answer = site.head.ask("GET", probe, &[], b"");
    let of_http = answer.header("location").unwrap().split_once("Bearer%20").unwrap().1;
    assert_eq!(open(own, probe, of_http), Err(AUTH_FAILED));
    // Nothing else: no listing, no metadata.
    for code in [3017, 3004] {
        let path = format!("{probe}?authz=Bearer%20{token}");
        let answer = RootClient::logged_in(own).ask(code, [0; 16], path.as_bytes()).unwrap();
        assert_eq!(answer.code(), AUTH_FAILED, "{code}");
    }
    // The client reads on, and gets the checksum of the file alone.
    let mut client = RootClient::logged_in(own);
    let path = format!("{probe}?authz=Bearer%20{token}");
    let handle = client.open_raw(path.as_bytes()).unwrap();
    assert_eq!(client.read(handle, 0, 100).unwrap(), b"probe");
    let mut checksum = [0; 16];
    checksum[1] = 3;
    assert_eq!(client.ask(3001, checksum, path.as_bytes()).unwrap().code(), 0);
    let of_other = path.replace("probe", "other");
    assert_eq!(client.ask(3001, checksum, of_other.as_bytes()).unwrap().code(), AUTH_FAILED);
    site.assert_logs_without_tokens();
}

#[test]
fn root_head_node_asks_to_wait() {
    let mut site = HeadSite::new("serves = false\n");
    site.agents.iter_mut().for_each(|agent| agent.agent.kill());
    let mut client = RootClient::logged_in(&site.head);
    let path = format!("/store/data/probe?{AUTHZ}");
    let answer = wait_until("both agents are missed", NOTICED_WITHIN, || {
        let answer = client.ask(3010, [0; 16], path.as_bytes()).unwrap();
        (answer.status == 4005 && answer.text().contains("0 of 2")).then_some(answer)
    });
    assert_eq!(answer.body[..4], 5_u32.to_be_bytes());
    // What does not exist is said at once.
    let missing = client.open("/store/data/none");
    assert_eq!(missing, Err(3011));
}
