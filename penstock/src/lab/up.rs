//! `penstock lab up`: starts the supervisor of a lab, and reports how accurate its links are.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, anyhow};
use penstock_lab::Backend;
use penstock_lab::control::{LabRequest, MeasuredLink, RunningLab, ask};
use penstock_lab::plan::LabPlan;
use penstock_lab::supervisor::Supervisor;
use penstock_sys::event::EventFd;
use penstock_sys::{machine, namespace};
use penstock_topology::{Scale, Topology};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::{LabDirectories, show};
use crate::exit::{Code, CommandFailure, OrExit, say};
use crate::json::lab::Up;
use crate::topology::{TopologyArgs, text_of};

/// Most links of a lab that `up` calibrates.
const CALIBRATED_MAX: usize = 24;

#[derive(Debug, clap::Args)]
pub(crate) struct LabUpArgs {
    #[command(flatten)]
    input: TopologyArgs,
    /// Emulator of the links
    #[arg(long, value_enum, default_value_t = BackendArg::Auto)]
    backend: BackendArg,
    /// Seed of losses and jitter: equal seeds lose the same packets
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Do not measure the links
    #[arg(long)]
    no_calibration: bool,
}

/// Arguments of the supervisor process, which reads its topology from standard input.
#[derive(Debug, clap::Args)]
pub(crate) struct KeepArgs {
    directory: PathBuf,
    #[command(flatten)]
    input: TopologyArgs,
    #[arg(long, value_enum, default_value_t = BackendArg::Auto)]
    backend: BackendArg,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// End when the starting process ends
    #[arg(long)]
    with_parent: bool,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum BackendArg {
    /// The first that this machine supports, in this order
    Auto,
    /// Packets wait in the kernel for a verdict
    Nfqueue,
    /// This program forwards the frames: losses hit single segments of super-packets
    Tap,
    /// The kernel's own emulator
    Netem,
}

impl BackendArg {
    const fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Nfqueue => "nfqueue",
            Self::Tap => "tap",
            Self::Netem => "netem",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        [Self::Auto, Self::Nfqueue, Self::Tap, Self::Netem]
            .into_iter()
            .find(|choice| choice.word() == name)
    }

    fn backend(self) -> Result<Backend, CommandFailure> {
        let (candidates, remedy): (&[Backend], _) = match self {
            Self::Auto => (&[Backend::Nfqueue, Backend::Netem, Backend::Tap], ""),
            Self::Nfqueue => (&[Backend::Nfqueue], "; --backend auto takes what there is"),
            Self::Tap => (&[Backend::Tap], "; --backend auto takes what there is"),
            Self::Netem => (&[Backend::Netem], "; --backend auto takes what there is"),
        };
        let mut why = Vec::new();
        for backend in candidates {
            match backend.probe() {
                Ok(()) => return Ok(*backend),
                Err(error) => why.push(format!("{backend}: {error}")),
            }
        }
        Err(anyhow!("this machine cannot emulate links: {}{remedy}", why.join("; ")).into())
    }
}

pub(crate) fn run(
    args: &LabUpArgs,
    labs: &LabDirectories,
    name: Option<&str>,
    json: bool,
) -> Result<Code, CommandFailure> {
    let text = text_of(&args.input.file)?;
    let topology = args.input.parse(&text)?;
    let directory = labs.directory(name.unwrap_or(&topology.name))?;
    let status = start(args.input.scale, args.backend, args.seed, &directory, &text, false)?;
    let few = topology.links.len() <= CALIBRATED_MAX;
    let measured: Vec<MeasuredLink> = if args.no_calibration || !few {
        Vec::new()
    } else {
        ask(&directory, &LabRequest::Calibrate { links: Vec::new() })?
    };
    if json {
        crate::json::print(&Up { lab: status, calibration: measured })?;
        return Ok(Code::Done);
    }
    show::print(&show::began(&status))?;
    show::print(&show::calibration(&measured))?;
    if !args.no_calibration && !few {
        let count = topology.links.len();
        say(format!("{count} links were not measured: penstock lab calibrate LINK..."));
    }
    Ok(Code::Done)
}

