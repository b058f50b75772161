//! The writer of site images.

use super::{
    SiteError,
    format::{
        ABSENT, ALIGNMENT, CHUNK_BYTES, ENTRY_BYTES, HEADER_BYTES, HEADER_USED_BYTES, HOST_BYTES, Layout, MAGIC,
        MAX_PATH_BYTES, SUM_BYTES, VERSION, path_hash,
    },
    is_field_value,
};
use crate::encoding::Coding;
use alloc::{collections::BTreeMap, string::String, vec::Vec};
use xxhash_rust::xxh3::{Xxh3, xxh3_64, xxh3_128};

/// A page to be packed.
#[derive(Clone, Debug, Default)]
pub struct File {
    /// The value of Content-Type.
    pub content_type: String,
    /// The value of Cache-Control; empty for none.
    pub cache_control: String,
    /// When it was last modified, in seconds since 1970.
    pub modified_s: u64,
    /// The page as it is.
    pub identity: Vec<u8>,
    /// Compressed, where that is shorter.
    pub gzip: Option<Vec<u8>>,
    /// Compressed, where that is shorter.
    pub brotli: Option<Vec<u8>>,
}

/// Where an image goes. What goes wrong there is the sink's to remember.
pub trait Sink {
    /// Adds bytes at the end.
    fn append(&mut self, bytes: &[u8]);
    /// Puts bytes in the place of the first ones.
    fn set_beginning(&mut self, bytes: &[u8]);
}

impl Sink for Vec<u8> {
    fn append(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }

    fn set_beginning(&mut self, bytes: &[u8]) {
        self[..bytes.len()].copy_from_slice(bytes);
    }
}

/// What the index says of a page.
#[derive(Default)]
struct Indexed {
    content_type: String,
    cache_control: String,
    modified_s: u64,
    tag: u64,
    /// Offsets and lengths, by [`Coding`].
    variants: [(u64, u64); 3],
}

/// Writes pages as an image while they come: only one of them is in memory, and the index. The same pages in the same order
/// make the same image.
pub struct Builder<S = Vec<u8>> {
    sink: S,
    bodies: Bodies,
    entries: BTreeMap<(u64, u16, Vec<u8>), Option<Indexed>>,
    hosts: BTreeMap<Vec<u8>, u16>,
}

/// The bodies so far, each of which is written once however often it occurs.
#[derive(Default)]
struct Bodies {
    places: BTreeMap<(u128, u64), u64>,
    bytes: u64,
    /// Of the chunk that is not full yet.
    hash: Xxh3,
    sums: Vec<u64>,
}

impl Bodies {
    fn place(&mut self, body: &[u8], sink: &mut impl Sink) -> u64 {
        let key = (xxh3_128(body), body.len() as u64);
        if let Some(at) = self.places.get(&key) {
            return *at;
        }
        let at = self.bytes;
        self.places.insert(key, at);
        self.append(body, sink);
        at
    }

    fn append(&mut self, mut bytes: &[u8], sink: &mut impl Sink) {
        sink.append(bytes);
        while !bytes.is_empty() {
            let room = CHUNK_BYTES - (self.bytes % CHUNK_BYTES as u64) as usize;
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.hash.update(now);
            self.bytes += now.len() as u64;
            bytes = later;
            if self.bytes.is_multiple_of(CHUNK_BYTES as u64) {
                self.end_chunk();
            }
        }
    }

    fn end_chunk(&mut self) {
        self.sums.push(core::mem::take(&mut self.hash).digest());
    }

    /// Fills the last block with zeroes.
    fn end(&mut self, sink: &mut impl Sink) {
        let padding = self.bytes.next_multiple_of(ALIGNMENT) - self.bytes;
        self.append(&[0; ALIGNMENT as usize][..padding as usize], sink);
        if !self.bytes.is_multiple_of(CHUNK_BYTES as u64) {
            self.end_chunk();
        }
    }
}

/// Texts that are written once however often they occur.
#[derive(Default)]
struct Strings {
    bytes: Vec<u8>,
    places: BTreeMap<Vec<u8>, u32>,
}

