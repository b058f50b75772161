use alloc::{boxed::Box, string::String};

/// A file that is being read.
pub trait ReadFile {
    /// Bytes that it has.
    fn size_bytes(&self) -> u64;

    /// Reads the next bytes; 0 at its end.
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, String>;
}

/// A file that is being written. Without [`finish`](Self::finish) nothing comes of it.
pub trait WriteFile {
    /// Adds bytes.
    fn write(&mut self, bytes: &[u8]) -> Result<(), String>;

    /// Brings it to stable storage and puts it in its place.
    fn finish(self: Box<Self>) -> Result<(), String>;
}
