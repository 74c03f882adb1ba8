//! Derived tokens, which gfal2 asks for before its operations.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::common::{self, seeded, wait_until, write_file};
use crate::issuer::{TestIssuer, TestKey, wlcg};
use crate::site::{
    HostCertificate, Site, TOKEN, TestResponse, client, client_with, missing_program,
    site_with_upload,
};
use crate::third_party::ANYWHERE;
use crate::tokens::issuer_table;

const READ: &str = r#"{"caveats": ["activity:LIST,DOWNLOAD"], "validity": "PT180M"}"#;
const WRITE: &str =
    r#"{"caveats": ["activity:LIST,DOWNLOAD,MANAGE,UPLOAD,DELETE"], "validity": "PT180M"}"#;

fn ask(site: &Site, credentials: &str, path: &str, body: &str) -> TestResponse {
    let kind = [("Content-Type", "application/macaroon-request")];
    site.ask_as(credentials, "POST", path, &kind, body.as_bytes())
}

fn mint(site: &Site, credentials: &str, path: &str, body: &str) -> String {
    let answer = ask(site, credentials, path, body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let object: Value = serde_json::from_slice(&answer.body).unwrap();
    format!("Bearer {}", object["macaroon"].as_str().unwrap())
}

fn status(site: &Site, credentials: &str, method: &str, path: &str) -> u16 {
    let body: &[u8] = if method == "PUT" { b"new" } else { b"" };
    let depth = if method == "DELETE" { "infinity" } else { "0" };
    site.ask_as(credentials, method, path, &[("Depth", depth)], body).status
}

#[test]
fn macaroon_keeps_path_and_activity() {
    let site = Site::new();
    fs::create_dir(site.data.join("d")).unwrap();
    fs::write(site.data.join("d/f"), b"content").unwrap();
    fs::write(site.data.join("dd"), b"content").unwrap();
    let basic = format!("Basic {}", STANDARD.encode(format!("anyone:{TOKEN}")));
    let read = mint(&site, &basic, "/store/data/d", READ);
    for (method, path, expected) in [
        ("GET", "/store/data/d/f", 200),
        ("PROPFIND", "/store/data/d", 207),
        ("GET", "/store/data/dd", 403),
        ("PROPFIND", "/store/data", 403),
        ("PUT", "/store/data/d/n", 403),
        ("DELETE", "/store/data/d/f", 403),
        ("MKCOL", "/store/data/d/n", 403),
    ] {
        assert_eq!(status(&site, &read, method, path), expected, "{method} {path}");
    }
    let upload = r#"{"caveats": ["activity:UPLOAD", "path:/store/data/d/sub"]}"#;
    let upload = mint(&site, &basic, "/store/data/d", upload);
    assert_eq!(status(&site, &upload, "MKCOL", "/store/data/d/sub"), 201);
    assert_eq!(status(&site, &upload, "PUT", "/store/data/d/sub/f"), 201);
    assert_eq!(status(&site, &upload, "PUT", "/store/data/d/sub/f"), 403, "replaces");
    assert_eq!(status(&site, &upload, "PUT", "/store/data/d/g"), 403);
    let write = mint(&site, &basic, "/store/data/d", WRITE);
    assert_eq!(status(&site, &write, "PUT", "/store/data/d/sub/f"), 204);
    assert_eq!(status(&site, &write, "DELETE", "/store/data/d/sub"), 204);
}

/// Issues a token to alice; returns its id and the token.
fn issue(site: &Site, scopes: &[&str]) -> (String, String) {
    let mut command = common::penstock(&site.env.state);
    command.args(["token", "create", "alice", "--json"]);
    for scope in scopes {
        command.args(["--scope", scope]);
    }
    let created = common::run(&mut command).good().json;
    let text = |pointer: &str| created.pointer(pointer).unwrap().as_str().unwrap().to_owned();
    (text("/issued/id"), text("/token"))
}

#[test]
fn issued_token_is_a_parent() {
    let site = Site::new();
    fs::write(site.data.join("f"), b"content").unwrap();
    let (id, token) = issue(&site, &["storage.read:/store/data"]);
    let read = mint(&site, &format!("Bearer {token}"), "/store/data", READ);
    assert_eq!(status(&site, &read, "GET", "/store/data/f"), 200);
    assert_eq!(status(&site, &read, "PUT", "/store/data/g"), 403);
    common::run(common::penstock(&site.env.state).args(["token", "revoke", &id])).good();
    assert_eq!(status(&site, &read, "GET", "/store/data/f"), 401);
}

#[test]
fn revoked_token_ends_transfers() {
    let site = Site::new();
    fs::File::create(site.data.join("f")).unwrap().set_len(1 << 30).unwrap();
    let (id, token) = issue(&site, &["storage.read:/store/data", "storage.modify:/store/data"]);
    let begin = |head: &str| {
        let mut stream = site.connect();
        let head = format!("{head} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        stream
    };
    let mut download = begin("GET /store/data/f");
    download.write_all(b"\r\n").unwrap();
    let mut upload = begin("PUT /store/data/g");
    upload.write_all(b"Content-Length: 1000000\r\n\r\nhello").unwrap();
    let states = || -> Vec<String> {
        let transfers = site.transfers();
        transfers.iter().map(|one| one["state"].as_str().unwrap().to_owned()).collect()
    };
    wait_until("both run", Duration::from_secs(30), || {
        (states() == ["running", "running"]).then_some(())
    });
    common::run(common::penstock(&site.env.state).args(["token", "revoke", &id])).good();
    wait_until("both end", Duration::from_secs(30), || {
        (states() == ["cancelled", "cancelled"]).then_some(())
    });
    drop((download, upload));
    assert_eq!(site.names(), ["f"]);
}

#[test]
fn macaroon_is_never_wider_than_parent() {
    let site = Site::new();
    fs::create_dir(site.data.join("d")).unwrap();
    fs::write(site.data.join("d/f"), b"content").unwrap();
    fs::write(site.data.join("f"), b"content").unwrap();
    let alice = format!("Bearer {TOKEN}");
    let parent = mint(&site, &alice, "/store/data/d", READ);
    let child = mint(&site, &parent, "/", WRITE);
    assert_eq!(status(&site, &child, "GET", "/store/data/d/f"), 200);
    assert_eq!(status(&site, &child, "GET", "/store/data/f"), 403);
    assert_eq!(status(&site, &child, "DELETE", "/store/data/d/f"), 403);
    let upload = r#"{"caveats": ["activity:UPLOAD"], "validity": "PT1M"}"#;
    assert_eq!(ask(&site, &parent, "/store/data/d", upload).status, 403);
    assert_eq!(ask(&site, &parent, "/store/data/f", READ).status, 403);
    let forged = format!("{}A", &parent[..parent.len() - 1]);
    let other = format!("{}B", &parent[..parent.len() - 1]);
    let refused = [forged, other].map(|token| status(&site, &token, "GET", "/store/data/d/f"));
    assert!(refused.contains(&401), "{refused:?}");
}

#[test]
fn macaroon_ends_with_its_parent() {
    let mut site = Site::new();
    fs::write(site.data.join("f"), b"content").unwrap();
    let alice = format!("Bearer {TOKEN}");
    let token = mint(&site, &alice, "/store/data", READ);
    site.restart();
    assert_eq!(status(&site, &token, "GET", "/store/data/f"), 200, "after a restart");
    let mode = fs::metadata(site.env.state.join("macaroon.key")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    fs::write(site.env.path("tokens"), "alice another-token-of-alice\n").unwrap();
    let answer = site.ask_as(&token, "GET", "/store/data/f", &[], b"");
    assert!(answer.status == 401 && answer.text().contains("derived from"), "{}", answer.text());
}

#[test]
fn curl_hands_a_macaroon_to_gfal() {
    if missing_program("curl") || missing_program("gfal-copy") {
        return;
    }
    let (site, source, content) = site_with_upload();
    let url = format!("{}store/data", site.url("http"));
    let user = format!("anyone:{TOKEN}");
    let kind = "Content-Type: application/macaroon-request";
    let answer = client(&site, "curl", &["-sS", "-u", &user, "-H", kind, "-d", WRITE, &url]);
    let object: Value = serde_json::from_str(&answer).unwrap();
    let token = object["macaroon"].as_str().unwrap();
    let target = format!("{}/sub/f", url.replace("http://", "dav://"));
    let file = format!("file://{}", source.display());
    let arguments = ["-f", "-p", "-K", "ADLER32", &file, &target];
    let output = client_with(&site, &[("BEARER_TOKEN", token)], "gfal-copy", &arguments);
    assert!(output.status.success(), "{output:?}");
    assert!(fs::read(site.data.join("sub/f")).unwrap() == content);
}

/// Answer of a site to curl with the certificate of a client and further arguments.
fn ask_with_certificate(
    site: &Site,
    certificate: &HostCertificate,
    [pem, key]: &[PathBuf; 2],
    arguments: &[&str],
) -> String {
    let ca = certificate.path("ca.pem");
    let url = format!("{}store/data/f", site.url("https").replace("127.0.0.1", "localhost"));
    let mut all = vec!["-sS", "-w", "%{http_code}", &url];
    for (option, path) in [("--cacert", &ca), ("--cert", pem), ("--key", key)] {
        all.extend([option, path.to_str().unwrap()]);
    }
    all.extend(arguments);
    let output = client_with(site, &[], "curl", &all);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn certificate_serves_gfal_without_token() {
    if ["curl", "gfal-copy", "openssl"].into_iter().any(missing_program) {
        return;
    }
    let certificate = HostCertificate::new();
    let user = certificate.client(false);
    let proxy = certificate.client(true);
    let site = Site::with(&certificate.config(), "");
    fs::write(site.data.join("f"), b"content").unwrap();
    let refused = ask_with_certificate(&site, &certificate, &user, &[]);
    let principal = refused.split("\\\"").find(|part| part.starts_with("cert:SHA256:"));
    let principal = principal.unwrap_or_else(|| panic!("a remedy: {refused}")).to_owned();

    let who = format!("\"alice\", {principal:?}");
    let site = Site::admitting(&who, &certificate.config(), ANYWHERE);
    fs::write(site.data.join("f"), b"content").unwrap();
    assert_eq!(ask_with_certificate(&site, &certificate, &user, &[]), "content200");
    let refused = ask_with_certificate(&site, &certificate, &proxy, &[]);
    assert!(refused.contains("proxies are not accepted") && refused.ends_with("401"), "{refused}");
    let bearer = format!("Authorization: Bearer {TOKEN}");
    let with_token = ask_with_certificate(&site, &certificate, &proxy, &["-H", &bearer]);
    assert_eq!(with_token, "content200");

    let hashed = certificate.hashed_authorities();
    let [pem, key] = user;
    let variables = [
        ("X509_CERT_DIR", hashed.to_str().unwrap()),
        ("X509_USER_CERT", pem.to_str().unwrap()),
        ("X509_USER_KEY", key.to_str().unwrap()),
    ];
    let url = |name: &str| {
        let base = site.url("https").replace("https://127.0.0.1", "davs://localhost");
        format!("{base}store/data/{name}")
    };
    let source = site.env.path("upload.bin");
    write_file(&mut seeded(1731), &source, 300_000);
    let source = format!("file://{}", source.display());
    for (from, to, mode) in [
        (source, url("up"), "streamed"),
        (url("up"), url("pulled"), "pull"),
        (url("up"), url("pushed"), "push"),
    ] {
        let arguments = ["-f", "-K", "ADLER32", "--copy-mode", mode, &from, &to];
        let output = client_with(&site, &variables, "gfal-copy", &arguments);
        assert!(output.status.success(), "{mode}: {output:?}");
    }
    let content = fs::read(site.env.path("upload.bin")).unwrap();
    for name in ["up", "pulled", "pushed"] {
        assert!(fs::read(site.data.join(name)).unwrap() == content, "{name}");
    }
}

#[test]
fn macaroon_of_issuer_keeps_scopes() {
    let key = TestKey::es256("e1");
    let issuer = TestIssuer::new(&[&key]);
    let site = Site::admitting("\"issuer:cms\"", "", &issuer_table(&issuer, ""));
    fs::create_dir(site.data.join("d")).unwrap();
    for name in ["d/f", "f"] {
        fs::write(site.data.join(name), b"content").unwrap();
    }
    let own = format!("Bearer {}", key.token(&wlcg(issuer.url(), "storage.read:/d")));
    let token = mint(&site, &own, "/store/data", WRITE);
    assert_eq!(status(&site, &token, "GET", "/store/data/d/f"), 200);
    assert_eq!(status(&site, &token, "GET", "/store/data/f"), 403);
    assert_eq!(status(&site, &token, "DELETE", "/store/data/d/f"), 403);
}

#[test]
fn bad_macaroon_requests_are_refused() {
    let site = Site::new();
    let alice = format!("Bearer {TOKEN}");
    let anonymous = ask(&site, "", "/store/data", READ);
    assert_eq!(anonymous.status, 401);
    assert!(anonymous.text().contains("X.509 proxies are not accepted"), "{}", anonymous.text());
    assert!(anonymous.header("www-authenticate").is_some());
    for (path, body, expected) in [
        ("/store/data", "", 400),
        ("/store/data", "{\"caveats\": [\"before:2030-01-01T00:00:00Z\"]}", 400),
        ("/store/data", "{\"validity\": \"forever\"}", 400),
        ("/store/data/../x", READ, 400),
        ("/elsewhere", READ, 404),
    ] {
        assert_eq!(ask(&site, &alice, path, body).status, expected, "{path} {body}");
    }
    let long = format!("{{\"caveats\": [\"{}\"]}}", "x".repeat(100_000));
    assert_eq!(ask(&site, &alice, "/store/data", &long).status, 400);
    assert_eq!(site.ask("POST", "/store/data", &[], b"x").status, 405);
}
