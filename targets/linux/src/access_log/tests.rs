use super::*;
use std::{
    env,
    io::Read,
    path::PathBuf,
    process::Command,
    sync::mpsc::{Receiver, Sender, channel},
    time::Instant,
};

const PATIENCE: Duration = Duration::from_secs(30);

/// Takes what is written as it is told to: so many bytes of it, or none with an error. It says what it was given.
struct Taker {
    told: Receiver<io::Result<usize>>,
    given: Sender<Vec<u8>>,
}

impl Write for Taker {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = self.given.send(bytes.to_vec());
        // Where nobody tells it any more, it takes nothing more.
        let len = self.told.recv().map_err(io::Error::other)??;
        Ok(len.min(bytes.len()))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn taker() -> (Taker, Sender<io::Result<usize>>, Receiver<Vec<u8>>) {
    let ((tell, told), (given, takes)) = (channel(), channel());
    (Taker { told, given }, tell, takes)
}

fn path(name: &str) -> PathBuf {
    let path = env::temp_dir().join(format!("kayvee-access-{name}-{}", std::process::id()));
    // It may be there from a run before.
    let _ = fs::remove_file(&path);
    path
}

#[test]
fn a_line_is_whole_after_an_error_and_others_follow_it() {
    let (to, tell, given) = taker();
    let log = AccessLog::start(to).unwrap();
    let next = || String::from_utf8(given.recv_timeout(PATIENCE).unwrap()).unwrap();
    log.put(b"first\n".to_vec());
    assert_eq!(next(), "first\n");
    log.put(b"second\n".to_vec());
    log.put(b"third\n".to_vec());
    tell.send(Ok(2)).unwrap();
    assert_eq!(next(), "rst\n");
    tell.send(Err(io::ErrorKind::StorageFull.into())).unwrap();
    assert_eq!(next(), "rst\n", "it is tried again");
    tell.send(Err(io::ErrorKind::Interrupted.into())).unwrap();
    assert_eq!(next(), "rst\n");
    tell.send(Ok(4)).unwrap();
    assert_eq!(next(), "second\nthird\n");
    tell.send(Ok(99)).unwrap();
    drop(log);
    assert!(given.recv().is_err(), "that was all");
}

#[test]
fn who_takes_nothing_keeps_nobody_waiting() {
    let (to, tell, given) = taker();
    let log = AccessLog::start(to).unwrap();
    log.put(b"taken\n".to_vec());
    given.recv_timeout(PATIENCE).unwrap();
    let line = [&vec![b'x'; 1023][..], b"\n"].concat();
    let fit = MAX_WAITING_BYTES / line.len();
    (0..fit + 10).for_each(|_| log.put(line.clone()));
    let waiting = |state: &State| (state.lines.len(), state.lost);
    assert_eq!(waiting(&log.0.state()), (MAX_WAITING_BYTES, 10));
    // What waits is written, and then what comes.
    tell.send(Ok(6)).unwrap();
    assert_eq!(given.recv_timeout(PATIENCE).unwrap().len(), MAX_WAITING_BYTES);
    assert_eq!(log.0.state().lost, 0, "it was told how many were lost");
    log.put(b"later\n".to_vec());
    tell.send(Ok(MAX_WAITING_BYTES)).unwrap();
    assert_eq!(given.recv_timeout(PATIENCE).unwrap(), b"later\n");
    let since = Instant::now();
    drop(log);
    assert!(since.elapsed() < PATIENCE, "the end does not wait for it either");
}

#[test]
fn the_end_waits_for_the_last_lines() {
    let path = path("end");
    let log = AccessLog::open(path.to_str().unwrap()).unwrap().unwrap();
    log.put(b"one\n".to_vec());
    drop(log);
    let log = AccessLog::open(path.to_str().unwrap()).unwrap().unwrap();
    log.put(b"two\n".to_vec());
    drop(log);
    assert_eq!(fs::read_to_string(&path).unwrap(), "one\ntwo\n");
    fs::remove_file(path).unwrap();
}

/// A log that nobody reads yet, or no longer, is no reason not to serve.
#[test]
fn a_fifo_needs_no_reader() {
    let path = path("fifo");
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    let log = AccessLog::open(path.to_str().unwrap()).unwrap().unwrap();
    for line in ["one\n", "two\n"] {
        log.put(line.as_bytes().to_vec());
        let mut read = [0; 4];
        File::open(&path).unwrap().read_exact(&mut read).unwrap();
        assert_eq!(read, line.as_bytes(), "each by a reader of its own");
    }
    drop(log);
    fs::remove_file(path).unwrap();
}

#[test]
fn what_cannot_be_opened_is_told() {
    assert!(AccessLog::open("").unwrap().is_none());
    let folder = env::temp_dir();
    for name in [folder.to_str().unwrap(), "/nonexistent/log"] {
        let error = AccessLog::open(name).err().expect("an error").to_string();
        assert!(error.starts_with(&format!("http-access-log {name}: ")), "{error}");
    }
}
