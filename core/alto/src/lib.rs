//! Documents of the Application-Layer Traffic Optimization protocol (ALTO, RFC 7285): the information resource
//! directory, a network map of sites and a cost map between them.
//!
//! [`Maps::of`] builds both maps from a topology and the prefixes of its sites, [`directory`] the directory that lists
//! them. Serving them is the caller's. Types have the names and fields of the RFC and also parse other servers'
//! documents.
//!
//! A site is a PID. The `routingcost` between two PIDs is the one-way delay of the shortest path in microseconds plus
//! one per link; unreachable pairs are omitted. Addresses outside every site are in the PID `default`, which has no
//! costs. The tag of the network map is a digest of its content, so it changes exactly when the map does.

#![forbid(unsafe_code)]

mod maps;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use maps::{AltoError, DEFAULT_PID, Maps};

/// Media types, RFC 7285 section 14.1.
pub mod media {
    /// Media type of the information resource directory.
    pub const DIRECTORY: &str = "application/alto-directory+json";
    /// Media type of a network map.
    pub const NETWORK_MAP: &str = "application/alto-networkmap+json";
    /// Media type of a cost map.
    pub const COST_MAP: &str = "application/alto-costmap+json";
}

/// Resource id of the network map.
pub const NETWORK_MAP: &str = "network-map";
/// Resource id of the cost map.
pub const COST_MAP: &str = "routing-cost-map";
/// Name of the only cost type in the directory.
const COST_TYPE: &str = "num-routing";

/// Version of a resource (section 10.3).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct VersionTag {
    /// Id of a resource in the same directory.
    pub resource_id: String,
    /// Up to 64 visible ASCII characters.
    pub tag: String,
}

/// Metric and mode of a cost (section 10.7).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CostType {
    /// Cost mode: `numerical` or `ordinal`.
    pub cost_mode: String,
    /// Cost metric, here always `routingcost`.
    pub cost_metric: String,
    /// Text for human readers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

/// Prefixes of a PID (section 10.4.5).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct EndpointAddressGroup {
    /// IPv4 prefixes in CIDR notation (RFC 4632).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ipv4: Vec<String>,
    /// IPv6 prefixes (RFC 4291) in the canonical form of RFC 5952.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ipv6: Vec<String>,
}

/// PIDs with their prefixes (section 11.2.1).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct NetworkMap {
    /// Version tag of the map.
    pub meta: NetworkMapMeta,
    /// Prefixes of each PID.
    pub network_map: BTreeMap<String, EndpointAddressGroup>,
}

/// Metadata of a network map (section 11.2.1.6).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkMapMeta {
    /// Version of this map.
    pub vtag: VersionTag,
}

/// Costs between PIDs (section 11.2.3).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CostMap {
    /// Cost type, and the network map that defines the PIDs.
    pub meta: CostMapMeta,
    /// Costs by source PID, then destination PID; pairs without a cost are omitted.
    pub cost_map: BTreeMap<String, BTreeMap<String, f64>>,
}

/// Metadata of a cost map (section 11.2.3.6).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CostMapMeta {
    /// Version of the network map that defines the PIDs; always one element.
    pub dependent_vtags: Vec<VersionTag>,
    /// Metric and mode of the costs.
    pub cost_type: CostType,
}

/// Information resource directory (section 9.2).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InfoResourceDirectory {
    /// Cost types and the default map.
    pub meta: DirectoryMeta,
    /// Entries by resource id.
    pub resources: BTreeMap<String, DirectoryEntry>,
}

/// Metadata of the directory (section 9.2.2).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct DirectoryMeta {
    /// Cost types by name.
    #[serde(default)]
    pub cost_types: BTreeMap<String, CostType>,
    /// Resource id of the default network map.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_alto_network_map: Option<String>,
}

/// Location and requirements of a resource (section 9.2.2).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct DirectoryEntry {
    /// URI of the resource.
    pub uri: String,
    /// Media type of the response.
    pub media_type: String,
    /// Media type of the request body, for resources that take POST.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accepts: Option<String>,
    /// Optional capabilities, such as the cost types served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Capabilities>,
    /// Ids of the resources that this one depends on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uses: Vec<String>,
}

/// Capabilities of a resource (section 11.2.3.4); unknown ones are dropped.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Capabilities {
    /// Names of cost types defined in the directory.
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

/// Returns the directory of both maps, which are served at `BASE/networkmap` and `BASE/costmap`.
#[must_use]
pub fn directory(base: &str) -> InfoResourceDirectory {
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
    InfoResourceDirectory {
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
