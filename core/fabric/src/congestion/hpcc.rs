//! HPCC (Li et al., SIGCOMM 2019, algorithm 1): in-band telemetry yields the utilisation of the busiest hop, which
//! scales rate and window relative to a reference that is updated once per RTT; acknowledgements in between use the
//! same reference.

use super::{Ack, Congestion, Pace, PathProperties, rate_min_bps, scale_to_line};
use crate::packet::{HOPS_MAX, Hop, Hops};
use crate::parameters::Parameters;
use crate::time::{PS_PER_NANOSECOND, PS_PER_SECOND};

/// Resolution of the HPCC simulator's telemetry in bytes: transmitted bytes and queue length.
const SENT_STEP: u64 = 128;
const QUEUE_STEP: u64 = 80;

/// Reference rate with utilisation and increase stage, of the whole path or of one hop.
#[derive(Debug, Clone, Copy)]
struct Reference {
    utilisation: f64,
    rate: f64,
    stage: u32,
}

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
    fast_react: bool,
    skip_idle: bool,
    unit: u64,

    path: Reference,
    /// References per hop with `hpcc_per_hop`.
    hops: Option<Box<[Reference; HOPS_MAX]>>,
    /// The reference changes when a higher packet number is acknowledged.
    update_after: u64,
    last: Hops,
}

/// Load of a hop relative to its capacity, and the measurement interval in picoseconds.
#[derive(Debug, Clone, Copy)]
struct Load {
    share: f64,
    interval: f64,
}

impl Hpcc {
    pub(super) fn new(parameters: &Parameters, path: &PathProperties, pace: &mut Pace) -> Self {
        let line = path.line_bps as f64;
        pace.window_bytes = path.bdp_bytes();
        let reference = Reference { utilisation: 1.0, rate: line, stage: 0 };
        Self {
            line,
            rate_min: rate_min_bps(parameters),
            additive: scale_to_line(parameters.hpcc_additive, 10e6, 25e9, path),
            target: parameters.hpcc_target,
            stages: parameters.hpcc_stages,
            base_rtt: path.base_rtt_ps as f64,
            bdp: path.bdp_bytes() as f64,
            fast_react: parameters.hpcc_fast_react,
            skip_idle: parameters.hpcc_skip_idle,
            unit: u64::from(parameters.hpcc_unit),
            path: reference,
            hops: parameters.hpcc_per_hop.then(|| Box::new([reference; HOPS_MAX])),
            update_after: 0,
            last: Hops::default(),
        }
    }

    /// Rounds the telemetry of a hop to the resolution of `hpcc_unit`.
    fn quantise(&self, hop: &Hop) -> Hop {
        if self.unit == 0 {
            return *hop;
        }
        let (sent, queue) = (SENT_STEP * self.unit, QUEUE_STEP * self.unit);
        Hop {
            time_ps: hop.time_ps / PS_PER_NANOSECOND * PS_PER_NANOSECOND,
            sent_bytes: hop.sent_bytes / sent * sent,
            queue_bytes: hop.queue_bytes / queue * queue,
            ..*hop
        }
    }

    /// Measures the load of a hop since the previous telemetry (function MeasureInflight); none if no time has passed.
    fn measure_load(&self, new: &Hop, old: &Hop) -> Option<Load> {
        let interval = new.time_ps.saturating_sub(old.time_ps) as f64;
        if interval <= 0.0 {
            return None;
        }
        let rate = new.bits_per_second as f64;
        let sent = new.sent_bytes.wrapping_sub(old.sent_bytes) as f64 * 8.0;
        let busy = sent * PS_PER_SECOND as f64 / interval / rate;
        let queue = new.queue_bytes.min(old.queue_bytes) as f64 * 8.0;
        let waiting = queue * PS_PER_SECOND as f64 / (rate * self.base_rtt);
        Some(Load { share: busy + waiting, interval })
    }

    /// Updates the moving average of a load.
    fn moving_average(&self, before: f64, load: Load) -> f64 {
        let weight = (load.interval / self.base_rtt).min(1.0);
        before * (1.0 - weight) + load.share * weight
    }

    /// Computes rate and next stage from a reference.
    fn next_rate(&self, from: &Reference) -> (f64, u32) {
        let over = from.utilisation / self.target;
        let (rate, stage) = if over >= 1.0 || from.stage >= self.stages {
            (from.rate / over + self.additive, 0)
        } else {
            (from.rate + self.additive, from.stage + 1)
        };
        (rate.clamp(self.rate_min, self.line), stage)
    }

