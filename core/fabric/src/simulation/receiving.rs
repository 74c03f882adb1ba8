//! Receiving hosts: they acknowledge data, send congestion notifications for marked packets, and request more data of reads
//! (InfiniBand Architecture 1.4, sections 9.7 and 9.9).

use super::receiver::Released;
use super::region::Region;
use super::sending::REVERSE_HASH_XOR;
use crate::event::{Event, Kind};
use crate::packet::{Content, NO_INDEX, Packet, PacketId};
use crate::time::PS_PER_MICROSECOND;

/// Marks of reads are told apart by as much as a ConnectX keeps between notifications.
const READ_NOTIFY_PS: u64 = 4 * PS_PER_MICROSECOND;

impl Region {
    /// A packet is at a host.
    pub(super) fn receive(&mut self, port: u32, id: PacketId) {
        let packet = &self.packets[id];
        let end = packet.flow;
        if packet.to != self.ports[port as usize].node {
            // Hosts forward nothing.
            self.ports[port as usize].result.dropped += 1;
            self.counts.dropped += 1;
            return self.remove_packet(id);
        }
        match packet.content {
            Content::Data => return self.receive_data(end, id),
            Content::Ack => self.acknowledged(end, id, false),
            Content::Nak => self.acknowledged(end, id, true),
            Content::Notification => self.notified(end),
            Content::ReadRequest => self.asked(end, id),
            Content::Pause => {}
        }
        self.counts.consumed += 1;
        self.remove_packet(id);
    }

