//! Links that fail and come back. What is on the line is lost, what waits for it is thrown away, and switches find
//! other ways after a time; until then they send into the hole.

use super::{Event, Kind, Simulation};
use crate::packet::List;
use crate::routes::Routes;

/// A link that changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkChange {
    /// When.
    pub at_ps: u64,
    /// Which, by its number in the topology.
    pub link: u32,
    /// Whether it works from then on.
    pub is_up: bool,
}

/// What happens at a time.
#[derive(Debug, Clone, Copy)]
pub(super) enum Change {
    Link {
        link: u32,
        is_up: bool,
    },
    /// Switches know of it.
    Routes,
}

impl Simulation {
    /// Has links fail and come back, with other ways `reroute` later (a parameter). Call before the run.
    pub fn change_links(&mut self, changes: &[LinkChange]) {
        for change in changes {
            let link = Change::Link { link: change.link, is_up: change.is_up };
            self.changes.push((change.at_ps, link));
            self.changes.push((change.at_ps + self.parameters.reroute.0, Change::Routes));
        }
        self.changes.sort_by_key(|(at_ps, _)| *at_ps);
        let first = self.next_change as usize;
        if let Some((at_ps, _)) = self.changes.get(first) {
            self.events.push(Event::new(*at_ps, Kind::Changes, self.next_change));
        }
    }

    pub(super) fn change(&mut self, entity: u32) {
        if entity != self.next_change {
            return;
        }
        let Some((_, change)) = self.changes.get(entity as usize).copied() else { return };
        self.next_change += 1;
        if let Some((at_ps, _)) = self.changes.get(self.next_change as usize) {
            self.events.push(Event::new(*at_ps, Kind::Changes, self.next_change));
        }
        match change {
            Change::Link { link, is_up } => {
                for port in 0..self.ports.len() as u32 {
                    if self.network.ports[port as usize].link == link {
                        self.set_port(port, is_up);
                    }
                }
            }
            Change::Routes => self.find_ways(),
        }
    }

    fn find_ways(&mut self) {
        let (ports, seed, routing) = (&self.ports, self.parameters.seed, self.parameters.routing);
        self.routes = Routes::new(
            &self.network,
            |port| ports[port as usize].is_up,
            |node| super::setup::salt(routing, seed, node),
        );
    }

    fn set_port(&mut self, port: u32, is_up: bool) {
        let state = &mut self.ports[port as usize];
        if state.is_up == is_up {
            return;
        }
        state.is_up = is_up;
        if is_up {
            return self.kick(port);
        }
        let mut on_line = std::mem::replace(&mut state.on_line, List::EMPTY);
        let mut pauses = [
            std::mem::replace(&mut state.pauses, List::EMPTY),
            std::mem::replace(&mut state.pauses_on_line, List::EMPTY),
        ];
        while let Some(id) = on_line.pop(&self.packets) {
            self.ports[port as usize].result.lost += 1;
            self.counts.lost += 1;
            self.remove_packet(id);
        }
        for list in &mut pauses {
            while let Some(id) = list.pop(&self.packets) {
                self.packets.remove(id);
            }
        }
        for priority in 0..8 {
            // Both ends forget what they had told each other.
            self.ingress[port as usize][usize::from(priority)].is_pausing = false;
            self.hold(port, priority, 0);
            self.throw_away(port, priority);
        }
    }
}
