//! Result of a test: merged measurements of both ends. Pure.

use std::time::Duration;

use penstock_rdma::parameters::rate_limit_bps;
use serde::Serialize;
use utoipa::ToSchema;

use crate::NettestError;
use crate::message::{StreamReport, StreamRole};
use crate::params::TestParams;
use crate::rdma::RdmaStreamReport;
use crate::session::TestOutcome;

/// Bytes and samples of this end between two ticks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct Interval {
    /// Number of the interval, from 0.
    pub index: u32,
    /// Start, from the start of the test.
    pub start_seconds: f64,
    /// End, from the start of the test.
    pub end_seconds: f64,
    /// Bytes this end's senders handed to the kernel.
    pub bytes_sent: u64,
    /// Bytes this end's receivers took.
    pub bytes_received: u64,
    /// TCP segments that this end retransmitted.
    pub retransmits: u64,
    /// Mean round-trip time of this end's senders.
    pub rtt_us: Option<u32>,
    /// Datagrams of a UDP test: those that this end received, or only sent.
    pub udp: Option<DatagramCounts>,
    /// True where it belongs to the start that is not counted.
    pub omitted: bool,
}

impl Interval {
    /// Length of the interval in seconds.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.end_seconds - self.start_seconds
    }

    /// Rate of both directions together.
    #[must_use]
    pub fn bits_per_second(&self) -> f64 {
        rate(self.bytes_sent + self.bytes_received, self.seconds())
    }
}

/// Datagrams of one direction or stream, as the receiver counted them, without the omitted start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct DatagramCounts {
    /// Datagrams that the sender handed over.
    pub packets: u64,
    /// Datagrams that did not arrive.
    pub lost: u64,
    /// Share of the datagrams that did not arrive.
    pub lost_percent: f64,
    /// Datagrams that arrived after later ones; null where the receiver does not report them (iperf3).
    pub out_of_order: Option<u64>,
    /// Datagrams that arrived once more, which are not counted otherwise; null likewise.
    pub duplicates: Option<u64>,
    /// Interarrival jitter (RFC 1889); of a direction the mean of its streams \[us\].
    pub jitter_us: f64,
}

impl DatagramCounts {
    /// Counts of one stream. The sender's count adds the loss at the end, if both ends stopped in turn.
    fn of(sender: &StreamReport, receiver: &StreamReport, sender_counts: bool) -> Self {
        let unseen = sender.packets.saturating_sub(receiver.packets);
        let unseen = if sender_counts { unseen } else { 0 };
        let packets = receiver.packets.saturating_sub(receiver.omitted_packets) + unseen;
        let lost = receiver.lost.saturating_sub(receiver.omitted_lost) + unseen;
        let jitter_us = receiver.jitter_ns as f64 / 1e3;
        let (out_of_order, duplicates) = (receiver.out_of_order, receiver.duplicates);
        Self { packets, lost, out_of_order, duplicates, jitter_us, ..Self::default() }
            .with_percent()
    }

    /// Counts since `earlier` ones of the same stream.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let since = |now: Option<u64>, then: Option<u64>| {
            now.map(|now| now.saturating_sub(then.unwrap_or(0)))
        };
        Self {
            packets: self.packets.saturating_sub(earlier.packets),
            // A late datagram of the time before takes loss back.
            lost: self.lost.saturating_sub(earlier.lost),
            out_of_order: since(self.out_of_order, earlier.out_of_order),
            duplicates: since(self.duplicates, earlier.duplicates),
            ..*self
        }
    }

    pub(crate) fn sum(streams: &[Self]) -> Self {
        let known = |count: fn(&Self) -> Option<u64>| streams.iter().map(count).sum();
        let sum = |count: fn(&Self) -> u64| streams.iter().map(count).sum();
        let jitter: f64 = streams.iter().map(|one| one.jitter_us).sum();
        Self {
            packets: sum(|one| one.packets),
            lost: sum(|one| one.lost),
            out_of_order: known(|one| one.out_of_order),
            duplicates: known(|one| one.duplicates),
            jitter_us: jitter / streams.len().max(1) as f64,
            ..Self::default()
        }
        .with_percent()
    }

    fn with_percent(mut self) -> Self {
        self.lost_percent = self.lost as f64 * 100.0 / self.packets.max(1) as f64;
        self
    }
}

