//! A packed site: read-only, looked up where it lies. `docs/site-format.md` describes the format.

mod build;
mod format;

pub use build::{Builder, File, Sink, seal};

use crate::{Bytes, encoding::Coding};
use core::{fmt, ops::Range};
use format::{ABSENT, ENTRY_BYTES, HOST_BYTES, SUM_BYTES, VERSION};
pub use format::{CHUNK_BYTES, HEADER_BYTES, Layout, MAX_PATH_BYTES};
use xxhash_rust::xxh3::xxh3_64;

/// The path of the page that says that there is none.
const NOT_FOUND_PATH: &[u8] = b"/404.html";
/// The root of hosts that the site does not name.
pub const DEFAULT_ROOT: u16 = 0;

/// Why an image is no site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SiteError {
    /// It does not begin as one.
    NotASite,
    /// A version of the format that is not known here.
    Version(u32),
    /// It is shorter or longer than it says.
    Length,
    /// A checksum does not match.
    Checksum,
    /// The offsets, the order or the text of this part are wrong.
    Malformed(&'static str),
}

impl fmt::Display for SiteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SiteError::NotASite => f.write_str("this is not a site image; make one with: kayvee site pack DIR -o FILE"),
            SiteError::Version(version) => {
                write!(
                    f,
                    "the site image has format version {version}, and this program reads version {VERSION}; pack it again"
                )
            }
            SiteError::Length => {
                f.write_str("the site image is cut off or has something behind it; pack or copy it again")
            }
            SiteError::Checksum => f.write_str("the site image is damaged (a checksum differs); pack or copy it again"),
            SiteError::Malformed(part) => write!(f, "the site image is damaged ({part}); pack it again"),
        }
    }
}

impl core::error::Error for SiteError {}

/// A checked site.
#[derive(Clone)]
pub struct Site {
    layout: Layout,
    /// The index, and what is before it if that is in memory as well.
    bytes: Bytes,
    index_at: usize,
    place: Place,
}

/// Where bodies are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In memory, and checked.
    Memory,
    /// On a disk, to be checked when they are read.
    Disk,
}

/// What a path stands for.
#[derive(Clone, Copy)]
pub enum Found<'a> {
    /// A page.
    Page(Entry<'a>),
    /// A folder, whose path ends in a slash.
    Folder,
}

/// The entries of a site, where they lie.
#[derive(Clone, Copy)]
struct Entries<'a> {
    records: &'a [u8],
    strings: &'a [u8],
}

/// A page of a site.
#[derive(Clone, Copy)]
pub struct Entry<'a> {
    index: u32,
    record: &'a [u8],
    strings: &'a [u8],
}

impl Site {
    /// Checks a whole image: what it says of itself, its checksums, and everything that a request could reach.
    pub fn open(image: Bytes) -> Result<Site, SiteError> {
        let layout = Layout::read((*image).as_ref())?;
        if layout.image_bytes != (*image).as_ref().len() as u64 {
            return Err(SiteError::Length);
        }
        let index_at = layout.index_at as usize;
        let site = Site { layout, bytes: image, index_at, place: Place::Memory };
        site.check()?;
        let chunks = site.bytes()[HEADER_BYTES..index_at].chunks(CHUNK_BYTES);
        if chunks.enumerate().all(|(chunk, bytes)| site.is_sound(chunk as u64, bytes)) {
            Ok(site)
        } else {
            Err(SiteError::Checksum)
        }
    }

    /// Checks the index of an image whose bodies stay on a disk.
    pub fn open_index(layout: Layout, index: Bytes) -> Result<Site, SiteError> {
        if (*index).as_ref().len() != layout.index_bytes() {
            return Err(SiteError::Length);
        }
        let site = Site { layout, bytes: index, index_at: 0, place: Place::Disk };
        site.check()?;
        Ok(site)
    }

    fn check(&self) -> Result<(), SiteError> {
        let (index, padding) = self.index().split_at(self.layout.index_end);
        if xxh3_64(index) != self.layout.index_sum || padding.iter().any(|byte| *byte != 0) {
            return Err(SiteError::Checksum);
        }
        self.check_entries()?;
        self.check_hosts()
    }

    /// Whether a chunk of the bodies is what was packed.
    pub fn is_sound(&self, chunk: u64, bytes: &[u8]) -> bool {
        xxh3_64(bytes) == u64_at(self.index(), chunk as usize * SUM_BYTES)
    }

    /// Where its parts lie.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Where its bodies are.
    pub fn place(&self) -> Place {
        self.place
    }

