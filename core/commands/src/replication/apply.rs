//! Being a replica: effects of the master are run, and passed on as they came.

use super::link::Link;
use crate::{Error, EventClass, Store, args::copied};
use alloc::{format, vec::Vec};
use kayvee_resp::encode;

/// Keys of its own that a replica remembers.
const OWN_LIMIT: usize = 100_000;

impl Store {
    pub(super) fn ack(&self) -> Vec<u8> {
        let mut ack = Vec::new();
        let [offset, covered] =
            [Some(self.effects.offset()), self.covered()].map(|offset| format!("{}", offset.unwrap_or(0)));
        let words: [&[u8]; 5] = [b"REPLCONF", b"ACK", offset.as_bytes(), b"FACK", covered.as_bytes()];
        let words = &words[..if self.covered().is_some() { 5 } else { 3 }];
        // What finds no memory is said again in a second.
        let _ = encode(words.iter().copied(), &mut ack);
        ack
    }

    pub(super) fn send_ack(&mut self) {
        if let Some(slot) = self.replication.link.as_ref().and_then(|link| link.slot) {
            let ack = self.ack();
            self.send(slot, |writer| writer.raw(&ack));
        }
    }

    /// Tells the master that what it has asked for is on stable storage now.
    pub(crate) fn tell_covered(&mut self) {
        let covered = self.covered();
        if let Some(link) = &mut self.replication.link
            && link.asked_for.is_some_and(|offset| covered >= Some(offset))
        {
            link.asked_for = None;
            self.send_ack();
        }
    }

    /// The database that the master's next effect is about.
    pub(super) fn stream_db(&self, link: &Link) -> usize {
        // One that does not send effects yet has chosen none.
        let slot = link.slot.filter(|_| link.is_up());
        let session = slot.and_then(|slot| self.sessions[slot as usize].as_deref());
        session.map_or(link.db, |session| session.db)
    }

    /// Whether a client is the master, which sends effects.
    #[inline]
    pub fn is_master_link(&self, slot: u32) -> bool {
        self.replication.link.as_ref().is_some_and(|link| link.slot == Some(slot) && link.is_up())
    }

    /// The master's slot.
    pub fn master_slot(&self) -> Option<u32> {
        self.replication.link.as_ref().and_then(|link| link.slot)
    }

    /// Notes that the master has said something.
    pub fn heard_master(&mut self, len: usize) {
        let now_ns = self.now.monotonic_ns;
        self.stats.repl_input_bytes += len as u64;
        if let Some(link) = &mut self.replication.link {
            link.heard_ns = now_ns;
        }
    }

    /// Lets keys be there although their time has come, while the master's effects run: it says when they go.
    pub fn show_expired(&mut self, shows: ShowsExpired) {
        let shows = shows == ShowsExpired::Yes;
        self.dbs.iter_mut().for_each(|db| db.shows_expired = shows);
    }

    /// Whether keys are there although their time has come.
    #[inline]
    pub(crate) fn shows_expired(&self) -> bool {
        self.dbs.first().is_some_and(|db| db.shows_expired)
    }

    /// Notes that an effect of the master has been run, and passes it on.
    pub fn applied(&mut self, slot: u32, request: &[u8]) {
        let in_transaction = self.sessions[slot as usize].as_ref().is_some_and(|session| session.transaction.is_some());
        let Some(link) = self.replication.link.as_mut().filter(|link| link.slot == Some(slot)) else { return };
        if in_transaction || link.unit_len > 0 {
            // What finds no memory counts all the same, as it does for the master, and nobody is told of half a transaction.
            let is_whole = link.unit.len() == link.unit_len;
            link.unit_len += request.len();
            if is_whole && link.unit.try_reserve(request.len()).is_ok() {
                link.unit.extend_from_slice(request);
            }
            if !in_transaction {
                let (unit, len) = (core::mem::take(&mut link.unit), core::mem::take(&mut link.unit_len));
                match unit.len() == len {
                    true => self.effects.pass_on(&unit),
                    false => self.effects.lose(len),
                }
            }
            return;
        }
        self.effects.pass_on(request);
    }

    /// Notes that a key has changed which may be a writable replica's own.
    #[cold]
    pub(crate) fn note_own(&mut self, db: usize, key: &[u8]) {
        if self.running.is_none() || self.running == self.master_slot() || self.replication.own.len() >= OWN_LIMIT {
            return;
        }
        let found = self.dbs[db].find_any(key);
        if found.is_some_and(|found| self.dbs[db].expires_ms(found).is_some())
            && let Ok(key) = copied(key)
        {
            self.replication.own.insert((db, key));
        }
    }

    /// Forgets which keys are a replica's own.
    pub(crate) fn forget_own(&mut self) {
        self.replication.own.clear();
    }

    /// Removes those of a replica's own keys whose time has come.
    pub(super) fn expire_own(&mut self) {
        let now_ms = self.now.unix_ms();
        let own = core::mem::take(&mut self.replication.own);
        for (db, key) in own {
            let Some(found) = self.dbs[db].find_any(&key) else { continue };
            match self.dbs[db].expires_ms(found) {
                Some(at_ms) if at_ms < now_ms => {
                    self.effect(db, &[b"DEL", &key]);
                    self.dbs[db].remove(found);
                    self.stats.expired_keys += 1;
                    self.changed(db, &key);
                    self.notify(EventClass::EXPIRED, "expired", db, &key);
                }
                Some(_) => _ = self.replication.own.insert((db, key)),
                None => {}
            }
        }
    }

    pub(crate) fn own_keys(&self) -> usize {
        self.replication.own.len()
    }

    /// Why a client's command may not run on a replica, if so.
    pub(crate) fn refusal_of_write(&self) -> Option<Error> {
        const READONLY: Error = Error::text("READONLY You can't write against a read only replica.");
        (self.replication.link.is_some() && self.options.replica_read_only).then_some(READONLY)
    }

    /// Why a client may not see data that may be old, if so.
    pub(crate) fn refusal_of_stale_data(&self) -> Option<Error> {
        const DOWN: Error =
            Error::text("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.");
        let is_down = self.replication.link.as_ref().is_some_and(|link| !link.is_up());
        (is_down && !self.options.replica_serve_stale_data).then_some(DOWN)
    }

    /// Whether keys are left for the master to remove that there is no room for.
    pub(crate) fn leaves_eviction(&self) -> bool {
        self.replication.link.is_some() && self.options.replica_ignore_maxmemory
    }

    /// Lets keys whose time has come stay, hidden, while nothing may change or a master says when they go; and clients that
    /// write wait, if nothing may change.
    pub(crate) fn apply_expiry_rule(&mut self) {
        self.holds_writes = self.fails_over() || self.is_ending();
        let keeps = self.keeps_expired();
        self.dbs.iter_mut().for_each(|db| db.keeps_expired = keeps);
    }

    /// Whether keys whose time has come stay, hidden.
    pub fn keeps_expired(&self) -> bool {
        self.pause.is_some() || self.holds_writes || self.replication.link.is_some()
    }
}

impl Store {
    /// Takes another name for the history, from which nobody can go on.
    pub(crate) fn change_history(&mut self) {
        self.replication.id = self.new_id();
        (self.replication.former_id, self.replication.former_until) = (Default::default(), None);
    }
}

/// Whether keys are there although their time has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ShowsExpired {
    Yes,
    No,
}
