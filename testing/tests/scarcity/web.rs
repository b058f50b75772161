//! The same of the web server's requests.

use crate::sys::with_large_allocations;
use kayvee_http::{
    AccessLog, Limits, NoPages, Server, Site,
    site::{Builder, File},
};
use kayvee_platform::Now;
use std::{
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    sync::Arc,
};

const REMOTE: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 1025));
const PAGE_BYTES: usize = 64 << 10;

fn server() -> Server {
    let mut builder = Builder::default();
    builder.page(0, b"/page", &File { identity: vec![b'x'; PAGE_BYTES], ..File::default() }).unwrap();
    builder.folder(0, b"/folder").unwrap();
    let mut server = Server::new(Limits::new(10, 1 << 20), AccessLog::Common, Now::default());
    server.set_site(Site::open(Arc::new(builder.finish().unwrap())).unwrap());
    server
}

#[test]
fn requests_survive_want_of_memory() {
    let long = "x".repeat(7000);
    // All that are answered from copies, each just short of what is lent.
    let ranges: Vec<String> = (0..15).map(|part| format!("{}-{}", part * 4096, part * 4096 + 4095)).collect();
    for request in [
        format!("GET /%41{long} HTTP/1.1\r\nHost: h\r\n\r\n"),
        format!("GET /folder?{long} HTTP/1.1\r\nHost: h\r\n\r\n"),
        format!("GET /page HTTP/1.1\r\nHost: H{long}\r\n\r\n"),
        format!("GET /page HTTP/1.1\r\nHost: h\r\nX: {long}\r\nContent-Length: 1\r\n\r\nx"),
        format!("GET /page HTTP/1.1\r\nHost: h\r\nRange: bytes={}\r\n\r\n", ranges.join(",")),
        "GET /page HTTP/1.1\r\nHost: h\r\n\r\n".repeat(100),
        "GET /none HTTP/1.1\r\nHost: h\r\n\r\n".repeat(200),
        "GET /none HTTP/1.1\r\nHost: h\r\n\r\n".repeat(20) + "GET /\r\n\r\n",
        format!("{long}{long}{long}"),
    ] {
        for successes in 0..4 {
            let mut server = server();
            for split in [1, request.len() / 2, request.len()] {
                let id = server.connect(REMOTE, true).unwrap();
                let (first, second) = request.as_bytes().split_at(split);
                with_large_allocations(successes, || {
                    server.receive(id, first, &mut NoPages);
                    server.receive(id, second, &mut NoPages);
                });
                server.disconnect(id);
            }
            let id = server.connect(REMOTE, true).unwrap();
            server.receive(id, b"GET /none HTTP/1.1\r\nHost: h\r\n\r\n", &mut NoPages);
            let answer = server.output(id).concat();
            assert!(answer.starts_with(b"HTTP/1.1 404 "), "{successes} after {}", request.escape_debug());
        }
    }
}
