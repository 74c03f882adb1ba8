//! Destination of a session: final and temporary names, existing files, metadata.
//!
//! A file is written under a hidden temporary name beside its final one and renamed when it is complete
//! and durable. The partial name of a file written block by block depends only on the caller, the
//! file's name and its source, so that any later command for the same file finds it. All paths are
//! confined beneath one directory.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use penstock_protocol::block::PACK_ALIGN_BYTES_MIN;
use penstock_protocol::control::{Failure, FailureKind};
use penstock_protocol::digest::{Algorithm, Digest, Serial};
use penstock_protocol::journal::SourceIdentity;
use penstock_protocol::manifest::{Entry, EntryKind, RelativePath, display_path};
use penstock_protocol::open::{Existing, Options};
use penstock_protocol::receiver::DestinationCheck;
use penstock_protocol::sender::DIFFERS;
use penstock_protocol::wire::{Bytes, WireFormat};
use penstock_sys::buffer::BUFFER_ALIGNMENT;
use penstock_sys::fs::{self, Dir, Open, Timestamp};

use super::file::{FileEvent, Parent, SinkFile, SinkFileState, TemporaryNames};
use super::file_locks::FileLocks;
use super::resume_journal::ResumeJournal;
use super::storage::{DirectoryHandle, StoredFile, identify};
use crate::base::convert::{native, time};
use crate::base::engine::Engine;
use crate::base::file_digest::digest_file;
use crate::base::lock::lock;
use crate::base::temporary_name::PART_SUFFIX;

/// Limit of cached open directories.
const PARENTS_MAX: usize = 512;

/// Size from which files are written with direct I/O and journalled.
pub(super) const LARGE_BYTES_MIN: u64 = 1 << 20;

/// Callback that ends sessions without a client that hold this partial file.
pub type ReleasePartial = dyn Fn(&OsStr) + Send + Sync;

/// Target of a transfer.
#[derive(Debug)]
pub struct TransferTarget {
    /// Directory that confines the transfer.
    pub base: Arc<dyn DirectoryHandle>,
    /// Name of a single file there, if not its own.
    pub rename: Option<OsString>,
    /// Transfer key, equal for repetitions of one command only.
    pub key: [u8; 16],
    /// Set when the sender may set owners and set-user-id bits.
    pub trusted: bool,
    /// Set when the directory was made for this transfer, so that its own name may not be durable.
    pub is_new: bool,
}

impl TransferTarget {
    /// Creates a target in a directory of the kernel.
    #[must_use]
    pub fn new(at: OpenTarget, key: [u8; 16], trusted: bool) -> Self {
        let OpenTarget { base, rename, is_new } = at;
        Self { base: Arc::new(base), rename, key, trusted, is_new }
    }
}

/// Directory of the kernel that receives a transfer.
#[derive(Debug)]
pub struct OpenTarget {
    /// Directory that confines the transfer.
    pub base: Dir,
    /// Name of a single file there, if not its own.
    pub rename: Option<OsString>,
    /// Set when it was made for this transfer.
    pub is_new: bool,
}

/// The destination of one session.
pub struct Destination {
    pub(super) base: Arc<Parent>,
    /// Name of a single file here, if not its own.
    rename: Option<OsString>,
    /// Name of the caller; part of partial names.
    pub(super) caller: String,
    /// Prefix of temporary names private to this transfer.
    pub(super) mark: String,
    /// Set when the sender acts for the user of this process and may set owners and set-user-id bits.
    trusted: bool,
    pub(super) options: Options,
    pub(super) engine: Engine,
    /// Resume journal of unfinished files.
    pub journal: Arc<ResumeJournal>,
    parents: Mutex<HashMap<PathBuf, Arc<Parent>>>,
    pub(super) directories: Mutex<Vec<Arc<Entry>>>,
    made: Mutex<HashSet<PathBuf>>,
    /// Directories below the base that received files.
    pub(super) folders: Mutex<HashSet<PathBuf>>,
    /// One directory on each other file system mounted below the base.
    pub(super) mounts: Mutex<HashMap<u64, Arc<Parent>>>,
    /// Set by changes that syncs of files and of their directories do not cover.
    pub(super) needs_filesystem_sync: AtomicBool,
    umask: u32,
    /// Warnings about rejected attributes, until [`Destination::take_warnings`].
    warnings: Mutex<Vec<(RelativePath, Failure)>>,
    /// Set when skipped files are read for their digest.
    pub digest_skipped: AtomicBool,
    /// Set when the file system has no direct I/O.
    no_direct: AtomicBool,
    /// Size from which files are journalled.
    pub(super) large_bytes_min: u64,
    /// Locks of files being written, if used.
    locks: Option<FileLocks>,
    pub(super) release_partial: Option<Arc<ReleasePartial>>,
    /// Set after waiting for a lock in vain.
    pub(super) no_lock_waits: AtomicBool,
}

