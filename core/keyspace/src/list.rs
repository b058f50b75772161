//! Lists: strings in order, with fast ends.
//!
//! A large list is a deque of packed parts, so that an element in the middle is reached over few numbers that lie side by
//! side, and moved past few others.

use crate::{Collection, Kind, OutOfMemory, Packed, PackedRef, value::Data};
use alloc::{boxed::Box, collections::VecDeque};

mod parts;
#[cfg(test)]
mod tests;
mod view;

use parts::{push, remove_at_end, remove_equal};
pub use view::ListIter;

/// A list to change.
pub enum List {
    /// All elements in one part.
    Packed(Packed),
    /// Several parts.
    Parts(Box<Parts>),
}

/// The parts of a large list. None of them is empty.
#[derive(Default)]
pub struct Parts {
    parts: VecDeque<Part>,
    len: usize,
    written: Option<Written>,
}

/// How many elements at each end of a list a walk has written down, which has not come to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// From the head on.
    pub front: usize,
    /// Before the tail.
    pub back: usize,
}

struct Part {
    packed: Packed,
    /// The number of entries, here as well so that counting past a part does not touch its memory.
    len: u32,
}

/// A list to read.
#[derive(Clone, Copy)]
pub enum ListView<'a> {
    #[allow(missing_docs)]
    Packed(PackedRef<'a>),
    #[allow(missing_docs)]
    Parts(&'a Parts),
}

/// One end of a list, or a direction from there to the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListEnd {
    /// The head, `LEFT`.
    Front,
    /// The tail, `RIGHT`.
    Back,
}

/// On which side of an element another one is inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Side {
    Before,
    After,
}

/// How large a part may be, as `list-max-listpack-size` says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartLimit {
    /// So many bytes.
    Bytes(usize),
    /// So many entries. With 0 a list is never in one part only, and its parts have one entry each.
    Entries(usize),
}

/// The most bytes of a part that is limited by entries.
const SAFE_BYTES: usize = 8 << 10;

/// The most bytes of one of several parts: what is pushed or popped at the head of a part moves the rest of it. Below that,
/// what a part costs beside its entries counts.
const PART_BYTES: usize = 2 << 10;

impl PartLimit {
    /// Whether a part would be larger.
    pub fn exceeds(self, bytes: usize, entries: usize) -> bool {
        match self {
            PartLimit::Bytes(limit) => bytes > limit,
            PartLimit::Entries(limit) => bytes > SAFE_BYTES || entries > limit,
        }
    }

    /// Whether one part of several may be so large. It may have one entry of any size.
    fn suits_part(self, bytes: usize, entries: usize) -> bool {
        entries <= 1 || bytes <= PART_BYTES && !self.exceeds(bytes, entries)
    }

    /// Whether a list that had several parts goes back to one only. Half of the limit keeps it from going to and fro.
    fn suits_packed_again(self, bytes: usize, entries: usize) -> bool {
        match self {
            PartLimit::Bytes(limit) => bytes <= limit / 2,
            PartLimit::Entries(limit) => entries <= limit / 2,
        }
    }
}

impl Default for List {
    fn default() -> List {
        List::Packed(Packed::new())
    }
}

impl Collection for List {
    const KIND: Kind = Kind::List;

    fn from_packed(packed: Packed) -> List {
        List::Packed(packed)
    }

    fn from_data(data: Data) -> List {
        match data {
            Data::List(parts) => List::Parts(parts),
            _ => unreachable!("the record says that it is a list"),
        }
    }

    fn into_data(self) -> Data {
        match self {
            List::Packed(packed) => Data::Bytes(packed.into_vec()),
            List::Parts(parts) => Data::List(parts),
        }
    }

    fn is_empty(&self) -> bool {
        self.view().is_empty()
    }
}

