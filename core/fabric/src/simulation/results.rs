//! Results of a run: counters of ports and switches, sampled queues, pauses.

use super::region::Region;
use super::{FlowResult, Operation, PauseRecord, PortResult, Simulation};
use crate::event::{Event, Kind};

/// A bin of the histogram of queues: 1000 bytes, as the HPCC simulator has it.
const BIN_BYTES: u64 = 1000;
/// Longer queues share the last bin.
const BINS_MAX: usize = 1 << 16;

/// Queues of switches, looked at in intervals.
#[derive(Debug)]
pub(super) struct Samples {
    interval_ps: u64,
    until_ps: u64,
    /// For each port: how often its queue was in each bin.
    bins: Vec<Vec<u64>>,
}

/// Counters of a switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SwitchResult {
    /// Size of its packet buffer in bytes.
    pub buffer_bytes: u64,
    /// Most that was used of it.
    pub used_bytes_max: u64,
}

impl Region {
    pub(super) fn sample(&mut self) {
        let Some(samples) = &mut self.samples else { return };
        for (port, (state, bins)) in self.ports.iter().zip(&mut samples.bins).enumerate() {
            if state.is_host || self.model.owner(self.names[port]) != self.number {
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
            self.events.push(Event::new(next, Kind::Samples, 0));
        }
    }
}

impl Simulation {
    /// Looks at all queues of switches in intervals between two times.
    pub fn sample_queues(&mut self, interval_ps: u64, from_ps: u64, until_ps: u64) {
        let interval_ps = interval_ps.max(1);
        let from_ps = from_ps.max(self.control.now_ps);
        for region in &mut self.regions {
            let bins = vec![Vec::new(); region.ports.len()];
            region.samples = Some(Samples { interval_ps, until_ps, bins });
            region.events.push(Event::new(from_ps, Kind::Samples, 0));
        }
    }

    /// The region of a port, and its number there.
    fn place(&self, port: u32) -> (&Region, usize) {
        let region = &self.regions[self.model.owner(port) as usize];
        (region, self.model.places[port as usize] as usize)
    }

    /// How often the queue of a port was in each kilobyte; nothing without samples.
    #[must_use]
    pub fn queue_bins(&self, port: u32) -> &[u64] {
        let (region, place) = self.place(port);
        region.samples.as_ref().map_or(&[], |samples| &samples.bins[place])
    }

    /// The queue of a port that so large a share of samples was not above, in bytes.
    #[must_use]
    pub fn queue_quantile(&self, port: u32, share: f64) -> Option<u64> {
        quantile(self.queue_bins(port), share)
    }

    /// Counters of a port, with a pause that goes on counted until now.
    #[must_use]
    pub fn port_result(&self, port: u32) -> PortResult {
        let (region, place) = self.place(port);
        let state = &region.ports[place];
        let mut result = state.result;
        for priority in (0..8_u8).filter(|priority| state.paused & (1 << priority) != 0) {
            let since_ps = region.held[place].since(priority);
            result.paused_ps += self.control.now_ps.saturating_sub(since_ps);
        }
        result
    }

    /// Counters of a switch; none of a host.
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
        let (from, to) = of.data_way();
        let [sender, receiver] = self.model.ends[flow].map(|number| number as usize);
        let region = |host: u32| &self.regions[self.model.owners[host as usize] as usize];
        let (sender, receiver) = (&region(from).senders[sender], &region(to).receivers[receiver]);
        let requester =
            if of.operation == Operation::Read { &receiver.requester } else { &sender.requester };
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

    /// Payload that arrived in order, of all flows.
    #[must_use]
    pub fn delivered_bytes(&self) -> u64 {
        let receivers = self.regions.iter().flat_map(|region| &region.receivers);
        receivers.map(|receiver| receiver.delivered_bytes).sum()
    }

    /// Time that a flow takes alone in the network, in picoseconds.
    #[must_use]
    pub fn ideal_ps(&self, flow: usize) -> u64 {
        self.flow_result(flow).ideal_ps
    }

    /// Keeps every pause that arrives, for [`Self::pause_records`].
    pub fn record_pauses(&mut self) {
        for region in &mut self.regions {
            region.pause_records = Some(Vec::new());
        }
    }

    /// Pauses that arrived, where they are recorded.
    #[must_use]
    pub fn pause_records(&self) -> &[PauseRecord] {
        &self.control.pause_records
    }

    /// Bytes of lossless memory that came in by a port and wait, at one priority.
    #[must_use]
    pub fn ingress_bytes(&self, port: u32, priority: u8) -> u64 {
        let (region, place) = self.place(port);
        let account = &region.ingress[place][usize::from(priority)];
        account.bytes + u64::from(account.headroom_used)
    }

    /// Bytes that wait at a port.
    #[must_use]
    pub fn queue_bytes(&self, port: u32) -> u64 {
        let (region, place) = self.place(port);
        region.ports[place].queued_bytes
    }

    /// Packets for which there was place at the end: with one region, those that were on their way at most.
    #[must_use]
    pub fn packets_peak(&self) -> usize {
        self.regions.iter().map(|region| region.packets.peak()).sum()
    }
}

/// The lower end of the bin in which a share of all samples is reached.
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
