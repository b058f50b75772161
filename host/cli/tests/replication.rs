//! Copies on other stores, stores that change places with them, and keys that move, between this project's stores and
//! redis-server, as processes and as booted guests.
//!
//! These tests start redis-server, processes and guests from the release build, so `./kayvee test replication` runs them:
//! `cargo build --release && cargo test -p kayvee-cli --test replication -- --ignored`.

mod built;
mod servers;

use kayvee_testing::{
    client::{Client, Reply, encode},
    ports::free_port,
};
use servers::{Folder, PATIENCE, POLL_INTERVAL, Server, expect_same, fill};
use std::{
    fs,
    io::{BufRead, BufReader, Read},
    net::{SocketAddr, UdpSocket},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::Instant,
};

/// What starts a server.
type Start = fn(&Folder, &[&str]) -> Server;

const REDIS: (&str, Start) = ("redis-server", Server::redis);
const KAYVEE: (&str, Start) = ("Kayvee", Server::kayvee);
/// At least one of the two is ours.
const PAIRS: [[(&str, Start); 2]; 3] = [[KAYVEE, KAYVEE], [KAYVEE, REDIS], [REDIS, KAYVEE]];

/// Waits until this is so.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: it takes too long");
        thread::sleep(POLL_INTERVAL);
    }
}

fn info_has(server: &mut Server, line: &str) -> bool {
    let info = server.call(&["INFO", "replication"]);
    let info = String::from_utf8_lossy(info.text().unwrap()).into_owned();
    info.lines().any(|found| found == line)
}

/// Waits until a replica has what its master has, and compares every key.
fn expect_copy(replica: &mut Server, master: &mut Server, what: &str) {
    wait_until(what, || info_has(replica, "master_link_status:up"));
    wait_until(what, || replica.call(&["DEBUG", "DIGEST"]) == master.call(&["DEBUG", "DIGEST"]));
    expect_same(&replica.state(), &master.state(), what);
}

#[test]
#[ignore = "starts redis-server and the release build"]
fn replicas_of_either_kind() {
    for (seed, [(of, master), (by, replica)]) in (0..).zip(PAIRS) {
        let what = format!("{by} copies {of}");
        let folders = [Folder::new("master"), Folder::new("replica")];
        let (mut master, mut replica) = (master(&folders[0], &[]), replica(&folders[1], &[]));
        fill(&mut master, seed);
        replica.expect(&["REPLICAOF", "127.0.0.1", &master.port], "+OK");
        fill(&mut master, seed + 100);
        expect_copy(&mut replica, &mut master, &what);
        fill(&mut master, seed + 200);
        expect_copy(&mut replica, &mut master, &what);
    }
}

#[test]
#[ignore = "starts redis-server and the release build"]
fn masters_and_replicas_change_places() {
    for (seed, [(of, first), (by, second)]) in (0..).zip(PAIRS) {
        let what = format!("{of} fails over to {by}");
        let folders = [Folder::new("first"), Folder::new("second")];
        let (mut first, mut second) = (first(&folders[0], &[]), second(&folders[1], &[]));
        fill(&mut first, seed);
        second.expect(&["REPLICAOF", "127.0.0.1", &first.port], "+OK");
        expect_copy(&mut second, &mut first, &what);
        first.expect(&["FAILOVER", "TO", "127.0.0.1", &second.port, "TIMEOUT", "60000"], "+OK");
        wait_until(&what, || info_has(&mut second, "role:master") && info_has(&mut first, "role:slave"));
        wait_until(&what, || info_has(&mut first, "master_failover_state:no-failover"));
        fill(&mut second, seed + 100);
        expect_copy(&mut first, &mut second, &what);
        // And back, to whoever has everything.
        wait_until(&what, || info_has(&mut second, "connected_slaves:1"));
        second.expect(&["FAILOVER"], "+OK");
        wait_until(&what, || info_has(&mut first, "role:master") && info_has(&mut second, "role:slave"));
        fill(&mut first, seed + 200);
        expect_copy(&mut second, &mut first, &what);
    }
}

