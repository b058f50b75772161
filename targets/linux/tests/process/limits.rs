//! Many clients, greedy ones, and too few files or bytes for all of them.

use crate::{Folder, PATIENCE, PROGRAM, Server, WITHOUT_DUMPS, ask, expect_reply, ping, read_to_end};
use kayvee_testing::ports::free_port;
use nix::{
    sys::{
        resource::{Resource, getrlimit, setrlimit},
        signal::Signal,
    },
    unistd::geteuid,
};
use socket2::{Domain, Socket, Type};
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream},
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

#[test]
fn a_thousand_clients_make_progress_beside_a_greedy_one() {
    // This process has the other ends of the connections, and its limit is often 1,024 files.
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    let server = Server::start(&["--bind", "127.0.0.1"]);
    let greedy = server.connect();
    let mut writer = greedy.try_clone().unwrap();
    let requests = b"PING\r\n".repeat(4096);
    let writing = thread::spawn(move || while writer.write_all(&requests).is_ok() {});
    let mut reader = greedy.try_clone().unwrap();
    let reading = thread::spawn(move || while matches!(reader.read(&mut [0; 1 << 16]), Ok(1..)) {});
    let clients: Vec<TcpStream> = (0..1000).map(|_| server.connect()).collect();
    for _ in 0..3 {
        for mut client in &clients {
            client.write_all(b"*1\r\n$4\r\nPING\r\n").unwrap();
        }
        for client in &clients {
            expect_reply(client, b"+PONG\r\n");
        }
    }
    greedy.shutdown(Shutdown::Both).unwrap();
    writing.join().unwrap();
    reading.join().unwrap();
    server.signal(Signal::SIGTERM);
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_long_pipeline_is_answered_in_full_to_a_slow_reader() {
    let server = Server::start(&["--bind", "127.0.0.1"]);
    let client = server.connect();
    let mut writer = client.try_clone().unwrap();
    let argument = vec![b'x'; 10_000];
    let request = [b"*2\r\n$4\r\nPING\r\n$10000\r\n", argument.as_slice(), b"\r\n"].concat();
    let reply = [b"$10000\r\n", argument.as_slice(), b"\r\n"].concat();
    // Tens of megabytes: far more than the kernel holds, so that both sides meet full buffers.
    let count = 4000;
    let writing = thread::spawn(move || {
        for _ in 0..count {
            writer.write_all(&request).unwrap();
        }
        writer.shutdown(Shutdown::Write).unwrap();
    });
    for _ in 0..count {
        expect_reply(&client, &reply);
    }
    assert_eq!(read_to_end(&client), b"", "and then the end");
    writing.join().unwrap();
}

#[test]
fn clients_beyond_maxclients_are_told_so() {
    let server = Server::start(&["--bind", "127.0.0.1", "--maxclients", "2"]);
    let first = server.connect();
    let second = server.connect();
    ping(&first);
    ping(&second);
    for _ in 0..3 {
        let refused = server.connect();
        assert_eq!(read_to_end(&refused), b"-ERR max number of clients reached\r\n");
    }
    drop(first);
    // The server notices that the first has gone before it accepts whoever comes afterwards, or refuses until then.
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut third = server.connect();
        third.write_all(b"PING\r\n").unwrap();
        let mut reply = [0; 7];
        if third.read_exact(&mut reply).is_ok() && &reply == b"+PONG\r\n" {
            break;
        }
        assert!(Instant::now() < deadline, "a place never gets free");
    }
    ping(&second);
}

/// A command whose process cannot have more than 64 files open, whatever its privileges.
fn with_few_files() -> Command {
    let mut command = Command::new("sh");
    let drop_privilege = if geteuid().is_root() { "setpriv --bounding-set -sys_resource" } else { "" };
    command.args(["-c", &format!("ulimit -n 64; exec {drop_privilege} \"$0\" \"$@\""), PROGRAM]);
    command
}

