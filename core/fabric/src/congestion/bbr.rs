//! BBR version 1 (Cardwell et al., ACM Queue 14 (5), 2016; draft-cardwell-iccrg-bbr-congestion-control-00): paces at
//! the maximum recent delivery rate and limits the data in flight to a multiple of that rate times the minimum RTT.
//!
//! Simplifications: the gain cycle always starts at the same phase, and losses have no effect.

use std::collections::VecDeque;

use super::{Ack, Congestion, Pace, PathProperties};
use crate::parameters::Parameters;
use crate::time::PS_PER_SECOND;

/// Minimum window in segments.
const SEGMENTS_MIN: u64 = 4;
/// Pacing gains of ProbeBW, each held for about a minimum RTT; the cycle starts after the draining phase.
const PACING_GAIN_CYCLE: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
const CYCLE_START: usize = 2;
/// The pipe is full when the delivery rate grew by less than this factor in each of [`FULL_ROUNDS`] rounds.
const FULL_PIPE_GROWTH: f64 = 1.25;
const FULL_ROUNDS: u32 = 3;

#[derive(Debug, Clone, Copy, PartialEq)]
enum BbrPhase {
    /// Exponential search for the bottleneck rate.
    Startup,
    /// Sends below the estimated bottleneck rate until the queue of the start-up has drained.
    Drain,
    /// ProbeBW: index in the gain cycle, and the start of its phase.
    ProbeBandwidth { at: usize, since_ps: u64 },
    /// ProbeRTT: minimum window; its end, once data in flight has dropped to the minimum.
    ProbeRtt { until_ps: Option<u64> },
}

/// State of one connection; rates in bits per second.
#[derive(Debug)]
pub(super) struct Bbr {
    line: f64,
    segment: u64,
    /// Bytes on the wire per byte of payload.
    overhead: f64,
    startup_gain: f64,
    window_gain: f64,
    rounds: u64,
    probe_interval_ps: u64,
    probe_rtt_ps: u64,
    initial_window: u64,

    phase: BbrPhase,
    /// Windowed maximum filter: round and rate of the samples that no later sample exceeds.
    rates: VecDeque<(u64, f64)>,
    round: u64,
    round_ends_at: u64,
    min_rtt_ps: u64,
    min_rtt_at_ps: u64,
    full_rate: f64,
    full_rounds: u32,
    is_pipe_full: bool,
}

impl Bbr {
    pub(super) fn new(parameters: &Parameters, path: &PathProperties, pace: &mut Pace) -> Self {
        let segment = u64::from(path.mtu);
        let initial_window = u64::from(parameters.tcp_initial_window) * segment;
        pace.window_bytes = initial_window;
        Self {
            line: path.line_bps as f64,
            segment,
            overhead: f64::from(path.packet_bytes) / f64::from(path.mtu),
            startup_gain: parameters.bbr_startup_gain,
            window_gain: parameters.bbr_window_gain,
            rounds: u64::from(parameters.bbr_rounds),
            probe_interval_ps: parameters.bbr_probe_interval.0,
            probe_rtt_ps: parameters.bbr_probe_time.0,
            initial_window,
            phase: BbrPhase::Startup,
            rates: VecDeque::new(),
            round: 0,
            round_ends_at: 0,
            min_rtt_ps: u64::MAX,
            min_rtt_at_ps: 0,
            full_rate: 0.0,
            full_rounds: 0,
            is_pipe_full: false,
        }
    }

    /// Returns the maximum delivery rate of the last `rounds` rounds.
    fn max_rate_bps(&self) -> f64 {
        self.rates.front().map_or(0.0, |(_, rate)| *rate)
    }

    /// Returns the target payload in flight: estimated BDP times a gain.
    fn target_inflight(&self, gain: f64) -> u64 {
        if self.min_rtt_ps == u64::MAX || self.rates.is_empty() {
            return self.initial_window;
        }
        let bytes = self.max_rate_bps() / 8.0 * self.min_rtt_ps as f64 / PS_PER_SECOND as f64;
        // Allowance for coalesced acknowledgements.
        (gain * bytes) as u64 + 3 * self.segment
    }

    /// Adds a delivery rate sample; returns true if it starts a round.
    fn add_rate_sample(&mut self, ack: &Ack<'_>) -> bool {
        let sample = &ack.sample;
        if sample.interval_ps == 0 {
            return false;
        }
        let is_new_round = sample.delivered_before >= self.round_ends_at;
        if is_new_round {
            self.round_ends_at = ack.delivered_bytes;
            self.round += 1;
        }
        let rate = sample.bytes as f64 * 8.0 * PS_PER_SECOND as f64 / sample.interval_ps as f64;
        if sample.is_app_limited && rate < self.max_rate_bps() {
            return is_new_round;
        }
        while self.rates.back().is_some_and(|(_, before)| *before <= rate) {
            self.rates.pop_back();
        }
        self.rates.push_back((self.round, rate));
        while self.rates.front().is_some_and(|(round, _)| round + self.rounds < self.round) {
            self.rates.pop_front();
        }
        is_new_round
    }

