//! The IPv6 flow label that carries a scitag: 15 bits of payload, 5 bits of entropy.
//!
//! ```text
//! bit   19 18 | 17 16 15 14 13 12 11 10  9 |  8 |  7  6  5  4  3  2 |  1  0
//!        E  E |  owner, lowest bit first   |  E |  activity         |  E  E
//! ```
//!
//! Parallel streams of one transfer take distinct entropy, so that routers that balance by label spread
//! them. Ordinary hosts put random labels on every flow: a label counts as a scitag only if its pair is
//! in the registry, and a few of a thousand random labels match by chance.

use std::fmt;

use crate::tag::{FirefliesOnly, Scitag};

/// Mask of the 5 entropy bits.
pub const ENTROPY_MASK: u32 = 0xC0103;

/// Mask of the 15 payload bits; 261884 in sFlow-RT's flow keys.
pub const PAYLOAD_MASK: u32 = 0x3FEFC;

/// Highest label: 20 bits.
pub const LABEL_MAX: u32 = 0xFFFFF;

/// Highest entropy index: 5 bits.
pub const ENTROPY_MAX: u8 = 31;

const OWNER_BITS: u32 = 9;

/// A 20-bit flow label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowLabel(u32);

impl FlowLabel {
    /// Encodes `tag` with the low five bits of `entropy`, highest first.
    ///
    /// # Errors
    /// When the owner does not fit: see [`Scitag::fits_on_packets`].
    pub fn new(tag: Scitag, entropy: u8) -> Result<Self, FirefliesOnly> {
        tag.fits_on_packets()?;
        let owner = reverse_owner(u32::from(tag.owner()));
        let entropy = u32::from(entropy);
        let scattered = (entropy & 0b11000) << 15 | (entropy & 0b100) << 6 | entropy & 0b11;
        Ok(Self(owner << 9 | u32::from(tag.activity()) << 2 | scattered))
    }

    /// Returns the label of this value, or `None` if it exceeds 20 bits.
    #[must_use]
    pub fn from_value(value: u32) -> Option<Self> {
        (value <= LABEL_MAX).then_some(Self(value))
    }

    /// Value of the label, at most [`LABEL_MAX`].
    #[must_use]
    pub fn value(self) -> u32 {
        self.0
    }

    /// Decodes the pair; `None` if owner or activity is zero, which no marker writes.
    #[must_use]
    pub fn scitag(self) -> Option<Scitag> {
        let owner = reverse_owner(self.0 >> 9 & 0x1FF);
        Scitag::new(owner.into(), (self.0 >> 2 & 0x3F).into()).ok()
    }

    /// Entropy index of the label, 0..=31.
    #[must_use]
    pub fn entropy(self) -> u8 {
        (self.0 >> 15 & 0b11000 | self.0 >> 6 & 0b100 | self.0 & 0b11) as u8
    }

    /// Clears the entropy bits, for flow collectors that match on the payload.
    #[must_use]
    pub fn without_entropy(self) -> Self {
        Self(self.0 & PAYLOAD_MASK)
    }
}

/// Prints five hexadecimal digits: `0x30038`.
impl fmt::Display for FlowLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:05X}", self.0)
    }
}

fn reverse_owner(owner: u32) -> u32 {
    owner.reverse_bits() >> (u32::BITS - OWNER_BITS)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn masks_partition_the_label() {
        assert_eq!(ENTROPY_MASK | PAYLOAD_MASK, LABEL_MAX);
        assert_eq!(ENTROPY_MASK & PAYLOAD_MASK, 0);
        assert_eq!((PAYLOAD_MASK, PAYLOAD_MASK.count_ones()), (261_884, 15));
    }

    #[test]
    fn zero_is_no_tag() {
        assert_eq!(FlowLabel::from_value(0).unwrap().scitag(), None);
        assert_eq!(FlowLabel::from_value(ENTROPY_MASK).unwrap().scitag(), None);
        assert_eq!(FlowLabel::from_value(LABEL_MAX + 1), None);
    }

    proptest! {
        #![proptest_config(penstock_testkit::properties())]

        #[test]
        fn labels_round_trip(owner in 1_u64..=1023, activity in 1_u64..=63, entropy in 0_u8..=31) {
            let tag = Scitag::new(owner, activity).unwrap();
            let label = FlowLabel::new(tag, entropy);
            if owner > 511 {
                prop_assert_eq!(label, Err(FirefliesOnly { owner: tag.owner() }));
                return Ok(());
            }
            let label = label.unwrap();
            prop_assert_eq!(FlowLabel::from_value(label.value()), Some(label));
            prop_assert_eq!(label.scitag(), Some(tag));
            prop_assert_eq!(label.entropy(), entropy);
            prop_assert_eq!(label.without_entropy(), FlowLabel::new(tag, 0).unwrap());
        }

        #[test]
        fn decoded_label_encodes_to_itself(value in 0..=LABEL_MAX) {
            let label = FlowLabel::from_value(value).unwrap();
            if let Some(tag) = label.scitag() {
                prop_assert_eq!(FlowLabel::new(tag, label.entropy()), Ok(label));
            }
        }
    }
}
