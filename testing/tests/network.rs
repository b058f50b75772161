//! The TCP/IP stack against another one, over wires with every fault there is, in simulated time.

use kayvee_net::Limits;
use kayvee_platform::MAX_FRAME_BYTES;
use kayvee_testing::{
    network::{
        SeedReport, seeds,
        transfer::transfer,
        wire::{Bottleneck, Faults, Offload, Wire},
        world::{Client, Family, SECOND_NS, Traffic, World},
    },
    random::Random,
};

/// What links of the store's own carry.
const LARGE_FRAME_BYTES: usize = 14 + 61_426;

/// Runs clients with random data until all have got it back and every connection has ended.
fn exchange(faults: Faults, traffic: Traffic, clients: usize, max_bytes: usize, seed: u64) {
    let _report = SeedReport(seed);
    let mut rng = Random::new(seed);
    // Twice as many as there are clients, because a SYN that was delayed or duplicated takes one for a while.
    // With much memory a frame has all that the link carries.
    let buffer_bytes = [8 << 10, 128 << 10][rng.below(2)];
    let limits = Limits { connections: 2 * clients, buffer_bytes: 2 * clients * buffer_bytes };
    let family = if seed.is_multiple_of(2) { Family::V6 } else { Family::V4 };
    let has_offload = rng.below(2) == 0;
    let (frame_bytes, offload) = match rng.below(2) {
        // A device that divides large frames, or one that sends them as they are to peers that take such, ordinary or small
        // ones.
        0 => ([MAX_FRAME_BYTES; 2], Offload::Divide),
        _ => ([LARGE_FRAME_BYTES, [14 + 1280, MAX_FRAME_BYTES, LARGE_FRAME_BYTES][rng.below(3)]], Offload::Complete),
    };
    let mut world = World::over(Wire::of_frames(frame_bytes, faults, seed), family, traffic, limits, seed);
    if has_offload {
        world.wire.server.set_offload(offload);
    }
    let mut open: Vec<Client> = (0..clients)
        .map(|_| {
            let len = 1 + rng.below(max_bytes);
            let buffer_bytes = [1000, 4096, 60_000][rng.below(3)];
            Client::with_buffers(buffer_bytes, &mut world, rng.bytes(len))
        })
        .collect();
    while !open.is_empty() {
        assert!(world.now_ns < 3600 * SECOND_NS, "{} clients are not done after an hour", open.len());
        world.step();
        open.retain_mut(|client| {
            let over = client.step(&mut world);
            if over {
                assert_eq!(client.received, client.data.len(), "the connection ended early");
            }
            !over
        });
    }
    assert_eq!(world.accepted, clients);
    let end_ns = world.now_ns + 300 * SECOND_NS;
    while world.stack.connections() > 0 {
        assert!(world.now_ns < end_ns, "{} connections never end", world.stack.connections());
        world.step();
    }
    assert!(world.pending.is_empty());
    assert_eq!(world.stack.buffer_bytes(), 0, "buffers leak");
}

#[test]
fn every_byte_arrives_over_a_good_wire() {
    for seed in seeds(3) {
        exchange(Faults::NONE, Traffic::BothWaysAtOnce, 20, 100_000, seed);
    }
}

#[test]
fn every_byte_arrives_over_a_bad_wire() {
    for seed in seeds(20) {
        exchange(Faults::SEVERE, Traffic::OneWayThenBack, 10, 50_000, seed);
        exchange(Faults::SEVERE, Traffic::RequestAndReply, 10, 2_000, seed);
    }
}

#[test]
fn a_thousand_clients_make_progress() {
    for seed in seeds(1) {
        exchange(Faults::NONE, Traffic::RequestAndReply, 1000, 1_000, seed);
    }
}

/// The canary: a fault that no checksum shows has to be found, or none of these tests means anything.
#[test]
#[should_panic(expected = "bytes came back changed")]
fn a_forged_byte_is_found() {
    let faults = Faults { forgery_per_mille: 100, ..Faults::NONE };
    exchange(faults, Traffic::OneWayThenBack, 5, 50_000, 1);
}

/// The other canary: bytes that never arrive have to be missed.
#[test]
#[should_panic(expected = "not done")]
fn a_cut_wire_is_noticed() {
    exchange(Faults { loss_per_mille: 1000, ..Faults::NONE }, Traffic::OneWayThenBack, 5, 50_000, 1);
}

/// A way with a queue that holds half of what is on its way is filled by one connection, without waiting for a timeout, though
/// the start loses much.
#[test]
fn a_narrow_way_is_filled() {
    const BYTES: usize = 10_000_000;
    const BYTES_PER_S: u64 = 12_500_000;
    for queue_bytes in [256 << 10, 512 << 10, 1 << 20] {
        let bottleneck = Some(Bottleneck { bytes_per_s: BYTES_PER_S, queue_bytes });
        let way = Faults { min_delay_ns: 20_000_000, max_delay_ns: 20_000_000, bottleneck, ..Faults::NONE };
        let cost = transfer(way, BYTES, 1);
        let most_s = 1.5 * BYTES as f64 / BYTES_PER_S as f64;
        assert!(cost.seconds < most_s && cost.timeouts == 0, "{queue_bytes}: {cost:?}");
    }
}
