//! Lists to read.

use super::{ListEnd, ListView, Written};
use crate::{Db, Encoding, Found, Kind, Offset, PackedRef, packed, record::Stored, value::Data};

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

    pub(super) fn parts(self) -> usize {
        match self {
            ListView::Packed(_) => 1,
            ListView::Parts(parts) => parts.parts.len(),
        }
    }

    pub(super) fn part(self, at: usize) -> PackedRef<'a> {
        match self {
            ListView::Packed(packed) => packed,
            ListView::Parts(parts) => parts.parts[at].packed.as_ref(),
        }
    }

    /// The part that has the element at `index`, and where in it the element begins.
    pub(super) fn place_of(self, index: usize) -> Option<(usize, Offset)> {
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
