//! The process from outside: its arguments and its sockets; its limits, its disk and its end in modules of their own.

use kayvee_testing::ports::free_port;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{IpAddr, Ipv4Addr, TcpListener, TcpStream, UdpSocket},
    os::unix::{
        fs::PermissionsExt,
        net::{UnixDatagram, UnixStream},
    },
    path::PathBuf,
    process::{Child, ChildStdout, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

mod disk;
mod ends;
mod limits;

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

/// Users are looked at before data, whose reading may take long or fail.
#[test]
fn users_that_cannot_be_read_are_named_before_data_are_loaded() {
    let folder = Folder::new("no-users");
    fs::write(folder.path("dump.rdb"), "no dump").unwrap();
    let output = run(&["--dir", &folder.path(""), "--aclfile", "users.acl", "--port", &free_port().to_string()]);
    let log = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(log.contains("ACL errors: Error loading ACLs, opening file 'users.acl': No such file"), "{log}");
    assert!(!log.contains("dump.rdb") && !log.contains("ready: "), "{log}");
}

/// `kayvee run` waits for these lines, whatever becomes of the log.
#[test]
fn whoever_runs_it_is_told_beside_the_log() {
    let folder = Folder::new("watched");
    let log = folder.path("log");
    let mut watched = Command::new(PROGRAM);
    watched.env("KAYVEE_RUN", "1");
    let options = [&WITHOUT_DUMPS[..], &["--logfile", &log, "--loglevel", "warning"]].concat();
    let server = Server::start_as(watched, &options);
    ping(&server.connect());
    server.signal(Signal::SIGTERM);
    assert_eq!(server.end(), Some(0));
    assert!(fs::read_to_string(&log).unwrap().contains(" * ready: "));
    // Nobody else is told.
    let port = free_port().to_string();
    let options = ["--save", "", "--logfile", &log, "--bind", "127.0.0.1", "--port", &port];
    let mut child = Command::new(PROGRAM).args(options).stdout(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + PATIENCE;
    while TcpStream::connect(format!("127.0.0.1:{port}")).is_err() {
        assert!(Instant::now() < deadline, "it does not serve");
        thread::sleep(Duration::from_millis(5));
    }
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
    let mut said = String::new();
    child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!((child.wait().unwrap().code(), said.as_str()), (Some(0), ""));
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
        "# mine\nmaxmemory 5mb\ninclude {}\ninclude {}\nsave 900 1\nrename-command FLUSHALL \"\"\n\
                        pidfile {pid}\ndir {}\n",
        folder.path("mor*.conf"),
        folder.path("none/*.conf"),
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
