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

    /// The same beside what the caller does meanwhile.
    fn finish_soon(self: Box<Self>) -> Box<dyn Finishing>;
}

/// A file for a log, before it is in its place. Unless it gets there, nothing comes of it.
pub trait LogFile {
    /// Puts it in its place in one step, beside what the caller does meanwhile. What it has of the log must be on stable
    /// storage. If that fails it can be tried again.
    fn put_in_place(&mut self) -> Box<dyn Finishing>;
}

/// The end of a file that is being written.
pub trait Finishing {
    /// Whether that has worked, once it is known. It is told once.
    fn result(&mut self) -> Option<Result<(), String>>;

    /// Waits for that.
    fn wait(self: Box<Self>) -> Result<(), String>;
}

impl Finishing for Option<Result<(), String>> {
    fn result(&mut self) -> Option<Result<(), String>> {
        self.take()
    }

    fn wait(self: Box<Self>) -> Result<(), String> {
        self.unwrap_or(Ok(()))
    }
}
