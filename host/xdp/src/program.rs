//! The XDP program, which runs for each frame that an interface receives: those of the store go to its socket, all others
//! on to the kernel.
//!
//! ```text
//!      r2 = frame, r3 = its end                     (only where the host uses the interface too)
//!      if it is shorter than an IPv4 header: pass
//!      if it is IPv4: r5 = destination
//!      else if it is ARP and whole: r5 = target address
//!      else: pass
//!      if r5 is not the store's address: pass
//!      return bpf_redirect_map(sockets, queue, otherwise XDP_PASS)
//! pass: return XDP_PASS
//! ```

use std::net::Ipv4Addr;

/// One instruction (Linux, `Documentation/bpf/standardization/instruction-set.rst`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    code: u8,
    /// Destination register in the lower half, source register in the upper.
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// Which frames are the store's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steering {
    /// All: the interface is its own.
    All,
    /// Those to this address, and ARP that asks for it; the host uses the interface too.
    Address(Ipv4Addr),
}

/// Return values of XDP programs.
const XDP_PASS: i32 = 2;
#[cfg(test)]
const XDP_REDIRECT: u32 = 4;

/// Number of the helper.
const BPF_REDIRECT_MAP: i32 = 51;
/// The source register of a 64-bit load that says that the value is a map's descriptor.
const PSEUDO_MAP_FD: u8 = 1;

/// Fields of `struct xdp_md`.
const MD_DATA: i16 = 0;
const MD_DATA_END: i16 = 4;
const MD_RX_QUEUE: i16 = 16;

const ETHERTYPE_AT: i16 = 12;
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_ARP: u16 = 0x0806;
const IPV4_DESTINATION_AT: i16 = 14 + 16;
const IPV4_END: i32 = 14 + 20;
const ARP_TARGET_AT: i16 = 14 + 24;
const ARP_END: i32 = 14 + 28;

/// Classes and modes of the instructions that are used here.
const LD_IMM64: u8 = 0x18;
const LDX_W: u8 = 0x61;
const LDX_H: u8 = 0x69;
const MOV64_REG: u8 = 0xbf;
const MOV64_IMM: u8 = 0xb7;
const ADD64_IMM: u8 = 0x07;
const JA: u8 = 0x05;
const JGT_REG: u8 = 0x2d;
const JEQ_IMM: u8 = 0x15;
const JNE_IMM: u8 = 0x55;
const JNE32_IMM: u8 = 0x56;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

/// Where a jump leads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Label {
    Ipv4,
    Compare,
    Pass,
}

/// A program under construction.
#[derive(Default)]
struct Assembler {
    instructions: Vec<Instruction>,
    jumps: Vec<(usize, Label)>,
    labels: Vec<(Label, usize)>,
}

impl Assembler {
    fn put(&mut self, code: u8, destination: u8, source: u8, offset: i16, immediate: i32) {
        self.instructions.push(Instruction { code, registers: source << 4 | destination, offset, immediate });
    }

    fn jump(&mut self, code: u8, destination: u8, source: u8, immediate: i32, to: Label) {
        self.jumps.push((self.instructions.len(), to));
        self.put(code, destination, source, 0, immediate);
    }

    fn label(&mut self, label: Label) {
        self.labels.push((label, self.instructions.len()));
    }

    fn finish(mut self) -> Vec<Instruction> {
        for (at, label) in self.jumps {
            let to = self.labels.iter().find(|(known, _)| *known == label).expect("each label is set").1;
            self.instructions[at].offset = (to as i64 - at as i64 - 1) as i16;
        }
        self.instructions
    }
}

/// A number of the network's as a load in this machine's byte order gives it.
fn loaded_u16(value: u16) -> i32 {
    u16::from_ne_bytes(value.to_be_bytes()).into()
}

