use super::{tx::PATIENCE_FLUSHES, *};
use crate::{
    fake::{Bell, FRAME_BYTES, FakeKernel},
    ring::{Ring, RingLayout},
};
use alloc::{rc::Rc, vec, vec::Vec};
use core::{
    cell::{Cell, RefCell},
    sync::atomic::Ordering::Relaxed,
};
use kayvee_platform::{Completion, FrameRx, FrameTx, Internet};

const PLACES: u32 = 16;
const RX_PLACES: u32 = 12;

fn card() -> (XdpDevice<Bell>, FakeKernel) {
    let kernel = FakeKernel::new(PLACES, 16);
    let (parts, bell) = kernel.parts();
    (XdpDevice::new(parts, bell).unwrap(), kernel)
}

fn receive(card: &mut XdpDevice<Bell>) -> Option<Vec<u8>> {
    card.split().0.receive(|frame| frame.head.to_vec())
}

fn send(card: &mut XdpDevice<Bell>, frame: &[u8]) -> bool {
    card.split().1.transmit(frame.len(), |to| to.copy_from_slice(frame)).is_some()
}

/// A link's frames may be smaller than Ethernet's, but not smaller than any host's packets.
#[test]
fn small_frames_are_told_of() {
    for (max_frame_bytes, is_taken) in [(14 + 1400, true), (14 + 576, true), (14 + 575, false), (0, false)] {
        let (parts, bell) = FakeKernel::new(PLACES, 16).parts_with(max_frame_bytes);
        let told = XdpDevice::new(parts, bell).map(|card| card.max_frame_bytes() as u32);
        assert_eq!(told.ok(), is_taken.then_some(max_frame_bytes));
    }
}

#[test]
fn frames_of_every_size_arrive_in_order_for_ever() {
    let (mut card, kernel) = card();
    let sizes = if cfg!(miri) { (14..=MAX_FRAME_BYTES).step_by(97) } else { (14..=MAX_FRAME_BYTES).step_by(1) };
    for size in sizes {
        let frame: Vec<u8> = (0..size).map(|n| (n * 7 + size) as u8).collect();
        assert!(kernel.deliver(&frame) && kernel.deliver(&frame[1..]));
        assert!(card.split().0.ready());
        assert_eq!(receive(&mut card).as_deref(), Some(&frame[..]));
        assert_eq!(receive(&mut card).as_deref(), Some(&frame[1..]));
        assert_eq!(receive(&mut card), None);
    }
    assert_eq!(card.error(), None);
}

#[test]
fn all_places_can_be_filled_before_the_driver_looks() {
    let (mut card, kernel) = card();
    for _ in 0..20 {
        for n in 0..RX_PLACES {
            assert!(kernel.deliver(&[n as u8; 60]));
        }
        assert!(!kernel.deliver(&[0; 60]), "a frame for which there is no place is lost");
        for n in 0..RX_PLACES {
            assert_eq!(receive(&mut card), Some(vec![n as u8; 60]));
        }
        assert_eq!(receive(&mut card), None);
    }
}

#[test]
fn frames_leave_in_batches_with_one_ring() {
    let (mut card, kernel) = card();
    for round in 1..50u32 {
        assert!(send(&mut card, &[1; 60]) && send(&mut card, &[2; 1514]) && send(&mut card, &[3; 14]));
        assert!(kernel.send_all().is_empty(), "nothing leaves before the end of the turn");
        card.split().1.flush();
        card.split().1.flush();
        assert_eq!((kernel.rings.get(), kernel.rung_bytes.get()), (round, 60 + 1514 + 14));
        assert!(card.tx.is_sending());
        assert_eq!(kernel.send_all(), [vec![1; 60], vec![2; 1514], vec![3; 14]]);
        assert!(!card.tx.is_sending());
    }
    let mut figures = NetworkFigures::default();
    card.put_figures(&mut figures);
    assert_eq!((figures.frames_sent, figures.notifications), (3 * 49, 49));
    // A process has the halves, each with its record of frames.
    let mut of_half = NetworkFigures::default();
    card.into_halves().1.put_figures(&mut of_half);
    assert_eq!((of_half.frames_sent, of_half.notifications), (3 * 49, 49));
}

const LARGE: usize = 5000;

fn large_card() -> (XdpDevice<Bell>, FakeKernel) {
    let kernel = FakeKernel::new(PLACES, 16);
    let (parts, bell) = kernel.parts_with(LARGE as u32);
    (XdpDevice::new(parts, bell).unwrap(), kernel)
}

