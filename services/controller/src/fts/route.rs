//! Transfers whose both ends are agents of this controller: the request that moves the file.
//!
//! An end is an agent's if its URL is `penstock://HOST/EXPORT/PATH`, or below an export of a gateway that the
//! configuration names. A request moves files to the same path below another directory, so that the end of both paths
//! must agree.

use penstock_control::fts::checksum::{ChecksumMode, FtsChecksum};
use penstock_control::orders::{Overwrite, Verify};
use percent_encoding::percent_decode_str;

use super::policy::FtsPolicy;
use super::storage::parse_url;
use crate::config::Config;
use crate::paths::{self, InvalidPath};
use crate::repository::files::NewFile;
use crate::repository::fts::{FtsFileRow, FtsJobRow};
use crate::repository::requests::TransferPolicy;
use crate::use_cases::submit::Submission;

/// Scheme of URLs of agents.
const AGENT_SCHEME: &str = "penstock://";

/// Fault of a transfer between agents.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RouteError {
    #[error("{0}: the topology has no host '{1}': GET /api/v1/hosts lists hosts")]
    UnknownHost(String, String),
    #[error("{0}: the path: {1}")]
    Path(String, InvalidPath),
    #[error("{0}: the path is not UTF-8")]
    NotUtf8(String),
    #[error("{0}: write penstock://HOST/EXPORT/FILE without a query")]
    Form(String),
    #[error(
        "{0} is at no agent of this controller, so that penstock:// cannot name the other end: \
         write the URL of its gateway"
    )]
    Mixed(String),
    #[error("{0} and {1} end with different names: a file keeps its name between agents")]
    Names(String, String),
    #[error("{0} is the source and the destination")]
    Same(String),
    #[error("'{0}' is no digest that agents compute: use adler32, crc32c, md5, sha256 or blake3")]
    Digest(String),
}

/// A file at an agent: site, export and path below the export.
#[derive(Debug, Clone, PartialEq, Eq)]
struct AgentFile {
    site: String,
    /// Parts of the path of the export.
    export: Vec<String>,
    /// Parts of the path below the export, at least one.
    path: Vec<String>,
}

/// Sites and directories of a transfer between agents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AgentRoute {
    source: String,
    destination: String,
    from: String,
    to: String,
    /// Relative to both directories.
    path: String,
}

/// Returns the decoded parts of the path of a URL.
fn path_parts(url: &str, path: &str) -> Result<Vec<String>, RouteError> {
    let failed = |error| RouteError::Path(url.to_owned(), error);
    let mut parts = Vec::new();
    // Gateways skip empty segments; XRootD's clients write some.
    for segment in path.split('/').filter(|segment| !matches!(*segment, "" | ".")) {
        let part = percent_decode_str(segment).decode_utf8();
        let part = part.map_err(|_| RouteError::NotUtf8(url.to_owned()))?.into_owned();
        if part.contains('/') {
            return Err(failed(InvalidPath::DotPart { path: path.to_owned(), part }));
        }
        paths::relative(&part).map_err(failed)?;
        parts.push(part);
    }
    paths::relative(&parts.join("/")).map_err(failed)?;
    Ok(parts)
}

/// Returns the name of the site of a host, if the topology has both.
fn site_of_host(config: &Config, host: &str) -> Option<String> {
    let topology = &config.topology;
    let (_, node) = topology.hosts().find(|(_, node)| node.name == host)?;
    node.site.map(|site| topology.sites[site.0].name.clone())
}

