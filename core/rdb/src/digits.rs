use kayvee_platform::Decimal;

/// Reads an integer in the form in which [`Decimal`] writes it.
pub(crate) fn parse(text: &[u8]) -> Option<i64> {
    const LONGEST: usize = 20;
    let is_short = (1..=LONGEST).contains(&text.len());
    let number: i64 = core::str::from_utf8(text).ok().filter(|_| is_short)?.parse().ok()?;
    (Decimal::new(number).as_bytes() == text).then_some(number)
}
