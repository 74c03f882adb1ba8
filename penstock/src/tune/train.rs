//! `penstock tune train`: runs the training of `python/training`, or prints the commands for it.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use super::predict::{MODEL_FILE, check_model};
use super::{export, read_history};
use crate::credentials;
use crate::exit::{Code, CommandFailure};

pub(super) const AFTER_HELP: &str = "\
The training needs Python with xgboost. With --scripts it runs, and the model replaces forecast-model.json of the state \
directory if it can be read; without it the commands are printed.

Examples:
  penstock tune train
  penstock tune train --scripts python/training";

#[derive(Debug, clap::Args)]
pub(super) struct TrainArgs {
    /// Directory with train.py, in a checkout of Penstock python/training
    #[arg(long, value_name = "DIR")]
    scripts: Option<PathBuf>,
    /// Python with the packages of requirements.txt
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    python: PathBuf,
}

pub(super) fn run(args: &TrainArgs) -> Result<Code, CommandFailure> {
    let model = credentials::state()?.path().join(MODEL_FILE);
    match &args.scripts {
        Some(scripts) => train(scripts, &args.python, &model)?,
        None => {
            let text = format!(
                "In a checkout of Penstock:\n\n  \
                   make forecast-training\n  \
                   penstock tune train --scripts python/training --python target/forecast-training/bin/python\n\n\
                 or on another host, with the history that `penstock tune export history.csv` writes:\n\n  \
                   python3 -m venv training && training/bin/pip install -r python/training/requirements.txt\n  \
                   training/bin/python python/training/train.py history.csv --model {MODEL_FILE}\n\n\
                 and the model then copied to {}\n",
                model.display()
            );
            io::stdout().write_all(text.as_bytes())?;
        }
    }
    Ok(Code::Done)
}

/// Trains beside the former model, which stays in use until the new one was read.
fn train(scripts: &Path, python: &Path, model: &Path) -> anyhow::Result<()> {
    let directory = tempfile::tempdir().context("cannot make a directory for the history")?;
    let history = directory.path().join("history.csv");
    export::write(&history, &read_history(u32::MAX)?)
        .map_err(|failure| anyhow::anyhow!(failure.line()))?;
    let fresh = model.with_extension("json.new");
    let script = scripts.join("train.py");
    let status = Command::new(python)
        .arg(&script)
        .arg(&history)
        .arg("--model")
        .arg(&fresh)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .status()
        .with_context(|| format!("{}: give a Python with --python", python.display()))?;
    let is_usable = match status.success() {
        true => check_model(&fresh),
        false => Err(anyhow::anyhow!("{} has failed", script.display())),
    };
    if let Err(error) = is_usable {
        let _ = std::fs::remove_file(&fresh);
        bail!("{error}: forecasts go on as before");
    }
    std::fs::rename(&fresh, model).with_context(|| model.display().to_string())
}
