//! What is still to be sent to one client: bytes of its own, and bytes that are lent from a site or a page.

use crate::Bytes;
use alloc::{
    collections::{TryReserveError, VecDeque},
    vec::Vec,
};
use core::ops::Range;

/// Room that an idle connection may keep.
const KEPT_BYTES: usize = 4 << 10;

/// A queue of bytes, of which the long parts are never copied.
#[derive(Default)]
pub struct Output {
    own: Vec<u8>,
    /// How much of `own` is sent.
    sent: usize,
    lent: VecDeque<Lent>,
}

struct Lent {
    /// It comes behind so many bytes of `own`.
    after: usize,
    bytes: Bytes,
    range: Range<usize>,
}

impl Output {
    pub fn is_empty(&self) -> bool {
        self.sent == self.own.len() && self.lent.is_empty()
    }

    /// Whether more replies can be added without taking much memory.
    pub fn takes_more(&self, limit_bytes: usize) -> bool {
        self.lent.is_empty() && self.own.len() < limit_bytes
    }

    pub fn reserve(&mut self, bytes: usize) -> Result<(), TryReserveError> {
        self.own.try_reserve(bytes)
    }

    pub fn put(&mut self, bytes: &[u8]) {
        self.own.extend_from_slice(bytes);
    }

    pub fn lend(&mut self, bytes: Bytes, range: Range<usize>) {
        if !range.is_empty() {
            self.lent.push_back(Lent { after: self.own.len(), bytes, range });
        }
    }

    /// What comes next, in up to two parts, the first of which is empty only if there is nothing.
    pub fn next(&self) -> [&[u8]; 2] {
        let own_until =
            |index: usize| &self.own[self.sent..self.lent.get(index).map_or(self.own.len(), |lent| lent.after)];
        let lent = |lent: &'_ Lent| lent.range.clone();
        match self.lent.front() {
            None => [own_until(0), &[]],
            Some(front) if self.sent < front.after => [own_until(0), &(*front.bytes).as_ref()[lent(front)]],
            Some(front) => [&(*front.bytes).as_ref()[lent(front)], own_until(1)],
        }
    }

    /// So many bytes of it are sent.
    pub fn advance(&mut self, mut bytes: usize) {
        while bytes > 0 {
            let own_end = self.lent.front().map_or(self.own.len(), |lent| lent.after);
            if self.sent < own_end {
                let len = bytes.min(own_end - self.sent);
                self.sent += len;
                bytes -= len;
                continue;
            }
            let Some(front) = self.lent.front_mut() else { break };
            let len = bytes.min(front.range.len());
            front.range.start += len;
            bytes -= len;
            if front.range.is_empty() {
                self.lent.pop_front();
            }
        }
        assert!(bytes == 0, "more was sent than there was");
        if self.is_empty() {
            self.clear();
        }
    }

    pub fn clear(&mut self) {
        self.own.clear();
        self.sent = 0;
        if self.own.capacity() > KEPT_BYTES {
            self.own = Vec::new();
        }
        self.lent = VecDeque::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::sync::Arc;

    #[test]
    fn parts_leave_in_their_order_however_they_are_sent() {
        let lent: Bytes = Arc::new(b"0123456789".to_vec());
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
                let both = output.next().concat();
                assert!(!output.next()[0].is_empty());
                let len = step.min(both.len());
                all.extend_from_slice(&both[..len]);
                output.advance(len);
            }
            assert_eq!(all, b"ab2347cde0123456789");
            assert_eq!(output.next(), [b"", b""]);
        }
    }
}
