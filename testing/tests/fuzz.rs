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

/// The requests of the conformance vectors, each case in one stream, behind a byte or two that choose how to run it. What
/// shows how long something took, or how much memory buffers take, is left out: it is never the same again.
fn streams(prefix: &[u8]) -> Vec<Vec<u8>> {
    const REPORTS: [&[u8]; 4] = [b"SLOWLOG", b"LATENCY", b"MONITOR", b"MEMORY"];
    let cases = conformance::load(&conformance::vectors_dir()).unwrap();
    let streams = cases.iter().map(|case| [prefix, &case.requests()].concat());
    let is_report = |stream: &Vec<u8>| {
        let upper = stream.to_ascii_uppercase();
        REPORTS.iter().any(|word| upper.windows(word.len()).any(|part| part == *word))
    };
    streams.filter(|stream| stream.len() < 3000 && !is_report(stream)).collect()
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
fn dumped_values() {
    let listpack = b"\x1c\x00\x00\x00\x06\x00\x81a\x02\x01\x01\x81b\x02\x83two\x04\x81c\x02\xf2y)\xed\x04\xff";
    let ziplist = b"\x1c\0\0\0\x18\0\0\0\x05\0\0\x01a\x03\xf6\x02\xc08\xff\x04\xf0p\x11\x01\x05\x01b\xff";
    let mut examples: Vec<Vec<u8>> =
        [b"\x10\x1c", b"\x11\x1c", b"\x14\x1c"].map(|head| [&head[..], listpack].concat()).into();
    examples.extend([b"\x0a\x1c", b"\x0c\x1c", b"\x0d\x1c"].map(|head| [&head[..], ziplist].concat()));
    examples.push([&b"\x0e\x01\x1c"[..], ziplist].concat());
    examples.push([&b"\x12\x02\x02\x1c"[..], listpack, b"\x01\xc3\x06\x15\x01xx\xe0\x0a\x00"].concat());
    examples.extend(
        [
            &b"\x00\xc190"[..],
            b"\x13\x01\x10\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x01\xc3@H@b\x12b\x00\x00\x00\x19\x00\x02\x01\x01\x01\x02\x01\x81a\x02\x81b\x02\x00 \x09\x00\x00 \x01\x09\x01\x01\x83two\x04\x05\x01\x03`\x0c\x08\x03\x01\x84four\x05\x05 \x0d\x03\x04\x01\xdf\xff 2\x04\x81c\x02\x9ex\xe0\x14\x00\x03\x1f\x06\x01\xff\x02\x05\x00\x01\x01\x01\x02\x03\x01\x01g\x00\x00\x81\xff\xff\xff\xff\xff\xff\xff\xff\x00\x01\x04idle\xb21\x87\xf9\xa1\x01\x00\x00\x00",
            b"\x00\xc3\x06\x15\x01xx\xe0\x0a\x00",
            b"\x02\x02\x01a\xc0\x7b",
            b"\x04\x01\x01a\xc0\x05",
            b"\x03\x03\x01a\x031.5\x01b\xff\x01c\xfe",
            b"\x05\x02\x01b\0\0\0\0\0\0\xf0\x7f\x01a\0\0\0\0\0\0\xf0?",
            b"\x0b\x0c\x02\0\0\0\x02\0\0\0\xfe\xff\x05\0",
            b"\x09\x0d\x02\x01a\x01\x001\x01b\x02\x0022\xff",
        ]
        .map(<[u8]>::to_vec),
    );
    run(fuzz::restore, &examples.iter().map(Vec::as_slice).collect::<Vec<_>>(), 5000);
}

#[test]
fn logs_on_disks_that_say_anything() {
    let examples = [
        // A byte of a superblock, of a batch's header, of a record; then all three with checksums that fit.
        &b"\x00\x80\x01\x00\x04\xff\xff\xff\xff"[..],
        b"\x00\x05\x18\x00\x08\x07\x00\x00\x00\x00\x00\x00\x00",
        b"\x00\x42\x00\x02\x01\x55",
        b"\x01\x80\x01\x00\x04\x05\x00\x00\x00\x05\x18\x00\x08\x07\x00\x00\x00\x00\x00\x00\x00",
        b"\x03\x01\x20\x00\x04\x02\x00\x00\x00\x05\x30\x00\x08\x03\x00\x00\x00\x00\x00\x00\x00",
    ];
    run(fuzz::log, &examples, 400);
}

#[test]
fn dump_files_and_append_only_files() {
    let listpack = b"\x1c\x00\x00\x00\x06\x00\x81a\x02\x01\x01\x81b\x02\x83two\x04\x81c\x02\xf2y)\xed\x04\xff";
    let head = b"REDIS0011\xfa\x09redis-ver\x057.2.4\xf5\x38#!lua name=l\nredis.register_function('f',function()end)\n\xfe\x00\xfb\x04\x02";
    let entries = [
        &b"\xfc\0\0\x01\0\0\0\0\0\x00\x01a\xc0\x05\xfd\0\0\0\x7f\x00\x01b\xc3\x06\x15\x01xx\xe0\x0a\x00"[..],
        b"\xf8\x05\x10\x01h\x1c",
        listpack,
        b"\xf9\x05\x02\x01s\x02\x01a\xc0\x7b\xfe\x01\x12\x01l\x02\x02\x1c",
        listpack,
        b"\x01\x05plain",
        b"\x05\x01z\x01\x01b\0\0\0\0\0\0\xf0\x7f\xff\0\0\0\0\0\0\0\0",
    ]
    .concat();
    let dump = [&head[..], &entries].concat();
    let requests = b"*2\r\n$6\r\nSELECT\r\n$1\r\n1\r\n#TS:1\r\n*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\nb\r\n*1\r\n$5\r\nMULTI\r\n*5\r\n$4\r\nXADD\r\n$1\r\ns\r\n$3\r\n1-1\r\n$1\r\na\r\n$1\r\nb\r\n*1\r\n$4\r\nEXEC\r\n";
    // Where the dump ends its checksum is none.
    let both = [&dump[..], requests].concat();
    let examples = [&dump[..], requests, &both];
    examples.iter().for_each(|example| assert!(fuzz::is_file_taken(example), "{}", example.escape_ascii()));
    run(fuzz::file, &examples, 1000);
}

#[test]
fn the_engine_replies_the_same_however_requests_are_split() {
    for mode in [0x10, 0x05, 0x42] {
        let streams = streams(&[mode]);
        run(fuzz::engine, &streams.iter().map(Vec::as_slice).collect::<Vec<_>>(), 80);
    }
}

#[test]
fn web_requests_are_answered_the_same_however_they_are_split() {
    let vectors: Vec<Vec<u8>> =
        kayvee_testing::http::vectors().into_iter().map(|vector| [&b"\x05"[..], &vector.request].concat()).collect();
    run(fuzz::http, &vectors.iter().map(Vec::as_slice).collect::<Vec<_>>(), 3000);
}

#[test]
fn site_images_are_refused_or_served() {
    let image = kayvee_testing::http::site_image();
    run(fuzz::site, &[&image, &[64, 0, 0xff, 200, 0, 1], &[12, 0, 3, 48, 0, 0x40]], 300);
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
