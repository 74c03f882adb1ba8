//! DCQCN as implemented by ConnectX-4 and later and simulated by the HPCC paper: acknowledgements echo marks, alpha is
//! updated at short intervals, rate cuts have an interval of their own, and the rate increases by the timer alone.
//!
//! After the first mark at time t, alpha is updated at t + n T_a, the rate is cut at t + n T_d + 1 ns if a mark arrived
//! since the last cut, and it increases T_i after the last cut or increase.

use super::{Ack, Congestion, Pace, PathProperties, power, rate_min_bps, scale_to_line};
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
    /// Next expirations of the timers; none before the first mark.
    due: Option<TimerExpiry>,
}

#[derive(Debug, Clone, Copy)]
struct TimerExpiry {
    alpha: u64,
    cut: u64,
    increase: u64,
}

impl Dcqcn {
    pub(super) fn new(parameters: &Parameters, path: &PathProperties) -> Self {
        let line = path.line_bps as f64;
        Self {
            line,
            rate_min: rate_min_bps(parameters),
            gain: parameters.dcqcn_gain,
            alpha_interval: parameters.dcqcn_alpha_interval.0,
            decrease_interval: parameters.dcqcn_decrease_interval.0,
            increase_interval: parameters.dcqcn_increase_interval.0,
            recovery_stages: parameters.dcqcn_recovery_stages,
            additive: scale_to_line(parameters.dcqcn_additive, 5e6, 25e9, path),
            hyper: scale_to_line(parameters.dcqcn_hyper, 50e6, 25e9, path),
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
        if now < due.alpha.min(due.cut).min(due.increase) {
            return;
        }
        loop {
            if due.alpha <= due.cut && due.alpha <= due.increase && due.alpha <= now {
                // Without a mark, all updates before the next other timer are applied in one step.
                let until = if self.marked_for_alpha {
                    due.alpha
                } else {
                    let other = if self.marked_for_cut { due.cut.min(due.increase) } else { now };
                    other.min(now).max(due.alpha)
                };
                let steps = (until - due.alpha) / self.alpha_interval + 1;
                self.alpha *= power(1.0 - self.gain, steps);
                if std::mem::take(&mut self.marked_for_alpha) {
                    self.alpha += self.gain;
                }
                due.alpha += steps * self.alpha_interval;
            } else if due.cut <= due.increase && due.cut <= now {
                if std::mem::take(&mut self.marked_for_cut) {
                    if self.clamp || self.stage != 0 {
                        self.target = self.rate;
                    }
                    self.rate = (self.rate * (1.0 - self.alpha / 2.0)).max(self.rate_min);
                    self.stage = 0;
                    due.increase = due.cut + self.increase_interval;
                    due.cut += self.decrease_interval;
                } else {
                    // No mark is pending, and the next one cannot arrive before now: skip these expirations.
                    let steps = (now - due.cut) / self.decrease_interval + 1;
                    due.cut += steps * self.decrease_interval;
                }
            } else if due.increase <= now {
                self.increase_rate();
                due.increase += self.increase_interval;
            } else {
                break;
            }
        }
        self.due = Some(due);
        self.update_pace(pace);
    }

    fn increase_rate(&mut self) {
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
            self.due = Some(TimerExpiry {
                alpha: now + self.alpha_interval,
                cut: now + self.decrease_interval + PS_PER_NANOSECOND,
                increase: now + self.increase_interval,
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

    fn new_dcqcn() -> (Dcqcn, Pace) {
        let pace = Pace { rate_bps: 0, window_bytes: u64::MAX, has_timers: false };
        let dcqcn = Dcqcn::new(&Parameters::default(), &path());
        (dcqcn, pace)
    }

    /// Computed by hand for one mark at 0: alpha stays 1 at 1 us (marked) and decays at 2, 3 and 4 us; the cut at
    /// 4.001 us uses half of it.
    #[test]
    fn mark_cuts_rate_then_fast_recovery() {
        let (mut dcqcn, mut pace) = new_dcqcn();
        dcqcn.on_ack(&ack(0), &mut pace);
        dcqcn.on_send(4 * PS_PER_US, 0, &mut pace);
        assert_eq!(pace.rate_bps, 100_000_000_000);
        dcqcn.on_send(4 * PS_PER_US + 1000, 0, &mut pace);
        let alpha = (255.0_f64 / 256.0).powi(3);
        let cut = 100e9 * (1.0 - alpha / 2.0);
        assert!((dcqcn.rate - cut).abs() < 1.0, "{} {cut}", dcqcn.rate);
        // The target remains the line rate, as the clamp is off and no increase preceded the cut.
        dcqcn.on_send(305 * PS_PER_US, 0, &mut pace);
        assert!((dcqcn.rate - f64::midpoint(cut, 100e9)).abs() < 1.0);
        // Additive, then hyper increase; the target is bounded by the line rate.
        dcqcn.on_send(10_000 * PS_PER_US, 0, &mut pace);
        assert!(pace.rate_bps > 99_990_000_000 && dcqcn.target <= 100e9, "{}", pace.rate_bps);
    }

    /// Timers applied late give the same state as timers applied on time.
    #[test]
    fn late_timers_give_same_state() {
        let (mut often, mut pace) = new_dcqcn();
        let (mut rarely, mut other) = new_dcqcn();
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
