//! Summary of a run: goodput, flow completion times, slowdown by flow size, fairness.

use crate::simulation::Simulation;
use crate::time::{PS_PER_SECOND, seconds};

/// Most size bins, each with about the same number of flows, as in the analysis of the HPCC paper.
const SIZE_BINS_MAX: usize = 20;

/// Mean and quantiles of a distribution (nearest rank).
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Quantiles {
    /// Arithmetic mean of the values.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// Largest of the values.
    pub max: f64,
}

impl Quantiles {
    /// Computes the quantiles of unsorted values; none if there are no values.
    #[must_use]
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        if values.is_empty() {
            return None;
        }
        values.sort_by(f64::total_cmp);
        // Nearest rank: the smallest value that at least `share` of the values do not exceed.
        let at = |share: f64| {
            let rank = (values.len() as f64 * share).ceil() as usize;
            values[rank.clamp(1, values.len()) - 1]
        };
        Some(Self {
            mean: values.iter().sum::<f64>() / values.len() as f64,
            p50: at(0.5),
            p95: at(0.95),
            p99: at(0.99),
            p999: at(0.999),
            max: at(1.0),
        })
    }
}

/// Flows of similar size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SizeBin {
    /// Largest flow size of the bin in bytes.
    pub bytes_max: u64,
    /// Number of flows in the bin.
    pub flows: usize,
    /// Completion time divided by that in an idle network.
    pub slowdown: Quantiles,
}

/// Summary of all flows and ports of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct FabricSummary {
    /// Simulated time in seconds.
    pub seconds: f64,
    /// Seconds from the start of the first flow to the end of the last, or to the end of the run if flows are
    /// unfinished.
    pub active_seconds: f64,
    /// Number of completed flows.
    pub finished: usize,
    /// Number of flows whose requester gave up.
    pub failed: usize,
    /// Number of flows that were neither completed nor given up at the end.
    pub unfinished: usize,
    /// Payload delivered in order, in bytes.
    pub delivered_bytes: u64,
    /// Delivered payload divided by `active_seconds`.
    pub goodput_bps: f64,
    /// Goodput of each finished flow.
    pub flow_goodput_bps: Option<Quantiles>,
    /// Seconds from start to completion.
    pub completion_seconds: Option<Quantiles>,
    /// Completion time divided by that in an idle network, at least 1.
    pub slowdown: Option<Quantiles>,
    /// Slowdown by flow size.
    pub by_size: Vec<SizeBin>,
    /// Jain's fairness index of the flows' goodput: 1 for equal shares, 1/n if one flow gets everything.
    pub fairness: Option<f64>,
    /// Data packets sent more than once.
    pub packets_again: u64,
    /// Expirations of retransmission timers.
    pub timeouts: u64,
    /// ECN marks and CNPs reported to senders.
    pub marks: u64,
    /// PFC pause frames sent.
    pub pauses: u64,
    /// Longest total PFC pause time of a port.
    pub paused_seconds_max: f64,
    /// Longest queue of a switch port in bytes.
    pub queue_bytes_max: u64,
    /// Highest buffer occupancy of a switch in bytes.
    pub buffer_bytes_max: u64,
    /// Actions of PFC watchdogs.
    pub watchdog: u64,
    /// Longest time without new in-order payload of any flow.
    pub stalled_seconds_max: f64,
}

/// Returns Jain's fairness index, (sum x)^2 / (n sum x^2); none if all values are 0.
#[must_use]
pub fn jain(values: &[f64]) -> Option<f64> {
    let sum: f64 = values.iter().sum();
    let squares: f64 = values.iter().map(|value| value * value).sum();
    (squares > 0.0).then(|| sum * sum / (values.len() as f64 * squares))
}

