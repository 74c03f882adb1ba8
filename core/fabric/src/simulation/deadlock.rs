//! Cyclic waits: queues that are paused for each other, so that none of them ever goes on by itself.
//!
//! A paused queue waits for what came by its link into the switch at the other end. It is stuck when all of that waits in
//! queues of that switch which are stuck themselves: the largest such set is found by taking out what is not stuck,
//! again and again. A host at the other end can end its pause at any time and makes nothing stuck. What remains has
//! a cycle, which is told; a watchdog, or a failure, ends it.

use super::Simulation;
use super::control::Coordinator;
use super::port::Port;
use super::region::Region;
use crate::event::Kind;
use crate::packet::NO_INDEX;

/// So many intervals are between two looks at most, while the answer stays the same.
const INTERVALS_MAX: u64 = 100;

/// Queues that waited for each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CyclicWait {
    /// When it was found.
    pub found_ps: u64,
    /// When it was found to be over; none where it stayed.
    pub ended_ps: Option<u64>,
    /// Priority of the queues in the cycle.
    pub priority: u8,
    /// Ports, each paused by the switch to which the next belongs; the last by that of the first.
    pub ports: Vec<u32>,
}

/// Detector of cyclic waits of PFC pauses.
#[derive(Debug)]
pub(super) struct Deadlocks {
    /// From one look to the next; 0: none is made.
    interval_ps: u64,
    next_ps: u64,
    /// When the next look is; none while nothing is paused.
    pub(super) look_ps: Option<u64>,
    found: Vec<CyclicWait>,
}

impl Deadlocks {
    pub(super) const fn new(interval_ps: u64) -> Self {
        Self { interval_ps, next_ps: 0, look_ps: None, found: Vec::new() }
    }

    /// Something was paused then.
    pub(super) fn watch(&mut self, from_ps: u64) {
        if self.look_ps.is_none() {
            self.next_ps = self.interval_ps;
            self.look_ps = Some(from_ps + self.interval_ps);
        }
    }
}

impl Region {
    /// Schedules a search, since a port was paused.
    pub(super) fn watch(&mut self) {
        let interval_ps = self.model.parameters.deadlock_check.0;
        if !self.is_watched && interval_ps > 0 {
            self.is_watched = true;
            self.look_from_ps = Some(self.now_ps);
            self.end_ps = self.end_ps.min(self.now_ps.saturating_add(interval_ps));
        }
    }
}

impl Simulation {
    /// Queues that waited for each other, in the order in which that was found.
    #[must_use]
    pub fn cyclic_waits(&self) -> &[CyclicWait] {
        &self.control.deadlocks.found
    }
}

impl Coordinator<'_, '_> {
    pub(super) fn look_for_deadlocks(&mut self) {
        self.control.counts.events += 1;
        self.control.digest.add(self.control.now_ps, Kind::DeadlockScan, 0, 0);
        let mut paused = self.paused_queues();
        if paused.is_empty() {
            self.end_cycle(None);
            self.control.deadlocks.look_ps = None;
            for region in self.regions.iter_mut() {
                region.is_watched = false;
            }
            return;
        }
        self.keep_stuck(&mut paused);
        let cycle = self.cycle_of(&paused);
        let stays = self.end_cycle(cycle.as_ref());
        let found_ps = self.control.now_ps;
        let deadlocks = &mut self.control.deadlocks;
        let most_ps = INTERVALS_MAX * deadlocks.interval_ps;
        deadlocks.next_ps = if stays || cycle.is_none() {
            (2 * deadlocks.next_ps).min(most_ps)
        } else {
            deadlocks.interval_ps
        };
        if let (Some((priority, ports)), false) = (cycle, stays) {
            deadlocks.found.push(CyclicWait { found_ps, ended_ps: None, priority, ports });
        }
        deadlocks.look_ps = Some(found_ps + deadlocks.next_ps);
    }

    fn port(&self, port: u32) -> (&Region, &Port) {
        let region = &*self.regions[self.model.owner(port) as usize];
        (region, &region.ports[self.model.places[port as usize] as usize])
    }

    fn peer(&self, port: u32) -> u32 {
        self.model.network.ports[port as usize].peer
    }

    /// Ends the last cycle unless it is this one; true where it is.
    fn end_cycle(&mut self, cycle: Option<&(u8, Vec<u32>)>) -> bool {
        let now_ps = self.control.now_ps;
        let Some(last) = self.control.deadlocks.found.last_mut() else { return false };
        if last.ended_ps.is_some() {
            return false;
        }
        let stays = cycle
            .is_some_and(|(priority, ports)| last.priority == *priority && last.ports == *ports);
        if !stays {
            last.ended_ps = Some(now_ps);
        }
        stays
    }

    /// Ports of switches and priorities that have something to send and may not.
    fn paused_queues(&self) -> Vec<(u32, u8)> {
        let mut queues = Vec::new();
        for port in 0..self.model.network.ports.len() as u32 {
            let (_, state) = self.port(port);
            let held_up =
                if state.is_host { 0 } else { state.paused & state.waiting & !state.defiant };
            queues.extend((0..8).filter(|bit| held_up & 1 << bit != 0).map(|bit| (port, bit)));
        }
        queues
    }

    /// Takes out what can go on, until nothing is left that can.
    fn keep_stuck(&self, queues: &mut Vec<(u32, u8)>) {
        loop {
            let before = queues.len();
            let all = queues.clone();
            queues.retain(|(port, priority)| {
                let ingress = self.peer(*port);
                let (region, _) = self.port(ingress);
                let place = self.model.places[ingress as usize];
                let account = &region.ingress[place as usize][usize::from(*priority)];
                let waiting = account.bytes + u64::from(account.headroom_used);
                let stuck: u64 =
                    self.waits_for(*port, *priority, &all).map(|(_, bytes)| bytes).sum();
                account.is_pausing && waiting > 0 && waiting == stuck
            });
            if queues.len() == before {
                return;
            }
        }
    }

    /// Which of these queues have packets that came by the link of a port, and how many bytes of them.
    fn waits_for<'a>(
        &'a self,
        port: u32,
        priority: u8,
        among: &'a [(u32, u8)],
    ) -> impl Iterator<Item = (u32, u64)> + 'a {
        let ingress = self.peer(port);
        let place = self.model.places[ingress as usize];
        let node_of = |port: u32| self.model.network.ports[port as usize].node;
        let node = node_of(ingress);
        among
            .iter()
            .filter(move |(other, of)| *of == priority && node_of(*other) == node)
            .map(move |(other, _)| {
                let mut bytes = 0;
                let (region, state) = self.port(*other);
                let mut id = state.queues[usize::from(priority)].head();
                while id != NO_INDEX {
                    let packet = &region.packets[id];
                    if packet.ingress == place {
                        bytes += u64::from(packet.bytes);
                    }
                    id = packet.next;
                }
                (*other, bytes)
            })
            .filter(|(_, bytes)| *bytes > 0)
    }

    /// A cycle among queues each of which waits for another, beginning at its lowest port.
    fn cycle_of(&self, stuck: &[(u32, u8)]) -> Option<(u8, Vec<u32>)> {
        let (mut port, priority) = *stuck.first()?;
        let mut passed: Vec<u32> = Vec::new();
        loop {
            if let Some(at) = passed.iter().position(|before| *before == port) {
                let mut cycle = passed.split_off(at);
                let lowest = cycle.iter().enumerate().min_by_key(|(_, port)| **port)?.0;
                cycle.rotate_left(lowest);
                return Some((priority, cycle));
            }
            passed.push(port);
            port = self.waits_for(port, priority, stuck).next()?.0;
        }
    }
}
