//! Region: a part of the network with its events, packets, ports and queue pairs.
//!
//! A region handles its own events and accesses no other region. A packet that leaves it over a link is mail,
//! delivered to the other region between windows; a region therefore also has an entry for each foreign port whose
//! link ends in it. The order of events at an entity does not depend on what else is in its region, so partitioning
//! changes no result.

use std::collections::HashMap;
use std::sync::Arc;

use super::host_tx::ReadyList;
use super::load_balancing::Flowlet;
use super::model::RunModel;
use super::port::{FarEnd, PortState};
use super::receiver::QpReceiver;
use super::results::Samples;
use super::sender::QpSender;
use super::shared_buffer::{Ingress, SharedBuffer};
use super::switch::PauseState;
use super::{Counts, PauseRecord, Routes, RunDigest};
use crate::event::{SimEvent, SimEventKind};
use crate::packet::{Arena, Hops, NO_INDEX, PacketId, PacketKind, SimPacket};
use crate::queue::EventQueue;

/// Packets in transit to another region.
#[derive(Debug, Default)]
pub(super) struct Mail {
    packets: Vec<SimPacket>,
    /// Telemetry that the packets refer to by index.
    hops: Vec<Hops>,
}

impl Mail {
    pub(super) const fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }
}

/// State of a region.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) number: u32,
    pub(super) model: Arc<RunModel>,
    pub(super) routes: Arc<Routes>,

    pub(super) now_ps: u64,
    /// End of the current window, inclusive.
    pub(super) end_ps: u64,
    pub(super) events: EventQueue,
    pub(super) packets: Arena<SimPacket>,
    pub(super) telemetry: Arena<Hops>,
    /// Own ports, and foreign ports whose links end here.
    pub(super) ports: Vec<PortState>,
    /// Numbers of these ports in the whole network.
    pub(super) port_ids: Vec<u32>,
    pub(super) far_ends: Vec<FarEnd>,
    /// Buffer use by priority and ingress port; few priorities are in use, whose accounts are dense.
    pub(super) ingress: [Vec<Ingress>; 8],
    pub(super) pause_states: Vec<PauseState>,
    pub(super) ready: Vec<[ReadyList; 8]>,
    /// Switch buffers by node number in the whole network.
    pub(super) memories: Vec<SharedBuffer>,
    pub(super) senders: Vec<QpSender>,
    pub(super) receivers: Vec<QpReceiver>,
    /// Flows whose requester is here, in the order of their start, and the index of the next one.
    pub(super) starts: Vec<u32>,
    pub(super) next_start: u32,
    /// Number of these flows that have not ended, and the time at which the last one ended.
    pub(super) active: u64,
    pub(super) ended_ps: u64,
    /// Time to continue after the last flow has ended, if this is the only region.
    pub(super) drain_ps: u64,
    /// Flowlet state by switch and ECMP hash of the queue pair.
    pub(super) flowlets: HashMap<(u32, u32), Flowlet>,
    /// True while deadlock scans are scheduled, and the time of a request that the coordinator has not received yet.
    pub(super) has_scan_scheduled: bool,
    pub(super) scan_from_ps: Option<u64>,
    pub(super) counts: Counts,
    pub(super) digest: RunDigest,
    pub(super) pause_records: Option<Vec<PauseRecord>>,
    pub(super) samples: Option<Samples>,

    /// Mail to and from each region.
    pub(super) outbox: Vec<Mail>,
    pub(super) inbox: Vec<Mail>,
    /// Arrivals of the packets of the inbox; empty between uses.
    pub(super) arrivals: Vec<SimEvent>,
    /// Earliest arrival time of the packets in the outbox.
    pub(super) mail_due_ps: u64,
}

impl Region {
    /// Handles at most `events` events up to the end of the window; returns their number.
    pub(super) fn run_window(&mut self, events: u64) -> u64 {
        let before = self.counts.events;
        for _ in 0..events {
            let Some(event) = self.events.pop(self.end_ps) else { break };
            self.handle(event);
        }
        self.counts.events - before
    }

    /// Handles an event. The two usual kinds are tested first: a jump by kind would often be predicted wrongly.
    fn handle(&mut self, event: SimEvent) {
        debug_assert!(event.time_ps() >= self.now_ps, "an event in the past");
        self.now_ps = event.time_ps();
        self.counts.events += 1;
        let (kind, entity) = (event.kind(), event.entity());
        match kind {
            SimEventKind::Arrival => self.arrive(entity, event.packet()),
            SimEventKind::TransmitDone => {
                self.record_digest(kind, self.port_id(entity), 0);
                self.ports[entity as usize].has_transmit_scheduled = false;
                self.transmit(entity);
            }
            _ => self.handle_other(event),
        }
    }

