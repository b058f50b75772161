use super::*;
use crate::{
    fake::{Chain, FakeQueue, FakeTransport},
    transport::F_VERSION_1,
};
extern crate std;
use kayvee_platform::BlockBuffer;
use std::{collections::BTreeMap, vec, vec::Vec};

const SECTORS: u64 = 4096;

/// A configuration with these limits on segments and these blocks.
fn config(size_max: u32, seg_max: u32, block_bytes: u32, writeback: u8) -> Vec<u8> {
    let mut bytes = vec![0; 60];
    bytes[..8].copy_from_slice(&SECTORS.to_le_bytes());
    bytes[8..12].copy_from_slice(&size_max.to_le_bytes());
    bytes[12..16].copy_from_slice(&seg_max.to_le_bytes());
    bytes[20..24].copy_from_slice(&block_bytes.to_le_bytes());
    bytes[32] = writeback;
    bytes
}

const PLAIN: u64 = F_VERSION_1 | F_FLUSH;

fn transport(features: u64, config: &[u8]) -> FakeTransport {
    FakeTransport::new(features, &[64], config)
}

fn disk(features: u64, config: &[u8]) -> (BlkDevice<FakeTransport>, FakeDisk) {
    let device = BlkDevice::new(transport(features, config)).unwrap();
    assert_eq!(device.transport.status, 15);
    let fake = FakeDisk::new(device.transport.queue(0));
    (device, fake)
}

/// The device's side: a medium behind a cache that loses what is not flushed.
struct FakeDisk {
    queue: FakeQueue,
    taken: Vec<Chain>,
    /// Sectors as they are read, and as they are after a loss of power.
    seen: BTreeMap<u64, Vec<u8>>,
    stable: BTreeMap<u64, Vec<u8>>,
    /// Most data segments and most bytes of one that came.
    segments: usize,
    segment_bytes: u32,
    requests: u32,
    flushes: u32,
}

impl FakeDisk {
    fn new(queue: FakeQueue) -> FakeDisk {
        FakeDisk {
            queue,
            taken: Vec::new(),
            seen: BTreeMap::new(),
            stable: BTreeMap::new(),
            segments: 0,
            segment_bytes: 0,
            requests: 0,
            flushes: 0,
        }
    }

    fn take_requests(&mut self) -> usize {
        while let Some(chain) = self.queue.pop_available() {
            let data = &chain.segments[1..chain.segments.len() - 1];
            self.segments = self.segments.max(data.len());
            self.segment_bytes = data.iter().map(|(_, len, _)| *len).fold(self.segment_bytes, u32::max);
            self.requests += 1;
            self.taken.push(chain);
        }
        self.taken.len()
    }

    /// Does one of the requests that it has, and answers with this status.
    fn answer(&mut self, which: usize, status: u8) {
        let Chain { head, segments } = self.taken.remove(which);
        let header = FakeQueue::read_segment(segments[0]);
        let kind = u32::from_le_bytes(header[..4].try_into().unwrap());
        let mut sector = u64::from_le_bytes(header[8..16].try_into().unwrap());
        let (last, data) = segments[1..].split_last().unwrap();
        let mut written = 1;
        if status == STATUS_OK {
            match kind {
                TYPE_FLUSH => {
                    assert!(data.is_empty() && sector == 0);
                    self.stable = self.seen.clone();
                    self.flushes += 1;
                }
                TYPE_IN => {
                    for segment in data {
                        let sectors = u64::from(segment.1) / SECTOR_BYTES;
                        let bytes: Vec<u8> = (sector..sector + sectors)
                            .flat_map(|at| self.seen.get(&at).cloned().unwrap_or(vec![0; 512]))
                            .collect();
                        FakeQueue::write_segment(*segment, &bytes);
                        sector += sectors;
                        written += segment.1;
                    }
                }
                TYPE_OUT => {
                    for segment in data {
                        for bytes in FakeQueue::read_segment(*segment).chunks(512) {
                            self.seen.insert(sector, bytes.into());
                            sector += 1;
                        }
                    }
                }
                _ => panic!("a request of type {kind}"),
            }
            assert!(sector <= SECTORS, "a request beyond the end");
        }
        FakeQueue::write_segment(*last, &[status]);
        self.queue.push_used(head.into(), written);
    }

    fn answer_all(&mut self) {
        while self.take_requests() > 0 {
            self.answer(0, STATUS_OK);
        }
    }
}

