use super::*;
use crate::{FileDisk, Spec, open::tests::write_log};
use std::thread;

const SIZE: u64 = 8 << 20;

/// A folder for tests, of which nothing is left.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("kayvee-claim-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn disk(&self) -> PathBuf {
        self.0.join("kayvee.disk")
    }

    fn open(&self) -> Result<FileDisk, String> {
        let spec = Spec { path: self.disk(), size_bytes: Some(SIZE) };
        FileDisk::open(&spec, Box::new(|| {})).map_err(|error| error.to_string())
    }

    /// Claims the disk; others do something when its file was made, before it is locked.
    fn claim_after(&self, others: impl FnOnce()) -> Result<Claim, String> {
        let mut others = Some(others);
        let claimed = claim_made_by(&self.disk(), &mut |path| {
            let is_made = make_file(path)?;
            if let Some(others) = others.take() {
                others();
            }
            Ok(is_made)
        });
        claimed.map_err(|error| error.to_string())
    }

    fn size_bytes(&self) -> Option<u64> {
        fs::metadata(self.disk()).ok().map(|found| found.len())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn who_comes_second_leaves_a_new_disk_to_who_locked_it_first() {
    let folder = Folder::new("second");
    let mut winner = None;
    let lost = folder.claim_after(|| winner = Some(folder.open().unwrap())).err().unwrap();
    assert!(lost.contains("in use"), "{lost}");
    write_log(winner.as_mut().unwrap(), "a record");
    drop(winner);
    assert_eq!(folder.size_bytes(), Some(SIZE));
    assert!(!folder.open().unwrap().is_blank(), "it was not written to a file without a name");
}

#[test]
fn what_others_have_written_meanwhile_is_not_removed() {
    let folder = Folder::new("meanwhile");
    let claim = folder.claim_after(|| write_log(&mut folder.open().unwrap(), "a record")).unwrap();
    assert_eq!((claim.size_bytes, claim.made.is_none()), (SIZE, true));
    drop(claim);
    assert_eq!(folder.size_bytes(), Some(SIZE));
}

#[test]
fn a_file_that_is_removed_before_it_is_locked_is_made_again() {
    let folder = Folder::new("again");
    let claim = folder.claim_after(|| fs::remove_file(folder.disk()).unwrap()).unwrap();
    assert!(leads_to(&folder.disk(), &claim.files.plain) && folder.open().err().unwrap().contains("in use"));
    drop(claim);
    assert_eq!(folder.size_bytes(), None, "of no use, so nothing is left");
}

#[test]
fn what_was_made_is_removed_under_its_lock_and_only_from_its_place() {
    let folder = Folder::new("removed");
    let spec = Spec { path: folder.disk(), size_bytes: Some(4096) };
    assert!(FileDisk::open(&spec, Box::new(|| {})).err().unwrap().to_string().contains("too few"));
    assert_eq!(folder.size_bytes(), None);
    let place = Place::take(&folder.disk()).unwrap();
    assert!(folder.open().err().unwrap().contains("in use"));
    fs::write(folder.0.join("other"), "new").unwrap();
    fs::rename(folder.0.join("other"), folder.disk()).unwrap();
    drop(place);
    assert_eq!(fs::read(folder.disk()).unwrap(), b"new");
    assert!(Place::take(&folder.disk()).is_err(), "it is not empty");
    fs::write(folder.disk(), "").unwrap();
    drop(Place::take(&folder.disk()).unwrap());
    assert_eq!(folder.size_bytes(), Some(0), "it was there before");
}

/// Each file is locked before it is put in its place, and until another one is there: so there is never one to be had.
#[test]
fn a_file_that_was_replaced_is_not_locked_in_the_place_of_the_new_one() {
    const OPENED: usize = 20_000;
    let folder = Folder::new("replaced");
    let new = |number: usize| {
        let path = folder.0.join(format!("{number}.new"));
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        assert!(kayvee_files::lock(&file, Hold::Alone).unwrap());
        fs::rename(&path, folder.disk()).unwrap();
        file
    };
    let mut last = new(0);
    thread::scope(|scope| {
        let opener = scope.spawn(|| {
            let open = |_: &usize| open_files(&folder.disk(), Access::ReadWrite).is_ok();
            (0..OPENED).filter(open).count()
        });
        for number in 1.. {
            last = new(number);
            if opener.is_finished() {
                break;
            }
        }
        assert_eq!(opener.join().unwrap(), 0, "of {OPENED}");
    });
    drop(last);
    assert!(open_files(&folder.disk(), Access::ReadWrite).is_ok());
}
