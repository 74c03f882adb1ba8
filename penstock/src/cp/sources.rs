//! Local sources: paths on the command line, or entries of a list below one of them.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use penstock_mover::{Engine, Missing, ScanRoot, SenderEnd, Session};
use penstock_protocol::list::PathList;
use penstock_protocol::manifest::display_path;
use penstock_sys::fs::{Dir, describe};

use super::location;
use super::plan::{StartError, failed};

/// Existing sources, and the missing ones.
pub(super) struct Sources {
    found: Vec<ScanRoot>,
    /// Missing sources, beside existing ones.
    missing: Vec<Missing>,
    list: Option<Arc<PathList>>,
}

impl Sources {
    /// Finds `paths`, or the base directory of `list`.
    ///
    /// # Errors
    /// When no source exists.
    pub(super) fn find(paths: &[PathBuf], list: Option<Arc<PathList>>) -> Result<Self, StartError> {
        let mut sources = Self { found: Vec::new(), missing: Vec::new(), list };
        for path in paths {
            let found = if sources.list.is_some() { base(path) } else { source(path) };
            match found {
                Ok(source) => sources.found.push(source),
                Err(error) => sources.missing.push(Missing {
                    path: display_path(path.as_os_str().as_bytes()),
                    why: format!("{}: check the path", describe(&error)),
                }),
            }
        }
        match sources.missing.first() {
            Some(Missing { path, why }) if sources.found.is_empty() => {
                Err(failed(format!("{path}: {why}")))
            }
            _ => Ok(sources),
        }
    }

    /// Creates the sending end of a session.
    pub(super) fn sender(self, session: Session, engine: Engine, recursive: bool) -> SenderEnd {
        let end = SenderEnd::new(session, engine, self.found, recursive).missing(self.missing);
        match self.list {
            Some(list) => end.listed_here(list),
            None => end,
        }
    }
}

fn base(path: &Path) -> std::io::Result<ScanRoot> {
    Ok(ScanRoot { dir: Arc::new(Dir::open(path)?), path: PathBuf::new() })
}

fn source(path: &Path) -> std::io::Result<ScanRoot> {
    let (above, name) = location::found_at(path)?;
    let dir = Dir::open(&above)?;
    if !name.as_os_str().is_empty() {
        dir.stat(&name)?;
    }
    Ok(ScanRoot { dir: Arc::new(dir), path: name })
}
