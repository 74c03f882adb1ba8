//! Two in-memory file systems, for the destination and the journals, with their states after a crash.
//!
//! Each change is an operation. A snapshot before a change is the state at which the process or machine
//! stopped:
//!
//! - The process is killed: all writes are kept.
//! - The power fails: of each directory a prefix of the name changes survives, at least up to its last sync; of
//!   each file a prefix of the metadata changes; of each unsynced page the new content, the old one, or the first
//!   sectors of the new. File systems with one journal keep the order over all directories, others do not.
//! - The storage loses its cache while the machine stays up: pages are lost likewise, names and metadata are not.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex};

use penstock_random::Random;
use penstock_sys::fs::{Kind, Open, Stat, Timestamp};

use crate::base::lock::lock;
use crate::sink::storage::{DirectoryHandle, JournalStore, Names, StoredFile};

const PAGE_BYTES: usize = 4096;
const SECTOR_BYTES: usize = 512;
/// Inode of the destination's root, and id of its file system.
pub(super) const DESTINATION_ID: u64 = 1;
/// Inode of the journal directory, and id of its file system.
pub(super) const JOURNALS_ID: u64 = 2;

/// Kind of crash that stops a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::sink) enum Crash {
    /// The process is killed.
    Kill,
    /// The machine loses power.
    PowerCut,
    /// The storage loses its cache, and the process is killed.
    CacheLoss,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Metadata {
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) mtime: Timestamp,
    pub(super) xattrs: BTreeMap<OsString, Vec<u8>>,
}

#[derive(Debug, Clone)]
pub(super) enum NodeContent {
    File(Arc<Vec<u8>>),
    Directory(BTreeMap<OsString, u64>),
    Symlink(PathBuf),
}

#[derive(Debug, Clone)]
pub(super) struct StorageNode {
    device: u64,
    pub(super) content: NodeContent,
    pub(super) metadata: Metadata,
    changed: i64,
    /// Content that survives a power cut.
    synced: Arc<Vec<u8>>,
    /// Pages written since the last sync.
    dirty: BTreeSet<usize>,
    /// Metadata versions since the last sync; the first one survives a power cut.
    metadata_log: Vec<Metadata>,
}

/// Name changes in one directory that survive together: a name and the inode that it leads to from here on.
type NameChange = Vec<(OsString, Option<u64>)>;

/// Snapshot of both file systems.
#[derive(Debug, Clone)]
pub(in crate::sink) struct StorageState {
    pub(super) nodes: BTreeMap<u64, Arc<StorageNode>>,
    /// Directories as of their last sync; changes since are in `name_log`.
    synced_names: BTreeMap<u64, BTreeMap<OsString, u64>>,
    name_log: BTreeMap<u64, Vec<NameChange>>,
    next_inode: u64,
    clock: i64,
    boot: u64,
    mount: u64,
}

/// Callback with the state before every change.
type StorageObserver = Box<dyn FnMut(&StorageState) + Send>;

/// Handle of the in-memory file systems.
#[derive(Clone)]
pub(in crate::sink) struct SimulatedStorage(Arc<Mutex<SimulationInner>>);

struct SimulationInner {
    state: StorageState,
    /// Number of changes so far.
    operations: u64,
    /// Index of the change that fails, and its error.
    fail_at: Option<(u64, io::ErrorKind)>,
    observer: Option<StorageObserver>,
    /// Holder of each inode's lock.
    locks: BTreeMap<u64, u64>,
    next_handle: u64,
    has_direct: bool,
    filesystem_syncs: u64,
}

impl Debug for SimulatedStorage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SimulatedStorage")
    }
}

fn error(kind: io::ErrorKind) -> io::Error {
    kind.into()
}

