//! Untrusted model files: each is read within the limits or refused with a text, and what was read gives ordered, positive
//! quantiles or a refusal for any transfer. The same for models of sequences and any samples.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_forecast::{
    ModelBundle, SequenceModel, SequenceSample, TransferFeatures, TreeModel,
};

/// Values for the features, from the end of the input.
fn features(bytes: &[u8]) -> TransferFeatures {
    let mut values = bytes.rchunks_exact(8).map(|eight| {
        let value = f64::from_le_bytes(eight.try_into().expect("eight bytes"));
        value.is_finite().then_some(value)
    });
    let mut next = || values.next().flatten();
    TransferFeatures {
        bytes: next(),
        files: next(),
        streams: next(),
        rtt_us: next(),
        started_s: next(),
        pair_last_bps: next(),
        ..TransferFeatures::default()
    }
}

/// Samples of a running transfer, from the end of the input.
fn samples(bytes: &[u8], count: usize) -> Vec<SequenceSample> {
    let values = bytes.rchunks_exact(8).map(|eight| {
        let value = f64::from_le_bytes(eight.try_into().expect("eight bytes"));
        if value.is_finite() { value } else { 1e9 }
    });
    let values = values.chain(std::iter::repeat(1e9)).take(count);
    let sample = |value: f64| SequenceSample {
        rate_bps: value,
        streams: Some(4.0),
        retransmit_share: Some(0.0),
        rtt_min_us: Some(20_000.0),
        rtt_us: Some(40_000.0),
        source_empty: Some(0.0),
        destination_full: Some(0.0),
        rate_limit: Some(0.0),
    };
    values.map(sample).collect()
}

fuzz_target!(|bytes: &[u8]| {
    if let Ok(trees) = TreeModel::parse(bytes) {
        assert_eq!(trees.predict(&[]).len(), trees.outputs());
        assert_eq!(trees.predict(&vec![f32::MAX; trees.features()]).len(), trees.outputs());
    }
    match ModelBundle::parse(bytes) {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(model) => {
            let features = features(bytes);
            let recent: Vec<_> = (1..9).map(|rate| (features, f64::from(rate) * 1e8)).collect();
            if let Ok(found) = model.forecast(&features, &recent) {
                let rate = found.bits_per_second;
                assert!(0.0 <= rate.p10 && rate.p10 <= rate.p50 && rate.p50 <= rate.p90, "{found:?}");
                assert!(found.seconds.p10 <= found.seconds.p90, "{found:?}");
            }
        }
    }
    match SequenceModel::parse(bytes) {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(model) => {
            for found in model.forecast(&samples(bytes, model.window())).into_iter().flatten() {
                let rate = found.bits_per_second;
                assert!(0.0 <= rate.p10 && rate.p10 <= rate.p50 && rate.p50 <= rate.p90, "{found:?}");
            }
        }
    }
});
