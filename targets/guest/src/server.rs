//! The loop: frames to the station, its replies back, and sleep when there is nothing to do.

use crate::{card::Card, disk::Disk};
use core::net::{IpAddr, SocketAddr};
use kayvee_platform::{Clock, FrameDevice, FrameRx, earliest};
use kayvee_station::Station;
use kayvee_x86::{console, machine::Machine, power::Status};

/// How long the loop looks for more to do before it sleeps. Going to sleep and waking up costs an interrupt and several
/// exits to the hypervisor; a busy client's next request is nearly always here sooner.
const POLL_NS: u64 = 100_000;
/// The same while many clients are busy: one interrupt stands for the frames of many, which come sooner where the host has
/// this processor to carry them.
const CROWD_POLL_NS: u64 = 5_000;
/// The same while the disk writes: a flush takes some 100 µs.
const DISK_POLL_NS: u64 = 300_000;
/// A sleep while the card still holds frames to send: it does not interrupt when it has sent them.
const SENDING_NS: u64 = 1_000_000;

/// So long after something has happened the console is looked at: it may have been what happened. To look costs an exit to
/// the hypervisor.
const CONSOLE_NS: u64 = 100_000_000;

/// The store on the network.
pub struct Server<'a> {
    machine: &'a Machine,
    card: Card,
    disk: Option<Disk<'a>>,
    site_disk: Option<Disk<'a>>,
    station: Station,
    /// When to look at the console.
    console_due_ns: Option<u64>,
    /// Whether the network has had an address.
    is_announced: bool,
}

impl<'a> Server<'a> {
    /// Joins the parts.
    pub fn new(
        machine: &'a Machine,
        card: Card,
        disk: Option<Disk<'a>>,
        site_disk: Option<Disk<'a>>,
        station: Station,
    ) -> Server<'a> {
        Server { machine, card, disk, site_disk, station, console_due_ns: None, is_announced: false }
    }

    /// Serves until a client asks for the end, and returns how it came.
    pub fn run(&mut self) -> Status {
        // CONFIG SET changes it from now on.
        log::set_max_level(self.station.engine().options().loglevel.filter());
        loop {
            self.turn();
            if let Some(error) = self.card.error() {
                log::error!("the network card cannot be used any more: {error}");
                return Status::Failed;
            }
            if let Some(shutdown) = self.station.engine().shutdown() {
                if let Some(disk) = &mut self.disk {
                    self.station.engine().close_log(disk);
                }
                let clock = self.machine.clock();
                self.station.end(&mut self.card, || clock.now().monotonic_ns, Card::is_sending);
                return if shutdown.status == 0 { Status::Clean } else { Status::Failed };
            }
            self.wait();
        }
    }

    /// One turn: all that has arrived, and all that follows from it.
    fn turn(&mut self) {
        let now = self.machine.clock().now();
        if now.monotonic_ns >= self.machine.clock().wall_clock_due_ns() {
            self.machine.follow_wall_clock();
        }
        self.look_at_console(now.monotonic_ns);
        self.station.receive(&mut self.card, now);
        while let Some((address, prefix_bits)) = self.station.next_address() {
            self.announce(address, prefix_bits);
        }
        if self.station.is_crowded() {
            self.card.set_rest(Some(self.station.nap().unwrap_or_default()));
        }
        if let Some(disk) = &mut self.site_disk {
            self.station.drive_site(disk, now);
        }
        self.station.reply(&mut self.card, self.disk.as_mut(), now);
        for line in self.station.take_access_log().split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            // Lines are ASCII.
            console::fixed_line(format_args!("http: {}", core::str::from_utf8(line).unwrap_or_default()));
        }
    }

    /// Ctrl-D on the console asks for the end, as a signal asks a process.
    fn look_at_console(&mut self, now_ns: u64) {
        match self.console_due_ns {
            None => self.console_due_ns = Some(now_ns + CONSOLE_NS),
            Some(due_ns) if now_ns >= due_ns => {
                self.console_due_ns = None;
                if self.machine.is_asked_to_end() {
                    let on = self.station.engine().options().shutdown_on_sigterm;
                    self.station.engine().request_shutdown(on);
                }
            }
            Some(_) => {}
        }
    }

    fn announce(&mut self, address: IpAddr, prefix_bits: u8) {
        if !self.is_announced {
            self.is_announced = true;
            self.station.engine().note_boot_phase("network", self.machine.clock().now().monotonic_ns);
        }
        let port = self.station.engine().options().port;
        console::fixed_line(format_args!("net: {address}/{prefix_bits}"));
        console::fixed_line(format_args!("ready: {}", SocketAddr::new(address, port)));
    }

    /// Waits for a frame or for the next deadline: polling at first, then asleep.
    fn wait(&mut self) {
        if self.station.is_behind() {
            return;
        }
        let clock = self.machine.clock();
        let deadline_ns = earliest(&[self.station.next_deadline_ns(), self.console_due_ns]);
        let deadline_ns = deadline_ns.unwrap_or(u64::MAX).min(clock.wall_clock_due_ns());
        let idle_ns = clock.now().monotonic_ns;
        self.station.rest(idle_ns);
        let poll_until_ns = idle_ns + self.poll_ns();
        while !self.is_ready() {
            let now_ns = clock.now().monotonic_ns;
            if now_ns >= deadline_ns {
                return;
            }
            if now_ns >= poll_until_ns {
                return self.sleep(deadline_ns, now_ns);
            }
        }
    }

    /// Whether a device has something for the next turn.
    #[inline]
    fn is_ready(&mut self) -> bool {
        self.card.split().0.ready() || self.disks().any(|disk| disk.is_ready())
    }

    fn disks(&mut self) -> impl Iterator<Item = &mut Disk<'a>> {
        self.disk.iter_mut().chain(&mut self.site_disk)
    }

    /// How long to poll: longer while clients wait for the disk, whose end is near, but hardly where others of this host carry
    /// the frames of many.
    fn poll_ns(&mut self) -> u64 {
        if self.card.is_carried() && self.station.is_crowded() {
            return CROWD_POLL_NS;
        }
        if self.disks().any(|disk| disk.is_busy()) { DISK_POLL_NS } else { POLL_NS }
    }

    fn sleep(&mut self, deadline_ns: u64, now_ns: u64) {
        let deadline_ns = if self.card.is_sending() { deadline_ns.min(now_ns + SENDING_NS) } else { deadline_ns };
        self.card.enable_interrupts();
        self.disks().for_each(Disk::enable_interrupts);
        // What came before its interrupt was on does not raise it; what comes from here on ends the sleep.
        if !self.is_ready() {
            self.machine.sleep_until(Some(deadline_ns).filter(|deadline_ns| *deadline_ns != u64::MAX));
        }
        self.card.disable_interrupts();
        self.disks().for_each(Disk::disable_interrupts);
    }
}
