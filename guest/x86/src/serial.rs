//! The console: a 16550 serial port (PC16550D data sheet), written by polling. What is typed there ends a sleep.
//!
//! A port access can cost 26 µs under nested KVM, so the line status is read once for as many bytes as the transmitter
//! holds, and what is to be printed is collected first.

use crate::port;
use core::{
    fmt,
    sync::atomic::{AtomicBool, Ordering},
};

const COM1: u16 = 0x3f8;
const INTERRUPT_ENABLE: u16 = COM1 + 1;
const FIFO_CONTROL: u16 = COM1 + 2;
const MODEM_CONTROL: u16 = COM1 + 4;
const LINE_STATUS: u16 = COM1 + 5;
const DATA_RECEIVED: u8 = 0x01;
/// Ready to talk, and the interrupt let through to its line, which hangs on this output in a PC.
const READY_WITH_INTERRUPT: u8 = 0x0b;
const FIFO_ENABLE_AND_CLEAR: u8 = 0x07;
const TRANSMITTER_EMPTY: u8 = 0x20;
/// Bytes that the transmitter takes once it is empty.
const FIFO_BYTES: usize = 16;
/// Looks at the line status before the console counts as stuck and the rest of a text is dropped: the program goes on.
const STATUS_POLLS_MAX: u32 = 20_000;
/// Set while nobody takes the console's output: then it is looked at once for each piece of text, and not waited for.
static STUCK: AtomicBool = AtomicBool::new(false);
/// Text is collected up to this length before it is sent.
const BUFFER_BYTES: usize = 512;

/// The port's interrupt line in every PC.
pub(crate) const LINE: u32 = 4;

/// Turns the FIFOs on, and the interrupt for what is received.
pub fn init() {
    let settings = [
        (FIFO_CONTROL, FIFO_ENABLE_AND_CLEAR),
        (MODEM_CONTROL, READY_WITH_INTERRUPT),
        (INTERRUPT_ENABLE, DATA_RECEIVED),
    ];
    for (register, value) in settings {
        // SAFETY: the ports belong to the serial device, if there is one, which knows no memory.
        unsafe { port::write_u8(register, value) };
    }
}

/// The next byte that was typed.
pub(crate) fn receive() -> Option<u8> {
    // SAFETY: the ports belong to the serial device, which knows no memory.
    let status = unsafe { port::read_u8(LINE_STATUS) };
    // All ones: there is no device.
    let has_byte = status != u8::MAX && status & DATA_RECEIVED != 0;
    // SAFETY: as above.
    has_byte.then(|| unsafe { port::read_u8(COM1) })
}

fn send(bytes: &[u8]) {
    for chunk in bytes.chunks(FIFO_BYTES) {
        // SAFETY: the ports belong to the serial device, which knows no memory.
        let is_empty = |_| unsafe { port::read_u8(LINE_STATUS) } & TRANSMITTER_EMPTY != 0;
        let polls = if STUCK.load(Ordering::Relaxed) { 1 } else { STATUS_POLLS_MAX };
        let is_stuck = !(0..polls).any(is_empty);
        STUCK.store(is_stuck, Ordering::Relaxed);
        if is_stuck {
            return;
        }
        for byte in chunk {
            // SAFETY: as above.
            unsafe { port::write_u8(COM1, *byte) };
        }
    }
}

/// Collects text and sends it when it is dropped, line ends as CR LF.
pub struct Writer {
    buffer: [u8; BUFFER_BYTES],
    len: usize,
}

impl Writer {
    /// An empty one.
    #[expect(clippy::new_without_default, reason = "a writer is made to be written to and dropped")]
    pub fn new() -> Writer {
        Writer { buffer: [0; BUFFER_BYTES], len: 0 }
    }

    fn push(&mut self, byte: u8) {
        if self.len == BUFFER_BYTES {
            self.flush();
        }
        self.buffer[self.len] = byte;
        self.len += 1;
    }

    /// Sends what is collected.
    pub fn flush(&mut self) {
        send(&self.buffer[..self.len]);
        self.len = 0;
    }
}

impl fmt::Write for Writer {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            match byte {
                b'\n' => {
                    self.push(b'\r');
                    self.push(b'\n');
                }
                // What a client or a hypervisor has put into a text must not command the reader's terminal.
                0..0x20 | 0x7f => self.push(b'?'),
                _ => self.push(byte),
            }
        }
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.flush();
    }
}
