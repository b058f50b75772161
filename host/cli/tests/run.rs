//! The store as a user starts it: on every target that works here, over every kind of network that is allowed here.
//!
//! These tests start processes and guests from the release build, so `./kayvee test` runs them behind it:
//! `cargo build --release && cargo test -p kayvee-cli --test run -- --ignored`.

mod built;
mod recording;

use kayvee_testing::ports::free_port;
use recording::{packet, recorded, tcpdump};
use std::{
    fs,
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio},
    time::{Duration, Instant},
};

const TIMEOUT: Duration = Duration::from_secs(60);
/// As many as the store has to carry at once.
const MANY_CONNECTIONS: usize = 1000;

/// One way of running the store.
#[derive(Clone, Copy, Debug)]
struct Way {
    target: &'static str,
    /// Arguments beside the target.
    more: &'static [&'static str],
    /// What the `ready:` line says of it.
    place: &'static str,
}

/// Where a store has a link of its own past the kernel's network, as a process.
const LINUX_XDP: Way = Way { target: "linux", more: &["--net", "xdp"], place: "past the kernel's network, also at " };
const LINUX: Way = Way { target: "linux", more: &[], place: "a Linux process" };
const TCG: Way = Way { target: "tcg", more: &["--net", "user"], place: "a TCG guest" };
const GUESTS: &[Way] = &[
    Way { target: "tcg", more: &["--net", "tap"], place: "a TCG guest, also at " },
    TCG,
    Way { target: "tcg", more: &["--machine", "q35"], place: "a TCG guest" },
    Way { target: "kvm", more: &["--net", "xdp"], place: "a KVM guest, also at " },
    Way { target: "kvm", more: &["--net", "tap"], place: "a KVM guest, also at " },
    Way { target: "kvm", more: &["--net", "user"], place: "a KVM guest" },
    Way { target: "kvm", more: &["--vmm", "qemu"], place: "a KVM guest" },
    Way { target: "kvm", more: &["--machine", "q35"], place: "a KVM guest" },
];

impl Way {
    /// Whether this system allows it; says so where it does not.
    fn works_here(self) -> bool {
        let missing = match self {
            Way { target: "kvm", .. } if !kvm_works() => "no guest boots under KVM here",
            Way { more: ["--net", "tap" | "xdp"], .. } if !is_root() => "a link in this network needs root",
            _ => return true,
        };
        println!("skipped: {self:?}: {missing}");
        false
    }
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0)
}

/// Whether `auto` chooses KVM, which it does where a guest boots.
fn kvm_works() -> bool {
    let store = Store::start("auto", &[], &[]);
    let works = store.ready.contains("KVM");
    store.end("TERM");
    works
}

/// A `kayvee run`, ended with the test.
struct Store {
    cli: Child,
    stdout: BufReader<ChildStdout>,
    /// The line `ready: …`.
    ready: String,
    address: SocketAddr,
}

impl Store {
    fn start(target: &str, more: &[&str], redis_options: &[&str]) -> Store {
        Store::start_by(kayvee(), target, more, redis_options)
    }

    fn start_by(mut cli: Command, target: &str, more: &[&str], redis_options: &[&str]) -> Store {
        cli.args(["run", "--target", target, "--port", &free_port().to_string()])
            .args(more)
            .arg("--")
            .args(redis_options);
        let mut cli = cli.stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(cli.stdout.take().unwrap());
        let mut ready = String::new();
        stdout.read_line(&mut ready).unwrap();
        let address = ready.strip_prefix("ready: ").and_then(|rest| rest.split(' ').next());
        let address = address.unwrap_or_else(|| panic!("{target} {more:?} did not get ready: {ready:?}"));
        let address = address.parse().unwrap();
        Store { cli, stdout, ready, address }
    }

    fn connect(&self) -> TcpStream {
        connect(self.address)
    }

    /// Sends a signal to the command and waits for its end.
    fn end(mut self, signal: &str) -> ExitStatus {
        send_signal(signal, self.cli.id());
        self.wait()
    }

    fn wait(&mut self) -> ExitStatus {
        // The standard output ends with the process.
        self.stdout.read_to_string(&mut String::new()).unwrap();
        self.cli.wait().unwrap()
    }

