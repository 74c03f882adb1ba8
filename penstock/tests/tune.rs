//! `penstock tune` with the history of an agent: recorded, listed, exported, forecast from.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use common::{CommandOutcome, TestEnv, run, seeded, wait_until, write_file};
use serde_json::Value;

fn tune(env: &TestEnv, arguments: &[&str]) -> CommandOutcome {
    run(env.penstock().arg("tune").args(arguments))
}

/// Waits until the history has a number of transfers, and returns them.
fn history(env: &TestEnv, count: usize) -> Vec<Value> {
    wait_until("the history has them", Duration::from_secs(20), || {
        let transfers = tune(env, &["history", "--json"]).good().json["transfers"].clone();
        transfers.as_array().filter(|all| all.len() >= count).cloned()
    })
}

#[test]
fn transfers_are_recorded_and_forecast() {
    let env = TestEnv::new();
    assert_eq!(tune(&env, &["history", "--json"]).good().json["transfers"], Value::Array(vec![]));
    let agent = env.agent();
    let request = ["predict", "/data", &agent.url(""), "--bytes"];
    let predict = |bytes: &str, more: &[&str]| tune(&env, &[&request[..], &[bytes], more].concat());
    let refused = predict("2MiB", &["--json"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.error.contains("0 transfers between these hosts, 5 are needed"), "{refused:?}");
    assert!(refused.json["forecast"].is_null());
    for number in 0..5 {
        let file = env.source.join(format!("file{number}"));
        write_file(&mut seeded(20 + number), &file, 2 << 20);
        run(env.cp(&["--tune", "off"]).arg(&file).arg(agent.url(""))).good();
    }
    let rows = history(&env, 5);
    assert_eq!(rows.len(), 5);
    for row in &rows {
        assert_eq!(row["verdict"], "done", "{row}");
        assert_eq!(row["moved_bytes"], 2 << 20, "{row}");
        assert_eq!((&row["direction"], &row["protocol"]), (&"receive".into(), &"penstock".into()));
        assert_eq!((&row["files"], &row["protection"]), (&1.into(), &"tls".into()), "{row}");
        assert!(row["seconds"].as_f64().unwrap() > 0.0 && row["block_bytes"].as_u64().unwrap() > 0);
        assert!(row["streams"].as_u64().unwrap() > 0 && row["load_1min"].is_number(), "{row}");
        assert_eq!(row["synthetic"], false);
    }
    let found = predict("2MiB", &["--json"]).good().json;
    let forecast = &found["forecast"];
    assert_eq!((&forecast["method"], &forecast["scope"]), (&"online".into(), &"pair".into()));
    assert_eq!(forecast["transfers"], 5, "{found}");
    let quantile = |of: &str, p: &str| forecast[of][p].as_f64().unwrap();
    assert!(
        0.0 < quantile("seconds", "p10")
            && quantile("seconds", "p10") <= quantile("seconds", "p90")
    );
    let product = quantile("seconds", "p50") * quantile("bits_per_second", "p50");
    assert!((product / f64::from(8 * (2 << 20)) - 1.0).abs() < 1e-9, "{found}");
    let shown = predict("2MiB", &[]).good();
    assert!(shown.output.contains("the latest 5 transfers between these hosts"), "{shown:?}");
    // The other direction has none of its own; this size none did.
    let refused = predict("1TiB", &[]);
    assert!(refused.code == 1 && refused.error.contains("allow sizes from 524288"), "{refused:?}");
    let mode = fs::metadata(env.state.join("history.db")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn failed_transfer_is_kept_as_failed() {
    let env = TestEnv::new();
    let agent = env.agent();
    let file = env.source.join("file");
    write_file(&mut seeded(30), &file, 1 << 20);
    // A directory that is not empty is in the place of the file.
    fs::create_dir_all(env.root.join("file/inside")).unwrap();
    let failed = run(env.cp(&["--tune", "off"]).arg(&file).arg(agent.url("")));
    assert_ne!(failed.code, 0, "{failed:?}");
    let row = history(&env, 1).remove(0);
    assert_eq!((&row["verdict"], &row["failed"]), (&"failed".into(), &1.into()), "{row}");
}

#[test]
fn history_outlives_its_agent() {
    let env = TestEnv::new();
    let mut agent = env.agent();
    let file = env.source.join("file");
    write_file(&mut seeded(31), &file, 1 << 20);
    run(env.cp(&["--tune", "off"]).arg(&file).arg(agent.url(""))).good();
    // The last row is written before the agent ends.
    agent.signal("TERM");
    assert_eq!(agent.wait(), 0);
    let rows = tune(&env, &["history", "--json"]).good().json["transfers"].clone();
    assert_eq!(rows.as_array().unwrap().len(), 1);
    let table = tune(&env, &["history"]).good();
    assert!(table.output.contains("STARTED") && table.output.contains("done"), "{table:?}");
    let csv = env.path("history.csv");
    tune(&env, &["export", csv.to_str().unwrap()]).good();
    let text = fs::read_to_string(&csv).unwrap();
    assert_eq!(text.lines().count(), 2, "{text}");
    let parquet = env.path("history.parquet");
    tune(&env, &["export", parquet.to_str().unwrap()]).good();
    assert_eq!(&fs::read(&parquet).unwrap()[..4], b"PAR1");
    let other = tune(&env, &["export", "history.txt"]);
    assert!(other.code == 2 && other.error.contains(".csv or .parquet"), "{other:?}");
}

#[test]
fn refusal_names_model_too() {
    let env = TestEnv::new();
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../core/forecast/tests/data/model.json");
    let request = ["predict", "/a", "penstock://127.0.0.1/", "--bytes", "1G", "--model", model];
    let refused = tune(&env, &request);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.error.contains("0 transfers between these hosts"), "{refused:?}");
    assert!(refused.error.contains("model.json: the model needs files"), "{refused:?}");
}

#[test]
fn damaged_model_is_refused() {
    let env = TestEnv::new();
    let model = env.path("model.json");
    fs::write(&model, "{}").unwrap();
    let request = ["predict", "/a", "penstock://127.0.0.1/", "--bytes", "1G", "--model"];
    let refused = tune(&env, &[&request[..], &[model.to_str().unwrap()]].concat());
    assert!(refused.code == 1 && refused.error.contains("missing field"), "{refused:?}");
    let how = tune(&env, &["train"]).good();
    assert!(how.output.contains("make forecast-training"), "{how:?}");
}

#[test]
fn sequence_training_needs_traces() {
    let env = TestEnv::new();
    let how = tune(&env, &["train", "--sequence"]).good();
    assert!(how.output.contains("make sequence-training"), "{how:?}");
    let scripts = concat!(env!("CARGO_MANIFEST_DIR"), "/../python/training");
    let without = tune(&env, &["train", "--sequence", "--scripts", scripts]);
    assert!(without.code == 1 && without.error.contains("traces: no traces"), "{without:?}");
    let traces = env.state.join("traces");
    fs::create_dir_all(&traces).unwrap();
    fs::write(traces.join("1.jsonl"), "{}\n").unwrap();
    let model = env.state.join("sequence-model.safetensors");
    fs::write(&model, "the former model").unwrap();
    // A Python without the packages.
    let arguments = ["train", "--sequence", "--scripts", scripts, "--python", "false"];
    let failed = tune(&env, &arguments);
    assert!(failed.code == 1 && failed.error.contains("forecasts go on as before"), "{failed:?}");
    assert_eq!(fs::read(&model).unwrap(), b"the former model");
}
