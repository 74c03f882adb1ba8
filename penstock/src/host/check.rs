//! `penstock host check`: score, most important findings, every broken rule, and hardware that the rate needs.

use std::fmt::Write as _;

use penstock_host::capacity::{DataProtection, NodeWork, ResourceCheck, ResourceVerdict, compare};
use penstock_host::facts::Facts;
use penstock_host::goal::HostRole;
use penstock_host::report::{Report, report};
use penstock_host::rules::{Case, Finding, Verdict, judge};
use penstock_units::{BitRate, display_latency};

use super::{GoalArgs, goal_line, goal_object, print, table};
use crate::exit::{Code, CommandFailure, say};
use crate::json::host::HostCheckJson;

#[derive(Debug, clap::Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    wanted: GoalArgs,
    /// Print rules that are met or do not apply, too
    #[arg(long)]
    all: bool,
    /// Exit with 1 if the score is less
    #[arg(long, value_name = "SCORE", value_parser = clap::value_parser!(u32).range(0..=100))]
    fail_under: Option<u32>,
}

pub(super) fn run(args: &CheckArgs, json: bool) -> Result<Code, CommandFailure> {
    let facts = args.wanted.facts()?;
    if let Some(late) = args.wanted.facts.is_none().then(super::tune::overdue).flatten() {
        say(late);
    }
    let case = args.wanted.case(&facts)?;
    let findings = judge(&case);
    let report = report(&facts, &case.goal, &findings);
    let capacity = compare(&case, work(case.goal.role));
    if json {
        crate::json::print(&HostCheckJson {
            goal: goal_object(&case.goal),
            machine: describe(&facts),
            interfaces: case.nics.iter().map(|nic| nic.name.clone()).collect(),
            report: report.clone(),
            capacity,
            findings,
        })?;
    } else {
        let hardware = hardware(&case, &capacity);
        print(&(text(&facts, &case, &report, &findings, args.all) + &hardware))?;
    }
    match (args.fail_under, report.score) {
        (Some(least), Some(score)) if score < least => {
            say(format!("the score is {score}, under {least}"));
            Ok(Code::Failed)
        }
        _ => Ok(Code::Done),
    }
}

fn text(
    facts: &Facts,
    case: &Case<'_>,
    report: &Report,
    findings: &[Finding],
    all: bool,
) -> String {
    let goal = &case.goal;
    let mut text = format!("{}\n", describe(facts));
    let interfaces: Vec<&str> = case.nics.iter().map(|nic| nic.name.as_str()).collect();
    let interfaces =
        if interfaces.is_empty() { "no interface".to_owned() } else { interfaces.join(", ") };
    let _ = writeln!(text, "{}, by {interfaces}", goal_line(goal));
    let score = report.score.map_or("no score".to_owned(), |score| format!("{score} of 100"));
    let _ = writeln!(
        text,
        "\nscore           {score}  ({} rules kept, {} broken, {} say nothing here)",
        report.rules_ok, report.rules_bad, report.rules_without
    );
    if let Some(bps) = report.stream_ceiling_bits_per_second {
        let window = report.window_ceiling_bits_per_second.unwrap_or(u64::MAX);
        let bound = if bps >= window { ", TCP's largest window" } else { ", bound by its buffers" };
        let _ = writeln!(
            text,
            "one stream      {} at most over {}{bound}",
            BitRate(bps),
            display_latency(goal.rtt)
        );
    }
    if let (Some(needed), Some(bps)) =
        (report.streams_needed, report.streams_ceiling_bits_per_second)
    {
        let streams = if goal.streams > 1 {
            format!("{} streams carry", goal.streams)
        } else {
            "1 stream carries".to_owned()
        };
        let _ = writeln!(
            text,
            "too few streams {streams} at most {} over {}: use --streams {needed} or more",
            BitRate(bps),
            display_latency(goal.rtt)
        );
    }
    if !report.top.is_empty() {
        text += "\nwhat matters most\n";
        let rows: Vec<Vec<String>> = report
            .top
            .iter()
            .filter_map(|rule| findings.iter().find(|f| f.rule == *rule && f.verdict.is_bad()))
            .map(|finding| {
                let (have, want) = finding.verdict.difference().unwrap_or_default();
                vec![format!("  {}", finding.rule), format!("{have} -> {want}")]
            })
            .collect();
        text += &table(&rows);
    }
    let shown = |finding: &&Finding| all || finding.verdict.is_bad();
    let rows: Vec<Vec<String>> = findings.iter().filter(shown).map(row).collect();
    if !rows.is_empty() {
        text.push('\n');
        text += &table(&rows);
    }
    text
}

