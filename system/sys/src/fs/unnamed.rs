//! Files without a name (`O_TMPFILE`), which a crash leaves nowhere.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

use super::dir::Dir;

impl Dir {
    /// Creates a file without a name in this directory, open for reading and writing. The file is gone when it is closed
    /// without [`Dir::link`].
    ///
    /// # Errors
    /// `Unsupported` where the file system has none, such as NFS.
    pub fn create_unnamed(&self, mode: u32) -> io::Result<File> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        match rustix::fs::openat(self, c".", flags, Mode::from_raw_mode(mode & 0o7777)) {
            Ok(fd) => Ok(File::from(fd)),
            // The kernel before 3.11, and file systems that take the flag for O_DIRECTORY alone.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT) => {
                Err(io::ErrorKind::Unsupported.into())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Gives an unnamed file the name `path`, or fails with `AlreadyExists`. Needs `/proc`.
    ///
    /// # Errors
    /// As of linkat(2).
    pub fn link(&self, file: &File, path: impl AsRef<Path>) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        let source = format!("/proc/self/fd/{}", file.as_raw_fd());
        Ok(rustix::fs::linkat(CWD, source, &parent, name, AtFlags::SYMLINK_FOLLOW)?)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn unnamed_file_appears_whole() {
        let directory = tempfile::tempdir().unwrap();
        let dir = Dir::open(directory.path()).unwrap();
        let mut file = dir.create_unnamed(0o640).unwrap();
        file.write_all(b"content").unwrap();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        dir.link(&file, "name").unwrap();
        assert_eq!(std::fs::read(directory.path().join("name")).unwrap(), b"content");
        let again = dir.link(&file, "name").unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
        dir.create_dir("below", 0o700).unwrap();
        dir.link(&file, "below/name").unwrap();
        assert!(dir.link(&file, "../outside").is_err());
    }
}
