//! Memory for blocks, shared by all transfers of an agent within one limit.
//!
//! Each transfer has a pool of its own whose size changes as others come and go. A new transfer is
//! admitted once the other pools have shrunk to their new shares; a pool never grows beyond the limit
//! of the sum. A transfer needs at least four blocks: if these are not free, a new one is refused as
//! busy. A quarter of the memory is reserved for new transfers, because blocks of a slow transfer may
//! take minutes to come back.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use penstock_protocol::open::{Refusal, RefusalKind};
use penstock_sys::buffer::BufferPool;
use penstock_units::ByteCount;

use crate::base::limits::{BLOCKS_MIN, MEMORY_BYTES};
use crate::base::lock::lock;

/// Time for which a new transfer waits for other pools to shrink.
const SHRINK_TIMEOUT: Duration = Duration::from_secs(2);

/// Share of one transfer.
#[derive(Debug)]
struct PoolShare {
    number: u64,
    block_bytes: u64,
    /// Limit of its blocks.
    blocks: u64,
    /// `None` before its session exists.
    pool: Option<BufferPool>,
    /// Set when the transfer has ended; removed with its last block.
    over: bool,
}

impl PoolShare {
    /// Bytes that it holds or may still allocate.
    fn held(&self) -> u64 {
        let allocated = self.pool.as_ref().map_or(0, |pool| pool.allocated() as u64);
        let may = if self.over { 0 } else { self.blocks };
        allocated.max(may) * self.block_bytes
    }

    fn resize(&mut self, blocks: u64) {
        self.blocks = blocks;
        if let Some(pool) = &self.pool {
            pool.resize(usize::try_from(blocks).unwrap_or(usize::MAX));
        }
    }
}

#[derive(Debug, Default)]
struct MemoryState {
    limit_bytes: u64,
    next: u64,
    parts: Vec<PoolShare>,
}

/// Shared memory limit of an agent.
#[derive(Debug, Clone)]
pub(crate) struct BlockMemory(Arc<Mutex<MemoryState>>);

/// Lease of a share, returned on drop.
#[derive(Debug)]
pub(crate) struct MemoryLease {
    memory: BlockMemory,
    number: u64,
    bytes: u64,
}

impl BlockMemory {
    /// Creates a limit for all transfers together, in bytes.
    #[must_use]
    pub(crate) fn new(limit_bytes: u64) -> Self {
        Self(Arc::new(Mutex::new(MemoryState { limit_bytes, ..MemoryState::default() })))
    }

    /// Changes the limit; transfers above their new share shrink as blocks come back.
    pub(crate) fn set_limit(&self, limit_bytes: u64) {
        let mut parts = lock(&self.0);
        parts.limit_bytes = limit_bytes;
        parts.rebalance();
    }

    /// Bytes that transfers hold or may still allocate.
    #[cfg(test)]
    pub(crate) fn held_bytes(&self) -> u64 {
        lock(&self.0).held()
    }

