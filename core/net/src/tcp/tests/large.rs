//! Links with large frames: what is sent there, and what peers are told, with much and with little memory.

use super::*;
use crate::pool::{BLOCK_BYTES, Block};

const MTU: u16 = 15_346;
const SEGMENT_BYTES: u16 = MTU - 40;

fn large_setup() -> Setup {
    Setup { mtu: MTU, ..setup() }
}

/// A SYN of a peer on the same link.
fn large_syn() -> Segment {
    Segment { window: 62_000, max_segment_size: Some(SEGMENT_BYTES), ..syn() }
}

/// Takes blocks until so many are free.
fn take_all_but(free: usize, pool: &mut Pool) -> Vec<Block> {
    let used = (pool.limit_bytes() - pool.used_bytes()) / BLOCK_BYTES - free;
    (0..used).map(|_| pool.take().unwrap()).collect()
}

/// RFC 6691 §2.
#[test]
fn segments_on_links_with_large_frames_fill_them() {
    let addresses = [Ipv6Addr::LOCALHOST, Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2)];
    let v6 = FlowKey { ends: Ends::V6 { own: addresses[0], remote: addresses[1] }, ..setup().flow };
    for (flow, bytes) in [(setup().flow, MTU - 40), (v6, MTU - 60)] {
        let setup = || Setup { flow, mtu: MTU, ..setup() };
        assert_eq!(Script::half_open(setup(), syn()).answer().max_segment_size, Some(bytes));
        for (said, most) in [(bytes, bytes), (536, 536), (1460, 1460), (65_000, bytes)] {
            let mut script = Script::with(setup(), Segment { window: 62_000, max_segment_size: Some(said), ..syn() });
            script.send(20_000);
            assert_eq!(script.sent_data()[0], (0, usize::from(most) - 12), "with timestamps");
        }
    }
}

/// Of large segments several fit into what there is to send from, however little that is.
#[test]
fn large_segments_shrink_with_the_send_buffer() {
    for blocks in [4, 8, 16, 40, 100, 200, 400, 4096] {
        let mut script = Script::with(large_setup(), large_syn());
        script.resources.pool = Pool::new(blocks * BLOCK_BYTES);
        let pool = &mut script.resources.pool;
        let capacity = script.connection.send(&[1; 1 << 20], pool);
        assert_eq!(capacity % BLOCK_BYTES, 0);
        let mut sent = vec![];
        while sent.iter().sum::<usize>() < capacity {
            let now: Vec<usize> = script.sent_data().into_iter().map(|(_, len)| len).collect();
            assert!(!now.is_empty(), "{blocks} blocks: it waits for nothing");
            script.acknowledge(now.iter().sum::<usize>() as u32);
            sent.extend(now);
        }
        let most = (capacity / 4).clamp(1460, usize::from(SEGMENT_BYTES) - 12);
        assert!(sent.iter().all(|len| *len <= most), "{blocks} blocks: {sent:?}");
        assert_eq!(sent[0], most, "{blocks} blocks");
    }
}

/// The same with what the peer has room for. Where nothing is on its way it gets what there is room for at once: one that
/// goes on reading would wait for a timer of ours every time.
#[test]
fn large_segments_shrink_with_the_window() {
    for window in [100, 536, 1460, 4000, 10_000, 20_000, 40_000, 60_000] {
        let mut script = Script::with(large_setup(), Segment { window, ..large_syn() });
        (script.window, script.connection.window, script.connection.max_window) =
            (window, window.into(), window.into());
        script.send(100_000);
        let mut left = 100_000;
        while left > 0 {
            let sent = script.sent_data();
            let most = (usize::from(window) / 4).clamp(1460, usize::from(SEGMENT_BYTES) - 12);
            assert!(!sent.is_empty() && sent.iter().all(|(_, len)| *len <= most), "window {window}: {sent:?}");
            let bytes = sent.iter().map(|(_, len)| *len as u32).sum();
            script.acknowledge(bytes);
            left -= bytes;
        }
    }
}

