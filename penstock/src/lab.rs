//! `penstock lab`: emulates a topology on this machine; links change while traffic runs, and `down` removes everything.
//!
//! `up` starts the lab's supervisor; all other verbs send requests to it by the socket in the lab's directory.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use penstock_daemon::state;
use penstock_lab::control::{
    CircuitReport, ControlError, Directions, LabRequest, LinkReport, MeasuredLink, RunningLab,
    ShutdownReport, ask,
};
use penstock_lab::supervisor;
use penstock_units::BitRate;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::exit::{Code, CommandFailure, OrExit};
use crate::json::lab::{self as shown, CalibrationJson, Down};

mod enter;
mod play;
mod show;
mod up;

pub(crate) use penstock_lab::contention::Contention;
pub(crate) use play::play;
pub(crate) use show::print;

/// Emulate a topology on this machine: hosts and switches as network namespaces, links with rate, delay and loss
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Links are made by the kernel's packet queues (nfqueue): payload stays in the kernel, super-packets stay whole. \
What every link really does is measured when the lab is up. docs/lab.md tells more.

Examples:
  penstock lab up experiments/topologies/sc14.toml --scale 1/10
  penstock lab exec umich -- penstock nettest --listen '[::]:5201' &
  penstock lab exec r920 -- penstock nettest '[umich]:5201' --time 10
  penstock lab set wan delay=90ms loss=0.01%
  penstock lab cut wan; penstock lab mend wan
  penstock lab circuit c1 --rate 500M --from r920 --to umich wan
  penstock lab capture wan -- -c 100 tcp
  penstock lab status
  penstock lab down")]
pub(crate) struct LabArgs {
    /// Print one JSON object; docs/json.md has its fields
    #[arg(long, global = true)]
    json: bool,
    /// Name of the lab, if several are up
    #[arg(long = "lab", global = true, value_name = "NAME")]
    name: Option<String>,
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Debug, clap::Subcommand)]
enum LabCommand {
    /// Start a lab from a topology
    Up(up::LabUpArgs),
    #[command(hide = true)]
    Keep(up::KeepArgs),
    /// End a lab and all processes in it
    Down,
    /// Show the state of a lab, or list labs
    Status,
    /// Run a program on a host or switch
    Exec(enter::ExecArgs),
    /// Change a link while traffic runs
    Set {
        /// The link
        link: String,
        /// Settings such as rate=10G delay=30ms jitter=1ms loss=0.1% loss_burst=5 queue=8MiB mark=1MiB; none means no
        /// rate limit, the default queue, no marks
        #[arg(required = true, value_name = "SETTING")]
        settings: Vec<String>,
        #[command(flatten)]
        way: DirectionArgs,
    },
    /// Cut a link: it drops all packets
    Cut {
        /// The link
        link: String,
        #[command(flatten)]
        way: DirectionArgs,
    },
    /// Restore a cut link, in both directions
    Mend {
        /// The link
        link: String,
    },
    /// Send traffic between two hosts over these links, there and back
    Route {
        /// A host, or one interface of it as HOST-INTERFACE
        from: String,
        /// Another host or interface
        to: String,
        /// Links from the first to the second
        #[arg(required = true, value_name = "LINK")]
        links: Vec<String>,
    },
    /// Reserve a share of links for packets between dedicated addresses
    Circuit {
        /// Its name; an existing circuit of this name is moved
        #[arg(value_name = "NAME")]
        circuit: String,
        /// Rate on each link, such as 500M
        #[arg(long)]
        rate: BitRate,
        /// Hosts at its beginning
        #[arg(long, value_name = "HOST", value_delimiter = ',', required = true)]
        from: Vec<String>,
        /// Hosts at its end
        #[arg(long, value_name = "HOST", value_delimiter = ',', required = true)]
        to: Vec<String>,
        /// Links between their switches
        #[arg(required = true, value_name = "LINK")]
        links: Vec<String>,
    },
    /// End a circuit
    Release {
        /// Its name
        #[arg(value_name = "NAME")]
        circuit: String,
    },
    /// Measure the emulated links
    Calibrate {
        /// Links to measure; all if none is given
        links: Vec<String>,
    },
    /// Play a scenario in its own lab and report the results
    Run(play::RunArgs),
    /// Run tcpdump where a link ends
    Capture(enter::CaptureArgs),
}

