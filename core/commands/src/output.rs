use alloc::{collections::VecDeque, vec::Vec};

/// Where one part of the output ends and the next begins: what a client that reads late has not read yet lies in parts,
/// so that it takes no more memory than it is long, is not moved as more is added, and goes part by part.
pub(crate) const PART_BYTES: usize = 64 << 10;
/// Capacity that an idle connection may keep.
const KEPT_BYTES: usize = 4 << 10;

/// Replies to a client that are not sent yet.
#[derive(Debug, Default)]
pub struct Output {
    /// What is complete, in its order; the rest is behind it.
    parts: VecDeque<Vec<u8>>,
    parts_bytes: usize,
    /// Where replies are written.
    pub(crate) last: Vec<u8>,
    /// How much of the first part, or of the only one, is sent.
    sent: usize,
}

impl Output {
    /// Bytes that are not sent yet.
    #[inline]
    pub fn unsent(&self) -> usize {
        self.parts_bytes + self.last.len() - self.sent
    }

    /// The bytes to send next: some, if there are any.
    #[inline]
    pub fn first(&self) -> &[u8] {
        &self.parts.front().unwrap_or(&self.last)[self.sent..]
    }

    /// Number of complete parts.
    pub fn parts(&self) -> usize {
        self.parts.len()
    }

    /// Bytes of memory.
    pub fn memory_bytes(&self) -> usize {
        self.parts_bytes + self.last.capacity()
    }

    /// The same with what an idle connection may keep, so that a client's figure is the same while it is being served.
    pub fn footprint_bytes(&self) -> usize {
        self.memory_bytes().max(self.parts_bytes + KEPT_BYTES)
    }

    /// Where replies and errors are written.
    pub fn writer(&mut self, protocol: kayvee_resp::Protocol) -> kayvee_resp::Writer<'_> {
        kayvee_resp::Writer::new(&mut self.last, protocol)
    }

    /// Ends a part that is long enough. Without memory for another one it grows on.
    #[inline(always)]
    pub(crate) fn end_part(&mut self) {
        if self.last.len() >= PART_BYTES {
            self.add_part();
        }
    }

    #[cold]
    fn add_part(&mut self) {
        if self.parts.try_reserve(1).is_ok() {
            let mut part = core::mem::take(&mut self.last);
            // Allocators shorten a block where it is.
            part.shrink_to_fit();
            self.parts_bytes += part.len();
            self.parts.push_back(part);
        }
    }

    /// Forgets bytes that were sent, at most those of [`first`](Self::first).
    pub fn advance(&mut self, len: usize) {
        self.sent += len;
        match self.parts.front() {
            Some(part) => {
                assert!(self.sent <= part.len());
                if self.sent == part.len() {
                    self.parts_bytes -= part.len();
                    self.parts.pop_front();
                    self.sent = 0;
                }
                if self.parts.is_empty() {
                    self.parts = VecDeque::new();
                }
            }
            None => {
                assert!(self.sent <= self.last.len());
                if self.sent == self.last.len() {
                    self.sent = 0;
                    if self.last.capacity() > KEPT_BYTES {
                        self.last = Vec::new();
                    } else {
                        self.last.clear();
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However much is written and sent at a time, everything comes once and in order, and little memory beyond.
    #[test]
    fn bytes_come_once_and_in_order() {
        for seed in 0..20 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let (mut output, mut written, mut sent) = (Output::default(), 0_u64, 0_u64);
            while written < 4 << 20 || output.unsent() > 0 {
                if written < 4 << 20 {
                    let limit = if rng.u8(..8) == 0 { 200_000 } else { 20_000 };
                    let len = rng.usize(..limit);
                    output.last.extend((written..).take(len).map(|at| (at % 251) as u8));
                    written += len as u64;
                    output.end_part();
                }
                assert_eq!(output.unsent() as u64, written - sent, "seed {seed}");
                assert!(output.memory_bytes() <= output.unsent() + output.first().len() + 800_000, "seed {seed}");
                let first = output.first();
                let len = rng.usize(..=first.len().min(30_000));
                assert!(first[..len].iter().zip(sent..).all(|(byte, at)| u64::from(*byte) == at % 251), "seed {seed}");
                sent += len as u64;
                output.advance(len);
            }
            assert!(output.memory_bytes() <= KEPT_BYTES && output.parts() == 0, "seed {seed}");
        }
    }
}
