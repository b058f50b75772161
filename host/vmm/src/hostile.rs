//! A guest that does what it likes: any bytes become writes to registers and memory, and notifications. Nothing of it may
//! panic, hang or reach beyond the guest's memory and its disk. Used by a target of `fuzz/` and by a seeded test.

use crate::{
    devices::{
        block::{Block, Choice, Worked},
        entropy::Source,
        net::{Backend, Card, Network, RX, TX},
    },
    memory::Memory,
    transport::{Device, Model},
};
use kayvee_files::Recorder;
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::{
    fs::File,
    io::{Read, Seek, SeekFrom, Write},
    os::unix::net::UnixStream,
    sync::Arc,
};
use vm_memory::{Bytes, GuestAddress};

/// Memory below a hole, and some above it.
const MEMORY: [(u64, usize); 2] = [(0, 256 << 10), (1 << 32, 64 << 10)];
const DISK_BYTES: u64 = 64 << 10;
/// The queue number `n` of a device has its parts from `n + 1` times this on.
const QUEUE_BYTES: u64 = 0x4000;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
const SIZE: u16 = 16;
/// The largest frame of a stream.
const FRAME_BYTES_MAX: usize = 1518;

/// A guest's driver of one queue, which keeps no rule.
pub struct Driver {
    memory: Arc<Memory>,
    base: u64,
    published: u16,
}

impl Driver {
    /// One for the queue of this number.
    pub fn new(memory: &Arc<Memory>, queue: u64) -> Driver {
        Driver { memory: memory.clone(), base: (queue + 1) * QUEUE_BYTES, published: 0 }
    }

    /// Tells the device where the queue is, and starts it.
    pub fn start<M: Model>(drivers: &[&Driver], device: &mut Device<M>, features: u64) {
        let mut set = |offset: u64, value: u64| device.write(offset, &(value as u32).to_le_bytes());
        set(0x70, 0);
        set(0x70, 3);
        for half in 0..2 {
            set(0x24, half);
            set(0x20, (features | 1 << 32) >> (32 * half) & 0xffff_ffff);
        }
        set(0x70, 11);
        for (queue, driver) in drivers.iter().enumerate() {
            set(0x30, queue as u64);
            set(0x38, SIZE.into());
            for (offset, address) in [(0x80, driver.base), (0x90, driver.base + AVAILABLE), (0xa0, driver.base + USED)]
            {
                set(offset, address);
                set(offset + 4, address >> 32);
            }
            set(0x44, 1);
        }
        set(0x70, 15);
    }

    fn put<T: vm_memory::ByteValued>(&self, at: u64, value: T) {
        let _ = self.memory.write_obj(value, GuestAddress(at));
    }

    /// Writes a descriptor.
    pub fn descriptor(&self, index: u16, address: u64, len: u32, flags: u16, next: u16) {
        let at = self.base + u64::from(index) * 16;
        self.put(at, address);
        self.put(at + 8, len);
        self.put(at + 12, flags);
        self.put(at + 14, next);
    }

    /// Makes a chain available.
    pub fn publish(&mut self, head: u16) {
        self.put(self.base + AVAILABLE + 4 + u64::from(self.published % SIZE) * 2, head);
        self.published = self.published.wrapping_add(1);
        self.put(self.base + AVAILABLE + 2, self.published);
    }

    /// What the device has given back: how much in all, and the last one's length.
    pub fn used(&self) -> (u16, u32) {
        let get = |at: u64| self.memory.read_obj::<u16>(GuestAddress(at)).expect("it is in memory");
        let index = get(self.base + USED + 2);
        let last = self.base + USED + 4 + u64::from(index.wrapping_sub(1) % SIZE) * 8;
        (index, self.memory.read_obj(GuestAddress(last + 4)).expect("it is in memory"))
    }
}

/// A machine's devices.
pub struct Devices {
    /// The guest's memory.
    pub memory: Arc<Memory>,
    /// The card, and the other end of its network.
    pub card: Device<Card>,
    /// Length in four bytes, then a frame.
    pub wire: UnixStream,
    /// Where the card's frames are recorded.
    pub record: File,
    /// The disk, and its file.
    pub disk: Device<Block>,
    /// What the disk writes to.
    pub file: File,
    /// The entropy device.
    pub entropy: Device<Source>,
}

