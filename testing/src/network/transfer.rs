//! A transfer from one stack to another, in simulated time: the same everywhere, whatever else a machine does.

use super::wire::{End, Faults, Wire};
use kayvee_net::{Addressing, Addressing6, Config, Event, Limits, Stack};
use std::net::{Ipv4Addr, SocketAddr};

const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const PORT: u16 = 6379;

/// What a transfer took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    /// From the first SYN to the last byte.
    pub seconds: f64,
    /// Segments that were sent again.
    pub retransmissions: u64,
    /// Retransmission timers that ran out.
    pub timeouts: u64,
    /// Fast recoveries.
    pub recoveries: u64,
}

fn stack(address: Ipv4Addr, device: &mut End, seed: u64) -> Stack {
    let addressing = Addressing::Static { address, prefix_bits: 24, gateway: None };
    let limits = Limits { connections: 4, buffer_bytes: 64 << 20 };
    let config = Config { addressing, addressing6: Addressing6::Off, limits, keepalive_s: 0, seed };
    Stack::new(config, device, 0).expect("the device is right")
}

/// The server sends so many bytes to a client that reads them as they come.
pub fn transfer(faults: Faults, bytes: usize, seed: u64) -> Cost {
    let mut wire = Wire::new(Faults { loss_per_mille: 0, ..faults }, seed);
    let mut server = stack(SERVER, &mut wire.server, seed);
    let mut client = stack(CLIENT, &mut wire.client, !seed);
    server.listen(PORT);
    let connection = client.connect(SocketAddr::new(SERVER.into(), PORT), 0).expect("there is room");
    let chunk = vec![0x5a; 64 << 10];
    let (mut accepted, mut sent, mut received, mut now_ns) = (None, 0, 0, 0);
    while received < bytes {
        wire.run(now_ns);
        server.poll(&mut wire.server, now_ns);
        client.poll(&mut wire.client, now_ns);
        while let Some(event) = server.next_event() {
            if let Event::Accepted { connection, .. } = event {
                accepted = Some(connection);
                // The handshake is none of what is measured.
                wire.set_faults(faults);
            }
        }
        while client.next_event().is_some() {}
        if let Some(accepted) = accepted {
            loop {
                let some = server.send(accepted, &chunk[..chunk.len().min(bytes - sent)]);
                sent += some;
                if some == 0 {
                    break;
                }
            }
        }
        while let Some(len) = Some(client.readable(connection).len()).filter(|len| *len > 0) {
            client.consume(connection, len);
            received += len;
        }
        server.flush(&mut wire.server, now_ns);
        client.flush(&mut wire.client, now_ns);
        wire.run(now_ns);
        assert!(
            accepted.is_none() || server.connections() > 0,
            "the connection was given up: so many losses last too long"
        );
        let next = [wire.next_arrival_ns(), server.next_deadline_ns(), client.next_deadline_ns()];
        now_ns = next.into_iter().flatten().min().expect("something is to happen").max(now_ns + 1000);
    }
    let figures = server.figures();
    Cost {
        seconds: now_ns as f64 / 1e9,
        retransmissions: figures.retransmissions,
        timeouts: figures.timeouts,
        recoveries: figures.fast_recoveries,
    }
}
