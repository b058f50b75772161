//! Harnesses that take any bytes: what a stranger can send. None of them may panic, hang or allocate without bound.
//!
//! Each one is called by a target of `fuzz/`, where libFuzzer looks for bytes that break it, and by a seeded test, where
//! [`Mutator`] makes them from examples.

mod examples;
mod files;
mod log;
mod master;

pub use examples::{TARGETS, Target, target};
pub use files::{file, is_file_taken};
pub use log::log;
pub use master::master;

use crate::{
    client::{Reply, ReplyReader, encode, quoted},
    in_process::environment,
    random::Random,
};
use kayvee_commands::{Environment, options::OPTIONS};
use kayvee_lua::{Event, Limits as LuaLimits, Machine, Raise, Value};
use kayvee_platform::{Clock, Now};
use kayvee_rdb::kind;
use kayvee_resp::{Limits, Parser, Progress, ProtocolError, first_arguments, split_words};
use kayvee_server::{
    ClientId, Engine, Fate, Options, Peer,
    boot::{BootArgs, quote_word},
};
use std::cell::Cell;

/// Bytes for the objects of a fuzzed Lua machine.
const LUA_HEAP_BYTES: usize = 4 << 20;
/// Slices that a fuzzed script may run, and turns of loops in each.
const LUA_SLICES: usize = 50;
const LUA_SLICE: u64 = 200;

/// Runs a script with one argument; it is stopped after some slices.
fn run_lua(machine: &mut Machine, script: &[u8], argument: &[u8]) -> Result<(), Raise> {
    let globals = machine.globals();
    let function = machine.compile(script, b"@fuzz", globals)?;
    let argument = Value::String(machine.heap.string(argument)?);
    machine.start(Value::Function(function), &[argument])?;
    for _ in 0..LUA_SLICES {
        if !matches!(machine.run(LUA_SLICE), Event::Preempted) {
            break;
        }
    }
    machine.reset();
    machine.collect();
    assert!(machine.heap.used_bytes() <= LUA_HEAP_BYTES);
    Ok(())
}

/// Lua: the compiler and the machine with any text, and what its libraries decode with any bytes.
pub fn lua(data: &[u8]) {
    let Some((&[mode], text)) = data.split_first_chunk() else { return };
    let script: &[u8] = match mode % 6 {
        0 => text,
        1 => b"local d = ... string.find('a(b)c d=1, e=[f]', d) string.gsub(d, d, d) for _ in d:gmatch(d) do end",
        2 => b"cjson.encode(cjson.decode(...))",
        3 => b"cmsgpack.pack(cmsgpack.unpack(...))",
        4 => b"local d = ... struct.size(d) struct.pack(d, 1, 'text', 2, 3) struct.unpack(d, d)",
        _ => b"local d = ... string.format(d, 1, 'text', 2.5) tonumber(d) loadstring(d)",
    };
    let limits = LuaLimits { heap_bytes: LUA_HEAP_BYTES };
    let mut machine = Machine::new(limits, [1, mode.into()]).expect("room for the libraries");
    // An error is as good as a result.
    let _ = run_lua(&mut machine, script, text);
    run_lua(&mut machine, b"return 1 + 1", b"").expect("the machine works after anything");
}

/// A stream of requests as a server has understood it.
#[derive(Debug, PartialEq, Eq)]
struct Understood {
    requests: Vec<Vec<Vec<u8>>>,
    error: Option<ProtocolError>,
    rest: Vec<u8>,
}