#[derive(Debug, Clone, Copy, clap::Args)]
struct DirectionArgs {
    /// Direction, seen from the first end of the link
    #[arg(long, value_enum, default_value_t = DirectionArg::Both)]
    way: DirectionArg,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum DirectionArg {
    /// Both directions
    Both,
    /// From the first end to the second
    Forward,
    /// From the second end to the first
    Back,
}

impl From<DirectionArgs> for Directions {
    fn from(way: DirectionArgs) -> Self {
        match way.way {
            DirectionArg::Both => Self::Both,
            DirectionArg::Forward => Self::Forward,
            DirectionArg::Back => Self::Back,
        }
    }
}

pub(crate) fn run(args: &LabArgs) -> Result<Code, CommandFailure> {
    let labs = LabDirectories::open()?;
    let change = |request: LabRequest| {
        let report: LinkReport = labs.ask(args.name.as_deref(), &request)?;
        output(args.json, &report, show::link)
    };
    match &args.command {
        LabCommand::Up(up) => return up::run(up, &labs, args.name.as_deref(), args.json),
        LabCommand::Keep(keep) => return up::keep(keep),
        LabCommand::Run(play) => return play::run(play, &labs, args.name.as_deref(), args.json),
        LabCommand::Exec(exec) => return enter::exec(exec, &labs, args.name.as_deref()),
        LabCommand::Capture(capture) => {
            return enter::capture(capture, &labs, args.name.as_deref());
        }
        LabCommand::Down => return down(args, &labs),
        LabCommand::Status => return status(args, &labs),
        LabCommand::Set { link, settings, way } => change(LabRequest::Set {
            link: link.clone(),
            settings: settings.clone(),
            directions: (*way).into(),
        })?,
        LabCommand::Cut { link, way } => {
            change(LabRequest::Cut { link: link.clone(), directions: (*way).into() })?;
        }
        LabCommand::Mend { link } => change(LabRequest::Mend { link: link.clone() })?,
        LabCommand::Route { from, to, links } => {
            let (from, to, links) = (from.clone(), to.clone(), links.clone());
            let _: Value =
                labs.ask(args.name.as_deref(), &LabRequest::Route { from, to, links })?;
        }
        LabCommand::Circuit { circuit, rate, from, to, links } => {
            let (name, rate_bps) = (circuit.clone(), rate.0);
            let (from, to, links) = (from.clone(), to.clone(), links.clone());
            let request = LabRequest::Circuit { name, rate_bps, from, to, links };
            let report: CircuitReport = labs.ask(args.name.as_deref(), &request)?;
            output(args.json, &report, |one| show::circuits(std::slice::from_ref(one)))?;
        }
        LabCommand::Release { circuit } => {
            // A release is no error to the lab, so that programs can repeat it.
            let known: Vec<CircuitReport> =
                labs.ask(args.name.as_deref(), &LabRequest::Circuits)?;
            if known.iter().all(|one| one.name != *circuit) {
                let names: Vec<_> = known.into_iter().map(|one| one.name).collect();
                let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                let why = anyhow!("no circuit is called {circuit}; there are: {names}");
                return Err(CommandFailure::new(Code::Failed, why));
            }
            let request = LabRequest::Release { name: circuit.clone() };
            let _: Value = labs.ask(args.name.as_deref(), &request)?;
        }
        LabCommand::Calibrate { links } => {
            let request = LabRequest::Calibrate { links: links.clone() };
            let measured: Vec<MeasuredLink> = labs.ask(args.name.as_deref(), &request)?;
            output(args.json, &CalibrationJson { links: measured }, |all| {
                show::calibration(&all.links)
            })?;
        }
    }
    Ok(Code::Done)
}

/// Ends a lab, or removes what a crashed one has left, and prints a summary.
fn down(args: &LabArgs, labs: &LabDirectories) -> Result<Code, CommandFailure> {
    let directory = match (labs.dead()?.as_slice(), args.name.as_deref()) {
        ([dead], None) if labs.all()?.is_empty() => dead.clone(),
        _ => labs.one(args.name.as_deref())?,
    };
    let name = LabDirectories::name_of(&directory);
    if supervisor::has_died(&directory)
        && let Some(ended) =
            supervisor::kill_leftovers(&directory).with_context(|| format!("lab {name}"))?
    {
        let removed = Down {
            down: name.clone(),
            died: true,
            hosts: None,
            switches: None,
            links: None,
            processes_ended: ended,
        };
        output(args.json, &removed, |_| {
            let left = match ended {
                0 => "nothing of it still ran".to_owned(),
                _ => format!(
                    "{} that still ran in it ended",
                    show::count(ended, "process", "processes")
                ),
            };
            format!("lab {name} had died: {left}; its record is removed\n")
        })?;
        return Ok(Code::Done);
    }
    let ended: ShutdownReport = labs.ask(Some(&name), &LabRequest::Down)?;
    let removed = Down {
        down: name.clone(),
        died: false,
        hosts: Some(ended.hosts),
        switches: Some(ended.switches),
        links: Some(ended.links),
        processes_ended: ended.processes,
    };
    output(args.json, &removed, |_| show::ended(&name, &ended))?;
    Ok(Code::Done)
}

fn status(args: &LabArgs, labs: &LabDirectories) -> Result<Code, CommandFailure> {
    let (all, dead) = (labs.all()?, labs.dead()?);
    let names = |labs: &[PathBuf]| labs.iter().map(|one| LabDirectories::name_of(one)).collect();
    let died: Vec<String> = names(&dead);
    let notes = || died.iter().map(|name| format!("{}\n", died_as(name))).collect::<String>();
    if args.name.is_none() && all.len() != 1 {
        let up: Vec<String> = names(&all);
        let labs = shown::Labs { labs: up, died: died.clone() };
        output(args.json, &labs, |shown::Labs { labs: up, .. }| {
            let text = match up.len() {
                0 => "no lab is up: penstock lab up FILE\n".to_owned(),
                _ => up.iter().map(|name| format!("{name}\n")).collect(),
            };
            text + &notes()
        })?;
        return Ok(Code::Done);
    }
    let status: RunningLab = labs.ask(args.name.as_deref(), &LabRequest::Status)?;
    let object = shown::LabStatus { status: status.clone(), labs: names(&all), died: died.clone() };
    let others = if args.name.is_none() { notes() } else { String::new() };
    output(args.json, &object, |_| show::status(&status) + &others)?;
    Ok(Code::Done)
}

/// Message about a lab whose supervisor was killed.
fn died_as(name: &str) -> String {
    format!("lab {name} died: penstock lab down --lab {name} ends what it left")
}

fn output<T: Serialize>(
    json: bool,
    value: &T,
    text: impl FnOnce(&T) -> String,
) -> Result<(), CommandFailure> {
    let text = if json {
        let line = serde_json::to_string(value).map_err(anyhow::Error::from)?;
        format!("{line}\n")
    } else {
        text(value)
    };
    Ok(show::print(&text)?)
}

impl From<ControlError> for CommandFailure {
    fn from(error: ControlError) -> Self {
        let code = match error {
            ControlError::Refused { .. } => Code::Usage,
            ControlError::Down(_) | ControlError::Ending | ControlError::Lost { .. } => {
                Code::Failed
            }
        };
        Self::new(code, error)
    }
}

/// Directory with a subdirectory for each lab.
#[derive(Debug)]
pub(crate) struct LabDirectories(PathBuf);

impl LabDirectories {
    pub(crate) fn open() -> Result<Self, CommandFailure> {
        let state = state::default_directory().or_exit(Code::Usage)?;
        Ok(Self(state.join("labs")))
    }

