//! `cargo xtask bench controller`: parts of the controller, one file each.

mod allocation;
mod api;

use std::path::Path;

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde_json::Value;

use super::machine;
use crate::workspace_root;

/// Options of `cargo xtask bench controller`.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Parts to measure, separated by commas; all by default.
    #[arg(long, value_delimiter = ',', value_enum)]
    parts: Vec<What>,
    /// Seconds of processor time that the linear programmes get for each problem.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

/// A part of the results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum What {
    /// Rates for flows over links, compared with linear programmes.
    Allocation,
    /// Submissions and completions over HTTP, on SQLite and PostgreSQL.
    Api,
}

/// Tables of one part as Markdown and as JSON.
struct BenchPart {
    name: &'static str,
    text: String,
    rows: Value,
}

/// Measures all parts and writes the results.
pub fn run(options: &Options) -> Result<()> {
    let root = workspace_root();
    let all = What::value_variants();
    let wanted = if options.parts.is_empty() { all } else { &options.parts };
    let parts: Result<Vec<BenchPart>> = wanted
        .iter()
        .map(|what| match what {
            What::Allocation => allocation::run(&root, options.seconds),
            What::Api => api::run(&root),
        })
        .collect();
    write(&root, &parts?)
}

fn write(root: &Path, parts: &[BenchPart]) -> Result<()> {
    let facts = machine::facts(root, root)?;
    let mut text = format!(
        "# The controller's speed\n\n{}, {} cores, load {} at the end, commit {}.\n",
        facts.cpu, facts.cores, facts.load_at_end, facts.commit
    );
    let mut object = serde_json::Map::new();
    for part in parts {
        text += "\n";
        text += &part.text;
        object.insert(part.name.to_owned(), part.rows.clone());
    }
    print!("{text}");
    let stem = root.join("bench/results").join(format!("controller-{}", facts.date));
    std::fs::write(stem.with_extension("md"), text)?;
    object.insert("machine".to_owned(), serde_json::to_value(&facts)?);
    std::fs::write(stem.with_extension("json"), format!("{:#}\n", Value::Object(object)))?;
    Ok(())
}
