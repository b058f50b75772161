use super::*;
use crate::{
    Host,
    harness::{Harness, START_MS},
    options::{OptionError, Options},
};
use alloc::{boxed::Box, collections::BTreeMap, format, rc::Rc, string::ToString, vec::Vec};
use core::cell::{Cell, RefCell};
use kayvee_platform::{Finishing, ReadFile, WriteFile};

type Files = Rc<RefCell<BTreeMap<String, Vec<u8>>>>;

/// Files in memory.
#[derive(Default)]
struct MemoryHost {
    files: Files,
    /// Bytes that a file may still get, where there is a limit.
    room: Rc<Cell<Option<usize>>>,
    /// Whether what is complete does not come to its place yet.
    is_slow: Rc<Cell<bool>>,
}

struct Source {
    bytes: Vec<u8>,
    at: usize,
}

impl ReadFile for Source {
    fn size_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, String> {
        // Short reads happen.
        let len = buffer.len().min(self.bytes.len() - self.at).min(1000);
        buffer[..len].copy_from_slice(&self.bytes[self.at..][..len]);
        self.at += len;
        Ok(len)
    }
}

struct Draft {
    path: String,
    bytes: Vec<u8>,
    files: Files,
    room: Rc<Cell<Option<usize>>>,
    is_slow: Rc<Cell<bool>>,
}

/// A complete file that may not be in its place yet.
struct Later(Option<Box<Draft>>);

impl Finishing for Later {
    fn result(&mut self) -> Option<Result<(), String>> {
        Some(self.0.take_if(|draft| !draft.is_slow.get())?.finish())
    }

    fn wait(self: Box<Self>) -> Result<(), String> {
        self.0.map_or(Ok(()), |draft| draft.finish())
    }
}

impl WriteFile for Draft {
    fn write(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.bytes.extend_from_slice(bytes);
        match self.room.get() {
            Some(room) if self.bytes.len() > room => Err("No space left on device".into()),
            _ => Ok(()),
        }
    }

    fn finish(self: Box<Self>) -> Result<(), String> {
        self.files.borrow_mut().insert(self.path.clone(), self.bytes.clone());
        Ok(())
    }

    fn finish_soon(self: Box<Self>) -> Box<dyn Finishing> {
        Box::new(Later(Some(self)))
    }
}

impl Host for MemoryHost {
    fn apply(&self, _: &Options, _: &mut Options) -> Result<(), OptionError> {
        Ok(())
    }

    fn read_file(&self, path: &str) -> Result<Vec<u8>, String> {
        self.files.borrow().get(path).cloned().ok_or("No such file or directory".into())
    }

    fn has_files(&self) -> bool {
        true
    }

    fn open_file(&self, path: &str) -> Result<Option<Box<dyn ReadFile>>, String> {
        let bytes = self.files.borrow().get(path).cloned();
        Ok(bytes.map(|bytes| Box::new(Source { bytes, at: 0 }) as Box<dyn ReadFile>))
    }

    fn create_file(&self, path: &str) -> Result<Box<dyn WriteFile>, String> {
        let (files, room, is_slow) = (self.files.clone(), self.room.clone(), self.is_slow.clone());
        Ok(Box::new(Draft { path: path.into(), bytes: Vec::new(), files, room, is_slow }))
    }
}

fn host() -> &'static MemoryHost {
    Box::leak(Box::default())
}

/// A store with keys of all kinds in several databases, and the host that it saves to.
fn filled() -> (Harness, &'static MemoryHost) {
    let host = host();
    let mut harness = Harness::on(host);
    harness.run("FUNCTION LOAD \"#!lua name=lib\\nredis.register_function('f', function() return 1 end)\"");
    for number in 0..300 {
        harness.run(&format!("SET key:{number} value:{number}"));
        harness.run(&format!("RPUSH list {number} text:{number}"));
        harness.run(&format!("SADD set member:{number}"));
        harness.run(&format!("HSET hash field:{number} {number}"));
        harness.run(&format!("ZADD zset {number}.5 member:{number}"));
        harness.run(&format!("XADD stream {}-1 name {number}", number + 1));
    }
    harness.run("XGROUP CREATE stream group 5-1");
    harness.run("XREADGROUP GROUP group alice COUNT 3 STREAMS stream >");
    harness.run("PEXPIREAT key:0 1900000000000");
    harness.run("SELECT 7");
    harness.run("SADD small a b c");
    harness.run("SADD numbers 1 2 3");
    harness.run("SELECT 0");
    (harness, host)
}

