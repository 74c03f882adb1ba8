//! Metrics of a simulation: rates of classes over time, fairness, durations.

use std::collections::{BTreeMap, BTreeSet};

use penstock_control::class::WorkClass;
use penstock_control::scheduler::{RoundDecision, Snapshot};

/// Length of a point of the series in seconds.
pub const POINT_S: u32 = 300;

/// Returns Jain's fairness index (Jain, Chiu and Hawe 1984) of shares per weight: 1 if all are equal, 1/n if one has
/// everything; none if all are zero.
#[must_use]
pub fn jain(shares: &[f64]) -> Option<f64> {
    let (sum, squares) =
        shares.iter().fold((0.0, 0.0), |(sum, squares), x| (sum + x, squares + x * x));
    (squares > 0.0).then(|| sum * sum / (shares.len() as f64 * squares))
}

/// Samples of durations in seconds.
#[derive(Debug, Clone, Default)]
pub struct DurationSamples(Vec<f32>);

impl DurationSamples {
    /// Adds a sample, in seconds.
    pub fn record(&mut self, seconds: f64) {
        self.0.push(seconds as f32);
    }

    /// Returns the number of samples.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the smallest sample that at least this fraction does not exceed; none without samples.
    #[must_use]
    pub fn quantile(&self, part: f64) -> Option<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f32::total_cmp);
        let at = (sorted.len() as f64 * part).ceil() as usize;
        sorted.get(at.saturating_sub(1)).map(|time| f64::from(*time))
    }
}

/// Metrics of a class over one point.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ClassPoint {
    /// Mean allotted rate in bits per second.
    pub allotted_bps: f64,
    /// Queued bytes at the end of the point.
    pub waiting_bytes: u64,
}

/// Metrics over one point.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SeriesPoint {
    /// Start in seconds of the day.
    pub second: u32,
    /// Metrics of each class.
    pub classes: BTreeMap<String, ClassPoint>,
    /// Running transfers at the end of the point.
    pub runs: usize,
    /// Jain's index of allotted bytes per weight, over the classes with queued work throughout the point; none with
    /// fewer than two.
    pub jain: Option<f64>,
}

/// Collects metrics of rounds.
#[derive(Debug)]
pub struct SimulationMetrics {
    weights: BTreeMap<String, f64>,
    points: Vec<SeriesPoint>,
    /// Of the current point: number of rounds, sums of rates, and classes with queued work in every round.
    rounds: u32,
    sums: BTreeMap<String, f64>,
    waiting: BTreeSet<String>,
    /// Allotted bytes per weight by class, over the points in which all classes competed.
    contended: BTreeMap<String, f64>,
    /// Durations of all rounds.
    pub round_times: DurationSamples,
    /// Most concurrent transfers, and most queued batches.
    pub most: (usize, u64),
}

impl SimulationMetrics {
    /// Creates a collector for these classes.
    #[must_use]
    pub fn new(classes: &[WorkClass]) -> Self {
        let weights =
            classes.iter().map(|class| (class.name.clone(), f64::from(class.weight))).collect();
        Self {
            weights,
            points: Vec::new(),
            rounds: 0,
            sums: BTreeMap::new(),
            waiting: BTreeSet::new(),
            contended: BTreeMap::new(),
            round_times: DurationSamples::default(),
            most: (0, 0),
        }
    }

    /// Records a round at this second of the day, which took `took` seconds.
    pub fn round(&mut self, second: u32, snapshot: &Snapshot, decision: &RoundDecision, took: f64) {
        self.round_times.record(took);
        let batches = snapshot.queues.iter().map(|queue| queue.batches).sum();
        self.most = (self.most.0.max(snapshot.runs.len()), self.most.1.max(batches));
        let begin = second - second % POINT_S;
        if self.points.last().is_none_or(|point| point.second != begin) {
            self.finish();
            self.points.push(SeriesPoint { second: begin, ..SeriesPoint::default() });
            self.waiting = self.weights.keys().cloned().collect();
        }
        self.rounds += 1;
        for (class, (allotted, _)) in &decision.classes {
            *self.sums.entry(class.clone()).or_default() += *allotted as f64;
        }
        let mut bytes: BTreeMap<&str, u64> = BTreeMap::new();
        for queue in &snapshot.queues {
            *bytes.entry(&queue.class).or_default() += queue.bytes;
        }
        self.waiting.retain(|class| bytes.contains_key(class.as_str()));
        let point = self.points.last_mut().expect("there is one");
        point.runs = snapshot.runs.len();
        for class in self.weights.keys() {
            let entry = point.classes.entry(class.clone()).or_default();
            entry.waiting_bytes = bytes.get(class.as_str()).copied().unwrap_or(0);
        }
    }

    fn finish(&mut self) {
        let rounds = f64::from(std::mem::take(&mut self.rounds));
        if rounds == 0.0 {
            return;
        }
        let sums = std::mem::take(&mut self.sums);
        let Some(point) = self.points.last_mut() else { return };
        for (class, sum) in &sums {
            point.classes.entry(class.clone()).or_default().allotted_bps = sum / rounds;
        }
        if self.waiting.len() < 2 {
            return;
        }
        let share = |class: &String| {
            sums.get(class).copied().unwrap_or(0.0)
                / self.weights.get(class).copied().unwrap_or(1.0)
        };
        let shares: Vec<f64> = self.waiting.iter().map(share).collect();
        point.jain = jain(&shares);
        // The index over the day counts points in which all classes compete.
        if self.waiting.len() == self.weights.len() {
            for (class, share) in self.waiting.iter().zip(shares) {
                *self.contended.entry(class.clone()).or_default() += share;
            }
        }
    }

    /// Returns all points, the current one included.
    pub fn points(&mut self) -> &[SeriesPoint] {
        self.finish();
        &self.points
    }

    /// Returns Jain's index of bytes per weight over the points in which every class had queued work throughout.
    #[must_use]
    pub fn fairness(&self) -> Option<f64> {
        jain(&self.contended.values().copied().collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jain_index_equals_paper() {
        assert_eq!(jain(&[1.0, 1.0, 1.0, 1.0]), Some(1.0));
        assert_eq!(jain(&[1.0, 0.0, 0.0, 0.0]), Some(0.25));
        assert_eq!(jain(&[0.0]), None);
        // Half of them share everything.
        assert_eq!(jain(&[2.0, 2.0, 0.0, 0.0]), Some(0.5));
    }

    #[test]
    fn quantiles_are_recorded_samples() {
        let mut times = DurationSamples::default();
        assert_eq!(times.quantile(0.5), None);
        (1..=100).for_each(|n| times.record(f64::from(n)));
        assert_eq!((times.quantile(0.5), times.quantile(0.99)), (Some(50.0), Some(99.0)));
        assert_eq!((times.quantile(0.0), times.quantile(1.0)), (Some(1.0), Some(100.0)));
    }
}
