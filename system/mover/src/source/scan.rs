//! Scanner of the sources: produces the manifest, one entry at a time.
//!
//! Local directories only, confined beneath the directory of each source. Memory does not grow with the
//! number of files: a directory is read as it is walked. Entries that cannot be copied are reported,
//! and the walk continues. Temporary files of transfers are left out, unless one is itself the source.

use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use penstock_protocol::control::{Failure, FailureKind};
use penstock_protocol::manifest::{ENTRY_BYTES_MAX, Entry, EntryKind, RelativePath};
use penstock_protocol::wire::{self, Bytes};
use penstock_sys::fs::{self, Dir, Entries, Open, Stat};

use crate::base::convert::time;
use crate::base::temporary_name::is_temporary_name;

/// Source of a copy: `path` below `dir`. It arrives under `path`; an empty path means the contents of
/// `dir`.
#[derive(Debug, Clone)]
pub struct ScanRoot {
    /// Directory that confines the source.
    pub dir: Arc<Dir>,
    /// Path of the source below `dir`.
    pub path: PathBuf,
}

/// Missing source, beside existing ones.
#[derive(Debug, Clone)]
pub struct Missing {
    /// Printable path as the user gave it.
    pub path: String,
    /// Reason with its remedy.
    pub why: String,
}

/// Item of a walk.
#[derive(Debug)]
pub enum ScanItem {
    /// Entry and its device (`st_dev`).
    Entry(u64, Entry),
    /// Path that cannot be copied, and why.
    Failed(PathBuf, Failure),
    /// Path of a transfer's temporary file or tree, which is left out.
    LeftOut(PathBuf),
}

/// Options of a walk.
#[derive(Debug, Clone, Copy)]
pub struct TreeWalk {
    /// Descend into directories below.
    pub recursive: bool,
    /// Read extended attributes of every entry.
    pub xattrs: bool,
}

impl TreeWalk {
    /// Passes everything under `source` to `found` until that returns false.
    pub fn run(self, source: &ScanRoot, mut found: impl FnMut(ScanItem) -> bool) {
        let mut levels: Vec<(PathBuf, Dir, Entries)> = Vec::new();
        if !self.visit(&source.dir, &source.path, &source.path, &mut levels, &mut found) {
            return;
        }
        while let Some((path, dir, entries)) = levels.last_mut() {
            let child = match entries.next() {
                None => {
                    levels.pop();
                    continue;
                }
                Some(Err(error)) => {
                    let go_on = found(failed(path, &error));
                    levels.pop();
                    if go_on { continue } else { return }
                }
                Some(Ok((name, _))) => name,
            };
            let (path, name) = (path.join(&child), PathBuf::from(child));
            if is_temporary_name(name.as_os_str().as_bytes()) {
                if found(ScanItem::LeftOut(path)) { continue } else { return }
            }
            let mut deeper = Vec::new();
            if !self.visit(dir, &name, &path, &mut deeper, &mut found) {
                return;
            }
            levels.append(&mut deeper);
        }
    }

    /// Announces `name` in `dir` as `path` and enters it if it is a directory.
    fn visit(
        self,
        dir: &Dir,
        name: &Path,
        path: &Path,
        levels: &mut Vec<(PathBuf, Dir, Entries)>,
        found: &mut impl FnMut(ScanItem) -> bool,
    ) -> bool {
        if name.as_os_str().is_empty() {
            if !self.recursive {
                // Its files would arrive under the one name of the destination.
                return found(needs_recursion(path));
            }
            return match dir.try_clone().and_then(|dir| Ok((dir.entries()?, dir))) {
                Ok((entries, dir)) => {
                    levels.push((PathBuf::new(), dir, entries));
                    true
                }
                Err(error) => found(failed(path, &error)),
            };
        }
        let stat = match dir.stat(name) {
            Ok(stat) => stat,
            Err(error) => return found(failed(path, &error)),
        };
        if stat.kind == fs::Kind::Directory && !self.recursive {
            return found(needs_recursion(path));
        }
        match entry(dir, name, path, &stat, self.xattrs) {
            Ok(entry) => {
                if !found(ScanItem::Entry(stat.device, entry)) {
                    return false;
                }
            }
            Err(failure) => return found(ScanItem::Failed(path.to_owned(), failure)),
        }
        if stat.kind != fs::Kind::Directory {
            return true;
        }
        match dir.open_dir(name).and_then(|inner| Ok((inner.entries()?, inner))) {
            Ok((entries, inner)) => {
                levels.push((path.to_owned(), inner, entries));
                true
            }
            Err(error) => found(failed(path, &error)),
        }
    }
}

