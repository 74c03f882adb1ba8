//! Network map and cost map of a topology.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use penstock_topology::paths::shortest;
use penstock_topology::{LinkId, Topology};
use sha2::{Digest, Sha256};

use crate::{
    CostMap, CostMapMeta, EndpointAddressGroup, NETWORK_MAP, NetworkMap, NetworkMapMeta,
    VersionTag, routing_cost,
};

/// PID of all addresses outside every site.
pub const DEFAULT_PID: &str = "default";
/// Longest PID name, in characters (section 10.1).
const PID_CHARACTERS_MAX: usize = 64;

/// A network map and the cost map that depends on it.
#[derive(Debug, Clone, PartialEq)]
pub struct Maps {
    /// Sites and their prefixes.
    pub network: NetworkMap,
    /// Costs between the sites.
    pub costs: CostMap,
}

/// Error of building a network map from site prefixes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AltoError {
    /// A text that does not parse as a prefix.
    #[error("'{}' of site '{site}' is no prefix: write it like 192.0.2.0/24 or 2001:db8::/32", prefix.escape_debug())]
    Prefix {
        /// Site of the prefix.
        site: String,
        /// Prefix as the caller gave it.
        prefix: String,
    },
    /// A prefix claimed by two sites.
    #[error("{prefix} belongs to the sites '{}' and '{}': a prefix belongs to one", sites[0], sites[1])]
    Twice {
        /// Prefix in canonical form.
        prefix: String,
        /// Names of the two sites.
        sites: [String; 2],
    },
    /// A site that the topology lacks, or that has no host or switch there.
    #[error("there is no site '{}' with a host or switch in the topology", .0.escape_debug())]
    Site(String),
    /// A site name that is not a valid PID.
    #[error("'{}' cannot name a site for ALTO: use up to 64 letters, digits and - : @ _ . and not '{DEFAULT_PID}'", .0.escape_debug())]
    Name(String),
}

impl Maps {
    /// Builds the maps of sites with the given prefixes, over links for which `may_use` returns true.
    ///
    /// # Errors
    /// If a site is unknown or its name is no valid PID, or a prefix does not parse or belongs to two sites.
    pub fn of(
        topology: &Topology,
        prefixes: &BTreeMap<String, Vec<String>>,
        may_use: impl Fn(LinkId) -> bool,
    ) -> Result<Self, AltoError> {
        let mut network_map = BTreeMap::new();
        let mut owners: BTreeMap<(IpAddr, u8), &str> = BTreeMap::new();
        for (site, texts) in prefixes {
            if !is_pid(site) || site == DEFAULT_PID {
                return Err(AltoError::Name(site.clone()));
            }
            let mut own = BTreeSet::new();
            for text in texts {
                let wrong = || AltoError::Prefix { site: site.clone(), prefix: text.clone() };
                own.insert(parse(text).ok_or_else(wrong)?);
            }
            for prefix in &own {
                if let Some(other) = owners.insert(*prefix, site) {
                    let sites = [other.to_owned(), site.clone()];
                    return Err(AltoError::Twice { prefix: show(*prefix), sites });
                }
            }
            network_map.insert(site.clone(), group(own));
        }
        let everything = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
        let rest = everything.map(|address| (address, 0)).into_iter();
        // A site with the default route leaves nothing to the PID `default`.
        let rest = rest.filter(|prefix| !owners.contains_key(prefix)).collect();
        network_map.insert(DEFAULT_PID.to_owned(), group(rest));
        let vtag = VersionTag { resource_id: NETWORK_MAP.to_owned(), tag: tag(&network_map) };
        let cost_map = costs(topology, prefixes.keys(), may_use)?;
        Ok(Self {
            network: NetworkMap { meta: NetworkMapMeta { vtag: vtag.clone() }, network_map },
            costs: CostMap {
                meta: CostMapMeta { dependent_vtags: vec![vtag], cost_type: routing_cost(None) },
                cost_map,
            },
        })
    }
}

fn is_pid(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | ':' | '@' | '_' | '.');
    !name.is_empty() && name.len() <= PID_CHARACTERS_MAX && name.chars().all(allowed)
}

/// Parses a prefix in CIDR notation and clears its host bits.
fn parse(text: &str) -> Option<(IpAddr, u8)> {
    let (address, length) = text.split_once('/')?;
    let length: u8 = length.parse().ok()?;
    match address.parse().ok()? {
        IpAddr::V4(address) if length <= 32 => {
            let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            Some((IpAddr::V4((u32::from(address) & mask).into()), length))
        }
        IpAddr::V6(address) if length <= 128 => {
            let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
            Some((IpAddr::V6((u128::from(address) & mask).into()), length))
        }
        _ => None,
    }
}

fn show((address, length): (IpAddr, u8)) -> String {
    format!("{address}/{length}")
}

fn group(prefixes: BTreeSet<(IpAddr, u8)>) -> EndpointAddressGroup {
    let (four, six): (Vec<_>, Vec<_>) =
        prefixes.into_iter().partition(|(address, _)| address.is_ipv4());
    let all = |of: Vec<_>| of.into_iter().map(show).collect();
    EndpointAddressGroup { ipv4: all(four), ipv6: all(six) }
}

/// SHA-256 in hexadecimal digits, 64 characters.
fn tag(map: &BTreeMap<String, EndpointAddressGroup>) -> String {
    let text = serde_json::to_vec(map).expect("a map of strings serialises");
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn costs<'a>(
    topology: &Topology,
    sites: impl Iterator<Item = &'a String>,
    may_use: impl Fn(LinkId) -> bool,
) -> Result<BTreeMap<String, BTreeMap<String, f64>>, AltoError> {
    let mut nodes = Vec::new();
    for site in sites {
        let node = topology.node_behind(site).ok_or_else(|| AltoError::Site(site.clone()))?;
        nodes.push((site, node));
    }
    let mut costs = BTreeMap::new();
    for (from, start) in &nodes {
        let mut row = BTreeMap::new();
        for (to, end) in &nodes {
            if let Some(path) = shortest(topology, *start, *end, &may_use) {
                let microseconds = path.delay(topology).as_nanos().div_ceil(1000);
                row.insert((*to).clone(), (microseconds + path.links.len() as u128) as f64);
            }
        }
        costs.insert((*from).clone(), row);
    }
    Ok(costs)
}
