//! Options of [`super::Dir::open_file`], with safe defaults.

use rustix::fs::OFlags;

/// Options of [`super::Dir::open_file`]. Start from [`Open::reading`], [`Open::writing`] or [`Open::creating`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Open {
    /// Open for reading (O_RDONLY or O_RDWR).
    pub read: bool,
    /// Open for writing (O_WRONLY or O_RDWR).
    pub write: bool,
    /// Create a missing file.
    pub create: bool,
    /// Create the file, and fail with `AlreadyExists` where the name exists, even as a dangling link.
    pub create_new: bool,
    /// Truncate it to length 0.
    pub truncate: bool,
    /// Bypass the page cache (`O_DIRECT`); fails with `Unsupported` where the file system has none.
    pub direct: bool,
    /// Follow a symbolic link in the last component as far as it stays beneath; else that fails with `ELOOP`.
    pub follow: bool,
    /// Allow what is not a regular file. Opening a fifo may then wait for its other end.
    pub special: bool,
    /// Skip the check for a regular file, to save three calls for each of many small files. The caller checks by
    /// [`super::stat_file`] or [`Open::create_new`], and must not pass the file to a ring: it stays nonblocking.
    pub brief: bool,
    /// Permission bits of a file created, before the umask.
    pub mode: u32,
}

impl Open {
    /// Opens an existing file for reading.
    pub fn reading() -> Self {
        Self { read: true, ..Self::default() }
    }

    /// Opens an existing file for writing.
    pub fn writing() -> Self {
        Self { write: true, ..Self::default() }
    }

    /// Opens for writing; creates a missing file with `mode`.
    pub fn creating(mode: u32) -> Self {
        Self { write: true, create: true, mode, ..Self::default() }
    }

    pub(super) fn flags(self) -> OFlags {
        let mut flags = OFlags::CLOEXEC | OFlags::NOCTTY;
        flags |= match (self.read, self.write) {
            (true, true) => OFlags::RDWR,
            (false, true) => OFlags::WRONLY,
            _ => OFlags::RDONLY,
        };
        flags.set(OFlags::CREATE, self.create || self.create_new);
        flags.set(OFlags::EXCL, self.create_new);
        flags.set(OFlags::TRUNC, self.truncate);
        flags.set(OFlags::NOFOLLOW, !self.follow);
        flags
    }
}
