//! The memory of all connections' buffers: blocks of one size from a bounded pool, taken as bytes come and given back as
//! they go.

use alloc::{boxed::Box, collections::VecDeque, vec::Vec};

/// Bytes of a block: a full segment and some more.
pub(crate) const BLOCK_BYTES: usize = 2048;
/// What any connection may hold in one direction as long as there is a free block at all.
const MIN_BLOCKS: usize = 2;
/// What a connection may hold in one direction before it has shown that it needs more, and where less than half of the pool is
/// free: 256 KiB.
pub(crate) const FIRST_BLOCKS: usize = 128;
/// What no connection may exceed in one direction: 4 MiB. As much may be on its way to a peer or from it, so where that takes
/// 50 ms there and back a connection carries 80 MB/s.
pub(crate) const MAX_BLOCKS: usize = 2048;
/// The part of the pool that connections may tell their peers of beyond [`FIRST_BLOCKS`] each, at most: 1/2. What a peer was told
/// of it may send at any time, also when it has become others'.
const GRANTED_DIVISOR: usize = 2;
/// A period of [`Grants`]. A window that does not hold its sender back for so long is too large.
pub(crate) const UNUSED_NS: u64 = 1_000_000_000;
/// The part of the pool that only connections with few blocks can use: 1/4.
const RESERVE_DIVISOR: usize = 4;
/// A connection may hold a quarter of what is free behind the reserve. So a single one gets a fifth of that, a hundred
/// have 96 % of it, and there is always something left for the next.
const SHARE_DIVISOR: usize = 4;
/// Memory is short while less than this part of the pool is free: 1/64. Where it was, this much is enough again: 1/8.
const SHORT_DIVISOR: usize = 64;
const PLENTY_DIVISOR: usize = 8;
/// Blocks kept for the next user instead of being given back to the heap: this many, or this share of all where there are few.
const MAX_CACHED_BLOCKS: usize = 256;
const CACHED_DIVISOR: usize = 8;

/// A piece of a buffer.
pub(crate) type Block = Box<[u8; BLOCK_BYTES]>;

/// Blocks that peers are told of beyond what they are at first, by when they were of use the last time: so others can have what
/// has not been of use for a period or longer, without a look at each connection.
#[derive(Debug, Default)]
struct Grants {
    /// In this period, which is the present one, ...
    current: usize,
    /// ... in the one before it ...
    previous: usize,
    /// ... and before that.
    older: usize,
    period: u32,
    /// When it began.
    began_ns: u64,
    /// What was of use in earlier periods only has been taken back.
    first: u32,
}

impl Grants {
    fn blocks(&self) -> usize {
        self.current + self.previous + self.older
    }

    /// Begins another period if this one is over, and one more if nothing was of use in the next one. Time may seem to go back:
    /// a connection's is that of what it heard last.
    #[inline(never)]
    fn pass(&mut self, now_ns: u64) {
        let passed_ns = now_ns.saturating_sub(self.began_ns);
        if passed_ns <= UNUSED_NS {
            return;
        }
        self.older += self.previous;
        (self.previous, self.current, self.began_ns) = (self.current, 0, now_ns);
        self.period += 1;
        if passed_ns / 2 > UNUSED_NS {
            self.older += core::mem::take(&mut self.previous);
            self.period += 1;
        }
    }

    /// Those of a period.
    fn of(&mut self, period: u32) -> &mut usize {
        match self.period - period {
            0 => &mut self.current,
            1 => &mut self.previous,
            _ => &mut self.older,
        }
    }
}

/// The blocks that there may be.
#[derive(Debug)]
pub(crate) struct Pool {
    limit: usize,
    used: usize,
    /// Blocks that may be taken from the heap until somebody says again what it has.
    room: usize,
    grants: Grants,
    cached: Vec<Block>,
}

impl Pool {
    pub fn new(limit_bytes: usize) -> Pool {
        let limit = limit_bytes / BLOCK_BYTES;
        let cached = Vec::with_capacity(MAX_CACHED_BLOCKS.min(limit / CACHED_DIVISOR));
        Pool { limit, used: 0, room: usize::MAX, grants: Grants::default(), cached }
    }

    /// Bytes of the blocks that are in use.
    pub fn used_bytes(&self) -> usize {
        self.used * BLOCK_BYTES
    }

