//! Where files go at the destination: names, temporary names, what is there already, metadata.
//!
//! A file is written under a hidden temporary name beside its final one and renamed when it is whole
//! and durable. The temporary name is made of the transfer's name and key, the path and the source's size and
//! time, so that the same command finds its own unfinished files and nobody else's. Everything happens
//! beneath one directory that no path and no link can leave.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use penstock_protocol::block::PACK_ALIGN_BYTES_MIN;
use penstock_protocol::control::{Failure, FailureKind};
use penstock_protocol::digest::{Algorithm, Digest, Serial};
use penstock_protocol::extents::Extent;
use penstock_protocol::journal::{Identity, Unfinished};
use penstock_protocol::manifest::{Entry, Kind, RelativePath, display_path};
use penstock_protocol::open::{Existing, Options};
use penstock_protocol::receiver::Verdict;
use penstock_protocol::sender::DIFFERS;
use penstock_protocol::wire::Wire;
use penstock_sys::buffer::BUFFER_ALIGNMENT;
use penstock_sys::fs::{self, Dir, Open, Timestamp};

use crate::abandoned::{PART, sweep};
use crate::claims::{Claim, Claims};
use crate::engine::Engine;
use crate::reading::digest_file;
use crate::scan::{native, time};
use crate::session::lock;

/// Directories kept open.
const PARENTS_MAX: usize = 512;

/// Files from this size on are written past the page cache and journalled.
pub const LARGE_BYTES_MIN: u64 = 1 << 20;

/// Where files are to go.
#[derive(Debug)]
pub struct Target {
    /// The directory below which everything goes.
    pub base: Dir,
    /// What a single file is called there, if not by its own name.
    pub rename: Option<OsString>,
    /// The same for the same command, and for no other.
    pub key: [u8; 16],
    /// Whether the sender may choose owners and set-user-id bits.
    pub trusted: bool,
}

/// A directory at the destination that is open.
#[derive(Debug)]
pub struct Parent {
    /// The directory.
    pub dir: Dir,
    /// Device it is on.
    pub device: u64,
    /// The session made it, so that nothing was in it before.
    fresh: bool,
}

/// A file on its way to its place.
#[derive(Debug)]
pub struct SinkFile {
    /// Its number in the session.
    pub file: u64,
    /// What it will be.
    pub entry: Arc<Entry>,
    /// Where.
    pub parent: Arc<Parent>,
    /// Under which name.
    pub name: OsString,
    /// Under which name until it is whole.
    pub temporary: OsString,
    /// Its number in the journal, zero before it is in it.
    pub journal_number: AtomicU64,
    /// Whether extents were written since the last sync.
    pub dirty: AtomicBool,
    /// Digest in file order, for algorithms that need it.
    pub serial: Mutex<Option<Serial>>,
    /// An unfinished copy is taken up.
    pub resumed: bool,
    state: Mutex<SinkState>,
    /// Keeps other transfers off, where that was asked for.
    _claim: Option<Claim>,
}

/// What there is of a file under its temporary name.
#[derive(Debug, Default)]
enum SinkState {
    /// Nothing that is open.
    #[default]
    Closed,
    /// It is written block by block; the flag says whether directly.
    Open(Arc<File>, bool),
    /// It was given up. A frame that comes late must not make it again.
    Discarded,
}

impl SinkState {
    fn check(&self) -> io::Result<()> {
        match self {
            Self::Discarded => Err(io::Error::other("the file was given up")),
            Self::Closed | Self::Open(..) => Ok(()),
        }
    }
}

/// The destination of one session.
#[derive(Debug)]
pub struct Place {
    base: Arc<Parent>,
    /// What a single file is called here, if not by its own name.
    rename: Option<OsString>,
    key: [u8; 16],
    /// What temporary names begin with.
    mark: String,
    /// Whether the sender may choose owners and set-user-id bits: it acts for the user of this process.
    trusted: bool,
    options: Options,
    engine: Engine,
    parents: Mutex<HashMap<PathBuf, Arc<Parent>>>,
    directories: Mutex<Vec<Arc<Entry>>>,
    made: Mutex<HashSet<PathBuf>>,
    /// A directory on each other file system that is mounted below the base.
    mounts: Mutex<HashMap<u64, Arc<Parent>>>,
    unfinished: Mutex<HashMap<RelativePath, Unfinished>>,
    umask: u32,
    /// What did not come with its entry and nobody has taken yet.
    warnings: Mutex<Vec<(RelativePath, Failure)>>,
    /// Files that are there already are read for their digest.
    pub digest_skipped: AtomicBool,
    /// The file system has no direct I/O.
    no_direct: AtomicBool,
    /// Files that transfers are writing, where they keep off each other.
    claims: Option<Claims>,
}

