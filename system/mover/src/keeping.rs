//! The journal of one transfer as a file: what `penstock-protocol` defines, kept where it survives.
//!
//! One file per transfer in the state directory, locked while the transfer runs, so that the same
//! command cannot run twice at once. It is begun anew at every start, with what is still trusted, and
//! removed when the transfer is complete. A journal that cannot be written costs resumption, not the
//! transfer.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use penstock_protocol::extents::Extent;
use penstock_protocol::journal::{
    self, About, At, Begun, Identity, JOURNAL_VERSION, Record, Unfinished,
};
use penstock_protocol::manifest::RelativePath;
use penstock_protocol::open::Options;
use penstock_protocol::wire::Bytes;
use penstock_sys::lock::FileLock;
use penstock_sys::machine;

use crate::session::lock;

/// Longest journal that is read: more than 100,000 unfinished extents.
pub(crate) const JOURNAL_BYTES_MAX: u64 = 1 << 30;

/// The journal of one transfer.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    /// Directories in which earlier runs may have left something.
    earlier: Vec<Bytes>,
    state: Mutex<State>,
    /// Held as long as the transfer runs.
    running: Option<FileLock>,
}

#[derive(Debug, Default)]
struct State {
    file: Option<File>,
    length: u64,
    next_number: u64,
    /// Unfinished files of an earlier run that nobody has asked for yet.
    numbers: HashMap<RelativePath, u64>,
    /// Directories in which temporary files may be.
    directories: HashSet<Bytes>,
}

/// Why a journal cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The same transfer runs already.
    #[error("the same transfer is already running: wait for it, or cancel it")]
    Running,
    /// The state directory cannot be used.
    #[error("cannot keep a journal in {0}: {1}")]
    State(PathBuf, String),
}

impl Journal {
    /// No journal: nothing is resumed from it.
    #[must_use]
    pub fn none() -> Self {
        Self { path: PathBuf::new(), earlier: Vec::new(), state: Mutex::default(), running: None }
    }

    /// Whether journals can be kept in the state directory `state`.
    ///
    /// # Errors
    /// When not.
    pub fn can_be_kept(state: &Path) -> Result<(), JournalError> {
        let directory = state.join("transfers");
        let probe = directory.join(format!("probe.{}", std::process::id()));
        let try_it = || {
            fs::create_dir_all(&directory)?;
            File::create(&probe)?;
            fs::remove_file(&probe)
        };
        try_it().map_err(|error: io::Error| {
            JournalError::State(directory.clone(), penstock_sys::fs::describe(&error))
        })
    }

    /// Opens the journal of the transfer `name` to `at` in the state directory `state` and gives what it
    /// knows of unfinished files.
    ///
    /// # Errors
    /// When the transfer is running already or the state directory cannot be used.
    pub fn open(
        state: &Path,
        name: &str,
        at: At,
        options: &Options,
    ) -> Result<(Self, HashMap<RelativePath, Unfinished>), JournalError> {
        let directory = state.join("transfers");
        let failed = |error: io::Error| {
            JournalError::State(directory.clone(), penstock_sys::fs::describe(&error))
        };
        fs::create_dir_all(&directory).map_err(failed)?;
        let running = FileLock::try_lock_at(&directory.join(format!("{name}.lock")));
        let running = running.map_err(failed)?.ok_or(JournalError::Running)?;
        let path = directory.join(format!("{name}.journal"));
        let boot = machine::boot_id().unwrap_or_default();
        let mut bytes = Vec::new();
        if let Ok(file) = File::open(&path) {
            file.take(JOURNAL_BYTES_MAX).read_to_end(&mut bytes).map_err(failed)?;
        }
        let unfinished = journal::replay(&bytes, &boot, options.algorithm, options.block_bytes)
            .unwrap_or_default();
        let earlier = journal::places(&bytes).filter(|places| places.at == at);
        let earlier = earlier.map(|places| places.directories).unwrap_or_default();
        let fresh = begin(&unfinished, &earlier, boot, at, options);
        let beside = directory.join(format!("{name}.new"));
        let mut how = OpenOptions::new();
        how.write(true).create(true).truncate(true).mode(0o600);
        let mut file = how.open(&beside).map_err(failed)?;
        file.write_all(&fresh.bytes)
            .and_then(|()| file.sync_data())
            .and_then(|()| fs::rename(&beside, &path))
            .map_err(failed)?;
        let state = State {
            file: Some(file),
            length: fresh.bytes.len() as u64,
            next_number: unfinished.len() as u64,
            numbers: fresh.numbers,
            directories: earlier.iter().cloned().collect(),
        };
        Ok((Self { path, earlier, state: Mutex::new(state), running: Some(running) }, unfinished))
    }

    /// Temporary files may be made in this directory below the target from here on.
    pub fn into_directory(&self, path: &[u8]) {
        let path = Bytes(path.to_vec());
        if !lock(&self.state).directories.contains(&path) {
            self.append(&Record::Into(path.clone()));
            lock(&self.state).directories.insert(path);
        }
    }

    /// Directories in which earlier runs of the transfer may have left something.
    pub fn earlier_directories(&self) -> impl Iterator<Item = &[u8]> {
        self.earlier.iter().map(|path| path.0.as_slice())
    }

    /// Begins a file, or takes up the one of an earlier run, and gives its number.
    pub fn begin_file(&self, path: &RelativePath, identity: Identity, resumed: bool) -> u64 {
        let mut state = lock(&self.state);
        let earlier = state.numbers.remove(path);
        state.next_number += 1;
        let number = state.next_number;
        drop(state);
        match earlier {
            Some(earlier) if resumed => return earlier,
            Some(earlier) => self.append(&Record::Ended(earlier)),
            None => {}
        }
        self.append(&Record::Begun(Begun { number, path: path.clone(), identity }));
        number
    }

