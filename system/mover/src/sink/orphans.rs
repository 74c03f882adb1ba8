//! Removal of temporary files and journals of abandoned transfers.
//!
//! Only files named by a journal are touched: it records the target directory, the partial files, and
//! the directories that may hold files with the transfer's mark. No export is walked.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use penstock_protocol::journal::{self, Partial, TempFileLocations};
use penstock_protocol::manifest::display_path;
use penstock_protocol::wire::Bytes;
use penstock_sys::fs::{Kind, Open, Stat, describe};

use super::resume_journal::read;
use super::storage::{DirectoryHandle, JournalStore};
use crate::base::temporary_name::PART_SUFFIX;

/// Report of the removal of one transfer's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Removed {
    /// Name of the journal.
    pub journal: String,
    /// Target directory, if recorded in the journal.
    pub target: Option<PathBuf>,
    /// Number of temporary files removed.
    pub files: u64,
    /// Number of bytes freed.
    pub bytes: u64,
}

/// Names of the journals in a store, without extension.
pub(super) fn journals(directory: &dyn DirectoryHandle) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in directory.entries()? {
        let (name, _) = entry?;
        let path = Path::new(&name);
        if path.extension() == Some(OsStr::new("journal"))
            && let Some(stem) = path.file_stem().and_then(OsStr::to_str)
        {
            names.push(stem.to_owned());
        }
    }
    Ok(names)
}

fn below(base: &Arc<dyn DirectoryHandle>, folder: &[u8]) -> io::Result<Arc<dyn DirectoryHandle>> {
    if folder.is_empty() {
        return Ok(Arc::clone(base));
    }
    base.open_dir(Path::new(OsStr::from_bytes(folder)))
}

/// Result of a sweep.
#[derive(Debug, Default)]
pub(super) struct OrphanReport {
    /// Number of files removed.
    pub(super) files: u64,
    /// Number of bytes freed.
    pub(super) bytes: u64,
    /// Set when a directory could not be read or a file not removed.
    pub(super) failed: bool,
}

/// Removes temporary files with this mark from directories below `base`, except those changed after
/// `before`.
pub(super) fn sweep<'a>(
    base: &Arc<dyn DirectoryHandle>,
    folders: impl Iterator<Item = &'a [u8]>,
    mark: &str,
    before: SystemTime,
) -> OrphanReport {
    let mut swept = OrphanReport::default();
    for folder in folders {
        match sweep_one(base, folder, mark, before, &mut swept) {
            // A missing directory is empty.
            Err(error) if error.kind() != io::ErrorKind::NotFound => swept.failed = true,
            _ => {}
        }
    }
    swept
}

fn sweep_one(
    base: &Arc<dyn DirectoryHandle>,
    folder: &[u8],
    mark: &str,
    before: SystemTime,
    swept: &mut OrphanReport,
) -> io::Result<()> {
    let dir = below(base, folder)?;
    let mut ours: Vec<OsString> = Vec::new();
    for entry in dir.entries()? {
        let (name, kind) = entry?;
        if name.as_bytes().starts_with(mark.as_bytes())
            && name.as_bytes().ends_with(PART_SUFFIX.as_bytes())
            && matches!(kind, Kind::File | Kind::Symlink)
        {
            ours.push(name);
        }
    }
    for name in ours {
        let stat = dir.stat(name.as_ref())?;
        if changed(&stat) <= before {
            dir.remove_file(name.as_ref())?;
            swept.files += 1;
            swept.bytes += stat.allocated_bytes;
        }
    }
    Ok(())
}

/// Status change time: the modification time of a small file is its source's.
fn changed(stat: &Stat) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(u64::try_from(stat.ctime.seconds).unwrap_or(0))
}

