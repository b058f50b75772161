//! `DEBUG DIGEST` and `DEBUG DIGEST-VALUE`: 160 bits that are the same for the same data, in Redis and here.
//!
//! SHA-1 of what matters, in order where order matters, combined by exclusive or where it does not.

use crate::{Context, Outcome};
use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::ops::ControlFlow;
use kayvee_keyspace::{Db, Decimal, Direction, Found, Kind, StreamId, Value};
use kayvee_resp::Request;
use sha1::{Digest as _, Sha1};

const DIGEST_BYTES: usize = 20;

#[derive(Clone, Copy, Default)]
struct Digest([u8; DIGEST_BYTES]);

impl Digest {
    /// Adds something whose place does not matter.
    fn add(&mut self, bytes: &[u8]) {
        let hash: [u8; DIGEST_BYTES] = Sha1::digest(bytes).into();
        self.0.iter_mut().zip(hash).for_each(|(byte, other)| *byte ^= other);
    }

    /// Adds something that comes behind everything before it.
    fn append(&mut self, bytes: &[u8]) {
        self.add(bytes);
        self.0 = Sha1::digest(self.0).into();
    }

    fn append_value(&mut self, value: Value<'_>) {
        match value {
            Value::Integer(number) => self.append(Decimal::new(number).as_bytes()),
            Value::Bytes(bytes) => self.append(bytes),
        }
    }
}

