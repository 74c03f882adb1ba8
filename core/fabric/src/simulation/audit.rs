//! Consistency check of counters against the state, for tests and for the end of each run.

use super::Simulation;
use super::region::Region;
use crate::event::SimEventKind;
use crate::packet::{NO_INDEX, PacketList};

/// Counter that disagrees with the state of a run: a defect of the simulator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuditError {
    /// Packets of the whole run.
    #[error("{created} packets were made, {gone} are gone and {resident} are there")]
    Packets {
        /// Packets created by hosts.
        created: u64,
        /// Packets consumed, dropped and lost.
        gone: u64,
        /// Packets found in queues and on links.
        resident: u64,
    },
    /// Packets in use in the arena of a region.
    #[error("{used} packets are in use and {found} found")]
    Arena {
        /// Packets that the arena counts.
        used: u64,
        /// Packets found in queues and on links.
        found: u64,
    },
    /// Bytes of one queue of a port.
    #[error("{port}: queue {priority} has {found} bytes, counted {counted}")]
    QueueBytes {
        /// Node and the node at the other end of the link.
        port: String,
        /// Priority of the queue, 0 to 7.
        priority: usize,
        /// Bytes of the packets in the queue.
        found: u64,
        /// Bytes that the queue counts.
        counted: u64,
    },
    /// Flag of a non-empty queue.
    #[error("{port}: queue {priority} has {count} packets and says otherwise")]
    QueueFlag {
        /// Node and the node at the other end of the link.
        port: String,
        /// Priority of the queue, 0 to 7.
        priority: usize,
        /// Packets in the queue.
        count: u64,
    },
    /// Bytes of all queues of a port.
    #[error("{port}: {found} bytes wait, counted {counted}")]
    PortBytes {
        /// Node and the node at the other end of the link.
        port: String,
        /// Bytes of the packets in its queues.
        found: u64,
        /// Bytes that the port counts.
        counted: u64,
    },
    /// Memory of a switch.
    #[error("{node}: {found} bytes are held, counted {counted}")]
    Memory {
        /// Name of the switch.
        node: String,
        /// Bytes of the packets in its queues.
        found: u64,
        /// Bytes that the switch counts.
        counted: u64,
    },
    /// Buffer occupancy of a switch above its size.
    #[error("{node}: {used} bytes of {buffer} were used")]
    MemoryPeak {
        /// Name of the switch.
        node: String,
        /// Most bytes in use.
        used: u64,
        /// Size of its memory.
        buffer: u64,
    },
    /// Buffer use of an ingress port at one lossless priority.
    #[error("{port}: {found} bytes came in by {priority}, counted {counted}")]
    Ingress {
        /// Node and the node at the other end of the link.
        port: String,
        /// Lossless priority, 0 to 7.
        priority: usize,
        /// Bytes of the packets that arrived at the port.
        found: u64,
        /// Bytes that the port counts.
        counted: u64,
    },
    /// Bytes in flight of a flow.
    #[error("flow {0} has other bytes under way than it counts")]
    InFlight(u32),
    /// Packets in the mailboxes between regions, outside an exchange.
    #[error("packets are between regions")]
    Mailbox,
}

impl Simulation {
    /// Recounts packets, queues and buffers, and compares them with the counters.
    ///
    /// # Errors
    /// Reports the first mismatch.
    pub fn audit(&self) -> Result<(), AuditError> {
        let counts = self.counts();
        let gone = counts.consumed + counts.dropped + counts.lost;
        let mut resident = 0;
        for region in &self.regions {
            resident += region.audit()?;
        }
        if counts.created != gone + resident {
            return Err(AuditError::Packets { created: counts.created, gone, resident });
        }
        Ok(())
    }
}

impl Region {
    /// Recounts the state of the region; returns the number of its packets, PFC frames excluded.
    fn audit(&self) -> Result<u64, AuditError> {
        let (mut resident, mut pauses) = (0, 0);
        let mut memory = vec![0_u64; self.model.network.nodes.len()];
        let mut accounts = vec![[0_u64; 8]; self.ports.len()];
        for (id, port) in self.ports.iter().enumerate() {
            let name = || self.model.network.show_port(self.port_ids[id]);
            let mut queued = 0;
            for (priority, queue) in port.queues.iter().enumerate() {
                let (count, bytes) = self.walk(queue, |packet| {
                    if !port.is_host {
                        memory[port.node as usize] += u64::from(packet.bytes);
                        accounts[packet.ingress as usize][priority] += u64::from(packet.bytes);
                    }
                });
                if bytes != queue.bytes {
                    return Err(AuditError::QueueBytes {
                        port: name(),
                        priority,
                        found: bytes,
                        counted: queue.bytes,
                    });
                }
                if (port.waiting & 1 << priority != 0) != (count > 0) {
                    return Err(AuditError::QueueFlag { port: name(), priority, count });
                }
                resident += count;
                queued += bytes;
            }
            if queued != port.queued_bytes {
                return Err(AuditError::PortBytes {
                    port: name(),
                    found: queued,
                    counted: port.queued_bytes,
                });
            }
            pauses += self.walk(&port.pauses, |_| ()).0;
        }
        for event in self.events.iter().filter(|event| event.packet() != NO_INDEX) {
            match event.kind() {
                SimEventKind::PauseArrival => pauses += 1,
                _ => resident += 1,
            }
        }
        if self.packets.in_use() as u64 != resident + pauses {
            return Err(AuditError::Arena {
                used: self.packets.in_use() as u64,
                found: resident + pauses,
            });
        }
        for (node, found) in memory.iter().enumerate() {
            let counted = self.memories[node];
            let name = &self.model.network.nodes[node].name;
            if counted.used != *found {
                return Err(AuditError::Memory {
                    node: name.clone(),
                    found: *found,
                    counted: counted.used,
                });
            }
            if counted.used_max > counted.buffer {
                return Err(AuditError::MemoryPeak {
                    node: name.clone(),
                    used: counted.used_max,
                    buffer: counted.buffer,
                });
            }
        }
        for sender in &self.senders {
            if sender.selective.as_ref().is_some_and(|selective| !selective.board.audit()) {
                return Err(AuditError::InFlight(sender.flow));
            }
        }
        if self.outbox.iter().chain(&self.inbox).any(|mail| !mail.is_empty()) {
            return Err(AuditError::Mailbox);
        }
        self.audit_accounts(&accounts)?;
        Ok(resident)
    }

    fn audit_accounts(&self, found: &[[u64; 8]]) -> Result<(), AuditError> {
        for (port, found) in found.iter().enumerate() {
            for (priority, found) in found.iter().enumerate() {
                let account = &self.ingress[priority][port];
                let counted = account.bytes + u64::from(account.headroom_used);
                if self.model.lossless & (1 << priority) != 0 && counted != *found {
                    let port = self.model.network.show_port(self.port_ids[port]);
                    return Err(AuditError::Ingress { port, priority, found: *found, counted });
                }
            }
        }
        Ok(())
    }

    fn walk(
        &self,
        list: &PacketList,
        mut each: impl FnMut(&crate::packet::SimPacket),
    ) -> (u64, u64) {
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
