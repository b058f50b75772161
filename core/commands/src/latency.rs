//! `LATENCY`: how long commands take, and what kept clients waiting.

use crate::{
    Context, Error, Outcome, Store,
    server::help,
    table::{self, Command, Flags, Group, Tips},
    text::Text,
};
use alloc::{
    collections::{TryReserveError, VecDeque},
    format,
    string::String,
    vec::Vec,
};
use core::fmt::Write;
use kayvee_resp::Request;

/// Samples kept of each kind of event, as in Redis.
const SAMPLES_LIMIT: usize = 160;

/// Durations of one command's calls: how many fell into each of the buckets between 1 ns and a second. There are 32
/// buckets from each power of two to the next, so that what comes back is wrong by at most 3 %.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
    total_ns: u64,
}

const SUB_BITS: u32 = 5;
const SUB_BUCKETS: usize = 1 << SUB_BITS;
/// 2^30 ns are a little more than a second. What took longer counts as that.
const TOP_BITS: u32 = 30;
const BUCKETS: usize = (TOP_BITS - SUB_BITS + 1) as usize * SUB_BUCKETS;

impl Histogram {
    /// An empty one.
    pub fn new() -> Result<Histogram, TryReserveError> {
        let mut counts = Vec::new();
        counts.try_reserve_exact(BUCKETS)?;
        counts.resize(BUCKETS, 0);
        Ok(Histogram { counts, total: 0, total_ns: 0 })
    }

    fn bucket_of(ns: u64) -> usize {
        let ns = ns.clamp(1, (1 << TOP_BITS) - 1);
        let bits = 64 - ns.leading_zeros();
        let shift = bits.saturating_sub(SUB_BITS + 1);
        shift as usize * SUB_BUCKETS + (ns >> shift) as usize
    }

    /// The longest duration of a bucket.
    fn highest_ns(bucket: usize) -> u64 {
        let shift = (bucket / SUB_BUCKETS).saturating_sub(1);
        let first = bucket - shift * SUB_BUCKETS;
        ((first as u64 + 1) << shift) - 1
    }

    /// Notes so many calls that took so long each, and how long they took together.
    pub fn record(&mut self, ns: u64, calls: u64, total_ns: u64) {
        self.counts[Histogram::bucket_of(ns)] += calls;
        self.total += calls;
        self.total_ns += total_ns;
    }

    /// The duration that so many percent of the calls did not exceed.
    pub fn percentile_ns(&self, percent: f64) -> u64 {
        // Rounded up; `no_std` has no ceil.
        let exact = self.total as f64 * percent / 100.0;
        let wanted = (exact as u64 + u64::from(exact as u64 as f64 != exact)).max(1);
        let mut seen = 0;
        let reached = self.counts.iter().position(|&count| {
            seen += count;
            seen >= wanted
        });
        reached.map_or(0, Histogram::highest_ns)
    }

    /// How many calls there were.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// How long they took together.
    pub fn total_ns(&self) -> u64 {
        self.total_ns
    }

    /// How many calls took at most so many nanoseconds, one less than each power of two.
    pub fn steps(&self) -> impl Iterator<Item = (u64, u64)> {
        let mut seen = 0;
        let mut buckets = self.counts.iter().enumerate().peekable();
        (10..=TOP_BITS).map(move |bits| {
            while let Some((_, count)) = buckets.next_if(|&(bucket, _)| Histogram::highest_ns(bucket) < 1 << bits) {
                seen += *count;
            }
            ((1 << bits) - 1, seen)
        })
    }

    /// How many calls took at most so many microseconds, for each power of two at which there are more than before.
    pub fn cumulative(&self) -> impl Iterator<Item = (u64, u64)> {
        let mut before = 0;
        self.steps().filter_map(move |(ns, seen)| {
            let more = seen > before;
            before = seen;
            more.then_some((ns / 1000, seen))
        })
    }
}

/// One kind of event, and how long it took each time.
struct Series {
    event: &'static str,
    /// When, in seconds since 1970, and how many milliseconds.
    samples: VecDeque<(u64, u64)>,
    max_ms: u64,
}

/// What kept clients waiting, by kind.
#[derive(Default)]
pub struct Latencies(Vec<Series>);

impl Store {
    /// Notes that something kept clients waiting, if it took long enough.
    pub fn note_latency(&mut self, event: &'static str, took_ns: u64) {
        let threshold_ms = self.options.latency_monitor_threshold;
        let ms = took_ns / 1_000_000;
        if threshold_ms == 0 || ms < threshold_ms {
            return;
        }
        let unix_s = self.now.unix_us / 1_000_000;
        let all = &mut self.latencies.0;
        let at = all.iter().position(|series| series.event == event).unwrap_or_else(|| {
            all.push(Series { event, samples: VecDeque::new(), max_ms: 0 });
            all.len() - 1
        });
        let series = &mut all[at];
        series.max_ms = series.max_ms.max(ms);
        match series.samples.back_mut() {
            // Of several in a second the longest is kept.
            Some((second, longest)) if *second == unix_s => *longest = ms.max(*longest),
            _ => {
                if series.samples.len() == SAMPLES_LIMIT {
                    series.samples.pop_front();
                }
                series.samples.push_back((unix_s, ms));
            }
        }
    }

