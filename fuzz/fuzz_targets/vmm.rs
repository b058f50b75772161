//! The monitor's devices, driven by a guest that keeps no rule.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kayvee_vmm::hostile::guest(data));
