//! Data from redis-server and back: what it has written is taken over, and what is written here is taken by it, key by key
//! the same.
//!
//! These tests start redis-server and the release build, so `./kayvee test dump` runs them:
//! `cargo build --release && cargo test -p kayvee-cli --test dump -- --ignored`.

mod built;
mod servers;

use kayvee_testing::random::Random;
use servers::{Folder, PATIENCE, POLL_INTERVAL, Server, State, expect_same, fill};
use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::{fs::MetadataExt, process::ExitStatusExt},
    path::Path,
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

fn kayvee(arguments: &[&str]) -> Output {
    Command::new(built::kayvee()).args(arguments).output().unwrap()
}

fn succeed(arguments: &[&str]) -> String {
    let output = kayvee(arguments);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "kayvee {arguments:?}: {out}{err}");
    format!("{out}{err}")
}

fn fail(arguments: &[&str]) -> String {
    let output = kayvee(arguments);
    assert_eq!(output.status.code(), Some(1), "kayvee {arguments:?}: {}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

impl Server {
    fn end(mut self, signal: &str) -> Option<i32> {
        Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
        self.child.wait().unwrap().code()
    }
}

/// Writes what is on a disk to a dump file and has redis-server load that.
fn state_in_redis(disk: &str) -> State {
    let folder = Folder::new("back");
    succeed(&["export", "--disk", disk, "-o", &folder.path("dump.rdb")]);
    Server::redis(&folder, &[]).state()
}

#[test]
#[ignore = "starts redis-server and the release build"]
fn dump_files_of_redis_load_here_and_ours_there() {
    for seed in 0..4 {
        let folder = Folder::new(&format!("dump-{seed}"));
        let (dump, disk) = (folder.path("dump.rdb"), folder.path("kv.disk"));
        let mut redis = Server::redis(&folder, if seed == 3 { &["--rdbcompression", "no"] } else { &[] });
        fill(&mut redis, seed);
        redis.expect(&["SAVE"], "+OK");
        let state = redis.state();
        drop(redis);
        // At its start, and again what it has saved itself.
        let mut here = Server::kayvee(&folder, &[]);
        expect_same(&here.state(), &state, &format!("seed {seed}, here"));
        here.expect(&["SAVE"], "+OK");
        drop(here);
        expect_same(&Server::kayvee(&folder, &[]).state(), &state, &format!("seed {seed}, saved here"));
        // What Kayvee itself saves is of Redis 7.2; a disk in between makes it one for 7.0.
        let said = succeed(&["import", &dump, "--disk", &disk]);
        assert!(said.contains(&format!("{} keys in 3 databases, 1 libraries", state.len() - 2)), "{said}");
        expect_same(&state_in_redis(&disk), &state, &format!("seed {seed}, back there"));
    }
}

#[test]
#[ignore = "starts redis-server and the release build"]
fn append_only_files_of_redis_are_taken_over() {
    for preamble in ["yes", "no"] {
        let folder = Folder::new(&format!("aof-{preamble}"));
        let (aof, disk) = (folder.path("appendonlydir"), folder.path("kv.disk"));
        let options = ["--appendonly", "yes", "--aof-use-rdb-preamble", preamble, "--aof-timestamp-enabled", "yes"];
        let mut redis = Server::redis(&folder, &options);
        fill(&mut redis, 10);
        redis.call(&["BGREWRITEAOF"]);
        let deadline = Instant::now() + PATIENCE;
        while !redis.call(&["INFO", "persistence"]).to_string().contains("aof_rewrite_in_progress:0\\r\\n") {
            assert!(Instant::now() < deadline, "the rewrite does not end");
            thread::sleep(POLL_INTERVAL);
        }
        redis.expect(&["FLUSHDB"], "+OK");
        fill(&mut redis, 11);
        for words in [&["MULTI"][..], &["SET", "a", "1"], &["INCR", "a"], &["EXEC"], &["SWAPDB", "0", "5"]] {
            redis.call(words);
        }
        // It had expired when the file is read, and not when it was used.
        for words in [&["SET", "late", "5", "PX", "1"][..], &["INCR", "late"]] {
            redis.call(words);
        }
        thread::sleep(Duration::from_millis(2));
        redis.expect(&["EXISTS", "late"], ":0");
        let state = redis.state();
        assert_eq!(redis.end("-TERM"), Some(0));
        succeed(&["import", &aof, "--disk", &disk]);
        expect_same(&state_in_redis(&disk), &state, &format!("a folder, preamble {preamble}"));
        // As Redis before 7 kept them: one file, with a dump in front or not.
        let kind = if preamble == "yes" { "rdb" } else { "aof" };
        let parts = [format!("{aof}/appendonly.aof.2.base.{kind}"), format!("{aof}/appendonly.aof.2.incr.aof")];
        let single = parts.map(|part| fs::read(part).unwrap()).concat();
        let (single_aof, end) = (folder.path("appendonly.aof"), single.len());
        fs::write(&single_aof, &single).unwrap();
        succeed(&["import", &single_aof, "--disk", &disk, "--replace"]);
        expect_same(&state_in_redis(&disk), &state, &format!("one file, preamble {preamble}"));
        // A crash has cut off the last request: all before it counts.
        fs::write(&single_aof, [&single[..], b"*3\r\n$3\r\nSET\r\n$1\r\nx\r\n$5\r\nva"].concat()).unwrap();
        let said = succeed(&["import", &single_aof, "--disk", &disk, "--replace"]);
        assert!(said.contains("the last 26 bytes are no whole request or transaction"), "{said}");
        expect_same(&state_in_redis(&disk), &state, "one file that was cut off");
        fs::write(&single_aof, [&single[..], b"nonsense"].concat()).unwrap();
        let said = fail(&["import", &single_aof, "--disk", &disk, "--replace"]);
        assert!(said.contains(&format!("appendonly.aof: at byte {end}: expected a request, got 'n'")), "{said}");
    }
}

/// A redis.conf with `appendonly yes` is all that somebody has who changes from redis-server.
#[test]
#[ignore = "starts redis-server and the release build"]
fn append_only_files_are_taken_over_at_the_first_start() {
    let folder = Folder::new("first");
    let mut redis = Server::redis(&folder, &["--appendonly", "yes"]);
    fill(&mut redis, 20);
    let state = redis.state();
    assert_eq!(redis.end("-TERM"), Some(0));
    let mut here = Server::kayvee(&folder, &["--appendonly", "yes"]);
    expect_same(&here.state(), &state, "at the first start");
    here.expect(&["SET", "more", "1"], "+OK");
    let state = here.state();
    assert_eq!(here.end("-TERM"), Some(0));
    // From now on the log counts.
    fs::remove_dir_all(folder.path("appendonlydir")).unwrap();
    let mut here = Server::kayvee(&folder, &["--appendonly", "yes"]);
    expect_same(&here.state(), &state, "at the second start");
}

#[test]
#[ignore = "starts the release build"]
fn an_import_that_fails_leaves_what_was_there() {
    let folder = Folder::new("fails");
    let (dump, disk, bad) = (folder.path("dump.rdb"), folder.path("kv.disk"), folder.path("bad.rdb"));
    let mut server = Server::kayvee(&folder, &[]);
    server.expect(&["SET", "key", "value"], "+OK");
    server.expect(&["SAVE"], "+OK");
    drop(server);
    let whole = fs::read(&dump).unwrap();
    fs::write(&bad, &whole[..whole.len() - 9]).unwrap();
    let said = fail(&["import", &bad, "--disk", &disk]);
    assert!(said.contains("bad.rdb: at byte") && said.contains("the file ends too early"), "{said}");
    assert!(!Path::new(&disk).exists(), "a disk that was made for it is gone");
    succeed(&["import", &dump, "--disk", &disk]);
    assert!(fail(&["import", &dump, "--disk", &disk]).contains("it holds data already"), "it is not overwritten");
    let len = || fs::metadata(&disk).unwrap().len();
    let before = len();
    let larger = format!("{disk}:{}", before + (64 << 20));
    assert!(fail(&["import", &dump, "--disk", &larger]).contains("it holds data already"));
    assert_eq!(len(), before, "and does not grow");
    fail(&["import", &bad, "--disk", &disk, "--replace"]);
    let said = succeed(&["export", "--disk", &disk, "-o", &folder.path("out.rdb")]);
    assert!(said.starts_with("exported 1 keys"), "{said}");
    assert!(fail(&["import", &folder.path("none"), "--disk", &disk]).contains("No such file or directory"));
    assert!(fail(&["import", &folder.path(""), "--disk", &disk]).contains("has no *.manifest"));
    // A file that is no disk is left alone.
    assert!(fail(&["import", &dump, "--disk", &bad, "--replace"]).contains("disk "));
    assert_eq!(fs::read(&bad).unwrap(), whole[..whole.len() - 9]);
    assert!(fail(&["export", "--disk", &bad, "-o", &folder.path("out.rdb")]).contains("disk "));
}

/// Fields of hashes that expire have a form from 7.4 on.
#[test]
#[ignore = "starts redis-server and the release build"]
fn what_an_older_redis_does_not_know_is_not_written_for_it() {
    let folder = Folder::new("older");
    let (dump, disk, out) = (folder.path("dump.rdb"), folder.path("kv.disk"), folder.path("out.rdb"));
    let mut server = Server::kayvee(&folder, &[]);
    server.expect(&["HSET", "h", "f", "v"], ":1");
    server.expect(&["SAVE"], "+OK");
    import(&dump, &disk);
    let version_written = |more: &[&str]| {
        succeed(&[&["export", "--disk", &disk, "-o", &out], more].concat());
        String::from_utf8(fs::read(&out).unwrap()[..9].to_vec()).unwrap()
    };
    assert_eq!(version_written(&[]), "REDIS0010");
    server.expect(&["HPEXPIRE", "h", "100000000", "FIELDS", "1", "f"], "[:1]");
    server.expect(&["SAVE"], "+OK");
    succeed(&["import", &dump, "--disk", &disk, "--replace"]);
    assert_eq!(version_written(&[]), "REDIS0012");
    assert_eq!(version_written(&["--redis-version", "7.4"]), "REDIS0012");
    let said = fail(&["export", "--disk", &disk, "-o", &out, "--redis-version", "7.2"]);
    assert!(said.contains("fields of hashes expire"), "{said}");
}

/// Neither another import nor a store begins with a disk that is about to be put there.
#[test]
#[ignore = "starts the release build"]
fn the_place_of_a_new_disk_is_taken_while_an_import_writes() {
    let folder = Folder::new("place");
    let dumps = Dumps::write(&folder);
    let disk = folder.path("kv.disk");
    let mut writing = start_writing(&dumps.many.0, &disk);
    let send = |name: &str| Command::new("kill").args([name, &writing.id().to_string()]).status().unwrap();
    send("-STOP");
    for other in [&["import", &dumps.few.0, "--disk", &disk][..], &["log", "check", &disk]] {
        let said = fail(other);
        assert!(said.contains("in use by another program"), "{said}");
    }
    send("-CONT");
    assert!(writing.wait().unwrap().success());
    assert_eq!(digest_on(&disk, &folder), Some(dumps.many.1));
}

/// A disk without a size takes what it needs, and what has one all of that at once; so it is after another import.
#[test]
#[ignore = "starts the release build"]
fn imports_take_no_more_of_the_file_system_than_was_asked_for() {
    let folder = Folder::new("sparse");
    let (dump, sparse, full) = (folder.path("dump.rdb"), folder.path("sparse.disk"), folder.path("full.disk"));
    let mut server = Server::kayvee(&folder, &[]);
    server.expect(&["SET", "key", "value"], "+OK");
    server.expect(&["SAVE"], "+OK");
    let taken = |disk: &str| {
        let metadata = fs::metadata(disk).unwrap();
        (metadata.len() >> 20, (metadata.blocks() * 512) >> 20)
    };
    for (disk, replace) in [(&sparse, &[][..]), (&sparse, &["--replace"])] {
        succeed(&[&["import", &dump, "--disk", disk], replace].concat());
        let (len_mib, taken_mib) = taken(disk);
        assert!(len_mib == 16 << 10 && taken_mib < 256, "{len_mib} {taken_mib}");
    }
    for (disk, replace) in [(format!("{full}:64M"), &[][..]), (full.clone(), &["--replace"])] {
        succeed(&[&["import", &dump, "--disk", &disk], replace].concat());
        let (len_mib, taken_mib) = taken(&full);
        assert!(len_mib == 64 && (64..66).contains(&taken_mib), "{len_mib} {taken_mib}");
    }
}

/// The digest of what a disk holds, unless it is refused.
fn digest_on(disk: &str, folder: &Folder) -> Option<String> {
    let check = kayvee(&["log", "check", disk]);
    if !check.status.success() {
        let said = String::from_utf8_lossy(&check.stderr).into_owned();
        assert!(said.contains("the disk is blank"), "{said}");
        return None;
    }
    let mut server = Server::kayvee(folder, &["--appendonly", "yes", "--disk", disk]);
    Some(server.call(&["DEBUG", "DIGEST"]).to_string())
}

/// Two dump files, of a little and of a lot of data, with their digests.
struct Dumps {
    few: (String, String),
    many: (String, String),
}

impl Dumps {
    fn write(folder: &Folder) -> Dumps {
        const KEYS: &str = "4000";
        const VALUE_BYTES: &str = "5000";
        let mut server = Server::kayvee(folder, &[]);
        let mut save = |name: &str| {
            server.expect(&["SAVE"], "+OK");
            fs::rename(folder.path("dump.rdb"), folder.path(name)).unwrap();
            let digest = server.call(&["DEBUG", "DIGEST"]).to_string();
            server.expect(&["DEBUG", "POPULATE", KEYS, "key", VALUE_BYTES], "+OK");
            (folder.path(name), digest)
        };
        Dumps { few: save("few.rdb"), many: save("many.rdb") }
    }
}

/// A file that has not been put in its place.
fn unfinished(folder: &Folder) -> Option<String> {
    let mut paths = fs::read_dir(&folder.0).unwrap().map(|entry| entry.unwrap().path().display().to_string());
    paths.find(|path| path.ends_with(".tmp"))
}

fn import(source: &str, disk: &str) {
    succeed(&["import", source, "--disk", disk, "--replace"]);
}

/// An import whatever the disk holds, which has something to write from now on.
fn start_writing(source: &str, disk: &str) -> Child {
    let mut command = Command::new(built::kayvee());
    command.args(["import", source, "--disk", disk, "--replace"]).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut running = command.spawn().unwrap();
    let mut said = BufReader::new(running.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(said.any(|line| line.contains("writing the disk")), "it fails");
    running
}

/// Imports a lot again and again, each time ends that with SIGKILL at another moment of its writing, and has `look` see what
/// is left.
fn kill_imports(dumps: &Dumps, disk: &str, mut before: impl FnMut(u32), mut look: impl FnMut(u32)) {
    const KILLS: u32 = 20;
    let kills: u32 = std::env::var("KAYVEE_KILLS").map_or(KILLS, |kills| kills.parse().expect("a number"));
    import(&dumps.many.0, disk);
    let mut whole = start_writing(&dumps.many.0, disk);
    let begin = Instant::now();
    assert!(whole.wait().unwrap().success());
    let took = begin.elapsed();
    for kill in 0..kills {
        before(kill);
        let mut running = start_writing(&dumps.many.0, disk);
        thread::sleep(took * kill / kills);
        // It may be through already.
        let _ = running.kill();
        running.wait().unwrap();
        look(kill);
    }
    import(&dumps.many.0, disk);
}

/// However early or late an import is killed, its disk holds what it held before, or all that was imported.
#[test]
#[ignore = "starts the release build"]
fn a_killed_import_leaves_what_was_there_or_all() {
    let folder = Folder::new("killed");
    let dumps = Dumps::write(&folder);
    let disk = folder.path("kv.disk");
    let spec = format!("{disk}:64M");
    // Over what is there, and on a disk that is new.
    let is_new = |kill| kill % 3 == 2;
    let before = |kill| {
        let _ = fs::remove_file(&disk);
        if !is_new(kill) {
            import(&dumps.few.0, &spec);
        }
    };
    let (mut whole, mut untouched, mut parts) = (0, 0, 0);
    let look = |kill| {
        // An empty file may have kept the place of one that was not there yet.
        let is_there = fs::metadata(&disk).is_ok_and(|found| found.len() > 0);
        let left = is_there.then(|| digest_on(&disk, &folder).expect("it is sound"));
        match left {
            Some(digest) if digest == dumps.many.1 => whole += 1,
            left => {
                assert_eq!(left, (!is_new(kill)).then(|| dumps.few.1.clone()), "kill {kill}");
                untouched += 1;
            }
        }
        // What was written until then nobody takes for a disk, unless it was about to get its name.
        if let Some(beside) = unfinished(&folder) {
            let digest = digest_on(&beside, &folder);
            assert!(digest.as_ref().is_none_or(|digest| *digest == dumps.many.1), "kill {kill}: {digest:?}");
            parts += u32::from(digest.is_none());
        }
    };
    kill_imports(&dumps, &spec, before, look);
    println!(
        "{whole} times all was there, {untouched} times what was there before; {parts} times a part beside it, refused"
    );
    assert_eq!(digest_on(&disk, &folder), Some(dumps.many.1), "the next one works");
}

/// Whoever ends one of these before it is through is told so, and finds nothing of it.
#[test]
#[ignore = "starts the release build"]
fn what_is_broken_off_leaves_nothing() {
    /// Enough to be written for a while.
    const TEXT_BYTES: usize = 64 << 20;
    let folder = Folder::new("broken-off");
    let (disk, new, dump, page) =
        (folder.path("kv.disk"), folder.path("new"), folder.path("dump.rdb"), folder.path("page"));
    let mut server = Server::kayvee(&folder, &[]);
    server.expect(&["DEBUG", "POPULATE", "20000", "key", "5000"], "+OK");
    server.expect(&["SAVE"], "+OK");
    drop(server);
    import(&dump, &disk);
    fs::create_dir(&page).unwrap();
    let mut text = Random::new(1).bytes(TEXT_BYTES);
    // Of what compresses a little.
    text.iter_mut().for_each(|byte| *byte &= 0x1f);
    fs::write(format!("{page}/page.txt"), text).unwrap();
    for arguments in [
        &["import", &dump, "--disk", &new][..],
        &["export", "--disk", &disk, "-o", &new],
        &["site", "pack", &page, "-o", &new],
    ] {
        for (name, number) in [("-INT", 2), ("-TERM", 15), ("-HUP", 1)] {
            // Whoever runs the tests may ignore some of them.
            let mut command = Command::new("env");
            command.arg("--default-signal").arg(built::kayvee()).args(arguments);
            let mut running = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
            let deadline = Instant::now() + PATIENCE;
            while unfinished(&folder).is_none() {
                assert!(running.try_wait().unwrap().is_none() && Instant::now() < deadline, "{arguments:?}");
            }
            Command::new("kill").args([name, &running.id().to_string()]).status().unwrap();
            let output = running.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.signal(), Some(number), "{arguments:?}: {said}");
            assert!(said.ends_with("kayvee: broken off\n"), "{arguments:?}: {said}");
            assert_eq!((unfinished(&folder), Path::new(&new).exists()), (None, false), "{arguments:?}");
        }
    }
}

/// A file as a block device.
struct LoopDevice(String);

impl LoopDevice {
    fn make(file: &str) -> Option<LoopDevice> {
        let made = Command::new("losetup").args(["--find", "--show", file]).output().ok()?;
        made.status.success().then(|| LoopDevice(String::from_utf8(made.stdout).unwrap().trim_end().to_string()))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

/// On a device data are erased before others take their place: an import that is killed leaves what it held, a blank disk, or
/// all, and never a part.
#[test]
#[ignore = "starts the release build"]
fn a_killed_import_leaves_no_part_on_a_device() {
    let folder = Folder::new("device");
    let file = folder.path("device");
    fs::File::create(&file).unwrap().set_len(64 << 20).unwrap();
    let Some(device) = LoopDevice::make(&file) else {
        println!("skipped: a block device for the test needs losetup and root");
        return;
    };
    let dumps = Dumps::write(&folder);
    let (mut whole, mut untouched, mut blank) = (0, 0, 0);
    let look = |kill| match digest_on(&device.0, &folder) {
        Some(digest) if digest == dumps.many.1 => whole += 1,
        Some(digest) => {
            assert_eq!(digest, dumps.few.1, "kill {kill}");
            untouched += 1;
        }
        None => blank += 1,
    };
    kill_imports(&dumps, &device.0, |_| import(&dumps.few.0, &device.0), look);
    println!("{whole} times all was there, {untouched} times what was there before, {blank} times nothing");
    assert_eq!(digest_on(&device.0, &folder), Some(dumps.many.1), "the next one works");
}

#[test]
#[ignore = "starts the release build"]
fn the_process_saves_and_loads_as_redis_does() {
    let folder = Folder::new("saves");
    let dump = folder.path("dump.rdb");
    let mut server = Server::kayvee(&folder, &["--save", "1 2"]);
    server.expect(&["SET", "a", "1"], "+OK");
    server.expect(&["SET", "b", "1"], "+OK");
    let deadline = Instant::now() + PATIENCE;
    while !Path::new(&dump).exists() {
        assert!(Instant::now() < deadline, "the save point is not reached");
        thread::sleep(POLL_INTERVAL);
    }
    server.expect(&["SET", "c", "1"], "+OK");
    assert_eq!(server.end("-TERM"), Some(0), "it saves what is left");
    let mut server = Server::kayvee(&folder, &[]);
    server.expect(&["DBSIZE"], ":3");
    server.expect(&["SET", "d", "1"], "+OK");
    assert_eq!(server.end("-INT"), Some(0));
    let mut server = Server::kayvee(&folder, &["--shutdown-on-sigint", "nosave"]);
    server.expect(&["DBSIZE"], ":4");
    server.expect(&["SET", "e", "1"], "+OK");
    assert_eq!(server.end("-INT"), Some(0));
    let mut server = Server::kayvee(&folder, &["--save", ""]);
    server.expect(&["DBSIZE"], ":4");
    server.expect(&["SET", "e", "1"], "+OK");
    assert_eq!(server.end("-TERM"), Some(0), "without save points nothing is saved");
    let mut server = Server::kayvee(&folder, &["--save", ""]);
    server.expect(&["DBSIZE"], ":4");
    server.expect(&["SET", "f", "1"], "+OK");
    server.expect(&["BGSAVE"], "+Background saving started");
    let deadline = Instant::now() + PATIENCE;
    while !server.call(&["INFO", "persistence"]).to_string().contains("rdb_bgsave_in_progress:0") {
        assert!(Instant::now() < deadline, "the save does not end");
        thread::sleep(POLL_INTERVAL);
    }
    drop(server);
    let mut server = Server::kayvee(&folder, &[]);
    server.expect(&["DBSIZE"], ":5");
    drop(server);
    // What cannot be loaded is not passed over.
    fs::write(&dump, "REDIS0099").unwrap();
    let mut command = Command::new(built::kayvee());
    let output = command.args(["server", "--port", "0", "--unixsocket", &folder.path("socket"), "--dir"]);
    let output = output.arg(folder.path("")).stderr(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!output.status.success() && text.contains("this dump file is of version 99"), "{text}");
    assert_eq!(fs::read_to_string(&dump).unwrap(), "REDIS0099");
}
