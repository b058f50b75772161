//! What is lost, how that is found, and how it is mended; by the clock of each segment in `rack.rs`.

use super::*;

/// RFC 6675 §5: what is missing is sent again, once, and new data as the pipe empties.
#[test]
fn selective_acknowledgments_show_the_loss() {
    let mut script = Script::established(syn());
    script.send(100_000);
    script.sent();
    script.pass(MS);
    script.report(&[(1448, 2 * 1448)]);
    script.report(&[(1448, 3 * 1448)]);
    let limited = script.sent_data();
    assert_eq!(limited, [(14_480, 1448), (15_928, 1448)], "RFC 3042: new data for what has arrived");
    script.report(&[(1448, 4 * 1448)]);
    let resent = script.sent_data();
    assert_eq!(resent[0], (0, 1448));
    assert_eq!(script.resources.counters.fast_recoveries, 1);
    script.report(&[(1448, 5 * 1448)]);
    script.report(&[(1448, 6 * 1448)]);
    assert!(script.sent_data().iter().all(|(at, _)| *at > 1448), "it is not sent twice");
    // Two losses further on are found as well.
    script.report(&[(9 * 1448, 10 * 1448), (7 * 1448, 8 * 1448), (1448, 6 * 1448)]);
    script.acknowledge(6 * 1448);
    script.report(&[(9 * 1448, 12 * 1448), (7 * 1448, 8 * 1448)]);
    let resent: Vec<u32> = script.sent_data().into_iter().map(|(at, _)| at).filter(|at| *at < 12 * 1448).collect();
    assert_eq!(resent, [6 * 1448, 8 * 1448]);
    assert_eq!(script.resources.counters.fast_recoveries, 1, "one reduction for one window");
}

/// RFC 6582 §3.2.
#[test]
fn three_duplicates_show_the_loss_without_selective_ones() {
    let mut script = Script::established(plain_syn());
    script.send(50_000);
    let flight = script.sent_data().len() as u32;
    script.pass(MS);
    for _ in 0..2 {
        script.acknowledge(0);
    }
    assert!(script.sent_data().iter().all(|(at, _)| *at >= flight * 1000), "RFC 3042");
    script.acknowledge(0);
    assert_eq!(script.sent_data()[0], (0, 1000));
    // A partial acknowledgment: the next segment is lost as well.
    script.acknowledge(3000);
    assert_eq!(script.sent_data()[0], (3000, 1000));
    script.acknowledge((flight + 2) * 1000 - 3000);
    assert!(script.sent_data().iter().all(|(at, _)| *at >= (flight + 2) * 1000));
}

/// RFC 6298 §5 and RFC 5681 §3.1; RFC 9293 §3.8.3 for the end.
#[test]
fn a_timeout_sends_one_segment_again_and_doubles() {
    // A peer without SACK gets no probe before (RFC 8985 §3.1).
    let mut script = Script::established(Segment { sack_permitted: false, ..syn() });
    script.send(30_000);
    script.sent();
    for wait_ms in [200, 400, 800, 1600] {
        script.pass((wait_ms - 1) * MS);
        assert_eq!(script.sent_data(), []);
        script.pass(MS);
        assert_eq!(script.sent_data(), [(0, 1448)]);
    }
    script.acknowledge(1448);
    assert_eq!(script.sent_data(), [(1448, 1448), (2 * 1448, 1448)], "slow start");
    script.pass(121 * SECOND);
    script.sent();
    assert_eq!(script.connection.next_change(&script.resources.pool), Some(Change::Closed));
    assert_eq!(script.resources.pool.used_bytes(), 0);
}

/// RFC 8985 §7.2 and §7.3: two round trips and a little after the last segment, and once.
#[test]
fn a_tail_that_may_be_lost_is_probed() {
    let mut script = Script::established(syn());
    script.send(3 * 1448);
    assert_eq!(script.sent().len(), 3);
    script.pass(MS);
    assert_eq!(script.sent_data(), []);
    script.pass(2 * MS);
    assert_eq!(script.sent_data(), [(2 * 1448, 1448)], "the last one again");
    script.pass(199 * MS);
    assert_eq!(script.sent_data(), []);
    assert_eq!(script.resources.counters.timeouts, 0);
    script.pass(MS);
    assert_eq!(script.sent_data(), [(0, 1448)], "the timer runs from the probe on");
    assert_eq!((script.resources.counters.loss_probes, script.resources.counters.timeouts), (1, 1));
}

