//! DCQCN as ConnectX-4 and later do it, and as the HPCC paper ran it: marks come back with acknowledgements, alpha is
//! renewed at short intervals, cuts have an interval of their own, and rates grow by time alone.
//!
//! After the first mark at t: alpha is renewed at t + n T_a, cuts happen at t + n T_d + 1 ns where a mark came since
//! the last, and the rate grows T_i after the last cut or growth.

use super::{Ack, Congestion, Pace, Path, power, rate_min_bps, scaled};
use crate::parameters::Parameters;
use crate::time::PS_PER_NANOSECOND;

/// State of one queue pair.
#[derive(Debug)]
pub(super) struct Dcqcn {
    line: f64,
    rate_min: f64,
    gain: f64,
    alpha_interval: u64,
    decrease_interval: u64,
    increase_interval: u64,
    recovery_stages: u32,
    additive: f64,
    hyper: f64,
    clamp: bool,

    alpha: f64,
    rate: f64,
    target: f64,
    stage: u32,
    marked_for_alpha: bool,
    marked_for_cut: bool,
    /// When the next of each is due; none before the first mark.
    due: Option<Due>,
}

#[derive(Debug, Clone, Copy)]
struct Due {
    alpha: u64,
    cut: u64,
    growth: u64,
}

impl Dcqcn {
    pub(super) fn new(parameters: &Parameters, path: &Path) -> Self {
        let line = path.line_bps as f64;
        Self {
            line,
            rate_min: rate_min_bps(parameters),
            gain: parameters.dcqcn_gain,
            alpha_interval: parameters.dcqcn_alpha_interval.0,
            decrease_interval: parameters.dcqcn_decrease_interval.0,
            increase_interval: parameters.dcqcn_increase_interval.0,
            recovery_stages: parameters.dcqcn_recovery_stages,
            additive: scaled(parameters.dcqcn_additive, 5e6, 25e9, path),
            hyper: scaled(parameters.dcqcn_hyper, 50e6, 25e9, path),
            clamp: parameters.dcqcn_clamp,
            alpha: 1.0,
            rate: line,
            target: line,
            stage: 0,
            marked_for_alpha: false,
            marked_for_cut: false,
            due: None,
        }
    }

    /// Applies the timers that expired up to `now`, in the order of their times.
    fn advance(&mut self, now: u64, pace: &mut Pace) {
        let Some(mut due) = self.due else { return };
        if now < due.alpha.min(due.cut).min(due.growth) {
            return;
        }
        loop {
            if due.alpha <= due.cut && due.alpha <= due.growth && due.alpha <= now {
                // Without marks until the next other timer: all at once.
                let until = if self.marked_for_alpha {
                    due.alpha
                } else {
                    let other = if self.marked_for_cut { due.cut.min(due.growth) } else { now };
                    other.min(now).max(due.alpha)
                };
                let steps = (until - due.alpha) / self.alpha_interval + 1;
                self.alpha *= power(1.0 - self.gain, steps);
                if std::mem::take(&mut self.marked_for_alpha) {
                    self.alpha += self.gain;
                }
                due.alpha += steps * self.alpha_interval;
            } else if due.cut <= due.growth && due.cut <= now {
                if std::mem::take(&mut self.marked_for_cut) {
                    if self.clamp || self.stage != 0 {
                        self.target = self.rate;
                    }
                    self.rate = (self.rate * (1.0 - self.alpha / 2.0)).max(self.rate_min);
                    self.stage = 0;
                    due.growth = due.cut + self.increase_interval;
                    due.cut += self.decrease_interval;
                } else {
                    // Nothing is cut until a mark comes, which is not before now.
                    let steps = (now - due.cut) / self.decrease_interval + 1;
                    due.cut += steps * self.decrease_interval;
                }
            } else if due.growth <= now {
                self.grow();
                due.growth += self.increase_interval;
            } else {
                break;
            }
        }
        self.due = Some(due);
        self.update_pace(pace);
    }

