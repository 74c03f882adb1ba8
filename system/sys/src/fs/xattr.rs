//! Extended attributes of one open file, or of anything beneath a directory.
//!
//! For: reading and setting all attributes that the process can access (`user.*`, ACLs) as names and bytes.
//! Not for: selecting or interpreting them.
//!
//! Fails as the system call does (`EOPNOTSUPP` where the file system has none), and with `InvalidInput` beyond the limits,
//! which are the kernel's own (`XATTR_SIZE_MAX`, `XATTR_LIST_MAX` in `linux/limits.h`).

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::Dir;

/// Longest value in bytes (XATTR_SIZE_MAX).
pub const XATTR_VALUE_BYTES_MAX: usize = 64 << 10;
/// Most bytes of all names of one file, each with a NUL (XATTR_LIST_MAX).
pub const XATTR_LIST_BYTES_MAX: usize = 64 << 10;

/// Lists the names of the attributes that this process may see; empty where the file system has no attributes.
pub fn list_xattrs(file: &File) -> io::Result<Vec<OsString>> {
    names(read_whole(XATTR_LIST_BYTES_MAX, |buffer| rustix::fs::flistxattr(file, buffer)))
}

fn names(list: Result<Vec<u8>, Errno>) -> io::Result<Vec<OsString>> {
    let list = match list {
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        other => other?,
    };
    Ok(list
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty())
        .map(|name| OsString::from_vec(name.to_vec()))
        .collect())
}

impl Dir {
    /// Reads names and values of the attributes of `path` that this process may see, without following a symbolic link.
    /// Needs `/proc`.
    pub fn xattrs(&self, path: impl AsRef<Path>) -> io::Result<Vec<(OsString, Vec<u8>)>> {
        let fd = self.handle(path.as_ref())?;
        let path = proc_path(&fd);
        let mut attributes = Vec::new();
        for name in
            names(read_whole(XATTR_LIST_BYTES_MAX, |buffer| rustix::fs::listxattr(&path, buffer)))?
        {
            match read_whole(XATTR_VALUE_BYTES_MAX, |buffer| {
                rustix::fs::getxattr(&path, &name, buffer)
            }) {
                // Removed in between.
                Err(Errno::NODATA) => {}
                value => attributes.push((name, value?)),
            }
        }
        Ok(attributes)
    }

    /// Sets the attribute `name` of `path`, without following a symbolic link. Needs `/proc`.
    pub fn set_xattr(&self, path: impl AsRef<Path>, name: &OsStr, value: &[u8]) -> io::Result<()> {
        check(name)?;
        let fd = self.handle(path.as_ref())?;
        Ok(rustix::fs::setxattr(proc_path(&fd), name, value, XattrFlags::empty())?)
    }
}

/// Path of an `O_PATH` descriptor under `/proc`: `fgetxattr` and the like refuse such descriptors.
fn proc_path(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// Reads the attribute `name`; `None` where the file does not have it.
pub fn get_xattr(file: &File, name: &OsStr) -> io::Result<Option<Vec<u8>>> {
    check(name)?;
    match read_whole(XATTR_VALUE_BYTES_MAX, |buffer| rustix::fs::fgetxattr(file, name, buffer)) {
        Err(Errno::NODATA) => Ok(None),
        other => Ok(Some(other?)),
    }
}

/// Sets the attribute `name`, replacing its value.
pub fn set_xattr(file: &File, name: &OsStr, value: &[u8]) -> io::Result<()> {
    check(name)?;
    if value.len() > XATTR_VALUE_BYTES_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "an extended attribute of {} bytes: at most {XATTR_VALUE_BYTES_MAX} are possible",
                value.len()
            ),
        ));
    }
    Ok(rustix::fs::fsetxattr(file, name, value, XattrFlags::empty())?)
}

