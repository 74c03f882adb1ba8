//! A file that arrives in order over another protocol, such as an HTTP upload.
//!
//! The file has no name while it is written, so that a broken upload or a crash leaves nothing behind; where the file
//! system has no unnamed files it has a hidden temporary one. [`FileUpload::commit`] makes it durable and gives it its
//! name in one step.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use penstock_protocol::digest::{Algorithm, Digest, Serial};
use penstock_sys::fs::{self, Dir, Kind, Open, Stat};

use super::orphans::PART;
use crate::net::handshake::random;
use crate::session::gatekeeper::ResolvedPath;

/// Bytes after which the kernel begins to write to the device, so that the last sync is short.
const WRITEBACK_BYTES: u64 = 8 << 20;

/// Permission bits of a new file, before the umask.
const FILE_MODE: u32 = 0o666;

/// An unfinished upload; dropped, it leaves nothing behind.
#[derive(Debug)]
pub struct FileUpload {
    parent: Dir,
    name: OsString,
    file: File,
    /// Temporary name, where the file system has no unnamed files.
    temporary: Option<OsString>,
    written: u64,
    flushed: u64,
    hashers: Vec<(Algorithm, Serial)>,
}

/// An upload that has its final name and is durable.
#[derive(Debug)]
pub struct CommittedUpload {
    /// True if the file is new.
    pub created: bool,
    /// The file, open for reading and writing.
    pub file: File,
    /// Metadata after the commit.
    pub stat: Stat,
    /// Digests of the content.
    pub digests: Vec<(Algorithm, Digest)>,
}

impl FileUpload {
    /// Begins an upload to `place`, whose parent directory exists. `bytes` is the size, if known: room for it is
    /// reserved. The content is digested with `algorithms` as it passes.
    ///
    /// # Errors
    /// When the parent does not exist, `place` is a directory, or there is no room.
    pub fn begin(
        place: &ResolvedPath,
        bytes: Option<u64>,
        algorithms: &[Algorithm],
    ) -> io::Result<Self> {
        if place.path.is_empty() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        let (parent, name) = place.root.parent(OsStr::from_bytes(&place.path))?;
        if kind_at(&parent, &name)?.is_some_and(|kind| kind != Kind::File) {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        let (file, temporary) = match parent.create_unnamed(FILE_MODE) {
            Ok(file) => (file, None),
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                let temporary = temporary_name();
                let how = Open { create_new: true, read: true, ..Open::creating(FILE_MODE) };
                (parent.open_file(Path::new(&temporary), &how)?, Some(temporary))
            }
            Err(error) => return Err(error),
        };
        let hashers = algorithms
            .iter()
            .filter_map(|algorithm| Some((*algorithm, Serial::new(*algorithm)?)))
            .collect();
        let upload = Self { parent, name, file, temporary, written: 0, flushed: 0, hashers };
        if let Some(bytes) = bytes.filter(|bytes| *bytes > 0) {
            fs::preallocate(&upload.file, bytes)?;
        }
        Ok(upload)
    }

    /// Appends `data` to the content.
    ///
    /// # Errors
    /// When the file system has no room or fails.
    pub fn write(&mut self, data: &[u8]) -> io::Result<()> {
        fs::write_all_at(&self.file, data, self.written)?;
        self.hashers.iter_mut().for_each(|(_, hasher)| hasher.update(data));
        self.written += data.len() as u64;
        if self.written - self.flushed >= WRITEBACK_BYTES {
            fs::start_writeback(&self.file, self.flushed, self.written - self.flushed)?;
            self.flushed = self.written;
        }
        Ok(())
    }

