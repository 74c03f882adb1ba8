//! Properties of forecasts without a model, against brute force and known truths.

use penstock_forecast::online::{
    ForecastRequest, ForecastScope, SIZE_MARGIN, ScopeRefusal, TRANSFERS_MIN, WINDOW_TRANSFERS,
    forecast,
};
use penstock_forecast::{PastTransfer, TransferFeatures, WeightedValues, pair_rates_before};
use penstock_random::Random;
use proptest::prelude::*;

fn past(source: &str, destination: &str, bytes: f64, seconds: f64) -> PastTransfer {
    PastTransfer {
        source: source.to_owned(),
        destination: destination.to_owned(),
        started_s: 1_800_000_000.0,
        seconds,
        bytes,
        features: TransferFeatures::default(),
    }
}

fn request(source: &str, destination: &str, bytes: u64) -> ForecastRequest {
    ForecastRequest {
        source: vec![source.to_owned()],
        destination: vec![destination.to_owned()],
        bytes,
    }
}

/// Transfers of a path with a latency, a rate and noise of a relative size.
fn transfers(
    random: &mut Random,
    count: usize,
    (latency, rate, noise): (f64, f64, f64),
) -> Vec<PastTransfer> {
    let mut one = |_| {
        let bytes = 1e6 * (random.unit() * 9.0).exp();
        let seconds = (latency + bytes * 8.0 / rate) * (noise * random.normal()).exp();
        past("a", "b", bytes, seconds)
    };
    (0..count).map(&mut one).collect()
}

proptest! {
    #![proptest_config(penstock_testkit::properties())]

    /// Oracle: each value as often as its weight says, and the rank among them and one more.
    #[test]
    fn quantiles_equal_those_of_copies(
        values in proptest::collection::vec((-1000_i32..1000, 1_usize..5), 1..40),
        percent in 1_usize..100,
    ) {
        let mut copies: Vec<f64> =
            values.iter().flat_map(|(value, count)| vec![f64::from(*value); *count]).collect();
        copies.sort_by(f64::total_cmp);
        let n = copies.len();
        let weighted = WeightedValues::new(values.iter().map(|(v, c)| (f64::from(*v), *c as f64)));
        let rank = (percent * (n + 1)).div_ceil(100).clamp(1, n);
        prop_assert_eq!(weighted.upper(percent as f64 / 100.0), Some(copies[rank - 1]));
        let rank = ((100 - percent) * (n + 1)).div_ceil(100).clamp(1, n);
        prop_assert_eq!(weighted.lower(percent as f64 / 100.0), Some(copies[n - rank]));
        let middle = f64::midpoint(copies[(n - 1) / 2], copies[n / 2]);
        prop_assert_eq!(weighted.median(), Some(middle));
        let quantiles = weighted.quantiles().unwrap();
        prop_assert!(quantiles.p10 <= quantiles.p50 && quantiles.p50 <= quantiles.p90);
    }

    #[test]
    fn any_history_gives_ordered_quantiles(
        history in proptest::collection::vec((any::<f64>(), any::<f64>()), 0..60),
        bytes in any::<u64>(),
    ) {
        let history: Vec<_> = history.iter().map(|(b, s)| past("a", "b", *b, *s)).collect();
        if let Ok(found) = forecast(&history, &request("a", "b", bytes)) {
            prop_assert!((TRANSFERS_MIN..=WINDOW_TRANSFERS).contains(&found.transfers));
            prop_assert!(0.0 < found.seconds.p10 && found.seconds.p10 <= found.seconds.p50);
            prop_assert!(found.seconds.p50 <= found.seconds.p90);
            prop_assert!(found.bits_per_second.p10 <= found.bits_per_second.p90);
        }
    }

    #[test]
    fn exact_lines_are_found(latency in 0.0..50.0_f64, rate in 1e6..1e11_f64, seed in any::<u64>()) {
        let mut random = Random::new(seed);
        let history = transfers(&mut random, 20, (latency, rate, 0.0));
        let found = forecast(&history, &request("a", "b", 50_000_000)).unwrap();
        let expected = latency + 4e8 / rate;
        prop_assert!((found.seconds.p50 / expected - 1.0).abs() < 1e-6, "{found:?} {expected}");
        prop_assert!((found.seconds.p90 / expected - 1.0).abs() < 1e-6, "{found:?}");
    }

    /// Four broken rows of 24, as in published histories, do not move the median.
    #[test]
    fn outliers_do_not_move_the_median(seed in any::<u64>(), factor in 1e-4..1e4_f64) {
        let mut random = Random::new(seed);
        let mut history = transfers(&mut random, 24, (0.5, 1e9, 0.0));
        history.iter_mut().step_by(6).for_each(|one| one.seconds *= factor);
        let found = forecast(&history, &request("a", "b", 100_000_000)).unwrap();
        prop_assert!((found.seconds.p50 / 1.3 - 1.0).abs() < 1e-6, "{found:?}");
    }
}