    /// Bytes of memory that it has: of the blocks that are in use, and of those that are kept for the next user.
    #[inline]
    pub fn held_bytes(&self) -> usize {
        (self.used + self.cached.len()) * BLOCK_BYTES
    }

    /// Bytes of the blocks that may be in use.
    pub fn limit_bytes(&self) -> usize {
        self.limit * BLOCK_BYTES
    }

    pub fn has_free(&self) -> bool {
        self.used < self.limit
    }

    /// Takes no more than this from the heap until the next call.
    #[inline]
    pub fn set_room(&mut self, bytes: u64) {
        self.room = usize::try_from(bytes).unwrap_or(usize::MAX) / BLOCK_BYTES;
    }

    /// Blocks that are free, by the limit and by what the heap has.
    #[inline]
    fn free(&self) -> usize {
        (self.limit - self.used).min(self.room.saturating_add(self.cached.len()))
    }

    /// Whether next to nothing is left, not even for connections with few blocks.
    #[inline]
    pub fn is_short(&self) -> bool {
        let free = self.free();
        free < (self.used + free).div_ceil(SHORT_DIVISOR)
    }

    /// Whether so much is free that nobody has to give anything back.
    #[inline]
    pub fn has_plenty(&self) -> bool {
        let free = self.free();
        free >= (self.used + free) / PLENTY_DIVISOR
    }

    /// Most blocks that a buffer which holds `held` of them may hold now.
    #[inline]
    pub fn allowance(&self, held: usize) -> usize {
        self.allowance_from(MIN_BLOCKS, held)
    }

    /// The same for a buffer that is of little use with less than `least` blocks, and may hold them for as long as there are
    /// some behind the reserve.
    #[inline]
    pub fn allowance_from(&self, least: usize, held: usize) -> usize {
        let free = self.limit - self.used;
        let unreserved = free.saturating_sub(self.limit / RESERVE_DIVISOR);
        // Of what it holds now and may take now, together, it may have 1/SHARE_DIVISOR of what stays free.
        let more = unreserved.saturating_sub(SHARE_DIVISOR * held) / (SHARE_DIVISOR + 1);
        let least = least.min(held + unreserved).max(MIN_BLOCKS.min(held + free));
        let most = if self.used < self.limit / 2 { MAX_BLOCKS } else { FIRST_BLOCKS };
        (held + more).clamp(least, most)
    }

    /// Lets a peer be told of so many more blocks than it is at first, if there are so many left to tell of, or some have those
    /// that do not use them. What it had so far is to be [kept](Self::keep) before. Returns the present period.
    pub fn grant(&mut self, blocks: usize, now_ns: u64) -> Option<u32> {
        let grants = &mut self.grants;
        grants.pass(now_ns);
        let left = (self.limit / GRANTED_DIVISOR).saturating_sub(blocks);
        if grants.blocks() > left {
            (grants.older, grants.first) = (0, grants.period.saturating_sub(1));
        }
        let can_grant = grants.blocks() <= left;
        if can_grant {
            grants.current += blocks;
        }
        can_grant.then_some(grants.period)
    }

    /// Notes that so many blocks, which were granted or kept in this period, are made use of now. Returns the present one; none
    /// if others have them by now.
    pub fn keep(&mut self, blocks: usize, period: u32, now_ns: u64) -> Option<u32> {
        self.grants.pass(now_ns);
        let is_kept = blocks == 0 || period >= self.grants.first;
        if is_kept {
            *self.grants.of(period) -= blocks;
            self.grants.current += blocks;
        }
        is_kept.then_some(self.grants.period)
    }

    #[cfg(test)]
    pub fn granted_bytes(&self) -> usize {
        self.grants.blocks() * BLOCK_BYTES
    }

    /// Takes back what was granted by [`grant`](Self::grant), and was made use of in this period the last time.
    pub fn revoke(&mut self, blocks: usize, period: u32) {
        if period >= self.grants.first {
            *self.grants.of(period) -= blocks;
        }
    }

