//! Clusters that `kayvee run --shards` starts: every key on one shard, messages on all of them, their disks, their ends.
//!
//! These tests start processes and guests from the release build, so `./kayvee test shards` runs them behind it:
//! `cargo build --release && cargo test -p kayvee-cli --test shards -- --ignored`.

mod built;

use kayvee_testing::{
    client::{Client, Reply, encode},
    ports::free_ports,
};
use std::{
    fs,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

const PATIENCE: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
const SHARDS: u16 = 3;
const KEYS: usize = 300;

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("shards-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A `kayvee run --shards`, killed with this value unless it has ended.
struct Cluster {
    child: Child,
    stdout: BufReader<ChildStdout>,
    stderr: PathBuf,
    first_port: u16,
}

fn command(target: &[&str], disk: &Path, first_port: u16, shards: u16) -> Command {
    let mut command = Command::new(built::kayvee());
    command.args(["run", "--memory", "64", "--port", &first_port.to_string(), "--shards", &shards.to_string()]);
    command.args(target).args(["--disk", &format!("{}:64M", disk.display())]);
    command
}

impl Cluster {
    fn start(target: &[&str], folder: &Folder, first_port: u16) -> Cluster {
        Cluster::start_with(target, folder, first_port, &[])
    }

    fn start_with(target: &[&str], folder: &Folder, first_port: u16, options: &[&str]) -> Cluster {
        let stderr = folder.0.join("stderr");
        let mut command = command(target, &folder.0.join("disk"), first_port, SHARDS);
        command.arg("--").args(options);
        command.stdout(Stdio::piped()).stderr(fs::File::create(&stderr).unwrap());
        let mut child = command.spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut ready = String::new();
        stdout.read_line(&mut ready).unwrap();
        let words = format!("ready: 127.0.0.1:{first_port} to {} (a cluster of 3 shards)\n", first_port + SHARDS - 1);
        assert_eq!(ready, words, "{target:?}: {}", fs::read_to_string(&stderr).unwrap());
        Cluster { child, stdout, stderr, first_port }
    }

    fn clients(&self) -> Vec<Client> {
        let address = |number| format!("127.0.0.1:{}", self.first_port + number);
        (0..SHARDS).map(|number| Client::connect(&address(number)).unwrap()).collect()
    }

    /// What a process is and supervises.
    fn children(&self) -> Vec<u32> {
        let pid = self.child.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        children.split_ascii_whitespace().map(|pid| pid.parse().unwrap()).collect()
    }

    fn end(mut self) -> (ExitStatus, String) {
        signal("TERM", self.child.id());
        self.wait()
    }

    fn wait(&mut self) -> (ExitStatus, String) {
        self.stdout.read_to_string(&mut String::new()).unwrap();
        (self.child.wait().unwrap(), fs::read_to_string(&self.stderr).unwrap())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How many connections a shard has that carry its messages to others.
fn relays(client: &mut Client) -> usize {
    let list = client.call(&["CLIENT", "LIST", "TYPE", "pubsub"]).unwrap();
    String::from_utf8_lossy(list.text().unwrap()).matches("cmd=cluster|relay").count()
}

fn signal(name: &str, pid: u32) {
    assert!(Command::new("kill").args(["-s", name, &pid.to_string()]).status().unwrap().success());
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: it takes too long");
        thread::sleep(POLL_INTERVAL);
    }
}

/// What a client says that sends a request to any shard, and then to the one that it is sent to.
fn call(clients: &mut [Client], first_port: u16, at: usize, words: &[&str]) -> (usize, Reply) {
    let reply = clients[at].call(words).unwrap();
    let Some(moved) = reply.to_string().strip_prefix("-MOVED ").map(String::from) else { return (at, reply) };
    let port: u16 = moved.rsplit_once(':').unwrap().1.parse().unwrap();
    let other = usize::from(port - first_port);
    assert_ne!(other, at, "{words:?}: {moved}");
    (other, clients[other].call(words).unwrap())
}

fn sizes(clients: &mut [Client]) -> Vec<i64> {
    clients.iter_mut().map(|client| client.call(&["DBSIZE"]).unwrap().integer().unwrap()).collect()
}

fn redis_cli(first_port: u16, words: &[&str]) -> Output {
    Command::new("redis-cli").args(["-p", &first_port.to_string()]).args(words).output().unwrap()
}

fn a_cluster_serves(name: &str, target: &[&str]) {
    let folder = Folder::new(name);
    let first_port = free_ports(SHARDS);
    let cluster = Cluster::start(target, &folder, first_port);
    let mut clients = cluster.clients();

    let mut counts = [0; SHARDS as usize];
    for number in 0..KEYS {
        let key = format!("key:{number}");
        let (at, reply) = call(&mut clients, first_port, number % 3, &["SET", &key, "x"]);
        assert_eq!(reply.to_string(), "+OK", "{key}");
        counts[at] += 1;
    }
    assert_eq!(sizes(&mut clients), counts, "each key is on one shard");
    assert!(counts.iter().all(|count| *count > KEYS as i64 / 5), "{counts:?}");

    let check = redis_cli(first_port, &["--cluster", "check", &format!("127.0.0.1:{first_port}")]);
    let said = String::from_utf8_lossy(&check.stdout);
    assert!(check.status.success() && said.contains("All 16384 slots covered"), "{said}");
    let got = redis_cli(first_port, &["-c", "get", "key:7"]);
    assert_eq!(String::from_utf8_lossy(&got.stdout), "x\n");

    // What is published on any shard is heard on every one, once.
    wait_until("the shards find each other", || clients.iter_mut().all(|client| relays(client) == 2));
    let mut listeners = cluster.clients();
    for listener in &mut listeners {
        listener.call(&["SUBSCRIBE", "news"]).unwrap();
    }
    for publisher in &mut clients {
        assert_eq!(publisher.call(&["PUBLISH", "news", "x"]).unwrap().integer(), Some(1));
    }
    for listener in &mut listeners {
        for _ in 0..SHARDS {
            assert_eq!(listener.read_reply().unwrap().to_string(), "[\"message\" \"news\" \"x\"]");
        }
        assert_eq!(listener.call(&["UNSUBSCRIBE", "news"]).unwrap().to_string(), "[\"unsubscribe\" \"news\" :0]");
    }

    let (status, said) = cluster.end();
    assert!(status.success(), "{status}: {said}");

    // With another number of shards the keys would be elsewhere.
    let other = command(target, &folder.0.join("disk"), free_ports(5), 5).output().unwrap();
    let said = String::from_utf8_lossy(&other.stderr);
    assert!(other.status.code() == Some(1) && said.contains("keys here belong to other shards"), "{said}");

    let mut cluster = Cluster::start(target, &folder, first_port);
    assert_eq!(sizes(&mut cluster.clients()), counts, "the disks have them");
    // Without one of them the others have only a part of the keys.
    let one = cluster.children()[1];
    signal("KILL", one);
    let (status, said) = cluster.wait();
    assert!(!status.success() && said.contains("and so did the cluster"), "{status}: {said}");
}

/// What is published while a shard runs a long script is heard there when that has ended, each message once.
#[test]
#[ignore = "starts the release build"]
fn messages_wait_for_scripts() {
    // Scripts see a time that stands still.
    const SCRIPT: &str = "local n = 0 for i = 1, 30000000 do n = n + i end";
    const MESSAGES: usize = 20;
    let folder = Folder::new("scripts");
    let options = ["--busy-reply-threshold", "10"];
    let cluster = Cluster::start_with(&["--target", "linux"], &folder, free_ports(SHARDS), &options);
    let mut clients = cluster.clients();
    wait_until("the shards find each other", || clients.iter_mut().all(|client| relays(client) == 2));
    let mut others = cluster.clients();
    others[0].call(&["SUBSCRIBE", "news"]).unwrap();
    clients[0].send(&encode(&["EVAL", SCRIPT, "0"])).unwrap();
    wait_until("the script runs for long", || {
        cluster.clients()[0].call(&["PING"]).unwrap().to_string().starts_with("-BUSY")
    });
    for number in 0..MESSAGES {
        others[1].call(&["PUBLISH", "news", &number.to_string()]).unwrap();
    }
    for number in 0..MESSAGES {
        assert_eq!(others[0].read_reply().unwrap().to_string(), format!("[\"message\" \"news\" \"{number}\"]"));
    }
    clients[0].read_reply().unwrap();
    let (status, said) = cluster.end();
    assert!(status.success(), "{status}: {said}");
}

#[test]
#[ignore = "starts the release build"]
fn a_cluster_of_processes_serves() {
    a_cluster_serves("linux", &["--target", "linux"]);
}

#[test]
#[ignore = "starts the release build"]
fn a_cluster_of_guests_serves() {
    a_cluster_serves("auto", &["--target", "auto"]);
}

#[test]
#[ignore = "starts the release build"]
fn a_cluster_of_emulated_guests_serves() {
    a_cluster_serves("tcg", &["--target", "tcg", "--net", "user"]);
}
