//! What a running web server must do: the vectors over real sockets, every byte of a site of thousands of files, keys as
//! pages, figures, and clients that are slow, many or hostile.

mod client;
mod large;

pub use large::{LARGE_TESTS, large_site_image};

use crate::{
    client::{Client, Reply, encode},
    http::{self, Vector},
    random::Random,
};
use client::Http;
use kayvee_http::site::{Builder, File};
use std::{
    error::Error,
    io::{self, ErrorKind},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

/// Files beside those of the vectors.
const FILES: usize = 3_000;
/// The longest file, which is fetched in parts as well.
const LONG_FILE_BYTES: usize = 5 << 20;
/// Where the store's keys for pages begin.
pub const KEY_PREFIX: &str = "page:";
/// Longer than this nobody may wait while somebody else misbehaves.
const PATIENCE: Duration = Duration::from_secs(5);
/// Clients that fetch at a time.
const FETCHERS: usize = 4;
/// Bytes of the server's memory that an idle connection may take.
const IDLE_CONNECTION_BYTES: u64 = 8 << 10;
/// The same for one that has sent half a request.
const WAITING_CONNECTION_BYTES: u64 = 16 << 10;

/// The servers under test: one process or guest.
pub struct Target {
    /// The web server's `HOST:PORT`.
    pub web: String,
    /// The store's.
    pub store: String,
}

type Outcome = Result<(), Box<dyn Error>>;
type Test = crate::named::Test<Target>;

/// Tests by name.
pub const TESTS: &[(&str, Test)] = &[
    ("vectors", vectors),
    ("every-byte", every_byte),
    ("every-byte-under-load", every_byte_under_load),
    ("ranges", ranges),
    ("keys", keys),
    ("figures", figures),
    ("status-events", status_events),
    ("idle-crowd", |target| idle_crowd(target, 1_000)),
    ("slow-loris", |target| slow_loris(target, 500)),
    ("random-bytes", random_bytes),
];

/// Tests that take tens of thousands of open files.
pub const LONG_TESTS: &[(&str, Test)] = &[
    ("idle-crowd-10000", |target| idle_crowd(target, 9_999)),
    ("slow-loris-5000", |target| slow_loris(target, 5_000)),
];

fn path(index: usize) -> String {
    let ending = ["html", "css", "js", "png", "bin"][index % 5];
    format!("/many/{:02}/file-{index}.{ending}", index % 37)
}

/// A file's bytes: from none to some hundred KiB, most of them short.
fn content(index: usize) -> Vec<u8> {
    let mut random = Random::new(index as u64);
    let bits = random.below(18);
    let len = if index == 0 { LONG_FILE_BYTES } else { random.below(1 << bits) };
    let words = (0..len.div_ceil(8)).flat_map(|_| random.next_u64().to_le_bytes());
    words.take(len).collect()
}

/// The image of the site that is served: that of the vectors, and thousands of files.
pub fn site_image() -> Vec<u8> {
    let mut builder: Builder = http::site();
    for index in 0..FILES {
        let file =
            File { content_type: "application/octet-stream".into(), identity: content(index), ..File::default() };
        builder.page(0, path(index).as_bytes(), &file).expect("a page");
    }
    builder.finish().expect("a site")
}

/// The answers to what the vectors send, whole and in two pieces. Behind those that leave the connection open another
/// request is answered.
fn vectors(target: &Target) -> Outcome {
    const LAST: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n";
    for vector in http::vectors().into_iter().map(Vector::at_any_time) {
        let middle = vector.request.len() / 2;
        for pieces in [vec![&vector.request[..]], vec![&vector.request[..middle], &vector.request[middle..]]] {
            let mut http = Http::connect(&target.web)?;
            for piece in pieces {
                http.send(piece)?;
            }
            let output = if vector.ends {
                http.read_to_end()?
            } else {
                http.send(LAST)?;
                let output = http.read_until(b"\r\n\r\nok\n")?;
                let last = output.windows(9).rposition(|window| window == b"HTTP/1.1 ").unwrap_or_default();
                output[..last].to_vec()
            };
            http::check(&vector, &output)?;
        }
    }
    Ok(())
}

/// Fetches some of the files, several requests at a time, and compares them.
fn fetch(target: &Target, files: impl Iterator<Item = usize>) -> Result<usize, String> {
    const PIPELINE: usize = 8;
    let failed = |error: io::Error| format!("fetching: {error}");
    let files: Vec<usize> = files.collect();
    let mut http = Http::connect(&target.web).map_err(failed)?;
    for batch in files.chunks(PIPELINE) {
        let requests = batch.iter().map(|index| format!("GET {} HTTP/1.1\r\nHost: h\r\n\r\n", path(*index)));
        http.send(requests.collect::<String>().as_bytes()).map_err(failed)?;
        for &index in batch {
            let response = http.response().map_err(failed)?;
            if response.status != 200 || response.body != content(index) {
                let len = response.body.len();
                return Err(format!(
                    "{}: status {}, {len} bytes, which are not the file's",
                    path(index),
                    response.status
                ));
            }
        }
    }
    Ok(files.len())
}

fn every_byte(target: &Target) -> Outcome {
    thread::scope(|scope| {
        let fetchers: Vec<_> =
            (0..FETCHERS).map(|first| scope.spawn(move || fetch(target, (first..FILES).step_by(FETCHERS)))).collect();
        let counts = fetchers.into_iter().map(|fetcher| fetcher.join().expect("a fetcher does not panic"));
        let total: usize = counts.sum::<Result<usize, String>>()?;
        if total == FILES { Ok(()) } else { Err(format!("{total} files").into()) }
    })
}

/// The same while the store is busy, and the store's replies are right as well.
fn every_byte_under_load(target: &Target) -> Outcome {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let load = scope.spawn(|| load_store(target, &is_over).map_err(|error| format!("the store: {error}")));
        let outcome = every_byte(target).map_err(|error| error.to_string());
        is_over.store(true, Ordering::Relaxed);
        let calls = load.join().expect("the load does not panic")?;
        outcome?;
        if calls > 1_000 { Ok(()) } else { Err(format!("the store answered {calls} times only").into()) }
    })
}

