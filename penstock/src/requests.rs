//! Shared code of the controller's verbs: `submit`, `list`, `show`, `set`, `cancel`, `drain`, `reserve`.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, anyhow};
use penstock_agent::client::{AgentClient, ClientError};
use penstock_agent::config::HTTP_PORT;
use penstock_controller::api::objects::RequestFacts;
use penstock_units::{BitRate, ByteCount, display_count, display_duration};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::credentials::{self, AgentAddress, Service};
use crate::exit::{Code, CommandFailure, OrExit};
use crate::terminal::{self, printable};

pub(crate) mod drain;
pub(crate) mod list;
pub(crate) mod reserve;
pub(crate) mod set;
pub(crate) mod show;
pub(crate) mod submit;

const WATCH_EVERY: Duration = Duration::from_secs(1);

/// Option for the controller's address.
#[derive(Debug, clap::Args)]
pub(crate) struct ControllerArgs {
    /// Address of the controller's HTTP API [default: PENSTOCK_CONTROLLER, else 127.0.0.1:8621]
    #[arg(long, value_name = "ADDR:PORT")]
    controller: Option<String>,
}

/// Time for which `--watch` waits for a controller that restarts.
const RESTART_TIMEOUT: Duration = Duration::from_secs(60);

/// HTTP client of a controller.
pub(crate) struct ControllerClient(AgentClient);

impl ControllerArgs {
    fn open(&self) -> Result<ControllerClient, CommandFailure> {
        let from_environment = || std::env::var("PENSTOCK_CONTROLLER").ok();
        let given = self.controller.clone().or_else(from_environment);
        let given =
            given.filter(|given| !given.is_empty()).unwrap_or_else(|| "127.0.0.1".to_owned());
        // Accept a URL, too.
        let bare = given.strip_prefix("https://").or_else(|| given.strip_prefix("http://"));
        let bare = bare.unwrap_or(&given).trim_end_matches('/');
        let address = AgentAddress::parse(bare, HTTP_PORT).or_exit(Code::Usage)?;
        let state = credentials::state()?;
        let known = credentials::find_api(&state, &address)?;
        let known = known.ok_or_else(|| credentials::unknown(Service::Controller, &address));
        let known = known.or_exit(Code::Refused)?;
        let client = AgentClient::new(&address.to_string(), &known.token, Some(known.fingerprint));
        Ok(ControllerClient(client.context("cannot start a client")?))
    }
}

impl ControllerClient {
    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, CommandFailure> {
        self.ask("GET", path, None::<&()>)
    }

    fn ask<T: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, CommandFailure> {
        self.0.ask(method, path, body).map_err(failure)
    }

    /// As [`Self::get`], for a command that watches: the request goes on while the controller restarts, so that no answer
    /// is no failure for [`RESTART_TIMEOUT`].
    fn watched<T: DeserializeOwned>(&self, path: &str) -> Result<T, CommandFailure> {
        let begun = Instant::now();
        loop {
            let result = self.0.ask("GET", path, None::<&()>);
            let is_away = matches!(
                result,
                Err(ClientError::Unreachable { .. } | ClientError::Failed { status: 503, .. })
            );
            if !is_away || begun.elapsed() > RESTART_TIMEOUT {
                return result.map_err(failure);
            }
            std::thread::sleep(WATCH_EVERY);
        }
    }

    fn watched_request(&self, id: u64) -> Result<RequestFacts, CommandFailure> {
        self.watched(&format!("/api/v1/requests/{id}"))
    }

    fn request(&self, id: u64) -> Result<RequestFacts, CommandFailure> {
        self.get(&format!("/api/v1/requests/{id}"))
    }
}

