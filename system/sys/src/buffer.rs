//! A bounded pool of page-aligned buffers shared by readers, streams and writers.
//!
//! For: fixed memory under any load. A buffer is mapped on first use, aligned for `O_DIRECT`, and returns to the pool when
//! dropped. The pool is LIFO: the most recently returned buffer is still in the CPU cache.
//!
//! Not for: many sizes (one pool, one size) or secrets (a buffer keeps the bytes of its last use).
//!
//! Fails: [`BufferPool::take`] returns `None` once the pool is closed. When the kernel refuses memory for another buffer,
//! the pool continues with those it has; without any, the process aborts as for any failed allocation.

use std::alloc::{Layout, handle_alloc_error};
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

mod free_list;
mod mapping;

/// Primitives of `free_list`, which tests of the mover replace by those of a scheduler.
mod sync {
    pub(super) use std::sync::{Condvar, Mutex, MutexGuard};
}

use free_list::FreeList;
use mapping::Mapping;

use crate::verbs::ProtectionDomain;

/// Buffers start at a multiple of this and are a multiple of it long: enough for `O_DIRECT` on any common device.
pub const BUFFER_ALIGNMENT: usize = 4096;

/// A pool of buffers of one size. Clones share the pool.
#[derive(Clone)]
pub struct BufferPool {
    shared: Arc<PoolInner>,
}

struct PoolInner {
    len: usize,
    list: FreeList<Mapping>,
}

impl BufferPool {
    /// Creates a pool of at most `count` buffers of `len` bytes each, `len` rounded up to a multiple of
    /// [`BUFFER_ALIGNMENT`]. Maps no memory yet.
    pub fn new(count: usize, len: usize) -> Self {
        let len = len.max(1).next_multiple_of(BUFFER_ALIGNMENT);
        Self { shared: Arc::new(PoolInner { len, list: FreeList::new(count) }) }
    }

    /// Takes a buffer; blocks until one is free. `None` once the pool is closed.
    pub fn take(&self) -> Option<Buffer> {
        self.buffer(self.shared.list.take(usize::MAX, None, |is_first| self.map(is_first)))
    }

    /// Takes a buffer while fewer than `in_use_max` are in use; blocks at most `timeout`.
    pub fn take_timeout(&self, in_use_max: usize, timeout: Duration) -> Option<Buffer> {
        // A timeout too long to add to the clock is no timeout.
        let deadline = Instant::now().checked_add(timeout);
        self.buffer(self.shared.list.take(in_use_max, deadline, |is_first| self.map(is_first)))
    }

    /// Takes a buffer if one is free now.
    pub fn try_take(&self) -> Option<Buffer> {
        self.try_take_within(usize::MAX)
    }

    /// Takes a buffer if one is free now and fewer than `in_use_max` are in use.
    pub fn try_take_within(&self, in_use_max: usize) -> Option<Buffer> {
        self.buffer(self.shared.list.try_take(in_use_max, |is_first| self.map(is_first)))
    }

    fn buffer(&self, mapping: Option<Mapping>) -> Option<Buffer> {
        mapping.map(|mapping| Buffer { mapping, shared: Arc::clone(&self.shared) })
    }

    /// Maps another buffer. Without memory for the first one the process aborts.
    fn map(&self, is_first: bool) -> Option<Mapping> {
        match Mapping::new(self.shared.len) {
            Ok(mapping) => Some(mapping),
            Err(_) if !is_first => None,
            Err(_) => no_memory(self.shared.len),
        }
    }

    /// Changes the limit on allocated buffers. Surplus free buffers are unmapped at once, those in use on return.
    pub fn resize(&self, count: usize) {
        self.shared.list.resize(count);
    }

    /// Closes the pool: blocked and later takes return `None`. Buffers in use stay valid until dropped.
    pub fn close(&self) {
        self.shared.list.close();
    }

    /// Length of each buffer in bytes.
    pub fn buffer_len(&self) -> usize {
        self.shared.len
    }

