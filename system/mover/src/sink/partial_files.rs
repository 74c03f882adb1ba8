//! Partial files at the destination: lookup, locking, resumption and removal.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use penstock_protocol::control::Failure;
use penstock_protocol::extents::{Extent, coalesce};
use penstock_protocol::journal::{Partial, SourceIdentity};
use penstock_protocol::manifest::Entry;
use penstock_protocol::wire::Bytes;
use penstock_sys::fs::{self, MappedFile, Open};

use super::destination::{Destination, LARGE_BYTES_MIN, destination};
use super::file::{FileAccess, FileEvent, OpenFile, Parent, SinkFile, SinkFileState};
use super::file_locks::in_use;
use super::orphans;
use super::resume_journal::{FoundCopies, partial_name};
use super::storage::StoredFile;
use crate::base::lock::lock;

/// Time to wait for a partial file held by another session. A session of the same caller without a
/// client ends at once on request.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(5);

/// Interval of attempts to lock a partial file.
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(20);

impl Destination {
    /// Partial file of an entry; `None` if the entry is too small.
    pub(super) fn partial(&self, entry: &Entry, parent: &Parent, name: &OsStr) -> Option<Partial> {
        // With `inplace`, an unfinished file cannot be told from a finished one.
        if entry.bytes < self.large_bytes_min || self.options.inplace {
            return None;
        }
        let identity = SourceIdentity::of(entry);
        let partial_name = partial_name(&self.caller, name, &identity, &self.options);
        Some(Partial {
            folder: Bytes(self.folder_of(&entry.path).to_vec()),
            directory: parent.identity,
            partial_name: Bytes(partial_name.into_vec()),
            name: Bytes(name.as_bytes().to_vec()),
            identity,
        })
    }

    /// Looks for an unfinished copy; returns its ranges and its number in the journal.
    pub(super) fn resume(&self, partial: &Partial, parent: &Parent) -> (Vec<Extent>, u64) {
        let mut found = self.journal.find(partial);
        if !found.is_known && self.release_unfinished(parent, partial) {
            self.journal.look_again();
            let more = self.journal.find(partial);
            found.superseded.extend(more.superseded);
            found = FoundCopies { superseded: found.superseded, ..more };
        }
        self.remove_partials(parent, found.superseded.iter());
        let bytes = self.unfinished_bytes(parent, partial).filter(|_| !found.ranges.is_empty());
        let ranges = bytes.map_or_else(Vec::new, |bytes| {
            let holds = |extent: &Extent| {
                extent.offset.checked_add(extent.bytes).is_some_and(|end| end <= bytes)
            };
            let extents = found.ranges.into_iter().filter(holds).collect();
            coalesce(self.options.algorithm.of_ranges(), partial.identity.bytes, extents)
        });
        let number = match found.number {
            Some(number) if !ranges.is_empty() => number,
            earlier => {
                let number = self.journal.begin_file(partial.clone(), &ranges);
                self.journal.end_file(earlier.unwrap_or(0));
                number
            }
        };
        (ranges, number)
    }

    /// Length of the partial file, if it can be from an earlier transfer of this user: neither another
    /// user's file nor one with a second name.
    fn unfinished_bytes(&self, parent: &Parent, partial: &Partial) -> Option<u64> {
        let name = Path::new(OsStr::from_bytes(&partial.partial_name.0));
        let stat = parent.dir.stat(name).ok()?;
        let is_own = stat.uid == penstock_sys::machine::effective_user() || self.gives_files_away();
        if stat.kind == fs::Kind::File && stat.links == 1 && is_own {
            return Some(stat.size);
        }
        let _ = parent.dir.remove_file(name);
        None
    }

    /// Makes a session without a client release a partial file, so that this session can continue it;
    /// false if none holds it.
    fn release_unfinished(&self, parent: &Parent, partial: &Partial) -> bool {
        let name = OsStr::from_bytes(&partial.partial_name.0);
        let Ok(file) = parent.dir.open_file(name.as_ref(), &Open::reading()) else { return false };
        file.try_lock().is_ok_and(|is_free| !is_free) && self.lock_partial(&*file, name).is_ok()
    }

    fn lock_partial(&self, file: &dyn StoredFile, name: &OsStr) -> Result<(), Failure> {
        let start = Instant::now();
        loop {
            match file.try_lock() {
                Ok(true) => return Ok(()),
                Ok(false) if self.no_lock_waits.load(Ordering::Relaxed) => return Err(in_use()),
                Ok(false) if start.elapsed() < LOCK_WAIT_MAX => {
                    if let Some(release) = &self.release_partial {
                        release(name);
                    }
                    std::thread::sleep(LOCK_RETRY_INTERVAL);
                }
                Ok(false) => {
                    // A running transfer holds it: do not wait for its next file either.
                    self.no_lock_waits.store(true, Ordering::Relaxed);
                    return Err(in_use());
                }
                Err(error) => return Err(destination(&error)),
            }
        }
    }

