//! What is lost by when it was sent (RFC 8985), and what comes twice (RFC 2883).

use super::*;

const SEGMENT: u32 = 1448;

/// A connection with ten segments on their way, and a round trip of 20 ms.
fn flight() -> Script {
    let mut script = Script::established(syn());
    script.send(SEGMENT as usize);
    script.sent();
    script.pass(20 * MS);
    script.acknowledge(SEGMENT);
    // The handshake took no time; its sample must not say how short a round trip may be.
    script.connection.trip = super::super::rtt::RoundTrip::new();
    script.connection.trip.sample(20 * MS);
    script.send(100_000);
    assert_eq!(script.sent_data().len(), 10);
    script
}

/// Where segment number `index` of the flight is.
fn at(index: u32) -> u32 {
    (1 + index) * SEGMENT
}

/// The peer reports segments of the flight.
fn report(script: &mut Script, runs: &[(u32, u32)]) {
    let runs: Vec<_> = runs.iter().map(|&(from, to)| (at(from), at(to))).collect();
    script.report(&runs);
}

fn resent(script: &mut Script) -> Vec<u32> {
    let end = at(10);
    script.sent_data().into_iter().map(|(at, _)| at).filter(|at| *at < end).collect()
}

/// §6.2, step 5: one segment behind a hole is enough, after a quarter of a round trip.
#[test]
fn one_segment_behind_a_hole_shows_the_loss_a_little_later() {
    let mut script = flight();
    script.pass(20 * MS);
    report(&mut script, &[(1, 2)]);
    assert_eq!(resent(&mut script), []);
    assert_eq!(script.connection.deadline_ns(), script.now_ns + 5 * MS);
    script.pass(5 * MS - 1);
    assert_eq!(resent(&mut script), []);
    script.pass(1);
    assert_eq!(resent(&mut script), [at(0)]);
    assert_eq!((script.resources.counters.fast_recoveries, script.resources.counters.timeouts), (1, 0));
}

/// §6.2: what was sent later than a retransmission has arrived, so the retransmission has not.
#[test]
fn a_retransmission_that_is_lost_is_sent_again() {
    let mut script = flight();
    script.pass(20 * MS);
    report(&mut script, &[(1, 5)]);
    assert_eq!(resent(&mut script), [at(0)]);
    let window = script.connection.congestion.window();
    // The rest of the flight left before it, and proves nothing.
    report(&mut script, &[(1, 10)]);
    script.sent();
    script.pass(MS);
    let fresh = script.connection.nxt.since(OWN + 1);
    report(&mut script, &[(1, 10)]);
    assert!(fresh > at(10), "new data have left with it or after it");
    script.pass(19 * MS);
    script.report(&[(at(1), fresh)]);
    assert_eq!(resent(&mut script), [], "they left together");
    let later = script.connection.nxt.since(OWN + 1);
    assert!(later > fresh);
    script.pass(20 * MS);
    script.report(&[(at(1), later)]);
    assert_eq!(resent(&mut script), [at(0)]);
    assert!(script.connection.congestion.window() < window, "RFC 5681 §4.3: it is another sign of congestion");
    assert_eq!(script.resources.counters.timeouts, 0);
    // All has arrived: nothing is kept for the next time.
    script.pass(20 * MS);
    script.ack = OWN + 1 + script.connection.nxt.since(OWN + 1);
    script.say(ACK, b"");
    assert!(script.connection.rack.is_none());
}

/// §6.2, steps 3 and 4: once something was overtaken, three segments behind a hole prove nothing, and time does.
#[test]
fn what_is_overtaken_is_not_taken_for_lost() {
    let mut script = flight();
    script.pass(20 * MS);
    report(&mut script, &[(1, 2)]);
    script.pass(MS);
    report(&mut script, &[(1, 2), (3, 4)]);
    // The second segment and the first one come behind the third.
    script.acknowledge(2 * SEGMENT);
    assert!(script.connection.reordering.is_seen);
    report(&mut script, &[(3, 10)]);
    assert_eq!(resent(&mut script), []);
    // A quarter of a round trip is over 25 ms after it was sent.
    script.pass(4 * MS - 1);
    assert_eq!(resent(&mut script), []);
    script.acknowledge(8 * SEGMENT);
    assert_eq!((script.resources.counters.fast_recoveries, script.resources.counters.retransmissions), (0, 0));
}

