//! Deadlines of connections, one for each: a hierarchical timing wheel, on which setting, moving and taking one away cost
//! the same however many there are.
//!
//! Time is in ticks of about a millisecond. A deadline lies in the bucket of its tick if that is one of the next 64, else
//! in one for 64 ticks, 64², or 64³, from where it moves down when that time begins. Nothing runs out early, and
//! nothing more than a tick late.

use alloc::vec::Vec;

/// Nanoseconds of a tick, as a power of two.
const TICK_SHIFT: u32 = 20;
const LEVELS: usize = 4;
const BUCKET_SHIFT: u32 = 6;
const BUCKETS: usize = 1 << BUCKET_SHIFT;
/// What lies further ahead is looked at again when this is over: about five hours.
const HORIZON_TICKS: u64 = 1 << (BUCKET_SHIFT * LEVELS as u32);

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Bucket {
    first: u32,
    /// No deadline in it is earlier.
    earliest_tick: u64,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    previous: u32,
    next: u32,
    due_tick: u64,
    /// Level and bucket, `None` while no deadline is set.
    place: Option<(u8, u8)>,
}

/// The wheel.
#[derive(Debug)]
pub(crate) struct Wheel {
    now_tick: u64,
    levels: [[Bucket; BUCKETS]; LEVELS],
    /// For each level, which buckets are not empty.
    occupied: [u64; LEVELS],
    links: Vec<Link>,
}

impl Wheel {
    pub fn new(now_ns: u64) -> Wheel {
        let empty = Bucket { first: NONE, earliest_tick: u64::MAX };
        Wheel {
            now_tick: now_ns >> TICK_SHIFT,
            levels: [[empty; BUCKETS]; LEVELS],
            occupied: [0; LEVELS],
            links: Vec::new(),
        }
    }

    /// Makes room for the deadlines of numbers below `end`.
    pub fn reserve(&mut self, end: u32) -> bool {
        let missing = (end as usize).saturating_sub(self.links.len());
        if self.links.try_reserve(missing).is_err() {
            return false;
        }
        let unset = Link { previous: NONE, next: NONE, due_tick: u64::MAX, place: None };
        self.links.resize(self.links.len() + missing, unset);
        true
    }

    /// Sets the deadline of a number, unless it has one that is earlier: that costs one look for nothing, where moving it
    /// with every segment would cost each time.
    #[inline]
    pub fn set(&mut self, number: u32, due_ns: u64) {
        let due_tick = due_ns.div_ceil(1 << TICK_SHIFT).max(self.now_tick + 1);
        if due_tick >= self.links[number as usize].due_tick {
            return;
        }
        self.cancel(number);
        self.link(number, due_tick);
    }

    fn link(&mut self, number: u32, due_tick: u64) {
        let at_tick = due_tick.min(self.now_tick + HORIZON_TICKS - HORIZON_TICKS / BUCKETS as u64);
        let is_near = |level: &usize| {
            let shift = BUCKET_SHIFT * *level as u32;
            (at_tick >> shift) - (self.now_tick >> shift) < BUCKETS as u64
        };
        let level = (0..LEVELS).find(is_near).unwrap_or(LEVELS - 1);
        let index = (at_tick >> (BUCKET_SHIFT * level as u32)) as usize % BUCKETS;
        let bucket = &mut self.levels[level][index];
        let next = core::mem::replace(&mut bucket.first, number);
        bucket.earliest_tick = bucket.earliest_tick.min(due_tick);
        self.occupied[level] |= 1 << index;
        self.links[number as usize] = Link { previous: NONE, next, due_tick, place: Some((level as u8, index as u8)) };
        if next != NONE {
            self.links[next as usize].previous = number;
        }
    }

    /// Takes a number's deadline away.
    pub fn cancel(&mut self, number: u32) {
        let link = &mut self.links[number as usize];
        let Some((level, index)) = link.place.take() else { return };
        let (previous, next) = (link.previous, link.next);
        link.due_tick = u64::MAX;
        let bucket = &mut self.levels[usize::from(level)][usize::from(index)];
        match previous {
            NONE => bucket.first = next,
            previous => self.links[previous as usize].next = next,
        }
        if next != NONE {
            self.links[next as usize].previous = previous;
        }
        if bucket.first == NONE {
            bucket.earliest_tick = u64::MAX;
            self.occupied[usize::from(level)] &= !(1 << index);
        }
    }

    /// How many buckets ahead the next one of a level is that is not empty.
    #[inline]
    fn next_bucket(&self, level: usize) -> Option<u64> {
        let now = (self.now_tick >> (BUCKET_SHIFT * level as u32)) as u32 % BUCKETS as u32;
        match self.occupied[level] {
            0 => None,
            occupied => Some(u64::from(occupied.rotate_right(now).trailing_zeros())),
        }
    }

