//! A differential fuzzer: the same random commands to two servers, every reply and the final data compared.

mod generator;

pub use generator::{Comparison, Generator, Step};

use crate::client::{Client, Reply, encode, quoted};
use std::{
    collections::BTreeSet,
    fmt, io,
    time::{Duration, Instant},
};

/// The most commands that are sent before their replies are read.
const PIPELINE_LIMIT: usize = 40;
/// Between two comparisons of the whole data.
const STATE_INTERVAL_STEPS: usize = 2_000;
const DATABASES: usize = 16;
/// How far two servers' clocks may have moved apart between the two copies of a relative expiry.
const CLOCK_SLACK_MS: i64 = 10_000;
/// The most commands before a difference that are looked at for the cause of it.
const TRACE_LIMIT: usize = 4_096;
/// The most time that is spent on making a trace smaller.
const SHRINK_TIME: Duration = Duration::from_secs(20);
/// How many commands are shown of a trace that shows no difference when it is sent again.
const SHOWN_WITHOUT_REPRODUCTION: usize = 40;
/// The most calls that a SCAN may need.
const SCAN_CALLS_LIMIT: usize = 100_000;
/// Options of the right server that switch encodings off which Redis 7.0 does not have. One that does not know them has
/// none of them.
const ENCODINGS_OF_7_0: &[[&str; 2]] = &[["list-max-listpack-size", "0"], ["set-max-listpack-entries", "0"]];

/// Where the two servers differ.
#[derive(Debug)]
pub struct Difference {
    /// What to start with to see it again.
    pub seed: u64,
    /// The number of commands sent before.
    pub step: usize,
    /// The least commands found that still show it, on empty data; or, where it does not show again, the last ones.
    pub trace: Vec<Step>,
    /// Whether the trace shows a difference again.
    pub reproduced: bool,
    /// What was compared.
    pub what: String,
    /// What the left server said.
    pub left: String,
    /// What the right server said.
    pub right: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}, step {}: {}", self.seed, self.step, self.what)?;
        writeln!(f, "  left:  {}\n  right: {}", self.left, self.right)?;
        let trace = if self.reproduced { "least trace on empty data" } else { "not seen again; the last commands" };
        writeln!(f, "  {trace}:")?;
        self.trace.iter().try_for_each(|step| writeln!(f, "    {}", show_words(&step.words)))
    }
}

/// Shows a command as the vectors write it.
fn show_words(words: &[Vec<u8>]) -> String {
    let plain =
        |word: &&Vec<u8>| !word.is_empty() && word.iter().all(|b| b.is_ascii_alphanumeric() || b":-.".contains(b));
    let words: Vec<String> = words
        .iter()
        .map(|word| if plain(&word) { String::from_utf8_lossy(word).into_owned() } else { quoted(word) })
        .collect();
    words.join(" ")
}

/// Two servers.
pub struct Pair {
    /// `HOST:PORT` of the one that is right.
    pub left: String,
    /// `HOST:PORT` of the one that is tested.
    pub right: String,
}

struct Mismatch {
    what: String,
    left: String,
    right: String,
}

struct Session {
    left: Client,
    right: Client,
}

impl Session {
    /// Connects to both and empties them.
    fn open(pair: &Pair) -> io::Result<Session> {
        let mut session = Session { left: Client::connect(&pair.left)?, right: Client::connect(&pair.right)? };
        for client in [&mut session.left, &mut session.right] {
            client.call(&["FLUSHALL"])?;
        }
        for [name, value] in ENCODINGS_OF_7_0 {
            session.right.call(&["CONFIG", "SET", name, value])?;
        }
        Ok(session)
    }

