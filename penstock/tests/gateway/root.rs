//! `root://`: the clients of XRootD, uproot, and clients that mean harm.

mod hostile;
pub(crate) mod raw;
mod tls;
pub(crate) mod uproot;

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::common::{seeded, wait_until, write_file};
use crate::site::{HostCertificate, Site, TOKEN, missing_program};
use raw::RootClient;

/// Opaque part of a path with the token of alice.
pub(crate) const AUTHZ: &str = "authz=Bearer%20the-token-of-alice-is-long";

/// A site that speaks `root://`.
pub(crate) fn root_site(more: &str) -> Site {
    Site::with(&format!("root = [\"127.0.0.1:0\"]\n{more}"), "")
}

/// Host and port of the site's `root://`.
pub(crate) fn root_authority(site: &Site) -> String {
    let url = site.agent.facts["xrootd"][0].as_str().unwrap();
    url["root://".len()..].trim_end_matches('/').to_owned()
}

/// Runs a client of XRootD without tokens of the environment.
fn run(site: &Site, program: &str, arguments: &[&str], variables: &[(&str, &Path)]) -> Output {
    let mut command = Command::new("timeout");
    command.arg("60").arg(program).args(arguments).current_dir(site.env.path(""));
    command.env("HOME", site.env.path("")).env_remove("BEARER_TOKEN").stdin(Stdio::null());
    command.env_remove("BEARER_TOKEN_FILE").env("XDG_RUNTIME_DIR", site.env.path(""));
    command.env("GFAL_PYTHONBIN", "/usr/bin/python3");
    command.envs(variables.iter().copied()).output().unwrap()
}

