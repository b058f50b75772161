//! The network card (virtio 1.2 §5.1), on a tap device or on a stream of frames.

use crate::{
    memory::Memory,
    sys::{self, Pieces},
    transport::{Broken, Model, slices, wants_wake},
};
use std::{
    fs::File,
    io::{self, ErrorKind, Read, Write},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd},
        unix::net::UnixStream,
    },
};
use virtio_queue::{DescriptorChain, Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress, VolatileSlice};

/// The device has an address of its own.
const F_MAC: u64 = 1 << 5;

/// The receiving queue's number.
pub const RX: usize = 0;
/// The sending queue's number.
pub const TX: usize = 1;
const QUEUE_SIZE: u16 = 256;

/// `struct virtio_net_hdr`, §5.1.6.
const HEADER_BYTES: usize = 12;
/// Where it says of how many buffers a frame consists.
const NUM_BUFFERS_OFFSET: u64 = 10;
/// A frame without a tag, and one, as Ethernet allows them here.
const FRAME_BYTES_MAX: usize = 14 + 4 + 1500;
/// Frames sent or received in a row before the other direction has its turn.
const BURST: usize = 256;

/// The end of a network that the card is plugged into.
pub struct Network {
    /// Where frames come from and go to.
    pub backend: Backend,
    /// The card's address.
    pub mac: [u8; 6],
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
        sys::set_up_tap(file.as_raw_fd(), HEADER_BYTES as i32)?;
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
        pieces.copy_to(HEADER_BYTES, &mut self.outgoing);
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

/// The card.
pub struct Card {
    network: Network,
    pieces: Pieces,
    /// The guest has no room for the next frame; it will say when it has.
    is_blocked: bool,
    /// The network is gone.
    is_unplugged: bool,
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
        Card { network, pieces: Pieces::default(), is_blocked: true, is_unplugged: false }
    }

    /// The descriptor that says when there are frames, or room for them.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        match &self.network.backend {
            Backend::Tap(tap) => tap.as_fd(),
            Backend::Stream(stream) => stream.socket.as_fd(),
        }
    }

    /// Whether frames that come in are of interest now, and whether room for those that go out is.
    pub fn interest(&self) -> (bool, bool) {
        let waits = match &self.network.backend {
            Backend::Tap(_) => false,
            Backend::Stream(stream) => !stream.outgoing.is_empty(),
        };
        (!self.is_blocked && !self.is_unplugged, waits && !self.is_unplugged)
    }

    /// Takes no more frames until the guest says that it has room.
    pub fn block(&mut self) {
        self.is_blocked = true;
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
            let Some(chain) = queue.iter(memory)?.next() else {
                if queue.enable_notification(memory)? {
                    continue;
                }
                self.is_blocked = true;
                break;
            };
            match self.receive_one(queue, memory, chain)? {
                Some(()) => count += 1,
                None => break,
            }
        }
        if !self.is_blocked {
            queue.disable_notification(memory)?;
        }
        Ok(Worked { wake: count > 0 && wants_wake(queue, memory)?, again })
    }

    fn receive_one(
        &mut self,
        queue: &mut Queue,
        memory: &Memory,
        chain: DescriptorChain<&Memory>,
    ) -> Result<Option<()>, Broken> {
        let head = chain.head_index();
        let mut pieces = self.pieces.begin();
        let mut header = None;
        for descriptor in chain.filter(|descriptor| descriptor.is_write_only()) {
            header = header.or((descriptor.len() as usize >= HEADER_BYTES).then_some(descriptor.addr()));
            slices(memory, descriptor.addr(), descriptor.len(), |slice| push(&mut pieces, &slice))?;
        }
        let header = header.ok_or(Broken("a receive buffer without room for a header"))?;
        match self.network.backend.receive(&mut pieces) {
            Ok(Some(bytes)) => {
                set_num_buffers(memory, header)?;
                queue.add_used(memory, head, bytes as u32)?;
                Ok(Some(()))
            }
            Ok(None) => {
                queue.go_to_previous_position();
                Ok(None)
            }
            Err(error) => {
                log::warn!("the network is gone: {error}");
                self.is_unplugged = true;
                queue.go_to_previous_position();
                Ok(None)
            }
        }
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
                break;
            }
            queue.add_used(memory, head, 0)?;
            count += 1;
        }
        Ok(Worked { wake: count > 0 && wants_wake(queue, memory)?, again })
    }

    /// Hands on what waits for the network's other end.
    pub fn flush(&mut self) {
        if let Backend::Stream(stream) = &mut self.network.backend {
            stream.flush();
        }
    }

    /// The guest's own header is not passed on: no work was offered that it could ask for.
    fn send_one(&mut self, memory: &Memory, chain: DescriptorChain<&Memory>) -> Result<Sent, Broken> {
        let mut no_header = [0u8; HEADER_BYTES];
        let mut pieces = self.pieces.begin();
        push(&mut pieces, &VolatileSlice::from(&mut no_header[..]))?;
        let mut skipped = 0;
        for descriptor in chain.filter(|descriptor| !descriptor.is_write_only()) {
            let skip = (HEADER_BYTES - skipped).min(descriptor.len() as usize);
            skipped += skip;
            let address = GuestAddress(descriptor.addr().0.saturating_add(skip as u64));
            slices(memory, address, descriptor.len() - skip as u32, |slice| push(&mut pieces, &slice))?;
        }
        let frame_bytes = pieces.bytes() - HEADER_BYTES;
        if skipped < HEADER_BYTES || frame_bytes > FRAME_BYTES_MAX {
            return Err(Broken("a frame without a header, or too long"));
        }
        Ok(self.network.backend.send(&mut pieces))
    }
}

fn push<'a>(pieces: &mut sys::Transfer<'a>, slice: &VolatileSlice<'a>) -> Result<(), Broken> {
    if pieces.push(slice) { Ok(()) } else { Err(Broken("a buffer of too many pieces")) }
}

/// One, as buffers are not merged (§5.1.6.4.1).
fn set_num_buffers(memory: &Memory, header: GuestAddress) -> Result<(), Broken> {
    let at = GuestAddress(header.0.saturating_add(NUM_BUFFERS_OFFSET));
    memory.write_obj(1u16.to_le(), at).map_err(|_| Broken("a receive buffer that is not in memory"))
}

impl Model for Card {
    const ID: u32 = 1;
    const QUEUE_SIZES: &'static [u16] = &[QUEUE_SIZE, QUEUE_SIZE];

    fn features(&self) -> u64 {
        F_MAC
    }

    fn config(&self, offset: usize) -> u8 {
        self.network.mac.get(offset).copied().unwrap_or(0)
    }

    fn restart(&mut self, _features: u64) {
        // Until the guest has left buffers, and said so.
        self.is_blocked = true;
    }
}
