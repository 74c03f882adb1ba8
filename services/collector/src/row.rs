//! Keys of sums, with names in place of the numbers of exporters and sites, so that they stay valid
//! after a restart.

use std::sync::Arc;

use penstock_flows::estimate::Sum;
use penstock_flows::rates::Z_SCORE_95;
use serde::{Deserialize, Serialize};

/// Bytes, and the square of the half-width of their 95 % interval: squares of independent errors
/// add.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct SumCell {
    /// Estimated or counted bytes.
    pub(crate) bytes: f64,
    /// Squared half-width of the 95 % interval, in bytes².
    pub(crate) error_squared: f64,
    /// Seconds that a counter covers; 0 for samples.
    pub(crate) seconds: f64,
}

impl SumCell {
    /// Adds another sum to this one.
    pub(crate) fn add(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.error_squared += other.error_squared;
        self.seconds += other.seconds;
    }

    /// Converts to a sum of the estimator.
    #[must_use]
    pub(crate) fn sum(&self) -> Sum {
        Sum::sampled(self.bytes, self.error_squared / (Z_SCORE_95 * Z_SCORE_95))
    }

    /// Converts the estimate of samples.
    #[must_use]
    pub(crate) fn of(tally: &penstock_flows::rates::SampleTally) -> Self {
        let bytes = tally.bytes();
        Self { bytes: bytes.value, error_squared: bytes.error_95 * bytes.error_95, seconds: 0.0 }
    }
}

/// Direction at the interface of an exporter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum RowDirection {
    /// Received by the interface.
    #[serde(rename = "in")]
    In,
    /// Sent by the interface.
    #[serde(rename = "out")]
    Out,
    /// The direction is unknown.
    #[serde(rename = "?")]
    Unknown,
}

impl From<penstock_flows::observe::InterfaceDirection> for RowDirection {
    fn from(direction: penstock_flows::observe::InterfaceDirection) -> Self {
        match direction {
            penstock_flows::observe::InterfaceDirection::Ingress => Self::In,
            penstock_flows::observe::InterfaceDirection::Egress => Self::Out,
            penstock_flows::observe::InterfaceDirection::Unknown => Self::Unknown,
        }
    }
}

/// Observation point: exporter and direction.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RowVantage {
    /// Address of the exporter: `192.0.2.1`, with `/2` for its sub-agent or domain.
    pub exporter: Arc<str>,
    /// True for a host that exports its own traffic.
    pub host: bool,
    /// Direction at its interface.
    pub direction: RowDirection,
}

/// Owner of traffic, and whether it is trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum RowLabel {
    /// No owner is known.
    Unlabelled,
    /// The packet claims an owner without a reason to trust it.
    Untrusted,
    /// Scitag number that is trusted.
    Trusted(u16),
    /// Sum of groups beyond the limit.
    Other,
}

/// Key of a sum.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum SumRow {
    /// A combination of properties with few values.
    Group {
        /// Observation point of the traffic.
        at: RowVantage,
        /// ifIndex of the receiving interface.
        input: Option<u32>,
        /// ifIndex of the sending interface.
        output: Option<u32>,
        /// VLAN; the outer one of two tags.
        vlan: Option<u16>,
        /// Inner VLAN of two tags (QinQ).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        inner_vlan: Option<u16>,
        /// IP version, 4 or 6.
        version: Option<u8>,
        /// Owner and activity with their trust.
        label: RowLabel,
        /// Site of the source address.
        source: Option<Arc<str>>,
        /// Site of the destination address.
        destination: Option<Arc<str>>,
    },
    /// A host, or a network for hosts beyond the limit.
    Host {
        /// Observation point of the traffic.
        at: RowVantage,
        /// Address; `None` for hosts beyond the limit.
        address: Option<Arc<str>>,
        /// Prefix of its network.
        prefix: Option<Arc<str>>,
        /// True for sent traffic, false for received.
        sent: bool,
    },
    /// A pair of autonomous systems.
    System {
        /// Observation point of the traffic.
        at: RowVantage,
        /// AS of the source address.
        source: Option<u32>,
        /// AS of the destination address.
        destination: Option<u32>,
    },
    /// Octets that an interface counted.
    Counter {
        /// Exporter, and direction of the counter.
        at: RowVantage,
        /// ifIndex of the interface.
        index: u32,
        /// True if packets are not sampled there: its octets are not part of a total of samples.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        unsampled: bool,
    },
    /// Bytes of the samples in the time that a counter covers.
    CounterSamples {
        /// As in the counter's row.
        at: RowVantage,
        /// As in the counter's row.
        index: u32,
    },
    /// Squared half-width of a counter's 95 % interval, stored in SQLite in place of the bytes.
    CounterError {
        /// As in the counter's row.
        at: RowVantage,
        /// As in the counter's row.
        index: u32,
    },
}

impl SumRow {
    /// Observation point of the traffic.
    #[must_use]
    pub fn at(&self) -> &RowVantage {
        match self {
            Self::Group { at, .. }
            | Self::Host { at, .. }
            | Self::System { at, .. }
            | Self::Counter { at, .. }
            | Self::CounterSamples { at, .. }
            | Self::CounterError { at, .. } => at,
        }
    }

    /// Row for the remaining groups of the same stratum; `None` if unknown.
    #[must_use]
    pub fn remainder(&self) -> Option<Self> {
        let (at, index) = self.stratum()?;
        let here = |direction| (at.direction == direction).then_some(index);
        Some(Self::Group {
            at: at.clone(),
            input: here(RowDirection::In),
            output: here(RowDirection::Out),
            vlan: None,
            inner_vlan: None,
            version: None,
            label: RowLabel::Other,
            source: None,
            destination: None,
        })
    }

    /// Interface and direction in which the row was sampled or counted.
    #[must_use]
    pub fn stratum(&self) -> Option<(&RowVantage, u32)> {
        match self {
            Self::Group { at, input, output, .. } => {
                let index = match at.direction {
                    RowDirection::In => *input,
                    RowDirection::Out => *output,
                    RowDirection::Unknown => None,
                };
                Some((at, index?))
            }
            Self::Counter { at, index, .. }
            | Self::CounterSamples { at, index }
            | Self::CounterError { at, index } => Some((at, *index)),
            Self::Host { .. } | Self::System { .. } => None,
        }
    }

    /// Kind of the row.
    #[must_use]
    pub fn kind(&self) -> RowKind {
        match self {
            Self::Group { .. } => RowKind::Group,
            Self::Host { .. } => RowKind::Host,
            Self::System { .. } => RowKind::System,
            Self::Counter { .. } | Self::CounterSamples { .. } | Self::CounterError { .. } => {
                RowKind::Counter
            }
        }
    }
}

/// Kinds of rows, which are stored apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RowKind {
    /// Kind of [`SumRow::Group`] rows.
    Group = 0,
    /// Kind of [`SumRow::Host`] rows.
    Host = 1,
    /// Kind of [`SumRow::System`] rows.
    System = 2,
    /// Kind of rows of counters.
    Counter = 3,
}

impl RowKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Group, Self::Host, Self::System, Self::Counter];
}
