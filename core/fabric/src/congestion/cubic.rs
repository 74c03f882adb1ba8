//! CUBIC (RFC 9438) with slow start (RFC 5681): after a loss the window grows with the cube of time towards where it was,
//! lingers there and then searches on; where Reno would be faster it is as fast.
//!
//! Left out: HyStart and its like, proportional rate reduction, spurious losses.

use super::{Ack, Congestion, Pace, Path};
use crate::parameters::Parameters;
use crate::time::PS_PER_SECOND;

/// No window is smaller after a loss, in segments (RFC 9438, section 4.6).
const WINDOW_MIN: f64 = 2.0;

/// State of one connection; windows in segments, times in seconds where they are `f64`.
#[derive(Debug)]
pub(super) struct Cubic {
    c: f64,
    beta: f64,
    fast_convergence: bool,
    segment: f64,

    window: f64,
    threshold: f64,
    /// Where the window was at the last loss, and just before it.
    highest: f64,
    before_loss: f64,
    epoch: Option<Epoch>,
    /// Marks are one event until all below has arrived.
    marked_until: u64,
}

/// Congestion avoidance since a loss or the end of slow start.
#[derive(Debug, Clone, Copy)]
struct Epoch {
    began_ps: u64,
    /// When the window is where it was, after its beginning.
    k: f64,
    origin: f64,
    /// Window of Reno under the same losses, in bytes: the least that CUBIC uses (RFC 9438, 4.3).
    reno: f64,
}

impl Cubic {
    pub(super) fn new(parameters: &Parameters, path: &Path, pace: &mut Pace) -> Self {
        let cubic = Self {
            c: parameters.cubic_c,
            beta: parameters.cubic_beta,
            fast_convergence: parameters.cubic_fast_convergence,
            segment: f64::from(path.mtu),
            window: f64::from(parameters.tcp_initial_window),
            threshold: f64::INFINITY,
            highest: 0.0,
            before_loss: 0.0,
            epoch: None,
            marked_until: 0,
        };
        cubic.update_pace(pace);
        cubic
    }

    fn update_pace(&self, pace: &mut Pace) {
        pace.window_bytes = (self.window * self.segment) as u64;
    }

    /// Section 4.6 and 4.7.
    fn reduce(&mut self) {
        self.before_loss = self.window;
        self.highest = if self.fast_convergence && self.window < self.highest {
            self.window * f64::midpoint(1.0, self.beta)
        } else {
            self.window
        };
        self.threshold = (self.window * self.beta).max(WINDOW_MIN);
        self.window = self.threshold;
        self.epoch = None;
    }