/// Redis' own Sentinel finds the replica, sees the master end, and puts the replica in its place.
#[test]
#[ignore = "starts redis-server and the release build"]
fn a_sentinel_promotes_a_replica() {
    let folders = ["master", "replica", "sentinel"].map(Folder::new);
    let (mut master, mut replica) = (Server::kayvee(&folders[0], &[]), Server::kayvee(&folders[1], &[]));
    replica.expect(&["REPLICAOF", "127.0.0.1", &master.port], "+OK");
    wait_until("the replica is online", || info_has(&mut replica, "master_link_status:up"));
    master.expect(&["SET", "k", "v"], "+OK");
    master.expect(&["WAIT", "1", "0"], ":1");

    let (config, port) = (folders[2].path("sentinel.conf"), free_port().to_string());
    let monitor = format!("sentinel monitor kv 127.0.0.1 {} 1", master.port);
    let lines = [&format!("port {port}"), "bind 127.0.0.1", &monitor, "sentinel down-after-milliseconds kv 1000"];
    fs::write(&config, lines.join("\n")).unwrap();
    let dir = folders[2].path("");
    let mut command = Command::new("redis-server");
    let child = command.args([&config, "--sentinel", "--dir", &dir]).stdout(Stdio::null()).spawn().unwrap();
    let mut client = None;
    wait_until("the sentinel listens", || {
        client = Client::connect(&format!("127.0.0.1:{port}")).ok();
        client.is_some()
    });
    let mut sentinel = Server { child, client: client.unwrap(), port };
    wait_until("the sentinel finds the replica", || {
        sentinel.call(&["SENTINEL", "REPLICAS", "kv"]).items().is_some_and(|replicas| replicas.len() == 1)
    });
    master.child.kill().unwrap();
    let place = format!("[\"127.0.0.1\" \"{}\"]", replica.port);
    wait_until("the replica takes the place", || {
        sentinel.call(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "kv"]).to_string() == place
    });
    // It has ended the connections of all clients, so that they ask for the master again.
    replica.client = Client::connect(&format!("127.0.0.1:{}", replica.port)).unwrap();
    assert!(info_has(&mut replica, "role:master"));
    replica.expect(&["SET", "k", "w"], "+OK");
}

#[test]
#[ignore = "starts the release build"]
fn waitaof_counts_disks() {
    let folders = [Folder::new("master"), Folder::new("replica")];
    let log = ["--appendonly", "yes", "--appendfsync", "everysec"];
    let (mut master, mut replica) = (Server::kayvee(&folders[0], &log), Server::kayvee(&folders[1], &log));
    replica.expect(&["REPLICAOF", "127.0.0.1", &master.port], "+OK");
    wait_until("the replica is online", || info_has(&mut replica, "master_link_status:up"));
    master.expect(&["SET", "k", "v"], "+OK");
    master.expect(&["WAITAOF", "1", "1", "0"], "[:1 :1]");
    replica.expect(&["CONFIG", "SET", "appendonly", "no"], "+OK");
    master.expect(&["SET", "k", "w"], "+OK");
    master.expect(&["WAITAOF", "1", "1", "2500"], "[:1 :0]");
}

/// Ends a store in good order.
fn shut_down(mut server: Server, what: &str) {
    server.client.send(&encode(&["SHUTDOWN", "NOW"])).unwrap();
    assert!(server.child.wait().unwrap().success(), "{what}");
}

/// What `INFO stats` says of dumps and of replicas that went on without one.
fn syncs(server: &mut Server) -> String {
    let info = server.call(&["INFO", "stats"]);
    let info = String::from_utf8_lossy(info.text().unwrap()).into_owned();
    info.lines().filter(|line| line.starts_with("sync_")).collect::<Vec<_>>().join(" ")
}

