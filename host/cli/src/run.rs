//! `kayvee run`: chooses what the store runs on, and puts the parts of a run together.

use crate::{
    UsageError,
    args::{Machine, Net, RunArgs, Target},
    image::{self, Image},
    instances, listen,
    log::Log,
    network::Network,
    probe, proxy,
    qemu::{self, Accelerator, Ending, Guest},
    ready, store,
    store::Store,
    supervise::{self, Ask, End, Outcome, Run},
};
use anyhow::{Context, Result, anyhow, bail};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use signal_hook::iterator::Signals;
use std::{
    ffi::OsString,
    io::{self, Write},
    net::{SocketAddr, TcpStream},
    os::unix::process::CommandExt,
    process::Command,
    rc::Rc,
    sync::Arc,
    thread,
    time::{Duration, SystemTime},
};

/// Memory of a guest whose user asked for none in particular.
const GUEST_MEMORY_MIB: u32 = 1024;
/// Connections beyond the store's limit that are carried, for the store to say why it does not serve them.
const REFUSED_CONNECTIONS: u64 = 64;
/// The client's socket and the guest's.
const DESCRIPTORS_PER_CONNECTION: u64 = 2;
/// Descriptors that are not the connections'.
const RESERVED_DESCRIPTORS: u64 = 64;
/// How soon a process that does not accept connections yet is asked again.
const CONNECT_INTERVAL: Duration = Duration::from_millis(5);

