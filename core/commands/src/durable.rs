//! The persistent log: every effect is appended to it, and all data comes back from it at start.
//!
//! One unit of what happens (a command, a transaction, a script) is one record. A compaction walks over all keys while
//! clients are served and writes each of them down in the same log, so that what lies before it is needed no more. One
//! rule makes that right: before a command uses a key that the walk has not been at, that key is written down. What is
//! replayed is then at each record the true data, less the keys that are not written yet. Of a large collection the same
//! is true of its members (`parts`).

mod append;
mod commands;
mod compaction;
mod drive;
mod made;
mod parts;
mod replay;
mod status;
mod unit;
mod waits;

pub use commands::COMMANDS;
pub(crate) use compaction::Compaction;
pub use replay::{LogError, Replayed};
pub(crate) use waits::Until;

use alloc::vec::Vec;
use kayvee_keyspace::{Epoch, Found};
use kayvee_log::{Kind, Log, Sequence};
use kayvee_platform::Trouble;
use kayvee_rdb::Writer;

/// A place from which on the log says nothing unless it begins there: some effects before it are missing.
const GAP: Kind = Kind::new(2);

/// What an end does before it comes.
#[derive(Clone, Copy, Default)]
struct AtEnd {
    /// Whether it waits for a compaction, and how many had ended before.
    saves: bool,
    ended: u64,
    /// Whether it comes though data are lost.
    is_forced: bool,
}

/// The log, and what is on its way to it.
#[derive(Default)]
pub struct Durable {
    log: Option<Log>,
    /// Its file, if it was made while the store ran.
    made: Option<made::Made>,
    /// The effects of what is running now, and the database that the last one was about.
    unit: append::Gathered,
    unit_db: usize,
    /// The times of the first and the last one, in milliseconds since 1970.
    unit_began_ms: u64,
    unit_ms: u64,
    /// Whether databases have changed places in this unit: what is written down then has to stand in it.
    unit_swaps: bool,
    /// The time that the last record names, in milliseconds since 1970.
    last_ms: u64,
    /// The last record with effects, which a reply may have to wait for.
    last_effects: Sequence,
    /// The last record when it was noted there what history the data are of.
    history_at: Option<Sequence>,
    /// How many bytes of effects are on stable storage, and how many there were before a record that is not yet.
    covered: u64,
    covered_next: (Sequence, u64),
    /// Whether the log from its beginning on is all data. Otherwise only a compaction can make it so.
    is_whole: bool,
    /// Whether something is missing, so that nothing that follows is of use before a compaction begins.
    is_broken: bool,
    /// Whether something was missing, so that nothing may be promised before a compaction has ended.
    refuses: bool,
    /// Whether changes wait because the device has more than enough to do.
    pub(crate) is_congested: bool,
    /// Whether the disk has only room left that is kept for compactions, and how long the log was before, or after the
    /// last compaction.
    is_tight: bool,
    roomy_bytes: u64,
    /// Whether requests wait for that.
    holds_back: bool,
    /// Since when some effect is not on stable storage, and since when changes wait for the device.
    behind_since_ns: Option<u64>,
    congested_since_ns: Option<u64>,
    /// When the log wants to be driven next.
    due_ns: Option<u64>,
    /// A compaction that walks, or that waits until what it has written is on stable storage; and whether one is wanted.
    walk: Option<Compaction>,
    finishing: Option<Compaction>,
    is_wanted: bool,
    /// When one may begin that nobody has asked for.
    again_after_ns: u64,
    /// What is wrong with compactions, with the disk, and with its room for what a master sends.
    compaction_trouble: Trouble,
    disk_trouble: Trouble,
    room_trouble: Trouble,
    /// Bytes of the log when the last one had ended.
    base_bytes: u64,
    /// The last record when it was measured what the next one will write.
    measured_at: Option<Sequence>,
    epoch: Epoch,
    /// How many compactions in a row were given up.
    abandoned: u8,
    /// For values that are written down, and for keys of the walk.
    writer: Writer,
    keys: Vec<Found>,
    /// Large collections of which a part is written.
    sliced: Vec<parts::Sliced>,
    sizes: parts::Sizes,
    pub(crate) status: status::Status,
    at_end: AtEnd,
    /// Whether all data is to be taken back from the log, and whether the last try has failed.
    reload_is_wanted: bool,
    reload_failed: bool,
    /// Clients that wait for the log.
    waiters: Vec<waits::Waiter>,
}

impl Durable {
    /// Whether a log is open.
    pub fn is_open(&self) -> bool {
        self.log.is_some()
    }

    /// Bytes of the log's buffers.
    pub(crate) fn buffers_bytes(&self) -> u64 {
        self.log.as_ref().map_or(0, Log::buffers_bytes)
    }

    /// Whether more waits for the device now than may.
    pub(crate) fn log_is_congested(&self) -> bool {
        self.log.as_ref().is_some_and(Log::is_congested)
    }

    /// Whether a walk goes over all keys, so that what changes has to be written down before.
    #[inline]
    pub(crate) fn walks(&self) -> bool {
        self.walk.is_some()
    }

    /// The epoch of the last walk.
    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }
}
