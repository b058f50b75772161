//! Carries what is published on a cluster's other shards to this one, whose clients may listen for it: a connection to each of
//! them that is told (`CLUSTER RELAY`), and one to this one that tells (`CLUSTER DELIVER`). As in any cluster of Redis,
//! messages of the time in which a shard is not reached are lost.

use crate::log::Log;
use anyhow::{Context, Result, bail};
use kayvee_server::Options;
use socket2::{SockRef, TcpKeepalive};
use std::{
    convert::Infallible,
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// Shards that start together find each other within this time. What fails for longer is worth a word.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a shard may take to answer: it may be busy with a script.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a shard that is not there is left alone: within that time, and behind it.
const RETRY_INTERVALS: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(1)];
/// A silent host is asked after this time whether it is there.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// As in Redis, whatever the options say.
const PART_MAX_BYTES: u64 = 512 << 20;
const LINE_MAX_BYTES: u64 = 512;

/// Begins to carry, if this store is a cluster's shard.
pub fn begin(options: &Options, own: SocketAddr, log: &Arc<Log>) {
    let is_other = |(number, _): &(usize, &String)| *number != usize::from(options.cluster_shard);
    for (_, peer) in options.cluster_shards.iter().enumerate().filter(is_other) {
        let line = Line { own: own.to_string(), peer: peer.clone(), password: options.requirepass.clone() };
        let log = log.clone();
        thread::spawn(move || line.carry_for_ever(&log));
    }
}

/// From one other shard to this one.
struct Line {
    own: String,
    peer: String,
    password: Vec<u8>,
}

impl Line {
    fn carry_for_ever(&self, log: &Log) {
        let mut failing_since = Instant::now();
        let mut has_complained = false;
        loop {
            let began = Instant::now();
            let Err(error) = self.carry();
            if began.elapsed() >= PATIENCE {
                (failing_since, has_complained) = (Instant::now(), false);
            }
            let is_old = failing_since.elapsed() >= PATIENCE;
            if is_old && !has_complained {
                log.line(&format!("kayvee: what is published on {} is not heard here: {error:#}", self.peer));
                has_complained = true;
            }
            thread::sleep(RETRY_INTERVALS[usize::from(is_old)]);
        }
    }

    /// Carries messages until one of the connections fails.
    fn carry(&self) -> Result<Infallible> {
        let mut listener = self.connect(&self.peer)?;
        ask(&mut listener, &[b"CLUSTER", b"RELAY"])?;
        // There may be nothing to hear for days; whether the peer is still there, the kernel asks.
        listener.get_ref().set_read_timeout(None)?;
        let mut own = self.connect_own()?;
        loop {
            let message = next_message(&mut listener)?;
            let [kind, channel, text] = &message[..] else { bail!("a message of {} parts", message.len()) };
            if kind != b"message" {
                bail!("a message of another kind");
            }
            // A connection that was idle for long may have been closed. After that, what fails may have been heard: it is not told
            // again.
            if !is_idle(&own)? {
                own = self.connect_own()?;
            }
            deliver(&mut own, channel, text)?;
        }
    }

    /// To this store, which may answer late: while writers or all clients are paused, it waits with them.
    fn connect_own(&self) -> Result<BufReader<TcpStream>> {
        let own = self.connect(&self.own)?;
        own.get_ref().set_read_timeout(None)?;
        own.get_ref().set_write_timeout(None)?;
        Ok(own)
    }

