//! Single bits, counting and finding them.

use super::{Unit, offset, with_room_for, with_string};
use crate::{Context, Error, EventClass, Outcome, args};
use core::ops::Range;
use kayvee_keyspace::{Kind, parse_integer};
use kayvee_resp::Request;

pub fn setbit(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let key = &request[1];
    let at = offset(context, &request[2], None)?;
    let bit = parse_integer(&request[3]).filter(|bit| matches!(bit, 0 | 1));
    let bit = bit.ok_or(Error::text("ERR bit is not an integer or out of range"))? as u8;
    let (bytes, grew) = with_room_for(context, key, at)?;
    let (byte, shift) = (&mut bytes[(at >> 3) as usize], 7 - (at & 7));
    let old = *byte >> shift & 1;
    *byte = *byte & !(1 << shift) | bit << shift;
    if grew || old != bit {
        context.changed(EventClass::STRING, "setbit", key);
    }
    context.reply.integer(old.into());
    Ok(())
}

pub fn getbit(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let at = offset(context, &request[2], None)?;
    let bit = with_string(context, &request[1], |bytes| {
        bytes.get((at >> 3) as usize).map_or(0, |byte| byte >> (7 - (at & 7)) & 1)
    })?;
    context.reply.integer(bit.into());
    Ok(())
}

/// A part of a string as its client names it: first and last, which count from the end if negative.
struct Part {
    start: i64,
    end: i64,
    unit: Unit,
}

impl Part {
    /// The bits of the part in a string of so many bytes.
    fn bits(&self, bytes: usize) -> Range<usize> {
        let (len, unit_bits) = match self.unit {
            Unit::Byte => (bytes as i64, 8),
            Unit::Bit => (bytes as i64 * 8, 1),
        };
        let absolute = |at: i64| if at < 0 { at.saturating_add(len).max(0) } else { at };
        let (start, end) = (absolute(self.start), absolute(self.end).min(len - 1));
        if start > end { 0..0 } else { start as usize * unit_bits..(end as usize + 1) * unit_bits }
    }
}

pub fn bitcount(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let part = match request.len() {
        2 => Part { start: 0, end: -1, unit: Unit::Byte },
        4 | 5 => {
            let (start, end) = (args::integer(&request[2])?, args::integer(&request[3])?);
            Part { start, end, unit: request.get(4).map_or(Ok(Unit::Byte), Unit::parse)? }
        }
        _ => return Err(Error::SYNTAX),
    };
    // As in Redis: what is the wrong way round already by its numbers is nothing, before they are made to fit.
    let is_reversed = part.start < 0 && part.end < 0 && part.start > part.end;
    let count =
        with_string(
            context,
            &request[1],
            |bytes| {
                if is_reversed { 0 } else { count_ones(bytes, part.bits(bytes.len())) }
            },
        )?;
    context.reply.integer(count as i64);
    Ok(())
}

/// The byte at the edge of a range of bits, with the bits outside of it cleared.
fn masked(bytes: &[u8], at: usize, range: &Range<usize>) -> u8 {
    let mut byte = bytes[at];
    if at == range.start / 8 {
        byte &= 0xff >> (range.start % 8);
    }
    if at == (range.end - 1) / 8 {
        byte &= 0xff << (7 - (range.end - 1) % 8);
    }
    byte
}

fn count_ones(bytes: &[u8], range: Range<usize>) -> u64 {
    if range.is_empty() {
        return 0;
    }
    let (first, last) = (range.start / 8, (range.end - 1) / 8);
    let mut count = u64::from(masked(bytes, first, &range).count_ones());
    if last > first {
        count += u64::from(masked(bytes, last, &range).count_ones());
        let words = bytes[first + 1..last].chunks_exact(8);
        count += words.remainder().iter().map(|byte| u64::from(byte.count_ones())).sum::<u64>();
        count += words.map(|word| u64::from(word_of(word).count_ones())).sum::<u64>();
    }
    count
}

fn word_of(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes.try_into().expect("a word has eight bytes"))
}

pub fn bitpos(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let bit = args::integer(&request[2])?;
    if !matches!(bit, 0 | 1) {
        return Err(Error::text("ERR The bit argument must be 1 or 0."));
    }
    if request.len() > 6 {
        return Err(Error::SYNTAX);
    }
    let start = request.get(3).map_or(Ok(0), args::integer)?;
    let unit = request.get(5).map_or(Ok(Unit::Byte), Unit::parse)?;
    let end = request.get(4).map(args::integer).transpose()?;
    let part = Part { start, end: end.unwrap_or(-1), unit };
    let Some(found) = context.read(&request[1], Kind::String)? else {
        // A missing key is zeros without end.
        context.reply.integer(if bit == 1 { -1 } else { 0 });
        return Ok(());
    };
    let position = crate::strings::with_text(context.db().value(found), |bytes| {
        let range = part.bits(bytes.len());
        match find(bytes, range.clone(), bit as u8) {
            Some(at) => at as i64,
            // Behind a string without an end that its client has named, zeros follow.
            None if bit == 0 && end.is_none() && !range.is_empty() => range.end as i64,
            None => -1,
        }
    });
    context.reply.integer(position);
    Ok(())
}

/// The first bit in a range that is like this.
fn find(bytes: &[u8], range: Range<usize>, bit: u8) -> Option<usize> {
    if range.is_empty() {
        return None;
    }
    let (first, last) = (range.start / 8, (range.end - 1) / 8);
    // With zeros to be found taken for ones, only ones are to be found.
    let flip = if bit == 0 { 0xff } else { 0 };
    let in_byte = |at: usize| {
        let byte =
            masked(&[bytes[at] ^ flip], 0, &(range.start.max(at * 8) - at * 8..range.end.min(at * 8 + 8) - at * 8));
        (byte != 0).then(|| at * 8 + byte.leading_zeros() as usize)
    };
    if let Some(found) = in_byte(first) {
        return Some(found);
    }
    if last == first {
        return None;
    }
    let middle = &bytes[first + 1..last];
    let skipped = middle.chunks_exact(8).take_while(|word| word_of(word) == u64::from_be_bytes([flip; 8])).count() * 8;
    let found = middle[skipped..].iter().position(|byte| *byte != flip);
    in_byte(found.map_or(last, |at| first + 1 + skipped + at))
}