    /// The process that the command supervises.
    fn supervised(&self) -> u32 {
        let pid = self.cli.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        children.split_ascii_whitespace().next().expect("it supervises a process").parse().unwrap()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // Already ended, where the test went well.
        let _ = self.cli.kill();
        let _ = self.cli.wait();
    }
}

fn kayvee() -> Command {
    let mut command = Command::new(built::kayvee());
    command.env("XDG_RUNTIME_DIR", state_folder());
    command
}

fn state_folder() -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("run");
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&address, TIMEOUT).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

fn send_signal(signal: &str, pid: u32) {
    assert!(Command::new("kill").args(["-s", signal, &pid.to_string()]).status().unwrap().success());
}

/// Sends an inline command and returns the first line of its reply.
fn ask(stream: &mut TcpStream, command: &str) -> String {
    stream.write_all(format!("{command}\r\n").as_bytes()).unwrap();
    let mut line = Vec::new();
    let mut byte = [0];
    while byte != *b"\n" {
        stream.read_exact(&mut byte).unwrap();
        line.push(byte[0]);
    }
    String::from_utf8(line).unwrap().trim_end().to_string()
}

fn all_ways() -> impl Iterator<Item = Way> {
    std::iter::once(LINUX).chain(GUESTS.iter().copied()).filter(|way| way.works_here())
}

#[track_caller]
fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "{what} did not come true within {TIMEOUT:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn said(output: &Output) -> String {
    [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).concat()
}

#[test]
#[ignore = "starts guests: ./kayvee test"]
fn every_way_answers_and_ends_cleanly() {
    for way in all_ways() {
        println!("{way:?}");
        let store = Store::start(way.target, way.more, &["--maxmemory", "50mb"]);
        assert!(store.ready.contains(way.place), "{}", store.ready);
        let mut client = store.connect();
        assert_eq!(ask(&mut client, "PING"), "+PONG");
        assert_eq!(store.end(if way.target == "linux" { "INT" } else { "TERM" }).code(), Some(0), "{way:?}");
    }
}

#[test]
#[ignore = "starts guests: ./kayvee test"]
fn a_guest_with_a_tap_is_reached_at_its_own_address_too() {
    for way in GUESTS.iter().filter(|way| way.place.ends_with("also at ") && way.works_here()) {
        let store = Store::start(way.target, way.more, &[]);
        let own = store.ready.rsplit_once("also at ").unwrap().1.trim_end().trim_end_matches(')');
        // By IPv4, and by IPv6 where this host has that.
        let own: Vec<SocketAddr> = own.split(" and ").map(|own| own.parse().unwrap()).collect();
        assert_eq!(own.get(1).is_some_and(SocketAddr::is_ipv6), fs::exists("/proc/net/if_inet6").unwrap());
        for own in &own {
            assert_eq!(ask(&mut connect(*own), "PING"), "+PONG");
        }
        // Who asks for the host's port is connected to the guest, where the kernel can do that.
        if fs::read_to_string("/proc/self/mountinfo").unwrap().contains(" - cgroup2 ") {
            assert_eq!(connect(store.address).peer_addr().unwrap(), own[0]);
        }
        // The ends of a link of two keep no queue.
        assert!(way.more.contains(&"xdp") || queue_packets(own[0].ip()) == 8192);
        assert_eq!(store.end("INT").code(), Some(0));
    }
}

#[test]
#[ignore = "starts guests: ./kayvee test"]
fn a_recording_holds_what_would_be_on_a_wire() {
    for way in recorded_ways() {
        println!("{way:?}");
        let path = state_folder().join("recorded, with a comma.pcap");
        let mtu = if way.more.contains(&"xdp") { 61_426 } else { 1500 };
        let store = Store::start(way.target, &[way.more, &["--pcap", path.to_str().unwrap()]].concat(), &[]);
        assert_eq!(ask(&mut store.connect(), "PING"), "+PONG");
        assert_eq!(store.end("TERM").code(), Some(0));
        let frames = recorded(&path);
        for frame in &frames {
            assert!(frame.len() <= 14 + mtu, "{frame:x?}");
            packet(frame);
        }
        assert!(frames.iter().any(|frame| frame.ends_with(b"+PONG\r\n")), "{} frames", frames.len());
        fs::remove_file(&path).unwrap();
    }
}

/// The ways of which frames can be recorded.
fn recorded_ways() -> impl Iterator<Item = Way> {
    let ways = GUESTS.iter().chain([&LINUX_XDP]).copied();
    ways.filter(|way| way.works_here())
}

