//! An end to what tests have started: when they have neither been heard of nor worked for too long, what they run is shown and
//! killed, so that they fail and the others go on; and so is what they have left behind in the end.

use crate::command::{Tally, tell};
use std::{
    fs, io,
    path::PathBuf,
    process::{self, Command, Stdio},
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// When a test was last heard of.
static HEARD: Mutex<Option<Instant>> = Mutex::new(None);

/// How often is looked whether tests work, in the time that they may be silent.
const LOOKS: u32 = 10;
/// Who uses less than this of one processor does not work: one in ...
const WORKING_SHARE: u32 = 10;
/// Builds are not heard of, and take long where they share a machine. What is silent for so many times as long ends anyhow.
const SILENCE_AT_WORK: u32 = 3;
/// Clock ticks in what the kernel tells of processes, on every machine that Kayvee runs on (`USER_HZ`).
const TICKS_PER_SECOND: u64 = 100;

/// Ends from now on what has neither been heard of nor worked for so long.
pub fn watch(silence_max: Duration) -> io::Result<()> {
    heard();
    let watch = move || {
        let look = silence_max / LOOKS;
        let (mut before, mut idle) = (used_by_tests(), Duration::ZERO);
        loop {
            thread::sleep(look);
            let used = used_by_tests();
            idle = if used.saturating_sub(before) < look / WORKING_SHARE { idle + look } else { Duration::ZERO };
            before = used;
            let silence =
                HEARD.lock().unwrap_or_else(PoisonError::into_inner).map_or(Duration::ZERO, |at| at.elapsed());
            if silence.min(idle) >= silence_max || silence >= silence_max * SILENCE_AT_WORK {
                let why = format!("FAILED nothing was heard for {} s of these, which end now:", silence.as_secs());
                end(&why, &descendants(process::id()));
                heard();
            }
        }
    };
    thread::Builder::new().name("watchdog".into()).spawn(watch).map(drop)
}

/// Processor time of this process and all that it has started.
fn used_by_tests() -> Duration {
    let pids = [vec![process::id()], descendants(process::id())].concat();
    let ticks: u64 = pids.into_iter().filter_map(Stat::of).map(|stat| stat.used).sum();
    Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND)
}

/// Notes that a test was heard of.
pub fn heard() {
    *HEARD.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
}

/// Ends what has outlived the tests, each of which counts as failed, and has whoever reads this output wait for more.
pub fn end_left_behind() -> Tally {
    let left = sharing_output();
    if !left.is_empty() {
        end("FAILED these were left behind, and end now:", &left);
    }
    Tally { failed: left.len() as u32, ..Tally::default() }
}

/// Says why, shows processes and kills them.
fn end(why: &str, processes: &[u32]) {
    let mut text = String::from(why);
    let mut kill = Command::new("kill");
    kill.arg("-KILL").stderr(Stdio::null());
    for pid in processes {
        let about = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let words = String::from_utf8_lossy(&about("cmdline")).replace('\0', " ");
        text += &format!("\n{pid}, waiting in {}: {words}", String::from_utf8_lossy(&about("wchan")));
        kill.arg(pid.to_string());
    }
    tell(&text);
    // Those that have ended meanwhile are no loss.
    let _ = kill.status();
}

/// The processes that write into the same pipe as this one and are younger: tests have started them.
fn sharing_output() -> Vec<u32> {
    let outputs = |pid: u32| [1, 2].map(|fd| fs::read_link(format!("/proc/{pid}/fd/{fd}")).unwrap_or_default());
    let own = outputs(process::id()).into_iter().filter(|output| output.to_string_lossy().starts_with("pipe:"));
    let own: Vec<PathBuf> = own.collect();
    let began = Stat::of(process::id()).map_or(u64::MAX, |stat| stat.began);
    let is_ours =
        |(pid, stat): &(u32, Stat)| stat.began > began && outputs(*pid).iter().any(|output| own.contains(output));
    all().into_iter().filter(is_ours).map(|(pid, _)| pid).collect()
}

/// The processes that one has started, those that they have started, and so on: parents come first.
fn descendants(of: u32) -> Vec<u32> {
    let all = all();
    let mut found = vec![of];
    let mut at = 0;
    while at < found.len() {
        let of = found[at];
        found.extend(all.iter().filter(|(_, stat)| stat.parent == of).map(|(pid, _)| *pid));
        at += 1;
    }
    found.split_off(1)
}

/// What `/proc/PID/stat` says of a process.
struct Stat {
    parent: u32,
    /// When it began, and the processor time of it and of those children that it has waited for, in clock ticks.
    began: u64,
    used: u64,
}

impl Stat {
    /// Fields 4, 14 to 17 and 22 of proc_pid_stat(5); the second one, a name in parentheses, may hold anything.
    fn of(pid: u32) -> Option<Stat> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let used = (14..=17).map(field).sum::<Option<u64>>()?;
        Some(Stat { parent: field(4)? as u32, began: field(22)?, used })
    }
}

/// All processes that can be seen here.
fn all() -> Vec<(u32, Stat)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| Some((pid, Stat::of(pid)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn what_tests_have_started_is_found_and_ended() {
        const SIGKILL: i32 = 9;
        // A process with a child that holds its output, as long as it lives.
        let mut shell = Command::new("sh");
        let mut shell = shell.args(["-c", "sleep 1000 & echo; wait"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut output = shell.stdout.take().unwrap();
        io::Read::read_exact(&mut output, &mut [0]).unwrap();
        let found = descendants(process::id());
        assert!(found.contains(&shell.id()), "{found:?}");
        let below = descendants(shell.id());
        assert_eq!(below.len(), 1, "{below:?}");
        end("these end:", &[vec![shell.id()], below].concat());
        assert_eq!(shell.wait().unwrap().signal(), Some(SIGKILL));
        assert_eq!(io::Read::read(&mut output, &mut [0]).unwrap(), 0, "nobody is left who holds it");
    }

    #[test]
    fn the_times_of_processes_are_read() {
        let mut sleep = Command::new("sleep").arg("1000").spawn().unwrap();
        let [own, new] = [process::id(), sleep.id()].map(|pid| Stat::of(pid).unwrap());
        assert!(new.parent == process::id() && new.began >= own.began, "{} {} {}", new.parent, new.began, own.began);
        assert_eq!(new.used, 0);
        sleep.kill().unwrap();
        sleep.wait().unwrap();
    }

    #[test]
    fn what_works_is_seen_to() {
        let before = used_by_tests();
        // Children that are waited for count for their parent, and that one for its own.
        let ended = Command::new("sh").args(["-c", "n=0; while [ $n -lt 300000 ]; do n=$((n + 1)); done"]).status();
        assert!(ended.unwrap().success());
        assert!(used_by_tests() > before);
    }
}
