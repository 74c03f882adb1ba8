//! `penstock transfers`: lists, changes and cancels transfers of an agent and copies of this user.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::num::NonZeroU16;
use std::time::Duration;

use anyhow::Context;
use penstock_agent::client::{AgentClient, ClientError};
use penstock_agent::config::HTTP_PORT;
use penstock_agent::http::api::{ControllerFacts, SubmittedFacts, TransferChange, TransferFacts};
use penstock_agent::http::tuning::{RateForecastFacts, TuningDecisionFacts, TuningFacts};
use penstock_agent::submitted::TransferStatus;
use penstock_units::{BitRate, ByteCount, display_count, display_duration};

use crate::cp::{Tune, transport_line};
use crate::credentials::{self, AgentAddress, Service};
use crate::exit::{Code, CommandFailure, OrExit, say};
use crate::json::copy::{Changed, Copy, TransferListJson};
use crate::local_transfers::{self, ControlRequest};
use crate::numbers;
use crate::table::table;
use crate::terminal::{self, printable};

const WATCH_EVERY: Duration = Duration::from_secs(1);

/// List the transfers of an agent and your own copies, change or cancel them while they run
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Talks to the HTTP API of an agent, by default the one on this machine. The agent's own token is needed: \
it is there where PENSTOCK_STATE is the agent's, elsewhere after penstock login.

Copies that you run on this machine (penstock cp with the same PENSTOCK_STATE) are listed too, as cp and \
the number of the process; where no agent is, they alone. Set and cancel take the ids that the table and --json \
show; a bare number that is no transfer of the agent is taken for the process of a copy.

Examples:
  penstock transfers --watch
  penstock transfers set 7 --rate 2G --streams 8
  penstock transfers set 7 --rate none
  penstock transfers cancel 7
  penstock transfers set cp4711 --rate 500M
  penstock transfers --http dtn1:8621 --json")]
pub(crate) struct TransfersArgs {
    /// Address of the agent's HTTP API [default: PENSTOCK_HTTP, else 127.0.0.1:8621]
    #[arg(long, global = true, value_name = "ADDR:PORT")]
    http: Option<String>,
    /// Print JSON: {"transfers": [...], "copies": [...]}, or the changed one; docs/json.md has its fields
    #[arg(long, global = true)]
    json: bool,
    /// Print again every second, until interrupted
    #[arg(long)]
    watch: bool,
    #[command(subcommand)]
    change: Option<TransferCommand>,
}

#[derive(Debug, clap::Subcommand)]
enum TransferCommand {
    /// Show a running transfer, or why it has as many streams as it has
    #[command(
        after_help = "Examples:\n  penstock transfers show cp4711 --why\n  penstock transfers show 7 --why"
    )]
    Show {
        /// Number of the transfer, or cp and the number of the copy's process
        id: Id,
        /// Print each decision about streams, readers and writers, with the figures behind it, also after the end
        /// (docs/tuner.md)
        #[arg(long)]
        why: bool,
    },
    /// Change a running transfer; settings that are not given stay
    #[command(
        after_help = "Examples:\n  penstock transfers set 7 --rate 2G --streams 8 --writers 2\n  penstock transfers set cp4711 --tune off"
    )]
    Set(Set),
    /// End a transfer; the same copy resumes later
    #[command(after_help = "Examples:\n  penstock transfers cancel 7")]
    Cancel {
        /// Number of the transfer, or cp and the number of the copy's process
        id: Id,
    },
}

