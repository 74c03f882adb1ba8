//! Consistency check of all counters against the state, for tests and for the end of each run.

use super::Simulation;
use super::region::Region;
use crate::packet::{List, NO_INDEX};

impl Simulation {
    /// Recounts packets, queues and memory, and compares them with the counters.
    ///
    /// # Errors
    /// With the first thing that is not as it was counted.
    pub fn audit(&self) -> Result<(), String> {
        let counts = self.counts();
        let gone = counts.consumed + counts.dropped + counts.lost;
        let mut resident = 0;
        for region in &self.regions {
            resident += region.audit()?;
        }
        if counts.created != gone + resident {
            return Err(format!(
                "{} packets were made, {gone} are gone and {resident} are there",
                counts.created
            ));
        }
        Ok(())
    }
}

impl Region {
    /// Counts everything again, and gives the number of packets that are neither pauses nor gone.
    fn audit(&self) -> Result<u64, String> {
        let (mut resident, mut pauses) = (0, 0);
        let mut memory = vec![0_u64; self.model.network.nodes.len()];
        let mut accounts = vec![[0_u64; 8]; self.ports.len()];
        for (id, port) in self.ports.iter().enumerate() {
            let name = || self.model.network.show_port(self.names[id]);
            let mut queued = 0;
            for (priority, queue) in port.queues.iter().enumerate() {
                let (count, bytes) = self.walk(queue, |packet| {
                    if !port.is_host {
                        memory[port.node as usize] += u64::from(packet.bytes);
                        accounts[packet.ingress as usize][priority] += u64::from(packet.bytes);
                    }
                });
                if bytes != queue.bytes {
                    return Err(format!(
                        "{}: queue {priority} has {bytes} bytes, counted {}",
                        name(),
                        queue.bytes
                    ));
                }
                if (port.waiting & 1 << priority != 0) != (count > 0) {
                    return Err(format!(
                        "{}: queue {priority} has {count} packets and says otherwise",
                        name()
                    ));
                }
                resident += count;
                queued += bytes;
            }
            if queued != port.queued_bytes {
                return Err(format!(
                    "{}: {queued} bytes wait, counted {}",
                    name(),
                    port.queued_bytes
                ));
            }
            resident += self.walk(port.on_line.list(), |_| ()).0;
            pauses +=
                self.walk(&port.pauses, |_| ()).0 + self.walk(port.pauses_on_line.list(), |_| ()).0;
        }
        if self.packets.in_use() as u64 != resident + pauses {
            return Err(format!(
                "{} packets are in use and {} found",
                self.packets.in_use(),
                resident + pauses
            ));
        }
        for (node, found) in memory.iter().enumerate() {
            let counted = self.memories[node];
            let name = &self.model.network.nodes[node].name;
            if counted.used != *found {
                return Err(format!("{name}: {found} bytes are held, counted {}", counted.used));
            }
            if counted.used_max > counted.buffer {
                return Err(format!(
                    "{name}: {} bytes of {} were used",
                    counted.used_max, counted.buffer
                ));
            }
        }
        for sender in &self.senders {
            if sender.selective.as_ref().is_some_and(|selective| !selective.board.audit()) {
                let flow = sender.flow;
                return Err(format!("flow {flow} has other bytes under way than it counts"));
            }
        }
        if self.outbox.iter().chain(&self.inbox).any(|mail| !mail.is_empty()) {
            return Err("packets are between regions".to_owned());
        }
        self.audit_accounts(&accounts)?;
        Ok(resident)
    }

    fn audit_accounts(&self, found: &[[u64; 8]]) -> Result<(), String> {
        for (port, found) in found.iter().enumerate() {
            for (priority, found) in found.iter().enumerate() {
                let account = &self.ingress[port][priority];
                let counted = account.bytes + u64::from(account.headroom_used);
                if self.model.lossless & (1 << priority) != 0 && counted != *found {
                    let name = self.model.network.show_port(self.names[port]);
                    return Err(format!(
                        "{name}: {found} bytes came in by {priority}, counted {counted}"
                    ));
                }
            }
        }
        Ok(())
    }

    fn walk(&self, list: &List, mut each: impl FnMut(&crate::packet::Packet)) -> (u64, u64) {
        let (mut id, mut count, mut bytes) = (list.head(), 0, 0);
        while id != NO_INDEX && !list.is_empty() {
            let packet = &self.packets[id];
            each(packet);
            count += 1;
            bytes += u64::from(packet.bytes);
            id = packet.next;
        }
        (count, bytes)
    }
}
