//! Which segments the log has, which are free, and where it goes on.

use crate::format::BLOCK_BYTES;
use alloc::{
    collections::{TryReserveError, VecDeque},
    vec::Vec,
};

/// Where a segment is, and its number in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its place on the device.
    pub place: u32,
    /// Its number: one more than that of the segment before.
    pub number: u64,
}

/// The segments of a device.
#[derive(Debug)]
pub struct Space {
    segment_bytes: u32,
    /// One bit for each place that the log holds.
    used: Vec<u64>,
    segment_count: u32,
    free_count: u32,
    /// The places of the log's segments, first to last.
    chain: VecDeque<u32>,
    first_number: u64,
    /// Where the log goes on after the last segment: taken already, since the batches of this one name it.
    next: Option<u32>,
    /// Whether a batch of the last segment names `next`. Without that the log must not go on there.
    is_linked: bool,
    /// Where the next batch begins in the last segment.
    offset: u32,
}

/// Where the log's end was, to go back to.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    chain_len: usize,
    next: Option<u32>,
    is_linked: bool,
    offset: u32,
}

impl Space {
    /// A device whose log is the first segment alone.
    pub fn new(segment_bytes: u32, segment_count: u32, first: Segment) -> Result<Space, TryReserveError> {
        let words = segment_count.div_ceil(64) as usize;
        let mut used = Vec::new();
        used.try_reserve_exact(words)?;
        used.resize(words, 0);
        let mut space = Space {
            segment_bytes,
            used,
            segment_count,
            free_count: segment_count,
            chain: VecDeque::new(),
            first_number: first.number,
            next: None,
            is_linked: false,
            offset: 0,
        };
        space.chain.try_reserve(1)?;
        space.chain.push_back(first.place);
        space.set_used(first.place);
        Ok(space)
    }

    fn is_used(&self, place: u32) -> bool {
        self.used[place as usize / 64] & 1 << (place % 64) != 0
    }

    fn set_used(&mut self, place: u32) {
        assert!(!self.is_used(place), "a segment is used once");
        self.used[place as usize / 64] |= 1 << (place % 64);
        self.free_count -= 1;
    }

    fn set_free(&mut self, place: u32) {
        assert!(self.is_used(place), "what is freed was used");
        self.used[place as usize / 64] &= !(1 << (place % 64));
        self.free_count += 1;
    }

    /// The place of a segment that recovery has found after the last one; nothing if it cannot be: then two segments
    /// claim the same place.
    pub fn can_follow(&self, place: u32) -> bool {
        place < self.segment_count && !self.is_used(place)
    }

    /// Recovery has found the log's next segment.
    pub fn follow(&mut self, place: u32) -> Result<(), TryReserveError> {
        self.chain.try_reserve(1)?;
        self.chain.push_back(place);
        self.set_used(place);
        self.offset = 0;
        Ok(())
    }

    /// Recovery has found where the log ends.
    pub fn end_at(&mut self, offset: u32, next: Option<u32>) {
        self.offset = offset;
        self.next = next.filter(|place| self.can_follow(*place));
        if let Some(place) = self.next {
            self.set_used(place);
        }
        self.is_linked = self.next.is_some();
        self.choose_next();
    }

    /// Takes the segment after the last one, if one is free, so that batches can name it.
    pub fn choose_next(&mut self) {
        if self.next.is_some() || self.free_count == 0 {
            return;
        }
        let last = self.last().place;
        let place = (1..=self.segment_count)
            .map(|step| (u64::from(last) + u64::from(step)) % u64::from(self.segment_count))
            .map(|place| place as u32)
            .find(|place| !self.is_used(*place))
            .expect("one is free");
        self.set_used(place);
        self.next = Some(place);
    }

    /// The last segment, which the log grows in.
    pub fn last(&self) -> Segment {
        let place = *self.chain.back().expect("a log has a segment");
        Segment { place, number: self.first_number + self.chain.len() as u64 - 1 }
    }

    /// What follows the last segment.
    pub fn next(&self) -> Option<u32> {
        self.next
    }

    /// Where the next batch begins in the last segment.
    pub fn offset(&self) -> u32 {
        self.offset
    }

    /// Bytes of the last segment that are left.
    pub fn rest_bytes(&self) -> u32 {
        self.segment_bytes - self.offset
    }

    /// How many bytes a batch can have that begins here: none if the segment is full. If no segment is free to go on in,
    /// a block is left for the batch that will name one.
    pub fn batch_bytes(&self) -> u32 {
        let kept = if self.next.is_none() { BLOCK_BYTES as u32 } else { 0 };
        self.rest_bytes().saturating_sub(kept)
    }

    /// Whether the log can go on in the next segment.
    pub fn is_linked(&self) -> bool {
        self.is_linked
    }

    /// The log goes on in the next segment, if it can. Whether it does.
    pub fn enter_next(&mut self) -> bool {
        if !self.is_linked || self.chain.try_reserve(1).is_err() {
            return false;
        }
        let Some(place) = self.next.take() else { return false };
        self.chain.push_back(place);
        self.offset = 0;
        self.is_linked = false;
        self.choose_next();
        true
    }

    /// A batch has taken so many bytes, and names the next segment if there is one.
    pub fn advance(&mut self, len: u32) {
        assert!(len <= self.rest_bytes(), "a batch lies in one segment");
        self.offset += len;
        self.is_linked = self.next.is_some();
    }

    /// Where the log's end is.
    pub fn mark(&self) -> Mark {
        Mark { chain_len: self.chain.len(), next: self.next, is_linked: self.is_linked, offset: self.offset }
    }

    /// Takes back what the log has grown by since the mark; the bytes were never given to the device.
    pub fn rewind(&mut self, mark: Mark) {
        if let Some(place) = self.next.take() {
            self.set_free(place);
        }
        while self.chain.len() > mark.chain_len {
            let place = self.chain.pop_back().expect("longer than that");
            self.set_free(place);
        }
        self.next = mark.next;
        if let Some(place) = mark.next {
            self.set_used(place);
        }
        self.is_linked = mark.is_linked;
        self.offset = mark.offset;
    }

    /// The log begins with that segment now: those before are free.
    pub fn free_before(&mut self, number: u64) {
        assert!(number < self.first_number + self.chain.len() as u64, "the beginning lies in the log");
        while self.first_number < number {
            let place = self.chain.pop_front().expect("more segments follow");
            self.set_free(place);
            self.first_number += 1;
        }
        self.choose_next();
    }

    /// Bytes that batches can still take.
    pub fn free_bytes(&self) -> u64 {
        let segments = u64::from(self.free_count) + u64::from(self.next.is_some());
        segments * u64::from(self.segment_bytes) + u64::from(self.rest_bytes())
    }

    /// Bytes of all segments.
    pub fn size_bytes(&self) -> u64 {
        u64::from(self.segment_count) * u64::from(self.segment_bytes)
    }

    /// The places that are not part of the log.
    pub fn places_outside(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.segment_count).filter(|place| !self.is_used(*place))
    }
}
