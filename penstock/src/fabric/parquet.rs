//! `results.parquet`: a row for each flow, for analysis with other programs.
//!
//! Columns are those of `flows.csv`; times are in seconds, and unknown values are null.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use penstock_fabric::{FlowResult, FlowSpec, Simulation, time};

use crate::exit::CommandFailure;

/// Type of a column, and its value for a flow.
enum ParquetColumn {
    Integers(fn(&FlowSpec, &FlowResult) -> u64),
    Seconds(fn(&FlowSpec, &FlowResult) -> Option<f64>),
    Words(fn(&Simulation, &FlowSpec, &FlowResult) -> String),
}

fn name(simulation: &Simulation, node: u32) -> String {
    simulation.network().nodes[node as usize].name.clone()
}

fn completion(flow: &FlowSpec, result: &FlowResult) -> Option<f64> {
    result.finished_ps.map(|done| time::seconds(done - flow.start_ps))
}

/// State of a flow at the end of the run.
pub(crate) const fn state(result: &FlowResult) -> &'static str {
    match (result.finished_ps, result.failed_ps) {
        (Some(_), _) => "done",
        (None, Some(_)) => "failed",
        (None, None) => "unfinished",
    }
}

const COLUMNS: [(&str, ParquetColumn); 17] = [
    ("group", ParquetColumn::Integers(|flow, _| u64::from(flow.group))),
    ("from", ParquetColumn::Words(|simulation, flow, _| name(simulation, flow.from))),
    ("to", ParquetColumn::Words(|simulation, flow, _| name(simulation, flow.to))),
    ("bytes", ParquetColumn::Integers(|flow, _| flow.message_bytes)),
    ("messages", ParquetColumn::Integers(|flow, _| flow.messages)),
    ("start_seconds", ParquetColumn::Seconds(|flow, _| Some(time::seconds(flow.start_ps)))),
    ("completion_seconds", ParquetColumn::Seconds(completion)),
    ("ideal_seconds", ParquetColumn::Seconds(|_, result| Some(time::seconds(result.ideal_ps)))),
    (
        "slowdown",
        ParquetColumn::Seconds(|flow, result| {
            let ideal = time::seconds(result.ideal_ps.max(1));
            completion(flow, result).map(|took| (took / ideal).max(1.0))
        }),
    ),
    ("delivered_bytes", ParquetColumn::Integers(|_, result| result.delivered_bytes)),
    ("packets_sent", ParquetColumn::Integers(|_, result| result.packets_sent)),
    ("packets_sent_again", ParquetColumn::Integers(|_, result| result.packets_again)),
    ("timeouts", ParquetColumn::Integers(|_, result| result.timeouts)),
    ("marks", ParquetColumn::Integers(|_, result| result.marks)),
    (
        "stalled_seconds_max",
        ParquetColumn::Seconds(|_, result| Some(time::seconds(result.stalled_ps_max))),
    ),
    ("completed_messages", ParquetColumn::Integers(|_, result| result.completed)),
    ("state", ParquetColumn::Words(|_, _, result| state(result).to_owned())),
];

/// Writes the flows of a simulation as Parquet.
///
/// # Errors
/// When the file cannot be written.
pub(crate) fn write(path: &Path, simulation: &Simulation) -> Result<(), CommandFailure> {
    let bytes = flows(simulation).context("cannot make a table of flows")?;
    std::fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(())
}

fn flows(simulation: &Simulation) -> anyhow::Result<Vec<u8>> {
    let fields: Vec<String> = COLUMNS
        .iter()
        .map(|(name, column)| match column {
            ParquetColumn::Integers(_) => format!("required int64 {name};"),
            ParquetColumn::Seconds(_) => format!("optional double {name};"),
            ParquetColumn::Words(_) => format!("required binary {name} (utf8);"),
        })
        .collect();
    let schema = parse_message_type(&format!("message flows {{ {} }}", fields.join(" ")))?;
    let properties = WriterProperties::builder()
        .set_created_by(format!("penstock {}", env!("CARGO_PKG_VERSION")))
        .build();
    let mut writer = SerializedFileWriter::new(Vec::new(), Arc::new(schema), Arc::new(properties))?;
    let all: Vec<(&FlowSpec, FlowResult)> = simulation
        .flows()
        .iter()
        .enumerate()
        .map(|(number, flow)| (flow, simulation.flow_result(number)))
        .collect();
    let mut group = writer.next_row_group()?;
    for (_, column) in &COLUMNS {
        let Some(mut out) = group.next_column()? else { break };
        match (column, out.untyped()) {
            (ParquetColumn::Integers(of), ColumnWriter::Int64ColumnWriter(out)) => {
                let values: Vec<i64> =
                    all.iter().map(|(flow, result)| of(flow, result).cast_signed()).collect();
                out.write_batch(&values, None, None)?;
            }
            (ParquetColumn::Seconds(of), ColumnWriter::DoubleColumnWriter(out)) => {
                let values: Vec<Option<f64>> =
                    all.iter().map(|(flow, result)| of(flow, result)).collect();
                let there: Vec<i16> =
                    values.iter().map(|value| i16::from(value.is_some())).collect();
                let values: Vec<f64> = values.into_iter().flatten().collect();
                out.write_batch(&values, Some(&there), None)?;
            }
            (ParquetColumn::Words(of), ColumnWriter::ByteArrayColumnWriter(out)) => {
                let values: Vec<ByteArray> = all
                    .iter()
                    .map(|(flow, result)| of(simulation, flow, result).into_bytes().into())
                    .collect();
                out.write_batch(&values, None, None)?;
            }
            _ => anyhow::bail!("a column is not of the kind that the schema says"),
        }
        out.close()?;
    }
    group.close()?;
    Ok(writer.into_inner()?)
}
