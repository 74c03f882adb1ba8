//! `penstock show`: one request of a controller.

use std::fmt::Write;

use penstock_controller::api::objects::{Files, History, Orders, RequestFacts};
use penstock_units::{BitRate, ByteCount};

use super::{
    ControllerArgs, ControllerClient, code, duration, is_over, now, print_json, printable,
    progress, state, watch,
};
use crate::exit::{Code, CommandFailure};
use crate::json::copy::RequestDetails;
use crate::table::table;

/// Show a request of a controller: progress, orders, and the reasons of their rates
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each order names the bottleneck of its rate: a fully allotted link or interface, the high-water mark of its class, or \
storage. With --watch the exit code says how the request ended: 0 done, 3 partial, 1 failed or \
cancelled.

Examples:
  penstock show 4711
  penstock show 4711 --files failed
  penstock show 4711 --history
  penstock show 4711 --watch")]
pub(crate) struct ShowArgs {
    /// Number of the request
    id: u64,
    /// List its files too, all or those in this state: queued, active, done, failed, cancelled
    #[arg(long, value_name = "STATE", num_args = 0..=1, default_missing_value = "")]
    files: Option<String>,
    /// List its history too
    #[arg(long)]
    history: bool,
    /// Print again every second, until it has ended
    #[arg(long)]
    watch: bool,
    /// Print one JSON object with request, orders, and, if asked for, files and events; docs/json.md has its fields
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: ControllerArgs,
}

/// Fetches all pages of a list.
fn all<T>(
    mut part: impl FnMut(Option<i64>) -> Result<(Vec<T>, Option<i64>), CommandFailure>,
) -> Result<Vec<T>, CommandFailure> {
    let (mut all, mut next) = part(None)?;
    while let Some(after) = next {
        let (more, then) = part(Some(after))?;
        all.extend(more);
        next = then;
    }
    Ok(all)
}

pub(crate) fn run(args: &ShowArgs) -> Result<Code, CommandFailure> {
    let controller = args.place.open()?;
    if args.watch && !args.json {
        return watch(|| {
            let request = controller.watched_request(args.id)?;
            let end = is_over(&request).then(|| code(&request));
            Ok((text(args, &controller, &request)?, end))
        });
    }
    let mut request = controller.request(args.id)?;
    while args.watch && !is_over(&request) {
        std::thread::sleep(super::WATCH_EVERY);
        request = controller.watched_request(args.id)?;
    }
    let end = if args.watch { code(&request) } else { Code::Done };
    if args.json {
        let orders: Orders = controller.get(&format!("/api/v1/requests/{}/why", args.id))?;
        let of_state = args.files.as_ref();
        print_json(&RequestDetails {
            request,
            orders: orders.orders,
            files: of_state.map(|state| files(&controller, args.id, state)).transpose()?,
            events: args.history.then(|| events(&controller, args.id)).transpose()?,
        })?;
        return Ok(end);
    }
    print!("{}", text(args, &controller, &request)?);
    Ok(end)
}

fn files(
    controller: &ControllerClient,
    id: u64,
    state: &str,
) -> Result<Vec<penstock_controller::api::objects::FileFacts>, CommandFailure> {
    all(|after| {
        let after = after.map_or(String::new(), |after| format!("&after={after}"));
        let of = if state.is_empty() { String::new() } else { format!("&state={state}") };
        let path = format!("/api/v1/requests/{id}/files?limit=1000{of}{after}");
        let part: Files = controller.get(&path)?;
        Ok((part.files, part.next))
    })
}

fn events(
    controller: &ControllerClient,
    id: u64,
) -> Result<Vec<penstock_controller::api::objects::EventFacts>, CommandFailure> {
    all(|after| {
        let after = after.map_or(String::new(), |after| format!("&after={after}"));
        let path = format!("/api/v1/requests/{id}/history?limit=1000{after}");
        let part: History = controller.get(&path)?;
        Ok((part.events, part.next))
    })
}

