//! Congestion control: what a queue pair may send, worked out from acknowledgements and notifications.
//!
//! One file for each algorithm, behind [`Congestion`]. Algorithms with timers need no events: what timers did is
//! worked out when the queue pair next sends or hears anything, which is when it first matters.

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

/// Limits on the sending of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Bits per second, bytes counted as on the line.
    pub rate_bps: u64,
    /// Payload that may be under way.
    pub window_bytes: u64,
    /// Set when [`Congestion::on_send`] has timers to apply.
    pub has_timers: bool,
}

/// Properties of the path of a queue pair, known at its start.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Path {
    /// Rate of the sending host's line.
    pub line_bps: u64,
    /// Rate of the slowest line to the receiver.
    pub bottleneck_bps: u64,
    /// Round trip without queues.
    pub base_rtt_ps: u64,
    /// Links to the receiver.
    pub hops: u32,
    /// Payload of a full packet.
    pub mtu: u32,
    /// Of a full packet on the line.
    pub packet_bytes: u32,
}

impl Path {
    /// Bytes of a round trip at line rate.
    #[must_use]
    pub fn bdp_bytes(&self) -> u64 {
        let bits = u128::from(self.line_bps) * u128::from(self.base_rtt_ps);
        (bits / 8 / u128::from(crate::time::PS_PER_SECOND)) as u64
    }
}

/// The rate at which a path delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sample {
    /// Payload that was delivered.
    pub bytes: u64,
    /// In so long, 0 where nothing is known.
    pub interval_ps: u64,
    /// Bytes delivered when the packet left that is acknowledged now.
    pub delivered_before: u64,
    /// The sender had no more to send then.
    pub is_app_limited: bool,
}

/// An acknowledgement as the algorithm sees it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ack<'a> {
    /// Time of its arrival in picoseconds.
    pub now_ps: u64,
    /// Packets below this number are acknowledged.
    pub acknowledged: u64,
    /// The number of the next packet to send.
    pub next: u64,
    /// Packets for which it stands.
    pub packets: u32,
    /// How many of them were marked.
    pub marks: u32,
    /// From the sending of the packet that caused it until now.
    pub round_trip_ps: u64,
    /// In-band telemetry of the switches on the path, in the order of the hops.
    pub hops: &'a [Hop],
    /// Payload that is known to have arrived now and was not before; like all that follows, where single packets are
    /// sent again.
    pub newly_bytes: u64,
    /// Payload that is neither there nor lost, as far as is known.
    pub in_flight_bytes: u64,
    /// Payload that is known to have arrived at all.
    pub delivered_bytes: u64,
    /// Losses are being mended.
    pub is_recovering: bool,
    /// The rate at which the path delivered, where [`Needs::samples`] asks for it.
    pub sample: Sample,
}

/// An algorithm, with the state of one queue pair.
pub trait Congestion: fmt::Debug + Send {
    /// Handles the arrival of an acknowledgement.
    fn on_ack(&mut self, ack: &Ack<'_>, pace: &mut Pace);

    /// A notification came that the receiver had sent on its own.
    fn on_cnp(&mut self, _now_ps: u64, _pace: &mut Pace) {}

    /// Losses were found, the first since all had arrived that was under way at the last ones. An acknowledgement told of
    /// them, for which [`Self::on_ack`] is called next.
    fn on_loss(&mut self, _ack: &Ack<'_>, _pace: &mut Pace) {}

    /// An acknowledgement did not come in time, so that everything is sent again.
    fn on_timeout(&mut self, _now_ps: u64, _pace: &mut Pace) {}

    /// A packet of so many bytes on the line is about to leave; asked while [`Pace::has_timers`].
    fn on_send(&mut self, _now_ps: u64, _bytes: u32, _pace: &mut Pace) {}
}

/// Features of network and receiver that an algorithm needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// Switches write telemetry into packets.
    pub telemetry: bool,
    /// Set when switches mark packets with ECN.
    pub marks: bool,
    /// The receiver sends notifications; else it repeats marks in acknowledgements.
    pub notifications: bool,
    /// Every packet is acknowledged, whatever is coalesced otherwise; and answers to reads are not, so that it is
    /// of no use to them.
    pub acknowledgements: bool,
    /// It is one of TCP: other headers, single packets sent again, no pausing.
    pub tcp: bool,
    /// Acknowledgements come with samples of the rate of delivery.
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

/// Begins a queue pair: its algorithm, none where none is wanted, and what it may send at first.
#[must_use]
pub fn start(parameters: &Parameters, path: &Path) -> (Option<Box<dyn Congestion>>, Pace) {
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
    window::bound(parameters, path, algorithm, pace)
}

/// The least rate of a queue pair.
fn rate_min_bps(parameters: &Parameters) -> f64 {
    parameters.rate_min.map_or(100e6, |rate| rate.0 as f64)
}

/// A rate that is published for `for_bps` and grows with the line.
fn scaled(
    given: Option<penstock_units::BitRate>,
    published: f64,
    for_bps: f64,
    path: &Path,
) -> f64 {
    given.map_or(published * path.line_bps as f64 / for_bps, |rate| rate.0 as f64)
}

/// `base` to a whole power, by squaring: the same on every machine.
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

    /// 100 Gb/s and 13 us, as the figures of the reference have it.
    pub(super) fn path() -> Path {
        Path {
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
