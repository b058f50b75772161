use super::*;
use crate::{Hash, PackedLimits};
use alloc::{collections::BTreeMap, string::ToString, vec};

fn shown(db: &Db, found: Found) -> Vec<u8> {
    match db.value(found) {
        Value::Integer(number) => number.to_string().into_bytes(),
        Value::Bytes(bytes) => bytes.to_vec(),
    }
}

fn random_value(rng: &mut fastrand::Rng) -> Vec<u8> {
    let len = match rng.u8(..10) {
        0 => return rng.i64(..).to_string().into_bytes(),
        1 => rng.usize(900..1100),
        2 => rng.usize(..5000),
        _ => rng.usize(..80),
    };
    (0..len).map(|_| rng.u8(..)).collect()
}

/// Every operation against an ordered map that does the same.
#[test]
fn behaves_like_a_map_with_expiry() {
    for seed in 0..20 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut db = Db::new(HashKey(seed, 7));
        let mut model: BTreeMap<Vec<u8>, (Vec<u8>, Option<u64>)> = BTreeMap::new();
        let mut now = 1_000_000;
        for step in 0..4000 {
            now += rng.u64(..3);
            let number = rng.u32(..300);
            let key = if number.is_multiple_of(10) { vec![number as u8; 600] } else { number.to_string().into_bytes() };
            let context = (seed, step, number);
            model.retain(|_, (_, at)| at.is_none_or(|at| at >= now));
            match rng.u8(..9) {
                0..3 => {
                    let value = random_value(&mut rng);
                    let at = now + rng.u64(1..500);
                    let (expiry, expected) = match rng.u8(..3) {
                        0 => (Expiry::Never, None),
                        1 => (Expiry::At(at), Some(at)),
                        _ => (Expiry::Keep, model.get(&key).and_then(|(_, at)| *at)),
                    };
                    db.set(&key, Owned::Text(&value), expiry, now).unwrap();
                    model.insert(key.clone(), (value, expected));
                }
                3 => {
                    let found = db.find(&key, now);
                    assert_eq!(found.is_some(), model.remove(&key).is_some(), "{context:?}");
                    found.into_iter().for_each(|found| db.remove(found));
                }
                4 => {
                    let at = if rng.bool() { Some(now + rng.u64(1..500)) } else { None };
                    if let Some(found) = db.find(&key, now) {
                        db.set_expires_ms(found, at).unwrap();
                        model.get_mut(&key).unwrap().1 = at;
                    }
                }
                5 => {
                    let len = rng.usize(..2000);
                    let fill = rng.u8(..);
                    let value = &mut model.entry(key.clone()).or_default().0;
                    value.resize(len, 0);
                    let bytes = db.resize(&key, len, rng.usize(..100), now).unwrap();
                    if let (Some(a), Some(b)) = (bytes.last_mut(), value.last_mut()) {
                        (*a, *b) = (fill, fill);
                    }
                }
                6 => _ = db.expire_slice(now, 50),
                7 => {
                    let to = rng.u32(300..310).to_string().into_bytes();
                    if let Some(found) = db.find(&key, now) {
                        db.rename(found, &to, now).unwrap();
                        let moved = model.remove(&key).unwrap();
                        model.insert(to, moved);
                    }
                }
                _ => {}
            }
            match (db.find(&key, now), model.get(&key)) {
                (Some(found), Some((value, at))) => {
                    assert_eq!((&shown(&db, found), db.expires_ms(found)), (value, *at), "{context:?}");
                    assert_eq!(db.key(found), key);
                }
                (None, None) => {}
                (found, expected) => panic!("{context:?}: {found:?} {expected:?}"),
            }
        }
        let expected: Vec<&Vec<u8>> =
            model.iter().filter(|(_, v)| v.1.is_none_or(|at| at >= now)).map(|(k, _)| k).collect();
        let mut keys = Vec::new();
        let mut cursor = 0;
        loop {
            cursor = db.scan(cursor, now, |key, _| keys.push(key.to_vec()));
            if cursor == 0 {
                break;
            }
        }
        keys.sort();
        assert_eq!(keys.iter().collect::<Vec<_>>(), expected, "seed {seed}");
        while db.volatile_len() > 0 {
            db.expire_slice(u64::MAX, 100);
        }
        assert_eq!(db.len(), model.values().filter(|v| v.1.is_none()).count());
    }
}

