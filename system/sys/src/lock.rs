//! One process at a time.
//!
//! For: a journal or a state directory that only one process may use. The lock is the kernel's (`flock`): it ends with the
//! process, however that ends, and the file stays. Not for: threads of one process, or machines sharing a file system
//! whose `flock` is local to each (NFS before Linux 2.6.12, Lustre mounted with `localflock`).
//!
//! Fails as opening the file does; a lock held elsewhere is an answer, not an error.

use std::fs::File;
use std::io;

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
}
