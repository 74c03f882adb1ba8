//! How a file is to be opened.
//!
//! For: saying it in named fields, with the careful choice as the default. Not for: opening.
//!
//! Cannot fail.

use rustix::fs::OFlags;

/// How [`super::Dir::open_file`] opens a file. Start from [`Open::reading`], [`Open::writing`] or [`Open::creating`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Open {
    /// For reading.
    pub read: bool,
    /// For writing.
    pub write: bool,
    /// Create it where it is missing.
    pub create: bool,
    /// Create it, and fail with `AlreadyExists` where anything has the name, be it a dangling link.
    pub create_new: bool,
    /// Cut it to length 0.
    pub truncate: bool,
    /// Past the page cache, with `O_DIRECT`; fails with `Unsupported` where the file system has none.
    pub direct: bool,
    /// Follow a symbolic link in the last component as far as it stays beneath; else that fails with `ELOOP`.
    pub follow: bool,
    /// Allow what is not a regular file. Opening a fifo may then wait for its other end.
    pub special: bool,
    /// For one small file among thousands: saves the look at what was opened, and two more calls. The caller makes
    /// sure by [`super::stat_file`] or [`Open::create_new`] that it is a regular file, and gives it to no ring: it stays
    /// nonblocking.
    pub brief: bool,
    /// Permission bits of a file created, before the umask.
    pub mode: u32,
}

impl Open {
    /// For reading.
    pub fn reading() -> Self {
        Self { read: true, ..Self::default() }
    }

    /// For writing what exists.
    pub fn writing() -> Self {
        Self { write: true, ..Self::default() }
    }

    /// For writing; created with `mode` where missing.
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
