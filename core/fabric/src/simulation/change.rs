//! Links and switches that fail and come back, and hosts that pause what they should take.
//!
//! What is on a line, or waits for it, is gone with it; a switch takes all its lines along. Switches find other ways after a
//! time; until then they send into the hole.

use super::{Event, Kind, Simulation};
use crate::packet::{List, OnLine};
use crate::routes::Routes;

/// What can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// A link, by its number in the topology.
    Link(u32),
    /// A switch, by its number among the nodes.
    Switch(u32),
    /// The patience of a host: while it fails, the host pauses the data that is sent to it, whatever it could take.
    Host(u32),
}

/// A part that fails or works again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// When.
    pub at_ps: u64,
    /// What.
    pub part: Part,
    /// Whether it works from then on.
    pub is_up: bool,
}

/// What happens at a time.
#[derive(Debug, Clone, Copy)]
pub(super) enum Step {
    Part {
        part: Part,
        is_up: bool,
    },
    /// Switches know of it.
    Routes,
}

impl Simulation {
    /// Has parts fail and come back, with other ways `reroute` later (a parameter). Call before the run, with numbers that
    /// are there.
    pub fn change(&mut self, changes: &[Change]) {
        for change in changes {
            let step = Step::Part { part: change.part, is_up: change.is_up };
            self.changes.push((change.at_ps, step));
            if !matches!(change.part, Part::Host(_)) {
                self.changes.push((change.at_ps + self.parameters.reroute.0, Step::Routes));
            }
        }
        self.changes.sort_by_key(|(at_ps, _)| *at_ps);
        let first = self.next_change as usize;
        if let Some((at_ps, _)) = self.changes.get(first) {
            self.events.push(Event::new(*at_ps, Kind::Changes, self.next_change));
        }
    }

    pub(super) fn take_step(&mut self, entity: u32) {
        if entity != self.next_change {
            return;
        }
        let Some((_, step)) = self.changes.get(entity as usize).copied() else { return };
        self.next_change += 1;
        if let Some((at_ps, _)) = self.changes.get(self.next_change as usize) {
            self.events.push(Event::new(*at_ps, Kind::Changes, self.next_change));
        }
        match step {
            Step::Part { part: Part::Link(link), is_up } => {
                self.links_down[link as usize] = !is_up;
                self.bring_ports();
            }
            Step::Part { part: Part::Switch(node), is_up } => {
                self.switches_down[node as usize] = !is_up;
                self.bring_ports();
            }
            Step::Part { part: Part::Host(node), is_up } => self.storm(node, !is_up),
            Step::Routes => self.find_ways(),
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

    /// Every port is up whose link and ends are.
    fn bring_ports(&mut self) {
        for port in 0..self.ports.len() as u32 {
            let of = &self.network.ports[port as usize];
            let is_down = self.links_down[of.link as usize]
                || self.switches_down[of.node as usize]
                || self.switches_down[self.network.across(port) as usize];
            self.set_port(port, !is_down);
        }
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
        let mut on_line = *std::mem::replace(&mut state.on_line, OnLine::EMPTY).list();
        let mut pauses = [
            std::mem::replace(&mut state.pauses, List::EMPTY),
            *std::mem::replace(&mut state.pauses_on_line, OnLine::EMPTY).list(),
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

    /// A host pauses data that is sent to it, or no more.
    fn storm(&mut self, node: u32, is_on: bool) {
        let priority = self.parameters.priority;
        for port in self.network.nodes[node as usize].ports.clone() {
            self.ingress[port as usize][usize::from(priority)].is_pausing = is_on;
            self.pause(port, priority, is_on);
        }
    }
}
