//! TCP segments on the wire (RFC 9293 §3.1), with the options of RFC 9293 §3.2, RFC 7323 and RFC 2018.
//!
//! ```text
//!  0: source port            2: destination port
//!  4: sequence number
//!  8: acknowledgment number
//! 12: data offset (4 bits)  13: flags   14: window
//! 16: checksum              18: urgent pointer
//! 20: options
//! ```

use super::seq::Seq;
use core::ops::BitOr;

/// A header without options.
pub(crate) const HEADER_BYTES: usize = 20;
/// Timestamps, padded to whole words.
pub(crate) const TIMESTAMP_BYTES: usize = 12;

const END_OF_OPTIONS: u8 = 0;
const NO_OPERATION: u8 = 1;
const MAX_SEGMENT_SIZE: u8 = 2;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const TIMESTAMPS: u8 = 8;

/// The control bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags(pub u8);

impl Flags {
    pub const FIN: Flags = Flags(1);
    pub const SYN: Flags = Flags(2);
    pub const RST: Flags = Flags(4);
    pub const PSH: Flags = Flags(8);
    pub const ACK: Flags = Flags(16);

    #[inline]
    pub fn has(self, flag: Flags) -> bool {
        self.0 & flag.0 != 0
    }

    #[inline]
    pub fn without(self, flag: Flags) -> Flags {
        Flags(self.0 & !flag.0)
    }
}

impl BitOr for Flags {
    type Output = Flags;

    #[inline]
    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// A sender's clock and the latest that it has seen of its peer's (RFC 7323 §3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timestamps {
    pub value: u32,
    pub echo: u32,
}

/// Most runs that one segment can name.
pub(crate) const SACK_BLOCKS: usize = 4;

/// Runs of bytes beyond the acknowledgment number that have arrived (RFC 2018 §3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SackBlocks {
    blocks: [(Seq, Seq); SACK_BLOCKS],
    count: u8,
}

impl SackBlocks {
    /// Adds a run if there is room for it.
    pub fn push(&mut self, from: Seq, to: Seq) {
        if let Some(block) = self.blocks.get_mut(usize::from(self.count)) {
            *block = (from, to);
            self.count += 1;
        }
    }

    #[inline]
    pub fn as_slice(&self) -> &[(Seq, Seq)] {
        &self.blocks[..usize::from(self.count)]
    }

    fn option_bytes(&self) -> usize {
        if self.count == 0 { 0 } else { 4 + 8 * usize::from(self.count) }
    }
}

/// A segment but for its data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Segment {
    pub source_port: u16,
    pub destination_port: u16,
    pub seq: Seq,
    pub ack: Seq,
    pub flags: Flags,
    pub window: u16,
    /// In SYNs only.
    pub max_segment_size: Option<u16>,
    /// In SYNs only.
    pub window_scale: Option<u8>,
    /// In SYNs only.
    pub sack_permitted: bool,
    pub timestamps: Option<Timestamps>,
    pub sack: SackBlocks,
}

