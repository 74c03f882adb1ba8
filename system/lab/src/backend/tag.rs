//! IEEE 802.1Q tags of a link: eBPF programs push them on egress and pop them on ingress.
//!
//! eBPF, because not every kernel has VLAN devices. The kernel keeps a tag beside the packet, so super-packets stay whole.

use aya::{EbpfLoader, include_bytes_aligned};
use penstock_hooks::{Attached, KernelError};

use super::{EmulatedEnd, filter};

static OBJECT: &[u8] = include_bytes_aligned!("../../bpf/tag.bpfel.o");

/// Size of an IEEE 802.1Q tag.
const VLAN_TAG_BYTES: u64 = 4;

/// Attached programs of a link; empty without a VLAN. Dropping detaches them.
#[derive(Debug, Default)]
pub(super) struct Tags(Vec<Attached>);

impl Tags {
    /// Attaches to two existing devices. Without the permission to load programs, packets carry no tag.
    pub(super) fn attach(vlan: Option<u16>, ends: [EmulatedEnd<'_>; 2]) -> Self {
        let Some(vlan) = vlan else { return Self::default() };
        Self(attach(vlan, ends).unwrap_or_else(|error| {
            tracing::warn!("packets of VLAN {vlan} carry no tag: {error}");
            Vec::new()
        }))
    }

    /// Bytes added to each packet.
    pub(super) fn bytes(&self) -> u64 {
        if self.0.is_empty() { 0 } else { VLAN_TAG_BYTES }
    }
}

fn attach(vlan: u16, ends: [EmulatedEnd<'_>; 2]) -> Result<Vec<Attached>, KernelError> {
    let failed = |error| KernelError::new("load the programs that tag packets", error);
    let mut loader = EbpfLoader::new();
    let mut ebpf = loader.override_global("vlan", &vlan, true).load(OBJECT).map_err(failed)?;
    let mut attached = filter::attach_egress(&mut ebpf, "put_on", ends)?;
    attached.extend(filter::attach_ingress(&mut ebpf, "take_off", ends)?);
    Ok(attached)
}
