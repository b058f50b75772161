//! What is told of transfers that fail.

use kayvee_platform::Trouble;
use std::{fmt, sync::Mutex, time::Instant};

/// Tells of transfers that fail, at most once a minute: who wants them tries again each second.
pub struct Complaints {
    began: Instant,
    trouble: Mutex<Trouble>,
}

impl Default for Complaints {
    fn default() -> Complaints {
        Complaints { began: Instant::now(), trouble: Mutex::default() }
    }
}

impl Complaints {
    /// Tells of one, unless another one was just told of.
    pub fn tell(&self, what: fmt::Arguments<'_>) {
        let now_ns = self.began.elapsed().as_nanos() as u64;
        if self.trouble.lock().is_ok_and(|mut trouble| trouble.fails(now_ns)) {
            log::warn!("disk: {what}");
        }
    }
}
