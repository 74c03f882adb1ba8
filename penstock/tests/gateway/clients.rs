//! The clients of other projects.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use penstock_testkit::Requirement;

use crate::common::{self, seeded, write_file, write_private};
use crate::site::{
    HostCertificate, Site, TOKEN, client, client_with, missing_program, site_with_upload,
};

#[test]
fn curl_copies_over_tls() {
    if missing_program("curl") {
        return;
    }
    let site = Site::new();
    let source = site.env.path("source.bin");
    write_file(&mut seeded(1702), &source, 3 << 20);
    let url = format!("{}store/data/f", site.url("https"));
    let header = format!("Authorization: Bearer {TOKEN}");
    let curl = |arguments: &[&str]| {
        let output = Command::new("curl")
            .args(["--silent", "--show-error", "--fail", "--insecure", "-H", &header])
            .args(arguments)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        output.stdout
    };
    curl(&["-T", source.to_str().unwrap(), &url]);
    assert!(curl(&[&url]) == fs::read(&source).unwrap());
    let tail = curl(&["-r", "1000-", &url]);
    assert!(tail == fs::read(&source).unwrap()[1000..]);
}

#[test]
fn davix_moves_files() {
    if missing_program("davix-put") {
        return;
    }
    let (site, source, content) = site_with_upload();
    let (header, base) = (format!("Authorization: Bearer {TOKEN}"), site.url("http"));
    let url = |path: &str| format!("{base}store/data/{path}");
    let davix = |program, arguments: &[&str]| {
        client(&site, program, &[&["-H", &header], arguments].concat())
    };
    let copy = site.env.path("copy.bin");
    davix("davix-mkdir", &[&url("d")]);
    davix("davix-put", &[source.to_str().unwrap(), &url("d/f")]);
    davix("davix-get", &[&url("d/f"), copy.to_str().unwrap()]);
    assert!(fs::read(&copy).unwrap() == content);
    let listed = davix("davix-ls", &["-l", &url("d")]);
    assert!(listed.contains("300000") && listed.contains(" f"), "{listed}");
    // davix 0.8.4 moves, and then exits with 255.
    let moving = ["-H", &header, &url("d/f"), &url("d/g")];
    let moved = client_with(&site, &[], "davix-mv", &moving);
    assert_eq!(fs::read_dir(site.data.join("d")).unwrap().count(), 1, "{moved:?}");
    assert!(fs::read(site.data.join("d/g")).unwrap() == content, "{moved:?}");
    davix("davix-rm", &[&url("d/g")]);
    davix("davix-rm", &[&url("d")]);
    assert!(site.names().is_empty());
}

#[test]
fn gfal_moves_and_checks_files() {
    if missing_program("gfal-copy") {
        return;
    }
    let (site, source, content) = site_with_upload();
    let base = site.url("http").replace("http://", "dav://");
    let url = |path: &str| format!("{base}store/data/{path}");
    let (file, copy) = (format!("file://{}", source.display()), site.env.path("copy.bin"));
    client(&site, "gfal-mkdir", &["-p", &url("a/b")]);
    client(&site, "gfal-copy", &["-f", "-K", "ADLER32", &file, &url("a/b/f")]);
    client(&site, "gfal-copy", &["-f", &url("a/b/f"), &format!("file://{}", copy.display())]);
    assert!(fs::read(&copy).unwrap() == content);
    assert!(client(&site, "gfal-stat", &[&url("a/b/f")]).contains("Size: 300000"));
    assert!(client(&site, "gfal-ls", &["-l", &url("a/b")]).contains("300000"));
    let sum = client(&site, "gfal-sum", &[&url("a/b/f"), "MD5"]);
    let expected = client(&site, "md5sum", &[source.to_str().unwrap()]);
    assert_eq!(sum.split(' ').nth(1).map(str::trim), expected.split(' ').next(), "{sum}");
    client(&site, "gfal-rename", &[&url("a/b/f"), &url("a/g")]);
    client(&site, "gfal-rm", &["-r", &url("a")]);
    assert!(site.names().is_empty());
}

