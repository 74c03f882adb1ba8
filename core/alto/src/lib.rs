//! ALTO (RFC 7285): what a network tells applications about itself, as documents: the information resource directory,
//! a network map of sites, and a cost map between them.
//!
//! For: making these documents of a topology and the prefixes of its sites ([`Maps::of`], [`directory`]). Not for:
//! serving them. Types have the names and fields of the RFC, and read what other servers write.
//!
//! A site is a PID. `routingcost` between two is the one-way delay of the shortest way in microseconds, and one for
//! each link; what cannot be reached is left out. All that belongs to no site is in the PID `default`, of which no
//! costs are known. The tag of the network map follows from its content: it changes when the map does, and alone then.

#![forbid(unsafe_code)]

mod maps;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use maps::{AltoError, DEFAULT_PID, Maps};

/// Media types, RFC 7285 section 14.1.
pub mod media {
    /// Of a directory.
    pub const DIRECTORY: &str = "application/alto-directory+json";
    /// Of a network map.
    pub const NETWORK_MAP: &str = "application/alto-networkmap+json";
    /// Of a cost map.
    pub const COST_MAP: &str = "application/alto-costmap+json";
}

/// Resource id of the network map.
pub const NETWORK_MAP: &str = "network-map";
/// Resource id of the cost map.
pub const COST_MAP: &str = "routing-cost-map";
/// Name of the one cost type.
const COST_TYPE: &str = "num-routing";

/// Section 10.3: which version of which resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct VersionTag {
    /// Of a resource of the same directory.
    pub resource_id: String,
    /// Up to 64 visible ASCII characters.
    pub tag: String,
}

/// Section 10.7: what costs mean.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CostType {
    /// `numerical` or `ordinal`.
    pub cost_mode: String,
    /// `routingcost` here.
    pub cost_metric: String,
    /// For people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

/// Section 10.4.5: prefixes of a PID.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct EndpointAddressGroup {
    /// In CIDR notation (RFC 4632).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ipv4: Vec<String>,
    /// RFC 4291, written as RFC 5952 has it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ipv6: Vec<String>,
}

/// Section 11.2.1: PIDs with their prefixes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct NetworkMap {
    /// Its version.
    pub meta: NetworkMapMeta,
    /// By PID.
    pub network_map: BTreeMap<String, EndpointAddressGroup>,
}

/// Section 11.2.1.6.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkMapMeta {
    /// Its version.
    pub vtag: VersionTag,
}

/// Section 11.2.3: costs from PIDs to PIDs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CostMap {
    /// Of which network map, and what the numbers mean.
    pub meta: CostMapMeta,
    /// By source and destination; pairs without a cost are left out.
    pub cost_map: BTreeMap<String, BTreeMap<String, f64>>,
}

/// Section 11.2.3.6.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CostMapMeta {
    /// The network map that it is of, in a list of one.
    pub dependent_vtags: Vec<VersionTag>,
    /// What the numbers mean.
    pub cost_type: CostType,
}

/// Section 9.2: the information resource directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Directory {
    /// Cost types and the default map.
    pub meta: DirectoryMeta,
    /// By resource id.
    pub resources: BTreeMap<String, DirectoryEntry>,
}

/// Section 9.2.2.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct DirectoryMeta {
    /// By name.
    #[serde(default)]
    pub cost_types: BTreeMap<String, CostType>,
    /// Resource id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_alto_network_map: Option<String>,
}

/// Section 9.2.2: where a resource is, and what it needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct DirectoryEntry {
    /// Where it is.
    pub uri: String,
    /// What it is.
    pub media_type: String,
    /// What is sent to it, where it is asked by POST.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accepts: Option<String>,
    /// What it can do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Capabilities>,
    /// Resource ids.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uses: Vec<String>,
}

/// Section 11.2.3.4 and others; what is not known here is not kept.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Capabilities {
    /// Of the directory's cost types.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cost_type_names: Vec<String>,
}

fn routing_cost(description: Option<&str>) -> CostType {
    CostType {
        cost_mode: "numerical".to_owned(),
        cost_metric: "routingcost".to_owned(),
        description: description.map(str::to_owned),
    }
}

/// The directory of both maps, which are at `BASE/networkmap` and `BASE/costmap`.
#[must_use]
pub fn directory(base: &str) -> Directory {
    let base = base.trim_end_matches('/');
    let entry = |path: &str, media_type: &str| DirectoryEntry {
        uri: format!("{base}/{path}"),
        media_type: media_type.to_owned(),
        accepts: None,
        capabilities: None,
        uses: Vec::new(),
    };
    let names = Capabilities { cost_type_names: vec![COST_TYPE.to_owned()] };
    let costs = DirectoryEntry {
        capabilities: Some(names),
        uses: vec![NETWORK_MAP.to_owned()],
        ..entry("costmap", media::COST_MAP)
    };
    let described = routing_cost(Some("one-way delay in microseconds, and one for each link"));
    Directory {
        meta: DirectoryMeta {
            cost_types: BTreeMap::from([(COST_TYPE.to_owned(), described)]),
            default_alto_network_map: Some(NETWORK_MAP.to_owned()),
        },
        resources: BTreeMap::from([
            (NETWORK_MAP.to_owned(), entry("networkmap", media::NETWORK_MAP)),
            (COST_MAP.to_owned(), costs),
        ]),
    }
}
