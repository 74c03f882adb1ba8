//! Offer of each end of a connection: its queue pair and the memory that the peer may use. Pure.
//!
//! 64 bytes, integers big endian: magic `PSRD` (4), version (2), reserved (2), queue pair (4), first packet sequence
//! number (4), GID (16), path MTU (4), slots (4), distinct slots (4), bytes of a slot (4), address (8), key (4), reads
//! answered at a time (1), reserved (3).

use thiserror::Error;

/// Length of an encoded offer.
pub const OFFER_BYTES: usize = 64;
/// First bytes of an offer.
const OFFER_MAGIC: [u8; 4] = *b"PSRD";
/// Version of the format and of the credits.
const OFFER_VERSION: u16 = 1;
/// Limit of slots in an offer.
pub const SLOTS_MAX: u32 = 1 << 16;

/// Parameters that one end sends to the other before the queue pairs connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionOffer {
    /// Number of the queue pair, 24 bits.
    pub queue_pair: u32,
    /// First sequence number of its packets, 24 bits.
    pub sequence: u32,
    /// GID of its port.
    pub gid: [u8; 16],
    /// Path MTU of its port in bytes.
    pub mtu_bytes: u32,
    /// Slots that the peer may use; 0 without memory for the peer.
    pub slots: u32,
    /// Slots with memory of their own: slot `n` has the memory of slot `n` modulo this.
    pub distinct_slots: u32,
    /// Length of a slot in bytes.
    pub slot_bytes: u32,
    /// Address of the first slot; the others follow.
    pub address: u64,
    /// Key of the memory of the slots.
    pub key: u32,
    /// Reads that it answers at a time.
    pub reads_answered: u8,
}

/// Error in the bytes of an offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum OfferError {
    /// Other first bytes.
    #[error("the other end did not send an RDMA offer")]
    Magic,
    /// Version of another release.
    #[error(
        "the other end has version {0} of the RDMA exchange, this one {OFFER_VERSION}: use the same release"
    )]
    Version(u16),
    /// Field out of range.
    #[error("the RDMA offer of the other end has an invalid {0}")]
    Field(&'static str),
}

impl ConnectionOffer {
    /// Writes the offer as bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; OFFER_BYTES] {
        let mut bytes = [0; OFFER_BYTES];
        let mut at = 0;
        let mut put = |field: &[u8]| {
            bytes[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        };
        put(&OFFER_MAGIC);
        put(&OFFER_VERSION.to_be_bytes());
        put(&[0; 2]);
        put(&self.queue_pair.to_be_bytes());
        put(&self.sequence.to_be_bytes());
        put(&self.gid);
        put(&self.mtu_bytes.to_be_bytes());
        put(&self.slots.to_be_bytes());
        put(&self.distinct_slots.to_be_bytes());
        put(&self.slot_bytes.to_be_bytes());
        put(&self.address.to_be_bytes());
        put(&self.key.to_be_bytes());
        put(&[self.reads_answered]);
        bytes
    }

    /// Reads and checks the offer of the other end.
    ///
    /// # Errors
    /// [`OfferError`] for other bytes, versions, and fields out of range.
    pub fn decode(bytes: &[u8; OFFER_BYTES]) -> Result<Self, OfferError> {
        let mut at = 0;
        let mut rest = bytes.as_slice();
        let mut take = |count: usize| {
            let (field, left) = rest.split_at(count);
            rest = left;
            at += count;
            field
        };
        let number = |field: &[u8]| field.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        let short = |field: &[u8]| u32::try_from(number(field)).unwrap_or(u32::MAX);
        if take(4) != OFFER_MAGIC {
            return Err(OfferError::Magic);
        }
        let version = u16::try_from(number(take(2))).unwrap_or(0);
        if version != OFFER_VERSION {
            return Err(OfferError::Version(version));
        }
        take(2);
        let offer = Self {
            queue_pair: short(take(4)),
            sequence: short(take(4)),
            gid: take(16).try_into().map_err(|_| OfferError::Magic)?,
            mtu_bytes: short(take(4)),
            slots: short(take(4)),
            distinct_slots: short(take(4)),
            slot_bytes: short(take(4)),
            address: number(take(8)),
            key: short(take(4)),
            reads_answered: take(1)[0],
        };
        offer.validate().map(|()| offer)
    }

