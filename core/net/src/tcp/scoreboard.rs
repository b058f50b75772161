//! Which of the bytes on their way the peer has (RFC 2018 §5), and which are lost (RFC 6675 §4).

use super::seq::Seq;
use alloc::vec::Vec;

/// Most runs that are remembered: so many in any case, and one for each 2 KiB on their way, up to a bound. A peer tells of the
/// latest ones only, so what is forgotten is sent again.
const FEW_RUNS: usize = 32;
const MAX_RUNS: usize = 256;
const RUN_BYTES: u32 = 2048;
/// Segments beyond a missing one that prove it lost (RFC 5681 §3.2, RFC 6675 §2).
pub(crate) const DUPLICATE_THRESHOLD: u32 = 3;

/// Runs of bytes beyond the acknowledged ones that the peer has.
#[derive(Debug, Default)]
pub(crate) struct Scoreboard {
    /// In ascending order, none touching another.
    runs: Vec<(Seq, Seq)>,
    bytes: u32,
}

impl Scoreboard {
    /// Bytes that the peer has beyond the acknowledged ones.
    #[inline]
    pub fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Takes in what a segment says and returns whether any of it is new. Runs that are not within what is on its way
    /// say nothing that could be believed.
    pub fn add(&mut self, blocks: &[(Seq, Seq)], una: Seq, next: Seq) -> bool {
        let before = self.bytes;
        let most_runs = (next.since(una) / RUN_BYTES).clamp(FEW_RUNS as u32, MAX_RUNS as u32) as usize;
        for &(from, to) in blocks {
            // By how far they lie behind `una`: a run around more than half of all numbers looks as if it ended before it.
            if from != una && from.since(una) < to.since(una) && to.since(una) <= next.since(una) {
                self.add_run(from, to, most_runs);
            }
        }
        self.bytes > before
    }

    fn add_run(&mut self, from: Seq, to: Seq, most_runs: usize) {
        let first = self.runs.partition_point(|(_, end)| end.before(from));
        let touched = self.runs[first..].iter().take_while(|(start, _)| !start.after(to)).count();
        if touched == 0 {
            if self.runs.len() < most_runs && self.runs.try_reserve(1).is_ok() {
                self.runs.insert(first, (from, to));
                self.bytes += to.since(from);
            }
            return;
        }
        let merged = (from.min(self.runs[first].0), to.max(self.runs[first + touched - 1].1));
        let had: u32 = self.runs[first..first + touched].iter().map(|(from, to)| to.since(*from)).sum();
        self.bytes += merged.1.since(merged.0) - had;
        self.runs[first] = merged;
        self.runs.drain(first + 1..first + touched);
    }

