//! Keyspace events: what happens to keys, told to those who subscribe to it, by `notify-keyspace-events`.

use crate::{Store, table::bits};

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

impl Store {
    /// Notes that a key has changed.
    pub fn changed(&mut self, _db: usize, _key: &[u8]) {
        self.changes += 1;
    }

    /// Tells those who listen to keyspace events.
    #[inline]
    pub fn notify(&mut self, _class: EventClass, _event: &'static str, _db: usize, _key: &[u8]) {}
}
