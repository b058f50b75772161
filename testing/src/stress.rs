//! What a server must bear: large values, many clients, slow ones, hostile ones, and SCAN while the data changes.

use crate::{
    client::{Client, Reply, encode},
    fuzz::Mutator,
    random::Random,
};
use std::{
    collections::BTreeSet,
    io::{self, ErrorKind, Read, Write},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

const MIB: usize = 1 << 20;
/// The value that every server with the memory for it has to take.
const BIG_VALUE_BYTES: usize = 64 * MIB;
/// `proto-max-bulk-len`, and with it the longest value.
const LONGEST_VALUE_BYTES: usize = 512 * MIB;
/// What is assumed of a server that does not know the memory of its machine.
const UNKNOWN_MEMORY_BYTES: usize = 1 << 30;
const CONNECTIONS: usize = 1_000;
/// Longer than this nobody may wait while somebody else misbehaves.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long what a server does in the background may take to show.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(20);

/// The server under test.
#[derive(Clone, Debug)]
pub struct Target {
    /// `HOST:PORT`
    pub addr: String,
    /// The memory of the machine, by `INFO`.
    memory_bytes: usize,
    seed: u64,
}

type Outcome = Result<(), Box<dyn std::error::Error>>;
type Test = crate::named::Test<Target>;

/// Tests by name.
pub const TESTS: &[(&str, Test)] = &[
    ("scan-guarantee", scan_guarantee),
    ("big-argument", big_argument),
    ("thousand-connections", thousand_connections),
    ("maxclients", maxclients),
    ("slow-reader", slow_reader),
    ("thousand-late-readers", thousand_late_readers),
    ("large-values-both-ways", large_values_both_ways),
    ("never-reading-client", never_reading_client),
    ("announced-but-never-sent", announced_but_never_sent),
    ("byte-by-byte-clients", byte_by_byte_clients),
    ("random-bytes", random_bytes),
    ("deep-pipeline", deep_pipeline),
];

/// Tests that take gigabytes or minutes.
pub const LONG_TESTS: &[(&str, Test)] = &[("longest-argument", longest_argument)];

impl Target {
    /// Asks the server what it is.
    pub fn new(addr: &str, seed: u64) -> io::Result<Target> {
        let mut client = Client::connect(addr)?;
        let memory_bytes = match info(&mut client, "memory", "total_system_memory")? as usize {
            0 => UNKNOWN_MEMORY_BYTES,
            bytes => bytes,
        };
        Ok(Target { addr: addr.into(), memory_bytes, seed })
    }

    fn connect(&self) -> io::Result<Client> {
        Client::connect(&self.addr)
    }
}

fn info(client: &mut Client, section: &str, field: &str) -> io::Result<u64> {
    let reply = client.call(&["INFO", section])?;
    let text = String::from_utf8_lossy(reply.text().unwrap_or_default()).into_owned();
    let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')?.trim().parse().ok());
    value.ok_or_else(|| io::Error::other(format!("INFO {section} has no number {field}")))
}

fn ok(client: &mut Client, words: &[&str]) -> Outcome {
    match client.call(words)? {
        Reply::Simple(_) => Ok(()),
        other => Err(format!("{}: {other}", words.join(" ")).into()),
    }
}

/// Somebody who behaves must get an answer soon.
fn served_in_time(client: &mut Client) -> Outcome {
    let start = Instant::now();
    let reply = client.call(&["PING"])?;
    let took = start.elapsed();
    if reply != Reply::Simple(b"PONG".to_vec()) || took > PATIENCE {
        return Err(format!("PING gave {reply} after {took:?}").into());
    }
    Ok(())
}

/// Waits until `condition` holds.
fn settles(what: &str, mut condition: impl FnMut() -> io::Result<bool>) -> Outcome {
    let deadline = Instant::now() + SETTLE_TIMEOUT;
    while !condition()? {
        if Instant::now() > deadline {
            return Err(format!("{what}, not within {} s", SETTLE_TIMEOUT.as_secs()).into());
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Keys that are there from the start to the end of an iteration are returned, however the table grows and shrinks.
fn scan_guarantee(target: &Target) -> Outcome {
    const STABLE_KEYS: usize = 3_000;
    const PASSING_KEYS: usize = 40_000;
    let mut client = target.connect()?;
    ok(&mut client, &["FLUSHALL"])?;
    let stable: BTreeSet<Vec<u8>> = (0..STABLE_KEYS).map(|i| format!("stable:{i}").into_bytes()).collect();
    for key in &stable {
        client.send(&encode(&[b"SET", key.as_slice(), b"1"]))?;
    }
    (0..STABLE_KEYS).try_for_each(|_| client.read_reply().map(drop))?;
    let stop = Arc::new(AtomicBool::new(false));
    let churn = {
        let (target, stop) = (target.clone(), stop.clone());
        thread::spawn(move || churn(&target, &stop, PASSING_KEYS))
    };
    let mut random = Random::new(target.seed);
    for round in 0..12 {
        let mut seen = BTreeSet::new();
        let mut cursor = b"0".to_vec();
        loop {
            let count = (1 + random.below(60)).to_string();
            let reply = client.call(&[b"SCAN", cursor.as_slice(), b"COUNT", count.as_bytes()])?;
            let Some([next, keys]) = reply.items() else { return Err(format!("SCAN gave {reply}").into()) };
            for key in keys.items().unwrap_or_default().iter().filter_map(Reply::text) {
                if !key.starts_with(b"stable:") && !key.starts_with(b"passing:") {
                    return Err(format!("SCAN gave a key that never was: {}", String::from_utf8_lossy(key)).into());
                }
                seen.insert(key.to_vec());
            }
            cursor = next.text().unwrap_or_default().to_vec();
            if cursor == b"0" {
                break;
            }
        }
        if let Some(missed) = stable.difference(&seen).next() {
            let missed = String::from_utf8_lossy(missed);
            return Err(format!("seed {}, iteration {round}: SCAN did not give {missed}", target.seed).into());
        }
    }
    stop.store(true, Ordering::Relaxed);
    churn.join().map_err(|_| "the writer panicked")??;
    ok(&mut client, &["FLUSHALL"])
}

/// Adds many keys and takes them away again, so that the table grows and shrinks.
fn churn(target: &Target, stop: &AtomicBool, keys: usize) -> io::Result<()> {
    let mut client = target.connect()?;
    let mut random = Random::new(target.seed ^ 1);
    while !stop.load(Ordering::Relaxed) {
        for command in ["SET", "DEL"] {
            for batch in 0..keys / 100 {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let mut requests = Vec::new();
                for i in 0..100 {
                    let key = format!("passing:{}", batch * 100 + i);
                    requests.extend(if command == "SET" {
                        encode(&["SET", &key, "1"])
                    } else {
                        encode(&["DEL", &key])
                    });
                }
                client.send(&requests)?;
                (0..100).try_for_each(|_| client.read_reply().map(drop))?;
                if random.one_in(50) {
                    thread::yield_now();
                }
            }
        }
    }
    Ok(())
}

/// Text that shows a byte that is lost or moved.
fn patterned(len: usize) -> Vec<u8> {
    (0..len.div_ceil(8)).flat_map(|i| format!("{i:07x}.").into_bytes()).take(len).collect()
}

fn round_trip(target: &Target, len: usize) -> Outcome {
    let mut client = target.connect()?;
    ok(&mut client, &["FLUSHALL"])?;
    let value = patterned(len);
    let reply = client.call(&[b"SET", b"big".as_slice(), &value])?;
    if reply != Reply::Simple(b"OK".to_vec()) {
        return Err(format!("SET of {len} bytes: {reply}").into());
    }
    if client.call(&["STRLEN", "big"])? != Reply::Integer(len as i64) {
        return Err("STRLEN is wrong".into());
    }
    match client.call(&["GET", "big"])? {
        Reply::Bulk(got) if got == value => {}
        Reply::Bulk(got) => {
            let at = got.iter().zip(&value).position(|(a, b)| a != b);
            return Err(format!("GET gave {} bytes of {len}, different from {at:?} on", got.len()).into());
        }
        other => return Err(format!("GET gave {other}").into()),
    }
    if client.call(&["GETRANGE", "big", "-8", "-1"])? != Reply::Bulk(value[len - 8..].to_vec()) {
        return Err("GETRANGE is wrong".into());
    }
    ok(&mut client, &["FLUSHALL"])
}

/// A value of 64 MiB, or of a sixteenth of a smaller machine.
fn big_argument(target: &Target) -> Outcome {
    round_trip(target, BIG_VALUE_BYTES.min(target.memory_bytes / 16))
}

/// The longest value there may be, and one byte more.
fn longest_argument(target: &Target) -> Outcome {
    round_trip(target, LONGEST_VALUE_BYTES)?;
    let mut client = target.connect()?;
    client.send(format!("*2\r\n$4\r\nECHO\r\n${}\r\n", LONGEST_VALUE_BYTES + 1).as_bytes())?;
    match client.read_reply()? {
        Reply::Error(text) if text == b"ERR Protocol error: invalid bulk length" => Ok(client.expect_closed()?),
        other => Err(format!("one byte too many gave {other}").into()),
    }
}

fn thousand_connections(target: &Target) -> Outcome {
    let mut control = target.connect()?;
    ok(&mut control, &["FLUSHALL"])?;
    let mut clients = Vec::with_capacity(CONNECTIONS);
    for at in 0..CONNECTIONS {
        clients.push(target.connect().map_err(|e| format!("connection {at}: {e}"))?);
    }
    for round in 0..5 {
        for (at, client) in clients.iter_mut().enumerate() {
            let (key, value) = (format!("client:{at}"), format!("{at}:{round}"));
            client
                .send(&[encode(&["SET", &key, &value]), encode(&["GET", &key]), encode(&["INCR", "total"])].concat())?;
        }
        for (at, client) in clients.iter_mut().enumerate() {
            let replies = [client.read_reply()?, client.read_reply()?, client.read_reply()?];
            if replies[1] != Reply::Bulk(format!("{at}:{round}").into()) {
                return Err(format!("connection {at} in round {round}: {replies:?}").into());
            }
        }
    }
    if control.call(&["GET", "total"])? != Reply::Bulk((5 * CONNECTIONS).to_string().into()) {
        return Err("some client's command was lost".into());
    }
    if info(&mut control, "clients", "connected_clients")? < CONNECTIONS as u64 {
        return Err("INFO does not count all clients".into());
    }
    drop(clients);
    settles("INFO counts one client again", || Ok(info(&mut control, "clients", "connected_clients")? == 1))
}

/// Beyond `maxclients` a connection is refused with a clear error, and those that are there go on.
fn maxclients(target: &Target) -> Outcome {
    let mut control = target.connect()?;
    let before = control.call(&["CONFIG", "GET", "maxclients"])?;
    let before = before.items().and_then(|items| items.get(1)).and_then(Reply::text).unwrap_or_default().to_vec();
    settles("only this client is left", || Ok(info(&mut control, "clients", "connected_clients")? == 1))?;
    ok(&mut control, &["CONFIG", "SET", "maxclients", "5"])?;
    let mut welcome = (0..4).map(|_| target.connect()).collect::<io::Result<Vec<_>>>()?;
    welcome.iter_mut().try_for_each(served_in_time)?;
    let refused = (0..10).try_for_each(|_| {
        let mut refused = target.connect()?;
        match refused.read_reply()? {
            Reply::Error(text) if text == b"ERR max number of clients reached" => Ok(refused.expect_closed()?),
            other => Err(Box::<dyn std::error::Error>::from(format!("beyond maxclients: {other}"))),
        }
    });
    welcome.iter_mut().try_for_each(served_in_time)?;
    let before = String::from_utf8_lossy(&before).into_owned();
    ok(&mut control, &["CONFIG", "SET", "maxclients", &before])?;
    refused?;
    served_in_time(&mut target.connect()?)
}

/// A client that reads late and little gets every byte.
fn slow_reader(target: &Target) -> Outcome {
    const VALUE_BYTES: usize = 100 << 10;
    const REQUESTS: usize = 40;
    let mut control = target.connect()?;
    let value = patterned(VALUE_BYTES);
    control.call(&[b"SET", b"v".as_slice(), &value])?;
    let slow = target.connect()?;
    let mut stream = slow.stream().try_clone()?;
    stream.write_all(&encode(&["GET", "v"]).repeat(REQUESTS))?;
    let mut expected = format!("${VALUE_BYTES}\r\n").into_bytes();
    expected.extend_from_slice(&value);
    expected.extend_from_slice(b"\r\n");
    let mut got = 0;
    let mut chunk = [0; 3000];
    while got < expected.len() * REQUESTS {
        let len = stream.read(&mut chunk)?;
        let right = (0..len).all(|i| chunk[i] == expected[(got + i) % expected.len()]);
        if len == 0 || !right {
            return Err(format!("wrong after {got} bytes").into());
        }
        got += len;
        if got % (64 * chunk.len()) < chunk.len() {
            served_in_time(&mut control)?;
            thread::sleep(Duration::from_millis(1));
        }
    }
    ok(&mut control, &["FLUSHALL"])
}

/// A thousand clients ask for more than a network card takes at a time before any of them reads; whoever else is there is served
/// meanwhile, and each of them has the whole reply at the end.
fn thousand_late_readers(target: &Target) -> Outcome {
    let mut control = target.connect()?;
    let value = patterned((100 << 10).min(target.memory_bytes / (8 * CONNECTIONS)));
    control.call(&[b"SET", b"v".as_slice(), &value])?;
    let mut clients = (0..CONNECTIONS).map(|_| target.connect()).collect::<io::Result<Vec<_>>>()?;
    for _ in 0..3 {
        clients.iter_mut().try_for_each(|client| client.send(&encode(&["GET", "v"])))?;
        served_in_time(&mut control)?;
        for (at, client) in clients.iter_mut().enumerate() {
            if client.read_reply()?.text() != Some(&value) {
                return Err(format!("connection {at} has another value").into());
            }
        }
    }
    ok(&mut control, &["FLUSHALL"])
}

/// Some send large values and others read them, all at once: where either end of a link cannot send, it receives.
fn large_values_both_ways(target: &Target) -> Outcome {
    const EACH: usize = 20;
    const TIMES: usize = 10;
    let value = patterned(MIB.min(target.memory_bytes / (4 * 2 * EACH)));
    let mut control = target.connect()?;
    control.call(&[b"SET", b"v".as_slice(), &value])?;
    let exchange = &|sends: bool| -> io::Result<bool> {
        let mut client = target.connect()?;
        (0..TIMES).try_fold(true, |is_right, _| {
            let reply = if sends {
                client.call(&[b"SET", b"v".as_slice(), &value])? == Reply::Simple(b"OK".to_vec())
            } else {
                client.call(&["GET", "v"])?.text() == Some(&value)
            };
            Ok(is_right && reply)
        })
    };
    let all_right = thread::scope(|scope| {
        let threads: Vec<_> = (0..2 * EACH).map(|at| scope.spawn(move || exchange(at < EACH))).collect();
        threads.into_iter().try_fold(true, |all, thread| Ok::<_, io::Error>(all & thread.join().unwrap_or(Ok(false))?))
    })?;
    if !all_right {
        return Err("a reply is wrong".into());
    }
    ok(&mut control, &["FLUSHALL"])
}

/// A client that never reads is dropped at its output limit; nobody else notices, and the memory comes back.
fn never_reading_client(target: &Target) -> Outcome {
    const VALUE_BYTES: usize = 100 << 10;
    let limit_bytes = (8 * MIB).min(target.memory_bytes / 16);
    let mut control = target.connect()?;
    control.call(&[b"SET", b"v".as_slice(), &patterned(VALUE_BYTES)])?;
    ok(&mut control, &["CONFIG", "SET", "client-output-buffer-limit", &format!("normal {limit_bytes} 0 0")])?;
    let before = info(&mut control, "memory", "used_memory")?;
    let greedy = target.connect()?;
    let mut stream = greedy.stream().try_clone()?;
    stream.set_write_timeout(Some(Duration::from_millis(200)))?;
    let mut most = before;
    let mut closed = false;
    // Ten times what the limit and the sockets' own buffers hold.
    for _ in 0..10 * (limit_bytes + 16 * MIB) / (10 * VALUE_BYTES) {
        match stream.write_all(&encode(&["GET", "v"]).repeat(10)) {
            Ok(()) => {}
            // A server may as well stop reading from one who does not read.
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break,
            Err(_) => {
                closed = true;
                break;
            }
        }
        served_in_time(&mut control)?;
        most = most.max(info(&mut control, "memory", "used_memory")?);
    }
    // One turn's replies may stand above the limit before it is looked at.
    let allowed = before + (3 * limit_bytes + 4 * MIB) as u64;
    if most > allowed {
        return Err(format!("used_memory went from {before} to {most}, with a limit of {limit_bytes}").into());
    }
    settles("the client that never reads is gone", || {
        closed |= info(&mut control, "clients", "connected_clients")? == 1;
        Ok(closed)
    })?;
    ok(&mut control, &["CONFIG", "SET", "client-output-buffer-limit", "normal 0 0 0"])?;
    drop((greedy, stream));
    settles("its memory is free again", || Ok(info(&mut control, "memory", "used_memory")? < before + MIB as u64))?;
    ok(&mut control, &["FLUSHALL"])
}

/// Huge lengths that are only announced take no memory beyond what connections take.
fn announced_but_never_sent(target: &Target) -> Outcome {
    let mut control = target.connect()?;
    let mut clients = (0..200).map(|_| target.connect()).collect::<io::Result<Vec<_>>>()?;
    clients.iter_mut().try_for_each(served_in_time)?;
    let before = info(&mut control, "memory", "used_memory")?;
    for (at, client) in clients.iter_mut().enumerate() {
        client.send(match at % 3 {
            0 => b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$536870912\r\nabc",
            1 => b"*2147483647\r\n$4\r\nMSET\r\n",
            _ => b"*2\r\n$536870912\r\n",
        })?;
    }
    served_in_time(&mut control)?;
    let used = info(&mut control, "memory", "used_memory")?;
    if used > before + 4 * MIB as u64 {
        return Err(format!("used_memory went from {before} to {used} for nothing but announcements").into());
    }
    drop(clients);
    settles("all are gone", || Ok(info(&mut control, "clients", "connected_clients")? == 1))
}

/// Clients that send a byte at a time do not hold up the others.
fn byte_by_byte_clients(target: &Target) -> Outcome {
    let mut control = target.connect()?;
    let request = encode(&["SET", "k", "value"]);
    let mut clients = (0..100).map(|_| target.connect()).collect::<io::Result<Vec<_>>>()?;
    for byte in &request {
        clients.iter_mut().try_for_each(|client| client.send(&[*byte]))?;
        served_in_time(&mut control)?;
    }
    for client in &mut clients {
        let reply = client.read_reply()?;
        if reply != Reply::Simple(b"OK".to_vec()) {
            return Err(format!("SET byte by byte: {reply}").into());
        }
    }
    Ok(())
}

/// Whatever a stranger sends, the server goes on.
fn random_bytes(target: &Target) -> Outcome {
    let mut control = target.connect()?;
    let examples = [
        &b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\nvalue\r\n"[..],
        b"*2\r\n$4\r\nMGET\r\n$1\r\nk\r\nPING hello\r\n",
        b"INCRBY n 5\r\nAPPEND n \"\\x00\"\r\n",
        b"",
    ];
    let mut mutator = Mutator::new(target.seed, &examples);
    for round in 0..400 {
        let input = mutator.next_input();
        let client = target.connect()?;
        let mut stream = client.stream();
        stream.set_read_timeout(Some(PATIENCE))?;
        // The server may have closed by now, which is an answer too.
        let _ = stream.write_all(&input);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut sink = Vec::new();
        match stream.read_to_end(&mut sink) {
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Err(format!("seed {}, round {round}: the connection stays open", target.seed).into());
            }
            _ => {}
        }
        if round % 50 == 0 {
            served_in_time(&mut control)?;
        }
    }
    served_in_time(&mut control)?;
    ok(&mut control, &["FLUSHALL"])
}

/// Any number of requests may be on their way; their sender reads while it sends.
fn deep_pipeline(target: &Target) -> Outcome {
    const REQUESTS: usize = 200_000;
    let mut client = target.connect()?;
    ok(&mut client, &["FLUSHALL"])?;
    let mut sending = client.stream().try_clone()?;
    let sender = thread::spawn(move || {
        let batch = encode(&["INCR", "n"]).repeat(1000);
        (0..REQUESTS / 1000).try_for_each(|_| sending.write_all(&batch))
    });
    for expected in 1..=REQUESTS as i64 {
        let reply = client.read_reply()?;
        if reply != Reply::Integer(expected) {
            return Err(format!("reply {expected} is {reply}").into());
        }
    }
    sender.join().map_err(|_| "the sender panicked")??;
    ok(&mut client, &["FLUSHALL"])
}
