//! Segment by segment: what a peer sends, and what the standards say that comes back.

use super::{
    connection::OWN_WINDOW_SCALE,
    segment::{Flags, SackBlocks, Segment, Timestamps},
    seq::Seq,
    *,
};
use crate::{
    ends::{Ends, FlowKey},
    pool::Pool,
};
use core::net::{Ipv4Addr, Ipv6Addr};
extern crate std;
use std::{vec, vec::Vec};

mod crowd;
mod large;
mod losses;
mod rack;
mod windows;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;
/// The first sequence numbers of the peer and of ourselves: both wrap soon.
const PEER: Seq = Seq(u32::MAX - 100);
const OWN: Seq = Seq(u32::MAX - 200);
const SYN: Flags = Flags::SYN;
const ACK: Flags = Flags::ACK;
const FIN_ACK: Flags = Flags(Flags::FIN.0 | Flags::ACK.0);

/// A connection and the time.
struct Script {
    connection: Connection,
    resources: Resources,
    now_ns: u64,
    /// The peer's clock, if it has timestamps.
    clock: Option<u32>,
    /// What the peer sends next, and what it has of us.
    seq: Seq,
    ack: Seq,
    window: u16,
}

fn setup() -> Setup {
    let ends = Ends::V4 { own: Ipv4Addr::new(192, 0, 2, 1), remote: Ipv4Addr::new(192, 0, 2, 2) };
    let flow = FlowKey { ends, remote_port: 40_000, local_port: 6379 };
    Setup { flow, mtu: 1500, iss: OWN, timestamp_offset: 77, keepalive_ns: 0 }
}

fn resources() -> Resources {
    Resources { pool: Pool::new(16 << 20), counters: kayvee_platform::NetworkFigures::default() }
}

/// A SYN of a peer that knows everything.
fn syn() -> Segment {
    Segment {
        seq: PEER,
        flags: SYN,
        window: 60_000,
        max_segment_size: Some(1460),
        window_scale: Some(0),
        sack_permitted: true,
        timestamps: Some(Timestamps { value: 1000, echo: 0 }),
        ..Segment::default()
    }
}

/// A SYN without options.
fn plain_syn() -> Segment {
    Segment { seq: PEER, flags: SYN, window: 60_000, max_segment_size: Some(1000), ..Segment::default() }
}

impl Script {
    /// A connection whose handshake is complete.
    fn established(syn: Segment) -> Script {
        Script::with(setup(), syn)
    }

    fn with(setup: Setup, syn: Segment) -> Script {
        let mut script = Script::half_open(setup, syn);
        let replies = script.sent();
        assert_eq!(replies.len(), 1);
        script.say(ACK, b"");
        assert_eq!(script.connection.next_change(&script.resources.pool), Some(Change::Accepted));
        assert_eq!(script.sent(), []);
        script
    }

    fn half_open(setup: Setup, syn: Segment) -> Script {
        let connection = Connection::new(setup, Origin::Passive(&syn), SECOND);
        let clock = syn.timestamps.map(|timestamps| timestamps.value);
        let (seq, ack) = (PEER + 1, OWN + 1);
        Script { connection, resources: resources(), now_ns: SECOND, clock, seq, ack, window: 60_000 }
    }

    /// A segment as the peer would send it now.
    fn segment(&self, flags: Flags) -> Segment {
        let timestamps = self.clock.map(|value| Timestamps { value, echo: 0 });
        Segment { seq: self.seq, ack: self.ack, flags, window: self.window, timestamps, ..Segment::default() }
    }

    fn give(&mut self, segment: Segment, payload: &[u8]) -> Verdict {
        self.connection.on_segment(&segment, payload, &mut self.resources, &mut |_| 0, self.now_ns)
    }

    /// The peer sends something in order.
    fn say(&mut self, flags: Flags, payload: &[u8]) {
        let segment = self.segment(flags);
        assert_eq!(self.give(segment, payload), Verdict::Taken);
        self.seq += segment.sequence_len(payload.len());
    }

