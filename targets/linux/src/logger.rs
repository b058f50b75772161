//! Log lines in Redis' form, `PID:M DATE TIME MARK TEXT`, on the standard output or in a file. Times are UTC.

use kayvee_platform::{Civil, civil};
use log::{Level, LevelFilter, Log, Metadata, Record};
use std::{
    env, fmt,
    fs::{File, OpenOptions},
    io::{self, Write},
    sync::OnceLock,
    time::{SystemTime, UNIX_EPOCH},
};

struct Logger;

/// Set by `kayvee run`, which waits for some lines on the standard output, wherever the log goes and whatever is left out of it.
const WATCHED: &str = "KAYVEE_RUN";
/// How lines begin that say how far the reading of data is.
const PROGRESS: &str = "reading ";

/// The file, if there is one. It is opened for each line, so that it may be moved away at any time.
static FILE: OnceLock<String> = OnceLock::new();

/// Begins to log what is at least as severe as `level`, to a file if its name is not empty. It fails where that cannot be written.
pub fn install(level: LevelFilter, file: &str) -> io::Result<()> {
    if !file.is_empty() {
        open(file)?;
        FILE.get_or_init(|| file.into());
    }
    // Only a second logger could make this fail, and there is none.
    let _ = log::set_logger(&Logger);
    log::set_max_level(level);
    Ok(())
}

fn open(file: &str) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(file)
}

/// Writes a line that others wait for, whatever the level.
pub fn fixed(text: &str) {
    let line = line('*', text);
    raw(&line);
    show(&line);
}

/// Writes a line that `kayvee run` waits for, for others if the level is that of such lines.
pub fn awaited(text: &str) {
    if is_watched() { fixed(text) } else { log::info!("{text}") }
}

fn is_watched() -> bool {
    env::var_os(WATCHED).is_some()
}

/// Shows whoever waits for it a line that has gone to a file.
fn show(line: &str) {
    if FILE.get().is_some() && is_watched() {
        // Whoever has gone does not wait.
        let _ = io::stdout().lock().write_all(line.as_bytes());
    }
}

fn line(mark: char, text: impl fmt::Display) -> String {
    format!("{}:M {} {mark} {text}\n", std::process::id(), timestamp(SystemTime::now()))
}

/// Writes a text as it is, whatever the level.
pub fn raw(text: &str) {
    let written = match FILE.get() {
        Some(file) => open(file).and_then(|mut file| file.write_all(text.as_bytes())),
        None => io::stdout().lock().write_all(text.as_bytes()),
    };
    // Nobody is left to tell if this cannot be written.
    let _ = written;
    let _ = io::stdout().lock().flush();
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            let mark = match record.level() {
                Level::Error | Level::Warn => '#',
                Level::Info => '*',
                Level::Debug => '-',
                Level::Trace => '.',
            };
            let text = record.args().to_string();
            let line = line(mark, &text);
            raw(&line);
            if text.starts_with(PROGRESS) {
                show(&line);
            }
        }
    }

    fn flush(&self) {}
}

/// `20 Nov 2026 13:49:18.123`, in UTC.
fn timestamp(time: SystemTime) -> String {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let since_epoch = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let Civil { year, month, day, hour, minute, second } = civil(since_epoch.as_secs());
    let (month, millis) = (MONTHS[month as usize - 1], since_epoch.subsec_millis());
    format!("{day:02} {month} {year:04} {hour:02}:{minute:02}:{second:02}.{millis:03}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "01 Jan 1970 00:00:00.000"),
            (951_782_399, "28 Feb 2000 23:59:59.000"),
            (951_782_400, "29 Feb 2000 00:00:00.000"),
            (1_000_000_000, "09 Sep 2001 01:46:40.000"),
            (4_107_542_400, "01 Mar 2100 00:00:00.000"),
        ] {
            assert_eq!(timestamp(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }
}
