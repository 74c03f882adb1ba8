//! Tuner of the streams of one copy: samples its sending end, and applies what the controller decides.
//!
//! The caller ticks it. It adds and retires streams as a change of settings does: a retired stream ends after its block, and
//! any block may use any stream. Streams that someone else changes meanwhile end it: the operator's word counts.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use penstock_protocol::control::Settings;
use penstock_tuner::{
    BindingLimit, KneeController, Parallelism, TransferController, TunerDecision, TuningLimits,
};

use super::transfer::ClientTransfer;
use crate::endpoint::end::Endpoint;
use crate::endpoint::tuning_meter::TuningMeter;

/// Most streams that a tuner opens.
const TUNED_STREAMS_MAX: u16 = 64;

/// Most decisions that are kept; the latest are.
const RECORDS_MAX: usize = 400;

/// Intervals without another suggestion after one that is not applied.
const SUGGESTION_INTERVALS: u32 = 20;

/// Use of the decisions of a tuner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TuningMode {
    /// Applies them.
    Apply,
    /// Keeps what it would try, and changes nothing. What a step gains is then not known.
    Observe,
}

/// Decision of a tuner, with the rate of the interval before it.
#[derive(Debug, Clone)]
pub struct TuningRecord {
    /// Time since the tuner began.
    pub at: Duration,
    /// Payload rate in bits per second.
    pub rate_bps: u64,
    /// Streams that were connected.
    pub streams: u16,
    /// Limit that bound the interval.
    pub limit: BindingLimit,
    /// Decision of the controller.
    pub decision: TunerDecision,
}

/// Tuner of one copy.
#[derive(Debug)]
pub struct AutoTuner {
    mode: TuningMode,
    controller: KneeController,
    start: u16,
    limits: TuningLimits,
    meter: TuningMeter,
    /// Streams that it asked for.
    wanted: u16,
    started: Instant,
    records: Vec<TuningRecord>,
    left_out: u64,
    /// Intervals until the next suggestion.
    silent: u32,
    ended: Option<&'static str>,
}

impl AutoTuner {
    /// Creates a tuner of a copy that begins with `start` streams and has `blocks` blocks of memory: a stream without a
    /// block waits.
    #[must_use]
    pub fn new(mode: TuningMode, start: u16, blocks: u64) -> Self {
        let most = u16::try_from(blocks).unwrap_or(u16::MAX).clamp(1, TUNED_STREAMS_MAX);
        let limits = TuningLimits::streams_up_to(most.max(start), Parallelism::streams(start));
        Self {
            mode,
            controller: KneeController::new(Parallelism::streams(start), limits),
            start,
            limits,
            meter: TuningMeter::default(),
            wanted: start,
            started: Instant::now(),
            records: Vec::new(),
            left_out: 0,
            silent: 0,
            ended: None,
        }
    }

    /// Takes a sample of a running copy if it is time, and applies the decision.
    pub fn tick(&mut self, transfer: &ClientTransfer) {
        let Some(end) = transfer.endpoint().filter(|_| self.ended.is_none()) else { return };
        let Endpoint::Send(sender) = &end else {
            self.ended = Some("this end receives: the sender keeps its streams");
            return;
        };
        let session = end.session();
        let wanted = session.wanted_streams.load(Ordering::SeqCst);
        if wanted != self.wanted && self.meter.has_sampled(session.id) {
            self.ended = Some("the streams were changed by hand");
            return;
        }
        if let Some(most) = transfer.streams_max().filter(|most| *most < self.limits.max.streams) {
            let most = most.max(self.start);
            self.limits = TuningLimits::streams_up_to(most, Parallelism::streams(self.start));
            self.controller.set_limits(self.limits);
        }
        let Some(sample) = self.meter.sample(&sender.0) else { return };
        if self.silent > 0 {
            self.silent -= 1;
            return;
        }
        let decision = self.controller.observe(&sample);
        let streams = sample.active.streams;
        if decision.reason.is_notable() {
            self.keep(TuningRecord {
                at: self.started.elapsed(),
                rate_bps: sample.rate_bps() as u64,
                streams,
                limit: BindingLimit::of(&sample),
                decision,
            });
        }
        let target = decision.target.streams;
        match self.mode {
            TuningMode::Apply if target != self.wanted => {
                tracing::info!("streams {} -> {target}: {}", self.wanted, decision.reason);
                self.wanted = target;
                transfer.change(Settings { streams: Some(target), ..Settings::default() });
            }
            TuningMode::Observe if target != self.wanted => {
                tracing::info!("would change streams {streams} -> {target}: {}", decision.reason);
                // The step is not taken, and the next sample would not show it.
                self.controller =
                    KneeController::new(Parallelism::streams(self.start), self.limits);
                self.silent = SUGGESTION_INTERVALS;
            }
            TuningMode::Apply | TuningMode::Observe => {}
        }
    }

    fn keep(&mut self, record: TuningRecord) {
        if self.records.len() == RECORDS_MAX {
            self.records.remove(0);
            self.left_out += 1;
        }
        self.records.push(record);
    }

    /// Mode that the caller chose.
    #[must_use]
    pub const fn mode(&self) -> TuningMode {
        self.mode
    }

    /// Decisions that changed something or began a search, in order; the latest 400.
    #[must_use]
    pub fn records(&self) -> &[TuningRecord] {
        &self.records
    }

    /// Number of earlier decisions that are no longer kept.
    #[must_use]
    pub const fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Reason why it no longer changes anything; none while it does.
    #[must_use]
    pub const fn ended(&self) -> Option<&'static str> {
        self.ended
    }
}
