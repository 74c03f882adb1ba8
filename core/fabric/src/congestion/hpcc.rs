//! HPCC (Li et al., SIGCOMM 2019, algorithm 1): the utilisation of the busiest hop, from what switches tell, sets window
//! and rate once in a round trip by a factor, and with each acknowledgement in between from the same reference.

use super::{Ack, Congestion, Pace, Path, rate_min_bps, scaled};
use crate::packet::{Hop, Hops};
use crate::parameters::Parameters;
use crate::time::SECOND;

/// State of one queue pair.
#[derive(Debug)]
pub(super) struct Hpcc {
    line: f64,
    rate_min: f64,
    additive: f64,
    target: f64,
    stages: u32,
    base_rtt: f64,
    bdp: f64,

    utilisation: f64,
    reference: f64,
    stage: u32,
    /// The packet after which the reference changes next.
    update_after: u64,
    last: Hops,
}

impl Hpcc {
    pub(super) fn new(parameters: &Parameters, path: &Path, pace: &mut Pace) -> Self {
        let line = path.line_bps as f64;
        pace.window_bytes = path.bdp_bytes();
        Self {
            line,
            rate_min: rate_min_bps(parameters),
            additive: scaled(parameters.hpcc_additive, 10e6, 25e9, path),
            target: parameters.hpcc_target,
            stages: parameters.hpcc_stages,
            base_rtt: path.base_rtt_ps as f64,
            bdp: path.bdp_bytes() as f64,
            utilisation: 1.0,
            reference: line,
            stage: 0,
            update_after: 0,
            last: Hops::default(),
        }
    }

    /// The moving mean of the busiest hop's bytes under way, as a share of what fits (function MeasureInflight).
    fn measure(&self, hops: &[Hop]) -> Option<f64> {
        let mut busiest = None;
        for (new, old) in hops.iter().zip(self.last.as_slice()) {
            let interval = new.time_ps.saturating_sub(old.time_ps) as f64;
            if interval <= 0.0 {
                continue;
            }
            let rate = new.bits_per_second as f64;
            let sent = new.sent_bytes.wrapping_sub(old.sent_bytes) as f64 * 8.0;
            let busy = sent * SECOND as f64 / interval / rate;
            let queue = new.queue_bytes.min(old.queue_bytes) as f64 * 8.0;
            let waiting = queue * SECOND as f64 / (rate * self.base_rtt);
            let share = busy + waiting;
            if busiest.is_none_or(|(most, _)| share > most) {
                busiest = Some((share, interval));
            }
        }
        let (share, interval) = busiest?;
        let weight = (interval / self.base_rtt).min(1.0);
        Some(self.utilisation * (1.0 - weight) + share * weight)
    }
}

impl Congestion for Hpcc {
    fn on_ack(&mut self, ack: &Ack<'_>, pace: &mut Pace) {
        let is_first = self.last.as_slice().is_empty();
        let measured = self.measure(ack.hops);
        self.last = Hops::default();
        ack.hops.iter().for_each(|hop| self.last.push(*hop));
        if is_first {
            self.update_after = ack.next;
            return;
        }
        if let Some(measured) = measured {
            self.utilisation = measured;
        }
        let over = self.utilisation / self.target;
        let (rate, stage) = if over >= 1.0 || self.stage >= self.stages {
            (self.reference / over + self.additive, 0)
        } else {
            (self.reference + self.additive, self.stage + 1)
        };
        let rate = rate.clamp(self.rate_min, self.line);
        if ack.acknowledged > self.update_after {
            (self.reference, self.stage, self.update_after) = (rate, stage, ack.next);
        }
        pace.rate_bps = rate as u64;
        pace.window_bytes = (self.bdp * rate / self.line) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::path;
    use super::*;

    const US: u64 = 1_000_000;

    fn hop(time_ps: u64, sent_bytes: u64, queue_bytes: u64) -> Hop {
        Hop { time_ps, sent_bytes, queue_bytes, bits_per_second: 100_000_000_000 }
    }

    fn ack(hops: &[Hop], acknowledged: u64, next: u64) -> Ack<'_> {
        Ack { now_ps: 0, acknowledged, next, packets: 1, marks: 0, hops, ..Ack::default() }
    }

    /// By hand: full for a whole round trip of 13 us with one bandwidth-delay product waiting is a share of 2.
    #[test]
    fn the_busiest_hop_sets_the_rate() {
        let mut pace = Pace { rate_bps: 0, window_bytes: 0, has_timers: false };
        let mut hpcc = Hpcc::new(&Parameters::default(), &path(), &mut pace);
        assert_eq!(pace.window_bytes, 162_500);
        hpcc.on_ack(&ack(&[hop(0, 0, 0), hop(0, 0, 162_500)], 1, 10), &mut pace);
        let later = [hop(13 * US, 81_250, 0), hop(13 * US, 162_500, 200_000)];
        hpcc.on_ack(&ack(&later, 11, 20), &mut pace);
        assert!((hpcc.utilisation - 2.0).abs() < 1e-9, "{}", hpcc.utilisation);
        let expected = 100e9 / (2.0 / 0.95) + 40e6;
        assert!((hpcc.reference - expected).abs() < 1.0);
        assert_eq!(pace.rate_bps, expected as u64);
        // Within the same round trip the reference stays, so that cuts do not add up.
        let more = [hop(14 * US, 0, 0), hop(14 * US, 175_000, 200_000)];
        hpcc.on_ack(&ack(&more, 12, 21), &mut pace);
        assert!((hpcc.reference - expected).abs() < 1.0);
        assert!(pace.rate_bps < 50_000_000_000);
    }

    #[test]
    fn an_idle_path_is_taken_in_steps_and_then_at_once() {
        let mut pace = Pace { rate_bps: 0, window_bytes: 0, has_timers: false };
        let mut hpcc = Hpcc::new(&Parameters::default(), &path(), &mut pace);
        hpcc.reference = 10e9;
        for round in 0..8 {
            let hops = [hop(13 * US * (round + 1), 16_250 * (round + 1), 0)];
            hpcc.on_ack(&ack(&hops, 10 * round + 1, 10 * round), &mut pace);
        }
        // Five additive steps of 40 Mb/s, then 9.5 times as much and as far as the line.
        assert!(hpcc.reference > 80e9, "{}", hpcc.reference);
    }
}
