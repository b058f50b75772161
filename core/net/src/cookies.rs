//! SYN cookies (RFC 4987 §3.6): under a flood of SYNs, what a connection begins with is kept by its peer.
//!
//! When too many handshakes are open, a SYN is answered and forgotten. The sequence number of the answer is a keyed hash
//! of who asked, so that the acknowledgment proves that its sender has seen the answer. The peer's options come back in the
//! low bits of the timestamp that it echoes; a peer without timestamps does without window scaling and SACK.
//!
//! ```text
//! sequence number   31..29: time in steps of 64 s   28..27: segment size   26..0: hash
//! timestamp          4: SACK permitted              3..0: window scale, 15 if there is none
//! ```

use crate::{
    ends::FlowKey,
    secrets::Secrets,
    tcp::{
        segment::{Flags, Segment},
        seq::Seq,
    },
};

/// A step of the clock in cookies.
const STEP_NS: u64 = 64_000_000_000;
/// How long answers are believed after the last one was given: the step that it was given in, and the next.
const BELIEVED_NS: u64 = 2 * STEP_NS;
/// Segment sizes that are told apart; a peer's is taken for the next smaller one.
const SEGMENT_BYTES: [u16; 4] = [536, 1220, 1440, 1460];

const HASH_BITS: u32 = 27;
const HASH_MASK: u32 = (1 << HASH_BITS) - 1;
/// The timestamp's bits that are the peer's options.
const OPTIONS_MASK: u32 = 0x1f;
const SACK_BIT: u32 = 0x10;
const NO_SCALE: u8 = 15;

/// Whether answers are on their way that nothing is kept of.
#[derive(Debug, Default)]
pub(crate) struct Cookies {
    given_ns: Option<u64>,
}

impl Cookies {
    /// The sequence number of the answer to a SYN, of which [`what_comes_back`] is all that is agreed on.
    pub fn give(&mut self, secrets: &Secrets, flow: FlowKey, syn: &Segment, now_ns: u64) -> Seq {
        self.given_ns = Some(now_ns);
        let most = syn.max_segment_size.unwrap_or(SEGMENT_BYTES[0]);
        let size = SEGMENT_BYTES.iter().rposition(|bytes| *bytes <= most).unwrap_or(0) as u32;
        let step = (now_ns / STEP_NS) as u32 & 7;
        Seq(cookie(secrets, flow, syn.seq, step << 2 | size))
    }

    /// Whether answers may be on their way. What comes for a connection that is not known may then be the second segment of
    /// one whose first was lost, and its peer is not reset.
    pub fn are_out(&self, now_ns: u64) -> bool {
        self.given_ns.is_some_and(|given_ns| now_ns.saturating_sub(given_ns) < BELIEVED_NS)
    }

    /// The SYN that an acknowledgment belongs to, and the sequence number of its answer, if it proves that there were
    /// such.
    pub fn take(&self, secrets: &Secrets, flow: FlowKey, segment: &Segment, now_ns: u64) -> Option<(Segment, Seq)> {
        let is_answer =
            segment.flags.has(Flags::ACK) && !segment.flags.has(Flags::SYN) && !segment.flags.has(Flags::RST);
        let (theirs, own) = (segment.seq - 1, segment.ack - 1);
        let head = own.0 >> HASH_BITS;
        let age = ((now_ns / STEP_NS) as u32).wrapping_sub(head >> 2) & 7;
        if !self.are_out(now_ns) || !is_answer || age > 1 || cookie(secrets, flow, theirs, head) != own.0 {
            return None;
        }
        let echo = segment.timestamps.map(|timestamps| timestamps.echo);
        let syn = Segment {
            seq: theirs,
            ack: Seq(0),
            flags: Flags::SYN,
            max_segment_size: Some(SEGMENT_BYTES[head as usize & 3]),
            window_scale: echo.map(|echo| echo as u8 & NO_SCALE).filter(|scale| *scale != NO_SCALE),
            sack_permitted: echo.is_some_and(|echo| echo & SACK_BIT != 0),
            ..*segment
        };
        Some((syn, own))
    }
}

/// What an answer may agree on: without timestamps, in which they come back, no window scaling and no SACK.
pub(crate) fn what_comes_back(syn: &Segment) -> Segment {
    match syn.timestamps {
        Some(_) => *syn,
        None => Segment { window_scale: None, sack_permitted: false, ..*syn },
    }
}

