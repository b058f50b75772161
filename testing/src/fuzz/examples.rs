//! What fuzzing starts from, for libFuzzer and for the seeded tests: inputs that get far into each harness, and words that
//! bytes changed at random would hardly ever become.

use super::{DUMP_FOOTER_BYTES, Driven, call};
use crate::{
    conformance::{self, Request},
    http,
    network::{
        fuzz::{recorded_frames, with_length},
        world::Family,
    },
};
use kayvee_commands::options::OPTIONS;
use kayvee_server::Dialect;
use std::collections::BTreeSet;

/// A place that takes a stranger's bytes.
pub struct Target {
    /// The name of its program in `fuzz/`.
    pub name: &'static str,
    /// What takes the bytes.
    pub harness: fn(&[u8]),
    /// Inputs to begin with.
    pub examples: fn() -> Vec<Vec<u8>>,
    /// Words to put into them.
    pub words: fn() -> Vec<Vec<u8>>,
}

/// All of them but the monitor's devices, which `kayvee-vmm` has.
pub const TARGETS: [Target; 15] = [
    Target { name: "resp", harness: super::resp, examples: || streams(&[0, 5]), words: request_words },
    Target { name: "words", harness: super::words, examples: lines, words: request_words },
    Target { name: "boot_args", harness: super::boot_args, examples: boot_args, words: option_words },
    Target { name: "options", harness: super::options, examples: options, words: option_words },
    Target { name: "engine", harness: super::engine, examples: engine, words: request_words },
    Target { name: "restore", harness: super::restore, examples: restore, words: Vec::new },
    Target { name: "files", harness: super::file, examples: files, words: request_words },
    Target { name: "master", harness: super::master, examples: master, words: request_words },
    Target { name: "frames", harness: super::frames, examples: frames, words: Vec::new },
    Target { name: "sender", harness: super::sender, examples: sender, words: Vec::new },
    Target { name: "log", harness: super::log, examples: log, words: Vec::new },
    Target { name: "lua", harness: super::lua, examples: lua, words: || owned(LUA_WORDS) },
    Target { name: "http", harness: super::http, examples: http, words: || owned(HTTP_WORDS) },
    Target { name: "site", harness: super::site, examples: site, words: Vec::new },
    Target { name: "canary", harness: super::canary, examples: canary, words: request_words },
];

/// The target of this name.
pub fn target(name: &str) -> &'static Target {
    TARGETS.iter().find(|target| target.name == name).unwrap_or_else(|| panic!("there is no target {name}"))
}

fn owned<T: AsRef<[u8]>>(texts: &[T]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_ref().to_vec()).collect()
}

/// Pieces of requests, and the names of all commands and subcommands.
fn request_words() -> Vec<Vec<u8>> {
    let list = call(&mut Driven::new(&[]), &[b"COMMAND", b"LIST"]);
    let names = list.items().unwrap_or_default().iter().filter_map(|name| name.text());
    let parts: BTreeSet<Vec<u8>> =
        names.flat_map(|name| name.split(|b| *b == b'|')).map(<[u8]>::to_ascii_uppercase).collect();
    owned(super::DICTIONARY).into_iter().chain(parts).collect()
}

fn option_words() -> Vec<Vec<u8>> {
    let options = OPTIONS.iter().map(|option| format!("--{}", option.name).into_bytes());
    [owned(super::DICTIONARY), options.collect()].concat()
}

