//! How many bytes a packet has.
//!
//! RoCEv2 over Ethernet: preamble and start 8, header 14, 802.1Q tag 4 where there is one, IPv4 20 or IPv6 40, UDP 8,
//! base transport header 12, RDMA header 16 on the first packet of a write and on a read request, acknowledgement
//! header 4, invariant checksum 4, frame checksum 4, gap 12 (InfiniBand Architecture 1.4, annex A17; IEEE 802.3).
//!
//! TCP: 20 bytes and 12 of time stamps instead of UDP and all that follows it (RFC 9293, RFC 7323); blocks of selective
//! acknowledgements are not counted.
//!
//! `Ns3Hpcc` are the sizes of the simulator of the HPCC paper: 48 bytes of headers of data and 46 of acknowledgements, either
//! with telemetry (TIMELY: a time stamp), acknowledgements of at least 60 bytes, pauses of 43, and nothing between frames.

use crate::parameters::{CongestionControl, Parameters, WireModel};

/// Preamble, start of frame and gap of Ethernet, which no counter of a switch counts.
const AROUND_FRAME: u32 = 20;
const ETHERNET_BYTES: u32 = 14 + 4;
const UDP_BYTES: u32 = 8;
const TCP_BYTES: u32 = 20 + 12;
const BTH_BYTES: u32 = 12;
const INVARIANT_CHECKSUM: u32 = 4;
const RETH_BYTES: u32 = 16;
const AETH_BYTES: u32 = 4;
/// Reserved bytes of a congestion notification packet (annex A17.9).
const CNP_RESERVED_BYTES: u32 = 16;
const PAUSE_FRAME: u32 = 64;
const NS3_HEADERS: u32 = 48;
const NS3_ACKNOWLEDGEMENT: u32 = 46;
const NS3_TIME_STAMP: u32 = 8;
const NS3_PAUSE_FRAME: u32 = 43;
const NS3_FRAME_MIN: u32 = 60;

/// Sizes of packets of one run, as frames without what is around them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wire {
    /// Bytes on a line before and after each frame.
    pub around_frame: u32,
    /// Headers and checksums of a packet in the middle of a message.
    pub data_headers: u32,
    /// More on the first packet of a write.
    pub first_headers: u32,
    /// More on the first and last packet of an answer to a read.
    pub answer_headers: u32,
    /// Acknowledgement, positive or negative.
    pub acknowledgement: u32,
    /// Size of a congestion notification packet.
    pub notification: u32,
    /// Size of an RDMA read request.
    pub read_request: u32,
    /// Size of a PFC pause frame.
    pub pause: u32,
}

impl Wire {
    /// Of these parameters; telemetry of switches adds `telemetry` bytes to data and acknowledgements.
    #[must_use]
    pub fn new(parameters: &Parameters, telemetry: u32) -> Self {
        match parameters.wire {
            WireModel::Ethernet => {
                let ip = if parameters.ipv6 { 40 } else { 20 };
                let tag = if parameters.vlan { 4 } else { 0 };
                if crate::congestion::needs(parameters.cc).tcp {
                    let headers = ETHERNET_BYTES + tag + ip + TCP_BYTES;
                    return Self {
                        around_frame: AROUND_FRAME,
                        data_headers: headers,
                        first_headers: 0,
                        answer_headers: 0,
                        acknowledgement: headers,
                        notification: headers,
                        read_request: headers,
                        pause: PAUSE_FRAME,
                    };
                }
                let plain = ETHERNET_BYTES + tag + ip + UDP_BYTES + BTH_BYTES + INVARIANT_CHECKSUM;
                Self {
                    around_frame: AROUND_FRAME,
                    data_headers: plain + telemetry,
                    first_headers: RETH_BYTES,
                    answer_headers: AETH_BYTES,
                    acknowledgement: plain + AETH_BYTES + telemetry,
                    notification: plain + CNP_RESERVED_BYTES,
                    read_request: plain + RETH_BYTES,
                    pause: PAUSE_FRAME,
                }
            }
            WireModel::Ns3Hpcc => {
                let stamp =
                    if parameters.cc == CongestionControl::Timely { NS3_TIME_STAMP } else { 0 };
                Self {
                    around_frame: 0,
                    data_headers: NS3_HEADERS + telemetry + stamp,
                    first_headers: 0,
                    answer_headers: 0,
                    acknowledgement: NS3_FRAME_MIN.max(NS3_ACKNOWLEDGEMENT + telemetry + stamp),
                    notification: NS3_FRAME_MIN,
                    read_request: NS3_FRAME_MIN,
                    pause: NS3_PAUSE_FRAME,
                }
            }
        }
    }

    /// The frame of a data packet.
    #[must_use]
    pub const fn data(&self, payload: u32, is_first: bool, is_last: bool, answer: bool) -> u32 {
        let more = match (answer, is_first || is_last) {
            (true, true) => self.answer_headers,
            (false, _) if is_first => self.first_headers,
            _ => 0,
        };
        payload + self.data_headers + more
    }

    /// No frame is shorter than this.
    #[must_use]
    pub fn shortest(&self) -> u32 {
        let data = self.data_headers + 1;
        let others = [self.acknowledgement, self.notification, self.read_request, self.pause];
        others.into_iter().fold(data, u32::min)
    }

    /// The longest frame there is.
    #[must_use]
    pub const fn longest(&self, mtu: u32) -> u32 {
        mtu + self.data_headers
            + if self.first_headers > self.answer_headers {
                self.first_headers
            } else {
                self.answer_headers
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Payload in percent of the line for one packet after the other, as by hand.
    fn efficiency(mtu: u32, change: impl Fn(&mut Parameters)) -> f64 {
        let mut parameters = Parameters::default();
        change(&mut parameters);
        let wire = Wire::new(&parameters, 0);
        let line = wire.data(mtu, false, false, false) + wire.around_frame;
        100.0 * f64::from(mtu) / f64::from(line)
    }

    #[test]
    fn sizes_are_those_of_the_standards() {
        let wire = Wire::new(&Parameters::default(), 0);
        assert_eq!(wire.data_headers + wire.around_frame, 82);
        assert_eq!((wire.acknowledgement, wire.notification, wire.read_request), (66, 78, 78));
        assert_eq!(wire.data(1024, true, false, false), 1102);
        assert_eq!(wire.data(1024, true, false, true), 1090);
        assert_eq!(wire.data(1024, false, true, false), 1086);
        assert_eq!(wire.longest(1024), 1102);
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

    /// The headers of the simulator of the HPCC paper, field by field: 14 + 20 + 8 + 6 of data, 14 + 20 + 12 of
    /// acknowledgements, 14 + 20 + 9 of pauses; 42 bytes of telemetry for HPCC, 8 for TIMELY.
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
            assert_eq!(wire.data(1000, false, false, false), data, "{cc:?}");
            assert_eq!((wire.acknowledgement, wire.pause), (acknowledgement, 43), "{cc:?}");
        }
    }
}
