//! Tuning rules: each has a name, descriptions with sources, and a pure function that judges the facts of a machine for
//! a goal.
//!
//! Rules change nothing: a verdict lists changes, from which [`crate::plan`] selects.
//!
//! Rules do not fail: without the required facts the verdict is `Unknown`, which does not affect the score.

mod cpu;
mod interrupts;
mod machine;
mod nic;
mod pcie;
mod queues;
mod rdma;
mod sockets;
mod storage;
mod tcp;

use serde::Serialize;
use utoipa::ToSchema;

use crate::change::{Change, Tunable};
use crate::facts::{Facts, Nic};
use crate::goal::Goal;

/// A tuning rule: description, sources and judging function.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    /// Name on command lines.
    pub name: &'static str,
    /// Facts that it reads, for users.
    pub reads: &'static str,
    /// Recommended value, by rate, round-trip time, role and memory.
    pub wants: &'static str,
    /// Reason for the recommendation.
    pub why: &'static str,
    /// Costs and risks of the change.
    pub risk: &'static str,
    /// Sources of the recommendation.
    pub sources: &'static [&'static str],
    /// Sources that contradict it, and the resolution.
    pub contradicted: &'static [&'static str],
    /// Weight in the score, 1 to 10.
    pub weight: u32,
    /// Reason why a plan applies it only when named.
    pub only_if_named: Option<&'static str>,
    /// True if a change may take the link down for a moment.
    pub interrupts: bool,
    /// Judges a machine: one finding per object (`host`, a device, a disk).
    pub judge: fn(&Case<'_>) -> Vec<Finding>,
}

/// Default values of optional fields.
const RULE: Rule = Rule {
    name: "",
    reads: "",
    wants: "",
    why: "",
    risk: "none known",
    sources: &[],
    contradicted: &[],
    weight: 1,
    only_if_named: None,
    interrupts: false,
    judge: |_| Vec::new(),
};

/// Input of the rules: a machine and a goal.
#[derive(Debug)]
pub struct Case<'a> {
    /// Facts about the machine.
    pub facts: &'a Facts,
    /// Performance goal of the machine.
    pub goal: Goal,
    /// Devices that carry the traffic.
    pub nics: Vec<&'a Nic>,
}

/// Verdict of a rule on one object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Finding {
    /// Name of the rule.
    pub rule: &'static str,
    /// Object that was judged: `host`, a network device or a disk.
    pub object: String,
    /// Verdict of the rule.
    #[serde(flatten)]
    pub verdict: Verdict,
}

/// Verdict of a rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Verdict {
    /// The setting is as wanted.
    Ok {
        /// Present value.
        have: String,
    },
    /// The setting differs; `changes` is empty where only a person can change it.
    Differs {
        /// Present value.
        have: String,
        /// Wanted value.
        want: String,
        /// Changes that a plan makes.
        changes: Vec<Change>,
    },
    /// The setting has no effect on this kernel.
    NoOp {
        /// Reason.
        why: String,
    },
    /// The machine does not have the object of the rule.
    NotApplicable {
        /// Reason.
        why: String,
    },
    /// The setting differs, and a change takes effect after a restart of the machine.
    NeedsReboot {
        /// Present value.
        have: String,
        /// Wanted value.
        want: String,
    },
    /// The setting differs, and cannot be set from this container or network namespace.
    NeedsHost {
        /// Present value.
        have: String,
        /// Wanted value.
        want: String,
    },
    /// The setting differs, and another program controls it.
    Conflict {
        /// Present value.
        have: String,
        /// Wanted value.
        want: String,
        /// Name of the other program, and what to change there.
        with: String,
    },
    /// The setting cannot be read.
    Unknown {
        /// Reason.
        why: String,
    },
}

impl Verdict {
    /// Short name for tables.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Ok { .. } => "ok",
            Self::Differs { .. } => "differs",
            Self::NoOp { .. } => "no-op",
            Self::NotApplicable { .. } => "not applicable",
            Self::NeedsReboot { .. } => "needs reboot",
            Self::NeedsHost { .. } => "needs host",
            Self::Conflict { .. } => "conflict",
            Self::Unknown { .. } => "unknown",
        }
    }

    /// True if it lowers the score.
    #[must_use]
    pub fn is_bad(&self) -> bool {
        matches!(
            self,
            Self::Differs { .. }
                | Self::NeedsReboot { .. }
                | Self::NeedsHost { .. }
                | Self::Conflict { .. }
        )
    }

    /// Current and recommended value, where they differ.
    #[must_use]
    pub fn difference(&self) -> Option<(&str, &str)> {
        match self {
            Self::Differs { have, want, .. }
            | Self::NeedsReboot { have, want }
            | Self::NeedsHost { have, want }
            | Self::Conflict { have, want, .. } => Some((have, want)),
            _ => None,
        }
    }
}