    /// A receiver finds by which port it answers; false where there is no way. Ports of a host differ in nothing else.
    pub(super) fn begin_receiver(&mut self, number: u32) -> bool {
        let model = &self.model;
        let receiver = &mut self.receivers[number as usize];
        let (_, here) = model.flows[receiver.flow as usize].data_way();
        let port =
            self.routes.port(&model.network, here, receiver.to, receiver.hash ^ REVERSE_HASH_XOR);
        let Some(port) = port else { return false };
        receiver.port = model.places[port as usize];
        receiver.patience_ps = if model.recovers_selectively {
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
        // Without a way back nobody hears that it came.
        if self.receivers[number as usize].port == NO_INDEX && !self.begin_receiver(number) {
            self.counts.consumed += 1;
            return self.remove_packet(id);
        }
        let is_read = self.receivers[number as usize].is_read;
        if is_marked {
            self.note_mark(number, is_read && !self.model.recovers_selectively);
        }
        if self.model.recovers_selectively {
            return self.receive_selectively(number, id);
        }
        let every = self.ack_every();
        let receiver = &mut self.receivers[number as usize];
        receiver.marks += u32::from(is_marked);
        receiver.since_ack += 1;
        let mut answer = None;
        if psn == receiver.expected {
            let is_whole = receiver.accept(payload, self.now_ps);
            if is_whole || receiver.since_ack >= every {
                answer = Some(Content::Ack);
            }
            if is_whole {
                self.message_arrived(number);
            }
        } else if psn < receiver.expected {
            // C9-110: duplicates are acknowledged.
            answer = Some(Content::Ack);
        } else if !receiver.told_gap {
            receiver.told_gap = true;
            answer = Some(Content::Nak);
        }
        self.counts.consumed += 1;
        match answer {
            Some(Content::Nak) if is_read => {
                self.remove_packet(id);
                self.ask_again(number);
            }
            Some(content) if !is_read => self.answer(number, id, content, 0),
            _ => self.remove_packet(id),
        }
    }

    /// Packets for each acknowledgement.
    pub(super) fn ack_every(&self) -> u32 {
        if self.model.needs.acknowledgements { 1 } else { self.model.parameters.ack_every }
    }

    /// The data packet becomes its acknowledgement, which tells of a packet so far `ahead` of the expected one, too.
    pub(super) fn answer(&mut self, number: u32, id: PacketId, content: Content, ahead: u32) {
        let receiver = &mut self.receivers[number as usize];
        let packet = &mut self.packets[id];
        packet.content = content;
        packet.flow = receiver.sender;
        packet.to = receiver.to;
        packet.psn = receiver.expected;
        packet.hash = receiver.hash ^ REVERSE_HASH_XOR;
        packet.priority = self.model.parameters.ack_priority.unwrap_or(receiver.priority);
        packet.bytes = self.model.wire.acknowledgement;
        packet.payload = ahead;
        packet.marks = std::mem::take(&mut receiver.marks).min(255) as u8;
        packet.packets = std::mem::take(&mut receiver.since_ack).min(65_535) as u16;
        let port = receiver.port;
        self.counts.created += 1;
        self.enqueue(port, id);
    }

    /// A message is whole.
    pub(super) fn message_arrived(&mut self, number: u32) {
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
                self.ask(number);
            }
        }
        match releases {
            Some(Released::Sender(other)) => {
                let sender = &mut self.senders[other as usize];
                sender.requester.post(arrived);
                if sender.port != NO_INDEX && !sender.requester.is_over {
                    self.go_on(other);
                }
            }
            Some(Released::Receiver(other)) => {
                let receiver = &mut self.receivers[other as usize];
                receiver.requester.post(arrived);
                if receiver.port != NO_INDEX && !receiver.requester.is_over {
                    self.ask(other);
                }
            }
            None => {}
        }
    }

    /// The receiver saw a mark: it may send a notification.
    fn note_mark(&mut self, number: u32, is_read: bool) {
        let interval = match (self.model.needs.notifications, is_read) {
            (true, _) => self.model.parameters.dcqcn_paper_notify_interval.0,
            (false, true) => READ_NOTIFY_PS,
            (false, false) => return,
        };
        let receiver = &mut self.receivers[number as usize];
        if receiver.notified_ps.is_some_and(|last| self.now_ps < last + interval) {
            return;
        }
        receiver.notified_ps = Some(self.now_ps);
        let priority = self.model.parameters.cnp_priority;
        self.send_control(number, Content::Notification, priority, 0);
    }

    fn send_control(&mut self, number: u32, content: Content, priority: u8, psn: u64) {
        let receiver = &self.receivers[number as usize];
        let port = receiver.port;
        let mut packet = Packet::new(content, receiver.sender, receiver.to, priority);
        packet.hash = receiver.hash ^ REVERSE_HASH_XOR;
        packet.psn = psn;
        packet.sent_ps = self.now_ps;
        packet.bytes = self.model.wire.notification;
        if content == Content::ReadRequest {
            packet.bytes = self.model.wire.read_request;
            packet.payload = u32::try_from(psn - receiver.expected).unwrap_or(u32::MAX);
        }
        let id = self.packets.insert(packet);
        self.counts.created += 1;
        self.enqueue(port, id);
    }

    /// A reader asks for what it may.
    pub(super) fn ask(&mut self, number: u32) {
        loop {
            let receiver = &mut self.receivers[number as usize];
            if receiver.asked >= receiver.requester.allowed() {
                return;
            }
            let psn = receiver.asked_psn();
            if receiver.expected == psn {
                receiver.requester.progress_ps = self.now_ps;
            }
            receiver.asked += 1;
            self.request(number, psn);
        }
    }

    /// A reader asks again for all that is missing.
    fn ask_again(&mut self, number: u32) {
        let psn = self.receivers[number as usize].expected;
        self.request(number, psn);
    }

    fn request(&mut self, number: u32, psn: u64) {
        if self.receivers[number as usize].requester.timer_ps == u64::MAX {
            self.set_ask_timer(number, self.now_ps);
        }
        let priority = self.receivers[number as usize].priority;
        self.send_control(number, Content::ReadRequest, priority, psn);
    }

    /// Sets a reader's timer for what was asked for or heard of at a time.
    fn set_ask_timer(&mut self, number: u32, from_ps: u64) {
        let receiver = &mut self.receivers[number as usize];
        let at_ps = (from_ps + receiver.patience_ps).max(self.now_ps);
        if receiver.patience_ps > 0 && at_ps < receiver.requester.timer_ps {
            receiver.requester.timer_ps = at_ps;
            self.events.push(Event::new(at_ps, Kind::AskTimeout, number));
        }
    }

    /// A reader looks whether it waited too long.
    pub(super) fn ask_timeout(&mut self, number: u32) {
        let now_ps = self.now_ps;
        let receiver = &mut self.receivers[number as usize];
        let requester = &mut receiver.requester;
        if requester.timer_ps != now_ps {
            return;
        }
        requester.timer_ps = u64::MAX;
        let waits = receiver.expected < receiver.asked * receiver.sizes.packets_per_message;
        if requester.is_over || !waits {
            return;
        }
        let heard_ps = requester.progress_ps;
        if now_ps < heard_ps + receiver.patience_ps {
            return self.set_ask_timer(number, heard_ps);
        }
        requester.timeouts += 1;
        requester.retries += 1;
        if requester.retries > self.model.parameters.retries {
            return self.end_receiver(number, true);
        }
        requester.progress_ps = now_ps;
        receiver.told_gap = false;
        // Everything that was asked for, from the first that is missing.
        let each = receiver.sizes.packets_per_message;
        let (missing, messages) = (receiver.expected / each, receiver.asked);
        self.set_ask_timer(number, now_ps);
        self.ask_again(number);
        for message in missing + 1..messages {
            self.request(number, message * each);
        }
    }

    /// A flow that its receiver asked for is done, or failed.
    pub(super) fn end_receiver(&mut self, number: u32, has_failed: bool) {
        self.receivers[number as usize].requester.end(self.now_ps, has_failed);
        self.one_less();
    }
}
