//! What attackers must not guess.

use crate::{ends::FlowKey, tcp::seq::Seq};
use core::hash::Hasher;
use siphasher::sip::SipHasher24;

/// The clock of initial sequence numbers (RFC 9293 §3.4.1): every 4 µs.
const SEQUENCE_TICK_NS: u64 = 4000;

/// Keys, each for one use.
#[derive(Debug)]
pub(crate) struct Secrets {
    key: (u64, u64),
    ports_used: u16,
}

/// What a keyed hash is for: so that what is seen of one says nothing of another.
#[derive(Clone, Copy)]
enum Purpose {
    Sequence = 1,
    Timestamp,
    Port,
    FlowsLow,
    FlowsHigh,
    Cookie,
}

impl Secrets {
    /// Makes the keys of a stack from what its platform's entropy gave.
    pub fn new(seed: u64) -> Secrets {
        let derive = |purpose: u64| {
            let mut hasher = SipHasher24::new_with_keys(seed, purpose);
            hasher.write_u64(seed);
            hasher.finish()
        };
        Secrets { key: (derive(1), derive(2)), ports_used: 0 }
    }

    #[inline(never)]
    fn hash(&self, purpose: Purpose, flow: Option<FlowKey>, value: u64) -> u64 {
        let mut hasher = SipHasher24::new_with_keys(self.key.0, self.key.1);
        hasher.write_u64(purpose as u64);
        if let Some(flow) = flow {
            flow.hash(&mut hasher);
        }
        hasher.write_u64(value);
        hasher.finish()
    }

    /// The key of the table of connections.
    pub fn flows(&self) -> (u64, u64) {
        (self.hash(Purpose::FlowsLow, None, 0), self.hash(Purpose::FlowsHigh, None, 0))
    }

    /// RFC 6528 §3: a clock, so that numbers of an earlier connection are not met again, and a hash, so that nobody
    /// guesses those of others.
    pub fn initial_sequence(&self, flow: FlowKey, now_ns: u64) -> Seq {
        let clock = (now_ns / SEQUENCE_TICK_NS) as u32;
        Seq(clock.wrapping_add(self.hash(Purpose::Sequence, Some(flow), 0) as u32))
    }

    /// What proves that a peer has seen the answer to its SYN.
    pub fn cookie(&self, flow: FlowKey, value: u64) -> u32 {
        self.hash(Purpose::Cookie, Some(flow), value) as u32
    }

    /// RFC 7323 §5.4: the clock of timestamps says nothing of other connections, nor of how long the machine is up.
    pub fn timestamp_offset(&self, flow: FlowKey) -> u32 {
        self.hash(Purpose::Timestamp, Some(flow), 0) as u32
    }

    /// Where the search for a port of our own begins (RFC 6056 §3.3.3).
    pub fn next_port_offset(&mut self, peer: FlowKey) -> u16 {
        let offset = self.hash(Purpose::Port, Some(peer), 0);
        self.ports_used = self.ports_used.wrapping_add(1);
        (offset as u16 % 16_384).wrapping_add(self.ports_used)
    }
}