/// Counts a key up and sets others until it `is_over`. Returns how many calls there were.
fn load_store(target: &Target, is_over: &AtomicBool) -> io::Result<u64> {
    const PIPELINE: u64 = 64;
    let mut client = Client::connect(&target.store)?;
    client.call(&["DEL", "web-load"])?;
    let value = "x".repeat(100);
    let mut calls = 0;
    while !is_over.load(Ordering::Relaxed) {
        let pair = |n: u64| [encode(&["INCR", "web-load"]), encode(&["SET", &format!("web-{n}"), &value])].concat();
        client.send(&(0..PIPELINE).flat_map(pair).collect::<Vec<u8>>())?;
        for _ in 0..PIPELINE {
            calls += 1;
            let (count, set) = (client.read_reply()?, client.read_reply()?);
            if count != Reply::Integer(calls as i64) || set != Reply::Simple(b"OK".to_vec()) {
                return Err(io::Error::other(format!("{count} and {set} at call {calls}")));
            }
        }
    }
    Ok(2 * calls)
}

/// Parts of the longest file, one at a time and several.
fn ranges(target: &Target) -> Outcome {
    let whole = content(0);
    let mut random = Random::new(1);
    let mut http = Http::connect(&target.web)?;
    for _ in 0..50 {
        let from = random.below(whole.len());
        let to = from + random.below((whole.len() - from).min(300_000));
        let response = http.get(&path(0), &[("Range", &format!("bytes={from}-{to}"))])?;
        let content_range = format!("bytes {from}-{to}/{}", whole.len());
        if response.status != 206 || response.body != whole[from..=to] || !response.has("content-range", &content_range)
        {
            return Err(format!("bytes {from}-{to}: status {}", response.status).into());
        }
    }
    let response = http.get(&path(0), &[("Range", "bytes=0-9,100000-199999,-1000")])?;
    let parts: [&[u8]; 3] = [&whole[..10], &whole[100_000..200_000], &whole[whole.len() - 1000..]];
    let contains = |part: &&[u8]| response.body.windows(part.len()).any(|window| window == *part);
    if response.status != 206 || !parts.iter().all(contains) {
        return Err(format!("three parts: status {}", response.status).into());
    }
    Ok(())
}

/// What is published with `SET`.
fn keys(target: &Target) -> Outcome {
    let mut client = Client::connect(&target.store)?;
    let mut http = Http::connect(&target.web)?;
    let long = Random::new(2).bytes(1 << 20);
    for (name, value, content_type) in [
        ("hello", &b"<p>Hello"[..], "text/html; charset=utf-8"),
        ("a/style.css", b"a{}", "text/css; charset=utf-8"),
        ("long.png", &long, "image/png"),
        ("number", b"12345", "text/html; charset=utf-8"),
    ] {
        let key = format!("{KEY_PREFIX}{name}");
        client.call(&[b"SET", key.as_bytes(), value])?;
        let response = http.get(&format!("/{name}"), &[])?;
        if response.status != 200 || response.body != value || !response.has("content-type", content_type) {
            return Err(format!("{name}: status {}", response.status).into());
        }
        let etag = response.value("etag").ok_or("no ETag")?.to_string();
        if http.get(&format!("/{name}"), &[("If-None-Match", &etag)])?.status != 304 {
            return Err(format!("{name}: its own entity tag does not make a 304").into());
        }
        client.call(&["APPEND", &key, "!"])?;
        let response = http.get(&format!("/{name}"), &[("If-None-Match", &etag)])?;
        if response.status != 200 || response.body != [value, b"!"].concat() {
            return Err(format!("{name}: status {} after a change", response.status).into());
        }
        client.call(&["DEL", &key])?;
        if http.get(&format!("/{name}"), &[])?.status != 404 {
            return Err(format!("{name} is still there").into());
        }
    }
    client.call(&["RPUSH", "page:list", "x"])?;
    let status = http.get("/list", &[])?.status;
    client.call(&["DEL", "page:list"])?;
    if status == 404 { Ok(()) } else { Err(format!("a list is a page: {status}").into()) }
}

