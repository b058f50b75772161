//! Append-only files of Redis: requests one behind the other, and the folders that Redis 7 keeps them in.
//!
//! ```text
//! manifest = line …       file NAME seq NUMBER type b|i|h       b: the base, i: what came since, h: of no more use
//! file     = [dump file] (request | "#" text CR LF) …
//! ```

use super::{
    input::Input,
    load::{Expired, Loaded, Progress, text_of},
};
use crate::{Error, ShowsExpired, Store, args, durable::Replayed, table::ByName, transactions::for_each_request};
use alloc::{format, string::String, vec::Vec};
use kayvee_rdb::file::is_dump;
use kayvee_resp::{Limits, Parser, Progress as Parsed, Request, split_words};

/// A longer manifest names more files than anybody has.
const MANIFEST_LIMIT_BYTES: u64 = 1 << 20;
/// Requests that fail and are told of one by one.
const FAILURES_TOLD: u64 = 10;
/// A longer line is no note.
const NOTE_LIMIT_BYTES: usize = 1024;

/// What becomes of a last request that is not whole, as a crash leaves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutOff {
    /// It is left out: `aof-load-truncated yes`.
    LeaveOut,
    /// It is an error, as anywhere but at the end of the last file.
    Refuse,
}

/// The files that a manifest names, in the order in which they are loaded.
#[derive(Debug, Default, PartialEq, Eq)]
struct Manifest {
    base: Option<String>,
    increments: Vec<String>,
}

impl Manifest {
    fn parse(text: &[u8]) -> Result<Manifest, String> {
        let mut manifest = Manifest::default();
        let mut last_number = 0;
        let mut lines = 0;
        for (at, line) in text.split(|b| *b == b'\n').enumerate() {
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            lines += 1;
            let (name, number, kind) = file_of(line).ok_or_else(|| format!("line {} names no file", at + 1))?;
            match &*kind {
                b"b" if manifest.base.is_some() => return Err(format!("line {} names a second base", at + 1)),
                b"b" => manifest.base = Some(name),
                b"i" if number <= last_number => {
                    return Err(format!("line {} has a number that is not above the one before", at + 1));
                }
                b"i" => {
                    manifest.increments.push(name);
                    last_number = number;
                }
                b"h" => {}
                _ => return Err(format!("line {} has an unknown type of file", at + 1)),
            }
        }
        if lines == 0 { Err("it is empty".into()) } else { Ok(manifest) }
    }
}

/// The name, number and type in a line of a manifest.
fn file_of(line: &[u8]) -> Option<(String, u64, Vec<u8>)> {
    let words = split_words(line).ok().filter(|words| words.len().is_multiple_of(2))?;
    let value = |key: &str| words.chunks(2).find(|pair| args::is(&pair[0], key)).map(|pair| &pair[1][..]);
    let name = core::str::from_utf8(value("file")?).ok().filter(|name| !name.is_empty() && !name.contains('/'))?;
    let number = core::str::from_utf8(value("seq")?).ok()?.parse().ok().filter(|number| *number > 0)?;
    Some((name.into(), number, value("type")?.to_vec()))
}

/// Requests on their way from a file into the store.
struct Replay<'s> {
    store: &'s mut Store,
    names: ByName,
    db: usize,
    /// Where a transaction began that has not ended, and its requests so far.
    transaction: Option<(u64, Vec<u8>)>,
    reply: Vec<u8>,
    loaded: Loaded,
}

impl Store {
    /// Loads the files that a manifest in `dir` names.
    pub fn load_aof_dir(
        &mut self,
        dir: &str,
        manifest: &str,
        cut_off: CutOff,
        progress: &mut dyn FnMut(&str, Progress),
    ) -> Result<Loaded, String> {
        let path = format!("{dir}/{manifest}");
        let Manifest { base, increments } =
            Manifest::parse(&self.read_manifest(&path)?).map_err(|why| format!("{path}: {why}"))?;
        let files: Vec<String> = base.into_iter().chain(increments).collect();
        let mut total = Loaded::default();
        for (at, name) in files.iter().enumerate() {
            let is_last = at + 1 == files.len();
            let cut_off = if is_last { cut_off } else { CutOff::Refuse };
            total += self.load_aof(&format!("{dir}/{name}"), cut_off, progress)?;
        }
        Ok(total)
    }

