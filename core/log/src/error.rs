//! What can go wrong, and what to do about it.

use core::fmt;
use kayvee_platform::BlockError;

/// Why a record was not taken. Nothing of it is in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordError {
    /// Only what a compaction needs is left of the device.
    Full,
    /// There is no memory for another buffer.
    OutOfMemory,
    /// The device fails, and what it was to write fills the buffers.
    Failing,
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RecordError::Full => "the log is full: compact it or give it a larger disk",
            RecordError::OutOfMemory => "no memory for the log's buffers",
            RecordError::Failing => "the log's disk fails, and its buffers are full",
        })
    }
}

/// Why what was recorded is not stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogError {
    /// What failed.
    pub work: Work,
    /// Where on the device; for a flush, where the first of its batches lies.
    pub at_bytes: u64,
    /// Why.
    pub error: BlockError,
}

/// What a device was to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Flush.
    Flush,
}

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let work = match self.work {
            Work::Read => "reading",
            Work::Write => "writing",
            Work::Flush => "flushing",
        };
        write!(f, "{work} the log's disk at byte {}: {}", self.at_bytes, self.error)
    }
}

/// Why a device was not formatted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormatError {
    /// It has fewer bytes than a log needs.
    TooSmall {
        /// What it has.
        size_bytes: u64,
        /// What it must have.
        needed_bytes: u64,
    },
    /// It can only be read.
    ReadOnly,
    /// It failed.
    Device(LogError),
    /// There is no memory for the log.
    OutOfMemory,
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FormatError::TooSmall { size_bytes, needed_bytes } => {
                write!(f, "the disk has {size_bytes} bytes, and a log needs {needed_bytes}")
            }
            FormatError::ReadOnly => f.write_str("the disk can only be read"),
            FormatError::Device(error) => error.fmt(f),
            FormatError::OutOfMemory => f.write_str("no memory for the log"),
        }
    }
}

/// Why a log was not opened. The device is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenError<E> {
    /// The device holds nothing: it has to be formatted.
    Blank,
    /// The device holds something that is no log.
    Foreign,
    /// A newer Kayvee has written it.
    NewerVersion {
        /// What it is.
        version: u32,
    },
    /// Both superblocks are damaged.
    SuperblocksDamaged,
    /// Parts of the device are gone.
    Shrunk {
        /// What it has.
        size_bytes: u64,
        /// What it had.
        needed_bytes: u64,
    },
    /// It can only be read.
    ReadOnly,
    /// A batch that had been stable is not there, while what follows it is.
    Damaged {
        /// Where it should be on the device.
        at_bytes: u64,
        /// Its number.
        batch: u64,
        /// Records from this one on are lost, at the least.
        sequence: u64,
        /// Through this batch the log had been stable.
        stable_batch: u64,
    },
    /// The device failed.
    Device(LogError),
    /// There is no memory for the log, or for one of its records.
    OutOfMemory,
    /// Who was told a record did not take it.
    Refused {
        /// Number of the record.
        sequence: u64,
        /// Where its last part lies on the device.
        at_bytes: u64,
        /// Why.
        error: E,
    },
}

impl<E: fmt::Display> fmt::Display for OpenError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Blank => f.write_str("the disk is blank: it has to be formatted"),
            OpenError::Foreign => {
                f.write_str("the disk holds something that is no log of Kayvee's; it has been left as it is")
            }
            OpenError::NewerVersion { version } => {
                write!(f, "the log has format version {version}, and this Kayvee reads {}", crate::FORMAT_VERSION)?;
                f.write_str(" only: use the newer one that wrote it")
            }
            OpenError::SuperblocksDamaged => f.write_str(
                "both superblocks of the log (at byte 0 and 65536) are damaged; the disk has been left as it is",
            ),
            OpenError::Shrunk { size_bytes, needed_bytes } => {
                write!(f, "the disk has {size_bytes} bytes, and its log was made for {needed_bytes}: ")?;
                f.write_str("parts of it are gone; give it its former size back")
            }
            OpenError::ReadOnly => f.write_str("the disk can only be read"),
            OpenError::Damaged { at_bytes, batch, sequence, stable_batch } => {
                write!(f, "the log is damaged at byte {at_bytes}: batch {batch} (from record {sequence} on) is not ")?;
                write!(f, "what was written, though all through batch {stable_batch} was stable; ")?;
                f.write_str("the disk has been left as it is")
            }
            OpenError::Device(error) => error.fmt(f),
            OpenError::OutOfMemory => f.write_str("there is not enough memory for what the log holds: start with more"),
            OpenError::Refused { sequence, at_bytes, error } => {
                write!(f, "record {sequence} of the log, at byte {at_bytes}: {error}")
            }
        }
    }
}