/// §6.2, step 4: what was sent again for nothing makes the window wider, up to a round trip, for sixteen recoveries.
#[test]
fn retransmissions_for_nothing_make_the_window_wider() {
    let mut trip = super::super::rtt::RoundTrip::new();
    trip.sample(20 * MS);
    let mut reordering = super::super::rack::Reordering::default();
    assert_eq!(reordering.window_ns(&trip, true), 0);
    assert_eq!(reordering.window_ns(&trip, false), 5 * MS);
    reordering.is_seen = true;
    for (una, expected_ms) in [(0, 10), (50, 10), (100, 15), (200, 20), (300, 20)] {
        // Once in a round trip, which ends with what has been sent by now.
        reordering.widen(Seq(una), Seq(una + 100));
        assert_eq!(reordering.window_ns(&trip, true), expected_ms * MS);
    }
    (0..16).for_each(|_| reordering.recovered());
    assert_eq!(reordering.window_ns(&trip, true), 5 * MS);
}

/// RFC 2883 §4: whoever says so has what was sent again for nothing.
#[test]
fn a_report_of_what_came_twice_is_heard() {
    let mut script = flight();
    script.pass(20 * MS);
    report(&mut script, &[(1, 5)]);
    assert_eq!(resent(&mut script), [at(0)]);
    script.connection.reordering.is_seen = true;
    let before_ns = script.connection.reordering.window_ns(&script.connection.trip, true);
    script.acknowledge(5 * SEGMENT);
    script.report(&[(at(0), at(1)), (at(7), at(8))]);
    assert!(script.connection.reordering.window_ns(&script.connection.trip, true) > before_ns);
}

/// RFC 2883 §4: named first, whether it has been read, is acknowledged, or lies behind a hole; and once.
#[test]
fn what_comes_twice_is_told() {
    let mut script = Script::established(syn());
    script.say(ACK, &[b'x'; 100]);
    script.sent();
    let first = Segment { seq: PEER + 1, ..script.segment(ACK) };
    script.give(first, &[b'x'; 100]);
    let answer = script.answer();
    assert_eq!((answer.ack, answer.sack.as_slice()), (PEER + 101, &[(PEER + 1, PEER + 101)][..]));
    // Overlapping what is new.
    script.give(Segment { seq: PEER + 51, ..first }, &[b'x'; 100]);
    script.pass(SECOND);
    let answer = script.answer();
    assert_eq!((answer.ack, answer.sack.as_slice()), (PEER + 151, &[(PEER + 51, PEER + 101)][..]));
    // Behind a hole.
    let ahead = Segment { seq: PEER + 501, ..first };
    script.give(ahead, &[b'y'; 100]);
    assert_eq!(script.answer().sack.as_slice(), [(PEER + 501, PEER + 601)]);
    script.give(ahead, &[b'y'; 50]);
    assert_eq!(script.answer().sack.as_slice(), [(PEER + 501, PEER + 551), (PEER + 501, PEER + 601)]);
    script.give(Segment { seq: PEER + 701, ..first }, &[b'z'; 10]);
    assert_eq!(script.answer().sack.as_slice(), [(PEER + 701, PEER + 711), (PEER + 501, PEER + 601)]);
    // What is from another time is not told of.
    script.give(Segment { seq: PEER + 151 - (1 << 23), ..first }, &[b'x'; 100]);
    assert_eq!(script.answer().sack.as_slice()[0], (PEER + 701, PEER + 711));
}

/// §6.3: a timeout takes all for lost, and what was sent before it says nothing of what was sent after it.
#[test]
fn a_timeout_begins_anew() {
    let mut script = flight();
    script.pass(20 * MS);
    report(&mut script, &[(1, 5)]);
    assert_eq!(resent(&mut script), [at(0)]);
    script.pass(SECOND);
    assert_eq!(resent(&mut script), [at(0)]);
    assert_eq!(script.resources.counters.timeouts, 1);
    report(&mut script, &[(1, 6)]);
    assert!(!resent(&mut script).contains(&at(0)));
}