impl Devices {
    /// All of them, fresh.
    pub fn new() -> Devices {
        let memory = Arc::new(Memory::from_ranges(&MEMORY.map(|(at, len)| (GuestAddress(at), len))).expect("memory"));
        let (own, wire) = UnixStream::pair().expect("sockets");
        wire.set_nonblocking(true).expect("a socket can");
        let backend = Backend::stream(own).expect("a stream");
        let file = File::from(memfd_create("disk", MFdFlags::MFD_CLOEXEC).expect("a file in memory"));
        file.set_len(DISK_BYTES).expect("a file grows");
        let disk = Block::new(file.try_clone().expect("a second descriptor"), DISK_BYTES, false, u64::MAX);
        let record = File::from(memfd_create("record", MFdFlags::MFD_CLOEXEC).expect("a file in memory"));
        let recorder = Recorder::begin(record.try_clone().expect("a second descriptor")).expect("a record");
        let network = Network { backend, mac: [2, 0, 0, 0, 0, 1], recorder: Some(recorder) };
        Devices {
            card: Device::new(Card::new(network), memory.clone()),
            disk: Device::new(disk, memory.clone()),
            entropy: Device::new(Source::open().expect("/dev/urandom"), memory.clone()),
            memory,
            wire,
            record,
            file,
        }
    }

    /// What the threads do after a notification.
    pub fn kick(&mut self) {
        self.card.carry(|card, queues, memory| card.receive(&mut queues[RX], memory));
        self.card.carry(|card, queues, memory| card.send(&mut queues[TX], memory));
        self.entropy.work(|source, queues, memory| source.answer(&mut queues[0], memory));
        for choice in [Choice::Quick, Choice::All] {
            // As many as a queue has: a guest that adds more while the disk works is not looked at here.
            for _ in 0..SIZE {
                if !matches!(self.work_disk(choice), Some(Worked::Done { .. })) {
                    break;
                }
            }
        }
    }

    fn work_disk(&mut self, choice: Choice) -> Option<Worked> {
        self.disk.work(|disk, queues, memory| disk.work(&mut queues[0], memory, choice))
    }

    /// Has a frame arrive.
    pub fn arrive(&mut self, frame: &[u8]) {
        // What finds no room is lost.
        let _ = self.wire.write_all(&[&(frame.len() as u32).to_be_bytes(), frame].concat());
    }
}

impl Default for Devices {
    fn default() -> Devices {
        Devices::new()
    }
}

/// Takes numbers from bytes; zeros where there are none left.
struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn next(&mut self, bytes: usize) -> u64 {
        let (now, later) = self.0.split_at(bytes.min(self.0.len()));
        self.0 = later;
        now.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    /// An address that is often one in memory.
    fn address(&mut self) -> u64 {
        match self.next(1) % 4 {
            0 => self.next(8),
            1 => (1 << 32) + self.next(2),
            _ => self.next(3) % (300 << 10),
        }
    }
}

