//! The machine: its parts put together, and the threads that make it go.

use crate::{
    boot,
    confine::{self, Role},
    console::{self, Output},
    control::{self, Controlled, Pause},
    cpu::{self, SLEEP_PORT},
    debug::{self, Stub},
    devices::{
        block::{self, Block, Choice},
        entropy::Source,
        net::{Card, Network},
    },
    direct::{Direct, DirectNetwork, SEND_PORT},
    io::Io,
    memory::{self, Memory},
    stats::{Cause, Page, Stats},
    sys::{self, ProcessorThread},
    transport::{Device, INTERRUPT_ACK, Model, QUEUE_NOTIFY, REGISTER_BYTES},
    wake::Wake,
};
use anyhow::{Context, Result, anyhow};
use kayvee_disk::Fresh;
use kvm_ioctls::{IoEventAddress, Kvm, NoDatamatch, VcpuExit, VcpuFd, VmFd};
use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    sys::{
        eventfd::{EfdFlags, EventFd},
        signal::{SigSet, Signal},
        signalfd::{SfdFlags, SignalFd},
    },
};
use std::{
    fs::File,
    io::{self, Seek, SeekFrom},
    net::TcpListener,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixListener,
    },
    sync::{Arc, Mutex, OnceLock},
    thread,
    time::{Duration, Instant},
};
use virtio_queue::Queue;

/// Where the devices' registers are, one after the other; the image's page tables map them from the start.
const DEVICES: u64 = 0xfeb0_0000;
const CONSOLE: u16 = 0x3f8;
const CONSOLE_END: u16 = CONSOLE + 7;
/// A write ends the machine with twice the value, plus one.
const EXIT_PORT: u16 = 0xf4;
/// The keyboard controller's command port and its command to reset the processor.
const KEYBOARD_CONTROLLER: u16 = 0x64;
const RESET_PROCESSOR: u8 = 0xfe;
/// The real-time clock, which is not there. All ones would say that it is being updated.
const CMOS_DATA: u16 = 0x71;
/// Where Intel's processors without a mode of their own for real mode keep what stands in for it.
const TASK_STATE: usize = 0xfffb_d000;

/// What to run.
pub struct Config {
    /// The image.
    pub image: File,
    /// What is loaded beside it as its boot module, if anything is.
    pub module: Option<File>,
    /// Bytes of main memory, whole mebibytes.
    pub memory_bytes: u64,
    /// The boot line, to which the devices' places are added.
    pub boot_line: String,
    /// The network of a virtio card, if there is one.
    pub network: Option<Network>,
    /// The network of a socket whose rings the guest works itself, if there is one.
    pub direct: Option<DirectNetwork>,
    /// The disk, if there is one.
    pub disk: Option<Disk>,
    /// One that can only be read, with the site, if there is one.
    pub site_disk: Option<Disk>,
    /// Where questions and orders come from, if they may.
    pub control: Option<UnixListener>,
    /// Where debuggers connect, if they may.
    pub debugger: Option<TcpListener>,
}

/// A disk's file or block device.
pub struct Disk {
    file: File,
    bytes: u64,
    is_read_only: bool,
}

/// How the machine has ended.
#[derive(Debug)]
pub enum Ending {
    /// By a reset, or a signal to this process.
    Clean,
    /// By the exit device.
    Exit(u8),
    /// It cannot go on.
    Failed(anyhow::Error),
}

/// A device's registers, whichever device it is.
trait Registers: Send + Sync {
    fn read(&self, offset: u64, bytes: &mut [u8]);
    fn write(&self, offset: u64, bytes: &[u8]);
}

impl<M: Model> Registers for Mutex<Device<M>> {
    fn read(&self, offset: u64, bytes: &mut [u8]) {
        lock(self).read(offset, bytes);
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        lock(self).write(offset, bytes);
    }
}