#[test]
fn large_frames_arrive_in_pieces_for_ever() {
    let (mut card, kernel) = large_card();
    for size in (14..=LARGE).step_by(if cfg!(miri) { 499 } else { 7 }) {
        let frame: Vec<u8> = (0..size).map(|n| (n * 7 + size) as u8).collect();
        kernel.deliver_pieces(&frame);
        kernel.deliver_pieces(&frame[1..]);
        for sent in [&frame[..], &frame[1..]] {
            let got = receive(&mut card);
            assert_eq!(got.as_deref(), Some(sent));
        }
        assert_eq!(receive(&mut card), None);
    }
    assert_eq!(card.error(), None);
}

/// The checksum of a TCP segment without options.
const TASK: Completion =
    Completion { internet: Internet::V4, checksum_start: 34, checksum_offset: 16, header_bytes: 54, segment_bytes: 0 };

#[test]
fn large_frames_leave_in_pieces_with_what_is_to_be_done() {
    let (mut card, kernel) = large_card();
    assert_eq!(card.max_frame_bytes(), LARGE);
    let sizes = (54..=LARGE).step_by(if cfg!(miri) { 499 } else { 31 });
    for size in sizes.clone() {
        let frame: Vec<u8> = (0..size).map(|n| (n * 3 + size) as u8).collect();
        let tx = card.split().1;
        let fill = |at: usize, bytes: &mut [u8]| bytes.copy_from_slice(&frame[at..at + bytes.len()]);
        assert_eq!(tx.room_bytes(), LARGE);
        assert!(tx.transmit_offloaded(size, TASK, fill));
        tx.flush();
        let metadata = [2, 0, 0, 0, 0, 0, 0, 0, 34, 0, 16, 0];
        assert_eq!(kernel.send_large(), [(Some(metadata), frame)]);
        assert!(send(&mut card, &[5; 60]));
        card.split().1.flush();
        assert_eq!(kernel.send_large(), [(None, vec![5; 60])], "the same memory, without anything to be done");
    }
    let mut figures = NetworkFigures::default();
    card.put_figures(&mut figures);
    assert_eq!(figures.frames_sent, 2 * sizes.count() as u64, "however many pieces a frame has");
    let tx = card.split().1;
    assert!(!tx.transmit_offloaded(LARGE + 1, TASK, |_, _| panic!("too long")));
    // Of four places a largest frame takes three.
    assert!(tx.transmit_offloaded(LARGE, TASK, |_, bytes| bytes.fill(1)));
    assert!(!tx.ready() && tx.room_bytes() == 0);
    assert!(!tx.transmit_offloaded(60, TASK, |_, _| panic!("no room")));
}

#[test]
fn a_copy_takes_no_more_memory_than_what_comes() {
    let (mut card, kernel) = large_card();
    kernel.deliver_pieces(&[1; 60]);
    receive(&mut card);
    assert_eq!(card.rx.frame.capacity(), 0, "it lies in one place");
    kernel.deliver_pieces(&[1; FRAME_BYTES as usize]);
    receive(&mut card);
    assert!((FRAME_BYTES as usize..LARGE).contains(&card.rx.frame.capacity()));
}

#[test]
fn frames_larger_than_the_link_are_cut_off() {
    let (mut card, kernel) = large_card();
    for _ in 0..10 {
        kernel.deliver_pieces(&[7; LARGE + 1]);
        kernel.deliver_pieces(&[8; 3 * FRAME_BYTES as usize]);
        kernel.deliver_pieces(&[9; 60]);
        assert_eq!(receive(&mut card), Some(vec![7; LARGE]));
        assert_eq!(receive(&mut card), Some(vec![8; LARGE]));
        assert_eq!(receive(&mut card), Some(vec![9; 60]));
        assert_eq!(receive(&mut card), None, "and with that all places are given back");
    }
}

#[test]
fn frames_without_an_end_are_noticed() {
    let (mut card, kernel) = large_card();
    kernel.rx.put(256, 1 << 32 | 100);
    assert_eq!(receive(&mut card), None);
    assert_eq!(card.error(), Some(Violation::Pieces));
}

#[test]
fn a_kernel_that_needs_no_ring_gets_none() {
    let (mut card, kernel) = card();
    kernel.tx.u32(kernel.tx.layout.flags).store(0, Relaxed);
    assert!(send(&mut card, &[1; 60]));
    card.split().1.flush();
    assert_eq!((kernel.rings.get(), kernel.send_all().len()), (0, 1));
}

#[test]
fn what_is_left_is_rung_for_again() {
    let (mut card, kernel) = card();
    assert!(send(&mut card, &[1; 60]));
    card.split().1.flush();
    card.tx.send_again();
    assert_eq!(kernel.rings.get(), 2);
    kernel.send_all();
    card.tx.send_again();
    assert_eq!(kernel.rings.get(), 2);
}

