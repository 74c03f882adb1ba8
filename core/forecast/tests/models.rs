//! Trees and model files against predictions of XGBoost itself, and damaged files.
//!
//! `python/training/golden.py` writes the data.

use penstock_forecast::{
    BundleError, FEATURES, ModelBundle, ModelRefusal, TransferFeatures, TreeModel, TreeModelError,
    UntrainedValue,
};
use proptest::prelude::*;
use serde_json::{Value, json};

const TREES: &str = include_str!("data/trees.json");
const MODEL: &str = include_str!("data/model.json");
const TRAINING: &str = include_str!("../../../python/training/features.py");

fn model() -> Value {
    serde_json::from_str(MODEL).unwrap()
}

fn parse(value: &Value) -> Result<ModelBundle, BundleError> {
    ModelBundle::parse(value.to_string().as_bytes())
}

fn refusal_of(value: &Value) -> String {
    parse(value).unwrap_err().to_string()
}

fn floats(row: &Value) -> Vec<f32> {
    let value = |value: &Value| value.as_f64().map_or(f32::NAN, |value| value as f32);
    row.as_array().unwrap().iter().map(value).collect()
}

#[test]
fn trees_predict_as_xgboost_does() {
    let models: Vec<Value> = serde_json::from_str(TREES).unwrap();
    let (mut vectors, mut largest) = (0, 0.0_f64);
    for one in &models {
        let trees = TreeModel::parse(one["model"].to_string().as_bytes()).unwrap();
        let rows = one["inputs"].as_array().unwrap().iter().zip(one["outputs"].as_array().unwrap());
        for (input, output) in rows {
            let (found, expected) = (trees.predict(&floats(input)), floats(output));
            assert_eq!(found.len(), expected.len(), "{}", one["name"]);
            for (found, expected) in found.iter().zip(&expected) {
                let (found, expected) = (f64::from(*found), f64::from(*expected));
                let difference = (found - expected).abs() / expected.abs().max(1.0);
                assert!(difference <= 1e-5, "{}: {found} {expected}", one["name"]);
                largest = largest.max(difference);
            }
            vectors += 1;
        }
    }
    println!("{vectors} vectors of {} models, largest difference {largest:.1e}", models.len());
    assert_eq!((models.len(), vectors), (8, 192));
}

#[test]
fn training_has_the_same_features() {
    let (_, rest) = TRAINING.split_once("FEATURES = [\n").unwrap();
    let (list, _) = rest.split_once("\n]").unwrap();
    let ours = FEATURES.iter().map(|column| {
        let group = format!("{:?}", column.group).to_uppercase();
        format!("    (\"{}\", \"{}\", {group}),", column.name, column.unit)
    });
    assert_eq!(list.lines().collect::<Vec<_>>(), ours.collect::<Vec<_>>());
}

#[test]
fn unsupported_trees_are_named() {
    let quantiles = &serde_json::from_str::<Vec<Value>>(TREES).unwrap()[4]["model"];
    let refusal = |change: &dyn Fn(&mut Value)| {
        let mut model = quantiles.clone();
        change(&mut model);
        TreeModel::parse(model.to_string().as_bytes()).unwrap_err()
    };
    let tree = |model: &mut Value, field: &str, value: Value| {
        model["learner"]["gradient_booster"]["model"]["trees"][1][field] = value;
    };
    for (change, text) in [
        (
            &(|m: &mut Value| m["learner"]["gradient_booster"]["name"] = json!("dart"))
                as &dyn Fn(&mut Value),
            "booster \"dart\"",
        ),
        (
            &|m: &mut Value| m["learner"]["objective"]["name"] = json!("binary:logistic"),
            "binary:logistic",
        ),
        (&|m: &mut Value| tree(m, "split_type", json!([1])), "categorical"),
        (
            &|m: &mut Value| tree(m, "tree_param", json!({"size_leaf_vector": "3"})),
            "size of a leaf",
        ),
        (&|m: &mut Value| tree(m, "default_left", json!([])), "the number of nodes of tree 1"),
        (
            &|m: &mut Value| m["learner"]["learner_model_param"]["num_feature"] = json!("99999"),
            "at most 256",
        ),
        (
            &|m: &mut Value| m["learner"]["learner_model_param"]["num_feature"] = json!("0"),
            "a feature of tree 0",
        ),
        (
            &|m: &mut Value| m["learner"]["learner_model_param"]["base_score"] = json!("[1,2]"),
            "base_score",
        ),
        (
            &|m: &mut Value| m["learner"]["learner_model_param"]["base_score"] = json!("nan"),
            "base_score",
        ),
        (
            &|m: &mut Value| m["learner"]["gradient_booster"]["model"]["tree_info"] = json!([0]),
            "tree_info",
        ),
        (
            &|m: &mut Value| m["learner"]["gradient_booster"]["model"]["tree_info"][0] = json!(99),
            "at most 16",
        ),
    ] {
        let error = refusal(change).to_string();
        assert!(error.contains(text), "{error}");
    }
}

