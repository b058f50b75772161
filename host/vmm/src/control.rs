//! The control socket: a line with one word asks, and the answer ends with the connection.

use crate::{
    confine::{self, Role},
    machine::{Ending, lock},
    stats::Stats,
    wake::Wake,
};
use anyhow::{Context, Result};
use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    sync::{Condvar, Mutex},
};

/// A longer question is none.
const QUESTION_BYTES_MAX: u64 = 64;

/// Whether the processor may run.
#[derive(Debug, Default)]
pub struct Pause {
    is_paused: Mutex<bool>,
    changed: Condvar,
}

impl Pause {
    /// Returns when the processor may run, which is at once unless somebody has it wait.
    pub fn pass(&self) {
        let is_paused = lock(&self.is_paused);
        // A thread that panics with it would have ended the process.
        drop(self.changed.wait_while(is_paused, |is_paused| *is_paused));
    }

    fn set(&self, is_paused: bool) {
        *lock(&self.is_paused) = is_paused;
        self.changed.notify_all();
    }

    fn is_set(&self) -> bool {
        *lock(&self.is_paused)
    }
}

/// Answers those that connect, one after the other.
pub fn run(listener: &UnixListener, pause: &Pause, stats: &Stats, wake: &Wake) -> Result<Ending> {
    confine::limit(Role::Control)?;
    loop {
        let (client, _) = listener.accept().context("the control socket")?;
        // Whoever asks and goes away before the answer does not want it.
        let _ = answer(client, pause, stats, wake);
    }
}

fn answer(mut client: UnixStream, pause: &Pause, stats: &Stats, wake: &Wake) -> std::io::Result<()> {
    let mut question = String::new();
    BufReader::new((&client).take(QUESTION_BYTES_MAX)).read_line(&mut question)?;
    match question.trim_end() {
        "pause" => {
            pause.set(true);
            // It takes effect when the guest is left the next time; a guest that sleeps is woken up for it.
            wake.raise();
        }
        "resume" => pause.set(false),
        "stats" => {}
        _ => return client.write_all(b"error: ask for stats, pause or resume\n"),
    }
    let state = if pause.is_set() { "paused" } else { "running" };
    client.write_all(format!("state:{state}\n{}", stats.report()).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{sync::Arc, thread, time::Duration};

    fn ask(question: &str, pause: &Pause) -> String {
        let (mut own, other) = UnixStream::pair().unwrap();
        own.write_all(question.as_bytes()).unwrap();
        answer(other, pause, &Stats::default(), &Wake::new().unwrap()).unwrap();
        let mut text = String::new();
        own.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn answers_what_is_asked() {
        let pause = Arc::new(Pause::default());
        pause.pass();
        assert!(ask("stats\n", &pause).starts_with("state:running\nexits_console:0\n"));
        assert!(ask("pause\n", &pause).starts_with("state:paused\n"));
        let other = pause.clone();
        let waits = thread::spawn(move || other.pass());
        thread::sleep(Duration::from_millis(20));
        assert!(!waits.is_finished());
        assert!(ask("resume\n", &pause).starts_with("state:running\n"));
        waits.join().unwrap();
        assert!(ask("what\n", &pause).starts_with("error"));
        assert!(ask(&"x".repeat(QUESTION_BYTES_MAX as usize), &pause).starts_with("error"));
    }
}