    /// A block, its bytes of no meaning.
    #[inline]
    pub fn take(&mut self) -> Option<Block> {
        if !self.has_free() {
            return None;
        }
        let block = match self.cached.pop() {
            Some(block) => block,
            None => {
                self.room = self.room.checked_sub(1)?;
                let mut bytes = Vec::new();
                bytes.try_reserve_exact(BLOCK_BYTES).ok()?;
                bytes.resize(BLOCK_BYTES, 0);
                bytes.into_boxed_slice().try_into().ok()?
            }
        };
        self.used += 1;
        Some(block)
    }

    #[inline]
    pub fn give(&mut self, block: Block) {
        self.used -= 1;
        if self.cached.len() < self.cached.capacity() {
            self.cached.push(block);
        } else {
            self.room = self.room.saturating_add(1);
        }
    }
}

/// What a table may have room for in any case: 512 bytes.
const KEPT_BLOCKS: usize = 64;

/// The blocks of a buffer, in their order. Some may be missing.
pub(crate) type Table = VecDeque<Option<Block>>;

/// Gives back what the table of a buffer has too much of: nothing else counts it. A small one saves the next bytes the way to the
/// heap.
#[inline]
pub(crate) fn fit_table(table: &mut Table) {
    if table.capacity() > KEPT_BLOCKS && table.len() < table.capacity() / 4 {
        shrink_table(table);
    }
}

#[cold]
#[inline(never)]
fn shrink_table(table: &mut Table) {
    let mut fitting = Table::new();
    if fitting.try_reserve_exact((2 * table.len()).max(KEPT_BLOCKS)).is_ok() {
        while let Some(block) = table.pop_front() {
            fitting.push_back(block);
        }
        *table = fitting;
    }
}

/// Bytes that were sent or are to be, until they are acknowledged.
#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    blocks: Table,
    /// Where in the first block the bytes begin.
    start: usize,
    len: usize,
}

impl SendQueue {
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Blocks that it holds.
    #[inline]
    pub fn held(&self) -> usize {
        self.blocks.len()
    }

    /// Appends what there is room for, in at most so many blocks, and returns how much that was.
    pub fn push(&mut self, bytes: &[u8], most_blocks: usize, pool: &mut Pool) -> usize {
        let mut rest = bytes;
        while !rest.is_empty() {
            let end = self.start + self.len;
            if end == self.blocks.len() * BLOCK_BYTES && !self.grow(most_blocks, pool) {
                break;
            }
            let at = end % BLOCK_BYTES;
            let (now, later) = rest.split_at(rest.len().min(BLOCK_BYTES - at));
            let Some(Some(block)) = self.blocks.back_mut() else { break };
            block[at..at + now.len()].copy_from_slice(now);
            self.len += now.len();
            rest = later;
        }
        bytes.len() - rest.len()
    }

    fn grow(&mut self, most_blocks: usize, pool: &mut Pool) -> bool {
        let held = self.blocks.len();
        if held >= MIN_BLOCKS && held >= pool.allowance(held).min(most_blocks) || self.blocks.try_reserve(1).is_err() {
            return false;
        }
        let block = pool.take();
        let has_grown = block.is_some();
        if has_grown {
            self.blocks.push_back(block);
        }
        has_grown
    }

    /// Copies the bytes from `offset` on.
    #[inline]
    pub fn copy(&self, offset: usize, mut out: &mut [u8]) {
        let mut at = self.start + offset;
        while !out.is_empty() {
            let within = at % BLOCK_BYTES;
            let (now, later) = out.split_at_mut((BLOCK_BYTES - within).min(out.len()));
            let Some(block) = &self.blocks[at / BLOCK_BYTES] else { break };
            now.copy_from_slice(&block[within..within + now.len()]);
            at += now.len();
            out = later;
        }
    }

    /// Drops the first `count` bytes.
    #[inline]
    pub fn drop_front(&mut self, count: usize, pool: &mut Pool) {
        assert!(count <= self.len, "bytes are dropped that are not there");
        self.start += count;
        self.len -= count;
        while self.start >= BLOCK_BYTES || self.len == 0 {
            let Some(block) = self.blocks.pop_front() else { break };
            block.into_iter().for_each(|block| pool.give(block));
            self.start = self.start.saturating_sub(BLOCK_BYTES);
        }
        if self.len == 0 {
            self.start = 0;
        }
        fit_table(&mut self.blocks);
    }

