//! Decisions with the numbers behind them.

use std::fmt;

use penstock_units::BitRate;
use serde::{Deserialize, Serialize};

use crate::bottleneck::BindingLimit;
use crate::parallelism::{Parallelism, PipelineStage};

/// Intervals without a byte from which an operator wants to read of a stall.
const STALL_NOTABLE_INTERVALS: u32 = 2;

/// Decision for the next interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TunerDecision {
    /// Parallelism to apply from the next interval on.
    pub target: Parallelism,
    /// Most bits per second of each stream; none where streams are not paced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream_pacing_bps: Option<u64>,
    /// Reason, of a change or of none.
    pub reason: ChangeReason,
}

/// Change of one stage's workers, and what was measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StageChange {
    /// Stage whose workers change.
    pub stage: PipelineStage,
    /// Workers of the stage before the change.
    pub from: u16,
    /// Workers of the stage after the change.
    pub to: u16,
}

impl fmt::Display for StageChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} -> {}", self.stage, self.from, self.to)
    }
}

/// Limit that binds, with the setting of a host behind it.
struct Binding(BindingLimit);

impl fmt::Display for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(limit) = self;
        write!(f, "{limit} binds")?;
        limit.host_rule().map_or(Ok(()), |rule| write!(f, " ({rule})"))
    }
}

/// Number of intervals in words.
struct Intervals(u32);

impl fmt::Display for Intervals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(count) = self;
        write!(f, "{count} interval{}", if *count == 1 { "" } else { "s" })
    }
}

/// Reason of a decision; its text is one sentence.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[allow(missing_docs, reason = "the text of each variant says what its fields are")]
pub enum ChangeReason {
    /// The rate at the current settings is being measured.
    Measuring { intervals: u32 },
    /// Few bytes arrive in an interval: several make one measurement.
    Joining,
    /// The settings fit.
    Holding { limit: BindingLimit },
    /// No workers can move the limit.
    Bound { limit: BindingLimit },
    /// The transfer begins with what earlier ones to the same host ended with.
    WarmStart { change: StageChange, transfers: u32 },
    /// A doubling is tried.
    Doubling { change: StageChange, limit: BindingLimit },
    /// A step gained enough and is kept.
    Gained { change: StageChange, gain_percent: f64, elasticity: f64 },
    /// A step gained too little and is taken back.
    TooLittle { change: StageChange, gain_percent: f64, required_percent: f64 },
    /// The knee lies between two settings, where the rates of both predict it.
    Narrowing { change: StageChange, low: u16, high: u16 },
    /// The knee is found.
    Knee { change: StageChange, rate_bps: f64 },
    /// A paired probe begins.
    Probing { change: StageChange },
    /// A paired probe returns to compare.
    Comparing { change: StageChange, gain_percent: f64 },
    /// A paired probe with fewer workers lost nothing that counts.
    NotNeeded { change: StageChange, loss_percent: f64 },
    /// A probe with fewer streams does not reach the rate limit.
    LimitMissed { change: StageChange },
    /// A congested path answers little: the streams are left to others.
    Shared { change: StageChange, loss_percent: f64 },
    /// The settings fit, and streams are paced.
    HoldingPace { stream_bps: u64 },
    /// Streams that lose segments are paced.
    Pacing { stream_bps: f64, loss_percent: f64 },
    /// A pace lost less and cost no rate.
    Paced { stream_bps: f64, gain_percent: f64, loss_percent: f64 },
    /// A pace lost as much, or cost rate.
    Unpaced { gain_percent: f64, loss_percent: f64 },
    /// Paced streams send without a pace for a while.
    ComparingUnpaced,
    /// The rate has changed for longer than noise does.
    RateShift { percent: f64 },
    /// Congestion has ended.
    CongestionEnded,
    /// The rate fell at once; the next interval shows whether the path has stalled.
    SuddenFall { percent: f64 },
    /// No byte arrives; the settings stay.
    Stalled { intervals: u32 },
    /// No byte arrives for long; the step that was being tried is taken back.
    StalledStep { change: StageChange, intervals: u32 },
    /// Another limit than the rate binds fewer streams than the default.
    Restored { change: StageChange, limit: BindingLimit },
    /// Data moves again after a stall.
    Resumed { intervals: u32 },
    /// A published controller moves by its own rule.
    PeerRule { change: StageChange, score: f64 },
}

impl ChangeReason {
    /// True if the decision changes settings.
    #[must_use]
    pub const fn is_change(&self) -> bool {
        !matches!(
            self,
            Self::Measuring { .. }
                | Self::Joining
                | Self::Holding { .. }
                | Self::HoldingPace { .. }
                | Self::Bound { .. }
                | Self::RateShift { .. }
                | Self::CongestionEnded
                | Self::SuddenFall { .. }
                | Self::Stalled { .. }
                | Self::Resumed { .. }
        )
    }

    /// True if an operator wants to read it: a change, a stall, or an event that starts a search.
    #[must_use]
    pub const fn is_notable(&self) -> bool {
        match self {
            Self::RateShift { .. } | Self::CongestionEnded => true,
            // The first interval may be a gap between blocks at a low rate.
            Self::Stalled { intervals } => *intervals == STALL_NOTABLE_INTERVALS,
            Self::Resumed { intervals } => *intervals >= STALL_NOTABLE_INTERVALS,
            _ => self.is_change(),
        }
    }
}

