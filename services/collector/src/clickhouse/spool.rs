//! Batches that wait for their insert: files in a directory, oldest first, limited in bytes.
//!
//! A batch is written under a temporary name, synced and renamed, so that each file is a complete
//! batch. A batch that cannot be written (a full disk) waits in memory, up to [`MEMORY_MAX`] of
//! them. Evicted batches are returned to be counted.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::part_file;

/// Most batches that wait in memory.
pub(super) const MEMORY_MAX: usize = 60;

const SUFFIX: &str = "jsonl";
const PART: &str = "part";

/// A batch that waits for the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SpooledBatch {
    pub(super) number: i64,
    /// Start of its first and last minute.
    pub(super) from_s: i64,
    pub(super) to_s: i64,
    pub(super) rows: u64,
    pub(super) bytes: u64,
    /// Set after an insert whose answer is unknown.
    pub(super) tried: bool,
    sequence: u64,
    /// Lines of a batch that is not in a file.
    body: Option<Vec<u8>>,
}

impl SpooledBatch {
    fn name(&self) -> String {
        format!(
            "{:016}-{:x}-{}-{}-{}.{SUFFIX}",
            self.sequence, self.number, self.from_s, self.to_s, self.rows
        )
    }

    fn of_name(name: &str, bytes: u64) -> Option<Self> {
        let mut words = name.strip_suffix(SUFFIX)?.strip_suffix('.')?.split('-');
        let mut word = || words.next();
        let sequence = word()?.parse().ok()?;
        let number = i64::from_str_radix(word()?, 16).ok()?;
        let (from_s, to_s) = (word()?.parse().ok()?, word()?.parse().ok()?);
        let rows = word()?.parse().ok()?;
        Some(Self { number, from_s, to_s, rows, bytes, tried: true, sequence, body: None })
    }
}

/// Queue of waiting batches.
#[derive(Debug)]
pub(crate) struct Spool {
    dir: PathBuf,
    limit_bytes: u64,
    waiting: VecDeque<SpooledBatch>,
    next: u64,
}

/// Batches that were evicted.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Dropped {
    pub(super) batches: u64,
    pub(super) rows: u64,
}

