//! The boot command line of an image: what the machine needs to know, then the store's options.
//!
//! ```text
//! ip=192.0.2.2/24 gateway=192.0.2.1 ip6=2001:db8::2/64 gateway6=2001:db8::1 -- --port 6379 --maxmemory 100mb --requirepass "a b"
//! ```
//!
//! Words before `--` configure the machine; those behind it are redis.conf's names as process arguments. Words that a
//! hypervisor adds by itself (`virtio_mmio.device=…`) are kept for the drivers.

use alloc::{string::String, vec::Vec};
use kayvee_commands::options::{OptionError, Options};
pub use kayvee_platform::{Addressing, Addressing6};
use kayvee_resp::split_words;

/// A way for the image to fail on purpose, so that tests see that it fails as it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SelfTest {
    /// A panic.
    Panic,
    /// Reads from address 0.
    Null,
    /// Writes to its own code.
    WriteText,
    /// Writes to its constants.
    WriteConstant,
    /// Executes memory from the heap.
    ExecuteHeap,
    /// Executes its own data.
    ExecuteData,
    /// Calls itself without end.
    StackOverflow,
    /// Writes to its page tables.
    PageTables,
}

impl SelfTest {
    /// All of them with their names as the value of `selftest=`.
    pub const ALL: [(&str, SelfTest); 8] = [
        ("panic", SelfTest::Panic),
        ("null", SelfTest::Null),
        ("write-text", SelfTest::WriteText),
        ("write-constant", SelfTest::WriteConstant),
        ("exec-heap", SelfTest::ExecuteHeap),
        ("exec-data", SelfTest::ExecuteData),
        ("stack-overflow", SelfTest::StackOverflow),
        ("page-tables", SelfTest::PageTables),
    ];
}

/// Who else is on a guest's network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peers {
    /// Those who were meant to be.
    Known,
    /// `peers=host`: nobody but the host, which has given the guest its addresses.
    Host,
    /// `peers=strangers`: it is shared with others, who are not trusted.
    Strangers,
}

/// A parsed boot command line.
#[derive(Clone, Debug)]
pub struct BootArgs {
    /// How the guest gets its address; DHCP unless `ip=` says otherwise.
    pub addressing: Addressing,
    /// How it gets its IPv6 addresses: from routers, unless `ip6=` says `off` or otherwise.
    pub addressing6: Addressing6,
    /// `virtio_mmio.device=SIZE@ADDRESS:IRQ` words, as the hypervisor wrote them.
    pub virtio_mmio: Vec<String>,
    /// `xdp=`: the address at which the monitor describes the rings of the network, where no device has them.
    pub xdp: Option<u64>,
    /// Who else is on the network.
    pub peers: Peers,
    /// `monitor=`: the address of the page in which Kayvee's own monitor tells of itself.
    pub monitor: Option<u64>,
    /// `time=`: microseconds since 1970 at which the hypervisor was started, for machines without a precise wall clock.
    pub host_time_us: Option<u64>,
    /// `selftest=`: fail on purpose.
    pub self_test: Option<SelfTest>,
    /// The store's options.
    pub options: Options,
}

/// Why a boot command line was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BootArgsError {
    /// Not UTF-8, or quotes that do not close.
    Malformed,
    /// A machine word that nothing here understands, or whose value is wrong.
    Word(String),
    /// A store option was refused.
    Option(OptionError),
}

impl core::fmt::Display for BootArgsError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            BootArgsError::Malformed => write!(f, "boot arguments: not UTF-8, or unbalanced quotes"),
            BootArgsError::Word(word) => write!(f, "boot argument '{word}' is unknown or its value is wrong"),
            BootArgsError::Option(error) => write!(f, "{error}"),
        }
    }
}

impl core::error::Error for BootArgsError {}

