//! `kayvee run`: chooses what the store runs on, and puts the parts of a run together.

use crate::{
    UsageError,
    args::{Machine, Net, RunArgs, Target, Vmm},
    front::Front,
    image::{self, Image},
    instances,
    log::Log,
    monitor,
    network::{self, Network},
    probe,
    proxy::Proxy,
    qemu::{self, Accelerator, Ending, Guest},
    ready,
    record::{self, Recording},
    relay, shards, site, store,
    store::Store,
    supervise::{self, End, Outcome, Run},
    sys::Frames,
};
use anyhow::{Context, Result, anyhow, bail};
use kayvee_link::{Link, Redirect, VethPair};
use kayvee_xdp_socket::Attachment;
use nix::sys::sysinfo::sysinfo;
use signal_hook::iterator::Signals;
use std::{
    ffi::OsString,
    io::{self, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    os::{
        fd::{AsFd, AsRawFd},
        unix::{fs::FileTypeExt, process::CommandExt},
    },
    path::Path,
    process::Command,
    rc::Rc,
    sync::Arc,
    time::SystemTime,
};

/// Memory of a guest whose user asked for none in particular.
const GUEST_MEMORY_MIB: u32 = 1024;

/// Boots the store, and stays with it until its end unless it is to run in the background.
pub fn run(args: &RunArgs) -> Result<()> {
    if let Some(count) = args.shards {
        return shards::run(args, count);
    }
    let store = Store::from_args(args)?;
    if store.options().daemonize {
        // It would go on behind this program's back, with nobody to end it.
        return Err(UsageError("daemonize: with `kayvee run`, --detach leaves a store in the background".into()).into());
    }
    let is_past_the_kernel = matches!(args.net, Net::Xdp(_));
    let needs_qemu = args.machine != Machine::Microvm;
    let is_for_guest = args.machine != Machine::Microvm
        || args.vmm != Vmm::Auto
        || args.gdb.is_some()
        || !is_past_the_kernel && (args.net != Net::Auto || args.pcap.is_some());
    if args.target == Target::Linux && is_for_guest {
        let what = "--vmm, --machine and --gdb are about guests, and so are --net and --pcap, but for --net xdp";
        return Err(UsageError(format!("{what}; leave them out with --target linux")).into());
    }
    if is_past_the_kernel && (args.target == Target::Tcg || args.vmm == Vmm::Qemu || needs_qemu) {
        return Err(UsageError("--net xdp needs --vmm kayvee, or --target linux".into()).into());
    }
    if args.vmm == Vmm::Kayvee && (args.target == Target::Tcg || needs_qemu) {
        let what = "--vmm kayvee has neither emulation nor --machine; use --vmm qemu for these";
        return Err(UsageError(what.into()).into());
    }
    if let Some(memory_mib) = args.memory.filter(|_| args.target != Target::Linux) {
        check_memory(memory_mib)?;
    }
    if matches!(args.target, Target::Kvm | Target::Tcg) {
        check_for_guest(args, &store)?;
    }
    if args.detach {
        return instances::detach(args);
    }
    let signals = supervise::catch_signals()?;
    if args.supervised.is_none() {
        let session = Session { log: Arc::new(Log::Terminal), claim: None };
        return session.run(args, store, signals);
    }
    let (claim, log) = instances::Claim::take(args.instance_name())?;
    let session = Session { log: Arc::new(log), claim: Some(Rc::new(claim)) };
    let result = session.run(args, store, signals);
    if let Some(claim) = &session.claim {
        claim.end(u8::from(result.is_err()))?;
    }
    result
}

/// Refuses a guest that this host could never give its memory. What is merely taken by others at the moment may be free later.
fn check_memory(wanted_mib: u32) -> Result<()> {
    let host = sysinfo().context("asking for this host's memory")?;
    let there_mib = (host.ram_total() + host.swap_total()) >> 20;
    if u64::from(wanted_mib) > there_mib {
        let what = format!("--memory: a guest of {wanted_mib} MiB does not fit in this host's {there_mib} MiB");
        return Err(UsageError(what).into());
    }
    Ok(())
}

/// Becomes the Linux process, with these arguments. Only an error comes back.
pub fn become_server(arguments: &[OsString]) -> Result<()> {
    let error = Command::new(image::built("kayvee-linux")?).args(arguments).exec();
    Err(error).context("starting kayvee-linux")
}

/// A store as a Linux process.
fn process(store: &Store) -> Result<Command> {
    let mut command = Command::new(image::built("kayvee-linux")?);
    // As on a guest, what is to be kept has a disk of its own; redis-server's dump file is for `kayvee server`.
    command.args(["--save", ""]).args(store.words());
    // It says on its standard output how far it is, whatever becomes of its log.
    command.env("KAYVEE_RUN", "1");
    Ok(command)
}

/// Refuses what a guest cannot be told, has not, or would let in.
pub fn check_for_guest(args: &RunArgs, store: &Store) -> Result<()> {
    store.check_for_guest()?;
    store.check_boot_words()?;
    match args.net {
        // Whoever comes by an interface that others use is a stranger to the store itself.
        Net::Xdp(Attachment::Interface { .. }) => {}
        _ => store.check_bind()?,
    }
    Ok(())
}

/// What runs a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Monitor {
    /// This program, in a process of its own.
    Own,
    /// QEMU.
    Qemu(Accelerator),
}

