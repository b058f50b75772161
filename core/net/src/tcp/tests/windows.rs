//! Windows: what a peer is told of, what it tells, and how both grow.

use super::*;

/// What a window has at first, and what it has at the most.
const FIRST: u32 = 256 << 10;
const MOST: u32 = 4 << 20;

/// RFC 9293 §3.8.6.1.
#[test]
fn a_closed_window_is_probed_for_ever() {
    let mut script = Script::established(syn());
    script.window = 0;
    script.acknowledge(0);
    script.send(5000);
    assert_eq!(script.sent_data(), []);
    let mut probes = 0;
    for _ in 0..1000 {
        script.pass(SECOND);
        let sent = script.sent_data();
        probes += sent.len();
        if !sent.is_empty() {
            assert_eq!(sent, [(0, 1)]);
            script.acknowledge(0);
        }
    }
    assert!((15..40).contains(&probes), "{probes} probes in 1,000 seconds, a minute apart in the end");
    assert!(!script.connection.has_failed, "it answers, so it lives");
    script.window = 60_000;
    script.acknowledge(0);
    let sent = script.sent_data();
    assert_eq!(sent.iter().map(|(_, len)| len).sum::<usize>(), 5000, "{sent:?}");
}

/// RFC 9293 §3.10.7.4: behind a byte that the peer has no room for, an acknowledgment would not be acceptable to it.
#[test]
fn what_is_acknowledged_beside_a_probe_is_numbered_before_it() {
    let mut script = Script::established(syn());
    script.window = 0;
    script.acknowledge(0);
    script.send(5000);
    assert_eq!(script.sent_data(), []);
    script.pass(SECOND);
    assert_eq!(script.sent_data(), [(0, 1)]);
    script.say(ACK, &[7; 3000]);
    let answer = script.answer();
    assert_eq!((answer.seq, answer.ack), (script.ack, script.seq));
    // Whatever has room for the probe has it before what comes next.
    script.window = 60_000;
    script.acknowledge(1);
    assert_eq!(script.sent()[0].1, 1);
    script.connection.abort(&mut script.resources.pool);
    assert_eq!(script.answer().seq, OWN + 1 + 5000);
}

/// The same from a peer that numbers it behind its probe. Neither answers the other's answers.
#[test]
fn what_is_acknowledged_behind_a_probe_counts() {
    let mut script = Script::half_open(setup(), syn());
    script.resources.pool = Pool::new(16 << 10);
    script.sent();
    script.say(ACK, b"");
    while let Some(len) = script.connection.rcv_right.since(script.seq).checked_sub(1).map(|left| left.min(1447) + 1) {
        script.say(ACK, &vec![7; len as usize]);
        script.sent();
    }
    script.pass(40 * MS);
    script.sent();
    script.send(100);
    assert_eq!(script.sent_data(), [(0, 100)]);
    let probe = script.segment(ACK);
    script.give(probe, b"x");
    assert_eq!(script.answer().ack, script.seq, "there was no room for it");
    script.ack += 100;
    let behind = Segment { seq: script.seq + 1, ..script.segment(ACK) };
    script.give(behind, b"");
    assert_eq!(script.connection.una, script.ack);
    assert_eq!(script.sent(), []);
    // What comes in order then is not older.
    script.window = 100;
    script.acknowledge(0);
    assert_eq!(script.connection.window, 100);
    let beyond = Segment { seq: script.seq + 2, ..script.segment(ACK) };
    script.give(beyond, b"");
    assert_eq!(script.answer().ack, script.seq, "it lies beyond the window");
}

/// A peer with some bytes of room, too few to be told, takes a probe. What was acknowledged beside that was old to it.
#[test]
fn what_is_acknowledged_beside_a_probe_that_is_taken_is_told_again() {
    let mut script = Script::established(syn());
    script.window = 0;
    script.acknowledge(0);
    script.send(1);
    assert_eq!(script.sent_data(), []);
    script.pass(SECOND);
    assert_eq!(script.sent_data(), [(0, 1)]);
    script.say(ACK, &[7; 3000]);
    assert_eq!(script.answer().seq, script.ack);
    script.acknowledge(1);
    let answer = script.answer();
    assert_eq!((answer.seq, answer.ack), (script.ack, script.seq));
    script.acknowledge(0);
    assert_eq!(script.sent(), []);
}

