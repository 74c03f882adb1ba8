//! `cargo xtask bench tuner`: controllers of transfers on the modelled path, with regret against the best settings that never
//! change.
//!
//! The figures compare controllers on a model; they say nothing about the rate of a real path.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use penstock_transfer_model::{
    CasesSummary, ContestRow, ControllerKind, ModelScenario, PathModel, SharingResult, contest,
    held_out::held_out_scenarios, joining, model_cases, tuned_scenarios,
};

use super::machine;
use crate::workspace_root;

/// Options of `cargo xtask bench tuner`.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Seeds of each scenario; the table has medians.
    #[arg(long, default_value_t = 21)]
    seeds: u64,
    /// Seeds of random cases.
    #[arg(long, default_value_t = 1000)]
    cases: u64,
    /// Folder for the results.
    #[arg(long)]
    out: Option<PathBuf>,
}

/// Runs every controller on every scenario and writes the table.
///
/// # Errors
/// When the table cannot be written.
pub fn run(options: &Options) -> Result<()> {
    let date = machine::today();
    let mut page = format!(
        "# Controllers of transfers on the model, {}\n\n\
         `cargo xtask bench tuner`: simulated in intervals of 0.5 s, {} seeds, medians. Regret is 1 − mean rate over that of\n\
         the best settings that never change, all probes included; steady is the share of the best rate in the last half\n\
         of each path's time. Start and fixed default: four streams (Falcon begins at one).\n",
        date, options.seeds
    );
    page.push_str("\n## Scenarios used while the controller was written\n\n");
    scenarios(&mut page, &tuned_scenarios(), 0..options.seeds);
    page.push_str("\n## Held-out scenarios\n\n");
    scenarios(&mut page, &held_out_scenarios(), 100..100 + options.seeds);
    page.push_str("\n## Several transfers (S7)\n\n");
    sharing(&mut page, options.seeds);
    page.push_str("\n## Random cases\n\n");
    let cases = options.cases;
    summary(&mut page, &format!("seeds 0 to {}, used", cases - 1), &model_cases(0..cases));
    let held_out = model_cases(cases..2 * cases);
    summary(&mut page, &format!("seeds {cases} to {}, held out", 2 * cases - 1), &held_out);
    print!("{page}");
    let folder = options.out.clone().unwrap_or_else(|| workspace_root().join("bench/results"));
    let path = folder.join(format!("tuner-model-{date}.md"));
    std::fs::write(&path, page).with_context(|| format!("cannot write {}", path.display()))
}

fn scenarios(page: &mut String, list: &[ModelScenario], seeds: std::ops::Range<u64>) {
    page.push_str(
        "| scenario | controller | t90 s | steady | regret | over default | streams |\n\
         |---|---|---|---|---|---|---|\n",
    );
    for scenario in list {
        for (at, row) in contest(scenario, seeds.clone()).iter().enumerate() {
            let name = if at == 0 {
                format!("{}: {}", scenario.id, scenario.title)
            } else {
                String::new()
            };
            contest_row(page, &name, row);
        }
    }
}

fn contest_row(page: &mut String, name: &str, row: &ContestRow) {
    let t90 = row.t90_s.map_or("never".to_owned(), |time| format!("{time:.1}"));
    let _ = writeln!(
        page,
        "| {name} | {} | {t90} | {:.3} | {:.3} | {:.2} | {:.1} |",
        row.controller, row.steady, row.regret, row.over_default, row.streams
    );
}

fn sharing(page: &mut String, seeds: u64) {
    page.push_str(
        "Shares from 60 s after the last join or leave; the worst Jain index of all seeds, means of the rest. \"one host\" is\n\
         one search for all transfers, as for those of one host over one path.\n\n\
         | path, transfers | controller | Jain | utilisation | streams together |\n|---|---|---|---|---|\n",
    );
    let paths = [(10.0, 100.0), (25.0, 400.0), (4000.0, 400.0)];
    for (stream_mbps, capacity_mbps) in paths {
        for (transfers, every_s, leaves) in [(2, 0, 0), (2, 30, 0), (3, 20, 1), (4, 10, 1)] {
            let path = PathModel::capped(stream_mbps, capacity_mbps);
            let scenario = joining("", path, transfers, every_s, leaves);
            let each = ControllerKind::ALL.into_iter().map(|kind| scenario.run(kind, 0..seeds));
            let all: Vec<SharingResult> =
                std::iter::once(scenario.run_together(0..seeds)).chain(each).collect();
            for (at, result) in all.iter().enumerate() {
                let name = if at == 0 {
                    format!(
                        "{stream_mbps} / {capacity_mbps} Mb/s, {transfers}, one each {every_s} s, {leaves} leave"
                    )
                } else {
                    String::new()
                };
                let _ = writeln!(
                    page,
                    "| {name} | {} | {:.3} | {:.3} | {:.1} |",
                    result.controller, result.jain, result.utilisation, result.streams
                );
            }
        }
    }
}

fn summary(page: &mut String, name: &str, summary: &CasesSummary) {
    let (seed, over_default) = summary.over_default_min;
    let _ = writeln!(
        page,
        "- {name}: worst rate over the fixed default {over_default:.3} (seed {seed}). Of {} without others on the path, \
         {:.1} % hold 0.97 of the best rate (mean {:.3}, least {:.3}); {} of those with an optimum up to 32 streams need \
         more than 10 s to 90 %.",
        summary.alone,
        summary.steady_097 * 100.0,
        summary.steady_mean,
        summary.steady_min,
        summary.late
    );
}
