//! Raw samples in Parquet files; off unless `[collector.parquet]` names a directory.
//!
//! Receiving threads collect records and pass them on without blocking: records that the writer
//! cannot accept are dropped and counted. A file is written under a temporary name and renamed when
//! complete, so that readers see only complete files; incomplete ones that no collector writes are
//! removed at the next start. The oldest files are removed when all exceed the limit. A failing disk costs only
//! records.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use penstock_sys::lock::ExclusiveFileLock;

use crate::config::Parquet as Config;
use crate::error::DirectoryError;
use crate::part_file;
use crate::receive::LOG_INTERVAL;
use crate::shared::unix_now;

mod file;
mod record;
#[cfg(test)]
mod tests;

use file::{ExporterNames, ParquetFile};
pub(crate) use record::SampleRecord;

/// Records per batch, and most batches in the channel.
const BATCH_RECORDS: usize = 8_192;
const BATCHES_MAX: usize = 32;

/// Records in a row group.
const ROW_GROUP_RECORDS: usize = 131_072;

/// Longest time for which an incomplete batch waits for further records.
const BATCH_LINGER: Duration = Duration::from_secs(1);

const PREFIX: &str = "penstock-";
const SUFFIX: &str = ".parquet";
const PART: &str = ".parquet.part";

/// Counters and errors of the archive.
#[derive(Debug, Default)]
pub(crate) struct ArchiveHealth {
    /// Records in complete files.
    pub(crate) records: AtomicU64,
    /// Records lost by a full channel or a failed write.
    pub(crate) dropped: AtomicU64,
    /// Complete files written since the start.
    pub(crate) files: AtomicU64,
    /// Bytes of all files in the directory.
    pub(crate) bytes: AtomicU64,
    trouble: Mutex<Option<String>>,
}

impl ArchiveHealth {
    pub(crate) fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Configuration and state of the archive.
#[derive(Debug)]
pub(crate) struct Archive {
    pub(crate) config: Config,
    pub(crate) health: Arc<ArchiveHealth>,
}

/// Collects the records of a receiving thread.
#[derive(Debug)]
pub(crate) struct Recorder {
    batch: Vec<SampleRecord>,
    since: Instant,
    give: SyncSender<Vec<SampleRecord>>,
    health: Arc<ArchiveHealth>,
}

impl Recorder {
    /// Returns a recorder for another thread.
    pub(crate) fn another(&self) -> Self {
        let (give, health) = (self.give.clone(), Arc::clone(&self.health));
        Self { batch: Vec::new(), since: Instant::now(), give, health }
    }

    /// Appends a record without blocking.
    #[inline]
    pub(crate) fn put(&mut self, record: SampleRecord) {
        if self.batch.is_empty() {
            self.since = Instant::now();
            self.batch.reserve_exact(BATCH_RECORDS);
        }
        self.batch.push(record);
        if self.batch.len() >= BATCH_RECORDS {
            self.send_batch();
        }
    }

    /// Sends a batch that has waited long enough.
    pub(crate) fn flush_stale(&mut self) {
        if !self.batch.is_empty() && self.since.elapsed() >= BATCH_LINGER {
            self.send_batch();
        }
    }

