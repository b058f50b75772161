//! An end to tests that hang: when nothing has been heard of them for too long, what they run is shown and killed, so that
//! they fail and the others go on.

use std::{
    fs, io,
    process::{self, Command, Stdio},
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// When a test was last heard of; none as long as nobody watches.
static HEARD: Mutex<Option<Instant>> = Mutex::new(None);

/// Ends from now on what has been silent for so long.
pub fn watch(silence_max: Duration) -> io::Result<()> {
    note(Some(Instant::now()));
    let watch = move || {
        loop {
            let silence =
                HEARD.lock().unwrap_or_else(PoisonError::into_inner).map_or(Duration::ZERO, |at| at.elapsed());
            if silence < silence_max {
                thread::sleep(silence_max - silence);
                continue;
            }
            println!("FAILED nothing was heard for {} s of these, which end now:", silence.as_secs());
            end(&descendants(process::id()));
            note(Some(Instant::now()));
        }
    };
    thread::Builder::new().name("watchdog".into()).spawn(watch).map(drop)
}

/// Notes that a test was heard of, if somebody watches.
pub fn heard() {
    let mut heard = HEARD.lock().unwrap_or_else(PoisonError::into_inner);
    *heard = heard.map(|_| Instant::now());
}

fn note(at: Option<Instant>) {
    *HEARD.lock().unwrap_or_else(PoisonError::into_inner) = at;
}

/// Shows processes and kills them.
fn end(processes: &[u32]) {
    let mut kill = Command::new("kill");
    kill.arg("-KILL").stderr(Stdio::null());
    for pid in processes {
        let about = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let words = String::from_utf8_lossy(&about("cmdline")).replace('\0', " ");
        println!("{pid}, waiting in {}: {words}", String::from_utf8_lossy(&about("wchan")));
        kill.arg(pid.to_string());
    }
    // Those that have ended meanwhile are no loss.
    let _ = kill.status();
}

/// The processes that one has started, those that they have started, and so on: parents come first.
fn descendants(of: u32) -> Vec<u32> {
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let parents: Vec<(u32, u32)> = pids.filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let mut found = vec![of];
    let mut at = 0;
    while at < found.len() {
        let of = found[at];
        found.extend(parents.iter().filter(|(_, parent)| *parent == of).map(|(pid, _)| *pid));
        at += 1;
    }
    found.split_off(1)
}

/// The fourth field of `/proc/PID/stat` (proc_pid_stat(5)); the second one, a name in parentheses, may hold anything.
fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
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
        end(&[vec![shell.id()], below].concat());
        assert_eq!(shell.wait().unwrap().signal(), Some(SIGKILL));
        assert_eq!(io::Read::read(&mut output, &mut [0]).unwrap(), 0, "nobody is left who holds it");
    }
}
