//! Real clients, installed once into the folder that cargo builds in.

use crate::command::{Tally, root, run, target_dir};
use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// The versions whose own tests are run.
const REDIS_PY: &str = "5.2.1";
const REDIS_RS: &str = "1.8.0";

/// Every client there is, against one store.
pub fn all(addr: &str) -> io::Result<Tally> {
    let mut tally = redis_cli(addr)?;
    tally += redis_py(addr)?;
    tally += node(addr)?;
    Ok(tally)
}

/// Installs what clients and applications need, for those who have no network afterwards.
pub fn install() -> io::Result<()> {
    python()?;
    node_modules()?;
    ruby();
    Ok(())
}

/// redis-cli and redis-benchmark.
pub fn redis_cli(addr: &str) -> io::Result<Tally> {
    run(Command::new(sources().join("redis_cli.sh")).args(host_and_port(addr)))
}

/// redis-py, with the cluster whose first shard is at `addr`.
pub fn of_clusters(addr: &str) -> io::Result<Tally> {
    run(Command::new(python()?).arg(sources().join("cluster.py")).args(host_and_port(addr)))
}

fn redis_py(addr: &str) -> io::Result<Tally> {
    let venv = python()?;
    run(Command::new(venv).arg(sources().join("redis_py.py")).args(host_and_port(addr)))
}

/// RQ, Celery, BullMQ and Sidekiq: applications that lean on blocking commands and scripts.
pub fn applications(addr: &str) -> io::Result<Tally> {
    let mut tally = Tally::default();
    for command in &mut applications_commands(addr)? {
        tally += run(command)?;
    }
    Ok(tally)
}

/// What runs the applications.
pub fn applications_commands(addr: &str) -> io::Result<Vec<Command>> {
    let scripts = [
        (python()?, sources().join("applications.py")),
        ("node".into(), node_modules()?.join("applications.mjs")),
        (ruby(), sources().join("applications.rb")),
    ];
    let command = |(program, script): (PathBuf, PathBuf)| {
        let mut command = Command::new(program);
        command.arg(script).args(host_and_port(addr));
        command
    };
    Ok(scripts.map(command).into())
}

/// A Python with all that the scripts need.
fn python() -> io::Result<PathBuf> {
    let dir = installed("python", &["requirements.txt"], |dir| venv(dir, "requirements.txt"))?;
    Ok(dir.join("venv/bin/python"))
}

/// redis-py's own tests: a Python that can run them, and their folder.
pub fn redis_py_tests() -> io::Result<(PathBuf, PathBuf)> {
    const REQUIREMENTS: &str = "redis-py-tests.txt";
    let dir = installed("redis-py", &[REQUIREMENTS], |dir| {
        venv(dir, REQUIREMENTS)?;
        // The wheel comes without tests.
        let download = ["-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=redis"];
        let mut pip = Command::new(dir.join("venv/bin/python"));
        let version = format!("redis=={REDIS_PY}");
        if !succeeds(pip.args(download).arg(&version).current_dir(dir)) {
            return Err("pip could not download the source of redis-py");
        }
        let sdist = format!("redis-{REDIS_PY}.tar.gz");
        let tar = succeeds(Command::new("tar").args(["-xzf", &sdist, "--strip-components=1"]).current_dir(dir));
        // What is tested is what is installed.
        if tar && fs::rename(dir.join("redis"), dir.join("redis-source")).is_ok() { Ok(()) } else { Err("tar fails") }
    })?;
    Ok((dir.join("venv/bin/python"), dir))
}

/// redis-rs' own tests: the folder of its package, completed with what they need.
pub fn redis_rs_tests() -> io::Result<PathBuf> {
    const MANIFEST_END: &str = "redis-rs-tests.toml";
    const LOCK: &str = "redis-rs-tests.lock";
    let dir = installed("redis-rs", &[MANIFEST_END, LOCK], |dir| {
        let source = dir.join("source");
        let complete = || {
            fetch_redis_rs(dir, &source)?;
            let manifest = source.join("Cargo.toml");
            let end = fs::read_to_string(dir.join(MANIFEST_END))?;
            fs::write(&manifest, fs::read_to_string(&manifest)? + &end)?;
            fs::copy(dir.join(LOCK), source.join("Cargo.lock"))
        };
        complete().map(|_| ()).map_err(|_| "cargo could not download redis-rs, or its package is not as it was")
    })?;
    Ok(dir.join("source"))
}

/// Has cargo fetch the package, as something that a project depends on.
fn fetch_redis_rs(dir: &Path, source: &Path) -> io::Result<()> {
    let project = dir.join("fetch");
    fs::create_dir(&project)?;
    fs::write(project.join("lib.rs"), "")?;
    let package = "[package]\nname = \"fetch\"\n[lib]\npath = \"lib.rs\"\n[workspace]\n";
    fs::write(project.join("Cargo.toml"), format!("{package}[dependencies]\nredis = \"={REDIS_RS}\"\n"))?;
    let vendor = ["vendor", "--quiet", "--versioned-dirs"];
    succeeds(Command::new("cargo").args(vendor).current_dir(&project).stdout(Stdio::null()));
    fs::rename(project.join(format!("vendor/redis-{REDIS_RS}")), source)?;
    fs::remove_dir_all(project)
}

