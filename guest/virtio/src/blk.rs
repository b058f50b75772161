//! The block device (virtio 1.2 §5.2).
//!
//! A transfer becomes one request, or several where the device takes only small ones, and one more where stable storage
//! takes a flush. The device reads and writes the transfer's own buffer: a header before and a status byte behind it are
//! all that the driver adds. Interrupts are off but while the machine sleeps.

use crate::{
    DeviceError,
    queue::{Access, Interrupts, Queue, QueueError, Segment, Used},
    transport::{self, QueueInterrupt, Transport},
};
use alloc::{
    alloc::{Layout, alloc_zeroed},
    collections::VecDeque,
    vec::Vec,
};
use core::ptr::{read_volatile, write_volatile};
use kayvee_platform::{BlockError, Finished, Geometry, Operation, Transfer};

// Features, §5.2.3.
const F_SIZE_MAX: u64 = 1 << 1;
const F_SEG_MAX: u64 = 1 << 2;
const F_RO: u64 = 1 << 5;
const F_BLK_SIZE: u64 = 1 << 6;
const F_FLUSH: u64 = 1 << 9;
const F_CONFIG_WCE: u64 = 1 << 11;

// The configuration, §5.2.4.
const CONFIG_CAPACITY: usize = 0;
const CONFIG_SIZE_MAX: usize = 8;
const CONFIG_SEG_MAX: usize = 12;
const CONFIG_BLK_SIZE: usize = 20;
const CONFIG_WRITEBACK: usize = 32;

// Types and statuses of requests, §5.2.6.
const TYPE_IN: u32 = 0;
const TYPE_OUT: u32 = 1;
const TYPE_FLUSH: u32 = 4;
const STATUS_OK: u8 = 0;
const STATUS_UNSUPPORTED: u8 = 2;
/// What stands in the status byte until the device has written it: no status of the specification.
const STATUS_NONE: u8 = 0xff;

/// The unit of places on every device, whatever its blocks, §5.2.6.
const SECTOR_BYTES: u64 = 512;
const BLOCK_BYTES_MAX: u32 = 4096;

/// Transfers that the driver takes at a time.
const TRANSFERS_MAX: usize = 32;
/// Most descriptors that the queue needs: each transfer's header, one segment and status byte, all under way at once.
const QUEUE_SIZE_MAX: u16 = 128;
/// Segments of one request beside header and status.
const SEGMENTS_MAX: usize = 16;
/// Bytes of one request, and of one segment where the device names no smaller number.
const REQUEST_BYTES_MAX: usize = 1 << 30;
const SEGMENT_BYTES_MAX: u32 = REQUEST_BYTES_MAX as u32;
/// Looks at a configuration that changes meanwhile.
const CONFIG_READS_MAX: u32 = 16;

const _: () = assert!(TRANSFERS_MAX * 3 <= QUEUE_SIZE_MAX as usize);

/// What the device reads before and writes behind a request's data, §5.2.6: its type, 4 bytes of no use, the sector; then
/// the status.
#[repr(C, align(32))]
struct Frame {
    kind: u32,
    reserved: u32,
    sector: u64,
    status: u8,
}

const HEADER_BYTES: u32 = 16;

/// Frames in memory for ever, each belonging to the descriptor of the same number, which begins its request.
#[derive(Debug)]
struct Frames {
    memory: *mut Frame,
    count: u16,
}

impl Frames {
    fn allocate(count: u16) -> Result<Frames, DeviceError> {
        let layout = Layout::array::<Frame>(count.into()).map_err(|_| DeviceError::OutOfMemory)?;
        // SAFETY: the layout is not empty, as a queue has descriptors.
        let memory: *mut Frame = unsafe { alloc_zeroed(layout) }.cast();
        if memory.is_null() { Err(DeviceError::OutOfMemory) } else { Ok(Frames { memory, count }) }
    }

    fn pointer(&self, index: u16) -> *mut Frame {
        assert!(index < self.count, "a descriptor's number is below the queue's size");
        // SAFETY: the result lies inside of the memory.
        unsafe { self.memory.add(index.into()) }
    }