#[test]
#[ignore = "starts guests: ./kayvee test"]
fn tcpdump_reads_a_recording() {
    /// Several times what the largest frame carries.
    const LARGE_BYTES: usize = 300_000;
    let large = state_folder().join("large");
    fs::write(&large, "v".repeat(LARGE_BYTES)).unwrap();
    for way in recorded_ways() {
        println!("{way:?}");
        let path = state_folder().join("read.pcap");
        let store = Store::start(way.target, &[way.more, &["--pcap", path.to_str().unwrap()]].concat(), &[]);
        let port = store.address.port().to_string();
        let redis_cli = |words: &[&str], input: Stdio| {
            said(&Command::new("redis-cli").args(["-p", &port]).args(words).stdin(input).output().unwrap())
        };
        assert_eq!(redis_cli(&["-x", "set", "key"], fs::File::open(&large).unwrap().into()), "OK\n");
        assert_eq!(redis_cli(&["get", "key"], Stdio::null()).len(), LARGE_BYTES + 1);
        assert_eq!(store.end("INT").code(), Some(0));
        for direction in ["dst", "src"] {
            let read = tcpdump(&path, &["-v", &format!("tcp {direction} port {port}")]);
            let lengths = read.lines().filter(|line| line.contains("Flags"));
            let carried: usize =
                lengths.map(|line| line.rsplit_once("length ").unwrap().1.parse::<usize>().unwrap()).sum();
            assert!(carried > LARGE_BYTES, "{direction}: {carried} bytes");
            assert!(read.contains("(correct)") && !read.contains("incorrect"), "{direction}");
        }
    }
}

#[test]
#[ignore = "starts guests: ./kayvee test"]
fn a_recording_of_a_run_that_is_killed_can_be_read() {
    for way in recorded_ways().filter(|way| way.more.contains(&"xdp")) {
        println!("{way:?}");
        let path = state_folder().join("killed.pcap");
        let mut store = Store::start(way.target, &[way.more, &["--pcap", path.to_str().unwrap()]].concat(), &[]);
        let (mut client, mut reader) = (store.connect(), store.connect());
        let busy = std::thread::spawn(move || {
            let request = format!("ECHO {}\r\n", "v".repeat(30_000));
            let mut reply = vec![0; 30_010];
            while client.write_all(request.as_bytes()).and_then(|()| client.read_exact(&mut reply)).is_ok() {}
        });
        assert_eq!(ask(&mut reader, "PING"), "+PONG");
        wait_until("frames in the file", || fs::metadata(&path).is_ok_and(|file| file.len() > 4 << 20));
        store.cli.kill().unwrap();
        store.cli.wait().unwrap();
        busy.join().unwrap();
        // The kernel may break off a write of a process that is killed, and with it the last frame.
        let output = Command::new("tcpdump").args(["-nn", "-r"]).arg(&path).arg("tcp").output().unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() || complaint.contains("truncated dump file"), "{complaint}");
        assert!(output.stdout.iter().filter(|&&byte| byte == b'\n').count() > 100);
    }
}

/// How many packets may wait on the interface that an address is behind.
fn queue_packets(address: std::net::IpAddr) -> u32 {
    let route = Command::new("ip").args(["route", "get", &address.to_string()]).output().unwrap();
    let route = said(&route);
    let interface = route.split_ascii_whitespace().skip_while(|word| *word != "dev").nth(1).unwrap();
    let packets = std::fs::read_to_string(format!("/sys/class/net/{interface}/tx_queue_len")).unwrap();
    packets.trim().parse().unwrap()
}

#[test]
#[ignore = "starts guests: ./kayvee test"]
fn many_connections_are_served_at_once() {
    for way in all_ways().filter(|way| !way.more.contains(&"q35")) {
        println!("{way:?}");
        let store = Store::start(way.target, way.more, &[]);
        let mut clients: Vec<_> = (0..MANY_CONNECTIONS).map(|_| store.connect()).collect();
        for _ in 0..2 {
            for client in &mut clients {
                client.write_all(b"PING\r\n").unwrap();
            }
            for client in &mut clients {
                let mut reply = [0; 7];
                client.read_exact(&mut reply).unwrap();
                assert_eq!(&reply, b"+PONG\r\n");
            }
        }
        assert_eq!(store.end("TERM").code(), Some(0));
    }
}

