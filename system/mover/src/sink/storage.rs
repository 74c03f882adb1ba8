//! File system interface of the receiving side: two traits and their kernel implementation.
//!
//! All file operations of a receiver, including its journal, go through [`DirectoryHandle`] and
//! [`StoredFile`]. The kernel's implementation forwards to `penstock-sys`; the simulated one
//! (`sink::simulation`) can stop, fail or lose unsynced data at every call.

use std::ffi::{OsStr, OsString};
use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use penstock_protocol::journal::{self, TargetDirectory};
use penstock_sys::fs::{self, Dir, Kind, Open, Stat, Timestamp};
use penstock_sys::lock::ExclusiveFileLock;

use crate::base::file_digest::ReadAt;

/// Entries of a directory with their kinds; an error can only be the last item.
pub(crate) type Names<'a> = Box<dyn Iterator<Item = io::Result<(OsString, Kind)>> + 'a>;

/// Open directory; paths are relative to it and confined beneath it.
pub trait DirectoryHandle: Debug + Send + Sync {
    /// Opens a subdirectory, following links that stay beneath.
    fn open_dir(&self, path: &Path) -> io::Result<Arc<dyn DirectoryHandle>>;
    /// Creates a directory with its missing parents.
    fn create_dir_all(&self, path: &Path, mode: u32) -> io::Result<()>;
    /// Creates one directory; the parent must exist.
    fn create_dir(&self, path: &Path, mode: u32) -> io::Result<()>;
    /// Opens a regular file.
    fn open_file(&self, path: &Path, how: &Open) -> io::Result<Arc<dyn StoredFile>>;
    /// Returns the attributes of `path`; of a symbolic link itself.
    fn stat(&self, path: &Path) -> io::Result<Stat>;
    /// Returns the attributes of `path`, following links.
    fn stat_follow(&self, path: &Path) -> io::Result<Stat>;
    /// Returns the attributes of this directory.
    fn stat_self(&self) -> io::Result<Stat>;
    /// Returns the target of a symbolic link.
    fn read_link(&self, path: &Path) -> io::Result<PathBuf>;
    /// Removes a file or link, not a directory.
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    /// Creates a symbolic link.
    fn symlink(&self, target: &Path, path: &Path) -> io::Result<()>;
    /// Sets the owner; of a symbolic link itself.
    fn set_owner(&self, path: &Path, uid: u32, gid: u32) -> io::Result<()>;
    /// Sets the permission bits.
    fn set_mode(&self, path: &Path, mode: u32) -> io::Result<()>;
    /// Sets the modification time; of a symbolic link itself.
    fn set_times(&self, path: &Path, mtime: Timestamp) -> io::Result<()>;
    /// Sets an extended attribute; of a symbolic link itself.
    fn set_xattr(&self, path: &Path, name: &OsStr, value: &[u8]) -> io::Result<()>;
    /// Renames and replaces an existing file.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Renames, or fails with `AlreadyExists`.
    fn rename_noreplace(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Names in this directory with their kinds.
    fn entries(&self) -> io::Result<Names<'_>>;
    /// Makes the names in this directory and its attributes durable (fsync).
    fn sync_names(&self) -> io::Result<()>;
    /// Makes everything on this file system durable (syncfs).
    fn sync_filesystem(&self) -> io::Result<()>;
    /// Takes the exclusive lock file `name`, created if missing; `None` while another holds it.
    /// Released on drop.
    fn lock(&self, name: &OsStr) -> io::Result<Option<Box<dyn Debug + Send + Sync>>>;
    /// Returns the identifier of its file system, stable across mounts if the file system has one.
    fn file_system_id(&self) -> io::Result<u64>;
    /// Returns the absolute path.
    fn real_path(&self) -> io::Result<PathBuf>;
}

/// Open file for reads and writes at any offset.
pub trait StoredFile: Debug + Send + Sync {
    /// Returns the kernel's file for io_uring; `None` in the simulation.
    fn kernel_file(&self) -> Option<&Arc<File>>;
    /// Reads until the buffer is full or the file ends.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes all of `data`.
    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()>;
    /// Truncates or extends to `bytes`.
    fn set_len(&self, bytes: u64) -> io::Result<()>;
    /// Reserves space and extends to at least `bytes`; false if not supported.
    fn preallocate(&self, bytes: u64) -> io::Result<bool>;
    /// Deallocates a range, which then reads as zeros; false if not supported.
    fn punch_hole(&self, offset: u64, bytes: u64) -> io::Result<bool>;
    /// Makes the content durable (fdatasync).
    fn sync_data(&self) -> io::Result<()>;
    /// Makes the content and the attributes durable (fsync).
    fn sync_all(&self) -> io::Result<()>;
    /// Returns the attributes of the file.
    fn stat(&self) -> io::Result<Stat>;
    /// Sets owner and group.
    fn set_owner(&self, uid: u32, gid: u32) -> io::Result<()>;
    /// Sets the permission bits.
    fn set_mode(&self, mode: u32) -> io::Result<()>;
    /// Sets the modification time.
    fn set_times(&self, mtime: Timestamp) -> io::Result<()>;
    /// Sets an extended attribute.
    fn set_xattr(&self, name: &OsStr, value: &[u8]) -> io::Result<()>;
    /// Starts writeback of a range.
    fn start_writeback(&self, offset: u64, bytes: u64) -> io::Result<()>;
    /// Drops clean pages of a range from the page cache.
    fn drop_cache(&self, offset: u64, bytes: u64) -> io::Result<()>;
    /// Takes the file's lock until it is closed; false while another holds it.
    fn try_lock(&self) -> io::Result<bool>;
}

impl DirectoryHandle for Dir {
    fn open_dir(&self, path: &Path) -> io::Result<Arc<dyn DirectoryHandle>> {
        Ok(Arc::new(self.open_dir(path)?))
    }
    fn create_dir_all(&self, path: &Path, mode: u32) -> io::Result<()> {
        self.create_dir_all(path, mode)
    }
    fn create_dir(&self, path: &Path, mode: u32) -> io::Result<()> {
        self.create_dir(path, mode)
    }
    fn open_file(&self, path: &Path, how: &Open) -> io::Result<Arc<dyn StoredFile>> {
        let file = Arc::new(self.open_file(path, how)?);
        Ok(Arc::new(KernelFile(file)))
    }
    fn stat(&self, path: &Path) -> io::Result<Stat> {
        self.stat(path)
    }
    fn stat_follow(&self, path: &Path) -> io::Result<Stat> {
        self.stat_follow(path)
    }
    fn stat_self(&self) -> io::Result<Stat> {
        self.stat_self()
    }
    fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        self.read_link(path)
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.remove_file(path)
    }
    fn symlink(&self, target: &Path, path: &Path) -> io::Result<()> {
        self.symlink(target, path)
    }
    fn set_owner(&self, path: &Path, uid: u32, gid: u32) -> io::Result<()> {
        self.set_owner(path, Some(uid), Some(gid))
    }
    fn set_mode(&self, path: &Path, mode: u32) -> io::Result<()> {
        self.set_mode(path, mode)
    }
    fn set_times(&self, path: &Path, mtime: Timestamp) -> io::Result<()> {
        self.set_times(path, mtime)
    }
    fn set_xattr(&self, path: &Path, name: &OsStr, value: &[u8]) -> io::Result<()> {
        self.set_xattr(path, name, value)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.rename(from, to)
    }
    fn rename_noreplace(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.rename_noreplace(from, to)
    }
    fn entries(&self) -> io::Result<Names<'_>> {
        Ok(Box::new(self.entries()?))
    }
    fn sync_names(&self) -> io::Result<()> {
        self.sync_all()
    }
    fn sync_filesystem(&self) -> io::Result<()> {
        self.sync_filesystem()
    }
    fn lock(&self, name: &OsStr) -> io::Result<Option<Box<dyn Debug + Send + Sync>>> {
        let lock = ExclusiveFileLock::try_lock_at(&self.real_path()?.join(name))?;
        Ok(lock.map(|lock| Box::new(lock) as Box<dyn Debug + Send + Sync>))
    }
    fn file_system_id(&self) -> io::Result<u64> {
        match fs::file_system_id(self)? {
            0 => self.device(),
            id => Ok(id),
        }
    }
    fn real_path(&self) -> io::Result<PathBuf> {
        self.real_path()
    }
}

