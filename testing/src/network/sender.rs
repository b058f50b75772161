//! A sender whose peer acknowledges and reports what it likes, for seeded tests and for fuzzers alike.

use super::{
    frames::{arp_request, syn_ack_sequence, tcp_frame, tcp_of},
    wire::{Faults, Wire},
    world::{PORT, SERVER},
};
use kayvee_net::{Addressing, Addressing6, Config, ConnectionId, Event, Limits, Stack};
use kayvee_platform::NetworkFigures;
use smoltcp::wire::{TcpControl, TcpRepr, TcpSeqNumber, TcpTimestampRepr};

/// Bytes that say what a segment of the peer has.
const SEGMENT_BYTES: usize = 8;
/// What the peer is sent: more than is ever on its way at once.
const DATA_BYTES: usize = 60_000;
/// The distance of two marks in it: a quarter of a segment.
const MARK_BYTES: i32 = 365;
/// Turns in which an honest peer gets everything, whatever it has said before.
const LAST_TURNS: usize = 2_000;
const MS_NS: u64 = 1_000_000;

/// Takes `data` for what the peer says of a connection with much to send: segments, behind a byte of flags: 1 for timestamps, 2
/// for small segments, 4 for no selective acknowledgments, 8 for an end behind the data.
///
/// ```text
/// 0: control, and how many reports   1: acknowledged   2: window   3: time before it   4: four marks, of reports
/// ```
///
/// Whatever it says, only what it may lack is sent, as the application gave it, and all of it: a peer that is honest from then
/// on gets the rest. Returns what the stack has counted.
pub fn fuzz_sender(data: &[u8]) -> NetworkFigures {
    let (&mode, segments) = data.split_first().unwrap_or((&0, &[]));
    let mut talk = Talk::open(mode);
    for segment in segments.as_chunks::<SEGMENT_BYTES>().0 {
        talk.say(segment);
    }
    talk.end();
    talk.stack.figures()
}

/// The connection, and both of its ends.
struct Talk {
    stack: Stack,
    wire: Wire,
    now_ns: u64,
    mode: u8,
    connection: Option<ConnectionId>,
    /// Bytes that the application has given to the stack.
    given: usize,
    /// The number of the first one, and the places up to which they were sent and acknowledged.
    first: TcpSeqNumber,
    sent: usize,
    acknowledged: usize,
    /// The next number that the stack expects.
    expected: TcpSeqNumber,
    /// The peer takes in what it is sent next, and says so.
    is_honest: bool,
    is_over: bool,
}

/// What the application sends, from a place on.
fn content(from: usize) -> impl Iterator<Item = u8> {
    (from..DATA_BYTES).map(|at| (at ^ at >> 8) as u8)
}

impl Talk {
    fn open(mode: u8) -> Talk {
        let mut wire = Wire::new(Faults::NONE, 0);
        let addressing = Addressing::Static { address: SERVER, prefix_bits: 24, gateway: None };
        let limits = Limits { connections: 8, buffer_bytes: 256 << 10 };
        let config = Config { addressing, addressing6: Addressing6::Off, limits, keepalive_s: 300, seed: 1 };
        let mut stack = Stack::new(config, &mut wire.server, 0).expect("the configuration is valid");
        stack.listen(PORT);
        let mut talk = Talk {
            stack,
            wire,
            now_ns: MS_NS,
            mode,
            connection: None,
            given: 0,
            first: TcpSeqNumber(0),
            sent: 0,
            acknowledged: 0,
            expected: TcpSeqNumber(1001),
            is_honest: false,
            is_over: false,
        };
        let syn = TcpRepr {
            control: TcpControl::Syn,
            seq_number: talk.expected - 1,
            ack_number: None,
            window_scale: Some(4),
            max_seg_size: Some(if mode & 2 == 0 { 1460 } else { 536 }),
            sack_permitted: mode & 4 == 0,
            ..talk.acknowledgment()
        };
        talk.wire.server.inject(arp_request(SERVER));
        talk.wire.server.inject(tcp_frame(SERVER, &syn));
        talk.stack.poll(&mut talk.wire.server, talk.now_ns);
        talk.stack.flush(&mut talk.wire.server, talk.now_ns);
        let accepted = talk.wire.server.drain_sent().find_map(|frame| syn_ack_sequence(&frame));
        talk.first = accepted.expect("a SYN is accepted") + 1;
        talk.hear(talk.acknowledgment());
        assert!(talk.sent > 0, "it sends at once");
        talk
    }