    /// The peer acknowledges so many bytes more.
    fn acknowledge(&mut self, bytes: u32) {
        self.ack += bytes;
        self.say(ACK, b"");
    }

    /// The peer has runs behind a hole.
    fn report(&mut self, runs: &[(u32, u32)]) {
        let mut segment = self.segment(ACK);
        for &(from, to) in runs {
            segment.sack.push(OWN + 1 + from, OWN + 1 + to);
        }
        self.give(segment, b"");
    }

    /// Everything that the connection sends now: header, and where its data begins and how much it is.
    fn sent(&mut self) -> Vec<(Segment, u32, usize)> {
        self.connection.on_timers(&mut self.resources, self.now_ns);
        let mut sent = vec![];
        let most = self.connection.segment_bytes();
        while let Some(next) = self.connection.next_segment(most, &mut self.resources, self.now_ns) {
            let mut bytes = vec![0; next.len];
            self.connection.copy_to(next.offset, &mut bytes);
            sent.push((next.segment, next.segment.seq.since(OWN + 1), next.len));
        }
        sent
    }

    /// Where data begins in what is sent now, and how much it is.
    fn sent_data(&mut self) -> Vec<(u32, usize)> {
        self.sent().into_iter().map(|(_, at, len)| (at, len)).collect()
    }

    fn send(&mut self, bytes: usize) {
        assert_eq!(self.connection.send(&vec![b'x'; bytes], &mut self.resources.pool), bytes);
    }

    /// Reads everything.
    fn read(&mut self) -> Vec<u8> {
        let mut read = vec![];
        while !self.connection.readable().is_empty() {
            read.extend_from_slice(self.connection.readable());
            let len = self.connection.readable().len();
            self.connection.consume(len, &mut self.resources.pool);
        }
        read
    }

    fn pass(&mut self, ns: u64) {
        self.now_ns += ns;
    }

    /// The one segment that is sent now, which has no data.
    fn answer(&mut self) -> Segment {
        let sent = self.sent();
        assert_eq!(sent.len(), 1, "{sent:?}");
        assert_eq!(sent[0].2, 0);
        sent[0].0
    }
}

/// "An idle connection costs under 1 KiB."
#[test]
fn a_connection_is_small() {
    assert!(size_of::<Connection>() <= 640, "{} bytes", size_of::<Connection>());
}

/// RFC 9293 §3.5, RFC 7323 §2.2 and §3.2, RFC 2018 §2.
#[test]
fn a_handshake_agrees_on_what_both_can() {
    let mut script = Script::half_open(setup(), syn());
    let answer = script.answer();
    assert_eq!((answer.flags, answer.seq, answer.ack), (SYN | ACK, OWN, PEER + 1));
    assert_eq!(answer.max_segment_size, Some(1460));
    assert!(answer.sack_permitted && answer.window_scale.is_some());
    assert_eq!(answer.timestamps.map(|timestamps| timestamps.echo), Some(1000));
    let mut script = Script::half_open(setup(), plain_syn());
    let answer = script.answer();
    assert!(!answer.sack_permitted && answer.window_scale.is_none() && answer.timestamps.is_none());
}

/// RFC 9293 §3.10.7.4, first step: the other side has not got the SYN-ACK.
#[test]
fn a_repeated_syn_is_answered_again() {
    let mut script = Script::half_open(setup(), syn());
    let first = script.answer();
    script.give(syn(), b"");
    assert_eq!(script.answer(), first);
    for wait_s in [1, 2, 4, 8] {
        script.pass(wait_s * SECOND);
        assert_eq!(script.answer().flags, SYN | ACK, "RFC 6298 §5.5");
    }
    script.pass(10 * SECOND);
    assert_eq!(script.sent(), []);
    assert!(script.connection.is_over());
}

