//! What the processor says of itself, its cycle counter and its random numbers.

use core::arch::x86_64::__cpuid_count;
use kayvee_platform::Entropy;

/// Tries for one random word; Intel's guide for its generator asks for ten before it counts as failed.
const RANDOM_TRIES: u32 = 10;

/// Reads the time-stamp counter.
pub fn cycles() -> u64 {
    // SAFETY: the instruction exists on every x86-64 processor and changes nothing.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// One leaf of CPUID: EAX, EBX, ECX, EDX.
pub fn cpuid(leaf: u32, subleaf: u32) -> [u32; 4] {
    let result = __cpuid_count(leaf, subleaf);
    [result.eax, result.ebx, result.ecx, result.edx]
}

/// What runs this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hypervisor {
    /// KVM under any monitor.
    Kvm,
    /// QEMU's emulation.
    Tcg,
    /// Xen.
    Xen,
    /// Anything else.
    Other,
}

impl Hypervisor {
    /// Asks the processor; the signature leaf starts the hypervisor's range (0x40000000).
    pub fn detect() -> Hypervisor {
        const HYPERVISOR_PRESENT: u32 = 1 << 31;
        if cpuid(1, 0)[2] & HYPERVISOR_PRESENT == 0 {
            return Hypervisor::Other;
        }
        let [_, b, c, d] = cpuid(HYPERVISOR_LEAVES, 0);
        let mut signature = [0; 12];
        for (bytes, word) in signature.chunks_exact_mut(4).zip([b, c, d]) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        match &signature {
            b"KVMKVMKVM\0\0\0" => Hypervisor::Kvm,
            b"TCGTCGTCGTCG" => Hypervisor::Tcg,
            b"XenVMMXenVMM" => Hypervisor::Xen,
            _ => Hypervisor::Other,
        }
    }

    /// Its short name.
    pub fn name(self) -> &'static str {
        match self {
            Hypervisor::Kvm => "kvm",
            Hypervisor::Tcg => "tcg",
            Hypervisor::Xen => "xen",
            Hypervisor::Other => "x86-64",
        }
    }
}

/// First CPUID leaf of the hypervisor.
pub(crate) const HYPERVISOR_LEAVES: u32 = 0x4000_0000;

/// The processor's generator of random numbers.
#[derive(Debug)]
pub struct CpuEntropy(());

impl CpuEntropy {
    /// The generator, if there is one and it delivers.
    pub fn new() -> Option<CpuEntropy> {
        const RDRAND: u32 = 1 << 30;
        (cpuid(1, 0)[2] & RDRAND != 0 && random_word().is_some()).then_some(CpuEntropy(()))
    }
}

impl Entropy for CpuEntropy {
    #[inline(never)]
    fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = random_word().expect("the processor's random number generator has failed");
            chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
        }
    }
}

fn random_word() -> Option<u64> {
    for _ in 0..RANDOM_TRIES {
        let (word, ok): (u64, u8);
        // SAFETY: `new` has seen that the instruction exists; it writes only the two registers and the flags.
        unsafe { core::arch::asm!("rdrand {}", "setc {}", out(reg) word, out(reg_byte) ok, options(nomem, nostack)) };
        if ok != 0 {
            return Some(word);
        }
    }
    None
}
