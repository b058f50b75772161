//! The network card (virtio 1.2 §5.1), on a tap device or on a stream of frames.

use crate::{
    memory::Memory,
    sys::{self, PIECES_MAX, Pieces},
    transport::{Broken, Device, Model, add_used_together, slices, wants_wake},
};
use kayvee_files::Recorder;
use std::{
    collections::VecDeque,
    fs::File,
    io::{self, ErrorKind, Read, Write},
    ops::Range,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd},
        unix::net::UnixStream,
    },
};
use virtio_queue::{DescriptorChain, Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress, VolatileSlice};

/// Feature bits, §5.1.3. The device completes checksums of what is sent ...
const F_CSUM: u64 = 1 << 0;
/// ... and may leave them incomplete in what it gives.
const F_GUEST_CSUM: u64 = 1 << 1;
/// The device has an address of its own.
const F_MAC: u64 = 1 << 5;
/// It may give several segments of TCP over IPv4, or over IPv6, merged into one frame.
const F_GUEST_TSO4: u64 = 1 << 7;
const F_GUEST_TSO6: u64 = 1 << 8;
/// It divides large frames of either.
const F_HOST_TSO4: u64 = 1 << 11;
const F_HOST_TSO6: u64 = 1 << 12;
const F_GUEST_TSO: u64 = F_GUEST_TSO4 | F_GUEST_TSO6;
const F_HOST_TSO: u64 = F_HOST_TSO4 | F_HOST_TSO6;
/// A frame may lie in several receive buffers.
const F_MRG_RXBUF: u64 = 1 << 15;

/// The receiving queue's number.
pub const RX: usize = 0;
/// The sending queue's number.
pub const TX: usize = 1;
const QUEUE_SIZE: u16 = 256;

/// `struct virtio_net_hdr`, §5.1.6: flags, how to segment, bytes of all headers and in a segment, where the checksum
/// begins and goes, number of buffers.
const HEADER_BYTES: usize = 12;
/// What of it says how to segment.
const SEGMENTATION: Range<usize> = 1..6;
/// The only flag and the kinds of division that a driver may use (§5.1.6).
const NEEDS_CSUM: u8 = 1;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
/// Where it says of how many buffers a frame consists.
const NUM_BUFFERS_OFFSET: u64 = 10;
/// A frame without a tag, and one, as Ethernet allows them here.
const FRAME_BYTES_MAX: usize = 14 + 4 + 1500;
/// One of merged segments, or one to be divided.
const LARGE_FRAME_BYTES_MAX: usize = 14 + 4 + 65_535;
/// Frames sent or received in a row before the other direction has its turn.
const BURST: usize = 256;

/// The end of a network that the card is plugged into.
pub struct Network {
    /// Where frames come from and go to.
    pub backend: Backend,
    /// The card's address.
    pub mac: [u8; 6],
    /// Where all frames are recorded, if they are: then as they are on a wire, whole and with their checksums.
    pub recorder: Option<Recorder>,
}

/// Where frames come from and go to.
pub enum Backend {
    /// A tap device, opened with a header before each frame.
    Tap(File),
    /// Frames behind their length in four bytes, big-endian.
    Stream(Stream),
}

/// What became of a frame that was to go out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    /// It is gone, or lost as networks lose frames.
    Done,
    /// There is no room for it now.
    Full,
}

impl Backend {
    /// A tap device.
    pub fn tap(file: File) -> io::Result<Backend> {
        sys::set_tap_header(file.as_raw_fd(), HEADER_BYTES as i32)?;
        sys::set_nonblocking(&file)?;
        Ok(Backend::Tap(file))
    }

    /// A stream of frames.
    pub fn stream(socket: UnixStream) -> io::Result<Backend> {
        socket.set_nonblocking(true)?;
        Ok(Backend::Stream(Stream { socket, incoming: Vec::new(), outgoing: Vec::new() }))
    }

