//! Locks of the files being written by the transfers of one agent, so that no two write the same file.
//!
//! Used by transfers of a controller, which may have lost track of one. A file is identified by
//! directory inode and name, regardless of the path to it. A lock ends on drop. Copies started by users
//! take no locks: the last one wins.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::sync::{Arc, Mutex};

use penstock_protocol::control::{Failure, FailureKind};

use super::file::Parent;
use crate::base::lock::lock;

/// Device and inode of the directory, and the file name.
type Key = (u64, u64, OsString);

/// Set of locked files.
#[derive(Debug, Clone, Default)]
pub struct FileLocks(Arc<Mutex<HashSet<Key>>>);

/// Lock of one file, released on drop.
#[derive(Debug)]
pub(crate) struct SinkFileLock {
    locks: FileLocks,
    key: Key,
}

impl FileLocks {
    /// Locks `name` in a directory.
    ///
    /// # Errors
    /// If another transfer is writing it.
    pub(super) fn lock(&self, parent: &Parent, name: &OsStr) -> Result<SinkFileLock, Failure> {
        let key = (parent.identity.device, parent.identity.inode, name.to_owned());
        if !lock(&self.0).insert(key.clone()) {
            return Err(in_use());
        }
        Ok(SinkFileLock { locks: self.clone(), key })
    }
}

/// Failure of a file that another transfer is writing.
pub(super) fn in_use() -> Failure {
    let text = "another transfer is writing it: try it again when that has ended";
    Failure::new(FailureKind::Destination, text)
}

impl Drop for SinkFileLock {
    fn drop(&mut self) {
        lock(&self.locks.0).remove(&self.key);
    }
}
