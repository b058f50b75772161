//! Sends datagrams to a UDP service and counts the answers: what `experiments/udp.py` measures with.
//!
//! Usage: udp_load ADDRESS:PORT echo|get|set SECONDS WINDOW. `WINDOW` datagrams are on their way at a time, sent and received
//! in batches of one system call. Prints answers a second, how many were lost, and the round trip's p50 and p99 in
//! nanoseconds, which mean something with a window of 1.

use nix::{
    errno::Errno,
    sys::socket::{
        MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg, sendmmsg, setsockopt,
        sockopt::{RcvBuf, ReceiveTimeout},
    },
    sys::time::{TimeVal, TimeValLike},
};
use std::{
    env,
    io::{IoSlice, IoSliceMut},
    net::UdpSocket,
    os::fd::AsRawFd,
    time::{Duration, Instant},
};

const BATCH_MAX: usize = 64;
const KEYS: u32 = 1000;
/// After so long what is on its way counts as lost.
const LOST_MS: i64 = 20;
/// memcached's header for a request of one datagram.
const HEADER: [u8; 8] = [0, 0, 0, 0, 0, 1, 0, 0];

fn request(kind: &str, number: u32) -> Vec<u8> {
    let key = number % KEYS;
    let text = match kind {
        "echo" => return b"0123456789abcdef".to_vec(),
        "get" => format!("get key:{key:08}\r\n"),
        "set" => format!("set key:{key:08} 0 0 16\r\n0123456789abcdef\r\n"),
        _ => panic!("give echo, get or set"),
    };
    [&HEADER, text.as_bytes()].concat()
}

/// Sends so many requests. What the kernel has no room for counts as sent, and as lost later.
fn send(socket: &UdpSocket, headers: &mut MultiHeaders<SockaddrStorage>, requests: &[Vec<u8>]) {
    let slices: Vec<_> = requests.iter().map(|request| [IoSlice::new(request)]).collect();
    let addresses = vec![None::<SockaddrStorage>; requests.len()];
    match sendmmsg(socket.as_raw_fd(), headers, &slices, &addresses, [], MsgFlags::empty()) {
        Ok(_) | Err(Errno::ECONNREFUSED) => {}
        Err(error) => panic!("sending: {error}"),
    }
}

/// Receives a batch of at least one, or nothing if it takes too long.
fn receive(socket: &UdpSocket, headers: &mut MultiHeaders<SockaddrStorage>, buffers: &mut [[u8; 2048]]) -> usize {
    let mut slices: Vec<_> = buffers.iter_mut().map(|buffer| [IoSliceMut::new(buffer)]).collect();
    match recvmmsg(socket.as_raw_fd(), headers, slices.iter_mut(), MsgFlags::MSG_WAITFORONE, None) {
        Ok(messages) => messages.count(),
        Err(Errno::EAGAIN | Errno::EINTR | Errno::ECONNREFUSED) => 0,
        Err(error) => panic!("receiving: {error}"),
    }
}

fn main() {
    let words: Vec<String> = env::args().skip(1).collect();
    let [address, kind, seconds, window] = &words[..] else { panic!("give ADDRESS:PORT echo|get|set SECONDS WINDOW") };
    let (seconds, window): (u64, usize) = (seconds.parse().expect("seconds"), window.parse().expect("a window"));
    let batch = window.clamp(1, BATCH_MAX);
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
    socket.connect(address).expect("an address");
    setsockopt(&socket, ReceiveTimeout, &TimeVal::milliseconds(LOST_MS)).expect("a timeout");
    setsockopt(&socket, RcvBuf, &(1 << 20)).expect("a buffer");
    let (mut out, mut back) = (MultiHeaders::preallocate(batch, None), MultiHeaders::preallocate(batch, None));
    let mut buffers = vec![[0; 2048]; batch];
    let (mut number, mut answers, mut lost, mut on_their_way) = (0u32, 0u64, 0u64, 0usize);
    let mut trips_ns = Vec::new();
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(seconds) {
        let requests: Vec<_> = (on_their_way..window).take(batch).map(|n| request(kind, number + n as u32)).collect();
        number = number.wrapping_add(requests.len() as u32);
        let sent = Instant::now();
        if !requests.is_empty() {
            send(&socket, &mut out, &requests);
            on_their_way += requests.len();
        }
        let received = receive(&socket, &mut back, &mut buffers);
        if received == 0 {
            lost += on_their_way as u64;
            on_their_way = 0;
        } else if window == 1 {
            trips_ns.push(sent.elapsed().as_nanos() as u64);
        }
        answers += received as u64;
        on_their_way = on_their_way.saturating_sub(received);
    }
    trips_ns.sort_unstable();
    let trip = |percent| trips_ns.get(trips_ns.len() * percent / 100).copied().unwrap_or(0);
    println!("{} {lost} {} {}", answers as f64 / start.elapsed().as_secs_f64(), trip(50), trip(99));
}
