//! Sequence numbers (RFC 9293 §3.4): 32 bits that wrap, compared by the shorter way around.

use core::ops::{Add, AddAssign, Sub};

/// A sequence number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seq(pub u32);

impl Seq {
    /// How far it lies behind `earlier`.
    #[inline]
    pub fn since(self, earlier: Seq) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    #[inline]
    pub fn before(self, other: Seq) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }

    #[inline]
    pub fn after(self, other: Seq) -> bool {
        other.before(self)
    }

    #[inline]
    pub fn max(self, other: Seq) -> Seq {
        if self.before(other) { other } else { self }
    }

    #[inline]
    pub fn min(self, other: Seq) -> Seq {
        if self.before(other) { self } else { other }
    }

    /// Whether it lies in `from..to`.
    #[inline]
    pub fn within(self, from: Seq, to: Seq) -> bool {
        self.since(from) < to.since(from)
    }
}

impl Add<u32> for Seq {
    type Output = Seq;

    #[inline]
    fn add(self, count: u32) -> Seq {
        Seq(self.0.wrapping_add(count))
    }
}

impl AddAssign<u32> for Seq {
    #[inline]
    fn add_assign(&mut self, count: u32) {
        *self = *self + count;
    }
}

impl Sub<u32> for Seq {
    type Output = Seq;

    #[inline]
    fn sub(self, count: u32) -> Seq {
        Seq(self.0.wrapping_sub(count))
    }
}

#[cfg(test)]
mod tests {
    use super::Seq;

    #[test]
    fn numbers_are_compared_around_the_wrap() {
        let (old, new) = (Seq(u32::MAX - 1), Seq(3));
        assert!(old.before(new) && new.after(old) && !new.before(old));
        assert_eq!((new.since(old), old + 5, new - 5), (5, new, old));
        assert_eq!((old.max(new), old.min(new)), (new, old));
        assert!(Seq(0).within(old, new) && old.within(old, new) && !new.within(old, new));
        assert!(!old.within(old, old));
    }
}
