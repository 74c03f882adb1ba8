//! Lists the files and symbolic links below a directory, or one of them, page by page.
//!
//! A thread walks the tree, confined to the export, and pauses while [`PENDING_MAX`] entries are
//! unacknowledged. A name that is not UTF-8 or an unreadable directory ends the listing with a fault, so that
//! an incomplete list is never taken for complete. Directories are not listed: they appear with their files.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use penstock_control::agent::Outbox;
use penstock_control::orders::{ENTRIES_MAX, LISTED_PATH, ListedFile, OrderFault};
use penstock_mover::ResolvedPath;
use penstock_mover::{ScanItem, ScanRoot, TreeWalk};
use penstock_protocol::manifest::{EntryKind, display_path};
use penstock_sys::fs::{self, Dir, describe};

use super::engine::FileListing;
use super::faults::permanent;

/// Entries that may wait for their acknowledgement.
const PENDING_MAX: usize = 2 * ENTRIES_MAX;

/// A directory listing in a thread of its own.
#[derive(Debug)]
pub(super) struct DirectoryListing(Arc<ListingShared>);

#[derive(Debug, Default)]
struct ListingShared {
    state: Mutex<ListingState>,
    room: Condvar,
}

#[derive(Debug, Default)]
struct ListingState {
    entries: Outbox<ListedFile>,
    /// Entries that could not be reported: their number and the first reason.
    failures: u64,
    first_failure: String,
    ended: Option<Option<OrderFault>>,
    stopped: bool,
}

impl ListingShared {
    fn lock(&self) -> MutexGuard<'_, ListingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add_failure(&self, reason: String) {
        let mut state = self.lock();
        state.failures += 1;
        if state.failures == 1 {
            state.first_failure = reason;
        }
    }

    /// Adds an entry, and blocks while the outbox is full; returns false once the listing is stopped.
    fn push(&self, entry: ListedFile) -> bool {
        let mut state = self.lock();
        while state.entries.pending_count() >= PENDING_MAX && !state.stopped {
            let waited = self.room.wait_timeout(state, Duration::from_millis(500));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.entries.push(entry);
        !state.stopped
    }
}

impl DirectoryListing {
    /// Starts to list the files at `place`.
    ///
    /// # Errors
    /// When the path cannot be read, or no thread can be started.
    pub(super) fn start(place: ResolvedPath) -> Result<Self, OrderFault> {
        let ResolvedPath { root, path, shown } = place;
        let failed = |error: io::Error| permanent(format!("{shown}: {}", describe(&error)));
        if !path.is_empty() {
            let facts = root.stat(std::ffi::OsStr::from_bytes(&path)).map_err(failed)?;
            if matches!(facts.kind, fs::Kind::File | fs::Kind::Symlink) {
                // A single file is listed under the name that stands for the listed path.
                let shared = ListingShared::default();
                shared.push(ListedFile { path: LISTED_PATH.to_owned(), bytes: facts.size });
                shared.lock().ended = Some(None);
                return Ok(Self(Arc::new(shared)));
            }
        }
        let dir = match path.is_empty() {
            true => Ok(root),
            false => root.open_dir(std::ffi::OsStr::from_bytes(&path)),
        };
        let dir = dir.map_err(failed)?;
        let shared = Arc::new(ListingShared::default());
        let walks = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("listing".into());
        thread.spawn(move || walk(&walks, dir, &shown)).map_err(|error| {
            permanent(format!("cannot start a thread (raise TasksMax): {error}"))
        })?;
        Ok(Self(shared))
    }
}

impl FileListing for DirectoryListing {
    fn ended(&self) -> Option<Option<OrderFault>> {
        self.0.lock().ended.clone()
    }

    fn pending(&self, fits: &mut dyn FnMut(&ListedFile) -> bool) -> (u64, Vec<ListedFile>) {
        self.0.lock().entries.pending(fits)
    }

    fn pending_count(&self) -> usize {
        self.0.lock().entries.pending_count()
    }

    /// Resumes the walk, too.
    fn acknowledge(&self, before: u64) {
        self.0.lock().entries.acknowledge(before);
        self.0.room.notify_all();
    }
}

impl Drop for DirectoryListing {
    fn drop(&mut self) {
        self.0.lock().stopped = true;
        self.0.room.notify_all();
    }
}

