//! A file that arrives over another protocol, such as an HTTP upload: in order, or in ranges at once.
//!
//! The file has no name while it is written, so that a broken upload or a crash leaves nothing behind; where the file
//! system has no unnamed files it has a hidden temporary one. Each range of the content has a [`RangeWriter`];
//! [`FileUpload::join`] checks that the ranges cover the content, and [`JoinedUpload::commit`] makes it durable and gives it
//! its name. Files of a block or more are written past the page cache where the file system permits; without syncs
//! ([`UploadDurability::PageCache`]), larger ones alone.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use penstock_protocol::digest::{Algorithm, Digest, DigestPart, RangeHasher, Serial, combine};
use penstock_sys::buffer::BUFFER_ALIGNMENT;
use penstock_sys::fs::{self, Dir, Kind, Open, Stat};

use super::block_writer::{BLOCK_BYTES, BlockWriter};
use super::hidden_names::{HiddenName, HiddenNames};
use super::name_locks::lock_name;
use crate::base::file_digest::catch_up;
use crate::session::gatekeeper::ResolvedPath;

/// Bytes in the page cache after which writing them to the device starts.
const WRITEBACK_BYTES: u64 = 8 << 20;

/// Largest content in bytes that stays in the page cache where nothing is synced.
const CACHED_BYTES_MAX: u64 = 16 << 20;

/// Permission bits of a new file, before the umask.
const FILE_MODE: u32 = 0o666;

/// Largest size of a content whose size is not known yet, in bytes.
const UNKNOWN_BYTES_MAX: u64 = u64::MAX >> 1;

/// Attempts to give a file its name while other processes create and remove that name.
const NAME_ATTEMPTS_MAX: usize = 100;

/// Condition of the file that has the name of an upload; `None` if no file has it.
pub type UploadCondition<'a> = &'a dyn Fn(Option<&Stat>) -> bool;

/// State of an upload when its commit returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UploadDurability {
    /// Content and name are on the device.
    Synced,
    /// Content and name may be in the page cache alone: a power cut within the writeback time of the kernel loses or damages
    /// the file.
    PageCache,
}

/// An upload in progress. Dropped without [`JoinedUpload::commit`], it leaves nothing behind.
#[derive(Debug)]
pub struct FileUpload {
    parent: Dir,
    name: OsString,
    file: Arc<File>,
    /// Temporary name, where the file system has no unnamed files.
    temporary: Option<HiddenName>,
    hidden_names: HiddenNames,
    /// Size as announced.
    announced: Option<u64>,
    /// True if the file has `O_DIRECT`.
    is_direct: bool,
    algorithms: Vec<Algorithm>,
    durability: UploadDurability,
}

/// An upload whose content is complete.
#[derive(Debug)]
pub struct JoinedUpload {
    upload: FileUpload,
    bytes: u64,
    digests: Vec<(Algorithm, Digest)>,
}

/// Writer of one range of an upload; ranges are written concurrently.
#[derive(Debug)]
pub struct RangeWriter {
    file: Arc<File>,
    start: u64,
    received: u64,
    path: WritePath,
    hashers: RangeHashers,
}

/// Way of a range to the device.
#[derive(Debug)]
enum WritePath {
    /// Through the page cache, with the number of bytes whose writeback has started.
    PageCache(u64),
    Direct(BlockWriter),
}

/// Hashers of one range.
#[derive(Debug)]
struct RangeHashers {
    parts: Vec<(Algorithm, RangeHasher)>,
    /// Algorithms that do not combine, of a range from the first byte.
    serial: Vec<(Algorithm, Serial)>,
}

/// A range that was written.
#[derive(Debug)]
pub struct WrittenRange {
    start: u64,
    bytes: u64,
    parts: Vec<(Algorithm, DigestPart)>,
    serial: Vec<(Algorithm, Serial)>,
}

