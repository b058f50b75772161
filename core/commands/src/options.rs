//! The store's options under redis.conf's names: one table for arguments, `CONFIG GET` and `CONFIG SET`.

use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};

/// The highest `maxclients` that can be asked for.
pub const MAX_CLIENTS_LIMIT: u32 = 1_000_000;

/// The longest password, as in Redis before it had users.
const PASSWORD_LIMIT_BYTES: usize = 512;

/// What happens when memory is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxmemoryPolicy {
    /// Commands that may use more memory are refused.
    NoEviction,
}

/// Which severity a log line needs to be written, in Redis' four steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// Everything.
    Debug,
    /// Much that is rarely useful.
    Verbose,
    /// What an operator wants to know.
    Notice,
    /// Only what is wrong.
    Warning,
}

impl LogLevel {
    /// The facade's filter for this level.
    pub fn filter(self) -> log::LevelFilter {
        match self {
            LogLevel::Debug => log::LevelFilter::Trace,
            LogLevel::Verbose => log::LevelFilter::Debug,
            LogLevel::Notice => log::LevelFilter::Info,
            LogLevel::Warning => log::LevelFilter::Warn,
        }
    }
}

/// Who may use `DEBUG`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DebugCommand {
    /// Nobody.
    No,
    /// Everybody.
    Yes,
    /// Clients on the loopback interface.
    Local,
}

/// When a client whose replies pile up is disconnected. Zero means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputLimit {
    /// Bytes at which it is disconnected at once.
    pub hard_bytes: u64,
    /// Bytes that it may exceed for [`soft_seconds`](Self::soft_seconds).
    pub soft_bytes: u64,
    /// How long, in seconds.
    pub soft_seconds: u64,
}

/// A limit on the memory that clients' buffers take together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientsMemory {
    /// None.
    Unlimited,
    /// This many bytes.
    Bytes(u64),
    /// This share of `maxmemory`, in percent.
    Percent(u8),
}

/// All options, with redis.conf's meanings and units.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// TCP port.
    pub port: u16,
    /// Addresses to listen on (Linux target only).
    pub bind: Vec<String>,
    /// Length of the queue of connections not yet accepted.
    pub tcp_backlog: u32,
    /// Seconds between keepalive probes; 0 for none.
    pub tcp_keepalive: u32,
    /// Seconds after which an idle client is disconnected; 0 for never.
    pub timeout: u32,
    /// Most clients at a time.
    pub maxclients: u32,
    /// Number of databases.
    pub databases: u16,
    /// Bytes of memory for the data set and all buffers; 0 for no limit but the platform's.
    pub maxmemory: u64,
    /// What happens at that limit.
    pub maxmemory_policy: MaxmemoryPolicy,
    /// Limit on all clients' buffers together.
    pub maxmemory_clients: ClientsMemory,
    /// The default user's password; empty for none.
    pub requirepass: Vec<u8>,
    /// Longest argument in bytes.
    pub proto_max_bulk_len: u64,
    /// Most bytes of one client's unparsed requests.
    pub client_query_buffer_limit: u64,
    /// Limits on one client's unsent replies: normal clients, replicas, subscribers.
    pub client_output_buffer_limit: [OutputLimit; 3],
    /// Background turns a second.
    pub hz: u32,
    /// How hard active expiry works, 1 to 10.
    pub active_expire_effort: u8,
    /// Log level.
    pub loglevel: LogLevel,
    /// Who may use `DEBUG`.
    pub enable_debug_command: DebugCommand,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            port: 6379,
            bind: Vec::from(["127.0.0.1".to_string(), "-::1".to_string()]),
            tcp_backlog: 511,
            tcp_keepalive: 300,
            timeout: 0,
            maxclients: 10_000,
            databases: 16,
            maxmemory: 0,
            maxmemory_policy: MaxmemoryPolicy::NoEviction,
            maxmemory_clients: ClientsMemory::Unlimited,
            requirepass: Vec::new(),
            proto_max_bulk_len: 512 << 20,
            client_query_buffer_limit: 1 << 30,
            client_output_buffer_limit: [
                OutputLimit::default(),
                OutputLimit { hard_bytes: 256 << 20, soft_bytes: 64 << 20, soft_seconds: 60 },
                OutputLimit { hard_bytes: 32 << 20, soft_bytes: 8 << 20, soft_seconds: 60 },
            ],
            hz: 10,
            active_expire_effort: 1,
            loglevel: LogLevel::Notice,
            enable_debug_command: DebugCommand::No,
        }
    }
}

