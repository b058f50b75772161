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
};

/// Tests the web server on each target that works here.
pub fn on_every_target(effort: Effort) -> io::Result<Tally> {
    need_build()?;
    let site = logs_dir()?.join("site.image");
    let mut tally = run(testing("web").arg("--site-image").arg(&site))?;
    tally += on(effort, &site, &["--target", "linux"])?;
    tally += on(effort, &site, &["--target", "tcg", "--memory", "256"])?;
    tally += on(Effort::Usual, &site, &["--target", "tcg", "--memory", "256", "--net", "user"])?;
    match store::kvm_works()? {
        Ok(()) => tally += on(effort, &site, &["--target", "kvm", "--memory", "256"])?,
        Err(why) => tally += Tally::skipped(&format!("no guest boots under KVM here: {why}")),
    }
    Ok(tally)
}

/// Browsers that understand Playwright's protocol.
const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

/// Looks at the status page of each target in a real browser.
pub fn in_a_browser(_: Effort) -> io::Result<Tally> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let all = std::env::split_paths(&paths).flat_map(|folder| BROWSERS.map(|name| folder.join(name)));
    let Some(browser) = all.into_iter().find(|path: &PathBuf| path.is_file()) else {
        return Ok(Tally::skipped("there is no Chromium; on Debian: sudo apt-get install chromium"));
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

fn on(effort: Effort, site: &Path, arguments: &[&str]) -> io::Result<Tally> {
    println!("on {}", arguments.join(" "));
    let port = free_port()?.to_string();
    let site = site.display().to_string();
    let web = ["--site", &site, "--http-port", &port, "--http-keys", "page:", "--status"];
    let store = Store::start(&[arguments, &web].concat())?;
    let mut tests = testing("web");
    tests.args(["--web", &format!("127.0.0.1:{port}"), "--store", &store.addr]);
    if effort == Effort::Long {
        tests.arg("--long");
    }
    let mut tally = run(&mut tests)?;
    tally += store.end()?;
    Ok(tally)
}
