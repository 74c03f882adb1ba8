//! Protection domains and registered memory.

use std::fmt;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::abi::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, IbvMr, IbvPd,
};
use super::device::RdmaContext;

/// Domain of memory regions and queue pairs that may use each other. Clones share it.
#[derive(Clone)]
pub struct ProtectionDomain {
    shared: Arc<OpenDomain>,
}

struct OpenDomain {
    domain: NonNull<IbvPd>,
    context: RdmaContext,
}

// SAFETY: libibverbs allows calls for a domain from any thread at the same time.
unsafe impl Send for OpenDomain {}
// SAFETY: as above.
unsafe impl Sync for OpenDomain {}

impl Drop for OpenDomain {
    fn drop(&mut self) {
        // SAFETY: allocated by `new`, freed once; regions and queue pairs keep a clone.
        unsafe { (self.context.functions().dealloc_pd)(self.domain.as_ptr()) };
    }
}

impl ProtectionDomain {
    /// Allocates a domain of the device.
    ///
    /// # Errors
    /// Error of the provider.
    pub fn new(context: &RdmaContext) -> io::Result<Self> {
        // SAFETY: the context is open.
        let domain = unsafe { (context.functions().alloc_pd)(context.as_ptr()) };
        let domain = NonNull::new(domain).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { shared: Arc::new(OpenDomain { domain, context: context.clone() }) })
    }

    /// The device of the domain.
    #[must_use]
    pub fn context(&self) -> &RdmaContext {
        &self.shared.context
    }

    pub(super) fn as_ptr(&self) -> *mut IbvPd {
        self.shared.domain.as_ptr()
    }
}

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProtectionDomain")
            .field("device", &self.context().name())
            .finish_non_exhaustive()
    }
}

/// Access of the peer to a memory region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryAccess {
    /// This end sends from it.
    Local,
    /// The peer writes into it.
    RemoteWrite,
    /// The peer reads from it.
    RemoteRead,
}

impl MemoryAccess {
    pub(super) const fn flags(self) -> i32 {
        match self {
            Self::Local => IBV_ACCESS_LOCAL_WRITE,
            Self::RemoteWrite => IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
            Self::RemoteRead => IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ,
        }
    }
}

/// Zeroed memory of whole pages, registered with a device and locked. Deregistered and unmapped when dropped; then the
/// device refuses further access.
pub struct MemoryRegion {
    region: NonNull<IbvMr>,
    memory: NonNull<u8>,
    bytes: usize,
    domain: ProtectionDomain,
}

// SAFETY: the region owns its mapping, and its bytes are reached through raw copies alone.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above; concurrent copies may mix bytes, as writes of the peer may.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// Maps and registers `bytes` of memory, rounded up to whole pages.
    ///
    /// # Errors
    /// `ENOMEM` above the limit of locked memory (`RLIMIT_MEMLOCK`), and other errors of kernel and provider.
    pub fn register(
        domain: &ProtectionDomain,
        bytes: usize,
        access: MemoryAccess,
    ) -> io::Result<Self> {
        let bytes = bytes.max(1).next_multiple_of(4096);
        // SAFETY: a new private mapping at an address that the kernel chooses.
        let memory = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let functions = domain.context().functions();
        // SAFETY: the mapping has `bytes` bytes and stays until the region is deregistered.
        let region = unsafe { (functions.reg_mr)(domain.as_ptr(), memory, bytes, access.flags()) };
        match (NonNull::new(region), NonNull::new(memory.cast::<u8>())) {
            (Some(region), Some(memory)) => {
                Ok(Self { region, memory, bytes, domain: domain.clone() })
            }
            _ => {
                let error = io::Error::last_os_error();
                // SAFETY: mapped above and not registered.
                unsafe { libc::munmap(memory, bytes) };
                Err(error)
            }
        }
    }

    /// Length in bytes, a multiple of the page size.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes
    }

    /// False: a region has at least a page.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Address for work requests of the peer.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.memory.as_ptr() as u64
    }

    /// Key for work requests of the peer.
    #[must_use]
    pub fn remote_key(&self) -> u32 {
        // SAFETY: the region is registered, and its structure begins as `IbvMr`.
        unsafe { self.region.as_ref() }.rkey
    }

    pub(super) fn local_key(&self) -> u32 {
        // SAFETY: as in `remote_key`.
        unsafe { self.region.as_ref() }.lkey
    }

    /// Copies bytes into the region.
    ///
    /// # Panics
    /// If they do not fit at `offset`.
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) {
        assert!(self.contains(offset, bytes.len()), "copy beyond the memory region");
        // SAFETY: checked above; the source is another object.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), self.memory.as_ptr().add(offset), bytes.len());
        }
    }

    /// Copies bytes out of the region. They mix where the peer writes at the same time.
    ///
    /// # Panics
    /// If the region has fewer at `offset`.
    pub fn copy_out(&self, offset: usize, bytes: &mut [u8]) {
        assert!(self.contains(offset, bytes.len()), "copy beyond the memory region");
        // SAFETY: checked above; the target is another object.
        unsafe {
            ptr::copy_nonoverlapping(
                self.memory.as_ptr().add(offset),
                bytes.as_mut_ptr(),
                bytes.len(),
            );
        }
    }

    pub(super) fn contains(&self, offset: usize, bytes: usize) -> bool {
        offset.checked_add(bytes).is_some_and(|end| end <= self.bytes)
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        let functions = self.domain.context().functions();
        // SAFETY: registered by `register`, deregistered once.
        let deregistered = unsafe { (functions.dereg_mr)(self.region.as_ptr()) } == 0;
        // A device that still has the pages keeps them.
        if deregistered {
            // SAFETY: mapped by `register`, and neither device nor slices use it any more.
            unsafe { libc::munmap(self.memory.as_ptr().cast(), self.bytes) };
        }
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}