/// Starts the supervisor of a lab and waits until the lab is up. With `with_me` it ends when this thread does.
pub(crate) fn start(
    scale: Scale,
    backend: BackendArg,
    seed: u64,
    directory: &Path,
    text: &str,
    with_me: bool,
) -> Result<RunningLab, CommandFailure> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut supervisor = Command::new(program)
        .args(["lab", "keep"])
        .arg(directory)
        .args(["-", "--scale", &scale.factor().to_string()])
        .args(["--backend", backend.word(), "--seed", &seed.to_string()])
        .args(with_me.then_some("--with-parent"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        // Ctrl-C must only reach this command.
        .process_group(0)
        .spawn()
        .context("cannot start the process that holds the lab")?;
    let mut stdin = supervisor.stdin.take().context("no way to the process that holds the lab")?;
    // If it has ended, its answer says why.
    let _ = stdin.write_all(text.as_bytes());
    drop(stdin);
    let stdout = supervisor.stdout.take().context("no way from the process that holds the lab")?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line).context("the process that holds the lab")?;
    // A line that is no object is the reason for which there is no lab.
    if !line.starts_with('{') {
        let ended = supervisor.wait().context("the process that holds the lab")?;
        let code =
            if ended.code() == Some(Code::Usage as i32) { Code::Usage } else { Code::Failed };
        let error = match line.trim_end() {
            "" => anyhow!("the process that holds the lab ended: {ended}"),
            reason => anyhow!("{reason}"),
        };
        return Err(CommandFailure::new(code, error));
    }
    // Reap the child, so that many labs leave no zombies.
    std::thread::spawn(move || supervisor.wait());
    serde_json::from_str(&line)
        .context("the process that holds the lab")
        .map_err(CommandFailure::from)
}

/// Holds a lab until it ends. The first line of standard output is its status, or the reason for which it does not begin.
pub(crate) fn keep(args: &KeepArgs) -> Result<Code, CommandFailure> {
    let (supervisor, stop) = match begin(args) {
        Ok(began) => began,
        Err(failure) => {
            show::print(&format!("{}\n", failure.line()))?;
            return Ok(failure.code());
        }
    };
    let status = supervisor.status().map_err(anyhow::Error::from)?;
    let line = serde_json::to_string(&status).map_err(anyhow::Error::from)?;
    show::print(&format!("{line}\n"))?;
    detach(&args.directory)?;
    supervisor.run(&stop)?;
    Ok(Code::Done)
}

/// Builds a lab, and the event that ends it.
fn begin(args: &KeepArgs) -> Result<(Supervisor, Arc<EventFd>), CommandFailure> {
    if args.with_parent {
        machine::end_with_parent().context("cannot end with the process that began it")?;
    }
    let topology: Topology = args.input.read()?;
    let plan = LabPlan::new(topology).or_exit(Code::Usage)?;
    let mut user_namespace = None;
    if !machine::is_superuser() {
        namespace::unshare_user_namespace().map_err(|error| {
            let why = format!("{error}; run it as root, or allow unprivileged user namespaces");
            anyhow!("a lab needs network namespaces, and this user may not make them: {why}")
        })?;
        user_namespace = Some(format!("/proc/{}/ns/user", std::process::id()).into());
    }
    let stop = Arc::new(EventFd::new()?);
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot receive signals")?;
    std::thread::spawn({
        let stop = Arc::clone(&stop);
        move || {
            for signal in signals.forever() {
                // The starting terminal may close.
                if signal != SIGHUP {
                    let _ = stop.signal();
                }
            }
        }
    });
    let backend = args.backend.backend()?;
    let supervisor = Supervisor::start(&args.directory, plan, backend, args.seed, user_namespace)
        .map_err(anyhow::Error::from)?;
    Ok((supervisor, stop))
}

/// Redirects output to the log in the lab's directory.
fn detach(directory: &Path) -> Result<(), CommandFailure> {
    let log = directory.join("log");
    let file = std::fs::File::create(&log).with_context(|| log.display().to_string())?;
    machine::redirect_output(&file).context("cannot redirect output")?;
    Ok(())
}
