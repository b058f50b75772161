//! The library `math`.

use super::{Functions, add_library};
use crate::{
    error::Raise,
    machine::{Args, Flow, Machine, NativeResult},
    op::floor,
    value::Value,
};

const FUNCTIONS: &Functions = &[
    ("abs", |m, a| unary(m, a, libm::fabs)),
    ("acos", |m, a| unary(m, a, libm::acos)),
    ("asin", |m, a| unary(m, a, libm::asin)),
    ("atan", |m, a| unary(m, a, libm::atan)),
    ("atan2", |m, a| binary(m, a, libm::atan2)),
    ("ceil", |m, a| unary(m, a, |x| -floor(-x))),
    ("cos", |m, a| unary(m, a, libm::cos)),
    ("cosh", |m, a| unary(m, a, libm::cosh)),
    ("deg", |m, a| unary(m, a, |x| x / (core::f64::consts::PI / 180.0))),
    ("exp", |m, a| unary(m, a, libm::exp)),
    ("floor", |m, a| unary(m, a, floor)),
    ("fmod", |m, a| binary(m, a, libm::fmod)),
    ("frexp", frexp),
    ("ldexp", ldexp),
    ("log", |m, a| unary(m, a, libm::log)),
    ("log10", |m, a| unary(m, a, libm::log10)),
    ("max", |m, a| fold(m, a, |max, x| if x > max { x } else { max })),
    ("min", |m, a| fold(m, a, |min, x| if x < min { x } else { min })),
    ("mod", |m, a| binary(m, a, libm::fmod)),
    ("modf", modf),
    ("pow", |m, a| binary(m, a, libm::pow)),
    ("rad", |m, a| unary(m, a, |x| x * (core::f64::consts::PI / 180.0))),
    ("random", random),
    ("randomseed", randomseed),
    ("sin", |m, a| unary(m, a, libm::sin)),
    ("sinh", |m, a| unary(m, a, libm::sinh)),
    ("sqrt", |m, a| unary(m, a, libm::sqrt)),
    ("tan", |m, a| unary(m, a, libm::tan)),
    ("tanh", |m, a| unary(m, a, libm::tanh)),
];

/// The generator of `math.random`: that of POSIX `lrand48`, so that a script gets the same numbers as elsewhere.
#[derive(Debug)]
pub(super) struct Random(u64);

impl Default for Random {
    fn default() -> Random {
        Random(0x1234_abcd_330e)
    }
}

impl Random {
    pub fn seeded(seed: u32) -> Random {
        Random(u64::from(seed) << 16 | 0x330e)
    }

    fn next(&mut self) -> u32 {
        self.0 = (self.0.wrapping_mul(0x5_deec_e66d).wrapping_add(0xb)) & ((1 << 48) - 1);
        (self.0 >> 17) as u32
    }
}

pub(super) fn open(machine: &mut Machine) -> Result<(), Raise> {
    let table = add_library(machine, "math", FUNCTIONS)?;
    machine.heap.set_str(table, "pi", Value::Number(core::f64::consts::PI))?;
    Ok(machine.heap.set_str(table, "huge", Value::Number(f64::INFINITY))?)
}

fn unary(machine: &mut Machine, args: Args, function: fn(f64) -> f64) -> NativeResult {
    Ok(Flow::One(Value::Number(function(machine.check_number(args, 0)?))))
}

fn binary(machine: &mut Machine, args: Args, function: fn(f64, f64) -> f64) -> NativeResult {
    let (x, y) = (machine.check_number(args, 0)?, machine.check_number(args, 1)?);
    Ok(Flow::One(Value::Number(function(x, y))))
}

fn fold(machine: &mut Machine, args: Args, choose: fn(f64, f64) -> f64) -> NativeResult {
    let mut best = machine.check_number(args, 0)?;
    for index in 1..args.len {
        best = choose(best, machine.check_number(args, index)?);
    }
    Ok(Flow::One(Value::Number(best)))
}

fn frexp(machine: &mut Machine, args: Args) -> NativeResult {
    let (mantissa, exponent) = libm::frexp(machine.check_number(args, 0)?);
    machine.push(Value::Number(mantissa))?;
    machine.push(Value::Number(exponent.into()))?;
    Ok(Flow::Many(2))
}

fn ldexp(machine: &mut Machine, args: Args) -> NativeResult {
    let mantissa = machine.check_number(args, 0)?;
    let exponent = machine.check_integer(args, 1)?.clamp(i32::MIN.into(), i32::MAX.into()) as i32;
    Ok(Flow::One(Value::Number(libm::ldexp(mantissa, exponent))))
}

fn modf(machine: &mut Machine, args: Args) -> NativeResult {
    let number = machine.check_number(args, 0)?;
    let whole = libm::trunc(number);
    let fraction = if number.is_infinite() { libm::copysign(0.0, number) } else { number - whole };
    machine.push(Value::Number(whole))?;
    machine.push(Value::Number(fraction))?;
    Ok(Flow::Many(2))
}

fn random(machine: &mut Machine, args: Args) -> NativeResult {
    const RANGE: u32 = i32::MAX as u32;
    let random = f64::from(machine.library.random.next() % RANGE) / f64::from(RANGE);
    let (low, high) = match args.len {
        0 => return Ok(Flow::One(Value::Number(random))),
        1 => (1, machine.check_integer(args, 0)?),
        2 => (machine.check_integer(args, 0)?, machine.check_integer(args, 1)?),
        _ => return Err(Raise::positioned("wrong number of arguments")),
    };
    if low > high {
        return Err(Raise::argument(args.len - 1, "interval is empty"));
    }
    let count = high as f64 - low as f64 + 1.0;
    Ok(Flow::One(Value::Number(floor(random * count) + low as f64)))
}

fn randomseed(machine: &mut Machine, args: Args) -> NativeResult {
    let seed = machine.check_integer(args, 0)?;
    machine.seed_random(seed as u32);
    Ok(Flow::None)
}
