use crate::{Error, Outcome};
use alloc::vec::Vec;
use core::fmt;
use kayvee_resp::Writer;

/// A text of many lines that is written bit by bit, for a reply or a page. From the first part that finds no memory it drops
/// everything.
#[derive(Default)]
pub struct Text {
    bytes: Vec<u8>,
    failed: bool,
}

impl Text {
    /// Whether nothing is written yet.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// What is written so far.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What is written, if all of it has found memory.
    pub fn into_bytes(self) -> Option<Vec<u8>> {
        (!self.failed).then_some(self.bytes)
    }

    /// Writes it all as a reply, if all of it has found memory.
    pub fn reply(&self, reply: &mut Writer<'_>) -> Outcome {
        if self.failed {
            return Err(Error::OUT_OF_MEMORY);
        }
        reply.verbatim(b"txt", &self.bytes);
        Ok(())
    }
}

impl fmt::Write for Text {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        self.failed = self.failed || self.bytes.try_reserve(part.len()).is_err();
        if self.failed {
            return Err(fmt::Error);
        }
        self.bytes.extend_from_slice(part.as_bytes());
        Ok(())
    }
}
