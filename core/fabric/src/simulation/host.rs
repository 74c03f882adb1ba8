//! Hosts: queue pairs send, receive and acknowledge, with go-back-N and the time-out of reliable connections
//! (InfiniBand Architecture 1.4, sections 9.7 and 9.9). What is other where single packets are sent again is in
//! [`super::recovery`].

use crate::congestion::{self, Ack, Path};
use crate::event::{Event, Kind};
use crate::flow::Operation;
use crate::packet::{Content, Hops, NONE, Packet, PacketId};
use crate::simulation::Simulation;
use crate::simulation::pair::State;
use crate::simulation::recovery::Selective;
use crate::time::{MICROSECOND, transmission_ps};

/// Marks of reads are told apart by as much as a ConnectX keeps between notifications.
const READ_NOTIFY_PS: u64 = 4 * MICROSECOND;
/// Acknowledgements have another hash than their data.
const BACK: u32 = 0x9E37_79B9;

/// Queue pairs of a port and priority that can send, one behind the other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Line {
    head: u32,
    tail: u32,
}

impl Line {
    pub(super) const EMPTY: Self = Self { head: NONE, tail: NONE };
}

impl Simulation {
    /// A flow begins.
    pub(super) fn start(&mut self, flow: u32) {
        let (from, to, hash) = {
            let pair = &self.pairs[flow as usize];
            (pair.data_from, pair.data_to, pair.hash)
        };
        let way = self.routes.way(&self.network, from, to, hash);
        let back = self.routes.way(&self.network, to, from, hash ^ BACK);
        let (Some(way), Some(back)) = (way, back) else { return self.fail(flow) };
        let base_rtt_ps = self.round_trip_ps(&way, &back);
        let path = Path {
            line_bps: self.ports[way[0] as usize].line.bits_per_second(),
            base_rtt_ps: self.parameters.base_rtt.map_or(self.base_rtt_ps, |time| time.0),
            hops: way.len() as u32,
            mtu: self.parameters.mtu,
            packet_bytes: self.parameters.mtu + self.wire.data_headers + self.wire.around_frame,
        };
        let (congestion, pace) = congestion::start(&self.parameters, &path);
        if self.timeout_ps > 0 && self.timeout_ps < base_rtt_ps {
            self.counts.early_timeouts += 1;
        }
        let ideal_ps = self.ideal_over(&way, &back, &self.flows[flow as usize]);
        let pair = &mut self.pairs[flow as usize];
        pair.port = way[0];
        pair.far_port = back[0];
        pair.congestion = congestion;
        pair.pace = pace;
        pair.progress_ps = self.now_ps;
        pair.delivered_ps = self.now_ps;
        pair.result.ideal_ps = ideal_ps;
        pair.selective = self
            .recovers_selectively
            .then(|| Box::new(Selective::new(&self.parameters, &path, pair.sizes(), self.needs)));
        pair.post(0);
        self.go_on(flow);
    }

    /// Posting or completions changed what a pair may have under way.
    fn go_on(&mut self, flow: u32) {
        let pair = &mut self.pairs[flow as usize];
        if pair.operation == Operation::Read {
            self.ask(flow);
        } else {
            pair.set_limit(pair.allowed());
            self.wake(flow);
        }
    }

    /// Puts a pair that can send where it is found.
    pub(super) fn wake(&mut self, flow: u32) {
        let pair = &mut self.pairs[flow as usize];
        if pair.state != State::Idle || !pair.can_send() {
            return;
        }
        let (port, at_ps) = (pair.port, pair.next_at_ps);
        if at_ps <= self.now_ps.max(self.ports[port as usize].busy_until_ps) {
            self.line_up(flow);
            self.kick(port);
        } else {
            pair.state = State::Paced;
            self.events.push(Event::new(at_ps, Kind::Paced, flow));
        }
    }

    /// The gap after a pair's last packet is over.
    pub(super) fn paced(&mut self, flow: u32) {
        let pair = &mut self.pairs[flow as usize];
        if pair.state == State::Paced {
            pair.state = State::Idle;
            self.wake(flow);
        }
    }

