//! Ports: priority queues, scheduling, transmission and propagation.

use crate::event::{SimEvent, SimEventKind};
use crate::network::Marking;
use crate::packet::{Hop, NO_INDEX, PacketId, PacketKind, PacketList};
use crate::simulation::model::RunModel;
use crate::simulation::region::Region;
use crate::time::LineRate;
use penstock_random::Random;

/// Counters of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PortResult {
    /// Frames transmitted, PFC frames excluded.
    pub sent_packets: u64,
    /// Bytes of these frames, without preamble and inter-packet gap.
    pub sent_bytes: u64,
    /// Time during which the port transmitted, in picoseconds.
    pub busy_ps: u64,
    /// Longest queue in bytes, all priorities together.
    pub queue_bytes_max: u64,
    /// Frames marked with ECN.
    pub marked: u64,
    /// Frames dropped for lack of buffer or route.
    pub dropped: u64,
    /// Frames lost on the link.
    pub lost: u64,
    /// PFC pause frames sent to the other end.
    pub pauses_sent: u64,
    /// Time during which the other end paused the port, summed over priorities, in picoseconds.
    pub paused_ps: u64,
    /// Actions of the PFC watchdog.
    pub watchdog: u64,
    /// Frames dropped by the PFC watchdog.
    pub watchdog_dropped: u64,
}

/// Other end of a port's link: all that an arriving packet needs, apart from the state of the port, so that many fit
/// into a processor's first cache.
#[derive(Debug, Clone, Copy)]
pub(super) struct FarEnd {
    /// Number of the port itself in the whole network.
    pub(super) id: u32,
    /// Port at the other end.
    pub(super) port: u32,
    /// Node at which the link ends.
    pub(super) node: u32,
    pub(super) is_host: bool,
}

/// State of a port. The first two cache lines hold the fields that every packet touches.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct PortState {
    pub(super) busy_until_ps: u64,
    pub(super) line: LineRate,
    /// Delay from the last bit transmitted to the handling of the packet at the other end.
    pub(super) delay_ps: u64,
    pub(super) queued_bytes: u64,
    /// Queue length up to which no packet is marked with ECN; [`u64::MAX`] without marking.
    unmarked_bytes: u64,
    pub(super) node: u32,
    /// True while an event [`SimEventKind::TransmitDone`] is pending.
    pub(super) has_transmit_scheduled: bool,
    pub(super) is_host: bool,
    /// Bit masks of priorities: with queued packets, with queue pairs that can send, paused by the other end, and with
    /// the pause overridden by the watchdog.
    pub(super) waiting: u8,
    pub(super) ready: u8,
    pub(super) paused: u8,
    pub(super) pause_ignored: u8,
    /// Priorities whose queued packets are sent despite a pause: acknowledgements of hosts with `ack_unpaused`.
    never_paused: u8,
    /// True if the link ends in another region.
    crosses_region: bool,
    pub(super) is_up: bool,
    /// True if the link loses packets.
    is_lossy: bool,
    /// Current priority of the deficit round robin.
    drr_priority: u8,

    /// Region where the link ends, and the number of this port there.
    pub(super) far_region: u32,
    pub(super) far_port: u32,
    pub(super) pauses: PacketList,
    pub(super) result: PortResult,
    pub(super) queues: [PacketList; 8],
    /// Queue length above which every packet is marked, and the probability just below.
    marked_bytes: u64,
    marking_probability: f64,
    pub(super) queue_limit_bytes: Option<u64>,
    pub(super) pause_delay_ps: u64,
    random: Random,
    loss: f64,
    loss_burst: f64,
    is_in_loss_burst: bool,
    deficits: [i64; 8],
}

