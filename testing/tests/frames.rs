//! Frames that no honest station sends: nothing that comes over the wire makes the stack panic or exceed its limits.

use kayvee_net::Limits;
use kayvee_testing::{
    network::{
        SeedReport, fuzz, seeds,
        wire::Faults,
        world::{Client, Traffic, World},
    },
    random::Random,
};

/// Frames of a real exchange, for mutation.
///
/// Its wire takes next to no time, so that the SYN arrives within the first tick of the clock that initial sequence numbers come
/// from (RFC 6528 §3): who replays the exchange from the start of time gets the same ones.
fn recorded_frames() -> Vec<Vec<u8>> {
    let limits = Limits { connections: 8, buffer_bytes: 64 << 10 };
    let at_once = Faults { min_delay_ns: 500, max_delay_ns: 500, ..Faults::NONE };
    let mut world = World::new(at_once, Traffic::BothWaysAtOnce, limits, 1);
    world.wire.record();
    let mut client = Client::open(&mut world, vec![b'x'; 20_000]);
    while !client.step(&mut world) {
        world.step();
    }
    world.wire.recorded().to_vec()
}

fn with_length(frame: &[u8], tenths: u8) -> Vec<u8> {
    [&(frame.len() as u16).to_le_bytes(), frame, &[tenths]].concat()
}

#[test]
fn random_bytes() {
    for seed in seeds(200) {
        let _report = SeedReport(seed);
        let mut rng = Random::new(seed);
        let mut data = vec![rng.next_u64() as u8];
        for _ in 0..50 {
            let len = rng.below(200);
            data.extend(with_length(&rng.bytes(len), rng.next_u64() as u8));
        }
        fuzz::fuzz_frames(&data);
    }
}

#[test]
fn mutated_exchanges() {
    let frames = recorded_frames();
    assert!(frames.len() > 10);
    for seed in seeds(500) {
        let _report = SeedReport(seed);
        let mut rng = Random::new(seed);
        let mut data = vec![rng.next_u64() as u8 & 0xfe];
        for _ in 0..60 {
            let mut frame = frames[rng.below(frames.len())].clone();
            for _ in 0..rng.below(4) {
                let at = rng.below(frame.len());
                match rng.below(3) {
                    0 => frame[at] ^= 1 << rng.below(8),
                    1 => frame.truncate(at + 1),
                    _ => frame[at] = rng.next_u64() as u8,
                }
            }
            fuzz::correct_checksums(&mut frame);
            data.extend(with_length(&frame, rng.below(3) as u8));
        }
        fuzz::fuzz_frames(&data);
    }
}

/// The canary: a stack that does not see the frames at all would survive everything. An honest exchange has to work.
#[test]
fn an_honest_exchange_is_answered() {
    let frames = recorded_frames();
    let mut data = vec![0];
    for frame in &frames {
        data.extend(with_length(frame, 0));
    }
    let outcome = fuzz::fuzz_frames(&data);
    assert_eq!(outcome.accepted, 1, "{outcome:?}");
    assert!(outcome.frames_sent > 3, "{outcome:?}");
}