/// Why the destination does not take something, and whether it may another time.
pub(crate) fn destination(error: &io::Error) -> Failure {
    use io::ErrorKind::{
        AlreadyExists, InvalidFilename, IsADirectory, NotADirectory, PermissionDenied,
        ReadOnlyFilesystem,
    };
    let kind = match error.kind() {
        AlreadyExists | InvalidFilename | IsADirectory | NotADirectory | PermissionDenied
        | ReadOnlyFilesystem => FailureKind::Refused,
        _ => FailureKind::Destination,
    };
    Failure::new(kind, fs::describe(error))
}

impl Place {
    /// Files go where `target` says, under names that begin with `mark` until they are whole.
    ///
    /// # Errors
    /// When its directory is gone.
    pub fn new(
        target: Target,
        mark: String,
        options: Options,
        engine: Engine,
        unfinished: HashMap<RelativePath, Unfinished>,
    ) -> io::Result<Self> {
        let device = target.base.device()?;
        Ok(Self {
            base: Arc::new(Parent { dir: target.base, device, fresh: false }),
            rename: target.rename,
            key: target.key,
            mark,
            trusted: target.trusted,
            options,
            engine,
            parents: Mutex::default(),
            directories: Mutex::default(),
            made: Mutex::default(),
            mounts: Mutex::default(),
            unfinished: Mutex::new(unfinished),
            umask: penstock_sys::machine::umask(),
            warnings: Mutex::default(),
            digest_skipped: AtomicBool::new(false),
            no_direct: AtomicBool::new(false),
            claims: None,
        })
    }

    /// Writes no file that another transfer with these claims is writing.
    #[must_use]
    pub fn keeping_off(mut self, claims: Option<Claims>) -> Self {
        self.claims = claims;
        self
    }

    /// The directory below which everything goes.
    #[must_use]
    pub fn base(&self) -> &Parent {
        &self.base
    }

