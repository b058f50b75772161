//! Copies of the data in other engines.

mod chain;
mod copies;
mod strangers;
mod together;
