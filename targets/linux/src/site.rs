//! The site that is served: packed from a directory, or read from an image, and again whenever it has changed.

use crate::bell::Bell;
use anyhow::Result;
use kayvee_http::Site;
use kayvee_site::{Fingerprint, fingerprint};
use std::{
    io,
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, Sender, channel},
    thread,
    time::Duration,
};

/// How often the files are looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Loads a site, and says by what its next state can be told from this one. Files that change meanwhile are seen as
/// changed.
pub fn load(path: &Path) -> Result<(Site, Fingerprint)> {
    let before = fingerprint(path)?;
    Ok((kayvee_site::open(path)?, before))
}

/// The site's later states.
pub struct Sites(Receiver<Site>);

impl Sites {
    /// Watches a site's files, in a thread that wakes the loop. It ends with the process.
    pub fn watch(path: &Path, seen: Fingerprint, bell: Bell) -> io::Result<Sites> {
        let (sender, receiver) = channel();
        let path = path.to_path_buf();
        thread::Builder::new().name("site".into()).spawn(move || watch(path, seen, &sender, &bell))?;
        Ok(Sites(receiver))
    }

    /// The next state, if there is one.
    pub fn next(&self) -> Option<Site> {
        self.0.try_recv().ok()
    }
}

fn watch(path: PathBuf, mut seen: Fingerprint, sender: &Sender<Site>, bell: &Bell) {
    loop {
        thread::sleep(LOOK_INTERVAL);
        // Files may be gone between two looks; what is there next time counts.
        let Ok(now) = fingerprint(&path) else { continue };
        if now == seen {
            continue;
        }
        match load(&path) {
            Ok((site, fingerprint)) => {
                seen = fingerprint;
                if sender.send(site).is_err() {
                    return;
                }
                bell.ring();
            }
            Err(error) => {
                seen = now;
                log::warn!("the site has changed and cannot be served so; the one before stays: {error:#}");
            }
        }
    }
}