    /// Whether anybody wants to know what keeps clients waiting.
    pub fn monitors_latency(&self) -> bool {
        self.options.latency_monitor_threshold > 0
    }
}

const ROW: Command = Command {
    flags: Flags::ADMIN.union(Flags::NOSCRIPT).union(Flags::LOADING).union(Flags::STALE),
    group: Group::Server,
    ..Command::ROW
};

const EVERY_NODE: Tips = Tips::NONDETERMINISTIC_OUTPUT.union(Tips::ALL_NODES).union(Tips::SPECIAL_RESPONSE);

pub static SUBCOMMANDS: &[Command] = &[
    Command { name: "doctor", arity: 2, tips: EVERY_NODE, handler: Some(doctor), ..ROW },
    Command { name: "graph", arity: 3, tips: EVERY_NODE, handler: Some(graph), ..ROW },
    ROW.help(help_text),
    Command { name: "histogram", arity: -2, tips: EVERY_NODE, handler: Some(histogram), ..ROW },
    Command { name: "history", arity: 3, tips: EVERY_NODE, handler: Some(history), ..ROW },
    Command { name: "latest", arity: 2, tips: EVERY_NODE, handler: Some(latest), ..ROW },
    Command { name: "reset", arity: -2, tips: Tips::ALL_NODES.union(Tips::ALL_SUCCEEDED), handler: Some(reset), ..ROW },
];

/// A command's name as statistics show it, with its container's.
pub fn name_in_statistics(command: &Command) -> String {
    let is_it = |candidate: &Command| core::ptr::eq(candidate, command);
    match table::all().find(|container| container.subcommands.iter().any(is_it)) {
        Some(container) => format!("{}|{}", container.name, command.name),
        None => command.name.into(),
    }
}

fn histogram(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    context.store.end_timing();
    let Context { store, reply, .. } = context;
    let is_asked = |name: &str| {
        let container = name.split('|').next().unwrap_or_default();
        request.from(2).any(|asked| [name, container].iter().any(|name| asked.eq_ignore_ascii_case(name.as_bytes())))
    };
    let with_data = store.calls.iter().filter_map(|(command, calls)| Some((command, calls.histogram.as_ref()?)));
    let found: Vec<(String, &Histogram)> = with_data
        .map(|(command, histogram)| (name_in_statistics(command), &**histogram))
        .filter(|(name, _)| request.len() == 2 || is_asked(name))
        .collect();
    reply.map(found.len());
    for (name, histogram) in found {
        reply.bulk(name.as_bytes());
        reply.map(2);
        reply.bulk(b"calls");
        reply.integer(histogram.total as i64);
        reply.bulk(b"histogram_usec");
        reply.map(histogram.cumulative().count());
        for (us, calls) in histogram.cumulative() {
            reply.integer(us as i64);
            reply.integer(calls as i64);
        }
    }
    Ok(())
}

fn find<'a>(store: &'a Store, event: &[u8]) -> Option<&'a Series> {
    store.latencies.0.iter().find(|series| series.event.as_bytes() == event)
}

fn history(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let Context { store, reply, .. } = context;
    let samples = find(store, &request[2]).map(|series| &series.samples);
    reply.array(samples.map_or(0, VecDeque::len));
    for &(unix_s, ms) in samples.into_iter().flatten() {
        reply.array(2);
        reply.integer(unix_s as i64);
        reply.integer(ms as i64);
    }
    Ok(())
}

fn latest(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    let Context { store, reply, .. } = context;
    reply.array(store.latencies.0.len());
    for series in &store.latencies.0 {
        let (unix_s, ms) = series.samples.back().copied().unwrap_or_default();
        reply.array(4);
        reply.bulk(series.event.as_bytes());
        [unix_s, ms, series.max_ms].into_iter().for_each(|number| reply.integer(number as i64));
    }
    Ok(())
}

fn reset(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let all = &mut context.store.latencies.0;
    let before = all.len();
    all.retain(|series| request.len() > 2 && !request.from(2).any(|event| event == series.event.as_bytes()));
    let removed = before - all.len();
    context.reply.integer(removed as i64);
    Ok(())
}

