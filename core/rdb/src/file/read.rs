use super::{
    AUX, CHECKSUM_SINCE, DATABASE, END, EXPIRY_MS, EXPIRY_S, FREQUENCY, FUNCTION, HEAD, IDLE, MAGIC, MODULE_AUX,
    OLD_FUNCTION, SIZES, SLOT_SIZES, Use,
};
use crate::{CRC, Checksum, Error, Reader, Text, VERSION, kind};
use alloc::string::String;
use core::fmt;
use crc::{Digest, Table};

/// One part of a file.
#[derive(Debug)]
pub enum Item<'a> {
    /// Something about the file: its name and text.
    Aux(Text<'a>, Text<'a>),
    /// The database that the next entries belong to.
    Database(u64),
    /// How many keys this database has, and how many of them expire. Only a hint.
    Sizes(u64, u64),
    /// A slot of a cluster, how many keys it has, and how many of them expire. Only a hint.
    SlotSizes(u64, u64, u64),
    /// The text of a library of functions.
    Function(Text<'a>),
    /// A key with its value.
    Entry(Entry<'a>),
    /// What the module of this number has kept beside the keys.
    ModuleData(u64),
    /// The end. What follows is not the file's.
    End,
}

/// A key with its value.
#[derive(Debug)]
pub struct Entry<'a> {
    /// When it expires, in milliseconds since 1970.
    pub expires_ms: Option<i64>,
    /// How much it was used.
    pub usage: Use,
    #[allow(missing_docs)]
    pub key: Text<'a>,
    /// The type of the value.
    pub kind: u8,
    /// What [`read_as`](crate::read_as) takes.
    pub value: &'a [u8],
}

/// How far reading has come.
#[derive(Debug)]
pub enum Step<'a> {
    /// A part, and how many bytes it had.
    Item(Item<'a>, usize),
    /// It takes at least so many bytes from the same place on to go on. There may be far more of them.
    Needs(u64),
}

/// What is wrong with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It does not begin as one.
    NotADump,
    /// It is of a version that is not known.
    Version(u16),
    /// No part begins with this byte.
    UnknownPart(u8),
    /// A part is not what it claims to be.
    Corrupt,
    /// It has functions of a time before Redis 7.0 was released.
    OldFunction,
    /// It has a value of this module.
    ModuleValue(u64),
    /// It has a value of a module, in a form that only the module can read.
    OldModuleValue,
    /// The bytes are not those that were written.
    Checksum,
    /// There was no memory for what it holds.
    OutOfMemory,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::NotADump => f.write_str("this is no dump file: it does not begin with REDIS and a version"),
            Fault::Version(version) => {
                write!(f, "this dump file is of version {version}; versions 1 to {VERSION} (Redis 7.4) can be read")
            }
            Fault::UnknownPart(first) => write!(f, "no part of a dump file begins with the byte {first:#04x}"),
            Fault::Corrupt => f.write_str("the bytes are not what they claim to be"),
            Fault::OldFunction => f.write_str(
                "functions of a release candidate of Redis 7.0 cannot be read; load it with Redis 7.0.0 or later once",
            ),
            Fault::ModuleValue(id) => write!(f, "a value belongs to the module type {}", module_name(*id)),
            Fault::OldModuleValue => f.write_str("a value belongs to a module and is in the form before Redis 4.0"),
            Fault::Checksum => f.write_str("the checksum is wrong: the file is not as it was written"),
            Fault::OutOfMemory => f.write_str("there is no memory for what the file holds"),
        }
    }
}

impl core::error::Error for Fault {}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        match error {
            Error::Corrupt | Error::Short { .. } => Fault::Corrupt,
            Error::OutOfMemory => Fault::OutOfMemory,
        }
    }
}

/// The name in a module's number: nine letters of six bits, before ten bits of its version.
pub fn module_name(id: u64) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    (0..9).rev().map(|at| char::from(LETTERS[(id >> (10 + 6 * at)) as usize & 63])).collect()
}

