//! The memory for blocks that all transfers of an agent share: a bound on their sum.
//!
//! Each transfer has a pool of its own, of which the size changes as others come and go. A newcomer is
//! let in once the pools of the others have come down to their new shares; a pool never grows beyond
//! what the sum allows. What a transfer cannot do with less than is four blocks: when even that is not
//! there, the newcomer is told to come again. A quarter of the memory is for newcomers and nobody grows
//! into it: blocks of a slow transfer may take minutes to come back.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use penstock_protocol::open::{Refusal, RefusalKind};
use penstock_sys::buffer::BufferPool;
use penstock_units::ByteCount;

use crate::granting::MEMORY_BYTES;
use crate::session::{BLOCKS_MIN, lock};

/// How long a newcomer waits for the others to come down.
const SHRINK_WITHIN: Duration = Duration::from_secs(2);

/// A transfer's part of the memory.
#[derive(Debug)]
struct Part {
    number: u64,
    block_bytes: u64,
    /// Blocks that it may have.
    blocks: u64,
    /// None before its session is made.
    pool: Option<BufferPool>,
    /// Nobody needs it any more, and it goes when its last block has come back.
    over: bool,
}

impl Part {
    /// Bytes that it has or may still take.
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
struct Parts {
    limit_bytes: u64,
    next: u64,
    parts: Vec<Part>,
}

/// Memory that is shared.
#[derive(Debug, Clone)]
pub struct Memory(Arc<Mutex<Parts>>);

/// A transfer's hold on its part; the part is given back when this is dropped.
#[derive(Debug)]
pub struct Hold {
    memory: Memory,
    number: u64,
    bytes: u64,
}

impl Memory {
    /// So much for all transfers together.
    #[must_use]
    pub fn new(limit_bytes: u64) -> Self {
        Self(Arc::new(Mutex::new(Parts { limit_bytes, ..Parts::default() })))
    }

    /// Changes how much there is; who has more than is left of it comes down as its blocks come back.
    pub fn set_limit(&self, limit_bytes: u64) {
        let mut parts = lock(&self.0);
        parts.limit_bytes = limit_bytes;
        parts.share_out();
    }

    /// Bytes that transfers hold or may still take.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        lock(&self.0).held()
    }

