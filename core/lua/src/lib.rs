//! A Lua 5.1 interpreter in bounded memory, time and stack, without `unsafe`.
//!
//! A host makes a [`Machine`], compiles a source text and runs it in slices: [`Machine::run`] returns when the script
//! ends, fails, calls a function of the host or has used up its budget, and can be called again to go on. Nothing of the
//! machine's state is on Rust's stack meanwhile. All objects are on its [`Heap`], whose size has a limit.
//!
//! What scripts see is Lua 5.1 as Redis offers it: no files, no `debug`, no bytecode, and the libraries `cjson`,
//! `cmsgpack`, `struct` and `bit` in addition.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod call;
mod code;
mod debug;
mod error;
mod heap;
mod lexer;
mod library;
mod machine;
mod meta;
mod number;
mod op;
mod parser;
mod run;
mod table;
mod thread;
mod value;

pub use error::Raise;
pub use heap::{Heap, OutOfMemory};
pub use lexer::shown_source;
pub use machine::{Event, Failure, Limits, Machine};
pub use number::{format_digits, format_number, parse_number};
pub use value::{BoundRef, ClosureRef, NativeRef, StringRef, TableRef, ThreadRef, Value};

#[cfg(test)]
mod tests;
