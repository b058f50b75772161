//! What of a page's head is the same in every response: written once, and copied from then on.

use alloc::vec::Vec;

/// Heads that are kept ...
const HEADS: usize = 64;
/// ... and the most that one of them takes. A longer one is written each time.
const MAX_HEAD_BYTES: usize = 512;

/// The fields behind Date and Connection, with the end of the head, for the pages that were sent last.
#[derive(Default)]
pub struct Heads {
    /// By their key's remainder, with the key. What is empty is none.
    kept: Vec<(usize, Vec<u8>)>,
}

impl Heads {
    /// The head that was kept with this key.
    pub fn get(&self, key: usize) -> Option<&[u8]> {
        let (kept_key, head) = self.kept.get(key % HEADS)?;
        (*kept_key == key && !head.is_empty()).then_some(head)
    }

    /// Keeps a head instead of the one in its place, if there is memory for it.
    #[inline(never)]
    pub fn keep(&mut self, key: usize, bytes: &[u8]) {
        if bytes.len() > MAX_HEAD_BYTES {
            return;
        }
        if self.kept.is_empty() && self.kept.try_reserve_exact(HEADS).is_ok() {
            self.kept.extend((0..HEADS).map(|_| (0, Vec::new())));
        }
        let Some((kept_key, head)) = self.kept.get_mut(key % HEADS) else { return };
        head.clear();
        if head.try_reserve(bytes.len()).is_ok() {
            *kept_key = key;
            head.extend_from_slice(bytes);
        }
    }

    /// Forgets all of them: the keys mean other pages from now on.
    pub fn clear(&mut self) {
        self.kept = Vec::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_head_in_a_place_is_kept() {
        let mut heads = Heads::default();
        assert_eq!(heads.get(0), None);
        heads.keep(3, b"three");
        assert_eq!((heads.get(3), heads.get(0), heads.get(3 + HEADS)), (Some(&b"three"[..]), None, None));
        heads.keep(3 + HEADS, b"another");
        assert_eq!((heads.get(3), heads.get(3 + HEADS)), (None, Some(&b"another"[..])));
        heads.keep(3, &[b'x'; MAX_HEAD_BYTES + 1]);
        assert_eq!((heads.get(3), heads.get(3 + HEADS)), (None, Some(&b"another"[..])));
        heads.clear();
        assert_eq!(heads.get(3 + HEADS), None);
    }
}
