//! Tuner of one transfer: samples its sending end, and says how many streams, readers and writers it should have.
//!
//! The caller ticks it and changes the settings: a retired stream ends after its block, and any block may use any stream.
//! Settings that someone else changes meanwhile end it: the operator's word counts, until a request switches it on. An order may set the number of streams
//! to begin with and not to exceed. Transfers that share a search share its streams, readers and writers.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_protocol::control::Settings;
use penstock_tuner::{
    BindingLimit, ChangeReason, KneeController, Parallelism, PipelineStage, StageChange,
    TransferController, TunerDecision, TunerSample, TuningLimits, TuningMode, WarmStart,
};
use penstock_units::BitRate;

use super::host_searches::{SearchAnswer, SearchLimits, SearchMembership};
use super::stream_tuning::{KnownStreams, RECEIVES, SharingBounds, TuningBounds, TuningReport};
use crate::endpoint::end::Endpoint;
use crate::endpoint::tuning_meter::TuningMeter;

/// Most streams that a tuner opens.
const TUNED_STREAMS_MAX: u16 = 64;

/// Most readers, and most writers, for each device that a tuner asks for.
const TUNED_THREADS_MAX: u16 = 32;

/// Most decisions that are kept; the latest are.
const RECORDS_MAX: usize = 400;

/// Most points of the rate over time; then every two become one.
const POINTS_MAX: usize = 512;

/// Most samples that are kept, about four minutes; the latest are.
const SAMPLES_MAX: usize = 512;

/// Intervals without another suggestion after one that is not applied.
const SUGGESTION_INTERVALS: u32 = 20;

/// Reason of an agent whose operator wants no tuner.
const SWITCHED_OFF: &str = "the operator has switched the tuner off ([tuning] mode)";

/// Reason of a transfer whose tuner alone is off.
const SET_OFF: &str = "the tuner of this transfer was switched off by hand (transfers set --tune)";

/// Reason of a transfer that keeps the streams of the history.
const HISTORY_KEEPS: &str = "the streams of earlier transfers are kept (tuning mode history)";

/// Reason of one whose path the history does not know.
const HISTORY_LACKS: &str = "the default is kept (tuning mode history): earlier transfers to this host are too few, or had no more streams";

/// Decision of a tuner, with the rate of the interval before it.
#[derive(Debug, Clone)]
pub struct TuningRecord {
    /// Time since the tuner began.
    pub at: Duration,
    /// Payload rate in bits per second.
    pub rate_bps: u64,
    /// Streams that were connected, readers and writers.
    pub workers: Parallelism,
    /// Most bits per second of each stream before it; none where they were not paced.
    pub stream_pacing_bps: Option<u64>,
    /// Limit that bound the interval.
    pub limit: BindingLimit,
    /// Decision of the controller, with the target of this transfer.
    pub decision: TunerDecision,
    /// Transfers that the decision is for: more than one where they share a search.
    pub transfers: u16,
    /// False for a change that the mode only lists.
    pub is_applied: bool,
}

impl TuningRecord {
    /// Reason in one sentence. Streams in it are those of all transfers that share the search.
    #[must_use]
    pub fn reason(&self) -> String {
        reason_text(&self.decision, self.transfers, self.is_applied)
    }
}

fn reason_text(decision: &TunerDecision, transfers: u16, is_applied: bool) -> String {
    let note = if is_applied { "" } else { " (not applied)" };
    match transfers {
        0 | 1 => format!("{}{note}", decision.reason),
        _ => format!("{transfers} transfers to this host together: {}{note}", decision.reason),
    }
}

/// Mean rate and streams at the end of an interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RatePoint {
    /// End of the interval, as time since the tuner began.
    pub at: Duration,
    /// Payload rate in bits per second.
    pub rate_bps: u64,
    /// Streams that were connected.
    pub streams: u16,
}

/// Rate of a transfer over its whole time, in at most [`POINTS_MAX`] points.
#[derive(Debug, Default)]
struct RateSeries {
    points: Vec<RatePoint>,
    /// Samples of each point, less one.
    merged: u32,
    /// Samples and bits per second of the point that is being summed.
    pending: (u32, u64),
}

