//! `kayvee run --shards`: several stores as one Redis Cluster. Each is a run of its own, with a guest, a link and a disk of its
//! own, so that they share nothing and each has a processor's work.

use crate::{
    UsageError,
    args::{Net, RunArgs, Target},
    console::next_line,
    instances,
    log::write_line,
    run::check_for_guest,
    say,
    store::{self, Store},
    supervise, sys,
};
use anyhow::{Context, Result, anyhow};
use kayvee_xdp_socket::Attachment;
use nix::sys::signal::Signal;
use signal_hook::consts;
use std::{
    io::{self, BufReader, Write},
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    sync::mpsc,
    thread,
};

/// Where clients on this host find the shards, unless they are told otherwise.
const USUAL_HOST: &str = "127.0.0.1";
/// Options of the store that name files of its own.
const FILES: [&str; 4] = ["--dbfilename", "--logfile", "--pidfile", "--unixsocket"];
const ANNOUNCED_IP: &str = "--cluster-announce-ip";

/// Starts the shards, and stays with them until their end unless they are to run in the background.
pub fn run(args: &RunArgs, count: u16) -> Result<()> {
    let shards = divide(args, count)?;
    if let (Target::Kvm | Target::Tcg, Some(last)) = (args.target, shards.last()) {
        check_for_guest(last, &Store::from_args(last)?)?;
    }
    if args.detach { detach(&shards) } else { stay_with(&shards) }
}

/// The runs of the shards: what one of them is told of itself, all are told of each other.
fn divide(args: &RunArgs, count: u16) -> Result<Vec<RunArgs>> {
    let usage = |what: &str| Err(UsageError(what.into()).into());
    if matches!(args.net, Net::Xdp(Attachment::Interface { .. })) {
        return usage(
            "--shards cannot share one interface: start each shard by itself, with an interface and an address of its own and \
             with `-- --cluster-shards \"ADDRESS:PORT ...\" --cluster-shard NUMBER`",
        );
    }
    let store = Store::from_args(args)?;
    let options = store.options();
    if !options.cluster_shards.is_empty() {
        return usage("--shards and --cluster-shards: the one makes up the other; leave one of them out");
    }
    for option in ["--port", "--http-port"] {
        if store::names(&args.redis_options, option) {
            return usage(&format!("with --shards, {option} belongs before '--': it is the first of as many"));
        }
    }
    if store.disk().is_some_and(|disk| !disk.path.is_file() && disk.path.exists()) {
        return usage("with --shards each has a file, named by a number behind --disk: it cannot be a block device");
    }
    let first_port = options.port;
    let port_of = |first: u16, number: u16| {
        let what = || UsageError(format!("there are no {count} ports from {first} on"));
        first.checked_add(number).ok_or_else(what)
    };
    let announced = args.redis_options.windows(2).find(|words| words[0].eq_ignore_ascii_case(ANNOUNCED_IP));
    let host = announced.map_or(USUAL_HOST, |words| &words[1]);
    let ports = (0..count).map(|number| port_of(first_port, number)).collect::<Result<Vec<_>, _>>()?;
    let addresses: Vec<String> = ports.iter().map(|port| format!("{host}:{port}")).collect();
    let first_http_port = Some(options.http_port).filter(|&port| port > 0);
    (0..count)
        .map(|number| {
            let numbered = |path: &Path| PathBuf::from(format!("{}-{number}", path.display()));
            let mut shard = args.clone();
            shard.shards = None;
            shard.port = Some(ports[usize::from(number)]);
            shard.http_port = first_http_port.map(|first| port_of(first, number)).transpose()?;
            shard.disk = store.disk().map(|disk| {
                let size = disk.size_bytes.map(|bytes| format!(":{bytes}")).unwrap_or_default();
                format!("{}{size}", numbered(&disk.path).display())
            });
            shard.pcap = args.pcap.as_deref().map(numbered);
            for at in 1..args.redis_options.len() {
                let (name, value) = (&args.redis_options[at - 1], &args.redis_options[at]);
                // An empty one names no file.
                if !value.is_empty() && FILES.iter().any(|file| name.eq_ignore_ascii_case(file)) {
                    shard.redis_options[at] = numbered(Path::new(value)).display().to_string();
                }
            }
            if !store::names(&args.redis_options, "--dbfilename") {
                shard.redis_options.extend(["--dbfilename".into(), format!("dump-{number}.rdb")]);
            }
            shard.name = Some(format!("{}-{number}", args.instance_name()));
            let words = ["--cluster-shards", &addresses.join(" "), "--cluster-shard", &number.to_string()];
            shard.redis_options.extend(words.map(String::from));
            Ok(shard)
        })
        .collect()
}

