//! History of ended transfers: what was known when each began, and its outcome, in SQLite in the state directory.
//!
//! Forecasts and the training of models read it ([docs/forecast.md](../../../docs/forecast.md)). It holds neither paths nor
//! names of clients. The file is private to the agent's user, and bounded by rows and age. Transfers never wait for it:
//! [`HistoryLog`] hands rows to a task, and drops them, with a count, while too many wait. A damaged file is set aside and a
//! new one created.
//!
//! [`read`] is for other programs of the same user, also while the agent runs.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use penstock_mover::{EndedTransfer, EndedTransferLog, KnownStreams};
use penstock_protocol::open::Protection;
use tokio::runtime::{Builder, Handle};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

mod database;
mod path_memory;
mod row;
mod streams_memory;
#[cfg(test)]
mod tests;
mod traces;

pub use database::{AGE_MAX_S, HistoryError, ROWS_MAX};
pub use path_memory::PathMemory;
pub use row::{HistoryRow, ProtectionName, TransferVerdict};
use streams_memory::StreamsMemory;
pub use traces::{EndedTrace, TRACES_DIRECTORY, trace_files};

/// File in the state directory.
pub const FILE: &str = "history.db";

/// Most rows that wait to be written.
const WAITING_MAX: usize = 1024;

/// Latest rows that are read at the start for the streams and the forecasts of the next transfers.
const REMEMBERED_ROWS: u32 = 5000;

/// Time for the last rows to be written when the agent stops.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
enum HistoryMessage {
    Ended { row: Box<HistoryRow>, trace: EndedTrace },
    Close,
}

/// Log of the mover that stores each ended transfer.
#[derive(Debug)]
pub struct HistoryLog {
    host: String,
    sender: mpsc::Sender<HistoryMessage>,
    dropped: AtomicU64,
    memory: Arc<TransferMemory>,
}

/// Latest transfers, in memory.
#[derive(Debug, Default)]
struct TransferMemory {
    streams: StreamsMemory,
    paths: Arc<PathMemory>,
}

impl TransferMemory {
    fn add(&self, row: &HistoryRow) {
        self.streams.add(row);
        self.paths.add(row);
    }
}

/// Task that writes the rows.
#[derive(Debug)]
pub struct HistoryWriter {
    log: Arc<HistoryLog>,
    task: JoinHandle<()>,
}

impl EndedTransferLog for HistoryLog {
    fn record(&self, mut ended: EndedTransfer) {
        let (id, samples) = (ended.listed.id, std::mem::take(&mut ended.samples));
        let row = HistoryRow::of_ended(&self.host, ended);
        let ended_unix_seconds = row.started_unix_seconds + row.seconds;
        let trace = EndedTrace { id, ended_unix_seconds, samples };
        self.memory.add(&row);
        if self.sender.try_send(HistoryMessage::Ended { row: Box::new(row), trace }).is_err() {
            // Logged once: it goes on until the disk writes again.
            if self.dropped.fetch_add(1, Ordering::Relaxed) == 0 {
                tracing::warn!("the history of transfers takes no more rows now; transfers go on");
            }
        }
    }

    fn best_streams(&self, host: &str, protection: Protection) -> Option<KnownStreams> {
        self.memory.streams.best(host, protection.into())
    }
}

impl HistoryWriter {
    /// Starts the task with the file in `state`. `host` names this host in the rows.
    #[must_use]
    pub fn start(state: &Path, host: String, runtime: &Handle) -> Self {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        let memory = Arc::new(TransferMemory::default());
        let task = runtime.spawn(write_rows(state.to_owned(), receiver, Arc::clone(&memory)));
        let log = HistoryLog { host, sender, dropped: AtomicU64::new(0), memory };
        Self { log: Arc::new(log), task }
    }

    /// The log for the mover.
    #[must_use]
    pub fn log(&self) -> Arc<dyn EndedTransferLog> {
        Arc::clone(&self.log) as _
    }

    /// Latest transfers to each host, for forecasts.
    #[must_use]
    pub fn paths(&self) -> Arc<PathMemory> {
        Arc::clone(&self.log.memory.paths)
    }

    /// Writes the rows that wait, and ends. Later rows are dropped.
    pub fn close(self, runtime: &Handle) {
        runtime.block_on(async {
            let ends = async {
                let _ = self.log.sender.send(HistoryMessage::Close).await;
                self.task.await
            };
            let _ = tokio::time::timeout(CLOSE_TIMEOUT, ends).await;
        });
    }
}

async fn write_rows(
    state: PathBuf,
    mut receiver: mpsc::Receiver<HistoryMessage>,
    memory: Arc<TransferMemory>,
) {
    let path = state.join(FILE);
    if path.exists() {
        let rows = database::read_at_start(&path, REMEMBERED_ROWS).await;
        rows.iter().for_each(|row| memory.add(row));
    }
    let mut database = None;
    let mut is_failing = false;
    while let Some(HistoryMessage::Ended { row, trace }) = receiver.recv().await {
        let appended = database::append(&path, &mut database, &row).await;
        let keep = || tokio::task::block_in_place(|| trace.keep(&state));
        match appended.and_then(|()| keep()) {
            Ok(()) => is_failing = false,
            Err(error) => {
                // Logged once per series of failures.
                if !is_failing {
                    tracing::warn!("{error}: the history misses transfers until it can be written");
                }
                is_failing = true;
            }
        }
    }
    if let Some(database) = database {
        database.close().await;
    }
}

/// Reads the latest `rows` of the history in the state directory `state`, oldest first; none where there is no file.
///
/// # Errors
/// When the file cannot be read.
pub fn read(state: &Path, rows: u32) -> Result<Vec<HistoryRow>, HistoryError> {
    let path = state.join(FILE);
    if !path.exists() {
        return Ok(Vec::new());
    }
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| HistoryError::new(&path, error.into()))?;
    runtime.block_on(database::read(&path, rows))
}