    /// Sends all the steps to both and compares what they reply. Gives the index of the first that differs.
    fn run(&mut self, steps: &[Step]) -> io::Result<Option<(usize, Mismatch)>> {
        let requests: Vec<u8> = steps.iter().flat_map(|step| encode(&step.words)).collect();
        self.left.send(&requests)?;
        self.right.send(&requests)?;
        let mut first = None;
        let mut scans = Vec::new();
        for (at, step) in steps.iter().enumerate() {
            let left = self.left.read_reply()?;
            let right = self.right.read_reply().map_err(|e| lost(step, &e))?;
            let both_arrays = matches!((&left, &right), (Reply::Array(_), Reply::Array(_)));
            let starts = step.words.get(cursor_at(step)).is_some_and(|cursor| cursor == b"0");
            if step.comparison == Comparison::Scan && both_arrays && starts {
                scans.push((at, left, right));
            } else if first.is_none() && !equal(step.comparison, &left, &right) {
                first = Some((at, mismatch(step, &left, &right)));
            }
        }
        // A SCAN is sent last in its batch, so nothing has changed since its first reply.
        for (at, left, right) in scans {
            let left = follow(&mut self.left, &steps[at], left)?;
            let right = follow(&mut self.right, &steps[at], right)?;
            if first.is_none() && left != right {
                let show = |keys: &BTreeSet<Vec<u8>>| show_words(&keys.iter().cloned().collect::<Vec<_>>());
                let what = show_words(&steps[at].words);
                first = Some((at, Mismatch { what, left: show(&left), right: show(&right) }));
            }
        }
        Ok(first)
    }

    /// Compares everything that is stored, on connections that are at database 0 afterwards as if nothing had happened.
    fn compare_state(&mut self, pair: &Pair) -> io::Result<Option<Mismatch>> {
        let mut left = Client::connect(&pair.left)?;
        let mut right = Client::connect(&pair.right)?;
        for db in 0..DATABASES {
            let select = Step { words: words(&["SELECT", &db.to_string()]), comparison: Comparison::Exact };
            let keys = Step { words: words(&["KEYS", "*"]), comparison: Comparison::Unordered };
            let mut found = Vec::new();
            for step in [&select, &keys] {
                let (l, r) = (left.call(&step.words)?, right.call(&step.words)?);
                if !equal(step.comparison, &l, &r) {
                    return Ok(Some(mismatch(step, &l, &r)));
                }
                found = l.items().unwrap_or_default().to_vec();
            }
            for key in &found {
                let key = key.text().unwrap_or_default().to_vec();
                let type_of = vec![b"TYPE".to_vec(), key.clone()];
                let kind = left.call(&type_of)?;
                let about_key = [
                    (type_of, Comparison::Exact),
                    content(&kind, &key),
                    (vec![b"OBJECT".to_vec(), b"ENCODING".to_vec(), key.clone()], Comparison::Exact),
                    (vec![b"PEXPIRETIME".to_vec(), key.clone()], Comparison::Near(CLOCK_SLACK_MS)),
                ];
                for (words, comparison) in about_key {
                    let step = Step { words, comparison };
                    let (l, r) = (left.call(&step.words)?, right.call(&step.words)?);
                    if !equal(step.comparison, &l, &r) {
                        let mut found = mismatch(&step, &l, &r);
                        found.what = format!("data of database {db}: {}", found.what);
                        return Ok(Some(found));
                    }
                }
            }
        }
        Ok(None)
    }
}

fn words(words: &[&str]) -> Vec<Vec<u8>> {
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

fn lost(step: &Step, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("the right server, at or before {}: {error}", show_words(&step.words)))
}

fn mismatch(step: &Step, left: &Reply, right: &Reply) -> Mismatch {
    Mismatch { what: show_words(&step.words), left: left.to_string(), right: right.to_string() }
}

/// Where the cursor stands: behind the key, where there is one.
fn cursor_at(step: &Step) -> usize {
    if step.words[0].eq_ignore_ascii_case(b"SCAN") { 1 } else { 2 }
}

/// What shows all that a value of this kind holds.
fn content(kind: &Reply, key: &[u8]) -> (Vec<Vec<u8>>, Comparison) {
    let (head, rest, comparison): (&str, &[&str], _) = match kind.text().unwrap_or_default() {
        b"hash" => ("HGETALL", &[], Comparison::Unordered),
        b"set" => ("SMEMBERS", &[], Comparison::Unordered),
        b"list" => ("LRANGE", &["0", "-1"], Comparison::Exact),
        b"zset" => ("ZRANGE", &["0", "-1", "WITHSCORES"], Comparison::Numbers),
        b"stream" => ("XRANGE", &["-", "+"], Comparison::Exact),
        _ => ("GET", &[], Comparison::Exact),
    };
    ([words(&[head]), vec![key.to_vec()], words(rest)].concat(), comparison)
}