/// All rules in the order of application: those that alter other tunables first.
#[must_use]
pub fn all() -> Vec<&'static Rule> {
    [
        tcp::RULES,
        sockets::RULES,
        queues::HOST_RULES,
        nic::RULES,
        pcie::RULES,
        queues::DEVICE_RULES,
        interrupts::RULES,
        rdma::RULES,
        cpu::RULES,
        machine::RULES,
        storage::RULES,
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The rule of this name.
#[must_use]
pub fn named(name: &str) -> Option<&'static Rule> {
    all().into_iter().find(|rule| rule.name == name)
}

/// Judges a machine by all rules.
#[must_use]
pub fn judge(case: &Case<'_>) -> Vec<Finding> {
    all().into_iter().flat_map(|rule| judge_by(rule, case)).collect()
}

/// Judges a machine by one rule.
#[must_use]
pub fn judge_by(rule: &Rule, case: &Case<'_>) -> Vec<Finding> {
    let mut findings = (rule.judge)(case);
    // Settings of the whole machine are not changed from a namespace or container.
    if case.is_inside() {
        for finding in &mut findings {
            let (have, want) = match &finding.verdict {
                Verdict::Differs { have, want, changes }
                    if changes.iter().any(|change| change.tunable.is_of_the_machine()) =>
                {
                    (have.clone(), want.clone())
                }
                Verdict::NeedsReboot { have, want } => (have.clone(), want.clone()),
                _ => continue,
            };
            finding.verdict = Verdict::NeedsHost { have, want };
        }
    }
    findings
}

impl<'a> Case<'a> {
    /// Selects the devices of these names. Without names: hardware with a carrier, the fastest where speeds are known, and
    /// devices stacked on it; without hardware, any device with a carrier.
    #[must_use]
    pub fn new(facts: &'a Facts, goal: Goal, devices: &[String]) -> Self {
        let nics = if devices.is_empty() {
            let up =
                || facts.nics.iter().filter(|nic| nic.is_hardware() && nic.carrier != Some(false));
            let fastest = up().filter_map(|nic| nic.speed_mbps).max();
            let mut chosen: Vec<&Nic> =
                up().filter(|nic| nic.speed_mbps.is_none() || nic.speed_mbps == fastest).collect();
            // VLANs and the like on top of those.
            for nic in &facts.nics {
                let below = nic.lower.as_ref();
                if below.is_some_and(|below| chosen.iter().any(|one| one.name == *below)) {
                    chosen.push(nic);
                }
            }
            // A container has software devices alone.
            if chosen.is_empty() {
                chosen = facts.nics.iter().filter(|nic| nic.carrier == Some(true)).collect();
            }
            chosen
        } else {
            facts.nics.iter().filter(|nic| devices.contains(&nic.name)).collect()
        };
        Self { facts, goal, nics }
    }

    /// True in a container or network namespace, from which the machine cannot be changed.
    fn is_inside(&self) -> bool {
        let machine = &self.facts.machine;
        machine.first_network_namespace == Some(false) || machine.container.is_some()
    }
}

/// Creates a finding for the whole machine.
fn host(rule: &'static str, verdict: Verdict) -> Vec<Finding> {
    vec![Finding { rule, object: "host".to_owned(), verdict }]
}

/// Creates a finding for each device.
fn each_nic(case: &Case<'_>, rule: &'static str, judge: impl Fn(&Nic) -> Verdict) -> Vec<Finding> {
    let finding = |nic: &&Nic| Finding { rule, object: nic.name.clone(), verdict: judge(nic) };
    case.nics.iter().map(finding).collect()
}

fn ok(have: impl Into<String>) -> Verdict {
    Verdict::Ok { have: have.into() }
}

fn differs(have: impl Into<String>, want: impl Into<String>, changes: Vec<Change>) -> Verdict {
    Verdict::Differs { have: have.into(), want: want.into(), changes }
}

fn unknown(why: impl Into<String>) -> Verdict {
    Verdict::Unknown { why: why.into() }
}