impl RateSeries {
    fn add(&mut self, point: RatePoint) {
        self.pending.0 += 1;
        self.pending.1 += point.rate_bps;
        if self.pending.0 <= self.merged {
            return;
        }
        let (samples, sum) = std::mem::take(&mut self.pending);
        self.points.push(RatePoint { rate_bps: sum / u64::from(samples), ..point });
        if self.points.len() == POINTS_MAX {
            self.merged = self.merged * 2 + 1;
            self.points = self.points.chunks(2).map(merge).collect();
        }
    }
}

/// Settings in words, with the pace of each stream.
struct TunedSettings(Parallelism, Option<u64>);

impl fmt::Display for TunedSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(Parallelism { readers, streams, writers }, pace_bps) = *self;
        write!(f, "{streams} streams, {readers} readers and {writers} writers")?;
        pace_bps.map_or(Ok(()), |rate| write!(f, ", {} for each stream", BitRate(rate)))
    }
}

/// One point for two of equal length.
fn merge(pair: &[RatePoint]) -> RatePoint {
    let last = pair[pair.len() - 1];
    let sum: u64 = pair.iter().map(|point| point.rate_bps).sum();
    RatePoint { rate_bps: sum / pair.len() as u64, ..last }
}

/// Tuner of one transfer.
#[derive(Debug)]
pub(super) struct AutoTuner {
    mode: TuningMode,
    /// Most that it may do by a request for this transfer, which may change while it runs.
    asked: TuningMode,
    /// Reason where that is nothing.
    off: &'static str,
    /// True until the settings in place, its own or those set by hand, are taken over.
    takes_over: bool,
    /// Search of this transfer alone.
    controller: KneeController,
    /// Search that it shares.
    shared: Option<SearchMembership>,
    /// True while the shared search decides.
    is_sharing: bool,
    /// Default of the transfer, to which it returns when it is switched off.
    start: Parallelism,
    /// Most workers of each stage; none until the sending end has shown with how many it begins.
    workers_max: Option<Parallelism>,
    /// Streams to begin with instead, until the first sample.
    known: Option<KnownStreams>,
    /// True once it has begun with these.
    has_known: bool,
    /// Most streams that an order allows.
    allotted_max: Option<u16>,
    limits: TuningLimits,
    meter: TuningMeter,
    /// Streams, readers and writers that it asked for.
    wanted: Parallelism,
    /// Most bits per second of each stream; none where they are not paced.
    stream_pacing_bps: Option<u64>,
    started: Instant,
    records: Vec<TuningRecord>,
    left_out: u64,
    latest: Option<String>,
    series: RateSeries,
    /// Shared with the reports that requests hold.
    samples: Arc<VecDeque<TunerSample>>,
    /// Intervals until the next suggestion.
    silent: u32,
    ended: Option<&'static str>,
}

/// Limits of at most `most` workers at each stage, where they are more than at the start; streams alone may become fewer.
fn limits_of(most: Parallelism, start: Parallelism) -> TuningLimits {
    let raise = |max: Parallelism, stage| max.with(stage, most.at(stage).max(start.at(stage)));
    TuningLimits {
        min: start.with(PipelineStage::Streams, 1),
        max: PipelineStage::ALL.into_iter().fold(start, raise),
    }
}

/// Settings that change the workers of a transfer.
fn changes(from: Parallelism, to: Parallelism) -> Settings {
    let change = |stage| Some(to.at(stage)).filter(|workers| *workers != from.at(stage));
    Settings {
        readers: change(PipelineStage::Readers),
        streams: change(PipelineStage::Streams),
        writers: change(PipelineStage::Writers),
        ..Settings::default()
    }
}

fn warm_start(start: Parallelism, known: Option<KnownStreams>) -> WarmStart {
    let predicted = known.map(|known| start.with(PipelineStage::Streams, known.streams));
    WarmStart { default: start, predicted }
}

impl AutoTuner {
    /// Creates a tuner of a transfer that has `start` streams by default, may begin with others that are known, and may share
    /// a search.
    pub(super) fn new(
        start: u16,
        known: Option<KnownStreams>,
        shared: Option<SearchMembership>,
    ) -> Self {
        let start = Parallelism::streams(start);
        let limits = limits_of(Parallelism::streams(TUNED_STREAMS_MAX), start);
        Self {
            mode: TuningMode::Auto,
            asked: TuningMode::Auto,
            off: SET_OFF,
            takes_over: false,
            controller: KneeController::new(warm_start(start, known), limits),
            shared,
            is_sharing: false,
            start,
            workers_max: None,
            known,
            has_known: false,
            allotted_max: None,
            limits,
            meter: TuningMeter::default(),
            wanted: known.map_or(start, |known| Parallelism::streams(known.streams)),
            stream_pacing_bps: None,
            started: Instant::now(),
            records: Vec::new(),
            left_out: 0,
            latest: None,
            series: RateSeries::default(),
            samples: Arc::default(),
            silent: 0,
            ended: None,
        }
    }

