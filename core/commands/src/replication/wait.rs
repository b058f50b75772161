//! `WAIT`: clients that wait until replicas have what they wrote.

use crate::{ClientRef, Context, Error, OnTimeout, Origin, Outcome, Patience, Store, args, timeout_ms};
use kayvee_resp::Request;

/// A client that waits for replicas.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    client: ClientRef,
    /// How many replicas have to have how much.
    replicas: i64,
    offset: u64,
}

pub fn wait(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    if context.store.replication.has_master() {
        return Err(Error::text(
            "ERR WAIT cannot be used with replica instances. Please also note that since Redis 4.0 if a replica is configured to be writable (which is not the default) writes to replicas are just local and are not propagated.",
        ));
    }
    let replicas = args::integer(&request[1])?;
    let timeout_ns = timeout_ms(&request[2])?;
    let offset = context.session().written_offset;
    let have = context.store.replicas_with(offset);
    if have >= replicas || !context.may_block() {
        context.reply.integer(have);
        return Ok(());
    }
    let patience = Patience { kind: None, timeout_ns, on_timeout: OnTimeout::Replicas(offset) };
    let client = ClientRef { slot: context.slot, id: context.session().id };
    let waiting = &mut context.store.replication.waiting;
    waiting.try_reserve(1).map_err(|_| Error::OUT_OF_MEMORY)?;
    waiting.push(Waiter { client, replicas, offset });
    context.store.replication.asks = true;
    context.block(request.from(0), core::iter::empty(), patience)
}

impl Store {
    /// How many replicas have so many bytes of effects.
    pub(crate) fn replicas_with(&self, offset: u64) -> i64 {
        let has =
            |replica: &super::Replica| replica.state == super::master::State::Online && replica.acknowledged >= offset;
        self.each_replica().filter(|(_, replica)| has(replica)).count() as i64
    }

    /// Asks replicas what they have, and answers those for whom enough have what they wait for.
    pub(super) fn end_ack_waits(&mut self) {
        if core::mem::take(&mut self.replication.asks) {
            self.tell_replicas(&[b"REPLCONF", b"GETACK", b"*"]);
        }
        if !core::mem::take(&mut self.replication.has_heard) || self.replication.waiting.is_empty() {
            return;
        }
        let mut waiting = core::mem::take(&mut self.replication.waiting);
        waiting.retain(|waiter| {
            if self.client(waiter.client).is_none_or(|session| session.waits.is_none()) {
                return false;
            }
            let have = self.replicas_with(waiter.offset);
            if have < waiter.replicas {
                return true;
            }
            self.run_as(waiter.client.slot, Origin::Retry, |context| context.reply.integer(have));
            self.unblock(waiter.client.slot);
            false
        });
        self.replication.waiting = waiting;
    }

    /// Tells replicas something that changes nothing.
    pub(crate) fn tell_replicas(&mut self, words: &[&[u8]]) {
        if self.replication.link.is_none() && !self.replicas.is_empty() {
            self.end_unit();
            self.effects.push_alone(words);
        }
    }
}
