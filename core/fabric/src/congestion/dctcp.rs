//! DCTCP (RFC 8257) with a rate proportional to the window, as compared in the HPCC paper: the share of marked packets
//! per RTT determines the depth of a cut.

use super::{Ack, Congestion, Pace, PathProperties, rate_min_bps};
use crate::parameters::Parameters;
use crate::time::PS_PER_SECOND;

/// State of one queue pair.
#[derive(Debug)]
pub(super) struct Dctcp {
    line: f64,
    rate_min: f64,
    gain: f64,
    additive: f64,
    bdp: f64,

    alpha: f64,
    rate: f64,
    packets: u64,
    marks: u64,
    /// The observation window ends when a higher number is acknowledged.
    round_after: u64,
    /// After a cut: no further cut until a higher number is acknowledged.
    cut_until: Option<u64>,
}

impl Dctcp {
    pub(super) fn new(parameters: &Parameters, path: &PathProperties, pace: &mut Pace) -> Self {
        pace.window_bytes = path.bdp_bytes();
        let packet = f64::from(path.mtu) * 8.0 * PS_PER_SECOND as f64 / path.base_rtt_ps as f64;
        Self {
            line: path.line_bps as f64,
            rate_min: rate_min_bps(parameters),
            gain: parameters.dctcp_gain,
            additive: parameters.dctcp_additive.map_or(packet, |rate| rate.0 as f64),
            bdp: path.bdp_bytes() as f64,
            alpha: 1.0,
            rate: path.line_bps as f64,
            packets: 0,
            marks: 0,
            round_after: 0,
            cut_until: None,
        }
    }
}

impl Congestion for Dctcp {
    fn on_ack(&mut self, ack: &Ack<'_>, pace: &mut Pace) {
        self.packets += u64::from(ack.packets);
        self.marks += u64::from(ack.marks);
        let is_new_round = ack.acknowledged > self.round_after;
        if is_new_round {
            let share = (self.marks as f64 / self.packets.max(1) as f64).min(1.0);
            self.alpha = (1.0 - self.gain) * self.alpha + self.gain * share;
            (self.packets, self.marks) = (0, 0);
            self.round_after = ack.next;
        }
        if self.cut_until.is_some_and(|until| ack.acknowledged > until) {
            self.cut_until = None;
        }
        if self.cut_until.is_none() {
            if ack.marks > 0 {
                self.rate = (self.rate * (1.0 - self.alpha / 2.0)).max(self.rate_min);
                self.cut_until = Some(ack.next);
            } else if is_new_round {
                self.rate = (self.rate + self.additive).min(self.line);
            }
        }
        pace.rate_bps = self.rate as u64;
        pace.window_bytes = (self.bdp * self.rate / self.line) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::path;
    use super::*;

    fn ack(acknowledged: u64, next: u64, marks: u32) -> Ack<'static> {
        Ack { now_ps: 0, acknowledged, next, packets: 1, marks, ..Ack::default() }
    }

    #[test]
    fn alpha_cuts_once_per_rtt() {
        let mut pace = Pace { rate_bps: 0, window_bytes: 0, has_timers: false };
        let mut dctcp = Dctcp::new(&Parameters::default(), &path(), &mut pace);
        // 1000 bytes in 13 us: 615 Mb/s, as in the HPCC paper.
        assert!((dctcp.additive - 615e6).abs() < 1e6);
        dctcp.on_ack(&ack(1, 100, 1), &mut pace);
        assert_eq!(pace.rate_bps, 50_000_000_000);
        assert_eq!(pace.window_bytes, 81_250);
        (2..=100).for_each(|number| dctcp.on_ack(&ack(number, 150, 1), &mut pace));
        assert_eq!(pace.rate_bps, 50_000_000_000, "one cut per RTT");
        dctcp.on_ack(&ack(101, 200, 0), &mut pace);
        let alpha = 15.0 / 16.0 + 99.0 / 100.0 / 16.0;
        assert!((dctcp.alpha - alpha).abs() < 1e-9, "{}", dctcp.alpha);
        assert!((dctcp.rate - 50e9 - dctcp.additive).abs() < 1.0, "additive increase");
    }
}