#[derive(Debug, clap::Args)]
#[group(skip)]
struct Set {
    /// Number of the transfer, or cp and the number of the copy's process
    id: Id,
    /// Rate limit, such as 2G; none for no limit
    #[arg(long, value_parser = numbers::rate_or_none)]
    rate: Option<BitRate>,
    /// Data streams
    #[arg(long, value_name = "N", value_parser = numbers::streams)]
    streams: Option<NonZeroU16>,
    /// Reader threads per device
    #[arg(long, value_name = "N", value_parser = numbers::threads)]
    readers: Option<NonZeroU16>,
    /// Writer threads per device
    #[arg(long, value_name = "N", value_parser = numbers::threads)]
    writers: Option<NonZeroU16>,
    /// Adjust streams, readers and writers from those in place on (auto), return to the default (off), or to it and list what
    /// would be tried (observe)
    #[arg(long, value_enum, value_name = "MODE", hide_possible_values = true)]
    tune: Option<Tune>,
}

/// Id on the command line.
#[derive(Debug, Clone, Copy)]
enum Id {
    /// A transfer of the agent.
    Transfer(u64),
    /// A copy of this user, by its process.
    Copy(u32),
}

impl std::str::FromStr for Id {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let id = match text.strip_prefix("cp") {
            Some(process) => process.parse().map(Self::Copy).ok(),
            None => text.parse().map(Self::Transfer).ok(),
        };
        id.context("write the number of a transfer, or cp and that of a process")
    }
}

pub(crate) fn run(args: TransfersArgs) -> Result<Code, CommandFailure> {
    let http = args.http.as_deref();
    let mut output = io::stdout();
    match args.change {
        None if args.watch => watch(http, args.json, output),
        None => {
            let (text, warning) = listing(http, args.json)?;
            warning.iter().for_each(say);
            output.write_all(text.as_bytes())?;
            Ok(Code::Done)
        }
        Some(TransferCommand::Show { id, why: true }) => show_tuning(http, id, args.json, output),
        Some(TransferCommand::Show { id, why: false }) => {
            let row = apply(http, id, &ControlRequest::Show, find)?;
            print_one(row, args.json, output)
        }
        Some(TransferCommand::Set(Set { id, rate, streams, readers, writers, tune })) => {
            let rate_bps = rate.map(|rate| rate.0);
            let tune = tune.map(Tune::mode);
            let change = TransferChange { rate_bps, streams, readers, writers, tune };
            if change == TransferChange::default() {
                let error = anyhow::anyhow!(
                    "nothing to change: give --rate, --streams, --readers, --writers or --tune"
                );
                return Err(CommandFailure::new(Code::Usage, error));
            }
            let row = apply(http, id, &ControlRequest::Set(change.clone()), |client, id| {
                client.change(id, &change)
            })?;
            print_one(row, args.json, output)
        }
        Some(TransferCommand::Cancel { id }) => {
            let row = apply(http, id, &ControlRequest::Cancel, AgentClient::cancel)?;
            print_one(row, args.json, output)
        }
    }
}

/// Transfer of an agent by its number.
fn find(client: &AgentClient, id: u64) -> Result<TransferFacts, ClientError> {
    client.transfer(id)
}

/// Decisions about the streams of a transfer of the agent or of a copy, with the name of either.
fn find_tuning(http: Option<&str>, id: Id) -> Result<(String, TuningFacts), CommandFailure> {
    let of_copy = |process| Ok((format!("cp{process}"), local_transfers::tuning(process)?));
    let number = match id {
        Id::Copy(process) => return of_copy(process),
        Id::Transfer(number) => number,
    };
    let absent = match client(http).map(|client| client.tuning(number)) {
        Ok(Ok(tuning)) => return Ok((format!("transfer {number}"), tuning)),
        Ok(Err(
            error @ (ClientError::Unreachable { .. } | ClientError::Failed { status: 404, .. }),
        )) => failure(error),
        Ok(Err(error)) => return Err(failure(error)),
        Err(failure) => failure,
    };
    // A bare number may be the process of a copy.
    u32::try_from(number).ok().and_then(|process| of_copy(process).ok()).ok_or(absent)
}

/// Setting that a decision changes, before and after it; the streams where it changes none.
struct SettingChange<'a>(&'a TuningDecisionFacts);

