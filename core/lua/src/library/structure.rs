//! The library `struct`: values as bytes in C's layouts.

use super::{Functions, STACK_LIMIT, add_library};
use crate::{
    error::Raise,
    machine::{Args, Flow, Machine, NativeResult},
    value::Value,
};
use alloc::{format, vec::Vec};

const FUNCTIONS: &Functions = &[("pack", pack), ("unpack", unpack), ("size", size)];
/// Bytes of the largest integer.
const INTEGER_LIMIT_BYTES: usize = 32;
/// The largest alignment that `!` gives without a number.
const ALIGNMENT: usize = 8;

pub(super) fn open(machine: &mut Machine) -> Result<(), Raise> {
    add_library(machine, "struct", FUNCTIONS).map(|_| ())
}

/// Reads a format, option by option.
struct Format<'a> {
    text: &'a [u8],
    at: usize,
    is_big_endian: bool,
    alignment: usize,
}

/// One option, with the padding in front of it.
struct Option_ {
    letter: u8,
    size: usize,
    padding: usize,
}

impl<'a> Format<'a> {
    fn new(text: &'a [u8]) -> Format<'a> {
        Format { text, at: 0, is_big_endian: cfg!(target_endian = "big"), alignment: 1 }
    }

    fn number(&mut self) -> Result<Option<usize>, Raise> {
        let digits = self.text[self.at..].iter().take_while(|b| b.is_ascii_digit()).count();
        if digits == 0 {
            return Ok(None);
        }
        let mut number = 0_usize;
        for digit in &self.text[self.at..self.at + digits] {
            let digit = usize::from(digit - b'0');
            if number > (i32::MAX as usize - digit) / 10 {
                return Err(Raise::positioned("integral size overflow"));
            }
            number = number * 10 + digit;
        }
        self.at += digits;
        Ok(Some(number))
    }

    fn size_of(&mut self, letter: u8) -> Result<usize, Raise> {
        Ok(match letter {
            b'B' | b'b' | b'x' => 1,
            b'H' | b'h' => 2,
            b'L' | b'l' | b'T' | b'd' => 8,
            b'f' => 4,
            b'c' => self.number()?.unwrap_or(1),
            b'i' | b'I' => {
                let size = self.number()?.unwrap_or(4);
                if size > INTEGER_LIMIT_BYTES {
                    let text = format!("integral size {size} is larger than limit of {INTEGER_LIMIT_BYTES}");
                    return Err(text.into());
                }
                size
            }
            _ => 0,
        })
    }

    /// The next option that is not about the format itself, where so many bytes were handled before.
    fn next(&mut self, total: usize) -> Result<Option<Option_>, Raise> {
        loop {
            let Some(letter) = self.text.get(self.at).copied() else { return Ok(None) };
            self.at += 1;
            let size = self.size_of(letter)?;
            let padding = self.padding(letter, size, total);
            match letter {
                b'b' | b'B' | b'h' | b'H' | b'l' | b'L' | b'T' | b'i' | b'I' | b'f' | b'd' | b'x' | b's' | b'c' => {
                    return Ok(Some(Option_ { letter, size, padding }));
                }
                b' ' => {}
                b'>' => self.is_big_endian = true,
                b'<' => self.is_big_endian = false,
                b'!' => {
                    let alignment = self.number()?.unwrap_or(ALIGNMENT);
                    if alignment == 0 || !alignment.is_power_of_two() {
                        return Err(format!("alignment {alignment} is not a power of 2").into());
                    }
                    self.alignment = alignment;
                }
                other => {
                    let text = [b"invalid format option '", &[other][..], b"'"].concat();
                    return Err(Raise::Argument(0, text));
                }
            }
        }
    }

    fn padding(&self, letter: u8, size: usize, total: usize) -> usize {
        if size == 0 || matches!(letter, b'c' | b'x') {
            return 0;
        }
        let alignment = size.min(self.alignment);
        if alignment > 1 { (alignment - (total & (alignment - 1))) & (alignment - 1) } else { 0 }
    }
}

fn put_integer(number: f64, size: usize, is_big_endian: bool, out: &mut Vec<u8>) {
    let value = if number < 0.0 { number as i64 as u64 } else { number as u64 };
    let start = out.len();
    // Bytes beyond the largest machine integer are 0.
    out.extend((0..size).map(|at| if at < 8 { (value >> (8 * at)) as u8 } else { 0 }));
    if is_big_endian {
        out[start..].reverse();
    }
}

fn pack(machine: &mut Machine, args: Args) -> NativeResult {
    let text = super::string::bytes_of(machine, args, 0)?;
    let mut format = Format::new(&text);
    let mut out = Vec::new();
    let mut index = 1;
    while let Some(option) = format.next(out.len())? {
        machine.reserve(&mut out, option.padding.saturating_add(option.size).saturating_add(1))?;
        out.resize(out.len() + option.padding, 0);
        match option.letter {
            b'x' => {
                out.push(0);
                continue;
            }
            b's' | b'c' => {
                let string = machine.check_string(args, index)?;
                let len = machine.heap.bytes(string).len();
                let size = if option.size == 0 { len } else { option.size };
                if len < size {
                    return Err(Raise::argument(index, "string too short"));
                }
                machine.reserve(&mut out, size.saturating_add(1))?;
                out.extend_from_slice(&machine.heap.bytes(string)[..size]);
                if option.letter == b's' {
                    out.push(0);
                }
            }
            b'f' | b'd' => {
                let number = machine.check_number(args, index)?;
                let start = out.len();
                if option.letter == b'f' {
                    out.extend_from_slice(&(number as f32).to_le_bytes());
                } else {
                    out.extend_from_slice(&number.to_le_bytes());
                }
                if format.is_big_endian {
                    out[start..].reverse();
                }
            }
            _ => {
                let number = machine.check_number(args, index)?;
                put_integer(number, option.size, format.is_big_endian, &mut out);
            }
        }
        index += 1;
    }
    Ok(Flow::One(Value::String(machine.heap.string_from(out)?)))
}

fn get_integer(bytes: &[u8], is_signed: bool, is_big_endian: bool) -> f64 {
    let mut value = 0_u64;
    for at in 0..bytes.len() {
        let byte = bytes[if is_big_endian { at } else { bytes.len() - 1 - at }];
        value = value << 8 | u64::from(byte);
    }
    if !is_signed || bytes.is_empty() {
        return value as f64;
    }
    let unused = 64_usize.saturating_sub(bytes.len() * 8) as u32;
    (((value << unused) as i64) >> unused) as f64
}

fn unpack(machine: &mut Machine, args: Args) -> NativeResult {
    let text = super::string::bytes_of(machine, args, 0)?;
    let mut format = Format::new(&text);
    let data = machine.check_string(args, 1)?;
    let len = machine.heap.bytes(data).len();
    let start = machine.opt_integer(args, 2, 1)?;
    let Some(mut at) = usize::try_from(start).ok().and_then(|start| start.checked_sub(1)) else {
        return Err(Raise::argument(2, "offset must be 1 or greater"));
    };
    let mut count = 0;
    let mut last = None;
    let too_short = || Raise::argument(1, "data string too short");
    while let Some(option) = format.next(at)? {
        at = at.saturating_add(option.padding);
        if at > len || option.size > len - at {
            return Err(too_short());
        }
        if count + args.len >= STACK_LIMIT {
            return Err(Raise::positioned("stack overflow (too many results)"));
        }
        let size = option.size;
        let bytes = &machine.heap.bytes(data)[at..at + size];
        let value = match option.letter {
            b'x' => {
                at += 1;
                continue;
            }
            b'f' => {
                let mut bytes: [u8; 4] = bytes.try_into().unwrap_or_default();
                if format.is_big_endian {
                    bytes.reverse();
                }
                Value::Number(f32::from_le_bytes(bytes).into())
            }
            b'd' => {
                let mut bytes: [u8; 8] = bytes.try_into().unwrap_or_default();
                if format.is_big_endian {
                    bytes.reverse();
                }
                Value::Number(f64::from_le_bytes(bytes))
            }
            b'c' | b's' => {
                let mut end = at + size;
                let mut next = end;
                if option.letter == b's' {
                    let zero = machine.heap.bytes(data)[at..].iter().position(|b| *b == 0);
                    end = at + zero.ok_or_else(|| Raise::positioned("unfinished string in data"))?;
                    next = end + 1;
                } else if size == 0 {
                    end = at + counted_size(machine, &mut count, last, len - at)?;
                    next = end;
                }
                let part = machine.heap.bytes(data)[at..end].to_vec();
                let string = machine.heap.string_from(part)?;
                at = next;
                last = None;
                machine.push(Value::String(string))?;
                count += 1;
                continue;
            }
            letter => Value::Number(get_integer(bytes, letter.is_ascii_lowercase(), format.is_big_endian)),
        };
        at += size;
        if let Value::Number(number) = value {
            last = Some(number);
        }
        machine.push(value)?;
        count += 1;
    }
    machine.push(Value::Number((at + 1) as f64))?;
    Ok(Flow::Many(count + 1))
}

/// The size for `c0`: the number that was read before, which is no result then.
fn counted_size(machine: &mut Machine, count: &mut usize, last: Option<f64>, left: usize) -> Result<usize, Raise> {
    let Some(number) = last.filter(|_| *count > 0) else {
        return Err(Raise::positioned("format 'c0' needs a previous size"));
    };
    *count -= 1;
    machine.thread.top -= 1;
    if !(number >= 0.0 && number <= left as f64) {
        return Err(Raise::argument(1, "data string too short"));
    }
    Ok(number as usize)
}

fn size(machine: &mut Machine, args: Args) -> NativeResult {
    let text = super::string::bytes_of(machine, args, 0)?;
    let mut format = Format::new(&text);
    let mut total = 0_usize;
    while let Some(option) = format.next(total)? {
        match option.letter {
            b's' => return Err(Raise::argument(0, "option 's' has no fixed size")),
            b'c' if option.size == 0 => return Err(Raise::argument(0, "option 'c0' has no fixed size")),
            _ => {}
        }
        total = total.saturating_add(option.padding).saturating_add(option.size);
        if total > i32::MAX as usize {
            return Err(Raise::argument(0, "format too large"));
        }
    }
    Ok(Flow::One(Value::Number(total as f64)))
}
