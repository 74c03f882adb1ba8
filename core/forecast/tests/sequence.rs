//! Models of sequences against the outputs of their training, and damaged files.
//!
//! `python/training/sequence_golden.py` writes the data.

use std::collections::BTreeMap;

use penstock_forecast::{
    SEQUENCE_BYTES_MAX, SEQUENCE_COLUMNS, SequenceKind, SequenceModel, SequenceModelError,
    SequenceRefusal, SequenceSample, UntrainedValue,
};
use proptest::prelude::*;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

const LAST: &[u8] = include_bytes!("data/sequence-last.safetensors");
const LINEAR: &[u8] = include_bytes!("data/sequence-linear.safetensors");
const LSTM: &[u8] = include_bytes!("data/sequence-lstm.safetensors");
const BILSTM: &[u8] = include_bytes!("data/sequence-bilstm.safetensors");
const ALL_KINDS: [(SequenceKind, &[u8]); 4] = [
    (SequenceKind::Last, LAST),
    (SequenceKind::Linear, LINEAR),
    (SequenceKind::Lstm, LSTM),
    (SequenceKind::Bilstm, BILSTM),
];
const TRAINING: &str = include_str!("../../../python/training/traces.py");

/// Parts of a file that a test changes.
struct ModelParts {
    described: Value,
    tensors: BTreeMap<String, (Vec<usize>, Dtype, Vec<u8>)>,
}

impl ModelParts {
    fn of(bytes: &[u8]) -> Self {
        let (_, header) = SafeTensors::read_metadata(bytes).unwrap();
        let described = &header.metadata().as_ref().unwrap()["penstock"];
        let tensors = SafeTensors::deserialize(bytes).unwrap();
        let tensors = tensors.iter().map(|(name, view)| {
            (name.to_owned(), (view.shape().to_vec(), view.dtype(), view.data().to_vec()))
        });
        Self { described: serde_json::from_str(described).unwrap(), tensors: tensors.collect() }
    }

    fn bytes(&self) -> Vec<u8> {
        let views = self.tensors.iter().map(|(name, (shape, dtype, data))| {
            (name, TensorView::new(*dtype, shape.clone(), data).unwrap())
        });
        let metadata = [("penstock".to_owned(), self.described.to_string())];
        safetensors::serialize(views, Some(metadata.into_iter().collect())).unwrap()
    }

    fn parse(&self) -> Result<SequenceModel, SequenceModelError> {
        SequenceModel::parse(&self.bytes())
    }

    fn refusal(&self) -> String {
        self.parse().unwrap_err().to_string()
    }

    /// Samples of a golden vector.
    fn golden_samples(&self, number: usize) -> Vec<SequenceSample> {
        let (shape, _, data) = &self.tensors["golden.input"];
        let values: Vec<f64> =
            data.as_chunks().0.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes))).collect();
        let names: Vec<&str> = (self.described["features"].as_array().unwrap().iter())
            .map(|feature| feature["name"].as_str().unwrap())
            .collect();
        let vector = values.chunks_exact(shape[1] * shape[2]).nth(number).unwrap();
        let sample = |row: &[f64]| {
            let value = |name| names.iter().position(|known| *known == name).map(|at| row[at]);
            SequenceSample {
                rate_bps: row[0],
                streams: value("streams"),
                retransmit_share: value("retransmit_share"),
                rtt_min_us: value("rtt_min_us"),
                rtt_us: value("rtt_ratio").map(|ratio| ratio * value("rtt_min_us").unwrap()),
                source_empty: value("source_empty"),
                destination_full: value("destination_full"),
                rate_limit: value("rate_limit"),
            }
        };
        vector.chunks_exact(shape[2]).map(sample).collect()
    }

    fn golden_outputs(&self, number: usize) -> Vec<f64> {
        let (shape, _, data) = &self.tensors["golden.output"];
        let outputs: Vec<f64> =
            data.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect();
        outputs.chunks_exact(shape[1]).nth(number).unwrap().to_vec()
    }
}

/// Samples that no model refuses: those of a golden vector.
fn known_samples(bytes: &[u8]) -> Vec<SequenceSample> {
    let (parts, model) = (ModelParts::of(bytes), SequenceModel::parse(bytes).unwrap());
    let mut all = (0..8).map(|number| parts.golden_samples(number));
    all.find(|samples| model.forecast(samples).is_ok()).unwrap()
}

#[test]
fn models_agree_with_training() {
    for (kind, bytes) in ALL_KINDS {
        let model = SequenceModel::parse(bytes).unwrap();
        assert_eq!((model.kind, model.window()), (kind, 30));
        assert!(model.golden_difference <= 1e-5);
        println!("{kind:?}: largest difference {:.1e}", model.golden_difference);
    }
}

