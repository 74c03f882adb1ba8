//! Lock files (`flock`) between processes.
//!
//! For: a journal or a state directory that only one process may use. The kernel releases the lock when the process ends;
//! the file stays. Not for: threads of one process, or machines sharing a file system whose `flock` is local to each (NFS
//! before Linux 2.6.12, Lustre mounted with `localflock`).
//!
//! Fails with the error of `open`; a lock held elsewhere is `None`, not an error.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

/// An exclusive lock on a file, released on drop. Clones of the file share it.
#[derive(Debug)]
pub struct ExclusiveFileLock {
    file: File,
}

impl ExclusiveFileLock {
    /// Locks `file` without waiting; `None` where another open file holds the lock.
    pub fn try_lock(file: File) -> io::Result<Option<Self>> {
        Ok(flock(&file, FlockOperation::NonBlockingLockExclusive)?.then(|| Self { file }))
    }

    /// Locks the file at `path`, created with mode 0600 where missing. The holder may remove the file: after locking, this
    /// checks that `path` is still the locked file, and retries if not.
    pub fn try_lock_at(path: &Path) -> io::Result<Option<Self>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        loop {
            let Some(lock) = Self::try_lock(options.open(path)?)? else { return Ok(None) };
            let held = lock.file.metadata()?;
            match path.metadata() {
                Ok(there) if (there.dev(), there.ino()) == (held.dev(), held.ino()) => {
                    return Ok(Some(lock));
                }
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                // Removed or replaced since it was opened.
                _ => {}
            }
        }
    }

    /// The locked file, open for reading and writing.
    pub fn file(&self) -> &File {
        &self.file
    }
}

impl Drop for ExclusiveFileLock {
    fn drop(&mut self) {
        // Closing is not enough where a child process has inherited the open file.
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

/// A lock that several open files may hold, but none beside an [`ExclusiveFileLock`]; released on drop. For checks that
/// must not take each other for a holder.
#[derive(Debug)]
pub struct SharedFileLock {
    file: File,
}

impl SharedFileLock {
    /// Locks `file` without waiting; `None` where another open file holds it exclusively.
    pub fn try_lock(file: File) -> io::Result<Option<Self>> {
        Ok(flock(&file, FlockOperation::NonBlockingLockShared)?.then(|| Self { file }))
    }
}

impl Drop for SharedFileLock {
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

/// False where another open file holds the lock.
fn flock(file: &File, operation: FlockOperation) -> io::Result<bool> {
    loop {
        match rustix::fs::flock(file, operation) {
            Ok(()) => return Ok(true),
            Err(Errno::WOULDBLOCK) => return Ok(false),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn one_holder_at_a_time() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let open = || File::options().read(true).write(true).open(path.path()).unwrap();
        let held = ExclusiveFileLock::try_lock(open()).unwrap().expect("a free lock");
        assert!(ExclusiveFileLock::try_lock(open()).unwrap().is_none());
        assert!(SharedFileLock::try_lock(open()).unwrap().is_none());
        held.file().write_all(b"still usable").unwrap();
        let clone = held.file().try_clone().unwrap();
        drop(held);
        assert!(ExclusiveFileLock::try_lock(open()).unwrap().is_some());
        drop(clone);
    }

    #[test]
    fn one_holder_while_files_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.lock");
        let (holders, held) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while held.load(Ordering::SeqCst) < 4000 {
                        let Some(lock) = ExclusiveFileLock::try_lock_at(&path).unwrap() else {
                            continue;
                        };
                        assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "two hold it");
                        held.fetch_add(1, Ordering::SeqCst);
                        holders.fetch_sub(1, Ordering::SeqCst);
                        // From here on another thread may lock the next file.
                        std::fs::remove_file(&path).unwrap();
                        drop(lock);
                    }
                });
            }
        });
    }
}
