use alloc::{collections::VecDeque, vec::Vec};

/// Bytes of a block.
const BLOCK_BYTES: usize = 16 << 10;
/// Blocks that are given back at a time, at the most.
const FREED_BLOCKS: usize = 1024;

/// The last effects, once for all: for replicas that have yet to be sent them, and for those whose connection was lost.
pub struct Backlog {
    /// All but the last one are full.
    blocks: VecDeque<Vec<u8>>,
    /// How many bytes there may be that no replica has yet to be sent.
    limit: u64,
    /// The offsets of the first byte that is there, and of what is behind the last one.
    start: u64,
    end: u64,
}

impl Backlog {
    /// For what comes from an offset on.
    pub fn new(limit: u64, offset: u64) -> Backlog {
        Backlog { blocks: VecDeque::new(), limit, start: offset, end: offset }
    }

    /// Keeps bytes.
    pub fn push(&mut self, mut bytes: &[u8]) {
        self.end += bytes.len() as u64;
        while !bytes.is_empty() {
            let room = self.blocks.back().map_or(0, |block| BLOCK_BYTES - block.len());
            if room == 0 {
                let mut block = Vec::new();
                // Without memory for them there is nothing from before either.
                if block.try_reserve_exact(BLOCK_BYTES).and_then(|()| self.blocks.try_reserve(1)).is_err() {
                    (self.blocks, self.start) = (VecDeque::new(), self.end);
                    return;
                }
                self.blocks.push_back(block);
                continue;
            }
            let (now, then) = bytes.split_at(room.min(bytes.len()));
            if let Some(block) = self.blocks.back_mut() {
                block.extend_from_slice(now);
            }
            bytes = then;
        }
    }

    /// Forgets the oldest bytes beyond the limit, but for those from an offset on that a replica has yet to be sent.
    pub fn trim(&mut self, needed: u64) {
        self.start = self.start.max(self.end.saturating_sub(self.limit).min(needed));
        for _ in 0..FREED_BLOCKS {
            let is_full = self.blocks.front().is_some_and(|block| block.len() == BLOCK_BYTES);
            if !is_full || self.base() + BLOCK_BYTES as u64 > self.start {
                return;
            }
            self.blocks.pop_front();
        }
    }

    /// Lets so many more bytes have come before all that is here.
    pub fn move_by(&mut self, before: u64) {
        (self.start, self.end) = (self.start + before, self.end + before);
    }

    /// Lets there be so many.
    pub fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// The offset of the first block's first byte.
    fn base(&self) -> u64 {
        let full = self.blocks.len().saturating_sub(1) * BLOCK_BYTES;
        self.end - (full + self.blocks.back().map_or(0, Vec::len)) as u64
    }

    /// How many bytes have come before the first one that is here.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// How many bytes have come.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// How many bytes there are.
    pub fn len(&self) -> u64 {
        self.end - self.start
    }

    /// Bytes of memory.
    pub fn memory_bytes(&self) -> u64 {
        (self.blocks.len() * BLOCK_BYTES + self.blocks.capacity() * size_of::<Vec<u8>>()) as u64
    }

    /// The same of what is there for replicas alone.
    pub fn excess_bytes(&self) -> u64 {
        self.memory_bytes().saturating_sub(self.limit)
    }

    /// Some of what follows the first `offset` bytes, which is nothing only at the end; `None` if it is not here.
    pub fn next(&self, offset: u64) -> Option<&[u8]> {
        if offset < self.start || offset > self.end {
            return None;
        }
        let at = (offset - self.base()) as usize;
        Some(self.blocks.get(at / BLOCK_BYTES).map_or(&[], |block| &block[at % BLOCK_BYTES..]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is there from an offset on.
    fn since(backlog: &Backlog, offset: u64) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        loop {
            match backlog.next(offset + bytes.len() as u64)? {
                [] => return Some(bytes),
                some => bytes.extend_from_slice(some),
            }
        }
    }

    #[test]
    fn the_last_bytes_are_there_and_those_that_are_needed() {
        const LIMIT: u64 = 30_000;
        let mut rng = fastrand::Rng::with_seed(1);
        let text: Vec<u8> = (0..400_000_u32).map(|at| (at % 251) as u8).collect();
        let (mut backlog, mut end, mut needed) = (Backlog::new(LIMIT, 100), 0, 0);
        assert_eq!((backlog.start(), since(&backlog, 100), since(&backlog, 99)), (100, Some(Vec::new()), None));
        while end < text.len() {
            let len = rng.usize(..40_000).min(text.len() - end);
            backlog.push(&text[end..end + len]);
            end += len;
            needed = rng.usize(needed..=end);
            backlog.trim(100 + needed as u64);
            let first = end.saturating_sub(LIMIT as usize).min(needed).max(backlog.start() as usize - 100);
            assert_eq!((backlog.start(), backlog.len()), (100 + first as u64, (end - first) as u64));
            for offset in [0, first.saturating_sub(1), first, rng.usize(first..=end), end] {
                let expected = (offset >= first).then(|| text[offset..end].to_vec());
                assert!(since(&backlog, 100 + offset as u64) == expected, "{offset} of {end}");
            }
            assert_eq!(backlog.next(100 + end as u64 + 1), None);
            assert!(backlog.memory_bytes() < backlog.len() + 3 * BLOCK_BYTES as u64);
        }
        backlog.set_limit(4);
        backlog.trim(u64::MAX);
        assert_eq!((backlog.len(), backlog.blocks.len()), (4, 1));
    }
}
