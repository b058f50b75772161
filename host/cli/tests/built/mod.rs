//! What `cargo build --release` has made, which tests start whatever profile they are built with themselves.

use std::path::{Path, PathBuf};

/// The kayvee command; what it starts lies beside it.
pub fn kayvee() -> PathBuf {
    let profile = Path::new(env!("CARGO_BIN_EXE_kayvee")).parent().expect("cargo names a file in a profile's folder");
    profile.with_file_name("release").join("kayvee")
}
