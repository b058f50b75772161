//! The store's options under redis.conf's names: one table for arguments, configuration files, `CONFIG GET` and
//! `CONFIG SET`.
//!
//! An option has a field here if something depends on it. Names of redis.conf that govern what is not there, such as the
//! parameters of replication, are [kept](Options::kept): checked, shown and written back, so that an existing
//! configuration file can be used. What would promise something that is not kept, such as `cluster-enabled yes` without shards, is refused.

mod rewrite;
mod table;
mod text;
mod value;

pub use rewrite::rewritten;
pub use table::{OPTIONS, OptionSpec, Property};
pub use text::{LoadError, NO_TLS, arguments_text, is_of_tls};
pub use value::parse_memory;

use crate::{EventClass, client::ClientType};

use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};
use kayvee_keyspace::{PackedLimits, SetLimits};

/// The most databases that a store has, whatever it is told.
pub(crate) const DATABASES_MAX: u32 = 1024;
/// The longest string that any store takes, whatever it is told.
pub const PROTO_MAX_BULK_LEN_MAX: u64 = 512 << 20;

/// What happens when memory is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxmemoryPolicy {
    /// Of the keys that expire, the one that was not used for longest makes way.
    VolatileLru,
    /// Of the keys that expire, the one that is used least often.
    VolatileLfu,
    /// Any key that expires.
    VolatileRandom,
    /// The key that expires first.
    VolatileTtl,
    /// The key that was not used for longest.
    AllkeysLru,
    /// The key that is used least often.
    AllkeysLfu,
    /// Any key.
    AllkeysRandom,
    /// Commands that may use more memory are refused.
    NoEviction,
}

impl MaxmemoryPolicy {
    /// Whether keys note how often they are used, instead of when.
    pub fn is_lfu(self) -> bool {
        matches!(self, MaxmemoryPolicy::AllkeysLfu | MaxmemoryPolicy::VolatileLfu)
    }

    /// Whether it goes by when or how often keys were used.
    pub fn measures_use(self) -> bool {
        self.is_lfu() || matches!(self, MaxmemoryPolicy::AllkeysLru | MaxmemoryPolicy::VolatileLru)
    }

    /// Its name in redis.conf.
    pub fn name(self) -> &'static str {
        table::POLICIES.iter().find(|(_, policy)| *policy == self).map_or("", |(name, _)| name)
    }
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

/// When what was appended to the log is brought to stable storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendFsync {
    /// Before anybody is told of it.
    Always,
    /// Once a second.
    EverySecond,
    /// When the medium likes to.
    No,
}

/// Who may do something that could harm: `DEBUG`, or changing protected options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// Nobody.
    No,
    /// Everybody.
    Yes,
    /// Clients on the loopback interface and on Unix sockets.
    Local,
}

impl Allowed {
    /// Whether a client is allowed to.
    pub fn permits(self, is_local: bool) -> bool {
        match self {
            Allowed::No => false,
            Allowed::Yes => true,
            Allowed::Local => is_local,
        }
    }
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

/// What a signal asks of the store, besides to end: `shutdown-on-sigint` and `shutdown-on-sigterm`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct ShutdownOn {
    pub save: bool,
    pub nosave: bool,
    pub now: bool,
    pub force: bool,
}

impl ShutdownOn {
    /// Adds what a word asks for. Returns whether that is known.
    #[inline(never)]
    pub(crate) fn add(&mut self, word: &[u8]) -> bool {
        let words = [
            ("save", &mut self.save),
            ("nosave", &mut self.nosave),
            ("now", &mut self.now),
            ("force", &mut self.force),
        ];
        let asked = words.into_iter().find(|(known, _)| word.eq_ignore_ascii_case(known.as_bytes()));
        asked.map(|(_, flag)| *flag = true).is_some()
    }
}

