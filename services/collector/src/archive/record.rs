//! One sample as the columns of a file, compact while it waits.

use std::net::Ipv6Addr;

use penstock_flows::exporter::Exporter;
use penstock_flows::observe::{InterfaceDirection, Observation};
use penstock_flows::packet::{IpVersion, MappedAddress};
use penstock_flows::scitag::ScitagVerdict;
use penstock_scitags::Scitag;

/// A sample or an exported flow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct SampleRecord {
    /// Receive time in microseconds since 1970.
    pub(super) time_us: i64,
    /// Number of the exporter in this run.
    pub(super) exporter: u32,
    pub(super) sampling_rate: u32,
    pub(super) packets: u64,
    /// Bytes on the wire, not scaled.
    pub(super) frame_bytes: u64,
    pub(super) direction: InterfaceDirection,
    pub(super) input: Option<u32>,
    pub(super) output: Option<u32>,
    pub(super) vlan: Option<u16>,
    pub(super) inner_vlan: Option<u16>,
    pub(super) ip: Option<IpFields>,
    pub(super) verdict: &'static str,
    pub(super) tag: Option<Scitag>,
    pub(super) source_as: Option<u32>,
    pub(super) destination_as: Option<u32>,
    pub(super) drop_reason: Option<u32>,
}

/// Fields of the innermost IP header.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct IpFields {
    pub(super) version: u8,
    pub(super) source: MappedAddress,
    pub(super) destination: MappedAddress,
    pub(super) ports: Option<(u16, u16)>,
    pub(super) protocol: u8,
    pub(super) traffic_class: u8,
    pub(super) hop_limit: u8,
    pub(super) tcp_flags: u8,
    pub(super) flow_label: u32,
}

impl SampleRecord {
    pub(crate) fn new(
        time_us: i64,
        exporter: &Exporter,
        seen: &Observation,
        verdict: ScitagVerdict,
    ) -> Self {
        let ip = seen.packet.ip().map(|ip| IpFields {
            version: match ip.version {
                IpVersion::V4 => 4,
                IpVersion::V6 => 6,
            },
            source: ip.source,
            destination: ip.destination,
            ports: ip.ports,
            protocol: ip.protocol,
            traffic_class: ip.traffic_class,
            hop_limit: ip.hop_limit,
            tcp_flags: ip.tcp_flags,
            flow_label: ip.flow_label,
        });
        let (verdict, tag) = match verdict {
            ScitagVerdict::Unlabelled => ("unlabelled", None),
            ScitagVerdict::Untrusted(tag, ..) => ("untrusted", Some(tag)),
            ScitagVerdict::Trusted(tag, ..) => ("trusted", Some(tag)),
        };
        Self {
            time_us,
            exporter: exporter.id,
            sampling_rate: seen.sampling_rate,
            packets: seen.packets,
            frame_bytes: seen.frame_bytes,
            direction: seen.direction,
            input: seen.input.index(),
            output: seen.output.index(),
            vlan: seen.vlan,
            inner_vlan: seen.inner_vlan,
            ip,
            verdict,
            tag,
            source_as: seen.source_as,
            destination_as: seen.destination_as,
            drop_reason: seen.drop_reason,
        }
    }
}

/// Formats an address in its own version.
pub(super) fn text(address: MappedAddress) -> String {
    Ipv6Addr::from(address.0).to_canonical().to_string()
}
