//! What is summed, in words that mean the same after a restart: numbers of exporters and sites are replaced by names.

use std::sync::Arc;

use penstock_flows::estimate::Sum;
use penstock_flows::rates::Z_SCORE_95;
use serde::{Deserialize, Serialize};

/// Bytes, and the square of the half-width of their 95 % interval: squares of independent errors add.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Cell {
    /// Estimated or counted.
    pub(crate) bytes: f64,
    /// In bytes squared.
    pub(crate) error_squared: f64,
    /// Of a counter: seconds that it covers.
    pub(crate) seconds: f64,
}

impl Cell {
    /// Adds another.
    pub(crate) fn add(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.error_squared += other.error_squared;
        self.seconds += other.seconds;
    }

    /// As a sum of samples.
    #[must_use]
    pub(crate) fn sum(&self) -> Sum {
        Sum::sampled(self.bytes, self.error_squared / (Z_SCORE_95 * Z_SCORE_95))
    }

    /// Of an estimate.
    #[must_use]
    pub(crate) fn of(tally: &penstock_flows::rates::SampleTally) -> Self {
        let bytes = tally.bytes();
        Self { bytes: bytes.value, error_squared: bytes.error_95 * bytes.error_95, seconds: 0.0 }
    }
}

/// In or out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Direction {
    /// In.
    #[serde(rename = "in")]
    In,
    /// Out.
    #[serde(rename = "out")]
    Out,
    /// Not known.
    #[serde(rename = "?")]
    Unknown,
}

impl From<penstock_flows::observe::InterfaceDirection> for Direction {
    fn from(direction: penstock_flows::observe::InterfaceDirection) -> Self {
        match direction {
            penstock_flows::observe::InterfaceDirection::Ingress => Self::In,
            penstock_flows::observe::InterfaceDirection::Egress => Self::Out,
            penstock_flows::observe::InterfaceDirection::Unknown => Self::Unknown,
        }
    }
}

/// Where something was seen.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Vantage {
    /// The exporter: `192.0.2.1`, with `/2` for its second part.
    pub exporter: Arc<str>,
    /// Whether it is a host that tells of its own traffic.
    pub host: bool,
    /// On its way in or out there.
    pub direction: Direction,
}

/// Whose traffic it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Label {
    /// Nobody's by its word.
    Unlabelled,
    /// Its word is not believed.
    Untrusted,
    /// This scitag's.
    Trusted(u16),
    /// Of those that found no place of their own.
    Other,
}

/// A sum's key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Row {
    /// What has few values.
    Group {
        /// Where it was seen.
        at: Vantage,
        /// ifIndex where it came in.
        input: Option<u32>,
        /// ifIndex where it went out.
        output: Option<u32>,
        /// VLAN; of two tags the outer one.
        vlan: Option<u16>,
        /// The VLAN within that one (QinQ).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        inner_vlan: Option<u16>,
        /// IP version.
        version: Option<u8>,
        /// Whose.
        label: Label,
        /// Site of the source.
        source: Option<Arc<str>>,
        /// Site of the destination.
        destination: Option<Arc<str>>,
    },
    /// A host, or where `prefix` is short a network.
    Host {
        /// Where it was seen.
        at: Vantage,
        /// The address; none for those that found no place.
        address: Option<Arc<str>>,
        /// Its network.
        prefix: Option<Arc<str>>,
        /// What it sent, or else what it received.
        sent: bool,
    },
    /// A pair of autonomous systems.
    System {
        /// Where it was seen.
        at: Vantage,
        /// Of the source.
        source: Option<u32>,
        /// Of the destination.
        destination: Option<u32>,
    },
    /// Octets that an interface counted.
    Counter {
        /// Of this exporter, in this direction.
        at: Vantage,
        /// Its ifIndex.
        index: u32,
        /// Packets are not sampled there: these octets are no part of a total of samples.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        unsampled: bool,
    },
    /// The square of the half-width of a counter's 95 % interval, as SQLite keeps it: in the place of the bytes.
    CounterError {
        /// As of the counter.
        at: Vantage,
        /// As of the counter.
        index: u32,
    },
}

impl Row {
    /// Where it was seen.
    #[must_use]
    pub fn at(&self) -> &Vantage {
        match self {
            Self::Group { at, .. }
            | Self::Host { at, .. }
            | Self::System { at, .. }
            | Self::Counter { at, .. }
            | Self::CounterError { at, .. } => at,
        }
    }

    /// The row of all groups that were sampled where this one was; `None` where that is not known.
    #[must_use]
    pub fn remainder(&self) -> Option<Self> {
        let (at, index) = self.stratum()?;
        let here = |direction| (at.direction == direction).then_some(index);
        Some(Self::Group {
            at: at.clone(),
            input: here(Direction::In),
            output: here(Direction::Out),
            vlan: None,
            inner_vlan: None,
            version: None,
            label: Label::Other,
            source: None,
            destination: None,
        })
    }

    /// The direction of an interface at which it was sampled or counted.
    #[must_use]
    pub fn stratum(&self) -> Option<(&Vantage, u32)> {
        match self {
            Self::Group { at, input, output, .. } => {
                let index = match at.direction {
                    Direction::In => *input,
                    Direction::Out => *output,
                    Direction::Unknown => None,
                };
                Some((at, index?))
            }
            Self::Counter { at, index, .. } | Self::CounterError { at, index } => {
                Some((at, *index))
            }
            Self::Host { .. } | Self::System { .. } => None,
        }
    }

    /// Which of the kinds it is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Group { .. } => Kind::Group,
            Self::Host { .. } => Kind::Host,
            Self::System { .. } => Kind::System,
            Self::Counter { .. } | Self::CounterError { .. } => Kind::Counter,
        }
    }
}

/// The kinds of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// [`Row::Group`].
    Group = 0,
    /// [`Row::Host`].
    Host = 1,
    /// [`Row::System`].
    System = 2,
    /// [`Row::Counter`].
    Counter = 3,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Group, Self::Host, Self::System, Self::Counter];
}
