//! Contents of the simulated file systems, for comparison with the expected ones.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use penstock_sys::fs::{Kind, Timestamp};

use super::storage::{DESTINATION_ID, JOURNALS_ID, NodeContent, StorageState};

/// File, directory or link as found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::sink) struct TreeEntry {
    pub(in crate::sink) kind: Kind,
    pub(in crate::sink) data: Arc<Vec<u8>>,
    pub(in crate::sink) link: PathBuf,
    pub(in crate::sink) mode: u32,
    pub(in crate::sink) owner: (u32, u32),
    pub(in crate::sink) mtime: Timestamp,
    pub(in crate::sink) xattrs: BTreeMap<OsString, Vec<u8>>,
}

impl StorageState {
    /// All entries of the destination, by path.
    pub(in crate::sink) fn tree(&self) -> BTreeMap<PathBuf, TreeEntry> {
        let mut tree = BTreeMap::new();
        let mut todo = vec![(PathBuf::new(), DESTINATION_ID)];
        while let Some((path, directory)) = todo.pop() {
            for (name, inode) in self.names(directory).expect("a directory") {
                let (path, node) = (path.join(name), &self.nodes[inode]);
                if matches!(node.content, NodeContent::Directory(_)) {
                    todo.push((path.clone(), *inode));
                }
                let metadata = &node.metadata;
                let found = TreeEntry {
                    kind: node.kind(),
                    data: match &node.content {
                        NodeContent::File(data) => Arc::clone(data),
                        _ => Arc::default(),
                    },
                    link: match &node.content {
                        NodeContent::Symlink(target) => target.clone(),
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

    /// Names in the journal directory.
    pub(in crate::sink) fn journals(&self) -> Vec<OsString> {
        self.names(JOURNALS_ID).expect("a directory").keys().cloned().collect()
    }
}
