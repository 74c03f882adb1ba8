//! Parameters of a run: one table with the name, type, default, meaning and source of each. Users set parameters by
//! name as text; the code reads them as fields.
//!
//! Defaults of congestion control are the values published for 25 Gb/s, and scale with the line rate of the host where
//! the source does so.

use std::fmt;

use penstock_units::{BitRate, ByteCount};

mod value;

pub use value::{ParameterValue, Picoseconds};

/// Model of frame sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WireModel {
    /// Sizes on the wire.
    Ethernet,
    /// Sizes of the HPCC paper's simulator.
    Ns3Hpcc,
}

/// Xoff threshold of PFC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PauseThreshold {
    /// A share of the free shared buffer.
    Dynamic,
    /// A fixed number of bytes.
    Static,
}

/// Congestion control of the hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CongestionControl {
    /// No congestion control: hosts send at line rate.
    None,
    /// DCQCN as implemented by ConnectX-4 and later.
    Dcqcn,
    /// DCQCN as published.
    DcqcnPaper,
    /// HPCC.
    Hpcc,
    /// DCTCP with rate pacing.
    Dctcp,
    /// TIMELY.
    Timely,
    /// Swift.
    Swift,
    /// TCP with CUBIC.
    Cubic,
    /// TCP with BBR.
    Bbr,
}

/// Loss recovery of the hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovery {
    /// Retransmits everything from the first missing packet.
    GoBackN,
    /// Retransmits only missing packets.
    Selective,
}

/// Selection among equal-cost paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Routing {
    /// Hash of the queue pair, seeded per switch.
    Ecmp,
    /// The same hash at every switch, which polarises traffic.
    EcmpPolarised,
    /// Random for every packet.
    Spray,
    /// Random for every flowlet: packets of a queue pair without a gap of `flowlet_gap`.
    Flowlet,
    /// Shortest queue for every packet.
    Adaptive,
}

/// Window of an RDMA queue pair: payload in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Window {
    /// Window of the congestion control.
    Auto,
    /// No limit.
    None,
    /// One BDP.
    Fixed,
    /// One BDP, multiplied by the current rate over the line rate.
    Scaled,
}

/// Base RTT that congestion control assumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoundTrip {
    /// Longest base RTT of all flows.
    Longest,
    /// Base RTT of the flow itself.
    Own,
}

/// Action of the PFC watchdog on a queue that is paused for too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchdogAction {
    /// Ignores the pause and transmits.
    Forward,
    /// Drops the queue.
    Drop,
}

/// Row of the parameter table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParameterRow {
    /// Name by which the parameter is set.
    pub name: &'static str,
    /// Current value as text.
    pub value: String,
    /// Accepted form of the value.
    pub form: &'static str,
    /// Meaning with its unit.
    pub meaning: &'static str,
    /// Source of the default.
    pub source: &'static str,
}

/// Unknown parameter or malformed value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParameterError {
    /// Unknown name.
    #[error("there is no parameter '{0}': see penstock fabric parameters")]
    Unknown(String),
    /// Malformed value.
    #[error("{name}: '{value}' is not {form}")]
    Value {
        /// Name of the parameter.
        name: &'static str,
        /// Value that was given.
        value: String,
        /// Accepted form of the value.
        form: &'static str,
    },
}

/// Parameters that are out of range or contradict each other, with the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidParameters {
    /// A value out of its range.
    #[error("{name} is {value}: {accepted}")]
    OutOfRange {
        /// Name of the parameter.
        name: &'static str,
        /// Its value.
        value: String,
        /// Accepted values, for users.
        accepted: &'static str,
    },
    /// A gain out of its range.
    #[error("{0} is too small or too large")]
    Gain(&'static str),
    /// TCP on a wire model without it.
    #[error("wire is ns3-hpcc, which has no TCP: use ethernet")]
    TcpOnHpccWire,
    /// Parameters of RDMA with TCP.
    #[error("window and paced are for RDMA: leave them out with cubic and bbr")]
    WindowOfTcp,
    /// A threshold to resume above that to pause.
    #[error("pfc_xon is {xon} and pfc_xoff {xoff}: resume below the pause")]
    PauseThresholds {
        /// Bytes at which transmission resumes.
        xon: u64,
        /// Bytes at which it pauses.
        xoff: u64,
    },
    /// A lower marking threshold above the upper one.
    #[error("ecn_kmin is {min} and ecn_kmax {max}: exchange them")]
    MarkThresholds {
        /// Bytes from which packets are marked with a probability.
        min: u64,
        /// Bytes from which all are marked.
        max: u64,
    },
    /// Bounds of the Swift window that contain none.
    #[error("swift_window_max has to be above swift_window_min, and that above 0")]
    SwiftWindow,
}

