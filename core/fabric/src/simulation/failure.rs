//! Failures and repairs of links and switches, and PFC pause storms of hosts.
//!
//! A failed link loses the packets that propagate on it or are queued for it; a failed switch takes down all its links.
//! Routes change after the parameter `reroute`; until then switches forward into the failed part.

use std::sync::Arc;

use super::Simulation;
use super::coordinator::Coordinator;
use super::region::Region;
use crate::event::SimEventKind;
use crate::packet::{NO_INDEX, PacketList};

/// Part of the network that can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailurePart {
    /// Link, by its number in the topology.
    Link(u32),
    /// Switch, by its node number.
    Switch(u32),
    /// Host with a pause storm: while it fails, it pauses the priority of incoming data.
    Host(u32),
}

/// Failure or repair of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailureChange {
    /// Time of the change in picoseconds.
    pub at_ps: u64,
    /// Part that fails or recovers.
    pub part: FailurePart,
    /// True for a repair, false for a failure.
    pub is_up: bool,
}

/// Scheduled effect of a change.
#[derive(Debug, Clone, Copy)]
pub(super) enum FailureStep {
    Part {
        part: FailurePart,
        is_up: bool,
    },
    /// All nodes switch to routes around failed parts.
    Routes,
}

impl Simulation {
    /// Schedules failures and repairs; routes follow after the parameter `reroute`. Call before the run, with
    /// existing part numbers.
    pub fn change(&mut self, changes: &[FailureChange]) {
        let reroute_ps = self.model.parameters.reroute.0;
        let steps = &mut self.control.changes;
        for change in changes {
            let step = FailureStep::Part { part: change.part, is_up: change.is_up };
            steps.push((change.at_ps, step));
            if !matches!(change.part, FailurePart::Host(_)) {
                steps.push((change.at_ps + reroute_ps, FailureStep::Routes));
            }
        }
        steps.sort_by_key(|(at_ps, _)| *at_ps);
    }
}

impl Coordinator<'_, '_> {
    /// Applies the next scheduled change.
    pub(super) fn apply_change(&mut self) {
        let number = self.control.next_change;
        let Some((at_ps, step)) = self.control.changes.get(number).copied() else { return };
        self.control.next_change += 1;
        self.control.counts.events += 1;
        self.control.digest.add(at_ps, SimEventKind::TopologyChange, number as u32, 0);
        match step {
            FailureStep::Part { part: FailurePart::Link(link), is_up } => {
                self.control.links_down[link as usize] = !is_up;
                self.update_port_states();
            }
            FailureStep::Part { part: FailurePart::Switch(node), is_up } => {
                self.control.switches_down[node as usize] = !is_up;
                self.update_port_states();
            }
            FailureStep::Part { part: FailurePart::Host(node), is_up } => {
                self.set_pause_storm(node, !is_up)
            }
            FailureStep::Routes => self.recompute_routes(),
        }
    }

    fn recompute_routes(&mut self) {
        let routes = Arc::new(self.model.routes(|port| self.is_up(port)));
        for region in self.regions.iter_mut() {
            region.routes = Arc::clone(&routes);
        }
    }

    fn is_up(&self, port: u32) -> bool {
        let local = self.model.local_ports[port as usize];
        self.regions[self.model.owner(port) as usize].ports[local as usize].is_up
    }

    /// Updates all ports: a port is up if its link and the switches at both ends are.
    fn update_port_states(&mut self) {
        for port in 0..self.model.network.ports.len() as u32 {
            let of = &self.model.network.ports[port as usize];
            let is_down = self.control.links_down[of.link as usize]
                || self.control.switches_down[of.node as usize]
                || self.control.switches_down[self.model.network.across(port) as usize];
            if is_down == self.is_up(port) {
                self.set_port_state(port, !is_down);
            }
        }
    }

    fn set_port_state(&mut self, port: u32, is_up: bool) {
        let (owner, local) = (self.model.owner(port), self.model.local_ports[port as usize]);
        let region = &mut *self.regions[owner as usize];
        if is_up {
            return region.bring_up(local);
        }
        // The region at the far end owns the packets that propagate on the link.
        let (end, line) = region.ports[local as usize].remote_line().unwrap_or((owner, local));
        let lost = self.regions[end as usize].clear_line(line);
        self.regions[owner as usize].take_down(local, lost);
    }

    /// Starts or ends a pause storm of a host.
    fn set_pause_storm(&mut self, node: u32, is_on: bool) {
        let priority = self.model.parameters.priority;
        let region = &mut self.regions[self.model.owners[node as usize] as usize];
        for port in self.model.network.nodes[node as usize].ports.clone() {
            let local = self.model.local_ports[port as usize];
            region.ingress[usize::from(priority)][local as usize].is_pausing = is_on;
            region.send_pause(local, priority, is_on);
        }
    }
}

impl Region {
    fn bring_up(&mut self, port: u32) {
        self.ports[port as usize].is_up = true;
        self.try_transmit(port);
    }

    /// Removes the packets that propagate on the link of a port; returns their number, PFC frames excluded.
    fn clear_line(&mut self, port: u32) -> u64 {
        let mut lost = 0;
        for kind in [SimEventKind::Arrival, SimEventKind::PauseArrival] {
            let arrivals = self.events.remove(|event| {
                event.kind() == kind && event.entity() == port && event.packet() != NO_INDEX
            });
            // An event without a packet stays in place of them, as it did when a link scheduled its next arrival only:
            // reports contain the number of events.
            if let Some(first) = arrivals.first() {
                self.events.push(first.without_packet());
            }
            for arrival in arrivals {
                lost += u64::from(kind == SimEventKind::Arrival);
                self.remove_packet(arrival.packet());
            }
        }
        lost
    }

    /// Takes a port down: drops its queues and resets its pause state. `lost` counts the packets lost on its link.
    fn take_down(&mut self, port: u32, lost: u64) {
        let state = &mut self.ports[port as usize];
        state.is_up = false;
        state.result.lost += lost;
        self.counts.lost += lost;
        let mut pauses = std::mem::replace(&mut state.pauses, PacketList::EMPTY);
        while let Some(id) = pauses.pop(&self.packets) {
            self.packets.remove(id);
        }
        for priority in 0..8 {
            // A failed link ends all pauses in both directions.
            self.ingress[usize::from(priority)][port as usize].is_pausing = false;
            self.apply_pause(port, priority, 0);
            self.drop_queue(port, priority);
        }
    }
}