fn transfer(token: u64, operation: Operation, at_bytes: u64, bytes: &[u8]) -> Transfer {
    let mut buffer = BlockBuffer::zeroed(bytes.len()).unwrap();
    buffer.copy_from_slice(bytes);
    Transfer { token, operation, at_bytes, buffer }
}

/// Does one transfer on a device that works.
fn run(device: &mut BlkDevice<FakeTransport>, fake: &mut FakeDisk, transfer: Transfer) -> Finished {
    device.start(transfer).unwrap();
    loop {
        fake.answer_all();
        if let Some(finished) = device.finished() {
            return finished;
        }
        assert!(device.is_busy());
    }
}

#[test]
fn what_is_written_is_read_back_and_stable_when_it_has_to_be() {
    let (mut device, mut fake) = disk(PLAIN, &config(0, 0, 0, 0));
    assert_eq!(device.cache, Cache::WriteBack);
    let geometry = Geometry { block_bytes: 512, size_bytes: SECTORS * 512, is_read_only: false };
    assert_eq!(device.geometry(), geometry);
    let one = vec![1; 4096];
    assert_eq!(run(&mut device, &mut fake, transfer(7, Operation::Write, 8192, &one)).result, Ok(()));
    assert!(fake.stable.is_empty() && fake.flushes == 0);
    let stable = run(&mut device, &mut fake, transfer(8, Operation::WriteStable, 512, &vec![2; 512]));
    assert_eq!((stable.token, stable.result, fake.flushes), (8, Ok(()), 1));
    assert_eq!((fake.stable.len(), &fake.stable[&1]), (9, &vec![2; 512]));
    assert_eq!(run(&mut device, &mut fake, transfer(9, Operation::Write, 0, &one)).result, Ok(()));
    assert_eq!(run(&mut device, &mut fake, transfer(10, Operation::Flush, 0, &[])).result, Ok(()));
    assert_eq!(fake.stable, fake.seen);
    let read = run(&mut device, &mut fake, transfer(11, Operation::Read, 4096, &vec![9; 8192]));
    assert_eq!(read.buffer[..], [vec![0; 4096], one].concat());
    assert!(!device.is_busy() && !device.is_ready());
}

#[test]
fn a_flush_of_a_write_comes_after_all_of_it() {
    let (mut device, mut fake) = disk(PLAIN | F_SIZE_MAX | F_SEG_MAX, &config(512, 2, 0, 0));
    device.start(transfer(1, Operation::WriteStable, 0, &vec![1; 4096])).unwrap();
    assert_eq!(fake.take_requests(), 4);
    for left in (0..4).rev() {
        assert_eq!(fake.flushes, 0);
        fake.answer(left, STATUS_OK);
        assert!(device.finished().is_none());
        assert_eq!(fake.take_requests(), if left == 0 { 1 } else { left });
    }
    fake.answer(0, STATUS_OK);
    assert_eq!((device.finished().unwrap().result, fake.flushes), (Ok(()), 1));
}

#[test]
fn a_device_that_writes_through_is_not_flushed() {
    for (features, writeback) in [(F_VERSION_1, 0), (PLAIN | F_CONFIG_WCE, 0)] {
        let (mut device, mut fake) = disk(features, &config(0, 0, 0, writeback));
        assert_ne!(device.cache, Cache::WriteBack);
        let written = run(&mut device, &mut fake, transfer(1, Operation::WriteStable, 0, &vec![1; 4096]));
        assert_eq!((written.result, fake.requests), (Ok(()), 1));
        assert_eq!(run(&mut device, &mut fake, transfer(2, Operation::Flush, 0, &[])).result, Ok(()));
        assert_eq!(fake.requests, 1);
    }
}

/// Writes or flushes, and tells how many requests that took and whether the cache was on.
fn requests_of(device: &mut BlkDevice<FakeTransport>, fake: &mut FakeDisk, operation: Operation) -> (u32, u8) {
    let before = fake.requests;
    let bytes: &[u8] = if operation == Operation::Flush { &[] } else { &[1; 512] };
    assert_eq!(run(device, fake, transfer(1, operation, 0, bytes)).result, Ok(()));
    (fake.requests - before, device.transport.config[CONFIG_WRITEBACK])
}

