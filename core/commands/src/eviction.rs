//! Making room when memory is full: freeing what was removed already, and evicting keys by `maxmemory-policy`.
//!
//! As in Redis, the key to go is the worst of a few random ones and of the worst that were seen before, and a command is
//! kept waiting for a short time only: what is left to do is done between commands.

use crate::{EventClass, Store, args, options::MaxmemoryPolicy};
use alloc::vec::Vec;
use kayvee_keyspace::{Candidate, Found, Measure, Scope, UsePolicy};

/// The candidates that are remembered, as many as Redis does.
const POOL_SIZE: usize = 16;
/// Members of removed values that are freed, or keys that are evicted, between two looks at the clock.
const FREED_PER_LOOK: usize = 512;
const KEYS_PER_LOOK: usize = 16;
/// Units of work on removed values in one turn: about a tenth of a millisecond.
const FREED_PER_TURN: usize = 2048;

/// The worst keys seen so far that may still be there, the worst one last.
#[derive(Default)]
pub struct Pool {
    candidates: Vec<(usize, Candidate)>,
    /// What the scores were made by.
    policy: Option<MaxmemoryPolicy>,
    /// The database that gives way next where any key will do.
    next_db: usize,
}

impl Pool {
    fn offer(&mut self, db: usize, candidate: Candidate) {
        let at = self.candidates.partition_point(|(_, other)| other.score <= candidate.score);
        if self.candidates.len() == POOL_SIZE {
            if at == 0 {
                return;
            }
            self.candidates.remove(0);
            self.candidates.insert(at - 1, (db, candidate));
        } else {
            self.candidates.insert(at, (db, candidate));
        }
    }
}

/// How a policy finds keys: among which, and by what measure, if by any. `None` if it evicts none.
fn rule(policy: MaxmemoryPolicy) -> Option<(Scope, Option<Measure>)> {
    Some(match policy {
        MaxmemoryPolicy::NoEviction => return None,
        MaxmemoryPolicy::AllkeysRandom => (Scope::AllKeys, None),
        MaxmemoryPolicy::AllkeysLru => (Scope::AllKeys, Some(Measure::Recency)),
        MaxmemoryPolicy::AllkeysLfu => (Scope::AllKeys, Some(Measure::Frequency)),
        MaxmemoryPolicy::VolatileRandom => (Scope::Volatile, None),
        MaxmemoryPolicy::VolatileLru => (Scope::Volatile, Some(Measure::Recency)),
        MaxmemoryPolicy::VolatileLfu => (Scope::Volatile, Some(Measure::Frequency)),
        MaxmemoryPolicy::VolatileTtl => (Scope::Volatile, Some(Measure::TimeToLive)),
    })
}

/// How long a command waits for room, by `maxmemory-eviction-tenacity`: Redis' rule.
fn patience_ns(tenacity: u8) -> u64 {
    const STEP_NS: u64 = 50_000;
    match tenacity {
        0..=10 => STEP_NS * u64::from(tenacity),
        11..100 => (0..tenacity - 10).fold(10 * STEP_NS, |ns, _| ns * 115 / 100),
        _ => u64::MAX,
    }
}

impl Store {
    /// Lets the databases remember of the use of keys what the policy needs.
    pub(crate) fn apply_use_policy(&mut self) {
        let policy = self.use_policy();
        self.dbs.iter_mut().for_each(|db| db.set_use_policy(policy));
    }

    pub(crate) fn use_policy(&self) -> UsePolicy {
        let options = &self.options;
        if options.maxmemory_policy.is_lfu() {
            UsePolicy::Frequency { log_factor: options.lfu_log_factor, decay_minutes: options.lfu_decay_time }
        } else {
            UsePolicy::Recency
        }
    }

    /// Sees to it that memory is not full, as far as that can be done in a moment. Returns whether commands that need
    /// memory may run: they may as well while keys are still being evicted.
    #[inline(always)]
    pub fn make_room(&mut self) -> bool {
        if !self.is_full() {
            self.eviction_since_ns = None;
            return true;
        }
        self.evict_for_a_while()
    }

