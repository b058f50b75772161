//! Which variant of a page a client gets (RFC 9110 §12.5.3).

/// A content coding that pages are packed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// As the page is.
    Identity = 0,
    /// gzip (RFC 1952).
    Gzip = 1,
    /// Brotli (RFC 7932).
    Brotli = 2,
}

impl Coding {
    /// All of them, in the order of a site's variants.
    pub const ALL: [Coding; 3] = [Coding::Identity, Coding::Gzip, Coding::Brotli];

    /// Its name as a field's value; none for a page as it is.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Coding::Identity => None,
            Coding::Gzip => Some("gzip"),
            Coding::Brotli => Some("br"),
        }
    }

    /// What tells its variant's entity tag from the others'.
    pub fn tag_suffix(self) -> &'static str {
        match self {
            Coding::Identity => "",
            Coding::Gzip => "-gz",
            Coding::Brotli => "-br",
        }
    }
}

/// Chooses among the variants that are there: what the client weighs most, then the shortest. A page as it is serves
/// whoever takes none of them: a body that may be unwanted is more use than an error.
pub fn choose<'a>(accept_encoding: impl Iterator<Item = &'a [u8]>, lengths: [Option<u64>; 3]) -> Coding {
    let weights = weights(accept_encoding);
    let mut best = (0, Coding::Identity);
    let mut best_len = u64::MAX;
    for coding in Coding::ALL {
        let (Some(weight), Some(len)) = (weights[coding as usize], lengths[coding as usize]) else { continue };
        if weight > best.0 || (weight == best.0 && weight > 0 && len < best_len) {
            (best, best_len) = ((weight, coding), len);
        }
    }
    best.1
}

/// Weights in thousandths, by [`Coding`].
fn weights<'a>(fields: impl Iterator<Item = &'a [u8]>) -> [Option<u16>; 3] {
    let mut named = [None; 3];
    let mut others = None;
    for member in fields.flat_map(|field| field.split(|byte| *byte == b',')) {
        let mut parts = member.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
        let name = parts.next().unwrap_or_default();
        let weight = match parts.next() {
            None => Some(1000),
            Some(parameter) => weight(parameter),
        };
        // A member whose weight is none says nothing.
        let Some(weight) = weight.filter(|_| parts.next().is_none()) else { continue };
        let is = |wanted: &str| name.eq_ignore_ascii_case(wanted.as_bytes());
        if is("gzip") || is("x-gzip") {
            named[Coding::Gzip as usize] = Some(weight);
        } else if is("br") {
            named[Coding::Brotli as usize] = Some(weight);
        } else if is("identity") {
            named[Coding::Identity as usize] = Some(weight);
        } else if is("*") {
            others = Some(weight);
        }
    }
    let mut weights = named.map(|weight| weight.or(others));
    // What nobody forbids is acceptable, though less than anything that is asked for.
    let identity = &mut weights[Coding::Identity as usize];
    *identity = identity.or(Some(1));
    weights
}

/// `q=0.5` in thousandths.
fn weight(parameter: &[u8]) -> Option<u16> {
    let (name, value) = parameter.split_at_checked(2)?;
    if !name.eq_ignore_ascii_case(b"q=") {
        return None;
    }
    let (whole, rest) = value.split_first()?;
    let decimals = match rest.split_first() {
        None => &[][..],
        Some((b'.', decimals)) if decimals.len() <= 3 && decimals.iter().all(u8::is_ascii_digit) => decimals,
        Some(_) => return None,
    };
    let thousandths = [100, 10, 1].iter().zip(decimals).map(|(scale, digit)| scale * u16::from(digit - b'0')).sum();
    match whole {
        b'0' => Some(thousandths),
        b'1' if thousandths == 0 => Some(1000),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Coding::{Brotli, Gzip, Identity};

    #[track_caller]
    fn chosen(accept_encoding: &str) -> Coding {
        choose([accept_encoding.as_bytes()].into_iter(), [Some(100), Some(50), Some(40)])
    }

    #[test]
    fn the_greatest_weight_wins_then_the_shortest() {
        assert_eq!(choose([].into_iter(), [Some(100), Some(50), Some(40)]), Identity);
        for (field, coding) in [
            ("", Identity),
            ("gzip", Gzip),
            ("GZip", Gzip),
            ("x-gzip", Gzip),
            ("br", Brotli),
            ("gzip, deflate, br", Brotli),
            ("gzip;q=1.0, br;q=0.9", Gzip),
            ("gzip ; q=0.5 , br ; q=0.501", Brotli),
            ("gzip;q=0, br;q=0.000", Identity),
            ("*", Brotli),
            ("*;q=0", Identity),
            ("*;q=0, gzip", Gzip),
            ("br;q=0, *", Gzip),
            ("identity, gzip;q=0.5", Identity),
            ("identity;q=0", Identity),
            ("deflate", Identity),
            // A weight that is none: the member does not count.
            ("br;q=2", Identity),
            ("br;q=1.001, gzip;q=0.1", Gzip),
            ("br;q=0.1234", Identity),
            ("br;x=1", Identity),
            ("br;q=", Identity),
            ("br;q=1;x", Identity),
            (",,gzip,,", Gzip),
        ] {
            assert_eq!(chosen(field), coding, "{field:?}");
        }
    }

    #[test]
    fn only_variants_that_are_there_are_chosen() {
        assert_eq!(choose([&b"br, gzip"[..]].into_iter(), [Some(100), Some(50), None]), Gzip);
        assert_eq!(choose([&b"br, gzip"[..]].into_iter(), [Some(100), None, None]), Identity);
        assert_eq!(choose([&b"br;q=0.1"[..], b"gzip"].into_iter(), [Some(9), Some(9), Some(9)]), Gzip);
    }
}