/// Follows a SCAN from its first reply to its end.
fn follow(client: &mut Client, step: &Step, first: Reply) -> io::Result<BTreeSet<Vec<u8>>> {
    let mut keys = BTreeSet::new();
    let mut reply = first;
    for _ in 0..SCAN_CALLS_LIMIT {
        let Some([cursor, found]) = reply.items() else {
            return Err(io::Error::other(format!("SCAN gave {reply}")));
        };
        let texts = found.items().unwrap_or_default().iter().filter_map(Reply::text);
        keys.extend(
            texts.map(|text| if step.words[0].eq_ignore_ascii_case(b"ZSCAN") { by_value(text) } else { text.to_vec() }),
        );
        let cursor = cursor.text().unwrap_or_default().to_vec();
        if cursor == b"0" {
            return Ok(keys);
        }
        let mut next = step.words.clone();
        next[cursor_at(step)] = cursor;
        reply = client.call(&next)?;
    }
    Err(io::Error::other("SCAN does not end"))
}

fn equal(comparison: Comparison, left: &Reply, right: &Reply) -> bool {
    if matches!(left, Reply::Error(_)) || matches!(right, Reply::Error(_)) {
        return left == right;
    }
    match comparison {
        Comparison::Exact => left == right,
        Comparison::Numbers => same_numbers(left, right),
        // From a cursor that was never given, anything may come.
        Comparison::Scan => matches!((left, right), (Reply::Array(_), Reply::Array(_))),
        Comparison::Unordered => sorted(left) == sorted(right),
        Comparison::Near(distance) => match (left.integer(), right.integer()) {
            // -1 and -2 mean something.
            (Some(l), Some(r)) if l >= 0 && r >= 0 => l.abs_diff(r) <= distance.unsigned_abs(),
            _ => left == right,
        },
        Comparison::Kind => (left == &Reply::Null) == (right == &Reply::Null),
        Comparison::Hello => without_identity(left) == without_identity(right),
    }
}

/// A number in one form, whatever form it had. Redis 7.2 prints the shortest one.
fn by_value(text: &[u8]) -> Vec<u8> {
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse::<f64>().ok());
    number.map_or(text.to_vec(), |number| number.to_string().into())
}

/// Whether two replies are the same but for how they write numbers.
fn same_numbers(left: &Reply, right: &Reply) -> bool {
    match (left, right) {
        (Reply::Array(left), Reply::Array(right)) => {
            left.len() == right.len() && left.iter().zip(right).all(|(left, right)| same_numbers(left, right))
        }
        (Reply::Bulk(l), Reply::Bulk(r)) => by_value(l) == by_value(r),
        (Reply::Double(l), Reply::Double(r)) => by_value(l.as_ref()) == by_value(r.as_ref()),
        _ => left == right,
    }
}

fn sorted(reply: &Reply) -> Vec<String> {
    let mut items: Vec<String> = match reply {
        Reply::Map(pairs) => pairs.iter().map(|(name, value)| format!("{name} {value}")).collect(),
        _ => reply.items().unwrap_or(std::slice::from_ref(reply)).iter().map(Reply::to_string).collect(),
    };
    items.sort();
    items
}

/// `HELLO`'s reply with the values of `version` and `id` left out.
fn without_identity(reply: &Reply) -> Vec<Reply> {
    let flat: Vec<Reply> = match reply {
        Reply::Map(pairs) => pairs.iter().flat_map(|(k, v)| [k.clone(), v.clone()]).collect(),
        Reply::Array(items) => items.clone(),
        other => vec![other.clone()],
    };
    let identity = |key: &Reply| key.text().is_some_and(|key| key == b"version" || key == b"id");
    flat.chunks(2).flat_map(|pair| if identity(&pair[0]) { &pair[..1] } else { pair }).cloned().collect()
}

