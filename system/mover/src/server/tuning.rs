//! Tuning of the streams of the transfers that this agent sends, and its results.

use std::sync::Arc;

use penstock_protocol::control::Settings;
use penstock_protocol::digest::Algorithm;
use penstock_protocol::open::Options;

use super::agent::{Agent, AgentInner};
use super::delegate::Delegate;
use super::limits::AgentLimits;
use crate::base::limits::{STREAMS_DEFAULT, default_streams};
use crate::base::lock::lock;
use crate::client::auto_tuner::{SWITCHED_OFF, TuningMode};
use crate::client::stream_tuning::{GATEWAY, StreamTuning, TuningBounds, TuningReport};
use crate::endpoint::end::Endpoint;

/// Reasons of sessions that a client opened.
const CLIENT: &str = "its client chooses the streams: penstock transfers show --why, where the client runs, says how";
const NAMED: &str = "its client names a number of streams, or --tune off or observe";

impl Agent {
    /// Decisions about the streams of a transfer that runs or ended recently, or the reason why there are none.
    #[must_use]
    pub fn tuning(&self, id: u64) -> Option<TuningReport> {
        let inner = &self.0;
        let initiated = lock(&inner.initiated).get(&id).cloned();
        if let Some(one) = initiated {
            return Some(one.tuning());
        }
        let running = lock(&inner.sessions).values().find(|one| one.id == id).cloned();
        if let Some(one) = running {
            let of_delegate = one.delegate.as_ref().map(Delegate::tuning);
            return Some(of_delegate.unwrap_or_else(|| TuningReport::kept(CLIENT)));
        }
        if inner.gateway_transfer(id).is_some() {
            return Some(TuningReport::kept(GATEWAY));
        }
        let history = lock(&inner.history);
        let ended = history.iter().rev().find(|ended| ended.listed.id == id)?;
        Some(ended.tuning.clone().unwrap_or_else(|| TuningReport::kept(CLIENT)))
    }
}

impl AgentInner {
    /// Tuning of the streams of a transfer that this agent sends, by its operator's setting.
    pub(super) fn tuning(
        self: &Arc<Self>,
        id: u64,
        options: &Options,
        limits: &AgentLimits,
    ) -> StreamTuning {
        let start = options.settings.streams.unwrap_or(STREAMS_DEFAULT);
        self.tuning_from(id, options.algorithm, start, limits)
    }

    /// Tuning of a third-party copy, whose sending end is `end`. Without a number from its client this agent chooses one,
    /// of at most `streams_max`, and begins with its default.
    pub(super) fn delegate_tuning(
        self: &Arc<Self>,
        id: u64,
        end: &Endpoint,
        limits: &AgentLimits,
        streams_max: u16,
    ) -> StreamTuning {
        let options = &end.session().options;
        if options.settings.streams.is_some() {
            return StreamTuning::Kept(NAMED);
        }
        let start = default_streams(options.algorithm).min(streams_max).max(1);
        end.session().apply(&Settings { streams: Some(start), ..Settings::default() });
        self.tuning_from(id, options.algorithm, start, limits)
    }

    fn tuning_from(
        self: &Arc<Self>,
        id: u64,
        algorithm: Algorithm,
        start: u16,
        limits: &AgentLimits,
    ) -> StreamTuning {
        if limits.tuning == TuningMode::Off {
            return StreamTuning::Kept(SWITCHED_OFF);
        }
        if !algorithm.combines() {
            return StreamTuning::Kept("the digest needs the order of the file, and so one stream");
        }
        let inner = Arc::downgrade(self);
        let bounds = move || match inner.upgrade() {
            Some(inner) => {
                let limits = lock(&inner.limits).clone();
                let streams_max = inner.streams_free(&limits, Some(id));
                TuningBounds { mode: limits.tuning, streams_max }
            }
            None => TuningBounds { mode: TuningMode::Off, streams_max: start },
        };
        StreamTuning::Tuned { start, bounds: Box::new(bounds) }
    }
}
