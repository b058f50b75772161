//! Two Ethernet devices and the wire between them, which can lose, duplicate, delay, reorder and damage frames.

use super::offload;
use crate::random::Random;
use kayvee_platform::{
    Checksums, Completion, FrameDevice, FrameRx, FrameTx, MAX_FRAME_BYTES, MAX_LARGE_FRAME_BYTES, Offloads, Received,
};
use std::collections::{BTreeMap, VecDeque};

/// What a wire does to frames.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// Frames lost, per mille.
    pub loss_per_mille: usize,
    /// Frames delivered twice, per mille.
    pub duplication_per_mille: usize,
    /// Frames with one damaged bit, per mille.
    pub corruption_per_mille: usize,
    /// Frames whose payload is changed such that its checksum is still right, per mille: what no real wire does.
    pub forgery_per_mille: usize,
    /// Shortest way of a frame.
    pub min_delay_ns: u64,
    /// Longest way of a frame. Frames overtake each other where it exceeds the shortest.
    pub max_delay_ns: u64,
    /// What each direction has to pass on its way, if there is anything narrow.
    pub bottleneck: Option<Bottleneck>,
}

/// The narrowest part of a way, and what waits before it.
#[derive(Clone, Copy, Debug)]
pub struct Bottleneck {
    /// What it carries.
    pub bytes_per_s: u64,
    /// Frames for which its queue has no room are lost.
    pub queue_bytes: u64,
}

impl Faults {
    /// A wire as it should be: 50 µs, in order.
    pub const NONE: Faults = Faults {
        loss_per_mille: 0,
        duplication_per_mille: 0,
        corruption_per_mille: 0,
        forgery_per_mille: 0,
        min_delay_ns: 50_000,
        max_delay_ns: 50_000,
        bottleneck: None,
    };
    /// All faults at once, each often enough to meet in every run.
    pub const SEVERE: Faults = Faults {
        loss_per_mille: 50,
        duplication_per_mille: 30,
        corruption_per_mille: 20,
        forgery_per_mille: 0,
        min_delay_ns: 50_000,
        max_delay_ns: 5_000_000,
        bottleneck: None,
    };
}

/// One end of a wire: a device with a ring of `TX_FRAMES` frames to send.
pub struct End {
    mac: [u8; 6],
    max_frame_bytes: usize,
    checksums: Checksums,
    rx: Rx,
    tx: Tx,
}

/// Frames that an [`End`] can hold until the wire takes them.
const TX_FRAMES: usize = 64;

/// Bytes of a piece where an [`End`] gives frames in pieces.
const PIECE_BYTES: usize = 700;

/// What an [`End`] does for its station.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Offload {
    /// Nothing.
    #[default]
    None,
    /// It completes checksums and divides large frames; for what it receives it vouches if it is right.
    Divide,
    /// The same, but large frames go over the wire as they are, and are given in pieces: a link between two guests.
    Merge,
    /// It completes checksums, and divides nothing.
    Complete,
}

/// The receiving half of an [`End`].
#[derive(Default)]
pub struct Rx(VecDeque<Vec<u8>>, Offload);

/// The sending half of an [`End`]. It detects frames that are not announced with [`FrameTx::flush`].
#[derive(Default)]
pub struct Tx {
    unflushed: Vec<Vec<u8>>,
    sent: VecDeque<Vec<u8>>,
    offload: Offload,
    /// The largest frame that is sent as it is.
    max_frame_bytes: usize,
}

impl End {
    fn new(mac: [u8; 6], max_frame_bytes: usize) -> End {
        let tx = Tx { max_frame_bytes, ..Tx::default() };
        End { mac, max_frame_bytes, checksums: Checksums::Complete, rx: Rx::default(), tx }
    }

    /// Changes whether who sends to it may leave checksums undone.
    pub fn set_checksums(&mut self, checksums: Checksums) {
        self.checksums = checksums;
    }

    /// Changes what it does for its station.
    pub fn set_offload(&mut self, offload: Offload) {
        (self.rx.1, self.tx.offload) = (offload, offload);
    }

    /// Puts a frame before the device as if it had arrived.
    pub fn inject(&mut self, frame: Vec<u8>) {
        self.rx.0.push_back(frame);
    }

    /// Takes the next frame that has arrived, for a test that is a station itself.
    pub fn receive(&mut self) -> Option<Vec<u8>> {
        self.rx.0.pop_front()
    }

    /// Sends a frame, for a test that is a station itself.
    pub fn send(&mut self, frame: Vec<u8>) {
        self.tx.sent.push_back(frame);
    }

