//! The engine as a target drives it.

mod bench;
mod cluster;
mod datagrams;
mod disk;
mod durable;
mod events;
mod lines;
mod long_arguments;
mod made_log;
mod replicas;
mod scripts;
mod turns;
mod waiting;
mod web;
