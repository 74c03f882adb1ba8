//! Rate level at one setting, and the noise of samples.

use crate::bottleneck::is_congested;
use crate::sample::TunerSample;

/// Standard deviation of the logarithm of a sample before the first measurement.
const SIGMA_INITIAL: f64 = 0.05;

/// Bounds of the estimate: below, the noise of counters; above, the rate says nothing.
const SIGMA_RANGE: std::ops::RangeInclusive<f64> = 0.01..=0.5;

/// Weight of a new difference in the estimate.
const SIGMA_GAIN: f64 = 0.1;

/// Smallest fall within a level, as a logarithm, that counts as one.
const FALL_MIN: f64 = 0.08;

/// Smallest rise within a level, as a logarithm, that no noise explains: by a quarter.
const JUMP_MIN: f64 = 0.22;

/// Share of time from which waiting for a rate limit is beyond noise.
const LIMITED_SHARE_CLEAR: f64 = 0.1;

/// Logarithm of a sample's rate; finite for an idle interval, too.
pub(crate) fn log_rate(sample: &TunerSample) -> f64 {
    sample.rate_bps().max(1.0).ln()
}

/// Mean of the logarithm of the rate over the samples of one setting.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct RateLevel {
    pub(crate) workers: u16,
    sum: f64,
    count: u32,
    congested: u32,
    /// Sum of the shares of time in which streams waited for the rate limit.
    limited: f64,
    /// Segments sent, and retransmitted.
    segments: (u64, u64),
    first: f64,
    last: f64,
}

impl RateLevel {
    pub(crate) fn at(workers: u16) -> Self {
        Self { workers, ..Self::default() }
    }

    pub(crate) fn add(&mut self, sample: &TunerSample) {
        self.last = log_rate(sample);
        if self.count == 0 {
            self.first = self.last;
        }
        self.sum += self.last;
        self.count += 1;
        self.congested += u32::from(is_congested(sample));
        self.limited += sample.queues.rate_limit;
        self.add_segments(sample.sent_segments(), sample.tcp.retransmitted_segments);
    }

    fn add_segments(&mut self, sent: u64, retransmitted: u64) {
        self.segments.0 = self.segments.0.saturating_add(sent);
        self.segments.1 = self.segments.1.saturating_add(retransmitted);
    }

    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    pub(crate) fn mean(&self) -> f64 {
        self.sum / f64::from(self.count.max(1))
    }

    /// True if its samples end well below where they begin.
    pub(crate) fn is_falling(&self, sigma: f64) -> bool {
        self.last - self.first < -FALL_MIN.max(3.0 * sigma)
    }

    /// True if its samples end far above where they begin: the path has changed meanwhile.
    pub(crate) fn is_jumping(&self, sigma: f64) -> bool {
        self.last - self.first > JUMP_MIN.max(4.0 * sigma)
    }

    /// Rate of the level in bits per second.
    pub(crate) fn rate_bps(&self) -> f64 {
        self.mean().exp()
    }

    /// True if most of its samples show congestion.
    pub(crate) fn is_congested(&self) -> bool {
        self.congested * 2 > self.count
    }

    pub(crate) fn lost_segments(&self) -> u64 {
        self.segments.1
    }

    /// Share of the sent segments that were retransmitted.
    pub(crate) fn loss_share(&self) -> f64 {
        let (sent, retransmitted) = self.segments;
        retransmitted as f64 / sent.max(1) as f64
    }

    /// Mean share of time in which streams waited for the rate limit.
    pub(crate) fn limited_share(&self) -> f64 {
        self.limited / f64::from(self.count.max(1))
    }

    /// True if its streams reach a rate limit with time to spare.
    pub(crate) fn is_limited(&self) -> bool {
        self.limited_share() >= LIMITED_SHARE_CLEAR
    }

    /// Streams that do not wait for the rate limit: as many reach it, if more for each is not to be had.
    pub(crate) fn busy_streams(&self) -> f64 {
        f64::from(self.workers) * (1.0 - self.limited_share())
    }

    /// The level for another number of workers, which had the same rate.
    pub(crate) fn of_workers(mut self, workers: u16) -> Self {
        self.workers = workers;
        self
    }

    /// Both levels together, of the same setting.
    pub(crate) fn joined(mut self, other: &Self) -> Self {
        self.sum += other.sum;
        self.count += other.count;
        self.congested += other.congested;
        self.limited += other.limited;
        self.add_segments(other.segments.0, other.segments.1);
        self
    }

    /// Standard error of the difference to another level.
    pub(crate) fn error_of_difference(&self, other: &Self, sigma: f64) -> f64 {
        let variance = |level: &Self| 1.0 / f64::from(level.count.max(1));
        sigma * (variance(self) + variance(other)).sqrt()
    }
}

/// Estimate of the noise from differences of consecutive samples at one setting.
#[derive(Debug, Clone)]
pub(crate) struct NoiseMeter {
    variance: f64,
    last: Option<f64>,
}

impl Default for NoiseMeter {
    fn default() -> Self {
        Self { variance: SIGMA_INITIAL * SIGMA_INITIAL, last: None }
    }
}

impl NoiseMeter {
    pub(crate) fn add(&mut self, sample: &TunerSample) {
        let now = log_rate(sample);
        if let Some(last) = self.last.replace(now) {
            // A step is no noise: it counts at most as four deviations.
            let half = ((now - last).powi(2) / 2.0).min(16.0 * self.variance);
            self.variance += SIGMA_GAIN * (half - self.variance);
        }
    }

    /// Takes the deviation of a sample from a level: unlike differences, it shows noise that is correlated.
    pub(crate) fn add_deviation(&mut self, deviation: f64) {
        let square = deviation.powi(2).min(16.0 * self.variance);
        self.variance += SIGMA_GAIN * (square - self.variance).max(0.0);
    }

    /// Begins anew after a change of settings; the estimate stays.
    pub(crate) fn interrupt(&mut self) {
        self.last = None;
    }

    pub(crate) fn sigma(&self) -> f64 {
        self.variance.sqrt().clamp(*SIGMA_RANGE.start(), *SIGMA_RANGE.end())
    }
}
