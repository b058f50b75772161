//! What a record of the log says.
//!
//! ```text
//! record = item …
//! item   = 1 | time: 48                                             when what follows happened: milliseconds since 1970
//!        | 2 | database: varint                                     what follows is about; a record begins with the first
//!        | 3 | count: varint | (length: varint | word) × count      an effect: a command's words
//!        | 4 | head | value                                         a key and its string
//!        | 5 | head | length: varint | value                        a key and its value in the form of Redis' dumps
//!        | 6 | keys: varint                                         about so many keys will follow
//!        | 7                                                        a compaction begins
//!        | 8 | head | index: varint | length: varint | value        a part of a key's collection, to be merged with what
//!                                                                  is there; a list's is inserted at the index
//!        | 9                                                        what follows a master has sent: keys whose time has
//!                                                                  come are there until it says that they go
//! head   = flags: 8 | use: 24 | [expiry: 64] | length: varint | key
//! value  = integer: 64 | length: varint | text
//! ```
//!
//! All numbers are little-endian; a varint has seven bits a byte, the lowest first, and the top bit set where more follow.

use kayvee_keyspace::{Value, WrittenString};
use kayvee_resp::{Places, Request};

const TIME: u8 = 1;
const DATABASE: u8 = 2;
const COMMAND: u8 = 3;
const STRING: u8 = 4;
const VALUE: u8 = 5;
const SIZE: u8 = 6;
const BEGINNING: u8 = 7;
const PART: u8 = 8;
const FROM_MASTER: u8 = 9;

const HAS_EXPIRY: u8 = 1 << 0;
const IS_INTEGER: u8 = 1 << 1;

/// Bytes of a time: enough for another 8,000 years.
const TIME_BYTES: usize = 6;
/// Longest varint of 64 bits.
const VARINT_LIMIT: usize = 10;

/// Where a record is written. It notes for itself if it can take no more.
pub trait Sink {
    fn put(&mut self, bytes: &[u8]);
}

/// A few bytes that are put at once.
struct Short {
    bytes: [u8; 48],
    len: usize,
}

impl Short {
    fn new() -> Short {
        Short { bytes: [0; 48], len: 0 }
    }

    #[inline(always)]
    fn byte(&mut self, byte: u8) -> &mut Short {
        self.bytes[self.len] = byte;
        self.len += 1;
        self
    }

    #[inline]
    fn slice(&mut self, bytes: &[u8]) -> &mut Short {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
        self
    }

    #[inline]
    fn varint(&mut self, mut number: u64) -> &mut Short {
        while number >= 0x80 {
            self.byte(number as u8 | 0x80);
            number >>= 7;
        }
        self.byte(number as u8)
    }

    /// Puts the bytes and begins anew.
    #[inline]
    fn put(&mut self, sink: &mut impl Sink) {
        sink.put(&self.bytes[..self.len]);
        self.len = 0;
    }
}

/// Says when what follows happened.
pub fn write_time(sink: &mut impl Sink, unix_ms: u64) {
    Short::new().byte(TIME).slice(&unix_ms.to_le_bytes()[..TIME_BYTES]).put(sink);
}

/// Says what database the following is about.
pub fn write_database(sink: &mut impl Sink, db: usize) {
    Short::new().byte(DATABASE).varint(db as u64).put(sink);
}

/// Says how many keys will follow, about.
pub fn write_size(sink: &mut impl Sink, keys: usize) {
    Short::new().byte(SIZE).varint(keys as u64).put(sink);
}

/// Says that a compaction begins: all data will follow, between effects.
pub fn write_beginning(sink: &mut impl Sink) {
    sink.put(&[BEGINNING]);
}

/// Says that what follows comes from a master.
pub fn write_from_master(sink: &mut impl Sink) {
    sink.put(&[FROM_MASTER]);
}

/// A part of a key's collection.
pub fn write_part(sink: &mut impl Sink, head: Head<'_>, index: usize, value: &[u8]) {
    head.write(sink, PART, 0);
    Short::new().varint(index as u64).varint(value.len() as u64).put(sink);
    sink.put(value);
}

/// An effect: a command of these words.
#[inline]
pub fn write_command<'w>(sink: &mut impl Sink, name: &[u8], rest: impl ExactSizeIterator<Item = &'w [u8]>) {
    let mut short = Short::new();
    // No name is longer than a few letters.
    short.byte(COMMAND).varint(rest.len() as u64 + 1).varint(name.len() as u64).slice(name);
    for word in rest {
        short.varint(word.len() as u64).put(sink);
        sink.put(word);
    }
    if short.len > 0 {
        short.put(sink);
    }
}

