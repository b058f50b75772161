//! Neighbors: finding them and being found (RFC 4861 §7.2), and what waits for that.

use super::*;

/// RFC 4861 §6.1.2, §7.1 and §11.2: what comes from beyond a router, or makes no sense, is not believed.
#[test]
fn what_no_neighbor_says_is_not_believed() {
    let mut link = Link::new(Addressing6::Auto);
    link.turn();
    link.pass(1);
    link.acquired();
    link.answers(announcement(254, 1800, 3600, None));
    let mut from_elsewhere = announcement(255, 1800, 3600, None);
    from_elsewhere[22..38].copy_from_slice(&PEER.octets());
    link.answers(from_elsewhere);
    let mut without_length = announcement(255, 1800, 3600, None);
    without_length[14 + 40 + 16 + 1] = 0;
    link.answers(without_length);
    link.pass(2);
    assert!(link.acquired().is_empty());

    let mut link = Link::ready();
    let mut far = solicitation(PEER, OWN);
    far[21] = 254;
    assert!(link.answers(far).is_empty());
    assert!(link.answers(solicitation(PEER, PEER)).is_empty(), "another station's");
    let mut to_one = solicitation(Ipv6Addr::UNSPECIFIED, OWN);
    to_one[38..54].copy_from_slice(&OWN.octets());
    assert!(link.answers(to_one).is_empty(), "RFC 4861 §7.1.1");
}

/// RFC 4861 §7.2.3, §7.2.4 and §7.2.5.
#[test]
fn neighbors_find_the_station_and_are_found() {
    let mut link = Link::ready();
    let answer = &link.answers(solicitation(PEER, OWN))[0];
    let flags = NdiscNeighborFlags::SOLICITED | NdiscNeighborFlags::OVERRIDE;
    let message = NdiscRepr::NeighborAdvert { flags, target_addr: OWN, lladdr: Some(MAC.into()) };
    assert_eq!((answer.icmp(), answer.to), (Icmpv6Repr::Ndisc(message), PEER_MAC));
    assert_eq!((answer.ip.src_addr, answer.ip.dst_addr, answer.ip.hop_limit), (OWN, PEER, 255));

    // It asks itself, for who has not spoken yet; who was not asked is not listened to.
    let other = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x77);
    let flags = NdiscNeighborFlags::SOLICITED;
    link.answers(advertisement(other, OWN, flags, PEER_MAC));
    link.stack.connect(SocketAddr::new(other.into(), 1), link.now_ns).unwrap();
    link.turn();
    let question = &link.sent()[0];
    let message = NdiscRepr::NeighborSolicit { target_addr: other, lladdr: Some(MAC.into()) };
    assert_eq!((question.icmp(), question.ip.dst_addr), (Icmpv6Repr::Ndisc(message), solicited_node(other)));
    assert!(link.answers(advertisement(other, ALL_NODES, flags, PEER_MAC)).is_empty(), "§7.1.2: solicited by nobody");
    let sent = link.answers(advertisement(other, OWN, flags, PEER_MAC));
    assert_eq!((sent[0].to, sent[0].tcp().control), (PEER_MAC, TcpControl::Syn));
    // Another Ethernet address counts only if it is meant to.
    let mover = EthernetAddress([2, 0, 0, 0, 0, 0x55]);
    for (flags, hardware) in [(flags, PEER_MAC), (flags | NdiscNeighborFlags::OVERRIDE, mover)] {
        link.answers(advertisement(other, OWN, flags, mover));
        link.pass(1);
        let sent = link.sent();
        let again = sent.iter().find(|sent| sent.ip.next_header == IpProtocol::Tcp);
        assert!(again.is_none_or(|again| again.to == hardware), "{again:?}");
    }
}

/// Where questions and segments have gone since the last call, the latter as Ethernet addresses.
fn questions_and_hops(link: &mut Link) -> (usize, Vec<EthernetAddress>) {
    let (segments, others): (Vec<_>, Vec<_>) =
        link.sent().into_iter().partition(|sent| sent.ip.next_header == IpProtocol::Tcp);
    (others.len(), segments.iter().map(|sent| sent.to).collect())
}

/// RFC 4861 §7.2.5 and §7.3.3: a neighbor that has moved behind somebody who speaks for it, and so without OVERRIDE, is found
/// there once it has not answered where it was.
#[test]
fn a_neighbor_is_found_behind_a_proxy() {
    let proxy = EthernetAddress([2, 0, 0, 0, 0, 0x55]);
    let mut link = Link::ready();
    let (connection, _) = open(&mut link, PEER);
    assert_eq!(link.stack.send(connection, b"hello"), 5);
    link.turn();
    let mut last = None;
    for _ in 0..200 {
        link.now_ns += SECOND_NS / 10;
        link.turn();
        let (questions, hops) = questions_and_hops(&mut link);
        last = hops.last().copied().or(last);
        if questions > 0 {
            link.answers(advertisement(PEER, OWN, NdiscNeighborFlags::SOLICITED, proxy));
        }
    }
    assert_eq!(last, Some(proxy));
}

