//! What the web server shows of the store: figures for Prometheus and for the status page, and keys as pages.

use crate::{Store, args::copied, latency::name_in_statistics, memory::Figures, transactions::for_each_request};
use alloc::{collections::BTreeMap, string::String, vec::Vec};
use core::fmt::{self, Write};
use kayvee_keyspace::{Kind, Value};
use kayvee_platform::{Decimal, FigureKind, MonitorFigures, NetworkFigures};

/// Buckets of a command's durations for Prometheus, from a microsecond to a quarter of a second.
const BUCKETS: usize = 10;
/// Slow calls that the status page shows, and words of each.
const SLOW_CALLS: usize = 8;
const SLOW_CALL_WORDS: usize = 3;

/// Writes metrics in Prometheus' text format (version 0.0.4).
pub struct Metrics<'a>(pub &'a mut dyn Write);

impl Metrics<'_> {
    /// What a metric is, before its values. Names follow Prometheus' rules: a unit in base units, `_total` for counters.
    pub fn describe(&mut self, name: &str, kind: &str, help: &str) -> fmt::Result {
        write!(self.0, "# HELP kayvee_{name} {help}\n# TYPE kayvee_{name} {kind}\n")
    }

    /// One value, with its labels in braces or none.
    pub fn value(&mut self, name: &str, labels: &str, value: impl fmt::Display) -> fmt::Result {
        writeln!(self.0, "kayvee_{name}{labels} {value}")
    }

    /// A metric with one value.
    pub fn number(&mut self, name: &str, kind: &str, help: &str, value: u64) -> fmt::Result {
        self.describe(name, kind, help)?;
        self.value(name, "", value)
    }
}

/// The value of a key that is published.
pub enum Published {
    /// A string.
    Value(Vec<u8>),
    /// There is none.
    Missing,
    /// There is no memory for a copy of it, or a client of the store would be refused as well.
    NotNow,
}

impl Store {
    /// Whether somebody with this name and password may see what the operator sees: a user of the store who may run requests
    /// that tell the same. Where the default user needs no password, that is anybody.
    pub fn may_observe(&self, credentials: Option<(&[u8], &[u8])>, same: &[u8]) -> bool {
        let Some(user) = self.acl.identify(credentials) else { return false };
        let mut may = true;
        for_each_request(same, |request| {
            // By its own name: what clients have to call it, if they can at all, says nothing of who may.
            let container = self.commands.find_own(&request[0]);
            let known = container.and_then(|container| Some((container, container.named_in(request)?)));
            may &= known.is_some_and(|(container, command)| user.check(container, command, request).is_ok());
        });
        may
    }

    /// Reads the string at a key of the first database, for a page.
    pub fn published(&mut self, key: &[u8]) -> Published {
        if self.scripting.is_busy() || self.replication.is_loading() || self.refusal_of_stale_data().is_some() {
            return Published::NotNow;
        }
        let now_ms = self.now.unix_ms();
        let room_bytes = self.reply_room_bytes();
        let db = &mut self.dbs[0];
        let found = db.find(key, now_ms).filter(|found| db.kind(*found) == Kind::String);
        let value = found.map(|found| {
            db.touch(found, now_ms);
            match db.value(found) {
                Value::Integer(number) => copied(Decimal::new(number).as_bytes()).ok(),
                Value::Bytes(bytes) if bytes.len() as u64 > room_bytes => None,
                Value::Bytes(bytes) => copied(bytes).ok(),
            }
        });
        if db.expired_names.has_any() {
            self.report_expired(0);
        }
        match value {
            Some(Some(bytes)) => {
                self.stats.keyspace_hits += 1;
                Published::Value(bytes)
            }
            Some(None) => Published::NotNow,
            None => {
                self.stats.keyspace_misses += 1;
                Published::Missing
            }
        }
    }

    /// Writes the store's figures in Prometheus' text format.
    // Inlined into a crate that is compiled for speed, it would be large without being needed often.
    #[inline(never)]
    pub fn metrics(&self, metrics: &mut Metrics<'_>) -> fmt::Result {
        self.put_numbers(metrics)?;
        self.put_keys(metrics)?;
        self.put_commands(metrics)
    }

