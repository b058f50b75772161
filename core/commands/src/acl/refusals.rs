//! What was refused to whom, for `ACL LOG`.

use super::{Acl, selector::Denial};
use crate::{Context, Error, Origin, Outcome, Session, Store, args, client};
use alloc::{
    collections::VecDeque,
    string::{String, ToString},
    vec::Vec,
};
use core::net::SocketAddr;
use kayvee_resp::Request;

/// Equal events within this time are one entry.
const GROUPING_MS: u64 = 60_000;
/// What is kept of a name: users and keys may have names of megabytes, which clients choose.
const KEPT_BYTES: usize = 4096;
/// Entries that are compared with a new one.
const COMPARED: usize = 10;

#[derive(Clone, PartialEq)]
struct What {
    reason: &'static str,
    context: &'static str,
    object: Vec<u8>,
    user: Vec<u8>,
}

struct Entry {
    id: u64,
    count: u64,
    what: What,
    client: Vec<u8>,
    created_ms: u64,
    updated_ms: u64,
}

/// Entries, the latest first.
#[derive(Default)]
pub struct Log {
    entries: VecDeque<Entry>,
    next_id: u64,
}

impl Context<'_> {
    /// Notes that a request was refused.
    pub(crate) fn log_denial(&mut self, denial: &Denial, request: Request<'_>, command_name: &str) {
        let (reason, object) = match denial {
            Denial::Command => ("command", command_name.as_bytes()),
            Denial::Key(at) => ("key", &request[*at]),
            Denial::Channel(at) => ("channel", &request[*at]),
        };
        let user = self.session().user_name.clone();
        self.log_refusal(reason, object, &user, request);
    }

    /// Notes that a user did not get in.
    pub(crate) fn log_failed_login(&mut self, user: &[u8], request: Request<'_>) {
        self.log_refusal("auth", &request[0], user, request);
    }

    fn log_refusal(&mut self, reason: &'static str, object: &[u8], user: &[u8], request: Request<'_>) {
        let in_transaction = self.session().transaction.is_some();
        let context = match self.origin {
            Origin::Script => "lua",
            Origin::Transaction => "multi",
            _ if in_transaction => "multi",
            _ => "toplevel",
        };
        let client = client::own_line(self, request);
        self.store.log_refusal(reason, context, object, user, client);
    }
}

impl Store {
    /// Notes that somebody did not get in to a page of the web server's with this name and password, if that is why.
    #[inline(never)]
    pub fn log_failed_web_login(&mut self, credentials: (&[u8], &[u8]), remote: SocketAddr) {
        if self.acl.identify(Some(credentials)).is_some() {
            return;
        }
        // What is told of a client is told of this one as well, as far as there is such a thing.
        let mut session = Session::new(0, remote.to_string(), String::new(), false, self.now.monotonic_ns);
        session.last_command = self.commands.find(b"auth").map(|command| (command, None));
        let client = client::line(&session, self.now.monotonic_ns);
        self.log_refusal("auth", "toplevel", b"AUTH", credentials.0, client);
    }

    fn log_refusal(
        &mut self,
        reason: &'static str,
        context: &'static str,
        object: &[u8],
        user: &[u8],
        client: Vec<u8>,
    ) {
        let now_ms = self.now.unix_ms();
        let limit = usize::try_from(self.options.acllog_max_len).unwrap_or(usize::MAX);
        // Without memory for an entry there is none.
        let [Ok(object), Ok(user), Ok(client)] =
            [object, user, &client].map(|text| args::copied(text.get(..KEPT_BYTES).unwrap_or(text)))
        else {
            return;
        };
        let what = What { reason, context, object, user };
        let log = &mut self.acl.log;
        let is_same = |entry: &Entry| entry.what == what && now_ms.saturating_sub(entry.updated_ms) <= GROUPING_MS;
        let entry = match log.entries.iter().take(COMPARED).position(is_same) {
            Some(at) => {
                let entry = log.entries.remove(at).expect("it was just found");
                Entry { count: entry.count + 1, updated_ms: now_ms, client, ..entry }
            }
            None => {
                log.next_id += 1;
                Entry { id: log.next_id - 1, count: 1, what, client, created_ms: now_ms, updated_ms: now_ms }
            }
        };
        log.entries.push_front(entry);
        log.entries.truncate(limit);
    }
}

/// `ACL LOG [count | RESET]`
pub fn log(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let now_ms = context.now_ms();
    let count = match request.get(2) {
        Some(word) if args::is(word, "reset") => {
            context.store.acl.log.entries.clear();
            context.reply.ok();
            return Ok(());
        }
        Some(count) => usize::try_from(args::integer(count)?.max(0)).map_err(|_| Error::NOT_INTEGER)?,
        None => 10,
    };
    let Context { store, reply, .. } = context;
    let Acl { log, .. } = &store.acl;
    reply.array(log.entries.len().min(count));
    for entry in log.entries.iter().take(count) {
        reply.map(10);
        reply.bulk(b"count");
        reply.integer(entry.count as i64);
        for (name, text) in [
            ("reason", entry.what.reason.as_bytes()),
            ("context", entry.what.context.as_bytes()),
            ("object", &entry.what.object),
            ("username", &entry.what.user),
        ] {
            reply.bulk(name.as_bytes());
            reply.bulk(text);
        }
        reply.bulk(b"age-seconds");
        reply.double(&alloc::format!("{}", now_ms.saturating_sub(entry.updated_ms) as f64 / 1000.0));
        reply.bulk(b"client-info");
        reply.bulk(&entry.client);
        for (name, number) in [
            ("entry-id", entry.id),
            ("timestamp-created", entry.created_ms),
            ("timestamp-last-updated", entry.updated_ms),
        ] {
            reply.bulk(name.as_bytes());
            reply.integer(number as i64);
        }
    }
    Ok(())
}
