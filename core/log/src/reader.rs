//! Reading a device at opening, when there is nothing else to do: several transfers ahead of who reads.

use crate::{
    error::{LogError, Work},
    format::SEGMENTS_AT,
};
use alloc::vec::Vec;
use kayvee_platform::{BlockBuffer, BlockDevice, BlockError, Operation, Transfer, transfer_alone, wait_for_transfer};

/// Bytes of a chunk, the unit of reading through, at the least and at the most: or those of a segment, if it has fewer.
const CHUNK_BYTES: [usize; 2] = [16 << 10, 512 << 10];
/// Chunks in memory: that which is looked at, and those that are read meanwhile.
const CHUNKS: usize = 5;
/// Memory for reading ahead that makes it as quick as it can be.
pub const READ_AHEAD_BYTES: usize = CHUNKS * CHUNK_BYTES[1];
/// Bytes of a transfer when the device is searched.
const SCAN_BYTES: u32 = 128 << 10;
/// Transfers at a time when the device is searched.
const SCAN_DEPTH: usize = 8;

/// Why something could not be read.
pub enum ReadError {
    /// The device failed.
    Device(LogError),
    /// There is no memory for buffers.
    OutOfMemory,
}

impl ReadError {
    fn at(at_bytes: u64, error: BlockError) -> ReadError {
        ReadError::Device(LogError { work: Work::Read, at_bytes, error })
    }
}

/// Hands one transfer to a device that has nothing else to do, and waits for it.
pub fn transfer(
    device: &mut dyn BlockDevice,
    operation: Operation,
    at_bytes: u64,
    buffer: BlockBuffer,
) -> Result<BlockBuffer, LogError> {
    let work = match operation {
        Operation::Read => Work::Read,
        Operation::Write | Operation::WriteStable => Work::Write,
        Operation::Flush => Work::Flush,
    };
    transfer_alone(device, operation, at_bytes, buffer).map_err(|error| LogError { work, at_bytes, error })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotState {
    Empty,
    UnderWay,
    Ready,
    Failed(BlockError),
}

/// A chunk in memory.
struct Slot {
    chunk: u64,
    state: SlotState,
    buffer: BlockBuffer,
}

/// Shows parts of the segments as slices, and reads ahead in the order that the log most likely has.
pub struct Reader<'d> {
    device: &'d mut dyn BlockDevice,
    chunk_bytes: u64,
    chunks_per_segment: u64,
    segment_count: u32,
    slots: Vec<Slot>,
    /// A segment, and the one that is known to follow it.
    known: Option<(u32, u32)>,
    /// A part that lies in several chunks.
    joined: Vec<u8>,
}

