//! From registers to a number: the estimator of Otmar Ertl, "New cardinality estimation algorithms for HyperLogLog
//! sketches" (2017), algorithm 6, in the order of operations of Redis, so that the same registers give the same number.

use super::{
    registers::{COUNTED_BITS, Corrupt, Encoding, REGISTERS, VALUES, dense, encoding, histogram},
    sparse::Runs,
};

/// 1 / (2 ln 2)
const ALPHA: f64 = 0.721_347_520_444_481_7;

/// Estimates how many different elements a HyperLogLog has seen.
pub fn count(bytes: &[u8]) -> Result<u64, Corrupt> {
    if encoding(bytes) == Some(Encoding::Dense) {
        return Ok(estimate(&histogram((0..REGISTERS).map(|index| (1, dense(bytes, index))))));
    }
    let mut counts = [0; VALUES];
    for run in Runs::of(bytes) {
        let run = run?;
        counts[usize::from(run.value)] += run.len;
    }
    Ok(estimate(&counts))
}

/// The estimate from how many registers have each value.
pub fn estimate(histogram: &[usize; VALUES]) -> u64 {
    let registers = REGISTERS as f64;
    let last = COUNTED_BITS as usize + 1;
    let mut z = registers * tau((registers - histogram[last] as f64) / registers);
    for count in histogram[1..last].iter().rev() {
        z = (z + *count as f64) * 0.5;
    }
    z += registers * sigma(histogram[0] as f64 / registers);
    let estimate = ALPHA * registers * registers / z;
    let whole = estimate as u64;
    whole + u64::from(estimate - whole as f64 >= 0.5)
}

fn tau(x: f64) -> f64 {
    if x == 0.0 || x == 1.0 {
        return 0.0;
    }
    let (mut x, mut y, mut z) = (x, 1.0, 1.0 - x);
    loop {
        x = libm::sqrt(x);
        let before = z;
        y *= 0.5;
        z -= (1.0 - x) * (1.0 - x) * y;
        if z == before {
            return z / 3.0;
        }
    }
}

fn sigma(x: f64) -> f64 {
    if x == 1.0 {
        return f64::INFINITY;
    }
    let (mut x, mut y, mut z) = (x, 1.0, x);
    loop {
        x *= x;
        let before = z;
        z += x * y;
        y += y;
        if z == before {
            return z;
        }
    }
}