    /// Handles an event other than an arrival or the end of a transmission.
    #[inline(never)]
    fn handle_other(&mut self, event: SimEvent) {
        let (kind, entity) = (event.kind(), event.entity());
        match kind {
            SimEventKind::PacingDone => {
                self.record_digest(kind, self.senders[entity as usize].flow, 0);
                self.resume_paced(entity);
            }
            SimEventKind::Timeout => {
                self.record_digest(kind, self.senders[entity as usize].flow, 0);
                self.handle_timeout(entity);
            }
            SimEventKind::ReadTimeout => {
                self.record_digest(kind, self.receivers[entity as usize].flow, 0);
                self.handle_read_timeout(entity);
            }
            SimEventKind::FlowStart => self.start_next(),
            SimEventKind::PauseArrival => self.arrive_pause(entity, event.packet()),
            SimEventKind::PauseTimer => {
                self.record_digest(kind, self.port_id(entity / 8), u64::from(entity % 8));
                self.pause_timer(entity);
            }
            SimEventKind::PauseRefresh => {
                self.record_digest(kind, self.port_id(entity / 8), u64::from(entity % 8));
                self.refresh_pause(entity);
            }
            // Sampling changes no state and is not counted as an event.
            SimEventKind::QueueSample => {
                self.counts.events -= 1;
                self.sample();
            }
            // Handled by the coordinator.
            SimEventKind::TopologyChange | SimEventKind::DeadlockScan => {}
            // Handled by the caller.
            SimEventKind::Arrival | SimEventKind::TransmitDone => {}
        }
    }

    fn start_next(&mut self) {
        let flow = self.starts[self.next_start as usize];
        self.next_start += 1;
        self.schedule_next_start();
        self.record_digest(SimEventKind::FlowStart, flow, 0);
        self.start(flow);
    }

    /// Schedules the start of the next flow.
    pub(super) fn schedule_next_start(&mut self) {
        if let Some(next) = self.starts.get(self.next_start as usize) {
            let start_ps = self.model.flows[*next as usize].start_ps;
            self.events.push(SimEvent::new(start_ps, SimEventKind::FlowStart, self.next_start));
        }
    }

    /// Counts a flow of this region as ended.
    pub(super) fn count_ended_flow(&mut self) {
        self.active -= 1;
        self.ended_ps = self.now_ps;
        if self.active == 0 {
            self.end_ps = self.end_ps.min(self.now_ps.saturating_add(self.drain_ps));
        }
    }

    /// Returns the number of a port in the whole network.
    pub(super) fn port_id(&self, port: u32) -> u32 {
        self.port_ids[port as usize]
    }

    /// Adds an event at a port or flow to the digest.
    pub(super) fn record_digest(&mut self, kind: SimEventKind, who: u32, what: u64) {
        self.digest.add(self.now_ps, kind, who, what);
    }

    /// Frees a packet and its telemetry.
    pub(super) fn remove_packet(&mut self, id: PacketId) {
        let telemetry = self.packets[id].telemetry;
        if telemetry != NO_INDEX {
            self.telemetry.remove(telemetry);
        }
        self.packets.remove(id);
    }

    /// Posts a packet or PFC frame to the region where the link of the port ends.
    #[inline(never)]
    pub(super) fn send_mail(&mut self, port: u32, id: PacketId, arrives_ps: u64) {
        let state = &self.ports[port as usize];
        let mail = &mut self.outbox[state.far_region as usize];
        let mut packet = self.packets[id].clone();
        packet.set_address(state.far_port, arrives_ps);
        if packet.telemetry != NO_INDEX {
            mail.hops.push(self.telemetry[packet.telemetry]);
            self.telemetry.remove(packet.telemetry);
            packet.telemetry = mail.hops.len() as u32 - 1;
        }
        mail.packets.push(packet);
        self.mail_due_ps = self.mail_due_ps.min(arrives_ps);
        self.packets.remove(id);
    }

    /// Puts the packets of the inbox onto the links that end here.
    pub(super) fn receive_mail(&mut self) {
        for mail in &mut self.inbox {
            for mut packet in mail.packets.drain(..) {
                let (line, arrives_ps) = packet.link_and_arrival();
                packet.ingress = NO_INDEX;
                if packet.telemetry != NO_INDEX {
                    let hops = mail.hops[packet.telemetry as usize];
                    packet.telemetry = self.telemetry.insert(hops);
                }
                let kind = if packet.kind == PacketKind::Pause {
                    SimEventKind::PauseArrival
                } else {
                    SimEventKind::Arrival
                };
                let id = self.packets.insert(packet);
                self.arrivals.push(SimEvent::with_packet(arrives_ps, kind, line, id));
            }
            mail.hops.clear();
        }
        // Sorted, they join few lanes.
        self.arrivals.sort_unstable();
        self.arrivals.drain(..).for_each(|event| self.events.push_near(event));
    }

    /// Returns the time of the next event, mail excluded.
    pub(super) fn next_ps(&self) -> u64 {
        self.events.next_time_ps().unwrap_or(u64::MAX)
    }
}

/// Moves mail from outboxes to inboxes; returns the earliest arrival time.
pub(super) fn exchange(regions: &mut [&mut Region]) -> u64 {
    let mut due_ps = u64::MAX;
    for from in 0..regions.len() {
        let mail_ps = std::mem::replace(&mut regions[from].mail_due_ps, u64::MAX);
        if mail_ps == u64::MAX {
            continue;
        }
        due_ps = due_ps.min(mail_ps);
        for to in 0..regions.len() {
            if regions[from].outbox[to].is_empty() {
                continue;
            }
            let mail = std::mem::take(&mut regions[from].outbox[to]);
            // The previous inbox is empty; reuse its allocation.
            let emptied = std::mem::replace(&mut regions[to].inbox[from], mail);
            regions[from].outbox[to] = emptied;
        }
    }
    due_ps
}
