//! Detector of a lasting change of the rate: the Page-Hinkley test (Page, Continuous inspection schemes, 1954) in both
//! directions, on the logarithm of the rate in units of its noise.

/// Deviation that is no change, in standard deviations of one sample.
const DRIFT_SIGMAS: f64 = 1.0;

/// Accumulated deviation that is a change, likewise. Six samples of 2.5 deviations reach it.
const SHIFT_SUM_SIGMAS: f64 = 9.0;

/// Smallest change of the logarithm that counts: 8 %.
const SHIFT_MIN: f64 = 0.08;

/// Direction of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RateShift {
    Rise,
    Fall,
}

/// State of the test against one reference level.
#[derive(Debug, Clone, Default)]
pub(crate) struct ChangeDetector {
    rise: Excursion,
    fall: Excursion,
}

/// Sum of deviations since it last was zero, with their number and total for the size of the shift.
#[derive(Debug, Clone, Copy, Default)]
struct Excursion {
    sum: f64,
    count: f64,
    deviation: f64,
}

impl Excursion {
    fn add(&mut self, deviation: f64, sigma: f64) {
        let step = deviation / sigma - DRIFT_SIGMAS;
        if self.sum + step <= 0.0 {
            *self = Self::default();
            return;
        }
        // One wild sample is no lasting change.
        self.sum += step.min(SHIFT_SUM_SIGMAS / 2.0);
        self.count += 1.0;
        self.deviation += deviation;
    }

    fn is_change(&self) -> bool {
        self.sum >= SHIFT_SUM_SIGMAS && self.deviation / self.count.max(1.0) >= SHIFT_MIN
    }
}

impl ChangeDetector {
    /// Takes the deviation of a sample's logarithm from the reference level.
    pub(crate) fn observe(&mut self, deviation: f64, sigma: f64) -> Option<RateShift> {
        self.rise.add(deviation, sigma);
        self.fall.add(-deviation, sigma);
        if self.fall.is_change() {
            Some(RateShift::Fall)
        } else if self.rise.is_change() {
            Some(RateShift::Rise)
        } else {
            None
        }
    }

    /// True while the recent samples lie below the level.
    pub(crate) fn is_falling(&self) -> bool {
        self.fall.sum >= SHIFT_SUM_SIGMAS / 2.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lasting_shift_is_reported() {
        let mut detector = ChangeDetector::default();
        assert_eq!(detector.observe(-0.3, 0.05), None);
        assert!(detector.is_falling());
        assert_eq!(detector.observe(-0.3, 0.05), Some(RateShift::Fall));
        let mut detector = ChangeDetector::default();
        assert_eq!(detector.observe(0.3, 0.05), None);
        assert_eq!(detector.observe(0.3, 0.05), Some(RateShift::Rise));
    }

    #[test]
    fn noise_is_no_shift() {
        let mut detector = ChangeDetector::default();
        for n in 0..10_000 {
            let deviation = if n % 2 == 0 { 0.1 } else { -0.1 };
            assert_eq!(detector.observe(deviation, 0.1), None);
        }
        // A shift within 8 % is none, however certain it is.
        for _ in 0..100 {
            assert_eq!(detector.observe(0.05, 0.01), None);
        }
    }
}