impl std::fmt::Debug for Destination {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Destination").field("base", &self.base).finish_non_exhaustive()
    }
}

/// Converts an error of the destination to a failure, permanent or transient by its kind.
pub(crate) fn destination(error: &io::Error) -> Failure {
    use io::ErrorKind::{
        AlreadyExists, InvalidFilename, IsADirectory, NotADirectory, PermissionDenied,
        ReadOnlyFilesystem,
    };
    let kind = match error.kind() {
        AlreadyExists | InvalidFilename | IsADirectory | NotADirectory | PermissionDenied
        | ReadOnlyFilesystem => FailureKind::Refused,
        _ => FailureKind::Destination,
    };
    Failure::new(kind, fs::describe(error))
}

impl Destination {
    /// Creates the destination of `caller` at `target`. Files written as a whole have temporary names
    /// that begin with `mark`.
    ///
    /// # Errors
    /// If the target directory no longer exists.
    pub fn new(
        target: TransferTarget,
        caller: &str,
        mark: String,
        options: Options,
        engine: Engine,
        journal: ResumeJournal,
    ) -> io::Result<Self> {
        let identity = identify(&*target.base)?;
        let device = identity.device;
        let needs_filesystem_sync = target.is_new || options.inplace;
        let base = Arc::new(Parent { dir: target.base, device, identity, is_fresh: false });
        Ok(Self {
            base,
            rename: target.rename,
            caller: caller.to_owned(),
            mark,
            trusted: target.trusted,
            options,
            engine,
            journal: Arc::new(journal),
            parents: Mutex::default(),
            directories: Mutex::default(),
            made: Mutex::default(),
            folders: Mutex::default(),
            mounts: Mutex::default(),
            needs_filesystem_sync: AtomicBool::new(needs_filesystem_sync),
            umask: penstock_sys::machine::umask(),
            warnings: Mutex::default(),
            digest_skipped: AtomicBool::new(false),
            no_direct: AtomicBool::new(false),
            large_bytes_min: LARGE_BYTES_MIN,
            locks: None,
            release_partial: None,
            no_lock_waits: AtomicBool::new(false),
        })
    }

    /// Uses these locks for every file written.
    #[must_use]
    pub fn with_locks(mut self, locks: Option<FileLocks>) -> Self {
        self.locks = locks;
        self
    }

    /// Uses `release` to free partial files held by other sessions.
    #[must_use]
    pub fn with_release(mut self, release: Option<Arc<ReleasePartial>>) -> Self {
        self.release_partial = release;
        self
    }

    /// Sets the size from which files are journalled.
    #[cfg(test)]
    pub(super) fn journalling_from(mut self, bytes: u64) -> Self {
        self.large_bytes_min = bytes;
        self
    }

    /// Directory that confines the transfer.
    #[must_use]
    pub fn base(&self) -> &Parent {
        &self.base
    }