/// A master that has ended, and then its replica, start again with what they have kept, and go on where they were.
#[test]
#[ignore = "starts redis-server and the release build"]
fn histories_outlive_a_restart() {
    let with_dumps = PAIRS.map(|pair| (["--save", "3600 1"], pair));
    let cases = [(["--appendonly", "yes"], PAIRS[0])].into_iter().chain(with_dumps);
    for (keeps, [(first, start_master), (second, start)]) in cases {
        let what = &format!("{second} of {first} with {}", keeps[0]);
        // No ping is lost with a master that ends, and much may change before its replica is there again.
        let options =
            &[&keeps[..], &["--repl-ping-replica-period", "3600", "--repl-backlog-size", "64mb"]].concat()[..];
        let folders = [Folder::new("master"), Folder::new("replica")];
        let mut master = start_master(&folders[0], options);
        let mut replica = start(&folders[1], options);
        let port = master.port.clone();
        fill(&mut master, 1);
        replica.expect(&["REPLICAOF", "127.0.0.1", &port], "+OK");
        expect_copy(&mut replica, &mut master, what);
        let offset = |server: &mut Server| server.call(&["ROLE"]).items().unwrap()[1].to_string();
        wait_until(what, || replica.call(&["ROLE"]).items().unwrap()[4].to_string() == offset(&mut master));
        shut_down(master, what);
        let mut master = start_master(&folders[0], &[options, &["--port", &port]].concat());
        fill(&mut master, 2);
        expect_copy(&mut replica, &mut master, what);
        assert_eq!(syncs(&mut master), "sync_full:0 sync_partial_ok:1 sync_partial_err:0", "the master: {what}");
        shut_down(replica, what);
        fill(&mut master, 3);
        let follow = format!("127.0.0.1 {port}");
        let mut replica = start(&folders[1], &[options, &["--replicaof", &follow]].concat());
        expect_copy(&mut replica, &mut master, what);
        assert_eq!(syncs(&mut master), "sync_full:0 sync_partial_ok:2 sync_partial_err:0", "the replica: {what}");
        // After an end that was none in good order all is copied, whoever has more than the other.
        fill(&mut master, 4);
        // Which kills it.
        drop(master);
        let mut master = start_master(&folders[0], &[options, &["--port", &port]].concat());
        expect_copy(&mut replica, &mut master, what);
        assert!(syncs(&mut master).starts_with("sync_full:1 sync_partial_ok:0"), "the killed master: {what}");
        fill(&mut master, 5);
        drop((replica, master));
        let mut master = start_master(&folders[0], &[options, &["--port", &port]].concat());
        let mut replica = start(&folders[1], &[options, &["--replicaof", &follow]].concat());
        expect_copy(&mut replica, &mut master, what);
    }
}

/// Moves keys from one store to another at this address.
fn move_keys(from: &mut Server, to: &mut Server, [host, port]: [&str; 2], what: &str) {
    from.expect(&["FLUSHALL"], "+OK");
    to.expect(&["FLUSHALL"], "+OK");
    from.expect(&["MIGRATE", host, port, "missing", "0", "5000"], "+NOKEY");
    from.expect(&["SET", "k", "v", "PX", "100000"], "+OK");
    from.expect(&["MIGRATE", host, port, "k", "0", "5000", "COPY"], "+OK");
    from.expect(&["GET", "k"], "\"v\"");
    to.expect(&["GET", "k"], "\"v\"");
    let ttl_ms = to.call(&["PTTL", "k"]).integer().unwrap();
    assert!((1..=100_000).contains(&ttl_ms), "{what}: {ttl_ms}");
    from.expect(&["SET", "k", "w"], "+OK");
    let busy = "-ERR Target instance replied with error: BUSYKEY Target key name already exists.";
    from.expect(&["MIGRATE", host, port, "k", "0", "5000"], busy);
    from.expect(&["EXISTS", "k"], ":1");
    from.expect(&["MIGRATE", host, port, "k", "0", "5000", "REPLACE"], "+OK");
    from.expect(&["EXISTS", "k"], ":0");
    to.expect(&["GET", "k"], "\"w\"");
    to.expect(&["PTTL", "k"], ":-1");
    // One that the other store refuses stays, and the others go.
    from.expect(&["MSET", "a", "1", "b", "2", "c", "3"], "+OK");
    to.expect(&["SET", "b", "x"], "+OK");
    from.expect(&["MIGRATE", host, port, "", "0", "5000", "KEYS", "a", "b", "c"], busy);
    from.expect(&["MGET", "a", "b", "c"], "[nil \"2\" nil]");
    to.expect(&["MGET", "a", "b", "c"], "[\"1\" \"x\" \"3\"]");
    // Many at once, among them a large one, into another database.
    fill(from, 7);
    from.expect(&["SELECT", "0"], "+OK");
    from.expect(&["SETRANGE", "large", "3000000", "x"], ":3000001");
    let mut words = ["MIGRATE", host, port, "", "3", "20000", "KEYS", "missing"].map(String::from).to_vec();
    let keys = from.call(&["KEYS", "*"]);
    let text = |reply: &Reply| String::from_utf8(reply.text().unwrap().to_vec()).unwrap();
    words.extend(keys.items().unwrap().iter().map(text));
    let digest = |server: &mut Server| {
        let values = words[8..].iter().map(|key| server.call(&["DEBUG", "DIGEST-VALUE", key]).to_string());
        values.collect::<Vec<_>>()
    };
    let before = digest(from);
    from.expect(&words.iter().map(String::as_str).collect::<Vec<_>>(), "+OK");
    from.expect(&["DBSIZE"], ":0");
    to.expect(&["SELECT", "3"], "+OK");
    assert_eq!(digest(to), before, "{what}");
    to.expect(&["SELECT", "0"], "+OK");
}

