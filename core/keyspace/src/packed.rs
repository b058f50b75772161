//! Byte strings one behind the other: how small collections lie in memory.
//!
//! ```text
//! packed = count (4 bytes) | entry …
//! entry  = length (varint) | bytes | length of both (varint, written backwards)
//! ```
//!
//! Small collections are walked anyway, so a flat form is both the smallest and the fastest for them. The length at an
//! entry's end lets one walk from either end.

use crate::OutOfMemory;
use alloc::vec::Vec;

const HEADER: usize = 4;
/// Longest varint: lengths have up to 32 bits.
const VARINT_LIMIT: usize = 5;

/// Where an entry begins, in bytes from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Offset(usize);

/// Packed strings to read.
#[derive(Clone, Copy)]
pub struct PackedRef<'a>(&'a [u8]);

impl<'a> PackedRef<'a> {
    /// Reads what [`Packed::as_bytes`] gave; an empty slice is an empty list.
    pub fn new(bytes: &'a [u8]) -> PackedRef<'a> {
        PackedRef(bytes)
    }

    /// Number of entries.
    pub fn len(self) -> usize {
        match self.0 {
            [a, b, c, d, ..] => u32::from_le_bytes([*a, *b, *c, *d]) as usize,
            _ => 0,
        }
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Bytes of all of it.
    pub fn bytes_len(self) -> usize {
        self.0.len()
    }

    /// Where the first entry begins, or the end.
    pub fn start(self) -> Offset {
        Offset(HEADER)
    }

    /// Behind the last entry.
    pub fn end(self) -> Offset {
        Offset(self.0.len().max(HEADER))
    }

    /// The entry at `at`, if that is not the end.
    pub fn get(self, at: Offset) -> Option<&'a [u8]> {
        self.entry(at).map(|(text, _)| text)
    }

    /// The entry at `at` and where the next one begins.
    pub fn entry(self, at: Offset) -> Option<(&'a [u8], Offset)> {
        let (len, head) = read_varint(self.0.get(at.0..).filter(|rest| !rest.is_empty())?);
        let text = &self.0[at.0 + head..at.0 + head + len];
        let body = head + len;
        Some((text, Offset(at.0 + body + varint_len(body))))
    }

    /// Where the entry before `at` begins, if there is one.
    pub fn before(self, at: Offset) -> Option<Offset> {
        if at.0 <= HEADER {
            return None;
        }
        let mut body = 0;
        let mut tail = 0;
        loop {
            let byte = self.0[at.0 - 1 - tail];
            body |= usize::from(byte & 0x7f) << (7 * tail);
            tail += 1;
            if byte & 0x80 == 0 {
                break;
            }
        }
        Some(Offset(at.0 - tail - body))
    }

    /// Where the entry number `index` begins, walking from the nearer end.
    pub fn offset_of(self, index: usize) -> Option<Offset> {
        let len = self.len();
        if index >= len {
            return None;
        }
        if index <= len / 2 {
            let mut at = self.start();
            for _ in 0..index {
                at = self.entry(at)?.1;
            }
            Some(at)
        } else {
            let mut at = self.end();
            for _ in index..len {
                at = self.before(at)?;
            }
            Some(at)
        }
    }

    /// The entries in order.
    pub fn iter(self) -> Iter<'a> {
        Iter { packed: self, front: self.start(), back: self.end() }
    }

    /// The entries from the one at `start` to before the one at `end`.
    pub fn range(self, start: Offset, end: Offset) -> Iter<'a> {
        Iter { packed: self, front: start, back: end }
    }

    /// Where the first entry that equals `text` begins, looking at every `step`-th entry from the first one on.
    pub fn find(self, text: &[u8], step: usize) -> Option<Offset> {
        let mut at = self.start();
        let mut turn = 0;
        while let Some((entry, next)) = self.entry(at) {
            if turn == 0 && entry == text {
                return Some(at);
            }
            turn = (turn + 1) % step;
            at = next;
        }
        None
    }
}

/// Entries of a [`PackedRef`], from both ends.
#[derive(Clone)]
pub struct Iter<'a> {
    packed: PackedRef<'a>,
    front: Offset,
    back: Offset,
}

impl<'a> Iterator for Iter<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.front >= self.back {
            return None;
        }
        let (text, next) = self.packed.entry(self.front)?;
        self.front = next;
        Some(text)
    }
}

