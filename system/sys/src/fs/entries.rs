//! The names in one directory.
//!
//! For: reading a directory of any size in bounded memory. Not for: a sorted list or a snapshot (names that are created or
//! removed meanwhile may or may not be returned).
//!
//! Fails with the error of `getdents64`, as the last item.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::FileType;
use rustix::io::Errno;

use super::stat::{Kind, stat_name};

/// Iterates over the names in a directory and their kinds, without `.` and `..`.
#[derive(Debug)]
pub struct Entries(pub(super) rustix::fs::Dir);

impl Iterator for Entries {
    type Item = io::Result<(OsString, Kind)>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let entry = match self.0.read()? {
                Ok(entry) => entry,
                Err(error) => return Some(Err(error.into())),
            };
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let name = OsStr::from_bytes(name);
            let kind = match entry.file_type() {
                // Some file systems do not return the type with the name.
                FileType::Unknown => match self.look_up(name) {
                    Ok(kind) => kind,
                    Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => {
                        continue;
                    }
                    Err(error) => return Some(Err(error)),
                },
                known => known.into(),
            };
            return Some(Ok((name.to_owned(), kind)));
        }
    }
}

impl Entries {
    fn look_up(&self, name: &OsStr) -> io::Result<Kind> {
        Ok(stat_name(self.0.fd()?.as_fd(), name)?.kind)
    }
}