    /// Limit on allocated buffers.
    pub fn limit(&self) -> usize {
        self.shared.list.lock().limit
    }

    /// Count of takes that had to wait.
    pub fn waits(&self) -> u64 {
        self.shared.list.lock().waits
    }

    /// Total time of all finished waits.
    pub fn waited(&self) -> Duration {
        self.shared.list.lock().waited
    }

    /// Allocated buffers, in use or free.
    pub fn allocated(&self) -> usize {
        self.shared.list.lock().allocated
    }

    /// Allocated buffers that are not in use.
    pub fn free(&self) -> usize {
        self.shared.list.lock().free.len()
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.list.lock();
        f.debug_struct("BufferPool")
            .field("buffer_len", &self.shared.len)
            .field("limit", &state.limit)
            .field("allocated", &state.allocated)
            .field("free", &state.free.len())
            .field("closed", &state.closed)
            .finish()
    }
}

fn no_memory(len: usize) -> ! {
    match Layout::from_size_align(len, BUFFER_ALIGNMENT) {
        Ok(layout) => handle_alloc_error(layout),
        Err(_) => handle_alloc_error(Layout::new::<usize>()),
    }
}

/// One buffer of a [`BufferPool`]; returns to its pool on drop. Its content is zeroes or the data of its last use.
pub struct Buffer {
    mapping: Mapping,
    shared: Arc<PoolInner>,
}

impl Buffer {
    /// Unmaps the buffer instead of returning it, because others may still read its pages; the pool maps another one
    /// in its place.
    pub fn discard(mut self) {
        self.mapping = Mapping::none();
    }

