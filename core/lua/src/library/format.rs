//! `string.format`.

use crate::{
    error::Raise,
    machine::{Args, Flow, Machine, NativeResult},
    number::{Style, format_exponent, format_fixed, format_general},
    value::Value,
};
use alloc::vec::Vec;

/// From this length on `%s` without a precision copies a string as it is, zero bytes and all, as in C's Lua.
const LONG_STRING_BYTES: usize = 100;

/// A conversion's flags, width and precision.
#[derive(Default)]
struct Spec {
    is_left: bool,
    plus: bool,
    space: bool,
    style: Style,
    zero: bool,
    width: usize,
    precision: Option<usize>,
}

pub(super) fn format(machine: &mut Machine, args: Args) -> NativeResult {
    let template = super::string::bytes_of(machine, args, 0)?;
    let mut out = Vec::new();
    let mut at = 0;
    let mut index = 0;
    while at < template.len() {
        let plain = template[at..].iter().position(|b| *b == b'%').unwrap_or(template.len() - at);
        machine.reserve(&mut out, plain + 1)?;
        out.extend_from_slice(&template[at..at + plain]);
        at += plain;
        match template.get(at..) {
            Some([b'%', b'%', ..]) => {
                out.push(b'%');
                at += 2;
            }
            Some([b'%', ..]) => {
                let (spec, len) = parse(&template[at + 1..])?;
                at += 1 + len;
                let conversion = template.get(at).copied();
                at += 1;
                index += 1;
                convert(machine, args, index, spec, conversion, &mut out)?;
            }
            _ => {}
        }
    }
    Ok(Flow::One(Value::String(machine.heap.string_from(out)?)))
}

/// Reads flags, width and precision. Returns the length of what was read.
fn parse(text: &[u8]) -> Result<(Spec, usize), Raise> {
    const FLAGS_LIMIT: usize = 5;
    let mut spec = Spec::default();
    let mut at = 0;
    while let Some(flag) = text.get(at) {
        match flag {
            b'-' => spec.is_left = true,
            b'+' => spec.plus = true,
            b' ' => spec.space = true,
            b'#' => spec.style.is_alternate = true,
            b'0' => spec.zero = true,
            _ => break,
        }
        at += 1;
    }
    if at > FLAGS_LIMIT {
        return Err(Raise::positioned("invalid format (repeated flags)"));
    }
    let number = |at: &mut usize| {
        let mut number = 0;
        for _ in 0..2 {
            let Some(digit @ b'0'..=b'9') = text.get(*at) else { break };
            number = number * 10 + usize::from(digit - b'0');
            *at += 1;
        }
        number
    };
    spec.width = number(&mut at);
    if text.get(at) == Some(&b'.') {
        at += 1;
        spec.precision = Some(number(&mut at));
    }
    if text.get(at).is_some_and(u8::is_ascii_digit) {
        return Err(Raise::positioned("invalid format (width or precision too long)"));
    }
    Ok((spec, at))
}

fn convert(
    machine: &mut Machine,
    args: Args,
    index: usize,
    mut spec: Spec,
    conversion: Option<u8>,
    out: &mut Vec<u8>,
) -> Result<(), Raise> {
    let mut body = Vec::new();
    match conversion {
        Some(b'c') => {
            body.push(machine.check_integer(args, index)? as u8);
            spec.zero = false;
        }
        Some(b'd' | b'i') => {
            let number = machine.check_number(args, index)? as i64;
            integer(number.unsigned_abs(), number < 0, &spec, 10, &mut body);
            spec.zero &= spec.precision.is_none();
        }
        Some(letter @ (b'o' | b'u' | b'x' | b'X')) => {
            let number = machine.check_number(args, index)?;
            // A negative number wraps around, as it does in C.
            let number = if number < 0.0 { number as i64 as u64 } else { number as u64 };
            unsigned(number, letter, &mut spec, &mut body);
            spec.zero &= spec.precision.is_none();
        }
        Some(letter @ (b'e' | b'E' | b'f' | b'g' | b'G')) => {
            let number = machine.check_number(args, index)?;
            float(number, letter, &mut spec, &mut body);
        }
        Some(b'q') => {
            let string = machine.check_string(args, index)?;
            let len = machine.heap.bytes(string).len();
            machine.reserve(out, len.saturating_mul(4).saturating_add(2))?;
            quote(machine.heap.bytes(string), out);
            return Ok(());
        }
        Some(b's') => {
            let string = machine.check_string(args, index)?;
            let bytes = machine.heap.bytes(string);
            let len = bytes.len();
            let shown = if spec.precision.is_none() && len >= LONG_STRING_BYTES {
                bytes
            } else {
                let end = bytes.iter().position(|b| *b == 0).unwrap_or(len);
                &bytes[..end.min(spec.precision.unwrap_or(end))]
            };
            let shown_len = shown.len();
            machine.heap.check_room(out.len().saturating_add(shown_len))?;
            body.try_reserve_exact(shown_len).map_err(|_| Raise::OutOfMemory)?;
            body.extend_from_slice(&machine.heap.bytes(string)[..shown_len]);
            spec.zero = false;
        }
        other => {
            let shown = other.map_or(Vec::new(), |b| [b].to_vec());
            let text = [b"invalid option '%", &shown[..], b"' to 'format'"].concat();
            return Err(Raise::Positioned(text));
        }
    }
    machine.reserve(out, body.len().max(spec.width))?;
    pad(&body, &spec, out);
    Ok(())
}