const LUA_WORDS: &[&str] = &[
    "and ",
    "break ",
    "do ",
    "else ",
    "elseif ",
    "end ",
    "false",
    "for ",
    "function ",
    "if ",
    "in ",
    "local ",
    "nil",
    "not ",
    "or ",
    "repeat ",
    "return ",
    "then ",
    "true",
    "until ",
    "while ",
    "...",
    "..",
    "==",
    "~=",
    "<=",
    ">=",
    "[[",
    "]]",
    "[==[",
    "--[[",
    "--",
    "#",
    "%",
    "^",
    "\\n",
    "\\\"",
    "\\065",
    "0x1p4",
    "1e308",
    "_G",
    "pairs(",
    "ipairs(",
    "next(",
    "select('#',",
    "setmetatable(",
    "getmetatable(",
    "rawget(",
    "rawset(",
    "rawequal(",
    "pcall(",
    "xpcall(",
    "error(",
    "assert(",
    "tostring(",
    "tonumber(",
    "type(",
    "unpack(",
    "loadstring(",
    "setfenv(",
    "getfenv(",
    "coroutine.wrap(",
    "coroutine.create(",
    "coroutine.resume(",
    "coroutine.yield(",
    "coroutine.status(",
    "string.rep(",
    "string.format(",
    "string.gsub(",
    "string.gmatch(",
    "string.find(",
    "string.byte(",
    "string.char(",
    "string.reverse(",
    "string.sub(",
    "string.dump(",
    "table.insert(",
    "table.remove(",
    "table.sort(",
    "table.concat(",
    "table.getn(",
    "table.maxn(",
    "math.floor(",
    "math.fmod(",
    "math.random(",
    "math.huge",
    "math.pow(",
    "math.modf(",
    "math.ldexp(",
    "bit.band(",
    "bit.lshift(",
    "bit.tohex(",
    "bit.bswap(",
    "cjson.encode(",
    "cjson.decode(",
    "cmsgpack.pack(",
    "cmsgpack.unpack_limit(",
    "struct.pack(",
    "struct.unpack(",
    "__index",
    "__newindex",
    "__call",
    "__concat",
    "__eq",
    "__lt",
    "__le",
    "__add",
    "__unm",
    "__len",
    "__gc",
    "__mode",
    "__metatable",
    "__tostring",
    "%b()",
    "%f[",
    "%d+",
    "[^%s]",
    "(.-)",
];

const HTTP_WORDS: &[&str] = &[
    "GET ",
    "HEAD ",
    "OPTIONS ",
    "POST ",
    "PUT ",
    "DELETE ",
    " HTTP/1.1\r\n",
    " HTTP/1.0\r\n",
    "\r\n\r\n",
    "\n\n",
    "Host: h\r\n",
    "Host: other.example\r\n",
    "Connection: close\r\n",
    "Connection: keep-alive\r\n",
    "Content-Length: 5\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Expect: 100-continue\r\n",
    "Range: bytes=0-4\r\n",
    "Range: bytes=-2\r\n",
    "If-Range: ",
    "If-None-Match: ",
    "\"6de3431b05f7c11f\"",
    "W/\"",
    "If-Match: *\r\n",
    "If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT\r\n",
    "If-Unmodified-Since: ",
    "Accept-Encoding: gzip, br;q=0.5\r\n",
    "Upgrade: h2c\r\n",
    "/page.txt",
    "/a%20b.txt",
    "/big.css",
    "/folder",
    "/../",
    "%2e%2e",
    "%00",
    "?q=1",
    "http://h/",
    "18446744073709551616",
    ";x=y\r\n",
    "\r\n0\r\n\r\n",
];

/// The requests of the conformance vectors, each case in one stream, behind a byte or two that choose how to run it.
fn streams(prefix: &[u8]) -> Vec<Vec<u8>> {
    let cases = conformance::load(&conformance::vectors_dir()).expect("the vectors can be read");
    let streams = cases.iter().map(|case| [prefix, &case.requests()].concat());
    streams.filter(|stream| stream.len() < 3000).collect()
}

fn engine() -> Vec<Vec<u8>> {
    [0x10, 0x05, 0x42].iter().flat_map(|&mode| streams(&[mode])).collect()
}

fn lines() -> Vec<Vec<u8>> {
    owned(&[&b"SET k \"a b\\x41\\n\" 'it\\'s'"[..], b"  a\tb\x0bc ", b"\"\" ''"])
}

fn boot_args() -> Vec<Vec<u8>> {
    owned(&[
        &b"console=ttyS0 ip=192.0.2.2/24 gateway=192.0.2.1 -- --port 7000 virtio_mmio.device=4K@0xd0000000:5"[..],
        b"ip=dhcp -- --maxmemory 100mb --requirepass \"a b\" --client-output-buffer-limit normal 0 0 0",
    ])
}

fn options() -> Vec<Vec<u8>> {
    let given = [
        &b"--port\x007000\0--maxmemory\x00100mb\0--bind\x00127.0.0.1\0::1"[..],
        b"--client-output-buffer-limit\0normal\x001mb\x000\x000\0--maxmemory-clients\x0010%\0--save\0",
    ];
    let defaults = kayvee_server::Options::default();
    let each = OPTIONS.iter().map(|option| [b"--", option.name.as_bytes(), b"\0", &option.get(&defaults)].concat());
    owned(&given).into_iter().chain(each).collect()
}

