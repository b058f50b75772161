//! Random fields.

use super::bulk;
use crate::{Context, Error, Outcome, args, random};
use kayvee_keyspace::{HashView, Kind, OutOfMemory, Value};
use kayvee_resp::{Protocol, Request, Writer};

pub fn hrandfield(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let Some(count) = request.get(2) else { return one(context, &request[1]) };
    let count = random::count(count)?;
    let with_values = match request.get(3) {
        None => false,
        Some(word) if args::is(word, "withvalues") && request.len() == 4 => true,
        Some(_) => return Err(Error::SYNTAX),
    };
    if with_values && count.unsigned_abs() > i64::MAX as u64 / 2 {
        return Err(Error::OUT_OF_RANGE);
    }
    let found = context.read(&request[1], Kind::Hash)?;
    let (index, now_ms) = (context.db_index(), context.now_ms());
    let Context { store, reply, .. } = context;
    let hash = found.map(|found| store.dbs[index].hash(found, now_ms));
    let Some(hash) = hash.filter(|hash| !hash.is_empty()) else {
        reply.array(0);
        return Ok(());
    };
    let mut fields = Fields { reply, with_values };
    if count < 0 {
        let count = count.unsigned_abs();
        fields.head(count as usize);
        return random::repeat(count, |_| {
            hash.random(&mut store.rng).into_iter().for_each(|(field, value)| fields.write(field, value));
            fields.reply.len()
        });
    }
    Ok(fields.write_sample(hash, &mut store.rng, count as usize)?)
}

fn one(context: &mut Context<'_>, key: &[u8]) -> Outcome {
    let found = context.read(key, Kind::Hash)?;
    let (index, now_ms) = (context.db_index(), context.now_ms());
    let Context { store, reply, .. } = context;
    match found.and_then(|found| store.dbs[index].hash(found, now_ms).random(&mut store.rng)) {
        Some((field, _)) => reply.bulk(field),
        None => reply.null(),
    }
    Ok(())
}

/// A reply of fields, perhaps with their values. They are pairs in RESP3.
struct Fields<'a, 'b> {
    reply: &'a mut Writer<'b>,
    with_values: bool,
}

impl Fields<'_, '_> {
    fn head(&mut self, count: usize) {
        let is_flat = self.with_values && self.reply.protocol() == Protocol::Resp2;
        self.reply.array(if is_flat { 2 * count } else { count });
    }

    fn write(&mut self, field: &[u8], value: Value<'_>) {
        if self.with_values && self.reply.protocol() == Protocol::Resp3 {
            self.reply.array(2);
        }
        self.reply.bulk(field);
        if self.with_values {
            bulk(self.reply, value);
        }
    }

    fn write_sample(&mut self, hash: HashView<'_>, rng: &mut fastrand::Rng, count: usize) -> Result<(), OutOfMemory> {
        self.head(count.min(hash.len()));
        hash.sample(rng, count, &mut |field, value| self.write(field, value))
    }
}
