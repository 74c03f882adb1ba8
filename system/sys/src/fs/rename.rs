//! Renames that never replace anything, and exchanges of two names.
//!
//! File systems without flags of renameat2 (NFS, most of FUSE) take several steps for the first, and refuse the second.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, RenameFlags};
use rustix::io::Errno;

use super::dir::Dir;
use super::path::Relative;

/// A name in an open directory.
type Place<'a> = (BorrowedFd<'a>, &'a OsStr);

impl Dir {
    /// Renames `from` to `to` in another directory, on the same file system. Without `replace` it fails with
    /// `AlreadyExists` where anything has that name.
    ///
    /// Where the file system lacks RENAME_NOREPLACE, a file is linked and unlinked, so that an interruption can leave both
    /// names, and a directory replaces an empty one made for it. Without hard links a look-up precedes the rename: there only a
    /// lock that all writers take keeps them from replacing each other's files.
    pub fn rename_into(
        &self,
        from: impl AsRef<Path>,
        there: &Self,
        to: impl AsRef<Path>,
        replace: bool,
    ) -> io::Result<()> {
        let (from, to) = (Relative::new(from.as_ref())?, Relative::new(to.as_ref())?);
        let ((from_dir, from_name), (to_dir, to_name)) =
            (self.in_parent(&from)?, there.in_parent(&to)?);
        if replace {
            return Ok(rustix::fs::renameat(from_dir, from_name, to_dir, to_name)?);
        }
        Ok(rename_new((from_dir.as_fd(), from_name), (to_dir.as_fd(), to_name))?)
    }

    /// Renames `from` to `to` as [`Self::rename_into`] does without `replace`.
    pub fn rename_noreplace(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
        self.rename_into(from, self, to, false)
    }

    /// Exchanges the names `from` and `to`, of anything, in one step (RENAME_EXCHANGE); `to` is in the directory `there` on the
    /// same file system. Fails with `InvalidInput` or `Unsupported` where the file system cannot.
    pub fn exchange(
        &self,
        from: impl AsRef<Path>,
        there: &Self,
        to: impl AsRef<Path>,
    ) -> io::Result<()> {
        let (from, to) = (Relative::new(from.as_ref())?, Relative::new(to.as_ref())?);
        let ((from_dir, from_name), (to_dir, to_name)) =
            (self.in_parent(&from)?, there.in_parent(&to)?);
        let flags = RenameFlags::EXCHANGE;
        Ok(rustix::fs::renameat_with(from_dir, from_name, to_dir, to_name, flags)?)
    }
}

fn rename_new(from: Place<'_>, to: Place<'_>) -> rustix::io::Result<()> {
    match rustix::fs::renameat_with(from.0, from.1, to.0, to.1, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => rename_in_steps(from, to),
        other => other,
    }
}

/// Renames without flags.
fn rename_in_steps(from: Place<'_>, to: Place<'_>) -> rustix::io::Result<()> {
    let stat = rustix::fs::statat(from.0, from.1, AtFlags::SYMLINK_NOFOLLOW)?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
        // The empty directory takes the name; rename(2) replaces no other one.
        rustix::fs::mkdirat(to.0, to.1, Mode::RWXU)?;
        return rustix::fs::renameat(from.0, from.1, to.0, to.1).map_err(|error| {
            let _ = rustix::fs::unlinkat(to.0, to.1, AtFlags::REMOVEDIR);
            if error == Errno::NOTEMPTY { Errno::EXIST } else { error }
        });
    }
    match rustix::fs::linkat(from.0, from.1, to.0, to.1, AtFlags::empty()) {
        Ok(()) => rustix::fs::unlinkat(from.0, from.1, AtFlags::empty()).inspect_err(|_| {
            let _ = rustix::fs::unlinkat(to.0, to.1, AtFlags::empty());
        }),
        Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS | Errno::MLINK) => {
            rename_unlinked(from, to)
        }
        Err(error) => Err(error),
    }
}

/// Renames a file that cannot have a second name.
fn rename_unlinked(from: Place<'_>, to: Place<'_>) -> rustix::io::Result<()> {
    match rustix::fs::statat(to.0, to.1, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => rustix::fs::renameat(from.0, from.1, to.0, to.1),
        Err(error) => Err(error),
        Ok(_) => Err(Errno::EXIST),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Ways to rename, of which a file system offers one.
    const WAYS: [fn(Place<'_>, Place<'_>) -> rustix::io::Result<()>; 3] =
        [rename_new, rename_in_steps, rename_unlinked];

    #[test]
    fn every_way_keeps_existing_names() {
        for (way, rename) in WAYS.iter().enumerate() {
            let directory = tempfile::tempdir().unwrap();
            let here = directory.path();
            fs::create_dir(here.join("d")).unwrap();
            fs::write(here.join("d/in"), "in").unwrap();
            fs::create_dir(here.join("empty")).unwrap();
            fs::write(here.join("f"), "f").unwrap();
            fs::write(here.join("g"), "g").unwrap();
            std::os::unix::fs::symlink("missing", here.join("link")).unwrap();
            let dir = Dir::open(here).unwrap();
            let run = |from: &str, to: &str| {
                rename((dir.as_fd(), OsStr::new(from)), (dir.as_fd(), OsStr::new(to)))
            };
            for from in ["f", "d", "link"] {
                for to in ["g", "empty", "link", "d"] {
                    if from != to {
                        assert_eq!(run(from, to), Err(Errno::EXIST), "{way}: {from} to {to}");
                    }
                }
                assert_eq!(run(from, "none/x"), Err(Errno::NOENT), "{way}");
                run(from, "new").unwrap();
                assert!(here.join(from).symlink_metadata().is_err(), "{way}: {from}");
                run("new", from).unwrap();
            }
            assert_eq!(fs::read_to_string(here.join("d/in")).unwrap(), "in");
            assert_eq!(fs::read_to_string(here.join("g")).unwrap(), "g");
            assert_eq!(fs::read_dir(here).unwrap().count(), 5);
            assert_eq!(run("none", "new"), Err(Errno::NOENT));
            assert!(!here.join("new").exists());
        }
    }

    #[test]
    fn directory_does_not_move_into_itself() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("d")).unwrap();
        let dir = Dir::open(directory.path()).unwrap();
        assert!(dir.rename_noreplace("d", "d/e").is_err());
        assert_eq!(fs::read_dir(directory.path().join("d")).unwrap().count(), 0);
    }
}
