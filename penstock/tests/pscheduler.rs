//! The pScheduler tool of deploy/pscheduler: its programs with the inputs that pScheduler gives, and both participants
//! of a test over loopback. The shapes of the outputs are those of pScheduler's schemas.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use penstock_testkit::raw::free_port;
use serde_json::{Value, json};

/// Keys that a summary or an interval may have (pscheduler-test-throughput, validate.py).
const FIGURES: [&str; 13] = [
    "throughput-bits",
    "throughput-bytes",
    "receiver-throughput-bits",
    "sent",
    "lost",
    "jitter",
    "rtt",
    "tcp-window-size",
    "retransmits",
    "start",
    "end",
    "omitted",
    "stream-id",
];
const OPTIONAL: [&str; 5] = ["error", "mss", "mtu", "tcp-window-size", "requested-tcp-window-size"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/pscheduler/penstock")
}

fn has_python() -> bool {
    let found = Command::new("python3").arg("--version").output().is_ok();
    if !found {
        penstock_testkit::skip(penstock_testkit::Requirement::Program, "needs python3");
    }
    found
}

fn start(program: &str, input: &str) -> Child {
    let binary = Path::new(env!("CARGO_BIN_EXE_penstock")).parent().unwrap().to_owned();
    let path = std::env::var("PATH").unwrap();
    let mut child = Command::new(folder().join(program))
        .env("PATH", format!("{}:{path}", binary.display()))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    // A program that refuses may not read its input.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child
}

fn output(program: &str, input: &Value) -> Output {
    start(program, &input.to_string()).wait_with_output().unwrap()
}

fn answer(program: &str, input: &Value) -> Value {
    read(&output(program, input))
}

