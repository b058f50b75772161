//! `INFO`: figures about the server, in Redis' sections and fields.

use crate::{
    Context, Outcome, Session, Store,
    latency::name_in_statistics,
    memory::{Figures, percent},
    pubsub::Scope,
    server::REDIS_VERSION,
    text::Text,
};
use alloc::{format, string::String, vec::Vec};
use core::fmt::Write;
use kayvee_platform::MonitorFigures;
use kayvee_resp::Request;

type Section = (&'static str, fn(&Store, &mut Text));

/// The sections that are shown when none is asked for.
const DEFAULT: &[Section] = &[
    ("Server", server),
    ("Clients", clients),
    ("Memory", memory),
    ("Persistence", persistence),
    ("Stats", stats),
    ("Network", network),
    ("Monitor", monitor),
    ("Replication", crate::replication::write_info),
    ("CPU", cpu),
    ("Modules", |_, _| {}),
    ("Errorstats", errorstats),
    ("Cluster", |store, out| line(out, "cluster_enabled", i32::from(store.cluster.is_some()))),
    ("Keyspace", keyspace),
];

/// Those that must be asked for, by name or with `all`.
const ON_REQUEST: &[Section] = &[("Commandstats", commandstats), ("Latencystats", latencystats)];

pub fn info(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let asked = |word: &str| request.from(1).any(|name| name.eq_ignore_ascii_case(word.as_bytes()));
    let everything = asked("all") || asked("everything");
    let defaults = everything || request.len() == 1 || asked("default");
    let shown = |sections: &'static [Section], all: bool| sections.iter().filter(move |(name, _)| all || asked(name));
    // Keys that were found expired since the last round of active expiry count as well.
    for db in &mut context.store.dbs {
        context.store.stats.expired_keys += db.take_lazily_expired();
    }
    let mut text = Text::default();
    let has_monitor = (context.store.environment.monitor)().is_some();
    for (name, write) in shown(DEFAULT, defaults).chain(shown(ON_REQUEST, everything)) {
        // Nobody else has such a section, not even an empty one.
        if *name == "Monitor" && !has_monitor {
            continue;
        }
        if !text.is_empty() {
            let _ = text.write_str("\r\n");
        }
        let _ = write!(text, "# {name}\r\n");
        write(context.store, &mut text);
    }
    text.reply(&mut context.reply)
}

/// Writes one field. What finds no memory fails the whole text.
pub fn line(out: &mut Text, field: &str, value: impl core::fmt::Display) {
    let _ = write!(out, "{field}:{value}\r\n");
}

fn server(store: &Store, out: &mut Text) {
    let uptime_s = (store.now.monotonic_ns - store.started.monotonic_ns) / 1_000_000_000;
    line(out, "redis_version", REDIS_VERSION);
    // There is one build a version: no commit, no local change and no build number is to be told.
    line(out, "redis_git_sha1", "00000000");
    line(out, "redis_git_dirty", 0);
    line(out, "redis_build_id", 0);
    line(out, "redis_mode", crate::cluster::mode(store));
    line(out, "kayvee_version", env!("CARGO_PKG_VERSION"));
    line(out, "kayvee_target", store.environment.target);
    line(out, "os", &store.environment.os);
    line(out, "arch_bits", usize::BITS);
    line(out, "monotonic_clock", store.environment.clock.name());
    line(out, "multiplexing_api", store.environment.multiplexing);
    line(out, "process_id", store.environment.process_id);
    line(out, "process_supervised", "no");
    line(out, "run_id", &store.run_id);
    line(out, "tcp_port", store.options.port);
    line(out, "server_time_usec", store.now.unix_us);
    line(out, "uptime_in_seconds", uptime_s);
    line(out, "uptime_in_days", uptime_s / 86_400);
    line(out, "hz", store.options.hz);
    line(out, "configured_hz", store.options.hz);
    line(out, "lru_clock", (store.now.unix_us / 1_000_000) & 0x00ff_ffff);
    line(out, "executable", "");
    line(out, "config_file", store.environment.host.config_file().unwrap_or_default());
    line(out, "io_threads_active", 0);
    if let Some(until_ns) = store.shutdown_waits_until_ns() {
        line(out, "shutdown_in_milliseconds", until_ns.saturating_sub(store.now.monotonic_ns) / 1_000_000);
    }
}

fn clients(store: &Store, out: &mut Text) {
    let most = |bytes: fn(&Session) -> usize| store.all_sessions().map(bytes).max().unwrap_or(0);
    line(out, "connected_clients", store.clients - store.replicas.len());
    line(out, "cluster_connections", 0);
    line(out, "maxclients", store.options.maxclients);
    line(out, "client_recent_max_input_buffer", most(|session| session.pending.query_capacity));
    line(out, "client_recent_max_output_buffer", most(|session| session.output.memory_bytes()));
    let paused = store.all_sessions().filter(|session| session.is_paused).count();
    line(out, "blocked_clients", store.blocked_clients + paused);
    line(out, "tracking_clients", store.tracking.counts()[0]);
    line(out, "clients_in_timeout_table", store.deadlines.len());
    line(out, "pubsub_clients", store.all_sessions().filter(|session| session.subscriptions.count() > 0).count());
    line(out, "watching_clients", store.all_sessions().filter(|session| !session.watched.is_empty()).count());
    line(out, "total_watched_keys", store.watchers.len());
    line(out, "total_blocking_keys", store.waiting.len());
}

/// A number of bytes as people read it.
fn human(bytes: u64) -> String {
    const UNITS: [(u64, char); 4] = [(1 << 40, 'T'), (1 << 30, 'G'), (1 << 20, 'M'), (1 << 10, 'K')];
    match UNITS.iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, letter)) => format!("{:.2}{letter}", bytes as f64 / *unit as f64),
        None => format!("{bytes}B"),
    }
}

