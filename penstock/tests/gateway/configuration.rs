//! Configurations that cannot work: the start ends with one line that names key, value and remedy. Renewed certificates.

use std::fs;
use std::io::{self, BufReader, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;

use std::sync::Arc;
use std::time::Duration;

use penstock_testkit::raw::read_response;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::common::{TestEnv, penstock, wait_until};
use crate::site::{HostCertificate, Site, TOKEN};

/// Error of an agent with this table `[gateway]`.
fn error_of(env: &TestEnv, gateway: &str) -> String {
    let config = env.path("penstock.toml");
    let text = format!(
        "[agent]\nlisten = \"127.0.0.1:0\"\nhttp = \"none\"\n[gateway]\nlisten = [\"127.0.0.1:0\"]\n{gateway}\
         [[export]]\nname = \"/data\"\npath = {:?}\nmode = \"read\"\nwho = [\"owner\"]\n",
        env.path("")
    );
    fs::write(&config, text).unwrap();
    let mut command = penstock(&env.state);
    command.args(["serve", "--roles", "agent", "--config"]).arg(&config);
    let output = command.output().unwrap();
    assert!(!output.status.success(), "{gateway}: {output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn unusable_host_certificates_are_named() {
    let env = TestEnv::new();
    let (own, other) = (HostCertificate::new(), HostCertificate::new());
    let path = |name: &str| own.path(name).to_str().unwrap().to_owned();
    let open = path("open.key");
    fs::copy(path("host.key"), &open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o644)).unwrap();
    for (certificate, key, words) in [
        ("none.pem", path("host.key"), "certificate "),
        ("none.pem", path("host.key"), "name the PEM file"),
        (path("host.key").as_str(), path("host.key"), "no certificate"),
        (&path("host.pem"), path("none.key"), "key "),
        (&path("host.pem"), path("none.key"), "no such file"),
        (&path("host.pem"), open, "(mode 0644): chmod 600 it"),
        (&path("host.pem"), path("host.pem"), "name the PEM file of the key"),
        (other.path("host.pem").to_str().unwrap(), path("host.key"), "certificate "),
        (other.path("host.pem").to_str().unwrap(), path("host.key"), "host.key"),
    ] {
        let error = error_of(&env, &format!("certificate = {certificate:?}\nkey = {key:?}\n"));
        assert!(error.contains(words) && error.contains("[gateway]"), "{words}: {error}");
    }
}

/// Connects to the gateway as a client that trusts the authority of `certificate`.
fn connect(
    site: &Site,
    certificate: &HostCertificate,
) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
    let mut authorities = RootCertStore::empty();
    let authority = CertificateDer::from_pem_file(certificate.path("ca.pem")).unwrap();
    authorities.add(authority).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(authorities)
        .with_no_client_auth();
    let name = "localhost".try_into().unwrap();
    let mut tls = ClientConnection::new(Arc::new(config), name).unwrap();
    let url = site.url("https");
    let mut stream = TcpStream::connect(url["https://".len()..].trim_end_matches('/'))?;
    tls.complete_io(&mut stream)?;
    Ok(StreamOwned::new(tls, stream))
}

#[test]
fn renewed_host_certificate_is_sent() {
    let [used, second, third] = [(); 3].map(|()| HostCertificate::new());
    let first = HostCertificate::new();
    let renew = |from: &HostCertificate, name: &str| {
        fs::copy(from.path(name), used.path(name)).unwrap();
    };
    ["host.pem", "host.key"].into_iter().for_each(|name| renew(&first, name));
    let site = Site::with(&used.config(), "");
    fs::write(site.data.join("f"), b"content").unwrap();
    let mut open = BufReader::new(connect(&site, &first).unwrap());
    let mut get = || {
        let head = format!(
            "GET /store/data/f HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
        );
        open.get_mut().write_all(head.as_bytes()).unwrap();
        read_response(&mut open).status
    };
    assert_eq!(get(), 200);
    ["host.pem", "host.key"].into_iter().for_each(|name| renew(&second, name));
    site.agent.signal("HUP");
    wait_until("the renewed certificate", Duration::from_secs(20), || {
        connect(&site, &second).ok().map(drop)
    });
    connect(&site, &first).unwrap_err();
    assert_eq!(get(), 200);
    renew(&third, "host.pem");
    site.agent.signal("HUP");
    let line = wait_until("an error in the log", Duration::from_secs(20), || {
        let log = site.agent.log();
        log.lines().find(|line| line.contains("keeps its certificate")).map(str::to_owned)
    });
    assert!(line.contains("host.pem") && line.contains("it belongs to the key"), "{line}");
    connect(&site, &second).unwrap();
}

#[test]
fn unusable_values_end_the_start() {
    let env = TestEnv::new();
    fs::create_dir(env.path("empty")).unwrap();
    for (gateway, words) in [
        ("authorities = \"empty\"\n", "holds no certificate: name a PEM file, or a directory"),
        ("authorities = \"none\"\n", "no such file or directory: name a PEM file"),
        (
            "root = [\"127.0.0.1:7\"]\nplaintext = [\"127.0.0.1:7\"]\n",
            "of plaintext: give one of them",
        ),
        ("[gateway.head]\nkey = \"none\"\nagents = [\"https://a\"]\n", "openssl rand -hex 32"),
    ] {
        let error = error_of(&env, gateway);
        assert!(error.contains(words) && error.contains("[gateway"), "{words}: {error}");
    }
}
