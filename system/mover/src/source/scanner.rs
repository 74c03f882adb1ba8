//! Scanner thread of a sending end: announces the selected sources and starts readers for their devices.

use std::cell::RefCell;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use penstock_protocol::control::{Failure, FailureKind};
use penstock_protocol::list::PathList;
use penstock_protocol::manifest::{RelativePath, display_path};

use super::reader;
use super::scan::{Missing, ScanItem, ScanRoot, TreeWalk};
use super::work::SourceWork;
use crate::base::lock::{lock, wait};

/// Selection of the sources to send.
#[derive(Debug, Clone)]
pub(crate) enum SourceSelection {
    /// Everything below the sources.
    All,
    /// Paths of this list below the one source.
    Listed(Arc<PathList>),
    /// Paths that the receiver requests below the one source.
    Requested,
}

/// Sources that a scan announces.
#[derive(Debug, Clone)]
pub(crate) struct ScanPlan {
    /// Set to descend into directories.
    pub(crate) recursive: bool,
    /// Sources that do not exist and are reported as failed.
    pub(crate) missing: Vec<Missing>,
    /// Part of the sources to send.
    pub(crate) selection: SourceSelection,
}

/// Announces the sources of `plan` until the session is over.
pub(crate) fn run(work: &Arc<SourceWork>, plan: &ScanPlan) {
    Scanner { work, plan, listed: RefCell::default() }.run();
}

struct Scanner<'a> {
    work: &'a Arc<SourceWork>,
    plan: &'a ScanPlan,
    /// Listed paths that were scanned with all below them. A list may have a directory and files in it.
    listed: RefCell<HashSet<PathBuf>>,
}

impl Scanner<'_> {
    fn run(&self) {
        for Missing { path, why } in &self.plan.missing {
            let failure = Failure::new(FailureKind::Source, why.clone());
            lock(&self.work.machine).scan_failed(path.as_bytes(), failure);
        }
        match &self.plan.selection {
            SourceSelection::All => {
                for (root, source) in self.work.sources.iter().enumerate() {
                    self.scan_source(u32::try_from(root).unwrap_or(u32::MAX), source);
                }
            }
            SourceSelection::Listed(list) => {
                for path in list.iter().take_while(|_| !self.work.session.is_over()) {
                    self.scan_below_base(path);
                }
            }
            SourceSelection::Requested => self.scan_list(),
        }
        lock(&self.work.machine).manifest_end();
        self.work.session.wake_control();
    }

    /// Scans the paths that the receiver requests, as they arrive.
    fn scan_list(&self) {
        while !self.work.session.is_over() {
            let mut machine = lock(&self.work.machine);
            let Some(next) = machine.next_listed() else { return };
            let Some(path) = next else {
                drop(wait(&self.work.room, machine, Duration::from_millis(100)));
                continue;
            };
            // `RelativePath` alone defines valid paths; an invalid one fails by itself.
            if let Err(error) = RelativePath::new(path.clone()) {
                let failure = Failure::new(FailureKind::Source, error.to_string());
                machine.scan_failed(&path, failure);
                continue;
            }
            drop(machine);
            self.scan_below_base(&path);
        }
    }

    /// Scans one listed path below the one source.
    fn scan_below_base(&self, path: &[u8]) {
        let Some(base) = self.work.sources.first() else { return };
        let path = PathBuf::from(OsStr::from_bytes(path));
        if self.is_covered(&path) {
            return;
        }
        self.scan_source(0, &ScanRoot { dir: Arc::clone(&base.dir), path: path.clone() });
        if self.plan.recursive {
            self.listed.borrow_mut().insert(path);
        }
    }

    /// True for a path at or below a listed one that was scanned before.
    fn is_covered(&self, path: &Path) -> bool {
        let listed = self.listed.borrow();
        !listed.is_empty() && path.ancestors().any(|above| listed.contains(above))
    }

    fn scan_source(&self, root: u32, source: &ScanRoot) {
        let walk =
            TreeWalk { recursive: self.plan.recursive, xattrs: self.work.session.options.xattrs };
        let mut known_device = None;
        walk.run(source, |found| {
            match found {
                ScanItem::Failed(path, failure) => {
                    lock(&self.work.machine).scan_failed(path.as_os_str().as_bytes(), failure);
                }
                ScanItem::LeftOut(path) => {
                    let path = path.as_os_str().as_bytes();
                    tracing::info!(
                        "{}: a temporary file of a copy is left out",
                        display_path(path)
                    );
                    lock(&self.work.machine).leave_out(path);
                }
                ScanItem::Entry(_, entry)
                    if self.is_covered(Path::new(OsStr::from_bytes(entry.path.as_bytes()))) => {}
                ScanItem::Entry(device, entry) => {
                    if known_device.replace(device) != Some(device) {
                        reader::spawn_missing(self.work, device);
                    }
                    let mut machine = lock(&self.work.machine);
                    while !machine.has_room() && !self.work.session.is_over() {
                        // Only signals the control thread, so the lock may be held: no wake-up is lost.
                        self.work.session.wake_control();
                        machine = wait(&self.work.room, machine, Duration::from_millis(50));
                    }
                    machine.announce(root, device, entry);
                    if machine.has_announcement() {
                        drop(machine);
                        self.work.session.wake_control();
                    }
                }
            }
            !self.work.session.is_over()
        });
    }
}
