//! The station's own addresses (RFC 4862 §5.4 and §5.5).

use super::*;

/// RFC 4862 §5.4.2 and §5.4.3: what nobody objects to in a second is the station's, and not before.
#[test]
fn addresses_are_asked_for_before_they_are_used() {
    let mut link = Link::new(FIXED);
    link.turn();
    let sent = link.sent();
    assert_eq!(sent.len(), 2, "one question for each: {sent:?}");
    for (question, target_addr) in sent.iter().zip([LINK_LOCAL, OWN]) {
        assert_eq!((question.ip.src_addr, question.ip.dst_addr), (Ipv6Addr::UNSPECIFIED, solicited_node(target_addr)));
        assert_eq!((question.ip.hop_limit, question.to.0[..3].to_vec()), (255, vec![0x33, 0x33, 0xff]));
        let message = NdiscRepr::NeighborSolicit { target_addr, lladdr: None };
        assert_eq!(question.icmp(), Icmpv6Repr::Ndisc(message));
    }
    assert!(link.answers(solicitation(PEER, OWN)).is_empty());
    assert!(link.answers(packet(PEER, OWN, IpProtocol::Tcp, 64, &syn())).is_empty());
    assert_eq!((link.acquired(), link.stack.next_deadline_ns().is_some()), (vec![], true));
    link.pass(1);
    assert_eq!(link.acquired(), [LINK_LOCAL, OWN]);
    assert!(link.sent().iter().all(|sent| sent.ip.dst_addr == ALL_NODES), "RFC 4861 §7.2.6");
    link.answers(solicitation(PEER, OWN));
    assert_eq!(link.answers(packet(PEER, OWN, IpProtocol::Tcp, 64, &syn()))[0].tcp().control, TcpControl::Syn);
}

/// RFC 4862 §5.1.
#[test]
fn addresses_that_nobody_else_can_have_are_used_at_once() {
    let mut link = Link::new(FIXED);
    link.stack.ask_nobody();
    // One a turn.
    link.turn();
    link.turn();
    assert!(link.sent().iter().all(|sent| !sent.ip.src_addr.is_unspecified()), "nobody is asked");
    assert_eq!(link.answers(solicitation(PEER, OWN)).len(), 1);
}

/// RFC 4862 §5.4.3, §5.4.4 and §5.4.5.
#[test]
fn an_address_that_somebody_has_or_wants_as_well_is_given_up() {
    for objection in [
        advertisement(OWN, ALL_NODES, NdiscNeighborFlags::OVERRIDE, PEER_MAC),
        solicitation(Ipv6Addr::UNSPECIFIED, OWN),
    ] {
        let mut link = Link::new(FIXED);
        link.turn();
        link.answers(objection);
        link.pass(2);
        assert_eq!(link.acquired(), [LINK_LOCAL]);
    }
    // With the address of its link it does without IPv6.
    let mut link = Link::new(Addressing6::Auto);
    link.turn();
    link.answers(advertisement(LINK_LOCAL, ALL_NODES, NdiscNeighborFlags::OVERRIDE, PEER_MAC));
    link.pass(2);
    link.answers(announcement(255, 1800, 3600, None));
    link.pass(2);
    assert!(link.acquired().is_empty());
    // What is assigned is defended, and kept.
    let mut link = Link::ready();
    let answer = &link.answers(solicitation(Ipv6Addr::UNSPECIFIED, OWN))[0];
    assert_eq!((answer.ip.dst_addr, answer.ip.hop_limit), (ALL_NODES, 255));
    link.answers(advertisement(OWN, ALL_NODES, NdiscNeighborFlags::OVERRIDE, PEER_MAC));
    assert_eq!(link.answers(packet(PEER, OWN, IpProtocol::Tcp, 64, &syn())).len(), 1);
}

/// Without IPv6 nothing is sent, and nothing is answered.
#[test]
fn a_station_without_ipv6_is_silent() {
    let mut link = Link::new(Addressing6::Off);
    link.turn();
    link.pass(2);
    assert!(link.sent().is_empty());
    for frame in [solicitation(PEER, LINK_LOCAL), announcement(255, 1800, 3600, None)] {
        assert!(link.answers(frame).is_empty());
    }
}