impl Monitor {
    fn accelerator(self) -> Accelerator {
        match self {
            Monitor::Own => Accelerator::Kvm,
            Monitor::Qemu(accelerator) => accelerator,
        }
    }
}

/// A way to a guest.
struct Way {
    /// What the guest is told of it.
    boot_words: String,
    /// The guest's end.
    end: network::End,
    /// Carries connections to the guest, where this program does.
    carry: Option<supervise::Carry>,
    /// Asks the store for a sign of life.
    prove: supervise::Prove,
    /// Says that it is there.
    announce: Box<dyn FnOnce() -> Result<()>>,
    /// Spares this program the carrying, and breaks off what is left of connections at the end.
    redirect: Option<Redirect>,
    /// Records its frames, where this program does.
    recording: Option<Recording>,
}

/// Where a run's words go: to the terminal, or to the log and record of a detached instance.
struct Session {
    log: Arc<Log>,
    claim: Option<Rc<instances::Claim>>,
}

impl Session {
    fn run(&self, args: &RunArgs, store: Store, signals: Signals) -> Result<()> {
        let prepare = || -> Result<_> {
            let prepared = |disk| kayvee_disk::prepare(&disk).map(|prepared| (disk, prepared));
            Ok(store.disk().map(prepared).transpose()?)
        };
        // A guest's disk that is none is named before an image is looked for; a Linux process opens its own.
        let named = match args.target {
            Target::Linux | Target::Auto => None,
            Target::Tcg | Target::Kvm => prepare()?,
        };
        match self.choose(args)? {
            Some((by, image)) => {
                // What `auto` chooses is known only now.
                check_for_guest(args, &store)?;
                if let Some(without) = store.without_effect_on_guests() {
                    self.note(&without);
                }
                // What is refused above leaves no new one behind.
                let disk = if named.is_some() { named } else { prepare()? };
                let store = store.with_default_maxmemory_of_cache(args.memory.unwrap_or(GUEST_MEMORY_MIB));
                self.run_guest(args, (by, &image), disk, &store, signals)
            }
            None => {
                let store = store.with_default_maxmemory(args.memory);
                match &args.net {
                    Net::Xdp(attachment) => self.run_past_the_kernel(args, attachment, &store, signals),
                    _ => self.run_process(&store, signals),
                }
            }
        }
    }

    fn note(&self, text: &str) {
        self.log.line(&format!("kayvee: {text}"));
    }

