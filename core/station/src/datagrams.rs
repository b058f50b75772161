//! What is served by UDP: an echo, and memcached's protocol.

use crate::Peers;
use kayvee_server::{ClientId, Engine, Fate, Options, Peer};

/// The services, for those who may send to them in the same way.
pub struct Datagrams {
    echo_port: u16,
    memcached_port: u16,
    peers: Peers,
    /// The session that memcached's requests run in.
    client: Option<ClientId>,
}

impl Datagrams {
    /// Those that the options ask for.
    pub fn new(options: &Options, peers: Peers) -> Datagrams {
        let (echo_port, memcached_port) = (options.udp_echo_port, options.udp_memcached_port);
        Datagrams { echo_port, memcached_port, peers, client: None }
    }

    /// The ports that they are at.
    pub fn ports(&self) -> impl Iterator<Item = u16> + use<> {
        [self.echo_port, self.memcached_port].into_iter().filter(|port| *port != 0)
    }

    /// Answers a datagram for one of these ports. Its answer, if there is one, goes into `reply`, and its length is
    /// returned.
    pub fn answer(
        &mut self,
        engine: &mut Engine,
        port: u16,
        remote_port: u16,
        bytes: &[u8],
        reply: &mut [u8],
    ) -> Option<usize> {
        // Two services that answer each other would never end, and one forged packet begins it: what comes from a system
        // port (RFC 6335 §6), or from one where a store like this answers, gets no answer.
        if remote_port < 1024 || [self.echo_port, self.memcached_port].contains(&remote_port) {
            return None;
        }
        if port == self.memcached_port {
            let client = self.client(engine)?;
            return engine.memcached_datagram(client, bytes, reply);
        }
        reply.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(bytes.len())
    }

    /// The session for a request; another one when it was closed, or when who is let in has changed since it began.
    fn client(&mut self, engine: &mut Engine) -> Option<ClientId> {
        let is_over = |client: ClientId, engine: &Engine| {
            matches!(engine.fate(client), Fate::CloseNow | Fate::CloseAfterOutput) || !engine.is_as_new(client)
        };
        if let Some(client) = self.client.take_if(|client| is_over(*client, engine)) {
            engine.disconnect(client);
        }
        if self.client.is_none() {
            let is_local = self.peers == Peers::Trusted;
            let peer = Peer { remote: "udp:0".into(), local: "udp:0".into(), is_local };
            self.client = engine.connect(peer).ok();
        }
        self.client
    }
}
