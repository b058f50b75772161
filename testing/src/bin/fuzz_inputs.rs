//! Writes what libFuzzer starts from: `fuzz_inputs FOLDER` makes `FOLDER/TARGET/` with examples and, where words help,
//! the dictionary `FOLDER/TARGET.dict`, for each target of `fuzz/` that has any.

use kayvee_testing::fuzz::TARGETS;
use std::{fs, io, path::Path, process::ExitCode};

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let (Some(folder), None) = (words.next(), words.next()) else {
        eprintln!("usage: fuzz_inputs FOLDER");
        return ExitCode::from(2);
    };
    match write(Path::new(&folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fuzz_inputs: {folder}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn write(folder: &Path) -> io::Result<()> {
    for target in &TARGETS {
        let examples = folder.join(target.name);
        fs::create_dir_all(&examples)?;
        for (number, example) in (target.examples)().iter().enumerate() {
            fs::write(examples.join(format!("example-{number}")), example)?;
        }
        let words = (target.words)();
        if !words.is_empty() {
            fs::write(
                folder.join(format!("{}.dict", target.name)),
                words.iter().map(|word| entry(word)).collect::<String>(),
            )?;
        }
    }
    Ok(())
}

/// A line of a dictionary: <https://llvm.org/docs/LibFuzzer.html#dictionaries>.
fn entry(word: &[u8]) -> String {
    let escaped: String = word.iter().map(|byte| format!("\\x{byte:02x}")).collect();
    format!("\"{escaped}\"\n")
}
