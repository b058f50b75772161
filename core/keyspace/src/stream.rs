//! Streams: entries by rising IDs, and groups of consumers that share them.
//!
//! Entries lie in blocks, each in one run of bytes (see [`block`]), and the blocks in order in a counting tree, as the
//! entries lie in listpacks in a radix tree in Redis. Blocks begin where Redis' listpacks do, since `XTRIM ~` shows it.

mod block;
mod group;

use crate::{
    Collection, Db, Direction, Found, Kind, OutOfMemory, Packed,
    ordered::{Item, Tree},
    record::Stored,
    value::Data,
};
use alloc::{boxed::Box, vec::Vec};
use block::Block;
use core::ops::ControlFlow;

pub use block::EntryRef;
pub use group::{Consumer, Group, Pending};

/// What names an entry: when it was added, in milliseconds since 1970, and a number among those of that time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub struct StreamId {
    pub ms: u64,
    pub seq: u64,
}

impl StreamId {
    /// The lowest one. No entry has it.
    pub const MIN: StreamId = StreamId { ms: 0, seq: 0 };
    /// The highest one.
    pub const MAX: StreamId = StreamId { ms: u64::MAX, seq: u64::MAX };

    /// The one behind it, if there is one.
    pub fn next(self) -> Option<StreamId> {
        match (self.seq.checked_add(1), self.ms.checked_add(1)) {
            (Some(seq), _) => Some(StreamId { seq, ..self }),
            (None, Some(ms)) => Some(StreamId { ms, seq: 0 }),
            (None, None) => None,
        }
    }

    /// The one before it, if there is one.
    pub fn previous(self) -> Option<StreamId> {
        match (self.seq.checked_sub(1), self.ms.checked_sub(1)) {
            (Some(seq), _) => Some(StreamId { seq, ..self }),
            (None, Some(ms)) => Some(StreamId { ms, seq: u64::MAX }),
            (None, None) => None,
        }
    }
}

impl Item for StreamId {
    type Key = StreamId;
    fn key(&self) -> StreamId {
        *self
    }
}

/// Where blocks end, by the `stream-node-max-*` options; 0 for no such limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockLimits {
    /// Bytes from which on a block takes no further entry.
    pub bytes: u64,
    /// Most entries.
    pub entries: u64,
}

/// What of a stream is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// So many entries, the latest ones.
    Last(u64),
    /// The entries from this one on.
    From(StreamId),
}

/// How a stream is trimmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trim {
    /// To the letter.
    Exactly(Keep),
    /// By whole blocks only, and by no more than this number of entries; 0 for no limit.
    Roughly(Keep, u64),
}

/// A stream.
#[derive(Default)]
pub struct Stream {
    blocks: Tree<Block>,
    len: u64,
    /// The ID of the first entry, or zero.
    first_id: StreamId,
    /// The highest ID that an entry has had.
    pub last_id: StreamId,
    /// The highest ID of a removed entry.
    pub max_deleted_id: StreamId,
    /// Entries that were ever added.
    pub entries_added: u64,
    /// By name.
    groups: Vec<Group>,
}

impl Collection for Box<Stream> {
    const KIND: Kind = Kind::Stream;

    fn from_packed(_: Packed) -> Box<Stream> {
        unreachable!("streams have no packed form")
    }

    fn from_data(data: Data) -> Box<Stream> {
        match data {
            Data::Stream(stream) => stream,
            _ => unreachable!("the record says that it is a stream"),
        }
    }

    fn into_data(self) -> Data {
        Data::Stream(self)
    }

    /// A stream without entries stays: it has IDs to go on from, and groups.
    fn is_empty(&self) -> bool {
        false
    }
}

/// Adds a block where its first ID belongs.
fn add(blocks: &mut Tree<Block>, block: Block) -> Result<(), OutOfMemory> {
    let first = block.key();
    blocks.insert(block, |key| key.cmp(&first))
}