impl List {
    /// To read it.
    pub fn view(&self) -> ListView<'_> {
        match self {
            List::Packed(packed) => ListView::Packed(packed.as_ref()),
            List::Parts(parts) => ListView::Parts(parts),
        }
    }

    /// Makes several parts of one, if it would be too large with so many more bytes and entries.
    fn make_room(&mut self, more_bytes: usize, more_entries: usize, limit: PartLimit) -> Result<(), OutOfMemory> {
        let List::Packed(packed) = self else { return Ok(()) };
        if !limit.exceeds(packed.as_bytes().len() + more_bytes, packed.len() + more_entries) {
            return Ok(());
        }
        let mut parts = Parts::default();
        if !packed.is_empty() {
            parts.parts.try_reserve(1)?;
            parts.len = packed.len();
            parts.parts.push_back(Part::new(core::mem::take(packed)));
        }
        *self = List::Parts(Box::new(parts));
        Ok(())
    }

    /// Makes one part of several that have become small.
    fn tidy(&mut self, limit: PartLimit) {
        if let List::Parts(parts) = self
            && parts.written.is_none()
            && parts.are_small(limit)
            && let Some(packed) = parts.join_all()
        {
            *self = List::Packed(packed);
        }
    }

    /// Adds elements at an end, one after the other.
    pub fn push<'a>(
        &mut self,
        end: ListEnd,
        texts: impl Iterator<Item = &'a [u8]> + Clone,
        limit: PartLimit,
    ) -> Result<(), OutOfMemory> {
        if let List::Packed(_) = self {
            let (bytes, entries) =
                texts.clone().fold((0, 0), |(bytes, entries), text| (bytes + text.len(), entries + 1));
            self.make_room(bytes, entries, limit)?;
        }
        for text in texts {
            match self {
                List::Packed(packed) => push(packed, end, text)?,
                List::Parts(parts) => parts.push(end, text, limit)?,
            }
        }
        Ok(())
    }

    /// Removes up to `count` elements at an end.
    pub fn pop(&mut self, end: ListEnd, count: usize, limit: PartLimit) {
        let len = self.view().len();
        let count = count.min(len);
        match self {
            List::Packed(packed) => remove_at_end(packed, end, count),
            List::Parts(parts) => {
                parts.pop(end, count);
                self.tidy(limit);
            }
        }
    }

    /// Keeps only the elements of a range.
    pub fn trim(&mut self, range: core::ops::Range<usize>, limit: PartLimit) {
        let len = self.view().len();
        self.pop(ListEnd::Back, len - range.end.min(len), limit);
        self.pop(ListEnd::Front, range.start, limit);
    }

    /// Puts another list's elements before the element at `index`, which is no greater than the number of elements.
    #[cold]
    pub fn splice(&mut self, index: usize, other: List, limit: PartLimit) -> Result<(), OutOfMemory> {
        self.make_room(usize::MAX / 2, 1, limit)?;
        let (place, len) = (self.view().place_of(index), self.view().len());
        let List::Parts(parts) = self else { unreachable!("it was made one of parts") };
        assert!(index <= len);
        let mut at = place.map_or(parts.parts.len(), |(at, _)| at);
        if let Some((_, offset)) = place.filter(|&(at, offset)| offset != parts.parts[at].packed.as_ref().start()) {
            parts.parts.try_reserve(1)?;
            let rest = parts.parts[at].edit(|packed| packed.split_off(offset))?;
            at += 1;
            parts.parts.insert(at, Part::new(rest));
        }
        parts.len += other.view().len();
        match other {
            List::Packed(packed) if packed.is_empty() => {}
            List::Packed(packed) => {
                parts.parts.try_reserve(1)?;
                parts.parts.insert(at, Part::new(packed));
            }
            List::Parts(others) => {
                parts.parts.try_reserve(others.parts.len())?;
                others.parts.into_iter().rev().for_each(|part| parts.parts.insert(at, part));
            }
        }
        if let Some(before) = at.checked_sub(1) {
            parts.merge_next(before, limit);
        }
        self.tidy(limit);
        Ok(())
    }

    /// Replaces the element at `index`. Returns whether there is one.
    pub fn set(&mut self, index: usize, text: &[u8], limit: PartLimit) -> Result<bool, OutOfMemory> {
        // As in Redis, the old element counts as well.
        self.make_room(text.len(), 1, limit)?;
        let Some((part, at)) = self.view().place_of(index) else { return Ok(false) };
        match self {
            List::Packed(packed) => packed.replace(at, text)?,
            List::Parts(parts) => {
                parts.replace(part, at, text, limit)?;
                self.tidy(limit);
            }
        }
        Ok(true)
    }

    /// Inserts an element beside the first one that equals `pivot`. Returns whether there is one.
    pub fn insert(&mut self, pivot: &[u8], side: Side, text: &[u8], limit: PartLimit) -> Result<bool, OutOfMemory> {
        self.make_room(text.len(), 1, limit)?;
        let view = self.view();
        let found = (0..view.parts()).find_map(|part| Some((part, view.part(part).find(pivot, 1)?)));
        let Some((part, at)) = found else { return Ok(false) };
        let at = match side {
            Side::Before => at,
            Side::After => view.part(part).entry(at).map_or(at, |(_, next)| next),
        };
        match self {
            List::Packed(packed) => packed.insert(at, text)?,
            List::Parts(parts) => parts.insert(part, at, text, limit)?,
        }
        Ok(true)
    }

    /// Removes up to `count` elements that equal `text`, looking from an end on. Returns how many.
    pub fn remove(&mut self, text: &[u8], from: ListEnd, count: usize, limit: PartLimit) -> usize {
        let removed = match self {
            List::Packed(packed) => remove_equal(packed, text, from, count),
            List::Parts(parts) => parts.remove_equal(text, from, count, limit),
        };
        if removed > 0 {
            self.tidy(limit);
        }
        removed
    }
}
