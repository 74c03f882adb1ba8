//! Hooks of network devices for eBPF programs: TCX where the kernel has it, clsact else; beside what is there.
//!
//! For: the marker and the sampler. Both ways give a link that is the caller's to keep: dropped, the program is
//! gone from the device; pinned or forgotten ([`Filter::forget`]), it stays. `bpf/kernel.h` is the kernel's interface
//! for their C sources.
//!
//! Not for: what the programs do, where links are pinned, whom they serve.
//!
//! Fails as the kernel does; [`KernelError`] makes a line of it.

#![forbid(unsafe_code)]

mod error;

use std::io;
use std::ops::RangeInclusive;

use aya::Ebpf;
use aya::programs::links::FdLink;
use aya::programs::tc::{
    NlOptions, SchedClassifierLink, TcAttachOptions, TcError, TcHandle, qdisc_add_clsact,
};
use aya::programs::{LinkOrder, ProgramError, SchedClassifier, TcAttachType};

pub use error::KernelError;

/// How programs get to a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Attach {
    /// TCX, else clsact.
    #[default]
    Auto,
    /// TCX alone: Linux 6.6.
    Tcx,
    /// A filter at the clsact qdisc.
    Clsact,
}

/// As people write it: `auto`, `tcx`, `clsact`.
impl std::str::FromStr for Attach {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            "tcx" => Ok(Self::Tcx),
            "clsact" => Ok(Self::Clsact),
            _ => Err("use auto, tcx or clsact"),
        }
    }
}

/// A program of an object, for a hook of a device.
///
/// # Errors
/// When the object has none of this name.
pub fn classifier<'a>(
    ebpf: &'a mut Ebpf,
    name: &str,
) -> Result<&'a mut SchedClassifier, KernelError> {
    let missing = || KernelError::new(name, io::Error::other("not in the object"));
    let program = ebpf.program_mut(name).ok_or_else(missing)?;
    program.try_into().map_err(|error| KernelError::program(name, error))
}

/// Attaches by TCX, in this order among others.
///
/// # Errors
/// As the kernel does; [`is_unsupported`] where it has no TCX.
pub fn attach_tcx(
    program: &mut SchedClassifier,
    device: &str,
    kind: TcAttachType,
    order: LinkOrder,
) -> Result<FdLink, ProgramError> {
    let id = program.attach_with_options(device, kind, TcAttachOptions::TcxOrder(order))?;
    let other = |error: &dyn std::fmt::Display| {
        ProgramError::IOError(io::Error::other(format!("take the link: {error}")))
    };
    program.take_link(id)?.try_into().map_err(|error| other(&error))
}

/// An older kernel answers the unknown kind of link with EINVAL.
#[must_use]
pub fn is_unsupported(error: &ProgramError) -> bool {
    cause(error) == Some(io::ErrorKind::InvalidInput)
}

/// Finds the kernel's error in a chain of errors.
fn cause(error: &(dyn std::error::Error + 'static)) -> Option<io::ErrorKind> {
    let chain = std::iter::successors(Some(error), |error| error.source());
    chain.filter_map(|error| error.downcast_ref::<io::Error>()).map(io::Error::kind).last()
}

/// Whose filters at clsact: they are found again by their handle. Several priorities are tried, because another
/// kind of filter may have the first.
#[derive(Debug, Clone)]
pub struct Filters {
    /// Of all of them.
    pub handle: TcHandle,
    /// First to be tried first.
    pub priorities: RangeInclusive<u16>,
}

/// A program at a device, which goes from there when this is dropped.
#[derive(Debug)]
pub enum Attached {
    /// By a link of TCX, which the kernel takes away with the process that has it.
    Tcx(FdLink),
    /// By a filter.
    Clsact(Filter),
}

impl Attached {
    /// Mechanism: `tcx` or `clsact`.
    #[must_use]
    pub const fn by(&self) -> &'static str {
        match self {
            Self::Tcx(_) => "tcx",
            Self::Clsact(_) => "clsact",
        }
    }
}

/// A filter at clsact, removed when this is dropped.
#[derive(Debug)]
pub struct Filter(SchedClassifierLink);

impl Filter {
    /// Lets the filter live on without this process.
    pub fn forget(self) {
        std::mem::forget(self.0);
    }
}

impl Filters {
    /// Attaches by TCX, in this order among others, or where the kernel has none by a filter.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn attach_how(
        &self,
        program: &mut SchedClassifier,
        device: &str,
        kind: TcAttachType,
        order: LinkOrder,
        how: Attach,
    ) -> Result<Attached, KernelError> {
        if how != Attach::Clsact {
            match attach_tcx(program, device, kind, order) {
                Ok(link) => return Ok(Attached::Tcx(link)),
                Err(error) if how == Attach::Tcx || !is_unsupported(&error) => {
                    let what = format!("attach to {device} ({})", direction(kind));
                    return Err(KernelError::new(what, error));
                }
                Err(_) => {}
            }
        }
        self.attach(program, device, kind).map(Attached::Clsact)
    }

    /// Attaches at the clsact qdisc, which is made if there is none, or takes the place of the filter that has the
    /// handle.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn attach(
        &self,
        program: &mut SchedClassifier,
        device: &str,
        kind: TcAttachType,
    ) -> Result<Filter, KernelError> {
        let what = || format!("attach a filter to {device} ({})", direction(kind));
        if let Err(error) = qdisc_add_clsact(device)
            && !matches!(error, TcError::AlreadyAttached)
            && cause(&error) != Some(io::ErrorKind::AlreadyExists)
        {
            return Err(KernelError::new(what(), error));
        }
        for priority in self.priorities.clone() {
            let old = SchedClassifierLink::attached(device, kind, priority, self.handle, None);
            let Ok(old) = old else { continue };
            if let Ok(id) = program.attach_to_link(old)
                && let Ok(link) = program.take_link(id)
            {
                return Ok(Filter(link));
            }
        }
        let mut last = ProgramError::NotAttached;
        for priority in self.priorities.clone() {
            let options = NlOptions { priority, handle: self.handle, classid: None };
            let options = TcAttachOptions::Netlink(options);
            match program
                .attach_with_options(device, kind, options)
                .and_then(|id| program.take_link(id))
            {
                Ok(link) => return Ok(Filter(link)),
                Err(error) => last = error,
            }
        }
        Err(KernelError::new(what(), last))
    }

    /// Removes the filter that has the handle; where there is none nothing happens.
    pub fn remove(&self, device: &str, kind: TcAttachType) {
        for priority in self.priorities.clone() {
            drop(SchedClassifierLink::attached(device, kind, priority, self.handle, None));
        }
    }
}

/// Name of a hook: `egress` or `ingress`.
#[must_use]
pub const fn direction(kind: TcAttachType) -> &'static str {
    match kind {
        TcAttachType::Ingress => "ingress",
        TcAttachType::Egress => "egress",
        TcAttachType::Custom(_) => "custom",
    }
}
