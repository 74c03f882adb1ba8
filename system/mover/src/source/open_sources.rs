//! Cache of open source files.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex};

use crate::base::lock::lock;

/// Limit of cached open sources.
const OPEN_SOURCES_MAX: usize = 64;

/// Source file that is open for reading.
#[derive(Debug)]
pub(super) struct OpenSource {
    pub(super) file: Arc<File>,
    pub(super) direct: bool,
}

/// Cache of open sources shared by readers of all devices, so that a file is opened once.
#[derive(Debug, Default)]
pub(crate) struct OpenSources(Mutex<VecDeque<(u64, Arc<OpenSource>)>>);

impl OpenSources {
    /// Returns the open file of this number; calls `open` if it is not cached.
    pub(super) fn get(
        &self,
        file: u64,
        open: impl FnOnce() -> io::Result<OpenSource>,
    ) -> io::Result<Arc<OpenSource>> {
        if let Some((_, open)) = lock(&self.0).iter().find(|(known, _)| *known == file) {
            return Ok(Arc::clone(open));
        }
        let open = Arc::new(open()?);
        let mut files = lock(&self.0);
        if files.len() == OPEN_SOURCES_MAX {
            files.pop_front();
        }
        files.push_back((file, Arc::clone(&open)));
        Ok(open)
    }

    /// Removes a file from the cache, so that it is opened again.
    pub(super) fn remove(&self, file: u64) {
        lock(&self.0).retain(|(open, _)| *open != file);
    }
}