/// RFC 7323 §2.4: a scaled window may seem to shrink by less than a step. By more it has shrunk, and what was beyond it may be
/// gone.
#[test]
fn a_window_that_seems_to_shrink_has_not() {
    let mut script = Script::established(Segment { window_scale: Some(7), ..syn() });
    script.window = 79;
    script.acknowledge(0);
    script.send(79 << 7);
    assert_eq!(script.sent_data().iter().map(|(_, len)| len).sum::<usize>(), 79 << 7);
    // 67.7 steps are left.
    script.window = 67;
    script.acknowledge(1448);
    script.say(ACK, &[7; 3000]);
    assert_eq!(script.answer().seq, OWN + 1 + (79 << 7));
    script.window = 68;
    script.acknowledge(0);
    assert_eq!(script.sent(), [], "nothing was lost");
    script.window = 10;
    script.acknowledge(0);
    script.say(ACK, &[7; 3000]);
    assert_eq!(script.answer().seq, script.ack + (10 << 7));
    script.window = 79;
    script.acknowledge(0);
    assert_eq!(script.sent_data()[0], (1448, 1448));
}

/// What a peer without room does not take, as some do, comes again as soon as it has room.
#[test]
fn an_end_beyond_a_full_window_is_not_forgotten() {
    let mut script = Script::established(syn());
    script.send(5000);
    script.sent();
    script.window = 0;
    script.acknowledge(5000);
    script.connection.finish();
    assert_eq!(script.sent_data(), [(5000, 0)]);
    let mut again = 0;
    for _ in 0..20 {
        script.acknowledge(0);
        script.pass(SECOND);
        again += script.sent().len();
    }
    assert!((3..10).contains(&again), "{again}");
    script.window = 60_000;
    script.acknowledge(0);
    assert_eq!(script.answer().flags, FIN_ACK);
}

/// RFC 9293 §3.8.6.2.1: no small segments for a small window, but after a while, and no Nagle for the last.
#[test]
fn small_windows_are_not_filled_with_small_segments() {
    let mut script = Script::established(syn());
    script.window = 500;
    script.acknowledge(0);
    script.send(2000);
    assert_eq!(script.sent_data(), []);
    script.pass(SECOND);
    assert_eq!(script.sent_data(), [(0, 500)]);
    script.window = 60_000;
    script.acknowledge(500);
    assert_eq!(script.sent_data(), [(500, 1448), (1948, 52)]);
}

/// RFC 9293 §3.8.6.2.2: a window that was closed opens by a segment at least, and that is told at once.
#[test]
fn a_window_opens_by_whole_segments() {
    let mut script = Script::half_open(setup(), syn());
    script.resources.pool = Pool::new(16 << 10);
    script.sent();
    script.say(ACK, b"");
    while let Some(len) = script.connection.rcv_right.since(script.seq).checked_sub(1).map(|left| left.min(1447) + 1) {
        script.say(ACK, &vec![7; len as usize]);
        script.sent();
    }
    script.pass(40 * MS);
    script.say(ACK, b"more than there is room for");
    script.seq = script.connection.rcv_nxt;
    let told = u32::from(script.answer().window) << OWN_WINDOW_SCALE;
    let held = script.connection.rx.len();
    assert!(held > 2000 && told == 0, "{held} {told}");
    script.connection.consume(10, &mut script.resources.pool);
    assert_eq!(script.sent(), []);
    script.connection.consume(held.min(2000) - 10, &mut script.resources.pool);
    script.read();
    assert!(u32::from(script.answer().window) << OWN_WINDOW_SCALE >= 1448);
}

/// The largest window that this peer is told of while it sends that much, `ns_per_kib` for each KiB, and is read.
fn window_of_uploader(script: &mut Script, bytes: usize, ns_per_kib: u64) -> u32 {
    let mut largest = 0;
    for _ in 0..bytes / 32_768 {
        script.say(ACK, &[7; 32_768]);
        script.read();
        script.pass(32 * ns_per_kib);
        let told = script.sent().last().map(|(segment, ..)| u32::from(segment.window) << OWN_WINDOW_SCALE);
        largest = largest.max(told.unwrap_or_default());
    }
    largest
}