/// Does what the bytes say.
pub fn guest(data: &[u8]) {
    let mut devices = Devices::new();
    // Queues of the card, the disk, the entropy device.
    let mut drivers: Vec<Driver> = (0..4).map(|queue| Driver::new(&devices.memory, queue)).collect();
    let mut numbers = Numbers(data);
    while !numbers.0.is_empty() {
        match numbers.next(1) % 8 {
            0 => {
                let (offset, value) = (numbers.next(2) % 0x200, numbers.next(4) as u32);
                write(&mut devices, numbers.next(1), offset, value);
            }
            1 => {
                let (address, value) = (numbers.address(), numbers.next(8));
                let _ = devices.memory.write_obj(value, GuestAddress(address));
            }
            2 => {
                let features = numbers.next(2);
                Driver::start(&[&drivers[0], &drivers[1]], &mut devices.card, features & 1 << 5);
                Driver::start(&[&drivers[2]], &mut devices.disk, features & 0xa44);
                Driver::start(&[&drivers[3]], &mut devices.entropy, 0);
                drivers.iter_mut().for_each(|driver| driver.published = 0);
            }
            3 | 4 => {
                let queue = numbers.next(1) as usize % drivers.len();
                let (index, address) = (numbers.next(1) as u16 % SIZE, numbers.address());
                let (len, flags, next) =
                    (numbers.next(2) as u32, numbers.next(1) as u16 % 8, numbers.next(1) as u16 % 20);
                let len = if len > 0xff00 { len << 16 } else { len };
                drivers[queue].descriptor(index, address, len, flags, next);
            }
            5 => drivers[numbers.next(1) as usize % 4].publish(numbers.next(1) as u16 % 20),
            6 => {
                let len = numbers.next(2) as usize % 1600;
                devices.arrive(&vec![0x5a; len]);
            }
            _ => devices.kick(),
        }
        let mut bytes = [0; 8];
        devices.card.read(numbers.next(1) * 2, &mut bytes[..4]);
        devices.disk.read(0x100 + numbers.next(1), &mut bytes);
    }
    devices.kick();
    // Nothing was written behind the disk's end, and what went out are whole frames.
    assert_eq!(devices.file.seek(SeekFrom::End(0)).expect("a file has an end"), DISK_BYTES);
    check_wire(&mut devices);
    assert!(devices.card.model().record_bytes() <= 2 * FRAME_BYTES_MAX, "more than a frame is kept");
}

fn write(devices: &mut Devices, device: u64, offset: u64, value: u32) {
    let bytes = value.to_le_bytes();
    match device % 3 {
        0 => devices.card.write(offset, &bytes),
        1 => devices.disk.write(offset, &bytes),
        _ => devices.entropy.write(offset, &bytes),
    }
}

