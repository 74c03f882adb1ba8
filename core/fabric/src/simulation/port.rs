//! Ports: queues by priority, who is next, and the line.

use crate::event::{Event, Kind};
use crate::network::Marking;
use crate::packet::{Content, Hop, List, NO_INDEX, OnLine, PacketId};
use crate::random::Random;
use crate::simulation::model::Model;
use crate::simulation::region::Region;
use crate::time::LineRate;

/// Counters of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PortResult {
    /// Frames that were sent, pauses left out.
    pub sent_packets: u64,
    /// Their bytes, as counters of switches have them.
    pub sent_bytes: u64,
    /// Time in which its line was busy.
    pub busy_ps: u64,
    /// Frames that were marked.
    pub marked: u64,
    /// Frames for which there was no room, or no way.
    pub dropped: u64,
    /// Frames that were lost on its line.
    pub lost: u64,
    /// Most bytes that waited.
    pub queue_bytes_max: u64,
    /// Pauses that it asked the other end for.
    pub pauses_sent: u64,
    /// Time in which the other end held up its lossless priorities.
    pub paused_ps: u64,
    /// Times that its watchdog helped.
    pub watchdog: u64,
    /// Frames that its watchdog threw away.
    pub watchdog_dropped: u64,
}

/// A port. Its first cache line is what every packet touches at either end of the line.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Port {
    pub(super) busy_until_ps: u64,
    pub(super) line: LineRate,
    pub(super) node: u32,
    pub(super) peer: u32,
    /// An event [`Kind::Sent`] is ahead.
    pub(super) is_due: bool,
    pub(super) is_host: bool,
    /// Priorities with packets in queues, with queue pairs that can send, that the other end holds up, and that
    /// go on in spite of it.
    pub(super) waiting: u8,
    pub(super) ready: u8,
    pub(super) paused: u8,
    pub(super) defiant: u8,
    /// Priorities whose queues go on though the other end holds them up: acknowledgements of hosts, where that is set.
    unpaused: u8,
    /// Its link ends in another region.
    crosses: bool,
    pub(super) is_up: bool,
    pub(super) on_line: OnLine,
    /// From the last bit sent until the packet is where it is handled.
    pub(super) delay_ps: u64,
    pub(super) queued_bytes: u64,
    pub(super) result: PortResult,
    pub(super) pauses: List,
    pub(super) marking: Option<Marking>,
    loss: f64,
    pub(super) queues: [List; 8],
    pub(super) queue_limit_bytes: Option<u64>,
    pub(super) pauses_on_line: OnLine,
    pub(super) pause_delay_ps: u64,
    loss_burst: f64,
    is_losing: bool,
    deficits: [i64; 8],
    /// Whose turn it is among weighted priorities.
    turn: u8,
    random: Random,
    /// Where its link ends: the region, and what this port is there.
    pub(super) far_region: u32,
    pub(super) far_port: u32,
}

impl Port {
    /// A port of the network in a region, where these are the numbers of itself and its peer; `far` is the region in which
    /// its link ends, and its number there, where that is another one.
    pub(super) fn new(model: &Model, id: u32, peer: u32, far: Option<(u32, u32)>) -> Self {
        let port = &model.network.ports[id as usize];
        let (far_region, far_port) = far.unwrap_or((NO_INDEX, NO_INDEX));
        Self {
            busy_until_ps: 0,
            is_due: false,
            is_host: model.is_host(port.node),
            waiting: 0,
            ready: 0,
            paused: 0,
            defiant: 0,
            unpaused: if model.is_host(port.node) && model.parameters.ack_unpaused {
                0xFF
            } else {
                0
            },
            crosses: far.is_some(),
            is_up: true,
            node: port.node,
            peer,
            line: port.line,
            delay_ps: model.delay_ps(id),
            pause_delay_ps: model.pause_delay_ps(id),
            on_line: OnLine::EMPTY,
            queued_bytes: 0,
            queues: [List::EMPTY; 8],
            pauses: List::EMPTY,
            pauses_on_line: OnLine::EMPTY,
            marking: model.marking(id),
            queue_limit_bytes: port.queue_bytes,
            loss: port.loss,
            loss_burst: port.loss_burst,
            is_losing: false,
            deficits: [0; 8],
            turn: 0,
            random: Random::new(model.parameters.seed, "port", u64::from(id)),
            result: PortResult::default(),
            far_region,
            far_port,
        }
    }