    fn validate(&self) -> Result<(), OfferError> {
        let is_24_bits = |number: u32| number < 1 << 24;
        if !is_24_bits(self.queue_pair) {
            return Err(OfferError::Field("queue pair"));
        }
        if !is_24_bits(self.sequence) {
            return Err(OfferError::Field("sequence number"));
        }
        if !self.mtu_bytes.is_power_of_two() || !(256..=4096).contains(&self.mtu_bytes) {
            return Err(OfferError::Field("path MTU"));
        }
        if self.slots > SLOTS_MAX {
            return Err(OfferError::Field("number of slots"));
        }
        if self.slots > 0
            && (!(1..=self.slots).contains(&self.distinct_slots) || self.slot_bytes == 0)
        {
            return Err(OfferError::Field("size of slots"));
        }
        let bytes = u64::from(self.distinct_slots) * u64::from(self.slot_bytes);
        if self.address.checked_add(bytes).is_none() {
            return Err(OfferError::Field("address"));
        }
        Ok(())
    }

    /// Address of a slot in the memory of the end that made the offer.
    #[must_use]
    pub fn slot_address(&self, slot: u32) -> u64 {
        let distinct = slot % self.distinct_slots.max(1);
        self.address + u64::from(distinct) * u64::from(self.slot_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer() -> ConnectionOffer {
        ConnectionOffer {
            queue_pair: 0x00ab_cdef,
            sequence: 0x0012_3456,
            gid: [7; 16],
            mtu_bytes: 4096,
            slots: 64,
            distinct_slots: 16,
            slot_bytes: 1 << 20,
            address: 0x7f00_0000_1000,
            key: 0x1234_5678,
            reads_answered: 16,
        }
    }

    #[test]
    fn offer_round_trips() {
        let bytes = offer().encode();
        assert_eq!(ConnectionOffer::decode(&bytes), Ok(offer()));
        assert_eq!(bytes[..6], *b"PSRD\x00\x01");
        assert_eq!(offer().slot_address(17), offer().address + (1 << 20));
    }

    #[test]
    fn malformed_offers_are_refused() {
        let decode = |offer: ConnectionOffer| ConnectionOffer::decode(&offer.encode());
        let field = |name| Err(OfferError::Field(name));
        assert_eq!(ConnectionOffer::decode(&[0; OFFER_BYTES]), Err(OfferError::Magic));
        let mut newer = offer().encode();
        newer[5] = 2;
        assert_eq!(ConnectionOffer::decode(&newer), Err(OfferError::Version(2)));
        assert_eq!(decode(ConnectionOffer { queue_pair: 1 << 24, ..offer() }), field("queue pair"));
        assert_eq!(decode(ConnectionOffer { mtu_bytes: 1500, ..offer() }), field("path MTU"));
        assert_eq!(decode(ConnectionOffer { slots: 1 << 17, ..offer() }), field("number of slots"));
        assert_eq!(
            decode(ConnectionOffer { distinct_slots: 0, ..offer() }),
            field("size of slots")
        );
        assert_eq!(decode(ConnectionOffer { address: u64::MAX, ..offer() }), field("address"));
    }

    #[test]
    fn random_bytes_do_not_panic() {
        let mut random = penstock_testkit::seeded(1);
        for _ in 0..10_000 {
            let mut bytes = offer().encode();
            let at = random.below(OFFER_BYTES as u64) as usize;
            bytes[at] ^= 1 << random.below(8);
            if let Ok(offer) = ConnectionOffer::decode(&bytes) {
                let _ = offer.slot_address(u32::MAX);
            }
        }
    }
}
