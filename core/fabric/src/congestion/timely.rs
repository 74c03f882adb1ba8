//! TIMELY (Mittal et al., SIGCOMM 2015, algorithm 1): the rate follows the gradient of the RTT, updated once per RTT
//! as in the HPCC paper's simulator.

use super::{Ack, Congestion, Pace, PathProperties, rate_min_bps, scale_to_line};
use crate::parameters::Parameters;

/// Consecutive increases after which hyperactive increase starts.
const HYPER_AFTER: u32 = 5;

/// State of one queue pair.
#[derive(Debug)]
pub(super) struct Timely {
    line: f64,
    rate_min: f64,
    low: f64,
    high: f64,
    min_rtt: f64,
    gain: f64,
    beta: f64,
    additive: f64,
    hyper: f64,

    rate: f64,
    difference: f64,
    last: Option<f64>,
    increases: u32,
    update_after: u64,
}

impl Timely {
    pub(super) fn new(parameters: &Parameters, path: &PathProperties) -> Self {
        Self {
            line: path.line_bps as f64,
            rate_min: rate_min_bps(parameters),
            low: parameters.timely_low.0 as f64,
            high: parameters.timely_high.0 as f64,
            min_rtt: parameters.timely_min_rtt.0 as f64,
            gain: parameters.timely_gain,
            beta: parameters.timely_beta,
            additive: scale_to_line(parameters.timely_additive, 10e6, 10e9, path),
            hyper: scale_to_line(parameters.timely_hyper, 50e6, 10e9, path),
            rate: path.line_bps as f64,
            difference: 0.0,
            last: None,
            increases: 0,
            update_after: 0,
        }
    }

    fn increase_rate(&mut self) {
        self.increases += 1;
        let step = if self.increases > HYPER_AFTER { self.hyper } else { self.additive };
        self.rate = (self.rate + step).min(self.line);
    }

    fn decrease_rate(&mut self, factor: f64) {
        self.increases = 0;
        self.rate = (self.rate * factor).max(self.rate_min);
    }
}

impl Congestion for Timely {
    fn on_ack(&mut self, ack: &Ack<'_>, pace: &mut Pace) {
        if ack.acknowledged <= self.update_after {
            return;
        }
        self.update_after = ack.next;
        let rtt = ack.round_trip_ps as f64;
        let Some(last) = self.last.replace(rtt) else { return };
        self.difference = (1.0 - self.gain) * self.difference + self.gain * (rtt - last);
        let gradient = self.difference / self.min_rtt;
        if rtt < self.low {
            self.increase_rate();
        } else if rtt > self.high {
            self.decrease_rate(1.0 - self.beta * (1.0 - self.high / rtt));
        } else if gradient <= 0.0 {
            self.increase_rate();
        } else {
            self.decrease_rate((1.0 - self.beta * gradient).max(0.0));
        }
        pace.rate_bps = self.rate as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::path;
    use super::*;

    #[test]
    fn thresholds_and_gradient_decide() {
        let mut pace = Pace { rate_bps: 0, window_bytes: 0, has_timers: false };
        let mut timely = Timely::new(&Parameters::default(), &path());
        let mut number = 0;
        let mut acknowledge = |timely: &mut Timely, microseconds: u64| {
            number += 1;
            let ack = Ack {
                now_ps: 0,
                acknowledged: number,
                next: number,
                packets: 1,
                marks: 0,
                round_trip_ps: microseconds * 1_000_000,
                ..Ack::default()
            };
            timely.on_ack(&ack, &mut pace);
            timely.rate
        };
        acknowledge(&mut timely, 100);
        // A gradient of 0.875 * 4/20 = 0.175 cuts by 0.8 times that.
        assert!((acknowledge(&mut timely, 104) - 100e9 * (1.0 - 0.8 * 0.175)).abs() < 1e3);
        let before = timely.rate;
        assert!(
            (acknowledge(&mut timely, 20) - before - 100e6).abs() < 1.0,
            "below the low threshold"
        );
        let before = timely.rate;
        assert!((acknowledge(&mut timely, 1000) - before * 0.6).abs() < 1e3, "above the high one");
        (0..60).for_each(|_| {
            acknowledge(&mut timely, 20);
        });
        assert!(timely.increases > HYPER_AFTER);
    }
}