/// Removes a partial file unless a transfer holds it; returns the bytes freed.
///
/// # Errors
/// If it cannot be removed. A missing file is no error.
pub(super) fn remove_partial(dir: &dyn DirectoryHandle, name: &OsStr) -> io::Result<Option<u64>> {
    let file = match dir.open_file(name.as_ref(), &Open::writing()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    if !file.try_lock()? {
        return Ok(None);
    }
    let stat = file.stat()?;
    // It may have been committed since it was opened.
    if !dir.stat(name.as_ref()).is_ok_and(|named| named.inode == stat.inode) {
        return Ok(None);
    }
    dir.remove_file(name.as_ref())?;
    Ok(Some(stat.allocated_bytes))
}

/// Removes and logs files of transfers that were abandoned for `keep`.
pub(crate) fn remove_after(state: &Path, keep: Option<Duration>) {
    let Some(before) = keep.and_then(|keep| SystemTime::now().checked_sub(keep)) else { return };
    let removed = match remove(state, before) {
        Ok(removed) => removed,
        Err(error) => {
            let why = describe(&error);
            return tracing::warn!("cannot look for abandoned transfers: {why}");
        }
    };
    for one in removed {
        let target = one.target.as_deref().unwrap_or(Path::new("an unknown place"));
        tracing::info!(
            "abandoned transfer to {}: {} unfinished files with {} bytes are removed (journal {})",
            display_path(target.as_os_str().as_bytes()),
            one.files,
            one.bytes,
            one.journal
        );
    }
}

/// Removes files of unused transfers whose journal in the state directory `state` was last written
/// before `before`. Inaccessible ones are retried later.
///
/// # Errors
/// If the state directory cannot be read.
pub(crate) fn remove(state: &Path, before: SystemTime) -> io::Result<Vec<Removed>> {
    if !state.join("transfers").exists() {
        return Ok(Vec::new());
    }
    let store = JournalStore::open(state)?;
    let mut removed = Vec::new();
    for name in journals(&*store.directory)? {
        match remove_one(&store, &name, before) {
            Ok(Some(one)) => removed.push(one),
            // In use or not old enough.
            Ok(None) => {}
            Err(error) => {
                let why = describe(&error);
                tracing::warn!("journal {name}: abandoned and cannot be removed: {why}");
            }
        }
    }
    Ok(removed)
}

fn is_older(store: &JournalStore, journal: &Path, before: SystemTime) -> bool {
    store.directory.stat(journal).is_ok_and(|stat| {
        let written = u64::try_from(stat.mtime.seconds).unwrap_or(0);
        UNIX_EPOCH + Duration::new(written, stat.mtime.nanos) <= before
    })
}

fn remove_one(store: &JournalStore, name: &str, before: SystemTime) -> io::Result<Option<Removed>> {
    let path = PathBuf::from(format!("{name}.journal"));
    if !is_older(store, &path, before) {
        return Ok(None);
    }
    let Some(_unused) = store.directory.lock(OsStr::new(&format!("{name}.lock")))? else {
        return Ok(None);
    };
    // A transfer may have continued or completed it since.
    if !is_older(store, &path, before) {
        if store.directory.stat(&path).is_err() {
            let _ = store.directory.remove_file(format!("{name}.lock").as_ref());
        }
        return Ok(None);
    }
    let places = journal::temp_file_locations(&read(&*store.directory, &path)?);
    let target = places.as_ref().map(|places| PathBuf::from(OsStr::from_bytes(&places.at.path.0)));
    let (files, bytes) = match &places {
        Some(places) => remove_temporaries(store, places, before)?,
        None => (0, 0),
    };
    remove_journal(store, name)?;
    Ok(Some(Removed { journal: name.to_owned(), target, files, bytes }))
}

fn remove_journal(store: &JournalStore, name: &str) -> io::Result<()> {
    store.directory.remove_file(format!("{name}.journal").as_ref())?;
    let _ = store.directory.remove_file(format!("{name}.lock").as_ref());
    Ok(())
}

fn remove_temporaries(
    store: &JournalStore,
    places: &TempFileLocations,
    before: SystemTime,
) -> io::Result<(u64, u64)> {
    let base = match (store.open_base)(&places.at) {
        // The target directory is gone with its contents.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((0, 0)),
        other => other?,
    };
    let folders = places.directories.iter().map(|path| path.0.as_slice());
    let OrphanReport { mut files, mut bytes, .. } = sweep(&base, folders, &places.at.mark, before);
    for partial in &places.partials {
        let Ok(dir) = below(&base, &partial.folder.0) else { continue };
        let name = OsStr::from_bytes(&partial.partial_name.0);
        let is_old = dir.stat(name.as_ref()).is_ok_and(|stat| changed(&stat) <= before);
        if let (true, Ok(Some(freed))) = (is_old, remove_partial(&*dir, name)) {
            files += 1;
            bytes += freed;
        }
    }
    Ok((files, bytes))
}

/// Removes the journal `name` of a transfer that does not run, if none of its partial files is left.
/// Its temporary files are removed from its directories and, if its target is `target`, from `folders`.
///
/// # Errors
/// If the store or the recorded directory cannot be read.
pub(super) fn remove_if_consumed(
    store: &JournalStore,
    name: &str,
    target: (u64, u64),
    folders: &HashSet<Bytes>,
) -> io::Result<()> {
    let Some(_unused) = store.directory.lock(OsStr::new(&format!("{name}.lock")))? else {
        return Ok(());
    };
    let path = PathBuf::from(format!("{name}.journal"));
    let content = read(&*store.directory, &path)?;
    if content.is_empty() {
        let _ = store.directory.remove_file(format!("{name}.lock").as_ref());
    }
    let Some(places) = journal::temp_file_locations(&content) else { return Ok(()) };
    let base = (store.open_base)(&places.at)?;
    let is_there = |partial: &Partial| {
        let name = Path::new(OsStr::from_bytes(&partial.partial_name.0));
        below(&base, &partial.folder.0).is_ok_and(|dir| dir.stat(name).is_ok())
    };
    if places.partials.iter().any(is_there) {
        return Ok(());
    }
    let is_same_target = (places.at.file_system, places.at.inode) == target;
    let here = folders.iter().filter(|_| is_same_target);
    let folders: HashSet<_> =
        places.directories.iter().chain(here).map(|path| path.0.as_slice()).collect();
    if sweep(&base, folders.into_iter(), &places.at.mark, SystemTime::now()).failed {
        return Ok(());
    }
    remove_journal(store, name)
}
