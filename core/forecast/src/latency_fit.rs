//! Latency and rate of a path, from sizes and durations of transfers.

/// A transfer of `bytes` takes about `latency_s + bytes * seconds_per_byte`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LatencyFit {
    /// Time that does not depend on the size.
    pub latency_s: f64,
    /// Reciprocal of the rate.
    pub seconds_per_byte: f64,
}

/// Size and duration of a transfer with its weight in the fit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FitPoint {
    pub(crate) bytes: f64,
    pub(crate) seconds: f64,
    pub(crate) weight: f64,
}

impl LatencyFit {
    /// The line through the origin or through two points, without negative parts, with the least weighted sum of absolute
    /// logarithms of measured by fitted duration. Half of the weight must be wrong before an outlier moves it. `None` without
    /// points.
    pub(crate) fn of(points: &[FitPoint]) -> Option<Self> {
        let through_origin = points
            .iter()
            .map(|one| Self { latency_s: 0.0, seconds_per_byte: one.seconds / one.bytes });
        let pairs = points.iter().enumerate().flat_map(|(number, one)| {
            points[..number].iter().filter_map(move |other| Self::through(one, other))
        });
        let mut best: Option<(f64, Self)> = None;
        for candidate in through_origin.chain(pairs) {
            let least = best.map_or(f64::INFINITY, |(least, _)| least);
            if let Some(error) = candidate.error_below(points, least) {
                best = Some((error, candidate));
            }
        }
        best.map(|(_, fit)| fit)
    }

    fn through(one: &FitPoint, other: &FitPoint) -> Option<Self> {
        let seconds_per_byte = (one.seconds - other.seconds) / (one.bytes - other.bytes);
        let latency_s = one.seconds - seconds_per_byte * one.bytes;
        let fits = seconds_per_byte.is_finite() && seconds_per_byte > 0.0 && latency_s >= 0.0;
        fits.then_some(Self { latency_s, seconds_per_byte })
    }

    /// Duration of a transfer of this size.
    #[must_use]
    pub fn seconds(&self, bytes: f64) -> f64 {
        self.latency_s + bytes * self.seconds_per_byte
    }

    /// Error of the fit if it is below `limit`, else `None` as soon as that shows.
    fn error_below(&self, points: &[FitPoint], limit: f64) -> Option<f64> {
        let mut sum = 0.0;
        for one in points {
            sum += one.weight * (one.seconds / self.seconds(one.bytes)).ln().abs();
            if sum >= limit || sum.is_nan() {
                return None;
            }
        }
        Some(sum)
    }
}
