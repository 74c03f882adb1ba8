//! A file that arrives over another protocol, such as an HTTP upload: in order, or in ranges at once.
//!
//! The file has no name while it is written, so that a broken upload or a crash leaves nothing behind; where the file
//! system has no unnamed files it has a hidden temporary one. [`FileUpload::commit`] makes it durable and gives it its
//! name in one step.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use penstock_protocol::digest::{Algorithm, Digest, DigestPart, RangeHasher, Serial, combine};
use penstock_sys::fs::{self, Dir, Kind, Open, Stat};

use super::orphans::PART;
use crate::base::file_digest::catch_up;
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
    file: Arc<File>,
    /// Temporary name, where the file system has no unnamed files.
    temporary: Option<OsString>,
    written: u64,
    flushed: u64,
    hashers: Vec<(Algorithm, Serial)>,
    /// Digests that the parts of ranges gave.
    combined: Vec<(Algorithm, Digest)>,
}

/// Writer of one range of an upload; ranges are written concurrently.
#[derive(Debug)]
pub struct RangeWriter {
    file: Arc<File>,
    start: u64,
    written: u64,
    flushed: u64,
    hashers: Vec<(Algorithm, RangeHasher)>,
}

/// A range that was written.
#[derive(Debug)]
pub struct WrittenRange {
    start: u64,
    bytes: u64,
    parts: Vec<(Algorithm, DigestPart)>,
}

/// An upload that has its final name and is durable.
#[derive(Debug)]
pub struct CommittedUpload {
    /// True if the file is new.
    pub created: bool,
    /// The file, open for reading and writing.
    pub file: Arc<File>,
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
        let upload = Self {
            parent,
            name,
            file: Arc::new(file),
            temporary,
            written: 0,
            flushed: 0,
            hashers,
            combined: Vec::new(),
        };
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

    /// Begins a range of at most `bytes` at `start` of a content of `file_bytes`.
    #[must_use]
    pub fn range(&self, start: u64, bytes: u64, file_bytes: u64) -> RangeWriter {
        let hasher = |algorithm| RangeHasher::new(algorithm, start, bytes, file_bytes);
        let hashers = self.hashers.iter().map(|(algorithm, _)| *algorithm);
        let hashers =
            hashers.filter_map(|algorithm| Some((algorithm, hasher(algorithm)?))).collect();
        RangeWriter { file: Arc::clone(&self.file), start, written: 0, flushed: 0, hashers }
    }

    /// Takes the written ranges as the whole content of `file_bytes`. Digests that do not combine are computed by
    /// reading the content again.
    ///
    /// # Errors
    /// `UnexpectedEof` if the ranges do not cover the content exactly, or as reading fails.
    pub fn join(&mut self, mut ranges: Vec<WrittenRange>, file_bytes: u64) -> io::Result<()> {
        ranges.retain(|range| range.bytes > 0);
        ranges.sort_by_key(|range| range.start);
        let mut end = 0;
        for range in &ranges {
            if range.start != end {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            end += range.bytes;
        }
        if end != file_bytes {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for (algorithm, mut serial) in std::mem::take(&mut self.hashers) {
            let part = |range: &WrittenRange| {
                let part = range.parts.iter().find(|(of, _)| *of == algorithm)?;
                Some((range.start, range.bytes, part.1))
            };
            let parts: Option<Vec<_>> = ranges.iter().map(part).collect();
            let combines = algorithm.combines() && algorithm != Algorithm::Blake3;
            let digest = parts.filter(|_| combines).and_then(|p| combine(algorithm, end, &p));
            let digest = match digest {
                Some(digest) => digest,
                None => {
                    catch_up(&mut serial, &*self.file, end)?;
                    serial.finish()
                }
            };
            self.combined.push((algorithm, digest));
        }
        self.written = end;
        Ok(())
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
        let mut digests = std::mem::take(&mut self.combined);
        let hashers = std::mem::take(&mut self.hashers).into_iter();
        digests.extend(hashers.map(|(algorithm, hasher)| (algorithm, hasher.finish())));
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
        Ok(CommittedUpload { created, file: Arc::clone(&self.file), stat, digests })
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

impl RangeWriter {
    /// Appends `data` to the range.
    ///
    /// # Errors
    /// When the file system has no room or fails.
    pub fn write(&mut self, data: &[u8]) -> io::Result<()> {
        fs::write_all_at(&self.file, data, self.start + self.written)?;
        self.hashers.iter_mut().for_each(|(_, hasher)| hasher.update(data));
        self.written += data.len() as u64;
        let unflushed = self.written - self.flushed;
        if unflushed >= WRITEBACK_BYTES {
            fs::start_writeback(&self.file, self.start + self.flushed, unflushed)?;
            self.flushed = self.written;
        }
        Ok(())
    }

    /// Bytes written so far.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Ends the range with the bytes written so far.
    #[must_use]
    pub fn finish(self) -> WrittenRange {
        let parts =
            self.hashers.into_iter().map(|(algorithm, hasher)| (algorithm, hasher.finish()));
        WrittenRange { start: self.start, bytes: self.written, parts: parts.collect() }
    }
}

impl WrittenRange {
    /// Offset after the last byte.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.start + self.bytes
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
    fn ranges_join_in_any_order() {
        let directory = tempfile::tempdir().unwrap();
        let here = directory.path();
        let content: Vec<u8> = (0..100_000_u32).map(|at| (at * 7 % 251) as u8).collect();
        let algorithms = [Algorithm::Adler32, Algorithm::Md5, Algorithm::Crc32c];
        let mut whole = FileUpload::begin(&place(here, "whole"), None, &algorithms).unwrap();
        whole.write(&content).unwrap();
        let mut expected = whole.commit(true, &[]).unwrap().digests;
        let bytes = content.len() as u64;
        let mut upload = FileUpload::begin(&place(here, "f"), Some(bytes), &algorithms).unwrap();
        let mut ranges = Vec::new();
        // The second range ends early, and another continues it.
        for (start, end) in [(70_000, bytes), (0, 1), (1, 30_000), (30_000, 70_000)] {
            let mut range = upload.range(start, bytes - start, bytes);
            let content = &content[usize::try_from(start).unwrap()..usize::try_from(end).unwrap()];
            content.chunks(999).for_each(|chunk| range.write(chunk).unwrap());
            ranges.push(range.finish());
        }
        upload.join(ranges, bytes).unwrap();
        let committed = upload.commit(true, &expected).unwrap();
        assert_eq!(std::fs::read(here.join("f")).unwrap(), content);
        let mut digests = committed.digests;
        digests.sort_by_key(|(algorithm, _)| algorithm.to_string());
        expected.sort_by_key(|(algorithm, _)| algorithm.to_string());
        assert_eq!(digests, expected);
        for gap in [(1, 9), (0, 9), (0, 11)] {
            let mut upload = FileUpload::begin(&place(here, "g"), Some(10), &algorithms).unwrap();
            let mut range = upload.range(gap.0, 10, 10);
            range.write(&vec![0; usize::try_from(gap.1 - gap.0).unwrap()]).unwrap();
            let refused = upload.join(vec![range.finish()], 10).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::UnexpectedEof);
        }
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
