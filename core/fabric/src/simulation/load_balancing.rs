//! Which of the ways of equal cost a switch gives a packet.

use crate::packet::PacketId;
use crate::parameters::Routing;
use crate::random::mix;
use crate::simulation::region::Region;

/// Packets of a queue pair that followed each other closely.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flowlet {
    last_ps: u64,
    hash: u32,
}

impl Region {
    /// By which port a switch sends a packet; none where no way leads to its host.
    pub(super) fn egress_port(&mut self, node: u32, id: PacketId) -> Option<u32> {
        let packet = &self.packets[id];
        let (to, hash) = (packet.to, packet.hash);
        let hash = match self.model.parameters.routing {
            Routing::Ecmp | Routing::EcmpPolarised => hash,
            // What is sent again may go another way.
            Routing::Spray => chance(hash, packet.sent_ps ^ packet.psn << 32),
            Routing::Flowlet => self.flowlet(node, hash),
            Routing::Adaptive => {
                let start = chance(hash, packet.sent_ps ^ packet.psn << 32);
                let port = self.shortest(node, to, packet.priority, start);
                if port.is_some() {
                    return port;
                }
                hash
            }
        };
        let port = self.routes.port(&self.model.network, node, to, hash)?;
        Some(self.model.places[port as usize])
    }

    /// LetFlow (Vanini et al., NSDI 2017): by chance after each gap.
    fn flowlet(&mut self, node: u32, hash: u32) -> u32 {
        let (now_ps, gap_ps) = (self.now_ps, self.model.parameters.flowlet_gap.0);
        let flowlet =
            self.flowlets.entry((node, hash)).or_insert(Flowlet { last_ps: now_ps, hash });
        if now_ps - flowlet.last_ps > gap_ps {
            flowlet.hash = chance(hash, now_ps);
        }
        flowlet.last_ps = now_ps;
        flowlet.hash
    }

    /// The candidate that is up, is not held up, and has least to send; of equal ones the first from some place on.
    fn shortest(&self, node: u32, to: u32, priority: u8, start: u32) -> Option<u32> {
        let ports = self.routes.candidates(node, to);
        let count = ports.len();
        let first = (u64::from(start) * count as u64) >> 32;
        let turn = (0..count).map(|at| ports[(first as usize + at) % count]);
        let here = turn.map(|port| self.model.places[port as usize]);
        here.filter(|port| self.ports[*port as usize].is_up).min_by_key(|port| {
            let state = &self.ports[*port as usize];
            (state.paused & 1 << priority != 0, state.queued_bytes)
        })
    }
}

fn chance(hash: u32, what: u64) -> u32 {
    mix(mix(u64::from(hash)) ^ what) as u32
}
