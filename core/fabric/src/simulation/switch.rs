//! Switches: a packet that came in finds its way and its memory, and who sends too much is paused.

use crate::event::{Event, Kind};
use crate::packet::{Content, NO_INDEX, Packet, PacketId};
use crate::parameters::WatchdogAction;
use crate::simulation::PauseRecord;
use crate::simulation::memory::Thresholds;
use crate::simulation::region::Region;
use crate::time::transmission_ps;

/// How a port is held up by the other end, by priority.
#[derive(Debug, Clone, Copy)]
pub(super) struct Held {
    since_ps: [u64; 8],
    /// Pauses with a length end here.
    until_ps: [u64; 8],
    /// The watchdog's defiance ends here.
    defiant_until_ps: [u64; 8],
}

impl Held {
    pub(super) const NEVER: Self =
        Self { since_ps: [0; 8], until_ps: [u64::MAX; 8], defiant_until_ps: [0; 8] };

    pub(super) const fn since(&self, priority: u8) -> u64 {
        self.since_ps[priority as usize]
    }
}

impl Region {
    /// A packet came into a switch by a port.
    pub(super) fn forward(&mut self, ingress: u32, id: PacketId) {
        let packet = &mut self.packets[id];
        packet.ingress = ingress;
        let (priority, bytes) = (packet.priority, packet.bytes);
        let node = self.ports[ingress as usize].node;
        let Some(out) = self.egress_port(node, id) else {
            return self.drop_packet(ingress, id);
        };
        if !self.ports[out as usize].is_up {
            return self.drop_packet(out, id);
        }
        let memory = &mut self.memories[node as usize];
        if self.model.lossless & (1 << priority) == 0 {
            let state = &self.ports[out as usize];
            let queue = state.queues[usize::from(priority)].bytes;
            let limit =
                self.model.parameters.queue_limit.map(|limit| limit.0).or(state.queue_limit_bytes);
            if !self.model.thresholds.admit_lossy(memory, queue, limit, bytes) {
                return self.drop_packet(out, id);
            }
            return self.enqueue(out, id);
        }
        let account = &mut self.ingress[ingress as usize][usize::from(priority)];
        if !self.model.thresholds.admit(memory, account, bytes) {
            return self.drop_packet(out, id);
        }
        if self.model.thresholds.must_pause(memory, account) {
            account.is_pausing = true;
            self.pause(ingress, priority, true);
        }
        self.enqueue(out, id);
    }

    fn drop_packet(&mut self, port: u32, id: PacketId) {
        self.ports[port as usize].result.dropped += 1;
        self.counts.dropped += 1;
        self.remove_packet(id);
    }

    /// Gives back the memory of a frame that came in by this port.
    pub(super) fn release(&mut self, ingress: u32, priority: u8, bytes: u32) {
        let node = self.ports[ingress as usize].node;
        let memory = &mut self.memories[node as usize];
        if self.model.lossless & (1 << priority) == 0 {
            return Thresholds::free_lossy(memory, bytes);
        }
        let account = &mut self.ingress[ingress as usize][usize::from(priority)];
        self.model.thresholds.free(memory, account, bytes);
        if self.model.thresholds.may_resume(memory, account) {
            account.is_pausing = false;
            self.pause(ingress, priority, false);
        }
    }

    /// Tells the other end of a port to stop or to go on.
    pub(super) fn pause(&mut self, port: u32, priority: u8, stop: bool) {
        let quanta = if self.model.parameters.pfc_quanta == 0 {
            65_535
        } else {
            self.model.parameters.pfc_quanta
        };
        let mut packet = Packet::new(Content::Pause, NO_INDEX, NO_INDEX, priority);
        packet.bytes = self.model.wire.pause;
        packet.psn = if stop { u64::from(quanta) } else { 0 };
        let id = self.packets.insert(packet);
        let state = &mut self.ports[port as usize];
        state.pauses.push(id, &mut self.packets);
        if stop {
            state.result.pauses_sent += 1;
            if self.model.parameters.pfc_quanta > 0 {
                let half = quanta_ps(u64::from(quanta), state.line.bits_per_second()) / 2;
                let refresh_ps = self.now_ps + half.max(1);
                self.ingress[port as usize][usize::from(priority)].refresh_ps = refresh_ps;
                self.events.push(Event::new(
                    refresh_ps,
                    Kind::PauseRefresh,
                    port * 8 + u32::from(priority),
                ));
            }
        }
        self.kick(port);
    }

    /// A pause may have to be told again.
    pub(super) fn refresh_pause(&mut self, entity: u32) {
        let (port, priority) = (entity / 8, (entity % 8) as u8);
        let account = &self.ingress[port as usize][usize::from(priority)];
        if account.is_pausing && account.refresh_ps == self.now_ps {
            self.pause(port, priority, true);
        }
    }

