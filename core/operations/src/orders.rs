//! What nodes report to the controller and what they are told.
//!
//! A node asks, the controller answers: once a second the node posts a [`Report`], and the answer, [`Instructions`],
//! is the whole list of orders that are to stand there, each with its settings. The node makes it so: it fetches the
//! [`Order`] that is new to it and begins, changes what has other settings, and ends what is no longer listed. So a
//! lost answer costs a second and nothing else, and either side may begin anew at any time: a node that has forgotten
//! an order finds it listed, begins it again, and files that are there already are not sent again.
//!
//! What became of files is told once: outcomes of an order are numbered from 0 in the order in which they came about, a
//! report repeats those that the controller has not acknowledged, and a node that began an order again numbers anew
//! under another [`OrderReport::run`].
//!
//! Between two answers a node goes on with what it was told last, for as long as it takes: an order ends when it is
//! done or is no longer listed, never because the controller is away. What the node may send meanwhile is bounded by
//! [`Instructions::lease_seconds`]: after so long without an answer it falls to the lower of its last rate and the
//! safe rate of its own configuration.
//!
//! Rates are bits per second of file bytes, amounts are bytes, paths are as the node's exports name them.

use serde::{Deserialize, Serialize};

/// Number of an order; the controller gives it and never gives it again.
pub type OrderId = u64;

/// Most outcomes of files in one report.
pub const OUTCOMES_MAX: usize = 10_000;

/// Most files of an order.
pub const FILES_MAX: usize = 10_000;

/// Most entries of a listing in one report.
pub const ENTRIES_MAX: usize = 10_000;

/// How a node is and what has become of its orders.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// Chosen at random when the process began: another one means that it began anew.
    pub start: String,
    /// Version of its software.
    pub version: String,
    /// Addresses with ports at which other nodes reach its mover, best first.
    pub addresses: Vec<String>,
    /// SHA-256 of its certificate, in hexadecimal.
    pub fingerprint: String,
    /// What it can do.
    pub capacity: Capacity,
    /// Counters of its interfaces.
    #[serde(default)]
    pub interfaces: Vec<InterfaceCounters>,
    /// Its orders: those that run and those whose end is not acknowledged.
    #[serde(default)]
    pub orders: Vec<OrderReport>,
}

/// What a node can do; what is not known is absent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Capacity {
    /// Rate of its interfaces, or the limit of its operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_bps: Option<u64>,
    /// Rate at which it reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_bps: Option<u64>,
    /// Rate at which it writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_bps: Option<u64>,
    /// Transfers at once.
    pub transfers: u32,
    /// Streams of all transfers.
    pub streams: u32,
}

/// Counters of an interface since it came up.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InterfaceCounters {
    /// Its name, as the topology has it.
    pub name: String,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Its addresses, in figures and without ports: a path that ends at it uses them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
}

/// What a node does with an order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It has not begun: the other end is busy or out of reach, or a place is missing.
    #[default]
    Waiting,
    /// It runs.
    Running,
    /// Every file has its outcome, or [`OrderReport::fault`] says why it went no further.
    Ended,
}

/// How an order is going.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OrderReport {
    /// Which.
    pub order: OrderId,
    /// Which beginning of it this is: a number that the node has not used for the order before.
    pub run: u64,
    /// Where it stands.
    pub phase: Phase,
    /// Why it waits, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<String>,
    /// Why it ended before its files had outcomes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<Fault>,
    /// File bytes that crossed the network in this run, of unfinished files too.
    #[serde(default)]
    pub moved_bytes: u64,
    /// The rate over the last moments.
    #[serde(default)]
    pub bits_per_second: u64,
    /// The limit on its rate that is in force; absent for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_bps: Option<u64>,
    /// Streams that are connected.
    #[serde(default)]
    pub streams: u16,
    /// TCP segments sent again.
    #[serde(default)]
    pub retransmits: u64,
    /// What holds it back, as measured; "rate" for its limit.
    #[serde(default)]
    pub bound_by: String,
    /// How its packets are labelled, or why they are not.
    #[serde(default)]
    pub label: String,
    /// Number of the first of `outcomes`.
    #[serde(default)]
    pub outcomes_from: u64,
    /// What became of files, in the order in which it came about.
    #[serde(default)]
    pub outcomes: Vec<Outcome>,
    /// Number of the first of `entries`.
    #[serde(default)]
    pub entries_from: u64,
    /// What a listing found.
    #[serde(default)]
    pub entries: Vec<Entry>,
}

/// What became of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outcome {
    /// Its place in the order's list, from 0.
    pub file: u32,
    /// Its size.
    pub bytes: u64,
    /// It was there already, and was not sent.
    #[serde(default)]
    pub was_there: bool,
    /// `algorithm:hexadecimal`, where one was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Why it is not in place; absent when it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<Fault>,
}

/// Path of the only entry of a listing whose path is a file.
pub const LISTED_PATH: &str = ".";

