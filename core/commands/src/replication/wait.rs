//! `WAIT` and `WAITAOF`: clients that wait until there are copies of what they wrote.

use super::Replica;
use crate::{Context, Error, OnTimeout, Origin, Outcome, Patience, Store, args, timeout_ms};
use alloc::{format, vec::Vec};
use kayvee_log::Sequence;
use kayvee_resp::{Request, Writer};

const NO_LOG: Error = Error::text("ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.");

/// Copies that a client waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// On how many replicas, and how many bytes of effects these have to have.
    replicas: i64,
    offset: u64,
    /// Whether only copies on stable storage count, and what is to be there of this store's own log.
    stable: Option<Stable>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stable {
    /// How many copies are wanted here: one at the most.
    here: i64,
    record: Sequence,
}

/// Copies that there are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copies {
    here: Option<i64>,
    replicas: i64,
    is_enough: bool,
}

impl Copies {
    pub(crate) fn write(self, reply: &mut Writer<'_>) {
        if let Some(here) = self.here {
            reply.array(2);
            reply.integer(here);
        }
        reply.integer(self.replicas);
    }
}

pub fn wait(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    context.refuse_on_replica("WAIT", "note that since Redis 4.0 if a replica is configured to be writable (which is not the default) writes to replicas are just local and are not propagated.")?;
    let replicas = args::integer(&request[1])?;
    let timeout_ns = timeout_ms(&request[2])?;
    context.wait_for_copies(request, timeout_ns, replicas, None)
}

pub fn waitaof(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    context.refuse_on_replica("WAITAOF", "note that writes to replicas are just local and are not propagated.")?;
    let here = args::integer(&request[1])?;
    if !(0..=1).contains(&here) {
        return Err(Error::text("ERR value is out of range, must be between 0 and 1"));
    }
    let replicas = args::integer(&request[2])?;
    if replicas < 0 {
        return Err(Error::text("ERR value is out of range, must be positive"));
    }
    let timeout_ns = timeout_ms(&request[3])?;
    if here > 0 && !context.store.is_logging() {
        return Err(NO_LOG);
    }
    let stable = Stable { here, record: context.store.appended() };
    context.wait_for_copies(request, timeout_ns, replicas, Some(stable))
}

impl Context<'_> {
    fn refuse_on_replica(&self, command: &str, note: &str) -> Outcome {
        match self.store.replication.has_master() {
            true => Err(format!("ERR {command} cannot be used with replica instances. Please also {note}").into()),
            false => Ok(()),
        }
    }

    fn wait_for_copies(
        &mut self,
        request: Request<'_>,
        timeout_ns: Option<u64>,
        replicas: i64,
        stable: Option<Stable>,
    ) -> Outcome {
        let wanted = Wanted { replicas, offset: self.session().written_offset, stable };
        let copies = self.store.copies(wanted);
        if copies.is_enough || !self.may_block() {
            copies.write(&mut self.reply);
            return Ok(());
        }
        let patience = Patience { kind: None, timeout_ns, on_timeout: OnTimeout::Copies(wanted) };
        self.block(request.from(0), core::iter::empty(), patience)?;
        let (id, slot) = (self.session().id, self.slot);
        self.store.replication.waiting.insert((id, slot));
        self.store.replication.asks = true;
        Ok(())
    }
}

impl Store {
    /// How many of the copies there are that a client waits for.
    pub(crate) fn copies(&self, wanted: Wanted) -> Copies {
        let offset_of = |replica: &Replica| match wanted.stable {
            Some(_) => replica.covered,
            None => replica.acknowledged,
        };
        let has = |replica: &Replica| replica.is_online() && offset_of(replica) >= wanted.offset;
        let replicas = self.each_replica().filter(|(_, replica)| has(replica)).count() as i64;
        // A log that is still to have its beginning keeps nothing, and what the running transaction has done is no record yet.
        let is_stable = |record| self.covered().is_some() && self.stable() >= record && !self.durable.has_unit();
        let here = wanted.stable.map(|stable| i64::from(is_stable(stable.record)));
        let is_enough_here = wanted.stable.is_none_or(|stable| here >= Some(stable.here));
        Copies { here, replicas, is_enough: replicas >= wanted.replicas && is_enough_here }
    }

    /// Asks replicas what they have, if somebody waits for it.
    pub(super) fn ask_for_acks(&mut self) {
        if !self.fails_over() && core::mem::take(&mut self.replication.asks) {
            self.tell_replicas(&[b"REPLCONF", b"GETACK", b"*"]);
        }
    }

    /// Answers those for whom there are enough copies of what they wrote.
    pub(crate) fn end_ack_waits(&mut self) {
        if !core::mem::take(&mut self.replication.has_heard) || self.replication.waiting.is_empty() {
            return;
        }
        let served = |&(_, slot): &(u64, u32)| {
            let wait = self.sessions[slot as usize].as_deref()?.waits.as_ref()?;
            let OnTimeout::Copies(wanted) = wait.on_timeout else { return None };
            let waits_in_vain = wanted.stable.is_some_and(|stable| stable.here > 0) && !self.is_logging();
            let copies = self.copies(wanted);
            (waits_in_vain || copies.is_enough).then_some((slot, (!waits_in_vain).then_some(copies)))
        };
        let served: Vec<(u32, Option<Copies>)> = self.replication.waiting.iter().filter_map(served).collect();
        for (slot, copies) in served {
            self.run_as(slot, Origin::Retry, |context| match copies {
                Some(copies) => copies.write(&mut context.reply),
                None => context.reply.error(&NO_LOG.0),
            });
            self.unblock(slot);
        }
    }

    /// Has those who wait for copies looked at again.
    pub(crate) fn recheck_copies(&mut self) {
        self.replication.has_heard = true;
    }

    /// Tells replicas something that changes nothing.
    pub(crate) fn tell_replicas(&mut self, words: &[&[u8]]) {
        if self.replication.link.is_none() && !self.replicas.is_empty() {
            self.end_unit();
            self.effects.push_alone(words);
        }
    }
}