/// Blocks of what has arrived go with acknowledgments only: RFC 2018 §3 has none in a SYN, and a reset has no use for one.
#[test]
fn neither_syns_nor_resets_tell_of_what_has_arrived() {
    let mut script = Script::half_open(setup(), syn());
    script.sent();
    let old = Segment { seq: PEER - 9, ack: OWN + 1, ..script.segment(ACK) };
    script.give(old, b"old bytes");
    script.give(syn(), b"");
    let answer = script.answer();
    assert_eq!((answer.flags, answer.sack), (SYN | ACK, SackBlocks::default()));
    let mut script = Script::established(syn());
    script.say(ACK, b"some");
    script.sent();
    script.give(Segment { seq: PEER + 1, ..script.segment(ACK) }, b"some");
    script.connection.abort(&mut script.resources.pool);
    let answer = script.answer();
    assert_eq!((answer.flags, answer.sack), (Flags::RST | ACK, SackBlocks::default()));
}

/// A block around more than half of all numbers is none of what was sent.
#[test]
fn a_block_around_the_numbers_is_not_believed() {
    let mut script = flight();
    script.report(&[(0x7fff_f000, 0xefff_0000)]);
    assert_eq!(script.connection.scoreboard.bytes(), 0);
    script.acknowledge(SEGMENT);
    assert_eq!(script.sent_data().len(), 2, "the window is as it was");
}

/// §6.2, step 5: what was sent between two holes and has arrived hides none of them.
#[test]
fn a_hole_behind_what_has_arrived_is_looked_at_by_the_clock() {
    let mut board = super::super::scoreboard::Scoreboard::default();
    let (start, end) = (Seq(0), Seq(4000));
    let mut rack = super::super::rack::Rack::new(start, Seq(1000), 10 * MS).expect("there is memory");
    for (sent_ms, to) in [(20, 2000), (30, 3000), (40, 4000)] {
        rack.note_fresh(Seq(to), 16 * MS, sent_ms * MS);
    }
    let mut trip = super::super::rtt::RoundTrip::new();
    trip.sample(20 * MS);
    board.add(&[(Seq(1000), Seq(2000)), (Seq(3000), Seq(4000))], start, end);
    rack.note_delivered(start, &board, &trip, 60 * MS);
    let losses = rack.find(start, &board, 25 * MS, 60 * MS);
    assert_eq!((losses.below, losses.at_ns), (Seq(2000), 75 * MS));
}

/// The clock begins with a time that is too short, as the peer reports what left before: fresh data have a time of their own.
#[test]
fn the_first_report_says_nothing_of_what_leaves_later() {
    let mut board = super::super::scoreboard::Scoreboard::default();
    let mut rack = super::super::rack::Rack::new(Seq(0), Seq(1000), 10 * MS).expect("there is memory");
    let mut trip = super::super::rtt::RoundTrip::new();
    trip.sample(20 * MS);
    board.add(&[(Seq(500), Seq(1000))], Seq(0), Seq(1000));
    rack.note_delivered(Seq(0), &board, &trip, 10 * MS + 1);
    rack.note_fresh(Seq(2000), 20 * MS, 11 * MS);
    rack.note_fresh(Seq(3000), 20 * MS, 11 * MS);
    board.acknowledge(Seq(1000));
    board.add(&[(Seq(2000), Seq(3000))], Seq(1000), Seq(3000));
    rack.note_delivered(Seq(1000), &board, &trip, 31 * MS);
    let losses = rack.find(Seq(1000), &board, 5 * MS, 31 * MS);
    assert_eq!((losses.below, losses.at_ns), (Seq(1000), 36 * MS));
}

