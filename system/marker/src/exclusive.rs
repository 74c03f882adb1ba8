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
use penstock_sys::lock::ExclusiveFileLock;
use penstock_sys::net::LinkAttributes;

use crate::error::MarkerError;
use crate::marker::{CLASSIFIERS, Marker, prepare};

/// Locks of a running marker, released on drop.
#[derive(Debug)]
pub struct Exclusive {
    _pin: ExclusiveFileLock,
    /// Abstract Unix sockets, whose names are local to a network namespace, as devices are.
    _devices: Vec<UnixDatagram>,
}

impl Exclusive {
    /// Takes the locks of devices and of a pin directory, which is created if missing.
    ///
    /// # Errors
    /// [`MarkerError::PinBusy`] or [`MarkerError::DeviceBusy`] if another marker holds one of them; [`MarkerError::Pin`] if the directory cannot hold pins.
    pub fn take(pin: &Path, links: &[LinkAttributes]) -> Result<Self, MarkerError> {
        prepare(pin)?;
        let lock = ExclusiveFileLock::try_lock(File::open(pin)?)?;
        let lock = lock.ok_or_else(|| MarkerError::PinBusy(pin.to_owned()))?;
        let devices = links.iter().map(device).collect::<Result<_, _>>()?;
        Ok(Self { _pin: lock, _devices: devices })
    }
}

fn device(link: &LinkAttributes) -> Result<UnixDatagram, MarkerError> {
    let name = SocketAddr::from_abstract_name(format!("penstock-marker-{}", link.index))?;
    UnixDatagram::bind_addr(&name).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => MarkerError::DeviceBusy(link.name.clone()),
        _ => error.into(),
    })
}

impl Marker {
    /// Number of attached programs of markers with other pin directories on a device; 0 on kernels without TCX, which do
    /// not report them.
    #[must_use]
    pub fn attached_by_others(&self, link: &LinkAttributes) -> usize {
        let own: Vec<u32> = self.own_programs();
        // The kernel truncates names to 15 bytes.
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
