//! Tests of `memory.S`, which the image links under the names that the compiler calls.

extern crate std;
use std::{vec, vec::Vec};

core::arch::global_asm!(include_str!(concat!(env!("OUT_DIR"), "/memory-tested.S")), options(att_syntax));

unsafe extern "C" {
    fn tested_memcpy(to: *mut u8, from: *const u8, len: usize) -> *mut u8;
    fn tested_memmove(to: *mut u8, from: *const u8, len: usize) -> *mut u8;
    fn tested_memset(to: *mut u8, byte: i32, len: usize) -> *mut u8;
    fn tested_memcmp(a: *const u8, b: *const u8, len: usize) -> i32;
}

const LENGTHS: core::ops::Range<usize> = 0..300;

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 256 * 3 + 1) as u8).collect()
}

#[test]
fn copies_exactly_what_is_asked_for() {
    let from = pattern(400);
    for len in LENGTHS {
        for (from_at, to_at) in [(0, 0), (1, 0), (0, 3), (5, 9)] {
            let mut to = vec![0xaa; 400];
            // SAFETY: both ranges lie inside of their vectors.
            let returned = unsafe { tested_memcpy(to.as_mut_ptr().add(to_at), from.as_ptr().add(from_at), len) };
            assert_eq!(returned, to[to_at..].as_mut_ptr());
            assert_eq!(to[to_at..to_at + len], from[from_at..from_at + len]);
            assert!(to[..to_at].iter().chain(&to[to_at + len..]).all(|b| *b == 0xaa), "{len} {from_at} {to_at}");
        }
    }
}

#[test]
fn moves_within_overlapping_memory() {
    for len in LENGTHS {
        for distance in [0, 1, 2, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 100] {
            for (from_at, to_at) in [(0, distance), (distance, 0)] {
                let mut memory = pattern(450);
                let mut expected = memory.clone();
                expected.copy_within(from_at..from_at + len, to_at);
                // SAFETY: both ranges lie inside of the vector.
                unsafe { tested_memmove(memory.as_mut_ptr().add(to_at), memory.as_ptr().add(from_at), len) };
                assert_eq!(memory, expected, "{len} {from_at} {to_at}");
            }
        }
    }
}

#[test]
fn sets_exactly_what_is_asked_for() {
    for len in LENGTHS {
        for at in [0, 1, 5] {
            let mut memory = pattern(400);
            let mut expected = memory.clone();
            expected[at..at + len].fill(0xc3);
            // SAFETY: the range lies inside of the vector. Only the low byte of the value counts.
            unsafe { tested_memset(memory.as_mut_ptr().add(at), 0x1c3, len) };
            assert_eq!(memory, expected, "{len} {at}");
        }
    }
}

#[test]
fn compares_as_slices_do() {
    for len in 0..80 {
        let a = pattern(80);
        for differs_at in 0..80 {
            for change in [1u8, 0x80, 0xff] {
                let mut b = a.clone();
                b[differs_at] = b[differs_at].wrapping_add(change);
                // SAFETY: both ranges lie inside of their vectors.
                let result = unsafe { tested_memcmp(a.as_ptr(), b.as_ptr(), len) };
                assert_eq!(result.cmp(&0), a[..len].cmp(&b[..len]), "{len} {differs_at} {change}");
            }
        }
    }
}
