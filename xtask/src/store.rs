//! Stores to test, started as a user starts them, and redis-server to compare with.

use crate::command::{Tally, target_dir, with_open_files};
use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, Read},
    net::TcpListener,
    path::PathBuf,
    process::{Child, ChildStdout, Command, Stdio},
};

/// How much of a log is shown when something went wrong.
const SHOWN_LOG_LINES: usize = 30;

/// A port that nobody listens on.
pub fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// The first of so many in a row.
fn free_ports(count: u16) -> io::Result<u16> {
    loop {
        let first = free_port()?;
        let mut others = (1..count).map(|next| Some(("127.0.0.1", first.checked_add(next)?)));
        if others.all(|place| place.is_some_and(|place| TcpListener::bind(place).is_ok())) {
            return Ok(first);
        }
    }
}

/// A folder for what tests leave behind.
pub fn logs_dir() -> io::Result<PathBuf> {
    let dir = target_dir().join("test-logs");
    fs::create_dir_all(&dir)?;
    Ok(dir)
}

fn last_lines(path: &PathBuf) -> String {
    let text = fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(SHOWN_LOG_LINES)..].join("\n")
}

/// A `kayvee run`, ended with this value.
pub struct Store {
    child: Child,
    stdout: BufReader<ChildStdout>,
    log: PathBuf,
    /// What it said of itself when it was ready.
    ready: String,
    /// `HOST:PORT` at which it answers.
    pub addr: String,
}

impl Store {
    /// Starts one and waits until it is ready.
    pub fn start(arguments: &[&str]) -> io::Result<Store> {
        let store = Store::start_with(arguments, &[])?;
        print!("{}", store.ready);
        Ok(store)
    }

    /// Starts a cluster and waits until all of it is ready; it answers at its first shard's address.
    pub fn start_shards(arguments: &[&str], count: u16) -> io::Result<Store> {
        let shards = count.to_string();
        let arguments = [arguments, &["--shards", &shards]].concat();
        let store = Store::start_at(free_ports(count)?, &arguments, &[])?;
        print!("{}", store.ready);
        Ok(store)
    }

    /// Starts one with options of the store besides those of `kayvee run`.
    pub fn start_with(arguments: &[&str], options: &[&str]) -> io::Result<Store> {
        Store::start_at(free_port()?, arguments, options)
    }

    fn start_at(port: u16, arguments: &[&str], options: &[&str]) -> io::Result<Store> {
        let port = port.to_string();
        let name: String = arguments.join("").trim_start_matches('-').replace('/', "-").chars().take(60).collect();
        let log = logs_dir()?.join(format!("store-{name}-{port}.log"));
        let mut command = with_open_files(&target_dir().join("release/kayvee"));
        command.arg("run").args(arguments).args(["--port", &port, "--", "--enable-debug-command", "yes"]);
        command.args(options);
        let mut child = command.stdout(Stdio::piped()).stderr(File::create(&log)?).spawn()?;
        let mut stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut ready = String::new();
        stdout.read_line(&mut ready)?;
        let addr = ready.strip_prefix("ready: ").and_then(|rest| rest.split_whitespace().next()).map(String::from);
        match addr {
            Some(addr) => Ok(Store { child, stdout, log, ready, addr }),
            None => {
                let _ = child.kill();
                let _ = child.wait();
                Err(io::Error::other(format!(
                    "kayvee run {} did not get ready:\n{}",
                    arguments.join(" "),
                    last_lines(&log)
                )))
            }
        }
    }

    /// Asks it to end, and says what went wrong if it does not end well or has ended before.
    pub fn end_quietly(mut self) -> io::Result<Option<String>> {
        if let Some(status) = self.child.try_wait()? {
            return Ok(Some(format!("{status}; its last lines:\n{}", last_lines(&self.log))));
        }
        Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status()?;
        self.stdout.read_to_string(&mut String::new())?;
        let status = self.child.wait()?;
        if status.success() {
            fs::remove_file(&self.log)?;
            return Ok(None);
        }
        Ok(Some(format!("{status}; its last lines:\n{}", last_lines(&self.log))))
    }

    /// Asks it to end, as Ctrl-C does. That it ends well is one more test.
    pub fn end(mut self) -> io::Result<Tally> {
        Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status()?;
        // The standard output ends with the process.
        self.stdout.read_to_string(&mut String::new())?;
        let status = self.child.wait()?;
        if status.success() {
            fs::remove_file(&self.log)?;
            return Ok(Tally::ok("the store ends cleanly"));
        }
        let lines = last_lines(&self.log);
        Ok(Tally::failed(&format!("the store ends cleanly: {status}; its last lines:\n{lines}")))
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // Already ended, where the tests went well.
        let _ = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).stderr(Stdio::null()).status();
        let _ = self.child.wait();
    }
}

/// Whether a guest boots under KVM here, and why not.
pub fn kvm_works() -> io::Result<Result<(), String>> {
    if let Err(error) = File::options().read(true).write(true).open("/dev/kvm") {
        return Ok(Err(format!("/dev/kvm: {error}")));
    }
    crate::need_build()?;
    // `auto` takes KVM where a guest really boots, and says why where none does.
    let store = Store::start(&["--target", "auto"])?;
    if store.ready.contains("KVM") {
        return Ok(Ok(()));
    }
    let log = fs::read_to_string(&store.log)?;
    let why = log.lines().find(|line| line.contains("KVM")).unwrap_or("kayvee does not say why");
    Ok(Err(why.into()))
}

/// A redis-server without persistence, ended with this value.
pub struct RedisServer {
    child: Child,
    port: u16,
}

impl RedisServer {
    /// Starts one and waits until it accepts connections.
    pub fn start(arguments: &[&str]) -> io::Result<RedisServer> {
        let port = free_port()?;
        let mut command = with_open_files("redis-server".as_ref());
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        command.args(arguments).current_dir(logs_dir()?);
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let mut stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut line = String::new();
        while stdout.read_line(&mut line)? > 0 {
            if line.contains("Ready to accept connections") {
                return Ok(RedisServer { child, port });
            }
            line.clear();
        }
        let status = child.wait()?;
        Err(io::Error::other(format!("redis-server ended with {status}; ./kayvee test installs it where it may")))
    }

    /// `HOST:PORT`
    pub fn addr(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
