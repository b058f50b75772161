//! The command line.

use clap::{Args, Parser, Subcommand, ValueEnum};
use kayvee_disk::Spec;
use kayvee_xdp_socket::Attachment;
use std::{ffi::OsString, fmt, path::PathBuf, str::FromStr};

const AFTER_HELP: &str = "\
`./kayvee test` runs everything that CI runs.

Exit status: 0 after a clean end, 1 when something failed, 2 for wrong arguments (1 from `kayvee server`,
as from redis-server).";

const RUN_AFTER_HELP: &str = "\
REDIS-OPTIONS are redis.conf's names, the same on every target:
  kayvee run -- --maxmemory 100mb --requirepass secret

--disk keeps what is written: FILE is made if there is none, with SIZE bytes (or K, M, G, T: 4G),
grows when a larger SIZE is named, and opens on every target. Without SIZE a new file can become
16G and takes what it needs. It implies --appendonly yes; how often the disk is flushed is up to
--appendfsync. `-- --appendonly yes` alone uses kayvee.disk in --dir.

--shards starts a Redis Cluster on this host, with one processor's work for each shard: clients that know clusters
ask each for its keys (`redis-cli -c`). They share nothing and have a guest and a disk (FILE-0, FILE-1, ...) each.
`-- --cluster-announce-ip ADDRESS` tells clients elsewhere where they are, beside --bind.

Ctrl-C or SIGTERM shuts the store down and ends with status 0.";

const CHECK_AFTER_HELP: &str = "\
Exit status: 0 if the log is sound, 1 if it is damaged or there is none.";

/// Kayvee: a Redis-compatible store that boots without an operating system.
#[derive(Parser)]
#[command(name = "kayvee", version, after_help = AFTER_HELP, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Boot the store and say when it answers
    Run(RunArgs),
    /// Be the store, as redis-server is: takes its arguments and a redis.conf
    Server(ServerArgs),
    /// List the detached instances
    Ps,
    /// Show what a detached instance has written
    Logs(LogsArgs),
    /// Shut detached instances down
    Stop(StopArgs),
    /// Show what the monitor of a detached guest has done: exits by cause, and where the time went
    Stats(ControlArgs),
    /// Have a detached guest stand still
    Pause(ControlArgs),
    /// Have a detached guest that stands still go on
    Resume(ControlArgs),
    /// Write the bootable image to a file
    Image(ImageArgs),
    /// Look at the log on a disk
    Log(LogArgs),
    /// Take over a Redis' data: a dump file or append-only files
    Import(ImportArgs),
    /// Write a disk's data to a dump file that Redis loads
    Export(ExportArgs),
    /// Pack a web site
    #[command(subcommand)]
    Site(SiteCommand),
    /// The monitor of one guest: what `run` starts, with descriptors that it leaves to it
    #[command(hide = true)]
    Monitor(MonitorArgs),
}

#[derive(Subcommand)]
pub enum SiteCommand {
    /// Pack a directory into a site image, with compressed variants of its pages
    Pack(SitePackArgs),
    /// Read a whole site image and say whether it is sound
    Check(SiteCheckArgs),
}