    /// The first pause on a port's line is at the other end and has its effect.
    pub(super) fn arrive_pause(&mut self, port: u32) {
        let state = &mut self.ports[port as usize];
        let popped = state.pauses_on_line.pop(self.now_ps, &self.packets);
        let Some((id, next_ps)) = popped else { return };
        let peer = state.peer;
        if let Some(next_ps) = next_ps {
            self.events.push(Event::new(next_ps, Kind::PauseArrives, port));
        }
        let packet = &self.packets[id];
        let (priority, quanta) = (packet.priority, packet.psn);
        self.packets.remove(id);
        self.note(Kind::PauseArrives, self.name(port), quanta << 8 | u64::from(priority));
        let (time_ps, port, is_pause) = (self.now_ps, self.name(peer), quanta > 0);
        if let Some(records) = &mut self.pause_records {
            records.push(PauseRecord { time_ps, port, priority, is_pause });
        }
        self.hold(peer, priority, quanta);
    }

    /// Applies a PFC pause to a port: so many quanta, or 0 to resume.
    pub(super) fn hold(&mut self, port: u32, priority: u8, quanta: u64) {
        let bit = 1 << priority;
        let held = &mut self.held[port as usize];
        let state = &mut self.ports[port as usize];
        if quanta == 0 {
            if state.paused & bit != 0 {
                state.paused &= !bit;
                state.result.paused_ps += self.now_ps - held.since_ps[usize::from(priority)];
                self.kick(port);
            }
            return;
        }
        let is_new = state.paused & bit == 0;
        if is_new {
            state.paused |= bit;
            held.since_ps[usize::from(priority)] = self.now_ps;
        }
        let entity = port * 8 + u32::from(priority);
        if self.model.parameters.pfc_quanta > 0 {
            let until = self.now_ps + quanta_ps(quanta, state.line.bits_per_second());
            held.until_ps[usize::from(priority)] = until;
            self.events.push(Event::new(until, Kind::PauseTimer, entity));
        }
        let detect = self.model.parameters.watchdog_detect.0;
        if is_new && !state.is_host {
            if detect > 0 {
                self.events.push(Event::new(self.now_ps + detect, Kind::PauseTimer, entity));
            }
            self.watch();
        }
    }

    /// A pause ends by itself, or its watchdog looks.
    pub(super) fn pause_timer(&mut self, entity: u32) {
        let (port, priority) = (entity / 8, (entity % 8) as u8);
        let (bit, slot) = (1_u8 << priority, usize::from(priority));
        let held = self.held[port as usize];
        let state = &mut self.ports[port as usize];
        if self.model.parameters.pfc_quanta > 0
            && state.paused & bit != 0
            && self.now_ps >= held.until_ps[slot]
        {
            return self.hold(port, priority, 0);
        }
        let detect = self.model.parameters.watchdog_detect.0;
        if detect == 0 || state.is_host {
            return;
        }
        if state.defiant & bit != 0 {
            if self.now_ps >= held.defiant_until_ps[slot] {
                state.defiant &= !bit;
                if state.paused & bit != 0 {
                    state.result.paused_ps += self.now_ps - held.since_ps[slot];
                    self.held[port as usize].since_ps[slot] = self.now_ps;
                    self.events.push(Event::new(self.now_ps + detect, Kind::PauseTimer, entity));
                }
            }
            return;
        }
        if state.paused & bit == 0 || self.now_ps < held.since_ps[slot] + detect {
            return;
        }
        if state.waiting & bit == 0 {
            // Nothing stood still: it looks again after as long.
            self.events.push(Event::new(self.now_ps + detect, Kind::PauseTimer, entity));
            return;
        }
        let restore = self.now_ps + self.model.parameters.watchdog_restore.0.max(1);
        state.defiant |= bit;
        state.result.watchdog += 1;
        self.held[port as usize].defiant_until_ps[slot] = restore;
        self.events.push(Event::new(restore, Kind::PauseTimer, entity));
        if self.model.parameters.watchdog_action == WatchdogAction::Drop {
            let before = self.counts.dropped;
            self.throw_away(port, priority);
            self.ports[port as usize].result.watchdog_dropped += self.counts.dropped - before;
        }
        self.kick(port);
    }

    /// Drops all packets of a queue.
    pub(super) fn throw_away(&mut self, port: u32, priority: u8) {
        loop {
            let state = &mut self.ports[port as usize];
            let Some(id) = state.queues[usize::from(priority)].pop(&self.packets) else { break };
            let packet = &self.packets[id];
            let (ingress, bytes) = (packet.ingress, packet.bytes);
            state.queued_bytes -= u64::from(bytes);
            self.drop_packet(port, id);
            if !self.ports[port as usize].is_host {
                self.release(ingress, priority, bytes);
            }
        }
        self.ports[port as usize].waiting &= !(1 << priority);
    }
}

/// A quantum is 512 bit times (IEEE 802.3 annex 31B).
fn quanta_ps(quanta: u64, bits_per_second: u64) -> u64 {
    transmission_ps(quanta * 64, bits_per_second)
}