    fn evict_for_a_while(&mut self) -> bool {
        // Between two parts of a script nothing else may change.
        if self.leaves_eviction() || self.scripting.is_busy() {
            self.eviction_since_ns = None;
            return true;
        }
        let clock = self.environment.clock;
        let start_ns = clock.monotonic_ns();
        let until_ns = start_ns.saturating_add(patience_ns(self.options.maxmemory_eviction_tenacity));
        // What is told about evicted keys takes memory as well. Only what goes is counted here, lest that drive out more
        // keys, which are told of in turn.
        let mut wanted = self.excess_bytes();
        loop {
            for _ in 0..KEYS_PER_LOOK {
                // What was removed already counts until it is freed, and must not cost other keys their place.
                let gone =
                    self.measure(|store| store.free_some(FREED_PER_LOOK).then_some(())).or_else(|| self.evict_one());
                let Some(gone_bytes) = gone else {
                    self.note_end_of_eviction(start_ns);
                    return false;
                };
                wanted = wanted.saturating_sub(gone_bytes);
                if wanted == 0 || !self.is_full() {
                    self.note_end_of_eviction(start_ns);
                    return true;
                }
            }
            // The log is told of each key, and its buffers are soon full.
            if clock.monotonic_ns() >= until_ns || self.durable.log_is_congested() {
                self.eviction_since_ns.get_or_insert(start_ns);
                return !self.is_platform_full();
            }
        }
    }

    fn note_end_of_eviction(&mut self, now_ns: u64) {
        if let Some(since_ns) = self.eviction_since_ns.take() {
            self.stats.eviction_exceeded_ns += now_ns.saturating_sub(since_ns);
        }
    }

    /// For how long there has been no time to evict enough keys.
    pub(crate) fn eviction_exceeded_ms(&self) -> u64 {
        self.eviction_since_ns.map_or(0, |since_ns| self.now.monotonic_ns.saturating_sub(since_ns) / 1_000_000)
    }

    /// Does something and tells how many bytes less are in use then, if it returns anything.
    fn measure(&mut self, work: impl FnOnce(&mut Store) -> Option<()>) -> Option<u64> {
        let before = self.used_bytes();
        work(self)?;
        Some(before.saturating_sub(self.used_bytes()))
    }

    /// Removes the key that is worth the least. Returns the number of bytes that are free at once, or `None` where no key
    /// may go.
    fn evict_one(&mut self) -> Option<u64> {
        let (scope, measure) = rule(self.options.maxmemory_policy)?;
        let (db, found) = match measure {
            Some(measure) => self.worst(scope, measure)?,
            None => self.any(scope)?,
        };
        if self.copies_to_file() {
            self.write_down_key(db, found);
        }
        let name = args::copied(self.dbs[db].key(found));
        match &name {
            Ok(name) => self.effect(db, &[b"DEL", name]),
            Err(_) => self.durable.lose("memory for an evicted key's name"),
        }
        let gone_bytes = self.measure(|store| {
            store.dbs[db].remove(found);
            Some(())
        });
        self.stats.evicted_keys += 1;
        // Without memory for its name nobody can be told.
        if let Ok(name) = name {
            self.changed(db, &name);
            self.notify(EventClass::EVICTED, "evicted", db, &name);
        }
        gone_bytes
    }

    /// The key with the highest score among some random ones of each database and those seen before.
    fn worst(&mut self, scope: Scope, measure: Measure) -> Option<(usize, Found)> {
        let policy = Some(self.options.maxmemory_policy);
        if self.pool.policy != policy {
            (self.pool.policy, self.pool.candidates) = (policy, Vec::with_capacity(POOL_SIZE));
        }
        let (count, now_ms) = (self.options.maxmemory_samples as usize, self.now.unix_ms());
        loop {
            for (index, db) in self.dbs.iter().enumerate().filter(|(_, db)| db.len_in(scope) > 0) {
                let pool = &mut self.pool;
                db.sample(scope, measure, count, now_ms, &mut self.rng, |candidate| {
                    let is_known = pool.candidates.iter().any(|(db, other)| *db == index && other.is_same(&candidate));
                    if !is_known {
                        pool.offer(index, candidate);
                    }
                });
            }
            if self.pool.candidates.is_empty() {
                return None;
            }
            while let Some((db, candidate)) = self.pool.candidates.pop() {
                if let Some(found) = self.dbs[db].find_candidate(scope, candidate) {
                    return Some((db, found));
                }
            }
        }
    }

