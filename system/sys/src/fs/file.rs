//! Operations on an open file beside reading and writing.
//!
//! For: space ahead of the data, the page cache kept small, `O_DIRECT` where the file system has it, durability, times.
//! Not for: deciding when any of these is worth it. Holes are in [`super::sparse`].
//!
//! Fails with the error of the system call. Features that a file system may lack give `false` or `None`, not an error.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{Access, Advice, AtFlags, FallocateFlags, FlockOperation, OFlags, StatxFlags};
use rustix::io::Errno;

use super::dir::{owner, permissions, times};
use super::stat::{Timestamp, stat_file};

/// Opens a file for reading that an operator named. A pipe or device, which might never end, is `InvalidInput`, and not
/// waited for.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK.bits() as i32;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    Ok(file)
}

/// Reads from `offset` until `buffer` is full or the file ends, without moving the file position. Returns the bytes read.
pub fn read_at_most(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Fills `buffer` from `offset`; `UnexpectedEof` where the file ends before. The file position stays.
pub fn read_exact_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    file.read_exact_at(buffer, offset)
}

/// Writes all of `buffer` at `offset`. The file position stays.
pub fn write_all_at(file: &File, buffer: &[u8], offset: u64) -> io::Result<()> {
    file.write_all_at(buffer, offset)
}

/// Reserves space for `len_bytes` and sets the file's length to at least that, so that a full file system shows before
/// the data comes. `false` where the file system cannot: the length is then unchanged. In a tmpfs the space is not
/// reserved, but must be free: reserving takes one thread as long as the writers need for the same pages together.
///
/// Fails with `ENOSPC` before it begins where that much space is not free: the kernel would first allocate all free space,
/// and some file systems keep it. The caller should truncate a file after a later ENOSPC.
pub fn preallocate(file: &File, len_bytes: u64) -> io::Result<bool> {
    let missing_bytes = len_bytes.saturating_sub(stat_file(file)?.allocated_bytes);
    let space = rustix::fs::fstatvfs(file)?;
    // A tmpfs without a limit, and some FUSE file systems, give no sizes at all.
    let known = space.f_blocks > 0;
    if known && missing_bytes > space.f_bfree.saturating_mul(space.f_frsize) {
        return Err(Errno::NOSPC.into());
    }
    if len_bytes == 0 {
        return Ok(true);
    }
    if file_system_name(file)? == "tmpfs" {
        if stat_file(file)?.size < len_bytes {
            retry(|| rustix::fs::ftruncate(file, len_bytes))?;
        }
        return Ok(true);
    }
    supported(retry(|| rustix::fs::fallocate(file, FallocateFlags::empty(), 0, len_bytes)))
}

/// Allocates space for `len_bytes` from `offset`; the file keeps its length.
pub(super) fn allocate(file: &File, offset: u64, len_bytes: u64) -> io::Result<()> {
    if len_bytes == 0 {
        return Ok(());
    }
    Ok(retry(|| rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, offset, len_bytes))?)
}

/// Makes `len_bytes` from `offset` a hole: they read as zeroes and use no space. `false` where the file system cannot:
/// the bytes are then unchanged.
pub fn punch_hole(file: &File, offset: u64, len_bytes: u64) -> io::Result<bool> {
    if len_bytes == 0 {
        return Ok(true);
    }
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    supported(retry(|| rustix::fs::fallocate(file, how, offset, len_bytes)))
}

fn supported(result: Result<(), Errno>) -> io::Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

/// Starts writing `len_bytes` from `offset` out of the page cache (0: to the end) without waiting for it, and without
/// any promise of durability. Does nothing where the file system has no such thing.
pub fn start_writeback(file: &File, offset: u64, len_bytes: u64) -> io::Result<()> {
    // SAFETY: takes a descriptor and three numbers; the descriptor is open for as long as `file` is borrowed.
    let result = unsafe {
        libc::sync_file_range(
            file.as_raw_fd(),
            clamped(offset),
            clamped(len_bytes),
            libc::SYNC_FILE_RANGE_WRITE,
        )
    };
    if result == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ENOSYS | libc::EOPNOTSUPP | libc::ESPIPE) => Ok(()),
        _ => Err(error),
    }
}

fn clamped(bytes: u64) -> libc::off64_t {
    libc::off64_t::try_from(bytes).unwrap_or(libc::off64_t::MAX)
}