/// Removes the attribute `name`; `false` where the file has none of that name.
pub fn remove_xattr(file: &File, name: &OsStr) -> io::Result<bool> {
    check(name)?;
    match rustix::fs::fremovexattr(file, name) {
        Ok(()) => Ok(true),
        Err(Errno::NODATA) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn check(name: &OsStr) -> io::Result<()> {
    // Without a namespace ("user.", "security.") the kernel returns EOPNOTSUPP, as for a file system without attributes.
    let bytes = name.as_bytes();
    let namespaced = bytes.iter().position(|&byte| byte == b'.').is_some_and(|dot| dot > 0);
    if namespaced && bytes.len() <= 255 && !bytes.contains(&0) {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        "an extended attribute's name has a namespace (user.name), no NUL and at most 255 bytes",
    ))
}

/// Calls `call` with a buffer of 1 KiB, which nearly all lists and values fit, then with `bytes_max`.
fn read_whole(
    bytes_max: usize,
    mut call: impl FnMut(&mut [u8]) -> Result<usize, Errno>,
) -> Result<Vec<u8>, Errno> {
    for room in [1 << 10, bytes_max] {
        let mut buffer = vec![0; room];
        match call(&mut buffer) {
            Ok(len) => {
                buffer.truncate(len);
                return Ok(buffer);
            }
            Err(Errno::RANGE) => {}
            Err(error) => return Err(error),
        }
    }
    Err(Errno::RANGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file on a file system with attributes; otherwise prints a note and returns `None`.
    fn file() -> Option<File> {
        let file = tempfile::tempfile().unwrap();
        match set_xattr(&file, OsStr::new("user.probe"), b"") {
            Ok(()) => Some(file),
            Err(error) => {
                penstock_testkit::skip(
                    penstock_testkit::Requirement::Kernel,
                    &format!("no extended attributes here: {error}"),
                );
                None
            }
        }
    }

    #[test]
    fn round_trip() {
        let Some(file) = file() else { return };
        let name = OsStr::from_bytes(b"user.caf\xe9 \n");
        set_xattr(&file, name, b"\0value\xff").unwrap();
        assert_eq!(get_xattr(&file, name).unwrap().unwrap(), b"\0value\xff");
        assert_eq!(get_xattr(&file, OsStr::new("user.probe")).unwrap().unwrap(), b"");
        let mut names = list_xattrs(&file).unwrap();
        names.retain(|name| name.as_bytes().starts_with(b"user."));
        names.sort();
        assert_eq!(names, [name, OsStr::new("user.probe")]);
        set_xattr(&file, name, b"other").unwrap();
        assert_eq!(get_xattr(&file, name).unwrap().unwrap(), b"other");
        assert!(remove_xattr(&file, name).unwrap());
        assert!(!remove_xattr(&file, name).unwrap());
        assert_eq!(get_xattr(&file, name).unwrap(), None);
    }

    #[test]
    fn directories_and_links_have_their_own() {
        let Some(_) = file() else { return };
        let temporary = tempfile::tempdir().unwrap();
        let dir = Dir::open(temporary.path()).unwrap();
        dir.create_dir("inner", 0o700).unwrap();
        dir.symlink("inner", "link").unwrap();
        let name = OsStr::new("user.x");
        dir.set_xattr("inner", name, b"1").unwrap();
        assert!(dir.xattrs("inner").unwrap().contains(&(name.to_owned(), b"1".to_vec())));
        // The kernel allows no user attributes on links.
        let error = dir.set_xattr("link", name, b"2").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        let trusted = OsStr::new("trusted.x");
        if dir.set_xattr("link", trusted, b"3").is_ok() {
            assert!(dir.xattrs("link").unwrap().contains(&(trusted.to_owned(), b"3".to_vec())));
            assert!(!dir.xattrs("inner").unwrap().iter().any(|(name, _)| name == trusted));
        } else {
            penstock_testkit::skip(
                penstock_testkit::Requirement::Root,
                "attributes of links are for the superuser",
            );
        }
    }

    #[test]
    fn value_longer_than_first_buffer() {
        let Some(file) = file() else { return };
        let name = OsStr::new("user.long");
        // ext4 stores all attributes of a file in one block by default.
        let value = vec![3; 3000];
        set_xattr(&file, name, &value).unwrap();
        assert_eq!(get_xattr(&file, name).unwrap().unwrap(), value);
    }

    #[test]
    fn limits() {
        let file = tempfile::tempfile().unwrap();
        let kind = |result: io::Result<()>| result.unwrap_err().kind();
        let long = vec![0; XATTR_VALUE_BYTES_MAX + 1];
        assert_eq!(
            kind(set_xattr(&file, OsStr::new("user.a"), &long)),
            io::ErrorKind::InvalidInput
        );
        for name in ["", "plain", ".dot", "user.\0", &format!("user.{}", "x".repeat(251))] {
            assert_eq!(kind(set_xattr(&file, OsStr::new(name), b"")), io::ErrorKind::InvalidInput);
        }
    }
}
