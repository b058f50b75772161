use super::*;
use crate::{Db, Encoding, Expiry, HashKey};
use alloc::{vec, vec::Vec};

fn text(rng: &mut fastrand::Rng) -> Vec<u8> {
    let len = match rng.u8(..40) {
        0 => rng.usize(8000..9000),
        1 => rng.usize(..3000),
        2..10 => rng.usize(..200),
        _ => 2,
    };
    vec![b'a' + rng.u8(..12); len]
}

fn elements(view: ListView<'_>) -> VecDeque<Vec<u8>> {
    view.iter().map(<[u8]>::to_vec).collect()
}

/// Parts are never empty, count right and are within the limit.
fn check(list: &List, limit: PartLimit) {
    if let List::Parts(parts) = list {
        assert_eq!(parts.len, parts.parts.iter().map(|part| part.packed.len()).sum::<usize>());
        for part in &parts.parts {
            assert!(part.len > 0 && part.len as usize == part.packed.len());
            // As in Redis, what has just been added to a packed list counts without its lengths.
            let bytes = part.packed.as_ref().iter().map(<[u8]>::len).sum();
            assert!(part.len == 1 || !limit.exceeds(bytes, part.len as usize), "{} entries, {limit:?}", part.len);
        }
    }
}

/// One random change to a list and to a vector.
fn change(list: &mut List, model: &mut VecDeque<Vec<u8>>, limit: PartLimit, rng: &mut fastrand::Rng) {
    let end = if rng.bool() { ListEnd::Front } else { ListEnd::Back };
    let (text, len) = (text(rng), model.len());
    let some = model.get(rng.usize(..=len)).cloned().unwrap_or_default();
    match rng.u8(..20) {
        0..8 => {
            let count = rng.usize(1..30);
            list.push(end, core::iter::repeat_n(text.as_slice(), count), limit).unwrap();
            for _ in 0..count {
                match end {
                    ListEnd::Front => model.push_front(text.clone()),
                    ListEnd::Back => model.push_back(text.clone()),
                }
            }
        }
        8..10 => {
            let count = rng.usize(..20);
            list.pop(end, count, limit);
            for _ in 0..count {
                match end {
                    ListEnd::Front => model.pop_front(),
                    ListEnd::Back => model.pop_back(),
                };
            }
        }
        10..13 => {
            let index = rng.usize(..=len);
            assert_eq!(list.set(index, &text, limit).unwrap(), index < len);
            model.get_mut(index).into_iter().for_each(|place| place.clone_from(&text));
        }
        13..18 => {
            let side = if rng.bool() { Side::Before } else { Side::After };
            let at = model.iter().position(|other| *other == some);
            assert_eq!(list.insert(&some, side, &text, limit).unwrap(), at.is_some());
            at.into_iter().for_each(|at| model.insert(at + usize::from(side == Side::After), text.clone()));
        }
        18 => {
            let count = rng.usize(1..20);
            let mut removed = 0;
            let mut keep = |other: &Vec<u8>| {
                let goes = *other == some && removed < count;
                removed += usize::from(goes);
                !goes
            };
            let kept: VecDeque<Vec<u8>> = match end {
                ListEnd::Front => model.iter().filter(|other| keep(other)).cloned().collect(),
                ListEnd::Back => {
                    let kept: Vec<_> = model.iter().rev().filter(|other| keep(other)).cloned().collect();
                    kept.into_iter().rev().collect()
                }
            };
            *model = kept;
            assert_eq!(list.remove(&some, end, count, limit), removed);
        }
        _ => {
            let start = rng.usize(..=len.min(20));
            let range = start..rng.usize(start..=len);
            *model = model.drain(range.clone()).collect();
            list.trim(range, limit);
        }
    }
}

#[test]
fn behaves_like_a_deque() {
    let limits = [PartLimit::Bytes(8192), PartLimit::Bytes(300), PartLimit::Entries(4), PartLimit::Entries(0)];
    for seed in 0..60 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let limit = limits[seed as usize % limits.len()];
        let mut list = List::default();
        let mut model = VecDeque::new();
        for step in 0..300 {
            change(&mut list, &mut model, limit, &mut rng);
            let context = (seed, step);
            let view = list.view();
            assert!(view.iter().eq(model.iter().map(Vec::as_slice)), "{context:?}");
            assert_eq!(view.len(), model.len(), "{context:?}");
            let index = rng.usize(..=model.len());
            assert_eq!(view.get(index), model.get(index).map(Vec::as_slice), "{context:?}");
            let back = view.iter_from(index, ListEnd::Back);
            assert!(back.eq(model.iter().take(index + 1).rev().map(Vec::as_slice).filter(|_| index < model.len())));
            check(&list, limit);
        }
    }
}

#[test]
fn what_is_left_of_a_long_list_is_packed_however_many_parts_had_it() {
    const LIMIT: PartLimit = PartLimit::Bytes(8192);
    for (left, is_packed) in [(30, true), (39, true), (45, false)] {
        let mut list = List::default();
        list.push(ListEnd::Back, core::iter::repeat_n(&[b'x'; 100][..], 100), LIMIT).unwrap();
        list.trim(0..left, LIMIT);
        assert_eq!(list.view().iter().count(), left);
        assert_eq!(matches!(list, List::Packed(_)), is_packed, "{left}");
    }
}

#[test]
fn keys_keep_their_lists_in_every_size() {
    const LIMIT: PartLimit = PartLimit::Bytes(8192);
    let mut db = Db::new(HashKey(1, 2));
    let mut rng = fastrand::Rng::with_seed(4);
    let mut model = VecDeque::new();
    for step in 0..2000 {
        let found = db.find(b"k", 0);
        let edit = db.edit(b"k", found, 0, |list: &mut List, _| {
            change(list, &mut model, LIMIT, &mut rng);
            Ok(())
        });
        assert_eq!(edit.unwrap().is_gone, model.is_empty(), "{step}");
        let found = db.find(b"k", 0);
        assert_eq!(found.map(|found| elements(db.list(found))).unwrap_or_default(), model, "{step}");
        if let Some(found) = found {
            db.copy(found, b"copy", 0).unwrap();
            let copy = db.find(b"copy", 0).unwrap();
            assert_eq!(elements(db.list(copy)), model, "{step}");
            db.set_expires_ms(copy, Some(10)).unwrap();
        }
    }
}

#[test]
fn a_large_list_is_freed_in_slices() {
    let mut db = Db::new(HashKey(1, 2));
    let list = db.build(|list: &mut List, _| {
        list.push(ListEnd::Back, core::iter::repeat_n(&b"element"[..], 200_000), PartLimit::Bytes(8192))
    });
    db.put(b"k", list.unwrap(), Expiry::Never, 0).unwrap();
    let found = db.find(b"k", 0).unwrap();
    assert_eq!(db.encoding(found), Encoding::Quicklist);
    db.remove(found);
    let mut slices = 0;
    while db.free_slice(64) {
        slices += 1;
    }
    assert!(slices > 1, "{slices}");
}
