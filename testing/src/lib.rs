//! What proves the store from outside.
//!
//! Everything here that speaks to a server does so through [`client`], a small RESP client of its own: a mistake in
//! `kayvee-resp` must not hide itself. The modules take an address, so the same tests run against the Linux process, a
//! booted image and redis-server, which is the judge of what is right.
#![forbid(unsafe_code)]

pub mod client;
pub mod conformance;
pub mod crash;
pub mod differential;
pub mod disk;
pub mod fuzz;
pub mod http;
pub mod in_process;
pub mod log_model;
pub mod named;
pub mod network;
pub mod ports;
pub mod random;
pub mod self_tests;
pub mod store_model;
pub mod stress;
pub mod web;
