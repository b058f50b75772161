//! What a test's thread has written to the log.

use log::{LevelFilter, Log, Metadata, Record};
use std::cell::RefCell;

struct Lines;

thread_local! {
    static WRITTEN: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

impl Log for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        WRITTEN.with_borrow_mut(|written| {
            if let Some(written) = written {
                written.push(record.args().to_string());
            }
        });
    }

    fn flush(&self) {}
}

/// Keeps what this thread writes from now on.
pub fn begin() {
    // Another test may have been first.
    let _ = log::set_logger(&Lines);
    log::set_max_level(LevelFilter::Info);
    WRITTEN.set(Some(Vec::new()));
}

/// What it has written since the last call.
pub fn take() -> Vec<String> {
    WRITTEN.with_borrow_mut(|written| written.as_mut().map(std::mem::take).unwrap_or_default())
}
