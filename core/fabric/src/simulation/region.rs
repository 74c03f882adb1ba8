//! A part of the network with all that is in it: its events, its packets, its ports, what its hosts send and receive.
//!
//! A region handles its own events and touches no other. What leaves it by a link is mail, given to the other region between
//! windows; there the port at which it arrives is known by its line alone. The events of a region come in the same order
//! whatever else is in it, so that dividing a network changes no result.

use std::collections::HashMap;
use std::sync::Arc;

use super::load_balancing::Flowlet;
use super::memory::{Ingress, Memory};
use super::model::Model;
use super::port::Port;
use super::receiver::Receiver;
use super::results::Samples;
use super::sender::Sender;
use super::sending::Line;
use super::switch::Held;
use super::{Counts, Digest, PauseRecord, Routes};
use crate::event::{Event, Kind};
use crate::packet::{Arena, Content, Hops, NO_INDEX, Packet, PacketId};
use crate::queue::EventQueue;

/// Packets on their way into another region.
#[derive(Debug, Default)]
pub(super) struct Mail {
    packets: Vec<Packet>,
    /// To which `telemetry` of the packets points.
    hops: Vec<Hops>,
}

impl Mail {
    pub(super) const fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }
}

/// A part of the network in motion.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) number: u32,
    pub(super) model: Arc<Model>,
    pub(super) routes: Arc<Routes>,

    pub(super) now_ps: u64,
    /// No event after this is handled in this window.
    pub(super) end_ps: u64,
    pub(super) events: EventQueue,
    pub(super) packets: Arena<Packet>,
    pub(super) telemetry: Arena<Hops>,
    /// Its own ports, and those of others whose links end here.
    pub(super) ports: Vec<Port>,
    /// Their numbers in the whole network.
    pub(super) names: Vec<u32>,
    pub(super) ingress: Vec<[Ingress; 8]>,
    pub(super) held: Vec<Held>,
    pub(super) ready: Vec<[Line; 8]>,
    /// By the number of the node in the whole network.
    pub(super) memories: Vec<Memory>,
    pub(super) senders: Vec<Sender>,
    pub(super) receivers: Vec<Receiver>,
    /// Flows that begin here, in the order of their start, and the next of them.
    pub(super) starts: Vec<u32>,
    pub(super) next_start: u32,
    /// Flows that began or will begin here and are not over, and when the last one was.
    pub(super) active: u64,
    pub(super) over_ps: u64,
    /// How long it goes on after its last flow is over, where it is the only region.
    pub(super) drain_ps: u64,
    /// Of a switch and a hash: when a packet came last, and by what its way was chosen.
    pub(super) flowlets: HashMap<(u32, u32), Flowlet>,
    /// Something is paused, so that all have to be looked at; and since when nobody knows that yet.
    pub(super) is_watched: bool,
    pub(super) look_from_ps: Option<u64>,
    pub(super) counts: Counts,
    pub(super) digest: Digest,
    pub(super) pause_records: Option<Vec<PauseRecord>>,
    pub(super) samples: Option<Samples>,

    /// To and from each region.
    pub(super) outbox: Vec<Mail>,
    pub(super) inbox: Vec<Mail>,
    /// When the first packet of the outbox arrives.
    pub(super) mail_due_ps: u64,
}

impl Region {
    /// Handles events up to the end of the window, so many at most; says how many.
    pub(super) fn run_window(&mut self, events: u64) -> u64 {
        let before = self.counts.events;
        for _ in 0..events {
            let Some(event) = self.events.pop(self.end_ps) else { break };
            self.handle(event);
        }
        self.counts.events - before
    }

    fn handle(&mut self, event: Event) {
        debug_assert!(event.time_ps() >= self.now_ps, "an event in the past");
        self.now_ps = event.time_ps();
        self.counts.events += 1;
        let (kind, entity) = (event.kind(), event.entity());
        match kind {
            Kind::Arrives => self.arrive(entity),
            Kind::Sent => {
                self.note(kind, self.name(entity), 0);
                self.ports[entity as usize].is_due = false;
                self.transmit(entity);
            }
            Kind::Paced => {
                self.note(kind, self.senders[entity as usize].flow, 0);
                self.paced(entity);
            }
            Kind::Timeout => {
                self.note(kind, self.senders[entity as usize].flow, 0);
                self.timeout(entity);
            }
            Kind::AskTimeout => {
                self.note(kind, self.receivers[entity as usize].flow, 0);
                self.ask_timeout(entity);
            }
            Kind::Starts => self.start_next(),
            Kind::PauseArrives => self.arrive_pause(entity),
            Kind::PauseTimer => {
                self.note(kind, self.name(entity / 8), u64::from(entity % 8));
                self.pause_timer(entity);
            }
            Kind::PauseRefresh => {
                self.note(kind, self.name(entity / 8), u64::from(entity % 8));
                self.refresh_pause(entity);
            }
            // Looking changes nothing, and is no event of the network.
            Kind::Samples => {
                self.counts.events -= 1;
                self.sample();
            }
            // The business of all regions together.
            Kind::TopologyChange | Kind::DeadlockScan => {}
        }
    }