    /// Computes the rate from the busiest hop.
    fn update_path_rate(&mut self, loads: &[Option<Load>], is_update: bool) -> f64 {
        let mut busiest: Option<Load> = None;
        for load in loads.iter().flatten() {
            if busiest.is_none_or(|most| load.share > most.share) {
                busiest = Some(*load);
            }
        }
        if let Some(load) = busiest {
            self.path.utilisation = self.moving_average(self.path.utilisation, load);
        }
        let (rate, stage) = self.next_rate(&self.path);
        if is_update {
            (self.path.rate, self.path.stage) = (rate, stage);
        }
        rate
    }

    /// Computes the lowest rate of all hops; a hop without a new measurement contributes its reference rate.
    fn update_hop_rates(
        &self,
        hops: &mut [Reference; HOPS_MAX],
        loads: &[Option<Load>],
        is_update: bool,
    ) -> f64 {
        let mut lowest = self.line;
        for (hop, load) in hops.iter_mut().zip(loads) {
            let Some(load) = load else {
                lowest = lowest.min(hop.rate);
                continue;
            };
            hop.utilisation = self.moving_average(hop.utilisation, *load);
            let (rate, stage) = self.next_rate(hop);
            lowest = lowest.min(rate);
            if is_update {
                (hop.rate, hop.stage) = (rate, stage);
            }
        }
        lowest
    }
}

