//! `penstock disk export`: a disk of the kernel's target, until a signal ends it, or of an agent until `disk remove`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use penstock_agent::http::disks::DiskExportBody;
use penstock_disk::DEFAULT_PORT;
use penstock_disk::export::{AdmittedHost, ExportRequest, ExportStore};
use penstock_disk::nvme::nqn;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::{DiskTransport, agent, directory, failed, print, read_secret};
use crate::exit::{Code, CommandFailure, say};
use crate::json::disk::ExportedDisk;

#[derive(Debug, clap::Args)]
pub(crate) struct ExportArgs {
    /// File or block device; hosts can write it
    #[arg(value_name = "FILE|DEVICE")]
    path: PathBuf,
    /// Qualified names of the hosts that may connect: penstock disk list prints that of a host
    #[arg(long, value_name = "HOSTNQN", required = true, num_args = 1.., value_delimiter = ',', value_parser = host_name)]
    to: Vec<String>,
    /// Name of the disk, or an NQN [default: the name of the file without its ending]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Transport
    #[arg(long, value_enum, default_value_t = DiskTransport::Tcp)]
    transport: DiskTransport,
    /// Addresses to listen on, each a path to the disk; with rdma those of RDMA devices [default: every IPv4 address]
    #[arg(long, value_name = "ADDR", value_delimiter = ',')]
    address: Vec<IpAddr>,
    /// Port to listen on
    #[arg(long, value_name = "PORT", default_value_t = DEFAULT_PORT, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// File with a secret that the hosts need (DH-HMAC-CHAP): penstock disk secret makes one
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// Let an agent, by its HTTP API [default port: 8621], export its file or device, below a path that its operator allows
    /// ([disks] allow), until penstock disk remove; needs penstock login
    #[arg(long, value_name = "AGENT", conflicts_with_all = ["address", "port", "secret_file"])]
    at: Option<String>,
}

/// Checked before all else: a mistyped name needs no kernel to be found.
fn host_name(text: &str) -> Result<String, nqn::NqnError> {
    nqn::checked(text).map(str::to_owned)
}

pub(super) fn run(args: &ExportArgs, json: bool) -> Result<Code, CommandFailure> {
    let name = args.name.clone().unwrap_or_else(|| {
        args.path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
    });
    nqn::of_disk(&name).map_err(|error| failed(error.into()))?;
    if let Some(address) = &args.at {
        return export_at(address, &name, args, json);
    }
    let secret = args.secret_file.as_deref().map(read_secret).transpose()?;
    let mut addresses = args.address.clone();
    if addresses.is_empty() {
        addresses.push(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    }
    addresses.sort();
    addresses.dedup();
    // Before the first object is made: a signal then removes them all.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let admitted = |nqn: &String| AdmittedHost { nqn: nqn.clone(), secret: secret.clone() };
    let request = ExportRequest {
        name,
        path: args.path.clone(),
        hosts: args.to.iter().map(admitted).collect(),
        transport: args.transport.into(),
        listens: addresses.into_iter().map(|ip| SocketAddr::new(ip, args.port)).collect(),
    };
    let store = ExportStore::open(&directory()?).map_err(failed)?;
    let removed = store.remove_ended().map_err(failed)?;
    for nqn in &removed {
        say(format!("removed {nqn}, whose process was killed"));
    }
    let export = store.export(&request).map_err(failed)?;
    let record = export.record().clone();
    let listens: Vec<String> = record.listens.iter().map(ToString::to_string).collect();
    let shown = if json {
        crate::json::print(&ExportedDisk {
            nqn: record.nqn,
            path: record.path.display().to_string(),
            transport: record.transport,
            listens,
            hosts: record.hosts,
            has_secret: record.has_secret,
            removed,
        })
        .map_err(CommandFailure::from)
        .map(|()| Code::Done)
    } else {
        let hosts = penstock_units::display_count(record.hosts.len() as u64, "host");
        let secret = if record.has_secret { " with a secret" } else { "" };
        print(&format!(
            "exporting {} as {} on {} over {} to {hosts}{secret}; Ctrl-C ends it\n",
            record.path.display(),
            record.nqn,
            listens.join(" and "),
            record.transport
        ))
    };
    if shown.is_ok() {
        signals.forever().next();
    }
    export.remove().map_err(failed)?;
    shown
}

fn export_at(
    address: &str,
    name: &str,
    args: &ExportArgs,
    json: bool,
) -> Result<Code, CommandFailure> {
    let path = args.path.display().to_string();
    let (hosts, transport) = (args.to.clone(), args.transport.into());
    let body = DiskExportBody { path: path.clone(), hosts, transport };
    let disk = agent::export(address, name, &body)?;
    if json {
        crate::json::print(&ExportedDisk {
            nqn: disk.nqn,
            path,
            transport,
            listens: disk.listens,
            hosts: disk.hosts,
            has_secret: disk.has_secret,
            removed: Vec::new(),
        })?;
        return Ok(Code::Done);
    }
    let hosts = penstock_units::display_count(disk.hosts.len() as u64, "host");
    let secrets = match disk.has_secret {
        true => "; each has a secret of its own, which penstock disk connect --agent learns",
        false => "",
    };
    print(&format!(
        "the agent exports {path} as {} on {} over {transport} to {hosts}{secrets}\n",
        disk.nqn,
        disk.listens.join(" and ")
    ))
}
