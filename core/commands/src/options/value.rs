//! Reading options' values, with Redis' words for what is wrong with them.

use super::{ClientsMemory, Options, OutputLimit, ShutdownOn};
use crate::args;
use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::ops::RangeInclusive;

pub fn text(value: &[u8]) -> Result<&str, String> {
    core::str::from_utf8(value).map_err(|_| "not valid UTF-8".to_string())
}

pub fn in_range<T: PartialOrd + core::fmt::Display + Copy>(value: T, range: RangeInclusive<T>) -> Result<T, String> {
    if range.contains(&value) {
        Ok(value)
    } else {
        Err(format!("argument must be between {} and {} inclusive", range.start(), range.end()))
    }
}

pub fn integer_in(value: &[u8], range: RangeInclusive<i64>) -> Result<i64, String> {
    let number = args::integer(value).map_err(|_| "argument couldn't be parsed into an integer".to_string())?;
    in_range(number, range)
}

pub fn memory_in(value: &[u8], range: RangeInclusive<u64>) -> Result<u64, String> {
    in_range(parse_memory(value).ok_or("argument must be a memory value")?, range)
}

pub fn octal_in(value: &[u8], range: RangeInclusive<u32>) -> Result<u32, String> {
    let number = u32::from_str_radix(text(value)?, 8);
    in_range(number.map_err(|_| "argument couldn't be parsed as an octal number".to_string())?, range)
}

pub fn yes_or_no(value: &[u8]) -> Result<bool, String> {
    match value {
        v if v.eq_ignore_ascii_case(b"yes") => Ok(true),
        v if v.eq_ignore_ascii_case(b"no") => Ok(false),
        _ => Err("argument must be 'yes' or 'no'".to_string()),
    }
}

pub fn yes_no(value: bool) -> &'static str {
    if value { "yes" } else { "no" }
}

/// The one of these words that a value is, in any case.
pub fn one_of<T: Copy>(value: &[u8], words: &[(&'static str, T)]) -> Result<(&'static str, T), String> {
    let found = words.iter().find(|(word, _)| value.eq_ignore_ascii_case(word.as_bytes()));
    found.copied().ok_or_else(|| not_one_of(words.iter().map(|(word, _)| *word)))
}

fn not_one_of<'a>(words: impl Iterator<Item = &'a str>) -> String {
    format!("argument(s) must be one of the following: {}", words.collect::<Vec<_>>().join(", "))
}

/// Reads `100`, `100mb`, `1G` …; an empty value is zero: `k m g` are powers of 1,000 and `kb mb gb` powers of 1,024, in
/// any case.
pub fn parse_memory(value: &[u8]) -> Option<u64> {
    if value.is_empty() {
        return Some(0);
    }
    let digits = value.iter().take_while(|b| b.is_ascii_digit()).count();
    let (number, unit) = value.split_at(digits);
    const FACTORS: [(&str, u64); 8] = [
        ("", 1),
        ("b", 1),
        ("k", 1000),
        ("kb", 1 << 10),
        ("m", 1000 * 1000),
        ("mb", 1 << 20),
        ("g", 1000 * 1000 * 1000),
        ("gb", 1 << 30),
    ];
    let (_, factor) = FACTORS.into_iter().find(|(name, _)| unit.eq_ignore_ascii_case(name.as_bytes()))?;
    core::str::from_utf8(number).ok()?.parse::<u64>().ok()?.checked_mul(factor)
}

/// The shortest form of a number of bytes that [`parse_memory`] reads back.
pub fn memory_text(bytes: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "gb"), (1 << 20, "mb"), (1 << 10, "kb")];
    match UNITS.into_iter().find(|(unit, _)| bytes > 0 && bytes.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{}{name}", bytes / unit),
        None => bytes.to_string(),
    }
}

pub fn clients_memory(value: &[u8]) -> Result<ClientsMemory, String> {
    const PERCENTAGE: &str = "percentage argument must be less or equal to 100";
    const MEMORY_MAX: u64 = i64::MAX as u64;
    Ok(match value.strip_suffix(b"%") {
        Some(percent) => {
            let percent = args::integer(percent).ok().and_then(|percent| u64::try_from(percent).ok());
            let percent = percent.ok_or("argument must be a memory or percent value")?;
            if percent > 100 {
                return Err(PERCENTAGE.to_string());
            }
            if percent == 0 { ClientsMemory::Unlimited } else { ClientsMemory::Percent(percent as u8) }
        }
        None => match parse_memory(value) {
            Some(0) => ClientsMemory::Unlimited,
            Some(bytes @ ..=MEMORY_MAX) => ClientsMemory::Bytes(bytes),
            // Redis takes what is beyond its numbers for a percentage.
            Some(_) => return Err(PERCENTAGE.to_string()),
            None => return Err("argument must be a memory or percent value".to_string()),
        },
    })
}

