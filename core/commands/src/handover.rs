//! Long strings on their way from a client into the store: the buffer that they came in becomes the value, so that their bytes
//! are not copied.
//!
//! A request is lent while its command runs, so a command can only say that it would have the buffer: it sets the key without
//! its bytes, which follow as soon as the request is over and before anything looks at them.

use crate::{Context, Origin, Store};
use alloc::vec::Vec;
use kayvee_keyspace::{Expiry, OutOfMemory, Owned};
use kayvee_resp::Request;

/// What becomes of the buffer that begins with the last argument of the request that is running.
#[derive(Default)]
pub(crate) enum Handover {
    /// It stays the connection's.
    #[default]
    None,
    /// A command may have it.
    Offered,
    /// It is to be the string at this key.
    Accepted { db: usize, key: Vec<u8> },
}

impl Store {
    /// Lets the next request have the buffer that its last argument lies [ahead](Request::is_ahead) in.
    pub fn offer_buffer(&mut self) {
        self.handover = Handover::Offered;
    }

    /// Ends the offer. The buffer, whose first `len` bytes are the argument, becomes a value or comes back.
    pub fn hand_over(&mut self, mut buffer: Vec<u8>, len: usize) -> Option<Vec<u8>> {
        let Handover::Accepted { db, key } = core::mem::take(&mut self.handover) else { return Some(buffer) };
        buffer.truncate(len);
        self.dbs[db].fill(&key, buffer);
        None
    }
}

impl Context<'_> {
    /// Sets a key to the string that is the argument at `at` of a request.
    pub(crate) fn set_argument(
        &mut self,
        key: &[u8],
        request: Request<'_>,
        at: usize,
        expiry: Expiry,
    ) -> Result<(), OutOfMemory> {
        // Who waits for the key looks at it as soon as the command is over.
        let accepts = matches!(self.store.handover, Handover::Offered)
            && self.origin == Origin::Client
            && request.is_ahead(at)
            && self.store.waiting.get(self.db_index(), key).is_none();
        if accepts {
            return self.accept_buffer(key, expiry);
        }
        let now_ms = self.now_ms();
        self.db().set(key, Owned::Text(&request[at]), expiry, now_ms)
    }

    /// Sets a key to the string that the buffer which is offered begins with.
    #[inline(never)]
    fn accept_buffer(&mut self, key: &[u8], expiry: Expiry) -> Result<(), OutOfMemory> {
        let mut own_key = Vec::new();
        own_key.try_reserve_exact(key.len())?;
        own_key.extend_from_slice(key);
        let (db, now_ms) = (self.db_index(), self.now_ms());
        self.db().set(key, Owned::ToFill, expiry, now_ms)?;
        self.store.handover = Handover::Accepted { db, key: own_key };
        Ok(())
    }
}
