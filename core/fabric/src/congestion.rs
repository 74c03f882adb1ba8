//! Congestion control: computes rate and window of a queue pair from acknowledgements and CNPs.
//!
//! One file per algorithm, behind [`Congestion`]. Timers of an algorithm schedule no events: expired timers are applied
//! when the queue pair next sends a packet or receives feedback, which is when they first have an effect.

use std::fmt;

use crate::packet::Hop;
use crate::parameters::{CongestionControl, Parameters};

mod bbr;
mod cubic;
mod dcqcn;
mod dcqcn_paper;
mod dctcp;
mod hpcc;
mod swift;
mod timely;
mod window;

/// Rate and window of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Rate in bits per second, including frame overhead.
    pub rate_bps: u64,
    /// Limit on payload in flight, in bytes.
    pub window_bytes: u64,
    /// True while [`Congestion::on_send`] has timers to apply.
    pub has_timers: bool,
}

/// Properties of a queue pair's path, known at its start.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PathProperties {
    /// Line rate of the sending host.
    pub line_bps: u64,
    /// Lowest line rate on the path.
    pub bottleneck_bps: u64,
    /// Round-trip time without queueing.
    pub base_rtt_ps: u64,
    /// Number of links on the path.
    pub hops: u32,
    /// Payload of a full packet in bytes.
    pub mtu: u32,
    /// Size of a full packet on the wire in bytes, with preamble and inter-packet gap.
    pub packet_bytes: u32,
}

impl PathProperties {
    /// Returns the bandwidth-delay product at the line rate of the host.
    #[must_use]
    pub fn bdp_bytes(&self) -> u64 {
        let bits = u128::from(self.line_bps) * u128::from(self.base_rtt_ps);
        (bits / 8 / u128::from(crate::time::PS_PER_SECOND)) as u64
    }
}

/// Delivery rate sample (draft-cheng-iccrg-delivery-rate-estimation).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeliveryRate {
    /// Payload delivered during the interval.
    pub bytes: u64,
    /// Length of the interval; 0 without a sample.
    pub interval_ps: u64,
    /// Total bytes delivered when the newly acknowledged packet was sent.
    pub delivered_before: u64,
    /// True if the sender was application-limited when it sent the packet.
    pub is_app_limited: bool,
}

/// Acknowledgement, as input to an algorithm.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ack<'a> {
    /// Arrival time in picoseconds.
    pub now_ps: u64,
    /// Cumulative acknowledgement: PSN of the first unacknowledged packet.
    pub acknowledged: u64,
    /// PSN of the next packet to send.
    pub next: u64,
    /// Number of packets that the acknowledgement covers.
    pub packets: u32,
    /// Number of them with an ECN mark.
    pub marks: u32,
    /// RTT sample: time since the packet that triggered the acknowledgement was sent.
    pub round_trip_ps: u64,
    /// In-band telemetry of the switches on the path, in the order of the hops.
    pub hops: &'a [Hop],
    /// Payload newly acknowledged, cumulatively or selectively. This and the following fields are set with selective
    /// recovery only.
    pub newly_bytes: u64,
    /// Payload that is neither acknowledged nor considered lost.
    pub in_flight_bytes: u64,
    /// Payload acknowledged since the start.
    pub delivered_bytes: u64,
    /// True during loss recovery.
    pub is_recovering: bool,
    /// Delivery rate sample, if [`Needs::samples`] is set.
    pub sample: DeliveryRate,
}

