//! Files and directories, confined beneath a directory that the caller opened.
//!
//! For: names that come from the peer. [`Dir`] takes relative paths of any bytes and any length; neither `..` nor a
//! symbolic link, nor one created during the look-up, leads outside. The functions on `&File` cover preallocation, holes,
//! page cache, alignment, times and extended attributes.
//!
//! Not for: whole trees (walking, deleting and copying are the caller's loops) nor for deciding what is overwritten.
//!
//! Fails with plain [`io::Error`] that does not name the file; [`describe`] formats the error for operators.

use std::io;

mod dir;
mod entries;
mod file;
mod mapped;
mod open;
mod path;
mod rename;
mod sparse;
mod stat;
mod unnamed;
mod xattr;

pub use dir::Dir;
pub use entries::Entries;
pub use file::{
    FileSystemSpace, advise_sequential, advise_will_need, available_bytes, check_writable,
    direct_alignment, drop_cache, file_system_id, file_system_name, is_direct, open_regular,
    preallocate, punch_hole, read_at_most, read_exact_at, set_direct, set_file_mode,
    set_file_owner, set_file_times, space, start_writeback, sync_all, sync_data, try_lock,
    write_all_at,
};
pub use mapped::MappedFile;
pub use open::Open;
pub use sparse::{DataSegments, data_segments, next_data, next_hole};
pub use stat::{Kind, Stat, Timestamp, stat_file};
pub use xattr::{
    XATTR_LIST_BYTES_MAX, XATTR_VALUE_BYTES_MAX, get_xattr, list_xattrs, remove_xattr, set_xattr,
};

/// Formats an error for operators; the system's text for errors not listed here.
pub fn describe(error: &io::Error) -> String {
    let words = match error.raw_os_error() {
        Some(libc::ENOSPC) => "no space left on the file system",
        Some(libc::EDQUOT) => "disk quota exceeded",
        Some(libc::EROFS) => "file system is read-only",
        Some(libc::EACCES | libc::EPERM) => "permission denied",
        Some(libc::ENOENT) => "no such file or directory",
        Some(libc::EEXIST) => "already exists",
        Some(libc::ENOTDIR) => "not a directory",
        Some(libc::EISDIR) => "is a directory",
        Some(libc::ENOTEMPTY) => "directory is not empty",
        Some(libc::ELOOP) => "is a symbolic link, or passes through too many",
        Some(libc::ENAMETOOLONG) => "file name too long for the file system",
        Some(libc::EFBIG) => {
            "file too large for the file system or the process's limit (LimitFSIZE)"
        }
        Some(libc::EIO) => "input/output error: the storage failed (see the kernel log)",
        Some(libc::ESTALE) => "stale file handle: the file went away on the file server",
        Some(libc::EMFILE | libc::ENFILE) => "too many open files (raise LimitNOFILE)",
        Some(libc::ETXTBSY) => "file is being executed",
        Some(libc::EXDEV) => "crosses file systems",
        Some(libc::EOPNOTSUPP | libc::ENOSYS) => "not supported by this file system or kernel",
        None if error.kind() == io::ErrorKind::NotFound && error.get_ref().is_none() => {
            "no such file or directory"
        }
        _ => return error.to_string(),
    };
    words.to_owned()
}

/// Returns true where a path is a symbolic link that is not followed, or passes through too many (ELOOP).
#[must_use]
pub fn is_link_error(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ELOOP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_errors_have_operator_texts() {
        for (errno, words) in [
            (libc::ENOSPC, "no space left on the file system"),
            (libc::EDQUOT, "disk quota exceeded"),
            (libc::EROFS, "file system is read-only"),
            (libc::EACCES, "permission denied"),
            (libc::EPERM, "permission denied"),
            (libc::EMFILE, "too many open files (raise LimitNOFILE)"),
        ] {
            assert_eq!(describe(&io::Error::from_raw_os_error(errno)), words);
        }
        let other = io::Error::from_raw_os_error(libc::ECONNRESET);
        assert_eq!(describe(&other), other.to_string());
        assert_eq!(describe(&io::Error::other("why")), "why");
        assert_eq!(describe(&io::ErrorKind::NotFound.into()), "no such file or directory");
        assert_eq!(describe(&io::Error::new(io::ErrorKind::NotFound, "why")), "why");
    }
}