fn check_wire(devices: &mut Devices) {
    let mut sent = Vec::new();
    // All that is there: the other end is still open.
    let _ = devices.wire.read_to_end(&mut sent);
    let mut rest = &sent[..];
    while let Some((len, frames)) = rest.split_first_chunk::<4>() {
        let len = u32::from_be_bytes(*len) as usize;
        assert!(len <= FRAME_BYTES_MAX, "a frame of {len} bytes");
        rest = frames.get(len..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEXT: u16 = 1;
    const WRITE: u16 = 2;

    #[test]
    fn any_bytes_are_a_guest_that_does_no_harm() {
        let seed = std::env::var("KAYVEE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
        let mut random = fastrand::Rng::with_seed(seed);
        for run in 0..600 {
            let mut bytes = vec![0; random.usize(1..2_000)];
            random.fill(&mut bytes);
            // Mostly with devices that have been started.
            bytes[0] = if random.u8(..) < 200 { 2 } else { bytes[0] };
            let result = std::panic::catch_unwind(|| guest(&bytes));
            assert!(result.is_ok(), "run {run} of seed {seed}: {bytes:?}");
        }
    }

    /// A request to the disk: header at 0x20000, data at 0x21000, status at 0x22000.
    fn disk_request(devices: &mut Devices, driver: &mut Driver, kind: u32, sector: u64, data: u32, flags: u16) -> u8 {
        let at = |address| GuestAddress(address);
        devices.memory.write_obj([kind, 0, sector as u32, (sector >> 32) as u32], at(0x2_0000)).unwrap();
        devices.memory.write_obj(0xeeu8, at(0x2_2000)).unwrap();
        driver.descriptor(0, 0x2_0000, 16, NEXT, 1);
        driver.descriptor(1, 0x2_1000, data, NEXT | flags, 2);
        driver.descriptor(2, 0x2_2000, 1, WRITE, 0);
        if data == 0 {
            driver.descriptor(0, 0x2_0000, 16, NEXT, 2);
        }
        driver.publish(0);
        devices.kick();
        devices.memory.read_obj(at(0x2_2000)).unwrap()
    }

    /// Publishes a write of 4 KiB at this sector.
    fn publish_write(devices: &mut Devices, driver: &mut Driver, sector: u32) {
        devices.memory.write_obj([1u32, 0, sector, 0], GuestAddress(0x2_0000)).unwrap();
        driver.descriptor(0, 0x2_0000, 16, NEXT, 1);
        driver.descriptor(1, 0x2_1000, 4096, NEXT, 2);
        driver.descriptor(2, 0x2_2000, 1, WRITE, 0);
        driver.publish(0);
    }

    #[test]
    fn what_was_never_written_is_left_to_the_thread_that_writes_ahead() {
        let mut devices = Devices::new();
        let mut driver = Driver::new(&devices.memory, 2);
        Driver::start(&[&driver], &mut devices.disk, 1 << 9 | 1 << 11);
        devices.disk.write(0x120, &[0]);
        devices.disk.model_mut().set_written(8192);
        publish_write(&mut devices, &mut driver, 8);
        assert!(matches!(devices.work_disk(Choice::Quick), Some(Worked::Done { .. })));
        publish_write(&mut devices, &mut driver, 16);
        assert_eq!(devices.work_disk(Choice::Quick), Some(Worked::Left));
        assert_eq!(devices.disk.model().reached(), (8192, 8192));
        assert!(matches!(devices.work_disk(Choice::All), Some(Worked::Done { .. })));
        assert_eq!(devices.disk.model().reached(), (12_288, 12_288), "zeros must not follow there");
        publish_write(&mut devices, &mut driver, 16);
        assert!(matches!(devices.work_disk(Choice::Quick), Some(Worked::Done { .. })));
        // A write behind the end is none.
        publish_write(&mut devices, &mut driver, u32::MAX);
        assert!(matches!(devices.work_disk(Choice::All), Some(Worked::Done { .. })));
        assert_eq!(devices.disk.model().reached(), (12_288, 12_288));
    }

    #[test]
    fn only_short_stable_writes_are_carried_out_in_the_exit() {
        let mut devices = Devices::new();
        let mut driver = Driver::new(&devices.memory, 2);
        Driver::start(&[&driver], &mut devices.disk, 1 << 9 | 1 << 11);
        assert_eq!(devices.work_disk(Choice::Quick), Some(Worked::Left), "the write cache is on");
        devices.disk.write(0x120, &[0]);
        assert_eq!(devices.work_disk(Choice::Quick), Some(Worked::Nothing));
        publish_write(&mut devices, &mut driver, 8);
        assert!(matches!(devices.work_disk(Choice::Quick), Some(Worked::Done { .. })));
        assert_eq!(devices.memory.read_obj::<u8>(GuestAddress(0x2_2000)).unwrap(), 0);
        let (long, status) = (300 << 10, GuestAddress(0x2_2000));
        for (kind, data, flags, why) in [(0, 512, WRITE, "it reads"), (1, long, 0, "it is long")] {
            devices.memory.write_obj([kind, 0u32, 0, 0], GuestAddress(0x2_0000)).unwrap();
            devices.memory.write_obj(0xeeu8, status).unwrap();
            driver.descriptor(0, 0x2_0000, 16, NEXT, 1);
            let pieces = u32::div_ceil(data, 64 << 10) as u16;
            for piece in 1..=pieces {
                driver.descriptor(piece, 0x0000, data.min(64 << 10), NEXT | flags, piece + 1);
            }
            driver.descriptor(pieces + 1, 0x2_2000, 1, WRITE, 0);
            driver.publish(0);
            assert_eq!(devices.work_disk(Choice::Quick), Some(Worked::Left), "{why}");
            assert_eq!(devices.memory.read_obj::<u8>(status).unwrap(), 0xee, "{why}");
            // And its thread finds it where it was.
            assert!(matches!(devices.work_disk(Choice::All), Some(Worked::Done { .. })), "{why}");
            assert_ne!(devices.memory.read_obj::<u8>(status).unwrap(), 0xee, "{why}");
        }
    }

    #[test]
    fn a_disk_reads_what_was_written_and_refuses_what_lies_beyond_its_end() {
        let mut devices = Devices::new();
        let mut driver = Driver::new(&devices.memory, 2);
        Driver::start(&[&driver], &mut devices.disk, 1 << 9 | 1 << 11);
        for writes_back in [1, 0] {
            devices.disk.write(0x120, &[writes_back]);
            devices.memory.write_slice(&[writes_back + 7; 4096], GuestAddress(0x2_1000)).unwrap();
            assert_eq!(disk_request(&mut devices, &mut driver, 1, 120, 4096, 0), 0);
            devices.memory.write_slice(&[0; 4096], GuestAddress(0x2_1000)).unwrap();
            assert_eq!(disk_request(&mut devices, &mut driver, 0, 120, 4096, WRITE), 0);
            assert_eq!(driver.used().1, 4097);
            let mut read = [0; 4096];
            devices.memory.read_slice(&mut read, GuestAddress(0x2_1000)).unwrap();
            assert_eq!(read, [writes_back + 7; 4096]);
        }
        assert_eq!(disk_request(&mut devices, &mut driver, 4, 0, 0, 0), 0, "a flush");
        for sector in [121, 128, u64::MAX, u64::MAX / 512] {
            assert_eq!(disk_request(&mut devices, &mut driver, 1, sector, 4096, 0), 1, "sector {sector}");
        }
        assert_eq!(disk_request(&mut devices, &mut driver, 1, 0, 100, 0), 1, "no whole sectors");
        assert_eq!(disk_request(&mut devices, &mut driver, 77, 0, 0, 0), 2, "no such request");
        assert!(devices.disk.is_running());
        // A buffer of the wrong kind ends it, and a reset begins anew.
        assert_eq!(disk_request(&mut devices, &mut driver, 0, 0, 512, 0), 0xee);
        assert!(!devices.disk.is_running());
        let mut status = [0; 4];
        devices.disk.read(0x70, &mut status);
        assert_eq!(status[0] & 64, 64, "it needs a reset");
        let mut driver = Driver::new(&devices.memory, 2);
        Driver::start(&[&driver], &mut devices.disk, 0);
        devices.memory.write_obj(0u64, GuestAddress(driver.base + USED)).unwrap();
        devices.memory.write_obj(0u64, GuestAddress(driver.base + AVAILABLE)).unwrap();
        assert_eq!(disk_request(&mut devices, &mut driver, 0, 0, 512, WRITE), 0);
    }

    #[test]
    fn frames_come_and_go_whole_and_wait_for_buffers() {
        let mut devices = Devices::new();
        let mut rx = Driver::new(&devices.memory, 0);
        let mut tx = Driver::new(&devices.memory, 1);
        Driver::start(&[&rx, &tx], &mut devices.card, 1 << 5);
        devices.arrive(&[7; 60]);
        devices.kick();
        assert_eq!(rx.used().0, 0, "there is no buffer");
        rx.descriptor(0, 0x3_0000, 1536, WRITE, 0);
        rx.publish(0);
        devices.kick();
        assert_eq!(rx.used(), (1, 72));
        let mut frame = [0; 72];
        devices.memory.read_slice(&mut frame, GuestAddress(0x3_0000)).unwrap();
        assert_eq!(frame, [[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0].as_slice(), &[7; 60]].concat()[..]);
        // Header and frame in three pieces.
        devices.memory.write_slice(&[9; 100], GuestAddress(0x3_1000)).unwrap();
        tx.descriptor(0, 0x3_1000, 5, NEXT, 1);
        tx.descriptor(1, 0x3_1000, 17, NEXT, 2);
        tx.descriptor(2, 0x3_1000, 50, 0, 0);
        tx.publish(0);
        devices.kick();
        let mut sent = [0; 64];
        assert_eq!(devices.wire.read(&mut sent).unwrap(), 64);
        assert_eq!(sent, [[0, 0, 0, 60].as_slice(), &[9; 60]].concat()[..]);
        assert_eq!(tx.used().0, 1);
    }

    #[test]
    fn a_record_takes_what_a_frame_has_and_not_what_was_left_for_it() {
        let mut devices = Devices::new();
        let (mut rx, mut tx) = (Driver::new(&devices.memory, 0), Driver::new(&devices.memory, 1));
        Driver::start(&[&rx, &tx], &mut devices.card, 1 << 5);
        // All memory, again and again.
        for index in 0..SIZE {
            let flags = if index + 1 < SIZE { WRITE | NEXT } else { WRITE };
            rx.descriptor(index, 0x3_0000, 0x1_0000, flags, index + 1);
        }
        rx.publish(0);
        devices.arrive(&[7; 60]);
        devices.memory.write_slice(&[9; 100], GuestAddress(1 << 32)).unwrap();
        tx.descriptor(0, 1 << 32, 12 + 70, 0, 0);
        tx.publish(0);
        devices.kick();
        assert_eq!((rx.used(), tx.used().0), ((1, 72), 1));
        assert!(devices.card.model().record_bytes() <= 2 * FRAME_BYTES_MAX);
        let mut record = Vec::new();
        devices.record.rewind().unwrap();
        devices.record.read_to_end(&mut record).unwrap();
        let frames: [&[u8]; 2] = [&record[24 + 16..][..60], &record[24 + 16 + 60 + 16..]];
        assert_eq!(frames, [&[7; 60][..], &[9; 70]]);
    }

    #[test]
    fn a_card_that_was_given_nonsense_stops() {
        for (address, len, flags) in [
            (0x4_0000, 100, 0),
            (0x3_fff0, 100, 0),
            (u64::MAX - 5, 100, 0),
            (0x3_0000, 11, 0),
            (0x3_0000, 12 + 1519, 0),
            (0x3_0000, 100, WRITE),
        ] {
            let mut devices = Devices::new();
            let (rx, mut tx) = (Driver::new(&devices.memory, 0), Driver::new(&devices.memory, 1));
            Driver::start(&[&rx, &tx], &mut devices.card, 1 << 5);
            tx.descriptor(0, address, len, flags, 0);
            tx.publish(0);
            devices.kick();
            assert!(!devices.card.is_running(), "{address:#x}, {len} bytes, {flags}");
            assert!(devices.wire.read(&mut [0; 10]).is_err(), "nothing was sent");
        }
    }

    /// The thread that looks after the card would be told for ever that there is room for them.
    #[test]
    fn frames_that_a_card_has_taken_go_out_though_its_driver_breaks_the_rules() {
        let mut devices = Devices::new();
        let (rx, mut tx) = (Driver::new(&devices.memory, 0), Driver::new(&devices.memory, 1));
        Driver::start(&[&rx, &tx], &mut devices.card, 1 << 5);
        tx.descriptor(0, 0x3_0000, 12 + 1518, 0, 0);
        tx.descriptor(1, 0x4_0000, 100, 0, 0);
        let mut frames = 0;
        while !devices.card.model().interest().1 {
            tx.publish(0);
            devices.kick();
            frames += 1;
        }
        tx.publish(0);
        tx.publish(1);
        devices.kick();
        assert!(!devices.card.is_running());
        assert_eq!(devices.card.model().interest(), (false, true), "the other end has no room");
        let mut sent = Vec::new();
        for _ in 0..10 {
            assert!(devices.wire.read_to_end(&mut sent).is_err(), "the card is still there");
            devices.kick();
        }
        assert_eq!(devices.card.model().interest(), (false, false));
        assert_eq!(sent.len(), (frames + 1) * (4 + 1518));
    }

    #[test]
    fn entropy_is_given_as_far_as_there_is_room() {
        let mut devices = Devices::new();
        let mut driver = Driver::new(&devices.memory, 3);
        Driver::start(&[&driver], &mut devices.entropy, 0);
        for (number, (len, given)) in [(64, 64), (1, 1), (5_000, 256)].into_iter().enumerate() {
            driver.descriptor(0, 0x2_0000, len, WRITE, 0);
            driver.publish(0);
            devices.kick();
            assert_eq!(driver.used(), (number as u16 + 1, given));
        }
    }
}