/// One stream as both ends saw it.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct StreamResult {
    /// Number of the stream, from 0.
    pub index: u32,
    /// Direction of the stream: `forward` or `reverse`.
    pub direction: &'static str,
    /// Bytes that the receiver read.
    pub bytes: u64,
    /// Time from the first byte to the last at the receiver.
    pub seconds: f64,
    /// Rate at the receiver.
    pub bits_per_second: f64,
    /// TCP segments that were retransmitted.
    pub retransmits: u32,
    /// Mean round-trip time at the sender; that of the receiver where the sender states none (iperf3), null where neither
    /// measured one.
    pub rtt_us: Option<u32>,
    /// Smallest round-trip time, of the same end.
    pub rtt_min_us: Option<u32>,
    /// Maximum segment size of the sender \[B\].
    pub mss: u32,
    /// CPU use of the sending thread; 100 is one core.
    pub cpu_sender_percent: f64,
    /// CPU use of the receiving thread; 100 is one core.
    pub cpu_receiver_percent: f64,
    /// Datagrams of a UDP test.
    pub udp: Option<DatagramCounts>,
}

/// All streams of one direction.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = Flow)]
pub struct FlowReport {
    /// Direction of the streams: `forward` or `reverse`.
    pub direction: &'static str,
    /// Bytes that the receivers read.
    pub bytes: u64,
    /// Time from the first byte to the last at the receivers.
    pub seconds: f64,
    /// Rate at the receivers.
    pub bits_per_second: f64,
    /// TCP segments that were retransmitted.
    pub retransmits: u64,
    /// Resource that limited the rate for most of the time: `rate limit`, `sender CPU`, `receiver CPU`, `receive buffer`,
    /// `send buffer`, `depth` (the messages of RDMA in flight) or `network`.
    pub bound_by: &'static str,
    /// Place of the scitag in the packets: `flow`, `destination` or `none`; null where none was asked for.
    pub label: Option<String>,
    /// Reason for another place than the one that was asked for.
    pub label_note: Option<String>,
    /// Datagrams of a UDP test.
    pub udp: Option<DatagramCounts>,
}

/// Queue pairs of a test of RDMA.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct RdmaReport {
    /// `write` (by the sender) or `read` (by the receiver).
    pub verb: &'static str,
    /// Messages in flight of each queue pair.
    pub depth: u32,
    /// Size of a message \[B\].
    pub message_bytes: u32,
    /// Queue pairs of each direction.
    pub queue_pairs: u32,
    /// Device of the sender.
    pub sender_device: String,
    /// Device of the receiver.
    pub receiver_device: String,
    /// Path MTU of the queue pairs \[B\].
    pub path_mtu: u32,
    /// Exponent of the retransmission timer, which is 4.096 us times 2 to the power of it.
    pub timeout_exponent: u8,
    /// Mean round-trip time by RDMA before the messages.
    pub rtt_us: u32,
    /// Smallest of these round-trip times.
    pub rtt_min_us: u32,
    /// Rate limit of a direction by its messages in flight: queue pairs times depth times size over the smallest round-trip
    /// time.
    pub limit_bits_per_second: f64,
}

