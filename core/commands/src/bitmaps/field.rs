//! Strings as arrays of integers of any width.

use super::{ACCESS, CHANGES, offset, with_room_for, with_string};
use crate::{Context, Error, EventClass, Outcome, args, table::KeyAt};
use alloc::{vec, vec::Vec};
use kayvee_resp::Request;

/// An integer's kind: at most 64 bits with a sign, or 63 without.
#[derive(Clone, Copy)]
struct Kind {
    is_signed: bool,
    bits: u32,
}

impl Kind {
    fn parse(arg: &[u8]) -> Result<Kind, Error> {
        const WRONG: Error = Error::text(
            "ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.",
        );
        let (is_signed, digits) = match arg {
            [b'i', digits @ ..] => (true, digits),
            [b'u', digits @ ..] => (false, digits),
            _ => return Err(WRONG),
        };
        let bits = args::integer(digits).map_err(|_| WRONG)?;
        let limit = if is_signed { 64 } else { 63 };
        if (1..=limit).contains(&bits) { Ok(Kind { is_signed, bits: bits as u32 }) } else { Err(WRONG) }
    }

    fn range(self) -> (i128, i128) {
        if self.is_signed { (-(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1) } else { (0, (1 << self.bits) - 1) }
    }

    /// The low bits of a number, as this kind takes them.
    fn wrapped(self, number: i128) -> i64 {
        let low = number as u64 & (u64::MAX >> (64 - self.bits));
        if self.is_signed { (low << (64 - self.bits)) as i64 >> (64 - self.bits) } else { low as i64 }
    }

    /// Reads the integer that begins at a bit; behind the end there are zeros.
    fn read(self, bytes: &[u8], at: u64) -> i64 {
        let mut window = 0u128;
        let first = (at >> 3) as usize;
        for byte in 0..9 {
            window = window << 8 | u128::from(bytes.get(first + byte).copied().unwrap_or(0));
        }
        self.wrapped((window >> (72 - (at & 7) as u32 - self.bits)) as i128)
    }

    fn write(self, bytes: &mut [u8], at: u64, number: i64) {
        let (first, shift) = ((at >> 3) as usize, 72 - (at & 7) as u32 - self.bits);
        let mask = u128::from(u64::MAX >> (64 - self.bits)) << shift;
        let value = (u128::from(number as u64) << shift) & mask;
        for (place, byte) in bytes[first..].iter_mut().take(9).enumerate() {
            let down = 64 - 8 * place;
            *byte = *byte & !((mask >> down) as u8) | (value >> down) as u8;
        }
    }
}

/// What happens to a number that does not fit.
#[derive(Clone, Copy)]
enum Overflow {
    Wrap,
    Saturate,
    Fail,
}

impl Overflow {
    fn parse(arg: &[u8]) -> Result<Overflow, Error> {
        match () {
            () if args::is(arg, "wrap") => Ok(Overflow::Wrap),
            () if args::is(arg, "sat") => Ok(Overflow::Saturate),
            () if args::is(arg, "fail") => Ok(Overflow::Fail),
            () => Err(Error::text("ERR Invalid OVERFLOW type specified")),
        }
    }

