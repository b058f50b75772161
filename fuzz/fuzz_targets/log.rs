//! Disks that hold a log, or something like it.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kayvee_testing::fuzz::log(data));
