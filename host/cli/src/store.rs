//! The store's options: checked here, before anything boots, and written in the form that each target takes.

use crate::{UsageError, args::RunArgs};
use anyhow::Result;
use kayvee_disk::Spec;
use kayvee_server::{Options, boot::quote_word};
use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
};

/// Where a store listens that was not told where.
const LOOPBACK: [&str; 3] = ["--bind", "127.0.0.1", "-::1"];

/// What an image takes as its boot line at the most, for all that is said in it.
const BOOT_LINE_BYTES_MAX: usize = 4095;

/// The web server's port, unless another one is asked for.
const USUAL_HTTP_PORT: u16 = 8080;

/// Options without a place of their own that are about processes and what a system does for them.
const NOTHING_TO_GUESTS: [&str; 5] =
    ["bind-source-addr", "oom-score-adj", "socket-mark-id", "supervised", "syslog-enabled"];

/// Checked options of one run.
pub struct Store {
    words: Vec<String>,
    options: Options,
    /// The disk as it was named.
    disk: Option<String>,
    /// The web site.
    site: Option<PathBuf>,
    /// The image of one that stays on the disk.
    site_disk: Option<PathBuf>,
}

/// An address to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listen {
    /// Where.
    pub address: SocketAddr,
    /// What to do on a system that has no such address.
    pub absent: Absent,
}

/// What a missing address means; redis.conf marks one that may be missing with a `-`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    /// The store does not start.
    Refuse,
    /// It does without.
    Skip,
}

impl Store {
    /// Checks the options of a run. Some are arguments of this command and options of the store: both may be given only if they
    /// agree.
    pub fn from_args(args: &RunArgs) -> Result<Store> {
        let named = &args.redis_options;
        if let Some(word) = named.first().filter(|word| !word.starts_with("--")) {
            let what =
                format!("'{word}' is no option; behind '--' stand those of the store, such as --maxmemory 100mb");
            return Err(UsageError(what).into());
        }
        if let Some(option) = ["--disk", "--site", "--site-disk"].into_iter().find(|option| names(named, option)) {
            return Err(UsageError(format!("option '{option}' belongs before '--'")).into());
        }
        // What this command says stands in front: an option at the end that lacks its value would take it for that.
        let mut words = Vec::new();
        if !names(named, "--bind") {
            // Only this host, unless it is asked for more: a guest has no protected mode of its own.
            words.extend(LOOPBACK.map(String::from));
        }
        if args.disk.is_some() && !names(named, "--appendonly") {
            words.extend(["--appendonly".into(), "yes".into()]);
        }
        let own = own_words(args, named);
        words.extend(own.iter().flat_map(|(option, value)| [option.to_string(), value.clone()]));
        words.extend(named.iter().cloned());
        let options = parse(&words)?;
        for (option, value) in own {
            let counts = match option {
                "--port" => options.port.to_string(),
                "--http-port" => options.http_port.to_string(),
                "--http-keys" => options.http_keys.clone(),
                _ => yes_or_no(options.status).into(),
            };
            if value != counts {
                let both = format!("{option} is given twice: {value}, and {counts} behind '--'");
                return Err(UsageError(format!("{both}; leave one of them out")).into());
            }
        }
        if options.port == 0 {
            return Err(UsageError("option '--port': a store that is run like this needs one".into()).into());
        }
        if options.http_port == options.port {
            let both = format!("--port and --http-port are both {}", options.port);
            return Err(UsageError(format!("{both}; choose another one for one of them")).into());
        }
        Ok(Store {
            words,
            options,
            disk: args.disk.clone(),
            site: args.site.clone(),
            site_disk: args.site_disk.clone(),
        })
    }

    /// These options with `maxmemory` set to `mib`, unless the user has set it already.
    pub fn with_default_maxmemory(mut self, mib: Option<u32>) -> Store {
        if let Some(mib) = mib.filter(|_| !names(&self.words, "--maxmemory")) {
            self.words.splice(0..0, ["--maxmemory".into(), format!("{mib}mb")]);
            self.options.maxmemory = u64::from(mib) << 20;
        }
        self
    }