impl Stream {
    /// Number of entries.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The ID of the first entry, or zero.
    pub fn first_id(&self) -> StreamId {
        self.first_id
    }

    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Appends an entry, whose ID must be higher than [`last_id`](Self::last_id).
    pub fn append<'a>(
        &mut self,
        id: StreamId,
        fields: impl ExactSizeIterator<Item = (&'a [u8], &'a [u8])> + Clone,
        limits: BlockLimits,
    ) -> Result<(), OutOfMemory> {
        assert!(id > self.last_id);
        let text_bytes = fields.clone().map(|(name, value)| (name.len() + value.len()) as u64).sum();
        let last = self.blocks.len().checked_sub(1).and_then(|rank| self.blocks.get_mut(rank));
        match last.filter(|block| block.has_room(text_bytes, limits)) {
            Some(block) => block.append(id, fields)?,
            None => add(&mut self.blocks, Block::new(id, fields)?)?,
        }
        self.len += 1;
        self.entries_added = self.entries_added.wrapping_add(1);
        self.last_id = id;
        if self.len == 1 {
            self.first_id = id;
        }
        Ok(())
    }

    /// Where the last block begins that begins before an entry, or the last of all.
    #[cold]
    pub fn block_before(&self, below: Option<StreamId>) -> Option<StreamId> {
        let blocks = below.map_or(self.blocks.len(), |below| self.blocks.rank(|first| first < below));
        self.blocks.get(blocks.checked_sub(1)?).map(Item::key)
    }

    /// Whether all of its entries have higher IDs than those of another stream.
    pub fn is_behind(&self, other: &Stream) -> bool {
        let last = other.end(Direction::Backward).map(EntryRef::id);
        self.is_empty() || last.is_none_or(|last| last < self.first_id)
    }

    /// Puts another stream's entries before its own, which all have higher IDs, takes over what the other one says of IDs,
    /// and what its groups have that are here as well is pending here, too.
    #[cold]
    pub fn merge(&mut self, mut other: Stream) -> Result<(), OutOfMemory> {
        assert!(self.is_behind(&other));
        let mut result = Ok(());
        let Stream { blocks, len, .. } = self;
        other.blocks.drain(usize::MAX, |block: Block| {
            let entries = block.len();
            if result.is_ok() {
                result = add(blocks, block);
                *len += if result.is_ok() { entries } else { 0 };
            }
        });
        result?;
        if other.len > 0 {
            self.first_id = other.first_id;
        }
        self.last_id = self.last_id.max(other.last_id);
        (self.max_deleted_id, self.entries_added) = (other.max_deleted_id, other.entries_added);
        for group in other.groups {
            match self.group_mut(group.name()) {
                Some(own) => own.take_pending_of(&group)?,
                None => {
                    let rank = self.groups.partition_point(|own| own.name() < group.name());
                    self.groups.try_reserve(1)?;
                    self.groups.insert(rank, group);
                }
            }
        }
        Ok(())
    }

    /// Shows the entries from `start` to `end`, both included, from either end, until `visit` breaks.
    pub fn visit<'a>(
        &'a self,
        start: StreamId,
        end: StreamId,
        direction: Direction,
        mut visit: impl FnMut(EntryRef<'a>) -> ControlFlow<()>,
    ) {
        let skipped = match direction {
            // The last block that begins at the start or before it may hold the first entries.
            Direction::Forward => self.blocks.rank(|first| first <= start).saturating_sub(1),
            Direction::Backward => self.blocks.len() - self.blocks.rank(|first| first <= end),
        };
        self.blocks.visit(skipped, direction, |block| block.visit(start, end, direction, &mut visit));
    }

    /// The entry of this ID.
    pub fn get(&self, id: StreamId) -> Option<EntryRef<'_>> {
        let mut found = None;
        self.visit(id, id, Direction::Forward, |entry| {
            found = Some(entry);
            ControlFlow::Break(())
        });
        found
    }

    /// The first or last entry.
    pub fn end(&self, direction: Direction) -> Option<EntryRef<'_>> {
        let mut found = None;
        self.visit(StreamId::MIN, StreamId::MAX, direction, |entry| {
            found = Some(entry);
            ControlFlow::Break(())
        });
        found
    }

    fn find_first_id(&mut self) {
        self.first_id = self.end(Direction::Forward).map_or(StreamId::MIN, |entry| entry.id());
    }

    /// Removes an entry. Returns whether it was there.
    pub fn remove(&mut self, id: StreamId) -> bool {
        let Some(rank) = self.blocks.rank(|first| first <= id).checked_sub(1) else { return false };
        let Some(block) = self.blocks.get_mut(rank) else { return false };
        if !block.remove(id) {
            return false;
        }
        let (first, is_empty) = (block.key(), block.len() == 0);
        if is_empty {
            self.blocks.remove(|key| key.cmp(&first));
        }
        self.len -= 1;
        self.max_deleted_id = self.max_deleted_id.max(id);
        if id == self.first_id || self.len == 0 {
            self.find_first_id();
        }
        true
    }

    /// Removes the oldest entries. Returns how many.
    pub fn trim(&mut self, trim: Trim) -> u64 {
        let (keep, limit) = match trim {
            Trim::Exactly(keep) => (keep, 0),
            Trim::Roughly(keep, limit) => (keep, limit),
        };
        let mut removed = 0;
        while let Some(block) = self.blocks.get_mut(0) {
            let entries = block.len();
            let is_whole = match keep {
                Keep::Last(len) if self.len <= len => break,
                Keep::Last(len) => self.len - entries >= len,
                Keep::From(id) => block.last_id() < id,
            };
            if limit > 0 && removed + entries > limit {
                break;
            }
            if is_whole {
                let first = block.key();
                self.blocks.remove(|key| key.cmp(&first));
                (self.len, removed) = (self.len - entries, removed + entries);
                continue;
            }
            if let Trim::Exactly(keep) = trim {
                let gone = match keep {
                    Keep::Last(len) => block.remove_first(self.len - len),
                    Keep::From(id) => block.remove_before(id),
                };
                (self.len, removed) = (self.len - gone, removed + gone);
            }
            break;
        }
        if removed > 0 {
            self.find_first_id();
        }
        removed
    }

    /// How many entries were ever added up to this ID, if that can be told.
    pub fn entries_until(&self, id: StreamId) -> Option<u64> {
        if self.entries_added == 0 {
            return Some(0);
        }
        if self.len == 0 && id <= self.last_id || id == self.last_id {
            return Some(self.entries_added);
        }
        let has_holes = self.max_deleted_id != StreamId::MIN && self.max_deleted_id >= self.first_id;
        if id > self.last_id || has_holes {
            return None;
        }
        let before = self.entries_added.wrapping_sub(self.len);
        match id.cmp(&self.first_id) {
            core::cmp::Ordering::Less => Some(before),
            core::cmp::Ordering::Equal => Some(before.wrapping_add(1)),
            core::cmp::Ordering::Greater => None,
        }
    }

    /// Whether an entry from this ID on was removed.
    fn has_holes_from(&self, id: StreamId) -> bool {
        self.len > 0
            && self.max_deleted_id != StreamId::MIN
            && self.first_id <= self.max_deleted_id
            && id <= self.max_deleted_id
    }

    /// How many entries a group has not read yet, if that can be told.
    pub fn lag(&self, group: &Group) -> Option<i64> {
        if self.entries_added == 0 {
            return Some(0);
        }
        let read = group.entries_read.filter(|_| !self.has_holes_from(group.last_id));
        let read = read.or_else(|| self.entries_until(group.last_id))?;
        Some(self.entries_added.wrapping_sub(read) as i64)
    }

    /// The groups, by name.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    fn group_place(&self, name: &[u8]) -> Result<usize, usize> {
        self.groups.binary_search_by(|group| group.name().cmp(name))
    }

    /// The group of this name.
    pub fn group(&self, name: &[u8]) -> Option<&Group> {
        self.group_place(name).ok().map(|at| &self.groups[at])
    }

    /// The group of this name, to change.
    pub fn group_mut(&mut self, name: &[u8]) -> Option<&mut Group> {
        self.group_place(name).ok().map(|at| &mut self.groups[at])
    }

    /// Makes a group. Returns whether there was none of this name.
    pub fn add_group(
        &mut self,
        name: &[u8],
        last_id: StreamId,
        entries_read: Option<u64>,
    ) -> Result<bool, OutOfMemory> {
        let Err(at) = self.group_place(name) else { return Ok(false) };
        let group = Group::new(name, last_id, entries_read)?;
        self.groups.try_reserve(1)?;
        self.groups.insert(at, group);
        Ok(true)
    }

    /// Removes a group. Returns whether there was one.
    pub fn remove_group(&mut self, name: &[u8]) -> bool {
        let place = self.group_place(name).ok();
        place.map(|at| self.groups.remove(at)).is_some()
    }

    /// Notes that a group has read up to an entry.
    pub fn note_read(&mut self, group: &[u8], id: StreamId) {
        let read = self.group(group).map(|group| match group.entries_read {
            _ if id <= group.last_id => group.entries_read,
            Some(read) if !self.has_holes_from(id) => Some(read.wrapping_add(1)),
            _ if self.entries_added > 0 => self.entries_until(id),
            read => read,
        });
        if let (Some(read), Some(group)) = (read, self.group_mut(group)) {
            group.entries_read = read;
            group.last_id = group.last_id.max(id);
        }
    }

    /// Bytes of all of it.
    pub fn bytes(&self) -> usize {
        let mut bytes = size_of::<Stream>() + self.blocks.bytes();
        self.blocks.for_each(|block| bytes += block.bytes());
        bytes + self.groups.capacity() * size_of::<Group>() + self.groups.iter().map(Group::bytes).sum::<usize>()
    }

    /// Frees about `limit` blocks or pending entries. Returns what is left of that number, if nothing is left. A stream of
    /// which something is freed is good for nothing else.
    pub fn free(&mut self, limit: usize) -> Option<usize> {
        let mut budget = self.blocks.drain(limit, drop)?;
        while let Some(group) = self.groups.last_mut() {
            budget = group.free(budget)?;
            self.groups.pop();
        }
        Some(budget)
    }

    /// A copy of all of it.
    pub fn copy(&self) -> Result<Stream, OutOfMemory> {
        let mut copy = Stream { blocks: Tree::new(), groups: Vec::new(), ..*self };
        let mut result = Ok(());
        self.blocks.visit(0, Direction::Forward, |block| {
            result = block.copy().and_then(|block| add(&mut copy.blocks, block));
            if result.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        result?;
        copy.groups.try_reserve_exact(self.groups.len())?;
        for group in &self.groups {
            copy.groups.push(group.copy()?);
        }
        Ok(copy)
    }
}

impl Db {
    /// The stream at a key that has one.
    pub fn stream(&self, found: Found) -> &Stream {
        assert_eq!(self.kind(found), Kind::Stream);
        match self.records.stored(found.record) {
            Stored::Data(Data::Stream(stream)) => stream,
            _ => unreachable!("the record says that it is a stream"),
        }
    }
}

#[cfg(test)]
mod tests;
