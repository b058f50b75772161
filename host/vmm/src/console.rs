//! The console's two ends: what the guest writes, to standard output; what is typed, from standard input.

use crate::{sys, wake::Wake};
use std::io::{self, Read, Write};
use vm_superio::{Serial, serial::NoEvents};

/// What asks the guest to end: Ctrl-D.
pub const END_OF_INPUT: u8 = 4;
/// A line is written at once, or in pieces of so much.
const LINE_BYTES_MAX: usize = 512;

/// The serial port with its output.
pub type Port = Serial<Wake, NoEvents, Output>;

/// Collects lines, because the port hands on byte after byte.
pub struct Output {
    line: Vec<u8>,
}

impl Output {
    /// Nothing yet.
    pub fn new() -> Output {
        Output { line: Vec::with_capacity(LINE_BYTES_MAX) }
    }

    /// Writes what is collected. When nobody takes it, it is lost: a reader that stands still must not stop the guest.
    pub fn finish(&mut self) {
        let stdout = io::stdout();
        if sys::is_writable(&stdout) {
            let mut stdout = stdout.lock();
            let _ = stdout.write_all(&self.line).and_then(|()| stdout.flush());
        }
        self.line.clear();
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for &byte in bytes {
            self.line.push(byte);
            if byte == b'\n' || self.line.len() == LINE_BYTES_MAX {
                self.finish();
            }
        }
        Ok(bytes.len())
    }

    /// The port asks for this after every byte; lines are better.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What has come of reading what was typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Typed {
    /// It is in the port's hands.
    Passed,
    /// So it is, and asks the guest to end.
    AsksToEnd,
    /// The guest has to read first.
    NoRoom,
    /// There is no more to come.
    End,
}

/// Hands what is typed to the guest, as much as there is room for.
pub fn type_into(port: &mut Port, input: &mut impl Read) -> Typed {
    let mut bytes = [0; 64];
    let room = port.fifo_capacity().min(bytes.len());
    if room == 0 {
        return Typed::NoRoom;
    }
    match input.read(&mut bytes[..room]) {
        Ok(0) => Typed::End,
        Ok(len) => {
            // There is room, and a wake-up that fails is none.
            let _ = port.enqueue_raw_bytes(&bytes[..len]);
            if bytes[..len].contains(&END_OF_INPUT) { Typed::AsksToEnd } else { Typed::Passed }
        }
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Typed::Passed,
        Err(_) => Typed::End,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typing_ends_a_sleep_and_is_held_back_when_the_guest_does_not_read() {
        let wake = Wake::new().unwrap();
        let mut port = Port::new(wake.clone(), Output::new());
        // Interrupt enable: data received.
        port.write(1, 1).unwrap();
        assert_eq!(type_into(&mut port, &mut &[4u8][..]), Typed::AsksToEnd);
        wake.wait(&[], None).unwrap();
        assert_eq!((port.read(5) & 1, port.read(0), port.read(5) & 1), (1, 4, 0));
        let mut much: &[u8] = &[b'x'; 100];
        assert_eq!(type_into(&mut port, &mut much), Typed::Passed);
        assert_eq!(type_into(&mut port, &mut much), Typed::NoRoom);
        assert_eq!(much.len(), 36);
        assert_eq!(type_into(&mut Port::new(wake, Output::new()), &mut &[][..]), Typed::End);
    }
}
