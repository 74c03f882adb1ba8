//! Resume journal of one transfer: the received ranges of unfinished files, kept across crashes.
//!
//! One file per transfer in the state directory, locked while the transfer runs, so that a command
//! cannot run twice at once. It is rewritten at every start with the ranges that still count and
//! removed when the transfer is complete. A journal that cannot be written costs resumption, not the
//! transfer.
//!
//! A transfer also finds unfinished copies of other commands of the same caller, by directory, name and
//! source, regardless of path, address or command line. A journal is a hint: the receiver verifies
//! every resumed range against its checksum.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fmt::Debug;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use penstock_protocol::extents::Extent;
use penstock_protocol::journal::{
    self, FileStart, JOURNAL_VERSION, JournalHeader, Partial, Record, TargetDirectory, Unfinished,
};
use penstock_protocol::open::Options;
use penstock_protocol::wire::Bytes;
use penstock_sys::fs::{self, Open};

use super::orphans;
use super::storage::{DirectoryHandle, JournalStore, StoredFile};
use crate::base::lock::lock;
use crate::base::temporary_name::{PART_SUFFIX, TEMPORARY_PREFIX};

/// Limit of a journal's size: more than 100,000 unfinished extents.
pub(crate) const JOURNAL_BYTES_MAX: u64 = 1 << 30;

/// Hexadecimal digits of a journal's name for the caller; equally many for the command follow.
const CALLER_DIGITS: usize = 16;

/// Resume journal of one transfer.
#[derive(Debug)]
pub struct ResumeJournal {
    /// Store and lock; `None` if no journal is kept.
    kept: Option<StoredJournal>,
    /// Directories in which earlier runs of the command may have left temporary files.
    earlier_folders: Vec<Bytes>,
    /// Set when an earlier run of the command left a journal.
    is_continued: bool,
    state: Mutex<JournalState>,
}

#[derive(Debug)]
struct StoredJournal {
    store: JournalStore,
    name: JournalName,
    /// File system id and inode of the target.
    directory: (u64, u64),
    options: Options,
    /// Lock held while the transfer runs.
    _running: Box<dyn Debug + Send + Sync>,
}

/// Name of a journal: hashes of the caller and of the command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalName(String);

impl JournalName {
    /// Derives the name for the transfer `key` of `caller` into the directory with this file system and
    /// inode, where a single file gets the name `rename`.
    #[must_use]
    pub fn new(
        caller: &str,
        (file_system, inode): (u64, u64),
        rename: Option<&OsStr>,
        key: &[u8; 16],
    ) -> Self {
        let caller = blake3::hash(caller.as_bytes()).to_hex();
        let mut hasher = blake3::Hasher::new();
        hasher.update(key).update(caller.as_bytes());
        hasher.update(&file_system.to_be_bytes()).update(&inode.to_be_bytes());
        hasher.update(rename.unwrap_or_default().as_bytes());
        let command = hasher.finalize().to_hex();
        Self(format!("{}{}", &caller[..CALLER_DIGITS], &command[..16]))
    }

    /// Text for file names.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Prefix of temporary names private to this transfer.
    #[must_use]
    pub fn mark(&self) -> String {
        format!("{TEMPORARY_PREFIX}{}-", &self.0[CALLER_DIGITS..])
    }

    fn has_same_caller(&self, journal: &str) -> bool {
        journal.len() == self.0.len() && journal.starts_with(&self.0[..CALLER_DIGITS])
    }

    fn with(&self, extension: &str) -> PathBuf {
        PathBuf::from(format!("{}.{extension}", self.0))
    }
}

#[derive(Debug, Default)]
struct JournalState {
    file: Option<Arc<dyn StoredFile>>,
    length: u64,
    next_number: u64,
    /// Unfinished files of this command and, after a search, of others.
    earlier: Vec<Earlier>,
    /// Indices in `earlier` by directory inode and final name.
    by_place: HashMap<(u64, Bytes), Vec<usize>>,
    others_are_known: bool,
    /// Other journals already read.
    others: HashSet<String>,
    /// Set when a temporary file could not be removed: the journal is still needed.
    is_kept: bool,
    /// Directories that may hold temporary files.
    folders: HashSet<Bytes>,
    /// Files whose partial file is gone once its removal or rename is durable.
    ending: Vec<u64>,
}

