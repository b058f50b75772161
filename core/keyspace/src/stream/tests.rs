use super::*;
use alloc::{collections::BTreeMap, format, vec};

type Fields = Vec<(Vec<u8>, Vec<u8>)>;
type Model = BTreeMap<StreamId, Fields>;

fn random_fields(rng: &mut fastrand::Rng) -> Fields {
    let names: &[&str] = if rng.u8(..4) == 0 { &["a", "other", "b"] } else { &["a", "b"] };
    let value = |rng: &mut fastrand::Rng| match rng.u8(..4) {
        0 => format!("{}", rng.i64(..)).into_bytes(),
        1 => vec![b'x'; rng.usize(..300)],
        _ => format!("{}", rng.u8(..)).into_bytes(),
    };
    names.iter().map(|name| (name.as_bytes().to_vec(), value(rng))).collect()
}

fn append(stream: &mut Stream, id: StreamId, fields: &Fields, limits: BlockLimits) {
    stream.append(id, fields.iter().map(|(name, value)| (&name[..], &value[..])), limits).unwrap();
}

fn seen(stream: &Stream, start: StreamId, end: StreamId, direction: Direction) -> Vec<(StreamId, Fields)> {
    let mut seen = Vec::new();
    stream.visit(start, end, direction, |entry| {
        let mut fields = Fields::new();
        entry.for_each(|name, value| fields.push((name.to_vec(), value.to_vec())));
        assert_eq!(fields.len(), entry.len());
        seen.push((entry.id(), fields));
        ControlFlow::Continue(())
    });
    seen
}

fn check(stream: &Stream, model: &Model, rng: &mut fastrand::Rng, context: (u64, u32)) {
    assert_eq!(stream.len(), model.len() as u64, "{context:?}");
    assert_eq!(stream.first_id(), model.keys().next().copied().unwrap_or_default(), "{context:?}");
    let mut id = || StreamId { ms: rng.u64(..stream.last_id.ms + 2), seq: rng.u64(..5) };
    for (a, b) in [(StreamId::MIN, StreamId::MAX), (id(), id()), (id(), id())] {
        let (start, end) = (a.min(b), a.max(b));
        let mut expected: Vec<_> = model.range(start..=end).map(|(id, fields)| (*id, fields.clone())).collect();
        assert_eq!(seen(stream, start, end, Direction::Forward), expected, "{context:?}");
        expected.reverse();
        assert_eq!(seen(stream, start, end, Direction::Backward), expected, "{context:?}");
        assert_eq!(stream.get(start).is_some(), model.contains_key(&start), "{context:?}");
    }
}

#[test]
fn behaves_like_a_map() {
    for seed in 0..40 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let limits =
            BlockLimits { bytes: *rng.choice(&[0, 300, 4096]).unwrap(), entries: *rng.choice(&[0, 3, 100]).unwrap() };
        let mut stream = Stream::default();
        let mut model = Model::new();
        for step in 0..1500 {
            let context = (seed, step);
            match rng.u8(..20) {
                0 => {
                    let len = rng.u64(..model.len() as u64 + 5);
                    let removed = stream.trim(Trim::Exactly(Keep::Last(len)));
                    assert_eq!(removed, (model.len() as u64).saturating_sub(len), "{context:?}");
                    (0..removed).for_each(|_| _ = model.pop_first());
                }
                1 => {
                    let from = StreamId { ms: rng.u64(..stream.last_id.ms + 2), seq: rng.u64(..4) };
                    let rest = model.split_off(&from);
                    assert_eq!(stream.trim(Trim::Exactly(Keep::From(from))), model.len() as u64, "{context:?}");
                    model = rest;
                }
                2 => {
                    let len = rng.u64(..model.len() as u64 + 5);
                    let removed = stream.trim(Trim::Roughly(Keep::Last(len), rng.u64(..50)));
                    assert!(removed <= (model.len() as u64).saturating_sub(len), "{context:?}");
                    (0..removed).for_each(|_| _ = model.pop_first());
                }
                3..8 => {
                    let id = StreamId { ms: rng.u64(..stream.last_id.ms + 2), seq: rng.u64(..4) };
                    assert_eq!(stream.remove(id), model.remove(&id).is_some(), "{context:?}");
                }
                _ => {
                    let last = stream.last_id;
                    let id = match rng.u8(..3) {
                        0 => last.next().unwrap(),
                        _ => StreamId { ms: last.ms + 1 + rng.u64(..2), seq: rng.u64(..4) },
                    };
                    let fields = random_fields(&mut rng);
                    append(&mut stream, id, &fields, limits);
                    model.insert(id, fields);
                }
            }
            if step % 20 == 0 {
                check(&stream, &model, &mut rng, context);
            }
        }
        let mut copy = stream.copy().unwrap();
        check(&copy, &model, &mut rng, (seed, u32::MAX));
        while copy.free(3).is_none() {}
        assert!(copy.blocks() == 0);
    }
}

