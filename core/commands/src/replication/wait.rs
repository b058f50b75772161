//! `WAIT`: clients that wait until replicas have what they wrote.

use crate::{Context, Error, OnTimeout, Origin, Outcome, Patience, Store, args, timeout_ms};
use alloc::vec::Vec;
use kayvee_resp::Request;

pub fn wait(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    if context.store.replication.has_master() {
        return Err(Error::text(
            "ERR WAIT cannot be used with replica instances. Please also note that since Redis 4.0 if a replica is configured to be writable (which is not the default) writes to replicas are just local and are not propagated.",
        ));
    }
    let wanted = args::integer(&request[1])?;
    let timeout_ns = timeout_ms(&request[2])?;
    let offset = context.session().written_offset;
    let have = context.store.replicas_with(offset);
    if have >= wanted || !context.may_block() {
        context.reply.integer(have);
        return Ok(());
    }
    let patience = Patience { kind: None, timeout_ns, on_timeout: OnTimeout::Replicas { wanted, offset } };
    context.block(request.from(0), core::iter::empty(), patience)?;
    let (id, slot) = (context.session().id, context.slot);
    context.store.replication.waiting.insert((id, slot));
    context.store.replication.asks = true;
    Ok(())
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
        let served = |&(_, slot): &(u64, u32)| {
            let wait = self.sessions[slot as usize].as_deref()?.waits.as_ref()?;
            let OnTimeout::Replicas { wanted, offset } = wait.on_timeout else { return None };
            let have = self.replicas_with(offset);
            (have >= wanted).then_some((slot, have))
        };
        let served: Vec<(u32, i64)> = self.replication.waiting.iter().filter_map(served).collect();
        for (slot, have) in served {
            self.run_as(slot, Origin::Retry, |context| context.reply.integer(have));
            self.unblock(slot);
        }
    }

    /// Tells replicas something that changes nothing.
    pub(crate) fn tell_replicas(&mut self, words: &[&[u8]]) {
        if self.replication.link.is_none() && !self.replicas.is_empty() {
            self.end_unit();
            self.effects.push_alone(words);
        }
    }
}
