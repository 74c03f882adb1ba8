//! Traces of ended transfers, from which models of running transfers are trained: the latest samples of their tuners.
//!
//! A file for each transfer, with a JSON object a line that has the `sample`, as `python/training/traces.py` reads it. It
//! names neither hosts nor paths. The directory is private to the user of the agent, or of `penstock cp`, and keeps the latest
//! files.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use penstock_daemon::state::StateDir;
use penstock_mover::TunerSample;
use serde::Serialize;

use super::database::{HistoryError, HistoryFault};

/// Directory in the state directory.
pub const TRACES_DIRECTORY: &str = "traces";

/// Most files, of at most 200 KiB each.
pub(super) const TRACES_MAX: usize = 400;

/// Fewest samples of half a second: a window of the models and the longest horizon need 35 s.
const TRACE_SAMPLES_MIN: usize = 70;

/// Age from which a hidden file is no longer being written.
const UNFINISHED_AGE: Duration = Duration::from_secs(60);

/// Samples of one transfer.
#[derive(Debug)]
pub struct EndedTrace {
    /// Number of the transfer, of a copy that of its process.
    pub id: u64,
    /// Time at which the transfer ended.
    pub ended_unix_seconds: f64,
    /// Latest samples of its tuner, oldest first.
    pub samples: Arc<VecDeque<TunerSample>>,
}

#[derive(Debug, Serialize)]
struct TraceLine<'a> {
    sample: &'a TunerSample,
}

impl EndedTrace {
    /// Writes it to the state directory atomically and durably, and removes the oldest files beyond [`TRACES_MAX`]. One that
    /// is too short for models is not kept.
    ///
    /// # Errors
    /// When the directory cannot be written.
    pub fn keep(&self, state: &Path) -> Result<(), HistoryError> {
        if self.samples.len() < TRACE_SAMPLES_MIN {
            return Ok(());
        }
        let directory = state.join(TRACES_DIRECTORY);
        self.write(state, &directory).map_err(|fault| HistoryError::new(&directory, fault))
    }

    fn write(&self, state: &Path, directory: &Path) -> Result<(), HistoryFault> {
        let directory = StateDir::open(directory)?;
        remove_unfinished(directory.path())?;
        let milliseconds = (self.ended_unix_seconds * 1e3) as u64;
        let name = format!("{milliseconds:014}-{:06}.jsonl", self.id);
        let mut text = Vec::new();
        for sample in &*self.samples {
            serde_json::to_writer(&mut text, &TraceLine { sample }).map_err(io::Error::from)?;
            text.push(b'\n');
        }
        directory.write(&name, &text, 0o600)?;
        let all = trace_files(state)?;
        let surplus = all.len().saturating_sub(TRACES_MAX);
        // An agent and copies may remove the same ones at once.
        let remove = |path: &PathBuf| match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
        Ok(all[..surplus].iter().try_for_each(remove)?)
    }
}

/// Removes the hidden files that killed processes left half written.
fn remove_unfinished(directory: &Path) -> io::Result<()> {
    let is_old = |changed: SystemTime| changed.elapsed().is_ok_and(|age| age >= UNFINISHED_AGE);
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        // An agent and copies may write at once: a file may have its name by now.
        if is_hidden && entry.metadata().and_then(|facts| facts.modified()).is_ok_and(is_old) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
    Ok(())
}

/// Traces in the state directory, oldest first; none where there is no directory.
///
/// # Errors
/// When the directory cannot be read.
pub fn trace_files(state: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(state.join(TRACES_DIRECTORY)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let paths =
        entries.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<_>>>()?;
    let mut traces: Vec<_> = paths
        .into_iter()
        .filter(|path| path.extension().is_some_and(|end| end == "jsonl"))
        .collect();
    traces.sort();
    Ok(traces)
}