/// Unfinished file of an earlier transfer.
#[derive(Debug)]
struct Earlier {
    from: JournalOrigin,
    unfinished: Unfinished,
    /// Set when the digest parts fit this transfer's algorithm and block size.
    has_same_parts: bool,
    is_taken: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JournalOrigin {
    /// This journal, with its number there.
    Own(u64),
    /// Journal of another command.
    Other,
}

/// Result of a search for unfinished copies of one file.
#[derive(Debug, Default)]
pub struct FoundCopies {
    /// Ranges of the partial file that may hold source bytes; they may overlap.
    pub ranges: Vec<Extent>,
    /// Set when an earlier transfer recorded the partial file, of any content.
    pub is_known: bool,
    /// Number of the file in this journal, if present.
    pub number: Option<u64>,
    /// Names of useless partial files in the same directory.
    pub superseded: Vec<OsString>,
}

/// Error of a journal.
#[derive(Debug, thiserror::Error)]
pub enum ResumeJournalError {
    /// The same transfer is already running.
    #[error("the same transfer is already running: wait for it, or cancel it")]
    Running,
    /// The state directory is not usable.
    #[error("cannot keep a journal in {}: {}", .0.display(), fs::describe(.1))]
    State(PathBuf, #[source] io::Error),
}

impl ResumeJournal {
    /// Returns a journal that records and resumes nothing.
    #[must_use]
    pub fn none() -> Self {
        Self {
            kept: None,
            earlier_folders: Vec::new(),
            is_continued: false,
            state: Mutex::default(),
        }
    }

    /// Checks that journals can be kept in the state directory `state`.
    ///
    /// # Errors
    /// If the directory cannot be created or written.
    pub fn can_be_kept(state: &Path) -> Result<(), ResumeJournalError> {
        let probe = PathBuf::from(format!("probe.{}", std::process::id()));
        let try_it = || {
            let store = JournalStore::open(state)?;
            store.directory.open_file(&probe, &Open::creating(0o600))?;
            store.directory.remove_file(&probe)
        };
        try_it().map_err(|error| ResumeJournalError::State(state.join("transfers"), error))
    }

    /// Opens the journal `name` of the transfer to `at`.
    ///
    /// # Errors
    /// If the transfer is already running or the store is not usable.
    pub fn open(
        store: &JournalStore,
        name: &JournalName,
        at: TargetDirectory,
        options: &Options,
    ) -> Result<Self, ResumeJournalError> {
        let failed = |error: io::Error| {
            let path = store.directory.real_path().unwrap_or_default();
            ResumeJournalError::State(path, error)
        };
        let directory = (at.file_system, at.inode);
        let running = store.directory.lock(name.with("lock").as_os_str()).map_err(failed)?;
        let running = running.ok_or(ResumeJournalError::Running)?;
        let path = name.with("journal");
        let bytes = read(&*store.directory, &path).map_err(failed)?;
        let is_continued = !bytes.is_empty();
        let replayed = journal::replay(&bytes, &store.boot);
        let has_same_parts = replayed
            .as_ref()
            .is_some_and(|(about, _)| about.has_parts_of(options.algorithm, options.block_bytes));
        let mut unfinished = replayed.map(|(_, files)| files).unwrap_or_default();
        if !has_same_parts {
            // StoredJournal as names to be removed.
            for file in &mut unfinished {
                file.durable.clear();
                file.written.clear();
            }
        }
        let earlier_folders = journal::temp_file_locations(&bytes)
            .filter(|places| (places.at.file_system, places.at.inode) == directory)
            .map(|places| places.directories)
            .unwrap_or_default();
        let fresh = begin(&unfinished, &earlier_folders, store.boot.clone(), at, options);
        let beside = name.with("new");
        let how = Open { truncate: true, ..Open::creating(0o600) };
        let write = || -> io::Result<Arc<dyn StoredFile>> {
            let file = store.directory.open_file(&beside, &how)?;
            file.write_all_at(&fresh, 0)?;
            file.sync_data()?;
            store.directory.rename(&beside, &path)?;
            // After a power cut every temporary file must be known to a journal.
            store.directory.sync_names()?;
            Ok(file)
        };
        let mut state = JournalState {
            file: Some(write().map_err(failed)?),
            length: fresh.len() as u64,
            next_number: unfinished.len() as u64,
            folders: earlier_folders.iter().cloned().collect(),
            ..JournalState::default()
        };
        for (number, unfinished) in (1..).zip(unfinished) {
            state.add(Earlier {
                from: JournalOrigin::Own(number),
                unfinished,
                has_same_parts,
                is_taken: false,
            });
        }
        let (store, name, options) = (store.clone(), name.clone(), options.clone());
        let kept = StoredJournal { store, name, directory, options, _running: running };
        Ok(Self { kept: Some(kept), earlier_folders, is_continued, state: Mutex::new(state) })
    }

