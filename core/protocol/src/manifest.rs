//! Manifest of a transfer: paths that cannot leave their target, and entries with their metadata.

use std::fmt;

use crate::wire::{Bytes, WireError, WireFormat, WireReader, wire_struct};

/// Limit of a relative path, far beyond PATH_MAX, so that deep trees can be copied.
pub const PATH_BYTES_MAX: usize = 32 * 1024;

/// Limit of an encoded entry, extended attributes included; far below a message.
pub const ENTRY_BYTES_MAX: usize = 256 * 1024;

/// Limit of a file name, as on every Linux file system (NAME_MAX).
pub const NAME_BYTES_MAX: usize = 255;

/// Path below the target of a transfer: no root, no `.` or `..`, no empty name, no NUL.
///
/// Bytes, not text: names may hold newlines and need not be UTF-8.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RelativePath(Vec<u8>);

/// Reason why bytes are no [`RelativePath`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// The path has no bytes.
    #[error("path is empty")]
    Empty,
    /// The path starts with `/`.
    #[error("path is absolute")]
    Absolute,
    /// A name is empty, `.` or `..`.
    #[error("path holds an empty, '.' or '..' name")]
    Step,
    /// A name holds a NUL byte.
    #[error("path holds a NUL byte")]
    Nul,
    /// The path or a name exceeds its limit.
    #[error("path or a name in it is too long")]
    TooLong,
}

impl RelativePath {
    /// Validates the bytes of a path.
    ///
    /// # Errors
    /// If the path could leave its base directory or no file system could hold it.
    pub fn new(bytes: Vec<u8>) -> Result<Self, PathError> {
        match bytes.as_slice() {
            [] => return Err(PathError::Empty),
            [b'/', ..] => return Err(PathError::Absolute),
            long if long.len() > PATH_BYTES_MAX => return Err(PathError::TooLong),
            _ => {}
        }
        for name in bytes.split(|byte| *byte == b'/') {
            match name {
                b"" | b"." | b".." => return Err(PathError::Step),
                _ if name.contains(&0) => return Err(PathError::Nul),
                _ if name.len() > NAME_BYTES_MAX => return Err(PathError::TooLong),
                _ => {}
            }
        }
        Ok(Self(bytes))
    }

    /// Returns the bytes, without a final NUL.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for RelativePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&display_path(&self.0))
    }
}

impl fmt::Debug for RelativePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Formats a path on one line: text unchanged, backslashes, control and non-UTF-8 bytes escaped, so that no two paths look
/// the same.
#[must_use]
pub fn display_path(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() || c == '\\' { text.extend(c.escape_default()) } else { text.push(c) }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

impl WireFormat for RelativePath {
    const MIN_BYTES: usize = 4;
    fn put(&self, out: &mut Vec<u8>) {
        u32::try_from(self.0.len()).expect("a path is short").put(out);
        out.extend_from_slice(&self.0);
    }
    fn take(input: &mut WireReader<'_>) -> Result<Self, WireError> {
        Self::new(Bytes::take(input)?.0).map_err(|_| WireError::Invalid("path"))
    }
}

/// Type of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// Regular file with its bytes.
    File,
    /// Directory; announced before its contents.
    Directory,
    /// Symbolic link; its target is in [`Entry::link`].
    Symlink,
}

impl WireFormat for EntryKind {
    const MIN_BYTES: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
    fn take(input: &mut WireReader<'_>) -> Result<Self, WireError> {
        match u8::take(input)? {
            0 => Ok(Self::File),
            1 => Ok(Self::Directory),
            2 => Ok(Self::Symlink),
            _ => Err(WireError::Invalid("entry kind")),
        }
    }
}

wire_struct! {
    /// Time stamp of a file.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
    pub struct Time {
        /// Seconds since 1970-01-01 UTC; may be negative.
        pub seconds: i64,
        /// Nanoseconds within the second.
        pub nanos: u32,
    }
}

wire_struct! {
    /// Manifest entry: a file, directory or symbolic link to copy.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Entry {
        /// Path below the target.
        pub path: RelativePath,
        /// Type of the entry.
        pub kind: EntryKind,
        /// Size of a file in bytes, zero otherwise.
        pub bytes: u64,
        /// Modification time (`st_mtime`); copied to the destination.
        pub modified: Time,
        /// Change time (`st_ctime`), which no program can set back.
        pub changed: Time,
        /// Inode number at the source.
        pub inode: u64,
        /// Permission bits (`st_mode & 0o7777`).
        pub mode: u32,
        /// User id of the owner.
        pub uid: u32,
        /// Group id of the owner's group.
        pub gid: u32,
        /// Set when the source is sparse; the receiver preserves its holes.
        pub sparse: bool,
        /// Target of a symbolic link, empty otherwise.
        pub link: Bytes,
        /// Extended attributes as name and value.
        pub xattrs: Vec<(Bytes, Bytes)>,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaping_paths_are_rejected() {
        let long = vec![b'a'; NAME_BYTES_MAX + 1];
        for bad in [&b""[..], b"/etc", b"a//b", b"a/", b"./a", b"a/../b", b"..", b"a\0b", &long] {
            assert!(RelativePath::new(bad.to_vec()).is_err(), "{bad:?}");
        }
        for good in [&b"a"[..], b"a/b", b"...", b"a\nb", b"\xff\xfe/x", b"..a"] {
            assert!(RelativePath::new(good.to_vec()).is_ok(), "{good:?}");
        }
    }

    #[test]
    fn display_path_escapes_control_bytes() {
        assert_eq!(display_path(b"run\n7/\xff.dat"), "run\\n7/\\xff.dat");
        assert_eq!(display_path("dépôt".as_bytes()), "dépôt");
        assert_eq!(display_path(b"\x1b[2J"), "\\u{1b}[2J");
    }

    #[test]
    fn displayed_paths_are_distinct() {
        for (one, other) in
            [(&b"a\nb"[..], &b"a\\nb"[..]), (b"\xff", b"\\xff"), (b"\x1b", b"\\u{1b}")]
        {
            assert_ne!(display_path(one), display_path(other));
        }
        assert_eq!(display_path(b"a\\b"), "a\\\\b");
    }
}
