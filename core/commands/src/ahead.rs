//! Looking ahead: the keys and the members that requests are about are [fetched together](kayvee_keyspace::Db::fetch) before
//! the first of them is used.

use crate::{
    Context,
    table::{Begin, Categories, Command, Find, Keys},
};
use kayvee_keyspace::Db;
use kayvee_resp::{Request, first_arguments};

/// From so many arguments on a request may have several keys or members.
const MANY_ARGUMENTS: usize = 5;
/// What is fetched of many keys before the first one is used: as much as the nearest cache holds.
const KEYS_AHEAD: usize = 256;
/// Commands about values with members that are found by name.
const WITH_MEMBERS: u32 = Categories::SET.0 | Categories::HASH.0 | Categories::SORTED_SET.0;

/// Where a request has members: the first one, and how far the next one is from it. A key is before the first.
struct Members {
    first: usize,
    step: usize,
}

impl Command {
    /// Whether it is about a value with members.
    #[inline]
    pub(crate) fn has_members(&self) -> bool {
        self.categories.0 & WITH_MEMBERS != 0
    }

    /// Where its members are. Of a command that has none, other arguments are taken for such; nothing comes of it.
    fn members(&self) -> Members {
        match self.name {
            "zadd" => Members { first: 3, step: 2 },
            "zincrby" => Members { first: 3, step: 1 },
            "hset" | "hmset" => Members { first: 2, step: 2 },
            _ => Members { first: 2, step: 1 },
        }
    }
}

impl Context<'_> {
    /// Fetches what the next requests at the start of `bytes` are about, the first of which is one of this command. Returns how
    /// many requests need not be looked ahead at again.
    #[inline(never)]
    pub(crate) fn look_ahead(&mut self, command: &Command, bytes: &[u8]) -> usize {
        let db = self.db();
        if db.is_beyond_caches() {
            db.fetch(&mut first_arguments(bytes).map(|[key, ..]| key));
        }
        if command.has_members()
            && let Some([key, ..]) = first_arguments(bytes).next()
            && let Some(large) = db.members(key)
        {
            let at = command.members().first - 1;
            let of_the_key = first_arguments(bytes).take_while(|&[other, ..]| other == key);
            large.fetch(&mut of_the_key.map(|arguments| arguments[at]));
        }
        Db::FETCHED_AT_A_TIME
    }

    /// Fetches the keys or members of one request, if there are many.
    #[inline]
    pub(crate) fn fetch_many(&mut self, command: &Command, request: Request<'_>) {
        if request.len() >= MANY_ARGUMENTS && (command.has_members() || self.db().is_beyond_caches()) {
            self.fetch_arguments(command, request);
        }
    }

    #[inline(never)]
    fn fetch_arguments(&mut self, command: &Command, request: Request<'_>) {
        let [Keys { begin: Begin::Index(1), find: Find::Range { last, step, .. }, .. }] = command.keys else { return };
        let db = self.db();
        if *last == -1 && db.is_beyond_caches() {
            let mut keys = request.from(1).step_by(*step as usize).take(KEYS_AHEAD);
            while db.fetch(&mut keys) == Db::FETCHED_AT_A_TIME {}
        } else if *last == 0
            && command.has_members()
            && let Some(large) = db.members(&request[1])
        {
            let Members { first, step } = command.members();
            let mut members = request.from(first).step_by(step).take(KEYS_AHEAD);
            while large.fetch(&mut members) == Db::FETCHED_AT_A_TIME {}
        }
    }
}