    /// Searches unfinished copies of the file described by `wanted` and takes them: the end of this
    /// transfer does not remove them.
    pub fn find(&self, wanted: &Partial) -> FoundCopies {
        let mut found = FoundCopies::default();
        let Some(kept) = &self.kept else { return found };
        let mut state = lock(&self.state);
        if !std::mem::replace(&mut state.others_are_known, true) {
            state.add_others(kept);
        }
        let place = (wanted.directory.inode, wanted.name.clone());
        let Some(numbers) = state.by_place.get(&place).cloned() else { return found };
        let mut extents = Vec::new();
        let mut ended = Vec::new();
        for number in numbers {
            let earlier = &mut state.earlier[number];
            if std::mem::replace(&mut earlier.is_taken, true) {
                continue;
            }
            let partial = &earlier.unfinished.partial;
            let is_same_file = partial.partial_name == wanted.partial_name;
            found.is_known |= is_same_file;
            if is_same_file && partial.identity == wanted.identity && earlier.has_same_parts {
                found.number = found.number.or(earlier.from.own_number());
                let algorithm = kept.options.algorithm.of_ranges();
                extents.extend(earlier.unfinished.ranges(algorithm, wanted.directory));
                continue;
            }
            if !is_same_file {
                found.superseded.push(OsString::from_vec(partial.partial_name.0.clone()));
            }
            ended.extend(earlier.from.own_number());
        }
        found.ranges = extents;
        state.ending.extend(ended);
        found
    }

    /// Makes [`ResumeJournal::find`] retry journals that were in use before.
    pub fn look_again(&self) {
        lock(&self.state).others_are_known = false;
    }

    /// Records that temporary files may be created in this directory below the target from here on.
    pub fn into_folder(&self, path: &[u8]) {
        let path = Bytes(path.to_vec());
        if lock(&self.state).folders.insert(path.clone()) {
            self.append(&Record::TempDirectory(path));
        }
    }

    /// True if an earlier run of the command left a journal.
    #[must_use]
    pub fn is_continued(&self) -> bool {
        self.is_continued
    }

    /// Directories in which earlier runs of the command may have left temporary files.
    pub fn earlier_folders(&self) -> impl Iterator<Item = &[u8]> {
        self.earlier_folders.iter().map(|path| path.0.as_slice())
    }

    /// Starts a file with the ranges already in its partial file; returns its number.
    pub fn begin_file(&self, partial: Partial, ranges: &[Extent]) -> u64 {
        let mut state = lock(&self.state);
        state.next_number += 1;
        let number = state.next_number;
        drop(state);
        self.append(&Record::FileStarted(FileStart { number, partial }));
        for extent in ranges {
            self.append(&Record::Written((number, extent.clone())));
        }
        number
    }

    /// Records a written extent.
    pub fn written(&self, number: u64, extent: Extent) {
        self.append(&Record::Written((number, extent)));
    }

    /// Records that the partial file was renamed or removed; [`ResumeJournal::names_durable`] makes it
    /// permanent.
    pub fn end_file(&self, number: u64) {
        if number > 0 {
            lock(&self.state).ending.push(number);
        }
    }

    /// Number of ended files, to be passed to [`ResumeJournal::names_durable`] after a sync that starts now.
    #[must_use]
    pub fn ended(&self) -> usize {
        lock(&self.state).ending.len()
    }

    /// Records that removal or rename of the first `count` ended files is durable. Before that, a power
    /// cut may restore a partial file, and a journal that had dropped it would leak it.
    pub fn names_durable(&self, count: usize) {
        let ended: Vec<_> = lock(&self.state).ending.drain(..count).collect();
        for number in ended {
            self.append(&Record::FileEnded(number));
        }
    }

    /// Current length; its records are durable once the files that it covers are synced.
    #[must_use]
    pub fn length(&self) -> u64 {
        lock(&self.state).length
    }

    /// Records, durably, that the extents in the first `length` bytes are durable.
    pub fn synced(&self, length: u64) {
        self.append(&Record::Synced(length));
        let file = lock(&self.state).file.clone();
        if let Some(Err(error)) = file.map(|file| file.sync_data()) {
            self.give_up(&error);
        }
    }

    /// Takes partial files of earlier runs of this command that were not announced again.
    pub fn untaken(&self) -> Vec<Partial> {
        let mut state = lock(&self.state);
        let own = |earlier: &&mut Earlier| !earlier.is_taken && earlier.from.own_number().is_some();
        let untaken = state.earlier.iter_mut().filter(own).map(|earlier| {
            earlier.is_taken = true;
            earlier.unfinished.partial.clone()
        });
        untaken.collect()
    }