/// File of the kernel.
#[derive(Debug)]
struct KernelFile(Arc<File>);

impl StoredFile for KernelFile {
    fn kernel_file(&self) -> Option<&Arc<File>> {
        Some(&self.0)
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        fs::read_at_most(&self.0, buffer, offset)
    }
    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        fs::write_all_at(&self.0, data, offset)
    }
    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.0.set_len(bytes)
    }
    fn preallocate(&self, bytes: u64) -> io::Result<bool> {
        fs::preallocate(&self.0, bytes)
    }
    fn punch_hole(&self, offset: u64, bytes: u64) -> io::Result<bool> {
        fs::punch_hole(&self.0, offset, bytes)
    }
    fn sync_data(&self) -> io::Result<()> {
        fs::sync_data(&self.0)
    }
    fn sync_all(&self) -> io::Result<()> {
        fs::sync_all(&self.0)
    }
    fn stat(&self) -> io::Result<Stat> {
        fs::stat_file(&self.0)
    }
    fn set_owner(&self, uid: u32, gid: u32) -> io::Result<()> {
        fs::set_file_owner(&self.0, Some(uid), Some(gid))
    }
    fn set_mode(&self, mode: u32) -> io::Result<()> {
        fs::set_file_mode(&self.0, mode)
    }
    fn set_times(&self, mtime: Timestamp) -> io::Result<()> {
        fs::set_file_times(&self.0, mtime)
    }
    fn set_xattr(&self, name: &OsStr, value: &[u8]) -> io::Result<()> {
        fs::set_xattr(&self.0, name, value)
    }
    fn start_writeback(&self, offset: u64, bytes: u64) -> io::Result<()> {
        fs::start_writeback(&self.0, offset, bytes)
    }
    fn drop_cache(&self, offset: u64, bytes: u64) -> io::Result<()> {
        fs::drop_cache(&self.0, offset, bytes)
    }
    fn try_lock(&self) -> io::Result<bool> {
        fs::try_lock(&self.0)
    }
}

