//! The eBPF programs: loading, attaching, the ring of samples, and their counters.
//!
//! The kernel removes TCX links when the process ends. Filters at clsact are removed on drop; the next sampler replaces
//! those of a killed process.

use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd};

use aya::maps::{MapData, PerCpuHashMap, PerCpuValues, RingBuf};
use aya::programs::tc::TcHandle;
use aya::programs::{LinkOrder, TcAttachType};
use aya::util::nr_cpus;
use aya::{Ebpf, EbpfLoader, include_bytes_aligned};
use penstock_hooks::{Attach, Filters, KernelError, classifier};

use crate::record::RingRecord;

static OBJECT: &[u8] = include_bytes_aligned!("../bpf/sampler.bpfel.o");

/// Handle "pens" and priorities of the sampler's tc filters, after the marker's, so that samples show its labels.
const FILTERS: Filters = Filters {
    handle: TcHandle::new(0x7065, 0x6E73),
    priorities: RangeInclusive::new(0xC000, 0xC007),
};

/// Default size of the ring buffer in bytes: about 5,000 samples.
pub const RING_BYTES: u32 = 1 << 20;
/// Smallest ring buffer in bytes: one page.
pub const RING_BYTES_MIN: u32 = 4096;
/// Largest ring: 256 MiB.
pub const RING_BYTES_MAX: u32 = 1 << 28;

type SourceKey = [u8; 8];
type SourceValue = [u8; 40];

/// Direction of packets at a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PacketDirection {
    /// Packets that the device receives.
    Ingress,
    /// Packets that the device sends.
    Egress,
}

impl PacketDirection {
    /// Name: `ingress` or `egress`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        }
    }

    pub(crate) const fn of(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::Ingress),
            1 => Some(Self::Egress),
            _ => None,
        }
    }

    const fn program(self) -> &'static str {
        match self {
            Self::Ingress => "sample_ingress",
            Self::Egress => "sample_egress",
        }
    }

    const fn kind(self) -> TcAttachType {
        match self {
            Self::Ingress => TcAttachType::Ingress,
            Self::Egress => TcAttachType::Egress,
        }
    }

    /// Position next to the wire: first at ingress, last at egress.
    fn order(self) -> LinkOrder {
        match self {
            Self::Ingress => LinkOrder::first(),
            Self::Egress => LinkOrder::last(),
        }
    }
}

/// A sampling program attached to a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachedSampler {
    /// Name of the device.
    pub interface: String,
    /// Direction of the sampled packets.
    pub direction: PacketDirection,
    /// Mechanism: `tcx` or `clsact`.
    pub by: &'static str,
}

/// Program counters of a device, both directions together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct DeviceCounts {
    pub(crate) packets: u64,
    pub(crate) samples: u64,
    pub(crate) drops: u64,
}

/// Loaded programs and their maps.
pub(crate) struct Programs {
    links: Vec<penstock_hooks::Attached>,
    sources: PerCpuHashMap<MapData, SourceKey, SourceValue>,
    ring: RingBuf<MapData>,
    ebpf: Ebpf,
}

impl std::fmt::Debug for Programs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Programs").field("links", &self.links.len()).finish_non_exhaustive()
    }
}

impl Programs {
    /// Loads the programs; `ring_bytes` is a power of two of at least a page.
    pub(crate) fn load(ring_bytes: u32) -> Result<Self, KernelError> {
        let mut loader = EbpfLoader::new();
        loader.map_max_entries("samples", ring_bytes);
        let failed = |error| KernelError::new("load the maps of the sampler", error);
        let mut ebpf = loader.load(OBJECT).map_err(failed)?;
        for direction in [PacketDirection::Ingress, PacketDirection::Egress] {
            let name = direction.program();
            let loaded = classifier(&mut ebpf, name)?.load();
            loaded.map_err(|error| KernelError::program(name, error))?;
        }
        let mut take = |name: &'static str| ebpf.take_map(name).ok_or(KernelError::Missing(name));
        let failed = |error| KernelError::new("use the maps of the sampler", error);
        let sources = PerCpuHashMap::try_from(take("sources")?).map_err(failed)?;
        let ring = RingBuf::try_from(take("samples")?).map_err(failed)?;
        Ok(Self { links: Vec::new(), sources, ring, ebpf })
    }

    /// Samples one of `rate` packets of a device.
    pub(crate) fn attach(
        &mut self,
        device: &str,
        index: u32,
        direction: PacketDirection,
        rate: u32,
        how: Attach,
    ) -> Result<AttachedSampler, KernelError> {
        let failed = |error| KernelError::new(format!("prepare {device}"), error);
        let mut value: SourceValue = [0; 40];
        value[24..32].copy_from_slice(&scale(rate).to_ne_bytes());
        let cpus = nr_cpus().map_err(|(_, error)| KernelError::new("count the CPUs", error))?;
        let values = PerCpuValues::try_from(vec![value; cpus])
            .map_err(|error| KernelError::new(format!("prepare {device}"), error))?;
        self.sources.insert(source_key(index, direction), values, 0).map_err(failed)?;
        let program = classifier(&mut self.ebpf, direction.program())?;
        let (kind, order) = (direction.kind(), direction.order());
        let link = FILTERS.attach_how(program, device, kind, order, how)?;
        let by = link.by();
        self.links.push(link);
        Ok(AttachedSampler { interface: device.to_owned(), direction, by })
    }

