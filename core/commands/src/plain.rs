//! Plain requests that follow each other in what one client has sent: what would be asked before each of them is asked once,
//! where no answer can change in between. All others go the long way, through [`Store::execute`].

use crate::{
    Origin, ReplyMode, Store,
    output::PART_BYTES,
    table::{Categories, Command, Flags},
};
use kayvee_resp::{Limits, Parser, Progress, ProtocolError, Request};

/// All that a plain command may be.
const PLAIN: Flags = Flags(Flags::WRITE.0 | Flags::READONLY.0 | Flags::DENYOOM.0 | Flags::FAST.0);
/// What it may not be: it could change what has been asked.
const NOT_PLAIN: Categories = Categories(
    Categories::ADMIN.0
        | Categories::BLOCKING.0
        | Categories::DANGEROUS.0
        | Categories::PUBSUB.0
        | Categories::SCRIPTING.0
        | Categories::TRANSACTION.0,
);

/// What was done of a client's bytes.
pub struct Executed {
    /// Bytes of requests that were executed.
    pub len: usize,
    /// What the parser says of the request behind them.
    pub next: Result<Progress, ProtocolError>,
}

impl Command {
    /// Whether it reads or changes data and does nothing else.
    #[inline]
    fn is_plain(&self) -> bool {
        PLAIN.contains(self.flags) && self.categories.0 & NOT_PLAIN.0 == 0 && self.subcommands.is_empty()
    }
}

impl Store {
    /// Whether a plain request of the client in `slot` may run as far as that depends on the client and the state of the
    /// store, and nobody else has to be told of it: the short way through all that the long one asks.
    #[inline]
    pub fn is_calm(&self, slot: u32) -> bool {
        let Some(session) = self.sessions.get(slot as usize).and_then(Option::as_deref) else { return false };
        let client = session.transaction.is_none()
            && session.replica.is_none()
            && !session.is_master
            && !session.is_subscriber()
            && session.reply_mode == ReplyMode::On
            && (session.authenticated || !self.acl.needs_login())
            && self.acl.get(session.user).is_some_and(|user| user.is_unbounded());
        let store = self.pause_in_force().is_none()
            && !self.migrates()
            && !self.durable.is_congested
            && !self.scripting.is_busy()
            && !self.replication.has_master()
            && !self.is_monitored()
            && !self.tracking.is_in_use()
            && self.messages_to_running.is_empty();
        client && store && !self.is_full() && self.unsaved_error().is_none() && !self.lacks_replicas()
    }

    /// Executes the plain requests at the start of `bytes` for the client in `slot`, which [is calm](Self::is_calm). The
    /// first one is parsed and has `len` bytes.
    #[inline]
    pub fn execute_plain(
        &mut self,
        slot: u32,
        parser: &mut Parser,
        bytes: &[u8],
        limits: Limits,
        len: usize,
    ) -> Executed {
        let offset = self.effects.offset();
        let mut executed = Executed { len: 0, next: Ok(Progress::Complete(len)) };
        let mut last = None;
        let mut requests = 0;
        self.run_as(slot, Origin::Client, |context| {
            let is_beyond_caches = context.db().is_beyond_caches();
            // How many requests have been looked ahead at.
            let mut fetched = 0_usize;
            while let Ok(Progress::Complete(len)) = executed.next {
                let request = parser.request(&bytes[executed.len..]);
                let Some(command) = context.store.plain_command(request, last) else { break };
                let looks_ahead = fetched == 0 && (is_beyond_caches || command.has_members());
                if looks_ahead && bytes.len() > executed.len + len {
                    fetched = context.look_ahead(command, &bytes[executed.len..]);
                }
                fetched = fetched.saturating_sub(1);
                let start = context.reply.len();
                context.call_unseen(command, request);
                let has_failed = context.reply.failed();
                if has_failed {
                    context.reply_no_memory(start);
                }
                context.store.end_unit();
                (last, requests) = (Some(command), requests + 1);
                executed.len += len;
                parser.reset();
                executed.next = parser.parse(&bytes[executed.len..], limits);
                // The end of the connection, whoever waits for a key, and a part of the output that is long enough.
                if has_failed || !context.store.changed_keys.is_empty() || context.reply.len() >= PART_BYTES {
                    break;
                }
            }
        });
        if let Some(command) = last {
            self.stats.commands_processed += requests;
            let now_ns = self.now.monotonic_ns;
            if let Some(session) = self.sessions[slot as usize].as_deref_mut() {
                session.requests += requests;
                session.last_request_ns = now_ns;
                session.last_command = Some((command, None));
            }
            self.note_written(slot, offset);
            self.serve_waiting();
        }
        executed
    }

    /// The command of a request, if it is plain and there is room for what it does. Mostly it is that of the last one.
    #[inline]
    fn plain_command(&self, request: Request<'_>, last: Option<&'static Command>) -> Option<&'static Command> {
        let command = self.commands.find_again(request.get(0)?, last)?;
        let is_known = last.is_some_and(|last| core::ptr::eq(last, command));
        if !(is_known || command.is_plain()) || !command.accepts(request.len()) {
            return None;
        }
        let needs_memory = command.flags.contains(Flags::DENYOOM);
        // Behind one that may have filled memory, any command makes room first. Before the first one that was asked just now.
        let may_be_full = last.is_some_and(|last| needs_memory || last.flags.contains(Flags::DENYOOM));
        if may_be_full && self.is_full() || needs_memory && request.bytes_len() as u64 > self.data_room_bytes() {
            return None;
        }
        // PING tells of a failing log as well.
        let (reads, writes) = (command.flags.contains(Flags::READONLY), command.flags.contains(Flags::WRITE));
        let is_refused = || {
            let durable = &self.durable;
            durable.refusal(&self.options, request.bytes_len(), command.name, needs_memory || !writes).is_some()
        };
        let may_run = reads || !self.has_log() || !is_refused();
        (may_run && self.has_keys_of(command, request)).then_some(command)
    }
}

#[cfg(test)]
mod tests {
    use crate::table;
    use alloc::vec::Vec;

    /// What is not about keys and values, or does more than to read or change them, has questions of its own to answer.
    #[test]
    fn only_commands_on_data_are_plain() {
        const OTHERS: [&str; 6] = ["config", "eval", "exec", "flushall", "migrate", "sort"];
        const WITHOUT_KEYS: [&str; 6] = ["asking", "dbsize", "lolwut", "ping", "randomkey", "scan"];
        let plain: Vec<_> = table::all().filter(|command| command.is_plain()).collect();
        assert!(["get", "set", "lpush", "zadd"].iter().all(|name| plain.iter().any(|command| command.name == *name)));
        for command in plain {
            assert!(!OTHERS.contains(&command.name), "{}", command.name);
            assert!(!command.keys.is_empty() || WITHOUT_KEYS.contains(&command.name), "{}", command.name);
        }
    }
}