/// Work that the hardware is compared for: copies as `penstock cp` makes them by default, or network tests.
fn work(role: HostRole) -> NodeWork {
    match role {
        HostRole::Dtn => NodeWork::Files(DataProtection::Full),
        HostRole::Test => NodeWork::NetworkTest,
    }
}

/// Hardware against the need of the rate.
fn hardware(case: &Case<'_>, capacity: &[ResourceCheck]) -> String {
    let work = match case.goal.role {
        HostRole::Dtn => "encrypted copies between drives and network",
        HostRole::Test => "network tests from memory",
    };
    let rows: Vec<Vec<String>> = capacity
        .iter()
        .map(|one| {
            let have = match one.verdict {
                ResourceVerdict::Unknown => one.have.clone(),
                ResourceVerdict::Ok | ResourceVerdict::Short => format!("has {}", one.have),
            };
            let verdict = format!("  {}", one.verdict.word());
            vec![verdict, one.resource.to_owned(), format!("needs {}", one.need), have]
        })
        .collect();
    format!("\nhardware for {} of {work}\n{}", BitRate(case.goal.rate_bps), table(&rows))
}

/// Table row of a finding.
pub(super) fn row(finding: &Finding) -> Vec<String> {
    let what = match &finding.verdict {
        Verdict::Ok { have } => have.clone(),
        Verdict::NoOp { why } | Verdict::NotApplicable { why } | Verdict::Unknown { why } => {
            why.clone()
        }
        Verdict::Conflict { have, want, with } => format!("{have} -> {want}: {with}"),
        Verdict::Differs { have, want, .. }
        | Verdict::NeedsReboot { have, want }
        | Verdict::NeedsHost { have, want } => format!("{have} -> {want}"),
    };
    vec![finding.verdict.word().to_owned(), finding.rule.to_owned(), finding.object.clone(), what]
}

/// Kernel, processors and memory in one line.
pub(super) fn describe(facts: &Facts) -> String {
    let machine = &facts.machine;
    let mut parts = Vec::new();
    parts.extend(facts.note.clone());
    parts.extend(machine.product.clone().filter(|_| facts.note.is_none()));
    if let Some(release) = &facts.kernel.release {
        parts.push(format!("Linux {release}"));
    }
    match (&machine.container, machine.virtual_machine) {
        (Some(kind), _) => parts.push(format!("in a container ({kind})")),
        (None, Some(true)) => parts.push("virtual machine".to_owned()),
        _ => {}
    }
    if machine.first_network_namespace == Some(false) {
        parts.push("in a network namespace of its own".to_owned());
    }
    if let Some(count) = facts.cpu.online {
        let nodes = facts.cpu.nodes.len();
        let nodes = if nodes > 1 { format!(" in {nodes} NUMA nodes") } else { String::new() };
        parts.push(format!("{count} processors{nodes}"));
    }
    if let Some(bytes) = facts.memory.total_bytes {
        parts.push(format!("{} of memory", penstock_units::ByteCount(bytes)));
    }
    if parts.is_empty() {
        "a machine of which nothing is known".to_owned()
    } else {
        parts.join(", ")
    }
}
