//! The entropy device (virtio 1.2 §5.4).

use crate::{
    devices::net::Worked,
    memory::Memory,
    transport::{Broken, Model, slices, wants_wake},
};
use std::{fs::File, io::Read};
use virtio_queue::{Queue, QueueOwnedT, QueueT};

const QUEUE_SIZE: u16 = 8;
/// Bytes given for one request at most; a guest asks again.
const REQUEST_BYTES_MAX: usize = 256;

/// The host's generator.
pub struct Source {
    generator: File,
}

impl Source {
    /// Opens the host's generator.
    pub fn open() -> std::io::Result<Source> {
        Ok(Source { generator: File::open("/dev/urandom")? })
    }

    /// Answers requests, as many at a time as the queue has room for: a guest that makes them for ever must not have the
    /// thread to itself.
    pub fn answer(&mut self, queue: &mut Queue, memory: &Memory) -> Result<Worked, Broken> {
        let mut count = 0;
        while count < QUEUE_SIZE {
            let Some(chain) = queue.iter(memory)?.next() else { break };
            let head = chain.head_index();
            let mut random = [0; REQUEST_BYTES_MAX];
            if self.generator.read_exact(&mut random).is_err() {
                return Err(Broken("no entropy on the host"));
            }
            let mut given = 0;
            for descriptor in chain.filter(|descriptor| descriptor.is_write_only()) {
                let len = (descriptor.len() as usize).min(REQUEST_BYTES_MAX - given);
                slices(memory, descriptor.addr(), len as u32, |slice| {
                    let part = slice.len();
                    slice.copy_from(&random[given..given + part]);
                    given += part;
                    Ok(())
                })?;
            }
            queue.add_used(memory, head, given as u32)?;
            count += 1;
        }
        Ok(Worked { wake: count > 0 && wants_wake(queue, memory)?, again: count == QUEUE_SIZE })
    }
}

impl Model for Source {
    const ID: u32 = 4;
    const QUEUE_SIZES: &'static [u16] = &[QUEUE_SIZE];

    fn features(&self) -> u64 {
        0
    }

    fn config(&self, _offset: usize) -> u8 {
        0
    }

    fn restart(&mut self, _features: u64) {}
}
