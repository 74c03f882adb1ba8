//! DCQCN as published (Zhu et al., SIGCOMM 2015, section 3): the receiver sends CNPs at a minimum interval, each CNP
//! cuts the rate at once, and the rate increases by a timer and a byte counter.

use super::{Ack, Congestion, Pace, PathProperties, power, rate_min_bps};
use crate::parameters::Parameters;

/// State of one queue pair.
#[derive(Debug)]
pub(super) struct DcqcnPaper {
    line: f64,
    rate_min: f64,
    gain: f64,
    alpha_interval: u64,
    increase_interval: u64,
    increase_bytes: u64,
    recovery_stages: u32,
    additive: f64,
    hyper: f64,

    alpha: f64,
    rate: f64,
    target: f64,
    bytes: u64,
    byte_stage: u32,
    time_stage: u32,
    /// Next expirations of the alpha timer and the rate increase timer; none before the first CNP.
    due: Option<(u64, u64)>,
}

impl DcqcnPaper {
    pub(super) fn new(parameters: &Parameters, path: &PathProperties) -> Self {
        let line = path.line_bps as f64;
        Self {
            line,
            rate_min: rate_min_bps(parameters),
            gain: parameters.dcqcn_gain,
            alpha_interval: parameters.dcqcn_paper_alpha_interval.0,
            increase_interval: parameters.dcqcn_paper_increase_interval.0,
            increase_bytes: parameters.dcqcn_paper_increase_bytes.0,
            recovery_stages: parameters.dcqcn_paper_recovery_stages,
            additive: parameters.dcqcn_paper_additive.0 as f64,
            hyper: parameters.dcqcn_paper_hyper.0 as f64,
            alpha: 1.0,
            rate: line,
            target: line,
            bytes: 0,
            byte_stage: 0,
            time_stage: 0,
            due: None,
        }
    }

    fn advance(&mut self, now: u64, pace: &mut Pace) {
        let Some((mut alpha_at, mut increase_at)) = self.due else { return };
        if alpha_at <= now {
            let steps = (now - alpha_at) / self.alpha_interval + 1;
            self.alpha *= power(1.0 - self.gain, steps);
            alpha_at += steps * self.alpha_interval;
        }
        while increase_at <= now && self.rate < self.line {
            self.time_stage += 1;
            self.increase_rate();
            increase_at += self.increase_interval;
        }
        if increase_at <= now {
            increase_at = now + self.increase_interval;
        }
        self.due = Some((alpha_at, increase_at));
        pace.rate_bps = self.rate as u64;
    }

    /// Rate increase after a timer or byte counter expired: fast recovery while neither stage exceeds the threshold,
    /// additive increase if one does, hyper increase if both do.
    fn increase_rate(&mut self) {
        let (less, more) =
            (self.byte_stage.min(self.time_stage), self.byte_stage.max(self.time_stage));
        if less > self.recovery_stages {
            self.target += f64::from(less - self.recovery_stages) * self.hyper;
        } else if more > self.recovery_stages {
            self.target += self.additive;
        }
        self.target = self.target.min(self.line);
        self.rate = f64::midpoint(self.rate, self.target);
        if self.rate >= self.line * (1.0 - 1e-6) {
            self.rate = self.line;
        }
    }
}

impl Congestion for DcqcnPaper {
    fn on_ack(&mut self, _ack: &Ack<'_>, _pace: &mut Pace) {}

    fn on_cnp(&mut self, now_ps: u64, pace: &mut Pace) {
        self.advance(now_ps, pace);
        self.target = self.rate;
        self.rate = (self.rate * (1.0 - self.alpha / 2.0)).max(self.rate_min);
        self.alpha = (1.0 - self.gain) * self.alpha + self.gain;
        (self.bytes, self.byte_stage, self.time_stage) = (0, 0, 0);
        self.due = Some((now_ps + self.alpha_interval, now_ps + self.increase_interval));
        pace.rate_bps = self.rate as u64;
        pace.has_timers = true;
    }

    fn on_send(&mut self, now_ps: u64, bytes: u32, pace: &mut Pace) {
        self.advance(now_ps, pace);
        self.bytes += u64::from(bytes);
        if self.bytes >= self.increase_bytes {
            self.bytes -= self.increase_bytes;
            self.byte_stage += 1;
            self.increase_rate();
            pace.rate_bps = self.rate as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::path;
    use super::*;

    const PS_PER_US: u64 = 1_000_000;

    #[test]
    fn cnp_halves_rate_then_recovers() {
        let parameters = Parameters::default();
        let mut dcqcn = DcqcnPaper::new(&parameters, &path());
        let mut pace = Pace { rate_bps: 0, window_bytes: 0, has_timers: false };
        dcqcn.on_cnp(0, &mut pace);
        assert_eq!(pace.rate_bps, 50_000_000_000);
        assert!((dcqcn.target - 100e9).abs() < 1.0);
        dcqcn.on_send(5 * 55 * PS_PER_US, 0, &mut pace);
        // 100 - 50/2^5.
        assert_eq!(pace.rate_bps, 98_437_500_000);
        let alpha = (255.0_f64 / 256.0).powi(5);
        assert!((dcqcn.alpha - alpha).abs() < 1e-12);
        dcqcn.on_cnp(5 * 55 * PS_PER_US, &mut pace);
        assert!((dcqcn.rate - 98_437_500_000.0 * (1.0 - alpha / 2.0)).abs() < 1.0);
        assert!((dcqcn.target - 98_437_500_000.0).abs() < 1.0);
    }

    #[test]
    fn byte_and_time_counters_combine() {
        let parameters = Parameters::default();
        let mut dcqcn = DcqcnPaper::new(&parameters, &path());
        let mut pace = Pace { rate_bps: 0, window_bytes: 0, has_timers: false };
        (0..40).for_each(|_| dcqcn.on_cnp(0, &mut pace));
        assert_eq!(pace.rate_bps, 100_000_000, "minimum rate");
        let target = dcqcn.target;
        for _ in 0..6 {
            dcqcn.on_send(1, 10_000_000, &mut pace);
        }
        assert!((dcqcn.target - target - 40e6).abs() < 1.0, "one additive step");
        dcqcn.on_send(6 * 55 * PS_PER_US, 0, &mut pace);
        // Five more additive steps and one hyper increase.
        assert!(
            (dcqcn.target - target - 6.0 * 40e6 - 200e6).abs() < 1.0,
            "{}",
            dcqcn.target - target
        );
    }
}
