//! Commands about the log.

use super::{AtEnd, Until};
use crate::{
    Context, Error, Origin, Outcome, Store,
    blocking::{OnTimeout, Patience},
    options::ShutdownOn,
    table::{Command, Flags, Group},
};
use kayvee_resp::Request;

const ADMIN: Flags = Flags::ADMIN.union(Flags::NOSCRIPT).union(Flags::NO_ASYNC_LOADING);

pub static COMMANDS: &[Command] = &[Command {
    name: "bgrewriteaof",
    arity: 1,
    flags: ADMIN,
    group: Group::Server,
    handler: Some(bgrewriteaof),
    ..Command::ROW
}];

fn bgrewriteaof(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    let store = &mut *context.store;
    let dir = store.options.dir.clone();
    store.need_log(&dir).map_err(|why| alloc::format!("ERR Can't execute an AOF background rewriting: {why}"))?;
    if store.durable.compaction().is_some() {
        return Err(Error::text("ERR Background append only file rewriting already in progress"));
    }
    store.durable.request_compaction();
    let waits = context.origin != Origin::Client || store.is_saving();
    context.reply.simple(match waits {
        true => "Background append only file rewriting scheduled",
        false => "Background append only file rewriting started",
    });
    Ok(())
}

/// That of a client that waits however long it takes.
const FOR_EVER: Patience = Patience { kind: None, timeout_ns: None, on_timeout: OnTimeout::NullArray };

impl Context<'_> {
    /// `BGSAVE` with a log: what it has to save is all data, written down.
    pub(crate) fn save_to_log_in_background(&mut self, may_schedule: bool) -> Outcome {
        if self.store.durable.compaction().is_some() && !may_schedule {
            return Err(Error::text("ERR Background save already in progress"));
        }
        let runs = self.store.durable.compaction().is_some();
        self.store.durable.request_compaction();
        self.reply.simple(if runs { "Background saving scheduled" } else { "Background saving started" });
        Ok(())
    }

    /// `SAVE` with a log: the client waits until all data is on stable storage. Others are served meanwhile.
    pub(crate) fn save_to_log(&mut self, request: Request<'_>) -> Outcome {
        if self.store.durable.compaction().is_some() {
            return Err(Error::text("ERR Background save already in progress"));
        }
        let before = self.store.durable.status;
        self.store.durable.request_compaction();
        if !self.may_block() {
            // It has begun, and nobody can wait here.
            self.reply.ok();
            return Ok(());
        }
        self.wait_for_log(request, FOR_EVER, Until::Saved { ended: before.ended, succeeded: before.succeeded })
    }
}

impl Context<'_> {
    /// `DEBUG LOADAOF`: the client waits until all data has been taken back from the log.
    pub(crate) fn load_from_log(&mut self, request: Request<'_>) -> Outcome {
        if !self.store.is_logging() {
            return Err(Error::text("ERR there is no log to load: it needs appendonly yes"));
        }
        if !self.may_block() {
            return Err(Error::text("ERR DEBUG LOADAOF cannot run in a transaction or script"));
        }
        self.wait_for_log(request, FOR_EVER, Until::Reloaded)?;
        self.store.durable.reload_is_wanted = true;
        Ok(())
    }
}

impl Store {
    /// Begins to write all data down, if that is not being done.
    pub(crate) fn save_to_log_soon(&mut self) {
        if !self.durable.is_compacting() {
            self.durable.request_compaction();
        }
    }

    /// Whether the data are on their way to a log that was just switched on, which is worth nothing before they are there.
    pub(crate) fn log_lacks_its_beginning(&self) -> bool {
        self.options.appendonly && !self.durable.is_whole
    }

    /// Lets the end wait until what was acknowledged is on stable storage, and all data if it is to be saved.
    pub(crate) fn save_to_log_at_end(&mut self, saves: bool, on: ShutdownOn) {
        // One that has found no room for its beginning since its start is as it was.
        let is_as_before = self.durable.refuses && !on.save && self.unsaved_changes() == 0;
        let is_forced = on.force || on.nosave || is_as_before;
        self.durable.at_end = AtEnd { saves, ended: self.durable.status.ended, is_forced };
        // What is being written down for the first time is what would be saved.
        let is_first = self.durable.is_compacting() && self.log_lacks_its_beginning();
        if saves && (on.save || !is_first) {
            self.durable.request_compaction();
        }
    }

    /// Puts options about the log into force. `was_logging` is what `appendonly` said before.
    pub(crate) fn apply_log_options(&mut self, was_logging: bool) {
        match (was_logging, self.options.appendonly) {
            // What was changed meanwhile is not in the log: it has to begin anew.
            (false, true) => self.durable.request_compaction(),
            (true, false) => {
                self.recheck_copies();
                let was_wanted = !self.has_log() && core::mem::take(&mut self.durable.is_wanted);
                if self.give_up_compaction("appendonly is switched off") || was_wanted {
                    self.durable.status.ended += 1;
                }
                self.stop_logging();
                // The next start reads the dump file, which nobody has written as long as there was a log.
                if !self.has_log() && self.durable.made.is_none() {
                    self.save_soon();
                }
            }
            _ => {}
        }
    }
}
