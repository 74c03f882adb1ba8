//! Devices, their ports and their tables of GIDs.

use std::ffi::CStr;
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use super::abi::{
    Functions, IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2, IBV_PORT_ACTIVE, IbvContext,
    IbvDeviceAttr, IbvGidEntry, IbvPortAttr,
};
use super::library::VerbsLibrary;

/// Limit of GIDs that are read of a device.
const GIDS_MAX: usize = 1024;

/// An open device. Clones share it; the last one closes it.
#[derive(Clone)]
pub struct RdmaContext {
    shared: Arc<OpenContext>,
}

struct OpenContext {
    context: NonNull<IbvContext>,
    name: String,
    functions: &'static Functions,
}

// SAFETY: libibverbs allows calls for a context from any thread at the same time.
unsafe impl Send for OpenContext {}
// SAFETY: as above.
unsafe impl Sync for OpenContext {}

impl Drop for OpenContext {
    fn drop(&mut self) {
        // SAFETY: opened by `open`, closed once; everything made from it keeps a clone.
        unsafe { (self.functions.close_device)(self.context.as_ptr()) };
    }
}

/// Limits of a device for one queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RdmaLimits {
    /// Work requests of one queue.
    pub work_requests: u32,
    /// Entries of a completion queue.
    pub completions: u32,
    /// Reads that a queue pair answers at a time.
    pub reads_answered: u8,
    /// Reads that a queue pair has outstanding.
    pub reads_issued: u8,
}

/// State of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RdmaPortState {
    /// The link is up and the port passes packets.
    pub active: bool,
    /// Active path MTU, from 256 to 4096.
    pub mtu_bytes: u32,
}

/// Encapsulation that belongs to a GID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand.
    InfiniBand,
    /// RoCE version 1: Ethernet without IP.
    RoCEv1,
    /// RoCE version 2: UDP port 4791.
    RoCEv2,
}

/// Entry of a device's table of GIDs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GidEntry {
    /// The GID: an IPv6 address, or an IPv4 address as `::ffff:a.b.c.d`.
    pub gid: [u8; 16],
    /// Index in the table.
    pub index: u32,
    /// Port of the device, from 1.
    pub port: u8,
    /// Encapsulation of packets with this GID.
    pub kind: GidKind,
    /// Index of the network interface; 0 without one.
    pub interface: u32,
}

impl VerbsLibrary {
    /// Opens all RDMA devices of this machine; none if the kernel has no RDMA.
    ///
    /// # Errors
    /// Error of the library; a device that cannot be opened is an error with its name.
    pub fn open_devices(self) -> io::Result<Vec<RdmaContext>> {
        let functions = self.functions;
        let mut count = 0;
        // SAFETY: `count` is written; the list is freed below.
        let list = unsafe { (functions.get_device_list)(&raw mut count) };
        let Some(devices) = NonNull::new(list) else {
            let error = io::Error::last_os_error();
            // Without the module ib_uverbs.
            return match error.raw_os_error() {
                Some(libc::ENOSYS) => Ok(Vec::new()),
                _ => Err(error),
            };
        };
        let open = |index: usize| {
            // SAFETY: `index` is below the count, and the list ends with it.
            let device = unsafe { *devices.as_ptr().add(index) };
            // SAFETY: a device of the list has a name that ends with NUL.
            let name = unsafe { CStr::from_ptr((functions.get_device_name)(device)) };
            let name = name.to_string_lossy().into_owned();
            // SAFETY: the device is of the list, which is not freed yet.
            let context = NonNull::new(unsafe { (functions.open_device)(device) });
            let context = context.ok_or_else(|| {
                let error = io::Error::last_os_error();
                io::Error::new(error.kind(), format!("{name}: {error}"))
            })?;
            Ok(RdmaContext { shared: Arc::new(OpenContext { context, name, functions }) })
        };
        let opened = (0..usize::try_from(count).unwrap_or(0)).map(open).collect();
        // SAFETY: got above, freed once; open devices do not need it.
        unsafe { (functions.free_device_list)(devices.as_ptr()) };
        opened
    }
}

impl RdmaContext {
    /// Name of the device, as in `/sys/class/infiniband`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    pub(super) fn as_ptr(&self) -> *mut IbvContext {
        self.shared.context.as_ptr()
    }

    pub(super) fn functions(&self) -> &'static Functions {
        self.shared.functions
    }

    /// Reads the limits of the device.
    ///
    /// # Errors
    /// Error of the provider.
    pub fn limits(&self) -> io::Result<RdmaLimits> {
        let mut attributes = IbvDeviceAttr::zeroed();
        // SAFETY: the context is open and the attributes have the size of the C structure.
        check(unsafe { (self.functions().query_device)(self.as_ptr(), &raw mut attributes) })?;
        let small = |value| u8::try_from(value).unwrap_or(if value < 0 { 0 } else { u8::MAX });
        Ok(RdmaLimits {
            work_requests: u32::try_from(attributes.max_qp_wr).unwrap_or(0),
            completions: u32::try_from(attributes.max_cqe).unwrap_or(0),
            reads_answered: small(attributes.max_qp_rd_atom),
            reads_issued: small(attributes.max_qp_init_rd_atom),
        })
    }

    /// Reads the state of a port, from 1.
    ///
    /// # Errors
    /// Error of the provider, also for a port that the device lacks.
    pub fn port(&self, port: u8) -> io::Result<RdmaPortState> {
        let mut attributes = IbvPortAttr::default();
        // SAFETY: the context is open and the attributes have the size of the C structure.
        check(unsafe { (self.functions().query_port)(self.as_ptr(), port, &raw mut attributes) })?;
        Ok(RdmaPortState {
            active: attributes.state == IBV_PORT_ACTIVE,
            mtu_bytes: 128 << attributes.active_mtu.clamp(1, 5),
        })
    }

    /// Reads the table of GIDs of all ports, without empty entries.
    ///
    /// # Errors
    /// Error of the provider.
    pub fn gids(&self) -> io::Result<Vec<GidEntry>> {
        let mut entries = vec![IbvGidEntry::default(); GIDS_MAX];
        // SAFETY: the library writes at most `GIDS_MAX` entries of the size that it is passed.
        let count = unsafe {
            (self.functions().query_gid_table)(
                self.as_ptr(),
                entries.as_mut_ptr(),
                GIDS_MAX,
                0,
                size_of::<IbvGidEntry>(),
            )
        };
        let count = usize::try_from(count).map_err(|_| {
            i32::try_from(-count)
                .map_or_else(|_| io::Error::other("count"), io::Error::from_raw_os_error)
        })?;
        let entry = |entry: &IbvGidEntry| GidEntry {
            gid: entry.gid.0,
            index: entry.gid_index,
            port: u8::try_from(entry.port_num).unwrap_or(0),
            kind: match entry.gid_type {
                IBV_GID_TYPE_ROCE_V2 => GidKind::RoCEv2,
                IBV_GID_TYPE_ROCE_V1 => GidKind::RoCEv1,
                _ => GidKind::InfiniBand,
            },
            interface: entry.ndev_ifindex,
        };
        Ok(entries.iter().take(count).map(entry).collect())
    }
}

impl fmt::Debug for RdmaContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RdmaContext").field("name", &self.shared.name).finish_non_exhaustive()
    }
}

/// Error of a function that returns 0, an errno, or -1 with the errno set.
pub(super) fn check(result: i32) -> io::Result<()> {
    match result {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        code => Err(io::Error::from_raw_os_error(code.abs())),
    }
}