/// Reads /metrics and checks the form of each line (Prometheus' text format, version 0.0.4).
fn metrics(http: &mut Http) -> Result<String, Box<dyn Error>> {
    let response = http.get("/metrics", &[])?;
    if response.status != 200 || !response.has("content-type", "text/plain; version=0.0.4; charset=utf-8") {
        return Err(format!("/metrics: status {}", response.status).into());
    }
    let text = String::from_utf8(response.body)?;
    let mut described = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# ") {
            described = rest.split(' ').nth(1).unwrap_or_default().to_string();
            continue;
        }
        let (name, value) = line.rsplit_once(' ').ok_or_else(|| format!("no value: {line}"))?;
        let name = name.split('{').next().unwrap_or_default();
        if !name.starts_with(&described) || described.is_empty() || value.parse::<f64>().is_err() {
            return Err(format!("no metric of {described}: {line}").into());
        }
    }
    Ok(text)
}

fn metric(text: &str, name: &str) -> Result<u64, String> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.and_then(|value| value.parse().ok()).ok_or_else(|| format!("no metric {name}"))
}

/// `/healthz` and `/metrics`, whose counters count.
fn figures(target: &Target) -> Outcome {
    const CALLS: u64 = 500;
    let mut http = Http::connect(&target.web)?;
    let health = http.get("/healthz", &[])?;
    if (health.status, &health.body[..]) != (200, b"ok\n") {
        return Err("/healthz does not say ok".into());
    }
    let before = metrics(&mut http)?;
    let mut client = Client::connect(&target.store)?;
    for _ in 0..CALLS {
        client.call(&["SET", "web-figures", "x"])?;
        http.get("/page.txt", &[])?;
    }
    let after = metrics(&mut http)?;
    for (name, at_least) in [
        ("kayvee_commands_processed_total", CALLS),
        ("kayvee_net_input_bytes_total", CALLS * 30),
        ("kayvee_http_responses_total{class=\"2xx\"}", CALLS),
        ("kayvee_http_output_bytes_total", CALLS * 100),
        ("kayvee_command_duration_seconds_count{command=\"set\"}", 0),
    ] {
        let grown = metric(&after, name)? - metric(&before, name).unwrap_or(0);
        if grown < at_least {
            return Err(format!("{name} has grown by {grown} instead of {at_least}").into());
        }
    }
    Ok(())
}

