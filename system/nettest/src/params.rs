//! Parameters of a test and their limits. Pure.

use std::time::Duration;

use penstock_protocol::open::{Mark, PacketLabel};
use penstock_units::Dscp;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use utoipa::ToSchema;

use crate::iperf3::params::{IPERF_STREAMS_MAX, OMIT_SECONDS_MAX};

/// Limit of streams in one direction of a test.
pub const STREAMS_MAX: u32 = 256;
/// Limit of a test's duration in seconds.
pub const SECONDS_MAX: f64 = 86_400.0;
/// Range of a datagram's payload, which starts with a header.
pub const DATAGRAM_BYTES: std::ops::RangeInclusive<u32> = 64..=65_507;
/// Limit of messages in flight of a queue pair.
pub const RDMA_DEPTH_MAX: u32 = 16_384;
/// Memory of all queue pairs of a test at one end. A queue pair has at least memory for one message; slots beyond its
/// share of this use the same memory, so that depth does not need memory at an open listener.
pub const RDMA_MEMORY_BYTES_MAX: u64 = 64 << 20;
/// Range of the interval between two reports.
pub const INTERVAL_SECONDS: std::ops::RangeInclusive<f64> = 0.1..=3600.0;

/// Direction of the data, as the client sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Direction)]
pub enum TestDirection {
    /// Client to listener.
    #[default]
    Forward,
    /// Listener to client.
    Reverse,
    /// Both at once, each with its own streams.
    Bidir,
}

impl TestDirection {
    /// The name used on the wire and in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Reverse => "reverse",
            Self::Bidir => "bidir",
        }
    }
}

/// System call with which a sender passes its bytes to the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SendPath {
    /// The fastest that works.
    #[default]
    Auto,
    /// Pages of memory through a pipe, not copied.
    Vmsplice,
    /// A memory file through `sendfile`, not copied.
    Sendfile,
    /// Copied by `write`.
    Write,
}

/// Parameters of a test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct TestParams {
    /// `forward` (client to listener), `reverse` or `bidir`.
    #[schema(required)]
    pub direction: TestDirection,
    /// Streams in each direction.
    #[schema(required)]
    pub streams: u32,
    /// Duration after the omitted start; null where `bytes` is set.
    pub seconds: Option<f64>,
    /// Bytes to send in each direction.
    pub bytes: Option<u64>,
    /// Limit on the rate of each direction.
    pub rate_bps: Option<u64>,
    /// Congestion control of both ends.
    pub congestion: Option<String>,
    /// Fixed socket buffer size of both ends.
    pub window_bytes: Option<u32>,
    /// Bytes for each system call.
    pub block_bytes: Option<u32>,
    /// System call by which to send: `auto`, `vmsplice`, `sendfile` or `write`.
    #[schema(required)]
    pub path: SendPath,
    /// Length of an interval.
    #[schema(required)]
    pub interval_seconds: f64,
    /// Duration of the start that is not counted.
    #[schema(required)]
    pub omit_seconds: f64,
    /// Scitag of the packets: owner and activity as one number.
    pub scitag: Option<u16>,
    /// Place of the scitag in the packets: `flow`, `destination` or `none`.
    #[schema(required)]
    pub label: LabelBy,
    /// DSCP of the packets of both ends: a name such as `af31`, or a number; null for that of the system.
    #[schema(value_type = Option<String>)]
    pub dscp: Option<Dscp>,
    /// True for datagrams (UDP) instead of TCP; `block_bytes` is their size.
    #[schema(required)]
    pub udp: bool,
    /// RDMA instead of TCP, null without; `block_bytes` is the size of its messages.
    pub rdma: Option<RdmaParams>,
}

/// Verb of a test of RDMA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RdmaVerb {
    /// The sender writes into memory of the receiver.
    #[default]
    Write,
    /// The receiver reads from memory of the sender.
    Read,
}

impl RdmaVerb {
    /// The name used on the wire and in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
        }
    }
}

/// Parameters of a test of RDMA; each stream is a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RdmaParams {
    /// Verb of each message: `write` or `read`.
    pub verb: RdmaVerb,
    /// Messages in flight of each queue pair.
    pub depth: u32,
}

impl RdmaParams {
    /// Size of a message without another one, in bytes.
    pub const MESSAGE_BYTES_DEFAULT: u32 = 1 << 20;
    /// Messages in flight without another number.
    pub const DEPTH_DEFAULT: u32 = 64;
}

/// Field of a packet that carries the scitag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LabelBy {
    /// In the IPv6 flow label.
    #[default]
    Flow,
    /// In an IPv6 destination option.
    Destination,
    /// Not.
    None,
}

