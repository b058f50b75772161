//! The machine as a target sees it: a safe API over everything else here. [`Setup`] can still change what is mapped;
//! [`Machine`], which it becomes before the first stranger's byte arrives, cannot.

use crate::{
    acpi::{self, PowerOff},
    clock::{CLOCK, GuestClock},
    cpu::Hypervisor,
    heap::GuestHeap,
    interrupts,
    layout::{FIRST_PAGE_ALIAS, Layout, PAGE_BYTES, WINDOW_BYTES},
    monitor::SleepPort,
    paging::{self, Kind, LARGE_PAGE_BYTES, MapError, TableMemory},
    power::{self, Status},
    pvh::{PhysicalMemory, StartInfo, StartInfoError},
    ring0::Ring0,
    serial,
};
use core::{
    cell::UnsafeCell,
    fmt::{Display, Write},
};

/// Pages kept for tables that device registers need, until the setup is done.
const DEVICE_TABLES: u64 = 16;

/// The live page tables. New ones are taken from the window, behind the image.
struct Tables {
    root: u64,
    start: u64,
    next: u64,
    end: u64,
}

impl Tables {
    fn map(&mut self, start: u64, end: u64, kind: Kind) -> Result<(), MapError> {
        let root = self.root;
        paging::map(self, root, (start, end), kind)
    }
}

impl TableMemory for Tables {
    fn read(&self, at: u64) -> u64 {
        // SAFETY: `paging::map` walks only the linked tables and those from `allocate`, which ring 3 can reach until
        // they are sealed; the processor changes nothing in an entry but two bits that nobody else writes.
        unsafe { (at as *const u64).read_volatile() }
    }

    fn write(&mut self, at: u64, entry: u64) {
        // SAFETY: as in `read`. The entry makes present what was not, so no stale translation can be cached, and it maps
        // nothing of the image.
        unsafe { (at as *mut u64).write_volatile(entry) }
    }

    fn allocate(&mut self) -> Option<u64> {
        let page = self.next;
        if page + PAGE_BYTES > self.end {
            return None;
        }
        self.next += PAGE_BYTES;
        // SAFETY: the window's pages from `start` to `end` are main memory that nothing else uses.
        unsafe { core::ptr::write_bytes(page as *mut u8, 0, PAGE_BYTES as usize) };
        Some(page)
    }
}

/// What the hypervisor and its firmware left in memory.
struct FirmwareMemory<'a> {
    tables: &'a mut Tables,
    /// The 2 MiB page looked at last.
    mapped: u64,
}

impl PhysicalMemory for FirmwareMemory<'_> {
    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Option<()> {
        let end = address.checked_add(bytes.len() as u64)?;
        if address < PAGE_BYTES && end > PAGE_BYTES {
            let (first, second) = bytes.split_at_mut((PAGE_BYTES - address) as usize);
            return self.read(address, first).and_then(|()| self.read(PAGE_BYTES, second));
        }
        let page = address & !(LARGE_PAGE_BYTES - 1);
        let known = page == self.mapped && end <= page + LARGE_PAGE_BYTES;
        if end > WINDOW_BYTES && !known {
            self.tables.map(address.max(WINDOW_BYTES), end, Kind::Memory).ok()?;
            self.mapped = page;
        }
        let seen_at = if address < PAGE_BYTES { FIRST_PAGE_ALIAS + address } else { address };
        // SAFETY: the range is mapped for reading, and nothing else writes there while the machine starts.
        unsafe { core::ptr::copy_nonoverlapping(seen_at as *const u8, bytes.as_mut_ptr(), bytes.len()) };
        Some(())
    }
}

/// Filled once, at the start; too large for the stack.
struct StartInfoCell(UnsafeCell<StartInfo>);

// SAFETY: one core runs the image; `Machine::start` alone takes the mutable reference, and only once.
unsafe impl Sync for StartInfoCell {}

static START_INFO: StartInfoCell = StartInfoCell(UnsafeCell::new(StartInfo::EMPTY));

/// With less than this not even a few clients could be served.
const HEAP_BYTES_MIN: u64 = 1 << 20;

/// A machine that is being set up: device registers can be mapped.
pub struct Setup {
    machine: Machine,
    tables: Tables,
    heap: &'static GuestHeap,
}