fn not_applicable(why: impl Into<String>) -> Verdict {
    Verdict::NotApplicable { why: why.into() }
}

fn no_op(why: impl Into<String>) -> Verdict {
    Verdict::NoOp { why: why.into() }
}

/// Verdict for a sysctl that cannot be read: it exists in another namespace only, or not in this kernel.
fn unseen(case: &Case<'_>, key: &str, want: &str) -> Verdict {
    if case.is_inside() && case.facts.sysctls.get("net.ipv4.tcp_rmem").is_some() {
        return unknown(format!("only the host shows and sets it: {want} is wanted"));
    }
    unknown(format!("{key} is not there"))
}

/// Judges a sysctl that should be `want`.
fn setting(case: &Case<'_>, key: &str, want: &str) -> Verdict {
    setting_where(case, key, want, |have| have == want)
}

/// Judges a sysctl by `good`; otherwise it should be `want`.
fn setting_where(case: &Case<'_>, key: &str, want: &str, good: impl Fn(&str) -> bool) -> Verdict {
    let Some(have) = case.facts.sysctls.get(key) else { return unseen(case, key, want) };
    if good(have) {
        return ok(have);
    }
    if case.facts.sysctls.read_only.contains(key) {
        return Verdict::NeedsHost { have: have.to_owned(), want: want.to_owned() };
    }
    differs(have, want, vec![Change::new(Tunable::sysctl(key), have, want)])
}

/// Judges a sysctl that should be at least `want`.
fn at_least(case: &Case<'_>, key: &str, want: i64) -> Verdict {
    let good = |have: &str| have.parse::<i64>().is_ok_and(|have| have >= want);
    setting_where(case, key, &want.to_string(), good)
}

/// Combines verdicts: the first bad one, with the changes of all.
fn together(verdicts: Vec<Verdict>) -> Verdict {
    let changes: Vec<Change> = verdicts
        .iter()
        .filter_map(|verdict| match verdict {
            Verdict::Differs { changes, .. } => Some(changes.clone()),
            _ => None,
        })
        .flatten()
        .collect();
    let unchangeable =
        |verdict: &&Verdict| verdict.is_bad() && !matches!(verdict, Verdict::Differs { .. });
    if let Some(first) = verdicts.iter().find(unchangeable).filter(|_| changes.is_empty()) {
        return first.clone();
    }
    let join = |pick: fn(&(&str, &str)) -> String| -> String {
        let parts: Vec<String> =
            verdicts.iter().filter_map(Verdict::difference).map(|pair| pick(&pair)).collect();
        parts.join(", ")
    };
    if !changes.is_empty() {
        return differs(join(|pair| pair.0.to_owned()), join(|pair| pair.1.to_owned()), changes);
    }
    let known: Vec<String> = verdicts
        .iter()
        .filter_map(|verdict| match verdict {
            Verdict::Ok { have } => Some(have.clone()),
            _ => None,
        })
        .collect();
    match verdicts.into_iter().next() {
        Some(first) if known.is_empty() => first,
        _ => ok(known.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_rule_is_described() {
        let mut names = BTreeSet::new();
        for rule in all() {
            assert!(names.insert(rule.name), "{} is there twice", rule.name);
            assert!((1..=10).contains(&rule.weight), "{}", rule.name);
            assert!(
                rule.name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
            );
            for text in [rule.reads, rule.wants, rule.why, rule.risk] {
                assert!(!text.is_empty(), "{} leaves something out", rule.name);
            }
            assert!(!rule.sources.is_empty(), "{} has no source", rule.name);
            assert_eq!(named(rule.name).map(|found| found.name), Some(rule.name));
        }
    }

    /// A machine without known facts has no bad findings.
    #[test]
    fn unknown_is_not_bad() {
        let facts = Facts::default();
        let goal = Goal::new(400_000_000_000, std::time::Duration::from_millis(65));
        let case = Case::new(&facts, goal, &[]);
        for finding in judge(&case) {
            assert!(!finding.verdict.is_bad(), "{finding:?}");
        }
        let nic =
            Nic { name: "eth0".into(), bus: Some("pci 0000:00:00.0".into()), ..Nic::default() };
        let facts = Facts { nics: vec![nic], ..Facts::default() };
        let findings = judge(&Case::new(&facts, goal, &[]));
        assert!(findings.iter().any(|finding| finding.object == "eth0"));
        for finding in findings {
            assert!(!finding.verdict.is_bad(), "{finding:?}");
        }
    }
}