#[test]
fn what_is_left_is_rung_for_again_though_nothing_new_comes() {
    let (mut card, kernel) = card();
    assert!(send(&mut card, &[1; 60]));
    for _ in 0..=PATIENCE_FLUSHES {
        assert!(kernel.rung_bytes.get() != usize::MAX);
        card.split().1.flush();
    }
    assert_eq!((kernel.rings.get(), kernel.rung_bytes.get()), (2, usize::MAX));
    kernel.send_all();
    (0..3 * PATIENCE_FLUSHES).for_each(|_| card.split().1.flush());
    assert_eq!((kernel.rings.get(), kernel.rests.get()), (2, 0));
}

#[test]
fn without_a_place_each_turn_rings_and_lets_others_have_the_processor() {
    let (mut card, kernel) = card();
    while send(&mut card, &[1; 60]) {}
    for round in 1..4 {
        card.split().1.flush();
        assert_eq!((kernel.rings.get(), kernel.rests.get(), kernel.rung_bytes.get()), (round, round, usize::MAX));
    }
    // The kernel has taken all and is done with none: there is nothing to ring for.
    let taken: Vec<u64> = core::iter::from_fn(|| Some(kernel.tx.take()?.0)).collect();
    card.split().1.flush();
    assert_eq!((kernel.rings.get(), kernel.rests.get()), (3, 4));
    kernel.completion.put(taken[0], 0);
    card.split().1.flush();
    assert_eq!((kernel.rings.get(), kernel.rests.get()), (3, 4), "there is a place");
}

/// A kernel that refuses, loses, sends some and is done with what it has sent when it likes, but with all in a rest.
struct Moody {
    kernel: Rc<FakeKernel>,
    random: fastrand::Rng,
    sent: Rc<RefCell<Vec<u64>>>,
    left: Rc<Cell<u32>>,
}

impl Moody {
    fn take(&mut self, most: u32) {
        for _ in 0..most {
            let Some((address, _)) = self.kernel.tx.take() else { break };
            self.left.set(self.left.get() + 1);
            self.sent.borrow_mut().push(address);
        }
    }

    fn complete(&mut self, most: usize) {
        let mut sent = self.sent.borrow_mut();
        let most = most.min(sent.len());
        sent.drain(..most).for_each(|address| self.kernel.completion.put(address, 0));
    }
}

impl Doorbell for Moody {
    fn ring(&mut self, _: usize) -> bool {
        let (mood, some) = (self.random.u8(..6), self.random.u32(..5));
        match mood {
            // ENOBUFS, ENETDOWN, or a thread that has yet to run; EBUSY; EAGAIN, having sent some or none.
            0 | 1 => {}
            2 => self.take(1),
            3 | 4 => self.take(some),
            _ => self.take(u32::MAX),
        }
        let most = self.random.usize(..5);
        self.complete(most);
        (2..5).contains(&mood)
    }

    fn rest(&mut self) {
        self.complete(usize::MAX);
    }
}

#[test]
fn whatever_the_kernel_refuses_all_frames_leave() {
    for seed in 0..if cfg!(miri) { 5 } else { 200 } {
        let kernel = Rc::new(FakeKernel::new(PLACES, 16));
        let (sent, left) = (Rc::<RefCell<Vec<u64>>>::default(), Rc::<Cell<u32>>::default());
        let random = fastrand::Rng::with_seed(seed);
        let bell = Moody { kernel: kernel.clone(), random, sent: sent.clone(), left: left.clone() };
        let mut card = XdpDevice::new(kernel.parts().0, bell).unwrap();
        let mut made = 0;
        for _ in 0..20_000 {
            let tx = card.split().1;
            while made < 200 && tx.ready() {
                tx.transmit(60, |frame| frame.fill(1)).unwrap();
                made += 1;
            }
            // No turn ends here without a place unless there was a rest for it.
            tx.flush();
            tx.flush();
        }
        assert_eq!((made, left.get()), (200, 200), "seed {seed}");
        sent.borrow_mut().drain(..).for_each(|address| kernel.completion.put(address, 0));
        assert!(!card.is_sending() && card.error().is_none(), "seed {seed}");
    }
}

#[test]
fn nothing_is_sent_without_a_place() {
    let (mut card, kernel) = card();
    for _ in 0..3 {
        for n in 0..PLACES - RX_PLACES {
            assert!(send(&mut card, &[n as u8; 60]));
        }
        assert!(!card.split().1.ready() && !send(&mut card, &[9; 60]));
        card.split().1.flush();
        assert_eq!(kernel.send_all().len(), (PLACES - RX_PLACES) as usize);
    }
    assert!(!send(&mut card, &[0; MAX_FRAME_BYTES + 1]));
    assert!(send(&mut card, &[0; MAX_FRAME_BYTES]));
}

