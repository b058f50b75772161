//! Packets that are answered, refused or passed over, and how large they are.

use super::*;

/// RFC 4443 §4.2.
#[test]
fn echo_requests_are_answered() {
    let mut link = Link::ready();
    let request = Icmpv6Repr::EchoRequest { ident: 7, seq_no: 9, data: b"odd" };
    let answer = &link.answers(icmp(PEER, OWN, 64, request))[0];
    assert_eq!(answer.icmp(), Icmpv6Repr::EchoReply { ident: 7, seq_no: 9, data: b"odd" });
    assert_eq!((answer.ip.src_addr, answer.ip.dst_addr, answer.to), (OWN, PEER, PEER_MAC));
    let mut damaged = icmp(PEER, OWN, 64, request);
    *damaged.last_mut().unwrap() ^= 1;
    assert!(link.answers(damaged).is_empty());
    assert!(link.answers(icmp(PEER, ALL_NODES, 64, request)).is_empty(), "a group answers nobody");
    assert!(link.answers(icmp(PEER, PEER, 64, request)).is_empty(), "another station's");
    // RFC 4443 §2.4 (f).
    let answered = (0..5000).filter(|_| !link.answers(icmp(PEER, OWN, 64, request)).is_empty()).count();
    assert!(answered < 1000, "{answered}");
}

/// RFC 768, RFC 4443 §3.1 and §2.4 (c).
#[test]
fn datagrams_are_answered_or_refused() {
    let mut link = Link::ready();
    let datagram = |dst_port: u16, data: &[u8]| datagram_of(PEER, OWN, dst_port, data);
    let echo = &link.answers(packet(PEER, OWN, IpProtocol::Udp, 64, &datagram(7, b"hello")))[0];
    let udp = UdpPacket::new_checked(&echo.payload[..]).unwrap();
    assert!(udp.verify_checksum(&OWN.into(), &PEER.into()));
    assert_eq!((udp.payload(), udp.dst_port()), (&b"hello"[..], 5000));
    assert_eq!(link.answers(packet(PEER, OWN, IpProtocol::Udp, 64, &datagram(7, &[1; 1452]))).len(), 1);
    let mut without_checksum = datagram(7, b"hello");
    without_checksum[6..8].fill(0);
    assert!(link.answers(packet(PEER, OWN, IpProtocol::Udp, 64, &without_checksum)).is_empty(), "RFC 8200 §8.1");
    let refusal = &link.answers(packet(PEER, OWN, IpProtocol::Udp, 64, &datagram(9, &[1; 1400])))[0];
    assert!(refusal.payload.len() + 40 <= 1280);
    let Icmpv6Repr::DstUnreachable { reason, header, .. } = refusal.icmp() else { panic!("{refusal:?}") };
    assert_eq!((reason, header.src_addr), (Icmpv6DstUnreachable::PortUnreachable, PEER));
    // RFC 4861 §6.3.4: no answer is larger than what the link carries.
    let mut link = Link::new(Addressing6::Auto);
    link.turn();
    link.answers(announcement(255, 1800, 3600, Some(1280)));
    link.pass(1);
    link.sent();
    for (len, answers) in [(1232, 1), (1233, 0)] {
        let datagram = datagram_of(ROUTER, LINK_LOCAL, 7, &vec![1; len]);
        assert_eq!(link.answers(packet(ROUTER, LINK_LOCAL, IpProtocol::Udp, 64, &datagram)).len(), answers, "{len}");
    }
}

