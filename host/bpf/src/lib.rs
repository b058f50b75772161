//! Small programs for the kernel (BPF). They are tied to descriptors, so nothing is left behind by a process that is killed.
//!
//! Each is a few dozen instructions, which whoever needs it [assembles](Assembler): `aya` and `libbpf` load programs that need
//! `bpf-linker` or `clang` to be made. `bpf`(2) is in [`sys`].
#![deny(unsafe_code)]

mod assembler;
#[allow(unsafe_code)]
mod sys;

pub use assembler::{Assembler, Instruction, loaded_u16, loaded_words, op};
pub use sys::{Kind, MAP_TYPE_XSKMAP, attach, create_map, load, test_run, update_map};
