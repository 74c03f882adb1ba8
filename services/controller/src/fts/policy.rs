//! Configuration of the FTS3 interface, the table `[controller.fts]`.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;

use penstock_http::Url;
use penstock_http::client::{ServerTrust, ServerTrustError};
use penstock_http::special_address::{inner_address, is_link_or_metadata};
use penstock_http::storage_client::{AdmissionError, StorageAdmission};
use serde::Deserialize;

use super::token_key::{TokenKey, TokenKeyError};

/// Default of the most copies at a time between two storages.
const COPIES_PER_PAIR_DEFAULT: usize = 10;

/// Default of the most copies at a time.
const COPIES_DEFAULT: usize = 100;

/// Largest limit of copies.
const COPIES_MAX: usize = 10_000;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FtsTable {
    storages: StoragesValue,
    copies: Option<usize>,
    copies_per_pair: Option<usize>,
    authorities: Option<PathBuf>,
    token_key: Option<PathBuf>,
    #[serde(default)]
    storage_token: Vec<StorageTokenTable>,
    #[serde(default)]
    gateway: Vec<FtsGatewayTable>,
    #[serde(default)]
    activities: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum StoragesValue {
    Word(String),
    List(Vec<String>),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StorageTokenTable {
    storage: String,
    file: PathBuf,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FtsGatewayTable {
    storage: String,
    host: String,
    export: String,
}

/// An export of an agent as its gateway serves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentGateway {
    /// Server of its URLs, `HOST[:PORT]`, with port 443 if it gives none.
    pub storage: String,
    /// Name of the agent's host in the topology.
    pub host: String,
    /// Parts of the path of the export, which URLs and agent share.
    pub export: Vec<String>,
}

impl AgentGateway {
    /// Returns true if a URL names this gateway.
    pub(crate) fn serves(&self, url: &Url) -> bool {
        // Other ports of the host may be other servers.
        let has_port = self.storage.rfind(':') > self.storage.rfind(']');
        match has_port {
            true => is_storage(&self.storage, url),
            false => is_storage(&format!("{}:443", self.storage), url),
        }
    }

    /// Divides the parts of a path into those of the export and those below it; none if it is not below.
    pub(crate) fn below_export<'a>(
        &self,
        parts: &'a [String],
    ) -> Option<(&'a [String], &'a [String])> {
        let is_below = parts.len() > self.export.len() && parts.starts_with(&self.export);
        is_below.then(|| parts.split_at(self.export.len()))
    }
}

/// Settings of the FTS3 interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FtsPolicy {
    /// Storages `HOST[:PORT]` that take part; none for any that has a public address.
    pub storages: Option<Vec<String>>,
    /// Most copies at a time.
    pub copies: usize,
    /// Most copies at a time between two storages.
    pub copies_per_pair: usize,
    /// PEM file, or directory, of the authorities of storages; none for those of the system.
    pub authorities: Option<PathBuf>,
    /// File of the key by which tokens of jobs are encrypted; none for the one in the state directory.
    pub token_key: Option<PathBuf>,
    /// Files of tokens for storages `HOST[:PORT]`, sent where a job has none.
    pub tokens: Vec<(String, PathBuf)>,
    /// Exports of agents, between which requests move the files. They take part without being listed.
    pub gateways: Vec<AgentGateway>,
    /// Classes of work by activity; an activity that is absent names its class.
    pub activities: BTreeMap<String, String>,
}

