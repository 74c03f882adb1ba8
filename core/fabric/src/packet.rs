//! Packets in an arena. Queues and links are intrusive linked lists of packets, so forwarding allocates nothing.

/// Index of a packet in the arena.
pub(crate) type PacketId = u32;

/// Index that denotes no packet.
pub(crate) const NO_INDEX: u32 = u32::MAX;

/// Kind of a packet, with the meaning of its sequence number (`psn`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum PacketKind {
    /// Segment of a message.
    Data,
    /// Cumulative acknowledgement of all packets before `psn`.
    Ack,
    /// Acknowledgement of all packets before `psn` that reports a gap at `psn`.
    Nak,
    /// Congestion notification packet (CNP).
    Cnp,
    /// RDMA read request for the message that starts at `psn`.
    ReadRequest,
    /// PFC frame; `psn` holds the pause time in quanta, 0 resumes the priority.
    Pause,
}

/// Packet in one cache line of 64 bytes.
#[derive(Debug, Clone)]
#[repr(align(64))]
pub(crate) struct SimPacket {
    /// Successor in the list that holds the packet.
    pub(crate) next: PacketId,
    /// Sender or receiver that the packet is addressed to, by its number in the region of its host.
    pub(crate) flow: u32,
    /// Packet sequence number, or what [`PacketKind`] says.
    pub(crate) psn: u64,
    /// Departure time of a data packet; an acknowledgement echoes that of the packet that triggered it.
    pub(crate) sent_ps: u64,
    /// Arrival time of a packet on its way to another region.
    arrives_ps: u64,
    /// Size of the frame in bytes.
    pub(crate) bytes: u32,
    /// Payload of a data packet in bytes. In an acknowledgement: distance from `psn` to a single packet that is
    /// acknowledged selectively, or 0. In a read request: distance from the first missing packet to `psn`.
    pub(crate) payload: u32,
    /// Ingress port at the current switch.
    pub(crate) ingress: u32,
    /// Index of the in-band telemetry ([`Hops`]) of the packet.
    pub(crate) telemetry: u32,
    /// Index of the destination host.
    pub(crate) to: u32,
    pub(crate) kind: PacketKind,
    pub(crate) priority: u8,
    /// Set to 1 by a switch that marks the packet (ECN); in an acknowledgement the number of marked packets it covers.
    pub(crate) marks: u8,
    pub(crate) is_last: bool,
    /// In an acknowledgement: packets received since the previous acknowledgement.
    pub(crate) packets: u16,
    /// ECMP hash of the queue pair and direction.
    pub(crate) hash: u32,
}

impl SimPacket {
    pub(crate) const fn new(kind: PacketKind, flow: u32, to: u32, priority: u8) -> Self {
        Self {
            next: NO_INDEX,
            flow,
            psn: 0,
            sent_ps: 0,
            arrives_ps: 0,
            bytes: 0,
            payload: 0,
            ingress: NO_INDEX,
            telemetry: NO_INDEX,
            to,
            kind,
            priority,
            marks: 0,
            is_last: false,
            packets: 0,
            hash: 0,
        }
    }

    /// Addresses the packet to the link of port `line` in another region, with its arrival time.
    pub(crate) const fn set_address(&mut self, line: u32, at_ps: u64) {
        self.ingress = line;
        self.arrives_ps = at_ps;
    }

    /// Returns the port and arrival time set by [`Self::set_address`].
    pub(crate) const fn link_and_arrival(&self) -> (u32, u64) {
        (self.ingress, self.arrives_ps)
    }
}

/// Slab of items; freed indices are reused, the last one freed first.
#[derive(Debug)]
pub(crate) struct Arena<T> {
    items: Vec<T>,
    free: Vec<u32>,
}

impl<T> Default for Arena<T> {
    fn default() -> Self {
        Self { items: Vec::new(), free: Vec::new() }
    }
}

impl<T> Arena<T> {
    pub(crate) fn insert(&mut self, item: T) -> u32 {
        if let Some(id) = self.free.pop() {
            self.items[id as usize] = item;
            id
        } else {
            self.items.push(item);
            self.items.len() as u32 - 1
        }
    }

    pub(crate) fn remove(&mut self, id: u32) {
        self.free.push(id);
    }

    /// Returns the number of items in use.
    pub(crate) const fn in_use(&self) -> usize {
        self.items.len() - self.free.len()
    }

    /// Returns the highest number of items that were in use at once.
    pub(crate) const fn peak(&self) -> usize {
        self.items.len()
    }
}

