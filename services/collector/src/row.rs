//! What is summed, in words that mean the same after a restart: numbers of exporters and sites are replaced by names.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Bytes, and the square of the half-width of their 95 % interval: squares of independent errors add.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Cell {
    /// Estimated or counted.
    pub bytes: f64,
    /// In bytes squared.
    pub error_squared: f64,
    /// Of a counter: seconds that it covers.
    pub seconds: f64,
}

impl Cell {
    /// Adds another.
    pub fn add(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.error_squared += other.error_squared;
        self.seconds += other.seconds;
    }

    /// Of an estimate.
    #[must_use]
    pub fn of(tally: &penstock_flows::rates::Tally) -> Self {
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

impl From<penstock_flows::observe::Direction> for Direction {
    fn from(direction: penstock_flows::observe::Direction) -> Self {
        match direction {
            penstock_flows::observe::Direction::Ingress => Self::In,
            penstock_flows::observe::Direction::Egress => Self::Out,
            penstock_flows::observe::Direction::Unknown => Self::Unknown,
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
        /// VLAN.
        vlan: Option<u16>,
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
            | Self::Counter { at, .. } => at,
        }
    }

    /// Which of the four it is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Group { .. } => Kind::Group,
            Self::Host { .. } => Kind::Host,
            Self::System { .. } => Kind::System,
            Self::Counter { .. } => Kind::Counter,
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