#[test]
fn a_write_cache_is_switched_off_for_stable_writes_and_on_for_many_plain_ones() {
    let (mut device, mut fake) = disk(PLAIN | F_CONFIG_WCE, &config(0, 0, 0, 1));
    // What an earlier driver has left is flushed.
    assert_eq!(requests_of(&mut device, &mut fake, Operation::Flush), (1, 1));
    for _ in 0..3 {
        assert_eq!(requests_of(&mut device, &mut fake, Operation::WriteStable), (1, 0));
        for _ in 1..PLAIN_WRITES {
            assert_eq!(requests_of(&mut device, &mut fake, Operation::Write), (1, 0));
        }
    }
    assert_eq!(requests_of(&mut device, &mut fake, Operation::WriteStable), (1, 0));
    for count in 1..100 {
        assert_eq!(requests_of(&mut device, &mut fake, Operation::Write), (1, u8::from(count >= PLAIN_WRITES)));
    }
    // A stable write that is under way keeps it off.
    device.start(transfer(2, Operation::WriteStable, 0, &[2; 512])).unwrap();
    for token in 3..20 {
        device.start(transfer(token, Operation::Write, 512, &[3; 512])).unwrap();
        assert_eq!(device.transport.config[CONFIG_WRITEBACK], 0);
    }
    fake.answer_all();
    assert_eq!(std::iter::from_fn(|| device.finished()).count(), 18);
    // Those were written with the cache on, so they need a flush also after it has been switched off.
    assert_eq!(requests_of(&mut device, &mut fake, Operation::WriteStable), (1, 0));
    assert_eq!(requests_of(&mut device, &mut fake, Operation::Flush), (1, 0));
}

#[test]
fn random_transfers_end_as_a_plain_memory_would() {
    for seed in 0..12 {
        std::println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let limits = config([0, 512, 1024, 65_536][random.usize(..4)], random.u32(1..20), 4096, 1);
        let features = PLAIN | F_BLK_SIZE | if limits[8..12] == [0; 4] { 0 } else { F_SIZE_MAX | F_SEG_MAX };
        let device = BlkDevice::new(FakeTransport::new(features, &[random.u16(3..70)], &limits));
        // A segment that is smaller than a block cannot hold one.
        let Ok(mut device) = device else {
            assert!(limits[8..12] == 512u32.to_le_bytes() || limits[8..12] == 1024u32.to_le_bytes());
            continue;
        };
        let mut fake = FakeDisk::new(device.transport.queue(0));
        let mut model = vec![0u8; SECTORS as usize * 512];
        let mut open: BTreeMap<u64, (u64, Operation, Vec<u8>)> = BTreeMap::new();
        for token in 0..400u64 {
            let (at, len) = (random.u64(..500) * 4096, 4096 * random.usize(1..12));
            let operation = [Operation::Read, Operation::Write, Operation::WriteStable, Operation::Flush];
            let operation = operation[random.usize(..4)];
            let overlaps = |(other, _, bytes): &(u64, Operation, Vec<u8>)| {
                at < other + bytes.len() as u64 && *other < at + len as u64
            };
            if !open.values().any(overlaps) {
                let bytes = if operation == Operation::Flush { vec![] } else { vec![token as u8; len] };
                if device.start(transfer(token, operation, at, &bytes)).is_ok() {
                    open.insert(token, (at, operation, bytes));
                } else {
                    assert_eq!(open.len(), TRANSFERS_MAX);
                }
            }
            while fake.take_requests() > 0 && random.bool() {
                let which = random.usize(..fake.taken.len());
                fake.answer(which, STATUS_OK);
            }
            while let Some(finished) = device.finished() {
                end(&mut open, &mut model, &fake, finished);
            }
        }
        while device.is_busy() {
            fake.answer_all();
            while let Some(finished) = device.finished() {
                end(&mut open, &mut model, &fake, finished);
            }
        }
        assert!(open.is_empty());
    }

    fn end(
        open: &mut BTreeMap<u64, (u64, Operation, Vec<u8>)>,
        model: &mut [u8],
        fake: &FakeDisk,
        Finished { token, buffer, result }: Finished,
    ) {
        assert_eq!(result, Ok(()));
        let (at, operation, bytes) = open.remove(&token).expect("a transfer ends once");
        let range = at as usize..at as usize + bytes.len();
        match operation {
            Operation::Read => assert_eq!(buffer[..], model[range]),
            Operation::Flush => {}
            Operation::Write | Operation::WriteStable => {
                model[range].copy_from_slice(&bytes);
                assert_eq!(buffer[..], bytes[..]);
            }
        }
        if operation == Operation::WriteStable {
            for sector in at / 512..(at + bytes.len() as u64) / 512 {
                assert_eq!(fake.stable[&sector], [token as u8; 512], "token {token} is stable");
            }
        }
    }
}