impl Spool {
    /// Opens the directory, created if missing, with its batches.
    pub(super) fn open(dir: &Path, limit_bytes: u64) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let mut waiting = Vec::new();
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.ends_with(PART) {
                part_file::remove_abandoned(&entry.path())?;
            } else {
                waiting.extend(SpooledBatch::of_name(&name, entry.metadata()?.len()));
            }
        }
        waiting.sort_by_key(|batch| batch.sequence);
        let next = waiting.last().map_or(0, |last| last.sequence + 1);
        Ok(Self { dir: dir.to_owned(), limit_bytes, waiting: waiting.into(), next })
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.waiting.iter().map(|batch| batch.bytes).sum()
    }

    /// Appends a batch, evicting the oldest beyond the limit. On an I/O error the batch waits in
    /// memory.
    pub(super) fn put(
        &mut self,
        number: i64,
        (from_s, to_s): (i64, i64),
        rows: u64,
        body: Vec<u8>,
    ) -> (Dropped, io::Result<()>) {
        let sequence = self.next;
        self.next += 1;
        let bytes = body.len() as u64;
        let mut batch =
            SpooledBatch { number, from_s, to_s, rows, bytes, tried: false, sequence, body: None };
        let mut dropped = Dropped::default();
        while self.bytes() + bytes > self.limit_bytes && !self.waiting.is_empty() {
            self.leave(0, &mut dropped);
        }
        let written = self.write(&batch, &body);
        if written.is_err() {
            batch.body = Some(body);
            let in_memory = |batch: &SpooledBatch| batch.body.is_some();
            if self.waiting.iter().filter(|batch| in_memory(batch)).count() >= MEMORY_MAX
                && let Some(oldest) = self.waiting.iter().position(in_memory)
            {
                self.leave(oldest, &mut dropped);
            }
        }
        self.waiting.push_back(batch);
        (dropped, written)
    }

    fn leave(&mut self, at: usize, dropped: &mut Dropped) {
        let Some(batch) = self.waiting.remove(at) else { return };
        dropped.batches += 1;
        dropped.rows += batch.rows;
        let _ = fs::remove_file(self.dir.join(batch.name()));
    }

    fn write(&self, batch: &SpooledBatch, body: &[u8]) -> io::Result<()> {
        let part = self.dir.join(format!("{}.{PART}", batch.sequence));
        let lock = part_file::create(&part)?;
        let write = || {
            let mut file = lock.file();
            file.write_all(body)?;
            file.sync_all()?;
            fs::rename(&part, self.dir.join(batch.name()))
        };
        write().inspect_err(|_| {
            let _ = fs::remove_file(&part);
        })
    }

    /// Oldest batch of the queue.
    pub(super) fn front(&mut self) -> Option<&mut SpooledBatch> {
        self.waiting.front_mut()
    }

    /// Lines of the oldest batch.
    pub(super) fn lines(&self) -> io::Result<Vec<u8>> {
        let Some(batch) = self.waiting.front() else { return Ok(Vec::new()) };
        match &batch.body {
            Some(body) => Ok(body.clone()),
            None => fs::read(self.dir.join(batch.name())),
        }
    }

    /// Removes the oldest batch.
    pub(super) fn pop(&mut self) {
        if let Some(batch) = self.waiting.pop_front()
            && batch.body.is_none()
        {
            let _ = fs::remove_file(self.dir.join(batch.name()));
        }
    }

    /// Counts the batches in memory, which are lost when the process ends.
    pub(super) fn discard(self) -> Dropped {
        let lost = self.waiting.iter().filter(|batch| batch.body.is_some());
        lost.fold(Dropped::default(), |sum, batch| Dropped {
            batches: sum.batches + 1,
            rows: sum.rows + batch.rows,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spool_survives_restart_and_evicts_oldest() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("spool");
        let mut spool = Spool::open(&path, 100).unwrap();
        for number in 0..5 {
            let (dropped, written) =
                spool.put(number, (60 * number, 60 * number), 7, vec![b'a'; 30]);
            written.unwrap();
            let gone = u64::from(number >= 3);
            assert_eq!(dropped, Dropped { batches: gone, rows: 7 * gone });
        }
        std::fs::write(path.join("9.part"), "half").unwrap();
        std::fs::write(path.join("README"), "somebody else's").unwrap();
        let mut again = Spool::open(&path, 100).unwrap();
        assert_eq!((again.len(), again.bytes()), (3, 90));
        let first = again.front().unwrap().clone();
        assert_eq!((first.number, first.from_s, first.rows, first.tried), (2, 120, 7, true));
        assert_eq!(again.lines().unwrap(), vec![b'a'; 30]);
        again.pop();
        // New batches follow the earlier ones.
        again.put(9, (0, 0), 1, vec![]).1.unwrap();
        let mut third = Spool::open(&path, 100).unwrap();
        let mut numbers = Vec::new();
        while let Some(batch) = third.front() {
            numbers.push(batch.number);
            third.pop();
        }
        assert_eq!(numbers, [3, 4, 9]);
        let left: Vec<_> =
            std::fs::read_dir(&path).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["README"]);
    }

    #[test]
    fn unwritable_spool_waits_in_memory() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("spool");
        let mut spool = Spool::open(&path, 1 << 20).unwrap();
        std::fs::remove_dir(&path).unwrap();
        let mut sum = 0;
        for number in 0..MEMORY_MAX as i64 + 5 {
            let (dropped, written) = spool.put(number, (0, 0), 3, vec![b'x']);
            assert!(written.is_err());
            sum += dropped.rows;
        }
        assert_eq!((spool.len(), sum), (MEMORY_MAX, 15));
        assert_eq!((spool.front().unwrap().number, spool.lines().unwrap()), (5, vec![b'x']));
        spool.pop();
        assert_eq!(spool.discard(), Dropped { batches: 59, rows: 177 });
    }

    /// A small tmpfs that is unmounted with the test.
    struct Disk(tempfile::TempDir);

    impl Disk {
        /// Returns `None` where mounting is not allowed.
        fn of_kib(kib: u32) -> Option<Self> {
            let dir = tempfile::tempdir().unwrap();
            let size = format!("size={kib}k");
            let mut mount = std::process::Command::new("mount");
            mount.args(["-t", "tmpfs", "-o", &size, "none"]).arg(dir.path());
            let mounted = mount.output().is_ok_and(|output| output.status.success());
            mounted.then_some(Self(dir))
        }
    }

    impl Drop for Disk {
        fn drop(&mut self) {
            let _ = std::process::Command::new("umount").arg("-l").arg(self.0.path()).status();
        }
    }

    #[test]
    fn full_disk_keeps_batches_in_order() {
        let Some(disk) = Disk::of_kib(64) else {
            return penstock_testkit::skip(
                penstock_testkit::Requirement::Kernel,
                "nothing may be mounted here",
            );
        };
        let path = disk.0.path().join("spool");
        let mut spool = Spool::open(&path, 1 << 20).unwrap();
        let put = |spool: &mut Spool, number| spool.put(number, (0, 0), 1, vec![b'x'; 16 << 10]);
        let kept = (0..8).filter(|number| put(&mut spool, *number).1.is_ok()).count();
        assert!((1..=4).contains(&kept), "{kept}");
        let error = put(&mut spool, 8).1.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        // A failed write leaves no partial file.
        assert_eq!(fs::read_dir(&path).unwrap().count(), kept);
        for number in 0..9 {
            assert_eq!(spool.front().unwrap().number, number);
            assert_eq!(spool.lines().unwrap(), vec![b'x'; 16 << 10]);
            spool.pop();
        }
        // With free space, batches go to the disk again.
        put(&mut spool, 9).1.unwrap();
        assert_eq!(Spool::open(&path, 1 << 20).unwrap().len(), 1);
    }
}
