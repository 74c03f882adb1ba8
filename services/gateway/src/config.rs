//! The table `[gateway]` of the configuration.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use penstock_daemon::config::values::{ListenAddress, resolve_listen_addresses};
use penstock_daemon::config::{ConfigError, ConfigFile};
use penstock_http::client::ServerTrust;
use penstock_mover::UploadDurability;
use penstock_protocol::digest::Algorithm;
use serde::Deserialize;

use crate::digest;
use crate::head::config::{HeadConfig, HeadTable, RedirectedConfig, RedirectedTable};

/// Default TCP port, as of other WebDAV servers of the grid.
pub const GATEWAY_PORT: u16 = 8443;

/// Default TCP port of `root://`.
pub const XROOTD_PORT: u16 = 1094;

/// Directory of the authorities of the grid.
pub const GRID_AUTHORITIES: &str = "/etc/grid-security/certificates";

/// Default limit of concurrent connections.
const CONNECTIONS_DEFAULT: usize = 1024;

/// Default of `upload_timeout`.
const UPLOAD_TIMEOUT_DEFAULT: Duration = Duration::from_secs(60);

/// Least `upload_timeout`.
const UPLOAD_TIMEOUT_MIN: Duration = Duration::from_secs(1);

/// The table `[gateway]`, checked and with defaults.
#[derive(Debug, Clone)]
pub struct Config {
    /// Addresses on which the gateway listens for HTTPS.
    pub listen: Vec<SocketAddr>,
    /// Loopback addresses for HTTP without TLS.
    pub plaintext: Vec<SocketAddr>,
    /// Addresses of `root://`; none without the key.
    pub root: Vec<SocketAddr>,
    /// Limit of concurrent connections, and as many of `root://`.
    pub connections: usize,
    /// Digests computed while a file is uploaded.
    pub digests: Vec<Algorithm>,
    /// State of an uploaded or pulled file when the gateway answers.
    pub durability: UploadDurability,
    /// Longest silence of a client that uploads, and the time over which its mean rate is judged.
    pub upload_timeout: Duration,
    /// PEM files of a host certificate and its key; the certificate of the daemon without them.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// PEM file, or directory of PEM files, of the authorities that other servers' certificates must come from in
    /// third-party copies; by default [`GRID_AUTHORITIES`] if it exists, else those of the system.
    pub authorities: Option<PathBuf>,
    /// Agents to which it redirects clients.
    pub head: Option<HeadConfig>,
    /// Acceptance of clients that head nodes redirect here.
    pub redirected: Option<RedirectedConfig>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct GatewayTable {
    listen: Option<Vec<String>>,
    plaintext: Option<Vec<SocketAddr>>,
    root: Option<Vec<String>>,
    connections: Option<usize>,
    digests: Option<Vec<String>>,
    durable: Option<bool>,
    upload_timeout: Option<String>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    authorities: Option<PathBuf>,
    head: Option<HeadTable>,
    redirected: Option<RedirectedTable>,
}

impl Config {
    /// Reads the table `[gateway]` of `file`; `None` without one. `taken` are addresses of other listeners with their
    /// keys.
    ///
    /// # Errors
    /// With one line that names the file.
    pub fn load(
        file: Option<&Path>,
        taken: &[(&'static str, SocketAddr)],
    ) -> Result<Option<Self>, ConfigError> {
        let Some(file) = file else { return Ok(None) };
        let file = ConfigFile::read(file)?;
        let Some(table) = file.table::<GatewayTable>("gateway")? else { return Ok(None) };
        let failed = |text: String| file.error(format!("[gateway] {text}"));
        let resolve = |key: &str, places: Vec<String>, port| {
            let places: Vec<ListenAddress> = places
                .iter()
                .map(|place| place.parse().map_err(|error| failed(format!("{key}: {error}"))))
                .collect::<Result<_, _>>()?;
            resolve_listen_addresses(&places, port)
                .map_err(|error| failed(format!("{key}: {error}")))
        };
        let listen = table.listen.unwrap_or_else(|| vec![format!("[::]:{GATEWAY_PORT}")]);
        let listen = resolve("listen", listen, GATEWAY_PORT)?;
        let root = match table.root {
            Some(places) => resolve("root", places, XROOTD_PORT)?,
            None => Vec::new(),
        };
        let plaintext = table.plaintext.unwrap_or_default();
        if let Some(address) = plaintext.iter().find(|address| !address.ip().is_loopback()) {
            return Err(failed(format!(
                "plaintext: {address} would carry tokens in the clear: only loopback addresses"
            )));
        }
        if listen.is_empty() && plaintext.is_empty() && root.is_empty() {
            return Err(failed(format!(
                "listen: no address, and none in plaintext and root: write [\"[::]:{GATEWAY_PORT}\"], or remove the table"
            )));
        }
        check_addresses(taken, [("listen", &listen), ("plaintext", &plaintext), ("root", &root)])
            .map_err(|error| failed(error.to_string()))?;
        let digests = table.digests.unwrap_or_else(|| vec!["adler32".to_owned()]);
        let digests = digests
            .iter()
            .map(|name| {
                digest::algorithm(name).ok_or_else(|| {
                    failed(format!("digests: '{name}' is none of adler32, crc32c, md5, sha-256"))
                })
            })
            .collect::<Result<_, _>>()?;
        let durability = match table.durable.unwrap_or(true) {
            true => UploadDurability::Synced,
            false => UploadDurability::PageCache,
        };
        let certificate = match (table.certificate, table.key) {
            (Some(certificate), Some(key)) => Some((file.beside(certificate), file.beside(key))),
            (None, None) => None,
            _ => return Err(failed("certificate and key belong together: give both".to_owned())),
        };
        let connections = table.connections.unwrap_or(CONNECTIONS_DEFAULT);
        if connections == 0 {
            return Err(failed("connections must be above 0".to_owned()));
        }
        let upload_timeout = match table.upload_timeout {
            None => UPLOAD_TIMEOUT_DEFAULT,
            Some(text) => match penstock_units::parse_duration(&text) {
                Ok(time) if time >= UPLOAD_TIMEOUT_MIN => time,
                _ => {
                    return Err(failed(format!(
                        "upload_timeout: '{text}' is no time of 1s or more: write 60s or 5min"
                    )));
                }
            },
        };
        let authorities = table.authorities.map(|path| file.beside(path));
        if authorities.is_some() {
            ServerTrust::Authorities(authorities.clone()).load().map_err(|error| {
                failed(format!(
                    "{error}: name a PEM file, or a directory of files .pem, .crt or .0"
                ))
            })?;
        }
        let head = table.head.map(|head| {
            let checked = head.check(|path| file.beside(path));
            checked.map_err(|error| file.error(format!("[gateway.head] {error}")))
        });
        let redirected = table.redirected.map(|redirected| {
            let checked = redirected.check(|path| file.beside(path));
            checked.map_err(|error| file.error(format!("[gateway.redirected] {error}")))
        });
        Ok(Some(Self {
            listen,
            plaintext,
            root,
            connections,
            digests,
            durability,
            upload_timeout,
            certificate,
            authorities,
            head: head.transpose()?,
            redirected: redirected.transpose()?,
        }))
    }

    /// Certificates of other servers that third-party copies trust.
    #[must_use]
    pub fn trust(&self) -> ServerTrust {
        let grid = Path::new(GRID_AUTHORITIES);
        let grid = || Some(grid.to_owned()).filter(|directory| directory.is_dir());
        ServerTrust::Authorities(self.authorities.clone().or_else(grid))
    }
}

/// Two listeners that cannot have their addresses at once.
#[derive(Debug, thiserror::Error)]
#[error("{key}: {address} collides with {other_address} of {other}: give one of them another port")]
struct AddressCollision {
    key: &'static str,
    address: SocketAddr,
    other: &'static str,
    other_address: SocketAddr,
}

/// Refuses addresses of which one is another, or a wildcard that includes it. Those with port 0 are all different.
fn check_addresses<const KEYS: usize>(
    taken: &[(&'static str, SocketAddr)],
    listeners: [(&'static str, &Vec<SocketAddr>); KEYS],
) -> Result<(), AddressCollision> {
    let includes = |wide: SocketAddr, other: SocketAddr| {
        wide.ip().is_unspecified() && (wide.is_ipv6() || other.is_ipv4())
    };
    let mut known = taken.to_vec();
    for (key, addresses) in listeners {
        for address in addresses.iter().copied().filter(|address| address.port() != 0) {
            let collides = |other: &&(&'static str, SocketAddr)| {
                other.1.port() == address.port()
                    && (other.1 == address
                        || includes(other.1, address)
                        || includes(address, other.1))
            };
            if let Some((other, other_address)) = known.iter().find(collides).copied() {
                return Err(AddressCollision { key, address, other, other_address });
            }
            known.push((key, address));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(table: &str) -> Result<Option<Config>, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("penstock.toml");
        std::fs::write(&path, table).unwrap();
        let taken = [("listen in [agent]", "[::]:8620".parse().unwrap())];
        Config::load(Some(&path), &taken).map_err(|error| error.to_string())
    }

    #[test]
    fn distinct_addresses_are_accepted() {
        for table in [
            "listen = [\"127.0.0.1:0\", \"127.0.0.1:0\"]\nplaintext = [\"127.0.0.1:0\"]",
            "listen = [\"127.0.0.1:8443\", \"[::1]:8443\"]\nroot = [\"127.0.0.2:8443\"]",
            "listen = [\"0.0.0.0:8443\", \"[::1]:8443\"]",
        ] {
            load(&format!("[gateway]\n{table}\n")).unwrap();
        }
    }

    #[test]
    fn table_has_defaults() {
        assert!(load("").unwrap().is_none());
        let config = load("[gateway]").unwrap().unwrap();
        assert_eq!(config.listen, ["[::]:8443".parse().unwrap()]);
        assert_eq!(config.digests, [Algorithm::Adler32]);
        assert!(config.plaintext.is_empty() && config.certificate.is_none());
        assert!(config.root.is_empty());
        assert_eq!(config.durability, UploadDurability::Synced);
        let config = load("[gateway]\ndurable = false").unwrap().unwrap();
        assert_eq!(config.durability, UploadDurability::PageCache);
        let config = load("[gateway]\nroot = [\"127.0.0.1\"]").unwrap().unwrap();
        assert_eq!(config.root, ["127.0.0.1:1094".parse().unwrap()]);
    }

    #[test]
    fn faults_are_named() {
        for (table, words) in [
            ("plaintext = [\"192.0.2.1:80\"]", "only loopback"),
            ("root = [\"nowhere:x\"]", "root: "),
            ("digests = [\"crc64\"]", "'crc64' is none of"),
            ("certificate = \"a.pem\"", "belong together"),
            ("connections = 0", "above 0"),
            ("upload_timeout = \"0.5s\"", "write 60s"),
            ("upload_timeout = \"soon\"", "write 60s"),
            ("port = 1", "port"),
            ("listen = []", "listen: no address"),
            ("root = [\"[::]:8443\"]", "root: [::]:8443 collides with [::]:8443 of listen"),
            (
                "plaintext = [\"127.0.0.1:8443\"]",
                "plaintext: 127.0.0.1:8443 collides with [::]:8443",
            ),
            ("listen = [\"127.0.0.1:8620\"]", "collides with [::]:8620 of listen in [agent]"),
            ("listen = [\"0.0.0.0:9\", \"127.0.0.1:9\"]", "give one of them another port"),
            ("authorities = \"none\"", "name a PEM file"),
            ("authorities = \"penstock.toml\"", "holds no certificate: name a PEM file"),
            ("authorities = \".\"", "holds no certificate"),
        ] {
            let error = load(&format!("[gateway]\n{table}\n")).unwrap_err();
            assert!(error.contains(words), "{table}: {error}");
        }
    }

    #[test]
    fn head_nodes_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let key = |name: &str, secret: &str, mode| {
            let path = directory.path().join(name);
            std::fs::write(&path, secret).unwrap();
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(&path, mode).unwrap();
            path
        };
        let good = key("good", &"7".repeat(64), 0o600);
        let open = key("open", &"7".repeat(64), 0o644);
        let short = key("short", &"7".repeat(31), 0o600);
        let a = "https://dtn2.example.org:8443";
        let config = load(&format!(
            "[gateway.head]\nkey = {good:?}\nagents = [\"{a}\", \"http://127.0.0.1:80\"]\n\
             [gateway.redirected]\nkey = {good:?}\nurl = \"{a}\"\n"
        ));
        let config = config.unwrap().unwrap();
        let head = config.head.unwrap();
        assert_eq!((head.agents.len(), head.serves), (2, true));
        assert_eq!(config.redirected.unwrap().url.to_string(), format!("{a}/"));
        for (key, agents, words) in [
            (&good, String::new(), "name at least one"),
            (&good, format!("\"{a}\", \"{a}/\""), "twice"),
            (&good, format!("\"{a}\", \"https://DTN2.example.org:8443\""), "twice"),
            (&good, format!("\"{a}/data\""), "without a path"),
            (&good, "\"http://dtn2.example.org\"".to_owned(), "in the clear"),
            (&good, "\"dtn2\"".to_owned(), "is no address"),
            (&open, format!("\"{a}\""), "chmod 600"),
            (&short, format!("\"{a}\""), "fewer than 32"),
            (&directory.path().join("none"), format!("\"{a}\""), "openssl rand -hex 32"),
        ] {
            let error = load(&format!("[gateway.head]\nkey = {key:?}\nagents = [{agents}]\n"));
            let error = error.unwrap_err();
            assert!(error.contains(words), "{agents}: {error}");
        }
        let error = load(&format!("[gateway.redirected]\nkey = {good:?}\n")).unwrap_err();
        assert!(error.contains("url"), "{error}");
    }
}