/// RFC 9293 §3.10.7.4, fifth step, in SYN-RECEIVED.
#[test]
fn an_acknowledgment_of_something_else_is_reset() {
    for wrong in [OWN, OWN + 2, OWN - 1] {
        let mut script = Script::half_open(setup(), syn());
        script.sent();
        script.ack = wrong;
        let segment = script.segment(ACK);
        assert_eq!(script.give(segment, b""), Verdict::Reset);
        assert_eq!(script.connection.state, State::SynReceived);
    }
}

/// RFC 9293 §3.5, figure 7.
#[test]
fn both_sides_may_open_at_once() {
    let mut script = Script::established(syn());
    script.connection = Connection::new(setup(), Origin::Active, script.now_ns);
    assert_eq!(script.answer().flags, SYN);
    script.give(syn(), b"");
    assert_eq!(script.answer().flags, SYN | ACK);
    let both = Segment { flags: SYN | ACK, ack: OWN + 1, ..syn() };
    assert_eq!(script.give(both, b""), Verdict::Taken);
    assert_eq!(script.connection.state, State::Established);
}

/// RFC 7323 §2.2: the window of a segment with a SYN is never scaled, when both sides have opened as well.
#[test]
fn the_window_of_a_syn_is_not_scaled() {
    let scaled = Segment { window_scale: Some(7), ..syn() };
    let mut script = Script::established(scaled);
    script.connection = Connection::new(setup(), Origin::Active, script.now_ns);
    script.sent();
    script.give(scaled, b"");
    script.sent();
    script.give(Segment { flags: SYN | ACK, ack: OWN + 1, ..scaled }, b"");
    let windows = |connection: &Connection| (connection.window, connection.max_window);
    assert_eq!(windows(&script.connection), (60_000, 60_000));
    (script.seq, script.ack) = (PEER + 1, OWN + 1);
    script.acknowledge(0);
    assert_eq!(windows(&script.connection), (60_000 << 7, 60_000 << 7));
}

/// RFC 9293 §3.10.4: an end before the peer has answered leaves when it has. Who wants nothing more has no connection.
#[test]
fn an_end_before_the_handshake_follows_it() {
    for at_once in [false, true] {
        let mut script = Script::established(syn());
        script.connection = Connection::new(setup(), Origin::Active, script.now_ns);
        assert_eq!(script.answer().flags, SYN);
        script.connection.finish();
        assert_eq!(script.sent(), []);
        if at_once {
            script.give(syn(), b"");
            assert_eq!(script.answer().flags, SYN | ACK);
        }
        script.give(Segment { flags: SYN | ACK, ack: OWN + 1, ..syn() }, b"");
        assert_eq!(script.answer().flags, FIN_ACK);
        (script.seq, script.ack) = (PEER + 1, OWN + 2);
        script.say(FIN_ACK, b"");
        assert_eq!(script.connection.next_change(&script.resources.pool), Some(Change::EndOfStream));
        assert_eq!((script.answer().flags, script.connection.state), (ACK, State::TimeWait));
    }
    let mut script = Script::established(syn());
    script.connection = Connection::new(setup(), Origin::Active, script.now_ns);
    script.sent();
    script.connection.close(script.now_ns, &mut script.resources.pool);
    assert!(script.connection.is_over());
}

/// RFC 9293 §3.10.7.3.
#[test]
fn an_answer_to_another_syn_is_refused() {
    let mut script = Script::established(syn());
    script.connection = Connection::new(setup(), Origin::Active, script.now_ns);
    script.sent();
    let stale = Segment { flags: SYN | ACK, ack: OWN + 2, ..syn() };
    assert_eq!(script.give(stale, b""), Verdict::Reset);
    let reset = Segment { flags: Flags::RST | ACK, ack: OWN + 2, ..syn() };
    script.give(reset, b"");
    assert_eq!(script.connection.state, State::SynSent);
    script.give(Segment { ack: OWN + 1, ..reset }, b"");
    assert!(script.connection.has_failed);
}

