//! Numbers of orders: a run has one order at each end, and the number says which run and which end.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// End of a run at which an order is carried out; the value is the last bit of the order's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RunSide {
    /// Sends the files, or lists the directory.
    Source = 0,
    /// Receives the files.
    Destination = 1,
}

impl RunSide {
    /// Both ends, in the order of their numbers.
    pub const ALL: [Self; 2] = [Self::Source, Self::Destination];
}

/// Unique number of an order: twice the id of its run, plus 1 at the destination. Assigned by the controller and never
/// reused.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct OrderId(u64);

impl OrderId {
    /// Returns the order of a run at one of its ends. Ids of runs are not negative.
    #[must_use]
    pub fn of(run: i64, side: RunSide) -> Self {
        Self(run.unsigned_abs() << 1 | side as u64)
    }

    /// Returns the id of the run.
    #[must_use]
    pub fn run(self) -> i64 {
        (self.0 >> 1) as i64
    }

    /// Returns the end of the run at which the order is carried out.
    #[must_use]
    pub fn side(self) -> RunSide {
        RunSide::ALL[usize::from(self.0 & 1 == 1)]
    }

    /// Returns the order at the other end of the run.
    #[must_use]
    pub fn peer(self) -> Self {
        Self(self.0 ^ 1)
    }

    /// Returns the number, as in messages.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }
}

impl From<u64> for OrderId {
    fn from(number: u64) -> Self {
        Self(number)
    }
}

impl fmt::Display for OrderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for OrderId {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        text.parse().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn order_numbers_keep_their_form() {
        let (source, destination) =
            (OrderId::of(7, RunSide::Source), OrderId::of(7, RunSide::Destination));
        assert_eq!((source.number(), destination.number()), (14, 15));
        assert_eq!((source.to_string().as_str(), "15".parse()), ("14", Ok(destination)));
        assert_eq!(serde_json::to_string(&destination).unwrap(), "15");
        assert_eq!(serde_json::from_str::<OrderId>("14").unwrap(), source);
        assert!("-1".parse::<OrderId>().is_err());
    }

    proptest! {
        #![proptest_config(penstock_testkit::properties())]

        #[test]
        fn order_ids_round_trip(run in 0..=i64::MAX, at_source in any::<bool>()) {
            let side = if at_source { RunSide::Source } else { RunSide::Destination };
            let order = OrderId::of(run, side);
            prop_assert_eq!((order.run(), order.side()), (run, side));
            prop_assert_eq!((order.peer().run(), order.peer().peer()), (run, order));
            prop_assert!(order.peer().side() != side);
        }

        #[test]
        fn every_number_names_an_order(number in any::<u64>()) {
            let order = OrderId::from(number);
            prop_assert_eq!(OrderId::of(order.run(), order.side()), order);
        }
    }
}
