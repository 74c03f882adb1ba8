//! Read-only memory with a fixed pattern: the payload of a memory-to-memory test.
//!
//! It is mapped on huge pages where available, so that a segment is contiguous in physical memory. Nothing writes to it
//! after `new`: the kernel may hold references to its pages (vmsplice) without a change of bytes on the wire.

use std::io;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Transparent huge pages on every architecture we build for.
const HUGE_PAGE: usize = 2 << 20;

/// A read-only buffer of incompressible bytes.
#[derive(Debug)]
pub struct PatternMemory {
    mapping: NonNull<u8>,
    mapped_bytes: usize,
    start: usize,
    length: usize,
    huge_advised: bool,
}

// SAFETY: after `new` the memory is only ever read, so it may be used from any thread.
unsafe impl Send for PatternMemory {}
// SAFETY: as above; there is no interior mutability.
unsafe impl Sync for PatternMemory {}

impl PatternMemory {
    /// Maps `length` bytes and fills them with a fixed pseudo-random sequence.
    ///
    /// # Errors
    /// The error of `mmap`, if memory is exhausted.
    pub fn new(length: usize) -> io::Result<Self> {
        let length = length.max(1);
        // Room to start on a huge page's boundary.
        let mapped_bytes = length.next_multiple_of(HUGE_PAGE) + HUGE_PAGE;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choosing.
        let mapping = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                mapped_bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }?;
        let mapping = NonNull::new(mapping.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let address = mapping.as_ptr() as usize;
        let start = address.next_multiple_of(HUGE_PAGE) - address;
        let mut memory = Self { mapping, mapped_bytes, start, length, huge_advised: false };
        let first = memory.first();
        // SAFETY: the range lies inside the mapping: `start` is below one huge page and
        // `mapped_bytes` has one to spare. Advice does not change content.
        memory.huge_advised = unsafe {
            madvise(first.cast(), length.next_multiple_of(HUGE_PAGE), Advice::LinuxHugepage)
        }
        .is_ok();
        // SAFETY: inside the mapping, zeroed by the kernel, and not yet shared with anyone.
        fill(unsafe { std::slice::from_raw_parts_mut(first, length) });
        Ok(memory)
    }

    /// The pattern's bytes, all initialised.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `start..start + length` lies inside the mapping, is initialised, and nothing
        // writes to it while `self` lives.
        unsafe { std::slice::from_raw_parts(self.first(), self.length) }
    }

    /// True if the kernel accepted `MADV_HUGEPAGE`; it may still lack huge pages.
    #[must_use]
    pub const fn huge_pages_advised(&self) -> bool {
        self.huge_advised
    }

    fn first(&self) -> *mut u8 {
        // SAFETY: `start` is inside the mapping.
        unsafe { self.mapping.as_ptr().add(self.start) }
    }
}

impl Drop for PatternMemory {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `new`; no slice outlives `self`. Pages the kernel
        // still references for data in flight live until it lets go of them.
        let _ = unsafe { munmap(self.mapping.as_ptr().cast(), self.mapped_bytes) };
    }
}

/// Fills with a xorshift sequence, which links and file systems cannot compress.
pub(super) fn fill(bytes: &mut [u8]) {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    for chunk in bytes.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::PatternMemory;

    #[test]
    fn pattern_is_deterministic_and_varies() {
        let one = PatternMemory::new(100_003).unwrap();
        let two = PatternMemory::new(100_003).unwrap();
        assert_eq!(one.bytes().len(), 100_003);
        assert_eq!(one.bytes(), two.bytes());
        assert_ne!(one.bytes()[..4096], one.bytes()[4096..8192]);
    }
}
