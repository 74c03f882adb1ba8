//! Replacing by exchange: a name has the old tree or the new one, whole, at any time.
//!
//! A new tree is built under a hidden name (`.penstock-*.part`) beside its destination, then the two names are exchanged
//! and the old tree is removed. A record of the hidden name in the state directory lets the next start remove what a crash
//! left; no export is walked for it.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use penstock_mover::temporary_name;
use penstock_sys::fs::{Dir, Kind, describe};

/// Deepest tree that is deleted or copied.
pub(crate) const DEPTH_MAX: usize = 256;

/// Directory of the records in the state directory.
const RECORDS: &str = "staged";

/// Records of the hidden names that the gateway uses.
#[derive(Debug, Clone)]
pub(crate) struct StagingRecords(PathBuf);

/// A hidden name with whatever tree it has, which is removed with this value.
#[derive(Debug)]
pub(crate) struct StagedTree {
    parent: Dir,
    name: OsString,
    record: PathBuf,
}

impl StagingRecords {
    /// Opens the records in the state directory `state`.
    ///
    /// # Errors
    /// When their directory cannot be made.
    pub(crate) fn open(state: &Path) -> io::Result<Self> {
        let directory = state.join(RECORDS);
        fs::create_dir_all(&directory)?;
        Ok(Self(directory))
    }

    /// Removes the trees that an earlier run left, and their records. Those that cannot be removed are logged, and tried
    /// again at the next start.
    ///
    /// # Errors
    /// When the records cannot be listed.
    pub(crate) fn remove_left(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.0)? {
            let name = entry?.file_name();
            let record = self.0.join(&name);
            let removed = fs::read(&record).and_then(|directory| {
                match Dir::open(OsString::from_vec(directory)) {
                    Ok(parent) => remove(&parent, Path::new(&name)),
                    Err(error) => Err(error),
                }
            });
            match removed {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    let (name, why) = (name.display(), describe(&error));
                    tracing::warn!("{name}: left by an earlier copy and cannot be removed: {why}");
                }
                _ => fs::remove_file(&record)?,
            }
        }
        Ok(())
    }

    /// Reserves a hidden name in `parent`.
    ///
    /// # Errors
    /// When its record cannot be written.
    pub(crate) fn stage(&self, parent: Dir) -> io::Result<StagedTree> {
        let name = temporary_name();
        let record = self.0.join(&name);
        fs::write(&record, parent.real_path()?.as_os_str().as_bytes())?;
        Ok(StagedTree { parent, name, record })
    }
}

impl StagedTree {
    /// The hidden name.
    pub(crate) fn name(&self) -> &Path {
        Path::new(&self.name)
    }

    /// Gives the staged tree the name `name` beside it; a tree that has this name takes the hidden one. Returns true if
    /// the name is new.
    ///
    /// # Errors
    /// `AlreadyExists` without `replace`, or as the file system fails. Both trees are as they were then.
    pub(crate) fn put(&self, name: &OsStr, replace: bool) -> io::Result<bool> {
        let (dir, name) = (&self.parent, Path::new(name));
        match dir.rename_noreplace(self.name(), name) {
            Ok(()) => return dir.sync_all().map(|()| true),
            Err(error) if replace && error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        match dir.exchange(self.name(), dir, name) {
            Err(error) if cannot_exchange(&error) => {
                let aside = PathBuf::from(temporary_name());
                move_over((dir, self.name()), (dir, name), &aside)?;
                dir.rename(&aside, self.name())?;
            }
            other => other?,
        }
        dir.sync_all().map(|()| false)
    }

    /// Moves what has the name `source` in the staging directory to `target` in `there`, which exists, and takes what was
    /// there under the hidden name.
    ///
    /// # Errors
    /// As the file system fails. Both are as they were then.
    pub(crate) fn exchange(&self, source: &OsStr, there: &Dir, target: &OsStr) -> io::Result<()> {
        let (dir, source, target) = (&self.parent, Path::new(source), Path::new(target));
        match dir.exchange(source, there, target) {
            Err(error) if cannot_exchange(&error) => {
                let aside = PathBuf::from(temporary_name());
                move_over((dir, source), (there, target), &aside)?;
                there.rename_into(&aside, dir, self.name(), true)?;
            }
            Err(error) => return Err(error),
            Ok(()) => {
                if let Err(error) = dir.rename(source, self.name()) {
                    dir.exchange(source, there, target)?;
                    return Err(error);
                }
            }
        }
        dir.sync_all()?;
        there.sync_all()
    }
}

impl Drop for StagedTree {
    fn drop(&mut self) {
        match remove(&self.parent, self.name()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                let (name, why) = (self.name.display(), describe(&error));
                tracing::warn!("{name}: what was replaced cannot be removed: {why}");
            }
            _ => drop(fs::remove_file(&self.record)),
        }
    }
}