/// Why an option was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionError {
    /// The option's name as given, or the stray word.
    pub name: String,
    /// What is wrong with it, in words for the user.
    pub reason: String,
}

impl core::fmt::Display for OptionError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "option '{}': {}", self.name, self.reason)
    }
}

impl core::error::Error for OptionError {}

/// When an option may be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutability {
    /// At start only.
    AtStart,
    /// By `CONFIG SET` as well.
    Always,
}

/// One option.
pub struct OptionSpec {
    /// Its name in redis.conf.
    pub name: &'static str,
    /// When it may be given.
    pub mutability: Mutability,
    /// Its value as `CONFIG GET` shows it.
    pub get: fn(&Options) -> Vec<u8>,
    /// Takes a new value, or says what is wrong with it and changes nothing.
    pub set: fn(&mut Options, &[u8]) -> Result<(), String>,
}

const NOT_YET: &str = "Kayvee does not persist data yet";

macro_rules! number {
    ($name:literal, $mutability:ident, $field:ident, $range:expr) => {
        OptionSpec {
            name: $name,
            mutability: Mutability::$mutability,
            get: |o| o.$field.to_string().into_bytes(),
            set: |o, v| {
                o.$field = integer_in(v, $range)? as _;
                Ok(())
            },
        }
    };
}

macro_rules! bytes {
    ($name:literal, $field:ident, $range:expr) => {
        OptionSpec {
            name: $name,
            mutability: Mutability::Always,
            get: |o| o.$field.to_string().into_bytes(),
            set: |o, v| {
                let bytes = parse_memory(v).ok_or_else(|| "argument must be a memory value".to_string())?;
                o.$field = in_range(bytes, $range)?;
                Ok(())
            },
        }
    };
}

macro_rules! choice {
    ($name:literal, $mutability:ident, $field:ident, $($word:literal => $value:expr),+) => {
        OptionSpec {
            name: $name,
            mutability: Mutability::$mutability,
            get: |o| {
                $(if o.$field == $value { return $word.as_bytes().to_vec(); })+
                Vec::new()
            },
            set: |o, v| {
                $(if v.eq_ignore_ascii_case($word.as_bytes()) { o.$field = $value; return Ok(()); })+
                Err(format!("argument(s) must be one of the following: {}", [$($word),+].join(", ")))
            },
        }
    };
}

/// An option that has one possible value for now, because the capability behind it is not there.
macro_rules! fixed {
    ($name:literal, $value:literal, $why:expr) => {
        OptionSpec {
            name: $name,
            mutability: Mutability::Always,
            get: |_| $value.as_bytes().to_vec(),
            set: |_, v| if v.eq_ignore_ascii_case($value.as_bytes()) { Ok(()) } else { Err($why.to_string()) },
        }
    };
}

