//! The kernel's side of the rings, for tests: it keeps to the rules, or breaks those that a test names.

use crate::ring::{CONTINUES, HAS_METADATA};
use crate::{Doorbell, METADATA_BYTES, Parts, Relay, Ring, RingLayout, Rings, SharedMemory, Side};
use core::{
    ptr::NonNull,
    sync::atomic::{
        AtomicU32, AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
};
use kayvee_platform::Checksums;
extern crate std;
use alloc::{boxed::Box, rc::Rc, vec, vec::Vec};
use std::{cell::Cell, sync::Mutex};

pub const FRAME_BYTES: u32 = 2048;
const HEADROOM_BYTES: u64 = 256;
const LAYOUT: RingLayout = RingLayout { producer: 0, consumer: 64, flags: 128, entries_at: 192, entries: 0 };

/// A pointer that is only kept.
struct Kept(#[expect(dead_code, reason = "it is there to be reached")] NonNull<u64>);

// SAFETY: nobody uses the pointer.
unsafe impl Send for Kept {}

/// Memory that is never given back, as pages of a socket are not while it is used.
fn memory(bytes: usize) -> NonNull<u8> {
    /// Reachable, so that Miri does not take it for forgotten.
    static KEPT: Mutex<Vec<Kept>> = Mutex::new(Vec::new());
    let words = NonNull::from(Box::leak(vec![0u64; bytes.div_ceil(8)].into_boxed_slice()));
    KEPT.lock().unwrap().push(Kept(words.cast()));
    words.cast()
}

/// One ring as the kernel sees it.
pub struct FakeRing {
    start: NonNull<u8>,
    pub layout: RingLayout,
    entry_bytes: usize,
}

impl FakeRing {
    fn new(entries: u32, entry_bytes: usize) -> FakeRing {
        let layout = RingLayout { entries, ..LAYOUT };
        FakeRing { start: memory(192 + entries as usize * entry_bytes), layout, entry_bytes }
    }

    pub fn shared(&self) -> SharedMemory {
        let len = self.layout.entries_at as usize + self.layout.entries as usize * self.entry_bytes;
        // SAFETY: the memory is leaked, and used by this fake as the other side only.
        unsafe { SharedMemory::new(self.start, len) }
    }

    pub fn u32(&self, at: u32) -> &AtomicU32 {
        // SAFETY: the test names one of the layout's fields, which lie in the leaked memory, aligned.
        unsafe { AtomicU32::from_ptr(self.start.as_ptr().add(at as usize).cast()) }
    }

    fn word(&self, index: u32, word: usize) -> &AtomicU64 {
        let at = self.layout.entries_at as usize
            + (index & (self.layout.entries - 1)) as usize * self.entry_bytes
            + word * 8;
        // SAFETY: an entry of the ring, in the leaked memory, aligned.
        unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(at).cast()) }
    }

    pub fn take(&self) -> Option<(u64, u64)> {
        let (producer, consumer) = (self.u32(self.layout.producer), self.u32(self.layout.consumer));
        let index = consumer.load(Relaxed);
        if producer.load(Acquire) == index {
            return None;
        }
        let second = if self.entry_bytes == 16 { self.word(index, 1).load(Relaxed) } else { 0 };
        let entry = (self.word(index, 0).load(Relaxed), second);
        consumer.store(index.wrapping_add(1), Release);
        Some(entry)
    }

    pub fn put(&self, first: u64, second: u64) {
        let producer = self.u32(self.layout.producer);
        let index = producer.load(Relaxed);
        self.word(index, 0).store(first, Relaxed);
        if self.entry_bytes == 16 {
            self.word(index, 1).store(second, Relaxed);
        }
        producer.store(index.wrapping_add(1), Release);
    }
}

/// The kernel.
pub struct FakeKernel {
    frames: NonNull<u8>,
    pub fill: FakeRing,
    pub completion: FakeRing,
    pub rx: FakeRing,
    pub tx: FakeRing,
    places: u32,
    pub rings: Rc<Cell<u32>>,
    /// Bytes that the last ring was for.
    pub rung_bytes: Rc<Cell<usize>>,
    pub rests: Rc<Cell<u32>>,
}

/// Counts how often it is rung and rested at, and notes for how much.
#[derive(Debug)]
pub struct Bell {
    rings: Rc<Cell<u32>>,
    rung_bytes: Rc<Cell<usize>>,
    rests: Rc<Cell<u32>>,
}

impl Doorbell for Bell {
    fn ring(&mut self, bytes: usize) -> bool {
        self.rings.set(self.rings.get() + 1);
        self.rung_bytes.set(bytes);
        false
    }

    fn rest(&mut self) {
        self.rests.set(self.rests.get() + 1);
    }
}

impl FakeKernel {
    pub fn new(places: u32, entries: u32) -> FakeKernel {
        let kernel = FakeKernel {
            frames: memory((places * FRAME_BYTES) as usize),
            fill: FakeRing::new(entries, 8),
            completion: FakeRing::new(entries, 8),
            rx: FakeRing::new(entries, 16),
            tx: FakeRing::new(entries, 16),
            places,
            rings: Rc::default(),
            rung_bytes: Rc::default(),
            rests: Rc::default(),
        };
        kernel.tx.u32(kernel.tx.layout.flags).store(1, Relaxed);
        kernel
    }