    /// The bytes of bodies that are in memory, and where they are among the bytes of the image.
    pub fn lend(&self, body: Range<u64>) -> (&Bytes, Range<usize>) {
        assert!(self.place == Place::Memory, "a body is lent where it is in memory");
        (&self.bytes, HEADER_BYTES + body.start as usize..HEADER_BYTES + body.end as usize)
    }

    /// A body that is in memory.
    pub fn body(&self, body: Range<u64>) -> &[u8] {
        &self.bytes()[self.lend(body).1]
    }

    /// How many paths it has.
    pub fn len(&self) -> usize {
        self.layout.entries as usize
    }

    /// Whether it has no page at all.
    pub fn is_empty(&self) -> bool {
        self.layout.entries == 0
    }

    /// The root of a host's pages.
    pub fn root(&self, host: &[u8]) -> u16 {
        let found = search(self.layout.hosts, |index| self.host(index).0.cmp(host));
        found.map_or(DEFAULT_ROOT, |index| self.host(index).1)
    }

    /// Looks a path up.
    pub fn find(&self, root: u16, path: &[u8]) -> Option<Found<'_>> {
        if path.len() > MAX_PATH_BYTES {
            return None;
        }
        let key = (format::path_hash(root, path), root, path);
        let entries = self.entries();
        let compare = |index| {
            let entry = entries.get(index);
            entry.hash().cmp(&key.0).then_with(|| entry.key().cmp(&key))
        };
        let entry = entries.get(search(self.layout.entries, compare)?);
        Some(if entry.is_folder() { Found::Folder } else { Found::Page(entry) })
    }

    /// The page that says that there is none, if this root has its own.
    pub fn not_found_page(&self, root: u16) -> Option<Entry<'_>> {
        match self.find(root, NOT_FOUND_PATH)? {
            Found::Page(entry) => Some(entry),
            Found::Folder => None,
        }
    }

    /// All pages: root, path and page.
    pub fn pages(&self) -> impl Iterator<Item = (u16, &[u8], Entry<'_>)> {
        let entries = (0..self.layout.entries).map(|index| self.entry(index));
        entries.filter(|entry| !entry.is_folder()).map(|entry| (entry.key().1, entry.key().2, entry))
    }

    fn bytes(&self) -> &[u8] {
        (*self.bytes).as_ref()
    }

    fn index(&self) -> &[u8] {
        &self.bytes()[self.index_at..]
    }

    fn strings(&self) -> &[u8] {
        &self.index()[self.layout.strings_at..self.layout.index_end]
    }

    fn entries(&self) -> Entries<'_> {
        let index = &self.index()[..self.layout.index_end];
        Entries { records: &index[self.layout.entries_at..], strings: &index[self.layout.strings_at..] }
    }

    fn entry(&self, index: u32) -> Entry<'_> {
        self.entries().get(index)
    }

    fn host_record(&self, index: u32) -> &[u8] {
        let at = self.layout.hosts_at + index as usize * HOST_BYTES;
        &self.index()[at..at + HOST_BYTES]
    }

    fn host(&self, index: u32) -> (&[u8], u16) {
        let record = self.host_record(index);
        (text(self.strings(), record, 0, 4), u16_at(record, 6))
    }

    fn check_entries(&self) -> Result<(), SiteError> {
        let wrong = Err(SiteError::Malformed("entry"));
        let strings_bytes = self.strings().len();
        let bodies_bytes = self.layout.bodies_bytes();
        let mut previous = None;
        for index in 0..self.layout.entries {
            let entry = self.entry(index);
            let record = entry.record;
            let texts = [(8, 12), (20, 24), (28, 26)].map(|(at, len)| has_text(record, at, len, strings_bytes));
            if texts.contains(&false) || record[16] > 1 || record[17..20] != [0; 3] {
                return wrong;
            }
            let (hash, root, path) = entry.key();
            let is_path = path.first() == Some(&b'/') && path.len() <= MAX_PATH_BYTES;
            if !is_path
                || hash != format::path_hash(root, path)
                || previous.is_some_and(|previous| previous >= entry.key())
            {
                return wrong;
            }
            previous = Some(entry.key());
            let header_texts = [entry.content_type(), entry.cache_control()];
            if !header_texts.into_iter().all(is_field_value) {
                return wrong;
            }
            let in_bodies = Coding::ALL.iter().all(|coding| {
                let (at, len) = entry.variant(*coding);
                at == ABSENT || at.checked_add(len).is_some_and(|end| end <= bodies_bytes)
            });
            let has_identity = entry.variant(Coding::Identity).0 != ABSENT;
            if !in_bodies || has_identity == entry.is_folder() {
                return wrong;
            }
        }
        Ok(())
    }

    fn check_hosts(&self) -> Result<(), SiteError> {
        let strings_bytes = self.strings().len();
        let mut previous: Option<&[u8]> = None;
        for index in 0..self.layout.hosts {
            if !has_text(self.host_record(index), 0, 4, strings_bytes) {
                return Err(SiteError::Malformed("host"));
            }
            let (name, _) = self.host(index);
            if previous.is_some_and(|previous| previous >= name) {
                return Err(SiteError::Malformed("host"));
            }
            previous = Some(name);
        }
        Ok(())
    }
}