    /// A part for a transfer with blocks of this size.
    ///
    /// # Errors
    /// When the limit is too low for such blocks, or everything is in use now.
    pub fn enter(&self, block_bytes: u32) -> Result<Hold, Refusal> {
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
        parts.parts.push(Part { number, block_bytes, blocks: 0, pool: None, over: false });
        drop(parts);
        // From here on it is given back whatever happens.
        let mut hold = Hold { memory: self.clone(), number, bytes: 0 };
        let start = Instant::now();
        loop {
            let mut parts = lock(&self.0);
            parts.share_out();
            let blocks = parts.find(number).map_or(0, |part| part.blocks);
            if blocks >= BLOCKS_MIN {
                hold.bytes = blocks * block_bytes;
                return Ok(hold);
            }
            drop(parts);
            if start.elapsed() > SHRINK_WITHIN {
                let text = "its memory for blocks is still in use by other transfers: wait";
                return Err(Refusal::new(RefusalKind::Busy, text));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Gives what was given back to those who can use it.
    pub fn share_out(&self) {
        lock(&self.0).share_out();
    }
}

impl Parts {
    fn alive(&self) -> impl Iterator<Item = &Part> {
        self.parts.iter().filter(|part| !part.over)
    }

    fn find(&mut self, number: u64) -> Option<&mut Part> {
        self.parts.iter_mut().find(|part| part.number == number)
    }

    fn held(&self) -> u64 {
        self.parts.iter().map(Part::held).sum()
    }

    /// What only newcomers may take, and of it no more than the least.
    const fn reserve(&self) -> u64 {
        self.limit_bytes / 4
    }

    fn tidy(&mut self) {
        self.parts.retain(|part| !part.over || part.held() > 0);
    }

    /// Brings everyone to an equal share, as far as the least of each and what is still held allow:
    /// first those who have too much come down, then others grow into what is free.
    fn share_out(&mut self) {
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
            // Less than the least would be a transfer that stands still.
            if !part.over && blocks > part.blocks && blocks >= BLOCKS_MIN {
                part.resize(blocks);
            }
        }
    }

    /// Blocks for each: the least, and of what is left as much as the others, up to what is of use.
    fn shares(&self) -> Vec<u64> {
        let least: u64 = self.alive().map(|part| BLOCKS_MIN * part.block_bytes).sum();
        let mut left = self.limit_bytes.saturating_sub(self.reserve()).saturating_sub(least);
        let mut takers = self.alive().count() as u64;
        let share = |part: &Part| {
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

impl Hold {
    /// Bytes that it begins with: the size of the pool that is to be made.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The pool that was made; it changes its size with what others need.
    pub fn attach(&self, pool: BufferPool) {
        let mut parts = lock(&self.memory.0);
        if let Some(part) = parts.find(self.number) {
            part.pool = Some(pool);
            part.resize(part.blocks);
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut parts = lock(&self.memory.0);
        if let Some(part) = parts.find(self.number) {
            part.over = true;
            // Its session is over: what waits for a block need not.
            if let Some(pool) = &part.pool {
                pool.close();
            }
        }
        parts.share_out();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn pool(hold: &Hold, block_bytes: u64) -> BufferPool {
        let pool = BufferPool::new((hold.bytes() / block_bytes) as usize, block_bytes as usize);
        hold.attach(pool.clone());
        pool
    }

    #[test]
    fn the_sum_holds_while_transfers_come_and_go() {
        let memory = Memory::new(100 * MIB);
        let first = memory.enter(4 << 20).expect("the first");
        assert_eq!(first.bytes(), MEMORY_BYTES);
        let first_pool = pool(&first, 4 * MIB);
        let taken: Vec<_> = std::iter::from_fn(|| first_pool.try_take()).collect();
        assert_eq!(taken.len(), 16);
        // A second one gets what is free at once, and no more than that while the first holds its own.
        let second = memory.enter(1 << 20).expect("the second");
        let second_pool = pool(&second, MIB);
        assert_eq!((second.bytes(), first_pool.limit()), (11 * MIB, 10));
        assert_eq!(memory.held_bytes(), 75 * MIB);
        drop(taken);
        memory.share_out();
        assert_eq!(first_pool.allocated(), 10);
        assert!(second_pool.limit() > 11 && memory.held_bytes() <= 75 * MIB);
        // Others come until nobody could have four blocks of his own.
        let more: Vec<_> = std::iter::from_fn(|| memory.enter(4 << 20).ok()).take(20).collect();
        assert_eq!(more.len(), 5);
        assert!(memory.held_bytes() <= 100 * MIB);
        let refusal = memory.enter(4 << 20).expect_err("no more");
        assert_eq!(refusal.kind, RefusalKind::Busy);
        drop((more, second));
        assert_eq!(first_pool.limit(), 16);
        assert!(second_pool.take().is_none(), "its session is over");
    }

    #[test]
    fn those_who_give_nothing_back_leave_room_for_newcomers() {
        let memory = Memory::new(1024 * MIB);
        let slow = || {
            let hold = memory.enter(4 << 20).ok()?;
            let pool = pool(&hold, 4 * MIB);
            let taken: Vec<_> = std::iter::from_fn(|| pool.try_take()).collect();
            Some((hold, taken))
        };
        let all: Vec<_> = std::iter::from_fn(slow).take(28).collect();
        assert_eq!(all.len(), 28);
        assert_eq!(memory.held_bytes(), 1024 * MIB);
        let blocks: Vec<_> = all.iter().map(|(_, taken)| taken.len()).collect();
        assert_eq!((blocks[0], blocks[11], blocks[12], blocks[27]), (16, 16, 4, 4));
    }

    #[test]
    fn a_newcomer_waits_for_the_least_that_it_needs() {
        let memory = Memory::new(32 * MIB);
        let first = memory.enter(4 << 20).expect("the first");
        let first_pool = pool(&first, 4 * MIB);
        let taken: Vec<_> = std::iter::from_fn(|| first_pool.try_take()).collect();
        assert_eq!(taken.len(), 6);
        let waits = std::thread::spawn({
            let memory = memory.clone();
            move || memory.enter(4 << 20).map(|hold| hold.bytes())
        });
        while first_pool.limit() > 4 {
            std::thread::yield_now();
        }
        drop(taken);
        assert_eq!(waits.join().expect("a thread"), Ok(16 * MIB));
        assert_eq!(memory.enter(16 << 20).expect_err("too large").kind, RefusalKind::Request);
    }
}
