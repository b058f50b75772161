//! What the `kayvee` command refuses, and how it keeps its records: all that needs no store.

use kayvee_testing::ports::free_port;
use std::{
    fs,
    net::TcpListener,
    os::unix::fs::{chown, symlink},
    path::PathBuf,
    process::{Command, Output},
};

/// A folder of one test's own for the records of detached instances.
struct StateFolder(PathBuf);

impl StateFolder {
    fn new(test: &str) -> StateFolder {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(test);
        // Left by an earlier run that was killed.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        StateFolder(folder)
    }

    /// What a command says that should end by itself: one that serves instead is stopped, and seen by its status, 124.
    fn kayvee(&self, args: &[&str]) -> Output {
        let mut command = Command::new("timeout");
        command.args(["60", env!("CARGO_BIN_EXE_kayvee")]).args(args);
        command.env("XDG_RUNTIME_DIR", &self.0).output().unwrap()
    }
}

impl Drop for StateFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
fn assert_refused(output: &Output, status: i32, words: &str) {
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{said}");
    assert!(said.contains(words), "{words:?} is not in {said:?}");
}

#[test]
fn help_is_everywhere() {
    let state = StateFolder::new("help");
    for command in [
        &["--help"][..],
        &["run", "--help"],
        &["ps", "-h"],
        &["logs", "-h"],
        &["stop", "-h"],
        &["image", "-h"],
        &["log", "check", "-h"],
    ] {
        let output = state.kayvee(command);
        assert!(output.status.success() && text(&output.stdout).contains("Usage: kayvee"), "{command:?}");
    }
    assert_eq!(state.kayvee(&[]).status.code(), Some(2));
}

#[test]
fn wrong_arguments_are_refused_before_anything_boots() {
    let state = StateFolder::new("wrong_arguments");
    for (args, words) in [
        (&["run", "--", "--nonsense", "1"][..], "option 'nonsense \"1\"': Bad directive"),
        (&["run", "--", "--maxmemory", "lots"], "option 'maxmemory \"lots\"': argument must be a memory value"),
        (&["run", "--", "--port"], "option 'port': wrong number of arguments"),
        (&["run", "--port", "7000", "--", "--port", "7001"], "--port is given twice"),
        (&["run", "--port", "65536"], "65536"),
        (&["run", "--memory", "4"], "4 is not in"),
        (&["run", "--target", "xen"], "possible values: auto, kvm, tcg, linux"),
        (&["run", "--target", "linux", "--net", "tap"], "leave them out with --target linux"),
        (&["run", "--name", "a"], "--detach"),
        (&["run", "--detach", "--name", "../a"], "a name has"),
        (&["run", "--detach", "--", "--nonsense", "1"], "Bad directive"),
        (&["run", "--target", "linux", "--", "--bind", "nowhere"], "'nowhere' is not an address"),
        (&["run", "--disk", "a.disk:4X"], "'4X' is not a size such as 512M, 4G or 1T"),
        (&["run", "--", "--disk", "a.disk"], "option '--disk' belongs before '--'"),
        (&["run", "--target", "linux", "--", "--daemonize", "yes"], "--detach leaves a store in the background"),
        (&["run", "--port", "7000", "--", "--replicaof"], "option 'replicaof': wrong number of arguments"),
        (&["run", "--http-port", "1", "--", "--http-port", "2"], "--http-port is given twice: 1, and 2 behind '--'"),
        (&["run", "--shards", "2", "--", "--http-port", "2"], "--http-port belongs before '--'"),
        (&["run", "--target", "tcg", "--shards", "1000"], "a guest's boot line at the most 4095"),
        (&["run", "--target", "tcg", "--", "--aclfile", "users.acl"], "option '--aclfile': a guest has no files"),
        (&["run", "--target", "kvm", "--detach", "--", "--logfile", "x"], "in `kayvee logs`. Or leave it to a Linux"),
    ] {
        assert_refused(&state.kayvee(args), 2, words);
    }
}