    /// A random key, of each database in turn.
    fn any(&mut self, scope: Scope) -> Option<(usize, Found)> {
        let count = self.dbs.len();
        let turns = (0..count).map(|turn| (self.pool.next_db + turn) % count);
        let db = turns.into_iter().find(|&db| self.dbs[db].len_in(scope) > 0)?;
        self.pool.next_db = (db + 1) % count;
        self.dbs[db].random_in(scope, &mut self.rng).map(|found| (db, found))
    }

    /// Frees some of what was removed. Returns whether there was anything to free.
    fn free_some(&mut self, limit: usize) -> bool {
        if let Some(db) = self.dbs.iter_mut().find(|db| db.garbage_len() > 0) {
            db.free_slice(limit);
            return true;
        }
        let Some(db) = self.flushed.last_mut() else { return false };
        if !db.dismantle(limit)
            && let Some(db) = self.flushed.pop()
        {
            self.freed_in_flushed += db.freed_in_slices();
        }
        true
    }

    /// Does what there is to do between commands: frees what was removed, and goes on evicting.
    pub fn free_slice(&mut self) {
        if self.eviction_since_ns.is_some() {
            self.make_room();
        }
        self.free_some(FREED_PER_TURN);
    }

    /// Whether [`free_slice`](Self::free_slice) has something to do.
    pub fn has_garbage(&self) -> bool {
        self.eviction_since_ns.is_some() || self.pending_values() > 0
    }

    /// Number of values that were removed and are not freed yet; a database counts as one.
    pub fn pending_values(&self) -> usize {
        self.flushed.len() + self.dbs.iter().map(|db| db.garbage_len()).sum::<usize>()
    }

    /// Number of values that were freed bit by bit.
    pub fn freed_values(&self) -> u64 {
        let dbs = self.dbs.iter().chain(&self.flushed);
        self.freed_in_flushed + dbs.map(|db| db.freed_in_slices()).sum::<u64>()
    }