    fn parent_of(&self, path: &RelativePath) -> io::Result<(Arc<Parent>, OsString)> {
        if let Some(name) = &self.rename {
            return Ok((Arc::clone(&self.base), name.clone()));
        }
        let path = native(path);
        let name = path.file_name().map(OsString::from).unwrap_or_default();
        let above = path.parent().unwrap_or(Path::new(""));
        if above.as_os_str().is_empty() {
            return Ok((Arc::clone(&self.base), name));
        }
        if let Some(parent) = lock(&self.parents).get(above) {
            return Ok((Arc::clone(parent), name));
        }
        let dir = match self.base.dir.open_dir(above) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.base.dir.create_dir_all(above, 0o777)?;
                self.base.dir.open_dir(above)?
            }
            other => other?,
        };
        let identity = identify(&*dir)?;
        let device = identity.device;
        let is_fresh = lock(&self.made).contains(above);
        let parent = Arc::new(Parent { dir, device, identity, is_fresh });
        if device != self.base.device {
            lock(&self.mounts).entry(device).or_insert_with(|| Arc::clone(&parent));
        }
        let mut parents = lock(&self.parents);
        if parents.len() >= PARENTS_MAX {
            parents.clear();
        }
        parents.insert(above.to_owned(), Arc::clone(&parent));
        Ok((parent, name))
    }

    /// Inspects the destination of an entry and creates entries without data. Returns the file if data
    /// is needed.
    pub fn check(&self, file: u64, entry: &Arc<Entry>) -> (DestinationCheck, Option<SinkFile>) {
        let verdict = match entry.kind {
            EntryKind::Directory => self.make_directory(entry),
            EntryKind::Symlink => self.make_link(entry),
            EntryKind::File => match self.check_file(file, entry) {
                Ok((verdict, sink)) => return (verdict, sink),
                Err(failure) => Err(failure),
            },
        };
        let verdict = verdict
            .map_or_else(DestinationCheck::Failed, |()| DestinationCheck::Done(Digest(Vec::new())));
        (verdict, None)
    }

    fn make_directory(&self, entry: &Arc<Entry>) -> Result<(), Failure> {
        let (parent, name) = self.parent_of(&entry.path).map_err(|error| destination(&error))?;
        match parent.dir.create_dir(name.as_ref(), 0o700) {
            Ok(()) => {
                lock(&self.made).insert(native(&entry.path).to_owned());
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let there = parent.dir.stat(name.as_ref()).map_err(|error| destination(&error))?;
                let leads_to = || self.base.dir.stat_follow(native(&entry.path));
                match there.kind {
                    fs::Kind::Directory => {}
                    // The linked directory keeps its mode, owner and times.
                    fs::Kind::Symlink
                        if leads_to().is_ok_and(|stat| stat.kind == fs::Kind::Directory) =>
                    {
                        return Ok(());
                    }
                    fs::Kind::Symlink => {
                        return Err(in_the_way("a link to no directory below the target"));
                    }
                    _ => return Err(in_the_way("something that is not a directory")),
                }
            }
            Err(error) => return Err(destination(&error)),
        }
        lock(&self.directories).push(Arc::clone(entry));
        Ok(())
    }

    fn make_link(&self, entry: &Arc<Entry>) -> Result<(), Failure> {
        let make = || -> io::Result<()> {
            let (parent, name) = self.parent_of(&entry.path)?;
            let target = PathBuf::from(OsString::from_vec(entry.link.0.clone()));
            let (name, dir) = (Path::new(&name), &*parent.dir);
            if dir.read_link(name).is_ok_and(|there| there == target) {
                let there = dir.stat(name)?;
                let has_owner = (there.uid, there.gid) == (entry.uid, entry.gid);
                if time(there.mtime) == entry.modified && (has_owner || !self.gives_files_away()) {
                    return Ok(());
                }
            }
            self.needs_filesystem_sync.store(true, Ordering::SeqCst);
            let temporary = self.whole_name(entry);
            let temporary = Path::new(&temporary);
            let _ = dir.remove_file(temporary);
            dir.symlink(&target, temporary)?;
            self.set_owner(dir, temporary, entry)?;
            self.set_xattrs(entry, |name, value| dir.set_xattr(temporary, name, value))?;
            dir.set_times(temporary, timestamp(entry))?;
            dir.rename(temporary, name).inspect_err(|_| {
                let _ = dir.remove_file(temporary);
            })
        };
        make().map_err(|error| destination(&error))
    }

    pub(super) fn gives_files_away(&self) -> bool {
        self.trusted && penstock_sys::machine::is_superuser()
    }

    fn mode(&self, entry: &Entry) -> u32 {
        entry.mode & if self.trusted { 0o7777 } else { 0o1777 }
    }

    fn set_owner(&self, dir: &dyn DirectoryHandle, path: &Path, entry: &Entry) -> io::Result<()> {
        if !self.gives_files_away() {
            return Ok(());
        }
        match dir.set_owner(path, entry.uid, entry.gid) {
            // Only the superuser can change owners.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
            other => other,
        }
    }

    fn check_file(
        &self,
        file: u64,
        entry: &Arc<Entry>,
    ) -> Result<(DestinationCheck, Option<SinkFile>), Failure> {
        let (parent, name) = self.parent_of(&entry.path).map_err(|error| destination(&error))?;
        let there = if parent.is_fresh { None } else { stat_if_there(&*parent.dir, &name)? };
        if there.is_some_and(|stat| stat.kind == fs::Kind::Directory) {
            return Err(in_the_way("a directory"));
        }
        if let Some(fs::Kind::Other(what)) = there.map(|stat| stat.kind) {
            return Err(in_the_way(&format!("a {what}")));
        }
        // Files are never written through a link; a rename replaces a link by itself.
        if self.options.inplace && there.is_some_and(|stat| stat.kind == fs::Kind::Symlink) {
            parent.dir.remove_file(name.as_ref()).map_err(|error| destination(&error))?;
        }
        let partial = self.partial(entry, &parent, &name);
        let same = there.is_some_and(|stat| {
            stat.kind == fs::Kind::File
                && stat.size == entry.bytes
                && time(stat.mtime) == entry.modified
        });
        if same && !self.options.compare_digest {
            self.remove_unfinished(partial.as_ref(), &parent);
            return Ok((
                DestinationCheck::Skip(self.digest_of_skipped(&*parent.dir, &name)?),
                None,
            ));
        }
        let file_lock = match &self.locks {
            Some(locks) => Some(locks.lock(&parent, &name)?),
            None => None,
        };
        let same_size = there.is_some_and(|stat| {
            stat.kind == fs::Kind::File && stat.size == entry.bytes && entry.bytes > 0
        });
        let compare = (self.options.compare_digest && same_size)
            .then(|| self.digest_of(&*parent.dir, &name))
            .flatten();
        if compare.is_none() && self.keeps(there) {
            return Err(Failure::new(FailureKind::Refused, DIFFERS));
        }
        let names = if self.options.inplace {
            TemporaryNames { partial: name.clone(), whole: name.clone() }
        } else {
            let whole = self.whole_name(entry);
            let partial = partial.as_ref().map_or_else(
                || whole.clone(),
                |partial| OsString::from_vec(partial.partial_name.0.clone()),
            );
            TemporaryNames { partial, whole }
        };
        let (ranges, number) = match &partial {
            Some(partial) if compare.is_none() => self.resume(partial, &parent),
            _ => (Vec::new(), 0),
        };
        let sink = SinkFile {
            file,
            entry: Arc::clone(entry),
            parent,
            name,
            names,
            journal_number: AtomicU64::new(number),
            is_dirty: AtomicBool::new(false),
            serial: Mutex::new(
                (!self.options.algorithm.combines())
                    .then(|| Serial::new(self.options.algorithm))
                    .flatten(),
            ),
            is_resumed: !ranges.is_empty(),
            state: Mutex::new(SinkFileState::Expected),
            _lock: file_lock,
        };
        if entry.bytes == 0 {
            // An empty file needs no data; the last sync makes it durable.
            let make = || {
                self.needs_filesystem_sync.store(true, Ordering::SeqCst);
                self.write_small(&sink, &[], &[])?;
                sink.advance(FileEvent::Synced)?;
                self.rename(&sink)
            };
            make().map_err(|error| destination(&error))?;
            return Ok((DestinationCheck::Done(empty_digest(self.options.algorithm)), None));
        }
        let verdict = match compare {
            Some(digest) => DestinationCheck::Compare(digest),
            None if ranges.is_empty() => DestinationCheck::Send,
            None => DestinationCheck::Resume(ranges),
        };
        Ok((verdict, Some(sink)))
    }

    fn digest_of_skipped(
        &self,
        dir: &dyn DirectoryHandle,
        name: &OsStr,
    ) -> Result<Digest, Failure> {
        let none = self.options.algorithm == Algorithm::None;
        if none || !self.digest_skipped.load(Ordering::SeqCst) {
            return Ok(Digest(Vec::new()));
        }
        let digest = dir
            .open_file(name.as_ref(), &Open::reading())
            .and_then(|file| digest_file(&*file, self.options.algorithm, &mut vec![0; 1 << 20]));
        match digest {
            Ok(digest) => Ok(digest.unwrap_or(Digest(Vec::new()))),
            Err(error) => {
                let text = format!("its digest cannot be made: {}", fs::describe(&error));
                Err(Failure::new(FailureKind::Destination, text))
            }
        }
    }

    fn digest_of(&self, dir: &dyn DirectoryHandle, name: &OsStr) -> Option<Digest> {
        let file = dir.open_file(name.as_ref(), &Open::reading()).ok()?;
        digest_file(&*file, self.options.algorithm, &mut vec![0; 1 << 20]).ok().flatten()
    }

    /// Directory below the target that holds the temporary files of an entry.
    #[must_use]
    pub fn folder_of<'a>(&self, path: &'a RelativePath) -> &'a [u8] {
        let path = path.as_bytes();
        let slash = path.iter().rposition(|byte| *byte == b'/').filter(|_| self.rename.is_none());
        slash.map_or(&[], |slash| &path[..slash])
    }

    /// Records that temporary files may be created beside this entry from here on.
    pub fn into_folder_of(&self, path: &RelativePath) {
        let folder = self.folder_of(path);
        self.journal.into_folder(folder);
        let folder = Path::new(OsStr::from_bytes(folder));
        let mut folders = lock(&self.folders);
        if !folders.contains(folder) {
            folders.insert(folder.to_owned());
        }
    }

    /// Directories below the target that received entries of this session. A power cut may lose the
    /// last records of a journal but keep the files announced by them; those lie in directories that
    /// the repeated command visits.
    pub fn folders(&self) -> HashSet<Bytes> {
        let folders = lock(&self.folders);
        folders.iter().map(|folder| Bytes(folder.as_os_str().as_bytes().to_vec())).collect()
    }

    /// Temporary name of a file written as a whole.
    fn whole_name(&self, entry: &Entry) -> OsString {
        let mut what = Vec::new();
        entry.path.put(&mut what);
        SourceIdentity::of(entry).put(&mut what);
        let hash = blake3::hash(&what);
        OsString::from(format!("{}{}{PART_SUFFIX}", self.mark, &hash.to_hex()[..20]))
    }

    /// Name of the engine that writes a small file.
    #[must_use]
    pub fn small_engine(&self, sink: &SinkFile) -> &'static str {
        if self.is_direct_small(sink) { "direct" } else { "buffered" }
    }

    fn is_direct_small(&self, sink: &SinkFile) -> bool {
        let bytes = usize::try_from(sink.entry.bytes).unwrap_or(usize::MAX);
        let possible = self.engine.direct && !self.no_direct.load(Ordering::Relaxed);
        possible && bytes >= PACK_ALIGN_BYTES_MIN && !sink.entry.sparse
    }

    /// Writes a small file with its metadata under its temporary name. `sectors` is `data` with the
    /// bytes behind it in the buffer.
    ///
    /// # Errors
    /// If writing fails.
    pub fn write_small(&self, sink: &SinkFile, data: &[u8], sectors: &[u8]) -> io::Result<()> {
        let mut state = lock(&sink.state);
        if !matches!(*state, SinkFileState::Expected) {
            return Err(io::Error::other("the file was discarded, or is complete"));
        }
        // Setting attributes needs write permission.
        let needs_write = if sink.entry.xattrs.is_empty() { 0 } else { 0o200 };
        let mode = sink.entry.mode & 0o777 | needs_write;
        let whole = sectors.get(..data.len().next_multiple_of(BUFFER_ALIGNMENT));
        let whole = whole.filter(|_| self.is_direct_small(sink));
        let how = Open { brief: true, direct: whole.is_some(), ..Open::creating(mode) };
        let how = if self.options.inplace {
            Open { truncate: true, ..how }
        } else {
            Open { create_new: true, ..how }
        };
        let file = match self.create_small(sink, &how) {
            Err(error) if how.direct && error.kind() == io::ErrorKind::Unsupported => {
                self.no_direct.store(true, Ordering::Relaxed);
                self.create_small(sink, &Open { direct: false, ..how })?
            }
            other => other?,
        };
        match whole.filter(|_| !self.no_direct.load(Ordering::Relaxed)) {
            Some(whole) => {
                file.write_all_at(whole, 0)?;
                if whole.len() > data.len() {
                    file.set_len(data.len() as u64)?;
                }
            }
            None => file.write_all_at(data, 0)?,
        }
        let given = mode & !self.umask;
        self.set_metadata(&*file, &sink.entry, given != self.mode(&sink.entry))?;
        state.transition(FileEvent::WrittenWhole(file.stat()?), &sink.names)
    }

    fn create_small(&self, sink: &SinkFile, how: &Open) -> io::Result<Arc<dyn StoredFile>> {
        let (dir, name) = (&sink.parent.dir, Path::new(&sink.names.whole));
        match dir.open_file(name, how) {
            // Left by a killed run, or by a pack that is sent again.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                dir.remove_file(name)?;
                dir.open_file(name, how)
            }
            other => other,
        }
    }

    /// Sets metadata in the order that preserves it: a change of owner clears set-user-id, and every
    /// change but the last updates the times.
    fn set_metadata(&self, file: &dyn StoredFile, entry: &Entry, set_mode: bool) -> io::Result<()> {
        if self.gives_files_away() {
            match file.set_owner(entry.uid, entry.gid) {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                other => other?,
            }
        }
        self.set_xattrs(entry, |name, value| file.set_xattr(name, value))?;
        if set_mode {
            file.set_mode(self.mode(entry))?;
        }
        file.set_times(timestamp(entry))
    }

    /// Sets the attributes of an entry with `set`. Rejected attributes become one warning.
    fn set_xattrs(
        &self,
        entry: &Entry,
        set: impl Fn(&OsStr, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut refused: Option<(Vec<String>, io::Error)> = None;
        for (name, value) in &entry.xattrs {
            // They give rights, such as file capabilities.
            let gives_rights =
                [&b"security."[..], b"trusted."].iter().any(|one| name.0.starts_with(one));
            let result = match self.trusted || !gives_rights {
                true => set(OsStr::from_bytes(&name.0), &value.0),
                false => Err(io::ErrorKind::PermissionDenied.into()),
            };
            match result {
                // xattr(7): links have no user attributes.
                Err(_) if entry.kind == EntryKind::Symlink && name.0.starts_with(b"user.") => {}
                Err(error) if refuses_attribute(&error) => {
                    let (names, _) = refused.get_or_insert_with(|| (Vec::new(), error));
                    names.push(display_path(&name.0));
                }
                other => other?,
            }
        }
        if let Some((names, error)) = refused {
            let text = format!(
                "it arrived without the attributes {}: {}",
                names.join(", "),
                fs::describe(&error)
            );
            let warning = Failure::new(FailureKind::Destination, text);
            lock(&self.warnings).push((entry.path.clone(), warning));
        }
        Ok(())
    }

    /// Takes the warnings since the last call.
    pub fn take_warnings(&self) -> Vec<(RelativePath, Failure)> {
        std::mem::take(&mut *lock(&self.warnings))
    }

    /// Sets length and metadata of a file written block by block and syncs it, also if an earlier run
    /// wrote it.
    ///
    /// # Errors
    /// If one of these operations fails.
    pub fn complete(&self, sink: &SinkFile) -> io::Result<()> {
        let open = self.open(sink)?;
        // Direct writes end on a sector boundary, and preallocation may be longer.
        open.file.set_len(sink.entry.bytes)?;
        self.set_metadata(&*open.file, &sink.entry, true)?;
        open.file.sync_all()?;
        sink.advance(FileEvent::Completed(open.file.stat()?))
    }

    /// Sets the metadata of an unchanged file to that of its source.
    ///
    /// # Errors
    /// If that fails.
    pub fn refresh(&self, sink: &SinkFile) -> io::Result<()> {
        self.needs_filesystem_sync.store(true, Ordering::SeqCst);
        let file = sink.parent.dir.open_file(sink.name.as_ref(), &Open::reading())?;
        if !sink.entry.xattrs.is_empty() {
            file.set_mode(self.mode(&sink.entry) | 0o200)?;
        }
        self.set_metadata(&*file, &sink.entry, true)
    }

    /// Renames a durable file to its final name.
    ///
    /// # Errors
    /// If it is not durable, another program replaced it, or the rename fails.
    pub fn rename(&self, sink: &SinkFile) -> io::Result<()> {
        let (temporary, written) = match &*lock(&sink.state) {
            SinkFileState::Complete { name, written, .. } => (name.clone(), *written),
            state => return Err(io::Error::other(format!("a file is not durable: {state:?}"))),
        };
        let (dir, from, to) = (&sink.parent.dir, Path::new(&temporary), Path::new(&sink.name));
        // Before the rename the check spares an existing file, after it no replacement can follow.
        check_written(&**dir, from, &written)?;
        if self.options.inplace {
        } else if self.options.existing == Existing::Replace {
            dir.rename(from, to)?;
        } else {
            dir.rename_noreplace(from, to).map_err(|error| match error.kind() {
                io::ErrorKind::AlreadyExists => io::Error::new(error.kind(), DIFFERS),
                _ => error,
            })?;
        }
        check_written(&**dir, to, &written)?;
        sink.advance(FileEvent::Renamed)
    }

    /// True if an existing file must be kept.
    fn keeps(&self, there: Option<fs::Stat>) -> bool {
        self.options.existing == Existing::Keep && there.is_some()
    }

    /// Discards a file and removes its temporary file.
    pub fn discard(&self, sink: &SinkFile) {
        let temporary = sink.current_name();
        let discarded = sink.advance(FileEvent::GivenUp).is_ok();
        if discarded && !self.options.inplace {
            match sink.parent.dir.remove_file(temporary.as_ref()) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => self.journal.keep(),
                _ => {}
            }
        }
    }

    /// Sets modes and times of directories after their contents are complete: deepest first, since a
    /// directory's time changes with its contents.
    ///
    /// Returns those for which that failed.
    pub fn finish_directories(&self) -> Vec<(RelativePath, Failure)> {
        let directories = lock(&self.directories).clone();
        let mut failures = Vec::new();
        for entry in directories.iter().rev() {
            let set = || -> io::Result<()> {
                let (parent, name) = self.parent_of(&entry.path)?;
                let (dir, name) = (&*parent.dir, Path::new(&name));
                self.set_owner(dir, name, entry)?;
                if !entry.xattrs.is_empty() {
                    // An existing one may be read-only; a foreign one fails below.
                    let _ = dir.set_mode(name, self.mode(entry) | 0o200);
                }
                self.set_xattrs(entry, |attribute, value| dir.set_xattr(name, attribute, value))?;
                dir.set_mode(name, self.mode(entry))?;
                dir.set_times(name, timestamp(entry))
            };
            if let Err(error) = set() {
                let text = format!(
                    "its mode, owner or times cannot be set at the destination: {}: copy it again \
                     when nothing else changes that directory",
                    fs::describe(&error)
                );
                let failure = Failure::new(FailureKind::Destination, text);
                failures.push((entry.path.clone(), failure));
            }
        }
        failures
    }
}

