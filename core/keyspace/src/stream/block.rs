//! Entries of a stream in one run of bytes.
//!
//! ```text
//! block = names | entry …                                          each a packed string
//! names = count | (length | name) …                                of the first entry's fields; numbers are varints
//! entry = 0 | ms | seq | (length | value) …                        its fields have those names
//!       | 1 | ms | seq | count | (length | name | length | value) …
//! ```
//!
//! `ms` counts from the first entry's, and so does `seq` if `ms` is 0.

use super::{BlockLimits, StreamId};
use crate::{Direction, OutOfMemory, Packed, ordered::Item, packed::Offset, parse_integer};
use alloc::vec::Vec;
use core::ops::ControlFlow;

/// Redis' own bound of a listpack.
const BYTES_LIMIT: u64 = 1 << 30;
/// Longest varint of 64 bits.
const VARINT_LIMIT: usize = 10;

const SAME_NAMES: u8 = 0;
const OWN_NAMES: u8 = 1;

/// A block.
pub struct Block {
    /// The ID of the first entry that it had.
    first: StreamId,
    /// The ID of the last entry that it had.
    last: StreamId,
    packed: Packed,
    /// Entries that were removed.
    removed: u64,
    /// Bytes that a Redis listpack of all entries takes, the removed ones among them, without its two counters.
    listpack_bytes: u64,
}

impl Item for Block {
    type Key = StreamId;
    fn key(&self) -> StreamId {
        self.first
    }
}

/// An entry to read.
#[derive(Clone, Copy)]
pub struct EntryRef<'a> {
    id: StreamId,
    len: usize,
    /// The names, where they stand apart from the values.
    names: Option<&'a [u8]>,
    fields: &'a [u8],
}

impl<'a> EntryRef<'a> {
    /// Its ID.
    pub fn id(self) -> StreamId {
        self.id
    }

    /// Number of its fields.
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether it has none, which no entry has.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Calls `visit` with the name and value of each field.
    pub fn for_each(self, mut visit: impl FnMut(&'a [u8], &'a [u8])) {
        let (mut names, mut fields) = (self.names, self.fields);
        for _ in 0..self.len {
            let name = read_text(names.as_mut().unwrap_or(&mut fields));
            visit(name, read_text(&mut fields));
        }
    }
}

fn write_varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn read_varint(bytes: &mut &[u8]) -> u64 {
    let mut number = 0;
    for shift in (0..).step_by(7) {
        let (&byte, rest) = bytes.split_first().expect("a varint is complete");
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    number
}

fn write_text(bytes: &mut Vec<u8>, text: &[u8]) {
    write_varint(bytes, text.len() as u64);
    bytes.extend_from_slice(text);
}

fn read_text<'a>(bytes: &mut &'a [u8]) -> &'a [u8] {
    let len = read_varint(bytes) as usize;
    let (text, rest) = bytes.split_at(len);
    *bytes = rest;
    text
}

/// Bytes that an element with this many bytes of payload takes in a listpack: it ends with its length in 7-bit digits.
fn with_back_length(bytes: u64) -> u64 {
    bytes + u64::from(64 - bytes.leading_zeros()).div_ceil(7).clamp(1, 5)
}

/// Bytes that a number takes in a listpack.
fn listpack_number_bytes(number: i64) -> u64 {
    with_back_length(match number {
        0..=127 => 1,
        -4096..=4095 => 2,
        -0x8000..=0x7fff => 3,
        -0x80_0000..=0x7f_ffff => 4,
        -0x8000_0000..=0x7fff_ffff => 5,
        _ => 9,
    })
}

/// Bytes that a text takes in a listpack.
fn listpack_text_bytes(text: &[u8]) -> u64 {
    if let Some(number) = parse_integer(text) {
        return listpack_number_bytes(number);
    }
    let len = text.len() as u64;
    with_back_length(match len {
        0..64 => 1 + len,
        64..4096 => 2 + len,
        _ => 5 + len,
    })
}

