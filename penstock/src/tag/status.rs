//! `penstock tag status`: state of the marker, read from the kernel.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::PathBuf;

use penstock_agent::marking::{describe, describe_rule};
use penstock_marker::DEFAULT_PIN;
use penstock_marker::status::{self, MarkerStatus, REASONS};
use penstock_scitags::Registry;

use super::run::failure;
use crate::exit::{Code, CommandFailure};
use crate::json::tag as json;

/// Show what the marker labels: interfaces, rules, packets and bytes of each tag
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Numbers are the kernel's: every packet that left since the marker was first started, whether or not \
tag run runs now.

Examples:
  penstock tag status
  penstock tag status --rules --json")]
pub(super) struct TagStatusArgs {
    /// Directory that tag run was given
    #[arg(long, value_name = "DIR", default_value = DEFAULT_PIN)]
    pin: PathBuf,
    /// List the rules, too
    #[arg(long)]
    rules: bool,
}

pub(super) fn run(args: &TagStatusArgs, as_json: bool) -> Result<Code, CommandFailure> {
    let facts = status::read(&args.pin).map_err(|error| failure(error.into()))?;
    let registry = super::current().registry;
    let text = if as_json {
        let rules = |wanted: bool| wanted.then_some(&facts);
        let object = json::TagStatusJson {
            marker: describe(&facts, &registry),
            address_rules: rules(args.rules).map(|facts| {
                let all = facts.rules.iter();
                all.map(|(rule, entry)| describe_rule(rule, entry, None, &registry)).collect()
            }),
            cgroup_rules: rules(args.rules).map(|facts| {
                let all = facts.cgroups.iter().map(|(id, action)| json::CgroupRule {
                    cgroup_id: *id,
                    scitag: registry.name(action.tag()),
                    label: action.method().as_str(),
                });
                all.collect()
            }),
            process_rules: rules(args.rules).map(|facts| {
                let all = facts.programs.iter().map(|(name, action)| json::ProcessRule {
                    process: name.clone(),
                    scitag: registry.name(action.tag()),
                    label: action.method().as_str(),
                });
                all.collect()
            }),
        };
        format!("{}\n", serde_json::json!(object))
    } else {
        text(&facts, &registry, args.rules)
    };
    io::stdout().write_all(text.as_bytes())?;
    Ok(Code::Done)
}

fn text(facts: &MarkerStatus, registry: &Registry, rules: bool) -> String {
    let mut text = String::new();
    for one in &facts.attached {
        let _ = writeln!(text, "attached to {} {} ({})", one.interface, one.direction, one.by);
    }
    if facts.attached.is_empty() {
        text.push_str("attached to nothing\n");
    }
    let _ = writeln!(
        text,
        "rules: {} by addresses (look-ups for each packet: at most {}), {} by cgroup, {} by process",
        facts.rules.len(),
        facts.shapes,
        facts.cgroups.len(),
        facts.programs.len()
    );
    if rules {
        for (rule, entry) in &facts.rules {
            let (tag, method) = (entry.action.tag(), entry.action.method().as_str());
            let _ = writeln!(
                text,
                "  {rule}: {} by {method} ({})",
                registry.name(tag),
                entry.origin.as_str()
            );
        }
        for (id, action) in &facts.cgroups {
            let _ = writeln!(text, "  cgroup {id}: {}", registry.name(action.tag()));
        }
        for (name, action) in &facts.programs {
            let _ = writeln!(text, "  process {name}: {}", registry.name(action.tag()));
        }
    }
    let _ = writeln!(text, "\n{:>15} {:>20}  LABELLED", "PACKETS", "BYTES");
    for ((tag, method), count) in &facts.labelled {
        let (name, method) = (registry.name(*tag), method.as_str());
        let _ = writeln!(text, "{:>15} {:>20}  {name} by {method}", count.packets, count.bytes);
    }
    let _ = writeln!(text, "\n{:>15} {:>20}  NOT LABELLED", "PACKETS", "BYTES");
    for ((name, words), count) in REASONS.iter().zip(&facts.passed) {
        if count.packets > 0 {
            let _ = writeln!(text, "{:>15} {:>20}  {name}: {words}", count.packets, count.bytes);
        }
    }
    text
}
