//! Protection domains and registered memory.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::abi::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, IbvMr, IbvPd,
};
use super::device::RdmaContext;
use crate::buffer::Buffer;

/// Domains in which one piece of memory is registered at a time.
const SOURCE_REGISTRATIONS_MAX: usize = 2;

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

    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
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

/// Registration of memory with a device, which locks its pages. The device refuses further access once it is dropped.
pub(crate) struct Registration {
    region: Option<NonNull<IbvMr>>,
    key: u32,
    remote_key: u32,
    domain: ProtectionDomain,
}

// SAFETY: libibverbs allows calls for a region from any thread.
unsafe impl Send for Registration {}
// SAFETY: as above; a shared reference reads the keys alone.
unsafe impl Sync for Registration {}

impl Registration {
    /// Registers `bytes` of memory with `flags` of access, 0 for memory that the device only reads.
    ///
    /// # Safety
    /// The memory is mapped, and is unmapped only after [`Self::deregister`] returned true.
    unsafe fn new(
        domain: &ProtectionDomain,
        memory: NonNull<u8>,
        bytes: usize,
        flags: i32,
    ) -> io::Result<Self> {
        let functions = domain.context().functions();
        // SAFETY: the domain is allocated; the caller keeps the memory mapped.
        let region =
            unsafe { (functions.reg_mr)(domain.as_ptr(), memory.as_ptr().cast(), bytes, flags) };
        let region = NonNull::new(region).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the region is registered, and its structure begins as `IbvMr`.
        let (key, remote_key) = unsafe { (region.as_ref().lkey, region.as_ref().rkey) };
        Ok(Self { region: Some(region), key, remote_key, domain: domain.clone() })
    }

    /// Ends the registration. False if the device still has the pages.
    fn deregister(&mut self) -> bool {
        let functions = self.domain.context().functions();
        // SAFETY: registered by `new`, deregistered once.
        self.region
            .take()
            .is_none_or(|region| unsafe { (functions.dereg_mr)(region.as_ptr()) } == 0)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.deregister();
    }
}

/// Registrations of one piece of memory that devices only read, at most one for each domain.
#[derive(Default)]
pub(crate) struct SourceRegistrations(Vec<Registration>);

impl SourceRegistrations {
    pub(crate) const NONE: Self = Self(Vec::new());

    /// Returns the local key of the memory in a domain, with which it is registered now unless it was before.
    ///
    /// # Safety
    /// The memory is the same in each call, is mapped, and is unmapped only after [`Self::deregister`] returned true.
    pub(crate) unsafe fn key(
        &mut self,
        domain: &ProtectionDomain,
        memory: NonNull<u8>,
        bytes: usize,
    ) -> io::Result<u32> {
        if let Some(known) = self.0.iter().find(|one| one.domain.is(domain)) {
            return Ok(known.key);
        }
        if self.0.len() == SOURCE_REGISTRATIONS_MAX {
            self.0.remove(0);
        }
        // SAFETY: as the caller states.
        let added = unsafe { Registration::new(domain, memory, bytes, 0)? };
        let key = added.key;
        self.0.push(added);
        Ok(key)
    }

    /// Ends all registrations. False if a device still has the pages.
    pub(crate) fn deregister(&mut self) -> bool {
        let mut all_ended = true;
        for mut registration in self.0.drain(..) {
            all_ended &= registration.deregister();
        }
        all_ended
    }
}

/// Local memory of a request.
#[derive(Debug, Clone, Copy)]
pub struct LocalMemory<'a> {
    pub(super) address: u64,
    pub(super) bytes: u32,
    pub(super) key: u32,
    memory: PhantomData<&'a [u8]>,
}

impl<'a> LocalMemory<'a> {
    /// Part of a buffer, from which the device sends. The caller keeps the buffer until the request is complete: the device
    /// sends what the buffer has by then. The buffer stays registered with the device until it is unmapped, or is
    /// registered with two other domains.
    ///
    /// # Errors
    /// As [`MemoryRegion::register`].
    ///
    /// # Panics
    /// If the part is not within the buffer.
    pub fn of_buffer(
        buffer: &'a Buffer,
        domain: &ProtectionDomain,
        part: Range<usize>,
    ) -> io::Result<Self> {
        let key = buffer.source_key(domain)?;
        let part = &buffer[part];
        let bytes = u32::try_from(part.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        Ok(Self { address: part.as_ptr() as u64, bytes, key, memory: PhantomData })
    }
}

/// Zeroed memory of whole pages, registered with a device and locked. Deregistered and unmapped when dropped; then the
/// device refuses further access.
pub struct MemoryRegion {
    registration: Registration,
    memory: NonNull<u8>,
    bytes: usize,
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
        let mapped = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = NonNull::new(mapped.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: mapped above, and unmapped by `drop` after the registration.
        let registration = unsafe { Registration::new(domain, memory, bytes, access.flags()) };
        if registration.is_err() {
            // SAFETY: mapped above and not registered.
            unsafe { libc::munmap(mapped, bytes) };
        }
        Ok(Self { registration: registration?, memory, bytes })
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
        self.registration.remote_key
    }

    /// Part of the region, for a request of this end.
    ///
    /// # Panics
    /// If the part is not within the region.
    #[must_use]
    pub fn part(&self, offset: usize, bytes: u32) -> LocalMemory<'_> {
        assert!(self.contains(offset, bytes as usize), "a request beyond its region");
        let address = self.address() + offset as u64;
        LocalMemory { address, bytes, key: self.registration.key, memory: PhantomData }
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

    fn contains(&self, offset: usize, bytes: usize) -> bool {
        offset.checked_add(bytes).is_some_and(|end| end <= self.bytes)
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // A device that still has the pages keeps them.
        if self.registration.deregister() {
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
