//! The devices.

pub mod block;
pub mod entropy;
pub mod net;
