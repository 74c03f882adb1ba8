//! Transmit side of hosts: start of flows, round robin of queue pairs, acknowledgements and time-outs (InfiniBand
//! Architecture 1.4, sections 9.7 and 9.9). [`super::recovery`] handles selective retransmission.

use std::sync::Arc;

use super::recovery::Selective;
use super::region::Region;
use super::sender::SenderState;
use crate::congestion::{self, Ack, PathProperties};
use crate::event::{SimEvent, SimEventKind};
use crate::flow::RdmaOperation;
use crate::packet::{Hops, NO_INDEX, PacketId, PacketKind, SimPacket};
use crate::parameters::RoundTrip;
use crate::time::transmission_ps;

/// Makes the ECMP hash of the reverse direction differ from that of the data.
pub(super) const REVERSE_HASH_XOR: u32 = 0x9E37_79B9;

/// FIFO of the senders of a port and priority that can send, linked through `next_ready`.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReadyList {
    head: u32,
    tail: u32,
}

impl ReadyList {
    pub(super) const EMPTY: Self = Self { head: NO_INDEX, tail: NO_INDEX };
}

impl Region {
    /// Starts a flow at its requester.
    pub(super) fn start(&mut self, flow: u32) {
        let model = Arc::clone(&self.model);
        let of = &model.flows[flow as usize];
        let [sender, receiver] = model.ends[flow as usize];
        let is_read = of.operation == RdmaOperation::Read;
        let hash = if is_read {
            self.receivers[receiver as usize].hash
        } else {
            self.senders[sender as usize].hash
        };
        let (from, to) = of.data_endpoints();
        let path = self.routes.find_path(&model.network, from, to, hash);
        let back = self.routes.find_path(&model.network, to, from, hash ^ REVERSE_HASH_XOR);
        let ideal_ps = match (&path, &back) {
            (Some(path), Some(back)) => {
                if model.timeout_ps > 0 && model.timeout_ps < model.round_trip_ps(path, back) {
                    self.counts.early_timeouts += 1;
                }
                Some(model.flow_ideal_ps(path, back, of))
            }
            _ => None,
        };
        let now_ps = self.now_ps;
        let requester = if is_read {
            &mut self.receivers[receiver as usize].requester
        } else {
            &mut self.senders[sender as usize].requester
        };
        requester.progress_ps = now_ps;
        requester.ideal_ps = ideal_ps.unwrap_or(0);
        requester.post(0);
        match (ideal_ps, is_read) {
            (None, true) => self.end_receiver(receiver, true),
            (None, false) => self.end_sender(sender, true),
            (Some(_), true) => {
                self.start_receiver(receiver);
                self.request_messages(receiver);
            }
            (Some(_), false) => {
                self.start_sender(sender);
                self.update_send_limit(sender);
            }
        }
    }

    /// Starts a sender: selects its path and congestion control; returns false if the receiver is unreachable.
    pub(super) fn start_sender(&mut self, number: u32) -> bool {
        let model = Arc::clone(&self.model);
        let (flow, to, hash) = {
            let sender = &self.senders[number as usize];
            (sender.flow, sender.to, sender.hash)
        };
        let (from, _) = model.flows[flow as usize].data_endpoints();
        let Some(path) = self.routes.find_path(&model.network, from, to, hash) else {
            return false;
        };
        let parameters = &model.parameters;
        let base_rtt_ps = match (parameters.base_rtt, parameters.base_rtt_of) {
            (Some(time), _) => time.0,
            (None, RoundTrip::Longest) => model.base_rtt_ps,
            (None, RoundTrip::Own) => {
                let back = self.routes.find_path(&model.network, to, from, hash ^ REVERSE_HASH_XOR);
                model.own_round_trip_ps(&path, &back.unwrap_or_default())
            }
        };
        let rate = |port: &u32| model.network.ports[*port as usize].line.bits_per_second();
        let properties = PathProperties {
            line_bps: rate(&path[0]),
            bottleneck_bps: path.iter().map(rate).min().unwrap_or_default(),
            base_rtt_ps,
            hops: path.len() as u32,
            mtu: parameters.mtu,
            packet_bytes: parameters.mtu + model.wire.data_headers + model.wire.frame_overhead,
        };
        let (congestion, pace) = congestion::start(parameters, &properties);
        let sender = &mut self.senders[number as usize];
        sender.port = model.local_ports[path[0] as usize];
        sender.congestion = congestion;
        sender.pace = pace;
        sender.selective = model.recovers_selectively.then(|| {
            Box::new(Selective::new(parameters, &properties, sender.sizes(), model.needs))
        });
        true
    }

    /// Updates the send limit of a sender after messages were posted or completed.
    pub(super) fn update_send_limit(&mut self, number: u32) {
        let sender = &mut self.senders[number as usize];
        sender.set_limit(sender.requester.allowed());
        self.schedule_sender(number);
    }