fn text(
    args: &ShowArgs,
    controller: &ControllerClient,
    request: &RequestFacts,
) -> Result<String, CommandFailure> {
    let mut text = facts(request);
    if !is_over(request) {
        let orders: Orders = controller.watched(&format!("/api/v1/requests/{}/why", args.id))?;
        text += &shown(&orders);
    }
    if let Some(state) = &args.files {
        let mut rows =
            vec![["FILE", "STATE", "SIZE", "TRIED", "PATH", "FAULT"].map(str::to_owned).to_vec()];
        for file in files(controller, args.id, state)? {
            let size =
                file.size.map_or("-".to_owned(), |size| ByteCount(size.max(0) as u64).to_string());
            rows.push(vec![
                file.file.to_string(),
                file.state,
                size,
                file.attempts.to_string(),
                printable(&file.path),
                printable(&file.fault.unwrap_or_default()),
            ]);
        }
        text.push('\n');
        text += &table(&rows);
    }
    if args.history {
        text.push('\n');
        let rows: Vec<Vec<String>> = events(controller, args.id)?
            .into_iter()
            .map(|event| {
                let ago = format!("{} ago", duration(now() - event.unix_seconds));
                vec![ago, event.kind, printable(&event.text)]
            })
            .collect();
        text += &table(&rows);
    }
    Ok(text)
}

fn facts(request: &RequestFacts) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<9} {value}");
    };
    line("request", format!("{} of {}", request.id, printable(&request.client)));
    line("state", state(request));
    line("class", format!("{}, priority {}", printable(&request.class), request.priority));
    line("from", printable(&format!("{}:{}", request.source, request.from)));
    line("to", printable(&format!("{}:{}", request.destination, request.to)));
    line("done", progress(request));
    if let Some(rate) = request.bits_per_second {
        let forecast = match request.forecast_seconds {
            Some(seconds) => {
                format!(", done in {}{}", duration(seconds as f64), forecast_range(request))
            }
            None => String::new(),
        };
        line("rate", format!("{}{forecast}", BitRate(rate)));
    }
    if let Some(transport) = &request.transport {
        let reason = request.transport_reason.as_ref().map(|reason| format!(": {reason}"));
        line("data by", printable(&(transport.to_uppercase() + &reason.unwrap_or_default())));
    }
    if let Some(why) = &request.waiting {
        line("waits", printable(why));
    }
    if let Some(deadline) = request.deadline_unix_seconds.filter(|_| !is_over(request)) {
        let left = deadline as f64 - now();
        line(
            "deadline",
            match left > 0.0 {
                true => format!("in {}", duration(left)),
                false => format!("{} ago", duration(-left)),
            },
        );
    }
    if let Some(problem) = &request.deadline_problem {
        line("late", printable(problem));
    }
    if let Some(trouble) = &request.trouble {
        line("trouble", printable(trouble));
    }
    text
}

/// Range of the forecast in brackets; empty where it is not known.
fn forecast_range(request: &RequestFacts) -> String {
    let (Some(p10), Some(p90)) = (request.forecast_p10_seconds, request.forecast_p90_seconds)
    else {
        return String::new();
    };
    let transfers = request.forecast_transfers.unwrap_or(0);
    let (p10, p90) = (duration(p10 as f64), duration(p90 as f64));
    format!(" ({p10} to {p90} for 80 % of transfers, by {transfers} before)")
}

fn shown(orders: &Orders) -> String {
    if orders.orders.is_empty() {
        return String::new();
    }
    let headings = ["ORDER", "PHASE", "FROM", "TO", "FILES", "RATE", "ALLOTTED", "WHY"];
    let mut rows = vec![headings.map(str::to_owned).to_vec()];
    for order in &orders.orders {
        let phase = match order.state.as_str() {
            "standing" => order.phase.clone(),
            state => state.to_owned(),
        };
        let rate = |rate: Option<i64>| {
            rate.map_or("-".to_owned(), |rate| BitRate(rate.max(0) as u64).to_string())
        };
        let off = if order.off_path { " (not on its path)" } else { "" };
        rows.push(vec![
            order.order.to_string(),
            phase,
            order.from.clone(),
            order.to.clone().unwrap_or_else(|| "(lists)".to_owned()),
            format!("{} of {}", order.files_settled, order.files),
            rate(Some(order.bits_per_second)),
            rate(order.rate_bps),
            printable(&format!("{}{off}", order.waiting.as_ref().unwrap_or(&order.reason))),
        ]);
    }
    format!("\n{}", table(&rows))
}