    /// What the status page shows, as the fields of a JSON object without its braces.
    #[inline(never)]
    pub fn status_fields(&self, out: &mut dyn Write) -> fmt::Result {
        let (stats, figures, log) = (&self.stats, Figures::of(self), self.durable.figures());
        let volatile: usize = self.dbs.iter().map(|db| db.volatile_len()).sum();
        write!(out, "\"target\":\"{}\",\"version\":\"Kayvee {}\"", self.environment.target, env!("CARGO_PKG_VERSION"))?;
        for (name, value) in [
            ("ms", self.now.monotonic_ns / 1_000_000),
            ("uptime", self.now.monotonic_ns.saturating_sub(self.started.monotonic_ns) / 1_000_000_000),
            ("commands", stats.commands_processed),
            ("errors", stats.error_replies),
            ("used", figures.used),
            ("peak", figures.peak),
            ("resident", figures.resident),
            ("dataset", figures.dataset),
            ("clients_bytes", figures.clients),
            ("max", self.options.maxmemory),
            ("keys", figures.keys),
            ("volatile", volatile as u64),
            ("expired", stats.expired_keys),
            ("evicted", stats.evicted_keys),
            ("hits", stats.keyspace_hits),
            ("misses", stats.keyspace_misses),
            ("clients", self.clients as u64),
            ("net_in", stats.net_input_bytes),
            ("net_out", stats.net_output_bytes),
            ("log_size", log.map_or(0, |log| log.size_bytes)),
            ("log_used", log.map_or(0, |log| log.used_bytes)),
            ("log_written", log.map_or(0, |log| log.written_bytes)),
            ("log_flushes", log.map_or(0, |log| log.flushes)),
        ] {
            write!(out, ",\"{name}\":{value}")?;
        }
        self.put_boot_phases(out)?;
        self.put_network(out)?;
        self.put_latency(out)?;
        self.put_slow_calls(out)
    }

    /// What the network stack of our own does, if there is one: names, values, and whether they count up.
    fn put_network(&self, out: &mut dyn Write) -> fmt::Result {
        out.write_str(",\"network\":[")?;
        let figures = self.network.iter().flat_map(|network| network.each());
        for (index, (name, kind, _, value)) in figures.enumerate() {
            let counts = u8::from(matches!(kind, FigureKind::Counter));
            write!(out, "{}[\"{name}\",{value},{counts}]", if index == 0 { "" } else { "," })?;
        }
        out.write_str("]")
    }

    /// What was done until the store was ready, and until when, in microseconds of the monotonic clock.
    fn put_boot_phases(&self, out: &mut dyn Write) -> fmt::Result {
        out.write_str(",\"boot\":[")?;
        for (index, (name, over_ns)) in self.boot_phases.iter().enumerate() {
            write!(out, "{}[\"{name}\",{}]", if index == 0 { "" } else { "," }, over_ns / 1000)?;
        }
        out.write_str("]")
    }

    /// How many calls of any command took at most so many microseconds, in steps that do not overlap.
    fn put_latency(&self, out: &mut dyn Write) -> fmt::Result {
        let mut steps: BTreeMap<u64, u64> = BTreeMap::new();
        for histogram in self.calls.iter().filter_map(|(_, calls)| calls.histogram.as_ref()) {
            let mut before = 0;
            for (us, count) in histogram.cumulative() {
                *steps.entry(us).or_default() += count - before;
                before = count;
            }
        }
        out.write_str(",\"latency\":[")?;
        for (index, (us, count)) in steps.iter().enumerate() {
            write!(out, "{}[{us},{count}]", if index == 0 { "" } else { "," })?;
        }
        out.write_str("]")
    }

    fn put_slow_calls(&self, out: &mut dyn Write) -> fmt::Result {
        out.write_str(",\"slow\":[")?;
        for (index, (words, us)) in self.slow_log.newest(SLOW_CALLS).enumerate() {
            out.write_str(if index == 0 { "[\"" } else { ",[\"" })?;
            for word in words.iter().take(SLOW_CALL_WORDS) {
                for char in String::from_utf8_lossy(word).chars() {
                    match char {
                        '"' | '\\' | ..' ' | '\x7f' => write!(out, "\\u{:04x}", u32::from(char))?,
                        _ => out.write_char(char)?,
                    }
                }
                out.write_char(' ')?;
            }
            write!(out, "\",{us}]")?;
        }
        out.write_str("]")
    }

