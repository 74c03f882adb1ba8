//! Messages between nodes and the controller.
//!
//! A node polls: about once a second it posts a [`Report`] and receives [`Instructions`], the complete list of orders
//! that shall be active at the node, with their settings. The node reconciles: it fetches and starts each [`Order`]
//! that is new, applies changed settings, and stops orders that are not listed. So a lost response costs one poll
//! interval, and either side may restart at any time: a node that lost an order finds it listed, starts it again, and
//! does not resend files that already exist.
//!
//! Outcomes are delivered exactly once: those of an order are numbered from 0 in the order of completion, each report
//! repeats the unacknowledged ones, and a node that starts an order again numbers anew under another
//! [`OrderReport::run`].
//!
//! While the controller is unreachable a node continues its orders; an order ends when it is complete or no longer
//! listed. [`Instructions::lease_seconds`] bounds what the node may send meanwhile: once the lease expires its rate
//! falls to the lower of the last rate and the safe rate of its own configuration.
//!
//! Rates are bits per second of file bytes, amounts are bytes, paths are relative to the node's exports.

use serde::{Deserialize, Serialize};

pub use crate::order_id::{OrderId, RunSide};
pub use penstock_tuner::TuningMode;

/// Most file outcomes in one report.
pub const OUTCOMES_MAX: usize = 10_000;

/// Most files in one order.
pub const FILES_MAX: usize = 10_000;

/// Most listing entries in one report.
pub const ENTRIES_MAX: usize = 10_000;

/// State of a node and of its orders.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// Random id of the node's process; a new one means that it restarted.
    pub start: String,
    /// Software version of the node.
    pub version: String,
    /// Addresses with ports of the node's mover, best first.
    pub addresses: Vec<String>,
    /// SHA-256 of the node's certificate, hexadecimal.
    pub fingerprint: String,
    /// Limits of the node.
    pub capacity: Capacity,
    /// Counters of the node's interfaces.
    #[serde(default)]
    pub interfaces: Vec<InterfaceCounters>,
    /// Running orders, and ended ones whose end is not acknowledged.
    #[serde(default)]
    pub orders: Vec<OrderReport>,
}

/// Limits of a node; unknown ones are absent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Capacity {
    /// Rate of its interfaces, or its operator's limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_bps: Option<u64>,
    /// Read rate of its storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_bps: Option<u64>,
    /// Write rate of its storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_bps: Option<u64>,
    /// Most transfers at the same time.
    pub transfers: u32,
    /// Most streams of all transfers together.
    pub streams: u32,
}

/// Counters of an interface since it came up.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InterfaceCounters {
    /// Interface name in the topology.
    pub name: String,
    /// Bytes sent since it came up.
    pub sent_bytes: u64,
    /// Bytes received since it came up.
    pub received_bytes: u64,
    /// IP addresses without ports, which a path that ends at this interface uses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
}

/// Phase of an order at its node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OrderPhase {
    /// Not started: the other end is busy or unreachable, or the node has no free slot.
    #[default]
    Waiting,
    /// Started, transferring or listing.
    Running,
    /// Every file has an outcome, or [`OrderReport::fault`] says why not.
    Ended,
}

crate::numbers::stored_numbers!(OrderPhase);

impl OrderPhase {
    /// All phases, in the order of their numbers in the database.
    pub const ALL: [Self; 3] = [Self::Waiting, Self::Running, Self::Ended];
}

/// Progress of an order.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OrderReport {
    /// Number of the order.
    pub order: OrderId,
    /// Number of this start of the order, unique per order and node.
    pub run: u64,
    /// Phase at the time of the report.
    pub phase: OrderPhase,
    /// Reason for waiting, for human readers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<String>,
    /// Reason why the order ended before all files had outcomes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<OrderFault>,
    /// File bytes transferred in this run, including unfinished files.
    #[serde(default)]
    pub moved_bytes: u64,
    /// Rate over the last seconds.
    #[serde(default)]
    pub bits_per_second: u64,
    /// Rate limit in force; absent for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_bps: Option<u64>,
    /// Number of connected streams.
    #[serde(default)]
    pub streams: u16,
    /// Number of TCP segments retransmitted.
    #[serde(default)]
    pub retransmits: u64,
    /// Rates of earlier transfers to the same host; absent where they are too few.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_forecast: Option<PathForecast>,
    /// Measured bottleneck; "rate" for the rate limit.
    #[serde(default)]
    pub bound_by: String,
    /// Packet label, or why there is none.
    #[serde(default)]
    pub label: String,
    /// Transport of the data streams so far: `tcp`, `rdma` or `mixed`; empty before the first.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub transport: String,
    /// Reason for this transport; empty where none was left to choose.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub transport_reason: String,
    /// Number of the first element of `outcomes`.
    #[serde(default)]
    pub outcomes_from: u64,
    /// File outcomes in order of completion.
    #[serde(default)]
    pub outcomes: Vec<ReportedOutcome>,
    /// Number of the first element of `entries`.
    #[serde(default)]
    pub entries_from: u64,
    /// Files found by a listing.
    #[serde(default)]
    pub entries: Vec<ListedFile>,
}