#[test]
#[ignore = "starts guests: ./kayvee test"]
fn a_store_with_a_password_gets_ready_and_keeps_it() {
    for way in [LINUX, TCG] {
        let store = Store::start(way.target, way.more, &["--requirepass", "two words"]);
        let mut client = store.connect();
        assert!(ask(&mut client, "PING").starts_with("-NOAUTH"), "{way:?}");
        assert_eq!(ask(&mut client, "AUTH 'two words'"), "+OK");
        assert_eq!(ask(&mut client, "PING"), "+PONG");
        assert_eq!(store.end("TERM").code(), Some(0));
    }
}

/// Where a process' log goes to a file, and with nothing in it but what is wrong.
#[test]
#[ignore = "starts guests: ./kayvee test"]
fn a_store_gets_ready_wherever_its_log_goes() {
    let file = std::env::temp_dir().join(format!("kayvee-logfile-{}", std::process::id()));
    for way in [LINUX, LINUX_XDP].into_iter().filter(|way| way.works_here()) {
        for level in ["notice", "warning"] {
            let options = ["--logfile", file.to_str().unwrap(), "--loglevel", level];
            let store = Store::start(way.target, way.more, &options);
            assert_eq!(ask(&mut store.connect(), "PING"), "+PONG", "{way:?}");
            assert_eq!(store.end("TERM").code(), Some(0), "{way:?}");
            let written = fs::read_to_string(&file).unwrap();
            fs::remove_file(&file).unwrap();
            assert!(written.contains(" * ready: "), "{way:?}: {written}");
        }
    }
}

#[test]
#[ignore = "starts guests: ./kayvee test"]
fn a_client_s_shutdown_ends_the_run() {
    for way in all_ways() {
        let mut store = Store::start(way.target, way.more, &[]);
        store.connect().write_all(b"SHUTDOWN\r\n").unwrap();
        assert_eq!(store.wait().code(), Some(0), "{way:?}");
    }
}

#[test]
#[ignore = "starts guests: ./kayvee test"]
fn a_store_that_is_killed_is_a_failure() {
    let redirected = GUESTS.iter().copied().filter(|way| way.place.ends_with("also at ") && way.works_here());
    for way in [LINUX, TCG].into_iter().chain(redirected) {
        let mut store = Store::start(way.target, way.more, &[]);
        let mut client = store.connect();
        assert_eq!(ask(&mut client, "PING"), "+PONG");
        send_signal("KILL", store.supervised());
        assert_eq!(store.wait().code(), Some(1), "{way:?}");
        assert!(is_over(&mut client), "{way:?}");
    }
}

/// Whether a connection ends, or breaks.
fn is_over(client: &mut TcpStream) -> bool {
    match client.read(&mut [0]) {
        Ok(len) => len == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}

/// Tells a store that stands still to end, and waits until the user is told that this takes long.
fn end_slowly() -> (Store, u32) {
    let mut cli = kayvee();
    cli.stderr(Stdio::piped());
    let mut store = Store::start_by(cli, "linux", &[], &[]);
    let supervised = store.supervised();
    send_signal("STOP", supervised);
    send_signal("TERM", store.cli.id());
    let mut lines = BufReader::new(store.cli.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("the store is still ending")));
    // What it says from now on has to go somewhere.
    std::thread::spawn(move || lines.for_each(drop));
    (store, supervised)
}

#[test]
#[ignore = "starts guests: ./kayvee test"]
fn a_store_that_takes_long_to_end_is_waited_for() {
    let (mut store, supervised) = end_slowly();
    send_signal("CONT", supervised);
    assert_eq!(store.wait().code(), Some(0));
    // Whoever does not want to wait says so once more.
    let (store, _) = end_slowly();
    assert_eq!(store.end("INT").code(), Some(1));
}

