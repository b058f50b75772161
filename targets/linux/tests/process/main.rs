//! The process from outside: its arguments, its sockets, its limits and its end.

use kayvee_testing::ports::free_port;
use nix::{
    sys::{
        resource::{Resource, getrlimit, setrlimit},
        signal::{Signal, kill},
        stat::Mode,
    },
    unistd::{Pid, geteuid, mkfifo},
};
use socket2::{Domain, Socket, Type};
use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read, Write},
    net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::unix::{
        fs::{PermissionsExt, symlink},
        net::{UnixDatagram, UnixStream},
    },
    path::PathBuf,
    process::{Child, ChildStdout, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_kayvee-linux");
/// How long anything here may take before the process counts as stuck.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running process, which is killed if the test does not end it.
struct Server {
    child: Child,
    log: BufReader<ChildStdout>,
    port: u16,
}

/// No dump file is left in the folder of the tests.
const WITHOUT_DUMPS: [&str; 2] = ["--save", ""];

impl Server {
    fn start(options: &[&str]) -> Server {
        Server::start_as(Command::new(PROGRAM), &[&WITHOUT_DUMPS[..], options].concat())
    }

    /// Starts `command`, which ends up running the program, and waits until it says that it listens.
    fn start_as(mut command: Command, options: &[&str]) -> Server {
        let port = free_port();
        command.args(["--port", &port.to_string()]).args(options).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let log = BufReader::new(child.stdout.take().expect("the standard output is a pipe"));
        let mut server = Server { child, log, port };
        server.wait_for_line("ready: ");
        server
    }

    /// Reads the log up to a line that contains `text`.
    fn wait_for_line(&mut self, text: &str) -> String {
        let mut line = String::new();
        while self.log.read_line(&mut line).expect("the log is UTF-8") > 0 {
            if line.contains(text) {
                return line;
            }
            line.clear();
        }
        panic!("the process ended without saying '{text}'");
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("the server accepts");
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).expect("the process is there");
    }

    /// Waits for the end and returns the exit status.
    fn end(mut self) -> Option<i32> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < deadline, "the process does not end");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Processor time used so far, in clock ticks of 10 ms.
    fn processor_ticks(&self) -> u64 {
        self.stat_field(14) + self.stat_field(15)
    }

    /// Page faults so far that needed nothing from a disk.
    fn page_faults(&self) -> u64 {
        self.stat_field(10)
    }

    /// A number of `/proc/PID/stat`, by its place in proc(5).
    fn stat_field(&self, number: usize) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        // The second field is a name in parentheses, in which anything may be.
        let mut behind_name = stat.rsplit_once(')').unwrap().1.split_whitespace();
        behind_name.nth(number - 3).unwrap().parse().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn run(arguments: &[&str]) -> Output {
    Command::new(PROGRAM).args(arguments).output().expect("the program runs")
}

fn expect_reply(mut stream: &TcpStream, reply: &[u8]) {
    let mut bytes = vec![0; reply.len()];
    stream.read_exact(&mut bytes).expect("a reply comes");
    assert_eq!(bytes, reply, "{}", String::from_utf8_lossy(&bytes));
}

fn ping(mut stream: &TcpStream) {
    stream.write_all(b"PING\r\n").unwrap();
    expect_reply(stream, b"+PONG\r\n");
}

fn read_to_end(mut stream: &TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("the connection ends in good order");
    bytes
}

/// A port that no datagram goes to.
fn free_udp_port() -> u16 {
    UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("there are free ports").port()
}

#[test]
fn datagrams_are_answered() {
    let (echo, memcached) = (free_udp_port(), free_udp_port());
    let server = Server::start(&["--udp-echo-port", &echo.to_string(), "--udp-memcached-port", &memcached.to_string()]);
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut buffer = [0; 2048];
    let mut ask = |port: u16, bytes: &[u8]| {
        client.send_to(bytes, ("127.0.0.1", port)).unwrap();
        let (len, from) = client.recv_from(&mut buffer).unwrap();
        assert_eq!(from.port(), port);
        buffer[..len].to_vec()
    };
    assert_eq!(ask(echo, b"hello"), b"hello");
    assert_eq!(ask(echo, &[7; 1472]), [7; 1472]);
    const HEADER: &[u8] = b"\0\x05\0\0\0\x01\0\0";
    let mut request = |text: &str| {
        let reply = ask(memcached, &[HEADER, text.as_bytes()].concat());
        assert_eq!(&reply[..8], HEADER);
        String::from_utf8(reply[8..].to_vec()).unwrap()
    };
    assert_eq!(request("set key 0 0 5\r\nvalue\r\n"), "STORED\r\n");
    assert_eq!(request("get key\r\n"), "VALUE key 0 5\r\nvalue\r\nEND\r\n");
    // What is longer than a frame is not answered; more than a system call takes comes back in its order.
    client.send_to(&[1; 1473], ("127.0.0.1", echo)).unwrap();
    for number in 0..150u8 {
        client.send_to(&[number; 3], ("127.0.0.1", echo)).unwrap();
    }
    for number in 0..150u8 {
        let (len, _) = client.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..len], [number; 3]);
    }
    server.signal(Signal::SIGTERM);
    assert_eq!(server.end(), Some(0));
}

