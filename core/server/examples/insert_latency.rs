//! How long the slowest of ten million SETs takes while the store grows from nothing, and what a key costs in memory.
//!
//! `cargo run --release -p kayvee-server --example insert_latency [KEYS]`
//!
//! Each run is a process of its own and grows the store in exactly the same way, so what the store itself does at the
//! n-th key it does in all of them; the least time of each key over all runs leaves out what else the machine did.

mod still;

use kayvee_platform::Now;
use kayvee_server::{Engine, Options, Peer};
use std::{
    io::{Read, Write},
    process::{Command, Stdio},
    time::Instant,
};

const RUNS: usize = 3;
const KEYS: usize = 10_000_000;
const KEY_BYTES: usize = 16;
const VALUE_BYTES: usize = 16;

fn resident_bytes() -> u64 {
    const PAGE_BYTES: u64 = 4096;
    let statm = std::fs::read_to_string("/proc/self/statm").expect("/proc is mounted");
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("statm has a second field") * PAGE_BYTES
}

/// Inserts all keys and writes the nanoseconds of each, and at last the bytes of memory that they take.
fn measure(keys: usize) {
    let mut engine = Engine::new(Options::default(), still::environment(), Now::default());
    let client = engine.connect(Peer { is_local: true, ..Peer::default() }).expect("the first client is welcome");
    let mut times_ns = vec![1u32; keys];
    let before = resident_bytes();
    for (number, time_ns) in times_ns.iter_mut().enumerate() {
        let request =
            format!("*3\r\n$3\r\nSET\r\n${KEY_BYTES}\r\nkey:{number:012}\r\n${VALUE_BYTES}\r\nvalue:{number:010}\r\n");
        let start = Instant::now();
        engine.begin_turn(Now { monotonic_ns: number as u64, unix_us: 1 });
        engine.receive(client, request.as_bytes());
        engine.end_turn();
        *time_ns = start.elapsed().as_nanos().try_into().unwrap_or(u32::MAX);
        while let Some(client) = engine.next_ready() {
            assert_eq!(engine.output(client), b"+OK\r\n");
            engine.sent(client, b"+OK\r\n".len());
        }
    }
    let bytes = resident_bytes() - before;
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for time_ns in times_ns {
        out.write_all(&time_ns.to_le_bytes()).expect("the parent reads");
    }
    out.write_all(&bytes.to_le_bytes()).expect("the parent reads");
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let keys = args.iter().find_map(|arg| arg.parse().ok()).unwrap_or(KEYS);
    if args.iter().any(|arg| arg == "--measure") {
        return measure(keys);
    }
    let mut least_ns = vec![u32::MAX; keys];
    let mut resident = 0;
    for run in 1..=RUNS {
        let mut child = Command::new(std::env::current_exe().expect("a process knows its program"))
            .args(["--measure", &keys.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .expect("it runs already");
        let mut bytes = Vec::new();
        child.stdout.take().expect("it is a pipe").read_to_end(&mut bytes).expect("it can be read");
        assert!(child.wait().expect("it was started").success());
        let (times, last) = bytes.split_at(keys * size_of::<u32>());
        let times = times.chunks_exact(size_of::<u32>()).map(|b| u32::from_le_bytes(b.try_into().expect("four bytes")));
        let mut longest_ns = 0;
        for (least, time) in least_ns.iter_mut().zip(times) {
            *least = time.min(*least);
            longest_ns = time.max(longest_ns);
        }
        resident = u64::from_le_bytes(last.try_into().expect("eight bytes"));
        println!("run {run}: longest SET {:.1} µs", f64::from(longest_ns) / 1000.0);
    }
    let mut ranked: Vec<usize> = (0..keys).collect();
    ranked.sort_unstable_by_key(|&number| std::cmp::Reverse(least_ns[number]));
    println!("over all runs, of {keys} keys:");
    for &number in &ranked[..ranked.len().min(5)] {
        println!("  SET number {number}: {:.1} µs", f64::from(least_ns[number]) / 1000.0);
    }
    println!("  median {:.2} µs", f64::from(least_ns[ranked[keys / 2]]) / 1000.0);
    println!(
        "memory: {:.1} bytes a key, of them {KEY_BYTES} for its name and {VALUE_BYTES} for its value",
        resident as f64 / keys as f64
    );
}