#[test]
fn a_disk_that_is_none_is_refused_and_left_as_it_is() {
    let state = StateFolder::new("foreign_disk");
    let file = state.0.join("letter.txt");
    let name = file.to_str().unwrap();
    fs::write(&file, "Dear reader,\n".repeat(100_000)).unwrap();
    for target in ["linux", "tcg"] {
        let larger = format!("{name}:64M");
        for disk in [name, &larger] {
            let output = state.kayvee(&["run", "--target", target, "--port", "1", "--disk", disk]);
            // A Linux process says so by itself.
            let said = text(&output.stdout) + &text(&output.stderr);
            assert_eq!(output.status.code(), Some(1));
            assert!(said.contains("letter.txt: the disk holds something that is no log of Kayvee's"), "{said}");
        }
    }
    assert_refused(&state.kayvee(&["log", "check", name]), 1, "no log of Kayvee's");
    assert_eq!(fs::read(&file).unwrap(), "Dear reader,\n".repeat(100_000).as_bytes());
    fs::write(&file, "Dear reader,\n".repeat(230)).unwrap();
    assert_refused(&state.kayvee(&["log", "check", name]), 1, "no log of Kayvee's");
    assert_refused(&state.kayvee(&["log", "check", "/nowhere/x"]), 1, "disk /nowhere/x: No such file");
    fs::write(&file, vec![0; 1 << 20]).unwrap();
    assert_refused(&state.kayvee(&["log", "check", name]), 1, "blank");
}

#[test]
fn files_are_put_in_no_place_of_a_disk_or_a_pipe() {
    let state = StateFolder::new("places");
    let [disk, pipe, page] = ["disk", "pipe", "page"].map(|name| state.0.join(name).display().to_string());
    fs::write(&disk, "data").unwrap();
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    assert_refused(&state.kayvee(&["export", "--disk", &disk, "-o", &disk]), 1, "it is the disk itself");
    assert_eq!(fs::read(&disk).unwrap(), b"data");
    fs::create_dir(&page).unwrap();
    for args in [["export", "--disk", &disk, "-o", &pipe], ["site", "pack", &page, "-o", &pipe]] {
        assert_refused(&state.kayvee(&args), 1, "it is no regular file");
    }
}

/// An import of the wrong file, or of nothing, is not one of no keys.
#[test]
fn what_is_empty_is_not_imported() {
    let state = StateFolder::new("empty");
    let [disk, empty] = ["disk", "empty"].map(|name| state.0.join(name).display().to_string());
    fs::write(&empty, "").unwrap();
    for source in ["/dev/null", &empty] {
        assert_refused(&state.kayvee(&["import", source, "--disk", &disk]), 1, "it is empty, or a pipe");
    }
    let line = format!("echo | timeout 60 \"$0\" import /dev/stdin --disk {disk}");
    let output = Command::new("sh").args(["-c", &line, env!("CARGO_BIN_EXE_kayvee")]).output().unwrap();
    assert_refused(&output, 1, "/dev/stdin: it is empty, or a pipe");
    assert_eq!(fs::read_dir(&state.0).unwrap().count(), 1, "there is no disk");
}

/// A full or closed output is an error, not the end in the middle of the work.
#[test]
fn what_cannot_be_said_is_an_error() {
    let state = StateFolder::new("full");
    let page = state.0.join("page");
    fs::create_dir(&page).unwrap();
    fs::write(page.join("index.html"), "a page").unwrap();
    let line = format!("exec \"$0\" site pack {0} -o {0}.site >/dev/full", page.display());
    let output = Command::new("sh").args(["-c", &line, env!("CARGO_BIN_EXE_kayvee")]).output().unwrap();
    assert_refused(&output, 1, "No space left on device");
}

#[test]
fn memory_that_no_host_has_is_refused() {
    let state = StateFolder::new("memory");
    for target in ["auto", "kvm", "tcg"] {
        let output = state.kayvee(&["run", "--target", target, "--memory", "4000000"]);
        assert_refused(&output, 2, "a guest of 4000000 MiB does not fit in this host's");
    }
}

/// What a store that ends at once has said is the reason, however it broke off the question whether it answers.
#[test]
fn the_end_of_a_store_is_its_own() {
    let state = StateFolder::new("end");
    let port = free_port().to_string();
    for _ in 0..20 {
        let output = state.kayvee(&["run", "--target", "linux", "--port", &port, "--disk", "/nosuch/x"]);
        let said = text(&output.stdout) + &text(&output.stderr);
        assert_eq!(output.status.code(), Some(1));
        assert!(said.contains("disk /nosuch/x: No such file") && !said.contains("asking 127.0.0.1"), "{said}");
    }
}