/// All options, with redis.conf's meanings and units.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct Options {
    /// TCP port; 0 for none.
    pub port: u16,
    /// Addresses to listen on (Linux target only).
    pub bind: Vec<String>,
    /// Path of a Unix socket to listen on and its permissions (Linux target only); empty and 0 for none.
    pub unixsocket: String,
    pub unixsocketperm: u32,
    /// Length of the queue of connections not yet accepted.
    pub tcp_backlog: u32,
    /// Seconds between keepalive probes; 0 for none.
    pub tcp_keepalive: u32,
    /// Seconds after which an idle client is disconnected; 0 for never.
    pub timeout: u32,
    /// Most clients at a time.
    pub maxclients: u32,
    /// Whether clients from elsewhere are refused while the default user needs no password.
    pub protected_mode: bool,
    /// Number of databases that is asked for.
    pub databases: u32,
    /// Bytes of memory for the data set and all buffers; 0 for no limit but the platform's.
    pub maxmemory: u64,
    /// What happens at that limit.
    pub maxmemory_policy: MaxmemoryPolicy,
    /// Keys that are looked at to find one to make way.
    pub maxmemory_samples: u32,
    /// How long a command may be kept waiting to make room, from 0 to 100.
    pub maxmemory_eviction_tenacity: u8,
    /// Limit on all clients' buffers together.
    pub maxmemory_clients: ClientsMemory,
    /// How fast counters of use grow, and how many minutes halve them.
    pub lfu_log_factor: u32,
    pub lfu_decay_time: u32,
    /// Whether freeing large values happens bit by bit.
    pub lazyfree_lazy_eviction: bool,
    pub lazyfree_lazy_expire: bool,
    pub lazyfree_lazy_server_del: bool,
    pub lazyfree_lazy_user_del: bool,
    pub lazyfree_lazy_user_flush: bool,
    /// Up to which sizes values are kept in their compact encodings.
    pub hash_max_listpack_entries: u64,
    pub hash_max_listpack_value: u64,
    pub list_max_listpack_size: i32,
    pub list_compress_depth: u32,
    pub set_max_intset_entries: u64,
    pub set_max_listpack_entries: u64,
    pub set_max_listpack_value: u64,
    pub zset_max_listpack_entries: u64,
    pub zset_max_listpack_value: u64,
    pub stream_node_max_bytes: u64,
    pub stream_node_max_entries: u64,
    pub hll_sparse_max_bytes: u64,
    /// Whether changes are appended to the log, and when they are brought to stable storage.
    pub appendonly: bool,
    pub appendfsync: AppendFsync,
    /// The log is compacted when it is longer by this many percent than after the last time, and has as many bytes.
    pub auto_aof_rewrite_percentage: u32,
    pub auto_aof_rewrite_min_size: u64,
    /// Events that are published.
    pub notify_keyspace_events: EventClass,
    /// Microseconds above which a command is kept in the slow log (negative: never), and how many are kept.
    pub slowlog_log_slower_than: i64,
    pub slowlog_max_len: u64,
    /// Milliseconds above which an event is kept by `LATENCY`; 0 for never.
    pub latency_monitor_threshold: u64,
    /// Whether the durations of all commands are kept, and which percentiles of them `INFO latencystats` shows.
    pub latency_tracking: bool,
    pub latency_tracking_info_percentiles: Vec<f64>,
    /// Milliseconds after which a script may be ended by others; 0 for never.
    pub busy_reply_threshold: u64,
    /// Keys that are remembered for client-side caching; 0 for no limit.
    pub tracking_table_max_keys: u64,
    /// Entries of the log of refused commands.
    pub acllog_max_len: u64,
    /// Whether new users may use all channels.
    pub acl_pubsub_default_all: bool,
    /// The file with all users (where there are files), or empty.
    pub aclfile: String,
    /// Users' definitions by `user NAME RULE…`, in their order.
    pub users: Vec<Vec<Vec<u8>>>,
    /// `rename-command OLD NEW`, in their order; an empty new name takes the command away.
    pub renamed_commands: Vec<(String, String)>,
    /// The default user's password; empty for none.
    pub requirepass: Vec<u8>,
    /// Replicas without which writes are refused, and seconds since one was heard after which it does not count; 0 for
    /// none.
    pub min_replicas_to_write: u32,
    pub min_replicas_max_lag: u32,
    /// Whether clients of a replica may not write, may see data that may be old, and whether its master alone says which
    /// keys make way.
    pub replica_read_only: bool,
    pub replica_serve_stale_data: bool,
    pub replica_ignore_maxmemory: bool,
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
    /// The log's file (Linux target only); empty for the standard output.
    pub logfile: String,
    /// The file for the process' number (Linux target only); empty for none.
    pub pidfile: String,
    /// Whether the process goes into the background (Linux target only).
    pub daemonize: bool,
    /// The working folder (Linux target only); empty for where the process was started.
    pub dir: String,
    /// The web server's port; 0 for none.
    pub http_port: u16,
    /// The site that it serves, a directory or an image (Linux target only); empty for none.
    pub site: String,
    /// The image of a site that stays on the disk (Linux target only); empty for none.
    pub site_disk: String,
    /// The prefix of keys that it serves as pages; empty for none.
    pub http_keys: String,
    /// The file for its access log, or `-` for the standard output (a guest has only that); empty for none.
    pub http_access_log: String,
    /// Whether it has a status page.
    pub status: bool,
    /// The UDP port whose datagrams go back as they came (guests and AF_XDP only); 0 for none.
    pub udp_echo_port: u16,
    /// The UDP port that answers memcached's get and set (guests and AF_XDP only); 0 for none.
    pub udp_memcached_port: u16,
    /// The shards of the cluster that this store is one of, `HOST:PORT`, in the order of their slots, and which of them it
    /// is, from 0; none for a store that is alone, which `cluster-enabled` refuses.
    pub cluster_enabled: bool,
    pub cluster_shards: Vec<String>,
    pub cluster_shard: u16,
    /// The log's disk, `FILE[:SIZE]` (Linux target only); empty for a file with the usual name in `dir`.
    pub disk: String,
    /// What signals ask for (Linux target only).
    pub shutdown_on_sigint: ShutdownOn,
    pub shutdown_on_sigterm: ShutdownOn,
    /// When all data is saved by itself: after so many seconds if there were so many changes.
    pub save: Vec<(u64, u64)>,
    /// The dump file's name, whether it has a checksum, whether strings in it are compressed, and whether nothing may be
    /// written when it could not be saved.
    pub dbfilename: String,
    pub rdbchecksum: bool,
    pub rdbcompression: bool,
    pub stop_writes_on_bgsave_error: bool,
    /// Who may use `DEBUG`, and who may change protected options.
    pub enable_debug_command: Allowed,
    pub enable_protected_configs: Allowed,
    /// Values of known names that nothing here depends on, where they are not the default, by name.
    pub kept: Vec<(&'static str, Vec<u8>)>,
}

