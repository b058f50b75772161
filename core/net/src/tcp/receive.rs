//! What has arrived: bytes to be read, and behind them the runs that came ahead of their time.

use super::{
    segment::{SACK_BLOCKS, SackBlocks},
    seq::Seq,
};
use crate::pool::{BLOCK_BYTES, Block, FIRST_BLOCKS, MAX_BLOCKS, Pool, Table, UNUSED_NS, fit_table};
use alloc::vec::Vec;

/// Most runs of bytes beyond a hole: so many in any case, and one for each block that is held, up to a bound. A segment that
/// would make one more is dropped: its sender sends it again.
const FEW_RUNS: usize = 32;
const MAX_RUNS: usize = 256;

/// A window may hold its sender back where so much is read in as many round trips or less, or in this time. As it is the peer
/// that makes round trips long, no lap is longer than a window may be unused.
const LAP_ROUND_TRIPS: u64 = 8;
const LAP_US: u64 = 10_000;

/// The receive buffer of a connection. Blocks are taken where bytes have arrived, so a hole in front of them costs
/// nothing but its number.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    blocks: Table,
    /// How many of these are there.
    held: u32,
    /// Blocks for a segment of the peer's, wherever it begins. With a window of less than a segment Linux sends nothing
    /// but a probe now and then.
    least: u32,
    /// Most blocks that it may hold, by how it is used.
    most: u32,
    /// Bytes that were read in this lap, in which they are to be as many as `most` blocks hold.
    lap_bytes: u32,
    /// When it began, in microseconds that wrap.
    lap_began_us: u32,
    /// When that was so last.
    full_lap_us: u32,
    /// The period of the pool's in which the last of them were read, of a peer that is told of more than at first.
    period: u32,
    /// Where in the first block the readable bytes begin.
    start: usize,
    /// Readable bytes.
    len: usize,
    /// Runs beyond a hole, in ascending order, none touching another.
    runs: Vec<(Seq, Seq)>,
    /// The beginning of the run that has grown last: RFC 2018 §4 wants it named first.
    latest: Seq,
}