/// Congestion control algorithm with the state of one queue pair.
pub trait Congestion: fmt::Debug + Send {
    /// Handles the arrival of an acknowledgement.
    fn on_ack(&mut self, ack: &Ack<'_>, pace: &mut Pace);

    /// Handles the arrival of a CNP.
    fn on_cnp(&mut self, _now_ps: u64, _pace: &mut Pace) {}

    /// Handles the start of a loss recovery; called once per recovery. [`Self::on_ack`] follows for the
    /// acknowledgement that reported the loss.
    fn on_loss(&mut self, _ack: &Ack<'_>, _pace: &mut Pace) {}

    /// Handles a retransmission time-out, before everything unacknowledged is retransmitted.
    fn on_timeout(&mut self, _now_ps: u64, _pace: &mut Pace) {}

    /// Handles the departure of a packet of `bytes` on the wire; called while [`Pace::has_timers`] is set.
    fn on_send(&mut self, _now_ps: u64, _bytes: u32, _pace: &mut Pace) {}
}

/// Features of network and receiver that an algorithm needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// Switches insert in-band telemetry.
    pub telemetry: bool,
    /// Switches mark packets with ECN.
    pub marks: bool,
    /// The receiver sends CNPs; otherwise acknowledgements echo marks.
    pub notifications: bool,
    /// Every packet is acknowledged, regardless of `ack_every`. Unsuitable for reads without selective recovery, whose
    /// responses are not acknowledged.
    pub acknowledgements: bool,
    /// TCP: TCP headers, selective retransmission, no PFC.
    pub tcp: bool,
    /// Acknowledgements carry delivery rate samples.
    pub samples: bool,
}

/// Returns the features that an algorithm needs.
#[must_use]
pub const fn needs(algorithm: CongestionControl) -> Needs {
    let nothing = Needs {
        telemetry: false,
        marks: false,
        notifications: false,
        acknowledgements: false,
        tcp: false,
        samples: false,
    };
    match algorithm {
        CongestionControl::None => nothing,
        CongestionControl::Dcqcn => Needs { marks: true, ..nothing },
        CongestionControl::DcqcnPaper => Needs { marks: true, notifications: true, ..nothing },
        CongestionControl::Hpcc => Needs { telemetry: true, acknowledgements: true, ..nothing },
        CongestionControl::Dctcp => Needs { marks: true, acknowledgements: true, ..nothing },
        CongestionControl::Timely | CongestionControl::Swift => {
            Needs { acknowledgements: true, ..nothing }
        }
        CongestionControl::Cubic => Needs { tcp: true, ..nothing },
        CongestionControl::Bbr => Needs { tcp: true, samples: true, ..nothing },
    }
}

/// Creates the algorithm of a queue pair, none without congestion control, and its initial rate and window.
#[must_use]
pub fn start(
    parameters: &Parameters,
    path: &PathProperties,
) -> (Option<Box<dyn Congestion>>, Pace) {
    let mut pace = Pace { rate_bps: path.line_bps, window_bytes: u64::MAX, has_timers: false };
    let algorithm: Option<Box<dyn Congestion>> = match parameters.cc {
        CongestionControl::None => None,
        CongestionControl::Dcqcn => Some(Box::new(dcqcn::Dcqcn::new(parameters, path))),
        CongestionControl::DcqcnPaper => {
            Some(Box::new(dcqcn_paper::DcqcnPaper::new(parameters, path)))
        }
        CongestionControl::Hpcc => Some(Box::new(hpcc::Hpcc::new(parameters, path, &mut pace))),
        CongestionControl::Dctcp => Some(Box::new(dctcp::Dctcp::new(parameters, path, &mut pace))),
        CongestionControl::Timely => Some(Box::new(timely::Timely::new(parameters, path))),
        CongestionControl::Swift => Some(Box::new(swift::Swift::new(parameters, path, &mut pace))),
        CongestionControl::Cubic => Some(Box::new(cubic::Cubic::new(parameters, path, &mut pace))),
        CongestionControl::Bbr => Some(Box::new(bbr::Bbr::new(parameters, path, &mut pace))),
    };
    window::apply_window(parameters, path, algorithm, pace)
}

/// Returns the minimum rate of a queue pair.
fn rate_min_bps(parameters: &Parameters) -> f64 {
    parameters.rate_min.map_or(100e6, |rate| rate.0 as f64)
}

/// Returns the given rate, or the rate published for lines of `for_bps` scaled to the host's line rate.
fn scale_to_line(
    given: Option<penstock_units::BitRate>,
    published: f64,
    for_bps: f64,
    path: &PathProperties,
) -> f64 {
    given.map_or(published * path.line_bps as f64 / for_bps, |rate| rate.0 as f64)
}

/// Returns `base` to an integer power by repeated squaring, with identical rounding on every machine.
fn power(base: f64, exponent: u64) -> f64 {
    let (mut result, mut base, mut exponent) = (1.0, base, exponent);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Path of 100 Gb/s with a base RTT of 13 us, as in the HPCC paper.
    pub(super) fn path() -> PathProperties {
        PathProperties {
            line_bps: 100_000_000_000,
            bottleneck_bps: 100_000_000_000,
            base_rtt_ps: 13_000_000,
            hops: 4,
            mtu: 1000,
            packet_bytes: 1048,
        }
    }

    #[test]
    fn rdma_algorithms_start_at_line_rate() {
        assert_eq!(path().bdp_bytes(), 162_500);
        for cc in [
            CongestionControl::None,
            CongestionControl::Dcqcn,
            CongestionControl::DcqcnPaper,
            CongestionControl::Hpcc,
            CongestionControl::Dctcp,
            CongestionControl::Timely,
        ] {
            let parameters = Parameters { cc, ..Parameters::default() };
            let (_, pace) = start(&parameters, &path());
            assert_eq!(pace.rate_bps, 100_000_000_000, "{cc:?}");
            assert!(pace.window_bytes >= 162_500);
        }
        assert!((power(0.5, 10) - 1.0 / 1024.0).abs() < 1e-15);
    }
}