#[test]
fn encodings_are_those_of_redis() {
    let mut db = Db::new(HashKey(0, 0));
    for (value, encoding) in [(&b"12"[..], "int"), (b"012", "embstr"), (&[b'x'; 44], "embstr"), (&[b'x'; 45], "raw")] {
        db.set(b"k", Owned::Text(value), Expiry::Never, 0).unwrap();
        let found = db.find(b"k", 0).unwrap();
        assert_eq!(db.encoding(found).name(), encoding);
    }
    db.set(b"k", Owned::Text(b"a"), Expiry::Never, 0).unwrap();
    db.resize(b"k", 2, 0, 0).unwrap();
    let found = db.find(b"k", 0).unwrap();
    assert_eq!(db.encoding(found).name(), "raw");
    // A number lies elsewhere beside a long key, and comes from there to a short one.
    let long = [b'k'; 2000];
    for (text, encoding) in [(b"-12", "int"), (b"012", "embstr")] {
        db.set(&long, Owned::Text(text), Expiry::Never, 0).unwrap();
        let found = db.find(&long, 0).unwrap();
        assert_eq!(db.encoding(found).name(), encoding);
        db.rename(found, b"k", 0).unwrap();
        let found = db.find(b"k", 0).unwrap();
        assert_eq!((db.encoding(found).name(), shown(&db, found)), (encoding, text.to_vec()));
    }
    db.set(&long, Owned::Integer(1), Expiry::Never, 0).unwrap();
    db.resize(&long, 1, 0, 0).unwrap()[0] = b'2';
    let found = db.find(&long, 0).unwrap();
    assert_eq!(db.encoding(found).name(), "raw", "it was edited");
}

#[test]
fn a_long_string_is_overwritten_in_its_vector() {
    for key in [b"k".to_vec(), vec![b'k'; 2000]] {
        let mut db = Db::new(HashKey(1, 2));
        let mut set = |text: &[u8], expiry| {
            db.set(&key, Owned::Text(text), expiry, 5).unwrap();
            let found = db.find(&key, 5).unwrap();
            (shown(&db, found), db.expires_ms(found), db.encoding(found), db.records.bytes(found.record))
        };
        let long = [b'a'; 4000];
        let (value, expires_ms, encoding, most) = set(&long, Expiry::At(9));
        assert_eq!((value, expires_ms, encoding), (long.to_vec(), Some(9), Encoding::Raw));
        let (value, expires_ms, _, bytes) = set(&long[..2000], Expiry::At(8));
        assert_eq!((value, expires_ms, bytes), (long[..2000].to_vec(), Some(8), most), "the vector stays");
        let (value, expires_ms, _, bytes) = set(&long[..1500], Expiry::Keep);
        assert_eq!((value, expires_ms), (long[..1500].to_vec(), Some(8)));
        assert!(bytes < most - 2000, "of {most} bytes {bytes} are left");
        assert_eq!(set(b"short", Expiry::Never).0, b"short");
        assert_eq!(
            (set(b"8 bytes.", Expiry::Keep).0, set(b"12345678", Expiry::Keep).0),
            (b"8 bytes.".into(), b"12345678".into())
        );
        assert_eq!(set(&long, Expiry::Keep).0, long);
    }
}

/// However large a database is, each step of taking it down is small, and all of them together free everything.
#[test]
fn is_taken_down_in_steps() {
    const LIMIT: usize = 256;
    let mut db = Db::new(HashKey(0, 0));
    for number in 0..30_000u32 {
        let expiry = if number % 3 == 0 { Expiry::At(1 << 40) } else { Expiry::Never };
        let text = vec![b'x'; if number % 5 == 0 { 2000 } else { 20 }];
        db.set(&number.to_le_bytes(), Owned::Text(&text), expiry, 0).unwrap();
        let key = [b's', number as u8 % 10];
        let found = db.find(&key, 0);
        let limits = PackedLimits { entries: 100, entry_bytes: 100 };
        let edit =
            db.edit(&key, found, 0, |hash: &mut Hash, records| hash.set(records, &number.to_le_bytes(), &text, limits));
        edit.unwrap();
    }
    let mut steps = 0;
    while db.dismantle(LIMIT) {
        steps += 1;
    }
    assert!(steps > 100, "{steps}");
    assert_eq!((db.overhead_bytes(), db.garbage_len()), (0, 0));
}

#[test]
fn random_gives_up_on_a_database_of_expired_keys() {
    let mut db = Db::new(HashKey(0, 0));
    for i in 0..50u32 {
        db.set(&i.to_le_bytes(), Owned::Text(b"v"), Expiry::At(10), 0).unwrap();
    }
    assert!(db.random(&mut fastrand::Rng::with_seed(1), 11).is_none());
}
