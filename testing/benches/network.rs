//! What one request costs in the TCP/IP stack, by the number of connections: `cargo bench -p kayvee-testing`.
//!
//! Requests and replies are as small as PING's. Each turn brings one request on each of 50 connections; the others are
//! idle. Only the stack's turn is timed: frames are made before, and replies are thrown away afterwards.

use kayvee_net::{Addressing, Addressing6, Config, Event, Limits, Stack};
use kayvee_testing::network::{
    frames::{self, Client},
    wire::{Faults, Wire},
    world::{PORT, SERVER},
};
use std::time::{Duration, Instant};

const ACTIVE: usize = 50;
const REQUEST: &[u8] = b"*1\r\n$4\r\nPING\r\n";
const REPLY: &[u8] = b"+PONG\r\n";

/// One turn of a server that answers PING, and how long it took.
fn turn(stack: &mut Stack, wire: &mut Wire, now_ns: u64) -> Duration {
    let start = Instant::now();
    stack.poll(&mut wire.server, now_ns);
    while let Some(event) = stack.next_event() {
        if let Event::Readable(connection) = event {
            let len = stack.readable(connection).len();
            stack.consume(connection, len);
            stack.send(connection, REPLY);
        }
    }
    stack.flush(&mut wire.server, now_ns);
    let _ = stack.next_deadline_ns();
    start.elapsed()
}

/// Opens a connection by hand.
fn connect(stack: &mut Stack, wire: &mut Wire, port: u16) -> Client {
    Client::open(port, |frame| {
        wire.server.inject(frame);
        turn(stack, wire, 0);
        wire.server.drain_sent().next()
    })
}

fn main() {
    for connections in [50, 1000, 10_000] {
        let mut wire = Wire::new(Faults::NONE, 1);
        let addressing = Addressing::Static { address: SERVER, prefix_bits: 24, gateway: None };
        let limits = Limits { connections, buffer_bytes: connections * (16 << 10) };
        let config = Config { addressing, addressing6: Addressing6::Off, limits, keepalive_s: 300, seed: 1 };
        let mut stack = Stack::new(config, &mut wire.server, 0).expect("the configuration is valid");
        stack.listen(PORT);
        wire.server.inject(frames::arp_request(SERVER));
        turn(&mut stack, &mut wire, 0);
        wire.server.drain_sent().for_each(drop);
        let mut clients: Vec<Client> =
            (0..connections).map(|n| connect(&mut stack, &mut wire, 1024 + n as u16)).collect();
        let turns = 20_000;
        let mut elapsed = Duration::ZERO;
        for n in 0..turns {
            // Others each time, so that caches have to hold them all.
            let first = n * ACTIVE % connections;
            for client in &mut clients[first..first + ACTIVE] {
                wire.server.inject(client.request(REQUEST, REPLY.len()));
            }
            elapsed += turn(&mut stack, &mut wire, n as u64 * 100_000);
            assert_eq!(
                wire.server.drain_sent().count(),
                ACTIVE,
                "each request has one reply, and nothing else is sent"
            );
        }
        let per_request = elapsed / (turns * ACTIVE) as u32;
        println!("{connections:6} connections: {:4} ns per request", per_request.as_nanos());
    }
}