/// Mean rates that a transfer of the order's size would have on its path without a limit, from earlier ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathForecast {
    /// A tenth of transfers are slower.
    pub p10_bps: u64,
    /// Half of transfers are slower.
    pub p50_bps: u64,
    /// A tenth of transfers are faster.
    pub p90_bps: u64,
    /// Number of earlier transfers that it was computed from.
    pub transfers: u32,
}

/// Outcome of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReportedOutcome {
    /// Index in the order's file list, from 0.
    pub file: u32,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// Set when the file existed already and was not sent.
    #[serde(default)]
    pub was_there: bool,
    /// `algorithm:hexadecimal`; absent if none was computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Reason of failure; absent on success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<OrderFault>,
}

/// Path of the single entry of a listing whose path is a file.
pub const LISTED_PATH: &str = ".";

/// A file found by a listing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListedFile {
    /// Relative to the listed directory; [`LISTED_PATH`] if the listed path is a file.
    pub path: String,
    /// Size of the file in bytes.
    pub bytes: u64,
}

/// Reason why an order or a file failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OrderFault {
    /// Determines whether a retry helps.
    pub kind: FaultKind,
    /// One line for human readers.
    pub text: String,
}

/// Kind of a fault, which determines whether a retry helps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// May succeed on retry: connections, busy nodes, a changing source.
    #[serde(rename = "passing")]
    Transient,
    /// Fails again on retry: no such file, no permission, an invalid name.
    #[serde(rename = "lasting")]
    Permanent,
    /// The bytes do not match their digest.
    Integrity,
    /// Cancelled by a client or operator.
    Cancelled,
}

impl FaultKind {
    /// True if a retry may succeed.
    #[must_use]
    pub fn may_succeed_on_retry(self) -> bool {
        matches!(self, Self::Transient | Self::Integrity)
    }
}

/// Response to a report: the complete desired state of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Instructions {
    /// Seconds for which the rates hold without another response.
    pub lease_seconds: u32,
    /// All orders that shall be active; the node stops all others.
    pub orders: Vec<ActiveOrder>,
    /// Outcomes, entries and ends that the node need not report again.
    pub acknowledged: Vec<Acknowledged>,
}

/// An order that shall be active at a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ActiveOrder {
    /// Number of the order, whose content never changes.
    pub order: OrderId,
    /// Settings that the node applies from now on.
    pub settings: OrderSettings,
}

/// Changeable settings of an order; the node chooses the absent ones.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OrderSettings {
    /// Rate limit in bits per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_bps: Option<u64>,
    /// Number of streams of the transfer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<u16>,
    /// Address pairs that the streams use; empty for any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub path: Vec<AddressPair>,
}

/// Source and destination IP address of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddressPair {
    /// Address of the sending node.
    pub from: String,
    /// Address of the receiving node.
    pub to: String,
}

/// Acknowledgement of the reported progress of an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Acknowledged {
    /// Number of the order.
    pub order: OrderId,
    /// Run that the numbers refer to.
    pub run: u64,
    /// Outcomes with lower numbers are acknowledged.
    pub outcomes: u64,
    /// Entries with lower numbers are acknowledged.
    pub entries: u64,
    /// Set when the end is acknowledged and the node may drop the order.
    pub end: bool,
}

/// An order to a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Order {
    /// Number of the order.
    pub order: OrderId,
    /// Request that the order is part of, for logs.
    pub request: String,
    /// Task to carry out.
    pub task: OrderTask,
}

/// Task of an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "task", rename_all = "snake_case")]
pub enum OrderTask {
    /// Lists the files below a directory, or the size of a file.
    List {
        /// Directory or file to list.
        path: String,
    },
    /// Admits another node's writes while the order is active.
    Receive {
        /// Secret that the sending node presents.
        ticket: String,
        /// Directory below which it may write.
        below: String,
    },
    /// Sends files to another node.
    Send(Box<Send>),
}

