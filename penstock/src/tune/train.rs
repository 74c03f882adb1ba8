//! `penstock tune train`: runs the training of `python/training`, or prints the commands for it.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use penstock_agent::history::{TRACES_DIRECTORY, trace_files};
use penstock_agent::running_forecast::{SEQUENCE_MODEL_FILE, read_sequence_model};
use penstock_daemon::state::StateDir;

use super::predict::{MODEL_FILE, check_model};
use super::{export, read_history};
use crate::credentials;
use crate::exit::{Code, CommandFailure};

pub(super) const AFTER_HELP: &str = "\
The training needs Python with xgboost, with --sequence with JAX. With --scripts it runs, and the model replaces that of the \
state directory if it can be read: forecast-model.json, with --sequence sequence-model.safetensors, from which penstock \
transfers show ID --why forecasts the next seconds of a running transfer. Without --scripts the commands are printed.

Examples:
  penstock tune train
  penstock tune train --scripts python/training
  penstock tune train --sequence --scripts python/training";

#[derive(Debug, clap::Args)]
pub(super) struct TrainArgs {
    /// Train the model of running transfers, from the traces of ended ones
    #[arg(long)]
    sequence: bool,
    /// Directory with train.py and sequence.py, in a checkout of Penstock python/training
    #[arg(long, value_name = "DIR")]
    scripts: Option<PathBuf>,
    /// Python with the packages of requirements.txt, with --sequence of requirements-sequence.txt
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    python: PathBuf,
}

pub(super) fn run(args: &TrainArgs) -> Result<Code, CommandFailure> {
    let state = credentials::state()?;
    match &args.scripts {
        Some(scripts) if args.sequence => train_sequence(scripts, &args.python, &state)?,
        Some(scripts) => train(scripts, &args.python, &state)?,
        None => {
            let of = if args.sequence { commands_of_sequence } else { commands };
            io::stdout().write_all(of(state.path()).as_bytes())?;
        }
    }
    Ok(Code::Done)
}

fn commands(state: &Path) -> String {
    format!(
        "In a checkout of Penstock:\n\n  \
           make forecast-training\n  \
           penstock tune train --scripts python/training --python target/forecast-training/bin/python\n\n\
         or on another host, with the history that `penstock tune export history.csv` writes:\n\n  \
           python3 -m venv training && training/bin/pip install -r python/training/requirements.txt\n  \
           training/bin/python python/training/train.py history.csv --model {MODEL_FILE}\n\n\
         and the model then copied to {}\n",
        state.join(MODEL_FILE).display()
    )
}

fn commands_of_sequence(state: &Path) -> String {
    format!(
        "In a checkout of Penstock:\n\n  \
           make sequence-training\n  \
           penstock tune train --sequence --scripts python/training --python target/sequence-training/bin/python\n\n\
         or on another host, with the files of {}:\n\n  \
           python3 -m venv training && training/bin/pip install -r python/training/requirements-sequence.txt\n  \
           training/bin/python python/training/sequence.py {TRACES_DIRECTORY}/*.jsonl --model {SEQUENCE_MODEL_FILE}\n\n\
         and the model then copied to {}\n",
        state.join(TRACES_DIRECTORY).display(),
        state.join(SEQUENCE_MODEL_FILE).display()
    )
}

fn train(scripts: &Path, python: &Path, state: &StateDir) -> anyhow::Result<()> {
    let directory = tempfile::tempdir().context("cannot make a directory for the history")?;
    let history = directory.path().join("history.csv");
    export::write(&history, &read_history(u32::MAX)?)
        .map_err(|failure| anyhow::anyhow!(failure.line()))?;
    let training = Training { python, script: scripts.join("train.py"), check: check_model };
    training.replace(state, MODEL_FILE, &[history])
}

fn train_sequence(scripts: &Path, python: &Path, state: &StateDir) -> anyhow::Result<()> {
    let directory = state.path().join(TRACES_DIRECTORY);
    let traces = trace_files(state.path()).with_context(|| directory.display().to_string())?;
    if traces.is_empty() {
        bail!(
            "{}: no traces: agents and penstock cp keep those of transfers that they sent and tuned for 35 s or more",
            directory.display()
        );
    }
    let script = scripts.join("sequence.py");
    let training = Training { python, script, check: check_sequence_model };
    training.replace(state, SEQUENCE_MODEL_FILE, &traces)
}

fn check_sequence_model(path: &Path) -> anyhow::Result<()> {
    let synthetic = read_sequence_model(path)?.synthetic_traces;
    if synthetic > 0 {
        bail!("{}: {synthetic} of its traces are synthetic", path.display());
    }
    Ok(())
}

/// A script that trains a model, and the check of its file.
struct Training<'a> {
    python: &'a Path,
    script: PathBuf,
    check: fn(&Path) -> anyhow::Result<()>,
}

impl Training<'_> {
    /// Trains beside the former model, which stays in use until the new one was read and is durable.
    fn replace(&self, state: &StateDir, model: &str, inputs: &[PathBuf]) -> anyhow::Result<()> {
        let Self { python, script, check } = self;
        if !script.is_file() {
            bail!(
                "{}: no such file: --scripts names python/training of a checkout of Penstock",
                script.display()
            );
        }
        // In a directory of its own: two trainings at once may not write to one file.
        let directory = tempfile::tempdir().context("cannot make a directory for the model")?;
        let fresh = directory.path().join(model);
        let status = Command::new(python)
            .arg(script)
            .args(inputs)
            .arg("--model")
            .arg(&fresh)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .status()
            .with_context(|| format!("{}: give a Python with --python", python.display()))?;
        let install = || {
            if !status.success() {
                bail!("{} has failed", script.display());
            }
            check(&fresh)?;
            let bytes = std::fs::read(&fresh).with_context(|| fresh.display().to_string())?;
            Ok(state.write(model, &bytes, 0o600)?)
        };
        install().map_err(|error| anyhow::anyhow!("{error:#}: forecasts go on as before"))
    }
}
