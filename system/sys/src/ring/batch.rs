//! Many small reads into one buffer, submitted to the device at once.
//!
//! For: thousands of small files with `O_DIRECT`, where sequential reads would leave the device idle.
//! Not for: writing, since extending a file blocks anyhow.
//!
//! Fails per read. Without io_uring, or after its failure, it reads sequentially.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::Duration;

use io_uring::{IoUring, opcode, types};

/// Reads the start of one file into a range of the buffer.
#[derive(Debug, Clone)]
pub struct BatchRead<'a> {
    /// Read from offset 0.
    pub file: &'a File,
    /// Destination in the buffer.
    pub range: Range<usize>,
}

/// Executes batches of [`BatchRead`]; keep it to one thread.
pub struct BatchReader {
    ring: Option<IoUring>,
    depth: usize,
    error: Option<io::Error>,
}

/// Result of each read: bytes or errno; `None` where it was not submitted.
type ReadResults = Vec<Option<Result<usize, i32>>>;

impl BatchReader {
    /// Prepares for `depth` reads at a time; 1 without io_uring.
    pub fn new(depth: u32) -> Self {
        let ring = IoUring::builder().setup_clamp().dontfork().build(depth.max(1)).ok();
        let ring = ring.filter(|_| super::Ring::probe().is_ok());
        let depth = ring.as_ref().map_or(1, |ring| ring.params().sq_entries() as usize);
        Self { ring, depth, error: None }
    }

    /// Returns the error that ended the use of io_uring, once.
    pub fn take_error(&mut self) -> Option<io::Error> {
        self.error.take()
    }

    /// Executes all reads. Returns their byte counts in order: the whole range, or less where the file is shorter.
    ///
    /// # Panics
    /// When a range lies beyond the memory.
    pub fn read(&mut self, memory: &mut [u8], parts: &[BatchRead<'_>]) -> Vec<io::Result<usize>> {
        assert!(
            parts.iter().all(|part| memory.get(part.range.clone()).is_some()),
            "beyond the memory"
        );
        let mut read = Vec::with_capacity(parts.len());
        for some in parts.chunks(self.depth) {
            let answers = self.submit(memory, some);
            for (part, answer) in some.iter().zip(answers) {
                let into = &mut memory[part.range.clone()];
                read.push(match answer {
                    // Reads that would block are done here with a blocking call.
                    Some(Err(libc::EAGAIN | libc::EINTR)) | None => finish(part.file, into, 0),
                    Some(Err(errno)) => Err(io::Error::from_raw_os_error(errno)),
                    Some(Ok(count)) => finish(part.file, into, count),
                });
            }
        }
        read
    }

    /// Submits one read for each part, at most `depth`; `None` for those not submitted.
    fn submit(&mut self, memory: &mut [u8], parts: &[BatchRead<'_>]) -> ReadResults {
        let mut answers = vec![None; parts.len()];
        let Some(ring) = &mut self.ring else { return answers };
        let base = memory.as_mut_ptr();
        let mut asked = 0;
        for (number, part) in parts.iter().enumerate() {
            let Ok(len) = u32::try_from(part.range.len()) else { continue };
            let start = base.wrapping_add(part.range.start);
            let read = opcode::Read::new(types::Fd(part.file.as_raw_fd()), start, len);
            let entry = read.offset(0).build().user_data(number as u64);
            // SAFETY: the descriptor is open as long as `parts` is borrowed and the range lies within `memory`, as `read`
            // has made sure. Both are borrowed until this function returns, which it does only after the kernel has
            // answered everything it was handed. Meanwhile nothing here touches the memory.
            match unsafe { ring.submission().push(&entry) } {
                Ok(()) => asked += 1,
                Err(_) => break,
            }
        }
        if let Err(error) = collect(ring, asked, &mut answers) {
            // Dropping the ring discards entries that were not submitted.
            self.ring = None;
            self.error = Some(error);
        }
        answers
    }
}

/// Submits the `asked` queued reads and collects their results. After a failed submission it still waits for the reads
/// submitted before, since the kernel may write into the borrowed memory.
fn collect(ring: &mut IoUring, mut asked: usize, answers: &mut ReadResults) -> io::Result<()> {
    let mut result = Ok(());
    while asked > 0 {
        if result.is_err() {
            // Completions are posted at any system call of this thread.
            thread::sleep(Duration::from_millis(1));
        } else if let Err(error) = ring.submit_and_wait(asked) {
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EAGAIN | libc::EBUSY) => thread::yield_now(),
                _ => {
                    asked -= ring.submission().len();
                    result = Err(error);
                }
            }
        }
        for entry in ring.completion() {
            asked -= 1;
            let count = usize::try_from(entry.result()).map_err(|_| -entry.result());
            if let Some(answer) = answers.get_mut(entry.user_data() as usize) {
                *answer = Some(count);
            }
        }
    }
    result
}