/// Callback that opens the directory recorded in a journal, or returns an error.
pub(crate) type OpenBase =
    dyn Fn(&TargetDirectory) -> io::Result<Arc<dyn DirectoryHandle>> + Send + Sync;

/// Store of resume journals on one machine.
#[derive(Clone)]
pub struct JournalStore {
    /// Directory of the journals.
    pub directory: Arc<dyn DirectoryHandle>,
    /// Boot id of this machine.
    pub boot: String,
    /// Opens the directory recorded in a journal.
    pub open_base: Arc<OpenBase>,
}

impl Debug for JournalStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JournalStore").field("directory", &self.directory).finish_non_exhaustive()
    }
}

impl JournalStore {
    /// Opens the store in the state directory `state`, created if missing.
    ///
    /// # Errors
    /// If that fails.
    pub fn open(state: &Path) -> io::Result<Self> {
        let path = state.join("transfers");
        std::fs::create_dir_all(&path)?;
        Ok(Self {
            directory: Arc::new(Dir::open(&path)?),
            boot: penstock_sys::machine::boot_id().unwrap_or_default(),
            open_base: Arc::new(|at| {
                use std::os::unix::ffi::OsStrExt;
                let dir = Dir::open(Path::new(OsStr::from_bytes(&at.path.0)))?;
                if (DirectoryHandle::file_system_id(&dir)?, dir.stat_self()?.inode)
                    != (at.file_system, at.inode)
                {
                    return Err(io::Error::other(
                        "another directory is there now: mount the one that was there, or remove the journal",
                    ));
                }
                Ok(Arc::new(dir))
            }),
        })
    }
}

/// Identifies a directory for a journal.
///
/// # Errors
/// If its attributes cannot be read.
pub(super) fn identify(directory: &dyn DirectoryHandle) -> io::Result<journal::Directory> {
    let stat = directory.stat_self()?;
    Ok(journal::Directory { device: stat.device, inode: stat.inode, mount: stat.mount })
}

impl ReadAt for dyn StoredFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        StoredFile::read_at(self, buffer, offset)
    }
}
