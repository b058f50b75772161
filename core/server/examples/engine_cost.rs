//! What a request costs in the engine alone, without sockets: nanoseconds a request, for pipelines of 1 and 16.
//!
//! The number of turns may be given, and the command to measure: few turns are enough to count instructions with
//! `valgrind --tool=callgrind`.

mod still;

use kayvee_platform::Now;
use kayvee_server::{Engine, Options, Peer};
use std::time::Instant;

/// What is measured, one after the other.
const REQUESTS: [&str; 10] = [
    "PING",
    "SET key xxx",
    "GET key",
    "INCR number",
    "LPUSH list xxx",
    "RPOP list",
    "HSET hash field xxx",
    "HGET hash field",
    "SADD set member",
    "ZADD zset 1 member",
];

fn main() {
    let turns: u32 = std::env::args().nth(1).map_or(200_000, |turns| turns.parse().expect("a number of turns"));
    let mut engine = Engine::new(Options::default(), still::environment(), Now::default());
    let client = engine.connect(Peer { is_local: true, ..Peer::default() }).expect("the first client is welcome");
    let wanted = std::env::args().nth(2).unwrap_or_default();
    for line in REQUESTS.iter().filter(|line| line.starts_with(&wanted)) {
        let words: Vec<&str> = line.split(' ').collect();
        let request = words
            .iter()
            .fold(format!("*{}\r\n", words.len()), |request, word| format!("{request}${}\r\n{word}\r\n", word.len()));
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
            println!("{line:18} pipeline {pipeline:2}: {ns:6.1} ns a request");
        }
    }
}