#[test]
fn ids_at_the_ends() {
    let id = |ms, seq| StreamId { ms, seq };
    assert_eq!(id(1, u64::MAX).next(), Some(id(2, 0)));
    assert_eq!(id(2, 0).previous(), Some(id(1, u64::MAX)));
    assert_eq!((StreamId::MAX.next(), StreamId::MIN.previous()), (None, None));
    let mut stream = Stream::default();
    let fields = vec![(b"f".to_vec(), b"v".to_vec())];
    for id in [id(0, 1), id(0, u64::MAX), id(1, 0), StreamId::MAX] {
        append(&mut stream, id, &fields, BlockLimits { bytes: 4096, entries: 100 });
        assert!(stream.get(id).is_some());
    }
    assert_eq!(seen(&stream, StreamId::MIN, StreamId::MAX, Direction::Forward).len(), 4);
}

#[test]
fn groups_know_what_is_pending() {
    for seed in 0..40 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut stream = Stream::default();
        assert!(stream.add_group(b"g", StreamId::MIN, Some(0)).unwrap());
        assert!(!stream.add_group(b"g", StreamId::MIN, None).unwrap());
        let group = stream.group_mut(b"g").unwrap();
        let mut model: BTreeMap<StreamId, Vec<u8>> = BTreeMap::new();
        for step in 0..2000 {
            let context = (seed, step);
            let name = format!("c{}", rng.u8(..6)).into_bytes();
            let id = StreamId { ms: rng.u64(..300), seq: 0 };
            match rng.u8(..20) {
                0 => {
                    let removed = group.remove_consumer(&name);
                    let before = model.len();
                    model.retain(|_, owner| *owner != name);
                    assert_eq!(removed.unwrap_or(0), before - model.len(), "{context:?}");
                    assert!(group.find_consumer(&name).is_none());
                }
                1..8 => assert_eq!(group.acknowledge(id), model.remove(&id).is_some(), "{context:?}"),
                _ => {
                    let (consumer, _) = group.add_consumer(&name, 1).unwrap();
                    group.deliver(Pending { id, consumer, delivered_ms: 2, deliveries: 3 }).unwrap();
                    model.insert(id, name);
                }
            }
            assert_eq!(group.pending_len(), model.len(), "{context:?}");
            assert_eq!(group.pending(id).is_some(), model.contains_key(&id), "{context:?}");
            if step % 50 == 0 {
                let mut seen = BTreeMap::new();
                group.visit_pending(StreamId::MIN, |pending| {
                    seen.insert(pending.id, group.consumer(pending.consumer).name().to_vec());
                    ControlFlow::Continue(())
                });
                assert_eq!(seen, model, "{context:?}");
                let mut names = Vec::new();
                for consumer in group.consumers() {
                    names.push(consumer.name().to_vec());
                    let mut own = Vec::new();
                    consumer.visit_pending(StreamId::MIN, |id| {
                        own.push(id);
                        ControlFlow::Continue(())
                    });
                    let expected = model.iter().filter(|(_, owner)| *owner == consumer.name()).map(|(id, _)| *id);
                    assert!(own.iter().copied().eq(expected), "{context:?}");
                }
                assert!(names.is_sorted());
            }
        }
        let copy = stream.copy().unwrap();
        assert_eq!(copy.group(b"g").unwrap().pending_len(), model.len());
        assert!(stream.remove_group(b"g") && !stream.remove_group(b"g"));
        let mut copy = copy;
        while copy.free(7).is_none() {}
    }
}

#[test]
fn takes_little_memory() {
    let mut stream = Stream::default();
    let limits = BlockLimits { bytes: 4096, entries: 100 };
    let fields = vec![(b"temperature".to_vec(), b"19.5".to_vec()), (b"humidity".to_vec(), b"40".to_vec())];
    for number in 0..10_000 {
        append(&mut stream, StreamId { ms: 1_600_000_000_000 + number * 7, seq: 0 }, &fields, limits);
    }
    // Names stand once a block.
    assert!(stream.bytes() < 10_000 * 20, "{}", stream.bytes());
}
