use crate::harness::Harness;
use alloc::{format, string::String, vec, vec::Vec};

#[test]
fn bits_are_set_counted_and_found() {
    Harness::new().expect(&[
        ("SETBIT k 7 1", ":0"),
        ("SETBIT k 7 1", ":1"),
        ("GETBIT k 7", ":1"),
        ("GETBIT k 100", ":0"),
        ("SETBIT k 17 1", ":0"),
        ("STRLEN k", ":3"),
        ("BITCOUNT k", ":2"),
        ("BITCOUNT k 1 -1", ":1"),
        ("BITCOUNT k 7 17 BIT", ":2"),
        ("BITCOUNT k 8 16 BIT", ":0"),
        ("BITPOS k 1", ":7"),
        ("BITPOS k 1 1", ":17"),
        ("BITPOS k 0 7 7 BIT", ":-1"),
        ("SET k 123", "+OK"),
        ("SETBIT k 0 0", ":0"),
        ("OBJECT ENCODING k", "$3 raw"),
        ("BITOP NOT n k", ":3"),
        ("BITOP AND a k none", ":3"),
        ("BITCOUNT a", ":0"),
        ("BITOP OR none none", ":0"),
        (
            "BITFIELD c OVERFLOW SAT SET i10 0 -9223372036854775807 GET i10 0 SET i10 0 -9000 GET i10 0",
            "*4 :0 :511 :511 :-512",
        ),
        ("BITFIELD b SET u8 #1 255 INCRBY u8 #1 1 OVERFLOW FAIL INCRBY i8 0 -129 GET u16 0", "*4 :0 :0 $-1 :0"),
    ]);
}

/// Bit by bit what the commands do in words.
#[test]
fn ranges_are_as_a_slow_model_says() {
    let mut harness = Harness::new();
    let mut rng = fastrand::Rng::with_seed(6);
    for round in 0..3000 {
        let len = rng.usize(..40);
        let fill = *rng.choice(&[0, 0xff, 0x10]).unwrap();
        let mut text = vec![fill; len];
        for _ in 0..rng.usize(..3) {
            if let Some(byte) = rng.choice(&mut text) {
                *byte ^= 1 << (round % 8);
            }
        }
        harness.run_words(&[b"SET", b"k", &text]);
        let (start, end) = (rng.i64(-400..400), rng.i64(-400..400));
        let bit = rng.usize(..2);
        let is_bits = rng.bool();
        let bits: Vec<usize> =
            text.iter().flat_map(|byte| (0..8).map(move |at| usize::from(byte >> (7 - at) & 1))).collect();
        let total = if is_bits { bits.len() } else { len } as i64;
        let first = if start < 0 { (start + total).max(0) } else { start };
        let last = if end < 0 { (end + total).max(0) } else { end }.min(total - 1);
        let width = if is_bits { 1 } else { 8 };
        let range = if first > last { 0..0 } else { first as usize * width..(last as usize + 1) * width };
        let count = if start < 0 && end < 0 && start > end { 0 } else { bits[range.clone()].iter().sum::<usize>() };
        let unit: String = if is_bits { "BIT".into() } else { "BYTE".into() };
        assert_eq!(harness.run(&format!("BITCOUNT k {start} {end} {unit}")), format!(":{count}"), "{text:?}");
        let position = bits[range.clone()].iter().position(|b| *b == bit).map_or(-1, |at| (range.start + at) as i64);
        assert_eq!(harness.run(&format!("BITPOS k {bit} {start} {end} {unit}")), format!(":{position}"), "{text:?}");
    }
}
