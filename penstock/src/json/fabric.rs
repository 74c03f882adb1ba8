//! `penstock fabric`.

use std::collections::BTreeMap;

use penstock_fabric::report;
use serde::Serialize;
use utoipa::ToSchema;

/// Quantiles of a distribution.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub(crate) struct QuantilesJson {
    /// Arithmetic mean of all values.
    pub(crate) mean: f64,
    /// Median, the 50th percentile.
    pub(crate) p50: f64,
    /// 95th percentile of the values.
    pub(crate) p95: f64,
    /// 99th percentile of the values.
    pub(crate) p99: f64,
    /// 99.9th percentile of the values.
    pub(crate) p999: f64,
    /// Largest of all values.
    pub(crate) max: f64,
}

impl From<report::Quantiles> for QuantilesJson {
    fn from(q: report::Quantiles) -> Self {
        Self { mean: q.mean, p50: q.p50, p95: q.p95, p99: q.p99, p999: q.p999, max: q.max }
    }
}

/// Slowdown of flows of like size.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct SizeBinJson {
    /// Largest flow of the bin.
    pub(crate) bytes_max: u64,
    /// Flows in the bin.
    pub(crate) flows: usize,
    /// Completion time over that of the same flow alone in the network [ratio].
    pub(crate) slowdown: QuantilesJson,
}

/// Sums of a simulation.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct SummaryJson {
    /// Simulated time of the run.
    pub(crate) simulated_seconds: f64,
    /// Time from the start of the first flow to the end of the last.
    pub(crate) active_seconds: f64,
    /// Flows that completed in the run.
    pub(crate) flows_finished: usize,
    /// Flows that gave up after all retries.
    pub(crate) flows_failed: usize,
    /// Flows that were under way at the end.
    pub(crate) flows_unfinished: usize,
    /// Payload that arrived in order.
    pub(crate) delivered_bytes: u64,
    /// `delivered_bytes` over the time from the first start to the last completion, or to the end where flows are
    /// unfinished.
    pub(crate) goodput_bits_per_second: f64,
    /// Goodput of the flows that completed; null where none did.
    pub(crate) flow_goodput_bits_per_second: Option<QuantilesJson>,
    /// Time from start to completion; null where no flow completed.
    pub(crate) completion_seconds: Option<QuantilesJson>,
    /// Completion time over that of the same flow alone in the network, at least 1 [ratio].
    pub(crate) slowdown: Option<QuantilesJson>,
    /// Slowdown by size of the flow, in up to 20 bins of equal counts.
    pub(crate) slowdown_by_size: Vec<SizeBinJson>,
    /// Jain's index of the goodputs: 1 is equal, 1/n all for one of n flows [ratio].
    pub(crate) fairness: Option<f64>,
    /// Data packets that were retransmitted.
    pub(crate) packets_sent_again: u64,
    /// Retransmission time-outs of all senders.
    pub(crate) timeouts: u64,
    /// Congestion marks that senders learned of.
    pub(crate) marks: u64,
    /// PFC pauses that switches sent.
    pub(crate) pauses: u64,
    /// Longest time for which one port was paused.
    pub(crate) paused_seconds_max: f64,
    /// Longest queue at a port of a switch.
    pub(crate) queue_bytes_max: u64,
    /// Largest use of a switch's packet memory.
    pub(crate) buffer_bytes_max: u64,
    /// Interventions of PFC watchdogs.
    pub(crate) watchdog: u64,
    /// Longest time in which a flow that had begun received no new payload.
    pub(crate) stalled_seconds_max: f64,
}

impl From<&report::FabricSummary> for SummaryJson {
    fn from(summary: &report::FabricSummary) -> Self {
        let bins = summary.by_size.iter().map(|bin| SizeBinJson {
            bytes_max: bin.bytes_max,
            flows: bin.flows,
            slowdown: bin.slowdown.into(),
        });
        Self {
            simulated_seconds: summary.seconds,
            active_seconds: summary.active_seconds,
            flows_finished: summary.finished,
            flows_failed: summary.failed,
            flows_unfinished: summary.unfinished,
            delivered_bytes: summary.delivered_bytes,
            goodput_bits_per_second: summary.goodput_bps,
            flow_goodput_bits_per_second: summary.flow_goodput_bps.map(Into::into),
            completion_seconds: summary.completion_seconds.map(Into::into),
            slowdown: summary.slowdown.map(Into::into),
            slowdown_by_size: bins.collect(),
            fairness: summary.fairness,
            packets_sent_again: summary.packets_again,
            timeouts: summary.timeouts,
            marks: summary.marks,
            pauses: summary.pauses,
            paused_seconds_max: summary.paused_seconds_max,
            queue_bytes_max: summary.queue_bytes_max,
            buffer_bytes_max: summary.buffer_bytes_max,
            watchdog: summary.watchdog,
            stalled_seconds_max: summary.stalled_seconds_max,
        }
    }
}