impl fmt::Display for SettingChange<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(one) = self;
        let (from, to, workers) = match () {
            () if one.stream_pacing_bps != one.target_stream_pacing_bps => {
                let pace = |rate: Option<u64>| {
                    rate.map_or_else(|| "no".to_owned(), |rate| BitRate(rate).to_string())
                };
                let (from, to) = (one.stream_pacing_bps, one.target_stream_pacing_bps);
                return write!(f, "{} -> {} pace", pace(from), pace(to));
            }
            () if one.readers != one.target_readers => (one.readers, one.target_readers, "readers"),
            () if one.writers != one.target_writers => (one.writers, one.target_writers, "writers"),
            () => (one.streams, one.target_streams, "streams"),
        };
        write!(f, "{from:>3} -> {to:<3} {workers}")
    }
}

/// Prints the decisions about the streams of a transfer or a copy.
fn show_tuning(
    http: Option<&str>,
    id: Id,
    json: bool,
    mut output: impl Write,
) -> Result<Code, CommandFailure> {
    let (name, tuning) = find_tuning(http, id)?;
    if json {
        writeln!(output, "{}", serde_json::to_string(&tuning).context("plain data")?)?;
        return Ok(Code::Done);
    }
    if tuning.decisions_left_out > 0 {
        writeln!(output, "{} earlier decisions are left out", tuning.decisions_left_out)?;
    }
    for one in &tuning.decisions {
        let rate = BitRate(one.bits_per_second).to_string();
        let (seconds, reason) = (one.seconds, printable(&one.reason));
        let change = SettingChange(one);
        writeln!(output, "{seconds:7.1} s  {rate:>12}  {change}  {reason}")?;
    }
    for RateForecastFacts { seconds, p10_bps, p50_bps, p90_bps } in &tuning.forecasts {
        let [p10, p50, p90] = [p10_bps, p50_bps, p90_bps].map(|rate| BitRate(*rate));
        let by = match tuning.forecast_synthetic {
            true => "   by a model of synthetic transfers",
            false => "",
        };
        writeln!(output, "next {seconds} s: {p50}   80 % between {p10} and {p90}{by}")?;
    }
    if let Some(why) = &tuning.forecast_refusal {
        writeln!(output, "no forecast of the next seconds: {}", printable(why))?;
    }
    match (&tuning.ended, &tuning.latest) {
        (Some(why), _) => writeln!(output, "{name} keeps its streams: {}", printable(why))?,
        (None, Some(latest)) => writeln!(output, "latest: {}", printable(latest))?,
        (None, None) => {
            writeln!(output, "no decision yet: {name} measures the rate of its first streams")?;
        }
    }
    Ok(Code::Done)
}

/// Changes or ends a transfer of the agent, by `at_agent`, or a copy, by `ask`.
fn apply(
    http: Option<&str>,
    id: Id,
    ask: &ControlRequest,
    at_agent: impl Fn(&AgentClient, u64) -> Result<TransferFacts, ClientError>,
) -> Result<TransferRow, CommandFailure> {
    let number = match id {
        Id::Copy(process) => {
            return Ok(TransferRow::of_copy(local_transfers::request(process, ask)?));
        }
        Id::Transfer(number) => number,
    };
    let absent = match client(http) {
        Ok(client) => match at_agent(&client, number) {
            Ok(transfer) => return Ok(TransferRow::of_agent(transfer)),
            Err(
                error @ (ClientError::Unreachable { .. } | ClientError::Failed { status: 404, .. }),
            ) => failure(error),
            Err(error) => return Err(failure(error)),
        },
        Err(failure) => failure,
    };
    // Without an agent or such a transfer the number may be a copy's process id.
    let copy =
        u32::try_from(number).ok().map(|process| local_transfers::request_if_running(process, ask));
    match copy.transpose()?.flatten() {
        Some(copy) => Ok(TransferRow::of_copy(copy)),
        None => Err(absent),
    }
}