fn memory(store: &Store, out: &mut Text) {
    let heap = store.environment.heap;
    let figures = Figures::of(store);
    for (field, bytes) in [
        ("used_memory", figures.used),
        ("used_memory_rss", figures.resident),
        ("used_memory_peak", figures.peak),
        ("total_system_memory", store.environment.system_memory_bytes),
        ("maxmemory", store.options.maxmemory),
    ] {
        line(out, field, bytes);
        line(out, &format!("{field}_human"), human(bytes));
    }
    line(out, "used_memory_peak_perc", format!("{:.2}%", percent(figures.used, figures.peak)));
    line(out, "used_memory_overhead", figures.overhead);
    line(out, "used_memory_startup", figures.startup);
    let [scripts_machine, functions_machine] = store.scripting.machine_bytes();
    let (scripts, texts_bytes) = store.scripting.cached();
    let (libraries, functions) = store.scripting.library_counts();
    for (field, value) in [
        ("used_memory_vm_eval", scripts_machine),
        ("used_memory_lua", scripts_machine),
        ("used_memory_scripts_eval", texts_bytes),
        ("number_of_cached_scripts", scripts),
        ("number_of_functions", functions),
        ("number_of_libraries", libraries),
        ("used_memory_vm_functions", functions_machine),
        ("used_memory_vm_total", scripts_machine + functions_machine),
        ("used_memory_functions", store.scripting.library_bytes()),
        ("used_memory_scripts", texts_bytes + store.scripting.library_bytes()),
    ] {
        line(out, field, value);
        if matches!(field, "used_memory_lua" | "used_memory_vm_total" | "used_memory_scripts") {
            line(out, &format!("{field}_human"), human(value as u64));
        }
    }
    line(out, "used_memory_dataset", figures.dataset);
    line(out, "used_memory_dataset_perc", format!("{:.2}%", figures.dataset_percent()));
    line(out, "maxmemory_policy", store.options.maxmemory_policy.name());
    line(out, "mem_fragmentation_ratio", format!("{:.2}", figures.fragmentation()));
    line(out, "mem_fragmentation_bytes", figures.resident as i64 - figures.used as i64);
    line(out, "mem_clients_normal", figures.clients - figures.replicas);
    line(out, "mem_clients_slaves", figures.replicas);
    line(out, "mem_allocator", heap.allocator());
    line(out, "allocator_allocated", figures.used);
    line(out, "allocator_active", figures.resident);
    line(out, "allocator_resident", figures.resident);
    // All that the allocator keeps beside what is used counts as its fragmentation.
    line(out, "allocator_frag_ratio", format!("{:.2}", figures.fragmentation()));
    line(out, "allocator_frag_bytes", figures.resident as i64 - figures.used as i64);
    for share in ["allocator_rss", "rss_overhead"] {
        line(out, &format!("{share}_ratio"), "1.00");
        line(out, &format!("{share}_bytes"), 0);
    }
    let buffers = store.replication.backlog_bytes();
    line(out, "mem_not_counted_for_evict", store.buffers_beside_data_bytes());
    line(out, "mem_replication_backlog", buffers - store.replica_excess_bytes());
    line(out, "mem_total_replication_buffers", buffers);
    for field in ["mem_cluster_links", "mem_aof_buffer", "active_defrag_running"] {
        line(out, field, 0);
    }
    line(out, "lazyfree_pending_objects", store.pending_values());
    line(out, "lazyfreed_objects", store.freed_values() - store.stats.freed_values_before);
}

