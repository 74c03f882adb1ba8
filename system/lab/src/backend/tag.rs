//! IEEE 802.1Q tags on the wire of a link: put on as packets leave a device, taken off as they arrive at the other.
//!
//! By eBPF programs at the devices, as not every kernel has VLAN devices. The kernel keeps a tag beside the packet, so
//! that super-packets stay whole.

use aya::{EbpfLoader, include_bytes_aligned};
use penstock_hooks::{Attached, KernelError};

use super::{Place, filter};

static OBJECT: &[u8] = include_bytes_aligned!("../../bpf/tag.bpfel.o");

/// What a tag adds to each packet.
const TAG_BYTES: u64 = 4;

/// The programs at both devices of a link; none where it has no VLAN. Dropped, packets have no tag.
#[derive(Debug, Default)]
pub(super) struct Tags(Vec<Attached>);

impl Tags {
    /// At two devices that are there. Who may not load programs has labs all the same: without tags.
    pub(super) fn attach(vlan: Option<u16>, ends: [Place<'_>; 2]) -> Self {
        let Some(vlan) = vlan else { return Self::default() };
        Self(attach(vlan, ends).unwrap_or_else(|error| {
            tracing::warn!("packets of VLAN {vlan} carry no tag: {error}");
            Vec::new()
        }))
    }

    /// What they add to each packet.
    pub(super) fn bytes(&self) -> u64 {
        if self.0.is_empty() { 0 } else { TAG_BYTES }
    }
}

fn attach(vlan: u16, ends: [Place<'_>; 2]) -> Result<Vec<Attached>, KernelError> {
    let failed = |error| KernelError::new("load the programs that tag packets", error);
    let mut loader = EbpfLoader::new();
    let mut ebpf = loader.override_global("vlan", &vlan, true).load(OBJECT).map_err(failed)?;
    let mut attached = filter::as_they_leave(&mut ebpf, "put_on", ends)?;
    attached.extend(filter::as_they_arrive(&mut ebpf, "take_off", ends)?);
    Ok(attached)
}
