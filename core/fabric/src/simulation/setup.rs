//! From a network, parameters and flows to a simulation at time zero.

use std::collections::HashMap;
use std::sync::Arc;

use super::control::Control;
use super::deadlock::Deadlocks;
use super::memory::{Ingress, Memory};
use super::model::Model;
use super::partitioning::partition;
use super::port::Port;
use super::receiver::{Receiver, Released};
use super::region::{Mail, Region};
use super::sender::Sender;
use super::sending::Line;
use super::switch::Held;
use super::{Counts, Digest, Flow, Network, Operation, Parameters, Routes, SetupError, Simulation};
use crate::packet::{Arena, NO_INDEX};
use crate::queue::EventQueue;
use crate::random::Random;

/// Hosts of a region: its working set fits into a processor's caches, which saves more time than the windows cost.
const HOSTS_PER_REGION: usize = 16;

impl Simulation {
    /// A simulation at time zero.
    ///
    /// # Errors
    /// When parameters, flows or buffers are what cannot be.
    pub fn new(
        network: Network,
        parameters: Parameters,
        flows: Vec<Flow>,
    ) -> Result<Self, SetupError> {
        Self::divided(network, parameters, flows, 1)
    }

    /// The same in so many regions, on which several threads can work ([`Self::workers`]), or in more where the network is
    /// large, or in fewer where it cannot be divided so. The number of regions changes nothing that happens.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn divided(
        network: Network,
        parameters: Parameters,
        flows: Vec<Flow>,
        regions: usize,
    ) -> Result<Self, SetupError> {
        let mut model = Model::new(network, parameters, flows)?;
        let routes = model.routes(|_| true);
        let mut seeds = Random::new(model.parameters.seed, "hash", 0);
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
        let across_ps = (0..ports).filter(crosses).map(|port| model.lookahead_ps(port)).min();
        let looks_ps = match model.parameters.deadlock_check.0 {
            0 => u64::MAX,
            interval => interval,
        };
        let lookahead_ps =
            if count == 1 { u64::MAX } else { across_ps.unwrap_or(u64::MAX).min(looks_ps) };
        let drain_ps = (0..ports).map(|port| model.lookahead_ps(port)).max().unwrap_or(0);

        let names: Vec<Vec<u32>> = (0..count as u32).map(|region| names(&model, region)).collect();
        // Of each port: its number in its own region, and in that where its link ends.
        let mut places = vec![NO_INDEX; ports as usize];
        let mut ends_as = vec![NO_INDEX; ports as usize];
        for (region, names) in names.iter().enumerate() {
            for (place, port) in names.iter().enumerate() {
                let is_own = model.owner(*port) as usize == region;
                let of = if is_own { &mut places } else { &mut ends_as };
                of[*port as usize] = place as u32;
            }
        }
        model.places = places;
        let (senders, receivers) = ends(&mut model, &hashes, count);
        let model = Arc::new(model);
        let routes = Arc::new(routes);
        let mut regions = Vec::with_capacity(count);
        for (((number, names), senders), receivers) in
            names.into_iter().enumerate().zip(senders).zip(receivers)
        {
            let mut region = Region::new(&model, &routes, number as u32, names, &ends_as)?;
            region.drain_ps = if count == 1 { drain_ps } else { u64::MAX };
            region.outbox.resize_with(count, Mail::default);
            region.inbox.resize_with(count, Mail::default);
            region.set_flows(senders, receivers);
            regions.push(region);
        }
        let control = Control {
            now_ps: 0,
            changes: Vec::new(),
            next_change: 0,
            links_down: vec![false; model.network.links.len()],
            switches_down: vec![false; model.network.nodes.len()],
            deadlocks: Deadlocks::new(model.parameters.deadlock_check.0),
            counts: Counts::default(),
            digest: Digest::default(),
            lookahead_ps: lookahead_ps.max(1),
            drain_ps,
            pause_records: Vec::new(),
        };
        Ok(Self { model, control, regions })
    }

    /// The longest round trip of a full packet and its acknowledgement, without queues, among all flows.
    #[must_use]
    pub fn base_rtt_ps(&self) -> u64 {
        self.model.base_rtt_ps
    }
}

/// The ports of a region and those whose links end at them, in the order of the network.
fn names(model: &Model, region: u32) -> Vec<u32> {
    let peer = |port: u32| model.network.ports[port as usize].peer;
    (0..model.network.ports.len() as u32)
        .filter(|port| model.owner(*port) == region || model.owner(peer(*port)) == region)
        .collect()
}

