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
/// The same while something is wrong with them: they may be packed in vain each time.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

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
        let watched = Watched { path: path.to_path_buf(), seen, complaint: None };
        thread::Builder::new().name("site".into()).spawn(move || watch(watched, &sender, &bell))?;
        Ok(Sites(receiver))
    }

    /// The next state, if there is one.
    pub fn next(&self) -> Option<Site> {
        self.0.try_recv().ok()
    }
}

fn watch(mut watched: Watched, sender: &Sender<Site>, bell: &Bell) {
    loop {
        thread::sleep(if watched.complaint.is_none() { LOOK_INTERVAL } else { RETRY_INTERVAL });
        let Some(site) = watched.look() else { continue };
        if sender.send(site).is_err() {
            return;
        }
        bell.ring();
    }
}

/// A site's files.
struct Watched {
    path: PathBuf,
    /// As they were when the site was loaded.
    seen: Fingerprint,
    /// What the log was told is wrong with them.
    complaint: Option<String>,
}

impl Watched {
    /// The site, if its files have changed since it was loaded. What fails is tried again: rights that are given, say, change no
    /// file.
    fn look(&mut self) -> Option<Site> {
        match self.load_changed() {
            Ok(site) => {
                if self.complaint.take().is_some() {
                    log::info!("the site can be served as it is again");
                }
                site
            }
            Err(error) => {
                let complaint = format!("{error:#}");
                if self.complaint.as_ref() != Some(&complaint) {
                    log::warn!("the site cannot be served as it is; the one before stays: {complaint}");
                    self.complaint = Some(complaint);
                }
                None
            }
        }
    }

    fn load_changed(&mut self) -> Result<Option<Site>> {
        if fingerprint(&self.path)? == self.seen {
            return Ok(None);
        }
        let (site, seen) = load(&self.path)?;
        self.seen = seen;
        Ok(Some(site))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        env, fs,
        fs::File,
        time::{Duration, UNIX_EPOCH},
    };

    /// Files that cannot be served are tried again although nothing that can be seen of them has changed.
    #[test]
    fn what_could_not_be_served_is_tried_again() {
        let path = env::temp_dir().join(format!("kayvee-watched-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("index.html"), "home").unwrap();
        let (_, seen) = load(&path).unwrap();
        let mut watched = Watched { path: path.clone(), seen, complaint: None };
        assert!(watched.look().is_none() && watched.complaint.is_none(), "nothing has changed");
        let write_rules = |rules: &str| {
            fs::write(path.join(".kayvee-site"), rules).unwrap();
            let file = File::options().write(true).open(path.join(".kayvee-site")).unwrap();
            file.set_modified(UNIX_EPOCH + Duration::from_secs(1_700_000_000)).unwrap();
        };
        write_rules("catch * x");
        assert!(watched.look().is_none() && watched.look().is_none());
        assert!(watched.complaint.as_ref().is_some_and(|complaint| complaint.contains("line 1")));
        write_rules("cache * x");
        assert!(watched.look().is_some() && watched.complaint.is_none());
        assert!(watched.look().is_none());
        fs::remove_dir_all(&path).unwrap();
        assert!(watched.look().is_none() && watched.complaint.is_some(), "it is told that the files are gone");
    }
}
