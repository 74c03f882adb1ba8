//! Switches: forwarding, buffer admission, PFC, and the PFC watchdog.

use crate::event::{SimEvent, SimEventKind};
use crate::packet::{NO_INDEX, PacketId, PacketKind, SimPacket};
use crate::parameters::WatchdogAction;
use crate::simulation::PauseRecord;
use crate::simulation::region::Region;
use crate::simulation::shared_buffer::Thresholds;
use crate::time::transmission_ps;

/// PFC state of a port paused by the other end, by priority.
#[derive(Debug, Clone, Copy)]
pub(super) struct PauseState {
    since_ps: [u64; 8],
    /// Expiry of the pause quanta.
    until_ps: [u64; 8],
    /// End of the watchdog's override.
    ignored_until_ps: [u64; 8],
}

impl PauseState {
    pub(super) const NEVER: Self =
        Self { since_ps: [0; 8], until_ps: [u64::MAX; 8], ignored_until_ps: [0; 8] };

    pub(super) const fn since(&self, priority: u8) -> u64 {
        self.since_ps[priority as usize]
    }
}

impl Region {
    /// Forwards a packet that arrived at a switch port: routes it, admits it to the buffer, and pauses the upstream
    /// port if the threshold is reached.
    pub(super) fn forward(&mut self, ingress: u32, node: u32, id: PacketId) {
        let packet = &mut self.packets[id];
        packet.ingress = ingress;
        let (priority, bytes) = (packet.priority, packet.bytes);
        let Some(out) = self.egress_port(node, id) else {
            return self.drop_packet(ingress, id);
        };
        let state = &mut self.ports[out as usize];
        if !state.is_up {
            return self.drop_packet(out, id);
        }
        let (memory, thresholds) = (&mut self.memories[node as usize], &self.model.thresholds);
        if self.model.lossless & (1 << priority) == 0 {
            let queue = state.queues[usize::from(priority)].bytes;
            let limit =
                self.model.parameters.queue_limit.map(|limit| limit.0).or(state.queue_limit_bytes);
            if !thresholds.admit_lossy(memory, queue, limit, bytes) {
                return self.drop_packet(out, id);
            }
            return self.enqueue(out, id);
        }
        let account = &mut self.ingress[usize::from(priority)][ingress as usize];
        if state.is_idle(self.now_ps, 1 << priority)
            && self.model.strict & 1 << priority != 0
            && thresholds.pass(memory, account, bytes)
        {
            // Past the queue and the buffer.
            state.result.queue_bytes_max = state.result.queue_bytes_max.max(u64::from(bytes));
            return self.start_transmission(out, id, 0);
        }
        if !thresholds.admit(memory, account, bytes) {
            return self.drop_packet(out, id);
        }
        if thresholds.must_pause(memory, account) {
            account.is_pausing = true;
            self.send_pause(ingress, priority, true);
        }
        self.enqueue(out, id);
    }

    #[cold]
    fn drop_packet(&mut self, port: u32, id: PacketId) {
        self.ports[port as usize].result.dropped += 1;
        self.counts.dropped += 1;
        self.remove_packet(id);
    }

    /// Releases the buffer of a frame that arrived at `ingress` of a switch, and resumes the upstream port if possible.
    #[inline]
    pub(super) fn release(&mut self, node: u32, ingress: u32, priority: u8, bytes: u32) {
        let memory = &mut self.memories[node as usize];
        if self.model.lossless & (1 << priority) == 0 {
            return Thresholds::free_lossy(memory, bytes);
        }
        let account = &mut self.ingress[usize::from(priority)][ingress as usize];
        self.model.thresholds.free(memory, account, bytes);
        if self.model.thresholds.may_resume(memory, account) {
            account.is_pausing = false;
            self.send_pause(ingress, priority, false);
        }
    }

    /// Sends a PFC frame to the other end of a port: Xoff if `is_xoff`, otherwise Xon.
    #[cold]
    pub(super) fn send_pause(&mut self, port: u32, priority: u8, is_xoff: bool) {
        let quanta = if self.model.parameters.pfc_quanta == 0 {
            65_535
        } else {
            self.model.parameters.pfc_quanta
        };
        let mut packet = SimPacket::new(PacketKind::Pause, NO_INDEX, NO_INDEX, priority);
        packet.bytes = self.model.wire.pause;
        packet.psn = if is_xoff { u64::from(quanta) } else { 0 };
        let id = self.packets.insert(packet);
        let state = &mut self.ports[port as usize];
        state.pauses.push(id, &mut self.packets);
        if is_xoff {
            state.result.pauses_sent += 1;
            if self.model.parameters.pfc_quanta > 0 {
                let half = quanta_ps(u64::from(quanta), state.line.bits_per_second()) / 2;
                let refresh_ps = self.now_ps + half.max(1);
                self.ingress[usize::from(priority)][port as usize].refresh_ps = refresh_ps;
                self.events.push(SimEvent::new(
                    refresh_ps,
                    SimEventKind::PauseRefresh,
                    port * 8 + u32::from(priority),
                ));
            }
        }
        self.try_transmit(port);
    }