    fn send_batch(&mut self) {
        let batch = std::mem::take(&mut self.batch);
        if let Err(TrySendError::Full(batch) | TrySendError::Disconnected(batch)) =
            self.give.try_send(batch)
        {
            self.health.dropped.fetch_add(batch.len() as u64, Ordering::Relaxed);
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if !self.batch.is_empty() {
            self.send_batch();
        }
    }
}

/// Prepares the directory and removes incomplete files.
///
/// # Errors
/// When the directory cannot be used.
pub(crate) fn open(config: Config) -> Result<(Archive, Recorder, ArchiveWriter), DirectoryError> {
    let prepare = || -> io::Result<u64> {
        fs::create_dir_all(&config.directory)?;
        for name in names_in(&config.directory, PART)? {
            if part_file::remove_abandoned(&config.directory.join(&name))? {
                let directory = config.directory.display();
                tracing::warn!("{name} in {directory} was cut off and is removed");
            }
        }
        enforce_limit(&config.directory, config.bytes_max)
    };
    let bytes = prepare().map_err(|source| DirectoryError {
        directory: config.directory.clone(),
        key: "[collector.parquet]",
        source,
    })?;
    let health =
        Arc::new(ArchiveHealth { bytes: AtomicU64::new(bytes), ..ArchiveHealth::default() });
    let (give, take) = sync_channel(BATCHES_MAX);
    let (batch, since) = (Vec::new(), Instant::now());
    let recorder = Recorder { batch, since, give, health: Arc::clone(&health) };
    let writer = ArchiveWriter {
        config: config.clone(),
        health: Arc::clone(&health),
        take,
        open: None,
        group: Vec::new(),
        last_log: None,
    };
    Ok((Archive { config, health }, recorder, writer))
}

/// Files of the archive with this suffix, oldest first: their names contain the start time.
fn names_in(dir: &Path, suffix: &str) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.starts_with(PREFIX) && name.ends_with(suffix) {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Removes the oldest files until the rest has at most `bytes_max`; returns its size.
fn enforce_limit(dir: &Path, bytes_max: u64) -> io::Result<u64> {
    let mut files = Vec::new();
    for name in names_in(dir, SUFFIX)? {
        let bytes = fs::metadata(dir.join(&name))?.len();
        files.push((name, bytes));
    }
    let mut sum: u64 = files.iter().map(|(_, bytes)| bytes).sum();
    // The newest file stays at any size.
    files.pop();
    for (name, bytes) in files {
        if sum <= bytes_max {
            break;
        }
        fs::remove_file(dir.join(name))?;
        sum -= bytes;
    }
    Ok(sum)
}

/// An incomplete file.
struct OpenParquetFile {
    file: ParquetFile,
    part: PathBuf,
    name: String,
    since: Instant,
    records: u64,
    /// Until the file is complete.
    _lock: ExclusiveFileLock,
}

/// The thread that writes files.
pub(crate) struct ArchiveWriter {
    config: Config,
    health: Arc<ArchiveHealth>,
    take: Receiver<Vec<SampleRecord>>,
    open: Option<OpenParquetFile>,
    group: Vec<SampleRecord>,
    last_log: Option<Instant>,
}

impl ArchiveWriter {
    /// Writes until all recorders are dropped.
    pub(crate) fn run(mut self, names: ExporterNames<'_>) {
        loop {
            match self.take.recv_timeout(BATCH_LINGER) {
                Ok(batch) => {
                    self.group.extend(batch);
                    if self.group.len() >= ROW_GROUP_RECORDS {
                        self.flush(names);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            let due =
                self.open.as_ref().is_some_and(|open| open.since.elapsed() >= self.config.rotate);
            if due {
                self.flush(names);
                self.close();
            } else if self.open.is_none() && !self.group.is_empty() {
                // The age of a file counts from its first record.
                self.begin();
            }
        }
        self.flush(names);
        self.close();
    }

    fn begin(&mut self) {
        // In microseconds, so that a restart within a second does not reuse a name.
        let start_us = (unix_now() * 1e6) as u64;
        let name = format!("{PREFIX}{start_us}{SUFFIX}");
        let part = self.config.directory.join(format!("{PREFIX}{start_us}{PART}"));
        let created = part_file::create(&part).and_then(|lock| {
            let begun = lock.file().try_clone().and_then(ParquetFile::begin);
            let begun = begun.inspect_err(|_| drop(fs::remove_file(&part)));
            Ok((begun?, lock))
        });
        match created {
            Ok((file, lock)) => {
                let since = Instant::now();
                let records = 0;
                self.open = Some(OpenParquetFile { file, part, name, since, records, _lock: lock });
            }
            Err(error) => self.failed(&error, 0),
        }
    }

    /// Writes the collected records as a row group.
    fn flush(&mut self, names: ExporterNames<'_>) {
        let group = std::mem::take(&mut self.group);
        if group.is_empty() {
            return;
        }
        if self.open.is_none() {
            self.begin();
        }
        let count = group.len() as u64;
        let Some(open) = &mut self.open else {
            self.health.dropped.fetch_add(count, Ordering::Relaxed);
            return;
        };
        match open.file.append(&group, names) {
            Ok(()) => {
                open.records += count;
                if open.file.bytes() >= self.config.file_bytes {
                    self.close();
                }
            }
            Err(error) => {
                // A file with half of a row group is unreadable.
                let lost = open.records + count;
                let _ = fs::remove_file(&open.part);
                self.open = None;
                self.failed(&error, lost);
            }
        }
    }

    fn close(&mut self) {
        let Some(open) = self.open.take() else { return };
        let (part, records) = (open.part, open.records);
        if records == 0 {
            let _ = fs::remove_file(part);
            return;
        }
        let finished = open.file.finish();
        let done =
            finished.and_then(|()| fs::rename(&part, self.config.directory.join(&open.name)));
        match done {
            Ok(()) => {
                self.health.records.fetch_add(records, Ordering::Relaxed);
                self.health.files.fetch_add(1, Ordering::Relaxed);
                self.set_trouble(None);
                match enforce_limit(&self.config.directory, self.config.bytes_max) {
                    Ok(bytes) => self.health.bytes.store(bytes, Ordering::Relaxed),
                    Err(error) => self.failed(&error, 0),
                }
            }
            Err(error) => {
                let _ = fs::remove_file(&part);
                self.failed(&error, records);
            }
        }
    }

    fn failed(&mut self, error: &io::Error, lost: u64) {
        self.health.dropped.fetch_add(lost, Ordering::Relaxed);
        let dir = self.config.directory.display();
        let line = format!("cannot write samples to {dir}: {error}: they are dropped and counted");
        if self.last_log.is_none_or(|last_log| last_log.elapsed() >= LOG_INTERVAL) {
            tracing::error!("{line}");
            self.last_log = Some(Instant::now());
        }
        self.set_trouble(Some(line));
    }

    fn set_trouble(&self, trouble: Option<String>) {
        *self.health.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }
}
