//! eBPF programs at the devices of a link. Dropped, they are gone.

use std::ops::RangeInclusive;

use aya::Ebpf;
use aya::programs::tc::TcHandle;
use aya::programs::{LinkOrder, TcAttachType};
use penstock_hooks::{Attach, Attached, Filters, KernelError, classifier};

use super::Place;

/// Our filters: "penl".
const FILTERS: Filters = Filters {
    handle: TcHandle::new(0x7065, 0x6E6C),
    priorities: RangeInclusive::new(0xD000, 0xD007),
};

/// Of an object, a program for packets that leave a device, as close to the wire as can be.
pub(super) fn as_they_leave(
    ebpf: &mut Ebpf,
    program: &str,
    ends: [Place<'_>; 2],
) -> Result<Vec<Attached>, KernelError> {
    attach(ebpf, program, TcAttachType::Egress, LinkOrder::last, ends)
}

/// Of an object, a program for packets that arrive at a device, as close to the wire as can be.
pub(super) fn as_they_arrive(
    ebpf: &mut Ebpf,
    program: &str,
    ends: [Place<'_>; 2],
) -> Result<Vec<Attached>, KernelError> {
    attach(ebpf, program, TcAttachType::Ingress, LinkOrder::first, ends)
}

fn attach(
    ebpf: &mut Ebpf,
    name: &str,
    kind: TcAttachType,
    order: fn() -> LinkOrder,
    ends: [Place<'_>; 2],
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
