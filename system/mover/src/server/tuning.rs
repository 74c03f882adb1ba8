//! Tuning of the streams of the transfers that this agent sends, and its results.

use std::sync::Arc;

use penstock_protocol::control::Settings;
use penstock_protocol::digest::Algorithm;
use penstock_protocol::open::Options;
use penstock_tuner::TuningMode;

use super::agent::{Agent, AgentInner, UnknownTransfer};
use super::delegate::Delegate;
use super::ended_log::dialed_host;
use super::limits::AgentLimits;
use crate::base::limits::{STREAMS_DEFAULT, default_streams};
use crate::base::lock::lock;
use crate::client::host_searches::SearchMembership;
use crate::client::stream_tuning::{
    GATEWAY, KnownStreams, SharedSearch, SharingBounds, StreamTuning, TuningBounds, TuningReport,
};
use crate::endpoint::end::Endpoint;
use crate::net::connector::PeerConnector;

/// Reasons of sessions that a client opened.
const CLIENT: &str = "its client chooses the streams: penstock transfers show --why, where the client runs, says how";
const NAMED: &str = "its client names a number of streams, or --tune off";
const ASKED_OFF: &str = "its request switches the tuner off";

/// Error of a request to switch the tuner of a transfer on or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TuningChangeError {
    /// No such transfer runs here.
    #[error(transparent)]
    Unknown(#[from] UnknownTransfer),
    /// Its streams are not tuned.
    #[error("transfer {0} keeps its streams: {1}")]
    Kept(u64, &'static str),
}

impl Agent {
    /// Lets the tuner of a running transfer do at most this, within the mode of the operator.
    ///
    /// # Errors
    /// If no such transfer runs, or its streams are not tuned here.
    pub fn set_tuning(&self, id: u64, mode: TuningMode) -> Result<(), TuningChangeError> {
        let kept = |reason| TuningChangeError::Kept(id, reason);
        let initiated = lock(&self.0.initiated).get(&id).cloned();
        if let Some(one) = initiated {
            return one.set_tuning(mode).map_err(kept);
        }
        if self.0.gateway_transfer(id).is_some() {
            return Err(kept(GATEWAY));
        }
        match &self.find(id)?.delegate {
            Some(delegate) => delegate.set_tuning(mode).map_err(kept),
            None => Err(kept(CLIENT)),
        }
    }

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
    /// Tuning of the streams of a transfer that this agent sends to `to`, by the lesser of its operator's mode and that of its
    /// request. Where the request does not name the streams, it may begin with those that earlier transfers ended with.
    pub(super) fn tuning(
        self: &Arc<Self>,
        id: u64,
        to: &PeerConnector,
        options: &Options,
        limits: &AgentLimits,
        asked: TuningMode,
        is_named: bool,
    ) -> StreamTuning {
        let start = options.settings.streams.unwrap_or(STREAMS_DEFAULT);
        let host = dialed_host(&to.shown(), to.dial.destination());
        let known = match is_named {
            true => None,
            false => self.known_streams(&host, options, limits, asked, start),
        };
        self.tuning_from(id, host, options.algorithm, (start, known), asked)
    }

    /// Tuning of a third-party copy to `host`, whose sending end is `end`. Without a number from its client this agent chooses one,
    /// of at most `streams_max`, and begins with its default. With one it only observes, if the client wishes so.
    pub(super) fn delegate_tuning(
        self: &Arc<Self>,
        id: u64,
        host: &str,
        end: &Endpoint,
        limits: &AgentLimits,
        streams_max: u16,
        is_observed: bool,
    ) -> StreamTuning {
        let options = &end.session().options;
        let named = options.settings.streams;
        let asked = match (named, is_observed) {
            (None, _) => TuningMode::Auto,
            (Some(_), true) => TuningMode::Observe,
            (Some(_), false) => return StreamTuning::Kept(NAMED),
        };
        let start = named.unwrap_or_else(|| default_streams(options.algorithm));
        let start = start.min(streams_max).max(1);
        let host = dialed_host(host, None);
        let known = self.known_streams(&host, options, limits, asked, start);
        let tuning = self.tuning_from(id, host, options.algorithm, (start, known), asked);
        let streams = tuning.streams_to_begin().unwrap_or(start).min(streams_max);
        end.session().apply(&Settings { streams: Some(streams), ..Settings::default() });
        tuning
    }

    /// Streams that earlier transfers to `host` ended with, where they are more than `start` and this is the only one.
    fn known_streams(
        &self,
        host: &str,
        options: &Options,
        limits: &AgentLimits,
        asked: TuningMode,
        start: u16,
    ) -> Option<KnownStreams> {
        let mode = limits.tuning.min(asked);
        let is_tuned = mode >= TuningMode::History && !self.searches.has(host);
        let log = self.config.ended_log.as_ref().filter(|_| is_tuned)?;
        let mut known = log.best_streams(host, options.protection)?;
        known.streams = known.streams.min(self.streams_free(limits, None));
        (known.streams > start && options.settings.rate_bps.is_none()).then_some(known)
    }

    fn tuning_from(
        self: &Arc<Self>,
        id: u64,
        host: String,
        algorithm: Algorithm,
        (start, known): (u16, Option<KnownStreams>),
        asked: TuningMode,
    ) -> StreamTuning {
        if asked == TuningMode::Off {
            return StreamTuning::Kept(ASKED_OFF);
        }
        if !algorithm.combines() {
            return StreamTuning::Kept("the digest needs the order of the file, and so one stream");
        }
        let inner = Arc::downgrade(self);
        let bounds = move || match inner.upgrade() {
            Some(inner) => {
                let limits = lock(&inner.limits).clone();
                let streams_max = inner.streams_free(&limits, Some(id));
                let mut searching = inner.searches.transfers();
                searching.insert(id);
                let budget = inner.streams_left(&limits, |other| searching.contains(&other));
                let sharing = SharingBounds { streams_max: limits.streams_per_transfer, budget };
                let mode = limits.tuning.min(asked);
                TuningBounds { mode, streams_max, sharing: Some(sharing) }
            }
            None => TuningBounds { mode: TuningMode::Off, streams_max: start, sharing: None },
        };
        let membership = SearchMembership::new(&self.searches, host, id);
        let shared = SharedSearch::of(membership);
        StreamTuning::Tuned { start, known, bounds: Box::new(bounds), shared, off: None }
    }
}