fn digest(harness: &mut Harness) -> String {
    harness.run("DEBUG DIGEST")
}

#[test]
fn what_is_saved_is_loaded() {
    let (mut harness, host) = filled();
    let digest = digest(&mut harness);
    harness.at_ms(1_700_000_000_000);
    harness.expect(&[("SAVE", "+OK"), ("LASTSAVE", ":1700000000")]);
    assert_eq!(harness.store.unsaved_changes(), 0);
    let mut other = Harness::on(host);
    other.at_ms(1_700_000_000_000);
    other.store.load_at_start().unwrap();
    assert_eq!(self::digest(&mut other), digest);
    other.expect(&[("PEXPIRETIME key:0", ":1900000000000"), ("FCALL f 0", ":1")]);
    assert_eq!(other.store.saves.loaded_keys, 307);
    // A day too late for one of the keys.
    let mut late = Harness::on(host);
    late.at_ms(1_900_000_000_001);
    late.store.load_at_start().unwrap();
    late.expect(&[("EXISTS key:0", ":0"), ("DBSIZE", ":304")]);
    assert_eq!((late.store.saves.loaded_keys, late.store.saves.expired_keys), (306, 1));
    // Both dialects load; without files there is nothing to do.
    for dialect in [Dialect::Redis70, Dialect::Redis72] {
        let mut file = Vec::new();
        let written = harness.store.export(dialect, |bytes| -> Outcome {
            file.extend_from_slice(bytes);
            Ok(())
        });
        written.unwrap();
        host.files.borrow_mut().insert("dump.rdb".to_string(), file);
        let mut other = Harness::on(host);
        other.store.load_at_start().unwrap();
        assert_eq!(self::digest(&mut other), digest);
    }
    Harness::new().store.load_at_start().unwrap();
}

#[test]
fn a_checksum_is_left_out_or_not_looked_at_where_nobody_wants_it() {
    let host = host();
    let sum = || host.files.borrow()["dump.rdb"].last_chunk::<8>().copied().unwrap();
    let loads = |checks| {
        let mut harness = Harness::on(host);
        harness.store.options.rdbchecksum = checks;
        harness.store.load_at_start().is_ok()
    };
    let mut harness = Harness::on(host);
    harness.expect(&[("SET k v", "+OK"), ("SAVE", "+OK")]);
    assert_ne!(sum(), [0; 8]);
    assert!(loads(true) && loads(false));
    *host.files.borrow_mut().get_mut("dump.rdb").unwrap().last_mut().unwrap() ^= 1;
    assert!(!loads(true) && loads(false));
    harness.store.options.rdbchecksum = false;
    harness.expect(&[("SAVE", "+OK")]);
    assert_eq!(sum(), [0; 8]);
    assert!(loads(true) && loads(false));
}

#[test]
fn without_files_there_is_a_clear_error() {
    let mut harness = Harness::new();
    let error = format!("-{}", String::from_utf8_lossy(&NO_FILES.0));
    harness.expect(&[("SAVE", &error), ("BGSAVE", &error), ("BGSAVE x", "-ERR syntax error")]);
    assert!(harness.run("SHUTDOWN SAVE").starts_with("-ERR Errors trying to SHUTDOWN"));
    assert_eq!(harness.store.shutdown, None);
    harness.run("CONFIG SET save \"1 1\"");
    harness.run("SET k v");
    assert_eq!(harness.store.next_save_ns(), None);
    harness.run("SHUTDOWN");
    assert_eq!(harness.store.shutdown, Some(0));
}

/// Saves all data if that is due.
fn save(harness: &mut Harness) {
    harness.store.save_if_due();
    // It is begun in one turn and written in others.
    (0..4).for_each(|_| harness.store.copy_slice());
}

