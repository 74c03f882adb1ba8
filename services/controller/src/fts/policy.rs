//! Configuration of the FTS3 interface, the table `[controller.fts]`.

use std::net::IpAddr;
use std::path::PathBuf;

use penstock_http::Url;
use serde::Deserialize;

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
    #[serde(default)]
    storage_token: Vec<StorageTokenTable>,
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

/// Settings of the FTS3 interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FtsPolicy {
    /// Storages `HOST[:PORT]` that take part; none for any that has a public or private address.
    pub storages: Option<Vec<String>>,
    /// Most copies at a time.
    pub copies: usize,
    /// Most copies at a time between two storages.
    pub copies_per_pair: usize,
    /// PEM file, or directory, of the authorities of storages; none for those of the system.
    pub authorities: Option<PathBuf>,
    /// Files of tokens for storages `HOST[:PORT]`, sent where a job has none.
    pub tokens: Vec<(String, PathBuf)>,
}

/// Fault of the table `[controller.fts]`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FtsPolicyError {
    #[error("storages = \"{0}\": write \"any\", or a list of \"HOST\" and \"HOST:PORT\"")]
    Word(String),
    #[error("'{0}' is no storage: write \"HOST\" or \"HOST:PORT\"")]
    Storage(String),
    #[error("{0} is from 1 to {COPIES_MAX}")]
    Copies(&'static str),
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
        for storage in storages.iter().flatten().chain(tokens.iter().map(|(storage, _)| storage)) {
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
            authorities: table.authorities.map(beside),
            tokens,
        })
    }

    /// Returns true if the storage of this URL is listed, or any may take part.
    pub(crate) fn admits(&self, url: &Url) -> bool {
        self.storages.as_ref().is_none_or(|list| list.iter().any(|one| is_storage(one, url)))
    }

    /// Returns true if a storage with this address may be connected to. Addresses of this machine and of its link are
    /// for storages that are listed by name only.
    pub(crate) fn admits_address(&self, url: &Url, address: IpAddr) -> bool {
        match &self.storages {
            Some(_) => self.admits(url),
            None => !is_local(address),
        }
    }

    /// Returns the file of the token for the storage of this URL.
    pub(crate) fn token_file(&self, url: &Url) -> Option<&PathBuf> {
        self.tokens.iter().find(|(storage, _)| is_storage(storage, url)).map(|(_, file)| file)
    }
}

/// Returns true if `HOST` or `HOST:PORT` is the server of a URL.
fn is_storage(storage: &str, url: &Url) -> bool {
    let (host, port) = url.host_and_port();
    let name = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    storage.eq_ignore_ascii_case(&name) || storage.eq_ignore_ascii_case(&format!("{name}:{port}"))
}

/// Returns true for addresses of this machine, of its link, and for those of no machine.
fn is_local(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => {
            address.is_loopback()
                || address.is_link_local()
                || address.is_unspecified()
                || address.is_multicast()
                || address.is_broadcast()
                || address.octets()[0] == 0
        }
        IpAddr::V6(address) => {
            address.is_loopback()
                || address.is_unicast_link_local()
                || address.is_unspecified()
                || address.is_multicast()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(text: &str) -> FtsPolicy {
        FtsPolicy::of(toml::from_str(text).unwrap(), |path| path).unwrap()
    }

    #[test]
    fn any_excludes_local_addresses() {
        let any = policy("storages = \"any\"");
        let url: Url = "https://se.example.org/f".parse().unwrap();
        for (address, admitted) in [
            ("192.0.2.1", true),
            ("10.0.0.1", true),
            ("127.0.0.1", false),
            ("127.9.9.9", false),
            ("169.254.169.254", false),
            ("0.0.0.0", false),
            ("::1", false),
            ("fe80::1", false),
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