/// What it has half written does not stay.
#[test]
#[ignore = "starts guests: ./kayvee test"]
fn a_process_that_is_told_twice_to_end_removes_what_it_has_half_written() {
    let folder = state_folder().join("half");
    // Left by an earlier run that was killed.
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let mut cli = kayvee();
    cli.stderr(Stdio::piped());
    let mut store = Store::start_by(cli, "linux", &[], &["--save", "3600 1", "--dir", folder.to_str().unwrap()]);
    let half = folder.join(format!("dump.rdb.{}.tmp", store.supervised()));
    // Nobody reads from it, so that the save waits.
    assert!(Command::new("mkfifo").arg(&half).status().unwrap().success());
    let mut lines = BufReader::new(store.cli.stderr.take().unwrap()).lines().map(Result::unwrap);
    send_signal("TERM", store.cli.id());
    assert!(lines.any(|line| line.contains("Saving the final RDB snapshot")));
    std::thread::spawn(move || lines.for_each(drop));
    assert_eq!(store.end("INT").code(), Some(1));
    assert!(!half.exists());
    fs::remove_dir(&folder).expect("nothing is in it");
}

#[test]
#[ignore = "starts guests: ./kayvee test"]
fn a_disk_keeps_data_from_one_target_to_the_next() {
    let path = state_folder().join("kept, with a comma.disk");
    // Left by an earlier run that was killed.
    let _ = fs::remove_file(&path);
    let mut size_mib = 16;
    let mut written = Vec::new();
    // Each of them has to read what all before it have written.
    for way in all_ways() {
        println!("{way:?}");
        let disk = format!("{}:{size_mib}M", path.display());
        let more = [way.more, &["--disk", &disk]].concat();
        // What is written the moment before the end is kept only by an end in good order.
        let store = Store::start(way.target, &more, &["--appendfsync", "no"]);
        let mut client = store.connect();
        for (number, name) in written.iter().enumerate() {
            // One that adds nothing to a number answers with it, in one line.
            assert_eq!(ask(&mut client, &format!("HINCRBY kept {name} 0")), format!(":{number}"));
        }
        let name = format!("{}{}", way.target, way.more.concat());
        assert_eq!(ask(&mut client, &format!("HSET kept {name} {}", written.len())), ":1");
        written.push(name);
        let other = kayvee().args(["run", "--target", way.target, "--port", "1", "--disk", &disk]).output().unwrap();
        assert_eq!(other.status.code(), Some(1));
        assert!(said(&other).contains("it is in use by another program"), "{}", said(&other));
        // What is written just now is not read either.
        let check = || kayvee().args(["log", "check"]).arg(&path).output().unwrap();
        let busy = check();
        assert!(!busy.status.success() && said(&busy).contains("it is in use by another program"), "{}", said(&busy));
        assert_eq!(store.end("TERM").code(), Some(0));
        let check = check();
        assert!(check.status.success() && said(&check).contains(": sound\n"), "{}", said(&check));
        // It grows from one to the next.
        size_mib += 16;
    }
    let smaller = format!("{}:16M", path.display());
    let refused = kayvee().args(["run", "--target", "linux", "--port", "1", "--disk", &smaller]).output().unwrap();
    assert!(said(&refused).contains("cannot be made smaller"), "{}", said(&refused));
    fs::remove_file(&path).unwrap();
}

#[test]
#[ignore = "starts guests: ./kayvee test"]
fn what_a_guest_refuses_leaves_no_disk() {
    if !kvm_works() {
        return;
    }
    let path = state_folder().join("refused.disk");
    let arguments =
        ["run", "--port", "1", "--disk", &format!("{}:16M", path.display()), "--", "--aclfile", "users.acl"];
    let refused = kayvee().args(arguments).output().unwrap();
    assert!(said(&refused).contains("a guest has no files"), "{}", said(&refused));
    assert!(!path.exists());
}

