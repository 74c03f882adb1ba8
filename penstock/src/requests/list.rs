//! `penstock list`: requests of a controller.

use penstock_controller::api::objects::{RequestFacts, Requests};

use super::{ControllerArgs, duration, now, print_json, printable, progress, state, watch};
use crate::exit::{Code, CommandFailure};
use crate::table::table;

/// List the requests of a controller, the newest first
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A token sees the requests of the classes that it may submit to, or all of them with the scope read.

Examples:
  penstock list
  penstock list --state active,staged --class production --watch
  penstock list --limit 1000 --json")]
pub(crate) struct ListArgs {
    /// Only these states: submitted, staged, active, done, failed, partial, cancelled
    #[arg(long, value_name = "STATE", value_delimiter = ',')]
    state: Vec<String>,
    /// Only this class
    #[arg(long)]
    class: Option<String>,
    /// Largest number of requests, up to 1000
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: u32,
    /// Only requests with smaller ids than this
    #[arg(long, value_name = "ID")]
    before: Option<u64>,
    /// Print again every second, until interrupted
    #[arg(long)]
    watch: bool,
    /// Print one JSON object with requests and next (for --before); docs/json.md has its fields
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: ControllerArgs,
}

/// Percent-encodes a query value.
fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~,".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { (byte as char).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

pub(crate) fn run(args: &ListArgs) -> Result<Code, CommandFailure> {
    let controller = args.place.open()?;
    let mut path = format!("/api/v1/requests?limit={}", args.limit);
    if !args.state.is_empty() {
        path += &format!("&state={}", escaped(&args.state.join(",")));
    }
    if let Some(class) = &args.class {
        path += &format!("&class={}", escaped(class));
    }
    if let Some(before) = args.before {
        path += &format!("&before={before}");
    }
    if args.watch && !args.json {
        return watch(|| {
            let list: Requests = controller.watched(&path)?;
            Ok((shown(&list.requests), None))
        });
    }
    loop {
        let list: Requests = controller.get(&path)?;
        if args.json {
            print_json(&list)?;
        } else {
            print!("{}", shown(&list.requests));
        }
        if !args.watch {
            return Ok(Code::Done);
        }
        std::thread::sleep(super::WATCH_EVERY);
    }
}

fn shown(requests: &[RequestFacts]) -> String {
    if requests.is_empty() {
        return "no requests\n".to_owned();
    }
    let headings = ["ID", "STATE", "CLASS", "FROM", "TO", "DONE", "AGE", "WAITS"];
    let mut rows = vec![headings.map(str::to_owned).to_vec()];
    let now = now();
    for request in requests {
        rows.push(vec![
            request.id.to_string(),
            state(request),
            printable(&request.class),
            printable(&format!("{}:{}", request.source, request.from)),
            printable(&format!("{}:{}", request.destination, request.to)),
            progress(request),
            duration(now - request.submitted_unix_seconds),
            printable(request.waiting.as_deref().unwrap_or("")),
        ]);
    }
    table(&rows)
}