macro_rules! parameters {
    ($($name:ident: $kind:ty = $default:expr, $meaning:literal, $source:literal;)+) => {
        /// Parameters of a run.
        #[derive(Debug, Clone, PartialEq)]
        pub struct Parameters {
            $(#[doc = $meaning] pub $name: $kind,)+
        }

        impl Default for Parameters {
            fn default() -> Self {
                Self { $($name: $default,)+ }
            }
        }

        impl Parameters {
            /// Sets a parameter by its name.
            ///
            /// # Errors
            /// Returns an error if the name is unknown or the value is malformed.
            pub fn set(&mut self, name: &str, value: &str) -> Result<(), ParameterError> {
                match name {
                    $(stringify!($name) => {
                        self.$name = <$kind>::parse(value).ok_or_else(|| ParameterError::Value {
                            name: stringify!($name),
                            value: value.to_owned(),
                            form: <$kind>::FORM,
                        })?;
                    })+
                    _ => return Err(ParameterError::Unknown(name.to_owned())),
                }
                Ok(())
            }

            /// Returns the parameter table with current values.
            #[must_use]
            pub fn rows(&self) -> Vec<ParameterRow> {
                vec![$(ParameterRow {
                    name: stringify!($name),
                    value: self.$name.show(),
                    form: <$kind>::FORM,
                    meaning: $meaning,
                    source: $source,
                },)+]
            }
        }
    };
}

const fn us(count: u64) -> Picoseconds {
    Picoseconds(count * crate::time::PS_PER_MICROSECOND)
}

parameters! {
    seed: u64 = 1, "from which all random numbers follow", "ours";

    wire: WireModel = WireModel::Ethernet, "how bytes of packets are counted", "IEEE 802.3, InfiniBand annex A17; HPCC simulator";
    mtu: u32 = 1024, "payload of a full packet in bytes (path MTU)", "perftest on a 1500-byte Ethernet";
    ipv6: bool = false, "IPv6 instead of IPv4", "ours";
    vlan: bool = false, "an 802.1Q tag on every frame, which pausing by PCP needs", "IEEE 802.1Qbb";

    priority: u8 = 3, "priority of data, 0 to 7", "HPCC simulator; HEPS uses 4";
    ack_unpaused: bool = false, "hosts send acknowledgements even while their priority is paused", "HPCC simulator, ACK_HIGH_PRIO";
    ack_priority: Option<u8> = None, "priority of acknowledgements; auto: that of their data", "InfiniBand: a queue pair has one traffic class";
    cnp_priority: u8 = 6, "priority of congestion notifications", "DCQCN, SIGCOMM 2015, section 5";
    weights: [u32; 8] = [0; 8], "weight of each priority from 0 to 7; 0: strict, the highest number first", "IEEE 802.1Q";

    ack_every: u32 = 1, "packets for each acknowledgement, and one at the end of each message", "HPCC simulator, L2_ACK_INTERVAL";
    timeout_exponent: u32 = 14, "acknowledgement time-out is 4.096 us times 2 to this; 0: none", "perftest -u";
    retries: u32 = 7, "time-outs in a row after which a queue pair fails", "perftest";
    recovery: Recovery = Recovery::GoBackN, "what is sent again after a loss; TCP is always selective", "InfiniBand 9.7; selective: IRN, SIGCOMM 2018, and ConnectX-5 and later (RoCE selective repeat)";
    selective_reorder: u32 = 1, "a packet is lost when one so many numbers above it has arrived; more where ways are sprayed", "IRN, SIGCOMM 2018";
    selective_window: Option<ByteCount> = None, "payload under way with selective recovery; auto: a bandwidth-delay product; 0: no limit", "IRN, SIGCOMM 2018 (BDP-FC)";
    selective_few: u32 = 3, "packets under way up to which the low time-out is used", "IRN, SIGCOMM 2018";
    selective_timeout_low: Picoseconds = us(100), "time-out with few packets under way; at least three round trips", "IRN, SIGCOMM 2018";
    selective_timeout_high: Picoseconds = us(320), "time-out with more; at least three round trips", "IRN, SIGCOMM 2018";
    outstanding_messages: u32 = 0, "messages that a host has under way for each queue pair; 0: no limit", "LOG_MAX_OUTSTANDING_WQE of ConnectX";
    nic_latency: Picoseconds = Picoseconds(0), "time in sending and receiving host together, for each packet", "ours; see docs/fabric-model.md";

    switch_latency: Picoseconds = Picoseconds(0), "time from the last bit of a packet to its queue", "ours; see docs/fabric-model.md";
    buffer: Option<ByteCount> = None, "memory of a switch for packets; auto: as the topology says, else 16 MiB for each 50 Gb/s of its fastest host", "HPCC simulator, run.py";
    reserve: ByteCount = ByteCount(4096), "memory of its own for each port and priority that is paused", "HPCC simulator";
    drop_alpha: f64 = 1.0, "without pausing a queue holds so many times what is free", "Choudhury and Hahne 1998";
    queue_limit: Option<ByteCount> = None, "bytes of a queue without pausing; auto: as drop_alpha says", "ours";

    pfc: bool = true, "priority flow control for data", "IEEE 802.1Qbb";
    pfc_threshold: PauseThreshold = PauseThreshold::Dynamic, "how it is decided when to pause", "HPCC simulator; HEPS has static";
    pfc_alpha: f64 = 0.125, "dynamic: pause at so many times what is free", "HPCC simulator (shift 3)";
    pfc_xon_offset: ByteCount = ByteCount(3072), "dynamic: resume so far below", "HPCC simulator";
    pfc_xoff: ByteCount = ByteCount(600_000), "static: pause at so many bytes of a port and priority", "HEPS, Network 2025, 5, 53";
    pfc_xon: ByteCount = ByteCount(550_000), "static: resume at so many", "HEPS, Network 2025, 5, 53";
    pfc_headroom: Option<ByteCount> = None, "memory for what comes after a pause; auto: rate x (2 delays + response + switch latency) + 3 frames + pause frame", "IEEE 802.1Q annex N, and a frame that is the first over the threshold";
    pfc_response: Picoseconds = Picoseconds(0), "time from the last bit of a pause frame to its effect", "IEEE 802.1Qbb allows 394 quanta at 100G";
    pfc_quanta: u32 = 0, "length of a pause in 512 bit times, renewed at half; 0: until it is taken back", "IEEE 802.1Qbb: at most 65535";
    deadlock_check: Picoseconds = us(100), "while something is paused it is looked for cyclic waits so often, and up to 100 times as rarely while the answer stays; 0: never", "ours";
    watchdog_detect: Picoseconds = Picoseconds(0), "a queue that stood still by pause for so long is helped; 0: never", "HEPS: 10s; SONiC: 200ms";
    watchdog_restore: Picoseconds = Picoseconds(10 * crate::time::PS_PER_SECOND), "for so long its pauses are not obeyed", "HEPS";
    watchdog_action: WatchdogAction = WatchdogAction::Forward, "what is done with it", "SONiC";

    ecn: bool = true, "switches mark packets", "RFC 3168; HPCC simulator, ENABLE_QCN";
    ecn_kmin: Option<ByteCount> = None, "queue from which packets are marked; auto: by congestion control and rate", "HPCC run.py: 4 KB, DCTCP 3 KB for each Gb/s";
    ecn_kmax: Option<ByteCount> = None, "queue from which all are", "HPCC run.py: 16 KB, DCTCP 3 KB for each Gb/s";
    ecn_pmax: Option<f64> = None, "share of packets marked just below", "HPCC run.py: 0.2, DCTCP 1";

    routing: Routing = Routing::Ecmp, "how ways of equal cost are chosen", "ecmp: RFC 2992; spray: INFOCOM 2013; flowlet: LetFlow, NSDI 2017; adaptive: as Spectrum switches, and DRILL, SIGCOMM 2017";
    flowlet_gap: Picoseconds = us(100), "flowlet: after so long without a packet another way may be chosen", "conweave, LetFlow of its paper";

    reroute: Picoseconds = us(50_000), "after so long switches use other ways than a link or switch that failed, or it again after its repair", "ours: fast detection and BGP; seconds without";

    cc: CongestionControl = CongestionControl::Dcqcn, "congestion control", "HEPS";
    base_rtt: Option<Picoseconds> = None, "round-trip time without queues; auto: as base_rtt_of says", "HPCC simulator, GLOBAL_T";
    base_rtt_of: RoundTrip = RoundTrip::Longest, "base_rtt=auto: the longest round trip of all flows, or the flow's own", "HPCC simulator, GLOBAL_T";
    window: Window = Window::Auto, "payload under way of RDMA: as congestion control has it, without limit, a bandwidth-delay product, or that times rate over line rate", "HPCC simulator, HAS_WIN and VAR_WIN; HPCC paper, DCQCN+w";
    window_bytes: Option<ByteCount> = None, "the bandwidth-delay product of window=fixed and window=scaled; auto: slowest line of the path times base_rtt", "HPCC simulator, maxBdp";
    paced: bool = true, "packets leave at the rate of congestion control; false: at line rate, as far as the window goes", "HPCC simulator, RATE_BOUND";
    rate_min: Option<BitRate> = None, "no rate is below; auto: 100 Mb/s", "HPCC simulator, MIN_RATE";
    telemetry_bytes: u32 = 42, "what HPCC adds to data and acknowledgements", "HPCC simulator, 5 hops";

    dcqcn_gain: f64 = 1.0 / 256.0, "weight of news in alpha", "SIGCOMM 2015";
    dcqcn_alpha_interval: Picoseconds = us(1), "alpha is renewed", "HPCC run.py";
    dcqcn_decrease_interval: Picoseconds = us(4), "at most one cut", "HPCC run.py";
    dcqcn_increase_interval: Picoseconds = us(300), "the rate grows", "HPCC run.py; NVIDIA rpg_time_reset";
    dcqcn_recovery_stages: u32 = 1, "increases half-way back before target grows", "HPCC run.py; NVIDIA rpg_threshold";
    dcqcn_additive: Option<BitRate> = None, "growth of the target; auto: 5 Mb/s for each 25 Gb/s", "HPCC run.py";
    dcqcn_hyper: Option<BitRate> = None, "growth after that; auto: 50 Mb/s for each 25 Gb/s", "HPCC run.py";
    dcqcn_clamp: bool = false, "target follows every cut", "NVIDIA default";

    dcqcn_paper_notify_interval: Picoseconds = us(50), "at most one notification of a receiver for each queue pair", "SIGCOMM 2015";
    dcqcn_paper_alpha_interval: Picoseconds = us(55), "alpha decays", "SIGCOMM 2015";
    dcqcn_paper_increase_interval: Picoseconds = us(55), "the rate grows by time", "SIGCOMM 2015";
    dcqcn_paper_increase_bytes: ByteCount = ByteCount(10_000_000), "the rate grows by bytes", "SIGCOMM 2015";
    dcqcn_paper_recovery_stages: u32 = 5, "increases half-way back before target grows", "SIGCOMM 2015";
    dcqcn_paper_additive: BitRate = BitRate(40_000_000), "growth of the target", "SIGCOMM 2015";
    dcqcn_paper_hyper: BitRate = BitRate(200_000_000), "growth after that", "ns3-rdma, shipped configuration";

    hpcc_target: f64 = 0.95, "utilisation that is aimed at (eta)", "SIGCOMM 2019";
    hpcc_stages: u32 = 5, "additive increases before a multiplicative one", "SIGCOMM 2019; run.py has 0";
    hpcc_fast_react: bool = true, "acknowledgements within a round trip change the rate, too", "SIGCOMM 2019; HPCC simulator, FAST_REACT";
    hpcc_per_hop: bool = false, "a rate for each hop, of which the lowest counts", "HPCC simulator, MULTI_RATE";
    hpcc_skip_idle: bool = false, "hops without a queue count once in a round trip alone", "HPCC simulator, SAMPLE_FEEDBACK";
    hpcc_unit: u32 = 0, "telemetry counts bytes in steps of 128, queues in steps of 80 times this, and time in nanoseconds; 0: exactly", "HPCC simulator, INT_MULTI";
    hpcc_additive: Option<BitRate> = None, "additive increase; auto: 10 Mb/s for each 25 Gb/s", "HPCC run.py";

    dctcp_gain: f64 = 1.0 / 16.0, "weight of news in alpha", "RFC 8257";
    dctcp_additive: Option<BitRate> = None, "increase in a round trip; auto: one packet", "RFC 8257; HPCC run.py: 615 Mb/s";

    timely_low: Picoseconds = us(50), "below this round trip the rate grows", "SIGCOMM 2015; HPCC simulator";
    timely_high: Picoseconds = us(500), "above it shrinks", "SIGCOMM 2015; HPCC simulator";
    timely_min_rtt: Picoseconds = us(20), "unit of the gradient", "HPCC simulator";
    timely_gain: f64 = 0.875, "weight of news in the difference", "HPCC simulator";
    timely_beta: f64 = 0.8, "strength of a cut", "SIGCOMM 2015";
    timely_additive: Option<BitRate> = None, "growth; auto: 10 Mb/s for each 10 Gb/s", "HPCC run.py";
    timely_hyper: Option<BitRate> = None, "growth after five times; auto: 50 Mb/s for each 10 Gb/s", "HPCC run.py";

    swift_base: Picoseconds = us(20), "target delay without hops", "htsim, a guess of its authors";
    swift_hop: Picoseconds = Picoseconds(3_053_000), "target delay for each hop", "htsim";
    swift_range: Picoseconds = us(100), "most that small windows add to the target", "htsim";
    swift_window_min: f64 = 0.1, "packets at which all of it is added", "htsim";
    swift_window_max: f64 = 100.0, "packets at which nothing is added", "htsim";
    swift_additive: f64 = 1.0, "packets that a window grows in a round trip", "SIGCOMM 2020";
    swift_beta: f64 = 0.8, "strength of a cut", "SIGCOMM 2020";
    swift_cut_max: f64 = 0.5, "most that a cut takes", "SIGCOMM 2020";

    tcp_initial_window: u32 = 10, "segments under way at first", "RFC 6928";
    tcp_reorder: u32 = 3, "a segment is lost when one so many above it has arrived", "RFC 6675, DupThresh";
    tcp_timeout_min: Picoseconds = us(200_000), "least retransmission time-out", "Linux; RFC 6298 has 1 s";
    cubic_c: f64 = 0.4, "growth of the window in segments per cubic second", "RFC 9438, section 5";
    cubic_beta: f64 = 0.7, "share of the window that a loss leaves", "RFC 9438, section 4.6";
    cubic_fast_convergence: bool = true, "a flow that loses again before its last maximum leaves room", "RFC 9438, section 4.7";
    bbr_startup_gain: f64 = 2.885, "pacing and window while the rate of the path is searched (2 / ln 2)", "BBR, ACM Queue 14 (5), 2016";
    bbr_window_gain: f64 = 2.0, "bandwidth-delay products under way", "BBR, ACM Queue 14 (5), 2016";
    bbr_rounds: u32 = 10, "round trips over which the highest rate counts", "draft-cardwell-iccrg-bbr-congestion-control-00";
    bbr_probe_interval: Picoseconds = us(10_000_000), "after so long without a shorter round trip it is measured again", "draft-cardwell-iccrg-bbr-congestion-control-00";
    bbr_probe_time: Picoseconds = us(200_000), "for so long, with four segments under way", "draft-cardwell-iccrg-bbr-congestion-control-00";
}

impl InvalidParameters {
    fn out_of_range(name: &'static str, value: impl fmt::Display, accepted: &'static str) -> Self {
        Self::OutOfRange { name, value: value.to_string(), accepted }
    }
}

impl Parameters {
    /// Checks that the parameters are compatible with each other.
    ///
    /// # Errors
    /// Reports the first parameter that is out of range or contradicts another.
    pub fn check(&self) -> Result<(), InvalidParameters> {
        let share = |name: &'static str, value: f64| {
            if value > 0.0 && value <= 1.0 {
                Ok(())
            } else {
                Err(InvalidParameters::out_of_range(name, value, "give it above 0 and up to 1"))
            }
        };
        if !(64..=65_000).contains(&self.mtu) {
            return Err(InvalidParameters::out_of_range(
                "mtu",
                self.mtu,
                "give it from 64 to 65000 bytes",
            ));
        }
        for (name, priority) in [
            ("priority", self.priority),
            ("ack_priority", self.ack_priority.unwrap_or(0)),
            ("cnp_priority", self.cnp_priority),
        ] {
            if priority > 7 {
                return Err(InvalidParameters::out_of_range(name, priority, "there are 0 to 7"));
            }
        }
        if self.ack_every == 0 || self.ack_every > 4096 {
            return Err(InvalidParameters::out_of_range(
                "ack_every",
                self.ack_every,
                "give it from 1 to 4096",
            ));
        }
        if self.timeout_exponent > 31 {
            return Err(InvalidParameters::out_of_range(
                "timeout_exponent",
                self.timeout_exponent,
                "31 is the most",
            ));
        }
        let is_tcp = matches!(self.cc, CongestionControl::Cubic | CongestionControl::Bbr);
        if is_tcp && self.wire == WireModel::Ns3Hpcc {
            return Err(InvalidParameters::TcpOnHpccWire);
        }
        if is_tcp && (self.window != Window::Auto || !self.paced) {
            return Err(InvalidParameters::WindowOfTcp);
        }
        if self.window_bytes.is_some_and(|bytes| bytes.0 == 0) {
            return Err(InvalidParameters::out_of_range(
                "window_bytes",
                0,
                "give it bytes, or window=none",
            ));
        }
        if self.hpcc_unit > 1 << 20 {
            return Err(InvalidParameters::out_of_range(
                "hpcc_unit",
                self.hpcc_unit,
                "1048576 is the most",
            ));
        }
        for (name, count) in [
            ("selective_reorder", self.selective_reorder),
            ("tcp_reorder", self.tcp_reorder),
            ("tcp_initial_window", self.tcp_initial_window),
            ("bbr_rounds", self.bbr_rounds),
        ] {
            if !(1..=1 << 20).contains(&count) {
                return Err(InvalidParameters::out_of_range(
                    name,
                    count,
                    "give it from 1 to 1048576",
                ));
            }
        }
        if self.pfc_threshold == PauseThreshold::Static && self.pfc_xon > self.pfc_xoff {
            return Err(InvalidParameters::PauseThresholds {
                xon: self.pfc_xon.0,
                xoff: self.pfc_xoff.0,
            });
        }
        if self.pfc_quanta > 65_535 {
            return Err(InvalidParameters::out_of_range(
                "pfc_quanta",
                self.pfc_quanta,
                "65535 is the most",
            ));
        }
        if let (Some(min), Some(max)) = (self.ecn_kmin, self.ecn_kmax)
            && min > max
        {
            return Err(InvalidParameters::MarkThresholds { min: min.0, max: max.0 });
        }
        for (name, interval) in [
            ("dcqcn_alpha_interval", self.dcqcn_alpha_interval),
            ("dcqcn_decrease_interval", self.dcqcn_decrease_interval),
            ("dcqcn_increase_interval", self.dcqcn_increase_interval),
            ("dcqcn_paper_alpha_interval", self.dcqcn_paper_alpha_interval),
            ("dcqcn_paper_increase_interval", self.dcqcn_paper_increase_interval),
            ("timely_min_rtt", self.timely_min_rtt),
            ("swift_base", self.swift_base),
            ("selective_timeout_low", self.selective_timeout_low),
            ("selective_timeout_high", self.selective_timeout_high),
            ("tcp_timeout_min", self.tcp_timeout_min),
            ("base_rtt", self.base_rtt.unwrap_or(us(1))),
        ] {
            if interval.0 == 0 {
                return Err(InvalidParameters::out_of_range(name, 0, "give it a time"));
            }
        }
        if self.dcqcn_paper_increase_bytes.0 == 0 {
            return Err(InvalidParameters::out_of_range(
                "dcqcn_paper_increase_bytes",
                0,
                "give it bytes",
            ));
        }
        share("ecn_pmax", self.ecn_pmax.unwrap_or(1.0))?;
        share("hpcc_target", self.hpcc_target)?;
        share("dcqcn_gain", self.dcqcn_gain)?;
        share("dctcp_gain", self.dctcp_gain)?;
        share("timely_gain", self.timely_gain)?;
        share("cubic_beta", self.cubic_beta)?;
        for (name, gain) in [
            ("cubic_c", self.cubic_c),
            ("bbr_startup_gain", self.bbr_startup_gain - 1.0),
            ("bbr_window_gain", self.bbr_window_gain),
        ] {
            if gain <= 0.0 || gain > 1000.0 {
                return Err(InvalidParameters::Gain(name));
            }
        }
        for (name, alpha) in [("pfc_alpha", self.pfc_alpha), ("drop_alpha", self.drop_alpha)] {
            if alpha <= 0.0 || alpha > 64.0 {
                return Err(InvalidParameters::out_of_range(
                    name,
                    alpha,
                    "give it above 0 and up to 64",
                ));
            }
        }
        if self.swift_window_min <= 0.0 || self.swift_window_max <= self.swift_window_min {
            return Err(InvalidParameters::SwiftWindow);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_parameters_parse_back() {
        let mut parameters = Parameters::default();
        assert_eq!(parameters.check(), Ok(()));
        for row in parameters.rows() {
            parameters.set(row.name, &row.value).unwrap_or_else(|error| panic!("{error}"));
            assert!(!row.meaning.is_empty() && !row.source.is_empty());
        }
        assert_eq!(parameters, Parameters::default());
    }

    #[test]
    fn invalid_parameters_are_rejected() {
        let mut parameters = Parameters::default();
        let error = parameters.set("mtuu", "1").unwrap_err().to_string();
        assert!(error.contains("'mtuu'"), "{error}");
        let error = parameters.set("cc", "vegas").unwrap_err().to_string();
        assert!(error.contains("cc: 'vegas' is not") && error.contains("hpcc"), "{error}");
        for (name, value) in [
            ("mtu", "9"),
            ("priority", "8"),
            ("ack_every", "0"),
            ("timeout_exponent", "32"),
            ("ecn_pmax", "0"),
            ("hpcc_target", "1.5"),
            ("pfc_alpha", "0"),
            ("dcqcn_alpha_interval", "0s"),
            ("base_rtt", "0s"),
            ("pfc_quanta", "65536"),
            ("selective_reorder", "0"),
            ("tcp_timeout_min", "0s"),
            ("cubic_beta", "0"),
            ("bbr_startup_gain", "1"),
        ] {
            let mut parameters = Parameters::default();
            parameters.set(name, value).unwrap();
            assert!(parameters.check().unwrap_err().to_string().contains(name), "{name}");
        }
    }
}