/// A disk hears of its notifications in the exit, and hands on to its thread what takes long.
impl Registers for Plugged<Block> {
    fn read(&self, offset: u64, bytes: &mut [u8]) {
        self.device.read(offset, bytes);
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        if offset != QUEUE_NOTIFY {
            return self.device.write(offset, bytes);
        }
        // While its thread has the device, it looks for more by itself before it waits.
        let left = match self.device.try_lock() {
            Ok(mut device) => loop {
                match device.work(|disk, queues, memory| disk.work(&mut queues[0], memory, Choice::Quick)) {
                    // The processor's thread is this one: it is awake.
                    Some(block::Worked::Done { .. }) => {}
                    Some(block::Worked::Left) => break true,
                    Some(block::Worked::Nothing) | None => break device.model_mut().asks_to_write_ahead(),
                }
            },
            Err(_) => true,
        };
        if left {
            let _ = self.kicks[0].write(1);
        }
    }
}

/// Takes a device, or a part of the machine, for oneself.
pub fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics while it holds a device")
}

/// A device and what its queues' notifications raise.
pub struct Plugged<M> {
    /// The device.
    pub device: Arc<Mutex<Device<M>>>,
    /// One a queue: the guest has left something there for the device's thread.
    pub kicks: Vec<EventFd>,
}

/// The machine but for its processor.
pub struct Board {
    memory: Arc<Memory>,
    /// The connection of a debugger, which ends a sleep.
    debugger: Mutex<Option<OwnedFd>>,
    direct: Option<Arc<Direct>>,
    /// Set when it begins to run.
    thread: OnceLock<ProcessorThread>,
    devices: Vec<Arc<dyn Registers>>,
    console: Mutex<console::Port>,
    wake: Wake,
    stats: Stats,
    page: Page,
    pause: Pause,
    /// Set by the first thread that ends.
    ending: Mutex<Option<Ending>>,
    ended: EventFd,
}

/// Plugs devices into a machine.
struct Slots<'a> {
    vm: &'a VmFd,
    memory: Arc<Memory>,
    devices: Vec<Arc<dyn Registers>>,
    boot_words: String,
    /// Raised by what nobody needs to hear of, so that it costs no exit to this program.
    unheard: EventFd,
}

impl Slots<'_> {
    /// A device whose notifications its thread hears.
    fn plug<M: Model + 'static>(&mut self, model: M) -> Result<Plugged<M>> {
        let plugged = self.make(model)?;
        for (queue, kick) in (0u32..).zip(&plugged.kicks) {
            let notify = IoEventAddress::Mmio(self.base() + QUEUE_NOTIFY);
            self.vm.register_ioevent(&sys::for_kvm(kick)?, &notify, queue)?;
        }
        self.add(plugged.device.clone())?;
        Ok(plugged)
    }

    /// A disk, whose notifications the processor's thread hears first.
    fn plug_disk(&mut self, disk: Disk) -> Result<(Arc<Plugged<Block>>, Option<WriteAhead>)> {
        let Disk { file, bytes, is_read_only } = disk;
        let ahead = match file.metadata()?.is_file() && !is_read_only {
            true => Some(WriteAhead { file: file.try_clone()?, fresh: Fresh::of(&file, bytes)? }),
            false => None,
        };
        let written_bytes = ahead.as_ref().map_or(u64::MAX, |ahead| ahead.fresh.start_bytes());
        let plugged = Arc::new(self.make(Block::new(file, bytes, is_read_only, written_bytes))?);
        self.add(plugged.clone())?;
        Ok((plugged, ahead))
    }

    fn make<M: Model>(&self, model: M) -> Result<Plugged<M>> {
        let kicks = M::QUEUE_SIZES.iter().map(|_| event()).collect::<Result<_>>()?;
        Ok(Plugged { device: Arc::new(Mutex::new(Device::new(model, self.memory.clone()))), kicks })
    }

    /// Where the next device's registers are.
    fn base(&self) -> u64 {
        DEVICES + self.devices.len() as u64 * REGISTER_BYTES
    }

    fn add(&mut self, registers: Arc<dyn Registers>) -> Result<()> {
        let base = self.base();
        let acknowledge = IoEventAddress::Mmio(base + INTERRUPT_ACK);
        self.vm.register_ioevent(&sys::for_kvm(&self.unheard)?, &acknowledge, NoDatamatch)?;
        // The line is never used.
        self.boot_words.push_str(&format!("virtio_mmio.device={REGISTER_BYTES}@{base:#x}:0 "));
        self.devices.push(registers);
        Ok(())
    }
}