impl Strings {
    fn place(&mut self, text: &[u8]) -> Result<u32, SiteError> {
        if let Some(at) = self.places.get(text) {
            return Ok(*at);
        }
        let at = u32::try_from(self.bytes.len());
        let at = at.map_err(|_| SiteError::Malformed("the paths together exceed 4 GiB"))?;
        self.bytes.extend_from_slice(text);
        self.places.insert(text.into(), at);
        Ok(at)
    }

    /// Writes the offset (4 bytes) and the length (2 bytes) of a text.
    fn put(&mut self, index: &mut Vec<u8>, text: &[u8]) -> Result<(), SiteError> {
        index.extend(self.place(text)?.to_le_bytes());
        index.extend((text.len() as u16).to_le_bytes());
        Ok(())
    }
}

impl Default for Builder<Vec<u8>> {
    fn default() -> Self {
        Builder::new(Vec::new())
    }
}

impl<S: Sink> Builder<S> {
    /// A builder of an image that goes to an empty sink.
    pub fn new(mut sink: S) -> Builder<S> {
        sink.append(&[0; HEADER_BYTES]);
        Builder { sink, bodies: Bodies::default(), entries: BTreeMap::new(), hosts: BTreeMap::new() }
    }

    /// Adds a page. The paths of folders above it become folders, unless they are pages.
    pub fn page(&mut self, root: u16, path: &[u8], file: &File) -> Result<(), SiteError> {
        let texts = [&file.content_type, &file.cache_control];
        if !texts.iter().all(|text| is_field_value(text.as_bytes()) && text.len() <= usize::from(u16::MAX)) {
            return Err(SiteError::Malformed("a type or a rule for caches is no text for a field"));
        }
        let key = self.free_key(root, path)?;
        let bodies = [Some(&file.identity), file.gzip.as_ref(), file.brotli.as_ref()];
        let variants = bodies
            .map(|body| body.map_or((ABSENT, 0), |body| (self.bodies.place(body, &mut self.sink), body.len() as u64)));
        let indexed = Indexed {
            content_type: file.content_type.clone(),
            cache_control: file.cache_control.clone(),
            modified_s: file.modified_s,
            tag: tag(&bodies),
            variants,
        };
        self.entries.insert(key, Some(indexed));
        Ok(())
    }

    /// Says that a path is a folder: whoever asks for it without the slash at its end is sent there.
    pub fn folder(&mut self, root: u16, path: &[u8]) -> Result<(), SiteError> {
        let key = self.free_key(root, path)?;
        self.entries.insert(key, None);
        Ok(())
    }

    /// Gives the pages of a root to a host. The root 0 is that of all other hosts.
    pub fn host(&mut self, name: &[u8], root: u16) -> Result<(), SiteError> {
        if name.len() > usize::from(u16::MAX) || self.hosts.insert(name.to_ascii_lowercase(), root).is_some() {
            return Err(SiteError::Malformed("a host has two roots"));
        }
        Ok(())
    }

    /// By what a path is ordered, if nothing has it yet.
    fn free_key(&self, root: u16, path: &[u8]) -> Result<(u64, u16, Vec<u8>), SiteError> {
        if path.first() != Some(&b'/') || path.len() > MAX_PATH_BYTES {
            return Err(SiteError::Malformed("a path does not begin with a slash, or is too long"));
        }
        let key = (path_hash(root, path), root, path.into());
        if self.entries.contains_key(&key) {
            return Err(SiteError::Malformed("a path stands for two pages"));
        }
        Ok(key)
    }

