//! `penstock lab exec` and `capture`: programs inside a lab.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, anyhow};
use penstock_lab::control::{NodeStatus, Request, Status};
use penstock_lab::keeper::LAB_VARIABLE;
use penstock_sys::namespace::{self, NetworkNamespace};

use super::Labs;
use crate::exit::{Code, Failure};

/// The variable by which programs in a lab know where they are.
const HOST_VARIABLE: &str = "PENSTOCK_LAB_HOST";

#[derive(Debug, clap::Args)]
pub(crate) struct ExecArgs {
    /// The host or switch
    host: String,
    /// Give Penstock in there a state directory of the host's own
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
    /// At which end: a host or switch; the second end without
    #[arg(long, value_name = "NODE")]
    at: Option<String>,
    /// What tcpdump is to do, as -w FILE or a filter
    #[arg(last = true, value_name = "TCPDUMP")]
    more: Vec<OsString>,
}

pub(crate) fn exec(args: &ExecArgs, labs: &Labs, name: Option<&str>) -> Result<Code, Failure> {
    let directory = labs.one(name)?;
    let status: Status = labs.ask(name, &Request::Status)?;
    let node = node(&status, &args.host)?;
    let [program, arguments @ ..] = &args.command[..] else {
        return Err(Failure::new(Code::Usage, anyhow!("which program?")));
    };
    let mut command = Command::new(program);
    command.args(arguments);
    if args.state {
        command.env("PENSTOCK_STATE", Labs::state_of(&directory, &node.name)?);
    }
    replace(&directory, &status, node, command)
}

pub(crate) fn capture(
    args: &CaptureArgs,
    labs: &Labs,
    name: Option<&str>,
) -> Result<Code, Failure> {
    let directory = labs.one(name)?;
    let status: Status = labs.ask(name, &Request::Status)?;
    let ends = status.nodes.iter().flat_map(|node| {
        node.interfaces.iter().filter(|port| port.link == args.link).map(move |port| (node, port))
    });
    let ends: Vec<_> = ends.collect();
    if ends.is_empty() {
        let links: Vec<&str> =
            status.links.iter().take(12).map(|link| link.name.as_str()).collect();
        let error = anyhow!("there is no link {:?}: there are {}", args.link, links.join(", "));
        return Err(Failure::new(Code::Usage, error));
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
        return Err(Failure::new(Code::Usage, error));
    };
    let mut command = Command::new("tcpdump");
    command.args(["-i", &port.device]).args(&args.more);
    replace(&directory, &status, node, command)
}

fn node<'a>(status: &'a Status, name: &str) -> Result<&'a NodeStatus, Failure> {
    status.nodes.iter().find(|node| node.name == name).ok_or_else(|| {
        let all: Vec<&str> = status.nodes.iter().take(12).map(|node| node.name.as_str()).collect();
        let name = name.escape_debug();
        let error = anyhow!("there is no host or switch '{name}': there are {}", all.join(", "));
        Failure::new(Code::Usage, error)
    })
}

/// This process goes into the lab and becomes the program.
fn replace(
    directory: &Path,
    status: &Status,
    node: &NodeStatus,
    mut command: Command,
) -> Result<Code, Failure> {
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
    // As a shell says it: a program's own code can be told from these.
    let code = match error.kind() {
        io::ErrorKind::NotFound => Code::NoProgram,
        _ => Code::NotRunnable,
    };
    Err(Failure::new(code, anyhow!("cannot run {program}: {error}")))
}