    fn line_up(&mut self, flow: u32) {
        let pair = &mut self.pairs[flow as usize];
        pair.state = State::Ready;
        pair.next_ready = NONE;
        let (port, priority) = (pair.port as usize, usize::from(pair.priority));
        let line = &mut self.ready[port][priority];
        if line.head == NONE {
            line.head = flow;
            self.ports[port].ready |= 1 << priority;
        } else {
            self.pairs[line.tail as usize].next_ready = flow;
        }
        self.ready[port][priority].tail = flow;
    }

    /// The next pair of a port and priority sends a packet; false where none can.
    pub(super) fn send_data(&mut self, port: u32, priority: u8) -> bool {
        loop {
            let line = &mut self.ready[port as usize][usize::from(priority)];
            let flow = line.head;
            if flow == NONE {
                self.ports[port as usize].ready &= !(1 << priority);
                return false;
            }
            let pair = &mut self.pairs[flow as usize];
            line.head = pair.next_ready;
            if line.head == NONE {
                self.ports[port as usize].ready &= !(1 << priority);
            }
            if pair.state == State::Ready {
                pair.state = State::Idle;
            }
            if pair.can_send() {
                self.send_packet(flow);
                return true;
            }
        }
    }

    fn send_packet(&mut self, flow: u32) {
        let pair = &mut self.pairs[flow as usize];
        if pair.next == pair.unacknowledged {
            pair.progress_ps = self.now_ps;
        }
        let is_answer = pair.operation == Operation::Read;
        let has_header = pair.operation == Operation::Write;
        let mut packet = Packet::new(Content::Data, flow, pair.data_to, pair.priority);
        packet.hash = pair.hash;
        packet.sent_ps = self.now_ps;
        let taken = pair.take(self.now_ps);
        packet.psn = taken.psn;
        packet.payload = taken.payload;
        packet.is_last = taken.is_last;
        let is_first = taken.is_first && (has_header || is_answer);
        packet.bytes = self.wire.data(taken.payload, is_first, taken.is_last, is_answer);
        if self.needs.telemetry {
            packet.telemetry = self.telemetry.insert(Hops::default());
        }
        let on_line = packet.bytes + self.wire.around_frame;
        if pair.pace.has_timers
            && let Some(congestion) = &mut pair.congestion
        {
            congestion.on_send(self.now_ps, on_line, &mut pair.pace);
        }
        let rate_bps = pair.pace.rate_bps;
        let port = pair.port;
        if pair.timer_ps == u64::MAX && !is_answer {
            self.set_timer(flow, self.now_ps);
        }
        let id = self.packets.insert(packet);
        self.counts.created += 1;
        self.launch(port, id);
        let state = &self.ports[port as usize];
        let gap_ps = if rate_bps >= state.line.bits_per_second() {
            state.busy_until_ps - self.now_ps
        } else {
            transmission_ps(u64::from(on_line), rate_bps)
        };
        let busy_until_ps = state.busy_until_ps;
        let pair = &mut self.pairs[flow as usize];
        pair.next_at_ps = self.now_ps + gap_ps;
        if pair.state == State::Idle && pair.can_send() {
            if pair.next_at_ps <= busy_until_ps {
                self.line_up(flow);
            } else {
                pair.state = State::Paced;
                self.events.push(Event::new(pair.next_at_ps, Kind::Paced, flow));
            }
        }
    }

    /// A packet is at a host.
    pub(super) fn receive(&mut self, port: u32, id: PacketId) {
        let packet = &self.packets[id];
        let flow = packet.flow;
        if packet.to != self.ports[port as usize].node {
            // Hosts forward nothing.
            self.ports[port as usize].result.dropped += 1;
            self.counts.dropped += 1;
            return self.remove_packet(id);
        }
        match packet.content {
            Content::Data => return self.receive_data(flow, id),
            Content::Ack => self.acknowledged(flow, id, false),
            Content::Nak => self.acknowledged(flow, id, true),
            Content::Notification => self.notified(flow),
            Content::ReadRequest => self.asked(flow, id),
            Content::Pause => {}
        }
        self.counts.consumed += 1;
        self.remove_packet(id);
    }

