//! Files in the making, which their writer locks: a collector that starts while its predecessor ends removes none that is
//! still written.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use penstock_sys::lock::ExclusiveFileLock;

/// Creates a file, which stays locked until the lock is dropped. Fails where there is one.
pub(crate) fn create(path: &Path) -> io::Result<ExclusiveFileLock> {
    let lock = ExclusiveFileLock::try_lock(File::create_new(path)?)?;
    // Another collector that starts now may have removed it before it was locked.
    lock.filter(|lock| lock.file().metadata().is_ok_and(|facts| facts.nlink() > 0)).ok_or_else(
        || io::Error::other(format!("{}: another collector removes it", path.display())),
    )
}

/// Removes a file that no collector writes. Returns false if one does.
pub(crate) fn remove_abandoned(path: &Path) -> io::Result<bool> {
    let file = match File::open(path) {
        // Its writer has completed it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        opened => opened?,
    };
    let Some(_lock) = ExclusiveFileLock::try_lock(file)? else { return Ok(false) };
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        removed => removed.map(|()| true),
    }
}