fn persistence(store: &Store, out: &mut Text) {
    let status = &store.durable.status;
    let compaction = store.durable.compaction();
    let now_ns = store.now.monotonic_ns;
    let result = |succeeded: bool| if succeeded { "ok" } else { "err" };
    let running_s =
        compaction.map_or(-1, |compaction| (now_ns.saturating_sub(compaction.started_ns) / 1_000_000_000) as i64);
    let is_logging = store.is_logging();
    let is_rewriting = is_logging || !store.saves_to_log();
    let log = store.durable.figures();
    line(out, "loading", u8::from(store.replication.is_loading()));
    for field in ["async_loading", "current_cow_peak", "current_cow_size", "current_cow_size_age"] {
        line(out, field, 0);
    }
    let done_percent = compaction.map_or(0.0, |run| run.keys_written as f64 * 100.0 / run.keys_total.max(1) as f64);
    line(out, "current_fork_perc", format!("{done_percent:.2}"));
    line(out, "current_save_keys_processed", compaction.map_or(0, |run| run.keys_written));
    line(out, "current_save_keys_total", compaction.map_or(0, |run| run.keys_total));
    let saves = &store.saves;
    line(out, "rdb_changes_since_last_save", store.unsaved_changes());
    let is_dumping = store.is_saving() || store.replication.walks() || (compaction.is_some() && !is_rewriting);
    line(out, "rdb_bgsave_in_progress", u8::from(is_dumping));
    line(out, "rdb_last_save_time", saves.last_unix_s());
    line(out, "rdb_last_bgsave_status", result(!saves.trouble.lasts()));
    line(out, "rdb_last_bgsave_time_sec", saves.took_s.map_or(-1, |took_s| took_s as i64));
    line(out, "rdb_current_bgsave_time_sec", if is_rewriting { -1 } else { running_s });
    line(out, "rdb_saves", saves.count);
    line(out, "rdb_last_cow_size", 0);
    line(out, "rdb_last_load_keys_expired", saves.expired_keys);
    line(out, "rdb_last_load_keys_loaded", saves.loaded_keys);
    line(out, "aof_enabled", u8::from(is_logging));
    line(out, "aof_rewrite_in_progress", u8::from(compaction.is_some() && is_rewriting));
    line(out, "aof_rewrite_scheduled", u8::from(store.durable.is_compacting() && compaction.is_none()));
    line(out, "aof_last_rewrite_time_sec", status.last_duration_s);
    line(out, "aof_current_rewrite_time_sec", if is_rewriting { running_s } else { -1 });
    line(out, "aof_last_bgrewrite_status", result(status.last_succeeded));
    line(out, "aof_rewrites", status.succeeded);
    line(out, "aof_rewrites_consecutive_failures", status.failures_in_a_row);
    line(out, "aof_last_write_status", result(!(store.log_fails() || store.lacks_room_for_master())));
    line(out, "aof_last_cow_size", 0);
    line(out, "module_fork_in_progress", 0);
    line(out, "module_fork_last_cow_size", 0);
    if let Some(log) = log.filter(|_| is_logging) {
        line(out, "aof_current_size", log.used_bytes);
        line(out, "aof_base_size", log.base_bytes);
        line(out, "aof_pending_rewrite", 0);
        line(out, "aof_buffer_length", 0);
        line(out, "aof_pending_bio_fsync", u8::from(log.is_behind));
        line(out, "aof_delayed_fsync", 0);
    }
    if let Some(log) = log {
        line(out, "kayvee_log_size", log.size_bytes);
        line(out, "kayvee_log_room", log.room_bytes);
        line(out, "kayvee_log_flushes", log.flushes);
        line(out, "kayvee_log_written_bytes", log.written_bytes);
    }
}

