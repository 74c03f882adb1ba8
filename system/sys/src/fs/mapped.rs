//! Files of a tmpfs, written by several threads at once.
//!
//! A `write` holds the file's lock while it copies, so that writers of a file in memory take turns, and those that wait spin.
//! A writer that is alone writes. On a few processors all take turns to write. On more, several take turns only to allocate
//! pages, and fill a mapping of them at once, which costs more processor time: a fault for each page, which the kernel clears
//! first. Pages are allocated before, since insertions into one file by faults of many threads spin, too.
//!
//! The kernel copies (`process_vm_writev` to the own process): where memory is exhausted, or another program has shortened
//! the file, it returns an error. A copy by this program would end it by SIGBUS.
//!
//! Not for: file systems on devices, whose direct I/O has no copy.

use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::file::{allocate, file_system_name, write_all_at};

/// Processors from which several threads fill pages at once: on fewer, the faults cost more than the turns.
const PROCESSORS_MIN: usize = 4;

/// Mapping of the first bytes of a tmpfs file.
#[derive(Debug)]
pub struct MappedFile {
    file: Arc<File>,
    /// Threads that write at present.
    writers: AtomicUsize,
    /// Held while pages are allocated, and by those that take turns to write.
    turn: Mutex<()>,
    /// True if there are processors to fill pages at once.
    is_parallel: bool,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the value owns its mapping, which is valid in all threads. Only the kernel accesses the memory; what threads write
// at once to the same pages is data of the file, as with `pwrite`.
unsafe impl Send for MappedFile {}
// SAFETY: as above; `&self` gives no reference to the memory.
unsafe impl Sync for MappedFile {}

impl MappedFile {
    /// Maps `len_bytes` of `file`, which may be shorter. `None` where the file is in no tmpfs, may not be read, or is too long
    /// for the address space: callers then write to the file.
    pub fn new(file: &Arc<File>, len_bytes: u64) -> Option<Self> {
        if len_bytes == 0 || file_system_name(file).ok()? != "tmpfs" {
            return None;
        }
        // A shared mapping needs a file that is open for reading, too.
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&**file));
        let readable = File::options().read(true).write(true).open(path).ok()?;
        let len = usize::try_from(len_bytes).ok()?;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that anything refers to.
        let start =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, protection, flags, &readable, 0) };
        let start = NonNull::new(start.ok()?.cast())?;
        Some(Self {
            file: Arc::clone(file),
            writers: AtomicUsize::new(0),
            turn: Mutex::new(()),
            is_parallel: std::thread::available_parallelism()
                .is_ok_and(|processors| processors.get() >= PROCESSORS_MIN),
            start,
            len,
        })
    }

    /// Writes all of `data` at `offset`. What the mapping cannot take is written to the file, whose error is returned.
    pub fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let is_alone = self.writers.fetch_add(1, Ordering::Relaxed) == 0;
        let result = match is_alone || !self.is_parallel {
            true => {
                let _turn = self.take_turn();
                write_all_at(&self.file, data, offset)
            }
            false => self.write_beside_others(data, offset),
        };
        self.writers.fetch_sub(1, Ordering::Relaxed);
        result
    }

    fn take_turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_beside_others(&self, data: &[u8], offset: u64) -> io::Result<()> {
        {
            let _turn = self.take_turn();
            allocate(&self.file, offset, data.len() as u64)?;
        }
        let filled = self.fill(data, offset);
        self.unmap_pages(offset, filled);
        write_all_at(&self.file, &data[filled..], offset + filled as u64)
    }

    /// Takes filled pages out of the memory of this process; they stay those of the file.
    fn unmap_pages(&self, offset: u64, len: usize) {
        let Some(offset) = usize::try_from(offset).ok().filter(|_| len > 0) else { return };
        let page = rustix::param::page_size();
        let start = offset / page * page;
        let end = (offset + len).next_multiple_of(page).min(self.len);
        // SAFETY: the range lies within the mapping, and no reference to it exists. Pages of a shared mapping keep their
        // content.
        let unmapped = unsafe {
            let first = self.start.as_ptr().add(start).cast();
            rustix::mm::madvise(first, end - start, Advice::LinuxDontNeed)
        };
        debug_assert!(unmapped.is_ok(), "unmapping pages: {unmapped:?}");
    }

    /// Number of bytes that the mapping took.
    fn fill(&self, data: &[u8], offset: u64) -> usize {
        let Ok(offset) = usize::try_from(offset) else { return 0 };
        let data = &data[..data.len().min(self.len.saturating_sub(offset))];
        let mut filled = 0;
        while filled < data.len() {
            let rest = &data[filled..];
            let from =
                libc::iovec { iov_base: rest.as_ptr().cast_mut().cast(), iov_len: rest.len() };
            let to = libc::iovec {
                iov_base: self.start.as_ptr().wrapping_add(offset + filled).cast(),
                iov_len: rest.len(),
            };
            let this = rustix::process::getpid().as_raw_nonzero().get();
            // SAFETY: the source is borrowed; the target lies within the mapping, and no reference to it exists.
            let count =
                unsafe { libc::process_vm_writev(this, &raw const from, 1, &raw const to, 1, 0) };
            match usize::try_from(count) {
                Ok(count) if count > 0 => filled += count,
                _ => break,
            }
        }
        filled
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // SAFETY: this value owns exactly this range, and nothing refers to it.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "unmapping a file: {unmapped:?}");
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    /// An empty file in memory that is open for writing alone, as partial files are.
    fn file_in_memory() -> (tempfile::TempDir, Arc<File>) {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let file = File::options().write(true).create_new(true).open(folder.path().join("f"));
        (folder, Arc::new(file.unwrap()))
    }

    /// A mapping whose writers find another one.
    fn mapped_beside_others(file: &Arc<File>, len: u64) -> MappedFile {
        let mut mapped = MappedFile::new(file, len).unwrap();
        mapped.writers.store(1, Ordering::Relaxed);
        mapped.is_parallel = true;
        mapped
    }

    fn content(folder: &tempfile::TempDir) -> Vec<u8> {
        std::fs::read(folder.path().join("f")).unwrap()
    }

    #[test]
    fn threads_fill_one_file() {
        for is_parallel in [true, false] {
            threads_fill(is_parallel);
        }
    }

    fn threads_fill(is_parallel: bool) {
        const PART_BYTES: usize = (1 << 20) + 4095;
        let (folder, file) = file_in_memory();
        file.set_len(4 * PART_BYTES as u64).unwrap();
        let mut mapped = mapped_beside_others(&file, 4 * PART_BYTES as u64);
        mapped.is_parallel = is_parallel;
        std::thread::scope(|scope| {
            for part in 0..4 {
                let mapped = &mapped;
                scope.spawn(move || {
                    let data = vec![part as u8 + 1; PART_BYTES];
                    mapped.write_all_at(&data, (part * PART_BYTES) as u64).unwrap();
                });
            }
        });
        let content = content(&folder);
        assert_eq!(content.len(), 4 * PART_BYTES);
        for (at, byte) in content.iter().enumerate() {
            assert_eq!(usize::from(*byte), at / PART_BYTES + 1, "at {at}");
        }
    }

    #[test]
    fn filled_pages_leave_the_process() {
        const FILE_BYTES: usize = 64 << 20;
        let (folder, file) = file_in_memory();
        file.set_len(FILE_BYTES as u64).unwrap();
        let mapped = mapped_beside_others(&file, FILE_BYTES as u64);
        let data = vec![9; 4 << 20];
        for offset in (0..FILE_BYTES).step_by(data.len()) {
            mapped.write_all_at(&data, offset as u64).unwrap();
        }
        // Another test may have pages of its own meanwhile: 24 MiB in all.
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let shared = status.lines().find_map(|line| line.strip_prefix("RssShmem:")).unwrap();
        let kib: usize = shared.split_whitespace().next().unwrap().parse().unwrap();
        assert!(kib < 32 << 10, "{kib} KiB are mapped");
        assert!(content(&folder).iter().all(|byte| *byte == 9));
    }

    #[test]
    fn bytes_behind_the_end_are_written() {
        for (len, mapped_len) in [(0, 10_000), (1, 1), (4096, 10_000), (4097, 4096), (5000, 20_000)]
        {
            let (folder, file) = file_in_memory();
            file.set_len(len).unwrap();
            let mapped = mapped_beside_others(&file, mapped_len);
            mapped.write_all_at(&[7; 9000], 3).unwrap();
            let content = content(&folder);
            assert_eq!(content.len(), 9003, "{len} {mapped_len}");
            assert!(content[..3] == [0; 3] && content[3..].iter().all(|byte| *byte == 7));
        }
    }

    #[test]
    fn shortened_file_is_no_crash() {
        let (folder, file) = file_in_memory();
        file.set_len(1 << 20).unwrap();
        let mapped = mapped_beside_others(&file, 1 << 20);
        mapped.write_all_at(&[1; 8192], 0).unwrap();
        file.set_len(0).unwrap();
        mapped.write_all_at(&[2; 8192], 8192).unwrap();
        assert_eq!(content(&folder), [[0; 8192], [2; 8192]].concat());
    }

    #[test]
    fn full_file_limit_is_an_error() {
        let (_folder, file) = file_in_memory();
        let mapped = mapped_beside_others(&file, 4096);
        let error = mapped.write_all_at(&[1; 10], i64::MAX as u64 - 4).unwrap_err();
        assert!(matches!(error.raw_os_error(), Some(libc::EFBIG | libc::EINVAL)), "{error}");
    }

    #[test]
    fn files_elsewhere_are_not_mapped() {
        let null = File::options().write(true).open("/proc/self/oom_score_adj").unwrap();
        assert!(MappedFile::new(&Arc::new(null), 4096).is_none());
        let (_folder, file) = file_in_memory();
        assert!(MappedFile::new(&file, 0).is_none());
        let mut byte = [0];
        assert!(file.read_at(&mut byte, 0).is_err(), "the file is not open for reading");
    }
}
