//! What losses cost a transfer between two stacks, in simulated time: the same everywhere, whatever else a machine does.
//!
//! `cargo run --release -p kayvee-testing --example loss_cost -- [MB] [ROUND_TRIP_MS] [JITTER_US]`

use kayvee_net::{Addressing, Addressing6, Config, Event, Limits, Stack};
use kayvee_testing::network::wire::{End, Faults, Wire};
use std::{
    env,
    net::{Ipv4Addr, SocketAddr},
};

const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const PORT: u16 = 6379;
const RUNS: u64 = 20;

/// What a transfer took.
#[derive(Default)]
struct Cost {
    seconds: f64,
    retransmissions: u64,
    timeouts: u64,
    recoveries: u64,
}

fn main() {
    let number = |at, usual| env::args().nth(at).map_or(usual, |word| word.parse().expect("a number"));
    let (megabytes, round_trip_ms, jitter_us) = (number(1, 4), number(2, 20), number(3, 0));
    println!("{megabytes} MB, {round_trip_ms} ms there and back, {jitter_us} us of jitter; means of {RUNS} runs");
    println!(
        "{:>6} {:>9} {:>9} {:>15} {:>9} {:>10}",
        "loss", "seconds", "KB/s", "retransmissions", "timeouts", "recoveries"
    );
    for percent in [0, 1, 2, 5, 10, 20] {
        let delay_ns = round_trip_ms * 500_000;
        let faults = Faults {
            loss_per_mille: percent * 10,
            min_delay_ns: delay_ns,
            max_delay_ns: delay_ns + jitter_us * 1000,
            ..Faults::NONE
        };
        let mut sum = Cost::default();
        for seed in 1..=RUNS {
            let cost = transfer(faults, (megabytes * 1_000_000) as usize, seed);
            sum.seconds += cost.seconds;
            sum.retransmissions += cost.retransmissions;
            sum.timeouts += cost.timeouts;
            sum.recoveries += cost.recoveries;
        }
        let mean = |total: u64| total as f64 / RUNS as f64;
        let seconds = sum.seconds / RUNS as f64;
        println!(
            "{percent:>5}% {seconds:>9.2} {:>9.0} {:>15.1} {:>9.2} {:>10.1}",
            megabytes as f64 * 1000.0 / seconds,
            mean(sum.retransmissions),
            mean(sum.timeouts),
            mean(sum.recoveries)
        );
    }
}

fn stack(address: Ipv4Addr, device: &mut End, seed: u64) -> Stack {
    let addressing = Addressing::Static { address, prefix_bits: 24, gateway: None };
    let limits = Limits { connections: 4, buffer_bytes: 64 << 20 };
    let config = Config { addressing, addressing6: Addressing6::Off, limits, keepalive_s: 0, seed };
    Stack::new(config, device, 0).expect("the device is right")
}

/// The server sends so many bytes to a client that reads them as they come.
fn transfer(faults: Faults, bytes: usize, seed: u64) -> Cost {
    let mut wire = Wire::new(Faults { loss_per_mille: 0, ..faults }, seed);
    let mut server = stack(SERVER, &mut wire.server, seed);
    let mut client = stack(CLIENT, &mut wire.client, !seed);
    server.listen(PORT);
    let connection = client.connect(SocketAddr::new(SERVER.into(), PORT), 0).expect("there is room");
    let chunk = vec![0x5a; 64 << 10];
    let (mut accepted, mut sent, mut received, mut now_ns) = (None, 0, 0, 0);
    while received < bytes {
        wire.run(now_ns);
        server.poll(&mut wire.server, now_ns);
        client.poll(&mut wire.client, now_ns);
        while let Some(event) = server.next_event() {
            if let Event::Accepted { connection, .. } = event {
                accepted = Some(connection);
                // The handshake is none of what is measured.
                wire.set_faults(faults);
            }
        }
        while client.next_event().is_some() {}
        if let Some(accepted) = accepted {
            loop {
                let some = server.send(accepted, &chunk[..chunk.len().min(bytes - sent)]);
                sent += some;
                if some == 0 {
                    break;
                }
            }
        }
        while let Some(len) = Some(client.readable(connection).len()).filter(|len| *len > 0) {
            client.consume(connection, len);
            received += len;
        }
        server.flush(&mut wire.server, now_ns);
        client.flush(&mut wire.client, now_ns);
        wire.run(now_ns);
        assert!(
            accepted.is_none() || server.connections() > 0,
            "the connection was given up: so many losses last too long"
        );
        let next = [wire.next_arrival_ns(), server.next_deadline_ns(), client.next_deadline_ns()];
        now_ns = next.into_iter().flatten().min().expect("something is to happen").max(now_ns + 1000);
    }
    let figures = server.figures();
    Cost {
        seconds: now_ns as f64 / 1e9,
        retransmissions: figures.retransmissions,
        timeouts: figures.timeouts,
        recoveries: figures.fast_recoveries,
    }
}