impl Segment {
    /// Reads a header into an empty segment, where it stays; returns what is behind it. Of options that are malformed, those
    /// before are taken.
    #[inline]
    pub fn read<'a>(&mut self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let header = bytes.first_chunk::<HEADER_BYTES>()?;
        let len = usize::from(header[12] >> 4) * 4;
        if len < HEADER_BYTES || len > bytes.len() {
            return None;
        }
        let u16_at = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        self.source_port = u16_at(0);
        self.destination_port = u16_at(2);
        self.seq = seq_at(header, 4)?;
        self.ack = seq_at(header, 8)?;
        self.flags = Flags(header[13]);
        self.window = u16_at(14);
        let (header, payload) = bytes.split_at(len);
        if len > HEADER_BYTES {
            self.parse_options(&header[HEADER_BYTES..]);
        }
        Some(payload)
    }

    #[inline]
    fn parse_options(&mut self, options: &[u8]) {
        match *options {
            // Nearly all have these and nothing else, in this form (RFC 7323 appendix A).
            [NO_OPERATION, NO_OPERATION, TIMESTAMPS, 10, a, b, c, d, e, f, g, h] => {
                let (value, echo) = (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]));
                self.timestamps = Some(Timestamps { value, echo });
            }
            _ => self.parse_any_options(options),
        }
    }

    #[inline(never)]
    fn parse_any_options(&mut self, mut options: &[u8]) {
        while let Some((&kind, rest)) = options.split_first() {
            if kind == NO_OPERATION {
                options = rest;
                continue;
            }
            if kind == END_OF_OPTIONS {
                return;
            }
            let Some(body) = rest.first().and_then(|&len| options.get(2..usize::from(len))) else { return };
            options = &options[2 + body.len()..];
            self.take_option(kind, body);
        }
    }

    fn take_option(&mut self, kind: u8, body: &[u8]) {
        let syn = self.flags.has(Flags::SYN);
        match (kind, body) {
            (TIMESTAMPS, &[a, b, c, d, e, f, g, h]) => {
                let (value, echo) = (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]));
                self.timestamps = Some(Timestamps { value, echo });
            }
            (SACK, runs) if runs.len() % 8 == 0 => {
                for run in runs.chunks_exact(8) {
                    if let (Some(from), Some(to)) = (seq_at(run, 0), seq_at(run, 4)) {
                        self.sack.push(from, to);
                    }
                }
            }
            (MAX_SEGMENT_SIZE, &[a, b]) if syn => self.max_segment_size = Some(u16::from_be_bytes([a, b])),
            (WINDOW_SCALE, &[shift]) if syn => self.window_scale = Some(shift),
            (SACK_PERMITTED, []) if syn => self.sack_permitted = true,
            _ => {}
        }
    }

    /// Bytes that the header takes.
    #[inline]
    pub fn header_bytes(&self) -> usize {
        let mut len = HEADER_BYTES + self.sack.option_bytes();
        if self.timestamps.is_some() {
            len += TIMESTAMP_BYTES;
        }
        if self.max_segment_size.is_some() {
            len += 4;
        }
        if self.window_scale.is_some() {
            len += 4;
        }
        if self.sack_permitted {
            len += 4;
        }
        len
    }

    /// Writes the header to the beginning of `bytes`, with a checksum of zero.
    #[inline]
    pub fn emit(&self, bytes: &mut [u8]) {
        let (header, options) = bytes.split_at_mut(HEADER_BYTES);
        header[..2].copy_from_slice(&self.source_port.to_be_bytes());
        header[2..4].copy_from_slice(&self.destination_port.to_be_bytes());
        header[4..8].copy_from_slice(&self.seq.0.to_be_bytes());
        header[8..12].copy_from_slice(&self.ack.0.to_be_bytes());
        header[13] = self.flags.0;
        header[14..16].copy_from_slice(&self.window.to_be_bytes());
        header[16..20].fill(0);
        let len = HEADER_BYTES + self.emit_options(options);
        header[12] = (len as u8 / 4) << 4;
    }

    /// Writes the options, and returns how many bytes they take.
    #[inline]
    fn emit_options(&self, mut options: &mut [u8]) -> usize {
        let room = options.len();
        let mut put = |words: &[u8]| {
            let (now, rest) = core::mem::take(&mut options).split_at_mut(words.len());
            now.copy_from_slice(words);
            options = rest;
        };
        if let Some(size) = self.max_segment_size {
            let [a, b] = size.to_be_bytes();
            put(&[MAX_SEGMENT_SIZE, 4, a, b]);
        }
        if self.sack_permitted {
            put(&[NO_OPERATION, NO_OPERATION, SACK_PERMITTED, 2]);
        }
        if let Some(Timestamps { value, echo }) = self.timestamps {
            let ([a, b, c, d], [e, f, g, h]) = (value.to_be_bytes(), echo.to_be_bytes());
            put(&[NO_OPERATION, NO_OPERATION, TIMESTAMPS, 10, a, b, c, d, e, f, g, h]);
        }
        if let Some(shift) = self.window_scale {
            put(&[NO_OPERATION, WINDOW_SCALE, 3, shift]);
        }
        let blocks = self.sack.as_slice();
        if !blocks.is_empty() {
            put(&[NO_OPERATION, NO_OPERATION, SACK, 2 + 8 * blocks.len() as u8]);
            for (from, to) in blocks {
                put(&from.0.to_be_bytes());
                put(&to.0.to_be_bytes());
            }
        }
        room - options.len()
    }

    /// The sequence space that the segment takes with so much data: SYN and FIN count one each (RFC 9293 §3.4).
    #[inline]
    pub fn sequence_len(&self, payload_bytes: usize) -> u32 {
        payload_bytes as u32 + u32::from(self.flags.has(Flags::SYN)) + u32::from(self.flags.has(Flags::FIN))
    }
}