/// Reads from offset `done` until the end of the file or of `into`.
fn finish(file: &File, into: &mut [u8], mut done: usize) -> io::Result<usize> {
    while done < into.len() {
        match file.read_at(&mut into[done..], done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // With O_DIRECT an offset that is not aligned is behind the end of the file.
            Err(error) if done > 0 && error.raw_os_error() == Some(libc::EINVAL) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

impl fmt::Debug for BatchReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchReader").field("depth", &self.depth).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::{FromRawFd, OwnedFd};

    use super::*;

    /// Makes further submissions fail; earlier reads continue while the returned descriptor is open.
    fn break_ring(ring: &IoUring) -> OwnedFd {
        let fd = ring.as_raw_fd();
        let nothing = File::open("/dev/null").unwrap();
        // SAFETY: the descriptor is open, and `dup` returns a new one.
        let kept = unsafe { OwnedFd::from_raw_fd(libc::dup(fd)) };
        // SAFETY: both are open; the ring goes on to own the number.
        assert_eq!(unsafe { libc::dup2(nothing.as_raw_fd(), fd) }, fd);
        kept
    }

    #[test]
    fn broken_ring_falls_back_to_pread() {
        let mut batch = BatchReader::new(8);
        let Some(ring) = &mut batch.ring else {
            penstock_testkit::skip(penstock_testkit::Requirement::Kernel, "no io_uring here");
            return;
        };
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"0123456789").unwrap();
        let mut memory = [0_u8; 30];
        let base = memory.as_mut_ptr();
        let push = |ring: &mut IoUring, number: usize| {
            let start = base.wrapping_add(number * 10);
            let read = opcode::Read::new(types::Fd(file.as_raw_fd()), start, 10);
            let entry = read.offset(0).build().user_data(number as u64);
            // SAFETY: file and memory outlive the answer, which `collect` waits for; what is not handed over is not read.
            unsafe { ring.submission().push(&entry) }.unwrap();
        };
        push(ring, 0);
        push(ring, 1);
        ring.submit().unwrap();
        let _kept = break_ring(ring);
        push(ring, 2);
        let mut answers = vec![None; 3];
        collect(ring, 3, &mut answers).unwrap_err();
        assert_eq!(answers, [Some(Ok(10)), Some(Ok(10)), None]);

        let mut batch = BatchReader::new(8);
        let _kept = batch.ring.as_ref().map(break_ring);
        for _ in 0..2 {
            memory.fill(0);
            let part =
                |number: usize| BatchRead { file: &file, range: number * 10..number * 10 + 10 };
            let read = batch.read(&mut memory, &[part(0), part(1), part(2)]);
            assert!(read.iter().all(|read| *read.as_ref().unwrap() == 10));
            assert_eq!(&memory, b"012345678901234567890123456789");
        }
        assert!(batch.take_error().is_some() && batch.ring.is_none());
    }
}
