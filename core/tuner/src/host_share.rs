//! One search for all transfers of a host over one path, and equal shares of what it finds.
//!
//! Transfers that search alone each see a share of the link that grows with their streams, and none sees what the link
//! needs. Their sum behaves as one transfer does. Streams are those of all together; readers and writers those of each, of at
//! most as many together as one transfer may have.

use crate::TransferController;
use crate::knee::{KneeController, WarmStart};
use crate::parallelism::{Parallelism, PipelineStage, TuningLimits};
use crate::reason::TunerDecision;
use crate::sample::{QueueShares, TcpDifferences, TunerSample};

/// Sample of a transfer that shares a search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MemberSample {
    /// Measurements of the interval.
    pub sample: TunerSample,
    /// Workers of the transfer without a search.
    pub default: Parallelism,
    /// Most workers that the transfer may have alone; those of the default at a stage that keeps them.
    pub max: Parallelism,
}

/// Decision of a shared search.
#[derive(Debug, Clone, PartialEq)]
pub struct SharedDecision {
    /// Streams of all transfers together, readers and writers of each, and the reason.
    pub decision: TunerDecision,
    /// Workers of each transfer, in the order of the samples.
    pub workers: Vec<Parallelism>,
}

/// Controller of the transfers of one host over one path. Its limits are their budget of streams.
#[derive(Debug, Clone)]
pub struct SharedController {
    search: KneeController,
    budget: TuningLimits,
    grouping: Grouping,
}

/// Transfers and budget of an interval.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Grouping {
    /// Most streams of each transfer.
    caps: Vec<u16>,
    /// Sum of the default streams.
    default: u16,
    budget: u16,
    /// Fewest and most readers, and writers, of each transfer.
    threads: [(u16, u16); 2],
}

/// Stages whose workers are those of each transfer.
const THREAD_STAGES: [PipelineStage; 2] = [PipelineStage::Readers, PipelineStage::Writers];

/// Range of the workers of a stage at each transfer whose request leaves them open: the default, and its part of what one may
/// have.
fn thread_range(members: &[MemberSample], stage: PipelineStage) -> (u16, u16) {
    let open = || members.iter().filter(|one| one.max.at(stage) > one.default.at(stage));
    let default = |member: &MemberSample| member.default.at(stage);
    let Some(low) = open().map(default).max() else { return (1, 1) };
    let most = open().map(|one| one.max.at(stage)).min().unwrap_or(low);
    let count = u16::try_from(members.len()).unwrap_or(u16::MAX);
    (low, (most / count).max(low))
}

impl SharedController {
    /// Creates a controller without transfers; `start` is that of the first.
    #[must_use]
    pub fn new(start: impl Into<WarmStart>, budget: TuningLimits) -> Self {
        Self { search: KneeController::new(start, budget), budget, grouping: Grouping::default() }
    }

    /// Changes the budget; the next decision obeys it, but for one stream of each transfer.
    pub fn set_budget(&mut self, streams_max: u16) {
        self.budget.max.streams = streams_max.max(1);
    }

    /// Streams of all transfers together that the last decision asked for.
    #[must_use]
    pub fn streams(&self) -> u16 {
        self.search.target().streams
    }