/// Share of outcomes between the 10 % and the 90 % quantile, over many paths.
#[test]
fn quantiles_cover_their_share() {
    let mut random = Random::new(20);
    // Five transfers have 2/3 of outcomes in their range; weights make more a little wide.
    for (count, least, most) in
        [(5, 0.62, 0.80), (10, 0.78, 0.92), (20, 0.80, 0.93), (32, 0.80, 0.93)]
    {
        let (mut inside, mut all) = (0, 0);
        for _ in 0..400 {
            let path = (random.unit() * 5.0, 1e7 * (random.unit() * 6.0).exp(), 0.2);
            let history = transfers(&mut random, count, path);
            let next = transfers(&mut random, 1, path).remove(0);
            let Ok(found) = forecast(&history, &request("a", "b", next.bytes as u64)) else {
                continue;
            };
            all += 1;
            inside += usize::from((found.seconds.p10..=found.seconds.p90).contains(&next.seconds));
        }
        let share = f64::from(inside as u32) / f64::from(all);
        println!("{count} transfers: {share:.3} of {all} outcomes inside");
        assert!((least..=most).contains(&share), "{count}: {share} of {all}");
    }
}

#[test]
fn scopes_widen_until_enough_transfers() {
    let mut history: Vec<_> = (0..5).map(|_| past("a", "b", 1e9, 8.0)).collect();
    history.extend((0..5).map(|_| past("a", "c", 1e9, 4.0)));
    history.extend((0..40).map(|_| past("x", "y", 1e9, 2.0)));
    let scope = |source: &str, destination: &str| {
        let found = forecast(&history, &request(source, destination, 1_000_000_000)).unwrap();
        (found.scope, found.transfers, found.seconds.p50)
    };
    assert_eq!(scope("a", "b"), (ForecastScope::Pair, 5, 8.0));
    assert_eq!(scope("a", "d"), (ForecastScope::Source, 10, 4.0));
    assert_eq!(scope("q", "b"), (ForecastScope::All, WINDOW_TRANSFERS, 2.0));
    // The direction counts.
    assert_eq!(scope("b", "a"), (ForecastScope::All, WINDOW_TRANSFERS, 2.0));
}

#[test]
fn refusal_names_counts_and_sizes() {
    let history: Vec<_> = (0..5).map(|_| past("a", "b", 1e9, 8.0)).collect();
    let most = (1e9 * SIZE_MARGIN) as u64;
    assert!(forecast(&history, &request("a", "b", most)).is_ok());
    let refusal = forecast(&history, &request("a", "b", most + 1)).unwrap_err();
    assert!(
        refusal.0.iter().all(|(_, one)| matches!(one, ScopeRefusal::Size { transfers: 5, .. }))
    );
    assert!(refusal.to_string().contains("from 250000000 to 4000000000 bytes"), "{refusal}");
    assert!(forecast(&history, &request("a", "b", 0)).is_err());
    let refusal = forecast(&history[..4], &request("a", "c", 1_000_000_000)).unwrap_err();
    assert_eq!(refusal.0[0], (ForecastScope::Pair, ScopeRefusal::TooFew { transfers: 0 }));
    assert_eq!(refusal.0[1], (ForecastScope::Source, ScopeRefusal::TooFew { transfers: 4 }));
    assert!(refusal.to_string().contains("0 transfers between these hosts, 5 are needed"));
}

#[test]
fn newer_transfers_count_more() {
    let mut history: Vec<_> = (0..16).map(|_| past("a", "b", 1e9, 8.0)).collect();
    history.extend((0..14).map(|_| past("a", "b", 1e9, 16.0)));
    let found = forecast(&history, &request("a", "b", 1_000_000_000)).unwrap();
    assert_eq!(found.seconds.p50, 16.0);
}

#[test]
fn pair_rates_use_only_ended_transfers() {
    let at =
        |started_s: f64, seconds: f64| PastTransfer { started_s, ..past("a", "b", 1e9, seconds) };
    let pair = [at(0.0, 100.0), at(10.0, 8.0), at(20.0, 4.0), at(40.0, 1.0)];
    assert_eq!(pair_rates_before(&pair, 17.9), None);
    assert_eq!(pair_rates_before(&pair, 18.0), Some((1e9, 1e9)));
    assert_eq!(pair_rates_before(&pair, 30.0), Some((2e9, 1.5e9)));
    // The last is the one that ended last.
    assert_eq!(pair_rates_before(&pair, 100.0), Some((8e7, 1.5e9)));
}