    /// Schedules an idle sender that can send: in the ready list, or after its pacing gap.
    pub(super) fn schedule_sender(&mut self, number: u32) {
        let sender = &mut self.senders[number as usize];
        if sender.state != SenderState::Idle || !sender.can_send() {
            return;
        }
        let (port, at_ps) = (sender.port, sender.next_at_ps);
        if at_ps <= self.now_ps.max(self.ports[port as usize].busy_until_ps) {
            self.push_ready(number);
            self.try_transmit(port);
        } else {
            sender.state = SenderState::Paced;
            self.events.push(SimEvent::new(at_ps, SimEventKind::PacingDone, number));
        }
    }

    /// Handles the end of a sender's pacing gap.
    pub(super) fn resume_paced(&mut self, number: u32) {
        let sender = &mut self.senders[number as usize];
        if sender.state == SenderState::Paced {
            sender.state = SenderState::Idle;
            self.schedule_sender(number);
        }
    }

    fn push_ready(&mut self, number: u32) {
        let sender = &mut self.senders[number as usize];
        sender.state = SenderState::Ready;
        sender.next_ready = NO_INDEX;
        let (port, priority) = (sender.port as usize, usize::from(sender.priority));
        let line = &mut self.ready[port][priority];
        if line.head == NO_INDEX {
            line.head = number;
            self.ports[port].ready |= 1 << priority;
        } else {
            self.senders[line.tail as usize].next_ready = number;
        }
        self.ready[port][priority].tail = number;
    }

    /// Sends a packet of the next ready sender of a port and priority; returns false if none can send.
    pub(super) fn send_data(&mut self, port: u32, priority: u8) -> bool {
        loop {
            let line = &mut self.ready[port as usize][usize::from(priority)];
            let number = line.head;
            if number == NO_INDEX {
                self.ports[port as usize].ready &= !(1 << priority);
                return false;
            }
            let sender = &mut self.senders[number as usize];
            line.head = sender.next_ready;
            if line.head == NO_INDEX {
                self.ports[port as usize].ready &= !(1 << priority);
            }
            if sender.state == SenderState::Ready {
                sender.state = SenderState::Idle;
            }
            if sender.can_send() {
                self.send_packet(number);
                return true;
            }
        }
    }

    fn send_packet(&mut self, number: u32) {
        let now_ps = self.now_ps;
        let sender = &mut self.senders[number as usize];
        let is_read_response = sender.operation == RdmaOperation::Read;
        if sender.next == sender.unacknowledged {
            sender.requester.progress_ps = now_ps;
        }
        let has_header = sender.operation == RdmaOperation::Write;
        let mut packet =
            SimPacket::new(PacketKind::Data, sender.receiver, sender.to, sender.priority);
        packet.hash = sender.hash;
        packet.sent_ps = now_ps;
        let taken = sender.take(now_ps);
        packet.psn = taken.psn;
        packet.payload = taken.payload;
        packet.is_last = taken.is_last;
        let is_first = taken.is_first && (has_header || is_read_response);
        packet.bytes =
            self.model.wire.data_bytes(taken.payload, is_first, taken.is_last, is_read_response);
        if self.model.needs.telemetry {
            packet.telemetry = self.telemetry.insert(Hops::default());
        }
        let wire_bytes = packet.bytes + self.model.wire.frame_overhead;
        if sender.pace.has_timers
            && let Some(congestion) = &mut sender.congestion
        {
            congestion.on_send(now_ps, wire_bytes, &mut sender.pace);
        }
        let rate_bps = sender.pace.rate_bps;
        let port = sender.port;
        if sender.requester.timer_ps == u64::MAX && !is_read_response {
            self.arm_timer(number, now_ps);
        }
        let id = self.packets.insert(packet);
        self.counts.created += 1;
        self.start_transmission(port, id, 0);
        let state = &self.ports[port as usize];
        let gap_ps = if rate_bps >= state.line.bits_per_second() {
            state.busy_until_ps - now_ps
        } else {
            transmission_ps(u64::from(wire_bytes), rate_bps)
        };
        let busy_until_ps = state.busy_until_ps;
        let sender = &mut self.senders[number as usize];
        sender.next_at_ps = now_ps + gap_ps;
        if sender.state == SenderState::Idle && sender.can_send() {
            if sender.next_at_ps <= busy_until_ps {
                self.push_ready(number);
            } else {
                sender.state = SenderState::Paced;
                self.events.push(SimEvent::new(
                    sender.next_at_ps,
                    SimEventKind::PacingDone,
                    number,
                ));
            }
        }
    }

