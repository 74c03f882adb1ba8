//! `penstock tune`: the history of transfers, its export, forecasts from it, and the training of their model.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use penstock_agent::history::{self, HistoryRow, ROWS_MAX};
use penstock_scitags::time::UtcTime;
use penstock_units::{BitRate, ByteCount, display_duration};

use crate::credentials;
use crate::exit::{Code, CommandFailure, say};
use crate::json;
use crate::json::tune::HistoryJson;
use crate::table::table;
use crate::terminal::printable;

mod export;
mod predict;
mod train;

/// Show the history of an agent's transfers, export it, and forecast transfers from it
#[derive(Debug, clap::Args)]
#[command(after_help = "\
An agent keeps what was known when each of its transfers began, and how it ended, in history.db of its state directory: \
for 400 days, at most 50000 transfers, without paths and names of clients. These commands read the file of PENSTOCK_STATE: \
run them as the agent's user. docs/forecast.md says how forecasts are made and how good they are.

Examples:
  penstock tune history
  penstock tune export history.csv
  penstock tune predict /store/run7 penstock://dtn2/store/ --bytes 2T
  penstock tune train")]
pub(crate) struct TuneVerbArgs {
    #[command(subcommand)]
    command: TuneCommand,
}

#[derive(Debug, clap::Subcommand)]
enum TuneCommand {
    /// List ended transfers
    #[command(
        after_help = "Examples:\n  penstock tune history\n  penstock tune history --last 500 --json"
    )]
    History {
        /// Number of transfers, the latest
        #[arg(long, default_value_t = 50, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        last: u32,
        /// Print JSON: {"transfers": [...]}; docs/json.md has its fields
        #[arg(long)]
        json: bool,
    },
    /// Write the history to a file for other programs: FILE.csv or FILE.parquet
    #[command(
        after_help = "Examples:\n  penstock tune export history.csv\n  penstock tune export history.parquet"
    )]
    Export {
        /// File to write; its name ends with .csv or .parquet
        file: PathBuf,
    },
    /// Forecast duration and rate of a transfer
    #[command(after_help = predict::AFTER_HELP)]
    Predict(predict::PredictArgs),
    /// Train the model of forecasts from the history, or print how to
    #[command(after_help = train::AFTER_HELP)]
    Train(train::TrainArgs),
}

pub(crate) fn run(args: TuneVerbArgs) -> Result<Code, CommandFailure> {
    match args.command {
        TuneCommand::History { last, json } => show_history(last, json),
        TuneCommand::Export { file } => {
            let rows = read_history(u32::MAX)?;
            export::write(&file, &rows)?;
            say(format!("{}: {} transfers", file.display(), rows.len()));
            Ok(Code::Done)
        }
        TuneCommand::Predict(args) => predict::run(&args),
        TuneCommand::Train(args) => train::run(&args),
    }
}

/// The latest rows of the history of this user's agent, oldest first.
fn read_history(last: u32) -> anyhow::Result<Vec<HistoryRow>> {
    let last = last.min(u32::try_from(ROWS_MAX).unwrap_or(u32::MAX));
    Ok(history::read(credentials::state()?.path(), last)?)
}

fn show_history(last: u32, json: bool) -> Result<Code, CommandFailure> {
    let transfers = read_history(last)?;
    if json {
        json::print(&HistoryJson { transfers })?;
        return Ok(Code::Done);
    }
    let mut output = io::stdout().lock();
    if transfers.is_empty() {
        writeln!(
            output,
            "no transfers in {}",
            credentials::state()?.path().join(history::FILE).display()
        )?;
        return Ok(Code::Done);
    }
    let mut rows = vec![HEADINGS.map(str::to_owned).to_vec()];
    rows.extend(transfers.iter().map(cells));
    output.write_all(table(&rows).as_bytes())?;
    Ok(Code::Done)
}

const HEADINGS: [&str; 9] =
    ["STARTED (UTC)", "FROM", "TO", "MOVED", "FILES", "STREAMS", "RATE", "BOUND BY", "END"];

fn cells(row: &HistoryRow) -> Vec<String> {
    let started = Duration::try_from_secs_f64(row.started_unix_seconds).unwrap_or_default();
    // 2026-03-01T10:00:00, without fraction and zone.
    let started = UtcTime::new(started.as_secs(), 0).to_string()[..19].replace('T', " ");
    let elapsed = display_duration(Duration::try_from_secs_f64(row.seconds).unwrap_or_default());
    vec![
        started,
        printable(&row.source),
        printable(&row.destination),
        format!("{} in {elapsed}", ByteCount(row.moved_bytes)),
        row.files.to_string(),
        row.streams.to_string(),
        BitRate(row.bits_per_second() as u64).to_string(),
        printable(&row.bound_by),
        row.verdict.as_str().to_owned(),
    ]
}

/// Seconds since 1970 of the system clock.
fn now_unix_seconds() -> f64 {
    UNIX_EPOCH.elapsed().map_or(0.0, |since| since.as_secs_f64())
}
