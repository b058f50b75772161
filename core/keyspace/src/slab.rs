//! Byte records of bounded size, packed into pages by size class.
//!
//! ```text
//! Ref (32 bits) = page index (21) | slot in page (11)
//! page (32 KiB) = slots of one size class; a free slot's first two bytes hold the next free slot
//! ```

use crate::{OutOfMemory, segmented::Segmented};
use alloc::{boxed::Box, vec::Vec};

/// Bytes in a page.
const PAGE_BYTES: usize = 32 << 10;
const SLOT_BITS: u32 = 11;
const PAGE_LIMIT: usize = 1 << (32 - SLOT_BITS);
const NONE_U16: u16 = u16::MAX;
const NONE_U32: u32 = u32::MAX;

/// Slot sizes in bytes: steps of at most an eighth above 64, so that little is lost to rounding.
const CLASS_BYTES: [u16; 33] = [
    16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 104, 112, 120, 128, 144, 160, 176, 192, 208, 224, 256, 288, 320, 352,
    400, 448, 512, 592, 672, 768, 896, 1024,
];

/// The longest record.
pub const RECORD_LIMIT: usize = CLASS_BYTES[CLASS_BYTES.len() - 1] as usize;

const _: () = assert!(PAGE_BYTES / CLASS_BYTES[0] as usize <= 1 << SLOT_BITS);
const _: () = assert!((1 << SLOT_BITS) < NONE_U16 as usize);

/// Class of each record length, in steps of eight bytes.
const CLASS_OF: [u8; RECORD_LIMIT / 8 + 1] = {
    let mut table = [0; RECORD_LIMIT / 8 + 1];
    let mut class = 0;
    let mut eighth = 0;
    while eighth < table.len() {
        if eighth * 8 > CLASS_BYTES[class] as usize {
            class += 1;
        }
        table[eighth] = class as u8;
        eighth += 1;
    }
    table
};

/// A record's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ref(pub u32);

impl Ref {
    #[inline]
    fn page(self) -> usize {
        (self.0 >> SLOT_BITS) as usize
    }

    #[inline]
    fn slot(self) -> usize {
        (self.0 & ((1 << SLOT_BITS) - 1)) as usize
    }
}

struct Page {
    /// `PAGE_BYTES` long, or empty when the page's index is vacant.
    bytes: Box<[u8]>,
    slot_bytes: u16,
    class: u8,
    live: u16,
    /// First slot of the free list.
    free: u16,
    /// Slots from here on were never used.
    fresh: u16,
    /// Neighbours in the class's list of pages with room; `next` also links vacant indexes.
    next: u32,
    prev: u32,
}

impl Page {
    fn slots(&self) -> usize {
        PAGE_BYTES / self.slot_bytes as usize
    }

    fn is_full(&self) -> bool {
        self.free == NONE_U16 && self.fresh as usize == self.slots()
    }
}

/// The store of records.
pub struct Slab {
    pages: Segmented<Page>,
    /// Per class, the first page with room.
    with_room: [u32; CLASS_BYTES.len()],
    /// The first index of a page that was given back, and how many there are.
    vacant: u32,
    vacant_len: usize,
    /// Bytes of all slots in use.
    used_bytes: usize,
}

impl Slab {
    pub const fn new() -> Slab {
        Slab {
            pages: Segmented::new(),
            with_room: [NONE_U32; CLASS_BYTES.len()],
            vacant: NONE_U32,
            vacant_len: 0,
            used_bytes: 0,
        }
    }

    /// Bytes that a record of `len` bytes takes.
    pub fn slot_bytes(len: usize) -> usize {
        CLASS_BYTES[CLASS_OF[len.div_ceil(8)] as usize] as usize
    }

    /// Number of pages.
    pub fn pages(&self) -> usize {
        self.pages.len() - self.vacant_len
    }

    /// Bytes of all pages.
    pub fn page_bytes(&self) -> usize {
        self.pages() * PAGE_BYTES
    }

    /// Bytes of pages that no record takes.
    pub fn free_bytes(&self) -> usize {
        self.page_bytes() - self.used_bytes
    }

    /// Gives the last page back, whatever is in it: a slab that is being taken down can do nothing else any more. Returns
    /// whether there was one.
    pub fn drop_page(&mut self) -> bool {
        let page = self.pages.pop();
        self.vacant_len -= usize::from(page.as_ref().is_some_and(|page| page.bytes.is_empty()));
        page.is_some()
    }

    /// Finds room for `len` bytes, at most [`RECORD_LIMIT`]. Their content is unspecified.
    pub fn allocate(&mut self, len: usize) -> Result<Ref, OutOfMemory> {
        let class = CLASS_OF[len.div_ceil(8)] as usize;
        let at = match self.with_room[class] {
            NONE_U32 => self.add_page(class)?,
            at => at,
        };
        let page = &mut self.pages[at as usize];
        let slot = match page.free {
            NONE_U16 => {
                page.fresh += 1;
                page.fresh - 1
            }
            slot => {
                let start = slot as usize * page.slot_bytes as usize;
                page.free = u16::from_le_bytes([page.bytes[start], page.bytes[start + 1]]);
                slot
            }
        };
        page.live += 1;
        self.used_bytes += page.slot_bytes as usize;
        if page.is_full() {
            self.unlink(at);
        }
        Ok(Ref(at << SLOT_BITS | slot as u32))
    }

