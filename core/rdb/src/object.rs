//! Values as a whole.

use crate::{Error, Reader, Text, digits, intset, kind, listpack, listpack::Entry, stream::Stream, ziplist};

/// A value.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum Object<'a> {
    String(Text<'a>),
    List(Elements<'a>),
    Set(Elements<'a>),
    /// Fields with their values.
    Hash(Elements<'a>),
    SortedSet(Scored<'a>),
    Stream(Stream<'a>),
}

/// Elements that are read as they are visited.
#[derive(Debug)]
pub struct Elements<'a>(Form<'a>);

#[derive(Debug)]
enum Form<'a> {
    /// So many strings.
    Strings(u64, Reader<'a>),
    Listpack(Text<'a>),
    Ziplist(Text<'a>),
    Zipmap(Text<'a>),
    Intset(Text<'a>),
    /// So many fields, each behind its time, which is counted from just before the first of these, or 0; and its value.
    Expiring {
        first_ms: u64,
        count: u64,
        reader: Reader<'a>,
    },
    /// Each field with its value and time, or 0.
    ExpiringListpack(Text<'a>),
    /// So many ziplists.
    Ziplists(u64, Reader<'a>),
    /// So many listpacks or single strings.
    Nodes(u64, Reader<'a>),
}

/// Members of a sorted set with their scores, read as they are visited.
#[derive(Debug)]
pub struct Scored<'a>(ScoredForm<'a>);

#[derive(Debug)]
enum ScoredForm<'a> {
    /// So many members, each with a number.
    Binary(u64, Reader<'a>),
    /// So many members, each with a number as text.
    Text(u64, Reader<'a>),
    Packed(Form<'a>),
}

/// A score.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Score<'a> {
    Number(f64),
    /// As C's `strtod` reads it.
    Text(&'a [u8]),
}

/// Reads a value with its type in front. What lies within is checked as it is visited.
pub fn read(bytes: &[u8]) -> Result<Object<'_>, Error> {
    let (kind, value) = bytes.split_first().ok_or(Error::Short { missing: 1 })?;
    read_as(*kind, value)
}

/// Reads a value of this [`kind`].
pub fn read_as(kind: u8, value: &[u8]) -> Result<Object<'_>, Error> {
    let mut reader = Reader::new(value);
    let elements = |form| Elements(form);
    Ok(match kind {
        kind::STRING => Object::String(reader.text()?),
        kind::LIST => Object::List(elements(Form::Strings(reader.len()?, reader))),
        kind::SET => Object::Set(elements(Form::Strings(reader.len()?, reader))),
        kind::HASH => {
            let pairs = reader.len()?;
            Object::Hash(elements(Form::Strings(pairs.checked_mul(2).ok_or(Error::Corrupt)?, reader)))
        }
        kind::LIST_ZIPLIST => Object::List(elements(Form::Ziplist(reader.text()?))),
        kind::LIST_QUICKLIST => Object::List(elements(Form::Ziplists(reader.len()?, reader))),
        kind::LIST_QUICKLIST_2 => Object::List(elements(Form::Nodes(reader.len()?, reader))),
        kind::SET_INTSET => Object::Set(elements(Form::Intset(reader.text()?))),
        kind::SET_LISTPACK => Object::Set(elements(Form::Listpack(reader.text()?))),
        kind::HASH_ZIPMAP => Object::Hash(elements(Form::Zipmap(reader.text()?))),
        kind::HASH_ZIPLIST => Object::Hash(elements(Form::Ziplist(reader.text()?))),
        kind::HASH_EXPIRING => {
            let (first_ms, count) = (reader.u64()?, reader.len()?);
            Object::Hash(elements(Form::Expiring { first_ms, count, reader }))
        }
        kind::HASH_EXPIRING_LISTPACK => {
            // Each time is in the listpack as it is.
            reader.u64()?;
            Object::Hash(elements(Form::ExpiringListpack(reader.text()?)))
        }
        kind::HASH_LISTPACK => Object::Hash(elements(Form::Listpack(reader.text()?))),
        kind::ZSET => Object::SortedSet(Scored(ScoredForm::Text(reader.len()?, reader))),
        kind::ZSET_2 => Object::SortedSet(Scored(ScoredForm::Binary(reader.len()?, reader))),
        kind::ZSET_ZIPLIST => Object::SortedSet(Scored(ScoredForm::Packed(Form::Ziplist(reader.text()?)))),
        kind::ZSET_LISTPACK => Object::SortedSet(Scored(ScoredForm::Packed(Form::Listpack(reader.text()?)))),
        kind::STREAM_LISTPACKS => Object::Stream(Stream { reader, version: 1 }),
        kind::STREAM_LISTPACKS_2 => Object::Stream(Stream { reader, version: 2 }),
        kind::STREAM_LISTPACKS_3 => Object::Stream(Stream { reader, version: 3 }),
        _ => return Err(Error::Corrupt),
    })
}

/// Receives an element. Not a type of its own for each receiver: the code for all forms would be there as often.
type Visit<'v, E> = &'v mut dyn FnMut(&[u8]) -> Result<(), E>;

impl Form<'_> {
    fn for_each<E: From<Error>>(&self, visit: Visit<'_, E>) -> Result<(), E> {
        const PLAIN: u64 = 1;
        const PACKED: u64 = 2;
        let mut show = |entry: Entry<'_>| entry.with_text(&mut *visit);
        match self {
            Form::Strings(count, reader) => {
                let mut reader = *reader;
                (0..*count).try_for_each(|_| visit(reader.text()?.as_bytes()))
            }
            Form::Listpack(text) | Form::ExpiringListpack(text) => listpack::for_each(text.as_bytes(), &mut show),
            // These are visited with their times.
            Form::Expiring { .. } => Err(Error::Corrupt.into()),
            Form::Ziplist(text) => ziplist::for_each(text.as_bytes(), &mut show),
            Form::Zipmap(text) => ziplist::for_each_in_map(text.as_bytes(), &mut show),
            Form::Intset(text) => intset::for_each(text.as_bytes(), |number| show(Entry::Integer(number))),
            Form::Ziplists(count, reader) => {
                let mut reader = *reader;
                (0..*count).try_for_each(|_| ziplist::for_each(reader.text()?.as_bytes(), &mut show))
            }
            Form::Nodes(count, reader) => {
                let mut reader = *reader;
                (0..*count).try_for_each(|_| match reader.len()? {
                    PLAIN => match reader.text()?.as_bytes() {
                        // Redis has no node for it: what is short is packed.
                        [] => Err(Error::Corrupt.into()),
                        text => show(Entry::Text(text)),
                    },
                    PACKED => listpack::for_each(reader.text()?.as_bytes(), &mut show),
                    _ => Err(Error::Corrupt.into()),
                })
            }
        }
    }
}

/// Receives a field of a hash, its value, and when it expires, if it does.
pub type VisitField<'v, E> = &'v mut dyn FnMut(&[u8], &[u8], Option<u64>) -> Result<(), E>;

impl Elements<'_> {
    /// Visits the elements in order.
    pub fn for_each<E: From<Error>>(&self, mut visit: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        self.0.for_each(&mut visit)
    }

    /// Visits fields with their values, and when they expire, in milliseconds since 1970, if they do.
    pub fn for_each_field<E: From<Error>>(&self, visit: VisitField<'_, E>) -> Result<(), E> {
        match self.0 {
            Form::Expiring { first_ms, count, mut reader } => (0..count).try_for_each(|_| {
                let at_ms = match reader.len()? {
                    0 => None,
                    rest => Some(first_ms.checked_add(rest - 1).ok_or(Error::Corrupt)?),
                };
                let (field, value) = (reader.text()?, reader.text()?);
                visit(field.as_bytes(), value.as_bytes(), at_ms)
            }),
            Form::ExpiringListpack(_) => {
                let (mut pair, mut value_at, mut count) = (alloc::vec::Vec::new(), 0, 0u64);
                self.0.for_each(&mut |element| -> Result<(), E> {
                    count += 1;
                    if count.is_multiple_of(3) {
                        let at_ms = digits::parse(element).and_then(|at| u64::try_from(at).ok());
                        let at_ms = at_ms.ok_or(Error::Corrupt)?;
                        visit(&pair[..value_at], &pair[value_at..], (at_ms > 0).then_some(at_ms))?;
                        pair.clear();
                        return Ok(());
                    }
                    value_at = pair.len();
                    pair.try_reserve(element.len()).map_err(Error::from)?;
                    pair.extend_from_slice(element);
                    Ok(())
                })?;
                if count.is_multiple_of(3) { Ok(()) } else { Err(Error::Corrupt.into()) }
            }
            _ => for_each_pair(&self.0, |field, value| visit(field, value, None)),
        }
    }
}

fn for_each_pair<E: From<Error>>(
    form: &Form<'_>,
    mut visit: impl FnMut(&[u8], &[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let mut first = alloc::vec::Vec::new();
    let mut is_second = false;
    form.for_each(&mut |element| -> Result<(), E> {
        if is_second {
            visit(&first, element)?;
        } else {
            first.clear();
            first.try_reserve(element.len()).map_err(Error::from)?;
            first.extend_from_slice(element);
        }
        is_second = !is_second;
        Ok(())
    })?;
    if is_second { Err(Error::Corrupt.into()) } else { Ok(()) }
}

impl Scored<'_> {
    /// Visits the members with their scores.
    pub fn for_each<E: From<Error>>(&self, mut visit: impl FnMut(&[u8], Score<'_>) -> Result<(), E>) -> Result<(), E> {
        match &self.0 {
            ScoredForm::Binary(count, reader) => {
                let mut reader = *reader;
                (0..*count).try_for_each(|_| {
                    let member = reader.text()?;
                    visit(member.as_bytes(), Score::Number(f64::from_bits(reader.u64()?)))
                })
            }
            ScoredForm::Text(count, reader) => {
                let mut reader = *reader;
                (0..*count).try_for_each(|_| {
                    let member = reader.text()?;
                    let score = match reader.byte()? {
                        0xff => Score::Number(f64::NEG_INFINITY),
                        0xfe => Score::Number(f64::INFINITY),
                        0xfd => Score::Number(f64::NAN),
                        len => Score::Text(reader.bytes(len.into())?),
                    };
                    visit(member.as_bytes(), score)
                })
            }
            ScoredForm::Packed(form) => for_each_pair(form, |member, score| visit(member, Score::Text(score))),
        }
    }
}