/// Fault of the table `[controller.fts]`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FtsPolicyError {
    #[error("storages = \"{0}\": write \"any\", or a list of \"HOST\" and \"HOST:PORT\"")]
    Word(String),
    #[error("'{0}' is no storage: write \"HOST\" or \"HOST:PORT\"")]
    Storage(String),
    #[error("{0} is from 1 to {COPIES_MAX}")]
    Copies(&'static str),
    #[error("gateway export = \"{0}\": write the absolute path of the export, such as \"/data\"")]
    Export(String),
    #[error("gateway host = \"{0}\": the topology has no such host with a site")]
    Host(String),
    #[error("activities: \"{0}\" is given the class \"{1}\", which does not exist")]
    Class(String, String),
    #[error(transparent)]
    Key(#[from] TokenKeyError),
    #[error("{0}: name a PEM file, or a directory of files .pem, .crt or .0")]
    Authorities(#[from] ServerTrustError),
}

impl FtsPolicy {
    /// Lowers the table; `beside` resolves paths.
    pub(crate) fn of(
        table: FtsTable,
        beside: impl Fn(PathBuf) -> PathBuf,
    ) -> Result<Self, FtsPolicyError> {
        let storages = match table.storages {
            StoragesValue::Word(word) if word == "any" => None,
            StoragesValue::Word(word) => return Err(FtsPolicyError::Word(word)),
            StoragesValue::List(list) => Some(list),
        };
        let tokens: Vec<(String, PathBuf)> =
            table.storage_token.into_iter().map(|one| (one.storage, beside(one.file))).collect();
        let mut gateways = Vec::new();
        for FtsGatewayTable { storage, host, export } in table.gateway {
            if crate::paths::directory(&export).is_err() || export == "/" {
                return Err(FtsPolicyError::Export(export));
            }
            let export = export.split('/').skip(1).map(str::to_owned).collect();
            gateways.push(AgentGateway { storage, host, export });
        }
        let named = tokens.iter().map(|(storage, _)| storage);
        let named = named.chain(gateways.iter().map(|gateway| &gateway.storage));
        for storage in storages.iter().flatten().chain(named) {
            if storage.is_empty() || storage.contains(['/', '@', ' ']) {
                return Err(FtsPolicyError::Storage(storage.clone()));
            }
        }
        let limit = |name, given: Option<usize>, unless| match given.unwrap_or(unless) {
            limit if (1..=COPIES_MAX).contains(&limit) => Ok(limit),
            _ => Err(FtsPolicyError::Copies(name)),
        };
        Ok(Self {
            storages,
            copies: limit("copies", table.copies, COPIES_DEFAULT)?,
            copies_per_pair: limit(
                "copies_per_pair",
                table.copies_per_pair,
                COPIES_PER_PAIR_DEFAULT,
            )?,
            authorities: table.authorities.map(&beside),
            token_key: table.token_key.map(beside),
            tokens,
            gateways,
            activities: table.activities,
        })
    }

    /// Checks the names of hosts and classes, which `is_host` and `is_class` know, and the files.
    pub(crate) fn check(
        &self,
        is_host: impl Fn(&str) -> bool,
        is_class: impl Fn(&str) -> bool,
    ) -> Result<(), FtsPolicyError> {
        if let Some(gateway) = self.gateways.iter().find(|gateway| !is_host(&gateway.host)) {
            return Err(FtsPolicyError::Host(gateway.host.clone()));
        }
        if let Some((activity, class)) = self.activities.iter().find(|(_, class)| !is_class(class))
        {
            return Err(FtsPolicyError::Class(activity.clone(), class.clone()));
        }
        if let Some(path) = &self.token_key {
            TokenKey::read(path.clone())?;
        }
        if self.authorities.is_some() {
            ServerTrust::Authorities(self.authorities.clone()).load()?;
        }
        Ok(())
    }

    /// Returns the class of an activity among those that a client may submit to: the configured one, or the one of the
    /// same name, else the first.
    pub(crate) fn class_of(&self, activity: Option<&str>, classes: &[String]) -> Option<String> {
        let wanted =
            activity.map(|activity| self.activities.get(activity).map_or(activity, String::as_str));
        let found = classes.iter().find(|class| Some(class.as_str()) == wanted);
        found.or_else(|| classes.first()).cloned()
    }

    /// Returns true if the storage of this URL is listed, a gateway, or any may take part.
    pub(crate) fn admits(&self, url: &Url) -> bool {
        self.storages.is_none() || self.names(url)
    }

    /// Returns true if the configuration names the storage of this URL.
    fn names(&self, url: &Url) -> bool {
        let mut listed = self.storages.iter().flatten();
        listed.any(|one| is_storage(one, url))
            || self.gateways.iter().any(|gateway| gateway.serves(url))
    }

    /// Returns true if a storage with this address may be connected to. Addresses that are not public are for storages
    /// that are named only.
    pub(crate) fn admits_address(&self, url: &Url, address: IpAddr) -> bool {
        self.names(url) || (self.storages.is_none() && is_public(address))
    }

    /// Returns the file of the token for the storage of this URL.
    pub(crate) fn token_file(&self, url: &Url) -> Option<&PathBuf> {
        self.tokens.iter().find(|(storage, _)| is_storage(storage, url)).map(|(_, file)| file)
    }
}

/// Refusal of a storage.
#[derive(Debug, thiserror::Error)]
enum StorageRefusal {
    #[error("{0} is not among storages of [controller.fts]")]
    NotListed(String),
    #[error(
        "{0} has the address {1}, which is not public: name it in storages of [controller.fts]"
    )]
    PrivateAddress(String, SocketAddr),
}