/// The status page, and its events once a second, whose numbers move.
fn status_events(target: &Target) -> Outcome {
    let mut http = Http::connect(&target.web)?;
    let page = http.get("/_/status", &[])?;
    let has_script = page.body.windows(11).any(|window| window == b"EventSource");
    if page.status != 200 || !has_script || !page.has("cache-control", "no-store") {
        return Err(format!("/_/status: status {}", page.status).into());
    }
    http.send(b"GET /_/status/events HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
    let head = String::from_utf8(http.read_until(b"\r\n\r\n")?)?;
    if !head.starts_with("HTTP/1.1 200 ") || !head.contains("Content-Type: text/event-stream\r\n") {
        return Err(head.into());
    }
    let mut client = Client::connect(&target.store)?;
    let mut counts = Vec::new();
    for _ in 0..5 {
        let event = String::from_utf8(http.read_until(b"\n\n")?)?;
        let data = event.rsplit_once("data: {").ok_or("no event")?.1;
        let count = data.split("\"commands\":").nth(1).and_then(|rest| rest.split(',').next()).ok_or("no commands")?;
        counts.push(count.parse::<u64>()?);
        for _ in 0..100 {
            client.call(&["PING"])?;
        }
    }
    // The first ones may come at any time, all others once a second.
    if counts.windows(2).any(|pair| pair[1] < pair[0]) || counts[4] < counts[0] + 300 {
        return Err(format!("{counts:?}").into());
    }
    // Who has come in without a password is not told any more once there is one.
    client.call(&["CONFIG", "SET", "requirepass", "pw"])?;
    let rest = http.read_to_end();
    client.call(&["CONFIG", "SET", "requirepass", ""])?;
    if rest?.ends_with(b"event: denied\ndata:\n\n") {
        Ok(())
    } else {
        Err("the stream has ended without a word".into())
    }
}

/// A page must come soon, whatever others do.
fn served_in_time(http: &mut Http) -> Outcome {
    let start = Instant::now();
    let response = http.get("/page.txt", &[])?;
    let took = start.elapsed();
    if response.body != b"0123456789" || took > PATIENCE {
        return Err(format!("status {} after {took:?}", response.status).into());
    }
    Ok(())
}

fn memory_bytes(http: &mut Http) -> Result<u64, Box<dyn Error>> {
    Ok(metric(&metrics(http)?, "kayvee_memory_used_bytes")?)
}

/// Many connections that have asked once and stay: each takes little, and nobody waits for them.
fn idle_crowd(target: &Target, connections: usize) -> Outcome {
    let mut http = Http::connect(&target.web)?;
    let before = memory_bytes(&mut http)?;
    let mut crowd = Vec::with_capacity(connections);
    for number in 0..connections {
        let mut other = Http::connect(&target.web).map_err(|error| format!("connection {number}: {error}"))?;
        let response = other.get("/page.txt", &[]).map_err(|error| format!("connection {number}: {error}"))?;
        if response.status != 200 {
            return Err(format!("connection {number}: status {}", response.status).into());
        }
        crowd.push(other);
    }
    served_in_time(&mut http)?;
    let each = memory_bytes(&mut http)?.saturating_sub(before) / connections as u64;
    println!("   {each} bytes a connection");
    if each > IDLE_CONNECTION_BYTES {
        return Err(format!("each idle connection takes {each} bytes").into());
    }
    for other in crowd.iter_mut().step_by(97) {
        served_in_time(other)?;
    }
    Ok(())
}

/// Clients that never finish their requests: others are served at once, and each of them is told that its time is over.
fn slow_loris(target: &Target, connections: usize) -> Outcome {
    let mut http = Http::connect(&target.web)?;
    let before = memory_bytes(&mut http)?;
    let mut slow = Vec::with_capacity(connections);
    for number in 0..connections {
        let mut other = Http::connect(&target.web).map_err(|error| format!("connection {number}: {error}"))?;
        let body = if number % 2 == 0 { "" } else { "Content-Length: 1000\r\n\r\n" };
        other.send(format!("GET /page.txt HTTP/1.1\r\nHost: h\r\nX-{number}: a\r\n{body}").as_bytes())?;
        slow.push(other);
    }
    let start = Instant::now();
    let mut most = 0;
    while start.elapsed() < Duration::from_secs(8) {
        for other in &mut slow {
            // One that is ended already has been told.
            let _ = other.send(b"X");
        }
        served_in_time(&mut http)?;
        most = most.max(memory_bytes(&mut http)?.saturating_sub(before) / connections as u64);
        thread::sleep(Duration::from_millis(500));
    }
    println!("   {most} bytes a connection at most");
    if most > WAITING_CONNECTION_BYTES {
        return Err(format!("each slow connection takes {most} bytes").into());
    }
    let mut were_told = 0;
    for (number, other) in slow.iter_mut().enumerate() {
        let told = other.read_to_end().map_err(|error| format!("slow connection {number}: {error}"))?;
        // What came after the answer may have destroyed it.
        if !told.is_empty() && !told.starts_with(b"HTTP/1.1 408 ") {
            return Err(format!("slow connection {number}: {}", told.escape_ascii()).into());
        }
        were_told += usize::from(!told.is_empty());
    }
    if were_told < connections / 2 {
        return Err(format!("only {were_told} of {connections} learned that they were too slow").into());
    }
    served_in_time(&mut http)
}

/// Bytes that are no requests, or damaged ones: each connection gets an error or its end, and others are served.
fn random_bytes(target: &Target) -> Outcome {
    let mut http = Http::connect(&target.web)?;
    let vectors = http::vectors();
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let mut bytes = vectors[random.below(vectors.len())].request.clone();
        for _ in 0..random.below(8) + 1 {
            let at = random.below(bytes.len());
            bytes[at] = random.next_u64() as u8;
        }
        let mut other = Http::connect(&target.web)?;
        // The server may end it while we send.
        let _ = other.send(&bytes);
        let _ = other.end_of_sending();
        match other.read_to_end() {
            Ok(answer) if answer.is_empty() || answer.starts_with(b"HTTP/1.1 ") => {}
            Ok(answer) => return Err(format!("seed {seed}: {}", answer.escape_ascii()).into()),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            Err(error) => return Err(format!("seed {seed}: {error}").into()),
        }
    }
    served_in_time(&mut http)
}
