//! Frame sizes.
//!
//! RoCEv2 over Ethernet, in bytes: preamble and start delimiter 8, Ethernet header 14, optional 802.1Q tag 4, IPv4 20
//! or IPv6 40, UDP 8, BTH 12, RETH 16 on the first packet of a write and on a read request, AETH 4, invariant CRC 4,
//! frame check sequence 4, inter-packet gap 12 (InfiniBand Architecture 1.4, annex A17; IEEE 802.3).
//!
//! TCP: a header of 20 bytes and 12 bytes of time stamps replace UDP and all RoCEv2 headers (RFC 9293, RFC 7323); SACK
//! blocks are not counted.
//!
//! `Ns3Hpcc` has the sizes of the HPCC paper's simulator: 48 bytes of headers on data and 46 on acknowledgements, both
//! plus telemetry (TIMELY: a time stamp), acknowledgements of at least 60 bytes, PFC frames of 43, and no preamble or
//! inter-packet gap.

use crate::parameters::{CongestionControl, Parameters, WireModel};

/// Preamble, start delimiter and inter-packet gap of Ethernet; counters of switches exclude them.
const PREAMBLE_AND_GAP_BYTES: u32 = 20;
const ETHERNET_BYTES: u32 = 14 + 4;
const UDP_BYTES: u32 = 8;
const TCP_BYTES: u32 = 20 + 12;
const BTH_BYTES: u32 = 12;
const INVARIANT_CRC_BYTES: u32 = 4;
const RETH_BYTES: u32 = 16;
const AETH_BYTES: u32 = 4;
/// Reserved bytes of a congestion notification packet (annex A17.9).
const CNP_RESERVED_BYTES: u32 = 16;
const PAUSE_FRAME_BYTES: u32 = 64;
const NS3_HEADERS_BYTES: u32 = 48;
const NS3_ACK_BYTES: u32 = 46;
const NS3_TIMESTAMP_BYTES: u32 = 8;
const NS3_PAUSE_FRAME_BYTES: u32 = 43;
const NS3_FRAME_BYTES_MIN: u32 = 60;

/// Frame sizes of one run in bytes, without preamble and inter-packet gap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wire {
    /// Preamble, start delimiter and inter-packet gap of each frame.
    pub frame_overhead: u32,
    /// Headers and checksums of a data packet in the middle of a message.
    pub data_headers: u32,
    /// Additional headers of the first packet of a write (RETH).
    pub first_headers: u32,
    /// Additional headers of the first and last packet of a read response (AETH).
    pub read_response_headers: u32,
    /// Size of a positive or negative acknowledgement.
    pub acknowledgement: u32,
    /// Size of a congestion notification packet.
    pub notification: u32,
    /// Size of an RDMA read request.
    pub read_request: u32,
    /// Size of a PFC pause frame.
    pub pause: u32,
}

impl Wire {
    /// Computes the frame sizes; data and acknowledgements carry `telemetry` additional bytes.
    #[must_use]
    pub fn new(parameters: &Parameters, telemetry: u32) -> Self {
        match parameters.wire {
            WireModel::Ethernet => {
                let ip = if parameters.ipv6 { 40 } else { 20 };
                let tag = if parameters.vlan { 4 } else { 0 };
                if crate::congestion::needs(parameters.cc).tcp {
                    let headers = ETHERNET_BYTES + tag + ip + TCP_BYTES;
                    return Self {
                        frame_overhead: PREAMBLE_AND_GAP_BYTES,
                        data_headers: headers,
                        first_headers: 0,
                        read_response_headers: 0,
                        acknowledgement: headers,
                        notification: headers,
                        read_request: headers,
                        pause: PAUSE_FRAME_BYTES,
                    };
                }
                let plain = ETHERNET_BYTES + tag + ip + UDP_BYTES + BTH_BYTES + INVARIANT_CRC_BYTES;
                Self {
                    frame_overhead: PREAMBLE_AND_GAP_BYTES,
                    data_headers: plain + telemetry,
                    first_headers: RETH_BYTES,
                    read_response_headers: AETH_BYTES,
                    acknowledgement: plain + AETH_BYTES + telemetry,
                    notification: plain + CNP_RESERVED_BYTES,
                    read_request: plain + RETH_BYTES,
                    pause: PAUSE_FRAME_BYTES,
                }
            }
            WireModel::Ns3Hpcc => {
                let stamp = if parameters.cc == CongestionControl::Timely {
                    NS3_TIMESTAMP_BYTES
                } else {
                    0
                };
                Self {
                    frame_overhead: 0,
                    data_headers: NS3_HEADERS_BYTES + telemetry + stamp,
                    first_headers: 0,
                    read_response_headers: 0,
                    acknowledgement: NS3_FRAME_BYTES_MIN.max(NS3_ACK_BYTES + telemetry + stamp),
                    notification: NS3_FRAME_BYTES_MIN,
                    read_request: NS3_FRAME_BYTES_MIN,
                    pause: NS3_PAUSE_FRAME_BYTES,
                }
            }
        }
    }