    /// What to boot a guest with and which image, or `None` for the Linux process.
    fn choose(&self, args: &RunArgs) -> Result<Option<(Monitor, Image)>> {
        if args.target == Target::Tcg || args.vmm == Vmm::Qemu && args.target == Target::Kvm {
            // That it is missing is said before an image is looked for.
            qemu::find()?;
        }
        match args.target {
            Target::Linux => Ok(None),
            Target::Tcg => Ok(Some((Monitor::Qemu(Accelerator::Tcg), Image::pack()?))),
            Target::Kvm => {
                probe::device()?;
                let image = Image::pack()?;
                Ok(Some((self.choose_monitor(args, &image)?, image)))
            }
            Target::Auto => {
                let boots = |image: &Image| match self.choose_monitor(args, image)? {
                    // It was chosen because a guest has booted in it.
                    Monitor::Own if args.vmm == Vmm::Auto => Ok(Monitor::Own),
                    // Its own words are about this program's monitor.
                    Monitor::Qemu(_) => probe::qemu(image).map(|()| Monitor::Qemu(Accelerator::Kvm)),
                    Monitor::Own => probe::own(image).map(|()| Monitor::Own),
                };
                match probe::device().and_then(|()| Image::pack()).and_then(|image| Ok((boots(&image)?, image))) {
                    Ok(chosen) => Ok(Some(chosen)),
                    Err(error) => {
                        let why = format!("because no guest boots under KVM here: {error:#}");
                        self.note(&format!("running as a Linux process, {why}"));
                        Ok(None)
                    }
                }
            }
        }
    }

    /// What runs a guest under KVM.
    fn choose_monitor(&self, args: &RunArgs, image: &Image) -> Result<Monitor> {
        match args.vmm {
            Vmm::Kayvee => Ok(Monitor::Own),
            Vmm::Auto if args.machine == Machine::Microvm => match probe::own(image) {
                Ok(()) => Ok(Monitor::Own),
                Err(error) => {
                    self.note(&format!("using QEMU, because Kayvee's own monitor does not work here: {error:#}"));
                    Ok(Monitor::Qemu(Accelerator::Kvm))
                }
            },
            Vmm::Auto | Vmm::Qemu => Ok(Monitor::Qemu(Accelerator::Kvm)),
        }
    }

    fn run_process(&self, store: &Store, signals: Signals) -> Result<()> {
        // Only to know before the start that the ports are free; the process listens by itself.
        let Front { address, web, .. } = Front::open(store)?;
        let command = process(store)?;
        let announce = self.announcement(store, "linux", address, web, "a Linux process");
        let run = Run {
            command,
            inherited: Vec::new(),
            carry: None,
            prove: Box::new(move || ready::ping(address)),
            announce,
            end: End::Signal,
        };
        self.supervise_process(run, signals)
    }

    fn supervise_process(&self, run: Run, signals: Signals) -> Result<()> {
        let Outcome { status, failure } = supervise::supervise(run, self.log.clone(), signals)?;
        match failure {
            Some(failure) => Err(failure),
            None if status.success() => Ok(()),
            None => bail!("the store ended with {status}"),
        }
    }

