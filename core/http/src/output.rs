//! What is still to be sent to one client: bytes of its own, and bytes that are lent from a site or a page.

use crate::{
    Bytes,
    disk::{Chunks, Lookup},
    respond::{COPIED_BYTES, RESPONSE_BYTES},
};
use alloc::{
    collections::{TryReserveError, VecDeque},
    sync::Arc,
    vec::Vec,
};
use core::ops::Range;

/// A buffer up to here is kept for the next response when its own is sent: a head and a body that is copied fit.
const SPARE_BYTES: usize = RESPONSE_BYTES + COPIED_BYTES;

/// A queue of bytes, of which the long parts are never copied.
#[derive(Default)]
pub struct Output {
    own: Vec<u8>,
    /// How much of `own` is sent.
    sent: usize,
    lent: VecDeque<Lent>,
}

/// Where lent bytes are.
#[derive(Clone)]
pub enum Source {
    /// In the memory of the site.
    Memory(Bytes),
    /// In a page that was made for one request.
    Made(Bytes),
    /// In one of the server's own.
    Own(Bytes),
    /// Among the bodies of the site on the disk.
    Disk,
}

/// Of what a page is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Maker {
    /// Of what is kept for a path that the site has not.
    Keys,
    /// Of what the server says of itself.
    Server,
}

struct Lent {
    /// It comes behind so many bytes of `own`.
    after: usize,
    source: Source,
    range: Range<u64>,
}

impl Lent {
    /// What there is of it now: all, or its beginning.
    fn bytes<'a>(&'a self, chunks: Option<&'a Chunks>) -> &'a [u8] {
        match &self.source {
            Source::Memory(bytes) | Source::Made(bytes) | Source::Own(bytes) => {
                &(**bytes).as_ref()[self.range.start as usize..self.range.end as usize]
            }
            Source::Disk => chunks.map_or(&[], |chunks| chunks.beginning(&self.range)),
        }
    }
}

impl Output {
    pub fn is_empty(&self) -> bool {
        self.sent == self.own.len() && self.lent.is_empty()
    }

    /// Whether more replies can be added without taking much memory.
    pub fn takes_more(&self, limit_bytes: usize) -> bool {
        self.lent.is_empty() && self.own.len() < limit_bytes
    }

    /// Bytes of memory that are its own.
    pub fn own_bytes(&self) -> usize {
        self.own.capacity()
    }

    /// Bytes of the page that was made for this client and is on its way, one at a time, and by whom.
    pub fn made(&self) -> (Maker, usize) {
        match self.lent.front().map(|lent| &lent.source) {
            Some(Source::Made(page)) => (Maker::Keys, (**page).as_ref().len()),
            Some(Source::Own(page)) => (Maker::Server, (**page).as_ref().len()),
            _ => (Maker::Keys, 0),
        }
    }

    /// Whether some of it is in the memory of this site.
    pub fn is_lent_from(&self, image: &Bytes) -> bool {
        self.lent.iter().any(|lent| matches!(&lent.source, Source::Memory(bytes) if Arc::ptr_eq(bytes, image)))
    }

    /// Makes room for a response, in the buffer that another one has left if this has none.
    pub fn begin(&mut self, spare: &mut Vec<u8>) -> Result<(), TryReserveError> {
        if self.own.capacity() == 0 {
            core::mem::swap(&mut self.own, spare);
        }
        self.reserve(RESPONSE_BYTES)
    }

    pub fn reserve(&mut self, bytes: usize) -> Result<(), TryReserveError> {
        if self.own.capacity() - self.own.len() >= bytes {
            return Ok(());
        }
        self.own.try_reserve(bytes)
    }

    /// How many bytes of its own it has, sent ones included.
    pub fn own_len(&self) -> usize {
        self.own.len()
    }

    /// Its own bytes behind so many others.
    pub fn own_since(&self, start: usize) -> &[u8] {
        &self.own[start..]
    }

    pub fn put(&mut self, bytes: &[u8]) {
        self.own.extend_from_slice(bytes);
    }

    pub fn lend(&mut self, source: Source, range: Range<u64>) {
        if !range.is_empty() {
            self.lent.push_back(Lent { after: self.own.len(), source, range });
        }
    }

