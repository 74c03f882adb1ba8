//! Links and switches that fail and come back, and hosts that pause what they should take.
//!
//! What is on a line, or waits for it, is gone with it; a switch takes all its lines along. Switches find other ways after a
//! time; until then they send into the hole.

use std::sync::Arc;

use super::Simulation;
use super::control::Coordinator;
use super::region::Region;
use crate::event::Kind;
use crate::packet::{List, OnLine};

/// A part of the network that can fail.
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
    /// Time of the change in picoseconds.
    pub at_ps: u64,
    /// Part that fails or recovers.
    pub part: Part,
    /// True if the part works from then on.
    pub is_up: bool,
}

/// Effect of a change at one time.
#[derive(Debug, Clone, Copy)]
pub(super) enum Step {
    Part {
        part: Part,
        is_up: bool,
    },
    /// The switches have new routes.
    Routes,
}

impl Simulation {
    /// Has parts fail and come back, with other ways `reroute` later (a parameter). Call before the run, with numbers that
    /// are there.
    pub fn change(&mut self, changes: &[Change]) {
        let reroute_ps = self.model.parameters.reroute.0;
        let steps = &mut self.control.changes;
        for change in changes {
            let step = Step::Part { part: change.part, is_up: change.is_up };
            steps.push((change.at_ps, step));
            if !matches!(change.part, Part::Host(_)) {
                steps.push((change.at_ps + reroute_ps, Step::Routes));
            }
        }
        steps.sort_by_key(|(at_ps, _)| *at_ps);
    }
}

impl Coordinator<'_, '_> {
    /// The next change happens.
    pub(super) fn take_step(&mut self) {
        let number = self.control.next_change;
        let Some((at_ps, step)) = self.control.changes.get(number).copied() else { return };
        self.control.next_change += 1;
        self.control.counts.events += 1;
        self.control.digest.add(at_ps, Kind::TopologyChange, number as u32, 0);
        match step {
            Step::Part { part: Part::Link(link), is_up } => {
                self.control.links_down[link as usize] = !is_up;
                self.bring_ports();
            }
            Step::Part { part: Part::Switch(node), is_up } => {
                self.control.switches_down[node as usize] = !is_up;
                self.bring_ports();
            }
            Step::Part { part: Part::Host(node), is_up } => self.storm(node, !is_up),
            Step::Routes => self.find_ways(),
        }
    }

    fn find_ways(&mut self) {
        let routes = Arc::new(self.model.routes(|port| self.is_up(port)));
        for region in self.regions.iter_mut() {
            region.routes = Arc::clone(&routes);
        }
    }

    fn is_up(&self, port: u32) -> bool {
        let place = self.model.places[port as usize];
        self.regions[self.model.owner(port) as usize].ports[place as usize].is_up
    }

    /// Every port is up whose link and ends are.
    fn bring_ports(&mut self) {
        for port in 0..self.model.network.ports.len() as u32 {
            let of = &self.model.network.ports[port as usize];
            let is_down = self.control.links_down[of.link as usize]
                || self.control.switches_down[of.node as usize]
                || self.control.switches_down[self.model.network.across(port) as usize];
            if is_down == self.is_up(port) {
                self.set_port(port, !is_down);
            }
        }
    }

    fn set_port(&mut self, port: u32, is_up: bool) {
        let (owner, place) = (self.model.owner(port), self.model.places[port as usize]);
        let region = &mut *self.regions[owner as usize];
        if is_up {
            return region.bring_up(place);
        }
        // The packets on a line are where it ends.
        let (end, line) = region.ports[place as usize].far().unwrap_or((owner, place));
        let lost = self.regions[end as usize].clear_line(line);
        self.regions[owner as usize].take_down(place, lost);
    }

    /// A host pauses data that is sent to it, or no more.
    fn storm(&mut self, node: u32, is_on: bool) {
        let priority = self.model.parameters.priority;
        let region = &mut self.regions[self.model.owners[node as usize] as usize];
        for port in self.model.network.nodes[node as usize].ports.clone() {
            let place = self.model.places[port as usize];
            region.ingress[place as usize][usize::from(priority)].is_pausing = is_on;
            region.pause(place, priority, is_on);
        }
    }
}

impl Region {
    fn bring_up(&mut self, port: u32) {
        self.ports[port as usize].is_up = true;
        self.kick(port);
    }

    /// Drops the packets on the line of a port; returns their number.
    fn clear_line(&mut self, port: u32) -> u64 {
        let state = &mut self.ports[port as usize];
        let mut on_line = *std::mem::replace(&mut state.on_line, OnLine::EMPTY).list();
        let mut pauses = *std::mem::replace(&mut state.pauses_on_line, OnLine::EMPTY).list();
        let mut lost = 0;
        while let Some(id) = on_line.pop(&self.packets) {
            lost += 1;
            self.remove_packet(id);
        }
        while let Some(id) = pauses.pop(&self.packets) {
            self.packets.remove(id);
        }
        lost
    }

    /// A port works no more, and so many packets were lost on its line.
    fn take_down(&mut self, port: u32, lost: u64) {
        let state = &mut self.ports[port as usize];
        state.is_up = false;
        state.result.lost += lost;
        self.counts.lost += lost;
        let mut pauses = std::mem::replace(&mut state.pauses, List::EMPTY);
        while let Some(id) = pauses.pop(&self.packets) {
            self.packets.remove(id);
        }
        for priority in 0..8 {
            // Both ends forget what they had told each other.
            self.ingress[port as usize][usize::from(priority)].is_pausing = false;
            self.hold(port, priority, 0);
            self.throw_away(port, priority);
        }
    }
}