/// Leaves all of them in the background, or none.
fn detach(shards: &[RunArgs]) -> Result<()> {
    for (number, shard) in shards.iter().enumerate() {
        if let Err(error) = instances::detach(shard) {
            let started: Vec<String> = shards[..number].iter().map(|shard| shard.instance_name().to_string()).collect();
            instances::stop(&started)?;
            return Err(error);
        }
    }
    Ok(say(words(shards))?)
}

/// What is said of all of them once they answer.
fn words(shards: &[RunArgs]) -> String {
    let port = |shard: Option<&RunArgs>| shard.and_then(|shard| shard.port).unwrap_or_default();
    let (first, last) = (port(shards.first()), port(shards.last()));
    let count = shards.len();
    format!("ready: {USUAL_HOST}:{first} to {last} (a cluster of {count} shards)\n       redis-cli -c -p {first}")
}

enum Event {
    /// This process received this signal, which asks it to end.
    Signal(i32),
    /// A shard answers.
    Ready,
    /// The shard of this number has ended.
    Ended(usize, io::Result<ExitStatus>),
}

/// Runs all of them until one ends or this process is asked to end, and then ends all.
fn stay_with(shards: &[RunArgs]) -> Result<()> {
    let mut signals = supervise::catch_signals()?;
    let (sender, events) = mpsc::channel();
    let mut running: Vec<Option<sys::Process>> = Vec::new();
    for (number, shard) in shards.iter().enumerate() {
        let (reader, writer) = io::pipe()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg("run").args(shard.to_args()).stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
        sys::tie_to_this_process(&mut command, &[]);
        let mut child = command.spawn().context("starting a shard")?;
        // It holds the writing end of the console's pipe.
        drop(command);
        running.push(Some(sys::Process::open(child.id())?));
        let sender = sender.clone();
        thread::spawn(move || {
            let mut console = BufReader::new(reader);
            while let Some(line) = next_line(&mut console) {
                let _ = write_line(&mut io::stderr(), &format!("{number}: {line}"));
                if line.starts_with("ready: ") {
                    let _ = sender.send(Event::Ready);
                }
            }
            // Its last words come before its end.
            let _ = sender.send(Event::Ended(number, child.wait()));
        });
    }
    thread::spawn(move || signals.forever().try_for_each(|signal| sender.send(Event::Signal(signal))));

    let (mut ready, mut is_ending, mut failure) = (0, false, None);
    while running.iter().any(Option::is_some) {
        let sent = match events.recv()? {
            // A second Ctrl-C does not wait.
            Event::Signal(consts::SIGINT) if is_ending => Some(Signal::SIGINT),
            Event::Signal(_) => Some(Signal::SIGTERM),
            Event::Ready => {
                ready += 1;
                if ready == shards.len() {
                    let _ = writeln!(io::stdout(), "{}", words(shards));
                }
                None
            }
            Event::Ended(number, status) => {
                running[number] = None;
                let status = status?;
                if !is_ending || !status.success() {
                    let how = if status.success() { "has ended".into() } else { format!("ended with {status}") };
                    failure.get_or_insert_with(|| anyhow!("shard {number} {how}, and so did the cluster"));
                }
                (!is_ending).then_some(Signal::SIGTERM)
            }
        };
        if let Some(signal) = sent {
            is_ending = true;
            for process in running.iter().flatten() {
                // One that has ended just now says so next.
                let _ = process.signal(signal);
            }
        }
    }
    failure.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;

    #[test]
    fn each_shard_has_files_of_its_own_where_they_are_named() {
        let line = "kayvee run --shards 2 -- --LOGFILE lf --dbfilename d.rdb --pidfile".split(' ').chain([
            "",
            "--unixsocket",
            "",
        ]);
        let Command::Run(args) = Cli::try_parse_from(line).unwrap().command else { panic!("not run") };
        for (number, shard) in divide(&args, 2).unwrap().iter().enumerate() {
            let (log, dump) = (format!("lf-{number}"), format!("d.rdb-{number}"));
            let words = ["--LOGFILE", &log, "--dbfilename", &dump, "--pidfile", "", "--unixsocket", ""];
            assert_eq!(shard.redis_options[..words.len()], words);
        }
    }
}
