//! The site that is served: packed from a directory, or read from an image, and again whenever it has changed.

use crate::{bell::Bell, sys};
use anyhow::{Context, Result};
use kayvee_http::Site;
use kayvee_site::{Fingerprint, fingerprint};
use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

/// How often it is looked whether the end is asked for.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);
/// How often the files are looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The same while something is wrong with them: they may be packed in vain each time.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// What has failed so often, with nothing changed that can be seen, is tried again at every so many looks: once a minute at last.
const MOST_LOOKS: u32 = 12;

/// A site's image. No key goes for it, nor for what it takes to make it: at a change there are two of it, and more while
/// somebody takes a former one slowly.
struct Image(Vec<u8>);

impl AsRef<[u8]> for Image {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.0);
        sys::uncounted(|| drop(bytes));
    }
}

/// Loads a site, and says by what its next state can be told from this one. Files that change meanwhile are seen as
/// changed. There is none where the end is asked for meanwhile: what was begun then ends with the process.
pub fn load_unless(is_asked_to_end: &AtomicBool, path: &Path) -> Result<Option<(Site, Fingerprint)>> {
    let (sender, loaded) = mpsc::channel();
    let owned = path.to_path_buf();
    thread::Builder::new().name("site".into()).spawn(move || sender.send(load(&owned)))?;
    loop {
        match loaded.recv_timeout(SIGNAL_INTERVAL) {
            Err(RecvTimeoutError::Timeout) if is_asked_to_end.load(Ordering::Relaxed) => return Ok(None),
            Err(RecvTimeoutError::Timeout) => {}
            result => return result?.map(Some),
        }
    }
}

fn load(path: &Path) -> Result<(Site, Fingerprint)> {
    sys::uncounted(|| {
        let before = fingerprint(path)?;
        Ok((open(path)?, before))
    })
}

/// Opens a site within what is [uncounted](sys::uncounted).
fn open(path: &Path) -> Result<Site> {
    let image = kayvee_site::image(path)?;
    let site = sys::counted(|| Site::open(Arc::new(Image(image))));
    site.with_context(|| path.display().to_string())
}

/// The site's later states.
pub struct Sites(Receiver<Site>);

impl Sites {
    /// Watches a site's files, in a thread that wakes the loop. It ends with the process.
    pub fn watch(path: &Path, seen: Fingerprint, bell: Bell) -> io::Result<Sites> {
        // While one waits to be served, one more is made and no further one.
        let (sender, receiver) = sync_channel(1);
        let watched = Watched { path: path.to_path_buf(), seen, failure: None };
        let watch = move || sys::uncounted(|| watch(watched, &sender, &bell));
        thread::Builder::new().name("site".into()).spawn(watch)?;
        Ok(Sites(receiver))
    }

    /// The next state, if there is one.
    pub fn next(&self) -> Option<Site> {
        self.0.try_recv().ok()
    }
}

