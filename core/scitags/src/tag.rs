//! An owner and an activity, and the one decimal number that carries both between programs.
//!
//! For: ranges. Not for: names, which are the registry's, and marks on packets.

use std::fmt;

/// Highest owner: the number has ten bits for it, readers take no more than 65535.
pub const OWNER_MAX: u16 = 1023;

/// Highest owner that packets can carry: the flow label has nine bits for it.
pub const OWNER_ON_PACKETS_MAX: u16 = 511;

/// Highest activity: six bits everywhere but in the extension header.
pub const ACTIVITY_MAX: u8 = 63;

/// Least number: owner 1, activity 1. XRootD takes 65..=65535, dCache 64..=65535.
pub const NUMBER_MIN: u32 = 65;

/// Greatest number: owner 1023, activity 63.
pub const NUMBER_MAX: u32 = 65_535;

/// Whose traffic, and what for. Owner 1..=1023, activity 1..=63.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scitag {
    owner: u16,
    activity: u8,
}

/// Numbers that are no [`Scitag`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TagError {
    /// The owner.
    #[error("owner {0} does not exist: owners are 1 to {OWNER_MAX}")]
    Owner(u64),
    /// The activity.
    #[error("activity {0} does not exist: activities are 1 to {ACTIVITY_MAX}")]
    Activity(u64),
    /// The number of both.
    #[error("{0} is no scitag: scitags are {NUMBER_MIN} to {NUMBER_MAX}")]
    Number(u64),
}

/// The owner does not fit on packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "owner {owner} does not fit on packets (owners up to {OWNER_ON_PACKETS_MAX} do): fireflies only"
)]
pub struct FirefliesOnly {
    /// The owner.
    pub owner: u16,
}

impl Scitag {
    /// The pair of these two.
    ///
    /// # Errors
    /// When one of them is out of range; zero is, too.
    pub fn new(owner: u64, activity: u64) -> Result<Self, TagError> {
        let small_owner = u16::try_from(owner).ok().filter(|owner| (1..=OWNER_MAX).contains(owner));
        let small_activity =
            u8::try_from(activity).ok().filter(|activity| (1..=ACTIVITY_MAX).contains(activity));
        Ok(Self {
            owner: small_owner.ok_or(TagError::Owner(owner))?,
            activity: small_activity.ok_or(TagError::Activity(activity))?,
        })
    }

    /// The pair that a scitag number means.
    ///
    /// # Errors
    /// When the number is out of range, or its activity is zero.
    pub fn from_number(number: u64) -> Result<Self, TagError> {
        if !(u64::from(NUMBER_MIN)..=u64::from(NUMBER_MAX)).contains(&number) {
            return Err(TagError::Number(number));
        }
        Self::new(number >> 6, number & 63)
    }

    /// The owner, 1..=1023.
    #[must_use]
    pub fn owner(self) -> u16 {
        self.owner
    }

    /// The activity, 1..=63.
    #[must_use]
    pub fn activity(self) -> u8 {
        self.activity
    }

    /// The number that programs hand to each other, 65..=65535.
    #[must_use]
    pub fn number(self) -> u32 {
        u32::from(self.owner) << 6 | u32::from(self.activity)
    }

    /// Whether packets can carry it.
    ///
    /// # Errors
    /// [`FirefliesOnly`] for owners above 511. The extension header would have room for them, but a
    /// flow is marked in both forms or in none, so that every reader sees the same.
    pub fn fits_on_packets(self) -> Result<(), FirefliesOnly> {
        if self.owner > OWNER_ON_PACKETS_MAX {
            return Err(FirefliesOnly { owner: self.owner });
        }
        Ok(())
    }
}

/// As numbers: `3/14`.
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
    fn ranges_are_those_of_the_readers() {
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
    fn owners_beyond_nine_bits_have_fireflies_only() {
        assert_eq!(Scitag::new(511, 1).unwrap().fits_on_packets(), Ok(()));
        let error = Scitag::new(512, 1).unwrap().fits_on_packets().unwrap_err();
        assert!(error.to_string().ends_with("fireflies only"), "{error}");
    }

    proptest! {
        #[test]
        fn numbers_go_there_and_back(number: u64) {
            if let Ok(tag) = Scitag::from_number(number % 70_000) {
                prop_assert_eq!(u64::from(tag.number()), number % 70_000);
            }
            let _ = Scitag::from_number(number);
        }
    }
}