    /// The same, switched off for this reason.
    pub(super) fn switched_off(mut self, reason: &'static str) -> Self {
        (self.mode, self.asked, self.off) = (TuningMode::Off, TuningMode::Off, reason);
        self
    }

    /// True if a sample of this end is due.
    pub(super) fn is_due(&self, end: &Endpoint) -> bool {
        self.ended.is_none() && self.meter.is_due(end.session().id)
    }

    /// Takes a sample of a running end, and paces its streams. Returns the settings that both ends should change.
    pub(super) fn tick(&mut self, end: &Endpoint, bounds: TuningBounds) -> Option<Settings> {
        let settings = self.observe(end, bounds);
        // A session that replaces a lost one begins without.
        end.session().pace_streams(self.stream_pacing_bps);
        settings
    }

    fn observe(&mut self, end: &Endpoint, bounds: TuningBounds) -> Option<Settings> {
        if self.ended.is_some() {
            return None;
        }
        let Endpoint::Send(sender) = end else {
            self.ended = Some(RECEIVES);
            return None;
        };
        let session = end.session();
        let work = &sender.0.work;
        let workers = work.workers();
        let workers_max = self.begin_with(workers, |stage| work.may_tune(stage));
        if std::mem::take(&mut self.takes_over) {
            self.wanted = workers;
            self.go_on();
        }
        if self.meter.has_sampled(session.id) && workers != self.wanted {
            self.ended = Some(match self.wanted {
                Parallelism { streams, .. } if streams != workers.streams => {
                    "the streams were changed by hand"
                }
                Parallelism { readers, .. } if readers != workers.readers => {
                    "the readers were changed by hand"
                }
                _ => "the writers were changed by hand",
            });
            self.stream_pacing_bps = None;
            self.leave();
            return None;
        }
        let mode = bounds.mode.min(self.asked);
        if mode != self.mode
            && let Some(target) = self.switch(mode)
        {
            return Some(changes(workers, target));
        }
        // A stream without a block waits.
        let blocks = u16::try_from(session.pool.limit()).unwrap_or(u16::MAX);
        // Others of the host need not keep to the rate of this transfer.
        let is_limited = session.pace.rate_bps().is_some();
        let sharing = bounds.sharing.filter(|_| self.mode == TuningMode::Auto && !is_limited);
        self.share(sharing.is_some());
        let streams_max = sharing.map_or(bounds.streams_max, |sharing| sharing.streams_max);
        let streams_max = streams_max.min(self.allotted_max.unwrap_or(u16::MAX));
        let most = Parallelism {
            // A reader without a block waits, too. The blocks for writers are those of the other end.
            readers: workers_max.readers.min(blocks),
            streams: workers_max.streams.min(streams_max).min(blocks),
            writers: workers_max.writers,
        };
        let limits = limits_of(most, self.start);
        if limits != self.limits {
            self.limits = limits;
            self.controller.set_limits(limits);
        }
        let sample = self.meter.sample(&sender.0)?;
        let workers = sample.active;
        let rate_bps = sample.rate_bps() as u64;
        let at = self.started.elapsed();
        self.series.add(RatePoint { at, rate_bps, streams: workers.streams });
        let samples = Arc::make_mut(&mut self.samples);
        if samples.len() == SAMPLES_MAX {
            samples.pop_front();
        }
        samples.push_back(sample);
        if self.mode == TuningMode::Off {
            return None;
        }
        if self.silent > 0 {
            self.silent -= 1;
            return None;
        }
        let known = self.known.take();
        self.has_known |= known.is_some();
        if let Some(KnownStreams { streams: to, transfers, .. }) = known {
            let target = self.start.with(PipelineStage::Streams, to);
            let change =
                StageChange { stage: PipelineStage::Streams, from: self.start.streams, to };
            let reason = ChangeReason::WarmStart { change, transfers };
            let decision = TunerDecision { target, stream_pacing_bps: None, reason };
            let limit = BindingLimit::of(&sample);
            self.keep(TuningRecord {
                at,
                rate_bps,
                workers,
                stream_pacing_bps: None,
                limit,
                decision,
                transfers: 1,
                is_applied: true,
            });
        }
        if self.mode == TuningMode::History {
            return None;
        }
        let SearchAnswer { workers: target, stream_pacing_bps, decision } =
            self.decide(&sample, sharing, known);
        if let Some((decision, transfers)) = decision {
            let decision = TunerDecision { target, ..decision };
            let is_applied = self.mode == TuningMode::Auto || !decision.reason.is_change();
            // While slow intervals are joined, the decision before them still says why.
            if decision.reason != ChangeReason::Joining || self.latest.is_none() {
                self.latest = Some(reason_text(&decision, transfers, is_applied));
            }
            if decision.reason.is_notable() {
                self.keep(TuningRecord {
                    at,
                    rate_bps,
                    workers,
                    stream_pacing_bps: self.stream_pacing_bps,
                    limit: BindingLimit::of(&sample),
                    decision,
                    transfers,
                    is_applied,
                });
            }
        }
        if target == self.wanted && stream_pacing_bps == self.stream_pacing_bps {
            return None;
        }
        let why = self.latest.as_deref().unwrap_or_default();
        let settings = TunedSettings(target, stream_pacing_bps);
        if self.mode == TuningMode::Auto {
            tracing::info!("tunes to {settings}: {why}");
            self.stream_pacing_bps = stream_pacing_bps;
            let before = std::mem::replace(&mut self.wanted, target);
            return (before != target).then(|| changes(before, target));
        }
        tracing::info!("would tune to {settings}: {why}");
        // The step is not taken, and the next sample would not show it.
        self.controller = KneeController::new(self.start, self.limits);
        self.silent = SUGGESTION_INTERVALS;
        None
    }

