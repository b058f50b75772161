//! The request parser: a stream means the same however it is split.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kayvee_testing::fuzz::resp(data));