    fn receive_data(&mut self, flow: u32, id: PacketId) {
        let packet = &self.packets[id];
        let (psn, payload, is_marked) = (packet.psn, packet.payload, packet.marks > 0);
        let is_read = self.pairs[flow as usize].operation == Operation::Read;
        if is_marked {
            self.note_mark(flow, is_read && !self.recovers_selectively);
        }
        if self.recovers_selectively {
            return self.receive_selectively(flow, id);
        }
        let every = self.ack_every();
        let pair = &mut self.pairs[flow as usize];
        pair.marks += u32::from(is_marked);
        pair.since_ack += 1;
        let mut answer = None;
        if psn == pair.expected {
            let is_whole = pair.accept(payload, self.now_ps);
            if is_whole || pair.since_ack >= every {
                answer = Some(Content::Ack);
            }
            if is_whole {
                self.message_arrived(flow, is_read);
            }
        } else if psn < pair.expected {
            // C9-110: duplicates are acknowledged.
            answer = Some(Content::Ack);
        } else if !pair.told_gap {
            pair.told_gap = true;
            answer = Some(Content::Nak);
        }
        self.counts.consumed += 1;
        match answer {
            Some(Content::Nak) if is_read => {
                self.remove_packet(id);
                self.ask_again(flow);
            }
            Some(content) if !is_read => self.answer(flow, id, content, 0),
            _ => self.remove_packet(id),
        }
    }

    /// Packets for each acknowledgement.
    pub(super) const fn ack_every(&self) -> u32 {
        if self.needs.acknowledgements { 1 } else { self.parameters.ack_every }
    }

    /// The data packet becomes its acknowledgement, which tells of a packet so far `ahead` of the expected one, too.
    pub(super) fn answer(&mut self, flow: u32, id: PacketId, content: Content, ahead: u32) {
        let pair = &mut self.pairs[flow as usize];
        let packet = &mut self.packets[id];
        packet.content = content;
        packet.to = pair.data_from;
        packet.psn = pair.expected;
        packet.hash = pair.hash ^ BACK;
        packet.priority = self.parameters.ack_priority.unwrap_or(pair.priority);
        packet.bytes = self.wire.acknowledgement;
        packet.payload = ahead;
        packet.marks = std::mem::take(&mut pair.marks).min(255) as u8;
        packet.packets = std::mem::take(&mut pair.since_ack).min(65_535) as u16;
        let port = pair.far_port;
        self.counts.created += 1;
        self.enqueue(port, id);
    }

    pub(super) fn message_arrived(&mut self, flow: u32, is_read: bool) {
        let pair = &mut self.pairs[flow as usize];
        let arrived = pair.received_messages;
        pair.result.arrived_ps = Some(self.now_ps);
        if is_read {
            pair.result.completed = arrived;
            pair.progress_ps = self.now_ps;
            pair.retries = 0;
            pair.post(arrived);
            if pair.is_done() {
                self.finish(flow);
            } else {
                self.ask(flow);
            }
        }
        if let Some(other) = self.pairs[flow as usize].releases
            && self.pairs[other as usize].state != State::Over
        {
            self.pairs[other as usize].post(arrived);
            self.go_on(other);
        }
    }