    /// Records an extent that is written.
    pub fn written(&self, number: u64, extent: Extent) {
        self.append(&Record::Written((number, extent)));
    }

    /// Records that a file needs the journal no more.
    pub fn end_file(&self, number: u64) {
        if number > 0 {
            self.append(&Record::Ended(number));
        }
    }

    /// Length of the journal now: what it holds is durable once the files it speaks of are synced.
    #[must_use]
    pub fn length(&self) -> u64 {
        lock(&self.state).length
    }

    /// Records that what the first `length` bytes speak of is durable, durably.
    pub fn synced(&self, length: u64) {
        self.append(&Record::Synced(length));
        let file = lock(&self.state).file.as_ref().and_then(|file| file.try_clone().ok());
        if let Some(Err(error)) = file.map(|file| file.sync_data()) {
            self.give_up(&error);
        }
    }

    /// The transfer is complete.
    pub fn remove(&self) {
        lock(&self.state).file = None;
        if self.running.is_none() {
            return;
        }
        let _ = fs::remove_file(&self.path);
        // The lock file goes too; whoever has it open finds the name gone and makes another.
        let _ = fs::remove_file(self.path.with_extension("lock"));
    }

    fn append(&self, record: &Record) {
        let mut bytes = Vec::new();
        journal::put(record, &mut bytes);
        let mut state = lock(&self.state);
        state.length += bytes.len() as u64;
        let result = state.file.as_mut().map(|file| file.write_all(&bytes));
        drop(state);
        if let Some(Err(error)) = result {
            self.give_up(&error);
        }
    }

    fn give_up(&self, error: &io::Error) {
        let why = penstock_sys::fs::describe(error);
        tracing::warn!("journal {}: {why}; this transfer cannot be resumed", self.path.display());
        // What is there stays true.
        lock(&self.state).file = None;
    }
}

struct Fresh {
    bytes: Vec<u8>,
    numbers: HashMap<RelativePath, u64>,
}

/// A journal that says what `unfinished` says: durable extents below the length of a `Synced`, the
/// others after it.
fn begin(
    unfinished: &HashMap<RelativePath, Unfinished>,
    directories: &[Bytes],
    boot: String,
    at: At,
    options: &Options,
) -> Fresh {
    let mut bytes = Vec::new();
    let about = About {
        version: JOURNAL_VERSION,
        boot,
        algorithm: options.algorithm,
        block_bytes: options.block_bytes,
    };
    journal::put(&Record::About(about), &mut bytes);
    journal::put(&Record::At(at), &mut bytes);
    for directory in directories {
        journal::put(&Record::Into(directory.clone()), &mut bytes);
    }
    let numbered = || (1_u64..).zip(unfinished);
    for (number, (path, file)) in numbered() {
        let begun = Begun { number, path: path.clone(), identity: file.identity };
        journal::put(&Record::Begun(begun), &mut bytes);
        for extent in &file.durable {
            journal::put(&Record::Written((number, extent.clone())), &mut bytes);
        }
    }
    let length = bytes.len() as u64;
    journal::put(&Record::Synced(length), &mut bytes);
    for (number, (_, file)) in numbered() {
        for extent in &file.written {
            journal::put(&Record::Written((number, extent.clone())), &mut bytes);
        }
    }
    let numbers = numbered().map(|(number, (path, _))| (path.clone(), number)).collect();
    Fresh { bytes, numbers }
}

#[cfg(test)]
mod tests {
    use penstock_protocol::control::Settings;
    use penstock_protocol::digest::Algorithm;
    use penstock_protocol::manifest::Time;
    use penstock_protocol::open::{Existing, Protection};

    use super::*;

    fn options() -> Options {
        Options {
            block_bytes: 1 << 20,
            algorithm: Algorithm::Crc32c,
            protection: Protection::Integrity,
            inplace: false,
            xattrs: false,
            compare_digest: false,
            readback: false,
            existing: Existing::Replace,
            mark: None,
            settings: Settings::default(),
        }
    }

    fn at() -> At {
        At { path: Bytes(b"/target".to_vec()), device: 1, inode: 2, mark: ".m-".to_owned() }
    }

    #[test]
    fn what_was_written_is_there_after_a_restart_and_one_runs_at_a_time() {
        let state = tempfile::tempdir().expect("a directory");
        let path = RelativePath::new(b"a".to_vec()).expect("a path");
        let identity = Identity { bytes: 9, modified: Time::default() };
        let extent = |offset| Extent { offset, bytes: 3, part: [1; 32] };
        let (journal, found) =
            Journal::open(state.path(), "t", at(), &options()).expect("a journal");
        assert!(found.is_empty());
        let number = journal.begin_file(&path, identity, false);
        journal.written(number, extent(0));
        journal.synced(journal.length());
        journal.written(number, extent(3));
        journal.into_directory(b"deep");
        journal.into_directory(b"deep");
        assert_eq!(journal.earlier_directories().count(), 0);
        assert!(matches!(
            Journal::open(state.path(), "t", at(), &options()),
            Err(JournalError::Running)
        ));
        drop(journal);
        for _ in 0..2 {
            let (journal, found) =
                Journal::open(state.path(), "t", at(), &options()).expect("a journal");
            assert_eq!(found[&path].durable, [extent(0)]);
            assert_eq!(found[&path].written, [extent(3)]);
            assert_eq!(journal.earlier_directories().collect::<Vec<_>>(), [b"deep"]);
        }
        let (journal, _) = Journal::open(state.path(), "t", at(), &options()).expect("a journal");
        journal.remove();
        drop(journal);
        let (_, found) = Journal::open(state.path(), "t", at(), &options()).expect("a journal");
        assert!(found.is_empty());
    }
}
