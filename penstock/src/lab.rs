//! `penstock lab`: a topology brought to life on this machine, changed while traffic runs, and gone without a trace.
//!
//! `up` starts a process that holds the lab; all other verbs ask it, by the socket in the lab's directory.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use penstock_agent::state;
use penstock_lab::control::{
    CircuitReport, ControlError, Directions, Ended, LinkReport, Measured, Request, Status, ask,
};
use penstock_lab::keeper;
use penstock_units::BitRate;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::exit::{Code, Failure, OrExit};
use crate::json::lab::{self as shown, Calibration, Down};

mod enter;
mod play;
mod show;
mod up;

pub(crate) use penstock_lab::contention::Contention;
pub(crate) use play::play;
pub(crate) use show::print;

/// Bring a topology to life on this machine: hosts and switches as network namespaces, links with rate, delay and loss
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
pub(crate) struct Args {
    /// Print one JSON object; docs/json.md has its fields
    #[arg(long, global = true)]
    json: bool,
    /// Which lab, where several are up
    #[arg(long = "lab", global = true, value_name = "NAME")]
    name: Option<String>,
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Make a lab of a topology
    Up(up::Args),
    #[command(hide = true)]
    Keep(up::KeepArgs),
    /// End a lab, with all that runs in it
    Down,
    /// Say how a lab is, or which there are
    Status,
    /// Run a program on a host or switch
    Exec(enter::ExecArgs),
    /// Change what a link does while traffic runs
    Set {
        /// The link
        link: String,
        /// As rate=10G delay=30ms jitter=1ms loss=0.1% loss_burst=5 queue=8MiB mark=1MiB, or none for no rate,
        /// the usual queue, no mark
        #[arg(required = true, value_name = "SETTING")]
        settings: Vec<String>,
        #[command(flatten)]
        way: Way,
    },
    /// Let nothing pass a link any more
    Cut {
        /// The link
        link: String,
        #[command(flatten)]
        way: Way,
    },
    /// Let it pass again, both ways
    Mend {
        /// The link
        link: String,
    },
    /// Send traffic between two hosts over these links, there and back
    Route {
        /// A host, or one interface of it as HOST-INTERFACE
        from: String,
        /// Another
        to: String,
        /// From the first to the second
        #[arg(required = true, value_name = "LINK")]
        links: Vec<String>,
    },
    /// Give packets between addresses of their own a part of links that nobody else has
    Circuit {
        /// Its name; one of this name that is there is moved
        #[arg(value_name = "NAME")]
        circuit: String,
        /// Of each link, such as 500M
        #[arg(long)]
        rate: BitRate,
        /// Hosts at its begin
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
    /// Measure what links really do
    Calibrate {
        /// Which; all without
        links: Vec<String>,
    },
    /// Play a scenario in a lab of its own and report what happened
    Run(play::RunArgs),
    /// Run tcpdump where a link ends
    Capture(enter::CaptureArgs),
}

#[derive(Debug, Clone, Copy, clap::Args)]
struct Way {
    /// Which way, seen from the first end of the link
    #[arg(long, value_enum, default_value_t = WayArg::Both)]
    way: WayArg,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum WayArg {
    /// Both
    Both,
    /// From the first end to the second
    Forward,
    /// From the second end to the first
    Back,
}

impl From<Way> for Directions {
    fn from(way: Way) -> Self {
        match way.way {
            WayArg::Both => Self::Both,
            WayArg::Forward => Self::Forward,
            WayArg::Back => Self::Back,
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<Code, Failure> {
    let labs = Labs::open()?;
    let change = |request: Request| {
        let report: LinkReport = labs.ask(args.name.as_deref(), &request)?;
        output(args.json, &report, show::link)
    };
    match &args.what {
        What::Up(up) => return up::run(up, &labs, args.name.as_deref(), args.json),
        What::Keep(keep) => return up::keep(keep),
        What::Run(play) => return play::run(play, &labs, args.name.as_deref(), args.json),
        What::Exec(exec) => return enter::exec(exec, &labs, args.name.as_deref()),
        What::Capture(capture) => return enter::capture(capture, &labs, args.name.as_deref()),
        What::Down => return down(args, &labs),
        What::Status => return status(args, &labs),
        What::Set { link, settings, way } => change(Request::Set {
            link: link.clone(),
            settings: settings.clone(),
            directions: (*way).into(),
        })?,
        What::Cut { link, way } => {
            change(Request::Cut { link: link.clone(), directions: (*way).into() })?;
        }
        What::Mend { link } => change(Request::Mend { link: link.clone() })?,
        What::Route { from, to, links } => {
            let (from, to, links) = (from.clone(), to.clone(), links.clone());
            let _: Value = labs.ask(args.name.as_deref(), &Request::Route { from, to, links })?;
        }
        What::Circuit { circuit, rate, from, to, links } => {
            let (name, rate_bps) = (circuit.clone(), rate.0);
            let (from, to, links) = (from.clone(), to.clone(), links.clone());
            let request = Request::Circuit { name, rate_bps, from, to, links };
            let report: CircuitReport = labs.ask(args.name.as_deref(), &request)?;
            output(args.json, &report, |one| show::circuits(std::slice::from_ref(one)))?;
        }
        What::Release { circuit } => {
            let request = Request::Release { name: circuit.clone() };
            let _: Value = labs.ask(args.name.as_deref(), &request)?;
        }
        What::Calibrate { links } => {
            let request = Request::Calibrate { links: links.clone() };
            let measured: Vec<Measured> = labs.ask(args.name.as_deref(), &request)?;
            output(args.json, &Calibration { links: measured }, |all| {
                show::calibration(&all.links)
            })?;
        }
    }
    Ok(Code::Done)
}

/// Ends a lab, or what one that died has left, and says what it was.
fn down(args: &Args, labs: &Labs) -> Result<Code, Failure> {
    let directory = match (labs.dead()?.as_slice(), args.name.as_deref()) {
        ([dead], None) if labs.all()?.is_empty() => dead.clone(),
        _ => labs.one(args.name.as_deref())?,
    };
    let name = Labs::name_of(&directory);
    if keeper::has_died(&directory)
        && let Some(ended) = keeper::end_dead(&directory).with_context(|| format!("lab {name}"))?
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
    let ended: Ended = labs.ask(Some(&name), &Request::Down)?;
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

fn status(args: &Args, labs: &Labs) -> Result<Code, Failure> {
    let (all, dead) = (labs.all()?, labs.dead()?);
    let names = |labs: &[PathBuf]| labs.iter().map(|one| Labs::name_of(one)).collect();
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
    let status: Status = labs.ask(args.name.as_deref(), &Request::Status)?;
    let object = shown::LabStatus { status: status.clone(), labs: names(&all), died: died.clone() };
    let others = if args.name.is_none() { notes() } else { String::new() };
    output(args.json, &object, |_| show::status(&status) + &others)?;
    Ok(Code::Done)
}

/// Of a lab whose holder was killed.
fn died_as(name: &str) -> String {
    format!("lab {name} died: penstock lab down --lab {name} ends what it left")
}

fn output<T: Serialize>(
    json: bool,
    value: &T,
    text: impl FnOnce(&T) -> String,
) -> Result<(), Failure> {
    let text = if json {
        let line = serde_json::to_string(value).map_err(anyhow::Error::from)?;
        format!("{line}\n")
    } else {
        text(value)
    };
    Ok(show::print(&text)?)
}

impl From<ControlError> for Failure {
    fn from(error: ControlError) -> Self {
        let code = match error {
            ControlError::Refused(_) => Code::Usage,
            ControlError::Down(_) | ControlError::Lost { .. } => Code::Failed,
        };
        Self::new(code, error)
    }
}

/// The directory in which each lab has one of its own.
#[derive(Debug)]
pub(crate) struct Labs(PathBuf);

impl Labs {
    pub(crate) fn open() -> Result<Self, Failure> {
        let state = state::default_directory().or_exit(Code::Usage)?;
        Ok(Self(state.join("labs")))
    }

    /// Of a lab that is or is to be.
    pub(crate) fn directory(&self, name: &str) -> Result<PathBuf, Failure> {
        let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.is_empty() || name.len() > 63 || name.starts_with('.') || !name.chars().all(good) {
            let name = name.escape_debug();
            let error = anyhow!("'{name}' is no name of a lab: write letters, digits, -, _ and .");
            return Err(Failure::new(Code::Usage, error));
        }
        Ok(self.0.join(name))
    }

    fn name_of(directory: &Path) -> String {
        directory.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Those that are up.
    fn all(&self) -> Result<Vec<PathBuf>, Failure> {
        self.those(keeper::is_up)
    }

    /// Those that died and may have left something.
    fn dead(&self) -> Result<Vec<PathBuf>, Failure> {
        self.those(keeper::has_died)
    }

    fn those(&self, which: impl Fn(&Path) -> bool) -> Result<Vec<PathBuf>, Failure> {
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

    /// The one that is meant.
    pub(crate) fn one(&self, name: Option<&str>) -> Result<PathBuf, Failure> {
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
                Err(Failure::new(Code::Usage, error))
            }
        }
    }

    pub(crate) fn ask<T: DeserializeOwned>(
        &self,
        name: Option<&str>,
        request: &Request,
    ) -> Result<T, Failure> {
        let directory = self.one(name)?;
        match ask(&directory, request) {
            Err(ControlError::Down(name)) if keeper::has_died(&directory) => {
                Err(anyhow!(died_as(&name)).into())
            }
            answer => Ok(answer?),
        }
    }

    /// Where a host keeps what it keeps, when asked.
    pub(crate) fn state_of(directory: &Path, node: &str) -> Result<PathBuf, Failure> {
        let path = directory.join("state").join(node);
        fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
        Ok(path)
    }
}
