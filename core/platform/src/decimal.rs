/// The longest text of a number of 64 bits, with its sign.
pub const DECIMAL_BYTES: usize = 20;

/// An integer's decimal form, without the heap.
#[derive(Clone, Copy, Debug)]
pub struct Decimal {
    text: [u8; DECIMAL_BYTES],
    start: usize,
}

impl Decimal {
    /// Formats a number.
    #[inline(never)]
    pub fn new(number: i64) -> Decimal {
        let mut text = [0; DECIMAL_BYTES];
        let start = put_decimal(number, &mut text);
        Decimal { text, start }
    }

    /// Formats a number without a sign.
    #[inline(never)]
    pub fn unsigned(magnitude: u64) -> Decimal {
        let mut text = [0; DECIMAL_BYTES];
        let start = put_digits(magnitude, &mut text);
        Decimal { text, start }
    }

    /// The digits, with a sign if negative.
    pub fn as_bytes(&self) -> &[u8] {
        &self.text[self.start..]
    }
}

/// Writes a number to the end of `text`, which has room for [`DECIMAL_BYTES`], and says where it begins there.
#[inline]
pub fn put_decimal(number: i64, text: &mut [u8]) -> usize {
    let start = put_digits(number.unsigned_abs(), text);
    if number >= 0 {
        return start;
    }
    text[start - 1] = b'-';
    start - 1
}

#[inline]
fn put_digits(mut magnitude: u64, text: &mut [u8]) -> usize {
    let mut at = text.len();
    loop {
        at -= 1;
        text[at] = b'0' + (magnitude % 10) as u8;
        magnitude /= 10;
        if magnitude == 0 {
            return at;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn numbers_are_written_as_the_standard_library_writes_them() {
        for number in [0, 1, -1, 9, 10, -10, 99, 12345, i64::MAX, i64::MIN] {
            assert_eq!(Decimal::new(number).as_bytes(), number.to_string().as_bytes());
        }
        assert_eq!(Decimal::unsigned(u64::MAX).as_bytes(), u64::MAX.to_string().as_bytes());
    }
}
