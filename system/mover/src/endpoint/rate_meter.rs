//! Rate and bottleneck of a session over time.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use penstock_protocol::control::Report;
use penstock_protocol::open::SessionId;

use super::end::Endpoint;
use crate::session::bottleneck::{WaitShares, bottleneck};

/// Rate and bottleneck of a session, sampled.
#[derive(Debug)]
pub struct RateMeter {
    /// Mean rate between the last two samples.
    pub bits_per_second: u64,
    /// Bottleneck between the last two samples.
    pub bound_by: &'static str,
    /// Session of `last`: counters of another session start at zero.
    session: Option<SessionId>,
    last: Option<(Instant, u64, u64, Report, Report)>,
    /// Microseconds by bottleneck.
    bounded_us: HashMap<&'static str, u64>,
}

impl Default for RateMeter {
    fn default() -> Self {
        Self {
            bits_per_second: 0,
            bound_by: "starting",
            session: None,
            last: None,
            bounded_us: HashMap::new(),
        }
    }
}

impl RateMeter {
    /// Takes a sample, if the last one is old enough.
    pub fn observe(&mut self, end: &Endpoint) {
        const SAMPLE_INTERVAL: Duration = Duration::from_millis(450);
        let session = end.session();
        let now = Instant::now();
        if self.session.replace(session.id) != Some(session.id) {
            self.last = None;
        }
        if self.last.as_ref().is_some_and(|(at, ..)| at.elapsed() < SAMPLE_INTERVAL) {
            return;
        }
        let bytes = session.meter.network_bytes.load(Ordering::Relaxed);
        let rate_us = session.meter.waited_rate_us.load(Ordering::Relaxed);
        let (own, peer) = (session.report(), session.peer());
        if let Some((at, bytes_before, rate_before, own_before, peer_before)) = &self.last {
            let elapsed_us = u64::try_from(at.elapsed().as_micros()).unwrap_or(u64::MAX).max(1);
            let bits = (bytes - bytes_before) as f64 * 8.0;
            self.bits_per_second = (bits * 1e6 / elapsed_us as f64) as u64;
            let own_share = WaitShares::between(own_before, &own, elapsed_us);
            let peer_share = WaitShares::between(peer_before, &peer, elapsed_us);
            let rate = rate_share(rate_us - rate_before, elapsed_us, &own);
            self.bound_by = bottleneck_of(end, own_share, peer_share, rate);
            *self.bounded_us.entry(self.bound_by).or_default() += elapsed_us;
        }
        self.last = Some((now, bytes, rate_us, own, peer));
    }

    /// Mean rate of a session since its start, and its most frequent bottleneck; `-` if nothing was
    /// sent.
    #[must_use]
    pub fn overall(&self, end: &Endpoint) -> (u64, &'static str) {
        let session = end.session();
        let elapsed_us = u64::try_from(session.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        let bits = session.meter.network_bytes.load(Ordering::Relaxed) as f64 * 8.0;
        let mean = (bits * 1e6 / elapsed_us.max(1) as f64) as u64;
        if mean == 0 {
            return (0, "-");
        }
        if let Some((bound, _)) = self.bounded_us.iter().max_by_key(|(_, time)| **time) {
            return (mean, bound);
        }
        // Too short for two samples; the processor load is unknown.
        let share = |report: &Report| WaitShares {
            cpu: 0.0,
            ..WaitShares::between(&Report::default(), report, elapsed_us)
        };
        let (own, peer) = (session.report(), session.peer());
        let rate_us = session.meter.waited_rate_us.load(Ordering::Relaxed);
        let rate = rate_share(rate_us, elapsed_us, &own);
        (mean, bottleneck_of(end, share(&own), share(&peer), rate))
    }
}

/// Fraction of its streams' time that an end waited for its rate limit.
fn rate_share(waited_us: u64, elapsed_us: u64, report: &Report) -> f64 {
    waited_us as f64 / (elapsed_us.max(1) as f64 * f64::from(report.streams.max(1)))
}

fn bottleneck_of(end: &Endpoint, own: WaitShares, peer: WaitShares, rate: f64) -> &'static str {
    match end {
        Endpoint::Send(_) => bottleneck(own, peer, rate),
        Endpoint::Receive(_) => bottleneck(peer, own, rate),
    }
}