fn walk(shared: &ListingShared, dir: Dir, shown: &str) {
    let source = ScanRoot { dir: Arc::new(dir), path: std::path::PathBuf::new() };
    TreeWalk { recursive: true, xattrs: false }.run(&source, |found| match found {
        ScanItem::Entry(_, entry) if entry.kind != EntryKind::Directory => {
            match std::str::from_utf8(entry.path.as_bytes()) {
                Ok(path) => shared.push(ListedFile { path: path.to_owned(), bytes: entry.bytes }),
                Err(_) => {
                    shared.add_failure(format!("{} is not UTF-8", entry.path));
                    !shared.lock().stopped
                }
            }
        }
        ScanItem::Entry(..) | ScanItem::LeftOut(_) => !shared.lock().stopped,
        ScanItem::Failed(path, failure) => {
            let path = display_path(path.as_os_str().as_bytes());
            shared.add_failure(format!("{path}: {}", failure.text));
            !shared.lock().stopped
        }
    });
    let mut state = shared.lock();
    let fault = (state.failures > 0).then(|| {
        let others = match state.failures {
            1 => String::new(),
            count => format!(" (and {} more like it)", count - 1),
        };
        permanent(format!("{shown} cannot be listed whole: {}{others}", state.first_failure))
    });
    state.ended = Some(fault);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Instant;

    use super::*;

    fn listed(directory: &std::path::Path) -> (BTreeSet<String>, Option<OrderFault>) {
        let root = Dir::open(directory).unwrap();
        let place = ResolvedPath { root, path: Vec::new(), shown: "/data".into() };
        let listing = DirectoryListing::start(place).unwrap();
        let (mut all, mut next) = (BTreeSet::new(), 0);
        let begun = Instant::now();
        loop {
            let ended = listing.ended();
            let mut room = 7_001;
            let (first, page) = listing.pending(&mut |_| {
                room -= 1;
                room > 0
            });
            assert_eq!(first, next);
            next += page.len() as u64;
            assert!(listing.pending_count() <= PENDING_MAX);
            listing.acknowledge(next);
            if let (Some(fault), true) = (ended, page.is_empty()) {
                return (all, fault);
            }
            all.extend(page.into_iter().map(|entry| entry.path));
            assert!(begun.elapsed() < Duration::from_secs(60));
        }
    }

    #[test]
    fn file_is_listed_as_itself() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("one.raw"), "text").unwrap();
        let root = Dir::open(directory.path()).unwrap();
        let place = ResolvedPath { root, path: b"one.raw".to_vec(), shown: "/data/one.raw".into() };
        let listing = DirectoryListing::start(place).unwrap();
        assert_eq!(listing.ended(), Some(None));
        let (_, entries) = listing.pending(&mut |_| true);
        assert_eq!(entries, [ListedFile { path: LISTED_PATH.into(), bytes: 4 }]);
    }

    #[test]
    fn pages_list_entries_once() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let mut wanted = BTreeSet::new();
        for number in 0..PENDING_MAX + 3 {
            let name = format!("run {}/ä{number}", number % 7);
            let path = root.join(&name);
            if number < 7 {
                std::fs::create_dir(path.parent().unwrap()).unwrap();
            }
            std::fs::write(path, "").unwrap();
            wanted.insert(name);
        }
        std::fs::write(root.join(".penstock-0123-4567.part"), "").unwrap();
        std::os::unix::fs::symlink("/", root.join("everything")).unwrap();
        wanted.insert("everything".to_owned());
        assert_eq!(listed(root), (wanted, None));
    }

    #[test]
    fn unlistable_names_end_with_fault() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("good"), "").unwrap();
        for name in [&b"a\xff"[..], b"b\xff"] {
            std::fs::write(directory.path().join(std::ffi::OsStr::from_bytes(name)), "").unwrap();
        }
        let (all, fault) = listed(directory.path());
        let fault = fault.expect("a fault");
        assert_eq!(all.into_iter().collect::<Vec<_>>(), ["good"]);
        assert!(fault.text.contains("\\xff is not UTF-8 (and 1 more like it)"), "{}", fault.text);
        assert!(fault.text.starts_with("/data cannot be listed whole"), "{}", fault.text);
    }
}