impl Default for TestParams {
    fn default() -> Self {
        Self {
            direction: TestDirection::Forward,
            streams: 1,
            seconds: Some(10.0),
            bytes: None,
            rate_bps: None,
            congestion: None,
            window_bytes: None,
            block_bytes: None,
            path: SendPath::Auto,
            interval_seconds: 1.0,
            omit_seconds: 0.0,
            scitag: None,
            label: LabelBy::Flow,
            dscp: None,
            udp: false,
            rdma: None,
        }
    }
}

/// Invalid test parameter, with its limit.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum InvalidParams {
    /// Number of streams out of range.
    #[error("streams {0}: 1 to {STREAMS_MAX} are possible")]
    Streams(u32),
    /// Duration in seconds out of range.
    #[error("time {0} s: more than 0 and at most {SECONDS_MAX} s (1 day)")]
    Time(f64),
    /// Omitted seconds out of range.
    #[error("omit {0} s: 0 to half a day")]
    Omit(f64),
    /// Seconds between two reports out of range.
    #[error("interval {0} s: 0.1 to 3600 s")]
    Interval(f64),
    /// A test without an end.
    #[error("neither time nor bytes bound the test")]
    Unbounded,
    /// A test that sends nothing.
    #[error("bytes 0: nothing to send")]
    NoBytes,
    /// An omitted start of a test whose duration is unknown.
    #[error("omit needs a test bounded by time, not by bytes")]
    OmitOfBytes,
    /// Rate below the least.
    #[error("rate: at least 8 kb/s")]
    Rate,
    /// Size of a block out of range.
    #[error("block: 64 B to 16 MiB")]
    Block,
    /// Payload of datagrams in bytes out of range.
    #[error(
        "udp: datagrams of {0} B: {least} to {most} B",
        least = DATAGRAM_BYTES.start(),
        most = DATAGRAM_BYTES.end()
    )]
    Datagram(u32),
    /// A scitag in a test of UDP.
    #[error("udp: only packets of TCP carry a scitag; leave it out")]
    UdpScitag,
    /// RDMA together with another transport.
    #[error("rdma: not with udp; choose one")]
    RdmaUdp,
    /// Messages in flight out of range.
    #[error("rdma: depth {0}: 1 to {RDMA_DEPTH_MAX} messages in flight")]
    RdmaDepth(u32),
    /// More memory for one message of each queue pair than an open listener gives.
    #[error(
        "rdma: {streams} queue pairs with messages of {bytes} B: at most {RDMA_MEMORY_BYTES_MAX} B together"
    )]
    RdmaMemory {
        /// Number of queue pairs.
        streams: u32,
        /// Size of a message.
        bytes: u32,
    },
    /// An option of TCP in a test of RDMA.
    #[error("rdma: {0} is for TCP; leave it out")]
    RdmaOption(&'static str),
    /// A congestion control that no kernel can have.
    #[error("congestion control '{}': not a name", name.escape_default())]
    Congestion {
        /// Name as given.
        name: String,
    },
    /// More streams than iperf3 has.
    #[error("streams {0}: iperf3 has at most {IPERF_STREAMS_MAX}")]
    IperfStreams(u32),
    /// Omitted seconds that iperf3 cannot express.
    #[error("omit {0} s: iperf3 omits 0 to {OMIT_SECONDS_MAX} whole seconds")]
    IperfOmit(f64),
    /// A test of iperf3 that is too long.
    #[error("time: iperf3 tests for at most one day")]
    IperfTime,
}