/// An upload that has its final name, and is as durable as it was begun.
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
    /// reserved. The content is digested with `algorithms` as it passes. A hidden name, where one is needed, is one of
    /// `names`. The commit makes it as durable as `durability` says.
    ///
    /// # Errors
    /// When the parent does not exist, `place` is no regular file, or there is no room.
    pub fn begin(
        place: &ResolvedPath,
        bytes: Option<u64>,
        algorithms: &[Algorithm],
        names: &HiddenNames,
        durability: UploadDurability,
    ) -> io::Result<Self> {
        if place.path.is_empty() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        let (parent, name) = place.root.parent(OsStr::from_bytes(&place.path))?;
        match stat_at(&parent, &name)?.map(|stat| stat.kind) {
            None | Some(Kind::File) => {}
            Some(Kind::Directory) => return Err(io::ErrorKind::IsADirectory.into()),
            Some(_) => {
                let text = "a link or a special file, which is not replaced: remove it first";
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
            }
        }
        let (file, temporary) = match parent.create_unnamed(FILE_MODE) {
            Ok(file) => (file, None),
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                let temporary = names.reserve(&parent)?;
                let how = Open { create_new: true, read: true, ..Open::creating(FILE_MODE) };
                (parent.open_file(temporary.name(), &how)?, Some(temporary))
            }
            Err(error) => return Err(error),
        };
        let announced = bytes.filter(|bytes| *bytes > 0);
        let direct_bytes_min = match durability {
            UploadDurability::Synced => BLOCK_BYTES as u64,
            UploadDurability::PageCache => CACHED_BYTES_MAX + 1,
        };
        let is_large = announced.is_some_and(|bytes| bytes >= direct_bytes_min);
        let upload = Self {
            parent,
            name,
            is_direct: is_large && fs::set_direct(&file, true).is_ok(),
            file: Arc::new(file),
            temporary,
            hidden_names: names.clone(),
            announced,
            algorithms: algorithms.to_vec(),
            durability,
        };
        if let Some(bytes) = announced {
            fs::preallocate(&upload.file, bytes)?;
        }
        Ok(upload)
    }

    /// Withdraws the permissions that a source with the bits `mode` does not give, and makes the copy of a program a
    /// program; the umask applies.
    ///
    /// # Errors
    /// As the file system fails.
    pub fn take_mode(&self, mode: u32) -> io::Result<()> {
        let present = fs::stat_file(&self.file)?.mode;
        // The umask is seen in the bits for reading that it left.
        let execute = (present >> 2) & 0o111;
        fs::set_file_mode(&self.file, mode & 0o777 & (present | execute))
    }

    /// Keeps owner, group and permissions of the file that this one replaces, where permitted.
    fn keep_permissions(&self) -> io::Result<()> {
        let old = match self.parent.stat(Path::new(&self.name)) {
            Ok(old) if old.kind == Kind::File => old,
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => return Ok(()),
        };
        let new = fs::stat_file(&self.file)?;
        if old.uid != new.uid {
            // Only a privileged agent may.
            let _ = fs::set_file_owner(&self.file, Some(old.uid), None);
        }
        let mut mode = old.mode & 0o777;
        if old.gid != new.gid && fs::set_file_owner(&self.file, None, Some(old.gid)).is_err() {
            // Bits for the old group are not for another one.
            mode &= !0o070 | ((mode & 0o007) << 3);
        }
        match mode == new.mode & 0o777 {
            true => Ok(()),
            false => fs::set_file_mode(&self.file, mode),
        }
    }

    /// Alignment in bytes of the ranges that can be written concurrently.
    pub const RANGE_ALIGNMENT: u64 = BUFFER_ALIGNMENT as u64;

    /// Begins a range of at most `bytes` at `start`, a multiple of [`Self::RANGE_ALIGNMENT`].
    #[must_use]
    pub fn range(&self, start: u64, bytes: u64) -> RangeWriter {
        let file_bytes = self.announced.unwrap_or(UNKNOWN_BYTES_MAX);
        let file = Arc::clone(&self.file);
        let path = match self.is_direct {
            true => WritePath::Direct(BlockWriter::new(Arc::clone(&file), start, bytes)),
            false => WritePath::PageCache(0),
        };
        let (mut parts, mut serial) = (Vec::new(), Vec::new());
        for algorithm in &self.algorithms {
            let hasher = Some(*algorithm).filter(|one| combines(*one));
            match hasher.and_then(|one| RangeHasher::new(one, start, bytes, file_bytes)) {
                Some(hasher) => parts.push((*algorithm, hasher)),
                None if start == 0 => serial.extend(Some(*algorithm).zip(Serial::new(*algorithm))),
                None => {}
            }
        }
        let hashers = RangeHashers { parts, serial };
        RangeWriter { file, start, received: 0, path, hashers }
    }

    /// Begins the whole content as one range.
    #[must_use]
    pub fn whole(&self) -> RangeWriter {
        self.range(0, self.announced.unwrap_or(UNKNOWN_BYTES_MAX))
    }

    /// Takes the written ranges as the whole content of `file_bytes`. Digests that do not combine are those of a single
    /// range, or computed by reading the content again.
    ///
    /// # Errors
    /// `UnexpectedEof` if the ranges do not cover the content exactly, or as the file system fails.
    pub fn join(
        mut self,
        mut ranges: Vec<WrittenRange>,
        file_bytes: u64,
    ) -> io::Result<JoinedUpload> {
        ranges.retain(|range| range.bytes > 0 || file_bytes == 0);
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
        let is_padded = self.is_direct && !end.is_multiple_of(Self::RANGE_ALIGNMENT);
        if self.is_direct {
            fs::set_direct(&self.file, false)?;
            self.is_direct = false;
        }
        if is_padded || self.announced != Some(end) {
            // The padding of the last block, or a preallocation longer than the content.
            self.file.set_len(end)?;
        }
        let mut digests = Vec::new();
        for algorithm in std::mem::take(&mut self.algorithms) {
            if let Some(digest) = self.digest_of(algorithm, &mut ranges, end)? {
                digests.push((algorithm, digest));
            }
        }
        Ok(JoinedUpload { upload: self, bytes: end, digests })
    }

    /// Digest of a content of `bytes`.
    fn digest_of(
        &self,
        algorithm: Algorithm,
        ranges: &mut [WrittenRange],
        bytes: u64,
    ) -> io::Result<Option<Digest>> {
        let part = |range: &WrittenRange| {
            let part = range.parts.iter().find(|(of, _)| *of == algorithm)?;
            Some((range.start, range.bytes, part.1))
        };
        let parts: Option<Vec<_>> = ranges.iter().map(part).collect();
        let combined = parts.filter(|_| combines(algorithm));
        if let Some(digest) = combined.and_then(|parts| combine(algorithm, bytes, &parts)) {
            return Ok(Some(digest));
        }
        if let [only] = ranges
            && let Some(at) = only.serial.iter().position(|(of, _)| *of == algorithm)
        {
            return Ok(Some(only.serial.swap_remove(at).1.finish()));
        }
        let Some(mut serial) = Serial::new(algorithm) else { return Ok(None) };
        catch_up(&mut serial, &*self.file, bytes)?;
        Ok(Some(serial.finish()))
    }

    /// Gives the file its name if `condition` holds for the file that has it; returns true if the name is new.
    fn put_name(&mut self, replace: bool, condition: UploadCondition<'_>) -> io::Result<bool> {
        let _locked = lock_name(&self.parent, &self.name)?;
        for _ in 0..NAME_ATTEMPTS_MAX {
            let present = stat_at(&self.parent, &self.name)?;
            if !condition(present.as_ref()) {
                let text = "it changed during the upload";
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
            }
            match present {
                Some(present) if replace => return self.replace(&present).map(|()| false),
                _ => {}
            }
            match self.link_new() {
                Ok(()) => return Ok(true),
                // Another process created the file meanwhile.
                Err(error) if replace && error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }

    /// Gives the file its name, which no file has.
    fn link_new(&mut self) -> io::Result<()> {
        let name = Path::new(&self.name);
        match &self.temporary {
            None => self.parent.link(&self.file, name)?,
            Some(temporary) => self.parent.rename_noreplace(temporary.name(), name)?,
        }
        self.temporary = None;
        Ok(())
    }

    /// Gives the file the name of `present`.
    fn replace(&mut self, present: &Stat) -> io::Result<()> {
        if present.kind == Kind::Directory {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        let temporary = match self.temporary.take() {
            Some(temporary) => temporary,
            None => {
                let temporary = self.hidden_names.reserve(&self.parent)?;
                self.parent.link(&self.file, temporary.name())?;
                temporary
            }
        };
        // A file that keeps its temporary name is removed with this value.
        let temporary = self.temporary.insert(temporary);
        self.parent.rename(temporary.name(), Path::new(&self.name))?;
        self.temporary = None;
        Ok(())
    }
}

impl JoinedUpload {
    /// Size of the content in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The file, open for reading and writing.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.upload.file
    }

    /// Digests of the content.
    #[must_use]
    pub fn digests(&self) -> &[(Algorithm, Digest)] {
        &self.digests
    }

    /// Gives the content the final name, which replaces an existing file if `replace` is set, and makes both as durable as the
    /// upload was begun; permissions, owner and group of that file are kept where permitted. The digests of the content must
    /// equal those in `expected` that were computed.
    ///
    /// # Errors
    /// `InvalidData` for another digest, `AlreadyExists` without `replace`, or as the file system fails. Nothing is left
    /// behind then.
    pub fn commit(
        self,
        replace: bool,
        expected: &[(Algorithm, Digest)],
    ) -> io::Result<CommittedUpload> {
        self.commit_if(&|_| true, replace, expected)
    }

    /// Commits as [`Self::commit`] does, if `condition` holds for the file that has the name at that moment. Of several
    /// uploads of this process with one condition, the first makes it false for the others.
    ///
    /// # Errors
    /// As those of [`Self::commit`]; `AlreadyExists` if the condition does not hold.
    pub fn commit_if(
        self,
        condition: UploadCondition<'_>,
        replace: bool,
        expected: &[(Algorithm, Digest)],
    ) -> io::Result<CommittedUpload> {
        let Self { mut upload, digests, .. } = self;
        for (algorithm, expected) in expected {
            let computed = digests.iter().find(|(computed, _)| computed == algorithm);
            if let Some((_, digest)) = computed.filter(|(_, digest)| digest != expected) {
                let text = format!("the content has {algorithm} {digest}, not {expected}");
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
        }
        if replace {
            upload.keep_permissions()?;
        }
        let is_synced = upload.durability == UploadDurability::Synced;
        if is_synced {
            fs::sync_all(&upload.file)?;
        }
        let created = upload.put_name(replace, condition)?;
        if is_synced {
            upload.parent.sync_all()?;
        }
        let stat = fs::stat_file(&upload.file)?;
        Ok(CommittedUpload { created, file: Arc::clone(&upload.file), stat, digests })
    }
}

impl RangeHashers {
    fn update(&mut self, data: &[u8]) {
        self.parts.iter_mut().for_each(|(_, hasher)| hasher.update(data));
        self.serial.iter_mut().for_each(|(_, hasher)| hasher.update(data));
    }
}

impl RangeWriter {
    /// Appends `data` to the range.
    ///
    /// # Errors
    /// When the file system has no room or fails.
    pub fn write(&mut self, data: &[u8]) -> io::Result<()> {
        let hashers = &mut self.hashers;
        match &mut self.path {
            WritePath::Direct(writer) => writer.write(data, |block| hashers.update(block))?,
            WritePath::PageCache(flushed) => {
                fs::write_all_at(&self.file, data, self.start + self.received)?;
                hashers.update(data);
                let end = self.received + data.len() as u64;
                if end - *flushed >= WRITEBACK_BYTES {
                    fs::start_writeback(&self.file, self.start + *flushed, end - *flushed)?;
                    *flushed = end;
                }
            }
        }
        self.received += data.len() as u64;
        Ok(())
    }

    /// Bytes received so far.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Ends the range with the bytes received so far. Unless that is all of the range, its last bytes, less than
    /// [`FileUpload::RANGE_ALIGNMENT`], may be dropped.
    ///
    /// # Errors
    /// When the file system has no room or fails.
    pub fn finish(self, is_complete: bool) -> io::Result<WrittenRange> {
        let Self { start, received, path, mut hashers, .. } = self;
        let bytes = match path {
            WritePath::PageCache(_) => received,
            WritePath::Direct(writer) => {
                writer.finish(is_complete, |block| hashers.update(block))? - start
            }
        };
        let RangeHashers { parts, serial } = hashers;
        let parts = parts.into_iter().map(|(algorithm, hasher)| (algorithm, hasher.finish()));
        Ok(WrittenRange { start, bytes, parts: parts.collect(), serial })
    }
}

impl WrittenRange {
    /// Number of bytes that are written and digested.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Offset after the last byte.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.start + self.bytes
    }
}

/// True if digests of ranges give that of the content, for ranges of any size.
fn combines(algorithm: Algorithm) -> bool {
    algorithm.combines() && algorithm != Algorithm::Blake3
}

impl Drop for FileUpload {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            let _ = self.parent.remove_file(temporary.name());
        }
    }
}