/// The same for one that begins at this time and shares the pool of `shared`, and what is granted of that then.
fn upload_with(shared: &mut Resources, script: &mut Script, bytes: usize, now_ns: u64) -> (u32, u32) {
    script.now_ns = now_ns;
    std::mem::swap(shared, &mut script.resources);
    let window = window_of_uploader(script, bytes, 1000);
    let granted = script.resources.pool.granted_bytes() as u32;
    std::mem::swap(shared, &mut script.resources);
    (window, granted)
}

/// Who has sent little has little to be told of; who uses its window up has more, as long as there is some left for others.
#[test]
fn windows_grow_with_their_use() {
    let mut first = Script::established(syn());
    first.resources.pool = Pool::new(64 << 20);
    assert_eq!(window_of_uploader(&mut first, 224 << 10, 1000), FIRST, "before it has used it up");
    first.pass(SECOND);
    assert_eq!(window_of_uploader(&mut first, 16 << 20, 8 * MS), FIRST, "125 KiB/s do not use it up");
    let mut sluggish = Script::established(syn());
    sluggish.connection.trip.sample(60 * SECOND);
    assert_eq!(window_of_uploader(&mut sluggish, 16 << 20, 8 * MS), FIRST, "whatever round trips its peer makes");
    assert_eq!(window_of_uploader(&mut first, 16 << 20, 1000), MOST);
    // Half of the pool may be told of, whoever comes first. They share what the last one has.
    let (mut uploaders, mut windows) = (vec![first], vec![MOST]);
    for _ in 0..11 {
        let mut next = Script::established(syn());
        next.now_ns = uploaders.last().unwrap().now_ns;
        std::mem::swap(&mut next.resources, &mut uploaders.last_mut().unwrap().resources);
        windows.push(window_of_uploader(&mut next, 16 << 20, 1000));
        uploaders.push(next);
    }
    assert_eq!(windows, [&[MOST; 8][..], &[MOST / 2, 2 * FIRST, FIRST, FIRST]].concat());
    // However one ends, or falls silent, another may be told of that.
    let mut resources = resources();
    std::mem::swap(&mut resources, &mut uploaders.last_mut().unwrap().resources);
    let now_ns = uploaders.last().unwrap().now_ns;
    let mut granted = resources.pool.granted_bytes();
    for (way, uploader) in uploaders.iter_mut().take(5).enumerate() {
        std::mem::swap(&mut resources, &mut uploader.resources);
        uploader.now_ns = now_ns;
        match way {
            0 => assert_eq!(window_of_uploader(uploader, 64 << 20, 8 * MS), MOST, "it never moves to the left"),
            1 => uploader.connection.close(uploader.now_ns, &mut uploader.resources.pool),
            2 => uploader.say(FIN_ACK, b""),
            3 => uploader.say(Flags::RST, b""),
            _ => uploader.connection.abort(&mut uploader.resources.pool),
        }
        let left = granted - uploader.resources.pool.granted_bytes();
        assert_eq!(left, (MOST - FIRST) as usize, "{way}");
        granted -= left;
        std::mem::swap(&mut resources, &mut uploader.resources);
    }
    for uploader in &mut uploaders {
        uploader.connection.abort(&mut resources.pool);
    }
    assert_eq!((resources.pool.used_bytes(), resources.pool.granted_bytes()), (0, 0));
}