    fn connect(&self, address: &str) -> Result<BufReader<TcpStream>> {
        let stream = TcpStream::connect(address).with_context(|| format!("connecting to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        SockRef::from(&stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))?;
        let mut connection = BufReader::new(stream);
        if !self.password.is_empty() {
            ask(&mut connection, &[b"AUTH", &self.password])?;
        }
        Ok(connection)
    }
}

/// Whether a connection is open and has nothing to say.
fn is_idle(connection: &BufReader<TcpStream>) -> Result<bool> {
    let stream = connection.get_ref();
    stream.set_nonblocking(true)?;
    let seen = stream.peek(&mut [0]);
    stream.set_nonblocking(false)?;
    let is_silent = seen.is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
    Ok(is_silent && connection.buffer().is_empty())
}

/// Tells a shard what was published on another one.
fn deliver(own: &mut BufReader<TcpStream>, channel: &[u8], text: &[u8]) -> Result<()> {
    loop {
        send(own.get_ref(), &[b"CLUSTER", b"DELIVER", channel, text])?;
        match next_line(own)? {
            reply if reply.starts_with(':') => return Ok(()),
            // A script or a function runs for long. What comes meanwhile waits behind this.
            reply if reply.starts_with("-BUSY ") => thread::sleep(RETRY_INTERVALS[0]),
            reply => bail!("{reply}"),
        }
    }
}

fn send(mut stream: &TcpStream, words: &[&[u8]]) -> Result<()> {
    let mut request = Vec::new();
    kayvee_resp::encode(words.iter().copied(), &mut request)?;
    Ok(stream.write_all(&request)?)
}

/// Sends a request that is answered with OK.
fn ask(connection: &mut BufReader<TcpStream>, words: &[&[u8]]) -> Result<()> {
    send(connection.get_ref(), words)?;
    match next_line(connection)?.as_str() {
        "+OK" => Ok(()),
        reply => bail!("{reply}"),
    }
}

fn next_line(from: &mut impl BufRead) -> Result<String> {
    let mut line = String::new();
    from.take(LINE_MAX_BYTES).read_line(&mut line)?;
    match line.strip_suffix("\r\n") {
        Some(line) => Ok(line.to_string()),
        None if line.is_empty() => bail!("the connection has ended"),
        None => bail!("not a line of the protocol"),
    }
}

/// The parts of a message, which is an array of strings.
fn next_message(from: &mut impl BufRead) -> Result<Vec<Vec<u8>>> {
    let parts = next_number(from, '*', 3)?;
    (0..parts)
        .map(|_| {
            let len = next_number(from, '$', PART_MAX_BYTES)?;
            let mut part = Vec::new();
            from.take(len).read_to_end(&mut part)?;
            let mut end = [0; 2];
            from.read_exact(&mut end)?;
            Ok(part)
        })
        .collect()
}

fn next_number(from: &mut impl BufRead, mark: char, most: u64) -> Result<u64> {
    let line = next_line(from)?;
    let number = line.strip_prefix(mark).and_then(|number| number.parse().ok()).filter(|number| *number <= most);
    number.with_context(|| format!("not a message: {line:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// What arrives next at a store.
    fn expect(from: &mut TcpStream, text: &str) {
        let mut bytes = vec![0; text.len()];
        from.read_exact(&mut bytes).expect("it arrives");
        assert_eq!(String::from_utf8_lossy(&bytes), text);
    }

    #[test]
    fn a_message_is_told_once_at_the_most() {
        let [peer, own] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [peer_at, own_at] = [&peer, &own].map(|listener| listener.local_addr().unwrap().to_string());
        let line = Line { own: own_at, peer: peer_at, password: Vec::new() };
        let carrier = thread::spawn(move || line.carry().unwrap_err());
        let (mut from, _) = peer.accept().unwrap();
        expect(&mut from, "*2\r\n$7\r\nCLUSTER\r\n$5\r\nRELAY\r\n");
        from.write_all(b"+OK\r\n").unwrap();
        let mut publish = |text: &str| write!(from, "*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\n{text}\r\n").unwrap();
        let told = |text: &str| format!("*4\r\n$7\r\nCLUSTER\r\n$7\r\nDELIVER\r\n$1\r\nc\r\n$1\r\n{text}\r\n");

        let (mut to, _) = own.accept().unwrap();
        publish("a");
        expect(&mut to, &told("a"));
        to.write_all(b":1\r\n").unwrap();
        // Closed while it was idle: the next message is told on another connection.
        drop(to);
        publish("b");
        let (mut to, _) = own.accept().unwrap();
        expect(&mut to, &told("b"));
        // Whether it was heard cannot be known.
        drop(to);
        carrier.join().expect("it says why it ends");
        own.set_nonblocking(true).unwrap();
        assert_eq!(own.accept().unwrap_err().kind(), ErrorKind::WouldBlock, "it was told again");
    }

    /// A paused store may take longer than any limit.
    #[test]
    fn the_own_store_may_answer_late() {
        let own = TcpListener::bind("127.0.0.1:0").unwrap();
        let line = Line { own: own.local_addr().unwrap().to_string(), peer: String::new(), password: Vec::new() };
        let connection = line.connect_own().unwrap();
        assert_eq!(connection.get_ref().read_timeout().unwrap(), None);
        assert_eq!(connection.get_ref().write_timeout().unwrap(), None);
    }

    #[test]
    fn messages_are_read_as_they_come() {
        let one = b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$4\r\n\r\n\r\n\r\n*3\r\n$7\r\nmessage\r\n$0\r\n\r\n$1\r\nx\r\n";
        let mut from: &[u8] = one;
        assert_eq!(next_message(&mut from).unwrap(), [&b"message"[..], b"c", b"\r\n\r\n"]);
        let first_len = one.len() - from.len();
        assert_eq!(next_message(&mut from).unwrap(), [&b"message"[..], b"", b"x"]);
        assert!(next_message(&mut from).is_err(), "the end");
        for len in 0..first_len {
            assert!(next_message(&mut &one[..len]).is_err(), "cut off at {len}");
        }
        for wrong in
            ["*4\r\n", "*-1\r\n", "$1\r\n", "*1\r\n$536870913\r\n", "*1\r\n$x\r\n", "+OK\r\n", &"*".repeat(600)]
        {
            assert!(next_message(&mut wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