    /// Section 4.2: where the window aims at a round trip from now.
    fn avoid(&mut self, ack: &Ack<'_>, segments: f64) {
        let window = self.window;
        let epoch = *self.epoch.get_or_insert_with(|| {
            // Without a loss before, or far above it, search begins here (sections 4.8 and 4.10).
            let (k, origin) = if self.highest > window {
                (((self.highest - window) / self.c).cbrt(), self.highest)
            } else {
                (0.0, window)
            };
            Epoch { began_ps: ack.now_ps, k, origin, reno: window }
        });
        let seconds = |time_ps: u64| time_ps as f64 / PS_PER_SECOND as f64;
        let cubic = |after: f64| self.c * (after - epoch.k).powi(3) + epoch.origin;
        let after = seconds(ack.now_ps - epoch.began_ps);
        // Section 4.3.
        let additive = if epoch.reno < self.before_loss {
            3.0 * (1.0 - self.beta) / (1.0 + self.beta)
        } else {
            1.0
        };
        let reno = epoch.reno + additive * segments / window;
        self.epoch = Some(Epoch { reno, ..epoch });
        if cubic(after) < reno {
            self.window = window.max(reno);
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
        // A window that is not used does not grow (section 5.8).
        let used = (ack.in_flight_bytes + ack.newly_bytes) as f64 / self.segment;
        let is_slow_start = self.window < self.threshold;
        let is_used =
            if is_slow_start { 2.0 * used > self.window } else { used + 2.0 > self.window };
        if ack.is_recovering || segments <= 0.0 || !is_used {
            return;
        }
        if is_slow_start {
            self.window += segments;
        } else {
            self.avoid(ack, segments);
        }
        self.update_pace(pace);
    }

    fn on_loss(&mut self, _ack: &Ack<'_>, pace: &mut Pace) {
        self.reduce();
        self.update_pace(pace);
    }

    fn on_timeout(&mut self, _now_ps: u64, pace: &mut Pace) {
        self.reduce();
        self.highest = 0.0;
        self.window = 1.0;
        self.update_pace(pace);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::path;
    use super::*;

    const PS_PER_MS: u64 = PS_PER_SECOND / 1000;

    /// A whole window is acknowledged in each round trip of so long, for so many, segment by segment.
    fn rounds(
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

    fn begun() -> (Cubic, Pace) {
        let mut pace = Pace { rate_bps: 0, window_bytes: 0, has_timers: false };
        let cubic = Cubic::new(&Parameters::default(), &path(), &mut pace);
        assert_eq!(pace.window_bytes, 10_000);
        (cubic, pace)
    }

    #[test]
    fn slow_start_doubles_until_loss() {
        let (mut cubic, mut pace) = begun();
        let mut now = 0;
        rounds(&mut cubic, &mut pace, &mut now, 100 * PS_PER_MS, 5);
        assert_eq!(cubic.window, 320.0);
        cubic.on_loss(&Ack::default(), &mut pace);
        assert_eq!((cubic.window, pace.window_bytes), (224.0, 224_000));
        // Again before the old maximum: it makes room.
        cubic.on_loss(&Ack::default(), &mut pace);
        assert!((cubic.highest - 224.0 * 0.85).abs() < 1e-9 && (cubic.window - 156.8).abs() < 1e-9);
        cubic.on_timeout(0, &mut pace);
        assert_eq!((cubic.window, pace.window_bytes), (1.0, 1000));
        assert!((cubic.threshold - 156.8 * 0.7).abs() < 1e-9);
    }

    /// W(t) = C (t - K)^3 + W_max with K = cbrt(W_max (1 - beta) / C), at a round trip so long that Reno is far below.
    #[test]
    fn window_follows_cubic_of_time() {
        let (mut cubic, mut pace) = begun();
        cubic.window = 10_000.0;
        cubic.threshold = 10_000.0;
        cubic.on_loss(&Ack::default(), &mut pace);
        assert!((cubic.window - 7000.0).abs() < 1e-9);
        let k = (10_000.0_f64 * 0.3 / 0.4).cbrt();
        let mut now = 0;
        let mut checked = 0;
        while now < 30 * PS_PER_SECOND {
            rounds(&mut cubic, &mut pace, &mut now, 100 * PS_PER_MS, 1);
            let after = now as f64 / PS_PER_SECOND as f64;
            let expected = 0.4 * (after - k).powi(3) + 10_000.0;
            // The window aims at where the curve is a round trip later, and is there as that round trip ends.
            assert!(
                (cubic.window / expected - 1.0).abs() < 0.005,
                "{after}: {} {expected}",
                cubic.window
            );
            checked += 1;
        }
        assert!(checked == 300 && cubic.window > 10_300.0, "{}", cubic.window);
    }

    /// With short round trips and small windows it grows as Reno would: alpha in each round trip until where it was, then
    /// one.
    #[test]
    fn short_paths_grow_as_reno_does() {
        let (mut cubic, mut pace) = begun();
        cubic.window = 50.0;
        cubic.threshold = 50.0;
        cubic.on_loss(&Ack::default(), &mut pace);
        let mut now = 0;
        rounds(&mut cubic, &mut pace, &mut now, PS_PER_MS, 20);
        let additive = 3.0 * 0.3 / 1.7;
        assert!((cubic.window - 35.0 - 20.0 * additive).abs() < 0.6, "{}", cubic.window);
        rounds(&mut cubic, &mut pace, &mut now, PS_PER_MS, 100);
        let before = cubic.window;
        rounds(&mut cubic, &mut pace, &mut now, PS_PER_MS, 10);
        assert!(
            before > 50.0 && (cubic.window - before - 10.0).abs() < 0.3,
            "{before} {}",
            cubic.window
        );
    }
}