fn stats(store: &Store, out: &mut Text) {
    let [_, tracked_keys, tracked_items, tracked_prefixes] = store.tracking.counts();
    let stats = &store.stats;
    let rates = store.rates();
    line(out, "instantaneous_ops_per_sec", format!("{:.0}", rates.commands));
    line(out, "instantaneous_input_kbps", format!("{:.2}", rates.input_bytes / 1024.0));
    line(out, "instantaneous_output_kbps", format!("{:.2}", rates.output_bytes / 1024.0));
    let stale_percent = stats.expiry_found * 100.0 / stats.expiry_examined.max(1.0);
    line(out, "expired_stale_perc", format!("{stale_percent:.2}"));
    for (field, count) in [
        ("total_connections_received", stats.connections_received),
        ("total_commands_processed", stats.commands_processed),
        ("expired_time_cap_reached_count", stats.expiry_rounds_cut),
        ("total_reads_processed", stats.reads),
        ("total_writes_processed", stats.writes),
        ("pubsub_channels", store.listeners.count(Scope::Channel) as u64),
        ("pubsub_patterns", store.listeners.count(Scope::Pattern) as u64),
        ("pubsubshard_channels", store.listeners.count(Scope::Shard) as u64),
        ("latest_fork_usec", 0),
        ("total_forks", 0),
        ("tracking_total_keys", tracked_keys as u64),
        ("tracking_total_items", tracked_items as u64),
        ("tracking_total_prefixes", tracked_prefixes as u64),
        ("unexpected_error_replies", 0),
        ("total_net_input_bytes", stats.net_input_bytes),
        ("total_net_output_bytes", stats.net_output_bytes),
        ("total_net_repl_input_bytes", stats.repl_input_bytes),
        ("total_net_repl_output_bytes", stats.repl_output_bytes),
        ("rejected_connections", stats.connections_rejected),
        ("sync_full", stats.sync_full),
        ("sync_partial_ok", stats.sync_partial_ok),
        ("sync_partial_err", stats.sync_partial_err),
        ("expired_subkeys", stats.expired_fields),
        ("expired_keys", stats.expired_keys),
        ("evicted_keys", stats.evicted_keys),
        ("evicted_clients", stats.evicted_clients),
        ("total_eviction_exceeded_time", stats.eviction_exceeded_ns / 1_000_000),
        ("current_eviction_exceeded_time", store.eviction_exceeded_ms()),
        ("slave_expires_tracked_keys", store.own_keys() as u64),
        ("keyspace_hits", stats.keyspace_hits),
        ("keyspace_misses", stats.keyspace_misses),
        ("total_error_replies", stats.error_replies),
        ("client_query_buffer_limit_disconnections", stats.query_buffer_limit_disconnections),
        ("client_output_buffer_limit_disconnections", stats.output_buffer_limit_disconnections),
    ] {
        line(out, field, count);
    }
    for field in ["instantaneous_input_repl_kbps", "instantaneous_output_repl_kbps"] {
        line(out, field, "0.00");
    }
    // What there is no part for or what is not counted: memory that is put in order, several threads.
    for field in [
        "migrate_cached_sockets",
        "active_defrag_hits",
        "active_defrag_misses",
        "active_defrag_key_hits",
        "active_defrag_key_misses",
        "total_active_defrag_time",
        "current_active_defrag_time",
        "io_threaded_reads_processed",
        "io_threaded_writes_processed",
        "expire_cycle_cpu_milliseconds",
        "dump_payload_sanitizations",
        "reply_buffer_shrinks",
        "reply_buffer_expands",
    ] {
        line(out, field, 0);
    }
}