    /// Keeps the journal for a temporary file that could not be removed, so that a later run or the
    /// retention of unfinished files removes it.
    pub fn keep(&self) {
        lock(&self.state).is_kept = true;
    }

    /// Removes the journal of a complete and durable transfer into these directories, and journals of
    /// the same caller without remaining files.
    pub fn remove(&self, folders: &HashSet<Bytes>) {
        let mut state = lock(&self.state);
        state.file = None;
        let is_kept = state.is_kept;
        drop(state);
        let Some(StoredJournal { store, name, directory, .. }) = &self.kept else { return };
        let others = orphans::journals(&*store.directory).unwrap_or_default();
        for other in others.iter().filter(|other| **other != name.0 && name.has_same_caller(other))
        {
            if let Err(error) = orphans::remove_if_consumed(store, other, *directory, folders) {
                tracing::warn!("journal {other} stays: {}", fs::describe(&error));
            }
        }
        if is_kept {
            return;
        }
        let _ = store.directory.remove_file(&name.with("journal"));
        // The lock file is removed too; a process that has it open finds the name gone and creates
        // another.
        let _ = store.directory.remove_file(&name.with("lock"));
    }

    fn append(&self, record: &Record) {
        let mut bytes = Vec::new();
        journal::put(record, &mut bytes);
        let mut state = lock(&self.state);
        let offset = state.length;
        state.length += bytes.len() as u64;
        let result = state.file.as_ref().map(|file| file.write_all_at(&bytes, offset));
        drop(state);
        if let Some(Err(error)) = result {
            self.give_up(&error);
        }
    }

    fn give_up(&self, error: &io::Error) {
        let why = fs::describe(error);
        let name = self.kept.as_ref().map_or("", |kept| kept.name.as_str());
        tracing::warn!("journal {name}: {why}; this transfer cannot be resumed");
        // Existing records stay valid.
        lock(&self.state).file = None;
    }
}

impl JournalState {
    fn add(&mut self, earlier: Earlier) {
        let partial = &earlier.unfinished.partial;
        let place = (partial.directory.inode, partial.name.clone());
        self.by_place.entry(place).or_default().push(self.earlier.len());
        self.earlier.push(earlier);
    }

    /// Adds files of unused journals of the same caller.
    fn add_others(&mut self, kept: &StoredJournal) {
        let Ok(names) = orphans::journals(&*kept.store.directory) else { return };
        for other in names {
            let is_meant = other != kept.name.0 && kept.name.has_same_caller(&other);
            if !is_meant || self.others.contains(&other) {
                continue;
            }
            if let Ok(Some(found)) = read_unused(kept, &other) {
                found.into_iter().for_each(|earlier| self.add(earlier));
                self.others.insert(other);
            }
        }
    }
}

/// Reads unfinished files of another journal; `None` while its transfer runs.
fn read_unused(kept: &StoredJournal, other: &str) -> io::Result<Option<Vec<Earlier>>> {
    let directory = &*kept.store.directory;
    let lock_name = OsString::from(format!("{other}.lock"));
    let Some(_running) = directory.lock(&lock_name)? else { return Ok(None) };
    let path = PathBuf::from(format!("{other}.journal"));
    let bytes = read(directory, &path)?;
    let Some((about, files)) = journal::replay(&bytes, &kept.store.boot) else { return Ok(None) };
    let has_same_parts = about.has_parts_of(kept.options.algorithm, kept.options.block_bytes);
    let earlier = |unfinished| Earlier {
        from: JournalOrigin::Other,
        unfinished,
        has_same_parts,
        is_taken: false,
    };
    Ok(Some(files.into_iter().map(earlier).collect()))
}

impl JournalOrigin {
    fn own_number(self) -> Option<u64> {
        match self {
            Self::Own(number) => Some(number),
            Self::Other => None,
        }
    }
}

/// Reads a journal; empty if missing.
pub(super) fn read(directory: &dyn DirectoryHandle, path: &Path) -> io::Result<Vec<u8>> {
    let file = match directory.open_file(path, &Open::reading()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let bytes = file.stat()?.size.min(JOURNAL_BYTES_MAX);
    let mut content = vec![0; usize::try_from(bytes).unwrap_or(usize::MAX)];
    let read = file.read_at(&mut content, 0)?;
    content.truncate(read);
    Ok(content)
}

/// Encodes a journal of `unfinished`: durable extents below a `Synced`, the others after it.
fn begin(
    unfinished: &[Unfinished],
    folders: &[Bytes],
    boot: String,
    at: TargetDirectory,
    options: &Options,
) -> Vec<u8> {
    let mut bytes = Vec::new();
    let about = JournalHeader {
        version: JOURNAL_VERSION,
        boot,
        algorithm: options.algorithm.of_ranges(),
        block_bytes: options.block_bytes,
    };
    journal::put(&Record::Header(about), &mut bytes);
    journal::put(&Record::Target(at), &mut bytes);
    for folder in folders {
        journal::put(&Record::TempDirectory(folder.clone()), &mut bytes);
    }
    for (number, file) in (1..).zip(unfinished) {
        let begun = FileStart { number, partial: file.partial.clone() };
        journal::put(&Record::FileStarted(begun), &mut bytes);
        for extent in &file.durable {
            journal::put(&Record::Written((number, extent.clone())), &mut bytes);
        }
    }
    let length = bytes.len() as u64;
    journal::put(&Record::Synced(length), &mut bytes);
    for (number, file) in (1..).zip(unfinished) {
        for extent in &file.written {
            journal::put(&Record::Written((number, extent.clone())), &mut bytes);
        }
    }
    bytes
}

/// Name of a partial file: equal for the same caller, name, source and checksum, regardless of the
/// command.
pub(super) fn partial_name(
    caller: &str,
    name: &OsStr,
    identity: &journal::SourceIdentity,
    options: &Options,
) -> OsString {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&(caller.len() as u64).to_be_bytes()).update(caller.as_bytes());
    hasher.update(&(name.len() as u64).to_be_bytes()).update(name.as_bytes());
    hasher.update(&identity.bytes.to_be_bytes());
    hasher.update(&identity.modified.seconds.to_be_bytes());
    hasher.update(&identity.modified.nanos.to_be_bytes());
    hasher.update(options.algorithm.to_string().as_bytes());
    if options.algorithm.needs_grid() {
        hasher.update(&options.block_bytes.to_be_bytes());
    }
    let digits = hasher.finalize().to_hex();
    OsString::from(format!("{TEMPORARY_PREFIX}{}{PART_SUFFIX}", &digits[..32]))
}

#[cfg(test)]
mod tests {
    use penstock_protocol::journal::{Directory as DirectoryId, SourceIdentity};
    use penstock_protocol::manifest::Time;

