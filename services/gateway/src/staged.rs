//! Replacing by exchange: a name has the old tree or the new one, whole, at any time.
//!
//! A new tree is built under a hidden name (`.penstock-*.part`) beside its destination, then the two names are exchanged
//! and the old tree is removed. A record of the hidden name in the state directory lets the next start remove what a crash
//! left; no export is walked for it.
//!
//! A file system without exchange (NFS, FUSE) takes two renames: the old tree moves aside, then the new one takes its
//! name. Between them nothing has the name; the record of the old tree lets the next start put it back.

use std::ffi::OsStr;
use std::io;
use std::path::Path;

use penstock_mover::{HiddenName, HiddenNames, LeftName};
use penstock_sys::fs::{Dir, Kind, describe};

/// Deepest tree that is deleted or copied.
pub(crate) const DEPTH_MAX: usize = 256;

/// Directory of the records in the state directory.
const RECORDS: &str = "staged";

/// A hidden name with whatever tree it has, which is removed with this value.
#[derive(Debug)]
pub(crate) struct StagedTree {
    parent: Dir,
    /// `None` once the tree is left to the next start.
    name: Option<HiddenName>,
    names: HiddenNames,
}

/// Opens the hidden names of the gateway, whose records are in the state directory `state`, and removes the trees that an
/// earlier run left. Those that cannot be removed are logged, and tried again at the next start.
///
/// # Errors
/// When the records cannot be read.
pub(crate) fn open_names(state: &Path) -> io::Result<HiddenNames> {
    let names = HiddenNames::open(&state.join(RECORDS))?;
    names.remove_left(|left| match resolve_left(left) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            let (path, why) = (left.directory.join(&left.name), describe(&error));
            tracing::warn!("{}: left by an earlier copy: {why}", path.display());
            Err(error)
        }
        _ => Ok(()),
    })?;
    Ok(names)
}

/// Removes what a crash left, or puts it back where nothing has replaced it.
fn resolve_left(left: &LeftName) -> io::Result<()> {
    let parent = Dir::open(&left.directory)?;
    if let Some(former) = left.former.as_deref().map(Path::new) {
        match parent.rename_noreplace(Path::new(&left.name), former) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            restored => return restored,
        }
    }
    remove(&parent, Path::new(&left.name))
}

impl StagedTree {
    /// Reserves a hidden name in `parent`.
    ///
    /// # Errors
    /// When its record cannot be written.
    pub(crate) fn reserve(names: &HiddenNames, parent: Dir) -> io::Result<Self> {
        Ok(Self { name: Some(names.reserve(&parent)?), parent, names: names.clone() })
    }

    /// The hidden name.
    pub(crate) fn name(&self) -> &Path {
        self.name.as_ref().map_or(Path::new(""), HiddenName::name)
    }

