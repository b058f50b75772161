//! Kayvee's own monitor, seen from outside: what it tells, a guest that stands still, a debugger, and what is left behind.
//!
//! These tests start guests from the release build, so `./kayvee test vmm` runs them behind it:
//! `cargo build --release && cargo test -p kayvee-cli --test monitor -- --ignored`.

mod built;

use kayvee_testing::{ports::free_port, self_tests};
use std::{
    collections::BTreeSet,
    env, fs,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

const TIMEOUT: Duration = Duration::from_secs(60);
/// A guest that does not stand still answers far sooner.
const SILENCE: Duration = Duration::from_millis(300);

/// A port that was free a moment ago.
/// A `kayvee run` on the own monitor, killed with the test.
struct Store {
    cli: Child,
    _stdout: BufReader<ChildStdout>,
    address: SocketAddr,
}

impl Store {
    fn start(more: &[&str]) -> Store {
        let port = free_port();
        let mut command = Command::new(built::kayvee());
        command.args(["run", "--target", "kvm", "--vmm", "kayvee", "--memory", "64", "--port", &port.to_string()]);
        let mut cli = command.args(more).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let mut stdout = BufReader::new(cli.stdout.take().unwrap());
        let mut ready = String::new();
        stdout.read_line(&mut ready).unwrap();
        assert!(ready.starts_with("ready: "), "{ready:?}");
        Store { cli, _stdout: stdout, address: ([127, 0, 0, 1], port).into() }
    }

    fn signal(&self, signal: &str) {
        assert!(Command::new("kill").args(["-s", signal, &self.cli.id().to_string()]).status().unwrap().success());
    }

    fn end(mut self) {
        self.signal("TERM");
        assert!(self.cli.wait().unwrap().success());
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // Already ended, in most tests.
        let _ = self.cli.kill();
        let _ = self.cli.wait();
    }
}

fn send_signal(signal: &str, pid: &str) {
    assert!(Command::new("kill").args(["-s", signal, pid]).status().unwrap().success());
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&address, TIMEOUT).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// Asks for something with a reply of one line.
fn ask(stream: &mut TcpStream, words: &str) -> String {
    stream.write_all(format!("{words}\r\n").as_bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line.trim_end().to_string()
}

/// Asks for a text.
fn text(stream: &mut TcpStream, words: &str) -> String {
    stream.write_all(format!("{words}\r\n").as_bytes()).unwrap();
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let mut text = vec![0; line.trim_end().strip_prefix('$').unwrap().parse::<usize>().unwrap() + 2];
    reader.read_exact(&mut text).unwrap();
    String::from_utf8(text).unwrap()
}

/// The number behind `name:`.
fn figure(text: &str, name: &str) -> u64 {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.unwrap_or_else(|| panic!("no {name} in {text}")).trim().parse().unwrap()
}

/// Detached instances of a test, with a folder of their own.
struct Instances(PathBuf);

impl Instances {
    fn new(name: &str) -> Instances {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("monitor-{name}"));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        Instances(folder)
    }

    fn kayvee(&self, args: &[&str]) -> Output {
        let mut command = Command::new(built::kayvee());
        command.args(args).env("XDG_RUNTIME_DIR", &self.0).output().unwrap()
    }

    fn say(&self, args: &[&str]) -> String {
        let output = self.kayvee(args);
        let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        assert!(output.status.success(), "{args:?}: {text}");
        text
    }
}

impl Instances {
    /// The numbers of an instance's supervisor and its monitor.
    fn processes(&self, name: &str) -> (String, String) {
        let list = self.say(&["ps"]);
        let row = list.lines().find(|row| row.starts_with(&format!("{name} "))).unwrap();
        let supervisor = row.split_ascii_whitespace().nth(3).unwrap();
        let monitor = fs::read_to_string(format!("/proc/{supervisor}/task/{supervisor}/children")).unwrap();
        (supervisor.into(), monitor.trim().into())
    }
}

impl Drop for Instances {
    fn drop(&mut self) {
        self.kayvee(&["stop", "--all"]);
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
#[ignore = "starts guests: ./kayvee test vmm"]
fn a_guest_is_shown_what_its_monitor_does_for_it() {
    let web = free_port().to_string();
    let store = Store::start(&["--http-port", &web]);
    let mut client = connect(store.address);
    let before = text(&mut client, "INFO monitor");
    assert!(before.starts_with("# Monitor\r\n"), "{before}");
    // Longer than the guest polls, so that it sleeps.
    thread::sleep(Duration::from_millis(500));
    let after = text(&mut client, "INFO monitor");
    for name in ["exits_sleep", "time_idle_us", "time_guest_us", "time_host_us"] {
        let name = format!("kayvee_monitor_{name}");
        assert!(figure(&after, &name) > figure(&before, &name), "{name}: {before}{after}");
    }
    let slept_us = figure(&after, "kayvee_monitor_time_idle_us") - figure(&before, "kayvee_monitor_time_idle_us");
    assert!((200_000..5_000_000).contains(&slept_us), "it slept for {slept_us} µs");
    assert!(text(&mut client, "INFO").contains("\r\n# Monitor\r\n"));
    let mut http = connect(([127, 0, 0, 1], web.parse().unwrap()).into());
    http.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut metrics = String::new();
    http.read_to_string(&mut metrics).unwrap();
    assert!(
        metrics.contains("monitor_exits_sleep_total ") && metrics.contains("monitor_time_guest_us_total "),
        "{metrics}"
    );
    store.end();
}

#[test]
#[ignore = "starts guests: ./kayvee test vmm"]
fn a_guest_that_is_told_to_stands_still_even_while_it_never_leaves_by_itself() {
    let instances = Instances::new("pause");
    let port = free_port();
    let start =
        ["run", "--detach", "--name", "still", "--target", "kvm", "--vmm", "kayvee", "--memory", "64", "--port"];
    instances.say(&[&start[..], &[&port.to_string()]].concat());
    let mut client = connect(([127, 0, 0, 1], port).into());
    let mut busy = connect(([127, 0, 0, 1], port).into());
    for round in 0..20 {
        if round % 2 == 1 {
            // It runs in the guest for half a second, without an exit.
            busy.write_all(b"EVAL \"for i = 1, 3000000 do end return 1\" 0\r\n").unwrap();
            thread::sleep(Duration::from_millis(30));
        }
        assert!(instances.say(&["pause", "still"]).starts_with("state:paused\n"));
        let still = |text: String| figure(&text, "time_guest_us");
        let before = still(instances.say(&["stats", "still"]));
        client.write_all(b"PING\r\n").unwrap();
        client.set_read_timeout(Some(SILENCE)).unwrap();
        assert!(client.read(&mut [0; 7]).is_err(), "it answers while it stands still");
        assert_eq!(still(instances.say(&["stats", "still"])), before);
        assert!(instances.say(&["resume", "still"]).starts_with("state:running\n"));
        client.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut reply = [0; 7];
        client.read_exact(&mut reply).unwrap();
        assert_eq!(&reply, b"+PONG\r\n");
        if round % 2 == 1 {
            busy.read_exact(&mut [0; 4]).unwrap();
        }
    }
    // One that stands still is ended in good order as well.
    assert!(!instances.say(&["ps"]).contains("paused"));
    instances.say(&["pause", "still"]);
    assert!(instances.say(&["ps"]).contains("paused"));
    let asked = Instant::now();
    instances.say(&["stop", "still"]);
    assert!(asked.elapsed() < Duration::from_secs(10), "it took {:?}", asked.elapsed());
}

/// What a guest has acknowledged it writes to its disk within a second, and when it ends.
#[test]
#[ignore = "starts guests: ./kayvee test vmm"]
fn a_guest_that_stands_still_keeps_what_it_has_acknowledged_however_it_is_ended() {
    let instances = Instances::new("ended");
    let disk = format!("{}:16M", instances.0.join("disk").display());
    for (round, signal) in ["TERM", "KILL", "TERM"].into_iter().enumerate() {
        let port = free_port();
        let start = ["run", "--detach", "--target", "kvm", "--vmm", "kayvee", "--memory", "32", "--name", "ended"];
        instances.say(&[&start[..], &["--disk", &disk, "--port", &port.to_string()]].concat());
        let mut client = connect(([127, 0, 0, 1], port).into());
        assert_eq!(ask(&mut client, "INCR count"), format!(":{}", round + 1));
        instances.say(&["pause", "ended"]);
        let (supervisor, monitor) = instances.processes("ended");
        send_signal(signal, &supervisor);
        let monitor = PathBuf::from("/proc").join(monitor);
        let deadline = Instant::now() + TIMEOUT;
        while monitor.exists() {
            assert!(Instant::now() < deadline, "the monitor goes on");
            thread::sleep(Duration::from_millis(5));
        }
        instances.say(&["stop", "ended"]);
    }
}

#[test]
#[ignore = "starts guests: ./kayvee test vmm"]
fn a_pause_that_fails_and_an_end_that_is_none_are_failures() {
    let instances = Instances::new("failures");
    let (port, debugger) = (free_port().to_string(), free_port());
    let start = ["run", "--detach", "--target", "kvm", "--vmm", "kayvee", "--memory", "32", "--name", "held", "--port"];
    instances.say(&[&start[..], &[&port, "--gdb", &debugger.to_string()]].concat());
    let address = SocketAddr::from(([127, 0, 0, 1], port.parse().unwrap()));
    let mut client = connect(address);
    assert_eq!(ask(&mut client, "PING"), "+PONG");
    // It stands still for a debugger, which says nothing yet.
    let held = connect(([127, 0, 0, 1], debugger).into());
    client.write_all(b"PING\r\n").unwrap();
    client.set_read_timeout(Some(SILENCE)).unwrap();
    while client.read(&mut [0; 7]).is_ok() {
        client.write_all(b"PING\r\n").unwrap();
    }
    let output = instances.kayvee(&["pause", "held"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
    assert!(said.contains("the guest does not stand still"), "{said}");
    drop(held);
    client.set_read_timeout(Some(TIMEOUT)).unwrap();
    client.read_exact(&mut [0; 7]).unwrap();
    assert_eq!(ask(&mut connect(address), "PING"), "+PONG", "it does not stand still later");
    // Its monitor is taken away.
    let (supervisor, monitor) = instances.processes("held");
    send_signal("STOP", &supervisor);
    send_signal("KILL", &monitor);
    let mut stop = Command::new(built::kayvee());
    stop.args(["stop", "held"]).env("XDG_RUNTIME_DIR", &instances.0).stderr(Stdio::piped());
    let mut stop = stop.spawn().unwrap();
    let mut words = BufReader::new(stop.stderr.take().unwrap());
    let mut said = String::new();
    while !said.contains("waiting for 'held' to end") {
        assert_ne!(words.read_line(&mut said).unwrap(), 0, "{said}");
    }
    send_signal("CONT", &supervisor);
    words.read_to_string(&mut said).unwrap();
    assert!(!stop.wait().unwrap().success(), "{said}");
    assert!(said.contains("it did not end in good order"), "{said}");
    assert!(!instances.say(&["ps"]).contains("held"), "it is forgotten");
}

/// A monitor that has just begun is no failure when it is told to end.
#[test]
#[ignore = "starts guests: ./kayvee test vmm"]
fn a_run_that_is_ended_while_it_starts_ends_in_good_order() {
    for round in 0..20 {
        let mut command = Command::new(built::kayvee());
        let port = free_port().to_string();
        command.args(["run", "--target", "kvm", "--vmm", "kayvee", "--memory", "32", "--port", &port]);
        let mut cli = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let children = format!("/proc/{0}/task/{0}/children", cli.id());
        let deadline = Instant::now() + TIMEOUT;
        loop {
            assert!(Instant::now() < deadline && cli.try_wait().unwrap().is_none(), "round {round}: no monitor");
            let child = fs::read_to_string(&children).unwrap_or_default();
            // Until it is another program, its words are those of the one that starts it.
            let words = fs::read(format!("/proc/{}/cmdline", child.trim())).unwrap_or_default();
            if words.split(|byte| *byte == 0).nth(1) == Some(b"monitor") {
                break;
            }
        }
        send_signal("TERM", &cli.id().to_string());
        assert_eq!(cli.wait().unwrap().code(), Some(0), "round {round}");
    }
}

/// Runs gdb on a guest, with the image's own symbols.
fn gdb(port: u16, commands: &[&str]) -> String {
    let image = built::kayvee().with_file_name("kayvee-guest");
    let mut command = Command::new("timeout");
    command.args(["120", "gdb", "-q", "-nx", "-batch"]).arg(image);
    let attach = format!("target remote 127.0.0.1:{port}");
    for line in ["set confirm off", "set width 0", attach.as_str()].iter().chain(commands) {
        command.args(["-ex", line]);
    }
    let output = command.stdin(Stdio::null()).output().unwrap();
    [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat()
}

#[test]
#[ignore = "starts guests: ./kayvee test vmm"]
fn gdb_attaches_looks_around_and_leaves() {
    if Command::new("gdb").arg("--version").output().is_err() {
        println!("skipped: there is no gdb");
        return;
    }
    let port = free_port();
    let store = Store::start(&["--gdb", &port.to_string()]);
    let mut client = connect(store.address);
    assert_eq!(ask(&mut client, "PING"), "+PONG");

    // Where it is, its registers, and memory of the image and of none.
    let said =
        gdb(port, &["info registers rip", "x/2i $rip", "print/x *(int*)0x100000", "x/1gx 0xdead000000", "detach"]);
    println!("{said}");
    assert!(said.contains("rip            0x"), "{said}");
    assert!(said.contains("Cannot access memory at address 0xdead000000"), "{said}");
    assert_eq!(ask(&mut client, "PING"), "+PONG", "it goes on");

    if Path::new("/sys/module/kvm_pvm").exists() {
        println!("skipped: paravirtual nested KVM hands the traps of steps and breakpoints to the guest");
        // Refused, and the guest goes on.
        let said = gdb(port, &["stepi"]);
        assert!(said.contains("Remote connection closed"), "{said}");
    } else {
        // A breakpoint that a client runs into, its caller, steps, and a register that is set to what it was.
        let pings = thread::spawn({
            let address = store.address;
            move || ask(&mut connect(address), "PING")
        });
        let look = ["bt 3", "stepi", "stepi", "set $rax = $rax", "info registers rip", "delete", "detach"];
        let said = gdb(port, &[&["hbreak ping", "continue"][..], &look].concat());
        assert!(said.contains("Breakpoint 1, ") && said.contains("#0  ping"), "{said}");
        assert_eq!(pings.join().unwrap(), "+PONG");
    }
    assert_eq!(ask(&mut client, "PING"), "+PONG", "it goes on");

    interrupt(port, store.address);
    assert_eq!(ask(&mut client, "PING"), "+PONG");
    store.end();
}

/// What Ctrl-C in gdb does: stops a guest that runs, and detaching lets it go on. gdb's own words, as their moment matters.
fn interrupt(port: u16, store: SocketAddr) {
    let packet = |text: &str| format!("${text}#{:02x}", text.bytes().fold(0u8, u8::wrapping_add)).into_bytes();
    let mut debugger = connect(([127, 0, 0, 1], port).into());
    let reply = |debugger: &mut TcpStream| {
        let mut text = Vec::new();
        while text.len() < 3 || text[text.len() - 3] != b'#' {
            let mut byte = [0];
            debugger.read_exact(&mut byte).unwrap();
            text.push(byte[0]);
        }
        debugger.write_all(b"+").unwrap();
        String::from_utf8(text).unwrap()
    };
    debugger.write_all(&packet("?")).unwrap();
    assert!(reply(&mut debugger).contains("$T05"), "it stands still when a debugger comes");
    let mut client = connect(store);
    client.write_all(b"PING\r\n").unwrap();
    client.set_read_timeout(Some(SILENCE)).unwrap();
    assert!(client.read(&mut [0; 7]).is_err(), "it answers while it stands still");
    debugger.write_all(&packet("c")).unwrap();
    client.set_read_timeout(Some(TIMEOUT)).unwrap();
    client.read_exact(&mut [0; 7]).unwrap();
    debugger.write_all(&[3]).unwrap();
    let stop = reply(&mut debugger);
    assert!(stop.contains("$S02") || stop.contains("$T02"), "{stop}");
    debugger.write_all(&packet("D")).unwrap();
    assert!(reply(&mut debugger).contains("$OK"));
}

/// What a run could leave behind on this host.
fn traces(instances: &Instances) -> BTreeSet<String> {
    let mut traces = BTreeSet::new();
    let interfaces = fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    traces.extend(
        interfaces.lines().skip(2).filter_map(|line| Some(format!("interface {}", line.split_once(':')?.0.trim()))),
    );
    for file in walk(&instances.0) {
        traces.insert(format!("file {}", file.display()));
    }
    // Whoever is in this network namespace was started by this test.
    let namespace = fs::read_link("/proc/thread-self/ns/net").unwrap();
    for process in fs::read_dir("/proc").unwrap().flatten().filter(|entry| entry.path().join("ns").is_dir()) {
        if fs::read_link(process.path().join("ns/net")).is_ok_and(|other| other == namespace) {
            let command = fs::read(process.path().join("cmdline")).unwrap_or_default();
            traces.insert(format!("process {}", String::from_utf8_lossy(&command).replace('\0', " ")));
        }
    }
    for table in ["tcp", "unix"] {
        let sockets = fs::read_to_string(format!("/proc/thread-self/net/{table}")).unwrap();
        let is_ours =
            |line: &&str| line.contains(instances.0.to_str().unwrap()) || table == "tcp" && line.contains(" 0A ");
        traces.extend(sockets.lines().filter(is_ours).map(|line| {
            let place = line.split_ascii_whitespace().nth(if table == "tcp" { 1 } else { 7 });
            format!("{table} socket {}", place.unwrap_or_default())
        }));
    }
    traces
}

fn walk(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}

#[test]
#[ignore = "starts guests: ./kayvee test vmm"]
fn every_failure_of_a_guest_names_its_cause_and_its_place() {
    // The shell puts what the monitor inherits where its arguments say.
    const MONITOR: &str = "exec \"$0\" monitor --memory 64 --image 4 --stream 3 --mac 02:00:00:00:00:01 \
                           --boot-line \"$2\" 3<&0 4<\"$1\" </dev/null";
    let image = Path::new(env!("CARGO_TARGET_TMPDIR")).join("monitor-test.elf");
    assert!(Command::new(built::kayvee()).args(["image", "-o"]).arg(&image).status().unwrap().success());
    self_tests::check(|words| {
        let (card, _wire) = UnixStream::pair().unwrap();
        let mut monitor = Command::new("sh");
        monitor.args(["-c", MONITOR]).arg(built::kayvee()).arg(&image).arg(words).stdin(OwnedFd::from(card));
        let output = monitor.output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).lines().map(String::from).collect())
    });
}

/// In a network namespace of its own, so that nobody else's interfaces and sockets are seen.
#[test]
#[ignore = "needs root, starts guests: ./kayvee test vmm"]
fn starts_and_kills_leave_nothing_behind() {
    // A thousand with `./kayvee test --long vmm`.
    let rounds: usize = env::var("KAYVEE_KILLS").map_or(30, |kills| kills.parse().expect("a number"));
    let instances = Instances::new("kills");
    let inside = move || {
        kayvee_link::switch_on("lo")?;
        let disk = instances.0.join("disk");
        let before = traces(&instances);
        let ways: &[&[&str]] = &[&["--net", "xdp"], &["--net", "tap"], &["--net", "user"]];
        for round in 0..rounds {
            let port = free_port();
            let mut command = Command::new(built::kayvee());
            command.args(["run", "--target", "kvm", "--vmm", "kayvee", "--memory", "32", "--port", &port.to_string()]);
            command.args(ways[round % ways.len()]).arg("--disk").arg(format!("{}:16M", disk.display()));
            // Without this a machine that is killed may lose the last second.
            command.args(["--", "--appendfsync", "always"]);
            command.env("XDG_RUNTIME_DIR", &instances.0).stdout(Stdio::piped());
            let mut cli = command.spawn()?;
            let mut stdout = BufReader::new(cli.stdout.take().unwrap());
            let mut ready = String::new();
            stdout.read_line(&mut ready)?;
            assert!(ready.starts_with("ready: "), "round {round}: {ready:?}");
            let mut client = connect(([127, 0, 0, 1], port).into());
            assert_eq!(ask(&mut client, "INCR rounds"), format!(":{}", round + 1), "nothing acknowledged is lost");
            match round / ways.len() % 3 {
                0 => assert!(Command::new("kill").arg(cli.id().to_string()).status()?.success()),
                1 => cli.kill()?,
                _ => client.write_all(b"SHUTDOWN\r\n")?,
            }
            let is_killed = round / ways.len() % 3 == 1;
            assert_eq!(cli.wait()?.success(), !is_killed, "round {round}");
            drop((client, stdout));
            fs::rename(&disk, instances.0.with_extension("disk"))?;
            let deadline = Instant::now() + TIMEOUT;
            // A killed process' children end a moment after it.
            while traces(&instances) != before {
                assert!(Instant::now() < deadline, "round {round}: {:?}", &traces(&instances) - &before);
                thread::sleep(Duration::from_millis(5));
            }
            fs::rename(instances.0.with_extension("disk"), &disk)?;
        }
        fs::remove_file(&disk)?;
        Ok(())
    };
    match kayvee_link::Namespace::create() {
        Ok(namespace) => namespace.enter(inside).unwrap(),
        Err(error) => println!("skipped: it needs root: {error:#}"),
    }
}
