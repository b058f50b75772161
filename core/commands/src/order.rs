//! The order of things by a number each, for all who need one: what sorts is long, and there is one of it for each type.

use alloc::vec::Vec;
use kayvee_keyspace::OutOfMemory;

/// The numbers below `len` in the order of their keys; of those with equal keys, the lower one first.
pub fn by_key(len: usize, key: impl Fn(usize) -> usize) -> Result<impl Iterator<Item = usize>, OutOfMemory> {
    let mut order = Vec::new();
    order.try_reserve_exact(len)?;
    order.extend((0..len).map(|number| (key(number), number)));
    sort(&mut order);
    Ok(order.into_iter().map(|(_, number)| number))
}

#[inline(never)]
fn sort(order: &mut [(usize, usize)]) {
    order.sort_unstable();
}