    /// Leases a share for a transfer with blocks of this size.
    ///
    /// # Errors
    /// If the limit is too low for such blocks, or the memory is in use now.
    pub(crate) fn acquire(&self, block_bytes: u32) -> Result<MemoryLease, Refusal> {
        let block_bytes = u64::from(block_bytes).max(1);
        let least = BLOCKS_MIN * block_bytes;
        let mut parts = lock(&self.0);
        if least > parts.limit_bytes {
            let text = format!(
                "blocks of {} need {}, and the agent has {} for all transfers: use a smaller --block",
                ByteCount(block_bytes),
                ByteCount(least),
                ByteCount(parts.limit_bytes)
            );
            return Err(Refusal::new(RefusalKind::Request, text));
        }
        parts.tidy();
        let least_of_all: u64 = parts.alive().map(|part| BLOCKS_MIN * part.block_bytes).sum();
        if least_of_all + least > parts.limit_bytes {
            let text = format!(
                "its memory for blocks ({}) is all in use: wait, or use a smaller --block",
                ByteCount(parts.limit_bytes)
            );
            return Err(Refusal::new(RefusalKind::Busy, text));
        }
        parts.next += 1;
        let number = parts.next;
        parts.parts.push(PoolShare { number, block_bytes, blocks: 0, pool: None, over: false });
        drop(parts);
        // From here on the lease returns it in every case.
        let mut hold = MemoryLease { memory: self.clone(), number, bytes: 0 };
        let start = Instant::now();
        loop {
            let mut parts = lock(&self.0);
            parts.rebalance();
            let blocks = parts.find(number).map_or(0, |part| part.blocks);
            if blocks >= BLOCKS_MIN {
                hold.bytes = blocks * block_bytes;
                return Ok(hold);
            }
            drop(parts);
            if start.elapsed() > SHRINK_TIMEOUT {
                let text = "its memory for blocks is still in use by other transfers: wait";
                return Err(Refusal::new(RefusalKind::Busy, text));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Redistributes free memory among transfers.
    pub(crate) fn rebalance(&self) {
        lock(&self.0).rebalance();
    }
}

impl MemoryState {
    fn alive(&self) -> impl Iterator<Item = &PoolShare> {
        self.parts.iter().filter(|part| !part.over)
    }

    fn find(&mut self, number: u64) -> Option<&mut PoolShare> {
        self.parts.iter_mut().find(|part| part.number == number)
    }

    fn held(&self) -> u64 {
        self.parts.iter().map(PoolShare::held).sum()
    }

    /// Bytes reserved for new transfers, of which each gets its minimum.
    const fn reserve(&self) -> u64 {
        self.limit_bytes / 4
    }

    fn tidy(&mut self) {
        self.parts.retain(|part| !part.over || part.held() > 0);
    }

    /// Moves all towards equal shares within the minimum of each and the memory still held: first
    /// shrink those above their share, then grow others into free memory.
    fn rebalance(&mut self) {
        self.tidy();
        let shares = self.shares();
        for (part, share) in self.parts.iter_mut().zip(&shares) {
            if !part.over && part.blocks > *share {
                part.resize(*share);
            }
        }
        for (index, share) in shares.into_iter().enumerate() {
            let free = self.limit_bytes.saturating_sub(self.held());
            let spare = free.saturating_sub(self.reserve());
            let part = &mut self.parts[index];
            let is_new = part.blocks == 0 && free >= BLOCKS_MIN * part.block_bytes;
            let least = if is_new { BLOCKS_MIN } else { 0 };
            let blocks = share.min(least.max(part.blocks + spare / part.block_bytes));
            // A transfer with less than the minimum would stall.
            if !part.over && blocks > part.blocks && blocks >= BLOCKS_MIN {
                part.resize(blocks);
            }
        }
    }

    /// Blocks for each transfer: the minimum plus an equal part of the rest, up to the useful maximum.
    fn shares(&self) -> Vec<u64> {
        let least: u64 = self.alive().map(|part| BLOCKS_MIN * part.block_bytes).sum();
        let mut left = self.limit_bytes.saturating_sub(self.reserve()).saturating_sub(least);
        let mut takers = self.alive().count() as u64;
        let share = |part: &PoolShare| {
            if part.over {
                return 0;
            }
            let least = BLOCKS_MIN * part.block_bytes;
            let more = (left / takers.max(1)).min(MEMORY_BYTES.saturating_sub(least));
            let blocks = BLOCKS_MIN + more / part.block_bytes;
            left -= (blocks - BLOCKS_MIN) * part.block_bytes;
            takers -= 1;
            blocks
        };
        self.parts.iter().map(share).collect()
    }
}

impl MemoryLease {
    /// Initial pool size in bytes.
    #[must_use]
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Attaches the session's pool, which is resized from here on.
    pub(crate) fn attach(&self, pool: BufferPool) {
        let mut parts = lock(&self.memory.0);
        if let Some(part) = parts.find(self.number) {
            part.pool = Some(pool);
            part.resize(part.blocks);
        }
    }
}

impl Drop for MemoryLease {
    fn drop(&mut self) {
        let mut parts = lock(&self.memory.0);
        if let Some(part) = parts.find(self.number) {
            part.over = true;
            // The session is over: waiting for blocks ends.
            if let Some(pool) = &part.pool {
                pool.close();
            }
        }
        parts.rebalance();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB_BYTES: u64 = 1 << 20;

    fn pool(hold: &MemoryLease, block_bytes: u64) -> BufferPool {
        let pool = BufferPool::new((hold.bytes() / block_bytes) as usize, block_bytes as usize);
        hold.attach(pool.clone());
        pool
    }

    #[test]
    fn memory_sum_stays_within_limit() {
        let memory = BlockMemory::new(100 * MIB_BYTES);
        let first = memory.acquire(4 << 20).expect("the first");
        assert_eq!(first.bytes(), MEMORY_BYTES);
        let first_pool = pool(&first, 4 * MIB_BYTES);
        let taken: Vec<_> = std::iter::from_fn(|| first_pool.try_take()).collect();
        assert_eq!(taken.len(), 16);
        // A second one gets what is free at once, and no more than that while the first holds its own.
        let second = memory.acquire(1 << 20).expect("the second");
        let second_pool = pool(&second, MIB_BYTES);
        assert_eq!((second.bytes(), first_pool.limit()), (11 * MIB_BYTES, 10));
        assert_eq!(memory.held_bytes(), 75 * MIB_BYTES);
        drop(taken);
        memory.rebalance();
        assert_eq!(first_pool.allocated(), 10);
        assert!(second_pool.limit() > 11 && memory.held_bytes() <= 75 * MIB_BYTES);
        // Others come until nobody could have four blocks of his own.
        let more: Vec<_> = std::iter::from_fn(|| memory.acquire(4 << 20).ok()).take(20).collect();
        assert_eq!(more.len(), 5);
        assert!(memory.held_bytes() <= 100 * MIB_BYTES);
        let refusal = memory.acquire(4 << 20).expect_err("no more");
        assert_eq!(refusal.kind, RefusalKind::Busy);
        drop((more, second));
        assert_eq!(first_pool.limit(), 16);
        assert!(second_pool.take().is_none(), "its session is over");
    }

    #[test]
    fn held_blocks_leave_reserve_for_newcomers() {
        let memory = BlockMemory::new(1024 * MIB_BYTES);
        let slow = || {
            let hold = memory.acquire(4 << 20).ok()?;
            let pool = pool(&hold, 4 * MIB_BYTES);
            let taken: Vec<_> = std::iter::from_fn(|| pool.try_take()).collect();
            Some((hold, taken))
        };
        let all: Vec<_> = std::iter::from_fn(slow).take(28).collect();
        assert_eq!(all.len(), 28);
        assert_eq!(memory.held_bytes(), 1024 * MIB_BYTES);
        let blocks: Vec<_> = all.iter().map(|(_, taken)| taken.len()).collect();
        assert_eq!((blocks[0], blocks[11], blocks[12], blocks[27]), (16, 16, 4, 4));
    }

    #[test]
    fn newcomer_waits_for_minimum_share() {
        let memory = BlockMemory::new(32 * MIB_BYTES);
        let first = memory.acquire(4 << 20).expect("the first");
        let first_pool = pool(&first, 4 * MIB_BYTES);
        let taken: Vec<_> = std::iter::from_fn(|| first_pool.try_take()).collect();
        assert_eq!(taken.len(), 6);
        let waits = std::thread::spawn({
            let memory = memory.clone();
            move || memory.acquire(4 << 20).map(|hold| hold.bytes())
        });
        while first_pool.limit() > 4 {
            std::thread::yield_now();
        }
        drop(taken);
        assert_eq!(waits.join().expect("a thread"), Ok(16 * MIB_BYTES));
        assert_eq!(memory.acquire(16 << 20).expect_err("too large").kind, RefusalKind::Request);
    }
}