impl TestParams {
    /// Checks each parameter against its limits.
    ///
    /// # Errors
    /// The first limit exceeded, with the value.
    pub fn validate(&self) -> Result<(), InvalidParams> {
        if !(1..=STREAMS_MAX).contains(&self.streams) {
            return Err(InvalidParams::Streams(self.streams));
        }
        let time = self.seconds.unwrap_or(1.0);
        if !(time > 0.0 && time <= SECONDS_MAX) {
            return Err(InvalidParams::Time(time));
        }
        if !(0.0..=SECONDS_MAX / 2.0).contains(&self.omit_seconds) {
            return Err(InvalidParams::Omit(self.omit_seconds));
        }
        if !INTERVAL_SECONDS.contains(&self.interval_seconds) {
            return Err(InvalidParams::Interval(self.interval_seconds));
        }
        match (self.seconds, self.bytes) {
            (None, None) => return Err(InvalidParams::Unbounded),
            (_, Some(0)) => return Err(InvalidParams::NoBytes),
            (_, Some(_)) if self.omit_seconds > 0.0 => {
                return Err(InvalidParams::OmitOfBytes);
            }
            _ => {}
        }
        if self.rate_bps.is_some_and(|rate| rate < 8_000) {
            return Err(InvalidParams::Rate);
        }
        if !self.udp && self.block_bytes.is_some_and(|block| !(64..=16 << 20).contains(&block)) {
            return Err(InvalidParams::Block);
        }
        if self.udp {
            if let Some(bytes) = self.block_bytes.filter(|bytes| !DATAGRAM_BYTES.contains(bytes)) {
                return Err(InvalidParams::Datagram(bytes));
            }
            if self.scitag.is_some() {
                return Err(InvalidParams::UdpScitag);
            }
        }
        if let Some(rdma) = &self.rdma {
            self.validate_rdma(rdma)?;
        }
        if let Some(name) = &self.congestion
            && (name.is_empty()
                || name.len() > 15
                || name.contains(|c: char| !c.is_ascii_graphic()))
        {
            return Err(InvalidParams::Congestion { name: name.clone() });
        }
        Ok(())
    }

    fn validate_rdma(&self, rdma: &RdmaParams) -> Result<(), InvalidParams> {
        if self.udp {
            return Err(InvalidParams::RdmaUdp);
        }
        if !(1..=RDMA_DEPTH_MAX).contains(&rdma.depth) {
            return Err(InvalidParams::RdmaDepth(rdma.depth));
        }
        let bytes = self.message_bytes();
        if u64::from(self.connections()) * u64::from(bytes) > RDMA_MEMORY_BYTES_MAX {
            return Err(InvalidParams::RdmaMemory { streams: self.connections(), bytes });
        }
        match () {
            () if self.scitag.is_some() => Err(InvalidParams::RdmaOption("a scitag")),
            () if self.congestion.is_some() => Err(InvalidParams::RdmaOption("congestion control")),
            () if self.window_bytes.is_some() => Err(InvalidParams::RdmaOption("a window")),
            () if self.path != SendPath::Auto => Err(InvalidParams::RdmaOption("a path")),
            () => Ok(()),
        }
    }

    /// Size of a message of RDMA in bytes.
    #[must_use]
    pub fn message_bytes(&self) -> u32 {
        self.block_bytes.unwrap_or(RdmaParams::MESSAGE_BYTES_DEFAULT)
    }

    /// Validates the parameters of a test against an iperf3 server.
    ///
    /// # Errors
    /// The first limit exceeded, with the value.
    pub fn validate_for_iperf3(&self) -> Result<(), InvalidParams> {
        if self.rdma.is_some() {
            return Err(InvalidParams::RdmaOption("iperf3"));
        }
        if self.streams > IPERF_STREAMS_MAX {
            return Err(InvalidParams::IperfStreams(self.streams));
        }
        if self.omit_seconds.fract() != 0.0 || self.omit_seconds > OMIT_SECONDS_MAX as f64 {
            return Err(InvalidParams::IperfOmit(self.omit_seconds));
        }
        if self.seconds.is_some_and(|seconds| seconds > SECONDS_MAX - self.omit_seconds) {
            return Err(InvalidParams::IperfTime);
        }
        Ok(())
    }

    /// Mark of the senders' data.
    #[must_use]
    pub fn mark(&self) -> Option<Mark> {
        let label = match self.label {
            LabelBy::Flow => PacketLabel::Flow,
            LabelBy::Destination => PacketLabel::Destination,
            LabelBy::None => PacketLabel::None,
        };
        self.scitag.map(|scitag| Mark { scitag, label })
    }

    /// Type of service or traffic class of the packets; `None` for that of the system.
    #[must_use]
    pub(crate) fn traffic_class(&self) -> Option<u8> {
        self.dscp.map(Dscp::traffic_class)
    }

    /// Number of streams in all directions together.
    #[must_use]
    pub const fn connections(&self) -> u32 {
        match self.direction {
            TestDirection::Bidir => self.streams * 2,
            _ => self.streams,
        }
    }

    /// True if the client sends on this stream: in a test of both directions the first `streams` go
    /// forward.
    #[must_use]
    pub const fn client_sends(&self, index: u32) -> bool {
        match self.direction {
            TestDirection::Forward => true,
            TestDirection::Reverse => false,
            TestDirection::Bidir => index < self.streams,
        }
    }

    /// Duration of the omitted start.
    #[must_use]
    pub fn omit(&self) -> Duration {
        Duration::from_secs_f64(self.omit_seconds)
    }