    /// Removes the unfinished copy of a file that exists completely.
    pub(super) fn remove_unfinished(&self, partial: Option<&Partial>, parent: &Parent) {
        let Some(partial) = partial else { return };
        let found = self.journal.find(partial);
        let current = found.is_known.then(|| OsString::from_vec(partial.partial_name.0.clone()));
        self.remove_partials(parent, found.superseded.iter().chain(&current));
        self.journal.end_file(found.number.unwrap_or(0));
    }

    /// Removes useless partial files; keeps the journal if one cannot be removed now.
    fn remove_partials<'a>(&self, parent: &Parent, names: impl Iterator<Item = &'a OsString>) {
        for name in names {
            if orphans::remove_partial(&*parent.dir, name).is_err() {
                self.journal.keep();
            }
        }
    }

    /// Removes temporary files of earlier runs of the same command, when nothing is in flight.
    pub fn remove_leftovers(&self) {
        for partial in self.journal.untaken() {
            let folder = Path::new(OsStr::from_bytes(&partial.folder.0));
            let name = OsStr::from_bytes(&partial.partial_name.0);
            let dir = if folder.as_os_str().is_empty() {
                Ok(Arc::clone(&self.base.dir))
            } else {
                self.base.dir.open_dir(folder)
            };
            let removed = match dir {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                dir => dir.and_then(|dir| orphans::remove_partial(&*dir, name)),
            };
            if removed.is_err() {
                self.journal.keep();
            }
        }
        if !self.journal.is_continued() {
            return;
        }
        let mut folders = self.folders();
        folders.extend(self.journal.earlier_folders().map(|folder| Bytes(folder.to_vec())));
        let folders = folders.iter().map(|folder| folder.0.as_slice());
        if orphans::sweep(&self.base.dir, folders, &self.mark, SystemTime::now()).failed {
            self.journal.keep();
        }
    }

    /// Returns the partial file, opened on first use.
    ///
    /// # Errors
    /// If it cannot be created, is held by another transfer, or lacks space.
    pub fn open(&self, sink: &SinkFile) -> io::Result<OpenFile> {
        let mut state = lock(&sink.state);
        if let SinkFileState::Open(open) = &*state {
            return Ok(open.clone());
        }
        let (entry, parent, name) = (&sink.entry, &sink.parent, sink.partial_name());
        if !matches!(*state, SinkFileState::Expected) {
            return Err(io::Error::other("the file was given up, or is whole"));
        }
        let mut open = self.open_locked(parent, name, entry, !sink.is_resumed)?;
        if !self.options.inplace && !sink.is_resumed {
            open.file.set_len(0)?;
        }
        if entry.sparse {
            open.file.set_len(entry.bytes)?;
        } else if !sink.is_resumed {
            // Preallocate first: a full disk is noticed before the network is used.
            open.file.preallocate(entry.bytes)?;
        }
        if self.bypasses_cache(entry)
            && let Some(file) = open.file.kernel_file()
            && let Some(mapped) = MappedFile::new(file, entry.bytes)
        {
            open.access = FileAccess::Mapped(Arc::new(mapped));
        }
        state.transition(FileEvent::Opened(open.clone()), &sink.names)?;
        Ok(open)
    }

    /// Opens and locks a partial file, created if `create` is set. The previous holder of the lock may
    /// have renamed it meanwhile: then another one is created.
    fn open_locked(
        &self,
        parent: &Parent,
        name: &OsStr,
        entry: &Entry,
        create: bool,
    ) -> io::Result<OpenFile> {
        loop {
            let open = self.open_partial(parent, name, entry, create)?;
            if self.options.inplace {
                return Ok(open);
            }
            self.lock_partial(&*open.file, name)
                .map_err(|failure| io::Error::other(failure.text))?;
            let inode = open.file.stat()?.inode;
            if parent.dir.stat(name.as_ref()).is_ok_and(|named| named.inode == inode) {
                return Ok(open);
            }
        }
    }

    /// True if the blocks of a file are written past the page cache where the file system can.
    fn bypasses_cache(&self, entry: &Entry) -> bool {
        self.engine.direct && entry.bytes >= LARGE_BYTES_MIN && !entry.sparse
    }

    fn open_partial(
        &self,
        parent: &Parent,
        name: &OsStr,
        entry: &Entry,
        create: bool,
    ) -> io::Result<OpenFile> {
        let how = if create { Open::creating(0o600) } else { Open::writing() };
        let is_direct = self.bypasses_cache(entry);
        let (dir, name) = (&parent.dir, Path::new(name));
        let buffered = |file| OpenFile { file, access: FileAccess::Buffered };
        match dir.open_file(name, &Open { direct: is_direct, ..how }) {
            Err(error) if is_direct && error.kind() == io::ErrorKind::Unsupported => {
                dir.open_file(name, &how).map(buffered)
            }
            // A killed run may have made the file read-only, like its source.
            Err(error) if !create && error.kind() == io::ErrorKind::PermissionDenied => {
                dir.set_mode(name, 0o600)?;
                dir.open_file(name, &how).map(buffered)
            }
            Ok(file) if is_direct => Ok(OpenFile { file, access: FileAccess::Direct }),
            other => other.map(buffered),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::base::engine::Engine;
    use crate::base::test_options::plain_options;
    use crate::sink::destination::TransferTarget;
    use crate::sink::resume_journal::ResumeJournal;
    use crate::sink::simulation::storage::SimulatedStorage;
    use crate::sink::simulation::transfer::SimulatedDataset;

    fn destination_on(storage: &SimulatedStorage, mark: &str) -> Destination {
        let target = TransferTarget {
            base: storage.root(),
            rename: None,
            key: [0; 16],
            trusted: true,
            is_new: false,
        };
        let engine = Engine { direct: false, uring: false };
        Destination::new(
            target,
            "user",
            mark.to_owned(),
            plain_options(),
            engine,
            ResumeJournal::none(),
        )
        .expect("a directory")
        .journalling_from(1)
    }

    /// Entry of a file `f` of nine bytes.
    fn entry_of_nine_bytes() -> Arc<Entry> {
        let (mut entry, _) = SimulatedDataset::new(&[9], 3).0.swap_remove(3);
        entry.path = penstock_protocol::manifest::RelativePath::new(b"f".to_vec()).expect("a path");
        Arc::new(entry)
    }

    /// Replaces the file `name` by one of the same length.
    fn replace(storage: &SimulatedStorage, name: &OsStr) {
        let root = storage.root();
        root.remove_file(name.as_ref()).expect("the file of the transfer");
        let file = root.open_file(name.as_ref(), &Open::creating(0o600)).expect("a name");
        file.write_all_at(b"NINE BYTE", 0).expect("room");
    }

    #[test]
    fn replaced_partial_file_is_not_committed() {
        for is_packed in [false, true] {
            let storage = SimulatedStorage::new(2);
            let destination = destination_on(&storage, ".mark-");
            let (_, sink) = destination.check(0, &entry_of_nine_bytes());
            let sink = sink.expect("a file that is wanted");
            if is_packed {
                destination.write_small(&sink, b"nine byte", &[]).expect("room");
                sink.advance(FileEvent::Synced).expect("a packed file");
            } else {
                let open = destination.open(&sink).expect("a file");
                open.file.write_all_at(b"nine byte", 0).expect("room");
                destination.complete(&sink).expect("a sync");
            }
            replace(&storage, &sink.current_name());
            let error = destination.rename(&sink).expect_err("the content of another program");
            assert!(error.to_string().contains("another program"), "{error}");
            destination.discard(&sink);
            assert!(storage.state().tree().is_empty(), "{:?}", storage.state().tree());
        }
    }

    /// A transfer that waits for a partial file does not write to the committed file it became.
    #[test]
    fn placed_file_is_not_written_to() {
        let storage = SimulatedStorage::new(2);
        let entry = entry_of_nine_bytes();
        let (waits, waiting) = mpsc::channel();
        let first = destination_on(&storage, ".first-");
        let second =
            destination_on(&storage, ".second-").with_release(Some(Arc::new(move |_: &OsStr| {
                let _ = waits.send(());
            })));
        let (_, sink) = first.check(0, &entry);
        let sink = sink.expect("a file that is wanted");
        first.open(&sink).expect("a file").file.write_all_at(b"nine byte", 0).expect("room");
        std::thread::scope(|scope| {
            let entry = Arc::clone(&entry);
            let other = scope.spawn(move || {
                let (_, sink) = second.check(0, &entry);
                let sink = sink.expect("a file that is wanted");
                second.open(&sink).expect("a partial file of its own").file.stat().expect("facts")
            });
            waiting.recv().expect("the second transfer waits");
            first.complete(&sink).expect("a sync");
            let root = storage.root();
            let partial = root.open_file(sink.partial_name().as_ref(), &Open::reading());
            let is_free = partial.expect("a partial file").try_lock().expect("an attempt");
            assert!(!is_free, "it is locked until it has its final name");
            first.rename(&sink).expect("a name");
            drop(sink);
            let partial = other.join().expect("the second transfer");
            let placed = storage.root().stat("f".as_ref()).expect("the placed file");
            assert_ne!(placed.inode, partial.inode);
        });
        let tree = storage.state().tree();
        assert_eq!(tree[Path::new("f")].data.as_slice(), b"nine byte");
    }
}