fn succeeds(site: &Site, program: &str, arguments: &[&str], variables: &[(&str, &Path)]) -> String {
    let output = run(site, program, arguments, variables);
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

#[test]
fn xrdcp_reads_equal_files() {
    if missing_program("xrdcp") {
        return;
    }
    let site = root_site("");
    let copy = site.env.path("copy.bin");
    for size in [0, 1, 4095, 4096, 4097, 524_279, 524_280, 524_281, 30_000_000] {
        write_file(&mut seeded(1720), &site.data.join("f"), size);
        let url = format!("root://{}//store/data/f?{AUTHZ}", root_authority(&site));
        let copied = ["-f", "-C", "adler32", &url, copy.to_str().unwrap()];
        succeeds(&site, "xrdcp", &copied, &[]);
        assert!(fs::read(&copy).unwrap() == fs::read(site.data.join("f")).unwrap(), "{size}");
    }
    let url = format!("root://{}//store/data/f?{AUTHZ}", root_authority(&site));
    let printed = ["-f", "--cksum", "md5:source", &url, copy.to_str().unwrap()];
    let sum = succeeds(&site, "md5sum", &[copy.to_str().unwrap()], &[]);
    let printed = succeeds(&site, "xrdcp", &printed, &[]);
    assert!(printed.contains(sum.split(' ').next().unwrap()), "{printed}");
    // Several connections are refused, and the copy goes on with one.
    succeeds(&site, "xrdcp", &["-f", "-S", "4", &url, copy.to_str().unwrap()], &[]);
    let upload = run(&site, "xrdcp", &["-f", copy.to_str().unwrap(), &url], &[]);
    let text = String::from_utf8_lossy(&upload.stderr);
    assert!(!upload.status.success() && text.contains("root:// is read-only here"), "{text}");
}

#[test]
fn xrdfs_answers_are_complete() {
    if missing_program("xrdfs") {
        return;
    }
    let site = root_site("");
    fs::create_dir(site.data.join("d")).unwrap();
    fs::write(site.data.join("d/f"), b"123456789").unwrap();
    fs::write(site.data.join(".penstock-1.part"), b"x").unwrap();
    std::os::unix::fs::symlink("/etc/passwd", site.data.join("out")).unwrap();
    for at in 0..3000 {
        fs::write(site.data.join(format!("d/{at:0>64}")), b"").unwrap();
    }
    let authority = root_authority(&site);
    let xrdfs = |command: &str, path: &str| {
        let mut arguments = vec![authority.as_str()];
        arguments.extend(command.split(' '));
        let path = if path.is_empty() { String::new() } else { format!("{path}?{AUTHZ}") };
        if !path.is_empty() {
            arguments.push(&path);
        }
        succeeds(&site, "xrdfs", &arguments, &[])
    };
    assert_eq!(xrdfs("ls", "/"), "/store\n");
    assert_eq!(xrdfs("ls", "/store"), "/store/data\n");
    assert_eq!(xrdfs("ls", "/store/data"), "/store/data/d\n");
    assert_eq!(xrdfs("ls", "/store/data/d").lines().count(), 3001);
    let long = xrdfs("ls -l", "/store/data/d");
    assert_eq!(long.lines().count(), 3001);
    assert!(long.lines().any(|line| line.contains(" 9 ") && line.ends_with("/d/f")), "{long}");
    let stat = xrdfs("stat", "/store/data/d/f");
    assert!(stat.contains("Size:   9") && stat.contains("IsReadable"), "{stat}");
    assert!(xrdfs("stat", "/store").contains("IsDir"));
    assert!(xrdfs("locate", "/store/data/d/f").contains("Server Read"));
    let sum = xrdfs("query checksum", "/store/data/d/f");
    assert_eq!(sum.trim_end_matches(['\n', '\0']), "adler32 091e01de");
    assert_eq!(xrdfs("query config tpc", "").trim(), "0");
    assert_eq!(xrdfs("query config readv_iov_max", "").trim(), "1024");
    assert_eq!(xrdfs("cat", "/store/data/d/f"), "123456789");
    assert!(xrdfs("spaceinfo", "/store/data").contains("Total:"));
    for (command, path, words) in [
        ("stat", "/store/data/out", "[3"),
        ("cat", "/store/data/.penstock-1.part", "temporary files"),
        ("ls", "/elsewhere", "in no export"),
        ("rm", "/store/data/d/f", "read-only"),
        ("mkdir", "/store/data/x", "read-only"),
        ("truncate", "/store/data/d/f", "read-only"),
        ("query checksum", "/store/data/d", "directory"),
    ] {
        let path = format!("{path}?{AUTHZ}");
        let mut arguments = vec![authority.as_str()];
        arguments.extend(command.split(' ').chain([path.as_str()]));
        if command == "truncate" {
            arguments.push("0");
        }
        let output = run(&site, "xrdfs", &arguments, &[]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(words), "{command} {path}: {output:?}");
    }
    assert_eq!(fs::read(site.data.join("d/f")).unwrap(), b"123456789");
}

#[test]
fn roots_takes_bearer_tokens() {
    if missing_program("xrdcp") || missing_program("openssl") {
        return;
    }
    let certificate = HostCertificate::new();
    let site = root_site(&certificate.config());
    let authorities = certificate.hashed_authorities();
    write_file(&mut seeded(1721), &site.data.join("f"), 3_000_000);
    let (copy, authority) = (site.env.path("copy.bin"), root_authority(&site));
    let url = format!("roots://localhost:{}//store/data/f", authority.rsplit(':').next().unwrap());
    let host = url.trim_end_matches("//store/data/f").to_owned();
    let token = [("X509_CERT_DIR", authorities.as_path()), ("BEARER_TOKEN", Path::new(TOKEN))];
    let arguments = ["-f", "-C", "adler32", &url, copy.to_str().unwrap()];
    succeeds(&site, "xrdcp", &arguments, &token);
    assert!(fs::read(&copy).unwrap() == fs::read(site.data.join("f")).unwrap());
    assert!(succeeds(&site, "xrdfs", &[&host, "ls", "/store/data"], &token).contains("/f"));
    let wrong = [token[0], ("BEARER_TOKEN", Path::new("a-token-of-nobody-at-all"))];
    for variables in [&token[..1], &wrong] {
        let output = run(&site, "xrdcp", &arguments, variables);
        assert!(!output.status.success(), "{output:?}");
    }
    if !missing_program("gfal-copy") {
        let to = format!("file://{}", copy.display());
        succeeds(&site, "gfal-copy", &["-f", &url, &to], &token);
        assert!(fs::read(&copy).unwrap() == fs::read(site.data.join("f")).unwrap());
        let directory = url.trim_end_matches("/f");
        assert!(succeeds(&site, "gfal-ls", &["-l", directory], &token).contains("3000000"));
    }
}

#[test]
fn gfal_copies_and_checks() {
    if missing_program("gfal-copy") {
        return;
    }
    let site = root_site("");
    write_file(&mut seeded(1722), &site.data.join("f"), 300_000);
    let copy = site.env.path("copy.bin");
    let url = format!("root://{}//store/data/f?{AUTHZ}", root_authority(&site));
    succeeds(&site, "gfal-copy", &["-f", &url, &format!("file://{}", copy.display())], &[]);
    assert!(fs::read(&copy).unwrap() == fs::read(site.data.join("f")).unwrap());
    assert!(succeeds(&site, "gfal-stat", &[&url], &[]).contains("Size: 300000"));
    let sum = succeeds(&site, "md5sum", &[copy.to_str().unwrap()], &[]);
    let printed = succeeds(&site, "gfal-sum", &[&url, "MD5"], &[]);
    assert!(printed.contains(sum.split(' ').next().unwrap()), "{printed}");
}

#[test]
fn reads_count_as_transfers() {
    let site = root_site("");
    write_file(&mut seeded(1723), &site.data.join("f"), 8 << 20);
    let mut client = RootClient::logged_in(&site);
    let handle = client.open("/store/data/f").unwrap();
    assert!(client.read(handle, 0, 8 << 20).unwrap() == fs::read(site.data.join("f")).unwrap());
    let listed = site.transfers();
    assert_eq!(listed[0]["state"], "running", "{listed:?}");
    assert_eq!(listed[0]["caller"], "alice", "{listed:?}");
    assert_eq!(listed[0]["moved_bytes"], 8 << 20, "{listed:?}");
    assert!(listed[0].to_string().contains("\"root\""), "{listed:?}");
    client.close(handle).unwrap();
    wait_until("the transfer is done", Duration::from_secs(20), || {
        let listed = site.transfers();
        (listed[0]["state"] == "done" && listed[0]["files"] == 1).then_some(())
    });
}

#[test]
fn cancelled_transfer_ends_connection() {
    let site = root_site("");
    write_file(&mut seeded(1724), &site.data.join("f"), 1 << 20);
    let mut client = RootClient::logged_in(&site);
    let handle = client.open("/store/data/f").unwrap();
    client.read(handle, 0, 1000).unwrap();
    let id = site.transfers()[0]["id"].to_string();
    let mut command = crate::common::penstock(&site.env.state);
    let http = site.agent.http.clone();
    let output = command.args(["transfers", "cancel", &id, "--http", &http]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(client.read(handle, 0, 1000).is_err());
    wait_until("the transfer is cancelled", Duration::from_secs(20), || {
        (site.transfers()[0]["state"] == "cancelled").then_some(())
    });
}
