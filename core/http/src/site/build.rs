//! The writer of site images.

use super::{
    SiteError,
    format::{
        ABSENT, BODIES_ALIGNMENT, ENTRY_BYTES, HEADER_BYTES, HOST_BYTES, MAGIC, MAX_PATH_BYTES, VERSION, path_hash,
    },
    is_field_value, u64_at,
};
use crate::encoding::Coding;
use alloc::{collections::BTreeMap, string::String, vec::Vec};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

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

/// Collects pages and writes them as an image. The same pages make the same image, in whatever order they come.
#[derive(Default)]
pub struct Builder {
    entries: BTreeMap<(u64, u16, Vec<u8>), Option<File>>,
    hosts: BTreeMap<Vec<u8>, u16>,
}

/// Texts and bodies that are written once however often they occur.
#[derive(Default)]
struct Pool {
    bytes: Vec<u8>,
    places: BTreeMap<(u128, usize), u64>,
}

impl Pool {
    fn place(&mut self, bytes: &[u8]) -> u64 {
        let pool = &mut self.bytes;
        *self.places.entry((xxh3_128(bytes), bytes.len())).or_insert_with(|| {
            let at = pool.len() as u64;
            pool.extend_from_slice(bytes);
            at
        })
    }
}

impl Builder {
    /// Adds a page. The paths of folders above it become folders, unless they are pages.
    pub fn page(&mut self, root: u16, path: &[u8], file: File) -> Result<(), SiteError> {
        let is_text = is_field_value(file.content_type.as_bytes()) && is_field_value(file.cache_control.as_bytes());
        let is_short =
            file.content_type.len() <= usize::from(u16::MAX) && file.cache_control.len() <= usize::from(u16::MAX);
        if !is_text || !is_short {
            return Err(SiteError::Malformed("a type or a rule for caches is no text for a field"));
        }
        self.insert(root, path, Some(file))
    }

    /// Says that a path is a folder: whoever asks for it without the slash at its end is sent there.
    pub fn folder(&mut self, root: u16, path: &[u8]) -> Result<(), SiteError> {
        self.insert(root, path, None)
    }

    /// Gives the pages of a root to a host. The root 0 is that of all other hosts.
    pub fn host(&mut self, name: &[u8], root: u16) -> Result<(), SiteError> {
        if name.len() > usize::from(u16::MAX) || self.hosts.insert(name.to_ascii_lowercase(), root).is_some() {
            return Err(SiteError::Malformed("a host has two roots"));
        }
        Ok(())
    }

    fn insert(&mut self, root: u16, path: &[u8], file: Option<File>) -> Result<(), SiteError> {
        if path.first() != Some(&b'/') || path.len() > MAX_PATH_BYTES {
            return Err(SiteError::Malformed("a path does not begin with a slash, or is too long"));
        }
        if self.entries.insert((path_hash(root, path), root, path.into()), file).is_some() {
            return Err(SiteError::Malformed("a path stands for two pages"));
        }
        Ok(())
    }

    /// Writes the image.
    pub fn finish(&self) -> Result<Vec<u8>, SiteError> {
        let (mut strings, mut bodies) = (Pool::default(), Pool::default());
        let mut index = Vec::with_capacity(self.entries.len() * ENTRY_BYTES + self.hosts.len() * HOST_BYTES);
        let absent = File::default();
        for ((hash, root, path), file) in &self.entries {
            let page = file.as_ref().unwrap_or(&absent);
            index.extend(hash.to_le_bytes());
            put_text(&mut index, &mut strings, path);
            index.extend(root.to_le_bytes());
            index.extend([u8::from(file.is_none()), 0, 0, 0]);
            put_text(&mut index, &mut strings, page.content_type.as_bytes());
            index.extend((page.cache_control.len() as u16).to_le_bytes());
            index.extend((strings.place(page.cache_control.as_bytes()) as u32).to_le_bytes());
            index.extend(page.modified_s.to_le_bytes());
            index.extend(xxh3_64(&page.identity).to_le_bytes());
            for coding in Coding::ALL {
                let body = match coding {
                    Coding::Identity => file.as_ref().map(|file| &file.identity),
                    Coding::Gzip => page.gzip.as_ref(),
                    Coding::Brotli => page.brotli.as_ref(),
                };
                let (at, len) = body.map_or((ABSENT, 0), |body| (bodies.place(body), body.len() as u64));
                index.extend(at.to_le_bytes());
                index.extend(len.to_le_bytes());
            }
        }
        for (name, root) in &self.hosts {
            put_text(&mut index, &mut strings, name);
            index.extend(root.to_le_bytes());
        }
        let strings_bytes =
            u32::try_from(strings.bytes.len()).map_err(|_| SiteError::Malformed("the paths together exceed 4 GiB"))?;
        index.append(&mut strings.bytes);
        let bodies_at = (HEADER_BYTES as u64 + index.len() as u64).next_multiple_of(BODIES_ALIGNMENT);
        index.resize(bodies_at as usize - HEADER_BYTES, 0);
        let mut image = Vec::with_capacity(bodies_at as usize + bodies.bytes.len());
        image.extend_from_slice(MAGIC);
        for number in [VERSION, self.entries.len() as u32, self.hosts.len() as u32, strings_bytes] {
            image.extend(number.to_le_bytes());
        }
        let len = bodies_at + bodies.bytes.len() as u64;
        for number in [len, 0, 0, bodies_at, 0] {
            image.extend(number.to_le_bytes());
        }
        image.append(&mut index);
        image.append(&mut bodies.bytes);
        seal(&mut image);
        Ok(image)
    }
}

/// Writes the checksums that the rest of an image calls for.
pub fn seal(image: &mut [u8]) {
    let Some(bodies_at) = image.get(48..HEADER_BYTES).map(|header| u64_at(header, 0)) else { return };
    let bodies_at = usize::try_from(bodies_at).unwrap_or(usize::MAX).clamp(HEADER_BYTES, image.len());
    let sums = [(32, xxh3_64(&image[HEADER_BYTES..bodies_at])), (40, xxh3_64(&image[bodies_at..]))];
    for (at, sum) in sums {
        image[at..at + 8].copy_from_slice(&sum.to_le_bytes());
    }
    let sum = xxh3_64(&image[..56]);
    image[56..HEADER_BYTES].copy_from_slice(&sum.to_le_bytes());
}

/// Writes the offset (4 bytes) and the length (2 bytes) of a text.
fn put_text(index: &mut Vec<u8>, strings: &mut Pool, text: &[u8]) {
    index.extend((strings.place(text) as u32).to_le_bytes());
    index.extend((text.len() as u16).to_le_bytes());
}
