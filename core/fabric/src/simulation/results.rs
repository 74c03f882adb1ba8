//! What a run gives: counters of ports and switches, queues by samples, pauses.

use super::{Event, Kind, PauseRecord, PortResult, Simulation};

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
    /// Its memory.
    pub buffer_bytes: u64,
    /// Most that was used of it.
    pub used_bytes_max: u64,
}

impl Simulation {
    /// Looks at all queues of switches in intervals between two times.
    pub fn sample_queues(&mut self, interval_ps: u64, from_ps: u64, until_ps: u64) {
        let interval_ps = interval_ps.max(1);
        let from_ps = from_ps.max(self.now_ps);
        self.samples =
            Some(Samples { interval_ps, until_ps, bins: vec![Vec::new(); self.ports.len()] });
        self.events.push(Event::new(from_ps, Kind::Samples, 0));
    }

    pub(super) fn sample(&mut self) {
        let Some(samples) = &mut self.samples else { return };
        for (port, bins) in self.ports.iter().zip(&mut samples.bins) {
            if port.is_host {
                continue;
            }
            let bin = ((port.queued_bytes / BIN_BYTES) as usize).min(BINS_MAX - 1);
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

    /// How often the queue of a port was in each kilobyte; nothing without samples.
    #[must_use]
    pub fn queue_bins(&self, port: u32) -> &[u64] {
        self.samples.as_ref().map_or(&[], |samples| &samples.bins[port as usize])
    }

    /// The queue of a port that so large a share of samples was not above, in bytes.
    #[must_use]
    pub fn queue_quantile(&self, port: u32, share: f64) -> Option<u64> {
        quantile(self.queue_bins(port), share)
    }

    /// Counters of a port, with a pause that goes on counted until now.
    #[must_use]
    pub fn port_result(&self, port: u32) -> PortResult {
        let state = &self.ports[port as usize];
        let mut result = state.result;
        for priority in (0..8_u8).filter(|priority| state.paused & (1 << priority) != 0) {
            result.paused_ps += self.now_ps - self.held[port as usize].since(priority);
        }
        result
    }

    /// Counters of a switch; none of a host.
    #[must_use]
    pub fn switch_result(&self, node: u32) -> Option<SwitchResult> {
        let memory = self.memories[node as usize];
        (!self.network.nodes[node as usize].is_host).then_some(SwitchResult {
            buffer_bytes: memory.buffer,
            used_bytes_max: memory.used_max,
        })
    }

    /// Pauses that arrived, where they are recorded.
    #[must_use]
    pub fn pause_records(&self) -> &[PauseRecord] {
        self.pause_records.as_deref().unwrap_or_default()
    }

    /// Bytes of lossless memory that came in by a port and wait, at one priority.
    #[must_use]
    pub fn ingress_bytes(&self, port: u32, priority: u8) -> u64 {
        let account = &self.ingress[port as usize][usize::from(priority)];
        account.bytes + u64::from(account.headroom_used)
    }

    /// Bytes that wait at a port.
    #[must_use]
    pub fn queue_bytes(&self, port: u32) -> u64 {
        self.ports[port as usize].queued_bytes
    }

    /// Packets that were on their way at most.
    #[must_use]
    pub const fn packets_peak(&self) -> usize {
        self.packets.peak()
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
