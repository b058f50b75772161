//! Logs that are made while the store runs: what is in their place at each moment, and what a start would find there.

use crate::{
    bench::{Bench, answer},
    disk::Disk,
    lines,
};
use kayvee_platform::{BlockError, Finishing, LogFile, ReadFile, WriteFile};
use kayvee_server::{ClientId, Host, OptionError, Options, Store};
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

const OPTIONS: &[&str] = &["--appendfsync", "always", "--enable-debug-command", "yes"];
const LOGGING: &[&str] = &["--appendonly", "yes", "--appendfsync", "always", "--enable-debug-command", "yes"];

const GONE: &str = "the folder is gone";

/// How a log gets to its place.
#[derive(Clone, Copy, Default)]
enum Way {
    #[default]
    Open,
    Slow,
    Barred,
}

/// What becomes of the files of a folder.
#[derive(Default)]
pub struct State {
    is_missing: Cell<bool>,
    way: Cell<Way>,
    /// A disk that the loop has yet to be told of.
    made: RefCell<Option<Disk>>,
    /// Logs that were made, were to be put in their place, got there, and did not; dump files that were written.
    logs: Cell<usize>,
    asked: Cell<usize>,
    placed: Cell<usize>,
    given_up: Cell<usize>,
    dumps: Cell<usize>,
    /// The last dump file.
    dump: RefCell<Option<Vec<u8>>>,
}

fn count(cell: &Cell<usize>) {
    cell.set(cell.get() + 1);
}

/// A folder for logs and dump files.
pub struct Folder(pub Rc<State>);

impl Host for Folder {
    fn apply(&self, old: &Options, new: &mut Options) -> Result<(), OptionError> {
        match old.port == new.port {
            true => Ok(()),
            false => Err(OptionError { name: "port".into(), reason: "it is taken".into() }),
        }
    }

    fn has_files(&self) -> bool {
        true
    }

    fn open_file(&self, _: &str) -> Result<Option<Box<dyn ReadFile>>, String> {
        let dump = self.0.dump.borrow().clone();
        Ok(dump.map(|bytes| Box::new(Opened { bytes, at: 0 }) as Box<dyn ReadFile>))
    }

    fn create_file(&self, _: &str) -> Result<Box<dyn WriteFile>, String> {
        if self.0.is_missing.get() {
            return Err(GONE.into());
        }
        Ok(Box::new(Dump { state: Rc::clone(&self.0), bytes: Vec::new() }))
    }

    fn create_log(&self, store: &mut Store, _: &str) -> Result<(), String> {
        if self.0.is_missing.get() {
            return Err(GONE.into());
        }
        let mut disk = Disk::new(8 << 20);
        store.take_new_log(&mut disk, Box::new(LogBeside { state: Rc::clone(&self.0), is_in_place: false }))?;
        count(&self.0.logs);
        self.0.made.replace(Some(disk));
        Ok(())
    }
}

struct Dump {
    state: Rc<State>,
    bytes: Vec<u8>,
}

impl WriteFile for Dump {
    fn write(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<(), String> {
        count(&self.state.dumps);
        self.state.dump.replace(Some(self.bytes));
        Ok(())
    }

    fn finish_soon(self: Box<Self>) -> Box<dyn Finishing> {
        Box::new(Some(self.finish()))
    }
}

struct Opened {
    bytes: Vec<u8>,
    at: usize,
}

impl ReadFile for Opened {
    fn size_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, String> {
        let len = buffer.len().min(self.bytes.len() - self.at);
        buffer[..len].copy_from_slice(&self.bytes[self.at..self.at + len]);
        self.at += len;
        Ok(len)
    }
}

/// A log that is not in its place.
struct LogBeside {
    state: Rc<State>,
    is_in_place: bool,
}

impl LogFile for LogBeside {
    fn put_in_place(&mut self) -> Box<dyn Finishing> {
        assert!(!self.is_in_place, "it is there already");
        count(&self.state.asked);
        self.is_in_place = !matches!(self.state.way.get(), Way::Barred);
        Box::new(OnItsWay(Rc::clone(&self.state)))
    }
}

impl Drop for LogBeside {
    fn drop(&mut self) {
        if !self.is_in_place {
            count(&self.state.given_up);
        }
    }
}

struct OnItsWay(Rc<State>);

impl Finishing for OnItsWay {
    fn result(&mut self) -> Option<Result<(), String>> {
        match self.0.way.get() {
            Way::Open => {
                count(&self.0.placed);
                Some(Ok(()))
            }
            Way::Slow => None,
            Way::Barred => Some(Err("Permission denied".into())),
        }
    }

