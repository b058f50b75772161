use crate::{
    OutOfMemory, Parts,
    record::{INLINE_TEXT_LIMIT, Records, copied},
    stream::Stream,
    table::{Copying, Table},
    zset::ScoreTable,
};
use alloc::{boxed::Box, vec::Vec};

/// What kind of value a key has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Kind {
    String,
    List,
    Set,
    Hash,
    SortedSet,
    Stream,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 6] = [Kind::String, Kind::List, Kind::Set, Kind::Hash, Kind::SortedSet, Kind::Stream];

    /// The name in `TYPE`.
    pub fn name(self) -> &'static str {
        match self {
            Kind::String => "string",
            Kind::List => "list",
            Kind::Set => "set",
            Kind::Hash => "hash",
            Kind::SortedSet => "zset",
            Kind::Stream => "stream",
        }
    }

    pub(crate) fn bits(self) -> u8 {
        self as u8
    }

    pub(crate) fn from_bits(bits: u8) -> Kind {
        Kind::ALL[usize::from(bits)]
    }
}

/// A value that does not lie in its key's record.
pub enum Data {
    /// A long string, or a collection in its packed form that is too long for a record.
    Bytes(Vec<u8>),
    /// A hash that is not packed.
    Hash(Box<Table>),
    /// The same, of whose fields some expire.
    Expiring(Box<ScoreTable>),
    /// A list in several parts.
    List(Box<Parts>),
    /// A set that is neither packed nor an intset.
    Set(Box<Table>),
    /// A sorted set that is not packed.
    SortedSet(Box<ScoreTable>),
    /// A stream.
    Stream(Box<Stream>),
}

impl Data {
    /// Bytes of memory, without the place of this itself.
    pub fn bytes(&self, records: &Records) -> usize {
        match self {
            Data::Bytes(bytes) => bytes.capacity(),
            Data::List(parts) => parts.bytes(),
            Data::Hash(table) | Data::Set(table) => table.bytes(records),
            Data::SortedSet(table) | Data::Expiring(table) => table.bytes(records),
            Data::Stream(stream) => stream.bytes(),
        }
    }

    /// Frees about `limit` of its members. Returns what is left of that number, if no member is left. One that is freed in
    /// part is good for nothing else.
    pub fn free(&mut self, records: &mut Records, limit: usize) -> Option<usize> {
        match self {
            Data::Bytes(bytes) => free_bytes(bytes, limit),
            Data::List(parts) => parts.free(limit),
            Data::Hash(table) | Data::Set(table) => table.free(records, limit),
            Data::SortedSet(table) | Data::Expiring(table) => table.free(records, limit),
            Data::Stream(stream) => stream.free(limit),
        }
    }

    /// A copy with copies of all that it refers to.
    pub fn copy(&self, copying: &mut Copying<'_>) -> Result<Data, OutOfMemory> {
        Ok(match self {
            Data::Bytes(bytes) => Data::Bytes(copied(bytes)?),
            Data::List(parts) => Data::List(Box::new(parts.copy()?)),
            Data::Hash(table) => Data::Hash(Box::new(table.copy(copying)?)),
            Data::Expiring(table) => Data::Expiring(Box::new(table.copy_fields(copying)?)),
            Data::Set(table) => Data::Set(Box::new(table.copy(copying)?)),
            Data::SortedSet(zset) => Data::SortedSet(Box::new(zset.copy(copying)?)),
            Data::Stream(stream) => Data::Stream(Box::new(stream.copy()?)),
        })
    }
}

/// Frees the end of a string, of a length that takes as long as freeing `limit` members.
fn free_bytes(bytes: &mut Vec<u8>, limit: usize) -> Option<usize> {
    /// What the system takes back in that time.
    const BYTES_PER_MEMBER: usize = 2048;
    let members = bytes.capacity() / BYTES_PER_MEMBER;
    if members <= limit {
        return Some(limit - members);
    }
    bytes.truncate((members - limit) * BYTES_PER_MEMBER);
    // Allocators shorten a block where it is.
    bytes.shrink_to_fit();
    None
}

/// A string as it lies in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// A string that is the canonical decimal form of an integer.
    Integer(i64),
    /// Any other string.
    Bytes(&'a [u8]),
}

/// A string on its way into the store.
#[derive(Debug)]
pub enum Owned<'a> {
    /// A string that may turn out to be an integer's canonical form.
    Text(&'a [u8]),
    /// An integer.
    Integer(i64),
    /// A string that stays as it is, even if it is an integer's canonical form.
    Kept(Vec<u8>),
    /// The same, but edited in place: `OBJECT ENCODING` calls it `raw`.
    Raw(Vec<u8>),
    /// A long string, whose bytes [`Db::fill`](crate::Db::fill) brings before anything else happens.
    ToFill,
}

/// How a value is stored, by Redis' names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// An integer.
    Int,
    /// A short string that was never edited.
    Embstr,
    /// Any other string.
    Raw,
    /// A small collection in its packed form.
    Listpack,
    /// A list of packed parts.
    Quicklist,
    /// A set of integers in order.
    Intset,
    /// A large set or hash.
    Hashtable,
    /// A large sorted set.
    Skiplist,
    /// A stream.
    Stream,
}

impl Encoding {
    /// The name in `OBJECT ENCODING`.
    pub fn name(self) -> &'static str {
        match self {
            Encoding::Int => "int",
            Encoding::Embstr => "embstr",
            Encoding::Raw => "raw",
            Encoding::Listpack => "listpack",
            Encoding::Quicklist => "quicklist",
            Encoding::Intset => "intset",
            Encoding::Hashtable => "hashtable",
            Encoding::Skiplist => "skiplist",
            Encoding::Stream => "stream",
        }
    }

    pub(crate) fn of_bytes(len: usize) -> Encoding {
        if len <= INLINE_TEXT_LIMIT { Encoding::Embstr } else { Encoding::Raw }
    }
}

/// Reads an integer in canonical decimal form: no sign `+`, no leading zero, no space, no `-0`.
pub fn parse_integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, text),
    };
    match digits {
        [b'0'] if !negative => return Some(0),
        [b'1'..=b'9', ..] if digits.len() <= 19 => {}
        _ => return None,
    }
    let mut magnitude: u64 = 0;
    for &digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        // Nineteen digits cannot overflow 64 bits.
        magnitude = magnitude * 10 + u64::from(digit - b'0');
    }
    if negative { 0i64.checked_sub_unsigned(magnitude) } else { i64::try_from(magnitude).ok() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn integers_are_canonical_only() {
        for number in [0, 1, -1, 9, 10, 123456, i64::MAX, i64::MIN, i64::MAX - 1, i64::MIN + 1] {
            assert_eq!(parse_integer(number.to_string().as_bytes()), Some(number));
        }
        for text in [
            "",
            "-",
            "-0",
            "00",
            "01",
            "+1",
            " 1",
            "1 ",
            "1a",
            "9223372036854775808",
            "-9223372036854775809",
            "99999999999999999999",
        ] {
            assert_eq!(parse_integer(text.as_bytes()), None, "{text:?}");
        }
    }
}
