//! The end of the store, in good order.
//!
//! ```text
//! SHUTDOWN, a signal ──► clients that write wait ──► replicas have every effect ──► what is to be saved is ──► the end
//!                                     └───── SHUTDOWN ABORT, or saving fails: everything as before ─────┘
//! ```

use crate::{
    Context, Error, Outcome, Store,
    args::is,
    blocking::{OnTimeout, Patience},
    options::ShutdownOn,
};
use kayvee_resp::Request;

/// An end that waits for replicas, or for a script.
#[derive(Clone, Copy)]
pub(crate) struct Ending {
    on: ShutdownOn,
    /// When it waits no more, in monotonic nanoseconds.
    until_ns: u64,
    /// How many bytes of effects replicas are to have.
    offset: u64,
    /// Whether it begins when a script is over, half of which would be saved.
    awaits_script: bool,
}

/// What clients hear that have asked for an end which does not come.
pub(crate) const FAILED: Error = Error::text("ERR Errors trying to SHUTDOWN. Check logs.");
/// That of a client which waits for the end, however long it takes.
const TO_THE_END: Patience = Patience { kind: None, timeout_ns: None, on_timeout: OnTimeout::EndFailed };

pub fn shutdown(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    // Redis would end: it believes its master whatever that sends.
    if context.is_from_master() {
        return Err(Error::text("ERR SHUTDOWN is not for a master to ask for"));
    }
    let mut on = ShutdownOn::default();
    let mut aborts = false;
    for word in request.from(1) {
        if is(word, "abort") {
            aborts = true;
        } else if !on.add(word) {
            return Err(Error::SYNTAX);
        }
    }
    if (aborts && on != ShutdownOn::default()) || (on.save && on.nosave) {
        return Err(Error::SYNTAX);
    }
    let store = &mut *context.store;
    if aborts {
        if !store.is_ending() {
            return Err(Error::text("ERR No shutdown in progress."));
        }
        store.stay();
        log::warn!("Shutdown manually aborted.");
        context.reply.ok();
        return Ok(());
    }
    if !on.nosave && store.scripting_is_busy() {
        return Err(store.scripting.busy_error());
    }
    let session = context.session();
    log::warn!("SHUTDOWN by client {} at {}", session.id, session.remote);
    if !context.store.begin_shutdown(on) {
        return Err(FAILED);
    }
    context.block(request.from(0), core::iter::empty(), TO_THE_END)
}

impl Store {
    /// Whether the store is about to end: clients that write wait meanwhile.
    pub fn is_ending(&self) -> bool {
        self.ending.is_some() || self.shutdown.is_some()
    }

    /// Begins to end, unless it has begun. Returns whether that may come to an end: not if what is to be saved cannot be.
    #[inline(never)]
    pub fn begin_shutdown(&mut self, on: ShutdownOn) -> bool {
        let is_halfway = self.scripting.is_halfway();
        let saves = on.save || !(on.nosave || self.options.save.is_empty());
        // Whoever saves nothing need not wait for a script, which may be endless.
        if self.is_ending() && (saves || !is_halfway) {
            return true;
        }
        if saves && is_halfway {
            log::info!("Waiting for a script before shutting down.");
            self.ending = Some(Ending { on, until_ns: u64::MAX, offset: 0, awaits_script: true });
            return true;
        }
        // What has happened in this turn may be no whole unit yet.
        self.end_unit();
        let offset = self.effects.offset();
        let timeout_ns = self.option_number("shutdown-timeout").saturating_mul(1_000_000_000);
        // What a replica lacks it gets from its own master; and a script that goes on would keep replicas behind for ever.
        let may_wait = !on.now && !self.replication.has_master() && !self.scripting.is_busy();
        if !may_wait || timeout_ns == 0 || self.lagging_replicas(offset) == 0 {
            return self.finish_shutdown(on, offset);
        }
        log::info!("Waiting for replicas before shutting down.");
        let until_ns = self.now.monotonic_ns.saturating_add(timeout_ns);
        self.ending = Some(Ending { on, until_ns, offset, awaits_script: false });
        self.apply_expiry_rule();
        // Its time is over at one of those that follow.
        self.replication.next_tick_ns = self.now.monotonic_ns;
        // Otherwise they would say what they have once a second.
        self.tell_replicas(&[b"REPLCONF", b"GETACK", b"*"]);
        true
    }

    /// Ends once replicas have everything, or have been waited for long enough, and no script is halfway.
    pub(crate) fn tick_shutdown(&mut self) {
        let Some(ending) = self.ending.filter(|_| !self.scripting.is_halfway()) else { return };
        if ending.awaits_script {
            self.ending = None;
            self.begin_shutdown(ending.on);
        } else if ending.until_ns <= self.now.monotonic_ns || self.lagging_replicas(ending.offset) == 0 {
            self.finish_shutdown(ending.on, ending.offset);
        }
    }

    /// Until when the end may wait for replicas, in monotonic nanoseconds, if it does.
    pub(crate) fn shutdown_waits_until_ns(&self) -> Option<u64> {
        self.ending.map(|ending| ending.until_ns)
    }

    fn finish_shutdown(&mut self, on: ShutdownOn, offset: u64) -> bool {
        self.report_replicas(offset);
        if !self.save_at_end(on) {
            self.call_off_end();
            return false;
        }
        self.ending = None;
        self.shutdown = Some(0);
        self.apply_expiry_rule();
        true
    }

    #[inline(never)]
    fn lagging_replicas(&self, offset: u64) -> usize {
        self.each_replica().filter(|(_, replica)| !replica.has(offset)).count()
    }

    fn report_replicas(&self, offset: u64) {
        for (slot, replica) in self.each_replica().filter(|(_, replica)| !replica.has(offset)) {
            let remote = self.sessions[slot as usize].as_deref().map_or("", |session| &session.remote);
            let behind_bytes = offset.saturating_sub(replica.acknowledged());
            log::warn!("Lagging replica {remote} reported offset {behind_bytes} behind master");
        }
        let all = self.replicas.len();
        if all > 0 {
            let in_sync = all - self.lagging_replicas(offset);
            log::info!("{in_sync} of {all} replicas are in sync when shutting down.");
        }
    }

    /// Goes on instead of an end that would lose data.
    pub(crate) fn call_off_end(&mut self) {
        log::warn!("Errors trying to shut down the server. Check the logs for more information.");
        self.stay();
    }

    /// Goes on instead of ending. Those who have asked for the end hear so.
    fn stay(&mut self) {
        (self.ending, self.shutdown) = (None, None);
        self.apply_expiry_rule();
        self.releases_held = true;
        for slot in 0..self.sessions.len() as u32 {
            let waits = self.sessions[slot as usize].as_deref().and_then(|session| session.waits.as_deref());
            if waits.is_some_and(|wait| wait.on_timeout == OnTimeout::EndFailed) {
                self.give_up_waiting(slot, Some(&FAILED));
            }
        }
    }
}
