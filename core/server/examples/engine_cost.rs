//! What a request costs in the engine alone, without sockets: nanoseconds a request, for pipelines of 1 and 16.
//!
//! The number of turns may be given: fewer of them are enough to count instructions with `valgrind --tool=callgrind`.

mod still;

use kayvee_platform::Now;
use kayvee_server::{Engine, Options, Peer};
use std::time::Instant;

fn main() {
    let turns: u32 = std::env::args().nth(1).map_or(200_000, |turns| turns.parse().expect("a number of turns"));
    let mut engine = Engine::new(Options::default(), still::environment(), Now::default());
    let client = engine.connect(Peer { is_local: true, ..Peer::default() }).expect("the first client is welcome");
    for request in
        ["*1\r\n$4\r\nPING\r\n", "*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$3\r\nxxx\r\n", "*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n"]
    {
        for pipeline in [1, 16] {
            let bytes = request.repeat(pipeline);
            let start = Instant::now();
            for turn in 0..turns {
                engine.begin_turn(Now { monotonic_ns: u64::from(turn), unix_us: u64::from(turn) });
                engine.receive(client, bytes.as_bytes());
                engine.end_turn();
                while let Some(client) = engine.next_ready() {
                    let len = engine.output(client).len();
                    engine.sent(client, len);
                }
            }
            let ns = start.elapsed().as_nanos() as f64 / f64::from(turns) / pipeline as f64;
            println!("{:4} pipeline {pipeline:2}: {ns:6.1} ns a request", &request[8..12]);
        }
    }
}
