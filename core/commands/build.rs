//! Packs the commands' documentation: it is longer than the code of many commands, and seldom asked for.

use std::{env, fs, path::PathBuf};

fn main() {
    let source = "src/documentation.txt";
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={source}");
    let text = fs::read(source).expect("reading the documentation");
    assert!(text.is_ascii(), "{source} is not ASCII");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    fs::write(out.join("documentation.packed"), kayvee_pairs::pack_text(text)).expect("writing into OUT_DIR");
}
