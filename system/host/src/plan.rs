//! Plan: changes of a host for a goal, by rule, and findings left to the operator.
//!
//! Pure: from findings to a list of changes. Nothing else is ever changed.

use serde::Serialize;
use utoipa::ToSchema;

use crate::change::Change;
use crate::rules::{Finding, Rule, Verdict, all};

/// Rules that a plan takes, by name; the caller checks user input.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// Only these; empty for all.
    pub only: Vec<String>,
    /// Also these rules that apply only when named.
    pub also: Vec<String>,
    /// Rules to leave out.
    pub skip: Vec<String>,
}

impl Selection {
    /// True if `only` or `also` names this rule.
    fn names(&self, rule: &Rule) -> bool {
        self.only.iter().chain(&self.also).any(|name| name == rule.name)
    }

    /// True if a plan considers this rule.
    fn takes(&self, rule: &Rule) -> bool {
        let skipped = self.skip.iter().any(|name| name == rule.name);
        !skipped && (self.only.is_empty() || self.names(rule))
    }

    /// Rules whose changes a plan makes, in their order.
    #[must_use]
    pub fn rules(&self) -> Vec<&'static str> {
        let made = |rule: &&Rule| rule.only_if_named.is_none() || self.names(rule);
        let rules = all().into_iter().filter(|rule| self.takes(rule)).filter(made);
        rules.map(|rule| rule.name).collect()
    }
}

/// Changes, in the order in which they are made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct TuningPlan {
    /// Changes by rule, in the order in which they are made.
    pub steps: Vec<Step>,
    /// Findings that the plan does not change.
    pub left: Vec<Left>,
}

/// All changes of a rule, applied atomically.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Step {
    /// Name of the rule.
    pub rule: &'static str,
    /// Changes, made together or not at all.
    pub changes: Vec<Change>,
    /// True where links may go down for a moment.
    pub interrupts: bool,
}

/// A finding that the plan does not change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Left {
    /// Name of the rule.
    pub rule: &'static str,
    /// Object that was judged: `host`, a network device or a disk.
    pub object: String,
    /// Current value of the setting.
    pub have: String,
    /// Recommended value of the setting.
    pub want: String,
    /// Reason why it is not changed.
    pub why: String,
}

/// Plans the changes for findings.
#[must_use]
pub fn plan(findings: &[Finding], selection: &Selection) -> TuningPlan {
    let mut plan = TuningPlan::default();
    for rule in all().into_iter().filter(|rule| selection.takes(rule)) {
        let held_back = rule.only_if_named.filter(|_| !selection.names(rule));
        let mut changes = Vec::new();
        for finding in findings.iter().filter(|finding| finding.rule == rule.name) {
            let Some((have, want)) = finding.verdict.difference() else { continue };
            let why = match (&finding.verdict, held_back) {
                (Verdict::Differs { changes: ready, .. }, None) if !ready.is_empty() => {
                    for change in ready {
                        if !changes.contains(change) {
                            changes.push(change.clone());
                        }
                    }
                    continue;
                }
                (Verdict::Differs { changes: ready, .. }, Some(why)) if !ready.is_empty() => {
                    format!("{why}; --also {}", rule.name)
                }
                (Verdict::NeedsReboot { .. }, _) => {
                    "takes effect when the machine starts".to_owned()
                }
                (Verdict::NeedsHost { .. }, _) => {
                    "only the host's first network namespace can set it".to_owned()
                }
                (Verdict::Conflict { with, .. }, _) => with.clone(),
                _ => "by hand".to_owned(),
            };
            plan.left.push(Left {
                rule: rule.name,
                object: finding.object.clone(),
                have: have.to_owned(),
                want: want.to_owned(),
                why,
            });
        }
        if !changes.is_empty() {
            plan.steps.push(Step { rule: rule.name, changes, interrupts: rule.interrupts });
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::Tunable;

    fn differs(rule: &'static str) -> Finding {
        let changes = vec![Change::new(Tunable::sysctl("net.ipv4.tcp_sack"), "0", "1")];
        let verdict = Verdict::Differs { have: "0".into(), want: "1".into(), changes };
        Finding { rule, object: "host".into(), verdict }
    }

    fn steps(selection: &Selection) -> Vec<&'static str> {
        let findings = [differs("mtu"), differs("sack"), differs("tcp-rmem")];
        plan(&findings, selection).steps.into_iter().map(|step| step.rule).collect()
    }

    #[test]
    fn selection_determines_steps_and_order() {
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let all = Selection::default();
        assert_eq!(steps(&all), ["tcp-rmem", "sack"], "mtu only when it is named");
        assert_eq!(
            steps(&Selection { also: list(&["mtu"]), ..all.clone() }),
            ["tcp-rmem", "sack", "mtu"]
        );
        assert_eq!(steps(&Selection { only: list(&["mtu"]), ..all.clone() }), ["mtu"]);
        assert_eq!(steps(&Selection { skip: list(&["sack"]), ..all }), ["tcp-rmem"]);
    }

    #[test]
    fn skipped_findings_have_a_reason() {
        let findings = [differs("mtu")];
        let left = plan(&findings, &Selection::default()).left;
        assert!(
            left[0].why.contains("probe first") && left[0].why.ends_with("--also mtu"),
            "{left:?}"
        );
    }
}