/// Whether bytes begin as a dump file does.
pub fn is_dump(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// Reads a file part by part. It keeps no bytes: whoever does gives it those from [`offset`](Self::offset) on.
pub struct FileReader {
    /// 0 before the head has been read.
    version: u16,
    offset: u64,
    /// `None` if nobody wants to know whether the checksum is right.
    digest: Option<Digest<'static, u64, Table<1>>>,
}

impl FileReader {
    /// Begins a file.
    pub fn new(checksum: Checksum) -> FileReader {
        FileReader { version: 0, offset: 0, digest: (checksum == Checksum::On).then(|| CRC.digest()) }
    }

    /// Where in the file the next part begins.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Reads the part that `bytes` begin with. A fault is in the part at [`offset`](Self::offset).
    pub fn next<'a>(&mut self, bytes: &'a [u8]) -> Result<Step<'a>, Fault> {
        let mut reader = Reader::new(bytes);
        let version = match self.version {
            0 => match head(&mut reader) {
                Err(Fault::Corrupt) => return Ok(Step::Needs(HEAD as u64)),
                version => version?,
            },
            version => version,
        };
        match self.part(version, &mut reader) {
            Ok(item) => {
                let used = bytes.len() - reader.left();
                self.version = version;
                if !matches!(item, Item::End) {
                    self.digest.iter_mut().for_each(|digest| digest.update(&bytes[..used]));
                }
                self.offset += used as u64;
                Ok(Step::Item(item, used))
            }
            Err(Stop::Short { missing }) => Ok(Step::Needs((bytes.len() as u64).saturating_add(missing))),
            Err(Stop::Fault(fault)) => Err(fault),
        }
    }

    fn part<'a>(&self, version: u16, reader: &mut Reader<'a>) -> Result<Item<'a>, Stop> {
        let before = *reader;
        Ok(match reader.byte()? {
            AUX => Item::Aux(reader.text()?, reader.text()?),
            DATABASE => Item::Database(reader.len()?),
            SIZES => Item::Sizes(reader.len()?, reader.len()?),
            SLOT_SIZES => Item::SlotSizes(reader.len()?, reader.len()?, reader.len()?),
            FUNCTION => Item::Function(reader.text()?),
            OLD_FUNCTION => return Err(Stop::Fault(Fault::OldFunction)),
            MODULE_AUX => {
                let id = reader.len()?;
                skip_module(reader)?;
                Item::ModuleData(id)
            }
            END => {
                if version >= CHECKSUM_SINCE {
                    let own_part = before.until(reader);
                    let sum = reader.u64()?;
                    // Whoever writes a file may leave its checksum out.
                    if let Some(mut digest) = self.digest.clone().filter(|_| sum != 0) {
                        digest.update(own_part);
                        if sum != digest.finalize() {
                            return Err(Stop::Fault(Fault::Checksum));
                        }
                    }
                }
                Item::End
            }
            first => Item::Entry(entry(first, reader)?),
        })
    }
}

/// Why there is no part.
enum Stop {
    Short { missing: u64 },
    Fault(Fault),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        match error {
            Error::Short { missing } => Stop::Short { missing },
            error => Stop::Fault(error.into()),
        }
    }
}

/// Reads the version. Too few bytes are no fault yet.
fn head(reader: &mut Reader<'_>) -> Result<u16, Fault> {
    let head = reader.bytes(HEAD)?;
    let version = head.strip_prefix(MAGIC).ok_or(Fault::NotADump)?;
    let version = version.iter().try_fold(0, |number: u16, digit| {
        digit.is_ascii_digit().then(|| number * 10 + u16::from(digit - b'0')).ok_or(Fault::NotADump)
    })?;
    if (1..=VERSION).contains(&version) { Ok(version) } else { Err(Fault::Version(version)) }
}

fn entry<'a>(first: u8, reader: &mut Reader<'a>) -> Result<Entry<'a>, Stop> {
    let (mut kind, mut expires_ms, mut usage) = (first, None, Use::Unknown);
    loop {
        match kind {
            EXPIRY_MS => expires_ms = Some(reader.u64()? as i64),
            EXPIRY_S => expires_ms = Some(i64::from(i32::from_le_bytes(reader.array()?)) * 1000),
            IDLE => usage = Use::IdleSeconds(reader.len()?),
            FREQUENCY => usage = Use::Frequency(reader.byte()?),
            _ => break,
        }
        kind = reader.byte()?;
    }
    // What is no type is told before the bytes behind it are taken for a length.
    if !is_value(kind) {
        return Err(Stop::Fault(if kind >= FUNCTION { Fault::Corrupt } else { Fault::UnknownPart(kind) }));
    }
    let key = reader.text()?;
    if kind == kind::MODULE {
        return Err(Stop::Fault(Fault::OldModuleValue));
    }
    let start = *reader;
    skip_value(kind, reader)?;
    Ok(Entry { expires_ms, usage, key, kind, value: start.until(reader) })
}