/// RFC 8200 §4: options that ask for nothing are skipped; fragments, source routes and more are not taken.
#[test]
fn extension_headers() {
    const PADDED: [u8; 8] = [6, 0, 1, 4, 0, 0, 0, 0];
    let chain = |first: u8, headers: &[&[u8]]| {
        let payload = [&headers.concat(), &syn()[..]].concat();
        packet(PEER, OWN, IpProtocol::from(first), 64, &payload)
    };
    let behind = |next: u8| [&[next], &PADDED[1..]].concat();
    let [to_skip, to_refuse] = [0x1e, 0x9e].map(|kind| [6, 0, kind, 4, 0, 0, 0, 0]);
    let (options_next, hop_by_hop_next) = (behind(60), behind(0));
    let long: Vec<u8> = [&[6, 32][..], &[0; 262]].concat();
    let cases: [(&str, u8, Vec<&[u8]>, bool); 10] = [
        ("none", 6, vec![], true),
        ("hop-by-hop options", 0, vec![&PADDED], true),
        ("both", 0, vec![&options_next, &PADDED], true),
        ("an option to be skipped", 60, vec![&to_skip], true),
        ("an option to be refused", 60, vec![&to_refuse], false),
        ("hop-by-hop options behind others", 60, vec![&hop_by_hop_next, &PADDED], false),
        ("too many", 60, vec![&options_next, &options_next, &options_next, &options_next, &PADDED], false),
        ("too long", 60, vec![&long], false),
        ("a source route", 43, vec![&[6, 0, 0, 0, 0, 0, 0, 0]], false),
        ("a fragment", 44, vec![&[6, 0, 0, 0, 0, 0, 0, 1]], false),
    ];
    for (what, first, headers, is_taken) in cases {
        let mut link = Link::ready();
        assert_eq!(link.answers(chain(first, &headers)).len(), usize::from(is_taken), "{what}");
        let whole = chain(first, &headers);
        for len in 14..whole.len() {
            let mut cut = whole[..len].to_vec();
            if let Some(place) = cut.get_mut(18..20) {
                place.copy_from_slice(&(len.saturating_sub(54) as u16).to_be_bytes());
            }
            link.answers(cut);
        }
        assert!(link.stack.connections() <= 1);
    }
}

/// RFC 4291 §2.5.2, §2.5.5 and §2.7: nobody has these addresses.
#[test]
fn sources_that_are_no_host_are_not_taken() {
    let mut link = Link::ready();
    for from in [Ipv6Addr::UNSPECIFIED, Ipv6Addr::LOCALHOST, ALL_NODES, "::ffff:192.0.2.1".parse().unwrap(), OWN] {
        let segment = tcp(from, TcpControl::Syn, None, &[]);
        assert!(link.answers(packet(from, OWN, IpProtocol::Tcp, 64, &segment)).is_empty(), "{from}");
    }
}

/// RFC 9293 §3.7.1, RFC 4861 §6.3.4, and RFC 8201 §4 and §5.2.
#[test]
fn segments_fit_the_link_and_the_path() {
    let mut link = Link::ready();
    let answer = link.answers(packet(PEER, OWN, IpProtocol::Tcp, 64, &syn()));
    let answer = answer[0].tcp();
    assert_eq!((answer.control, answer.max_seg_size), (TcpControl::Syn, Some(1440)));
    let first = answer.seq_number + 1;
    link.answers(packet(PEER, OWN, IpProtocol::Tcp, 64, &tcp(PEER, TcpControl::None, Some(first), b"hi")));
    let events = link.events();
    let accepted = events.iter().find_map(|event| match event {
        Event::Accepted { connection, remote, local } => Some((*connection, *remote, *local)),
        _ => None,
    });
    let (connection, remote, local) = accepted.unwrap();
    assert_eq!((remote, local), (SocketAddr::new(PEER.into(), 40_000), SocketAddr::new(OWN.into(), PORT)));
    assert_eq!(link.stack.send(connection, &[7; 3000]), 3000);
    link.turn();
    let sizes = |sent: Vec<Sent>| -> Vec<usize> { sent.iter().map(|sent| sent.tcp().payload.len()).collect() };
    let sent = link.sent();
    let quoted = sent[0].payload[..8].to_vec();
    assert_eq!(sizes(sent), [1440, 1440, 120]);
    let too_big = |mtu: u32, sequence: &[u8]| {
        let header =
            Ipv6Repr { src_addr: OWN, dst_addr: PEER, next_header: IpProtocol::Tcp, payload_len: 1460, hop_limit: 60 };
        let data = [&quoted[..4], sequence].concat();
        icmp(ROUTER, OWN, 64, Icmpv6Repr::PktTooBig { mtu, header, data: &data })
    };
    assert_eq!(sizes(link.answers(too_big(1279, &quoted[4..]))), [0; 0], "no link carries less");
    assert_eq!(sizes(link.answers(too_big(1300, &[1, 2, 3, 4]))), [0; 0], "RFC 5927 §7.2: it was never sent");
    // Others cannot use up what is looked at.
    let echo = Icmpv6Repr::EchoRequest { ident: 7, seq_no: 9, data: b"odd" };
    (0..2000).for_each(|_| drop(link.answers(icmp(PEER, OWN, 64, echo))));
    let sent = link.answers(too_big(1300, &quoted[4..]));
    assert_eq!(sizes(sent), [1240, 1240, 520]);

    let mut link = Link::new(Addressing6::Auto);
    link.turn();
    link.answers(announcement(255, 1800, 3600, Some(1280)));
    link.answers(announcement(255, 1800, 3600, Some(600)));
    link.pass(1);
    link.sent();
    link.stack.connect(SocketAddr::new(ROUTER.into(), 1), link.now_ns).unwrap();
    link.turn();
    assert_eq!(link.sent()[0].tcp().max_seg_size, Some(1220), "600 is less than any link's");
}

