//! Other programs that tune this machine, with which a change would fight.

use serde::{Deserialize, Serialize};

use super::Tree;

/// Processes that are looked at.
const PROCESSES_MAX: usize = 65_536;

/// Other programs that tune.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Managers {
    /// The active profile of TuneD; none where it does not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tuned_profile: Option<String>,
    /// Whether irqbalance runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub irqbalance: Option<bool>,
    /// Whether NetworkManager runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_manager: Option<bool>,
    /// Whether bpftune runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bpftune: Option<bool>,
}

/// Looks for them.
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