/// What Redis leaves to its kernel.
fn network(store: &Store, out: &mut Text) {
    for (name, _, _, value) in store.network.iter().flat_map(|network| network.each()) {
        let _ = write!(out, "kayvee_net_{name}:{value}\r\n");
    }
}

fn monitor(store: &Store, out: &mut Text) {
    for (name, _, _, value) in (store.environment.monitor)().iter().flat_map(MonitorFigures::each) {
        let _ = write!(out, "kayvee_monitor_{name}:{value}\r\n");
    }
}

fn cpu(store: &Store, out: &mut Text) {
    let used = (store.environment.processor_time)();
    for (field, us) in [("used_cpu_sys", used.system_us), ("used_cpu_user", used.user_us)] {
        let seconds = format!("{}.{:06}", us / 1_000_000, us % 1_000_000);
        // There is one thread, and no child.
        line(out, &format!("{field}_main_thread"), &seconds);
        line(out, field, seconds);
        line(out, &format!("{field}_children"), "0.000000");
    }
}

fn commandstats(store: &Store, out: &mut Text) {
    for (command, counts) in &store.calls {
        let us = counts.total_ns / 1000;
        let us_per_call = counts.total_ns as f64 / 1000.0 / counts.calls.max(1) as f64;
        let value = format!(
            "calls={},usec={us},usec_per_call={us_per_call:.2},rejected_calls={},failed_calls={}",
            counts.calls, counts.rejected, counts.failed
        );
        line(out, &format!("cmdstat_{}", name_in_statistics(command)), value);
    }
}

fn latencystats(store: &Store, out: &mut Text) {
    for (command, counts) in &store.calls {
        let Some(histogram) = &counts.histogram else { continue };
        let percentiles = store.options.latency_tracking_info_percentiles.iter();
        let values: Vec<String> = percentiles
            .map(|percent| {
                let ns = histogram.percentile_ns(*percent);
                format!("p{percent}={}.{:03}", ns / 1000, ns % 1000)
            })
            .collect();
        line(out, &format!("latency_percentiles_usec_{}", name_in_statistics(command)), values.join(","));
    }
}

fn errorstats(store: &Store, out: &mut Text) {
    for (code, count) in &store.stats.errors {
        line(out, &format!("errorstat_{code}"), format!("count={count}"));
    }
}

fn keyspace(store: &Store, out: &mut Text) {
    for (index, db) in store.dbs.iter().enumerate().filter(|(_, db)| !db.is_empty()) {
        let (keys, volatile, expiring) = (db.len(), db.volatile_len(), db.expiring_hashes());
        line(out, &format!("db{index}"), format!("keys={keys},expires={volatile},avg_ttl=0,subexpiry={expiring}"));
    }
}