/// Parses a stream that arrives in pieces of the given lengths, the last of which repeats.
fn understand(stream: &[u8], piece_lens: &[usize], limits: Limits) -> Understood {
    let mut parser = Parser::new();
    let mut understood = Understood { requests: Vec::new(), error: None, rest: Vec::new() };
    let mut arrived = 0;
    let mut lens = piece_lens.iter().copied();
    let mut len = 1;
    while arrived < stream.len() {
        len = lens.next().unwrap_or(len).max(1);
        let piece = &stream[arrived..(arrived + len).min(stream.len())];
        arrived += piece.len();
        understood.rest.extend_from_slice(piece);
        loop {
            let bytes = &understood.rest;
            match parser.parse(bytes, limits) {
                Ok(Progress::Complete(end)) => {
                    assert!(end <= bytes.len(), "a request cannot end behind what has arrived");
                    let request = parser.request(bytes);
                    let words: Vec<Vec<u8>> = request.from(0).map(<[u8]>::to_vec).collect();
                    assert_eq!(words.len(), request.len());
                    assert!(words.iter().map(Vec::len).sum::<usize>() <= end, "arguments come from the request");
                    understood.requests.push(words);
                    parser.reset();
                    understood.rest.drain(..end);
                    if understood.rest.is_empty() {
                        break;
                    }
                }
                Ok(Progress::Partial { at_least }) => {
                    assert!(at_least > bytes.len(), "what is asked for has not arrived yet");
                    break;
                }
                Err(error) => {
                    understood.error = Some(error);
                    understood.rest.clear();
                    return understood;
                }
            }
        }
    }
    understood
}

/// The request parser: a stream means the same however it is split, and to who looks ahead.
pub fn resp(data: &[u8]) {
    let Some((&[mode, first], stream)) = data.split_first_chunk() else { return };
    let limits = Limits { bulk_bytes: 1 << 16, authenticated: mode & 1 == 0, ..Limits::PASSED };
    let whole = understand(stream, &[stream.len()], limits);
    let by_bytes = understand(stream, &[1], limits);
    assert_eq!(whole, by_bytes, "byte by byte");
    let seen: Vec<[&[u8]; 3]> = first_arguments(stream).collect();
    let arguments = |request: &Vec<Vec<u8>>| [1, 2, 3].map(|at| request.get(at).cloned().unwrap_or_default());
    let coming = whole.requests.iter().map(arguments);
    assert!(!limits.authenticated || coming.take(seen.len()).eq(seen), "what a look ahead sees comes");
    let len = usize::from(mode >> 1) + 1;
    assert_eq!(whole, understand(stream, &[usize::from(first), len], limits), "{first} bytes, then {len} at a time");
}

/// The splitter of inline requests and boot arguments.
pub fn words(data: &[u8]) {
    let Ok(words) = split_words(data) else { return };
    assert!(words.iter().map(Vec::len).sum::<usize>() <= data.len());
    let texts: Option<Vec<&str>> = words.iter().map(|word| std::str::from_utf8(word).ok()).collect();
    if let Some(texts) = texts {
        let line = texts.iter().map(|word| quote_word(word)).collect::<Vec<_>>().join(" ");
        assert_eq!(split_words(line.as_bytes()).as_ref(), Ok(&words), "what is quoted reads back");
    }
}