/// RFC 6675 §5: what a recovery has sent again of what left in it is no reason for the next one, and not sent a third time.
#[test]
fn what_was_sent_again_is_not_lost_once_more_when_a_recovery_is_over() {
    let mut script = flight();
    script.pass(20 * MS);
    report(&mut script, &[(1, 5)]);
    assert_eq!(resent(&mut script), [at(0)]);
    script.pass(MS);
    report(&mut script, &[(1, 5), (6, 10)]);
    assert_eq!(resent(&mut script), [at(5)]);
    let last = script.connection.nxt.since(OWN + 1);
    assert!(last >= at(14));
    // The first segment that left in the recovery is lost as well.
    script.pass(19 * MS);
    script.report(&[(at(1), at(5)), (at(6), at(10)), (at(11), last)]);
    assert_eq!(script.sent_data()[0], (at(10), SEGMENT as usize));
    let window = script.connection.congestion.window();
    script.pass(MS);
    script.ack = OWN + 1 + at(10);
    script.report(&[(at(11), last)]);
    script.sent();
    assert_eq!(script.resources.counters.retransmissions, 3);
    assert_eq!((script.resources.counters.fast_recoveries, script.connection.congestion.window()), (1, window));
}

/// A peer that lets segments through, loses them, takes them out of order and says so, wrongly too if it is hostile.
struct Peer {
    /// What is on its way to it, and the acknowledgments on their way back, each with when it arrives.
    coming: Vec<(u64, u32, u32)>,
    going: Vec<(u64, Segment)>,
    /// Which bytes it has, the first that it has not, and the end of the last that it has.
    has: Vec<bool>,
    next: usize,
    end: usize,
    state: u64,
}

impl Peer {
    fn random(&mut self, below: u64) -> u64 {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 33) % below
    }

    fn chance(&mut self, per_mille: u64) -> bool {
        self.random(1000) < per_mille
    }

    /// Runs behind the first hole, the one around `latest` first.
    fn acknowledgment(&mut self, script: &Script, latest: u32) -> Segment {
        self.next = (self.next..self.end).find(|at| !self.has[*at]).unwrap_or(self.end);
        let mut segment = Segment { ack: OWN + 1 + self.next as u32, ..script.segment(ACK) };
        let mut runs = vec![];
        let mut at = self.next;
        while let Some(from) = (at..self.end).find(|at| self.has[*at]) {
            at = (from..self.end).find(|at| !self.has[*at]).unwrap_or(self.end);
            runs.push((from as u32, at as u32));
        }
        runs.sort_by_key(|(from, to)| !(*from..*to).contains(&latest));
        for (from, to) in runs.into_iter().take(3) {
            segment.sack.push(OWN + 1 + from, OWN + 1 + to);
        }
        segment
    }

    /// What no honest peer says.
    fn nonsense(&mut self, script: &Script) -> Segment {
        let una = script.connection.una;
        let flight = u64::from(script.connection.nxt.since(una));
        let mut segment = Segment { ack: una, ..script.segment(ACK) };
        for _ in 0..self.random(5) {
            let mut edge = || match self.random(3) {
                0 => Seq(self.random(1 << 31) as u32 * 2 + 1),
                1 => una + self.random(flight + 2) as u32,
                _ => una + (self.random(flight + 2000) as u32) - 1000,
            };
            let (from, to) = (edge(), edge());
            if segment.sack.as_slice().len() < 4 {
                segment.sack.push(from, to);
            }
        }
        if self.chance(100) {
            segment.ack = una + self.random(flight + 1) as u32;
        } else if self.chance(100) {
            segment.ack = una - self.random(5000) as u32;
        }
        if self.chance(50) {
            segment.window = [0, 1, 1000, 60_000][self.random(4) as usize];
        }
        segment
    }
}

/// No more is counted than is on its way, and nothing is kept when nothing is.
fn check(script: &Script) {
    let connection = &script.connection;
    let flight = connection.nxt.since(connection.una);
    assert!(connection.scoreboard.bytes() <= flight && connection.pipe() <= flight);
    assert!(connection.rack.is_none() || flight > 0);
    if connection.state != State::Closed {
        assert!(connection.look_at_ns == u64::MAX || connection.rack.is_some());
    }
}

/// Sends what there is, and returns it. Time that does not pass brings nothing new after a few looks.
fn turn(script: &mut Script) -> Vec<(u32, usize)> {
    let mut sent = vec![];
    for looks in 0.. {
        sent.extend(
            script.sent().into_iter().map(|(segment, at, len)| (at, len + usize::from(segment.flags.has(Flags::FIN)))),
        );
        check(script);
        if script.connection.deadline_ns() > script.now_ns {
            break;
        }
        assert!(looks < 4, "a timer that does not come to rest: {:?}", script.connection);
    }
    assert!(sent.len() < 1000, "{}", sent.len());
    sent
}