/// What each library's decoder gets, and the scripts of the vectors.
fn lua() -> Vec<Vec<u8>> {
    let mut examples = owned(&[
        &b"\0local t = {1, 2, x = 'y'} for k, v in pairs(t) do t[k] = tostring(v) .. #t end return table.concat(t)"[..],
        b"\0local f f = function(n, ...) if n > 3 then return ... end return f(n + 1, n, ...) end return pcall(f, 1)",
        b"\0local co = coroutine.wrap(function(a) while true do a = coroutine.yield(a * 2) end end) return co(1), co(2)",
        b"\0local o = setmetatable({}, {__index = function(t, k) return k end, __add = rawequal}) return o + o.x, ('x'):rep(3)",
        b"\x01(%a+)%s*=%s*([%w_]-)()%b[]%f[%d]^$",
        b"\x02{\"a\":[1,2.5e3,null,true,\"\\u00e9\\ud83d\\ude00\"],\"b\":{}}",
        b"\x03\x93\x01\xa2xy\x81\xa1k\xcb\x3f\xf0\0\0\0\0\0\0",
        b"\x04<i4>h!8di3c5sxx",
        b"\x05%5.2f|%-10s|%q|%#x|%c|%+d",
    ]);
    let cases = conformance::load(&conformance::vectors_dir()).expect("the vectors can be read");
    for step in cases.iter().flat_map(|case| &case.steps) {
        let Request::Command(words) = &step.request else { continue };
        let words: Vec<Vec<u8>> = words.iter().map(|word| word.expand(&Default::default())).collect();
        if let [name, script, ..] = &words[..]
            && name.eq_ignore_ascii_case(b"EVAL")
        {
            examples.push([b"\0", &script[..]].concat());
        }
    }
    examples
}

/// Commands that make values of every kind and encoding.
const VALUES: &str = "SET int 12345
SET text something
SETRANGE long 3000 x
PFADD hll a b c d e
SADD ints 1 2 70000 5000000000
SADD words a b 3
EVAL for~i=1,300~do~redis.call('SADD','set',i..'x')redis.call('HSET','hash',i,i*i)redis.call('ZADD','zset',i/2,i)end 0
EVAL for~i=1,300~do~redis.call('RPUSH','list',i,('x'):rep(i))end 0
RPUSH few a 1 -5000 aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
HSET small a 1 b two c 3.5
ZADD ranks 1 a 2.5 b -inf c +inf d
GEOADD places 13.4 52.5 Berlin 2.35 48.9 Paris
XADD stream 1-1 a 1 b 2
XADD stream 1-2 a 3 b 4
XADD stream 5-0 c x
XGROUP CREATE stream group 0
XREADGROUP GROUP group alice COUNT 2 STREAMS stream >
XREADGROUP GROUP group bob STREAMS stream >
XACK stream group 1-1
XDEL stream 1-2";

/// An engine with these values.
fn filled() -> Driven {
    let mut driven = Driven::new(&[]);
    for line in VALUES.lines() {
        let words: Vec<Vec<u8>> = line.split(' ').map(|word| word.replace('~', " ").into_bytes()).collect();
        let reply = call(&mut driven, &words.iter().map(Vec::as_slice).collect::<Vec<_>>());
        assert!(!matches!(reply, crate::client::Reply::Error(_)), "{line}: {reply}");
    }
    driven
}

const LISTPACK: &[u8] = b"\x1c\x00\x00\x00\x06\x00\x81a\x02\x01\x01\x81b\x02\x83two\x04\x81c\x02\xf2y)\xed\x04\xff";
const ZIPLIST: &[u8] = b"\x1c\0\0\0\x18\0\0\0\x05\0\0\x01a\x03\xf6\x02\xc08\xff\x04\xf0p\x11\x01\x05\x01b\xff";

