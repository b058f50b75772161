//! Reports of groups (RFC 3810).

use super::*;

/// The groups of a report of version 2, each with its type.
fn records(message: &[u8]) -> Vec<(u8, Ipv6Addr)> {
    assert_eq!((message[0], message.len()), (143, 8 + 20 * usize::from(message[7])));
    let record = |bytes: &[u8]| {
        assert_eq!(bytes[1..4], [0; 3], "no sources, and nothing else");
        (bytes[0], header::address_at(bytes, 4))
    };
    message[8..].chunks(20).map(record).collect()
}

/// A query of so many bytes, about a group or all.
fn query(bytes: usize, code: u16, group: Ipv6Addr, from: Ipv6Addr, hop_limit: u8) -> Vec<u8> {
    let mut message = vec![0; bytes];
    message[0] = 130;
    message[4..6].copy_from_slice(&code.to_be_bytes());
    message[8..24].copy_from_slice(&group.octets());
    let to = if group.is_unspecified() { message::ALL_NODES } else { group };
    let ends = Ends::V6 { own: from, remote: to };
    let sum = checksum::finish(ends.pseudo_header(PROTOCOL_ICMPV6, bytes) + checksum::sum(&message));
    message[2..4].copy_from_slice(&sum);
    let payload = [&[58, 0, 5, 2, 0, 0, 1, 0], &message[..]].concat();
    let mut frame = vec![0; 14 + 40 + payload.len()];
    let route = Route { mac: PEER_MAC, hardware: message::hardware_of(to), ends: &ends };
    emit_headers(&mut frame, &route, 0, hop_limit, payload.len()).copy_from_slice(&payload);
    frame
}

/// RFC 3810 §6.1, RFC 3590 §4: a group is told of before its address is asked for, and again from an address.
#[test]
fn groups_are_joined() {
    let mut link = Link::new(FIXED);
    link.turn();
    let nobody = Ipv6Addr::UNSPECIFIED;
    let listeners = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
    let both = [LINK_LOCAL, OWN].map(|address| vec![(4, message::solicited_node(address))]);
    let reports = link.reports();
    assert!(reports.iter().all(|(from, to, _)| (*from, *to) == (nobody, listeners)));
    assert_eq!(reports.iter().map(|(_, _, message)| records(message)).collect::<Vec<_>>(), both);
    link.pass(1);
    let reports = link.reports();
    assert!(reports.iter().all(|(from, _, _)| *from == LINK_LOCAL), "{reports:?}");
    assert_eq!(reports.iter().map(|(_, _, message)| records(message)).collect::<Vec<_>>(), both);
}

/// RFC 3810 §6.2 and §8.2.1.
#[test]
fn who_asks_for_groups_is_told() {
    let mut link = Link::ready();
    let (all, own) = (Ipv6Addr::UNSPECIFIED, message::solicited_node(OWN));
    let is_in = |address| (2, message::solicited_node(address));
    let mut ask = |frame: Vec<u8>| {
        link.reports();
        link.card.0.0.push_back(frame);
        link.turn();
        // The longest delay among these questions: 0x8000 stands for 32,768 ms (§5.1.3).
        link.pass(33);
        link.reports()
    };
    for (group, code) in [(all, 0), (all, 10_000), (own, 1000), (all, 0x8000)] {
        let reports = ask(query(28, code, group, ROUTER, 1));
        let [(LINK_LOCAL, _, message)] = &reports[..] else { panic!("{reports:?}") };
        assert_eq!(records(message), [is_in(LINK_LOCAL), is_in(OWN)]);
    }
    let reports = ask(query(24, 100, all, ROUTER, 1));
    assert!(reports.iter().all(|(from, to, message)| *from == LINK_LOCAL && header::address_at(message, 8) == *to));
    assert_eq!(
        reports.iter().map(|(_, to, _)| *to).collect::<Vec<_>>(),
        [LINK_LOCAL, OWN].map(message::solicited_node)
    );
    assert!(reports.iter().all(|(_, _, message)| message[0] == 131 && message.len() == 24));
    let elsewhere = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff01, 0x203);
    for frame in [
        query(28, 0, elsewhere, ROUTER, 1),
        query(28, 0, all, ROUTER, 64),
        query(28, 0, all, PEER, 1),
        query(26, 0, all, ROUTER, 1),
        query(16 + 8, 0, all, PEER, 1),
    ] {
        assert_eq!(ask(frame), []);
    }
}

/// RFC 3810 §6.2: after some time, each station after another, and not later than the first who asks wants it.
#[test]
fn who_asks_for_groups_waits() {
    let mut link = Link::ready();
    let all = Ipv6Addr::UNSPECIFIED;
    link.reports();
    let asked_ns = link.now_ns;
    for code in [10_000, u16::MAX] {
        link.card.0.0.push_back(query(28, code, all, ROUTER, 1));
        link.turn();
        assert_eq!(link.reports(), []);
    }
    while link.reports().is_empty() {
        link.now_ns += SECOND_NS / 10;
        link.turn();
        assert!(link.now_ns <= asked_ns + 10 * SECOND_NS);
    }
    assert!(link.now_ns > asked_ns);
    link.pass(9_000);
    assert_eq!(link.reports(), [], "both were answered");
}
