//! Streams.
//!
//! ```text
//! stream   = blocks: how many, then each: ID of 16 bytes, listpack
//!            entries, last ID; since version 2: first ID, highest deleted ID, entries ever added
//!            groups: how many, then each: name, last ID; since version 2: entries read
//!                pending: how many, then each: ID of 16 bytes, time of 8, deliveries
//!                consumers: how many, then each: name, time seen; since version 3: time active
//!                    pending: how many, then each: ID of 16 bytes
//! listpack = entries, deleted ones, number of names, names, 0, then each entry:
//!            flags (1: deleted, 2: the names are those above), ID less the block's: ms, seq;
//!            number of fields and names with values, or values; how many entries all this was
//! ```
//!
//! IDs of 16 bytes are big-endian, times are milliseconds since 1970 and little-endian, the rest are lengths.

use crate::{
    Dialect, Error, Reader, Text, Writer,
    listpack::{Cursor, Entry, Listpack},
};
use alloc::vec::Vec;

const DELETED: i64 = 1;
const SAME_NAMES: i64 = 2;
/// What stands for a number that is not known.
const UNKNOWN: u64 = u64::MAX;

/// What names an entry: its time in milliseconds and a number among those of that time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub struct Id {
    pub ms: u64,
    pub seq: u64,
}

impl Id {
    fn bytes(self) -> [u8; 16] {
        (u128::from(self.ms) << 64 | u128::from(self.seq)).to_be_bytes()
    }

    fn from_bytes(bytes: [u8; 16]) -> Id {
        let number = u128::from_be_bytes(bytes);
        Id { ms: (number >> 64) as u64, seq: number as u64 }
    }
}

/// What is known of a stream beside its entries and groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Number of entries.
    pub len: u64,
    /// The highest ID that an entry has had.
    pub last_id: Id,
    /// The ID of the first entry, or zero.
    pub first_id: Id,
    /// The highest ID of a deleted entry.
    pub max_deleted_id: Id,
    /// Entries that were ever added.
    pub entries_added: u64,
}

/// A group of consumers.
#[derive(Debug)]
pub struct Group<'a> {
    #[allow(missing_docs)]
    pub name: Text<'a>,
    /// The last entry that was delivered.
    pub last_id: Id,
    /// How many entries were ever added up to that one, if that is known.
    pub entries_read: Option<u64>,
}

/// An entry that was delivered and not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    #[allow(missing_docs)]
    pub id: Id,
    /// When it was delivered last, in milliseconds since 1970.
    pub delivered_ms: u64,
    /// How often it was delivered.
    pub deliveries: u64,
}

/// A consumer of a group.
#[derive(Debug)]
pub struct Consumer<'a> {
    #[allow(missing_docs)]
    pub name: Text<'a>,
    /// When it last asked for something, in milliseconds since 1970.
    pub seen_ms: u64,
    /// When it last got something, if ever.
    pub active_ms: Option<u64>,
}

/// A stream that is being read, part by part, in the order of its methods.
#[derive(Debug)]
pub struct Stream<'a> {
    pub(crate) reader: Reader<'a>,
    /// Of its form: 1, 2 or 3.
    pub(crate) version: u8,
}

impl<'a> Stream<'a> {
    /// Visits the entries, whose IDs ascend, with their names and values in turn.
    pub fn entries<E: From<Error>>(
        &mut self,
        mut visit: impl FnMut(Id, &[Entry<'_>]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut last = Id::default();
        for _ in 0..self.reader.len()? {
            let key = self.reader.text()?;
            let block = Id::from_bytes(key.as_bytes().try_into().map_err(|_| Error::Corrupt)?);
            let pack = self.reader.text()?;
            read_block(pack.as_bytes(), block, &mut last, &mut visit)?;
        }
        Ok(())
    }

    fn id(&mut self) -> Result<Id, Error> {
        Ok(Id { ms: self.reader.len()?, seq: self.reader.len()? })
    }

    fn raw_id(&mut self) -> Result<Id, Error> {
        self.reader.bytes(16)?.try_into().map(Id::from_bytes).map_err(|_| Error::Corrupt)
    }

    /// What is known beside the entries. The older form does not know all of it.
    pub fn head(&mut self) -> Result<Head, Error> {
        let (len, last_id) = (self.reader.len()?, self.id()?);
        let mut head =
            Head { len, last_id, first_id: Id::default(), max_deleted_id: Id::default(), entries_added: len };
        if self.version >= 2 {
            (head.first_id, head.max_deleted_id) = (self.id()?, self.id()?);
            head.entries_added = self.reader.len()?;
        }
        Ok(head)
    }

    /// How many groups, pending entries or consumers follow.
    pub fn count(&mut self) -> Result<u64, Error> {
        self.reader.len()
    }

    /// Whether groups tell how many entries they have read. Before version 2 they did not.
    pub fn has_entries_read(&self) -> bool {
        self.version >= 2
    }

    /// The next group. The [`count`](Self::count) of its pending entries follows, then these, the count of its consumers,
    /// and these.
    pub fn group(&mut self) -> Result<Group<'a>, Error> {
        let (name, last_id) = (self.reader.text()?, self.id()?);
        let entries_read = if self.version >= 2 { self.reader.len()? } else { UNKNOWN };
        Ok(Group { name, last_id, entries_read: Some(entries_read).filter(|read| *read != UNKNOWN) })
    }

    /// The next pending entry of a group.
    pub fn pending(&mut self) -> Result<Pending, Error> {
        Ok(Pending { id: self.raw_id()?, delivered_ms: self.reader.u64()?, deliveries: self.reader.len()? })
    }

    /// The next consumer. The count of the IDs that are pending for it follows, then these.
    pub fn consumer(&mut self) -> Result<Consumer<'a>, Error> {
        let (name, seen_ms) = (self.reader.text()?, self.reader.u64()?);
        let active_ms = if self.version >= 3 { self.reader.u64()? } else { seen_ms };
        Ok(Consumer { name, seen_ms, active_ms: Some(active_ms).filter(|ms| *ms != UNKNOWN) })
    }