impl core::fmt::Display for Digest {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// C's `%.17g`.
fn general_17(number: f64) -> String {
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.into();
    }
    let scientific = format!("{number:.16e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trimmed = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_string(),
        false => text.to_string(),
    };
    if (-4..17).contains(&exponent) {
        return trimmed(&format!("{number:.*}", (16 - exponent) as usize));
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", trimmed(mantissa), exponent.abs())
}

/// Whether a key is of no hash, or of one with a field whose time has not come.
fn has_members(db: &Db, found: Found, now_ms: u64) -> bool {
    db.kind(found) != Kind::Hash || !db.hash(found, now_ms).is_empty()
}

/// Appends a value, with its type and its expiry.
fn append_object(digest: &mut Digest, db: &Db, found: Found, now_ms: u64) {
    // Redis' numbers of the types.
    let kind: u32 = match db.kind(found) {
        Kind::String => 0,
        Kind::List => 1,
        Kind::Set => 2,
        Kind::SortedSet => 3,
        Kind::Hash => 4,
        Kind::Stream => 6,
    };
    digest.append(&kind.to_be_bytes());
    match db.kind(found) {
        Kind::String => digest.append_value(db.value(found)),
        Kind::List => db.list(found).iter().for_each(|element| digest.append(element)),
        Kind::Set => db.set_at(found).for_each(|member| match member {
            Value::Integer(number) => digest.add(Decimal::new(number).as_bytes()),
            Value::Bytes(bytes) => digest.add(bytes),
        }),
        Kind::SortedSet => db.sorted_set(found).for_all(|member, score| {
            let mut element = Digest::default();
            element.append(member);
            element.append(general_17(score).as_bytes());
            digest.add(&element.0);
        }),
        Kind::Hash => db.hash(found, now_ms).for_each(&mut |field, value, at_ms| {
            let mut element = Digest::default();
            element.append(field);
            element.append_value(value);
            if let Some(at_ms) = at_ms {
                element.append(&at_ms.to_le_bytes());
            }
            digest.add(&element.0);
        }),
        Kind::Stream => db.stream(found).visit(StreamId::MIN, StreamId::MAX, Direction::Forward, |entry| {
            let id = entry.id();
            digest.append(format!("{}.{}", id.ms, id.seq).as_bytes());
            entry.for_each(|field, value| {
                digest.append(field);
                digest.append(value);
            });
            ControlFlow::Continue(())
        }),
    }
    if db.expires_ms(found).is_some() {
        digest.add(b"!!expire!!");
    }
}

/// Replies with the digest of all data.
pub fn of_everything(context: &mut Context<'_>) -> Outcome {
    let mut all = Digest::default();
    let now_ms = context.now_ms();
    for (index, db) in context.store.dbs.iter_mut().enumerate() {
        let mut is_named = false;
        let mut cursor = 0;
        loop {
            let mut keys: Vec<Vec<u8>> = Vec::new();
            // Keys whose time has come count until they are removed, fields do not.
            cursor = db.scan(cursor, 0, |key, _| keys.push(key.to_vec()));
            for key in keys {
                let Some(found) = db.find(&key, 0).filter(|found| has_members(db, *found, now_ms)) else { continue };
                if !core::mem::replace(&mut is_named, true) {
                    all.append(&(index as u32).to_be_bytes());
                }
                let mut digest = Digest::default();
                digest.append(&key);
                append_object(&mut digest, db, found, now_ms);
                all.add(&digest.0);
            }
            if cursor == 0 {
                break;
            }
        }
    }
    context.reply.simple(&all.to_string());
    Ok(())
}

/// Replies with a digest of each key's value.
pub fn of_values(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let now_ms = context.now_ms();
    context.reply.array(request.len() - 2);
    for key in request.from(2) {
        let mut digest = Digest::default();
        if let Some(found) = context.find(key)
            && has_members(context.db(), found, now_ms)
        {
            append_object(&mut digest, context.db(), found, now_ms);
        }
        context.reply.simple(&digest.to_string());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{Harness, START_MS};

    #[test]
    fn numbers_are_written_as_c_does() {
        for (number, text) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (1.0, "1"),
            (0.1, "0.10000000000000001"),
            (1e16, "10000000000000000"),
            (1e17, "1e+17"),
            (1.5e-5, "1.5e-05"),
            (0.0001, "0.0001"),
            (-3.5, "-3.5"),
            (f64::INFINITY, "inf"),
            (1e300, "1.0000000000000001e+300"),
        ] {
            assert_eq!(general_17(number), text);
        }
    }

    /// redis-server 7.0.15 says the same of this data.
    #[test]
    fn digests_are_those_of_redis() {
        let mut harness = Harness::new();
        harness.store.options.enable_debug_command = crate::options::Allowed::Yes;
        harness.run("DEBUG DIGEST");
        assert_eq!(harness.run("DEBUG DIGEST"), format!("+{}", "0".repeat(40)));
        harness.run("SET a 1");
        harness.run("SET b text EX 1000");
        harness.run("RPUSH l x y z");
        harness.run("SADD s 1 2 three");
        harness.run("ZADD z 1 a 0.1 b inf c");
        harness.run("HSET h f v g 2");
        harness.run("XADD t 5-1 f v g w");
        harness.run("XADD t 6-0 f 1");
        harness.run("SELECT 3");
        harness.run("SET c d");
        harness.run("SELECT 0");
        assert_eq!(harness.run("DEBUG DIGEST"), "+26951d8aad1c4839849000bc2a2205b3837f1f1f");
        assert_eq!(
            harness.run("DEBUG DIGEST-VALUE z none"),
            "*2 +aded2317d68729419f94b5748b30ef647c6e0956 +0000000000000000000000000000000000000000"
        );
    }

    /// A field whose time has come is gone for whoever asks, though it may still be stored: after a start, say, it is not.
    #[test]
    fn fields_whose_time_has_come_are_left_out() {
        let mut harness = Harness::new();
        harness.store.options.enable_debug_command = crate::options::Allowed::Yes;
        harness.run("HSET h a 1");
        let all = harness.run("DEBUG DIGEST");
        let values = harness.run("DEBUG DIGEST-VALUE h none");
        for request in ["HSET h b 2", "HSET none c 3", "SELECT 7", "HSET other d 4", "HPEXPIRE other 1000 FIELDS 1 d"] {
            harness.run(request);
        }
        for request in ["SELECT 0", "HPEXPIRE h 1000 FIELDS 1 b", "HPEXPIRE none 1000 FIELDS 1 c"] {
            harness.run(request);
        }
        assert_ne!(
            (harness.run("DEBUG DIGEST"), harness.run("DEBUG DIGEST-VALUE h none")),
            (all.clone(), values.clone())
        );
        harness.at_ms(START_MS + 1001);
        assert_eq!(harness.run("DEBUG DIGEST"), all);
        assert_eq!(harness.run("DEBUG DIGEST-VALUE h none"), values);
    }
}