    /// Takes the frames that the device has sent.
    pub fn drain_sent(&mut self) -> impl Iterator<Item = Vec<u8>> + '_ {
        assert!(self.tx.unflushed.is_empty(), "frames were queued and the device was not told");
        self.tx.sent.drain(..)
    }
}

impl FrameDevice for End {
    type Rx<'a>
        = &'a mut Rx
    where
        Self: 'a;
    type Tx<'a>
        = &'a mut Tx
    where
        Self: 'a;

    fn mac(&self) -> [u8; 6] {
        self.mac
    }

    fn max_frame_bytes(&self) -> usize {
        self.max_frame_bytes
    }

    fn checksums(&self) -> Checksums {
        self.checksums
    }

    fn split(&mut self) -> (&mut Rx, &mut Tx) {
        (&mut self.rx, &mut self.tx)
    }
}

impl FrameRx for Rx {
    fn ready(&mut self) -> bool {
        !self.0.is_empty()
    }

    fn receive<R>(&mut self, consume: impl FnOnce(Received<'_>) -> R) -> Option<R> {
        let frame = self.0.pop_front()?;
        if matches!(self.1, Offload::None | Offload::Complete) {
            return Some(consume(frame.as_slice().into()));
        }
        let first = if self.1 == Offload::Merge { PIECE_BYTES.min(frame.len()) } else { frame.len() };
        let (head, rest) = frame.split_at(first);
        let rest: Vec<&[u8]> = rest.chunks(PIECE_BYTES).collect();
        Some(consume(Received { head, rest: &rest, is_checked: offload::is_right(&frame) }))
    }
}

impl FrameTx for Tx {
    fn ready(&mut self) -> bool {
        self.unflushed.len() + self.sent.len() < TX_FRAMES
    }

    fn transmit<R>(&mut self, len: usize, fill: impl FnOnce(&mut [u8]) -> R) -> Option<R> {
        if !self.ready() || len > self.max_frame_bytes {
            return None;
        }
        // What was in the buffer before must not matter.
        let mut frame = vec![0xa5; len];
        let result = fill(&mut frame);
        self.unflushed.push(frame);
        Some(result)
    }

    fn offloads(&self) -> Offloads {
        match self.offload {
            Offload::None => Offloads::default(),
            Offload::Complete => Offloads { checksum: true, large_frame_bytes: 0 },
            Offload::Divide | Offload::Merge => Offloads { checksum: true, large_frame_bytes: MAX_LARGE_FRAME_BYTES },
        }
    }

    fn room_bytes(&mut self) -> usize {
        // As in a real queue, what is there may be too little for a large frame.
        let free = TX_FRAMES.saturating_sub(self.unflushed.len() + self.sent.len());
        (free * self.max_frame_bytes).min(self.offloads().large_frame_bytes.max(self.max_frame_bytes))
    }

    fn transmit_offloaded(&mut self, len: usize, task: Completion, mut fill: impl FnMut(usize, &mut [u8])) -> bool {
        if len > self.room_bytes() {
            return false;
        }
        assert!(task.segment_bytes > 0 || len <= self.max_frame_bytes, "a large frame has to be divided");
        assert!(task.segment_bytes == 0 || self.offload != Offload::Complete, "nothing is divided here");
        let mut frame = vec![0xa5; len];
        let mut at = 0;
        while at < len {
            let end = (at + PIECE_BYTES).min(len);
            fill(at, &mut frame[at..end]);
            at = end;
        }
        offload::complete(&mut frame, task);
        match self.offload {
            Offload::Merge => self.unflushed.push(frame),
            _ => self.unflushed.extend(offload::divide(&frame, task)),
        }
        true
    }

    fn flush(&mut self) {
        self.sent.extend(self.unflushed.drain(..));
    }
}

/// A wire with its two ends and the frames on their way.
pub struct Wire {
    /// The end of the machine under test.
    pub server: End,
    /// The other end.
    pub client: End,
    faults: Faults,
    rng: Random,
    /// By time of arrival, then in the order of departure.
    in_flight: BTreeMap<(u64, u64), (Destination, Vec<u8>)>,
    frames: u64,
    /// Until when the bottleneck is taken, by [`Destination`].
    taken_until_ns: [u64; 2],
    /// Frames sent to the server, if they are recorded.
    recorded: Option<Vec<Vec<u8>>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Destination {
    Server,
    Client,
}

impl Wire {
    /// A wire whose faults are drawn from `seed`.
    pub fn new(faults: Faults, seed: u64) -> Wire {
        Wire::of_frames([MAX_FRAME_BYTES; 2], faults, seed)
    }

