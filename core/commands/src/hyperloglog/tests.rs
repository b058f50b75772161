use super::{estimate, registers, sparse};
use crate::harness::Harness;
use alloc::{format, vec, vec::Vec};

#[test]
fn elements_are_counted() {
    let mut harness = Harness::new();
    harness.expect(&[
        ("PFADD h a b c", ":1"),
        ("PFADD h a b", ":0"),
        ("PFCOUNT h", ":3"),
        ("PFADD g c d", ":1"),
        ("PFCOUNT h g none", ":4"),
        ("PFMERGE m h g", "+OK"),
        ("PFCOUNT m", ":4"),
        ("PFDEBUG ENCODING m", "+sparse"),
        ("PFDEBUG TODENSE m", ":1"),
        ("PFADD m e", ":1"),
        ("PFCOUNT m", ":5"),
        ("PFMERGE h m", "+OK"),
        ("PFDEBUG ENCODING h", "+dense"),
        ("SET s v", "+OK"),
        ("PFADD s a", "-WRONGTYPE Key is not a valid HyperLogLog string value."),
        ("PFSELFTEST", "+OK"),
    ]);
    harness.run_words(&[b"SET", b"c", b"HYLL\x01\0\0\0\0\0\0\0\0\0\0\x80\x3f"]);
    assert_eq!(harness.run("PFCOUNT c"), "-INVALIDOBJ Corrupted HLL object detected");
}

/// What the sparse form holds is what an array of registers holds, until it becomes dense.
#[test]
fn sparse_registers_are_as_in_an_array() {
    for seed in 0..20 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut bytes = sparse::empty();
        let mut model = vec![0; registers::REGISTERS];
        let region = rng.usize(10..registers::REGISTERS);
        for step in 0..3000 {
            let index = rng.usize(..region);
            let value = rng.u8(1..6).max(if rng.u16(..) == 0 { 33 } else { 0 });
            let raised = registers::raise(&mut bytes, index, value, 3000).unwrap();
            assert_eq!(raised, model[index] < value, "{:?}", (seed, step));
            model[index] = value.max(model[index]);
            if step % 500 == 0 {
                let mut merged = vec![0; registers::REGISTERS];
                registers::merge(&bytes, &mut merged).unwrap();
                assert_eq!(merged, model, "{:?}", (seed, step));
                let mut dense = bytes.clone();
                registers::make_dense(&mut dense).unwrap();
                assert_eq!(estimate::count(&dense), estimate::count(&bytes), "{:?}", (seed, step));
            }
        }
    }
}

/// Bytes from strangers give an error or a number.
#[test]
fn corrupt_bytes_do_no_harm() {
    let mut harness = Harness::new();
    for seed in 0..3000 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut bytes = sparse::empty();
        for _ in 0..rng.usize(..40) {
            let (index, value) = registers::register_of(&rng.u64(..).to_le_bytes());
            registers::raise(&mut bytes, index, value, 3000).unwrap();
        }
        if rng.u8(..10) == 0 {
            registers::make_dense(&mut bytes).unwrap();
        }
        for _ in 0..rng.usize(1..4) {
            let at = rng.usize(4..bytes.len());
            match rng.u8(..3) {
                0 => bytes[at] = rng.u8(..),
                1 => bytes.truncate(at.max(16)),
                _ => bytes.insert(at, rng.u8(..)),
            }
        }
        harness.run_words(&[b"SET", b"h", &bytes]);
        for command in ["PFCOUNT h", "PFCOUNT h h", "PFADD h a b c d", "PFMERGE m h", "PFDEBUG GETREG h"] {
            let reply = harness.run(command);
            assert!(!reply.is_empty(), "{seed} {command}");
        }
        harness.run("DEL m");
    }
}

#[test]
fn estimates_are_close() {
    let mut bytes = sparse::empty();
    let mut elements: Vec<u32> = Vec::new();
    for number in 0..60_000u32 {
        elements.push(number);
        let (index, value) = registers::register_of(format!("{number}").as_bytes());
        registers::raise(&mut bytes, index, value, 3000).unwrap();
        if number % 1000 == 999 {
            let count = estimate::count(&bytes).unwrap();
            assert!(count.abs_diff(elements.len() as u64) < 20 + elements.len() as u64 / 30, "{number} {count}");
        }
    }
}
