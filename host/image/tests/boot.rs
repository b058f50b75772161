//! The packed image on real virtual machines: that it starts on all of them, ends as it should, and fails as it should.
//!
//! These tests start QEMU with the release build, so `./kayvee test` runs them behind it:
//! `cargo build --release && cargo test -p kayvee-image --test boot -- --ignored`.

use kayvee_testing::{ports::free_port, self_tests};
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        OnceLock,
        mpsc::{self, Receiver},
    },
    time::{Duration, Instant, SystemTime},
};

const TIMEOUT: Duration = Duration::from_secs(90);
/// A guest that is idle may use this share of a core.
const IDLE_SHARE_MAX: f64 = 0.03;

const STATIC: &str = "ip=10.0.2.15/24 gateway=10.0.2.2";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Accelerator {
    Kvm,
    Tcg,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Machine {
    Microvm,
    MicrovmWithAcpi,
    Q35,
}

/// The packed image, written once for all tests of a run.
fn image() -> &'static Path {
    static IMAGE: OnceLock<PathBuf> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let linked = folder.with_file_name("release").join("kayvee-guest");
        let linked = fs::read(&linked).unwrap_or_else(|error| panic!("{}: {error}", linked.display()));
        let image = folder.join("boot-test.elf");
        fs::write(&image, kayvee_image::pack(&linked).unwrap()).unwrap();
        image
    })
}

/// The accelerators that work here: emulation always, KVM if the image starts on it.
fn accelerators() -> &'static [Accelerator] {
    static KVM: OnceLock<bool> = OnceLock::new();
    let kvm = *KVM.get_or_init(|| {
        let works = fs::metadata("/dev/kvm").is_ok()
            && Guest::start(Accelerator::Kvm, Machine::Microvm, 64, "probe", &[]).end() == Some(3);
        if !works {
            println!("skipped: KVM: the image does not boot on it here");
        }
        works
    });
    if kvm { &[Accelerator::Tcg, Accelerator::Kvm] } else { &[Accelerator::Tcg] }
}

/// A running QEMU, ended with the test.
struct Guest {
    qemu: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
}

