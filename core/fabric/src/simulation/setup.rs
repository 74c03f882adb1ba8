//! Construction of a simulation: partitioning, numbering of ports and queue pairs, initial state of the regions.

use std::collections::HashMap;
use std::sync::Arc;

use super::coordinator::RunControl;
use super::deadlock::Deadlocks;
use super::host_tx::ReadyList;
use super::model::RunModel;
use super::partition::partition;
use super::port::{FarEnd, PortState};
use super::receiver::{QpReceiver, Released};
use super::region::{Mail, Region};
use super::sender::QpSender;
use super::shared_buffer::{Ingress, SharedBuffer};
use super::switch::PauseState;
use super::{
    Counts, FabricNetwork, FlowSpec, Parameters, RdmaOperation, Routes, RunDigest, SetupError,
    Simulation,
};
use crate::event::SimEvent;
use crate::packet::{Arena, NO_INDEX};
use crate::queue::EventQueue;
use penstock_random::Random;

/// Hosts per region at which its working set fits into a processor's caches; this saves more time than windows cost.
const HOSTS_PER_REGION: usize = 16;

/// Most ports of a region: each has eight events of a kind, by priority.
const PORTS_MAX: usize = SimEvent::ENTITY_MAX as usize / 8;

impl Simulation {
    /// Creates a simulation at time zero.
    ///
    /// # Errors
    /// Returns an error for invalid parameters, flows or buffer sizes.
    pub fn new(
        network: FabricNetwork,
        parameters: Parameters,
        flows: Vec<FlowSpec>,
    ) -> Result<Self, SetupError> {
        Self::divided(network, parameters, flows, 1)
    }

    /// Creates a simulation with about `regions` regions for parallel runs ([`Self::workers`]): more in large
    /// networks, fewer if the network cannot be partitioned accordingly. The number of regions does not affect
    /// results.
    ///
    /// # Errors
    /// Returns an error as [`Self::new`] does.
    pub fn divided(
        network: FabricNetwork,
        parameters: Parameters,
        flows: Vec<FlowSpec>,
        regions: usize,
    ) -> Result<Self, SetupError> {
        let mut model = RunModel::new(network, parameters, flows)?;
        let routes = model.routes(|_| true);
        let mut seeds = Random::stream(model.parameters.seed, "hash", 0);
        let hashes: Vec<u32> = model.flows.iter().map(|_| seeds.next_bits() as u32).collect();
        model.base_rtt_ps = model.find_base_rtt(&routes, &hashes)?;

        let regions = regions.max(model.network.hosts().count() / HOSTS_PER_REGION);
        model.owners = partition(&model.network, |port| model.lookahead_ps(port), regions);
        let count = model.owners.iter().max().map_or(1, |most| *most as usize + 1);
        let ports = model.network.ports.len() as u32;
        let crosses = |port: &u32| {
            let peer = model.network.ports[*port as usize].peer;
            model.owner(*port) != model.owner(peer)
        };
        let cut_lookahead_ps =
            (0..ports).filter(crosses).map(|port| model.lookahead_ps(port)).min();
        let scan_interval_ps = match model.parameters.deadlock_check.0 {
            0 => u64::MAX,
            interval => interval,
        };
        let lookahead_ps = if count == 1 {
            u64::MAX
        } else {
            cut_lookahead_ps.unwrap_or(u64::MAX).min(scan_interval_ps)
        };
        let drain_ps = (0..ports).map(|port| model.lookahead_ps(port)).max().unwrap_or(0);

        let port_ids: Vec<Vec<u32>> =
            (0..count as u32).map(|region| list_ports(&model, region)).collect();
        // For each port: its number in its own region, and in the region where its link ends.
        let mut local_ports = vec![NO_INDEX; ports as usize];
        let mut remote_ports = vec![NO_INDEX; ports as usize];
        for (region, port_ids) in port_ids.iter().enumerate() {
            for (local, port) in port_ids.iter().enumerate() {
                let is_own = model.owner(*port) as usize == region;
                let of = if is_own { &mut local_ports } else { &mut remote_ports };
                of[*port as usize] = local as u32;
            }
        }
        model.local_ports = local_ports;
        let (senders, receivers) = create_endpoints(&mut model, &hashes, count);
        let model = Arc::new(model);
        let routes = Arc::new(routes);
        let mut regions = Vec::with_capacity(count);
        for (((number, port_ids), senders), receivers) in
            port_ids.into_iter().enumerate().zip(senders).zip(receivers)
        {
            let mut region = Region::new(&model, &routes, number as u32, port_ids, &remote_ports)?;
            region.drain_ps = if count == 1 { drain_ps } else { u64::MAX };
            region.outbox.resize_with(count, Mail::default);
            region.inbox.resize_with(count, Mail::default);
            region.set_flows(senders, receivers);
            regions.push(region);
        }
        let control = RunControl {
            now_ps: 0,
            changes: Vec::new(),
            next_change: 0,
            links_down: vec![false; model.network.links.len()],
            switches_down: vec![false; model.network.nodes.len()],
            deadlocks: Deadlocks::new(model.parameters.deadlock_check.0),
            counts: Counts::default(),
            digest: RunDigest::default(),
            lookahead_ps: lookahead_ps.max(1),
            drain_ps,
            pause_records: Vec::new(),
        };
        Ok(Self { model, control, regions })
    }

