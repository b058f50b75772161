//! Sets: members without order.

use crate::{
    Collection, Db, Decimal, Encoding, Found, Intset, IntsetRef, Kind, OutOfMemory, Packed, PackedLimits, PackedRef,
    Records, Value,
    record::{Stored, copied},
    slab::Ref,
    table::Table,
    value::{Data, parse_integer},
};
use alloc::{boxed::Box, vec::Vec};

/// A set to change.
pub enum Set {
    /// Integers in order.
    Intset(Intset),
    /// Members in the order of insertion.
    Packed(Packed),
    /// Members as records.
    Table(Box<Table>),
}

/// A set to read.
#[derive(Clone, Copy)]
pub enum SetView<'a> {
    #[allow(missing_docs)]
    Intset(IntsetRef<'a>),
    #[allow(missing_docs)]
    Packed(PackedRef<'a>),
    #[allow(missing_docs)]
    Table(&'a Table, &'a Records),
}

/// Up to which size sets are kept in their compact forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetLimits {
    /// Most integers of an intset.
    pub intset_entries: usize,
    /// For packed members.
    pub packed: PackedLimits,
}

/// A member, while its set lies outside of the database.
#[derive(Clone, Copy)]
pub enum Member<'a> {
    #[allow(missing_docs)]
    Integer(i64),
    #[allow(missing_docs)]
    Text(&'a [u8]),
    /// One that only [`value`](Member::value) can name.
    Record(MemberRecord),
}

/// Where a large set's member lies.
#[derive(Clone, Copy)]
pub struct MemberRecord(Ref);

impl<'a> Member<'a> {
    /// Its name.
    pub fn value(self, records: &'a Records) -> Value<'a> {
        match self {
            Member::Integer(number) => Value::Integer(number),
            Member::Text(text) => Value::Bytes(text),
            Member::Record(MemberRecord(record)) => Value::Bytes(records.key(record)),
        }
    }

    /// Its name, copied into a buffer if it lies in a record, so that records may change.
    fn copied<'b>(self, records: &Records, buffer: &'b mut Vec<u8>) -> Result<Value<'b>, OutOfMemory>
    where
        'a: 'b,
    {
        match self {
            Member::Integer(number) => Ok(Value::Integer(number)),
            Member::Text(text) => Ok(Value::Bytes(text)),
            Member::Record(MemberRecord(record)) => {
                let name = records.key(record);
                buffer.clear();
                buffer.try_reserve(name.len())?;
                buffer.extend_from_slice(name);
                Ok(Value::Bytes(buffer))
            }
        }
    }
}

impl Default for Set {
    fn default() -> Set {
        Set::Intset(Intset::new())
    }
}

impl Collection for Set {
    const KIND: Kind = Kind::Set;

    fn from_packed(packed: Packed) -> Set {
        match Intset::from_vec(packed.into_vec()) {
            Ok(intset) => Set::Intset(intset),
            Err(bytes) => Set::Packed(Packed::from_vec(bytes)),
        }
    }

    fn from_data(data: Data) -> Set {
        match data {
            Data::Set(table) => Set::Table(table),
            _ => unreachable!("the record says that it is a set"),
        }
    }