    fn read_manifest(&self, path: &str) -> Result<Vec<u8>, String> {
        let named = |why: String| format!("{path}: {why}");
        let file = self.environment.host.open_file(path).map_err(named)?;
        let mut file = file.ok_or_else(|| named("there is no such file".into()))?;
        let mut input = Input::new(&mut *file);
        let len = input.size_bytes();
        if len > MANIFEST_LIMIT_BYTES {
            return Err(named("it is too long for a manifest".into()));
        }
        input.fill(len).map_err(named)?;
        Ok(input.bytes().to_vec())
    }

    /// Loads a dump file or an append-only file, or one that is first the one and then the other.
    pub fn load_aof(
        &mut self,
        path: &str,
        cut_off: CutOff,
        progress: &mut dyn FnMut(&str, Progress),
    ) -> Result<Loaded, String> {
        let named = |why: String| format!("{path}: {why}");
        let file = self.environment.host.open_file(path).map_err(named)?;
        let mut file = file.ok_or_else(|| named("there is no such file".into()))?;
        let mut input = Input::new(&mut *file);
        let mut progress = |so_far: Progress| progress(path, so_far);
        input.fill(1).map_err(named)?;
        let mut loaded = Loaded::default();
        if is_dump(input.bytes()) {
            (loaded, _) = self.load_dump(&mut input, Expired::Keep, &mut progress).map_err(named)?;
        }
        // What was there when a request ran was there although its time may have come since: nothing expires here.
        self.show_expired(ShowsExpired::Yes);
        let result = self.load_requests(&mut input, cut_off, &mut progress);
        self.show_expired(ShowsExpired::No);
        loaded += result.map_err(named)?;
        Ok(loaded)
    }

    fn load_requests(
        &mut self,
        input: &mut Input<'_>,
        cut_off: CutOff,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Loaded, String> {
        let mut replay = Replay {
            store: self,
            names: ByName::default(),
            db: 0,
            transaction: None,
            reply: Vec::new(),
            loaded: Loaded::default(),
        };
        let mut parser = Parser::new();
        loop {
            let at = input.offset();
            let faulty = |why: &dyn core::fmt::Display| format!("at byte {at}: {why}");
            let bytes = input.bytes();
            let needed = match bytes.first() {
                Some(b'*') => match parser
                    .parse(bytes, Limits::PASSED)
                    .map_err(|error| faulty(&String::from_utf8_lossy(&error.message())))?
                {
                    Parsed::Complete(len) => {
                        replay.take(at, parser.request(bytes)).map_err(|why| faulty(&why))?;
                        parser.reset();
                        input.consume(len);
                        progress(Progress { bytes: input.offset(), of_bytes: input.size_bytes() });
                        continue;
                    }
                    Parsed::Partial { at_least } => at_least.max(bytes.len() + 1),
                },
                // A note, such as the time.
                Some(b'#') => match bytes.iter().position(|b| *b == b'\n') {
                    Some(end) => {
                        input.consume(end + 1);
                        continue;
                    }
                    None if bytes.len() > NOTE_LIMIT_BYTES => return Err(faulty(&"a note does not end")),
                    None => bytes.len() + 1,
                },
                Some(other) => {
                    return Err(faulty(&format!("expected a request, got '{}'", [*other].escape_ascii())));
                }
                None => 1,
            };
            if !input.fill(needed as u64).map_err(|why| faulty(&why))? {
                return replay.end(input.offset(), input.size_bytes(), cut_off);
            }
        }
    }
}

impl Replay<'_> {
    fn take(&mut self, at: u64, request: Request<'_>) -> Result<(), String> {
        if request.is_empty() {
            return Err("a request without a word".into());
        }
        let is = |name: &str| args::is(&request[0], name);
        match &mut self.transaction {
            None if is("multi") => self.transaction = Some((at, Vec::new())),
            None if is("exec") => return Err("EXEC without MULTI".into()),
            None => self.run(request)?,
            Some(_) if is("multi") => return Err("MULTI within MULTI".into()),
            Some((_, requests)) if is("exec") => {
                let requests = core::mem::take(requests);
                self.transaction = None;
                let mut result = Ok(());
                for_each_request(&requests, |request| {
                    if result.is_ok() {
                        result = self.run(request);
                    }
                });
                result?;
            }
            Some((_, requests)) => request.encode(requests).map_err(|_| text_of(Error::OUT_OF_MEMORY))?,
        }
        Ok(())
    }

