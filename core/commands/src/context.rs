use crate::{Error, EventClass, Session, Store};
use kayvee_keyspace::{Collection, Db, Edit, Found, Kind, OutOfMemory, Records};
use kayvee_resp::Writer;

/// Where a command comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A client has just sent it.
    Client,
    /// A client sent it and was blocked; what it waits for may be there now.
    Retry,
    /// It was queued in a transaction.
    Transaction,
    /// A script calls it.
    Script,
    /// It had its effect once, and is run again to take that over.
    Replay,
}

/// What one command works with.
pub struct Context<'a> {
    /// The data, the options and the clients.
    pub store: &'a mut Store,
    /// Where the reply goes.
    pub reply: Writer<'a>,
    /// The slot of the client that sent the command.
    pub slot: u32,
    /// Where the command comes from.
    pub origin: Origin,
    /// Whether the command has not been answered, since its client waits for something.
    pub(crate) is_blocked: bool,
    /// Whether the reply is a message, which comes even to a client that wants no replies.
    pub(crate) is_message: bool,
    /// Whether the command has replied with an error that was counted already, or that is part of its reply.
    pub(crate) has_failed: bool,
}

impl<'a> Context<'a> {
    /// For one command of the client in `slot`, whose reply is written to `reply`.
    pub fn new(store: &'a mut Store, reply: Writer<'a>, slot: u32, origin: Origin) -> Context<'a> {
        Context { store, reply, slot, origin, is_blocked: false, is_message: false, has_failed: false }
    }

    /// The client that sent the command.
    pub fn session(&mut self) -> &mut Session {
        let session = self.store.sessions.as_mut_slice()[self.slot as usize].as_deref_mut();
        session.expect("a client that sends commands has a session")
    }

    /// The number of the client's database.
    #[inline(always)]
    pub fn db_index(&self) -> usize {
        self.store.sessions.as_slice()[self.slot as usize].as_ref().map_or(0, |session| session.db)
    }

    /// The client's database.
    pub fn db(&mut self) -> &mut Db {
        let index = self.db_index();
        &mut self.store.dbs.as_mut_slice()[index]
    }

    /// Whether it had its effect before, or a script calls it that did.
    pub(crate) fn is_replayed(&self) -> bool {
        self.origin == Origin::Replay || self.store.shows_expired()
    }

    /// The time of this turn in milliseconds since 1970.
    pub fn now_ms(&self) -> u64 {
        self.store.now.unix_ms()
    }

    /// Whether a key that is given this time goes at once: it has passed, and neither a master nor what is replayed says when
    /// keys go. With one the key stays, hidden.
    pub fn goes_at_once(&self, at_ms: u64) -> bool {
        at_ms <= self.now_ms() && !self.store.replication.has_master() && !self.is_replayed()
    }

    /// Finds a key for reading its value of this kind: counts a hit or miss and notes the use.
    pub fn read(&mut self, key: &[u8], kind: Kind) -> Result<Option<Found>, Error> {
        let Some(found) = self.find_touched(key) else {
            self.missed(key);
            return Ok(None);
        };
        self.store.stats.keyspace_hits += 1;
        if self.db().kind(found) == kind { Ok(Some(found)) } else { Err(Error::WRONG_TYPE) }
    }

    /// Finds a key for reading its value of any kind: counts a hit or miss and notes the use.
    pub fn read_any(&mut self, key: &[u8]) -> Option<Found> {
        let found = self.find_touched(key);
        match found {
            Some(_) => self.store.stats.keyspace_hits += 1,
            None => self.missed(key),
        }
        found
    }

    /// Finds a key for reading about it: counts a hit or miss, but does not note a use.
    pub fn peek(&mut self, key: &[u8]) -> Option<Found> {
        let found = self.find(key);
        match found {
            Some(_) => self.store.stats.keyspace_hits += 1,
            None => self.missed(key),
        }
        found
    }

    fn missed(&mut self, key: &[u8]) {
        self.store.stats.keyspace_misses += 1;
        self.notify(EventClass::KEY_MISS, "keymiss", key);
    }

    /// Finds a key for changing its value of this kind: notes the use, but counts no hit or miss.
    #[inline]
    pub fn find_to_change(&mut self, key: &[u8], kind: Kind) -> Result<Option<Found>, Error> {
        match self.find_touched(key) {
            Some(found) if self.db().kind(found) != kind => Err(Error::WRONG_TYPE),
            found => Ok(found),
        }
    }

    /// Finds a key of any kind and notes the use.
    #[inline(always)]
    pub fn find_touched(&mut self, key: &[u8]) -> Option<Found> {
        let found = self.find_here(key)?;
        let now_ms = self.now_ms();
        if !self.session().no_touch {
            self.db().touch(found, now_ms);
        }
        Some(found)
    }

    /// Changes the collection at `key`, or makes one where nothing was `found`; see [`Db::edit`].
    pub fn edit<C: Collection, R>(
        &mut self,
        key: &[u8],
        found: Option<Found>,
        change: impl FnOnce(&mut C, &mut Records) -> Result<R, OutOfMemory>,
    ) -> Result<Edit<R>, Error> {
        let now_ms = self.now_ms();
        Ok(self.db().edit(key, found, now_ms, change)?)
    }

    /// Removes a key, which is told as an event.
    pub fn remove(&mut self, key: &[u8], found: Found) {
        self.db().remove(found);
        self.changed(EventClass::GENERIC, "del", key);
    }

    /// Notes that a key has changed: whoever watches it, waits for it or keeps a copy of it learns of it, and those who
    /// listen to keyspace events as well.
    pub fn changed(&mut self, class: EventClass, event: &'static str, key: &[u8]) {
        let db = self.db_index();
        self.store.changed(db, key);
        self.store.notify(class, event, db, key);
    }

    /// Notes that a collection has lost members, and with the last of them its key, if that `is_gone`.
    pub fn shrunk(&mut self, class: EventClass, event: &'static str, key: &[u8], is_gone: bool) {
        self.changed(class, event, key);
        if is_gone {
            self.changed(EventClass::GENERIC, "del", key);
        }
    }

    /// Tells those who listen to keyspace events.
    #[inline(always)]
    pub fn notify(&mut self, class: EventClass, event: &'static str, key: &[u8]) {
        let db = self.db_index();
        self.store.notify(class, event, db, key);
    }

    /// Finds a key and leaves its statistics alone.
    pub fn find(&mut self, key: &[u8]) -> Option<Found> {
        self.find_here(key)
    }

    #[inline(always)]
    fn find_here(&mut self, key: &[u8]) -> Option<Found> {
        let (index, now_ms) = (self.db_index(), self.now_ms());
        let db = &mut self.store.dbs.as_mut_slice()[index];
        let found = db.find(key, now_ms);
        if found.is_none() && db.expired_names.has_any() {
            self.store.report_expired(index);
        }
        found
    }
}
