//! The disk (virtio 1.2 §5.2): a file or a block device.

use crate::{
    memory::Memory,
    sys::{Pieces, Transfer},
    transport::{Broken, Model, slices, wants_wake},
};
use kayvee_disk::{AHEAD_BYTES, Complaints, STEP_BYTES};
use nix::libc;
use std::{fs::File, io, time::Instant};
use virtio_queue::{DescriptorChain, Queue, QueueOwnedT, QueueT, desc::split::Descriptor};
use vm_memory::{Bytes, GuestAddress};

const F_SEG_MAX: u64 = 1 << 2;
const F_RO: u64 = 1 << 5;
const F_BLK_SIZE: u64 = 1 << 6;
const F_FLUSH: u64 = 1 << 9;
const F_CONFIG_WCE: u64 = 1 << 11;

// Offsets in the configuration, §5.2.4.
const CONFIG_BYTES: usize = 60;
const CONFIG_SEG_MAX: usize = 12;
const CONFIG_BLK_SIZE: usize = 20;
const CONFIG_WRITEBACK: usize = 32;

const QUEUE_SIZE: u16 = 128;
/// Segments of one request, beside its header and its status.
const SEGMENTS_MAX: u32 = QUEUE_SIZE as u32 - 2;
const SECTOR_BYTES: u64 = 512;
/// What direct I/O takes on every file system and device.
const BLOCK_BYTES: u32 = 4096;

const TYPE_IN: u32 = 0;
const TYPE_OUT: u32 = 1;
const TYPE_FLUSH: u32 = 4;

const STATUS_OK: u8 = 0;
const STATUS_ERROR: u8 = 1;
const STATUS_UNSUPPORTED: u8 = 2;

/// While stable writes take no longer than this on average, they are carried out in the exit that tells of them: another
/// thread would have to be woken up, and would take a processor that the clients need.
const AT_ONCE_NS: u64 = 500_000;
/// The longest write of that kind.
const AT_ONCE_BYTES: u64 = 256 << 10;
/// The average goes over so many writes, more or less.
const AVERAGED: u64 = 8;

/// Type, a reserved word and the first sector.
const HEADER_BYTES: u32 = 16;

/// The disk.
pub struct Block {
    file: File,
    sectors: u64,
    is_read_only: bool,
    /// Writes need a flush to be stable.
    writes_back: bool,
    /// How long a stable write takes, on average.
    stable_ns: u64,
    /// Everything before this has been written at some time. What lies behind is left to the one thread that writes ahead.
    written_bytes: u64,
    /// Where the last write has ended, and the step of the file that somebody was last told of.
    near_bytes: u64,
    told_step: u64,
    pieces: Pieces,
    complaints: Complaints,
}

/// Which requests are to be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// All.
    All,
    /// Stable writes that are expected to be quick, up to the first that is something else.
    Quick,
}

/// What has come of looking for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Worked {
    /// One was carried out; whether the guest wants to be woken up.
    Done {
        /// That.
        wake: bool,
    },
    /// There is none.
    Nothing,
    /// The next one was not chosen.
    Left,
}

/// A request as its header has it.
struct Request {
    kind: u32,
    sector: u64,
}

impl Block {
    /// A disk of whole blocks, of which those before `written_bytes` have been written at some time.
    pub fn new(file: File, bytes: u64, is_read_only: bool, written_bytes: u64) -> Block {
        let sectors = bytes / u64::from(BLOCK_BYTES) * u64::from(BLOCK_BYTES) / SECTOR_BYTES;
        Block {
            file,
            sectors,
            is_read_only,
            writes_back: true,
            stable_ns: 0,
            written_bytes,
            near_bytes: 0,
            told_step: 0,
            pieces: Pieces::default(),
            complaints: Complaints::default(),
        }
    }

    /// Where the last write has ended, and up to where everything has been written at some time.
    pub fn reached(&self) -> (u64, u64) {
        (self.near_bytes, self.written_bytes)
    }

    /// Notes up to where everything has been written by now.
    pub fn set_written(&mut self, written_bytes: u64) {
        self.written_bytes = written_bytes;
    }

    /// Whether something is to be written ahead of the writes that has not been asked for.
    pub fn asks_to_write_ahead(&mut self) -> bool {
        let step = self.near_bytes / STEP_BYTES;
        let is_near = self.near_bytes.saturating_add(AHEAD_BYTES) > self.written_bytes;
        is_near && core::mem::replace(&mut self.told_step, step) != step
    }

    /// Carries out one request.
    pub fn work(&mut self, queue: &mut Queue, memory: &Memory, choice: Choice) -> Result<Worked, Broken> {
        if choice == Choice::Quick && (self.writes_back || self.stable_ns > AT_ONCE_NS) {
            return Ok(Worked::Left);
        }
        queue.disable_notification(memory)?;
        let chain = loop {
            match queue.iter(memory)?.next() {
                Some(chain) => break chain,
                // One that came before the driver saw that it is to notify again is looked for once more.
                None if queue.enable_notification(memory)? => {}
                None => return Ok(Worked::Nothing),
            }
        };
        let head = chain.head_index();
        let Some((status_at, status, written)) = self.serve(memory, chain, choice)? else {
            queue.set_next_avail(queue.next_avail().wrapping_sub(1));
            return Ok(Worked::Left);
        };
        memory.write_obj(status, status_at).map_err(|_| Broken("a status that is not in memory"))?;
        queue.add_used(memory, head, written + 1)?;
        Ok(Worked::Done { wake: wants_wake(queue, memory)? })
    }