    /// Writes the frame of a request, and returns the segments around its data.
    fn prepare(&mut self, index: u16, kind: u32, sector: u64) -> (Segment, Segment) {
        let frame = self.pointer(index);
        // SAFETY: the frame lies in the memory, which lives for ever. Volatile, because the device will read it.
        unsafe {
            write_volatile(
                frame,
                Frame { kind: kind.to_le(), reserved: 0, sector: sector.to_le(), status: STATUS_NONE },
            )
        };
        let status_at = frame as u64 + core::mem::offset_of!(Frame, status) as u64;
        (
            Segment { address: frame as u64, len: HEADER_BYTES, access: Access::DeviceReads },
            Segment { address: status_at, len: 1, access: Access::DeviceWrites },
        )
    }

    fn status(&self, index: u16) -> u8 {
        // SAFETY: the frame lies in the memory. Volatile, because the device has written it.
        unsafe { read_volatile(&raw const (*self.pointer(index)).status) }
    }
}

/// What brings writes to stable storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cache {
    /// Nothing: a write that is finished is stable.
    WriteThrough,
    /// A flush.
    WriteBack,
}

/// Plain writes one after the other with which the write cache is switched on again.
const PLAIN_WRITES: u32 = 16;

/// A write cache that the driver may switch off and on, §5.2.5.
///
/// Without it a stable write is one request instead of a write and then a flush: half as long. With it a plain write does
/// not wait for the medium.
#[derive(Debug)]
struct Switch {
    /// Plain writes since the last stable one.
    plain_writes: u32,
}

/// A transfer that is under way.
#[derive(Debug)]
struct Job {
    transfer: Transfer,
    /// Bytes of its buffer that are or were the device's.
    started_bytes: usize,
    /// Requests that the device has.
    requests: u16,
    result: Result<(), BlockError>,
    /// Whether the flush that the transfer needs is still to be asked for.
    needs_flush: bool,
}

impl Job {
    fn data_bytes(&self) -> usize {
        if self.transfer.operation == Operation::Flush { 0 } else { self.transfer.buffer.len() }
    }
}

/// A request that the device has: whose it is, and how many bytes it has to write.
#[derive(Clone, Copy, Debug)]
struct Request {
    job: u8,
    read_bytes: u32,
}

/// A disk.
#[derive(Debug)]
pub struct BlkDevice<T: Transport> {
    transport: T,
    geometry: Geometry,
    cache: Cache,
    switch: Option<Switch>,
    /// Whether there were writes that only a flush makes stable.
    is_unflushed: bool,
    segments_max: usize,
    segment_bytes_max: u32,
    queue: Queue,
    frames: Frames,
    /// By the number of the first descriptor.
    requests: Vec<Request>,
    jobs: Vec<Option<Job>>,
    /// Jobs that have something to ask of the device, in their order.
    waiting: VecDeque<u8>,
    ended: VecDeque<Finished>,
    error: Option<QueueError>,
}

impl<T: Transport> BlkDevice<T> {
    /// Starts the disk.
    pub fn new(mut transport: T) -> Result<BlkDevice<T>, DeviceError> {
        let switchable = F_FLUSH | F_CONFIG_WCE;
        let wanted = F_SIZE_MAX | F_SEG_MAX | F_RO | F_BLK_SIZE | F_FLUSH | F_CONFIG_WCE;
        let features = transport::negotiate(&mut transport, 0, wanted)?;
        let config = Config::read(&transport, features)?;
        let queue = Queue::new(&mut transport, 0, QUEUE_SIZE_MAX, QueueInterrupt::Device)?;
        // Header and status, and at least one segment between them.
        let room = usize::from(queue.size()).checked_sub(2).filter(|room| *room > 0);
        let segments_max = room.ok_or(DeviceError::Malformed("queue"))?.min(config.segments_max);
        let frames = Frames::allocate(queue.size())?;
        let (mut requests, mut jobs) = (Vec::new(), Vec::new());
        let (mut waiting, mut ended) = (VecDeque::new(), VecDeque::new());
        let allocated = requests.try_reserve_exact(queue.size().into()).is_ok()
            && jobs.try_reserve_exact(TRANSFERS_MAX).is_ok()
            && waiting.try_reserve_exact(TRANSFERS_MAX).is_ok()
            && ended.try_reserve_exact(TRANSFERS_MAX).is_ok();
        if !allocated {
            return Err(DeviceError::OutOfMemory);
        }
        requests.resize(queue.size().into(), Request { job: 0, read_bytes: 0 });
        jobs.resize_with(TRANSFERS_MAX, || None);
        transport::start(&mut transport);
        Ok(BlkDevice {
            transport,
            geometry: config.geometry,
            cache: config.cache,
            // A device without FLUSH could not be told to flush what was written while the cache was on.
            switch: (features & switchable == switchable && config.cache == Cache::WriteBack)
                .then_some(Switch { plain_writes: 0 }),
            // An earlier driver may have left some.
            is_unflushed: config.cache == Cache::WriteBack,
            segments_max,
            segment_bytes_max: config.segment_bytes_max,
            queue,
            frames,
            requests,
            jobs,
            waiting,
            ended,
            error: None,
        })
    }