/// Senders and receivers of each region, in the order of the flows, which are told where theirs are.
fn ends(
    model: &mut Model,
    hashes: &[u32],
    regions: usize,
) -> (Vec<Vec<Sender>>, Vec<Vec<Receiver>>) {
    let mut senders: Vec<Vec<Sender>> = (0..regions).map(|_| Vec::new()).collect();
    let mut receivers: Vec<Vec<Receiver>> = (0..regions).map(|_| Vec::new()).collect();
    let mut ends = Vec::with_capacity(model.flows.len());
    for (number, (flow, hash)) in model.flows.iter().zip(hashes).enumerate() {
        let (from, to) = flow.data_way();
        let senders = &mut senders[model.owners[from as usize] as usize];
        let receivers = &mut receivers[model.owners[to as usize] as usize];
        let mut sender = Sender::new(number as u32, flow, &model.parameters, *hash);
        let mut receiver = Receiver::new(number as u32, flow, &model.parameters, *hash);
        sender.receiver = receivers.len() as u32;
        receiver.sender = senders.len() as u32;
        ends.push([receiver.sender, sender.receiver]);
        senders.push(sender);
        receivers.push(receiver);
    }
    for (number, flow) in model.flows.iter().enumerate() {
        let Some(other) = flow.released_by else { continue };
        let [sender, receiver] = ends[number];
        let released = if flow.operation == Operation::Read {
            Released::Receiver(receiver)
        } else {
            Released::Sender(sender)
        };
        // It arrives at the host of who is released.
        let region = model.owners[flow.from as usize] as usize;
        receivers[region][ends[other as usize][1] as usize].releases = Some(released);
    }
    model.ends = ends;
    (senders, receivers)
}

impl Region {
    /// A region with these ports and nothing to move.
    ///
    /// # Errors
    /// When a switch has less memory than its ports need.
    fn new(
        model: &Arc<Model>,
        routes: &Arc<Routes>,
        number: u32,
        names: Vec<u32>,
        ends_as: &[u32],
    ) -> Result<Self, SetupError> {
        let count = names.len();
        let mut ports = Vec::with_capacity(count);
        let mut ingress = vec![[Ingress::default(); 8]; count];
        for (place, id) in names.iter().enumerate() {
            let peer = model.network.ports[*id as usize].peer;
            let (is_own, ends_here) = (model.owner(*id) == number, model.owner(peer) == number);
            let number_of = if ends_here { &model.places } else { ends_as };
            let far = (is_own && !ends_here).then(|| (model.owner(peer), ends_as[*id as usize]));
            ports.push(Port::new(model, *id, number_of[peer as usize], far));
            for account in &mut ingress[place] {
                account.headroom = model.headroom(*id);
            }
        }
        let nothing = Memory { buffer: 0, shared: 0, shared_used: 0, used: 0, used_max: 0 };
        let mut memories = vec![nothing; model.network.nodes.len()];
        for (node, of) in model.network.nodes.iter().enumerate() {
            if model.owners[node] == number && !of.is_host && !of.ports.is_empty() {
                let (buffer, shared) = model.memory(node as u32)?;
                memories[node] = Memory { buffer, shared, ..nothing };
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
            names,
            ingress,
            held: vec![Held::NEVER; count],
            ready: vec![[Line::EMPTY; 8]; count],
            memories,
            senders: Vec::new(),
            receivers: Vec::new(),
            starts: Vec::new(),
            next_start: 0,
            active: 0,
            over_ps: 0,
            drain_ps: u64::MAX,
            flowlets: HashMap::new(),
            is_watched: false,
            look_from_ps: None,
            counts: Counts::default(),
            digest: Digest::default(),
            pause_records: None,
            samples: None,
            outbox: Vec::new(),
            inbox: Vec::new(),
            mail_due_ps: u64::MAX,
        })
    }

    /// Gives it what its hosts send and receive.
    fn set_flows(&mut self, senders: Vec<Sender>, receivers: Vec<Receiver>) {
        let flows = &self.model.flows;
        let asks = |flow: &u32, is_read: bool| {
            (flows[*flow as usize].operation == Operation::Read) == is_read
        };
        let mut starts: Vec<u32> = senders.iter().map(|sender| sender.flow).collect();
        starts.retain(|flow| asks(flow, false));
        let readers = receivers.iter().map(|receiver| receiver.flow);
        starts.extend(readers.filter(|flow| asks(flow, true)));
        starts.sort_by_key(|flow| (flows[*flow as usize].start_ps, *flow));
        self.active = starts.len() as u64;
        (self.starts, self.senders, self.receivers) = (starts, senders, receivers);
        self.expect_start();
    }
}
