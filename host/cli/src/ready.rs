//! Whether a store answers.

use anyhow::{Context, Result, bail};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

/// How long a store that accepts connections may take to answer one PING.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
const REPLY_MAX_BYTES: u64 = 512;

/// Connects to a store and has it answer a PING.
pub fn ping(address: SocketAddr) -> Result<()> {
    let connection =
        TcpStream::connect_timeout(&address, ANSWER_TIMEOUT).with_context(|| format!("connecting to {address}"))?;
    ping_over(connection).with_context(|| format!("asking {address}"))
}

/// Has a store answer a PING over a connection.
fn ping_over(mut connection: TcpStream) -> Result<()> {
    connection.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    connection.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    connection.write_all(b"PING\r\n")?;
    let mut reply = String::new();
    BufReader::new(connection.take(REPLY_MAX_BYTES)).read_line(&mut reply)?;
    // A store that wants a password, whose users may not do that, whose PING has another name or whose master is away does
    // answer: that is its clients' business. One that turns this one away may have others' answers for nobody.
    let is_turned_away = ["-DENIED ", "-ERR max number of clients "].iter().any(|why| reply.starts_with(why));
    if reply.ends_with("\r\n") && (reply == "+PONG\r\n" || reply.starts_with('-') && !is_turned_away) {
        return Ok(());
    }
    bail!("PING was answered with {reply:?}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{net::TcpListener, thread};

    fn ping_answered_with(reply: &'static [u8]) -> Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            let mut request = [0; 6];
            client.read_exact(&mut request).unwrap();
            assert_eq!(&request, b"PING\r\n");
            client.write_all(reply).unwrap();
        });
        let outcome = ping(address);
        server.join().unwrap();
        outcome
    }

    #[test]
    fn an_answer_is_a_pong_or_an_error() {
        for reply in [
            &b"+PONG\r\n"[..],
            b"-NOAUTH Authentication required.\r\n",
            b"-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.\r\n",
            b"-NOPERM this user has no permissions to run the 'ping' command\r\n",
            b"-ERR unknown command 'PING', with args beginning with: \r\n",
        ] {
            ping_answered_with(reply).unwrap();
        }
        for reply in [
            &b""[..],
            b"+PON",
            b"-NOAUTH",
            b"-DENIED Kayvee is running in protected mode\r\n",
            b"-ERR max number of clients reached\r\n",
            b"HTTP/1.1 400 Bad Request\r\n",
        ] {
            assert!(ping_answered_with(reply).is_err(), "{reply:?}");
        }
    }
}