    fn parent_of(&self, path: &RelativePath) -> io::Result<(Arc<Parent>, OsString)> {
        if let Some(name) = &self.rename {
            return Ok((Arc::clone(&self.base), name.clone()));
        }
        let path = native(path);
        let name = path.file_name().map(OsString::from).unwrap_or_default();
        let above = path.parent().unwrap_or(Path::new(""));
        if above.as_os_str().is_empty() {
            return Ok((Arc::clone(&self.base), name));
        }
        if let Some(parent) = lock(&self.parents).get(above) {
            return Ok((Arc::clone(parent), name));
        }
        let dir = match self.base.dir.open_dir(above) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.base.dir.create_dir_all(above, 0o777)?;
                self.base.dir.open_dir(above)?
            }
            other => other?,
        };
        let device = dir.device()?;
        let fresh = lock(&self.made).contains(above);
        let parent = Arc::new(Parent { dir, device, fresh });
        if device != self.base.device {
            lock(&self.mounts).entry(device).or_insert_with(|| Arc::clone(&parent));
        }
        let mut parents = lock(&self.parents);
        if parents.len() >= PARENTS_MAX {
            parents.clear();
        }
        parents.insert(above.to_owned(), Arc::clone(&parent));
        Ok((parent, name))
    }

    /// Looks at the destination of an entry; makes what needs no data. A file that wants data is given
    /// back with its verdict.
    pub fn check(&self, file: u64, entry: &Arc<Entry>) -> (Verdict, Option<SinkFile>) {
        let verdict = match entry.kind {
            Kind::Directory => self.make_directory(entry),
            Kind::Symlink => self.make_link(entry),
            Kind::File => match self.check_file(file, entry) {
                Ok((verdict, sink)) => return (verdict, sink),
                Err(failure) => Err(failure),
            },
        };
        let verdict = verdict.map_or_else(Verdict::Failed, |()| Verdict::Done(Digest(Vec::new())));
        (verdict, None)
    }

    fn make_directory(&self, entry: &Arc<Entry>) -> Result<(), Failure> {
        let (parent, name) = self.parent_of(&entry.path).map_err(|error| destination(&error))?;
        match parent.dir.create_dir(&name, 0o700) {
            Ok(()) => {
                lock(&self.made).insert(native(&entry.path).to_owned());
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let there = parent.dir.stat(&name).map_err(|error| destination(&error))?;
                let leads_to = || self.base.dir.stat_follow(native(&entry.path));
                match there.kind {
                    fs::Kind::Directory => {}
                    // It keeps its own mode, owner and times.
                    fs::Kind::Symlink
                        if leads_to().is_ok_and(|stat| stat.kind == fs::Kind::Directory) =>
                    {
                        return Ok(());
                    }
                    fs::Kind::Symlink => {
                        return Err(in_the_way("a link to no directory below the target"));
                    }
                    _ => return Err(in_the_way("something that is not a directory")),
                }
            }
            Err(error) => return Err(destination(&error)),
        }
        lock(&self.directories).push(Arc::clone(entry));
        Ok(())
    }

    fn make_link(&self, entry: &Arc<Entry>) -> Result<(), Failure> {
        let make = || -> io::Result<()> {
            let (parent, name) = self.parent_of(&entry.path)?;
            let target = PathBuf::from(OsString::from_vec(entry.link.0.clone()));
            if parent.dir.read_link(&name).is_ok_and(|there| there == target) {
                return Ok(());
            }
            let temporary = self.temporary_name(entry);
            let _ = parent.dir.remove_file(&temporary);
            parent.dir.symlink(&target, &temporary)?;
            self.set_owner(&parent.dir, Path::new(&temporary), entry)?;
            self.set_xattrs(entry, |name, value| parent.dir.set_xattr(&temporary, name, value))?;
            parent.dir.set_times(&temporary, timestamp(entry))?;
            parent.dir.rename(&temporary, &name).inspect_err(|_| {
                let _ = parent.dir.remove_file(&temporary);
            })
        };
        make().map_err(|error| destination(&error))
    }

    fn gives_files_away(&self) -> bool {
        self.trusted && penstock_sys::machine::is_superuser()
    }

    fn mode(&self, entry: &Entry) -> u32 {
        entry.mode & if self.trusted { 0o7777 } else { 0o1777 }
    }

    fn set_owner(&self, dir: &Dir, path: &Path, entry: &Entry) -> io::Result<()> {
        if !self.gives_files_away() {
            return Ok(());
        }
        match dir.set_owner(path, Some(entry.uid), Some(entry.gid)) {
            // Only the superuser gives files away; everyone else keeps them.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
            other => other,
        }
    }

    fn check_file(
        &self,
        file: u64,
        entry: &Arc<Entry>,
    ) -> Result<(Verdict, Option<SinkFile>), Failure> {
        let (parent, name) = self.parent_of(&entry.path).map_err(|error| destination(&error))?;
        let there = if parent.fresh { None } else { stat_if_there(&parent.dir, &name)? };
        if there.is_some_and(|stat| stat.kind == fs::Kind::Directory) {
            return Err(in_the_way("a directory"));
        }
        if let Some(fs::Kind::Other(what)) = there.map(|stat| stat.kind) {
            return Err(in_the_way(&format!("a {what}")));
        }
        // What arrives is never written through a link; a rename takes its place by itself.
        if self.options.inplace && there.is_some_and(|stat| stat.kind == fs::Kind::Symlink) {
            parent.dir.remove_file(&name).map_err(|error| destination(&error))?;
        }
        let same = there.is_some_and(|stat| {
            stat.kind == fs::Kind::File
                && stat.size == entry.bytes
                && time(stat.mtime) == entry.modified
        });
        if same && !self.options.compare_digest {
            self.forget(&entry.path, entry, &parent);
            return Ok((Verdict::Skip(self.digest_of_skipped(&parent.dir, &name)?), None));
        }
        let claim = match &self.claims {
            Some(claims) => Some(claims.claim(&parent, &name)?),
            None => None,
        };
        let same_size = there.is_some_and(|stat| {
            stat.kind == fs::Kind::File && stat.size == entry.bytes && entry.bytes > 0
        });
        let compare = (self.options.compare_digest && same_size)
            .then(|| self.digest_of(&parent.dir, &name))
            .flatten();
        if compare.is_none() && self.keeps(there) {
            return Err(Failure::new(FailureKind::Refused, DIFFERS));
        }
        let resume = self.resumable(entry, &parent);
        let sink = SinkFile {
            file,
            entry: Arc::clone(entry),
            temporary: if self.options.inplace { name.clone() } else { self.temporary_name(entry) },
            name,
            parent,
            journal_number: AtomicU64::new(0),
            dirty: AtomicBool::new(false),
            serial: Mutex::new(
                (!self.options.algorithm.combines())
                    .then(|| Serial::new(self.options.algorithm))
                    .flatten(),
            ),
            resumed: resume.is_some(),
            state: Mutex::default(),
            _claim: claim,
        };
        if entry.bytes == 0 {
            // There is nothing to send, and the last sync makes it durable.
            let make = || self.write_small(&sink, &[], &[]).and_then(|()| self.rename(&sink));
            make().map_err(|error| destination(&error))?;
            return Ok((Verdict::Done(empty_digest(self.options.algorithm)), None));
        }
        let verdict = match (compare, resume) {
            (Some(digest), _) => Verdict::Compare(digest),
            (None, Some(extents)) => Verdict::Resume(extents),
            (None, None) => Verdict::Send,
        };
        Ok((verdict, Some(sink)))
    }

    fn digest_of_skipped(&self, dir: &Dir, name: &OsString) -> Result<Digest, Failure> {
        let none = self.options.algorithm == Algorithm::None;
        if none || !self.digest_skipped.load(Ordering::SeqCst) {
            return Ok(Digest(Vec::new()));
        }
        let digest = dir
            .open_file(name, &Open::reading())
            .and_then(|file| digest_file(&file, self.options.algorithm, &mut vec![0; 1 << 20]));
        match digest {
            Ok(digest) => Ok(digest.unwrap_or(Digest(Vec::new()))),
            Err(error) => {
                let text = format!("its digest cannot be made: {}", fs::describe(&error));
                Err(Failure::new(FailureKind::Destination, text))
            }
        }
    }

    fn digest_of(&self, dir: &Dir, name: &OsString) -> Option<Digest> {
        let file = dir.open_file(name, &Open::reading()).ok()?;
        digest_file(&file, self.options.algorithm, &mut vec![0; 1 << 20]).ok().flatten()
    }

    /// Extents of an unfinished copy of the same source, if its temporary file is there too.
    fn resumable(&self, entry: &Entry, parent: &Parent) -> Option<Vec<Extent>> {
        let unfinished = lock(&self.unfinished).remove(&entry.path)?;
        if unfinished.identity != identity(entry) {
            let _ = parent.dir.remove_file(self.temporary_of(&entry.path, &unfinished.identity));
            return None;
        }
        let temporary = if self.options.inplace { return None } else { self.temporary_name(entry) };
        let stat = parent.dir.stat(&temporary).ok()?;
        (stat.kind == fs::Kind::File).then_some(())?;
        let extents: Vec<_> = unfinished.durable.into_iter().chain(unfinished.written).collect();
        // A file that is shorter than an extent says is not the one that the journal speaks of.
        let holds = |extent: &Extent| extent.offset.saturating_add(extent.bytes) <= stat.size;
        extents.iter().all(holds).then_some(extents)
    }

    /// An unfinished copy of a file that is whole is of no use.
    fn forget(&self, path: &RelativePath, entry: &Entry, parent: &Parent) {
        if lock(&self.unfinished).remove(path).is_some() {
            let _ = parent.dir.remove_file(self.temporary_name(entry));
        }
    }

    /// The directory below the target in which the temporary file of an entry is.
    #[must_use]
    pub fn directory_of<'a>(&self, path: &'a RelativePath) -> &'a [u8] {
        let path = path.as_bytes();
        let slash = path.iter().rposition(|byte| *byte == b'/').filter(|_| self.rename.is_none());
        slash.map_or(&[], |slash| &path[..slash])
    }

    /// Removes what earlier runs left under temporary names in these directories, now that nothing is
    /// under way any more.
    pub fn sweep<'a>(&self, directories: impl Iterator<Item = &'a [u8]>) {
        sweep(&self.base.dir, directories, &self.mark, SystemTime::now());
    }

    /// Removes unfinished files that nothing announced any more.
    pub fn remove_leftovers(&self) {
        let leftovers = std::mem::take(&mut *lock(&self.unfinished));
        for (path, unfinished) in leftovers {
            if let Ok((parent, _)) = self.parent_of(&path) {
                let _ = parent.dir.remove_file(self.temporary_of(&path, &unfinished.identity));
            }
        }
    }

    fn temporary_name(&self, entry: &Entry) -> OsString {
        self.temporary_of(&entry.path, &identity(entry))
    }

    fn temporary_of(&self, path: &RelativePath, identity: &Identity) -> OsString {
        let mut what = self.key.to_vec();
        path.put(&mut what);
        identity.put(&mut what);
        let hash = blake3::hash(&what);
        OsString::from(format!("{}{}{PART}", self.mark, &hash.to_hex()[..20]))
    }

    /// Opens a file for its first block, or gives what is open. The flag says whether it is direct.
    ///
    /// # Errors
    /// When it cannot be made, or there is no room for it.
    pub fn open(&self, sink: &SinkFile) -> io::Result<(Arc<File>, bool)> {
        let mut state = lock(&sink.state);
        state.check()?;
        if let SinkState::Open(file, direct) = &*state {
            return Ok((Arc::clone(file), *direct));
        }
        let bytes = sink.entry.bytes;
        let mut how = Open::creating(0o600);
        how.truncate = !sink.resumed && !self.options.inplace;
        let wanted = self.engine.direct && bytes >= LARGE_BYTES_MIN && !sink.entry.sparse;
        let dir = &sink.parent.dir;
        let (file, direct) = match dir.open_file(&sink.temporary, &Open { direct: wanted, ..how }) {
            Err(error) if wanted && error.kind() == io::ErrorKind::Unsupported => {
                (dir.open_file(&sink.temporary, &how)?, false)
            }
            other => (other?, wanted),
        };
        if sink.entry.sparse {
            file.set_len(bytes)?;
        } else if !sink.resumed {
            // Space first: a full disk is found before the network is used.
            fs::preallocate(&file, bytes)?;
        }
        let file = Arc::new(file);
        *state = SinkState::Open(Arc::clone(&file), direct);
        Ok((file, direct))
    }

    /// Which engine writes a small file.
    #[must_use]
    pub fn small_engine(&self, sink: &SinkFile) -> &'static str {
        if self.is_direct_small(sink) { "direct" } else { "buffered" }
    }

    fn is_direct_small(&self, sink: &SinkFile) -> bool {
        let bytes = usize::try_from(sink.entry.bytes).unwrap_or(usize::MAX);
        let possible = self.engine.direct && !self.no_direct.load(Ordering::Relaxed);
        possible && bytes >= PACK_ALIGN_BYTES_MIN && !sink.entry.sparse
    }

    /// Writes a whole small file under its temporary name, with its metadata. `sectors` is `data` and what
    /// lies behind it in its buffer.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_small(&self, sink: &SinkFile, data: &[u8], sectors: &[u8]) -> io::Result<()> {
        let state = lock(&sink.state);
        state.check()?;
        // Who may not write a file may not give it attributes either.
        let needs_write = if sink.entry.xattrs.is_empty() { 0 } else { 0o200 };
        let mode = sink.entry.mode & 0o777 | needs_write;
        let whole = sectors.get(..data.len().next_multiple_of(BUFFER_ALIGNMENT));
        let whole = whole.filter(|_| self.is_direct_small(sink));
        let how = Open { brief: true, direct: whole.is_some(), ..Open::creating(mode) };
        let how = if self.options.inplace {
            Open { truncate: true, ..how }
        } else {
            Open { create_new: true, ..how }
        };
        let file = match self.create_small(sink, &how) {
            Err(error) if how.direct && error.kind() == io::ErrorKind::Unsupported => {
                self.no_direct.store(true, Ordering::Relaxed);
                self.create_small(sink, &Open { direct: false, ..how })?
            }
            other => other?,
        };
        match whole.filter(|_| !self.no_direct.load(Ordering::Relaxed)) {
            Some(whole) => {
                fs::write_all_at(&file, whole, 0)?;
                if whole.len() > data.len() {
                    file.set_len(data.len() as u64)?;
                }
            }
            None => fs::write_all_at(&file, data, 0)?,
        }
        let given = mode & !self.umask;
        self.set_metadata(&file, &sink.entry, given != self.mode(&sink.entry))
    }

    fn create_small(&self, sink: &SinkFile, how: &Open) -> io::Result<File> {
        let dir = &sink.parent.dir;
        match dir.open_file(&sink.temporary, how) {
            // Left by a run that was killed.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                dir.remove_file(&sink.temporary)?;
                dir.open_file(&sink.temporary, how)
            }
            other => other,
        }
    }

    /// Metadata in the order that keeps it: owner clears set-user-id, and everything but the time
    /// changes the time.
    fn set_metadata(&self, file: &File, entry: &Entry, set_mode: bool) -> io::Result<()> {
        if self.gives_files_away() {
            match fs::set_file_owner(file, Some(entry.uid), Some(entry.gid)) {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                other => other?,
            }
        }
        self.set_xattrs(entry, |name, value| fs::set_xattr(file, name, value))?;
        if set_mode {
            fs::set_file_mode(file, self.mode(entry))?;
        }
        fs::set_file_times(file, timestamp(entry))
    }

    /// Gives an entry its attributes by `set`. Those that the destination refuses become a warning.
    fn set_xattrs(
        &self,
        entry: &Entry,
        set: impl Fn(&OsStr, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut refused: Option<(Vec<String>, io::Error)> = None;
        for (name, value) in &entry.xattrs {
            match set(OsStr::from_bytes(&name.0), &value.0) {
                // xattr(7): links have none of the user's.
                Err(_) if entry.kind == Kind::Symlink && name.0.starts_with(b"user.") => {}
                Err(error) if refuses_attribute(&error) => {
                    let (names, _) = refused.get_or_insert_with(|| (Vec::new(), error));
                    names.push(display_path(&name.0));
                }
                other => other?,
            }
        }
        if let Some((names, error)) = refused {
            let text = format!(
                "it arrived without the attributes {}: {}",
                names.join(", "),
                fs::describe(&error)
            );
            let warning = Failure::new(FailureKind::Destination, text);
            lock(&self.warnings).push((entry.path.clone(), warning));
        }
        Ok(())
    }

    /// What did not come with its entry, since the last call.
    pub fn take_warnings(&self) -> Vec<(RelativePath, Failure)> {
        std::mem::take(&mut *lock(&self.warnings))
    }

    /// Gives a large file that is whole its length and metadata; it is then to be synced and
    /// [`Place::rename`]d.
    ///
    /// # Errors
    /// When that fails.
    pub fn complete(&self, sink: &SinkFile) -> io::Result<Arc<File>> {
        let (file, _) = self.open(sink)?;
        // Direct writes end on a sector, and preallocation may have been longer.
        file.set_len(sink.entry.bytes)?;
        self.set_metadata(&file, &sink.entry, true)?;
        Ok(file)
    }

    /// Gives a file that was the same already the metadata of its source.
    ///
    /// # Errors
    /// When that fails.
    pub fn refresh(&self, sink: &SinkFile) -> io::Result<()> {
        let how = Open::reading();
        let file = sink.parent.dir.open_file(&sink.name, &how)?;
        if !sink.entry.xattrs.is_empty() {
            fs::set_file_mode(&file, self.mode(&sink.entry) | 0o200)?;
        }
        self.set_metadata(&file, &sink.entry, true)
    }

    /// Gives a durable file its name.
    ///
    /// # Errors
    /// When that fails.
    pub fn rename(&self, sink: &SinkFile) -> io::Result<()> {
        *lock(&sink.state) = SinkState::Closed;
        if self.options.inplace {
            return Ok(());
        }
        if self.options.existing == Existing::Replace {
            return sink.parent.dir.rename(&sink.temporary, &sink.name);
        }
        let renamed = sink.parent.dir.rename_noreplace(&sink.temporary, &sink.name);
        renamed.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => io::Error::new(error.kind(), DIFFERS),
            _ => error,
        })
    }

    /// Whether what is there is to stay.
    fn keeps(&self, there: Option<fs::Stat>) -> bool {
        self.options.existing == Existing::Keep && there.is_some()
    }

    /// Forgets a file that is not to be completed.
    pub fn discard(&self, sink: &SinkFile) {
        let mut state = lock(&sink.state);
        *state = SinkState::Discarded;
        if !self.options.inplace {
            let _ = sink.parent.dir.remove_file(&sink.temporary);
        }
    }

    /// Makes what was written and renamed durable, on every file system that files went to.
    ///
    /// # Errors
    /// When a device fails.
    pub fn sync(&self) -> io::Result<()> {
        self.base.dir.sync_filesystem()?;
        let others = lock(&self.mounts).values().cloned().collect::<Vec<_>>();
        others.iter().try_for_each(|parent| parent.dir.sync_filesystem())
    }

    /// Gives directories their modes and times, now that nothing more is put into them: the deepest
    /// first, as a time changes with what is in it.
    ///
    /// Gives those of which that failed.
    pub fn finish_directories(&self) -> Vec<(RelativePath, Failure)> {
        let directories = std::mem::take(&mut *lock(&self.directories));
        let mut failures = Vec::new();
        for entry in directories.iter().rev() {
            let set = || -> io::Result<()> {
                let (parent, name) = self.parent_of(&entry.path)?;
                self.set_owner(&parent.dir, Path::new(&name), entry)?;
                if !entry.xattrs.is_empty() {
                    // One that was there may be read-only; whose it is not is said by what follows.
                    let _ = parent.dir.set_mode(&name, self.mode(entry) | 0o200);
                }
                self.set_xattrs(entry, |attribute, value| {
                    parent.dir.set_xattr(&name, attribute, value)
                })?;
                parent.dir.set_mode(&name, self.mode(entry))?;
                parent.dir.set_times(&name, timestamp(entry))
            };
            if let Err(error) = set() {
                let text = format!(
                    "its mode, owner or times cannot be set at the destination: {}: copy it again \
                     when nothing else changes that directory",
                    fs::describe(&error)
                );
                let failure = Failure::new(FailureKind::Destination, text);
                failures.push((entry.path.clone(), failure));
            }
        }
        failures
    }
}