fn needs_recursion(path: &Path) -> ScanItem {
    let text = "it is a directory: add -r to copy it with all it holds";
    ScanItem::Failed(path.to_owned(), Failure::new(FailureKind::Source, text))
}

/// True for a file of size 0 that has content, as files of procfs have. One that cannot be read is empty.
fn has_unsized_content(dir: &Dir, name: &Path) -> bool {
    let file = dir.open_file(name, &Open::reading());
    file.is_ok_and(|mut file| file.read(&mut [0]).is_ok_and(|bytes| bytes > 0))
}

/// Builds the manifest entry of `name` in `dir`.
///
/// # Errors
/// If its type cannot be copied or it cannot be inspected.
pub(crate) fn entry(
    dir: &Dir,
    name: &Path,
    path: &Path,
    stat: &Stat,
    xattrs: bool,
) -> Result<Entry, Failure> {
    let source = |text: String| Failure::new(FailureKind::Source, text);
    let kind = match stat.kind {
        fs::Kind::File => EntryKind::File,
        fs::Kind::Directory => EntryKind::Directory,
        fs::Kind::Symlink => EntryKind::Symlink,
        fs::Kind::Other(what) => {
            return Err(source(format!("it is a {what}, which is not copied: leave it out")));
        }
    };
    let link = match kind {
        EntryKind::Symlink => {
            let target = dir.read_link(name).map_err(|error| source(fs::describe(&error)))?;
            target.into_os_string().into_vec()
        }
        _ => Vec::new(),
    };
    let xattrs = if xattrs {
        read_xattrs(dir, name, kind).map_err(|error| {
            source(format!("cannot read its extended attributes: {}", fs::describe(&error)))
        })?
    } else {
        Vec::new()
    };
    let bytes = if kind == EntryKind::File { stat.size } else { 0 };
    if kind == EntryKind::File && bytes == 0 && has_unsized_content(dir, name) {
        let text = "its size is 0 but it has content, as files of /proc do: copy it with cat";
        return Err(source(text.to_owned()));
    }
    let entry = Entry {
        path: RelativePath::new(path.as_os_str().as_bytes().to_vec())
            .map_err(|error| source(error.to_string()))?,
        kind,
        bytes,
        modified: time(stat.mtime),
        changed: time(stat.ctime),
        inode: stat.inode,
        mode: stat.mode,
        uid: stat.uid,
        gid: stat.gid,
        sparse: stat.allocated_bytes < bytes,
        link: Bytes(link),
        xattrs,
    };
    if wire::encode(&entry).len() > ENTRY_BYTES_MAX {
        let text = "its extended attributes are too long to be sent: copy it without --xattrs";
        return Err(source(text.to_owned()));
    }
    Ok(entry)
}

fn read_xattrs(dir: &Dir, name: &Path, kind: EntryKind) -> io::Result<Vec<(Bytes, Bytes)>> {
    if kind != EntryKind::File {
        let all = dir.xattrs(name)?.into_iter();
        return Ok(all.map(|(name, value)| (Bytes(name.into_vec()), Bytes(value))).collect());
    }
    let file = dir.open_file(name, &Open::reading())?;
    let mut xattrs = Vec::new();
    for name in fs::list_xattrs(&file)? {
        if let Some(value) = fs::get_xattr(&file, &name)? {
            xattrs.push((Bytes(name.into_vec()), Bytes(value)));
        }
    }
    Ok(xattrs)
}

fn failed(path: &Path, error: &io::Error) -> ScanItem {
    ScanItem::Failed(path.to_owned(), Failure::new(FailureKind::Source, fs::describe(error)))
}