#[test]
fn rclone_synchronises_trees() {
    if missing_program("rclone") {
        return;
    }
    let (site, _, _) = site_with_upload();
    let tree = site.env.path("tree");
    common::write_tree(&mut seeded(1704), &tree, 1, 20);
    let text = format!(
        "[p]\ntype = webdav\nurl = {}store/data\nvendor = other\nbearer_token = {TOKEN}\n",
        site.url("http")
    );
    fs::write(site.env.path("rclone.conf"), text).unwrap();
    let rclone = |arguments: &[&str]| {
        client(&site, "rclone", &[&["--config", "rclone.conf"], arguments].concat())
    };
    rclone(&["copy", "tree", "p:copy"]);
    rclone(&["check", "tree", "p:copy", "--download"]);
    rclone(&["move", "p:copy", "p:moved"]);
    rclone(&["check", "tree", "p:moved", "--download"]);
    rclone(&["purge", "p:moved"]);
    assert!(!site.names().contains(&"moved".to_owned()));
}

#[test]
fn litmus_groups_pass() {
    if missing_program("litmus") {
        return;
    }
    let site = Site::new();
    let output = Command::new("litmus")
        .args([&format!("{}store/data/", site.url("http")), "alice", TOKEN])
        .env("TESTS", "basic copymove http")
        .current_dir(site.env.path(""))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert_eq!(text.matches(" 0 failed. 100.0%").count(), 3, "{text}");
}

/// xrdcp over https sends no token of its own, so that the URL carries it.
#[test]
fn xrdcp_copies_over_https() {
    let plugin = Path::new("/etc/xrootd/client.plugins.d/xrdcl-http-plugin.conf");
    if missing_program("xrdcp") || missing_program("openssl") {
        return;
    }
    if !plugin.exists() {
        return penstock_testkit::skip(Requirement::Program, "xrootd-client-http-plugins");
    }
    let certificate = HostCertificate::new();
    let site = Site::with(&certificate.config(), "");
    let source = site.env.path("source.bin");
    write_file(&mut seeded(1705), &source, 300_000);
    let base = site.url("https").replace("127.0.0.1", "localhost");
    let url = format!("{base}store/data/f?authz=Bearer%20{TOKEN}");
    let hashed = certificate.hashed_authorities();
    let copy = site.env.path("copy.bin");
    for (from, to) in
        [(source.to_str().unwrap(), url.as_str()), (url.as_str(), copy.to_str().unwrap())]
    {
        let output = Command::new("xrdcp")
            .args(["-f", from, to])
            .env("XRDCP_ALLOW_HTTP", "1")
            .env("X509_CERT_DIR", &hashed)
            .output()
            .unwrap();
        assert!(output.status.success(), "{from} {to}: {output:?}");
    }
    assert!(fs::read(&copy).unwrap() == fs::read(&source).unwrap());
    assert_eq!(site.names(), ["f"]);
}

/// Uploads `upload.bin` with cadaver at the plain address of `site`, moves it, fetches it as `copy.bin` and deletes it; no
/// command may fail. Returns its output.
pub(crate) fn move_file_with_cadaver(site: &Site) -> String {
    let netrc = site.env.path(".netrc");
    write_private(&netrc, format!("machine 127.0.0.1\nlogin alice\npassword {TOKEN}\n"));
    let commands = "put upload.bin a\nmkcol d\nmove a d/b\nls d\nget d/b copy.bin\ndelete d/b\nrmcol d\nquit\n";
    let mut child = Command::new("cadaver")
        .arg(format!("{}store/data/", site.url("http")))
        .env("HOME", site.env.path(""))
        .current_dir(site.env.path(""))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(commands.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && !text.contains("failed"), "{text}");
    text.into_owned()
}

#[test]
fn cadaver_moves_files() {
    if missing_program("cadaver") {
        return;
    }
    let (site, _, content) = site_with_upload();
    let text = move_file_with_cadaver(&site);
    assert!(fs::read(site.env.path("copy.bin")).unwrap() == content, "{text}");
    assert!(site.names().is_empty(), "{text}");
}

#[test]
fn own_certificate_serves_first_try() {
    if missing_program("curl") {
        return;
    }
    let site = Site::new();
    fs::write(site.data.join("f"), b"hello").unwrap();
    let certificate = site.env.state.join("agent.crt");
    let certificate = certificate.to_str().unwrap();
    let authorization = format!("Authorization: Bearer {TOKEN}");
    let address = site.url("https");
    for url in [address.clone(), address.replace("127.0.0.1", "localhost")] {
        let url = format!("{url}store/data/f");
        let text =
            client(&site, "curl", &["-sSf", "--cacert", certificate, "-H", &authorization, &url]);
        assert_eq!(text, "hello");
    }
}
