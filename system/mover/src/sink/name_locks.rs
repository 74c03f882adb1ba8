//! Locks of names in directories, held while an upload or a rename checks what has its name and replaces it.
//!
//! Those of one process check and replace in turn, so that of several with the same condition one succeeds. Writers
//! of other processes, and the mover's own files, take no such lock.

use std::ffi::OsStr;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use penstock_sys::fs::Dir;

/// Locks, each for the names of equal hash. A lock is held for a few system calls.
const NAME_LOCKS: usize = 64;

static LOCKS: [Mutex<()>; NAME_LOCKS] = [const { Mutex::new(()) }; NAME_LOCKS];

/// Locks `name` in `parent` until the guard is dropped. The path to the directory does not matter. Not reentrant: a thread
/// holds one of these locks at a time, and none while it commits an upload.
///
/// # Errors
/// When the directory cannot be inspected.
pub fn lock_name(parent: &Dir, name: &OsStr) -> io::Result<MutexGuard<'static, ()>> {
    let directory = parent.stat_self()?;
    let mut hasher = DefaultHasher::new();
    (directory.device, directory.inode, name).hash(&mut hasher);
    let at = hasher.finish() % NAME_LOCKS as u64;
    let lock = LOCKS[usize::try_from(at).unwrap_or(0)].lock();
    Ok(lock.unwrap_or_else(PoisonError::into_inner))
}
