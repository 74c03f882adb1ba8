//! Attachment of eBPF programs to the devices of a link; dropping the result detaches them.

use std::ops::RangeInclusive;

use aya::Ebpf;
use aya::programs::tc::TcHandle;
use aya::programs::{LinkOrder, TcAttachType};
use penstock_hooks::{Attach, Attached, Filters, KernelError, classifier};

use super::EmulatedEnd;

/// Handle "penl" and priorities of the lab's tc filters.
const FILTERS: Filters = Filters {
    handle: TcHandle::new(0x7065, 0x6E6C),
    priorities: RangeInclusive::new(0xD000, 0xD007),
};

/// Attaches `program` to egress of both devices, last in order.
pub(super) fn attach_egress(
    ebpf: &mut Ebpf,
    program: &'static str,
    ends: [EmulatedEnd<'_>; 2],
) -> Result<Vec<Attached>, KernelError> {
    attach(ebpf, program, TcAttachType::Egress, LinkOrder::last, ends)
}

/// Attaches `program` to ingress of both devices, first in order.
pub(super) fn attach_ingress(
    ebpf: &mut Ebpf,
    program: &'static str,
    ends: [EmulatedEnd<'_>; 2],
) -> Result<Vec<Attached>, KernelError> {
    attach(ebpf, program, TcAttachType::Ingress, LinkOrder::first, ends)
}

fn attach(
    ebpf: &mut Ebpf,
    name: &'static str,
    kind: TcAttachType,
    order: fn() -> LinkOrder,
    ends: [EmulatedEnd<'_>; 2],
) -> Result<Vec<Attached>, KernelError> {
    let program = classifier(ebpf, name)?;
    program.load().map_err(|error| KernelError::program(name, error))?;
    let attached = ends.into_iter().map(|end| {
        let device = &end.port.device;
        let attach = || FILTERS.attach_how(program, device, kind, order(), Attach::Auto);
        let entered = |error| KernelError::new(format!("enter the namespace of {device}"), error);
        end.node.namespace.inside(attach).map_err(entered)?
    });
    attached.collect()
}