impl StorageNode {
    fn new(device: u64, content: NodeContent, mode: u32, clock: i64) -> Self {
        let uid = penstock_sys::machine::effective_user();
        let metadata = Metadata { mode, uid, mtime: at(clock), ..Metadata::default() };
        Self {
            device,
            content,
            metadata: metadata.clone(),
            changed: clock,
            synced: Arc::default(),
            dirty: BTreeSet::new(),
            metadata_log: vec![metadata],
        }
    }

    pub(super) fn kind(&self) -> Kind {
        match self.content {
            NodeContent::File(_) => Kind::File,
            NodeContent::Directory(_) => Kind::Directory,
            NodeContent::Symlink(_) => Kind::Symlink,
        }
    }

    fn data(&self) -> &Arc<Vec<u8>> {
        match &self.content {
            NodeContent::File(data) => data,
            _ => panic!("no file"),
        }
    }

    fn data_mut(&mut self) -> &mut Vec<u8> {
        match &mut self.content {
            NodeContent::File(data) => Arc::make_mut(data),
            _ => panic!("no file"),
        }
    }

    fn sync_data(&mut self) {
        self.synced = Arc::clone(self.data());
        self.dirty.clear();
    }

    fn sync_metadata(&mut self) {
        self.metadata_log = vec![self.metadata.clone()];
    }

    /// Drops some of the unsynced pages.
    fn lose_pages(&mut self, random: &mut Random) {
        let old = Arc::clone(&self.synced);
        let dirty = std::mem::take(&mut self.dirty);
        let data = self.data_mut();
        for page in dirty {
            let start = page * PAGE_BYTES;
            if start >= data.len() {
                continue;
            }
            let end = data.len().min(start + PAGE_BYTES);
            let kept = match random.below(3) {
                0 => end,
                1 => start,
                _ => end.min(start + random.below(8) as usize * SECTOR_BYTES),
            };
            for (at, byte) in data.iter_mut().enumerate().take(end).skip(kept) {
                *byte = old.get(at).copied().unwrap_or(0);
            }
        }
    }
}

fn apply(names: &mut BTreeMap<OsString, u64>, change: NameChange) {
    for (name, to) in change {
        match to {
            Some(inode) => names.insert(name, inode),
            None => names.remove(&name),
        };
    }
}

fn at(clock: i64) -> Timestamp {
    Timestamp { seconds: clock / 1000, nanos: (clock % 1000) as u32 }
}

impl StorageState {
    fn node(&self, inode: u64) -> io::Result<&Arc<StorageNode>> {
        self.nodes.get(&inode).ok_or_else(|| error(io::ErrorKind::NotFound))
    }

    fn node_mut(&mut self, inode: u64) -> io::Result<&mut StorageNode> {
        let clock = self.clock;
        let node = self.nodes.get_mut(&inode).ok_or_else(|| error(io::ErrorKind::NotFound))?;
        let node = Arc::make_mut(node);
        node.changed = clock;
        Ok(node)
    }

    pub(super) fn names(&self, inode: u64) -> io::Result<&BTreeMap<OsString, u64>> {
        match &self.node(inode)?.content {
            NodeContent::Directory(names) => Ok(names),
            _ => Err(error(io::ErrorKind::NotADirectory)),
        }
    }

    fn change_names(&mut self, directory: u64, change: NameChange) -> io::Result<()> {
        let node = self.node_mut(directory)?;
        let NodeContent::Directory(names) = &mut node.content else { panic!("no directory") };
        apply(names, change.clone());
        self.name_log.entry(directory).or_default().push(change);
        Ok(())
    }

    fn sync_names(&mut self, directory: u64) -> io::Result<()> {
        let names = self.names(directory)?.clone();
        self.synced_names.insert(directory, names);
        self.name_log.remove(&directory);
        let node = Arc::make_mut(self.nodes.get_mut(&directory).expect("its names were found"));
        node.sync_metadata();
        Ok(())
    }

