//! Copies of the data on other machines.
//!
//! A replica gets all data as a dump file, and from then on every effect. The dump is written in slices while clients are
//! served, by the same walk as a compaction of the log: what changes is written down before. Effects are kept for a while
//! as well (`backlog.rs`), so that a replica whose connection was lost gets only what it has missed.
//!
//! ```text
//! replica                          master
//! PING, AUTH, REPLCONF … ───────►
//! PSYNC history offset ─────────►
//!                        ◄───────  +CONTINUE history, effects from the offset on
//!                     or ◄───────  +FULLRESYNC history offset, dump file, effects
//! REPLCONF ACK offset ──────────►  each second
//! ```
//!
//! `master.rs` and `copy.rs` are about having replicas, `link.rs` and `apply.rs` about being one.

mod apply;
mod backlog;
mod copy;
mod failover;
mod history;
mod link;
mod master;
mod status;
mod wait;

use crate::{
    Store,
    table::{Command, Flags, Group},
};
use alloc::{boxed::Box, collections::BTreeSet, string::String, vec::Vec};
pub use apply::ShowsExpired;
use backlog::Backlog;
use copy::Copy;
use failover::Failover;
pub(crate) use history::History;
use kayvee_platform::earliest;
pub use link::Dial;
use link::Link;
pub use master::{Announced, Replica};
pub(crate) use status::{role, write_info};
pub use wait::Wanted;
pub(crate) use wait::{wait, waitaof};

const SYNC: Flags = Flags::ADMIN.union(Flags::NOSCRIPT).union(Flags::NO_ASYNC_LOADING).union(Flags::NO_MULTI);
const REPLICAOF: Flags = Flags::ADMIN.union(Flags::NOSCRIPT).union(Flags::STALE).union(Flags::NO_ASYNC_LOADING);
const ROW: Command = Command { group: Group::Server, flags: SYNC, ..Command::ROW };
const REPLICAOF_ROW: Command = Command { arity: 3, flags: REPLICAOF, handler: Some(link::replicaof), ..ROW };

pub static COMMANDS: &[Command] = &[
    Command {
        name: "failover",
        arity: -1,
        flags: Flags::ADMIN.union(Flags::NOSCRIPT).union(Flags::STALE),
        handler: Some(failover::failover),
        ..ROW
    },
    Command { name: "psync", arity: -3, handler: Some(master::psync), ..ROW },
    Command {
        name: "replconf",
        arity: -1,
        flags: Flags::ADMIN.union(Flags::NOSCRIPT).union(Flags::LOADING).union(Flags::STALE).union(Flags::ALLOW_BUSY),
        handler: Some(master::replconf),
        ..ROW
    },
    Command { name: "replicaof", ..REPLICAOF_ROW },
    Command { name: "slaveof", ..REPLICAOF_ROW },
    Command { name: "sync", arity: 1, handler: Some(master::sync), ..ROW },
];

const SECOND_NS: u64 = 1_000_000_000;

/// What is known of copies elsewhere.
pub struct Replication {
    /// The name of the history of the data, and of the one before, which was the same up to an offset.
    id: String,
    former_id: String,
    former_until: Option<u64>,
    /// Effects of late, and those that replicas have yet to be sent.
    backlog: Option<Backlog>,
    /// Since when there has been no replica.
    alone_since_ns: u64,
    /// When replicas were last sent something so that they hear anything at all.
    pinged_ns: u64,
    /// When time-outs are looked at next.
    pub(crate) next_tick_ns: u64,
    /// The dump that is being written.
    copy: Option<Box<Copy>>,
    /// A change of places with a replica.
    failover: Option<Box<Failover>>,
    /// Who this is a replica of.
    link: Option<Box<Link>>,
    /// Keys that expire and that clients of a writable replica have made, with their databases: no master will remove
    /// them.
    own: BTreeSet<(usize, Vec<u8>)>,
    /// Clients that wait until replicas have what they wrote, by their unique numbers and slots; whether replicas are to
    /// be asked what they have, and whether one has said so.
    pub(crate) waiting: BTreeSet<(u64, u32)>,
    asks: bool,
    has_heard: bool,
}

impl Replication {
    /// Bytes of memory of effects, of late and on their way to replicas.
    pub(crate) fn backlog_bytes(&self) -> u64 {
        self.backlog.as_ref().map_or(0, Backlog::memory_bytes)
    }

    /// With a history of this name.
    pub fn new(id: String) -> Replication {
        Replication {
            id,
            former_id: String::new(),
            former_until: None,
            backlog: None,
            alone_since_ns: 0,
            pinged_ns: 0,
            next_tick_ns: 0,
            copy: None,
            failover: None,
            link: None,
            own: BTreeSet::new(),
            waiting: BTreeSet::new(),
            asks: false,
            has_heard: false,
        }
    }

    /// Whether this is a replica.
    #[inline]
    pub fn has_master(&self) -> bool {
        self.link.is_some()
    }

    /// Whether the data of another store are being taken over.
    #[inline]
    pub fn is_loading(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.is_loading())
    }

    /// Whether a walk for a copy goes over all keys.
    #[inline]
    pub(crate) fn walks(&self) -> bool {
        self.copy.is_some()
    }
}

impl Store {
    /// Bytes of memory of effects that are kept for replicas alone, or were until they went and are about to be freed.
    pub(crate) fn replica_excess_bytes(&self) -> u64 {
        self.replication.backlog.as_ref().map_or(0, Backlog::excess_bytes)
    }

    /// The value of an option that is only kept elsewhere.
    fn option(&self, name: &str) -> String {
        let value = crate::options::OptionSpec::find(name.as_bytes()).map(|spec| spec.get(&self.options));
        String::from_utf8(value.unwrap_or_default()).unwrap_or_default()
    }

    /// The most that a replica may miss and still go on with: nobody is dropped for having less than that to come.
    pub fn backlog_limit_bytes(&self) -> u64 {
        self.option_number("repl-backlog-size")
    }

    pub(crate) fn option_number(&self, name: &str) -> u64 {
        self.option(name).parse().unwrap_or(0)
    }

    /// Whether requests wait no more that have waited.
    pub fn take_releases(&mut self) -> bool {
        core::mem::take(&mut self.releases_held)
    }

    /// Does what time brings, once a turn.
    #[inline(never)]
    pub fn tick_replication(&mut self) {
        self.ask_for_acks();
        self.end_ack_waits();
        self.tick_failover();
        self.tick_shutdown();
        self.tick_migration();
        let now_ns = self.now.monotonic_ns;
        if now_ns < self.replication.next_tick_ns {
            return;
        }
        self.replication.next_tick_ns = now_ns + SECOND_NS;
        if self.replication.link.is_some() {
            self.tick_link();
            self.expire_own();
        }
        if self.replication.backlog.is_some() {
            self.tick_replicas();
        }
    }

    /// When there is something to do, in monotonic nanoseconds.
    pub fn replication_deadline_ns(&self) -> Option<u64> {
        let replication = &self.replication;
        let has_others = replication.link.is_some() || replication.backlog.is_some();
        let tick = has_others.then_some(replication.next_tick_ns);
        let now = self.feeds_on().then_some(self.now.monotonic_ns);
        earliest(&[self.copy_resumes_ns(), now, tick, self.migration_ends_ns(), self.failover_ends_ns()])
    }
}
