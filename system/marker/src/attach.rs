//! Attachment of the programs to devices: by TCX where the kernel supports it, else by clsact; other programs stay.
//!
//! A TCX link is pinned as `egress-INDEX` or `ingress-INDEX` (file names of bpffs have no dots, names of
//! devices may). The program of an existing link is replaced in place. At clsact the program is a filter with a
//! unique handle, by which it is found again; a pin `filter-egress-INDEX` of the program records it.
//! Indexes and names are those of one network namespace: symbolic links `netns` and `name-INDEX` record the namespace and
//! the device names, for readers in other namespaces.
//! Removal keeps the clsact qdisc: other programs may use it.

use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::tc::{SchedClassifierLink, TcHandle};
use aya::programs::{CgroupAttachMode, CgroupSock, LinkOrder, ProgramError, TcAttachType};
use penstock_hooks::{Attach, Filters, KernelError, attach_tcx, classifier, is_unsupported};
use penstock_sys::net::LinkAttributes;

use crate::error::MarkerError;
use crate::marker::{Marker, cgroup_root};

/// Handle "penm" and priorities of the marker's tc filters.
const FILTERS: Filters =
    Filters { handle: TcHandle::new(0x7065, 0x6E6D), priorities: RangeInclusive::new(1, 8) };

const SOCKET_LINK: &str = "sock_create";

/// The network namespace of the devices, named as /proc names it.
const NAMESPACE: &str = "netns";
const OWN_NAMESPACE: &str = "/proc/self/ns/net";

/// A program attached to a device at one hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachedMarker {
    /// Interface index of the device.
    pub index: u32,
    /// Name of the device; its index after removal of the device.
    pub interface: String,
    /// Hook: `egress` or `ingress`.
    pub direction: &'static str,
    /// Mechanism: `tcx` or `clsact`.
    pub by: &'static str,
}

#[derive(Debug, Clone, Copy)]
struct Hook {
    direction: &'static str,
    kind: TcAttachType,
    frame: &'static str,
    packet: &'static str,
}

const HOOKS: [Hook; 2] = [
    // Ingress first, so that the MSS of every labelled connection is lowered from its start.
    Hook {
        direction: "ingress",
        kind: TcAttachType::Ingress,
        frame: "make_room_frame",
        packet: "make_room_packet",
    },
    Hook {
        direction: "egress",
        kind: TcAttachType::Egress,
        frame: "mark_frame",
        packet: "mark_packet",
    },
];

