//! A listing: the regular files below a directory, or one file, told page by page.
//!
//! A thread walks, confined to the export, and stands still while [`WAITING_MAX`] entries are not acknowledged. What it
//! cannot tell (a name that is not UTF-8, a directory that cannot be read) makes the listing end with a fault: whoever
//! asked must not take it for complete.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use penstock_mover::agent::ResolvedPath;
use penstock_mover::scan::{ScanItem, ScanRoot, TreeWalk};
use penstock_mover::sink::PART;
use penstock_operations::orders::{ENTRIES_MAX, LISTED_PATH, ListedFile, OrderFault};
use penstock_protocol::manifest::{EntryKind, display_path};
use penstock_sys::fs::{self, Dir, describe};

use super::faults::lasting;
use super::outbox::Outbox;

/// Entries that may wait for their acknowledgement.
const WAITING_MAX: usize = 2 * ENTRIES_MAX;

/// A listing that runs.
#[derive(Debug)]
pub(super) struct Listing(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    room: Condvar,
}

#[derive(Debug, Default)]
struct State {
    entries: Outbox<ListedFile>,
    /// Something could not be told: how often, and what the first was.
    untold: u64,
    first_untold: String,
    ended: Option<Option<OrderFault>>,
    stopped: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn untold(&self, what: String) {
        let mut state = self.lock();
        state.untold += 1;
        if state.untold == 1 {
            state.first_untold = what;
        }
    }

    /// `false` when nobody wants more.
    fn tell(&self, entry: ListedFile) -> bool {
        let mut state = self.lock();
        while state.entries.len() >= WAITING_MAX && !state.stopped {
            let waited = self.room.wait_timeout(state, Duration::from_millis(500));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.entries.push(entry);
        !state.stopped
    }
}

impl Listing {
    /// Begins to list what is at `place`.
    ///
    /// # Errors
    /// When there is no directory, or the process has no more threads.
    pub(super) fn start(place: ResolvedPath) -> Result<Self, OrderFault> {
        let ResolvedPath { root, path, shown } = place;
        let failed = |error: io::Error| lasting(format!("{shown}: {}", describe(&error)));
        if !path.is_empty() {
            let facts = root.stat(std::ffi::OsStr::from_bytes(&path)).map_err(failed)?;
            if facts.kind == fs::Kind::File {
                // It is one file: the list has it under the name of the listed path itself.
                let shared = Shared::default();
                shared.tell(ListedFile { path: LISTED_PATH.to_owned(), bytes: facts.size });
                shared.lock().ended = Some(None);
                return Ok(Self(Arc::new(shared)));
            }
        }
        let dir = match path.is_empty() {
            true => Ok(root),
            false => root.open_dir(std::ffi::OsStr::from_bytes(&path)),
        };
        let dir = dir.map_err(failed)?;
        let shared = Arc::new(Shared::default());
        let walks = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("listing".into());
        thread
            .spawn(move || walk(&walks, dir, &shown))
            .map_err(|error| lasting(format!("cannot start a thread (raise TasksMax): {error}")))?;
        Ok(Self(shared))
    }

    /// Whether it has come to its end, and why if that was not the last file.
    pub(super) fn ended(&self) -> Option<Option<OrderFault>> {
        self.0.lock().ended.clone()
    }

    /// See [`Outbox::told`].
    pub(super) fn told(&self, room: impl FnMut(&ListedFile) -> bool) -> (u64, Vec<ListedFile>) {
        self.0.lock().entries.told(room)
    }

    /// Entries that wait.
    pub(super) fn waiting(&self) -> usize {
        self.0.lock().entries.len()
    }

    /// See [`Outbox::acknowledge`].
    pub(super) fn acknowledge(&self, before: u64) {
        self.0.lock().entries.acknowledge(before);
        self.0.room.notify_all();
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        self.0.lock().stopped = true;
        self.0.room.notify_all();
    }
}

fn walk(shared: &Shared, dir: Dir, shown: &str) {
    let source = ScanRoot { dir: Arc::new(dir), path: std::path::PathBuf::new() };
    TreeWalk { recursive: true, xattrs: false }.run(&source, |found| match found {
        ScanItem::Entry(_, entry) if entry.kind == EntryKind::File => {
            match std::str::from_utf8(entry.path.as_bytes()) {
                Ok(path) if is_unfinished(path) => !shared.lock().stopped,
                Ok(path) => shared.tell(ListedFile { path: path.to_owned(), bytes: entry.bytes }),
                Err(_) => {
                    shared.untold(format!("{} is not UTF-8", entry.path));
                    !shared.lock().stopped
                }
            }
        }
        ScanItem::Entry(..) => !shared.lock().stopped,
        ScanItem::Failed(path, failure) => {
            let path = display_path(path.as_os_str().as_bytes());
            shared.untold(format!("{path}: {}", failure.text));
            !shared.lock().stopped
        }
    });
    let mut state = shared.lock();
    let fault = (state.untold > 0).then(|| {
        let others = match state.untold {
            1 => String::new(),
            count => format!(" (and {} more like it)", count - 1),
        };
        lasting(format!("{shown} cannot be listed whole: {}{others}", state.first_untold))
    });
    state.ended = Some(fault);
}

/// Left by a transfer to here.
fn is_unfinished(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.starts_with(".penstock-") && name.ends_with(PART)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Instant;

    use super::*;

    fn listed(directory: &std::path::Path) -> (BTreeSet<String>, Option<OrderFault>) {
        let root = Dir::open(directory).unwrap();
        let place = ResolvedPath { root, path: Vec::new(), shown: "/data".into() };
        let listing = Listing::start(place).unwrap();
        let (mut all, mut next) = (BTreeSet::new(), 0);
        let begun = Instant::now();
        loop {
            let ended = listing.ended();
            let mut room = 7_001;
            let (first, page) = listing.told(|_| {
                room -= 1;
                room > 0
            });
            assert_eq!(first, next);
            next += page.len() as u64;
            assert!(listing.waiting() <= WAITING_MAX);
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
        let listing = Listing::start(place).unwrap();
        assert_eq!(listing.ended(), Some(None));
        let (_, entries) = listing.told(|_| true);
        assert_eq!(entries, [ListedFile { path: LISTED_PATH.into(), bytes: 4 }]);
    }

    #[test]
    fn pages_hold_each_file_once_and_links_are_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let mut wanted = BTreeSet::new();
        for number in 0..WAITING_MAX + 3 {
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
        assert_eq!(listed(root), (wanted, None));
    }

    #[test]
    fn what_cannot_be_told_makes_it_end_with_a_line() {
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
