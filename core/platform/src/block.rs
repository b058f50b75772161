use alloc::{collections::TryReserveError, vec::Vec};
use core::{
    fmt,
    ops::{Deref, DerefMut},
};

/// Alignment in memory of every [`BlockBuffer`]: what direct I/O and every virtio device accept.
const ALIGNMENT: usize = 4096;

/// Bytes that a device reads or writes by itself, aligned to 4 KiB.
#[derive(Default)]
pub struct BlockBuffer {
    bytes: Vec<u8>,
    /// Where the aligned part begins.
    start: usize,
    len: usize,
}

impl BlockBuffer {
    /// A buffer of `len` bytes, all zero.
    pub fn zeroed(len: usize) -> Result<BlockBuffer, TryReserveError> {
        let mut bytes: Vec<u8> = Vec::new();
        bytes.try_reserve_exact(len + ALIGNMENT - 1)?;
        let start = bytes.as_ptr().align_offset(ALIGNMENT);
        assert!(start < ALIGNMENT, "the address of bytes can be aligned");
        bytes.resize(start + len, 0);
        Ok(BlockBuffer { bytes, start, len })
    }

    /// Shows so many of the bytes that it was made with, which is what a transfer moves; the others stay as they are.
    #[inline]
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.bytes.len() - self.start, "a buffer does not grow");
        self.len = len;
    }
}

impl Deref for BlockBuffer {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }
}

impl DerefMut for BlockBuffer {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

impl AsRef<[u8]> for BlockBuffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for BlockBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockBuffer({} bytes)", self.len)
    }
}

/// What a block device is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a block, the unit of every transfer: a power of two from 512 to 4096.
    pub block_bytes: u32,
    /// Bytes of the whole device, a multiple of `block_bytes`.
    pub size_bytes: u64,
    /// Whether it can only be read.
    pub is_read_only: bool,
}

impl Geometry {
    /// Whether a device that is like this can carry out a transfer. What it cannot ends with [`BlockError::Invalid`].
    pub fn allows(&self, transfer: &Transfer) -> bool {
        if transfer.operation == Operation::Flush {
            return true;
        }
        let Geometry { block_bytes, size_bytes, is_read_only } = *self;
        let len = transfer.buffer.len() as u64;
        let blocks = len > 0 && len.is_multiple_of(block_bytes.into());
        let inside = transfer.at_bytes.checked_add(len).is_some_and(|end| end <= size_bytes);
        let allowed = transfer.operation == Operation::Read || !is_read_only;
        blocks && inside && allowed && transfer.at_bytes.is_multiple_of(block_bytes.into())
    }
}

/// What a device is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// To fill the buffer from the device.
    Read,
    /// To write the buffer. Until a flush the bytes may be lost with the power, wholly or in part, and in another order
    /// than they were written in.
    Write,
    /// To write the buffer to stable storage: when it is finished, these bytes survive a loss of power.
    WriteStable,
    /// To bring every write that finished before this began to stable storage. The buffer is of no account.
    Flush,
}

/// Work for a device. Its buffer belongs to the device until it comes back in [`Finished`].
#[derive(Debug)]
pub struct Transfer {
    /// Comes back as it is.
    pub token: u64,
    /// What to do.
    pub operation: Operation,
    /// Where on the device, in bytes: a multiple of the block's length.
    pub at_bytes: u64,
    /// Whole blocks.
    pub buffer: BlockBuffer,
}

/// A transfer that has ended.
#[derive(Debug)]
pub struct Finished {
    /// That of the transfer.
    pub token: u64,
    /// That of the transfer. What a failed read left in it means nothing.
    pub buffer: BlockBuffer,
    /// How it ended. A write that failed may have changed any of its blocks.
    pub result: Result<(), BlockError>,
}

/// Why a transfer failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockError {
    /// The medium or the way to it failed.
    Io,
    /// What holds the device's blocks, such as a file system, has no room for more of them.
    NoSpace,
    /// The transfer lies beyond the device's end, is no whole number of blocks, or would write where one can only read.
    Invalid,
}

impl fmt::Display for BlockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BlockError::Io => "input/output error",
            BlockError::NoSpace => "no space left on device",
            BlockError::Invalid => "invalid transfer",
        })
    }
}

/// A disk, or what serves as one.
///
/// It never blocks but in [`wait`](Self::wait), though a host may carry a short transfer out at once, in
/// [`start`](Self::start), where that takes less than handing it over. Transfers may finish in any order. How its end wakes a loop that sleeps is
/// between the device and its target, as for frames.
pub trait BlockDevice {
    /// What it is like.
    fn geometry(&self) -> Geometry;
    /// Hands work over. Gives it back when the device has no room for more of it until some has finished.
    fn start(&mut self, transfer: Transfer) -> Result<(), Transfer>;
    /// The next transfer that has ended.
    fn finished(&mut self) -> Option<Finished>;
    /// Sleeps until [`finished`](Self::finished) has something to give; returns at once if nothing is under way. For
    /// start and end, when there is nothing else to do.
    fn wait(&mut self);
}

/// Waits for something that is under way.
pub fn wait_for_transfer(device: &mut dyn BlockDevice) -> Finished {
    loop {
        if let Some(finished) = device.finished() {
            return finished;
        }
        device.wait();
    }
}

/// Has a device that has nothing else to do carry out one transfer, waits for it, and gives its buffer back.
pub fn transfer_alone(
    device: &mut dyn BlockDevice,
    operation: Operation,
    at_bytes: u64,
    buffer: BlockBuffer,
) -> Result<BlockBuffer, BlockError> {
    // A device that is idle and takes nothing is broken.
    device.start(Transfer { token: 0, operation, at_bytes, buffer }).map_err(|_| BlockError::Io)?;
    let finished = wait_for_transfer(device);
    finished.result.map(|()| finished.buffer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_aligned_zero_and_as_long_as_asked() {
        for len in [0, 1, 512, 4096, 4097, 1 << 20] {
            let buffer = BlockBuffer::zeroed(len).expect("memory");
            assert_eq!(buffer.len(), len);
            assert!((buffer.as_ptr() as usize).is_multiple_of(ALIGNMENT) && buffer.iter().all(|byte| *byte == 0));
        }
        assert!(BlockBuffer::zeroed(usize::MAX / 2).is_err());
    }

    #[test]
    fn a_buffer_shows_as_much_as_is_wanted() {
        let mut buffer = BlockBuffer::zeroed(8192).expect("memory");
        buffer[8191] = 7;
        buffer.set_len(512);
        assert_eq!(buffer.len(), 512);
        buffer.set_len(8192);
        assert_eq!((buffer.len(), buffer[8191]), (8192, 7));
    }
}