#[test]
fn a_save_that_is_slow_on_purpose_keeps_nobody_waiting() {
    let host = host();
    let mut harness = Harness::on(host);
    harness.run("CONFIG SET rdb-key-save-delay 1000000");
    harness.run("MSET a 1 b 2 c 3");
    harness.expect(&[("BGSAVE", "+Background saving started")]);
    let mut took_ns = 0;
    loop {
        (0..1000).for_each(|_| save(&mut harness));
        let Some(resumes_ns) = harness.store.replication_deadline_ns() else { break };
        assert!(harness.run("INFO persistence").contains("rdb_bgsave_in_progress:1"));
        took_ns = resumes_ns;
        harness.store.now.monotonic_ns = took_ns;
    }
    assert_eq!((took_ns, host.files.borrow().len()), (3 * SECOND_NS, 1));
    assert!(harness.run("INFO persistence").contains("rdb_bgsave_in_progress:0"));
}

#[test]
fn save_points_are_reached_and_failures_refuse_writes() {
    let host = host();
    let mut harness = Harness::on(host);
    harness.run("CONFIG SET save \"100 1 10 3\"");
    assert_eq!(harness.store.next_save_ns(), None, "nothing has changed");
    harness.run("SET a 1");
    assert_eq!(harness.store.next_save_ns(), Some(100 * SECOND_NS));
    harness.run("MSET b 1 c 1");
    assert_eq!(harness.store.next_save_ns(), Some(10 * SECOND_NS));
    harness.store.now.monotonic_ns = 10 * SECOND_NS - 1;
    save(&mut harness);
    assert!(host.files.borrow().is_empty());
    harness.store.now.monotonic_ns = 10 * SECOND_NS;
    save(&mut harness);
    assert_eq!(host.files.borrow().len(), 1);
    assert_eq!((harness.store.next_save_ns(), harness.store.unsaved_changes()), (None, 0));
    host.room.set(Some(20));
    harness.expect(&[("SET d 1", "+OK"), ("BGSAVE", "+Background saving started")]);
    harness.expect(&[("BGSAVE", "-ERR Background save already in progress")]);
    save(&mut harness);
    assert!(harness.run("SET e 1").starts_with("-MISCONF Redis is configured to save RDB snapshots"));
    assert!(harness.run("INFO persistence").contains("rdb_last_bgsave_status:err"));
    harness.expect(&[("GET d", "$1 1"), ("CONFIG SET stop-writes-on-bgsave-error no", "+OK"), ("SET e 1", "+OK")]);
    harness.run("CONFIG SET stop-writes-on-bgsave-error yes");
    assert_eq!(harness.run("SAVE"), "-ERR");
    assert!(harness.run("SHUTDOWN").starts_with("-ERR Errors trying to SHUTDOWN"));
    assert!(harness.store.next_save_ns() >= Some(15 * SECOND_NS), "not at once again");
    host.room.set(None);
    harness.expect(&[("SAVE", "+OK"), ("SET f 1", "+OK")]);
    host.room.set(Some(20));
    harness.run("SHUTDOWN FORCE");
    assert_eq!(harness.store.shutdown, Some(0));
}

/// The thread that brings a file to its place would put it over the one that says that all is gone.
#[test]
fn what_is_flushed_while_a_file_is_on_its_way_does_not_come_back() {
    let host = host();
    let mut harness = Harness::on(host);
    harness.expect(&[("CONFIG SET save \"100 1\"", "+OK"), ("SET k v", "+OK")]);
    host.is_slow.set(true);
    harness.expect(&[("BGSAVE", "+Background saving started")]);
    save(&mut harness);
    harness.expect(&[("FLUSHALL", "+OK")]);
    assert!(host.files.borrow().is_empty(), "nothing is written while the other one is on its way");
    host.is_slow.set(false);
    harness.store.end_saving();
    save(&mut harness);
    harness.store.end_saving();
    harness.expect(&[("SET unsaved 1", "+OK")]);
    let mut again = Harness::on(host);
    again.store.load_at_start().unwrap();
    again.expect(&[("DBSIZE", ":0")]);
}

