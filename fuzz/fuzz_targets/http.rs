//! The web server: a stream of requests means the same however it is split.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kayvee_testing::fuzz::http(data));
