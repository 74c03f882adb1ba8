//! Locks of the files that transfers of one agent are writing, so that no two write the same one.
//!
//! For: transfers that a controller plans, which may have lost track of one. A file is its directory and its name there,
//! whatever path leads to it. A lock ends when it is dropped. Copies that people start take none: of two, the last one
//! counts.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::sync::{Arc, Mutex};

use penstock_protocol::control::{Failure, FailureKind};

use super::file::Parent;
use crate::session::lock;

/// A directory, by device and inode, and a name in it.
type Key = (u64, u64, OsString);

/// The files that are being written.
#[derive(Debug, Clone, Default)]
pub struct FileLocks(Arc<Mutex<HashSet<Key>>>);

/// A file that no other transfer writes as long as this is kept.
#[derive(Debug)]
pub(crate) struct FileLock {
    locks: FileLocks,
    key: Key,
}

impl FileLocks {
    /// Locks `name` in a directory.
    ///
    /// # Errors
    /// When another transfer is writing it.
    pub(super) fn lock(&self, parent: &Parent, name: &OsStr) -> Result<FileLock, Failure> {
        let key = (parent.identity.device, parent.identity.inode, name.to_owned());
        if !lock(&self.0).insert(key.clone()) {
            return Err(in_use());
        }
        Ok(FileLock { locks: self.clone(), key })
    }
}

/// The failure of a file that another transfer is writing.
pub(super) fn in_use() -> Failure {
    let text = "another transfer is writing it: try it again when that has ended";
    Failure::new(FailureKind::Destination, text)
}

impl Drop for FileLock {
    fn drop(&mut self) {
        lock(&self.locks.0).remove(&self.key);
    }
}