impl Congestion for Hpcc {
    fn on_ack(&mut self, ack: &Ack<'_>, pace: &mut Pace) {
        let is_first = self.last.as_slice().is_empty();
        let is_update = ack.acknowledged > self.update_after;
        if !is_first && !is_update && !self.fast_react {
            return;
        }
        let mut loads = [None; HOPS_MAX];
        let mut last = Hops::default();
        let mut has_news = !self.skip_idle;
        for (at, hop) in ack.hops.iter().take(HOPS_MAX).enumerate() {
            let new = self.quantise(hop);
            let Some(old) = self.last.as_slice().get(at) else {
                last.push(new);
                continue;
            };
            if self.skip_idle && new.queue_bytes == 0 && !is_update {
                last.push(*old);
            } else {
                has_news = true;
                loads[at] = self.measure_load(&new, old);
                last.push(new);
            }
        }
        self.last = last;
        if is_first {
            self.update_after = ack.next;
            return;
        }
        let loads = &loads[..self.last.as_slice().len()];
        if has_news {
            let rate = match self.hops.take() {
                None => self.update_path_rate(loads, is_update),
                Some(mut hops) => {
                    let rate = self.update_hop_rates(&mut hops, loads, is_update);
                    self.hops = Some(hops);
                    rate
                }
            };
            pace.rate_bps = rate as u64;
            pace.window_bytes = (self.bdp * rate / self.line) as u64;
        }
        if is_update {
            self.update_after = ack.next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::path;
    use super::*;

    const PS_PER_US: u64 = 1_000_000;

    fn hop(time_ps: u64, sent_bytes: u64, queue_bytes: u64) -> Hop {
        Hop { time_ps, sent_bytes, queue_bytes, bits_per_second: 100_000_000_000 }
    }

    fn ack(hops: &[Hop], acknowledged: u64, next: u64) -> Ack<'_> {
        Ack { now_ps: 0, acknowledged, next, packets: 1, marks: 0, hops, ..Ack::default() }
    }

    /// Computed by hand: a hop that is busy for a whole RTT of 13 us with one BDP queued has a load of 2.
    #[test]
    fn busiest_hop_sets_rate() {
        let mut pace = Pace { rate_bps: 0, window_bytes: 0, has_timers: false };
        let mut hpcc = Hpcc::new(&Parameters::default(), &path(), &mut pace);
        assert_eq!(pace.window_bytes, 162_500);
        hpcc.on_ack(&ack(&[hop(0, 0, 0), hop(0, 0, 162_500)], 1, 10), &mut pace);
        let later = [hop(13 * PS_PER_US, 81_250, 0), hop(13 * PS_PER_US, 162_500, 200_000)];
        hpcc.on_ack(&ack(&later, 11, 20), &mut pace);
        assert!((hpcc.path.utilisation - 2.0).abs() < 1e-9, "{}", hpcc.path.utilisation);
        let expected = 100e9 / (2.0 / 0.95) + 40e6;
        assert!((hpcc.path.rate - expected).abs() < 1.0);
        assert_eq!(pace.rate_bps, expected as u64);
        // Within the same RTT the reference stays, so cuts do not accumulate.
        let more = [hop(14 * PS_PER_US, 0, 0), hop(14 * PS_PER_US, 175_000, 200_000)];
        hpcc.on_ack(&ack(&more, 12, 21), &mut pace);
        assert!((hpcc.path.rate - expected).abs() < 1.0);
        assert!(pace.rate_bps < 50_000_000_000);
    }

    #[test]
    fn idle_path_increases_in_stages() {
        let mut pace = Pace { rate_bps: 0, window_bytes: 0, has_timers: false };
        let mut hpcc = Hpcc::new(&Parameters::default(), &path(), &mut pace);
        hpcc.path.rate = 10e9;
        for round in 0..8 {
            let hops = [hop(13 * PS_PER_US * (round + 1), 16_250 * (round + 1), 0)];
            hpcc.on_ack(&ack(&hops, 10 * round + 1, 10 * round), &mut pace);
        }
        // Five additive steps of 40 Mb/s, then a factor of 9.5, bounded by the line rate.
        assert!(hpcc.path.rate > 80e9, "{}", hpcc.path.rate);
    }

    fn hpcc(change: impl FnOnce(&mut Parameters)) -> (Hpcc, Pace) {
        let mut pace = Pace { rate_bps: 0, window_bytes: 0, has_timers: false };
        let mut parameters = Parameters::default();
        change(&mut parameters);
        (Hpcc::new(&parameters, &path(), &mut pace), pace)
    }

    /// Without fast reaction the rate changes once per RTT.
    #[test]
    fn fast_react_is_per_acknowledgement() {
        for (fast_react, expected) in [(true, 2), (false, 1)] {
            let (mut hpcc, mut pace) = hpcc(|p| p.hpcc_fast_react = fast_react);
            hpcc.on_ack(&ack(&[hop(0, 0, 0)], 1, 10), &mut pace);
            let mut rates = Vec::new();
            for (acknowledged, us) in [(11, 13), (12, 14)] {
                let hops = [hop(us * PS_PER_US, 12_500 * us, 162_500)];
                hpcc.on_ack(&ack(&hops, acknowledged, 20), &mut pace);
                rates.push(pace.rate_bps);
            }
            rates.dedup();
            assert_eq!(rates.len(), expected);
        }
    }

    /// Two hops exceed their target alternately, computed by hand: with rates per hop the second cut starts from the
    /// line rate, so the lower rate applies; with one rate the cuts accumulate.
    #[test]
    fn each_hop_has_its_own_rate() {
        let rates = [false, true].map(|per_hop| {
            let (mut hpcc, mut pace) = hpcc(|p| {
                p.hpcc_per_hop = per_hop;
                p.hpcc_stages = 1000;
                p.hpcc_additive = Some(penstock_units::BitRate(0));
            });
            hpcc.on_ack(&ack(&[hop(0, 0, 0), hop(0, 0, 0)], 1, 10), &mut pace);
            // One hop is busy for an RTT with 162,500 bytes queued.
            let busy = [hop(13 * PS_PER_US, 162_500, 162_500), hop(13 * PS_PER_US, 0, 0)];
            hpcc.last = Hops::default();
            [hop(0, 0, 162_500), hop(0, 0, 0)].iter().for_each(|one| hpcc.last.push(*one));
            hpcc.on_ack(&ack(&busy, 11, 20), &mut pace);
            let idle = [hop(26 * PS_PER_US, 162_500, 0), hop(26 * PS_PER_US, 162_500, 162_500)];
            hpcc.last = Hops::default();
            [hop(13 * PS_PER_US, 162_500, 0), hop(13 * PS_PER_US, 0, 162_500)]
                .iter()
                .for_each(|one| hpcc.last.push(*one));
            hpcc.on_ack(&ack(&idle, 21, 30), &mut pace);
            pace.rate_bps as f64
        });
        let cut = 0.95 / 2.0;
        assert!((rates[0] - 100e9 * cut * cut).abs() < 10.0, "{rates:?}");
        assert!((rates[1] - 100e9 * cut).abs() < 10.0, "{rates:?}");
    }

    #[test]
    fn idle_hops_count_once_per_rtt() {
        let (mut hpcc, mut pace) = hpcc(|p| p.hpcc_skip_idle = true);
        hpcc.on_ack(&ack(&[hop(0, 0, 0)], 1, 10), &mut pace);
        hpcc.on_ack(&ack(&[hop(13 * PS_PER_US, 162_500, 0)], 11, 20), &mut pace);
        let before = pace.rate_bps;
        hpcc.on_ack(&ack(&[hop(14 * PS_PER_US, 162_500, 0)], 12, 20), &mut pace);
        assert_eq!((pace.rate_bps, hpcc.last.as_slice()[0].time_ps), (before, 13 * PS_PER_US));
        hpcc.on_ack(&ack(&[hop(15 * PS_PER_US, 187_500, 80_000)], 13, 20), &mut pace);
        assert_ne!(pace.rate_bps, before);
    }

    #[test]
    fn telemetry_is_rounded_to_its_unit() {
        let (hpcc, _) = hpcc(|p| p.hpcc_unit = 4);
        let rounded = hpcc.quantise(&hop(1_234_567, 1_000_000, 1_000));
        assert_eq!((rounded.time_ps, rounded.sent_bytes), (1_234_000, 999_936));
        assert_eq!(rounded.queue_bytes, 960);
    }
}