    /// Takes the samples of one interval, one for each transfer, and divides the streams that the search asks for equally
    /// among them. A transfer joins or leaves by its sample.
    ///
    /// The number of each is rounded up where the budget allows it; with more transfers than streams in the budget each
    /// has one.
    pub fn observe(&mut self, members: &[MemberSample]) -> Option<SharedDecision> {
        let together = sum(members)?;
        let grouping = Grouping {
            caps: members.iter().map(|member| member.max.streams.max(1)).collect(),
            default: members
                .iter()
                .fold(0, |sum, member| sum.saturating_add(member.default.streams)),
            budget: self.budget.max.streams,
            threads: THREAD_STAGES.map(|stage| thread_range(members, stage)),
        };
        if grouping != self.grouping {
            self.regroup(grouping);
        }
        let decision = self.search.observe(&together);
        let Grouping { caps, budget, .. } = &self.grouping;
        let streams = divide(decision.target.streams, *budget, caps);
        // The division may give more or less than the search asked for: its next sample must agree.
        let given = total(&streams);
        self.search.accept_streams(given);
        let target = decision.target.with(PipelineStage::Streams, given);
        let workers = members.iter().zip(streams).map(|(member, streams)| {
            let of_request = TuningLimits { min: member.default, max: member.max };
            of_request.clamp(target).with(PipelineStage::Streams, streams)
        });
        let workers = workers.collect();
        Some(SharedDecision { decision: TunerDecision { target, ..decision }, workers })
    }

    /// Adapts the search to other transfers or another budget. The sum keeps its streams where they are at least the
    /// defaults together, or where the search has found fewer to be enough.
    fn regroup(&mut self, next: Grouping) {
        let Grouping { caps, default, budget, threads } = &next;
        let members = u16::try_from(caps.len()).unwrap_or(u16::MAX);
        let now = self.search.target();
        let is_default_at_least = now.streams >= self.grouping.default;
        let wanted = if is_default_at_least { now.streams.max(*default) } else { now.streams };
        let most = total(&divide(u16::MAX, *budget, caps));
        let mut limits = TuningLimits {
            min: Parallelism::streams(members.min(most)),
            max: Parallelism::streams(most),
        };
        for (stage, (low, high)) in THREAD_STAGES.into_iter().zip(*threads) {
            limits.min = limits.min.with(stage, low);
            limits.max = limits.max.with(stage, high);
        }
        let streams = total(&divide(wanted, *budget, caps));
        let floor = limits.min.with(PipelineStage::Streams, *default);
        self.search.regroup(limits, floor, streams, members);
        self.grouping = next;
    }
}

fn total(streams: &[u16]) -> u16 {
    streams.iter().fold(0, |sum, one| sum.saturating_add(*one))
}

/// Divides `wanted` streams equally, each at most its cap: rounded up unless that exceeds the budget, and at least one.
fn divide(wanted: u16, budget: u16, caps: &[u16]) -> Vec<u16> {
    let at = |level: u16| caps.iter().map(|cap| level.min(*cap)).collect::<Vec<u16>>();
    let most = caps.iter().copied().max().unwrap_or(1);
    let (mut low, mut high) = (1, most);
    // Smallest level that gives as many as are wanted.
    while low < high {
        let middle = low + (high - low) / 2;
        if total(&at(middle)) >= wanted { high = middle } else { low = middle + 1 }
    }
    let mut level = low;
    while level > 1 && total(&at(level)) > budget {
        level -= 1;
    }
    at(level)
}

/// Streams that a search of a host asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamsDemand {
    /// Transfers that share the search.
    pub transfers: u16,
    /// Streams of these transfers together, with room for a larger step.
    pub wanted: u16,
}

/// Shares a budget of streams among the searches of a host, by max-min fairness with their transfers as weights: one
/// stream for each transfer, then up to what each search wants, then the rest.
#[must_use]
pub fn share_budget(budget: u16, demands: &[StreamsDemand]) -> Vec<u16> {
    let mut shares: Vec<u16> = demands.iter().map(|one| one.transfers).collect();
    let mut left = budget.saturating_sub(total(&shares));
    for is_rest in [false, true] {
        while left > 0 {
            let open =
                demands.iter().enumerate().filter(|(at, one)| is_rest || shares[*at] < one.wanted);
            // Compared by cross multiplication: shares for each transfer.
            let poorest = open.min_by(|(a, one), (b, other)| {
                let left = u32::from(shares[*a]) * u32::from(other.transfers.max(1));
                left.cmp(&(u32::from(shares[*b]) * u32::from(one.transfers.max(1))))
            });
            let Some((at, _)) = poorest else { break };
            shares[at] += 1;
            left -= 1;
        }
    }
    shares
}

