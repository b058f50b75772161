//! How long the slowest turn takes while collections of ten million members and a string of half a gigabyte are removed,
//! and a database of as many keys is flushed: what is removed is gone at once, but it is freed bit by bit.
//!
//! `cargo run --release -p kayvee-server --example free_latency [MEMBERS]`
//!
//! The machine does other things as well. So the work is done several times in exactly the same way, and of each turn the
//! least time over all runs counts.

mod still;

use kayvee_platform::Now;
use kayvee_server::{ClientId, Engine, Options, Peer};
use std::time::Instant;

const RUNS: usize = 3;
const MEMBERS: usize = 10_000_000;
const MEMBERS_PER_REQUEST: usize = 1000;

/// Sends a request and drops the reply.
fn send(engine: &mut Engine, client: ClientId, words: &[String]) {
    let mut request = format!("*{}\r\n", words.len());
    words.iter().for_each(|word| request += &format!("${}\r\n{word}\r\n", word.len()));
    engine.begin_turn(Now { monotonic_ns: 1, unix_us: 1 });
    engine.receive(client, request.as_bytes());
    while let Some(client) = engine.next_ready() {
        let len = engine.output(client).len();
        engine.sent(client, len);
    }
}

/// Fills a store, and returns how many nanoseconds each turn takes from the removal on until all is freed.
fn turns(members: usize, add: impl Fn(usize) -> Vec<String>, remove: &str) -> Vec<u64> {
    let mut engine = Engine::new(Options::default(), still::environment(), Now::default());
    let client = engine.connect(Peer { is_local: true, ..Peer::default() }).expect("the first client is welcome");
    for first in (0..members).step_by(MEMBERS_PER_REQUEST) {
        send(&mut engine, client, &add(first));
    }
    let mut times_ns = Vec::new();
    let mut words: Vec<String> = remove.split(' ').map(String::from).collect();
    loop {
        let start = Instant::now();
        send(&mut engine, client, &words);
        engine.end_turn();
        times_ns.push(start.elapsed().as_nanos() as u64);
        words = vec!["PING".into()];
        if engine.next_deadline_ns().is_none() {
            return times_ns;
        }
    }
}

fn main() {
    let members = std::env::args().nth(1).and_then(|arg| arg.parse().ok()).unwrap_or(MEMBERS);
    let numbers = |first: usize| first..first + MEMBERS_PER_REQUEST;
    type Add = Box<dyn Fn(usize) -> Vec<String>>;
    let start = |words: &[&str]| words.iter().map(|word| word.to_string()).collect::<Vec<_>>();
    let cases: [(&str, Add, &str); 6] = [
        // 50 bytes for each member of the others.
        (
            "string",
            Box::new(move |n| [start(&["SETRANGE", "k"]), vec![(n * 50).to_string(), "x".repeat(50_000)]].concat()),
            "DEL k",
        ),
        (
            "list",
            Box::new(move |n| [start(&["RPUSH", "k"]), numbers(n).map(|n| format!("element:{n}")).collect()].concat()),
            "DEL k",
        ),
        (
            "set",
            Box::new(move |n| [start(&["SADD", "k"]), numbers(n).map(|n| format!("member:{n}")).collect()].concat()),
            "DEL k",
        ),
        (
            "hash",
            Box::new(move |n| {
                [start(&["HSET", "k"]), numbers(n).flat_map(|n| [format!("field:{n}"), n.to_string()]).collect()]
                    .concat()
            }),
            "DEL k",
        ),
        (
            "sorted set",
            Box::new(move |n| {
                [start(&["ZADD", "k"]), numbers(n).flat_map(|n| [n.to_string(), format!("member:{n}")]).collect()]
                    .concat()
            }),
            "DEL k",
        ),
        (
            "database",
            Box::new(move |n| {
                [start(&["MSET"]), numbers(n).flat_map(|n| [format!("key:{n}"), n.to_string()]).collect()].concat()
            }),
            "FLUSHALL",
        ),
    ];
    for (name, add, remove) in cases {
        let runs: Vec<Vec<u64>> = (0..RUNS).map(|_| turns(members, &add, remove)).collect();
        let least = |turn: usize| runs.iter().filter_map(|run| run.get(turn)).min().copied().unwrap_or(0);
        let count = runs.iter().map(Vec::len).max().unwrap_or(0);
        let longest_ns = (0..count).map(least).max().unwrap_or(0);
        let total_ns: u64 = (0..count).map(least).sum();
        println!(
            "{name} of {members}: {remove} and {} turns, the longest {:.0} µs, all together {:.0} ms",
            count - 1,
            longest_ns as f64 / 1e3,
            total_ns as f64 / 1e6
        );
    }
}
