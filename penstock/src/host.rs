//! `penstock host`: judges this machine as a data transfer node, tunes it by a plan, and restores earlier settings.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use penstock_host::facts::{FACTS_BYTES_MAX, Facts};
use penstock_host::goal::{Goal, HostRole};
use penstock_host::rules::{self, Case};
use penstock_units::{BitRate, parse_duration};

use crate::exit::{Code, CommandFailure, OrExit};
use crate::input;
use crate::table::table;

mod check;
mod explain;
mod tune;

/// Judge this machine as a data transfer node, tune it, restore earlier settings
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A rule compares facts of the machine with what a rate, a round-trip time and a role need; an unknown fact \
neither passes nor fails. tune prints a plan and changes nothing without --apply; docs/host-rules.md has \
the rules and the facts file.

Examples:
  penstock host check
  penstock host check --for 400G --rtt 65ms --all
  penstock host check --facts dtn7.json --json
  penstock host tune --for 400G --rtt 65ms
  penstock host tune --for 400G --rtt 65ms \\
    --also mtu --apply --persist --revert-after 5m
  penstock host tune --confirm
  penstock host restore
  penstock host explain tcp-wmem
  penstock host facts > dtn7.json")]
pub(crate) struct HostArgs {
    /// Print one JSON object; docs/json.md has its fields
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: HostCommand,
}

#[derive(Debug, clap::Subcommand)]
enum HostCommand {
    /// Report settings that break rules, what matters most, and missing hardware
    Check(check::CheckArgs),
    /// Print the changes that a goal needs; make them with --apply
    Tune(Box<tune::TuneArgs>),
    /// Restore the settings that tune changed
    Restore,
    /// Explain a rule: target, reason, contradicting sources, and state of this host
    Explain(explain::ExplainArgs),
    /// Print the facts of this machine as a facts file
    Facts,
    /// Reverts an unconfirmed plan; started by tune
    #[command(hide = true)]
    Guard(tune::GuardArgs),
    /// Applies the settings of tune --persist; started at boot
    #[command(hide = true)]
    AtBoot {
        /// The list of settings
        file: PathBuf,
    },
}

/// Goal, and the machine to judge.
#[derive(Debug, clap::Args)]
struct GoalArgs {
    /// Rate of all streams together; by default that of the fastest card, or 10G if unknown
    #[arg(long = "for", value_name = "RATE", value_parser = crate::numbers::rate_of_goal)]
    rate: Option<BitRate>,
    /// Round-trip time of the longest path
    #[arg(long, default_value = "100ms", value_parser = rtt)]
    rtt: Duration,
    /// TCP connections that carry the rate; by default as few as TCP's largest window allows
    #[arg(long, value_name = "N", value_parser = crate::numbers::streams)]
    streams: Option<std::num::NonZeroU16>,
    /// Role of the host
    #[arg(long, value_enum, default_value_t = RoleArg::Dtn)]
    role: RoleArg,
    /// Devices that carry the traffic; by default the fastest cards with a carrier
    #[arg(long = "interface", value_name = "NAME")]
    interfaces: Vec<String>,
    /// Facts file in place of this machine's facts, or - for standard input
    #[arg(long, value_name = "FILE")]
    facts: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum RoleArg {
    /// Moves data for users
    Dtn,
    /// Measures the network, and nothing else
    Test,
}

/// Longer than any path: the moon is 2.6 s away, there and back.
const RTT_MAX: Duration = Duration::from_secs(60);

fn rtt(text: &str) -> anyhow::Result<Duration> {
    match parse_duration(text) {
        // A bare number could mean milliseconds or seconds.
        Ok(_) if text.ends_with(|c: char| c.is_ascii_digit()) => {
            bail!("write the unit too, like 65ms")
        }
        Ok(Duration::ZERO) => bail!("every path takes some time: write it like 65ms"),
        Ok(rtt) if rtt > RTT_MAX => bail!("no path takes more than a minute"),
        other => Ok(other?),
    }
}

impl GoalArgs {
    fn facts(&self) -> Result<Facts, CommandFailure> {
        let Some(file) = &self.facts else { return Ok(Facts::gather()) };
        let read = || -> anyhow::Result<Facts> {
            let bytes = input::read(file, FACTS_BYTES_MAX).context("cannot be read")?;
            if bytes.len() > FACTS_BYTES_MAX {
                return Err(anyhow!("longer than {FACTS_BYTES_MAX} bytes"));
            }
            Ok(Facts::from_json(&bytes)?)
        };
        read().with_context(|| file.display().to_string()).or_exit(Code::Usage)
    }