/// What `DUMP` says of values, without version and checksum, and the encodings that older versions wrote.
fn restore() -> Vec<Vec<u8>> {
    let mut examples: Vec<Vec<u8>> =
        [b"\x10\x1c", b"\x11\x1c", b"\x14\x1c"].map(|head| [&head[..], LISTPACK].concat()).into();
    examples.extend([b"\x0a\x1c", b"\x0c\x1c", b"\x0d\x1c"].map(|head| [&head[..], ZIPLIST].concat()));
    examples.push([&b"\x0e\x01\x1c"[..], ZIPLIST].concat());
    examples.push([&b"\x12\x02\x02\x1c"[..], LISTPACK, b"\x01\xc3\x06\x15\x01xx\xe0\x0a\x00"].concat());
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
    let mut driven = filled();
    let keys = call(&mut driven, &[b"KEYS", b"*"]);
    for key in keys.items().unwrap_or_default() {
        let dump = call(&mut driven, &[b"DUMP", key.text().expect("a key")]);
        let dump = dump.text().expect("a payload");
        examples.push(dump[..dump.len() - DUMP_FOOTER_BYTES].to_vec());
    }
    examples
}

/// A dump whose length is told before, with effects behind it, one that ends with a mark, and effects without one.
fn master() -> Vec<Vec<u8>> {
    const NAME: &str = "0123456789abcdef0123456789abcdef01234567";
    let greeting = "\x40+PONG\r\n+OK\r\n\n+OK\r\n";
    let effects = b"*2\r\n$6\r\nSELECT\r\n$1\r\n1\r\n*1\r\n$5\r\nMULTI\r\n*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\nb\r\n*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n*1\r\n$4\r\nEXEC\r\n*3\r\n$8\r\nREPLCONF\r\n$6\r\nGETACK\r\n$1\r\n*\r\n";
    let dump = [
        &b"REDIS0010\xfa\x0erepl-stream-db\x012\xfa\x07repl-id\x28"[..],
        NAME.as_bytes(),
        b"\xfa\x0brepl-offset\x017\xfe\x02\xfb\x02\0\0\x01k\x01v\x10\x01h\x1c",
        LISTPACK,
        b"\xff\0\0\0\0\0\0\0\0",
    ]
    .concat();
    let full = format!("{greeting}+FULLRESYNC {NAME} 7\r\n");
    let mut examples = vec![
        [full.as_bytes(), format!("${}\r\n", dump.len()).as_bytes(), &dump, effects].concat(),
        [full.as_bytes(), format!("$EOF:{NAME}\r\n").as_bytes(), &dump, NAME.as_bytes()].concat(),
    ];
    examples.extend(streams(format!("{greeting}+CONTINUE {NAME}\r\n").as_bytes()));
    examples
}

/// Dump files, append-only files, and those that are one behind the other.
fn files() -> Vec<Vec<u8>> {
    let head = b"REDIS0011\xfa\x09redis-ver\x057.2.4\xf5\x38#!lua name=l\nredis.register_function('f',function()end)\n\xfe\x00\xfb\x04\x02";
    let dump = [
        &head[..],
        b"\xfc\0\0\x01\0\0\0\0\0\x00\x01a\xc0\x05\xfd\0\0\0\x7f\x00\x01b\xc3\x06\x15\x01xx\xe0\x0a\x00",
        b"\xf8\x05\x10\x01h\x1c",
        LISTPACK,
        b"\xf9\x05\x02\x01s\x02\x01a\xc0\x7b\xfe\x01\x12\x01l\x02\x02\x1c",
        LISTPACK,
        b"\x01\x05plain",
        b"\x05\x01z\x01\x01b\0\0\0\0\0\0\xf0\x7f\xff\0\0\0\0\0\0\0\0",
    ]
    .concat();
    let requests = b"*2\r\n$6\r\nSELECT\r\n$1\r\n1\r\n#TS:1\r\n*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\nb\r\n*1\r\n$5\r\nMULTI\r\n*5\r\n$4\r\nXADD\r\n$1\r\ns\r\n$3\r\n1-1\r\n$1\r\na\r\n$1\r\nb\r\n*1\r\n$4\r\nEXEC\r\n".to_vec();
    // Where the dump ends its checksum is none.
    let both = [&dump[..], &requests].concat();
    let driven = filled();
    let written = [Dialect::Redis70, Dialect::Redis72].map(|dialect| {
        let mut bytes = Vec::new();
        let take = |part: &[u8]| -> Result<(), kayvee_server::Error> {
            bytes.extend_from_slice(part);
            Ok(())
        };
        driven.engine.export(dialect, take).expect("there is room");
        bytes
    });
    [vec![dump, requests, both], written.into()].concat()
}