impl Arena<SimPacket> {
    /// Brings a packet that stays in its region into the cache ahead of its use. Unlike a load, a store does not stop
    /// the processor until the packet is there.
    pub(crate) fn prefetch(&mut self, id: PacketId) {
        if let Some(packet) = self.items.get_mut(id as usize) {
            packet.arrives_ps = 0;
        }
    }
}

impl<T> std::ops::Index<u32> for Arena<T> {
    type Output = T;

    fn index(&self, id: u32) -> &T {
        &self.items[id as usize]
    }
}

impl<T> std::ops::IndexMut<u32> for Arena<T> {
    fn index_mut(&mut self, id: u32) -> &mut T {
        &mut self.items[id as usize]
    }
}

/// FIFO of packets, linked through [`SimPacket::next`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct PacketList {
    head: PacketId,
    tail: PacketId,
    /// Sum of the frame sizes in bytes.
    pub(crate) bytes: u64,
}

impl PacketList {
    pub(crate) const EMPTY: Self = Self { head: NO_INDEX, tail: NO_INDEX, bytes: 0 };

    pub(crate) const fn is_empty(&self) -> bool {
        self.head == NO_INDEX
    }

    pub(crate) const fn head(&self) -> PacketId {
        self.head
    }

    pub(crate) fn push(&mut self, id: PacketId, packets: &mut Arena<SimPacket>) {
        let packet = &mut packets[id];
        packet.next = NO_INDEX;
        self.bytes += u64::from(packet.bytes);
        if self.head == NO_INDEX {
            self.head = id;
        } else {
            packets[self.tail].next = id;
        }
        self.tail = id;
    }

    pub(crate) fn pop(&mut self, packets: &Arena<SimPacket>) -> Option<PacketId> {
        if self.head == NO_INDEX {
            return None;
        }
        let id = self.head;
        let packet = &packets[id];
        self.head = packet.next;
        self.bytes -= u64::from(packet.bytes);
        Some(id)
    }
}

/// Most hops for which a packet carries telemetry.
pub(crate) const HOPS_MAX: usize = 8;

/// In-band telemetry of a switch for the packet's egress port (HPCC, SIGCOMM 2019, figure 7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hop {
    /// Departure time of the packet in picoseconds.
    pub time_ps: u64,
    /// Bytes of frames transmitted by the port before this packet.
    pub sent_bytes: u64,
    /// Bytes queued at the port.
    pub queue_bytes: u64,
    /// Line rate of the port.
    pub bits_per_second: u64,
}

/// Telemetry of the hops that a packet passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hops {
    hops: [Hop; HOPS_MAX],
    count: u8,
}

impl Hops {
    /// Appends a hop; hops beyond the eighth are dropped.
    pub fn push(&mut self, hop: Hop) {
        if let Some(slot) = self.hops.get_mut(usize::from(self.count)) {
            *slot = hop;
            self.count += 1;
        }
    }

    /// Returns the hops, the one next to the sender first.
    #[must_use]
    pub fn as_slice(&self) -> &[Hop] {
        &self.hops[..usize::from(self.count)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packet_fits_one_cache_line() {
        assert_eq!(size_of::<SimPacket>(), 64);
    }

    #[test]
    fn packet_lists_keep_order_and_bytes() {
        let mut packets = Arena::default();
        let mut list = PacketList::EMPTY;
        for psn in 0..3 {
            let mut packet = SimPacket::new(PacketKind::Data, 0, 0, 3);
            (packet.psn, packet.bytes) = (psn, 100);
            let id = packets.insert(packet);
            list.push(id, &mut packets);
        }
        assert_eq!((list.bytes, packets.in_use()), (300, 3));
        for psn in 0..3 {
            let id = list.pop(&packets).unwrap();
            assert_eq!(packets[id].psn, psn);
            packets.remove(id);
        }
        assert!(list.is_empty() && list.pop(&packets).is_none() && list.bytes == 0);
        packets.insert(SimPacket::new(PacketKind::Ack, 0, 0, 0));
        assert_eq!((packets.in_use(), packets.peak()), (1, 3));
    }

    #[test]
    fn excess_telemetry_hops_are_dropped() {
        let mut hops = Hops::default();
        (0..20).for_each(|sent_bytes| hops.push(Hop { sent_bytes, ..Hop::default() }));
        assert_eq!(hops.as_slice().len(), HOPS_MAX);
        assert_eq!(hops.as_slice()[7].sent_bytes, 7);
    }
}