    fn wait(mut self: Box<Self>) -> Result<(), String> {
        self.result().expect("nobody waits for a slow one")
    }
}

/// A store without a disk of its own.
struct Process {
    bench: Bench,
    folder: Rc<State>,
    disk: Option<Disk>,
    client: ClientId,
    /// What a start would have found in the last log that was to be put in its place.
    found: Option<String>,
}

impl Process {
    fn new(options: &[&str]) -> Process {
        let folder = Rc::new(State::default());
        let mut bench = Bench::with(options, 7, Box::leak(Box::new(Folder(Rc::clone(&folder)))));
        let client = bench.connect();
        Process { bench, folder, disk: None, client, found: None }
    }

    fn turn(&mut self) {
        let asked = self.folder.asked.get();
        self.bench.engine.end_turn();
        if let Some(new) = self.folder.made.take() {
            self.disk = Some(new);
        }
        if !self.bench.engine.log_is_open() {
            self.disk = None;
        }
        if let Some(disk) = &mut self.disk {
            self.bench.engine.drive_log(disk);
            self.bench.engine.settle_log(disk);
        }
        if self.folder.asked.get() > asked {
            self.found = Some(self.found());
        }
        while self.bench.engine.next_ready().is_some() {}
    }

    fn turns(&mut self, count: usize) {
        (0..count).for_each(|_| self.turn());
    }

    fn output(&mut self) -> String {
        let output = self.bench.engine.output(self.client).to_vec();
        self.bench.engine.sent(self.client, output.len());
        String::from_utf8(output).unwrap()
    }

    fn send(&mut self, request: &str) {
        self.bench.engine.receive(self.client, format!("{request}\r\n").as_bytes());
    }

    /// Sends requests and takes turns until there is an answer.
    fn ask(&mut self, request: &str) -> String {
        self.send(request);
        answer(request, || {
            self.turn();
            self.output()
        })
    }

    fn expect(&mut self, exchanges: &[(&str, &str)]) {
        for (request, reply) in exchanges {
            assert_eq!(self.ask(request), *reply, "{request}");
        }
    }

    /// What `INFO persistence` says of these fields.
    fn info(&mut self, fields: &[&str]) -> String {
        let text = self.ask("INFO persistence");
        let value = |field: &&str| {
            let words = text.split(' ').find_map(|line| line.strip_prefix(*field)?.strip_prefix(':'));
            words.unwrap_or("-").to_string()
        };
        fields.iter().map(value).collect::<Vec<_>>().join(" ")
    }

