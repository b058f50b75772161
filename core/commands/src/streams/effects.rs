//! What changes to streams came to, where the commands themselves depend on the time or on what was there.

use super::IdText;
use crate::{Context, args};
use alloc::vec::Vec;
use kayvee_keyspace::{Decimal, Pending, Stream, StreamId};
use kayvee_resp::Request;

/// Tells that an entry was added with this ID, and if something was removed for it, how many are left.
pub fn tell_added(context: &mut Context<'_>, request: Request<'_>, fields_at: usize, id: StreamId, left: Option<u64>) {
    if !context.effects_are_wanted() {
        return;
    }
    let id = IdText::new(id);
    let left = left.map(Decimal::unsigned);
    let mut words: Vec<&[u8]> = Vec::from([&b"XADD"[..], &request[1]]);
    if let Some(left) = &left {
        words.extend([&b"MAXLEN"[..], b"=", left.as_bytes()]);
    }
    words.push(id.as_bytes());
    words.extend(request.from(fields_at));
    context.effect(&words);
}

/// Tells that only so many entries are left.
pub fn tell_trimmed(context: &mut Context<'_>, key: &[u8], left: u64) {
    context.effect(&[b"XTRIM", key, b"MAXLEN", b"=", Decimal::unsigned(left).as_bytes()]);
}

/// Tells that a consumer was made.
pub fn tell_consumer(context: &mut Context<'_>, key: &[u8], group: &[u8], consumer: &[u8]) {
    context.effect(&[b"XGROUP", b"CREATECONSUMER", key, group, consumer]);
}

/// Tells that an entry is pending for a consumer.
pub fn tell_pending(context: &mut Context<'_>, key: &[u8], group: &[u8], consumer: &[u8], pending: Pending) {
    if !context.effects_are_wanted() {
        return;
    }
    let (id, at) = (IdText::new(pending.id), Decimal::unsigned(pending.delivered_ms));
    let count = Decimal::unsigned(pending.deliveries);
    let claim = [&b"XCLAIM"[..], key, group, consumer, b"0", id.as_bytes()];
    let options = [&b"TIME"[..], at.as_bytes(), b"RETRYCOUNT", count.as_bytes(), b"FORCE", b"JUSTID"];
    context.effect(&[claim, options].concat());
}

/// Tells that an entry is pending no longer.
pub fn tell_forgotten(context: &mut Context<'_>, key: &[u8], group: &[u8], id: StreamId) {
    context.effect(&[b"XACK", key, group, IdText::new(id).as_bytes()]);
}

/// Tells up to where a group has read.
pub fn tell_position(context: &mut Context<'_>, key: &[u8], group: &[u8]) {
    if !context.effects_are_wanted() {
        return;
    }
    let found = context.find(key);
    let of = found.and_then(|found| context.db().stream(found).group(group));
    let Some((last_id, entries_read)) = of.map(|of| (IdText::new(of.last_id), of.entries_read)) else { return };
    let entries_read = Decimal::new(entries_read.map_or(-1, |read| read as i64));
    let words = [&b"XGROUP"[..], b"SETID", key, group, last_id.as_bytes(), b"ENTRIESREAD", entries_read.as_bytes()];
    context.effect(&words);
}

/// Copies of what is known of pending entries, if anybody wants to know.
#[derive(Default)]
pub struct Touched {
    is_wanted: bool,
    /// Those that are pending now, and those that are no longer.
    pub pending: Vec<Pending>,
    pub forgotten: Vec<StreamId>,
}

impl Touched {
    pub fn new(context: &Context<'_>) -> Touched {
        Touched { is_wanted: context.effects_are_wanted(), ..Touched::default() }
    }

    /// Notes what became of an entry.
    pub fn note(&mut self, stream: &Stream, group: &[u8], id: StreamId) -> Result<(), kayvee_keyspace::OutOfMemory> {
        if self.is_wanted {
            match stream.group(group).and_then(|of| of.pending(id)) {
                Some(pending) => args::push(&mut self.pending, pending)?,
                None => args::push(&mut self.forgotten, id)?,
            }
        }
        Ok(())
    }

    /// Tells all of it.
    pub fn tell(&self, context: &mut Context<'_>, key: &[u8], group: &[u8], consumer: &[u8]) {
        self.pending.iter().for_each(|&pending| tell_pending(context, key, group, consumer, pending));
        self.forgotten.iter().for_each(|&id| tell_forgotten(context, key, group, id));
    }
}
