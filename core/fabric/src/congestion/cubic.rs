//! CUBIC (RFC 9438) with slow start (RFC 5681): after a loss the window grows as a cubic function of time, concave up
//! to the window before the loss and convex beyond; in the Reno-friendly region it grows as Reno would.
//!
//! Not modelled: HyStart, proportional rate reduction, detection of spurious losses.

use super::{Ack, Congestion, Pace, PathProperties};
use crate::parameters::Parameters;
use crate::time::PS_PER_SECOND;

/// Minimum window after a loss in segments (RFC 9438, section 4.6).
const WINDOW_MIN: f64 = 2.0;

/// State of one connection; windows in segments, times in seconds where they are `f64`.
#[derive(Debug)]
pub(super) struct Cubic {
    c: f64,
    beta: f64,
    fast_convergence: bool,
    segment: f64,

    window: f64,
    ssthresh: f64,
    /// W_max, and the window before the last reduction (cwnd_prior).
    w_max: f64,
    window_before_loss: f64,
    epoch: Option<Epoch>,
    /// Marks cause no further reduction until packets up to this number are acknowledged.
    marked_until: u64,
}

/// Epoch of congestion avoidance, since a loss or the end of slow start.
#[derive(Debug, Clone, Copy)]
struct Epoch {
    start_ps: u64,
    /// Time in seconds from the start of the epoch until the window reaches `origin` (K).
    k: f64,
    origin: f64,
    /// Window in segments that Reno would have: lower bound of the window (W_est, section 4.3).
    w_est: f64,
}

impl Cubic {
    pub(super) fn new(parameters: &Parameters, path: &PathProperties, pace: &mut Pace) -> Self {
        let cubic = Self {
            c: parameters.cubic_c,
            beta: parameters.cubic_beta,
            fast_convergence: parameters.cubic_fast_convergence,
            segment: f64::from(path.mtu),
            window: f64::from(parameters.tcp_initial_window),
            ssthresh: f64::INFINITY,
            w_max: 0.0,
            window_before_loss: 0.0,
            epoch: None,
            marked_until: 0,
        };
        cubic.update_pace(pace);
        cubic
    }

    fn update_pace(&self, pace: &mut Pace) {
        pace.window_bytes = (self.window * self.segment) as u64;
    }

    /// Multiplicative decrease (section 4.6) with fast convergence (section 4.7).
    fn reduce(&mut self) {
        self.window_before_loss = self.window;
        self.w_max = if self.fast_convergence && self.window < self.w_max {
            self.window * f64::midpoint(1.0, self.beta)
        } else {
            self.window
        };
        self.ssthresh = (self.window * self.beta).max(WINDOW_MIN);
        self.window = self.ssthresh;
        self.epoch = None;
    }

    /// Window increase of congestion avoidance: towards the cubic window one RTT ahead (section 4.2).
    fn avoid_congestion(&mut self, ack: &Ack<'_>, segments: f64) {
        let window = self.window;
        let epoch = *self.epoch.get_or_insert_with(|| {
            // Without an earlier loss, or above W_max, the convex search starts here (sections 4.8 and 4.10).
            let (k, origin) = if self.w_max > window {
                (((self.w_max - window) / self.c).cbrt(), self.w_max)
            } else {
                (0.0, window)
            };
            Epoch { start_ps: ack.now_ps, k, origin, w_est: window }
        });
        let seconds = |time_ps: u64| time_ps as f64 / PS_PER_SECOND as f64;
        let cubic = |after: f64| self.c * (after - epoch.k).powi(3) + epoch.origin;
        let after = seconds(ack.now_ps - epoch.start_ps);
        // Reno-friendly region (section 4.3).
        let additive = if epoch.w_est < self.window_before_loss {
            3.0 * (1.0 - self.beta) / (1.0 + self.beta)
        } else {
            1.0
        };
        let w_est = epoch.w_est + additive * segments / window;
        self.epoch = Some(Epoch { w_est, ..epoch });
        if cubic(after) < w_est {
            self.window = window.max(w_est);
        } else {
            let target = cubic(after + seconds(ack.round_trip_ps)).clamp(window, 1.5 * window);
            self.window += (target - window) / window * segments;
        }
    }
}

impl Congestion for Cubic {
    fn on_ack(&mut self, ack: &Ack<'_>, pace: &mut Pace) {
        if ack.marks > 0 && ack.acknowledged > self.marked_until && !ack.is_recovering {
            self.marked_until = ack.next;
            self.reduce();
            return self.update_pace(pace);
        }
        let segments = ack.newly_bytes as f64 / self.segment;
        // An underused window does not grow (section 5.8).
        let used = (ack.in_flight_bytes + ack.newly_bytes) as f64 / self.segment;
        let is_slow_start = self.window < self.ssthresh;
        let is_window_used =
            if is_slow_start { 2.0 * used > self.window } else { used + 2.0 > self.window };
        if ack.is_recovering || segments <= 0.0 || !is_window_used {
            return;
        }
        if is_slow_start {
            self.window += segments;
        } else {
            self.avoid_congestion(ack, segments);
        }
        self.update_pace(pace);
    }

