//! Setups of the HPCC simulator: a configuration and the files that it names.

use std::path::{Path, PathBuf};

use anyhow::anyhow;
use penstock_fabric::hpcc::{self, HpccFileError};
use penstock_fabric::{
    CongestionControl, FabricNetwork, FabricPort, FailureChange, FailurePart, FlowSpec, Marking,
    Parameters, Picoseconds, time,
};
use penstock_topology::Link;
use penstock_units::{BitRate, ByteCount};

use crate::exit::{Code, CommandFailure, OrExit, say};
use crate::topology::text_of;

/// Network, flows and parameters of a run.
#[derive(Debug)]
pub(crate) struct HpccSetup {
    pub(crate) network: FabricNetwork,
    pub(crate) parameters: Parameters,
    pub(crate) flows: Vec<FlowSpec>,
    pub(crate) until_ps: u64,
    /// Start and end of queue sampling, in nanoseconds.
    pub(crate) queue_times_ns: Option<(u64, u64)>,
    /// Failure of a link, if configured.
    pub(crate) changes: Vec<FailureChange>,
    /// Keys that have another meaning here, or none.
    pub(crate) notes: Vec<String>,
}

/// Reads a configuration and its files, at their paths or in its directory.
///
/// # Errors
/// Names file, line and reason.
pub(crate) fn read(config: &Path) -> Result<HpccSetup, CommandFailure> {
    let at = |file: &Path, fault: HpccFileError| {
        CommandFailure::new(Code::Usage, anyhow!("{}:{fault}", file.display()))
    };
    let read = hpcc::config(&text_of(config)?).map_err(|fault| at(config, fault))?;
    let topology_file = beside(config, &read.topology_file);
    let mut topology =
        hpcc::topology(&text_of(&topology_file)?).map_err(|fault| at(&topology_file, fault))?;
    for link in topology.links.iter_mut().filter(|link| link.loss == 0.0) {
        link.loss = read.loss;
    }
    let flow_file = beside(config, &read.flow_file);
    let flows = hpcc::flows(&text_of(&flow_file)?).map_err(|fault| at(&flow_file, fault))?;
    let changes = match read.link_down {
        None => Vec::new(),
        Some((at_ps, nodes)) => {
            let is_it = |link: &Link| {
                let ends = link.ends.each_ref().map(|end| end.node.0);
                ends == nodes || ends == [nodes[1], nodes[0]]
            };
            // Of parallel links the HPCC simulator uses the last.
            let link = topology.links.iter().rposition(is_it).ok_or_else(|| {
                let [a, b] = nodes;
                anyhow!("{}: LINK_DOWN: no link is between {a} and {b}", config.display())
            });
            let part = FailurePart::Link(link.or_exit(Code::Usage)? as u32);
            vec![FailureChange { at_ps, part, is_up: false }]
        }
    };
    let mut network = FabricNetwork::new(&topology).or_exit(Code::Usage)?;
    for port in &mut network.ports {
        let rate = port.line.bits_per_second();
        let found = read.marking.iter().find(|(of, ..)| *of == rate);
        if let Some((_, least_bytes, most_bytes, probability)) = found.copied() {
            port.marking = Some(Marking { least_bytes, most_bytes, probability });
        }
    }
    let mut notes: Vec<String> =
        read.notes.iter().map(|note| format!("{}:{note}", config.display())).collect();
    let mut parameters = read.parameters.clone();
    if let Some(longest) = hpcc::longest(&network, u64::from(parameters.mtu)) {
        if read.has_global_round_trip && longest.round_trip_ns > 0 {
            parameters.base_rtt =
                Some(Picoseconds(longest.round_trip_ns * time::PS_PER_NANOSECOND));
            parameters.window_bytes = Some(ByteCount(longest.bdp_bytes.max(1)));
        }
        let rates: Vec<u64> = topology.links.iter().map(|link| link.rate.0).collect();
        let more = read.telemetry_notes(&rates, longest.switches);
        notes.extend(more.iter().map(|note| format!("{}: {note}", config.display())));
    }
    notes.extend(unmarked(&network, &parameters).map(|rate| {
        let rate = BitRate(rate);
        format!(
            "{}: KMIN_MAP has no {rate}: ports of this rate mark by the defaults of ecn_kmin",
            config.display()
        )
    }));
    notes.iter().for_each(say);
    Ok(HpccSetup {
        network,
        parameters,
        notes,
        flows,
        until_ps: read.until_ps,
        queue_times_ns: read.queue_times_ns,
        changes,
    })
}

/// Rate of a marking switch port without thresholds in the configuration, if any.
fn unmarked(network: &FabricNetwork, parameters: &Parameters) -> Option<u64> {
    let marks = matches!(parameters.cc, CongestionControl::Dcqcn | CongestionControl::Dctcp);
    let is_without =
        |port: &&FabricPort| port.marking.is_none() && !network.nodes[port.node as usize].is_host;
    let found = network.ports.iter().find(is_without).filter(|_| parameters.ecn && marks);
    found.map(|port| port.line.bits_per_second())
}

fn beside(config: &Path, name: &str) -> PathBuf {
    let named = PathBuf::from(name);
    if named.exists() {
        return named;
    }
    let folder = config.parent().unwrap_or(Path::new("."));
    match named.file_name() {
        Some(file) => folder.join(file),
        None => named,
    }
}
