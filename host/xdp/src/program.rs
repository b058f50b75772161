//! The XDP program, which runs for each frame that an interface receives: those of the store go to its socket, all others
//! on to the kernel.
//!
//! ```text
//!      r2 = frame, r3 = its end                     (only where the host uses the interface too)
//!      if it is shorter than an IPv4 header: pass
//!      if it is IPv4: r5 = destination
//!      else if it is ARP and whole: r5 = target address
//!      else if it is IPv6: take what is for the store's address, and a question where that is; else pass
//!      else: pass
//!      if r5 is not the store's address: pass
//! take: return bpf_redirect_map(sockets, queue, otherwise XDP_PASS)
//! pass: return XDP_PASS
//! ```

use kayvee_bpf::{Assembler, Instruction, loaded_u16, loaded_words, op::*};
use std::net::{Ipv4Addr, Ipv6Addr};

/// Which frames are the store's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steering {
    /// All: the interface is its own.
    All,
    /// Those to these addresses, and what asks for them, by ARP or neighbor discovery; the host uses the interface too.
    Addresses(Ipv4Addr, Option<Ipv6Addr>),
}

/// Return values of XDP programs.
const XDP_PASS: i32 = 2;
#[cfg(test)]
const XDP_REDIRECT: u32 = 4;

/// Number of the helper.
const BPF_REDIRECT_MAP: i32 = 51;
/// Fields of `struct xdp_md`.
const MD_DATA: i16 = 0;
const MD_DATA_END: i16 = 4;
const MD_RX_QUEUE: i16 = 16;

const ETHERTYPE_AT: i16 = 12;
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const IPV4_DESTINATION_AT: i16 = 14 + 16;
const IPV4_END: i32 = 14 + 20;
const ARP_TARGET_AT: i16 = 14 + 24;
const ARP_END: i32 = 14 + 28;
const IPV6_NEXT_HEADER_AT: i16 = 14 + 6;
const IPV6_DESTINATION_AT: i16 = 14 + 24;
const IPV6_END: i32 = 14 + 40;
const ICMPV6: i32 = 58;
/// A neighbor solicitation's type, what it asks for, and its end (RFC 4861 §4.3).
const ICMPV6_TYPE_AT: i16 = 14 + 40;
const SOLICITATION: i32 = 135;
const SOLICITATION_TARGET_AT: i16 = 14 + 40 + 8;
const SOLICITATION_END: i32 = 14 + 40 + 24;

/// Where a jump leads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Label {
    Ipv4,
    Ipv6,
    Solicitation,
    Compare,
    Take,
    Pass,
}

/// Goes on where the frame in r2 has so many bytes, and elsewhere where it has not.
fn need_bytes(p: &mut Assembler<Label>, end: i32, otherwise: Label) {
    p.put(MOV64_REG, 4, 2, 0, 0);
    p.put(ADD64_IMM, 4, 0, 0, end);
    p.jump(JGT_REG, 4, 3, 0, otherwise);
}

/// Goes on where this address stands at that place of the frame in r2, and elsewhere where it does not.
fn need_address(p: &mut Assembler<Label>, at: i16, address: Ipv6Addr, otherwise: Label) {
    for (word, at) in loaded_words(&address.octets()).zip((at..).step_by(4)) {
        p.put(LDX_W, 5, 2, at, 0);
        p.jump(JNE32_IMM, 5, 0, word, otherwise);
    }
}

