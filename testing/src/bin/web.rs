//! Tests a running web server: `web --site-image FILE` or `web --large-site-image FILE`, then `web --web HOST:PORT --store
//! HOST:PORT [--long|--large] [FILTER]`.

use kayvee_testing::{
    named,
    web::{KEY_PREFIX, LARGE_TESTS, LONG_TESTS, TESTS, Target, large_site_image, site_image},
};
use std::process::ExitCode;

const USAGE: &str = "usage: web --site-image FILE
       web --large-site-image FILE
       web --web HOST:PORT --store HOST:PORT [--long|--large] [FILTER]

The first two write the sites that the third expects to be served (the larger one with --large), by a store that was started with it, with --status and
--http-keys. FILTER picks the tests whose name contains it. --long adds what takes 10,000 connections: `ulimit -n 30000`.";

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("web: {error}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<bool, String> {
    let mut target = Target { web: String::new(), store: String::new() };
    let mut tests = TESTS.to_vec();
    let mut filter = String::new();
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value\n{USAGE}"));
        match word.as_str() {
            "--site-image" | "--large-site-image" => {
                let file = value()?;
                let image = if word == "--site-image" { site_image() } else { large_site_image() };
                std::fs::write(&file, image).map_err(|error| format!("{file}: {error}"))?;
                return Ok(true);
            }
            "--web" => target.web = value()?,
            "--store" => target.store = value()?,
            "--long" => tests.extend(LONG_TESTS),
            "--large" => tests = LARGE_TESTS.to_vec(),
            "--help" => {
                println!("{USAGE}\n\nThe prefix of keys is {KEY_PREFIX}");
                return Ok(true);
            }
            _ if word.starts_with("--") || !filter.is_empty() => return Err(format!("{word}?\n{USAGE}")),
            _ => filter = word,
        }
    }
    Ok(named::run(&tests, &filter, &target))
}