    /// What it is like.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Takes a transfer, unless there are too many already.
    pub fn start(&mut self, transfer: Transfer) -> Result<(), Transfer> {
        let unfinished = self.jobs.iter().flatten().count() + self.ended.len();
        let slot = self.jobs.iter().position(Option::is_none);
        let Some(slot) = slot.filter(|_| unfinished < TRANSFERS_MAX) else { return Err(transfer) };
        let refused = match self.error {
            Some(_) => Some(BlockError::Io),
            None => (!self.geometry.allows(&transfer)).then_some(BlockError::Invalid),
        };
        let Transfer { token, operation, .. } = transfer;
        if let Some(error) = refused {
            self.ended.push_back(Finished { token, buffer: transfer.buffer, result: Err(error) });
            return Ok(());
        }
        self.choose_cache(operation);
        let needs_flush = match operation {
            Operation::Read => false,
            Operation::Write => {
                self.is_unflushed |= self.cache == Cache::WriteBack;
                false
            }
            Operation::WriteStable => self.cache == Cache::WriteBack,
            Operation::Flush => self.is_unflushed,
        };
        let job = Job { transfer, started_bytes: 0, requests: 0, result: Ok(()), needs_flush };
        self.jobs[slot] = Some(job);
        self.waiting.push_back(slot as u8);
        self.submit();
        Ok(())
    }

    /// Switches the write cache as suits what is written now.
    fn choose_cache(&mut self, operation: Operation) {
        let Some(switch) = &mut self.switch else { return };
        let wanted = match operation {
            Operation::WriteStable => {
                switch.plain_writes = 0;
                Cache::WriteThrough
            }
            Operation::Write => {
                switch.plain_writes += 1;
                // The device looks at the switch when it comes to a request, not when that was made.
                let is_stable = |job: &Job| job.transfer.operation == Operation::WriteStable;
                if switch.plain_writes < PLAIN_WRITES || self.jobs.iter().flatten().any(is_stable) {
                    return;
                }
                Cache::WriteBack
            }
            Operation::Read | Operation::Flush => return,
        };
        if self.cache != wanted {
            self.cache = wanted;
            // The field was read at the start, so it is there.
            let _ = self.transport.set_config_u8(CONFIG_WRITEBACK, (wanted == Cache::WriteBack).into());
        }
    }

    /// The next transfer that has ended.
    pub fn finished(&mut self) -> Option<Finished> {
        if self.ended.is_empty() {
            self.collect();
        }
        self.ended.pop_front()
    }

    /// Whether [`finished`](Self::finished) may have something to give.
    #[inline]
    pub fn is_ready(&self) -> bool {
        !self.ended.is_empty() || self.error.is_none() && self.queue.has_used()
    }

    /// Whether transfers are under way.
    pub fn is_busy(&self) -> bool {
        self.jobs.iter().any(Option::is_some)
    }

    /// Lets the end of a request end a sleep. To be followed by a look for one that has ended, then by the sleep, and that
    /// by [`disable_interrupts`](Self::disable_interrupts).
    pub fn enable_interrupts(&mut self) {
        // Before the flag, so that no interrupt is taken back that comes after it.
        self.transport.acknowledge_interrupt();
        self.queue.set_interrupts(Interrupts::On);
    }

    /// Goes back to polling.
    pub fn disable_interrupts(&mut self) {
        self.queue.set_interrupts(Interrupts::Off);
    }

    /// Asks the device for as much of what waits as there are descriptors for.
    fn submit(&mut self) {
        while let Some(&slot) = self.waiting.front() {
            if !self.submit_from(slot) {
                break;
            }
            self.waiting.pop_front();
            self.conclude(slot);
        }
        self.queue.publish();
    }

