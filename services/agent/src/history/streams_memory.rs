//! Latest transfers to each host, in memory, from which the next one takes its first number of streams.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use penstock_forecast::online::WINDOW_TRANSFERS;
use penstock_forecast::{StreamsOutcome, advise_streams};
use penstock_mover::KnownStreams;

use super::row::{HistoryRow, ProtectionName};

/// Shortest transfer that counts, in seconds: the search of a shorter one may not have ended.
const SECONDS_MIN: f64 = 10.0;

/// Most hosts that are kept, each with and without encryption.
const HOSTS_MAX: usize = 2048;

type Latest = VecDeque<StreamsOutcome>;

/// Streams and rates of the latest transfers that this host sent, newest first, by receiving host and protection.
#[derive(Debug, Default)]
pub(super) struct StreamsMemory(Mutex<HashMap<(String, ProtectionName), Latest>>);

impl StreamsMemory {
    /// Adds a transfer if the path or the hosts bound it, not its user.
    pub(super) fn add(&self, row: &HistoryRow) {
        let (Some(streams), Some(protection)) = (row.streams_settled, row.protection) else {
            return;
        };
        let is_usable = row.direction == "send"
            && row.verdict.has_whole_run()
            && row.rate_limit_bps.is_none()
            && row.bound_by != "rate limit"
            && row.seconds >= SECONDS_MIN
            && !row.synthetic;
        if !is_usable {
            return;
        }
        let mut hosts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (row.destination.clone(), protection);
        if hosts.len() >= HOSTS_MAX && !hosts.contains_key(&key) {
            return;
        }
        let latest = hosts.entry(key).or_default();
        latest.truncate(WINDOW_TRANSFERS - 1);
        latest.push_front(StreamsOutcome { streams, bits_per_second: row.bits_per_second() });
    }

    /// Streams for a transfer to `host`; none where too few are known.
    pub(super) fn best(&self, host: &str, protection: ProtectionName) -> Option<KnownStreams> {
        let mut hosts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let latest = hosts.get_mut(&(host.to_owned(), protection))?;
        let advice = advise_streams(latest.make_contiguous())?;
        let stream_bps = advice.stream_bps as u64;
        Some(KnownStreams { streams: advice.streams, stream_bps, transfers: advice.transfers })
    }
}