    fn check_full_pipe(&mut self, is_app_limited: bool) {
        if self.is_pipe_full || is_app_limited {
            return;
        }
        if self.max_rate_bps() >= self.full_rate * FULL_PIPE_GROWTH {
            (self.full_rate, self.full_rounds) = (self.max_rate_bps(), 0);
            return;
        }
        self.full_rounds += 1;
        self.is_pipe_full = self.full_rounds >= FULL_ROUNDS;
    }

    fn advance_phase(&mut self, ack: &Ack<'_>) {
        let now = ack.now_ps;
        if self.phase == BbrPhase::Startup && self.is_pipe_full {
            self.phase = BbrPhase::Drain;
        }
        if self.phase == BbrPhase::Drain && ack.in_flight_bytes <= self.target_inflight(1.0) {
            self.phase = BbrPhase::ProbeBandwidth { at: CYCLE_START, since_ps: now };
        }
        if let BbrPhase::ProbeBandwidth { at, since_ps } = self.phase {
            let is_over = now - since_ps > self.min_rtt_ps;
            let gain = PACING_GAIN_CYCLE[at];
            let may_advance = match gain {
                // Probing lasts until the pipe holds the larger amount, draining until the excess is gone.
                gain if gain > 1.0 => {
                    is_over
                        && (ack.is_recovering || ack.in_flight_bytes >= self.target_inflight(gain))
                }
                gain if gain < 1.0 => is_over || ack.in_flight_bytes <= self.target_inflight(1.0),
                _ => is_over,
            };
            if may_advance {
                self.phase = BbrPhase::ProbeBandwidth {
                    at: (at + 1) % PACING_GAIN_CYCLE.len(),
                    since_ps: now,
                };
            }
        }
        self.update_min_rtt(ack);
    }

    fn update_min_rtt(&mut self, ack: &Ack<'_>) {
        let now = ack.now_ps;
        let is_old = now > self.min_rtt_at_ps + self.probe_interval_ps;
        if ack.round_trip_ps <= self.min_rtt_ps || is_old {
            (self.min_rtt_ps, self.min_rtt_at_ps) = (ack.round_trip_ps, now);
        }
        if is_old && !matches!(self.phase, BbrPhase::ProbeRtt { .. }) {
            self.phase = BbrPhase::ProbeRtt { until_ps: None };
        }
        if let BbrPhase::ProbeRtt { until_ps } = self.phase {
            match until_ps {
                None if ack.in_flight_bytes <= SEGMENTS_MIN * self.segment => {
                    let until = now + self.probe_rtt_ps.max(ack.round_trip_ps);
                    self.phase = BbrPhase::ProbeRtt { until_ps: Some(until) };
                }
                Some(until) if now > until => {
                    self.min_rtt_at_ps = now;
                    self.phase = if self.is_pipe_full {
                        BbrPhase::ProbeBandwidth { at: CYCLE_START, since_ps: now }
                    } else {
                        BbrPhase::Startup
                    };
                }
                _ => {}
            }
        }
    }

    fn update_pace(&self, pace: &mut Pace) {
        let (pacing, window) = match self.phase {
            BbrPhase::Startup => (self.startup_gain, self.target_inflight(self.startup_gain)),
            BbrPhase::Drain => (1.0 / self.startup_gain, self.target_inflight(self.startup_gain)),
            BbrPhase::ProbeBandwidth { at, .. } => {
                (PACING_GAIN_CYCLE[at], self.target_inflight(self.window_gain))
            }
            BbrPhase::ProbeRtt { .. } => (1.0, 0),
        };
        let least = match self.phase {
            BbrPhase::Startup => self.initial_window,
            _ => SEGMENTS_MIN * self.segment,
        };
        pace.window_bytes = window.max(least);
        if self.max_rate_bps() > 0.0 {
            let rate = (pacing * self.max_rate_bps() * self.overhead).min(self.line);
            pace.rate_bps = (rate as u64).max(1);
        }
    }
}

impl Congestion for Bbr {
    fn on_ack(&mut self, ack: &Ack<'_>, pace: &mut Pace) {
        if self.add_rate_sample(ack) {
            self.check_full_pipe(ack.sample.is_app_limited);
        }
        self.advance_phase(ack);
        self.update_pace(pace);
    }

