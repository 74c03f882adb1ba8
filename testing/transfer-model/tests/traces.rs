//! Recorded traces, one JSON object a line: the controller must decide as it did. `UPDATE_GOLDEN=1` records them anew.

use std::fmt::Write as _;
use std::path::PathBuf;

use penstock_transfer_model::{ControllerKind, ModelScenario, run, tuned_scenarios};
use penstock_tuner::{TunerDecision, TunerSample};
use serde_json::{Value, json};

fn path(id: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/traces/{id}.jsonl"))
}

fn record(scenario: &ModelScenario) -> String {
    let trace = run(scenario, vec![ControllerKind::Knee.transfer(scenario)], 7).remove(0);
    let mut text = String::new();
    for (sample, decision) in &trace.steps[..60] {
        let _ = writeln!(text, "{}", json!({ "sample": sample, "decision": decision }));
    }
    text
}

#[test]
fn replayed_trace_decides_equally() {
    for scenario in tuned_scenarios().iter().filter(|one| ["S1", "S5"].contains(&one.id)) {
        let path = path(scenario.id);
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&path, record(scenario)).expect("the trace is written");
        }
        let text = std::fs::read_to_string(&path).expect("the trace is there");
        let mut controller = ControllerKind::Knee.create(scenario);
        for (at, line) in text.lines().enumerate() {
            let mut line: Value = serde_json::from_str(line).expect("a line is JSON");
            let sample: TunerSample = serde_json::from_value(line["sample"].take()).unwrap();
            let recorded: TunerDecision = serde_json::from_value(line["decision"].take()).unwrap();
            let decision = controller.observe(&sample);
            assert_eq!(decision.target, recorded.target, "{} line {}", scenario.id, at + 1);
            let kind = |one: &TunerDecision| json!(one.reason)["kind"].clone();
            assert_eq!(kind(&decision), kind(&recorded), "{} line {}", scenario.id, at + 1);
        }
    }
}