    /// The chain is gone through once: what stands in it may change at any time. Returns where the status goes, which it is,
    /// and how many bytes were written; `None` if the request was not chosen.
    fn serve(
        &mut self,
        memory: &Memory,
        mut chain: DescriptorChain<&Memory>,
        choice: Choice,
    ) -> Result<Option<(GuestAddress, u8, u32)>, Broken> {
        let request = Request::read(memory, chain.next())?;
        let is_read = request.kind == TYPE_IN;
        let mut pieces = self.pieces.begin();
        // The last descriptor is the status', all before it are the data's.
        let mut last = chain.next();
        for next in chain {
            let Some(data) = last.replace(next) else { break };
            if data.is_write_only() != is_read {
                return Err(Broken("a disk request whose buffers are of the wrong kind"));
            }
            slices(memory, data.addr(), data.len(), |slice| match pieces.push(&slice) {
                true => Ok(()),
                false => Err(Broken("a disk request of too many pieces")),
            })?;
        }
        let status = last.filter(|status| status.is_write_only() && status.len() == 1);
        let status = status.ok_or(Broken("a disk request without room for its status"))?.addr();
        let bytes = pieces.bytes() as u64;
        let end_bytes = request.sector.saturating_mul(SECTOR_BYTES).saturating_add(bytes);
        let is_quick = request.kind == TYPE_OUT && bytes <= AT_ONCE_BYTES && end_bytes <= self.written_bytes;
        if choice == Choice::Quick && !is_quick {
            return Ok(None);
        }
        let limits = Limits { sectors: self.sectors, is_read_only: self.is_read_only };
        let result = match request.kind {
            TYPE_IN | TYPE_OUT if !limits.allow(&request, bytes) => Err(io::ErrorKind::InvalidInput.into()),
            TYPE_IN => read(&self.file, pieces, &request),
            TYPE_OUT if self.writes_back => write(&self.file, pieces, &request, 0),
            // One system call for a write and its flush, and where the medium can write through its cache, one command to it.
            TYPE_OUT => {
                let began = Instant::now();
                let result = write(&self.file, pieces, &request, libc::RWF_DSYNC);
                let took_ns = began.elapsed().as_nanos() as u64;
                self.stable_ns = self.stable_ns - self.stable_ns / AVERAGED + took_ns / AVERAGED;
                result
            }
            TYPE_FLUSH => self.file.sync_data(),
            _ => return Ok(Some((status, STATUS_UNSUPPORTED, 0))),
        };
        if request.kind == TYPE_OUT && limits.allow(&request, bytes) {
            // Whether it has failed or not: zeros must not follow it there.
            (self.near_bytes, self.written_bytes) = (end_bytes, self.written_bytes.max(end_bytes));
        }
        match result {
            Ok(()) => Ok(Some((status, STATUS_OK, if is_read { bytes as u32 } else { 0 }))),
            Err(error) => {
                self.complaints.tell(format_args!("request {} at sector {}: {error}", request.kind, request.sector));
                Ok(Some((status, STATUS_ERROR, 0)))
            }
        }
    }
}

fn read(file: &File, pieces: Transfer<'_>, request: &Request) -> io::Result<()> {
    pieces.read_all_at(file, request.sector * SECTOR_BYTES)
}

fn write(file: &File, pieces: Transfer<'_>, request: &Request, flags: libc::c_int) -> io::Result<()> {
    pieces.write_all_at(file, request.sector * SECTOR_BYTES, flags)
}

struct Limits {
    sectors: u64,
    is_read_only: bool,
}

impl Limits {
    fn allow(&self, request: &Request, bytes: u64) -> bool {
        let end = request.sector.checked_add(bytes / SECTOR_BYTES);
        bytes > 0
            && bytes.is_multiple_of(SECTOR_BYTES)
            && end.is_some_and(|end| end <= self.sectors)
            && !(self.is_read_only && request.kind == TYPE_OUT)
    }
}

impl Request {
    fn read(memory: &Memory, header: Option<Descriptor>) -> Result<Request, Broken> {
        let header = header.filter(|header| !header.is_write_only() && header.len() == HEADER_BYTES);
        let header = header.ok_or(Broken("a disk request without a header"))?;
        let words: [u8; HEADER_BYTES as usize] =
            memory.read_obj(header.addr()).map_err(|_| Broken("a header that is not in memory"))?;
        Ok(Request {
            kind: u32::from_le_bytes(words[..4].try_into().expect("4 bytes")),
            sector: u64::from_le_bytes(words[8..].try_into().expect("8 bytes")),
        })
    }
}

impl Model for Block {
    const ID: u32 = 2;
    const QUEUE_SIZES: &'static [u16] = &[QUEUE_SIZE];

    fn features(&self) -> u64 {
        let read_only = if self.is_read_only { F_RO } else { 0 };
        F_SEG_MAX | F_BLK_SIZE | F_FLUSH | F_CONFIG_WCE | read_only
    }

    fn config(&self, offset: usize) -> u8 {
        let mut config = [0; CONFIG_BYTES];
        config[..8].copy_from_slice(&self.sectors.to_le_bytes());
        config[CONFIG_SEG_MAX..][..4].copy_from_slice(&SEGMENTS_MAX.to_le_bytes());
        config[CONFIG_BLK_SIZE..][..4].copy_from_slice(&BLOCK_BYTES.to_le_bytes());
        config[CONFIG_WRITEBACK] = self.writes_back.into();
        config.get(offset).copied().unwrap_or(0)
    }

    fn set_config(&mut self, offset: usize, value: u8) {
        if offset == CONFIG_WRITEBACK {
            self.writes_back = value != 0;
        }
    }

    fn restart(&mut self, features: u64) {
        // §5.2.5: a driver that flushes thinks of a cache, another one of none.
        self.writes_back = features == 0 || features & (F_FLUSH | F_CONFIG_WCE) != 0;
    }
}