    fn on_timeout(&mut self, _now_ps: u64, pace: &mut Pace) {
        pace.window_bytes = SEGMENTS_MIN * self.segment;
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::path;
    use super::*;
    use crate::congestion::DeliveryRate;

    const PS_PER_MS: u64 = PS_PER_SECOND / 1000;

    fn ack(
        now_ms: u64,
        rate_bps: u64,
        delivered: u64,
        in_flight: u64,
        round_trip: u64,
    ) -> Ack<'static> {
        let interval_ps = 10 * PS_PER_MS;
        Ack {
            now_ps: now_ms * PS_PER_MS,
            newly_bytes: 1000,
            delivered_bytes: delivered,
            in_flight_bytes: in_flight,
            round_trip_ps: round_trip * PS_PER_MS,
            sample: DeliveryRate {
                bytes: rate_bps / 8 / 100,
                interval_ps,
                delivered_before: delivered.saturating_sub(rate_bps / 8 / 100),
                is_app_limited: false,
            },
            ..Ack::default()
        }
    }

    #[test]
    fn startup_drain_then_probe_bandwidth() {
        let mut pace = Pace { rate_bps: 100_000_000_000, window_bytes: 0, has_timers: false };
        let mut bbr = Bbr::new(&Parameters::default(), &path(), &mut pace);
        assert_eq!(pace.window_bytes, 10_000);
        let mut delivered = 0;
        let mut acknowledge = |bbr: &mut Bbr, now_ms: u64, rate: u64, in_flight: u64| {
            delivered += rate / 8 / 100;
            bbr.on_ack(&ack(now_ms, rate, delivered, in_flight, 10), &mut pace);
            pace
        };
        // Start-up follows the doubling rate; then the path delivers 1 Gb/s.
        for (round, rate) in [125, 250, 500, 1000].into_iter().enumerate() {
            let pace = acknowledge(&mut bbr, 10 * round as u64, rate * 1_000_000, 9_000_000);
            let expected = 2.885 * rate as f64 * 1e6 * 1.048;
            assert!((pace.rate_bps as f64 / expected - 1.0).abs() < 1e-6, "{}", pace.rate_bps);
        }
        for round in 4..6 {
            acknowledge(&mut bbr, 10 * round, 1_000_000_000, 9_000_000);
        }
        assert_eq!(bbr.phase, BbrPhase::Startup);
        acknowledge(&mut bbr, 60, 1_000_000_000, 9_000_000);
        assert_eq!(bbr.phase, BbrPhase::Drain);
        let pace = acknowledge(&mut bbr, 70, 1_000_000_000, 9_000_000);
        assert!((pace.rate_bps as f64 / (1e9 * 1.048 / 2.885) - 1.0).abs() < 1e-6);
        // The BDP is 1.25 MB.
        let pace = acknowledge(&mut bbr, 80, 1_000_000_000, 1_250_000);
        assert_eq!(bbr.phase, BbrPhase::ProbeBandwidth { at: 2, since_ps: 80 * PS_PER_MS });
        assert_eq!(pace.window_bytes, 2_503_000);
        let mut gains = Vec::new();
        for step in 0..80 {
            let in_flight = if step % 8 == 7 { 1_700_000 } else { 1_250_000 };
            gains.push(acknowledge(&mut bbr, 91 + 11 * step, 1_000_000_000, in_flight).rate_bps);
        }
        let share = |gain: f64| {
            let rate = (gain * 1e9 * 1.048) as u64;
            gains.iter().filter(|found| found.abs_diff(rate) < 10).count()
        };
        assert!(share(1.25) >= 8 && share(0.75) >= 8 && share(1.0) >= 48, "{gains:?}");
    }

    #[test]
    fn probe_rtt_limits_packets_in_flight() {
        let mut pace = Pace { rate_bps: 1, window_bytes: 0, has_timers: false };
        let mut bbr = Bbr::new(&Parameters::default(), &path(), &mut pace);
        (0..20).for_each(|round| {
            let delivered = 1_250_000 * (round + 1);
            bbr.on_ack(&ack(10 * round, 1_000_000_000, delivered, 1_000_000, 10), &mut pace);
        });
        let later = |bbr: &mut Bbr, now_ms, in_flight, pace: &mut Pace| {
            bbr.on_ack(&ack(now_ms, 1_000_000_000, 99_000_000, in_flight, 12), pace);
        };
        later(&mut bbr, 10_300, 1_000_000, &mut pace);
        assert_eq!(bbr.phase, BbrPhase::ProbeRtt { until_ps: None });
        assert_eq!(pace.window_bytes, 4000);
        later(&mut bbr, 10_320, 4000, &mut pace);
        later(&mut bbr, 10_500, 4000, &mut pace);
        assert!(matches!(bbr.phase, BbrPhase::ProbeRtt { until_ps: Some(_) }));
        later(&mut bbr, 10_521, 4000, &mut pace);
        assert!(matches!(bbr.phase, BbrPhase::ProbeBandwidth { .. }), "{:?}", bbr.phase);
        assert_eq!(bbr.min_rtt_ps, 12 * PS_PER_MS);
    }
}