    /// What a start finds on the disk, as it is now.
    fn found(&self) -> String {
        let mut disk = self.disk.as_ref().expect("there is a log").copy();
        let mut bench = Bench::new(LOGGING);
        bench.engine.open_log(&mut disk).unwrap_or_else(|error| panic!("{error}"));
        let client = bench.connect();
        bench.engine.receive(client, b"DEBUG DIGEST\r\n");
        bench.engine.end_turn();
        bench.engine.drive_log(&mut disk);
        while bench.engine.next_ready().is_some() {}
        String::from_utf8(bench.engine.output(client).to_vec()).unwrap().trim_end().into()
    }
}

const FIELDS: &[&str] =
    &["aof_enabled", "aof_rewrite_in_progress", "aof_rewrite_scheduled", "aof_last_bgrewrite_status"];

#[test]
fn a_log_that_is_made_has_all_data_before_it_is_in_its_place() {
    let mut one = Process::new(OPTIONS);
    one.expect(&[("DEBUG POPULATE 3000", "+OK"), ("SET a 1", "+OK"), ("RPUSH l a b c", ":3")]);
    assert_eq!(one.info(FIELDS), "0 0 0 ok");
    one.bench.let_time_pass();
    one.expect(&[("CONFIG SET appendonly yes", "+OK")]);
    assert_eq!(one.info(FIELDS), "1 1 0 ok", "the walk goes on");
    one.expect(&[("INCR a", ":2"), ("LPOP l", "$1 a"), ("SET new 1", "+OK")]);
    assert_eq!((one.folder.asked.get(), one.info(FIELDS).as_str()), (0, "1 1 0 ok"));
    let digest = one.ask("DEBUG DIGEST");
    one.folder.way.set(Way::Slow);
    while one.found.is_none() {
        one.turn();
    }
    assert_eq!(one.found.take(), Some(digest));
    // On its way it gets what changes, and nothing is promised.
    one.expect(&[("INCR a", ":3")]);
    one.send("WAITAOF 1 0 0");
    one.turns(20);
    assert_eq!((one.output(), one.folder.placed.get()), (String::new(), 0));
    one.folder.way.set(Way::Open);
    one.turns(2);
    assert_eq!((one.output().as_str(), one.folder.placed.get()), ("*2\r\n:1\r\n:0\r\n", 1));
    assert_eq!(one.info(FIELDS), "1 0 0 ok");
    one.expect(&[("INCR a", ":4"), ("BGREWRITEAOF", "+Background append only file rewriting started")]);
    one.turns(3000);
    assert_eq!(one.info(&["aof_enabled", "aof_rewrites"]), "1 2");
    let digest = one.ask("DEBUG DIGEST");
    assert_eq!((one.found(), one.folder.asked.get()), (digest.clone(), 1), "it stays in its place");
    one.expect(&[("DEBUG LOADAOF", "+OK"), ("SET later 1", "+OK")]);
    let digest = one.ask("DEBUG DIGEST");
    assert_eq!((one.found(), one.folder.logs.get(), one.folder.given_up.get()), (digest, 1, 0));
}

/// Switching it off closes the log, and a start without one finds all in the dump file.
#[test]
fn a_log_that_is_not_wanted_any_more_is_closed() {
    let mut one = Process::new(OPTIONS);
    one.expect(&[("DEBUG POPULATE 3000", "+OK"), ("CONFIG SET appendonly yes", "+OK")]);
    one.turns(3000);
    assert_eq!(one.folder.placed.get(), 1);
    one.expect(&[("SAVE", "+OK")]);
    assert_eq!(one.folder.dumps.get(), 1, "the store was started with a dump file");
    one.expect(&[("SET k v", "+OK"), ("CONFIG SET appendonly no", "+OK")]);
    assert!(one.disk.is_none() || !one.bench.engine.log_is_open());
    one.expect(&[("SET k w", "+OK"), ("BGSAVE", "+Background saving started")]);
    one.turns(3000);
    assert_eq!((one.folder.dumps.get(), one.info(FIELDS).as_str()), (2, "0 0 0 ok"));
    // Another one begins with another file.
    one.expect(&[("CONFIG SET appendonly yes", "+OK")]);
    one.turns(3000);
    let digest = one.ask("DEBUG DIGEST");
    assert_eq!((one.found(), one.folder.placed.get(), one.folder.given_up.get()), (digest, 2, 0));
}

/// A disk may have held one before, whose batches must not pass for those of the new one.
#[test]
fn logs_that_are_made_have_names_of_their_own() {
    let mut one = Process::new(OPTIONS);
    let mut names = Vec::new();
    for _ in 0..3 {
        one.expect(&[("CONFIG SET appendonly yes", "+OK")]);
        one.turns(3000);
        names.push(one.disk.as_ref().expect("it was made").bytes[32..48].to_vec());
        one.expect(&[("CONFIG SET appendonly no", "+OK")]);
        one.turns(3000);
    }
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 3);
}

