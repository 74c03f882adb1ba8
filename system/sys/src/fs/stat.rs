//! File metadata: kind, size, permissions, owner, times (statx).
//!
//! Without access times, which reading changes.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, FileType, Statx, StatxFlags, StatxTimestamp};

/// Type of a file (S_IFMT).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// Anything else, by name: `fifo`, `socket`, `character device`, `block device`, `unknown`.
    Other(&'static str),
}

impl From<FileType> for Kind {
    fn from(file_type: FileType) -> Self {
        match file_type {
            FileType::RegularFile => Self::File,
            FileType::Directory => Self::Directory,
            FileType::Symlink => Self::Symlink,
            FileType::Fifo => Self::Other("fifo"),
            FileType::Socket => Self::Other("socket"),
            FileType::CharacterDevice => Self::Other("character device"),
            FileType::BlockDevice => Self::Other("block device"),
            FileType::Unknown => Self::Other("unknown"),
        }
    }
}

/// A point in time as file systems keep it: seconds since 1970 UTC, negative before, and nanoseconds after that second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp {
    /// Whole seconds since 1970-01-01T00:00:00Z, rounded down.
    pub seconds: i64,
    /// Nanoseconds into that second, below 1,000,000,000.
    pub nanos: u32,
}

impl From<StatxTimestamp> for Timestamp {
    fn from(time: StatxTimestamp) -> Self {
        Self { seconds: time.tv_sec, nanos: time.tv_nsec }
    }
}

/// Metadata of one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// File type, from `st_mode`.
    pub kind: Kind,
    /// Logical size in bytes, holes included.
    pub size: u64,
    /// Allocated bytes; less than `size` for a sparse or compressed file.
    pub allocated_bytes: u64,
    /// Permission bits with set-user-id, set-group-id and sticky: `0o7777`.
    pub mode: u32,
    /// User id of the owner.
    pub uid: u32,
    /// Group id of the owner.
    pub gid: u32,
    /// Modification time of the content.
    pub mtime: Timestamp,
    /// Change time of content or metadata; only the kernel sets it.
    pub ctime: Timestamp,
    /// Device number of the file system.
    pub device: u64,
    /// Inode number, unique in the file system.
    pub inode: u64,
    /// Number of hard links.
    pub links: u64,
    /// Mount id (STATX_MNT_ID); 0 before Linux 5.8.
    pub mount: u64,
}

const STATX_MASK: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::MNT_ID);

impl From<Statx> for Stat {
    fn from(stat: Statx) -> Self {
        Self {
            kind: FileType::from_raw_mode(stat.stx_mode.into()).into(),
            size: stat.stx_size,
            allocated_bytes: stat.stx_blocks.saturating_mul(512),
            mode: u32::from(stat.stx_mode) & 0o7777,
            uid: stat.stx_uid,
            gid: stat.stx_gid,
            mtime: stat.stx_mtime.into(),
            ctime: stat.stx_ctime.into(),
            device: rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor),
            inode: stat.stx_ino,
            links: stat.stx_nlink.into(),
            mount: if stat.stx_mask & StatxFlags::MNT_ID.bits() != 0 { stat.stx_mnt_id } else { 0 },
        }
    }
}

/// Reads the metadata of an open file.
pub fn stat_file(file: &File) -> io::Result<Stat> {
    stat_fd(file.as_fd())
}

/// Reads the metadata of `fd`, which may be `O_PATH`.
pub(super) fn stat_fd(fd: BorrowedFd<'_>) -> io::Result<Stat> {
    let stat = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, STATX_MASK)?;
    Ok(stat.into())
}

/// Reads the metadata of `name`, one component, in `directory`, without following a symbolic link.
pub(super) fn stat_name(directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<Stat> {
    let stat = rustix::fs::statx(
        directory,
        name,
        AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT,
        STATX_MASK,
    )?;
    Ok(stat.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn agrees_with_the_standard_library() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[1; 5000]).unwrap();
        let stat = stat_file(&file).unwrap();
        let metadata = file.metadata().unwrap();
        assert_eq!(stat.kind, Kind::File);
        assert_eq!(stat.size, 5000);
        assert_eq!(stat.allocated_bytes, metadata.blocks() * 512);
        assert_eq!(stat.mode, metadata.mode() & 0o7777);
        assert_eq!((stat.uid, stat.gid), (metadata.uid(), metadata.gid()));
        assert_eq!(stat.mtime.seconds, metadata.mtime());
        assert_eq!(i64::from(stat.mtime.nanos), metadata.mtime_nsec());
        assert_eq!(stat.ctime.seconds, metadata.ctime());
        assert_eq!(stat.device, metadata.dev());
        assert_eq!(stat.inode, metadata.ino());
        assert_eq!(stat.links, metadata.nlink());
    }
}
