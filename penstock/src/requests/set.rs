//! `penstock set` and `penstock cancel`: requests of a controller, changed or ended.

use anyhow::anyhow;
use penstock_controller::api::objects::{ChangeBody, RequestFacts};

use super::{ControllerArgs, line, print_json};
use crate::exit::{Code, CommandFailure};

/// Change a request of a controller: priority, deadline, pause, resume
#[derive(Debug, clap::Args)]
#[command(after_help = "\
What is paused stops soon and keeps what it has; it goes on from there.

Examples:
  penstock set 4711 --priority 5
  penstock set 4711 --deadline none
  penstock set 4711 --pause
  penstock set 4711 --resume")]
#[group(skip)]
pub(crate) struct SetArgs {
    /// Number of the request
    id: u64,
    /// 1 (can wait) to 5 (urgent)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=5))]
    priority: Option<u8>,
    /// Deadline: a time from now such as 6h, seconds since 1970, or none
    #[arg(long, value_name = "TIME", value_parser = deadline)]
    deadline: Option<i64>,
    /// Pause the request
    #[arg(long, conflicts_with = "resume")]
    pause: bool,
    /// Resume a paused request
    #[arg(long)]
    resume: bool,
    /// Print the request as one JSON object; docs/json.md has its fields
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: ControllerArgs,
}

fn deadline(text: &str) -> anyhow::Result<i64> {
    if text == "none" { Ok(0) } else { super::submit::deadline(text) }
}

pub(crate) fn run(args: SetArgs) -> Result<Code, CommandFailure> {
    let paused = (args.pause || args.resume).then_some(args.pause);
    let change =
        ChangeBody { priority: args.priority, deadline_unix_seconds: args.deadline, paused };
    if change == ChangeBody::default() {
        let error = anyhow!("nothing to change: give --priority, --deadline, --pause or --resume");
        return Err(CommandFailure::new(Code::Usage, error));
    }
    let controller = args.place.open()?;
    let path = format!("/api/v1/requests/{}", args.id);
    let request: RequestFacts = controller.ask("PATCH", &path, Some(&change))?;
    print_request(&request, args.json)
}

fn print_request(request: &RequestFacts, json: bool) -> Result<Code, CommandFailure> {
    if json {
        print_json(request)?;
    } else {
        print!("{}", line(request));
    }
    Ok(Code::Done)
}

/// Cancel requests of a controller; delivered files stay
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Running transfers stop within seconds. Partial files are kept for a while, so that a new request for the same files \
resumes them.

Examples:
  penstock cancel 4711
  penstock cancel 4711 4712 --json")]
pub(crate) struct CancelArgs {
    /// Numbers of the requests
    #[arg(required = true)]
    ids: Vec<u64>,
    /// Print each request as one JSON object; docs/json.md has its fields
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: ControllerArgs,
}

pub(crate) fn cancel(args: &CancelArgs) -> Result<Code, CommandFailure> {
    let controller = args.place.open()?;
    for id in &args.ids {
        let path = format!("/api/v1/requests/{id}");
        let request: RequestFacts = controller.ask("DELETE", &path, None::<&()>)?;
        print_request(&request, args.json)?;
    }
    Ok(Code::Done)
}
