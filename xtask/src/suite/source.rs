//! Redis' source, from Debian's source package: the tests come with it.

use crate::command::target_dir;
use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

const TARBALL: &str = "redis_7.0.15.orig.tar.gz";
const SHA256: &str = "4b1dc4ee6d622a09fff9c6777191209750fb5e5a725ef78ea012d6eef4c22982";
const DEBIAN_KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// The release of Debian that has this version of Redis.
const SUITE: &str = "bookworm";

/// The folder of the tests and of what they leave behind.
pub fn dir() -> PathBuf {
    target_dir().join("suite")
}

/// The source package, downloaded on first use and checked every time.
pub fn tarball() -> io::Result<PathBuf> {
    let path = dir().join(TARBALL);
    fs::create_dir_all(dir())?;
    if !path.exists() {
        println!("downloading the source package of Redis 7.0.15");
        download(&dir())?;
    }
    let output = Command::new("sha256sum").arg(&path).output()?;
    if String::from_utf8_lossy(&output.stdout).split_whitespace().next() != Some(SHA256) {
        let how = format!("remove {}, or put the right one there", path.display());
        return Err(io::Error::other(format!("the source package of Redis is not the expected one; {how}")));
    }
    Ok(path)
}

/// Has apt-get fetch it, with sources and lists of its own, so that the system's stay as they are.
fn download(dir: &Path) -> io::Result<()> {
    let apt = dir.join("apt");
    fs::create_dir_all(apt.join("lists/partial"))?;
    fs::create_dir_all(apt.join("cache/archives/partial"))?;
    let sources = apt.join("sources.list");
    fs::write(&sources, format!("deb-src [signed-by={DEBIAN_KEYS}] http://deb.debian.org/debian {SUITE} main\n"))?;
    let run = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        for (name, value) in [
            ("Dir::Etc::sourcelist", sources.as_path()),
            ("Dir::Etc::sourceparts", Path::new("/dev/null")),
            ("Dir::State::lists", &apt.join("lists")),
            ("Dir::Cache", &apt.join("cache")),
        ] {
            command.arg("-o").arg(format!("{name}={}", value.display()));
        }
        command.args(["-qq", "-o", "APT::Sandbox::User=root"]).args(arguments).current_dir(dir);
        command.stdout(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    if run(&["update"]) && run(&["source", "--download-only", "redis"]) && dir.join(TARBALL).exists() {
        return fs::remove_dir_all(apt);
    }
    let advice = format!("put {TARBALL} of Debian {SUITE}'s source package 'redis' into {}", dir.display());
    Err(io::Error::other(format!("apt-get could not fetch Redis' source package; {advice}")))
}

/// Unpacks what the harness needs into a folder.
pub fn unpack(tarball: &Path, into: &Path) -> io::Result<()> {
    fs::create_dir_all(into)?;
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(tarball).arg("-C").arg(into).arg("--strip-components=1");
    tar.args(["redis-7.0.15/tests", "redis-7.0.15/runtest"]);
    if tar.status()?.success() { Ok(()) } else { Err(io::Error::other("tar could not unpack Redis' source package")) }
}

/// The suite's own list of its units, in its order.
pub fn units(tarball: &Path) -> io::Result<Vec<String>> {
    let tar = Command::new("tar").arg("-xzOf").arg(tarball).arg("redis-7.0.15/tests/test_helper.tcl").output()?.stdout;
    let text = String::from_utf8_lossy(&tar).into_owned();
    let list = text.split_once("set ::all_tests {").and_then(|(_, rest)| rest.split_once('}'));
    let list = list.ok_or_else(|| io::Error::other("the suite's list of units is not where it was"))?.0;
    Ok(list.split_whitespace().map(String::from).collect())
}
