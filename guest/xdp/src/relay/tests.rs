use super::*;
use crate::{
    XdpDevice, XdpTx,
    fake::{Bell, FRAME_BYTES, FakeKernel, FakeRing},
};
use alloc::{vec, vec::Vec};
use core::sync::atomic::Ordering::Relaxed;
use kayvee_platform::{Completion, FrameDevice, FrameRx, FrameTx, Internet};

const PLACES: u32 = 32;
const ENTRIES: u32 = 16;
const PLAIN: u32 = 1514;
const LARGE: u32 = 5000;
/// What is gathered of a frame.
const MOST_BYTES: usize = 16 * FRAME_BYTES as usize;
const TASK: Completion =
    Completion { internet: Internet::V4, checksum_start: 34, checksum_offset: 16, header_bytes: 54, segment_bytes: 0 };

struct Bench {
    card: XdpDevice<Bell>,
    relay: Relay,
    kernel: FakeKernel,
    /// The card's own rings, as the relay has them.
    own: [FakeRing; 2],
}

/// What was seen: frames, and whether they may lack a checksum.
type Seen = Vec<(Vec<u8>, bool)>;

impl Bench {
    fn new(max_frame_bytes: u32) -> Bench {
        let kernel = FakeKernel::new(PLACES, ENTRIES);
        let (parts, bell, relay, own) = kernel.relayed_parts(max_frame_bytes);
        Bench { card: XdpDevice::new(parts, bell).unwrap(), relay, kernel, own }
    }

    fn tx(&mut self) -> &mut XdpTx<Bell> {
        self.card.split().1
    }

    /// The driver's index of what it has to send.
    fn tell(&self, index: u32) {
        self.own[1].u32(self.own[1].layout.producer).store(index, Relaxed);
    }

    fn take(&mut self) -> Option<Vec<u8>> {
        self.card.split().0.receive(|frame| frame.head.to_vec())
    }

    fn receive(&mut self) -> (Result<bool, Violation>, Seen) {
        let mut seen = Seen::new();
        let received = self.relay.receive(|passing| seen.push((passing.frame.to_vec(), passing.may_lack_checksum)));
        (received.map(|()| self.relay.publish().has_arrived), seen)
    }

    fn send(&mut self) -> (bool, Seen) {
        let mut seen = Seen::new();
        self.relay.send(|passing| seen.push((passing.frame.to_vec(), passing.may_lack_checksum)));
        (self.relay.publish().is_to_send, seen)
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 7 + len) as u8).collect()
}

fn sizes(from: usize, to: u32) -> impl Iterator<Item = usize> {
    (from..=to as usize).step_by(if cfg!(miri) { 499 } else { 13 })
}

#[test]
fn what_arrives_is_seen_before_the_driver_has_it() {
    for largest in [PLAIN, LARGE] {
        let mut bench = Bench::new(largest);
        assert_eq!(bench.receive(), (Ok(false), vec![]));
        for size in sizes(14, largest) {
            let frames = [pattern(size), pattern(60)];
            frames.iter().for_each(|frame| bench.kernel.deliver_pieces(frame));
            assert_eq!(bench.take(), None, "nobody has handed it on");
            assert_eq!(bench.receive(), (Ok(true), frames.clone().map(|frame| (frame, true)).into()));
            assert_eq!(bench.receive(), (Ok(false), vec![]));
            assert_eq!(
                [bench.take(), bench.take(), bench.take()],
                [Some(frames[0].clone()), Some(frames[1].clone()), None]
            );
        }
        assert_eq!(bench.card.error(), None);
    }
}

#[test]
fn what_is_sent_is_seen_before_the_kernel_has_it() {
    let mut bench = Bench::new(LARGE);
    assert_eq!(bench.send(), (false, vec![]));
    for (round, size) in (1..).zip(sizes(54, LARGE)) {
        let frame = pattern(size);
        let fill = |at: usize, bytes: &mut [u8]| bytes.copy_from_slice(&frame[at..at + bytes.len()]);
        assert!(bench.tx().transmit_offloaded(size, TASK, fill));
        assert!(bench.tx().transmit(60, |bytes| bytes.copy_from_slice(&pattern(60))).is_some());
        bench.tx().flush();
        assert_eq!(bench.kernel.rings.get(), round, "nothing leaves by itself, so it asks for it");
        assert!(bench.kernel.send_large().is_empty());
        assert_eq!(bench.send(), (true, vec![(frame.clone(), true), (pattern(60), false)]));
        assert_eq!(bench.send(), (true, vec![]), "the kernel has not taken it yet");
        bench.relay.settle();
        bench.tx().send_again();
        assert_eq!(bench.kernel.rings.get(), round + 1, "the driver is told no more than that");
        bench.kernel.rings.set(round);
        let metadata = [2, 0, 0, 0, 0, 0, 0, 0, 34, 0, 16, 0];
        assert_eq!(bench.kernel.send_large(), [(Some(metadata), frame), (None, pattern(60))]);
        assert_eq!(bench.send(), (false, vec![]));
        bench.relay.settle();
        bench.tx().send_again();
        assert_eq!(bench.kernel.rings.get(), round, "all is gone");
        assert!(!bench.card.is_sending());
    }
}

