//! Certificates that a client trusts.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use penstock_sys::fs::open_regular;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{self, PemObject};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};

/// Files in which distributions keep the trusted authorities: Debian, EL, SUSE, Alpine.
pub const CA_BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Largest file of trusted authorities, in bytes.
const AUTHORITIES_BYTES_MAX: u64 = 16 << 20;

/// Certificates of servers that TLS trusts.
#[derive(Debug, Clone)]
pub enum ServerTrust {
    /// Those signed by an authority in this PEM file or in a file of this directory, by default in the file that
    /// `SSL_CERT_FILE` names or in one of [`CA_BUNDLES`]. The files are read for each connection.
    Authorities(Option<PathBuf>),
    /// Those that this configuration accepts, such as a pinned certificate.
    Config(Arc<ClientConfig>),
    /// None: the server's certificate is not known, and a request over TLS fails once the server accepts a connection.
    Unknown,
}

impl Default for ServerTrust {
    fn default() -> Self {
        Self::Authorities(None)
    }
}

/// Trusted authorities that cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum ServerTrustError {
    /// No certificate of the server is known.
    #[error("no certificate of it is known")]
    Unknown,
    /// None of the known files exists.
    #[error(
        "no file of trusted authorities is there: install ca-certificates or set SSL_CERT_FILE"
    )]
    NoFile,
    /// The file cannot be read.
    #[error("authorities in {}: {}", file.display(), penstock_sys::fs::describe(source))]
    Read {
        /// Path of the file.
        file: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// A certificate of the file is damaged; others of the file may be intact.
    #[error("authorities in {}: certificate {number} is damaged: {source}", file.display())]
    Damaged {
        /// Path of the file.
        file: PathBuf,
        /// Number of the certificate in the file, from 1.
        number: usize,
        /// Error of its PEM text.
        source: pem::Error,
    },
    /// The file has no certificate that TLS accepts.
    #[error("authorities in {}: it holds no certificate", .0.display())]
    Empty(PathBuf),
    /// TLS cannot be configured.
    #[error("{0}")]
    Tls(#[from] rustls::Error),
}

impl ServerTrust {
    /// Reads the authorities once, for many connections to servers of other software, which may know TLS 1.2 only.
    ///
    /// # Errors
    /// When they cannot be loaded.
    pub fn load(&self) -> Result<Self, ServerTrustError> {
        self.config_of(&[&TLS13, &TLS12]).map(Self::Config)
    }

    /// Returns a TLS configuration that trusts these certificates.
    pub(super) fn config(&self) -> Result<Arc<ClientConfig>, ServerTrustError> {
        self.config_of(&[&TLS13])
    }

    fn config_of(
        &self,
        versions: &[&'static SupportedProtocolVersion],
    ) -> Result<Arc<ClientConfig>, ServerTrustError> {
        let given = match self {
            Self::Config(config) => return Ok(Arc::clone(config)),
            Self::Authorities(file) => file.clone(),
            Self::Unknown => return Err(ServerTrustError::Unknown),
        };
        let named = std::env::var_os("SSL_CERT_FILE").filter(|file| !file.is_empty());
        let known = || CA_BUNDLES.iter().map(PathBuf::from).find(|file| file.exists());
        let file =
            given.or(named.map(PathBuf::from)).or_else(known).ok_or(ServerTrustError::NoFile)?;
        let provider = Arc::new(crate::crypto_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)?
            .with_root_certificates(root_certificates(&file)?)
            .with_no_client_auth();
        Ok(Arc::new(config))
    }
}

fn root_certificates(file: &Path) -> Result<RootCertStore, ServerTrustError> {
    let pem = read_pem(file)
        .map_err(|source| ServerTrustError::Read { file: file.to_owned(), source })?;
    let mut store = RootCertStore::empty();
    let mut certificates = Vec::new();
    for (index, certificate) in CertificateDer::pem_slice_iter(&pem).enumerate() {
        match certificate {
            Ok(certificate) => certificates.push(certificate),
            // Programs of the site write a directory of many authorities: one that they damage costs itself alone.
            Err(_) if file.is_dir() => {}
            Err(source) => {
                let file = file.to_owned();
                return Err(ServerTrustError::Damaged { file, number: index + 1, source });
            }
        }
    }
    // A bundle may hold authorities that TLS does not accept; the others count.
    match store.add_parsable_certificates(certificates) {
        (0, _) => Err(ServerTrustError::Empty(file.to_owned())),
        _ => Ok(store),
    }
}

fn read_certificates(file: &Path) -> io::Result<Vec<u8>> {
    let mut pem = Vec::new();
    open_regular(file)?.take(AUTHORITIES_BYTES_MAX + 1).read_to_end(&mut pem)?;
    if pem.len() as u64 > AUTHORITIES_BYTES_MAX {
        let text = format!("it is larger than {} MiB", AUTHORITIES_BYTES_MAX >> 20);
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    Ok(pem)
}

/// Reads a file, or all files of a directory such as `/etc/grid-security/certificates`.
fn read_pem(path: &Path) -> io::Result<Vec<u8>> {
    if !path.is_dir() {
        return read_certificates(path);
    }
    let mut pem = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let path = entry?.path();
        // The directory also holds revocation lists and policies, and links to the same certificates by hash.
        let is_certificate = path
            .extension()
            .is_some_and(|extension| ["pem", "crt", "0"].iter().any(|one| extension == *one));
        if is_certificate && path.is_file() {
            pem.extend(read_certificates(&path)?);
            pem.push(b'\n');
        }
    }
    Ok(pem)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn authority() -> String {
        rcgen::generate_simple_self_signed(["authority.example".to_owned()]).unwrap().cert.pem()
    }

    #[test]
    fn damaged_authority_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("ca.pem");
        let good = authority();
        let body = good.lines().nth(1).unwrap();
        for (damaged, number) in [
            (format!("{good}{}", good.replace(body, "§")), 2),
            (format!("{}{good}", good.replace(body, "§")), 1),
            (format!("{good}{}", &good[..good.len() / 2]), 2),
        ] {
            std::fs::write(&file, damaged).unwrap();
            let error = root_certificates(&file).unwrap_err();
            let ServerTrustError::Damaged { number: found, .. } = &error else { panic!("{error}") };
            assert_eq!(*found, number, "{error}");
            // The others of a directory count.
            std::fs::write(dir.path().join("other.pem"), &good).unwrap();
            assert!(!root_certificates(dir.path()).unwrap().is_empty());
        }
        std::fs::write(&file, format!("{good}{good}")).unwrap();
        assert!(!root_certificates(&file).unwrap().is_empty());
    }
}
