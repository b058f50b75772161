//! The TCP/IP stack, from the frame up.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kayvee_testing::fuzz::frames(data));
