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
    script.give(Segment { seq: PEER + 151 - (1 << 21), ..first }, &[b'x'; 100]);
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
