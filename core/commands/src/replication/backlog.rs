use alloc::collections::VecDeque;

/// The last effects, for replicas whose connection was lost.
pub struct Backlog {
    bytes: VecDeque<u8>,
    /// How many there may be.
    limit: usize,
    /// The offset of what is behind the last one.
    end: u64,
}

impl Backlog {
    /// For what comes from an offset on.
    pub fn new(limit: u64, offset: u64) -> Backlog {
        Backlog { bytes: VecDeque::new(), limit: usize::try_from(limit).unwrap_or(usize::MAX), end: offset }
    }

    /// Keeps bytes, and forgets the oldest ones for want of room.
    pub fn push(&mut self, bytes: &[u8]) {
        self.end += bytes.len() as u64;
        let kept = &bytes[bytes.len().saturating_sub(self.limit)..];
        let room = self.limit - kept.len();
        self.bytes.drain(..self.bytes.len().saturating_sub(room));
        // Without memory for them there is nothing from before either.
        match self.bytes.try_reserve(kept.len()) {
            Ok(()) => self.bytes.extend(kept),
            Err(_) => self.bytes = VecDeque::new(),
        }
    }

    /// Lets there be so many.
    pub fn set_limit(&mut self, limit: u64) {
        self.limit = usize::try_from(limit).unwrap_or(usize::MAX);
        self.bytes.drain(..self.bytes.len().saturating_sub(self.limit));
    }

    /// How many bytes have come before the first one that is here.
    pub fn start(&self) -> u64 {
        self.end - self.bytes.len() as u64
    }

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes of memory.
    pub fn memory_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// What follows the first `offset` bytes, if all of it is here.
    pub fn since(&self, offset: u64) -> Option<[&[u8]; 2]> {
        let at = usize::try_from(offset.checked_sub(self.start())?).ok().filter(|at| *at <= self.bytes.len())?;
        let (first, second) = self.bytes.as_slices();
        Some([&first[at.min(first.len())..], &second[at.saturating_sub(first.len())..]])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_bytes_are_there() {
        let mut backlog = Backlog::new(10, 100);
        assert_eq!((backlog.start(), backlog.since(100), backlog.since(99)), (100, Some([&b""[..], b""]), None));
        let text = b"abcdefghijklmnopqrstuvwxyz";
        let mut end = 0;
        for len in [3, 4, 5, 1, 13] {
            backlog.push(&text[end..end + len]);
            end += len;
            for offset in 0..=end {
                let kept = backlog.since(100 + offset as u64).map(|parts| parts.concat());
                let expected = (end - offset <= 10).then(|| text[offset..end].to_vec());
                assert_eq!(kept, expected, "{offset} of {end}");
            }
            assert_eq!(backlog.since(100 + end as u64 + 1), None);
        }
        backlog.set_limit(4);
        assert_eq!((backlog.start(), backlog.len()), (122, 4));
    }
}