/// Puts a peer's options where it sends them back: in a timestamp that is no later than the true one.
pub(crate) fn with_options(timestamp: u32, syn: &Segment) -> u32 {
    // RFC 7323 §2.3: more than 14 counts as 14.
    let scale = syn.window_scale.map_or(NO_SCALE, |scale| scale.min(14));
    let options = u32::from(scale) | if syn.sack_permitted { SACK_BIT } else { 0 };
    let value = timestamp & !OPTIONS_MASK | options;
    if value > timestamp { value.wrapping_sub(OPTIONS_MASK + 1) } else { value }
}

fn cookie(secrets: &Secrets, flow: FlowKey, theirs: Seq, head: u32) -> u32 {
    head << HASH_BITS | secrets.cookie(flow, u64::from(theirs.0) << 32 | u64::from(head)) & HASH_MASK
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ends::Ends, tcp::segment::Timestamps};
    use core::net::Ipv4Addr;

    fn flow_of(remote_port: u16) -> FlowKey {
        let (own, remote) = (Ipv4Addr::new(192, 0, 2, 2), Ipv4Addr::new(192, 0, 2, 1));
        FlowKey { ends: Ends::V4 { own, remote }, remote_port, local_port: 6379 }
    }

    fn syn() -> Segment {
        Segment {
            seq: Seq(u32::MAX),
            flags: Flags::SYN,
            max_segment_size: Some(1400),
            window_scale: Some(7),
            sack_permitted: true,
            timestamps: Some(Timestamps { value: 5, echo: 0 }),
            ..Segment::default()
        }
    }

    fn answer(own: Seq, echo: u32) -> Segment {
        let timestamps = Some(Timestamps { value: 6, echo });
        Segment { seq: Seq(0), ack: own + 1, flags: Flags::ACK, timestamps, ..Segment::default() }
    }

    #[test]
    fn what_a_peer_said_comes_back_with_its_answer() {
        let (secrets, mut cookies) = (Secrets::new(1), Cookies::default());
        let flow = flow_of(1000);
        for start_ns in [0, STEP_NS - 1, 7 * STEP_NS + 5, 1000 * STEP_NS] {
            let own = cookies.give(&secrets, flow, &syn(), start_ns);
            for clock in [0, 31, 32, 0x1234_5678, u32::MAX] {
                let echo = with_options(clock, &syn());
                assert!(clock.wrapping_sub(echo) <= OPTIONS_MASK + 1);
                let (found, iss) = cookies.take(&secrets, flow, &answer(own, echo), start_ns + STEP_NS).unwrap();
                assert_eq!((found.seq, iss, found.max_segment_size), (Seq(u32::MAX), own, Some(1220)));
                assert_eq!((found.window_scale, found.sack_permitted), (Some(7), true));
            }
            assert!(cookies.take(&secrets, flow, &answer(own, 0), start_ns + 2 * STEP_NS).is_none(), "it is too old");
        }
    }

    #[test]
    fn nothing_else_is_believed() {
        let (secrets, mut cookies) = (Secrets::new(1), Cookies::default());
        let flow = flow_of(1000);
        let own = cookies.give(&secrets, flow, &syn(), 0);
        assert!(cookies.take(&secrets, flow, &answer(own, 0), 0).is_some());
        assert!(Cookies::default().take(&secrets, flow, &answer(own, 0), 0).is_none(), "nothing was given");
        assert!(cookies.take(&Secrets::new(2), flow, &answer(own, 0), 0).is_none());
        let other = flow_of(1001);
        assert!(cookies.take(&secrets, other, &answer(own, 0), 0).is_none());
        let guessed =
            (0..100_000u32).filter(|n| cookies.take(&secrets, flow, &answer(Seq(n * 40_507), 0), 0).is_some());
        assert!(guessed.count() <= 1, "one in 2^27, for each of two steps and four sizes");
        for flags in [Flags::RST | Flags::ACK, Flags::SYN | Flags::ACK, Flags::FIN] {
            assert!(cookies.take(&secrets, flow, &Segment { flags, ..answer(own, 0) }, 0).is_none());
        }
    }
}