    /// Returns the longest base RTT of all flows: a full packet and its acknowledgement without queueing, in
    /// picoseconds.
    #[must_use]
    pub fn base_rtt_ps(&self) -> u64 {
        self.model.base_rtt_ps
    }
}

/// Returns the ports of a region and the foreign ports whose links end there, in the order of the network.
fn list_ports(model: &RunModel, region: u32) -> Vec<u32> {
    let peer = |port: u32| model.network.ports[port as usize].peer;
    (0..model.network.ports.len() as u32)
        .filter(|port| model.owner(*port) == region || model.owner(peer(*port)) == region)
        .collect()
}

/// Creates the senders and receivers of each region in the order of the flows, and records their numbers in the model.
fn create_endpoints(
    model: &mut RunModel,
    hashes: &[u32],
    regions: usize,
) -> (Vec<Vec<QpSender>>, Vec<Vec<QpReceiver>>) {
    let mut senders: Vec<Vec<QpSender>> = (0..regions).map(|_| Vec::new()).collect();
    let mut receivers: Vec<Vec<QpReceiver>> = (0..regions).map(|_| Vec::new()).collect();
    let mut ends = Vec::with_capacity(model.flows.len());
    for (number, (flow, hash)) in model.flows.iter().zip(hashes).enumerate() {
        let (from, to) = flow.data_endpoints();
        let senders = &mut senders[model.owners[from as usize] as usize];
        let receivers = &mut receivers[model.owners[to as usize] as usize];
        let mut sender = QpSender::new(number as u32, flow, &model.parameters, *hash);
        let mut receiver = QpReceiver::new(number as u32, flow, &model.parameters, *hash);
        sender.receiver = receivers.len() as u32;
        receiver.sender = senders.len() as u32;
        ends.push([receiver.sender, sender.receiver]);
        senders.push(sender);
        receivers.push(receiver);
    }
    for (number, flow) in model.flows.iter().enumerate() {
        let Some(other) = flow.released_by else { continue };
        let [sender, receiver] = ends[number];
        let released = if flow.operation == RdmaOperation::Read {
            Released::Receiver(receiver)
        } else {
            Released::Sender(sender)
        };
        // The releasing flow arrives at the host of the requester that it releases.
        let region = model.owners[flow.from as usize] as usize;
        receivers[region][ends[other as usize][1] as usize].releases = Some(released);
    }
    model.ends = ends;
    (senders, receivers)
}