/// Appends a converted value, filled up to the width. Zeros go behind the sign or `0x`.
fn pad(body: &[u8], spec: &Spec, out: &mut Vec<u8>) {
    let missing = spec.width.saturating_sub(body.len());
    if spec.is_left {
        out.extend_from_slice(body);
        out.resize(out.len() + missing, b' ');
    } else if spec.zero {
        let sign = body.iter().take_while(|b| matches!(b, b'-' | b'+' | b' ')).count();
        let prefix = sign + if matches!(body.get(sign..sign + 2), Some([b'0', b'x' | b'X'])) { 2 } else { 0 };
        out.extend_from_slice(&body[..prefix]);
        out.resize(out.len() + missing, b'0');
        out.extend_from_slice(&body[prefix..]);
    } else {
        out.resize(out.len() + missing, b' ');
        out.extend_from_slice(body);
    }
}

fn sign(is_negative: bool, spec: &Spec, out: &mut Vec<u8>) {
    match (is_negative, spec.plus, spec.space) {
        (true, _, _) => out.push(b'-'),
        (_, true, _) => out.push(b'+'),
        (_, _, true) => out.push(b' '),
        _ => {}
    }
}

fn integer(magnitude: u64, is_negative: bool, spec: &Spec, radix: u64, out: &mut Vec<u8>) {
    sign(is_negative, spec, out);
    put_digits(magnitude, radix, spec.precision, out);
}

fn put_digits(number: u64, radix: u64, precision: Option<usize>, out: &mut Vec<u8>) {
    let mut digits = [0; 64];
    let mut at = digits.len();
    let mut left = number;
    while left > 0 {
        at -= 1;
        digits[at] = b"0123456789abcdef"[(left % radix) as usize];
        left /= radix;
    }
    let len = digits.len() - at;
    out.resize(out.len() + precision.unwrap_or(1).saturating_sub(len), b'0');
    out.extend_from_slice(&digits[at..]);
}

fn unsigned(number: u64, letter: u8, spec: &mut Spec, out: &mut Vec<u8>) {
    let is_alternate = spec.style.is_alternate;
    match letter {
        b'o' => {
            put_digits(number, 8, spec.precision, out);
            if is_alternate && out.first() != Some(&b'0') {
                out.insert(0, b'0');
            }
        }
        b'u' => put_digits(number, 10, spec.precision, out),
        _ => {
            if is_alternate && number > 0 {
                out.extend_from_slice(b"0x");
            }
            put_digits(number, 16, spec.precision, out);
            if letter == b'X' {
                out.make_ascii_uppercase();
            }
        }
    }
}

fn float(number: f64, letter: u8, spec: &mut Spec, out: &mut Vec<u8>) {
    spec.style.is_upper = letter.is_ascii_uppercase();
    let precision = spec.precision.unwrap_or(6);
    sign(number.is_sign_negative(), spec, out);
    let magnitude = number.abs();
    match letter {
        b'f' => format_fixed(magnitude, precision, spec.style, out),
        b'e' | b'E' => format_exponent(magnitude, precision, spec.style, out),
        _ => format_general(magnitude, precision, spec.style, out),
    }
    spec.zero &= number.is_finite();
}

/// As Lua would read it.
fn quote(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    for byte in text {
        match byte {
            b'"' | b'\\' | b'\n' => out.extend_from_slice(&[b'\\', *byte]),
            b'\r' => out.extend_from_slice(b"\\r"),
            0 => out.extend_from_slice(b"\\000"),
            _ => out.push(*byte),
        }
    }
    out.push(b'"');
}

/// C's `%.*g`, for the libraries.
pub(super) fn general(number: f64, precision: usize) -> Vec<u8> {
    let mut out = Vec::new();
    format_general(number, precision, Style::default(), &mut out);
    out
}
