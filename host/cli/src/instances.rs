//! The detached instances: one folder each, with a lock that its supervisor holds for as long as it lives.
//!
//! The kernel releases a record lock with its process and tells who holds it, so neither a killed supervisor nor a
//! process number that was given out again can pass for a living instance.

use crate::{args::RunArgs, console::next_line, log, say, supervise, sys};
use anyhow::{Context, Result, anyhow, bail};
use nix::{
    fcntl::{FcntlArg, fcntl},
    libc,
    sys::signal::Signal,
    unistd::geteuid,
};
use std::{
    collections::VecDeque,
    env,
    fs::{self, DirBuilder, File, Metadata, OpenOptions},
    io::{self, BufReader, Read, Write},
    os::unix::{
        fs::{DirBuilderExt, MetadataExt},
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Longer than a supervisor gives its store.
const STOP_TIMEOUT: Duration = Duration::from_secs(supervise::STOP_TIMEOUT.as_secs() + 5);
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// Monitors answer at once.
const CONTROL_TIMEOUT: Duration = Duration::from_secs(2);
/// How often a followed log is looked at.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(100);
/// Lines that are shown of the log of an instance that did not start.
const TAIL_LINES: usize = 30;

/// What a supervisor says to the process that started it, before the words of [`Claim::announce`].
const CLAIMED: &str = "claimed";

/// An instance, living or dead.
struct Instance {
    name: String,
    folder: PathBuf,
}

/// What comes of locking an instance's folder.
enum Lock {
    /// It is this process's.
    Own(File),
    /// Another one has it.
    Others,
    /// There is none: the folder is being made or removed.
    Gone,
}

/// A supervisor's hold on its instance.
pub struct Claim {
    instance: Instance,
    /// Closing any descriptor of the file releases the lock, so it is opened once and kept.
    _lock: File,
}

/// The folder of all instances of this user.
fn state_folder() -> Result<PathBuf> {
    let set = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    // Whose folder it is could put another one in the place of what is in it.
    let is_own = |folder: &Path| fs::metadata(folder).is_ok_and(|found| belongs_to_user(&found));
    let base = match set("XDG_RUNTIME_DIR") {
        Some(folder) if is_own(&folder) => folder,
        _ if geteuid().is_root() => PathBuf::from("/run"),
        _ => set("XDG_STATE_HOME")
            .or_else(|| set("HOME").map(|home| home.join(".local/state")))
            .ok_or_else(|| anyhow!("neither XDG_RUNTIME_DIR nor HOME is set: no place for a detached instance"))?,
    };
    let folder = base.join("kayvee");
    check(&folder)?;
    Ok(folder)
}

/// Refuses a folder that is there and leads elsewhere, or is another user's: files would be made and removed at their word.
fn check(folder: &Path) -> Result<()> {
    match fs::symlink_metadata(folder) {
        Ok(found) if !belongs_to_user(&found) => {
            bail!("{} is not a folder of this user's own, which the records of instances need", folder.display())
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("looking at {}", folder.display()))
        }
        _ => Ok(()),
    }
}

fn belongs_to_user(found: &Metadata) -> bool {
    found.is_dir() && found.uid() == geteuid().as_raw()
}

impl Instance {
    fn named(name: &str) -> Result<Instance> {
        let folder = state_folder()?.join(name);
        check(&folder)?;
        Ok(Instance { name: name.into(), folder })
    }

    fn all() -> Result<Vec<Instance>> {
        let entries = match fs::read_dir(state_folder()?) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut instances = Vec::new();
        for entry in entries {
            let entry = entry?;
            let is_own = check(&entry.path()).is_ok();
            let instance = |name: &str| Instance { name: name.into(), folder: entry.path() };
            instances.extend(entry.file_name().to_str().filter(|_| is_own).map(instance));
        }
        instances.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(instances)
    }

    fn exists(&self) -> bool {
        self.folder.is_dir()
    }

    fn log_path(&self) -> PathBuf {
        self.folder.join("log")
    }

    fn control_path(&self) -> PathBuf {
        self.folder.join("control")
    }

    /// The number of the living supervisor.
    fn supervisor(&self) -> Result<Option<u32>> {
        let lock = match File::open(self.folder.join("lock")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            lock => lock?,
        };
        let mut request = whole_file(libc::F_WRLCK);
        fcntl(&lock, FcntlArg::F_GETLK(&mut request))?;
        Ok((request.l_type != libc::F_UNLCK as libc::c_short).then_some(request.l_pid as u32))
    }

    /// Locks the folder, making it where it is missing, or returns `None` when another process holds it.
    fn lock(&self) -> Result<Option<File>> {
        loop {
            DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
            // What was not there when it was looked at may have been made by others since.
            self.folder.ancestors().take(2).try_for_each(check)?;
            match self.try_lock(OpenOptions::new().write(true).create(true).truncate(false))? {
                Lock::Own(lock) => return Ok(Some(lock)),
                Lock::Others => return Ok(None),
                Lock::Gone => {}
            }
        }
    }

    fn try_lock(&self, options: &OpenOptions) -> Result<Lock> {
        let path = self.folder.join("lock");
        let lock = match options.open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Lock::Gone),
            lock => lock?,
        };
        if fcntl(&lock, FcntlArg::F_SETLK(&whole_file(libc::F_WRLCK))).is_err() {
            return Ok(Lock::Others);
        }
        // Between opening and locking, it may have been removed and made anew by others.
        let is_there = fs::metadata(&path).is_ok_and(|found| lock.metadata().is_ok_and(|own| found.ino() == own.ino()));
        Ok(if is_there { Lock::Own(lock) } else { Lock::Gone })
    }

    /// Asks its monitor for something; none if it is no guest of a monitor that can tell.
    fn ask_monitor(&self, question: &str) -> Result<Option<String>> {
        let mut socket = match UnixStream::connect(self.control_path()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            socket => socket.context("connecting to its monitor")?,
        };
        socket.set_read_timeout(Some(CONTROL_TIMEOUT))?;
        writeln!(socket, "{question}")?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer).context("its monitor does not answer")?;
        Ok(Some(answer))
    }

    fn is_paused(&self) -> bool {
        self.ask_monitor("stats").is_ok_and(|stats| stats.is_some_and(|stats| stats.starts_with("state:paused\n")))
    }

    fn fact(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.folder.join(name)).ok().map(|text| text.trim().to_string())
    }

    fn record(&self, name: &str, fact: &str) -> Result<()> {
        // Readers never see half a file.
        let (path, draft) = (self.folder.join(name), self.folder.join(format!("{name}.new")));
        fs::write(&draft, fact).and_then(|()| fs::rename(&draft, path)).with_context(|| format!("recording {name}"))
    }

    /// Removes what a dead instance has left, whose lock this is.
    fn remove(&self, _lock: File) -> Result<()> {
        self.clear().and_then(|()| fs::remove_file(self.folder.join("lock"))).context("removing its files")?;
        // Who has made another lock by now has the folder for a run of its own.
        match fs::remove_dir(&self.folder) {
            Err(error) if matches!(error.kind(), io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::NotFound) => Ok(()),
            result => result.context("removing its folder"),
        }
    }

    /// Removes all files but the lock, which the caller has.
    fn clear(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            if entry.file_name() != "lock" {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
}

fn whole_file(lock_type: libc::c_int) -> libc::flock {
    libc::flock {
        l_type: lock_type as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

impl Claim {
    /// Makes this process the supervisor of an instance, in place of a dead one of that name.
    pub fn take(name: &str) -> Result<(Claim, log::Log)> {
        let instance = Instance::named(name)?;
        let Some(lock) = instance.lock().with_context(|| format!("making {}", instance.folder.display()))? else {
            bail!("{}", already_running(name));
        };
        instance.clear()?;
        let log = log::Log::file(&instance.log_path())?;
        let claim = Claim { instance, _lock: lock };
        writeln!(io::stdout(), "{CLAIMED}")?;
        Ok((claim, log))
    }

    /// Records what `ps` shows, and tells the process that waits for it; a failure means that it does not wait any more.
    pub fn announce(&self, target: &str, address: &str, words: &str) -> Result<()> {
        self.instance.record("target", target)?;
        self.instance.record("address", address)?;
        self.instance.record("started", &unix_seconds().to_string())?;
        let mut stdout = io::stdout();
        writeln!(stdout, "{words}").and_then(|()| stdout.flush()).context("nobody waits for this instance any more")?;
        let nowhere = OpenOptions::new().write(true).open("/dev/null")?;
        Ok(nix::unistd::dup2_stdout(nowhere)?)
    }

    /// The socket by which the instance's monitor is controlled.
    pub fn control(&self) -> Result<UnixListener> {
        let path = self.instance.control_path();
        UnixListener::bind(&path).with_context(|| format!("making {}", path.display()))
    }

    /// Records how the run ended.
    pub fn end(&self, status: u8) -> Result<()> {
        self.instance.record("status", &status.to_string())
    }
}

fn already_running(name: &str) -> String {
    format!("an instance '{name}' is running; stop it with `kayvee stop {name}`, or choose another --name")
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Starts a supervisor in the background and waits until its store answers.
pub fn detach(args: &RunArgs) -> Result<()> {
    let name = args.instance_name();
    let instance = Instance::named(name)?;
    if instance.supervisor()?.is_some() {
        bail!("{}", already_running(name));
    }
    let mut command = Command::new("/proc/self/exe");
    command.args(args.to_supervised_args()).stdin(Stdio::null()).stdout(Stdio::piped());
    sys::leave_session(&mut command);
    let mut supervisor = command.spawn().context("starting the background process")?;
    let mut words = String::new();
    supervisor.stdout.take().expect("it is piped").read_to_string(&mut words)?;
    match words.strip_prefix(CLAIMED).map(str::trim_start) {
        Some(ready) if !ready.is_empty() => {
            // It runs, whoever reads that.
            let _ = say(ready.trim_end());
            let _ = say(format_args!("       in the background: kayvee ps, kayvee logs {name}, kayvee stop {name}"));
            Ok(())
        }
        // It could not even take the name, and has said why on this process's standard error.
        None => bail!("'{name}' did not start"),
        Some(_) => {
            supervisor.wait()?;
            for line in tail(&instance.log_path())? {
                eprintln!("{line}");
            }
            bail!("'{name}' did not start; the lines above are the end of its log")
        }
    }
}

fn tail(path: &Path) -> Result<VecDeque<String>> {
    let mut log = BufReader::new(File::open(path)?);
    let mut lines = VecDeque::new();
    while let Some(line) = next_line(&mut log) {
        lines.push_back(line);
        if lines.len() > TAIL_LINES {
            lines.pop_front();
        }
    }
    Ok(lines)
}

/// Lists all instances.
pub fn ps() -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{:<16} {:<8} {:<22} {:<8} STATE", "NAME", "TARGET", "ADDRESS", "PID")?;
    for instance in Instance::all()? {
        let fact = |name| instance.fact(name).unwrap_or_else(|| "-".into());
        let supervisor = instance.supervisor()?;
        let started = instance.fact("started").and_then(|seconds| seconds.parse::<u64>().ok());
        let state = match (supervisor, started, instance.fact("status")) {
            (Some(_), Some(_), _) if instance.is_paused() => "paused".into(),
            (Some(_), Some(seconds), _) => format!("up {}", duration(unix_seconds().saturating_sub(seconds))),
            (Some(_), None, _) => "starting".into(),
            (None, _, Some(status)) => format!("ended with status {status}"),
            (None, _, None) => "killed".into(),
        };
        let pid = supervisor.map_or("-".into(), |pid| pid.to_string());
        writeln!(out, "{:<16} {:<8} {:<22} {pid:<8} {state}", instance.name, fact("target"), fact("address"))?;
    }
    Ok(())
}

fn duration(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..172_800 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// Shows an instance's log, its older half first, and what is added to it until the instance ends.
pub fn logs(name: &str, follow: bool) -> Result<()> {
    let instance = existing(name)?;
    let mut out = io::stdout().lock();
    if let Ok(mut older) = File::open(log::set_aside(&instance.log_path())) {
        io::copy(&mut older, &mut out)?;
    }
    let mut current = File::open(instance.log_path()).with_context(|| format!("'{name}' has no log yet"))?;
    loop {
        // Asked before reading: what a supervisor has written until it ended is then still read.
        let living = instance.supervisor()?.is_some();
        io::copy(&mut current, &mut out)?;
        out.flush()?;
        if !follow || !living {
            return Ok(());
        }
        // The log may have been set aside and begun anew.
        if let Ok(newest) = File::open(instance.log_path())
            && newest.metadata()?.ino() != current.metadata()?.ino()
        {
            io::copy(&mut current, &mut out)?;
            current = newest;
            continue;
        }
        if sys::wait_unread(&out, FOLLOW_INTERVAL)? {
            return Ok(());
        }
    }
}

/// Asks an instance's monitor for something, and shows what it says. Fails where it does not do it.
pub fn control(name: &str, question: &str) -> Result<()> {
    let instance = existing(name)?;
    if instance.supervisor()?.is_none() {
        bail!("'{name}' is not running");
    }
    match instance.ask_monitor(question)? {
        Some(answer) if answer.is_empty() => bail!("the monitor of '{name}' ends, and gives no answer"),
        Some(answer) => match answer.strip_prefix("error: ") {
            Some(error) => bail!("'{name}': {}", error.trim_end()),
            None => io::stdout().write_all(answer.as_bytes())?,
        },
        None => bail!("'{name}' is no guest of Kayvee's own monitor, which alone can tell"),
    }
    Ok(())
}

/// Shuts instances down and forgets them, the dead ones too.
pub fn stop(names: &[String]) -> Result<()> {
    stop_each(names.iter().map(|name| (name.clone(), existing(name))))
}

/// Shuts all instances down and forgets them.
pub fn stop_all() -> Result<()> {
    stop_each(Instance::all()?.into_iter().map(|instance| (instance.name.clone(), Ok(instance))))
}

/// One that does not end as it should keeps no other from it.
fn stop_each(instances: impl Iterator<Item = (String, Result<Instance>)>) -> Result<()> {
    let mut last = Ok(());
    for (name, instance) in instances {
        let stopped = instance.and_then(|instance| stop_one(&instance).with_context(|| format!("stopping '{name}'")));
        if let Err(error) = stopped
            && let Err(earlier) = std::mem::replace(&mut last, Err(error))
        {
            eprintln!("kayvee: {earlier:#}");
        }
    }
    last
}

fn existing(name: &str) -> Result<Instance> {
    let instance = Instance::named(name)?;
    if !instance.exists() {
        bail!("there is no instance '{name}'; `kayvee ps` lists them");
    }
    Ok(instance)
}

fn stop_one(instance: &Instance) -> Result<()> {
    let name = &instance.name;
    let supervisor = instance.supervisor()?;
    let lock = match supervisor {
        None => Some(instance.lock()?.context("it has just been started again")?),
        Some(pid) => {
            end_supervisor(instance, pid)?;
            match instance.try_lock(OpenOptions::new().write(true))? {
                Lock::Own(lock) => Some(lock),
                // Another one that has asked it to end removes what it left, or it has been started again.
                Lock::Others | Lock::Gone => None,
            }
        }
    };
    if let Some(lock) = lock {
        let is_clean = supervisor.is_none() || instance.fact("status").as_deref() == Some("0");
        if !is_clean {
            tail(&instance.log_path()).unwrap_or_default().iter().for_each(|line| eprintln!("{line}"));
        }
        instance.remove(lock)?;
        if !is_clean {
            bail!("it did not end in good order; the lines above are the end of its log");
        }
    }
    // Others are still to be stopped, whoever reads of this one.
    let _ = match supervisor {
        Some(_) => say(format_args!("stopped {name}")),
        None => say(format_args!("removed {name}, which was not running")),
    };
    Ok(())
}

/// Asks an instance's supervisor to end, and waits until it has.
fn end_supervisor(instance: &Instance, pid: u32) -> Result<()> {
    let name = &instance.name;
    // The handle is opened first and the lock asked again: then the handle is the supervisor's.
    let process = sys::Process::open(pid);
    if instance.supervisor()? != Some(pid) {
        return Ok(());
    }
    let process = process?;
    process.signal(Signal::SIGTERM)?;
    let mut has_ended = process.wait(supervise::STOP_NOTICE)?;
    if !has_ended {
        eprintln!("kayvee: waiting for '{name}' to end; `kayvee logs {name}` may tell why it takes long");
        has_ended = process.wait(STOP_TIMEOUT - supervise::STOP_NOTICE)?;
    }
    if !has_ended {
        eprintln!("kayvee: '{name}' did not end within {} s and is killed", STOP_TIMEOUT.as_secs());
        process.signal(Signal::SIGKILL)?;
        if !process.wait(KILL_TIMEOUT)? {
            bail!("process {pid} does not end");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        sync::atomic::{AtomicBool, Ordering},
        thread,
    };

    /// Whoever starts an instance again while its folder is removed keeps what it has made there.
    #[test]
    fn what_a_new_run_makes_is_not_removed_with_an_old_one() {
        let folder = env::temp_dir().join(format!("kayvee-removed-{}", std::process::id()));
        let instance = Instance { name: "removed".into(), folder: folder.join("removed") };
        let (lock, address) = (instance.folder.join("lock"), instance.folder.join("address"));
        fs::create_dir_all(&instance.folder).unwrap();
        let is_over = AtomicBool::new(false);
        for _ in 0..20 {
            for number in 0..300 {
                fs::create_dir_all(&instance.folder).unwrap();
                fs::write(instance.folder.join(number.to_string()), "").unwrap();
            }
            fs::write(&lock, "").unwrap();
            is_over.store(false, Ordering::Relaxed);
            thread::scope(|scope| {
                // Another process, which finds no lock and makes its own.
                let new_run = scope.spawn(|| {
                    while lock.exists() && !is_over.load(Ordering::Relaxed) {}
                    File::create_new(&lock).and_then(|_| fs::write(&address, "new")).is_ok()
                });
                let Ok(Some(own)) = instance.lock() else { panic!("nobody else locks it") };
                let removed = instance.remove(own);
                is_over.store(true, Ordering::Relaxed);
                let is_made = new_run.join().unwrap();
                removed.unwrap();
                assert_eq!(address.exists(), is_made);
            });
            let _ = fs::remove_file(&address);
        }
        fs::remove_dir_all(folder).unwrap();
    }
}
