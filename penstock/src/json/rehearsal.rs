//! `penstock rehearse`.

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;

/// Result of a rehearsal.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Rehearsal {
    /// Name of the demand.
    pub(crate) name: String,
    /// Place of the controller's state: `memory`, `sqlite` or the address of a database.
    pub(crate) controller: String,
    /// Virtual time of the day at which the rehearsal began, as `HH:MM`.
    pub(crate) begin: String,
    /// Virtual time in which requests arrived.
    pub(crate) arriving_seconds: u32,
    /// Virtual time in all.
    pub(crate) virtual_seconds: u32,
    /// Real time that it took.
    pub(crate) wall_seconds: f64,
    /// Number of submitted requests.
    pub(crate) requests_submitted: u64,
    /// Files of the submitted requests.
    pub(crate) files_submitted: u64,
    /// Mean rate at which files were submitted [1/s].
    pub(crate) files_submitted_per_second: f64,
    /// Number of files in place.
    pub(crate) files_done: u64,
    /// Bytes of files in place.
    pub(crate) bytes_moved: u64,
    /// Mean rate: `bytes_moved` over `virtual_seconds`.
    pub(crate) bits_per_second: f64,
    /// Virtual time from the last submission to the end of the last request; null without `--finish`.
    pub(crate) finish_seconds: Option<u32>,
    /// Requests that had not ended at the end.
    pub(crate) requests_open: u64,
    /// Real time of the decisions of a round.
    pub(crate) plan: Times,
    /// Real time of whole rounds, with the state that they read and write.
    pub(crate) round: Times,
    /// Real time of the reports of all nodes for one virtual second.
    pub(crate) reports: Times,
    /// Largest number of transfers at a time.
    pub(crate) transfers_at_once_max: usize,
    /// Largest number of batches that waited.
    pub(crate) batches_waiting_max: u64,
    /// Jain's index of what classes received for their weights while all of them waited: 1 is fair; null where that was
    /// never the case [ratio].
    pub(crate) jain: Option<f64>,
    /// Smallest Jain's index of a period of five minutes; null where classes never all waited [ratio].
    pub(crate) jain_worst_5_minutes: Option<f64>,
    /// Periods of five minutes in which all classes waited.
    pub(crate) contended_5_minutes: u32,
    /// Classes of work by their names; empty with `--database`.
    pub(crate) classes: BTreeMap<String, ClassJson>,
    /// Size of the database; null without `--database`.
    pub(crate) database: Option<DatabaseJson>,
}

/// Durations in real time.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Times {
    /// Number of measured durations.
    pub(crate) count: usize,
    /// Median; null where there were none.
    pub(crate) p50_seconds: Option<f64>,
    /// 99th percentile; null where there were none.
    pub(crate) p99_seconds: Option<f64>,
    /// Longest; null where there were none.
    pub(crate) max_seconds: Option<f64>,
}

/// Requests of a class that ended.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ClassJson {
    /// Number of files in place.
    pub(crate) files_done: u64,
    /// Number of files that failed.
    pub(crate) files_failed: u64,
    /// Number of requests that ended.
    pub(crate) requests: usize,
    /// Median virtual time from submission to end; null where no request ended.
    pub(crate) request_p50_seconds: Option<f64>,
    /// 99th percentile of the virtual time from submission to end; null where no request ended.
    pub(crate) request_p99_seconds: Option<f64>,
}

/// Size of a database.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct DatabaseJson {
    /// Requests in the database at the end.
    pub(crate) requests: u64,
    /// Files in the database at the end.
    pub(crate) files: u64,
    /// Size of all tables.
    pub(crate) bytes: u64,
    /// Size of each table by its name.
    pub(crate) tables_bytes: BTreeMap<String, u64>,
    /// Bytes for each file, in the table of files.
    pub(crate) bytes_per_file: f64,
    /// Bytes for each request, in all other tables.
    pub(crate) bytes_per_request: f64,
}
