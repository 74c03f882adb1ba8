//! `penstock host explain`: one rule in full, or all rules, one a line.

use std::fmt::Write as _;

use penstock_host::rules::{self, Finding, Rule, all};

use super::{GoalArgs, check, print, table};
use crate::exit::{Code, CommandFailure};
use crate::json::host::{self as json, Explained, RulesJson};

#[derive(Debug, clap::Args)]
pub(crate) struct ExplainArgs {
    /// The rule; without it all rules, one a line
    #[arg(value_name = "RULE", value_parser = super::rule)]
    rule: Option<&'static Rule>,
    #[command(flatten)]
    wanted: GoalArgs,
}

const TEXT_COLUMNS: usize = 96;

pub(super) fn run(args: &ExplainArgs, json: bool) -> Result<Code, CommandFailure> {
    let Some(rule) = args.rule else { return list(json) };
    let facts = args.wanted.facts()?;
    let case = args.wanted.case(&facts)?;
    let findings = rules::judge_by(rule, &case);
    if json {
        crate::json::print(&Explained { rule: object(rule), findings })?;
        return Ok(Code::Done);
    }
    print(&text(rule, &findings))
}

fn list(json: bool) -> Result<Code, CommandFailure> {
    if json {
        crate::json::print(&RulesJson { rules: all().into_iter().map(object).collect() })?;
        return Ok(Code::Done);
    }
    let rows: Vec<Vec<String>> = all()
        .into_iter()
        .map(|rule| vec![rule.name.to_owned(), rule.weight.to_string(), rule.wants.to_owned()])
        .collect();
    print(&table(&rows))
}

fn object(rule: &rules::Rule) -> json::RuleJson {
    json::RuleJson {
        rule: rule.name,
        weight: rule.weight,
        reads: rule.reads,
        wants: rule.wants,
        why: rule.why,
        risk: rule.risk,
        interrupts: rule.interrupts,
        only_if_named: rule.only_if_named,
        contradicted: rule.contradicted.to_vec(),
        sources: rule.sources.to_vec(),
    }
}

fn text(rule: &rules::Rule, findings: &[Finding]) -> String {
    let mut text = format!("{}, weight {} of 10\n\n", rule.name, rule.weight);
    let mut part = |name: &str, what: &str| {
        for (index, line) in wrapped(what).into_iter().enumerate() {
            let name = if index == 0 { name } else { "" };
            let _ = writeln!(text, "{name:14}{line}");
        }
    };
    part("reads", rule.reads);
    part("wants", rule.wants);
    part("why", rule.why);
    part("risk", rule.risk);
    if rule.interrupts {
        part("", "the link may go down for a moment while it changes");
    }
    if let Some(why) = rule.only_if_named {
        part("left out", &format!("of a plan unless named by --also {}: {why}", rule.name));
    }
    for (index, line) in rule.contradicted.iter().enumerate() {
        part(if index == 0 { "contradicted" } else { "" }, line);
    }
    for (index, line) in rule.sources.iter().enumerate() {
        part(if index == 0 { "sources" } else { "" }, line);
    }
    if !findings.is_empty() {
        text += "\nhere\n";
        let rows: Vec<Vec<String>> = findings
            .iter()
            .map(|finding| {
                let mut row = check::row(finding);
                row.remove(1);
                row[0].insert_str(0, "  ");
                row
            })
            .collect();
        text += &table(&rows);
    }
    text
}

/// Wraps text to the width beside the headings.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().expect("there is always a line");
        if !last.is_empty() && last.chars().count() + 1 + word.chars().count() > TEXT_COLUMNS - 14 {
            lines.push(word.to_owned());
        } else {
            if !last.is_empty() {
                last.push(' ');
            }
            last.push_str(word);
        }
    }
    lines
}