impl PortState {
    /// Creates a port of the network. `far` is the region where its link ends and the port's number there, if that is
    /// another region.
    pub(super) fn new(model: &RunModel, id: u32, far: Option<(u32, u32)>) -> Self {
        let port = &model.network.ports[id as usize];
        let unmarked = Marking { least_bytes: u64::MAX, most_bytes: u64::MAX, probability: 0.0 };
        let marking = model.marking(id).unwrap_or(unmarked);
        let (far_region, far_port) = far.unwrap_or((NO_INDEX, NO_INDEX));
        Self {
            busy_until_ps: 0,
            has_transmit_scheduled: false,
            is_host: model.is_host(port.node),
            waiting: 0,
            ready: 0,
            paused: 0,
            pause_ignored: 0,
            never_paused: if model.is_host(port.node) && model.parameters.ack_unpaused {
                0xFF
            } else {
                0
            },
            crosses_region: far.is_some(),
            is_up: true,
            node: port.node,
            line: port.line,
            delay_ps: model.delay_ps(id),
            pause_delay_ps: model.pause_delay_ps(id),
            queued_bytes: 0,
            queues: [PacketList::EMPTY; 8],
            pauses: PacketList::EMPTY,
            unmarked_bytes: marking.least_bytes,
            marked_bytes: marking.most_bytes,
            marking_probability: marking.probability,
            queue_limit_bytes: port.queue_bytes,
            is_lossy: port.loss > 0.0,
            loss: port.loss,
            loss_burst: port.loss_burst,
            is_in_loss_burst: false,
            deficits: [0; 8],
            drr_priority: 0,
            random: Random::stream(model.parameters.seed, "port", u64::from(id)),
            result: PortResult::default(),
            far_region,
            far_port,
        }
    }

    /// Returns the region where the link ends and the port's number there; none if that is its own region.
    pub(super) fn remote_line(&self) -> Option<(u32, u32)> {
        self.crosses_region.then_some((self.far_region, self.far_port))
    }

    /// Returns the priorities that have something to send and may send it.
    const fn eligible(&self) -> u8 {
        let held = self.paused & !self.pause_ignored;
        self.waiting & (!held | self.never_paused) | self.ready & !held
    }

    /// True if a packet of a priority (a bit mask) would be transmitted as soon as it is queued.
    pub(super) const fn is_idle(&self, now_ps: u64, priority: u8) -> bool {
        let held = self.paused & !self.pause_ignored & !self.never_paused;
        self.busy_until_ps <= now_ps
            && self.waiting | self.ready | held & priority == 0
            && self.is_up
            && !self.has_transmit_scheduled
            && self.pauses.is_empty()
    }

    /// Draws whether a lossy link loses the next frame: Gilbert model with a mean burst length of `loss_burst` frames.
    #[inline(never)]
    fn draw_loss(&mut self) -> bool {
        let change = if self.is_in_loss_burst {
            1.0 / self.loss_burst
        } else {
            (self.loss / (self.loss_burst * (1.0 - self.loss).max(1e-12))).min(1.0)
        };
        // Without bursts losses are independent.
        self.is_in_loss_burst = if self.loss_burst <= 1.0 {
            self.random.unit() < self.loss
        } else {
            self.is_in_loss_burst != (self.random.unit() < change)
        };
        self.is_in_loss_burst
    }

    /// Draws whether a packet that leaves more than `unmarked_bytes` in its queue is marked.
    #[inline(never)]
    fn draw_mark(&mut self, queue_bytes: u64) -> bool {
        if queue_bytes > self.marked_bytes {
            true
        } else {
            let share = (queue_bytes - self.unmarked_bytes) as f64
                / (self.marked_bytes - self.unmarked_bytes) as f64;
            self.random.unit() < self.marking_probability * share
        }
    }
}

impl Region {
    /// Transmits if the link is idle, or else schedules a transmission for when it becomes idle.
    pub(super) fn try_transmit(&mut self, port: u32) {
        let state = &mut self.ports[port as usize];
        if state.has_transmit_scheduled {
            return;
        }
        if state.busy_until_ps > self.now_ps {
            state.has_transmit_scheduled = true;
            let done = SimEvent::new(state.busy_until_ps, SimEventKind::TransmitDone, port);
            self.events.push_near(done);
        } else {
            self.transmit(port);
        }
    }

