//! The layout of a record, and the records with the objects that they own.
//!
//! ```text
//! offset 0    1           4         6           8               8 or 16
//!        +----+-----------+---------+-----------+---------------+-----+---------+
//!        |flag| last use  | key len | value len | expiry, if    | key | value   |
//!        |  8 | 24 bits   | 16      | 16        | flagged: 64   |     |         |
//!        +----+-----------+---------+-----------+---------------+-----+---------+
//! ```
//!
//! All numbers are little-endian. An integer's value is 8 bytes. What does not fit a record lies in an object of its
//! own, whose 32-bit handle is then the value; a key that is too long lies there as well, and the record's own is empty.

use crate::{
    HashKey, OutOfMemory,
    segmented::Segmented,
    slab::{RECORD_LIMIT, Ref, Slab},
    value::{Encoding, Owned, Value, parse_integer},
};
use alloc::{boxed::Box, vec::Vec};

const HEADER: usize = 8;
const EXPIRY: usize = 8;
const HANDLE: usize = 4;

/// The longest key that lies in its record.
const KEY_LIMIT: usize = RECORD_LIMIT / 2;
/// Longest string that Redis embeds in its object; `OBJECT ENCODING` shows it.
pub const INLINE_TEXT_LIMIT: usize = 44;

const HAS_EXPIRY: u8 = 1 << 0;
const IS_INTEGER: u8 = 1 << 1;
const IS_OBJECT: u8 = 1 << 2;
const KEY_IN_OBJECT: u8 = 1 << 3;
const IS_EDITED: u8 = 1 << 4;