fn end(policy: &FtsPolicy, config: &Config, url: &str) -> Result<Option<AgentFile>, RouteError> {
    if let Some(rest) = url.strip_prefix(AGENT_SCHEME) {
        let form = || RouteError::Form(url.to_owned());
        let (host, path) = rest.split_once('/').ok_or_else(form)?;
        if path.contains(['?', '#']) || path.ends_with('/') {
            return Err(form());
        }
        let unknown = || RouteError::UnknownHost(url.to_owned(), host.to_owned());
        let site = site_of_host(config, host).ok_or_else(unknown)?;
        let parts = path_parts(url, path)?;
        let mut gateways = policy.gateways.iter().filter(|gateway| gateway.host == host);
        let named = gateways.find_map(|gateway| gateway.below_export(&parts));
        // Without a named export, the directory of the file is surely in one.
        let (export, path) = named.unwrap_or_else(|| parts.split_at(parts.len() - 1));
        if export.is_empty() {
            return Err(form());
        }
        return Ok(Some(AgentFile { site, export: export.to_vec(), path: path.to_vec() }));
    }
    let Ok(http) = parse_url(url) else { return Ok(None) };
    let path = http.path();
    if path.contains('?') || path.ends_with('/') {
        return Ok(None);
    }
    for gateway in policy.gateways.iter().filter(|gateway| gateway.serves(&http)) {
        let Ok(parts) = path_parts(url, path) else { return Ok(None) };
        if let Some((export, path)) = gateway.below_export(&parts)
            && let Some(site) = site_of_host(config, &gateway.host)
        {
            return Ok(Some(AgentFile { site, export: export.to_vec(), path: path.to_vec() }));
        }
    }
    Ok(None)
}

impl AgentRoute {
    /// Returns the route of a transfer between agents; none if HTTP must move the file.
    ///
    /// # Errors
    /// For URLs of agents (`penstock://`) that no request can serve.
    pub(crate) fn find(
        policy: &FtsPolicy,
        config: &Config,
        source: &str,
        destination: &str,
    ) -> Result<Option<Self>, RouteError> {
        let is_agent = |url: &str| url.starts_with(AGENT_SCHEME);
        let is_strict = is_agent(source) || is_agent(destination);
        let (at_source, at_destination) =
            match (end(policy, config, source)?, end(policy, config, destination)?) {
                (Some(source), Some(destination)) => (source, destination),
                (None, _) if is_strict => return Err(RouteError::Mixed(source.to_owned())),
                (_, None) if is_strict => return Err(RouteError::Mixed(destination.to_owned())),
                _ => return Ok(None),
            };
        let same = at_source.path.iter().rev().zip(at_destination.path.iter().rev());
        let common = same.take_while(|(a, b)| a == b).count();
        let fault = match common {
            0 => Some(RouteError::Names(source.to_owned(), destination.to_owned())),
            _ if at_source == at_destination => Some(RouteError::Same(source.to_owned())),
            _ => None,
        };
        if let Some(fault) = fault {
            return if is_strict { Err(fault) } else { Ok(None) };
        }
        let directory = |file: &AgentFile| {
            let below = &file.path[..file.path.len() - common];
            format!("/{}", [file.export.as_slice(), below].concat().join("/"))
        };
        Ok(Some(Self {
            from: directory(&at_source),
            to: directory(&at_destination),
            path: at_source.path[at_source.path.len() - common..].join("/"),
            source: at_source.site,
            destination: at_destination.site,
        }))
    }