/// A peer whose window was large and is small now gets an ordinary segment at least without waiting, and RFC 9293
/// §3.8.6.2.1 holds below that and while something is on its way.
#[test]
fn a_window_that_has_shrunk_is_used() {
    let mut script = Script::with(large_setup(), large_syn());
    script.window = 5000;
    script.acknowledge(0);
    script.send(40_000);
    assert_eq!(script.sent_data(), [(0, 5000)]);
    script.window = 9000;
    script.acknowledge(0);
    assert_eq!(script.sent_data(), [], "4,000 more, when an acknowledgment will come");
    script.window = 1000;
    script.acknowledge(5000);
    assert_eq!(script.sent_data(), []);
    script.pass(SECOND);
    assert_eq!(script.sent_data(), [(5000, 1000)]);
}

/// A sender with no room for a segment waits for a timer, Linux as well: as long as anything is left behind the reserve it has
/// that room whenever all is read.
#[test]
fn there_is_room_for_a_large_segment() {
    for free in [16 + 9, 16 + 12, 30, 64] {
        let mut script = Script::half_open(large_setup(), large_syn());
        script.resources.pool = Pool::new(64 * BLOCK_BYTES);
        let taken = take_all_but(free, &mut script.resources.pool);
        script.sent();
        script.say(ACK, b"");
        script.sent();
        for _ in 0..100 {
            let window = script.connection.rcv_right.since(script.seq);
            assert!(window >= SEGMENT_BYTES.into(), "{free} blocks: {window}");
            script.say(ACK, &[7; SEGMENT_BYTES as usize - 12]);
            assert_eq!(script.read().len(), usize::from(SEGMENT_BYTES) - 12);
            assert_eq!(script.answer().ack, script.seq);
        }
        assert_eq!(
            script.resources.pool.used_bytes(),
            taken.len() * BLOCK_BYTES,
            "with nothing in it it holds nothing"
        );
    }
}

/// And it is told as soon as it has it, also where that is less than half of the buffer more.
#[test]
fn room_for_a_large_segment_is_told_at_once() {
    let mut script = Script::half_open(large_setup(), large_syn());
    script.resources.pool = Pool::new(64 * BLOCK_BYTES);
    let _taken = take_all_but(16 + 9, &mut script.resources.pool);
    script.sent();
    script.say(ACK, b"");
    script.sent();
    script.say(ACK, &[7; 8000]);
    let told = u32::from(script.answer().window) << OWN_WINDOW_SCALE;
    assert!(told < SEGMENT_BYTES.into(), "{told}");
    script.read();
    let told = u32::from(script.answer().window) << OWN_WINDOW_SCALE;
    assert!(told >= SEGMENT_BYTES.into(), "{told}");
}

/// What lies before the reserve is for everybody: who has large segments takes no more of it than others.
#[test]
fn the_reserve_is_not_for_large_segments() {
    let mut pool = Pool::new(64 * BLOCK_BYTES);
    let mut scripts = vec![];
    for _ in 0..23 {
        let mut script = Script::with(large_setup(), large_syn());
        script.resources.pool = pool;
        let held = script.resources.pool.used_bytes();
        // Nobody reads it, and half of it is not in order.
        let next = script.segment(ACK);
        script.connection.rcv_right = script.seq + 40_000;
        script.give(Segment { seq: next.seq + 15_294, ..next }, &[1; 15_294]);
        script.give(next, &[1; 15_294]);
        let blocks = (script.resources.pool.used_bytes() - held) / BLOCK_BYTES;
        let before = 64 - held / BLOCK_BYTES;
        assert!(before > 16 && blocks <= 16 || blocks <= 2, "{blocks} of {before}");
        assert_eq!(blocks > 0, before > 0);
        pool = core::mem::replace(&mut script.resources.pool, Pool::new(0));
        scripts.push(script);
    }
    let held: usize = scripts.iter().map(|script| script.connection.rx.len()).sum();
    assert!(held > 30 * BLOCK_BYTES, "what is in order comes first");
    for script in &mut scripts {
        script.connection.release_buffers(&mut pool);
    }
    assert_eq!(pool.used_bytes(), 0);
}