#[test]
fn limits_on_segments_are_kept() {
    for (size_max, seg_max, segments, bytes) in
        [(4096, 3, 3, 4096), (5000, 1, 1, 4608), (u32::MAX, u32::MAX, 1, 1 << 20), (16_384, 100, 16, 16_384)]
    {
        let (mut device, mut fake) = disk(PLAIN | F_SIZE_MAX | F_SEG_MAX, &config(size_max, seg_max, 0, 0));
        let written = run(&mut device, &mut fake, transfer(1, Operation::Write, 0, &vec![5; 1 << 20]));
        assert_eq!(written.result, Ok(()));
        assert_eq!((fake.segments, fake.segment_bytes), (segments, bytes));
        assert_eq!(fake.seen.len(), 2048);
    }
}

#[test]
fn many_transfers_are_under_way_at_once_and_more_are_given_back() {
    let (mut device, mut fake) = disk(PLAIN, &config(0, 0, 0, 0));
    for token in 0..TRANSFERS_MAX as u64 {
        device.start(transfer(token, Operation::Write, token * 512, &[token as u8; 512])).unwrap();
    }
    let back = device.start(transfer(99, Operation::Write, 0, &[0; 512])).unwrap_err();
    assert_eq!((back.token, back.buffer.len()), (99, 512));
    // 64 descriptors are 21 requests of three.
    assert_eq!(fake.take_requests(), 21);
    fake.answer(20, STATUS_OK);
    assert_eq!(device.finished().unwrap().token, 20);
    device.start(transfer(99, Operation::Write, 0, &[0; 512])).unwrap();
    fake.answer_all();
    let mut tokens = vec![];
    while device.is_busy() {
        fake.answer_all();
        tokens.extend(std::iter::from_fn(|| device.finished()).map(|finished| finished.token));
    }
    assert_eq!((tokens.len(), tokens.last()), (TRANSFERS_MAX, Some(&99)));
}

#[test]
fn impossible_transfers_are_refused_without_the_device() {
    let (mut device, mut fake) = disk(PLAIN | F_BLK_SIZE, &config(0, 0, 4096, 0));
    let end = SECTORS * 512;
    for (at, len) in [(end, 4096), (end - 4096, 8192), (512, 4096), (0, 512), (0, 0), (u64::MAX - 4095, 4096)] {
        for operation in [Operation::Read, Operation::Write, Operation::WriteStable] {
            device.start(transfer(1, operation, at, &vec![0; len])).unwrap();
            assert_eq!(device.finished().unwrap().result, Err(BlockError::Invalid), "{at} {len}");
        }
    }
    let (mut read_only, _) = disk(PLAIN | F_RO, &config(0, 0, 0, 0));
    assert!(read_only.geometry().is_read_only);
    read_only.start(transfer(1, Operation::Write, 0, &[0; 512])).unwrap();
    assert_eq!(read_only.finished().unwrap().result, Err(BlockError::Invalid));
    assert_eq!(fake.take_requests(), 0);
}

#[test]
fn failures_of_the_device_are_those_of_the_transfer() {
    let (mut device, mut fake) = disk(PLAIN | F_SIZE_MAX | F_SEG_MAX, &config(512, 1, 0, 0));
    for status in [1, STATUS_UNSUPPORTED, 3, STATUS_NONE] {
        for operation in [Operation::Read, Operation::Write, Operation::WriteStable] {
            for failing in [0, 7, 20] {
                // More requests than there are descriptors for: what is not begun when one fails is left.
                device.start(transfer(1, operation, 0, &vec![0; 512 * 30])).unwrap();
                let mut answered = 0;
                let finished = loop {
                    if fake.take_requests() > 0 {
                        fake.answer(0, if answered == failing { status } else { STATUS_OK });
                        answered += 1;
                    }
                    if let Some(finished) = device.finished() {
                        break finished;
                    }
                };
                assert_eq!(finished.result, Err(BlockError::Io));
                assert!(fake.take_requests() == 0 && !device.is_busy());
            }
        }
        device.start(transfer(1, Operation::Flush, 0, &[])).unwrap();
        fake.take_requests();
        fake.answer(0, status);
        assert_eq!(device.finished().unwrap().result, Err(BlockError::Io));
    }
    assert_eq!(fake.flushes, 0);
    assert_eq!(device.error, None);
}

