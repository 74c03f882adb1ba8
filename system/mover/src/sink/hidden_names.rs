//! Hidden names of files and trees that get their final name later, and records of them in the state directory.
//!
//! A record is there for as long as its hidden name may be, so that the next start finds what a crash left without
//! walking an export.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use penstock_sys::fs::Dir;

use crate::base::temporary_name::{PART_SUFFIX, TEMPORARY_PREFIX};
use crate::net::handshake::random;

/// Separates directory and former name in a record; no path has it.
const RECORD_SEPARATOR: u8 = 0;

/// Directory of the records.
#[derive(Debug, Clone)]
pub struct HiddenNames(Arc<Path>);

/// A hidden name, which no other upload or copy has. Its record is removed with this value.
#[derive(Debug)]
pub struct HiddenName {
    name: OsString,
    record: PathBuf,
}

/// Record of a hidden name that an earlier run left.
#[derive(Debug, PartialEq, Eq)]
pub struct LeftName {
    /// Path of the directory.
    pub directory: PathBuf,
    /// Name that no listing shows.
    pub name: OsString,
    /// Name from which a tree was moved to the hidden one until another replaces it.
    pub former: Option<OsString>,
}

impl HiddenNames {
    /// Opens the records in `directory`, which is made if it is missing.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn open(directory: &Path) -> io::Result<Self> {
        fs::create_dir_all(directory)?;
        Ok(Self(directory.into()))
    }

    /// Reserves a hidden name in `parent`.
    ///
    /// # Errors
    /// When its record cannot be written.
    pub fn reserve(&self, parent: &Dir) -> io::Result<HiddenName> {
        self.record(parent.real_path()?.as_os_str().as_bytes(), |_| Ok(()))
    }

    /// Reserves a hidden name in `parent` for the tree that has the name `former` there. The record is durable.
    ///
    /// # Errors
    /// When its record cannot be written.
    pub fn reserve_for(&self, parent: &Dir, former: &OsStr) -> io::Result<HiddenName> {
        let path = parent.real_path()?;
        let record = [path.as_os_str().as_bytes(), &[RECORD_SEPARATOR], former.as_bytes()].concat();
        let name = self.record(&record, File::sync_all)?;
        File::open(&self.0)?.sync_all()?;
        Ok(name)
    }

    fn record(
        &self,
        content: &[u8],
        finish: impl Fn(&File) -> io::Result<()>,
    ) -> io::Result<HiddenName> {
        let name = temporary_name();
        let record = self.0.join(&name);
        let mut file = File::create_new(&record)?;
        let name = HiddenName { name, record };
        file.write_all(content)?;
        finish(&file)?;
        Ok(name)
    }

    /// Hands each name that an earlier run recorded to `remove`, and forgets those for which it succeeds.
    ///
    /// # Errors
    /// When the records cannot be listed or removed.
    pub fn remove_left(&self, remove: impl Fn(&LeftName) -> io::Result<()>) -> io::Result<()> {
        for entry in fs::read_dir(&self.0)? {
            let name = entry?.file_name();
            let record = self.0.join(&name);
            let text = fs::read(&record)?;
            let mut parts = text.splitn(2, |byte| *byte == RECORD_SEPARATOR);
            let mut part = || parts.next().map(|part| OsString::from_vec(part.to_vec()));
            let directory = part().unwrap_or_default().into();
            if remove(&LeftName { directory, name, former: part() }).is_ok() {
                fs::remove_file(&record)?;
            }
        }
        Ok(())
    }
}

impl HiddenName {
    /// Name that no listing shows.
    #[must_use]
    pub fn name(&self) -> &Path {
        Path::new(&self.name)
    }

    /// Leaves the record to the next start.
    pub fn keep_record(mut self) {
        self.record = PathBuf::new();
    }
}

impl Drop for HiddenName {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.record);
    }
}

fn temporary_name() -> OsString {
    let bytes: [u8; 16] = random();
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    OsString::from(format!("{TEMPORARY_PREFIX}{digits}{PART_SUFFIX}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_outlive_a_crash() {
        let (records, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let names = HiddenNames::open(records.path()).unwrap();
        let parent = Dir::open(data.path()).unwrap();
        drop(names.reserve(&parent).unwrap());
        assert_eq!(fs::read_dir(records.path()).unwrap().count(), 0);
        let former = OsStr::from_bytes(b"a\xff\nb");
        let left = names.reserve_for(&parent, former).unwrap();
        let name = left.name.clone();
        left.keep_record();
        let plain = names.reserve(&parent).unwrap();
        std::mem::forget(plain);
        let directory = data.path().canonicalize().unwrap();
        names
            .remove_left(|left| {
                assert_eq!(left.directory, directory);
                let is_moved = left.name == name;
                assert_eq!(left.former.as_deref(), is_moved.then_some(former));
                if is_moved { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
            })
            .unwrap();
        assert_eq!(fs::read_dir(records.path()).unwrap().count(), 1);
    }
}