    /// End of sending, from the start; `None` if `bytes` limits the test.
    #[must_use]
    pub fn duration(&self) -> Option<Duration> {
        self.seconds.map(|seconds| Duration::from_secs_f64(seconds + self.omit_seconds))
    }

    /// Rate limit of one stream in bytes per second.
    #[must_use]
    pub fn stream_bytes_per_second(&self) -> Option<u64> {
        self.rate_bps.map(|rate| (rate / 8 / u64::from(self.streams)).max(1))
    }

    /// Block size for the kernel, `usual` without a rate limit: with one, at most 5 ms of data, which
    /// keeps the flow smooth. A small socket buffer takes small blocks, so that the test ends on time.
    #[must_use]
    pub fn send_block_bytes(&self, usual: u64) -> u64 {
        let most =
            self.window_bytes.map_or(u64::MAX, |window| (4 * u64::from(window)).max(4 << 10));
        let block = self.block_bytes.map_or(usual, u64::from).min(most);
        match self.stream_bytes_per_second() {
            Some(rate) => block.min((rate / 200).max(1_024)),
            None => block,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_name_what_they_refuse() {
        let test = TestParams::default;
        let rdma = |depth| TestParams {
            rdma: Some(RdmaParams { verb: RdmaVerb::Write, depth }),
            ..TestParams::default()
        };
        assert_eq!(test().validate(), Ok(()));
        assert_eq!(rdma(RDMA_DEPTH_MAX).validate(), Ok(()));
        for (params, word) in [
            (TestParams { streams: 0, ..test() }, "streams"),
            (TestParams { streams: 257, ..test() }, "streams"),
            (TestParams { seconds: Some(0.0), ..test() }, "time"),
            (TestParams { seconds: Some(f64::NAN), ..test() }, "time"),
            (TestParams { seconds: Some(1e6), ..test() }, "time"),
            (TestParams { seconds: None, ..test() }, "neither"),
            (TestParams { bytes: Some(0), ..test() }, "bytes"),
            (TestParams { bytes: Some(1), omit_seconds: 1.0, ..test() }, "omit"),
            (TestParams { rate_bps: Some(1), ..test() }, "rate"),
            (TestParams { interval_seconds: 0.0, ..test() }, "interval"),
            (TestParams { block_bytes: Some(1), ..test() }, "block"),
            (TestParams { udp: true, block_bytes: Some(65_508), ..test() }, "65507"),
            (TestParams { udp: true, block_bytes: Some(1), ..test() }, "64 to 65507"),
            (TestParams { udp: true, scitag: Some(1), ..test() }, "scitag"),
            (TestParams { congestion: Some("a b".into()), ..test() }, "congestion"),
            (TestParams { udp: true, ..rdma(8) }, "udp"),
            (rdma(0), "depth 0"),
            (rdma(16_385), "16384"),
            (TestParams { streams: 65, ..rdma(8) }, "67108864"),
            (TestParams { scitag: Some(1), ..rdma(8) }, "scitag"),
            (TestParams { congestion: Some("bbr".into()), ..rdma(8) }, "congestion"),
        ] {
            let reason = params.validate().unwrap_err().to_string();
            assert!(reason.contains(word), "{reason}");
        }
    }

    #[test]
    fn iperf3_has_narrower_limits() {
        let test = TestParams::default;
        assert_eq!(test().validate_for_iperf3(), Ok(()));
        for (params, word) in [
            (TestParams { streams: 129, ..test() }, "128"),
            (TestParams { omit_seconds: 0.5, ..test() }, "whole"),
            (TestParams { omit_seconds: 601.0, ..test() }, "600"),
        ] {
            let reason = params.validate_for_iperf3().unwrap_err().to_string();
            assert!(reason.contains(word), "{reason}");
        }
    }

    #[test]
    fn both_directions_double_the_connections() {
        let both =
            TestParams { direction: TestDirection::Bidir, streams: 3, ..TestParams::default() };
        assert_eq!(both.connections(), 6);
        assert!(both.client_sends(2) && !both.client_sends(3));
    }

    #[test]
    fn slow_flows_use_small_blocks() {
        let block =
            |rate_bps| TestParams { rate_bps, ..TestParams::default() }.send_block_bytes(1 << 20);
        assert_eq!(block(Some(8_000_000)), 5_000);
        assert_eq!(block(Some(8_000)), 1_024);
        assert_eq!(block(Some(u64::MAX)), 1 << 20);
        assert_eq!(block(None), 1 << 20);
    }
}