    /// These options for a guest of `mib` that evicts keys: it begins with that before its memory is full. Then a key's bytes are of
    /// use only where the next one has its size, so that very many keys would have to go, and new ones be refused meanwhile.
    pub fn with_default_maxmemory_of_cache(self, mib: u32) -> Store {
        match self.options.maxmemory_policy == Options::default().maxmemory_policy {
            true => self,
            false => self.with_default_maxmemory(Some((mib / 4 * 3).max(1))),
        }
    }

    /// The options as arguments of a process.
    pub fn words(&self) -> Vec<String> {
        // The process reads them from `dir` on, this command from where it was started.
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.into()).display().to_string();
        let disk = self.disk.iter().flat_map(|disk| ["--disk".to_string(), absolute(Path::new(disk))]);
        let site = self.site.iter().flat_map(|site| ["--site".to_string(), absolute(site)]);
        let site_disk = self.site_disk.iter().flat_map(|image| ["--site-disk".to_string(), absolute(image)]);
        disk.chain(site).chain(site_disk).chain(self.words.iter().cloned()).collect()
    }

    /// The disk of a guest: the one that was named, or the one with the usual name where there is to be a log.
    pub fn disk(&self) -> Option<Spec> {
        let named = self.disk.as_ref().and_then(|disk| Spec::parse(disk).ok());
        let usual = || Spec { path: Path::new(&self.options.dir).join(kayvee_disk::USUAL_NAME), size_bytes: None };
        named.or_else(|| self.options.appendonly.then(usual))
    }

    /// Refuses what is about files, sockets and processes of this system, which a guest is none of: whoever asks for it would
    /// miss it.
    pub fn check_for_guest(&self) -> Result<(), UsageError> {
        let options = &self.options;
        let asked = [
            ("aclfile", &options.aclfile, "name each user by --user NAME RULES"),
            ("logfile", &options.logfile, "its log is on the standard error, and with --detach in `kayvee logs`"),
            ("pidfile", &options.pidfile, "--detach and `kayvee stop` find it by its name"),
            ("unixsocket", &options.unixsocket, "its clients connect to --port"),
        ];
        match asked.iter().find(|(_, value, _)| !value.is_empty()) {
            None => Ok(()),
            Some((name, _, instead)) => Err(UsageError(format!(
                "option '--{name}': a guest has no files or sockets of this system; {instead}. Or leave it to a Linux process: \
                 --target linux"
            ))),
        }
    }

    /// Refuses to let others than this host in where this program carries their connections: the store takes all that comes so for
    /// this host's, which protected mode does not turn away.
    pub fn check_bind(&self) -> Result<()> {
        let options = &self.options;
        let has_password = !options.requirepass.is_empty() || options.users.iter().any(|user| keeps_default_out(user));
        if !options.protected_mode || has_password || !options.aclfile.is_empty() {
            return Ok(());
        }
        let mut addresses = self.listen_addresses(options.port)?.into_iter().map(|listen| listen.address.ip());
        match addresses.find(|ip| !ip.is_loopback()) {
            None => Ok(()),
            Some(ip) => Err(UsageError(format!(
                "option '--bind': at {ip} other machines would reach the store without a password, past its protected mode; \
                 --requirepass sets one, --protected-mode no lets them in"
            ))
            .into()),
        }
    }

    /// Says which options do nothing on a guest, if there are any: those that many a configuration has, and whose lack harms
    /// nobody.
    pub fn without_effect_on_guests(&self) -> Option<String> {
        let options = &self.options;
        // With --shards each store is told a name of its own.
        let names_dump = options.dbfilename != Options::default().dbfilename && options.cluster_shards.is_empty();
        let asked = [
            (!options.save.is_empty(), "save"),
            (names_dump, "dbfilename"),
            (!options.dir.is_empty() && (self.disk.is_some() || !options.appendonly), "dir"),
            (options.unixsocketperm != 0, "unixsocketperm"),
        ];
        let is_kept = |name: &&str| options.kept.iter().any(|(kept, _)| kept == name);
        let asked = asked.iter().filter(|(is_asked, _)| *is_asked).map(|(_, name)| *name);
        let names: Vec<&str> = asked.chain(NOTHING_TO_GUESTS.into_iter().filter(is_kept)).collect();
        if names.is_empty() {
            return None;
        }
        let is_lost = names[0] == "save" && self.disk().is_none();
        let instead = if is_lost { "; what is to be kept needs --disk" } else { "" };
        Some(format!("these options do nothing on a guest: {}{instead}", names.join(", ")))
    }

    /// The web site: a directory or an image.
    pub fn site(&self) -> Option<&Path> {
        self.site.as_deref()
    }

    /// The image of a site that stays on the disk.
    pub fn site_disk(&self) -> Option<&Path> {
        self.site_disk.as_deref()
    }

    /// The options as the second half of an image's boot command line.
    pub fn boot_words(&self) -> String {
        self.words.iter().map(|word| quote_word(word)).collect::<Vec<_>>().join(" ")
    }

    /// Refuses options for which a guest's boot line has no room. What else it says is short.
    pub fn check_boot_words(&self) -> Result<()> {
        let bytes = self.boot_words().len();
        if bytes > BOOT_LINE_BYTES_MAX {
            let what = format!(
                "the store's options have {bytes} bytes, and a guest's boot line at the most {BOOT_LINE_BYTES_MAX}"
            );
            return Err(UsageError(format!("{what}: name less, such as fewer shards, or use --target linux")).into());
        }
        Ok(())
    }

    /// The options as the store understands them.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The addresses of `bind` on this host, with this port.
    pub fn listen_addresses(&self, port: u16) -> Result<Vec<Listen>> {
        let addresses = self.options.bind.iter().map(|word| {
            let (name, absent) = match word.strip_prefix('-') {
                Some(name) => (name, Absent::Skip),
                None => (word.as_str(), Absent::Refuse),
            };
            let ip = match name {
                "*" => Ok(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
                "::*" => Ok(IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
                name => name.parse().map_err(|_| UsageError(format!("option '--bind': '{word}' is not an address"))),
            }?;
            Ok(Listen { address: SocketAddr::new(ip, port), absent })
        });
        addresses.collect()
    }
}

/// Whether a line of the default user's has clients name a password, or lets them in as nobody: what is said last counts.
fn keeps_default_out(user: &[Vec<u8>]) -> bool {
    let Some((name, rules)) = user.split_first() else { return false };
    let says = rules.iter().rev().find_map(|rule| match rule.to_ascii_lowercase().as_slice() {
        b"nopass" => Some(false),
        b"resetpass" | b"reset" | b"off" => Some(true),
        [b'>' | b'#', ..] => Some(true),
        _ => None,
    });
    name == b"default" && says == Some(true)
}

/// The address by which a client on this host reaches a listener.
pub fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// The store's options that this command knows as arguments of its own, with their values.
fn own_words(args: &RunArgs, named: &[String]) -> Vec<(&'static str, String)> {
    let is_wanted = args.site.is_some() || args.site_disk.is_some() || args.http_keys.is_some() || args.status;
    let usual_port = (is_wanted && !names(named, "--http-port")).then_some(USUAL_HTTP_PORT);
    let port = args.port.map(|port| ("--port", port.to_string()));
    let http_port = args.http_port.or(usual_port).map(|port| ("--http-port", port.to_string()));
    let http_keys = args.http_keys.clone().map(|prefix| ("--http-keys", prefix));
    let status = args.status.then(|| ("--status", yes_or_no(true).into()));
    [port, http_port, http_keys, status].into_iter().flatten().collect()
}

fn yes_or_no(is_so: bool) -> &'static str {
    if is_so { "yes" } else { "no" }
}