    fn on_loss(&mut self, _ack: &Ack<'_>, pace: &mut Pace) {
        self.reduce();
        self.update_pace(pace);
    }

    fn on_timeout(&mut self, _now_ps: u64, pace: &mut Pace) {
        self.reduce();
        self.w_max = 0.0;
        self.window = 1.0;
        self.update_pace(pace);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::path;
    use super::*;

    const PS_PER_MS: u64 = PS_PER_SECOND / 1000;

    /// Acknowledges one window per RTT, segment by segment, for `count` round trips.
    fn acknowledge_rounds(
        cubic: &mut Cubic,
        pace: &mut Pace,
        now_ps: &mut u64,
        round_trip_ps: u64,
        count: u32,
    ) {
        for _ in 0..count {
            let window = cubic.window as u64;
            for number in 0..window {
                let ack = Ack {
                    now_ps: *now_ps + round_trip_ps * number / window,
                    round_trip_ps,
                    packets: 1,
                    newly_bytes: 1000,
                    in_flight_bytes: (cubic.window as u64 - 1) * 1000,
                    ..Ack::default()
                };
                cubic.on_ack(&ack, pace);
            }
            *now_ps += round_trip_ps;
        }
    }

    fn new_cubic() -> (Cubic, Pace) {
        let mut pace = Pace { rate_bps: 0, window_bytes: 0, has_timers: false };
        let cubic = Cubic::new(&Parameters::default(), &path(), &mut pace);
        assert_eq!(pace.window_bytes, 10_000);
        (cubic, pace)
    }

    #[test]
    fn slow_start_doubles_until_loss() {
        let (mut cubic, mut pace) = new_cubic();
        let mut now = 0;
        acknowledge_rounds(&mut cubic, &mut pace, &mut now, 100 * PS_PER_MS, 5);
        assert_eq!(cubic.window, 320.0);
        cubic.on_loss(&Ack::default(), &mut pace);
        assert_eq!((cubic.window, pace.window_bytes), (224.0, 224_000));
        // A loss below the old maximum triggers fast convergence.
        cubic.on_loss(&Ack::default(), &mut pace);
        assert!((cubic.w_max - 224.0 * 0.85).abs() < 1e-9 && (cubic.window - 156.8).abs() < 1e-9);
        cubic.on_timeout(0, &mut pace);
        assert_eq!((cubic.window, pace.window_bytes), (1.0, 1000));
        assert!((cubic.ssthresh - 156.8 * 0.7).abs() < 1e-9);
    }

    /// W(t) = C (t - K)^3 + W_max with K = cbrt(W_max (1 - beta) / C), at an RTT long enough to keep W_est far below.
    #[test]
    fn window_follows_cubic_of_time() {
        let (mut cubic, mut pace) = new_cubic();
        cubic.window = 10_000.0;
        cubic.ssthresh = 10_000.0;
        cubic.on_loss(&Ack::default(), &mut pace);
        assert!((cubic.window - 7000.0).abs() < 1e-9);
        let k = (10_000.0_f64 * 0.3 / 0.4).cbrt();
        let mut now = 0;
        let mut checked = 0;
        while now < 30 * PS_PER_SECOND {
            acknowledge_rounds(&mut cubic, &mut pace, &mut now, 100 * PS_PER_MS, 1);
            let after = now as f64 / PS_PER_SECOND as f64;
            let expected = 0.4 * (after - k).powi(3) + 10_000.0;
            // The window aims one RTT ahead and reaches the curve at the end of that RTT.
            assert!(
                (cubic.window / expected - 1.0).abs() < 0.005,
                "{after}: {} {expected}",
                cubic.window
            );
            checked += 1;
        }
        assert!(checked == 300 && cubic.window > 10_300.0, "{}", cubic.window);
    }

    /// With a short RTT and a small window growth is that of Reno: alpha segments per RTT up to the window before the
    /// loss, then one.
    #[test]
    fn short_rtt_growth_follows_reno() {
        let (mut cubic, mut pace) = new_cubic();
        cubic.window = 50.0;
        cubic.ssthresh = 50.0;
        cubic.on_loss(&Ack::default(), &mut pace);
        let mut now = 0;
        acknowledge_rounds(&mut cubic, &mut pace, &mut now, PS_PER_MS, 20);
        let additive = 3.0 * 0.3 / 1.7;
        assert!((cubic.window - 35.0 - 20.0 * additive).abs() < 0.6, "{}", cubic.window);
        acknowledge_rounds(&mut cubic, &mut pace, &mut now, PS_PER_MS, 100);
        let before = cubic.window;
        acknowledge_rounds(&mut cubic, &mut pace, &mut now, PS_PER_MS, 10);
        assert!(
            before > 50.0 && (cubic.window - before - 10.0).abs() < 0.3,
            "{before} {}",
            cubic.window
        );
    }
}
