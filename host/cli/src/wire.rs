//! A guest's wire as a stream between this process and QEMU: frames, each behind its length in four bytes, big-endian,
//! as QEMU's `-netdev socket` sends and takes them.

use kayvee_platform::{FrameDevice, FrameRx, FrameTx, MAX_FRAME_BYTES, Received};
use mio::net::UnixStream;
use std::{
    io::{self, ErrorKind, Read, Write},
    os::unix::net::UnixStream as StdUnixStream,
};

const HEADER_BYTES: usize = 4;
/// What is read at once: as many frames as QEMU has sent meanwhile.
const READ_BYTES: usize = 128 << 10;
/// Frames wait here while QEMU does not read; more are not taken until it does.
const QUEUE_MAX_BYTES: usize = 256 << 10;

/// This side's end of the wire.
pub struct Wire {
    mac: [u8; 6],
    rx: Rx,
    tx: Tx,
}

/// What has come in.
pub struct Rx {
    socket: UnixStream,
    buffer: Box<[u8]>,
    /// The bytes of `buffer` that were received and not consumed.
    filled: std::ops::Range<usize>,
    readable: bool,
}

/// What is to go out.
pub struct Tx {
    socket: UnixStream,
    queue: Vec<u8>,
    sent_bytes: usize,
    writable: bool,
}

impl Wire {
    /// Makes a wire for a station with the address `mac`; returns this end and QEMU's.
    pub fn new(mac: [u8; 6]) -> io::Result<(Wire, StdUnixStream)> {
        let (own, qemu) = StdUnixStream::pair()?;
        Ok((Wire::over(mac, own)?, qemu))
    }

    /// One end of a wire that exists.
    pub fn over(mac: [u8; 6], end: StdUnixStream) -> io::Result<Wire> {
        end.set_nonblocking(true)?;
        let buffer = vec![0; READ_BYTES].into();
        let rx = Rx { socket: UnixStream::from_std(end.try_clone()?), buffer, filled: 0..0, readable: true };
        let tx = Tx { socket: UnixStream::from_std(end), queue: Vec::new(), sent_bytes: 0, writable: true };
        Ok(Wire { mac, rx, tx })
    }

    /// The socket whose readiness to register.
    pub fn socket(&mut self) -> &mut UnixStream {
        &mut self.rx.socket
    }

    /// Notes what an event said of the socket.
    pub fn note(&mut self, readable: bool, writable: bool) {
        self.rx.readable |= readable;
        self.tx.writable |= writable;
    }

    /// Whether a frame has come in.
    pub fn has_frames(&mut self) -> bool {
        self.rx.ready()
    }

    /// Whether no frame can go out before QEMU has read some.
    pub fn is_full(&mut self) -> bool {
        !self.tx.ready()
    }
}

impl FrameDevice for Wire {
    type Rx<'a>
        = &'a mut Rx
    where
        Self: 'a;
    type Tx<'a>
        = &'a mut Tx
    where
        Self: 'a;

    fn mac(&self) -> [u8; 6] {
        self.mac
    }

    fn split(&mut self) -> (&mut Rx, &mut Tx) {
        (&mut self.rx, &mut self.tx)
    }
}

impl Rx {
    /// The length of the first frame, once all of it is here. QEMU never sends one that does not fit the buffer.
    fn complete(&self) -> Option<usize> {
        let bytes = &self.buffer[self.filled.clone()];
        let (header, rest) = bytes.split_first_chunk::<HEADER_BYTES>()?;
        let len = u32::from_be_bytes(*header) as usize;
        (rest.len() >= len).then_some(len)
    }

    fn fill(&mut self) {
        self.buffer.copy_within(self.filled.clone(), 0);
        self.filled = 0..self.filled.len();
        match self.socket.read(&mut self.buffer[self.filled.end..]) {
            Ok(len) => {
                self.readable = len > 0;
                self.filled.end += len;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // Nothing more for now, or never: QEMU's end is the supervisor's business.
            Err(_) => self.readable = false,
        }
    }
}

impl FrameRx for Rx {
    fn ready(&mut self) -> bool {
        while self.complete().is_none() && self.readable {
            self.fill();
        }
        self.complete().is_some()
    }

    fn receive<R>(&mut self, consume: impl FnOnce(Received<'_>) -> R) -> Option<R> {
        if !self.ready() {
            return None;
        }
        let len = self.complete()?;
        let frame = self.filled.start + HEADER_BYTES;
        self.filled.start = frame + len;
        Some(consume(self.buffer[frame..frame + len].into()))
    }
}

impl FrameTx for Tx {
    fn ready(&mut self) -> bool {
        self.queue.len() - self.sent_bytes < QUEUE_MAX_BYTES
    }

    fn transmit<R>(&mut self, len: usize, fill: impl FnOnce(&mut [u8]) -> R) -> Option<R> {
        if !self.ready() || len > MAX_FRAME_BYTES {
            return None;
        }
        self.queue.extend_from_slice(&(len as u32).to_be_bytes());
        let start = self.queue.len();
        self.queue.resize(start + len, 0);
        Some(fill(&mut self.queue[start..]))
    }

    fn flush(&mut self) {
        while self.writable && self.sent_bytes < self.queue.len() {
            match self.socket.write(&self.queue[self.sent_bytes..]) {
                Ok(len) => self.sent_bytes += len,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.writable = false,
            }
        }
        if self.sent_bytes == self.queue.len() {
            self.queue.clear();
            self.sent_bytes = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kayvee_testing::{
        network::{SeedReport, seeds},
        random::Random,
    };

    /// The frames of a stream, up to one that is not all there.
    fn frames_of(mut stream: &[u8]) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        while let Some((header, rest)) = stream.split_first_chunk::<HEADER_BYTES>()
            && let Some((frame, rest)) = rest.split_at_checked(u32::from_be_bytes(*header) as usize)
        {
            frames.push(frame.to_vec());
            stream = rest;
        }
        frames
    }

    #[test]
    fn any_stream_is_taken_as_the_frames_that_it_has() {
        for seed in seeds(50) {
            let _report = SeedReport(seed);
            let mut random = Random::new(seed);
            let mut stream = Vec::new();
            for _ in 0..1 + random.below(8) {
                // One length in eight is anything, up to more than the memory of any machine.
                let len = [0, 1, 60, 1514, 69_632][random.below(5)];
                let said = if random.one_in(8) { random.next_u64() as u32 >> random.below(32) } else { len };
                stream.extend(said.to_be_bytes());
                stream.extend(random.bytes(len as usize));
            }
            stream.truncate(stream.len() - random.below(stream.len()));
            let (mut wire, mut qemu) = Wire::new([2; 6]).unwrap();
            let mut taken = Vec::new();
            let mut rest = &stream[..];
            while !rest.is_empty() {
                let (piece, behind) = rest.split_at((1 + random.below(30_000)).min(rest.len()));
                qemu.write_all(piece).unwrap();
                rest = behind;
                wire.note(true, false);
                while wire.has_frames() {
                    taken.extend(wire.split().0.receive(|received| received.head.to_vec()));
                }
                assert!(wire.rx.filled.end <= READ_BYTES);
            }
            assert!(taken == frames_of(&stream));
        }
    }
}