/// RFC 9293 §3.8.6.3: an acknowledgment goes with the reply, and alone only if there is none.
#[test]
fn a_reply_acknowledges_its_request() {
    let mut script = Script::established(syn());
    script.say(ACK | Flags::PSH, b"PING");
    assert_eq!(script.read(), b"PING");
    script.send(7);
    let sent = script.sent();
    assert_eq!((sent.len(), sent[0].0.ack, sent[0].2), (1, script.seq, 7));
    script.acknowledge(7);
    script.say(ACK, b"quiet");
    script.read();
    assert_eq!(script.sent(), []);
    assert_eq!(script.connection.deadline_ns(), script.now_ns + 40 * MS);
    script.pass(40 * MS);
    assert_eq!(script.answer().ack, script.seq);
}

/// RFC 5681 §4.2: at least every second full segment.
#[test]
fn every_second_full_segment_is_acknowledged() {
    let mut script = Script::established(syn());
    script.say(ACK, &[1; 1448]);
    assert_eq!(script.sent(), []);
    script.say(ACK, &[1; 1448]);
    script.say(ACK, &[1; 1448]);
    assert_eq!(script.answer().ack, script.seq);
}

/// RFC 5681 §4.2 and RFC 2018 §4.
#[test]
fn a_gap_is_reported_and_its_filling_acknowledged_at_once() {
    let mut script = Script::established(syn());
    let mut late = script.segment(ACK);
    let first = script.seq;
    late.seq = first + 5;
    script.give(late, b"world");
    let answer = script.answer();
    assert_eq!((answer.ack, answer.sack.as_slice()), (first, &[(first + 5, first + 10)][..]));
    late.seq = first + 15;
    script.give(late, b"!");
    assert_eq!(script.answer().sack.as_slice(), [(first + 15, first + 16), (first + 5, first + 10)]);
    script.say(ACK, b"hello");
    let answer = script.answer();
    assert_eq!((answer.ack, answer.sack.as_slice()), (first + 10, &[(first + 15, first + 16)][..]));
    assert_eq!(script.read(), b"helloworld");
}

/// RFC 9293 §3.10.7.4, eighth step: the end counts when everything before it is there.
#[test]
fn an_end_ahead_of_its_data_waits() {
    let mut script = Script::established(syn());
    let mut fin = script.segment(FIN_ACK);
    fin.seq += 3;
    script.give(fin, b"def");
    assert_eq!(script.connection.state, State::Established);
    script.say(ACK, b"abc");
    assert_eq!(script.connection.state, State::CloseWait);
    assert_eq!(script.connection.next_change(&script.resources.pool), Some(Change::Readable));
    assert_eq!(script.read(), b"abcdef");
    assert_eq!(script.connection.next_change(&script.resources.pool), Some(Change::EndOfStream));
    assert_eq!(script.sent().last().unwrap().0.ack, script.seq + 4);
}

/// Nothing is beyond the end, and nobody keeps what a peer says is there.
#[test]
fn nothing_beyond_the_end_is_kept() {
    for last in [&b""[..], b"last"] {
        let mut script = Script::established(syn());
        let mut beyond = script.segment(ACK);
        beyond.seq += 9000;
        script.give(beyond, &[7; 1448]);
        assert_eq!(script.sent().len(), 1);
        script.say(FIN_ACK, last);
        assert_eq!((script.answer().sack.as_slice(), script.connection.rx.has_runs()), (&[][..], false));
        script.give(beyond, &[7; 1448]);
        assert_eq!(script.read(), last);
        assert_eq!(script.resources.pool.used_bytes(), 0);
    }
}

/// RFC 9293 §3.10.7.4: what has arrived before is cut off, whatever the new segment's boundaries are.
#[test]
fn overlapping_data_is_taken_once() {
    let mut script = Script::established(syn());
    let first = script.seq;
    script.say(ACK, b"abcd");
    let mut again = script.segment(ACK);
    again.seq = first + 2;
    script.give(again, b"cdef");
    assert_eq!(script.read(), b"abcdef");
}