#[test]
fn what_is_flushed_does_not_come_back() {
    let host = host();
    let mut harness = Harness::on(host);
    harness.run("SET k v");
    harness.run("SAVE");
    harness.run("FLUSHALL");
    let load = || {
        let mut harness = Harness::on(host);
        harness.store.load_at_start().unwrap();
        harness.run("DBSIZE")
    };
    assert_eq!(load(), ":1", "without save points nothing is saved by itself");
    harness.run("CONFIG SET save \"3600 1\"");
    harness.run("FLUSHALL");
    assert_eq!(load(), ":0");
    assert_eq!(harness.store.unsaved_changes(), 0);
}

#[test]
fn empty_collections_of_old_files_are_left_out() {
    let host = host();
    // A set, a hash, a list and a sorted set.
    let file =
        b"REDIS0010\xfe\x00\x02\x01a\x00\x04\x01b\x00\x01\x01c\x00\x05\x01d\x00\x00\x01k\x01v\xff\0\0\0\0\0\0\0\0";
    host.files.borrow_mut().insert("dump.rdb".to_string(), file.to_vec());
    let mut harness = Harness::on(host);
    harness.store.load_at_start().unwrap();
    harness.expect(&[("DBSIZE", ":1"), ("GET k", "$1 v")]);
}

/// Redis 7.4 says in cluster mode how many keys each slot has.
#[test]
fn sizes_of_slots_are_passed_over() {
    let host = host();
    let file = b"REDIS0012\xfe\x00\xfb\x02\x00\xf4\x05\x02\x00\x00\x01a\x01v\x00\x01b\x01v\xff\0\0\0\0\0\0\0\0";
    host.files.borrow_mut().insert("dump.rdb".to_string(), file.to_vec());
    let mut harness = Harness::on(host);
    harness.store.load_at_start().unwrap();
    harness.expect(&[("MGET a b", "*2 $1 v $1 v")]);
}

#[test]
fn faults_of_a_file_are_told_with_their_place() {
    let host = host();
    let fault = |bytes: &[u8]| {
        host.files.borrow_mut().insert("dump.rdb".to_string(), bytes.to_vec());
        Harness::on(host).store.load_at_start().unwrap_err()
    };
    for (bytes, why) in [
        (&b""[..], "at byte 0: the file ends too early"),
        (b"hello, world", "at byte 0: this is no dump file"),
        (b"REDIS0099\xff", "at byte 0: this dump file is of version 99"),
        (b"REDIS0010\xfe\x00\x00\x01k\x01v", "at byte 16: the file ends too early"),
        (b"REDIS0010\xfe\x10", "at byte 0: the file has more than 16 databases"),
        (b"REDIS0010\xfe\x00\x00\x01k\x01v\x00\x01k\x01v", "at byte 16: the key 'k' is there twice"),
        (b"REDIS0010\xfe\x00\x07\x01k\x01\x00", "at byte 11: a value belongs to the module type AAAAAAAAA"),
        (b"REDIS0010\xfe\x00\xf7\x01\x02\x00\x00", "at byte 11: the file has data of the module type"),
        (b"REDIS0010\xfe\x00\x0a\x01k\x02ab", "at byte 11: ERR Bad data format"),
        (b"REDIS0010\xfe\x00\xff12345678", "at byte 11: the checksum is wrong"),
        (b"REDIS0010\xf5\x01x", "at byte 0: ERR Missing library metadata"),
    ] {
        let text = fault(bytes);
        assert!(text.contains(why), "{}: {text}", bytes.escape_ascii());
    }
}

fn load_aof(host: &'static MemoryHost, cut_off: CutOff) -> (Harness, Result<Loaded, String>) {
    let mut harness = Harness::on(host);
    let result = harness.store.load_aof_dir("dir", "a.manifest", cut_off, &mut |_, _| {});
    harness.store.sessions.push(Some(Box::new(crate::Session::new(1, String::new(), String::new(), true, 0))));
    (harness, result)
}

fn requests(lines: &[&str]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for line in lines {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        kayvee_resp::encode(words.into_iter(), &mut bytes).unwrap();
    }
    bytes
}

