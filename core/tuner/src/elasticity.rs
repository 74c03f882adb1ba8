//! Elasticity of the rate: its relative change over the relative change of workers, d ln T / d ln n.
//!
//! With a cap on each connection it is one up to the knee and zero beyond. With `m` equal transfers on a link it is
//! `1 − 1/m` at any number of streams: more streams only take the share of others. A transfer therefore needs a higher
//! elasticity for more streams on a congested path; with the same rule at all transfers their only common equilibrium is
//! an equal one, near `(1 − 1/m) · CONGESTED_STREAMS` streams.

/// Streams at which a congested path would have to answer in proportion.
const CONGESTED_STREAMS: f64 = 16.0;

/// Largest elasticity that is demanded: the rest is noise.
const REQUIRED_MAX: f64 = 0.8;

/// Elasticity demanded without congestion: 7 % for a doubling.
const REQUIRED_MIN: f64 = 0.1;

/// Share of what growth demands below which workers are given back: hysteresis against flapping.
const GIVE_BACK_SHARE: f64 = 0.85;

/// Largest elasticity at which workers are given back: a cap of each stream answers with more to a quarter fewer.
const GIVE_BACK_MAX: f64 = 0.5;

/// Elasticity that growth from `workers` demands.
pub(crate) fn required_to_grow(workers: u16, congested: bool) -> f64 {
    if congested {
        (f64::from(workers) / CONGESTED_STREAMS).clamp(REQUIRED_MIN, REQUIRED_MAX)
    } else {
        REQUIRED_MIN
    }
}

/// Elasticity between two settings below which the larger one is given up on a congested path.
pub(crate) fn limit_to_shrink(workers: u16) -> f64 {
    (required_to_grow(workers, true) * GIVE_BACK_SHARE).min(GIVE_BACK_MAX)
}

/// Elasticity of a difference of logarithms between two numbers of workers.
pub(crate) fn elasticity(log_ratio: f64, from: u16, to: u16) -> f64 {
    let workers = (f64::from(to.max(1)) / f64::from(from.max(1))).ln();
    if workers == 0.0 { 0.0 } else { log_ratio / workers }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capped_streams_are_proportional() {
        assert!((elasticity(2.0_f64.ln(), 8, 16) - 1.0).abs() < 1e-12);
        assert!((elasticity((0.5_f64).ln(), 16, 8) - 1.0).abs() < 1e-12);
        assert_eq!(elasticity(0.5, 4, 4), 0.0);
    }

    #[test]
    fn congestion_demands_more() {
        assert!(required_to_grow(8, true) > required_to_grow(4, true));
        assert_eq!(required_to_grow(8, false), required_to_grow(64, false));
        assert!(limit_to_shrink(8) < required_to_grow(8, true));
    }
}
