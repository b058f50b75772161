//! Intsets: bytes of each number (4) | how many (4) | numbers, ascending, all little-endian.

use crate::Error;

/// Visits the numbers of an intset, which must be in order.
pub fn for_each<E: From<Error>>(bytes: &[u8], mut visit: impl FnMut(i64) -> Result<(), E>) -> Result<(), E> {
    let corrupt = || E::from(Error::Corrupt);
    let (header, numbers) = bytes.split_first_chunk::<8>().ok_or_else(corrupt)?;
    let [a, b, c, d, e, f, g, h] = *header;
    let (width, count) = (u32::from_le_bytes([a, b, c, d]) as usize, u32::from_le_bytes([e, f, g, h]) as usize);
    if !matches!(width, 2 | 4 | 8) || numbers.len() != count * width {
        return Err(corrupt());
    }
    let mut before = None;
    for number in numbers.chunks_exact(width) {
        let mut wide = [0; 8];
        wide[..width].copy_from_slice(number);
        let unused = 64 - 8 * width as u32;
        let number = i64::from_le_bytes(wide) << unused >> unused;
        if before.is_some_and(|before| before >= number) {
            return Err(corrupt());
        }
        before = Some(number);
        visit(number)?;
    }
    Ok(())
}