#[test]
#[ignore = "starts redis-server and the release build"]
fn keys_move_between_stores() {
    for [(of, from), (by, to)] in PAIRS {
        let what = format!("from {of} to {by}");
        let folders = [Folder::new("from"), Folder::new("to"), Folder::new("locked")];
        let (mut from, mut open) = (from(&folders[0], &[]), to(&folders[1], &[]));
        let port = open.port.clone();
        move_keys(&mut from, &mut open, ["127.0.0.1", &port], &what);
        // One that asks who it is.
        let mut locked = to(&folders[2], &["--requirepass", "secret"]);
        locked.expect(&["AUTH", "secret"], "+OK");
        locked.expect(&["ACL", "SETUSER", "mover", "on", ">word", "~*", "+@all"], "+OK");
        let mut migrate = |key: &str, login: &[&str]| {
            from.expect(&["SET", key, "v"], "+OK");
            let words = [&["MIGRATE", "127.0.0.1", &locked.port, key, "0", "5000"][..], login].concat();
            from.call(&words).to_string()
        };
        let refused = "-ERR Target instance replied with error: ";
        assert_eq!(migrate("a", &[]), format!("{refused}NOAUTH Authentication required."), "{what}");
        let wrong = migrate("a", &["AUTH", "wrong"]);
        assert!(wrong.starts_with(&format!("{refused}WRONGPASS")), "{what}: {wrong}");
        assert_eq!(migrate("a", &["AUTH", "secret"]), "+OK", "{what}");
        assert_eq!(migrate("b", &["REPLACE", "AUTH2", "mover", "word"]), "+OK", "{what}");
        locked.expect(&["MGET", "a", "b"], "[\"v\" \"v\"]");
        from.expect(&["DBSIZE"], ":0");
    }
}

/// A `kayvee run` and the line `ready: …` that it says.
fn run(arguments: &[&str], redis_options: &[&str]) -> (Child, String, String) {
    let state_folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("replication");
    fs::create_dir_all(&state_folder).unwrap();
    let port = free_port().to_string();
    let mut command = Command::new(built::kayvee());
    command.env("XDG_RUNTIME_DIR", state_folder).args(["run", "--memory", "128", "--port", &port]);
    command.args(arguments).arg("--").args(redis_options);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut ready = String::new();
    stdout.read_line(&mut ready).unwrap();
    assert!(ready.starts_with("ready: "), "{command:?} did not get ready: {ready:?}");
    // Nobody needs what comes next, but it must not fill the pipe.
    thread::spawn(move || stdout.read_to_end(&mut Vec::new()));
    (child, ready, port)
}

fn end(child: &mut Child) {
    assert!(Command::new("kill").args(["-s", "TERM", &child.id().to_string()]).status().unwrap().success());
    let status = child.wait().unwrap();
    assert!(status.success(), "kayvee run: {status}");
}

/// A booted guest with a link of its own.
struct Guest {
    server: Server,
    /// Its end of the link.
    address: SocketAddr,
    /// This host's end.
    host: String,
}