impl Block {
    /// A block with its first entry.
    pub fn new<'a>(
        id: StreamId,
        fields: impl ExactSizeIterator<Item = (&'a [u8], &'a [u8])> + Clone,
    ) -> Result<Block, OutOfMemory> {
        let names_bytes: usize = fields.clone().map(|(name, _)| name.len() + VARINT_LIMIT).sum();
        let mut names = Vec::new();
        names.try_reserve_exact(VARINT_LIMIT + names_bytes)?;
        write_varint(&mut names, fields.len() as u64);
        fields.clone().for_each(|(name, _)| write_text(&mut names, name));
        let mut packed = Packed::new();
        packed.push_back(&names)?;
        // Header and end, the number of names, the names, and a zero behind them.
        let names: u64 = fields.clone().map(|(name, _)| listpack_text_bytes(name)).sum();
        let listpack_bytes = 7 + listpack_number_bytes(fields.len() as i64) + names + listpack_number_bytes(0);
        let mut block = Block { first: id, last: id, packed, removed: 0, listpack_bytes };
        block.append(id, fields)?;
        Ok(block)
    }

    /// Number of entries.
    pub fn len(&self) -> u64 {
        self.packed.len() as u64 - 1
    }

    /// The ID of the last entry that it had.
    pub fn last_id(&self) -> StreamId {
        self.last
    }

    /// Whether an entry whose names and values have this many bytes still goes into it, by Redis' measure.
    pub fn has_room(&self, text_bytes: u64, limits: BlockLimits) -> bool {
        let bytes_limit = if limits.bytes == 0 { BYTES_LIMIT } else { limits.bytes.min(BYTES_LIMIT) };
        let counters = listpack_number_bytes(self.len() as i64) + listpack_number_bytes(self.removed as i64);
        let entries = self.len() + self.removed;
        self.listpack_bytes + counters + text_bytes < bytes_limit && (limits.entries == 0 || entries < limits.entries)
    }

    /// The names of the first entry's fields, with their number.
    fn names(&self) -> (usize, &[u8]) {
        let packed = self.packed.as_ref();
        let mut names = packed.get(packed.start()).expect("they come first");
        (read_varint(&mut names) as usize, names)
    }

    fn has_names<'a>(&self, fields: impl ExactSizeIterator<Item = (&'a [u8], &'a [u8])>) -> bool {
        let (len, mut names) = self.names();
        let mut fields = fields;
        fields.len() == len && fields.all(|(name, _)| read_text(&mut names) == name)
    }

    /// Appends an entry.
    pub fn append<'a>(
        &mut self,
        id: StreamId,
        fields: impl ExactSizeIterator<Item = (&'a [u8], &'a [u8])> + Clone,
    ) -> Result<(), OutOfMemory> {
        let has_names = self.has_names(fields.clone());
        let text_bytes: usize = fields.clone().map(|(name, value)| name.len() + value.len() + 2 * VARINT_LIMIT).sum();
        let mut entry = Vec::new();
        entry.try_reserve_exact(1 + 3 * VARINT_LIMIT + text_bytes)?;
        entry.push(if has_names { SAME_NAMES } else { OWN_NAMES });
        let ms = id.ms - self.first.ms;
        write_varint(&mut entry, ms);
        write_varint(&mut entry, if ms == 0 { id.seq - self.first.seq } else { id.seq });
        let len = fields.len() as i64;
        // Flags, the differences to the first ID, the values, and how many elements these are.
        let seq_difference = id.seq.wrapping_sub(self.first.seq) as i64;
        let mut listpack_bytes =
            listpack_number_bytes(2) + listpack_number_bytes(ms as i64) + listpack_number_bytes(seq_difference);
        listpack_bytes += fields.clone().map(|(_, value)| listpack_text_bytes(value)).sum::<u64>();
        if has_names {
            fields.for_each(|(_, value)| write_text(&mut entry, value));
            listpack_bytes += listpack_number_bytes(len + 3);
        } else {
            write_varint(&mut entry, len as u64);
            listpack_bytes += listpack_number_bytes(len) + listpack_number_bytes(2 * len + 4);
            for (name, value) in fields {
                write_text(&mut entry, name);
                write_text(&mut entry, value);
                listpack_bytes += listpack_text_bytes(name);
            }
        }
        self.packed.push_back(&entry)?;
        self.listpack_bytes += listpack_bytes;
        self.last = id;
        Ok(())
    }

    fn read<'a>(&'a self, mut bytes: &'a [u8]) -> EntryRef<'a> {
        let kind = bytes[0];
        bytes = &bytes[1..];
        let ms = read_varint(&mut bytes);
        let seq = read_varint(&mut bytes);
        let seq = if ms == 0 { self.first.seq + seq } else { seq };
        let id = StreamId { ms: self.first.ms + ms, seq };
        if kind == SAME_NAMES {
            let (len, names) = self.names();
            return EntryRef { id, len, names: Some(names), fields: bytes };
        }
        let len = read_varint(&mut bytes) as usize;
        EntryRef { id, len, names: None, fields: bytes }
    }

    /// Shows the entries of these IDs.
    pub fn visit<'a>(
        &'a self,
        start: StreamId,
        end: StreamId,
        direction: Direction,
        visit: &mut impl FnMut(EntryRef<'a>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut show = |bytes| {
            let entry = self.read(bytes);
            let (is_early, is_late) = (entry.id < start, entry.id > end);
            match direction {
                Direction::Forward if is_late => ControlFlow::Break(()),
                Direction::Backward if is_early => ControlFlow::Break(()),
                _ if is_early || is_late => ControlFlow::Continue(()),
                _ => visit(entry),
            }
        };
        let mut entries = self.packed.as_ref().iter();
        entries.next();
        match direction {
            Direction::Forward => entries.try_for_each(&mut show),
            Direction::Backward => entries.rev().try_for_each(&mut show),
        }
    }

    /// Where the first entry begins.
    fn start(&self) -> Offset {
        let packed = self.packed.as_ref();
        packed.entry(packed.start()).expect("the names come first").1
    }

    /// Removes an entry. Returns whether it was there.
    pub fn remove(&mut self, id: StreamId) -> bool {
        let mut at = self.start();
        while let Some((bytes, next)) = self.packed.as_ref().entry(at) {
            match self.read(bytes).id.cmp(&id) {
                core::cmp::Ordering::Less => at = next,
                core::cmp::Ordering::Equal => {
                    self.packed.remove(at, 1);
                    self.removed += 1;
                    return true;
                }
                core::cmp::Ordering::Greater => break,
            }
        }
        false
    }

    /// Removes so many entries, or all. Returns how many.
    pub fn remove_first(&mut self, count: u64) -> u64 {
        let count = count.min(self.len());
        self.packed.remove(self.start(), count as usize);
        self.removed += count;
        count
    }

    /// Removes the entries before an ID. Returns how many.
    pub fn remove_before(&mut self, id: StreamId) -> u64 {
        let mut count = 0;
        _ = self.visit(StreamId::MIN, StreamId::MAX, Direction::Forward, &mut |entry: EntryRef<'_>| {
            if entry.id >= id {
                return ControlFlow::Break(());
            }
            count += 1;
            ControlFlow::Continue(())
        });
        self.remove_first(count)
    }

    /// Bytes allocated.
    pub fn bytes(&self) -> usize {
        self.packed.capacity()
    }

    /// A copy of it.
    pub fn copy(&self) -> Result<Block, OutOfMemory> {
        Ok(Block { packed: Packed::copy_of(self.packed.as_bytes())?, ..*self })
    }
}
