//! State machine of one received file, from the request for its data until it is committed or
//! discarded.
//!
//! ```text
//! Expected ── first block ─► Open ── all bytes, length, metadata, synced ─► Complete ── rename ─► Placed
//!     └────── whole in a pack ─► Packed ── synced ──────────────────────────────┘
//! ```
//!
//! `Complete` holds the attributes of the file that was written: the rename compares them with those of the
//! name, which another program may have given to another file.
//!
//! Every state but `Placed` can become `Discarded`. A file completely written by an earlier run also
//! starts as `Expected`: it becomes `Open` when its ranges are verified, and gets length and metadata
//! like any other.

use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use penstock_protocol::digest::Serial;
use penstock_protocol::manifest::Entry;
use penstock_sys::fs::{MappedFile, Open, Stat};

use super::file_locks::SinkFileLock;
use super::storage::{DirectoryHandle, StoredFile};
use crate::base::engine::Engine;
use crate::base::lock::lock;

/// An open directory at the destination.
#[derive(Debug)]
pub struct Parent {
    /// Handle of the directory.
    pub dir: Arc<dyn DirectoryHandle>,
    /// Device of its file system (`st_dev`).
    pub device: u64,
    /// Identity in a journal.
    pub(super) identity: penstock_protocol::journal::Directory,
    /// Set when this session created it, so it was empty.
    pub(super) is_fresh: bool,
}

/// File of a running session.
#[derive(Debug)]
pub struct SinkFile {
    /// Number of the file in the session.
    pub file: u64,
    /// Entry announced by the sender.
    pub entry: Arc<Entry>,
    /// Directory that receives the file.
    pub parent: Arc<Parent>,
    /// Final name in that directory.
    pub name: OsString,
    /// Temporary names, by kind of write.
    pub(super) names: TemporaryNames,
    /// Number in the resume journal; zero if not journalled.
    pub journal_number: AtomicU64,
    /// Digest in file order, for algorithms that need it.
    pub serial: Mutex<Option<Serial>>,
    /// Set when an unfinished copy is continued.
    pub is_resumed: bool,
    /// Set when extents were written since the last sync.
    pub(super) is_dirty: AtomicBool,
    pub(super) state: Mutex<SinkFileState>,
    /// Lock against other transfers of this process, if requested.
    pub(super) _lock: Option<SinkFileLock>,
}

/// Temporary names of a file. With `inplace` both are its final name.
#[derive(Debug, Clone)]
pub(super) struct TemporaryNames {
    /// Name while written block by block, which a later transfer of the same source finds.
    pub(super) partial: OsString,
    /// Name while written as a whole, private to this transfer.
    pub(super) whole: OsString,
}

/// State of a received file.
#[derive(Debug, Clone)]
pub(super) enum SinkFileState {
    /// Data was requested; nothing was written in this session.
    Expected,
    /// Being written block by block.
    Open(OpenFile),
    /// Written as a whole from a pack, with metadata, not synced. These attributes identify the file.
    Packed(Stat),
    /// Content, length and metadata are durable under this temporary name. A partial file stays open, and so locked, until
    /// it has its final name: another transfer of the same source would continue it in place.
    Complete { name: OsString, written: Stat, _locked: Option<OpenFile> },
    /// Committed under its final name.
    Placed,
    /// Discarded; a late frame must not create it again.
    Discarded,
}

/// Open partial file of a received file.
#[derive(Debug, Clone)]
pub struct OpenFile {
    /// Handle of the file.
    pub file: Arc<dyn StoredFile>,
    /// Way in which its blocks are written.
    pub access: FileAccess,
}

/// Way in which the blocks of an open file are written.
#[derive(Debug, Clone)]
pub enum FileAccess {
    /// Through the page cache.
    Buffered,
    /// Past the page cache (`O_DIRECT`).
    Direct,
    /// By a mapping: the file is in memory.
    Mapped(Arc<MappedFile>),
}

/// Event in the life of a file.
#[derive(Debug)]
pub(super) enum FileEvent {
    /// The partial file was opened.
    Opened(OpenFile),
    /// The file was written as a whole, and has these attributes.
    WrittenWhole(Stat),
    /// A file written as a whole is durable.
    Synced,
    /// Content, length and metadata of an open file are durable; it has these attributes.
    Completed(Stat),
    /// The file was renamed, or needs no rename (`inplace`).
    Renamed,
    /// The file or its source failed.
    GivenUp,
}

impl FileAccess {
    /// Name of the storage engine, for reports.
    pub(super) fn engine_name(&self, engine: Engine) -> &'static str {
        match self {
            Self::Buffered => engine.name(false),
            Self::Direct => engine.name(true),
            Self::Mapped(_) => "mapped",
        }
    }
}

