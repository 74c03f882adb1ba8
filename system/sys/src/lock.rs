//! One process at a time.
//!
//! For: a journal or a state directory that only one process may use. The lock is the kernel's (`flock`): it ends with the
//! process, however that ends, and the file stays. Not for: threads of one process, or machines sharing a file system
//! whose `flock` is local to each (NFS before Linux 2.6.12, Lustre mounted with `localflock`).
//!
//! Fails as opening the file does; a lock held elsewhere is an answer, not an error.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

/// Holds a file's exclusive lock until dropped. Clones of the file share it.
#[derive(Debug)]
pub struct FileLock {
    file: File,
}

impl FileLock {
    /// Locks `file`, or gives `None` at once where another open file holds the lock.
    pub fn try_lock(file: File) -> io::Result<Option<Self>> {
        loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Some(Self { file })),
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Locks the file at `path`, which is made where there is none and read by nobody else. Whoever holds the lock may remove
    /// the file: a lock on one that is not there any more is none.
    pub fn try_lock_at(path: &Path) -> io::Result<Option<Self>> {
        let mut how = OpenOptions::new();
        how.read(true).write(true).create(true).truncate(false).mode(0o600);
        loop {
            let Some(lock) = Self::try_lock(how.open(path)?)? else { return Ok(None) };
            let held = lock.file.metadata()?;
            match path.metadata() {
                Ok(there) if (there.dev(), there.ino()) == (held.dev(), held.ino()) => {
                    return Ok(Some(lock));
                }
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                // It was removed, or is another, since it was opened.
                _ => {}
            }
        }
    }

    /// The locked file.
    pub fn file(&self) -> &File {
        &self.file
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // Closing would do, were it not for a child process that has inherited the open file meanwhile.
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
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
        let held = FileLock::try_lock(open()).unwrap().expect("a free lock");
        assert!(FileLock::try_lock(open()).unwrap().is_none());
        held.file().write_all(b"still usable").unwrap();
        let clone = held.file().try_clone().unwrap();
        drop(held);
        assert!(FileLock::try_lock(open()).unwrap().is_some());
        drop(clone);
    }

    #[test]
    fn one_holder_at_a_time_while_files_come_and_go() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.lock");
        let (holders, held) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while held.load(Ordering::SeqCst) < 4000 {
                        let Some(lock) = FileLock::try_lock_at(&path).unwrap() else { continue };
                        assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "two hold it");
                        held.fetch_add(1, Ordering::SeqCst);
                        holders.fetch_sub(1, Ordering::SeqCst);
                        // From here on somebody else may hold the next file.
                        std::fs::remove_file(&path).unwrap();
                        drop(lock);
                    }
                });
            }
        });
    }
}
