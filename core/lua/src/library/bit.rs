//! The library `bit`: operations on 32-bit integers.

use super::{Functions, add_library};
use crate::{
    error::Raise,
    machine::{Args, Flow, Machine, NativeResult},
    value::Value,
};
use alloc::vec::Vec;

const FUNCTIONS: &Functions = &[
    ("tobit", |m, a| unary(m, a, |x| x)),
    ("bnot", |m, a| unary(m, a, |x| !x)),
    ("bswap", |m, a| unary(m, a, u32::swap_bytes)),
    ("band", |m, a| fold(m, a, |x, y| x & y)),
    ("bor", |m, a| fold(m, a, |x, y| x | y)),
    ("bxor", |m, a| fold(m, a, |x, y| x ^ y)),
    ("lshift", |m, a| shift(m, a, u32::wrapping_shl)),
    ("rshift", |m, a| shift(m, a, u32::wrapping_shr)),
    ("arshift", |m, a| shift(m, a, |x, count| (x as i32).wrapping_shr(count) as u32)),
    ("rol", |m, a| shift(m, a, |x, count| x.rotate_left(count & 31))),
    ("ror", |m, a| shift(m, a, |x, count| x.rotate_right(count & 31))),
    ("tohex", tohex),
];

pub(super) fn open(machine: &mut Machine) -> Result<(), Raise> {
    add_library(machine, "bit", FUNCTIONS).map(|_| ())
}

/// A number modulo 2^32. Halves are rounded to even, by adding a number that leaves no bits for a fraction.
fn bits(machine: &Machine, args: Args, index: usize) -> Result<u32, Raise> {
    const ROUNDER: f64 = 6_755_399_441_055_744.0;
    Ok((machine.check_number(args, index)? + ROUNDER).to_bits() as u32)
}

fn signed(bits: u32) -> NativeResult {
    Ok(Flow::One(Value::Number((bits as i32).into())))
}

fn unary(machine: &mut Machine, args: Args, function: fn(u32) -> u32) -> NativeResult {
    signed(function(bits(machine, args, 0)?))
}

fn fold(machine: &mut Machine, args: Args, function: fn(u32, u32) -> u32) -> NativeResult {
    let mut result = bits(machine, args, 0)?;
    for index in 1..args.len {
        result = function(result, bits(machine, args, index)?);
    }
    signed(result)
}

fn shift(machine: &mut Machine, args: Args, function: fn(u32, u32) -> u32) -> NativeResult {
    signed(function(bits(machine, args, 0)?, bits(machine, args, 1)?))
}

fn tohex(machine: &mut Machine, args: Args) -> NativeResult {
    const DIGITS: usize = 8;
    let number = bits(machine, args, 0)?;
    let count = if args.len < 2 { DIGITS as i32 } else { bits(machine, args, 1)? as i32 };
    let digits: &[u8; 16] = if count < 0 { b"0123456789ABCDEF" } else { b"0123456789abcdef" };
    let count = (count.unsigned_abs() as usize).min(DIGITS);
    let text: Vec<u8> = (0..count).rev().map(|at| digits[(number >> (at * 4) & 15) as usize]).collect();
    Ok(Flow::One(Value::String(machine.heap.string(&text)?)))
}
