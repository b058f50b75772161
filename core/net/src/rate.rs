//! A limit on how often something is done.

/// A bucket of tokens that fills with time.
#[derive(Debug)]
pub(crate) struct RateLimit {
    per_second: u64,
    /// In billionths.
    tokens: u64,
    filled_ns: u64,
}

const TOKEN: u64 = 1_000_000_000;

impl RateLimit {
    /// At most so many times a second, and as many at once.
    pub const fn new(per_second: u64) -> RateLimit {
        RateLimit { per_second, tokens: per_second * TOKEN, filled_ns: 0 }
    }

    /// Whether it may be done now.
    pub fn allows(&mut self, now_ns: u64) -> bool {
        let elapsed_ns = now_ns.saturating_sub(self.filled_ns);
        self.filled_ns = self.filled_ns.max(now_ns);
        let filled = self.tokens.saturating_add(elapsed_ns.saturating_mul(self.per_second));
        self.tokens = filled.min(self.per_second * TOKEN);
        let may = self.tokens >= TOKEN;
        if may {
            self.tokens -= TOKEN;
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_the_limit() {
        let mut limit = RateLimit::new(10);
        let mut allowed = |now_ns, tries| (0..tries).filter(|_| limit.allows(now_ns)).count();
        assert_eq!(allowed(5, 100), 10);
        assert_eq!(allowed(TOKEN / 2 + 5, 100), 5);
        assert_eq!(allowed(100 * TOKEN, 100), 10);
        assert_eq!(allowed(0, 100), 0, "a clock that goes back gives nothing");
    }
}
