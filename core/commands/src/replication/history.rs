//! Which history data are of, and how much of it, across restarts.
//!
//! A dump file that was written in one go, by `SAVE` or at the end, says so of the data in it, and the last record of a log
//! that was closed in good order does. A replica that starts goes on with its master from there; a master goes on under a
//! new name, and who has just what it had then need not get everything again.

use super::link::{ID_BYTES, OFFSET_MAX};
use crate::{Store, args};
use alloc::{format, string::String};
use kayvee_resp::Request;

/// What a dump file and a log say.
const ID: &str = "repl-id";
const OFFSET: &str = "repl-offset";
const DB: &str = "repl-stream-db";

const FIELDS: [&str; 3] = [DB, ID, OFFSET];

/// Which history data are of.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    /// It is empty if it is not known.
    id: String,
    /// How many bytes of effects were before, if that is known.
    offset: Option<u64>,
    /// The database that the next effect is about if it does not say.
    db: usize,
}

impl History {
    /// How a log says it, as an effect that changes nothing. Its fields follow.
    pub const WORDS: [&str; 2] = ["REPLCONF", "HISTORY"];

    /// What is said of it, by the names that a dump file has for that.
    pub fn fields(&self) -> [(&'static str, String); FIELDS.len()] {
        let offset = self.offset.unwrap_or_default();
        [(DB, format!("{}", self.db)), (ID, self.id.clone()), (OFFSET, format!("{offset}"))]
    }

    /// Takes what is said, if it is about this.
    pub fn note(&mut self, name: &[u8], text: &[u8]) {
        let number = || args::integer(text).ok().and_then(|number| u64::try_from(number).ok());
        match core::str::from_utf8(name) {
            Ok(ID) if text.len() == ID_BYTES && text.iter().all(u8::is_ascii_alphanumeric) => {
                self.id = String::from_utf8_lossy(text).into_owned();
            }
            Ok(OFFSET) => self.offset = number(),
            Ok(DB) => self.db = number().unwrap_or(0) as usize,
            _ => {}
        }
    }

    /// What a log says, if it is that.
    pub fn of_request(request: Request<'_>) -> Option<History> {
        let is_one = request.len() == 2 + FIELDS.len() && (0..2).all(|at| request[at] == *Self::WORDS[at].as_bytes());
        is_one.then(|| {
            let mut history = History::default();
            FIELDS.iter().zip(2..).for_each(|(name, at)| history.note(name.as_bytes(), &request[at]));
            history
        })
    }

    /// The database that the next effect is about, of so many.
    pub fn db_of(&self, databases: usize) -> usize {
        if self.db < databases { self.db } else { 0 }
    }
}

impl Store {
    /// Which history the data are of as they are now, while no command changes them, if anybody counts what changes.
    pub(crate) fn history(&mut self) -> Option<History> {
        // What has happened until now is part of it.
        self.end_unit();
        let replication = &self.replication;
        // What a script has done so far may be half of an effect of the master.
        if replication.backlog.is_none() || self.scripting.is_busy() {
            return None;
        }
        let db = replication.link.as_ref().map_or(self.effects.db(), |link| self.stream_db(link));
        Some(History { id: replication.id.clone(), offset: Some(self.effects.offset()), db })
    }

    /// Leaves the history that the data are of, for data that are none of it: whoever has a copy of those needs all of these, and
    /// a replica needs all of its master's.
    pub(crate) fn leave_history(&mut self) {
        self.end_unit();
        self.feed_replicas();
        self.hang_up();
        self.drop_replicas();
        self.drop_backlog();
        self.change_history();
    }

    /// Goes on with the history of data that were loaded with an open backlog, which has what was left out of them, if it is
    /// known.
    pub(crate) fn go_on_with(&mut self, history: &History) {
        let known = history.offset.filter(|offset| *offset <= OFFSET_MAX && !history.id.is_empty());
        let Some(offset) = known else {
            self.drop_backlog();
            self.effects.set_offset(0);
            return;
        };
        log::info!("The data are those of history {} at offset {offset}", history.id);
        self.effects.set_offset(offset + self.effects.offset());
        let db = history.db_of(self.dbs.len());
        let replication = &mut self.replication;
        if let Some(backlog) = &mut replication.backlog {
            backlog.move_by(offset);
        }
        let id = history.id.clone();
        match &mut replication.link {
            Some(link) => (link.db, replication.id) = (db, id),
            None => (replication.former_id, replication.former_until) = (id, Some(offset)),
        }
    }
}