#[derive(Args)]
pub struct SiteCheckArgs {
    /// The site image
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

#[derive(Args)]
#[command(after_help = "\
Files whose names start with a dot are left out, but for .well-known. Links are followed, out of the directory as well, but
for those that lead nowhere; FIFOs, sockets and devices are left out. A file .kayvee-site at the top has the site's rules:
  cache /assets/* \"public, max-age=31536000, immutable\"
  type *.gem text/gemini
  index index.html start.html
  host FOLDER example.org www.example.org")]
pub struct SitePackArgs {
    /// The site's files
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,

    /// Where to write the image
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
}

#[derive(Args, Clone)]
#[command(after_help = RUN_AFTER_HELP)]
pub struct RunArgs {
    /// What the store runs on; auto is KVM where a guest really boots under it, else a Linux process
    #[arg(long, value_enum, default_value_t = Target::Auto)]
    pub target: Target,

    /// TCP port, on this host and in the guest [default: 6379]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,

    /// Memory of the guest; as a Linux process, the store's maxmemory [default: 1024 for a guest]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(5..=4 << 20))]
    pub memory: Option<u32>,

    /// How the store is reached: auto; tap, with an address of its own on this host (needs rights); user, without any
    /// rights; xdp, past the kernel's network over a link of its own, or
    /// xdp:INTERFACE[,ip=ADDRESS/BITS[,gateway=ADDRESS][,ip6=ADDRESS/BITS[,gateway6=ADDRESS]]], on an interface of this host
    #[arg(long, value_name = "NETWORK", value_parser = Net::parse, default_value_t = Net::Auto)]
    pub net: Net,

    /// The guest's machine type
    #[arg(long, value_enum, default_value_t = Machine::Microvm)]
    pub machine: Machine,

    /// What runs a guest under KVM; auto is kayvee where it can, else qemu
    #[arg(long, value_enum, default_value_t = Vmm::Auto)]
    pub vmm: Vmm,

    /// Keep the data in this file or on this block device
    #[arg(long, value_name = "FILE[:SIZE]", value_parser = disk)]
    pub disk: Option<String>,

    /// Serve this web site: a directory, which is packed, or a site image
    #[arg(long, value_name = "DIR|FILE")]
    pub site: Option<PathBuf>,

    /// Serve the web site of this image, and leave it on the disk: it may be larger than the memory
    #[arg(long, value_name = "FILE", conflicts_with = "site")]
    pub site_disk: Option<PathBuf>,

    /// TCP port of the web server, on this host and in the guest [default: 8080 with --site, --site-disk, --http-keys or --status]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub http_port: Option<u16>,

    /// Serve the strings at keys with this prefix as pages
    #[arg(long, value_name = "PREFIX")]
    pub http_keys: Option<String>,

    /// Show the store's state in a browser, at /_/status of the web server
    #[arg(long)]
    pub status: bool,

    /// Boot so many stores, each with its share of the keys, as one Redis Cluster: on ports from --port on, and with a number
    /// behind the name where a file or an instance is named
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=1000), conflicts_with = "gdb")]
    pub shards: Option<u16>,

    /// Record the frames of a guest, or of --net xdp, in this file, for tcpdump and Wireshark
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,

    /// Let gdb attach to the guest, on this port of 127.0.0.1: `target remote :PORT`
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub gdb: Option<u16>,

    /// Leave it running in the background
    #[arg(long)]
    pub detach: bool,

    /// Name of the detached instance [default: kayvee]
    #[arg(long, value_parser = instance_name, requires = "detach")]
    pub name: Option<String>,

    /// This process is the background half of the detached instance of this name.
    #[arg(long, hide = true, value_name = "NAME", value_parser = instance_name, conflicts_with = "detach")]
    pub supervised: Option<String>,

    /// The store's options under redis.conf's names, such as --maxmemory 100mb
    #[arg(last = true, value_name = "REDIS-OPTIONS")]
    pub redis_options: Vec<String>,
}

#[derive(Args)]
#[command(disable_help_flag = true)]
pub struct ServerArgs {
    /// A redis.conf, then `-` for one on the standard input, then --OPTION VALUE...; --help lists the options
    #[arg(value_name = "FILE|OPTIONS", trailing_var_arg = true, allow_hyphen_values = true)]
    pub arguments: Vec<OsString>,
}

/// The name of a detached instance that was given none.
pub const DEFAULT_NAME: &str = "kayvee";
const NAME_MAX_BYTES: usize = 64;

/// Where the store runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Target {
    /// KVM where a probe boots, else the Linux process
    Auto,
    /// A guest under KVM, in what --vmm says
    Kvm,
    /// A guest under QEMU's emulation
    Tcg,
    /// A process on this system
    Linux,
}

/// How the store is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Net {
    /// By the best means that this user's rights allow
    Auto,
    /// A tap device in this host's network
    Tap,
    /// A TCP/IP stack in this program, which needs no rights
    User,
    /// An AF_XDP socket
    Xdp(Attachment),
}

impl Net {
    fn parse(text: &str) -> Result<Net, String> {
        match text {
            "auto" => Ok(Net::Auto),
            "tap" => Ok(Net::Tap),
            "user" => Ok(Net::User),
            _ if text.starts_with("xdp") => Attachment::parse(text).map(Net::Xdp).map_err(|error| error.to_string()),
            _ => Err("it is auto, tap, user or xdp".into()),
        }
    }
}

impl fmt::Display for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Net::Auto => f.write_str("auto"),
            Net::Tap => f.write_str("tap"),
            Net::User => f.write_str("user"),
            Net::Xdp(attachment) => attachment.fmt(f),
        }
    }
}

/// What runs a guest under KVM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Vmm {
    /// This program's own monitor where it can, else QEMU
    Auto,
    /// This program's own monitor
    Kayvee,
    /// QEMU
    Qemu,
}

/// The machine that QEMU emulates around the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Machine {
    /// virtio over MMIO, no PCI: boots fastest
    Microvm,
    /// A PC with PCI Express
    Q35,
}

macro_rules! display_as_argument {
    ($($type:ty),+) => {
        $(impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.to_possible_value().map_or(Ok(()), |value| f.write_str(value.get_name()))
            }
        })+
    };
}
display_as_argument!(Target, Vmm, Machine);

#[derive(Args)]
pub struct ControlArgs {
    /// The instance
    #[arg(value_parser = instance_name, default_value = DEFAULT_NAME)]
    pub name: String,
}

#[derive(Args)]
pub struct MonitorArgs {
    /// Descriptor of the image
    #[arg(long)]
    pub image: i32,

    /// Descriptor of what is loaded beside it
    #[arg(long)]
    pub module: Option<i32>,

    /// Memory, in MiB
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4 << 20))]
    pub memory: u32,

    /// Descriptor of a tap device
    #[arg(long, requires = "mac", conflicts_with = "stream")]
    pub tap: Option<i32>,

    /// Descriptor of a stream of frames
    #[arg(long, requires = "mac")]
    pub stream: Option<i32>,

    /// What a socket is attached to whose rings the guest works itself
    #[arg(long)]
    pub xdp: Option<String>,

    /// Descriptor of the listening control socket
    #[arg(long)]
    pub control: Option<i32>,

    /// Descriptor of the file where the frames are recorded
    #[arg(long)]
    pub record: Option<i32>,

    /// Descriptor of the socket where debuggers connect
    #[arg(long)]
    pub debugger: Option<i32>,

    /// The network card's address
    #[arg(long, default_value = "52:54:00:00:00:01")]
    pub mac: Mac,

    /// Descriptor of the disk
    #[arg(long)]
    pub disk: Option<i32>,

    /// Descriptor of the site's disk
    #[arg(long)]
    pub site_disk: Option<i32>,

    /// The boot line
    #[arg(long, allow_hyphen_values = true)]
    pub boot_line: String,
}

/// An Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mac(pub [u8; 6]);

impl FromStr for Mac {
    type Err = String;

    fn from_str(text: &str) -> Result<Mac, String> {
        let bytes: Option<Vec<u8>> = text.split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
        let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
        bytes.map(Mac).ok_or_else(|| format!("'{text}' is not an Ethernet address"))
    }
}

#[derive(Args)]
pub struct LogsArgs {
    /// Keep showing what is added, until the instance ends
    #[arg(short, long)]
    pub follow: bool,

    /// The instance
    #[arg(value_parser = instance_name, default_value = DEFAULT_NAME)]
    pub name: String,
}

#[derive(Args)]
pub struct StopArgs {
    /// Every detached instance
    #[arg(long, conflicts_with = "names")]
    pub all: bool,

    /// The instances
    #[arg(value_name = "NAME", value_parser = instance_name, default_value = DEFAULT_NAME)]
    pub names: Vec<String>,
}

#[derive(Args)]
pub struct LogArgs {
    #[command(subcommand)]
    pub command: LogCommand,
}

#[derive(Subcommand)]
pub enum LogCommand {
    /// Read a disk without changing it, and say what is in it and whether it is sound
    #[command(after_help = CHECK_AFTER_HELP)]
    Check(CheckArgs),
}

#[derive(Args)]
pub struct CheckArgs {
    /// The file or block device
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

#[derive(Args)]
pub struct ImageArgs {
    /// Where to write it
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
}

const IMPORT_AFTER_HELP: &str = "\
FILE is a dump.rdb or an appendonly.aof; DIR is the folder with the append-only files of Redis 7 and their manifest
(usually 'appendonlydir'). A last request that a crash has cut off is left out, as redis-server does.

  kayvee import /var/lib/redis/dump.rdb --disk kv.disk:8G
  kayvee run --disk kv.disk";

#[derive(Args)]
#[command(after_help = IMPORT_AFTER_HELP)]
pub struct ImportArgs {
    /// The dump file, the append-only file, or the folder of these
    #[arg(value_name = "FILE|DIR")]
    pub source: PathBuf,

    /// The disk that the data goes to; made where there is none
    #[arg(long, value_name = "FILE[:SIZE]", value_parser = Spec::parse)]
    pub disk: Spec,

    /// Erase what the disk holds
    #[arg(long)]
    pub replace: bool,
}

#[derive(Args)]
pub struct ExportArgs {
    /// The disk, which no store may be running on
    #[arg(long, value_name = "FILE")]
    pub disk: PathBuf,

    /// The dump file; one that is there is replaced when the new one is complete
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,

    /// The oldest Redis that is to load it [default: 7.0, or 7.4 where fields of hashes expire]; 7.0 cannot be told when
    /// consumers of streams were last active
    #[arg(long, value_enum)]
    pub redis_version: Option<RedisVersion>,
}

/// A release of Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RedisVersion {
    /// Version 10 of the format
    #[value(name = "7.0")]
    V7_0,
    /// Version 11 of the format
    #[value(name = "7.2")]
    V7_2,
    /// Version 12 of the format
    #[value(name = "7.4")]
    V7_4,
}

/// A name is a folder's name and a column of `ps`.
fn instance_name(name: &str) -> Result<String, String> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let plain = !name.is_empty() && name.len() <= NAME_MAX_BYTES && name.bytes().all(allowed);
    if plain && !name.starts_with(['.', '-']) {
        Ok(name.to_string())
    } else {
        Err(format!("a name has 1 to {NAME_MAX_BYTES} letters, digits, '-', '_' or '.', and starts with none of '-.'"))
    }
}

/// A disk is named as [`kayvee_disk::Spec`] says.
fn disk(text: &str) -> Result<String, String> {
    kayvee_disk::Spec::parse(text).map(|_| text.to_string())
}

impl RunArgs {
    /// The detached instance's name.
    pub fn instance_name(&self) -> &str {
        self.supervised.as_deref().or(self.name.as_deref()).unwrap_or(DEFAULT_NAME)
    }

    /// What the background half is started with, to do what this command line asks for.
    pub fn to_supervised_args(&self) -> Vec<String> {
        let mut args = vec!["run".to_string(), format!("--supervised={}", self.instance_name())];
        args.extend(self.to_args());
        args
    }

    /// What a run of one store in the foreground is started with, behind `run`.
    pub fn to_args(&self) -> Vec<String> {
        let mut args = vec![format!("--target={}", self.target), format!("--net={}", self.net)];
        args.extend([format!("--machine={}", self.machine), format!("--vmm={}", self.vmm)]);
        args.extend(self.port.map(|port| format!("--port={port}")));
        args.extend(self.memory.map(|mib| format!("--memory={mib}")));
        args.extend(self.disk.as_ref().map(|disk| format!("--disk={disk}")));
        args.extend(self.site.as_ref().map(|site| format!("--site={}", site.display())));
        args.extend(self.site_disk.as_ref().map(|site| format!("--site-disk={}", site.display())));
        args.extend(self.http_port.map(|port| format!("--http-port={port}")));
        args.extend(self.http_keys.as_ref().map(|prefix| format!("--http-keys={prefix}")));
        args.extend(self.status.then(|| "--status".to_string()));
        args.extend(self.pcap.as_ref().map(|file| format!("--pcap={}", file.display())));
        args.extend(self.gdb.map(|port| format!("--gdb={port}")));
        args.push("--".into());
        args.extend(self.redis_options.iter().cloned());
        args
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_server_gets_its_arguments_as_they_are() {
        for words in [&["x.conf", "--port", "1", "-"][..], &["--help"], &["-v"], &["--", "x"], &[]] {
            let line = ["kayvee", "server"].iter().chain(words);
            let Command::Server(server) = Cli::try_parse_from(line).unwrap().command else { panic!("not server") };
            assert!(
                server.arguments.iter().filter(|word| *word != "--").eq(words.iter().filter(|word| **word != "--"))
            );
        }
    }

    #[test]
    fn supervised_arguments_parse_back_to_the_same_run() {
        let line = ["kayvee", "run", "--target", "tcg", "--port", "7000", "--memory", "64", "--net", "user"];
        let line = line.iter().chain(&[
            "--machine",
            "q35",
            "--vmm",
            "qemu",
            "--disk",
            "a:1G",
            "--pcap",
            "f.pcap",
            "--detach",
            "--name",
            "a-b",
            "--",
            "--save",
            "",
        ]);
        let Command::Run(first) = Cli::try_parse_from(line).unwrap().command else { panic!("not run") };
        let again = std::iter::once("kayvee".to_string()).chain(first.to_supervised_args());
        let Command::Run(second) = Cli::try_parse_from(again).unwrap().command else { panic!("not run") };
        assert_eq!((second.supervised.as_deref(), second.detach), (Some("a-b"), false));
        assert_eq!(first.to_supervised_args(), second.to_supervised_args());
        assert_eq!((second.port, second.memory, second.disk.as_deref()), (Some(7000), Some(64), Some("a:1G")));
        assert_eq!(second.vmm, Vmm::Qemu);
        assert_eq!(second.pcap, Some(PathBuf::from("f.pcap")));
        assert_eq!(second.redis_options, ["--save", ""]);
    }

    #[test]
    fn names_cannot_leave_their_folder() {
        for name in ["", "..", ".x", "a/b", "-f", "a b", &"x".repeat(65)] {
            assert!(instance_name(name).is_err(), "{name:?}");
        }
        assert_eq!(instance_name("kv-1_b.c").unwrap(), "kv-1_b.c");
    }
}
