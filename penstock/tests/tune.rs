//! `penstock tune` with the history of an agent: recorded, listed, exported, forecast from.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
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
    let none = tune(&env, &["history", "--last", "0"]);
    assert!(none.code == 2 && none.error.contains("0 is not in 1.."), "{none:?}");
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
fn unusable_history_names_the_remedy() {
    let env = TestEnv::new();
    fs::create_dir_all(env.state.join("history.db")).unwrap();
    let refused = tune(&env, &["history"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.error.contains("PENSTOCK_STATE"), "{refused:?}");
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
    assert!(refused.error.contains("--files N"), "{refused:?}");
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
    let elsewhere = tune(&env, &["train", "--sequence", "--scripts", "/"]);
    assert!(elsewhere.code == 1 && elsewhere.error.contains("--scripts names"), "{elsewhere:?}");
}

/// Model of sequences as of measured traces.
fn measured_model() -> Vec<u8> {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../core/forecast/tests/data/sequence-last.safetensors"
    );
    let mut model = fs::read(path).unwrap();
    let key = br#"synthetic_traces\":"#;
    let at = model.windows(key.len()).position(|part| part == key).unwrap() + key.len();
    model[at..].iter_mut().take_while(|byte| byte.is_ascii_digit()).for_each(|byte| *byte = b' ');
    model[at] = b'0';
    model
}

/// Program in place of Python, which copies a file to that of `--model`, the last argument.
fn python_that_writes(env: &TestEnv, name: &str, model: &Path) -> PathBuf {
    let program = env.path(name);
    let text = format!("#!/bin/sh\nfor last; do :; done\ncp '{}' \"$last\"\n", model.display());
    fs::write(&program, text).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    program
}

#[test]
fn trained_model_replaces_former() {
    let env = TestEnv::new();
    let traces = env.state.join("traces");
    fs::create_dir_all(&traces).unwrap();
    fs::write(traces.join("1.jsonl"), "{}\n").unwrap();
    let scripts = concat!(env!("CARGO_MANIFEST_DIR"), "/../python/training");
    let model = env.state.join("sequence-model.safetensors");
    fs::write(&model, "the former model").unwrap();
    let trained = env.path("trained");
    let python = python_that_writes(&env, "python", &trained);
    let train = || {
        let python = python.to_str().unwrap();
        tune(&env, &["train", "--sequence", "--scripts", scripts, "--python", python])
    };
    fs::write(&trained, "no model").unwrap();
    let refused = train();
    assert!(
        refused.code == 1 && refused.error.contains("/sequence-model.safetensors: "),
        "{refused:?}"
    );
    assert!(refused.error.contains("forecasts go on as before"), "{refused:?}");
    assert_eq!(fs::read(&model).unwrap(), b"the former model");
    // A model of measured traces, in the form that the training writes.
    fs::write(&trained, measured_model()).unwrap();
    train().good();
    assert_eq!(fs::read(&model).unwrap(), measured_model());
    assert_eq!(fs::metadata(&model).unwrap().permissions().mode() & 0o777, 0o600);
    let names = fs::read_dir(&env.state).unwrap().map(|one| one.unwrap().file_name());
    let names: Vec<_> = names.filter(|name| name.to_string_lossy().contains("model")).collect();
    assert_eq!(names, ["sequence-model.safetensors"], "nothing is left beside it");
}