    /// Takes a database's keys out, to be freed bit by bit.
    pub(crate) fn take_down(&mut self, db: usize) {
        let empty = self.empty_db();
        let old = core::mem::replace(&mut self.dbs[db], empty);
        // Without memory for the list it is freed at once.
        if !old.is_unused() && self.flushed.try_reserve(1).is_ok() {
            self.flushed.push(old);
            // A small one goes at once.
            self.free_some(FREED_PER_TURN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{Harness, START_MS};
    use alloc::format;

    /// Fills a store under a policy, with even keys that expire and odd ones that do not, makes some of them used, and
    /// lets memory be too full for a while. Returns which keys are left.
    fn evict(policy: &str, use_keys: impl Fn(&mut Harness)) -> Vec<u32> {
        const KEYS: u32 = 400;
        let mut harness = Harness::new();
        harness.run(&format!("CONFIG SET maxmemory-policy {policy} maxmemory-samples 10 lfu-decay-time 0"));
        for number in 0..KEYS {
            // The higher its number, the later a key expires.
            let expiry = if number.is_multiple_of(2) { format!("EX {}", 1000 + number) } else { "".into() };
            harness.run(&format!("SET key:{number} value {expiry}"));
        }
        harness.at_ms(START_MS + 100_000);
        use_keys(&mut harness);
        harness.at_ms(START_MS + 200_000);
        harness.heap.used_bytes.set(1 << 30);
        harness.run(&format!("CONFIG SET maxmemory {}", 1 << 20));
        for _ in 0..100 {
            harness.store.evict_one();
        }
        assert_eq!(harness.store.stats.evicted_keys, 100);
        harness.heap.used_bytes.set(0);
        (0..KEYS).filter(|number| harness.run(&format!("EXISTS key:{number}")) == ":1").collect()
    }

    fn share(left: &[u32], is_it: impl Fn(&u32) -> bool) -> usize {
        left.iter().filter(|number| is_it(number)).count()
    }

    #[test]
    fn policies_evict_what_is_worth_the_least() {
        let nothing = |_: &mut Harness| ();
        let use_first_half = |harness: &mut Harness| {
            for number in 0..200 {
                (0..20).for_each(|_| _ = harness.run(&format!("GET key:{number}")));
            }
        };
        let is_first = |number: &u32| *number < 200;
        let is_odd = |number: &u32| !number.is_multiple_of(2);
        assert_eq!(evict("allkeys-random", nothing).len(), 300);
        for policy in ["allkeys-lru", "allkeys-lfu"] {
            let left = evict(policy, use_first_half);
            assert!(share(&left, is_first) >= 190 && left.len() == 300, "{policy}: {left:?}");
        }
        for policy in ["volatile-lru", "volatile-lfu"] {
            let left = evict(policy, use_first_half);
            assert_eq!(share(&left, is_odd), 200, "{policy}");
            assert!(share(&left, |number| is_first(number) && !is_odd(number)) >= 95, "{policy}: {left:?}");
        }
        assert_eq!(share(&evict("volatile-random", nothing), is_odd), 200);
        let left = evict("volatile-ttl", nothing);
        assert_eq!(share(&left, is_odd), 200);
        assert!(share(&left, |number| !is_first(number) && !is_odd(number)) >= 95, "{left:?}");
    }

    #[test]
    fn full_memory_refuses_what_it_cannot_make_room_for() {
        const OOM: &str = "-OOM command not allowed when used memory > 'maxmemory'.";
        let mut harness = Harness::new();
        harness.expect(&[("SET k v", "+OK"), ("MULTI", "+OK"), ("SET k w", "+QUEUED")]);
        harness.heap.used_bytes.set(1 << 30);
        harness.store.options.maxmemory = 1 << 20;
        harness.expect(&[
            (
                "EXEC",
                "-EXECABORT Transaction discarded because of: OOM command not allowed when used memory > 'maxmemory'.",
            ),
            ("SET k w", OOM),
            ("GET k", "$1 v"),
            ("MULTI", "+OK"),
            ("GET k", OOM),
            ("DISCARD", "+OK"),
            ("CONFIG SET maxmemory-policy volatile-lru", "+OK"),
            ("SET k w", OOM),
            ("DEL k", ":1"),
            ("CONFIG SET maxmemory-policy allkeys-lru", "+OK"),
            ("DBSIZE", ":0"),
        ]);
    }

    /// What was removed already is freed before any key has to go.
    #[test]
    fn flushed_databases_make_room_bit_by_bit() {
        let mut harness = Harness::new();
        for number in 0..5_000 {
            harness.run(&format!("SET key:{number} {number}{}", "x".repeat(2000)));
        }
        harness.expect(&[("FLUSHALL", "+OK"), ("DBSIZE", ":0")]);
        assert!(harness.store.has_garbage());
        let mut turns = 0;
        while harness.store.has_garbage() {
            harness.store.free_slice();
            turns += 1;
        }
        assert!(turns > 0);
        assert_eq!(harness.store.pending_values(), 0);
    }

    #[test]
    fn frequency_and_idle_time_exclude_each_other() {
        let mut harness = Harness::new();
        harness.expect(&[
            ("SET k v", "+OK"),
            ("OBJECT REFCOUNT k", ":1"),
            ("SET n 1", "+OK"),
            ("OBJECT REFCOUNT n", ":2147483647"),
            ("CONFIG SET maxmemory-policy allkeys-lfu lfu-log-factor 0 maxmemory 10gb", "+OK"),
            ("OBJECT REFCOUNT n", ":1"),
            ("DEL k", ":1"),
            ("SET k v", "+OK"),
            ("OBJECT FREQ k", ":5"),
            ("GET k", "$1 v"),
            ("GET k", "$1 v"),
            ("OBJECT FREQ k", ":7"),
            ("OBJECT FREQ gone", "$-1"),
        ]);
        assert!(harness.run("OBJECT IDLETIME k").starts_with("-ERR An LFU maxmemory policy is selected"));
        harness.at_ms(START_MS + 3 * 60_000);
        harness.expect(&[("OBJECT FREQ k", ":4"), ("CONFIG SET maxmemory-policy volatile-ttl", "+OK")]);
        assert!(harness.run("OBJECT FREQ k").starts_with("-ERR An LFU maxmemory policy is not selected"));
    }
}
