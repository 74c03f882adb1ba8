//! Rates of transfers that share a path during one interval.

use penstock_tuner::Parallelism;

/// Bytes of a segment, with which loss and rate are related.
const SEGMENT_BITS: f64 = 1448.0 * 8.0;

/// Constant of the square-root law of TCP (Mathis et al., The macroscopic behavior of the TCP congestion avoidance
/// algorithm, 1997).
const MATHIS_CONSTANT: f64 = 1.22;

/// Utilisation from which the link queues and loses, and the same where streams are paced: they need no queue.
const SATURATED_SHARE: f64 = 0.985;
const SATURATED_SHARE_PACED: f64 = 0.998;

/// Fewest milliseconds of a standing queue.
const QUEUE_US: f64 = 5_000.0;

/// Rate of a stage before or behind the network.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StageModel {
    /// Rate of one worker.
    pub worker_bps: f64,
    /// Rate of any number of workers.
    pub ceiling_bps: f64,
}

impl StageModel {
    /// Stage that never limits.
    pub const UNLIMITED: Self = Self { worker_bps: f64::INFINITY, ceiling_bps: f64::INFINITY };

    fn rate(&self, workers: u16) -> f64 {
        (self.worker_bps * f64::from(workers)).min(self.ceiling_bps)
    }
}

/// Cause of a cap on each stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CapKind {
    /// Window or host: no packet shows it.
    Window,
    /// Queue of its own for each connection.
    Shaper,
    /// Drops above the rate, without a queue.
    Policer,
}

/// Path between two hosts, with the hosts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PathModel {
    /// Readers: the stage before the network.
    pub read: StageModel,
    /// Writers: the stage behind the network.
    pub write: StageModel,
    /// Cap of one stream.
    pub stream_bps: f64,
    /// Cause of the cap.
    pub cap: CapKind,
    /// Capacity of the link that all share.
    pub capacity_bps: f64,
    /// Round-trip time without a queue.
    pub rtt_us: u32,
    /// Probability of losing a segment at random.
    pub random_loss: f64,
    /// Streams of others, greedy.
    pub background_streams: u16,
    /// Share of the rate lost for each doubling of the streams over the knee.
    pub crowding: f64,
    /// Rate that the sender's processors allow.
    pub cpu_bps: f64,
    /// Rate limit of the operator.
    pub limit_bps: f64,
    /// Standard deviation of the logarithm of an interval's rate, and its correlation with the last one.
    pub noise: f64,
    /// Correlation of the noise of consecutive intervals.
    pub noise_correlation: f64,
}

impl PathModel {
    /// Path with this cap for each stream and this shared capacity, in Mb/s, and nothing else that limits.
    #[must_use]
    pub fn capped(stream_mbps: f64, capacity_mbps: f64) -> Self {
        Self {
            read: StageModel::UNLIMITED,
            write: StageModel::UNLIMITED,
            stream_bps: stream_mbps * 1e6,
            cap: CapKind::Shaper,
            capacity_bps: capacity_mbps * 1e6,
            rtt_us: 10_000,
            random_loss: 0.0,
            background_streams: 0,
            crowding: 0.0,
            cpu_bps: f64::INFINITY,
            limit_bps: f64::INFINITY,
            noise: 0.02,
            noise_correlation: 0.0,
        }
    }

    /// Rate of one stream that nothing shared limits.
    fn stream_rate(&self) -> f64 {
        let rtt_s = f64::from(self.rtt_us) / 1e6;
        let by_loss = if self.random_loss > 0.0 {
            MATHIS_CONSTANT * SEGMENT_BITS / (rtt_s * self.random_loss.sqrt())
        } else {
            f64::INFINITY
        };
        self.stream_bps.min(by_loss)
    }

    /// Streams that reach the capacity alone.
    fn knee(&self) -> f64 {
        (self.capacity_bps / self.stream_rate()).max(1.0)
    }
}

/// Workers of a transfer during an interval; `streams` is a mean where streams connect meanwhile.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Offered {
    pub(crate) workers: Parallelism,
    pub(crate) streams: f64,
    /// Most bits per second of each stream.
    pub(crate) pace_bps: f64,
}

/// Outcome of an interval for one transfer.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct IntervalOutcome {
    pub(crate) rate_bps: f64,
    pub(crate) rtt_us: f64,
    pub(crate) loss: f64,
    pub(crate) source_empty: f64,
    pub(crate) destination_full: f64,
    pub(crate) rate_limit: f64,
    pub(crate) cpu: f64,
}