    pub fn parts(&self) -> (Parts, Bell) {
        self.parts_with(1514)
    }

    /// Of a link with frames of so many bytes.
    pub fn parts_with(&self, max_frame_bytes: u32) -> (Parts, Bell) {
        // SAFETY: the memory is leaked, and used by this fake as the other side only.
        let frames = unsafe { SharedMemory::new(self.frames, (self.places * FRAME_BYTES) as usize) };
        let rings = Rings {
            fill: Ring::of_addresses(self.fill.shared(), self.fill.layout).unwrap(),
            completion: Ring::of_addresses(self.completion.shared(), self.completion.layout).unwrap(),
            rx: Ring::of_descriptors(self.rx.shared(), self.rx.layout).unwrap(),
            tx: Ring::of_descriptors(self.tx.shared(), self.tx.layout).unwrap(),
        };
        let mac = [2, 0, 0, 0, 0, 7];
        let parts =
            Parts { mac, checksums: Checksums::Partial, frames, frame_bytes: FRAME_BYTES, max_frame_bytes, rings };
        let (rings, rung_bytes, rests) = (self.rings.clone(), self.rung_bytes.clone(), self.rests.clone());
        (parts, Bell { rings, rung_bytes, rests })
    }

    /// A card with a relay before it, and the card's own rings for what it receives and sends.
    pub fn relayed_parts(&self, max_frame_bytes: u32) -> (Parts, Bell, Relay, [FakeRing; 2]) {
        let own = [&self.rx, &self.tx].map(|ring| FakeRing::new(ring.layout.entries, 16));
        let side = |[rx, tx]: [&FakeRing; 2]| {
            let [rx, tx] = [rx, tx].map(|ring| Ring::of_descriptors(ring.shared(), ring.layout).unwrap());
            Side { rx, tx }
        };
        let (mut parts, bell) = self.parts_with(max_frame_bytes);
        // SAFETY: the memory is leaked, and the relay makes no reference to it.
        let frames = unsafe { SharedMemory::new(self.frames, (self.places * FRAME_BYTES) as usize) };
        let kernel = side([&self.rx, &self.tx]);
        let relay = Relay::new(frames, FRAME_BYTES, parts.checksums, side([&own[0], &own[1]]), kernel);
        let Side { rx, tx } = side([&own[0], &own[1]]);
        (parts.rings.rx, parts.rings.tx) = (rx, tx);
        (parts, bell, relay, own)
    }

    /// Writes a frame into a place that was given for that. Returns false where there is none, and the frame is lost.
    pub fn deliver(&self, frame: &[u8]) -> bool {
        let Some((address, _)) = self.fill.take() else { return false };
        let at = address + HEADROOM_BYTES;
        // SAFETY: the place is the kernel's until its descriptor is in the ring, and holds headroom and a frame.
        unsafe {
            let to = self.frames.as_ptr().add(at as usize);
            core::ptr::copy_nonoverlapping(frame.as_ptr(), to, frame.len());
        }
        self.rx.put(at, frame.len() as u64);
        true
    }

    /// Does the same with a frame that lies in as many places as it needs.
    pub fn deliver_pieces(&self, frame: &[u8]) {
        let pieces = frame.chunks((u64::from(FRAME_BYTES) - HEADROOM_BYTES) as usize);
        let last = pieces.len() - 1;
        for (number, piece) in pieces.enumerate() {
            assert!(self.deliver(piece));
            if number < last {
                let index = self.rx.u32(self.rx.layout.producer).load(Relaxed).wrapping_sub(1);
                self.rx.word(index, 1).fetch_or(u64::from(CONTINUES) << 32, Relaxed);
            }
        }
    }

    /// Sends frames in pieces, and returns the metadata before each, if there is any, and its bytes.
    pub fn send_large(&self) -> Vec<(Option<[u8; 12]>, Vec<u8>)> {
        let (mut sent, mut goes_on) = (Vec::new(), false);
        while let Some((address, rest)) = self.tx.take() {
            let (len, options) = (rest as u32 as usize, (rest >> 32) as u32);
            assert!(len <= (FRAME_BYTES - METADATA_BYTES) as usize, "a piece lies in its place");
            // SAFETY: the place is the kernel's until it is in the completion ring; piece and metadata lie in it.
            let (piece, metadata) = unsafe {
                let at = self.frames.as_ptr().add(address as usize);
                let metadata = at.sub(METADATA_BYTES as usize).cast::<[u8; 12]>();
                (core::slice::from_raw_parts(at, len).to_vec(), metadata.read())
            };
            if !goes_on {
                sent.push(((options & HAS_METADATA != 0).then_some(metadata), Vec::new()));
            }
            sent.last_mut().unwrap().1.extend(piece);
            goes_on = options & CONTINUES != 0;
            self.completion.put(address, 0);
        }
        assert!(!goes_on, "frames are handed over whole");
        sent
    }

    /// Sends what is in the ring, and says so.
    pub fn send_all(&self) -> Vec<Vec<u8>> {
        let mut sent = Vec::new();
        while let Some((address, len)) = self.tx.take() {
            // SAFETY: the place is the kernel's until it is in the completion ring, and the frame lies in it.
            let frame = unsafe {
                core::slice::from_raw_parts(self.frames.as_ptr().add(address as usize), len as u32 as usize).to_vec()
            };
            sent.push(frame);
            self.completion.put(address, 0);
        }
        sent
    }
}
