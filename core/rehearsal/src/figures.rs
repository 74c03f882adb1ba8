//! What came of a rehearsal: rates of classes by the minute, fairness, times.

use std::collections::{BTreeMap, BTreeSet};

use penstock_operations::class::Class;
use penstock_operations::round::{Decision, Snapshot};

/// Seconds of a point of the series.
pub const POINT_S: u32 = 300;

/// Jain's index of what each has for its weight (Jain, Chiu and Hawe 1984): 1 where all have the same, 1/n where one
/// has everything; none where nobody has anything.
#[must_use]
pub fn jain(shares: &[f64]) -> Option<f64> {
    let (sum, squares) =
        shares.iter().fold((0.0, 0.0), |(sum, squares), x| (sum + x, squares + x * x));
    (squares > 0.0).then(|| sum * sum / (shares.len() as f64 * squares))
}

/// Times, of which quantiles are asked.
#[derive(Debug, Clone, Default)]
pub struct Times(Vec<f32>);

impl Times {
    /// One more.
    pub fn note(&mut self, seconds: f64) {
        self.0.push(seconds as f32);
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The time that this part of all does not exceed; none without times.
    #[must_use]
    pub fn quantile(&self, part: f64) -> Option<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f32::total_cmp);
        let at = (sorted.len() as f64 * part).ceil() as usize;
        sorted.get(at.saturating_sub(1)).map(|time| f64::from(*time))
    }
}

/// One class over the time of a point.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ClassPoint {
    /// Mean of what it was allotted, in bits per second.
    pub allotted_bps: f64,
    /// Bytes that wait, at the end.
    pub waiting_bytes: u64,
}

/// Everything over the time of a point.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Point {
    /// When it begins, in seconds of the day.
    pub second: u32,
    /// By class.
    pub classes: BTreeMap<String, ClassPoint>,
    /// Transfers that run, at the end.
    pub runs: usize,
    /// Jain's index of bytes allotted for weights, over the classes that had work waiting all the time; none where
    /// fewer than two had.
    pub jain: Option<f64>,
}

/// What is noted of each round.
#[derive(Debug)]
pub struct Figures {
    weights: BTreeMap<String, f64>,
    points: Vec<Point>,
    /// Of the point that is not finished: rounds, sums of rates, and classes that waited in each round.
    rounds: u32,
    sums: BTreeMap<String, f64>,
    waiting: BTreeSet<String>,
    /// Of all points with an index: bytes for weight, by class.
    contended: BTreeMap<String, f64>,
    /// How long rounds took.
    pub round_times: Times,
    /// Most transfers at once, and most batches that waited.
    pub most: (usize, u64),
}

impl Figures {
    /// For these classes.
    #[must_use]
    pub fn new(classes: &[Class]) -> Self {
        let weights =
            classes.iter().map(|class| (class.name.clone(), f64::from(class.weight))).collect();
        Self {
            weights,
            points: Vec::new(),
            rounds: 0,
            sums: BTreeMap::new(),
            waiting: BTreeSet::new(),
            contended: BTreeMap::new(),
            round_times: Times::default(),
            most: (0, 0),
        }
    }

    /// Notes a round at this second, which took so long.
    pub fn round(&mut self, second: u32, snapshot: &Snapshot, decision: &Decision, took: f64) {
        self.round_times.note(took);
        let batches = snapshot.queues.iter().map(|queue| queue.batches).sum();
        self.most = (self.most.0.max(snapshot.runs.len()), self.most.1.max(batches));
        let begin = second - second % POINT_S;
        if self.points.last().is_none_or(|point| point.second != begin) {
            self.finish();
            self.points.push(Point { second: begin, ..Point::default() });
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
        // Over the day: where all classes compete.
        if self.waiting.len() == self.weights.len() {
            for (class, share) in self.waiting.iter().zip(shares) {
                *self.contended.entry(class.clone()).or_default() += share;
            }
        }
    }

    /// All points.
    pub fn points(&mut self) -> &[Point] {
        self.finish();
        &self.points
    }

    /// Jain's index of what classes had for their weights over all the time in which each of them had work waiting.
    #[must_use]
    pub fn fairness(&self) -> Option<f64> {
        jain(&self.contended.values().copied().collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jains_index_is_that_of_the_paper() {
        assert_eq!(jain(&[1.0, 1.0, 1.0, 1.0]), Some(1.0));
        assert_eq!(jain(&[1.0, 0.0, 0.0, 0.0]), Some(0.25));
        assert_eq!(jain(&[0.0]), None);
        // Half of them share everything: one half.
        assert_eq!(jain(&[2.0, 2.0, 0.0, 0.0]), Some(0.5));
    }

    #[test]
    fn quantiles_are_times_that_were_noted() {
        let mut times = Times::default();
        assert_eq!(times.quantile(0.5), None);
        (1..=100).for_each(|n| times.note(f64::from(n)));
        assert_eq!((times.quantile(0.5), times.quantile(0.99)), (Some(50.0), Some(99.0)));
        assert_eq!((times.quantile(0.0), times.quantile(1.0)), (Some(1.0), Some(100.0)));
    }
}