#[test]
fn append_only_files_are_loaded_in_order() {
    let (mut saved, host) = filled();
    saved.run("SAVE");
    let mut base = host.files.borrow_mut().remove("dump.rdb").unwrap();
    // One that is first a dump file and then requests.
    base.extend(requests(&["SET key:1 changed"]));
    let mut last = b"#TS:1700000000\r\n".to_vec();
    last.extend(requests(&[
        "SELECT 3",
        "SET a 1",
        "INCR a",
        "MULTI",
        "INCR a",
        "SELECT 4",
        "SET b 1",
        "EXEC",
        "SELECT 0",
        "DEL list",
        // It had expired, and was still there when it was used for the last time.
        "SET late 5 PXAT 1000",
        "INCR late",
        "HSET key:1 wrong type",
        // A script that made it live longer after its time.
        "HSET session f v",
        "EVAL redis.call('expireat',KEYS[1],ARGV[1]) 1 session 1000",
        "EVAL redis.call('expireat',KEYS[1],ARGV[1]) 1 session 1600000100",
        "XADD deliveries 1-1 f v",
        "XGROUP CREATE deliveries group 0",
    ]));
    // A second before now, as redis-server writes XREADGROUP down.
    let delivery =
        format!("XCLAIM deliveries group c 0 1-1 TIME {} RETRYCOUNT 3 FORCE JUSTID LASTID 1-1", START_MS - 1000);
    last.extend(requests(&[&delivery]));
    let cut = requests(&["MULTI", "SET c 1", "SET d 1"]);
    let manifest = "file base seq 1 type b\nfile i1 seq 1 type i\nfile i2 seq 2 type i\n";
    let put = |name: &str, bytes: &[u8]| _ = host.files.borrow_mut().insert(name.to_string(), bytes.to_vec());
    put("dir/a.manifest", manifest.as_bytes());
    put("dir/base", &base);
    put("dir/i1", &requests(&["SELECT 0", "SET key:2 changed"]));
    put("dir/i2", &[&last[..], &cut].concat());
    let (mut harness, loaded) = load_aof(host, CutOff::LeaveOut);
    let expected = Loaded {
        keys: 307,
        functions: 1,
        requests: 16,
        failed_requests: 1,
        cut_bytes: cut.len() as u64,
        ..Loaded::default()
    };
    assert_eq!(loaded, Ok(expected));
    harness.expect(&[
        ("MGET key:1 key:2 key:3", "*3 $7 changed $7 changed $7 value:3"),
        ("EXISTS list late c d", ":0"),
        ("TTL session", ":100"),
        ("XPENDING deliveries group - + 9", "*1 *4 $3 1-1 $1 c :1000 :3"),
        ("SELECT 3", "+OK"),
        ("GET a", "$1 3"),
        ("SELECT 4", "+OK"),
        ("GET b", "$1 1"),
    ]);
    let end = last.len();
    let refused = load_aof(host, CutOff::Refuse).1.unwrap_err();
    assert_eq!(refused, format!("dir/i2: at byte {end}: the file ends within a request or transaction"));
    // Only the last file may have been cut off.
    put("dir/i1", &requests(&["SET key:2 changed"])[..20]);
    assert!(load_aof(host, CutOff::LeaveOut).1.unwrap_err().starts_with("dir/i1: at byte 0: the file ends within"));
    for (bytes, why) in [
        (requests(&["NONSENSE 1"]), "at byte 0: unknown command 'NONSENSE'"),
        (requests(&["SET a"]), "at byte 0: unknown command 'SET'"),
        (requests(&["PING", "EXEC"]), "at byte 14: EXEC without MULTI"),
        (requests(&["SELECT 16"]), "at byte 0: the file has more than 16 databases"),
        (b"SET a b\r\n".to_vec(), "at byte 0: expected a request, got 'S'"),
        (b"*1\r\n:4\r\n".to_vec(), "at byte 0: expected '$', got ':'"),
    ] {
        put("dir/i1", &bytes);
        let error = load_aof(host, CutOff::LeaveOut).1.unwrap_err();
        assert!(error.starts_with(&format!("dir/i1: {why}")), "{error}");
    }
    host.files.borrow_mut().remove("dir/i1");
    assert_eq!(load_aof(host, CutOff::LeaveOut).1.unwrap_err(), "dir/i1: there is no such file");
}