impl RdmaReport {
    /// Merges the reports of both ends.
    fn of(params: &TestParams, reports: &[&StreamReport]) -> Option<Self> {
        let rdma = params.rdma?;
        let device = |role: StreamRole| {
            let mut found = reports.iter().filter(|report| report.role == role);
            found.find_map(|report| report.rdma.as_ref()).map(|one| one.device.clone())
        };
        let measured: Vec<&RdmaStreamReport> = reports
            .iter()
            .filter_map(|report| report.rdma.as_ref())
            .filter(|one| one.round_trip_min_us > 0)
            .collect();
        let sum: u64 = measured.iter().map(|one| u64::from(one.round_trip_us)).sum();
        let rtt_us = sum.checked_div(measured.len() as u64).unwrap_or(0) as u32;
        let rtt_min_us = measured.iter().map(|one| one.round_trip_min_us).min().unwrap_or(0);
        let limit = rate_limit_bps(
            rdma.depth,
            params.message_bytes(),
            Duration::from_micros(rtt_min_us.into()),
        );
        Some(Self {
            verb: rdma.verb.name(),
            depth: rdma.depth,
            message_bytes: params.message_bytes(),
            queue_pairs: params.streams,
            sender_device: device(StreamRole::Sender).unwrap_or_default(),
            receiver_device: device(StreamRole::Receiver).unwrap_or_default(),
            path_mtu: measured.iter().map(|one| one.path_mtu).min().unwrap_or(0),
            timeout_exponent: measured.iter().map(|one| one.timeout_exponent).max().unwrap_or(0),
            rtt_us,
            rtt_min_us,
            limit_bits_per_second: limit * f64::from(params.streams),
        })
    }
}

/// Result of the whole test.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct Report {
    /// Address of the listener.
    pub peer: String,
    /// `forward`, `reverse` or `bidir`.
    pub direction: &'static str,
    /// Bytes that the receivers read, in all directions.
    pub bytes: u64,
    /// Duration of the longest direction.
    pub seconds: f64,
    /// Sum of the directions' rates.
    pub bits_per_second: f64,
    /// TCP segments that were retransmitted.
    pub retransmits: u64,
    /// Congestion control in force at the senders.
    pub congestion: String,
    /// Maximum segment size \[B\].
    pub mss: u32,
    /// CPU use of this end's stream threads; 100 is one core.
    pub cpu_local_percent: f64,
    /// CPU use of the other end's stream threads; 100 is one core.
    pub cpu_remote_percent: f64,
    /// System call by which the senders sent: `vmsplice`, `sendfile` or `write`; with UDP `send` or `send(UDP_SEGMENT)`;
    /// `rdma write` or `rdma read`; `iperf3` where an iperf3 server sent.
    pub path: String,
    /// Reason why that was not a faster one.
    pub path_reason: Option<String>,
    /// True where a user ended the test early.
    pub interrupted: bool,
    /// Reason why the test failed in the middle; null where it did not. The results are those until then: where the other
    /// end's are missing, bytes are those that this end passed to its kernel or received.
    pub error: Option<String>,
    /// Socket buffers that were asked for; null where the kernel tunes them \[B\].
    pub window_bytes: Option<u32>,
    /// Largest number of other tests that the listener ran at the same time: they shared its network and processors.
    pub other_tests: u32,
    /// Datagrams of a UDP test, in all directions.
    pub udp: Option<DatagramCounts>,
    /// Size of a datagram of a UDP test \[B\].
    pub datagram_bytes: Option<u32>,
    /// Queue pairs of a test of RDMA.
    pub rdma: Option<RdmaReport>,
    /// Results for each direction of the test.
    pub flows: Vec<FlowReport>,
    /// Results for each stream of the test.
    pub streams: Vec<StreamResult>,
    /// Intervals, as this end counted them.
    pub intervals: Vec<Interval>,
}

fn rate(bytes: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { bytes as f64 * 8.0 / seconds } else { 0.0 }
}

/// Time from the first byte to the last; from the start of the test where all came at once.
fn span_seconds(streams: &[&StreamReport]) -> f64 {
    let first = streams.iter().filter(|s| s.bytes > 0).map(|s| s.first_us).min().unwrap_or(0);
    let last = streams.iter().map(|s| s.last_us).max().unwrap_or(0);
    let span_us = last.saturating_sub(first);
    (if span_us > 0 { span_us } else { last }) as f64 / 1e6
}

/// Rate of streams over the time from the first byte to the last at their receivers. That time begins with a stream's first
/// datagram, whose bytes it therefore does not hold; times of iperf3 hold all bytes, as do those from the start.
fn received_rate(params: &TestParams, receivers: &[&StreamReport]) -> f64 {
    let begins_with_datagram = params.udp && receivers.iter().any(|s| s.last_us > s.first_us);
    let first = if begins_with_datagram { params.block_bytes.unwrap_or(0) } else { 0 };
    let counted = |receiver: &&StreamReport| match &*receiver.path {
        "iperf3" => receiver.bytes,
        _ => receiver.bytes.saturating_sub(first.into()),
    };
    rate(receivers.iter().map(counted).sum(), span_seconds(receivers))
}