    fn grow(&mut self) {
        let step = match self.stage.cmp(&self.recovery_stages) {
            std::cmp::Ordering::Less => 0.0,
            std::cmp::Ordering::Equal => self.additive,
            std::cmp::Ordering::Greater => self.hyper,
        };
        self.target = (self.target + step).min(self.line);
        self.rate = f64::midpoint(self.rate, self.target);
        self.stage += 1;
        if self.rate >= self.line * (1.0 - 1e-9) {
            self.rate = self.line;
        }
    }

    fn update_pace(&self, pace: &mut Pace) {
        pace.rate_bps = self.rate as u64;
        pace.has_timers = self.due.is_some();
    }
}

impl Congestion for Dcqcn {
    fn on_ack(&mut self, ack: &Ack<'_>, pace: &mut Pace) {
        if ack.marks > 0 {
            self.on_cnp(ack.now_ps, pace);
        }
    }

    fn on_cnp(&mut self, now: u64, pace: &mut Pace) {
        self.advance(now, pace);
        self.marked_for_alpha = true;
        self.marked_for_cut = true;
        if self.due.is_none() {
            self.due = Some(Due {
                alpha: now + self.alpha_interval,
                cut: now + self.decrease_interval + PS_PER_NANOSECOND,
                growth: now + self.increase_interval,
            });
            self.update_pace(pace);
        }
    }

    fn on_send(&mut self, now_ps: u64, _bytes: u32, pace: &mut Pace) {
        self.advance(now_ps, pace);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::path;
    use super::*;

    const PS_PER_US: u64 = 1_000_000;

    fn ack(now_ps: u64) -> Ack<'static> {
        Ack { now_ps, acknowledged: 0, next: 0, packets: 1, marks: 1, ..Ack::default() }
    }

    fn begun() -> (Dcqcn, Pace) {
        let pace = Pace { rate_bps: 0, window_bytes: u64::MAX, has_timers: false };
        let dcqcn = Dcqcn::new(&Parameters::default(), &path());
        (dcqcn, pace)
    }

    /// By hand: one mark at 0. Alpha is 1 until 1 us (marked: stays 1), then decays at 2, 3 and 4 us; the cut at
    /// 4.001 us halves by that.
    #[test]
    fn mark_cuts_rate_then_fast_recovery() {
        let (mut dcqcn, mut pace) = begun();
        dcqcn.on_ack(&ack(0), &mut pace);
        dcqcn.on_send(4 * PS_PER_US, 0, &mut pace);
        assert_eq!(pace.rate_bps, 100_000_000_000);
        dcqcn.on_send(4 * PS_PER_US + 1000, 0, &mut pace);
        let alpha = (255.0_f64 / 256.0).powi(3);
        let cut = 100e9 * (1.0 - alpha / 2.0);
        assert!((dcqcn.rate - cut).abs() < 1.0, "{} {cut}", dcqcn.rate);
        // The target is still the line, as the clamp is off and no stage had passed.
        dcqcn.on_send(305 * PS_PER_US, 0, &mut pace);
        assert!((dcqcn.rate - f64::midpoint(cut, 100e9)).abs() < 1.0);
        // Additive then hyper increases: the target cannot pass the line.
        dcqcn.on_send(10_000 * PS_PER_US, 0, &mut pace);
        assert!(pace.rate_bps > 99_990_000_000 && dcqcn.target <= 100e9, "{}", pace.rate_bps);
    }

    /// Timers that are applied late give the same state as timers applied in time.
    #[test]
    fn late_timers_give_same_state() {
        let (mut often, mut pace) = begun();
        let (mut rarely, mut other) = begun();
        for step in 0..4000_u64 {
            let now = step * PS_PER_US / 2;
            if step % 97 < 5 {
                often.on_ack(&ack(now), &mut pace);
                rarely.on_ack(&ack(now), &mut other);
            }
            often.on_send(now, 0, &mut pace);
        }
        rarely.on_send(3999 * PS_PER_US / 2, 0, &mut other);
        assert!((often.rate - rarely.rate).abs() < 1.0, "{} {}", often.rate, rarely.rate);
        assert!((often.alpha - rarely.alpha).abs() < 1e-9);
    }
}
