//! Streams to begin a transfer with, and the rate of one: those of the best of the latest transfers of a path.

use crate::online::{TRANSFERS_MIN, WINDOW_TRANSFERS, weight_of_rank};
use crate::quantiles::WeightedValues;

/// Rate of a transfer over that of the best ones from which its streams count.
const GOOD_RATE_SHARE: f64 = 0.8;

/// Streams and rate of a transfer of the path.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StreamsOutcome {
    /// Streams that it had for most of its time once they were found.
    pub streams: u16,
    /// Mean rate in bits per second.
    pub bits_per_second: f64,
}

/// Streams that history recommends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StreamsAdvice {
    /// Number of streams, one that a transfer had.
    pub streams: u16,
    /// Rate of one of them in the best transfers, in bits per second.
    pub stream_bps: f64,
    /// Transfers of the path that were compared.
    pub transfers: u32,
}

/// Recommends streams from the transfers of a path, newest first; none from fewer than [`TRANSFERS_MIN`].
///
/// It is the median of those transfers whose rate is near the best (the ninth decile), newer ones with more weight: never
/// a number outside of the history.
#[must_use]
pub fn advise_streams(newest_first: &[StreamsOutcome]) -> Option<StreamsAdvice> {
    let is_usable = |one: &&StreamsOutcome| one.bits_per_second > 0.0 && one.streams > 0;
    let latest: Vec<_> = newest_first.iter().filter(is_usable).take(WINDOW_TRANSFERS).collect();
    if latest.len() < TRANSFERS_MIN {
        return None;
    }
    let weighted = || latest.iter().enumerate().map(|(rank, one)| (*one, weight_of_rank(rank)));
    let rates = WeightedValues::new(weighted().map(|(one, weight)| (one.bits_per_second, weight)));
    let best_bps = rates.quantiles()?.p90;
    let good = best_bps * GOOD_RATE_SHARE;
    let mut best: Vec<(u16, f64)> = weighted()
        .filter(|(one, _)| one.bits_per_second >= good)
        .map(|(one, weight)| (one.streams, weight))
        .collect();
    best.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let half = best.iter().map(|(_, weight)| weight).sum::<f64>() / 2.0;
    let mut sum = 0.0;
    let median = best.iter().find(|(_, weight)| {
        sum += weight;
        sum >= half
    });
    let streams = median.or(best.last())?.0;
    let transfers = u32::try_from(latest.len()).unwrap_or(u32::MAX);
    Some(StreamsAdvice { streams, stream_bps: best_bps / f64::from(streams), transfers })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcomes(pairs: &[(u16, f64)]) -> Vec<StreamsOutcome> {
        let outcome = |(streams, bits_per_second): &(u16, f64)| StreamsOutcome {
            streams: *streams,
            bits_per_second: *bits_per_second,
        };
        pairs.iter().map(outcome).collect()
    }

    #[test]
    fn best_transfers_name_streams() {
        let found = [(16, 98.0), (15, 100.0), (16, 95.0), (17, 97.0), (16, 99.0), (2, 13.0)];
        let advice = advise_streams(&outcomes(&found)).unwrap();
        assert_eq!((advice.streams, advice.transfers), (16, 6));
        assert!((97.0..=100.0).contains(&(advice.stream_bps * 16.0)), "{advice:?}");
    }

    #[test]
    fn short_history_is_refused() {
        assert_eq!(advise_streams(&outcomes(&[(16, 98.0); 4])), None);
        assert_eq!(advise_streams(&outcomes(&[(16, 0.0); 8])), None);
        assert_eq!(advise_streams(&[]), None);
    }

    #[test]
    fn newer_transfers_count_more() {
        // The path has changed: equal rates, with fewer streams of late.
        let found: Vec<_> = [(4, 50.0); 10].into_iter().chain([(32, 50.0); 10]).collect();
        assert_eq!(advise_streams(&outcomes(&found)).unwrap().streams, 4);
    }
}