impl Guest {
    /// Starts a guest without devices but those in `more`.
    fn start(accelerator: Accelerator, machine: Machine, memory_mib: u32, boot_line: &str, more: &[&str]) -> Guest {
        let mut command = Command::new("qemu-system-x86_64");
        match accelerator {
            Accelerator::Kvm => command.args(["-accel", "kvm", "-cpu", "host,-arch-capabilities"]),
            Accelerator::Tcg => command.args(["-accel", "tcg", "-cpu", "max", "-smp", "1,maxcpus=2"]),
        };
        match machine {
            Machine::Microvm => command.args(["-M", "microvm,acpi=off,rtc=on,pit=off,pic=off"]),
            Machine::MicrovmWithAcpi => command.args(["-M", "microvm,rtc=on,pit=off"]),
            Machine::Q35 => command.args(["-M", "q35"]),
        };
        command.args(["-m", &memory_mib.to_string(), "-append", boot_line, "-kernel"]).arg(image());
        command.args(["-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio", "-no-reboot"]);
        command.args(["-device", "isa-debug-exit,iobase=0xf4,iosize=4"]);
        command.args(["-global", "virtio-mmio.force-legacy=false"]).args(more);
        let mut qemu = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("QEMU starts");
        let stdout = BufReader::new(qemu.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if sender.send(line.trim_end().to_string()).is_err() {
                    break;
                }
            }
        });
        Guest { qemu, lines, seen: Vec::new() }
    }

    /// Starts a guest with a network card on QEMU's user network.
    fn start_with_card(
        accelerator: Accelerator,
        machine: Machine,
        memory_mib: u32,
        boot_line: &str,
        forward: &str,
        more: &[&str],
    ) -> Guest {
        let card = match machine {
            Machine::Q35 => "virtio-net-pci,netdev=n0,disable-legacy=on,romfile=",
            Machine::Microvm | Machine::MicrovmWithAcpi => "virtio-net-device,netdev=n0",
        };
        let network = format!("user,id=n0{forward}");
        let devices = [&["-netdev", &network, "-device", card][..], more].concat();
        Guest::start(accelerator, machine, memory_mib, boot_line, &devices)
    }

    /// Waits for a line that contains `text`, and returns it.
    fn wait_for(&mut self, text: &str) -> String {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    self.seen.push(line);
                    let line = self.seen.last().unwrap();
                    if line.contains(text) {
                        return line.clone();
                    }
                }
                Err(error) => panic!("no line with '{text}' ({error}) in {:#?}", self.seen),
            }
        }
    }

    /// Waits until QEMU has ended and returns its status.
    fn end(&mut self) -> Option<i32> {
        let deadline = Instant::now() + TIMEOUT;
        // The console ends with QEMU.
        while let Ok(line) = self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            self.seen.push(line);
        }
        assert!(Instant::now() < deadline, "QEMU does not end: {:#?}", self.seen);
        self.qemu.wait().unwrap().code()
    }

    /// Ends QEMU by a signal and returns its status.
    fn terminate(&mut self) -> Option<i32> {
        let killed = Command::new("kill").arg(self.qemu.id().to_string()).status().unwrap();
        assert!(killed.success());
        self.end()
    }

    /// Seconds of processor time that QEMU has used.
    fn processor_seconds(&self) -> f64 {
        const TICKS_PER_SECOND: f64 = 100.0;
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.qemu.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().collect();
        (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / TICKS_PER_SECOND
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

#[test]
#[ignore = "starts guests: ./kayvee test"]
fn starts_with_any_memory_on_every_machine() {
    for &accelerator in accelerators() {
        for machine in [Machine::Microvm, Machine::MicrovmWithAcpi, Machine::Q35] {
            for memory_mib in [16, 128, 6144] {
                let mut guest = Guest::start_with_card(accelerator, machine, memory_mib, STATIC, "", &[]);
                let line = guest.wait_for("ready: ");
                assert!(line.ends_with(" info ready: 10.0.2.15:6379"), "{line}");
                let status = guest.terminate();
                assert_eq!(status, Some(0), "{accelerator:?} {machine:?} {memory_mib} MiB: {:#?}", guest.seen);
            }
        }
    }
}

#[test]
#[ignore = "starts guests: ./kayvee test"]
fn gets_its_address_by_dhcp() {
    for &accelerator in accelerators() {
        let mut guest = Guest::start_with_card(accelerator, Machine::Microvm, 64, "-- --port 7000", "", &[]);
        assert!(guest.wait_for("net: ").ends_with("net: 10.0.2.15/24"));
        assert!(guest.wait_for("ready: ").ends_with("ready: 10.0.2.15:7000"));
    }
}

#[test]
#[ignore = "starts guests: ./kayvee test"]
fn refuses_what_it_cannot_start_with() {
    let card = &["-netdev", "user,id=n0", "-device", "virtio-net-device,netdev=n0"][..];
    let legacy = [card, &["-global", "virtio-mmio.force-legacy=true"]].concat();
    let no_entropy = [card, &["-cpu", "max,-rdrand"]].concat();
    let disk = ["-blockdev", "driver=null-co,node-name=d0,read-zeroes=on", "-device", "virtio-blk-device,drive=d0"];
    let other = ["-blockdev", "driver=null-co,node-name=d1,read-zeroes=on", "-device", "virtio-blk-device,drive=d1"];
    let two_disks = [card, &disk, &other].concat();
    for (memory_mib, boot_line, more, why) in [
        (64, "bogus=1", card, "boot argument 'bogus=1'"),
        (64, "-- --port 0", card, "option 'port'"),
        (64, "ip=224.0.0.1/24", card, "224.0.0.1"),
        (64, "", &[], "no virtio network card"),
        (64, "-- --appendonly yes", card, "add -device virtio-blk-device"),
        (64, "", &two_disks[..], "several disks"),
        (64, "", &legacy[..], "force-legacy=false"),
        (64, "", &no_entropy[..], "virtio-rng-device"),
        (4, "", card, "at least 5 MiB"),
        (64, &"x".repeat(5000), card, "longer than 4096"),
    ] {
        let mut guest = Guest::start(Accelerator::Tcg, Machine::Microvm, memory_mib, boot_line, more);
        let line = guest.wait_for("refused: ");
        assert!(line.starts_with("refused: ") && line.contains(why), "{line}");
        assert_eq!(guest.end(), Some(3), "{line}");
    }
}

#[test]
#[ignore = "starts guests: ./kayvee test"]
fn every_failure_names_its_cause_and_its_place() {
    for &accelerator in accelerators() {
        self_tests::check(|words| {
            let mut guest = Guest::start_with_card(accelerator, Machine::Microvm, 64, words, "", &[]);
            (guest.end(), std::mem::take(&mut guest.seen))
        });
    }
}

#[test]
#[ignore = "starts guests: ./kayvee test"]
fn takes_entropy_and_time_from_where_they_are() {
    let start = |machine, more: &[&str]| {
        let mut guest = Guest::start_with_card(Accelerator::Tcg, machine, 64, STATIC, "", more);
        guest.wait_for("ready: ");
    };
    start(Machine::Microvm, &["-cpu", "max,-rdrand", "-device", "virtio-rng-device"]);
    start(Machine::Q35, &["-cpu", "max,-rdrand", "-device", "virtio-rng-pci"]);
    // No hypervisor to be seen: the cycle counter is measured against the PC's timer.
    start(Machine::Q35, &["-cpu", "max,-hypervisor"]);
    // No 1 GiB pages, and nothing newer than the first x86-64 processors.
    start(Machine::Microvm, &["-cpu", "qemu64", "-device", "virtio-rng-device"]);
    if accelerators().contains(&Accelerator::Kvm) {
        let more = ["-cpu", "host,-arch-capabilities,-kvmclock"];
        Guest::start_with_card(Accelerator::Kvm, Machine::Microvm, 64, STATIC, "", &more).wait_for("ready: ");
    }
}

/// Sends one request and returns the first `len` bytes of the answer, or what there is before the end.
fn ask(port: u16, request: &str, len: u64) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.take(len).read_to_string(&mut answer).unwrap();
    answer
}

#[test]
#[ignore = "starts guests: ./kayvee test"]
fn tells_the_time_sleeps_when_idle_and_ends_cleanly() {
    for &accelerator in accelerators() {
        for machine in [Machine::Microvm, Machine::Q35] {
            let port = free_port();
            let forward = format!(",hostfwd=tcp:127.0.0.1:{port}-:6379");
            let now_us = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_micros() as i64;
            let boot_line = format!("{STATIC} time={}", now_us());
            let mut guest = Guest::start_with_card(accelerator, machine, 64, &boot_line, &forward, &[]);
            guest.wait_for("ready: ");
            assert_eq!(ask(port, "PING\r\n", 7), "+PONG\r\n");

            let before = (Instant::now(), guest.processor_seconds());
            std::thread::sleep(Duration::from_secs(3));
            let share = (guest.processor_seconds() - before.1) / before.0.elapsed().as_secs_f64();
            assert!(share <= IDLE_SHARE_MAX, "{accelerator:?} {machine:?} uses {share:.3} of a core when idle");

            // *2 $10 seconds $6 microseconds, the second of varying length.
            let answer = ask(port, "TIME\r\nQUIT\r\n", u64::MAX);
            let words: Vec<&str> = answer.split("\r\n").collect();
            let guest_us = words[2].parse::<i64>().unwrap() * 1_000_000 + words[4].parse::<i64>().unwrap();
            let error_us = now_us() - guest_us;
            assert!((-100_000..5_000_000).contains(&error_us), "{accelerator:?} {machine:?}: {error_us} us");

            assert_eq!(ask(port, "SHUTDOWN NOSAVE\r\n", u64::MAX), "");
            assert_eq!(guest.end(), Some(0));
            assert_eq!(guest.seen.last().unwrap(), "end: status 0");
        }
    }
}

/// The medium fails in the first block of the log's first segment, behind the superblocks.
#[test]
#[ignore = "starts guests: ./kayvee test"]
fn a_disk_that_fails_is_told_to_writers_alone() {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("failing.disk");
    fs::write(&file, vec![0; 4 << 20]).unwrap();
    let fault = r#"{"event": "none", "iotype": "write", "errno": 5, "sector": 256, "once": false}"#;
    let image = format!(r#"{{"driver": "file", "filename": "{}"}}"#, file.display());
    let node = format!(r#"{{"driver": "blkdebug", "node-name": "d0", "image": {image}, "inject-error": [{fault}]}}"#);
    let disk = ["-blockdev", &node, "-device", "virtio-blk-device,drive=d0,werror=report,rerror=report"];
    let port = free_port();
    let forward = format!(",hostfwd=tcp:127.0.0.1:{port}-:6379");
    let boot_line = format!("{STATIC} -- --appendonly yes --appendfsync always");
    let mut guest = Guest::start_with_card(Accelerator::Tcg, Machine::Microvm, 64, &boot_line, &forward, &disk);
    guest.wait_for("ready: ");
    // Its write was carried out before the disk failed, and cannot become durable: it gets no answer.
    assert_eq!(ask(port, "SET a 1\r\n", u64::MAX), "");
    let refusal = "-MISCONF Errors writing to the AOF file: Input/output error\r\n";
    assert_eq!(ask(port, "SET a 2\r\n", refusal.len() as u64), refusal);
    assert_eq!(ask(port, "GET a\r\n", 7), "$1\r\n1\r\n");
    let refusal = "-ERR Errors trying to SHUTDOWN. Check logs.\r\n";
    assert_eq!(ask(port, "SHUTDOWN\r\n", refusal.len() as u64), refusal);
    // An end that loses what is in memory is no clean one.
    assert_eq!(ask(port, "SHUTDOWN NOSAVE\r\n", u64::MAX), "");
    assert_eq!(guest.end(), Some(7));
    fs::remove_file(&file).unwrap();
}

/// SeaBIOS leaves the PC's timer ticking at 18 Hz. A tick between its end and the image's own setup waited for the first
/// sleep, and one boot of fifteen crashed there.
#[test]
#[ignore = "starts guests: ./kayvee test"]
fn a_timer_that_firmware_left_ticking_does_no_harm() {
    const BOOTS: u32 = 30;
    for _ in 0..BOOTS {
        let port = free_port();
        let forward = format!(",hostfwd=tcp:127.0.0.1:{port}-:6379");
        let mut guest = Guest::start_with_card(Accelerator::Tcg, Machine::Q35, 64, STATIC, &forward, &[]);
        guest.wait_for("ready: ");
        // It has slept by the time it has answered twice.
        for _ in 0..2 {
            assert_eq!(ask(port, "PING\r\n", 7), "+PONG\r\n", "{:#?}", guest.seen);
        }
        let status = guest.terminate();
        assert_eq!(status, Some(0), "{:#?}", guest.seen);
    }
}
