//! Finding keys that can make way, by sampling: to keep all keys in order of their use would cost memory for each.

use crate::{Db, Found, index::Index, slab::Ref, usage::Usage};

/// Among which keys one is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All.
    AllKeys,
    /// Those that expire.
    Volatile,
}

/// By what a key's worth is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// The longer a key has not been used, the less it is worth.
    Recency,
    /// The more rarely it is used.
    Frequency,
    /// The sooner it expires.
    TimeToLive,
}

/// A key that may make way. It may be gone when its turn comes.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// The higher, the less the key is worth.
    pub score: u64,
    hash: u64,
    record: Ref,
}

impl Candidate {
    /// Whether both are the same key of one database.
    pub fn is_same(&self, other: &Candidate) -> bool {
        self.record == other.record
    }
}

impl Db {
    fn index_of(&self, scope: Scope) -> &Index {
        match scope {
            Scope::AllKeys => &self.index,
            Scope::Volatile => &self.volatile,
        }
    }

    /// Number of keys in a scope.
    pub fn len_in(&self, scope: Scope) -> usize {
        self.index_of(scope).len()
    }

    /// Looks at about `count` random keys, which are neighbours in the index.
    pub fn sample(
        &self,
        scope: Scope,
        measure: Measure,
        count: usize,
        now_ms: u64,
        rng: &mut fastrand::Rng,
        mut visit: impl FnMut(Candidate),
    ) {
        self.index_of(scope).sample(count, rng, |record| {
            let field = self.records.use_field(record);
            let score = match measure {
                Measure::Recency => Usage::idle_s(field, now_ms).into(),
                Measure::Frequency => u64::from(u8::MAX - self.usage.frequency(field, now_ms)),
                Measure::TimeToLive => u64::MAX - self.records.expires_ms(record).unwrap_or(u64::MAX),
            };
            visit(Candidate { score, hash: self.records.hash_of(record), record });
        });
    }

    /// The key of a candidate, if it is still there and has not been given a value elsewhere.
    pub fn find_candidate(&self, scope: Scope, candidate: Candidate) -> Option<Found> {
        let Candidate { hash, record, .. } = candidate;
        let record = self.index_of(scope).find(hash, |other| other == record)?;
        Some(Found { record, hash })
    }

    /// A random key, expired or not.
    pub fn random_in(&self, scope: Scope, rng: &mut fastrand::Rng) -> Option<Found> {
        let record = self.index_of(scope).random(rng)?;
        Some(Found { record, hash: self.records.hash_of(record) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Expiry, HashKey, Owned};

    /// Sampling reaches all keys, and the candidates are what they say.
    #[test]
    fn samples_are_keys_with_their_scores() {
        let mut db = Db::new(HashKey(3, 4));
        let mut rng = fastrand::Rng::with_seed(5);
        for number in 0..1000u64 {
            let expiry = if number.is_multiple_of(2) { Expiry::At(1_000_000 + number) } else { Expiry::Never };
            db.set(&number.to_le_bytes(), Owned::Text(b"v"), expiry, number * 1000).unwrap();
        }
        let number_of = |db: &Db, found: Found| u64::from_le_bytes(db.key(found).try_into().unwrap());
        let mut seen = alloc::collections::BTreeSet::new();
        for _ in 0..2000 {
            let mut count = 0;
            db.sample(Scope::AllKeys, Measure::Recency, 5, 999_000, &mut rng, |candidate| {
                let found = db.find_candidate(Scope::AllKeys, candidate).unwrap();
                assert_eq!(candidate.score, 999 - number_of(&db, found));
                seen.insert(number_of(&db, found));
                count += 1;
            });
            assert!((5..50).contains(&count), "{count}");
            db.sample(Scope::Volatile, Measure::TimeToLive, 5, 999_000, &mut rng, |candidate| {
                let found = db.find_candidate(Scope::Volatile, candidate).unwrap();
                assert_eq!(u64::MAX - candidate.score, 1_000_000 + number_of(&db, found));
            });
        }
        assert_eq!(seen.len(), 1000);
    }
}