/// Whatever is asked for in one turn, there is one log in the end, which has all data, or none.
#[test]
fn a_log_is_switched_on_and_off_within_a_turn() {
    let mut one = Process::new(OPTIONS);
    one.expect(&[("DEBUG POPULATE 3000", "+OK")]);
    one.send("CONFIG SET appendonly yes\r\nCONFIG SET appendonly no");
    one.turns(10);
    assert_eq!((one.folder.given_up.get(), one.disk.is_none(), one.info(FIELDS).as_str()), (1, true, "0 0 0 ok"));
    one.output();
    one.bench.let_time_pass();
    one.expect(&[("CONFIG SET appendonly yes", "+OK")]);
    one.turns(3);
    // In the middle of the walk.
    one.send("CONFIG SET appendonly no\r\nSET a 1\r\nCONFIG SET appendonly yes\r\nSET b 2");
    one.turns(3000);
    assert_eq!(one.output(), "+OK\r\n+OK\r\n+OK\r\n+OK\r\n");
    let digest = one.ask("DEBUG DIGEST");
    assert_eq!((one.found(), one.folder.placed.get(), one.folder.logs.get()), (digest, 1, 2));
    // With what is in its place.
    one.send("CONFIG SET appendonly no\r\nSET a 2\r\nCONFIG SET appendonly yes\r\nSET b 3");
    one.turns(3000);
    let digest = one.ask("DEBUG DIGEST");
    assert!(digest.ends_with(&one.found()), "{digest}");
    assert_eq!((one.info(FIELDS).as_str(), one.folder.logs.get()), ("1 0 0 ok", 2));
}

#[test]
fn a_dump_file_that_cannot_be_made_is_tried_again() {
    let mut one = Process::new(&["--save", "1 1"]);
    lines::begin();
    one.folder.is_missing.set(true);
    one.expect(&[("SET a 1", "+OK")]);
    let minutes = |one: &mut Process| {
        for _ in 0..120 {
            one.bench.advance_ms(1000);
            one.turns(5);
        }
        lines::take()
    };
    let failed = format!("Error saving DB to the file dump.rdb (in ): {GONE}");
    assert_eq!(minutes(&mut one), ["1 changes since the last save. Saving...", &failed, &failed]);
    one.folder.is_missing.set(false);
    assert_eq!(minutes(&mut one), ["DB saved on disk"]);
    assert_eq!(one.folder.dumps.get(), 1);
}

#[test]
fn a_log_that_cannot_be_put_in_its_place_is_tried_again() {
    let mut one = Process::new(OPTIONS);
    lines::begin();
    // But for the start that is tried beside it.
    let told = || {
        let lines = lines::take().into_iter();
        lines.filter(|line| !line.starts_with("DB loaded")).collect::<Vec<_>>()
    };
    one.expect(&[("SET a 1", "+OK")]);
    one.folder.way.set(Way::Barred);
    one.expect(&[("CONFIG SET appendonly yes", "+OK")]);
    one.turns(50);
    assert_eq!((one.info(FIELDS).as_str(), one.folder.asked.get()), ("1 0 0 err", 1));
    one.expect(&[("SET b 2", "+OK")]);
    let begun = ["compacting the log: 1 keys", "the log cannot be put in its place: Permission denied"];
    assert_eq!(told(), begun);
    for asked in 2..=22 {
        one.bench.advance_ms(6000);
        one.turns(50);
        assert_eq!((one.info(FIELDS).as_str(), one.folder.asked.get()), ("1 0 0 err", asked));
    }
    // Two minutes later.
    assert_eq!(told(), [begun[1]; 2]);
    one.folder.way.set(Way::Open);
    one.bench.advance_ms(6000);
    one.turns(50);
    assert_eq!((one.info(FIELDS).as_str(), one.folder.placed.get()), ("1 0 0 ok", 1));
    let over = told();
    assert!(over.len() == 1 && over[0].starts_with("the log is compacted: 2 keys"), "{over:?}");
    let digest = one.ask("DEBUG DIGEST");
    assert_eq!(one.found(), digest);
}

