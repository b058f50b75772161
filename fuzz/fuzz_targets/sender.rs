//! A sender of data, whose peer acknowledges and reports what it likes.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kayvee_testing::fuzz::sender(data));