    /// The same with frames of up to so many bytes at the server's end, and at the client's.
    pub fn of_frames(max_frame_bytes: [usize; 2], faults: Faults, seed: u64) -> Wire {
        let [server_bytes, client_bytes] = max_frame_bytes;
        Wire {
            server: End::new([2, 0, 0, 0, 0, 1], server_bytes),
            client: End::new([2, 0, 0, 0, 0, 2], client_bytes),
            faults,
            rng: Random::new(seed),
            in_flight: BTreeMap::new(),
            frames: 0,
            taken_until_ns: [0; 2],
            recorded: None,
        }
    }

    /// Keeps a copy of each frame that is sent to the server from now on.
    pub fn record(&mut self) {
        self.recorded = Some(Vec::new());
    }

    /// The frames that were recorded.
    pub fn recorded(&self) -> &[Vec<u8>] {
        self.recorded.as_deref().unwrap_or(&[])
    }

    /// Takes what both ends have sent, and delivers what has arrived by `now_ns`.
    pub fn run(&mut self, now_ns: u64) {
        let to_client: Vec<_> = self.server.drain_sent().collect();
        let to_server: Vec<_> = self.client.drain_sent().collect();
        for frame in to_client {
            self.send(Destination::Client, frame, now_ns);
        }
        if let Some(recorded) = &mut self.recorded {
            recorded.extend(to_server.iter().cloned());
        }
        for frame in to_server {
            self.send(Destination::Server, frame, now_ns);
        }
        while let Some(entry) = self.in_flight.first_entry()
            && entry.key().0 <= now_ns
        {
            match entry.remove() {
                (Destination::Server, frame) => self.server.inject(frame),
                (Destination::Client, frame) => self.client.inject(frame),
            }
        }
    }

    /// When the next frame arrives.
    pub fn next_arrival_ns(&self) -> Option<u64> {
        self.in_flight.first_key_value().map(|(&(at_ns, _), _)| at_ns)
    }

    /// Changes the faults from now on.
    pub fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
    }

    fn send(&mut self, destination: Destination, mut frame: Vec<u8>, now_ns: u64) {
        if self.happens(self.faults.loss_per_mille) {
            return;
        }
        if self.happens(self.faults.duplication_per_mille) {
            self.schedule(destination, frame.clone(), now_ns);
        }
        if self.happens(self.faults.corruption_per_mille) {
            let bit = self.rng.below(frame.len() * 8);
            frame[bit / 8] ^= 1 << (bit % 8);
        }
        // Behind Ethernet, IP and TCP headers; the sum of 16-bit words does not depend on their order.
        let tcp = if frame.get(12) == Some(&0x86) { 54 } else { 34 };
        let data = tcp + frame.get(tcp + 12).map_or(20, |offset| usize::from(offset >> 4) * 4);
        if frame.len() > data + 4 && self.happens(self.faults.forgery_per_mille) {
            frame.swap(data, data + 2);
            frame.swap(data + 1, data + 3);
        }
        self.schedule(destination, frame, now_ns);
    }

    fn happens(&mut self, per_mille: usize) -> bool {
        self.rng.below(1000) < per_mille
    }

    fn schedule(&mut self, destination: Destination, frame: Vec<u8>, now_ns: u64) {
        let spread_ns = self.faults.max_delay_ns - self.faults.min_delay_ns;
        let delay_ns = self.faults.min_delay_ns + self.rng.below(spread_ns as usize + 1) as u64;
        let Some(passed_ns) = self.pass_bottleneck(destination, frame.len() as u64, now_ns) else { return };
        self.frames += 1;
        self.in_flight.insert((passed_ns + delay_ns, self.frames), (destination, frame));
    }

    /// When a frame has passed the bottleneck, unless its queue is full.
    fn pass_bottleneck(&mut self, destination: Destination, len: u64, now_ns: u64) -> Option<u64> {
        const NS_PER_S: u64 = 1_000_000_000;
        let Some(Bottleneck { bytes_per_s, queue_bytes }) = self.faults.bottleneck else { return Some(now_ns) };
        let taken_until_ns = &mut self.taken_until_ns[destination as usize];
        let begins_ns = now_ns.max(*taken_until_ns);
        if (begins_ns - now_ns) * bytes_per_s / NS_PER_S + len > queue_bytes {
            return None;
        }
        *taken_until_ns = begins_ns + len * NS_PER_S / bytes_per_s;
        Some(*taken_until_ns)
    }
}
