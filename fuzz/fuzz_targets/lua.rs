//! The Lua machine: scripts, patterns, and what its libraries decode.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kayvee_testing::fuzz::lua(data));