    /// Runs the Linux process on a network of its own: over a link that this program makes and carries the port to, or on
    /// an interface, from which this host itself does not reach it.
    fn run_past_the_kernel(
        &self,
        args: &RunArgs,
        attachment: &Attachment,
        store: &Store,
        signals: Signals,
    ) -> Result<()> {
        let link = match attachment {
            Attachment::Own => {
                store.check_bind()?;
                let front = Front::open(store)?;
                let pair = VethPair::create(kayvee_xdp_socket::link_mtu())
                    .context("making a link for the store")
                    .map_err(network::with_advice)?;
                Some((front, pair))
            }
            Attachment::Interface { .. } => None,
        };
        let attachment = link.as_ref().map_or(attachment.clone(), |(_, pair)| Attachment::to_pair(pair));
        let mut command = process(store)?;
        command.args(["--net", &attachment.to_string()]);
        let recording = match (&link, &args.pcap) {
            (Some((_, pair)), _) => self.record(args, pair)?,
            (None, Some(file)) => {
                // What XDP takes from an interface only the process sees. It may go to another folder.
                command.arg("--pcap").arg(std::path::absolute(file)?);
                None
            }
            (None, None) => None,
        };
        let mut run = Run {
            command,
            inherited: Vec::new(),
            carry: None,
            // Nobody can ask it from here.
            prove: Box::new(|| Ok(())),
            announce: Box::new(|| Ok(())),
            end: End::Signal,
        };
        let Some((mut front, pair)) = link else {
            run.announce = self.announcement_elsewhere(store, "linux", "a Linux process", &attachment);
            return self.supervise_process(run, signals);
        };
        let web = front.leave_web();
        let settings = front.settings(store, pair.link.guest, Some(&pair.host_name))?;
        let redirect = self.redirect(&front, pair.link, &pair.host_name);
        let Front { listeners, address, .. } = front;
        let proxy = Proxy::new(listeners, settings)?;
        run.inherited = vec![pair.namespace.as_fd().as_raw_fd()];
        run.carry = Some(Box::new(|| proxy.run()));
        run.prove = Box::new(move || ready::ping(address));
        let places = network::addresses(pair.link, address.port());
        let what = format!("a Linux process past the kernel's network, also at {places}");
        run.announce = self.announcement(store, "linux", address, web, &what);
        let result = self.supervise_process(run, signals);
        drop((redirect, recording));
        result
    }

    /// Begins to record what passes on a link, if that is wanted.
    fn record(&self, args: &RunArgs, pair: &VethPair) -> Result<Option<Recording>> {
        args.pcap.as_ref().map(|path| Recording::begin(path, &pair.host_name, self.log.clone())).transpose()
    }

    /// The best way to a guest, or the one that is asked for.
    fn open_network(&self, args: &RunArgs, by: Monitor) -> Result<Network> {
        // A recording shows frames as they are on a wire: QEMU's needs a tap that knows no others, the own monitor sees to it.
        let is_recorded_by_qemu = args.pcap.is_some() && by != Monitor::Own;
        let frames = if is_recorded_by_qemu { Frames::Plain } else { Frames::Offloaded };
        match (&args.net, by) {
            (Net::Xdp(_), Monitor::Own) => Network::direct(),
            (Net::Xdp(_), Monitor::Qemu(_)) => bail!("--net xdp needs Kayvee's own monitor"),
            (Net::Auto, Monitor::Own) => Network::direct().or_else(|error| {
                let network = Network::open(&args.net, frames)?;
                let (way, cost) = match network {
                    Network::User => ("this program carries the guest's frames", "several times slower"),
                    _ => ("a tap carries the guest's frames", "slower"),
                };
                self.note(&format!("{way}, which is {cost}, because it cannot have AF_XDP here: {error:#}"));
                Ok(network)
            }),
            _ => Network::open(&args.net, frames),
        }
    }