impl DoubleEndedIterator for Iter<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        if self.front >= self.back {
            return None;
        }
        self.back = self.packed.before(self.back)?;
        self.packed.get(self.back)
    }
}

/// Packed strings to edit.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Packed(Vec<u8>);

impl Packed {
    /// No entries. It takes no memory until the first one comes.
    pub const fn new() -> Packed {
        Packed(Vec::new())
    }

    /// A copy of what [`as_bytes`](Self::as_bytes) gave.
    pub fn copy_of(bytes: &[u8]) -> Result<Packed, OutOfMemory> {
        crate::record::copied(bytes).map(Packed)
    }

    pub(crate) fn from_vec(bytes: Vec<u8>) -> Packed {
        Packed(bytes)
    }

    pub(crate) fn into_vec(self) -> Vec<u8> {
        self.0
    }

    /// To read it.
    pub fn as_ref(&self) -> PackedRef<'_> {
        PackedRef(&self.0)
    }

    /// Its bytes, for keeping elsewhere.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.as_ref().len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes allocated.
    pub fn capacity(&self) -> usize {
        self.0.capacity()
    }

    /// Bytes that an entry of this length takes.
    pub fn entry_bytes(len: usize) -> usize {
        let body = varint_len(len) + len;
        body + varint_len(body)
    }

    fn set_len(&mut self, len: usize) {
        self.0[..HEADER].copy_from_slice(&(len as u32).to_le_bytes());
    }

    /// Adds an entry at the end.
    pub fn push_back(&mut self, text: &[u8]) -> Result<(), OutOfMemory> {
        self.insert(self.as_ref().end(), text)
    }

    /// Adds an entry at the front.
    pub fn push_front(&mut self, text: &[u8]) -> Result<(), OutOfMemory> {
        self.insert(Offset(HEADER), text)
    }

    /// Inserts an entry before the one at `at`, which may be the end.
    pub fn insert(&mut self, at: Offset, text: &[u8]) -> Result<(), OutOfMemory> {
        self.splice(at, 0, &[text])
    }

    /// Replaces the entry at `at`.
    pub fn replace(&mut self, at: Offset, text: &[u8]) -> Result<(), OutOfMemory> {
        self.splice(at, 1, &[text])
    }

    /// Removes `count` entries from `at` on, or as many as there are.
    pub fn remove(&mut self, at: Offset, count: usize) {
        // Removal needs no memory.
        let _ = self.splice(at, count, &[]);
    }

    /// Puts entries in place of `removed` ones from `at` on. Nothing changes where there is no memory for it.
    pub fn splice(&mut self, at: Offset, removed: usize, texts: &[&[u8]]) -> Result<(), OutOfMemory> {
        let mut end = at;
        let mut gone = 0;
        while gone < removed
            && let Some((_, next)) = self.as_ref().entry(end)
        {
            end = next;
            gone += 1;
        }
        let added: usize = texts.iter().map(|text| Packed::entry_bytes(text.len())).sum();
        let is_new = self.0.is_empty();
        let old = end.0 - at.0;
        let growth = added.saturating_sub(old) + if is_new { HEADER } else { 0 };
        if self.0.capacity() - self.0.len() < growth {
            // An eighth of room beyond what is needed: small collections are many, and mostly stay as they are.
            let spare = (self.0.len() + growth) / 8;
            self.0.try_reserve_exact(growth + spare).or_else(|_| self.0.try_reserve_exact(growth))?;
        }
        if is_new {
            self.0.extend_from_slice(&[0; HEADER]);
        }
        let len = self.len();
        let tail = self.0.len() - end.0;
        if added > old {
            self.0.resize(self.0.len() + added - old, 0);
        }
        self.0.copy_within(end.0..end.0 + tail, at.0 + added);
        self.0.truncate(at.0 + added + tail);
        let mut to = at.0;
        for text in texts {
            to = self.write_entry(to, text);
        }
        self.set_len(len - gone + texts.len());
        Ok(())
    }

    fn write_entry(&mut self, at: usize, text: &[u8]) -> usize {
        let mut varint = [0; VARINT_LIMIT];
        let head = write_varint(text.len(), &mut varint);
        self.0[at..at + head].copy_from_slice(&varint[..head]);
        self.0[at + head..at + head + text.len()].copy_from_slice(text);
        let body = head + text.len();
        let tail = write_varint(body, &mut varint);
        let end = at + body + tail;
        for (to, byte) in self.0[at + body..end].iter_mut().rev().zip(varint) {
            *to = byte;
        }
        end
    }

    /// Splits off the entries from `at` on.
    pub fn split_off(&mut self, at: Offset) -> Result<Packed, OutOfMemory> {
        let before = self.as_ref().iter_until(at);
        let rest = &self.0[at.0.min(self.0.len())..];
        let mut other = Packed::new();
        if rest.is_empty() {
            return Ok(other);
        }
        other.0.try_reserve_exact(HEADER + rest.len())?;
        other.0.extend_from_slice(&[0; HEADER]);
        other.0.extend_from_slice(rest);
        other.set_len(self.len() - before);
        self.0.truncate(at.0);
        self.set_len(before);
        Ok(other)
    }

    /// Appends the entries of another one.
    pub fn append(&mut self, other: PackedRef<'_>) -> Result<(), OutOfMemory> {
        if other.is_empty() {
            return Ok(());
        }
        if self.0.is_empty() {
            *self = Packed::copy_of(other.0)?;
            return Ok(());
        }
        self.0.try_reserve(other.0.len())?;
        let len = self.len() + other.len();
        self.0.extend_from_slice(&other.0[HEADER..]);
        self.set_len(len);
        Ok(())
    }

    /// Gives back memory beyond what the entries need.
    pub fn shrink(&mut self) {
        self.0.shrink_to_fit();
    }
}