impl Region {
    /// Creates a region with ports and switches, without flows.
    ///
    /// # Errors
    /// Returns an error if a switch buffer is smaller than the reserves and headroom of its ports.
    fn new(
        model: &Arc<RunModel>,
        routes: &Arc<Routes>,
        number: u32,
        port_ids: Vec<u32>,
        remote_ports: &[u32],
    ) -> Result<Self, SetupError> {
        let count = port_ids.len();
        assert!(
            count <= PORTS_MAX,
            "a region has {count} ports, and at most {PORTS_MAX} are possible"
        );
        let mut ports = Vec::with_capacity(count);
        let mut far_ends = Vec::with_capacity(count);
        for id in &port_ids {
            let peer = model.network.ports[*id as usize].peer;
            let (is_own, ends_here) = (model.owner(*id) == number, model.owner(peer) == number);
            let number_of = if ends_here { &model.local_ports } else { remote_ports };
            let far =
                (is_own && !ends_here).then(|| (model.owner(peer), remote_ports[*id as usize]));
            ports.push(PortState::new(model, *id, far));
            let node = model.network.ports[peer as usize].node;
            let port = number_of[peer as usize];
            far_ends.push(FarEnd { id: *id, port, node, is_host: model.is_host(node) });
        }
        let account = |id: &u32| Ingress { headroom: model.headroom(*id), ..Ingress::default() };
        let ingress = std::array::from_fn(|_| port_ids.iter().map(account).collect());
        let nothing = SharedBuffer { buffer: 0, shared: 0, shared_used: 0, used: 0, used_max: 0 };
        let mut memories = vec![nothing; model.network.nodes.len()];
        for (node, of) in model.network.nodes.iter().enumerate() {
            if model.owners[node] == number && !of.is_host && !of.ports.is_empty() {
                let (buffer, shared) = model.memory(node as u32)?;
                memories[node] = SharedBuffer { buffer, shared, ..nothing };
            }
        }
        Ok(Self {
            number,
            model: Arc::clone(model),
            routes: Arc::clone(routes),
            now_ps: 0,
            end_ps: 0,
            events: EventQueue::default(),
            packets: Arena::default(),
            telemetry: Arena::default(),
            ports,
            port_ids,
            far_ends,
            ingress,
            pause_states: vec![PauseState::NEVER; count],
            ready: vec![[ReadyList::EMPTY; 8]; count],
            memories,
            senders: Vec::new(),
            receivers: Vec::new(),
            starts: Vec::new(),
            next_start: 0,
            active: 0,
            ended_ps: 0,
            drain_ps: u64::MAX,
            flowlets: HashMap::new(),
            has_scan_scheduled: false,
            scan_from_ps: None,
            counts: Counts::default(),
            digest: RunDigest::default(),
            pause_records: None,
            samples: None,
            outbox: Vec::new(),
            inbox: Vec::new(),
            arrivals: Vec::new(),
            mail_due_ps: u64::MAX,
        })
    }

    /// Sets the senders and receivers of the region, and schedules its first flow.
    fn set_flows(&mut self, senders: Vec<QpSender>, receivers: Vec<QpReceiver>) {
        let flows = &self.model.flows;
        let asks = |flow: &u32, is_read: bool| {
            (flows[*flow as usize].operation == RdmaOperation::Read) == is_read
        };
        let mut starts: Vec<u32> = senders.iter().map(|sender| sender.flow).collect();
        starts.retain(|flow| asks(flow, false));
        let readers = receivers.iter().map(|receiver| receiver.flow);
        starts.extend(readers.filter(|flow| asks(flow, true)));
        starts.sort_by_key(|flow| (flows[*flow as usize].start_ps, *flow));
        self.active = starts.len() as u64;
        (self.starts, self.senders, self.receivers) = (starts, senders, receivers);
        self.schedule_next_start();
    }
}
