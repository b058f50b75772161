//! Must fail, to prove that the others can: libFuzzer finds the bytes within seconds.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kayvee_testing::fuzz::canary(data));