impl PackedRef<'_> {
    /// Number of entries before `at`.
    fn iter_until(self, at: Offset) -> usize {
        let mut before = 0;
        let mut here = self.start();
        while here < at
            && let Some((_, next)) = self.entry(here)
        {
            here = next;
            before += 1;
        }
        before
    }
}

fn varint_len(number: usize) -> usize {
    (usize::BITS - number.leading_zeros()).div_ceil(7).max(1) as usize
}

fn write_varint(mut number: usize, out: &mut [u8; VARINT_LIMIT]) -> usize {
    let mut len = 0;
    loop {
        out[len] = (number & 0x7f) as u8;
        number >>= 7;
        if number == 0 {
            return len + 1;
        }
        out[len] |= 0x80;
        len += 1;
    }
}

fn read_varint(bytes: &[u8]) -> (usize, usize) {
    let mut number = 0;
    for (at, byte) in bytes.iter().enumerate() {
        number |= usize::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return (number, at + 1);
        }
    }
    unreachable!("a varint ends within its entry")
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn behaves_like_a_vector() {
        for seed in 0..200 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut packed = Packed::new();
            let mut model: Vec<Vec<u8>> = Vec::new();
            for step in 0..200 {
                let len = *rng.choice(&[0, 1, 5, 126, 127, 128, 129, 300, 16383, 16384]).unwrap();
                let text = vec![rng.u8(..); len];
                let index = rng.usize(..=model.len());
                let at = packed.as_ref().offset_of(index).unwrap_or(packed.as_ref().end());
                match rng.u8(..8) {
                    0..3 => {
                        packed.insert(at, &text).unwrap();
                        model.insert(index, text);
                    }
                    3 if index < model.len() => {
                        packed.replace(at, &text).unwrap();
                        model[index] = text;
                    }
                    4 => {
                        let count = rng.usize(..4);
                        packed.remove(at, count);
                        model.drain(index..(index + count).min(model.len()));
                    }
                    5 => {
                        let other = packed.split_off(at).unwrap();
                        let rest = model.split_off(index);
                        assert_eq!(other.len(), rest.len());
                        if rng.bool() {
                            packed.append(other.as_ref()).unwrap();
                            model.extend(rest);
                        }
                    }
                    6 => {
                        packed.push_front(&text).unwrap();
                        model.insert(0, text);
                    }
                    _ => {
                        packed.push_back(&text).unwrap();
                        model.push(text);
                    }
                }
                let context = (seed, step);
                assert!(packed.as_ref().iter().eq(model.iter().map(Vec::as_slice)), "{context:?}");
                assert!(packed.as_ref().iter().rev().eq(model.iter().rev().map(Vec::as_slice)), "{context:?}");
                assert_eq!(packed.len(), model.len(), "{context:?}");
                if let Some(last) = model.last() {
                    let found = packed.as_ref().find(last, 1).and_then(|at| packed.as_ref().get(at));
                    assert_eq!(found, Some(last.as_slice()), "{context:?}");
                }
            }
        }
    }
}
