//! Writes traces of simulated transfers on paths that change, for the training of models of sequences.
//!
//! `cargo run -p penstock-transfer-model --example traces -- COUNT > traces.jsonl`. One JSON object for each interval of
//! half a second: `trace` (its seed), `synthetic` (true), `variation`, `true_bps` (rate without noise) and `sample` as the
//! tuner gets it. Three of four transfers have the product's controller, the others fixed streams.

use std::io::{self, BufWriter, Write};

use penstock_transfer_model::{ControllerKind, run, varying_scenario};
use serde_json::json;

fn main() -> io::Result<()> {
    let count: u64 = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(10);
    let mut out = BufWriter::new(io::stdout().lock());
    for seed in 0..count {
        let (scenario, variation) = varying_scenario(seed);
        let controller =
            if seed / 4 % 4 == 3 { ControllerKind::Fixed } else { ControllerKind::Knee };
        let trace = run(&scenario, vec![controller.transfer(&scenario)], seed).remove(0);
        for ((sample, _), true_bps) in trace.steps.iter().zip(&trace.rate_bps) {
            let line = json!({
                "trace": seed,
                "synthetic": true,
                "variation": variation.name(),
                "true_bps": true_bps,
                "sample": sample,
            });
            writeln!(out, "{line}")?;
        }
    }
    out.flush()
}
