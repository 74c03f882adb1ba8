//! Immutable part of a simulation: network, parameters, flows, derived values, and the region of each node, port and
//! flow.

use super::shared_buffer::Thresholds;
use super::{
    FabricNetwork, FlowFault, FlowSpec, Marking, Parameters, RdmaOperation, Routes, SetupError,
    Wire, mix, needs,
};
use crate::congestion::Needs;
use crate::parameters::{CongestionControl, Recovery, Routing};
use crate::time::PS_PER_NANOSECOND;

/// Buffer of a switch for each 50 Gb/s of its fastest port (HPCC simulator, run.py).
const BUFFER_PER_50G: u64 = 16 << 20;
/// Unit of the acknowledgement time-out (InfiniBand 9.7.6.1.3).
const TIMEOUT_UNIT_NS: u64 = 4096;
/// Most flows of a run.
pub(super) const FLOWS_MAX: usize = 1 << 24;

/// Data that all regions read and none writes.
#[derive(Debug)]
pub(super) struct RunModel {
    pub(super) network: FabricNetwork,
    pub(super) parameters: Parameters,
    pub(super) flows: Vec<FlowSpec>,
    pub(super) wire: Wire,
    pub(super) needs: Needs,
    pub(super) recovers_selectively: bool,
    pub(super) thresholds: Thresholds,
    /// Bit masks: priorities with PFC, and priorities with strict scheduling.
    pub(super) lossless: u8,
    pub(super) strict: u8,
    pub(super) longest_frame: u32,
    pub(super) timeout_ps: u64,
    /// Longest base RTT of all flows.
    pub(super) base_rtt_ps: u64,

    /// For each node: its region.
    pub(super) owners: Vec<u32>,
    /// For each port: its number in its region.
    pub(super) local_ports: Vec<u32>,
    /// For each flow: the numbers of its sender and receiver in their regions.
    pub(super) ends: Vec<[u32; 2]>,
}

/// Returns the salt of a node's ECMP hash.
pub(super) const fn salt(routing: Routing, seed: u64, node: u32) -> u32 {
    match routing {
        Routing::EcmpPolarised => mix(seed) as u32,
        _ => mix(seed ^ (node as u64) << 20) as u32,
    }
}

impl RunModel {
    /// Creates the model without the fields that depend on regions.
    ///
    /// # Errors
    /// Returns an error for invalid parameters or flows.
    pub(super) fn new(
        network: FabricNetwork,
        parameters: Parameters,
        flows: Vec<FlowSpec>,
    ) -> Result<Self, SetupError> {
        parameters.check()?;
        let needs = needs(parameters.cc);
        let telemetry = if needs.telemetry { parameters.telemetry_bytes } else { 0 };
        let wire = Wire::new(&parameters, telemetry);
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
        let model = Self {
            needs,
            recovers_selectively: needs.tcp || parameters.recovery == Recovery::Selective,
            thresholds: Thresholds::new(&parameters),
            lossless,
            strict,
            longest_frame: wire.frame_bytes_max(parameters.mtu),
            timeout_ps: match parameters.timeout_exponent {
                0 => 0,
                exponent => (TIMEOUT_UNIT_NS * PS_PER_NANOSECOND) << exponent,
            },
            base_rtt_ps: 0,
            owners: Vec::new(),
            local_ports: Vec::new(),
            ends: Vec::new(),
            network,
            parameters,
            flows,
            wire,
        };
        model.check_flows()?;
        Ok(model)
    }

    /// Computes the routes over the ports that are up.
    pub(super) fn routes(&self, is_up: impl Fn(u32) -> bool) -> Routes {
        let (routing, seed) = (self.parameters.routing, self.parameters.seed);
        Routes::new(&self.network, is_up, |node| salt(routing, seed, node))
    }

    pub(super) fn is_host(&self, node: u32) -> bool {
        self.network.nodes[node as usize].is_host
    }

    /// Returns the region of a port.
    pub(super) fn owner(&self, port: u32) -> u32 {
        self.owners[self.network.ports[port as usize].node as usize]
    }

