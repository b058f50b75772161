//! A site that is larger than the memory of whoever serves it, on a disk.

use super::{Http, Outcome, Target, Test, metric, metrics};
use crate::random::Random;
use kayvee_http::site::{Builder, CHUNK_BYTES, File};
use std::{
    error::Error,
    io::{self, ErrorKind},
    thread,
    time::{Duration, Instant},
};

/// Files of 1 MiB, each with a few more bytes than the one before, so that they begin anywhere in a chunk.
const FILES: usize = 300;
const FILE_BYTES: usize = 1 << 20;
/// Clients that fetch at a time.
const FETCHERS: usize = 6;
/// Clients that ask for something and take nothing of it.
const IDLERS: usize = 200;
/// How much the server's memory may grow for them, beside what it keeps of the site: sockets' buffers are not counted.
const IDLERS_BYTES: u64 = 4 << 20;
/// Longer than this nobody may wait while others take nothing.
const PATIENCE: Duration = Duration::from_secs(20);

/// Tests of a server of that site.
pub const LARGE_TESTS: &[(&str, Test)] =
    &[("large-every-byte", every_byte), ("large-ranges", ranges), ("large-idle-readers", idle_readers)];

fn content(index: usize) -> Vec<u8> {
    let mut random = Random::new(index as u64);
    let len = FILE_BYTES + 97 * index;
    let mut bytes = vec![0; len.next_multiple_of(8)];
    bytes.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&random.next_u64().to_le_bytes()));
    bytes.truncate(len);
    bytes
}

/// The site's image.
pub fn large_site_image() -> Vec<u8> {
    let mut builder = Builder::default();
    for index in 0..FILES {
        let content_type = "application/octet-stream".into();
        let file = File { content_type, identity: content(index), ..File::default() };
        builder.page(0, format!("/{index}.bin").as_bytes(), &file).expect("a page");
    }
    let small = File { content_type: "text/plain".into(), identity: b"small".into(), ..File::default() };
    builder.page(0, b"/small.txt", &small).expect("a page");
    builder.finish().expect("a site")
}

fn fetch(target: &Target, files: impl Iterator<Item = usize>) -> Result<(), String> {
    let failed = |error: io::Error| format!("fetching: {error}");
    let mut http = Http::connect(&target.web).map_err(failed)?;
    for index in files {
        let response = http.get(&format!("/{index}.bin"), &[]).map_err(failed)?;
        if response.status != 200 || response.body != content(index) {
            return Err(format!("file {index}: status {}, {} bytes", response.status, response.body.len()));
        }
    }
    Ok(())
}

fn every_byte(target: &Target) -> Outcome {
    thread::scope(|scope| {
        let fetchers: Vec<_> =
            (0..FETCHERS).map(|first| scope.spawn(move || fetch(target, (first..FILES).step_by(FETCHERS)))).collect();
        fetchers.into_iter().try_for_each(|fetcher| fetcher.join().expect("a fetcher does not panic"))
    })?;
    Ok(())
}

/// Parts that begin and end anywhere, around the ends of chunks too, and several of them.
fn ranges(target: &Target) -> Outcome {
    let mut random = Random::new(1);
    let mut http = Http::connect(&target.web)?;
    for round in 0..60 {
        let index = random.below(FILES);
        let whole = content(index);
        let from = match round % 2 {
            0 => random.below(whole.len()),
            _ => CHUNK_BYTES * random.below(whole.len() / CHUNK_BYTES) + random.below(3),
        };
        let to = from + random.below((whole.len() - from).min(200_000));
        let response = http.get(&format!("/{index}.bin"), &[("Range", &format!("bytes={from}-{to}"))])?;
        if response.status != 206 || response.body != whole[from..=to] {
            return Err(format!("file {index}, bytes {from}-{to}: status {}", response.status).into());
        }
    }
    let whole = content(7);
    let response = http.get("/7.bin", &[("Range", "bytes=0-9,500000-599999,-1000")])?;
    let parts: [&[u8]; 3] = [&whole[..10], &whole[500_000..600_000], &whole[whole.len() - 1000..]];
    let contains = |part: &&[u8]| response.body.windows(part.len()).any(|window| window == *part);
    if response.status != 206 || !parts.iter().all(contains) {
        return Err(format!("three parts: status {}", response.status).into());
    }
    Ok(())
}

/// What the server takes without its connections' buffers, which a guest has itself and the kernel for the process.
fn bytes_beside_sockets(http: &mut Http) -> Result<u64, Box<dyn Error>> {
    let metrics = metrics(http)?;
    let buffers = metric(&metrics, "kayvee_network_buffer_bytes").unwrap_or(0);
    Ok(metric(&metrics, "kayvee_memory_used_bytes")?.saturating_sub(buffers))
}

/// Clients that take nothing hold no memory for what they have asked for, and others are served.
fn idle_readers(target: &Target) -> Outcome {
    // What the server keeps of the site has its memory by now, or gets it here.
    fetch(target, 0..FILES / 4)?;
    let mut http = Http::connect(&target.web)?;
    let before = bytes_beside_sockets(&mut http)?;
    let mut idlers = Vec::with_capacity(IDLERS);
    for index in 0..IDLERS {
        let mut http = Http::connect(&target.web)?;
        http.send(format!("GET /{}.bin HTTP/1.1\r\nHost: h\r\n\r\n", index % FILES).as_bytes())?;
        idlers.push(http);
    }
    let began = Instant::now();
    fetch(target, 0..8)?;
    if http.get("/small.txt", &[])?.body != b"small" {
        return Err("another body".into());
    }
    let (took, grown) = (began.elapsed(), bytes_beside_sockets(&mut http)?.saturating_sub(before));
    if took > PATIENCE || grown > IDLERS_BYTES {
        return Err(format!("{IDLERS} clients that take nothing: {grown} bytes, others waited {took:?}").into());
    }
    // One of them wakes up and gets all of its file.
    let mut late = idlers.swap_remove(5);
    let body = late.response().map(|response| response.body);
    match body {
        Ok(body) if body == content(5) => Ok(()),
        Ok(_) => Err("a late reader has got other bytes".into()),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Err("a late reader gets nothing".into()),
        Err(error) => Err(error.into()),
    }
}