/// Files to send to another node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Send {
    /// Source directory at this node.
    pub from: String,
    /// Destination directory at the other node.
    pub to: String,
    /// Files, relative to both directories.
    pub files: Vec<File>,
    /// Addresses with ports of the other node's mover.
    pub addresses: Vec<String>,
    /// SHA-256 of the other node's certificate, hexadecimal.
    pub fingerprint: String,
    /// Secret that admits this node at the other.
    pub ticket: String,
    /// Name of the resume state: a later order with the same name and directory resumes unfinished files, and two such
    /// orders never run at once there. If absent, only the same order resumes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<String>,
    /// 16-bit scitag of the data's owner and activity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scitag: Option<u16>,
    /// Treatment of existing files.
    pub overwrite: Overwrite,
    /// Extent of the verification of each file.
    pub verify: Verify,
    /// Set to encrypt the data; otherwise it is only protected against modification.
    pub encrypt: bool,
    /// Use of the tuner for the streams, at most that of the node's operator; automatic if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tune: Option<TuningMode>,
    /// Transport of the data streams; that of the node's operator if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<OrderTransport>,
}

/// A file to send.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// Relative to both directories; empty if the file was settled before the node fetched the order.
    pub path: String,
    /// Expected digest of the content, `algorithm:hexadecimal`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

/// Treatment of files that exist at the destination.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overwrite {
    /// Replaces files that differ in size or modification time, keeps the others.
    #[default]
    Changed,
    /// Fails files that exist and differ.
    Never,
}

/// Extent of verification of each file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verify {
    /// Verifies the bytes in transit and the expected digest.
    #[default]
    Transfer,
    /// Also reads the file back from the destination's device.
    Readback,
}

/// Transport of the data streams of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OrderTransport {
    /// TCP.
    Tcp,
    /// RDMA; where it is not possible the order fails. Needs an order without encryption.
    Rdma,
    /// RDMA where both ends can and the order is not encrypted, else TCP.
    Auto,
}

impl OrderTransport {
    /// All transports, in the order of the documents.
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Rdma, Self::Auto];

    /// Name in requests and orders.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Rdma => "rdma",
            Self::Auto => "auto",
        }
    }

    /// Transport with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|transport| transport.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_serialization_round_trips() {
        let file = File { path: "run 1/ä.raw".into(), digest: Some("crc32c:0a0b0c0d".into()) };
        let send = Send {
            from: "/data".into(),
            to: "/in".into(),
            files: vec![file],
            addresses: vec!["[2001:db8::1]:8620".into()],
            fingerprint: "00".repeat(32),
            ticket: "a secret of some length".into(),
            batch: Some("b7".into()),
            scitag: Some(65),
            overwrite: Overwrite::Never,
            verify: Verify::Readback,
            encrypt: true,
            tune: Some(TuningMode::Observe),
            transport: Some(OrderTransport::Auto),
        };
        for task in [
            OrderTask::Send(Box::new(send)),
            OrderTask::Receive { ticket: "t".into(), below: "/in".into() },
            OrderTask::List { path: "/data".into() },
        ] {
            let order = Order { order: OrderId::from(7), request: "r".into(), task };
            let text = serde_json::to_string(&order).unwrap();
            assert_eq!(serde_json::from_str::<Order>(&text).unwrap(), order, "{text}");
        }
    }

    #[test]
    fn transport_names_are_those_of_json() {
        for transport in OrderTransport::ALL {
            assert_eq!(serde_json::to_value(transport).unwrap(), transport.name());
            assert_eq!(OrderTransport::named(transport.name()), Some(transport));
        }
        assert_eq!(OrderTransport::named("quic"), None);
    }

    #[test]
    fn defaults_are_omitted_from_json() {
        let active = ActiveOrder { order: OrderId::from(1), settings: OrderSettings::default() };
        assert_eq!(serde_json::to_string(&active).unwrap(), r#"{"order":1,"settings":{}}"#);
        let report: OrderReport =
            serde_json::from_str(r#"{"order":1,"run":2,"phase":"running"}"#).unwrap();
        assert_eq!(report.phase, OrderPhase::Running);
        assert!(serde_json::from_str::<OrderSettings>(r#"{"rate":1}"#).is_err());
    }
}