    /// Returns the delay from the last bit transmitted by a port to the handling of the packet at the other end.
    pub(super) fn delay_ps(&self, port: u32) -> u64 {
        let parameters = &self.parameters;
        let more = if self.is_host(self.network.across(port)) {
            parameters.nic_latency
        } else {
            parameters.switch_latency
        };
        self.network.ports[port as usize].delay_ps + more.0
    }

    /// Returns the delay from the last bit of a PFC frame to its effect at the other end.
    pub(super) fn pause_delay_ps(&self, port: u32) -> u64 {
        self.network.ports[port as usize].delay_ps + self.parameters.pfc_response.0
    }

    /// Returns the lookahead of a port: minimum time from the start of a transmission to its arrival at the other end.
    pub(super) fn lookahead_ps(&self, port: u32) -> u64 {
        let line = self.network.ports[port as usize].line;
        let delay_ps = self.delay_ps(port).min(self.pause_delay_ps(port));
        line.transmission_ps(self.wire.frame_bytes_min() + self.wire.frame_overhead) + delay_ps
    }

    /// Returns the ECN thresholds of a port: from the parameters, the link, or the defaults of the congestion control.
    pub(super) fn marking(&self, port: u32) -> Option<Marking> {
        let parameters = &self.parameters;
        let of = &self.network.ports[port as usize];
        if self.is_host(of.node) || !parameters.ecn {
            return None;
        }
        if let (None, Some(marking)) = (parameters.ecn_kmin, of.marking) {
            return Some(marking);
        }
        if !self.needs.marks && parameters.ecn_kmin.is_none() {
            return None;
        }
        let (least, most, probability) = match parameters.cc {
            CongestionControl::Dctcp => (3_000, 3_000, 1.0),
            _ => (4_000, 16_000, 0.2),
        };
        let bits_per_second = u128::from(of.line.bits_per_second());
        let scaled = |bytes: u128| (bytes * bits_per_second / 1_000_000_000) as u64;
        let least_bytes = parameters.ecn_kmin.map_or(scaled(least), |bytes| bytes.0);
        let most_bytes = parameters.ecn_kmax.map_or(scaled(most), |bytes| bytes.0);
        Some(Marking {
            least_bytes,
            most_bytes: most_bytes.max(least_bytes),
            probability: parameters.ecn_pmax.unwrap_or(probability),
        })
    }

    /// Returns the buffer of a switch and the size of its shared pool in bytes.
    ///
    /// # Errors
    /// Returns an error if reserves and headroom leave no shared pool.
    pub(super) fn memory(&self, node: u32) -> Result<(u64, u64), SetupError> {
        let of = &self.network.nodes[node as usize];
        let host_bps = self
            .fastest(node, true)
            .or_else(|| self.network.hosts().filter_map(|host| self.fastest(host, false)).max());
        let usual = BUFFER_PER_50G as u128 * u128::from(host_bps.unwrap_or(0)) / 50_000_000_000;
        let given = self.parameters.buffer.map(|buffer| buffer.0).or(of.buffer_bytes);
        let buffer = given.unwrap_or((usual as u64).max(1 << 20));
        let classes = u64::from(self.lossless.count_ones());
        let own: u64 = of
            .ports
            .clone()
            .map(|port| classes * (u64::from(self.headroom(port)) + self.thresholds.reserve()))
            .sum();
        if own >= buffer {
            return Err(SetupError::Buffer { switch: of.name.clone(), buffer, needed: own });
        }
        Ok((buffer, buffer - own))
    }

    /// Returns the highest line rate of a node's ports, or of its ports to hosts only.
    fn fastest(&self, node: u32, hosts_only: bool) -> Option<u64> {
        let ports = self.network.nodes[node as usize].ports.clone();
        ports
            .filter(|port| !hosts_only || self.is_host(self.network.across(*port)))
            .map(|port| self.network.ports[port as usize].line.bits_per_second())
            .max()
    }