/// What is written of a key besides its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head<'a> {
    pub key: &'a [u8],
    pub expires_ms: Option<u64>,
    /// What is remembered of its use, in 24 bits.
    pub used: u32,
}

impl Head<'_> {
    fn write(self, sink: &mut impl Sink, tag: u8, flags: u8) {
        let flags = flags | if self.expires_ms.is_some() { HAS_EXPIRY } else { 0 };
        let mut short = Short::new();
        short.byte(tag).byte(flags).slice(&self.used.to_le_bytes()[..3]);
        if let Some(at) = self.expires_ms {
            short.slice(&at.to_le_bytes());
        }
        short.varint(self.key.len() as u64).put(sink);
        sink.put(self.key);
    }
}

/// A key and its string.
pub fn write_string(sink: &mut impl Sink, head: Head<'_>, value: Value<'_>) {
    match value {
        Value::Integer(number) => {
            head.write(sink, STRING, IS_INTEGER);
            sink.put(&number.to_le_bytes());
        }
        Value::Bytes(text) => {
            head.write(sink, STRING, 0);
            Short::new().varint(text.len() as u64).put(sink);
            sink.put(text);
        }
    }
}

/// A key and its value in the form of Redis' dumps.
pub fn write_value(sink: &mut impl Sink, head: Head<'_>, value: &[u8]) {
    head.write(sink, VALUE, 0);
    Short::new().varint(value.len() as u64).put(sink);
    sink.put(value);
}