/// RFC 5961 §3.2.
#[test]
fn only_a_reset_in_order_resets() {
    let mut script = Script::established(syn());
    let mut reset = script.segment(Flags::RST);
    reset.timestamps = None;
    for (offset, challenges) in [(1, 1), (1000, 0), (1 << 20, 0)] {
        reset.seq = script.seq + offset;
        script.give(reset, b"");
        assert_eq!(script.sent().len(), challenges, "at {offset}; the second would exceed the limit of §7");
        assert!(!script.connection.has_failed);
    }
    script.pass(SECOND);
    reset.seq = script.seq - 1;
    script.give(reset, b"");
    assert_eq!(script.sent(), []);
    reset.seq = script.seq;
    script.give(reset, b"");
    assert_eq!(script.connection.next_change(&script.resources.pool), Some(Change::Closed));
    assert_eq!(script.resources.pool.used_bytes(), 0);
}

/// RFC 5961 §4 and §5.
#[test]
fn a_syn_or_an_impossible_acknowledgment_is_challenged() {
    for change in
        [|s: &mut Segment| s.flags = SYN, |s: &mut Segment| s.ack += 1, |s: &mut Segment| s.ack = s.ack - 70_000]
    {
        let mut script = Script::established(syn());
        let mut segment = script.segment(ACK);
        change(&mut segment);
        script.give(segment, b"data");
        let answer = script.answer();
        assert_eq!((answer.seq, answer.ack, answer.flags), (OWN + 1, script.seq, ACK));
        assert_eq!(script.read(), b"");
    }
}

/// RFC 5961 §5 and RFC 7323 §4.3: what is discarded says nothing of the peer's clock, nor that it lives.
#[test]
fn an_impossible_acknowledgment_sets_no_clock() {
    let mut script = Script::with(Setup { keepalive_ns: 100 * SECOND, ..setup() }, syn());
    let deadline_ns = script.connection.deadline_ns();
    script.pass(SECOND);
    let timestamps = Some(Timestamps { value: 9000, echo: 0 });
    script.give(Segment { ack: script.ack + 1, timestamps, ..script.segment(ACK) }, b"");
    assert_eq!(script.answer().timestamps.map(|timestamps| timestamps.echo), Some(1000));
    assert_eq!(script.connection.deadline_ns(), deadline_ns);
    let mut script = Script::half_open(setup(), syn());
    script.sent();
    assert_eq!(script.give(Segment { ack: script.ack + 1, timestamps, ..script.segment(ACK) }, b""), Verdict::Reset);
    script.say(ACK, b"the peer's own");
    assert_eq!(script.read(), b"the peer's own");
}

/// RFC 7323 §5.3.
#[test]
fn a_segment_from_before_the_wrap_is_dropped() {
    let mut script = Script::established(syn());
    script.clock = Some(5000);
    script.say(ACK, b"new");
    let mut old = script.segment(ACK);
    old.timestamps = Some(Timestamps { value: 4999, echo: 0 });
    script.give(old, b"old");
    assert_eq!(script.read(), b"new");
    assert_eq!(script.answer().timestamps.map(|timestamps| timestamps.echo), Some(5000));
    // RFC 7323 §3.2: once agreed on, they are in every segment.
    script.give(Segment { timestamps: None, ..script.segment(ACK) }, b"old");
    assert_eq!(script.read(), b"");
    // RFC 7323 §5.5: after so long nobody can tell.
    script.pass(25 * 86_400 * SECOND);
    script.give(old, b"old");
    assert_eq!(script.read(), b"old");
}

/// RFC 7323 §4.3: what is echoed is of the last segment that was in order.
#[test]
fn a_segment_beyond_a_gap_is_not_echoed() {
    let mut script = Script::established(syn());
    let mut late = script.segment(ACK);
    late.seq += 100;
    late.timestamps = Some(Timestamps { value: 9000, echo: 0 });
    script.give(late, b"late");
    assert_eq!(script.answer().timestamps.map(|timestamps| timestamps.echo), Some(1000));
}

