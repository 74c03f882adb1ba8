//! From a network, parameters and flows to a simulation at time zero.

use std::collections::HashMap;

use super::{
    Arena, CongestionControl, Counts, Deadlocks, Digest, Event, EventQueue, Flow, Held, Ingress,
    Kind, Line, Marking, Memory, Network, Operation, Pair, Parameters, Port, Random, Routes,
    SetupError, Simulation, Thresholds, Wire, mix, needs,
};
use crate::parameters::{Recovery, Routing};
use crate::time::NANOSECOND;

/// Buffer of a switch for each 50 Gb/s of its fastest port (HPCC simulator, run.py).
const BUFFER_PER_50G: u64 = 16 << 20;
/// Acknowledgement time-outs count in this unit (InfiniBand 9.7.6.1.3).
const TIMEOUT_UNIT_NS: u64 = 4096;
/// More flows, ports or packets have no number.
const FLOWS_MAX: usize = 1 << 24;

/// What a node adds to hashes.
pub(super) const fn salt(routing: Routing, seed: u64, node: u32) -> u32 {
    match routing {
        Routing::EcmpPolarised => mix(seed) as u32,
        _ => mix(seed ^ (node as u64) << 20) as u32,
    }
}

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
        parameters.check().map_err(SetupError::Parameters)?;
        let needs = needs(parameters.cc);
        let telemetry = if needs.telemetry { parameters.telemetry_bytes } else { 0 };
        let wire = Wire::new(&parameters, telemetry);
        let routes =
            Routes::new(&network, |_| true, |node| salt(parameters.routing, parameters.seed, node));
        let data = flows
            .iter()
            .map(|flow| flow.priority.unwrap_or(parameters.priority).min(7))
            .fold(1_u8 << parameters.priority, |all, priority| all | 1 << priority);
        let lossless = match (parameters.pfc, parameters.ack_priority) {
            _ if needs.tcp => 0,
            (false, _) => 0,
            (true, None) => data,
            (true, Some(priority)) => data | 1 << priority,
        };
        let strict = (0..8)
            .filter(|priority| parameters.weights[*priority] == 0)
            .fold(0_u8, |all, priority| all | 1 << priority);
        let nodes = network.nodes.len();
        let count = network.ports.len();
        let mut simulation = Self {
            ports: (0..count as u32).map(|id| Port::new(&network, id, parameters.seed)).collect(),
            ingress: vec![[Ingress::default(); 8]; count],
            held: vec![Held::NEVER; count],
            ready: vec![[Line::EMPTY; 8]; count],
            memories: vec![
                Memory { buffer: 0, shared: 0, shared_used: 0, used: 0, used_max: 0 };
                nodes
            ],
            thresholds: Thresholds::new(&parameters),
            longest_frame: wire.longest(parameters.mtu),
            timeout_ps: match parameters.timeout_exponent {
                0 => 0,
                exponent => (TIMEOUT_UNIT_NS * NANOSECOND) << exponent,
            },
            base_rtt_ps: 0,
            now_ps: 0,
            events: EventQueue::default(),
            packets: Arena::default(),
            telemetry: Arena::default(),
            pairs: Vec::with_capacity(flows.len()),
            order: (0..flows.len() as u32).collect(),
            next_start: 0,
            active: flows.len() as u64,
            flowlets: HashMap::new(),
            changes: Vec::new(),
            next_change: 0,
            links_down: vec![false; network.links.len()],
            switches_down: vec![false; nodes],
            deadlocks: Deadlocks::new(parameters.deadlock_check.0),
            counts: Counts::default(),
            digest: Digest(parameters.seed),
            pause_records: None,
            samples: None,
            network,
            routes,
            wire,
            needs,
            recovers_selectively: needs.tcp || parameters.recovery == Recovery::Selective,
            lossless,
            strict,
            flows,
            parameters,
        };
        simulation.set_ports();
        simulation.set_memories()?;
        simulation.set_flows()?;
        Ok(simulation)
    }

    fn set_ports(&mut self) {
        let latency = [self.parameters.switch_latency.0, self.parameters.nic_latency.0];
        for id in 0..self.ports.len() {
            let peer_is_host = self.ports[self.ports[id].peer as usize].is_host;
            let marking = self.marking(id);
            let port = &mut self.ports[id];
            port.delay_ps += latency[usize::from(peer_is_host)];
            port.pause_delay_ps += self.parameters.pfc_response.0;
            port.marking = marking;
        }
    }

    /// From which queue on a port marks: what is given, what the link says, or what the congestion control wants.
    fn marking(&self, port: usize) -> Option<Marking> {
        let parameters = &self.parameters;
        if self.ports[port].is_host {
            return None;
        }
        if let (None, Some(marking)) = (parameters.ecn_kmin, self.network.ports[port].marking) {
            return Some(marking);
        }
        if !self.needs.marks && parameters.ecn_kmin.is_none() {
            return None;
        }
        let (least, most, probability) = match parameters.cc {
            CongestionControl::Dctcp => (3_000, 3_000, 1.0),
            _ => (4_000, 16_000, 0.2),
        };
        let bits_per_second = u128::from(self.ports[port].line.bits_per_second());
        let scaled = |bytes: u128| (bytes * bits_per_second / 1_000_000_000) as u64;
        let least_bytes = parameters.ecn_kmin.map_or(scaled(least), |bytes| bytes.0);
        let most_bytes = parameters.ecn_kmax.map_or(scaled(most), |bytes| bytes.0);
        Some(Marking {
            least_bytes,
            most_bytes: most_bytes.max(least_bytes),
            probability: parameters.ecn_pmax.unwrap_or(probability),
        })
    }

    fn set_memories(&mut self) -> Result<(), SetupError> {
        for (id, node) in self.network.nodes.iter().enumerate() {
            if node.is_host || node.ports.is_empty() {
                continue;
            }
            let range = node.ports.start as usize..node.ports.end as usize;
            let host_bps = self.fastest(id, true).or_else(|| self.fastest_host());
            let usual = BUFFER_PER_50G as u128 * u128::from(host_bps.unwrap_or(0)) / 50_000_000_000;
            let given = self.parameters.buffer.map(|buffer| buffer.0).or(node.buffer_bytes);
            let buffer = given.unwrap_or((usual as u64).max(1 << 20));
            let mut own = 0;
            let classes = u64::from(self.lossless.count_ones());
            for port in range {
                let headroom = self.headroom(port);
                own += classes * (u64::from(headroom) + self.thresholds.reserve());
                for account in &mut self.ingress[port] {
                    account.headroom = headroom;
                }
            }
            if own >= buffer {
                let switch = node.name.clone();
                return Err(SetupError::Buffer { switch, buffer, needed: own });
            }
            let shared = buffer - own;
            self.memories[id] = Memory { buffer, shared, shared_used: 0, used: 0, used_max: 0 };
        }
        Ok(())
    }

    /// Rate of the fastest port of a switch, or of those to hosts alone.
    fn fastest(&self, node: usize, hosts_alone: bool) -> Option<u64> {
        let ports = &self.ports[self.network.nodes[node].ports.start as usize
            ..self.network.nodes[node].ports.end as usize];
        ports
            .iter()
            .filter(|port| !hosts_alone || self.ports[port.peer as usize].is_host)
            .map(|port| port.line.bits_per_second())
            .max()
    }

    fn fastest_host(&self) -> Option<u64> {
        self.network.hosts().filter_map(|host| self.fastest(host as usize, false)).max()
    }

    /// Memory for what comes by a port after its other end was told to pause: a frame that was the first over the
    /// threshold, one before which the pause had to wait, one that had begun when the pause arrived, and what is on
    /// the line and in the pipeline meanwhile.
    fn headroom(&self, port: usize) -> u32 {
        if let Some(headroom) = self.parameters.pfc_headroom {
            return u32::try_from(headroom.0).unwrap_or(u32::MAX);
        }
        let network = &self.network.ports[port];
        let delays_ps = 2 * network.delay_ps
            + self.parameters.pfc_response.0
            + self.parameters.switch_latency.0;
        let bits = u128::from(network.line.bits_per_second()) * u128::from(delays_ps);
        let under_way = (bits.div_ceil(8 * 1_000_000_000_000)) as u64;
        let frames = 3 * (self.longest_frame + self.wire.around_frame);
        let pause = self.wire.pause + self.wire.around_frame;
        u32::try_from(under_way + u64::from(frames + pause)).unwrap_or(u32::MAX)
    }

    fn set_flows(&mut self) -> Result<(), SetupError> {
        let refused = |number, reason: String| Err(SetupError::Flow { number, reason });
        if self.flows.len() > FLOWS_MAX {
            return refused(
                FLOWS_MAX,
                format!("there are {} flows; {FLOWS_MAX} is the most", self.flows.len()),
            );
        }
        let mut seeds = Random::new(self.parameters.seed, "hash", 0);
        let mut releases = vec![None; self.flows.len()];
        for (number, flow) in self.flows.iter().enumerate() {
            if let Err(reason) = self.check_flow(flow) {
                return refused(number, reason);
            }
            if let Some(other) = flow.released_by {
                let Some(place) = releases.get_mut(other as usize) else {
                    return refused(
                        number,
                        format!("it is released by flow {other}, which is not there"),
                    );
                };
                if place.replace(number as u32).is_some() {
                    return refused(number, format!("flow {other} releases another one already"));
                }
            }
            let hash = seeds.next_bits() as u32;
            let mut pair = Pair::new(flow, &self.parameters, hash);
            pair.next_ready = u32::MAX;
            self.pairs.push(pair);
        }
        for (pair, releases) in self.pairs.iter_mut().zip(releases) {
            pair.releases = releases;
        }
        let mut longest = 0;
        for (number, pair) in self.pairs.iter().enumerate() {
            let way = self.routes.way(&self.network, pair.data_from, pair.data_to, pair.hash);
            let back = self.routes.way(&self.network, pair.data_to, pair.data_from, pair.hash);
            let (Some(way), Some(back)) = (way, back) else {
                let name = |node: u32| &self.network.nodes[node as usize].name;
                return refused(
                    number,
                    format!(
                        "no way leads from '{}' to '{}'",
                        name(pair.data_from),
                        name(pair.data_to)
                    ),
                );
            };
            longest = longest.max(self.round_trip_ps(&way, &back));
        }
        self.base_rtt_ps = longest;
        let flows = &self.flows;
        self.order.sort_by_key(|flow| flows[*flow as usize].start_ps);
        if let Some(first) = self.order.first() {
            let start_ps = self.flows[*first as usize].start_ps;
            self.events.push(Event::new(start_ps, Kind::Starts, 0));
        }
        Ok(())
    }

    fn check_flow(&self, flow: &Flow) -> Result<(), String> {
        for node in [flow.from, flow.to] {
            match self.network.nodes.get(node as usize) {
                None => return Err(format!("there is no node {node}")),
                Some(node) if !node.is_host => {
                    return Err(format!("'{}' is no host", node.name));
                }
                Some(_) => {}
            }
        }
        if flow.from == flow.to {
            let name = &self.network.nodes[flow.from as usize].name;
            return Err(format!("from '{name}' to itself"));
        }
        if flow.message_bytes == 0 || flow.messages == 0 {
            return Err("it has nothing to move: give it a size and a number above 0".to_owned());
        }
        if flow.message_bytes.checked_mul(flow.messages).is_none_or(|bytes| bytes > 1 << 60) {
            return Err("it moves more than 2^60 bytes".to_owned());
        }
        if flow.depth == 0 && flow.released_by.is_none() {
            return Err("its depth is 0, so that nothing begins: give it 1 or more".to_owned());
        }
        if flow.priority.is_some_and(|priority| priority > 7) {
            return Err("priorities are 0 to 7".to_owned());
        }
        if flow.operation == Operation::Read && self.needs.tcp {
            return Err("TCP has no reads: use write_bw or send_bw".to_owned());
        }
        let is_heard = !self.needs.acknowledgements || self.recovers_selectively;
        if flow.operation == Operation::Read && !is_heard {
            return Err(format!(
                "nobody acknowledges a read, and {:?} lives on acknowledgements: use dcqcn, dcqcn-paper or none, or recovery=selective",
                self.parameters.cc
            ));
        }
        Ok(())
    }

    /// The longest round trip of a full packet and its acknowledgement, without queues, among all flows.
    #[must_use]
    pub const fn base_rtt_ps(&self) -> u64 {
        self.base_rtt_ps
    }

    /// How long a flow takes alone in the network; see [`Flow`].
    #[must_use]
    pub fn ideal_ps(&self, flow: usize) -> u64 {
        self.pairs[flow].result.ideal_ps
    }

    /// Keeps every pause that arrives, for [`Self::pause_records`].
    pub fn record_pauses(&mut self) {
        self.pause_records = Some(Vec::new());
    }
}
