//! `penstock tag`.

use penstock_agent::marking::{AddressRule, AttachedProgram, MarkerFacts};
use serde::Serialize;
use utoipa::ToSchema;

pub(crate) use crate::tag::{Decoded, Encoded, Registered};

/// First line of a marker that runs.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Running {
    /// Programs that were attached.
    pub(crate) attached: Vec<AttachedProgram>,
    /// Number of rules in force.
    pub(crate) rules: usize,
    /// Addresses and ports of its HTTP API.
    pub(crate) http: Vec<String>,
}

/// Programs that were removed.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Stopped {
    /// Interface and direction of each program.
    pub(crate) detached: Vec<String>,
}

/// State of a marker.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct TagStatusJson {
    /// State and counters of the marker.
    #[serde(flatten)]
    pub(crate) marker: MarkerFacts,
    /// Rules by addresses; left out without `--rules`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) address_rules: Option<Vec<AddressRule>>,
    /// Rules by cgroup; left out without `--rules`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) cgroup_rules: Option<Vec<CgroupRule>>,
    /// Rules by process; left out without `--rules`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) process_rules: Option<Vec<ProcessRule>>,
}

/// A rule by cgroup.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct CgroupRule {
    /// Number of the cgroup: the inode of its directory.
    pub(crate) cgroup_id: u64,
    /// Owner and activity, as `cms/default`.
    pub(crate) scitag: String,
    /// Place of the scitag in the packets: `flow`, `destination`, `both` or `none`.
    pub(crate) label: &'static str,
}

/// A rule by process.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ProcessRule {
    /// Name of the process, as `/proc/PID/comm` has it.
    pub(crate) process: String,
    /// Owner and activity, as `cms/default`.
    pub(crate) scitag: String,
    /// Place of the scitag in the packets: `flow`, `destination`, `both` or `none`.
    pub(crate) label: &'static str,
}

/// Result of `registry update`.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct RegistryUpdate {
    /// True where the registry is another than before.
    pub(crate) changed: bool,
    /// RFC 3339 time of the last change of the registry; null where the registry has none.
    pub(crate) modified: Option<String>,
    /// File or address of the registry.
    pub(crate) source: String,
    /// RFC 3339 time at which the source was last asked; null for the built-in copy.
    pub(crate) checked: Option<String>,
    /// Number of owners in the registry.
    pub(crate) owners: usize,
    /// Number of activities in the registry.
    pub(crate) activities: usize,
    /// Entries that were left out, with their reasons.
    pub(crate) left_out: Vec<String>,
}
