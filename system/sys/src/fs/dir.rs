//! A directory as the root of all look-ups.
//!
//! For: operations on paths from the peer. Every path is resolved with `openat2` and `RESOLVE_BENEATH`, so that neither
//! `..` nor an absolute path nor a symbolic link leads outside, not even a link created during the look-up.
//! Intermediate links that stay beneath are followed; the last component only by methods that say so.
//!
//! Mounts beneath are included. A directory that is moved elsewhere stays reachable through an open [`Dir`].
//!
//! Not for: a cache of directories (each call looks its path up anew; hold a [`Dir`] for the parent where that costs).
//!
//! Fails with `InvalidInput` for an invalid path, `PermissionDenied` for one that leads outside, `Unsupported` on a kernel
//! without `openat2` (before 5.6, or blocked by seccomp), else with the error of the system call.
//!
//! A path longer than PATH_MAX is resolved in pieces, each beneath the one before. A link that leads out of its piece is
//! then refused, although it would stay beneath this directory.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid};
use rustix::io::Errno;

use super::entries::Entries;
use super::open::Open;
use super::path::Relative;
use super::stat::{Kind, Stat, Timestamp, stat_fd, stat_name};

const CONFINED: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);
const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Attempts of a look-up that races with renames.
const LOOKUP_ATTEMPTS_MAX: usize = 100;

/// An open directory; all paths given to it are relative to it and stay beneath it. `""` and `"."` name itself.
#[derive(Debug)]
pub struct Dir {
    fd: OwnedFd,
}