#[test]
fn forecasts_are_golden_outputs_by_mean() {
    for (kind, bytes) in ALL_KINDS {
        let (parts, model) = (ModelParts::of(bytes), SequenceModel::parse(bytes).unwrap());
        let mut compared = 0;
        for number in 0..8 {
            let samples = parts.golden_samples(number);
            let Ok(found) = model.forecast(&samples) else { continue };
            let mean = samples.iter().map(|sample| sample.rate_bps).sum::<f64>() / 30.0;
            let horizons: Vec<u32> = found.iter().map(|one| one.horizon_s).collect();
            assert_eq!(horizons, [1, 5]);
            for (one, ratios) in found.iter().zip(parts.golden_outputs(number).chunks(3)) {
                let mut ratios = ratios.to_vec();
                ratios.sort_by(f64::total_cmp);
                let rate = one.bits_per_second;
                for (rate, ratio) in [rate.p10, rate.p50, rate.p90].iter().zip(ratios) {
                    assert!((rate / mean - ratio.max(0.0)).abs() < 1e-5, "{kind:?} {number}");
                }
            }
            compared += 1;
        }
        assert!(compared >= 4, "{kind:?}: {compared}");
    }
}

#[test]
fn training_has_the_same_columns() {
    let (_, rest) = TRAINING.split_once("COLUMNS = [\n").unwrap();
    let (list, _) = rest.split_once("\n]").unwrap();
    let ours = SEQUENCE_COLUMNS
        .iter()
        .map(|column| format!("    (\"{}\", \"{}\"),", column.name, column.unit));
    assert_eq!(list.lines().collect::<Vec<_>>(), ours.collect::<Vec<_>>());
}

#[test]
fn scale_of_rates_does_not_matter() {
    let mut parts = ModelParts::of(LSTM);
    parts.described["features"][0]["high"] = json!(1e15);
    let model = parts.parse().unwrap();
    let samples = known_samples(LSTM);
    let faster: Vec<_> = (samples.iter())
        .map(|sample| SequenceSample { rate_bps: sample.rate_bps * 8.0, ..*sample })
        .collect();
    let rates = |samples: &[SequenceSample]| model.forecast(samples).unwrap()[0].bits_per_second;
    assert!((rates(&faster).p50 / rates(&samples).p50 - 8.0).abs() < 1e-9);
}

#[test]
fn last_value_is_its_median() {
    let (model, samples) = (SequenceModel::parse(LAST).unwrap(), known_samples(LAST));
    for one in model.forecast(&samples).unwrap() {
        let rate = one.bits_per_second;
        assert!((rate.p50 / samples[29].rate_bps - 1.0).abs() < 1e-9);
        assert!(rate.p10 < rate.p50 && rate.p50 < rate.p90);
    }
}

#[test]
fn unknown_samples_are_refused() {
    let (model, samples) = (SequenceModel::parse(BILSTM).unwrap(), known_samples(BILSTM));
    let few = model.forecast(&samples[1..]).unwrap_err();
    assert_eq!(few, SequenceRefusal::TooFew { samples: 29, needed: 30 });
    // Samples before the window are not read.
    let more = [&[SequenceSample::default()], samples.as_slice()].concat();
    assert_eq!(model.forecast(&more), model.forecast(&samples));
    let refusal = |change: &dyn Fn(&mut SequenceSample)| {
        let mut samples = samples.clone();
        change(&mut samples[7]);
        model.forecast(&samples).unwrap_err()
    };
    let large = refusal(&|sample| sample.rate_bps = 1e15);
    assert!(
        matches!(large, SequenceRefusal::Value(UntrainedValue::Range { name: "rate_bps", .. })),
        "{large}"
    );
    let missing = refusal(&|sample| sample.streams = None);
    assert_eq!(missing, UntrainedValue::Missing("streams").into());
    assert_eq!(
        refusal(&|sample| sample.rate_bps = f64::NAN),
        UntrainedValue::Missing("rate_bps").into()
    );
    assert_eq!(
        refusal(&|sample| sample.rtt_min_us = Some(0.0)).to_string().split(' ').next(),
        Some("the")
    );
    let mut parts = ModelParts::of(LAST);
    parts.described["features"][0]["low"] = json!(0);
    let resting = parts.parse().unwrap().forecast(&[SequenceSample::default(); 30]);
    assert_eq!(resting.unwrap_err(), SequenceRefusal::AtRest(30));
}