impl StorageAdmission for FtsPolicy {
    fn check_url(&self, url: &Url) -> Result<(), AdmissionError> {
        let refusal = || AdmissionError::new(StorageRefusal::NotListed(url.authority()));
        self.admits(url).then_some(()).ok_or_else(refusal)
    }

    fn check_address(&self, url: &Url, address: SocketAddr) -> Result<(), AdmissionError> {
        let refusal = || StorageRefusal::PrivateAddress(url.authority(), address);
        let admits = self.admits_address(url, address.ip());
        admits.then_some(()).ok_or_else(|| AdmissionError::new(refusal()))
    }
}

/// Returns true if `HOST` or `HOST:PORT` is the server of a URL.
fn is_storage(storage: &str, url: &Url) -> bool {
    let (host, port) = url.host_and_port();
    let name = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    storage.eq_ignore_ascii_case(&name) || storage.eq_ignore_ascii_case(&format!("{name}:{port}"))
}

/// Returns true for addresses that lead to another machine of the Internet: not private ones, nor those of the link or
/// of this machine.
fn is_public(address: IpAddr) -> bool {
    let address = inner_address(address);
    let is_special = is_link_or_metadata(address)
        || match address {
            IpAddr::V4(address) => {
                let [a, b, ..] = address.octets();
                address.is_loopback()
                || address.is_private()
                || address.is_link_local()
                || address.is_multicast()
                || address.is_broadcast()
                || a == 0
                // Shared by carriers (RFC 6598).
                || (a == 100 && (64..128).contains(&b))
            }
            IpAddr::V6(address) => {
                address.is_loopback()
                    || address.is_unicast_link_local()
                    || address.is_unique_local()
                    || address.is_unspecified()
                    || address.is_multicast()
            }
        };
    !is_special && !is_own(address)
}

/// Returns true for an address of this machine, from which it would connect to itself. Sends nothing.
fn is_own(address: IpAddr) -> bool {
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let connected = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((address, 9))?;
        socket.local_addr()
    });
    connected.is_ok_and(|local| local.ip() == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(text: &str) -> FtsPolicy {
        FtsPolicy::of(toml::from_str(text).unwrap(), |path| path).unwrap()
    }

    #[test]
    fn any_admits_public_addresses() {
        let any = policy("storages = \"any\"");
        let url: Url = "https://se.example.org/f".parse().unwrap();
        for (address, admitted) in [
            ("192.0.2.1", true),
            ("10.0.0.1", false),
            ("100.64.0.1", false),
            ("64:ff9b::7f00:1", false),
            ("fd00:ec2::254", false),
            ("127.0.0.1", false),
            ("127.9.9.9", false),
            ("169.254.169.254", false),
            ("0.0.0.0", false),
            ("::1", false),
            ("fe80::1", false),
            ("::127.0.0.1", false),
            ("2002:a00:1::1", false),
            ("::ffff:127.0.0.1", false),
            ("2001:db8::1", true),
        ] {
            assert_eq!(any.admits_address(&url, address.parse().unwrap()), admitted, "{address}");
        }
    }

    #[test]
    fn listed_storages_match_host_port() {
        let listed = policy("storages = [\"se1.example.org\", \"localhost:8443\", \"[::1]:9\"]");
        for (url, admitted) in [
            ("https://SE1.example.org:1/f", true),
            ("https://localhost:8443/f", true),
            ("https://localhost:8444/f", false),
            ("https://[::1]:9/", true),
            ("https://se1.example.org.evil/f", false),
        ] {
            assert_eq!(listed.admits(&url.parse().unwrap()), admitted, "{url}");
        }
    }
}