fn ago(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

fn graph(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    const ROWS: u64 = 4;
    const COLUMNS: usize = 80;
    let now_s = context.store.now.unix_us / 1_000_000;
    let Some(series) = find(context.store, &request[2]) else {
        return Err(Error::showing("ERR No samples available for event '", &request[2], "'"));
    };
    let last: Vec<(u64, u64)> = series.samples.iter().rev().take(COLUMNS).rev().copied().collect();
    let low = last.iter().map(|&(_, ms)| ms).min().unwrap_or(0);
    let high = last.iter().map(|&(_, ms)| ms).max().unwrap_or(0);
    let mut text = Text::default();
    // What finds no memory fails the whole text.
    let _ = writeln!(text, "{} - high {high} ms, low {low} ms (all time high {} ms)", series.event, series.max_ms);
    let _ = writeln!(text, "{}", "-".repeat(COLUMNS));
    // From the top: a column reaches as many rows as its duration is large between the lowest and the highest.
    for row in (0..ROWS).rev() {
        for &(_, ms) in &last {
            let height = ((ms - low) * ROWS * 2) / (high - low).max(1);
            let mark = match height.min(ROWS * 2 - 1).checked_sub(row * 2) {
                None => ' ',
                Some(0) => '_',
                Some(1) => 'o',
                Some(_) => '#',
            };
            let _ = text.write_char(mark);
        }
        let _ = text.write_char('\n');
    }
    let labels: Vec<String> = last.iter().map(|&(unix_s, _)| ago(now_s.saturating_sub(unix_s))).collect();
    let _ = text.write_char('\n');
    // Written downwards, a letter of each label in a line.
    for line in 0..labels.iter().map(String::len).max().unwrap_or(0) {
        for label in &labels {
            let _ = text.write_char(label.chars().nth(line).unwrap_or(' '));
        }
        let _ = text.write_char('\n');
    }
    text.reply(&mut context.reply)
}

fn doctor(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    let store = &*context.store;
    let mut text = Text::default();
    if !store.monitors_latency() {
        let _ = writeln!(
            text,
            "Nothing is watched: latency-monitor-threshold is 0. Set it to the milliseconds that are too long for you, \
             for instance with CONFIG SET latency-monitor-threshold 100, and ask again later."
        );
    } else if store.latencies.0.is_empty() {
        let threshold = store.options.latency_monitor_threshold;
        let _ = writeln!(text, "Nothing has kept clients waiting for {threshold} ms or longer so far.");
    }
    for series in &store.latencies.0 {
        let count = series.samples.len() as u64;
        let sum: u64 = series.samples.iter().map(|&(_, ms)| ms).sum();
        let _ = writeln!(
            text,
            "{}: {count} times, {} ms on average, {} ms at most. {}",
            series.event,
            sum / count.max(1),
            series.max_ms,
            advice(series.event)
        );
    }
    text.reply(&mut context.reply)
}

fn advice(event: &str) -> &'static str {
    match event {
        "command" => {
            "SLOWLOG GET shows which commands took long; look for those whose time grows with the size of a key."
        }
        "fast-command" => {
            "Commands that take little by themselves were slow: the machine was busy with something else, or had no \
             memory at hand."
        }
        "expire-cycle" => "Many keys expire at the same time; spread their times a little.",
        "eviction-cycle" | "eviction-del" => "Memory is full and many keys have to make way; raise maxmemory.",
        _ => "",
    }
}

fn help_text(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    help(context, "LATENCY", SUBCOMMANDS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn buckets_follow_each_other_without_a_gap() {
        let mut next = 1;
        for bucket in 1..BUCKETS {
            assert_eq!(Histogram::bucket_of(next), bucket, "{next}");
            let highest = Histogram::highest_ns(bucket);
            assert_eq!(Histogram::bucket_of(highest), bucket, "{highest}");
            assert!(highest >= next && (highest - next) as f64 <= next as f64 / 32.0, "{next} to {highest}");
            next = highest + 1;
        }
        assert_eq!(next, 1 << TOP_BITS);
        assert_eq!(Histogram::bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles_and_cumulative_counts() {
        let mut histogram = Histogram::new().unwrap();
        histogram.record(500, 1, 500);
        histogram.record(3_000, 8, 24_007);
        histogram.record(50_000_000, 1, 50_000_000);
        let near = |ns: u64, wanted: u64| assert!(ns.abs_diff(wanted) <= wanted / 30, "{ns} {wanted}");
        near(histogram.percentile_ns(0.0), 500);
        near(histogram.percentile_ns(50.0), 3_000);
        near(histogram.percentile_ns(99.9), 50_000_000);
        assert_eq!(histogram.cumulative().collect::<Vec<_>>(), vec![(1, 1), (4, 9), (67_108, 10)]);
        assert_eq!((histogram.total(), histogram.total_ns()), (10, 50_024_507));
        // More of them than the days of a busy server have.
        histogram.record(3_000, 1 << 40, 3_000 << 40);
        let last = histogram.cumulative().last();
        assert_eq!((last, histogram.total()), (Some((67_108, (1 << 40) + 10)), (1 << 40) + 10));
        near(histogram.percentile_ns(99.9), 3_000);
        near(histogram.percentile_ns(100.0), 50_000_000);
    }
}
