//! Routers: what they announce, and the way through them (RFC 4861 §6.3).

use super::*;

/// RFC 4861 §6.3.7 and RFC 4862 §5.5.3.
#[test]
fn routers_say_what_the_addresses_are() {
    let mut link = Link::new(Addressing6::Auto);
    link.turn();
    let is_question = |sent: &&Sent| matches!(sent.icmp(), Icmpv6Repr::Ndisc(NdiscRepr::RouterSolicit { .. }));
    let sent = link.sent();
    let question = sent.iter().find(is_question).unwrap();
    assert_eq!((question.ip.src_addr, question.ip.dst_addr), (Ipv6Addr::UNSPECIFIED, ALL_ROUTERS));
    (0..30).for_each(|_| link.pass(1));
    let sent = link.sent();
    let asked: Vec<_> = sent.iter().filter(is_question).map(|question| question.ip.src_addr).collect();
    assert_eq!(asked, [LINK_LOCAL; 2], "three times in all");
    link.answers(announcement(255, 1800, 3 * 3600, None));
    link.pass(1);
    let address: Ipv6Addr = "2001:db8:0:7:0:ff:fe00:1".parse().unwrap();
    assert_eq!(link.acquired(), [LINK_LOCAL, address], "RFC 4291, appendix A");
    // RFC 4862 §5.5.3 (e): two hours are left at least, whatever one announcement says.
    link.answers(announcement(255, 1800, 1, None));
    link.pass(7100);
    assert_eq!(link.events(), []);
    link.pass(200);
    assert_eq!(link.events(), [Event::Address6Lost(address)]);
}

/// A connection lives as long as its address, whatever becomes of its router and of the prefix on the link (RFC 4862 §5.5.4,
/// RFC 4861 §6.3.5), and its neighbor may move.
#[test]
fn connections_outlive_routers_and_prefixes_but_not_addresses() {
    let address: Ipv6Addr = "2001:db8:0:7:0:ff:fe00:1".parse().unwrap();
    let peer: Ipv6Addr = "2001:db8:0:7::9".parse().unwrap();
    let mover = EthernetAddress([2, 0, 0, 0, 0, 0x55]);
    let mut link = Link::new(Addressing6::Auto);
    link.turn();
    link.answers(announcement(255, 1800, 3600, None));
    link.pass(1);
    link.answers(solicitation(peer, address));
    link.events();
    let segment = |control, ack| packet(peer, address, IpProtocol::Tcp, 64, &tcp_to(address, peer, control, ack, &[]));
    let synack = link.answers(segment(TcpControl::Syn, None));
    let ack = synack[0].tcp().seq_number + 1;
    link.answers(segment(TcpControl::None, Some(ack)));
    let [Event::Accepted { connection, .. }] = link.events()[..] else { panic!("{synack:?}") };
    // A neighbor that has moved says so.
    link.answers(advertisement(peer, ALL_NODES, NdiscNeighborFlags::OVERRIDE, mover));
    assert_eq!(link.stack.send(connection, b"moved"), 5);
    link.turn();
    assert_eq!(link.sent()[0].to, mover);
    link.answers(segment(TcpControl::None, Some(ack + 5)));
    // The router goes, and says that nothing is on the link and that the address is over.
    link.answers(announcement(255, 0, 0, None));
    link.pass(3600 - 10);
    assert_eq!(link.events(), [], "an address is not taken by one announcement");
    link.pass(20);
    assert_eq!(link.events(), [Event::Address6Lost(address), Event::Closed(connection)]);
    link.turn();
    assert_eq!((link.stack.connections(), link.stack.buffer_bytes()), (0, 0));
    // It comes back with the router.
    link.answers(announcement(255, 1800, 3600, None));
    link.pass(1);
    assert_eq!(link.acquired(), [address]);
}

/// RFC 4861 §5.2 and RFC 5942: who is not on the link is reached by a router, or not at all.
#[test]
fn the_way_out_leads_through_a_router() {
    let far: Ipv6Addr = "2001:db8:1::1".parse().unwrap();
    for gateway in [None, Some(ROUTER)] {
        let mut link = Link::new(Addressing6::Static { address: OWN, prefix_bits: 64, gateway });
        link.turn();
        link.pass(1);
        link.sent();
        link.stack.connect(SocketAddr::new(far.into(), 1), link.now_ns).unwrap();
        link.turn();
        let asked: Vec<_> = link.sent().iter().map(|question| question.ip.dst_addr).collect();
        assert_eq!(asked, gateway.map(solicited_node).into_iter().collect::<Vec<_>>());
    }
}