/// Both ends of exchanges over IPv4 and IPv6 as they were, and with checksums that are put right.
fn frames() -> Vec<Vec<u8>> {
    let mut examples = Vec::new();
    for (family, tenths) in [(Family::V4, 0), (Family::V6, 10)] {
        // Behind frames that mean nothing, and the time in which others may object to addresses.
        let quiet = [with_length(&[0], 0), with_length(&[0], tenths)].concat();
        let frames = recorded_frames(family, 3000);
        for mode in [0, 2] {
            let sent = frames.iter().flat_map(|frame| with_length(frame, 0));
            examples.push([mode].into_iter().chain(quiet.iter().copied()).chain(sent).collect());
        }
        // Each on its own, to an interface that has an address and to one that wants one.
        examples.extend(frames.iter().map(|frame| [&[2], &quiet[..], &with_length(frame, 1)].concat()));
        examples.extend(frames.iter().map(|frame| [&[3], &with_length(frame, 10)[..]].concat()));
    }
    examples
}

/// Peers that lack one segment, or two, or get them late or twice, or are silent and have forgotten then, by turns.
fn sender() -> Vec<Vec<u8>> {
    // What is acknowledged is mark 16, and a segment is four marks.
    let one_hole =
        [[0x44, 16, 255, 20, 20, 24, 0, 0], [0x44, 16, 255, 0, 20, 28, 0, 0], [0x44, 16, 255, 0, 20, 36, 0, 0]];
    let two_holes = [[0x84, 16, 255, 20, 20, 28, 32, 56], [0x84, 16, 255, 20, 32, 56, 20, 28]];
    let sent_again_is_lost = [[0x44, 16, 255, 20, 20, 60, 0, 0], [0x44, 16, 255, 20, 20, 80, 0, 0]];
    let late = [[4, 36, 255, 10, 0, 0, 0, 0]];
    let twice = [[0x44, 24, 255, 10, 16, 20, 0, 0]];
    let silence = [[3, 0, 0, 205, 0, 0, 0, 0], [3, 0, 0, 220, 0, 0, 0, 0], [4, 20, 255, 10, 0, 0, 0, 0]];
    let no_room = [[4, 24, 0, 10, 0, 0, 0, 0], [3, 0, 0, 210, 0, 0, 0, 0], [4, 16, 255, 10, 0, 0, 0, 0]];
    let all = [&one_hole[..], &late, &two_holes, &silence, &sent_again_is_lost, &twice, &silence, &no_room, &two_holes];
    let parts = [&one_hole[..], &two_holes, &sent_again_is_lost, &silence, &no_room];
    let talks = parts.into_iter().map(<[_]>::to_vec).chain([all.concat()]);
    let of = |mode: u8, talk: &Vec<[u8; 8]>| [&[mode], talk.as_flattened()].concat();
    talks.flat_map(|talk| [0, 1, 6, 11].map(|mode| of(mode, &talk))).collect()
}

/// A byte of a superblock, of a batch's header, of a record; then all three with checksums that fit.
fn log() -> Vec<Vec<u8>> {
    owned(&[
        &b"\x00\x80\x01\x00\x04\xff\xff\xff\xff"[..],
        b"\x00\x05\x18\x00\x08\x07\x00\x00\x00\x00\x00\x00\x00",
        b"\x00\x42\x00\x02\x01\x55",
        b"\x01\x80\x01\x00\x04\x05\x00\x00\x00\x05\x18\x00\x08\x07\x00\x00\x00\x00\x00\x00\x00",
        b"\x03\x01\x20\x00\x04\x02\x00\x00\x00\x05\x30\x00\x08\x03\x00\x00\x00\x00\x00\x00\x00",
    ])
}

fn http() -> Vec<Vec<u8>> {
    http::vectors().into_iter().map(|vector| [&b"\x05"[..], &vector.request].concat()).collect()
}

fn site() -> Vec<Vec<u8>> {
    vec![http::site_image(), vec![64, 0, 0xff, 200, 0, 1], vec![12, 0, 3, 48, 0, 0x40]]
}

fn canary() -> Vec<Vec<u8>> {
    vec![b"*1\r\n$4\r\nPING\r\n".to_vec()]
}
