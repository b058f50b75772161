//! Connections that the store itself wants to have.

use super::{ClientId, Engine, Peer};
use alloc::vec::Vec;
pub use kayvee_commands::Dial;

impl Engine {
    /// A connection that the store wants, if it does: to be asked for once a turn, after [`end_turn`](Self::end_turn). The
    /// target answers with [`dialed`](Self::dialed) or [`dial_failed`](Self::dial_failed).
    pub fn next_dial(&mut self) -> Option<Dial> {
        self.store.next_dial()
    }

    /// Admits a connection that was asked for. It may yet have to be established: the target sends the first bytes to it
    /// when it is, and disconnects it if that fails.
    pub fn dialed(&mut self, dial: &Dial, peer: Peer) -> Option<ClientId> {
        if self.free_slots.is_empty() && self.reserve_slot().is_err() {
            self.store.dial_failed(dial, "there is no memory for a connection");
            return None;
        }
        let client = self.admit(peer);
        if !self.store.dialed(dial, client.0) {
            self.disconnect(client);
            return None;
        }
        self.serve_touched();
        Some(client)
    }

    /// Notes that a connection which was asked for cannot be had.
    pub fn dial_failed(&mut self, dial: &Dial, why: &str) {
        self.store.dial_failed(dial, why);
        self.serve_touched();
    }

    /// Takes what a master has sent. Returns what of it are effects, or nothing if all is.
    pub(super) fn hear_link(&mut self, client: ClientId, bytes: &[u8]) -> Option<Vec<u8>> {
        if !self.store.is_silent_link(client.0) {
            return None;
        }
        let effects = self.store.hear_link(client.0, bytes);
        self.mark_ready(client);
        Some(effects)
    }
}
