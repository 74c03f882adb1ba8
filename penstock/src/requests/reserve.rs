//! `penstock reserve`: reservations of a rate between two sites for a time.

use std::time::Duration;

use anyhow::anyhow;
use penstock_controller::api::reservations::{ReservationFacts, Reservations, ReserveBody};
use penstock_units::{BitRate, parse_duration};

use super::{ControllerArgs, ControllerClient, duration, now, print_json, printable, submit};
use crate::exit::{Code, CommandFailure, OrExit};
use crate::table::table;

/// Reserve a rate between two sites of a controller for a time, release it, or list reservations
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The controller admits it where the links of a path have room for the whole time; otherwise the answer names the largest \
rate and the earliest time that would fit. With --circuit the network sets up a path of its own for it, where the \
controller has a provider of circuits: no other traffic shares its rate, and it is restored over other links when one of \
its own fails. Without arguments the command lists reservations.

Examples:
  penstock reserve
  penstock reserve cern caltech 10G --class production --for 6h
  penstock reserve cern caltech 10G --class production \\
    --at 2h --for 6h --circuit
  penstock reserve --cancel 17")]
pub(crate) struct ReserveArgs {
    /// Source site
    #[arg(value_name = "SITE", requires = "to")]
    from: Option<String>,
    /// Destination site
    #[arg(value_name = "SITE", requires = "rate")]
    to: Option<String>,
    /// Rate, such as 10G
    #[arg(requires = "length")]
    rate: Option<BitRate>,
    /// For this class of work
    #[arg(long, requires = "from")]
    class: Option<String>,
    /// Start: a time from now such as 2h, or seconds since 1970 [default: now]
    #[arg(long, value_name = "TIME", value_parser = submit::deadline, requires = "from")]
    at: Option<i64>,
    /// Duration
    #[arg(long = "for", value_name = "TIME", value_parser = parse_duration, requires = "from")]
    length: Option<Duration>,
    /// Reserve a circuit with its own path
    #[arg(long, requires = "from")]
    circuit: bool,
    /// Release this reservation
    #[arg(long, value_name = "ID", conflicts_with = "from")]
    cancel: Option<u64>,
    /// Print one JSON object: the reservation, or {"reservations": [...]}; docs/json.md has its fields
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: ControllerArgs,
}

pub(crate) fn run(args: ReserveArgs) -> Result<Code, CommandFailure> {
    let controller = args.place.open()?;
    if let Some(id) = args.cancel {
        let path = format!("/api/v1/reservations/{id}");
        let one: ReservationFacts = controller.ask("DELETE", &path, None::<&()>)?;
        return print_reservation(&args, &one, "given back");
    }
    let (Some(source), Some(destination), Some(rate), Some(length)) =
        (args.from.clone(), args.to.clone(), args.rate, args.length)
    else {
        let all: Reservations = controller.get("/api/v1/reservations")?;
        if args.json {
            print_json(&all)?;
        } else {
            print!("{}", listing(&all.reservations));
        }
        return Ok(Code::Done);
    };
    let class = match args.class.clone() {
        Some(class) => class,
        None => only_class(&controller)?,
    };
    let begin = args.at.unwrap_or_else(|| now() as i64);
    let seconds = i64::try_from(length.as_secs()).unwrap_or(i64::MAX / 2);
    let body = ReserveBody {
        class,
        source,
        destination,
        rate_bps: rate.0,
        begin_unix_seconds: begin,
        end_unix_seconds: begin.saturating_add(seconds.max(1)),
        circuit: args.circuit,
    };
    let one = controller.ask("POST", "/api/v1/reservations", Some(&body))?;
    print_reservation(&args, &one, "made")
}

/// The only class of a controller, if it has one.
fn only_class(controller: &ControllerClient) -> Result<String, CommandFailure> {
    let all: penstock_controller::api::network::Classes = controller.get("/api/v1/classes")?;
    let mut names = all.classes.into_iter().map(|class| class.name);
    match (names.next(), names.next()) {
        (Some(one), None) => Ok(one),
        _ => Err(anyhow!("say which class of work it is for: --class NAME")).or_exit(Code::Usage),
    }
}

fn print_reservation(
    args: &ReserveArgs,
    one: &ReservationFacts,
    what: &str,
) -> Result<Code, CommandFailure> {
    if args.json {
        print_json(one)?;
    } else {
        println!("reservation {} is {what}: {}", one.id, shown(one));
    }
    Ok(Code::Done)
}

fn shown(one: &ReservationFacts) -> String {
    let rate = BitRate(one.rate_bps.max(0) as u64);
    format!("{rate} from {} to {} over {}", one.source, one.destination, one.path.join(", "))
}

fn listing(all: &[ReservationFacts]) -> String {
    if all.is_empty() {
        return "no reservations\n".to_owned();
    }
    let headings = ["ID", "CLASS", "FROM", "TO", "RATE", "OVER", "BEGINS", "ENDS", "CIRCUIT"];
    let mut rows = vec![headings.map(str::to_owned).to_vec()];
    let time = |at: f64| match at - now() {
        left if left > 0.0 => format!("in {}", duration(left)),
        past => format!("{} ago", duration(-past)),
    };
    for one in all {
        let circuit = one.circuit.as_ref().map_or(String::new(), |circuit| match &circuit.reason {
            Some(reason) => format!("{}: {reason}", circuit.state),
            None if circuit.verified == Some(false) => format!("{}, not used", circuit.state),
            None => circuit.state.clone(),
        });
        rows.push(vec![
            one.id.to_string(),
            printable(one.class.as_deref().unwrap_or("")),
            one.source.clone(),
            one.destination.clone(),
            BitRate(one.rate_bps.max(0) as u64).to_string(),
            one.path.join(" "),
            time(one.begin_unix_seconds),
            time(one.end_unix_seconds),
            printable(&circuit),
        ]);
    }
    table(&rows)
}