#[test]
fn help_and_version() {
    let help = run(&["--help"]);
    assert!(help.status.success());
    assert!(String::from_utf8(help.stdout).unwrap().contains("--maxclients 10000"));
    let version = run(&["--version"]);
    assert_eq!(String::from_utf8(version.stdout).unwrap(), format!("Kayvee {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn wrong_options_are_refused() {
    for (arguments, complaint) in [
        (&["--bogus", "1"][..], ">>> 'bogus \"1\"'\nBad directive"),
        (&["--port", "x"], ">>> 'port \"x\"'\nargument couldn't be parsed into an integer"),
        (&["--maxmemory"], "wrong number of arguments"),
        (&["--tls-port", "6380"], ">>> 'tls-port \"6380\"'\nKayvee does not speak TLS"),
        (&["--dir", "/nonexistent"], "dir \"/nonexistent\"': No such file"),
        (&["--logfile", "/nonexistent/log"], "Can't open the log file: No such file or directory"),
        (&["/nonexistent/redis.conf"], "can't open config file '/nonexistent/redis.conf': No such file"),
    ] {
        let output = run(arguments);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(stderr.contains(complaint), "{arguments:?}: {stderr}");
    }
}

#[test]
fn an_address_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let output = run(&["--port", &port, "--bind", "127.0.0.1"]);
    let log = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(log.contains(&format!("Failed listening on port {port}")), "{log}");
    assert!(log.contains(&format!("cannot listen on 127.0.0.1 port {port}")), "{log}");
}

#[test]
fn an_address_of_another_machine_is_an_error_unless_it_is_optional() {
    // 192.0.2.0/24 is reserved for documentation (RFC 5737).
    let port = free_port().to_string();
    assert_eq!(run(&["--port", &port, "--bind", "192.0.2.77"]).status.code(), Some(1));
    assert_eq!(run(&["--port", &port, "--bind", "-192.0.2.77"]).status.code(), Some(1), "no address at all");
    let server = Server::start(&["--bind", "-192.0.2.77", "127.0.0.1"]);
    ping(&server.connect());
}

/// A folder of a test's own, removed with this value.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("kayvee-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    fn names(&self) -> Vec<String> {
        let names = fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Sends a request and returns the first line of the reply.
fn ask(mut stream: impl Read + Write, request: &str) -> String {
    stream.write_all(format!("{request}\r\n").as_bytes()).unwrap();
    let mut reply = Vec::new();
    let mut byte = [0];
    while !reply.ends_with(b"\r\n") {
        stream.read_exact(&mut byte).expect("a reply comes");
        reply.push(byte[0]);
    }
    String::from_utf8(reply).unwrap().trim_end().into()
}

#[test]
fn a_configuration_file_is_read_and_rewritten() {
    let folder = Folder::new("config");
    let (conf, log, pid) = (folder.path("redis.conf"), folder.path("log"), folder.path("pid"));
    fs::write(folder.path("more.conf"), "maxclients 99\nsave 60 1\n").unwrap();
    let text = format!(
        "# mine\nmaxmemory 5mb\ninclude {}\nsave 900 1\nrename-command FLUSHALL \"\"\n\
                        pidfile {pid}\ndir {}\n",
        folder.path("mor*.conf"),
        folder.0.display()
    );
    fs::write(&conf, text).unwrap();
    let mut command = Command::new(PROGRAM);
    command.arg(&conf);
    let server = Server::start_as(command, &["--hz", "20"]);
    assert_eq!(fs::read_to_string(&pid).unwrap().trim(), server.child.id().to_string());
    let client = server.connect();
    for (request, reply) in [
        ("FLUSHALL", "-ERR unknown command 'FLUSHALL', with args beginning with: "),
        (
            "CONFIG SET maxmemory 1mb dir /nonexistent",
            "-ERR CONFIG SET failed (possibly related to argument 'dir') - can't set protected config",
        ),
        ("CONFIG SET maxmemory 6mb", "+OK"),
        ("CONFIG REWRITE", "+OK"),
    ] {
        assert_eq!(ask(&client, request), reply.trim_end());
    }
    let rewritten = fs::read_to_string(&conf).unwrap();
    for line in ["# mine", "maxmemory 6mb", "save 60 1", "save 900 1", "rename-command FLUSHALL \"\"", "hz 20"] {
        assert!(rewritten.lines().any(|l| l == line), "{line}: {rewritten}");
    }
    drop(client);
    server.signal(Signal::SIGTERM);
    assert_eq!(server.end(), Some(0));
    assert!(!fs::exists(&pid).unwrap(), "the file with its number is gone");
    let output = run(&[&conf, "--logfile", &log, "--port", "1", "--bind", "192.0.2.77"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(fs::read_to_string(&log).unwrap().contains("Failed listening on port 1"));
}

#[test]
fn ports_and_addresses_change_while_it_serves() {
    let server = Server::start(&["--bind", "127.0.0.1"]);
    let client = server.connect();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let busy = ask(&client, &format!("CONFIG SET port {}", taken.local_addr().unwrap().port()));
    assert!(busy.contains("'port') - Unable to listen on this port"), "{busy}");
    let bad = ask(&client, "CONFIG SET bind 999.999.999.999");
    assert!(bad.contains("'bind') - Failed to bind to specified addresses"), "{bad}");
    ping(&server.connect());
    let port = free_port();
    assert_eq!(ask(&client, &format!("CONFIG SET port {port}")), "+OK");
    ping(&TcpStream::connect(("127.0.0.1", port)).unwrap());
    assert!(TcpStream::connect(("127.0.0.1", server.port)).is_err());
    assert_eq!(ask(&client, "CONFIG SET bind \"127.0.0.1 127.0.0.2\""), "+OK");
    ping(&TcpStream::connect(("127.0.0.2", port)).unwrap());
    ping(&TcpStream::connect(("127.0.0.1", port)).unwrap());
    assert_eq!(ask(&client, "CONFIG SET bind \"\""), "+OK");
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
    ping(&client);
}

#[test]
fn unix_sockets_serve() {
    let folder = Folder::new("unix");
    let path = folder.path("socket");
    for _ in 0..2 {
        let mut server = Server::start(&["--unixsocket", &path, "--unixsocketperm", "700"]);
        server.wait_for_line("Ready to accept");
        let client = UnixStream::connect(&path).unwrap();
        assert_eq!(ask(&client, "PING"), "+PONG");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        // Killed, so that the socket stays for the next one to replace.
    }
}

#[test]
fn a_supervisor_is_told_when_it_serves() {
    let folder = Folder::new("supervised");
    let path = folder.path("notify");
    let supervisor = UnixDatagram::bind(&path).unwrap();
    supervisor.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut command = Command::new(PROGRAM);
    command.env("NOTIFY_SOCKET", &path);
    let server = Server::start_as(command, &[&WITHOUT_DUMPS[..], &["--supervised", "systemd"]].concat());
    let mut said = [0; 100];
    let len = supervisor.recv(&mut said).unwrap();
    assert!(said[..len].starts_with(b"READY=1\n"), "{:?}", &said[..len]);
    ping(&server.connect());
}

#[test]
fn what_has_no_effect_is_told() {
    // It ends at once: there is nothing to listen on.
    let output = run(&["--port", "0", "--syslog-enabled", "yes", "--hz", "20"]);
    let log = String::from_utf8(output.stdout).unwrap();
    assert!(log.contains("option 'syslog-enabled' has no effect here: the log goes to"), "{log}");
    assert!(!log.contains("'hz'"), "{log}");
}

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

/// An address of this machine by which others reach it, if it has one.
fn address_for_others() -> Option<IpAddr> {
    // Connecting a datagram socket sends nothing.
    let socket = UdpSocket::bind("0.0.0.0:0").and_then(|socket| socket.connect("192.0.2.1:9").map(|()| socket)).ok()?;
    socket.local_addr().ok().map(|address| address.ip()).filter(|address| !address.is_loopback())
}

#[test]
fn protected_mode_holds_for_the_web_as_well() {
    let Some(address) = address_for_others() else {
        return eprintln!("skipped: this machine has no address but its own loopback's");
    };
    let web_port = free_port();
    let server = Server::start(&["--http-port", &web_port.to_string(), "--http-keys", "page:", "--status", "yes"]);
    let client = server.connect();
    assert_eq!(ask(&client, "SET page:a x"), "+OK");
    let status_by = |address: IpAddr, host: &str, path: &str| {
        let mut web = TcpStream::connect((address, web_port)).unwrap();
        web.set_read_timeout(Some(PATIENCE)).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        web.write_all(request.as_bytes()).unwrap();
        String::from_utf8(read_to_end(&web)).unwrap()[9..12].to_string()
    };
    let status = |address, path| status_by(address, "localhost", path);
    let local = Ipv4Addr::LOCALHOST.into();
    for path in ["/metrics", "/_/status", "/a"] {
        assert_eq!([status(local, path), status(address, path)], ["200", "403"], "{path}");
        // A browser asks for such a name what a stranger's page wants to know.
        assert_eq!(status_by(local, "rebound.example:8080", path), "403", "{path}");
    }
    assert_eq!(status_by(local, "rebound.example", "/_/status/events"), "403");
    assert_eq!(status_by(local, "rebound.example", "/healthz"), "200");
    assert_eq!(status(address, "/_/status/events"), "403");
    assert_eq!(status(address, "/healthz"), "200");
    assert_eq!(ask(&client, "CONFIG SET protected-mode no"), "+OK");
    assert_eq!(status(address, "/metrics"), "200");
}

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
