use super::*;
use crate::file::AT_ONCE_NS;
use kayvee_log::{FlushPolicy, Kind, Log};
use kayvee_platform::{BlockBuffer, BlockDevice, BlockError, Finished, Operation, Transfer};
use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

/// A file's name in a folder for tests, where there is no such file now and none is left.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let path = std::env::temp_dir().join(format!("kayvee-disk-{}-{name}", std::process::id()));
        let _ = fs::remove_file(&path);
        Place(path)
    }

    fn spec(&self, size_bytes: impl Into<Option<u64>>) -> Spec {
        Spec { path: self.0.clone(), size_bytes: size_bytes.into() }
    }

    fn open(&self, size_bytes: impl Into<Option<u64>>) -> Result<FileDisk, String> {
        FileDisk::open(&self.spec(size_bytes), Box::new(|| {})).map_err(|error| error.to_string())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn transfer(operation: Operation, at_bytes: u64, byte: u8, len: usize) -> Transfer {
    let mut buffer = BlockBuffer::zeroed(len).unwrap();
    buffer.fill(byte);
    Transfer { token: u64::from(byte), operation, at_bytes, buffer }
}

fn run(disk: &mut FileDisk, transfer: Transfer) -> Finished {
    disk.start(transfer).unwrap();
    disk.wait();
    disk.finished().unwrap()
}

const SIZE: u64 = 8 << 20;

/// Makes a log with one record.
pub fn write_log(disk: &mut dyn BlockDevice, text: &str) {
    let mut log = Log::format(disk, [7; 16]).unwrap();
    let mut record = log.record(Kind::EFFECTS).unwrap();
    record.push(text.as_bytes()).unwrap();
    record.commit();
    log.drive(disk, FlushPolicy::Always, 0);
    log.close(disk, 0).unwrap();
}

/// What nobody asked for need not be there yet.
#[test]
fn a_full_file_system_ends_what_is_written_ahead() {
    const BYTES: u64 = 8 << 20;
    let place = Place::new("ahead");
    let file = File::create_new(&place.0).unwrap();
    file.set_len(BYTES).unwrap();
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut fresh = Fresh::of(&file, BYTES).unwrap();
    write_ahead(&mut fresh, &full, None, BYTES / 2).unwrap();
    assert_eq!(fresh.start_bytes(), 0);
    let error = write_ahead(&mut fresh, &full, Some(BYTES), BYTES / 2).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    write_ahead(&mut fresh, &file, None, BYTES / 2).unwrap();
    assert_eq!(fresh.start_bytes(), BYTES / 2);
}

#[test]
fn what_is_written_is_read_back_by_the_next_one() {
    let place = Place::new("written");
    let woken = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&woken);
    let wake = Box::new(move || {
        counter.fetch_add(1, Ordering::Relaxed);
    });
    let mut disk = FileDisk::open(&place.spec(SIZE), wake).unwrap();
    assert_eq!(disk.geometry(), kayvee_platform::Geometry { block_bytes: 4096, size_bytes: SIZE, is_read_only: false });
    for (operation, at) in [(Operation::Write, 1 << 20), (Operation::WriteStable, SIZE - 8192), (Operation::Flush, 0)] {
        let finished = run(&mut disk, transfer(operation, at, 5, 8192));
        assert_eq!((finished.token, finished.result), (5, Ok(())));
    }
    drop(disk);
    // The caller carries out the stable write by itself where zeros have been written ahead of it by then.
    assert!((2..=3).contains(&woken.load(Ordering::Relaxed)));
    assert_eq!(fs::metadata(&place.0).unwrap().len(), SIZE);
    let mut disk = FileDisk::open_read_only(&place.0).unwrap();
    assert!(disk.geometry().is_read_only);
    assert_eq!(run(&mut disk, transfer(Operation::Read, SIZE - 8192, 0, 8192)).buffer[..], [5; 8192]);
    assert_eq!(run(&mut disk, transfer(Operation::Read, 2 << 20, 9, 4096)).buffer[..], [0; 4096]);
    assert_eq!(run(&mut disk, transfer(Operation::Write, 0, 9, 4096)).result, Err(BlockError::Invalid));
}