/// Runs a guest until its end. To be called once in a process, which ends soon after.
pub fn run(config: Config) -> Result<Ending> {
    let Config { mut image, module, memory_bytes, boot_line, network, direct, disk, site_disk, control, debugger } =
        config;
    // For this thread and those that it starts: signals are read, not delivered.
    let mut stop_signals = SigSet::empty();
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().for_each(|signal| stop_signals.add(signal));
    stop_signals.thread_block()?;
    let signals = SignalFd::with_flags(&stop_signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;

    let kvm = Kvm::new().context("/dev/kvm")?;
    let vm = kvm.create_vm().context("making a machine in KVM")?;
    vm.set_tss_address(TASK_STATE).context("placing the task state")?;
    let memory = Arc::new(memory::create(&vm, memory_bytes)?);
    let unheard = event()?;
    let mut slots = Slots { vm: &vm, memory: memory.clone(), devices: Vec::new(), boot_words: String::new(), unheard };
    let card = network.map(|network| slots.plug(Card::new(network))).transpose()?;
    let mut plug = |disk: Disk| slots.plug_disk(disk);
    let disks = [("disk", disk.map(&mut plug).transpose()?), ("site", site_disk.map(&mut plug).transpose()?)];
    let entropy = slots.plug(Source::open().context("/dev/urandom")?)?;

    let direct = direct.map(|network| Direct::open(&vm, network)).transpose()?.map(Arc::new);
    slots.boot_words.push_str(&Page::boot_word());
    slots.boot_words.extend(direct.iter().map(|_| Direct::boot_word()));

    let entry = boot::load(
        &memory,
        memory_bytes,
        &mut image,
        module,
        &format!("sleep_port={SLEEP_PORT:#x} {}{boot_line}", slots.boot_words),
    )?;
    // For ever, as its signal's handler has an address in it.
    let vcpu: &'static mut VcpuFd = Box::leak(Box::new(vm.create_vcpu(0).context("making a processor in KVM")?));
    cpu::set_features(&kvm, vcpu)?;
    cpu::enter_at(vcpu, entry)?;
    let wake = Wake::new()?;
    let board = Arc::new(Board {
        memory,
        debugger: Mutex::default(),
        direct: direct.clone(),
        thread: OnceLock::new(),
        devices: slots.devices,
        console: Mutex::new(console::Port::new(wake.clone(), Output::new())),
        wake,
        stats: Stats::default(),
        page: Page::create(&vm)?,
        pause: Pause::default(),
        ending: Mutex::new(None),
        ended: event()?,
    });

    let stub = debugger.map(Stub::new).transpose().context("listening for debuggers")?;
    confine::drop_rights()?;
    for (name, disk) in disks {
        if let Some((disk, ahead)) = disk {
            let wake = board.wake.clone();
            start(name, &board, move |_| run_disk(&disk, ahead, &wake))?;
        }
    }
    if let Some(listener) = control {
        start("control", &board, move |board| control::run(&listener, &board.controlled()))?;
    }
    if let Some(direct) = direct {
        start("net", &board, move |board| direct.run(&board.wake))?;
    }
    let processors_board = board.clone();
    start("cpu", &board, move |_| run_processor(vcpu, processors_board, stub))?;
    let (console, pause) = (&board.console, &board.pause);
    let mut io = Io::new(board.ended.as_fd(), &signals, console, pause, card.as_ref(), &entropy, &board.wake)?;
    confine::limit(Role::Io)?;
    io.run()?;
    drop(io);
    lock(&board.console).writer_mut().finish();
    log::debug!("{}", board.stats.report());
    // Without one it was a signal that ended the machine.
    Ok(lock(&board.ending).take().unwrap_or(Ending::Clean))
}

impl Disk {
    /// A disk that whoever names it has opened, and locked.
    pub fn new(mut file: File) -> io::Result<Disk> {
        // A block device has no length among its metadata.
        let bytes = file.seek(SeekFrom::End(0))?;
        let flags = OFlag::from_bits_retain(fcntl(&file, FcntlArg::F_GETFL)?);
        Ok(Disk { file, bytes, is_read_only: flags & OFlag::O_ACCMODE == OFlag::O_RDONLY })
    }
}

fn event() -> Result<EventFd> {
    Ok(EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?)
}

/// Starts a thread. When its work ends, so does the machine.
fn start(name: &str, board: &Arc<Board>, work: impl FnOnce(&Board) -> Result<Ending> + Send + 'static) -> Result<()> {
    let board = board.clone();
    let thread = thread::Builder::new().name(name.into());
    let run = move || {
        let ending = work(&board).unwrap_or_else(Ending::Failed);
        // The first one counts.
        lock(&board.ending).get_or_insert(ending);
        let _ = board.ended.write(1);
    };
    thread.spawn(run).with_context(|| format!("starting the thread '{name}'"))?;
    Ok(())
}

/// The processor, in its thread.
pub struct Processor {
    vcpu: &'static mut VcpuFd,
    board: Arc<Board>,
    /// When the guest was left the last time, and how long it has slept since.
    left: Instant,
    idle: Duration,
}

/// What has come of letting the guest run.
pub enum Turn {
    /// It may run again.
    Goes,
    /// A breakpoint or step, with the debug status register.
    Stops(u64),
    /// This is the end.
    Ends(Ending),
}

/// The processor's thread.
fn run_processor(vcpu: &'static mut VcpuFd, board: Arc<Board>, stub: Option<Stub>) -> Result<Ending> {
    let (vcpu, thread) = ProcessorThread::enter(vcpu)?;
    confine::limit(if stub.is_some() { Role::DebuggedProcessor } else { Role::Processor })?;
    let _ = board.thread.set(thread);
    let mut processor = Processor { vcpu, board, left: Instant::now(), idle: Duration::ZERO };
    if let Some(stub) = stub {
        return debug::run(&mut processor, &stub);
    }
    loop {
        if let Turn::Ends(ending) = processor.turn()? {
            return Ok(ending);
        }
    }
}

impl Processor {
    /// Lets the guest run, and answers the exit that ends it.
    pub fn turn(&mut self) -> Result<Turn> {
        let (board, stats) = (&self.board, &self.board.stats);
        // In this order: who is told after having been asked does not enter the guest.
        self.vcpu.set_kvm_immediate_exit(0);
        board.pause.pass();
        let entered = Instant::now();
        stats.add_idle(self.idle);
        stats.add_host((entered - self.left).saturating_sub(self.idle));
        board.page.publish(stats);
        let exit = self.vcpu.run();
        self.left = Instant::now();
        stats.add_guest(self.left - entered);
        self.idle = Duration::ZERO;
        match exit {
            Ok(VcpuExit::Debug(stop)) => {
                stats.count(Cause::Debug);
                return Ok(Turn::Stops(stop.dr6));
            }
            Ok(exit) => match board.answer(exit)? {
                Answer::Goes(idle) => self.idle = idle,
                Answer::Ends(ending) => return Ok(Turn::Ends(ending)),
            },
            Err(error) if matches!(error.errno(), nix::libc::EINTR | nix::libc::EAGAIN) => stats.count(Cause::Signal),
            Err(error) => return Err(anyhow!(error).context("running the guest")),
        }
        Ok(Turn::Goes)
    }

    /// The machine around it.
    pub fn board(&self) -> &Board {
        &self.board
    }

    /// Its registers, while it stands still.
    pub fn vcpu(&self) -> &VcpuFd {
        self.vcpu
    }
}

/// The longest rest after sending: what comes meanwhile has to wait.
const REST_MAX: Duration = Duration::from_millis(1);

/// What follows from an exit.
enum Answer {
    /// The guest goes on, having slept so long.
    Goes(Duration),
    /// This is the end.
    Ends(Ending),
}

impl Board {
    /// The guest's memory.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Has a descriptor end the guest's sleep when there is something to read: a debugger's connection, or where one comes.
    pub fn set_debugger(&self, debugger: Option<OwnedFd>) {
        *lock(&self.debugger) = debugger;
    }

    fn controlled(&self) -> Controlled<'_> {
        Controlled { pause: &self.pause, thread: &self.thread, wake: &self.wake, stats: &self.stats }
    }

    fn answer(&self, exit: VcpuExit<'_>) -> Result<Answer> {
        let stats = &self.stats;
        match exit {
            VcpuExit::IoOut(SLEEP_PORT, data) => {
                stats.count(Cause::Sleep);
                return Ok(Answer::Goes(self.sleep(data)?));
            }
            VcpuExit::IoOut(SEND_PORT, data) => {
                stats.count(Cause::Send);
                return Ok(Answer::Goes(self.send(data)?));
            }
            VcpuExit::IoOut(port @ CONSOLE..=CONSOLE_END, data) => {
                stats.count(Cause::Console);
                let mut console = lock(&self.console);
                // What nobody reads is lost, which is not the guest's business.
                data.iter().for_each(|byte| _ = console.write((port - CONSOLE) as u8, *byte));
            }
            VcpuExit::IoIn(port @ CONSOLE..=CONSOLE_END, data) => {
                stats.count(Cause::Console);
                let mut console = lock(&self.console);
                data.iter_mut().for_each(|byte| *byte = console.read((port - CONSOLE) as u8));
            }
            VcpuExit::IoOut(EXIT_PORT, data) => return Ok(Answer::Ends(Ending::Exit(data[0] << 1 | 1))),
            VcpuExit::IoOut(KEYBOARD_CONTROLLER, [RESET_PROCESSOR]) => return Ok(Answer::Ends(Ending::Clean)),
            VcpuExit::IoOut(..) => stats.count(Cause::Port),
            VcpuExit::IoIn(port, data) => {
                stats.count(Cause::Port);
                data.fill(if port == CMOS_DATA { 0 } else { u8::MAX });
            }
            VcpuExit::MmioRead(address, data) => match self.registers(address) {
                Some((device, offset)) => device.read(offset, data),
                None => data.fill(0),
            },
            VcpuExit::MmioWrite(address, data) => {
                if let Some((device, offset)) = self.registers(address) {
                    device.write(offset, data);
                }
            }
            // A triple fault, which is how the image resets itself.
            VcpuExit::Shutdown => return Ok(Answer::Ends(Ending::Clean)),
            VcpuExit::Intr => stats.count(Cause::Signal),
            VcpuExit::Hlt => return Err(anyhow!("the guest halted, and nothing here could wake it up")),
            other => return Err(anyhow!("KVM cannot run the guest: {other:?}")),
        }
        Ok(Answer::Goes(Duration::ZERO))
    }

    fn registers(&self, address: u64) -> Option<(&dyn Registers, u64)> {
        let found = address.checked_sub(DEVICES).and_then(|offset| {
            let device = self.devices.get(usize::try_from(offset / REGISTER_BYTES).ok()?)?;
            Some((&**device, offset % REGISTER_BYTES))
        });
        self.stats.count(if found.is_some() { Cause::Registers } else { Cause::Nowhere });
        found
    }

    /// Sends what the guest has queued and rests for so many microseconds. Returns how long it rested.
    fn send(&self, data: &[u8]) -> Result<Duration> {
        let (Ok(word), Some(direct)) = (<[u8; 4]>::try_from(data), &self.direct) else { return Ok(Duration::ZERO) };
        direct.send().context("sending")?;
        let rest = Duration::from_micros(u32::from_le_bytes(word).into()).min(REST_MAX);
        if rest.is_zero() {
            return Ok(rest);
        }
        let start = Instant::now();
        sys::rest(rest).context("resting for the guest")?;
        Ok(start.elapsed())
    }

    /// Waits as the guest asks: microseconds, or all ones for as long as it takes. Returns how long it was.
    fn sleep(&self, data: &[u8]) -> Result<Duration> {
        let Ok(word) = <[u8; 4]>::try_from(data) else { return Ok(Duration::ZERO) };
        let timeout = match u32::from_le_bytes(word) {
            u32::MAX => None,
            us => Some(Duration::from_micros(us.into())),
        };
        let start = Instant::now();
        let debugger = lock(&self.debugger);
        let others = [self.direct.as_ref().map(|direct| direct.socket()), debugger.as_ref().map(|fd| fd.as_fd())];
        let mut others = others.into_iter().flatten();
        let others = [others.next(), others.next()];
        let others: &[BorrowedFd<'_>] = match &others {
            [Some(one), Some(other)] => &[*one, *other],
            [Some(one), None] => &[*one],
            _ => &[],
        };
        // What is recorded comes and goes by this program's hands.
        let pass = || self.direct.as_ref().map_or(Ok(false), |direct| direct.pass());
        let timeout = if pass()? { Some(Duration::ZERO) } else { timeout };
        self.wake.wait(others, timeout).context("waiting for the guest")?;
        pass()?;
        Ok(start.elapsed())
    }
}

