//! Clients that wait for the log, to be saved or loaded.

use crate::{ClientRef, Context, Error, Origin, Outcome, Store, blocking::Patience};
use kayvee_resp::Request;

/// What a client waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    /// The end of a compaction that began after so many had ended, and so many of them well.
    Saved { ended: u64, succeeded: u64 },
    /// That all data has been taken back from the log.
    Reloaded,
}

/// A client that waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiter {
    client: ClientRef,
    until: Until,
}

impl Context<'_> {
    /// Lets the client wait for this, if it may wait at all.
    pub(crate) fn wait_for_log(&mut self, request: Request<'_>, patience: Patience, until: Until) -> Outcome {
        self.block(request.from(0), core::iter::empty(), patience)?;
        if !self.may_block() {
            return Ok(());
        }
        let slot = self.slot;
        let id = self.session().id;
        let waiters = &mut self.store.durable.waiters;
        waiters.try_reserve(1).map_err(|_| Error::OUT_OF_MEMORY)?;
        waiters.push(Waiter { client: ClientRef { slot, id }, until });
        Ok(())
    }
}

impl Store {
    /// Answers those who have waited for what the log has done by now.
    pub(super) fn end_log_waits(&mut self) {
        if self.durable.waiters.is_empty() {
            return;
        }
        let mut waiters = core::mem::take(&mut self.durable.waiters);
        waiters.retain(|waiter| {
            let still_waits = self.client(waiter.client).is_some_and(|session| session.waits.is_some());
            if !still_waits {
                return false;
            }
            let status = &self.durable.status;
            let reply: Option<fn(&mut Context<'_>)> = match waiter.until {
                Until::Reloaded if self.durable.reload_is_wanted => None,
                Until::Reloaded if self.durable.reload_failed => {
                    Some(|context| context.reply.error(b"ERR Error trying to load the log, check server logs."))
                }
                Until::Reloaded => Some(|context| context.reply.ok()),
                Until::Saved { ended, .. } if status.ended <= ended || self.durable.is_compacting() => None,
                Until::Saved { succeeded, .. } if status.succeeded > succeeded => Some(|context| context.reply.ok()),
                Until::Saved { .. } => Some(|context| context.reply.error(b"ERR")),
            };
            let Some(reply) = reply else { return true };
            self.run_as(waiter.client.slot, Origin::Retry, reply);
            self.unblock(waiter.client.slot);
            false
        });
        self.durable.waiters = waiters;
    }
}