    /// Learns the readers and writers that the transfer begins with, once, and whether more may be tried. Returns the most
    /// workers of each stage.
    fn begin_with(
        &mut self,
        workers: Parallelism,
        may_tune: impl Fn(PipelineStage) -> bool,
    ) -> Parallelism {
        if let Some(most) = self.workers_max {
            return most;
        }
        let mut most = Parallelism::streams(TUNED_STREAMS_MAX);
        for stage in [PipelineStage::Readers, PipelineStage::Writers] {
            let threads = workers.at(stage);
            self.start = self.start.with(stage, threads);
            self.wanted = self.wanted.with(stage, threads);
            most = most.with(stage, if may_tune(stage) { TUNED_THREADS_MAX } else { threads });
        }
        self.workers_max = Some(most);
        let streams_max = self.limits.max.streams;
        self.limits = limits_of(most.with(PipelineStage::Streams, streams_max), self.start);
        self.controller = KneeController::new(warm_start(self.start, self.known), self.limits);
        most
    }

    /// Begins or ends to share the search. Alone it goes on from the streams that it has.
    fn share(&mut self, is_sharing: bool) {
        let was_sharing = std::mem::replace(&mut self.is_sharing, is_sharing);
        if was_sharing && !is_sharing {
            self.leave();
            self.go_on();
        }
    }

    /// Searches from the streams that it has.
    fn go_on(&mut self) {
        let start = WarmStart { default: self.start, predicted: Some(self.wanted) };
        self.controller = KneeController::new(start, self.limits);
    }

    fn decide(
        &mut self,
        sample: &TunerSample,
        sharing: Option<SharingBounds>,
        known: Option<KnownStreams>,
    ) -> SearchAnswer {
        match (&self.shared, sharing) {
            (Some(member), Some(SharingBounds { budget, .. })) => {
                let (start, max) = (self.start, self.limits.max);
                let known = known.map(|known| known.streams);
                let limits = SearchLimits { start, known, max, budget };
                member.observe(sample, limits)
            }
            _ => {
                let decision = self.controller.observe(sample);
                let TunerDecision { target: workers, stream_pacing_bps, .. } = decision;
                SearchAnswer { workers, stream_pacing_bps, decision: Some((decision, 1)) }
            }
        }
    }

    /// Leaves the search that it shares.
    pub(super) fn leave(&self) {
        if let Some(member) = &self.shared {
            member.leave();
        }
    }