/// One item of a record.
pub enum Item<'a> {
    Time(u64),
    Database(usize),
    Command(Request<'a>),
    String(WrittenString<'a>),
    Value(Head<'a>, &'a [u8]),
    Size(usize),
    Beginning,
    /// The key, the index in a list, and the value.
    Part(Head<'a>, usize, &'a [u8]),
    FromMaster,
}

/// The least that a record says of a key: what it is, flags, use, and two lengths.
pub const LEAST_KEY_BYTES: u64 = 7;

/// A record that does not say what records say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// A record to read.
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, at: 0 }
    }

    /// The next item, or `None` at the end. `places` takes where a command's words lie.
    pub fn next<'p>(&mut self, places: &'p mut Places) -> Result<Option<Item<'p>>, Malformed>
    where
        'a: 'p,
    {
        let Some(&tag) = self.bytes.get(self.at) else { return Ok(None) };
        self.at += 1;
        Ok(Some(match tag {
            TIME => {
                let mut ms = [0; 8];
                ms[..TIME_BYTES].copy_from_slice(self.slice(TIME_BYTES)?);
                Item::Time(u64::from_le_bytes(ms))
            }
            DATABASE => Item::Database(self.length()?),
            COMMAND => {
                let count = self.length()?;
                places.clear();
                for _ in 0..count {
                    let len = self.length()?;
                    let start = self.at;
                    self.slice(len)?;
                    places.push(start..self.at).map_err(|_| Malformed)?;
                }
                if count == 0 {
                    return Err(Malformed);
                }
                Item::Command(places.request(self.bytes))
            }
            STRING => Item::String(self.string()?),
            VALUE => Item::Value(self.head()?.0, self.text()?),
            SIZE => Item::Size(self.length()?),
            BEGINNING => Item::Beginning,
            PART => Item::Part(self.head()?.0, self.length()?, self.text()?),
            FROM_MASTER => Item::FromMaster,
            _ => return Err(Malformed),
        }))
    }

    /// The next item if it is a key and its string.
    #[inline]
    pub fn next_string(&mut self) -> Result<Option<WrittenString<'a>>, Malformed> {
        if self.bytes.get(self.at) != Some(&STRING) {
            return Ok(None);
        }
        self.at += 1;
        self.string().map(Some)
    }

    fn string(&mut self) -> Result<WrittenString<'a>, Malformed> {
        let (head, flags) = self.head()?;
        let value = match flags & IS_INTEGER {
            0 => Value::Bytes(self.text()?),
            _ => Value::Integer(i64::from_le_bytes(self.array()?)),
        };
        let Head { key, expires_ms, used } = head;
        Ok(WrittenString { key, value, expires_ms, used })
    }

    #[inline]
    fn slice(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let end = self.at.checked_add(len).ok_or(Malformed)?;
        let slice = self.bytes.get(self.at..end).ok_or(Malformed)?;
        self.at = end;
        Ok(slice)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.slice(N).and_then(|slice| slice.try_into().map_err(|_| Malformed))
    }

    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut number = 0;
        for place in 0..VARINT_LIMIT {
            let byte = *self.bytes.get(self.at).ok_or(Malformed)?;
            self.at += 1;
            number |= u64::from(byte & 0x7f) << (7 * place);
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(Malformed)
    }

    fn length(&mut self) -> Result<usize, Malformed> {
        usize::try_from(self.varint()?).map_err(|_| Malformed)
    }

    fn text(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.length()?;
        self.slice(len)
    }

    fn head(&mut self) -> Result<(Head<'a>, u8), Malformed> {
        let [flags, a, b, c] = self.array()?;
        let expires_ms = match flags & HAS_EXPIRY {
            0 => None,
            _ => Some(u64::from_le_bytes(self.array()?)),
        };
        Ok((Head { key: self.text()?, expires_ms, used: u32::from_le_bytes([a, b, c, 0]) }, flags))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{format, string::String, vec, vec::Vec};

    impl Sink for Vec<u8> {
        fn put(&mut self, bytes: &[u8]) {
            self.extend_from_slice(bytes);
        }
    }

    fn shown(bytes: &[u8]) -> Result<Vec<String>, Malformed> {
        let mut reader = Reader::new(bytes);
        let mut places = Places::default();
        let mut items = Vec::new();
        while let Some(item) = reader.next(&mut places)? {
            items.push(match item {
                Item::Time(ms) => format!("time {ms}"),
                Item::Database(db) => format!("db {db}"),
                Item::Command(request) => format!("{:?}", request.from(0).collect::<Vec<_>>()),
                Item::String(string) => format!("{string:?}"),
                Item::Value(head, value) => format!("{head:?} {value:?}"),
                Item::Size(keys) => format!("{keys} keys"),
                Item::Beginning => "beginning".into(),
                Item::Part(head, index, value) => format!("{head:?} at {index} {value:?}"),
                Item::FromMaster => "from the master".into(),
            });
        }
        Ok(items)
    }

    #[test]
    fn what_is_written_is_read_and_what_is_cut_is_refused() {
        let long = vec![b'x'; 300];
        let mut bytes = Vec::new();
        let head = Head { key: b"key", expires_ms: Some(u64::MAX), used: 0xab_cdef };
        write_time(&mut bytes, 1_600_000_000_000);
        write_database(&mut bytes, 300);
        write_command(&mut bytes, b"set", [&b"k"[..], b"", &long].into_iter());
        write_command(&mut bytes, b"flushall", [].into_iter());
        write_string(&mut bytes, head, Value::Integer(-5));
        write_string(&mut bytes, Head { expires_ms: None, ..head }, Value::Bytes(&long));
        write_value(&mut bytes, head, &long);
        write_size(&mut bytes, 70_000);
        write_beginning(&mut bytes);
        write_part(&mut bytes, head, 200, &long);
        write_from_master(&mut bytes);
        let words: [&[u8]; 4] = [b"set", b"k", b"", &long];
        let expected = [
            "time 1600000000000".into(),
            "db 300".into(),
            format!("{words:?}"),
            format!("{:?}", [b"flushall"]),
            format!(
                "{:?}",
                WrittenString { key: b"key", value: Value::Integer(-5), expires_ms: Some(u64::MAX), used: 0xab_cdef }
            ),
            format!(
                "{:?}",
                WrittenString { key: b"key", value: Value::Bytes(&long), expires_ms: None, used: 0xab_cdef }
            ),
            format!("{head:?} {long:?}"),
            "70000 keys".into(),
            "beginning".into(),
            format!("{head:?} at 200 {long:?}"),
            "from the master".into(),
        ];
        assert_eq!(shown(&bytes).unwrap(), expected);
        let whole = (0..bytes.len()).filter(|&len| shown(&bytes[..len]).is_ok()).count();
        assert_eq!(whole, expected.len(), "only between items");
        assert_eq!(shown(&[10]), Err(Malformed));
        assert_eq!(shown(&[COMMAND, 0]), Err(Malformed));
        assert_eq!(
            shown(&[VALUE, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
            Err(Malformed)
        );
    }
}
