//! The process' arguments and its configuration file: redis.conf's names, as redis-server takes them.

use crate::bypass::Network;
use kayvee_commands::options::{OPTIONS, arguments_text};
use kayvee_files::plain;
use kayvee_server::{Options, REDIS_SAVE_POINTS};
use kayvee_xdp_socket::Attachment;
use std::{
    ffi::OsString,
    fmt::Write,
    fs,
    io::{self, ErrorKind, Read},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// A store that is to serve.
pub struct Run {
    /// Its options.
    pub options: Box<Options>,
    /// The file that they came from.
    pub config_file: Option<String>,
    /// The network of its own, if it is to have one.
    pub network: Option<Network>,
}

/// What the arguments ask for.
pub enum Invocation {
    /// To serve.
    Run(Run),
    /// To print a text and end.
    Print(String),
}

/// Reads the arguments behind the program's name: a configuration file, then `-` for one on the standard input, then
/// options. What comes later counts. The error is for the user, in redis-server's form.
pub fn parse(words: impl Iterator<Item = OsString>) -> Result<Invocation, String> {
    let mut words: Vec<OsString> = words.collect();
    let network = take_network(&mut words)?;
    match words.first().and_then(|word| word.to_str()) {
        Some("--help" | "-h") => return Ok(Invocation::Print(help())),
        Some("--version" | "-v") => return Ok(Invocation::Print(format!("Kayvee {}\n", env!("CARGO_PKG_VERSION")))),
        _ => {}
    }
    let mut rest = words.as_slice();
    let mut text = Vec::new();
    let mut config_file = None;
    if let Some((file, others)) = words.split_first().filter(|(word, _)| !word.as_bytes().starts_with(b"-")) {
        text = read(Path::new(file)).map_err(|why| format!("Fatal error, can't open config file {why}"))?;
        let path = std::path::absolute(file).unwrap_or_else(|_| PathBuf::from(file));
        (config_file, rest) = (Some(path.display().to_string()), others);
    }
    let (inputs, options): (Vec<_>, Vec<_>) = rest.iter().map(|word| word.as_bytes()).partition(|word| word == b"-");
    if !inputs.is_empty() {
        text.push(b'\n');
        let read = io::stdin().lock().read_to_end(&mut text);
        read.map_err(|error| format!("reading the configuration from the standard input: {error}"))?;
    }
    text.push(b'\n');
    text.extend(arguments_text(options));
    let mut options = defaults();
    options.load(&text, &|path| include(path)).map_err(|error| {
        let head = format!("*** FATAL CONFIG FILE ERROR (Kayvee {}) ***", env!("CARGO_PKG_VERSION"));
        let line = format!("Reading the configuration file, at line {}\n>>> '{}'", error.line, error.text);
        format!("\n{head}\n{line}\n{}", error.reason)
    })?;
    Ok(Invocation::Run(Run { options: Box::new(options), config_file, network }))
}

/// Takes the arguments out that are no options of redis.conf's: `--net` and `--pcap`.
fn take_network(words: &mut Vec<OsString>) -> Result<Option<Network>, String> {
    let mut take = |name: &str| -> Result<Option<String>, String> {
        let Some(at) = words.iter().position(|word| word == name) else { return Ok(None) };
        if at + 1 >= words.len() {
            return Err(format!("{name} needs a value"));
        }
        let value = words.drain(at..at + 2).nth(1).and_then(|value| value.into_string().ok());
        value.map(Some).ok_or_else(|| format!("the value of {name} is not UTF-8"))
    };
    let (net, record) = (take("--net")?, take("--pcap")?);
    match net {
        Some(net) => {
            let attachment = Attachment::parse(&net).map_err(|error| format!("--net: {error}"))?;
            Ok(Some(Network { attachment, record }))
        }
        None if record.is_some() => Err("--pcap records the frames of --net: give that, too".into()),
        None => Ok(None),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("'{}': {}", path.display(), plain(&error)))
}

/// Reads an included file, or all that a pattern in the name's last part stands for, in the order of their names. A
/// pattern may stand for none, also where there is no such folder.
fn include(path: &str) -> Result<Vec<u8>, String> {
    let path = Path::new(path);
    let name = path.file_name().unwrap_or_default().as_bytes();
    if !name.iter().any(|b| b"*?[".contains(b)) {
        return read(path);
    }
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let entries = match fs::read_dir(dir) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(Vec::new()),
        entries => entries.map_err(|error| format!("'{}': {}", dir.display(), plain(&error)))?,
    };
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|file| {
            let candidate = file.file_name().unwrap_or_default().as_bytes();
            // As in a shell: a name that starts with a dot is meant only where the pattern says so.
            candidate.starts_with(b".") == name.starts_with(b".") && kayvee_commands::glob_matches(name, candidate)
        })
        .collect();
    files.sort();
    let mut text = Vec::new();
    for file in files {
        text.extend(read(&file)?);
        text.push(b'\n');
    }
    Ok(text)
}

/// What holds without a configuration: that of redis-server, which saves its data by itself.
fn defaults() -> Options {
    Options { save: REDIS_SAVE_POINTS.into(), ..Options::default() }
}

fn help() -> String {
    let mut text = String::from(
        "Kayvee, a Redis-compatible store, as a Linux process.\n\n\
         Usage: kayvee server [FILE] [-] [--OPTION VALUE...]...\n\n\
         FILE is a redis.conf, - reads one from the standard input. The options have redis.conf's names and meanings;\n\
         these are their defaults:\n",
    );
    let defaults = defaults();
    for option in OPTIONS {
        let value = String::from_utf8_lossy(&option.get(&defaults)).into_owned();
        let value = if value.is_empty() { "\"\"" } else { &value };
        // Writing to a string does not fail.
        let _ = writeln!(text, "  --{} {value}", option.name);
    }
    text.push_str(
        "\n--disk FILE[:SIZE] names the file or block device that keeps the data; `appendonly yes` without it uses\n\
         kayvee.disk in `dir`. A new file is made with SIZE bytes (or K, M, G, T: 4G); without SIZE it can become 16G and\n\
         takes what it needs. A larger SIZE makes it larger.\n",
    );
    // Writing to a string does not fail.
    let _ = write!(
        text,
        "\n--net NETWORK gives the store an address and a TCP/IP stack of its own, past the kernel's. NETWORK is\n{}.\n\
         --pcap FILE records its frames, for tcpdump and Wireshark.\n",
        kayvee_xdp_socket::USAGE
    );
    text.push_str(
        "\nCtrl-C or SIGTERM ends it once replicas have what was written and data are saved, with status 0; Ctrl-C again ends it\n\
         at once, with status 1.\n",
    );
    text.push_str("\n  -h, --help     Print this text\n  -v, --version  Print the version\n");
    text
}