/// What data leave free lies in other pieces when they are laid out anew.
#[test]
#[ignore = "starts guests: ./kayvee test"]
fn a_guest_whose_memory_is_full_starts_again_with_as_much() {
    const REQUESTS_AT_A_TIME: usize = 200;
    let path = state_folder().join("full.disk");
    let _ = fs::remove_file(&path);
    let disk = format!("{}:256M", path.display());
    let more = [TCG.more, &["--memory", "16", "--disk", &disk]].concat();
    let mut number = 0;
    let mut digest = String::new();
    for start in 0..3 {
        let store = Store::start(TCG.target, &more, &["--enable-debug-command", "yes"]);
        let mut client = store.connect();
        if start > 0 {
            assert_eq!(ask(&mut client, "DEBUG DIGEST"), digest);
        }
        let mut replies = BufReader::new(client.try_clone().unwrap());
        let (mut taken, mut refused) = (0, 0);
        while refused < REQUESTS_AT_A_TIME {
            let mut requests = String::new();
            for _ in 0..REQUESTS_AT_A_TIME {
                number += 1;
                requests += &format!("HSET hash:{} field:{number} {number:0>20}\r\n", number * 7919 % 300);
            }
            client.write_all(requests.as_bytes()).unwrap();
            for _ in 0..REQUESTS_AT_A_TIME {
                let mut reply = String::new();
                replies.read_line(&mut reply).unwrap();
                match reply.as_str() {
                    ":1\r\n" => taken += 1,
                    _ => {
                        assert!(reply.starts_with("-OOM"), "{reply:?}");
                        refused += 1;
                    }
                }
            }
        }
        println!("start {start}: {taken} fields taken");
        assert_eq!(start == 0, taken > 50_000);
        digest = ask(&mut client, "DEBUG DIGEST");
        assert_eq!(store.end("TERM").code(), Some(0));
    }
    fs::remove_file(&path).unwrap();
}

#[test]
#[ignore = "starts guests: ./kayvee test"]
fn a_guest_that_crashes_says_where_and_is_a_failure() {
    let mut cli = kayvee();
    let console = state_folder().join("crash");
    cli.stderr(fs::File::create(&console).unwrap());
    let mut store = Store::start_by(cli, TCG.target, TCG.more, &["--enable-debug-command", "yes"]);
    store.connect().write_all(b"DEBUG PANIC\r\n").unwrap();
    assert_eq!(store.wait().code(), Some(1));
    let console = fs::read_to_string(console).unwrap();
    let (_, report) = console.split_once("panic: ").unwrap_or_else(|| panic!("no report in {console:?}"));
    assert!(report.contains("  at kayvee_commands::"), "{report}");
    assert!(
        report.ends_with("kayvee: the guest crashed; its last lines have the cause and the backtrace\n"),
        "{report}"
    );
}

#[test]
#[ignore = "starts guests: ./kayvee test"]
fn a_command_that_is_killed_leaves_nothing_behind() {
    for way in all_ways() {
        let store = Store::start(way.target, way.more, &[]);
        let supervised = store.supervised();
        let address = store.address;
        let mut client = store.connect();
        assert_eq!(ask(&mut client, "PING"), "+PONG");
        send_signal("KILL", store.cli.id());
        drop(store);
        // QEMU ends with the command, and so does the link: nobody is left to say so.
        let by_qemu = way.target == "tcg" || way.more.iter().any(|word| ["qemu", "q35"].contains(word));
        assert!(by_qemu && !way.more.contains(&"user") || is_over(&mut client), "{way:?}");
        wait_until("the end of the store", || fs::metadata(format!("/proc/{supervised}")).is_err());
        assert!(TcpStream::connect(address).is_err());
    }
}

#[test]
#[ignore = "starts guests: ./kayvee test"]
fn instances_live_in_the_background() {
    for (way, name) in [(LINUX, "background-linux"), (TCG, "background-tcg")] {
        let port = free_port().to_string();
        let detached = |name: &str| {
            let mut command = kayvee();
            command.args(["run", "--detach", "--name", name, "--target", way.target, "--port", &port]).args(way.more);
            command.output().unwrap()
        };
        let control = |args: &[&str]| kayvee().args(args).output().unwrap();

        let started = detached(name);
        assert!(started.status.success() && said(&started).contains("ready: "), "{}", said(&started));
        let address = format!("127.0.0.1:{port}");
        assert_eq!(ask(&mut connect(address.parse().unwrap()), "PING"), "+PONG");
        let list = said(&control(&["ps"]));
        let row = list.lines().find(|row| row.starts_with(name)).unwrap();
        assert!(row.contains(way.target) && row.contains(&address) && row.contains("up "), "{row}");

        let again = detached(name);
        assert_eq!(again.status.code(), Some(1));
        assert!(said(&again).contains("is running; stop it"), "{}", said(&again));
        let other = detached("background-other");
        assert_eq!(other.status.code(), Some(1));
        assert!(said(&other).contains("is in use by another program"), "{}", said(&other));
        assert!(said(&control(&["stop", "background-other"])).contains("was not running"));

        let mut following = kayvee().args(["logs", "-f", name]).stdout(Stdio::piped()).spawn().unwrap();
        assert!(!said(&control(&["logs", name])).is_empty(), "{way:?} wrote no log");
        // One whose reader goes ends, though no further line comes.
        let mut unread = kayvee().args(["logs", "-f", name]).stdout(Stdio::piped()).spawn().unwrap();
        let mut reader = BufReader::new(unread.stdout.take().unwrap());
        reader.read_line(&mut String::new()).unwrap();
        drop(reader);
        let deadline = Instant::now() + TIMEOUT;
        while unread.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "nobody reads the log any more");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(control(&["stop", name]).status.success());
        assert!(following.wait().unwrap().success());
        assert!(TcpStream::connect(&address).is_err());
        assert!(!said(&control(&["ps"])).contains(name));
    }
}