impl Guest {
    fn start(arguments: &[&str]) -> Guest {
        let (child, ready, port) = run(arguments, &["--enable-debug-command", "yes"]);
        let client = Client::connect(&format!("127.0.0.1:{port}")).unwrap();
        let server = Server { child, client, port };
        // `also at ADDRESS)`, or `also at ADDRESS and ADDRESS6)` where this host has IPv6.
        let place = ready.split_once("also at ").unwrap_or_else(|| panic!("{arguments:?} has no link: {ready:?}")).1;
        let address: SocketAddr = place.split([' ', ')']).next().unwrap().parse().unwrap();
        // Connecting a datagram socket sends nothing, and chooses the address from which this host reaches the guest.
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.connect(address).unwrap();
        let host = socket.local_addr().unwrap().ip().to_string();
        Guest { server, address, host }
    }
}

/// Whether this host lets a guest have a link; says so where it does not.
fn links_work() -> bool {
    let works = fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    if !works {
        println!("skipped: a link in this network needs root");
    }
    works
}

/// Whether `auto` chooses KVM, which it does where a guest boots; says so where it does not.
fn kvm_works() -> bool {
    let (mut child, ready, _) = run(&["--target", "auto"], &[]);
    end(&mut child);
    let works = ready.contains("KVM");
    if !works {
        println!("skipped: no guest boots under KVM here");
    }
    works
}

/// The guest copies the process over its link, the process copies the guest, they change places, and keys move both ways.
fn expect_agreement(guest: &mut Guest, process: &mut Server, seed: u64, what: &str) {
    let Guest { server: guest, address, host } = guest;
    let (guest_host, guest_port) = (address.ip().to_string(), address.port().to_string());
    let process_port = process.port.clone();
    // The guest is the replica.
    fill(process, seed);
    guest.expect(&["REPLICAOF", host, &process_port], "+OK");
    fill(process, seed + 10);
    expect_copy(guest, process, &format!("{what}: the guest copies"));
    fill(process, seed + 20);
    expect_copy(guest, process, &format!("{what}: the guest goes on copying"));
    // The guest is the master.
    guest.expect(&["REPLICAOF", "NO", "ONE"], "+OK");
    fill(guest, seed + 30);
    process.expect(&["REPLICAOF", &guest_host, &guest_port], "+OK");
    fill(guest, seed + 40);
    expect_copy(process, guest, &format!("{what}: the guest is copied"));
    fill(guest, seed + 50);
    expect_copy(process, guest, &format!("{what}: the guest goes on being copied"));
    // They change places.
    guest.expect(&["FAILOVER", "TO", host, &process_port, "TIMEOUT", "60000"], "+OK");
    let what_fails_over = format!("{what}: the guest fails over");
    wait_until(&what_fails_over, || info_has(process, "role:master") && info_has(guest, "role:slave"));
    fill(process, seed + 60);
    expect_copy(guest, process, &what_fails_over);
    guest.expect(&["REPLICAOF", "NO", "ONE"], "+OK");
    move_keys(guest, process, [host, &process_port], &format!("{what}: from the guest"));
    move_keys(process, guest, [&guest_host, &guest_port], &format!("{what}: to the guest"));
}

fn expect_guest_replicates(arguments: &[&str], others: &[(&str, Start)]) {
    let mut guest = Guest::start(arguments);
    for (seed, (name, start)) in (0..).zip(others) {
        let folder = Folder::new("process");
        // Only this host and the guest reach it there.
        let mut process = start(&folder, &["--bind", "127.0.0.1", &guest.host, "--protected-mode", "no"]);
        expect_agreement(&mut guest, &mut process, seed, &format!("{arguments:?} and {name}"));
    }
    end(&mut guest.server.child);
}

#[test]
#[ignore = "starts a guest, redis-server and the release build"]
fn a_guest_under_emulation_copies_and_is_copied() {
    if links_work() {
        // It takes a minute with each, and what it has with one it would have with the other.
        expect_guest_replicates(&["--target", "tcg", "--net", "tap"], &[REDIS]);
    }
}

#[test]
#[ignore = "starts a guest, redis-server and the release build"]
fn a_guest_in_the_own_monitor_copies_and_is_copied() {
    if links_work() && kvm_works() {
        expect_guest_replicates(&["--target", "kvm", "--vmm", "kayvee", "--net", "xdp"], &[REDIS, KAYVEE]);
    }
}