/// Summarises a run up to its current time.
#[must_use]
pub fn summarise(simulation: &Simulation) -> FabricSummary {
    let now = simulation.now_ps();
    let (mut begun, mut ended, mut delivered) = (u64::MAX, 0, 0);
    let (mut finished, mut failed) = (0, 0);
    let (mut again, mut timeouts, mut marks, mut stalled) = (0, 0, 0, 0);
    let (mut rates, mut times, mut given) = (Vec::new(), Vec::new(), Vec::new());
    let mut slowdowns: Vec<(u64, f64)> = Vec::new();
    for (number, flow) in simulation.flows().iter().enumerate() {
        let result = simulation.flow_result(number);
        begun = begun.min(flow.start_ps);
        delivered += result.delivered_bytes;
        again += result.packets_again;
        timeouts += result.timeouts;
        marks += result.marks;
        stalled = stalled.max(result.stalled_ps_max);
        failed += usize::from(result.failed_ps.is_some());
        let until = result.finished_ps.or(result.failed_ps).unwrap_or(now);
        ended = ended.max(until);
        if until > flow.start_ps {
            given.push(result.delivered_bytes as f64 / (until - flow.start_ps) as f64);
        }
        let Some(done) = result.finished_ps else { continue };
        finished += 1;
        let took = (done - flow.start_ps).max(1);
        rates.push(flow.bytes() as f64 * 8.0 * PS_PER_SECOND as f64 / took as f64);
        times.push(seconds(took));
        let slowdown = (took as f64 / result.ideal_ps.max(1) as f64).max(1.0);
        slowdowns.push((flow.bytes(), slowdown));
    }
    let span = seconds(ended.saturating_sub(begun).max(1));
    let network = simulation.network();
    let (mut pauses, mut watchdog, mut paused, mut queue) = (0, 0, 0, 0);
    for port in 0..network.ports.len() as u32 {
        let result = simulation.port_result(port);
        pauses += result.pauses_sent;
        watchdog += result.watchdog;
        paused = paused.max(result.paused_ps);
        if !network.nodes[network.ports[port as usize].node as usize].is_host {
            queue = queue.max(result.queue_bytes_max);
        }
    }
    let switches =
        (0..network.nodes.len() as u32).filter_map(|node| simulation.switch_result(node));
    FabricSummary {
        seconds: seconds(now),
        active_seconds: span,
        finished,
        failed,
        unfinished: simulation.flows().len() - finished - failed,
        delivered_bytes: delivered,
        goodput_bps: delivered as f64 * 8.0 / span,
        flow_goodput_bps: Quantiles::of(rates),
        completion_seconds: Quantiles::of(times),
        slowdown: Quantiles::of(slowdowns.iter().map(|(_, slowdown)| *slowdown).collect()),
        by_size: by_size(slowdowns),
        fairness: jain(&given),
        packets_again: again,
        timeouts,
        marks,
        pauses,
        paused_seconds_max: seconds(paused),
        queue_bytes_max: queue,
        buffer_bytes_max: switches.map(|switch| switch.used_bytes_max).max().unwrap_or(0),
        watchdog,
        stalled_seconds_max: seconds(stalled),
    }
}

fn by_size(mut slowdowns: Vec<(u64, f64)>) -> Vec<SizeBin> {
    slowdowns.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let all = slowdowns.len();
    let bins = SIZE_BINS_MAX.min(all);
    let mut begin = 0;
    let bin = |number: usize| {
        let mut end = (all * (number + 1) / bins).max(begin);
        // Flows of equal size share a bin.
        while end > begin && end < all && slowdowns[end].0 == slowdowns[end - 1].0 {
            end += 1;
        }
        let part = &slowdowns[begin..end];
        begin = end;
        let slowdown = Quantiles::of(part.iter().map(|(_, slowdown)| *slowdown).collect())?;
        Some(SizeBin { bytes_max: part.last()?.0, flows: part.len(), slowdown })
    };
    (0..bins).filter_map(bin).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_nearest_rank_values() {
        let quantiles = Quantiles::of((1..=1000).rev().map(f64::from).collect()).unwrap();
        assert_eq!((quantiles.p50, quantiles.p95, quantiles.p99), (500.0, 950.0, 990.0));
        assert_eq!((quantiles.p999, quantiles.max, quantiles.mean), (999.0, 1000.0, 500.5));
        let one = Quantiles::of(vec![7.0]).unwrap();
        assert_eq!((one.p50, one.p999), (7.0, 7.0));
        assert_eq!(Quantiles::of(Vec::new()), None);
    }

    #[test]
    fn fairness_is_one_for_equal_shares() {
        assert_eq!(jain(&[3.0; 7]), Some(1.0));
        assert_eq!(jain(&[1.0, 0.0, 0.0, 0.0]), Some(0.25));
        assert_eq!(jain(&[]), None);
    }

    #[test]
    fn bins_partition_all_flows() {
        let flows = (0..103_u64).map(|size| (size % 50, 1.0)).collect();
        let bins = by_size(flows);
        assert_eq!(bins.len(), 20);
        assert_eq!(bins.iter().map(|bin| bin.flows).sum::<usize>(), 103);
        assert!(bins.is_sorted_by_key(|bin| bin.bytes_max));
    }

    #[test]
    fn equal_sizes_share_a_bin() {
        let one = by_size((0..100).map(|_| (500, 1.0)).collect());
        assert_eq!(
            one.iter().map(|bin| (bin.bytes_max, bin.flows)).collect::<Vec<_>>(),
            [(500, 100)]
        );
        let two = by_size((0..100).map(|number| (1 + u64::from(number >= 30), 1.0)).collect());
        assert_eq!(two.iter().map(|bin| bin.flows).collect::<Vec<_>>(), [30, 70]);
        let some = by_size((0..103).map(|number| (number / 2, 1.0)).collect());
        assert_eq!(some.iter().map(|bin| bin.flows).sum::<usize>(), 103);
        assert!(some.windows(2).all(|pair| pair[0].bytes_max < pair[1].bytes_max));
    }
}