impl Dir {
    /// Opens the directory at `path`. The operator chose this path, so links in it are followed without restriction.
    /// Needs search permission, not read permission.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        let fd = rustix::fs::open(path.as_ref(), DIRECTORY, Mode::empty())?;
        match rustix::fs::openat2(&fd, c".", DIRECTORY, Mode::empty(), CONFINED) {
            // A seccomp filter older than openat2 answers EPERM.
            Err(Errno::NOSYS | Errno::PERM) => Err(no_openat2()),
            _ => Ok(Self { fd }),
        }
    }

    /// Another handle to the same directory.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { fd: self.fd.try_clone()? })
    }

    /// Opens the directory `path`, following links that stay beneath.
    pub fn open_dir(&self, path: impl AsRef<Path>) -> io::Result<Self> {
        let fd = self.look_up(&Relative::new(path.as_ref())?, DIRECTORY, 0)?;
        Ok(Self { fd })
    }

    /// Opens the directory `path`, none of whose components may be a symbolic link.
    pub fn open_dir_nofollow(&self, path: impl AsRef<Path>) -> io::Result<Self> {
        let mut dir = self.try_clone()?;
        for name in path.as_ref() {
            let fd =
                dir.look_up(&Relative::new(Path::new(name))?, DIRECTORY | OFlags::NOFOLLOW, 0)?;
            dir = Self { fd };
        }
        Ok(dir)
    }

    /// Opens the parent directory of `path` and returns it with the last component; `path` need not exist.
    pub fn parent(&self, path: impl AsRef<Path>) -> io::Result<(Self, OsString)> {
        let relative = Relative::new(path.as_ref())?;
        let (parent, name) = split(&relative)?;
        let fd = self.look_up(&parent, DIRECTORY, 0)?;
        Ok((Self { fd }, name.to_owned()))
    }

    /// Opens the file `path`. Only regular files, and only without following a link in the last component, unless
    /// `how` allows them.
    pub fn open_file(&self, path: impl AsRef<Path>, how: &Open) -> io::Result<File> {
        let relative = Relative::new(path.as_ref())?;
        let flags = how.flags();
        let mode = if flags.contains(OFlags::CREATE) { how.mode } else { 0 };
        if how.special {
            let file = File::from(self.look_up(&relative, flags, mode)?);
            if how.direct {
                super::set_direct(&file, true)?;
            }
            return Ok(file);
        }
        // Without O_NONBLOCK, a fifo in place of a file would block the caller forever.
        let file = match self.look_up(&relative, flags | OFlags::NONBLOCK, mode) {
            // A regular file with a lease of another process: waits for its release.
            Err(error)
                if is(&error, Errno::AGAIN) && self.leads_to_file(&relative, how.follow)? =>
            {
                self.look_up(&relative, flags, mode)?
            }
            // A socket, or a fifo without a reader.
            Err(error) if is(&error, Errno::NXIO) => {
                return Err(not_regular("fifo, socket or device"));
            }
            other => other?,
        };
        if how.brief {
            let file = File::from(file);
            if how.direct {
                super::set_direct(&file, true)?;
            }
            return Ok(file);
        }
        match stat_fd(file.as_fd())?.kind {
            Kind::File => {}
            Kind::Directory => return Err(Errno::ISDIR.into()),
            Kind::Symlink => return Err(Errno::LOOP.into()),
            Kind::Other(kind) => return Err(not_regular(kind)),
        }
        // Clears O_NONBLOCK: with it, io_uring on older kernels always returns EAGAIN.
        let file = File::from(file);
        super::set_direct(&file, how.direct)?;
        Ok(file)
    }

    /// A descriptor that names `path`, or a symbolic link itself, and opens nothing.
    pub(super) fn handle(&self, path: &Path) -> io::Result<OwnedFd> {
        let relative = Relative::new(path)?;
        self.look_up(&relative, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, 0)
    }

    fn leads_to_file(&self, relative: &Relative, follow: bool) -> io::Result<bool> {
        let mut flags = OFlags::PATH | OFlags::CLOEXEC;
        flags.set(OFlags::NOFOLLOW, !follow);
        let fd = self.look_up(relative, flags, 0)?;
        Ok(stat_fd(fd.as_fd())?.kind == Kind::File)
    }

    /// Reads the metadata of `path`, without following a symbolic link.
    pub fn stat(&self, path: impl AsRef<Path>) -> io::Result<Stat> {
        let relative = Relative::new(path.as_ref())?;
        let (directory, name) = self.at(&relative)?;
        stat_name(directory.as_fd(), name)
    }

    /// Reads the metadata of `path`, following links that stay beneath.
    pub fn stat_follow(&self, path: impl AsRef<Path>) -> io::Result<Stat> {
        let relative = Relative::new(path.as_ref())?;
        let fd = self.look_up(&relative, OFlags::PATH | OFlags::CLOEXEC, 0)?;
        stat_fd(fd.as_fd())
    }

    /// Creates the directory `path` with `mode` less the umask; its parent must exist.
    pub fn create_dir(&self, path: impl AsRef<Path>, mode: u32) -> io::Result<()> {
        let relative = Relative::new(path.as_ref())?;
        let (directory, name) = self.in_parent(&relative)?;
        Ok(rustix::fs::mkdirat(directory, name, permissions(mode))?)
    }

    /// Creates the directory `path` and those above it that are missing, with `mode` less the umask. Fails with
    /// `ENOTDIR` where something else has one of the names. Others may do the same at the same time.
    pub fn create_dir_all(&self, path: impl AsRef<Path>, mode: u32) -> io::Result<()> {
        let whole = Relative::new(path.as_ref())?;
        // Up to the deepest directory there is, then down again.
        let mut missing: Vec<OsString> = Vec::new();
        let mut above = whole;
        let mut reached = loop {
            match self.look_up(&above, DIRECTORY, 0) {
                Err(error) if is(&error, Errno::NOENT) => match above.split_last() {
                    Some((parent, name)) => {
                        missing.push(name.to_owned());
                        above = parent;
                    }
                    None => return Err(error),
                },
                other => break Self { fd: other? },
            }
        };
        for name in missing.iter().rev() {
            match rustix::fs::mkdirat(&reached.fd, name, permissions(mode)) {
                Ok(()) | Err(Errno::EXIST) => reached = reached.open_dir(name)?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Removes the name `path` of anything but a directory; a symbolic link itself.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let relative = Relative::new(path.as_ref())?;
        let (directory, name) = self.in_parent(&relative)?;
        Ok(rustix::fs::unlinkat(directory, name, AtFlags::empty())?)
    }

    /// Removes the empty directory `path`.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let relative = Relative::new(path.as_ref())?;
        let (directory, name) = self.in_parent(&relative)?;
        Ok(rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR)?)
    }

    /// Renames `from` to `to` atomically, replacing an existing name.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
        let (from, to) = (Relative::new(from.as_ref())?, Relative::new(to.as_ref())?);
        let ((from_dir, from_name), (to_dir, to_name)) =
            (self.in_parent(&from)?, self.in_parent(&to)?);
        Ok(rustix::fs::renameat(from_dir, from_name, to_dir, to_name)?)
    }

    /// Makes `path` a symbolic link to `target`, which may be anything and lead anywhere: following it is confined.
    pub fn symlink(&self, target: impl AsRef<Path>, path: impl AsRef<Path>) -> io::Result<()> {
        let relative = Relative::new(path.as_ref())?;
        let (directory, name) = self.in_parent(&relative)?;
        Ok(rustix::fs::symlinkat(target.as_ref(), directory, name)?)
    }

    /// Reads the target of the symbolic link `path`.
    pub fn read_link(&self, path: impl AsRef<Path>) -> io::Result<PathBuf> {
        let relative = Relative::new(path.as_ref())?;
        let (directory, name) = self.in_parent(&relative)?;
        let target = rustix::fs::readlinkat(directory, name, Vec::new())?;
        Ok(OsString::from_vec(target.into_bytes()).into())
    }

    /// Sets the modification time of `path`, without following a symbolic link.
    pub fn set_times(&self, path: impl AsRef<Path>, mtime: Timestamp) -> io::Result<()> {
        let relative = Relative::new(path.as_ref())?;
        let (directory, name) = self.at(&relative)?;
        Ok(rustix::fs::utimensat(directory, name, &times(mtime), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Sets the permission bits (`0o7777`) of `path`. A symbolic link has none: `InvalidInput`. Needs `/proc`.
    pub fn set_mode(&self, path: impl AsRef<Path>, mode: u32) -> io::Result<()> {
        let fd = self.handle(path.as_ref())?;
        if stat_fd(fd.as_fd())?.kind == Kind::Symlink {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a symbolic link has no permissions of its own",
            ));
        }
        // fchmod refuses an O_PATH descriptor, fchmodat follows links and fchmodat2 came with Linux 6.6.
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        Ok(rustix::fs::chmod(path, permissions(mode))?)
    }

    /// Sets owner and group, where given, of `path`, without following a symbolic link.
    pub fn set_owner(
        &self,
        path: impl AsRef<Path>,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> io::Result<()> {
        let relative = Relative::new(path.as_ref())?;
        let (directory, name) = self.at(&relative)?;
        let (uid, gid) = owner(uid, gid)?;
        Ok(rustix::fs::chownat(directory, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Lists names and kinds in this directory, without `.` and `..`.
    pub fn entries(&self) -> io::Result<Entries> {
        Ok(Entries(rustix::fs::Dir::new(self.readable()?)?))
    }

    /// Makes the entries of this directory durable (fsync): creations, renames and removals, not file contents.
    pub fn sync_all(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(self.readable()?)?)
    }

    /// Makes all data of this directory's file system durable (syncfs).
    pub fn sync_filesystem(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(self.readable()?)?)
    }

    /// Returns the current absolute path of this directory. Needs `/proc`.
    pub fn real_path(&self) -> io::Result<PathBuf> {
        let link = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        Ok(OsString::from_vec(rustix::fs::readlink(link, Vec::new())?.into_bytes()).into())
    }

    /// Reads the metadata of this directory itself.
    pub fn stat_self(&self) -> io::Result<Stat> {
        stat_fd(self.fd.as_fd())
    }

    /// Device number of this directory's file system ([`Stat::device`]).
    pub fn device(&self) -> io::Result<u64> {
        Ok(stat_fd(self.fd.as_fd())?.device)
    }

    /// Opens the directory for reading: its own descriptor is `O_PATH`.
    fn readable(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.fd, c".", flags, Mode::empty())?)
    }

    /// Splits `relative`, which may be this directory itself, into an open directory and one component in it.
    fn at<'a>(&'a self, relative: &'a Relative) -> io::Result<(DirHandle<'a>, &'a OsStr)> {
        match relative.split_last() {
            None => Ok((DirHandle::Here(self.fd.as_fd()), OsStr::new("."))),
            Some((parent, name)) if parent.is_empty() => {
                Ok((DirHandle::Here(self.fd.as_fd()), name))
            }
            Some((parent, name)) => {
                Ok((DirHandle::There(self.look_up(&parent, DIRECTORY, 0)?), name))
            }
        }
    }

    /// As [`Self::at`], but refuses this directory itself, which no operation may create or remove.
    pub(super) fn in_parent<'a>(
        &'a self,
        relative: &'a Relative,
    ) -> io::Result<(DirHandle<'a>, &'a OsStr)> {
        split(relative)?;
        self.at(relative)
    }

    fn look_up(&self, relative: &Relative, flags: OFlags, mode: u32) -> io::Result<OwnedFd> {
        let (leading, last) = relative.pieces();
        let mut reached: Option<OwnedFd> = None;
        for piece in leading {
            let from = reached.as_ref().unwrap_or(&self.fd);
            reached = Some(open_beneath(from.as_fd(), piece, DIRECTORY, 0)?);
        }
        let from = reached.as_ref().unwrap_or(&self.fd);
        open_beneath(from.as_fd(), last, flags, mode)
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A borrowed or an owned directory descriptor.
pub(super) enum DirHandle<'a> {
    Here(BorrowedFd<'a>),
    There(OwnedFd),
}

impl AsFd for DirHandle<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Here(fd) => *fd,
            Self::There(fd) => fd.as_fd(),
        }
    }
}

