//! The end of a store with a log: what was acknowledged is there at the next start, or there is no end.

use super::{ALWAYS, Durable, GATHERED};
use crate::{bench::Bench, disk::Disk, lines};
use kayvee_platform::BlockError;

const FAILED: &str = "-ERR Errors trying to SHUTDOWN. Check logs.";
const NOT_APPENDING: &[&str] = &["--enable-debug-command", "yes"];

impl Durable {
    /// The status of the end, if it has come after some turns.
    fn ended(&mut self) -> Option<u8> {
        (0..2000).for_each(|_| self.turn());
        self.bench.engine.shutdown().map(|shutdown| shutdown.status)
    }

    /// Asks for an end that comes.
    fn end(&mut self, request: &str) -> Option<u8> {
        self.send(self.client, request);
        self.ended()
    }
}

#[test]
fn an_end_that_cannot_save_all_data_does_not_come() {
    let mut one = Durable::new(NOT_APPENDING, Disk::new(2 << 20));
    one.expect(&[("DEBUG POPULATE 20000 key 200", "+OK"), ("SAVE", "-ERR")]);
    lines::begin();
    one.expect(&[("SHUTDOWN SAVE", FAILED), ("SHUTDOWN SAVE NOW", FAILED), ("DBSIZE", ":20000")]);
    let cannot = "Error trying to save the DB, can't exit.";
    assert_eq!(lines::take().iter().filter(|line| *line == cannot).count(), 2);
    assert_eq!(one.end("SHUTDOWN SAVE FORCE"), Some(1));
    // Nothing is to be saved.
    let mut two = Durable::new(NOT_APPENDING, Disk::new(2 << 20));
    two.ask("DEBUG POPULATE 20000 key 200");
    assert_eq!(two.end("SHUTDOWN"), Some(0));
    // The disk fails.
    let mut three = Durable::new(NOT_APPENDING, Disk::new(2 << 20));
    three.ask("SET k v");
    three.disk.failure = Some(BlockError::Io);
    three.expect(&[("SHUTDOWN SAVE", FAILED), ("SHUTDOWN SAVE", FAILED)]);
    three.disk.failure = None;
    three.bench.advance_ms(2000);
    assert_eq!(three.end("SHUTDOWN SAVE"), Some(0));
    three.reopened(ALWAYS).expect(&[("GET k", "$1 v")]);
}

/// There is room for all data once, not twice.
#[test]
fn an_end_behind_a_first_write_down_needs_no_other_one() {
    let mut one = Durable::new(NOT_APPENDING, Disk::new(8 << 20));
    one.expect(&[("DEBUG POPULATE 20000 key 200", "+OK"), ("CONFIG SET appendonly yes", "+OK")]);
    assert_eq!(one.end("SHUTDOWN"), Some(0));
    let mut two = one.reopened(ALWAYS);
    two.expect(&[("DBSIZE", ":20000")]);
    // The log has all data, whether they can be written anew or not.
    assert_eq!(two.end("SHUTDOWN SAVE"), Some(0));
}

#[test]
fn an_end_that_loses_what_was_acknowledged_does_not_come() {
    let mut one = Durable::new(GATHERED, Disk::new(8 << 20));
    one.expect(&[("SET k old", "+OK")]);
    one.rest(3000);
    one.disk.failure = Some(BlockError::Io);
    one.expect(&[("SET k new", "+OK")]);
    lines::begin();
    one.expect(&[("SHUTDOWN", FAILED)]);
    assert!(lines::take().iter().any(|line| line == "Changes are not on stable storage, can't exit."));
    // A signal.
    let on = one.bench.engine.options().shutdown_on_sigterm;
    one.bench.engine.request_shutdown(on);
    assert_eq!((one.ended(), one.bench.engine.is_ending()), (None, false));
    one.disk.failure = None;
    one.rest(3000);
    assert_eq!(one.end("SHUTDOWN"), Some(0));
    one.reopened(GATHERED).expect(&[("GET k", "$3 new")]);
    for forced in ["SHUTDOWN FORCE", "SHUTDOWN NOSAVE"] {
        let mut two = one.reopened(GATHERED);
        two.disk.failure = Some(BlockError::Io);
        two.expect(&[("SET k lost", "+OK")]);
        assert_eq!(two.end(forced), Some(1), "{forced}");
    }
    // Nothing is lost.
    let mut three = one.reopened(GATHERED);
    three.disk.failure = Some(BlockError::Io);
    assert_eq!(three.end("SHUTDOWN"), Some(0));
}

/// Damage to the last batch of a log that has ended in good order is known for what it is.
#[test]
fn an_end_closes_the_log() {
    for options in [ALWAYS, GATHERED] {
        let mut one = Durable::new(options, Disk::new(8 << 20));
        one.expect(&[("SET a 1", "+OK"), ("SET b 2", "+OK")]);
        assert_eq!(one.end("SHUTDOWN"), Some(0));
        one.bench.engine.close_log(&mut one.disk);
        one.reopened(options).expect(&[("MGET a b", "*2 $1 1 $1 2")]);
        let last = one.disk.bytes.windows(4).rposition(|bytes| bytes == b"KvBt").expect("a batch");
        one.disk.bytes[last + 70] ^= 1;
        let error = Bench::new(options).engine.open_log(&mut one.disk).unwrap_err().to_string();
        assert!(error.starts_with("the log is damaged"), "{error}");
    }
}
