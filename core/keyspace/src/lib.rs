//! The data: a hash index, the records that it points at, their values and expiry.
//!
//! A key and a small value lie together in one record of a size-classed [`slab`]; the [`index`] finds it by 32-bit
//! reference, through one cache line. Nothing here pauses: the index grows by one bucket at a time. Nothing here panics
//! for want of memory either: whatever grows with the data reports [`OutOfMemory`].
//!
//! No clock, no randomness of its own, no I/O: time and the generator are arguments.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod ahead;
mod db;
mod edit;
mod eviction;
mod expiring;
mod hash;
mod index;
mod intset;
mod list;
mod ordered;
mod packed;
mod record;
mod segmented;
mod set;
mod slab;
mod stream;
mod table;
mod usage;
mod value;
mod walk;
mod zset;

pub use ahead::Members;
pub use db::{Db, Expiry, Found, HashKey, Names, Slice};
pub use edit::{Collection, Edit, PackedLimits};
pub use eviction::{Candidate, Measure, Scope};
pub use expiring::FIELD_EXPIRY_LIMIT_MS;
pub use hash::{Hash, HashView};
pub use intset::{Intset, IntsetRef};
pub use kayvee_platform::Decimal;
pub use list::{List, ListEnd, ListIter, ListView, PartLimit, Parts, Side, Written};
pub use ordered::Direction;
pub use packed::{Offset, Packed, PackedRef};
pub use record::{Epoch, Records};
pub use set::{Member, MemberRecord, Set, SetLimits, SetView};
pub use stream::{BlockLimits, Consumer, EntryRef, Group, Keep, Pending, Stream, StreamId, Trim};
pub use usage::UsePolicy;
pub use value::{Encoding, Kind, Owned, Value, parse_integer};
pub use walk::WrittenString;
pub use zset::{LexBound, ScoreTable, SortedSet, SortedSetView, Update};

/// Memory for the data could not be had; nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory;

impl core::fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("out of memory")
    }
}

impl core::error::Error for OutOfMemory {}

impl From<alloc::collections::TryReserveError> for OutOfMemory {
    fn from(_: alloc::collections::TryReserveError) -> OutOfMemory {
        OutOfMemory
    }
}
