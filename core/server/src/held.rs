//! Replies that wait for the log: what a client is told has to be on stable storage, and what it saw as well.
//!
//! ```text
//! output of a connection, in bytes since it began:   sent ≤ released ≤ first ≤ last = end
//!                                                              └ until the log is stable up to first's record
//! ```
//!
//! All that a turn writes waits for the last record that there was at the turn's end. One flush at a time serves all turns
//! since the one before, so two marks are enough: what the flush under way serves, and what the next one will.

use kayvee_commands::Sequence;

/// Bytes of output, and the record that has to be stable before they may leave.
type Mark = (u64, Sequence);

/// What of a connection's output waits.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    first: Mark,
    last: Option<Mark>,
}

/// How much of a connection's output may leave.
#[derive(Debug, Default)]
pub struct Held {
    released: u64,
    waiting: Option<Waiting>,
}

impl Held {
    /// Lets everything leave that was written until now.
    pub fn release_all(&mut self, end: u64) {
        *self = Held { released: end, waiting: None };
    }

    /// Bytes of output since the beginning that may leave.
    pub fn released(&self) -> u64 {
        self.released
    }

    /// Whether something waits.
    pub fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// Lets what was written until `end` leave once the log is stable up to `sequence`. Returns whether it is the only
    /// thing that waits.
    pub fn hold(&mut self, end: u64, sequence: Sequence, durable: Sequence) -> bool {
        let known = match &self.waiting {
            None => self.released,
            Some(Waiting { first, last }) => last.unwrap_or(*first).0,
        };
        if end <= known {
            return false;
        }
        match &mut self.waiting {
            None if sequence <= durable => self.released = end,
            None => {
                self.waiting = Some(Waiting { first: (end, sequence), last: None });
                return true;
            }
            Some(Waiting { first, last: None }) if first.1 == sequence => first.0 = end,
            Some(Waiting { last, .. }) => *last = Some((end, sequence)),
        }
        false
    }

    /// Lets leave what has waited for nothing beyond `durable`. Returns whether there was something.
    pub fn release(&mut self, durable: Sequence) -> bool {
        let before = self.released;
        while let Some(Waiting { first, last }) = self.waiting
            && first.1 <= durable
        {
            self.released = first.0;
            self.waiting = last.map(|first| Waiting { first, last: None });
        }
        self.released != before
    }
}