    /// Asks for all that a job needs now; `false` if there are too few descriptors.
    fn submit_from(&mut self, slot: u8) -> bool {
        loop {
            let job = self.jobs[usize::from(slot)].as_mut().expect("a job that waits is there");
            if job.started_bytes < job.data_bytes() {
                if !self.submit_data(slot) {
                    return false;
                }
            } else if job.requests == 0 && job.needs_flush {
                return self.submit_flush(slot);
            } else {
                return true;
            }
        }
    }

    fn submit_data(&mut self, slot: u8) -> bool {
        let job = self.jobs[usize::from(slot)].as_mut().expect("a job that waits is there");
        let (kind, access) = match job.transfer.operation {
            Operation::Read => (TYPE_IN, Access::DeviceWrites),
            _ => (TYPE_OUT, Access::DeviceReads),
        };
        let rest = &mut job.transfer.buffer[job.started_bytes..];
        let request_bytes_max = (self.segments_max * self.segment_bytes_max as usize).min(REQUEST_BYTES_MAX);
        let piece_bytes = rest.len().min(request_bytes_max);
        let segments = piece_bytes.div_ceil(self.segment_bytes_max as usize);
        let Some(index) = self.queue.next_free().filter(|_| usize::from(self.queue.free()) >= segments + 2) else {
            return false;
        };
        let sector = (job.transfer.at_bytes + job.started_bytes as u64) / SECTOR_BYTES;
        let (header, status) = self.frames.prepare(index, kind, sector);
        let mut list = [header; SEGMENTS_MAX + 2];
        for (place, bytes) in list[1..].iter_mut().zip(rest[..piece_bytes].chunks_mut(self.segment_bytes_max as usize))
        {
            *place = Segment { address: bytes.as_mut_ptr() as u64, len: bytes.len() as u32, access };
        }
        list[1 + segments] = status;
        // SAFETY: the frame lives for ever. The job keeps the buffer, and nobody touches it, until its last request has
        // come back; where that never happens, `drop` leaves the buffer alone.
        let head = unsafe { self.queue.add(&list[..segments + 2]) };
        assert_eq!(head, Some(index), "a frame goes with the descriptor of its number");
        let read_bytes = if kind == TYPE_IN { piece_bytes as u32 } else { 0 };
        self.requests[usize::from(index)] = Request { job: slot, read_bytes };
        job.started_bytes += piece_bytes;
        job.requests += 1;
        true
    }

    fn submit_flush(&mut self, slot: u8) -> bool {
        let Some(index) = self.queue.next_free().filter(|_| self.queue.free() >= 2) else { return false };
        // The sector of a flush is 0, §5.2.6.1.
        let (header, status) = self.frames.prepare(index, TYPE_FLUSH, 0);
        // SAFETY: the frame lives for ever.
        let head = unsafe { self.queue.add(&[header, status]) };
        assert_eq!(head, Some(index), "a frame goes with the descriptor of its number");
        self.requests[usize::from(index)] = Request { job: slot, read_bytes: 0 };
        let job = self.jobs[usize::from(slot)].as_mut().expect("a job that waits is there");
        job.needs_flush = false;
        job.requests += 1;
        true
    }

    /// Takes all that the device has given back, and goes on with what waits.
    fn collect(&mut self) {
        while self.error.is_none() {
            match self.queue.take_used() {
                Ok(Some(used)) => self.take(used),
                Ok(None) => return self.submit(),
                Err(error) => self.give_up(error),
            }
        }
    }

    fn take(&mut self, Used { head, written }: Used) {
        let Request { job: slot, read_bytes } = self.requests[usize::from(head)];
        let job = self.jobs[usize::from(slot)].as_mut().expect("the device has a request of it");
        job.requests -= 1;
        // What lies beyond the bytes that the device says it has written means nothing (§2.7.8.3); the status comes last.
        let status = if written > read_bytes { self.frames.status(head) } else { STATUS_NONE };
        if status != STATUS_OK {
            let what = if status == STATUS_UNSUPPORTED { "does not support" } else { "failed with" };
            let Transfer { operation, at_bytes, .. } = job.transfer;
            log::warn!("the disk {what} a transfer ({operation:?} at {at_bytes}, status {status})");
            job.result = Err(BlockError::Io);
        }
        let was_waiting = job.started_bytes < job.data_bytes();
        if job.result.is_err() {
            // Nothing more is asked for on its behalf.
            (job.started_bytes, job.needs_flush) = (job.data_bytes(), false);
        }
        if job.requests == 0 && job.needs_flush && !was_waiting {
            self.waiting.push_back(slot);
        }
        if !was_waiting {
            self.conclude(slot);
        }
    }