/// True where the file system has no exchange, or the trees contain each other.
fn cannot_exchange(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported)
}

/// Moves `source` over `target`, which is kept under the name `aside` in its directory; puts it back on failure.
fn move_over(source: (&Dir, &Path), target: (&Dir, &Path), aside: &Path) -> io::Result<()> {
    let (there, name) = target;
    there.rename(name, aside)?;
    if let Err(error) = source.0.rename_into(source.1, there, name, true) {
        there.rename(aside, name)?;
        return Err(error);
    }
    Ok(())
}

/// Removes a file, a link, or a directory with its contents.
pub(crate) fn remove(root: &Dir, path: &Path) -> io::Result<()> {
    match root.stat(path)?.kind {
        Kind::Directory => {
            remove_contents(&root.open_dir(path)?, DEPTH_MAX)?;
            root.remove_dir(path)
        }
        _ => root.remove_file(path),
    }
}

fn remove_contents(dir: &Dir, depth_left: usize) -> io::Result<()> {
    let Some(depth_left) = depth_left.checked_sub(1) else { return Err(too_deep()) };
    for entry in dir.entries()? {
        let (name, kind) = entry?;
        let name = Path::new(&name);
        if kind == Kind::Directory {
            remove_contents(&dir.open_dir(name)?, depth_left)?;
            dir.remove_dir(name)?;
        } else {
            dir.remove_file(name)?;
        }
    }
    Ok(())
}

pub(crate) fn too_deep() -> io::Error {
    io::Error::other(format!("the tree is deeper than {DEPTH_MAX} directories"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staged_tree_replaces_a_directory() {
        let (state, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let records = StagingRecords::open(state.path()).unwrap();
        let here = data.path();
        fs::create_dir(here.join("d")).unwrap();
        fs::write(here.join("d/old"), "old").unwrap();
        let staged = records.stage(Dir::open(here).unwrap()).unwrap();
        fs::write(here.join(staged.name()), "new").unwrap();
        let refused = staged.put(OsStr::new("d"), false).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        assert!(here.join("d/old").exists());
        assert!(!staged.put(OsStr::new("d"), true).unwrap());
        drop(staged);
        assert_eq!(fs::read_to_string(here.join("d")).unwrap(), "new");
        assert_eq!(fs::read_dir(here).unwrap().count(), 1);
        assert_eq!(fs::read_dir(state.path().join(RECORDS)).unwrap().count(), 0);
    }

    #[test]
    fn failed_move_keeps_the_target() {
        let data = tempfile::tempdir().unwrap();
        let here = data.path();
        fs::create_dir_all(here.join("d/in")).unwrap();
        fs::write(here.join("d/old"), "old").unwrap();
        let dir = Dir::open(here).unwrap();
        for source in ["missing", "d/in/none"] {
            let moved = move_over((&dir, Path::new(source)), (&dir, Path::new("d")), "a".as_ref());
            assert!(moved.is_err());
            assert!(here.join("d/old").exists() && !here.join("a").exists());
        }
    }

    #[test]
    fn crashed_copy_is_removed() {
        let (state, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let records = StagingRecords::open(state.path()).unwrap();
        let here = data.path();
        fs::write(here.join("kept"), "1").unwrap();
        let staged = records.stage(Dir::open(here).unwrap()).unwrap();
        fs::create_dir_all(here.join(staged.name()).join("a/b")).unwrap();
        // As a crash does, this runs no destructor.
        std::mem::forget(staged);
        std::mem::forget(records.stage(Dir::open(here).unwrap()).unwrap());
        records.remove_left().unwrap();
        assert_eq!(fs::read_dir(here).unwrap().count(), 1);
        assert_eq!(fs::read_dir(state.path().join(RECORDS)).unwrap().count(), 0);
    }
}