/// RFC 8985 §7.3: rather something new, whatever the congestion window says.
#[test]
fn a_probe_is_new_data_where_there_are_some() {
    let mut script = Script::established(syn());
    script.send(100_000);
    assert_eq!(script.sent().len(), 10);
    script.pass(3 * MS);
    assert_eq!(script.sent_data(), [(14_480, 1448)]);
    script.pass(10 * MS);
    assert_eq!(script.sent_data(), []);
    // What the peer has of it shows what is lost.
    script.report(&[(1448, 2 * 1448), (14_480, 15_928)]);
    assert_eq!(script.sent_data()[..2], [(0, 1448), (2 * 1448, 1448)]);
}

/// RFC 8985 §6.2: whatever was sent so long before the probe, and is missing when that has arrived, is lost.
#[test]
fn an_answer_to_a_probe_shows_the_loss() {
    let mut script = Script::established(syn());
    script.send(3 * 1448);
    script.sent();
    script.pass(3 * MS);
    script.sent();
    script.report(&[(2 * 1448, 3 * 1448)]);
    assert_eq!(script.sent_data(), [(0, 1448), (1448, 1448)]);
    let counters = script.resources.counters;
    assert_eq!((counters.fast_recoveries, counters.timeouts), (1, 0));
}

/// RFC 8985 §7.2 and §7.4.2: a single segment's acknowledgment may wait for the peer's own data. A probe that came for
/// nothing says how long.
#[test]
fn the_probe_of_a_single_segment_leaves_the_peer_time() {
    let mut script = Script::established(syn());
    let window = script.connection.congestion.window();
    for at in [0, 100, 200] {
        script.send(100);
        script.sent();
        script.pass(49 * MS);
        assert_eq!(script.sent_data(), []);
        script.pass(2 * MS);
        assert_eq!(script.sent_data(), [(at, 100)]);
        script.acknowledge(100);
        script.report(&[(at, at + 100)]);
    }
    script.send(100);
    script.sent();
    script.pass(199 * MS);
    assert_eq!(script.sent_data(), [], "it takes its time");
    script.acknowledge(100);
    assert_eq!(script.connection.congestion.window(), window, "nothing was lost");
}

/// RFC 8985 §7.4: a loss that the probe has mended is one all the same.
#[test]
fn a_loss_that_a_probe_mends_counts() {
    let mut script = Script::established(syn());
    script.send(2 * 1448);
    script.sent();
    script.acknowledge(1448);
    script.pass(51 * MS);
    assert_eq!(script.sent_data(), [(1448, 1448)]);
    let window = script.connection.congestion.window();
    script.acknowledge(1448);
    assert_eq!(script.connection.congestion.window(), window, "it may have come for nothing");
    script.send(100);
    script.sent();
    script.acknowledge(100);
    assert!(script.connection.congestion.window() < window);
    assert_eq!(script.resources.counters.timeouts, 0);
}

/// RFC 2018 §8: one whose first missing byte is one that it has reported has thrown that away, and perhaps the rest.
#[test]
fn what_was_thrown_away_plainly_is_sent_again_at_the_first_timeout() {
    let mut script = Script::established(syn());
    script.send(5 * 1448);
    script.sent();
    script.report(&[(1448, 5 * 1448)]);
    script.sent();
    script.acknowledge(1448);
    assert_eq!(script.sent_data(), []);
    script.pass(200 * MS);
    assert_eq!(script.sent_data(), [(1448, 1448)]);
    script.acknowledge(1448);
    assert_eq!(script.sent_data(), [(2 * 1448, 1448), (3 * 1448, 1448)]);
}

/// RFC 2018 §8: a peer may throw away what it had reported; after two timeouts nothing is taken for granted.
#[test]
fn what_was_reported_and_thrown_away_is_sent_again() {
    let mut script = Script::established(syn());
    script.send(5 * 1448);
    script.sent();
    script.report(&[(1448, 5 * 1448)]);
    script.sent();
    for _ in 0..4 {
        script.pass(2 * SECOND);
        script.sent();
    }
    script.acknowledge(1448);
    let mut resent = vec![];
    for _ in 0..4 {
        resent.extend(script.sent_data());
        script.acknowledge(1448);
    }
    assert_eq!(resent.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [1448, 2 * 1448, 3 * 1448, 4 * 1448]);
    assert_eq!(SackBlocks::default(), script.segment(ACK).sack);
}
