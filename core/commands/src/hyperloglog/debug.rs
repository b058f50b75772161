//! The inner state of HyperLogLogs, and a test of their implementation on the machine that it runs on.

use super::{
    copied, estimate, no_registers,
    registers::{self, Encoding, REGISTERS},
    sparse, store,
};
use crate::{Context, Error, Outcome, args, error::c_text};
use alloc::{format, vec::Vec};
use kayvee_keyspace::Kind;
use kayvee_resp::Request;

pub fn pfdebug(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let (sub, key) = (&request[1], &request[2]);
    let found = context.find_to_change(key, Kind::String)?;
    if found.is_none() {
        return Err(Error::text("ERR The specified key does not exist"));
    }
    let mut bytes = copied(context, found)?;
    let was_dense = registers::encoding(&bytes) == Some(Encoding::Dense);
    match () {
        () if args::is(sub, "getreg") => {
            make_dense(context, key, &mut bytes)?;
            context.reply.array(REGISTERS);
            (0..REGISTERS).for_each(|index| context.reply.integer(registers::dense(&bytes, index).into()));
        }
        () if args::is(sub, "decode") => {
            if was_dense {
                return Err(Error::text("ERR HLL encoding is not sparse"));
            }
            context.reply.bulk(&decoded(&bytes)?);
        }
        () if args::is(sub, "encoding") => context.reply.simple(if was_dense { "dense" } else { "sparse" }),
        () if args::is(sub, "todense") => {
            make_dense(context, key, &mut bytes)?;
            context.reply.integer((!was_dense).into());
        }
        () => return Err(Error::showing("ERR Unknown PFDEBUG subcommand '", c_text(sub, 128), "'")),
    }
    Ok(())
}

/// Makes the HyperLogLog at a key dense, if it is not.
fn make_dense(context: &mut Context<'_>, key: &[u8], bytes: &mut Vec<u8>) -> Outcome {
    if registers::encoding(bytes) == Some(Encoding::Dense) {
        return Ok(());
    }
    registers::make_dense(bytes)?;
    store(context, key, args::copied(bytes)?)?;
    let db = context.db_index();
    context.store.changed(db, key);
    Ok(())
}

fn decoded(bytes: &[u8]) -> Result<Vec<u8>, Error> {
    const RUN_TEXT_BYTES: usize = 16;
    let mut text = Vec::new();
    for run in sparse::written(bytes) {
        let separator = if text.is_empty() { "" } else { " " };
        let shown = match run.value {
            0 if run.is_long() => format!("{separator}Z:{}", run.len),
            0 => format!("{separator}z:{}", run.len),
            value => format!("{separator}v:{value},{}", run.len),
        };
        text.try_reserve(RUN_TEXT_BYTES).map_err(|_| Error::OUT_OF_MEMORY)?;
        text.extend_from_slice(shown.as_bytes());
    }
    Ok(text)
}

/// Compares registers with an array, and estimates with counts.
pub fn pfselftest(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    check_registers(&mut context.store.rng)?;
    check_estimates(&mut context.store.rng)?;
    context.reply.ok();
    Ok(())
}

fn failed(what: &str) -> Error {
    format!("ERR TESTFAILED {what}").into()
}

fn check_registers(rng: &mut fastrand::Rng) -> Result<(), Error> {
    const ROUNDS: usize = 50;
    let mut bytes = sparse::empty();
    registers::make_dense(&mut bytes)?;
    let mut model = no_registers()?;
    for _ in 0..ROUNDS {
        for (index, register) in model.iter_mut().enumerate() {
            *register = rng.u8(..64);
            registers::set_dense(&mut bytes, index, *register);
        }
        if let Some(index) = (0..REGISTERS).find(|&index| registers::dense(&bytes, index) != model[index]) {
            return Err(failed(&format!("Register {index} should be {}", model[index])));
        }
    }
    Ok(())
}

/// Both forms give the same estimate, and the error stays within four times the standard error.
fn check_estimates(rng: &mut fastrand::Rng) -> Result<(), Error> {
    const ELEMENTS: u64 = 1_000_000;
    let seed = rng.u64(..);
    let mut bytes = sparse::empty();
    let mut dense = sparse::empty();
    registers::make_dense(&mut dense)?;
    let mut checkpoint = 1;
    for number in 1..=ELEMENTS {
        let (index, value) = registers::register_of(&(number ^ seed).to_le_bytes());
        registers::raise_dense(&mut dense, index, value);
        registers::raise(&mut bytes, index, value, 3000)?;
        if number == checkpoint {
            let (sparse, dense) = (estimate::count(&bytes)?, estimate::count(&dense)?);
            // 1.04 / sqrt(16384) is 0.8 %; small numbers may be off by some for what meets in one register.
            let most = 10 + number * 4 * 104 / (128 * 100);
            if sparse != dense || dense.abs_diff(number) > most {
                return Err(failed(&format!("Estimates of {number} are {sparse} and {dense}")));
            }
            checkpoint *= 10;
        }
    }
    Ok(())
}
