//! Receive side of hosts: acknowledgements, CNPs for marked packets, and read requests (InfiniBand Architecture 1.4,
//! sections 9.7 and 9.9).

use super::host_tx::REVERSE_HASH_XOR;
use super::receiver::Released;
use super::region::Region;
use crate::event::{SimEvent, SimEventKind};
use crate::packet::{NO_INDEX, PacketId, PacketKind, SimPacket};
use crate::time::PS_PER_MICROSECOND;

/// Minimum interval between CNPs of a read, as of ConnectX.
const READ_CNP_INTERVAL_PS: u64 = 4 * PS_PER_MICROSECOND;

impl Region {
    /// Handles the arrival of a packet at a port of a host.
    #[inline(never)]
    pub(super) fn receive(&mut self, port: u32, node: u32, id: PacketId) {
        let packet = &self.packets[id];
        let end = packet.flow;
        if packet.to != node {
            // Hosts forward nothing.
            self.ports[port as usize].result.dropped += 1;
            self.counts.dropped += 1;
            return self.remove_packet(id);
        }
        match packet.kind {
            PacketKind::Data => return self.receive_data(end, id),
            PacketKind::Ack => self.handle_ack(end, id, false),
            PacketKind::Nak => self.handle_ack(end, id, true),
            PacketKind::Cnp => self.handle_cnp(end),
            PacketKind::ReadRequest => self.handle_read_request(end, id),
            PacketKind::Pause => {}
        }
        self.counts.consumed += 1;
        self.remove_packet(id);
    }

    /// Starts a receiver: selects the egress port of its control packets; returns false if the sender is unreachable.
    pub(super) fn start_receiver(&mut self, number: u32) -> bool {
        let model = &self.model;
        let receiver = &mut self.receivers[number as usize];
        let (_, here) = model.flows[receiver.flow as usize].data_endpoints();
        let port =
            self.routes.port(&model.network, here, receiver.to, receiver.hash ^ REVERSE_HASH_XOR);
        let Some(port) = port else { return false };
        receiver.port = model.local_ports[port as usize];
        receiver.timeout_ps = if model.recovers_selectively {
            let base_rtt_ps = model.parameters.base_rtt.map_or(model.base_rtt_ps, |time| time.0);
            model.parameters.selective_timeout_high.0.max(3 * base_rtt_ps)
        } else {
            model.timeout_ps
        };
        true
    }

    fn receive_data(&mut self, number: u32, id: PacketId) {
        let packet = &self.packets[id];
        let (psn, payload, is_marked) = (packet.psn, packet.payload, packet.marks > 0);
        // Without a reverse path the packet cannot be acknowledged.
        if self.receivers[number as usize].port == NO_INDEX && !self.start_receiver(number) {
            self.counts.consumed += 1;
            return self.remove_packet(id);
        }
        let is_read = self.receivers[number as usize].is_read;
        if is_marked {
            self.notify_mark(number, is_read && !self.model.recovers_selectively);
        }
        if self.model.recovers_selectively {
            return self.receive_selectively(number, id);
        }
        let every = self.ack_every();
        let receiver = &mut self.receivers[number as usize];
        receiver.marks += u32::from(is_marked);
        receiver.packets_since_ack += 1;
        let mut reply = None;
        if psn == receiver.expected {
            let is_message_complete = receiver.accept(payload, self.now_ps);
            if is_message_complete || receiver.packets_since_ack >= every {
                reply = Some(PacketKind::Ack);
            }
            if is_message_complete {
                self.complete_message(number);
            }
        } else if psn < receiver.expected {
            // C9-110: duplicates are acknowledged.
            reply = Some(PacketKind::Ack);
        } else if !receiver.nak_sent {
            receiver.nak_sent = true;
            reply = Some(PacketKind::Nak);
        }
        self.counts.consumed += 1;
        match reply {
            Some(PacketKind::Nak) if is_read => {
                self.remove_packet(id);
                self.request_missing(number);
            }
            Some(kind) if !is_read => self.send_ack(number, id, kind, 0),
            _ => self.remove_packet(id),
        }
    }

    /// Returns the number of packets per acknowledgement.
    pub(super) fn ack_every(&self) -> u32 {
        if self.model.needs.acknowledgements { 1 } else { self.model.parameters.ack_every }
    }

    /// Turns a data packet into its acknowledgement, which also acknowledges the packet `ahead` of the expected PSN if
    /// `ahead` is above 0.
    pub(super) fn send_ack(&mut self, number: u32, id: PacketId, kind: PacketKind, ahead: u32) {
        let receiver = &mut self.receivers[number as usize];
        let packet = &mut self.packets[id];
        packet.kind = kind;
        packet.flow = receiver.sender;
        packet.to = receiver.to;
        packet.psn = receiver.expected;
        packet.hash = receiver.hash ^ REVERSE_HASH_XOR;
        packet.priority = self.model.parameters.ack_priority.unwrap_or(receiver.priority);
        packet.bytes = self.model.wire.acknowledgement;
        packet.payload = ahead;
        packet.marks = std::mem::take(&mut receiver.marks).min(255) as u8;
        packet.packets = std::mem::take(&mut receiver.packets_since_ack).min(65_535) as u16;
        let port = receiver.port;
        self.counts.created += 1;
        self.enqueue(port, id);
    }

