//! Certificates of one test: an authority with a host certificate for loopback, and a self-signed server.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use rustls::pki_types::PrivateKeyDer;
use tempfile::TempDir;

use crate::files::write_private;

/// An authority, and a host certificate that it signed, for `localhost` and 127.0.0.1.
#[derive(Debug)]
pub struct HostCertificate {
    directory: TempDir,
}

impl Default for HostCertificate {
    fn default() -> Self {
        Self::new()
    }
}

impl HostCertificate {
    /// Writes `ca.pem`, `host.pem` and `host.key` to a directory of their own.
    ///
    /// # Panics
    /// When they cannot be made.
    #[must_use]
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, pem: String| write_private(&directory.path().join(name), pem);
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

    /// Returns the path of a file beside the certificates.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Makes a directory with the authority under its hashed name, as clients with OpenSSL want it; needs `openssl`.
    ///
    /// # Panics
    /// When `openssl` fails.
    #[must_use]
    pub fn hashed_authorities(&self) -> PathBuf {
        let hashed = self.path("authorities");
        if hashed.exists() {
            return hashed;
        }
        fs::create_dir(&hashed).unwrap();
        fs::copy(self.path("ca.pem"), hashed.join("ca.pem")).unwrap();
        let output = Command::new("openssl").arg("rehash").arg(&hashed).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        hashed
    }

    /// Writes the certificate of a user and its key; that of a proxy (RFC 3820) if `is_proxy`. Returns their paths.
    ///
    /// # Panics
    /// When they cannot be made.
    #[must_use]
    pub fn client(&self, is_proxy: bool) -> [PathBuf; 2] {
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, "user of a test");
        if is_proxy {
            // ProxyCertInfo with the policy id-ppl-inheritAll.
            let policy = [0x30, 12, 0x30, 10, 6, 8, 43, 6, 1, 5, 5, 7, 21, 1];
            let id = [1, 3, 6, 1, 5, 5, 7, 1, 14];
            let mut info = rcgen::CustomExtension::from_oid_content(&id, policy.to_vec());
            info.set_criticality(true);
            params.custom_extensions.push(info);
        }
        let key = rcgen::KeyPair::generate().unwrap();
        let paths = ["pem", "key"].map(|kind| self.path(&format!("user-{is_proxy}.{kind}")));
        write_private(&paths[0], params.self_signed(&key).unwrap().pem());
        write_private(&paths[1], key.serialize_pem());
        paths
    }

    /// Returns the keys of the table `[gateway]` that use it.
    #[must_use]
    pub fn config(&self) -> String {
        let [certificate, key, ca] = ["host.pem", "host.key", "ca.pem"].map(|name| self.path(name));
        format!("certificate = {certificate:?}\nkey = {key:?}\nauthorities = {ca:?}\n")
    }
}

/// Returns a TLS configuration with a self-signed certificate for `localhost`.
///
/// # Panics
/// When the certificate cannot be made.
#[must_use]
pub fn self_signed_server() -> rustls::ServerConfig {
    let key = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let private = PrivateKeyDer::Pkcs8(key.signing_key.serialize_der().into());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![key.cert.der().clone()], private)
        .unwrap()
}
