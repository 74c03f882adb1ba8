//! Transfers with controllers, in intervals of half a second.

use penstock_random::Random;
use penstock_tuner::{
    MemberSample, Parallelism, PipelineStage, QueueShares, SharedController, SharedDecision,
    TcpDifferences, TransferController, TunerDecision, TunerSample,
};

use crate::path::{IntervalOutcome, Offered, PathModel, share};
use crate::scenario::{ModelScenario, PathSegment};

/// Length of an interval.
pub(crate) const INTERVAL_US: u64 = 500_000;

const SEGMENT_BYTES: f64 = 1448.0;

/// Transfer of a run.
pub struct ModelTransfer {
    /// Controller of the transfer.
    pub controller: Box<dyn TransferController>,
    /// Settings before the first decision.
    pub start: Parallelism,
    /// Interval in which it begins, and the one in which it has left.
    pub from_interval: usize,
    /// First interval without it.
    pub to_interval: usize,
}

impl std::fmt::Debug for ModelTransfer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelTransfer").field("controller", &self.controller.name()).finish()
    }
}

/// Record of one transfer.
#[derive(Debug, Clone, Default)]
pub struct TransferTrace {
    /// Interval of the first entry.
    pub from_interval: usize,
    /// True rate of each interval, without measurement noise.
    pub rate_bps: Vec<f64>,
    /// Settings of each interval.
    pub workers: Vec<Parallelism>,
    /// Sample and decision of each interval.
    pub steps: Vec<(TunerSample, TunerDecision)>,
}

impl TransferTrace {
    /// Mean of the true rate over intervals of the trace.
    #[must_use]
    pub fn mean_bps(&self, range: std::ops::Range<usize>) -> f64 {
        let range = range.start.min(self.rate_bps.len())..range.end.min(self.rate_bps.len());
        let part = &self.rate_bps[range];
        part.iter().sum::<f64>() / part.len().max(1) as f64
    }
}

struct ModelRun {
    transfer: ModelTransfer,
    target: Parallelism,
    /// Most bits per second of each stream.
    pace_bps: f64,
    active: Parallelism,
    /// Intervals during which the newest streams have half their rate, and their number.
    ramp: (u64, f64),
    noise: Random,
    last_noise: f64,
    trace: TransferTrace,
}

/// Runs transfers over the path of a scenario; equal seeds give equal traces.
#[must_use]
pub fn run(
    scenario: &ModelScenario,
    transfers: Vec<ModelTransfer>,
    seed: u64,
) -> Vec<TransferTrace> {
    run_with(scenario, transfers, None, seed)
}

/// Runs transfers of one host under a common controller instead of their own.
#[must_use]
pub(crate) fn run_with(
    scenario: &ModelScenario,
    transfers: Vec<ModelTransfer>,
    mut together: Option<SharedController>,
    seed: u64,
) -> Vec<TransferTrace> {
    let mut all: Vec<ModelRun> = transfers
        .into_iter()
        .enumerate()
        .map(|(at, transfer)| ModelRun {
            target: transfer.start,
            pace_bps: f64::INFINITY,
            active: transfer.start,
            ramp: (0, 0.0),
            noise: Random::stream(seed, "transfer noise", at as u64),
            last_noise: 0.0,
            trace: TransferTrace { from_interval: transfer.from_interval, ..Default::default() },
            transfer,
        })
        .collect();
    for interval in 0..scenario.intervals {
        let path = segment_at(&scenario.segments, interval);
        let is_on = |one: &ModelRun| {
            (one.transfer.from_interval..one.transfer.to_interval).contains(&interval)
        };
        let mut live: Vec<&mut ModelRun> = all.iter_mut().filter(|one| is_on(one)).collect();
        let offered: Vec<Offered> = live.iter_mut().map(|one| one.offer(path)).collect();
        let outcomes = share(path, &offered);
        let samples: Vec<TunerSample> = live
            .iter_mut()
            .zip(&outcomes)
            .map(|(one, outcome)| one.measure(path, outcome))
            .collect();
        let members: Vec<MemberSample> = samples
            .iter()
            .zip(&live)
            .map(|(sample, one)| MemberSample {
                sample: *sample,
                default: one.transfer.start,
                max: scenario.limits.max.with(PipelineStage::Streams, u16::MAX),
            })
            .collect();
        let common = together.as_mut().and_then(|together| together.observe(&members));
        for (at, ((one, sample), outcome)) in
            live.into_iter().zip(samples).zip(outcomes).enumerate()
        {
            let decision = match &common {
                Some(SharedDecision { decision, workers }) => {
                    TunerDecision { target: workers[at], ..*decision }
                }
                None => one.transfer.controller.observe(&sample),
            };
            one.record(outcome.rate_bps, sample, decision);
        }
    }
    all.into_iter().map(|one| one.trace).collect()
}