/// Ruby, if Debian's packages of it and of Sidekiq are here or may be installed. The script says what is missing.
fn ruby() -> PathBuf {
    let has_sidekiq = || succeeds(Command::new("ruby").args(["-e", "require 'sidekiq'"]).stderr(Stdio::null()));
    if !has_sidekiq() {
        let install = ["install", "-y", "--no-install-recommends", "ruby-sidekiq"];
        succeeds(Command::new("apt-get").args(install).env("DEBIAN_FRONTEND", "noninteractive").stdout(Stdio::null()));
    }
    "ruby".into()
}

/// Makes a Python environment with what is required.
fn venv(dir: &Path, requirements: &str) -> Result<(), &'static str> {
    let venv = dir.join("venv");
    if !succeeds(Command::new("python3").args(["-m", "venv"]).arg(&venv)) {
        // Debian keeps this part of Python in a package of its own.
        let install = ["install", "-y", "--no-install-recommends", "python3-venv"];
        let installed = succeeds(Command::new("apt-get").arg("update").arg("-qq"))
            && succeeds(Command::new("apt-get").args(install))
            && succeeds(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv));
        if !installed {
            return Err("python3 -m venv fails; install it with: sudo apt-get install python3-venv");
        }
    }
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"];
    let pip = Command::new(venv.join("bin/python")).args(pip).arg(dir.join(requirements)).status();
    if pip.is_ok_and(|status| status.success()) { Ok(()) } else { Err("pip could not install what is required") }
}

fn node(addr: &str) -> io::Result<Tally> {
    run(Command::new("node").arg(node_modules()?.join("node_clients.mjs")).args(host_and_port(addr)))
}

/// The status page at a web server's port in this browser.
pub fn browser(addr: &str, web_port: &str, browser: &Path) -> io::Result<Tally> {
    let script = node_modules()?.join("browser.mjs");
    run(Command::new("node").arg(script).args(host_and_port(addr)).arg(web_port).arg(browser))
}

/// Playwright's own Chromium, fetched if need be; none where that cannot be.
pub fn playwright_browser() -> io::Result<Option<PathBuf>> {
    let folder = node_modules()?;
    let script = "import('playwright-core').then(({ chromium }) => console.log(chromium.executablePath()))";
    let place = Command::new("node").args(["-e", script]).current_dir(&folder).output()?;
    let browser = PathBuf::from(String::from_utf8_lossy(&place.stdout).trim());
    if !browser.is_file() {
        let fetch = ["playwright-core", "install", "chromium"];
        if !succeeds(Command::new("npx").args(fetch).current_dir(&folder)) {
            return Ok(None);
        }
    }
    Ok(Some(browser).filter(|browser| browser.is_file()))
}

/// The folder with Node's scripts and all that they need.
fn node_modules() -> io::Result<PathBuf> {
    let files = ["package.json", "package-lock.json", "node_clients.mjs", "applications.mjs", "browser.mjs"];
    installed("node", &files, |dir| {
        // `npm ci` wants every platform's optional binaries in the lock file; nothing here needs any.
        let install = ["install", "--omit=optional", "--no-audit", "--no-fund", "--loglevel=error"];
        if succeeds(Command::new("npm").args(install).current_dir(dir)) { Ok(()) } else { Err("npm install failed") }
    })
}

fn sources() -> PathBuf {
    root().join("testing/clients")
}

fn host_and_port(addr: &str) -> [&str; 2] {
    let (host, port) = addr.rsplit_once(':').unwrap_or((addr, "6379"));
    [host, port]
}

fn succeeds(command: &mut Command) -> bool {
    command.status().is_ok_and(|status| status.success())
}

/// A folder in which `install` has succeeded with the present contents of `files`.
fn installed(
    name: &str,
    files: &[&str],
    install: impl FnOnce(&Path) -> Result<(), &'static str>,
) -> io::Result<PathBuf> {
    let dir = target_dir().join("clients").join(name);
    let unchanged = |file: &&str| {
        let stamp = fs::read(dir.join(format!("{file}.installed")));
        matches!((stamp, fs::read(sources().join(file))), (Ok(a), Ok(b)) if a == b)
    };
    if files.iter().all(unchanged) {
        return Ok(dir);
    }
    println!("installing the clients for {name} into {}", dir.display());
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir)?;
    for file in files {
        fs::copy(sources().join(file), dir.join(file))?;
    }
    install(&dir).map_err(io::Error::other)?;
    for file in files {
        fs::copy(sources().join(file), dir.join(format!("{file}.installed")))?;
    }
    Ok(dir)
}