    /// A number and what is added to it, as the kind can hold their sum.
    fn fit(self, number: i64, more: i64, kind: Kind) -> Option<i64> {
        // As in Redis, a negative number without a sign is a very large one.
        let wide = if kind.is_signed { i128::from(number) } else { i128::from(number as u64) };
        let sum = wide + i128::from(more);
        let (least, most) = kind.range();
        // As in Redis, a number so low that what would fit it overflows is too high.
        let is_wrapped = kind.is_signed && kind.bits < 64 && more > (most as i64).wrapping_sub(number);
        match self {
            _ if !is_wrapped && (least..=most).contains(&wide) && (least..=most).contains(&sum) => Some(sum as i64),
            Overflow::Wrap => Some(kind.wrapped(sum)),
            Overflow::Saturate if is_wrapped || sum > most || wide > most => Some(most as i64),
            Overflow::Saturate => Some(least as i64),
            Overflow::Fail => None,
        }
    }
}

#[derive(Clone, Copy)]
enum Action {
    Get,
    Set(i64),
    Add(i64),
}

#[derive(Clone, Copy)]
struct Operation {
    kind: Kind,
    at: u64,
    overflow: Overflow,
    action: Action,
}

fn parse(context: &Context<'_>, request: Request<'_>) -> Result<Vec<Operation>, Error> {
    let mut operations = Vec::new();
    let mut overflow = Overflow::Wrap;
    let mut at = 2;
    while at < request.len() {
        let (word, left) = (&request[at], request.len() - at - 1);
        if args::is(word, "overflow") && left >= 1 {
            overflow = Overflow::parse(&request[at + 1])?;
            at += 2;
            continue;
        }
        let action: fn(i64) -> Action = match () {
            () if args::is(word, "get") && left >= 2 => |_| Action::Get,
            () if args::is(word, "set") && left >= 3 => Action::Set,
            () if args::is(word, "incrby") && left >= 3 => Action::Add,
            () => return Err(Error::SYNTAX),
        };
        let kind = Kind::parse(&request[at + 1])?;
        let offset = offset(context, &request[at + 2], Some(kind.bits))?;
        let is_get = matches!(action(0), Action::Get);
        let number = if is_get { 0 } else { args::integer(&request[at + 3])? };
        operations.try_reserve(1).map_err(|_| Error::OUT_OF_MEMORY)?;
        operations.push(Operation { kind, at: offset, overflow, action: action(number) });
        at += if is_get { 3 } else { 4 };
    }
    Ok(operations)
}

/// The last bit that operations write, if any does.
fn last_written(operations: &[Operation]) -> Option<u64> {
    let writes = operations.iter().filter(|operation| !matches!(operation.action, Action::Get));
    writes.map(|operation| operation.at + u64::from(operation.kind.bits) - 1).max()
}

pub fn bitfield(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let operations = parse(context, request)?;
    match last_written(&operations) {
        Some(last_bit) => write_all(context, &request[1], &operations, last_bit),
        None => read_all(context, &request[1], &operations),
    }
}

pub fn bitfield_ro(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let operations = parse(context, request)?;
    if last_written(&operations).is_some() {
        return Err(Error::text("ERR BITFIELD_RO only supports the GET subcommand"));
    }
    read_all(context, &request[1], &operations)
}

fn read_all(context: &mut Context<'_>, key: &[u8], operations: &[Operation]) -> Outcome {
    let start = context.reply.len();
    let mut numbers = Vec::new();
    numbers.try_reserve_exact(operations.len()).map_err(|_| Error::OUT_OF_MEMORY)?;
    with_string(context, key, |bytes| {
        numbers.extend(operations.iter().map(|operation| operation.kind.read(bytes, operation.at)));
    })?;
    debug_assert_eq!(context.reply.len(), start);
    context.reply.array(numbers.len());
    numbers.into_iter().for_each(|number| context.reply.integer(number));
    Ok(())
}

fn write_all(context: &mut Context<'_>, key: &[u8], operations: &[Operation], last_bit: u64) -> Outcome {
    let mut results: Vec<Option<i64>> = Vec::new();
    results.try_reserve_exact(operations.len()).map_err(|_| Error::OUT_OF_MEMORY)?;
    let (bytes, grew) = with_room_for(context, key, last_bit)?;
    let mut changed = false;
    for operation in operations {
        let Operation { kind, at, overflow, action } = *operation;
        let old = kind.read(bytes, at);
        let (new, result) = match action {
            Action::Get => {
                results.push(Some(old));
                continue;
            }
            Action::Set(number) => (overflow.fit(number, 0, kind), old),
            Action::Add(number) => {
                let sum = overflow.fit(old, number, kind);
                (sum, sum.unwrap_or_default())
            }
        };
        if let Some(new) = new {
            kind.write(bytes, at, new);
            changed |= grew || old != new;
        }
        results.push(new.map(|_| result));
    }
    if changed {
        context.changed(EventClass::STRING, "setbit", key);
    } else if grew {
        // Nobody is told, as in Redis, but where the string is kept it has to grow as well.
        context.store.changes += 1;
        let db = context.db_index();
        context.store.report_names(db);
    }
    context.reply.array(results.len());
    for result in results {
        match result {
            Some(number) => context.reply.integer(number),
            None => context.reply.null(),
        }
    }
    Ok(())
}

/// The key, which is only read if all that is asked for is to get.
pub fn keys(request: Request<'_>) -> Option<Vec<KeyAt>> {
    let mut at = 2;
    let mut only_reads = true;
    while at < request.len() {
        let (word, left) = (&request[at], request.len() - at - 1);
        at += match () {
            () if args::is(word, "get") && left >= 2 => 3,
            () if (args::is(word, "set") || args::is(word, "incrby")) && left >= 3 => {
                only_reads = false;
                4
            }
            () if args::is(word, "overflow") && left >= 1 => 2,
            () => {
                // What is malformed might write, as far as anyone knows.
                only_reads = false;
                break;
            }
        };
    }
    Some(vec![(1, if only_reads { ACCESS } else { CHANGES })])
}