    /// Writes what is left, and returns the sink.
    pub fn finish(mut self) -> Result<S, SiteError> {
        self.bodies.end(&mut self.sink);
        let index = self.index()?;
        let index_at = HEADER_BYTES as u64 + self.bodies.bytes;
        self.sink.append(&index.bytes);
        let padding = (index.bytes.len() as u64).next_multiple_of(ALIGNMENT) - index.bytes.len() as u64;
        self.sink.append(&[0; ALIGNMENT as usize][..padding as usize]);
        let mut header = Vec::with_capacity(HEADER_USED_BYTES);
        header.extend_from_slice(MAGIC);
        for number in [VERSION, self.entries.len() as u32, self.hosts.len() as u32, index.strings_bytes] {
            header.extend(number.to_le_bytes());
        }
        let image_bytes = index_at + index.bytes.len() as u64 + padding;
        for number in [image_bytes, xxh3_64(&index.bytes), index_at, 0] {
            header.extend(number.to_le_bytes());
        }
        header.extend(xxh3_64(&header).to_le_bytes());
        Layout::read(&header)?;
        self.sink.set_beginning(&header);
        Ok(self.sink)
    }

    fn index(&self) -> Result<Index, SiteError> {
        let mut strings = Strings::default();
        let records = self.entries.len() * ENTRY_BYTES + self.hosts.len() * HOST_BYTES;
        let mut bytes = Vec::with_capacity(self.bodies.sums.len() * SUM_BYTES + records);
        bytes.extend(self.bodies.sums.iter().flat_map(|sum| sum.to_le_bytes()));
        let absent = Indexed { variants: [(ABSENT, 0); 3], ..Indexed::default() };
        for ((hash, root, path), page) in &self.entries {
            let kind = u8::from(page.is_none());
            let page = page.as_ref().unwrap_or(&absent);
            bytes.extend(hash.to_le_bytes());
            strings.put(&mut bytes, path)?;
            bytes.extend(root.to_le_bytes());
            bytes.extend([kind, 0, 0, 0]);
            strings.put(&mut bytes, page.content_type.as_bytes())?;
            bytes.extend((page.cache_control.len() as u16).to_le_bytes());
            bytes.extend(strings.place(page.cache_control.as_bytes())?.to_le_bytes());
            for number in [page.modified_s, page.tag] {
                bytes.extend(number.to_le_bytes());
            }
            for (at, len) in Coding::ALL.map(|coding| page.variants[coding as usize]) {
                bytes.extend(at.to_le_bytes());
                bytes.extend(len.to_le_bytes());
            }
        }
        for (name, root) in &self.hosts {
            strings.put(&mut bytes, name)?;
            bytes.extend(root.to_le_bytes());
        }
        let strings_bytes = strings.bytes.len() as u32;
        bytes.append(&mut strings.bytes);
        Ok(Index { bytes, strings_bytes })
    }
}

/// The hash of a page, and of its variants if it has some: compressed in another way, they need tags of their own
/// (RFC 9110 §8.8.3.1).
fn tag(bodies: &[Option<&Vec<u8>>]) -> u64 {
    let hashes = bodies.iter().map(|body| body.map_or(0, |body| xxh3_64(body)));
    match bodies {
        [Some(identity), None, None] => xxh3_64(identity),
        _ => xxh3_64(&hashes.flat_map(u64::to_le_bytes).collect::<Vec<_>>()),
    }
}

/// A whole index.
struct Index {
    bytes: Vec<u8>,
    strings_bytes: u32,
}

/// Writes the checksums that the rest of an image calls for.
pub fn seal(image: &mut [u8]) {
    // The header's first, or what it says of the rest would not be believed.
    seal_header(image);
    let Ok(layout) = Layout::read(image) else { return };
    if layout.image_bytes != image.len() as u64 {
        return;
    }
    let (bodies, index) = image[HEADER_BYTES..].split_at_mut(layout.bodies_bytes() as usize);
    for (chunk, sum) in bodies.chunks(CHUNK_BYTES).zip(index.chunks_mut(SUM_BYTES)) {
        sum.copy_from_slice(&xxh3_64(chunk).to_le_bytes());
    }
    let index_sum = xxh3_64(&index[..layout.index_end]);
    image[32..40].copy_from_slice(&index_sum.to_le_bytes());
    seal_header(image);
}

fn seal_header(image: &mut [u8]) {
    if let Some(header) = image.get_mut(..HEADER_USED_BYTES) {
        let sum = xxh3_64(&header[..56]);
        header[56..].copy_from_slice(&sum.to_le_bytes());
    }
}