/// RFC 6928 §2 and RFC 5681 §3.1.
#[test]
fn ten_segments_leave_before_the_first_acknowledgment() {
    let mut script = Script::established(syn());
    script.send(100_000);
    assert_eq!(script.sent_data().len(), 10);
    script.acknowledge(2 * 1448);
    assert_eq!(script.sent_data().len(), 4, "two that were acknowledged, and two that the window grows by");
}

/// RFC 9293 §3.6, figure 12, on the side that closes first.
#[test]
fn an_orderly_end_waits_for_old_segments() {
    let mut script = Script::established(syn());
    script.send(3);
    script.connection.close(script.now_ns, &mut script.resources.pool);
    let sent = script.sent();
    assert_eq!((sent.len(), sent[0].0.flags, sent[0].2), (1, FIN_ACK | Flags::PSH, 3));
    script.acknowledge(4);
    assert_eq!(script.connection.state, State::FinWait2);
    script.say(FIN_ACK, b"");
    assert_eq!(script.connection.state, State::TimeWait);
    assert_eq!(script.answer().ack, script.seq);
    assert_eq!(script.resources.pool.used_bytes(), 0);
    script.pass(30 * SECOND);
    // The acknowledgment was lost, so the FIN comes again, and the wait begins anew (§3.10.7.4).
    let again = Segment { seq: script.seq - 1, ..script.segment(FIN_ACK) };
    script.give(again, b"");
    assert_eq!(script.answer().ack, script.seq);
    // RFC 1337 §3.
    script.give(script.segment(Flags::RST), b"");
    assert_eq!(script.connection.state, State::TimeWait);
    // RFC 6191 §2 and RFC 9293 §3.6.1.
    assert!(!script.connection.gives_way_to(&Segment { seq: script.seq - 1, timestamps: None, ..syn() }));
    assert!(script.connection.gives_way_to(&Segment { seq: script.seq + 1, timestamps: None, ..syn() }));
    let newer = Some(Timestamps { value: 1001, echo: 0 });
    assert!(script.connection.gives_way_to(&Segment { seq: script.seq - 1, timestamps: newer, ..syn() }));
    script.pass(59 * SECOND);
    script.sent();
    assert_eq!(script.connection.state, State::TimeWait);
    script.pass(SECOND);
    script.sent();
    assert!(script.connection.is_over());
}

/// What has arrived is the application's until it closes the connection, however long it takes to read, and so are its
/// addresses.
#[test]
fn what_has_arrived_outlives_the_wait_for_old_segments() {
    let mut script = Script::established(syn());
    script.connection.finish();
    script.sent();
    script.acknowledge(1);
    script.say(FIN_ACK, b"the end");
    script.sent();
    assert_eq!(script.connection.state, State::TimeWait);
    let newer = Segment { seq: script.seq + 1, timestamps: Some(Timestamps { value: 2000, echo: 0 }), ..syn() };
    assert!(!script.connection.gives_way_to(&newer));
    script.pass(60 * SECOND);
    script.sent();
    assert!(script.connection.is_over());
    assert_eq!(script.connection.next_change(&script.resources.pool), Some(Change::Readable));
    assert_eq!(script.connection.next_change(&script.resources.pool), None);
    assert_eq!(script.read(), b"the end");
    assert_eq!(script.connection.next_change(&script.resources.pool), Some(Change::EndOfStream));
    assert_eq!(script.resources.pool.used_bytes(), 0);
}