/// Shares the path among transfers.
pub(crate) fn share(path: &PathModel, offered: &[Offered]) -> Vec<IntervalOutcome> {
    let stream_rate = path.stream_rate();
    let hosts = |one: &Offered| {
        let read = path.read.rate(one.workers.readers);
        let write = path.write.rate(one.workers.writers);
        (read, write, read.min(write).min(path.cpu_bps).min(path.limit_bps))
    };
    let greedy: Vec<(f64, f64)> =
        offered.iter().map(|one| (one.streams, stream_rate.min(one.pace_bps))).collect();
    let mut demands: Vec<(f64, f64)> = offered
        .iter()
        .zip(&greedy)
        .map(|(one, (count, cap))| (*count, cap.min(hosts(one).2 / count.max(1e-9))))
        .collect();
    let background = (f64::from(path.background_streams), stream_rate);
    demands.push(background);
    let level = fair_level(&demands, path.capacity_bps);
    let used: f64 = demands.iter().map(|(count, cap)| count * cap.min(level)).sum();
    let is_paced =
        offered.iter().all(|one| one.pace_bps < stream_rate) && path.background_streams == 0;
    let saturated_share = if is_paced { SATURATED_SHARE_PACED } else { SATURATED_SHARE };
    let saturated = used >= saturated_share * path.capacity_bps;
    offered
        .iter()
        .zip(&demands)
        .zip(&greedy)
        .map(|((one, (count, cap)), (_, free_cap))| {
            let (read, write, host) = hosts(one);
            // What the network would give if the hosts were no limit.
            let network = count * free_cap.min(level.max(*cap));
            let doublings = (one.streams / path.knee()).max(1.0).log2();
            let kept = (1.0 - path.crowding * doublings).max(0.3);
            let rate_bps = count * cap.min(level) * kept;
            let idle = |limit: f64| {
                let binds = limit <= host && limit < network && rate_bps > 0.0;
                if binds { (1.0 - limit / network).max(0.0) } else { 0.0 }
            };
            let per_stream = (rate_bps / count.max(1e-9)).max(1.0);
            let is_capped = stream_rate <= level && *cap >= stream_rate;
            let queue_us = QUEUE_US.max(f64::from(path.rtt_us));
            let has_queue = saturated || (is_capped && path.cap == CapKind::Shaper);
            let rtt_us = f64::from(path.rtt_us) + if has_queue { queue_us } else { 0.0 };
            let loses = saturated || (is_capped && path.cap == CapKind::Policer);
            let by_congestion = if loses {
                (MATHIS_CONSTANT * SEGMENT_BITS / (rtt_us / 1e6 * per_stream)).powi(2)
            } else {
                0.0
            };
            IntervalOutcome {
                rate_bps,
                rtt_us,
                loss: (by_congestion + path.random_loss).min(0.2),
                source_empty: idle(read),
                destination_full: idle(write),
                rate_limit: idle(path.limit_bps),
                cpu: (rate_bps / path.cpu_bps).clamp(0.02, 0.99),
            }
        })
        .collect()
}

/// Largest equal rate of the streams that fits `capacity`; each stream takes at most its cap.
fn fair_level(demands: &[(f64, f64)], capacity: f64) -> f64 {
    let mut sorted: Vec<(f64, f64)> =
        demands.iter().copied().filter(|(count, _)| *count > 0.0).collect();
    sorted.sort_by(|a, b| a.1.total_cmp(&b.1));
    let mut left = capacity;
    let mut streams: f64 = sorted.iter().map(|(count, _)| count).sum();
    for (count, cap) in sorted {
        if cap * streams >= left {
            return left / streams;
        }
        left -= cap * count;
        streams -= count;
    }
    f64::INFINITY
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered(streams: u16) -> Offered {
        Offered {
            workers: Parallelism::streams(streams),
            streams: f64::from(streams),
            pace_bps: f64::INFINITY,
        }
    }

    #[test]
    fn capped_streams_fill_capacity() {
        let path = PathModel::capped(25.0, 400.0);
        assert!((share(&path, &[offered(8)])[0].rate_bps - 200e6).abs() < 1.0);
        assert!((share(&path, &[offered(32)])[0].rate_bps - 400e6).abs() < 1.0);
        let two = share(&path, &[offered(8), offered(24)]);
        assert!((two[0].rate_bps - 100e6).abs() < 1.0);
        assert!((two[1].rate_bps - 300e6).abs() < 1.0);
        assert!(two[0].loss > 0.0);
    }

    #[test]
    fn slow_stage_starves_streams() {
        let read = StageModel { worker_bps: 10e6, ceiling_bps: 200e6 };
        let path = PathModel { read, ..PathModel::capped(25.0, 400.0) };
        let outcome = share(&path, &[offered(8)])[0];
        assert!((outcome.rate_bps - 10e6).abs() < 1.0);
        assert!(outcome.source_empty > 0.9);
    }
}