#[test]
fn impossible_transfers_are_refused() {
    let place = Place::new("impossible");
    let mut disk = place.open(SIZE).unwrap();
    for (at, len) in [(SIZE, 4096), (SIZE - 4096, 8192), (512, 4096), (0, 512), (0, 0), (u64::MAX - 4095, 4096)] {
        assert_eq!(run(&mut disk, transfer(Operation::Write, at, 1, len)).result, Err(BlockError::Invalid));
    }
    assert!(disk.finished().is_none());
    // Nothing is under way, so there is nothing to wait for.
    disk.wait();
}

#[test]
fn many_transfers_end_each_once() {
    let place = Place::new("many");
    let mut disk = place.open(SIZE).unwrap();
    let (mut started, mut ended) = (0u64, vec![]);
    while ended.len() < 500 {
        while started < 500 {
            let at_bytes = started * 4096 % SIZE;
            let transfer = Transfer { token: started, ..transfer(Operation::Write, at_bytes, started as u8, 4096) };
            if disk.start(transfer).is_err() {
                break;
            }
            started += 1;
        }
        disk.wait();
        ended.extend(std::iter::from_fn(|| disk.finished()).map(|finished| (finished.token, finished.result)));
    }
    ended.sort_by_key(|(token, _)| *token);
    assert!(ended.iter().zip(0..).all(|((token, result), number)| *token == number && result.is_ok()));
}

#[test]
fn a_disk_grows_and_never_shrinks() {
    let place = Place::new("grows");
    write_log(&mut place.open(SIZE).unwrap(), "a record");
    assert_eq!(place.open(None).unwrap().geometry().size_bytes, SIZE);
    assert_eq!(place.open(2 * SIZE).unwrap().geometry().size_bytes, 2 * SIZE);
    let mut disk = place.open(2 * SIZE).unwrap();
    let mut records = 0;
    let visit = &mut |_: Kind, _: &[u8]| -> Result<(), Infallible> {
        records += 1;
        Ok(())
    };
    let opened = Log::open(&mut disk, kayvee_log::READ_AHEAD_BYTES, visit, &mut |_| {}).unwrap();
    assert!(opened.grown_bytes > 0);
    drop(disk);
    assert_eq!(records, 1);
    let error = place.open(SIZE).err().unwrap();
    assert!(error.contains("it has 16 MiB, and cannot be made smaller"), "{error}");
    assert!(Place::new("small").open(4096).err().unwrap().contains("too few"));
}

#[test]
fn a_disk_is_one_program_s() {
    let place = Place::new("locked");
    let disk = place.open(SIZE).unwrap();
    for error in [place.open(None).err(), FileDisk::open_read_only(&place.0).err().map(|error| error.to_string())] {
        let error = error.expect("it is locked");
        assert!(error.contains("in use by another program") && error.contains("-locked"), "{error}");
    }
    drop(disk);
    let reader = FileDisk::open_read_only(&place.0).unwrap();
    assert!(FileDisk::open_read_only(&place.0).is_ok() && place.open(None).is_err());
    drop(reader);
    assert!(place.open(None).is_ok());
}

/// QEMU shares its locks, and tells by which bytes it has what it does: 100 reads, 101 writes, 201 lets nobody else write.
#[test]
fn a_disk_that_qemu_writes_is_read_by_nobody() {
    let place = Place::new("qemu");
    drop(place.open(SIZE).unwrap());
    let qemu = |bytes: &[i64]| {
        let file = File::open(&place.0).unwrap();
        for &l_start in bytes {
            let (l_type, l_whence) = (libc::F_RDLCK as _, libc::SEEK_SET as _);
            let lock = libc::flock { l_type, l_whence, l_start, l_len: 1, l_pid: 0 };
            nix::fcntl::fcntl(&file, nix::fcntl::FcntlArg::F_OFD_SETLK(&lock)).unwrap();
        }
        file
    };
    let writer = qemu(&[100, 101, 201]);
    let refused = [FileDisk::open_read_only(&place.0).err(), open_to_read(&place.0).err()];
    for error in
        refused.map(|error| error.expect("it is written").to_string()).into_iter().chain(place.open(None).err())
    {
        assert!(error.contains("in use by another program"), "{error}");
    }
    drop(writer);
    let reader = qemu(&[100, 201]);
    assert!(FileDisk::open_read_only(&place.0).is_ok() && place.open(None).is_err());
    drop(reader);
    // It looks at what others do and deny by locks that would exclude theirs.
    let others = |l_start| {
        let (l_type, l_whence) = (libc::F_WRLCK as _, libc::SEEK_SET as _);
        let mut lock = libc::flock { l_type, l_whence, l_start, l_len: 1, l_pid: 0 };
        nix::fcntl::fcntl(File::open(&place.0).unwrap(), nix::fcntl::FcntlArg::F_OFD_GETLK(&mut lock)).unwrap();
        lock.l_type != libc::F_UNLCK as libc::c_short
    };
    let _reader = FileDisk::open_read_only(&place.0).unwrap();
    assert_eq!([100, 101, 200, 201].map(others), [true, false, false, true], "another one may read, and none write");
}