    fn into_data(self) -> Data {
        match self {
            Set::Intset(intset) => Data::Bytes(intset.into_vec()),
            Set::Packed(packed) => Data::Bytes(packed.into_vec()),
            Set::Table(table) => Data::Set(table),
        }
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn text_of<R>(value: Value<'_>, use_it: impl FnOnce(&[u8]) -> R) -> R {
    match value {
        Value::Integer(number) => use_it(Decimal::new(number).as_bytes()),
        Value::Bytes(text) => use_it(text),
    }
}

fn integer_of(value: Value<'_>) -> Option<i64> {
    match value {
        Value::Integer(number) => Some(number),
        Value::Bytes(text) => parse_integer(text),
    }
}

/// Where the packed member of this name begins.
fn find_packed(packed: PackedRef<'_>, member: Value<'_>) -> Option<crate::Offset> {
    text_of(member, |text| packed.find(text, 1))
}

impl Set {
    /// To read it.
    pub fn view<'a>(&'a self, records: &'a Records) -> SetView<'a> {
        match self {
            Set::Intset(intset) => SetView::Intset(intset.as_ref()),
            Set::Packed(packed) => SetView::Packed(packed.as_ref()),
            Set::Table(table) => SetView::Table(table, records),
        }
    }

    /// Number of members.
    pub fn len(&self) -> usize {
        match self {
            Set::Intset(intset) => intset.as_ref().len(),
            Set::Packed(packed) => packed.len(),
            Set::Table(table) => table.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The members, whose records may change meanwhile, but not they themselves.
    pub fn members(&self) -> impl Iterator<Item = Member<'_>> {
        let (integers, texts, records) = match self {
            Set::Intset(intset) => (Some(intset.as_ref().iter()), None, None),
            Set::Packed(packed) => (None, Some(packed.as_ref().iter()), None),
            Set::Table(table) => (None, None, Some(table.iter())),
        };
        let integers = integers.into_iter().flatten().map(Member::Integer);
        let texts = texts.into_iter().flatten().map(Member::Text);
        let records = records.into_iter().flatten().map(|record| Member::Record(MemberRecord(record)));
        integers.chain(texts).chain(records)
    }

    /// Whether it has this member.
    pub fn contains(&self, records: &Records, member: Value<'_>) -> bool {
        self.view(records).contains(member)
    }

    /// Takes the form that suits it when so many members are about to come, the first of which is this one.
    pub fn prepare(
        &mut self,
        records: &mut Records,
        first: &[u8],
        count: usize,
        limits: SetLimits,
    ) -> Result<(), OutOfMemory> {
        let is_new = self.is_empty();
        let fits = match self {
            Set::Intset(_) if is_new && parse_integer(first).is_none() => false,
            Set::Intset(_) => count <= limits.intset_entries,
            Set::Packed(_) => count <= limits.packed.entries,
            Set::Table(_) => true,
        };
        if fits {
            return Ok(());
        }
        if is_new && count <= limits.packed.entries {
            *self = Set::Packed(Packed::new());
            return Ok(());
        }
        self.unpack(records)
    }

    /// Adds a member. Returns whether it is new.
    pub fn add(&mut self, records: &mut Records, member: Value<'_>, limits: SetLimits) -> Result<bool, OutOfMemory> {
        if let Set::Intset(intset) = self {
            if let Some(number) = integer_of(member) {
                let is_new = intset.insert(number)?;
                if intset.as_ref().len() > limits.intset_entries {
                    self.unpack(records)?;
                }
                return Ok(is_new);
            }
            if fits_packed(intset.as_ref(), member, limits.packed) {
                *self = Set::Packed(packed_integers(intset.as_ref())?);
            } else {
                self.unpack(records)?;
            }
        }
        if let Set::Packed(packed) = self {
            if find_packed(packed.as_ref(), member).is_some() {
                return Ok(false);
            }
            let is_small = text_of(member, <[u8]>::len) <= limits.packed.entry_bytes;
            if is_small && packed.len() < limits.packed.entries {
                text_of(member, |text| packed.push_back(text))?;
                return Ok(true);
            }
            self.unpack(records)?;
        }
        match self {
            Set::Table(table) => text_of(member, |text| table.insert(records, text)),
            _ => unreachable!("it was unpacked"),
        }
    }

    /// Adds a member of a set whose records are the same as this one's, by way of a buffer.
    pub fn add_from(
        &mut self,
        records: &mut Records,
        member: Member<'_>,
        buffer: &mut Vec<u8>,
        limits: SetLimits,
    ) -> Result<bool, OutOfMemory> {
        let member = member.copied(records, buffer)?;
        self.add(records, member, limits)
    }

    /// Removes a member of a set whose records are the same as this one's, by way of a buffer.
    pub fn remove_from(
        &mut self,
        records: &mut Records,
        member: Member<'_>,
        buffer: &mut Vec<u8>,
    ) -> Result<bool, OutOfMemory> {
        let member = member.copied(records, buffer)?;
        Ok(self.remove(records, member))
    }

    /// Frees its records, if it has any. It is empty then.
    pub fn free(&mut self, records: &mut Records) {
        if let Set::Table(table) = self {
            table.free(records, usize::MAX);
        }
        *self = Set::default();
    }

    /// Removes a member. Returns whether it was there.
    pub fn remove(&mut self, records: &mut Records, member: Value<'_>) -> bool {
        match self {
            Set::Intset(intset) => integer_of(member).is_some_and(|number| intset.remove(number)),
            Set::Packed(packed) => {
                let at = find_packed(packed.as_ref(), member);
                at.into_iter().for_each(|at| packed.remove(at, 1));
                at.is_some()
            }
            Set::Table(table) => text_of(member, |text| table.remove(records, text)),
        }
    }

    /// Removes a random member, unless `show`, which is lent its name, gives nothing for it.
    pub fn pop<R>(
        &mut self,
        records: &mut Records,
        rng: &mut fastrand::Rng,
        show: impl FnOnce(Value<'_>) -> Option<R>,
    ) -> Option<R> {
        match self {
            Set::Intset(intset) => {
                let len = intset.as_ref().len();
                let number = (len > 0).then(|| intset.as_ref().get(rng.usize(..len)))?;
                let shown = show(Value::Integer(number))?;
                intset.remove(number);
                Some(shown)
            }
            Set::Packed(packed) => {
                let at = (!packed.is_empty()).then(|| rng.usize(..packed.len()))?;
                let at = packed.as_ref().offset_of(at)?;
                let shown = show(Value::Bytes(packed.as_ref().get(at)?))?;
                packed.remove(at, 1);
                Some(shown)
            }
            Set::Table(table) => {
                let record = table.random(rng)?;
                let shown = show(Value::Bytes(records.key(record)))?;
                table.remove_record(records, record);
                Some(shown)
            }
        }
    }

    /// Makes a large set that has become small compact again, where that fits.
    pub fn repack(&mut self, records: &mut Records, limits: SetLimits) -> Result<(), OutOfMemory> {
        let Set::Table(table) = self else { return Ok(()) };
        if table.len() > limits.packed.entries {
            return Ok(());
        }
        let mut packed = Packed::new();
        for record in table.iter() {
            let name = records.key(record);
            if name.len() > limits.packed.entry_bytes {
                return Ok(());
            }
            packed.push_back(name)?;
        }
        table.free(records, usize::MAX);
        *self = Set::Packed(packed);
        Ok(())
    }

    fn unpack(&mut self, records: &mut Records) -> Result<(), OutOfMemory> {
        let mut table = Table::new();
        let filled = self.members().try_for_each(|member| {
            match member {
                Member::Integer(number) => table.insert(records, Decimal::new(number).as_bytes()),
                Member::Text(text) => table.insert(records, text),
                Member::Record(_) => unreachable!("it is in a compact form"),
            }
            .map(|_| ())
        });
        if let Err(error) = filled {
            table.free(records, usize::MAX);
            return Err(error);
        }
        *self = Set::Table(Box::new(table));
        Ok(())
    }
}

/// Whether integers and one more member may be packed.
fn fits_packed(integers: IntsetRef<'_>, member: Value<'_>, limits: PackedLimits) -> bool {
    let ends = [0, integers.len().saturating_sub(1)].into_iter().filter(|_| !integers.is_empty());
    let longest = ends.map(|at| Decimal::new(integers.get(at)).as_bytes().len()).max().unwrap_or(0);
    integers.len() < limits.entries && longest.max(text_of(member, <[u8]>::len)) <= limits.entry_bytes
}

fn packed_integers(integers: IntsetRef<'_>) -> Result<Packed, OutOfMemory> {
    let mut packed = Packed::new();
    for number in integers.iter() {
        packed.push_back(Decimal::new(number).as_bytes())?;
    }
    Ok(packed)
}

impl<'a> SetView<'a> {
    /// Number of members.
    pub fn len(self) -> usize {
        match self {
            SetView::Intset(intset) => intset.len(),
            SetView::Packed(packed) => packed.len(),
            SetView::Table(table, _) => table.len(),
        }
    }

    /// Whether there is none, which no key's set ever is.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Whether it has this member.
    pub fn contains(self, member: Value<'_>) -> bool {
        match self {
            SetView::Intset(intset) => integer_of(member).is_some_and(|number| intset.find(number).is_ok()),
            SetView::Packed(packed) => find_packed(packed, member).is_some(),
            SetView::Table(table, records) => text_of(member, |text| table.find(records, text).is_some()),
        }
    }

    /// A random member, each as likely as any other.
    pub fn random(self, rng: &mut fastrand::Rng) -> Option<Value<'a>> {
        if self.is_empty() {
            return None;
        }
        match self {
            SetView::Intset(intset) => Some(Value::Integer(intset.get(rng.usize(..intset.len())))),
            SetView::Packed(packed) => packed.get(packed.offset_of(rng.usize(..packed.len()))?).map(Value::Bytes),
            SetView::Table(table, records) => table.random(rng).map(|record| Value::Bytes(records.key(record))),
        }
    }

    /// Calls `visit` with `count` different random members, or with all if there are not so many; each such choice is as
    /// likely as any other one.
    pub fn sample(
        self,
        rng: &mut fastrand::Rng,
        count: usize,
        mut visit: impl FnMut(Value<'a>),
    ) -> Result<(), OutOfMemory> {
        if let SetView::Table(table, records) = self {
            for record in table.sample(rng, count)? {
                visit(Value::Bytes(records.key(record)));
            }
            return Ok(());
        }
        let mut left = self.len();
        let mut wanted = count.min(left);
        self.for_each(|member| {
            if rng.usize(..left) < wanted {
                visit(member);
                wanted -= 1;
            }
            left -= 1;
        });
        Ok(())
    }

    /// Visits some members from `cursor` (0 to begin) on and returns the cursor that continues; 0 is the end. A member that
    /// is there from the beginning to the end is visited at least once.
    pub fn scan(self, cursor: u64, mut visit: impl FnMut(Value<'a>)) -> u64 {
        match self {
            SetView::Table(table, records) => {
                table.scan(cursor, &mut |record| visit(Value::Bytes(records.key(record))))
            }
            _ => {
                self.for_each(visit);
                0
            }
        }
    }

    /// Calls `visit` with each member.
    pub fn for_each(self, mut visit: impl FnMut(Value<'a>)) {
        match self {
            SetView::Intset(intset) => intset.iter().for_each(|number| visit(Value::Integer(number))),
            SetView::Packed(packed) => packed.iter().for_each(|text| visit(Value::Bytes(text))),
            SetView::Table(table, records) => {
                table.iter().for_each(|record| visit(Value::Bytes(records.key(record))));
            }
        }
    }

    /// How it is stored.
    pub fn encoding(self) -> Encoding {
        match self {
            SetView::Intset(_) => Encoding::Intset,
            SetView::Packed(_) => Encoding::Listpack,
            SetView::Table(..) => Encoding::Hashtable,
        }
    }
}

impl Db {
    /// The set at a key that has one.
    pub fn set_at(&self, found: Found) -> SetView<'_> {
        assert_eq!(self.kind(found), Kind::Set);
        match self.records.stored(found.record) {
            Stored::Bytes(bytes) => match IntsetRef::of(bytes) {
                Some(intset) => SetView::Intset(intset),
                None => SetView::Packed(PackedRef::new(bytes)),
            },
            Stored::Data(Data::Set(table)) => SetView::Table(table, &self.records),
            _ => unreachable!("the record says that it is a set"),
        }
    }

    /// Lends the sets at these keys, of which each has one, together with the records, so that another set can be made of
    /// them. A set that is named twice is lent twice.
    pub fn with_sets<R>(
        &mut self,
        found: &[Found],
        use_them: impl FnOnce(&[&Set], &mut Records) -> Result<R, OutOfMemory>,
    ) -> Result<R, OutOfMemory> {
        let mut places: Vec<Ref> = Vec::new();
        places.try_reserve_exact(found.len())?;
        places.extend(found.iter().map(|found| found.record));
        places.sort_unstable();
        places.dedup();
        let mut taken: Vec<(Ref, Set)> = Vec::new();
        taken.try_reserve_exact(places.len())?;
        let result = places.iter().try_for_each(|&record| {
            taken.push((record, self.take_set(record)?));
            Ok(())
        });
        let mut sets: Vec<&Set> = Vec::new();
        let result = result.and_then(|()| {
            sets.try_reserve_exact(found.len())?;
            let place = |found: &Found| places.binary_search_by_key(&found.record.0, |record| record.0);
            sets.extend(found.iter().filter_map(|found| taken.get(place(found).ok()?)).map(|(_, set)| set));
            use_them(&sets, &mut self.records)
        });
        for (record, set) in taken {
            if let Some(place) = self.records.data_mut(record) {
                *place = set.into_data();
            }
        }
        result
    }

    /// Takes a set out of its record, or copies it where it lies within.
    fn take_set(&mut self, record: Ref) -> Result<Set, OutOfMemory> {
        if let Some(place) = self.records.data_mut(record) {
            return Ok(crate::edit::taken(core::mem::replace(place, Data::Bytes(Vec::new()))));
        }
        let Stored::Bytes(bytes) = self.records.stored(record) else { unreachable!("a collection is no integer") };
        Ok(Set::from_packed(Packed::from_vec(copied(bytes)?)))
    }
}

#[cfg(test)]
mod tests;