    /// Returns the headroom of an ingress port in bytes: the frame that crosses the threshold, a frame that delays
    /// the PFC frame, a frame in transmission when the pause takes effect, and the bytes in flight on the link and in
    /// the pipeline.
    pub(super) fn headroom(&self, port: u32) -> u32 {
        if let Some(headroom) = self.parameters.pfc_headroom {
            return u32::try_from(headroom.0).unwrap_or(u32::MAX);
        }
        let of = &self.network.ports[port as usize];
        let delays_ps =
            2 * of.delay_ps + self.parameters.pfc_response.0 + self.parameters.switch_latency.0;
        let bits = u128::from(of.line.bits_per_second()) * u128::from(delays_ps);
        let under_way = (bits.div_ceil(8 * 1_000_000_000_000)) as u64;
        let frames = 3 * (self.longest_frame + self.wire.frame_overhead);
        let pause = self.wire.pause + self.wire.frame_overhead;
        u32::try_from(under_way + u64::from(frames + pause)).unwrap_or(u32::MAX)
    }

    fn check_flows(&self) -> Result<(), SetupError> {
        let refused = |number, fault| Err(SetupError::Flow { number, fault });
        if self.flows.len() > FLOWS_MAX {
            return refused(FLOWS_MAX, FlowFault::TooMany(self.flows.len()));
        }
        let mut releases = vec![false; self.flows.len()];
        for (number, flow) in self.flows.iter().enumerate() {
            if let Err(fault) = self.check_flow(flow) {
                return refused(number, fault);
            }
            let Some(other) = flow.released_by else { continue };
            let Some(before) = self.flows.get(other as usize) else {
                return refused(number, FlowFault::UnknownRelease(other));
            };
            if std::mem::replace(&mut releases[other as usize], true) {
                return refused(number, FlowFault::SecondRelease(other));
            }
            if before.data_endpoints().1 != flow.from {
                return refused(number, FlowFault::RemoteRelease(other));
            }
        }
        Ok(())
    }

    fn check_flow(&self, flow: &FlowSpec) -> Result<(), FlowFault> {
        for node in [flow.from, flow.to] {
            match self.network.nodes.get(node as usize) {
                None => return Err(FlowFault::NoNode(node)),
                Some(node) if !node.is_host => return Err(FlowFault::NoHost(node.name.clone())),
                Some(_) => {}
            }
        }
        if flow.from == flow.to {
            let name = &self.network.nodes[flow.from as usize].name;
            return Err(FlowFault::Loop(name.clone()));
        }
        if flow.message_bytes == 0 || flow.messages == 0 {
            return Err(FlowFault::Empty);
        }
        if flow.message_bytes.checked_mul(flow.messages).is_none_or(|bytes| bytes > 1 << 60) {
            return Err(FlowFault::TooLong);
        }
        if flow.depth == 0 && flow.released_by.is_none() {
            return Err(FlowFault::NoDepth);
        }
        if flow.priority.is_some_and(|priority| priority > 7) {
            return Err(FlowFault::Priority);
        }
        if flow.operation == RdmaOperation::Read && self.needs.tcp {
            return Err(FlowFault::TcpRead);
        }
        let has_acks = !self.needs.acknowledgements || self.recovers_selectively;
        if flow.operation == RdmaOperation::Read && !has_acks {
            return Err(FlowFault::UnacknowledgedRead(self.parameters.cc));
        }
        Ok(())
    }

    /// Returns the longest base RTT of all flows, on the paths of their ECMP hashes.
    ///
    /// # Errors
    /// Returns an error if the ends of a flow are not connected.
    pub(super) fn find_base_rtt(&self, routes: &Routes, hashes: &[u32]) -> Result<u64, SetupError> {
        let mut longest = 0;
        for (number, (flow, hash)) in self.flows.iter().zip(hashes).enumerate() {
            let (from, to) = flow.data_endpoints();
            let path = routes.find_path(&self.network, from, to, *hash);
            let back = routes.find_path(&self.network, to, from, *hash);
            let (Some(path), Some(back)) = (path, back) else {
                let name = |node: u32| self.network.nodes[node as usize].name.clone();
                let fault = FlowFault::NoPath { from: name(from), to: name(to) };
                return Err(SetupError::Flow { number, fault });
            };
            longest = longest.max(self.round_trip_ps(&path, &back));
        }
        Ok(longest)
    }
}
