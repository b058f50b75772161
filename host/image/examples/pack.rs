//! Packs a linked guest: `cargo run -p kayvee-image --example pack -- LINKED IMAGE`.

use std::{env, fs, process::ExitCode};

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [linked, image] = &arguments[..] else {
        eprintln!("usage: pack LINKED IMAGE");
        return ExitCode::FAILURE;
    };
    let packed = fs::read(linked).map_err(|error| error.to_string());
    let packed = packed.and_then(|bytes| kayvee_image::pack(&bytes).map_err(|error| error.to_string()));
    match packed.and_then(|bytes| fs::write(image, bytes).map_err(|error| error.to_string())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{linked}: {error}");
            ExitCode::FAILURE
        }
    }
}