#[test]
fn children_without_tree_are_damaged() {
    let tree = |left: [i64; 3], right: [i64; 3]| {
        let model = json!({"learner": {
            "learner_model_param": {"base_score": "0", "num_feature": "1"},
            "objective": {"name": "reg:squarederror"},
            "gradient_booster": {"name": "gbtree", "model": {"tree_info": [0], "trees": [{
                "left_children": left, "right_children": right, "split_indices": [0, 0, 0],
                "split_conditions": [0.5, 1.0, 2.0], "default_left": [1, 0, 0], "tree_param": {}}]}}}});
        TreeModel::parse(model.to_string().as_bytes())
    };
    let sound = tree([1, -1, -1], [2, -1, -1]).unwrap();
    let outputs = [0.4, 0.5, f32::NAN, f32::INFINITY].map(|value| sound.predict(&[value])[0]);
    assert_eq!(outputs, [1.0, 2.0, 1.0, 2.0]);
    assert_eq!(sound.predict(&[]), [1.0]);
    for (left, right) in [
        // A loop, one child twice, the root as a child, children outside, one child alone.
        ([1, 2, 1], [2, -1, -1]),
        ([1, -1, -1], [1, -1, -1]),
        ([1, 0, -1], [2, 2, -1]),
        ([1, -1, -1], [3, -1, -1]),
        ([-2, -1, -1], [2, -1, -1]),
        ([1, -1, -1], [-1, -1, -1]),
        ([1, -1, -1], [i64::MAX, -1, -1]),
    ] {
        let error = tree(left, right).unwrap_err();
        assert!(matches!(error, TreeModelError::Damaged { .. }), "{left:?} {right:?}: {error}");
    }
}

#[test]
fn other_files_are_refused() {
    assert!(ModelBundle::parse(MODEL.as_bytes()).is_ok());
    for (field, value, text) in [
        ("format", json!("other"), "format of the model file is other"),
        ("version", json!(2), "version of the model file is 2"),
        ("target", json!("seconds"), "ln_bits_per_second is needed"),
        ("quantiles", json!([0.5]), "quantiles"),
        ("golden", json!([]), "number of golden vectors"),
        ("features", json!([]), "number of features"),
        ("model", json!({}), "cannot be read"),
    ] {
        let mut changed = model();
        changed[field] = value;
        let refusal = refusal_of(&changed);
        assert!(refusal.contains(text), "{refusal}");
    }
    let mut changed = model();
    changed["features"][0]["unit"] = json!("MB");
    assert!(refusal_of(&changed).contains("\"bytes\" in \"MB\""));
    let mut changed = model();
    changed["features"][0]["scale"] = json!(0.0);
    assert!(refusal_of(&changed).contains("offset, scale"));
}

