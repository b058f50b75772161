//! The PC's 8254 timer, for machines that state no frequency and are no known hypervisor.

use crate::{cpu, port};

const HZ: u64 = 1_193_182;
/// About 10 ms.
const TICKS: u16 = 11_932;
const CHANNEL_2: u16 = 0x42;
const CONTROL: u16 = 0x43;
const GATE: u16 = 0x61;
/// Channel 2, both bytes, mode 0: the output rises at the end of the count.
const ONE_COUNT: u8 = 0b1011_0000;
const GATE_ON: u8 = 1;
const SPEAKER_ON: u8 = 2;
const OUTPUT: u8 = 1 << 5;
/// Ends the wait on a machine without the timer; the result is then implausible.
const POLLS_MAX: u32 = 1_000_000;

/// Measures the frequency of the cycle counter; 0 where there is no such timer.
pub(crate) fn measure_cycles_hz() -> u64 {
    // SAFETY: these ports are the timer's and its gate's, which know no memory.
    unsafe {
        let gate = port::read_u8(GATE) & !SPEAKER_ON;
        port::write_u8(GATE, gate & !GATE_ON);
        port::write_u8(CONTROL, ONE_COUNT);
        port::write_u8(CHANNEL_2, TICKS as u8);
        port::write_u8(CHANNEL_2, (TICKS >> 8) as u8);
        let start = cpu::cycles();
        port::write_u8(GATE, gate | GATE_ON);
        let ended = (0..POLLS_MAX).any(|_| port::read_u8(GATE) & OUTPUT != 0);
        if ended { (cpu::cycles() - start) * HZ / u64::from(TICKS) } else { 0 }
    }
}