fn client(http: Option<&str>) -> Result<AgentClient, CommandFailure> {
    let from_environment = || std::env::var("PENSTOCK_HTTP").ok();
    let http = http.map(str::to_owned).or_else(from_environment);
    // PENSTOCK_HTTP may list several addresses of the agent: use the first.
    let first = http.as_deref().and_then(|list| list.split(',').next()).unwrap_or("127.0.0.1");
    let address = AgentAddress::parse(first, HTTP_PORT).or_exit(Code::Usage)?;
    let state = credentials::state()?;
    let known = credentials::find_api(&state, &address)?;
    let known = known.ok_or_else(|| credentials::unknown(Service::AgentApi, &address));
    let known = known.or_exit(Code::Refused)?;
    let client = AgentClient::new(&address.to_string(), &known.token, Some(known.fingerprint));
    Ok(client.context("cannot start a client")?)
}

/// Transfers that run at this host's agent, and their streams; `None` where it does not answer.
pub(crate) fn running_at_agent() -> Option<(usize, usize)> {
    let listed = client(None).ok()?.transfers().ok()?.transfers;
    let running = listed.iter().filter(|one| one.state == TransferStatus::Running);
    let streams = running.clone().map(|one| usize::from(one.streams).max(1)).sum();
    Some((running.count(), streams))
}

/// Failure of a request to an agent, with its exit code.
pub(crate) fn failure(error: ClientError) -> CommandFailure {
    let code = match error {
        ClientError::Refused { .. } | ClientError::Stranger { .. } => Code::Refused,
        ClientError::Unreachable { .. } | ClientError::Failed { .. } => Code::Failed,
    };
    CommandFailure::new(code, error)
}

/// A transfer with its displayed id.
struct TransferRow {
    id: String,
    transfer: TransferFacts,
}

impl TransferRow {
    fn of_agent(transfer: TransferFacts) -> Self {
        Self { id: transfer.id.to_string(), transfer }
    }

    fn of_copy(transfer: TransferFacts) -> Self {
        Self { id: format!("cp{}", transfer.id), transfer }
    }

    fn into_json(self) -> Changed {
        if self.id.starts_with("cp") {
            Changed::Copy(Copy(self.transfer))
        } else {
            Changed::Transfer(self.transfer)
        }
    }
}

/// Text of the list, and a warning if the agent could not be queried.
fn listing(http: Option<&str>, json: bool) -> Result<(String, Option<String>), CommandFailure> {
    let asked = client(http).and_then(|client| client.transfers().map_err(failure));
    // Copies run on this machine, independent of the named agent.
    let copies = local_transfers::running()?;
    let (transfers, controller, warning) = match asked {
        Ok(answer) => (answer.transfers, answer.controller, None),
        // List copies without an agent, too.
        Err(failure) if !copies.is_empty() => {
            (Vec::new(), None, Some(format!("warning: {}", failure.line())))
        }
        Err(failure) => return Err(failure),
    };
    if json {
        let copies = copies.into_iter().map(Copy).collect();
        let all = TransferListJson { transfers, copies, controller };
        let text = serde_json::to_string(&all).context("plain data")?;
        return Ok((format!("{text}\n"), warning));
    }
    let transfers = transfers.into_iter().map(TransferRow::of_agent);
    let rows: Vec<_> = transfers.chain(copies.into_iter().map(TransferRow::of_copy)).collect();
    let link = controller.as_ref().map(shown).unwrap_or_default();
    Ok((listed(&rows) + &link, warning))
}

/// State of the controller link as a line below the table.
fn shown(link: &ControllerFacts) -> String {
    let ControllerFacts { url, host, orders, .. } = link;
    let why = link.error.as_deref().filter(|_| link.state != "connected");
    let why = why.map(|why| format!(": {}", printable(why))).unwrap_or_default();
    let safe = if link.lease_expired { " (transfers run at the safe rate)" } else { "" };
    let orders = display_count(*orders as u64, "order");
    format!("controller {url}: {} as {host}, {orders}{safe}{why}\n", link.state)
}

