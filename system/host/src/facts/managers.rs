//! Other programs that tune this machine and would override changes.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Tree;

/// Most processes that are searched.
const PROCESSES_MAX: usize = 65_536;

/// Other programs that tune.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Managers {
    /// Active profile of TuneD; left out where it does not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub tuned_profile: Option<String>,
    /// True where irqbalance runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub irqbalance: Option<bool>,
    /// True where NetworkManager runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub network_manager: Option<bool>,
    /// True where bpftune runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub bpftune: Option<bool>,
}

/// Searches the running processes for tuning programs.
#[must_use]
pub fn gather(tree: &Tree) -> Managers {
    if !tree.exists("/proc/self") {
        return Managers::default();
    }
    let processes = tree.names("/proc").into_iter().filter(|name| name.parse::<u32>().is_ok());
    let names: Vec<String> = processes
        .take(PROCESSES_MAX)
        .filter_map(|number| tree.text(&format!("/proc/{number}/comm")))
        .collect();
    let runs = |name: &str| names.iter().any(|one| one == name);
    let profile = tree.text("/etc/tuned/active_profile");
    Managers {
        tuned_profile: profile.filter(|_| runs("tuned")),
        irqbalance: Some(runs("irqbalance")),
        network_manager: Some(runs("NetworkManager")),
        bpftune: Some(runs("bpftune")),
    }
}
