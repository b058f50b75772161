//! Frames that no honest station sends: nothing that comes over the wire makes the stack panic or exceed its limits.

use kayvee_testing::{
    network::{
        SeedReport,
        fuzz::{self, recorded_frames, with_length},
        seeds,
        world::Family,
    },
    random::Random,
};

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
    let frames: Vec<_> =
        [Family::V4, Family::V6].into_iter().flat_map(|family| recorded_frames(family, 20_000)).collect();
    assert!(frames.len() > 20);
    for seed in seeds(500) {
        let _report = SeedReport(seed);
        let mut rng = Random::new(seed);
        let mut data = vec![rng.next_u64() as u8 & 0xfc];
        data.extend(with_length(&[0], 0));
        data.extend(with_length(&[0], 10));
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
    for family in [Family::V4, Family::V6] {
        // Behind frames that mean nothing, and the time in which others may object to addresses.
        let mut data = vec![0];
        data.extend(with_length(&[0], 0));
        data.extend(with_length(&[0], if family == Family::V6 { 10 } else { 0 }));
        for frame in recorded_frames(family, 20_000) {
            data.extend(with_length(&frame, 0));
        }
        let outcome = fuzz::fuzz_frames(&data);
        assert_eq!(outcome.accepted, 1, "{family:?}: {outcome:?}");
        assert!(outcome.frames_sent > 6, "{family:?}: {outcome:?}");
    }
}