    /// How long ago [`pop`](Self::pop) was called last.
    #[inline]
    pub fn idle_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.now_tick << TICK_SHIFT)
    }

    /// The next number whose deadline has passed. It has none afterwards.
    #[inline]
    pub fn pop(&mut self, now_ns: u64) -> Option<u32> {
        let target_tick = now_ns >> TICK_SHIFT;
        loop {
            let first = self.levels[0][self.now_tick as usize % BUCKETS].first;
            if first != NONE {
                self.cancel(first);
                return Some(first);
            }
            if self.now_tick >= target_tick {
                return None;
            }
            let begins = |level| {
                let shift = BUCKET_SHIFT * level as u32;
                self.next_bucket(level).map(|ahead| ((self.now_tick >> shift) + ahead) << shift)
            };
            let next_tick = (0..LEVELS).filter_map(begins).min().unwrap_or(u64::MAX);
            self.now_tick = next_tick.min(target_tick);
            self.move_down();
        }
    }

    /// Moves what lies in the larger buckets that begin now to smaller ones.
    fn move_down(&mut self) {
        for level in (1..LEVELS).rev() {
            let shift = BUCKET_SHIFT * level as u32;
            let index = (self.now_tick >> shift) as usize % BUCKETS;
            while self.levels[level][index].first != NONE {
                let number = self.levels[level][index].first;
                let due_tick = self.links[number as usize].due_tick;
                self.cancel(number);
                self.link(number, due_tick);
            }
        }
    }

    /// When [`pop`](Self::pop) may have something to return.
    #[inline]
    pub fn next_deadline_ns(&self) -> Option<u64> {
        let earliest = |level: usize| {
            let now = self.now_tick >> (BUCKET_SHIFT * level as u32);
            let index = (now + self.next_bucket(level)?) as usize % BUCKETS;
            Some(self.levels[level][index].earliest_tick)
        };
        let tick = (0..LEVELS).filter_map(earliest).min()?;
        Some(tick.saturating_mul(1 << TICK_SHIFT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::collections::BTreeMap;

    const TICK_NS: u64 = 1 << TICK_SHIFT;

    #[test]
    fn deadlines_pass_in_time_and_not_before() {
        let mut state = 7u64;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let (mut wheel, mut model, mut now_ns) = (Wheel::new(5 * TICK_NS), BTreeMap::new(), 5 * TICK_NS);
        assert!(wheel.reserve(100));
        for _ in 0..200_000 {
            let number = random(100) as u32;
            match random(4) {
                0 => {
                    wheel.cancel(number);
                    model.remove(&number);
                }
                1 => {
                    now_ns += 1 << random(37);
                    if let Some(next_ns) = wheel.next_deadline_ns().filter(|_| random(2) == 0) {
                        now_ns = now_ns.min(next_ns).max(now_ns.min(next_ns));
                    }
                    while let Some(number) = wheel.pop(now_ns) {
                        let due_ns: u64 = model.remove(&number).expect("only what is set passes");
                        assert!(due_ns <= now_ns, "{number} is early");
                    }
                    assert!(model.values().all(|due_ns| due_ns + TICK_NS > now_ns), "a deadline was missed");
                }
                _ => {
                    let due_ns = now_ns + (1 << random(40)) + random(1000);
                    wheel.set(number, due_ns);
                    let entry = model.entry(number).or_insert(due_ns);
                    *entry = due_ns.min(*entry);
                }
            }
            let earliest_ns = model.values().min();
            let told_ns = wheel.next_deadline_ns();
            assert_eq!(earliest_ns.is_some(), told_ns.is_some());
            if let (Some(earliest_ns), Some(told_ns)) = (earliest_ns, told_ns) {
                assert!(told_ns < earliest_ns + 2 * TICK_NS, "one would sleep too long");
            }
        }
    }

    /// Nothing is called for that does not come then, so that nobody turns in circles.
    #[test]
    fn what_is_announced_passes() {
        let mut wheel = Wheel::new(0);
        assert!(wheel.reserve(1));
        for due_ns in [1, 3_000_000, 200_000_000, 300_000_000_000, 40_000_000_000_000] {
            wheel.set(0, due_ns);
            let mut wakes = 0;
            let passed_ns = loop {
                let next_ns = wheel.next_deadline_ns().unwrap();
                wakes += 1;
                assert!(wakes < 6);
                if wheel.pop(next_ns).is_some() {
                    break next_ns;
                }
            };
            assert!((due_ns..due_ns + 2 * TICK_NS).contains(&passed_ns), "{due_ns} {passed_ns}");
            assert_eq!(wheel.next_deadline_ns(), None);
            wheel = Wheel::new(0);
            assert!(wheel.reserve(1));
        }
    }
}
