//! Contents of runs, which never change, and the last counters of hosts, in the memory of the writing task.

use std::collections::HashMap;
use std::sync::Arc;

use penstock_control::interface_rates::ReportedCounters;
use penstock_control::run_contents::RunPart;

/// Most runs with cached contents.
const CACHED_RUNS_MAX: usize = 20_000;

/// Cache of the contents of runs and the counters of hosts.
#[derive(Debug, Default)]
pub(crate) struct RunCache {
    runs: HashMap<i64, Arc<Vec<RunPart>>>,
    /// Counters in each host's last report.
    counters: HashMap<String, ReportedCounters>,
}

impl RunCache {
    /// Returns the parts of a run, if cached.
    pub(crate) fn parts(&self, run: i64) -> Option<Arc<Vec<RunPart>>> {
        self.runs.get(&run).map(Arc::clone)
    }

    /// Caches the parts of a run; drops all others at [`CACHED_RUNS_MAX`].
    pub(crate) fn insert_parts(&mut self, run: i64, parts: Arc<Vec<RunPart>>) {
        if self.runs.len() >= CACHED_RUNS_MAX {
            self.runs.clear();
        }
        self.runs.insert(run, parts);
    }

    /// Removes the parts of a run.
    pub(crate) fn remove(&mut self, run: i64) {
        self.runs.remove(&run);
    }

    /// Removes the parts of all runs, after a transaction that failed.
    pub(crate) fn clear(&mut self) {
        self.runs.clear();
    }

    /// Returns the counters in a host's last report.
    pub(crate) fn counters(&self, host: &str) -> Option<&ReportedCounters> {
        self.counters.get(host)
    }

    /// Stores the counters in a host's report.
    pub(crate) fn set_counters(&mut self, host: &str, counters: ReportedCounters) {
        self.counters.insert(host.to_owned(), counters);
    }
}