    /// Makes the way to a guest: one that this program carries the store's port to, or an interface, from which this host
    /// itself does not reach it.
    fn open_way(&self, args: &RunArgs, by: Monitor, store: &Store) -> Result<Way> {
        let name = by.accelerator().name();
        let target = name.to_ascii_lowercase();
        if let (Net::Xdp(attachment @ Attachment::Interface { address, gateway, addressing6, .. }), Monitor::Own) =
            (&args.net, by)
        {
            let address = match address {
                Some((address, bits)) => format!("ip={address}/{bits}"),
                None => "ip=dhcp".into(),
            };
            let gateway = gateway.map_or(String::new(), |gateway| format!(" gateway={gateway}"));
            return Ok(Way {
                boot_words: format!("{address}{gateway} {} peers=strangers", network::ipv6_words(*addressing6)),
                end: network::End::Interface(attachment.clone()),
                carry: None,
                prove: Box::new(|| Ok(())),
                announce: self.announcement_elsewhere(store, &target, &format!("a {name} guest"), attachment),
                redirect: None,
                recording: None,
            });
        }
        let front = Front::open(store)?;
        let network = self.open_network(args, by)?;
        let place = network.place();
        let settings = front.settings(store, place.guest, network.interface())?;
        let link = network.link().zip(network.interface());
        let redirect = link.and_then(|(link, interface)| self.redirect(&front, link, interface));
        let Front { listeners, address, web, .. } = front;
        let what = match network.link() {
            Some(link) => format!("a {name} guest, also at {}", network::addresses(link, address.port())),
            None => format!("a {name} guest"),
        };
        let recording = match &network {
            Network::Direct(pair) => self.record(args, pair)?,
            Network::Tap(_) | Network::User => None,
        };
        let (carrier, end) = network.carrier(listeners, settings)?;
        Ok(Way {
            boot_words: place.boot_words(),
            end,
            carry: Some(Box::new(|| carrier.run())),
            prove: Box::new(move || ready::ping(address)),
            announce: self.announcement(store, &target, address, web, &what),
            redirect,
            recording,
        })
    }

    /// Spares this program the carrying of connections, where the kernel lets it.
    fn redirect(&self, front: &Front, link: Link, interface: &str) -> Option<Redirect> {
        let failed = |error| {
            let (address, guest) = (front.address, SocketAddr::new(link.guest.into(), front.address.port()));
            self.note(&format!(
                "this program carries connections to {address}, which is slower than {guest}: {error:#}"
            ));
        };
        front.redirect(link, interface).map_err(failed).ok()
    }

