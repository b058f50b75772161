use super::*;
use crate::{Spec, open::tests::write_log};
use kayvee_log::Kind;
use kayvee_platform::BlockDevice;
use std::{convert::Infallible, os::unix::fs::symlink, path::PathBuf};

/// A folder for tests, of which nothing is left.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("kayvee-made-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn disk(&self) -> PathBuf {
        self.0.join("kayvee.disk")
    }

    /// A log of this size in the disk's place.
    fn with_log(self, record: &str, size_bytes: u64) -> Folder {
        let spec = Spec { path: self.disk(), size_bytes: Some(size_bytes) };
        write_log(&mut FileDisk::open(&spec, Box::new(|| {})).unwrap(), record);
        self
    }

    fn names(&self) -> Vec<String> {
        let names = fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    fn create(&self) -> Result<(FileDisk, NewDisk), String> {
        FileDisk::create(&self.disk(), Box::new(|| {})).map_err(|error| error.to_string())
    }

    /// What is in the disk's place, as a start finds it.
    fn records(&self) -> Vec<String> {
        let mut disk = FileDisk::open_read_only(&self.disk()).unwrap();
        let mut records = Vec::new();
        let mut note = |_: Kind, bytes: &[u8]| -> Result<(), Infallible> {
            records.push(String::from_utf8(bytes.to_vec()).unwrap());
            Ok(())
        };
        kayvee_log::check(&mut disk, kayvee_log::READ_AHEAD_BYTES, &mut note, &mut |_| {}).unwrap();
        records
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn temporary() -> String {
    format!("kayvee.disk.{}.tmp", std::process::id())
}

#[test]
fn a_new_disk_takes_an_empty_place() {
    let folder = Folder::new("empty");
    let (mut disk, mut file) = folder.create().unwrap();
    assert_eq!(folder.names(), ["kayvee.disk".to_string(), temporary()]);
    write_log(&mut disk, "new");
    assert_eq!(fs::metadata(folder.disk()).unwrap().len(), 0, "nothing that anybody takes for a log");
    assert!(folder.create().err().unwrap().contains("in use"), "the place is taken");
    file.put_in_place().wait().unwrap();
    assert_eq!(folder.names(), ["kayvee.disk"]);
    drop(file);
    assert!(folder.create().err().unwrap().contains("in use"), "the log is");
    drop(disk);
    assert_eq!(folder.records(), ["new"]);
    // It is not done twice, but it may have to be asked for twice.
    let (mut disk, mut file) = folder.create().unwrap();
    write_log(&mut disk, "newer");
    let moved = folder.0.with_extension("moved");
    fs::rename(&folder.0, &moved).unwrap();
    assert!(file.put_in_place().wait().is_err());
    fs::rename(&moved, &folder.0).unwrap();
    file.put_in_place().wait().unwrap();
    file.put_in_place().wait().unwrap();
    drop((file, disk));
    assert_eq!((folder.records(), folder.names()), (vec!["newer".to_string()], vec!["kayvee.disk".to_string()]));
}

#[test]
fn a_place_that_is_not_taken_stays_as_it_was() {
    const SIZE: u64 = 8 << 20;
    let folder = Folder::new("kept").with_log("old", SIZE);
    let before = fs::read(folder.disk()).unwrap();
    let (mut disk, file) = folder.create().unwrap();
    assert_eq!(disk.geometry().size_bytes, SIZE, "as large as the one before");
    write_log(&mut disk, "new");
    assert!(folder.create().err().unwrap().contains("in use"));
    drop((disk, file));
    assert!(fs::read(folder.disk()).unwrap() == before);
    assert_eq!((folder.names(), folder.records()), (vec!["kayvee.disk".to_string()], vec!["old".to_string()]));
    // What a crash leaves is in nobody's way.
    let (mut disk, file) = folder.create().unwrap();
    write_log(&mut disk, "cut");
    let left = || fs::copy(folder.disk(), folder.0.join("kayvee.disk.4711.tmp")).unwrap();
    left();
    fs::write(folder.0.join("kayvee.disk.mine.tmp"), "mine").unwrap();
    drop((disk, file));
    assert_eq!(folder.records(), ["old"]);
    assert_eq!(folder.names(), ["kayvee.disk", "kayvee.disk.4711.tmp", "kayvee.disk.mine.tmp"]);
    drop(folder.create().unwrap());
    assert_eq!(folder.names(), ["kayvee.disk", "kayvee.disk.mine.tmp"]);
    left();
    let spec = Spec { path: folder.disk(), size_bytes: None };
    FileDisk::open(&spec, Box::new(|| {})).unwrap().remove_left(&spec.path);
    assert_eq!(folder.names(), ["kayvee.disk", "kayvee.disk.mine.tmp"]);
    let empty = Folder::new("left");
    drop(empty.create().unwrap());
    assert!(empty.names().is_empty());
}

#[test]
fn what_is_no_disk_keeps_its_place() {
    let folder = Folder::new("foreign");
    fs::write(folder.disk(), "somebody's letter").unwrap();
    assert!(folder.create().err().unwrap().contains("no log of Kayvee's"));
    assert_eq!(fs::read(folder.disk()).unwrap(), b"somebody's letter");
    fs::remove_file(folder.disk()).unwrap();
    fs::create_dir(folder.disk()).unwrap();
    assert!(folder.create().err().unwrap().contains("start Kayvee with --disk"));
    assert_eq!(folder.names(), ["kayvee.disk"]);
}

#[test]
fn a_link_to_a_disk_stays_one() {
    let (folder, other) = (Folder::new("link"), Folder::new("linked").with_log("old", 8 << 20));
    symlink(other.disk(), folder.disk()).unwrap();
    let (mut disk, mut file) = folder.create().unwrap();
    write_log(&mut disk, "new");
    assert_eq!(other.names(), ["kayvee.disk".to_string(), temporary()]);
    file.put_in_place().wait().unwrap();
    drop((disk, file));
    assert_eq!(folder.records(), ["new"]);
    assert!(fs::symlink_metadata(folder.disk()).unwrap().is_symlink());
}