/// The program for sockets in the map of this descriptor.
pub fn assemble(steering: Steering, map: i32) -> Vec<Instruction> {
    let mut program = Assembler::default();
    let p = &mut program;
    if let Steering::Addresses(address, ipv6) = steering {
        p.put(LDX_W, 2, 1, MD_DATA, 0);
        p.put(LDX_W, 3, 1, MD_DATA_END, 0);
        need_bytes(p, IPV4_END, Label::Pass);
        p.put(LDX_H, 5, 2, ETHERTYPE_AT, 0);
        p.jump(JEQ_IMM, 5, 0, loaded_u16(ETHERTYPE_IPV4), Label::Ipv4);
        if ipv6.is_some() {
            p.jump(JEQ_IMM, 5, 0, loaded_u16(ETHERTYPE_IPV6), Label::Ipv6);
        }
        p.jump(JNE_IMM, 5, 0, loaded_u16(ETHERTYPE_ARP), Label::Pass);
        need_bytes(p, ARP_END, Label::Pass);
        p.put(LDX_W, 5, 2, ARP_TARGET_AT, 0);
        p.jump(JA, 0, 0, 0, Label::Compare);
        if let Some(ipv6) = ipv6 {
            p.label(Label::Ipv6);
            need_bytes(p, IPV6_END, Label::Pass);
            need_address(p, IPV6_DESTINATION_AT, ipv6, Label::Solicitation);
            p.jump(JA, 0, 0, 0, Label::Take);
            p.label(Label::Solicitation);
            need_bytes(p, SOLICITATION_END, Label::Pass);
            p.put(LDX_B, 5, 2, IPV6_NEXT_HEADER_AT, 0);
            p.jump(JNE_IMM, 5, 0, ICMPV6, Label::Pass);
            p.put(LDX_B, 5, 2, ICMPV6_TYPE_AT, 0);
            p.jump(JNE_IMM, 5, 0, SOLICITATION, Label::Pass);
            need_address(p, SOLICITATION_TARGET_AT, ipv6, Label::Pass);
            p.jump(JA, 0, 0, 0, Label::Take);
        }
        p.label(Label::Ipv4);
        p.put(LDX_W, 5, 2, IPV4_DESTINATION_AT, 0);
        p.label(Label::Compare);
        p.jump(JNE32_IMM, 5, 0, i32::from_ne_bytes(address.octets()), Label::Pass);
    }
    p.label(Label::Take);
    p.put(LDX_W, 2, 1, MD_RX_QUEUE, 0);
    p.load_map(1, map);
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
    use crate::{FrameMemory, Socket};
    use kayvee_bpf::{Kind, MAP_TYPE_XSKMAP, test_run};
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
        let pair = VethPair::create(crate::link_mtu()).unwrap();
        let frames = FrameMemory::allocate(1 << 20).unwrap();
        let open = || Socket::open(VethPair::INNER_NAME, Steering::All, &frames);
        let socket = pair.namespace.enter(open).unwrap();
        let map = kayvee_bpf::create_map(MAP_TYPE_XSKMAP, 1).unwrap();
        kayvee_bpf::update_map(map.as_fd(), 0, socket.as_fd().as_raw_fd() as u32).unwrap();
        let load = |steering| kayvee_bpf::load(Kind::Xdp, &assemble(steering, map.as_raw_fd())).unwrap();
        let own6 = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 7);
        let other6 = Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, 7);
        let shared = load(Steering::Addresses(OWN, Some(own6)));
        let (shared4, all) = (load(Steering::Addresses(OWN, None)), load(Steering::All));
        let ipv6 = |len: usize, to: Ipv6Addr, kind: i32, target: Ipv6Addr| {
            let mut frame = frame(ETHERTYPE_IPV6, 78, 0, Ipv4Addr::UNSPECIFIED);
            (frame[20], frame[54]) = (ICMPV6 as u8, kind as u8);
            frame[38..54].copy_from_slice(&to.octets());
            frame[62..78].copy_from_slice(&target.octets());
            frame.resize(len, 0);
            frame
        };
        let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 7);
        let neither = Ipv6Addr::UNSPECIFIED;
        for (frame, verdict, what) in [
            (ipv6(78, own6, 0, neither), XDP_REDIRECT, "for the store"),
            (ipv6(54, own6, 0, neither), XDP_REDIRECT, "for the store, without more than a header"),
            (ipv6(53, own6, 0, neither), XDP_PASS as u32, "too short for a header"),
            (ipv6(78, other6, 0, own6), XDP_PASS as u32, "for the host"),
            (ipv6(86, group, SOLICITATION, own6), XDP_REDIRECT, "asks for the store"),
            (ipv6(78, group, SOLICITATION, own6), XDP_REDIRECT, "asks for the store, as it has no address"),
            (ipv6(77, group, SOLICITATION, own6), XDP_PASS as u32, "a question cut off"),
            (ipv6(86, group, SOLICITATION, other6), XDP_PASS as u32, "asks for the host"),
            (ipv6(86, group, 136, own6), XDP_PASS as u32, "is no question"),
        ] {
            assert_eq!(test_run(shared.as_fd(), &frame).unwrap(), verdict, "{what}");
            assert_eq!(test_run(shared4.as_fd(), &frame).unwrap(), XDP_PASS as u32, "{what}");
        }
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
            assert_eq!(test_run(shared.as_fd(), &frame).unwrap(), verdict, "{what}");
            assert_eq!(test_run(all.as_fd(), &frame).unwrap(), XDP_REDIRECT, "{what}");
        }
        Ok(())
    }
}
