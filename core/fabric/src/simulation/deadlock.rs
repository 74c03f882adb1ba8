//! Detection of PFC deadlocks: queues that pause each other in a cycle.
//!
//! A paused queue waits for the packets that arrived over its link and are buffered in the switch at the other end.
//! It is stuck if all of them are in queues of that switch that are stuck themselves; the largest set of stuck queues
//! is what remains after repeatedly removing queues that can drain. A pause by a host can end at any time and makes
//! no queue stuck. The remaining set contains a cycle, which is reported; a watchdog or a failure resolves it.

use super::Simulation;
use super::coordinator::Coordinator;
use super::port::PortState;
use super::region::Region;
use crate::event::SimEventKind;
use crate::packet::NO_INDEX;

/// Most intervals between two scans while the result stays the same.
const INTERVALS_MAX: u64 = 100;

/// Deadlock: cycle of queues that pause each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CyclicWait {
    /// Time of detection in picoseconds.
    pub found_ps: u64,
    /// Time at which a scan found it resolved; none if it persists.
    pub ended_ps: Option<u64>,
    /// Priority of the queues in the cycle.
    pub priority: u8,
    /// Ports of the cycle, each paused by the switch of the next one, the last by the switch of the first.
    pub ports: Vec<u32>,
}

/// State of the deadlock detector.
#[derive(Debug)]
pub(super) struct Deadlocks {
    /// Interval of the parameter `deadlock_check`; 0 disables scans.
    interval_ps: u64,
    next_ps: u64,
    /// Time of the next scan; none while no queue is paused.
    pub(super) scan_ps: Option<u64>,
    found: Vec<CyclicWait>,
}

impl Deadlocks {
    pub(super) const fn new(interval_ps: u64) -> Self {
        Self { interval_ps, next_ps: 0, scan_ps: None, found: Vec::new() }
    }

    /// Schedules a scan after a queue was paused at `from_ps`.
    pub(super) fn schedule_scan(&mut self, from_ps: u64) {
        if self.scan_ps.is_none() {
            self.next_ps = self.interval_ps;
            self.scan_ps = Some(from_ps + self.interval_ps);
        }
    }
}

impl Region {
    /// Requests a scan after a switch port was paused.
    pub(super) fn schedule_scan(&mut self) {
        let interval_ps = self.model.parameters.deadlock_check.0;
        if !self.has_scan_scheduled && interval_ps > 0 {
            self.has_scan_scheduled = true;
            self.scan_from_ps = Some(self.now_ps);
            self.end_ps = self.end_ps.min(self.now_ps.saturating_add(interval_ps));
        }
    }
}

impl Simulation {
    /// Returns the deadlocks in the order of detection.
    #[must_use]
    pub fn cyclic_waits(&self) -> &[CyclicWait] {
        &self.control.deadlocks.found
    }
}

impl Coordinator<'_, '_> {
    pub(super) fn detect_deadlocks(&mut self) {
        self.control.counts.events += 1;
        self.control.digest.add(self.control.now_ps, SimEventKind::DeadlockScan, 0, 0);
        let mut paused = self.paused_queues();
        if paused.is_empty() {
            self.close_cycle(None);
            self.control.deadlocks.scan_ps = None;
            for region in self.regions.iter_mut() {
                region.has_scan_scheduled = false;
            }
            return;
        }
        self.retain_stuck(&mut paused);
        let cycle = self.find_cycle(&paused);
        let stays = self.close_cycle(cycle.as_ref());
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
        deadlocks.scan_ps = Some(found_ps + deadlocks.next_ps);
    }

    fn port(&self, port: u32) -> (&Region, &PortState) {
        let region = &*self.regions[self.model.owner(port) as usize];
        (region, &region.ports[self.model.local_ports[port as usize] as usize])
    }

    fn peer(&self, port: u32) -> u32 {
        self.model.network.ports[port as usize].peer
    }

    /// Marks the last reported cycle as resolved unless it equals `cycle`; returns true if it persists.
    fn close_cycle(&mut self, cycle: Option<&(u8, Vec<u32>)>) -> bool {
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

    /// Returns the non-empty paused queues of switches, as port and priority.
    fn paused_queues(&self) -> Vec<(u32, u8)> {
        let mut queues = Vec::new();
        for port in 0..self.model.network.ports.len() as u32 {
            let (_, state) = self.port(port);
            let blocked =
                if state.is_host { 0 } else { state.paused & state.waiting & !state.pause_ignored };
            queues.extend((0..8).filter(|bit| blocked & 1 << bit != 0).map(|bit| (port, bit)));
        }
        queues
    }

    /// Removes queues that can drain until only stuck queues remain.
    fn retain_stuck(&self, queues: &mut Vec<(u32, u8)>) {
        loop {
            let before = queues.len();
            let all = queues.clone();
            queues.retain(|(port, priority)| {
                let ingress = self.peer(*port);
                let (region, _) = self.port(ingress);
                let local = self.model.local_ports[ingress as usize];
                let account = &region.ingress[usize::from(*priority)][local as usize];
                let waiting = account.bytes + u64::from(account.headroom_used);
                let stuck: u64 =
                    self.find_blockers(*port, *priority, &all).map(|(_, bytes)| bytes).sum();
                account.is_pausing && waiting > 0 && waiting == stuck
            });
            if queues.len() == before {
                return;
            }
        }
    }

    /// Returns the queues among `among` that hold packets received over the link of a paused port, with their bytes.
    fn find_blockers<'a>(
        &'a self,
        port: u32,
        priority: u8,
        among: &'a [(u32, u8)],
    ) -> impl Iterator<Item = (u32, u64)> + 'a {
        let ingress = self.peer(port);
        let local = self.model.local_ports[ingress as usize];
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
                    if packet.ingress == local {
                        bytes += u64::from(packet.bytes);
                    }
                    id = packet.next;
                }
                (*other, bytes)
            })
            .filter(|(_, bytes)| *bytes > 0)
    }

    /// Finds a cycle among stuck queues, rotated to start at its lowest port.
    fn find_cycle(&self, stuck: &[(u32, u8)]) -> Option<(u8, Vec<u32>)> {
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
            port = self.find_blockers(port, priority, stuck).next()?.0;
        }
    }
}