/// Each has done what it was asked for, whichever of them sees the end first.
#[test]
#[ignore = "starts guests: ./kayvee test"]
fn an_instance_can_be_stopped_twice_at_once() {
    let (name, port) = ("stopped-twice", free_port().to_string());
    let started =
        kayvee().args(["run", "--detach", "--name", name, "--target", "linux", "--port", &port]).output().unwrap();
    assert!(started.status.success(), "{}", said(&started));
    let list = said(&kayvee().arg("ps").output().unwrap());
    let row = list.lines().find(|row| row.starts_with(name)).unwrap();
    let supervisor: u32 = row.split_ascii_whitespace().nth(3).unwrap().parse().unwrap();
    // It takes so long to end that both wait for it.
    send_signal("STOP", supervisor);
    let [late, early] = [(); 2].map(|()| {
        let mut stop = kayvee().args(["stop", name]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut words = BufReader::new(stop.stderr.take().unwrap());
        let mut line = String::new();
        words.read_line(&mut line).unwrap();
        assert!(line.contains("waiting for 'stopped-twice' to end"), "{line}");
        (stop, words)
    });
    send_signal("STOP", late.0.id());
    send_signal("CONT", supervisor);
    for (is_late, (mut stop, mut words)) in [(false, early), (true, late)] {
        if is_late {
            send_signal("CONT", stop.id());
        }
        let mut said = String::new();
        words.read_to_string(&mut said).unwrap();
        stop.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(stop.wait().unwrap().success() && said == "stopped stopped-twice\n", "{is_late}: {said}");
    }
    assert!(!said(&kayvee().arg("ps").output().unwrap()).contains(name));
}

/// Whoever names the wrong folder need not wait until all of it is packed.
#[test]
#[ignore = "starts guests: ./kayvee test"]
fn a_run_can_be_ended_while_its_site_is_packed() {
    /// Packing them takes several times as long as an end may.
    const FILES: u32 = 2000;
    const LIMIT: Duration = Duration::from_secs(2);
    let folder = state_folder().join("large-site");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let page = folder.join("page.html");
    fs::write(&page, (0..20_000).map(|number| format!("{} ", number * number)).collect::<String>()).unwrap();
    for number in 1..FILES {
        fs::hard_link(&page, folder.join(format!("{number}.html"))).unwrap();
    }
    for (way, signal) in [(TCG, "INT"), (TCG, "TERM"), (LINUX, "TERM")] {
        let (mut command, ports) = (kayvee(), [free_port(), free_port()].map(|port| port.to_string()));
        command.args(["run", "--target", way.target, "--port", &ports[0], "--http-port", &ports[1]]).args(way.more);
        let mut cli = command.arg("--site").arg(&folder).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(cli.stderr.take().unwrap()).lines().map(Result::unwrap);
        let fds = format!("/proc/{}/fd", cli.id());
        let is_image =
            |file: fs::DirEntry| fs::read_link(file.path()).is_ok_and(|to| to.to_string_lossy().contains("site.image"));
        match way.target {
            "linux" => assert!(lines.any(|line| line.contains("web server ready: "))),
            _ => wait_until("the packing", || fs::read_dir(&fds).unwrap().flatten().any(is_image)),
        }
        let asked = Instant::now();
        send_signal(signal, cli.id());
        let last = lines.last();
        assert_eq!(cli.wait().unwrap().code(), Some(0), "{way:?}: {last:?}");
        assert!(asked.elapsed() < LIMIT, "{way:?}: it took {:?}", asked.elapsed());
    }
    fs::remove_dir_all(&folder).unwrap();
}