    /// Bytes written so far.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Makes the content durable under the final name, which replaces an existing file if `replace` is set. The digests
    /// of the content must equal those in `expected` that were computed.
    ///
    /// # Errors
    /// `InvalidData` for another digest, `AlreadyExists` without `replace`, or as the file system fails. Nothing is left
    /// behind then.
    pub fn commit(
        mut self,
        replace: bool,
        expected: &[(Algorithm, Digest)],
    ) -> io::Result<CommittedUpload> {
        let digests: Vec<_> = std::mem::take(&mut self.hashers)
            .into_iter()
            .map(|(algorithm, hasher)| (algorithm, hasher.finish()))
            .collect();
        for (algorithm, expected) in expected {
            let computed = digests.iter().find(|(computed, _)| computed == algorithm);
            if let Some((_, digest)) = computed.filter(|(_, digest)| digest != expected) {
                let text = format!("the content has {algorithm} {digest}, not {expected}");
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
        }
        // A preallocation longer than the content, or an earlier content of a device.
        self.file.set_len(self.written)?;
        fs::sync_all(&self.file)?;
        let created = self.put_name(replace)?;
        self.parent.sync_all()?;
        let stat = fs::stat_file(&self.file)?;
        Ok(CommittedUpload { created, file: self.file.try_clone()?, stat, digests })
    }

    /// Gives the file its name; returns true if the name is new.
    fn put_name(&mut self, replace: bool) -> io::Result<bool> {
        let name = Path::new(&self.name);
        let linked = match &self.temporary {
            None => self.parent.link(&self.file, name),
            Some(temporary) => self.parent.rename_noreplace(Path::new(temporary), name),
        };
        match linked {
            Ok(()) => {
                self.temporary = None;
                return Ok(true);
            }
            Err(error) if replace && error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        if kind_at(&self.parent, &self.name)? == Some(Kind::Directory) {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        if self.temporary.is_none() {
            let temporary = temporary_name();
            self.parent.link(&self.file, Path::new(&temporary))?;
            self.temporary = Some(temporary);
        }
        let temporary = self.temporary.as_ref().map(Path::new).unwrap_or(name);
        self.parent.rename(temporary, name)?;
        self.temporary = None;
        Ok(false)
    }
}

impl Drop for FileUpload {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            let _ = self.parent.remove_file(Path::new(temporary));
        }
    }
}

fn kind_at(parent: &Dir, name: &OsStr) -> io::Result<Option<Kind>> {
    match parent.stat(Path::new(name)) {
        Ok(stat) => Ok(Some(stat.kind)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// A hidden name that no other upload has.
fn temporary_name() -> OsString {
    let bytes: [u8; 16] = random();
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    OsString::from(format!(".penstock-{digits}{PART}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(directory: &Path, path: &str) -> ResolvedPath {
        ResolvedPath {
            root: Dir::open(directory).unwrap(),
            path: path.as_bytes().to_vec(),
            shown: format!("/{path}"),
        }
    }

    fn names(directory: &Path) -> Vec<OsString> {
        let mut names: Vec<_> =
            std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    }

    #[test]
    fn committed_upload_replaces_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let here = directory.path();
        for (content, adler32, replace) in [("first", "06570229", false), ("2", "00330033", true)] {
            let mut upload =
                FileUpload::begin(&place(here, "f"), Some(100), &[Algorithm::Adler32]).unwrap();
            upload.write(content.as_bytes()).unwrap();
            let committed = upload.commit(replace, &[]).unwrap();
            assert_eq!(committed.created, !replace);
            assert_eq!(committed.stat.size, content.len() as u64);
            assert_eq!(std::fs::read_to_string(here.join("f")).unwrap(), content);
            assert_eq!(committed.digests[0].1.to_string(), adler32);
        }
        let mut upload = FileUpload::begin(&place(here, "f"), None, &[]).unwrap();
        upload.write(b"third").unwrap();
        assert_eq!(upload.commit(false, &[]).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read_to_string(here.join("f")).unwrap(), "2");
        assert_eq!(names(here), ["f"]);
    }

    #[test]
    fn dropped_upload_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let mut upload = FileUpload::begin(&place(directory.path(), "f"), None, &[]).unwrap();
        upload.write(&[7; 100_000]).unwrap();
        drop(upload);
        assert!(names(directory.path()).is_empty());
    }

    #[test]
    fn other_digest_keeps_the_old_file() {
        let directory = tempfile::tempdir().unwrap();
        let here = directory.path();
        std::fs::write(here.join("f"), "old").unwrap();
        let expected = [(Algorithm::Adler32, Digest(vec![0, 0, 0, 1]))];
        let mut upload = FileUpload::begin(&place(here, "f"), None, &[Algorithm::Adler32]).unwrap();
        upload.write(b"new").unwrap();
        let refused = upload.commit(true, &expected).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
        assert_eq!(std::fs::read_to_string(here.join("f")).unwrap(), "old");
        assert_eq!(names(here), ["f"]);
    }

    #[test]
    fn directories_are_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("d")).unwrap();
        for path in ["d", ""] {
            let refused = FileUpload::begin(&place(directory.path(), path), None, &[]).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::IsADirectory);
        }
        let upload = FileUpload::begin(&place(directory.path(), "e"), None, &[]).unwrap();
        std::fs::create_dir(directory.path().join("e")).unwrap();
        assert_eq!(upload.commit(true, &[]).unwrap_err().kind(), io::ErrorKind::IsADirectory);
        assert_eq!(names(directory.path()), ["d", "e"]);
        let missing = FileUpload::begin(&place(directory.path(), "x/y"), None, &[]).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