/// A file that a listing found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Below the directory that was listed; [`LISTED_PATH`] where what was listed is a file.
    pub path: String,
    /// Its size.
    pub bytes: u64,
}

/// Why something was not done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// What can be done about it.
    pub kind: FaultKind,
    /// One line for people.
    pub text: String,
}

/// What can be done about a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// It may be gone the next time: connections, busy nodes, a changing source.
    Passing,
    /// It will be the same the next time: nothing there, no permission, a name that cannot be.
    Lasting,
    /// The bytes are not those that were announced.
    Integrity,
    /// Somebody ended it.
    Cancelled,
}

impl FaultKind {
    /// Whether trying again may help.
    #[must_use]
    pub fn may_pass(self) -> bool {
        matches!(self, Self::Passing | Self::Integrity)
    }
}

/// What is to stand at a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Instructions {
    /// How long the rates hold without another answer.
    pub lease_seconds: u32,
    /// Every order that is to stand; all others end.
    pub orders: Vec<Standing>,
    /// What need not be told again.
    pub acknowledged: Vec<Acknowledged>,
}

/// An order that is to stand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Standing {
    /// Which; its content never changes.
    pub order: OrderId,
    /// How it is to run now.
    pub settings: Settings,
}

/// How an order is to run; what is absent is the node's to choose.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Limit on its rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_bps: Option<u64>,
    /// Streams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<u16>,
    /// The path: pairs of addresses that streams use, from here and to there; none for any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub path: Vec<AddressPair>,
}

/// Two addresses, in figures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddressPair {
    /// Of the node that sends.
    pub from: String,
    /// Of the node that receives.
    pub to: String,
}

/// What need not be told again of an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Acknowledged {
    /// Of which order.
    pub order: OrderId,
    /// Of which beginning of it.
    pub run: u64,
    /// Outcomes before this number.
    pub outcomes: u64,
    /// Entries before this number.
    pub entries: u64,
    /// Its end is known: the node may forget the order.
    pub end: bool,
}

/// What a node is to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Order {
    /// Its number.
    pub order: OrderId,
    /// The request that it is a part of, for logs.
    pub request: String,
    /// What to do.
    pub task: Task,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "task", rename_all = "snake_case")]
pub enum Task {
    /// Tell what files there are below a directory, or how large a file is.
    List {
        /// The directory, or the file.
        path: String,
    },
    /// Let another node write, as long as the order stands.
    Receive {
        /// What the other node shows, a secret.
        ticket: String,
        /// The directory below which it may write.
        below: String,
    },
    /// Send files to another node.
    Send(Box<Send>),
}

/// Files that go to another node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Send {
    /// The directory here.
    pub from: String,
    /// The directory there.
    pub to: String,
    /// Files, each below both directories.
    pub files: Vec<File>,
    /// Addresses with ports of the other node's mover.
    pub addresses: Vec<String>,
    /// SHA-256 of the other node's certificate.
    pub fingerprint: String,
    /// What lets this node in there, a secret.
    pub ticket: String,
    /// Names what is left of unfinished files: a later order with the same name to the same directory takes it up, and
    /// two of them never run at once there. Where it is absent nothing but the same order does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<String>,
    /// Whose data it is: the 16-bit scitag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scitag: Option<u16>,
    /// What is done with files that are there.
    pub overwrite: Overwrite,
    /// What is verified.
    pub verify: Verify,
    /// Whether data is encrypted on its way; otherwise it is protected against change alone.
    pub encrypt: bool,
}

/// A file to send.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// Below both directories.
    pub path: String,
    /// What it must be: `algorithm:hexadecimal`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

/// What is done with files that are at the destination.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overwrite {
    /// Those that differ in size or time are replaced, the same stay.
    #[default]
    Changed,
    /// A file that is there and differs is a fault.
    Never,
}

/// What is verified of each file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verify {
    /// Its bytes on their way, and the digest that was given.
    #[default]
    Transfer,
    /// What the destination's device gives back, too.
    Readback,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_read_as_it_was_written() {
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
        };
        for task in [
            Task::Send(Box::new(send)),
            Task::Receive { ticket: "t".into(), below: "/in".into() },
            Task::List { path: "/data".into() },
        ] {
            let order = Order { order: 7, request: "r".into(), task };
            let text = serde_json::to_string(&order).unwrap();
            assert_eq!(serde_json::from_str::<Order>(&text).unwrap(), order, "{text}");
        }
    }

    #[test]
    fn what_says_little_is_short() {
        let standing = Standing { order: 1, settings: Settings::default() };
        assert_eq!(serde_json::to_string(&standing).unwrap(), r#"{"order":1,"settings":{}}"#);
        let report: OrderReport =
            serde_json::from_str(r#"{"order":1,"run":2,"phase":"running"}"#).unwrap();
        assert_eq!(report.phase, Phase::Running);
        assert!(serde_json::from_str::<Settings>(r#"{"rate":1}"#).is_err());
    }
}