/// What one could tell its peer of and has not used for a while is others' when they ask for it. What it has told stays.
#[test]
fn what_is_not_used_of_windows_is_given_to_others() {
    // Four may be told of that much, and the fifth of a part only.
    let mut shared = resources();
    shared.pool = Pool::new(32 << 20);
    let mut idle = [(); 3].map(|()| Script::established(syn()));
    let [mut busy, mut next] = [(); 2].map(|()| Script::established(syn()));
    let mut upload = |script: &mut Script, bytes, now_ns| upload_with(&mut shared, script, bytes, now_ns);
    assert_eq!(idle.each_mut().map(|script| upload(script, 16 << 20, 2 * SECOND).0), [MOST; 3]);
    assert_eq!(upload(&mut busy, 16 << 20, 2 * SECOND), (MOST, 4 * (MOST - FIRST)));
    // All of them have sent something not long ago.
    assert_eq!(upload(&mut next, 16 << 20, 2 * SECOND + SECOND / 2).0, 4 * FIRST);
    let told = idle[0].connection.rcv_right.since(idle[0].connection.rcv_nxt);
    // Who goes on keeps what it has, however long ago it was given.
    upload(&mut busy, 16 << 20, 3 * SECOND + SECOND / 2);
    upload(&mut busy, 16 << 20, 5 * SECOND);
    assert_eq!(upload(&mut next, 16 << 20, 5 * SECOND + SECOND / 2), (MOST, 2 * (MOST - FIRST)));
    assert_eq!(idle[0].connection.rcv_right.since(idle[0].connection.rcv_nxt), told, "it never moves to the left");
    // Who has lost it begins anew, and has nothing to give back.
    assert_eq!(upload(&mut idle[0], 32 << 10, 6 * SECOND).1, 2 * (MOST - FIRST));
    assert_eq!(upload(&mut idle[0], 16 << 20, 6 * SECOND).1, 3 * (MOST - FIRST));
    for script in idle.iter_mut().chain([&mut busy, &mut next]) {
        script.connection.abort(&mut shared.pool);
    }
    assert_eq!((shared.pool.used_bytes(), shared.pool.granted_bytes()), (0, 0));
}

/// A connection's time is that of what it heard last, and so may be an earlier one than another's was.
#[test]
fn who_reads_late_takes_nothing_from_others() {
    let mut shared = resources();
    shared.pool = Pool::new(32 << 20);
    let mut all = [(); 5].map(|()| Script::established(syn()));
    let mut upload = |script: &mut Script, bytes, now_ns| upload_with(&mut shared, script, bytes, now_ns);
    let [late, others @ .., last] = &mut all;
    assert_eq!(upload(late, 16 << 20, 10 * SECOND).0, MOST);
    assert_eq!(others.each_mut().map(|script| upload(script, 16 << 20, 15 * SECOND).0), [MOST; 3]);
    let late_ns = late.now_ns + SECOND / 10;
    upload(late, 32 << 10, late_ns);
    upload(late, 32 << 10, late_ns);
    assert_eq!(upload(last, 16 << 20, 15 * SECOND + SECOND / 2).0, 4 * FIRST, "all others are in use");
    all.iter_mut().for_each(|script| script.connection.abort(&mut shared.pool));
    assert_eq!((shared.pool.used_bytes(), shared.pool.granted_bytes()), (0, 0));
}

/// What is not acknowledged is bounded by what is on its way: who does not read has no more kept for it than at first.
#[test]
fn send_buffers_grow_with_what_arrives() {
    let mut script = Script::established(Segment { window_scale: Some(9), ..syn() });
    script.resources.pool = Pool::new(64 << 20);
    let queued = |script: &mut Script| {
        while script.connection.send(&[7; 10_000], &mut script.resources.pool) > 0 {}
        script.connection.tx.len()
    };
    assert_eq!(queued(&mut script), 256 << 10);
    let mut largest = 0;
    for _ in 0..400 {
        let sent: usize = script.sent_data().iter().map(|(_, len)| len).sum();
        script.pass(MS);
        script.acknowledge(sent as u32);
        largest = largest.max(queued(&mut script));
    }
    assert_eq!(largest, 4 << 20);
}

/// RFC 7323 §2.3.
#[test]
fn windows_are_scaled_but_in_a_handshake() {
    let mut script = Script::established(Segment { window: 10, window_scale: Some(7), ..syn() });
    script.send(100_000);
    script.connection.window = 10;
    assert_eq!(script.sent_data(), []);
    script.window = 10;
    script.acknowledge(0);
    assert_eq!(script.sent_data(), [], "less than a segment");
    script.pass(2 * SECOND);
    assert_eq!(script.sent_data().iter().map(|(_, len)| len).sum::<usize>(), 1280);
}

/// RFC 9293 §3.10.7.4: an old segment's window says nothing.
#[test]
fn an_old_window_does_not_replace_a_new_one() {
    let mut script = Script::established(syn());
    let old = Segment { window: 0, ..script.segment(ACK) };
    script.say(ACK, b"newer");
    script.read();
    script.give(old, b"");
    script.send(100);
    assert_eq!(script.sent_data(), [(0, 100)]);
}