    fn run_guest(
        &self,
        args: &RunArgs,
        (by, image): (Monitor, &Image),
        disk: Option<(kayvee_disk::Spec, kayvee_disk::Prepared)>,
        store: &Store,
        mut signals: Signals,
    ) -> Result<()> {
        let Way { boot_words, end, carry, prove, announce, redirect, recording } = self.open_way(args, by, store)?;
        let memory_mib = args.memory.unwrap_or(GUEST_MEMORY_MIB);
        // A guest without KVM's clock knows the time only to the second.
        let now_us = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_micros();
        let boot_line = format!("{boot_words} time={now_us} -- {}", store.boot_words());
        let site = match store.site().map(Path::to_path_buf) {
            None => None,
            Some(path) => match supervise::unless_asked_to_end(&mut signals, move || site::image(&path))? {
                Some(image) => Some(image?),
                None => {
                    self.note("broken off while the site was read");
                    return Ok(());
                }
            },
        };
        // The lock is for the time in which this program itself reads the file; QEMU takes its own.
        let mut site_disk = store.site_disk().map(kayvee_disk::open_to_read).transpose()?;
        // What the monitor inherits is to be open until it runs, and no longer.
        let (mut locked_disk, mut control, mut debugger, mut record) = (None, None, None, None);
        let (command, inherited) = match by {
            Monitor::Qemu(accelerator) => {
                let guest = Guest { image, accelerator, machine: args.machine, memory_mib };
                let mut command = guest.command(&qemu::find()?, &boot_line);
                guest.add_network(&mut command, &end);
                if let Some(file) = &args.pcap {
                    // It opens the file itself, which nobody else has meanwhile.
                    record = Some(record::create(file)?);
                    guest.add_record(&mut command, file);
                }
                if let Some(port) = args.gdb {
                    guest.add_debugger(&mut command, port);
                }
                if let Some((disk, prepared)) = disk {
                    guest.add_disk(&mut command, &disk.path, prepared);
                }
                let mut inherited = vec![image.descriptor()];
                inherited.extend(end.descriptor());
                if let Some((path, file)) = store.site_disk().zip(site_disk.take()) {
                    guest.add_site_disk(&mut command, path, file.metadata()?.file_type().is_block_device());
                }
                if let Some(site) = &site {
                    guest.add_module(&mut command, site);
                    inherited.push(site.descriptor());
                }
                (command, inherited)
            }
            Monitor::Own => {
                locked_disk = disk.map(|(disk, _)| kayvee_disk::open_prepared(&disk.path)).transpose()?;
                control = self.claim.as_ref().map(|claim| claim.control()).and_then(|control| {
                    let failed = |error| self.note(&format!("the guest runs without a control socket: {error:#}"));
                    control.map_err(failed).ok()
                });
                debugger = args.gdb.map(listen_for_debuggers).transpose()?;
                let by_monitor = args.pcap.as_ref().filter(|_| recording.is_none());
                record = by_monitor.map(|path| record::create(path)).transpose()?;
                let guest = monitor::Guest {
                    image,
                    module: site.as_ref(),
                    memory_mib,
                    boot_line: &boot_line,
                    network: Some(&end),
                    disk: locked_disk.as_ref(),
                    site_disk: site_disk.as_ref(),
                    control: control.as_ref(),
                    debugger: debugger.as_ref(),
                    record: record.as_ref(),
                };
                guest.command()
            }
        };
        let run = Run { command, inherited, carry, prove, announce, end: End::Console };
        let Outcome { status, failure } = supervise::supervise(run, self.log.clone(), signals)?;
        drop((locked_disk, control, debugger, record, redirect, recording));
        match failure.or_else(|| Ending::of(status).failure().map(|text| anyhow!(text))) {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    }

    /// The words that say where the store answers, once it does.
    fn announcement(
        &self,
        store: &Store,
        target: &str,
        address: SocketAddr,
        web: Option<SocketAddr>,
        place: &str,
    ) -> Box<dyn FnOnce() -> Result<()>> {
        let host = if address.ip().is_loopback() && address.is_ipv4() {
            String::new()
        } else {
            format!(" -h {}", address.ip())
        };
        let password = if store.options().requirepass.is_empty() { "" } else { " --askpass" };
        let mut words = format!("ready: {address} ({place})\n       redis-cli{host} -p {}{password}", address.port());
        if let Some(web) = web.map(store::reachable) {
            words.push_str(&format!("\n       http://{web}/"));
            if store.options().status {
                words.push_str(&format!(" and http://{web}/_/status"));
            }
        }
        let announce = self.announce(target, address.to_string(), words);
        let (options, log) = (store.options().clone(), self.log.clone());
        Box::new(move || {
            relay::begin(&options, address, &log);
            announce()
        })
    }

    /// The same for a store that this host does not reach.
    fn announcement_elsewhere(
        &self,
        store: &Store,
        target: &str,
        what: &str,
        attachment: &Attachment,
    ) -> Box<dyn FnOnce() -> Result<()>> {
        let port = store.options().port;
        let address = match attachment {
            Attachment::Interface { address: Some((address, _)), .. } => format!("{address}:{port}"),
            _ => format!("port {port} of the address above"),
        };
        let words = format!(
            "ready: {address} ({what} past the kernel's network, on {attachment}; not reached from this host by that \
             interface)"
        );
        self.announce(target, address, words)
    }

    fn announce(&self, target: &str, address: String, words: String) -> Box<dyn FnOnce() -> Result<()>> {
        let (claim, target) = (self.claim.clone(), target.to_string());
        Box::new(move || match claim {
            Some(claim) => claim.announce(&target, &address, &words),
            None => {
                // Whoever started this and does not read it wants the store all the same.
                let _ = writeln!(io::stdout(), "{words}");
                Ok(())
            }
        })
    }
}

/// Only this host may debug a guest: a debugger can do everything with it.
fn listen_for_debuggers(port: u16) -> Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).with_context(|| format!("--gdb: listening on 127.0.0.1:{port}"))
}
