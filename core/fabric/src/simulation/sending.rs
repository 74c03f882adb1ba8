//! Sending hosts: start of flows, round robin of queue pairs, acknowledgements and time-outs (InfiniBand Architecture 1.4,
//! sections 9.7 and 9.9). [`super::recovery`] has the differences of selective retransmission.

use std::sync::Arc;

use super::recovery::Selective;
use super::region::Region;
use super::sender::State;
use crate::congestion::{self, Ack, Path};
use crate::event::{Event, Kind};
use crate::flow::Operation;
use crate::packet::{Content, Hops, NO_INDEX, Packet, PacketId};
use crate::parameters::RoundTrip;
use crate::time::transmission_ps;

/// Acknowledgements have another hash than their data.
pub(super) const REVERSE_HASH_XOR: u32 = 0x9E37_79B9;

/// Senders of a port and priority that can send, one behind the other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Line {
    head: u32,
    tail: u32,
}

impl Line {
    pub(super) const EMPTY: Self = Self { head: NO_INDEX, tail: NO_INDEX };
}

impl Region {
    /// A flow begins at the end that asks.
    pub(super) fn start(&mut self, flow: u32) {
        let model = Arc::clone(&self.model);
        let of = &model.flows[flow as usize];
        let [sender, receiver] = model.ends[flow as usize];
        let is_read = of.operation == Operation::Read;
        let hash = if is_read {
            self.receivers[receiver as usize].hash
        } else {
            self.senders[sender as usize].hash
        };
        let (from, to) = of.data_way();
        let way = self.routes.way(&model.network, from, to, hash);
        let back = self.routes.way(&model.network, to, from, hash ^ REVERSE_HASH_XOR);
        let ideal_ps = match (&way, &back) {
            (Some(way), Some(back)) => {
                if model.timeout_ps > 0 && model.timeout_ps < model.round_trip_ps(way, back) {
                    self.counts.early_timeouts += 1;
                }
                Some(model.ideal_over(way, back, of))
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
                self.begin_receiver(receiver);
                self.ask(receiver);
            }
            (Some(_), false) => {
                self.begin_sender(sender);
                self.go_on(sender);
            }
        }
    }

    /// A sender finds its way and what it may send; false where there is no way.
    pub(super) fn begin_sender(&mut self, number: u32) -> bool {
        let model = Arc::clone(&self.model);
        let (flow, to, hash) = {
            let sender = &self.senders[number as usize];
            (sender.flow, sender.to, sender.hash)
        };
        let (from, _) = model.flows[flow as usize].data_way();
        let Some(way) = self.routes.way(&model.network, from, to, hash) else { return false };
        let parameters = &model.parameters;
        let base_rtt_ps = match (parameters.base_rtt, parameters.base_rtt_of) {
            (Some(time), _) => time.0,
            (None, RoundTrip::Longest) => model.base_rtt_ps,
            (None, RoundTrip::Own) => {
                let back = self.routes.way(&model.network, to, from, hash ^ REVERSE_HASH_XOR);
                model.own_round_trip_ps(&way, &back.unwrap_or_default())
            }
        };
        let rate = |port: &u32| model.network.ports[*port as usize].line.bits_per_second();
        let path = Path {
            line_bps: rate(&way[0]),
            bottleneck_bps: way.iter().map(rate).min().unwrap_or_default(),
            base_rtt_ps,
            hops: way.len() as u32,
            mtu: parameters.mtu,
            packet_bytes: parameters.mtu + model.wire.data_headers + model.wire.around_frame,
        };
        let (congestion, pace) = congestion::start(parameters, &path);
        let sender = &mut self.senders[number as usize];
        sender.port = model.places[way[0] as usize];
        sender.congestion = congestion;
        sender.pace = pace;
        sender.selective = model
            .recovers_selectively
            .then(|| Box::new(Selective::new(parameters, &path, sender.sizes(), model.needs)));
        true
    }

    /// Posting or completions changed what a sender may have under way.
    pub(super) fn go_on(&mut self, number: u32) {
        let sender = &mut self.senders[number as usize];
        sender.set_limit(sender.requester.allowed());
        self.wake(number);
    }

    /// Puts a sender that can send where it is found.
    pub(super) fn wake(&mut self, number: u32) {
        let sender = &mut self.senders[number as usize];
        if sender.state != State::Idle || !sender.can_send() {
            return;
        }
        let (port, at_ps) = (sender.port, sender.next_at_ps);
        if at_ps <= self.now_ps.max(self.ports[port as usize].busy_until_ps) {
            self.line_up(number);
            self.kick(port);
        } else {
            sender.state = State::Paced;
            self.events.push(Event::new(at_ps, Kind::Paced, number));
        }
    }

    /// The gap after a sender's last packet is over.
    pub(super) fn paced(&mut self, number: u32) {
        let sender = &mut self.senders[number as usize];
        if sender.state == State::Paced {
            sender.state = State::Idle;
            self.wake(number);
        }
    }