    /// The receiver saw a mark: it may send a notification.
    fn note_mark(&mut self, flow: u32, is_read: bool) {
        let interval = match (self.needs.notifications, is_read) {
            (true, _) => self.parameters.dcqcn_paper_notify_interval.0,
            (false, true) => READ_NOTIFY_PS,
            (false, false) => return,
        };
        let pair = &mut self.pairs[flow as usize];
        if pair.notified_ps.is_some_and(|last| self.now_ps < last + interval) {
            return;
        }
        pair.notified_ps = Some(self.now_ps);
        let (to, hash) = (pair.data_from, pair.hash ^ BACK);
        let priority = self.parameters.cnp_priority;
        let port = pair.far_port;
        self.send_control(port, Content::Notification, flow, to, priority, hash, 0);
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of a packet")]
    fn send_control(
        &mut self,
        port: u32,
        content: Content,
        flow: u32,
        to: u32,
        priority: u8,
        hash: u32,
        psn: u64,
    ) {
        let mut packet = Packet::new(content, flow, to, priority);
        packet.hash = hash;
        packet.psn = psn;
        packet.sent_ps = self.now_ps;
        packet.bytes = match content {
            Content::ReadRequest => self.wire.read_request,
            _ => self.wire.notification,
        };
        if content == Content::ReadRequest {
            let missing = self.pairs[flow as usize].expected;
            packet.payload = u32::try_from(psn - missing).unwrap_or(u32::MAX);
        }
        let id = self.packets.insert(packet);
        self.counts.created += 1;
        self.enqueue(port, id);
    }

    /// An acknowledgement is at the sender.
    fn acknowledged(&mut self, flow: u32, id: PacketId, is_gap: bool) {
        if self.recovers_selectively {
            return self.acknowledged_selectively(flow, id);
        }
        let packet = &self.packets[id];
        let psn = packet.psn;
        let pair = &mut self.pairs[flow as usize];
        if pair.state == State::Over || psn < pair.unacknowledged {
            return;
        }
        let completed = pair.result.completed;
        if psn > pair.unacknowledged {
            pair.acknowledge(psn);
            pair.progress_ps = self.now_ps;
            pair.retries = 0;
        }
        if is_gap && pair.next > psn {
            pair.go_back(psn);
        }
        pair.result.marks += u64::from(packet.marks);
        if let Some(congestion) = &mut pair.congestion {
            let hops = match packet.telemetry {
                NONE => &[],
                place => self.telemetry[place].as_slice(),
            };
            let ack = Ack {
                now_ps: self.now_ps,
                acknowledged: psn,
                next: pair.next,
                packets: u32::from(packet.packets),
                marks: u32::from(packet.marks),
                round_trip_ps: self.now_ps - packet.sent_ps,
                hops,
                ..Ack::default()
            };
            congestion.on_ack(&ack, &mut pair.pace);
        }
        self.completed(flow, completed);
    }

    /// An acknowledgement was heard, before which so many messages were complete.
    pub(super) fn completed(&mut self, flow: u32, before: u64) {
        let pair = &mut self.pairs[flow as usize];
        if pair.result.completed == before || pair.operation == Operation::Read {
            return self.wake(flow);
        }
        if pair.is_done() {
            return self.finish(flow);
        }
        if !pair.is_released {
            pair.post(0);
        }
        self.go_on(flow);
    }

    fn notified(&mut self, flow: u32) {
        let pair = &mut self.pairs[flow as usize];
        pair.result.marks += 1;
        if let Some(congestion) = &mut pair.congestion {
            congestion.on_notification(self.now_ps, &mut pair.pace);
        }
    }

    /// A reader asks for what it may.
    fn ask(&mut self, flow: u32) {
        loop {
            let pair = &mut self.pairs[flow as usize];
            if pair.asked >= pair.allowed() {
                return;
            }
            if pair.expected == pair.asked * pair.packets_per_message {
                pair.progress_ps = self.now_ps;
            }
            let psn = pair.asked * pair.packets_per_message;
            pair.asked += 1;
            self.request(flow, psn);
        }
    }

    /// A reader asks again for all that is missing.
    fn ask_again(&mut self, flow: u32) {
        let psn = self.pairs[flow as usize].expected;
        self.request(flow, psn);
    }

    fn request(&mut self, flow: u32, psn: u64) {
        if self.pairs[flow as usize].timer_ps == u64::MAX {
            self.set_timer(flow, self.now_ps);
        }
        let pair = &self.pairs[flow as usize];
        let (port, to, hash) = (pair.far_port, pair.data_from, pair.hash ^ BACK);
        let priority = pair.priority;
        self.send_control(port, Content::ReadRequest, flow, to, priority, hash, psn);
    }

    /// A request to read is at the host that has the data: a later one than was served opens a message, another
    /// one is for what was lost.
    fn asked(&mut self, flow: u32, id: PacketId) {
        let packet = &self.packets[id];
        let (psn, ahead) = (packet.psn, packet.payload);
        let now_ps = self.now_ps;
        let pair = &mut self.pairs[flow as usize];
        if pair.state == State::Over {
            return;
        }
        if ahead == 0
            && psn > pair.unacknowledged
            && let Some(selective) = &mut pair.selective
        {
            // All before what is missing is there, whatever became of its acknowledgements.
            selective.board.acknowledge(now_ps, psn, None);
            pair.acknowledge(psn);
        }
        if psn < pair.next {
            match &mut pair.selective {
                Some(selective) => selective.board.give_up(psn),
                None => pair.go_back(psn),
            }
        }
        // A request that was lost is implied by one that came after it.
        pair.set_limit(psn / pair.packets_per_message + 1);
        self.wake(flow);
    }

    /// How long a pair waits for an acknowledgement; 0: for ever.
    fn patience_ps(&self, flow: u32) -> u64 {
        let pair = &self.pairs[flow as usize];
        match &pair.selective {
            None => self.timeout_ps,
            Some(selective) => selective.patience_ps(pair.operation == Operation::Read),
        }
    }

    /// Sets the timer for what was sent, asked for or heard of at a time.
    pub(super) fn set_timer(&mut self, flow: u32, from_ps: u64) {
        let patience_ps = self.patience_ps(flow);
        let pair = &mut self.pairs[flow as usize];
        let at_ps = (from_ps + patience_ps).max(self.now_ps);
        // An event that is ahead and would be too late is left alone and means nothing.
        if patience_ps > 0 && at_ps < pair.timer_ps {
            pair.timer_ps = at_ps;
            self.events.push(Event::new(at_ps, Kind::Timeout, flow));
        }
    }

    /// A pair looks whether it waited too long.
    pub(super) fn timeout(&mut self, flow: u32) {
        let pair = &mut self.pairs[flow as usize];
        if pair.timer_ps != self.now_ps {
            return;
        }
        pair.timer_ps = u64::MAX;
        let is_read = pair.operation == Operation::Read;
        let waits = if is_read {
            pair.expected < pair.asked * pair.packets_per_message
        } else {
            pair.unacknowledged < pair.next
        };
        if pair.state == State::Over || !waits {
            return;
        }
        let heard_ps = pair.progress_ps;
        if self.now_ps < heard_ps + self.patience_ps(flow) {
            return self.set_timer(flow, heard_ps);
        }
        let pair = &mut self.pairs[flow as usize];
        pair.result.timeouts += 1;
        pair.retries += 1;
        if pair.retries > self.parameters.retries {
            return self.fail(flow);
        }
        pair.progress_ps = self.now_ps;
        if let Some(selective) = &mut pair.selective {
            selective.back_off();
            if let Some(congestion) = &mut pair.congestion {
                congestion.on_timeout(self.now_ps, &mut pair.pace);
            }
        }
        self.set_timer(flow, self.now_ps);
        if is_read {
            // Everything that was asked for, from the first that is missing.
            let pair = &mut self.pairs[flow as usize];
            let (missing, messages) = (pair.expected / pair.packets_per_message, pair.asked);
            pair.told_gap = false;
            self.ask_again(flow);
            for message in missing + 1..messages {
                let psn = message * self.pairs[flow as usize].packets_per_message;
                self.request(flow, psn);
            }
        } else {
            let pair = &mut self.pairs[flow as usize];
            let first = pair.unacknowledged;
            match &mut pair.selective {
                Some(selective) => selective.board.give_up(first),
                None => pair.go_back(first),
            }
            self.wake(flow);
        }
    }

    fn finish(&mut self, flow: u32) {
        let pair = &mut self.pairs[flow as usize];
        pair.state = State::Over;
        pair.congestion = None;
        pair.result.finished_ps = Some(self.now_ps);
        self.active -= 1;
    }

    fn fail(&mut self, flow: u32) {
        let pair = &mut self.pairs[flow as usize];
        pair.state = State::Over;
        pair.congestion = None;
        pair.result.failed_ps = Some(self.now_ps);
        self.active -= 1;
    }
}
