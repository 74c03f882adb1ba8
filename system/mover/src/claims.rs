//! Files that transfers of one agent are writing, so that no two write the same one.
//!
//! For: transfers that somebody else plans, who may have lost sight of one. A file is its directory and its name
//! there, whatever path led to it. A claim ends when it is dropped. Not for: copies that people begin, of which the
//! last one counts, nor for other programs.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::sync::{Arc, Mutex};

use penstock_protocol::control::{Failure, FailureKind};
use penstock_sys::fs;

use crate::placing::Parent;
use crate::session::lock;

/// A directory, by device and inode, and a name in it.
type Key = (u64, u64, OsString);

/// What is being written.
#[derive(Debug, Clone, Default)]
pub struct Claims(Arc<Mutex<HashSet<Key>>>);

/// A file that nobody else writes as long as this is kept.
#[derive(Debug)]
pub(crate) struct Claim {
    claims: Claims,
    key: Key,
}

impl Claims {
    /// Claims `name` in a directory.
    ///
    /// # Errors
    /// When another transfer is writing it.
    pub(crate) fn claim(&self, parent: &Parent, name: &OsStr) -> Result<Claim, Failure> {
        let failed = |text: String| Failure::new(FailureKind::Destination, text);
        let stat = parent.dir.stat_self().map_err(|error| failed(fs::describe(&error)))?;
        let key = (stat.device, stat.inode, name.to_owned());
        if !lock(&self.0).insert(key.clone()) {
            let text = "another transfer is writing it: try it again when that has ended";
            return Err(failed(text.to_owned()));
        }
        Ok(Claim { claims: self.clone(), key })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        lock(&self.claims.0).remove(&self.key);
    }
}