/// RFC 4861 §6.3.5 and §6.3.6: where a router is silent or withdraws itself, there is another one.
#[test]
fn another_router_takes_the_place_of_one_that_is_gone() {
    const OTHER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0x98);
    const OTHER_MAC: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 0x98]);
    let far = SocketAddr::new("2001:db8:1::1".parse().unwrap(), 1);
    let first = announcement(255, 1800, 3600, None);
    let other = |lifetime_s| announcement_by(OTHER, OTHER_MAC, lifetime_s, (8, 3600), None);
    let mut link = Link::new(Addressing6::Auto);
    link.turn();
    for frame in [&first, &other(1800)] {
        link.answers(frame.clone());
    }
    link.pass(1);
    link.sent();
    // To whom the next of a connection's segments goes, within so many seconds.
    let hop = |link: &mut Link| {
        let is_tcp = |sent: &&Sent| sent.ip.next_header == IpProtocol::Tcp;
        (0..20).find_map(|_| {
            link.pass(1);
            link.sent().iter().find(is_tcp).map(|sent| sent.to)
        })
    };
    link.stack.connect(far, link.now_ns).unwrap();
    let hops: Vec<_> = (0..4).filter_map(|_| hop(&mut link)).collect();
    assert_eq!(hops, [PEER_MAC, PEER_MAC, PEER_MAC, OTHER_MAC], "the first router has not answered");
    // It has only been slow.
    link.answers(first);
    link.stack.connect(far, link.now_ns).unwrap();
    link.turn();
    assert_eq!(link.sent().last().map(|sent| sent.to), Some(PEER_MAC));
    // One that says that it is a router no more is none, at once.
    let connection = link.stack.connect(far, link.now_ns).unwrap();
    link.turn();
    link.sent();
    link.answers(announcement(255, 0, 3600, None));
    link.stack.abort(connection);
    link.stack.connect(far, link.now_ns).unwrap();
    link.turn();
    assert!(link.sent().iter().all(|sent| sent.to == OTHER_MAC));
    link.answers(other(0));
    link.stack.connect(far, link.now_ns).unwrap();
    link.turn();
    assert!(link.sent().is_empty(), "there is no way out");
}

/// What one router makes up takes no room from another, and all of them have no more than there is.
#[test]
fn what_routers_announce_is_bounded() {
    let router = |number: u16| Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, number);
    let mut link = Link::new(Addressing6::Auto);
    link.turn();
    for subnet in 100..200 {
        link.answers(announcement_by(router(1), PEER_MAC, 9000, (subnet, 3600), None));
    }
    link.answers(announcement(255, 1800, 7200, None));
    link.pass(1);
    let acquired = link.acquired();
    let address: Ipv6Addr = "2001:db8:0:7:0:ff:fe00:1".parse().unwrap();
    assert!(acquired.len() == 1 + MAX_OF_ROUTER + 1 && acquired.contains(&address), "{acquired:?}");
    // Nor has the other's prefix become its own, to end or to be forgotten.
    link.answers(announcement_by(router(1), PEER_MAC, 9000, (7, 7200), None));
    assert_eq!(link.stack.ipv6().prefixes.iter().filter(|prefix| prefix.router == Some(ROUTER)).count(), 1);
    // What it has announced counts for so long, and its place is another's then.
    link.answers(announcement_by(router(1), PEER_MAC, 9000, (300, 3600), None));
    link.pass(1);
    assert!(link.acquired().is_empty());
    link.pass(3600);
    link.answers(announcement_by(router(1), PEER_MAC, 9000, (300, 3600), None));
    link.pass(1);
    assert_eq!(link.acquired().len(), 1);
    for number in 2..100 {
        for subnet in 0..10 {
            link.answers(announcement_by(router(number), PEER_MAC, 9000, (1000 + 10 * number + subnet, 3600), None));
        }
    }
    link.pass(1);
    let ipv6 = &link.stack.ipv6();
    assert_eq!((ipv6.routers.len(), ipv6.prefixes.len(), ipv6.addresses.0.len()), (MAX_ROUTERS, 9, 1 + 9));
}