/// Nor does it keep memory for one that the application closes unread.
#[test]
fn what_is_left_unread_goes_with_its_connection() {
    let mut script = Script::established(syn());
    script.connection.finish();
    script.sent();
    script.acknowledge(1);
    script.say(FIN_ACK, b"the end");
    script.pass(60 * SECOND);
    script.sent();
    assert!(script.connection.is_over() && script.resources.pool.used_bytes() > 0);
    script.connection.close(script.now_ns, &mut script.resources.pool);
    assert_eq!(script.resources.pool.used_bytes(), 0);
}

/// What was queued may arrive as slowly as its peer reads it, but not for ever.
#[test]
fn a_closed_connection_stays_while_its_peer_takes_what_was_queued() {
    for (acknowledgments, end_s) in [(0, 60), (1, 110), (5, 310), (1000, 600)] {
        let mut script = Script::established(syn());
        script.send(100_000);
        let closed_ns = script.now_ns;
        script.connection.close(closed_ns, &mut script.resources.pool);
        script.sent();
        for _ in 0..acknowledgments {
            script.pass(50 * SECOND);
            script.sent();
            if script.connection.state == State::Closed {
                break;
            }
            script.acknowledge(1000);
            script.sent();
        }
        while script.connection.state != State::Closed {
            script.now_ns = script.connection.deadline_ns();
            script.acknowledge(0);
            script.sent();
        }
        assert_eq!(script.now_ns - closed_ns, end_s * SECOND, "after {acknowledgments}");
        assert_eq!(script.resources.pool.used_bytes(), 0);
    }
}

/// RFC 1122 §4.2.2.13.
#[test]
fn data_for_a_closed_connection_is_answered_by_a_reset_once_all_replies_have_arrived() {
    let mut script = Script::established(syn());
    script.send(3);
    script.connection.close(script.now_ns, &mut script.resources.pool);
    script.sent();
    script.say(Flags::ACK, b"more");
    assert_eq!(script.connection.state, State::FinWait1, "the reply may still be lost");
    script.sent();
    script.acknowledge(4);
    assert_eq!(script.connection.state, State::FinWait2);
    script.say(Flags::ACK, b"and more");
    assert!(script.answer().flags.has(Flags::RST));
    assert_eq!(script.connection.state, State::Closed);
    assert_eq!(script.resources.pool.used_bytes(), 0);
}

/// RFC 9293 §3.6, figure 12, on the other side, whose FIN is lost once.
#[test]
fn the_last_acknowledgment_ends_it() {
    let mut script = Script::established(syn());
    script.say(FIN_ACK, b"bye");
    assert_eq!(script.connection.state, State::CloseWait);
    assert_eq!(script.answer().ack, script.seq);
    script.connection.close(script.now_ns, &mut script.resources.pool);
    assert_eq!(script.answer().flags, FIN_ACK);
    script.pass(200 * MS);
    assert_eq!(script.answer().flags, FIN_ACK);
    script.acknowledge(1);
    assert!(script.connection.is_over());
    assert_eq!(script.resources.pool.used_bytes(), 0);
}

/// RFC 9293 §3.6, figure 13.
#[test]
fn both_sides_may_close_at_once() {
    let mut script = Script::established(syn());
    script.connection.close(script.now_ns, &mut script.resources.pool);
    script.sent();
    script.say(FIN_ACK, b"");
    assert_eq!(script.connection.state, State::Closing);
    assert_eq!(script.answer().ack, script.seq);
    script.acknowledge(1);
    assert_eq!(script.connection.state, State::TimeWait);
}

/// RFC 9293 §3.10.5.
#[test]
fn an_abort_resets() {
    let mut script = Script::established(syn());
    script.send(5000);
    script.sent();
    script.connection.abort(&mut script.resources.pool);
    let reset = script.answer();
    assert_eq!((reset.flags, reset.seq), (Flags::RST | ACK, OWN + 5001));
    assert!(script.connection.is_over());
    assert_eq!(script.resources.pool.used_bytes(), 0);
}