    /// Gives everything back.
    #[inline(never)]
    pub fn clear(&mut self, pool: &mut Pool) {
        self.drop_front(self.len, pool);
        self.blocks = Table::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::{vec, vec::Vec};

    #[test]
    fn what_is_pushed_is_there_until_it_is_dropped() {
        let mut pool = Pool::new(64 * BLOCK_BYTES);
        let mut queue = SendQueue::default();
        let mut model: VecDeque<u8> = VecDeque::new();
        let mut next = 0u32;
        let mut random = move || {
            next = next.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (next >> 16) as usize
        };
        for _ in 0..20_000 {
            let bytes: Vec<u8> = (0..random() % 700).map(|n| (n ^ random()) as u8).collect();
            let pushed = queue.push(&bytes, MAX_BLOCKS, &mut pool);
            model.extend(&bytes[..pushed]);
            assert_eq!(queue.len(), model.len());
            let (from, len) = if model.is_empty() { (0, 0) } else { (random() % model.len(), random() % 3000) };
            let mut out = vec![0; len.min(model.len() - from)];
            queue.copy(from, &mut out);
            assert!(out.iter().eq(model.range(from..from + out.len())));
            let count = (random() % 800).min(model.len());
            queue.drop_front(count, &mut pool);
            model.drain(..count);
            assert!(queue.held() <= queue.len() / BLOCK_BYTES + 2);
        }
        queue.clear(&mut pool);
        assert_eq!((pool.used_bytes(), queue.held()), (0, 0));
    }

    #[test]
    fn greedy_buffers_leave_something_for_the_modest() {
        let mut pool = Pool::new(1024 * BLOCK_BYTES);
        let mut greedy: Vec<SendQueue> = (0..200).map(|_| SendQueue::default()).collect();
        for _ in 0..300 {
            for queue in &mut greedy {
                queue.push(&[1; BLOCK_BYTES], MAX_BLOCKS, &mut pool);
            }
        }
        assert!(greedy[0].held() < 40, "nobody can have it all: {}", greedy[0].held());
        for _ in 0..100 {
            let mut modest = SendQueue::default();
            assert_eq!(modest.push(&[2; 3000], MAX_BLOCKS, &mut pool), 3000);
            greedy.push(modest);
        }
        for queue in &mut greedy {
            queue.clear(&mut pool);
        }
        assert_eq!(pool.used_bytes(), 0);
    }

    #[test]
    fn a_small_pool_keeps_few_blocks_from_the_heap() {
        for (blocks, kept) in [(0, 0), (7, 0), (330, 41), (1 << 16, MAX_CACHED_BLOCKS)] {
            let mut pool = Pool::new(blocks * BLOCK_BYTES);
            let taken: Vec<Block> = core::iter::from_fn(|| pool.take()).take(1000).collect();
            taken.into_iter().for_each(|block| pool.give(block));
            assert_eq!((pool.used_bytes(), pool.cached.len()), (0, kept), "{blocks} blocks");
        }
    }

    #[test]
    fn no_more_is_taken_than_the_heap_has() {
        let mut pool = Pool::new(64 * BLOCK_BYTES);
        pool.set_room(2 * BLOCK_BYTES as u64 + 1);
        let blocks: Vec<_> = core::iter::from_fn(|| pool.take()).collect();
        assert_eq!(blocks.len(), 2);
        blocks.into_iter().for_each(|block| pool.give(block));
        assert_eq!(core::iter::from_fn(|| pool.take()).count(), 2, "what was given back is there, from wherever");
        pool.set_room(BLOCK_BYTES as u64);
        assert_eq!(core::iter::from_fn(|| pool.take()).count(), 1);
    }

    #[test]
    fn a_pool_that_is_empty_gives_nothing() {
        let mut pool = Pool::new(2 * BLOCK_BYTES);
        let (mut first, mut second) = (SendQueue::default(), SendQueue::default());
        assert_eq!(first.push(&[1; 3 * BLOCK_BYTES], MAX_BLOCKS, &mut pool), 2 * BLOCK_BYTES);
        assert_eq!(second.push(b"x", MAX_BLOCKS, &mut pool), 0);
        first.drop_front(BLOCK_BYTES, &mut pool);
        assert_eq!(second.push(b"x", MAX_BLOCKS, &mut pool), 1);
    }
}
