//! The Internet checksum (RFC 1071), by 32-bit words: the sum of 16-bit words does not depend on how they are grouped,
//! nor on their byte order.

/// Adds up bytes that begin at an even offset of what the checksum covers.
#[inline]
pub fn sum(bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks_exact(4);
    let mut total: u64 =
        words.by_ref().map(|word| u64::from(u32::from_ne_bytes([word[0], word[1], word[2], word[3]]))).sum();
    let rest = words.remainder();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    total += u64::from(u32::from_ne_bytes(last));
    total
}

/// What belongs into the checksum field, as it stands there, for a sum that took the field for zero. A sum over data with
/// a right checksum gives 0.
#[inline]
pub fn finish(total: u64) -> [u8; 2] {
    // What is carried out of a word is added to it (§2 (C)), where it cannot be carried again.
    let (folded, carry) = (total as u32).overflowing_add((total >> 32) as u32);
    let folded = folded + u32::from(carry);
    let (folded, carry) = (folded as u16).overflowing_add((folded >> 16) as u16);
    (!(folded + u16::from(carry))).to_ne_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::vec::Vec;

    /// RFC 1071 §4.1 in its plainest form.
    fn plain(bytes: &[u8]) -> u16 {
        let mut total = 0u32;
        for pair in bytes.chunks(2) {
            total += u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
        }
        while total >> 16 != 0 {
            total = (total & 0xffff) + (total >> 16);
        }
        !(total as u16)
    }

    #[test]
    fn it_is_the_sum_of_the_standard() {
        let mut bytes: Vec<u8> = Vec::new();
        for n in 0..2000u32 {
            assert_eq!(finish(sum(&bytes)), plain(&bytes).to_be_bytes(), "{n} bytes");
            bytes.push((n.wrapping_mul(2_654_435_761) >> 24) as u8);
        }
        assert_eq!(finish(sum(&[0xff; 64])), [0, 0]);
    }
}