    /// Directory of a lab, existing or not.
    pub(crate) fn directory(&self, name: &str) -> Result<PathBuf, CommandFailure> {
        let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.is_empty() || name.len() > 63 || name.starts_with('.') || !name.chars().all(good) {
            let name = name.escape_debug();
            let error = anyhow!("'{name}' is no name of a lab: write letters, digits, -, _ and .");
            return Err(CommandFailure::new(Code::Usage, error));
        }
        Ok(self.0.join(name))
    }

    fn name_of(directory: &Path) -> String {
        directory.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Directories of running labs.
    fn all(&self) -> Result<Vec<PathBuf>, CommandFailure> {
        self.those(supervisor::is_up)
    }

    /// Directories of crashed labs, which may have left namespaces.
    fn dead(&self) -> Result<Vec<PathBuf>, CommandFailure> {
        self.those(supervisor::has_died)
    }

    fn those(&self, which: impl Fn(&Path) -> bool) -> Result<Vec<PathBuf>, CommandFailure> {
        let entries = match fs::read_dir(&self.0) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => {
                let path = self.0.display().to_string();
                return Err(anyhow::Error::from(error).context(path).into());
            }
        };
        let found = entries.flatten().map(|entry| entry.path());
        let mut found: Vec<PathBuf> = found.filter(|path| which(path)).collect();
        found.sort();
        Ok(found)
    }

    /// Directory of the named lab, or of the only one.
    pub(crate) fn one(&self, name: Option<&str>) -> Result<PathBuf, CommandFailure> {
        if let Some(name) = name {
            return self.directory(name);
        }
        let all = self.all()?;
        match &all[..] {
            [one] => Ok(one.clone()),
            [] => {
                let died = self.dead()?;
                let died = died.iter().map(|one| format!("; {}", died_as(&Self::name_of(one))));
                let died: String = died.collect();
                Err(anyhow!("no lab is up: penstock lab up FILE{died}").into())
            }
            several => {
                let names: Vec<String> = several.iter().map(|one| Self::name_of(one)).collect();
                let error =
                    anyhow!("several labs are up: say which with --lab: {}", names.join(", "));
                Err(CommandFailure::new(Code::Usage, error))
            }
        }
    }

    pub(crate) fn ask<T: DeserializeOwned>(
        &self,
        name: Option<&str>,
        request: &LabRequest,
    ) -> Result<T, CommandFailure> {
        let directory = self.one(name)?;
        match ask(&directory, request) {
            Err(ControlError::Down(name)) if supervisor::has_died(&directory) => {
                Err(anyhow!(died_as(&name)).into())
            }
            answer => Ok(answer?),
        }
    }

    /// State directory of a host for `exec --state`.
    pub(crate) fn state_of(directory: &Path, node: &str) -> Result<PathBuf, CommandFailure> {
        let path = directory.join("state").join(node);
        fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
        Ok(path)
    }
}