    /// What comes next, in up to two parts, the first of which is empty only if there is nothing, or what is
    /// [missing](Self::missing).
    pub fn next<'a>(&'a self, chunks: Option<&'a Chunks>) -> [&'a [u8]; 2] {
        let own_until =
            |index: usize| &self.own[self.sent..self.lent.get(index).map_or(self.own.len(), |lent| lent.after)];
        let Some(front) = self.lent.front() else { return [own_until(0), &[]] };
        let lent = front.bytes(chunks);
        if self.sent < front.after {
            [own_until(0), lent]
        } else if lent.len() as u64 == front.range.end - front.range.start {
            [lent, own_until(1)]
        } else {
            [lent, &[]]
        }
    }

    /// The chunk that nothing goes on without, if it is not there.
    pub fn missing(&self, chunks: Option<&Chunks>) -> Option<u64> {
        let front = self.lent.front().filter(|front| self.sent == front.after)?;
        let Source::Disk = front.source else { return None };
        let chunk = Chunks::chunk_of(front.range.start);
        let is_ready = chunks.is_some_and(|chunks| matches!(chunks.look(chunk), Lookup::Ready(_)));
        (!is_ready).then_some(chunk)
    }

    /// Notes that what comes next of the disk is of use.
    pub fn touch(&self, chunks: &mut Chunks) {
        if let Some(Lent { source: Source::Disk, range, .. }) = self.lent.front() {
            chunks.touch(Chunks::chunk_of(range.start));
        }
    }

    /// So many bytes of it are sent. When all are, its buffer may become the spare one.
    pub fn advance(&mut self, mut bytes: usize, spare: &mut Vec<u8>) {
        while bytes > 0 {
            let own_end = self.lent.front().map_or(self.own.len(), |lent| lent.after);
            if self.sent < own_end {
                let len = bytes.min(own_end - self.sent);
                self.sent += len;
                bytes -= len;
                continue;
            }
            let Some(front) = self.lent.front_mut() else { break };
            let len = (bytes as u64).min(front.range.end - front.range.start);
            front.range.start += len;
            bytes -= len as usize;
            if front.range.is_empty() {
                self.lent.pop_front();
            }
        }
        assert!(bytes == 0, "more was sent than there was");
        if self.is_empty() {
            self.leave(spare);
        }
    }

    fn leave(&mut self, spare: &mut Vec<u8>) {
        self.sent = 0;
        self.own.clear();
        if (spare.capacity() + 1..=SPARE_BYTES).contains(&self.own.capacity()) {
            core::mem::swap(&mut self.own, spare);
        }
        if self.own.capacity() > 0 || self.lent.capacity() > 0 {
            self.clear();
        }
    }

    pub fn clear(&mut self) {
        // Thousands of idle connections keep nothing.
        *self = Output::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn parts_leave_in_their_order_however_they_are_sent() {
        let lent = Source::Memory(Arc::new(b"0123456789".to_vec()));
        let mut spare = Vec::new();
        for step in 1..20 {
            let mut output = Output::default();
            output.put(b"ab");
            output.lend(lent.clone(), 2..5);
            output.lend(lent.clone(), 0..0);
            output.lend(lent.clone(), 7..8);
            output.put(b"cde");
            output.lend(lent.clone(), 0..10);
            let mut all = Vec::new();
            while !output.is_empty() {
                let both = output.next(None).concat();
                assert!(!output.next(None)[0].is_empty());
                let len = step.min(both.len());
                all.extend_from_slice(&both[..len]);
                output.advance(len, &mut spare);
            }
            assert_eq!(all, b"ab2347cde0123456789");
            assert_eq!(output.next(None), [b"", b""]);
            assert_eq!((output.own_bytes(), spare.is_empty()), (0, true));
        }
    }

    #[test]
    fn a_buffer_is_left_to_the_next_response_unless_it_is_large() {
        let mut spare = Vec::new();
        for (len, kept_bytes) in [(10, RESPONSE_BYTES..SPARE_BYTES), (2 * SPARE_BYTES, 0..1)] {
            let mut output = Output::default();
            output.begin(&mut spare).expect("memory");
            assert_eq!(spare.capacity(), 0, "it is the output's");
            output.put(&vec![b'x'; len]);
            output.advance(len - 1, &mut spare);
            assert_eq!(spare.capacity(), 0, "not all is sent");
            output.advance(1, &mut spare);
            assert_eq!((output.own_bytes(), spare.len()), (0, 0));
            assert!(kept_bytes.contains(&spare.capacity()), "{len}: {}", spare.capacity());
        }
    }
}
