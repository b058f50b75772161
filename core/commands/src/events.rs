//! Keyspace events: what happens to keys, told to those who subscribe to it, by `notify-keyspace-events`.

use crate::{Store, table::bits};
use alloc::{format, string::String, vec::Vec};
use kayvee_keyspace::Names;

/// Kinds of keyspace events. They combine with `|`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventClass(pub u32);

bits! { EventClass:
    /// Tell it in the channel of the key.
    KEYSPACE = 0 "K",
    /// Tell it in the channel of the event.
    KEYEVENT = 1 "E",
    /// Commands for keys of any kind.
    GENERIC = 2 "g",
    /// Strings.
    STRING = 3 "$",
    /// Lists.
    LIST = 4 "l",
    /// Sets.
    SET = 5 "s",
    /// Hashes.
    HASH = 6 "h",
    /// Sorted sets.
    SORTED_SET = 7 "z",
    /// Keys whose time has come.
    EXPIRED = 8 "x",
    /// Keys that made room for others.
    EVICTED = 9 "e",
    /// Streams.
    STREAM = 10 "t",
    /// Keys that were not there. Not part of [`ALL`](Self::ALL).
    KEY_MISS = 11 "m",
    /// Modules' own.
    MODULE = 12 "d",
    /// New keys. Not part of [`ALL`](Self::ALL).
    NEW = 13 "n",
}

impl EventClass {
    /// What `A` stands for.
    pub const ALL: EventClass = EventClass(
        EventClass::GENERIC.0
            | EventClass::STRING.0
            | EventClass::LIST.0
            | EventClass::SET.0
            | EventClass::HASH.0
            | EventClass::SORTED_SET.0
            | EventClass::EXPIRED.0
            | EventClass::EVICTED.0
            | EventClass::STREAM.0
            | EventClass::MODULE.0,
    );
}

impl EventClass {
    /// Reads letters, as `notify-keyspace-events` takes them.
    pub fn parse(letters: &[u8]) -> Option<EventClass> {
        letters.iter().try_fold(EventClass::NONE, |classes, letter| {
            let known = EventClass::NAMES.iter().find(|(_, name)| name.as_bytes() == [*letter]);
            match letter {
                b'A' => Some(classes | EventClass::ALL),
                _ => known.map(|(class, _)| classes | *class),
            }
        })
    }

    /// The letters, as Redis orders them.
    pub fn letters(self) -> String {
        const ORDER: &str = "g$lshzxetdnKEm";
        let all = self.contains(EventClass::ALL);
        let is_shown = |letter: &char| {
            let (class, _) =
                EventClass::NAMES.iter().find(|(_, name)| name.starts_with(*letter)).expect("all have one");
            self.contains(*class) && !(all && EventClass::ALL.contains(*class))
        };
        let start = if all { "A" } else { "" };
        start.chars().chain(ORDER.chars().filter(is_shown)).collect()
    }
}

impl Store {
    /// Notes that a key has changed.
    pub fn changed(&mut self, db: usize, key: &[u8]) {
        self.changes += 1;
        let names = &self.dbs.as_slice()[db];
        if names.new_names.has_any() || names.expired_names.has_any() {
            self.report_names(db);
        }
        if !self.watchers.is_empty() {
            self.break_watches(db, key);
        }
        if !self.waiting.is_empty() {
            self.wake_waiting(db, key);
        }
        if self.replication.has_master() {
            self.note_own(db, key);
        }
        if self.tracking.is_in_use() {
            self.invalidate(key);
        }
    }

    /// Notes that all keys of a database have changed: they are gone, or another database's keys take their place.
    pub fn db_changed(&mut self, db: usize, replacement: Option<usize>) {
        self.changes += 1;
        if !self.watchers.is_empty() {
            self.break_all_watches(db, replacement);
        }
    }