    /// What an honest peer says.
    fn acknowledgment(&self) -> TcpRepr<'static> {
        let ms = (self.now_ns / MS_NS) as u32;
        TcpRepr {
            src_port: 50_000,
            dst_port: PORT,
            control: TcpControl::None,
            seq_number: self.expected,
            ack_number: Some(self.first + self.acknowledged),
            window_len: 60_000,
            window_scale: None,
            max_seg_size: None,
            sack_permitted: false,
            sack_ranges: [None; 3],
            timestamp: (self.mode & 1 != 0).then_some(TcpTimestampRepr { tsval: ms, tsecr: ms.wrapping_sub(1) }),
            payload: &[],
        }
    }

    /// How far from what is acknowledged a mark is: near it, or anywhere.
    fn offset(mark: u8) -> i32 {
        match mark {
            0..200 => (i32::from(mark) - 16) * MARK_BYTES,
            200.. => i32::from(mark - 200).wrapping_shl(26) | i32::from(mark),
        }
    }

    /// The peer says something.
    fn say(&mut self, &[control, acknowledged, window, time, marks @ ..]: &[u8; SEGMENT_BYTES]) {
        let ms = if time < 200 { time.into() } else { (u64::from(time) - 199) * 100 };
        self.now_ns += ms * MS_NS;
        let number = |mark: u8| TcpSeqNumber((self.first + self.acknowledged).0.wrapping_add(Self::offset(mark)));
        let [a, b, c, d] = marks.map(|mark| number(mark).0 as u32);
        let reports = [(a, b), (c, d), (b, c)];
        let mut segment = TcpRepr {
            ack_number: Some(number(acknowledged)),
            window_len: u16::from_be_bytes([window; 2]),
            ..self.acknowledgment()
        };
        for (place, report) in segment.sack_ranges.iter_mut().zip(reports).take(usize::from(control >> 6)) {
            *place = Some(report);
        }
        segment.control = match control & 0x3f {
            0 => TcpControl::Fin,
            1 => TcpControl::Syn,
            2 => TcpControl::Rst,
            3 => return self.turn(),
            _ => TcpControl::None,
        };
        let place = self.acknowledged as i64 + i64::from(Self::offset(acknowledged));
        let counts = matches!(segment.control, TcpControl::None | TcpControl::Fin);
        if counts && (self.acknowledged as i64..=self.sent as i64).contains(&place) {
            self.acknowledged = place as usize;
        }
        self.hear(segment);
    }

    fn hear(&mut self, segment: TcpRepr<'_>) {
        self.wire.server.inject(tcp_frame(SERVER, &segment));
        self.turn();
    }

    fn turn(&mut self) {
        self.stack.poll(&mut self.wire.server, self.now_ns);
        while let Some(event) = self.stack.next_event() {
            match event {
                Event::Accepted { connection, .. } => self.connection = Some(connection),
                Event::Closed(_) => self.is_over = true,
                _ => {}
            }
        }
        if let Some(connection) = self.connection.filter(|_| self.given < DATA_BYTES && !self.is_over) {
            self.given += self.stack.send(connection, &content(self.given).collect::<Vec<u8>>());
            if self.given == DATA_BYTES && self.mode & 8 != 0 {
                self.stack.finish(connection);
            }
        }
        self.stack.flush(&mut self.wire.server, self.now_ns);
        let frames: Vec<Vec<u8>> = self.wire.server.drain_sent().collect();
        frames.iter().for_each(|frame| self.check(frame));
    }

    /// Looks at what the stack has sent.
    fn check(&mut self, frame: &[u8]) {
        let Some(tcp) = tcp_of(frame) else { return };
        self.is_over |= tcp.rst();
        self.expected = tcp.ack_number();
        let bytes = tcp.payload();
        if bytes.is_empty() {
            return;
        }
        let from = tcp.seq_number() - self.first;
        let to = from + bytes.len();
        assert!(bytes.iter().copied().eq(content(from).take(bytes.len())), "what the application gave, from {from} on");
        assert!(to > self.acknowledged, "{from} to {to} are there: {} are acknowledged", self.acknowledged);
        self.sent = self.sent.max(to + usize::from(tcp.fin()));
        if self.is_honest && from <= self.acknowledged {
            self.acknowledged = to;
        }
    }

    /// The peer has what it has acknowledged, and nothing else, and is honest from now on.
    fn end(&mut self) {
        self.is_honest = true;
        let before = self.acknowledged;
        for _ in 0..LAST_TURNS {
            if self.is_over || self.acknowledged >= DATA_BYTES {
                break;
            }
            let reached = self.acknowledged;
            self.hear(self.acknowledgment());
            if self.acknowledged == reached
                && let Some(deadline_ns) = self.stack.next_deadline_ns()
            {
                self.now_ns = self.now_ns.max(deadline_ns);
            }
        }
        // Whoever was silent for long may have been given up before it was heard again.
        assert!(
            self.acknowledged >= DATA_BYTES || self.is_over && self.acknowledged == before,
            "{} came",
            self.acknowledged
        );
    }
}
