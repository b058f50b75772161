//! The record of a guest that works a socket's rings itself: it is given others, and what stands in them is handed on by this
//! program, which writes it down on the way.

use crate::{
    memory::{self, Memory},
    sys,
};
use anyhow::{Result, anyhow};
use kayvee_files::Recorder;
use kayvee_net::complete_checksum;
use kayvee_xdp::{Passing, Relay};
use kayvee_xdp_socket::{FrameMemory, Socket};
use std::io;
use vm_memory::{GuestAddress, GuestMemoryBackend, GuestRegionMmap};

/// A record, and the rings that it lies between.
pub struct Tape {
    relay: Relay,
    /// As long as the file can be written to.
    recorder: Option<Recorder>,
}

impl Tape {
    /// Begins to record what passes between a socket and rings in such memory, which the guest has as its own.
    pub fn begin(
        recorder: Recorder,
        socket: &'static Socket,
        frames: &'static FrameMemory,
        rings: [&'static GuestRegionMmap<()>; 2],
    ) -> Result<Tape> {
        Ok(Tape { relay: sys::relay(socket, frames, rings)?, recorder: Some(recorder) })
    }

    /// Hands on what has arrived, and what is to be sent, which `send` has the kernel do. Returns whether anything arrived. A frame
    /// is in the file before the other side has it, so none is missing, and answers stand behind what they answer.
    pub fn pass(&mut self, send: impl FnOnce()) -> Result<bool> {
        let Tape { relay, recorder } = self;
        let received = relay.receive(|passing| record(recorder, passing));
        received.map_err(|violation| anyhow!("the socket's rings: {violation}"))?;
        relay.send(|passing| record(recorder, passing));
        go_on(recorder, Recorder::flush);
        let work = relay.publish();
        if work.is_to_send {
            send();
        }
        relay.settle();
        Ok(work.has_arrived)
    }
}

/// Adds a frame, as it would be on a wire.
fn record(recorder: &mut Option<Recorder>, passing: Passing<'_>) {
    let Passing { frame, may_lack_checksum } = passing;
    if may_lack_checksum && recorder.is_some() {
        complete_checksum(frame);
    }
    go_on(recorder, |recorder| recorder.record(frame));
}

/// Does something with a record, which ends where that fails.
fn go_on(recorder: &mut Option<Recorder>, act: impl FnOnce(&mut Recorder) -> io::Result<()>) {
    if let Some(open) = recorder
        && let Err(error) = act(open)
    {
        log::warn!("no more frames are recorded: {error}");
        *recorder = None;
    }
}

/// Memory for a ring between, at this address of the guest's.
pub fn ring_memory(address: u64, len: usize) -> Result<&'static GuestRegionMmap<()>> {
    let memory = memory::keep(&Memory::from_ranges(&[(GuestAddress(address), len)])?);
    Ok(memory.iter().next().expect("one range"))
}