    fn put_numbers(&self, metrics: &mut Metrics<'_>) -> fmt::Result {
        let (stats, figures) = (&self.stats, Figures::of(self));
        let uptime_s = self.now.monotonic_ns.saturating_sub(self.started.monotonic_ns) / 1_000_000_000;
        for (name, kind, help, value) in [
            ("uptime_seconds", "gauge", "Time since the start.", uptime_s),
            ("memory_used_bytes", "gauge", "Bytes that the allocator has given out.", figures.used),
            ("memory_peak_bytes", "gauge", "Most bytes ever given out.", figures.peak),
            ("memory_resident_bytes", "gauge", "Physical memory of the whole program.", figures.resident),
            ("memory_clients_bytes", "gauge", "Buffers of all clients.", figures.clients),
            ("memory_dataset_bytes", "gauge", "Keys and values.", figures.dataset),
            ("memory_max_bytes", "gauge", "Option maxmemory; 0 for no limit.", self.options.maxmemory),
            ("connected_clients", "gauge", "Clients of the store.", self.clients as u64),
            ("connections_received_total", "counter", "Clients accepted.", stats.connections_received),
            ("connections_rejected_total", "counter", "Clients refused.", stats.connections_rejected),
            ("commands_processed_total", "counter", "Commands executed.", stats.commands_processed),
            ("error_replies_total", "counter", "Replies that were errors.", stats.error_replies),
            ("keyspace_hits_total", "counter", "Lookups that found a key.", stats.keyspace_hits),
            ("keyspace_misses_total", "counter", "Lookups that found none.", stats.keyspace_misses),
            ("expired_keys_total", "counter", "Keys whose time has come.", stats.expired_keys),
            ("evicted_keys_total", "counter", "Keys that made way for others.", stats.evicted_keys),
            ("net_input_bytes_total", "counter", "Bytes from the store's clients.", stats.net_input_bytes),
            ("net_output_bytes_total", "counter", "Bytes to the store's clients.", stats.net_output_bytes),
        ] {
            metrics.number(name, kind, help, value)?;
        }
        let monitor = (self.environment.monitor)();
        let network = self.network.iter().flat_map(NetworkFigures::each).map(|figure| ("network", figure));
        let monitor = monitor.iter().flat_map(MonitorFigures::each).map(|figure| ("monitor", figure));
        for (of, (name, kind, help, value)) in network.chain(monitor) {
            let (suffix, kind) = match kind {
                FigureKind::Counter => ("_total", "counter"),
                FigureKind::Gauge => ("", "gauge"),
            };
            metrics.number(&alloc::format!("{of}_{name}{suffix}"), kind, help.trim(), value)?;
        }
        let Some(log) = self.durable.figures() else { return Ok(()) };
        for (name, kind, help, value) in [
            ("log_size_bytes", "gauge", "The persistent log's room on its disk.", log.size_bytes),
            ("log_used_bytes", "gauge", "What of it is in use.", log.used_bytes),
            ("log_written_bytes_total", "counter", "Bytes written to it.", log.written_bytes),
            ("log_flushes_total", "counter", "Times that it was brought to stable storage.", log.flushes),
        ] {
            metrics.number(name, kind, help, value)?;
        }
        Ok(())
    }

    fn put_keys(&self, metrics: &mut Metrics<'_>) -> fmt::Result {
        for (name, help) in [("keys", "Keys of a database."), ("keys_volatile", "Those that expire.")] {
            metrics.describe(name, "gauge", help)?;
            for (index, db) in self.dbs.iter().enumerate().filter(|(index, db)| *index == 0 || !db.is_empty()) {
                let count = if name == "keys" { db.len() } else { db.volatile_len() };
                metrics.value(name, &alloc::format!("{{db=\"{index}\"}}"), count)?;
            }
        }
        Ok(())
    }

    fn put_commands(&self, metrics: &mut Metrics<'_>) -> fmt::Result {
        let name = "command_failures_total";
        metrics.describe(name, "counter", "Calls that ended in an error, or were refused.")?;
        for (command, calls) in &self.calls {
            let labels = alloc::format!("{{command=\"{}\"}}", name_in_statistics(command));
            metrics.value(name, &labels, calls.failed + calls.rejected)?;
        }
        let name = "command_duration_seconds";
        metrics.describe(name, "histogram", "How long calls of a command took.")?;
        for (command, calls) in &self.calls {
            let command = name_in_statistics(command);
            // The same for all, so that they can be added up. The last step has what took longer as well.
            for (ns, count) in calls.histogram.iter().flat_map(|histogram| histogram.steps().step_by(2).take(BUCKETS)) {
                let labels = alloc::format!("_bucket{{command=\"{command}\",le=\"0.{ns:09}\"}}");
                metrics.value(name, &labels, count)?;
            }
            // Calls that were not tracked are in neither, unless none was.
            let histogram = calls.histogram.as_ref();
            let (count, total_ns) =
                histogram.map_or((calls.calls, calls.total_ns), |histogram| (histogram.total(), histogram.total_ns()));
            metrics.value(name, &alloc::format!("_bucket{{command=\"{command}\",le=\"+Inf\"}}"), count)?;
            let (seconds, ns) = (total_ns / 1_000_000_000, total_ns % 1_000_000_000);
            let sum = alloc::format!("{seconds}.{ns:09}");
            metrics.value(name, &alloc::format!("_sum{{command=\"{command}\"}}"), sum)?;
            metrics.value(name, &alloc::format!("_count{{command=\"{command}\"}}"), count)?;
        }
        Ok(())
    }
}