    fn goal(&self, facts: &Facts) -> Goal {
        let rate_bps = self.rate.map_or_else(|| Goal::rate_of(facts), |rate| rate.0);
        let mut goal = Goal::new(rate_bps, self.rtt);
        if let Some(streams) = self.streams {
            goal.streams = u32::from(streams.get());
        }
        goal.role = match self.role {
            RoleArg::Dtn => HostRole::Dtn,
            RoleArg::Test => HostRole::Test,
        };
        goal
    }

    fn case<'a>(&self, facts: &'a Facts) -> Result<Case<'a>, CommandFailure> {
        for name in &self.interfaces {
            if !facts.nics.iter().any(|nic| nic.name == *name) {
                let known: Vec<&str> = facts.nics.iter().map(|nic| nic.name.as_str()).collect();
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                return Err(anyhow!("there is no interface {name}: there are {known}"))
                    .or_exit(Code::Usage);
            }
        }
        Ok(Case::new(facts, self.goal(facts), &self.interfaces))
    }
}

/// Finds a rule by name.
fn rule(name: &str) -> anyhow::Result<&'static rules::Rule> {
    rules::named(name).ok_or_else(|| match meant(name).as_slice() {
        [] => anyhow!("no rule has this name: penstock host explain lists them"),
        near => anyhow!("no rule has this name: did you mean {}", near.join(", ")),
    })
}

const MEANT_MAX: usize = 5;

/// Rules with similar names, or about a setting of this name such as `tcp_rmem`.
fn meant(name: &str) -> Vec<&'static str> {
    let setting = name.rsplit('.').next().unwrap_or_default().to_ascii_lowercase();
    let folded = setting.replace('_', "-");
    let is_of_word = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    let mut near: Vec<(usize, &str)> = rules::all()
        .into_iter()
        .filter_map(|rule| {
            let far = strsim::levenshtein(&folded, rule.name);
            let words = [rule.reads, rule.wants].into_iter();
            let mut words = words.flat_map(|text| text.split(|c| !is_of_word(c)));
            let is_near = far <= rule.name.len() / 3;
            let is_part = !folded.is_empty() && rule.name.split('-').any(|part| part == folded);
            let is_about = !setting.is_empty() && words.any(|word| word == setting);
            (is_near || is_part || is_about).then_some((far, rule.name))
        })
        .collect();
    near.sort();
    near.into_iter().map(|(_, name)| name).take(MEANT_MAX).collect()
}

pub(crate) fn run(args: HostArgs) -> Result<Code, CommandFailure> {
    let json = args.json;
    match args.command {
        HostCommand::Check(args) => check::run(&args, json),
        HostCommand::Tune(args) => tune::run(&args, json),
        HostCommand::Restore => tune::restore(json),
        HostCommand::Explain(args) => explain::run(&args, json),
        HostCommand::Facts => print(&format!("{}\n", Facts::gather().to_json())),
        HostCommand::Guard(args) => tune::guard(&args),
        HostCommand::AtBoot { file } => tune::at_boot(&file),
    }
}

fn print(text: &str) -> Result<Code, CommandFailure> {
    use std::io::Write;
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(Code::Done)
}

/// Goal as one line of text.
fn goal_line(goal: &Goal) -> String {
    let streams =
        if goal.streams == 1 { "1 stream".to_owned() } else { format!("{} streams", goal.streams) };
    let rtt = penstock_units::display_latency(goal.rtt);
    format!("for {} over {rtt} in {streams}", BitRate(goal.rate_bps))
}

/// Goal as a JSON object.
fn goal_object(goal: &Goal) -> crate::json::host::GoalJson {
    crate::json::host::GoalJson {
        rate_bits_per_second: goal.rate_bps,
        rtt_seconds: goal.rtt.as_secs_f64(),
        streams: goal.streams,
        role: match goal.role {
            HostRole::Dtn => "dtn",
            HostRole::Test => "test",
        },
    }
}
