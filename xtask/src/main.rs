//! What contributors run: `./kayvee test`, which is `cargo run -p xtask -- test`, and `./kayvee suite`.
//!
//! The tests are in sections. Every section runs even after another has failed; the last line sums them up.

mod clients;
mod command;
mod compatibility;
mod fuzz;
mod store;
mod suite;
mod watchdog;
mod web;

use command::{Tally, cargo, run, testing};
use std::{
    io,
    process::{Command, ExitCode},
    time::{Duration, Instant},
};
use store::{RedisServer, Store};

const USAGE: &str = "\
What contributors run.

Usage: ./kayvee test [--long] [SECTION]...
       ./kayvee suite --help

Runs everything that CI runs, or the sections named. --long takes longer and finds more.

";

/// A larger image is a mistake to be looked for: code made several times, or built for speed that nobody needs.
const IMAGE_BYTES_MAX: u64 = 2 << 20;

/// For so long a test may be silent: cargo tells of each that ends, and of those that take over a minute.
const SILENCE_MAX: Duration = Duration::from_secs(10 * 60);

/// How thorough a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effort {
    /// What CI does.
    Usual,
    /// What takes gigabytes of memory and many minutes.
    Long,
}

/// One part of the tests.
struct Section {
    name: &'static str,
    what: &'static str,
    run: fn(Effort) -> io::Result<Tally>,
}

const SECTIONS: &[Section] = &[
    Section { name: "format", what: "rustfmt changes nothing", run: |_| cargo(&["fmt", "--all", "--check"]) },
    Section {
        name: "lint",
        what: "clippy has nothing to say",
        run: |_| cargo(&["clippy", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"]),
    },
    Section { name: "docs", what: "docs/compatibility.md is up to date", run: |_| compatibility::check() },
    Section {
        name: "core",
        what: "the tests that need nothing but this host",
        run: |_| cargo(&["test", "--locked", "--workspace", "--no-fail-fast"]),
    },
    Section { name: "build", what: "the release build, and the image's size", run: |_| build_and_weigh() },
    Section { name: "vectors", what: "the vectors and the fuzzer are right about redis-server", run: vectors },
    Section {
        name: "linux",
        what: "vectors, clients, load and random commands on the Linux process",
        run: |effort| everything(effort, &["--target", "linux"]),
    },
    Section {
        name: "tcg",
        what: "the same on a guest under emulation",
        run: |effort| everything(effort, &["--target", "tcg", "--memory", "256"]),
    },
    Section { name: "kvm", what: "the same on a guest under KVM with QEMU", run: |effort| on_kvm(effort, "qemu") },
    Section {
        name: "vmm",
        what: "the same on a guest in Kayvee's own monitor, gdb, and a thousand starts and kills (--long)",
        run: vmm,
    },
    Section {
        name: "hardware",
        what: "the own monitor's tests on KVM as hardware has it, under an emulated processor (with --long only)",
        run: hardware,
    },
    Section {
        name: "pci",
        what: "vectors, redis-cli and large values on a guest with its devices on PCI",
        run: |_| some(&["--target", "tcg", "--machine", "q35", "--memory", "64"]),
    },
    Section {
        name: "user",
        what: "vectors, redis-cli and large values on a guest whose network needs no rights",
        run: |_| some(&["--target", "tcg", "--net", "user", "--memory", "64"]),
    },
    Section { name: "xdp", what: "vectors, load and Linux' own TCP on a process past the kernel's network", run: xdp },
    Section {
        name: "web",
        what: "the web server's vectors, a site byte by byte, slow clients and many, on every target",
        run: web::on_every_target,
    },
    Section {
        name: "browser",
        what: "the status page in Chromium: numbers that move, a narrow window, darkness, keys, a lost connection",
        run: web::in_a_browser,
    },
    Section {
        name: "crash",
        what: "what was acknowledged is there after kill -9, on every target in turn",
        run: crash,
    },
    Section { name: "suite", what: "the quick part of Redis' own tests, on every target", run: |_| quick_suites() },
    Section {
        name: "boot",
        what: "the image on QEMU's machines: starting, failing and ending",
        run: |_| run_ignored("boot", "2"),
    },
    Section { name: "run", what: "the kayvee command, on every target", run: |_| run_ignored("run", "2") },
    Section {
        name: "lossy",
        what: "the TCP engine against Linux' own, over a wire that loses, reorders and damages frames",
        run: lossy,
    },
    Section {
        name: "crashes",
        what: "crash points of the persistent log by the million (with --long only)",
        run: crashes,
    },
    Section {
        name: "dump",
        what: "dump files and append-only files of redis-server, and dump files for it",
        run: |_| {
            need_linux_build()?;
            run(&mut ignored_tests("dump", "2"))
        },
    },
    Section {
        name: "replication",
        what: "copies, failovers and keys that move, between Kayvee's processes, its guests and redis-server",
        // Most of each is waiting of one side for the other.
        run: |_| run_ignored("replication", "4"),
    },
    Section {
        name: "shards",
        what: "clusters of stores, on every target, with clients that know clusters",
        run: |_| shards(),
    },
    Section { name: "fuzz", what: "libFuzzer on every target of fuzz/ (with --long only)", run: fuzz::run_targets },
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.split_first() {
        Some((task, rest)) if task == "suite" => suite::main(rest),
        Some((task, [])) if task == "compatibility" => match compatibility::write() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("xtask: {error}");
                ExitCode::FAILURE
            }
        },
        Some((task, rest)) if task == "test" && !rest.iter().any(|word| word == "-h" || word == "--help") => {
            let (options, names): (Vec<&String>, Vec<&String>) = rest.iter().partition(|word| word.starts_with("--"));
            let known = |name: &&String| SECTIONS.iter().any(|section| section.name == name.as_str());
            if !options.iter().all(|word| *word == "--long") || !names.iter().all(known) {
                eprint!("xtask: there is no such section or option\n\n{}", usage());
                return ExitCode::from(2);
            }
            test(&names, if options.is_empty() { Effort::Usual } else { Effort::Long })
        }
        _ => {
            print!("{}", usage());
            ExitCode::SUCCESS
        }
    }
}

