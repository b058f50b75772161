//! Dump files and append-only files.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kayvee_testing::fuzz::file(data));
