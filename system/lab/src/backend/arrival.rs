//! When packets arrive, as programs are told that ask the kernel (SO_TIMESTAMP): after their link's delay.

use aya::{Ebpf, include_bytes_aligned};
use penstock_hooks::{Attached, KernelError};

use super::{Place, filter};

static OBJECT: &[u8] = include_bytes_aligned!("../../bpf/arrival.bpfel.o");

/// The programs at both devices of a link.
#[derive(Debug)]
pub(super) struct Arrivals {
    _attached: Vec<Attached>,
}

impl Arrivals {
    /// At two devices that are there. Who may not load programs has links all the same.
    pub(super) fn attach(ends: [Place<'_>; 2]) -> Self {
        let attached = attach(ends).unwrap_or_else(|error| {
            tracing::debug!("times of arrival are those before the delay: {error}");
            Vec::new()
        });
        Self { _attached: attached }
    }
}

fn attach(ends: [Place<'_>; 2]) -> Result<Vec<Attached>, KernelError> {
    let failed = |error| KernelError::new("load the program that forgets times", error);
    let mut ebpf = Ebpf::load(OBJECT).map_err(failed)?;
    filter::as_they_arrive(&mut ebpf, "forget", ends)
}
