//! A placeholder with the final interface, until the commands are in: it answers PING.

use alloc::{collections::VecDeque, string::String, vec::Vec};
use kayvee_commands::options::Options;
use kayvee_platform::{Heap, Now};

/// A connected client: a dense index, reused after [`Engine::disconnect`], by which a target finds its socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub u32);

/// Where a client comes from, as `CLIENT LIST` shows it.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    /// The client's `address:port`.
    pub remote: String,
    /// The `address:port` that it connected to.
    pub local: String,
}

/// What a target provides for one engine.
pub struct Environment {
    /// How the store runs, for `INFO server`: `linux`, `kvm`, `tcg` ...
    pub target: &'static str,
    /// The operating system or hypervisor in words, for `INFO server`.
    pub os: String,
    /// Live memory figures.
    pub heap: &'static dyn Heap,
    /// A secret seed from the platform's entropy: it keys the hash table and the random generator.
    pub seed: [u8; 32],
}

/// Why a connection was not accepted: bytes to send before closing it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal(pub &'static [u8]);

/// What a target does with a connection after it has sent what it could of the client's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It stays, and its bytes are wanted.
    Open,
    /// It stays, but nothing should be read from it until the engine names it ready again.
    Paused,
    /// Close it once all its output is sent.
    CloseAfterOutput,
    /// Close it now and drop its output.
    CloseNow,
}

/// A request to end the process or the virtual machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shutdown {
    /// The exit status to end with.
    pub status: u8,
}

/// The store and its clients.
pub struct Engine {
    clients: Vec<Option<Vec<u8>>>,
    ready: VecDeque<ClientId>,
}

impl Engine {
    /// Makes an empty store.
    pub fn new(_options: Options, _environment: Environment, _now: Now) -> Engine {
        Engine { clients: Vec::new(), ready: VecDeque::new() }
    }

    /// Starts a turn: all that happens until the next one happens at `now`.
    pub fn begin_turn(&mut self, _now: Now) {}

    /// Admits a new connection.
    pub fn connect(&mut self, _peer: Peer) -> Result<ClientId, Refusal> {
        let slot = self.clients.iter().position(Option::is_none).unwrap_or_else(|| {
            self.clients.push(None);
            self.clients.len() - 1
        });
        self.clients[slot] = Some(Vec::new());
        Ok(ClientId(slot as u32))
    }

    /// Takes bytes that a client sent, all of them, and executes the requests that they complete.
    pub fn receive(&mut self, client: ClientId, bytes: &[u8]) {
        if let Some(Some(output)) = self.clients.get_mut(client.0 as usize) {
            for _ in bytes.windows(4).filter(|w| w.eq_ignore_ascii_case(b"PING")) {
                output.extend_from_slice(b"+PONG\r\n");
            }
            self.ready.push_back(client);
        }
    }

    /// Forgets a client whose connection is gone. Its id may be given out again from now on.
    pub fn disconnect(&mut self, client: ClientId) {
        self.clients[client.0 as usize] = None;
    }

    /// Ends a turn with a bounded slice of background work.
    pub fn end_turn(&mut self) {}

    /// The next client with output to send or a changed [`Fate`], each at most once a turn.
    pub fn next_ready(&mut self) -> Option<ClientId> {
        self.ready.pop_front()
    }

    /// Bytes waiting to be sent to a client, in order.
    pub fn output(&self, client: ClientId) -> &[u8] {
        self.clients[client.0 as usize].as_deref().unwrap_or(&[])
    }

    /// Reports that the first `len` bytes of a client's output are on their way.
    pub fn sent(&mut self, client: ClientId, len: usize) {
        if let Some(Some(output)) = self.clients.get_mut(client.0 as usize) {
            output.drain(..len);
        }
    }

    /// What to do with a client's connection.
    pub fn fate(&self, _client: ClientId) -> Fate {
        Fate::Open
    }

    /// When the engine wants its next turn even if nothing arrives, in the clock's monotonic nanoseconds.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        None
    }

    /// A shutdown that a client has asked for. The target sends the output that is left, then ends.
    pub fn shutdown(&self) -> Option<Shutdown> {
        None
    }

    /// Asks for a clean shutdown from outside, as a signal does.
    pub fn request_shutdown(&mut self) {}
}