/// Sends `steps` random commands to both servers.
pub fn run(pair: &Pair, seed: u64, steps: usize) -> io::Result<Option<Box<Difference>>> {
    let mut generator = Generator::new(seed);
    let mut session = Session::open(pair)?;
    let mut sent: Vec<Step> = Vec::new();
    let mut state_due = STATE_INTERVAL_STEPS;
    while sent.len() < steps {
        let limit = 1 + generator.random().below(PIPELINE_LIMIT);
        let batch = batch(&mut generator, limit.min(steps - sent.len()));
        let before = sent.len();
        sent.extend(batch.iter().cloned());
        let mut found = session.run(&batch)?.map(|(at, mismatch)| (before + at + 1, mismatch));
        if found.is_none() && (sent.len() >= state_due || sent.len() >= steps) {
            state_due = sent.len() + STATE_INTERVAL_STEPS;
            found = session.compare_state(pair)?.map(|mismatch| (sent.len(), mismatch));
        }
        if let Some((step, mismatch)) = found {
            let (trace, reproduced) = match shrink(pair, &sent[step.saturating_sub(TRACE_LIMIT)..step])? {
                Some(trace) => (trace, true),
                None => (sent[step.saturating_sub(SHOWN_WITHOUT_REPRODUCTION)..step].to_vec(), false),
            };
            let Mismatch { what, left, right } = mismatch;
            return Ok(Some(Box::new(Difference { seed, step, trace, reproduced, what, left, right })));
        }
    }
    Ok(None)
}

/// Commands to send at once: a SCAN ends them, because it needs more calls with nothing in between.
fn batch(generator: &mut Generator, limit: usize) -> Vec<Step> {
    let mut steps = Vec::new();
    while steps.len() < limit {
        steps.push(generator.step());
        if steps.last().is_some_and(|step| step.comparison == Comparison::Scan) {
            break;
        }
    }
    steps
}

/// Leaves out of a trace what is not needed for a difference. `None` if it shows none.
fn shrink(pair: &Pair, trace: &[Step]) -> io::Result<Option<Vec<Step>>> {
    let deadline = Instant::now() + SHRINK_TIME;
    let mut len = 1;
    while !differs(pair, &trace[trace.len() - len..])? {
        if len == trace.len() || Instant::now() > deadline {
            return Ok(None);
        }
        len = (len * 2).min(trace.len());
    }
    let mut kept = trace[trace.len() - len..].to_vec();
    let mut chunk = kept.len() / 2;
    while chunk > 0 {
        let mut at = 0;
        while at < kept.len() && Instant::now() < deadline {
            let mut fewer = kept.clone();
            fewer.drain(at..(at + chunk).min(kept.len()));
            if differs(pair, &fewer)? {
                kept = fewer;
            } else {
                at += chunk;
            }
        }
        chunk /= 2;
    }
    Ok(Some(kept))
}

/// Whether two servers differ after these commands on empty data.
fn differs(pair: &Pair, steps: &[Step]) -> io::Result<bool> {
    let mut session = Session::open(pair)?;
    for step in steps {
        if session.run(std::slice::from_ref(step))?.is_some() {
            return Ok(true);
        }
    }
    Ok(session.compare_state(pair)?.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_compared_by_their_kind() {
        let bulk = |text: &str| Reply::Bulk(text.into());
        assert!(!equal(Comparison::Exact, &bulk("1"), &Reply::Integer(1)));
        assert!(equal(Comparison::Near(1), &Reply::Integer(99), &Reply::Integer(100)));
        assert!(!equal(Comparison::Near(1), &Reply::Integer(98), &Reply::Integer(100)));
        assert!(!equal(Comparison::Near(5), &Reply::Integer(-1), &Reply::Integer(1)));
        assert!(!equal(Comparison::Near(5), &Reply::Integer(-1), &Reply::Integer(-2)));
        let list = |items: &[&str]| Reply::Array(items.iter().map(|item| bulk(item)).collect());
        assert!(equal(Comparison::Unordered, &list(&["a", "b"]), &list(&["b", "a"])));
        assert!(!equal(Comparison::Unordered, &list(&["a", "b"]), &list(&["b", "b"])));
        assert!(!equal(Comparison::Kind, &Reply::Null, &bulk("a")));
        let hello = |id: &str, proto: &str| list(&["version", id, "proto", proto, "id", id]);
        assert!(equal(Comparison::Hello, &hello("1", "2"), &hello("5", "2")));
        assert!(!equal(Comparison::Hello, &hello("1", "2"), &hello("1", "3")));
    }
}
