//! The web server, tested on every target.

use crate::{
    Effort, clients,
    command::{Tally, run, testing},
    need_build,
    store::{self, Store, free_port, logs_dir},
};
use std::{
    io,
    path::{Path, PathBuf},
    process::Command,
};

/// Tests the web server on each target that works here.
pub fn on_every_target(effort: Effort) -> io::Result<Tally> {
    need_build()?;
    let site = logs_dir()?.join("site.image");
    let mut tally = run(testing("web").arg("--site-image").arg(&site))?;
    tally += on(effort, &site, &["--target", "linux"])?;
    tally += on(effort, &site, &["--target", "tcg", "--memory", "256"])?;
    let large = logs_dir()?.join("large-site.image");
    tally += run(testing("web").arg("--large-site-image").arg(&large))?;
    tally += on_disk(&large, &["--target", "linux"])?;
    tally += on_disk(&large, &["--target", "tcg", "--memory", "64"])?;
    tally += on(Effort::Usual, &site, &["--target", "tcg", "--memory", "256", "--net", "user"])?;
    match store::kvm_works()? {
        Ok(()) => {
            tally += on(effort, &site, &["--target", "kvm", "--memory", "256"])?;
            tally += on_disk(&large, &["--target", "kvm", "--memory", "64"])?;
        }
        Err(why) => tally += Tally::skipped(&format!("no guest boots under KVM here: {why}")),
    }
    std::fs::remove_file(large)?;
    Ok(tally)
}

/// Open files with which 10,000 connections are carried to a guest.
const LEAST_FILES: u64 = 20_100;

/// Browsers that understand Playwright's protocol.
const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

/// Looks at the status page of each target in a real browser.
pub fn in_a_browser(_: Effort) -> io::Result<Tally> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let all = std::env::split_paths(&paths).flat_map(|folder| BROWSERS.map(|name| folder.join(name)));
    let browser = match all.into_iter().find(|path: &PathBuf| path.is_file()) {
        Some(browser) => browser,
        None => match clients::playwright_browser()? {
            Some(browser) => browser,
            None => {
                let why = "there is no Chromium, and Playwright's cannot be fetched; on Debian: sudo apt-get install chromium";
                return Ok(Tally::skipped(why));
            }
        },
    };
    need_build()?;
    let mut tally = Tally::default();
    for arguments in [&["--target", "linux"][..], &["--target", "tcg", "--memory", "64"]] {
        println!("on {}", arguments.join(" "));
        let port = free_port()?.to_string();
        let store = Store::start(&[arguments, &["--http-port", &port, "--status"]].concat())?;
        tally += clients::browser(&store.addr, &port, &browser)?;
        tally += store.end()?;
    }
    Ok(tally)
}

/// Tests a site that is several times larger than a guest's memory.
fn on_disk(site: &Path, arguments: &[&str]) -> io::Result<Tally> {
    println!("with a site on a disk, on {}", arguments.join(" "));
    let port = free_port()?.to_string();
    let site = site.display().to_string();
    let store = Store::start(&[arguments, &["--site-disk", &site, "--http-port", &port]].concat())?;
    let addresses = ["--web", &format!("127.0.0.1:{port}"), "--store", &store.addr, "--large"];
    let mut tally = run(testing("web").args(addresses))?;
    tally += store.end()?;
    Ok(tally)
}

/// How many files a process here may have open, unless that has no limit.
fn open_files() -> io::Result<Option<u64>> {
    let limit = Command::new("sh").args(["-c", "ulimit -Hn"]).output()?;
    Ok(String::from_utf8_lossy(&limit.stdout).trim().parse().ok())
}

fn on(effort: Effort, site: &Path, arguments: &[&str]) -> io::Result<Tally> {
    println!("on {}", arguments.join(" "));
    let port = free_port()?.to_string();
    let site = site.display().to_string();
    let web = ["--site", &site, "--http-port", &port, "--http-keys", "page:", "--status"];
    let store = Store::start(&[arguments, &web].concat())?;
    let mut tests = testing("web");
    tests.args(["--web", &format!("127.0.0.1:{port}"), "--store", &store.addr]);
    let mut tally = Tally::default();
    if effort == Effort::Long {
        match open_files()?.filter(|most| *most < LEAST_FILES && !arguments.contains(&"linux")) {
            None => _ = tests.arg("--long"),
            Some(most) => {
                let why = "what carries a guest's port has two files open for each of 10,000 connections, and may have";
                tally += Tally::skipped(&format!("{why} {most}"));
            }
        }
    }
    tally += run(&mut tests)?;
    tally += store.end()?;
    Ok(tally)
}