#[test]
fn what_is_no_disk_of_kayvee_s_is_left_alone() {
    let place = Place::new("foreign");
    // An image of a CD has zeros where a superblock would be.
    let mut image = vec![0; 1 << 20];
    image[0x8001..0x8006].copy_from_slice(b"CD001");
    for bytes in [&b"root:x:0:0:root:/root:/bin/sh\n"[..], &[b'x'; 1 << 20], &image, &[0; 100]] {
        fs::write(&place.0, bytes).unwrap();
        for size in [None, Some(SIZE)] {
            let error = place.open(size).err().unwrap();
            assert!(error.contains("no log of Kayvee's"), "{error}");
        }
        assert_eq!(fs::read(&place.0).unwrap(), bytes);
    }
    write_log(&mut Place::new("other").open(SIZE).unwrap(), "a record");
    fs::write(&place.0, vec![0; 1 << 20]).unwrap();
    assert_eq!(place.open(SIZE).unwrap().geometry().size_bytes, SIZE, "a blank one is taken");
    assert!(FileDisk::open(&Spec::parse("/dev/null").unwrap(), Box::new(|| {})).is_err());
    let folder = FileDisk::open(&Spec { path: std::env::temp_dir(), size_bytes: None }, Box::new(|| {}));
    assert!(folder.err().unwrap().to_string().contains("neither a regular file nor"));
    assert!(FileDisk::open(&Spec::parse("/nowhere/x").unwrap(), Box::new(|| {})).is_err());
}

#[test]
fn what_was_only_begun_can_be_begun_again() {
    let place = Place::new("begun");
    let mut disk = place.open(SIZE).unwrap();
    write_log(&mut disk, "a record");
    // It ends before its beginning is written.
    for _ in 0..2 {
        assert!(!disk.is_blank());
        let mut withheld = crate::Withheld::new(&mut disk).unwrap();
        write_log(&mut withheld, "a record");
        drop(disk);
        disk = place.open(None).expect("it counts as a blank one");
        assert!(disk.is_blank());
        let mut withheld = crate::Withheld::new(&mut disk).unwrap();
        write_log(&mut withheld, "a record");
        withheld.release().unwrap();
        drop(disk);
        disk = place.open(None).unwrap();
    }
    // Where the mark is not all that is there, somebody else has written.
    crate::Withheld::new(&mut disk).unwrap();
    drop(disk);
    let file = OpenOptions::new().write(true).open(&place.0).unwrap();
    file.write_all_at(b"CD001", 0x8001).unwrap();
    assert!(place.open(None).err().unwrap().contains("no log of Kayvee's"));
}

#[test]
fn a_file_that_was_cut_is_refused() {
    let place = Place::new("cut");
    write_log(&mut place.open(SIZE).unwrap(), "a record");
    File::options().write(true).open(&place.0).unwrap().set_len(SIZE / 2).unwrap();
    let error = place.open(None).err().unwrap();
    assert!(error.contains("parts of it are gone"), "{error}");
}