#[test]
fn a_port_in_use_is_named() {
    let state = StateFolder::new("port_in_use");
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = holder.local_addr().unwrap().port().to_string();
    let output = state.kayvee(&["run", "--target", "linux", "--port", &port]);
    assert_refused(&output, 1, &format!("127.0.0.1:{port} is in use by another program"));
}

#[test]
fn a_missing_qemu_is_named_with_its_packages() {
    let state = StateFolder::new("no_qemu");
    let mut command = Command::new(env!("CARGO_BIN_EXE_kayvee"));
    command.args(["run", "--target", "tcg"]).env("XDG_RUNTIME_DIR", &state.0).env("PATH", "");
    let output = command.output().unwrap();
    assert_refused(&output, 1, "qemu-system-x86_64 is not installed (apt: qemu-system-x86,");
}

#[test]
fn instances_that_are_not_there_are_named() {
    let state = StateFolder::new("no_instance");
    for command in ["stop", "logs"] {
        assert_refused(&state.kayvee(&[command, "ghost"]), 1, "there is no instance 'ghost'");
    }
    assert!(state.kayvee(&["stop", "--all"]).status.success());
    assert_eq!(text(&state.kayvee(&["ps"]).stdout).lines().count(), 1);
}

/// What is named as the place of the records may lead elsewhere by another user's doing: nothing is removed there.
#[test]
fn folders_of_others_are_left_alone() {
    let state = StateFolder::new("folders_of_others");
    let elsewhere = StateFolder::new("elsewhere");
    let kept = elsewhere.0.join("one/lock");
    fs::create_dir_all(elsewhere.0.join("one")).unwrap();
    fs::write(&kept, "").unwrap();
    let refused = "is not a folder of this user's own";
    symlink(&elsewhere.0, state.0.join("kayvee")).unwrap();
    assert_refused(&state.kayvee(&["stop", "one"]), 1, refused);
    assert_refused(&state.kayvee(&["stop", "--all"]), 1, refused);
    fs::remove_file(state.0.join("kayvee")).unwrap();
    fs::create_dir(state.0.join("kayvee")).unwrap();
    symlink(elsewhere.0.join("one"), state.0.join("kayvee/one")).unwrap();
    assert_refused(&state.kayvee(&["stop", "one"]), 1, refused);
    assert!(state.kayvee(&["stop", "--all"]).status.success(), "it is no instance");
    fs::remove_file(state.0.join("kayvee/one")).unwrap();
    assert!(kept.exists());
    fs::rename(elsewhere.0.join("one"), state.0.join("kayvee/one")).unwrap();
    if chown(&state.0, Some(1), None).is_err() {
        println!("skipped: to give a folder away needs root");
        return;
    }
    let name = "no_instance_of_this_name";
    fs::rename(state.0.join("kayvee/one"), state.0.join("kayvee").join(name)).unwrap();
    assert_refused(&state.kayvee(&["stop", name]), 1, &format!("there is no instance '{name}'"));
    assert!(state.0.join("kayvee").join(name).join("lock").exists());
}

#[test]
fn a_dead_instance_is_shown_as_dead_and_can_be_removed() {
    let state = StateFolder::new("dead_instance");
    for (name, status) in [("failed", Some("1")), ("killed", None)] {
        let folder = state.0.join("kayvee").join(name);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("lock"), "").unwrap();
        fs::write(folder.join("log"), format!("words of {name}\n")).unwrap();
        if let Some(status) = status {
            fs::write(folder.join("status"), status).unwrap();
        }
    }
    let list = text(&state.kayvee(&["ps"]).stdout);
    assert!(list.contains("ended with status 1") && list.contains("killed  "), "{list}");
    assert_eq!(text(&state.kayvee(&["logs", "failed"]).stdout), "words of failed\n");
    assert_eq!(text(&state.kayvee(&["logs", "-f", "killed"]).stdout), "words of killed\n");
    assert!(state.kayvee(&["stop", "failed"]).status.success());
    assert!(state.kayvee(&["stop", "--all"]).status.success());
    assert_eq!(fs::read_dir(state.0.join("kayvee")).unwrap().count(), 0);
}