/// Redis writes `MAXLEN ~ 1 LIMIT 10` down as `MAXLEN = 1 LIMIT 10`, with the length that it came to.
#[test]
fn what_redis_has_trimmed_roughly_is_loaded() {
    let host = host();
    let put = |name: &str, bytes: &[u8]| _ = host.files.borrow_mut().insert(name.to_string(), bytes.to_vec());
    put("dir/a.manifest", b"file i1 seq 1 type i\n");
    put(
        "dir/i1",
        &requests(&[
            "XADD s MAXLEN = 1 LIMIT 10 1-1 f v",
            "XADD s MINID = 1-1 LIMIT 10 2-1 f v",
            "XADD t 1-1 f v",
            "XADD t 2-1 f v",
            "XTRIM t MAXLEN = 1 LIMIT 0",
            "XTRIM t MINID = 3-0 LIMIT 10",
        ]),
    );
    let (mut harness, loaded) = load_aof(host, CutOff::Refuse);
    assert_eq!(loaded.unwrap().failed_requests, 0);
    harness.expect(&[
        ("XLEN s", ":2"),
        ("XLEN t", ":0"),
        ("XTRIM s MAXLEN = 1 LIMIT 10", "-ERR syntax error, LIMIT cannot be used without the special ~ option"),
    ]);
}

/// No bytes of a file make loading panic, go on for ever or take memory that the file cannot need.
#[test]
fn mutated_files_do_no_harm() {
    let (mut harness, host) = filled();
    harness.run("DEL key:0");
    harness.run("SAVE");
    let dump = host.files.borrow_mut().remove("dump.rdb").unwrap();
    let manifest = b"file i1 seq 1 type i\n".to_vec();
    host.files.borrow_mut().insert("dir/a.manifest".to_string(), manifest.clone());
    let aof = requests(&["SELECT 1", "SET a 1", "MULTI", "RPUSH l a b", "EXEC", "XADD s 1-1 a b", "FUNCTION FLUSH"]);
    for seed in 0..400 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut file = if rng.bool() { dump.clone() } else { aof.clone() };
        for _ in 0..rng.usize(1..4) {
            let most = if rng.bool() { 200 } else { usize::MAX };
            let at = rng.usize(..file.len().clamp(1, most));
            match rng.u8(..4) {
                0 => file[at] = rng.u8(..),
                1 => file[at] ^= 1 << rng.u8(..8),
                2 => file.insert(at, rng.u8(..)),
                _ => file.truncate(at.max(1)),
            }
        }
        // Without a checksum, so that what is wrong does not end there.
        if kayvee_rdb::file::is_dump(&file) && file.len() > 8 {
            let end = file.len() - 8;
            file[end..].fill(0);
        }
        host.files.borrow_mut().insert("dir/i1".to_string(), file);
        let (mut harness, _) = load_aof(host, CutOff::LeaveOut);
        // What has been loaded can be looked at.
        digest(&mut harness);
    }
}

/// Half of what a master sends is no data to save: the file would be worse than the one before.
#[test]
fn what_is_being_loaded_from_a_master_is_not_saved() {
    let (mut harness, host) = filled();
    harness.expect(&[("CONFIG SET save \"1 1\"", "+OK"), ("SAVE", "+OK")]);
    let before = host.files.borrow()["dump.rdb"].clone();
    harness.expect(&[("BGSAVE", "+Background saving started")]);
    harness.store.copy_slice();
    harness.run("REPLICAOF 10.0.0.1 6379");
    let dial = harness.store.next_dial().unwrap();
    // The one client is the master from now on.
    assert!(harness.store.dialed(&dial, 0));
    let id = "0123456789".repeat(4);
    let said = format!("+PONG\r\n+OK\r\n+OK\r\n+FULLRESYNC {id} 5\r\n$1000\r\nREDIS0011\u{0}\u{1}k\u{1}v");
    harness.store.hear_link(0, said.as_bytes());
    assert!(harness.store.is_silent_link(0) && harness.store.dbs[0].len() == 1);
    save(&mut harness);
    assert!(harness.store.save_at_end(ShutdownOn { save: true, ..ShutdownOn::default() }));
    assert_eq!(host.files.borrow()["dump.rdb"], before);
}