impl BootArgs {
    /// Parses a command line. Linux' own words that a hypervisor may add (`console=…`, `reboot=…`, `panic=…`, `pci=…`,
    /// `acpi=…`, `root=…`) are ignored.
    pub fn parse(line: &[u8]) -> Result<BootArgs, BootArgsError> {
        let words = split_words(line).map_err(|_| BootArgsError::Malformed)?;
        let words: Vec<&str> = words
            .iter()
            .map(|w| core::str::from_utf8(w))
            .collect::<Result<_, _>>()
            .map_err(|_| BootArgsError::Malformed)?;
        let (machine, store) = match words.iter().position(|w| *w == "--") {
            Some(at) => (&words[..at], &words[at + 1..]),
            None => (&words[..], &[][..]),
        };
        let mut static_address = None;
        let mut gateway = None;
        let (mut addressing6, mut gateway6) = (Addressing6::Auto, None);
        let mut virtio_mmio = Vec::new();
        let mut peers = Peers::Known;
        let (mut host_time_us, mut self_test, mut xdp, mut monitor) = (None, None, None, None);
        for &word in machine {
            let bad = || BootArgsError::Word(word.into());
            match word.split_once('=').unwrap_or((word, "")) {
                ("ip", "dhcp") => static_address = None,
                ("ip", value) => {
                    let (address, bits) = value.split_once('/').ok_or_else(bad)?;
                    let bits: u8 = bits.parse().map_err(|_| bad())?;
                    if bits > 32 {
                        return Err(bad());
                    }
                    static_address = Some((address.parse().map_err(|_| bad())?, bits));
                }
                ("gateway", value) => gateway = Some(value.parse().map_err(|_| bad())?),
                ("ip6", value) => addressing6 = Addressing6::parse(value).ok_or_else(bad)?,
                ("gateway6", value) => gateway6 = Some(value.parse().map_err(|_| bad())?),
                ("time", value) => host_time_us = Some(value.parse().map_err(|_| bad())?),
                ("selftest", value) => {
                    let named = SelfTest::ALL.iter().find(|(name, _)| *name == value);
                    self_test = Some(named.ok_or_else(bad)?.1);
                }
                ("virtio_mmio.device", value) => virtio_mmio.push(value.into()),
                (name @ ("xdp" | "monitor"), value) => {
                    let address = value.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
                    *(if name == "xdp" { &mut xdp } else { &mut monitor }) = Some(address.ok_or_else(bad)?);
                }
                ("peers", "host") => peers = Peers::Host,
                ("peers", "strangers") => peers = Peers::Strangers,
                // Kayvee's own monitor says how the machine sleeps, which has been read already.
                ("sleep_port", _) => {}
                ("console" | "reboot" | "panic" | "pci" | "acpi" | "root" | "ro" | "rw" | "quiet" | "nomodule", _) => {}
                _ => return Err(bad()),
            }
        }
        // Some hypervisors append their words behind everything else, so they may stand among the store's options.
        let (appended, store): (Vec<&str>, Vec<&str>) =
            store.iter().partition(|w| w.starts_with("virtio_mmio.device="));
        virtio_mmio.extend(appended.iter().filter_map(|w| w.split_once('=')).map(|(_, value)| String::from(value)));
        let options = Options::from_args(store.iter().map(|w| w.as_bytes())).map_err(BootArgsError::Option)?;
        if options.port == 0 {
            let (name, reason) = ("port".into(), "a machine that serves nobody is of no use".into());
            return Err(BootArgsError::Option(OptionError { name, reason }));
        }
        let addressing = match static_address {
            Some((address, prefix_bits)) => Addressing::Static { address, prefix_bits, gateway },
            None => Addressing::Dhcp,
        };
        if let (Addressing6::Static { gateway, .. }, Some(_)) = (&mut addressing6, gateway6) {
            *gateway = gateway6;
        }
        Ok(BootArgs { addressing, addressing6, virtio_mmio, xdp, peers, monitor, host_time_us, self_test, options })
    }
}

/// Writes one word so that [`split_words`] reads it back.
pub fn quote_word(word: &str) -> String {
    let plain = |b: u8| b.is_ascii_graphic() && !matches!(b, b'"' | b'\'' | b'\\');
    if !word.is_empty() && word.bytes().all(plain) {
        return word.into();
    }
    let mut quoted = String::from("\"");
    for byte in word.bytes() {
        match byte {
            b'"' | b'\\' => quoted.extend(['\\', byte as char]),
            b' ' => quoted.push(' '),
            _ if plain(byte) || byte == b'\'' => quoted.push(byte as char),
            _ => quoted.push_str(&alloc::format!("\\x{byte:02x}")),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv4Addr;

    #[test]
    fn machine_words_and_store_options() {
        let args = BootArgs::parse(
            b"console=ttyS0 ip=10.0.0.2/24 gateway=10.0.0.1 -- --port 7000 virtio_mmio.device=4K@0xd0000000:5",
        )
        .unwrap();
        assert_eq!(
            args.addressing,
            Addressing::Static {
                address: Ipv4Addr::new(10, 0, 0, 2),
                prefix_bits: 24,
                gateway: Some(Ipv4Addr::new(10, 0, 0, 1))
            }
        );
        assert_eq!(args.options.port, 7000);
        assert_eq!(args.virtio_mmio, ["4K@0xd0000000:5"]);
        assert_eq!(BootArgs::parse(b"").unwrap().addressing, Addressing::Dhcp);
        let static6 = BootArgs::parse(b"gateway6=fe80::1 ip6=2001:db8::2/64").unwrap().addressing6;
        let (address, gateway) = ("2001:db8::2".parse().unwrap(), Some("fe80::1".parse().unwrap()));
        assert_eq!(static6, Addressing6::Static { address, prefix_bits: 64, gateway });
        assert_eq!(BootArgs::parse(b"").unwrap().addressing6, Addressing6::Auto);
        assert_eq!(BootArgs::parse(b"ip=dhcp").unwrap().peers, Peers::Known);
        assert_eq!(BootArgs::parse(b"peers=host").unwrap().peers, Peers::Host);
        assert_eq!(BootArgs::parse(b"peers=strangers").unwrap().peers, Peers::Strangers);
        assert_eq!(BootArgs::parse(b"ip6=off").unwrap().addressing6, Addressing6::Off);
        let args = BootArgs::parse(b"time=1700000000000000 selftest=exec-heap").unwrap();
        assert_eq!((args.host_time_us, args.self_test), (Some(1_700_000_000_000_000), Some(SelfTest::ExecuteHeap)));
    }

    #[test]
    fn refuses_what_it_does_not_know() {
        for line in [
            "ip=10.0.0.2",
            "ip=10.0.0.2/33",
            "ip=x/24",
            "gateway=",
            "ip6=",
            "ip6=::1",
            "ip6=2001:db8::2/129",
            "gateway6=192.0.2.1",
            "bogus",
            "time=1.5",
            "selftest=x",
            "-- --bogus 1",
            "\"",
            "-- --port x",
            "-- --port 0",
        ] {
            assert!(BootArgs::parse(line.as_bytes()).is_err(), "{line}");
        }
    }

    #[test]
    fn quoting_is_undone_by_splitting() {
        for word in ["plain", "", "a b", "it's", "q\"\\", "tab\t", "\u{e9}"] {
            assert_eq!(split_words(quote_word(word).as_bytes()).unwrap(), [word.as_bytes()], "{word:?}");
        }
    }
}