/// What a record holds when its key or value is too long for it.
struct Object {
    key: Option<Box<[u8]>>,
    value: Vec<u8>,
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
            key_len: u16::from_le_bytes([bytes[4], bytes[5]]) as usize,
            value_len: u16::from_le_bytes([bytes[6], bytes[7]]) as usize,
        }
    }

    fn write(self, bytes: &mut [u8]) {
        bytes[0] = self.flags;
        bytes[4..6].copy_from_slice(&(self.key_len as u16).to_le_bytes());
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

/// All records of one database and the objects that belong to them.
pub struct Records {
    slab: Slab,
    objects: Segmented<ObjectSlot>,
    free_object: u32,
    hash_key: HashKey,
}

/// A value's bytes as a record stores them.
enum Payload<'a> {
    Integer(i64),
    Bytes(&'a [u8]),
    Blob(Vec<u8>),
}

impl Records {
    pub const fn new(hash_key: HashKey) -> Records {
        Records { slab: Slab::new(), objects: Segmented::new(), free_object: NO_SLOT, hash_key }
    }

    #[inline]
    pub fn hash(&self, key: &[u8]) -> u64 {
        self.hash_key.hash(key)
    }

    pub fn hash_of(&self, record: Ref) -> u64 {
        self.hash(self.key(record))
    }

    #[inline]
    pub fn key(&self, record: Ref) -> &[u8] {
        let bytes = self.slab.bytes(record);
        let header = Header::read(bytes);
        match header.flags & KEY_IN_OBJECT {
            0 => &bytes[header.key_at()..header.value_at()],
            _ => self.object(bytes, header).key.as_deref().expect("flagged as being there"),
        }
    }

    #[inline]
    pub fn value(&self, record: Ref) -> Value<'_> {
        let bytes = self.slab.bytes(record);
        let header = Header::read(bytes);
        let value = &bytes[header.value_at()..header.len()];
        if header.has(IS_INTEGER) {
            Value::Integer(i64::from_le_bytes(value.try_into().expect("an integer has 8 bytes")))
        } else if header.has(IS_OBJECT) {
            Value::Bytes(&self.object(bytes, header).value)
        } else {
            Value::Bytes(value)
        }
    }

    pub fn encoding(&self, record: Ref) -> Encoding {
        let header = Header::read(self.slab.bytes(record));
        match self.value(record) {
            Value::Integer(_) => Encoding::Int,
            Value::Bytes(_) if header.has(IS_EDITED) => Encoding::Raw,
            Value::Bytes(bytes) => Encoding::of_bytes(bytes.len()),
        }
    }

    /// Bytes that the record and its object take, without the index.
    pub fn bytes(&self, record: Ref) -> usize {
        let bytes = self.slab.bytes(record);
        let header = Header::read(bytes);
        let object = if header.has(IS_OBJECT) {
            let object = self.object(bytes, header);
            size_of::<ObjectSlot>() + object.value.capacity() + object.key.as_ref().map_or(0, |key| key.len())
        } else {
            0
        };
        bytes.len() + object
    }

    pub fn is_edited(&self, record: Ref) -> bool {
        Header::read(self.slab.bytes(record)).has(IS_EDITED)
    }

    /// Expiry in milliseconds since 1970.
    #[inline]
    pub fn expires_ms(&self, record: Ref) -> Option<u64> {
        let bytes = self.slab.bytes(record);
        let field = bytes.get(HEADER..HEADER + EXPIRY).filter(|_| bytes[0] & HAS_EXPIRY != 0)?;
        field.try_into().ok().map(u64::from_le_bytes)
    }

    /// Changes the expiry of a record that has one.
    pub fn set_expires_ms(&mut self, record: Ref, expires_ms: u64) {
        let bytes = self.slab.bytes_mut(record);
        assert!(bytes[0] & HAS_EXPIRY != 0);
        bytes[HEADER..HEADER + EXPIRY].copy_from_slice(&expires_ms.to_le_bytes());
    }

    /// The low 24 bits of the time of last use, in seconds.
    pub fn last_use_s(&self, record: Ref) -> u32 {
        let bytes = self.slab.bytes(record);
        u32::from_le_bytes([bytes[1], bytes[2], bytes[3], 0])
    }

    #[inline]
    pub fn touch(&mut self, record: Ref, now_s: u32) {
        self.slab.bytes_mut(record)[1..4].copy_from_slice(&now_s.to_le_bytes()[..3]);
    }

    /// Makes a record.
    pub fn create(
        &mut self,
        key: &[u8],
        value: Owned,
        expires_ms: Option<u64>,
        now_s: u32,
    ) -> Result<Ref, OutOfMemory> {
        let mut flags = if expires_ms.is_some() { HAS_EXPIRY } else { 0 };
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
        };
        let long_key = key.len() > KEY_LIMIT;
        // Room for an expiry is counted always, so that one can be added without moving the value elsewhere.
        let fits = |len: usize| !long_key && HEADER + EXPIRY + key.len() + len <= RECORD_LIMIT;
        match payload {
            Payload::Integer(number) if fits(size_of::<i64>()) => {
                self.store(flags | IS_INTEGER, key, &number.to_le_bytes(), expires_ms, now_s)
            }
            Payload::Bytes(bytes) if fits(bytes.len()) => self.store(flags, key, bytes, expires_ms, now_s),
            Payload::Blob(bytes) if fits(bytes.len()) => self.store(flags, key, &bytes, expires_ms, now_s),
            payload => {
                let value = match payload {
                    Payload::Blob(bytes) => bytes,
                    Payload::Bytes(bytes) => copied(bytes)?,
                    Payload::Integer(number) => copied(Decimal::new(number).as_bytes())?,
                };
                self.store_object(flags, key, value, expires_ms, now_s)
            }
        }
    }

    /// Makes a record whose value is an object, empty for now.
    pub fn create_blob(
        &mut self,
        key: &[u8],
        is_edited: bool,
        expires_ms: Option<u64>,
        now_s: u32,
    ) -> Result<Ref, OutOfMemory> {
        let flags = if is_edited { IS_EDITED } else { 0 } | if expires_ms.is_some() { HAS_EXPIRY } else { 0 };
        self.store_object(flags, key, Vec::new(), expires_ms, now_s)
    }

    fn store_object(
        &mut self,
        flags: u8,
        key: &[u8],
        value: Vec<u8>,
        expires_ms: Option<u64>,
        now_s: u32,
    ) -> Result<Ref, OutOfMemory> {
        let long_key = key.len() > KEY_LIMIT;
        let own_key = if long_key { Some(copied(key)?.into_boxed_slice()) } else { None };
        let handle = self.add_object(Object { key: own_key, value })?;
        let flags = flags | IS_OBJECT | if long_key { KEY_IN_OBJECT } else { 0 };
        let key = if long_key { &[][..] } else { key };
        self.store(flags, key, &handle.to_le_bytes(), expires_ms, now_s).inspect_err(|_| self.free_object(handle))
    }

    /// Overwrites a record in place with a string or integer, if it has no object, keeps its expiry or lack of one, and
    /// fits the same slot. Returns whether it did.
    #[inline]
    pub fn overwrite(&mut self, record: Ref, value: &Owned, expires_ms: Option<u64>, now_s: u32) -> bool {
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
            Owned::Kept(_) | Owned::Raw(_) => return false,
        };
        let bytes = self.slab.bytes_mut(record);
        let old = Header::read(bytes);
        if old.has(IS_OBJECT) || old.has(HAS_EXPIRY) != expires_ms.is_some() {
            return false;
        }
        let len = old.value_at() + payload.len();
        if old.key_len + payload.len() > RECORD_LIMIT - HEADER - EXPIRY || Slab::slot_bytes(len) != bytes.len() {
            return false;
        }
        let header = Header { flags: old.flags & HAS_EXPIRY | flag, key_len: old.key_len, value_len: payload.len() };
        header.write(bytes);
        bytes[header.value_at()..len].copy_from_slice(payload);
        self.touch(record, now_s);
        if let Some(expires_ms) = expires_ms {
            self.set_expires_ms(record, expires_ms);
        }
        true
    }

    /// The bytes of a string that is not an integer, for edits that keep its length.
    pub fn bytes_mut(&mut self, record: Ref) -> &mut [u8] {
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
    pub fn blob_mut(&mut self, record: Ref) -> Option<&mut Vec<u8>> {
        if self.has_blob(record) {
            self.slab.bytes_mut(record)[0] |= IS_EDITED;
        }
        self.whole_blob_mut(record)
    }

    /// The vector that holds a string's bytes, where it has one, for moving it as it is.
    pub fn whole_blob_mut(&mut self, record: Ref) -> Option<&mut Vec<u8>> {
        let bytes = self.slab.bytes(record);
        let header = Header::read(bytes);
        if !header.has(IS_OBJECT) {
            return None;
        }
        let handle = handle_in(bytes, header);
        Some(&mut self.object_mut(handle).value)
    }

    pub fn has_blob(&self, record: Ref) -> bool {
        Header::read(self.slab.bytes(record)).has(IS_OBJECT)
    }

    /// Makes a copy of a record with or without an expiry; the object, if any, then belongs to both until one of them
    /// is freed by [`free_shell`](Self::free_shell).
    pub fn move_with_expiry(&mut self, record: Ref, expires_ms: Option<u64>) -> Result<Ref, OutOfMemory> {
        let mut copy = [0; RECORD_LIMIT];
        let bytes = self.slab.bytes(record);
        let header = Header::read(bytes);
        let body = &mut copy[..header.len() - header.key_at()];
        body.copy_from_slice(&bytes[header.key_at()..header.len()]);
        let (key, payload) = body.split_at(header.key_len);
        let flags = header.flags & !HAS_EXPIRY | if expires_ms.is_some() { HAS_EXPIRY } else { 0 };
        self.store(flags, key, payload, expires_ms, self.last_use_s(record))
    }

    /// Frees a record whose object belongs to another one now.
    pub fn free_shell(&mut self, record: Ref) {
        self.slab.free(record);
    }

    /// Frees a record with its object.
    pub fn free(&mut self, record: Ref) {
        let bytes = self.slab.bytes(record);
        let header = Header::read(bytes);
        if header.has(IS_OBJECT) {
            let handle = handle_in(bytes, header);
            self.free_object(handle as u32);
        }
        self.slab.free(record);
    }

    /// Bytes of the pages and of the table of objects, without the objects' own.
    pub fn overhead_bytes(&self) -> usize {
        self.slab.page_bytes() + self.objects.len() * size_of::<ObjectSlot>()
    }

    fn store(
        &mut self,
        flags: u8,
        key: &[u8],
        payload: &[u8],
        expires_ms: Option<u64>,
        now_s: u32,
    ) -> Result<Ref, OutOfMemory> {
        let header = Header { flags, key_len: key.len(), value_len: payload.len() };
        let record = self.slab.allocate(header.len())?;
        let bytes = self.slab.bytes_mut(record);
        header.write(bytes);
        bytes[header.key_at()..header.value_at()].copy_from_slice(key);
        bytes[header.value_at()..header.len()].copy_from_slice(payload);
        if let Some(expires_ms) = expires_ms {
            bytes[HEADER..HEADER + EXPIRY].copy_from_slice(&expires_ms.to_le_bytes());
        }
        self.touch(record, now_s);
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

    fn add_object(&mut self, object: Object) -> Result<u32, OutOfMemory> {
        if self.free_object == NO_SLOT {
            self.objects.push(ObjectSlot::Used(object))?;
            return Ok(self.objects.len() as u32 - 1);
        }
        let handle = self.free_object;
        if let ObjectSlot::Free(next) = core::mem::replace(&mut self.objects[handle as usize], ObjectSlot::Used(object))
        {
            self.free_object = next;
        }
        Ok(handle)
    }

    fn free_object(&mut self, handle: u32) {
        self.objects[handle as usize] = ObjectSlot::Free(self.free_object);
        self.free_object = handle;
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

/// An integer's decimal form, without the heap.
pub struct Decimal {
    text: [u8; 20],
    start: usize,
}

impl Decimal {
    /// Formats a number.
    pub fn new(number: i64) -> Decimal {
        let mut decimal = Decimal::unsigned(number.unsigned_abs());
        if number < 0 {
            decimal.start -= 1;
            decimal.text[decimal.start] = b'-';
        }
        decimal
    }

    /// Formats a number without a sign.
    pub fn unsigned(mut magnitude: u64) -> Decimal {
        let mut decimal = Decimal { text: [0; 20], start: 20 };
        loop {
            decimal.start -= 1;
            decimal.text[decimal.start] = b'0' + (magnitude % 10) as u8;
            magnitude /= 10;
            if magnitude == 0 {
                return decimal;
            }
        }
    }

    /// The digits, with a sign if negative.
    pub fn as_bytes(&self) -> &[u8] {
        &self.text[self.start..]
    }
}