    fn run(&mut self, request: Request<'_>) -> Result<(), String> {
        if args::is(&request[0], "select") {
            let number = request.get(1).and_then(|number| core::str::from_utf8(number).ok()?.parse().ok());
            self.db = number.filter(|number| *number < self.store.dbs.len()).ok_or_else(|| {
                let count = self.store.dbs.len();
                format!("the file has more than {count} databases; set 'databases' accordingly")
            })?;
            return Ok(());
        }
        self.loaded.requests += 1;
        match self.store.replay_request(&self.names, self.db, request, &mut self.reply) {
            Err(Replayed::Unknown) => Err(format!("unknown command '{}'", request[0].escape_ascii())),
            Err(Replayed::Failed(error)) if error == Error::OUT_OF_MEMORY => Err(text_of(error)),
            Err(Replayed::Failed(error)) => {
                self.loaded.failed_requests += 1;
                if self.loaded.failed_requests <= FAILURES_TOLD {
                    log::warn!("a {} of the file fails: {}", request[0].escape_ascii(), error.0.escape_ascii());
                }
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Ends a file of `size_bytes` whose whole requests end at `offset`.
    fn end(mut self, offset: u64, size_bytes: u64, cut_off: CutOff) -> Result<Loaded, String> {
        // Of a transaction that has not ended nothing has happened.
        let end = self.transaction.take().map_or(offset, |(start, _)| start);
        let cut_bytes = size_bytes.saturating_sub(end);
        if cut_bytes > 0 && cut_off == CutOff::Refuse {
            return Err(format!("at byte {end}: the file ends within a request or transaction"));
        }
        self.store.end_replay();
        Ok(Loaded { cut_bytes, ..self.loaded })
    }
}

impl core::ops::AddAssign for Loaded {
    fn add_assign(&mut self, other: Loaded) {
        self.keys += other.keys;
        self.expired_keys += other.expired_keys;
        self.empty_keys += other.empty_keys;
        self.functions += other.functions;
        self.requests += other.requests;
        self.failed_requests += other.failed_requests;
        self.cut_bytes += other.cut_bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn manifests_name_files_in_order() {
        let text = b"file \"a b.1.base.rdb\" seq 1 type b\n# note\nfile x seq 3 type h\nfile c seq 1 type i\nfile d seq 4 type i startoffset 5\n";
        let manifest = Manifest::parse(text).unwrap();
        assert_eq!(manifest.base.as_deref(), Some("a b.1.base.rdb"));
        assert_eq!(manifest.increments, ["c", "d"].map(|name| name.to_string()));
        for (text, why) in [
            ("", "it is empty"),
            ("file a seq 1", "line 1 names no file"),
            ("file a seq 1 type", "line 1 names no file"),
            ("file ../a seq 1 type b", "line 1 names no file"),
            ("file a seq 0 type b", "line 1 names no file"),
            ("file a seq 1 type x", "line 1 has an unknown type of file"),
            ("file a seq 1 type b\nfile b seq 2 type b", "line 2 names a second base"),
            ("file a seq 2 type i\nfile b seq 2 type i", "line 2 has a number that is not above the one before"),
        ] {
            assert_eq!(Manifest::parse(text.as_bytes()), Err(why.to_string()), "{text}");
        }
    }
}