    /// Transmits the next frame on an idle link, PFC frames first, and schedules the next transmission if more wait.
    pub(super) fn transmit(&mut self, port: u32) {
        if !self.ports[port as usize].is_up {
            return;
        }
        if let Some(id) = self.ports[port as usize].pauses.pop(&self.packets) {
            self.start_pause_transmission(port, id);
        } else if !self.transmit_packet(port) {
            return;
        }
        let state = &mut self.ports[port as usize];
        if !state.has_transmit_scheduled && (!state.pauses.is_empty() || state.eligible() != 0) {
            state.has_transmit_scheduled = true;
            let done = SimEvent::new(state.busy_until_ps, SimEventKind::TransmitDone, port);
            self.events.push_near(done);
        }
    }

    /// Transmits the next packet; returns false if no priority may send.
    fn transmit_packet(&mut self, port: u32) -> bool {
        loop {
            let eligible = self.ports[port as usize].eligible();
            if eligible == 0 {
                return false;
            }
            let priority = self.select_priority(port, eligible);
            let state = &mut self.ports[port as usize];
            if let Some(id) = state.queues[usize::from(priority)].pop(&self.packets) {
                let next = state.queues[usize::from(priority)].head();
                self.packets.prefetch(next);
                let bytes = u64::from(self.packets[id].bytes);
                state.queued_bytes -= bytes;
                if state.queues[usize::from(priority)].is_empty() {
                    state.waiting &= !(1 << priority);
                }
                let queue_bytes = state.queues[usize::from(priority)].bytes;
                self.transmit_dequeued(port, id, queue_bytes);
                return true;
            }
            if self.send_data(port, priority) {
                return true;
            }
        }
    }

    /// Transmits a packet that left its queue, which holds `queue_bytes` without it.
    #[inline]
    fn transmit_dequeued(&mut self, port: u32, id: PacketId, queue_bytes: u64) {
        let state = &self.ports[port as usize];
        let packet = &self.packets[id];
        let (node, is_host, ingress) = (state.node, state.is_host, packet.ingress);
        let (priority, bytes) = (packet.priority, packet.bytes);
        self.start_transmission(port, id, queue_bytes);
        if !is_host {
            self.release(node, ingress, priority, bytes);
        }
    }

    /// Selects a priority: strict ones from the highest number, then weighted ones by deficit round robin (Shreedhar
    /// and Varghese 1995).
    fn select_priority(&mut self, port: u32, eligible: u8) -> u8 {
        let strict = eligible & self.model.strict;
        if strict != 0 {
            return 7 - strict.leading_zeros() as u8;
        }
        loop {
            let state = &mut self.ports[port as usize];
            let drr_priority = usize::from(state.drr_priority);
            if eligible & (1 << drr_priority) != 0 {
                let head = state.queues[drr_priority].head();
                let bytes = if head == NO_INDEX {
                    i64::from(self.model.longest_frame)
                } else {
                    i64::from(self.packets[head].bytes)
                };
                if state.deficits[drr_priority] >= bytes {
                    state.deficits[drr_priority] -= bytes;
                    return drr_priority as u8;
                }
            } else {
                state.deficits[drr_priority] = 0;
            }
            state.drr_priority = ((drr_priority + 1) % 8) as u8;
            let next = usize::from(state.drr_priority);
            if eligible & (1 << next) != 0 {
                state.deficits[next] += i64::from(self.model.parameters.weights[next])
                    * i64::from(self.model.longest_frame);
            }
        }
    }