/// The save points of redis-server, unless it is told otherwise.
pub const REDIS_SAVE_POINTS: [(u64, u64); 3] = [(3600, 1), (300, 100), (60, 10_000)];

impl Options {
    /// How many databases there are.
    pub fn database_count(&self) -> usize {
        self.databases.min(DATABASES_MAX) as usize
    }

    /// Bytes that a string may have.
    pub fn bulk_limit_bytes(&self) -> u64 {
        self.proto_max_bulk_len.min(PROTO_MAX_BULK_LEN_MAX)
    }

    /// The limit on unsent replies of a client of this type.
    pub fn output_limit(&self, client: ClientType) -> OutputLimit {
        let [normal, replica, subscriber] = self.client_output_buffer_limit;
        match client {
            ClientType::Normal | ClientType::Master => normal,
            ClientType::Replica => replica,
            ClientType::Subscriber => subscriber,
        }
    }

    /// Up to which size hashes are packed.
    pub(crate) fn hash_limits(&self) -> PackedLimits {
        packed_limits(self.hash_max_listpack_entries, self.hash_max_listpack_value)
    }

    /// Up to which size sets are kept in their compact forms.
    pub(crate) fn set_limits(&self) -> SetLimits {
        /// As in Redis: longer ones would take too long.
        const INTSET_LIMIT: u64 = 1 << 30;
        let packed = packed_limits(self.set_max_listpack_entries, self.set_max_listpack_value);
        SetLimits { intset_entries: self.set_max_intset_entries.min(INTSET_LIMIT) as usize, packed }
    }