    fn sync_filesystem(&mut self, device: u64) {
        for (inode, node) in self.nodes.iter_mut().filter(|(_, node)| node.device == device) {
            let node = Arc::make_mut(node);
            node.sync_metadata();
            match &node.content {
                NodeContent::File(_) => node.sync_data(),
                NodeContent::Directory(names) => {
                    self.synced_names.insert(*inode, names.clone());
                    self.name_log.remove(inode);
                }
                NodeContent::Symlink(_) => {}
            }
        }
    }

    /// Returns the state after a crash.
    pub(in crate::sink) fn after(mut self, crash: Crash, seed: u64) -> Self {
        let mut random = Random::new(seed);
        if crash != Crash::Kill {
            for node in self.nodes.values_mut() {
                let node = Arc::make_mut(node);
                let is_file = matches!(node.content, NodeContent::File(_));
                if is_file && (crash == Crash::PowerCut || node.device == DESTINATION_ID) {
                    let synced_bytes = node.synced.len();
                    node.lose_pages(&mut random);
                    if crash == Crash::PowerCut && random.one_in(2) {
                        node.data_mut().truncate(synced_bytes);
                    }
                }
                if crash == Crash::PowerCut {
                    let kept = random.below(node.metadata_log.len() as u64) as usize;
                    node.metadata = node.metadata_log[kept].clone();
                }
            }
        }
        if crash == Crash::PowerCut {
            self.boot += 1;
            self.lose_names(&mut random);
        }
        if crash == Crash::CacheLoss && random.one_in(2) {
            self.mount += 1;
        }
        for device in [DESTINATION_ID, JOURNALS_ID] {
            self.sync_filesystem(device);
        }
        self
    }

    fn lose_names(&mut self, random: &mut Random) {
        for (inode, node) in &mut self.nodes {
            if node.kind() != Kind::Directory {
                continue;
            }
            let mut names = self.synced_names.remove(inode).unwrap_or_default();
            let log = self.name_log.remove(inode).unwrap_or_default();
            let kept = random.below(log.len() as u64 + 1) as usize;
            log.into_iter().take(kept).for_each(|change| apply(&mut names, change));
            Arc::make_mut(node).content = NodeContent::Directory(names);
        }
    }
}

impl SimulatedStorage {
    /// Creates empty file systems; odd seeds have direct I/O.
    pub(in crate::sink) fn new(seed: u64) -> Self {
        let directory = |device| {
            Arc::new(StorageNode::new(device, NodeContent::Directory(BTreeMap::new()), 0o755, 0))
        };
        let mut state = StorageState {
            nodes: [DESTINATION_ID, JOURNALS_ID].map(|device| (device, directory(device))).into(),
            synced_names: BTreeMap::new(),
            name_log: BTreeMap::new(),
            next_inode: 10,
            clock: 1,
            boot: 1,
            mount: 1,
        };
        state.sync_filesystem(DESTINATION_ID);
        state.sync_filesystem(JOURNALS_ID);
        Self::from(state, seed)
    }

    /// Creates file systems in the state after a crash.
    pub(in crate::sink) fn from(state: StorageState, seed: u64) -> Self {
        Self(Arc::new(Mutex::new(SimulationInner {
            state,
            operations: 0,
            fail_at: None,
            observer: None,
            locks: BTreeMap::new(),
            next_handle: 1,
            has_direct: seed % 2 == 1,
            filesystem_syncs: 0,
        })))
    }

    /// Calls `observer` with the state before every change from here on.
    pub(in crate::sink) fn observe(&self, observer: StorageObserver) {
        lock(&self.0).observer = Some(observer);
    }

    /// Makes the change of this index, from zero, fail.
    pub(in crate::sink) fn fail_at(&self, operation: u64, kind: io::ErrorKind) {
        lock(&self.0).fail_at = Some((operation, kind));
    }

    /// Number of syncs of a whole file system.
    pub(in crate::sink) fn filesystem_syncs(&self) -> u64 {
        lock(&self.0).filesystem_syncs
    }