impl<'a> Entries<'a> {
    fn get(self, index: u32) -> Entry<'a> {
        let at = index as usize * ENTRY_BYTES;
        Entry { index, record: &self.records[at..at + ENTRY_BYTES], strings: self.strings }
    }
}

impl<'a> Entry<'a> {
    /// Which of the site's entries it is.
    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    fn hash(&self) -> u64 {
        u64_at(self.record, 0)
    }

    /// By what entries are ordered.
    fn key(&self) -> (u64, u16, &'a [u8]) {
        (self.hash(), u16_at(self.record, 14), text(self.strings, self.record, 8, 12))
    }

    fn is_folder(&self) -> bool {
        self.record[16] == 1
    }

    /// The value of Content-Type, in visible ASCII.
    pub fn content_type(&self) -> &'a [u8] {
        text(self.strings, self.record, 20, 24)
    }

    /// The value of Cache-Control, in visible ASCII; empty for none.
    pub fn cache_control(&self) -> &'a [u8] {
        text(self.strings, self.record, 28, 26)
    }

    /// When the file was last modified, in seconds since 1970.
    pub fn modified_s(&self) -> u64 {
        u64_at(self.record, 32)
    }

    /// The hash that the entity tag shows.
    pub fn tag(&self) -> u64 {
        u64_at(self.record, 40)
    }

    /// Whether there are variants to choose from.
    pub(crate) fn varies(&self) -> bool {
        [Coding::Gzip, Coding::Brotli].iter().any(|coding| self.variant(*coding).0 != ABSENT)
    }

    /// Lengths of the variants, by [`Coding`].
    pub(crate) fn lengths(&self) -> [Option<u64>; 3] {
        Coding::ALL
            .map(|coding| Some(self.variant(coding)).filter(|variant| variant.0 != ABSENT).map(|variant| variant.1))
    }

    /// Where a variant's body lies among the bodies.
    pub(crate) fn body(&self, coding: Coding) -> Range<u64> {
        let (at, len) = self.variant(coding);
        at..at + len
    }

    /// Where the page as it is lies among the bodies.
    pub fn identity_body(&self) -> Range<u64> {
        self.body(Coding::Identity)
    }

    fn variant(&self, coding: Coding) -> (u64, u64) {
        let at = 48 + coding as usize * 16;
        (u64_at(self.record, at), u64_at(self.record, at + 8))
    }
}

/// Binary search among so many.
fn search(len: u32, compare: impl Fn(u32) -> core::cmp::Ordering) -> Option<u32> {
    let (mut low, mut high) = (0, len);
    while low < high {
        let middle = low + (high - low) / 2;
        match compare(middle) {
            core::cmp::Ordering::Equal => return Some(middle),
            core::cmp::Ordering::Less => low = middle + 1,
            core::cmp::Ordering::Greater => high = middle,
        }
    }
    None
}

/// Whether a text whose offset and length stand at these places of a record lies within the strings.
fn has_text(record: &[u8], at: usize, len: usize, strings_bytes: usize) -> bool {
    u32_at(record, at) as usize + usize::from(u16_at(record, len)) <= strings_bytes
}

fn text<'a>(strings: &'a [u8], record: &[u8], at: usize, len: usize) -> &'a [u8] {
    let start = u32_at(record, at) as usize;
    &strings[start..start + usize::from(u16_at(record, len))]
}

/// Whether a text can stand in a field without beginning another one (RFC 9110 §5.5).
fn is_field_value(text: &[u8]) -> bool {
    text.iter().all(|byte| matches!(byte, b' '..=b'~'))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array_at(bytes, at))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array_at(bytes, at))
}

#[inline(always)]
fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

#[cfg(test)]
mod tests;