/// Sum of the samples of one interval, which may differ a little in length.
fn sum(members: &[MemberSample]) -> Option<TunerSample> {
    let first = members.first()?.sample;
    let samples = || members.iter().map(|member| &member.sample);
    let total = |value: fn(&TunerSample) -> u64| samples().map(value).fold(0, u64::saturating_add);
    let optional = |value: fn(&TcpDifferences) -> Option<u64>| {
        samples()
            .map(|sample| value(&sample.tcp))
            .try_fold(0, |sum: u64, one| one.map(|one| sum.saturating_add(one)))
    };
    let count = members.len() as f64;
    let mean = |value: fn(&TunerSample) -> f64| samples().map(value).sum::<f64>() / count;
    let most = |value: fn(&TunerSample) -> f64| samples().map(value).fold(0.0, f64::max);
    let streams = total(|sample| u64::from(sample.active.streams));
    let interval_us = first.interval_us.max(1);
    let bytes: f64 = samples().map(|one| one.rate_bps() / 8e6 * interval_us as f64).sum();
    Some(TunerSample {
        interval_us,
        bytes: bytes.round() as u64,
        active: first
            .active
            .with(PipelineStage::Streams, u16::try_from(streams).unwrap_or(u16::MAX)),
        tcp: TcpDifferences {
            delivery_rate_bps: optional(|tcp| tcp.delivery_rate_bps),
            busy_us: optional(|tcp| tcp.busy_us),
            rwnd_limited_us: total(|sample| sample.tcp.rwnd_limited_us),
            sndbuf_limited_us: total(|sample| sample.tcp.sndbuf_limited_us),
            sent_segments: optional(|tcp| tcp.sent_segments),
            retransmitted_segments: total(|sample| sample.tcp.retransmitted_segments),
            rtt_us: samples().filter_map(|sample| sample.tcp.rtt_us).max(),
            rtt_min_us: samples().filter_map(|sample| sample.tcp.rtt_min_us).min(),
            delivered_ce: total(|sample| sample.tcp.delivered_ce),
        },
        queues: QueueShares {
            source_empty: mean(|sample| sample.queues.source_empty),
            destination_full: mean(|sample| sample.queues.destination_full),
            rate_limit: mean(|sample| sample.queues.rate_limit),
        },
        sender_cpu: most(|sample| sample.sender_cpu),
        receiver_cpu: most(|sample| sample.receiver_cpu),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn division_is_equal_within_budget() {
        assert_eq!(divide(10, 64, &[64, 64, 64]), [4, 4, 4]);
        assert_eq!(divide(10, 10, &[64, 64, 64]), [3, 3, 3]);
        assert_eq!(divide(16, 64, &[2, 64]), [2, 14]);
        assert_eq!(divide(1, 2, &[8, 8, 8]), [1, 1, 1]);
        assert_eq!(divide(u16::MAX, 24, &[64, 4]), [20, 4]);
    }

    #[test]
    fn budget_is_shared_by_transfers() {
        let demand = |transfers, wanted| StreamsDemand { transfers, wanted };
        // Who wants little leaves the rest to others, and what none wants is divided.
        assert_eq!(share_budget(24, &[demand(1, 40), demand(1, 4)]), [20, 4]);
        assert_eq!(share_budget(24, &[demand(3, 90), demand(1, 90)]), [18, 6]);
        assert_eq!(share_budget(24, &[demand(1, 4), demand(1, 4)]), [12, 12]);
        assert_eq!(share_budget(2, &[demand(3, 9), demand(1, 9)]), [3, 1]);
        assert_eq!(share_budget(2, &[]), Vec::<u16>::new());
    }

    #[test]
    fn joining_transfer_brings_default() {
        let limits = TuningLimits::streams_up_to(12, Parallelism::streams(2));
        let mut shared = SharedController::new(Parallelism::streams(2), limits);
        let member = |streams: u16, streams_max| MemberSample {
            sample: TunerSample {
                interval_us: 500_000,
                bytes: u64::from(streams) * 500_000,
                active: Parallelism::streams(streams),
                tcp: TcpDifferences::default(),
                queues: QueueShares::default(),
                sender_cpu: 0.0,
                receiver_cpu: 0.0,
            },
            default: Parallelism::streams(2),
            max: Parallelism::streams(streams_max),
        };
        let mut streams = vec![2];
        let run = |streams: &mut Vec<u16>, shared: &mut SharedController| {
            for _ in 0..40 {
                let members: Vec<_> = streams.iter().map(|one| member(*one, 64)).collect();
                let workers = shared.observe(&members).unwrap().workers;
                *streams = workers.iter().map(|one| one.streams).collect();
                assert!(total(streams) <= 12, "{streams:?}");
            }
        };
        run(&mut streams, &mut shared);
        assert_eq!(streams, [12], "each stream gains");
        streams.push(2);
        run(&mut streams, &mut shared);
        assert_eq!(streams, [6, 6]);
        streams.extend([2, 2, 2]);
        run(&mut streams, &mut shared);
        assert_eq!(streams, [2; 5], "twelve is no multiple of five");
    }

    /// Transfers that read one disk: each read has 10 Mb/s, and all together 400.
    fn read_shared_disk(named: &[Option<u16>]) -> (Vec<u16>, Vec<f64>) {
        let (default, max) = (2, 32);
        let of = |readers| Parallelism { readers, ..Parallelism::streams(4) };
        let limits = TuningLimits::streams_up_to(64, of(default));
        let mut shared = SharedController::new(of(default), limits);
        let mut readers: Vec<u16> = named.iter().map(|one| one.unwrap_or(default)).collect();
        let mut rates = Vec::new();
        for _ in 0..120 {
            let wanted: f64 = readers.iter().map(|one| f64::from(*one) * 10e6).sum();
            let share = (400e6 / wanted).min(1.0);
            rates = readers.iter().map(|one| f64::from(*one) * 10e6 * share).collect();
            let members: Vec<MemberSample> = (0..readers.len())
                .map(|at| MemberSample {
                    sample: TunerSample {
                        interval_us: 500_000,
                        bytes: (rates[at] / 16.0) as u64,
                        active: of(readers[at]),
                        tcp: TcpDifferences::default(),
                        queues: QueueShares { source_empty: 0.8, ..QueueShares::default() },
                        sender_cpu: 0.1,
                        receiver_cpu: 0.1,
                    },
                    default: of(named[at].unwrap_or(default)),
                    max: Parallelism { streams: 64, ..of(named[at].unwrap_or(max)) },
                })
                .collect();
            let workers = shared.observe(&members).unwrap().workers;
            assert!(workers.iter().all(|one| one.streams == 4), "streams gain nothing");
            readers = workers.iter().map(|one| one.readers).collect();
        }
        (readers, rates)
    }

    #[test]
    fn transfers_share_readers_of_disk() {
        for transfers in 1..=4_u16 {
            let (readers, rates) = read_shared_disk(&vec![None; transfers.into()]);
            let most = 32 / transfers;
            assert!(readers.iter().all(|one| *one == readers[0]), "{readers:?}");
            assert!((most * 9 / 10..=most).contains(&readers[0]), "{transfers}: {readers:?}");
            assert!(rates.iter().sum::<f64>() >= 280e6, "{transfers}: {rates:?}");
        }
        // Readers of a request stay, and others get their part.
        let (readers, _) = read_shared_disk(&[Some(5), None]);
        assert_eq!(readers[0], 5);
        assert!((14..=16).contains(&readers[1]), "{readers:?}");
    }
}
