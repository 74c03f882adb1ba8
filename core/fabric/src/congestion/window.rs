//! Window and pacing set by parameters, independent of the congestion control (HAS_WIN, VAR_WIN and RATE_BOUND of the
//! HPCC simulator).

use super::{Ack, Congestion, Pace, PathProperties};
use crate::parameters::{Parameters, Window};

/// Wrapper that replaces the window of an algorithm and optionally disables its pacing.
#[derive(Debug)]
struct BoundedWindow {
    algorithm: Box<dyn Congestion>,
    /// Rate and window of the wrapped algorithm.
    own: Pace,
    window: Window,
    window_bytes: u64,
    line_bps: u64,
    is_paced: bool,
}

/// Applies the parameters `window` and `paced` to an algorithm (none: line rate) and its initial pace.
pub(super) fn apply_window(
    parameters: &Parameters,
    path: &PathProperties,
    algorithm: Option<Box<dyn Congestion>>,
    pace: Pace,
) -> (Option<Box<dyn Congestion>>, Pace) {
    if parameters.window == Window::Auto && parameters.paced {
        return (algorithm, pace);
    }
    let bottleneck = PathProperties { line_bps: path.bottleneck_bps, ..*path };
    let window_bytes =
        parameters.window_bytes.map_or_else(|| bottleneck.bdp_bytes(), |bytes| bytes.0);
    let (window, is_paced, line_bps) = (parameters.window, parameters.paced, path.line_bps);
    let bounded = |own| bounded_pace(own, window, window_bytes, line_bps, is_paced);
    let outer = bounded(pace);
    let algorithm = algorithm.map(|algorithm| {
        let own = pace;
        let bounded = BoundedWindow { algorithm, own, window, window_bytes, line_bps, is_paced };
        Box::new(bounded) as Box<dyn Congestion>
    });
    (algorithm, outer)
}

fn bounded_pace(
    own: Pace,
    window: Window,
    window_bytes: u64,
    line_bps: u64,
    is_paced: bool,
) -> Pace {
    let window_bytes = match window {
        Window::Auto => own.window_bytes,
        Window::None => u64::MAX,
        Window::Fixed => window_bytes,
        Window::Scaled => {
            let scaled = u128::from(window_bytes) * u128::from(own.rate_bps.min(line_bps));
            ((scaled / u128::from(line_bps.max(1))) as u64).max(1)
        }
    };
    let rate_bps = if is_paced { own.rate_bps } else { line_bps };
    Pace { rate_bps, window_bytes, has_timers: own.has_timers }
}

impl BoundedWindow {
    fn update_pace(&self, pace: &mut Pace) {
        *pace =
            bounded_pace(self.own, self.window, self.window_bytes, self.line_bps, self.is_paced);
    }
}

impl Congestion for BoundedWindow {
    fn on_ack(&mut self, ack: &Ack<'_>, pace: &mut Pace) {
        self.algorithm.on_ack(ack, &mut self.own);
        self.update_pace(pace);
    }

    fn on_cnp(&mut self, now_ps: u64, pace: &mut Pace) {
        self.algorithm.on_cnp(now_ps, &mut self.own);
        self.update_pace(pace);
    }

    fn on_loss(&mut self, ack: &Ack<'_>, pace: &mut Pace) {
        self.algorithm.on_loss(ack, &mut self.own);
        self.update_pace(pace);
    }

    fn on_timeout(&mut self, now_ps: u64, pace: &mut Pace) {
        self.algorithm.on_timeout(now_ps, &mut self.own);
        self.update_pace(pace);
    }

    fn on_send(&mut self, now_ps: u64, bytes: u32, pace: &mut Pace) {
        self.algorithm.on_send(now_ps, bytes, &mut self.own);
        self.update_pace(pace);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{start, tests::path};
    use super::*;
    use crate::parameters::CongestionControl;

    const CONTROLS: [CongestionControl; 6] = [
        CongestionControl::None,
        CongestionControl::Dcqcn,
        CongestionControl::Hpcc,
        CongestionControl::Timely,
        CongestionControl::Dctcp,
        CongestionControl::Swift,
    ];

    /// 100 Gb/s times 13 us are 162,500 bytes.
    #[test]
    fn window_parameter_overrides_every_control() {
        for cc in CONTROLS {
            let of = |window| {
                let parameters = Parameters { cc, window, ..Parameters::default() };
                start(&parameters, &path()).1.window_bytes
            };
            assert_eq!(of(Window::None), u64::MAX, "{cc:?}");
            assert_eq!(of(Window::Fixed), 162_500, "{cc:?}");
        }
    }

    /// A mark halves DCTCP's rate: a scaled window is halved, a fixed one is not.
    #[test]
    fn scaled_window_follows_rate() {
        for (window, expected) in [(Window::Scaled, 81_250), (Window::Fixed, 162_500)] {
            for (paced, rate_bps) in [(true, 50_000_000_000), (false, 100_000_000_000)] {
                let cc = CongestionControl::Dctcp;
                let parameters = Parameters { cc, window, paced, ..Parameters::default() };
                let (algorithm, mut pace) = start(&parameters, &path());
                let ack = Ack { acknowledged: 1, next: 9, packets: 1, marks: 1, ..Ack::default() };
                algorithm.unwrap().on_ack(&ack, &mut pace);
                assert_eq!((pace.window_bytes, pace.rate_bps), (expected, rate_bps));
            }
        }
    }
}