#[test]
fn other_files_are_refused() {
    let parts = || ModelParts::of(LSTM);
    assert!(parts().parse().is_ok());
    for (field, value, text) in [
        ("format", json!("other"), "format of the model file is other"),
        ("version", json!(2), "version of the model file is 2"),
        ("kind", json!("transformer"), "cannot be read"),
        ("kind", json!("bilstm"), "backward.recurrent"),
        ("target", json!("seconds"), "rate_by_window_mean is needed"),
        ("quantiles", json!([0.5]), "quantiles"),
        ("interval_s", json!(2), "interval_s of the model file is 2"),
        ("window", json!(0), "window of the model file is 0"),
        ("window", json!(29), "shape of golden.input"),
        ("window", json!(1_000_000), "1 to 64 is needed"),
        ("horizons_s", json!([]), "number of horizons"),
        ("horizons_s", json!([0]), "horizon of the model file is 0"),
        ("horizons_s", json!([1]), "shape of head.weight"),
        ("features", json!([]), "number of features"),
    ] {
        let mut changed = parts();
        changed.described[field] = value;
        let refusal = changed.refusal();
        assert!(refusal.contains(text), "{refusal}");
    }
    for (field, value, text) in [
        ("unit", json!("Gbit/s"), "\"rate_bps\" in \"Gbit/s\""),
        ("scale", json!(0.0), "offset, scale"),
        ("name", json!("streams"), "\"streams\" in \"bit/s\""),
    ] {
        let mut changed = parts();
        changed.described["features"][0][field] = value;
        assert!(changed.refusal().contains(text), "{}", changed.refusal());
    }
    let mut changed = parts();
    let features = changed.described["features"].as_array_mut().unwrap();
    features.swap(0, 1);
    assert!(changed.refusal().contains("first feature"));
    let mut changed = parts();
    changed.tensors.remove("forward.bias");
    assert!(changed.refusal().contains("forward.bias"));
    let mut changed = parts();
    changed.tensors.get_mut("head.bias").unwrap().2[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    assert!(changed.refusal().contains("head.bias of the model file is NaN"));
    let mut changed = parts();
    changed.tensors.get_mut("head.bias").unwrap().1 = Dtype::I32;
    assert!(changed.refusal().contains("type of head.bias"));
    let large = vec![0; SEQUENCE_BYTES_MAX + 1];
    assert!(matches!(SequenceModel::parse(&large), Err(SequenceModelError::Size(_))));
}

#[test]
fn differing_golden_sequence_is_refused() {
    for (kind, bytes) in ALL_KINDS {
        let changed = |by: f64| {
            let mut parts = ModelParts::of(bytes);
            let output = &mut parts.tensors.get_mut("golden.output").unwrap().2[..8];
            let value = f64::from_le_bytes((&*output).try_into().unwrap());
            output.copy_from_slice(&(value + by * value.abs().max(1.0)).to_le_bytes());
            parts.parse()
        };
        let error = changed(2e-5).unwrap_err();
        assert!(matches!(error, SequenceModelError::Golden { number: 0, .. }), "{kind:?}");
        assert!(changed(0.5e-5).is_ok());
        // Another weight.
        let mut parts = ModelParts::of(bytes);
        parts.tensors.get_mut("head.bias").unwrap().2[..4].copy_from_slice(&9_f32.to_le_bytes());
        assert!(matches!(parts.parse().unwrap_err(), SequenceModelError::Golden { .. }));
    }
}

proptest! {
    #![proptest_config(penstock_testkit::properties())]

    #[test]
    fn damaged_sequence_files_do_not_panic(
        kind in 0_usize..4,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        end in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let (_, bytes) = ALL_KINDS[kind];
        let mut damaged = bytes.to_vec();
        for (at, byte) in changes {
            damaged[at.index(bytes.len())] = byte;
        }
        damaged.truncate(end.map_or(bytes.len(), |end| end.index(bytes.len())));
        if let Ok(model) = SequenceModel::parse(&damaged) {
            let _ = model.forecast(&[SequenceSample { rate_bps: 1e9, ..Default::default() }; 64]);
        }
    }

    #[test]
    fn quantiles_of_any_samples_are_ordered(
        kind in 0_usize..4,
        rates in proptest::collection::vec(0.0..1e10_f64, 30),
        streams in 1_u8..64,
    ) {
        let (_, bytes) = ALL_KINDS[kind];
        let model = SequenceModel::parse(bytes).unwrap();
        let samples: Vec<_> = rates
            .into_iter()
            .map(|rate_bps| SequenceSample {
                rate_bps,
                streams: Some(f64::from(streams)),
                retransmit_share: Some(0.0),
                rtt_min_us: Some(20_000.0),
                rtt_us: Some(40_000.0),
                source_empty: Some(0.0),
                destination_full: Some(0.0),
                rate_limit: Some(0.0),
            })
            .collect();
        if let Ok(found) = model.forecast(&samples) {
            for one in found {
                let rate = one.bits_per_second;
                prop_assert!(0.0 <= rate.p10 && rate.p10 <= rate.p50 && rate.p50 <= rate.p90);
            }
        }
    }
}
