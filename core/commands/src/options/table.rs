//! The table of options.

use super::{
    Allowed, AppendFsync, ClientsMemory, LogLevel, MaxmemoryPolicy, Options,
    value::{
        self, clients_memory, integer_in, memory_in, octal_in, one_of, percentiles, shutdown_on, shutdown_on_text,
        text, yes_no, yes_or_no,
    },
};
use crate::{EventClass, cluster::parse_address};
use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};

/// The longest password, as in Redis before it had users.
const PASSWORD_LIMIT_BYTES: usize = 512;
/// As many addresses as Redis binds.
const ADDRESSES_LIMIT: usize = 16;
/// The bounds of `hz`, into which other numbers are moved.
const HZ_RANGE: (i64, i64) = (1, 500);

const CLUSTER_SHARDS_LIMIT: usize = 1000;
const NO_DEFRAGMENTATION: &str = "Active defragmentation cannot be enabled: Kayvee does not need it";

/// What holds of an option besides its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Property {
    /// It can be given at start only.
    AtStart = AT_START,
    /// `CONFIG SET` has to be allowed by `enable-protected-configs`.
    Protected = PROTECTED,
    /// Its value is not to be seen in logs.
    Sensitive = SENSITIVE,
    /// Patterns of `CONFIG GET` do not find it.
    Hidden = HIDDEN,
    /// Its value is a list of words.
    Lists = LISTS,
    /// Its value is a number of bytes.
    Memory = MEMORY,
}

const NONE: u8 = 0;
const AT_START: u8 = 1;
const PROTECTED: u8 = 2;
const SENSITIVE: u8 = 4;
const HIDDEN: u8 = 8;
const LISTS: u8 = 16;
const MEMORY: u8 = 32;

/// One option.
pub struct OptionSpec {
    /// Its name in redis.conf.
    pub name: &'static str,
    /// Its older name.
    pub alias: Option<&'static str>,
    properties: u8,
    access: Access,
}