    /// Gives the staged tree the name `name` beside it; a tree that has this name takes the hidden one. Returns true if
    /// the name is new.
    ///
    /// # Errors
    /// `AlreadyExists` without `replace`, or as the file system fails. Both trees are as they were then.
    pub(crate) fn put(&self, name: &OsStr, replace: bool) -> io::Result<bool> {
        let (dir, path) = (&self.parent, Path::new(name));
        match dir.rename_noreplace(self.name(), path) {
            Ok(()) => return dir.sync_all().map(|()| true),
            Err(error) if replace && error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        match dir.exchange(self.name(), dir, path) {
            Err(error) if cannot_exchange(&error) => {
                self.move_over((dir, self.name()), (dir, name))?;
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
        let (dir, source, target_path) = (&self.parent, Path::new(source), Path::new(target));
        match dir.exchange(source, there, target_path) {
            Err(error) if cannot_exchange(&error) => {
                self.move_over((dir, source), (there, target))?;
            }
            Err(error) => return Err(error),
            Ok(()) => {
                if let Err(error) = dir.rename(source, self.name()) {
                    dir.exchange(source, there, target_path)?;
                    return Err(error);
                }
            }
        }
        dir.sync_all()?;
        there.sync_all()
    }

    /// Moves `source` over `target`, which moves aside and is removed; puts it back on failure.
    fn move_over(&self, source: (&Dir, &Path), target: (&Dir, &OsStr)) -> io::Result<()> {
        let ((from, source), (there, name)) = (source, target);
        let aside = self.names.reserve_for(there, name)?;
        let target = Path::new(name);
        there.rename(target, aside.name())?;
        let mut aside =
            Self { parent: there.try_clone()?, name: Some(aside), names: self.names.clone() };
        if let Err(error) = from.rename_into(source, there, target, false) {
            if let Err(lost) = there.rename_noreplace(aside.name(), target) {
                let (hidden, why) = (aside.name().display(), describe(&lost));
                tracing::error!("{} has the name {hidden} now: {why}", target.display());
                aside.name.take().into_iter().for_each(HiddenName::keep_record);
            }
            return Err(error);
        }
        there.sync_all()
    }
}

impl Drop for StagedTree {
    fn drop(&mut self) {
        let Some(name) = self.name.take() else { return };
        match remove(&self.parent, name.name()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                let (hidden, why) = (name.name().display(), describe(&error));
                tracing::warn!("{hidden}: what was replaced cannot be removed: {why}");
                name.keep_record();
            }
            _ => {}
        }
    }
}

/// True where the file system has no exchange, or the trees contain each other.
fn cannot_exchange(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported)
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
    let text = format!(
        "the tree is deeper than {DEPTH_MAX} directories: ask for the directories below it first"
    );
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn records(state: &Path) -> usize {
        fs::read_dir(state.join(RECORDS)).unwrap().count()
    }

    #[test]
    fn staged_tree_replaces_a_directory() {
        let (state, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let names = open_names(state.path()).unwrap();
        let here = data.path();
        fs::create_dir(here.join("d")).unwrap();
        fs::write(here.join("d/old"), "old").unwrap();
        let staged = StagedTree::reserve(&names, Dir::open(here).unwrap()).unwrap();
        fs::write(here.join(staged.name()), "new").unwrap();
        let refused = staged.put(OsStr::new("d"), false).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        assert!(here.join("d/old").exists());
        assert!(!staged.put(OsStr::new("d"), true).unwrap());
        drop(staged);
        assert_eq!(fs::read_to_string(here.join("d")).unwrap(), "new");
        assert_eq!(fs::read_dir(here).unwrap().count(), 1);
        assert_eq!(records(state.path()), 0);
    }

    #[test]
    fn failed_move_keeps_the_target() {
        let (state, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let names = open_names(state.path()).unwrap();
        let here = data.path();
        fs::create_dir_all(here.join("d/in")).unwrap();
        fs::write(here.join("d/old"), "old").unwrap();
        let dir = Dir::open(here).unwrap();
        let staged = StagedTree::reserve(&names, dir.try_clone().unwrap()).unwrap();
        for source in ["missing", "d/in/none"] {
            let moved = staged.move_over((&dir, Path::new(source)), (&dir, OsStr::new("d")));
            assert!(moved.is_err());
            assert!(here.join("d/old").exists());
        }
        fs::write(here.join("new"), "new").unwrap();
        staged.move_over((&dir, Path::new("new")), (&dir, OsStr::new("d"))).unwrap();
        drop(staged);
        assert_eq!(fs::read_to_string(here.join("d")).unwrap(), "new");
        assert_eq!(fs::read_dir(here).unwrap().count(), 1);
        assert_eq!(records(state.path()), 0);
    }

    #[test]
    fn crashed_copy_is_removed() {
        let (state, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let names = open_names(state.path()).unwrap();
        let here = data.path();
        fs::write(here.join("kept"), "1").unwrap();
        let staged = || StagedTree::reserve(&names, Dir::open(here).unwrap()).unwrap();
        let built = staged();
        fs::create_dir_all(here.join(built.name()).join("a/b")).unwrap();
        // As a crash does, this runs no destructor.
        std::mem::forget((built, staged()));
        open_names(state.path()).unwrap();
        assert_eq!(fs::read_dir(here).unwrap().count(), 1);
        assert_eq!(records(state.path()), 0);
    }

    #[test]
    fn crash_between_renames_loses_nothing() {
        let (state, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let names = open_names(state.path()).unwrap();
        let here = data.path();
        let dir = Dir::open(here).unwrap();
        for is_replaced in [false, true] {
            fs::create_dir_all(here.join("d/old")).unwrap();
            let aside = names.reserve_for(&dir, OsStr::new("d")).unwrap();
            fs::rename(here.join("d"), here.join(aside.name())).unwrap();
            if is_replaced {
                fs::create_dir_all(here.join("d/new")).unwrap();
            }
            std::mem::forget(aside);
            open_names(state.path()).unwrap();
            assert_eq!(here.join("d/old").exists(), !is_replaced);
            assert_eq!(fs::read_dir(here).unwrap().count(), 1);
            assert_eq!(records(state.path()), 0);
        }
    }
}