#[test]
fn what_is_never_written_is_written_ahead_and_nothing_else() {
    let place = Place::new("ahead");
    let size = 256 << 20;
    let mut disk = place.open(size).unwrap();
    let written = |place: &Place| Fresh::of(&File::open(&place.0).unwrap(), size).unwrap().start_bytes();
    let at_first = written(&place);
    if at_first == size {
        return println!("skipped: the file system does not tell what was written");
    }
    assert_eq!(at_first, WRITTEN_BYTES);
    // In the middle of what lies fresh, as a log that has wrapped might: nothing before it may be touched then.
    run(&mut disk, transfer(Operation::Write, 100 << 20, 3, 8192));
    drop(disk);
    assert!(written(&place) >= (100 << 20) + 8192);
    let mut disk = place.open(None).unwrap();
    // Both by the worker and, where something lies written, at once.
    for step in 0..200 {
        let operation = if step % 3 == 0 { Operation::Write } else { Operation::WriteStable };
        run(&mut disk, transfer(operation, (101 << 20) + (step << 19), 4, 4096));
    }
    drop(disk);
    let mut disk = place.open(None).unwrap();
    assert_eq!(run(&mut disk, transfer(Operation::Read, 100 << 20, 0, 8192)).buffer[..], [3; 8192]);
    for step in 0..200 {
        let read = run(&mut disk, transfer(Operation::Read, (101 << 20) + (step << 19), 0, 4096));
        assert_eq!(read.buffer[..], [4; 4096], "{step}");
    }
}

#[test]
fn what_somebody_waits_for_is_carried_out_at_once_where_that_is_quick() {
    let place = Place::new("at-once");
    let mut disk = place.open(SIZE).unwrap();
    let write = |at_bytes| transfer(Operation::WriteStable, at_bytes, 6, 4096);
    // Half of a new file lies written.
    assert!(disk.is_quick(&write(0)) && disk.is_quick(&write(SIZE / 2 - 4096)));
    assert!(!disk.is_quick(&write(SIZE / 2)) && !disk.is_quick(&transfer(Operation::Write, 0, 6, 4096)));
    disk.start(write(0)).unwrap();
    assert_eq!(disk.finished().map(|finished| (finished.token, finished.result)), Some((6, Ok(()))));
    disk.files.stable_ns.store(2 * AT_ONCE_NS, Ordering::Relaxed);
    assert!(!disk.is_quick(&write(0)), "the medium is slow");
    run(&mut disk, write(0));
    assert_ne!(disk.files.stable_ns.load(Ordering::Relaxed), 2 * AT_ONCE_NS, "the worker measures as well");
    disk.files.stable_ns.store(0, Ordering::Relaxed);
    disk.start(transfer(Operation::Flush, 0, 0, 0)).unwrap();
    assert!(!disk.is_quick(&write(0)), "the worker has something to do");
    disk.wait();
}

#[test]
fn a_full_file_system_and_a_failing_file_are_told_apart() {
    let files = |path: &str| {
        let open = || File::options().read(true).write(true).open(path).unwrap();
        Files::new(open(), Some(open()))
    };
    let mut full = FileDisk::new(files("/dev/full"), SIZE, None, Box::new(|| {})).unwrap();
    assert_eq!(run(&mut full, transfer(Operation::Write, 0, 1, 4096)).result, Err(BlockError::NoSpace));
    assert_eq!(run(&mut full, transfer(Operation::WriteStable, 0, 1, 4096)).result, Err(BlockError::NoSpace));
    let read_only = Files::new(File::open("/dev/zero").unwrap(), Some(File::open("/dev/zero").unwrap()));
    let mut failing = FileDisk::new(read_only, SIZE, None, Box::new(|| {})).unwrap();
    assert_eq!(run(&mut failing, transfer(Operation::Write, 0, 1, 4096)).result, Err(BlockError::Io));
    // The file ends before its time.
    let short = Files::new(File::open("/dev/null").unwrap(), None);
    let mut short = FileDisk::new(short, SIZE, None, Box::new(|| {})).unwrap();
    assert_eq!(run(&mut short, transfer(Operation::Read, 0, 1, 4096)).result, Err(BlockError::Io));
}

/// Nobody writes to it, so whoever waited for that would wait for ever.
#[test]
fn a_fifo_is_no_disk_to_read_from() {
    let place = Place::new("fifo");
    // A program that is started for it would have the locks of other tests until it runs.
    nix::unistd::mkfifo(&place.0, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let error = open_to_read(&place.0).unwrap_err().to_string();
    assert!(error.ends_with(NO_DISK), "{error}");
}