/// Result of a simulation.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct FabricRunJson {
    /// Network: name of the file or of the shape.
    pub(crate) network: String,
    /// Flows of the workload.
    pub(crate) flows: usize,
    /// Sums over all flows and ports.
    #[serde(flatten)]
    pub(crate) summary: SummaryJson,
    /// Longest round-trip time of an empty network.
    pub(crate) base_round_trip_seconds: f64,
    /// Number of simulated events.
    pub(crate) events: u64,
    /// Arrivals of packets at a node.
    pub(crate) packet_hops: u64,
    /// Packets that found no room in a switch.
    pub(crate) dropped: u64,
    /// Packets that were lost on a link.
    pub(crate) lost: u64,
    /// Digest of all that happened: equal for runs with equal results.
    pub(crate) digest: String,
    /// Remarks on the validity of the result.
    pub(crate) warnings: Vec<String>,
    /// Deadlocks: queues that waited for each other in a circle.
    pub(crate) cyclic_waits: Vec<CyclicWaitJson>,
    /// Value of every parameter by its name, as `fabric parameters` lists them.
    pub(crate) parameters: BTreeMap<String, String>,
    /// Switches with their packet memory.
    pub(crate) switches: Vec<Switch>,
    /// Ports of hosts and switches.
    pub(crate) ports: Vec<PortJson>,
    /// Threads that simulated it.
    pub(crate) threads: usize,
    /// Real time that it took.
    pub(crate) wall_seconds: f64,
    /// Simulated events for each second of real time [1/s].
    pub(crate) events_per_second: f64,
    /// Arrivals of packets for each second of real time [1/s].
    pub(crate) hops_per_second: f64,
    /// Largest resident memory of the process.
    pub(crate) memory_peak_bytes: Option<u64>,
}

/// Queues that waited for each other.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct CyclicWaitJson {
    /// Simulated time at which the deadlock was found.
    pub(crate) found_seconds: f64,
    /// Simulated time at which the deadlock was over; null where it was not.
    pub(crate) ended_seconds: Option<f64>,
    /// Priority of the queues.
    pub(crate) priority: u8,
    /// Ports of the circle.
    pub(crate) ports: Vec<String>,
}

/// Packet memory of a switch.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Switch {
    /// Name of the switch.
    pub(crate) switch: String,
    /// Size of the packet memory.
    pub(crate) buffer_bytes: u64,
    /// Largest use of the packet memory.
    pub(crate) used_bytes_max: u64,
}

/// Counters of a port.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct PortJson {
    /// Name of the port, as `node>neighbour`.
    pub(crate) port: String,
    /// Packets that it sent.
    pub(crate) sent_packets: u64,
    /// Bytes sent, as they count on the line.
    pub(crate) sent_bytes: u64,
    /// Share of `active_seconds` in which it sent, 0 to 1.
    pub(crate) utilisation: f64,
    /// Packets marked as having met congestion.
    pub(crate) marked: u64,
    /// Packets that found no room.
    pub(crate) dropped: u64,
    /// Packets lost on the link behind it.
    pub(crate) lost: u64,
    /// Longest queue of the port.
    pub(crate) queue_bytes_max: u64,
    /// PFC pauses that it sent.
    pub(crate) pauses_sent: u64,
    /// Time for which it was paused.
    pub(crate) paused_seconds: f64,
    /// Interventions of its PFC watchdog.
    pub(crate) watchdog: u64,
    /// Packets that its watchdog dropped.
    pub(crate) watchdog_dropped: u64,
}

/// Result of a perftest workload.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct PerftestJson {
    /// Network: name of the file or of the shape.
    pub(crate) network: String,
    /// Runs, one for each message size.
    pub(crate) rows: Vec<PerftestRow>,
}

/// A run of perftest.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct PerftestRow {
    /// Size of a message.
    pub(crate) bytes: u64,
    /// Number of messages sent.
    pub(crate) iterations: u64,
    /// Mean rate; null for latencies, and where the run did not complete [Gbit/s].
    pub(crate) average_gigabits_per_second: Option<f64>,
    /// Half of the mean round trip; null for rates, and where the run did not complete.
    pub(crate) average_microseconds: Option<f64>,
    /// Messages for each second [1/s].
    pub(crate) messages_per_second: f64,
    /// Packets that found no room in a switch.
    pub(crate) dropped: u64,
    /// Packets that were lost on a link.
    pub(crate) lost: u64,
    /// Retransmission time-outs of all senders.
    pub(crate) timeouts: u64,
    /// Arrivals of packets at a node.
    pub(crate) packet_hops: u64,
    /// Threads that simulated it.
    pub(crate) threads: usize,
    /// Real time that it took.
    pub(crate) wall_seconds: f64,
    /// Digest of all that happened: equal for runs with equal results.
    pub(crate) digest: String,
    /// Remarks on the validity of the result.
    pub(crate) warnings: Vec<String>,
}

/// Result of a sweep.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct SweepJson {
    /// Runs, one for each point of the grid: each is also a line of `--out`.
    #[schema(value_type = Vec<SweepRow>)]
    pub(crate) rows: Vec<serde_json::Value>,
}

/// A run of a sweep.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct SweepRow {
    /// Network: name of the file or of the shape.
    pub(crate) network: String,
    /// Parameters of the grid by their names, with the values of this run.
    pub(crate) point: BTreeMap<String, String>,
    /// Sums over all flows and ports.
    #[serde(flatten)]
    pub(crate) summary: SummaryJson,
    /// Packets that found no room in a switch.
    pub(crate) dropped: u64,
    /// Digest of all that happened: equal for runs with equal results.
    pub(crate) digest: String,
}

/// Parameters of the simulator.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Parameters {
    /// Parameters, as `--set` takes them.
    pub(crate) parameters: Vec<Parameter>,
}

/// Parameter of the simulator.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Parameter {
    /// Name, as `--set` takes it.
    pub(crate) name: &'static str,
    /// Default value as text.
    pub(crate) default: String,
    /// Form of a value.
    pub(crate) form: &'static str,
    /// Effect of the parameter.
    pub(crate) meaning: &'static str,
    /// Source of the default.
    pub(crate) source: &'static str,
}