/// What a site takes is no data: there is room for keys beside a larger one, also while a changed one is packed and former
/// ones are still read.
#[test]
fn a_site_is_not_of_maxmemory() {
    let folder = Folder::new("site");
    fs::create_dir(folder.path("site")).unwrap();
    fs::write(folder.path("site/long.bin"), vec![b'x'; 16 << 20]).unwrap();
    let change = |text: &str| {
        fs::write(folder.path("new"), text).unwrap();
        fs::rename(folder.path("new"), folder.path("site/index.html")).unwrap();
    };
    change("0");
    let (site, port) = (folder.path("site"), free_port());
    let limited = ["--bind", "127.0.0.1", "--maxmemory", "10mb"];
    let web = ["--http-port", &port.to_string(), "--site", &site];
    let mut server = Server::start(&[&limited[..], &web].concat());
    let get = |path: &str| {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).unwrap();
        stream
    };
    let (client, is_over) = (server.connect(), AtomicBool::new(false));
    let readers = thread::scope(|scope| {
        let load = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                assert_eq!(ask(&client, "SET k v"), "+OK");
            }
        });
        let states = ["1", "2", "3"].map(|state| {
            let slow = get("/long.bin");
            slow.peek(&mut [0]).unwrap();
            change(state);
            server.wait_for_line("the site has changed");
            assert!(read_to_end(&get("/")).ends_with(state.as_bytes()), "{state}");
            slow
        });
        is_over.store(true, Ordering::Relaxed);
        load.join().unwrap();
        states
    });
    for reader in &readers {
        assert!(read_to_end(reader).len() > 16 << 20, "it is whole");
    }
    assert_eq!(ask(&client, "SET k v"), "+OK");
}

/// What stands behind it in a batch finds the keys that are left.
#[test]
fn room_is_made_behind_a_request_that_fills_memory() {
    let server = Server::start(&["--maxmemory", "20mb", "--maxmemory-policy", "allkeys-lru"]);
    let client = server.connect();
    for number in 0..10 {
        assert_eq!(ask(&client, &format!("SETRANGE old{number} 99999 x")), ":100000");
    }
    assert_eq!(ask(&client, "SETRANGE new 19999999 x\r\nDBSIZE"), ":20000000");
    let mut left = String::new();
    BufReader::new(&client).read_line(&mut left).unwrap();
    assert_ne!(left.trim_end(), ":11");
}

#[test]
fn too_few_files_lower_maxclients() {
    let server = Server::start_as(with_few_files(), &[&WITHOUT_DUMPS[..], &["--bind", "127.0.0.1"]].concat());
    let mut client = server.connect();
    client.write_all(b"CONFIG GET maxclients\r\n").unwrap();
    expect_reply(&client, b"*2\r\n$10\r\nmaxclients\r\n$2\r\n32\r\n");
}

