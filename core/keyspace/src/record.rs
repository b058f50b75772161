//! The layout of a record, and the records with the objects that they own.
//!
//! ```text
//! offset 0    1           4         6           8               8 or 16
//!        +----+-----------+---------+-----------+---------------+-----+---------+
//!        |flag| use field | key len | value len | expiry, if    | key | value   |
//!        |  8 | 24 bits   | 16      | 16        | flagged: 64   |     |         |
//!        +----+-----------+---------+-----------+---------------+-----+---------+
//! ```
//!
//! All numbers are little-endian. The key's length is 10 bits long; the 6 above it are the [`Epoch`]. An integer's value is 8 bytes. What does not fit a record lies in an object of its
//! own, whose 32-bit handle is then the value; a key that is too long lies there as well, and the record's own is empty.

use crate::{
    Decimal, HashKey, OutOfMemory,
    index::{Entries, Index},
    segmented::Segmented,
    slab::{RECORD_LIMIT, Ref, Slab},
    value::{Data, Encoding, Kind, Owned, Value, parse_integer},
};
use alloc::{boxed::Box, vec::Vec};
use core::hint;

/// How much longer it takes to give back a page of records or of an index than to free a record.
pub const PAGE_COST: usize = 16;

const HEADER: usize = 8;
const EXPIRY: usize = 8;
const HANDLE: usize = 4;

/// The longest key that lies in its record.
const KEY_LIMIT: usize = RECORD_LIMIT / 2;
/// Longest string that Redis embeds in its object; `OBJECT ENCODING` shows it.
pub const INLINE_TEXT_LIMIT: usize = 44;

/// The bits of the key's length that no length needs hold the [`Epoch`].
const EPOCH_SHIFT: u32 = 10;
const KEY_LEN_MASK: u16 = (1 << EPOCH_SHIFT) - 1;
const _: () = assert!(KEY_LIMIT <= KEY_LEN_MASK as usize);

const HAS_EXPIRY: u8 = 1 << 0;
const IS_INTEGER: u8 = 1 << 1;
const IS_OBJECT: u8 = 1 << 2;
const KEY_IN_OBJECT: u8 = 1 << 3;
const IS_EDITED: u8 = 1 << 4;
const KIND_SHIFT: u32 = 5;

/// What a record holds when its key or value is too long for it.
struct Object {
    key: Option<Box<[u8]>>,
    data: Data,
}

