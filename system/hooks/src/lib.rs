//! Attaches eBPF programs to network devices: by TCX (Linux 6.6 and later), else as a filter at the clsact qdisc. Programs
//! of others at the same hook stay attached.
//!
//! For: the marker, the sampler and the lab. Both mechanisms return a link: dropping it detaches the program; a pinned or
//! forgotten one ([`Filter::forget`]) stays. `bpf/kernel.h` has the kernel's interface for the C sources.
//!
//! Not for: the programs themselves, or pinning of links.
//!
//! Fails with the kernel's error; [`KernelError`] formats it as one line.

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

/// Mechanism by which programs are attached to a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Attach {
    /// TCX where the kernel supports it, else clsact.
    #[default]
    Auto,
    /// TCX only (Linux 6.6 and later).
    Tcx,
    /// A filter at the clsact qdisc.
    Clsact,
}

/// Parses `auto`, `tcx` or `clsact`.
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

/// Returns the classifier program of this name in an object.
///
/// # Errors
/// If the object has no classifier of this name.
pub fn classifier<'a>(
    ebpf: &'a mut Ebpf,
    name: &'static str,
) -> Result<&'a mut SchedClassifier, KernelError> {
    let program = ebpf.program_mut(name).ok_or(KernelError::Missing(name))?;
    program.try_into().map_err(|error| KernelError::program(name, error))
}

/// Attaches a program by TCX, at this position among the programs of the hook.
///
/// # Errors
/// The kernel's error; [`is_unsupported`] recognises a kernel without TCX.
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

/// Returns true if the kernel has no TCX: it answers the unknown link type with EINVAL.
#[must_use]
pub fn is_unsupported(error: &ProgramError) -> bool {
    cause(error) == Some(io::ErrorKind::InvalidInput)
}

/// Finds the kernel's error in a chain of errors.
fn cause(error: &(dyn std::error::Error + 'static)) -> Option<io::ErrorKind> {
    let chain = std::iter::successors(Some(error), |error| error.source());
    chain.filter_map(|error| error.downcast_ref::<io::Error>()).map(io::Error::kind).last()
}

/// Identity of a component's filters at clsact. Its handle finds them again; several priorities are tried, because a
/// filter of another kind may occupy the first.
#[derive(Debug, Clone)]
pub struct Filters {
    /// Handle of all filters of the component.
    pub handle: TcHandle,
    /// Priorities to try, in ascending order.
    pub priorities: RangeInclusive<u16>,
}

/// An attached program; dropping it detaches the program.
#[derive(Debug)]
pub enum Attached {
    /// A TCX link, which the kernel removes when the process ends.
    Tcx(FdLink),
    /// A filter at the clsact qdisc.
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

/// A filter at the clsact qdisc; dropping it removes the filter.
#[derive(Debug)]
pub struct Filter(SchedClassifierLink);

impl Filter {
    /// Leaves the filter attached after this process has ended.
    pub fn forget(self) {
        std::mem::forget(self.0);
    }
}

impl Filters {
    /// Attaches a program by the mechanism `how`; `order` is its position among TCX programs.
    ///
    /// # Errors
    /// The kernel's error, with device and direction.
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

    /// Attaches a program as a filter at the clsact qdisc, which is created if missing. Replaces an existing filter with
    /// the same handle.
    ///
    /// # Errors
    /// The kernel's error, with device and direction.
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

    /// Removes the filter with this handle; a missing filter is no error.
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