    /// Ends a job if nothing more is to be done for it.
    fn conclude(&mut self, slot: u8) {
        let place = &mut self.jobs[usize::from(slot)];
        if let Some(job) = place.take_if(|job| job.requests == 0 && !job.needs_flush) {
            let Transfer { token, buffer, .. } = job.transfer;
            self.ended.push_back(Finished { token, buffer, result: job.result });
        }
    }

    /// Stops a device that cannot be trusted any more. A reset takes all memory away from it (§2.1.2), so the buffers can
    /// go back to their owners.
    fn give_up(&mut self, error: QueueError) {
        log::error!("disk: {error}");
        self.error = Some(error);
        self.transport.set_status(0);
        self.waiting.clear();
        for job in self.jobs.iter_mut().filter_map(Option::take) {
            let Transfer { token, buffer, .. } = job.transfer;
            self.ended.push_back(Finished { token, buffer, result: Err(BlockError::Io) });
        }
    }
}

impl<T: Transport> Drop for BlkDevice<T> {
    fn drop(&mut self) {
        // The device may still reach the buffers of what is under way.
        self.jobs.iter_mut().filter_map(Option::take).for_each(core::mem::forget);
    }
}

/// What the device says of itself.
struct Config {
    geometry: Geometry,
    cache: Cache,
    segments_max: usize,
    segment_bytes_max: u32,
}

impl Config {
    fn read(transport: &impl Transport, features: u64) -> Result<Config, DeviceError> {
        for _ in 0..CONFIG_READS_MAX {
            let before = transport.config_generation();
            let config = Config::read_once(transport, features)?;
            // Several accesses are no single moment, §2.5.3.
            if transport.config_generation() == before {
                return config.check();
            }
        }
        Err(DeviceError::Malformed("configuration"))
    }

    fn read_once(transport: &impl Transport, features: u64) -> Result<Config, DeviceError> {
        let optional = |feature, offset| match features & feature {
            0 => Ok(None),
            _ => transport.config_u32(offset).map(Some),
        };
        let (low, high) = (transport.config_u32(CONFIG_CAPACITY)?, transport.config_u32(CONFIG_CAPACITY + 4)?);
        let sectors = u64::from(high) << 32 | u64::from(low);
        let block_bytes = optional(F_BLK_SIZE, CONFIG_BLK_SIZE)?.unwrap_or(SECTOR_BYTES as u32);
        // Without a size that is a number of bytes, no place on the device is.
        let size_bytes = sectors.checked_mul(SECTOR_BYTES).ok_or(DeviceError::Malformed("capacity"))?;
        // §5.2.5: without FLUSH and CONFIG_WCE there is no cache; with FLUSH alone there is to be thought one.
        let writes_back = match features & F_CONFIG_WCE {
            0 => features & F_FLUSH != 0,
            _ => transport.config_u8(CONFIG_WRITEBACK)? != 0,
        };
        Ok(Config {
            geometry: Geometry { block_bytes, size_bytes, is_read_only: features & F_RO != 0 },
            cache: if writes_back { Cache::WriteBack } else { Cache::WriteThrough },
            segments_max: optional(F_SEG_MAX, CONFIG_SEG_MAX)?.map_or(SEGMENTS_MAX, |max| max as usize),
            segment_bytes_max: optional(F_SIZE_MAX, CONFIG_SIZE_MAX)?.unwrap_or(SEGMENT_BYTES_MAX),
        })
    }

    fn check(mut self) -> Result<Config, DeviceError> {
        let block_bytes = self.geometry.block_bytes;
        if !block_bytes.is_power_of_two() || !(SECTOR_BYTES as u32..=BLOCK_BYTES_MAX).contains(&block_bytes) {
            return Err(DeviceError::Malformed("block size"));
        }
        self.geometry.size_bytes -= self.geometry.size_bytes % u64::from(block_bytes);
        self.segment_bytes_max = self.segment_bytes_max.min(SEGMENT_BYTES_MAX) / block_bytes * block_bytes;
        self.segments_max = self.segments_max.min(SEGMENTS_MAX);
        if self.segment_bytes_max == 0 || self.segments_max == 0 {
            return Err(DeviceError::Malformed("limit on segments"));
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests;
