//! Links by the kernel's own emulator, on the devices at their ends.

use std::io;
use std::sync::Arc;

use penstock_sys::net::Netem;

use super::tag::Tags;
use super::{Place, Wire, nfqueue};
use crate::direction::Counters;
use crate::lateness::Counted;
use crate::line::{Impairment, gilbert};
use crate::node::Node;

/// Of preamble, check sequence and gap, which the kernel does not count.
const UNCOUNTED_BYTES: u64 = 24;
const SEGMENTS_MAX: u32 = 65_535;

#[derive(Debug)]
struct End {
    node: Arc<Node>,
    device: u32,
    mtu: u32,
    seed: u64,
    /// Of each packet, what the kernel does not count.
    uncounted_bytes: u64,
}

/// A pair of devices with an emulator on each.
#[derive(Debug)]
pub(super) struct Link {
    ends: [End; 2],
    _tags: Tags,
}

impl Link {
    pub(super) fn join(name: &str, seed: u64, ends: [Place<'_>; 2]) -> io::Result<Self> {
        let (devices, tags) = nfqueue::pair(ends)?;
        let end = |side: usize| End {
            node: Arc::clone(ends[side].node),
            device: devices[side],
            mtu: ends[side].port.mtu,
            seed: crate::random::Random::new(seed, &format!("{name}{side}")).next(),
            uncounted_bytes: UNCOUNTED_BYTES + tags.bytes(),
        };
        Ok(Self { ends: [end(0), end(1)], _tags: tags })
    }
}

impl Wire for Link {
    fn set(&mut self, wanted: [Impairment; 2]) -> io::Result<()> {
        self.ends.iter().zip(wanted).try_for_each(|(end, wanted)| end.set(&wanted))
    }

    fn counters(&self) -> io::Result<[Counters; 2]> {
        let [a, b] = &self.ends;
        Ok([between(a, b)?, between(b, a)?])
    }

    fn lateness(&self) -> [Option<Counted>; 2] {
        [None, None]
    }
}

impl End {
    fn set(&self, wanted: &Impairment) -> io::Result<()> {
        if wanted.mark.is_some() {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "netem marks what it would lose and not what waits: use the nfqueue backend for mark",
            ));
        }
        let network = &self.node.network;
        let lossy = wanted.loss > 0.0 || wanted.cut;
        network.set_segments_max(self.device, if lossy { 1 } else { SEGMENTS_MAX })?;
        let loss = if wanted.cut { Some((1.0, 0.0)) } else { self.loss(wanted) };
        // It counts packets: as many as fit into the queue, and as many as are on their way, all of them full.
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
            // Before Linux 6.6 it takes no seed.
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
        // Independent losses are bursts that may be followed by another: the chance to go on is that to begin.
        let burst =
            if wanted.loss_burst <= 1.0 { 1.0 / (1.0 - wanted.loss) } else { wanted.loss_burst };
        Some(gilbert(wanted.loss, burst))
    }
}

fn between(from: &End, to: &End) -> io::Result<Counters> {
    let lost = from.node.network.qdisc_drops(from.device)?;
    let received = to.node.network.counters(to.device)?;
    Ok(Counters {
        packets: received.received_packets,
        wire_bytes: received.received_bytes + from.uncounted_bytes * received.received_packets,
        lost,
        ..Counters::default()
    })
}
