//! What transfers leave that never come back: journals, and unfinished files under their temporary names.
//!
//! Only what a journal knows is touched: it names the directory that the transfer went to, the mark
//! that all its temporary names begin with, and every directory below in which it may have made some.
//! Nothing else is looked at, and no export is walked.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use penstock_protocol::journal::{self, At, Places};
use penstock_protocol::manifest::display_path;
use penstock_sys::fs::{Dir, Kind};
use penstock_sys::lock::FileLock;

use crate::keeping::JOURNAL_BYTES_MAX;

/// How temporary names end.
pub const PART: &str = ".part";

/// What was removed of one transfer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removed {
    /// Name of its journal.
    pub journal: String,
    /// Where it went to, if its journal says so.
    pub target: Option<PathBuf>,
    /// Unfinished files.
    pub files: u64,
    /// Bytes that they took.
    pub bytes: u64,
}

/// Removes unfinished files with this mark from directories below `base`; those that were written to
/// after `before` stay. How many went, and the bytes they took.
pub fn sweep<'a>(
    base: &Dir,
    directories: impl Iterator<Item = &'a [u8]>,
    mark: &str,
    before: SystemTime,
) -> (u64, u64) {
    let (mut files, mut bytes) = (0, 0);
    for path in directories {
        let path = Path::new(OsStr::from_bytes(path));
        let dir = if path.as_os_str().is_empty() { base.try_clone() } else { base.open_dir(path) };
        // What is not there any more has nothing in it.
        let Ok(dir) = dir else { continue };
        let Ok(entries) = dir.entries() else { continue };
        for (name, kind) in entries.flatten() {
            let ours = name.as_bytes().starts_with(mark.as_bytes())
                && name.as_bytes().ends_with(PART.as_bytes())
                && matches!(kind, Kind::File | Kind::Symlink);
            let Some(stat) = ours.then(|| dir.stat(&name).ok()).flatten() else { continue };
            // Not the modification time: that of a small file is its source's.
            let changed = u64::try_from(stat.ctime.seconds).unwrap_or(0);
            if UNIX_EPOCH + Duration::from_secs(changed) <= before && dir.remove_file(&name).is_ok()
            {
                files += 1;
                bytes += stat.allocated_bytes;
            }
        }
    }
    (files, bytes)
}

/// Removes what transfers left that have not come back for `keep`, and says so in the log.
pub fn remove_after(state: &Path, keep: Option<Duration>) {
    let Some(before) = keep.and_then(|keep| SystemTime::now().checked_sub(keep)) else { return };
    let removed = match remove(state, before) {
        Ok(removed) => removed,
        Err(error) => {
            let why = penstock_sys::fs::describe(&error);
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

/// Removes what transfers left whose journal in the state directory `state` was last written before
/// `before`, and that nobody runs. What cannot be looked at now stays for another time.
///
/// # Errors
/// When the state directory cannot be read.
pub fn remove(state: &Path, before: SystemTime) -> io::Result<Vec<Removed>> {
    let directory = state.join("transfers");
    let mut removed = Vec::new();
    let entries = match fs::read_dir(&directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(removed),
        other => other?,
    };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.extension() == Some(OsStr::new("journal")) && is_older(&path, before) {
            match remove_one(&path, before) {
                Ok(Some(one)) => removed.push(one),
                // It runs.
                Ok(None) => {}
                Err(error) => {
                    let why = penstock_sys::fs::describe(&error);
                    tracing::warn!("{}: abandoned and cannot be removed: {why}", path.display());
                }
            }
        }
    }
    Ok(removed)
}

fn is_older(path: &Path, before: SystemTime) -> bool {
    fs::metadata(path).and_then(|meta| meta.modified()).is_ok_and(|modified| modified <= before)
}

fn remove_one(path: &Path, before: SystemTime) -> io::Result<Option<Removed>> {
    let lock_path = path.with_extension("lock");
    let Some(_running) = FileLock::try_lock_at(&lock_path)? else { return Ok(None) };
    // Somebody may have taken it up since it was looked at, or brought it to its end.
    if !is_older(path, before) {
        if !path.exists() {
            let _ = fs::remove_file(lock_path);
        }
        return Ok(None);
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(JOURNAL_BYTES_MAX).read_to_end(&mut bytes)?;
    let places = journal::places(&bytes);
    let journal = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let target = places.as_ref().map(|places| PathBuf::from(OsStr::from_bytes(&places.at.path.0)));
    let (files, bytes) = match &places {
        Some(places) => sweep_places(places, before)?,
        None => (0, 0),
    };
    fs::remove_file(path)?;
    let _ = fs::remove_file(lock_path);
    Ok(Some(Removed { journal, target, files, bytes }))
}

fn sweep_places(places: &Places, before: SystemTime) -> io::Result<(u64, u64)> {
    let At { path, device, inode, mark } = &places.at;
    let base = match Dir::open(Path::new(OsStr::from_bytes(&path.0))) {
        // It was removed, and all that was in it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((0, 0)),
        other => other?,
    };
    let stat = base.stat_self()?;
    if (stat.device, stat.inode) != (*device, *inode) {
        let text = "another directory is there now: mount what was there, or remove the journal";
        return Err(io::Error::other(text));
    }
    Ok(sweep(&base, places.directories.iter().map(|path| path.0.as_slice()), mark, before))
}