    /// Local key of the buffer in a domain of a device that sends from it.
    ///
    /// # Errors
    /// As [`crate::verbs::MemoryRegion::register`].
    pub(crate) fn source_key(&self, domain: &ProtectionDomain) -> io::Result<u32> {
        self.mapping.source_key(domain)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.mapping.bytes()
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.mapping.bytes_mut()
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mapping = std::mem::replace(&mut self.mapping, Mapping::none());
        if mapping.bytes().is_empty() {
            self.shared.list.forget();
        } else {
            self.shared.list.give_back(mapping);
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("len", &self.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::mapping::HUGE_PAGE;
    use super::*;
    use std::sync::mpsc;
    use std::thread;

    /// Runs `take` on another thread and waits until it is counted as waiting.
    fn blocked_take(pool: &BufferPool) -> mpsc::Receiver<Option<Buffer>> {
        let before = pool.waits();
        let (sender, taken) = mpsc::channel();
        let other = pool.clone();
        thread::spawn(move || sender.send(other.take()));
        while pool.waits() == before {
            thread::yield_now();
        }
        taken
    }

    #[test]
    fn buffers_are_aligned_and_rounded_up() {
        for len in [0, 1, 4096, 5000, 1 << 20, 2 << 20, (2 << 20) + 1, 5 << 20] {
            let pool = BufferPool::new(1, len);
            let mut buffer = pool.take().expect("a buffer");
            assert!(buffer.len() >= len.max(1));
            assert_eq!(buffer.len(), pool.buffer_len());
            assert_eq!(buffer.len() % BUFFER_ALIGNMENT, 0);
            let alignment = if buffer.len() >= HUGE_PAGE { HUGE_PAGE } else { BUFFER_ALIGNMENT };
            assert_eq!(buffer.as_ptr() as usize % alignment, 0);
            assert!(buffer.iter().all(|&byte| byte == 0));
            buffer.fill(7);
            assert_eq!(buffer.last(), Some(&7));
        }
    }

    #[test]
    fn maps_lazily_up_to_the_count() {
        let pool = BufferPool::new(2, 4096);
        assert_eq!((pool.allocated(), pool.free()), (0, 0));
        let first = pool.try_take().expect("a first buffer");
        let second = pool.try_take().expect("a second buffer");
        assert_eq!((pool.allocated(), pool.free()), (2, 0));
        assert!(pool.try_take().is_none());
        drop((first, second));
        assert_eq!((pool.allocated(), pool.free()), (2, 2));
    }

    #[test]
    fn last_returned_buffer_is_reused_first() {
        let pool = BufferPool::new(3, 4096);
        let (first, second) = (pool.take().unwrap(), pool.take().unwrap());
        let address = first.as_ptr();
        drop(second);
        drop(first);
        assert_eq!(pool.take().unwrap().as_ptr(), address);
    }

    #[test]
    fn take_waits_for_a_return() {
        let pool = BufferPool::new(1, 4096);
        let held = pool.take().unwrap();
        let taken = blocked_take(&pool);
        assert!(taken.try_recv().is_err());
        drop(held);
        assert!(taken.recv().unwrap().is_some());
        assert_eq!(pool.waits(), 1);
        assert!(pool.waited() > Duration::ZERO);
    }

    #[test]
    fn take_timeout_gives_up() {
        let pool = BufferPool::new(1, 4096);
        let held = pool.take().unwrap();
        assert!(pool.take_timeout(usize::MAX, Duration::from_millis(5)).is_none());
        assert!(pool.waited() >= Duration::from_millis(5));
        drop(held);
        assert!(pool.take_timeout(usize::MAX, Duration::ZERO).is_some());
        assert!(pool.take_timeout(usize::MAX, Duration::MAX).is_some());
    }

    #[test]
    fn takes_keep_limit_in_use() {
        let pool = BufferPool::new(4, 4096);
        let first = pool.try_take_within(1).expect("none is in use");
        assert!(pool.try_take_within(1).is_none());
        assert!(pool.take_timeout(1, Duration::ZERO).is_none());
        let second = pool.try_take_within(2).expect("one is in use");
        drop(first);
        assert!(pool.try_take_within(1).is_none(), "one is in use and one is free");
        drop(second);
        assert!(pool.take_timeout(1, Duration::ZERO).is_some());
        assert_eq!(pool.allocated(), 2);
    }

    #[test]
    fn close_ends_blocked_and_later_takes() {
        let pool = BufferPool::new(1, 4096);
        let mut held = pool.take().unwrap();
        let taken = blocked_take(&pool);
        pool.close();
        assert!(taken.recv().unwrap().is_none());
        held.fill(1);
        drop(held);
        assert_eq!((pool.allocated(), pool.free()), (0, 0));
        assert!(pool.take().is_none());
        assert!(pool.try_take().is_none());
        pool.close();
    }

    #[test]
    fn growing_wakes_the_blocked() {
        let pool = BufferPool::new(0, 4096);
        let taken = blocked_take(&pool);
        pool.resize(1);
        assert!(taken.recv().unwrap().is_some());
    }

    #[test]
    fn shrinking_frees_now_and_on_return() {
        let pool = BufferPool::new(4, 4096);
        let mut held: Vec<_> = (0..4).map(|_| pool.take().unwrap()).collect();
        held.truncate(3);
        pool.resize(1);
        assert_eq!((pool.allocated(), pool.free()), (3, 0));
        held.truncate(1);
        assert_eq!((pool.allocated(), pool.free()), (1, 0));
        assert!(pool.try_take().is_none());
        held.clear();
        assert_eq!((pool.allocated(), pool.free()), (1, 1));
    }

    #[test]
    fn many_threads_never_exceed_the_count() {
        let pool = BufferPool::new(3, 4096);
        thread::scope(|scope| {
            for mark in 0..8u8 {
                let pool = &pool;
                scope.spawn(move || {
                    for _ in 0..200 {
                        let mut buffer = pool.take().unwrap();
                        buffer.fill(mark);
                        assert!(pool.allocated() <= 3);
                        assert!(buffer.iter().all(|&byte| byte == mark));
                    }
                });
            }
        });
        assert_eq!(pool.allocated(), pool.free());
    }
}
