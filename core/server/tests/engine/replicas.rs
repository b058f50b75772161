//! Copies of the data in other engines.

mod chain;
mod copies;
mod restarts;
mod strangers;
mod together;
