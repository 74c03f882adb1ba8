//! Links emulated by the netem qdisc on the devices at both ends.

use std::io;
use std::sync::Arc;

use penstock_random::Random;
use penstock_sys::net::Netem;

use super::tag::Tags;
use super::{EmulatedEnd, EmulatedLink, nfqueue};
use crate::direction::DirectionCounters;
use crate::line::{Impairment, gilbert};
use crate::node::RunningNode;
use crate::timing_error::TimingErrorCounts;

/// Preamble, frame check sequence and inter-frame gap, which the kernel does not count.
const UNCOUNTED_BYTES: u64 = 24;
const SEGMENTS_MAX: u32 = 65_535;

#[derive(Debug)]
struct NetemEnd {
    node: Arc<RunningNode>,
    device: u32,
    mtu: u32,
    seed: u64,
    /// Per packet: framing and VLAN tag, which the kernel does not count.
    uncounted_bytes: u64,
}

/// A veth pair with netem on each device.
#[derive(Debug)]
pub(super) struct NetemLink {
    ends: [NetemEnd; 2],
    _tags: Tags,
}

impl NetemLink {
    pub(super) fn join(name: &str, seed: u64, ends: [EmulatedEnd<'_>; 2]) -> io::Result<Self> {
        let (devices, tags) = nfqueue::pair(ends)?;
        let end = |side: usize| NetemEnd {
            node: Arc::clone(ends[side].node),
            device: devices[side],
            mtu: ends[side].port.mtu,
            seed: Random::named(seed, &format!("{name}{side}")).next_bits(),
            uncounted_bytes: UNCOUNTED_BYTES + tags.bytes(),
        };
        Ok(Self { ends: [end(0), end(1)], _tags: tags })
    }
}

impl EmulatedLink for NetemLink {
    fn set(&mut self, wanted: [Impairment; 2]) -> io::Result<()> {
        self.ends.iter().zip(wanted).try_for_each(|(end, wanted)| end.set(&wanted))
    }

    fn counters(&self) -> io::Result<[DirectionCounters; 2]> {
        let [a, b] = &self.ends;
        Ok([between(a, b)?, between(b, a)?])
    }

    fn timing_error(&self) -> [Option<TimingErrorCounts>; 2] {
        [None, None]
    }
}

impl NetemEnd {
    fn set(&self, wanted: &Impairment) -> io::Result<()> {
        if wanted.mark.is_some() {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "netem marks packets instead of losing them, not by queue length: use the nfqueue backend for mark",
            ));
        }
        let network = &self.node.network;
        let lossy = wanted.loss > 0.0 || wanted.cut;
        network.set_segments_max(self.device, if lossy { 1 } else { SEGMENTS_MAX })?;
        let loss = if wanted.cut { Some((1.0, 0.0)) } else { self.loss(wanted) };
        // netem's limit counts packets: those in the queue and those in flight, at full MTU.
        let on_the_way =
            wanted.rate.map_or(0.0, |rate| rate.0 as f64 / 8.0 * wanted.delay.as_secs_f64());
        let packets = (wanted.queue_bytes() as f64 + on_the_way) / f64::from(self.mtu);
        let mut netem = Netem {
            delay: wanted.delay,
            jitter: wanted.jitter,
            rate_bps: wanted.rate.map(|rate| rate.0),
            overhead_bytes: self.uncounted_bytes as i32,
            loss,
            packets_max: if wanted.rate.is_some() { (packets as u32).max(16) } else { 1_000_000 },
            seed: Some(self.seed),
        };
        match network.replace_netem(self.device, &netem) {
            // Before Linux 6.6 netem refuses a seed.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                netem.seed = None;
                network.replace_netem(self.device, &netem)
            }
            other => other,
        }
    }

    fn loss(&self, wanted: &Impairment) -> Option<(f64, f64)> {
        if wanted.loss <= 0.0 {
            return None;
        }
        // Independent losses in the Gilbert model: the probability to stay in the bad state equals that to enter it.
        let burst =
            if wanted.loss_burst <= 1.0 { 1.0 / (1.0 - wanted.loss) } else { wanted.loss_burst };
        Some(gilbert(wanted.loss, burst))
    }
}

fn between(from: &NetemEnd, to: &NetemEnd) -> io::Result<DirectionCounters> {
    let lost = from.node.network.qdisc_drops(from.device)?;
    let received = to.node.network.counters(to.device)?;
    Ok(DirectionCounters {
        packets: received.received_packets,
        wire_bytes: received.received_bytes + from.uncounted_bytes * received.received_packets,
        lost,
        ..DirectionCounters::default()
    })
}
