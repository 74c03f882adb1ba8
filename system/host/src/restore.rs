//! Restores the values before plans from the journal: of all plans, or of one that was not confirmed.
//!
//! Fails where the journal or a file cannot be written. A tunable that cannot be restored is reported and stays in the
//! journal for the next attempt. A journal with damaged lines is set aside after the restore.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};

use serde::Serialize;
use utoipa::ToSchema;

use crate::apply::{RestoreOutcome, TunableStore, put_back};
use crate::change::{Change, Tunable};
use crate::journal::{AppliedPlan, JournalRecord, SavedFile, TuningJournal, TuningJournalError};

/// Result of a restore.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct Restored {
    /// Settings that were restored.
    pub put_back: Vec<String>,
    /// Settings that had their former values already.
    pub unchanged: usize,
    /// Settings that another program had changed since, each with that value; they were restored too.
    #[schema(value_type = Vec<Vec<String>>)]
    pub changed_by_others: Vec<(String, String)>,
    /// Settings of devices that do not exist any more.
    pub gone: Vec<String>,
    /// Settings and files that could not be restored, each with the reason.
    #[schema(value_type = Vec<Vec<String>>)]
    pub failed: Vec<(String, String)>,
    /// Files that were restored.
    pub files: Vec<String>,
    /// Copies of files that another program had changed since.
    pub files_saved: Vec<String>,
    /// Plans whose changes ended with a restart of the machine.
    pub ended_with_boot: usize,
    /// Bytes at the end of the journal that were cut off by a crash.
    pub journal_cut_bytes: u64,
    /// Damaged lines of the journal: their changes may still be in effect.
    pub journal_damaged_lines: usize,
    /// New path of the damaged journal.
    #[schema(value_type = Option<String>)]
    pub journal_aside: Option<PathBuf>,
    /// Plans in the journal.
    pub plans: usize,
}

impl Restored {
    /// True if all former values are known to be restored.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.failed.is_empty() && self.journal_damaged_lines == 0
    }
}

/// Restores the changes of the plan `only`, or of all plans.
///
/// # Errors
/// When the journal cannot be read or written.
pub fn restore(
    journal: &TuningJournal,
    boot_id: &str,
    only: Option<&str>,
    settings: &mut dyn TunableStore,
) -> Result<Restored, TuningJournalError> {
    let contents = journal.read()?;
    let mut restored = Restored {
        journal_cut_bytes: contents.cut_bytes,
        journal_damaged_lines: contents.damaged_lines,
        ..Restored::default()
    };
    let chosen: Vec<&AppliedPlan> = contents
        .sessions
        .iter()
        .filter(|session| only.is_none_or(|only| only == session.id))
        .collect();
    restored.plans = chosen.len();
    let mut changes: Vec<Change> = Vec::new();
    for (number, session) in chosen.iter().enumerate() {
        let made = session.steps.iter().flat_map(|(_, changes)| changes);
        if session.is_of(boot_id) {
            changes.extend(made.cloned());
            continue;
        }
        // Changes that were not persisted ended with their boot; current values are not ours.
        let later = chosen[number..].iter().filter(|later| later.is_of(&session.boot_id));
        let kept: BTreeSet<&Tunable> = later.flat_map(|later| &later.kept).collect();
        let before = changes.len();
        changes.extend(made.filter(|change| kept.contains(&change.tunable)).cloned());
        restored.ended_with_boot += usize::from(changes.len() == before);
    }
    for (tunable, back) in put_back(&changes, settings) {
        let name = tunable.to_string();
        match back {
            RestoreOutcome::Was => restored.unchanged += 1,
            RestoreOutcome::Put => restored.put_back.push(name),
            RestoreOutcome::PutOver(now) => restored.changed_by_others.push((name, now)),
            RestoreOutcome::Gone => restored.gone.push(name),
            RestoreOutcome::Failed(error) => restored.failed.push((name, error)),
        }
    }
    // Latest first: a file that was written twice gets its first content.
    for kept in chosen.iter().rev().flat_map(|session| session.files.iter().rev()) {
        let name = kept.path.display().to_string();
        match put_file_back(kept) {
            Ok(saved) => {
                restored.files_saved.extend(saved.map(|path| path.display().to_string()));
                if !restored.files.contains(&name) {
                    restored.files.push(name);
                }
            }
            Err(error) => restored.failed.push((name, error.to_string())),
        }
    }
    if !restored.failed.is_empty() {
        return Ok(restored);
    }
    // Innermost first. Directories with other files stay.
    for directory in chosen.iter().rev().flat_map(|session| session.directories.iter().rev()) {
        let _ = fs::remove_dir(directory);
    }
    for session in &chosen {
        journal.add(&JournalRecord::Restored { id: session.id.clone() })?;
    }
    match journal.read()? {
        left if !left.sessions.is_empty() => {}
        left if left.damaged_lines > 0 => restored.journal_aside = Some(journal.set_aside()?),
        _ => journal.remove()?,
    }
    Ok(restored)
}

/// Restores a file; returns the copy of a version that another program wrote since.
fn put_file_back(kept: &SavedFile) -> io::Result<Option<PathBuf>> {
    if kept.after.is_none() && fs::symlink_metadata(&kept.path).is_ok_and(|link| link.is_symlink())
    {
        return fs::remove_file(&kept.path).map(|()| None);
    }
    let now = match fs::read(&kept.path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        now => Some(now?),
    };
    let is = |text: &Option<String>| text.as_ref().map(String::as_bytes) == now.as_deref();
    if is(&kept.before) {
        return Ok(None);
    }
    let mut saved = None;
    if !is(&kept.after) && now.is_some() {
        let copy = beside(&kept.path, ".penstock-saved");
        fs::copy(&kept.path, &copy)?;
        saved = Some(copy);
    }
    match &kept.before {
        Some(text) => write_whole(&kept.path, text)?,
        None => fs::remove_file(&kept.path)?,
    }
    Ok(saved)
}

fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(end);
    path.with_file_name(name)
}

/// Replaces a file atomically; keeps owner and mode.
pub(crate) fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    use std::io::Write;
    let new = beside(path, ".penstock-new");
    let mut file = fs::File::create(&new)?;
    if let Ok(facts) = fs::metadata(path) {
        fchown(&file, Some(facts.uid()), Some(facts.gid()))?;
        file.set_permissions(facts.permissions())?;
    }
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)
}
