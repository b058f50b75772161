//! What is received.

use super::{Frames, table};
use crate::ring::{CONTINUES, Ring, Violation};
use alloc::vec::Vec;
use kayvee_platform::{FrameRx, Received};

/// So many received frames are given back together, if there are more of them.
const GIVE_BACK_FRAMES: u32 = 64;

/// The receiving half.
#[derive(Debug)]
pub struct XdpRx {
    fill: Ring,
    rx: Ring,
    frames: Frames,
    /// By place: whether the kernel has it.
    is_lent: Vec<bool>,
    /// A copy of a frame that lies in several places. It grows with what comes: where memory is short peers are told to send
    /// less than the link carries.
    pub(super) frame: Vec<u8>,
    max_frame_bytes: usize,
    unreturned: u32,
    error: Option<Violation>,
}

/// A frame that was received, or a piece of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    place: u32,
    /// Where it lies in the memory.
    at: usize,
    len: usize,
    options: u32,
}

impl XdpRx {
    /// With places that the kernel is given, if there is memory.
    pub(super) fn new(fill: Ring, rx: Ring, frames: Frames, max_frame_bytes: usize) -> Option<XdpRx> {
        let is_lent = table(frames.count, false)?;
        let count = frames.count;
        let mut rx =
            XdpRx { fill, rx, frames, is_lent, frame: Vec::new(), max_frame_bytes, unreturned: 0, error: None };
        (0..count).for_each(|place| rx.give(place));
        rx.give_back();
        Some(rx)
    }

    /// What the other side has done wrong, after which nothing is received.
    pub fn error(&self) -> Option<Violation> {
        self.error
    }

    /// Writes down that the kernel may use a place.
    #[inline]
    fn give(&mut self, place: u32) {
        self.is_lent[place as usize] = true;
        self.fill.put_address(self.frames.address(place));
        self.unreturned += 1;
        if self.unreturned >= GIVE_BACK_FRAMES {
            self.give_back();
        }
    }

    /// Tells the kernel of the places that are its own again.
    fn give_back(&mut self) {
        if self.fill.publish() {
            self.rx.release();
            self.unreturned = 0;
        }
    }

    /// Takes the next frame, or the next piece of one.
    #[inline]
    pub(super) fn next_piece(&mut self) -> Result<Option<Piece>, Violation> {
        if self.rx.waiting()? == 0 {
            self.give_back();
            return Ok(None);
        }
        let (address, len, options) = self.rx.take_descriptor();
        let (place, offset) = self.frames.find(address).ok_or(Violation::Frame(address))?;
        if !core::mem::replace(&mut self.is_lent[place as usize], false) {
            return Err(Violation::Frame(address));
        }
        if len as usize > (1 << self.frames.bytes_log2) - offset {
            return Err(Violation::Length(len));
        }
        let at = self.frames.offset(place) + offset;
        Ok(Some(Piece { place, at, len: len as usize, options }))
    }

    /// Copies a frame that lies in several pieces, of which this is the first. One that is larger than the link's largest, or than
    /// there is memory for, is cut off, which its headers tell.
    #[inline(never)]
    fn gather(&mut self, first: Piece) -> Result<(), Violation> {
        let (mut piece, mut room) = (first, self.max_frame_bytes);
        self.frame.clear();
        for _ in 0..self.frames.count {
            let len = piece.len.min(room);
            if self.frame.try_reserve(len).is_ok() {
                // SAFETY: the kernel has handed the place over, and gets it back below.
                self.frame.extend_from_slice(unsafe { self.frames.memory.bytes(piece.at, len) });
                room -= len;
            } else {
                room = 0;
            }
            self.give(piece.place);
            if piece.options & CONTINUES == 0 {
                return Ok(());
            }
            // The kernel hands all pieces over together.
            piece = self.next_piece()?.ok_or(Violation::Pieces)?;
        }
        Err(Violation::Pieces)
    }

    fn fail(&mut self, violation: Violation) {
        log::error!("the socket's receiving rings: {violation}");
        self.error = Some(violation);
    }
}

impl FrameRx for XdpRx {
    #[inline]
    fn ready(&mut self) -> bool {
        if self.error.is_some() {
            return false;
        }
        match self.rx.waiting() {
            Ok(waiting) => waiting > 0,
            Err(violation) => {
                self.fail(violation);
                false
            }
        }
    }

    #[inline]
    fn receive<R>(&mut self, consume: impl FnOnce(Received<'_>) -> R) -> Option<R> {
        if self.error.is_some() {
            return None;
        }
        let piece = match self.next_piece() {
            Ok(piece) => piece?,
            Err(violation) => {
                self.fail(violation);
                return None;
            }
        };
        if piece.options & CONTINUES != 0 {
            return match self.gather(piece) {
                Ok(()) => Some(consume(self.frame.as_slice().into())),
                Err(violation) => {
                    self.fail(violation);
                    None
                }
            };
        }
        // SAFETY: the kernel has handed the place over, and gets it back below.
        let frame = unsafe { self.frames.memory.bytes(piece.at, piece.len) };
        let result = consume(frame.into());
        self.give(piece.place);
        Some(result)
    }
}
