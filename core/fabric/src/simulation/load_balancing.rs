//! Selection among equal-cost paths at a switch.

use crate::packet::PacketId;
use crate::parameters::Routing;
use crate::simulation::region::Region;
use penstock_random::mix;

/// Flowlet: packets of a queue pair without a gap of `flowlet_gap`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flowlet {
    last_ps: u64,
    hash: u32,
}

impl Region {
    /// Returns the egress port of a packet at a switch; none if the destination is unreachable.
    #[inline]
    pub(super) fn egress_port(&mut self, node: u32, id: PacketId) -> Option<u32> {
        let packet = &self.packets[id];
        let (to, hash) = (packet.to, packet.hash);
        let hash = match self.model.parameters.routing {
            Routing::Ecmp | Routing::EcmpPolarised => hash,
            // The departure time lets a retransmission take another path.
            Routing::Spray => random_hash(hash, packet.sent_ps ^ packet.psn << 32),
            Routing::Flowlet => self.flowlet_hash(node, hash),
            Routing::Adaptive => {
                let start = random_hash(hash, packet.sent_ps ^ packet.psn << 32);
                let port = self.select_shortest(node, to, packet.priority, start);
                if port.is_some() {
                    return port;
                }
                hash
            }
        };
        let port = self.routes.port(&self.model.network, node, to, hash)?;
        Some(self.model.local_ports[port as usize])
    }

    /// Returns the hash of the current flowlet; a random one after each gap (LetFlow, Vanini et al., NSDI 2017).
    fn flowlet_hash(&mut self, node: u32, hash: u32) -> u32 {
        let (now_ps, gap_ps) = (self.now_ps, self.model.parameters.flowlet_gap.0);
        let flowlet =
            self.flowlets.entry((node, hash)).or_insert(Flowlet { last_ps: now_ps, hash });
        if now_ps - flowlet.last_ps > gap_ps {
            flowlet.hash = random_hash(hash, now_ps);
        }
        flowlet.last_ps = now_ps;
        flowlet.hash
    }

    /// Returns the candidate port that is up, preferably not paused, with the shortest queue; ties go to the first
    /// one from a random start.
    fn select_shortest(&self, node: u32, to: u32, priority: u8, start: u32) -> Option<u32> {
        let ports = self.routes.candidates(node, to);
        let count = ports.len();
        let first = (u64::from(start) * count as u64) >> 32;
        let turn = (0..count).map(|at| ports[(first as usize + at) % count]);
        let here = turn.map(|port| self.model.local_ports[port as usize]);
        here.filter(|port| self.ports[*port as usize].is_up).min_by_key(|port| {
            let state = &self.ports[*port as usize];
            (state.paused & 1 << priority != 0, state.queued_bytes)
        })
    }
}

fn random_hash(hash: u32, what: u64) -> u32 {
    mix(mix(u64::from(hash)) ^ what) as u32
}