fn read(output: &Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

fn test(spec: Value) -> Value {
    json!({ "type": "throughput", "spec": spec })
}

#[test]
fn enumeration_names_tool_and_test() {
    let tool = answer("enumerate", &json!({}));
    assert_eq!((&tool["schema"], &tool["name"]), (&json!(1), &json!("penstock")));
    assert_eq!(tool["tests"], json!(["throughput"]));
    assert!(tool["preference"].is_u64() && tool["description"].is_string());
    for key in ["name", "email", "href"] {
        assert!(tool["maintainer"][key].is_string(), "{tool}");
    }
}

#[test]
fn unknown_specs_are_refused_with_reasons() {
    if !has_python() {
        return;
    }
    for spec in [
        json!({ "dest": "b" }),
        json!({ "schema": 7, "source": "a", "dest": "b", "duration": "PT30S", "parallel": 8,
            "bandwidth": "10G", "udp": true, "omit": "PT2S", "interval": "PT1S", "reverse": true,
            "ip-version": 6, "buffer-length": 1400, "window-size": "4Mi" }),
        json!({ "dest": "b", "bandwidth": 1_000_000, "congestion": "cubic", "zero-copy": true,
            "single-ended": true, "single-ended-port": 5201, "link-rtt": "PT0.1S" }),
        json!({ "loopback": true }),
    ] {
        assert_eq!(answer("can-run", &test(spec.clone())), json!({ "can-run": true }), "{spec}");
    }
    for (spec, word) in [
        (json!({ "dest": "b", "mss": 1400 }), "mss"),
        (json!({ "dest": "b", "new-in-9": 1 }), "new-in-9"),
        (json!({ "dest": "b", "schema": 8 }), "schema"),
        (json!({ "dest": "b", "parallel": 257 }), "parallel"),
        (json!({ "dest": "b", "parallel": true }), "parallel"),
        (json!({ "dest": "b", "duration": "10" }), "duration"),
        (json!({ "dest": "b", "duration": "P2D" }), "duration"),
        (json!({ "dest": "b", "bandwidth": "fast" }), "bandwidth"),
        (json!({ "dest": "b", "ip-version": 5 }), "ip-version"),
        (json!({ "dest": "b", "udp": true, "congestion": "bbr" }), "congestion"),
        (json!({}), "dest"),
    ] {
        let refused = answer("can-run", &test(spec.clone()));
        assert_eq!(refused["can-run"], false, "{spec}");
        let reasons = refused["reasons"].as_array().unwrap();
        assert!(reasons.len() == 1 && reasons[0].as_str().unwrap().contains(word), "{refused}");
    }
    let other = answer("can-run", &json!({ "type": "latency", "spec": {} }));
    assert_eq!(other["can-run"], false);
}

#[test]
fn broken_input_fails_on_stderr() {
    if !has_python() {
        return;
    }
    for program in ["can-run", "duration", "participant-data", "merged-results", "run"] {
        for input in ["", "[]", "{\"a\":"] {
            let output = start(program, input).wait_with_output().unwrap();
            assert!(!output.status.success() && output.stdout.is_empty(), "{program}: {output:?}");
            let text = String::from_utf8(output.stderr).unwrap();
            assert!(text.starts_with("penstock: ") && text.lines().count() == 1, "{text}");
        }
    }
    for (program, input) in [
        ("duration", test(json!({ "duration": 10 }))),
        ("participant-data", json!({ "participant": 2 })),
        ("merged-results", json!({ "results": [] })),
    ] {
        let output = output(program, &input);
        assert!(!output.status.success() && !output.stderr.is_empty(), "{program}: {output:?}");
    }
}

#[test]
fn duration_covers_test_and_processes() {
    if !has_python() {
        return;
    }
    let of = |spec| answer("duration", &test(spec))["duration"].as_str().unwrap().to_owned();
    assert_eq!(of(json!({ "dest": "b" })), "PT27S");
    assert_eq!(of(json!({ "dest": "b", "duration": "PT1M", "omit": "PT2.5S" })), "PT80S");
}

#[test]
fn participants_exchange_the_port() {
    if !has_python() {
        return;
    }
    let input = |participant| json!({ "participant": participant, "test": test(json!({})) });
    assert_eq!(answer("participant-data", &input(0)), json!({ "schema": 1 }));
    let data = answer("participant-data", &input(1));
    assert!(data["server_port"].as_u64().is_some_and(|port| (1..65_536).contains(&port)));
}

/// Runs the participants of a test and merges their results.
fn run(spec: &Value, participants: usize) -> Value {
    let port = free_port();
    let task = |participant: usize| {
        json!({
            "task-uuid": "00000000-0000-0000-0000-000000000000",
            "schedule": { "start": "2026-01-01T00:00:00Z", "duration": "PT30S" },
            "test": test(spec.clone()),
            "participant": participant,
            "participant-data": [{ "schema": 1, "server_port": port },
                { "schema": 1, "server_port": port }],
        })
    };
    let children: Vec<Child> =
        (0..participants).map(|one| start("run", &task(one).to_string())).collect();
    let results: Vec<Value> =
        children.into_iter().map(|child| read(&child.wait_with_output().unwrap())).collect();
    assert!(results.iter().all(|result| result["succeeded"].is_boolean()), "{results:?}");
    answer("merged-results", &json!({ "test": test(spec.clone()), "results": results }))
}

fn check_figures(figures: &Value) {
    let object = figures.as_object().unwrap();
    for (key, value) in object {
        assert!(FIGURES.contains(&key.as_str()), "{key} in {figures}");
        let right = if key == "omitted" { value.is_boolean() } else { value.is_number() };
        assert!(right, "{key} in {figures}");
    }
    for key in ["throughput-bits", "throughput-bytes", "start", "end"] {
        assert!(object.contains_key(key), "{key} of {figures}");
    }
}

fn check_result(result: &Value, streams: usize) {
    assert_eq!(result["succeeded"], true, "{result}");
    assert!(result["diags"].is_string(), "{result}");
    for key in result.as_object().unwrap().keys() {
        let known = ["succeeded", "diags", "intervals", "summary"];
        assert!(known.contains(&key.as_str()) || OPTIONAL.contains(&key.as_str()), "{key}");
    }
    assert_eq!(result["summary"]["streams"].as_array().unwrap().len(), streams, "{result}");
    let intervals = result["intervals"].as_array().unwrap();
    assert!(!intervals.is_empty(), "{result}");
    for summary in intervals.iter().chain([&result["summary"]]) {
        assert_eq!(summary.as_object().unwrap().len(), 2, "{summary}");
        check_figures(&summary["summary"]);
        summary["streams"].as_array().unwrap().iter().for_each(check_figures);
    }
}

#[test]
fn participants_give_a_valid_result() {
    if !has_python() {
        return;
    }
    let spec = json!({ "schema": 1, "dest": "127.0.0.1", "duration": "PT1S", "parallel": 2 });
    let result = run(&spec, 2);
    check_result(&result, 2);
    let total = &result["summary"]["summary"];
    assert!(total["throughput-bits"].as_f64().unwrap() > 1e6, "{result}");
    assert!(total["retransmits"].is_u64() && total["receiver-throughput-bits"].is_number());

    let spec = json!({ "dest": "127.0.0.1", "duration": "PT1S", "udp": true, "bandwidth": "8M",
        "buffer-length": 1000, "parallel": 2, "reverse": true });
    let result = run(&spec, 2);
    check_result(&result, 2);
    let total = &result["summary"]["summary"];
    let bits = total["throughput-bits"].as_f64().unwrap();
    assert!((13e6..18e6).contains(&bits), "{result}");
    assert!(total["sent"].as_f64().unwrap() > 1_500.0 && total["jitter"].is_number(), "{result}");
}

#[test]
fn loopback_test_needs_one_participant() {
    if !has_python() {
        return;
    }
    let spec = json!({ "loopback": true, "duration": "PT1S" });
    check_result(&run(&spec, 1), 1);
}

#[test]
fn failed_run_states_its_error() {
    if !has_python() {
        return;
    }
    // No server in a single-ended test, and a key that only can-run refuses otherwise.
    let port = free_port();
    for (spec, word) in [
        (
            json!({ "dest": "127.0.0.1", "duration": "PT1S", "single-ended": true,
                "single-ended-port": port }),
            "cannot connect",
        ),
        (json!({ "dest": "127.0.0.1", "mss": 1400 }), "mss"),
    ] {
        let result = run(&spec, 1);
        assert_eq!(result["succeeded"], false, "{result}");
        assert!(result["error"].as_str().unwrap().contains(word), "{result}");
        assert!(result["diags"].is_string(), "{result}");
    }
    let failed = |error: &str| json!({ "succeeded": false, "error": error, "diags": "" });
    let results = json!([failed("cannot connect"), failed("the port is taken")]);
    let merged = answer("merged-results", &json!({ "test": test(json!({})), "results": results }));
    let error = merged["error"].as_str().unwrap();
    assert!(error.contains("cannot connect") && error.contains("the port is taken"), "{merged}");
}