/// Every option that has a meaning here.
pub static OPTIONS: &[OptionSpec] = &[
    number!("active-expire-effort", Always, active_expire_effort, 1..=10),
    fixed!("appendonly", "no", NOT_YET),
    OptionSpec {
        name: "bind",
        mutability: Mutability::AtStart,
        get: |o| o.bind.join(" ").into_bytes(),
        set: |o, v| {
            o.bind = text(v)?.split_ascii_whitespace().map(String::from).collect();
            Ok(())
        },
    },
    OptionSpec {
        name: "client-output-buffer-limit",
        mutability: Mutability::Always,
        get: |o| {
            let classes = ["normal", "slave", "pubsub"].iter().zip(&o.client_output_buffer_limit);
            let words: Vec<String> = classes
                .map(|(class, l)| format!("{class} {} {} {}", l.hard_bytes, l.soft_bytes, l.soft_seconds))
                .collect();
            words.join(" ").into_bytes()
        },
        set: set_output_limits,
    },
    bytes!("client-query-buffer-limit", client_query_buffer_limit, 1 << 20..=i64::MAX as u64),
    number!("databases", AtStart, databases, 1..=1024),
    choice!("enable-debug-command", AtStart, enable_debug_command,
        "no" => DebugCommand::No, "yes" => DebugCommand::Yes, "local" => DebugCommand::Local),
    number!("hz", Always, hz, 1..=500),
    choice!("loglevel", Always, loglevel, "debug" => LogLevel::Debug, "verbose" => LogLevel::Verbose,
        "notice" => LogLevel::Notice, "warning" => LogLevel::Warning),
    number!("maxclients", Always, maxclients, 1..=MAX_CLIENTS_LIMIT as i64),
    bytes!("maxmemory", maxmemory, 0..=u64::MAX),
    OptionSpec {
        name: "maxmemory-clients",
        mutability: Mutability::Always,
        get: |o| match o.maxmemory_clients {
            ClientsMemory::Unlimited => b"0".to_vec(),
            ClientsMemory::Bytes(bytes) => bytes.to_string().into_bytes(),
            ClientsMemory::Percent(percent) => format!("{percent}%").into_bytes(),
        },
        set: set_clients_memory,
    },
    choice!("maxmemory-policy", Always, maxmemory_policy, "noeviction" => MaxmemoryPolicy::NoEviction),
    number!("port", AtStart, port, 1..=65535),
    bytes!("proto-max-bulk-len", proto_max_bulk_len, 1 << 20..=512 << 20),
    OptionSpec {
        name: "requirepass",
        mutability: Mutability::Always,
        get: |o| o.requirepass.clone(),
        set: |o, v| {
            if v.len() > PASSWORD_LIMIT_BYTES {
                return Err(format!("a password has at most {PASSWORD_LIMIT_BYTES} bytes"));
            }
            o.requirepass = v.to_vec();
            Ok(())
        },
    },
    fixed!("save", "", NOT_YET),
    number!("tcp-backlog", AtStart, tcp_backlog, 1..=65535),
    number!("tcp-keepalive", Always, tcp_keepalive, 0..=i32::MAX as i64),
    number!("timeout", Always, timeout, 0..=i32::MAX as i64),
];

impl OptionSpec {
    /// Finds an option by name, in any case.
    pub fn find(name: &[u8]) -> Option<&'static OptionSpec> {
        OPTIONS.iter().find(|spec| spec.name.as_bytes().eq_ignore_ascii_case(name))
    }
}

impl Options {
    /// Reads `--name value …` words, the form that redis-server takes. Values run up to the next word that starts
    /// with `--` and are joined by spaces.
    pub fn from_args<'a>(words: impl IntoIterator<Item = &'a [u8]>) -> Result<Options, OptionError> {
        let mut options = Options::default();
        let mut words = words.into_iter().peekable();
        while let Some(word) = words.next() {
            let shown = String::from_utf8_lossy(word).into_owned();
            let Some(name) = word.strip_prefix(b"--").filter(|name| !name.is_empty()) else {
                return Err(OptionError {
                    name: shown,
                    reason: "expected --NAME VALUE, with redis.conf's names".into(),
                });
            };
            let mut value = Vec::new();
            let mut values = 0;
            while let Some(next) = words.next_if(|next| !next.starts_with(b"--")) {
                if values > 0 {
                    value.push(b' ');
                }
                value.extend_from_slice(next);
                values += 1;
            }
            let Some(spec) = OptionSpec::find(name) else {
                return Err(OptionError { name: shown, reason: "unknown option".into() });
            };
            if values == 0 {
                return Err(OptionError { name: shown, reason: "a value is missing".into() });
            }
            (spec.set)(&mut options, &value).map_err(|reason| OptionError { name: shown, reason })?;
        }
        Ok(options)
    }
}

fn text(value: &[u8]) -> Result<&str, String> {
    core::str::from_utf8(value).map_err(|_| "not valid UTF-8".to_string())
}

fn in_range<T: PartialOrd + core::fmt::Display + Copy>(
    value: T,
    range: core::ops::RangeInclusive<T>,
) -> Result<T, String> {
    if range.contains(&value) {
        Ok(value)
    } else {
        Err(format!("argument must be between {} and {} inclusive", range.start(), range.end()))
    }
}

fn integer_in(value: &[u8], range: core::ops::RangeInclusive<i64>) -> Result<i64, String> {
    let number = text(value)?.parse().map_err(|_| "argument couldn't be parsed into an integer".to_string())?;
    in_range(number, range)
}