    /// The next ID that is pending for a consumer.
    pub fn pending_id(&mut self) -> Result<Id, Error> {
        self.raw_id()
    }
}

/// Reads the entries of one block.
fn read_block<E: From<Error>>(
    pack: &[u8],
    block: Id,
    last: &mut Id,
    visit: &mut impl FnMut(Id, &[Entry<'_>]) -> Result<(), E>,
) -> Result<(), E> {
    let corrupt = || E::from(Error::Corrupt);
    let mut cursor = Cursor::new(pack)?;
    let (live, deleted, names_len) = (cursor.number()?, cursor.number()?, cursor.size()?);
    let mut names = Vec::new();
    for _ in 0..names_len {
        names.try_reserve(1).map_err(Error::from)?;
        names.push(cursor.next()?);
    }
    if cursor.number()? != 0 {
        return Err(corrupt());
    }
    let mut fields = Vec::new();
    let mut seen = [0i64; 2];
    while !cursor.is_at_end() {
        let start = cursor.passed();
        let flags = cursor.number()?;
        let (ms, seq) = (cursor.number()? as u64, cursor.number()? as u64);
        let id = Id { ms: block.ms.wrapping_add(ms), seq: block.seq.wrapping_add(seq) };
        let has_names = flags & SAME_NAMES == 0;
        let own_names = if has_names { cursor.size()? } else { 0 };
        fields.clear();
        for _ in 0..own_names {
            fields.try_reserve(2).map_err(Error::from)?;
            fields.extend([cursor.next()?, cursor.next()?]);
        }
        for name in names.iter().filter(|_| !has_names) {
            fields.try_reserve(2).map_err(Error::from)?;
            fields.extend([*name, cursor.next()?]);
        }
        let passed = cursor.passed() - start;
        if cursor.number()? != passed as i64 || flags & !(DELETED | SAME_NAMES) != 0 || fields.is_empty() {
            return Err(corrupt());
        }
        let is_deleted = flags & DELETED != 0;
        seen[usize::from(is_deleted)] += 1;
        if id <= *last {
            return Err(corrupt());
        }
        *last = id;
        if !is_deleted {
            visit(id, &fields)?;
        }
    }
    if seen != [live, deleted] { Err(corrupt()) } else { Ok(()) }
}

/// Entries on their way into blocks.
#[derive(Debug)]
pub struct Blocks<'w> {
    writer: &'w mut Writer,
    /// Where the first block begins.
    start: usize,
    blocks: u64,
    /// The last one.
    open: Option<Block>,
    limit: BlockLimit,
}

/// Where blocks end; 0 for no such limit.
#[derive(Clone, Copy, Debug)]
pub struct BlockLimit {
    #[allow(missing_docs)]
    pub bytes: u64,
    #[allow(missing_docs)]
    pub entries: u64,
}

#[derive(Debug)]
struct Block {
    first: Id,
    /// Behind the numbers of entries.
    names: Vec<Vec<u8>>,
    names_bytes: usize,
    entries: Listpack,
    count: u64,
}

impl<'w> Blocks<'w> {
    /// Without entries.
    pub fn new(limit: BlockLimit, writer: &'w mut Writer) -> Blocks<'w> {
        Blocks { start: writer.written(), writer, blocks: 0, open: None, limit }
    }

    /// Adds an entry behind the others.
    pub fn push(&mut self, id: Id, fields: &[(&[u8], &[u8])]) -> Result<(), Error> {
        let text_bytes: usize = fields.iter().map(|(name, value)| name.len() + value.len()).sum();
        let BlockLimit { bytes, entries } = self.limit;
        let has_room = self.open.as_ref().is_some_and(|block| {
            let len = (block.entries.len() + block.names_bytes + text_bytes) as u64;
            (bytes == 0 || len < bytes) && (entries == 0 || block.count < entries)
        });
        if !has_room {
            self.close()?;
        }
        let block = match &mut self.open {
            Some(block) => block,
            None => self.open.insert(Block::new(id, fields)?),
        };
        block.push(id, fields);
        Ok(())
    }

    fn close(&mut self) -> Result<(), Error> {
        if let Some(block) = self.open.take() {
            self.writer.text(&block.first.bytes());
            self.writer.text(&block.finish()?);
            self.blocks += 1;
        }
        Ok(())
    }

    /// Ends the last block.
    pub fn finish(mut self) -> Result<(), Error> {
        self.close()?;
        let blocks = self.blocks;
        self.writer.insert(self.start, |writer| writer.len(blocks));
        Ok(())
    }
}

impl Block {
    fn new(first: Id, fields: &[(&[u8], &[u8])]) -> Result<Block, Error> {
        let mut names = Vec::new();
        names.try_reserve_exact(fields.len())?;
        for (name, _) in fields {
            let mut copy = Vec::new();
            copy.try_reserve_exact(name.len())?;
            copy.extend_from_slice(name);
            names.push(copy);
        }
        let names_bytes = fields.iter().map(|(name, _)| name.len() + 2).sum();
        Ok(Block { first, names, names_bytes, entries: Listpack::new(), count: 0 })
    }

    fn push(&mut self, id: Id, fields: &[(&[u8], &[u8])]) {
        let is_same = self.names.len() == fields.len()
            && self.names.iter().zip(fields).all(|(name, (other, _))| name.as_slice() == *other);
        let start = self.entries.count();
        self.entries.push_integer(if is_same { SAME_NAMES } else { 0 });
        self.entries.push_integer(id.ms.wrapping_sub(self.first.ms) as i64);
        self.entries.push_integer(id.seq.wrapping_sub(self.first.seq) as i64);
        if !is_same {
            self.entries.push_integer(fields.len() as i64);
        }
        for (name, value) in fields {
            if !is_same {
                self.entries.push(name);
            }
            self.entries.push(value);
        }
        self.entries.push_integer((self.entries.count() - start) as i64);
        self.count += 1;
    }

    fn finish(self) -> Result<Vec<u8>, Error> {
        let mut pack = Listpack::new();
        for number in [self.count, 0, self.names.len() as u64] {
            pack.push_integer(number as i64);
        }
        self.names.iter().for_each(|name| pack.push(name));
        pack.push_integer(0);
        pack.append(self.entries);
        pack.finish()
    }
}

impl Writer {
    fn id(&mut self, id: Id) {
        self.len(id.ms);
        self.len(id.seq);
    }

    /// What is known of a stream, behind its blocks; the number of its groups follows.
    pub fn stream_head(&mut self, head: Head) {
        self.len(head.len);
        [head.last_id, head.first_id, head.max_deleted_id].into_iter().for_each(|id| self.id(id));
        self.len(head.entries_added);
    }

    /// A group; the number of its pending entries follows.
    pub fn group(&mut self, name: &[u8], last_id: Id, entries_read: Option<u64>) {
        self.text(name);
        self.id(last_id);
        self.len(entries_read.unwrap_or(UNKNOWN));
    }

    /// A pending entry of a group.
    pub fn pending(&mut self, pending: Pending) {
        self.bytes(&pending.id.bytes());
        self.bytes(&pending.delivered_ms.to_le_bytes());
        self.len(pending.deliveries);
    }

    /// A consumer; the number of IDs that are pending for it follows. Before version 3 nothing is said of when it was
    /// active.
    pub fn consumer(&mut self, name: &[u8], seen_ms: u64, active_ms: Option<u64>, dialect: Dialect) {
        self.text(name);
        self.bytes(&seen_ms.to_le_bytes());
        if dialect >= Dialect::Redis72 {
            self.bytes(&active_ms.unwrap_or(UNKNOWN).to_le_bytes());
        }
    }

    /// An ID that is pending for a consumer.
    pub fn pending_id(&mut self, id: Id) {
        self.bytes(&id.bytes());
    }
}