/// The classes of clients as `client-output-buffer-limit` names them, in the order of the option's field.
pub const OUTPUT_CLASSES: [&str; 3] = ["normal", "slave", "pubsub"];

pub fn set_output_limits(options: &mut Options, value: &[u8]) -> Result<(), String> {
    const CLASSES: [(&str, usize); 4] = [("normal", 0), ("slave", 1), ("replica", 1), ("pubsub", 2)];
    let value = text(value)?;
    if !value.split_ascii_whitespace().count().is_multiple_of(4) {
        return Err("Wrong number of arguments in buffer limit configuration.".to_string());
    }
    let mut limits = options.client_output_buffer_limit;
    let mut words = value.split_ascii_whitespace();
    while let (Some(class), Some(hard), Some(soft), Some(seconds)) =
        (words.next(), words.next(), words.next(), words.next())
    {
        let Some(&(_, class)) = CLASSES.iter().find(|(name, _)| class.eq_ignore_ascii_case(name)) else {
            return Err("Invalid client class specified in buffer limit configuration.".to_string());
        };
        let wrong = || "Error in hard, soft or soft_seconds setting in buffer limit configuration.".to_string();
        limits[class] = OutputLimit {
            hard_bytes: parse_memory(hard.as_bytes()).ok_or_else(wrong)?,
            soft_bytes: parse_memory(soft.as_bytes()).ok_or_else(wrong)?,
            soft_seconds: seconds.parse().map_err(|_| wrong())?,
        };
    }
    options.client_output_buffer_limit = limits;
    Ok(())
}

pub fn percentiles(value: &[u8]) -> Result<Vec<f64>, String> {
    let words = text(value)?.split_ascii_whitespace();
    words
        .map(|word| match word.parse::<f64>() {
            Ok(percentile) if (0.0..=100.0).contains(&percentile) => Ok(percentile),
            Ok(percentile) if !percentile.is_nan() => {
                Err("latency-tracking-info-percentiles parameters should sit between [0.0,100.0]".to_string())
            }
            _ => Err("Invalid latency-tracking-info-percentiles parameters".to_string()),
        })
        .collect()
}

pub fn shutdown_on(value: &[u8]) -> Result<ShutdownOn, String> {
    const WORDS: [&str; 5] = ["default", "save", "nosave", "now", "force"];
    let mut on = ShutdownOn::default();
    let mut words = text(value)?.split_ascii_whitespace().peekable();
    if words.peek().is_none() {
        return Err(not_one_of(WORDS.into_iter()));
    }
    for word in words {
        if !word.eq_ignore_ascii_case("default") && !on.add(word.as_bytes()) {
            return Err(not_one_of(WORDS.into_iter()));
        }
    }
    if on.save && on.nosave {
        return Err("shutdown options SAVE and NOSAVE can't be used simultaneously".to_string());
    }
    Ok(on)
}

pub fn shutdown_on_text(on: ShutdownOn) -> String {
    let words = [(on.save, "save"), (on.nosave, "nosave"), (on.now, "now"), (on.force, "force")];
    let set: Vec<&str> = words.iter().filter(|(set, _)| *set).map(|(_, word)| *word).collect();
    if set.is_empty() { "default".to_string() } else { set.join(" ") }
}

/// Pairs of seconds and changes.
pub fn save_points(value: &[u8]) -> Result<Vec<(u64, u64)>, String> {
    let words: Vec<&str> = text(value)?.split_ascii_whitespace().collect();
    let number = |word: &str, least: i64| word.parse().ok().filter(|number: &i64| *number >= least).map(|n| n as u64);
    let points = words.chunks(2).map(|pair| match pair {
        [seconds, changes] => Some((number(seconds, 1)?, number(changes, 0)?)),
        _ => None,
    });
    points.collect::<Option<Vec<_>>>().ok_or("Invalid save parameters".to_string())
}

pub fn oom_score_values(value: &[u8]) -> Result<String, String> {
    let words: Vec<&str> = text(value)?.split_ascii_whitespace().collect();
    if words.len() != 3 {
        return Err("wrong number of arguments".to_string());
    }
    match words.iter().all(|word| word.parse::<i32>().is_ok_and(|number| (-2000..=2000).contains(&number))) {
        true => Ok(words.join(" ")),
        false => Err("Invalid oom-score-adj-values, elements must be between -2000 and 2000.".to_string()),
    }
}

/// A file's name without a folder.
pub fn base_name<'a>(value: &'a [u8], option: &str, kind: &str) -> Result<&'a str, String> {
    let name = text(value)?;
    if name.contains(['/', '\\']) { Err(format!("{option} can't be a path, just a {kind}")) } else { Ok(name) }
}
