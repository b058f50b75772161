//! Runs a Lua script with `print` in addition: `cargo run --release -p kayvee-lua --example lua -- FILE`.

use kayvee_lua::{Event, Limits, Machine, Value};
use std::io::Write;

const PRINT: u32 = 1;
const CLOCK: u32 = 2;
/// Turns of loops between two looks at the time.
const SLICE: u64 = 1 << 20;

fn main() -> std::process::ExitCode {
    let path = std::env::args().nth(1).expect("usage: lua FILE [HEAP_BYTES]");
    let heap_bytes = std::env::args().nth(2).map_or(1 << 30, |text| text.parse().expect("bytes of the heap"));
    let text = std::fs::read(&path).expect("the file can be read");
    let mut machine = Machine::new(Limits { heap_bytes }, [1, 2]).expect("room for the libraries");
    let globals = machine.globals();
    for (name, number) in [("print", PRINT), ("clock", CLOCK)] {
        let function = machine.host_function(number);
        machine.heap.set_str(globals, name, function).expect("room for a global");
    }
    let source = [b"@", path.as_bytes()].concat();
    let function = match machine.compile(&text, &source, globals) {
        Ok(function) => function,
        Err(raise) => {
            eprintln!("{raise:?}");
            return std::process::ExitCode::FAILURE;
        }
    };
    machine.start(Value::Function(function), &[]).expect("room for a call");
    let start = std::time::Instant::now();
    loop {
        match machine.run(SLICE) {
            Event::Done => return std::process::ExitCode::SUCCESS,
            Event::Preempted => {}
            Event::Host(CLOCK) => machine.answer(Some(Value::Number(start.elapsed().as_secs_f64()))),
            Event::Host(_) => {
                let shown: Vec<Vec<u8>> = machine.arguments().iter().map(|value| shown(&machine, *value)).collect();
                std::io::stdout().write_all(&[&shown.join(&b'\t')[..], b"\n"].concat()).expect("room for output");
                machine.answer(None);
            }
            Event::Failed(failure) => {
                eprintln!("{}", String::from_utf8_lossy(&shown(&machine, failure.value)));
                return std::process::ExitCode::FAILURE;
            }
        }
    }
}

fn shown(machine: &Machine, value: Value) -> Vec<u8> {
    match value {
        Value::String(string) => machine.heap.bytes(string).to_vec(),
        Value::Number(number) => {
            let mut text = Vec::new();
            kayvee_lua::format_number(number, &mut text);
            text
        }
        Value::Boolean(boolean) => boolean.to_string().into_bytes(),
        other => other.type_name().as_bytes().to_vec(),
    }
}
