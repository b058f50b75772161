/// An integer's decimal form, without the heap.
#[derive(Clone, Copy, Debug)]
pub struct Digits {
    text: [u8; 20],
    start: usize,
}

impl Digits {
    /// Formats a number.
    pub fn new(number: i64) -> Digits {
        let mut digits = Digits { text: [0; 20], start: 20 };
        let mut magnitude = number.unsigned_abs();
        loop {
            digits.push(b'0' + (magnitude % 10) as u8);
            magnitude /= 10;
            if magnitude == 0 {
                break;
            }
        }
        if number < 0 {
            digits.push(b'-');
        }
        digits
    }

    fn push(&mut self, byte: u8) {
        self.start -= 1;
        self.text[self.start] = byte;
    }

    /// The digits, with a sign if negative.
    pub fn as_bytes(&self) -> &[u8] {
        &self.text[self.start..]
    }
}

/// Reads an integer in the form in which [`Digits`] writes it.
pub(crate) fn parse(text: &[u8]) -> Option<i64> {
    const LONGEST: usize = 20;
    let is_short = (1..=LONGEST).contains(&text.len());
    let number: i64 = core::str::from_utf8(text).ok().filter(|_| is_short)?.parse().ok()?;
    (Digits::new(number).as_bytes() == text).then_some(number)
}