#[test]
fn what_the_kernel_refuses_goes_to_it_unseen() {
    let bench = &mut Bench::new(LARGE);
    let end = u64::from(PLACES) * u64::from(FRAME_BYTES);
    let goes_on = u64::from(CONTINUES) << 32;
    for (address, rest) in [
        (end, 1),
        (end - 1, 2),
        (u64::MAX, 60),
        (0, 2049),
        (2048 - 60, 61),
        (0, u64::from(u32::MAX)),
        (0, 0),
        (0, 4 << 32 | 60),
        // The second piece lies nowhere, and so does the frame.
        (0, goes_on | 60),
        (end, 60),
        // What follows is a frame of its own, whatever was said to go on.
        (0, goes_on | 60),
        (end, goes_on | 60),
    ] {
        bench.own[1].put(address, rest);
        assert_eq!(bench.send(), (true, vec![]));
        assert_eq!(bench.kernel.tx.take(), Some((address, rest)));
    }
    bench.own[1].put(end - 60, 60);
    assert_eq!(bench.send(), (true, vec![(vec![0; 60], false)]));
}

#[test]
fn frames_without_an_end_take_bounded_memory() {
    let bench = &mut Bench::new(LARGE);
    for _ in 0..100 {
        bench.own[1].put(0, u64::from(CONTINUES) << 32 | 2048);
        assert_eq!(bench.send(), (true, vec![]));
        bench.kernel.tx.take().unwrap();
    }
    assert!(bench.relay.sent.frame.capacity() <= 2 * MOST_BYTES);
    bench.own[1].put(0, 60);
    assert_eq!(bench.send().1, [(vec![0; MOST_BYTES], false)]);
}

#[test]
fn a_driver_with_more_than_fits_sends_nothing() {
    let bench = &mut Bench::new(PLAIN);
    (0..ENTRIES).for_each(|_| bench.own[1].put(0, 60));
    bench.tell(ENTRIES + 1);
    assert_eq!(bench.send(), (false, vec![]));
    bench.tell(ENTRIES);
    assert_eq!(bench.send().1.len(), ENTRIES as usize);
    // It says that it has more, though the kernel has taken none.
    bench.tell(2 * ENTRIES);
    assert_eq!(bench.send(), (true, vec![]));
    bench.kernel.tx.take().unwrap();
    assert_eq!(bench.send().1.len(), 1);
}

#[test]
fn a_kernel_with_more_than_fits_is_not_listened_to() {
    let bench = &mut Bench::new(PLAIN);
    bench.kernel.rx.u32(bench.kernel.rx.layout.producer).store(ENTRIES + 1, Relaxed);
    assert_eq!(bench.receive(), (Err(Violation::Index), vec![]));
}

#[test]
fn a_driver_that_keeps_no_rule_is_borne() {
    for seed in 0..if cfg!(miri) { 2 } else { 30 } {
        let mut random = fastrand::Rng::with_seed(seed);
        let bench = &mut Bench::new(LARGE);
        for _ in 0..200 {
            match random.u8(..6) {
                0 | 1 => bench.own[1].put(random.u64(..80_000), random.u64(..3 << 32) & 0x7_0000_ffff),
                2 => {
                    let ring = random.usize(..2);
                    let layout = bench.own[ring].layout;
                    let field = [layout.producer, layout.consumer, layout.flags][random.usize(..3)];
                    bench.own[ring].u32(field).store(random.u32(..64), Relaxed);
                }
                3 => drop(bench.kernel.deliver(&pattern(random.usize(14..1514)))),
                4 => drop(bench.kernel.tx.take()),
                _ => {}
            }
            let (received, arrived) = bench.receive();
            assert!(received.is_ok(), "the kernel keeps the rules");
            let (_, sent) = bench.send();
            assert!(arrived.iter().chain(&sent).all(|(frame, _)| frame.len() <= MOST_BYTES));
            bench.relay.settle();
            let ring = &bench.kernel.tx;
            let [told, taken] = [ring.layout.producer, ring.layout.consumer].map(|at| ring.u32(at).load(Relaxed));
            assert!(told.wrapping_sub(taken) <= ring.layout.entries, "seed {seed}");
        }
    }
}