    /// Returns the frame size of a data packet; `is_read_response` is true for a read response.
    #[must_use]
    pub const fn data_bytes(
        &self,
        payload: u32,
        is_first: bool,
        is_last: bool,
        is_read_response: bool,
    ) -> u32 {
        let more = match (is_read_response, is_first || is_last) {
            (true, true) => self.read_response_headers,
            (false, _) if is_first => self.first_headers,
            _ => 0,
        };
        payload + self.data_headers + more
    }

    /// Returns the minimum frame size.
    #[must_use]
    pub fn frame_bytes_min(&self) -> u32 {
        let data = self.data_headers + 1;
        let others = [self.acknowledgement, self.notification, self.read_request, self.pause];
        others.into_iter().fold(data, u32::min)
    }

    /// Returns the maximum frame size for a path MTU.
    #[must_use]
    pub const fn frame_bytes_max(&self, mtu: u32) -> u32 {
        mtu + self.data_headers
            + if self.first_headers > self.read_response_headers {
                self.first_headers
            } else {
                self.read_response_headers
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goodput of back-to-back packets in percent of the line rate.
    fn efficiency(mtu: u32, change: impl Fn(&mut Parameters)) -> f64 {
        let mut parameters = Parameters::default();
        change(&mut parameters);
        let wire = Wire::new(&parameters, 0);
        let line = wire.data_bytes(mtu, false, false, false) + wire.frame_overhead;
        100.0 * f64::from(mtu) / f64::from(line)
    }

    #[test]
    fn header_sizes_match_standards() {
        let wire = Wire::new(&Parameters::default(), 0);
        assert_eq!(wire.data_headers + wire.frame_overhead, 82);
        assert_eq!((wire.acknowledgement, wire.notification, wire.read_request), (66, 78, 78));
        assert_eq!(wire.data_bytes(1024, true, false, false), 1102);
        assert_eq!(wire.data_bytes(1024, true, false, true), 1090);
        assert_eq!(wire.data_bytes(1024, false, true, false), 1086);
        assert_eq!(wire.frame_bytes_max(1024), 1102);
        for (mtu, ipv4, tagged, ipv6) in [
            (256, 75.74, 74.85, 71.51),
            (512, 86.20, 85.62, 83.39),
            (1024, 92.59, 92.25, 90.94),
            (2048, 96.15, 95.97, 95.26),
            (4096, 98.04, 97.94, 97.57),
        ] {
            assert!((efficiency(mtu, |_| ()) - ipv4).abs() < 0.005, "{mtu}");
            assert!((efficiency(mtu, |p| p.vlan = true) - tagged).abs() < 0.005, "{mtu}");
            assert!((efficiency(mtu, |p| p.ipv6 = true) - ipv6).abs() < 0.006, "{mtu}");
        }
        let ns3 = efficiency(1000, |p| p.wire = WireModel::Ns3Hpcc);
        assert!((ns3 - 95.42).abs() < 0.005);
    }

    /// Headers of the HPCC paper's simulator, field by field: 14 + 20 + 8 + 6 bytes on data, 14 + 20 + 12 on
    /// acknowledgements, 14 + 20 + 9 on PFC frames; 42 bytes of telemetry for HPCC, 8 for TIMELY.
    #[test]
    fn ns3_sizes_follow_congestion_control() {
        for (cc, telemetry, data, acknowledgement) in [
            (CongestionControl::Dcqcn, 0, 1048, 60),
            (CongestionControl::Hpcc, 42, 1090, 88),
            (CongestionControl::Timely, 0, 1056, 60),
            (CongestionControl::Dctcp, 0, 1048, 60),
        ] {
            let parameters = Parameters { wire: WireModel::Ns3Hpcc, cc, ..Parameters::default() };
            let wire = Wire::new(&parameters, telemetry);
            assert_eq!(wire.data_bytes(1000, false, false, false), data, "{cc:?}");
            assert_eq!((wire.acknowledgement, wire.pause), (acknowledgement, 43), "{cc:?}");
        }
    }
}