/// Path during an interval.
pub(crate) fn segment_at(segments: &[PathSegment], interval: usize) -> &PathModel {
    let mut started = segments.iter().filter(|segment| segment.from_interval <= interval);
    &started.next_back().or(segments.first()).expect("a scenario has a segment").path
}

impl ModelRun {
    /// Streams of this interval: new ones connect during its first half, then ramp up for ten round trips.
    fn offer(&mut self, path: &PathModel) -> Offered {
        let (before, now) = (f64::from(self.active.streams), f64::from(self.target.streams));
        let added = (now - before).max(0.0);
        if added > 0.0 {
            self.ramp = (u64::from(path.rtt_us) * 10 / INTERVAL_US, added);
        } else if now < before {
            self.ramp = (0, 0.0);
        }
        let slow = if added > 0.0 {
            added / 2.0
        } else if self.ramp.0 > 0 {
            self.ramp.0 -= 1;
            self.ramp.1 / 2.0
        } else {
            0.0
        };
        self.active = self.target;
        Offered { workers: self.active, streams: now - slow, pace_bps: self.pace_bps }
    }

    fn measure(&mut self, path: &PathModel, outcome: &IntervalOutcome) -> TunerSample {
        // A sum of twelve uniform numbers is near enough to a normal one, and the same on every machine.
        let fresh: f64 = (0..12).map(|_| self.noise.unit()).sum::<f64>() - 6.0;
        let kept = path.noise_correlation;
        self.last_noise = kept * self.last_noise + (1.0 - kept * kept).sqrt() * fresh;
        self.sample(path, outcome, outcome.rate_bps * (path.noise * self.last_noise).exp())
    }

    fn record(&mut self, rate_bps: f64, sample: TunerSample, decision: TunerDecision) {
        self.trace.rate_bps.push(rate_bps);
        self.trace.workers.push(self.active);
        self.trace.steps.push((sample, decision));
        self.target = decision.target;
        self.pace_bps = decision.stream_pacing_bps.map_or(f64::INFINITY, |rate| rate as f64);
    }

    fn sample(&self, path: &PathModel, outcome: &IntervalOutcome, measured: f64) -> TunerSample {
        let bytes = measured * INTERVAL_US as f64 / 8e6;
        let segments = bytes / SEGMENT_BYTES;
        TunerSample {
            interval_us: INTERVAL_US,
            bytes: bytes as u64,
            active: self.active,
            tcp: TcpDifferences {
                delivery_rate_bps: Some(measured as u64),
                busy_us: Some(INTERVAL_US * u64::from(self.active.streams)),
                sent_segments: Some(segments as u64),
                retransmitted_segments: (segments * outcome.loss) as u64,
                rtt_us: Some(outcome.rtt_us as u32),
                rtt_min_us: Some(path.rtt_us),
                ..TcpDifferences::default()
            },
            queues: QueueShares {
                source_empty: outcome.source_empty,
                destination_full: outcome.destination_full,
                rate_limit: outcome.rate_limit,
            },
            sender_cpu: outcome.cpu,
            receiver_cpu: 0.1,
        }
    }
}