fn failure(error: ClientError) -> CommandFailure {
    let code = match &error {
        ClientError::Refused { .. } | ClientError::Stranger { .. } => Code::Refused,
        // The request itself is malformed. 404 and 409 depend on the controller's state: they are failures.
        ClientError::Failed { status: 400 | 422, .. } => Code::Usage,
        ClientError::Unreachable { .. } | ClientError::Failed { .. } => Code::Failed,
    };
    match error {
        ClientError::Unreachable { address, source } => CommandFailure::new(
            code,
            anyhow!(
                "no controller answers at {address}: {source}: start one (penstock serve with [controller]) or give its address with --controller ADDR:PORT"
            ),
        ),
        ClientError::Failed { address, status: 404, text } if text.starts_with("no such path") => {
            CommandFailure::new(
                code,
                anyhow!(
                    "the agent at {address} is no controller: give the address of one with --controller ADDR:PORT, or add [controller] to this agent's configuration"
                ),
            )
        }
        ClientError::Failed { address, text, .. } => {
            CommandFailure::new(code, anyhow!("the controller at {address}: {text}"))
        }
        ClientError::Refused { address, status: 401, text } => CommandFailure::new(
            code,
            anyhow!(
                "the controller at {address} refuses: {text}; with a valid one: penstock login {address} --token ... --fingerprint ..."
            ),
        ),
        ClientError::Refused { address, text, .. } => {
            CommandFailure::new(code, anyhow!("the controller at {address} refuses: {text}"))
        }
        error => CommandFailure::new(code, error),
    }
}

/// Exit code for an ended request.
fn code(request: &RequestFacts) -> Code {
    match request.state.as_str() {
        "done" => Code::Done,
        "partial" => Code::Partial,
        "failed" | "cancelled" => Code::Failed,
        _ => Code::Done,
    }
}

fn is_over(request: &RequestFacts) -> bool {
    request.ended_unix_seconds.is_some()
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

fn print_json(value: &impl Serialize) -> Result<(), CommandFailure> {
    let text = serde_json::to_string(value).context("plain data")?;
    writeln!(io::stdout(), "{text}")?;
    Ok(())
}

/// Prints `text` every second until it returns an end; redraws in place on a terminal.
fn watch(
    mut text: impl FnMut() -> Result<(String, Option<Code>), CommandFailure>,
) -> Result<Code, CommandFailure> {
    let mut output = io::stdout();
    let terminal = output.is_terminal();
    let mut last = String::new();
    loop {
        let (text, end) = text()?;
        if terminal {
            // Home, the lines with the rest of each cleared, and everything below cleared.
            let shown = terminal::cut_lines(&text, terminal::columns_of(io::stdout()));
            write!(output, "\x1b[H{}\x1b[J", shown.replace('\n', "\x1b[K\n"))?;
        } else if text != last {
            output.write_all(text.as_bytes())?;
        }
        output.flush()?;
        if let Some(code) = end {
            return Ok(code);
        }
        last = text;
        std::thread::sleep(WATCH_EVERY);
    }
}

fn duration(seconds: f64) -> String {
    display_duration(Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default())
}

/// State of a request in a few words.
fn state(request: &RequestFacts) -> String {
    let more = match request {
        _ if request.cancelling => " (cancelling)",
        _ if request.paused && !is_over(request) => " (paused)",
        _ => "",
    };
    format!("{}{more}", request.state)
}

/// Files and bytes of a request.
fn progress(request: &RequestFacts) -> String {
    let failed = match request.files_failed {
        0 => String::new(),
        failed => format!(", {failed} failed"),
    };
    format!(
        "{} of {}{failed}, {} of {}",
        request.files_done,
        display_count(request.files, "file"),
        ByteCount(request.bytes_done.max(0) as u64),
        ByteCount(request.bytes.max(0) as u64)
    )
}

/// State and progress of a request in one line.
fn line(request: &RequestFacts) -> String {
    let rate = request.bits_per_second.filter(|_| !is_over(request));
    let rate = rate.map_or(String::new(), |rate| format!(", {}", BitRate(rate)));
    let forecast = match request.forecast_seconds.filter(|_| !is_over(request)) {
        Some(seconds) => format!(", done in {}", duration(seconds as f64)),
        None => String::new(),
    };
    let waiting = request.waiting.as_deref().filter(|_| !is_over(request));
    let waiting = waiting.map_or(String::new(), |why| format!("; {}", printable(why)));
    let late = request.deadline_problem.as_deref().filter(|_| !is_over(request));
    let late = late.map_or(String::new(), |why| format!("; deadline: {}", printable(why)));
    let trouble =
        request.trouble.as_deref().filter(|_| is_over(request) && request.state != "done");
    let trouble = trouble.map_or(String::new(), |why| format!("; {}", printable(why)));
    format!(
        "request {}: {}, {}{rate}{forecast}{waiting}{late}{trouble}\n",
        request.id,
        state(request),
        progress(request)
    )
}
