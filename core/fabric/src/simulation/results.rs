//! Results of a run: counters of flows, ports and switches, queue samples, received PFC frames.

use super::region::Region;
use super::{FlowResult, PauseRecord, PortResult, RdmaOperation, Simulation};
use crate::event::{SimEvent, SimEventKind};

/// Bin width of the queue histogram, as in the HPCC simulator.
const BIN_BYTES: u64 = 1000;
/// Most bins; longer queues count in the last one.
const BINS_MAX: usize = 1 << 16;

/// Periodic samples of switch queues.
#[derive(Debug)]
pub(super) struct Samples {
    interval_ps: u64,
    until_ps: u64,
    /// Histogram of the queue length for each port.
    bins: Vec<Vec<u64>>,
}

/// Counters of a switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SwitchResult {
    /// Size of its packet buffer in bytes.
    pub buffer_bytes: u64,
    /// Highest occupancy in bytes.
    pub used_bytes_max: u64,
}

impl Region {
    pub(super) fn sample(&mut self) {
        let Some(samples) = &mut self.samples else { return };
        for (port, (state, bins)) in self.ports.iter().zip(&mut samples.bins).enumerate() {
            if state.is_host || self.model.owner(self.port_ids[port]) != self.number {
                continue;
            }
            let bin = ((state.queued_bytes / BIN_BYTES) as usize).min(BINS_MAX - 1);
            if bins.len() <= bin {
                bins.resize(bin + 1, 0);
            }
            bins[bin] += 1;
        }
        let next = self.now_ps + samples.interval_ps;
        if next <= samples.until_ps {
            self.events.push(SimEvent::new(next, SimEventKind::QueueSample, 0));
        }
    }
}

impl Simulation {
    /// Samples all switch queues every `interval_ps` from `from_ps` to `until_ps`.
    pub fn sample_queues(&mut self, interval_ps: u64, from_ps: u64, until_ps: u64) {
        let interval_ps = interval_ps.max(1);
        let from_ps = from_ps.max(self.control.now_ps);
        for region in &mut self.regions {
            let bins = vec![Vec::new(); region.ports.len()];
            region.samples = Some(Samples { interval_ps, until_ps, bins });
            region.events.push(SimEvent::new(from_ps, SimEventKind::QueueSample, 0));
        }
    }

    /// Returns the region of a port and its number there.
    fn locate(&self, port: u32) -> (&Region, usize) {
        let region = &self.regions[self.model.owner(port) as usize];
        (region, self.model.local_ports[port as usize] as usize)
    }

    /// Returns the histogram of a port's queue length in bins of 1000 bytes; empty without samples.
    #[must_use]
    pub fn queue_bins(&self, port: u32) -> &[u64] {
        let (region, local) = self.locate(port);
        region.samples.as_ref().map_or(&[], |samples| &samples.bins[local])
    }

    /// Returns a quantile of a port's sampled queue length in bytes, to the lower end of its bin.
    #[must_use]
    pub fn queue_quantile(&self, port: u32, share: f64) -> Option<u64> {
        quantile(self.queue_bins(port), share)
    }

    /// Returns the counters of a port; an ongoing pause counts up to now.
    #[must_use]
    pub fn port_result(&self, port: u32) -> PortResult {
        let (region, local) = self.locate(port);
        let state = &region.ports[local];
        let mut result = state.result;
        for priority in (0..8_u8).filter(|priority| state.paused & (1 << priority) != 0) {
            let since_ps = region.pause_states[local].since(priority);
            result.paused_ps += self.control.now_ps.saturating_sub(since_ps);
        }
        result
    }

    /// Returns the counters of a switch; none for a host.
    #[must_use]
    pub fn switch_result(&self, node: u32) -> Option<SwitchResult> {
        let region = &self.regions[self.model.owners[node as usize] as usize];
        let memory = region.memories[node as usize];
        (!self.model.is_host(node)).then_some(SwitchResult {
            buffer_bytes: memory.buffer,
            used_bytes_max: memory.used_max,
        })
    }

    /// Returns the result of a flow up to now.
    #[must_use]
    pub fn flow_result(&self, flow: usize) -> FlowResult {
        let of = &self.model.flows[flow];
        let (from, to) = of.data_endpoints();
        let [sender, receiver] = self.model.ends[flow].map(|number| number as usize);
        let region = |host: u32| &self.regions[self.model.owners[host as usize] as usize];
        let (sender, receiver) = (&region(from).senders[sender], &region(to).receivers[receiver]);
        let requester = if of.operation == RdmaOperation::Read {
            &receiver.requester
        } else {
            &sender.requester
        };
        FlowResult {
            finished_ps: requester.finished_ps,
            arrived_ps: receiver.arrived_ps,
            failed_ps: requester.failed_ps,
            delivered_bytes: receiver.delivered_bytes,
            completed: requester.completed,
            packets_sent: sender.packets_sent,
            packets_again: sender.packets_again,
            timeouts: requester.timeouts,
            marks: sender.marks,
            stalled_ps_max: receiver.stalled_ps_max,
            ideal_ps: requester.ideal_ps,
        }
    }

    /// Returns the payload of all flows delivered in order, in bytes.
    #[must_use]
    pub fn delivered_bytes(&self) -> u64 {
        let receivers = self.regions.iter().flat_map(|region| &region.receivers);
        receivers.map(|receiver| receiver.delivered_bytes).sum()
    }

    /// Returns the completion time of a flow in an idle network, in picoseconds.
    #[must_use]
    pub fn ideal_ps(&self, flow: usize) -> u64 {
        self.flow_result(flow).ideal_ps
    }

    /// Enables recording of received PFC frames for [`Self::pause_records`].
    pub fn record_pauses(&mut self) {
        for region in &mut self.regions {
            region.pause_records = Some(Vec::new());
        }
    }

    /// Returns the received PFC frames, if recording is enabled.
    #[must_use]
    pub fn pause_records(&self) -> &[PauseRecord] {
        &self.control.pause_records
    }

    /// Returns the buffered bytes that arrived at a port at one lossless priority.
    #[must_use]
    pub fn ingress_bytes(&self, port: u32, priority: u8) -> u64 {
        let (region, local) = self.locate(port);
        let account = &region.ingress[usize::from(priority)][local];
        account.bytes + u64::from(account.headroom_used)
    }

    /// Returns the queue length of a port in bytes, all priorities together.
    #[must_use]
    pub fn queue_bytes(&self, port: u32) -> u64 {
        let (region, local) = self.locate(port);
        region.ports[local].queued_bytes
    }

    /// Returns the sum of the regions' peak packet counts; with one region the peak number of packets in the network.
    #[must_use]
    pub fn packets_peak(&self) -> usize {
        self.regions.iter().map(|region| region.packets.peak()).sum()
    }
}

/// Returns the lower end of the bin in which the cumulative share of samples reaches `share`.
fn quantile(bins: &[u64], share: f64) -> Option<u64> {
    let all: u64 = bins.iter().sum();
    let wanted = ((all as f64 * share).ceil() as u64).max(1);
    let mut sum = 0;
    let bin = bins.iter().position(|count| {
        sum += count;
        sum >= wanted
    })?;
    Some(bin as u64 * BIN_BYTES)
}