    /// Handles the completion of a message: completes reads, and posts a message of the flow that it releases.
    pub(super) fn complete_message(&mut self, number: u32) {
        let receiver = &mut self.receivers[number as usize];
        let (arrived, releases) = (receiver.received_messages, receiver.releases);
        receiver.arrived_ps = Some(self.now_ps);
        if receiver.is_read {
            let requester = &mut receiver.requester;
            requester.completed = arrived;
            requester.record_progress(self.now_ps);
            requester.post(arrived);
            if requester.is_done() {
                self.end_receiver(number, false);
            } else {
                self.request_messages(number);
            }
        }
        match releases {
            Some(Released::Sender(other)) => {
                let sender = &mut self.senders[other as usize];
                sender.requester.post(arrived);
                if sender.port != NO_INDEX && !sender.requester.has_ended {
                    self.update_send_limit(other);
                }
            }
            Some(Released::Receiver(other)) => {
                let receiver = &mut self.receivers[other as usize];
                receiver.requester.post(arrived);
                if receiver.port != NO_INDEX && !receiver.requester.has_ended {
                    self.request_messages(other);
                }
            }
            None => {}
        }
    }

    /// Sends a CNP for a marked packet unless the minimum interval has not elapsed or CNPs are not used.
    fn notify_mark(&mut self, number: u32, is_read: bool) {
        let interval = match (self.model.needs.notifications, is_read) {
            (true, _) => self.model.parameters.dcqcn_paper_notify_interval.0,
            (false, true) => READ_CNP_INTERVAL_PS,
            (false, false) => return,
        };
        let receiver = &mut self.receivers[number as usize];
        if receiver.last_cnp_ps.is_some_and(|last| self.now_ps < last + interval) {
            return;
        }
        receiver.last_cnp_ps = Some(self.now_ps);
        let priority = self.model.parameters.cnp_priority;
        self.send_control(number, PacketKind::Cnp, priority, 0);
    }

    fn send_control(&mut self, number: u32, kind: PacketKind, priority: u8, psn: u64) {
        let receiver = &self.receivers[number as usize];
        let port = receiver.port;
        let mut packet = SimPacket::new(kind, receiver.sender, receiver.to, priority);
        packet.hash = receiver.hash ^ REVERSE_HASH_XOR;
        packet.psn = psn;
        packet.sent_ps = self.now_ps;
        packet.bytes = self.model.wire.notification;
        if kind == PacketKind::ReadRequest {
            packet.bytes = self.model.wire.read_request;
            packet.payload = u32::try_from(psn - receiver.expected).unwrap_or(u32::MAX);
        }
        let id = self.packets.insert(packet);
        self.counts.created += 1;
        self.enqueue(port, id);
    }

    /// Requests all messages of a read that may be outstanding.
    pub(super) fn request_messages(&mut self, number: u32) {
        loop {
            let receiver = &mut self.receivers[number as usize];
            if receiver.requested >= receiver.requester.allowed() {
                return;
            }
            let psn = receiver.requested_psn();
            if receiver.expected == psn {
                receiver.requester.progress_ps = self.now_ps;
            }
            receiver.requested += 1;
            self.send_read_request(number, psn);
        }
    }

    /// Requests retransmission of a read from the first missing packet.
    fn request_missing(&mut self, number: u32) {
        let psn = self.receivers[number as usize].expected;
        self.send_read_request(number, psn);
    }

    fn send_read_request(&mut self, number: u32, psn: u64) {
        if self.receivers[number as usize].requester.timer_ps == u64::MAX {
            self.arm_read_timer(number, self.now_ps);
        }
        let priority = self.receivers[number as usize].priority;
        self.send_control(number, PacketKind::ReadRequest, priority, psn);
    }

    /// Arms the timer of a read relative to the last request or progress at `from_ps`.
    fn arm_read_timer(&mut self, number: u32, from_ps: u64) {
        let receiver = &mut self.receivers[number as usize];
        let at_ps = (from_ps + receiver.timeout_ps).max(self.now_ps);
        if receiver.timeout_ps > 0 && at_ps < receiver.requester.timer_ps {
            receiver.requester.timer_ps = at_ps;
            self.events.push(SimEvent::new(at_ps, SimEventKind::ReadTimeout, number));
        }
    }

    /// Handles an expired timer of a read: repeats the outstanding requests or fails the flow.
    pub(super) fn handle_read_timeout(&mut self, number: u32) {
        let now_ps = self.now_ps;
        let receiver = &mut self.receivers[number as usize];
        let requester = &mut receiver.requester;
        if requester.timer_ps != now_ps {
            return;
        }
        requester.timer_ps = u64::MAX;
        let waits = receiver.expected < receiver.requested * receiver.sizes.packets_per_message;
        if requester.has_ended || !waits {
            return;
        }
        let progress_ps = requester.progress_ps;
        if now_ps < progress_ps + receiver.timeout_ps {
            return self.arm_read_timer(number, progress_ps);
        }
        requester.timeouts += 1;
        requester.retries += 1;
        if requester.retries > self.model.parameters.retries {
            return self.end_receiver(number, true);
        }
        requester.progress_ps = now_ps;
        receiver.nak_sent = false;
        // Repeat all outstanding requests, from the first missing packet.
        let each = receiver.sizes.packets_per_message;
        let (missing, messages) = (receiver.expected / each, receiver.requested);
        self.arm_read_timer(number, now_ps);
        self.request_missing(number);
        for message in missing + 1..messages {
            self.send_read_request(number, message * each);
        }
    }

    /// Ends a read, completed or failed.
    pub(super) fn end_receiver(&mut self, number: u32, has_failed: bool) {
        self.receivers[number as usize].requester.end(self.now_ps, has_failed);
        self.count_ended_flow();
    }
}