fn split(relative: &Relative) -> io::Result<(Relative, &OsStr)> {
    relative.split_last().ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            "the path names the directory itself, where one in it is needed",
        )
    })
}

fn open_beneath(
    from: BorrowedFd<'_>,
    piece: &OsStr,
    flags: OFlags,
    mode: u32,
) -> io::Result<OwnedFd> {
    for _ in 0..LOOKUP_ATTEMPTS_MAX {
        match rustix::fs::openat2(from, piece, flags, permissions(mode), CONFINED) {
            Ok(fd) => return Ok(fd),
            Err(Errno::INTR) => {}
            // openat2(2): the kernel could not be sure that ".." in a link stayed beneath; the same call may succeed.
            // With O_NONBLOCK it may also be a lease, which the caller distinguishes.
            Err(Errno::AGAIN) => {}
            Err(Errno::XDEV) => {
                return Err(io::Error::new(
                    io::ErrorKind::PermissionDenied,
                    "the path leaves the directory it is confined to",
                ));
            }
            Err(Errno::NOSYS) => return Err(no_openat2()),
            Err(error) => return Err(error.into()),
        }
    }
    Err(Errno::AGAIN.into())
}

fn no_openat2() -> io::Error {
    io::Error::new(
        io::ErrorKind::Unsupported,
        "the openat2 system call is not available, without which no path can be confined: \
         it needs Linux 5.6 or newer and a container runtime whose seccomp filter allows it",
    )
}

fn not_regular(kind: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("not a regular file: {kind}"))
}

fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

pub(super) fn permissions(mode: u32) -> Mode {
    Mode::from_raw_mode(mode & 0o7777)
}

/// Converts owner and group; refuses the highest number, which the kernel takes as "unchanged".
pub(super) fn owner(uid: Option<u32>, gid: Option<u32>) -> io::Result<(Option<Uid>, Option<Gid>)> {
    if uid == Some(u32::MAX) || gid == Some(u32::MAX) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "4294967295 is no user or group"));
    }
    Ok((uid.map(Uid::from_raw), gid.map(Gid::from_raw)))
}

/// Encodes a modification time, with the access time unchanged.
pub(super) fn times(mtime: Timestamp) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        last_modification: Timespec { tv_sec: mtime.seconds, tv_nsec: mtime.nanos.into() },
    }
}

#[cfg(test)]
mod tests;