    fn line_up(&mut self, number: u32) {
        let sender = &mut self.senders[number as usize];
        sender.state = State::Ready;
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

    /// The next sender of a port and priority sends a packet; false where none can.
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
            if sender.state == State::Ready {
                sender.state = State::Idle;
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
        let is_answer = sender.operation == Operation::Read;
        if sender.next == sender.unacknowledged {
            sender.requester.progress_ps = now_ps;
        }
        let has_header = sender.operation == Operation::Write;
        let mut packet = Packet::new(Content::Data, sender.receiver, sender.to, sender.priority);
        packet.hash = sender.hash;
        packet.sent_ps = now_ps;
        let taken = sender.take(now_ps);
        packet.psn = taken.psn;
        packet.payload = taken.payload;
        packet.is_last = taken.is_last;
        let is_first = taken.is_first && (has_header || is_answer);
        packet.bytes = self.model.wire.data(taken.payload, is_first, taken.is_last, is_answer);
        if self.model.needs.telemetry {
            packet.telemetry = self.telemetry.insert(Hops::default());
        }
        let on_line = packet.bytes + self.model.wire.around_frame;
        if sender.pace.has_timers
            && let Some(congestion) = &mut sender.congestion
        {
            congestion.on_send(now_ps, on_line, &mut sender.pace);
        }
        let rate_bps = sender.pace.rate_bps;
        let port = sender.port;
        if sender.requester.timer_ps == u64::MAX && !is_answer {
            self.set_timer(number, now_ps);
        }
        let id = self.packets.insert(packet);
        self.counts.created += 1;
        self.launch(port, id);
        let state = &self.ports[port as usize];
        let gap_ps = if rate_bps >= state.line.bits_per_second() {
            state.busy_until_ps - now_ps
        } else {
            transmission_ps(u64::from(on_line), rate_bps)
        };
        let busy_until_ps = state.busy_until_ps;
        let sender = &mut self.senders[number as usize];
        sender.next_at_ps = now_ps + gap_ps;
        if sender.state == State::Idle && sender.can_send() {
            if sender.next_at_ps <= busy_until_ps {
                self.line_up(number);
            } else {
                sender.state = State::Paced;
                self.events.push(Event::new(sender.next_at_ps, Kind::Paced, number));
            }
        }
    }

    /// An acknowledgement is at the sender.
    pub(super) fn acknowledged(&mut self, number: u32, id: PacketId, is_gap: bool) {
        if self.model.recovers_selectively {
            return self.acknowledged_selectively(number, id);
        }
        let packet = &self.packets[id];
        let psn = packet.psn;
        let sender = &mut self.senders[number as usize];
        if sender.state == State::Over || psn < sender.unacknowledged {
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
                place => self.telemetry[place].as_slice(),
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
        self.completed(number, completed);
    }

    /// An acknowledgement was heard, before which so many messages were complete.
    pub(super) fn completed(&mut self, number: u32, before: u64) {
        let sender = &mut self.senders[number as usize];
        if sender.requester.completed == before {
            return self.wake(number);
        }
        if sender.requester.is_done() {
            return self.end_sender(number, false);
        }
        if !sender.requester.is_released {
            sender.requester.post(0);
        }
        self.go_on(number);
    }

    pub(super) fn notified(&mut self, number: u32) {
        let sender = &mut self.senders[number as usize];
        sender.marks += 1;
        if let Some(congestion) = &mut sender.congestion {
            congestion.on_cnp(self.now_ps, &mut sender.pace);
        }
    }

    /// A request to read is at the host that has the data: a later one than was served opens a message, another
    /// one is for what was lost.
    pub(super) fn asked(&mut self, number: u32, id: PacketId) {
        let packet = &self.packets[id];
        let (psn, ahead) = (packet.psn, packet.payload);
        let now_ps = self.now_ps;
        // Without a way to who asks nothing comes of it; it will ask again.
        if self.senders[number as usize].port == NO_INDEX && !self.begin_sender(number) {
            return;
        }
        let sender = &mut self.senders[number as usize];
        if ahead == 0
            && psn > sender.unacknowledged
            && let Some(selective) = &mut sender.selective
        {
            // All before what is missing is there, whatever became of its acknowledgements.
            selective.board.acknowledge(now_ps, psn, None);
            sender.acknowledge(psn);
        }
        if psn < sender.next {
            sender.give_up(psn);
        }
        // A request that was lost is implied by one that came after it.
        sender.set_limit(psn / sender.packets_per_message + 1);
        self.wake(number);
    }

    /// How long a sender waits for an acknowledgement; 0: for ever.
    fn patience_ps(&self, number: u32) -> u64 {
        let selective = self.senders[number as usize].selective.as_ref();
        selective.map_or(self.model.timeout_ps, |selective| selective.patience_ps())
    }

    /// Sets the timer for what was sent or heard of at a time.
    pub(super) fn set_timer(&mut self, number: u32, from_ps: u64) {
        let patience_ps = self.patience_ps(number);
        let requester = &mut self.senders[number as usize].requester;
        let at_ps = (from_ps + patience_ps).max(self.now_ps);
        // An event that is ahead and would be too late is left alone and means nothing.
        if patience_ps > 0 && at_ps < requester.timer_ps {
            requester.timer_ps = at_ps;
            self.events.push(Event::new(at_ps, Kind::Timeout, number));
        }
    }

    /// A sender looks whether it waited too long.
    pub(super) fn timeout(&mut self, number: u32) {
        let now_ps = self.now_ps;
        let sender = &mut self.senders[number as usize];
        if sender.requester.timer_ps != now_ps {
            return;
        }
        sender.requester.timer_ps = u64::MAX;
        if sender.state == State::Over || sender.unacknowledged >= sender.next {
            return;
        }
        let heard_ps = sender.requester.progress_ps;
        if now_ps < heard_ps + self.patience_ps(number) {
            return self.set_timer(number, heard_ps);
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
        self.set_timer(number, now_ps);
        let sender = &mut self.senders[number as usize];
        sender.give_up(sender.unacknowledged);
        self.wake(number);
    }

    /// A flow that its sender asked for is done, or failed.
    pub(super) fn end_sender(&mut self, number: u32, has_failed: bool) {
        let sender = &mut self.senders[number as usize];
        sender.state = State::Over;
        sender.congestion = None;
        sender.requester.end(self.now_ps, has_failed);
        self.one_less();
    }
}
