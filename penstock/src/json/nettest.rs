//! `penstock nettest`.

use penstock_nettest::{Report, StreamSweepReport, TestParams};
use serde::Serialize;
use utoipa::ToSchema;

/// Result of a test.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Tested {
    /// Counts of both ends.
    #[serde(flatten)]
    pub(crate) report: Report,
    /// Advice where socket buffers limit the rate, or may do so.
    pub(crate) advice: Option<String>,
}

/// Result of a test with `--sweep`.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Swept {
    /// Address of the listener.
    pub(crate) peer: String,
    /// `forward`, `reverse` or `bidir`.
    pub(crate) direction: &'static str,
    /// Congestion control in force at the senders.
    pub(crate) congestion: String,
    /// System call by which the senders send.
    pub(crate) path: String,
    /// Duration of each measurement [s].
    pub(crate) seconds_each: Option<f64>,
    /// Place of the scitag in the packets: `flow`, `destination` or `none`.
    pub(crate) label: Option<String>,
    /// Reason for another place than the one that was asked for.
    pub(crate) label_note: Option<String>,
    /// Largest number of other tests that the listener ran at the same time: they shared its network and processors.
    pub(crate) other_tests: u32,
    /// Highest rate that was reached.
    pub(crate) bits_per_second: f64,
    /// Rates by the number of streams.
    pub(crate) sweep: StreamSweepReport,
}

/// First line of a listener, on standard output.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Listening {
    /// Address and port of the listener.
    pub(crate) listening: String,
    /// True where any client that reaches the port may test.
    pub(crate) open: bool,
    /// Reason why tests with UDP are refused, as another program has the port; null where they are not.
    pub(crate) udp_unavailable: Option<String>,
}

/// A line of a listener for each event, on standard error.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum ListenerEventJson {
    /// A test began.
    Started {
        /// Address of the client.
        peer: String,
        /// Parameters that the client asked for.
        params: TestParams,
    },
    /// A test ended.
    Finished {
        /// Address of the client.
        peer: String,
        /// Bytes that the listener sent.
        bytes_sent: u64,
        /// Bytes that the listener received.
        bytes_received: u64,
        /// Duration of the test.
        seconds: f64,
    },
    /// A test ended early.
    Failed {
        /// Address of the client.
        peer: String,
        /// Reason in words.
        reason: String,
        /// Bytes that the listener sent.
        bytes_sent: u64,
        /// Bytes that the listener received.
        bytes_received: u64,
        /// Duration of the test.
        seconds: f64,
    },
    /// A connection was closed before a test began.
    Dropped {
        /// Address of the client.
        peer: String,
        /// Reason in words.
        reason: String,
    },
}
