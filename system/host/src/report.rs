//! Report: score of a host and the worst findings.
//!
//! The score is the weight of kept rules among those that could be judged, in percent; rules that are unknown, not
//! applicable or without effect do not count.

use std::collections::BTreeSet;

use serde::Serialize;
use utoipa::ToSchema;

use crate::facts::Facts;
use crate::facts::sysctls::WINDOW_BYTES_MAX;
use crate::goal::Goal;
use crate::rules::{Finding, Verdict, all};

/// Rules in [`Report::top`].
pub const TOP_RULES_MAX: usize = 3;

/// A host against a goal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Report {
    /// Score, 0 to 100; null where no rule could be judged.
    pub score: Option<u32>,
    /// Rules that the host keeps.
    pub rules_ok: usize,
    /// Rules that the host breaks.
    pub rules_bad: usize,
    /// Rules that could not be judged.
    pub rules_without: usize,
    /// Up to three broken rules with the largest weights.
    pub top: Vec<&'static str>,
    /// Rate that the socket buffers allow one stream, where the other end has the same.
    pub stream_ceiling_bits_per_second: Option<u64>,
    /// Rate that TCP's largest window allows one stream.
    pub window_ceiling_bits_per_second: Option<u64>,
    /// Rate that TCP's largest window allows the goal's streams together.
    pub streams_ceiling_bits_per_second: Option<u64>,
    /// Fewest streams that can reach the goal's rate; null where the goal has as many. Not part of the score.
    pub streams_needed: Option<u32>,
}

/// Counts the findings by verdict.
#[must_use]
pub fn report(facts: &Facts, goal: &Goal, findings: &[Finding]) -> Report {
    let (mut good, mut judged) = (0, 0);
    let (mut rules_ok, mut rules_without) = (0, 0);
    let mut bad = Vec::new();
    for rule in all() {
        let own = || findings.iter().filter(|finding| finding.rule == rule.name);
        if own().any(|finding| finding.verdict.is_bad()) {
            judged += rule.weight;
            bad.push(rule);
        } else if own().any(|finding| matches!(finding.verdict, Verdict::Ok { .. })) {
            judged += rule.weight;
            good += rule.weight;
            rules_ok += 1;
        } else {
            rules_without += 1;
        }
    }
    // Among equal weights, findings that a plan can change come first.
    let in_hand: BTreeSet<&str> = findings
        .iter()
        .filter(|finding| matches!(&finding.verdict, Verdict::Differs { changes, .. } if !changes.is_empty()))
        .map(|finding| finding.rule)
        .collect();
    bad.sort_by_key(|rule| (u32::MAX - rule.weight, !in_hand.contains(rule.name)));
    let seconds = goal.rtt.as_secs_f64();
    let window_ceiling = (seconds > 0.0).then(|| (WINDOW_BYTES_MAX as f64 * 8.0 / seconds) as u64);
    let needed = Goal::new(goal.rate_bps, goal.rtt).streams;
    Report {
        score: (judged > 0).then(|| (good * 100 + judged / 2) / judged),
        rules_ok,
        rules_bad: bad.len(),
        rules_without,
        top: bad.iter().take(TOP_RULES_MAX).map(|rule| rule.name).collect(),
        stream_ceiling_bits_per_second: facts
            .sysctls
            .buffers()
            .and_then(|buffers| buffers.ceiling_bps(goal.rtt)),
        window_ceiling_bits_per_second: window_ceiling,
        streams_ceiling_bits_per_second: window_ceiling
            .map(|bps| bps.saturating_mul(u64::from(goal.streams.max(1)))),
        streams_needed: (needed > goal.streams.max(1)).then_some(needed),
    }
}