/// Where an option's value is.
#[derive(Clone, Copy)]
enum Access {
    /// In a field of its own.
    Field { get: fn(&Options) -> Vec<u8>, set: fn(&mut Options, &[u8]) -> Result<(), String> },
    /// Among those that are only kept.
    Kept { kind: Kind, default: &'static str },
}

/// The values that an option takes which is only kept.
#[derive(Clone, Copy)]
enum Kind {
    /// yes or no.
    Switch,
    Integer(i64, i64),
    /// Bytes, at least so many.
    Memory(u64),
    Choice(&'static [&'static str]),
    Text,
    /// A name without a folder, of this kind.
    FileName(&'static str),
    /// What this brings into its usual form.
    Checked(fn(&[u8]) -> Result<String, String>),
    /// One value, and why there is no other yet.
    Only(&'static str, &'static str),
}

impl Kind {
    /// A value in the form in which it is shown, if it may be taken.
    fn normal(self, value: &[u8], name: &str) -> Result<Vec<u8>, String> {
        Ok(match self {
            Kind::Switch => yes_no(yes_or_no(value)?).into(),
            Kind::Integer(least, most) => integer_in(value, least..=most)?.to_string().into_bytes(),
            Kind::Memory(least) => memory_in(value, least..=i64::MAX as u64)?.to_string().into_bytes(),
            Kind::Choice(words) => {
                let words: Vec<(&'static str, ())> = words.iter().map(|word| (*word, ())).collect();
                one_of(value, &words)?.0.into()
            }
            Kind::Text => value.to_vec(),
            Kind::FileName(kind) => value::base_name(value, name, kind)?.into(),
            Kind::Checked(check) => check(value)?.into_bytes(),
            Kind::Only(word, _) if value.eq_ignore_ascii_case(word.as_bytes()) => word.into(),
            Kind::Only(_, why) => {
                yes_or_no(value)?;
                return Err(why.to_string());
            }
        })
    }
}

macro_rules! field {
    ($get:expr, $set:expr) => {
        Access::Field { get: $get, set: $set }
    };
}

macro_rules! number {
    ($field:ident, $range:expr) => {
        field!(|o| o.$field.to_string().into_bytes(), |o, v| {
            o.$field = integer_in(v, $range)? as _;
            Ok(())
        })
    };
}

macro_rules! memory {
    ($field:ident, $range:expr) => {
        field!(|o| o.$field.to_string().into_bytes(), |o, v| {
            o.$field = memory_in(v, $range)?;
            Ok(())
        })
    };
}

macro_rules! switch {
    ($field:ident) => {
        field!(|o| yes_no(o.$field).into(), |o, v| {
            o.$field = yes_or_no(v)?;
            Ok(())
        })
    };
}

macro_rules! words {
    ($field:ident) => {
        field!(|o| o.$field.clone().into_bytes(), |o, v| {
            o.$field = text(v)?.into();
            Ok(())
        })
    };
}

macro_rules! choice {
    ($field:ident, $words:ident) => {
        field!(|o| $words.iter().find(|(_, value)| *value == o.$field).map_or("", |(word, _)| word).into(), |o, v| {
            o.$field = one_of(v, $words)?.1;
            Ok(())
        })
    };
}

/// The names of the policies.
pub const POLICIES: &[(&str, MaxmemoryPolicy)] = &[
    ("volatile-lru", MaxmemoryPolicy::VolatileLru),
    ("volatile-lfu", MaxmemoryPolicy::VolatileLfu),
    ("volatile-random", MaxmemoryPolicy::VolatileRandom),
    ("volatile-ttl", MaxmemoryPolicy::VolatileTtl),
    ("allkeys-lru", MaxmemoryPolicy::AllkeysLru),
    ("allkeys-lfu", MaxmemoryPolicy::AllkeysLfu),
    ("allkeys-random", MaxmemoryPolicy::AllkeysRandom),
    ("noeviction", MaxmemoryPolicy::NoEviction),
];

const LEVELS: &[(&str, LogLevel)] = &[
    ("debug", LogLevel::Debug),
    ("verbose", LogLevel::Verbose),
    ("notice", LogLevel::Notice),
    ("warning", LogLevel::Warning),
];

const FSYNC: &[(&str, AppendFsync)] =
    &[("everysec", AppendFsync::EverySecond), ("always", AppendFsync::Always), ("no", AppendFsync::No)];

const ALLOWED: &[(&str, Allowed)] = &[("no", Allowed::No), ("yes", Allowed::Yes), ("local", Allowed::Local)];
const CHANNELS: &[(&str, bool)] = &[("allchannels", true), ("resetchannels", false)];

const BIND: Access = field!(|o| o.bind.join(" ").into_bytes(), |o, v| {
    let addresses: Vec<String> = text(v)?.split_ascii_whitespace().map(String::from).collect();
    if addresses.len() > ADDRESSES_LIMIT {
        return Err("Too many bind addresses specified.".to_string());
    }
    o.bind = addresses;
    Ok(())
});

/// `cluster-shards` says it as well, which may come before or behind it.
const CLUSTER_ENABLED: Access = field!(|o| yes_no(o.cluster_enabled || !o.cluster_shards.is_empty()).into(), |o, v| {
    o.cluster_enabled = yes_or_no(v)?;
    Ok(())
});

const CLUSTER_SHARDS: Access = field!(|o| o.cluster_shards.join(" ").into_bytes(), |o, v| {
    let shards: Vec<String> = text(v)?.split_ascii_whitespace().map(String::from).collect();
    if shards.len() > CLUSTER_SHARDS_LIMIT {
        return Err(format!("a cluster has at most {CLUSTER_SHARDS_LIMIT} shards"));
    }
    if let Some(wrong) = shards.iter().find(|shard| parse_address(shard).is_none()) {
        return Err(format!("'{wrong}' is not HOST:PORT"));
    }
    o.cluster_shards = shards;
    Ok(())
});

const OUTPUT_LIMITS: Access = field!(
    |o| {
        let classes = value::OUTPUT_CLASSES.iter().zip(&o.client_output_buffer_limit);
        let words: Vec<String> =
            classes.map(|(class, l)| format!("{class} {} {} {}", l.hard_bytes, l.soft_bytes, l.soft_seconds)).collect();
        words.join(" ").into_bytes()
    },
    value::set_output_limits
);

const HZ: Access = field!(|o| o.hz.to_string().into_bytes(), |o, v| {
    let (least, most) = HZ_RANGE;
    o.hz = integer_in(v, 0..=i32::MAX as i64)?.clamp(least, most) as u32;
    Ok(())
});

const PERCENTILES: Access = field!(
    |o| {
        let words: Vec<String> = o.latency_tracking_info_percentiles.iter().map(f64::to_string).collect();
        words.join(" ").into_bytes()
    },
    |o, v| {
        o.latency_tracking_info_percentiles = percentiles(v)?;
        Ok(())
    }
);

const CLIENTS_MEMORY: Access = field!(
    |o| match o.maxmemory_clients {
        ClientsMemory::Unlimited => b"0".to_vec(),
        ClientsMemory::Bytes(bytes) => bytes.to_string().into_bytes(),
        ClientsMemory::Percent(percent) => format!("{percent}%").into_bytes(),
    },
    |o, v| {
        o.maxmemory_clients = clients_memory(v)?;
        Ok(())
    }
);

const EVENTS: Access = field!(|o| o.notify_keyspace_events.letters().into_bytes(), |o, v| {
    o.notify_keyspace_events =
        EventClass::parse(v).ok_or("Invalid event class character. Use 'Ag$lshzxeKEtmdn'.".to_string())?;
    Ok(())
});

const PASSWORD: Access = field!(|o| o.requirepass.clone(), |o, v| {
    if v.len() > PASSWORD_LIMIT_BYTES {
        return Err(format!("a password has at most {PASSWORD_LIMIT_BYTES} bytes"));
    }
    o.requirepass = v.to_vec();
    Ok(())
});

const SIGINT: Access = field!(|o| shutdown_on_text(o.shutdown_on_sigint).into(), |o, v| {
    o.shutdown_on_sigint = shutdown_on(v)?;
    Ok(())
});

const SIGTERM: Access = field!(|o| shutdown_on_text(o.shutdown_on_sigterm).into(), |o, v| {
    o.shutdown_on_sigterm = shutdown_on(v)?;
    Ok(())
});

const SOCKET_PERMISSIONS: Access = field!(|o| format!("{:o}", o.unixsocketperm).into(), |o, v| {
    o.unixsocketperm = octal_in(v, 0..=0o777)?;
    Ok(())
});

const DUMP_NAME: Access = field!(|o| o.dbfilename.clone().into_bytes(), |o, v| {
    o.dbfilename = value::base_name(v, "dbfilename", "filename")?.into();
    Ok(())
});

const SAVE_POINTS: Access = field!(
    |o| {
        let points: Vec<String> = o.save.iter().map(|(seconds, changes)| format!("{seconds} {changes}")).collect();
        points.join(" ").into_bytes()
    },
    |o, v| {
        o.save = value::save_points(v)?;
        Ok(())
    }
);

/// A size of the backlog: what is less than Redis keeps at the least is taken for that.
fn backlog_size(value: &[u8]) -> Result<String, String> {
    const LEAST_BYTES: u64 = 16 << 10;
    Ok(memory_in(value, 1..=i64::MAX as u64)?.max(LEAST_BYTES).to_string())
}

/// Checks `replicaof HOST PORT` or `no one`.
fn master(value: &[u8]) -> Result<String, String> {
    let words: Vec<&str> = text(value)?.split_ascii_whitespace().collect();
    match words[..] {
        [] => Ok(String::new()),
        [host, port] if host.eq_ignore_ascii_case("no") && port.eq_ignore_ascii_case("one") => Ok(String::new()),
        [_, port] if port.parse::<u16>().is_err() => Err("Invalid master port".to_string()),
        [host, port] => Ok(format!("{host} {port}")),
        _ => Err("wrong number of arguments".to_string()),
    }
}

const fn row(name: &'static str, properties: u8, access: Access) -> OptionSpec {
    OptionSpec { name, alias: None, properties, access }
}

const fn renamed(name: &'static str, alias: &'static str, properties: u8, access: Access) -> OptionSpec {
    OptionSpec { name, alias: Some(alias), properties, access }
}

const fn kept(kind: Kind, default: &'static str) -> Access {
    Access::Kept { kind, default }
}

/// Every option of redis.conf that has a meaning here, and those that are kept.
pub static OPTIONS: &[OptionSpec] = &[
    row("acl-pubsub-default", NONE, choice!(acl_pubsub_default_all, CHANNELS)),
    row("aclfile", AT_START, words!(aclfile)),
    row("acllog-max-len", NONE, number!(acllog_max_len, 0..=i64::MAX)),
    row("active-defrag-cycle-max", NONE, kept(Kind::Integer(1, 99), "25")),
    row("active-defrag-cycle-min", NONE, kept(Kind::Integer(1, 99), "1")),
    row("active-defrag-ignore-bytes", MEMORY, kept(Kind::Memory(1), "104857600")),
    row("active-defrag-max-scan-fields", NONE, kept(Kind::Integer(1, i64::MAX), "1000")),
    row("active-defrag-threshold-lower", NONE, kept(Kind::Integer(0, 1000), "10")),
    row("active-defrag-threshold-upper", NONE, kept(Kind::Integer(0, 1000), "100")),
    row("active-expire-effort", NONE, number!(active_expire_effort, 1..=10)),
    row("activedefrag", NONE, kept(Kind::Only("no", NO_DEFRAGMENTATION), "no")),
    row("activerehashing", NONE, kept(Kind::Switch, "yes")),
    row("always-show-logo", AT_START, kept(Kind::Switch, "no")),
    row("aof-disable-auto-gc", NONE, kept(Kind::Switch, "no")),
    row("aof-load-truncated", NONE, kept(Kind::Switch, "yes")),
    row("aof-rewrite-incremental-fsync", NONE, kept(Kind::Switch, "yes")),
    row("aof-timestamp-enabled", NONE, kept(Kind::Switch, "no")),
    row("aof-use-rdb-preamble", NONE, kept(Kind::Switch, "yes")),
    row("aof_rewrite_cpulist", AT_START, kept(Kind::Text, "")),
    row("appenddirname", AT_START, kept(Kind::FileName("dirname"), "appendonlydir")),
    row("appendfilename", AT_START, kept(Kind::FileName("filename"), "appendonly.aof")),
    row("appendfsync", NONE, choice!(appendfsync, FSYNC)),
    row("appendonly", NONE, switch!(appendonly)),
    row("auto-aof-rewrite-min-size", MEMORY, memory!(auto_aof_rewrite_min_size, 0..=i64::MAX as u64)),
    row("auto-aof-rewrite-percentage", NONE, number!(auto_aof_rewrite_percentage, 0..=i32::MAX as i64)),
    row("bgsave_cpulist", AT_START, kept(Kind::Text, "")),
    row("bind", LISTS, BIND),
    row("bind-source-addr", NONE, kept(Kind::Text, "")),
    row("bio_cpulist", AT_START, kept(Kind::Text, "")),
    renamed("busy-reply-threshold", "lua-time-limit", NONE, number!(busy_reply_threshold, 0..=i64::MAX)),
    row("client-output-buffer-limit", LISTS, OUTPUT_LIMITS),
    row("client-query-buffer-limit", MEMORY, memory!(client_query_buffer_limit, 1 << 20..=i64::MAX as u64)),
    row("cluster-allow-pubsubshard-when-down", NONE, kept(Kind::Switch, "yes")),
    row("cluster-allow-reads-when-down", NONE, kept(Kind::Switch, "no")),
    row("cluster-allow-replica-migration", NONE, kept(Kind::Switch, "yes")),
    row("cluster-announce-bus-port", NONE, kept(Kind::Integer(0, 65535), "0")),
    row("cluster-announce-hostname", NONE, kept(Kind::Text, "")),
    row("cluster-announce-human-nodename", NONE, kept(Kind::Text, "")),
    row("cluster-announce-ip", NONE, kept(Kind::Text, "")),
    row("cluster-announce-port", NONE, kept(Kind::Integer(0, 65535), "0")),
    row("cluster-announce-tls-port", NONE, kept(Kind::Integer(0, 65535), "0")),
    row("cluster-config-file", AT_START, kept(Kind::Text, "nodes.conf")),
    row("cluster-enabled", AT_START, CLUSTER_ENABLED),
    row("cluster-link-sendbuf-limit", MEMORY, kept(Kind::Memory(0), "0")),
    row("cluster-migration-barrier", NONE, kept(Kind::Integer(0, i32::MAX as i64), "1")),
    row("cluster-node-timeout", NONE, kept(Kind::Integer(0, i64::MAX), "15000")),
    row("cluster-port", AT_START, kept(Kind::Integer(0, 65535), "0")),
    row("cluster-preferred-endpoint-type", NONE, kept(Kind::Choice(&["ip", "hostname", "unknown-endpoint"]), "ip")),
    renamed("cluster-replica-no-failover", "cluster-slave-no-failover", NONE, kept(Kind::Switch, "no")),
    renamed(
        "cluster-replica-validity-factor",
        "cluster-slave-validity-factor",
        NONE,
        kept(Kind::Integer(0, i32::MAX as i64), "10"),
    ),
    row("cluster-require-full-coverage", NONE, kept(Kind::Switch, "yes")),
    row("cluster-shard", AT_START | HIDDEN, number!(cluster_shard, 0..=CLUSTER_SHARDS_LIMIT as i64 - 1)),
    row("cluster-shards", AT_START | LISTS | HIDDEN, CLUSTER_SHARDS),
    row("crash-log-enabled", NONE, kept(Kind::Switch, "yes")),
    row("crash-memcheck-enabled", NONE, kept(Kind::Switch, "yes")),
    row("daemonize", AT_START, switch!(daemonize)),
    row("databases", AT_START, number!(databases, 1..=i32::MAX as i64)),
    row("dbfilename", PROTECTED, DUMP_NAME),
    row("dir", PROTECTED, words!(dir)),
    row("disable-thp", AT_START, kept(Kind::Switch, "yes")),
    row("disk", AT_START | HIDDEN, words!(disk)),
    row("dynamic-hz", NONE, kept(Kind::Switch, "yes")),
    row("enable-debug-command", AT_START, choice!(enable_debug_command, ALLOWED)),
    row("enable-module-command", AT_START, kept(Kind::Choice(&["no", "yes", "local"]), "no")),
    row("enable-protected-configs", AT_START, choice!(enable_protected_configs, ALLOWED)),
    renamed(
        "hash-max-listpack-entries",
        "hash-max-ziplist-entries",
        NONE,
        number!(hash_max_listpack_entries, 0..=i64::MAX),
    ),
    renamed(
        "hash-max-listpack-value",
        "hash-max-ziplist-value",
        MEMORY,
        memory!(hash_max_listpack_value, 0..=i64::MAX as u64),
    ),
    row("hll-sparse-max-bytes", MEMORY, memory!(hll_sparse_max_bytes, 0..=i64::MAX as u64)),
    row("http-access-log", AT_START | HIDDEN, words!(http_access_log)),
    row("http-keys", AT_START | HIDDEN, words!(http_keys)),
    row("http-port", AT_START | HIDDEN, number!(http_port, 0..=65535)),
    row("hz", NONE, HZ),
    row("ignore-warnings", NONE, kept(Kind::Text, "")),
    row("io-threads", AT_START, kept(Kind::Integer(1, 128), "1")),
    row("io-threads-do-reads", AT_START, kept(Kind::Switch, "no")),
    row("jemalloc-bg-thread", NONE, kept(Kind::Switch, "yes")),
    row("key-load-delay", HIDDEN, kept(Kind::Integer(i32::MIN as i64, i32::MAX as i64), "0")),
    row("latency-monitor-threshold", NONE, number!(latency_monitor_threshold, 0..=i64::MAX)),
    row("latency-tracking", NONE, switch!(latency_tracking)),
    row("latency-tracking-info-percentiles", LISTS, PERCENTILES),
    row("lazyfree-lazy-eviction", NONE, switch!(lazyfree_lazy_eviction)),
    row("lazyfree-lazy-expire", NONE, switch!(lazyfree_lazy_expire)),
    row("lazyfree-lazy-server-del", NONE, switch!(lazyfree_lazy_server_del)),
    row("lazyfree-lazy-user-del", NONE, switch!(lazyfree_lazy_user_del)),
    row("lazyfree-lazy-user-flush", NONE, switch!(lazyfree_lazy_user_flush)),
    row("lfu-decay-time", NONE, number!(lfu_decay_time, 0..=i32::MAX as i64)),
    row("lfu-log-factor", NONE, number!(lfu_log_factor, 0..=i32::MAX as i64)),
    row("list-compress-depth", NONE, number!(list_compress_depth, 0..=i32::MAX as i64)),
    renamed(
        "list-max-listpack-size",
        "list-max-ziplist-size",
        NONE,
        number!(list_max_listpack_size, i32::MIN as i64..=i32::MAX as i64),
    ),
    row("loading-process-events-interval-bytes", HIDDEN, kept(Kind::Integer(1024, i32::MAX as i64), "2097152")),
    row("locale-collate", NONE, kept(Kind::Text, "")),
    row("logfile", AT_START, words!(logfile)),
    row("loglevel", NONE, choice!(loglevel, LEVELS)),
    row("masterauth", SENSITIVE, kept(Kind::Text, "")),
    row("masteruser", SENSITIVE, kept(Kind::Text, "")),
    row("maxclients", NONE, number!(maxclients, 1..=u32::MAX as i64)),
    row("maxmemory", MEMORY, memory!(maxmemory, 0..=u64::MAX)),
    row("maxmemory-clients", MEMORY, CLIENTS_MEMORY),
    row("maxmemory-eviction-tenacity", NONE, number!(maxmemory_eviction_tenacity, 0..=100)),
    row("maxmemory-policy", NONE, choice!(maxmemory_policy, POLICIES)),
    row("maxmemory-samples", NONE, number!(maxmemory_samples, 1..=i32::MAX as i64)),
    renamed("min-replicas-max-lag", "min-slaves-max-lag", NONE, number!(min_replicas_max_lag, 0..=i32::MAX as i64)),
    renamed("min-replicas-to-write", "min-slaves-to-write", NONE, number!(min_replicas_to_write, 0..=i32::MAX as i64)),
    row("no-appendfsync-on-rewrite", NONE, kept(Kind::Switch, "no")),
    row("notify-keyspace-events", NONE, EVENTS),
    row("oom-score-adj", NONE, kept(Kind::Choice(&["no", "yes", "relative", "absolute"]), "no")),
    row("oom-score-adj-values", LISTS, kept(Kind::Checked(value::oom_score_values), "0 200 800")),
    row("pidfile", AT_START, words!(pidfile)),
    row("port", NONE, number!(port, 0..=65535)),
    row("proc-title-template", NONE, kept(Kind::Text, "{title} {listen-addr} {server-mode}")),
    row("propagation-error-behavior", NONE, kept(Kind::Choice(&["ignore", "panic", "panic-on-replicas"]), "ignore")),
    row("protected-mode", NONE, switch!(protected_mode)),
    row("proto-max-bulk-len", MEMORY, memory!(proto_max_bulk_len, 1 << 20..=i64::MAX as u64)),
    row("rdb-del-sync-files", NONE, kept(Kind::Switch, "no")),
    row("rdb-key-save-delay", HIDDEN, kept(Kind::Integer(i32::MIN as i64, i32::MAX as i64), "0")),
    row("rdb-save-incremental-fsync", NONE, kept(Kind::Switch, "yes")),
    row("rdbchecksum", AT_START, switch!(rdbchecksum)),
    row("rdbcompression", NONE, switch!(rdbcompression)),
    row("repl-backlog-size", MEMORY, kept(Kind::Checked(backlog_size), "1048576")),
    row("repl-backlog-ttl", NONE, kept(Kind::Integer(0, i64::MAX), "3600")),
    row("repl-disable-tcp-nodelay", NONE, kept(Kind::Switch, "no")),
    row("repl-diskless-load", NONE, kept(Kind::Choice(&["disabled", "on-empty-db", "swapdb"]), "disabled")),
    row("repl-diskless-sync", NONE, kept(Kind::Switch, "yes")),
    row("repl-diskless-sync-delay", NONE, kept(Kind::Integer(0, i32::MAX as i64), "0")),
    row("repl-diskless-sync-max-replicas", NONE, kept(Kind::Integer(0, i32::MAX as i64), "0")),
    renamed("repl-ping-replica-period", "repl-ping-slave-period", NONE, kept(Kind::Integer(1, i32::MAX as i64), "10")),
    row("repl-timeout", NONE, kept(Kind::Integer(1, i32::MAX as i64), "60")),
    renamed("replica-announce-ip", "slave-announce-ip", NONE, kept(Kind::Text, "")),
    renamed("replica-announce-port", "slave-announce-port", NONE, kept(Kind::Integer(0, 65535), "0")),
    row("replica-announced", NONE, kept(Kind::Switch, "yes")),
    row("replica-ignore-disk-write-errors", NONE, kept(Kind::Switch, "no")),
    renamed("replica-ignore-maxmemory", "slave-ignore-maxmemory", NONE, switch!(replica_ignore_maxmemory)),
    renamed("replica-lazy-flush", "slave-lazy-flush", NONE, kept(Kind::Switch, "no")),
    renamed("replica-priority", "slave-priority", NONE, kept(Kind::Integer(0, i32::MAX as i64), "100")),
    renamed("replica-read-only", "slave-read-only", NONE, switch!(replica_read_only)),
    renamed("replica-serve-stale-data", "slave-serve-stale-data", NONE, switch!(replica_serve_stale_data)),
    renamed("replicaof", "slaveof", AT_START | LISTS, kept(Kind::Checked(master), "")),
    row("requirepass", SENSITIVE, PASSWORD),
    row("sanitize-dump-payload", NONE, kept(Kind::Choice(&["no", "yes", "clients"]), "no")),
    row("save", LISTS, SAVE_POINTS),
    row("server_cpulist", AT_START, kept(Kind::Text, "")),
    row("set-max-intset-entries", NONE, number!(set_max_intset_entries, 0..=i64::MAX)),
    row("set-max-listpack-entries", NONE, number!(set_max_listpack_entries, 0..=i64::MAX)),
    row("set-max-listpack-value", MEMORY, memory!(set_max_listpack_value, 0..=i64::MAX as u64)),
    row("set-proc-title", AT_START, kept(Kind::Switch, "yes")),
    row("shutdown-on-sigint", LISTS, SIGINT),
    row("shutdown-on-sigterm", LISTS, SIGTERM),
    row("shutdown-timeout", NONE, kept(Kind::Integer(0, i32::MAX as i64), "10")),
    row("site", AT_START | HIDDEN, words!(site)),
    row("site-disk", AT_START | HIDDEN, words!(site_disk)),
    row("slowlog-log-slower-than", NONE, number!(slowlog_log_slower_than, -1..=i64::MAX)),
    row("slowlog-max-len", NONE, number!(slowlog_max_len, 0..=i64::MAX)),
    row("socket-mark-id", AT_START, kept(Kind::Integer(0, u32::MAX as i64), "0")),
    row("status", AT_START | HIDDEN, switch!(status)),
    row("stop-writes-on-bgsave-error", NONE, switch!(stop_writes_on_bgsave_error)),
    row("stream-node-max-bytes", MEMORY, memory!(stream_node_max_bytes, 0..=i64::MAX as u64)),
    row("stream-node-max-entries", NONE, number!(stream_node_max_entries, 0..=i64::MAX)),
    row("supervised", AT_START, kept(Kind::Choice(&["upstart", "systemd", "auto", "no"]), "no")),
    row("syslog-enabled", AT_START, kept(Kind::Switch, "no")),
    row(
        "syslog-facility",
        AT_START,
        kept(
            Kind::Choice(&["user", "local0", "local1", "local2", "local3", "local4", "local5", "local6", "local7"]),
            "local0",
        ),
    ),
    row("syslog-ident", AT_START, kept(Kind::Text, "redis")),
    row("tcp-backlog", AT_START, number!(tcp_backlog, 0..=i32::MAX as i64)),
    row("tcp-keepalive", NONE, number!(tcp_keepalive, 0..=i32::MAX as i64)),
    row("timeout", NONE, number!(timeout, 0..=i32::MAX as i64)),
    row("tracking-table-max-keys", NONE, number!(tracking_table_max_keys, 0..=i64::MAX)),
    row("udp-echo-port", AT_START | HIDDEN, number!(udp_echo_port, 0..=65535)),
    row("udp-memcached-port", AT_START | HIDDEN, number!(udp_memcached_port, 0..=65535)),
    row("unixsocket", AT_START, words!(unixsocket)),
    row("unixsocketperm", AT_START, SOCKET_PERMISSIONS),
    row("use-exit-on-panic", HIDDEN, kept(Kind::Switch, "no")),
    row("watchdog-period", HIDDEN, kept(Kind::Integer(0, i32::MAX as i64), "0")),
    renamed(
        "zset-max-listpack-entries",
        "zset-max-ziplist-entries",
        NONE,
        number!(zset_max_listpack_entries, 0..=i64::MAX),
    ),
    renamed(
        "zset-max-listpack-value",
        "zset-max-ziplist-value",
        MEMORY,
        memory!(zset_max_listpack_value, 0..=i64::MAX as u64),
    ),
];

impl OptionSpec {
    /// Finds an option by its name or older name, in any case.
    pub fn find(name: &[u8]) -> Option<&'static OptionSpec> {
        let is_it = |known: &str| known.as_bytes().eq_ignore_ascii_case(name);
        OPTIONS.iter().find(|spec| is_it(spec.name) || spec.alias.is_some_and(is_it))
    }

    /// Whether this holds of it.
    pub fn has(&self, property: Property) -> bool {
        self.properties & property as u8 != 0
    }

    /// Its value as `CONFIG GET` shows it.
    pub fn get(&self, options: &Options) -> Vec<u8> {
        match self.access {
            Access::Field { get, .. } => get(options),
            Access::Kept { default, .. } => {
                let kept = options.kept.iter().find(|(name, _)| *name == self.name);
                kept.map_or(default.as_bytes().to_vec(), |(_, value)| value.clone())
            }
        }
    }

    /// Takes a new value, or says what is wrong with it and changes nothing.
    pub fn set(&self, options: &mut Options, value: &[u8]) -> Result<(), String> {
        match self.access {
            Access::Field { set, .. } => set(options, value),
            Access::Kept { kind, default } => {
                let value = kind.normal(value, self.name)?;
                options.kept.retain(|(name, _)| *name != self.name);
                if value != default.as_bytes() {
                    let at = options.kept.partition_point(|(name, _)| *name < self.name);
                    options.kept.insert(at, (self.name, value));
                }
                Ok(())
            }
        }
    }
}