    /// Where its link ends: the region, and what the port is there; none where that is its own region.
    pub(super) fn far(&self) -> Option<(u32, u32)> {
        self.crosses.then_some((self.far_region, self.far_port))
    }

    /// Priorities that may send.
    const fn eligible(&self) -> u8 {
        let held = self.paused & !self.defiant;
        self.waiting & (!held | self.unpaused) | self.ready & !held
    }

    /// Draws whether the next frame is lost: a chain of two states whose bad one takes `loss_burst` frames on average.
    fn loses(&mut self) -> bool {
        if self.loss <= 0.0 {
            return false;
        }
        let change = if self.is_losing {
            1.0 / self.loss_burst
        } else {
            (self.loss / (self.loss_burst * (1.0 - self.loss).max(1e-12))).min(1.0)
        };
        // Without bursts each frame is for itself.
        self.is_losing = if self.loss_burst <= 1.0 {
            self.random.unit() < self.loss
        } else {
            self.is_losing != (self.random.unit() < change)
        };
        self.is_losing
    }

    fn is_marked(&mut self, queue_bytes: u64) -> bool {
        let Some(marking) = self.marking else { return false };
        if queue_bytes <= marking.least_bytes {
            false
        } else if queue_bytes > marking.most_bytes {
            true
        } else {
            let share = (queue_bytes - marking.least_bytes) as f64
                / (marking.most_bytes - marking.least_bytes) as f64;
            self.random.unit() < marking.probability * share
        }
    }
}

impl Region {
    /// Something to send is new at a port.
    pub(super) fn kick(&mut self, port: u32) {
        let state = &mut self.ports[port as usize];
        if state.is_due {
            return;
        }
        if state.busy_until_ps > self.now_ps {
            state.is_due = true;
            self.events.push(Event::new(state.busy_until_ps, Kind::Sent, port));
        } else {
            self.transmit(port);
        }
    }

    /// The line is free: the next packet goes, and if others wait, an event for its end is set.
    pub(super) fn transmit(&mut self, port: u32) {
        if !self.ports[port as usize].is_up {
            return;
        }
        if let Some(id) = self.ports[port as usize].pauses.pop(&self.packets) {
            self.launch_pause(port, id);
        } else if !self.transmit_packet(port) {
            return;
        }
        let state = &mut self.ports[port as usize];
        if !state.is_due && (!state.pauses.is_empty() || state.eligible() != 0) {
            state.is_due = true;
            self.events.push(Event::new(state.busy_until_ps, Kind::Sent, port));
        }
    }

    /// False where nothing may be sent.
    fn transmit_packet(&mut self, port: u32) -> bool {
        loop {
            let eligible = self.ports[port as usize].eligible();
            if eligible == 0 {
                return false;
            }
            let priority = self.choose(port, eligible);
            let state = &mut self.ports[port as usize];
            if let Some(id) = state.queues[usize::from(priority)].pop(&self.packets) {
                let bytes = u64::from(self.packets[id].bytes);
                state.queued_bytes -= bytes;
                if state.queues[usize::from(priority)].is_empty() {
                    state.waiting &= !(1 << priority);
                }
                if state.is_host {
                    self.launch(port, id);
                } else {
                    let packet = &self.packets[id];
                    let (ingress, bytes) = (packet.ingress, packet.bytes);
                    self.leave_switch(port, id);
                    self.launch(port, id);
                    self.release(ingress, priority, bytes);
                }
                return true;
            }
            if self.send_data(port, priority) {
                return true;
            }
        }
    }

    /// Strict priorities by their number, then weighted ones by deficit round robin (Shreedhar and Varghese 1995).
    fn choose(&mut self, port: u32, eligible: u8) -> u8 {
        let strict = eligible & self.model.strict;
        if strict != 0 {
            return 7 - strict.leading_zeros() as u8;
        }
        loop {
            let state = &mut self.ports[port as usize];
            let turn = usize::from(state.turn);
            if eligible & (1 << turn) != 0 {
                let head = state.queues[turn].head();
                let bytes = if head == NO_INDEX {
                    i64::from(self.model.longest_frame)
                } else {
                    i64::from(self.packets[head].bytes)
                };
                if state.deficits[turn] >= bytes {
                    state.deficits[turn] -= bytes;
                    return turn as u8;
                }
            } else {
                state.deficits[turn] = 0;
            }
            state.turn = ((turn + 1) % 8) as u8;
            let next = usize::from(state.turn);
            if eligible & (1 << next) != 0 {
                state.deficits[next] += i64::from(self.model.parameters.weights[next])
                    * i64::from(self.model.longest_frame);
            }
        }
    }

