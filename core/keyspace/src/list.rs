//! Lists: strings in order, with fast ends.
//!
//! A large list is a deque of packed parts, so that an element in the middle is reached over few numbers that lie side by
//! side, and moved past few others.

use crate::{
    Collection, Db, Encoding, Found, Kind, Offset, OutOfMemory, Packed, PackedRef, packed, record::Stored, value::Data,
};
use alloc::{boxed::Box, collections::VecDeque};

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

fn push(packed: &mut Packed, end: ListEnd, text: &[u8]) -> Result<(), OutOfMemory> {
    match end {
        ListEnd::Front => packed.push_front(text),
        ListEnd::Back => packed.push_back(text),
    }
}

/// Removes `count` entries, at most as many as there are.
fn remove_at_end(packed: &mut Packed, end: ListEnd, count: usize) {
    let at = match end {
        ListEnd::Front => Some(packed.as_ref().start()),
        ListEnd::Back => packed.as_ref().offset_of(packed.len() - count),
    };
    if let Some(at) = at {
        packed.remove(at, count);
    }
}

fn remove_equal(packed: &mut Packed, text: &[u8], from: ListEnd, count: usize) -> usize {
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
    fn new(packed: Packed) -> Part {
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
    fn edit<R>(&mut self, change: impl FnOnce(&mut Packed) -> R) -> R {
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

    fn push(&mut self, end: ListEnd, text: &[u8], limit: PartLimit) -> Result<(), OutOfMemory> {
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

    fn pop(&mut self, end: ListEnd, mut count: usize) {
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

    fn replace(&mut self, at: usize, offset: Offset, text: &[u8], limit: PartLimit) -> Result<(), OutOfMemory> {
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
    fn insert(&mut self, at: usize, offset: Offset, text: &[u8], limit: PartLimit) -> Result<(), OutOfMemory> {
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
    fn are_small(&self, limit: PartLimit) -> bool {
        let is_one = self.parts.len() == 1;
        let fits =
            |&bytes: &usize| limit.suits_packed_again(bytes, self.len) && (is_one || !limit.exceeds(bytes, self.len));
        let bytes = self.parts.iter().try_fold(0, |sum, part| Some(sum + part.bytes()).filter(fits));
        // What few bytes are in several parts is so because of the number of entries, as in Redis.
        bytes.is_some_and(|bytes| is_one || bytes > PART_BYTES || matches!(limit, PartLimit::Bytes(_)))
    }

    /// Takes all as one part, if there is memory for it.
    fn join_all(&mut self) -> Option<Packed> {
        while self.parts.len() > 1 {
            if !self.join(0, 1) {
                return None;
            }
            self.parts.remove(1);
        }
        self.parts.pop_front().map(|part| part.packed)
    }

    fn merge_next(&mut self, at: usize, limit: PartLimit) {
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

    fn remove_equal(&mut self, text: &[u8], from: ListEnd, count: usize, limit: PartLimit) -> usize {
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

impl<'a> ListView<'a> {
    /// Number of elements.
    pub fn len(self) -> usize {
        match self {
            ListView::Packed(packed) => packed.len(),
            ListView::Parts(parts) => parts.len,
        }
    }

    /// Whether there is none, which no key's list ever is.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// How it is stored.
    pub fn encoding(self) -> Encoding {
        match self {
            ListView::Packed(_) => Encoding::Listpack,
            ListView::Parts(_) => Encoding::Quicklist,
        }
    }

    fn parts(self) -> usize {
        match self {
            ListView::Packed(_) => 1,
            ListView::Parts(parts) => parts.parts.len(),
        }
    }

    fn part(self, at: usize) -> PackedRef<'a> {
        match self {
            ListView::Packed(packed) => packed,
            ListView::Parts(parts) => parts.parts[at].packed.as_ref(),
        }
    }

    /// The part that has the element at `index`, and where in it the element begins.
    fn place_of(self, index: usize) -> Option<(usize, Offset)> {
        let len = self.len();
        if index >= len {
            return None;
        }
        let (part, rest) = match self {
            ListView::Packed(_) => (0, index),
            ListView::Parts(parts) if index < len / 2 => {
                let mut rest = index;
                let counts = parts.parts.iter().map(|part| part.len as usize);
                let part = counts.take_while(|&count| {
                    let is_past = count <= rest;
                    rest -= if is_past { count } else { 0 };
                    is_past
                });
                (part.count(), rest)
            }
            ListView::Parts(parts) => {
                let mut end = len;
                let behind = parts.parts.iter().rev().take_while(|part| {
                    let is_past = end - part.len as usize > index;
                    end -= if is_past { part.len as usize } else { 0 };
                    is_past
                });
                let part = parts.parts.len() - 1 - behind.count();
                (part, index + parts.parts[part].len as usize - end)
            }
        };
        Some((part, self.part(part).offset_of(rest)?))
    }

    /// The element at `index`.
    pub fn get(self, index: usize) -> Option<&'a [u8]> {
        let (part, at) = self.place_of(index)?;
        self.part(part).get(at)
    }

    /// The elements from the one at `index` on, towards the other end.
    pub fn iter_from(self, index: usize, from: ListEnd) -> ListIter<'a> {
        let place = self.place_of(index);
        let entries = place.map(|(part, at)| {
            let packed = self.part(part);
            match from {
                ListEnd::Front => packed.range(at, packed.end()),
                ListEnd::Back => packed.range(packed.start(), packed.entry(at).map_or(at, |(_, next)| next)),
            }
        });
        ListIter { list: self, part: place.map_or(0, |(part, _)| part), entries, from }
    }

    /// All elements.
    pub fn iter(self) -> ListIter<'a> {
        self.iter_from(0, ListEnd::Front)
    }
}

/// Elements of a [`ListView`] in one direction.
pub struct ListIter<'a> {
    list: ListView<'a>,
    part: usize,
    /// What is left of this part. `None` where the list has no element to begin with.
    entries: Option<packed::Iter<'a>>,
    from: ListEnd,
}

impl<'a> Iterator for ListIter<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let entries = self.entries.as_mut()?;
        let next = match self.from {
            ListEnd::Front => entries.next(),
            ListEnd::Back => entries.next_back(),
        };
        if next.is_some() {
            return next;
        }
        self.part = match self.from {
            ListEnd::Front => self.part + 1,
            ListEnd::Back => self.part.checked_sub(1)?,
        };
        if self.part >= self.list.parts() {
            return None;
        }
        let mut entries = self.list.part(self.part).iter();
        let next = match self.from {
            ListEnd::Front => entries.next(),
            ListEnd::Back => entries.next_back(),
        };
        self.entries = Some(entries);
        next
    }
}

impl Db {
    /// What is written down of a list of several parts.
    pub fn list_written(&self, found: Found) -> Option<Written> {
        match self.list(found) {
            ListView::Parts(parts) => parts.written,
            ListView::Packed(_) => None,
        }
    }

    /// Notes what is written down of a list of several parts. Until that is `None` again it is kept up to date by what
    /// adds elements at the ends, which belong to what is written, and by what removes some; nothing else may change the
    /// list but the value of an element.
    pub fn set_list_written(&mut self, found: Found, written: Option<Written>) {
        if let Some(Data::List(parts)) = self.records.data_mut(found.record) {
            parts.written = written;
        }
    }

    /// The list at a key that has one.
    pub fn list(&self, found: Found) -> ListView<'_> {
        assert_eq!(self.kind(found), Kind::List);
        match self.records.stored(found.record) {
            Stored::Bytes(bytes) => ListView::Packed(PackedRef::new(bytes)),
            Stored::Data(Data::List(parts)) => ListView::Parts(parts),
            _ => unreachable!("the record says that it is a list"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Expiry, HashKey};
    use alloc::{vec, vec::Vec};

    fn text(rng: &mut fastrand::Rng) -> Vec<u8> {
        let len = match rng.u8(..40) {
            0 => rng.usize(8000..9000),
            1 => rng.usize(..3000),
            2..10 => rng.usize(..200),
            _ => 2,
        };
        vec![b'a' + rng.u8(..12); len]
    }

    fn elements(view: ListView<'_>) -> VecDeque<Vec<u8>> {
        view.iter().map(<[u8]>::to_vec).collect()
    }

    /// Parts are never empty, count right and are within the limit.
    fn check(list: &List, limit: PartLimit) {
        if let List::Parts(parts) = list {
            assert_eq!(parts.len, parts.parts.iter().map(|part| part.packed.len()).sum::<usize>());
            for part in &parts.parts {
                assert!(part.len > 0 && part.len as usize == part.packed.len());
                // As in Redis, what has just been added to a packed list counts without its lengths.
                let bytes = part.packed.as_ref().iter().map(<[u8]>::len).sum();
                assert!(part.len == 1 || !limit.exceeds(bytes, part.len as usize), "{} entries, {limit:?}", part.len);
            }
        }
    }

    /// One random change to a list and to a vector.
    fn change(list: &mut List, model: &mut VecDeque<Vec<u8>>, limit: PartLimit, rng: &mut fastrand::Rng) {
        let end = if rng.bool() { ListEnd::Front } else { ListEnd::Back };
        let (text, len) = (text(rng), model.len());
        let some = model.get(rng.usize(..=len)).cloned().unwrap_or_default();
        match rng.u8(..20) {
            0..8 => {
                let count = rng.usize(1..30);
                list.push(end, core::iter::repeat_n(text.as_slice(), count), limit).unwrap();
                for _ in 0..count {
                    match end {
                        ListEnd::Front => model.push_front(text.clone()),
                        ListEnd::Back => model.push_back(text.clone()),
                    }
                }
            }
            8..10 => {
                let count = rng.usize(..20);
                list.pop(end, count, limit);
                for _ in 0..count {
                    match end {
                        ListEnd::Front => model.pop_front(),
                        ListEnd::Back => model.pop_back(),
                    };
                }
            }
            10..13 => {
                let index = rng.usize(..=len);
                assert_eq!(list.set(index, &text, limit).unwrap(), index < len);
                model.get_mut(index).into_iter().for_each(|place| place.clone_from(&text));
            }
            13..18 => {
                let side = if rng.bool() { Side::Before } else { Side::After };
                let at = model.iter().position(|other| *other == some);
                assert_eq!(list.insert(&some, side, &text, limit).unwrap(), at.is_some());
                at.into_iter().for_each(|at| model.insert(at + usize::from(side == Side::After), text.clone()));
            }
            18 => {
                let count = rng.usize(1..20);
                let mut removed = 0;
                let mut keep = |other: &Vec<u8>| {
                    let goes = *other == some && removed < count;
                    removed += usize::from(goes);
                    !goes
                };
                let kept: VecDeque<Vec<u8>> = match end {
                    ListEnd::Front => model.iter().filter(|other| keep(other)).cloned().collect(),
                    ListEnd::Back => {
                        let kept: Vec<_> = model.iter().rev().filter(|other| keep(other)).cloned().collect();
                        kept.into_iter().rev().collect()
                    }
                };
                *model = kept;
                assert_eq!(list.remove(&some, end, count, limit), removed);
            }
            _ => {
                let start = rng.usize(..=len.min(20));
                let range = start..rng.usize(start..=len);
                *model = model.drain(range.clone()).collect();
                list.trim(range, limit);
            }
        }
    }

    #[test]
    fn behaves_like_a_deque() {
        let limits = [PartLimit::Bytes(8192), PartLimit::Bytes(300), PartLimit::Entries(4), PartLimit::Entries(0)];
        for seed in 0..60 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let limit = limits[seed as usize % limits.len()];
            let mut list = List::default();
            let mut model = VecDeque::new();
            for step in 0..300 {
                change(&mut list, &mut model, limit, &mut rng);
                let context = (seed, step);
                let view = list.view();
                assert!(view.iter().eq(model.iter().map(Vec::as_slice)), "{context:?}");
                assert_eq!(view.len(), model.len(), "{context:?}");
                let index = rng.usize(..=model.len());
                assert_eq!(view.get(index), model.get(index).map(Vec::as_slice), "{context:?}");
                let back = view.iter_from(index, ListEnd::Back);
                assert!(back.eq(model.iter().take(index + 1).rev().map(Vec::as_slice).filter(|_| index < model.len())));
                check(&list, limit);
            }
        }
    }

    #[test]
    fn what_is_left_of_a_long_list_is_packed_however_many_parts_had_it() {
        const LIMIT: PartLimit = PartLimit::Bytes(8192);
        for (left, is_packed) in [(30, true), (39, true), (45, false)] {
            let mut list = List::default();
            list.push(ListEnd::Back, core::iter::repeat_n(&[b'x'; 100][..], 100), LIMIT).unwrap();
            list.trim(0..left, LIMIT);
            assert_eq!(list.view().iter().count(), left);
            assert_eq!(matches!(list, List::Packed(_)), is_packed, "{left}");
        }
    }

    #[test]
    fn keys_keep_their_lists_in_every_size() {
        const LIMIT: PartLimit = PartLimit::Bytes(8192);
        let mut db = Db::new(HashKey(1, 2));
        let mut rng = fastrand::Rng::with_seed(4);
        let mut model = VecDeque::new();
        for step in 0..2000 {
            let found = db.find(b"k", 0);
            let edit = db.edit(b"k", found, 0, |list: &mut List, _| {
                change(list, &mut model, LIMIT, &mut rng);
                Ok(())
            });
            assert_eq!(edit.unwrap().is_gone, model.is_empty(), "{step}");
            let found = db.find(b"k", 0);
            assert_eq!(found.map(|found| elements(db.list(found))).unwrap_or_default(), model, "{step}");
            if let Some(found) = found {
                db.copy(found, b"copy", 0).unwrap();
                let copy = db.find(b"copy", 0).unwrap();
                assert_eq!(elements(db.list(copy)), model, "{step}");
                db.set_expires_ms(copy, Some(10)).unwrap();
            }
        }
    }

    #[test]
    fn a_large_list_is_freed_in_slices() {
        let mut db = Db::new(HashKey(1, 2));
        let list = db.build(|list: &mut List, _| {
            list.push(ListEnd::Back, core::iter::repeat_n(&b"element"[..], 200_000), PartLimit::Bytes(8192))
        });
        db.put(b"k", list.unwrap(), Expiry::Never, 0).unwrap();
        let found = db.find(b"k", 0).unwrap();
        assert_eq!(db.encoding(found), Encoding::Quicklist);
        db.remove(found);
        let mut slices = 0;
        while db.free_slice(64) {
            slices += 1;
        }
        assert!(slices > 1, "{slices}");
    }
}
