//! Integers in order, each as short as the longest of them needs: how small sets of integers lie in memory.
//!
//! ```text
//! intset = bit 31 set | bytes of each number: 2, 4 or 8 (4 bytes) | number … (little-endian, ascending)
//! ```
//!
//! The set bit tells it from [`Packed`](crate::Packed) strings, whose count stands there.

use crate::OutOfMemory;
use alloc::vec::Vec;

const HEADER: usize = 4;
const MARK: u32 = 1 << 31;

/// An intset to read.
#[derive(Clone, Copy)]
pub struct IntsetRef<'a> {
    width: usize,
    numbers: &'a [u8],
}

fn width_of(number: i64) -> usize {
    match number {
        _ if i16::try_from(number).is_ok() => 2,
        _ if i32::try_from(number).is_ok() => 4,
        _ => 8,
    }
}

impl<'a> IntsetRef<'a> {
    /// Reads an intset, if these bytes are one; no bytes are an empty one.
    pub fn of(bytes: &'a [u8]) -> Option<IntsetRef<'a>> {
        let Some((head, numbers)) = bytes.split_first_chunk::<HEADER>() else {
            return Some(IntsetRef { width: width_of(0), numbers: &[] });
        };
        let head = u32::from_le_bytes(*head);
        (head & MARK != 0).then_some(IntsetRef { width: (head & !MARK) as usize, numbers })
    }

    /// Number of integers.
    pub fn len(self) -> usize {
        self.numbers.len() / self.width
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.numbers.is_empty()
    }

    /// Bytes of each number: 2, 4 or 8.
    pub fn width(self) -> usize {
        self.width
    }

    /// The numbers in order, little-endian, each [`width`](Self::width) bytes long.
    pub fn number_bytes(self) -> &'a [u8] {
        self.numbers
    }

    /// The number at a place, which is there.
    #[inline]
    pub fn get(self, at: usize) -> i64 {
        let bytes = &self.numbers[at * self.width..(at + 1) * self.width];
        match *bytes {
            [a, b] => i16::from_le_bytes([a, b]).into(),
            [a, b, c, d] => i32::from_le_bytes([a, b, c, d]).into(),
            _ => i64::from_le_bytes(bytes.try_into().expect("it is 2, 4 or 8 bytes long")),
        }
    }

    /// Where a number is, or where it would be.
    pub fn find(self, number: i64) -> Result<usize, usize> {
        let (mut low, mut high) = (0, self.len());
        // Numbers often come in ascending order.
        if high > 0 && self.get(high - 1) < number {
            return Err(high);
        }
        while low < high {
            let middle = low + (high - low) / 2;
            match self.get(middle).cmp(&number) {
                core::cmp::Ordering::Less => low = middle + 1,
                core::cmp::Ordering::Greater => high = middle,
                core::cmp::Ordering::Equal => return Ok(middle),
            }
        }
        Err(low)
    }

    /// The numbers in order.
    pub fn iter(self) -> impl Iterator<Item = i64> + 'a {
        (0..self.len()).map(move |at| self.get(at))
    }
}

/// An intset to change.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Intset(Vec<u8>);

impl Intset {
    /// No numbers. It takes no memory until the first one comes.
    pub const fn new() -> Intset {
        Intset(Vec::new())
    }

    /// The bytes of an intset, or else they come back.
    pub(crate) fn from_vec(bytes: Vec<u8>) -> Result<Intset, Vec<u8>> {
        if IntsetRef::of(&bytes).is_some() { Ok(Intset(bytes)) } else { Err(bytes) }
    }

    pub(crate) fn into_vec(self) -> Vec<u8> {
        self.0
    }

    /// To read it.
    pub fn as_ref(&self) -> IntsetRef<'_> {
        IntsetRef::of(&self.0).expect("it is one")
    }

    fn reserve(&mut self, bytes: usize) -> Result<(), OutOfMemory> {
        if self.0.capacity() - self.0.len() < bytes {
            let spare = (self.0.len() + bytes) / 8;
            self.0.try_reserve_exact(bytes + spare).or_else(|_| self.0.try_reserve_exact(bytes))?;
        }
        Ok(())
    }

    /// Adds a number. Returns whether it is new.
    pub fn insert(&mut self, number: i64) -> Result<bool, OutOfMemory> {
        let Err(at) = self.as_ref().find(number) else { return Ok(false) };
        if self.0.is_empty() {
            self.reserve(HEADER + width_of(number))?;
            self.0.extend_from_slice(&(MARK | width_of(number) as u32).to_le_bytes());
        }
        if width_of(number) > self.as_ref().width {
            self.widen(width_of(number))?;
        }
        let width = self.as_ref().width;
        self.reserve(width)?;
        let (start, end) = (HEADER + at * width, self.0.len());
        self.0.resize(end + width, 0);
        self.0.copy_within(start..end, start + width);
        self.0[start..start + width].copy_from_slice(&number.to_le_bytes()[..width]);
        Ok(true)
    }

    fn widen(&mut self, width: usize) -> Result<(), OutOfMemory> {
        let old = self.as_ref();
        let mut wide = Intset::new();
        wide.0.try_reserve_exact(HEADER + (old.len() + 1) * width)?;
        wide.0.extend_from_slice(&(MARK | width as u32).to_le_bytes());
        old.iter().for_each(|number| wide.0.extend_from_slice(&number.to_le_bytes()[..width]));
        *self = wide;
        Ok(())
    }

    /// Removes a number. Returns whether it was there.
    pub fn remove(&mut self, number: i64) -> bool {
        let Ok(at) = self.as_ref().find(number) else { return false };
        let width = self.as_ref().width;
        let start = HEADER + at * width;
        self.0.drain(start..start + width);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;

    #[test]
    fn behaves_like_an_ordered_set() {
        for seed in 0..100 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut intset = Intset::new();
            let mut model = BTreeSet::new();
            for step in 0..600 {
                // Wider numbers come later.
                let bits = [8, 16, 17, 32, 33, 64][(step / 100).min(rng.usize(..6))];
                let number = rng.i64(..) >> (64 - bits);
                if rng.u8(..3) > 0 {
                    assert_eq!(intset.insert(number), Ok(model.insert(number)), "{:?}", (seed, step));
                } else {
                    let number = model.range(number..).next().copied().unwrap_or(number);
                    assert_eq!(intset.remove(number), model.remove(&number), "{:?}", (seed, step));
                }
                assert!(intset.as_ref().iter().eq(model.iter().copied()), "{:?}", (seed, step));
                assert_eq!(intset.as_ref().find(number).is_ok(), model.contains(&number));
            }
            let bytes = intset.into_vec();
            assert!(Intset::from_vec(bytes).is_ok());
        }
    }
}