/// The boot command line.
pub fn boot_args(data: &[u8]) {
    match BootArgs::parse(data) {
        Ok(args) => check_options(&args.options),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Process arguments: `data` holds them with a zero byte between.
pub fn options(data: &[u8]) {
    match Options::from_args(data.split(|b| *b == 0)) {
        Ok(options) => check_options(&options),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// What `CONFIG GET` shows can be set again and changes nothing.
fn check_options(options: &Options) {
    for spec in OPTIONS {
        let mut copy = options.clone();
        let shown = spec.get(options);
        assert_eq!(spec.set(&mut copy, &shown), Ok(()), "{}", spec.name);
        assert_eq!(&copy, options, "{}", spec.name);
    }
}

/// When all that a fuzzed engine does takes place.
const NOW: Now = Now { monotonic_ns: 1, unix_us: 1_700_000_000_000_000 };

/// Says each time that a millisecond has passed, so that what watches the time depends on what is done alone.
struct CountingClock;

thread_local! {
    static TICKS_MS: Cell<u64> = const { Cell::new(0) };
}

impl Clock for CountingClock {
    fn now(&self) -> Now {
        let passed_ms = TICKS_MS.get() + 1;
        TICKS_MS.set(passed_ms);
        Now { monotonic_ns: NOW.monotonic_ns + passed_ms * 1_000_000, unix_us: NOW.unix_us + passed_ms * 1_000 }
    }

    fn name(&self) -> &'static str {
        "counting"
    }
}

/// Both ends of every connection.
fn peer() -> Peer {
    Peer { remote: "192.0.2.1:1".into(), local: "192.0.2.2:6379".into(), is_local: true }
}

/// What a client hears of an engine.
#[derive(Default)]
struct Heard {
    output: Vec<u8>,
    /// The connection was ended without what was left of its turn's replies.
    is_cut_off: bool,
}

/// Turns that an engine gets behind the last bytes.
const LAST_TURNS: usize = 20;

/// An engine that a test drives.
struct Driven {
    engine: Engine,
    now: Now,
}

impl Driven {
    fn new(args: &[&str]) -> Driven {
        TICKS_MS.set(0);
        let options = Options::from_args(args.iter().map(|arg| arg.as_bytes())).expect("the options are right");
        let environment = Environment { clock: &CountingClock, ..environment() };
        Driven { engine: Engine::new(options, environment, NOW), now: NOW }
    }

    fn connect(&mut self) -> Option<ClientId> {
        self.engine.begin_turn(self.now);
        self.engine.connect(peer()).ok()
    }

    /// One turn in which some bytes arrive. Gives what is sent back and what becomes of the connection.
    fn turn(&mut self, client: ClientId, bytes: &[u8]) -> (Vec<u8>, Fate) {
        self.engine.begin_turn(self.now);
        self.engine.receive(client, bytes);
        self.engine.end_turn();
        while self.engine.next_ready().is_some() {}
        let mut output = Vec::new();
        while !self.engine.output(client).is_empty() {
            let part = self.engine.output(client);
            output.extend_from_slice(part);
            let len = part.len();
            self.engine.sent(client, len);
        }
        (output, self.engine.fate(client))
    }

    /// Everything that comes back on a new connection for a stream of requests, and whatever becomes due behind it.
    fn converse(&mut self, stream: &[u8], piece_len: usize) -> Heard {
        let mut heard = Heard::default();
        let Some(client) = self.connect() else { return heard };
        let last_turns = std::iter::repeat_n(&b""[..], LAST_TURNS);
        for piece in stream.chunks(piece_len.max(1)).chain(last_turns) {
            if piece.is_empty() {
                let Some(deadline_ns) = self.engine.next_deadline_ns() else { break };
                self.wait_until(deadline_ns);
            }
            let (sent, fate) = self.turn(client, piece);
            heard.output.extend_from_slice(&sent);
            heard.is_cut_off = fate == Fate::CloseNow;
            if matches!(fate, Fate::CloseAfterOutput | Fate::CloseNow) {
                break;
            }
        }
        self.engine.disconnect(client);
        heard
    }

    fn wait_until(&mut self, monotonic_ns: u64) {
        let passed_ns = monotonic_ns.saturating_sub(self.now.monotonic_ns);
        self.now.monotonic_ns += passed_ns;
        self.now.unix_us += passed_ns / 1000;
    }
}

/// The reply to one request on a connection of its own.
fn call(driven: &mut Driven, words: &[&[u8]]) -> Reply {
    let request = encode(words);
    let heard = driven.converse(&request, request.len());
    ReplyReader::new(&heard.output[..]).read_reply().unwrap_or_else(|error| panic!("{words:?}: {error}"))
}

/// Whole engines: what one replies does not depend on how the requests were split, and is always made of replies.
pub fn engine(data: &[u8]) {
    // What shows how long something took, or how much memory buffers take, is never the same again.
    const REPORTS: [&[u8]; 4] = [b"SLOWLOG", b"LATENCY", b"MONITOR", b"MEMORY"];
    // A replica is sent what is no reply: a dump file, and effects.
    const SYNC: &[u8] = b"SYNC";
    let Some((&mode, stream)) = data.split_first() else { return };
    let args: &[&str] = match mode & 3 {
        0 => &["--requirepass", "secret", "--proto-max-bulk-len", "1mb"],
        1 => &["--proto-max-bulk-len", "1mb", "--client-output-buffer-limit", "normal 1mb 0 0"],
        _ => &["--enable-debug-command", "no", "--proto-max-bulk-len", "1mb"],
    };
    let whole = Driven::new(args).converse(stream, stream.len());
    let split = Driven::new(args).converse(stream, 1 + usize::from(mode >> 2));
    let upper = stream.to_ascii_uppercase();
    let names = |word: &[u8]| upper.windows(word.len()).any(|part| part == word);
    if names(SYNC) {
        return;
    }
    let is_cut_off = whole.is_cut_off || split.is_cut_off;
    let (whole, split) = (replies(&whole.output), replies(&split.output));
    if REPORTS.into_iter().any(names) || (is_cut_off && (whole.starts_with(&split) || split.starts_with(&whole))) {
        return;
    }
    assert_eq!(whole, split, "the same replies however split: {}", quoted(stream));
}

/// What stands behind a dumped value: two bytes of version, eight of a checksum.
const DUMP_FOOTER_BYTES: usize = 10;

/// Values in the dump format, with the right checksum whatever they are: `RESTORE` refuses them or makes a key that every
/// command can use, and whose own dump is taken.
pub fn restore(data: &[u8]) {
    let mut payload = [data, &kayvee_rdb::VERSION.to_le_bytes()].concat();
    payload.extend_from_slice(&kayvee_rdb::checksum(&payload).to_le_bytes());
    let mut driven = Driven::new(&[]);
    let mut call = |words: &[&[u8]]| call(&mut driven, words);
    match call(&[b"RESTORE", b"k", b"0", &payload]) {
        Reply::Error(text) => return assert_eq!(String::from_utf8_lossy(&text), "ERR Bad data format"),
        reply => assert_eq!(reply.to_string(), "+OK"),
    }
    for words in [&[&b"TYPE"[..], b"k"][..], &[b"COPY", b"k", b"copy"], &[b"SORT", b"k", b"ALPHA"], &[b"HGETALL", b"k"]]
    {
        call(words);
    }
    let dump = call(&[b"DUMP", b"k"]);
    if matches!(data[0], kind::HASH_EXPIRING | kind::HASH_EXPIRING_LISTPACK) && dump == Reply::Null {
        return assert_eq!(call(&[b"EXISTS", b"k"]).to_string(), ":0", "each field's time had come");
    }
    let dump = dump.text().expect("what was restored can be dumped");
    assert_eq!(call(&[b"RESTORE", b"k", b"0", dump, b"REPLACE"]).to_string(), "+OK");
    assert_eq!(call(&[b"DEL", b"k", b"copy"]).to_string(), ":2");
}

/// Reads output as replies, all of it. Reports that count bytes and reads are left out.
fn replies(output: &[u8]) -> Vec<String> {
    let mut reader = ReplyReader::new(output);
    let mut replies = Vec::new();
    loop {
        match reader.read_reply() {
            Ok(reply) => {
                let counts = reply.text().is_some_and(|text| text.starts_with(b"# ") || text.starts_with(b"id="));
                replies.push(if counts { String::new() } else { reply.to_string() });
            }
            Err(error) => {
                let at_end = error.kind() == std::io::ErrorKind::UnexpectedEof && reader.pending().is_empty();
                assert!(at_end, "not a reply: {error}");
                return replies;
            }
        }
    }
}

/// Frames from the wire, as a sequence; see [`crate::network::fuzz`].
pub fn frames(data: &[u8]) {
    crate::network::fuzz::fuzz_frames(data);
}

/// What a peer says of the data that it is sent; see [`crate::network::sender`].
pub fn sender(data: &[u8]) {
    crate::network::sender::fuzz_sender(data);
}

/// The web server: what it answers does not depend on how the bytes were split, and each request takes little memory.
pub fn http(data: &[u8]) {
    let mut server = crate::http::server();
    let Some((&step, stream)) = data.split_first() else { return };
    let step = usize::from(step) + 1;
    let whole = crate::http::exchange(&mut server, [stream], usize::MAX);
    let split = crate::http::exchange(&mut server, stream.chunks(step), step);
    assert_eq!(split, whole, "the same responses however split: {}", quoted(stream));
    assert!(whole.0.is_empty() || whole.0.starts_with(b"HTTP/1.1 "));
    assert_eq!(server.stats().connections, 0);
}

/// Site images: any bytes, and a good image with some bytes changed and its checksums right again.
pub fn site(data: &[u8]) {
    read_site(data.to_vec());
    let mut image = crate::http::site_image();
    for change in data.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % image.len();
        image[at] = change[2];
    }
    kayvee_http::site::seal(&mut image);
    read_site(image);
}

/// Reads all of a site that is taken for one.
fn read_site(image: Vec<u8>) {
    let Ok(site) = kayvee_http::Site::open(std::sync::Arc::new(image)) else { return };
    for (root, path, page) in site.pages() {
        site.body(page.identity_body());
        assert!(site.find(root, path).is_some());
        assert!(!page.content_type().iter().any(|byte| matches!(byte, b'\r' | b'\n')));
    }
    let now = Now { monotonic_ns: 0, unix_us: crate::http::UNIX_S * 1_000_000 };
    let mut server = crate::http::server();
    server.set_site(site);
    server.begin_turn(now, &mut kayvee_http::NoPages);
    for vector in crate::http::vectors() {
        crate::http::exchange(&mut server, [vector.request.as_slice()], usize::MAX);
    }
}

/// Fails on purpose for some bytes, to prove that fuzzing finds such bytes.
pub fn canary(data: &[u8]) {
    let mut rest = data;
    for part in [&b"*1\r\n"[..], b"$6", b"\r\nCANARY"] {
        match rest.windows(part.len()).position(|window| window == part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return,
        }
    }
    panic!("the canary was found");
}

/// Makes new inputs from examples, as a fuzzer without feedback does.
pub struct Mutator {
    random: Random,
    examples: Vec<Vec<u8>>,
}

const INPUT_LIMIT_BYTES: usize = 4 << 10;
/// Pieces that matter to one parser or another.
const DICTIONARY: &[&[u8]] = &[
    b"\r\n",
    b"\n",
    b"*",
    b"$",
    b"*1\r\n",
    b"*3\r\n$3\r\n",
    b"$-1\r\n",
    b"$6",
    b"\r\nCANARY",
    b"\"",
    b"'",
    b"\\x",
    b"\\",
    b" ",
    b"\0",
    b"\x0b",
    b"\x0c",
    b"-1",
    b"0",
    b"9223372036854775808",
    b"65537",
    b"ip=",
    b"gateway=",
    b" -- ",
    b"--",
    b"--port\0",
    b"--maxmemory\0",
    b"100mb",
    b"PING",
    b"SET k v",
    b"HELLO 3",
    b"AUTH secret",
    b"*2\r\n$4\r\nECHO\r\n",
    b"INFO",
    b"SCAN 0",
    b"CLIENT REPLY OFF",
    b"\xff",
];

impl Mutator {
    /// A source of inputs that follow from `seed`.
    pub fn new(seed: u64, examples: &[&[u8]]) -> Mutator {
        Mutator { random: Random::new(seed), examples: examples.iter().map(|e| e.to_vec()).collect() }
    }

    /// The next input.
    pub fn next_input(&mut self) -> Vec<u8> {
        let random = &mut self.random;
        let mut input = match self.examples.len() {
            0 => Vec::new(),
            count => self.examples[random.below(count)].clone(),
        };
        for _ in 0..1 + random.below(6) {
            let at = random.below(input.len() + 1);
            let len = random.below(input.len() - at + 1).min(1 + random.below(40));
            match random.below(7) {
                0 => drop(input.drain(at..at + len)),
                1 => drop(input.splice(at..at, DICTIONARY[random.below(DICTIONARY.len())].iter().copied())),
                2 => {
                    let bytes = random.bytes(1 + len % 8);
                    drop(input.splice(at..at, bytes));
                }
                3 if at < input.len() => input[at] ^= 1 << random.below(8),
                4 => {
                    let copy = input[at..at + len].to_vec();
                    let to = random.below(input.len() + 1);
                    drop(input.splice(to..to, copy));
                }
                5 => {
                    let other =
                        self.examples.get(random.below(self.examples.len().max(1))).cloned().unwrap_or_default();
                    let from = random.below(other.len() + 1);
                    drop(input.splice(at.., other[from..].iter().copied()));
                }
                _ => input.truncate(at.max(1)),
            }
        }
        input.truncate(INPUT_LIMIT_BYTES);
        input
    }
}
