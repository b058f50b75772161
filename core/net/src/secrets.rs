//! What attackers must not guess.

use crate::{frame::FlowKey, tcp::seq::Seq};
use core::{hash::Hasher, net::SocketAddrV4};
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

    fn hash(&self, purpose: Purpose, value: u64) -> u64 {
        let mut hasher = SipHasher24::new_with_keys(self.key.0, self.key.1);
        hasher.write_u64(purpose as u64);
        hasher.write_u64(value);
        hasher.finish()
    }

    /// The key of the table of connections.
    pub fn flows(&self) -> (u64, u64) {
        (self.hash(Purpose::FlowsLow, 0), self.hash(Purpose::FlowsHigh, 0))
    }

    /// RFC 6528 §3: a clock, so that numbers of an earlier connection are not met again, and a hash, so that nobody
    /// guesses those of others.
    pub fn initial_sequence(&self, flow: FlowKey, now_ns: u64) -> Seq {
        let clock = (now_ns / SEQUENCE_TICK_NS) as u32;
        Seq(clock.wrapping_add(self.hash(Purpose::Sequence, flow.bits()) as u32))
    }

    /// What proves that a peer has seen the answer to its SYN.
    pub fn cookie(&self, flow: FlowKey, value: u64) -> u32 {
        let mut hasher = SipHasher24::new_with_keys(self.key.0, self.key.1);
        hasher.write_u64(Purpose::Cookie as u64);
        hasher.write_u64(flow.bits());
        hasher.write_u64(value);
        hasher.finish() as u32
    }

    /// RFC 7323 §5.4: the clock of timestamps says nothing of other connections, nor of how long the machine is up.
    pub fn timestamp_offset(&self, flow: FlowKey) -> u32 {
        self.hash(Purpose::Timestamp, flow.bits()) as u32
    }

    /// Where the search for a port of our own begins (RFC 6056 §3.3.3).
    pub fn next_port_offset(&mut self, remote: SocketAddrV4) -> u16 {
        let offset = self.hash(Purpose::Port, u64::from(remote.ip().to_bits()) << 16 | u64::from(remote.port()));
        self.ports_used = self.ports_used.wrapping_add(1);
        (offset as u16 % 16_384).wrapping_add(self.ports_used)
    }
}
