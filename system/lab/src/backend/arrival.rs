//! eBPF programs that clear packet timestamps, so that SO_TIMESTAMP reports the arrival after the link's delay.

use aya::{Ebpf, include_bytes_aligned};
use penstock_hooks::{Attached, KernelError};

use super::{EmulatedEnd, filter};

static OBJECT: &[u8] = include_bytes_aligned!("../../bpf/arrival.bpfel.o");

/// The programs at both devices of a link.
#[derive(Debug)]
pub(super) struct ArrivalPrograms {
    _attached: Vec<Attached>,
}

impl ArrivalPrograms {
    /// Attaches to two existing devices. Without the permission to load programs, links work but report earlier timestamps.
    pub(super) fn attach(ends: [EmulatedEnd<'_>; 2]) -> Self {
        let attached = attach(ends).unwrap_or_else(|error| {
            tracing::debug!("SO_TIMESTAMP reports arrival times before the delay: {error}");
            Vec::new()
        });
        Self { _attached: attached }
    }
}

fn attach(ends: [EmulatedEnd<'_>; 2]) -> Result<Vec<Attached>, KernelError> {
    let failed = |error| KernelError::new("load the program that clears timestamps", error);
    let mut ebpf = Ebpf::load(OBJECT).map_err(failed)?;
    filter::attach_ingress(&mut ebpf, "forget", ends)
}
