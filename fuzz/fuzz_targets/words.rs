//! The splitter of inline requests and boot arguments.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kayvee_testing::fuzz::words(data));