    /// Handles the arrival of an ACK or NAK at the sender.
    pub(super) fn handle_ack(&mut self, number: u32, id: PacketId, is_gap: bool) {
        if self.model.recovers_selectively {
            return self.handle_selective_ack(number, id);
        }
        let packet = &self.packets[id];
        let psn = packet.psn;
        let sender = &mut self.senders[number as usize];
        if sender.state == SenderState::Ended || psn < sender.unacknowledged {
            return;
        }
        let completed = sender.requester.completed;
        if psn > sender.unacknowledged {
            sender.acknowledge(psn);
            sender.requester.record_progress(self.now_ps);
        }
        if is_gap && sender.next > psn {
            sender.go_back(psn);
        }
        sender.marks += u64::from(packet.marks);
        if let Some(congestion) = &mut sender.congestion {
            let hops = match packet.telemetry {
                NO_INDEX => &[],
                index => self.telemetry[index].as_slice(),
            };
            let ack = Ack {
                now_ps: self.now_ps,
                acknowledged: psn,
                next: sender.next,
                packets: u32::from(packet.packets),
                marks: u32::from(packet.marks),
                round_trip_ps: self.now_ps - packet.sent_ps,
                hops,
                ..Ack::default()
            };
            congestion.on_ack(&ack, &mut sender.pace);
        }
        self.handle_completions(number, completed);
    }

    /// Handles completions of an acknowledgement, before which `before` messages were complete.
    pub(super) fn handle_completions(&mut self, number: u32, before: u64) {
        let sender = &mut self.senders[number as usize];
        if sender.requester.completed == before {
            return self.schedule_sender(number);
        }
        if sender.requester.is_done() {
            return self.end_sender(number, false);
        }
        if !sender.requester.is_released {
            sender.requester.post(0);
        }
        self.update_send_limit(number);
    }

    pub(super) fn handle_cnp(&mut self, number: u32) {
        let sender = &mut self.senders[number as usize];
        sender.marks += 1;
        if let Some(congestion) = &mut sender.congestion {
            congestion.on_cnp(self.now_ps, &mut sender.pace);
        }
    }

    /// Handles a read request at the responder: a new PSN requests the next message, an earlier one a retransmission.
    pub(super) fn handle_read_request(&mut self, number: u32, id: PacketId) {
        let packet = &self.packets[id];
        let (psn, ahead) = (packet.psn, packet.payload);
        let now_ps = self.now_ps;
        // Without a path to the requester the request is dropped; the requester repeats it.
        if self.senders[number as usize].port == NO_INDEX && !self.start_sender(number) {
            return;
        }
        let sender = &mut self.senders[number as usize];
        if ahead == 0
            && psn > sender.unacknowledged
            && let Some(selective) = &mut sender.selective
        {
            // The request acknowledges all packets before the first missing one.
            selective.board.acknowledge(now_ps, psn, None);
            sender.acknowledge(psn);
        }
        if psn < sender.next {
            sender.retransmit_from(psn);
        }
        // A request implies all earlier ones, in case they were lost.
        sender.set_limit(psn / sender.packets_per_message + 1);
        self.schedule_sender(number);
    }

    /// Returns the retransmission time-out of a sender; 0 if disabled.
    fn rto_ps(&self, number: u32) -> u64 {
        let selective = self.senders[number as usize].selective.as_ref();
        selective.map_or(self.model.timeout_ps, |selective| selective.rto_ps())
    }

    /// Arms the retransmission timer relative to the last transmission or progress at `from_ps`.
    pub(super) fn arm_timer(&mut self, number: u32, from_ps: u64) {
        let rto_ps = self.rto_ps(number);
        let requester = &mut self.senders[number as usize].requester;
        let at_ps = (from_ps + rto_ps).max(self.now_ps);
        // A pending later event stays in the queue and is ignored when it fires.
        if rto_ps > 0 && at_ps < requester.timer_ps {
            requester.timer_ps = at_ps;
            self.events.push(SimEvent::new(at_ps, SimEventKind::Timeout, number));
        }
    }

    /// Handles an expired retransmission timer: retransmits or fails the flow.
    pub(super) fn handle_timeout(&mut self, number: u32) {
        let now_ps = self.now_ps;
        let sender = &mut self.senders[number as usize];
        if sender.requester.timer_ps != now_ps {
            return;
        }
        sender.requester.timer_ps = u64::MAX;
        if sender.state == SenderState::Ended || sender.unacknowledged >= sender.next {
            return;
        }
        let progress_ps = sender.requester.progress_ps;
        if now_ps < progress_ps + self.rto_ps(number) {
            return self.arm_timer(number, progress_ps);
        }
        let sender = &mut self.senders[number as usize];
        sender.requester.timeouts += 1;
        sender.requester.retries += 1;
        if sender.requester.retries > self.model.parameters.retries {
            return self.end_sender(number, true);
        }
        sender.requester.progress_ps = now_ps;
        if let Some(selective) = &mut sender.selective {
            selective.back_off();
            if let Some(congestion) = &mut sender.congestion {
                congestion.on_timeout(now_ps, &mut sender.pace);
            }
        }
        self.arm_timer(number, now_ps);
        let sender = &mut self.senders[number as usize];
        sender.retransmit_from(sender.unacknowledged);
        self.schedule_sender(number);
    }

    /// Ends a write or send, completed or failed.
    pub(super) fn end_sender(&mut self, number: u32, has_failed: bool) {
        let sender = &mut self.senders[number as usize];
        sender.state = SenderState::Ended;
        sender.congestion = None;
        sender.requester.end(self.now_ps, has_failed);
        self.count_ended_flow();
    }
}
