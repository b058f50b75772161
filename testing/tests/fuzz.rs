//! The fuzzing harnesses on inputs made from examples: seeded, so that a failure can be seen again with `KAYVEE_SEED`.

use kayvee_testing::{
    conformance,
    fuzz::{self, Mutator},
    network::{SeedReport, seeds},
};
use std::panic::catch_unwind;

/// Runs `harness` on `rounds` inputs for each of some seeds.
fn run(harness: fn(&[u8]), examples: &[&[u8]], rounds: usize) {
    examples.iter().for_each(|example| harness(example));
    for seed in seeds(4) {
        let _report = SeedReport(seed);
        let mut mutator = Mutator::new(seed, examples);
        for _ in 0..rounds {
            harness(&mutator.next_input());
        }
    }
}

/// The requests of the conformance vectors, each case in one stream, behind a byte or two that choose how to run it.
fn streams(prefix: &[u8]) -> Vec<Vec<u8>> {
    let cases = conformance::load(&conformance::vectors_dir()).unwrap();
    let streams = cases.iter().map(|case| [prefix, &case.requests()].concat());
    streams.filter(|stream| stream.len() < 3000).collect()
}

#[test]
fn requests_mean_the_same_however_they_are_split() {
    let streams = streams(&[0, 5]);
    run(fuzz::resp, &streams.iter().map(Vec::as_slice).collect::<Vec<_>>(), 3000);
}

#[test]
fn lines_split_into_words() {
    let examples = [&b"SET k \"a b\\x41\\n\" 'it\\'s'"[..], b"  a\tb\x0bc ", b"\"\" ''"];
    run(fuzz::words, &examples, 20_000);
}

#[test]
fn boot_arguments() {
    let examples = [
        &b"console=ttyS0 ip=192.0.2.2/24 gateway=192.0.2.1 -- --port 7000 virtio_mmio.device=4K@0xd0000000:5"[..],
        b"ip=dhcp -- --maxmemory 100mb --requirepass \"a b\" --client-output-buffer-limit normal 0 0 0",
    ];
    run(fuzz::boot_args, &examples, 5000);
}

#[test]
fn process_arguments() {
    let examples = [
        &b"--port\x007000\0--maxmemory\x00100mb\0--bind\x00127.0.0.1\0::1"[..],
        b"--client-output-buffer-limit\0normal\x001mb\x000\x000\0--maxmemory-clients\x0010%\0--save\0",
    ];
    run(fuzz::options, &examples, 5000);
}

#[test]
fn lua_scripts_and_what_they_decode() {
    let examples = [
        &b"\0local t = {1, 2, x = 'y'} for k, v in pairs(t) do t[k] = tostring(v) .. #t end return table.concat(t)"[..],
        b"\0local f f = function(n, ...) if n > 3 then return ... end return f(n + 1, n, ...) end return pcall(f, 1)",
        b"\0local co = coroutine.wrap(function(a) while true do a = coroutine.yield(a * 2) end end) return co(1), co(2)",
        b"\0local o = setmetatable({}, {__index = function(t, k) return k end, __add = rawequal}) return o + o.x, ('x'):rep(3)",
        b"\x01(%a+)%s*=%s*([%w_]-)()%b[]%f[%d]^$",
        b"\x02{\"a\":[1,2.5e3,null,true,\"\\u00e9\\ud83d\\ude00\"],\"b\":{}}",
        b"\x03\x93\x01\xa2xy\x81\xa1k\xcb\x3f\xf0\0\0\0\0\0\0",
        b"\x04<i4>h!8di3c5sxx",
        b"\x05%5.2f|%-10s|%q|%#x|%c|%+d",
    ];
    run(fuzz::lua, &examples, 2000);
}

#[test]
fn the_engine_replies_the_same_however_requests_are_split() {
    for mode in [0x10, 0x05, 0x42] {
        let streams = streams(&[mode]);
        run(fuzz::engine, &streams.iter().map(Vec::as_slice).collect::<Vec<_>>(), 80);
    }
}

/// If this fails, the tests above could not have found anything either.
#[test]
fn the_canary_is_found() {
    let mut mutator = Mutator::new(1, &[b"*1\r\n$4\r\nPING\r\n"]);
    let found = (0..200_000).any(|_| {
        let input = mutator.next_input();
        catch_unwind(|| fuzz::canary(&input)).is_err()
    });
    assert!(found);
}
