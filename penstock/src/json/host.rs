//! `penstock host`: `facts` prints the facts themselves.

use std::path::PathBuf;

use penstock_host::apply::ApplyOutcome;
use penstock_host::capacity::ResourceCheck;
use penstock_host::plan::TuningPlan;
use penstock_host::report::Report;
use penstock_host::rules::Finding;
use serde::Serialize;
use utoipa::ToSchema;

/// Goal of a check or plan.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct GoalJson {
    /// Rate that the host is to reach.
    pub(crate) rate_bits_per_second: u64,
    /// Round-trip time to the other end.
    pub(crate) rtt_seconds: f64,
    /// Number of data streams.
    pub(crate) streams: u32,
    /// `dtn` (files) or `test` (memory to memory).
    pub(crate) role: &'static str,
}

/// A host against a goal.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct HostCheckJson {
    /// Goal that the host was judged by.
    pub(crate) goal: GoalJson,
    /// Kernel, processors and memory in words.
    pub(crate) machine: String,
    /// Network interfaces that were judged.
    pub(crate) interfaces: Vec<String>,
    /// Score, and rates that the host allows.
    pub(crate) report: Report,
    /// Hardware against the need of the rate in one direction: encrypted copies between drives and network, with role `test`
    /// traffic from memory. Not part of the score.
    pub(crate) capacity: Vec<ResourceCheck>,
    /// Result of every rule for each object that it judges.
    pub(crate) findings: Vec<Finding>,
}

/// A plan, and what was applied of it.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Tuned {
    /// Goal of the plan.
    pub(crate) goal: GoalJson,
    /// Changes that lead to the goal.
    pub(crate) plan: TuningPlan,
    /// With `--apply`: what was done.
    #[serde(flatten)]
    pub(crate) applied: Option<AppliedJson>,
}

/// A plan that was applied: these fields are left out without `--apply`.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct AppliedJson {
    /// Number of this plan in the journal.
    pub(crate) id: String,
    /// Result of each rule.
    pub(crate) outcomes: Vec<ApplyOutcome>,
    /// Files that keep settings over restarts.
    #[schema(value_type = Vec<String>)]
    pub(crate) files: Vec<PathBuf>,
    /// Settings that are kept over restarts.
    pub(crate) kept: Vec<String>,
    /// Lines of other files that set the same settings later to other values.
    pub(crate) overruled_by: Vec<String>,
    /// Time after which the settings are restored unless they are confirmed; null where they are not.
    pub(crate) revert_after_seconds: Option<f64>,
}

/// A plan that was confirmed.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Confirmed {
    /// Number of settings that stay.
    pub(crate) confirmed: usize,
    /// Files that keep settings over restarts.
    #[schema(value_type = Vec<String>)]
    pub(crate) files: Vec<PathBuf>,
    /// Settings that are kept over restarts.
    pub(crate) kept: Vec<String>,
    /// Lines of other files that set the same settings later to other values.
    pub(crate) overruled_by: Vec<String>,
}

/// List of all rules.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct RulesJson {
    /// Rules, by their names.
    pub(crate) rules: Vec<RuleJson>,
}

/// Rule for a host.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct RuleJson {
    /// Name of the rule.
    pub(crate) rule: &'static str,
    /// Weight in the score, 1 to 10 [weight].
    pub(crate) weight: u32,
    /// Settings that it reads.
    pub(crate) reads: &'static str,
    /// State that it asks for.
    pub(crate) wants: &'static str,
    /// Reason for the rule.
    pub(crate) why: &'static str,
    /// Risk of the change.
    pub(crate) risk: &'static str,
    /// True where the link may go down for a moment while it changes.
    pub(crate) interrupts: bool,
    /// Reason why a plan has it only with `--also`; null where plans have it.
    pub(crate) only_if_named: Option<&'static str>,
    /// Sources that say otherwise.
    pub(crate) contradicted: Vec<&'static str>,
    /// Sources of the rule.
    pub(crate) sources: Vec<&'static str>,
}

/// A rule with what it says of this host.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Explained {
    /// Description of the rule.
    #[serde(flatten)]
    pub(crate) rule: RuleJson,
    /// Result for each object that it judges.
    pub(crate) findings: Vec<Finding>,
}