/// RFC 4987 §3.6.
#[test]
fn a_flood_of_syns_is_answered_by_cookies() {
    let mut link = Link::ready();
    let from = |number: u16| Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 1, 0, number);
    for number in 0..100 {
        let segment = tcp(from(number), TcpControl::Syn, None, &[]);
        link.answers(packet(from(number), OWN, IpProtocol::Tcp, 64, &segment));
    }
    let answer = link.answers(packet(PEER, OWN, IpProtocol::Tcp, 64, &syn()));
    let first = answer[0].tcp().seq_number + 1;
    assert!(link.stack.figures().cookies_sent > 50 && link.stack.connections() <= 8);
    link.answers(packet(PEER, OWN, IpProtocol::Tcp, 64, &tcp(PEER, TcpControl::None, Some(first), b"hi")));
    assert_eq!(link.stack.figures().cookies_accepted, 1);
    let remote = SocketAddr::new(PEER.into(), 40_000);
    assert!(link.events().iter().any(|event| matches!(event, Event::Accepted { remote: from, .. } if *from == remote)));
}

/// Without timestamps, in which they would come back, nothing is agreed on that nobody remembers.
#[test]
fn a_cookie_offers_no_more_than_comes_back() {
    let plain = syn();
    let plain = TcpPacket::new_unchecked(&plain[..]);
    let capabilities = ChecksumCapabilities::default();
    let repr = TcpRepr::parse(&plain, &PEER.into(), &OWN.into(), &capabilities).unwrap();
    let repr = TcpRepr { window_scale: Some(8), sack_permitted: true, ..repr };
    let mut asking = vec![0; repr.buffer_len()];
    repr.emit(&mut TcpPacket::new_unchecked(&mut asking[..]), &PEER.into(), &OWN.into(), &capabilities);
    for (handshakes, scale, sack_permitted) in [(1, Some(7), true), (100, None, false)] {
        let mut link = Link::ready();
        for number in 1..handshakes {
            let from = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 1, 0, number);
            link.answers(packet(from, OWN, IpProtocol::Tcp, 64, &tcp(from, TcpControl::Syn, None, &[])));
        }
        let answer = link.answers(packet(PEER, OWN, IpProtocol::Tcp, 64, &asking));
        let answer = answer[0].tcp();
        assert_eq!((answer.window_scale, answer.sack_permitted), (scale, sack_permitted), "{handshakes} handshakes");
        // What the connection does then is what was said.
        let ahead = tcp(PEER, TcpControl::None, Some(answer.seq_number + 1), b"first");
        link.answers(packet(PEER, OWN, IpProtocol::Tcp, 64, &ahead));
        let mut behind = tcp(PEER, TcpControl::None, Some(answer.seq_number + 1), b"third");
        let mut segment = TcpPacket::new_unchecked(&mut behind[..]);
        segment.set_seq_number(segment.seq_number() + 10);
        segment.fill_checksum(&PEER.into(), &OWN.into());
        let report = &link.answers(packet(PEER, OWN, IpProtocol::Tcp, 64, &behind))[0];
        assert_eq!(report.tcp().sack_ranges[0].is_some(), sack_permitted);
        assert_eq!(report.tcp().window_len > 60_000, !sack_permitted, "in steps of a byte");
    }
}

#[test]
fn addresses_that_no_host_has_are_refused() {
    for address in [Ipv6Addr::UNSPECIFIED, Ipv6Addr::LOCALHOST, ALL_NODES, "::ffff:192.0.2.1".parse().unwrap()] {
        let addressing6 = Addressing6::Static { address, prefix_bits: 64, gateway: None };
        let limits = Limits { connections: 8, buffer_bytes: 1 << 20 };
        let config = Config { addressing: Addressing::Dhcp, addressing6, limits, keepalive_s: 0, seed: 1 };
        assert!(Stack::new(config, &mut Card::default(), 0).is_err(), "{address}");
    }
}