/// Drops what the page cache holds of `len_bytes` from `offset` (0: to the end). Only pages already written out go: call
/// it some way behind [`start_writeback`].
pub fn drop_cache(file: &File, offset: u64, len_bytes: u64) -> io::Result<()> {
    Ok(rustix::fs::fadvise(file, offset, std::num::NonZeroU64::new(len_bytes), Advice::DontNeed)?)
}

/// Advises sequential reading (POSIX_FADV_SEQUENTIAL): the kernel reads further ahead.
pub fn advise_sequential(file: &File) -> io::Result<()> {
    Ok(rustix::fs::fadvise(file, 0, None, Advice::Sequential)?)
}

/// Starts reading the first `len_bytes` into the page cache (POSIX_FADV_WILLNEED).
pub fn advise_will_need(file: &File, len_bytes: u64) -> io::Result<()> {
    let len = std::num::NonZeroU64::new(len_bytes);
    Ok(rustix::fs::fadvise(file, 0, len, Advice::WillNeed)?)
}

/// Makes the content durable, and the metadata needed to read it (fdatasync).
pub fn sync_data(file: &File) -> io::Result<()> {
    Ok(retry(|| rustix::fs::fdatasync(file))?)
}

/// Makes content and metadata durable (fsync); the name belongs to the directory ([`super::Dir::sync_all`]).
pub fn sync_all(file: &File) -> io::Result<()> {
    Ok(retry(|| rustix::fs::fsync(file))?)
}

/// Takes the file's exclusive lock (`flock`) for as long as this open file and its clones are open; `false` while another
/// open file holds it. True where the file system has no locks.
pub fn try_lock(file: &File) -> io::Result<bool> {
    match retry(|| rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive)) {
        Ok(()) | Err(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Sets the modification time.
pub fn set_file_times(file: &File, mtime: Timestamp) -> io::Result<()> {
    Ok(rustix::fs::futimens(file, &times(mtime))?)
}

/// Sets the permission bits (`0o7777`).
pub fn set_file_mode(file: &File, mode: u32) -> io::Result<()> {
    Ok(rustix::fs::fchmod(file, permissions(mode))?)
}

/// Sets owner and group, where given.
pub fn set_file_owner(file: &File, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
    let (uid, gid) = owner(uid, gid)?;
    Ok(rustix::fs::fchown(file, uid, gid)?)
}

/// Alignment in bytes that `O_DIRECT` requires of memory, offset and length on this file; `None` where the file system
/// has no `O_DIRECT`.
///
/// Kernels before 6.1 do not report it: there this switches `O_DIRECT` on for a moment, and returns 4096 on success.
pub fn direct_alignment(file: &File) -> io::Result<Option<u32>> {
    if let Ok(stat) = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)
        && stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0
    {
        let alignment = stat.stx_dio_mem_align.max(stat.stx_dio_offset_align);
        // Both are zero where this file cannot do it, as when it is compressed or encrypted.
        return Ok((alignment > 0).then_some(alignment));
    }
    if is_direct(file)? {
        return Ok(Some(4096));
    }
    match set_direct(file, true) {
        Ok(()) => set_direct(file, false).map(|()| Some(4096)),
        Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(None),
        Err(error) => Err(error),
    }
}

/// Switches `O_DIRECT` on or off for this open file and its clones; `Unsupported` where the file system has none.
/// Switches `O_NONBLOCK` off.
pub fn set_direct(file: &File, direct: bool) -> io::Result<()> {
    let mut flags = rustix::fs::fcntl_getfl(file)?;
    let before = flags;
    flags.set(OFlags::DIRECT, direct);
    flags.remove(OFlags::NONBLOCK);
    if flags == before {
        return Ok(());
    }
    match rustix::fs::fcntl_setfl(file, flags) {
        Err(Errno::INVAL) if direct => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "the file system does not support O_DIRECT",
        )),
        other => Ok(other?),
    }
}

/// Succeeds if this process may write to `path` by its effective user and capabilities. A mount that is read-only is
/// `ReadOnlyFilesystem`.
pub fn check_writable(path: &Path) -> io::Result<()> {
    // Without `EACCESS` the kernel ignores the capabilities of users other than root.
    Ok(rustix::fs::accessat(rustix::fs::CWD, path, Access::WRITE_OK, AtFlags::EACCESS)?)
}

