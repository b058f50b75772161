//! Hashes: fields with values.

use crate::{
    Collection, Db, Encoding, Found, Kind, OutOfMemory, Owned, Packed, PackedLimits, PackedRef, Records, Value,
    record::Stored,
    table::{Table, member},
    value::Data,
};
use alloc::boxed::Box;

/// A hash to change.
pub enum Hash {
    /// Fields and values in turn, in the order of insertion.
    Packed(Packed),
    /// Fields as members, with their values.
    Table(Box<Table>),
}

/// A hash to read.
#[derive(Clone, Copy)]
pub enum HashView<'a> {
    #[allow(missing_docs)]
    Packed(PackedRef<'a>),
    #[allow(missing_docs)]
    Table(&'a Table, &'a Records),
}

impl Default for Hash {
    fn default() -> Hash {
        Hash::Packed(Packed::new())
    }
}

impl Collection for Hash {
    const KIND: Kind = Kind::Hash;

    fn from_packed(packed: Packed) -> Hash {
        Hash::Packed(packed)
    }

    fn from_data(data: Data) -> Hash {
        match data {
            Data::Hash(table) => Hash::Table(table),
            _ => unreachable!("the record says that it is a hash"),
        }
    }

    fn into_data(self) -> Data {
        match self {
            Hash::Packed(packed) => Data::Bytes(packed.into_vec()),
            Hash::Table(table) => Data::Hash(table),
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Hash::Packed(packed) => packed.is_empty(),
            Hash::Table(table) => table.len() == 0,
        }
    }
}

impl Hash {
    /// To read it.
    pub fn view<'a>(&'a self, records: &'a Records) -> HashView<'a> {
        match self {
            Hash::Packed(packed) => HashView::Packed(packed.as_ref()),
            Hash::Table(table) => HashView::Table(table, records),
        }
    }

    /// Gives a field a value. Returns whether the field is new.
    pub fn set(
        &mut self,
        records: &mut Records,
        field: &[u8],
        value: &[u8],
        limits: PackedLimits,
    ) -> Result<bool, OutOfMemory> {
        if let Hash::Packed(packed) = self {
            let at = packed.as_ref().find(field, 2);
            let is_small = field.len().max(value.len()) <= limits.entry_bytes;
            if is_small && (at.is_some() || packed.len() / 2 < limits.entries) {
                match at.and_then(|at| packed.as_ref().entry(at)) {
                    Some((_, at)) => packed.replace(at, value)?,
                    None => packed.splice(packed.as_ref().end(), 0, &[field, value])?,
                }
                return Ok(at.is_none());
            }
            self.unpack(records)?;
        }
        match self {
            Hash::Table(table) => Ok(table.set(records, field, Owned::Text(value))?.1),
            Hash::Packed(_) => unreachable!("it was unpacked"),
        }
    }

    /// Removes a field. Returns whether it was there.
    pub fn remove(&mut self, records: &mut Records, field: &[u8]) -> bool {
        match self {
            Hash::Packed(packed) => {
                let at = packed.as_ref().find(field, 2);
                at.into_iter().for_each(|at| packed.remove(at, 2));
                at.is_some()
            }
            Hash::Table(table) => table.remove(records, field),
        }
    }

    fn unpack(&mut self, records: &mut Records) -> Result<(), OutOfMemory> {
        let Hash::Packed(packed) = self else { return Ok(()) };
        let mut table = Table::new();
        let mut entries = packed.as_ref().iter();
        while let (Some(field), Some(value)) = (entries.next(), entries.next()) {
            if let Err(error) = table.set(records, field, Owned::Text(value)) {
                table.free(records, usize::MAX);
                return Err(error);
            }
        }
        *self = Hash::Table(Box::new(table));
        Ok(())
    }
}

impl<'a> HashView<'a> {
    /// Number of fields.
    pub fn len(self) -> usize {
        match self {
            HashView::Packed(packed) => packed.len() / 2,
            HashView::Table(table, _) => table.len(),
        }
    }

    /// Whether there is none, which no key's hash ever is.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// A field's value.
    pub fn get(self, field: &[u8]) -> Option<Value<'a>> {
        match self {
            HashView::Packed(packed) => {
                let (_, value) = packed.entry(packed.find(field, 2)?)?;
                packed.get(value).map(Value::Bytes)
            }
            HashView::Table(table, records) => table.find(records, field).map(|record| records.value(record)),
        }
    }

    /// Calls `visit` with each field and its value.
    pub fn for_each(self, mut visit: impl FnMut(&'a [u8], Value<'a>)) {
        match self {
            HashView::Packed(packed) => {
                let mut entries = packed.iter();
                while let (Some(field), Some(value)) = (entries.next(), entries.next()) {
                    visit(field, Value::Bytes(value));
                }
            }
            HashView::Table(table, records) => {
                for record in table.iter() {
                    let (field, value) = member(records, record);
                    visit(field, value);
                }
            }
        }
    }

    /// How it is stored.
    pub fn encoding(self) -> Encoding {
        match self {
            HashView::Packed(_) => Encoding::Listpack,
            HashView::Table(..) => Encoding::Hashtable,
        }
    }
}

impl Db {
    /// The hash at a key that has one.
    pub fn hash(&self, found: Found) -> HashView<'_> {
        assert_eq!(self.kind(found), Kind::Hash);
        match self.records.stored(found.record) {
            Stored::Bytes(bytes) => HashView::Packed(PackedRef::new(bytes)),
            Stored::Data(Data::Hash(table)) => HashView::Table(table, &self.records),
            _ => unreachable!("the record says that it is a hash"),
        }
    }
}
