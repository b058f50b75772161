//! A whole engine: its replies do not depend on how the requests are split.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kayvee_testing::fuzz::engine(data));
