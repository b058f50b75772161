//! `bpf`(2). All `unsafe` of this crate is in this file.

use crate::Instruction;
use nix::{errno::Errno, libc};
use std::{
    io,
    mem::size_of,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    ptr,
};

/// A map from numbers of queues to AF_XDP sockets.
pub const MAP_TYPE_XSKMAP: u32 = 17;

/// Commands, and their arguments: those of `union bpf_attr`.
mod attr {
    pub const MAP_CREATE: i32 = 0;
    pub const MAP_UPDATE_ELEM: i32 = 2;
    pub const PROG_LOAD: i32 = 5;
    pub const PROG_TEST_RUN: i32 = 10;
    pub const LINK_CREATE: i32 = 28;

    #[repr(C)]
    pub struct MapCreate {
        pub map_type: u32,
        pub key_size: u32,
        pub value_size: u32,
        pub max_entries: u32,
    }

    #[repr(C)]
    pub struct MapUpdate {
        pub map_fd: u32,
        pub padding: u32,
        pub key: u64,
        pub value: u64,
        pub flags: u64,
    }

    #[repr(C)]
    pub struct ProgLoad {
        pub prog_type: u32,
        pub insn_cnt: u32,
        pub insns: u64,
        pub license: u64,
        pub log_level: u32,
        pub log_size: u32,
        pub log_buf: u64,
        pub kern_version: u32,
        pub prog_flags: u32,
        pub prog_name: [u8; 16],
        pub prog_ifindex: u32,
        pub expected_attach_type: u32,
    }

    #[repr(C)]
    pub struct LinkCreate {
        pub prog_fd: u32,
        pub target: u32,
        pub attach_type: u32,
        pub flags: u32,
    }

    #[repr(C)]
    pub struct TestRun {
        pub prog_fd: u32,
        pub retval: u32,
        pub data_size_in: u32,
        pub data_size_out: u32,
        pub data_in: u64,
        pub data_out: u64,
        pub repeat: u32,
        /// Written by the kernel, whatever the size of the structure that it is told.
        pub duration_ns: u32,
    }
}

/// Calls bpf(2).
///
/// # Safety
///
/// `attributes` are those of `command`, and the addresses in them are of what the command reads or writes.
unsafe fn call<T>(command: i32, attributes: &mut T) -> io::Result<RawFd> {
    let size = size_of::<T>();
    // SAFETY: the kernel reads and writes `size` bytes of `attributes`; the rest the caller promises.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, ptr::from_mut(attributes), size) };
    Ok(Errno::result(result)? as RawFd)
}

fn own(fd: io::Result<RawFd>) -> io::Result<OwnedFd> {
    // SAFETY: the call that has just returned the descriptor gave it to this process, and nothing else owns it.
    fd.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes a map of so many entries, whose keys and values have four bytes.
pub fn create_map(map_type: u32, entries: u32) -> io::Result<OwnedFd> {
    let mut attributes = attr::MapCreate { map_type, key_size: 4, value_size: 4, max_entries: entries };
    // SAFETY: these are the command's attributes, without addresses.
    own(unsafe { call(attr::MAP_CREATE, &mut attributes) })
}

/// Sets an entry of such a map.
pub fn update_map(map: BorrowedFd<'_>, key: u32, value: u32) -> io::Result<()> {
    let mut attributes = attr::MapUpdate {
        map_fd: map.as_raw_fd() as u32,
        padding: 0,
        key: ptr::from_ref(&key) as u64,
        value: ptr::from_ref(&value) as u64,
        flags: 0,
    };
    // SAFETY: these are the command's attributes, with the addresses of a key and a value of four bytes each.
    unsafe { call(attr::MAP_UPDATE_ELEM, &mut attributes) }.map(drop)
}

/// What a program is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Frames that an interface receives, each of which lies in one place.
    Xdp,
    /// The same, of which large ones lie in several places.
    XdpFrags,
    /// Connecting a socket to an IPv4 address.
    Connect4,
    /// To an IPv6 address.
    Connect6,
}

impl Kind {
    fn prog_type(self) -> u32 {
        match self {
            Kind::Xdp | Kind::XdpFrags => 6,
            Kind::Connect4 | Kind::Connect6 => 18,
        }
    }

    fn attach_type(self) -> u32 {
        match self {
            Kind::Xdp | Kind::XdpFrags => 37,
            Kind::Connect4 => 10,
            Kind::Connect6 => 11,
        }
    }

    fn flags(self) -> u32 {
        const F_XDP_HAS_FRAGS: u32 = 1 << 5;
        if self == Kind::XdpFrags { F_XDP_HAS_FRAGS } else { 0 }
    }
}

/// Loads a program.
pub fn load(kind: Kind, instructions: &[Instruction]) -> io::Result<OwnedFd> {
    let license = c"Apache-2.0";
    let mut attributes = attr::ProgLoad {
        prog_type: kind.prog_type(),
        insn_cnt: instructions.len() as u32,
        insns: instructions.as_ptr() as u64,
        license: license.as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log_buf: 0,
        kern_version: 0,
        prog_flags: kind.flags(),
        prog_name: [0; 16],
        prog_ifindex: 0,
        expected_attach_type: kind.attach_type(),
    };
    // SAFETY: these are the command's attributes, with the addresses of so many instructions and of a string.
    own(unsafe { call(attr::PROG_LOAD, &mut attributes) })
}

/// Attaches a program to an interface, by its number, or to a control group, by its descriptor, as long as the descriptor
/// that is returned is open.
pub fn attach(kind: Kind, program: BorrowedFd<'_>, target: u32, flags: u32) -> io::Result<OwnedFd> {
    let attach_type = kind.attach_type();
    let mut attributes = attr::LinkCreate { prog_fd: program.as_raw_fd() as u32, target, attach_type, flags };
    // SAFETY: these are the command's attributes, without addresses.
    own(unsafe { call(attr::LINK_CREATE, &mut attributes) })
}

/// Runs a program for frames on one, and returns its verdict.
pub fn test_run(program: BorrowedFd<'_>, frame: &[u8]) -> io::Result<u32> {
    let mut out = vec![0u8; frame.len() + 256];
    let mut attributes = attr::TestRun {
        prog_fd: program.as_raw_fd() as u32,
        retval: 0,
        data_size_in: frame.len() as u32,
        data_size_out: out.len() as u32,
        data_in: frame.as_ptr() as u64,
        data_out: out.as_mut_ptr() as u64,
        repeat: 0,
        duration_ns: 0,
    };
    // SAFETY: these are the command's attributes, with the addresses of so many bytes to read and to write.
    unsafe { call(attr::PROG_TEST_RUN, &mut attributes)? };
    Ok(attributes.retval)
}
