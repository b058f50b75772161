//! The parts of a large list, and what is done to entries of one of them.

use super::{ListEnd, PART_BYTES, Part, PartLimit, Parts};
use crate::{Offset, OutOfMemory, Packed};
use alloc::collections::VecDeque;

pub(super) fn push(packed: &mut Packed, end: ListEnd, text: &[u8]) -> Result<(), OutOfMemory> {
    match end {
        ListEnd::Front => packed.push_front(text),
        ListEnd::Back => packed.push_back(text),
    }
}

/// Removes `count` entries, at most as many as there are.
pub(super) fn remove_at_end(packed: &mut Packed, end: ListEnd, count: usize) {
    let at = match end {
        ListEnd::Front => Some(packed.as_ref().start()),
        ListEnd::Back => packed.as_ref().offset_of(packed.len() - count),
    };
    if let Some(at) = at {
        packed.remove(at, count);
    }
}

pub(super) fn remove_equal(packed: &mut Packed, text: &[u8], from: ListEnd, count: usize) -> usize {
    let mut removed = 0;
    let mut at = match from {
        ListEnd::Front => packed.as_ref().start(),
        ListEnd::Back => packed.as_ref().end(),
    };
    while removed < count {
        let here = match from {
            ListEnd::Front => Some(at),
            ListEnd::Back => packed.as_ref().before(at),
        };
        let Some((here, (entry, next))) = here.and_then(|here| Some((here, packed.as_ref().entry(here)?))) else {
            break;
        };
        if entry == text {
            packed.remove(here, 1);
            removed += 1;
            at = here;
        } else {
            at = if from == ListEnd::Front { next } else { here };
        }
    }
    removed
}

impl Part {
    pub(super) fn new(packed: Packed) -> Part {
        Part { len: packed.len() as u32, packed }
    }

    fn bytes(&self) -> usize {
        self.packed.as_bytes().len()
    }

    /// Whether an entry fits in addition.
    fn takes(&self, text: &[u8], limit: PartLimit) -> bool {
        limit.suits_part(self.bytes() + Packed::entry_bytes(text.len()), self.len as usize + 1)
    }

    /// Changes the part, and counts it.
    pub(super) fn edit<R>(&mut self, change: impl FnOnce(&mut Packed) -> R) -> R {
        let result = change(&mut self.packed);
        self.len = self.packed.len() as u32;
        result
    }
}

impl Parts {
    fn end_mut(&mut self, end: ListEnd) -> Option<&mut Part> {
        match end {
            ListEnd::Front => self.parts.front_mut(),
            ListEnd::Back => self.parts.back_mut(),
        }
    }

    pub(super) fn push(&mut self, end: ListEnd, text: &[u8], limit: PartLimit) -> Result<(), OutOfMemory> {
        match self.end_mut(end) {
            Some(part) if part.takes(text, limit) => {
                push(&mut part.packed, end, text)?;
                part.len += 1;
            }
            full => {
                if let Some(full) = full {
                    full.packed.shrink();
                }
                let at = if end == ListEnd::Front { 0 } else { self.parts.len() };
                self.add_part(at, text)?;
            }
        }
        self.len += 1;
        if let Some(written) = &mut self.written {
            match end {
                ListEnd::Front => written.front += 1,
                ListEnd::Back => written.back += 1,
            }
        }
        Ok(())
    }

    /// Adds a part of one entry before the part at `at`.
    fn add_part(&mut self, at: usize, text: &[u8]) -> Result<(), OutOfMemory> {
        let mut packed = Packed::new();
        packed.push_back(text)?;
        self.parts.try_reserve(1)?;
        self.parts.insert(at, Part::new(packed));
        Ok(())
    }

    pub(super) fn pop(&mut self, end: ListEnd, mut count: usize) {
        if let Some(written) = &mut self.written {
            let (near, far) = match end {
                ListEnd::Front => (&mut written.front, &mut written.back),
                ListEnd::Back => (&mut written.back, &mut written.front),
            };
            *near = near.saturating_sub(count);
            *far = (*far).min(self.len - count);
        }
        self.len -= count;
        while count > 0 {
            let part = self.end_mut(end).expect("as many entries are there");
            let len = part.len as usize;
            if len > count {
                remove_at_end(&mut part.packed, end, count);
                part.len -= count as u32;
                return;
            }
            count -= len;
            match end {
                ListEnd::Front => self.parts.pop_front(),
                ListEnd::Back => self.parts.pop_back(),
            };
        }
    }

    pub(super) fn replace(
        &mut self,
        at: usize,
        offset: Offset,
        text: &[u8],
        limit: PartLimit,
    ) -> Result<(), OutOfMemory> {
        let part = &mut self.parts[at];
        let old = part.packed.as_ref().get(offset).map_or(0, <[u8]>::len);
        let bytes = part.bytes() + Packed::entry_bytes(text.len()) - Packed::entry_bytes(old);
        if text.len() <= old || limit.suits_part(bytes, part.len as usize) {
            return part.packed.replace(offset, text);
        }
        // It goes to a part of its own, or to a neighbour. The old one goes when that is done.
        let next = part.packed.as_ref().entry(offset).map_or(offset, |(_, next)| next);
        self.insert(at, next, text, limit)?;
        self.parts[at].edit(|packed| packed.remove(offset, 1));
        self.len -= 1;
        self.drop_if_empty(at);
        Ok(())
    }