/// A transfer to its end. Losses and nonsense are in a thousand segments and turns.
fn transfer(seed: u64, loss: u64, jitter_ns: u64, hostile: u64) -> Script {
    let mut script = Script::established(if seed.is_multiple_of(7) { plain_syn() } else { syn() });
    // The handshake took no time; its sample must not say how short a round trip may be.
    script.connection.trip = super::super::rtt::RoundTrip::new();
    let bytes = 60_000;
    let mut peer = Peer { coming: vec![], going: vec![], has: vec![false; bytes + 1], next: 0, end: 0, state: seed };
    let delay_ns = [MS / 20, 10 * MS, 100 * MS][(seed % 3) as usize];
    let mut queued = 0;
    for step in 0.. {
        assert!(step < 20_000, "seed {seed}: it does not end: {:?}", script.connection);
        if queued < bytes {
            let some = (bytes - queued).min(1 + peer.random(30_000) as usize);
            queued += script.connection.send(&vec![b'x'; some], &mut script.resources.pool);
            if queued == bytes {
                script.connection.finish();
            }
        }
        for (at, len) in turn(&mut script) {
            if len > 0 && !peer.chance(loss) {
                let jitter_ns = peer.random(jitter_ns + 1);
                peer.coming.push((script.now_ns + delay_ns + jitter_ns, at, at + len as u32));
            }
        }
        let is_done = script.connection.una == script.connection.nxt && script.connection.has_sent_fin();
        if is_done || hostile > 0 && (script.connection.state == State::Closed || step == 2000) {
            break;
        }
        let next_ns = peer.coming.iter().map(|coming| coming.0).chain(peer.going.iter().map(|going| going.0)).min();
        let next_ns = next_ns.unwrap_or(u64::MAX).min(script.connection.deadline_ns());
        assert!(next_ns < u64::MAX, "seed {seed}: nobody is to do anything: {:?}", script.connection);
        script.now_ns = next_ns.max(script.now_ns);
        while let Some(index) = peer.coming.iter().position(|coming| coming.0 <= script.now_ns) {
            let (_, from, to) = peer.coming.remove(index);
            let is_known = peer.has[from as usize..to as usize].iter().all(|has| *has);
            peer.has[from as usize..to as usize].fill(true);
            peer.end = peer.end.max(to as usize);
            let mut answer = peer.acknowledgment(&script, from);
            if is_known && answer.sack.as_slice().len() < 3 && script.connection.sack {
                let told = answer.sack;
                answer.sack = SackBlocks::default();
                answer.sack.push(OWN + 1 + from, OWN + 1 + to);
                told.as_slice().iter().for_each(|(from, to)| answer.sack.push(*from, *to));
            }
            if !peer.chance(loss) {
                peer.going.push((script.now_ns + delay_ns, answer));
            }
        }
        while let Some(index) = peer.going.iter().position(|going| going.0 <= script.now_ns) {
            let answer = peer.going.remove(index).1;
            script.give(answer, b"");
            check(&script);
        }
        if peer.chance(hostile) {
            let nonsense = peer.nonsense(&script);
            script.give(nonsense, b"");
            check(&script);
        }
    }
    if hostile == 0 {
        assert!(peer.has.iter().all(|has| *has), "seed {seed}: all of it has arrived");
    }
    script
}

/// Whatever is lost or comes out of order, an honest peer gets everything, and nothing is kept.
#[test]
fn everything_arrives_whatever_is_lost() {
    for seed in 0..24 {
        let loss = [0, 10, 50, 150][(seed / 3 % 4) as usize];
        let script = transfer(seed, loss, [3 * MS, 30 * MS][(seed / 12) as usize], 0);
        assert!(script.connection.rack.is_none());
    }
}

/// Whatever a peer says, nothing panics and no timer runs for ever.
#[test]
fn nonsense_does_no_harm() {
    for seed in 0..24 {
        transfer(seed, [0, 30, 200][(seed % 3) as usize], 2 * MS, 500);
    }
}