fn usage() -> String {
    let sections = SECTIONS.iter().map(|section| format!("  {:<8} {}\n", section.name, section.what));
    sections.fold(USAGE.to_string(), |text, line| text + &line)
}

fn test(names: &[&String], effort: Effort) -> ExitCode {
    let mut total = Tally::default();
    let mut failed_sections = Vec::new();
    // One of the long ones may be silent for hours, and somebody who has asked for it looks at it.
    if effort == Effort::Usual
        && let Err(error) = watchdog::watch(SILENCE_MAX)
    {
        println!("nobody ends tests that hang: {error}");
    }
    let wanted = |section: &&Section| names.is_empty() || names.iter().any(|name| *name == section.name);
    for section in SECTIONS.iter().filter(wanted) {
        println!("\n== {}: {}", section.name, section.what);
        watchdog::heard();
        let start = Instant::now();
        let tally = (section.run)(effort).unwrap_or_else(|error| Tally::failed(&format!("{}: {error}", section.name)));
        println!("== {}: {tally}, {} s", section.name, start.elapsed().as_secs());
        if tally.failed > 0 {
            failed_sections.push(section.name);
        }
        total += tally;
    }
    println!();
    total += watchdog::end_left_behind();
    for line in command::take_failures() {
        println!("{line}");
    }
    if !failed_sections.is_empty() {
        println!("failed: {}", failed_sections.join(", "));
    }
    println!("{total}");
    ExitCode::from(u8::from(total.failed > 0))
}

/// Tests that start processes and guests from the release build, so many at a time.
fn ignored_tests(test: &str, threads: &str) -> Command {
    let mut tests = Command::new("cargo");
    // Of the whole workspace, so that nothing is built once more with the features that one package alone asks for.
    tests.args(["test", "--locked", "--workspace", "--test", test, "--", "--ignored", "--test-threads", threads]);
    tests
}

fn run_ignored(test: &str, threads: &str) -> io::Result<Tally> {
    need_build()?;
    run(&mut ignored_tests(test, threads))
}

