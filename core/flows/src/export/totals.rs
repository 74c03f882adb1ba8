//! Totals of flows (octetTotalCount, packetTotalCount): an exporter that reports a long flow several times counts it from
//! its start each time, so the traffic since the last record is the difference.

use std::time::Duration;

use crate::bounded::Generations;
use crate::packet::FlowKey;
use crate::sflow::Interface;

/// Most flows whose totals are remembered, of all exporters; those not reported for longest are forgotten.
pub const FLOW_TOTALS_MAX: usize = 65_536;

/// A flow where it was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct FlowId {
    pub(super) flow: FlowKey,
    pub(super) input: Interface,
    pub(super) output: Interface,
}

/// The last total of each flow: octets and packets.
#[derive(Debug)]
pub(crate) struct LastTotals(Generations<(u32, FlowId), (u64, u64)>);

impl LastTotals {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Generations::new(FLOW_TOTALS_MAX, seed))
    }
}

/// The totals of one exporter.
pub(super) struct FlowTotals<'a> {
    pub(super) last: &'a mut LastTotals,
    pub(super) exporter: u32,
    /// When its first datagram came.
    pub(super) first_heard: Duration,
}

impl FlowTotals<'_> {
    /// Octets and packets since the record before; `length` is the time from the flow's start until now, 0 where it is
    /// not known. The first total of a flow that began before its exporter was heard is a base and no traffic: when
    /// its octets were sent is not known.
    pub(super) fn since_last(
        &mut self,
        flow: FlowId,
        total: (u64, u64),
        now: Duration,
        length: Duration,
    ) -> (u64, u64) {
        let key = (self.exporter, flow);
        let last = self.last.0.get(&key).copied();
        self.last.0.put(key, total);
        match last {
            // Below the last one it is another flow with the same key.
            Some(last) if total.0 >= last.0 && total.1 >= last.1 => {
                (total.0 - last.0, total.1 - last.1)
            }
            Some(_) => total,
            None if length > now.saturating_sub(self.first_heard) => (0, 0),
            None => total,
        }
    }
}
