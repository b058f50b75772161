//! A replica, whose master sends anything: it makes the same of it however that is split.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kayvee_testing::fuzz::master(data));