/// Builds what the later sections run. They do it too, so that each can be run by itself.
fn build(options: &[&str]) -> io::Result<Tally> {
    let release = ["build", "--locked", "--release", "-p", "kayvee-cli", "-p", "kayvee-linux", "-p", "kayvee-guest"];
    let mut tally = cargo(&[&release[..], options].concat())?;
    // The tests' programs come with each of its tests, compiled as for those; `cargo build` has other features, and would
    // compile nearly everything once more.
    tally += cargo(&[&["test", "--locked", "--workspace", "--no-run", "--test", "http"], options].concat())?;
    Ok(tally)
}

/// The release build, whose image has to be small enough.
fn build_and_weigh() -> io::Result<Tally> {
    let mut tally = build(&[])?;
    if tally.failed == 0 {
        tally += weigh_image(IMAGE_BYTES_MAX)?;
    }
    Ok(tally)
}

/// Whether the image that `kayvee image` writes has at most so many bytes.
fn weigh_image(bytes_max: u64) -> io::Result<Tally> {
    let image = command::target_dir().join("tmp/weighed.elf");
    std::fs::create_dir_all(image.with_file_name(""))?;
    let kayvee = command::target_dir().join("release/kayvee");
    needed(run(Command::new(kayvee).args(["image", "-o"]).arg(&image))?)?;
    let bytes = image.metadata()?.len();
    if bytes > bytes_max {
        println!("what is large: nm --demangle --size-sort target/release/kayvee-guest | tail -50");
        let more = bytes - bytes_max;
        return Ok(Tally::failed(&format!("the image is small: it has {bytes} bytes, {more} more than it may")));
    }
    Ok(Tally::ok(&format!("the image is small: it has {bytes} bytes, {} fewer than it may", bytes_max - bytes)))
}

/// A build before other tests: it counts only when it fails.
fn need_build() -> io::Result<()> {
    needed(build(&["--quiet"])?)
}

/// The command and the Linux process alone, which are built sooner than the image.
fn need_linux_build() -> io::Result<()> {
    needed(cargo(&["build", "--quiet", "--locked", "--release", "-p", "kayvee-cli", "-p", "kayvee-linux"])?)
}

fn needed(build: Tally) -> io::Result<()> {
    match build.failed {
        0 => Ok(()),
        _ => Err(io::Error::other("the build failed")),
    }
}

/// The tests of the tests: what they say of redis-server, and that they find something where there is something.
fn vectors(_: Effort) -> io::Result<Tally> {
    need_build()?;
    let redis = RedisServer::start(&["--enable-debug-command", "yes"])?;
    let other = RedisServer::start(&["--maxmemory-policy", "allkeys-lfu"])?;
    let mut tally = run(testing("conformance").args(["--addr", &redis.addr()]))?;
    let mut compare = testing("differential");
    compare.args(["--left", &redis.addr(), "--right", &other.addr(), "--seed", "1", "--steps", "20000"]);
    // One of the two says something else to OBJECT FREQ: that must not go unnoticed.
    let output = compare.output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    tally += if output.status.code() == Some(1) && said.contains("LFU maxmemory policy") {
        Tally::ok("the differential fuzzer finds a difference")
    } else {
        Tally::failed(&format!("the differential fuzzer finds a difference: {said}"))
    };
    Ok(tally)
}

/// Everything that a running store has to pass.
fn everything(effort: Effort, arguments: &[&str]) -> io::Result<Tally> {
    need_build()?;
    let store = Store::start(arguments)?;
    let redis = RedisServer::start(&[])?;
    // A change is to be judged by the same commands each time; new ones are for who looks for what nobody has seen.
    let (compared, long): (&[&str], &[&str]) = match effort {
        Effort::Usual => (&["--steps", "60000", "--seed", "1"], &[]),
        Effort::Long => (&["--steps", "5000000"], &["--long"]),
    };
    let mut tally = run(testing("conformance").args(["--addr", &store.addr]))?;
    tally += clients::all(&store.addr)?;
    tally += clients::applications(&store.addr)?;
    tally += run(testing("stress").args(["--addr", &store.addr]).args(long))?;
    let pair = ["--left", &redis.addr(), "--right", &store.addr];
    tally += run(testing("differential").args(pair).args(compared))?;
    tally += store.end()?;
    Ok(tally)
}

