//! Carries what is published on a cluster's other shards to this one, whose clients may listen for it: a connection to each of
//! them that is told (`CLUSTER RELAY`), and one to this one that tells (`CLUSTER DELIVER`). As in any cluster of Redis,
//! messages of the time in which a shard is not reached are lost.

use crate::log::Log;
use anyhow::{Context, Result, bail};
use kayvee_server::Options;
use socket2::{SockRef, TcpKeepalive};
use std::{
    convert::Infallible,
    io::{BufRead, BufReader, Read, Write},
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
        let mut own = self.connect(&self.own)?;
        loop {
            let message = next_message(&mut listener)?;
            let [kind, channel, text] = &message[..] else { bail!("a message of {} parts", message.len()) };
            if kind != b"message" {
                bail!("a message of another kind");
            }
            if deliver(&mut own, channel, text).is_err() {
                // A connection that was idle for long may have been closed.
                own = self.connect(&self.own)?;
                deliver(&mut own, channel, text)?;
            }
        }
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