impl Marker {
    /// Attaches to `link`, or replaces the marker's programs there without missing a packet.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn attach(
        &mut self,
        link: &LinkAttributes,
        how: Attach,
    ) -> Result<Vec<AttachedMarker>, MarkerError> {
        let mut attached = Vec::new();
        self.note_device(link)?;
        for hook in HOOKS {
            let by = self.attach_hook(link, hook, how)?;
            attached.push(AttachedMarker {
                index: link.index,
                interface: link.name.clone(),
                direction: hook.direction,
                by,
            });
        }
        Ok(attached)
    }

    fn note_device(&self, link: &LinkAttributes) -> Result<(), MarkerError> {
        for (pin, target) in [
            (self.pin.join(NAMESPACE), fs::read_link(OWN_NAMESPACE)?),
            (name_pin(&self.pin, link.index), PathBuf::from(&link.name)),
        ] {
            let _ = fs::remove_file(&pin);
            std::os::unix::fs::symlink(target, &pin).map_err(|error| MarkerError::Pin {
                path: pin,
                text: penstock_sys::fs::describe(&error),
            })?;
        }
        Ok(())
    }

    fn attach_hook(
        &mut self,
        link: &LinkAttributes,
        hook: Hook,
        how: Attach,
    ) -> Result<&'static str, MarkerError> {
        let filter = filter_pin(&self.pin, hook, link.index);
        // Keeps an existing filter: with a TCX link as well, packets would be counted twice.
        if how != Attach::Clsact && (how == Attach::Tcx || !filter.exists()) {
            match self.attach_tcx(link, hook) {
                Ok(()) => return Ok("tcx"),
                Err(error) if how == Attach::Tcx || !is_unsupported(&error) => {
                    let what = format!("attach to {} ({})", link.name, hook.direction);
                    return Err(MarkerError::kernel(what, error));
                }
                Err(_) => {}
            }
        }
        self.attach_clsact(link, hook)?;
        Ok("clsact")
    }

    fn attach_tcx(&mut self, link: &LinkAttributes, hook: Hook) -> Result<(), ProgramError> {
        let pin = link_pin(&self.pin, hook, link.index);
        let name = if link.ethernet { hook.frame } else { hook.packet };
        let program: &mut aya::programs::SchedClassifier =
            self.ebpf.program_mut(name).ok_or(ProgramError::NotLoaded)?.try_into()?;
        if let Ok(pinned) = PinnedLink::from_pin(&pin) {
            let old = SchedClassifierLink::try_from(FdLink::from(pinned));
            if let Some(id) = old.ok().and_then(|old| program.attach_to_link(old).ok()) {
                // The pin keeps it.
                drop(program.take_link(id)?);
                return Ok(());
            }
            // The pin belongs to a removed device.
            let _ = fs::remove_file(&pin);
        }
        let new = attach_tcx(program, &link.name, hook.kind, LinkOrder::first())?;
        let other = |error: &dyn std::fmt::Display| {
            ProgramError::IOError(io::Error::other(format!("pin {}: {error}", pin.display())))
        };
        let pinned = new.pin(&pin).map_err(|error| other(&error))?;
        drop(pinned);
        Ok(())
    }

    fn attach_clsact(&mut self, link: &LinkAttributes, hook: Hook) -> Result<(), MarkerError> {
        let pin = filter_pin(&self.pin, hook, link.index);
        let name = if link.ethernet { hook.frame } else { hook.packet };
        let program = classifier(&mut self.ebpf, name)?;
        FILTERS.attach(program, &link.name, hook.kind)?.forget();
        let _ = fs::remove_file(&pin);
        let pinned = program.pin(&pin);
        pinned.map_err(|error| MarkerError::kernel(format!("pin {}", pin.display()), error))
    }

    /// Attaches the program that records the creating process of each socket, to the root of cgroup2.
    ///
    /// # Errors
    /// When cgroup2 is not mounted, or the kernel refuses.
    pub fn attach_sockets(&mut self) -> Result<(), MarkerError> {
        let root = fs::File::open(cgroup_root()?)?;
        let program = self.load_sockets()?;
        let what = |error| MarkerError::kernel("attach to the root of cgroup2", error);
        let id = program.attach(root, CgroupAttachMode::Single).map_err(what)?;
        let link: FdLink = program
            .take_link(id)
            .map_err(what)?
            .try_into()
            .map_err(|error| MarkerError::kernel("attach to the root of cgroup2", error))?;
        // Attaches the new link before the old one is removed.
        let (new, pin) = (self.pin.join("sock_create_new"), self.pin.join(SOCKET_LINK));
        let _ = fs::remove_file(&new);
        link.pin(&new).map_err(|error| MarkerError::kernel("pin a link", error))?;
        fs::rename(&new, &pin).or_else(|_| {
            let _ = fs::remove_file(&pin);
            fs::rename(&new, &pin)
        })?;
        Ok(())
    }

    /// Loads that program while the process has all privileges: attaching it later needs fewer.
    pub(crate) fn load_sockets(&mut self) -> Result<&mut CgroupSock, MarkerError> {
        const NAME: &str = "name_socket";
        let program = self.ebpf.program_mut(NAME).ok_or(KernelError::Missing(NAME))?;
        let program: &mut CgroupSock =
            program.try_into().map_err(|error| KernelError::program(NAME, error))?;
        match program.load() {
            Ok(()) | Err(ProgramError::AlreadyLoaded) => Ok(program),
            Err(error) => Err(KernelError::program(NAME, error).into()),
        }
    }

    /// Detaches from all devices except `wanted`; returns the detached programs.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn detach_others(&self, wanted: &[u32]) -> Result<Vec<AttachedMarker>, MarkerError> {
        let others: Vec<AttachedMarker> =
            attachments(&self.pin).into_iter().filter(|one| !wanted.contains(&one.index)).collect();
        for one in &others {
            detach(&self.pin, one)?;
        }
        Ok(others)
    }
}