    pub(in crate::sink) fn state(&self) -> StorageState {
        lock(&self.0).state.clone()
    }

    /// Root directory of the destination.
    pub(in crate::sink) fn root(&self) -> Arc<dyn DirectoryHandle> {
        Arc::new(SimulatedDirectory { storage: self.clone(), inode: DESTINATION_ID })
    }

    /// Store of the journals.
    pub(in crate::sink) fn journals(&self) -> JournalStore {
        let storage = self.clone();
        JournalStore {
            directory: Arc::new(SimulatedDirectory { storage: self.clone(), inode: JOURNALS_ID }),
            boot: lock(&self.0).state.boot.to_string(),
            open_base: Arc::new(move |at| {
                lock(&storage.0).state.names(at.inode)?;
                let storage = storage.clone();
                Ok(Arc::new(SimulatedDirectory { storage, inode: at.inode }))
            }),
        }
    }

    /// Counts a change, and fails it if it is the chosen one.
    fn change<T>(&self, make: impl FnOnce(&mut StorageState) -> io::Result<T>) -> io::Result<T> {
        let mut inner = lock(&self.0);
        let inner = &mut *inner;
        if let Some(observer) = &mut inner.observer {
            observer(&inner.state);
        }
        let number = inner.operations;
        inner.operations += 1;
        if let Some((at, kind)) = inner.fail_at
            && at == number
        {
            return Err(error(kind));
        }
        inner.state.clock += 1;
        make(&mut inner.state)
    }

    fn look<T>(&self, look: impl FnOnce(&StorageState) -> io::Result<T>) -> io::Result<T> {
        look(&lock(&self.0).state)
    }

    fn open_handle(&self, inode: u64, is_direct: bool) -> Arc<dyn StoredFile> {
        let mut inner = lock(&self.0);
        inner.next_handle += 1;
        let handle = inner.next_handle;
        Arc::new(SimulatedFile { storage: self.clone(), inode, handle, is_direct })
    }

    fn lock_inode(&self, inode: u64, handle: u64) -> bool {
        *lock(&self.0).locks.entry(inode).or_insert(handle) == handle
    }
}

#[derive(Debug)]
struct SimulatedDirectory {
    storage: SimulatedStorage,
    inode: u64,
}

#[derive(Debug)]
struct SimulatedFile {
    storage: SimulatedStorage,
    inode: u64,
    handle: u64,
    is_direct: bool,
}

impl Drop for SimulatedFile {
    fn drop(&mut self) {
        let mut inner = lock(&self.storage.0);
        if inner.locks.get(&self.inode) == Some(&self.handle) {
            inner.locks.remove(&self.inode);
        }
    }
}

impl SimulatedDirectory {
    /// Inode of the directory of `path`, and its last component.
    fn find<'a>(&self, state: &StorageState, path: &'a Path) -> io::Result<(u64, &'a OsStr)> {
        let name = path.file_name().ok_or_else(|| error(io::ErrorKind::InvalidInput))?;
        let parent = path.parent().unwrap_or(Path::new(""));
        Ok((self.walk(state, parent)?, name))
    }

    fn walk(&self, state: &StorageState, path: &Path) -> io::Result<u64> {
        let mut inode = self.inode;
        for component in path.components() {
            let Component::Normal(name) = component else { continue };
            let names = state.names(inode)?;
            inode = *names.get(name).ok_or_else(|| error(io::ErrorKind::NotFound))?;
        }
        state.names(inode)?;
        Ok(inode)
    }

    fn inode_of(&self, state: &StorageState, path: &Path) -> io::Result<u64> {
        let (directory, name) = self.find(state, path)?;
        let inode = state.names(directory)?.get(name);
        inode.copied().ok_or_else(|| error(io::ErrorKind::NotFound))
    }

    fn create(&self, path: &Path, content: NodeContent, mode: u32) -> io::Result<u64> {
        self.storage.change(|state| {
            let (directory, name) = self.find(state, path)?;
            if state.names(directory)?.contains_key(name) {
                return Err(error(io::ErrorKind::AlreadyExists));
            }
            let device = state.node(directory)?.device;
            state.next_inode += 1;
            let inode = state.next_inode;
            let node = StorageNode::new(device, content, mode, state.clock);
            state.nodes.insert(inode, Arc::new(node));
            state.change_names(directory, vec![(name.to_owned(), Some(inode))])?;
            Ok(inode)
        })
    }

    fn set(&self, path: &Path, set: impl FnOnce(&mut Metadata)) -> io::Result<()> {
        self.storage.change(|state| {
            let inode = self.inode_of(state, path)?;
            set_metadata(state, inode, set)
        })
    }
}