impl Report {
    /// Merges the counts of both ends. The receiver's bytes and times are the result: sent bytes may
    /// still be in a buffer.
    pub(crate) fn new(
        peer: String,
        params: &TestParams,
        outcome: &TestOutcome,
        intervals: Vec<Interval>,
    ) -> Self {
        let find = |role: StreamRole, index: u32| {
            outcome
                .local
                .iter()
                .chain(&outcome.remote)
                .find(|report| report.role == role && report.index == index)
        };
        let mut streams = Vec::new();
        let mut flows = Vec::new();
        let mut sample = StreamReport::default();
        for (direction, client_sends) in [("forward", true), ("reverse", false)] {
            let mut pairs = Vec::new();
            let mut retransmits = 0;
            let mut counts = Vec::new();
            for index in 0..params.connections() {
                if params.client_sends(index) != client_sends {
                    continue;
                }
                let (Some(sender), Some(receiver)) =
                    (find(StreamRole::Sender, index), find(StreamRole::Receiver, index))
                else {
                    continue;
                };
                pairs.push((sender, receiver));
                retransmits += u64::from(sender.retransmits);
                let udp = (params.udp && receiver.is_reported())
                    .then(|| DatagramCounts::of(sender, receiver, outcome.sender_counts));
                counts.extend(udp);
                streams.push(StreamResult {
                    udp,
                    ..stream_result(params, direction, sender, receiver)
                });
                sample = sender.clone();
            }
            let receivers: Vec<&StreamReport> = pairs.iter().map(|pair| pair.1).collect();
            if receivers.is_empty() {
                continue;
            }
            let bytes = receivers.iter().map(|receiver| receiver.bytes).sum();
            let seconds = span_seconds(&receivers);
            let bits_per_second = received_rate(params, &receivers);
            let scitag = params.scitag.filter(|_| sample.is_reported());
            let (label, label_note) = scitag.map(|_| label_of(&sample)).unzip();
            flows.push(FlowReport {
                direction,
                bytes,
                seconds,
                bits_per_second,
                retransmits,
                bound_by: bottleneck(params, &pairs),
                label,
                label_note: label_note.flatten(),
                udp: (!counts.is_empty()).then(|| DatagramCounts::sum(&counts)),
            });
        }
        Self {
            peer,
            direction: params.direction.name(),
            bytes: flows.iter().map(|flow| flow.bytes).sum(),
            seconds: flows.iter().map(|flow| flow.seconds).fold(0.0, f64::max),
            bits_per_second: flows.iter().map(|flow| flow.bits_per_second).sum(),
            retransmits: flows.iter().map(|flow| flow.retransmits).sum(),
            congestion: sample.congestion,
            mss: sample.mss,
            cpu_local_percent: outcome.cpu_local_percent,
            cpu_remote_percent: outcome.cpu_remote_percent,
            path: sample.path,
            path_reason: sample.path_reason,
            interrupted: outcome.interrupted,
            error: None,
            window_bytes: params.window_bytes,
            other_tests: outcome.other_tests,
            datagram_bytes: params.block_bytes.filter(|_| params.udp),
            rdma: RdmaReport::of(
                params,
                &outcome.local.iter().chain(&outcome.remote).collect::<Vec<_>>(),
            ),
            udp: streams.iter().any(|one| one.udp.is_some()).then(|| {
                let all: Vec<DatagramCounts> = streams.iter().filter_map(|one| one.udp).collect();
                DatagramCounts::sum(&all)
            }),
            flows,
            streams,
            intervals,
        }
    }

    /// Result of a test without a failure; otherwise the failure, with this report if any data arrived.
    pub(crate) fn unless(mut self, failure: Option<NettestError>) -> Result<Self, NettestError> {
        let Some(error) = failure else { return Ok(self) };
        if self.bytes == 0 {
            return Err(error);
        }
        self.error = Some(error.to_string());
        Err(NettestError::Broken { error: error.into(), report: self.into() })
    }
}