#[test]
fn a_kernel_that_breaks_the_rules_is_cut_off_and_harms_nothing() {
    let place = |n: u32| u64::from(n * FRAME_BYTES) + 256;
    let frames = [
        (place(PLACES), 60, "behind all places"),
        (place(RX_PLACES), 60, "a place for sending"),
        (u64::MAX, 60, "nowhere"),
        (place(0), 2048, "longer than its place"),
        (place(0), u64::from(u32::MAX), "far longer"),
    ];
    for (address, len, what) in frames {
        let (mut card, kernel) = card();
        kernel.rx.put(address, len);
        assert_eq!(receive(&mut card), None, "{what}");
        assert!(card.error().is_some(), "{what}");
        kernel.deliver(&[1; 60]);
        assert!(!card.split().0.ready() && receive(&mut card).is_none());
    }
}

#[test]
fn a_frame_is_handed_over_once() {
    let (mut card, kernel) = card();
    kernel.rx.put(256, 60);
    kernel.rx.put(256, 60);
    let rx = card.split().0;
    let first = rx.next_piece();
    assert!(first.is_ok_and(|frame| frame.is_some()));
    assert_eq!(rx.next_piece(), Err(Violation::Frame(256)));
}

#[test]
fn impossible_indices_are_noticed() {
    for index in [17, u32::MAX, 1 << 31] {
        let (mut card, kernel) = card();
        kernel.rx.u32(kernel.rx.layout.producer).store(index, Relaxed);
        assert!(!card.split().0.ready());
        assert_eq!(card.error(), Some(Violation::Index));
        let (mut card, kernel) = self::card();
        kernel.completion.u32(kernel.completion.layout.producer).store(index, Relaxed);
        card.tx.is_sending();
        assert_eq!(card.error(), Some(Violation::Index));
        assert!(!send(&mut card, &[1; 60]));
    }
}

#[test]
fn completions_of_what_was_not_sent_are_noticed() {
    let first = u64::from(RX_PLACES * FRAME_BYTES);
    for address in [first, 0, u64::MAX] {
        let (mut card, kernel) = card();
        kernel.completion.put(address, 0);
        assert!(!card.tx.is_sending());
        assert_eq!(card.error(), Some(Violation::Frame(address)));
    }
}

#[test]
fn layouts_that_do_not_fit_are_refused() {
    let kernel = FakeKernel::new(PLACES, 16);
    let good = kernel.rx.layout;
    let bad = [
        RingLayout { producer: 1, ..good },
        RingLayout { consumer: u32::MAX, ..good },
        RingLayout { flags: 192 + 256, ..good },
        RingLayout { entries: 32, ..good },
        RingLayout { entries: 15, ..good },
        RingLayout { entries: 0, ..good },
        RingLayout { entries_at: 196, ..good },
        RingLayout { entries_at: u32::MAX - 7, ..good },
    ];
    for layout in bad {
        assert!(Ring::of_descriptors(kernel.rx.shared(), layout).is_err(), "{layout:?}");
    }
    assert!(Ring::of_descriptors(kernel.rx.shared(), good).is_ok());
    for frame_bytes in [0, 1024, 2000, 3000] {
        let (parts, bell) = kernel.parts();
        assert!(XdpDevice::new(Parts { frame_bytes, ..parts }, bell).is_err());
    }
    let kernel = FakeKernel::new(3, 16);
    let (parts, bell) = kernel.parts();
    assert!(XdpDevice::new(parts, bell).is_err(), "a place for each direction is the least");
}

/// Whatever the kernel writes, nothing panics and no more than the shared memory is touched (which Miri sees).
#[test]
fn noise_in_the_rings_is_harmless() {
    let seed = 1;
    let mut random = fastrand::Rng::with_seed(seed);
    for run in 0..if cfg!(miri) { 20 } else { 2000 } {
        let (mut card, kernel) = card();
        for _ in 0..40 {
            let address = if random.bool() { random.u64(..) } else { random.u64(..2 * 16 * 2048) };
            match random.u8(..8) {
                0 => kernel.rx.put(address, random.u64(..2) << 32 | random.u64(..2200)),
                1 => kernel.completion.put(address, 0),
                2 => kernel.rx.u32(kernel.rx.layout.producer).store(random.u32(..), Relaxed),
                3 => kernel.tx.u32(kernel.tx.layout.consumer).store(random.u32(..), Relaxed),
                4 => drop(kernel.deliver(&[run as u8; 60])),
                5 => drop(receive(&mut card)),
                6 => drop(send(&mut card, &[3; 100])),
                _ => card.split().1.flush(),
            }
        }
    }
}