/// An idle connection whose neighbor has moved in silence finds it before it is given up.
#[test]
fn a_neighbor_of_an_idle_connection_is_asked_for() {
    let mover = EthernetAddress([2, 0, 0, 0, 0, 0x55]);
    let mut link = Link::ready();
    link.stack.set_keepalive(100);
    open(&mut link, PEER);
    link.sent();
    (0..101).for_each(|_| link.pass(1));
    assert_eq!(questions_and_hops(&mut link), (1, vec![PEER_MAC]));
    let flags = NdiscNeighborFlags::SOLICITED | NdiscNeighborFlags::OVERRIDE;
    link.answers(advertisement(PEER, OWN, flags, mover));
    (0..101).for_each(|_| link.pass(1));
    assert_eq!(questions_and_hops(&mut link).1, [mover]);
}

/// A made-up station on the link.
fn stranger(number: u16) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 1, number)
}

/// A stranger opens and resets connections from addresses that no neighbor has: what waits for those neighbors ends with
/// its connection.
#[test]
fn connections_that_end_wait_for_no_neighbor() {
    let mut link = Link::ready();
    for number in 0..1000 {
        let from = stranger(number);
        link.answers(packet(from, OWN, IpProtocol::Tcp, 64, &tcp(from, TcpControl::Syn, None, &[])));
        assert_eq!(link.stack.waiting(), 1);
        link.answers(packet(from, OWN, IpProtocol::Tcp, 64, &tcp(from, TcpControl::Rst, None, &[])));
        assert_eq!((link.stack.connections(), link.stack.waiting()), (0, 0), "{number}");
    }
}

/// A connection that the application has, and what it has sent.
fn open(link: &mut Link, from: Ipv6Addr) -> (ConnectionId, Option<TcpSeqNumber>) {
    link.answers(solicitation(from, OWN));
    let answer = link.answers(packet(from, OWN, IpProtocol::Tcp, 64, &tcp(from, TcpControl::Syn, None, &[])));
    let ack = Some(TcpSeqNumber(answer[0].tcp().seq_number.0.wrapping_add(1)));
    link.answers(packet(from, OWN, IpProtocol::Tcp, 64, &tcp(from, TcpControl::None, ack, &[])));
    let accepted = link.events().into_iter().find_map(|event| match event {
        Event::Accepted { connection, .. } => Some(connection),
        _ => None,
    });
    (accepted.unwrap(), ack)
}

/// Strangers open connections faster than anything is sent, and each displaces the one before.
#[test]
fn connections_that_are_displaced_are_in_no_list() {
    let mut link = Link::ready();
    for number in 0..7 {
        open(&mut link, stranger(number));
    }
    for number in 7..1000 {
        let from = stranger(number);
        let syn = tcp(from, TcpControl::Syn, None, &[]);
        link.card.0.0.push_back(packet(from, OWN, IpProtocol::Tcp, 64, &syn));
        link.stack.poll(&mut link.card, link.now_ns);
        assert_eq!((link.stack.connections(), link.stack.listed()), (8, 1), "{number}");
    }
}

/// The same for those that wait for memory, of which another one has all.
#[test]
fn connections_that_end_wait_for_no_memory() {
    let mut link = Link::with_buffers(FIXED, 2 * crate::pool::BLOCK_BYTES);
    link.turn();
    link.pass(1);
    link.sent();
    link.events();
    let (hog, _) = open(&mut link, PEER);
    link.stack.send(hog, &[0; 10_000]);
    link.turn();
    for number in 0..100 {
        let from = stranger(number);
        let (connection, ack) = open(&mut link, from);
        assert_eq!(link.stack.send(connection, b"x"), 0);
        link.turn();
        assert_eq!(link.stack.waiting(), 2);
        link.answers(packet(from, OWN, IpProtocol::Tcp, 64, &tcp(from, TcpControl::Rst, ack, &[])));
        assert_eq!(link.events(), [Event::Closed(connection)]);
        link.turn();
        assert_eq!((link.stack.connections(), link.stack.waiting()), (1, 1), "{number}");
    }
}

/// Stations that only say that they are there, however many, displace none that is spoken with or looked for.
#[test]
fn a_flood_of_solicitations_displaces_no_neighbor() {
    let mut link = Link::ready();
    for number in 0..2000 {
        assert_eq!(link.answers(solicitation(stranger(number), OWN)).len(), 1, "it is answered");
    }
    assert_eq!(link.answers(packet(PEER, OWN, IpProtocol::Tcp, 64, &syn()))[0].tcp().control, TcpControl::Syn);
    let other = stranger(5000);
    link.answers(packet(other, OWN, IpProtocol::Tcp, 64, &tcp(other, TcpControl::Syn, None, &[])));
    link.answers(solicitation(stranger(5001), OWN));
    let flags = NdiscNeighborFlags::SOLICITED | NdiscNeighborFlags::OVERRIDE;
    assert_eq!(link.answers(advertisement(other, OWN, flags, PEER_MAC)).len(), 1, "it was looked for");
}
