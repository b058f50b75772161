use crate::harness::{Harness, START_MS};
use alloc::{format, string::String, vec::Vec};
use kayvee_resp::{Limits, Parser, Progress};

/// Runs encoded requests.
fn replay(harness: &mut Harness, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let mut parser = Parser::new();
        let Ok(Progress::Complete(len)) = parser.parse(bytes, Limits::PASSED) else {
            panic!("effects are whole requests")
        };
        let words: Vec<Vec<u8>> = parser.request(&bytes[..len]).from(0).map(<[u8]>::to_vec).collect();
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        let reply = harness.run_words(&words);
        assert!(!reply.starts_with(b"-"), "{words:?}: {}", String::from_utf8_lossy(&reply));
        bytes = &bytes[len..];
    }
}

fn random_command(rng: &mut fastrand::Rng) -> String {
    let id = format!("{}-{}", rng.u64(..40), rng.u64(..3));
    let group = *rng.choice(&["g", "h"]).unwrap();
    let consumer = *rng.choice(&["alice", "bob", "carol"]).unwrap();
    let count = rng.u64(1..5);
    match rng.u8(..24) {
        0..6 => format!("XADD s 40-* f {}", rng.u8(..)),
        6 => "XADD s * f v".into(),
        7 => format!("XADD s MAXLEN {} * f v", rng.u8(..20)),
        8 => format!("XADD s MINID ~ {id} * f v"),
        9 => format!("XTRIM s MAXLEN ~ {count}"),
        10 => format!("XDEL s {id}"),
        11 => format!("XGROUP CREATE s {group} {id} MKSTREAM"),
        12 => format!("XGROUP SETID s {group} {id}"),
        13 => format!("XGROUP DELCONSUMER s {group} {consumer}"),
        14..18 => format!("XREADGROUP GROUP {group} {consumer} COUNT {count} STREAMS s >"),
        18 => format!("XREADGROUP GROUP {group} {consumer} NOACK COUNT {count} STREAMS s >"),
        19 => format!("XREADGROUP GROUP {group} {consumer} STREAMS s {id}"),
        20 => format!("XACK s {group} {id} 40-1 40-2"),
        21 => format!("XCLAIM s {group} {consumer} {} {id} 40-1 40-2 40-3 FORCE", rng.u8(..3)),
        22 => format!("XCLAIM s {group} {consumer} 0 40-4 IDLE {} LASTID {id} JUSTID", rng.u8(..100)),
        _ => format!("XAUTOCLAIM s {group} {consumer} {} 0 COUNT {count}", rng.u8(..3)),
    }
}

/// What the commands did is done again by their effects, on another store at another time.
#[test]
fn effects_do_the_same_again() {
    for seed in 0..30 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut one, mut other) = (Harness::new(), Harness::new());
        one.run("CONFIG SET stream-node-max-entries 3");
        one.store.effects.add_listener();
        let mut now_ms = START_MS;
        for step in 0..400 {
            now_ms += rng.u64(..3);
            one.at_ms(now_ms);
            other.at_ms(now_ms + 1000);
            let command = random_command(&mut rng);
            one.run(&command);
            one.store.end_unit();
            let effects = one.store.effects.take().expect("there is memory");
            replay(&mut other, &effects);
            other.at_ms(now_ms);
            for command in ["XRANGE s - +", "XINFO GROUPS s", "XPENDING s g - + 1000", "XPENDING s h - + 1000"] {
                let (left, right) = (one.run(command), other.run(command));
                assert_eq!(left, right, "seed {seed}, step {step}: {command}");
            }
        }
    }
}