    /// Tells which keys of a database were found expired, to those who want to know.
    pub fn report_expired(&mut self, db: usize) {
        let are_wanted = self.wants_expired_names();
        // Whoever finds a key expired has not changed it.
        self.tracking.is_expiring = true;
        for name in taken(&mut self.dbs[db].expired_names, are_wanted) {
            self.effect(db, &[b"DEL", &name]);
            self.notify(EventClass::EXPIRED, "expired", db, &name);
            self.changed(db, &name);
            self.effects.expired += 1;
        }
        self.tracking.is_expiring = false;
    }

    /// Whether a database has a key. One that was found expired is told of before anything takes its place.
    pub(crate) fn is_there(&mut self, db: usize, key: &[u8]) -> bool {
        let is_there = self.dbs[db].find(key, self.now.unix_ms()).is_some();
        if self.dbs[db].expired_names.has_any() {
            self.report_expired(db);
        }
        is_there
    }

    /// The same for all databases.
    #[inline(never)]
    pub fn report_all_expired(&mut self) {
        if !self.wants_expired_names() {
            return;
        }
        for db in 0..self.dbs.len() {
            if self.dbs[db].expired_names.has_any() {
                self.report_expired(db);
            }
        }
    }

    /// Tells which keys of a database were found expired, and then which are new: one may have taken the place of the other.
    #[inline(never)]
    pub(crate) fn report_names(&mut self, db: usize) {
        if self.dbs[db].expired_names.has_any() {
            self.report_expired(db);
        }
        self.report_new(db);
    }

    /// Tells which keys of a database are new, to those who want to know.
    fn report_new(&mut self, db: usize) {
        let are_wanted = self.wants_new_names();
        for name in taken(&mut self.dbs[db].new_names, are_wanted) {
            self.notify(EventClass::NEW, "new", db, &name);
        }
    }

    /// Lets the databases note which keys expire or are new, if anybody wants to know.
    pub fn watch_expiry(&mut self) {
        if self.wants_expired_names() {
            self.dbs.iter_mut().for_each(|db| db.expired_names.note());
        }
        if self.wants_new_names() {
            self.dbs.iter_mut().for_each(|db| db.new_names.note());
        }
    }

    fn wants_new_names(&self) -> bool {
        self.options.notify_keyspace_events.contains(EventClass::NEW)
    }

    fn wants_expired_names(&self) -> bool {
        self.options.notify_keyspace_events.contains(EventClass::EXPIRED)
            || self.tracking.is_in_use()
            || self.effects.are_wanted()
            || !self.watchers.is_empty()
            || !self.waiting.is_empty()
    }

    /// Tells those who listen to keyspace events.
    #[inline(always)]
    pub fn notify(&mut self, class: EventClass, event: &str, db: usize, key: &[u8]) {
        let wanted = self.options.notify_keyspace_events;
        if wanted.contains(class) {
            self.publish_event(wanted, event, db, key);
        }
    }

    #[cold]
    fn publish_event(&mut self, wanted: EventClass, event: &str, db: usize, key: &[u8]) {
        if wanted.contains(EventClass::KEYSPACE) {
            let mut channel = format!("__keyspace@{db}__:").into_bytes();
            // Without memory for the name nobody can be told.
            if channel.try_reserve(key.len()).is_ok() {
                channel.extend_from_slice(key);
                self.publish(&channel, event.as_bytes());
            }
        }
        if wanted.contains(EventClass::KEYEVENT) {
            self.publish(format!("__keyevent@{db}__:{event}").as_bytes(), key);
        }
    }
}

/// The names noted so far; more are noted if they are still wanted.
fn taken(names: &mut Names, are_wanted: bool) -> Vec<Vec<u8>> {
    let taken = names.take();
    if are_wanted {
        names.note();
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_read_back() {
        for (given, shown) in [("", ""), ("KEA", "AKE"), ("Ex", "xE"), ("g$lshzxetdKEnm", "AnKEm"), ("AKEm", "AKEm")] {
            assert_eq!(EventClass::parse(given.as_bytes()).unwrap().letters(), shown);
        }
        assert_eq!(EventClass::parse(b"q"), None);
    }
}