impl<'d> Reader<'d> {
    /// Nothing is read yet.
    pub fn new(
        device: &'d mut dyn BlockDevice,
        read_ahead_bytes: usize,
        segment_bytes: u32,
        segment_count: u32,
    ) -> Reader<'d> {
        let [least, most] = CHUNK_BYTES;
        // Segments have a power of two of bytes as well.
        let chunk_bytes = 1 << (read_ahead_bytes / CHUNKS).clamp(least, most).ilog2();
        let chunk_bytes = segment_bytes.min(chunk_bytes);
        Reader {
            device,
            chunk_bytes: chunk_bytes.into(),
            chunks_per_segment: (segment_bytes / chunk_bytes).into(),
            segment_count,
            slots: Vec::new(),
            known: None,
            joined: Vec::new(),
        }
    }

    /// The log goes on from that segment to this one, if that is known.
    pub fn expect(&mut self, place: u32, next: Option<u32>) {
        self.known = next.filter(|next| *next < self.segment_count).map(|next| (place, next));
    }

    /// Bytes of a segment.
    pub fn view(&mut self, at_bytes: u64, len: usize) -> Result<&[u8], ReadError> {
        let at = at_bytes - SEGMENTS_AT;
        let chunk_bytes = self.chunk_bytes as usize;
        let (mut chunk, mut offset) = (at / self.chunk_bytes, (at % self.chunk_bytes) as usize);
        if offset + len <= chunk_bytes {
            let slot = self.load(chunk)?;
            return Ok(&self.slots[slot].buffer[offset..offset + len]);
        }
        self.joined.clear();
        self.joined.try_reserve(len).map_err(|_| ReadError::OutOfMemory)?;
        while self.joined.len() < len {
            let slot = self.load(chunk)?;
            let taken = (len - self.joined.len()).min(chunk_bytes - offset);
            self.joined.extend_from_slice(&self.slots[slot].buffer[offset..offset + taken]);
            chunk += 1;
            offset = 0;
        }
        Ok(&self.joined)
    }

    fn find(&self, chunk: u64) -> Option<usize> {
        self.slots.iter().position(|slot| slot.chunk == chunk && slot.state != SlotState::Empty)
    }

    fn load(&mut self, chunk: u64) -> Result<usize, ReadError> {
        let found = self.find(chunk);
        if let Some(at) = found
            && self.slots[at].state == SlotState::Ready
        {
            return Ok(at);
        }
        let at = match found {
            Some(at) => at,
            None => self.start(chunk, &[chunk])?,
        };
        self.read_ahead(chunk);
        loop {
            match self.slots[at].state {
                SlotState::Ready => return Ok(at),
                SlotState::Failed(error) => {
                    self.slots[at].state = SlotState::Empty;
                    return Err(ReadError::at(SEGMENTS_AT + chunk * self.chunk_bytes, error));
                }
                SlotState::UnderWay | SlotState::Empty => self.wait(),
            }
        }
    }

    /// The chunk that most likely follows: segments are taken in order where they can be.
    fn after(&self, chunk: u64) -> u64 {
        if !(chunk + 1).is_multiple_of(self.chunks_per_segment) {
            return chunk + 1;
        }
        let place = (chunk / self.chunks_per_segment) as u32;
        let next = match self.known {
            Some((from, to)) if from == place => to,
            _ => (place + 1) % self.segment_count,
        };
        u64::from(next) * self.chunks_per_segment
    }

    fn read_ahead(&mut self, chunk: u64) {
        let mut wanted = [chunk; CHUNKS];
        for i in 1..CHUNKS {
            wanted[i] = self.after(wanted[i - 1]);
        }
        for next in &wanted[1..] {
            // What cannot be read ahead now is read when it is needed.
            if self.find(*next).is_none() && self.start(*next, &wanted).is_err() {
                return;
            }
        }
    }

    /// Begins to read a chunk in the place of one that is not `wanted`.
    fn start(&mut self, chunk: u64, wanted: &[u64]) -> Result<usize, ReadError> {
        let at_bytes = SEGMENTS_AT + chunk * self.chunk_bytes;
        let at = self.free_slot(chunk, wanted)?;
        let slot = &mut self.slots[at];
        slot.chunk = chunk;
        let buffer = core::mem::take(&mut slot.buffer);
        let transfer = Transfer { token: at as u64, operation: Operation::Read, at_bytes, buffer };
        match self.device.start(transfer) {
            Ok(()) => {
                slot.state = SlotState::UnderWay;
                Ok(at)
            }
            Err(transfer) => {
                slot.state = SlotState::Empty;
                slot.buffer = transfer.buffer;
                if wanted[0] != chunk || self.slots.iter().all(|slot| slot.state != SlotState::UnderWay) {
                    return Err(ReadError::at(at_bytes, BlockError::Io));
                }
                self.wait();
                self.start(chunk, wanted)
            }
        }
    }

    fn free_slot(&mut self, chunk: u64, wanted: &[u64]) -> Result<usize, ReadError> {
        loop {
            let is_free = |slot: &Slot| {
                slot.state == SlotState::Empty || slot.state != SlotState::UnderWay && !wanted.contains(&slot.chunk)
            };
            if let Some(at) = self.slots.iter().position(is_free) {
                return Ok(at);
            }
            if self.slots.len() < CHUNKS {
                match BlockBuffer::zeroed(self.chunk_bytes as usize) {
                    Ok(buffer) if self.slots.try_reserve(1).is_ok() => {
                        self.slots.push(Slot { chunk, state: SlotState::Empty, buffer });
                        return Ok(self.slots.len() - 1);
                    }
                    _ if self.slots.is_empty() => return Err(ReadError::OutOfMemory),
                    _ => {}
                }
            }
            if wanted[0] != chunk {
                return Err(ReadError::OutOfMemory);
            }
            // What was guessed wrongly has to end first.
            self.wait();
        }
    }

    fn wait(&mut self) {
        let finished = wait_for_transfer(self.device);
        let slot = &mut self.slots[finished.token as usize];
        slot.buffer = finished.buffer;
        slot.state = match finished.result {
            Ok(()) => SlotState::Ready,
            Err(error) => SlotState::Failed(error),
        };
    }
}

impl Drop for Reader<'_> {
    /// Leaves the device with nothing to do.
    fn drop(&mut self) {
        while self.slots.iter().any(|slot| slot.state == SlotState::UnderWay) {
            self.wait();
        }
    }
}

/// Shows the bytes of ranges of the device, in any order, whole blocks at a time.
pub fn scan(
    device: &mut dyn BlockDevice,
    ranges: impl Iterator<Item = (u64, u32)>,
    show: &mut dyn FnMut(&[u8]),
) -> Result<(), ReadError> {
    let mut pieces = ranges.flat_map(|(at_bytes, len)| {
        (0..len.div_ceil(SCAN_BYTES)).map(move |i| {
            let from = i * SCAN_BYTES;
            (at_bytes + u64::from(from), (len - from).min(SCAN_BYTES))
        })
    });
    let mut spare = Vec::new();
    spare.try_reserve_exact(SCAN_DEPTH).map_err(|_| ReadError::OutOfMemory)?;
    for _ in 0..SCAN_DEPTH {
        match BlockBuffer::zeroed(SCAN_BYTES as usize) {
            Ok(buffer) => spare.push(buffer),
            Err(_) if spare.is_empty() => return Err(ReadError::OutOfMemory),
            Err(_) => break,
        }
    }
    let (mut under_way, mut result) = (0, Ok(()));
    let mut next = pieces.next();
    while under_way > 0 || result.is_ok() && next.is_some() {
        let mut is_refused = false;
        while result.is_ok()
            && !is_refused
            && let Some((at_bytes, len)) = next
            && let Some(mut buffer) = spare.pop()
        {
            buffer.set_len(len as usize);
            match device.start(Transfer { token: at_bytes, operation: Operation::Read, at_bytes, buffer }) {
                Ok(()) => {
                    under_way += 1;
                    next = pieces.next();
                }
                Err(transfer) => {
                    spare.push(transfer.buffer);
                    is_refused = true;
                }
            }
        }
        if under_way == 0 {
            // A device that is idle and takes nothing is broken.
            return result.and(next.map_or(Ok(()), |(at_bytes, _)| Err(ReadError::at(at_bytes, BlockError::Io))));
        }
        let finished = wait_for_transfer(device);
        under_way -= 1;
        match finished.result {
            Ok(()) => show(&finished.buffer),
            Err(error) => result = Err(ReadError::at(finished.token, error)),
        }
        spare.push(finished.buffer);
    }
    result
}
