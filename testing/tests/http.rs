//! The web server's vectors, in-process, however their bytes are split.

use kayvee_testing::http::{check, exchange, server, vectors};

#[test]
fn vectors_hold_whole_and_split() {
    let mut server = server();
    for vector in vectors() {
        let request = vector.request.as_slice();
        let (whole, ends) = exchange(&mut server, [request], usize::MAX);
        if let Err(why) = check(&vector, &whole) {
            panic!("{why}\n{}", whole.escape_ascii());
        }
        assert_eq!(ends, vector.ends, "the end of the connection, at line {}", vector.line);
        for at in 1..request.len() {
            let (first, second) = request.split_at(at);
            let split = exchange(&mut server, [first, second], usize::MAX);
            assert_eq!(split.0, whole, "line {}, split at {at}", vector.line);
        }
        for step in [1, 7, 4096] {
            let bytes = exchange(&mut server, request.chunks(1), step);
            assert_eq!(bytes, (whole.clone(), ends), "line {}, byte by byte, {step} at a time", vector.line);
        }
    }
    assert_eq!(server.stats().connections, 0);
}