    /// Reads a frame behind an empty header into guest memory: how many bytes, or `None` if there is none.
    fn receive(&mut self, pieces: &mut sys::Transfer<'_>) -> io::Result<Option<usize>> {
        let result = match self {
            Backend::Tap(tap) => pieces.read(tap),
            Backend::Stream(stream) => return stream.receive(pieces),
        };
        match result {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What it can do for a driver.
    fn offloads(&self) -> u64 {
        match self {
            Backend::Tap(_) => F_CSUM | F_GUEST_CSUM | F_GUEST_TSO | F_HOST_TSO | F_MRG_RXBUF,
            Backend::Stream(_) => 0,
        }
    }

    /// Lets the frames that come in be as these features allow.
    fn set_offloads(&mut self, features: u64) {
        if let Backend::Tap(tap) = self {
            let completes = features & F_GUEST_CSUM != 0;
            let merges = |feature| completes && features & feature != 0 && features & F_MRG_RXBUF != 0;
            let offloads = sys::TapOffloads { completes, merges4: merges(F_GUEST_TSO4), merges6: merges(F_GUEST_TSO6) };
            if let Err(error) = sys::set_tap_offloads(tap.as_raw_fd(), offloads) {
                log::warn!("the tap device: {error}");
            }
        }
    }

    fn send(&mut self, pieces: &mut sys::Transfer<'_>) -> Sent {
        match self {
            // A tap that is switched off, or has no memory, loses frames as a cable does.
            Backend::Tap(tap) => _ = pieces.write(tap),
            Backend::Stream(stream) => return stream.send(pieces),
        }
        Sent::Done
    }
}

/// One end of a stream of frames.
pub struct Stream {
    socket: UnixStream,
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
}

const LENGTH_BYTES: usize = 4;
/// What is read from a stream at once.
const READ_BYTES: usize = 64 << 10;
/// What waits for a stream's other end to read.
const WAITING_BYTES_MAX: usize = 256 << 10;

impl Stream {
    fn receive(&mut self, pieces: &mut sys::Transfer<'_>) -> io::Result<Option<usize>> {
        loop {
            if let Some((length, rest)) = self.incoming.split_first_chunk::<LENGTH_BYTES>() {
                let len = u32::from_be_bytes(*length) as usize;
                if len > FRAME_BYTES_MAX {
                    return Err(ErrorKind::InvalidData.into());
                }
                if rest.len() >= len {
                    let copied = pieces.fill(&[&[0; HEADER_BYTES], &rest[..len]]);
                    self.incoming.drain(..LENGTH_BYTES + len);
                    return Ok(Some(copied));
                }
            }
            let start = self.incoming.len();
            self.incoming.resize(start + READ_BYTES, 0);
            let result = self.socket.read(&mut self.incoming[start..]);
            self.incoming.truncate(start + *result.as_ref().unwrap_or(&0));
            match result {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn send(&mut self, pieces: &mut sys::Transfer<'_>) -> Sent {
        if self.outgoing.len() >= WAITING_BYTES_MAX {
            return Sent::Full;
        }
        let len = pieces.bytes() - HEADER_BYTES;
        self.outgoing.extend_from_slice(&(len as u32).to_be_bytes());
        pieces.copy_to(HEADER_BYTES, len, &mut self.outgoing);
        Sent::Done
    }

    /// Hands on what waits, as much as there is room for.
    fn flush(&mut self) {
        while !self.outgoing.is_empty() {
            match self.socket.write(&self.outgoing) {
                Ok(len) => _ = self.outgoing.drain(..len),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // The other end is gone: as with a cable that is pulled, frames are lost.
                Err(_) => self.outgoing.clear(),
            }
        }
    }
}

/// A piece of a receive buffer that the guest has left.
#[derive(Clone, Copy, Debug)]
struct Piece {
    head: u16,
    address: GuestAddress,
    len: u32,
    /// The last one of its buffer.
    is_last: bool,
}

/// The card.
pub struct Card {
    backend: Backend,
    mac: [u8; 6],
    pieces: Pieces,
    /// What the driver has agreed on.
    features: u64,
    /// Receive buffers taken from the ring and not yet given back, with so many bytes together.
    posted: VecDeque<Piece>,
    posted_bytes: usize,
    /// The guest has no room for the next frame; it will say when it has.
    is_blocked: bool,
    /// The network is gone.
    is_unplugged: bool,
    /// Where all frames are recorded, if they are.
    record: Option<Record>,
}

/// A record, and the frame that is put into it.
struct Record {
    recorder: Recorder,
    frame: Vec<u8>,
}

/// What to do for a card after it has worked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worked {
    /// The guest wants to be woken up.
    pub wake: bool,
    /// There is more to do at once.
    pub again: bool,
}

impl Card {
    /// A card that is plugged in.
    pub fn new(network: Network) -> Card {
        let Network { backend, mac, recorder } = network;
        let record = recorder.map(|recorder| Record { recorder, frame: Vec::with_capacity(FRAME_BYTES_MAX) });
        Card {
            backend,
            mac,
            record,
            pieces: Pieces::default(),
            features: 0,
            posted: VecDeque::with_capacity(PIECES_MAX),
            posted_bytes: 0,
            is_blocked: true,
            is_unplugged: false,
        }
    }

    /// Memory that the record of frames takes.
    pub fn record_bytes(&self) -> usize {
        self.record.as_ref().map_or(0, |record| record.frame.capacity())
    }

    /// The descriptor that says when there are frames, or room for them.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        match &self.backend {
            Backend::Tap(tap) => tap.as_fd(),
            Backend::Stream(stream) => stream.socket.as_fd(),
        }
    }

    /// Whether frames that come in are of interest now, and whether room for those that go out is.
    pub fn interest(&self) -> (bool, bool) {
        let waits = match &self.backend {
            Backend::Tap(_) => false,
            Backend::Stream(stream) => !stream.outgoing.is_empty(),
        };
        (!self.is_blocked && !self.is_unplugged, waits && !self.is_unplugged)
    }

    /// Gives the guest what has arrived, as far as it has room.
    pub fn receive(&mut self, queue: &mut Queue, memory: &Memory) -> Result<Worked, Broken> {
        self.is_blocked = false;
        let (mut count, mut again) = (0, false);
        while !self.is_unplugged {
            if count == BURST {
                again = true;
                break;
            }
            self.post(queue, memory)?;
            if !self.has_room() {
                if queue.enable_notification(memory)? {
                    continue;
                }
                self.is_blocked = true;
                break;
            }
            match self.receive_one(queue, memory)? {
                Some(()) => count += 1,
                None => break,
            }
        }
        if !self.is_blocked {
            queue.disable_notification(memory)?;
        }
        Ok(Worked { wake: count > 0 && wants_wake(queue, memory)?, again })
    }

    fn merges(&self) -> bool {
        self.features & F_MRG_RXBUF != 0
    }

    /// Whether any frame that may come would fit what is posted.
    fn has_room(&self) -> bool {
        let frame_bytes = match self.features & F_GUEST_TSO {
            0 => FRAME_BYTES_MAX,
            _ => LARGE_FRAME_BYTES_MAX,
        };
        // A frame that is too long for the one buffer that it may have is cut off.
        if self.merges() { self.posted_bytes >= HEADER_BYTES + frame_bytes } else { !self.posted.is_empty() }
    }

    /// Takes buffers from the ring for the next frame.
    fn post(&mut self, queue: &mut Queue, memory: &Memory) -> Result<(), Broken> {
        while !self.has_room() {
            let Some(chain) = queue.iter(memory)?.next() else { return Ok(()) };
            let head = chain.head_index();
            let before = self.posted.len();
            for descriptor in chain.filter(|descriptor| descriptor.is_write_only()) {
                if self.posted.len() == PIECES_MAX {
                    return Err(Broken("receive buffers of too many pieces"));
                }
                let (address, len) = (descriptor.addr(), descriptor.len());
                self.posted.push_back(Piece { head, address, len, is_last: false });
                self.posted_bytes += len as usize;
            }
            match self.posted.get(before) {
                Some(first) if first.len as usize >= HEADER_BYTES => {}
                _ => return Err(Broken("a receive buffer without room for a header")),
            }
            self.posted.iter_mut().last().expect("there is a first one").is_last = true;
        }
        Ok(())
    }

    fn receive_one(&mut self, queue: &mut Queue, memory: &Memory) -> Result<Option<()>, Broken> {
        let merges = self.merges();
        let mut pieces = self.pieces.begin();
        for piece in &self.posted {
            slices(memory, piece.address, piece.len, |slice| push(&mut pieces, &slice))?;
            if piece.is_last && !merges {
                break;
            }
        }
        match self.backend.receive(&mut pieces) {
            Ok(Some(bytes)) => {
                record(&mut self.record, &pieces, bytes);
                self.give_back(queue, memory, bytes)?;
                Ok(Some(()))
            }
            Ok(None) => Ok(None),
            Err(error) => {
                log::warn!("the network is gone: {error}");
                self.is_unplugged = true;
                Ok(None)
            }
        }
    }

    /// Gives back the buffers that a frame of so many bytes takes, all at once (§5.1.6.4).
    fn give_back(&mut self, queue: &mut Queue, memory: &Memory, frame_bytes: usize) -> Result<(), Broken> {
        let mut rest = frame_bytes;
        let (mut pieces, mut buffers, mut count) = (0, [(0, 0); PIECES_MAX], 0);
        let mut len = 0;
        while rest > 0 || len > 0 {
            let piece = self.posted.get(pieces).ok_or(Broken("a frame that is longer than what is there for it"))?;
            let part = rest.min(piece.len as usize);
            (rest, len, pieces) = (rest - part, len + part, pieces + 1);
            if piece.is_last {
                buffers[count] = (piece.head, len as u32);
                (count, len) = (count + 1, 0);
            }
        }
        let first = self.posted.front().map_or(GuestAddress(0), |piece| piece.address);
        set_num_buffers(memory, first, count as u16)?;
        self.posted_bytes -= self.posted.drain(..pieces).map(|piece| piece.len as usize).sum::<usize>();
        add_used_together(queue, memory, &buffers[..count])
    }

    /// Sends what the guest has left to be sent.
    pub fn send(&mut self, queue: &mut Queue, memory: &Memory) -> Result<Worked, Broken> {
        let mut count = 0;
        let mut again = false;
        queue.disable_notification(memory)?;
        loop {
            if count == BURST {
                again = true;
                break;
            }
            let Some(chain) = queue.iter(memory)?.next() else {
                self.flush();
                // A frame that came before the driver saw that it is to notify again is looked for once more.
                if queue.enable_notification(memory)? {
                    queue.disable_notification(memory)?;
                    continue;
                }
                break;
            };
            let head = chain.head_index();
            if self.send_one(memory, chain)? == Sent::Full {
                queue.go_to_previous_position();
                self.flush();
                if self.interest().1 {
                    break;
                }
                // All that has waited is gone, so nobody would say that there is room.
                count += 1;
                continue;
            }
            queue.add_used(memory, head, 0)?;
            count += 1;
        }
        Ok(Worked { wake: count > 0 && wants_wake(queue, memory)?, again })
    }

    /// Hands on what waits for the network's other end.
    fn flush(&mut self) {
        if let Backend::Stream(stream) = &mut self.backend {
            stream.flush();
        }
    }

    /// Of the guest's header only what was agreed on is passed on: a checksum to complete, TCP over IPv4 to divide. A tap
    /// checks the rest: what it says of bytes that are not in the frame is refused there, and the frame lost.
    fn send_one(&mut self, memory: &Memory, chain: DescriptorChain<&Memory>) -> Result<Sent, Broken> {
        let mut header = [0u8; HEADER_BYTES];
        let mut filled = 0;
        let mut frame = [(GuestAddress(0), 0); PIECES_MAX];
        let mut count = 0;
        for descriptor in chain.filter(|descriptor| !descriptor.is_write_only()) {
            let part = (HEADER_BYTES - filled).min(descriptor.len() as usize);
            let read = memory.read_slice(&mut header[filled..filled + part], descriptor.addr());
            read.map_err(|_| Broken("a buffer that is not in memory"))?;
            filled += part;
            let place = frame.get_mut(count).ok_or(Broken("a frame of too many pieces"))?;
            *place = (GuestAddress(descriptor.addr().0.saturating_add(part as u64)), descriptor.len() - part as u32);
            count += 1;
        }
        let has = |feature| self.features & feature != 0;
        if !has(F_CSUM) {
            header = [0; HEADER_BYTES];
        } else if !has(F_HOST_TSO) {
            header[SEGMENTATION].fill(0);
        }
        header[0] &= NEEDS_CSUM;
        let is_agreed = match header[SEGMENTATION.start] {
            GSO_NONE => true,
            GSO_TCPV4 => has(F_HOST_TSO4),
            GSO_TCPV6 => has(F_HOST_TSO6),
            _ => false,
        };
        if !is_agreed {
            return Err(Broken("a frame to divide in a way that was not agreed on"));
        }
        let most = if has(F_CSUM) && has(F_HOST_TSO) { LARGE_FRAME_BYTES_MAX } else { FRAME_BYTES_MAX };
        let mut pieces = self.pieces.begin();
        push(&mut pieces, &VolatileSlice::from(&mut header[..]))?;
        for (address, len) in &frame[..count] {
            slices(memory, *address, *len, |slice| push(&mut pieces, &slice))?;
        }
        if filled < HEADER_BYTES || pieces.bytes() - HEADER_BYTES > most {
            return Err(Broken("a frame without a header, or too long"));
        }
        let bytes = pieces.bytes();
        let sent = self.backend.send(&mut pieces);
        if sent == Sent::Done {
            record(&mut self.record, &pieces, bytes);
        }
        Ok(sent)
    }
}

impl Device<Card> {
    /// Lets the card work on its queues. What nobody drives takes no frames, and hands on what it has taken: part of a frame may be
    /// gone already, and for the rest nobody else would ask.
    pub fn carry(
        &mut self,
        work: impl FnOnce(&mut Card, &mut [Queue], &Memory) -> Result<Worked, Broken>,
    ) -> Option<Worked> {
        let worked = self.work(work);
        if worked.is_none() {
            self.model_mut().is_blocked = true;
            self.model_mut().flush();
        }
        worked
    }
}

/// Records a frame that lies, behind its header, in the first `bytes` bytes of these pieces.
fn record(record: &mut Option<Record>, pieces: &sys::Transfer<'_>, bytes: usize) {
    let Some(Record { recorder, frame }) = record else { return };
    frame.clear();
    // What a guest has left for a frame may be all of its memory, many times.
    pieces.copy_to(HEADER_BYTES, bytes - HEADER_BYTES, frame);
    if let Err(error) = recorder.record(frame).and_then(|()| recorder.flush()) {
        log::warn!("no more frames are recorded: {error}");
        *record = None;
    }
}

fn push<'a>(pieces: &mut sys::Transfer<'a>, slice: &VolatileSlice<'a>) -> Result<(), Broken> {
    if pieces.push(slice) { Ok(()) } else { Err(Broken("a buffer of too many pieces")) }
}

/// Says in how many buffers a frame lies: one, where they are not merged (§5.1.6.4.1).
fn set_num_buffers(memory: &Memory, header: GuestAddress, count: u16) -> Result<(), Broken> {
    let at = GuestAddress(header.0.saturating_add(NUM_BUFFERS_OFFSET));
    memory.write_obj(count.to_le(), at).map_err(|_| Broken("a receive buffer that is not in memory"))
}

impl Model for Card {
    const ID: u32 = 1;
    const QUEUE_SIZES: &'static [u16] = &[QUEUE_SIZE, QUEUE_SIZE];

    fn features(&self) -> u64 {
        F_MAC | if self.record.is_some() { 0 } else { self.backend.offloads() }
    }

    fn config(&self, offset: usize) -> u8 {
        self.mac.get(offset).copied().unwrap_or(0)
    }

    fn restart(&mut self, features: u64) {
        self.features = features;
        self.backend.set_offloads(features);
        self.posted.clear();
        self.posted_bytes = 0;
        // Until the guest has left buffers, and said so.
        self.is_blocked = true;
    }
}
