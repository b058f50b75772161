//! Log lines on the console: `SECONDS LEVEL TEXT`.

use crate::{clock::CLOCK, serial};
use core::fmt::{Arguments, Write};
use log::{LevelFilter, Log, Metadata, Record};

struct SerialLog;

impl Log for SerialLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            let level = match record.level() {
                log::Level::Error => "error",
                log::Level::Warn => "warn",
                log::Level::Info => "info",
                log::Level::Debug => "debug",
                log::Level::Trace => "trace",
            };
            line(level, *record.args());
        }
    }

    fn flush(&self) {}
}

/// Sends log records to the console, those of `level` and above.
pub fn init(level: LevelFilter) {
    // Only the first call sets the logger; later ones change the level.
    let _ = log::set_logger(&SerialLog);
    log::set_max_level(level);
}

/// Prints a line that programs read, whatever the log level.
#[inline(never)]
pub fn fixed_line(text: Arguments<'_>) {
    line("info", text);
}

fn line(level: &str, text: Arguments<'_>) {
    let uptime_ms = CLOCK.uptime_ns() / 1_000_000;
    let mut out = serial::Writer::new();
    // A serial writer never fails; a failing `Display` costs only the rest of its own line.
    let _ = writeln!(out, "{}.{:03} {level} {text}", uptime_ms / 1000, uptime_ms % 1000);
}
