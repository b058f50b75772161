//! The web server, tested on every target.

use crate::{
    Effort,
    command::{Tally, run, testing},
    need_build,
    store::{self, Store, free_port, logs_dir},
};
use std::{io, path::Path};

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