impl fmt::Display for ChangeReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Measuring { intervals } => {
                write!(f, "Measures the rate at these settings ({} so far).", Intervals(*intervals))
            }
            Self::Joining => f.write_str(
                "Measures the rate at these settings over several intervals, in each of which few bytes arrive.",
            ),
            Self::Holding { limit } => write!(f, "Keeps the settings; {}.", Binding(*limit)),
            Self::Bound { limit } => {
                write!(f, "Keeps the settings: {limit} binds, which more workers cannot move.")
            }
            Self::WarmStart { change, transfers } => write!(
                f,
                "Begins with {change}: the best of the latest {transfers} transfers to this host \
                 ended with these."
            ),
            Self::Doubling { change, limit } => {
                write!(f, "Tries {change}, because {}.", Binding(*limit))
            }
            Self::Gained { change, gain_percent, elasticity } => write!(
                f,
                "Keeps {change}: the rate changed by {gain_percent:+.1} %, {:.0} % of proportional.",
                elasticity * 100.0
            ),
            Self::TooLittle { change, gain_percent, required_percent } => write!(
                f,
                "Takes back, {change}: the rate changed by {gain_percent:+.1} %, and \
                 {required_percent:.1} % would justify more."
            ),
            Self::Narrowing { change, low, high } => {
                write!(f, "Tries {change}: the knee lies between {low} and {high}.")
            }
            Self::Knee { change, rate_bps } => {
                let rate = BitRate(*rate_bps as u64);
                write!(f, "Settles, {change}: this reaches {rate}, the rate of more.")
            }
            Self::Probing { change } => write!(f, "Compares {change} with the present."),
            Self::Comparing { change, gain_percent } => write!(
                f,
                "Returns, {change}, to compare: the probe changed the rate by {gain_percent:+.1} %."
            ),
            Self::NotNeeded { change, loss_percent } => write!(
                f,
                "Gives back, {change}: the rate changed by {loss_percent:+.1} % without them."
            ),
            Self::LimitMissed { change } => {
                write!(f, "Returns, {change}: fewer do not reach the rate limit.")
            }
            Self::Shared { change, loss_percent } => write!(
                f,
                "Leaves streams of a congested path to others, {change}: the rate changes by \
                 {loss_percent:+.1} %."
            ),
            Self::HoldingPace { stream_bps } => {
                write!(f, "Keeps the settings; each stream sends at most {}.", BitRate(*stream_bps))
            }
            Self::Pacing { stream_bps, loss_percent } => write!(
                f,
                "Paces each stream to {}, because {loss_percent:.1} % of the segments were sent again.",
                BitRate(*stream_bps as u64)
            ),
            Self::Paced { stream_bps, gain_percent, loss_percent } => write!(
                f,
                "Keeps the pace of {} for each stream: the rate changed by {gain_percent:+.1} %, and \
                 {loss_percent:.1} % of the segments were sent again.",
                BitRate(*stream_bps as u64)
            ),
            Self::Unpaced { gain_percent, loss_percent } => write!(
                f,
                "Ends pacing: the rate changed by {gain_percent:+.1} %, and {loss_percent:.1} % of the \
                 segments were sent again."
            ),
            Self::ComparingUnpaced => {
                f.write_str("Sends without a pace for a while: the path may carry more.")
            }
            Self::RateShift { percent } => {
                write!(f, "Measures anew: the rate has changed by {percent:+.0} %.")
            }
            Self::CongestionEnded => f.write_str("Measures anew: the path is no longer congested."),
            Self::SuddenFall { percent } => {
                write!(
                    f,
                    "Waits: the rate changed by {percent:+.0} % from one interval to the next."
                )
            }
            Self::Stalled { intervals } => {
                write!(f, "Keeps the settings: no data has arrived for {}.", Intervals(*intervals))
            }
            Self::StalledStep { change, intervals } => write!(
                f,
                "Takes back, {change}: no data has arrived for {}, so the step cannot be measured.",
                Intervals(*intervals)
            ),
            Self::Restored { change, limit } => {
                write!(f, "Returns to the default, {change}: {limit} binds, not the rate limit.")
            }
            Self::Resumed { intervals } => {
                write!(
                    f,
                    "Measures again: data arrives after {} without any.",
                    Intervals(*intervals)
                )
            }
            Self::PeerRule { change, score } => {
                write!(f, "Moves {change} by its rule, at a score of {score:.3}.")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_setting_names_its_rule() {
        let text = |limit| ChangeReason::Holding { limit }.to_string();
        assert!(text(BindingLimit::ReceiveWindow).contains("(penstock host explain tcp-rmem"));
        assert!(text(BindingLimit::SendBuffer).contains("(penstock host explain tcp-wmem"));
        assert_eq!(text(BindingLimit::Path), "Keeps the settings; the path binds.");
    }

    #[test]
    fn one_interval_is_singular() {
        let text = |intervals| ChangeReason::Stalled { intervals }.to_string();
        assert!(text(1).ends_with("for 1 interval."), "{}", text(1));
        assert!(text(2).ends_with("for 2 intervals."), "{}", text(2));
    }
}