fn set_metadata(
    state: &mut StorageState,
    inode: u64,
    set: impl FnOnce(&mut Metadata),
) -> io::Result<()> {
    let node = state.node_mut(inode)?;
    set(&mut node.metadata);
    node.metadata_log.push(node.metadata.clone());
    Ok(())
}

fn stat(state: &StorageState, inode: u64) -> io::Result<Stat> {
    let node = state.node(inode)?;
    let size = match &node.content {
        NodeContent::File(data) => data.len() as u64,
        _ => 0,
    };
    Ok(Stat {
        kind: node.kind(),
        size,
        allocated_bytes: size,
        mode: node.metadata.mode,
        uid: node.metadata.uid,
        gid: node.metadata.gid,
        mtime: node.metadata.mtime,
        ctime: at(node.changed),
        device: node.device,
        inode,
        links: 1,
        mount: state.mount,
    })
}

impl DirectoryHandle for SimulatedDirectory {
    fn open_dir(&self, path: &Path) -> io::Result<Arc<dyn DirectoryHandle>> {
        let inode = self.storage.look(|state| self.walk(state, path))?;
        Ok(Arc::new(Self { storage: self.storage.clone(), inode }))
    }
    fn create_dir_all(&self, path: &Path, mode: u32) -> io::Result<()> {
        let mut so_far = PathBuf::new();
        for component in path.components() {
            so_far.push(component);
            match self.create_dir(&so_far, mode) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                other => other?,
            }
        }
        Ok(())
    }
    fn create_dir(&self, path: &Path, mode: u32) -> io::Result<()> {
        self.create(path, NodeContent::Directory(BTreeMap::new()), mode).map(|_| ())
    }
    fn open_file(&self, path: &Path, how: &Open) -> io::Result<Arc<dyn StoredFile>> {
        if how.direct && !lock(&self.storage.0).has_direct {
            return Err(error(io::ErrorKind::Unsupported));
        }
        let found = self.storage.look(|state| {
            let inode = self.inode_of(state, path)?;
            match state.node(inode)?.kind() {
                Kind::File => Ok(inode),
                Kind::Directory => Err(error(io::ErrorKind::IsADirectory)),
                _ => Err(error(io::ErrorKind::Other)),
            }
        });
        let inode = match found {
            Ok(_) if how.create_new => return Err(error(io::ErrorKind::AlreadyExists)),
            Err(missing)
                if missing.kind() == io::ErrorKind::NotFound && (how.create || how.create_new) =>
            {
                self.create(path, NodeContent::File(Arc::default()), how.mode)?
            }
            other => other?,
        };
        let file = self.storage.open_handle(inode, how.direct);
        if how.truncate {
            file.set_len(0)?;
        }
        Ok(file)
    }
    fn stat(&self, path: &Path) -> io::Result<Stat> {
        self.storage.look(|state| stat(state, self.inode_of(state, path)?))
    }
    fn stat_follow(&self, path: &Path) -> io::Result<Stat> {
        self.stat(path)
    }
    fn stat_self(&self) -> io::Result<Stat> {
        self.storage.look(|state| stat(state, self.inode))
    }
    fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        self.storage.look(|state| match &state.node(self.inode_of(state, path)?)?.content {
            NodeContent::Symlink(target) => Ok(target.clone()),
            _ => Err(error(io::ErrorKind::InvalidInput)),
        })
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.storage.change(|state| {
            let inode = self.inode_of(state, path)?;
            if state.node(inode)?.kind() == Kind::Directory {
                return Err(error(io::ErrorKind::IsADirectory));
            }
            let (directory, name) = self.find(state, path)?;
            state.change_names(directory, vec![(name.to_owned(), None)])
        })
    }
    fn symlink(&self, target: &Path, path: &Path) -> io::Result<()> {
        self.create(path, NodeContent::Symlink(target.to_owned()), 0o777).map(|_| ())
    }
    fn set_owner(&self, path: &Path, uid: u32, gid: u32) -> io::Result<()> {
        self.set(path, |metadata| (metadata.uid, metadata.gid) = (uid, gid))
    }
    fn set_mode(&self, path: &Path, mode: u32) -> io::Result<()> {
        self.set(path, |metadata| metadata.mode = mode)
    }
    fn set_times(&self, path: &Path, mtime: Timestamp) -> io::Result<()> {
        self.set(path, |metadata| metadata.mtime = mtime)
    }
    fn set_xattr(&self, path: &Path, name: &OsStr, value: &[u8]) -> io::Result<()> {
        self.set(path, |metadata| {
            metadata.xattrs.insert(name.to_owned(), value.to_owned());
        })
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.storage.change(|state| {
            let inode = self.inode_of(state, from)?;
            let (directory, old) = self.find(state, from)?;
            let (to, new) = self.find(state, to)?;
            assert_eq!(directory, to, "the mover renames within a directory");
            if state.names(directory)?.get(new).is_some_and(|there| {
                state.node(*there).is_ok_and(|node| node.kind() == Kind::Directory)
            }) {
                return Err(error(io::ErrorKind::IsADirectory));
            }
            state.node_mut(inode)?;
            let change = vec![(old.to_owned(), None), (new.to_owned(), Some(inode))];
            state.change_names(directory, change)
        })
    }
    fn rename_noreplace(&self, from: &Path, to: &Path) -> io::Result<()> {
        if self.stat(to).is_ok() {
            return Err(error(io::ErrorKind::AlreadyExists));
        }
        self.rename(from, to)
    }
    fn entries(&self) -> io::Result<Names<'_>> {
        let names = self.storage.look(|state| {
            let names = state.names(self.inode)?.iter();
            names.map(|(name, inode)| Ok((name.clone(), state.node(*inode)?.kind()))).collect()
        });
        let names: Vec<(OsString, Kind)> = names?;
        Ok(Box::new(names.into_iter().map(Ok)))
    }
    fn sync_names(&self) -> io::Result<()> {
        self.storage.change(|state| state.sync_names(self.inode))
    }
    fn sync_filesystem(&self) -> io::Result<()> {
        lock(&self.storage.0).filesystem_syncs += 1;
        self.storage.change(|state| {
            let device = state.node(self.inode)?.device;
            state.sync_filesystem(device);
            Ok(())
        })
    }
    fn lock(&self, name: &OsStr) -> io::Result<Option<Box<dyn Debug + Send + Sync>>> {
        let file = self.open_file(Path::new(name), &Open::creating(0o600))?;
        Ok(file.try_lock()?.then(|| Box::new(file) as Box<dyn Debug + Send + Sync>))
    }
    fn file_system_id(&self) -> io::Result<u64> {
        self.storage.look(|state| Ok(state.node(self.inode)?.device))
    }
    fn real_path(&self) -> io::Result<PathBuf> {
        Ok(PathBuf::from(format!("/simulated/{}", self.inode)))
    }
}