/// Reads `100`, `100mb`, `1G` …; an empty value is zero: `k m g` are powers of 1,000 and `kb mb gb` powers of 1,024, in any case.
pub fn parse_memory(value: &[u8]) -> Option<u64> {
    if value.is_empty() {
        return Some(0);
    }
    let digits = value.iter().take_while(|b| b.is_ascii_digit()).count();
    let (number, unit) = value.split_at(digits);
    const FACTORS: [(&str, u64); 8] = [
        ("", 1),
        ("b", 1),
        ("k", 1000),
        ("kb", 1 << 10),
        ("m", 1000 * 1000),
        ("mb", 1 << 20),
        ("g", 1000 * 1000 * 1000),
        ("gb", 1 << 30),
    ];
    let (_, factor) = FACTORS.into_iter().find(|(name, _)| unit.eq_ignore_ascii_case(name.as_bytes()))?;
    core::str::from_utf8(number).ok()?.parse::<u64>().ok()?.checked_mul(factor)
}

fn set_clients_memory(options: &mut Options, value: &[u8]) -> Result<(), String> {
    options.maxmemory_clients = match value.strip_suffix(b"%") {
        Some(percent) => {
            let percent = integer_in(percent, 0..=i64::MAX)?;
            if percent > 100 {
                return Err("percentage argument must be less or equal to 100".to_string());
            }
            if percent == 0 { ClientsMemory::Unlimited } else { ClientsMemory::Percent(percent as u8) }
        }
        None => match parse_memory(value) {
            Some(0) => ClientsMemory::Unlimited,
            Some(bytes) => ClientsMemory::Bytes(bytes),
            None => return Err("argument must be a memory or percent value".to_string()),
        },
    };
    Ok(())
}

fn set_output_limits(options: &mut Options, value: &[u8]) -> Result<(), String> {
    const CLASSES: [(&str, usize); 4] = [("normal", 0), ("slave", 1), ("replica", 1), ("pubsub", 2)];
    let value = text(value)?;
    if !value.split_ascii_whitespace().count().is_multiple_of(4) {
        return Err("Wrong number of arguments in buffer limit configuration.".to_string());
    }
    let mut limits = options.client_output_buffer_limit;
    let mut words = value.split_ascii_whitespace();
    while let (Some(class), Some(hard), Some(soft), Some(seconds)) =
        (words.next(), words.next(), words.next(), words.next())
    {
        let Some(&(_, class)) = CLASSES.iter().find(|(name, _)| class.eq_ignore_ascii_case(name)) else {
            return Err("Invalid client class specified in buffer limit configuration.".to_string());
        };
        let wrong = || "Error in hard, soft or soft_seconds setting in buffer limit configuration.".to_string();
        limits[class] = OutputLimit {
            hard_bytes: parse_memory(hard.as_bytes()).ok_or_else(wrong)?,
            soft_bytes: parse_memory(soft.as_bytes()).ok_or_else(wrong)?,
            soft_seconds: seconds.parse().map_err(|_| wrong())?,
        };
    }
    options.client_output_buffer_limit = limits;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Options, OptionError> {
        Options::from_args(words.iter().map(|w| w.as_bytes()))
    }

    #[test]
    fn reads_redis_arguments() {
        let options =
            parse(&["--maxmemory", "100mb", "--PORT", "7000", "--bind", "127.0.0.1", "::1", "--save", ""]).unwrap();
        assert_eq!((options.maxmemory, options.port), (100 << 20, 7000));
        assert_eq!(options.bind, ["127.0.0.1", "::1"]);
    }

    #[test]
    fn refuses_unknown_and_malformed_options() {
        for words in [
            &["--nonsense", "1"][..],
            &["--port"],
            &["--port", "99999"],
            &["--port", "0"],
            &["port", "1"],
            &["--maxmemory", "12x"],
            &["--maxmemory", "99999999999gb"],
            &["--appendonly", "yes"],
            &["--client-output-buffer-limit", "normal", "1"],
            &["--"],
        ] {
            assert!(parse(words).is_err(), "{words:?}");
        }
    }

    #[test]
    fn every_default_reads_back() {
        for spec in OPTIONS {
            let mut options = Options::default();
            let shown = (spec.get)(&options);
            (spec.set)(&mut options, &shown).unwrap_or_else(|e| panic!("{}: {e}", spec.name));
            assert_eq!(options, Options::default(), "{}", spec.name);
        }
    }

    #[test]
    fn names_are_sorted() {
        assert!(OPTIONS.windows(2).all(|pair| pair[0].name < pair[1].name));
    }
}
