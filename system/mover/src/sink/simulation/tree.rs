//! Everything on the simulated file systems, to compare it with what must be there.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use penstock_sys::fs::{Kind, Timestamp};

use super::storage::{Content, DESTINATION, JOURNALS, State};

/// A file, directory or link as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::sink) struct Found {
    pub(in crate::sink) kind: Kind,
    pub(in crate::sink) data: Arc<Vec<u8>>,
    pub(in crate::sink) link: PathBuf,
    pub(in crate::sink) mode: u32,
    pub(in crate::sink) owner: (u32, u32),
    pub(in crate::sink) mtime: Timestamp,
    pub(in crate::sink) xattrs: BTreeMap<OsString, Vec<u8>>,
}

impl State {
    /// Everything at the destination, by path.
    pub(in crate::sink) fn tree(&self) -> BTreeMap<PathBuf, Found> {
        let mut tree = BTreeMap::new();
        let mut todo = vec![(PathBuf::new(), DESTINATION)];
        while let Some((path, directory)) = todo.pop() {
            for (name, inode) in self.names(directory).expect("a directory") {
                let (path, node) = (path.join(name), &self.nodes[inode]);
                if matches!(node.content, Content::Directory(_)) {
                    todo.push((path.clone(), *inode));
                }
                let metadata = &node.metadata;
                let found = Found {
                    kind: node.kind(),
                    data: match &node.content {
                        Content::File(data) => Arc::clone(data),
                        _ => Arc::default(),
                    },
                    link: match &node.content {
                        Content::Symlink(target) => target.clone(),
                        _ => PathBuf::new(),
                    },
                    mode: metadata.mode,
                    owner: (metadata.uid, metadata.gid),
                    mtime: metadata.mtime,
                    xattrs: metadata.xattrs.clone(),
                };
                tree.insert(path, found);
            }
        }
        tree
    }

    /// Names in the directory with journals.
    pub(in crate::sink) fn journals(&self) -> Vec<OsString> {
        self.names(JOURNALS).expect("a directory").keys().cloned().collect()
    }
}
