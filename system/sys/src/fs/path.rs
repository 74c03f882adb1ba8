//! Validation of untrusted relative paths.
//!
//! For: refusing invalid paths before any system call, and splitting a path of any length into pieces that the kernel
//! accepts. Not for: symbolic links, which only the kernel can resolve.
//!
//! Fails with `InvalidInput` and the rule that was broken.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Longest piece passed to the kernel in bytes, below `PATH_MAX` (4096 with the terminating NUL).
const PIECE_BYTES_MAX: usize = 4000;

/// A checked relative path: no `..`, no NUL, not absolute, without empty and `.` components. Empty: the directory itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Relative(Vec<u8>);

impl Relative {
    pub(super) fn new(path: &Path) -> io::Result<Self> {
        let bytes = path.as_os_str().as_bytes();
        if bytes.contains(&0) {
            return Err(refused("a path cannot contain a NUL byte"));
        }
        if bytes.first() == Some(&b'/') {
            return Err(refused("an absolute path is not allowed here"));
        }
        let mut clean = Vec::with_capacity(bytes.len());
        for component in bytes.split(|&byte| byte == b'/') {
            match component {
                b"" | b"." => continue,
                b".." => return Err(refused("a path containing \"..\" is not allowed here")),
                _ => {}
            }
            if !clean.is_empty() {
                clean.push(b'/');
            }
            clean.extend_from_slice(component);
        }
        Ok(Self(clean))
    }

    /// True for the directory itself.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Everything before the last component, and that component; `None` for the directory itself.
    pub(super) fn split_last(&self) -> Option<(Self, &OsStr)> {
        if self.is_empty() {
            return None;
        }
        let (parent, name) = match self.0.iter().rposition(|&byte| byte == b'/') {
            Some(slash) => (&self.0[..slash], &self.0[slash + 1..]),
            None => (&[][..], &self.0[..]),
        };
        Some((Self(parent.to_vec()), OsStr::from_bytes(name)))
    }

    /// Leading pieces, each followed on from the one before, and the last piece (`.` for the directory itself).
    pub(super) fn pieces(&self) -> (Vec<&OsStr>, &OsStr) {
        let mut rest = &self.0[..];
        let mut leading = Vec::new();
        while rest.len() > PIECE_BYTES_MAX {
            // A component longer than a piece stays whole: the kernel then returns ENAMETOOLONG.
            let cut = rest[..=PIECE_BYTES_MAX]
                .iter()
                .rposition(|&byte| byte == b'/')
                .or_else(|| rest.iter().position(|&byte| byte == b'/'));
            let Some(cut) = cut else { break };
            leading.push(OsStr::from_bytes(&rest[..cut]));
            rest = &rest[cut + 1..];
        }
        let last = if rest.is_empty() { b"." } else { rest };
        (leading, OsStr::from_bytes(last))
    }
}

fn refused(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relative(path: &[u8]) -> io::Result<Relative> {
        Relative::new(Path::new(OsStr::from_bytes(path)))
    }

    #[test]
    fn equivalent_paths_are_normalised() {
        for (path, clean) in [
            (&b""[..], &b""[..]),
            (b".", b""),
            (b"./", b""),
            (b"a//b/./c/", b"a/b/c"),
            (b"...", b"..."),
            (b"a\nb/\xff", b"a\nb/\xff"),
            (b"..a/b..", b"..a/b.."),
        ] {
            assert_eq!(relative(path).unwrap().0, clean);
        }
    }

    #[test]
    fn escaping_paths_are_refused() {
        for path in [&b"/"[..], b"/etc", b"..", b"a/..", b"../a", b"a/../b", b"a\0b", b"//a"] {
            let error = relative(path).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{path:?}");
        }
    }

    #[test]
    fn splits_the_last_component() {
        assert!(relative(b"").unwrap().split_last().is_none());
        let (parent, name) = relative(b"a/b/c")
            .unwrap()
            .split_last()
            .map(|(parent, name)| (parent, name.to_owned()))
            .unwrap();
        assert_eq!((parent.0.as_slice(), name.as_bytes()), (&b"a/b"[..], &b"c"[..]));
        assert!(relative(b"c").unwrap().split_last().unwrap().0.is_empty());
    }

    #[test]
    fn pieces_put_together_are_the_path() {
        for component_len in [1, 2, 99, 255, 3999, 4000, 4001, 9000] {
            let component = vec![b'x'; component_len];
            let path = vec![component; 20_000usize.div_ceil(component_len)].join(&b'/');
            let path = relative(&path).unwrap();
            let (leading, last) = path.pieces();
            let mut whole: Vec<&[u8]> = leading.iter().map(|piece| piece.as_bytes()).collect();
            whole.push(last.as_bytes());
            assert_eq!(whole.join(&b'/'), path.0);
            let longest = whole.iter().map(|piece| piece.len()).max().unwrap();
            assert!(longest <= PIECE_BYTES_MAX.max(component_len));
        }
        let empty = relative(b".").unwrap();
        assert_eq!(empty.pieces(), (vec![], OsStr::new(".")));
    }
}