    /// Up to which size sorted sets are packed.
    pub(crate) fn zset_limits(&self) -> PackedLimits {
        packed_limits(self.zset_max_listpack_entries, self.zset_max_listpack_value)
    }
}

fn packed_limits(entries: u64, entry_bytes: u64) -> PackedLimits {
    PackedLimits { entries: entries as usize, entry_bytes: entry_bytes as usize }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            port: 6379,
            bind: Vec::from(["*".to_string(), "-::*".to_string()]),
            unixsocket: String::new(),
            unixsocketperm: 0,
            tcp_backlog: 511,
            tcp_keepalive: 300,
            timeout: 0,
            maxclients: 10_000,
            protected_mode: true,
            databases: 16,
            maxmemory: 0,
            maxmemory_policy: MaxmemoryPolicy::NoEviction,
            maxmemory_samples: 5,
            maxmemory_eviction_tenacity: 10,
            maxmemory_clients: ClientsMemory::Unlimited,
            lfu_log_factor: 10,
            lfu_decay_time: 1,
            lazyfree_lazy_eviction: false,
            lazyfree_lazy_expire: false,
            lazyfree_lazy_server_del: false,
            lazyfree_lazy_user_del: false,
            lazyfree_lazy_user_flush: false,
            hash_max_listpack_entries: 512,
            hash_max_listpack_value: 64,
            list_max_listpack_size: -2,
            list_compress_depth: 0,
            set_max_intset_entries: 512,
            set_max_listpack_entries: 128,
            set_max_listpack_value: 64,
            zset_max_listpack_entries: 128,
            zset_max_listpack_value: 64,
            stream_node_max_bytes: 4096,
            stream_node_max_entries: 100,
            hll_sparse_max_bytes: 3000,
            appendonly: false,
            appendfsync: AppendFsync::EverySecond,
            auto_aof_rewrite_percentage: 100,
            auto_aof_rewrite_min_size: 64 << 20,
            notify_keyspace_events: EventClass::NONE,
            slowlog_log_slower_than: 10_000,
            slowlog_max_len: 128,
            latency_monitor_threshold: 0,
            latency_tracking: true,
            latency_tracking_info_percentiles: Vec::from([50.0, 99.0, 99.9]),
            busy_reply_threshold: 5000,
            tracking_table_max_keys: 1_000_000,
            acllog_max_len: 128,
            acl_pubsub_default_all: false,
            aclfile: String::new(),
            users: Vec::new(),
            renamed_commands: Vec::new(),
            requirepass: Vec::new(),
            min_replicas_to_write: 0,
            min_replicas_max_lag: 10,
            replica_read_only: true,
            replica_serve_stale_data: true,
            replica_ignore_maxmemory: true,
            proto_max_bulk_len: PROTO_MAX_BULK_LEN_MAX,
            client_query_buffer_limit: 1 << 30,
            client_output_buffer_limit: [
                OutputLimit::default(),
                OutputLimit { hard_bytes: 256 << 20, soft_bytes: 64 << 20, soft_seconds: 60 },
                OutputLimit { hard_bytes: 32 << 20, soft_bytes: 8 << 20, soft_seconds: 60 },
            ],
            hz: 10,
            active_expire_effort: 1,
            loglevel: LogLevel::Notice,
            logfile: String::new(),
            pidfile: String::new(),
            daemonize: false,
            dir: String::new(),
            http_port: 0,
            site: String::new(),
            site_disk: String::new(),
            http_keys: String::new(),
            http_access_log: String::new(),
            status: false,
            udp_echo_port: 0,
            udp_memcached_port: 0,
            cluster_enabled: false,
            cluster_shards: Vec::new(),
            cluster_shard: 0,
            disk: String::new(),
            shutdown_on_sigint: ShutdownOn::default(),
            shutdown_on_sigterm: ShutdownOn::default(),
            save: Vec::new(),
            dbfilename: "dump.rdb".to_string(),
            rdbchecksum: true,
            rdbcompression: true,
            stop_writes_on_bgsave_error: true,
            enable_debug_command: Allowed::No,
            enable_protected_configs: Allowed::No,
            kept: Vec::new(),
        }
    }
}