fn link_pin(pin: &Path, hook: Hook, index: u32) -> PathBuf {
    pin.join(format!("{}-{index}", hook.direction))
}

fn filter_pin(pin: &Path, hook: Hook, index: u32) -> PathBuf {
    pin.join(format!("filter-{}-{index}", hook.direction))
}

fn name_pin(pin: &Path, index: u32) -> PathBuf {
    pin.join(format!("name-{index}"))
}

/// Network namespace of the devices, if it is not that of this process.
fn other_namespace(pin: &Path) -> Option<String> {
    let theirs = fs::read_link(pin.join(NAMESPACE)).ok()?;
    let own = fs::read_link(OWN_NAMESPACE).ok()?;
    (theirs != own).then(|| theirs.display().to_string())
}

/// Lists the programs attached by this pin directory.
pub(crate) fn attachments(pin: &Path) -> Vec<AttachedMarker> {
    let mut found = Vec::new();
    let elsewhere = other_namespace(pin).is_some();
    let name_of = |index| {
        let name = if elsewhere {
            fs::read_link(name_pin(pin, index)).ok().map(|name| name.display().to_string())
        } else {
            LinkAttributes::indexed(index).ok().map(|link| link.name)
        };
        name.unwrap_or_else(|| format!("#{index}"))
    };
    for entry in fs::read_dir(pin).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let (by, rest) = match name.strip_prefix("filter-") {
            Some(rest) => ("clsact", rest),
            None => ("tcx", name.as_str()),
        };
        for hook in HOOKS {
            let index = rest.strip_prefix(hook.direction).and_then(|rest| rest.strip_prefix('-'));
            let Some(index) = index.and_then(|index| index.parse().ok()) else { continue };
            let interface = name_of(index);
            found.push(AttachedMarker { index, interface, direction: hook.direction, by });
        }
    }
    found.sort_by(|a, b| (a.index, a.direction).cmp(&(b.index, b.direction)));
    found
}

/// True if the program that records process names is attached.
pub(crate) fn names_sockets(pin: &Path) -> bool {
    pin.join(SOCKET_LINK).exists()
}

fn detach(pin: &Path, one: &AttachedMarker) -> Result<(), MarkerError> {
    let hook = HOOKS.into_iter().find(|hook| hook.direction == one.direction).unwrap_or(HOOKS[0]);
    let path = if one.by == "tcx" {
        link_pin(pin, hook, one.index)
    } else {
        if let Some(namespace) = other_namespace(pin) {
            let text = format!(
                "the filters of {} are in another network namespace, {namespace}: run this there (ip netns exec, nsenter --net); where it is gone, remove this directory",
                one.interface
            );
            return Err(MarkerError::Pin { path: pin.to_owned(), text });
        }
        FILTERS.remove(&one.interface, hook.kind);
        filter_pin(pin, hook, one.index)
    };
    fs::remove_file(&path)
        .map_err(|error| MarkerError::Pin { path, text: penstock_sys::fs::describe(&error) })?;
    // Already removed with the other direction.
    let _ = fs::remove_file(name_pin(pin, one.index));
    Ok(())
}

/// Detaches all programs; returns their names.
pub(crate) fn detach_all(pin: &Path) -> Result<Vec<String>, MarkerError> {
    let mut removed = Vec::new();
    for one in attachments(pin) {
        detach(pin, &one)?;
        removed.push(format!("{} {} ({})", one.interface, one.direction, one.by));
    }
    if names_sockets(pin) {
        fs::remove_file(pin.join(SOCKET_LINK))?;
        removed.push("root of cgroup2".to_owned());
    }
    let _ = fs::remove_file(pin.join(NAMESPACE));
    Ok(removed)
}