fn parse(words: &[String]) -> Result<Options, UsageError> {
    Options::from_args(words.iter().map(|word| word.as_bytes())).map_err(|error| UsageError(error.to_string()))
}

/// Whether an option is among the words.
pub fn names(words: &[String], option: &str) -> bool {
    words.iter().any(|word| word.eq_ignore_ascii_case(option))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;

    fn store(line: &[&str]) -> Result<Store> {
        let Command::Run(args) = Cli::try_parse_from(["kayvee", "run"].iter().chain(line))?.command else {
            panic!("not run")
        };
        Store::from_args(&args)
    }

    #[test]
    fn both_ports_are_one_option() {
        assert_eq!(store(&[]).unwrap().options().port, 6379);
        let words = ["--bind", "127.0.0.1", "-::1", "--port", "7000"];
        assert_eq!(store(&["--port", "7000"]).unwrap().words(), words);
        assert_eq!(store(&["--", "--PORT", "7001"]).unwrap().options().port, 7001);
        assert_eq!(store(&["--port", "7001", "--", "--port", "7001"]).unwrap().options().port, 7001);
        assert!(store(&["--port", "7001", "--", "--port", "7000"]).is_err());
        assert!(store(&["--port", "0"]).is_err() && store(&["--", "--port", "0"]).is_err());
    }

    #[test]
    fn what_is_an_argument_and_an_option_is_one_and_the_same() {
        for (option, value, other) in [("--http-port", "7001", "7002"), ("--http-keys", "a:", "b:")] {
            assert!(store(&[option, value, "--", option, value]).is_ok());
            let refused = store(&[option, value, "--", option, other]).err().unwrap().to_string();
            assert_eq!(
                refused,
                format!("{option} is given twice: {value}, and {other} behind '--'; leave one of them out")
            );
        }
        assert!(store(&["--status", "--", "--status", "no"]).is_err());
        assert_eq!(store(&["--status", "--", "--http-port", "7002"]).unwrap().options().http_port, 7002);
    }

    /// What this command adds is no value of an option that lacks its own.
    #[test]
    fn a_value_that_is_forgotten_is_missed() {
        for forgotten in ["--replicaof", "--requirepass", "--maxmemory"] {
            let refused = store(&["--port", "7000", "--disk", "/a", "--status", "--", forgotten]).err().unwrap();
            assert!(refused.to_string().contains(&format!("option '{}': wrong number", &forgotten[2..])), "{refused}");
        }
    }

    #[test]
    fn options_that_are_too_long_for_a_guest_are_told() {
        let addresses =
            |count: u32| (0..count).map(|number| format!("10.0.0.1:{}", 10_000 + number)).collect::<Vec<_>>();
        let with =
            |count| store(&["--", "--cluster-shards", &addresses(count).join(" "), "--cluster-shard", "0"]).unwrap();
        assert!(with(200).check_boot_words().is_ok());
        let refused = with(1000).check_boot_words().unwrap_err().to_string();
        assert!(refused.contains("a guest's boot line at the most 4095"), "{refused}");
    }

    #[test]
    fn a_disk_implies_a_log_unless_there_is_to_be_none() {
        assert!(store(&[]).unwrap().disk().is_none());
        let named = store(&["--disk", "/a/b:1G"]).unwrap();
        assert!(named.options().appendonly);
        assert_eq!(named.disk(), Some(Spec { path: "/a/b".into(), size_bytes: Some(1 << 30) }));
        assert!(named.words().starts_with(&["--disk".into(), "/a/b:1G".into()]));
        assert!(!named.boot_words().contains("/a/b"), "a guest knows its disk without a name");
        assert!(!store(&["--disk", "/a", "--", "--appendonly", "no"]).unwrap().options().appendonly);
        let usual = store(&["--", "--appendonly", "yes", "--dir", "/data"]).unwrap();
        assert_eq!(usual.disk(), Some(Spec { path: "/data/kayvee.disk".into(), size_bytes: None }));
        assert!(store(&["--", "--disk", "x"]).is_err() && store(&["--disk", "x:1X"]).is_err());
    }

    #[test]
    fn unknown_options_are_refused() {
        for (line, words) in [
            (&["--", "maxmemory", "100mb"][..], "'maxmemory' is no option"),
            (&["--port", "7000", "--status", "--http-port", "7000"], "--port and --http-port are both 7000"),
        ] {
            assert!(store(line).err().unwrap().to_string().contains(words), "{line:?}");
        }
        for line in [&["--", "--nonsense", "1"][..], &["--", "--port"], &["--", "--hz", "x"]] {
            assert!(store(line).is_err(), "{line:?}");
        }
    }

    #[test]
    fn others_are_let_in_with_a_password_or_on_purpose() {
        for (line, is_let) in [
            (&["--port", "7000"][..], true),
            (&["--", "--bind", "127.0.0.1", "::1", "-::1"], true),
            (&["--", "--bind", "0.0.0.0"], false),
            (&["--", "--bind", "127.0.0.1", "-::*"], false),
            (&["--", "--bind", "*", "--requirepass", "secret"], true),
            (&["--", "--bind", "*", "--user", "default", "on", ">secret", "~*", "+@all"], true),
            (&["--", "--bind", "*", "--user", "default", "on", "nopass", "~*", "+@all"], false),
            (&["--", "--bind", "*", "--user", "default", "on", ">secret", "NOPASS", "~*", "+@all"], false),
            (&["--", "--bind", "*", "--user", "default", "on", "~*", "+@all"], false),
            (&["--", "--bind", "*", "--user", "other", "on", ">secret", "~*", "+@all"], false),
            (&["--", "--bind", "*", "--protected-mode", "no"], true),
        ] {
            assert_eq!(store(line).unwrap().check_bind().is_ok(), is_let, "{line:?}");
        }
    }

    #[test]
    fn what_a_guest_has_not_is_refused_or_named() {
        for (option, value) in
            [("--aclfile", "users.acl"), ("--LOGFILE", "x.log"), ("--pidfile", "x.pid"), ("--unixsocket", "/tmp/x")]
        {
            let why = store(&["--", option, value]).unwrap().check_for_guest().unwrap_err().to_string();
            assert!(why.starts_with(&format!("option '{}': a guest", option.to_lowercase())), "{why}");
            store(&["--", option, ""]).unwrap().check_for_guest().unwrap();
        }
        let without = |line: &[&str]| {
            let store = store(line).unwrap();
            store.check_for_guest().unwrap();
            store.without_effect_on_guests()
        };
        assert_eq!(without(&["--", "--maxmemory", "1mb", "--save", "", "--supervised", "no"]), None);
        let all = without(&["--", "--save", "60", "1", "--dbfilename", "d", "--dir", "/x", "--supervised", "auto"]);
        let words =
            "these options do nothing on a guest: save, dbfilename, dir, supervised; what is to be kept needs --disk";
        assert_eq!(all.as_deref(), Some(words));
        let kept = without(&["--disk", "d", "--", "--save", "60 1"]);
        assert_eq!(kept.as_deref(), Some("these options do nothing on a guest: save"));
        // The folder of the usual disk, and the dump file's name that --shards makes up.
        assert_eq!(without(&["--", "--appendonly", "yes", "--dir", "/x"]), None);
        assert_eq!(without(&["--", "--cluster-shards", "a:1 b:2", "--dbfilename", "dump-0.rdb"]), None);
    }

    #[test]
    fn boot_words_survive_the_guest_s_parser() {
        let store = store(&["--port", "7000", "--", "--requirepass", "a \"b\"\t", "--save", ""]).unwrap();
        let line = format!("ip=dhcp -- {}", store.boot_words());
        let booted = kayvee_server::boot::BootArgs::parse(line.as_bytes()).unwrap();
        assert_eq!(&booted.options, store.options());
    }

    #[test]
    fn bind_names_the_addresses() {
        let addresses = |bind: &str| store(&["--", "--bind", bind]).unwrap().listen_addresses(6379);
        let listen = addresses("* -::1").unwrap();
        assert_eq!(listen[0], Listen { address: "0.0.0.0:6379".parse().unwrap(), absent: Absent::Refuse });
        assert_eq!(listen[1], Listen { address: "[::1]:6379".parse().unwrap(), absent: Absent::Skip });
        assert_eq!(reachable(listen[0].address), "127.0.0.1:6379".parse().unwrap());
        assert!(addresses("example").is_err());
    }

    #[test]
    fn memory_becomes_maxmemory_unless_that_is_set() {
        assert_eq!(store(&[]).unwrap().with_default_maxmemory(Some(32)).words()[..2], ["--maxmemory", "32mb"]);
        let cache = store(&["--", "--maxmemory-policy", "allkeys-lru"]).unwrap().with_default_maxmemory_of_cache(64);
        assert_eq!(cache.options().maxmemory, 48 << 20);
        assert_eq!(store(&[]).unwrap().with_default_maxmemory_of_cache(64).options().maxmemory, 0);
        let set = store(&["--", "--maxmemory", "1gb"]).unwrap().with_default_maxmemory(Some(32));
        assert_eq!(set.options().maxmemory, 1 << 30);
        assert_eq!(set.words()[3..], ["--maxmemory", "1gb"]);
    }
}