/// True if this open file has `O_DIRECT`.
pub fn is_direct(file: &File) -> io::Result<bool> {
    Ok(rustix::fs::fcntl_getfl(file)?.contains(OFlags::DIRECT))
}

/// Free bytes for unprivileged users on the file system of `at`, a file or [`super::Dir`]; ignores quotas.
pub fn available_bytes(at: impl AsFd) -> io::Result<u64> {
    let stat = rustix::fs::fstatvfs(at)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Space of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileSystemSpace {
    /// Bytes of the file system.
    pub total_bytes: u64,
    /// Free bytes for unprivileged users, without regard to quotas.
    pub available_bytes: u64,
}

/// Space of the file system of `at`, a file or [`super::Dir`].
pub fn space(at: impl AsFd) -> io::Result<FileSystemSpace> {
    let stat = rustix::fs::fstatvfs(at)?;
    Ok(FileSystemSpace {
        total_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
        available_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
    })
}

/// File system id (`f_fsid`) of `at`: stable across mounts where the file system stores one (ext4, btrfs), else that of its
/// device; 0 where it has none.
pub fn file_system_id(at: impl AsFd) -> io::Result<u64> {
    Ok(rustix::fs::fstatvfs(at)?.f_fsid)
}

/// Name of the file system type of `at`, a file or [`super::Dir`]; its magic number in hexadecimal (`0x1234abcd`) where
/// unknown.
pub fn file_system_name(at: impl AsFd) -> io::Result<String> {
    let stat = rustix::fs::fstatfs(at)?;
    // The kernel's type is a signed word on some architectures; the magic number is its low 32 bits.
    let magic = (i128::from(stat.f_type) & 0xffff_ffff) as u32;
    Ok(match FILE_SYSTEMS.iter().find(|(known, _)| *known == magic) {
        Some((_, name)) => (*name).to_owned(),
        None => format!("{magic:#010x}"),
    })
}

/// From statfs(2), `linux/magic.h`, and for those outside the kernel their own sources.
const FILE_SYSTEMS: &[(u32, &str)] = &[
    (0x0000_ef53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683e, "btrfs"),
    (0x0102_1994, "tmpfs"),
    (0x8584_58f6, "ramfs"),
    (0x0000_6969, "nfs"),
    (0x0bd0_0bd0, "lustre"),
    (0x4750_4653, "gpfs"),
    (0x1983_0326, "beegfs"),
    (0x00c3_6400, "ceph"),
    (0x2fc1_2fc1, "zfs"),
    (0xca45_1a4e, "bcachefs"),
    (0xf2f5_2010, "f2fs"),
    (0x794c_7630, "overlayfs"),
    (0x6573_5546, "fuse"),
    (0xff53_4d42, "cifs"),
    (0xfe53_4d42, "smb2"),
    (0x0102_1997, "9p"),
    (0x0116_1970, "gfs2"),
    (0x7461_636f, "ocfs2"),
    (0x7371_7368, "squashfs"),
    (0x0000_4d44, "vfat"),
    (0x2011_bab0, "exfat"),
    (0x0000_9fa0, "proc"),
    (0x6265_6572, "sysfs"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::Dir;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn write_check_agrees_with_open() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let check = || check_writable(&path).map_err(|error| error.kind());
        assert_eq!(check(), Err(io::ErrorKind::NotFound));
        File::create(&path).unwrap();
        assert_eq!(check(), Ok(()));
        // Root, or CAP_DAC_OVERRIDE, writes to it all the same.
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o400)).unwrap();
        let opened = File::options().write(true).open(&path);
        assert_eq!(check(), opened.map(drop).map_err(|error| error.kind()));
    }

    #[test]
    fn preallocation_sets_length_and_takes_space() {
        let file = tempfile::tempfile().unwrap();
        assert!(preallocate(&file, 0).unwrap());
        if !preallocate(&file, 1 << 20).unwrap() {
            penstock_testkit::skip(
                penstock_testkit::Requirement::Kernel,
                "this file system has no fallocate",
            );
            return;
        }
        let stat = stat_file(&file).unwrap();
        assert_eq!(stat.size, 1 << 20);
        assert!(stat.allocated_bytes >= 1 << 20);
        assert!(preallocate(&file, 1 << 10).unwrap());
        assert_eq!(stat_file(&file).unwrap().size, 1 << 20);
    }

    #[test]
    fn failed_preallocation_allocates_nothing() {
        let file = tempfile::tempfile().unwrap();
        let error = preallocate(&file, i64::MAX as u64).unwrap_err();
        assert!(matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EFBIG)));
        let stat = stat_file(&file).unwrap();
        assert_eq!((stat.size, stat.allocated_bytes), (0, 0));
    }

    #[test]
    fn reads_stop_at_end_of_file() {
        let file = tempfile::tempfile().unwrap();
        write_all_at(&file, b"hello", 3).unwrap();
        let mut buffer = [9; 16];
        assert_eq!(read_at_most(&file, &mut buffer, 0).unwrap(), 8);
        assert_eq!(&buffer[..8], b"\0\0\0hello");
        assert_eq!(read_at_most(&file, &mut buffer, 8).unwrap(), 0);
        let error = read_exact_at(&file, &mut buffer, 0).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn cache_advice_is_taken() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[5; 100_000]).unwrap();
        advise_sequential(&file).unwrap();
        start_writeback(&file, 0, 50_000).unwrap();
        start_writeback(&file, 50_000, 0).unwrap();
        start_writeback(&file, 0, u64::MAX).unwrap();
        sync_data(&file).unwrap();
        sync_all(&file).unwrap();
        drop_cache(&file, 0, 0).unwrap();
        let mut buffer = vec![0; 100_000];
        read_exact_at(&file, &mut buffer, 0).unwrap();
        assert!(buffer.iter().all(|&byte| byte == 5));
    }

    #[test]
    fn times_before_1970_and_after_2038() {
        let file = tempfile::tempfile().unwrap();
        for (seconds, nanos) in [(0, 0), (-1, 999_999_999), (4_000_000_000, 123_456_789)] {
            let mtime = Timestamp { seconds, nanos };
            set_file_times(&file, mtime).unwrap();
            assert_eq!(stat_file(&file).unwrap().mtime, mtime);
        }
    }

    #[test]
    fn one_open_file_holds_the_lock() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let open = || File::options().read(true).open(path.path()).unwrap();
        let (first, second) = (open(), open());
        assert!(try_lock(&first).unwrap());
        assert!(try_lock(&first).unwrap());
        assert!(!try_lock(&second).unwrap());
        drop(first);
        assert!(try_lock(&second).unwrap());
    }

    #[test]
    fn mode_and_owner() {
        let file = tempfile::tempfile().unwrap();
        set_file_mode(&file, 0o640).unwrap();
        let stat = stat_file(&file).unwrap();
        assert_eq!(stat.mode, 0o640);
        set_file_owner(&file, Some(stat.uid), None).unwrap();
        set_file_owner(&file, None, Some(stat.gid)).unwrap();
        assert!(set_file_owner(&file, Some(u32::MAX), None).is_err());
    }

    #[test]
    fn direct_is_switched_where_supported() {
        let file = tempfile::tempfile().unwrap();
        let Some(alignment) = direct_alignment(&file).unwrap() else {
            penstock_testkit::skip(
                penstock_testkit::Requirement::Kernel,
                "this file system has no O_DIRECT",
            );
            assert_eq!(set_direct(&file, true).unwrap_err().kind(), io::ErrorKind::Unsupported);
            return;
        };
        assert!(alignment.is_power_of_two() && alignment <= 1 << 20);
        assert!(!is_direct(&file).unwrap());
        set_direct(&file, true).unwrap();
        assert!(is_direct(&file).unwrap());
        assert!(direct_alignment(&file).unwrap().is_some());
        set_direct(&file, false).unwrap();
        assert!(!is_direct(&file).unwrap());
    }

    #[test]
    fn proc_has_no_direct_io() {
        let file = File::open("/proc/self/status").unwrap();
        assert_eq!(direct_alignment(&file).unwrap(), None);
        assert_eq!(file_system_name(&file).unwrap(), "proc");
    }

    #[test]
    fn file_systems_have_names_and_space() {
        let directory = tempfile::tempdir().unwrap();
        let directory = Dir::open(directory.path()).unwrap();
        assert!(available_bytes(&directory).unwrap() > 0);
        assert!(!file_system_name(&directory).unwrap().is_empty());
    }
}