    /// A packet leaves its queue in a switch: marks and telemetry are written.
    fn leave_switch(&mut self, port: u32, id: PacketId) {
        let packet = &mut self.packets[id];
        let state = &mut self.ports[port as usize];
        if packet.content == Content::Data {
            let priority = usize::from(packet.priority);
            if state.is_marked(state.queues[priority].bytes) {
                packet.marks = 1;
                state.result.marked += 1;
            }
            if packet.telemetry != NO_INDEX {
                self.telemetry[packet.telemetry].push(Hop {
                    time_ps: self.now_ps,
                    sent_bytes: state.result.sent_bytes,
                    queue_bytes: state.queued_bytes,
                    bits_per_second: state.line.bits_per_second(),
                });
            }
        }
    }

    /// A packet goes onto the line.
    pub(super) fn launch(&mut self, port: u32, id: PacketId) {
        let packet = &mut self.packets[id];
        let state = &mut self.ports[port as usize];
        let took = state.line.transmission_ps(packet.bytes + self.model.wire.around_frame);
        state.busy_until_ps = self.now_ps + took;
        state.result.busy_ps += took;
        state.result.sent_packets += 1;
        state.result.sent_bytes += u64::from(packet.bytes);
        if state.loses() {
            state.result.lost += 1;
            self.counts.lost += 1;
            self.remove_packet(id);
            return;
        }
        let arrives_ps = state.busy_until_ps + state.delay_ps;
        if state.crosses {
            return self.post(port, id, arrives_ps);
        }
        if state.on_line.push(id, arrives_ps, &mut self.packets) {
            self.events.push(Event::new(arrives_ps, Kind::Arrives, port));
        }
    }

    fn launch_pause(&mut self, port: u32, id: PacketId) {
        let packet = &mut self.packets[id];
        let state = &mut self.ports[port as usize];
        let took = state.line.transmission_ps(packet.bytes + self.model.wire.around_frame);
        state.busy_until_ps = self.now_ps + took;
        state.result.busy_ps += took;
        let arrives_ps = state.busy_until_ps + state.pause_delay_ps;
        if state.crosses {
            return self.post(port, id, arrives_ps);
        }
        if state.pauses_on_line.push(id, arrives_ps, &mut self.packets) {
            self.events.push(Event::new(arrives_ps, Kind::PauseArrives, port));
        }
    }

    /// The first packet on a port's line is at the other end.
    pub(super) fn arrive(&mut self, port: u32) {
        let state = &mut self.ports[port as usize];
        // What was on the line of a link that failed is not there any more.
        let Some((id, next_ps)) = state.on_line.pop(self.now_ps, &self.packets) else { return };
        let peer = state.peer;
        if let Some(next_ps) = next_ps {
            self.events.push(Event::new(next_ps, Kind::Arrives, port));
        }
        self.counts.arrivals += 1;
        let packet = &self.packets[id];
        let what = u64::from(packet.hash) << 32 | u64::from(packet.content as u8) << 28;
        self.note(Kind::Arrives, self.name(port), what ^ packet.psn);
        if self.ports[peer as usize].is_host {
            self.receive(peer, id);
        } else {
            self.forward(peer, id);
        }
    }

    /// A packet takes its place in a queue.
    pub(super) fn enqueue(&mut self, port: u32, id: PacketId) {
        let packet = &self.packets[id];
        let (priority, bytes) = (packet.priority, u64::from(packet.bytes));
        let state = &mut self.ports[port as usize];
        state.queues[usize::from(priority)].push(id, &mut self.packets);
        state.waiting |= 1 << priority;
        state.queued_bytes += bytes;
        state.result.queue_bytes_max = state.result.queue_bytes_max.max(state.queued_bytes);
        self.kick(port);
    }
}