fn stat_at(parent: &Dir, name: &OsStr) -> io::Result<Option<Stat>> {
    match parent.stat(Path::new(name)) {
        Ok(stat) => Ok(Some(stat)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYNCED: UploadDurability = UploadDurability::Synced;

    fn place(directory: &Path, path: &str) -> ResolvedPath {
        ResolvedPath {
            root: Dir::open(directory).unwrap(),
            path: path.as_bytes().to_vec(),
            shown: format!("/{path}"),
        }
    }

    fn hidden_names() -> HiddenNames {
        HiddenNames::open(&std::env::temp_dir().join("penstock-upload-tests")).unwrap()
    }

    fn names(directory: &Path) -> Vec<OsString> {
        let mut names: Vec<_> =
            std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    }

    /// Writes `content` as one range.
    fn upload(
        place: &ResolvedPath,
        announced: Option<u64>,
        algorithms: &[Algorithm],
        content: &[u8],
    ) -> JoinedUpload {
        let upload =
            FileUpload::begin(place, announced, algorithms, &hidden_names(), SYNCED).unwrap();
        let mut range = upload.whole();
        content.chunks(99_999).for_each(|chunk| range.write(chunk).unwrap());
        let range = range.finish(true).unwrap();
        upload.join(vec![range], content.len() as u64).unwrap()
    }

    fn content(bytes: usize) -> Vec<u8> {
        let mut random = penstock_random::Random::new(bytes as u64);
        let mut content = vec![0; bytes];
        random.fill(&mut content);
        content
    }

    #[test]
    fn committed_upload_replaces_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let here = directory.path();
        let adler = [Algorithm::Adler32];
        for (content, adler32, replace) in [("first", "06570229", false), ("2", "00330033", true)] {
            let upload = upload(&place(here, "f"), Some(100), &adler, content.as_bytes());
            let committed = upload.commit(replace, &[]).unwrap();
            assert_eq!(committed.created, !replace);
            assert_eq!(committed.stat.size, content.len() as u64);
            assert_eq!(std::fs::read_to_string(here.join("f")).unwrap(), content);
            assert_eq!(committed.digests[0].1.to_string(), adler32);
        }
        let third = upload(&place(here, "f"), None, &[], b"third");
        assert_eq!(third.commit(false, &[]).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read_to_string(here.join("f")).unwrap(), "2");
        assert_eq!(names(here), ["f"]);
    }

    #[test]
    fn one_of_concurrent_conditions_holds() {
        let directory = tempfile::tempdir().unwrap();
        let here = directory.path();
        for round in 0..200 {
            let name = format!("f{}", round % 2);
            let before = stat_at(&Dir::open(here).unwrap(), OsStr::new(&name)).unwrap();
            let state = |stat: Option<&Stat>| stat.map(|stat| (stat.inode, stat.mtime));
            let uploads: Vec<_> =
                (0..4).map(|_| upload(&place(here, &name), None, &[], b"x")).collect();
            let succeeded: Vec<bool> = std::thread::scope(|scope| {
                let commit = |upload: JoinedUpload| {
                    upload.commit_if(&|now| state(now) == state(before.as_ref()), true, &[])
                };
                let all: Vec<_> =
                    uploads.into_iter().map(|one| scope.spawn(move || commit(one))).collect();
                all.into_iter().map(|one| one.join().unwrap().is_ok()).collect()
            });
            assert_eq!(succeeded.iter().filter(|one| **one).count(), 1, "{round}: {succeeded:?}");
        }
        assert_eq!(names(here), ["f0", "f1"]);
    }

    #[test]
    fn replaced_file_keeps_its_mode() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("f");
        std::fs::write(&file, "old").unwrap();
        for mode in [0o600, 0o640, 0o444, 0o755, 0o666] {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            let upload = upload(&place(directory.path(), "f"), None, &[], b"new");
            assert!(!upload.commit(true, &[]).unwrap().created);
            assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o7777, mode);
        }
    }

    #[test]
    fn sizes_around_blocks_are_exact() {
        let directory = tempfile::tempdir().unwrap();
        let here = directory.path();
        let algorithms = [Algorithm::Adler32, Algorithm::Md5, Algorithm::Blake3];
        for blocks in [0, 1, 2, 7, 8, 9] {
            for more in [-4097, -4096, -1, 0, 1, 4095, 4096] {
                let Ok(bytes) = usize::try_from(blocks * BLOCK_BYTES as i64 + more) else {
                    continue;
                };
                let content = content(bytes);
                for announced in [Some(bytes as u64), Some(9 << 20), None] {
                    let upload = upload(&place(here, "f"), announced, &algorithms, &content);
                    let committed = upload.commit(true, &[]).unwrap();
                    assert!(std::fs::read(here.join("f")).unwrap() == content, "{bytes}");
                    for (algorithm, digest) in committed.digests {
                        let mut serial = Serial::new(algorithm).unwrap();
                        serial.update(&content);
                        assert_eq!(digest, serial.finish(), "{algorithm} of {bytes}");
                    }
                    assert!(!fs::is_direct(&committed.file).unwrap());
                }
            }
        }
    }

    /// Ranges end early at any byte, and other ranges continue where the writer says.
    #[test]
    fn ranges_join_in_any_order() {
        let directory = tempfile::tempdir().unwrap();
        let here = directory.path();
        let algorithms = [Algorithm::Adler32, Algorithm::Md5, Algorithm::Crc32c];
        for bytes in [100_000, 10_000_001_u64] {
            let content = content(usize::try_from(bytes).unwrap());
            let part = |start: u64, end: u64| {
                &content[usize::try_from(start).unwrap()..usize::try_from(end).unwrap()]
            };
            let upload = FileUpload::begin(
                &place(here, "f"),
                Some(bytes),
                &algorithms,
                &hidden_names(),
                SYNCED,
            )
            .unwrap();
            let middle = bytes / 2 / FileUpload::RANGE_ALIGNMENT * FileUpload::RANGE_ALIGNMENT;
            let mut ranges = Vec::new();
            for (mut start, end) in [(middle, bytes), (0, middle)] {
                for stop in [start + 1, start + 4097, start + 30_000, end] {
                    let mut range = upload.range(start, end - start);
                    part(start, stop).chunks(999).for_each(|chunk| range.write(chunk).unwrap());
                    let range = range.finish(stop == end).unwrap();
                    assert!(range.end() <= stop && range.end() + 4096 > stop);
                    start = range.end();
                    ranges.push(range);
                }
            }
            let joined = upload.join(ranges, bytes).unwrap();
            let digests: Vec<_> = algorithms
                .iter()
                .map(|algorithm| {
                    let mut serial = Serial::new(*algorithm).unwrap();
                    serial.update(&content);
                    (*algorithm, serial.finish())
                })
                .collect();
            assert_eq!(joined.digests, digests);
            joined.commit(true, &digests).unwrap();
            assert!(std::fs::read(here.join("f")).unwrap() == content);
        }
        for gap in [(4096, 9000), (0, 9000), (0, 11_000)] {
            let upload = FileUpload::begin(
                &place(here, "g"),
                Some(10_000),
                &algorithms,
                &hidden_names(),
                SYNCED,
            )
            .unwrap();
            let mut range = upload.range(gap.0, 10_000);
            range.write(&vec![0; usize::try_from(gap.1 - gap.0).unwrap()]).unwrap();
            let refused = upload.join(vec![range.finish(true).unwrap()], 10_000).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::UnexpectedEof);
        }
    }

    #[test]
    fn unsynced_uploads_keep_content() {
        let directory = tempfile::tempdir().unwrap();
        let cached = usize::try_from(CACHED_BYTES_MAX).unwrap();
        for bytes in [0, 1, BLOCK_BYTES, cached - 1, cached, cached + 1] {
            let place = place(directory.path(), "f");
            let announced = Some(bytes as u64);
            let names = hidden_names();
            let unsynced = UploadDurability::PageCache;
            let upload = FileUpload::begin(&place, announced, &[], &names, unsynced).unwrap();
            assert!(!upload.is_direct || bytes > cached, "{bytes}");
            let content = content(bytes);
            let mut range = upload.whole();
            content.chunks(1 << 20).for_each(|chunk| range.write(chunk).unwrap());
            let joined = upload.join(vec![range.finish(true).unwrap()], bytes as u64).unwrap();
            joined.commit(true, &[]).unwrap();
            assert!(std::fs::read(directory.path().join("f")).unwrap() == content, "{bytes}");
        }
    }

    #[test]
    fn dropped_upload_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        for bytes in [100_000, 9 << 20] {
            let place = place(directory.path(), "f");
            let upload =
                FileUpload::begin(&place, Some(bytes), &[], &hidden_names(), SYNCED).unwrap();
            let mut range = upload.whole();
            range.write(&[7; 100_000]).unwrap();
            drop((upload, range));
            assert!(names(directory.path()).is_empty());
        }
    }

    #[test]
    fn other_digest_keeps_the_old_file() {
        let directory = tempfile::tempdir().unwrap();
        let here = directory.path();
        std::fs::write(here.join("f"), "old").unwrap();
        let expected = [(Algorithm::Adler32, Digest(vec![0, 0, 0, 1]))];
        let upload = upload(&place(here, "f"), None, &[Algorithm::Adler32], b"new");
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
            let refused = FileUpload::begin(
                &place(directory.path(), path),
                None,
                &[],
                &hidden_names(),
                SYNCED,
            )
            .unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::IsADirectory);
        }
        let upload = upload(&place(directory.path(), "e"), None, &[], b"");
        std::fs::create_dir(directory.path().join("e")).unwrap();
        assert_eq!(upload.commit(true, &[]).unwrap_err().kind(), io::ErrorKind::IsADirectory);
        assert_eq!(names(directory.path()), ["d", "e"]);
        let missing =
            FileUpload::begin(&place(directory.path(), "x/y"), None, &[], &hidden_names(), SYNCED)
                .unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