impl SimulatedFile {
    fn update(&self, update: impl FnOnce(&mut StorageNode)) -> io::Result<()> {
        self.storage.change(|state| {
            update(state.node_mut(self.inode)?);
            Ok(())
        })
    }
}

impl StoredFile for SimulatedFile {
    fn kernel_file(&self) -> Option<&Arc<File>> {
        None
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.storage.look(|state| {
            let data = state.node(self.inode)?.data();
            let rest = data.get(offset as usize..).unwrap_or_default();
            let bytes = rest.len().min(buffer.len());
            buffer[..bytes].copy_from_slice(&rest[..bytes]);
            Ok(bytes)
        })
    }
    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let (start, end) = (offset as usize, offset as usize + data.len());
        let is_aligned = start.is_multiple_of(PAGE_BYTES) && end.is_multiple_of(PAGE_BYTES);
        assert!(!self.is_direct || is_aligned, "a direct write of {start}..{end}");
        self.storage.change(|state| {
            let mtime = at(state.clock);
            let node = state.node_mut(self.inode)?;
            let content = node.data_mut();
            if content.len() < end {
                content.resize(end, 0);
            }
            content[start..end].copy_from_slice(data);
            node.dirty.extend(start / PAGE_BYTES..end.div_ceil(PAGE_BYTES));
            node.metadata.mtime = mtime;
            node.metadata_log.push(node.metadata.clone());
            Ok(())
        })
    }
    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.update(|node| {
            let pages = (bytes as usize).min(node.data().len()) / PAGE_BYTES;
            node.data_mut().resize(bytes as usize, 0);
            // Truncated bytes read as zeros when extended again.
            let end = node.data().len().max(node.synced.len()).div_ceil(PAGE_BYTES);
            node.dirty.extend(pages..end);
        })
    }
    fn preallocate(&self, bytes: u64) -> io::Result<bool> {
        let there = self.stat()?.size;
        self.set_len(bytes.max(there)).map(|()| true)
    }
    fn punch_hole(&self, offset: u64, bytes: u64) -> io::Result<bool> {
        let (start, end) = (offset as usize, (offset + bytes) as usize);
        self.update(|node| {
            let data = node.data_mut();
            let end = end.min(data.len());
            data[start.min(end)..end].fill(0);
            node.dirty.extend(start / PAGE_BYTES..end.div_ceil(PAGE_BYTES));
        })?;
        Ok(true)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.update(StorageNode::sync_data)
    }
    fn sync_all(&self) -> io::Result<()> {
        self.update(|node| {
            node.sync_data();
            node.sync_metadata();
        })
    }
    fn stat(&self) -> io::Result<Stat> {
        self.storage.look(|state| stat(state, self.inode))
    }
    fn set_owner(&self, uid: u32, gid: u32) -> io::Result<()> {
        self.storage.change(|state| {
            set_metadata(state, self.inode, |metadata| {
                (metadata.uid, metadata.gid) = (uid, gid);
            })
        })
    }
    fn set_mode(&self, mode: u32) -> io::Result<()> {
        self.storage
            .change(|state| set_metadata(state, self.inode, |metadata| metadata.mode = mode))
    }
    fn set_times(&self, mtime: Timestamp) -> io::Result<()> {
        self.storage
            .change(|state| set_metadata(state, self.inode, |metadata| metadata.mtime = mtime))
    }
    fn set_xattr(&self, name: &OsStr, value: &[u8]) -> io::Result<()> {
        self.storage.change(|state| {
            set_metadata(state, self.inode, |metadata| {
                metadata.xattrs.insert(name.to_owned(), value.to_owned());
            })
        })
    }
    fn start_writeback(&self, _offset: u64, _bytes: u64) -> io::Result<()> {
        Ok(())
    }
    fn drop_cache(&self, _offset: u64, _bytes: u64) -> io::Result<()> {
        Ok(())
    }
    fn try_lock(&self) -> io::Result<bool> {
        Ok(self.storage.lock_inode(self.inode, self.handle))
    }
}