fn watch(http: Option<&str>, json: bool, mut output: impl Write) -> Result<Code, CommandFailure> {
    let terminal = io::stdout().is_terminal() && !json;
    let mut last_warning = None;
    loop {
        let (text, warning) = listing(http, json)?;
        if warning != last_warning {
            warning.iter().for_each(say);
            last_warning = warning;
        }
        if terminal {
            // Cursor home, lines each cleared to the end, and everything below cleared. Lines are cut, as a wrapped
            // line would only be cleared in part.
            let text = terminal::cut_lines(&text, terminal::columns_of(io::stdout()));
            let text = text.replace('\n', "\x1b[K\n");
            write!(output, "\x1b[H{text}\x1b[J")?;
        } else {
            output.write_all(text.as_bytes())?;
        }
        output.flush()?;
        std::thread::sleep(WATCH_EVERY);
    }
}

fn print_one(row: TransferRow, json: bool, mut output: impl Write) -> Result<Code, CommandFailure> {
    if json {
        writeln!(output, "{}", serde_json::to_string(&row.into_json()).context("plain data")?)?;
        return Ok(Code::Done);
    }
    let TransferFacts { transport, transport_reason, .. } = &row.transfer;
    let transport = transport.as_deref().unwrap_or_default();
    let reason = transport_reason.as_deref();
    let line = reason.map(|reason| transport_line(transport, &printable(reason)));
    let faults: Vec<_> = row.transfer.submitted.iter().flat_map(fault_lines).collect();
    output.write_all(listed(&[row]).as_bytes())?;
    for line in line.iter().chain(&faults) {
        writeln!(output, "{line}")?;
    }
    Ok(Code::Done)
}

/// Reason of a wait or failure, and the files that failed, a line each.
fn fault_lines(submitted: &SubmittedFacts) -> Vec<String> {
    let reason = submitted.error.iter().map(|error| format!("reason: {}", printable(error)));
    let files = submitted.failures.iter();
    let files = files.map(|one| format!("{}: {}", printable(&one.path), printable(&one.error)));
    reason.chain(files).collect()
}

const HEADINGS: [&str; 9] =
    ["ID", "STATE", "CALLER", "PATH", "DONE", "FILES", "RATE", "STREAMS", "BOUND BY"];

fn listed(transfers: &[TransferRow]) -> String {
    if transfers.is_empty() {
        return "no transfers\n".to_owned();
    }
    let mut rows = vec![HEADINGS.map(str::to_owned).to_vec()];
    rows.extend(transfers.iter().map(cells));
    table(&rows)
}

fn cells(TransferRow { id, transfer }: &TransferRow) -> Vec<String> {
    // Blocks that were sent twice count twice, holes of sparse files once their file is in place.
    let done = transfer.moved_bytes.saturating_add(transfer.resumed_bytes);
    let done = done.max(transfer.bytes).min(transfer.announced_bytes.max(transfer.bytes));
    let elapsed =
        display_duration(Duration::try_from_secs_f64(transfer.seconds).unwrap_or_default());
    let failed = match transfer.failed {
        0 => String::new(),
        failed => format!(" ({failed} failed)"),
    };
    let limit = match transfer.rate_bps {
        Some(limit) if limit > 0 => format!(" (limit {})", BitRate(limit)),
        _ => String::new(),
    };
    vec![
        id.clone(),
        transfer.state.to_string(),
        printable(&transfer.caller),
        format!("{} {}", transfer.direction, printable(&transfer.path)),
        format!("{} of {} in {elapsed}", ByteCount(done), ByteCount(transfer.announced_bytes)),
        format!("{}{failed}", transfer.files),
        format!("{}{limit}", BitRate(transfer.bits_per_second)),
        transfer.streams.to_string(),
        transfer.bound_by.clone(),
    ]
}