/// The same on a guest under KVM, where that works, with this monitor.
fn on_kvm(effort: Effort, vmm: &str) -> io::Result<Tally> {
    match store::kvm_works()? {
        Ok(()) => everything(effort, &["--target", "kvm", "--vmm", vmm, "--memory", "256"]),
        Err(why) => Ok(Tally::skipped(&format!("no guest boots under KVM here: {why}"))),
    }
}

/// The own monitor: what every store has to pass, and what only it has.
fn vmm(effort: Effort) -> io::Result<Tally> {
    let mut tally = on_kvm(effort, "kayvee")?;
    if tally.skipped == 0 {
        let kills = if effort == Effort::Long { "1000" } else { "30" };
        tally += run(ignored_tests("monitor", "1").env("KAYVEE_KILLS", kills))?;
    }
    Ok(tally)
}

/// The own monitor in a Linux under QEMU, which emulates a processor that has virtualisation.
fn hardware(effort: Effort) -> io::Result<Tally> {
    if effort == Effort::Usual {
        return Ok(Tally::skipped("an emulated processor takes its time: with --long only"));
    }
    let script = command::root().join("testing/hardware/run.sh");
    let folder = command::target_dir().join("hardware");
    let fetched = Command::new(&script).arg("fetch").env("KAYVEE_HARDWARE", &folder).output()?;
    if !fetched.status.success() {
        return Ok(Tally::skipped(String::from_utf8_lossy(&fetched.stderr).trim_end()));
    }
    need_build()?;
    let mut tests = ignored_tests("monitor", "1");
    run(tests.env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER", script).env("KAYVEE_HARDWARE", folder))
}

/// Kills stores under load; each start has to find what was acknowledged.
fn crash(effort: Effort) -> io::Result<Tally> {
    need_build()?;
    let disk = command::target_dir().join("test-logs/crash.disk");
    std::fs::create_dir_all(disk.with_file_name(""))?;
    let program = || {
        let mut program = testing("crash");
        program.arg("--kayvee").arg(command::target_dir().join("release/kayvee")).arg("--disk").arg(&disk);
        program
    };
    // A log that is flushed once a second loses something, which must not go unnoticed.
    let output = program().args(["--appendfsync", "everysec", "--kills", "10", "--seed", "1"]).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let mut tally = if output.status.code() == Some(1) && said.contains("no number of units leaves what is there") {
        Tally::ok("a loss is noticed")
    } else {
        Tally::failed(&format!("a loss is noticed: {said}"))
    };
    let mut kills = program();
    kills.args(["--target", "linux", "--target", "tcg"]);
    match store::kvm_works()? {
        Ok(()) if effort == Effort::Long => _ = kills.args(["--target", "kvm/kayvee", "--target", "kvm/qemu"]),
        Ok(()) => _ = kills.args(["--target", "kvm"]),
        Err(why) => tally += Tally::skipped(&format!("no guest boots under KVM here: {why}")),
    }
    tally += run(kills.args(["--kills", if effort == Effort::Long { "600" } else { "30" }]))?;
    Ok(tally)
}

/// The quick part of Redis' own tests on every target that works here.
fn quick_suites() -> io::Result<Tally> {
    let mut tally = suite::quick("linux")?;
    tally += suite::quick("tcg")?;
    tally += match store::kvm_works()? {
        Ok(()) => suite::quick("kvm")?,
        Err(why) => Tally::skipped(&format!("no guest boots under KVM here: {why}")),
    };
    Ok(tally)
}

/// What shows that a store on another kind of machine is the same one.
fn some(arguments: &[&str]) -> io::Result<Tally> {
    need_build()?;
    let store = Store::start(arguments)?;
    let mut tally = run(testing("conformance").args(["--addr", &store.addr]))?;
    tally += clients::redis_cli(&store.addr)?;
    tally += run(testing("stress").args(["--addr", &store.addr, "large-values"]))?;
    tally += store.end()?;
    Ok(tally)
}

/// Clusters that this host runs.
fn shards() -> io::Result<Tally> {
    need_build()?;
    let mut tally = run(&mut ignored_tests("shards", "2"))?;
    let store = Store::start_shards(&["--target", "linux"], 3)?;
    tally += clients::of_clusters(&store.addr)?;
    tally += store.end()?;
    Ok(tally)
}

/// The process over an AF_XDP socket, in network namespaces that end with the tests.
fn xdp(effort: Effort) -> io::Result<Tally> {
    need_build()?;
    clients::install()?;
    let namespace = match kayvee_link::Namespace::create() {
        Ok(namespace) => namespace,
        Err(error) => return Ok(Tally::skipped(&format!("it needs root: {error:#}"))),
    };
    let inside = || {
        kayvee_link::switch_on("lo")?;
        let mut tally = everything(effort, &["--target", "linux", "--net", "xdp"])?;
        let kills = if effort == Effort::Long { "1000" } else { "100" };
        tally += run(ignored_tests("xdp", "1").env("KAYVEE_KILLS", kills))?;
        // Those of libraries that need root.
        tally += cargo(&["test", "--locked", "--workspace", "--lib", "--", "--ignored"])?;
        Ok(tally)
    };
    namespace.enter(inside).map_err(io::Error::other)
}

/// The crash-consistency model of the persistent log, on seeds that no other run has had.
fn crashes(effort: Effort) -> io::Result<Tally> {
    if effort == Effort::Usual {
        return Ok(Tally::skipped("the model runs longer with --long; 56,000 crash points are part of the core tests"));
    }
    run(testing("log_crashes").args(["--runs", "20000"]))
}

/// Exchanges with this host's kernel, in network namespaces of their own.
fn lossy(effort: Effort) -> io::Result<Tally> {
    needed(cargo(&["build", "--quiet", "--locked", "-p", "kayvee-testing", "--bin", "linux_peer"])?)?;
    let works = |program: &mut Command| program.output().is_ok_and(|output| output.status.success());
    let probe = format!("kayvee-probe-{}", std::process::id());
    if !works(Command::new("ip").args(["netns", "add", &probe])) {
        return Ok(Tally::skipped("it takes root and iproute2 to make a network namespace"));
    }
    works(Command::new("ip").args(["netns", "del", &probe]));
    if !works(Command::new("socat").arg("-V")) {
        return Ok(Tally::skipped("socat is missing"));
    }
    // Loss in percent, and bytes that each of four clients sends. Where a third of all segments or their answers are lost, and
    // the wait doubles each time (RFC 6298 §5.5), one transfer of 1 MB in a hundred is silent for so long that it is given up.
    let runs: &[(&str, &str)] = match effort {
        Effort::Usual => &[("0", "4000000"), ("1", "1000000"), ("5", "400000"), ("20", "30000")],
        Effort::Long => &[("0", "1000000000"), ("1", "300000000"), ("5", "50000000"), ("20", "100000")],
    };
    let mut tally = Tally::default();
    for (loss, bytes) in runs {
        for family in ["4", "6"] {
            tally += run(testing("linux_peer").args(["--loss", loss, "--bytes", bytes, "--family", family]))?;
        }
    }
    for family in ["4", "6"] {
        tally += run(testing("linux_peer").args(["--loss", "5", "--requests", "300", "--family", family]))?;
    }
    Ok(tally)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_section_has_its_own_name() {
        for (at, section) in SECTIONS.iter().enumerate() {
            assert!(SECTIONS[..at].iter().all(|earlier| earlier.name != section.name), "{}", section.name);
        }
    }

    #[test]
    fn every_section_is_documented() {
        let rows = include_str!("../../docs/testing.md").lines().filter(|line| line.starts_with("| `"));
        let named: Vec<&str> = rows.filter_map(|row| row.split('|').nth(1)).collect();
        for section in SECTIONS {
            assert!(named.iter().any(|names| names.contains(&format!("`{}`", section.name))), "{}", section.name);
        }
    }
}