/// Why an option was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionError {
    /// The option and its value as given, or the stray word.
    pub name: String,
    /// What is wrong with it, in words for the user.
    pub reason: String,
}

impl OptionError {
    /// Where no more than `most` clients can be served.
    pub fn too_many_clients(most: u32) -> OptionError {
        let why = "The operating system is not able to handle the specified number of clients, try with";
        OptionError { name: "maxclients".into(), reason: format!("{why} {most}") }
    }
}

impl core::fmt::Display for OptionError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "option '{}': {}", self.name, self.reason)
    }
}

impl core::error::Error for OptionError {}

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
        let options = parse(&["loglevel", "debug", "--maxmemory 1mb", "--save", "--logfile", "--x"]).unwrap();
        assert_eq!((options.loglevel, options.maxmemory), (LogLevel::Debug, 1 << 20));
        assert_eq!(options.logfile, "--x");
        let options = parse(&["--hash-max-ziplist-entries", "7", "--user", "a", "on", "--rename-command", "get", ""]);
        let options = options.unwrap();
        assert_eq!(options.hash_max_listpack_entries, 7);
        assert_eq!((options.users.len(), options.renamed_commands.len()), (1, 1));
    }

    #[test]
    fn refuses_unknown_and_malformed_options() {
        for words in [
            &["--nonsense", "1"][..],
            &["--port"],
            &["--port", "99999"],
            &["--port", "1", "2"],
            &["--port", "--loglevel", "verbose"],
            &["--maxmemory", "12x"],
            &["--maxmemory", "99999999999gb"],
            &["--appendonly", "maybe"],
            &["--replicaof", "127.0.0.1", "abc"],
            &["--replicaof"],
            &["--SLAVEOF", ""],
            &["--client-output-buffer-limit", "normal", "1"],
            &["--shutdown-on-sigint"],
            &["--TLS-port", "6380"],
        ] {
            assert!(parse(words).is_err(), "{words:?}");
        }
    }

    /// What redis-server takes is taken and shown, whatever comes of it.
    #[test]
    fn values_beyond_what_a_store_can_do_are_kept() {
        for (name, value) in
            [("proto-max-bulk-len", "9223372036854775807"), ("maxclients", "4294967295"), ("databases", "2147483647")]
        {
            let options = parse(&[&alloc::format!("--{name}"), value]).unwrap();
            assert_eq!(OptionSpec::find(name.as_bytes()).unwrap().get(&options), value.as_bytes(), "{name}");
            assert!(options.bulk_limit_bytes() <= PROTO_MAX_BULK_LEN_MAX && options.database_count() <= 1024);
        }
        assert!(parse(&["--tls-port", "0"]).is_ok());
        assert!(parse(&["--tls-cluster", "no"]).is_err());
    }

    #[test]
    fn every_default_reads_back() {
        for spec in OPTIONS {
            let mut options = Options::default();
            let shown = spec.get(&options);
            spec.set(&mut options, &shown).unwrap_or_else(|e| panic!("{}: {e}", spec.name));
            assert_eq!(options, Options::default(), "{}", spec.name);
        }
    }

    #[test]
    fn names_are_sorted() {
        assert!(OPTIONS.windows(2).all(|pair| pair[0].name < pair[1].name));
    }
}
