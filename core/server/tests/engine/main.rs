//! The engine as a target drives it.

mod bench;
mod scripts;
mod turns;
mod waiting;