fn stat_if_there(dir: &dyn DirectoryHandle, name: &OsStr) -> Result<Option<fs::Stat>, Failure> {
    match dir.stat(name.as_ref()) {
        Ok(stat) => Ok(Some(stat)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(destination(&error)),
    }
}

/// Checks that `name` still leads to the file that was written.
///
/// # Errors
/// If another program removed or replaced it. A freed inode number may be given to the next file, so size and modification
/// time count too.
fn check_written(dir: &dyn DirectoryHandle, name: &Path, written: &fs::Stat) -> io::Result<()> {
    let found = match dir.stat(name) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        found => found.ok(),
    };
    let is_written = |found: fs::Stat| {
        (found.inode, found.size, found.mtime) == (written.inode, written.size, written.mtime)
    };
    if found.is_some_and(is_written) {
        return Ok(());
    }
    let text = "another program removed or replaced its file at the destination during the copy: \
                copy it again";
    Err(io::Error::other(text))
}

fn empty_digest(algorithm: Algorithm) -> Digest {
    Serial::new(algorithm).map_or(Digest(Vec::new()), Serial::finish)
}

/// True if the destination rejects the attribute but accepts the file.
fn refuses_attribute(error: &io::Error) -> bool {
    use io::ErrorKind::{
        ArgumentListTooLong, InvalidInput, PermissionDenied, StorageFull, Unsupported,
    };
    // File systems report ENOSPC for an attribute that is too long.
    let kinds = [ArgumentListTooLong, InvalidInput, PermissionDenied, StorageFull, Unsupported];
    kinds.contains(&error.kind())
}

fn in_the_way(what: &str) -> Failure {
    Failure::new(
        FailureKind::Refused,
        format!("{what} of that name is in the way at the destination: move it away"),
    )
}

fn timestamp(entry: &Entry) -> Timestamp {
    Timestamp { seconds: entry.modified.seconds, nanos: entry.modified.nanos.min(999_999_999) }
}
