//! Syncs of a destination: of whole file systems, and at the end of a session of what it changed.
//!
//! A sync of a file system (syncfs) also writes what other programs left in the page cache there, which can take many
//! seconds. Where a session changed names in few directories only, and every file was synced by itself, it syncs these
//! directories instead.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use super::destination::Destination;
use crate::base::convert::native;
use crate::base::lock::lock;

/// Most directories that are synced one by one.
const DIRECTORIES_MAX: usize = 16;

impl Destination {
    /// Syncs every file system that received files.
    ///
    /// # Errors
    /// If a device fails.
    pub fn sync_file_systems(&self) -> io::Result<()> {
        self.base.dir.sync_filesystem()?;
        let others = lock(&self.mounts).values().cloned().collect::<Vec<_>>();
        others.iter().try_for_each(|parent| parent.dir.sync_filesystem())
    }

    /// Makes the names that this session changed durable, and what no sync of a file has covered.
    ///
    /// # Errors
    /// If a device fails.
    pub fn sync_changes(&self) -> io::Result<()> {
        let Some(directories) = self.changed_directories() else {
            return self.sync_file_systems();
        };
        for path in directories {
            match self.sync_directory(&path) {
                Err(error) if is_not_syncable(&error) => return self.sync_file_systems(),
                other => other?,
            }
        }
        Ok(())
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        if path.as_os_str().is_empty() {
            return self.base.dir.sync_names();
        }
        self.base.dir.open_dir(path)?.sync_names()
    }

    /// Directories whose names or attributes this session may have changed, the base as the empty path; `None` if syncing
    /// them is not enough, or dearer than a sync of the file systems.
    fn changed_directories(&self) -> Option<BTreeSet<PathBuf>> {
        if self.needs_filesystem_sync.load(Ordering::SeqCst) || self.journal.is_continued() {
            return None;
        }
        let mut changed = BTreeSet::new();
        let folders = lock(&self.folders);
        let made = lock(&self.directories);
        let made = made.iter().map(|entry| native(&entry.path));
        for path in folders.iter().map(PathBuf::as_path).chain(made) {
            // Each directory above may have been made for it, and has its name.
            changed.extend(path.ancestors().map(Path::to_owned));
            if changed.len() > DIRECTORIES_MAX {
                return None;
            }
        }
        Some(changed)
    }
}

/// True if the directory cannot be opened to be synced, or its file system has no syncs of directories.
fn is_not_syncable(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidInput, NotADirectory, NotFound, PermissionDenied, Unsupported};
    [InvalidInput, NotADirectory, NotFound, PermissionDenied, Unsupported].contains(&error.kind())
}
