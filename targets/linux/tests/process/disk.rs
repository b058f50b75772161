//! The log on a file: what comes back, and what is refused.

use crate::{Folder, PATIENCE, Server, WITHOUT_DUMPS, ask, ping, run};
use kayvee_testing::ports::free_port;
use nix::sys::signal::Signal;
use std::{fs, io::Read, net::TcpStream, os::unix::fs::PermissionsExt, time::Instant};

/// Starts a server that has to end before it serves, and returns what it said.
fn refused(options: &[&str]) -> String {
    let output = run(&[&WITHOUT_DUMPS[..], &["--port", &free_port().to_string()], options].concat());
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_disk_keeps_what_was_written() {
    let folder = Folder::new("disk");
    let disk = folder.path("kv.disk");
    let sized = format!("{disk}:8M");
    let always = ["--appendonly", "yes", "--appendfsync", "always", "--disk"];
    let server = Server::start(&[&always[..], &[&sized]].concat());
    let client = server.connect();
    assert_eq!(ask(&client, "SET a 1"), "+OK");
    assert_eq!(ask(&client, "RPUSH l 1 2 3"), ":3");
    assert!(refused(&[&always[..], &[&disk]].concat()).contains("kv.disk: it is in use by another program"));
    // Killed, so that nothing is written at the end.
    drop(server);
    // Larger from now on.
    let server = Server::start(&[&always[..], &[&format!("{disk}:16M")]].concat());
    let client = server.connect();
    assert_eq!(ask(&client, "INCR a"), ":2");
    assert_eq!(ask(&client, "LLEN l"), ":3");
    server.signal(Signal::SIGTERM);
    assert_eq!(server.end(), Some(0));
    assert_eq!(fs::metadata(&disk).unwrap().len(), 16 << 20);
    assert!(refused(&[&always[..], &[&sized]].concat()).contains("cannot be made smaller"));
    let cut = fs::File::options().write(true).open(&disk).unwrap();
    cut.set_len(4 << 20).unwrap();
    assert!(refused(&[&always[..], &[&disk]].concat()).contains("parts of it are gone"));
}

/// Damage to the last that a store wrote which has ended in good order is told.
#[test]
fn an_orderly_end_closes_the_log() {
    let folder = Folder::new("closed_disk");
    let disk = folder.path("kv.disk");
    let options = ["--appendonly", "yes", "--appendfsync", "always", "--disk", &format!("{disk}:8M")];
    let server = Server::start(&options);
    assert_eq!(ask(server.connect(), "SET a 1"), "+OK");
    server.signal(Signal::SIGTERM);
    assert_eq!(server.end(), Some(0));
    let mut bytes = fs::read(&disk).unwrap();
    let last = bytes.windows(4).rposition(|bytes| bytes == b"KvBt").expect("a batch");
    bytes[last + 70] ^= 1;
    fs::write(&disk, bytes).unwrap();
    assert!(refused(&options).contains("the log is damaged"));
}

#[test]
fn appendonly_alone_has_a_file_in_the_folder() {
    let folder = Folder::new("usual_disk");
    let options = ["--appendonly", "yes", "--dir", &folder.path("")];
    let server = Server::start(&options);
    assert_eq!(ask(server.connect(), "SET a 1"), "+OK");
    server.signal(Signal::SIGTERM);
    assert_eq!(server.end(), Some(0), "what is to be flushed once a second is flushed at the end");
    let file = fs::metadata(folder.path("kayvee.disk")).unwrap();
    assert_eq!(file.permissions().mode() & 0o777, 0o600);
    assert_eq!(ask(Server::start(&options).connect(), "STRLEN a"), ":1");
}

/// Sends a request and returns the text that is the reply.
fn text(mut stream: &TcpStream, request: &str) -> String {
    let head = ask(stream, request);
    let len: usize = head.strip_prefix('$').and_then(|len| len.parse().ok()).unwrap_or_else(|| panic!("{head}"));
    let mut bytes = vec![0; len + 2];
    stream.read_exact(&mut bytes).expect("a reply comes");
    String::from_utf8(bytes).unwrap()
}

/// Asks until the log has its beginning.
fn wait_for_log(client: &TcpStream) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let info = text(client, "INFO persistence");
        assert!(info.contains("aof_enabled:1") && info.contains("aof_last_bgrewrite_status:ok"), "{info}");
        if info.contains("aof_rewrite_in_progress:0") && info.contains("aof_rewrite_scheduled:0") {
            return;
        }
        assert!(Instant::now() < deadline, "the log never has its beginning: {info}");
    }
}