/// The store's clients and the web server's do not take each other's files.
#[test]
fn web_clients_leave_files_for_the_store() {
    let web_port = free_port().to_string();
    let options = ["--bind", "127.0.0.1", "--http-port", &web_port];
    let mut server = Server::start_as(with_few_files(), &[&WITHOUT_DUMPS[..], &options].concat());
    let connect = || TcpStream::connect(("127.0.0.1", web_port.parse::<u16>().unwrap())).unwrap();
    let idle: Vec<TcpStream> = (0..60).map(|_| connect()).collect();
    // They are accepted in their order, so those before it are.
    let mut last = connect();
    last.set_read_timeout(Some(PATIENCE)).unwrap();
    expect_reply(&last, b"HTTP/1.1 503 ");
    let clients: Vec<TcpStream> = (0..24).map(|_| server.connect()).collect();
    clients.iter().for_each(ping);
    assert_eq!(ask(&clients[0], "CONFIG GET maxclients"), "*2");
    assert_eq!(read_to_end(&server.connect()), b"-ERR max number of clients reached\r\n");
    assert_eq!(ask(&clients[1], "CONFIG SET maxclients 4"), "+OK");
    drop(idle);
    // Its limit has followed the store's.
    let deadline = Instant::now() + PATIENCE;
    let mut web: Vec<TcpStream> = Vec::new();
    while web.len() < 4 {
        let mut client = connect();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.write_all(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
        let mut status = [0; 13];
        let is_served = client.read_exact(&mut status).is_ok() && &status == b"HTTP/1.1 200 ";
        web.extend(is_served.then_some(client));
        assert!(Instant::now() < deadline, "places never get free");
    }
    last = connect();
    last.set_read_timeout(Some(PATIENCE)).unwrap();
    expect_reply(&last, b"HTTP/1.1 503 ");
    server.signal(Signal::SIGTERM);
    server.wait_for_line("bye bye");
}

#[test]
fn no_files_left_makes_clients_wait_and_does_not_spin() {
    let mut server = Server::start(&["--bind", "127.0.0.1"]);
    let first = server.connect();
    ping(&first);
    // From outside, since the process itself asks for as many as its clients need.
    let pid = server.child.id().to_string();
    assert!(Command::new("prlimit").args(["--pid", &pid, "--nofile=64:64"]).status().unwrap().success());
    let mut clients: Vec<TcpStream> = (0..100).map(|_| server.connect()).collect();
    server.wait_for_line("no room for it");
    let before = server.processor_ticks();
    thread::sleep(Duration::from_millis(500));
    let used = server.processor_ticks() - before;
    assert!(used <= 10, "{used} ticks of 10 ms in half a second of waiting");
    ping(&first);
    // The kernel has them in the order in which they came; the last ones wait until the first ones have gone.
    let last = clients.split_off(60);
    drop(clients);
    for client in &last[..20] {
        ping(client);
    }
    server.signal(Signal::SIGTERM);
    let mut rest = String::new();
    server.log.read_to_string(&mut rest).unwrap();
    assert!(!rest.contains("no room for it"), "it is said once a minute: {rest}");
}

/// Who waits for the web server because the store's clients have all files is served when these go.
#[test]
fn web_clients_that_wait_for_files_are_served_when_there_are_some() {
    let web_port = free_port();
    let mut server = Server::start(&["--bind", "127.0.0.1", "--http-port", &web_port.to_string()]);
    let others: Vec<TcpStream> = (0..60).map(|_| server.connect()).collect();
    others.iter().for_each(ping);
    let pid = server.child.id().to_string();
    assert!(Command::new("prlimit").args(["--pid", &pid, "--nofile=64:64"]).status().unwrap().success());
    let clients: Vec<TcpStream> = (0..40)
        .map(|_| {
            let mut client = TcpStream::connect(("127.0.0.1", web_port)).unwrap();
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            client.write_all(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
            client
        })
        .collect();
    server.wait_for_line("no room for it");
    let before = server.processor_ticks();
    thread::sleep(Duration::from_millis(500));
    let used = server.processor_ticks() - before;
    assert!(used <= 10, "{used} ticks of 10 ms in half a second of waiting");
    drop(others);
    for client in &clients {
        expect_reply(client, b"HTTP/1.1 200 OK\r\n");
    }
}

/// What web clients hold by taking nothing of what they have asked for costs no keys.
#[test]
fn web_clients_that_take_nothing_leave_the_data() {
    const VALUE_BYTES: usize = 3 << 20;
    let web_port = free_port();
    let options = ["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru", "--http-keys", "page:"];
    let server = Server::start(&[&["--http-port", &web_port.to_string()], &options[..]].concat());
    let client = server.connect();
    let set = format!("*3\r\n$3\r\nSET\r\n$8\r\npage:big\r\n${VALUE_BYTES}\r\n{}\r\n", "v".repeat(VALUE_BYTES));
    (&client).write_all(set.as_bytes()).unwrap();
    expect_reply(&client, b"+OK\r\n");
    let others = "MSET a 1 b 2 c 3 d 4 e 5 f 6 g 7 h 8";
    assert_eq!(ask(&client, others), "+OK");
    let clients: Vec<TcpStream> = (0..60)
        .map(|_| {
            // The kernel takes little of it for such a socket.
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            socket.set_recv_buffer_size(4096).unwrap();
            socket.connect(&SocketAddr::from((Ipv4Addr::LOCALHOST, web_port)).into()).unwrap();
            let mut client = TcpStream::from(socket);
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            client.write_all(b"GET /big HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
            client
        })
        .collect();
    // All have an answer, whichever it is.
    clients.iter().for_each(|client| expect_reply(client, b"HTTP/1.1 "));
    assert_eq!([ask(&client, "SET i 9"), ask(&client, "DBSIZE")], ["+OK", ":10"]);
}

#[test]
fn large_replies_take_the_memory_of_those_before_them() {
    const VALUE_BYTES: usize = 100 << 10;
    const CLIENTS: usize = 8;
    let server = Server::start(&[]);
    let clients: Vec<TcpStream> = (0..CLIENTS).map(|_| server.connect()).collect();
    let value = vec![b'v'; VALUE_BYTES];
    (&clients[0])
        .write_all(&[format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${VALUE_BYTES}\r\n").as_bytes(), &value, b"\r\n"].concat())
        .unwrap();
    expect_reply(&clients[0], b"+OK\r\n");
    let reply = [format!("${VALUE_BYTES}\r\n").as_bytes(), &value, b"\r\n"].concat();
    let get_by_all = || {
        clients.iter().for_each(|mut client| client.write_all(b"GET k\r\n").unwrap());
        clients.iter().for_each(|client| expect_reply(client, &reply));
    };
    (0..10).for_each(|_| get_by_all());
    let before = server.page_faults();
    (0..50).for_each(|_| get_by_all());
    let faults = server.page_faults() - before;
    assert!(faults < 1000, "{faults} page faults for {} replies of 25 pages each", 50 * CLIENTS);
}