impl SinkFile {
    /// Says that extents were written.
    pub fn touch(&self) {
        self.dirty.store(true, Ordering::SeqCst);
    }

    /// The open file, if it has extents that are not synced; they then count as being synced.
    pub fn take_dirty(&self) -> Option<Arc<File>> {
        if !self.dirty.swap(false, Ordering::SeqCst) {
            return None;
        }
        match &*lock(&self.state) {
            SinkState::Open(file, _) => Some(Arc::clone(file)),
            SinkState::Closed | SinkState::Discarded => None,
        }
    }

    /// Whether it is written block by block, and not whole from a pack.
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(&*lock(&self.state), SinkState::Open(..))
    }

    /// Opens it for reading through the page cache.
    ///
    /// # Errors
    /// When it is gone.
    pub fn reopen(&self) -> io::Result<File> {
        self.parent.dir.open_file(&self.temporary, &Open::reading())
    }
}

fn stat_if_there(dir: &Dir, name: &OsString) -> Result<Option<fs::Stat>, Failure> {
    match dir.stat(name) {
        Ok(stat) => Ok(Some(stat)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(destination(&error)),
    }
}

fn empty_digest(algorithm: Algorithm) -> Digest {
    Serial::new(algorithm).map_or(Digest(Vec::new()), Serial::finish)
}

/// Whether the destination will not have an attribute, while it takes the file.
fn refuses_attribute(error: &io::Error) -> bool {
    use io::ErrorKind::{
        ArgumentListTooLong, InvalidInput, PermissionDenied, StorageFull, Unsupported,
    };
    // A file system says of an attribute that is too long for it that there is no space.
    let kinds = [ArgumentListTooLong, InvalidInput, PermissionDenied, StorageFull, Unsupported];
    kinds.contains(&error.kind())
}

fn in_the_way(what: &str) -> Failure {
    Failure::new(
        FailureKind::Refused,
        format!("{what} of that name is in the way at the destination: move it away"),
    )
}

/// By what a source is known to be unchanged.
#[must_use]
pub fn identity(entry: &Entry) -> Identity {
    Identity { bytes: entry.bytes, modified: entry.modified }
}

fn timestamp(entry: &Entry) -> Timestamp {
    Timestamp { seconds: entry.modified.seconds, nanos: entry.modified.nanos.min(999_999_999) }
}