/// A command that fails leaves everything as it was.
#[test]
fn a_log_that_cannot_be_made_is_refused() {
    let mut one = Process::new(OPTIONS);
    one.folder.is_missing.set(true);
    let refused = one.ask("CONFIG SET appendonly yes");
    assert!(refused.starts_with("-ERR CONFIG SET failed") && refused.ends_with("the folder is gone"), "{refused}");
    let refused = one.ask("BGREWRITEAOF");
    assert!(refused.starts_with("-ERR Can't execute an AOF background rewriting"), "{refused}");
    one.folder.is_missing.set(false);
    let refused = one.ask("CONFIG SET appendonly yes port 7000");
    assert!(refused.ends_with("it is taken"), "{refused}");
    assert_eq!((one.info(FIELDS).as_str(), one.folder.given_up.get(), one.disk.is_none()), ("0 0 0 ok", 1, true));
    one.expect(&[("SET a 1", "+OK"), ("CONFIG GET appendonly", "*2 $10 appendonly $2 no")]);
}

/// `BGREWRITEAOF` without a log leaves one, as Redis' does, for a start that looks for it.
#[test]
fn a_log_is_written_for_once() {
    let mut one = Process::new(OPTIONS);
    one.expect(&[("DEBUG POPULATE 3000", "+OK")]);
    let digest = one.ask("DEBUG DIGEST");
    one.bench.let_time_pass();
    one.expect(&[("BGREWRITEAOF", "+Background append only file rewriting started")]);
    assert_eq!(one.info(FIELDS), "0 1 0 ok");
    one.expect(&[("SAVE", "+OK")]);
    assert_eq!(one.folder.dumps.get(), 1);
    one.turns(3000);
    assert_eq!((one.found.take(), one.folder.placed.get(), one.disk.is_none()), (Some(digest), 1, true));
    assert_eq!(one.info(FIELDS), "0 0 0 ok");
    one.expect(&[("MULTI", "+OK"), ("BGREWRITEAOF", "+QUEUED")]);
    assert_eq!(one.ask("EXEC"), "*1 +Background append only file rewriting scheduled");
    one.turns(3000);
    assert_eq!(one.folder.placed.get(), 2);
    // One that becomes the log goes on.
    one.expect(&[("BGREWRITEAOF", "+Background append only file rewriting started"), ("SET a 1", "+OK")]);
    one.expect(&[("CONFIG SET appendonly yes", "+OK"), ("SET b 1", "+OK")]);
    one.turns(6000);
    let digest = one.ask("DEBUG DIGEST");
    assert_eq!((one.found(), one.info(FIELDS).as_str()), (digest, "1 0 0 ok"));
}

/// A disk that fails is let go of as soon as nobody wants the log: what it took of the file system may be what is missing.
#[test]
fn a_log_on_a_disk_that_fails_is_given_up_when_it_is_switched_off() {
    let mut one = Process::new(OPTIONS);
    one.expect(&[("DEBUG POPULATE 3000", "+OK"), ("CONFIG SET appendonly yes", "+OK")]);
    one.disk.as_mut().expect("it was made").failure = Some(BlockError::NoSpace);
    one.turns(3000);
    assert_eq!(one.ask("SET a 1"), "-MISCONF Errors writing to the AOF file: No space left on device");
    one.expect(&[("CONFIG SET appendonly no", "+OK"), ("SET a 1", "+OK")]);
    assert_eq!((one.disk.is_none(), one.folder.given_up.get(), one.folder.asked.get()), (true, 1, 0));
}

/// An end is no reason to lose what a log that was just switched on has not got yet, and the dump file is written as well.
#[test]
fn the_end_waits_until_a_log_is_in_its_place() {
    let mut one = Process::new(&[OPTIONS, &["--save", "100 1"]].concat());
    one.expect(&[("DEBUG POPULATE 3000", "+OK")]);
    let digest = one.ask("DEBUG DIGEST");
    one.folder.way.set(Way::Slow);
    one.bench.let_time_pass();
    one.send("CONFIG SET appendonly yes\r\nSHUTDOWN");
    one.turns(3000);
    assert!(one.bench.engine.shutdown().is_none());
    one.folder.way.set(Way::Open);
    one.turns(2);
    assert!(one.bench.engine.shutdown().is_some());
    assert_eq!((one.found.take(), one.folder.placed.get(), one.folder.dumps.get()), (Some(digest), 1, 1));
}
