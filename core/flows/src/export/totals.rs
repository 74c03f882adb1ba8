//! Flow totals (octetTotalCount, packetTotalCount): an exporter that reports a long flow several
//! times counts from its start, so the traffic since the last record is the difference.

use std::time::Duration;

use crate::bounded::Generations;
use crate::packet::FlowKey;
use crate::sflow::SflowInterface;

/// Most flows of all exporters whose totals are stored; the least recently reported is evicted.
pub const FLOW_TOTALS_MAX: usize = 65_536;

/// Time after an exporter's first datagram in which a flow without a start may be older: a usual
/// longest time between two records of a flow.
const ACTIVE_TIMEOUT_MAX: Duration = Duration::from_secs(300);

/// Identity of a flow at an exporter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct FlowTotalKey {
    pub(super) flow: FlowKey,
    pub(super) input: SflowInterface,
    pub(super) output: SflowInterface,
}

/// Last total of each flow: octets and packets.
#[derive(Debug)]
pub(crate) struct LastTotals(Generations<(u32, FlowTotalKey), (u64, u64)>);

impl LastTotals {
    /// Stores at most `limit` flows.
    pub(crate) fn new(limit: usize, seed: u64) -> Self {
        Self(Generations::new(limit, seed))
    }
}

/// Totals of one exporter.
pub(super) struct FlowTotals<'a> {
    pub(super) last: &'a mut LastTotals,
    pub(super) exporter: u32,
    /// Time of its first datagram.
    pub(super) first_seen: Duration,
}

impl FlowTotals<'_> {
    /// Octets and packets since the previous record; `since_start` is the time from the flow's
    /// start until now, if known. The first total of a flow older than the exporter's first
    /// datagram is a baseline and no traffic: the time of its octets is unknown. A flow without a
    /// start may be older within the first [`ACTIVE_TIMEOUT_MAX`].
    pub(super) fn since_last(
        &mut self,
        flow: FlowTotalKey,
        total: (u64, u64),
        now: Duration,
        since_start: Option<Duration>,
    ) -> (u64, u64) {
        let key = (self.exporter, flow);
        let known = now.saturating_sub(self.first_seen);
        let last = self.last.0.get(&key).copied();
        self.last.0.put(key, total);
        match last {
            // A lower total belongs to another flow with the same key.
            Some(last) if total.0 >= last.0 && total.1 >= last.1 => {
                (total.0 - last.0, total.1 - last.1)
            }
            Some(_) => total,
            None if since_start.map_or(known < ACTIVE_TIMEOUT_MAX, |since| since > known) => (0, 0),
            None => total,
        }
    }
}