fn watch(mut watched: Watched, sender: &SyncSender<Site>, bell: &Bell) {
    loop {
        thread::sleep(if watched.failure.is_none() { LOOK_INTERVAL } else { RETRY_INTERVAL });
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
    failure: Option<Failure>,
}

/// Why a site's files could not be served.
struct Failure {
    /// What the log was told.
    complaint: String,
    /// The files as they were then, if that could be seen.
    seen: Option<Fingerprint>,
    /// Every so many looks they are tried again as they are, and how many there are to go.
    looks: u32,
    looks_left: u32,
}

impl Failure {
    /// Whether the files are to be tried again at this look.
    fn is_over(&mut self, path: &Path) -> bool {
        self.looks_left -= 1;
        self.looks_left == 0 || self.seen.as_ref().is_some_and(|seen| fingerprint(path).ok().as_ref() != Some(seen))
    }
}

impl Watched {
    /// The site, if its files have changed since it was loaded. What fails is tried again at once when something of it has
    /// changed, and else ever more seldom: rights that are given, say, change no file, but packing takes its time.
    fn look(&mut self) -> Option<Site> {
        if self.failure.as_mut().is_some_and(|failure| !failure.is_over(&self.path)) {
            return None;
        }
        let mut seen = None;
        match self.load_changed(&mut seen) {
            Ok(site) => {
                if self.failure.take().is_some() {
                    log::info!("the site can be served as it is again");
                }
                site
            }
            Err(error) => {
                self.note_failure(format!("{error:#}"), seen);
                None
            }
        }
    }

    fn note_failure(&mut self, complaint: String, seen: Option<Fingerprint>) {
        let before = self.failure.take();
        if before.as_ref().is_none_or(|before| before.complaint != complaint) {
            log::warn!("the site cannot be served as it is; the one before stays: {complaint}");
        }
        let same = before.filter(|before| before.seen == seen);
        let looks = same.map_or(1, |same| MOST_LOOKS.min(same.looks * 2));
        self.failure = Some(Failure { complaint, seen, looks, looks_left: looks });
    }

    /// Loads the site if its files have changed, and says how they were before that. Those that change meanwhile are seen as
    /// changed.
    fn load_changed(&mut self, seen: &mut Option<Fingerprint>) -> Result<Option<Site>> {
        let before = seen.insert(fingerprint(&self.path)?);
        if *before == self.seen {
            return Ok(None);
        }
        let site = open(&self.path)?;
        self.seen = before.clone();
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
        let mut watched = Watched { path: path.clone(), seen, failure: None };
        assert!(watched.look().is_none() && watched.failure.is_none(), "nothing has changed");
        let write_rules = |rules: &str| {
            fs::write(path.join(".kayvee-site"), rules).unwrap();
            let file = File::options().write(true).open(path.join(".kayvee-site")).unwrap();
            file.set_modified(UNIX_EPOCH + Duration::from_secs(1_700_000_000)).unwrap();
        };
        write_rules("catch * x");
        assert!(watched.look().is_none() && watched.look().is_none());
        assert!(watched.failure.as_ref().is_some_and(|failure| failure.complaint.contains("line 1")));
        write_rules("cache * x");
        assert!((0..2).any(|_| watched.look().is_some()) && watched.failure.is_none());
        assert!(watched.look().is_none());
        fs::remove_dir_all(&path).unwrap();
        assert!(watched.look().is_none() && watched.failure.is_some(), "it is told that the files are gone");
    }

    /// Packing in vain takes the processors from whoever is served.
    #[test]
    fn what_fails_as_it_is_is_tried_ever_more_seldom() {
        let path = env::temp_dir().join(format!("kayvee-failing-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("index.html"), "home").unwrap();
        let (_, seen) = load(&path).unwrap();
        let mut watched = Watched { path: path.clone(), seen, failure: None };
        fs::write(path.join(".kayvee-site"), "catch * x").unwrap();
        let looks_between_tries = |watched: &mut Watched, looks: u32| -> Vec<u32> {
            let tries = (1..=looks).filter(|_| {
                assert!(watched.look().is_none());
                watched.failure.as_ref().is_some_and(|failure| failure.looks_left == failure.looks)
            });
            let tries: Vec<u32> = tries.collect();
            tries.windows(2).map(|pair| pair[1] - pair[0]).collect()
        };
        assert_eq!(looks_between_tries(&mut watched, 50), [1, 2, 4, 8, 12, 12]);
        // What is seen to have changed is tried at the next look, and from there on as if it were the first time.
        fs::write(path.join(".kayvee-site"), "catches * x").unwrap();
        assert_eq!(looks_between_tries(&mut watched, 5), [1, 2]);
        fs::write(path.join(".kayvee-site"), "cache * x").unwrap();
        assert!(watched.look().is_some());
        fs::remove_dir_all(&path).unwrap();
        assert_eq!(looks_between_tries(&mut watched, 5), [1, 2]);
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("index.html"), "home").unwrap();
        assert!((0..4).any(|_| watched.look().is_some()), "what cannot be looked at at all is tried as seldom");
        fs::remove_dir_all(&path).unwrap();
    }
}
