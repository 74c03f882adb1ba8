//! Swift (Kumar et al., SIGCOMM 2020, section 3): steers the window towards a target delay that grows with the number
//! of hops and, by flow scaling, with smaller windows; windows below one packet become pacing gaps.

use super::{Ack, Congestion, Pace, PathProperties};
use crate::parameters::Parameters;
use crate::time::PS_PER_SECOND;

/// Minimum window in packets.
const WINDOW_MIN: f64 = 0.01;

/// State of one queue pair.
#[derive(Debug)]
pub(super) struct Swift {
    line: f64,
    target_base: f64,
    scale_a: f64,
    scale_b: f64,
    range: f64,
    additive: f64,
    beta: f64,
    cut_max: f64,
    mtu: f64,
    window_max: f64,

    /// Congestion window in packets.
    window: f64,
    last_cut_ps: u64,
    rtt_ps: f64,
}

impl Swift {
    pub(super) fn new(parameters: &Parameters, path: &PathProperties, pace: &mut Pace) -> Self {
        let range = parameters.swift_range.0 as f64;
        let (least, most) = (parameters.swift_window_min, parameters.swift_window_max);
        let scale_a = range / (1.0 / least.sqrt() - 1.0 / most.sqrt());
        let hops = f64::from(path.hops) * parameters.swift_hop.0 as f64;
        let mtu = f64::from(path.mtu);
        let window = (path.bdp_bytes() as f64 / mtu).max(1.0);
        pace.window_bytes = (window * mtu) as u64;
        Self {
            line: path.line_bps as f64,
            // The target is at least the base RTT of this path.
            target_base: (parameters.swift_base.0 as f64 + hops).max(path.base_rtt_ps as f64),
            scale_a,
            scale_b: -scale_a / most.sqrt(),
            range,
            additive: parameters.swift_additive,
            beta: parameters.swift_beta,
            cut_max: parameters.swift_cut_max,
            mtu,
            window_max: (4.0 * window).max(16.0),
            window,
            last_cut_ps: 0,
            rtt_ps: path.base_rtt_ps as f64,
        }
    }

    fn target(&self) -> f64 {
        let scaled = self.scale_a / self.window.sqrt() + self.scale_b;
        self.target_base + scaled.clamp(0.0, self.range)
    }
}

impl Congestion for Swift {
    fn on_ack(&mut self, ack: &Ack<'_>, pace: &mut Pace) {
        let delay = ack.round_trip_ps as f64;
        self.rtt_ps = delay;
        let target = self.target();
        let packets = f64::from(ack.packets);
        if delay < target {
            self.window += if self.window >= 1.0 {
                self.additive * packets / self.window
            } else {
                self.additive * packets
            };
        } else if ack.now_ps >= self.last_cut_ps + ack.round_trip_ps {
            let factor = 1.0 - self.beta * (delay - target) / delay;
            self.window *= factor.max(1.0 - self.cut_max);
            self.last_cut_ps = ack.now_ps;
        }
        self.window = self.window.clamp(WINDOW_MIN, self.window_max);
        // One packet may always be in flight; below that the rate limits the packets per RTT.
        pace.window_bytes = (self.window.max(1.0) * self.mtu) as u64;
        pace.rate_bps = if self.window < 1.0 {
            (self.window * self.mtu * 8.0 * PS_PER_SECOND as f64 / self.rtt_ps) as u64
        } else {
            self.line as u64
        };
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::path;
    use super::*;

    const PS_PER_US: u64 = 1_000_000;

    fn ack(now_us: u64, round_trip_us: u64) -> Ack<'static> {
        Ack {
            now_ps: now_us * PS_PER_US,
            acknowledged: 0,
            next: 0,
            packets: 1,
            marks: 0,
            round_trip_ps: round_trip_us * PS_PER_US,
            ..Ack::default()
        }
    }

    #[test]
    fn window_tracks_target_delay() {
        let mut pace = Pace { rate_bps: 0, window_bytes: 0, has_timers: false };
        let mut swift = Swift::new(&Parameters::default(), &path(), &mut pace);
        assert!((swift.window - 162.5).abs() < 1e-9);
        assert!((swift.target() - 32.212e6).abs() < 1e3, "no scaling for large windows");
        swift.on_ack(&ack(1000, 20), &mut pace);
        assert!((swift.window - 162.5 - 1.0 / 162.5).abs() < 1e-9);
        let before = swift.window;
        swift.on_ack(&ack(2000, 40), &mut pace);
        let factor = 1.0 - 0.8 * (40.0 - 32.212) / 40.0;
        assert!((swift.window - before * factor).abs() < 1e-3);
        let before = swift.window;
        swift.on_ack(&ack(2010, 40), &mut pace);
        assert!((swift.window - before).abs() < 1e-9, "one cut per RTT");
        for round in 0..40 {
            swift.on_ack(&ack(3000 + 1000 * round, 900), &mut pace);
        }
        assert!(swift.window < 1.0 && pace.window_bytes == 1000 && pace.rate_bps < 10_000_000_000);
        assert!(swift.target() > 100e6, "small windows are allowed more delay");
    }
}
