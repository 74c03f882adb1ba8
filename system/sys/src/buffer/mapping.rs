//! Page-aligned memory straight from the kernel, owned.
//!
//! For: buffers that `O_DIRECT` takes and RDMA devices send from, in huge pages where they fit. Not for: sharing between
//! processes.
//!
//! Fails with the error of `mmap`.

use std::io;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::{Mutex, PoisonError};

use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::BUFFER_ALIGNMENT;
use crate::verbs::{ProtectionDomain, SourceRegistrations};

/// Alignment of buffers of at least this size, for which transparent huge pages are requested, in bytes.
pub(super) const HUGE_PAGE: usize = 2 << 20;

/// Anonymous private memory, owned.
pub(super) struct Mapping {
    start: NonNull<u8>,
    len: usize,
    registrations: Mutex<SourceRegistrations>,
}

// SAFETY: the memory belongs to this value alone and is tied to no thread.
unsafe impl Send for Mapping {}
// SAFETY: a shared reference allows reading only, and nothing else writes.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// An empty mapping, which replaces that of a dropped buffer.
    pub(super) const fn none() -> Self {
        Self::at(NonNull::dangling(), 0)
    }

    const fn at(start: NonNull<u8>, len: usize) -> Self {
        Self { start, len, registrations: Mutex::new(SourceRegistrations::NONE) }
    }

    /// `len` zeroed bytes, `len` being a multiple of the page size; huge pages where they fit and the system has them.
    pub(super) fn new(len: usize) -> io::Result<Self> {
        if len < HUGE_PAGE {
            return map(len);
        }
        // Maps one huge page more than needed, then unmaps the parts outside the aligned range.
        let whole = map(len.checked_add(HUGE_PAGE).ok_or(io::ErrorKind::OutOfMemory)?)?;
        let before = whole.start.as_ptr().align_offset(HUGE_PAGE);
        if before > HUGE_PAGE {
            return map(len);
        }
        let (_, rest) = whole.split(before);
        let (buffer, _) = rest.split(len);
        // Advice only: without huge pages the buffer is slower.
        // SAFETY: the range is a mapping this value owns, and this advice changes no byte of it.
        let _ = unsafe {
            rustix::mm::madvise(buffer.start.as_ptr().cast(), len, Advice::LinuxHugepage)
        };
        Ok(buffer)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: `len` readable bytes, zeroed by the kernel, that only this value refers to and that live as long as it
        // does; none at all in `none()`. The length is below `isize::MAX`, as that of every mapping is.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; they are writable too, and `&mut self` makes this borrow the only one.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Local key of the memory in a domain of a device that sends from it.
    ///
    /// # Errors
    /// As [`crate::verbs::MemoryRegion::register`].
    pub(super) fn source_key(&self, domain: &ProtectionDomain) -> io::Result<u32> {
        let mut registrations = self.registrations.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: this value owns the range, and `drop` unmaps it after the end of all registrations.
        unsafe { registrations.key(domain, self.start, self.len) }
    }

    /// Two owners for the two parts; `at` is a multiple of the page size and at most the length.
    fn split(self, at: usize) -> (Self, Self) {
        assert!(at <= self.len && at.is_multiple_of(BUFFER_ALIGNMENT));
        let (start, len) = (self.start, self.len);
        std::mem::forget(self);
        // SAFETY: `at` is within the mapping, or its end.
        let middle = unsafe { start.add(at) };
        (Self::at(start, at), Self::at(middle, len - at))
    }
}

fn map(len: usize) -> io::Result<Mapping> {
    // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no memory that anything refers to.
    let start = unsafe {
        rustix::mm::mmap_anonymous(
            ptr::null_mut(),
            len,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )?
    };
    let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
    Ok(Mapping::at(start, len))
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let registrations = self.registrations.get_mut().unwrap_or_else(PoisonError::into_inner);
        // A device that still has the pages keeps them.
        if !registrations.deregister() || self.len == 0 {
            return;
        }
        // SAFETY: this value owns exactly this range, and no borrow of it outlives the value.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "unmapping a buffer: {unmapped:?}");
    }
}