/// Bottleneck of a direction's streams, from pairs of sender and receiver: the limit of most of their
/// time. A busy thread makes TCP's buffers full or empty, so processors are checked first.
fn bottleneck(params: &TestParams, pairs: &[(&StreamReport, &StreamReport)]) -> &'static str {
    const LIMITED_SHARE_MIN: f64 = 0.4;
    const CPU_BUSY_MIN: f64 = 0.9;
    const AT_LIMIT: f64 = 0.97;
    const AT_DEPTH: f64 = 0.8;
    /// Part of a given socket buffer under way: the kernel's own records take up to half of it.
    const FULL_WINDOW: f64 = 0.5;
    /// Shorter times are measured too coarsely to name a share of them.
    const SPAN_SECONDS_MIN: f64 = 1e-3;
    let count = pairs.len() as f64;
    let mean = |share: &dyn Fn(&StreamReport, &StreamReport) -> f64| {
        pairs.iter().map(|(sender, receiver)| share(sender, receiver)).sum::<f64>() / count
    };
    let mean_part = |micros: &dyn Fn(&StreamReport, &StreamReport) -> u64| {
        mean(&|sender, receiver| {
            // A sender may hand over all it ever sends at once, and wait for the rest of the test.
            let span = span_seconds(&[sender]).max(span_seconds(&[receiver]));
            micros(sender, receiver) as f64 / 1e6 / span.max(SPAN_SECONDS_MIN)
        })
    };
    let limit = params.stream_bytes_per_second().map(|bytes| bytes as f64 * 8.0);
    let rate = mean(&|_, receiver| received_rate(params, &[receiver]));
    let depth_limit = params.rdma.map(|rdma| {
        let micros =
            mean(&|sender, receiver| f64::from(sender.rtt_min_us.max(receiver.rtt_min_us)));
        let round_trip = Duration::from_micros(micros as u64);
        rate_limit_bps(rdma.depth, params.message_bytes(), round_trip)
    });
    let window_share = |window: u32| {
        let seconds =
            mean(&|sender, receiver| f64::from(sender.rtt_min_us.max(receiver.rtt_min_us)) / 1e6);
        rate / 8.0 * seconds / f64::from(window)
    };
    match () {
        () if limit.is_some_and(|limit| rate >= limit * AT_LIMIT) => "rate limit",
        () if mean_part(&|sender, _| sender.cpu_us) > CPU_BUSY_MIN => "sender CPU",
        () if mean_part(&|_, receiver| receiver.cpu_us) > CPU_BUSY_MIN => "receiver CPU",
        () if depth_limit.is_some_and(|limit| rate >= limit * AT_DEPTH) => "depth",
        () if mean_part(&|sender, _| sender.window_us) > LIMITED_SHARE_MIN => "receive buffer",
        () if mean_part(&|sender, _| sender.buffer_us) > LIMITED_SHARE_MIN => "send buffer",
        () if params.window_bytes.is_some_and(|window| window_share(window) > FULL_WINDOW) => {
            "send buffer"
        }
        () => "network",
    }
}

/// Label of a sender, and the reason if it differs from the request.
fn label_of(sender: &StreamReport) -> (String, Option<String>) {
    match sender.label.split_once(": ") {
        Some((label, why)) => (label.to_owned(), Some(why.to_owned())),
        None if sender.label.is_empty() => {
            ("none".to_owned(), Some("the other end labels nothing".to_owned()))
        }
        None => (sender.label.clone(), None),
    }
}

fn stream_result(
    params: &TestParams,
    direction: &'static str,
    sender: &StreamReport,
    receiver: &StreamReport,
) -> StreamResult {
    let cpu = |report: &StreamReport| {
        let seconds = span_seconds(&[report]);
        if seconds > 0.0 { report.cpu_us as f64 / 1e4 / seconds } else { 0.0 }
    };
    let seconds = span_seconds(&[receiver]);
    let measured = [sender, receiver].into_iter().find(|report| report.rtt_us > 0);
    StreamResult {
        index: sender.index,
        direction,
        bytes: receiver.bytes,
        seconds,
        bits_per_second: received_rate(params, &[receiver]),
        retransmits: sender.retransmits,
        rtt_us: measured.map(|report| report.rtt_us),
        rtt_min_us: measured.map(|report| report.rtt_min_us).filter(|rtt| *rtt > 0),
        mss: sender.mss,
        cpu_sender_percent: cpu(sender),
        cpu_receiver_percent: cpu(receiver),
        udp: None,
    }
}