impl Setup {
    /// Brings the machine up: console, memory, interrupts, time. Ends it where that fails, having said why.
    ///
    /// # Safety
    /// To be called once, by the start of the image, with what `boot.S` passes, on an empty heap.
    pub unsafe fn start(start_info_at: u64, layout: &'static Layout, heap: &'static GuestHeap) -> Setup {
        serial::init();
        let refuse = |why: &dyn Display| -> ! { refuse(layout, why) };
        let tables_start = layout.occupied_end().next_multiple_of(PAGE_BYTES);
        let mut tables = Tables { root: layout.root_table, start: tables_start, next: tables_start, end: WINDOW_BYTES };
        let mut firmware = FirmwareMemory { tables: &mut tables, mapped: 0 };
        // SAFETY: called once, so this is the only reference.
        let start_info = unsafe { &mut *START_INFO.0.get() };
        if let Err(error) = start_info.read(&mut firmware, start_info_at) {
            refuse(&error);
        }
        let start_info: &'static StartInfo = start_info;
        if let Some((module_start, _)) = start_info.module() {
            if module_start < firmware.tables.next {
                refuse(&StartInfoError::ModuleOutside);
            }
            firmware.tables.end = firmware.tables.end.min(module_start);
        }
        let power_off = start_info.acpi_root.and_then(|root| acpi::find_power_off(&mut firmware, root));
        if let Some(PowerOff::Memory8(register, _)) = power_off {
            // Where that fails, switching off fails too, and the machine ends by a reset.
            let _ = tables.map(register, register.saturating_add(1), Kind::Device);
        }
        // SAFETY: the ranges are the hypervisor's main memory, and the caller's heap is empty.
        let mapped_end = unsafe { give_memory(&mut tables, start_info, heap) };
        if start_info.module().is_some_and(|(start, len)| start + len > mapped_end) {
            refuse(&StartInfoError::ModuleOutside);
        }
        if heap.total_bytes() < HEAP_BYTES_MIN {
            refuse(&StartInfoError::TooLittleMemory);
        }
        heap.set_aside();
        let (hypervisor, ring0) = (Hypervisor::detect(), Ring0::new(layout));
        let sleep_port = SleepPort::find(start_info.command_line());
        if sleep_port.is_none() {
            interrupts::init();
            interrupts::enable_line(serial::LINE);
        }
        if let Err(error) = CLOCK.init(hypervisor, ring0) {
            refuse(&error);
        }
        Setup { machine: Machine { ring0, start_info, hypervisor, power_off, sleep_port }, tables, heap }
    }

    /// The machine as it will be.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Maps device registers, so that they can be reached at their own address.
    pub fn map_device(&mut self, start: u64, bytes: u64) -> Result<(), MapError> {
        self.tables.map(start, start.checked_add(bytes).ok_or(MapError::OutOfBounds)?, Kind::Device)
    }

    /// Maps memory that the hypervisor shares with this machine beside its main memory, at its own address.
    pub fn map_shared(&mut self, start: u64, bytes: u64) -> Result<(), MapError> {
        self.tables.map(start, start.checked_add(bytes).ok_or(MapError::OutOfBounds)?, Kind::Memory)
    }

    /// Lets a device's interrupt line end a sleep; `None` stands for a line that nobody has named.
    #[inline(never)]
    pub fn enable_interrupt_line(&self, line: Option<u32>) {
        match line {
            _ if self.machine.sleep_port.is_some() => {}
            Some(line) => interrupts::enable_line(line),
            None => interrupts::enable_all_device_lines(),
        }
    }

    /// The address and data of a message with which a device ends a sleep.
    pub fn interrupt_message(&self) -> (u64, u32) {
        interrupts::message()
    }

    /// Ends the setup: from now on page tables and descriptors are ring 0's alone.
    pub fn seal(self) -> Machine {
        self.machine.ring0.seal(self.tables.start, self.tables.next);
        if self.tables.next < self.tables.end {
            // SAFETY: the pages were kept for tables, and no table can be made any more.
            unsafe { self.heap.add(self.tables.next, self.tables.end) };
        }
        self.machine
    }
}

/// The one core and its time.
pub struct Machine {
    ring0: Ring0,
    start_info: &'static StartInfo,
    hypervisor: Hypervisor,
    power_off: Option<PowerOff>,
    /// Where there is one, there are no interrupts.
    sleep_port: Option<SleepPort>,
}