#[test]
fn differing_golden_vector_is_refused() {
    let mut changed = model();
    let output = changed["golden"][7]["output"][1].as_f64().unwrap();
    changed["golden"][7]["output"][1] = json!(output * (1.0 + 2e-5));
    assert!(matches!(parse(&changed).unwrap_err(), BundleError::Golden { number: 7, .. }));
    changed["golden"][7]["output"][1] = json!(output * (1.0 + 0.5e-5));
    assert!(parse(&changed).is_ok());
    // A leaf that a golden vector reaches.
    let mut changed = model();
    let trees =
        changed["model"]["learner"]["gradient_booster"]["model"]["trees"].as_array_mut().unwrap();
    for value in trees[0]["split_conditions"].as_array_mut().unwrap() {
        *value = json!(value.as_f64().unwrap() + 0.01);
    }
    assert!(matches!(parse(&changed).unwrap_err(), BundleError::Golden { .. }));
}

/// A transfer within the training data of the model.
fn known() -> TransferFeatures {
    TransferFeatures {
        bytes: Some(1e9),
        files: Some(100.0),
        streams: Some(4.0),
        block_bytes: Some(4_194_304.0),
        encrypted: Some(1.0),
        rtt_us: Some(20_000.0),
        other_transfers: Some(1.0),
        other_streams: Some(4.0),
        pair_last_bps: Some(8e8),
        pair_median_bps: Some(7e8),
        started_s: Some(1_767_300_000.0),
        load_per_processor: Some(0.2),
        cpu_pressure_percent: Some(5.0),
        io_pressure_percent: Some(1.0),
        dirty_bytes: Some(1e7),
        readers: Some(2.0),
        writers: Some(0.0),
    }
}

#[test]
fn outside_of_training_is_refused() {
    let model = ModelBundle::parse(MODEL.as_bytes()).unwrap();
    let found = model.forecast(&known(), &[]).unwrap();
    assert!(found.seconds.p10 <= found.seconds.p50 && found.seconds.p50 <= found.seconds.p90);
    assert_eq!((found.correction, found.corrected_by), (1.0, 0));
    let refusal = |features| model.forecast(&features, &[]).unwrap_err();
    let large = refusal(TransferFeatures { bytes: Some(1e15), ..known() });
    assert!(
        matches!(large, ModelRefusal::Value(UntrainedValue::Range { name: "bytes", .. })),
        "{large}"
    );
    let missing = refusal(TransferFeatures { other_transfers: None, ..known() });
    assert_eq!(missing, UntrainedValue::Missing("other_transfers").into());
    assert_eq!(refusal(TransferFeatures { bytes: None, ..known() }), ModelRefusal::NoBytes);
    // The training data lacked some round-trip times.
    assert!(model.forecast(&TransferFeatures { rtt_us: None, ..known() }, &[]).is_ok());
}

#[test]
fn latest_transfers_correct_the_model() {
    let model = ModelBundle::parse(MODEL.as_bytes()).unwrap();
    let plain = model.forecast(&known(), &[]).unwrap();
    // The path became three times as fast; one outlier and fewer than five transfers change nothing.
    let fast = plain.bits_per_second.p50 * 3.0;
    let mut recent = vec![(known(), fast); 9];
    recent[3].1 = 1.0;
    let corrected = model.forecast(&known(), &recent).unwrap();
    assert_eq!(corrected.corrected_by, 9);
    assert!((corrected.correction - 3.0).abs() < 1e-9, "{corrected:?}");
    assert!((corrected.bits_per_second.p90 / plain.bits_per_second.p90 - 3.0).abs() < 1e-9);
    assert_eq!(model.forecast(&known(), &recent[..4]).unwrap(), plain);
}

proptest! {
    #![proptest_config(penstock_testkit::properties())]

    #[test]
    fn damaged_models_do_not_panic(
        changes in proptest::collection::vec((0_usize..MODEL.len(), any::<u8>()), 1..4),
        end in proptest::option::of(0_usize..MODEL.len()),
    ) {
        let mut bytes = MODEL.as_bytes().to_vec();
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        bytes.truncate(end.unwrap_or(bytes.len()));
        if let Ok(model) = ModelBundle::parse(&bytes) {
            let _ = model.forecast(&known(), &[]);
        }
    }
}