    /// Repeats a pause before its quanta expire, if it still applies.
    pub(super) fn refresh_pause(&mut self, entity: u32) {
        let (port, priority) = (entity / 8, (entity % 8) as u8);
        let account = &self.ingress[usize::from(priority)][port as usize];
        if account.is_pausing && account.refresh_ps == self.now_ps {
            self.send_pause(port, priority, true);
        }
    }

    /// Handles a PFC frame when it takes effect at the other end of a port's link.
    pub(super) fn arrive_pause(&mut self, port: u32, id: PacketId) {
        // A failed link has lost its PFC frames.
        if id == NO_INDEX {
            return;
        }
        let peer = self.far_ends[port as usize].port;
        let packet = &self.packets[id];
        let (priority, quanta) = (packet.priority, packet.psn);
        self.packets.remove(id);
        self.record_digest(
            SimEventKind::PauseArrival,
            self.port_id(port),
            quanta << 8 | u64::from(priority),
        );
        let (time_ps, port, is_pause) = (self.now_ps, self.port_id(peer), quanta > 0);
        if let Some(records) = &mut self.pause_records {
            records.push(PauseRecord { time_ps, port, priority, is_pause });
        }
        self.apply_pause(peer, priority, quanta);
    }

    /// Applies a received PFC frame to a port: pauses a priority for `quanta`, or resumes it with 0.
    pub(super) fn apply_pause(&mut self, port: u32, priority: u8, quanta: u64) {
        let bit = 1 << priority;
        let held = &mut self.pause_states[port as usize];
        let state = &mut self.ports[port as usize];
        if quanta == 0 {
            if state.paused & bit != 0 {
                state.paused &= !bit;
                state.result.paused_ps += self.now_ps - held.since_ps[usize::from(priority)];
                self.try_transmit(port);
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
            self.events.push(SimEvent::new(until, SimEventKind::PauseTimer, entity));
        }
        let detect = self.model.parameters.watchdog_detect.0;
        if is_new && !state.is_host {
            if detect > 0 {
                self.events.push(SimEvent::new(
                    self.now_ps + detect,
                    SimEventKind::PauseTimer,
                    entity,
                ));
            }
            self.schedule_scan();
        }
    }

    /// Handles the timer of a paused queue: expiry of the quanta, or a check of the watchdog.
    pub(super) fn pause_timer(&mut self, entity: u32) {
        let (port, priority) = (entity / 8, (entity % 8) as u8);
        let (bit, slot) = (1_u8 << priority, usize::from(priority));
        let held = self.pause_states[port as usize];
        let state = &mut self.ports[port as usize];
        if self.model.parameters.pfc_quanta > 0
            && state.paused & bit != 0
            && self.now_ps >= held.until_ps[slot]
        {
            return self.apply_pause(port, priority, 0);
        }
        let detect = self.model.parameters.watchdog_detect.0;
        if detect == 0 || state.is_host {
            return;
        }
        if state.pause_ignored & bit != 0 {
            if self.now_ps >= held.ignored_until_ps[slot] {
                state.pause_ignored &= !bit;
                if state.paused & bit != 0 {
                    state.result.paused_ps += self.now_ps - held.since_ps[slot];
                    self.pause_states[port as usize].since_ps[slot] = self.now_ps;
                    self.events.push(SimEvent::new(
                        self.now_ps + detect,
                        SimEventKind::PauseTimer,
                        entity,
                    ));
                }
            }
            return;
        }
        if state.paused & bit == 0 || self.now_ps < held.since_ps[slot] + detect {
            return;
        }
        if state.waiting & bit == 0 {
            // The queue is empty: check again after the detection time.
            self.events.push(SimEvent::new(self.now_ps + detect, SimEventKind::PauseTimer, entity));
            return;
        }
        let restore = self.now_ps + self.model.parameters.watchdog_restore.0.max(1);
        state.pause_ignored |= bit;
        state.result.watchdog += 1;
        self.pause_states[port as usize].ignored_until_ps[slot] = restore;
        self.events.push(SimEvent::new(restore, SimEventKind::PauseTimer, entity));
        if self.model.parameters.watchdog_action == WatchdogAction::Drop {
            let before = self.counts.dropped;
            self.drop_queue(port, priority);
            self.ports[port as usize].result.watchdog_dropped += self.counts.dropped - before;
        }
        self.try_transmit(port);
    }

    /// Drops all packets of a queue.
    pub(super) fn drop_queue(&mut self, port: u32, priority: u8) {
        loop {
            let state = &mut self.ports[port as usize];
            let Some(id) = state.queues[usize::from(priority)].pop(&self.packets) else { break };
            let packet = &self.packets[id];
            let (ingress, bytes) = (packet.ingress, packet.bytes);
            state.queued_bytes -= u64::from(bytes);
            let (node, is_host) = (state.node, state.is_host);
            self.drop_packet(port, id);
            if !is_host {
                self.release(node, ingress, priority, bytes);
            }
        }
        self.ports[port as usize].waiting &= !(1 << priority);
    }
}

/// A quantum is 512 bit times (IEEE 802.3 annex 31B).
fn quanta_ps(quanta: u64, bits_per_second: u64) -> u64 {
    transmission_ps(quanta * 64, bits_per_second)
}
