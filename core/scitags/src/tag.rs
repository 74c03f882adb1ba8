//! An owner and an activity, and the one decimal number that carries both between programs.
//!
//! For: ranges. Not for: names (see the registry) and marks on packets.

use std::fmt;

/// Highest owner: ten bits of the number, whose readers accept up to 65535.
pub const OWNER_MAX: u16 = 1023;

/// Highest owner that packets can carry: nine bits of the flow label.
pub const OWNER_ON_PACKETS_MAX: u16 = 511;

/// Highest activity: six bits everywhere but in the extension header.
pub const ACTIVITY_MAX: u8 = 63;

/// Lowest scitag number: owner 1, activity 1. XRootD accepts 65..=65535, dCache 64..=65535.
pub const NUMBER_MIN: u32 = 65;

/// Highest scitag number: owner 1023, activity 63.
pub const NUMBER_MAX: u32 = 65_535;

/// An owner (1..=1023) and an activity (1..=63).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scitag {
    owner: u16,
    activity: u8,
}

/// A number is out of the range of a [`Scitag`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TagError {
    /// Owner as given.
    #[error("owner {0} does not exist: owners are 1 to {OWNER_MAX}")]
    Owner(u64),
    /// Activity as given.
    #[error("activity {0} does not exist: activities are 1 to {ACTIVITY_MAX}")]
    Activity(u64),
    /// Scitag number as given.
    #[error("{0} is no scitag: scitags are {NUMBER_MIN} to {NUMBER_MAX}")]
    Number(u64),
}

/// The owner does not fit on packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "owner {owner} does not fit on packets (owners up to {OWNER_ON_PACKETS_MAX} do): fireflies only"
)]
pub struct FirefliesOnly {
    /// The owner, which is above [`OWNER_ON_PACKETS_MAX`].
    pub owner: u16,
}

impl Scitag {
    /// Builds a pair from two numbers.
    ///
    /// # Errors
    /// When one of them is out of range, as zero is.
    pub fn new(owner: u64, activity: u64) -> Result<Self, TagError> {
        let small_owner = u16::try_from(owner).ok().filter(|owner| (1..=OWNER_MAX).contains(owner));
        let small_activity =
            u8::try_from(activity).ok().filter(|activity| (1..=ACTIVITY_MAX).contains(activity));
        Ok(Self {
            owner: small_owner.ok_or(TagError::Owner(owner))?,
            activity: small_activity.ok_or(TagError::Activity(activity))?,
        })
    }

    /// Splits a scitag number.
    ///
    /// # Errors
    /// When the number is out of range, or its activity is zero.
    pub fn from_number(number: u64) -> Result<Self, TagError> {
        if !(u64::from(NUMBER_MIN)..=u64::from(NUMBER_MAX)).contains(&number) {
            return Err(TagError::Number(number));
        }
        Self::new(number >> 6, number & 63)
    }

    /// Number of the owner, 1..=1023.
    #[must_use]
    pub fn owner(self) -> u16 {
        self.owner
    }

    /// Number of the activity, 1..=63.
    #[must_use]
    pub fn activity(self) -> u8 {
        self.activity
    }

    /// Scitag number of the pair, 65..=65535.
    #[must_use]
    pub fn number(self) -> u32 {
        u32::from(self.owner) << 6 | u32::from(self.activity)
    }

    /// Checks that packets can carry the pair.
    ///
    /// # Errors
    /// [`FirefliesOnly`] for owners above 511. The extension header would have room for them, but a
    /// flow is marked in both forms or in none, so that every reader gets the same.
    pub fn fits_on_packets(self) -> Result<(), FirefliesOnly> {
        if self.owner > OWNER_ON_PACKETS_MAX {
            return Err(FirefliesOnly { owner: self.owner });
        }
        Ok(())
    }
}

/// Prints both numbers: `3/14`.
impl fmt::Display for Scitag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.owner, self.activity)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ranges_match_known_readers() {
        assert_eq!(Scitag::new(0, 1), Err(TagError::Owner(0)));
        assert_eq!(Scitag::new(1024, 1), Err(TagError::Owner(1024)));
        assert_eq!(Scitag::new(1, 0), Err(TagError::Activity(0)));
        assert_eq!(Scitag::new(1, 64), Err(TagError::Activity(64)));
        assert_eq!(Scitag::new(u64::MAX, 1), Err(TagError::Owner(u64::MAX)));
        assert_eq!(Scitag::from_number(65), Scitag::new(1, 1));
        assert_eq!(Scitag::from_number(65_535), Scitag::new(1023, 63));
        assert_eq!(Scitag::from_number(64), Err(TagError::Number(64)));
        assert_eq!(Scitag::from_number(65_536), Err(TagError::Number(65_536)));
        assert_eq!(Scitag::from_number(128), Err(TagError::Activity(0)));
    }

    #[test]
    fn large_owners_have_fireflies_only() {
        assert_eq!(Scitag::new(511, 1).unwrap().fits_on_packets(), Ok(()));
        let error = Scitag::new(512, 1).unwrap().fits_on_packets().unwrap_err();
        assert!(error.to_string().ends_with("fireflies only"), "{error}");
    }

    proptest! {
        #![proptest_config(penstock_testkit::properties())]

        #[test]
        fn numbers_round_trip(number: u64) {
            if let Ok(tag) = Scitag::from_number(number % 70_000) {
                prop_assert_eq!(u64::from(tag.number()), number % 70_000);
            }
            let _ = Scitag::from_number(number);
        }
    }
}