    /// Changes the mode. Returns the settings to begin with where others are in place.
    fn switch(&mut self, mode: TuningMode) -> Option<Parallelism> {
        self.mode = mode;
        self.stream_pacing_bps = None;
        self.share(false);
        match mode {
            TuningMode::Auto | TuningMode::History => {
                self.go_on();
                return None;
            }
            TuningMode::Observe | TuningMode::Off => {}
        }
        if self.wanted == self.start {
            return None;
        }
        self.controller = KneeController::new(self.start, self.limits);
        self.wanted = self.start;
        Some(self.start)
    }

    /// Takes a request for this transfer to do at most this. A tuner that is switched on goes on from the settings in
    /// place, also where they were set by hand.
    ///
    /// # Errors
    /// The reason why no decisions can follow.
    pub(super) fn ask(&mut self, mode: TuningMode) -> Result<(), &'static str> {
        if let Some(RECEIVES) = self.ended {
            return Err(RECEIVES);
        }
        (self.asked, self.off) = (mode, SET_OFF);
        if mode > TuningMode::Off {
            self.ended = None;
            self.takes_over = true;
        }
        Ok(())
    }

    /// Begins anew with the streams of an order, and exceeds them no more. Returns false where the caller keeps to the
    /// number, because no decisions follow.
    pub(super) fn allot(&mut self, streams: u16) -> bool {
        if self.allotted_max == Some(streams) {
            return self.ended.is_none() && self.mode != TuningMode::Off;
        }
        self.allotted_max = Some(streams);
        self.known = None;
        self.start.streams = streams;
        self.wanted.streams = streams;
        let most = self.workers_max.unwrap_or(self.start);
        self.limits = limits_of(most.with(PipelineStage::Streams, streams), self.start);
        self.go_on();
        self.leave();
        false
    }

    fn keep(&mut self, record: TuningRecord) {
        if self.records.len() == RECORDS_MAX {
            self.records.remove(0);
            self.left_out += 1;
        }
        self.records.push(record);
    }

    /// Decisions so far, with rate and streams over the whole time.
    pub(super) fn report(&self) -> TuningReport {
        let of_history = || match self.has_known || self.known.is_some() {
            true => HISTORY_KEEPS,
            false => HISTORY_LACKS,
        };
        let of_mode = || match self.mode {
            TuningMode::Off if self.asked == TuningMode::Off => Some(self.off),
            TuningMode::Off => Some(SWITCHED_OFF),
            TuningMode::History => Some(of_history()),
            TuningMode::Observe | TuningMode::Auto => None,
        };
        TuningReport {
            mode: self.mode,
            ended: self.ended.or_else(of_mode),
            latest: self.latest.clone(),
            records: self.records.clone(),
            left_out: self.left_out,
            series: self.series.points.clone(),
            samples: match self.ended.is_some() || self.mode == TuningMode::Off {
                true => Arc::default(),
                false => Arc::clone(&self.samples),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_series_keeps_mean_rate() {
        let mut series = RateSeries::default();
        let samples = 10 * POINTS_MAX as u64;
        for index in 0..samples {
            let at = Duration::from_millis(500 * (index + 1));
            series.add(RatePoint { at, rate_bps: 2 * (index % 4), streams: 3 });
        }
        let points = &series.points;
        assert!((POINTS_MAX / 2..POINTS_MAX).contains(&points.len()), "{}", points.len());
        assert!(points.iter().all(|point| point.rate_bps == 3 && point.streams == 3));
        let distances = points.windows(2).map(|pair| pair[1].at - pair[0].at);
        assert!(distances.into_iter().all(|distance| distance == Duration::from_secs(8)));
        assert!(points.last().unwrap().at <= Duration::from_millis(500 * samples));
    }

    #[test]
    fn reports_share_samples() {
        let tuner = AutoTuner::new(4, None, None);
        assert!(Arc::ptr_eq(&tuner.report().samples, &tuner.report().samples));
    }

    #[test]
    fn order_bounds_streams() {
        let mut tuner = AutoTuner::new(4, None, None);
        assert!(!tuner.allot(12), "the first number is set");
        assert!(tuner.allot(12), "the tuner keeps it");
        assert_eq!((tuner.wanted.streams, tuner.limits.max.streams), (12, 12));
        tuner.ended = Some("ended");
        assert!(!tuner.allot(12), "nothing else does");
    }

    #[test]
    fn threads_stay_within_limits() {
        const FIRST: Parallelism = Parallelism { readers: 2, streams: 4, writers: 8 };
        let limits = |tuner: &AutoTuner| {
            let TuningLimits { min, max } = tuner.limits;
            [(min.readers, max.readers), (min.writers, max.writers)]
        };
        let mut tuner = AutoTuner::new(4, None, None);
        tuner.begin_with(FIRST, |_| true);
        let most = TUNED_THREADS_MAX;
        assert_eq!((tuner.start, limits(&tuner)), (FIRST, [(2, most), (8, most)]));
        tuner.begin_with(Parallelism { readers: 9, streams: 9, writers: 9 }, |_| true);
        assert_eq!(tuner.start, FIRST, "those of the first session count");
        assert!(!tuner.allot(6));
        assert_eq!(tuner.wanted, FIRST.with(PipelineStage::Streams, 6));
        assert_eq!(limits(&tuner), [(2, most), (8, most)]);
        // A request, or a digest in file order, sets them.
        let mut named = AutoTuner::new(4, None, None);
        named.begin_with(FIRST, |stage| stage == PipelineStage::Readers);
        assert_eq!(limits(&named), [(2, most), (8, 8)]);
    }

    #[test]
    fn unchanged_settings_are_not_sent() {
        let first = Parallelism { readers: 2, streams: 4, writers: 8 };
        assert_eq!(changes(first, first), Settings::default());
        let settings = changes(first, first.with(PipelineStage::Writers, 16));
        assert_eq!(settings, Settings { writers: Some(16), ..Settings::default() });
    }

    #[test]
    fn history_mode_keeps_known_streams() {
        let known = KnownStreams { streams: 16, stream_bps: 6_000_000, transfers: 5 };
        let mut tuner = AutoTuner::new(4, Some(known), None);
        assert_eq!(tuner.switch(TuningMode::History), None);
        assert_eq!((tuner.wanted.streams, tuner.report().ended), (16, Some(HISTORY_KEEPS)));
        let mut unknown = AutoTuner::new(4, None, None);
        assert_eq!(unknown.switch(TuningMode::History), None);
        assert_eq!((unknown.wanted.streams, unknown.report().ended), (4, Some(HISTORY_LACKS)));
        assert_eq!(tuner.switch(TuningMode::Auto), None, "it searches from these");
        assert_eq!((tuner.wanted.streams, tuner.report().ended), (16, None));
    }

    #[test]
    fn observed_changes_are_named_so() {
        let change = StageChange { stage: PipelineStage::Streams, from: 2, to: 1 };
        let reason = ChangeReason::Probing { change };
        let target = Parallelism::streams(1);
        let decision = TunerDecision { target, stream_pacing_bps: None, reason };
        // A mode that changes while it runs leaves the reasons of earlier decisions as they are.
        assert!(!reason_text(&decision, 1, true).contains("not applied"));
        assert!(reason_text(&decision, 1, false).ends_with("(not applied)"));
        assert!(reason_text(&decision, 3, false).starts_with("3 transfers"));
    }

    #[test]
    fn request_resumes_ended_tuner() {
        let mut tuner = AutoTuner::new(4, None, None);
        assert_eq!(tuner.ask(TuningMode::Off), Ok(()));
        tuner.switch(TuningMode::Off);
        assert_eq!(tuner.report().ended, Some(SET_OFF));
        tuner.ended = Some("the streams were changed by hand");
        assert_eq!(tuner.ask(TuningMode::Off), Ok(()));
        assert!(tuner.ended.is_some() && !tuner.takes_over);
        assert_eq!(tuner.ask(TuningMode::Auto), Ok(()));
        assert!(tuner.ended.is_none() && tuner.takes_over);
        tuner.ended = Some(RECEIVES);
        assert_eq!(tuner.ask(TuningMode::Auto), Err(RECEIVES));
    }

    #[test]
    fn switched_off_tuner_restores_start() {
        let mut tuner = AutoTuner::new(4, None, None);
        tuner.wanted.streams = 16;
        assert_eq!(tuner.switch(TuningMode::Off), Some(Parallelism::streams(4)));
        assert_eq!(tuner.report().ended, Some(SWITCHED_OFF));
        assert_eq!(tuner.switch(TuningMode::Auto), None);
        assert_eq!(tuner.report().ended, None, "it searches again");
        let mut fresh = AutoTuner::new(4, None, None);
        assert_eq!(fresh.switch(TuningMode::Observe), None);
    }
}