    /// Returns the request that moves a file of a job over this route.
    pub(crate) fn submission(
        self,
        job: &FtsJobRow,
        file: &FtsFileRow,
    ) -> Result<Submission, RouteError> {
        let mode = ChecksumMode::from_word(&job.verify).unwrap_or(ChecksumMode::None);
        let digest = match file.checksum.as_deref().and_then(FtsChecksum::parse) {
            Some(checksum) if mode != ChecksumMode::None => {
                let unknown = || RouteError::Digest(checksum.algorithm.clone());
                match &checksum.value {
                    Some(_) => Some(checksum.digest().ok_or_else(unknown)?),
                    None => None,
                }
            }
            _ => None,
        };
        let attempts = match job.retry {
            0 => penstock_control::backoff::ATTEMPTS_DEFAULT,
            retries => u32::try_from(retries.max(0) + 1).unwrap_or(1),
        };
        let Self { source, destination, from, to, path } = self;
        Ok(Submission {
            client: job.client.clone(),
            peer: String::new(),
            key: Some(format!("fts {} {} {}", job.uuid, file.id, file.attempt + 1)),
            body: String::new(),
            class: file.class.clone(),
            source,
            destination,
            from,
            to,
            policy: TransferPolicy {
                verify: Verify::Transfer,
                overwrite: if job.overwrite { Overwrite::Changed } else { Overwrite::Never },
                encrypt: true,
                attempts,
                scitag: file.scitag.and_then(|scitag| u16::try_from(scitag).ok()),
                tune: None,
                transport: None,
            },
            priority: job.priority,
            deadline: None,
            size_estimate: None,
            files: vec![NewFile {
                path,
                size: file.size.and_then(|size| u64::try_from(size).ok()),
                digest,
            }],
            directory: false,
            open: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use penstock_control::class::WorkClass;
    use penstock_testkit::topologies::TWO_SITES;
    use penstock_topology::Topology;

    use super::*;

    const POLICY: &str = "storages = []\n\
        [[gateway]]\nstorage = \"c1.example.org:8443\"\nhost = \"c1\"\nexport = \"/data\"\n\
        [[gateway]]\nstorage = \"t1.example.org\"\nhost = \"t1\"\nexport = \"/store/in\"\n";

    fn find(source: &str, destination: &str) -> Result<Option<[String; 5]>, RouteError> {
        let policy = FtsPolicy::of(toml::from_str(POLICY).unwrap(), |path| path).unwrap();
        let config =
            Config::new(Topology::read(TWO_SITES).unwrap(), vec![WorkClass::new("default")]);
        let route = AgentRoute::find(&policy, &config, source, destination)?;
        Ok(route.map(|route| [route.source, route.from, route.destination, route.to, route.path]))
    }

    #[test]
    fn gateway_urls_become_a_request() {
        for (source, destination, route) in [
            (
                "davs://C1.example.org:8443//data/x/a%20b/f",
                "https://t1.example.org/store/in/y/a%20b/f",
                ["cern", "/data/x", "caltech", "/store/in/y", "a b/f"],
            ),
            (
                "https://c1.example.org:8443/data/x/f",
                "davs://t1.example.org/store/in/x/f",
                ["cern", "/data", "caltech", "/store/in", "x/f"],
            ),
            (
                "penstock://c1/data/x/f",
                "penstock://t2/d/f",
                ["cern", "/data/x", "caltech", "/d", "f"],
            ),
        ] {
            assert_eq!(find(source, destination).unwrap().unwrap(), route, "{source}");
        }
    }

    #[test]
    fn foreign_urls_have_no_route() {
        let here = "https://c1.example.org:8443/data/f";
        for (source, destination) in [
            (here, "https://se.example.org/store/in/f"),
            (here, "https://t1.example.org:444/store/in/f"),
            (here, "https://t1.example.org/store/inner/f"),
            (here, "https://t1.example.org/store/in/g"),
            (here, "https://t1.example.org/store/in/f?authz=x"),
            (here, "https://t1.example.org/store/in/x/../f"),
            (here, "https://t1.example.org/store/in/x%2ff"),
            (here, here),
        ] {
            assert_eq!(find(source, destination), Ok(None), "{destination}");
        }
    }

    #[test]
    fn agent_urls_without_route_fail() {
        let here = "penstock://c1/data/f";
        for (destination, words) in [
            ("https://se.example.org/f", "at no agent"),
            ("penstock://nowhere/data/f", "no host"),
            ("penstock://t1/store/in/g", "different names"),
            ("penstock://t1/store/../f", "has the part '..'"),
            ("penstock://t1/f", "write penstock://"),
            ("penstock://t1", "write penstock://"),
            (here, "source and the destination"),
        ] {
            let error = find(here, destination).unwrap_err().to_string();
            assert!(error.contains(words), "{destination}: {error}");
        }
    }
}
