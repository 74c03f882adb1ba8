//! Pacing of the streams. Where bursts overflow a short queue or a policer, streams that send evenly, at the rate that
//! arrives anyway, lose almost nothing at the same rate.
//!
//! ```text
//!                    lossy                    little lost, rate kept
//!   held without pace ────> pace tried, corrected ────> held with pace
//!          ^                         │                         │
//!          │<──── loss or rate ──────┘                         │
//!          └───────────────── after a time ────────────────────┘
//! ```
//!
//! A path that carries more shows it only to those who send more: the pace ends now and then, and the probes of the holding
//! state run without. Random loss stays with any pace, which is then given up. A search begins without, too.

use super::{INTERVALS_MIN, KneeController, KneeState, percent};
use crate::bottleneck::BindingLimit;
use crate::level::RateLevel;
use crate::parallelism::PipelineStage;
use crate::reason::ChangeReason;

/// Share of retransmitted segments from which pacing is tried. Many streams on one link lose half of it where nothing is
/// wrong.
const LOSS_MIN: f64 = 0.02;

/// Fewest retransmitted segments of the latest intervals: of fewer the share says little.
const LOST_SEGMENTS_MIN: u64 = 20;

/// Part of the loss that a pace may keep.
const LOSS_KEPT_MAX: f64 = 0.25;

/// Share from which segments are lost at all: a pace just above what a short queue takes costs much rate and little loss.
const LOSS_NONE: f64 = 1e-3;

/// First pace as a part of the rate that arrives without: below it, so that a standing queue drains.
const PACED_SHARE: f64 = 0.99;

/// Loss of rate, as a logarithm, that a pace may cost beside the noise, and the same where a pace a little higher loses.
const RATE_LOSS_MAX: f64 = 0.02;
const RATE_LOSS_LOWERED_MAX: f64 = 0.05;

/// Factor over the present rate up to which an earlier pace is tried again: without a pace the rate has dips.
const KEPT_OVER_RATE: f64 = 1.15;

/// Changes of a first pace at which too much is lost, or too little arrives: the kernel counts headers where the queueing
/// discipline paces, and streams may be unequal. Most of these changes.
const LOWER_PACE: f64 = 0.98;
const HIGHER_PACE: f64 = 1.05;
const CORRECTIONS_MAX: u32 = 2;

/// Held intervals before the first attempt; each that fails multiplies them, up to a bound.
const ATTEMPT_INTERVALS: u32 = 2;
const ATTEMPT_INTERVALS_MAX: u32 = 256;

/// Held intervals of the first pace; each that is found again doubles them, up to a bound.
const PACED_INTERVALS: u32 = 16;
const PACED_INTERVALS_MAX: u32 = 64;

/// Rate of the streams, and when it changes.
#[derive(Debug, Clone)]
pub(super) struct PacingState {
    /// Most bits per second of each stream; none where they are not paced.
    stream_bps: Option<f64>,
    /// Latest pace that was kept.
    kept_bps: Option<f64>,
    /// Held intervals since the last change.
    elapsed: u32,
    /// Held intervals to wait before an attempt, and for which the next pace is kept.
    attempt_wait: u32,
    paced_for: u32,
}

/// Changes of a pace that is being tried.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PaceCorrections {
    count: u32,
    /// True once a higher pace lost segments.
    lowered: bool,
}

impl Default for PacingState {
    fn default() -> Self {
        Self {
            stream_bps: None,
            kept_bps: None,
            elapsed: 0,
            attempt_wait: ATTEMPT_INTERVALS,
            paced_for: PACED_INTERVALS,
        }
    }
}

impl PacingState {
    /// Most bits per second of each stream.
    pub(super) fn stream_bps(&self) -> Option<u64> {
        self.stream_bps.map(|rate| rate as u64)
    }

    /// True if the streams are paced.
    pub(super) fn is_on(&self) -> bool {
        self.stream_bps.is_some()
    }

    /// Ends a pace that failed, or does not fit any more. The next attempt waits longer.
    pub(super) fn fail(&mut self) {
        if self.stream_bps.take().is_some() {
            self.attempt_wait = (self.attempt_wait * 4).min(ATTEMPT_INTERVALS_MAX);
            (self.elapsed, self.paced_for) = (0, PACED_INTERVALS);
        }
    }
}