    /// Starts the transmission of a packet that left its queue, which holds `queue_bytes` without it. A switch applies
    /// ECN marking and in-band telemetry; the link may lose the packet.
    pub(super) fn start_transmission(&mut self, port: u32, id: PacketId, queue_bytes: u64) {
        let packet = &mut self.packets[id];
        let state = &mut self.ports[port as usize];
        if queue_bytes > state.unmarked_bytes
            && packet.kind == PacketKind::Data
            && state.draw_mark(queue_bytes)
        {
            packet.marks = 1;
            state.result.marked += 1;
        }
        if packet.telemetry != NO_INDEX && packet.kind == PacketKind::Data && !state.is_host {
            self.telemetry[packet.telemetry].push(Hop {
                time_ps: self.now_ps,
                sent_bytes: state.result.sent_bytes,
                queue_bytes: state.queued_bytes,
                bits_per_second: state.line.bits_per_second(),
            });
        }
        let took = state.line.transmission_ps(packet.bytes + self.model.wire.frame_overhead);
        state.busy_until_ps = self.now_ps + took;
        state.result.busy_ps += took;
        state.result.sent_packets += 1;
        state.result.sent_bytes += u64::from(packet.bytes);
        if state.is_lossy && state.draw_loss() {
            return self.lose_packet(port, id);
        }
        let arrives_ps = state.busy_until_ps + state.delay_ps;
        if state.crosses_region {
            return self.send_mail(port, id, arrives_ps);
        }
        let arrival = SimEvent::with_packet(arrives_ps, SimEventKind::Arrival, port, id);
        self.events.push_near(arrival);
    }

    #[cold]
    fn lose_packet(&mut self, port: u32, id: PacketId) {
        self.ports[port as usize].result.lost += 1;
        self.counts.lost += 1;
        self.remove_packet(id);
    }

    fn start_pause_transmission(&mut self, port: u32, id: PacketId) {
        let packet = &mut self.packets[id];
        let state = &mut self.ports[port as usize];
        let took = state.line.transmission_ps(packet.bytes + self.model.wire.frame_overhead);
        state.busy_until_ps = self.now_ps + took;
        state.result.busy_ps += took;
        let arrives_ps = state.busy_until_ps + state.pause_delay_ps;
        if state.crosses_region {
            return self.send_mail(port, id, arrives_ps);
        }
        self.events.push(SimEvent::with_packet(arrives_ps, SimEventKind::PauseArrival, port, id));
    }

    /// Handles the arrival of a packet at the other end of a port's link.
    pub(super) fn arrive(&mut self, port: u32, id: PacketId) {
        // A failed link has lost its packets.
        if id == NO_INDEX {
            return;
        }
        self.packets.prefetch(self.events.following().packet());
        let FarEnd { id: port_id, port: peer, node, is_host } = self.far_ends[port as usize];
        self.counts.arrivals += 1;
        let packet = &self.packets[id];
        let what = u64::from(packet.hash) << 32 | u64::from(packet.kind as u8) << 28;
        self.record_digest(SimEventKind::Arrival, port_id, what ^ packet.psn);
        if is_host {
            self.receive(peer, node, id);
        } else {
            self.forward(peer, node, id);
        }
    }

    /// Appends a packet to the queue of its priority; an idle port transmits it at once.
    pub(super) fn enqueue(&mut self, port: u32, id: PacketId) {
        let packet = &self.packets[id];
        let (priority, bytes) = (packet.priority, u64::from(packet.bytes));
        let state = &mut self.ports[port as usize];
        if state.is_idle(self.now_ps, 1 << priority) && self.model.strict & 1 << priority != 0 {
            state.result.queue_bytes_max = state.result.queue_bytes_max.max(bytes);
            return self.transmit_dequeued(port, id, 0);
        }
        state.queues[usize::from(priority)].push(id, &mut self.packets);
        state.waiting |= 1 << priority;
        state.queued_bytes += bytes;
        state.result.queue_bytes_max = state.result.queue_bytes_max.max(state.queued_bytes);
        self.try_transmit(port);
    }
}
