//! One file at the receiver, from the decision that its data is wanted until it has its name or was given up.
//!
//! ```text
//! Expected ── first block ─► Open ── all bytes, length, metadata, synced ─► Complete ── rename ─► Placed
//!     └────── whole in a pack ─► Packed ── synced ──────────────────────────────┘
//! ```
//!
//! Every state but `Placed` can become `Discarded`. A file of which an earlier run wrote every byte is `Expected` like any
//! other: it becomes `Open` when its ranges are read back, and gets its length and metadata like any other.

use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use penstock_protocol::digest::Serial;
use penstock_protocol::manifest::Entry;
use penstock_sys::fs::Open;

use super::file_locks::FileLock;
use super::storage::{Directory, StoredFile};
use crate::session::lock;

/// An open directory at the destination.
#[derive(Debug)]
pub struct Parent {
    /// The directory.
    pub dir: Arc<dyn Directory>,
    /// Device of its file system (`st_dev`).
    pub device: u64,
    /// How a journal identifies it.
    pub(super) identity: penstock_protocol::journal::Directory,
    /// This session created it, so nothing was in it before.
    pub(super) is_fresh: bool,
}

/// A file that is being received.
#[derive(Debug)]
pub struct SinkFile {
    /// Its number in the session.
    pub file: u64,
    /// What it will be.
    pub entry: Arc<Entry>,
    /// The directory it goes into.
    pub parent: Arc<Parent>,
    /// Its name there.
    pub name: OsString,
    /// Temporary names by the way it is written.
    pub(super) names: TemporaryNames,
    /// Its number in the resume journal, zero where it is not journalled.
    pub journal_number: AtomicU64,
    /// Digest in file order, for algorithms that need it.
    pub serial: Mutex<Option<Serial>>,
    /// An unfinished copy is continued.
    pub is_resumed: bool,
    /// Extents were written since the last sync.
    pub(super) is_dirty: AtomicBool,
    pub(super) state: Mutex<FileState>,
    /// Keeps other transfers of this process off, where that was asked for.
    pub(super) _lock: Option<FileLock>,
}

/// Names of a file until it is whole. In place, both are its own name.
#[derive(Debug, Clone)]
pub(super) struct TemporaryNames {
    /// While it is written block by block: one that a later transfer of the same source finds.
    pub(super) partial: OsString,
    /// While it is written whole: one of this transfer.
    pub(super) whole: OsString,
}

/// Where a file is in its life.
#[derive(Debug, Clone)]
pub(super) enum FileState {
    /// Its data is wanted, and nothing was written in this session.
    Expected,
    /// It is written block by block.
    Open(OpenFile),
    /// It was written whole from a pack, with its metadata, and is not synced.
    Packed,
    /// Every byte, its length and its metadata are durable under this temporary name.
    Complete(OsString),
    /// It has its name.
    Placed,
    /// It was given up. A frame that comes late must not create it again.
    Discarded,
}

/// A partial file that is open.
#[derive(Debug, Clone)]
pub struct OpenFile {
    /// The file.
    pub file: Arc<dyn StoredFile>,
    /// Past the page cache.
    pub is_direct: bool,
}

/// A step in the life of a file.
#[derive(Debug)]
pub(super) enum FileEvent {
    /// Its partial file was opened.
    Opened(OpenFile),
    /// It was written whole.
    WrittenWhole,
    /// Content, length and metadata are durable.
    Synced,
    /// It was renamed, or is in place from the start.
    Renamed,
    /// It failed, or its source did.
    GivenUp,
}

impl FileState {
    /// The state after `event`.
    ///
    /// # Errors
    /// When the event cannot happen in this state; the state stays.
    pub(super) fn transition(
        &mut self,
        event: FileEvent,
        names: &TemporaryNames,
    ) -> io::Result<()> {
        let next = match (&*self, event) {
            (Self::Expected, FileEvent::Opened(open)) => Self::Open(open),
            (Self::Expected, FileEvent::WrittenWhole) => Self::Packed,
            (Self::Open(_), FileEvent::Synced) => Self::Complete(names.partial.clone()),
            (Self::Packed, FileEvent::Synced) => Self::Complete(names.whole.clone()),
            (Self::Complete(_), FileEvent::Renamed) => Self::Placed,
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

    /// Says that extents were written.
    pub fn touch(&self) {
        self.is_dirty.store(true, Ordering::SeqCst);
    }

    /// The open file, if it has extents that are not synced; they then count as being synced.
    pub fn take_dirty(&self) -> Option<Arc<dyn StoredFile>> {
        if !self.is_dirty.swap(false, Ordering::SeqCst) {
            return None;
        }
        match &*lock(&self.state) {
            FileState::Open(open) => Some(Arc::clone(&open.file)),
            _ => None,
        }
    }

    /// The name under which its bytes are now.
    pub(super) fn current_name(&self) -> OsString {
        match &*lock(&self.state) {
            FileState::Packed => self.names.whole.clone(),
            FileState::Complete(name) => name.clone(),
            FileState::Placed => self.name.clone(),
            FileState::Expected | FileState::Open(_) | FileState::Discarded => {
                self.names.partial.clone()
            }
        }
    }

    /// Opens it for reading through the page cache.
    ///
    /// # Errors
    /// When it is gone.
    pub fn reopen(&self) -> io::Result<Arc<dyn StoredFile>> {
        self.parent.dir.open_file(self.current_name().as_ref(), &Open::reading())
    }

    /// The partial file's name, where a later transfer may continue it.
    pub(super) fn partial_name(&self) -> &OsStr {
        &self.names.partial
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::simulation::storage::SimulatedStorage;

    /// Each state by the events that lead to it, and the events that it takes.
    #[test]
    fn transitions_are_those_of_the_picture() {
        let storage = SimulatedStorage::new(1);
        let root = storage.root();
        let how = Open { read: true, ..Open::creating(0o600) };
        let file = root.open_file("f".as_ref(), &how).expect("a file");
        let names = TemporaryNames { partial: "partial".into(), whole: "whole".into() };
        let event = |number| match number {
            0 => FileEvent::Opened(OpenFile { file: Arc::clone(&file), is_direct: false }),
            1 => FileEvent::WrittenWhole,
            2 => FileEvent::Synced,
            3 => FileEvent::Renamed,
            _ => FileEvent::GivenUp,
        };
        let table: [(&str, &[u8], &[u8]); 7] = [
            ("Expected", &[], &[0, 1, 4]),
            ("Open", &[0], &[2, 4]),
            ("Packed", &[1], &[2, 4]),
            ("Complete(\"partial\")", &[0, 2], &[3, 4]),
            ("Complete(\"whole\")", &[1, 2], &[3, 4]),
            ("Placed", &[0, 2, 3], &[]),
            ("Discarded", &[0, 4], &[4]),
        ];
        for (shown, path, taken) in table {
            for number in 0..5 {
                let mut state = FileState::Expected;
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
