use alloc::{string::String, vec::Vec};
use kayvee_platform::ReadFile;

/// Bytes read at a time.
const READ_BYTES: usize = 256 << 10;

/// The bytes of a file that are not yet used up.
pub struct Input<'f> {
    file: &'f mut dyn ReadFile,
    buffer: Vec<u8>,
    start: usize,
    /// Where in the file the buffer's `start` is.
    offset: u64,
    is_at_end: bool,
}

impl<'f> Input<'f> {
    /// All of a file.
    pub fn new(file: &'f mut dyn ReadFile) -> Input<'f> {
        Input { file, buffer: Vec::new(), start: 0, offset: 0, is_at_end: false }
    }

    /// What has been read and not used.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..]
    }

    /// Where in the file these begin.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes that the file has.
    pub fn size_bytes(&self) -> u64 {
        self.file.size_bytes()
    }

    /// Marks the first bytes as used.
    pub fn consume(&mut self, len: usize) {
        self.start += len;
        self.offset += len as u64;
    }

    /// Reads on until there are at least `needed` bytes, and returns whether there are. At least twice as many are read as
    /// are there, so that a long part is not looked at for each of its pieces.
    pub fn fill(&mut self, needed: u64) -> Result<bool, String> {
        let left = self.bytes().len();
        if needed <= left as u64 {
            return Ok(true);
        }
        // A claim that the file cannot meet takes no memory.
        if self.is_at_end || self.offset.saturating_add(needed) > self.file.size_bytes() {
            return Ok(false);
        }
        let wanted = (needed as usize).max(left * 2).max(READ_BYTES);
        self.buffer.drain(..self.start);
        self.start = 0;
        if self.buffer.try_reserve_exact(wanted - left).is_err() {
            return Err("there is no memory for the next part of the file".into());
        }
        self.buffer.resize(wanted, 0);
        let mut end = left;
        while end < wanted && !self.is_at_end {
            match self.file.read(&mut self.buffer[end..]) {
                Ok(len) => (end, self.is_at_end) = (end + len, len == 0),
                Err(why) => {
                    self.buffer.truncate(end);
                    return Err(why);
                }
            }
        }
        self.buffer.truncate(end);

        Ok(end as u64 >= needed)
    }
}
