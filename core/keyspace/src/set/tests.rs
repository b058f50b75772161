use super::*;
use crate::{Expiry, HashKey};
use alloc::{
    collections::{BTreeMap, BTreeSet},
    string::ToString,
};

const LIMITS: SetLimits = SetLimits { intset_entries: 30, packed: PackedLimits { entries: 20, entry_bytes: 10 } };

fn shown(value: Value<'_>) -> Vec<u8> {
    text_of(value, <[u8]>::to_vec)
}

fn all(view: SetView<'_>) -> BTreeSet<Vec<u8>> {
    let mut all = BTreeSet::new();
    view.for_each(|member| assert!(all.insert(shown(member))));
    all
}

fn random_member(rng: &mut fastrand::Rng, step: u32) -> Vec<u8> {
    match rng.u8(..20) {
        0 if step > 400 => alloc::vec![b'x'; rng.usize(..40)],
        1 if step > 200 => (0..rng.usize(..9)).map(|_| rng.u8(..)).collect(),
        _ => rng.u32(..60).to_string().into_bytes(),
    }
}

/// Every operation against an ordered set that does the same, with sets that grow out of every form.
#[test]
fn behaves_like_a_set() {
    for seed in 0..40 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut db = Db::new(HashKey(seed, 1));
        let mut model: BTreeSet<Vec<u8>> = BTreeSet::new();
        let mut encodings = BTreeSet::new();
        for step in 0..1200u32 {
            let context = (seed, step);
            let growth = 1 + (step / 300) % 2 * 3;
            let member = random_member(&mut rng, step);
            let value = Value::Bytes(&member);
            let found = db.find(b"s", 0);
            if rng.u32(..6) < growth || found.is_none() {
                let edit = db.edit(b"s", found, 0, |set: &mut Set, records| set.add(records, value, LIMITS));
                assert_eq!(edit.unwrap().result, model.insert(member.clone()), "{context:?}");
            } else if rng.u8(..4) == 0 {
                let edit = db.edit(b"s", found, 0, |set: &mut Set, records| {
                    Ok(set.pop(records, &mut rng, |name| Some(shown(name))))
                });
                let edit = edit.unwrap();
                assert!(model.remove(&edit.result.unwrap()), "{context:?}");
                assert_eq!(edit.is_gone, model.is_empty());
            } else {
                let edit = db.edit(b"s", found, 0, |set: &mut Set, records| Ok(set.remove(records, value)));
                assert_eq!(edit.unwrap().result, model.remove(&member), "{context:?}");
            }
            let Some(found) = db.find(b"s", 0) else {
                assert!(model.is_empty(), "{context:?}");
                continue;
            };
            let view = db.set_at(found);
            encodings.insert(view.encoding().name());
            assert_eq!(view.len(), model.len(), "{context:?}");
            assert_eq!(view.contains(value), model.contains(&member), "{context:?}");
            if step % 40 == 0 {
                assert_eq!(all(view), model, "{context:?}");
                let (mut scanned, mut cursor) = (BTreeSet::new(), 0);
                loop {
                    cursor = view.scan(cursor, |member| _ = scanned.insert(shown(member)));
                    if cursor == 0 {
                        break;
                    }
                }
                assert_eq!(scanned, model, "{context:?}");
                let (count, mut sampled) = (rng.usize(1..60), BTreeSet::new());
                view.sample(&mut rng, count, |member| assert!(sampled.insert(shown(member)))).unwrap();
                assert!(sampled.len() == count.min(model.len()) && sampled.is_subset(&model), "{context:?}");
                db.copy(found, b"copy", 0).unwrap();
                let copy = db.find(b"copy", 0).unwrap();
                assert_eq!(all(db.set_at(copy)), model, "{context:?}");
                db.edit(b"copy", Some(copy), 0, |set: &mut Set, records| set.repack(records, LIMITS)).unwrap();
                let copy = db.find(b"copy", 0).unwrap();
                assert_eq!(all(db.set_at(copy)), model, "{context:?}");
            }
        }
        assert_eq!(encodings.len(), 3, "seed {seed}");
    }
}

fn make(db: &mut Db, key: &[u8], members: impl Iterator<Item = usize>) {
    for member in members {
        let found = db.find(key, 0);
        let name = member.to_string();
        let edit =
            db.edit(key, found, 0, |set: &mut Set, records| set.add(records, Value::Bytes(name.as_bytes()), LIMITS));
        edit.unwrap();
    }
}

#[test]
fn sets_are_lent_together_and_come_back() {
    let mut db = Db::new(HashKey(1, 1));
    make(&mut db, b"small", 0..5);
    make(&mut db, b"large", 3..300);
    let found = [b"small", b"large", b"small"].map(|key: &[u8; 5]| db.find(key, 0).unwrap());
    let union = db.with_sets(&found, |sets, records| {
        let mut union = Set::default();
        let mut buffer = Vec::new();
        for set in sets {
            for member in set.members() {
                union.add_from(records, member, &mut buffer, LIMITS)?;
            }
        }
        Ok(union)
    });
    db.put(b"union", union.unwrap(), Expiry::Never, 0).unwrap();
    for (key, len) in [(b"small", 5), (b"large", 297), (b"union", 300)] {
        let found = db.find(key, 0).unwrap();
        assert_eq!(all(db.set_at(found)).len(), len);
    }
}

#[test]
fn every_member_is_drawn_about_as_often() {
    for members in [7, 25, 100] {
        let mut db = Db::new(HashKey(5, 5));
        make(&mut db, b"s", 0..members);
        let found = db.find(b"s", 0).unwrap();
        let mut rng = fastrand::Rng::with_seed(1);
        let mut drawn: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
        for _ in 0..members * 1000 {
            *drawn.entry(shown(db.set_at(found).random(&mut rng).unwrap())).or_default() += 1;
        }
        assert!(drawn.len() == members && drawn.values().all(|times| (800..1200).contains(times)), "{drawn:?}");
        let mut drawn: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
        for _ in 0..4000 {
            let mut count = |member| *drawn.entry(shown(member)).or_default() += 1;
            db.set_at(found).sample(&mut rng, members / 4, &mut count).unwrap();
        }
        let expected = (4000 * (members / 4) / members) as u32;
        assert!(drawn.values().all(|times| times.abs_diff(expected) < expected / 4), "{expected} {drawn:?}");
    }
}