/// A record's value, wherever it lies.
pub enum Stored<'a> {
    Integer(i64),
    /// A string, or a small collection in its packed form.
    Bytes(&'a [u8]),
    /// A collection that is not packed.
    Data(&'a Data),
}

enum ObjectSlot {
    Used(Object),
    /// The next free slot, or [`NO_SLOT`].
    Free(u32),
}

const NO_SLOT: u32 = u32::MAX;

/// The record header, decoded.
#[derive(Clone, Copy)]
struct Header {
    flags: u8,
    key_len: usize,
    value_len: usize,
}

impl Header {
    #[inline]
    fn read(bytes: &[u8]) -> Header {
        Header {
            flags: bytes[0],
            key_len: (u16::from_le_bytes([bytes[4], bytes[5]]) & KEY_LEN_MASK) as usize,
            value_len: u16::from_le_bytes([bytes[6], bytes[7]]) as usize,
        }
    }

    /// Writes all but the epoch.
    fn write(self, bytes: &mut [u8]) {
        bytes[0] = self.flags;
        let epoch = u16::from_le_bytes([bytes[4], bytes[5]]) & !KEY_LEN_MASK;
        bytes[4..6].copy_from_slice(&(self.key_len as u16 | epoch).to_le_bytes());
        bytes[6..8].copy_from_slice(&(self.value_len as u16).to_le_bytes());
    }

    #[inline]
    fn key_at(self) -> usize {
        HEADER + if self.has(HAS_EXPIRY) { EXPIRY } else { 0 }
    }

    #[inline]
    fn value_at(self) -> usize {
        self.key_at() + self.key_len
    }

    fn len(self) -> usize {
        self.value_at() + self.value_len
    }

    #[inline]
    fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Which walks over all keys have been at a key: each record carries the epoch in which it was made or last marked, and
/// each walk begins another one. Keys that are made during a walk belong to it from the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Epoch(u8);

impl Epoch {
    /// How many there are, after which they begin anew. A walk that comes to its end leaves all keys in one epoch, so only
    /// one less than this many walks in a row may be given up.
    pub const COUNT: u8 = (1 << (u16::BITS - EPOCH_SHIFT)) - 1;

    /// None: that of a large collection which the present walk has written a part of.
    const PARTIAL: Epoch = Epoch(Epoch::COUNT);

    /// The one that the next walk begins.
    pub fn next(self) -> Epoch {
        Epoch((self.0 + 1) % Epoch::COUNT)
    }

    fn mark(self) -> u16 {
        u16::from(self.0) << EPOCH_SHIFT
    }
}

/// All records of one database and the objects that belong to them.
pub struct Records {
    slab: Slab,
    epoch: Epoch,
    objects: Segmented<ObjectSlot>,
    free_object: u32,
    hash_key: HashKey,
}

/// What of a record stays the same when its key changes or its value moves.
#[derive(Clone, Copy)]
pub struct Form {
    pub kind: Kind,
    pub is_edited: bool,
}

impl Form {
    fn string(self, bytes: Vec<u8>) -> Owned<'static> {
        if self.is_edited { Owned::Raw(bytes) } else { Owned::Kept(bytes) }
    }
}

/// Whether a key and a value of `value_len` bytes lie in one record. Room for an expiry is counted always, so that one can
/// be added without moving the value elsewhere.
pub fn fits(key: &[u8], value_len: usize) -> bool {
    key.len() <= KEY_LIMIT && HEADER + EXPIRY + key.len() + value_len <= RECORD_LIMIT
}

impl Entries for Records {
    fn hash_of(&self, record: Ref) -> u64 {
        Records::hash_of(self, record)
    }

    fn fetch(&self, records: &[Ref]) {
        Records::fetch(self, records);
    }
}

/// A value's bytes as a record stores them.
enum Payload<'a> {
    Integer(i64),
    Bytes(&'a [u8]),
    Blob(Vec<u8>),
}

impl Records {
    pub(crate) const fn new(hash_key: HashKey) -> Records {
        Records { slab: Slab::new(), epoch: Epoch(0), objects: Segmented::new(), free_object: NO_SLOT, hash_key }
    }

    pub(crate) fn hash(&self, key: &[u8]) -> u64 {
        self.hash_key.hash(key)
    }

    pub(crate) fn hash_of(&self, record: Ref) -> u64 {
        self.hash(self.key(record))
    }

    /// Has the processor fetch records from memory, all at a time.
    pub(crate) fn fetch(&self, records: &[Ref]) {
        hint::black_box(records.iter().fold(0, |seen, &record| seen ^ self.slab.look(record)));
        if !self.objects.is_empty() {
            hint::black_box(records.iter().fold(0, |seen, &record| seen ^ self.look_at_object(record)));
        }
    }

    /// A look at where the record's object is, if it has one, which has the processor fetch it from memory.
    fn look_at_object(&self, record: Ref) -> u8 {
        match self.data(record) {
            Some(Data::Bytes(bytes)) => bytes.first().copied().unwrap_or(0),
            _ => 0,
        }
    }

    /// The same for the records of one bucket of an index.
    pub(crate) fn fetch_bucket(&self, index: &Index, cursor: u64) {
        let mut seen = 0;
        index.scan(cursor, &mut |record| seen ^= self.slab.look(record));
        hint::black_box(seen);
    }

    pub(crate) fn key(&self, record: Ref) -> &[u8] {
        let bytes = self.slab.bytes(record);
        let header = Header::read(bytes);
        match header.flags & KEY_IN_OBJECT {
            0 => &bytes[header.key_at()..header.value_at()],
            _ => self.object(bytes, header).key.as_deref().expect("flagged as being there"),
        }
    }

    /// What kind of value it is.
    pub(crate) fn kind(&self, record: Ref) -> Kind {
        Kind::from_bits(self.slab.bytes(record)[0] >> KIND_SHIFT)
    }

    /// A record's value, wherever it lies.
    pub(crate) fn stored(&self, record: Ref) -> Stored<'_> {
        let bytes = self.slab.bytes(record);
        let header = Header::read(bytes);
        let value = &bytes[header.value_at()..header.len()];
        if header.has(IS_INTEGER) {
            Stored::Integer(i64::from_le_bytes(value.try_into().expect("an integer has 8 bytes")))
        } else if header.has(IS_OBJECT) {
            match &self.object(bytes, header).data {
                Data::Bytes(bytes) => Stored::Bytes(bytes),
                data => Stored::Data(data),
            }
        } else {
            Stored::Bytes(value)
        }
    }

    /// A string's value.
    pub(crate) fn value(&self, record: Ref) -> Value<'_> {
        debug_assert_eq!(self.kind(record), Kind::String);
        match self.stored(record) {
            Stored::Integer(number) => Value::Integer(number),
            Stored::Bytes(bytes) => Value::Bytes(bytes),
            Stored::Data(_) => unreachable!("a string is never a collection"),
        }
    }

    /// How a string is stored.
    pub(crate) fn string_encoding(&self, record: Ref) -> Encoding {
        match self.value(record) {
            Value::Integer(_) => Encoding::Int,
            Value::Bytes(_) if self.is_edited(record) => Encoding::Raw,
            // The digits of a number lie in an object where the key leaves it no room.
            Value::Bytes(bytes) if self.data(record).is_some() && parse_integer(bytes).is_some() => Encoding::Int,
            Value::Bytes(bytes) => Encoding::of_bytes(bytes.len()),
        }
    }

    /// Bytes that the record and its object take, without the index.
    pub(crate) fn bytes(&self, record: Ref) -> usize {
        let bytes = self.slab.bytes(record);
        let header = Header::read(bytes);
        let object = if header.has(IS_OBJECT) {
            let object = self.object(bytes, header);
            size_of::<ObjectSlot>() + object.data.bytes(self) + object.key.as_ref().map_or(0, |key| key.len())
        } else {
            0
        };
        bytes.len() + object
    }

    pub(crate) fn is_edited(&self, record: Ref) -> bool {
        Header::read(self.slab.bytes(record)).has(IS_EDITED)
    }

    /// Which epoch new records belong to.
    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }

    pub(crate) fn set_epoch(&mut self, epoch: Epoch) {
        self.epoch = epoch;
    }

    /// Whether the record belongs to the present epoch.
    pub(crate) fn is_marked(&self, record: Ref) -> bool {
        let bytes = self.slab.bytes(record);
        u16::from_le_bytes([bytes[4], bytes[5]]) & !KEY_LEN_MASK == self.epoch.mark()
    }

    /// Lets a record belong to the epoch of the one whose place it takes.
    pub(crate) fn inherit_mark(&mut self, from: Ref, to: Ref) {
        let bytes = self.slab.bytes(from);
        let epoch = u16::from_le_bytes([bytes[4], bytes[5]]) & !KEY_LEN_MASK;
        let bytes = self.slab.bytes_mut(to);
        let lengths = u16::from_le_bytes([bytes[4], bytes[5]]) & KEY_LEN_MASK | epoch;
        bytes[4..6].copy_from_slice(&lengths.to_le_bytes());
    }

    /// Lets the record belong to the present epoch.
    pub(crate) fn mark(&mut self, record: Ref) {
        self.mark_as(record, self.epoch);
    }

    /// Notes that a part of the record's collection is written down.
    pub(crate) fn mark_partial(&mut self, record: Ref) {
        self.mark_as(record, Epoch::PARTIAL);
    }

    /// Whether a part of the record's collection is written down.
    pub(crate) fn is_partial(&self, record: Ref) -> bool {
        let bytes = self.slab.bytes(record);
        u16::from_le_bytes([bytes[4], bytes[5]]) & !KEY_LEN_MASK == Epoch::PARTIAL.mark()
    }

    fn mark_as(&mut self, record: Ref, epoch: Epoch) {
        let bytes = self.slab.bytes_mut(record);
        let lengths = u16::from_le_bytes([bytes[4], bytes[5]]) & KEY_LEN_MASK | epoch.mark();
        bytes[4..6].copy_from_slice(&lengths.to_le_bytes());
    }

    /// Expiry in milliseconds since 1970.
    pub(crate) fn expires_ms(&self, record: Ref) -> Option<u64> {
        let bytes = self.slab.bytes(record);
        let field = bytes.get(HEADER..HEADER + EXPIRY).filter(|_| bytes[0] & HAS_EXPIRY != 0)?;
        field.try_into().ok().map(u64::from_le_bytes)
    }

    /// Changes the expiry of a record that has one.
    pub(crate) fn set_expires_ms(&mut self, record: Ref, expires_ms: u64) {
        let bytes = self.slab.bytes_mut(record);
        assert!(bytes[0] & HAS_EXPIRY != 0);
        bytes[HEADER..HEADER + EXPIRY].copy_from_slice(&expires_ms.to_le_bytes());
    }

    /// What the record remembers of its use, in 24 bits.
    pub(crate) fn use_field(&self, record: Ref) -> u32 {
        let bytes = self.slab.bytes(record);
        u32::from_le_bytes([bytes[1], bytes[2], bytes[3], 0])
    }

    pub(crate) fn set_use_field(&mut self, record: Ref, used: u32) {
        self.slab.bytes_mut(record)[1..4].copy_from_slice(&used.to_le_bytes()[..3]);
    }

    /// Makes a record.
    pub(crate) fn create(
        &mut self,
        key: &[u8],
        value: Owned,
        expires_ms: Option<u64>,
        used: u32,
    ) -> Result<Ref, OutOfMemory> {
        let mut flags = if expires_ms.is_some() { HAS_EXPIRY } else { 0 };
        // What comes needs an object.
        let is_to_fill = matches!(value, Owned::ToFill);
        let payload = match value {
            Owned::Integer(number) => Payload::Integer(number),
            Owned::Text(text) => match parse_integer(text) {
                Some(number) => Payload::Integer(number),
                None => Payload::Bytes(text),
            },
            Owned::Kept(bytes) => Payload::Blob(bytes),
            Owned::Raw(bytes) => {
                flags |= IS_EDITED;
                Payload::Blob(bytes)
            }
            Owned::ToFill => Payload::Blob(Vec::new()),
        };
        let fits = |len| !is_to_fill && fits(key, len);
        match payload {
            Payload::Integer(number) if fits(size_of::<i64>()) => {
                self.store(flags | IS_INTEGER, key, &number.to_le_bytes(), expires_ms, used)
            }
            Payload::Bytes(bytes) if fits(bytes.len()) => self.store(flags, key, bytes, expires_ms, used),
            Payload::Blob(bytes) if fits(bytes.len()) => self.store(flags, key, &bytes, expires_ms, used),
            payload => {
                let value = match payload {
                    Payload::Blob(bytes) => bytes,
                    Payload::Bytes(bytes) => copied(bytes)?,
                    Payload::Integer(number) => copied(Decimal::new(number).as_bytes())?,
                };
                self.store_object(flags, key, Data::Bytes(value), expires_ms, used).map_err(|(error, _)| error)
            }
        }
    }

    /// Makes a record of any kind that holds these bytes: a string's, or a collection's packed form.
    pub(crate) fn create_bytes(
        &mut self,
        key: &[u8],
        kind: Kind,
        bytes: &[u8],
        expires_ms: Option<u64>,
        used: u32,
    ) -> Result<Ref, OutOfMemory> {
        let flags = kind.bits() << KIND_SHIFT | if expires_ms.is_some() { HAS_EXPIRY } else { 0 };
        if fits(key, bytes.len()) {
            return self.store(flags, key, bytes, expires_ms, used);
        }
        self.store_object(flags, key, Data::Bytes(copied(bytes)?), expires_ms, used).map_err(|(error, _)| error)
    }

    /// Makes a record whose value is an object. Gives the object back if there is no memory for that.
    pub(crate) fn create_object(
        &mut self,
        key: &[u8],
        form: Form,
        data: Data,
        expires_ms: Option<u64>,
        used: u32,
    ) -> Result<Ref, (OutOfMemory, Data)> {
        let edited = if form.is_edited { IS_EDITED } else { 0 };
        let expiry = if expires_ms.is_some() { HAS_EXPIRY } else { 0 };
        self.store_object(form.kind.bits() << KIND_SHIFT | edited | expiry, key, data, expires_ms, used)
    }

    /// What of a record stays the same when its key changes or its value moves.
    pub(crate) fn form(&self, record: Ref) -> Form {
        Form { kind: self.kind(record), is_edited: self.is_edited(record) }
    }

    fn store_object(
        &mut self,
        flags: u8,
        key: &[u8],
        data: Data,
        expires_ms: Option<u64>,
        used: u32,
    ) -> Result<Ref, (OutOfMemory, Data)> {
        let long_key = key.len() > KEY_LIMIT;
        let own_key = match long_key.then(|| copied(key)).transpose() {
            Ok(key) => key.map(Vec::into_boxed_slice),
            Err(error) => return Err((error, data)),
        };
        let handle = self.add_object(Object { key: own_key, data }).map_err(|(error, object)| (error, object.data))?;
        let flags = flags | IS_OBJECT | if long_key { KEY_IN_OBJECT } else { 0 };
        let key = if long_key { &[][..] } else { key };
        let stored = self.store(flags, key, &handle.to_le_bytes(), expires_ms, used);
        stored.map_err(|error| (error, self.free_object(handle)))
    }

    /// A copy of a member's record.
    pub(crate) fn copy(&mut self, record: Ref) -> Result<Ref, OutOfMemory> {
        let key = copied(self.key(record))?;
        self.copy_within(&key, record)
    }

    /// A copy of another database's member's record.
    pub(crate) fn copy_from(&mut self, from: &Records, record: Ref) -> Result<Ref, OutOfMemory> {
        self.copy_as(from.key(record), from, record)
    }

    /// A record with this key and a copy of another one's value, which is not a collection with members of its own.
    pub(crate) fn copy_within(&mut self, key: &[u8], record: Ref) -> Result<Ref, OutOfMemory> {
        let (form, use_field, expires_ms) = (self.form(record), self.use_field(record), self.expires_ms(record));
        let value = match self.stored(record) {
            Stored::Integer(number) => Ok(number),
            Stored::Bytes(bytes) => Err(copied(bytes)?),
            Stored::Data(_) => unreachable!("it has no members"),
        };
        self.create_like(key, form, value, expires_ms, use_field)
    }

    /// The same from another database's record.
    pub(crate) fn copy_as(&mut self, key: &[u8], from: &Records, record: Ref) -> Result<Ref, OutOfMemory> {
        let value = match from.stored(record) {
            Stored::Integer(number) => Ok(number),
            Stored::Bytes(bytes) => Err(copied(bytes)?),
            Stored::Data(_) => unreachable!("it has no members"),
        };
        self.create_like(key, from.form(record), value, from.expires_ms(record), from.use_field(record))
    }

    fn create_like(
        &mut self,
        key: &[u8],
        form: Form,
        value: Result<i64, Vec<u8>>,
        expires_ms: Option<u64>,
        used: u32,
    ) -> Result<Ref, OutOfMemory> {
        match value {
            Ok(number) => self.create(key, Owned::Integer(number), expires_ms, used),
            Err(bytes) if form.kind == Kind::String => self.create(key, form.string(bytes), expires_ms, used),
            Err(bytes) => self.create_bytes(key, form.kind, &bytes, expires_ms, used),
        }
    }

    /// Overwrites a record in place with a string or integer, if that keeps its expiry or lack of one and fits the same slot,
    /// or the vector that a longer string has. Returns whether it did.
    pub(crate) fn overwrite(&mut self, record: Ref, value: &Owned, expires_ms: Option<u64>, used: u32) -> bool {
        let number;
        let (flag, payload) = match value {
            Owned::Integer(integer) => {
                number = integer.to_le_bytes();
                (IS_INTEGER, &number[..])
            }
            Owned::Text(text) => match parse_integer(text) {
                Some(integer) => {
                    number = integer.to_le_bytes();
                    (IS_INTEGER, &number[..])
                }
                None => (0, *text),
            },
            Owned::Kept(_) | Owned::Raw(_) | Owned::ToFill => return false,
        };
        let bytes = self.slab.bytes_mut(record);
        let old = Header::read(bytes);
        if old.flags >> KIND_SHIFT != 0 || old.has(HAS_EXPIRY) != expires_ms.is_some() {
            return false;
        }
        if old.has(IS_OBJECT) {
            // A number beside a long key is stored as its digits, by who makes a record.
            return flag == 0 && self.overwrite_long(record, payload, expires_ms, used);
        }
        let len = old.value_at() + payload.len();
        if old.key_len + payload.len() > RECORD_LIMIT - HEADER - EXPIRY || Slab::slot_bytes(len) != bytes.len() {
            return false;
        }
        let header = Header { flags: old.flags & HAS_EXPIRY | flag, key_len: old.key_len, value_len: payload.len() };
        header.write(bytes);
        bytes[1..4].copy_from_slice(&used.to_le_bytes()[..3]);
        if let Some(expires_ms) = expires_ms {
            bytes[HEADER..HEADER + EXPIRY].copy_from_slice(&expires_ms.to_le_bytes());
        }
        bytes[header.value_at()..len].copy_from_slice(payload);
        true
    }

    /// The same for a string that is too long for a record, in the place of another one that is.
    fn overwrite_long(&mut self, record: Ref, text: &[u8], expires_ms: Option<u64>, used: u32) -> bool {
        if fits(self.key(record), text.len()) {
            return false;
        }
        let Some(Data::Bytes(value)) = self.data_mut(record) else { return false };
        // One that has become much smaller gives memory back instead.
        if value.capacity() < text.len() || value.capacity() / 2 > text.len() {
            return false;
        }
        value.clear();
        value.extend_from_slice(text);
        self.slab.bytes_mut(record)[0] &= !IS_EDITED;
        self.set_use_field(record, used);
        if let Some(expires_ms) = expires_ms {
            self.set_expires_ms(record, expires_ms);
        }
        true
    }

    /// The bytes of a string that is not an integer, for edits that keep its length.
    pub(crate) fn bytes_mut(&mut self, record: Ref) -> &mut [u8] {
        let header = Header::read(self.slab.bytes(record));
        assert!(!header.has(IS_INTEGER));
        if header.has(IS_OBJECT) {
            return self.blob_mut(record).expect("it has an object");
        }
        let bytes = self.slab.bytes_mut(record);
        bytes[0] |= IS_EDITED;
        &mut bytes[header.value_at()..header.len()]
    }

    /// The vector that holds a string's bytes, where it has one, for edits.
    pub(crate) fn blob_mut(&mut self, record: Ref) -> Option<&mut Vec<u8>> {
        if self.data(record).is_some() {
            self.slab.bytes_mut(record)[0] |= IS_EDITED;
        }
        self.whole_blob_mut(record)
    }

    fn whole_blob_mut(&mut self, record: Ref) -> Option<&mut Vec<u8>> {
        match self.data_mut(record)? {
            Data::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The object of a record that has one.
    pub(crate) fn data_mut(&mut self, record: Ref) -> Option<&mut Data> {
        let bytes = self.slab.bytes(record);
        let header = Header::read(bytes);
        if !header.has(IS_OBJECT) {
            return None;
        }
        let handle = handle_in(bytes, header);
        Some(&mut self.object_mut(handle).data)
    }

    /// Overwrites the bytes in a record in place, if it has no object and they fit its slot. Returns whether it did.
    pub(crate) fn overwrite_bytes(&mut self, record: Ref, payload: &[u8]) -> bool {
        let bytes = self.slab.bytes_mut(record);
        let old = Header::read(bytes);
        let len = old.value_at() + payload.len();
        if old.has(IS_OBJECT) || !fits(&bytes[old.key_at()..old.value_at()], payload.len()) || len > bytes.len() {
            return false;
        }
        // One that has become much smaller moves to a smaller slot instead.
        if Slab::slot_bytes(len) * 2 < bytes.len() {
            return false;
        }
        let header = Header { value_len: payload.len(), ..old };
        header.write(bytes);
        bytes[header.value_at()..len].copy_from_slice(payload);
        true
    }

    /// The object of a record that has one.
    pub(crate) fn data(&self, record: Ref) -> Option<&Data> {
        let bytes = self.slab.bytes(record);
        let header = Header::read(bytes);
        header.has(IS_OBJECT).then(|| &self.object(bytes, header).data)
    }

    /// Makes a copy of a record with or without an expiry; the object, if any, then belongs to both until one of them
    /// is freed by [`free_shell`](Self::free_shell).
    pub(crate) fn move_with_expiry(&mut self, record: Ref, expires_ms: Option<u64>) -> Result<Ref, OutOfMemory> {
        let mut copy = [0; RECORD_LIMIT];
        let bytes = self.slab.bytes(record);
        let header = Header::read(bytes);
        let body = &mut copy[..header.len() - header.key_at()];
        body.copy_from_slice(&bytes[header.key_at()..header.len()]);
        let (key, payload) = body.split_at(header.key_len);
        let flags = header.flags & !HAS_EXPIRY | if expires_ms.is_some() { HAS_EXPIRY } else { 0 };
        self.store(flags, key, payload, expires_ms, self.use_field(record))
    }

    /// Frees a record whose object belongs to another one now.
    pub(crate) fn free_shell(&mut self, record: Ref) {
        self.slab.free(record);
    }

    /// Frees a record with its object. What the object still refers to is the caller's to free.
    #[must_use]
    pub(crate) fn dissolve(&mut self, record: Ref) -> Option<Data> {
        let bytes = self.slab.bytes(record);
        let header = Header::read(bytes);
        let handle = header.has(IS_OBJECT).then(|| handle_in(bytes, header));
        let data = handle.map(|handle| self.free_object(handle as u32));
        self.slab.free(record);
        data
    }

    /// Frees a record of a string.
    pub(crate) fn free(&mut self, record: Ref) {
        debug_assert_eq!(self.kind(record), Kind::String);
        drop(self.dissolve(record));
    }

    /// Number of places for objects.
    pub(crate) fn object_places(&self) -> usize {
        self.objects.len()
    }

    /// Takes a collection with members, or a string of many bytes, out of the object at a place, if there is one.
    pub(crate) fn take_large(&mut self, place: usize) -> Option<Data> {
        /// Strings up to this length go with their object.
        const LARGE_BYTES: usize = 64 << 10;
        match &mut self.objects[place] {
            ObjectSlot::Free(_) => None,
            ObjectSlot::Used(Object { data: Data::Bytes(bytes), .. }) if bytes.capacity() <= LARGE_BYTES => None,
            ObjectSlot::Used(object) => Some(core::mem::replace(&mut object.data, Data::Bytes(Vec::new()))),
        }
    }

    /// Drops the last object, wherever the record that has it is: nobody may ask for it any more. Returns whether there
    /// was one.
    pub(crate) fn drop_object(&mut self) -> bool {
        self.objects.pop().is_some()
    }

    /// Gives a page with all its records back. Returns whether there was one.
    pub(crate) fn drop_page(&mut self) -> bool {
        self.slab.drop_page()
    }

    /// Number of pages.
    pub(crate) fn pages(&self) -> usize {
        self.slab.pages()
    }

    /// Bytes of pages that no record takes.
    pub(crate) fn free_bytes(&self) -> usize {
        self.slab.free_bytes()
    }

    /// Bytes of the pages and of the table of objects, without the objects' own.
    pub(crate) fn overhead_bytes(&self) -> usize {
        self.slab.page_bytes() + self.objects.len() * size_of::<ObjectSlot>()
    }

    fn store(
        &mut self,
        flags: u8,
        key: &[u8],
        payload: &[u8],
        expires_ms: Option<u64>,
        used: u32,
    ) -> Result<Ref, OutOfMemory> {
        let header = Header { flags, key_len: key.len(), value_len: payload.len() };
        let record = self.slab.allocate(header.len())?;
        let epoch = self.epoch;
        let bytes = self.slab.bytes_mut(record);
        bytes[4..6].copy_from_slice(&epoch.mark().to_le_bytes());
        header.write(bytes);
        bytes[header.key_at()..header.value_at()].copy_from_slice(key);
        bytes[header.value_at()..header.len()].copy_from_slice(payload);
        if let Some(expires_ms) = expires_ms {
            bytes[HEADER..HEADER + EXPIRY].copy_from_slice(&expires_ms.to_le_bytes());
        }
        self.set_use_field(record, used);
        Ok(record)
    }

    fn object(&self, bytes: &[u8], header: Header) -> &Object {
        match &self.objects[handle_in(bytes, header)] {
            ObjectSlot::Used(object) => object,
            ObjectSlot::Free(_) => unreachable!("a record's object lives as long as it"),
        }
    }

    fn object_mut(&mut self, handle: usize) -> &mut Object {
        match &mut self.objects[handle] {
            ObjectSlot::Used(object) => object,
            ObjectSlot::Free(_) => unreachable!("a record's object lives as long as it"),
        }
    }

    fn add_object(&mut self, object: Object) -> Result<u32, (OutOfMemory, Object)> {
        if self.free_object == NO_SLOT {
            let handle = self.objects.len() as u32;
            if let Err(error) = self.objects.push(ObjectSlot::Free(NO_SLOT)) {
                return Err((error, object));
            }
            self.objects[handle as usize] = ObjectSlot::Used(object);
            return Ok(handle);
        }
        let handle = self.free_object;
        if let ObjectSlot::Free(next) = core::mem::replace(&mut self.objects[handle as usize], ObjectSlot::Used(object))
        {
            self.free_object = next;
        }
        Ok(handle)
    }

    fn free_object(&mut self, handle: u32) -> Data {
        let next = core::mem::replace(&mut self.free_object, handle);
        match core::mem::replace(&mut self.objects[handle as usize], ObjectSlot::Free(next)) {
            ObjectSlot::Used(object) => object.data,
            ObjectSlot::Free(_) => unreachable!("an object is freed once"),
        }
    }
}

fn handle_in(bytes: &[u8], header: Header) -> usize {
    let at = header.value_at();
    u32::from_le_bytes(bytes[at..at + HANDLE].try_into().expect("a handle has 4 bytes")) as usize
}

/// Copies bytes into a vector of their own.
pub fn copied(bytes: &[u8]) -> Result<Vec<u8>, OutOfMemory> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len())?;
    copy.extend_from_slice(bytes);
    Ok(copy)
}
