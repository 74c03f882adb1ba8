//! `penstock disk connect`, `list`, `disconnect` and `check`: disks of the kernel's host.

use std::fmt::Write as _;

use anyhow::anyhow;
use penstock_disk::check::{CheckedPart, host_parts, remote_parts, target_parts};
use penstock_disk::export::ExportStore;
use penstock_disk::fabrics::{self, ConnectedDisk, FabricsParams};
use penstock_disk::nvme::nqn;
use penstock_disk::{DiskLocation, FabricsTransport, NvmeHostIdentity};

use super::{
    DepthArgs, DiskHostArgs, DiskTarget, DiskTransport, directory, failed, location, print,
};
use crate::exit::{Code, CommandFailure};
use crate::json::disk::{DisconnectedDisks, DiskCheckJson, DiskListJson, ListedExport};
use crate::table::table;

#[derive(Debug, clap::Args)]
pub(crate) struct ConnectArgs {
    /// The disk: HOST/NAME, HOST:PORT/NAME, [ADDRESS]:PORT/NAME; NAME is that of an export, or an NQN
    #[arg(value_name = "SOURCE", value_parser = location)]
    source: DiskLocation,
    /// Transport; with --agent that which the agent states
    #[arg(long, value_enum, default_value_t = DiskTransport::Tcp)]
    transport: DiskTransport,
    /// Queues [default: one for each processor, which is also the most]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    queues: Option<u16>,
    /// Commands of each queue [default: 128]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(16..=1024))]
    depth: Option<u16>,
    #[command(flatten)]
    host: DiskHostArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DisconnectArgs {
    /// The disk: HOST/NAME, the name of an export, an NQN, or nvmeN; `all` for every remote disk
    #[arg(value_name = "DISK")]
    disk: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CheckDiskArgs {
    /// The disk; without it what export and connect need on this host
    #[arg(value_name = "SOURCE", value_parser = location)]
    source: Option<DiskLocation>,
    /// Transport; with rdma only what this host lacks
    #[arg(long, value_enum, default_value_t = DiskTransport::Tcp)]
    transport: DiskTransport,
    #[command(flatten)]
    depth: DepthArgs,
    #[command(flatten)]
    host: DiskHostArgs,
}

pub(super) fn run(args: &ConnectArgs, json: bool) -> Result<Code, CommandFailure> {
    let DiskTarget { location, host, transport } =
        args.host.target(&args.source, args.transport.into())?;
    let params = FabricsParams { transport, queues: args.queues, depth: args.depth };
    let disk = fabrics::connect(&location, &host, params).map_err(failed)?;
    if json {
        crate::json::print(&disk)?;
        return Ok(Code::Done);
    }
    print(&table(&[row(&disk)]))
}

fn row(disk: &ConnectedDisk) -> Vec<String> {
    vec![
        disk.controller.clone(),
        disk.devices.join(" "),
        disk.state.clone(),
        disk.transport.clone(),
        disk.address.clone(),
        disk.nqn.clone(),
    ]
}

pub(super) fn list(json: bool) -> Result<Code, CommandFailure> {
    let host_nqn = NvmeHostIdentity::of_machine().nqn;
    let directory = directory()?;
    // A host that never exported has no directory.
    let records = match directory.exists() {
        true => ExportStore::open(&directory).and_then(|store| store.list()).map_err(failed)?,
        false => Vec::new(),
    };
    let exports: Vec<ListedExport> = records
        .into_iter()
        .map(|(record, running)| ListedExport {
            nqn: record.nqn,
            path: record.path.display().to_string(),
            transport: record.transport,
            listens: record.listens.iter().map(ToString::to_string).collect(),
            hosts: record.hosts,
            has_secret: record.has_secret,
            running,
        })
        .collect();
    let connected = fabrics::list();
    if json {
        crate::json::print(&DiskListJson { host_nqn, exports, connected })?;
        return Ok(Code::Done);
    }
    let mut text = format!("this host is {host_nqn}\n");
    for export in &exports {
        let state = if export.running { "exported" } else { "left over" };
        let (listens, path) = (export.listens.join(" "), &export.path);
        let _ = writeln!(text, "{state}  {}  {}  {listens}  {path}", export.nqn, export.transport);
    }
    let rows: Vec<Vec<String>> = connected.iter().map(row).collect();
    text += &table(&rows);
    print(&text)
}

pub(super) fn disconnect(args: &DisconnectArgs, json: bool) -> Result<Code, CommandFailure> {
    let wanted = args.disk.as_str();
    let location: Option<DiskLocation> = wanted.parse().ok();
    let name = nqn::of_disk(wanted).ok();
    let mut disks = fabrics::list();
    disks.retain(|disk| {
        let at_place = || {
            location.as_ref().is_some_and(|location| {
                let address = location.address().ok();
                disk.nqn == location.nqn
                    && address.is_some_and(|address| {
                        let ip = format!("traddr={},", address.ip());
                        let port = format!("trsvcid={}", address.port());
                        let parts = format!("{},", disk.address);
                        parts.contains(&ip) && parts.contains(&format!("{port},"))
                    })
            })
        };
        wanted == "all"
            || disk.controller == wanted
            || name.as_deref() == Some(disk.nqn.as_str())
            || at_place()
    });
    if disks.is_empty() && wanted != "all" {
        let why = anyhow!("no connected disk is {wanted}: penstock disk list shows them");
        return Err(CommandFailure::new(Code::Failed, why));
    }
    for disk in &disks {
        fabrics::disconnect(disk).map_err(failed)?;
    }
    if json {
        crate::json::print(&DisconnectedDisks { disconnected: disks })?;
        return Ok(Code::Done);
    }
    let lines: String = disks
        .iter()
        .map(|disk| format!("disconnected {} ({})\n", disk.controller, disk.nqn))
        .collect();
    print(&lines)
}

pub(super) fn check(args: &CheckDiskArgs, json: bool) -> Result<Code, CommandFailure> {
    let transport = FabricsTransport::from(args.transport);
    let host_nqn = args.host.host()?.identity.nqn;
    let parts = match &args.source {
        Some(_) if transport == FabricsTransport::Rdma => {
            let why = anyhow!(
                "a remote disk is checked over TCP alone: leave out --transport, or the disk"
            );
            return Err(CommandFailure::new(Code::Usage, why));
        }
        Some(source) => {
            let DiskTarget { location, host, .. } =
                args.host.target(source, transport)?.over_tcp()?;
            let rate_bps = args.depth.rate_bps(&location, &host);
            remote_parts(&location, &host, rate_bps, args.depth.size)
        }
        None => [target_parts(transport, true), host_parts(transport)].concat(),
    };
    let ok = parts.iter().all(|part| part.ok);
    let code = if ok { Code::Done } else { Code::Failed };
    if json {
        crate::json::print(&DiskCheckJson { host_nqn, ok, parts })?;
        return Ok(code);
    }
    let row = |part: &CheckedPart| {
        let verdict = if part.ok { "ok" } else { "MISSING" };
        vec![verdict.to_owned(), part.part.to_owned(), part.object.clone(), part.detail.clone()]
    };
    let rows: Vec<Vec<String>> = parts.iter().map(row).collect();
    print(&format!("this host is {host_nqn}\n{}", table(&rows)))?;
    Ok(code)
}
