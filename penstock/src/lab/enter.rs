//! `penstock lab exec` and `capture`: programs inside a lab.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, anyhow};
use penstock_lab::control::{LabRequest, NodeStatus, RunningLab};
use penstock_lab::supervisor::LAB_VARIABLE;
use penstock_sys::namespace::{self, NetworkNamespace};

use super::LabDirectories;
use crate::exit::{Code, CommandFailure};

/// Environment variable with the host's name for programs in a lab.
const HOST_VARIABLE: &str = "PENSTOCK_LAB_HOST";

#[derive(Debug, clap::Args)]
pub(crate) struct ExecArgs {
    /// The host or switch
    host: String,
    /// Give Penstock in the lab a state directory for this host
    #[arg(long)]
    state: bool,
    /// The program and its arguments
    #[arg(required = true, last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CaptureArgs {
    /// The link
    link: String,
    /// End of the link: a host or switch [default: the second end]
    #[arg(long, value_name = "NODE")]
    at: Option<String>,
    /// Arguments of tcpdump, such as -w FILE or a filter
    #[arg(last = true, value_name = "TCPDUMP")]
    more: Vec<OsString>,
}

pub(crate) fn exec(
    args: &ExecArgs,
    labs: &LabDirectories,
    name: Option<&str>,
) -> Result<Code, CommandFailure> {
    let directory = labs.one(name)?;
    let status: RunningLab = labs.ask(name, &LabRequest::Status)?;
    let node = node(&status, &args.host)?;
    let [program, arguments @ ..] = &args.command[..] else {
        return Err(CommandFailure::new(Code::Usage, anyhow!("which program?")));
    };
    let mut command = Command::new(program);
    command.args(arguments);
    if args.state {
        command.env("PENSTOCK_STATE", LabDirectories::state_of(&directory, &node.name)?);
    }
    replace(&directory, &status, node, command)
}

pub(crate) fn capture(
    args: &CaptureArgs,
    labs: &LabDirectories,
    name: Option<&str>,
) -> Result<Code, CommandFailure> {
    let directory = labs.one(name)?;
    let status: RunningLab = labs.ask(name, &LabRequest::Status)?;
    let ends = status.nodes.iter().flat_map(|node| {
        node.interfaces.iter().filter(|port| port.link == args.link).map(move |port| (node, port))
    });
    let ends: Vec<_> = ends.collect();
    if ends.is_empty() {
        let links: Vec<&str> =
            status.links.iter().take(12).map(|link| link.name.as_str()).collect();
        let error = anyhow!("there is no link {:?}: there are {}", args.link, links.join(", "));
        return Err(CommandFailure::new(Code::Usage, error));
    }
    let found = match &args.at {
        Some(at) => ends.iter().find(|(node, _)| node.name == *at),
        None => ends.iter().find(|(node, _)| {
            let link = status.links.iter().find(|link| link.name == args.link);
            link.is_some_and(|link| link.directions[0].to == node.name)
        }),
    };
    let Some((node, port)) = found else {
        let names: Vec<&str> = ends.iter().map(|(node, _)| node.name.as_str()).collect();
        let error = anyhow!("link {} ends at {}", args.link, names.join(" and "));
        return Err(CommandFailure::new(Code::Usage, error));
    };
    let mut command = Command::new("tcpdump");
    command.args(["-i", &port.device]).args(&args.more);
    replace(&directory, &status, node, command)
}

fn node<'a>(status: &'a RunningLab, name: &str) -> Result<&'a NodeStatus, CommandFailure> {
    status.nodes.iter().find(|node| node.name == name).ok_or_else(|| {
        let all: Vec<&str> = status.nodes.iter().take(12).map(|node| node.name.as_str()).collect();
        let name = name.escape_debug();
        let error = anyhow!("there is no host or switch '{name}': there are {}", all.join(", "));
        CommandFailure::new(Code::Usage, error)
    })
}

/// Enters the lab's namespaces and executes the program in place of this process.
fn replace(
    directory: &Path,
    status: &RunningLab,
    node: &NodeStatus,
    mut command: Command,
) -> Result<Code, CommandFailure> {
    if let Some(user) = &status.user_namespace {
        namespace::enter_user_namespace(user)
            .with_context(|| format!("cannot enter {}", user.display()))?;
    }
    let inside = || format!("cannot enter {} ({})", node.name, node.namespace.display());
    NetworkNamespace::at(&node.namespace).and_then(|one| one.enter()).with_context(inside)?;
    namespace::unshare_mounts().context("cannot give it mounts of its own")?;
    namespace::bind_mount(&directory.join("hosts"), Path::new("/etc/hosts"))
        .context("cannot mount the lab's /etc/hosts")?;
    if let Err(error) = namespace::mount_sys() {
        tracing::debug!("/sys shows the devices of the machine: {error}");
    }
    command.env(LAB_VARIABLE, directory).env(HOST_VARIABLE, &node.name);
    let program = command.get_program().to_string_lossy().into_owned();
    let error = command.exec();
    // Exit codes 126 and 127, as a shell's.
    let code = match error.kind() {
        io::ErrorKind::NotFound => Code::NoProgram,
        _ => Code::NotRunnable,
    };
    Err(CommandFailure::new(code, anyhow!("cannot run {program}: {error}")))
}
