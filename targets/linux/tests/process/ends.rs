//! How it ends, and what it leaves behind.

use crate::{Folder, PROGRAM, Server, ask, expect_reply, ping, read_to_end};
use nix::{
    sys::{signal::Signal, stat::Mode},
    unistd::mkfifo,
};
use std::{
    fs::{self, File},
    io::Write,
    net::{Shutdown, TcpStream},
    os::unix::fs::symlink,
    process::Command,
};

#[test]
fn signals_end_it_cleanly() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let server = Server::start(&[]);
        let client = server.connect();
        ping(&client);
        server.signal(signal);
        assert_eq!(server.end(), Some(0), "{signal}");
        assert_eq!(read_to_end(&client), b"");
    }
}

const WAIT_FOR_REPLICAS: [&str; 4] = ["--shutdown-timeout", "1000", "--repl-timeout", "1000"];

/// A replica that does not say what it has, so that an end waits for it.
fn replicate_in_silence(server: &mut Server, user: &TcpStream) -> TcpStream {
    let mut replica = server.connect();
    replica.write_all(b"REPLCONF capa eof capa psync2\r\nPSYNC ? -1\r\n").unwrap();
    expect_reply(&replica, b"+OK\r\n+FULLRESYNC ");
    server.wait_for_line("Copied 0 keys to 1 replicas");
    replica.write_all(b"REPLCONF ACK 0\r\n").unwrap();
    server.wait_for_line("Synchronization with replica");
    assert_eq!(ask(user, "SET k v"), "+OK");
    replica
}

/// Ctrl-C while the end waits for a replica that says nothing ends it at once, as redis-server, but only while it waits.
#[test]
fn a_second_interrupt_does_not_wait() {
    let mut server = Server::start(&WAIT_FOR_REPLICAS);
    let mut user = server.connect();
    let _replica = replicate_in_silence(&mut server, &user);
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        server.signal(signal);
        server.wait_for_line("Waiting for replicas before shutting down");
        user.write_all(b"SHUTDOWN ABORT\r\n").unwrap();
        expect_reply(&user, b"+OK\r\n");
        // A turn later it has been called off for signals as well.
        ping(&user);
        ping(&user);
    }
    server.signal(Signal::SIGTERM);
    server.wait_for_line("Waiting for replicas before shutting down");
    server.signal(Signal::SIGTERM);
    ping(&user);
    server.signal(Signal::SIGINT);
    assert_eq!(server.end(), Some(1));
}

/// The same while the data are saved, of which nothing is left then.
#[test]
fn a_second_interrupt_leaves_no_half_of_a_file() {
    let folder = Folder::new("insists");
    let mut command = Command::new(PROGRAM);
    command.args(["--save", "3600 1", "--dir", &folder.path(""), "--rdbcompression", "no"]);
    let server = Server::start_as(command, &[]);
    assert_eq!(ask(&server.connect(), &format!("SET k {}", "x".repeat(60_000))), "+OK");
    assert_eq!(ask(&server.connect(), &format!("SET l {}", "x".repeat(60_000))), "+OK");
    // Nobody reads from this pipe, so that the save waits where it is full.
    let path = folder.0.join(format!("dump.rdb.{}.tmp", server.child.id()));
    mkfifo(&path, Mode::S_IRWXU).unwrap();
    server.signal(Signal::SIGTERM);
    // Is opened once the save opens it.
    let _pipe = File::open(&path).unwrap();
    server.signal(Signal::SIGINT);
    assert_eq!(server.end(), Some(1));
    assert_eq!(folder.names(), [""; 0]);
}

/// Nor where the file was begun in another folder, or behind a link to one.
#[test]
fn a_second_interrupt_leaves_nothing_in_other_folders() {
    let [first, linked, last] = ["first_folder", "linked_folder", "last_folder"].map(Folder::new);
    symlink(linked.path("kayvee.disk"), first.path("kayvee.disk")).unwrap();
    fs::write(linked.path("kayvee.disk"), "").unwrap();
    let options = ["--dir", &first.path(""), "--enable-protected-configs", "yes"];
    let mut server = Server::start(&[&options[..], &WAIT_FOR_REPLICAS].concat());
    let client = server.connect();
    let _replica = replicate_in_silence(&mut server, &client);
    assert_eq!(ask(&client, "CONFIG SET rdb-key-save-delay 100000000"), "+OK");
    assert_eq!(ask(&client, "BGSAVE"), "+Background saving started");
    // Its beginning waits for the save's end.
    assert_eq!(ask(&client, "CONFIG SET appendonly yes"), "+OK");
    assert_eq!(ask(&client, &format!("CONFIG SET dir {}", last.path(""))), "+OK");
    let usual = "kayvee.disk".to_string();
    let [dump, log] = ["dump.rdb", &usual].map(|name| format!("{name}.{}.tmp", server.child.id()));
    assert_eq!((first.names(), linked.names()), (vec![dump, usual.clone()], vec![usual.clone(), log]));
    server.signal(Signal::SIGTERM);
    server.wait_for_line("Waiting for replicas before shutting down");
    server.signal(Signal::SIGINT);
    assert_eq!(server.end(), Some(1));
    assert_eq!([first.names(), linked.names(), last.names()], [vec![usual.clone()], vec![usual], vec![]]);
}

/// A dump file that is being written is finished where it was begun.
#[test]
fn another_folder_is_for_the_next_save() {
    let (old, new) = (Folder::new("old_folder"), Folder::new("new_folder"));
    let mut server = Server::start(&["--dir", &old.path(""), "--enable-protected-configs", "yes"]);
    let client = server.connect();
    for request in ["SET k v", "CONFIG SET rdb-key-save-delay 100000000"] {
        assert_eq!(ask(&client, request), "+OK");
    }
    assert_eq!(ask(&client, "BGSAVE"), "+Background saving started");
    for request in [&format!("CONFIG SET dir {}", new.path("")), "CONFIG SET rdb-key-save-delay 0"] {
        assert_eq!(ask(&client, request), "+OK");
    }
    let end = server.wait_for_line("DB ");
    assert!(end.contains("DB saved on disk"), "{end}");
    assert!(fs::exists(old.path("dump.rdb")).unwrap());
    assert_eq!(fs::read_dir(new.path("")).unwrap().count(), 0);
}

#[test]
fn shutdown_ends_it() {
    let server = Server::start(&[]);
    let mut client = server.connect();
    client.write_all(b"SHUTDOWN\r\n").unwrap();
    assert_eq!(read_to_end(&client), b"");
    assert_eq!(server.end(), Some(0));
}

#[test]
fn whoever_ends_after_asking_is_still_answered() {
    let server = Server::start(&["--bind", "127.0.0.1"]);
    let mut client = server.connect();
    client.write_all(b"PING\r\nPING\r\n").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_to_end(&client), b"+PONG\r\n+PONG\r\n");
    // The end is there long before the log is stable.
    let folder = Folder::new("ended");
    let server = Server::start(&["--dir", &folder.path(""), "--appendonly", "yes", "--appendfsync", "always"]);
    for _ in 0..20 {
        let mut client = server.connect();
        client.write_all(b"INCR a\r\nSET b c\r\nDECR a\r\n").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_to_end(&client), b":1\r\n+OK\r\n:0\r\n");
    }
}
