//! `penstock sample`: one object a line.

use serde::Serialize;
use utoipa::ToSchema;

/// Line of a sampler.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum SampleEventJson {
    /// First line.
    Started(SamplerStartJson),
    /// After each polling interval.
    Status(SamplerStatusJson),
    /// Last line.
    Ended(SamplerStatusJson),
}

/// Configuration of a started sampler.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct SamplerStartJson {
    /// Address by which collectors know this host.
    pub(crate) agent: String,
    /// Number of the sampler, unique at its host.
    pub(crate) sub_agent: u32,
    /// Time between two datagrams of counters.
    pub(crate) polling_s: f64,
    /// Size of the ring between the kernel and the sampler.
    pub(crate) ring_bytes: u32,
    /// Programs that were attached.
    pub(crate) attached: Vec<SamplerAttachmentJson>,
    /// Addresses of the collectors.
    pub(crate) collectors: Vec<String>,
}

/// A program at an interface.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct SamplerAttachmentJson {
    /// Name of the interface.
    pub(crate) interface: String,
    /// Index of the interface.
    pub(crate) ifindex: Option<u32>,
    /// Direction of packets: `ingress` or `egress`.
    pub(crate) direction: &'static str,
    /// Hook: `tcx` or `clsact`.
    pub(crate) by: &'static str,
    /// N of one packet in N that is sampled.
    pub(crate) rate: Option<u32>,
}

/// Counters since the sampler started.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct SamplerStatusJson {
    /// Time since the start.
    pub(crate) uptime_s: f64,
    /// Packets that passed the programs.
    pub(crate) packets: u64,
    /// Packets that were sampled.
    pub(crate) samples: u64,
    /// Samples that were lost because the ring was full.
    pub(crate) drops: u64,
    /// sFlow datagrams that were made.
    pub(crate) datagrams: u64,
    /// Datagrams that could not be sent.
    pub(crate) send_errors: u64,
    /// Samples that fit into no datagram.
    pub(crate) too_long: u64,
    /// Counters of each interface.
    pub(crate) interfaces: Vec<SampleInterfaceJson>,
    /// Datagrams to each collector.
    pub(crate) collectors: Vec<SampleCollectorJson>,
}

/// Counters of an interface.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct SampleInterfaceJson {
    /// Name of the interface.
    pub(crate) interface: String,
    /// Index of the interface.
    pub(crate) ifindex: u32,
    /// N of one packet in N that is sampled.
    pub(crate) rate: u32,
    /// Packets that passed the programs.
    pub(crate) packets: u64,
    /// Packets that were sampled.
    pub(crate) samples: u64,
    /// Samples that were lost because the ring was full.
    pub(crate) drops: u64,
}

/// Datagrams to a collector.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct SampleCollectorJson {
    /// Address and port of the collector.
    pub(crate) collector: String,
    /// Datagrams that were sent.
    pub(crate) datagrams: u64,
    /// Bytes of the datagrams sent.
    pub(crate) bytes: u64,
    /// Datagrams that could not be sent.
    pub(crate) send_errors: u64,
}