/// What a disk's thread writes before it is needed.
struct WriteAhead {
    file: File,
    fresh: Fresh,
}

impl WriteAhead {
    /// Writes a step ahead of the guest's writes, if they are near. Returns whether they are.
    fn step(&mut self, disk: &Plugged<Block>) -> bool {
        let (near_bytes, written_bytes) = lock(&disk.device).model().reached();
        self.fresh.reach(written_bytes);
        // The processor's thread stays before `written_bytes`, and this one is here. Where it fails, the guest's writes tell.
        let is_written = self.fresh.write_step(&self.file, near_bytes).unwrap_or(false);
        lock(&disk.device).model_mut().set_written(self.fresh.start_bytes());
        is_written
    }
}

/// The disk's thread: waits for the guest's notification, and carries out all that there is.
fn run_disk(disk: &Plugged<Block>, mut ahead: Option<WriteAhead>, wake: &Wake) -> Result<Ending> {
    confine::limit(Role::Disk)?;
    loop {
        sys::wait_any(disk.kicks[0].as_fd(), &[], None).context("waiting for the guest's notification")?;
        clear(&disk.kicks[0]);
        loop {
            let work =
                |disk: &mut Block, queues: &mut [Queue], memory: &_| disk.work(&mut queues[0], memory, Choice::All);
            // The device is free again before what follows.
            let worked = lock(&disk.device).work(work);
            match worked {
                Some(block::Worked::Done { wake: true }) => wake.raise(),
                Some(block::Worked::Done { wake: false }) => {}
                // Requests come first, between any two steps.
                Some(block::Worked::Nothing | block::Worked::Left) | None => {
                    if !ahead.as_mut().is_some_and(|ahead| ahead.step(disk)) {
                        break;
                    }
                }
            }
        }
    }
}

/// Takes a notification back; there may be none.
pub fn clear(kick: &EventFd) {
    let _ = kick.read();
}