    /// Inserts an entry before `offset` in the part at `at`. What lies before it in this part stays where it is.
    pub(super) fn insert(
        &mut self,
        at: usize,
        offset: Offset,
        text: &[u8],
        limit: PartLimit,
    ) -> Result<(), OutOfMemory> {
        let part = &mut self.parts[at];
        let (start, end) = (part.packed.as_ref().start(), part.packed.as_ref().end());
        if part.takes(text, limit) {
            part.edit(|packed| packed.insert(offset, text))?;
        } else if offset == start {
            self.insert_between(at, text, limit)?;
        } else if offset == end {
            self.insert_between(at + 1, text, limit)?;
        } else {
            self.parts.try_reserve(1)?;
            let rest = self.parts[at].edit(|packed| packed.split_off(offset))?;
            self.parts.insert(at + 1, Part::new(rest));
            let added = self.insert_between(at + 1, text, limit);
            self.merge_next(at + 1 + *added.as_ref().unwrap_or(&0), limit);
            added?;
        }
        self.len += 1;
        Ok(())
    }

    /// Adds an entry to the part before `at`, to that at `at`, or as a part of its own between the two. Returns the number
    /// of parts added.
    fn insert_between(&mut self, at: usize, text: &[u8], limit: PartLimit) -> Result<usize, OutOfMemory> {
        if let Some(before) = at.checked_sub(1).and_then(|before| self.parts.get_mut(before))
            && before.takes(text, limit)
        {
            return before.edit(|packed| packed.push_back(text)).map(|()| 0);
        }
        if let Some(behind) = self.parts.get_mut(at)
            && behind.takes(text, limit)
        {
            return behind.edit(|packed| packed.push_front(text)).map(|()| 0);
        }
        self.add_part(at, text).map(|()| 1)
    }

    /// Makes one part of two neighbours, if it is not too large and there is memory for it.
    fn merge(&mut self, at: usize, other: usize, limit: PartLimit) -> bool {
        let (Some(part), Some(next)) = (self.parts.get(at), self.parts.get(other)) else { return false };
        limit.suits_part(part.bytes() + next.bytes(), part.len as usize + next.len as usize) && self.join(at, other)
    }

    /// Makes one part of two neighbours, if there is memory for it.
    fn join(&mut self, at: usize, other: usize) -> bool {
        let next = core::mem::take(&mut self.parts[other].packed);
        let merged = self.parts[at].edit(|packed| packed.append(next.as_ref())).is_ok();
        if !merged {
            self.parts[other].packed = next;
        }
        merged
    }

    /// Whether all of it may be one part again.
    pub(super) fn are_small(&self, limit: PartLimit) -> bool {
        let is_one = self.parts.len() == 1;
        let fits =
            |&bytes: &usize| limit.suits_packed_again(bytes, self.len) && (is_one || !limit.exceeds(bytes, self.len));
        let bytes = self.parts.iter().try_fold(0, |sum, part| Some(sum + part.bytes()).filter(fits));
        // What few bytes are in several parts is so because of the number of entries, as in Redis.
        bytes.is_some_and(|bytes| is_one || bytes > PART_BYTES || matches!(limit, PartLimit::Bytes(_)))
    }

    /// Takes all as one part, if there is memory for it.
    pub(super) fn join_all(&mut self) -> Option<Packed> {
        while self.parts.len() > 1 {
            if !self.join(0, 1) {
                return None;
            }
            self.parts.remove(1);
        }
        self.parts.pop_front().map(|part| part.packed)
    }

    pub(super) fn merge_next(&mut self, at: usize, limit: PartLimit) {
        if self.merge(at, at + 1, limit) {
            self.parts.remove(at + 1);
        }
    }

    /// Merges all neighbours that have become small.
    fn merge_all(&mut self, limit: PartLimit) {
        let mut last = 0;
        for at in 1..self.parts.len() {
            if !self.merge(last, at, limit) {
                last += 1;
                self.parts.swap(last, at);
            }
        }
        self.parts.truncate(last + 1);
    }

    fn drop_if_empty(&mut self, at: usize) {
        if self.parts[at].len == 0 {
            self.parts.remove(at);
        }
    }

    pub(super) fn remove_equal(&mut self, text: &[u8], from: ListEnd, count: usize, limit: PartLimit) -> usize {
        let mut removed = 0;
        let parts = self.parts.len();
        for turn in 0..parts {
            if removed == count {
                break;
            }
            let part = match from {
                ListEnd::Front => &mut self.parts[turn],
                ListEnd::Back => &mut self.parts[parts - 1 - turn],
            };
            removed += part.edit(|packed| remove_equal(packed, text, from, count - removed));
        }
        if removed > 0 {
            self.len -= removed;
            self.parts.retain(|part| part.len > 0);
            self.merge_all(limit);
        }
        removed
    }

    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> usize {
        let parts: usize = self.parts.iter().map(|part| part.packed.capacity()).sum();
        size_of::<Parts>() + self.parts.capacity() * size_of::<Part>() + parts
    }

    /// Frees as many parts as take the time of `limit` members of other collections; see [`Data::free`].
    pub(crate) fn free(&mut self, limit: usize) -> Option<usize> {
        const MEMBERS_PER_PART: usize = 16;
        let freed = self.parts.len().min(limit.div_ceil(MEMBERS_PER_PART));
        self.parts.truncate(self.parts.len() - freed);
        self.parts.is_empty().then_some(limit.saturating_sub(freed * MEMBERS_PER_PART))
    }

    /// A copy.
    pub(crate) fn copy(&self) -> Result<Parts, OutOfMemory> {
        let mut copy = Parts { parts: VecDeque::new(), len: self.len, written: None };
        copy.parts.try_reserve_exact(self.parts.len())?;
        for part in &self.parts {
            copy.parts.push_back(Part::new(Packed::copy_of(part.packed.as_bytes())?));
        }
        Ok(copy)
    }
}
