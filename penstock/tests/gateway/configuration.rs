//! Configurations that cannot work: the start ends with one line that names key, value and remedy.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::common::{TestEnv, penstock};
use crate::site::HostCertificate;

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