/// The program for sockets in the map of this descriptor.
pub fn assemble(steering: Steering, map: i32) -> Vec<Instruction> {
    let mut program = Assembler::default();
    let p = &mut program;
    if let Steering::Address(address) = steering {
        p.put(LDX_W, 2, 1, MD_DATA, 0);
        p.put(LDX_W, 3, 1, MD_DATA_END, 0);
        p.put(MOV64_REG, 4, 2, 0, 0);
        p.put(ADD64_IMM, 4, 0, 0, IPV4_END);
        p.jump(JGT_REG, 4, 3, 0, Label::Pass);
        p.put(LDX_H, 5, 2, ETHERTYPE_AT, 0);
        p.jump(JEQ_IMM, 5, 0, loaded_u16(ETHERTYPE_IPV4), Label::Ipv4);
        p.jump(JNE_IMM, 5, 0, loaded_u16(ETHERTYPE_ARP), Label::Pass);
        p.put(MOV64_REG, 4, 2, 0, 0);
        p.put(ADD64_IMM, 4, 0, 0, ARP_END);
        p.jump(JGT_REG, 4, 3, 0, Label::Pass);
        p.put(LDX_W, 5, 2, ARP_TARGET_AT, 0);
        p.jump(JA, 0, 0, 0, Label::Compare);
        p.label(Label::Ipv4);
        p.put(LDX_W, 5, 2, IPV4_DESTINATION_AT, 0);
        p.label(Label::Compare);
        p.jump(JNE32_IMM, 5, 0, i32::from_ne_bytes(address.octets()), Label::Pass);
    }
    p.put(LDX_W, 2, 1, MD_RX_QUEUE, 0);
    // Two instructions' places.
    p.put(LD_IMM64, 1, PSEUDO_MAP_FD, 0, map);
    p.put(0, 0, 0, 0, 0);
    p.put(MOV64_IMM, 3, 0, 0, XDP_PASS);
    p.put(CALL, 0, 0, 0, BPF_REDIRECT_MAP);
    p.put(EXIT, 0, 0, 0, 0);
    p.label(Label::Pass);
    p.put(MOV64_IMM, 0, 0, 0, XDP_PASS);
    p.put(EXIT, 0, 0, 0, 0);
    let mut instructions = program.finish();
    if steering == Steering::All {
        // Nothing leads there, and the kernel takes no program with such a part.
        instructions.truncate(instructions.len() - 2);
    }
    instructions
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FrameMemory, Socket, sys};
    use kayvee_link::{Namespace, VethPair};
    use std::os::fd::{AsFd, AsRawFd};

    const OWN: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 7);

    fn frame(ethertype: u16, len: usize, address_at: usize, address: Ipv4Addr) -> Vec<u8> {
        let mut frame = vec![0; len];
        frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
        if let Some(place) = frame.get_mut(address_at..address_at + 4) {
            place.copy_from_slice(&address.octets());
        }
        frame
    }

    /// The kernel's own verdicts.
    #[test]
    #[ignore = "loads a program into the kernel: needs root"]
    fn only_the_stores_frames_are_taken_from_the_host() {
        Namespace::create().unwrap().enter(judge).unwrap();
    }

    fn judge() -> anyhow::Result<()> {
        // A redirect needs a socket at its end.
        let pair = VethPair::create().unwrap();
        let frames = FrameMemory::allocate(1 << 20).unwrap();
        let open = || Socket::open(VethPair::INNER_NAME, Steering::All, &frames);
        let socket = pair.namespace.enter(open).unwrap();
        let map = sys::create_socket_map(1).unwrap();
        sys::enter_socket(map.as_fd(), 0, socket.as_fd()).unwrap();
        let load = |steering| sys::load_program(&assemble(steering, map.as_raw_fd())).unwrap();
        let (shared, all) = (load(Steering::Address(OWN)), load(Steering::All));
        let other = Ipv4Addr::new(192, 0, 2, 8);
        let (ip, arp) = (30, 38);
        let cases = [
            (frame(ETHERTYPE_IPV4, 60, ip, OWN), XDP_REDIRECT, "for the store"),
            (frame(ETHERTYPE_IPV4, 1514, ip, OWN), XDP_REDIRECT, "a long one"),
            (frame(ETHERTYPE_IPV4, 34, ip, OWN), XDP_REDIRECT, "the shortest"),
            (frame(ETHERTYPE_IPV4, 60, ip, other), XDP_PASS as u32, "for the host"),
            (frame(ETHERTYPE_IPV4, 60, 26, OWN), XDP_PASS as u32, "from the store's address"),
            (frame(ETHERTYPE_ARP, 42, arp, OWN), XDP_REDIRECT, "asks for the store"),
            (frame(ETHERTYPE_ARP, 60, arp, OWN), XDP_REDIRECT, "asks for the store, padded"),
            (frame(ETHERTYPE_ARP, 60, arp, other), XDP_PASS as u32, "asks for the host"),
            (frame(ETHERTYPE_ARP, 41, arp, OWN), XDP_PASS as u32, "a cut one"),
            (frame(0x86dd, 60, ip, OWN), XDP_PASS as u32, "IPv6"),
            (frame(0x8100, 60, ip, OWN), XDP_PASS as u32, "a VLAN's"),
            (frame(ETHERTYPE_IPV4, 33, ip, other), XDP_PASS as u32, "too short for a header"),
        ];
        for (frame, verdict, what) in cases {
            assert_eq!(sys::test_run(shared.as_fd(), &frame).unwrap(), verdict, "{what}");
            assert_eq!(sys::test_run(all.as_fd(), &frame).unwrap(), XDP_REDIRECT, "{what}");
        }
        Ok(())
    }
}
