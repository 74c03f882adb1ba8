//! Locks: one running marker per pin directory and per device. Two would write the same rules, or process each packet
//! twice.
//!
//! The kernel releases both locks when the process ends. Programs that stay attached are no lock: the next marker takes
//! them over.

use std::fs::File;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;

use aya::programs::{SchedClassifier, TcAttachType};
use penstock_sys::lock::FileLock;
use penstock_sys::net::Link;

use crate::error::MarkerError;
use crate::marker::{CLASSIFIERS, Marker, prepare};

/// Held while a marker runs.
#[derive(Debug)]
pub struct Exclusive {
    _pin: FileLock,
    /// Abstract names belong to a network namespace, as devices do.
    _devices: Vec<UnixDatagram>,
}

impl Exclusive {
    /// Takes the locks of devices and of a pin directory, which is created if missing.
    ///
    /// # Errors
    /// [`MarkerError::Busy`] where another marker has one of them; where no pins can be.
    pub fn take(pin: &Path, links: &[Link]) -> Result<Self, MarkerError> {
        prepare(pin)?;
        let lock = FileLock::try_lock(File::open(pin)?)?.ok_or_else(|| {
            MarkerError::Busy(format!(
                "another penstock tag run uses {}: stop that one, send its rules by its --pipe or --http, or give another --pin DIR with other interfaces",
                pin.display()
            ))
        })?;
        let devices = links.iter().map(device).collect::<Result<_, _>>()?;
        Ok(Self { _pin: lock, _devices: devices })
    }
}

fn device(link: &Link) -> Result<UnixDatagram, MarkerError> {
    let name = SocketAddr::from_abstract_name(format!("penstock-marker-{}", link.index))?;
    UnixDatagram::bind_addr(&name).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => MarkerError::Busy(format!(
            "another penstock tag run labels packets of {}: stop that one, or give other interfaces",
            link.name
        )),
        _ => error.into(),
    })
}

impl Marker {
    /// How many programs of markers with other pin directories are attached to a device; 0 where the kernel does not
    /// say (before TCX).
    #[must_use]
    pub fn attached_by_others(&self, link: &Link) -> usize {
        let own: Vec<u32> = self.own_programs();
        // The kernel keeps 15 bytes of a name.
        let ours = |name: &str| CLASSIFIERS.iter().any(|one| name == &one[..one.len().min(15)]);
        [TcAttachType::Ingress, TcAttachType::Egress]
            .into_iter()
            .filter_map(|kind| SchedClassifier::query_tcx(&link.name, kind).ok())
            .flat_map(|(_, programs)| programs)
            .filter(|program| {
                program.name_as_str().is_some_and(ours) && !own.contains(&program.id())
            })
            .count()
    }
}