    /// Gives a record's room back.
    pub fn free(&mut self, record: Ref) {
        let at = record.page();
        let page = &mut self.pages[at];
        let was_full = page.is_full();
        let start = record.slot() * page.slot_bytes as usize;
        page.bytes[start..start + 2].copy_from_slice(&page.free.to_le_bytes());
        page.free = record.slot() as u16;
        page.live -= 1;
        self.used_bytes -= page.slot_bytes as usize;
        let empty = page.live == 0;
        if was_full {
            self.link(at as u32);
        }
        // The last page of a class is kept, so that one record that comes and goes does not cost a page each time.
        let page = &self.pages[at];
        if empty && (page.next != NONE_U32 || page.prev != NONE_U32) {
            self.unlink(at as u32);
            self.pages[at].bytes = Box::default();
            self.pages[at].next = core::mem::replace(&mut self.vacant, at as u32);
            self.vacant_len += 1;
        }
    }

    /// A record's whole slot, which may be longer than what was asked for.
    #[inline]
    pub fn bytes(&self, record: Ref) -> &[u8] {
        let page = &self.pages[record.page()];
        let start = record.slot() * page.slot_bytes as usize;
        &page.bytes[start..start + page.slot_bytes as usize]
    }

    /// A look at both ends of a record, which has the processor fetch it from memory. Who looks at several that do not depend
    /// on each other waits once for all of them.
    #[inline]
    pub fn look(&self, record: Ref) -> u8 {
        let slot = self.bytes(record);
        slot[0] ^ slot[slot.len() - 1]
    }

    /// A record's whole slot, to write.
    #[inline]
    pub fn bytes_mut(&mut self, record: Ref) -> &mut [u8] {
        let page = &mut self.pages[record.page()];
        let start = record.slot() * page.slot_bytes as usize;
        &mut page.bytes[start..start + page.slot_bytes as usize]
    }

    fn add_page(&mut self, class: usize) -> Result<u32, OutOfMemory> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(PAGE_BYTES)?;
        bytes.resize(PAGE_BYTES, 0);
        let page = Page {
            bytes: bytes.into_boxed_slice(),
            slot_bytes: CLASS_BYTES[class],
            class: class as u8,
            live: 0,
            free: NONE_U16,
            fresh: 0,
            next: NONE_U32,
            prev: NONE_U32,
        };
        let at = self.vacant;
        if at != NONE_U32 {
            let vacated = core::mem::replace(&mut self.pages[at as usize], page);
            (self.vacant, self.vacant_len) = (vacated.next, self.vacant_len - 1);
            self.link(at);
            return Ok(at);
        }
        if self.pages.len() == PAGE_LIMIT {
            return Err(OutOfMemory);
        }
        self.pages.push(page)?;
        let at = self.pages.len() as u32 - 1;
        self.link(at);
        Ok(at)
    }

    fn link(&mut self, at: u32) {
        let class = self.pages[at as usize].class as usize;
        let head = core::mem::replace(&mut self.with_room[class], at);
        self.pages[at as usize].next = head;
        self.pages[at as usize].prev = NONE_U32;
        if head != NONE_U32 {
            self.pages[head as usize].prev = at;
        }
    }

    fn unlink(&mut self, at: u32) {
        let Page { next, prev, class, .. } = self.pages[at as usize];
        match prev {
            NONE_U32 => self.with_room[class as usize] = next,
            prev => self.pages[prev as usize].next = next,
        }
        if next != NONE_U32 {
            self.pages[next as usize].prev = prev;
        }
        let page = &mut self.pages[at as usize];
        (page.next, page.prev) = (NONE_U32, NONE_U32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_fits_its_class() {
        for len in 0..=RECORD_LIMIT {
            let slot = Slab::slot_bytes(len);
            assert!(slot >= len && (len < 16 || slot <= len + 8 + len / 5), "{len} in {slot}");
        }
    }

    #[test]
    fn records_never_overlap_and_pages_go_back() {
        let mut slab = Slab::new();
        let mut rng = fastrand::Rng::with_seed(1);
        let mut live: Vec<(Ref, usize, u8)> = Vec::new();
        for step in 0..200_000 {
            let grow = live.len() < 10 || (live.len() < 20_000 && rng.u8(..) < if step < 100_000 { 180 } else { 90 });
            if grow {
                let (len, fill) = (rng.usize(2..=RECORD_LIMIT), rng.u8(..));
                let record = slab.allocate(len).unwrap();
                slab.bytes_mut(record)[..len].fill(fill);
                live.push((record, len, fill));
            } else {
                let (record, len, fill) = live.swap_remove(rng.usize(..live.len()));
                assert!(slab.bytes(record)[..len].iter().all(|&b| b == fill));
                slab.free(record);
            }
        }
        for (record, len, fill) in live {
            assert!(slab.bytes(record)[..len].iter().all(|&b| b == fill));
            slab.free(record);
        }
        assert!(slab.page_bytes() <= CLASS_BYTES.len() * PAGE_BYTES);
    }
}