impl SinkFileState {
    /// Changes the state by `event`.
    ///
    /// # Errors
    /// If the event is not valid in this state; the state is unchanged.
    pub(super) fn transition(
        &mut self,
        event: FileEvent,
        names: &TemporaryNames,
    ) -> io::Result<()> {
        let next = match (&*self, event) {
            (Self::Expected, FileEvent::Opened(open)) => Self::Open(open),
            (Self::Expected, FileEvent::WrittenWhole(written)) => Self::Packed(written),
            (Self::Open(open), FileEvent::Completed(written)) => {
                Self::Complete { name: names.partial.clone(), written, _locked: Some(open.clone()) }
            }
            (Self::Packed(written), FileEvent::Synced) => {
                Self::Complete { name: names.whole.clone(), written: *written, _locked: None }
            }
            (Self::Complete { .. }, FileEvent::Renamed) => Self::Placed,
            (Self::Placed, _) => return Err(io::Error::other("the file is in place already")),
            (_, FileEvent::GivenUp) => Self::Discarded,
            (Self::Discarded, _) => return Err(io::Error::other("the file was given up")),
            (state, event) => {
                let text = format!("a file cannot go from {state:?} by {event:?}");
                return Err(io::Error::other(text));
            }
        };
        *self = next;
        Ok(())
    }
}

impl SinkFile {
    pub(super) fn advance(&self, event: FileEvent) -> io::Result<()> {
        lock(&self.state).transition(event, &self.names)
    }

    /// Marks the file as having unsynced extents.
    pub fn touch(&self) {
        self.is_dirty.store(true, Ordering::SeqCst);
    }

    /// Returns the open file if it has unsynced extents, and marks them as synced.
    pub fn take_dirty(&self) -> Option<Arc<dyn StoredFile>> {
        if !self.is_dirty.swap(false, Ordering::SeqCst) {
            return None;
        }
        match &*lock(&self.state) {
            SinkFileState::Open(open) => Some(Arc::clone(&open.file)),
            _ => None,
        }
    }

    /// Current name of its data.
    pub(super) fn current_name(&self) -> OsString {
        match &*lock(&self.state) {
            SinkFileState::Packed(_) => self.names.whole.clone(),
            SinkFileState::Complete { name, .. } => name.clone(),
            SinkFileState::Placed => self.name.clone(),
            SinkFileState::Expected | SinkFileState::Open(_) | SinkFileState::Discarded => {
                self.names.partial.clone()
            }
        }
    }

    /// Opens it for reading through the page cache.
    ///
    /// # Errors
    /// If it no longer exists.
    pub fn reopen(&self) -> io::Result<Arc<dyn StoredFile>> {
        self.parent.dir.open_file(self.current_name().as_ref(), &Open::reading())
    }

    /// Partial file name, by which a later transfer may continue it.
    pub(super) fn partial_name(&self) -> &OsStr {
        &self.names.partial
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::simulation::storage::SimulatedStorage;

    /// Table of states, the events that lead there and the events they accept.
    #[test]
    fn transitions_match_diagram() {
        let storage = SimulatedStorage::new(1);
        let root = storage.root();
        let how = Open { read: true, ..Open::creating(0o600) };
        let file = root.open_file("f".as_ref(), &how).expect("a file");
        let names = TemporaryNames { partial: "partial".into(), whole: "whole".into() };
        let written = file.stat().expect("attributes");
        let access = FileAccess::Buffered;
        let event = |number| match number {
            0 => FileEvent::Opened(OpenFile { file: Arc::clone(&file), access: access.clone() }),
            1 => FileEvent::WrittenWhole(written),
            2 => FileEvent::Synced,
            3 => FileEvent::Renamed,
            4 => FileEvent::GivenUp,
            _ => FileEvent::Completed(written),
        };
        let table: [(&str, &[u8], &[u8]); 7] = [
            ("Expected", &[], &[0, 1, 4]),
            ("Open", &[0], &[4, 5]),
            ("Packed", &[1], &[2, 4]),
            ("Complete { name: \"partial\",", &[0, 5], &[3, 4]),
            ("Complete { name: \"whole\",", &[1, 2], &[3, 4]),
            ("Placed", &[0, 5, 3], &[]),
            ("Discarded", &[0, 4], &[4]),
        ];
        for (shown, path, taken) in table {
            for number in 0..6 {
                let mut state = SinkFileState::Expected;
                for step in path {
                    state.transition(event(*step), &names).expect("the path to the state");
                }
                assert!(format!("{state:?}").starts_with(shown), "{state:?} is not {shown}");
                let result = state.transition(event(number), &names);
                assert_eq!(result.is_ok(), taken.contains(&number), "{shown} by {number}");
            }
        }
    }
}