    /// Forgets what is acknowledged.
    pub fn acknowledge(&mut self, una: Seq) {
        while let Some(&(from, to)) = self.runs.first()
            && from.before(una)
        {
            self.bytes -= una.min(to).since(from);
            if to.after(una) {
                self.runs[0].0 = una;
                break;
            }
            self.runs.remove(0);
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.runs = Vec::new();
        self.bytes = 0;
    }

    /// The end of the last run.
    pub fn end(&self) -> Option<Seq> {
        self.runs.last().map(|(_, to)| *to)
    }

    /// Whether the peer has this byte.
    pub fn has(&self, byte: Seq) -> bool {
        self.beyond(byte).first().is_some_and(|&(from, to)| byte.within(from, to))
    }

    /// The runs that end beyond this byte: a look at each for every segment that was sent again would be a look at a hundred
    /// thousand.
    fn beyond(&self, byte: Seq) -> &[(Seq, Seq)] {
        &self.runs[self.runs.partition_point(|(_, to)| !to.after(byte))..]
    }

    /// The end of what is lost: bytes with so many beyond them that the peer has (RFC 6675 §4, `IsLost`). `una` if
    /// nothing is.
    pub fn lost_below(&self, una: Seq, segment_bytes: u32) -> Seq {
        let mut beyond = 0;
        for (count, &(from, to)) in (1..).zip(self.runs.iter().rev()) {
            beyond += to.since(from);
            if count >= DUPLICATE_THRESHOLD || beyond > (DUPLICATE_THRESHOLD - 1) * segment_bytes {
                return from;
            }
        }
        una
    }

    /// The first run of bytes that the peer does not have, from `from` on and below `to`.
    pub fn next_hole(&self, mut from: Seq, to: Seq) -> Option<(Seq, Seq)> {
        let mut end = to;
        for &(start, stop) in self.beyond(from) {
            if start.after(from) {
                end = end.min(start);
                break;
            }
            from = from.max(stop);
        }
        from.before(end).then_some((from, end))
    }

    /// How many bytes of `from..to` the peer does not have.
    pub fn missing(&self, from: Seq, to: Seq) -> u32 {
        if !from.before(to) {
            return 0;
        }
        let within = self.beyond(from).iter().take_while(|(start, _)| start.before(to));
        to.since(from) - within.map(|&(start, stop)| stop.min(to).since(start.max(from))).sum::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::vec::Vec;

    #[test]
    fn it_agrees_with_a_bitmap() {
        let mut state = 1u32;
        let mut random = move || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 8
        };
        for _ in 0..300 {
            let base = Seq(u32::MAX - 100);
            let (mut board, mut una) = (Scoreboard::default(), 0);
            let mut model = [false; 400];
            for _ in 0..30 {
                let from = random() % 400;
                let to = from + random() % 40;
                let valid = from > una && to > from && to <= 400;
                let known: Vec<bool> = model.to_vec();
                if valid {
                    model[from as usize..to as usize].fill(true);
                }
                let news = board.add(&[(base + from, base + to)], base + una, base + 400);
                assert_eq!(news, known != model);
                if random().is_multiple_of(5) {
                    una = (una + random() % 30).min(400);
                    model[..una as usize].fill(false);
                    board.acknowledge(base + una);
                }
                assert_eq!(board.bytes() as usize, model.iter().filter(|has| **has).count());
                let (from, to) = (una + random() % (401 - una), 400);
                let missing: Vec<u32> = (from..to).filter(|at| !model[*at as usize]).collect();
                assert_eq!(board.missing(base + from, base + to) as usize, missing.len());
                let hole = missing.first().map(|&first| {
                    let end = (first..to).find(|at| model[*at as usize]).unwrap_or(to);
                    (base + first, base + end)
                });
                assert_eq!(board.next_hole(base + from, base + to), hole);
            }
        }
    }

    /// RFC 6675 §4: three runs, or more than two segments' bytes, beyond a byte prove it lost.
    #[test]
    fn what_has_enough_beyond_it_is_lost() {
        let mut board = Scoreboard::default();
        board.add(&[(Seq(100), Seq(300))], Seq(0), Seq(1000));
        assert_eq!(board.lost_below(Seq(0), 100), Seq(0), "two segments are not more than two");
        board.add(&[(Seq(300), Seq(301))], Seq(0), Seq(1000));
        assert_eq!(board.lost_below(Seq(0), 100), Seq(100));
        let mut board = Scoreboard::default();
        board.add(&[(Seq(100), Seq(101)), (Seq(200), Seq(201)), (Seq(300), Seq(301))], Seq(0), Seq(1000));
        assert_eq!(board.lost_below(Seq(0), 100), Seq(100));
    }

    #[test]
    fn what_was_never_sent_is_not_believed() {
        let mut board = Scoreboard::default();
        for block in [(Seq(5), Seq(5)), (Seq(7), Seq(5)), (Seq(0), Seq(9)), (Seq(50), Seq(101)), (Seq(200), Seq(300))] {
            assert!(!board.add(&[block], Seq(0), Seq(100)), "{block:?}");
        }
        let around = (Seq(0x7fff_fff0), Seq(0xefff_fff0));
        assert!(!board.add(&[around], Seq(0), Seq(100)), "more than half of all numbers, of which none was sent");
    }
}