/// RFC 9293 §3.8.4.
#[test]
fn a_silent_peer_is_probed() {
    let mut script = Script::with(Setup { keepalive_ns: 100 * SECOND, ..setup() }, syn());
    for _ in 0..5 {
        assert_eq!(script.connection.deadline_ns(), script.now_ns + 100 * SECOND);
        script.pass(100 * SECOND);
        let probe = script.answer();
        assert_eq!((probe.seq, probe.flags), (OWN, ACK));
        script.acknowledge(0);
    }
    script.pass(100 * SECOND);
    script.answer();
    script.pass(100 * SECOND);
    script.answer();
    script.pass(50 * SECOND);
    assert_eq!(script.sent(), []);
    assert!(script.connection.has_failed);
}

/// A machine that was paused has not asked in the meantime.
#[test]
fn a_pause_takes_no_time_to_answer_from_the_peer() {
    let mut script = Script::with(Setup { keepalive_ns: 100 * SECOND, ..setup() }, syn());
    script.pass(1000 * SECOND);
    script.answer();
    assert_eq!(script.connection.deadline_ns(), script.now_ns + 100 * SECOND);
    script.pass(1000 * SECOND);
    script.answer();
    assert_eq!(script.connection.deadline_ns(), script.now_ns + 50 * SECOND);
    assert_eq!(script.sent(), []);
    script.acknowledge(0);
    assert_eq!(script.connection.deadline_ns(), script.now_ns + 100 * SECOND);
    for answered_s in [100, 100, 50] {
        assert!(!script.connection.has_failed);
        script.pass(answered_s * SECOND);
        script.sent();
    }
    assert!(script.connection.has_failed);
}

/// RFC 1191 §6.4 and RFC 5927 §7.2.
#[test]
fn segments_shrink_to_the_path() {
    let mut script = Script::established(syn());
    script.send(5000);
    script.sent();
    script.connection.reduce_path_mtu(1000, OWN - 5);
    assert_eq!(script.sent_data(), [], "a quotation of what was never sent");
    script.connection.reduce_path_mtu(1000, OWN + 1);
    let sent = script.sent_data();
    assert_eq!(sent[0], (0, 1000 - 40 - 12));
    assert_eq!(sent.iter().map(|(_, len)| len).sum::<usize>(), 5000);
    script.connection.reduce_path_mtu(68, OWN + 1);
    assert_eq!(script.sent_data()[0], (0, 552 - 40 - 12), "no less than anybody has");
    // By less than what options take, as PPPoE does (RFC 2516 §7).
    for packet_bytes in [1499, 1492, 1488] {
        let mut script = Script::established(syn());
        script.send(5000);
        script.sent();
        script.connection.reduce_path_mtu(packet_bytes, OWN + 1);
        assert_eq!(script.sent_data()[0], (0, usize::from(packet_bytes) - 40 - 12));
        script.connection.reduce_path_mtu(packet_bytes, OWN + 1);
        assert_eq!(script.sent_data(), [], "nothing new");
    }
}

/// RFC 9293 §3.7.1, RFC 6691 §2 and RFC 8201 §4.
#[test]
fn segments_of_ipv6_leave_room_for_its_header() {
    let peer = |last| Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last);
    let flow = FlowKey { ends: Ends::V6 { own: peer(1), remote: peer(2) }, ..setup().flow };
    let mut script = Script::half_open(Setup { flow, ..setup() }, syn());
    assert_eq!(script.answer().max_segment_size, Some(1440));
    let mut script = Script::with(Setup { flow, ..setup() }, Segment { max_segment_size: None, ..plain_syn() });
    script.send(5000);
    assert_eq!(script.sent_data()[0], (0, 1220), "the peer has not said what it takes");
    let mut script = Script::with(Setup { flow, ..setup() }, syn());
    script.send(5000);
    script.sent();
    for packet_bytes in [1492, 1280] {
        script.connection.reduce_path_mtu(packet_bytes, OWN + 1);
        assert_eq!(script.sent_data()[0], (0, usize::from(packet_bytes) - 60 - 12));
    }
}
