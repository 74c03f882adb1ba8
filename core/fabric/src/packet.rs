//! Packets on their way, in one arena: lists of them run through the packets, so that nothing is allocated while
//! they travel.

/// A place in the arena.
pub(crate) type PacketId = u32;

/// Index that denotes no packet.
pub(crate) const NO_INDEX: u32 = u32::MAX;

/// Kinds of packets with their content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Content {
    /// Part of a message.
    Data,
    /// All before `psn` is there.
    Ack,
    /// All before `psn` is there, and the next that came was not `psn`.
    Nak,
    /// The receiver saw marks.
    Notification,
    /// The message that begins at `psn` is wanted.
    ReadRequest,
    /// A priority has to stop (`psn` > 0: for so many quanta) or may go on (0).
    Pause,
}

/// A packet: 64 bytes.
#[derive(Debug, Clone)]
pub(crate) struct Packet {
    /// The next of the list in which it is.
    pub(crate) next: PacketId,
    /// The sender or receiver for which it is, by its number in the region of its host.
    pub(crate) flow: u32,
    /// Number of the packet in its direction of the queue pair, or what [`Content`] says.
    pub(crate) psn: u64,
    /// When the data packet left its host; an acknowledgement has it of the packet that caused it.
    pub(crate) sent_ps: u64,
    /// When the last bit of the packet behind it on the line is at the other end.
    behind_ps: u64,
    /// Size of the frame in bytes.
    pub(crate) bytes: u32,
    /// Of data; of an acknowledgement, how far above its number a single packet is that it tells of; of a request to
    /// read, how far its number is above the first packet that is missing.
    pub(crate) payload: u32,
    /// By which port it came into the switch where it is.
    pub(crate) ingress: u32,
    /// Index of the [`Hops`] that switches wrote into it.
    pub(crate) telemetry: u32,
    /// The host to which it goes.
    pub(crate) to: u32,
    pub(crate) content: Content,
    pub(crate) priority: u8,
    /// A switch marked it; of an acknowledgement, how many marked packets it stands for.
    pub(crate) marks: u8,
    pub(crate) is_last: bool,
    /// Of an acknowledgement: how many packets came since the last one.
    pub(crate) packets: u16,
    /// By which ways of equal cost are chosen.
    pub(crate) hash: u32,
}

impl Packet {
    pub(crate) const fn new(content: Content, flow: u32, to: u32, priority: u8) -> Self {
        Self {
            next: NO_INDEX,
            flow,
            psn: 0,
            sent_ps: 0,
            behind_ps: 0,
            bytes: 0,
            payload: 0,
            ingress: NO_INDEX,
            telemetry: NO_INDEX,
            to,
            content,
            priority,
            marks: 0,
            is_last: false,
            packets: 0,
            hash: 0,
        }
    }

    /// Addresses it to the line of a port in another region, at whose end it will be at a time.
    pub(crate) const fn address(&mut self, line: u32, at_ps: u64) {
        self.ingress = line;
        self.behind_ps = at_ps;
    }

    /// Returns line and time as set by [`Self::address`].
    pub(crate) const fn addressed(&self) -> (u32, u64) {
        (self.ingress, self.behind_ps)
    }
}

/// Things with places that are used again, the last one freed first.
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

    /// How many are in use.
    pub(crate) const fn in_use(&self) -> usize {
        self.items.len() - self.free.len()
    }

    /// How many were in use at most.
    pub(crate) const fn peak(&self) -> usize {
        self.items.len()
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

/// First in, first out, through [`Packet::next`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct List {
    head: PacketId,
    tail: PacketId,
    /// Bytes of the frames in it.
    pub(crate) bytes: u64,
}

impl List {
    pub(crate) const EMPTY: Self = Self { head: NO_INDEX, tail: NO_INDEX, bytes: 0 };

    pub(crate) const fn is_empty(&self) -> bool {
        self.head == NO_INDEX
    }

    pub(crate) const fn head(&self) -> PacketId {
        self.head
    }

    pub(crate) fn push(&mut self, id: PacketId, packets: &mut Arena<Packet>) {
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

    pub(crate) fn pop(&mut self, packets: &Arena<Packet>) -> Option<PacketId> {
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

/// Packets on a line in the order of their arrival. A packet holds the arrival time of its successor, so the successor,
/// which is in no cache, is not touched before its time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OnLine {
    list: List,
    /// Of the first.
    arrives_ps: u64,
}

impl OnLine {
    pub(crate) const EMPTY: Self = Self { list: List::EMPTY, arrives_ps: 0 };

    pub(crate) const fn list(&self) -> &List {
        &self.list
    }

    /// Adds a packet behind all others; true where it is the only one.
    pub(crate) fn push(&mut self, id: PacketId, at_ps: u64, packets: &mut Arena<Packet>) -> bool {
        let is_first = self.list.is_empty();
        if is_first {
            self.arrives_ps = at_ps;
        } else {
            packets[self.list.tail].behind_ps = at_ps;
        }
        self.list.push(id, packets);
        is_first
    }

    /// Takes the first where it arrives now, and tells when the next does.
    pub(crate) fn pop(
        &mut self,
        now_ps: u64,
        packets: &Arena<Packet>,
    ) -> Option<(PacketId, Option<u64>)> {
        if self.list.is_empty() || self.arrives_ps != now_ps {
            return None;
        }
        let id = self.list.pop(packets)?;
        self.arrives_ps = packets[id].behind_ps;
        Some((id, (!self.list.is_empty()).then_some(self.arrives_ps)))
    }
}

/// Hops of which a packet can bring telemetry.
pub(crate) const HOPS_MAX: usize = 8;

/// In-band telemetry of a switch about the packet's egress port (HPCC, SIGCOMM 2019, figure 7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hop {
    /// When the packet left, in picoseconds.
    pub time_ps: u64,
    /// Bytes of frames that had left by the port before.
    pub sent_bytes: u64,
    /// Bytes that waited at the port.
    pub queue_bytes: u64,
    /// Rate of the port.
    pub bits_per_second: u64,
}

/// Hops that a packet passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hops {
    hops: [Hop; HOPS_MAX],
    count: u8,
}

impl Hops {
    /// Adds a hop; one beyond the eighth is left out.
    pub fn push(&mut self, hop: Hop) {
        if let Some(place) = self.hops.get_mut(usize::from(self.count)) {
            *place = hop;
            self.count += 1;
        }
    }

    /// The hops, from the sender's side.
    #[must_use]
    pub fn as_slice(&self) -> &[Hop] {
        &self.hops[..usize::from(self.count)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_one_cache_line() {
        assert_eq!(size_of::<Packet>(), 64);
    }

    #[test]
    fn packet_lists_keep_order_and_bytes() {
        let mut packets = Arena::default();
        let mut list = List::EMPTY;
        for psn in 0..3 {
            let mut packet = Packet::new(Content::Data, 0, 0, 3);
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
        packets.insert(Packet::new(Content::Ack, 0, 0, 0));
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