impl KneeController {
    /// Begins or ends pacing in the holding state, where it is time.
    pub(super) fn pace_if_due(&mut self, limit: BindingLimit) -> Option<ChangeReason> {
        self.pacing.elapsed = self.pacing.elapsed.saturating_add(1);
        if self.pacing.is_on() {
            return (self.pacing.elapsed >= self.pacing.paced_for).then(|| self.compare_unpaced());
        }
        let is_due = self.pacing.elapsed >= self.pacing.attempt_wait;
        if !is_due || limit.stage() != Some(PipelineStage::Streams) {
            return None;
        }
        let before = self.hold.before(self.target.streams);
        let sigma = self.noise.sigma();
        let is_steady = !before.is_falling(sigma) && !before.is_jumping(sigma);
        let is_lossy =
            before.loss_share() >= LOSS_MIN && before.lost_segments() >= LOST_SEGMENTS_MIN;
        if !is_lossy || !is_steady {
            return None;
        }
        let stream_bps = self.hold.high_rate_bps() / f64::from(before.workers.max(1)) * PACED_SHARE;
        let is_near = |kept: &f64| *kept < stream_bps * KEPT_OVER_RATE;
        let kept_bps = self.pacing.kept_bps.filter(is_near);
        let first_bps = kept_bps.map_or(stream_bps, |kept| kept.max(stream_bps));
        Some(self.try_pace(before, first_bps, PaceCorrections::default()))
    }

    fn try_pace(
        &mut self,
        before: RateLevel,
        stream_bps: f64,
        corrected: PaceCorrections,
    ) -> ChangeReason {
        self.pacing.stream_bps = Some(stream_bps);
        self.settle();
        let level = RateLevel::at(before.workers);
        self.state = KneeState::Pacing { before, level, corrected };
        ChangeReason::Pacing { stream_bps, loss_percent: before.loss_share() * 100.0 }
    }

    pub(super) fn after_pacing(
        &mut self,
        before: RateLevel,
        level: RateLevel,
        mut corrected: PaceCorrections,
    ) -> ChangeReason {
        let is_lossy = level.loss_share() > before.loss_share() * LOSS_KEPT_MAX;
        let is_clear = level.count() >= INTERVALS_MIN && is_lossy;
        if !is_clear && !self.is_decided(&level, &before, -RATE_LOSS_MAX) {
            self.state = KneeState::Pacing { before, level, corrected };
            return ChangeReason::Measuring { intervals: level.count() };
        }
        let gain = level.mean() - before.mean();
        let error = level.error_of_difference(&before, self.noise.sigma());
        let may_cost = if corrected.lowered { RATE_LOSS_LOWERED_MAX } else { RATE_LOSS_MAX };
        let is_slow = gain + error < -may_cost;
        let stream_bps = self.pacing.stream_bps.unwrap_or_default();
        if (is_lossy || is_slow) && corrected.count < CORRECTIONS_MAX {
            corrected.count += 1;
            if level.loss_share() > LOSS_NONE {
                corrected.lowered = true;
                return self.try_pace(before, stream_bps * LOWER_PACE, corrected);
            }
            if !corrected.lowered {
                return self.try_pace(before, stream_bps * HIGHER_PACE, corrected);
            }
        }
        let (gain_percent, loss_percent) = (percent(gain), level.loss_share() * 100.0);
        self.state = KneeState::Holding;
        self.hold.relearn();
        if is_lossy || is_slow {
            self.pacing.fail();
            self.settle();
            return ChangeReason::Unpaced { gain_percent, loss_percent };
        }
        (self.pacing.elapsed, self.pacing.kept_bps) = (0, Some(stream_bps));
        ChangeReason::Paced { stream_bps, gain_percent, loss_percent }
    }

    /// Ends the pace for a while: the path may carry more, with these streams or with others.
    fn compare_unpaced(&mut self) -> ChangeReason {
        self.pacing.stream_bps = None;
        self.pacing.elapsed = 0;
        self.pacing.paced_for = (self.pacing.paced_for * 2).min(PACED_INTERVALS_MAX);
        // It has kept its rate all the time.
        self.pacing.attempt_wait = ATTEMPT_INTERVALS;
        self.hold.relearn();
        self.settle();
        ChangeReason::ComparingUnpaced
    }
}