fn seq_at(bytes: &[u8], at: usize) -> Option<Seq> {
    let four = bytes.get(at..)?.first_chunk::<4>()?;
    Some(Seq(u32::from_be_bytes(*four)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest header.
    const MAX_HEADER_BYTES: usize = HEADER_BYTES + 40;

    fn parse(bytes: &[u8]) -> Option<(Segment, usize)> {
        let mut segment = Segment::default();
        let payload = segment.read(bytes)?;
        Some((segment, bytes.len() - payload.len()))
    }

    fn syn() -> Segment {
        Segment {
            source_port: 40_000,
            destination_port: 6379,
            seq: Seq(1),
            ack: Seq(2),
            flags: Flags::SYN | Flags::ACK,
            window: 65_535,
            max_segment_size: Some(1460),
            window_scale: Some(7),
            sack_permitted: true,
            timestamps: Some(Timestamps { value: 3, echo: 4 }),
            sack: SackBlocks::default(),
        }
    }

    #[test]
    fn what_is_emitted_is_parsed() {
        let mut sack = SackBlocks::default();
        (0..3).for_each(|n| sack.push(Seq(n * 10), Seq(n * 10 + 5)));
        let data = Segment {
            flags: Flags::ACK | Flags::PSH,
            max_segment_size: None,
            window_scale: None,
            sack_permitted: false,
            sack,
            ..syn()
        };
        for segment in [syn(), data, Segment { timestamps: None, ..data }] {
            let mut bytes = [0xa5; MAX_HEADER_BYTES + 3];
            segment.emit(&mut bytes);
            assert!(segment.header_bytes() <= MAX_HEADER_BYTES);
            let len = segment.header_bytes();
            assert_eq!(parse(&bytes[..len + 3]), Some((segment, len)));
            for short in 0..len {
                assert_eq!(parse(&bytes[..short]), None);
            }
        }
    }

    #[test]
    fn no_options_are_malformed_enough_to_do_harm() {
        let mut bytes = [0; MAX_HEADER_BYTES];
        syn().emit(&mut bytes);
        bytes[12] = 15 << 4;
        for kind in 0..=255 {
            for len in 0..=255 {
                bytes[HEADER_BYTES] = kind;
                bytes[HEADER_BYTES + 1] = len;
                assert!(parse(&bytes).is_some());
            }
        }
    }

    /// RFC 9293 §3.1: options that belong to a SYN mean nothing elsewhere.
    #[test]
    fn options_of_a_handshake_count_only_there() {
        let mut bytes = [0; MAX_HEADER_BYTES];
        syn().emit(&mut bytes);
        bytes[13] = Flags::ACK.0;
        let (parsed, _) = parse(&bytes).unwrap();
        assert_eq!((parsed.max_segment_size, parsed.window_scale, parsed.sack_permitted), (None, None, false));
    }
}
