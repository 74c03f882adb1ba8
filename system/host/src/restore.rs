//! Puts back what plans changed, from the journal: all of it, or what one plan changed that nobody confirmed.
//!
//! Fails where the journal or a file cannot be written; a setting that cannot be put back is told, and stays in the
//! journal for the next time.

use std::fs;
use std::io;
use std::path::Path;

use serde::Serialize;

use crate::apply::{Back, Settings, put_back};
use crate::change::Change;
use crate::journal::{Journal, JournalError, Kept, Record, Session};

/// What was put back.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Restored {
    /// Settings that were changed and are as they were.
    pub put_back: Vec<String>,
    /// Settings that were so already.
    pub unchanged: usize,
    /// Settings that somebody else had changed since, and to what; they are as they were before the plan.
    pub changed_by_others: Vec<(String, String)>,
    /// Settings whose device is not there any more.
    pub gone: Vec<String>,
    /// Settings and files that could not be put back, and why.
    pub failed: Vec<(String, String)>,
    /// Files that are as they were.
    pub files: Vec<String>,
    /// Plans whose changes ended with a restart of the machine.
    pub ended_with_boot: usize,
    /// Bytes at the end of the journal that could not be read: what they announced was not done.
    pub journal_cut_bytes: u64,
    /// Whether there was anything to put back.
    pub plans: usize,
}

/// Puts back what the plan called `only` changed, or everything.
///
/// # Errors
/// When the journal cannot be read or written.
pub fn restore(
    journal: &Journal,
    boot_id: &str,
    only: Option<&str>,
    settings: &mut dyn Settings,
) -> Result<Restored, JournalError> {
    let contents = journal.read()?;
    let mut restored = Restored { journal_cut_bytes: contents.cut_bytes, ..Restored::default() };
    let chosen: Vec<&Session> = contents
        .sessions
        .iter()
        .filter(|session| only.is_none_or(|only| only == session.id))
        .collect();
    restored.plans = chosen.len();
    let mut changes: Vec<Change> = Vec::new();
    for session in &chosen {
        // What nothing keeps is gone with the boot, and what is there now is somebody else's.
        if session.boot_id != boot_id && session.files.is_empty() {
            restored.ended_with_boot += 1;
            continue;
        }
        changes.extend(session.steps.iter().flat_map(|(_, changes)| changes.iter().cloned()));
    }
    for (knob, back) in put_back(&changes, settings) {
        let name = knob.to_string();
        match back {
            Back::Was => restored.unchanged += 1,
            Back::Put => restored.put_back.push(name),
            Back::PutOver(now) => restored.changed_by_others.push((name, now)),
            Back::Gone => restored.gone.push(name),
            Back::Failed(error) => restored.failed.push((name, error)),
        }
    }
    // The latest first: a file that was written twice goes to what it was first.
    let files = chosen.iter().rev().flat_map(|session| session.files.iter().rev());
    for kept in files {
        let name = kept.path.display().to_string();
        match put_file_back(kept) {
            Ok(()) if restored.files.contains(&name) => {}
            Ok(()) => restored.files.push(name),
            Err(error) => restored.failed.push((name, error.to_string())),
        }
    }
    if !restored.failed.is_empty() {
        return Ok(restored);
    }
    for session in &chosen {
        journal.add(&Record::Restored { id: session.id.clone() })?;
    }
    if journal.read()?.sessions.is_empty() {
        journal.remove()?;
    }
    Ok(restored)
}

fn put_file_back(kept: &Kept) -> io::Result<()> {
    match &kept.before {
        Some(text) => write_whole(&kept.path, text),
        None => match fs::remove_file(&kept.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        },
    }
}

/// Writes a file that is either the old one or the new one, whatever happens.
pub(crate) fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    use std::io::Write;
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".penstock-new");
    let new = path.with_file_name(name);
    let mut file = fs::File::create(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)
}