    fn start_next(&mut self) {
        let flow = self.starts[self.next_start as usize];
        self.next_start += 1;
        self.expect_start();
        self.note(Kind::Starts, flow, 0);
        self.start(flow);
    }

    /// The next flow will begin.
    pub(super) fn expect_start(&mut self) {
        if let Some(next) = self.starts.get(self.next_start as usize) {
            let start_ps = self.model.flows[*next as usize].start_ps;
            self.events.push(Event::new(start_ps, Kind::Starts, self.next_start));
        }
    }

    /// A flow that began here is over.
    pub(super) fn one_less(&mut self) {
        self.active -= 1;
        self.over_ps = self.now_ps;
        if self.active == 0 {
            self.end_ps = self.end_ps.min(self.now_ps.saturating_add(self.drain_ps));
        }
    }

    /// Returns the number of a port in the whole network.
    pub(super) fn name(&self, port: u32) -> u32 {
        self.names[port as usize]
    }

    /// Something happened now to a port or flow.
    pub(super) fn note(&mut self, kind: Kind, who: u32, what: u64) {
        self.digest.add(self.now_ps, kind, who, what);
    }

    /// A packet ceases to be.
    pub(super) fn remove_packet(&mut self, id: PacketId) {
        let telemetry = self.packets[id].telemetry;
        if telemetry != NO_INDEX {
            self.telemetry.remove(telemetry);
        }
        self.packets.remove(id);
    }

    /// A packet or pause leaves by a port into another region.
    #[inline(never)]
    pub(super) fn post(&mut self, port: u32, id: PacketId, arrives_ps: u64) {
        let state = &self.ports[port as usize];
        let mail = &mut self.outbox[state.far_region as usize];
        let mut packet = self.packets[id].clone();
        packet.address(state.far_port, arrives_ps);
        if packet.telemetry != NO_INDEX {
            mail.hops.push(self.telemetry[packet.telemetry]);
            self.telemetry.remove(packet.telemetry);
            packet.telemetry = mail.hops.len() as u32 - 1;
        }
        mail.packets.push(packet);
        self.mail_due_ps = self.mail_due_ps.min(arrives_ps);
        self.packets.remove(id);
    }

    /// Puts what came from other regions onto its lines.
    pub(super) fn take_in(&mut self) {
        for mail in &mut self.inbox {
            for mut packet in mail.packets.drain(..) {
                let (line, at_ps) = packet.addressed();
                packet.ingress = NO_INDEX;
                if packet.telemetry != NO_INDEX {
                    let hops = mail.hops[packet.telemetry as usize];
                    packet.telemetry = self.telemetry.insert(hops);
                }
                let is_pause = packet.content == Content::Pause;
                let id = self.packets.insert(packet);
                let port = &mut self.ports[line as usize];
                let (on_line, kind) = if is_pause {
                    (&mut port.pauses_on_line, Kind::PauseArrives)
                } else {
                    (&mut port.on_line, Kind::Arrives)
                };
                if on_line.push(id, at_ps, &mut self.packets) {
                    self.events.push(Event::new(at_ps, kind, line));
                }
            }
            mail.hops.clear();
        }
    }

    /// When anything happens here next, mail left out.
    pub(super) fn next_ps(&self) -> u64 {
        self.events.next_time_ps().unwrap_or(u64::MAX)
    }
}

/// Gives every region what the others have for it, and says when the first of that arrives.
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
            // What was there before was taken in, so that its memory is used again.
            let emptied = std::mem::replace(&mut regions[to].inbox[from], mail);
            regions[from].outbox[to] = emptied;
        }
    }
    due_ps
}
