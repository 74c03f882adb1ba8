//! Raw samples in Parquet files, where they are asked for: off unless `[collector.parquet]` names a directory.
//!
//! Threads that take datagrams gather records and hand them on, never waiting: what the writer cannot take is dropped
//! and counted. A file is written under another name and renamed when it is whole, so that whoever reads the
//! directory sees whole files alone; one that was cut off is removed at the next start. The oldest files leave when
//! all take more than they may. A disk that takes nothing costs records and nothing else.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::config::Parquet as Config;
use crate::receive::TELL_EVERY;
use crate::shared::unix_now;

mod file;
mod record;
#[cfg(test)]
mod tests;

use file::{Names, ParquetFile};
pub(crate) use record::Record;

/// Records that are handed on together, and how many such lots may wait.
const LOT: usize = 8_192;
const LOTS_MAX: usize = 32;

/// Records of a row group.
const GROUP: usize = 131_072;

/// Records that are few wait so long for more.
const LINGER: Duration = Duration::from_secs(1);

const PREFIX: &str = "penstock-";
const SUFFIX: &str = ".parquet";
const PART: &str = ".parquet.part";

/// How it is doing.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// Records written into files.
    pub(crate) records: AtomicU64,
    /// Records that were dropped.
    pub(crate) dropped: AtomicU64,
    /// Whole files.
    pub(crate) files: AtomicU64,
    /// Bytes of all files that are there.
    pub(crate) bytes: AtomicU64,
    trouble: Mutex<Option<String>>,
}

impl Health {
    pub(crate) fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Where records go, as others see it.
#[derive(Debug)]
pub(crate) struct Archive {
    pub(crate) config: Config,
    pub(crate) health: Arc<Health>,
}

/// What a thread that takes datagrams gathers.
#[derive(Debug)]
pub(crate) struct Recorder {
    lot: Vec<Record>,
    since: Instant,
    give: SyncSender<Vec<Record>>,
    health: Arc<Health>,
}

impl Recorder {
    /// For another thread.
    pub(crate) fn another(&self) -> Self {
        let (give, health) = (self.give.clone(), Arc::clone(&self.health));
        Self { lot: Vec::new(), since: Instant::now(), give, health }
    }

    /// Keeps a record; nothing waits.
    #[inline]
    pub(crate) fn put(&mut self, record: Record) {
        if self.lot.is_empty() {
            self.since = Instant::now();
            self.lot.reserve_exact(LOT);
        }
        self.lot.push(record);
        if self.lot.len() >= LOT {
            self.hand_on();
        }
    }

    /// Hands on what has waited long enough.
    pub(crate) fn settle(&mut self) {
        if !self.lot.is_empty() && self.since.elapsed() >= LINGER {
            self.hand_on();
        }
    }

    fn hand_on(&mut self) {
        let lot = std::mem::take(&mut self.lot);
        if let Err(TrySendError::Full(lot) | TrySendError::Disconnected(lot)) =
            self.give.try_send(lot)
        {
            self.health.dropped.fetch_add(lot.len() as u64, Ordering::Relaxed);
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if !self.lot.is_empty() {
            self.hand_on();
        }
    }
}

/// Prepares the directory: what was cut off goes.
///
/// # Errors
/// With one line, when the directory cannot be had.
pub(crate) fn open(config: Config) -> Result<(Archive, Recorder, Writer), String> {
    let prepare = || -> io::Result<u64> {
        fs::create_dir_all(&config.directory)?;
        for name in names_in(&config.directory, PART)? {
            tracing::warn!("{name} in {} was cut off and is removed", config.directory.display());
            fs::remove_file(config.directory.join(name))?;
        }
        kept(&config.directory, config.bytes_max)
    };
    let bytes = prepare().map_err(|error| {
        let dir = config.directory.display();
        format!("{dir}: {error}: give another directory in [collector.parquet]")
    })?;
    let health = Arc::new(Health { bytes: AtomicU64::new(bytes), ..Health::default() });
    let (give, take) = sync_channel(LOTS_MAX);
    let (lot, since) = (Vec::new(), Instant::now());
    let recorder = Recorder { lot, since, give, health: Arc::clone(&health) };
    let writer = Writer {
        config: config.clone(),
        health: Arc::clone(&health),
        take,
        open: None,
        group: Vec::new(),
        told: None,
    };
    Ok((Archive { config, health }, recorder, writer))
}

/// Files of ours that end so, oldest first: their names have the time at which they were begun.
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

/// Removes the oldest files until the rest takes no more than `bytes_max`; what it takes.
fn kept(dir: &Path, bytes_max: u64) -> io::Result<u64> {
    let mut files = Vec::new();
    for name in names_in(dir, SUFFIX)? {
        let bytes = fs::metadata(dir.join(&name))?.len();
        files.push((name, bytes));
    }
    let mut sum: u64 = files.iter().map(|(_, bytes)| bytes).sum();
    // The newest stays, whatever it takes.
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

/// A file that is not whole yet.
struct Open {
    file: ParquetFile,
    part: PathBuf,
    name: String,
    since: Instant,
    records: u64,
}

/// The thread that writes.
pub(crate) struct Writer {
    config: Config,
    health: Arc<Health>,
    take: Receiver<Vec<Record>>,
    open: Option<Open>,
    group: Vec<Record>,
    told: Option<Instant>,
}

impl Writer {
    /// Writes until nobody gathers any more.
    pub(crate) fn run(mut self, names: Names<'_>) {
        loop {
            match self.take.recv_timeout(LINGER) {
                Ok(lot) => {
                    self.group.extend(lot);
                    if self.group.len() >= GROUP {
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
                // So that the time of a file counts from its first record.
                self.begin();
            }
        }
        self.flush(names);
        self.close();
    }

    fn begin(&mut self) {
        // Of microseconds, so that one that is started again at once takes no name twice.
        let start_us = (unix_now() * 1e6) as u64;
        let name = format!("{PREFIX}{start_us}{SUFFIX}");
        let part = self.config.directory.join(format!("{PREFIX}{start_us}{PART}"));
        match ParquetFile::create(&part) {
            Ok(file) => {
                let since = Instant::now();
                self.open = Some(Open { file, part, name, since, records: 0 });
            }
            Err(error) => {
                let _ = fs::remove_file(&part);
                self.failed(&error, 0);
            }
        }
    }

    /// Brings what was gathered into the file.
    fn flush(&mut self, names: Names<'_>) {
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
                // A file with half of a row group is no file.
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
                match kept(&self.config.directory, self.config.bytes_max) {
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
        if self.told.is_none_or(|told| told.elapsed() >= TELL_EVERY) {
            tracing::error!("{line}");
            self.told = Some(Instant::now());
        }
        self.set_trouble(Some(line));
    }

    fn set_trouble(&self, trouble: Option<String>) {
        *self.health.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }
}