impl ReceiveQueue {
    /// For segments of so many bytes.
    pub fn new(segment_bytes: u16) -> ReceiveQueue {
        let least = usize::from(segment_bytes).div_ceil(BLOCK_BYTES) + 1;
        ReceiveQueue {
            blocks: Table::new(),
            held: 0,
            least: least as u32,
            most: FIRST_BLOCKS as u32,
            lap_bytes: 0,
            lap_began_us: 0,
            full_lap_us: 0,
            period: 0,
            start: 0,
            len: 0,
            runs: Vec::new(),
            latest: Seq(0),
        }
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is here, read or beyond a hole.
    #[inline]
    pub fn holds_nothing(&self) -> bool {
        self.len == 0 && self.runs.is_empty()
    }

    /// Most blocks that it may hold now.
    #[inline]
    pub fn allowance(&self, pool: &Pool) -> usize {
        self.share(pool).min(self.most as usize)
    }

    /// Bytes that it may hold as long as the pool has them.
    #[inline]
    pub fn most_bytes(&self) -> u32 {
        self.most * BLOCK_BYTES as u32
    }

    /// Most blocks that the pool has for it now.
    #[inline]
    fn share(&self, pool: &Pool) -> usize {
        pool.allowance_from(self.least as usize, self.held as usize)
    }

    /// Notes that so many bytes were read, in order.
    #[inline]
    pub fn note_read(&mut self, bytes: usize, round_trip_ns: u64, now_ns: u64, pool: &mut Pool) {
        let now_us = (now_ns / 1000) as u32;
        let lap_us = u64::from(now_us.wrapping_sub(self.lap_began_us));
        let most_us = || (LAP_ROUND_TRIPS * round_trip_ns / 1000).clamp(LAP_US, UNUSED_NS / 1000);
        let is_lap_over = lap_us > LAP_US && lap_us > most_us();
        if is_lap_over {
            (self.lap_bytes, self.lap_began_us) = (0, now_us);
        }
        if self.most as usize > FIRST_BLOCKS {
            self.keep(is_lap_over, now_ns, pool);
        }
        self.lap_bytes += bytes as u32;
        if self.lap_bytes >= self.most_bytes() {
            self.double(now_ns, pool);
        }
    }

    /// The window may hold its sender back.
    #[cold]
    #[inline(never)]
    fn double(&mut self, now_ns: u64, pool: &mut Pool) {
        let now_us = (now_ns / 1000) as u32;
        let most = self.most as usize;
        if most < MAX_BLOCKS
            && self.share(pool) > most
            && let Some(period) = pool.grant(most, now_ns)
        {
            (self.period, self.most) = (period, 2 * self.most);
        }
        (self.lap_bytes, self.lap_began_us, self.full_lap_us) = (0, now_us, now_us);
    }

    /// Goes on with a window that is larger than at first: as it is if it is used, with half of it if not, and without it if
    /// others have it by now. What its peer was told of stays so (RFC 9293 §3.8.6).
    #[inline(never)]
    fn keep(&mut self, is_lap_over: bool, now_ns: u64, pool: &mut Pool) {
        let Some(period) = pool.keep(self.most as usize - FIRST_BLOCKS, self.period, now_ns) else {
            self.most = FIRST_BLOCKS as u32;
            return;
        };
        self.period = period;
        let now_us = (now_ns / 1000) as u32;
        if is_lap_over && u64::from(now_us.wrapping_sub(self.full_lap_us)) > UNUSED_NS / 1000 {
            self.most /= 2;
            pool.revoke(self.most as usize, period);
            self.full_lap_us = now_us;
        }
    }

    /// Has its peer told of no more than at first: nothing comes any more, or nobody reads it.
    #[inline(never)]
    pub fn narrow(&mut self, pool: &mut Pool) {
        pool.revoke(self.most as usize - FIRST_BLOCKS, self.period);
        (self.most, self.lap_bytes) = (FIRST_BLOCKS as u32, 0);
    }

    /// Nothing comes any more: what had come ahead lies beyond the end.
    pub fn end(&mut self, pool: &mut Pool) {
        self.forget_runs(self.len, pool);
        self.narrow(pool);
    }

    #[inline]
    pub fn has_runs(&self) -> bool {
        !self.runs.is_empty()
    }

    /// Takes in bytes that begin at `seq`, not before `next`, the first one that has not arrived. Returns the new `next`.
    /// Bytes that there is no memory for are dropped, and so are those beyond a hole while memory is short: nothing but their
    /// sender says when they can be read.
    #[inline]
    pub fn insert(&mut self, next: Seq, seq: Seq, bytes: &[u8], pool: &mut Pool) -> Seq {
        let ahead = seq.since(next);
        if ahead == 0 {
            let mut stored = self.store(self.len, bytes, pool);
            if stored < bytes.len() && !self.runs.is_empty() {
                self.forget_runs(self.len + stored, pool);
                stored += self.store(self.len + stored, &bytes[stored..], pool);
            }
            self.len += stored;
            let next = next + stored as u32;
            return if self.runs.is_empty() { next } else { self.join(next) };
        }
        if pool.has_plenty()
            && self.make_run(seq, seq + bytes.len() as u32, |queue| {
                queue.store(queue.len + ahead as usize, bytes, pool) == bytes.len()
            })
        {
            self.latest = seq;
        } else {
            // Where nothing is here now, nothing may stay held.
            self.consume(0, pool);
        }
        next
    }

    /// Makes room for what is in order, of which `end` bytes are here: without it, what is not could wait for ever, and all
    /// others' memory with it. Its sender has it still (RFC 2018 §8), or it is beyond the end.
    #[cold]
    #[inline(never)]
    fn forget_runs(&mut self, end: usize, pool: &mut Pool) {
        self.runs.clear();
        let kept = (self.start + end).div_ceil(BLOCK_BYTES).min(self.blocks.len());
        for block in self.blocks.drain(kept..).flatten() {
            self.held -= 1;
            pool.give(block);
        }
        if end == 0 {
            self.consume(0, pool);
        }
    }

    /// Gives up what has come out of order, so that others have its memory, and returns how many runs that was.
    pub fn give_up_runs(&mut self, pool: &mut Pool) -> usize {
        let count = self.runs.len();
        if count > 0 {
            self.forget_runs(self.len, pool);
        }
        count
    }

    /// Takes the runs that are no longer beyond a hole.
    fn join(&mut self, mut next: Seq) -> Seq {
        let before = next;
        let reached = self.runs.iter().take_while(|(from, to)| {
            let touches = !from.after(next);
            if touches {
                next = next.max(*to);
            }
            touches
        });
        let count = reached.count();
        self.runs.drain(..count);
        self.len += next.since(before) as usize;
        next
    }

    /// Notes a run if there is room for it and `store` has stored it.
    fn make_run(&mut self, mut from: Seq, mut to: Seq, store: impl FnOnce(&mut ReceiveQueue) -> bool) -> bool {
        let first = self.runs.iter().take_while(|(_, end)| end.before(from)).count();
        let touched = self.runs[first..].iter().take_while(|(start, _)| !start.after(to)).count();
        let is_new = touched == 0;
        let most_runs = (self.held as usize).clamp(FEW_RUNS, MAX_RUNS);
        if is_new && (self.runs.len() >= most_runs || self.runs.try_reserve(1).is_err()) || !store(self) {
            return false;
        }
        if is_new {
            self.runs.insert(first, (from, to));
            return true;
        }
        from = from.min(self.runs[first].0);
        to = to.max(self.runs[first + touched - 1].1);
        self.runs[first] = (from, to);
        self.runs.drain(first + 1..first + touched);
        true
    }

    /// Writes bytes to the place `at` bytes behind the first readable one, and returns for how many there was memory.
    #[inline]
    fn store(&mut self, at: usize, bytes: &[u8], pool: &mut Pool) -> usize {
        let mut at = self.start + at;
        let mut rest = bytes;
        while !rest.is_empty() {
            let (index, within) = (at / BLOCK_BYTES, at % BLOCK_BYTES);
            let (now, later) = rest.split_at(rest.len().min(BLOCK_BYTES - within));
            let Some(block) = self.block(index, pool) else { break };
            block[within..within + now.len()].copy_from_slice(now);
            at += now.len();
            rest = later;
        }
        bytes.len() - rest.len()
    }

    fn block(&mut self, index: usize, pool: &mut Pool) -> Option<&mut Block> {
        if index >= self.blocks.len() {
            let missing = index + 1 - self.blocks.len();
            self.blocks.try_reserve(missing).ok()?;
            self.blocks.resize_with(index + 1, || None);
        }
        if self.blocks[index].is_none() {
            // Not less than the peer was told of, which may be more than it would be told now.
            if self.held as usize >= self.share(pool) {
                return None;
            }
            self.blocks[index] = Some(pool.take()?);
            self.held += 1;
        }
        self.blocks[index].as_mut()
    }

    /// The first readable bytes that lie together.
    #[inline]
    pub fn readable(&self) -> &[u8] {
        match self.blocks.front() {
            Some(Some(block)) => &block[self.start..BLOCK_BYTES.min(self.start + self.len)],
            _ => &[],
        }
    }

    /// Drops the first `count` readable bytes.
    #[inline]
    pub fn consume(&mut self, count: usize, pool: &mut Pool) {
        assert!(count <= self.len, "bytes are consumed that were not readable");
        self.start += count;
        self.len -= count;
        let is_empty = self.len == 0 && self.runs.is_empty();
        while self.start >= BLOCK_BYTES || is_empty {
            let Some(block) = self.blocks.pop_front() else { break };
            if let Some(block) = block {
                self.held -= 1;
                pool.give(block);
            }
            self.start = self.start.saturating_sub(BLOCK_BYTES);
        }
        if is_empty {
            self.start = 0;
        }
        fit_table(&mut self.blocks);
    }

    /// Gives everything back.
    #[inline(never)]
    pub fn clear(&mut self, pool: &mut Pool) {
        self.runs = Vec::new();
        self.consume(self.len, pool);
        self.blocks = Table::new();
        self.narrow(pool);
    }

    /// Whether all of this has come already, beyond a hole.
    pub fn has(&self, from: Seq, to: Seq) -> bool {
        self.runs.iter().any(|(start, end)| !from.before(*start) && !to.after(*end))
    }

    /// What to tell the sender: what has come `twice` (RFC 2883 §4), then of runs beyond a hole the latest first, then the
    /// others (RFC 2018 §4).
    pub fn sack_blocks(&self, twice: Option<(Seq, Seq)>, room: usize) -> SackBlocks {
        let mut blocks = SackBlocks::default();
        let is_latest = |&&(from, to): &&(Seq, Seq)| self.latest.within(from, to);
        let runs = self.runs.iter().filter(is_latest).chain(self.runs.iter().filter(|run| !is_latest(run)));
        for &(from, to) in twice.iter().chain(runs).take(room.min(SACK_BLOCKS)) {
            blocks.push(from, to);
        }
        blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::{vec, vec::Vec};

    fn lcg(seed: u32) -> impl FnMut() -> usize {
        let mut state = seed;
        move || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as usize
        }
    }

    /// Segments in any order, more than once and overlapping, give the stream.
    #[test]
    fn runs_join_into_the_stream() {
        for seed in 0..200 {
            let mut random = lcg(seed);
            let stream: Vec<u8> = (0..20_000).map(|_| random() as u8).collect();
            let base = Seq(u32::MAX - 5000);
            let mut pool = Pool::new(1 << 20);
            let (mut queue, mut next) = (ReceiveQueue::new(1460), base);
            let mut read = vec![];
            while read.len() < stream.len() {
                let arrived = next.since(base) as usize;
                if arrived < stream.len() {
                    let ahead = if random().is_multiple_of(4) { 0 } else { random() % 8000 };
                    let from = (arrived + ahead).min(stream.len() - 1);
                    let to = (from + 1 + random() % 2000).min(stream.len());
                    next = queue.insert(next, base + from as u32, &stream[from..to], &mut pool);
                }
                let sacks = queue.sack_blocks(None, 3);
                assert!(sacks.as_slice().iter().all(|(from, to)| from.after(next) && to.after(*from)));
                if random().is_multiple_of(2) {
                    let count = random() % (queue.readable().len() + 1);
                    read.extend_from_slice(&queue.readable()[..count]);
                    queue.consume(count, &mut pool);
                }
                assert_eq!(read.len() + queue.len(), next.since(base) as usize);
            }
            assert!(read == stream);
            assert!(!queue.has_runs());
            assert_eq!((queue.held, pool.used_bytes()), (0, 0));
        }
    }

    #[test]
    fn the_latest_run_is_named_first() {
        let mut pool = Pool::new(1 << 20);
        let mut queue = ReceiveQueue::new(1460);
        for at in [10, 30, 50, 20] {
            queue.insert(Seq(0), Seq(at), b"abc", &mut pool);
        }
        let named = queue.sack_blocks(None, 4);
        assert_eq!(named.as_slice()[0], (Seq(20), Seq(23)));
        assert_eq!(named.as_slice().len(), 4);
        queue.insert(Seq(0), Seq(13), b"1234567", &mut pool);
        assert_eq!(queue.sack_blocks(None, 4).as_slice()[0], (Seq(10), Seq(23)));
    }

    /// With as little memory as there may be, what is in order gets it, and nobody keeps what nothing came of.
    #[test]
    fn what_is_in_order_comes_first() {
        let mut pool = Pool::new(3 * BLOCK_BYTES);
        let (mut queue, segment) = (ReceiveQueue::new(1460), [1; 2 * BLOCK_BYTES]);
        queue.insert(Seq(0), Seq(BLOCK_BYTES as u32), &segment[..2000], &mut pool);
        queue.insert(Seq(0), Seq(2 * BLOCK_BYTES as u32), &segment[..2000], &mut pool);
        assert_eq!((queue.runs.len(), queue.held), (2, 2));
        assert_eq!(queue.insert(Seq(0), Seq(0), &segment, &mut pool), Seq(2 * BLOCK_BYTES as u32));
        assert_eq!((queue.runs.len(), queue.held, queue.readable().len()), (0, 2, BLOCK_BYTES));
        queue.consume(2 * BLOCK_BYTES, &mut pool);
        let ahead = Seq(2 * BLOCK_BYTES as u32 + 100);
        for segment in [&segment[..], &[2; 3 * BLOCK_BYTES]] {
            queue.insert(Seq(2 * BLOCK_BYTES as u32), ahead, segment, &mut pool);
            assert_eq!((queue.holds_nothing(), queue.held, pool.used_bytes()), (true, 0, 0));
        }
    }

    /// RFC 2018 §8: while memory is short, nobody has or gets any for what is behind a hole, and what is in order goes on.
    #[test]
    fn what_is_out_of_order_leaves_memory_to_others() {
        let mut pool = Pool::new(64 * BLOCK_BYTES);
        let mut queues: Vec<ReceiveQueue> = (0..64).map(|_| ReceiveQueue::new(1460)).collect();
        for queue in &mut queues {
            for at in 0..32 {
                queue.insert(Seq(0), Seq(1 + at * BLOCK_BYTES as u32), b"x", &mut pool);
            }
        }
        assert_eq!(pool.used_bytes(), 57 * BLOCK_BYTES);
        assert_eq!(queues[63].insert(Seq(0), Seq(0), &[1; 4000], &mut pool), Seq(4000));
        assert_eq!((queues[0].insert(Seq(0), Seq(0), b"a", &mut pool), queues[0].readable()), (Seq(2), &b"ax"[..]));
        assert!(queues.iter_mut().map(|queue| queue.give_up_runs(&mut pool)).sum::<usize>() > 50);
        assert_eq!((queues[0].readable(), queues[0].has_runs()), (&b"ax"[..], false));
        assert_eq!(pool.used_bytes(), 3 * BLOCK_BYTES);
        queues.iter_mut().for_each(|queue| queue.consume(queue.len(), &mut pool));
        assert_eq!(pool.used_bytes(), 0);
    }

    #[test]
    fn holes_are_bounded() {
        let mut pool = Pool::new(1 << 20);
        let mut queue = ReceiveQueue::new(1460);
        for at in 0..1000 {
            queue.insert(Seq(0), Seq(1 + 2 * at), b"x", &mut pool);
        }
        assert_eq!(queue.runs.len(), FEW_RUNS);
        queue.clear(&mut pool);
        assert_eq!(pool.used_bytes(), 0);
    }
}
