//! The engine as a target drives it.

mod bench;
mod turns;
mod waiting;
