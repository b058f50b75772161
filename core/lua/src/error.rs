//! Errors on their way from where they are raised to the machine, which makes Lua values of them.

use crate::{heap::OutOfMemory, table::SetError, value::Value};
use alloc::{string::String, vec::Vec};

/// Why a function or an instruction has failed.
#[derive(Clone, Debug)]
pub enum Raise {
    /// A value that was thrown.
    Value(Value),
    /// A text that is complete.
    Message(Vec<u8>),
    /// A text that gets the place in front where the running function is.
    Positioned(Vec<u8>),
    /// A text that gets the place in front if an instruction has failed, and none if a library function has.
    Runtime(Vec<u8>),
    /// An argument, counted from 0, is wrong in this way.
    Argument(usize, Vec<u8>),
    /// The limit on memory is reached.
    OutOfMemory,
}

impl Raise {
    /// An error with the place of the caller in front.
    pub fn positioned(text: &str) -> Raise {
        Raise::Positioned(text.as_bytes().to_vec())
    }

    pub(crate) fn runtime(text: &str) -> Raise {
        Raise::Runtime(text.as_bytes().to_vec())
    }

    /// What a library function has failed with.
    pub(crate) fn in_library(self) -> Raise {
        match self {
            Raise::Runtime(text) => Raise::Message(text),
            other => other,
        }
    }

    /// A wrong argument, counted from 0.
    pub fn argument(index: usize, text: &str) -> Raise {
        Raise::Argument(index, text.as_bytes().to_vec())
    }
}

impl From<OutOfMemory> for Raise {
    fn from(_: OutOfMemory) -> Raise {
        Raise::OutOfMemory
    }
}

impl From<String> for Raise {
    fn from(text: String) -> Raise {
        Raise::Positioned(text.into_bytes())
    }
}

impl From<SetError> for Raise {
    fn from(error: SetError) -> Raise {
        match error {
            SetError::NilKey => Raise::runtime("table index is nil"),
            SetError::NanKey => Raise::runtime("table index is NaN"),
            SetError::OutOfMemory => Raise::OutOfMemory,
        }
    }
}
