//! What is served by UDP: an echo, and memcached's protocol.

use kayvee_server::{ClientId, Engine, Fate, Options, Peer};

/// The services.
pub struct Datagrams {
    echo_port: u16,
    memcached_port: u16,
    /// The sessions that memcached's requests run in: strangers', and that of those on this machine, whom protected mode
    /// tells apart.
    clients: [Option<ClientId>; 2],
}

impl Datagrams {
    /// Those that the options ask for.
    pub fn new(options: &Options) -> Datagrams {
        let (echo_port, memcached_port) = (options.udp_echo_port, options.udp_memcached_port);
        Datagrams { echo_port, memcached_port, clients: [None; 2] }
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
        is_local: bool,
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
            let client = self.client(engine, is_local)?;
            return engine.memcached_datagram(client, bytes, reply);
        }
        reply.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(bytes.len())
    }

    /// The session for a request; another one when it was closed, or when who is let in has changed since it began.
    fn client(&mut self, engine: &mut Engine, is_local: bool) -> Option<ClientId> {
        let kept = &mut self.clients[usize::from(is_local)];
        let is_over = |client: ClientId, engine: &Engine| {
            matches!(engine.fate(client), Fate::CloseNow | Fate::CloseAfterOutput) || !engine.is_as_new(client)
        };
        if let Some(client) = kept.take_if(|client| is_over(*client, engine)) {
            engine.disconnect(client);
        }
        if kept.is_none() {
            let peer = Peer { remote: "udp:0".into(), local: "udp:0".into(), is_local };
            *kept = engine.connect(peer).ok();
        }
        *kept
    }
}