/// Role of this end on a stream.
#[must_use]
pub(crate) const fn role_of(params: &TestParams, index: u32, is_client: bool) -> StreamRole {
    if params.client_sends(index) == is_client { StreamRole::Sender } else { StreamRole::Receiver }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_limit_is_named() {
        let stream = |cpu_us, window_us, buffer_us| StreamReport {
            bytes: 1_000_000,
            first_us: 0,
            last_us: 1_000_000,
            cpu_us,
            window_us,
            buffer_us,
            ..StreamReport::default()
        };
        let idle = stream(100_000, 0, 0);
        let params = TestParams::default();
        let bound = |sender, receiver| bottleneck(&params, &[(&sender, &receiver)]);
        assert_eq!(bound(idle.clone(), idle.clone()), "network");
        assert_eq!(bound(stream(950_000, 900_000, 0), idle.clone()), "sender CPU");
        assert_eq!(bound(idle.clone(), stream(950_000, 0, 0)), "receiver CPU");
        assert_eq!(bound(stream(0, 500_000, 0), idle.clone()), "receive buffer");
        assert_eq!(bound(stream(0, 100_000, 500_000), idle.clone()), "send buffer");
        // Two streams, one of them limited: half of their time.
        let held = stream(0, 0, 900_000);
        assert_eq!(bottleneck(&params, &[(&held, &idle), (&idle, &idle)]), "send buffer");
    }

    #[test]
    fn full_window_is_a_limit() {
        // 2 MB/s at 40 ms: 80 kB under way.
        let stream = StreamReport {
            bytes: 2_000_000,
            last_us: 1_000_000,
            rtt_min_us: 40_000,
            ..StreamReport::default()
        };
        for (window_bytes, expected) in
            [(None, "network"), (Some(64 << 10), "send buffer"), (Some(1 << 20), "network")]
        {
            let params = TestParams { window_bytes, ..TestParams::default() };
            assert_eq!(bottleneck(&params, &[(&stream, &stream)]), expected, "{window_bytes:?}");
        }
    }

    /// With a window of a few bytes the sender hands over one block in a second.
    #[test]
    fn stuck_sender_is_not_busy() {
        let sent = |last_us| StreamReport {
            bytes: 4608,
            last_us,
            cpu_us: 200,
            window_us: 900_000,
            ..StreamReport::default()
        };
        let bound = |receiver| bottleneck(&TestParams::default(), &[(&sent(20), &sent(receiver))]);
        assert_eq!(bound(1_000_000), "receive buffer");
        assert_ne!(bound(30), "sender CPU");
    }

    #[test]
    fn datagrams_count_after_the_first() {
        let params = TestParams { udp: true, block_bytes: Some(1_000), ..TestParams::default() };
        let received = |path: &str| StreamReport {
            bytes: 4_000,
            first_us: 1_000_000,
            last_us: 4_000_000,
            path: path.to_owned(),
            ..StreamReport::default()
        };
        // Four datagrams, one a second.
        assert_eq!(received_rate(&params, &[&received("recvmmsg")]), 8_000.0);
        let ours = received("recvmmsg");
        assert_eq!(received_rate(&params, &[&ours, &ours]), 16_000.0);
        assert_eq!(received_rate(&params, &[&received("iperf3")]), 32_000.0 / 3.0);
    }

    #[test]
    fn single_read_has_a_rate() {
        let receiver =
            StreamReport { bytes: 1, first_us: 500, last_us: 500, ..StreamReport::default() };
        for udp in [false, true] {
            let params = TestParams { udp, block_bytes: Some(1), ..TestParams::default() };
            assert_eq!(received_rate(&params, &[&receiver]), 16_000.0);
        }
    }
}