    use super::*;
    use crate::base::test_options::plain_options;
    use crate::sink::simulation::storage::SimulatedStorage;

    fn partial(name: &str) -> Partial {
        Partial {
            folder: Bytes::default(),
            directory: DirectoryId { device: 1, inode: 1, mount: 1 },
            partial_name: Bytes(format!(".{name}.part").into_bytes()),
            name: Bytes(name.into()),
            identity: SourceIdentity {
                bytes: 9,
                modified: Time::default(),
                changed: Time::default(),
                inode: 3,
            },
        }
    }

    #[test]
    fn ranges_survive_and_one_transfer_runs() {
        let storage = SimulatedStorage::new(1);
        let store = storage.journals();
        let open = |key| {
            let name = JournalName::new("user", (1, 1), None, &[key; 16]);
            let (path, mark) = (Bytes(b"/target".to_vec()), name.mark());
            let at = TargetDirectory { path, file_system: 1, inode: 1, mark };
            ResumeJournal::open(&store, &name, at, &plain_options())
        };
        let extent = |offset| Extent { offset, bytes: 3, part: [1; 32] };
        let journal = open(1).expect("a journal");
        assert!(!journal.is_continued() && !journal.find(&partial("a")).is_known);
        let number = journal.begin_file(partial("a"), &[]);
        journal.written(number, extent(0));
        journal.synced(journal.length());
        journal.written(number, extent(6));
        journal.into_folder(b"deep");
        journal.into_folder(b"deep");
        assert!(matches!(open(1), Err(ResumeJournalError::Running)));
        // Another command finds nothing while the first one runs.
        assert!(!open(2).expect("a journal").find(&partial("a")).is_known);
        drop(journal);
        for key in [1, 1, 2] {
            let journal = open(key).expect("a journal");
            let found = journal.find(&partial("a"));
            let offsets: Vec<_> = found.ranges.iter().map(|extent| extent.offset).collect();
            assert_eq!((offsets, found.number), (vec![0, 6], (key == 1).then_some(1)));
            assert_eq!(journal.earlier_folders().count(), usize::from(key == 1));
        }
        let journal = open(1).expect("a journal");
        // The source has changed: its old partial file is useless.
        let mut changed = partial("a");
        changed.partial_name = Bytes(b".other.part".to_vec());
        assert_eq!(journal.find(&changed).superseded, [".a.part"]);
        journal.remove(&HashSet::new());
        drop(journal);
        assert!(!open(1).expect("a journal").is_continued());
    }
}