/// Boots the store, and stays with it until its end unless it is to run in the background.
pub fn run(args: &RunArgs) -> Result<()> {
    let store = Store::from_args(args)?;
    let is_for_guest = args.net != Net::Auto || args.machine != Machine::Microvm || args.pcap.is_some();
    if args.target == Target::Linux && is_for_guest {
        return Err(UsageError(
            "--net, --machine and --pcap are about guests; leave them out with --target linux".into(),
        )
        .into());
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

/// Becomes the Linux process, with these arguments. Only an error comes back.
pub fn become_server(arguments: &[OsString]) -> Result<()> {
    let error = Command::new(image::built("kayvee-linux")?).args(arguments).exec();
    Err(error).context("starting kayvee-linux")
}

/// Where a run's words go: to the terminal, or to the log and record of a detached instance.
struct Session {
    log: Arc<Log>,
    claim: Option<Rc<instances::Claim>>,
}

impl Session {
    fn run(&self, args: &RunArgs, store: Store, signals: Signals) -> Result<()> {
        match self.choose(args, store.options().http_port > 0)? {
            Some(accelerator) => self.run_guest(args, accelerator, &store, signals),
            None => self.run_process(&store.with_default_maxmemory(args.memory), signals),
        }
    }

    fn note(&self, text: &str) {
        self.log.line(&format!("kayvee: {text}"));
    }

    /// What to boot a guest with, or `None` for the Linux process.
    fn choose(&self, args: &RunArgs, serves_web: bool) -> Result<Option<Accelerator>> {
        match args.target {
            Target::Linux => Ok(None),
            Target::Auto if serves_web => {
                self.note("running as a Linux process, because guests have no web server yet");
                Ok(None)
            }
            Target::Tcg | Target::Kvm if serves_web => {
                Err(UsageError("guests have no web server yet; leave --target out, or use --target linux".into())
                    .into())
            }
            Target::Tcg => Ok(Some(Accelerator::Tcg)),
            Target::Kvm => Ok(Some(Accelerator::Kvm)),
            Target::Auto => match Image::pack().and_then(|image| probe::kvm(&image)) {
                Ok(()) => Ok(Some(Accelerator::Kvm)),
                Err(error) => {
                    self.note(&format!("running as a Linux process, because no guest boots under KVM here: {error:#}"));
                    Ok(None)
                }
            },
        }
    }

    fn run_process(&self, store: &Store, signals: Signals) -> Result<()> {
        let addresses = store.listen_addresses(store.options().port)?;
        // Only to know before the start that the port is free; the process listens by itself.
        let listeners = listen::listen(&addresses, store.options().tcp_backlog)?;
        let address = store::reachable(listeners[0].local_addr()?);
        drop(listeners);
        let web = self.web_address(store)?;
        let mut command = Command::new(image::built("kayvee-linux")?);
        // As on a guest, what is to be kept has a disk of its own; redis-server's dump file is for `kayvee server`.
        command.args(["--save", ""]).args(store.words());
        let prove = move || {
            loop {
                match TcpStream::connect(address) {
                    Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => thread::sleep(CONNECT_INTERVAL),
                    Err(error) => return Err(error).with_context(|| format!("connecting to {address}")),
                    Ok(connection) => return ready::ping_over(connection),
                }
            }
        };
        let announce = self.announcement(store, "linux", address, web, "a Linux process");
        let run = Run {
            command,
            inherited: Vec::new(),
            carry: None,
            ask: Ask::AtOnce,
            prove: Box::new(prove),
            announce,
            end: End::Signal,
        };
        let Outcome { status, failure } = supervise::supervise(run, self.log.clone(), signals)?;
        match failure {
            Some(failure) => Err(failure),
            None if status.success() => Ok(()),
            None => bail!("the store ended with {status}"),
        }
    }

    fn run_guest(&self, args: &RunArgs, accelerator: Accelerator, store: &Store, signals: Signals) -> Result<()> {
        let qemu = qemu::find()?;
        let disk = store.disk().map(|disk| kayvee_disk::prepare(&disk).map(|prepared| (disk, prepared))).transpose()?;
        let image = Image::pack()?;
        let listeners = listen::listen(&store.listen_addresses(store.options().port)?, store.options().tcp_backlog)?;
        let front = store::reachable(listeners[0].local_addr()?);
        let network = Network::open(args.net)?;
        let place = network.place();

        let memory_mib = args.memory.unwrap_or(GUEST_MEMORY_MIB);
        let guest = Guest { image: &image, accelerator, machine: args.machine, memory_mib };
        // A guest without KVM's clock knows the time only to the second.
        let now_us = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_micros();
        let boot_line = format!("{} time={now_us} -- {}", place.boot_words(), store.boot_words());
        let mut command = guest.command(&qemu, &boot_line);
        let what = match network.address_on_host() {
            Some(address) => format!("a {} guest, also at {address}:{}", accelerator.name(), front.port()),
            None => format!("a {} guest", accelerator.name()),
        };
        let settings = proxy::Settings {
            guest: place.socket(front.port()),
            max_connections: max_connections(store)?,
            keepalive: Some(store.options().tcp_keepalive)
                .filter(|&seconds| seconds > 0)
                .map(|seconds| Duration::from_secs(seconds.into())),
        };
        let (carrier, end) = network.carrier(listeners, settings)?;
        guest.add_network(&mut command, &place, &end);
        if let Some(file) = &args.pcap {
            guest.add_record(&mut command, file);
        }
        if let Some((disk, prepared)) = disk {
            guest.add_disk(&mut command, &disk.path, prepared);
        }

        let announce = self.announcement(store, &accelerator.name().to_ascii_lowercase(), front, None, &what);
        let run = Run {
            command,
            inherited: vec![image.descriptor(), end.descriptor()],
            carry: Some(Box::new(|| carrier.run())),
            ask: Ask::WhenListening,
            prove: Box::new(move || ready::ping(front)),
            announce,
            end: End::Console,
        };
        let Outcome { status, failure } = supervise::supervise(run, self.log.clone(), signals)?;
        match failure.or_else(|| Ending::of(status).failure().map(|text| anyhow!(text))) {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    }

    /// Where the web server will answer, if there is to be one: its port is free.
    fn web_address(&self, store: &Store) -> Result<Option<SocketAddr>> {
        match store.options().http_port {
            0 => Ok(None),
            port => {
                let listeners = listen::listen(&store.listen_addresses(port)?, store.options().tcp_backlog)?;
                Ok(Some(listeners[0].local_addr()?))
            }
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
        let (claim, target) = (self.claim.clone(), target.to_string());
        Box::new(move || match claim {
            Some(claim) => claim.announce(&target, &address.to_string(), &words),
            None => {
                // Whoever started this and does not read it wants the store all the same.
                let _ = writeln!(io::stdout(), "{words}");
                Ok(())
            }
        })
    }
}

/// How many connections may be carried: those that the store serves and some that it refuses with a reason, as far as
/// there are descriptors. Allows this process all that it may have.
fn max_connections(store: &Store) -> Result<usize> {
    let (_, descriptors) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, descriptors, descriptors).context("raising the limit of open files")?;
    let wanted = u64::from(store.options().maxclients) + REFUSED_CONNECTIONS;
    Ok(wanted.min(descriptors.saturating_sub(RESERVED_DESCRIPTORS) / DESCRIPTORS_PER_CONNECTION) as usize)
}