#[test]
fn a_status_that_the_device_has_not_written_is_no_success() {
    let (mut device, mut fake) = disk(PLAIN, &config(0, 0, 0, 0));
    for (operation, written) in [(Operation::Write, 0), (Operation::Read, 0), (Operation::Read, 512)] {
        device.start(transfer(1, operation, 0, &[0; 512])).unwrap();
        fake.take_requests();
        let chain = fake.taken.pop().unwrap();
        // An old zero may stand in the status byte.
        FakeQueue::write_segment(*chain.segments.last().unwrap(), &[STATUS_OK]);
        fake.queue.push_used(chain.head.into(), written);
        assert_eq!(device.finished().unwrap().result, Err(BlockError::Io), "{operation:?} {written}");
    }
}

#[test]
fn a_hostile_device_is_cut_off_and_gives_every_buffer_back() {
    type Attack = fn(&mut FakeDisk);
    let attacks: [(Attack, QueueError); 4] = [
        (|fake| fake.queue.push_used(1_000_000, 1), QueueError::UnknownBuffer),
        (|fake| fake.queue.push_used(63, 1), QueueError::UnknownBuffer),
        (|fake| fake.queue.set_used_index(40), QueueError::IndexJump),
        (|fake| fake.queue.push_used(fake.taken[0].head.into(), 514), QueueError::Overrun),
    ];
    for (attack, error) in attacks {
        let (mut device, mut fake) = disk(PLAIN, &config(0, 0, 0, 0));
        for token in 0..3 {
            device.start(transfer(token, Operation::Read, 0, &[0; 512])).unwrap();
        }
        fake.take_requests();
        attack(&mut fake);
        let ended: Vec<_> = std::iter::from_fn(|| device.finished()).collect();
        assert_eq!(ended.len(), 3);
        assert!(ended.iter().all(|finished| finished.result == Err(BlockError::Io)));
        assert_eq!((device.error, device.transport.status), (Some(error), 0));
        device.start(transfer(9, Operation::Flush, 0, &[])).unwrap();
        assert_eq!(device.finished().unwrap().result, Err(BlockError::Io));
        assert!(!device.is_busy() && !device.is_ready());
    }
}

#[test]
fn interrupts_are_on_only_while_asked_for() {
    let (mut device, fake) = disk(PLAIN, &config(0, 0, 0, 0));
    assert!(!fake.queue.wants_interrupt());
    device.enable_interrupts();
    assert!(fake.queue.wants_interrupt() && device.transport.acknowledged == 1);
    device.disable_interrupts();
    assert!(!fake.queue.wants_interrupt());
}

#[test]
fn disks_that_cannot_work_are_refused() {
    let refuse = |transport| BlkDevice::new(transport).unwrap_err();
    let good = config(512, 1, 512, 0);
    assert_eq!(refuse(transport(F_FLUSH, &good)), DeviceError::Legacy);
    assert_eq!(refuse(FakeTransport::new(PLAIN, &[0], &good)), DeviceError::Malformed("queue"));
    assert_eq!(refuse(FakeTransport::new(PLAIN, &[2], &good)), DeviceError::Malformed("queue"));
    for block_bytes in [0, 1, 256, 513, 8192, u32::MAX] {
        let config = config(512, 1, block_bytes, 0);
        assert_eq!(refuse(transport(PLAIN | F_BLK_SIZE, &config)), DeviceError::Malformed("block size"));
    }
    for (size_max, seg_max) in [(0, 1), (511, 1), (512, 0)] {
        let transport = transport(PLAIN | F_SIZE_MAX | F_SEG_MAX, &config(size_max, seg_max, 512, 0));
        assert_eq!(refuse(transport), DeviceError::Malformed("limit on segments"));
    }
    assert_eq!(refuse(transport(PLAIN, &[0; 7])), DeviceError::Malformed("configuration"));
    assert_eq!(refuse(transport(PLAIN, &[0xff; 60])), DeviceError::Malformed("capacity"));
    let restless = transport(PLAIN, &good);
    restless.changes.set(u32::MAX);
    assert_eq!(refuse(restless), DeviceError::Malformed("configuration"));
    let settling = transport(PLAIN, &good);
    settling.changes.set(5);
    assert!(BlkDevice::new(settling).is_ok());
}