    /// Descriptor that is readable when samples are pending. The program signals it once several are.
    pub(crate) fn ring_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }

    /// Removes and returns the oldest sample.
    pub(crate) fn next_sample(&mut self) -> Option<RingRecord> {
        // The program writes nothing else.
        self.ring.next()?.as_ref().try_into().ok()
    }

    /// Reads the counters of a device, both directions together.
    pub(crate) fn counted(&self, index: u32) -> DeviceCounts {
        let mut sum = DeviceCounts::default();
        for direction in [PacketDirection::Ingress, PacketDirection::Egress] {
            // `None` if this direction is not sampled.
            let Some(counted) = self.counted_in(index, direction) else { continue };
            sum.packets = sum.packets.wrapping_add(counted.packets);
            sum.samples = sum.samples.wrapping_add(counted.samples);
            sum.drops = sum.drops.wrapping_add(counted.drops);
        }
        sum
    }

    /// Reads the packet count of one direction; `None` where it is not sampled.
    pub(crate) fn counted_in(
        &self,
        index: u32,
        direction: PacketDirection,
    ) -> Option<DeviceCounts> {
        let values = self.sources.get(&source_key(index, direction), 0).ok()?;
        let mut sum = DeviceCounts::default();
        for value in values.iter() {
            let word =
                |at: usize| u64::from_ne_bytes(value[at..at + 8].try_into().expect("8 bytes"));
            sum.packets = sum.packets.wrapping_add(word(0));
            sum.samples = sum.samples.wrapping_add(word(8));
            sum.drops = sum.drops.wrapping_add(word(16));
        }
        Some(sum)
    }
}

fn source_key(index: u32, direction: PacketDirection) -> SourceKey {
    let mut key = [0; 8];
    key[..4].copy_from_slice(&index.to_ne_bytes());
    key[4..].copy_from_slice(&(direction as u32).to_ne_bytes());
    key
}

/// Scale factor of the program for a sampling probability of 1/rate: 2^32 / -log2(1 - 1/rate), so that a gap of at
/// least n packets has the probability (1 - 1/rate)^n.
fn scale(rate: u32) -> u64 {
    if rate <= 1 {
        return 0;
    }
    let bits = -(-1.0 / f64::from(rate)).ln_1p() / std::f64::consts::LN_2;
    ((1_u64 << 32) as f64 / bits) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reimplements `exponential` and `draw` of bpf/sampler.bpf.c.
    fn gap(random: u32, scale: u64) -> u64 {
        let x = u64::from(random) + 1;
        let bits = x.ilog2();
        let fraction = ((u128::from(x) << (32 - bits)) & 0xFFFF_FFFF) as u64;
        let log2 = |i: u64| ((1_u64 << 32) as f64 * (1.0 + i as f64 / 64.0).log2()).round() as u64;
        let (low, high) = (log2(fraction >> 26), log2((fraction >> 26) + 1));
        let logarithm = low + (((high - low) * (fraction & 0x3FF_FFFF)) >> 26);
        let drawn = (32_u64 << 32) - (u64::from(bits) << 32) - logarithm;
        ((u128::from(drawn) * u128::from(scale)) >> 64) as u64
    }

    #[test]
    fn mean_gap_equals_the_rate() {
        for rate in [2_u32, 10, 50, 1000, 20_000, 1_000_000] {
            // Equidistant numbers in place of random ones.
            const DRAW_COUNT: u32 = 1 << 20;
            let (mut sum, mut none) = (0_u64, 0_u32);
            for number in 0..DRAW_COUNT {
                let gap = gap(number << 12 | 0x800, scale(rate));
                sum += gap + 1;
                none += u32::from(gap == 0);
            }
            let mean = sum as f64 / f64::from(DRAW_COUNT) / f64::from(rate);
            assert!((mean - 1.0).abs() < 2e-4, "rate {rate}: mean gap {mean} of it");
            let share = f64::from(none) / f64::from(DRAW_COUNT) * f64::from(rate);
            let grain = f64::from(rate) / f64::from(DRAW_COUNT);
            // Linear interpolation of the logarithm has an error of up to 0.4 %.
            assert!((share - 1.0).abs() < 5e-3 + 1.01 * grain, "rate {rate}: {share}");
        }
        assert_eq!(scale(1), 0);
    }

    #[test]
    fn no_gap_overflows() {
        let longest = gap(0, scale(crate::RATE_MAX));
        assert!(longest < 25 * u64::from(crate::RATE_MAX), "{longest}");
    }
}