#[test]
fn a_log_is_switched_on_and_off_while_it_serves() {
    let folder = Folder::new("switched_on");
    let dir = folder.path("");
    let without = ["--dir", &dir, "--appendfsync", "always", "--enable-debug-command", "yes"];
    let with = [&without[..], &["--appendonly", "yes"]].concat();
    let server = Server::start(&without);
    let client = server.connect();
    assert_eq!(ask(&client, "DEBUG POPULATE 20000"), "+OK");
    assert_eq!(ask(&client, "CONFIG SET appendonly yes"), "+OK");
    assert_eq!(ask(&client, "SET during 1"), "+OK");
    wait_for_log(&client);
    assert_eq!(folder.names(), ["kayvee.disk"]);
    assert_eq!(ask(&client, "SET after 1"), "+OK");
    let other = Server::start(&without);
    let refused = ask(other.connect(), "CONFIG SET appendonly yes");
    assert!(refused.contains("kayvee.disk: it is in use by another program"), "{refused}");
    // Killed, so that nothing is written at the end.
    drop((server, other));
    let server = Server::start(&with);
    let client = server.connect();
    assert_eq!(ask(&client, "DBSIZE"), ":20002");
    assert_eq!((ask(&client, "DEL during"), ask(&client, "CONFIG SET appendonly no")), (":1".into(), "+OK".into()));
    // From here on it is as one that was started without.
    assert_eq!((ask(&client, "DEL after"), ask(&client, "SAVE")), (":1".into(), "+OK".into()));
    assert_eq!(folder.names(), ["dump.rdb", "kayvee.disk"]);
    drop(server);
    assert_eq!(ask(Server::start(&without).connect(), "DBSIZE"), ":20000");
    assert_eq!(ask(Server::start(&with).connect(), "DBSIZE"), ":20001", "the log as it was when it was closed");
}

/// The process has a second disk then, after the first one is closed.
#[test]
fn a_log_is_made_again() {
    let folder = Folder::new("made_again");
    let without = ["--dir", &folder.path(""), "--appendfsync", "always"];
    let server = Server::start(&without);
    let client = server.connect();
    for round in 0..3 {
        assert_eq!(ask(&client, "CONFIG SET appendonly yes"), "+OK");
        wait_for_log(&client);
        assert_eq!(ask(&client, &format!("SET round {round}")), "+OK");
        assert_eq!(ask(&client, "CONFIG SET appendonly no"), "+OK");
    }
    drop(server);
    let server = Server::start(&[&without[..], &["--appendonly", "yes"]].concat());
    assert_eq!(ask(server.connect(), "INCR round"), ":3");
}

/// Killed at whatever moment, what is in the log's place is what was there before, or the new log with all data.
#[test]
fn a_kill_leaves_the_old_log_or_the_new_one() {
    let folder = Folder::new("switched_on_and_killed");
    let dir = folder.path("");
    let without = ["--dir", &dir, "--appendfsync", "always", "--enable-debug-command", "yes", "--dbfilename", "none"];
    let with = [&without[..], &["--appendonly", "yes"]].concat();
    let mut old = ":0".to_string();
    for round in 0..8 {
        let server = Server::start(&without);
        let client = server.connect();
        let count = 5000 + round;
        assert_eq!(ask(&client, &format!("DEBUG POPULATE {count}")), "+OK");
        assert_eq!(ask(&client, "CONFIG SET appendonly yes"), "+OK");
        (0..round * 20).for_each(|_| ping(&client));
        drop(server);
        let found = ask(Server::start(&with).connect(), "DBSIZE");
        assert!(found == old || found == format!(":{count}"), "round {round}: {found} keys, {old} before");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1, "nothing is left of the other");
        old = found;
    }
}

#[test]
fn a_damaged_log_is_refused_and_left_as_it_is() {
    let folder = Folder::new("damaged");
    let disk = folder.path("kv.disk");
    let options = ["--appendonly", "yes", "--appendfsync", "always", "--disk", &format!("{disk}:8M")];
    let server = Server::start(&options);
    let client = server.connect();
    for _ in 0..50 {
        assert_eq!(ask(&client, &format!("SET a {}", "x".repeat(5000))), "+OK");
    }
    server.signal(Signal::SIGTERM);
    assert_eq!(server.end(), Some(0));
    let mut bytes = fs::read(&disk).unwrap();
    let needle = bytes.windows(100).position(|window| window == [b'x'; 100]).unwrap();
    bytes[needle + 10] ^= 1;
    fs::write(&disk, &bytes).unwrap();
    let said = refused(&options);
    assert!(said.contains("kv.disk: the log is damaged at byte"), "{said}");
    assert!(fs::read(&disk).unwrap() == bytes);
}

#[test]
fn a_full_disk_is_told_to_writers_alone() {
    let folder = Folder::new("full_disk");
    let options = ["--appendonly", "yes", "--appendfsync", "always", "--disk", &folder.path("kv.disk:1M")];
    let server = Server::start(&options);
    let client = server.connect();
    let mut written = 0;
    let refusal = loop {
        let reply = ask(&client, &format!("RPUSH l {}", "x".repeat(10_000)));
        if reply.starts_with('-') {
            break reply;
        }
        written += 1;
        assert_eq!(reply, format!(":{written}"));
        assert!(written < 200, "a megabyte does not hold two");
    };
    assert_eq!(refusal, "-MISCONF Errors writing to the AOF file: No space left on device");
    assert_eq!(ask(&client, "LLEN l"), format!(":{written}"));
    drop(server);
    assert_eq!(ask(Server::start(&options).connect(), "LLEN l"), format!(":{written}"));
}
