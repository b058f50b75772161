/// What a connection costs that has nothing in its buffers, here and in the application, with something to spare.
const CONNECTION_BYTES: usize = 2 << 10;

/// As many clients as applications usually serve. One that begins with fewer may be told to serve these, so there is room for them.
const USUAL_CLIENTS: u32 = 10_000;

/// Connections accepted beyond those that the application serves, so that it can tell the others why it does not.
const SPARE_CONNECTIONS: usize = 32;

/// What connections' buffers may take beside little data: what a guest of 64 MiB has for them ...
const LEAST_BUFFER_BYTES: usize = 16 << 20;
/// ... and 4 KiB each way for each client.
const LEAST_BUFFER_BYTES_PER_CLIENT: usize = 8 << 10;

/// Bounds on what a [`Stack`](crate::Stack) takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most connections at a time, in whatever state.
    pub connections: usize,
    /// Most bytes in all connections' buffers together. They are taken as bytes come, not beforehand.
    pub buffer_bytes: usize,
}

impl Limits {
    /// Limits for a machine with `memory_bytes` for the whole program, of which buffers may take a quarter and
    /// connections three eighths, and an application that serves at most `clients` at first.
    pub fn for_memory(memory_bytes: u64, clients: u32) -> Limits {
        let part = |share: u64| usize::try_from(memory_bytes / 8 * share).unwrap_or(usize::MAX);
        let affordable = (part(3) / CONNECTION_BYTES).max(1);
        let wanted = (clients.max(USUAL_CLIENTS) as usize).saturating_add(SPARE_CONNECTIONS);
        Limits { connections: wanted.min(affordable), buffer_bytes: part(2) }
    }

    /// These where the application's data may take `data_bytes` only, if it is limited (not 0): then buffers may take no more than a
    /// quarter of that, or what `clients` need at the least.
    pub fn beside_data(self, data_bytes: u64, clients: u32) -> Limits {
        if data_bytes == 0 {
            return self;
        }
        let least = LEAST_BUFFER_BYTES.max(clients as usize * LEAST_BUFFER_BYTES_PER_CLIENT);
        let quarter = usize::try_from(data_bytes / 4).unwrap_or(usize::MAX);
        Limits { buffer_bytes: self.buffer_bytes.min(quarter.max(least)), ..self }
    }

    /// How many clients the application can serve such that some connections are left to refuse others on.
    pub fn clients(&self) -> usize {
        self.connections.saturating_sub(SPARE_CONNECTIONS.min(self.connections / 2)).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_guests_serve_what_is_asked_of_them() {
        assert!(Limits::for_memory(14 << 20, 10_000).clients() >= 2000);
        assert!(Limits::for_memory(56 << 20, 10_000).clients() >= 10_000);
        assert_eq!(Limits::for_memory(8 << 30, 10_000).clients(), 10_000);
        assert_eq!(Limits::for_memory(0, 10_000).clients(), 1);
    }

    #[test]
    fn buffers_are_in_proportion_to_limited_data() {
        let machine = Limits::for_memory(8 << 30, 10_000);
        let mib = |data_bytes, clients| machine.beside_data(data_bytes, clients).buffer_bytes >> 20;
        assert_eq!(machine.beside_data(0, 10_000), machine);
        assert_eq!([mib(1 << 40, 50), mib(4 << 30, 50), mib(1 << 20, 50)], [2048, 1024, 16]);
        assert_eq!(mib(64 << 20, 10_000), 78);
        assert_eq!(Limits::for_memory(16 << 20, 50).beside_data(1 << 20, 10_000).buffer_bytes, 4 << 20);
    }

    #[test]
    fn who_begins_with_few_clients_can_have_more() {
        assert_eq!(Limits::for_memory(8 << 30, 50).clients(), 10_000);
        assert_eq!(Limits::for_memory(8 << 30, 20_000).clients(), 20_000);
    }
}
