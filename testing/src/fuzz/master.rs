//! What a master sends: answers, a dump, effects.

use super::{Driven, peer};
use kayvee_commands::Error;
use kayvee_server::{Dialect, Fate};

/// What comes before a dump that ends with a mark.
const MARKED: &[u8] = b"$EOF:";

/// Any bytes from a master: a replica makes the same data of them however they are split, and half of a dump makes none.
pub fn master(data: &[u8]) {
    let Some((&mode, stream)) = data.split_first() else { return };
    let piece_len = 1 + usize::from(mode);
    let [whole, split] = [stream.len(), piece_len].map(|len| replica_of(stream, len));
    // Behind a dump that ends with a mark nothing may come before it is acknowledged.
    let has_mark = stream.windows(MARKED.len()).any(|part| part == MARKED);
    assert!(has_mark || whole == split, "{piece_len} bytes at a time");
}

/// The data of a replica whose master has sent this, as a dump, or `None` where the master has ended the replica.
fn replica_of(stream: &[u8], piece_len: usize) -> Option<Vec<u8>> {
    let mut driven = Driven::new(&["--replicaof", "192.0.2.3 6379", "--proto-max-bulk-len", "1mb"]);
    driven.engine.begin_turn(driven.now);
    let dial = driven.engine.next_dial().expect("it has a master");
    let link = driven.engine.dialed(&dial, peer()).expect("it was asked for");
    for piece in stream.chunks(piece_len.max(1)) {
        let (_, fate) = driven.turn(link, piece);
        if driven.engine.shutdown().is_some() {
            return None;
        }
        if matches!(fate, Fate::CloseAfterOutput | Fate::CloseNow) {
            break;
        }
    }
    driven.engine.disconnect(link);
    let mut dump = Vec::new();
    let written = driven.engine.export(Dialect::Redis72, |bytes| -> Result<(), Error> {
        dump.extend_from_slice(bytes);
        Ok(())
    });
    written.expect("there is room");
    Some(dump)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dumps_are_taken_and_the_effects_behind_them() {
        let examples = (crate::fuzz::target("master").examples)();
        let [by_length, by_mark] = [0, 1].map(|at| &examples[at][1..]);
        let data = replica_of(by_length, 7);
        assert!(data != replica_of(&by_length[..by_length.len() - 60], 7), "a transaction comes behind it");
        assert!(replica_of(by_mark, 7) != replica_of(b"", 1));
    }
}