fn is_value(kind: u8) -> bool {
    matches!(kind, kind::STRING..=kind::MODULE_2 | kind::HASH_ZIPMAP..=kind::STREAM_LISTPACKS_3 | kind::HASH_EXPIRING..=kind::HASH_EXPIRING_LISTPACK)
}

/// Passes a value by, without a look at what lies in its strings.
fn skip_value(kind: u8, reader: &mut Reader<'_>) -> Result<(), Stop> {
    match kind {
        kind::LIST | kind::SET | kind::LIST_QUICKLIST => skip_texts(reader, 1)?,
        kind::HASH => skip_texts(reader, 2)?,
        kind::HASH_EXPIRING => {
            reader.u64()?;
            each(reader, |reader| {
                reader.len()?;
                reader.skip_text()?;
                reader.skip_text()
            })?;
        }
        kind::HASH_EXPIRING_LISTPACK => {
            reader.u64()?;
            reader.skip_text()?;
        }
        kind::ZSET => each(reader, |reader| {
            reader.skip_text()?;
            let len = reader.byte()?;
            // The highest ones stand for numbers that are none, and infinities.
            reader.bytes(if len < 0xfd { len.into() } else { 0 })?;
            Ok(())
        })?,
        kind::ZSET_2 => each(reader, |reader| {
            reader.skip_text()?;
            reader.u64()?;
            Ok(())
        })?,
        kind::LIST_QUICKLIST_2 => each(reader, |reader| {
            reader.len()?;
            reader.skip_text()
        })?,
        kind::STREAM_LISTPACKS => skip_stream(reader, 1)?,
        kind::STREAM_LISTPACKS_2 => skip_stream(reader, 2)?,
        kind::STREAM_LISTPACKS_3 => skip_stream(reader, 3)?,
        kind::MODULE_2 => {
            reader.len()?;
            skip_module(reader)?;
        }
        _ => reader.skip_text()?,
    }
    Ok(())
}

/// So many times what a number says. Each takes a byte at least, so a number that cannot be is found out at once.
fn each(reader: &mut Reader<'_>, mut skip: impl FnMut(&mut Reader<'_>) -> Result<(), Error>) -> Result<(), Error> {
    let count = reader.len()?;
    if let Some(missing) = count.checked_sub(reader.left() as u64).filter(|missing| *missing > 0) {
        return Err(Error::Short { missing });
    }
    (0..count).try_for_each(|_| skip(reader))
}

fn skip_texts(reader: &mut Reader<'_>, per_element: usize) -> Result<(), Error> {
    each(reader, |reader| (0..per_element).try_for_each(|_| reader.skip_text()))
}

fn skip_stream(reader: &mut Reader<'_>, version: u8) -> Result<(), Error> {
    skip_texts(reader, 2)?;
    let lengths = |reader: &mut Reader<'_>, count: u8| (0..count).try_for_each(|_| reader.len().map(|_| ()));
    let is_newer = version >= 2;
    lengths(reader, if is_newer { 8 } else { 3 })?;
    each(reader, |reader| {
        reader.skip_text()?;
        lengths(reader, if is_newer { 3 } else { 2 })?;
        each(reader, |reader| {
            reader.bytes(16 + 8)?;
            lengths(reader, 1)
        })?;
        each(reader, |reader| {
            reader.skip_text()?;
            reader.bytes(if version >= 3 { 16 } else { 8 })?;
            each(reader, |reader| reader.bytes(16).map(|_| ()))
        })
    })
}

/// Passes by what a module wrote: values, each behind its type, up to an end.
fn skip_module(reader: &mut Reader<'_>) -> Result<(), Error> {
    const FLOAT: u64 = 3;
    const DOUBLE: u64 = 4;
    loop {
        match reader.len()? {
            0 => return Ok(()),
            1 | 2 => _ = reader.len()?,
            FLOAT => _ = reader.bytes(4)?,
            DOUBLE => _ = reader.bytes(8)?,
            5 => reader.skip_text()?,
            _ => return Err(Error::Corrupt),
        }
    }
}