impl Machine {
    /// The boot command line.
    pub fn command_line(&self) -> &'static [u8] {
        self.start_info.command_line()
    }

    /// What runs the machine.
    pub fn hypervisor(&self) -> Hypervisor {
        self.hypervisor
    }

    /// Bytes of main memory.
    #[inline(never)]
    pub fn memory_bytes(&self) -> u64 {
        self.start_info.memory().iter().map(|(start, end)| end - start).sum()
    }

    /// What the hypervisor has loaded for the image, if it has (QEMU's `-initrd`).
    pub fn boot_module(&self) -> Option<&'static [u8]> {
        let (start, len) = self.start_info.module()?;
        // SAFETY: the range is main memory, which is mapped for as long as the machine runs (`give_memory` has seen to
        // that, or the machine has ended), and which nothing else is ever given: it is not part of the heap.
        Some(unsafe { core::slice::from_raw_parts(start as *const u8, len as usize) })
    }

    /// The machine's clock.
    pub fn clock(&self) -> &'static GuestClock {
        &CLOCK
    }

    /// Sleeps until an interrupt or the deadline. One that came since the last sleep ends it at once, so a caller that
    /// switches its device's interrupts on and then looks once more for work misses nothing. May end early.
    pub fn sleep_until(&self, deadline_ns: Option<u64>) {
        CLOCK.count_sleep(|now_ns| match self.sleep_port {
            Some(port) => port.sleep(deadline_ns.map(|deadline_ns| deadline_ns.saturating_sub(now_ns))),
            None => {
                CLOCK.arm_timer(deadline_ns);
                self.ring0.sleep();
            }
        });
    }

    /// Whether somebody has typed Ctrl-D on the console since the last call. It costs a port access, which may be dear;
    /// typing ends a sleep.
    pub fn is_asked_to_end(&self) -> bool {
        const END_OF_TRANSMISSION: u8 = 0x04;
        // A device that never ends to have something must not keep the caller.
        (0..64).map_while(|_| serial::receive()).any(|byte| byte == END_OF_TRANSMISSION)
    }

    /// Keeps the wall clock true.
    #[inline(never)]
    pub fn follow_wall_clock(&self) {
        CLOCK.follow_wall_clock(self.ring0);
    }

    /// Ends the machine, having said so on the console.
    pub fn end(&self, status: Status) -> ! {
        let mut out = serial::Writer::new();
        let _ = writeln!(out, "end: status {}", status.exit_status());
        drop(out);
        if let (Status::Clean, Some(by)) = (status, self.power_off) {
            power::switch_off(by);
        }
        power::end(self.ring0.layout(), status)
    }

    /// Ends the machine because it cannot start with what it was given.
    pub fn refuse(&self, why: &dyn Display) -> ! {
        refuse(self.ring0.layout(), why)
    }
}

fn refuse(layout: &Layout, why: &dyn Display) -> ! {
    let mut out = serial::Writer::new();
    let _ = writeln!(out, "refused: {why}");
    drop(out);
    power::end(layout, Status::Refused)
}

/// Maps all main memory and gives it to the heap, but for the image, its page tables, some pages for more of those, and
/// the boot module. Returns the end of what it could map.
///
/// # Safety
/// The ranges must be main memory that nothing uses but the image and its tables, and the heap must be empty.
unsafe fn give_memory(tables: &mut Tables, start_info: &StartInfo, heap: &GuestHeap) -> u64 {
    let mapped = start_info.memory().iter().take_while(|(start, end)| {
        let start = *start.max(&WINDOW_BYTES);
        start >= *end || tables.map(start, *end, Kind::Memory).is_ok()
    });
    // All tables before any heap: their pages come from the same memory.
    let mapped = mapped.count();
    // The window may be larger than the memory.
    let memory_end = |(start, end): &(u64, u64)| (*start..*end).contains(&tables.next).then_some(*end);
    let memory_end = start_info.memory().iter().find_map(memory_end).unwrap_or(tables.next);
    tables.end = tables.end.min(tables.next + DEVICE_TABLES * PAGE_BYTES).min(memory_end);
    let (module_start, module_len) = start_info.module().unwrap_or((u64::MAX, 0));
    let module_end = module_start.saturating_add(module_len);
    let mut mapped_end = 0;
    for &(start, end) in &start_info.memory()[..mapped] {
        mapped_end = mapped_end.max(end);
        let free = start.max(tables.end);
        for (from, to) in [(free, end.min(module_start & !(PAGE_BYTES - 1))), (free.max(page_above(module_end)), end)] {
            if from < to {
                // SAFETY: the range is mapped, as the window always is, and lies behind the image and its tables, and
                // beside the module.
                unsafe { heap.add(from, to) };
            }
        }
    }
    mapped_end
}

/// The first page's start that is not below an address.
fn page_above(address: u64) -> u64 {
    address.checked_next_multiple_of(PAGE_BYTES).unwrap_or(u64::MAX)
}
