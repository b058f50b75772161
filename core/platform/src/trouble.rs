//! When to tell of what goes on failing.

/// What is said again at the earliest, in nanoseconds.
const AGAIN_NS: u64 = 60_000_000_000;

/// Something that fails and is tried again: it is worth a line in the log when that begins, once a minute while it lasts, and when
/// it is over.
#[derive(Clone, Copy, Debug, Default)]
pub struct Trouble {
    told_ns: Option<u64>,
}

impl Trouble {
    /// Notes that it has failed. Returns whether to tell.
    pub fn fails(&mut self, monotonic_ns: u64) -> bool {
        let is_due = self.told_ns.is_none_or(|told_ns| monotonic_ns.saturating_sub(told_ns) >= AGAIN_NS);
        if is_due {
            self.told_ns = Some(monotonic_ns);
        }
        is_due
    }

    /// Whether it has failed the last time.
    pub fn lasts(&self) -> bool {
        self.told_ns.is_some()
    }

    /// Notes that it works. Returns whether it did not before.
    pub fn ends(&mut self) -> bool {
        self.told_ns.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_when_it_begins_now_and_then_and_when_it_is_over() {
        const SECOND_NS: u64 = 1_000_000_000;
        let mut trouble = Trouble::default();
        assert!(!trouble.lasts() && !trouble.ends());
        let told = (100..250).filter(|second| trouble.fails(second * SECOND_NS));
        assert!(told.eq([100, 160, 220]));
        assert!(trouble.lasts() && trouble.ends() && !trouble.lasts() && !trouble.ends());
        assert!(trouble.fails(251 * SECOND_NS), "another one");
    }
}
